//! Tests of `collect/claim.rs`.

use super::*;
use crate::collect::candidates::Candidates;
use crate::collect::reclaim;
use crate::collect::scope::Scope;
use crate::collect::tests::script::{Raw, Script, are_ordinary, collect, scripted_heap};
use crate::heap::model_heap::ModelHeap;
use std::ops::Range;
use std::sync::Arc;

use crate::base::sync::Ordering;
use crate::collect::collection::collect_due;
use crate::collect::sweep::sweep;
use crate::heap::reclaim_queue::{GARBAGE_BATCH, Owner};
use crate::heap::request::Collect;
use crate::report::facts::CollectionKind;
use crate::{Heap, Pacing};

pub(crate) fn heap() -> ModelHeap<Script> {
    let builder =
        Heap::builder().reserve(1 << 28).workers(2).serial_below(0).pacing(Pacing::manual());
    builder.build_with(Script::default()).expect("a heap")
}

/// Objects on several pages, some of them on one page.
pub(crate) fn things(m: &Raw) -> Vec<Object> {
    let sizes = [32, 32, 60_000, 32, 60_000, 60_000];
    let mut things: Vec<Object> =
        sizes.iter().map(|&size| Script::sized(m, size, 'w', "w", "s")).collect();
    things.sort_unstable();
    things
}

/// Sweeps all objects of a heap: no candidate is marked.
fn swept<'w>(world: &'w World<'_, Script>, scope: &Scope) -> Swept<'w> {
    let candidates = Candidates::new(world, scope, 2).expect("memory");
    let swept = sweep(world, scope, &candidates, 2).expect("memory");
    candidates.close(world, scope);
    swept
}

#[test]
fn the_objects_of_one_page_are_claimed_together() {
    let heap = heap();
    let m = heap.attach();
    let things = things(&m);
    let world = m.stop_here().expect("a stop");
    let scope = Scope::new(&world.core().space, CollectionKind::Full).expect("memory");
    let found = swept(&world, &scope);
    assert_eq!(Stopped::objects(&found.objects), things);
    let mut parts: Vec<Range<usize>> =
        found.pages.into_items().into_iter().map(|part| part.range).collect();
    parts.sort_unstable_by_key(|part| part.start);
    assert_eq!(parts, [0..3, 3..4, 4..5, 5..6]);
}

/// The thread that stops the world begins with its own pages. Here other pages lie before them.
#[test]
fn weak_references_are_processed_in_the_order_of_memory() {
    let heap = heap();
    let m = heap.attach();
    let things = things(&m);
    let world = m.stop_here().expect("a stop");
    let space = &world.core().space;
    let scope = Scope::new(space, CollectionKind::Full).expect("memory");
    let pages = scope.pages();
    let arenas: Vec<u32> = pages.iter().map(|&page| space.page(page as usize).arena()).collect();
    let own = |page: u32, arena: u32| {
        // SAFETY: rule *stopped*: the world is stopped.
        unsafe { space.info(page).set_arena(arena) };
    };
    // The first page, of small objects, is this thread's.
    pages[..2].iter().for_each(|&page| own(page, arenas[0] + 7));
    pages[2..].iter().for_each(|&page| own(page, arenas[0]));
    let found = swept(&world, &scope);
    let ClaimSummary { runs_code, weak, outcome } =
        claim_all(&world, &found, &Reclaimers::default(), 2);
    pages.iter().zip(arenas).for_each(|(&page, arena)| own(page, arena));
    assert_eq!((runs_code, outcome), (false, Ok(())));
    assert_eq!(Stopped::objects(&weak), things);
}

#[test]
fn a_worker_without_memory_fails_the_claim() {
    let lost = || ClaimSummary { outcome: Err(NoMemory), ..ClaimSummary::default() };
    let code = || ClaimSummary { runs_code: true, ..ClaimSummary::default() };
    for (mut all, more) in [(lost(), code()), (code(), lost())] {
        all.add(more);
        assert_eq!((all.outcome, all.runs_code), (Err(NoMemory), true));
    }
}

#[test]
fn where_no_code_can_run_weak_references_are_cleared_in_the_one_stop() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    Script::ring(&m, &[('a', ""), ('b', "w")]);
    let (_, calls) = collect(&mut m, Collect::young());
    let expected = [
        "start Young",
        "prepare",
        "merge",
        "hold a",
        "hold b",
        "weak b of ab",
        "clear_weak b",
        "resumed",
        "judge [ab] [] []",
        "clearing 2",
        "clear a",
        "cleared",
        "clear b",
        "cleared",
        "all cleared",
        "release a",
        "a dies",
        "release b",
        "b dies",
        "after_clear",
        "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 2 collected, 0 uncollectable",
    ];
    assert_eq!(calls, expected);
    // Without garbage the collection makes hardly any calls.
    let (_, calls) = collect(&mut m, Collect::full());
    let none =
        "stop: 1 stops, 0 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
    assert_eq!(calls[..4], ["start Full", "prepare", "merge", "resumed"]);
    assert_eq!(calls[4..], ["clearing 0", "all cleared", "after_clear", none]);
}

#[test]
fn a_legacy_finalizer_keeps_its_object_and_all_objects_that_it_reaches() {
    for by_the_heap in [false, true] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        // g refers to l, and l to r and s. All of them are garbage.
        let garbage = Script::ring(&m, &[('g', "w"), ('h', "")]);
        let reached = Script::ring(&m, &[('r', "fc"), ('s', "w")]);
        let legacy = Script::thing(&m, 'l', "lf", "s");
        // l also refers to objects outside, and has more edges than there is garbage.
        let outside = Script::thing(&m, 'o', "", "s");
        Script::link(&m, garbage[0], legacy);
        heap.model().drop_ref(legacy, &m);
        Script::link(&m, legacy, reached[0]);
        for name in ['x', 'y', 'z'] {
            let target = Script::thing(&m, name, "", "s");
            Script::link(&m, legacy, target);
            Script::link(&m, outside, target);
            heap.model().drop_ref(target, &m);
        }
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
            "hold g",
            "hold h",
            "hold r",
            "hold s",
            "hold l",
            "weak g of gh",
            "clear_weak g",
            "resumed",
            "judge [gh] [rsl] [l]",
        ];
        assert_eq!(calls[..expected.len()], expected, "no finalizer runs");
        let mut rest = calls[expected.len()..].to_vec();
        let end = "stop: 1 stops, 5 unreachable, 0 finalized, 0 resurrected, 2 collected, 3 uncollectable";
        assert_eq!(rest.pop().as_deref(), Some(end));
        rest.sort_unstable();
        let expected = [
            "after_clear",
            "all cleared",
            "clear g",
            "clear h",
            "cleared",
            "cleared",
            "clearing 2",
            "g dies",
            "h dies",
            "l dies",
            "release g",
            "release h",
            "release l",
            "release r",
            "release s",
        ];
        assert_eq!(rest, expected, "what it kept was held by what is cleared");
        are_ordinary(&m, &reached, 1);
        heap.model().drop_ref(outside, &m);
    }
}

#[test]
fn a_legacy_finalizer_that_cannot_be_traversed_keeps_everything() {
    let hidden = "a field that leads from a legacy finalizer cannot be read now";
    for (traversals, why) in [("sh", hidden), ("sp", "a traversal, on purpose")] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let mut garbage = Script::ring(&m, &[('a', "fw"), ('b', "c")]);
        let legacy = Script::thing(&m, 'l', "l", traversals);
        Script::link(&m, garbage[0], legacy);
        heap.model().drop_ref(legacy, &m);
        garbage.push(legacy);
        let (report, calls) = collect(&mut m, Collect::full());
        assert_eq!(report.abandoned.as_deref(), Some(why));
        let failure = format!("failure: Traverse 'thing': the collection was abandoned: {why}");
        let figures =
            "1 stops, 3 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
        let end = format!("stop: {figures}, abandoned: {why}");
        let expected = [
            "start Full",
            "prepare",
            "merge",
            "hold a",
            "hold b",
            "hold l",
            "resumed",
            &failure,
            "release a",
            "release b",
            "release l",
            "clearing 0",
            "all cleared",
            "after_clear",
            &end,
        ];
        assert_eq!(calls, expected);
        are_ordinary(&m, &garbage, 1);
    }
}

/// In a collection that the heap starts, each thread reclaims the garbage on its own pages,
/// unless all garbage fits one batch.
#[test]
fn garbage_is_claimed_for_the_thread_that_will_release_it() {
    for (garbage, by_the_heap) in
        [(GARBAGE_BATCH, true), (GARBAGE_BATCH + 1, true), (GARBAGE_BATCH + 1, false)]
    {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let on = Arc::new(crate::base::sync::AtomicBool::new(true));
            let (other, is_on) = (heap.clone(), on.clone());
            let other = scope.spawn(move || {
                let mut m = other.attach();
                Script::ring(&m, &vec![('o', ""); garbage]);
                sender.send(m.thread_id()).expect("a receiver");
                while is_on.load(Ordering::Relaxed) {
                    m.wait_parked();
                    std::thread::yield_now();
                }
            });
            let theirs = m.detach(|| receiver.recv()).expect("a thread");
            if by_the_heap {
                collect_due(&mut m, Collect::full()).expect("a turn");
            } else {
                let report =
                    crate::collect::collection::collect(&mut m, Collect::full()).expect("a stop");
                assert!(
                    report.time_to_stop > std::time::Duration::ZERO,
                    "it waited for the other thread"
                );
            }
            let expected =
                if by_the_heap && garbage > GARBAGE_BATCH { theirs } else { m.thread_id() };
            let holders = std::mem::take(&mut heap.model().state().holders);
            assert_eq!(holders.len(), garbage);
            assert!(holders.iter().all(|&holder| holder == expected), "{garbage} {by_the_heap}");
            while reclaim::reclaim(&mut m, Owner::Any, usize::MAX) {}
            on.store(false, Ordering::Relaxed);
            m.detach(|| other.join()).expect("no panic");
        });
        assert_eq!(heap.stats().live_objects, 0);
    }
}
