//! The functions of CPython's gc module, for a heap.

use standstill::gc_module::{self, Visit};

use super::{Rows, done, ok, outcome};
use crate::stage::Call::{Exclusive, Free, Shared};

pub(super) const ROWS: Rows = &[
    ("Services::heap", Free(|t| ok(t.services().heap().ptr_eq(t.heap())))),
    ("Services::enable", Free(|t| ok(t.services().enable()))),
    ("Services::disable", Free(|t| ok(t.services().disable()))),
    ("Services::is_enabled", Free(|t| ok(t.services().is_enabled()))),
    ("Services::is_visiting", Free(|t| ok(t.services().is_visiting()))),
    (
        "Services::collect_if_enabled",
        Exclusive(|t, m| match t.services().collect_if_enabled(m) {
            Some(report) => ok(report.found()),
            None => "None".into(),
        }),
    ),
    (
        "Services::collect",
        Exclusive(|t, m| {
            outcome(t.services().collect(m, 2).map(|report| report.map(|report| report.found())))
        }),
    ),
    (
        "Services::collect, no such generation",
        Exclusive(|t, m| {
            outcome(t.services().collect(m, 3).map(|report| report.map(|report| report.found())))
        }),
    ),
    (
        "Services::collect_generation",
        Exclusive(|t, m| outcome(t.services().collect_generation(m, 0))),
    ),
    (
        "Services::final_collection",
        Exclusive(|t, m| match t.services().final_collection(m) {
            Some(report) => ok(report.found()),
            None => "None".into(),
        }),
    ),
    ("Services::set_threshold", Free(|t| outcome(t.services().set_threshold(100, None, None)))),
    (
        "Services::set_threshold, negative",
        Free(|t| outcome(t.services().set_threshold(-1, None, None))),
    ),
    ("Services::threshold", Free(|t| ok(t.services().threshold()))),
    ("Services::set_memory_source", Free(|t| done(t.services().set_memory_source(|| None)))),
    ("Services::remove_memory_source", Free(|t| done(t.services().remove_memory_source()))),
    (
        "Services::counts",
        Exclusive(|t, m| outcome(t.services().counts(m).map(|counts| counts[0] > 0))),
    ),
    ("Services::stats", Free(|t| ok(t.services().stats().map(|stats| stats.uncollectable)))),
    ("Services::add_callback", Free(|t| ok(t.services().add_callback(|_, _| ()) > 0))),
    (
        "Services::remove_callback",
        Free(|t| ok(t.services().remove_callback(t.services().add_callback(|_, _| ())))),
    ),
    (
        "Services::remove_callback, no such one",
        Free(|t| ok(t.services().remove_callback(u64::MAX))),
    ),
    ("Services::set_debug", Free(|t| outcome(t.services().set_debug(0)))),
    ("Services::set_debug, no such flag", Free(|t| outcome(t.services().set_debug(1 << 30)))),
    ("Services::debug", Free(|t| ok(t.services().debug()))),
    ("Services::set_debug_sink", Free(|t| done(t.services().set_debug_sink(|_| ())))),
    ("Services::reset_debug_sink", Free(|t| done(t.services().reset_debug_sink()))),
    ("Services::set_audit_hook", Free(|t| done(t.services().set_audit_hook(|_| ())))),
    ("Services::remove_audit_hook", Free(|t| done(t.services().remove_audit_hook()))),
    ("Services::report_leaks", Free(|t| done(t.services().report_leaks(false)))),
    (
        "Services::expect_legacy_finalizers",
        Free(|t| done(t.services().expect_legacy_finalizers(true))),
    ),
    ("Services::garbage_len", Shared(|t, m| ok(t.services().garbage_len(m)))),
    ("Services::garbage_get", Shared(|t, m| ok(t.services().garbage_get(m, 0).is_some()))),
    ("Services::garbage", Shared(|t, m| ok(t.services().garbage(m).len()))),
    ("Services::garbage_remove", Shared(|t, m| ok(t.services().garbage_remove(m, 0).is_some()))),
    ("Services::garbage_take", Shared(|t, m| ok(t.services().garbage_take(m).len()))),
    (
        "Services::freeze",
        Exclusive(|t, m| {
            let frozen = t.services().freeze(m).map(|frozen| frozen > 0);
            let _ = t.services().unfreeze(m);
            outcome(frozen)
        }),
    ),
    ("Services::unfreeze", Exclusive(|t, m| outcome(t.services().unfreeze(m)))),
    ("Services::freeze_count", Exclusive(|t, m| outcome(t.services().freeze_count(m)))),
    (
        "Services::objects",
        Exclusive(|t, m| outcome(t.services().objects(m, None).map(|all| !all.is_empty()))),
    ),
    (
        "Services::objects, no such generation",
        Exclusive(|t, m| outcome(t.services().objects(m, Some(9)).map(|all| !all.is_empty()))),
    ),
    (
        "Services::referrers",
        Exclusive(|t, m| {
            outcome(t.services().referrers(m, std::slice::from_ref(&t.any)).map(|all| all.len()))
        }),
    ),
    (
        "Services::referents",
        Exclusive(|t, m| {
            outcome(t.services().referents(m, std::slice::from_ref(&t.any)).map(|all| all.len()))
        }),
    ),
    ("Services::is_tracked", Shared(|t, m| ok(t.services().is_tracked(m, &t.any)))),
    ("Services::is_finalized", Shared(|t, m| ok(t.services().is_finalized(m, &t.any)))),
    (
        "Services::visit_objects",
        Exclusive(|t, m| outcome(t.services().visit_objects(m, |_, _| Visit::Stop))),
    ),
    (
        "Services::visit_objects, which visits and collects",
        Exclusive(|t, m| {
            let services = t.services();
            outcome(services.visit_objects(m, |_, m| {
                let inner = services.visit_objects(m, |_, _| Visit::Stop);
                assert_eq!((inner, services.collect_if_enabled(m).is_some()), (Ok(1), false));
                m.collect();
                Visit::Stop
            }))
        }),
    ),
    ("Services: Clone", Free(|t| done(t.services().clone()))),
    ("Services: Debug", Free(|t| ok(t.services()))),
    (
        "gc_module::process_memory",
        Free(|_| ok(gc_module::process_memory().is_some_and(|bytes| bytes > 0))),
    ),
    (
        "CollectionReport::found",
        Exclusive(|_, m| {
            outcome(m.try_collect(standstill::Collect::full()).map(|report| report.found()))
        }),
    ),
];
