//! Tests of the options of a heap.

use super::*;

const NONE: standstill_heap_options = standstill_heap_options {
    size: size_of::<standstill_heap_options>(),
    reserve: 0,
    limit: 0,
    workers: 0,
    checked: -1,
    stress: 0,
    serial_below: 0,
    slow_stop_ms: 0,
    slow_collection_ms: 0,
    child_from: 0,
};

#[test]
fn each_option_of_a_heap_reaches_its_setting_and_0_leaves_the_default() {
    let says = |options: standstill_heap_options, wanted: HeapBuilder| {
        assert_eq!(format!("{:?}", builder(&options)), format!("{wanted:?}"));
    };
    says(NONE, plain());
    says(standstill_heap_options { reserve: 1 << 30, ..NONE }, plain().reserve(1 << 30));
    says(standstill_heap_options { limit: 1 << 20, ..NONE }, plain().limit(1 << 20));
    says(standstill_heap_options { workers: 3, ..NONE }, plain().workers(3));
    says(standstill_heap_options { checked: 0, ..NONE }, plain().checked(false));
    says(standstill_heap_options { checked: 1, ..NONE }, plain().checked(true));
    says(standstill_heap_options { stress: 1, ..NONE }, plain().stress(true));
    says(standstill_heap_options { serial_below: 7, ..NONE }, plain().serial_below(7));
    let slow = Duration::from_millis(20);
    says(standstill_heap_options { slow_stop_ms: 20, ..NONE }, plain().slow_stop(slow));
    let wanted = plain().slow_collection(slow);
    says(standstill_heap_options { slow_collection_ms: 20, ..NONE }, wanted);
    let pacing = pacing().with_forked(ForkedSearch::FromObjects(9));
    says(standstill_heap_options { child_from: 9, ..NONE }, plain().pacing(pacing));
}

#[test]
fn an_option_that_a_program_does_not_know_is_0() {
    let all = standstill_heap_options {
        reserve: 1,
        limit: 2,
        workers: 3,
        checked: 4,
        stress: 5,
        serial_below: 6,
        slow_stop_ms: 7,
        slow_collection_ms: 8,
        child_from: 9,
        ..NONE
    };
    let fields = |options: &standstill_heap_options| {
        let standstill_heap_options {
            size,
            reserve,
            limit,
            workers,
            checked,
            stress,
            serial_below,
            slow_stop_ms,
            slow_collection_ms,
            child_from,
        } = *options;
        assert!(checked >= 0 && stress >= 0);
        let (workers, checked, stress) = (workers as usize, checked as usize, stress as usize);
        let (serial, slow, long) = (serial_below, slow_stop_ms as usize, slow_collection_ms);
        [size, reserve, limit, workers, checked, stress, serial, slow, long, child_from]
    };
    let of_size = |size| {
        // SAFETY: rule *argument*: the struct is complete, whatever its `size` is.
        unsafe { given(&standstill_heap_options { size, ..all }) }.map(|given| fields(&given))
    };
    let all = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let up_to = |size: usize, known: usize| {
        let mut wanted = all;
        wanted[known..].fill(0);
        wanted[0] = size;
        assert_eq!(of_size(size), Some(wanted));
    };
    up_to(size_of::<usize>(), 1);
    up_to(std::mem::offset_of!(standstill_heap_options, stress), 5);
    up_to(0, 7);
    up_to(std::mem::offset_of!(standstill_heap_options, slow_collection_ms), 8);
    up_to(std::mem::offset_of!(standstill_heap_options, child_from), 9);
    up_to(size_of::<standstill_heap_options>(), 10);
    up_to(1000, 10);
    // SAFETY: rule *argument*: null means no options.
    assert!(unsafe { given(std::ptr::null()) }.is_none());
}

#[test]
fn a_heap_that_cannot_be_built_is_a_bad_size_or_a_lack_of_memory() {
    let code = |error: BuildError| fault_of(&error, "function").code;
    assert_eq!(code(BuildError::Setting("less than a page".into())), Code::BadSize);
    assert_eq!(code(BuildError::Reserve { tried: 1, reason: "refused".into() }), Code::Memory);
    assert_eq!(code(BuildError::Memory), Code::Memory);
}

#[test]
fn a_dump_waits_for_no_thread_that_has_the_list_of_heaps() {
    let held = heaps();
    // SAFETY: rule *argument*: there is no object at the address.
    unsafe { dump(std::ptr::null()) };
    drop(held);
}
