//! Tests of the handle, and of the stop for one call.

#![forbid(unsafe_code)]

use super::*;
use crate::gc_module::objects::Visit;
use crate::report::error::Code;
use crate::{AnyGc, Heap, Pacing};

#[test]
fn the_services_refuse_the_mutator_of_another_heap() {
    let builder = || Heap::builder().reserve(1 << 30).pacing(Pacing::manual());
    let services = builder().build().expect("a heap").services();
    let other = builder().build().expect("a heap");
    let mut m = other.attach();
    let object: AnyGc = m.alloc(7).into();
    type Call<'a> = (&'a str, &'a dyn Fn(&mut Mutator));
    let calls: [Call<'_>; 15] = [
        ("collect_if_enabled", &|m| drop(services.collect_if_enabled(m))),
        ("collect", &|m| drop(services.collect(m, 2))),
        ("collect_generation", &|m| drop(services.collect_generation(m, 2))),
        ("final_collection", &|m| drop(services.final_collection(m))),
        ("counts", &|m| drop(services.counts(m))),
        ("garbage_len", &|m| _ = services.garbage_len(m)),
        ("garbage_get", &|m| drop(services.garbage_get(m, 0))),
        ("garbage", &|m| drop(services.garbage(m))),
        ("garbage_remove", &|m| drop(services.garbage_remove(m, 0))),
        ("garbage_take", &|m| drop(services.garbage_take(m))),
        ("freeze", &|m| drop(services.freeze(m))),
        ("unfreeze", &|m| drop(services.unfreeze(m))),
        ("freeze_count", &|m| drop(services.freeze_count(m))),
        ("objects", &|m| drop(services.objects(m, None))),
        ("visit_objects", &|m| drop(services.visit_objects(m, |_, _| Visit::Continue))),
    ];
    for (name, call) in calls {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(&mut m)));
        let payload = result.expect_err(name);
        let text = payload.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(
            text.starts_with("the services of one heap were used with the Mutator of another"),
            "{name}"
        );
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(services.referrers(&mut m, std::slice::from_ref(&object)));
    }));
    assert!(result.is_err(), "referrers");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(services.referents(&mut m, std::slice::from_ref(&object)));
    }));
    assert!(result.is_err(), "referents");
}

#[test]
fn a_call_from_inside_another_call_of_the_mutator_is_an_error() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let services = heap.services();
    let mut m = heap.attach();
    let lent = m.raw().lend();
    let fault = services.objects(&mut m, None).expect_err("the mutator is in use");
    assert_eq!((fault.code, fault.function), (Code::NotAllowedHere, "objects"));
    drop(lent);
    assert!(services.objects(&mut m, None).is_ok());
}
