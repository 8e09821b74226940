//! `Mutator`, and the types that it turns into: `Detached`, `Fork`.

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use standstill::safepoint;
use standstill::{AnyGc, Collect, Fork, Mutator, Opaque};

use super::{Rows, done, ok, outcome};
use crate::stage::Call::{Exclusive, Free, Owned, Parked, Shared};
use crate::stage::caught;

/// The outcome of giving a mutator up.
fn left() -> String {
    match Mutator::with_current(|_| ()) {
        Some(()) => "deferred".into(),
        None => "ok".into(),
    }
}

/// How long a walk over the objects is, or that it was refused.
fn some(objects: Vec<AnyGc>) -> String {
    if objects.is_empty() { "ok: none".into() } else { "ok: some".into() }
}

pub(super) const ROWS: Rows = &[
    ("Mutator::heap", Shared(|t, m| ok(m.heap().ptr_eq(&t.other)))),
    ("Mutator::mark", Shared(|_, m| done(m.mark("here")))),
    ("Mutator::alloc", Shared(|t, m| ok(t.leaf_of(m, 30).number))),
    ("Mutator::try_alloc", Shared(|t, m| outcome(m.try_alloc(t.value(30)).map(|gc| gc.number)))),
    ("Mutator::alloc_opaque", Shared(|_, m| ok(m.alloc_opaque(30).0))),
    ("Opaque: Deref", Free(|_| ok(*Opaque(30)))),
    ("Mutator::alloc_shared", Shared(|t, m| ok(m.alloc_shared(t.value(30)).number))),
    (
        "Mutator::try_alloc_shared",
        Shared(|t, m| outcome(m.try_alloc_shared(t.value(30)).map(|shared| shared.number))),
    ),
    ("Mutator::has_room", Shared(|_, m| outcome(m.has_room().map(|()| 0)))),
    (
        "Mutator::or_collect",
        Exclusive(|t, m| outcome(m.or_collect(|m| m.try_alloc(t.value(30))).map(|gc| gc.number))),
    ),
    (
        "Mutator::alloc_or_collect",
        Exclusive(|t, m| outcome(m.alloc_or_collect(t.value(30)).map(|gc| gc.number))),
    ),
    ("Mutator::alloc_slice", Shared(|t, m| ok(m.alloc_slice(1, [t.leaf_of(m, 30)]).header))),
    (
        "Mutator::try_alloc_slice",
        Shared(|t, m| match m.try_alloc_slice(1, [t.leaf_of(m, 30)]) {
            Ok(slice) => ok(slice.header),
            Err(error) => format!("error: {}", error.reason()),
        }),
    ),
    ("Mutator::alloc_weak", Shared(|t, m| ok(m.alloc_weak(&t.leaf, 0u32, |_, _| ()).data()))),
    (
        "Mutator::try_alloc_weak",
        Shared(|t, m| outcome(m.try_alloc_weak(&t.leaf, 0u32, |_, _| ()).map(|weak| *weak.data()))),
    ),
    ("Mutator::safepoint", Exclusive(|_, m| done(m.safepoint()))),
    ("Mutator::detach", Exclusive(|_, m| ok(m.detach(|| Mutator::with_current(|_| ()).is_some())))),
    ("Mutator::may_park", Shared(|_, m| ok(m.may_park()))),
    ("Mutator::may_park, by its owner", Exclusive(|_, m| ok(m.may_park()))),
    (
        "Mutator::into_detached",
        Owned(|_, m| match m.into_detached() {
            Ok(detached) => done(detached),
            Err(_) => "error: the mutator comes back".into(),
        }),
    ),
    (
        "Mutator::join",
        Exclusive(|_, m| {
            let thread = std::thread::spawn(|| 1);
            ok(m.join(thread).expect("no panic"))
        }),
    ),
    (
        "Mutator::recv",
        Exclusive(|_, m| {
            let (sender, receiver) = mpsc::channel();
            sender.send(1).expect("a receiver");
            outcome(m.recv(&receiver))
        }),
    ),
    (
        "Mutator::recv, with nothing there yet",
        Exclusive(|_, m| {
            let (sender, receiver) = mpsc::channel();
            // A thread that may wait for the message waits. Another thread finds none.
            let waits = m.may_park();
            std::thread::scope(|scope| {
                let over = Arc::new(Barrier::new(2));
                let other = Arc::clone(&over);
                scope.spawn(move || {
                    if !waits {
                        other.wait();
                    }
                    sender.send(1).expect("a receiver");
                });
                let outcome = caught(|| outcome(m.recv(&receiver)));
                if !waits {
                    over.wait();
                }
                outcome
            })
        }),
    ),
    (
        "Mutator::scope",
        Exclusive(|t, m| {
            let other = t.other.clone();
            ok(m.scope(|s, m| {
                let thread = s.spawn(move || other.stats().reserved_bytes > 0);
                m.join(thread).expect("no panic")
            }))
        }),
    ),
    (
        "Mutator::scope, inside a traversal guard",
        Exclusive(|_, m| {
            let _guard = safepoint::traversing();
            m.scope(|_, _| unreachable!("it is refused"))
        }),
    ),
    ("Mutator::lock", Exclusive(|_, m| ok(*m.lock(&Mutex::new(1)).expect("whole")))),
    (
        "Mutator::lock, taken by another thread",
        Exclusive(|_, m| {
            let mutex = Mutex::new(1);
            let (taken, over) = (Barrier::new(2), Barrier::new(2));
            // A thread that may wait for the lock gets it in the end. Another thread finds it
            // locked.
            let waits = m.may_park();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let guard = mutex.lock().unwrap();
                    taken.wait();
                    if waits {
                        std::thread::sleep(Duration::from_millis(20));
                    } else {
                        over.wait();
                    }
                    drop(guard);
                });
                taken.wait();
                let outcome = caught(|| ok(*m.lock(&mutex).expect("whole")));
                if !waits {
                    over.wait();
                }
                outcome
            })
        }),
    ),
    ("Mutator::adjust_external_bytes", Shared(|_, m| done(m.adjust_external_bytes(7)))),
    ("Mutator::collect", Exclusive(|_, m| ok(m.collect().collected))),
    ("Mutator::collect_young", Exclusive(|_, m| ok(m.collect_young().collected))),
    (
        "Mutator::try_collect",
        Exclusive(|_, m| outcome(m.try_collect(Collect::full()).map(|report| report.collected))),
    ),
    (
        "Mutator::try_collect, without waiting",
        Exclusive(|_, m| {
            outcome(m.try_collect(Collect::young().wait(false)).map(|report| report.collected))
        }),
    ),
    ("Mutator::prepare_fork", Exclusive(|_, m| outcome(m.prepare_fork().map(drop)))),
    (
        "Mutator::try_prepare_fork",
        Exclusive(|_, m| outcome(m.try_prepare_fork(Duration::from_secs(60)).map(drop))),
    ),
    ("Mutator::objects", Exclusive(|_, m| some(m.objects()))),
    ("Mutator::referrers", Exclusive(|t, m| some(m.referrers(&t.any)))),
    ("Mutator::referents", Exclusive(|t, m| some(m.referents(&t.any)))),
    ("Mutator::census", Exclusive(|_, m| ok(m.census().total().objects > 0))),
    ("Mutator::survey", Exclusive(|_, m| ok(!m.survey(|_| {}).is_empty()))),
    ("Mutator::graph", Exclusive(|_, m| ok(m.graph().objects() > 0))),
    ("Mutator::graph_with_labels", Exclusive(|_, m| ok(m.graph_with_labels().objects() > 0))),
    ("Mutator::snapshot", Exclusive(|_, m| ok(m.snapshot("/nowhere/at/all").unwrap_err().kind()))),
    ("Mutator::why_alive", Exclusive(|t, m| ok(m.why_alive(&t.any).outside > 0))),
    (
        "Mutator::freeze",
        Exclusive(|_, m| {
            let frozen = m.freeze();
            m.unfreeze();
            ok(frozen > 0)
        }),
    ),
    ("Mutator::unfreeze", Exclusive(|_, m| done(m.unfreeze()))),
    ("Mutator::frozen", Exclusive(|_, m| ok(m.frozen()))),
    ("Mutator::verify", Exclusive(|_, m| outcome(m.verify()))),
    (
        "Mutator: Drop",
        Owned(|_, m| {
            drop(m);
            left()
        }),
    ),
    (
        "Mutator: Drop, and attached again",
        Owned(|_, m| {
            let heap = m.heap().clone();
            drop(m);
            outcome(heap.try_attach().map(drop))
        }),
    ),
    ("Mutator: Debug", Shared(|_, m| ok(format!("{m:?}").starts_with("Mutator {")))),
    (
        "Detached::attach",
        Parked(|_, detached| match detached.attach() {
            Ok(m) => done(m),
            Err(_) => "error: it comes back".into(),
        }),
    ),
    (
        "Detached::try_attach",
        Parked(|_, detached| match detached.try_attach() {
            Ok(m) => done(m),
            Err(_) => "error: it comes back".into(),
        }),
    ),
    ("Detached::heap", Parked(|t, detached| ok(detached.heap().ptr_eq(&t.other)))),
    ("Detached: Drop", Parked(|_, detached| done(detached))),
    (
        "Detached: Debug",
        Parked(|_, detached| ok(format!("{detached:?}").starts_with("Detached {"))),
    ),
    ("Fork::parent", Exclusive(|_, m| outcome(m.prepare_fork().map(Fork::parent)))),
    ("Fork::child", Exclusive(|_, m| outcome(m.prepare_fork().map(Fork::child)))),
    ("Fork: Drop", Exclusive(|_, m| outcome(m.prepare_fork().map(drop)))),
    ("Fork: Debug", Exclusive(|_, m| outcome(m.prepare_fork()))),
    (
        "Mutator::collect, after a panic in its detach",
        Exclusive(|_, m| {
            let ended = caught(|| m.detach(|| panic!("on purpose")));
            format!("{ended}; {}", ok(m.collect().collected))
        }),
    ),
    (
        "Mutator::collect, inside a traversal guard",
        Exclusive(|_, m| {
            let _guard = safepoint::traversing();
            ok(m.collect().collected)
        }),
    ),
    (
        "Mutator::alloc, inside a traversal guard",
        Shared(|t, m| {
            let _guard = safepoint::traversing();
            ok(t.leaf_of(m, 30).number)
        }),
    ),
    (
        "Mutator::detach, inside a traversal guard",
        Exclusive(|_, m| {
            let _guard = safepoint::traversing();
            ok(m.detach(|| ()))
        }),
    ),
    (
        "Mutator::safepoint, inside a traversal guard",
        Exclusive(|_, m| {
            let _guard = safepoint::traversing();
            done(m.safepoint())
        }),
    ),
    (
        "Mutator::prepare_fork, inside a traversal guard",
        Exclusive(|_, m| {
            let _guard = safepoint::traversing();
            outcome(m.prepare_fork().map(drop))
        }),
    ),
    (
        "Mutator: Drop, inside a traversal guard",
        Owned(|t, m| {
            let guard = safepoint::traversing();
            drop(m);
            drop(guard);
            ok(Mutator::with_current(|m| m.heap().ptr_eq(&t.other)))
        }),
    ),
];
