//! Tests of `managed/parts.rs`.

#![forbid(unsafe_code)]

use super::*;
use crate::AnyGc;
use crate::managed::release::DESTRUCTION;
use crate::managed::tests::plain_heap;

#[test]
fn mistakes_of_handlers_are_noted_once_each_and_not_without_end() {
    let heap = plain_heap();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    heap.on_misuse(move |fault| to.lock().expect("no panic").push((fault.code, fault.function)));
    let core = heap.core();
    let tell = || {
        core.model.report_faults(&core.hooks);
        std::mem::take(&mut *told.lock().expect("no panic"))
    };
    for _ in 0..2 {
        core.model.record_fault(Fault::new(Code::OverVisited, "one"));
        core.model.record_fault(Fault::new(Code::OverVisited, "two"));
    }
    assert_eq!(tell(), [(Code::OverVisited, "one"), (Code::OverVisited, "two")]);
    assert_eq!(tell(), [], "they are told once");
    for told in [1, 0] {
        core.model.record_fault(Fault::new(Code::NullVisit, "one"));
        assert_eq!(tell().len(), told);
    }
    core.model.record_fault(Fault::new(Code::NullVisit, "two"));
    assert_eq!(tell(), [], "null: once for each type");
    let names: Vec<&'static str> = (0..300).map(|n| &*format!("{n}").leak()).collect();
    names.iter().for_each(|name| core.model.record_fault(Fault::new(Code::OverVisited, name)));
    assert_eq!(tell().len(), 256);
}

#[test]
fn a_thread_knows_what_is_on_its_stack() {
    let heap = plain_heap();
    let m = heap.attach();
    let private = m.raw().private();
    assert!(private.may_unwind());
    assert!(!private.enter(DESTRUCTION));
    assert!(private.enter(DESTRUCTION), "already");
    assert!(private.may_unwind(), "a destructor's panic goes on");
    private.in_handler(|| {
        assert!(!private.may_unwind(), "not through a C function");
        private.in_handler(|| assert!(!private.may_unwind()));
        assert!(!private.may_unwind(), "the outer one is not through");
    });
    assert!(private.may_unwind());
    private.exit(DESTRUCTION);
    assert_eq!(private.busy.get(), 0);
}

#[test]
fn types_share_places_of_the_cache_without_harm() {
    let heap = plain_heap();
    let m = heap.attach();
    let one = m.alloc(1u64);
    let one = one.into_reference();
    let number = one.header().type_index();
    let info = m.raw().model().types.get(number);
    assert_eq!(type_index(m.raw(), info), Ok(number));
    // Another type in its place: the registry is asked again.
    m.raw().private().types.iter().for_each(|slot| slot.set((std::ptr::null(), 77)));
    assert_eq!(type_index(m.raw(), info), Ok(number));
    assert_eq!(type_index(m.raw(), info), Ok(number));
    drop(AnyGc::from_reference(one));
}
