//! The calls of a collection to an object model: their order, and the effects of each result.

#![forbid(unsafe_code)]

use crate::collect::tests::script::{Script, are_ordinary, collect, heap_with, scripted_heap};

use crate::Pacing;
use crate::collect::collection::collect_due;
use crate::collect::sweep::{promote, promote_now};
use crate::heap::pacing::Due;
use crate::heap::request::{Collect, CollectError};
use crate::safepoint::StopError;

#[test]
fn a_collection_runs_each_step_once_and_in_this_order() {
    for by_the_heap in [false, true] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        Script::ring(&m, &[('a', "f"), ('b', "c"), ('c', "w")]);
        let merged = Script::thing(&m, 'd', "", "s");
        let late = Script::thing(&m, 'e', "", "s");
        let kept = Script::thing(&m, 'k', "fc", "s");
        heap.model().state().later.push(merged);
        heap.model().when("finalize a", move |m| m.model().state().later.push(late));
        let calls = if by_the_heap {
            collect_due(&mut m, Collect::full()).expect("a turn");
            heap.model().calls()
        } else {
            collect(&mut m, Collect::full()).1
        };
        let expected = [
            "start Full",
            "prepare",
            "merge",
            "hold a",
            "hold b",
            "hold c",
            "weak b of abc",
            "weak c of abc",
            "destroy_merged d, dying: false",
            "d dies",
            "resumed",
            "call back b",
            "finalize a",
            "merge",
            "clear_weak a",
            "clear_weak b",
            "clear_weak c",
            "destroy_merged e, dying: false",
            "e dies",
            "resumed",
            "judge [abc] [] []",
            "clearing 3",
            "clear a",
            "cleared",
            "clear b",
            "cleared",
            "clear c",
            "cleared",
            "all cleared",
            "release a",
            "a dies",
            "release b",
            "b dies",
            "release c",
            "c dies",
            "after_clear",
            "stop: 2 stops, 3 unreachable, 1 finalized, 0 resurrected, 3 collected, 0 uncollectable",
        ];
        assert_eq!(calls, expected);
        let stats = heap.stats();
        assert_eq!((stats.collections, stats.collected, stats.live_objects), (1, 3, 1));
        assert!(m.core().collector_lock.try_acquire(), "the turn is given back");
        m.core().collector_lock.release();
        heap.model().drop_ref(kept, &m);
    }
}

#[test]
fn a_panicking_handler_is_reported_and_the_others_run() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', "fc"), ('b', "fc"), ('c', "")]);
    Script::link(&m, ring[1], ring[1]);
    for what in ["call back a", "finalize a", "clear b"] {
        heap.model().when(what, move |_| panic!("{what}, on purpose"));
    }
    let (_, calls) = collect(&mut m, Collect::full());
    let from = calls.iter().position(|what| what == "call back a").expect("it");
    let expected = [
        "call back a",
        "failure: WeakCallback '': call back a, on purpose",
        "call back b",
        "finalize a",
        "failure: Finalize 'thing' at its address: finalize a, on purpose",
        "finalize b",
        "merge",
        "clear_weak a",
        "clear_weak b",
        "clear_weak c",
        "resumed",
        "judge [abc] [] []",
        "clearing 3",
        "clear a",
        "cleared",
        "clear b",
        "failure: Clear 'thing' at its address: clear b, on purpose",
        "clear c",
        "cleared",
        "all cleared",
        "release a",
        "a dies",
        "release b",
        "release c",
        "after_clear",
        // b is not cleared. It keeps itself and c alive. Counts could be pending, so a stop
        // makes sure.
        "merge",
        "hold b",
        "hold c",
        "resumed",
        "release b",
        "release c",
        "stop: 3 stops, 3 unreachable, 2 finalized, 0 resurrected, 1 collected, 2 uncollectable",
    ];
    assert_eq!(calls[from..], expected);
    are_ordinary(&m, &ring[2..], 1);
    are_ordinary(&m, &ring[1..2], 1);
}

#[test]
fn where_the_world_cannot_be_stopped_again_everything_is_kept() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
    let other = heap.clone();
    heap.model().when("finalize a", move |_| {
        let leaks = std::thread::Builder::new().name("leaks".into());
        let leaks = leaks.spawn(move || std::mem::forget(other.attach())).expect("a thread");
        leaks.join().expect("no panic");
    });
    m.core().pace.taken(7, 0);
    let (report, calls) = collect(&mut m, Collect::full());
    let why = report.abandoned.expect("a reason");
    assert!(why.contains("(leaks) has ended attached"), "{why}");
    let from = calls.iter().position(|what| what == "finalize a").expect("it");
    let failure = format!("failure: Collect '': the collection was abandoned: {why}");
    let figures =
        "1 stops, 2 unreachable, 1 finalized, 2 resurrected, 0 collected, 0 uncollectable";
    let end = format!("stop: {figures}, abandoned: {why}");
    let expected = [
        "finalize a",
        &failure,
        "release a",
        "release b",
        "clearing 0",
        "all cleared",
        "after_clear",
        &end,
    ];
    assert_eq!(calls[from..], expected);
    are_ordinary(&m, &ring, 1);

    // The next collection fails at its first stop. Callbacks run for it. Statistics do not
    // count it.
    m.core().pace.taken(7, 0);
    assert_eq!(m.core().pace.new_objects(), 7);
    let before = heap.stats();
    let Err(CollectError::Stop(error)) =
        crate::collect::collection::collect(&mut m, Collect::full())
    else {
        panic!("a thread is gone")
    };
    assert!(matches!(error, StopError::ThreadGone { .. }), "{error}");
    let figures =
        "0 stops, 0 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
    let end = format!("stop: {figures}, abandoned: {error}");
    assert_eq!(heap.model().calls(), ["start Full", "prepare", &end]);
    assert_eq!(heap.stats().collections, before.collections);
    assert_eq!(m.core().pace.new_objects(), 0, "else every safepoint would try again");
    m.core().pace.taken(7, 0);
    assert_eq!(collect_due(&mut m, Collect::young()), Err(CollectError::Stop(error.clone())));
    assert_eq!(m.core().pace.new_objects(), 0);
    assert_eq!(heap.model().calls().len(), 3);
    m.core().pace.taken(7, 0);
    assert_eq!(promote_now(&mut m), Err(error));
    assert_eq!(m.core().pace.new_objects(), 0);
    assert_eq!(heap.model().calls(), ["prepare"]);
    assert!(m.core().collector_lock.try_acquire(), "the turn is given back");
    m.core().collector_lock.release();
}

/// It would wait detached, which a traversal forbids.
#[test]
fn a_thread_in_a_traversal_does_not_wait_for_another_threads_collection() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    assert!(m.core().collector_lock.try_acquire(), "as the other thread");
    let guard = crate::safepoint::traversing();
    let found = m.try_collect(Collect::full()).map(|_| ());
    assert_eq!(found, Err(CollectError::Stop(StopError::NoSafepoint)));
    drop(guard);
    m.core().collector_lock.release();
}

#[test]
fn a_stop_that_is_refused_for_a_while_leaves_the_collection_due() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    m.core().pace.taken(7, 0);
    let lent = m.lend();
    let found = crate::collect::collection::collect(&mut m, Collect::full()).map(|_| ());
    assert_eq!(found, Err(CollectError::Stop(StopError::NoSafepoint)));
    assert_eq!(promote_now(&mut m), Err(StopError::NoSafepoint));
    assert_eq!(m.core().pace.new_objects(), 7);
    drop(lent);
}

#[test]
fn a_promotion_makes_old_what_is_new_where_it_is_due_and_no_thread_collects() {
    let Some(heap) = heap_with(Pacing::default()) else { return };
    let mut m = heap.attach();
    let late = Script::thing(&m, 'd', "", "s");
    let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
    heap.model().state().later.push(late);
    assert_eq!(promote(&mut m), Ok(()), "it is not due");
    assert_eq!(heap.model().calls(), [""; 0]);
    // The pace has recorded collections of a growing heap that find no garbage.
    let pace = &heap.0.core.pace;
    pace.after_full(1_000_000, 0);
    (0..10).for_each(|_| pace.after_young(2_500, 0));
    // More than a slice, and less than a period.
    pace.taken(20_000, 0);
    assert_eq!(pace.due(), Due::Promotion);
    let lock = &heap.0.core.collector_lock;
    assert!(lock.try_acquire());
    assert_eq!(promote(&mut m), Err(CollectError::Busy));
    lock.release();
    assert_eq!(heap.model().calls(), [""; 0]);
    assert_eq!(promote(&mut m), Ok(()));
    assert_eq!(
        heap.model().calls(),
        ["prepare", "merge", "destroy_merged d, dying: false", "d dies", "resumed"]
    );
    are_ordinary(&m, &ring, 1);
    assert_eq!((pace.due(), pace.new_objects()), (Due::Nothing, 0));
    let stats = heap.stats();
    assert_eq!((stats.promotions, stats.collections), (1, 0));
    assert!(lock.try_acquire(), "the turn is given back");
    lock.release();
    let (_, calls) = collect(&mut m, Collect::young());
    assert_eq!(
        calls[4..6],
        ["clearing 0", "all cleared"],
        "a young collection looks at nothing that is old"
    );
}

/// The waiting thread is detached. An attached thread would delay the stop.
#[test]
fn a_collection_waits_for_its_turn_and_stops_of_others_do_not_wait_for_it() {
    let Some(heap) = scripted_heap() else { return };
    let m = heap.attach();
    let lock = &heap.0.core.collector_lock;
    assert!(lock.try_acquire());
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = heap.clone();
        let waits = scope.spawn(move || {
            let mut m = other.attach();
            let busy = crate::collect::collection::collect(&mut m, Collect::full().wait(false))
                .map(|_| ());
            sender.send(busy).expect("a receiver");
            collect(&mut m, Collect::young())
        });
        assert_eq!(receiver.recv(), Ok(Err(CollectError::Busy)));
        drop(m.stop_here().expect("the other thread detaches"));
        assert_eq!(heap.model().calls(), [""; 0], "it waits");
        lock.release();
        let (report, calls) = {
            let mut m = m;
            m.detach(|| waits.join().expect("no panic"))
        };
        assert_eq!((report.unreachable, &calls[0][..]), (0, "start Young"));
    });
}

#[test]
fn memory_that_is_refused_gives_the_collection_up_and_nothing_is_lost() {
    let figures =
        "0 finalized, 0 resurrected, 0 collected, 0 uncollectable, abandoned: memory ran out";
    let failure = "failure: Collect '': the collection was abandoned: memory ran out";
    // First: no memory for the merge's list of dead objects.
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', "w"), ('b', "")]);
    heap.model().state().floods = true;
    let (_, calls) = collect(&mut m, Collect::full());
    let end = format!("stop: 1 stops, 0 unreachable, {figures}");
    assert_eq!(calls, ["start Full", "prepare", "resumed", failure, &end]);
    heap.model().state().floods = false;
    assert_eq!(collect(&mut m, Collect::full()).0.collected, ring.len());
    // Then: no memory for that list after finalizers have run. Everything is kept.
    let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
    heap.model().when("finalize a", |m| m.model().state().floods = true);
    let (report, calls) = collect(&mut m, Collect::full());
    assert_eq!((report.abandoned.as_deref(), report.resurrected), (Some("memory ran out"), 2));
    assert!(!calls.iter().any(|what| what.starts_with("clear_weak")));
    are_ordinary(&m, &ring, 1);
    heap.model().state().floods = false;
    assert_eq!(collect(&mut m, Collect::full()).0.collected, 2);
    // Then: no memory for the list of callbacks. No weak reference is cleared, and no finalizer
    // runs.
    let ring = Script::ring(&m, &[('a', "fw"), ('b', "wm")]);
    let (_, calls) = collect(&mut m, Collect::full());
    let end = format!("stop: 1 stops, 2 unreachable, {figures}");
    let expected = [
        "start Full",
        "prepare",
        "merge",
        "hold a",
        "hold b",
        "resumed",
        failure,
        "release a",
        "release b",
        "clearing 0",
        "all cleared",
        "after_clear",
        &end,
    ];
    assert_eq!(calls, expected);
    are_ordinary(&m, &ring, 1);
    Script::of(&m, ring[1], |thing| thing.has = "");
    assert_eq!(collect(&mut m, Collect::full()).0.collected, 2);
}

/// A thread leaves the span of a collection before it enters the span again. (A thread that
/// clears garbage in batches may end the collection inside the span.)
#[cfg(feature = "tracing")]
#[test]
#[cfg(feature = "tracing")]
fn the_span_of_a_collection_is_entered_once_at_a_time() {
    use std::sync::{Arc, Mutex};

    use tracing::span::Id;
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
    use tracing_subscriber::registry::LookupSpan;

    #[derive(Clone, Default)]
    struct Depth(Arc<Mutex<(Vec<Id>, usize)>>);
    impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Depth {
        fn on_enter(&self, id: &Id, context: Context<'_, S>) {
            if context.span(id).is_some_and(|span| span.name() == "collection") {
                let (entered, times) = &mut *self.0.lock().expect("no panic");
                assert!(!entered.contains(id), "twice at a time");
                entered.push(id.clone());
                *times += 1;
            }
        }
        fn on_exit(&self, id: &Id, _: Context<'_, S>) {
            self.0.lock().expect("no panic").0.retain(|entered| entered != id);
        }
    }

    let depth = Depth::default();
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(depth.clone()), || {
        for garbage in [0, 2] {
            Script::ring(&m, &[('a', ""), ('b', "")][..garbage]);
            let report =
                crate::collect::collection::collect(&mut m, Collect::full()).expect("a stop");
            assert_eq!(report.collected, garbage);
            collect_due(&mut m, Collect::full()).expect("a turn");
        }
    });
    let (entered, times) = &*depth.0.lock().expect("no panic");
    assert!(entered.is_empty() && *times >= 4 * 3, "{times}");
}

#[test]
fn collections_wait_for_the_collector_lock_unless_the_caller_forbids_it() {
    assert_eq!(Collect::full(), Collect::full().wait(true));
    assert_eq!(Collect::young(), Collect::young().wait(true));
    assert_ne!(Collect::full(), Collect::full().wait(false));
}
