//! `Heap`, its builder, and the guards that a heap gives.

use std::time::Duration;

use standstill::{DetachedFork, Heap, Mutator, Pacing};

use super::{Rows, done, fate, ok, outcome};
use crate::stage::Call::Free;
use crate::stage::impossible;
use crate::things::Things;

/// A small heap, built there and then.
fn built(builder: standstill::HeapBuilder) -> String {
    outcome(builder.reserve(1 << 20).build().map(|_| ()))
}

/// Calls `f` in the parent of a fork that stops the heap of the things, and that does not happen.
fn forked(t: &Things, f: impl FnOnce(DetachedFork<'_>)) -> String {
    outcome(Heap::prepare_fork(std::slice::from_ref(t.heap())).map(f))
}

pub(super) const ROWS: Rows = &[
    ("HeapBuilder::reserve", Free(|_| built(Heap::builder().reserve(1 << 20)))),
    ("HeapBuilder::limit", Free(|_| built(Heap::builder().limit(1 << 20)))),
    ("HeapBuilder::workers", Free(|_| built(Heap::builder().workers(2)))),
    ("HeapBuilder::serial_below", Free(|_| built(Heap::builder().serial_below(0)))),
    ("HeapBuilder::pacing", Free(|_| built(Heap::builder().pacing(Pacing::manual())))),
    ("HeapBuilder::stress", Free(|_| built(Heap::builder().stress(true)))),
    (
        "HeapBuilder::slow_collection",
        Free(|_| built(Heap::builder().slow_collection(Duration::from_secs(1)))),
    ),
    ("HeapBuilder::late_poll", Free(|_| built(Heap::builder().late_poll(Duration::from_secs(1))))),
    (
        "HeapBuilder::stop_limit",
        Free(|_| built(Heap::builder().stop_limit(Duration::from_secs(1)))),
    ),
    ("HeapBuilder::slow_stop", Free(|_| built(Heap::builder().slow_stop(Duration::from_secs(1))))),
    ("HeapBuilder::checked", Free(|_| built(Heap::builder().checked(true)))),
    (
        "HeapBuilder::slow_handler",
        Free(|_| built(Heap::builder().slow_handler(Duration::from_secs(1)))),
    ),
    ("HeapBuilder::name", Free(|_| built(Heap::builder().name("there and then")))),
    ("HeapBuilder::build", Free(|_| built(Heap::builder()))),
    ("HeapBuilder: Default", Free(|_| built(standstill::HeapBuilder::default()))),
    ("Heap::new", Free(|_| done(Heap::new()))),
    ("Heap::builder", Free(|_| built(Heap::builder()))),
    ("Heap::attach", Free(|t| done(t.heap().attach()))),
    ("Heap::attach, another heap", Free(|t| done(t.other.attach()))),
    ("Heap::try_attach", Free(|t| outcome(t.heap().try_attach().map(|_| ())))),
    ("Heap::try_attach, another heap", Free(|t| outcome(t.other.try_attach().map(|_| ())))),
    ("Heap::attach_scoped", Free(|t| ok(t.heap().attach_scoped(|_| t.leaf.number)))),
    (
        "Heap::attach_scoped, another heap",
        Free(|t| ok(t.other.attach_scoped(|m| m.heap().ptr_eq(&t.other)))),
    ),
    ("Heap::prepare_fork", Free(|t| forked(t, |fork| drop(fork)))),
    (
        "Heap::try_prepare_fork",
        Free(|t| {
            let heaps = std::slice::from_ref(t.heap());
            outcome(Heap::try_prepare_fork(heaps, Duration::from_secs(60)).map(drop))
        }),
    ),
    ("DetachedFork::parent", Free(|t| forked(t, |fork| fork.parent()))),
    ("DetachedFork::child", Free(|t| forked(t, |fork| fork.child()))),
    ("DetachedFork: Debug", Free(|t| forked(t, |fork| drop(format!("{fork:?}"))))),
    ("Heap::stats", Free(|t| ok(t.heap().stats().live_objects > 0))),
    ("Heap::threads", Free(|t| done(t.heap().threads()))),
    ("Heap::recent_collections", Free(|t| done(t.heap().recent_collections()))),
    ("Heap::stress_stats", Free(|t| done(t.heap().stress_stats()))),
    ("Heap::pacing", Free(|t| ok(t.heap().pacing().automatic))),
    ("Heap::set_pacing", Free(|t| done(t.heap().set_pacing(Pacing::manual())))),
    ("Heap::defer_collections", Free(|t| done(t.heap().defer_collections()))),
    ("Heap::known_root", Free(|t| done(t.heap().known_root(t.leaf.clone())))),
    ("Heap::known_root, of another heap", Free(|t| done(t.other.known_root(t.leaf.clone())))),
    ("Heap::on_collection", Free(|t| done(t.heap().on_collection(|_| ())))),
    ("Heap::on_unraisable", Free(|t| done(t.heap().on_unraisable(|_| ())))),
    ("Heap::on_slow_stop", Free(|t| done(t.heap().on_slow_stop(|_| ())))),
    ("Heap::on_slow_lock", Free(|t| done(t.heap().on_slow_lock(|_| ())))),
    ("Heap::on_misuse", Free(|t| done(t.heap().on_misuse(|_| ())))),
    (
        "Heap::set_call_guards",
        Free(|t| {
            done(
                t.heap()
                    .set_call_guards(standstill::CallGuards { enter: || (), leave: || None })
                    .unwrap_or(()),
            )
        }),
    ),
    ("Heap::ptr_eq", Free(|t| ok(t.heap().ptr_eq(&t.other)))),
    ("Heap::services", Free(|t| done(t.heap().services()))),
    ("Heap: Clone", Free(|t| ok(t.heap().ptr_eq(&t.heap().clone())))),
    (
        "Heap: Drop, a handle of several",
        Free(|t| {
            done(
                t.spares
                    .lock()
                    .unwrap()
                    .heap
                    .take()
                    .unwrap_or_else(|| impossible("a handle keeps the heap")),
            )
        }),
    ),
    (
        "Heap: Drop, the last handle",
        Free(|t| {
            let heap = Heap::builder().reserve(1 << 20).build().expect("a heap");
            // Its one object is made on another thread, since this one may be attached.
            let gc =
                std::thread::scope(|scope| scope.spawn(|| t.leaf_of(&heap.attach(), 40)).join())
                    .expect("a leaf");
            drop(heap);
            fate(t, || drop(gc))
        }),
    ),
    ("Heap: Debug", Free(|t| ok(t.heap()))),
    (
        "DeferGuard: Drop",
        Free(|t| {
            done(
                t.spares
                    .lock()
                    .unwrap()
                    .defer
                    .take()
                    .unwrap_or_else(|| impossible("a handle keeps the heap")),
            )
        }),
    ),
    ("KnownRoot: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().root.take())))),
    (
        "KnownRoot: Debug",
        Free(|t| ok(format!("{:?}", t.spares.lock().unwrap().root).starts_with("Some(KnownRoot("))),
    ),
    (
        "Mutator::with_current",
        Free(|t| match Mutator::with_current(|m| m.heap().ptr_eq(&t.other)) {
            Some(true) => "ok: the mutator of the other heap".into(),
            Some(false) => "ok: the mutator".into(),
            None => "None".into(),
        }),
    ),
];
