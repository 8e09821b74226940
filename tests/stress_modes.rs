//! Each stress mode: its effect, and the fault that it finds. The faults are planted by raw
//! pointers, as a mistake in unsafe code would plant them. The faults that `verify` finds in pages
//! and tables are planted next to it, in `src/verify/objects.rs`.
#![cfg(not(any(loom, shuttle)))]

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};

use standstill::{Gc, GcCell, GcWeak, Heap, HeapBuilder, Mutator, Pacing, Stress, Trace, Tracer};

#[derive(Trace)]
struct Node {
    #[trace(skip)]
    number: u64,
    next: GcCell<Vec<Gc<Node>>>,
}

fn node(m: &Mutator) -> Gc<Node> {
    m.alloc(Node { number: 7, next: GcCell::default() })
}

fn link(from: &Gc<Node>, to: &Gc<Node>, m: &Mutator) {
    from.next.lock(m).push(to.clone());
}

/// A heap that collects only on request, or under stress.
fn builder(stress: Stress) -> HeapBuilder {
    Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).stress(stress)
}

fn heap(stress: Stress) -> Heap {
    builder(stress).build().expect("a heap")
}

/// Where an object's header lies: owner and type, then the local count, then the shared one.
fn header(gc: &Gc<Node>) -> *mut u8 {
    Gc::as_ptr(gc).cast_mut().cast::<u8>().wrapping_sub(16)
}

/// The word of a local half that counts no reference.
const LOCAL_ZERO: u32 = (1 << 31) - (1 << 25);

fn local_count(gc: &Gc<Node>) -> &AtomicU32 {
    // SAFETY: eight bytes into the header, for as long as the object lives.
    unsafe { &*header(gc).add(8).cast::<AtomicU32>() }
}

/// The text of the panic that `f` ends with.
fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else { panic!("nothing was found") };
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|&s| s.into()))
        .unwrap()
}

// ----------------------------------------------------------------------------------- collections

#[test]
fn every_nth_safepoint_collects() {
    for (every, expected) in [(0, 0), (1, 9), (3, 3), (10, 0)] {
        let heap = heap(Stress::none().collect_at_safepoints(every));
        let mut m = heap.attach();
        (0..9).for_each(|_| m.safepoint());
        assert_eq!(
            (heap.stats().collections, heap.stress_stats().collections),
            (expected, expected as u64)
        );
    }
}

/// A safepoint waits for another thread's collection, and then runs its own. Without the wait a
/// thread that is not scheduled would leave as few as 43 collections.
#[test]
fn threads_collect_under_stress_beside_each_other() {
    const SAFEPOINTS: usize = 1000;
    let heap = heap(Stress::none().collect_at_safepoints(1));
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let mut m = heap.attach();
                for _ in 0..SAFEPOINTS {
                    let ring = node(&m);
                    link(&ring, &ring, &m);
                    drop(ring);
                    m.safepoint();
                }
            });
        }
    });
    let (ran, told) = (heap.stats().collections, heap.stress_stats().collections);
    println!("{ran} of {} safepoints", 3 * SAFEPOINTS);
    assert_eq!(ran as u64, told);
    assert!(ran >= SAFEPOINTS, "{ran} collections");
}

/// A finalizer waits for a lock that another thread holds over its safepoints.
#[test]
fn a_stressed_safepoint_does_not_wait_for_a_finalizer_for_ever() {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    static RUNS: AtomicBool = AtomicBool::new(false);

    #[derive(Trace)]
    #[trace(finalize = wait)]
    struct Waits(GcCell<Option<Gc<Waits>>>);

    fn wait(_: &Gc<Waits>, _: &Mutator) {
        RUNS.store(true, SeqCst);
        drop(LOCK.lock());
    }
    let heap = heap(Stress::none().collect_at_safepoints(1));
    let mut m = heap.attach();
    let held = LOCK.lock();
    std::thread::scope(|s| {
        s.spawn(|| {
            let m = heap.attach();
            let ring = m.alloc(Waits(GcCell::new(None)));
            ring.0.set(&m, Some(ring.clone()));
            drop(ring);
            let mut m = m;
            m.collect();
        });
        while !RUNS.load(SeqCst) {
            m.safepoint();
            std::thread::yield_now();
        }
        m.safepoint();
        drop(held);
        m.detach(|| ());
        drop(m);
    });
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn garbage_goes_at_the_next_safepoint() {
    let heap = heap(Stress::none().collect_at_safepoints(1));
    let mut m = heap.attach();
    let (a, b) = (node(&m), node(&m));
    link(&a, &b, &m);
    link(&b, &a, &m);
    drop((a, b));
    assert_eq!(heap.stats().live_objects, 2);
    m.safepoint();
    assert_eq!(heap.stats().live_objects, 0);
}

// ---------------------------------------------------------------------------------------- verify

#[test]
fn each_collection_is_verified_before_inside_and_after() {
    let heap = heap(Stress::none().verify(true));
    let mut m = heap.attach();
    m.collect();
    assert_eq!(heap.stress_stats().verifications, 3);
    m.collect_young();
    assert_eq!(heap.stress_stats().verifications, 6);
}

#[test]
fn a_lost_count_is_found_before_the_collection() {
    let plant = |stress: Stress, f: &dyn Fn(&mut Mutator, &Gc<Node>)| {
        let heap = heap(stress);
        let mut m = heap.attach();
        let (a, b, c) = (node(&m), node(&m), node(&m));
        link(&a, &c, &m);
        link(&b, &c, &m);
        // `a`, `b` and this function have one each.
        assert_eq!(local_count(&c).swap(LOCAL_ZERO + 1, SeqCst), LOCAL_ZERO + 3);
        f(&mut m, &c);
        local_count(&c).store(LOCAL_ZERO + 3, SeqCst);
        m.verify().expect("sound again");
    };
    plant(Stress::none().verify_counts(true), &|m, c| {
        let text = panic_of(|| m.collect());
        let place = format!("{:#x}", header(c) as usize);
        for part in [
            "before a collection",
            "Node",
            &place,
            "visited 2 times",
            "has 1 references",
            "poison and quarantine",
        ] {
            assert!(text.contains(part), "no `{part}` in: {text}");
        }
    });
    // Without: the object is kept, and the report says that more references were seen than there
    // are.
    plant(Stress::none().verify(true), &|m, _| assert_eq!(m.collect().overvisited, 1));
}

#[test]
fn a_damaged_header_is_found() {
    let heap = heap(Stress::none().verify(true));
    let mut m = heap.attach();
    let object = node(&m);
    let faults: [(usize, u32, &str); 5] = [
        (0, 0xdede_dede, "its type is number 0xdedede"),
        (4, 0x7fff_ffff, "no thread ever had that id"),
        (8, 0xdede_dede, "its counts are out of range"),
        (8, 0, "its counts are out of range"),
        (8, LOCAL_ZERO, "it is alive with a count of 0"),
    ];
    for (at, value, expected) in faults {
        // SAFETY: four bytes of the header.
        let word = unsafe { &*header(&object).add(at).cast::<AtomicU32>() };
        let before = word.swap(value, SeqCst);
        let text = panic_of(|| m.collect());
        assert!(
            text.contains(expected) && text.contains(&format!("{:#x}", header(&object) as usize)),
            "{text}"
        );
        word.store(before, SeqCst);
        m.collect();
    }
}

#[test]
fn a_field_that_leads_to_no_object_is_found() {
    let heap = heap(Stress::none().verify(true));
    let mut m = heap.attach();
    let (object, target) = (node(&m), node(&m));
    link(&object, &target, &m);
    // Like a field that was copied bytewise, and whose original was dropped.
    let field: *mut usize = object.next.lock(&m).as_mut_ptr().cast();
    // SAFETY: a handle is one word. No code reads it until it is restored.
    let before = unsafe { field.read() };
    for wrong in [before + 8, before + (1 << 20)] {
        // SAFETY: a handle is one word. No code reads it until it is restored.
        unsafe { field.write(wrong) };
        let text = panic_of(|| m.collect());
        assert!(text.contains("Node") && text.contains("where no object is"), "{text}");
    }
    // SAFETY: a handle is one word. No code reads it until it is restored.
    unsafe { field.write(before) };
    m.collect();
}

/// Shows one field twice.
struct Liar(Gc<Node>);

impl Trace for Liar {
    fn traverse(this: &Self, t: &mut Tracer) {
        Trace::traverse(&this.0, t);
        Trace::traverse(&this.0, t);
    }
}

#[test]
fn a_type_that_lies_is_an_error_only_where_counts_are_verified() {
    let run = |stress| {
        let heap = heap(stress);
        let mut m = heap.attach();
        let liar = m.alloc(Liar(node(&m)));
        let collected = catch_unwind(AssertUnwindSafe(|| m.collect().overvisited));
        drop(liar);
        collected
    };
    assert_eq!(run(Stress::from(true)).expect("no panic"), 1);
    run(Stress::none().verify_counts(true)).expect_err("a panic");
}

// ---------------------------------------------------------------------------------------- poison

#[test]
fn freed_memory_is_loud_header_included() {
    let heap = heap(Stress::none().poison(true));
    let m = heap.attach();
    let object = node(&m);
    let memory = header(&object);
    assert_eq!(object.number, 7);
    drop(object);
    // SAFETY: the page stays: the arena keeps one.
    let bytes = unsafe { std::slice::from_raw_parts(memory, size_of::<Node>() + 16) };
    assert!(bytes.iter().all(|&byte| byte == 0xde), "{bytes:x?}");
    let stats = heap.stress_stats();
    assert_eq!(
        (stats.poisoned, stats.checked),
        (1, 1),
        "poisoned once, and looked at when it was handed out"
    );
}

#[test]
fn a_write_after_the_free_is_found_when_the_memory_is_handed_out() {
    for at in [0, 15, 16, 30] {
        let heap = heap(Stress::none().poison(true));
        let m = heap.attach();
        let object = node(&m);
        let memory = header(&object);
        drop(object);
        // SAFETY: that is the fault: mapped memory, which no other code uses.
        unsafe { memory.add(at).write(1) };
        let text = panic_of(|| (0..2000).map(|_| node(&m)).collect::<Vec<_>>());
        for part in [
            "after it was freed",
            "Node",
            &format!("{:#x}", memory as usize),
            &format!("bytes {at} to {at}"),
        ] {
            assert!(text.contains(part), "no `{part}` in: {text}");
        }
    }
}

#[test]
fn a_write_after_the_free_is_found_by_the_next_collection() {
    for quarantine in [0, 5] {
        let heap = heap(Stress::none().poison(true).quarantine(quarantine).verify(true));
        let mut m = heap.attach();
        let object = node(&m);
        let memory = header(&object);
        drop(object);
        m.collect();
        // SAFETY: mapped memory, which no other code uses.
        unsafe { memory.add(24).write(1) };
        let text = panic_of(|| m.collect());
        assert!(
            text.contains("before a collection") && text.contains("after it was freed"),
            "{text}"
        );
        // SAFETY: mapped memory, which no other code uses.
        unsafe { memory.add(24).write(0xde) };
        m.collect();
    }
}

#[test]
fn objects_that_other_threads_free_are_poisoned_too() {
    let heap = heap(Stress::none().poison(true).verify(true));
    let mut m = heap.attach();
    let objects: Vec<_> = (0..500).map(|_| node(&m)).collect();
    let memory: Vec<_> = objects.iter().map(|gc| header(gc) as usize).collect();
    let (objects, shared) = (Mutex::new(objects), &heap);
    m.detach(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _m = shared.attach();
                drop(std::mem::take(&mut *objects.lock().unwrap()));
            });
        });
    });
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
    for at in memory {
        // SAFETY: the pages stay: the arena has released none yet.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 40) };
        // The first four may link the cells that strangers have freed.
        assert!(bytes[4..].iter().all(|&byte| byte == 0xde), "{bytes:x?}");
    }
    let again: Vec<_> = (0..1000).map(|_| node(&m)).collect();
    assert_eq!(heap.stress_stats().checked, 1500);
    drop(again);
}

#[test]
fn a_write_to_quarantined_memory_is_found_at_the_end_of_the_heap() {
    let heap = heap(Stress::none().poison(true).quarantine(10));
    let m = heap.attach();
    let object = node(&m);
    let memory = header(&object);
    drop((object, m));
    // SAFETY: mapped while the heap is, and no other code uses it.
    unsafe { memory.add(20).write(1) };
    let text = panic_of(|| drop(heap));
    assert!(text.contains("at the end of the heap") && text.contains("Node"), "{text}");
}

#[test]
fn a_write_to_a_freed_large_object_is_found_when_its_quarantine_ends() {
    let heap = heap(Stress::none().poison(true).quarantine(1));
    let m = heap.attach();
    let object = m.alloc([1u64; 20_000]);
    let memory = Gc::as_ptr(&object).cast_mut().cast::<u64>();
    drop(object);
    // SAFETY: kept in quarantine, and no other code uses it.
    unsafe {
        assert_eq!(memory.add(19_999).read(), 0xdede_dede_dede_dede);
        memory.add(9_999).write(1);
    }
    let text = panic_of(|| drop(node(&m)));
    assert!(text.contains("after it was freed"), "{text}");
}

// ------------------------------------------------------------------------------------ quarantine

#[test]
fn freed_memory_is_not_used_again_until_others_have_been_freed() {
    const KEPT: usize = 100;
    let heap = heap(Stress::none().quarantine(KEPT));
    let m = heap.attach();
    // When each address was freed last, by the number of frees.
    let mut freed = HashMap::new();
    let mut again = 0;
    for frees in 0..20 * KEPT {
        let object = node(&m);
        if let Some(before) = freed.insert(header(&object), frees) {
            assert!(
                frees - before > KEPT,
                "freed as number {before}, used again after number {frees}"
            );
            again += 1;
        }
        drop(object);
        assert_eq!(heap.stress_stats().quarantined, KEPT.min(frees + 1));
    }
    assert!(again > 0, "memory is used again in the end");
    assert_eq!(heap.stats().live_objects, 0);
}

/// The control: the result of the test above without the mode.
#[test]
fn without_quarantine_memory_is_used_again_at_once() {
    let heap = heap(Stress::none());
    let m = heap.attach();
    let places: HashSet<_> = (0..100).map(|_| header(&node(&m)) as usize).collect();
    assert_eq!(places.len(), 1);
}

#[test]
fn a_full_heap_takes_its_quarantine_back() {
    let limit = 1 << 20;
    let stress = Stress::none().quarantine(1_000_000).poison(true);
    let heap = builder(stress).limit(limit).build().unwrap();
    let mut m = heap.attach();
    // Small objects, many times the room for them, and freed by two threads.
    for _ in 0..50_000 {
        drop(node(&m));
    }
    m.detach(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let m = heap.attach();
                (0..50_000).for_each(|_| drop(node(&m)));
            });
        });
    });
    // Then nearly all of it at once, for one large object, ten times.
    for _ in 0..10 {
        let large = m.try_alloc_slice((), std::iter::repeat_n(0u8, limit - (1 << 16)));
        assert!(large.is_ok(), "{:?}", heap.stats());
    }
    m.verify().unwrap();
    assert!(heap.stats().in_use_bytes <= limit);
}

#[test]
fn objects_that_outlive_their_heap_die_under_watch() {
    let heap = heap(Stress::none().quarantine(3).poison(true));
    let m = heap.attach();
    let objects: Vec<_> = (0..20).map(|_| node(&m)).collect();
    drop((m, heap));
    drop(objects);
}

// ---------------------------------------------------------------------------------------- yields

/// Threads that come by every protocol between threads.
fn mingle(heap: &Heap) {
    let shared: Mutex<Vec<Gc<Node>>> = Mutex::default();
    let weak: Mutex<Vec<GcWeak<Node>>> = Mutex::default();
    let upgraded = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut m = heap.attach();
                for round in 0..60 {
                    let (a, b) = (node(&m), node(&m));
                    link(&a, &b, &m);
                    link(&b, &a, &m);
                    weak.lock().unwrap().push(Gc::downgrade(&a, &m));
                    shared.lock().unwrap().push(b);
                    let theirs: Vec<_> = shared.lock().unwrap().drain(..).collect();
                    let seen = weak
                        .lock()
                        .unwrap()
                        .iter()
                        .filter(|weak| weak.upgrade(&m).is_some())
                        .count();
                    upgraded.fetch_add(seen, SeqCst);
                    // By a stranger, attached; and by one that is not.
                    m.detach(|| drop(theirs));
                    // An object with a weak reference dies by its count.
                    let lone = node(&m);
                    let gone = Gc::downgrade(&lone, &m);
                    drop(lone);
                    assert!(gone.upgrade(&m).is_none());
                    m.safepoint();
                    if round % 8 == 0 {
                        m.collect();
                    }
                }
                drop(shared.lock().unwrap().drain(..).collect::<Vec<_>>());
            });
        }
    });
    let mut m = heap.attach();
    drop(shared);
    (0..3).for_each(|_| drop(m.collect()));
    assert!(upgraded.load(SeqCst) > 0);
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn threads_yield_in_the_steps_of_the_protocols() {
    let heap = heap(Stress::none().yield_at_random(1));
    // Each thread drops objects of the other: counts are merged, cells are freed remotely.
    let object = {
        let m = heap.attach();
        node(&m)
    };
    mingle_with(&heap, object);
    let stats = heap.stress_stats();
    let steps: HashMap<_, _> = stats.steps.iter().copied().collect();
    for step in
        ["attach", "detach", "safepoint", "stop", "resume", "hold", "weak", "take over", "defer"]
    {
        assert!(steps[step] > 0, "no thread reached {step}: {stats:?}");
    }
    let all: u64 = steps.values().sum();
    assert!(stats.yields > 0 && stats.yields < all, "{stats:?}");
}

fn mingle_with(heap: &Heap, object: Gc<Node>) {
    drop(object);
    mingle(heap);
}

#[test]
fn no_thread_yields_without_stress() {
    let heap = heap(Stress::all(1));
    mingle(&heap);
    assert!(heap.stress_stats().yields > 0);
    let heap = builder(Stress::none().verify(true)).build().unwrap();
    mingle(&heap);
    let stats = heap.stress_stats();
    assert_eq!((stats.yields, stats.steps.iter().map(|(_, n)| n).sum::<u64>()), (0, 0));
}

// ------------------------------------------------------------------------------------- constants

#[test]
fn small_heaps_are_collected_by_several_threads() {
    for (stress, workers) in [(Stress::none(), 1), (Stress::none().small_constants(true), 3)] {
        let heap = builder(stress).workers(3).build().unwrap();
        let mut m = heap.attach();
        let keep = node(&m);
        assert_eq!(m.collect().workers, workers);
        drop(keep);
    }
    // Said in so many words, it stays.
    let heap =
        builder(Stress::none().small_constants(true)).workers(3).serial_below(100).build().unwrap();
    assert_eq!(heap.attach().collect().workers, 1);
}

// ----------------------------------------------------------------------------------- environment

/// The variable that marks a test in a process of its own.
const CHILD: &str = "STANDSTILL_TEST_CHILD";

/// Runs one test of this file in a process of its own, with the variables set, and returns its
/// standard error; `None`: this is that process.
fn in_a_child(program: &std::path::Path, test: &str, variables: &[(&str, &str)]) -> Option<String> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let child = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env_remove("STANDSTILL_STRESS")
        .env_remove("STANDSTILL_CHECKED")
        .env(CHILD, test)
        .envs(variables.iter().copied())
        .output()
        .expect("a child process");
    let error = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{error}");
    assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"));
    Some(error)
}

fn with_variables(test: &str, variables: &[(&str, &str)]) -> Option<String> {
    in_a_child(&std::env::current_exe().expect("a test binary"), test, variables)
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_variable_adds_to_the_modes_of_the_builder() {
    const NAME: &str = "the_variable_adds_to_the_modes_of_the_builder";
    if with_variables(NAME, &[("STANDSTILL_STRESS", "collect:2,verify")]).is_some() {
        return;
    }
    let heap = heap(Stress::none().poison(true));
    let mut m = heap.attach();
    drop(node(&m));
    (0..4).for_each(|_| m.safepoint());
    let stats = heap.stress_stats();
    assert_eq!((stats.collections, stats.verifications, stats.poisoned), (2, 6, 1));
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_wrong_word_in_a_variable_is_reported_once_and_no_heap_fails() {
    const NAME: &str = "a_wrong_word_in_a_variable_is_reported_once_and_no_heap_fails";
    let variables = [("STANDSTILL_STRESS", "verify,poisn"), ("STANDSTILL_CHECKED", "ture")];
    if let Some(told) = with_variables(NAME, &variables) {
        for part in ["poisn", "STANDSTILL_STRESS", "quarantine[:N]", "STANDSTILL_CHECKED", "ture"] {
            assert!(told.contains(part), "no `{part}` in: {told}");
        }
        assert_eq!(told.matches("standstill: ").count(), 2, "{told}");
        return;
    }
    for _ in 0..2 {
        let heap = Heap::builder().build().unwrap();
        let mut m = heap.attach();
        assert_eq!(standstill::dynamic::is_checked(&m), cfg!(debug_assertions));
        drop(node(&m));
        m.collect();
        assert_eq!(heap.stress_stats().verifications, 0);
    }
}

/// Checked mode as the first heap of the process has it.
fn says_checked() -> bool {
    let heap = Heap::builder().build().unwrap();
    standstill::dynamic::is_checked(&heap.attach())
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn checked_mode_is_off_for_each_word_that_means_no() {
    const NAME: &str = "checked_mode_is_off_for_each_word_that_means_no";
    let words = [
        ("0", false),
        ("false", false),
        ("no", false),
        ("off", false),
        ("1", true),
        ("true", true),
    ];
    for (word, wanted) in words {
        let variables =
            [("STANDSTILL_CHECKED", word), ("WANTED", if wanted { "on" } else { "off" })];
        let Some(told) = with_variables(NAME, &variables) else {
            return assert_eq!(says_checked(), std::env::var("WANTED").unwrap() == "on");
        };
        assert!(!told.contains("standstill: "), "{told}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_environment_is_read_once() {
    const NAME: &str = "the_environment_is_read_once";
    if with_variables(NAME, &[("STANDSTILL_CHECKED", "1")]).is_some() {
        return;
    }
    assert!(says_checked());
    // SAFETY: no other thread of this process reads the environment.
    unsafe {
        std::env::set_var("STANDSTILL_CHECKED", "0");
        std::env::set_var("STANDSTILL_STRESS", "poisn");
    }
    assert!(says_checked());
}

/// The caller of a program with more rights than its own chooses the program's environment. Needs
/// root, to make such a program.
#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_program_with_more_rights_than_its_caller_does_not_read_the_variables() {
    use std::os::unix::fs::{PermissionsExt, chown};
    const NAME: &str = "a_program_with_more_rights_than_its_caller_does_not_read_the_variables";
    const VARIABLES: [(&str, &str); 2] =
        [("STANDSTILL_STRESS", "verify"), ("STANDSTILL_CHECKED", "0")];
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(says_checked(), cfg!(debug_assertions));
        let heap = Heap::new();
        heap.attach().collect();
        assert_eq!(heap.stress_stats().verifications, 0);
        return;
    }
    let me = std::env::current_exe().expect("a test binary");
    let program = me.with_extension("setuid");
    std::fs::copy(&me, &program).unwrap();
    let made = chown(&program, Some(65534), None)
        .and_then(|()| std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)));
    match made {
        Ok(()) => drop(in_a_child(&program, NAME, &VARIABLES)),
        // Not root: only the function's result in this process can be shown.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    std::fs::remove_file(&program).unwrap();
}

// ------------------------------------------------------------------------------------ everything

#[test]
fn everything_at_once() {
    for seed in 0..4 {
        let heap = heap(Stress::all(seed));
        mingle(&heap);
        let stats = heap.stress_stats();
        assert!(stats.collections > 0 && stats.verifications > 0 && stats.yields > 0, "{stats:?}");
        assert!(
            stats.poisoned >= 360 && stats.checked >= 360 && stats.quarantined > 0,
            "{stats:?}"
        );
    }
}
