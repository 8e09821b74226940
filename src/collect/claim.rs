//! `Phase::Claim`: taking a reference on each unreachable object.

use crate::base::event::{self, Phase};
use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::Mutex;
use crate::collect::rules::{self, Claims};
use crate::collect::scope::{claimed, object_at, state_of};
use crate::collect::search::Search;
use crate::collect::sweep::Swept;
use crate::collect::traversal::{Abandoned, type_name};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::{Core, World};
use crate::memory::reserved::AddressMap;
use crate::memory::space::Space;
use crate::object::live::{ClaimRef, Stopped, prefetch_ahead};
use crate::object::state;
use crate::object::type_info::Object;
use crate::safepoint::ThreadId;

/// The threads that continue after the stop and can reclaim the garbage on their own pages. The
/// collecting thread reclaims all other garbage.
#[derive(Debug, Default)]
pub(crate) struct Reclaimers {
    /// By the number of the arena, which is small.
    arenas: Vec<Option<ThreadId>>,
    /// More threads continue than there are processors. So any thread may reclaim any garbage,
    /// while its owner waits for a processor.
    crowded: bool,
}

impl Reclaimers {
    /// The threads that are parked now. If memory for the list runs out, the collecting thread
    /// reclaims the garbage of the missing threads.
    pub(crate) fn of_parked<M: ObjectModel>(world: &World<'_, M>) -> Self {
        let mut arenas = Vec::new();
        let mut threads = 1;
        world.parked(|arena, thread| {
            threads += 1;
            let missing = (arena as usize + 1).saturating_sub(arenas.len());
            if arenas.try_reserve(missing).is_ok() {
                arenas.extend(std::iter::repeat_n(None, missing));
                arenas[arena as usize] = Some(thread);
            }
        });
        Self { arenas, crowded: world.core().coordinator.is_crowded(threads) }
    }

    /// Whether one thread reclaims all garbage.
    pub(crate) fn is_empty(&self) -> bool {
        self.arenas.is_empty()
    }

    /// The threads in the list.
    pub(crate) fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.arenas.iter().flatten().copied()
    }

    /// The owner of the object, by its page.
    pub(crate) fn of(&self, object: Object, space: &Space<impl AddressMap>) -> Option<ThreadId> {
        let page = space.page(space.page_index(object.address()));
        self.arenas.get(page.arena() as usize).copied().flatten()
    }
}

/// Candidates without a reference from outside, still in the stop that found them. A reference on
/// behalf of the thread that will reclaim the object keeps each alive. Each has the `UNREACHABLE`
/// bit.
#[must_use]
pub(crate) struct Unreachable<M: ObjectModel> {
    pub(super) objects: Vec<ClaimRef>,
    pub(super) reclaimers: Reclaimers,
    pub(super) callbacks: Vec<M::Callback>,
    pub(super) runs_code: bool,
    pub(super) exempt: Exempt,
    pub(super) failure: Option<Abandoned>,
}

/// Unreachable objects that were removed from the set right after the claim. They are ordinary
/// objects again, and the claim's references keep them alive.
#[derive(Debug, Default)]
pub(crate) struct Exempt {
    /// Uncollectable: objects with a legacy finalizer, and all objects that they reach.
    pub(super) objects: Vec<ClaimRef>,
    /// The objects of `objects` with a legacy finalizer.
    pub(super) legacy: Vec<Object>,
    /// Objects that are kept because the claim failed.
    pub(super) spared: Vec<ClaimRef>,
}

/// The phase `Claim`. Claims the unreachable objects and clears their weak references with
/// callbacks. If nothing in the set can run code, also clears all other weak references to them.
pub(crate) fn claim<M: ObjectModel>(
    world: &World<'_, M>,
    found: Swept<'_>,
    reclaimers: Reclaimers,
    workers: usize,
) -> Unreachable<M> {
    let _phase = event::phase(Phase::Claim);
    let core = world.core();
    let has_legacy = core.model.has_legacy();
    let counts = Claims::before(world, &found.objects);
    let mut summary = claim_all(world, &found, &reclaimers, if has_legacy { 1 } else { workers });
    counts.after(world, &found.objects);
    // SAFETY: rule *counted*: `claim_all` has just taken a reference on each.
    let mut objects = unsafe { ClaimRef::all(found.objects) };
    let (mut left_out, mut failure) = (Exempt::default(), None);
    if has_legacy {
        // First, so that an object that leaves the set is treated as an outside object below.
        match exempt(world, &mut objects) {
            Ok(exempt) => left_out = exempt,
            Err(abandoned) => {
                left_out.spared = std::mem::take(&mut objects);
                failure = Some(abandoned);
            }
        }
        summary = ClaimSummary::default();
        objects.iter().for_each(|reference| summary.add_object(claimed(world, reference), core));
    }
    let ClaimSummary { mut runs_code, mut weak, outcome } = summary;
    let due = weak.iter().map(|&object| core.model.callbacks(object)).sum();
    let mut callbacks = Vec::new();
    let outcome = outcome.and_then(|()| Ok(callbacks.try_reserve_exact(due)?));
    if let Err(no_memory) = outcome {
        // An unlisted weak reference, or one with a lost callback, could lead to a cleared object.
        left_out.spared = std::mem::take(&mut objects);
        (runs_code, failure) = (false, Some(no_memory.into()));
        weak.clear();
    }
    for reference in left_out.objects.iter().chain(&left_out.spared) {
        state_of(&core.space, reference.object()).survive();
    }
    let mut set =
        Unreachable { objects, reclaimers, callbacks, runs_code, exempt: left_out, failure };
    let is_unreachable = |object: Object| {
        core.space.contains(object.address())
            && state_of(&core.space, object).get() & state::UNREACHABLE != 0
    };
    let is_checked = rules::are_checked(core);
    for &object in &weak {
        steps::took(1);
        let before = set.callbacks.len();
        let limit = if is_checked { core.model.callbacks(object) } else { usize::MAX };
        core.model.take_callbacks(object, &is_unreachable, world, &mut set.callbacks);
        rules::callbacks(core, object, limit, set.callbacks.len() - before);
    }
    set.runs_code |= !set.callbacks.is_empty();
    if !set.runs_code {
        for &object in &weak {
            core.model.clear_weak(object);
        }
    }
    set
}

/// Facts about the claimed objects, from one visit to each.
struct ClaimSummary<'w> {
    runs_code: bool,
    /// The objects with weak references.
    weak: Vec<Stopped<'w>>,
    outcome: Result<(), NoMemory>,
}

impl Default for ClaimSummary<'_> {
    fn default() -> Self {
        Self { runs_code: false, weak: Vec::new(), outcome: Ok(()) }
    }
}

impl<'w> ClaimSummary<'w> {
    #[inline(always)]
    fn add_object<M: ObjectModel>(&mut self, object: Stopped<'w>, core: &Core<M>) {
        let state = state_of(&core.space, object.object()).get();
        self.runs_code |= state & state::FINALIZED == 0 && core.model.has_finalizer(object.live());
        if core.model.has_weak(object.live()) {
            self.outcome = self.outcome.and(fallible::push(&mut self.weak, object));
        }
    }

    /// Claims the objects, each on behalf of the thread that will reclaim it.
    fn claim<M: ObjectModel>(
        &mut self,
        world: &World<'_, M>,
        objects: &[Stopped<'w>],
        reclaimers: &Reclaimers,
    ) {
        let core = world.core();
        steps::took(objects.len());
        for (at, &object) in objects.iter().enumerate() {
            prefetch_ahead(objects, at);
            maybe_yield(&core.under, Step::Hold);
            let holder =
                if reclaimers.is_empty() { None } else { reclaimers.of(*object, &core.space) };
            let holder = holder.unwrap_or(world.requester());
            if reclaimers.crowded {
                core.model.claim_ref_for_any(object, holder);
            } else {
                core.model.claim_ref(object, holder);
            }
            // No other thread changes this state: attached threads are parked, and other workers
            // process other objects.
            state_of(&core.space, *object).change_plainly(state::UNREACHABLE, 0);
            self.add_object(object, core);
        }
    }

    fn add(&mut self, mut other: Self) {
        self.runs_code |= other.runs_code;
        let added = fallible::append(&mut self.weak, &mut other.weak);
        self.outcome = self.outcome.and(other.outcome).and(added);
    }
}

/// Claims all objects, page by page. Each worker begins with its own pages, which are in its
/// caches.
fn claim_all<'w, M: ObjectModel>(
    world: &World<'_, M>,
    found: &Swept<'w>,
    reclaimers: &Reclaimers,
    workers: usize,
) -> ClaimSummary<'w> {
    let mut summary = ClaimSummary::default();
    if workers == 1 {
        summary.claim(world, &found.objects, reclaimers);
        return summary;
    }
    let share = found.pages.share(1);
    let all = Mutex::new(ClaimSummary::default());
    world.share(workers, &|worker| {
        let mut mine = ClaimSummary::default();
        for part in share.of(worker).flatten() {
            mine.claim(world, &found.objects[part.range.clone()], reclaimers);
        }
        all.lock().add(mine);
    });
    std::mem::swap(&mut summary, &mut all.lock());
    // In the order of memory, so that runs repeat regardless of the division of work.
    steps::took(summary.weak.len());
    summary.weak.sort_unstable();
    summary
}

/// Moves the objects with legacy finalizers, and all objects of the set that they reach, out of
/// `objects`. Fails if a field is unreadable now or a handler panics: the reached objects are then
/// unknown.
fn exempt<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &mut Vec<ClaimRef>,
) -> Result<Exempt, Abandoned> {
    let core = world.core();
    let mut legacy = Vec::new();
    for reference in &*objects {
        let object = claimed(world, reference);
        if core.model.legacy(object) {
            fallible::push(&mut legacy, object)?;
        }
    }
    if legacy.is_empty() {
        return Ok(Exempt::default());
    }
    let mut found = Exempt {
        legacy: fallible::collect(legacy.iter().map(|o| o.object()))?,
        ..Exempt::default()
    };
    let granules = legacy.iter().map(|object| core.space.granule(object.address()) as u32);
    let granules = fallible::collect(granules)?;
    let search = Search::among(world, objects, 1)?;
    let reached = search.mark_from(granules).and_then(|unreadable| match unreadable.first() {
        None => Ok(search.take_marked(objects)?),
        Some(&granule) => Err(Abandoned {
            during: crate::During::Traverse,
            reason: "a field that leads from a legacy finalizer cannot be read now".into(),
            type_name: type_name(world, object_at(&core.space, granule as usize)),
        }),
    });
    found.objects = search.close(reached)?;
    Ok(found)
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use super::*;
    use crate::collect::candidates::Candidates;
    use crate::collect::reclaim;
    use crate::collect::scope::Scope;
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Raw, Script, are_ordinary, scripted_heap};
    use crate::heap::model_heap::ModelHeap;
    use std::ops::Range;
    use std::sync::Arc;

    use crate::base::event::CollectionKind;
    use crate::base::sync::Ordering;
    use crate::collect::Collect;
    use crate::collect::collection::collect_due;
    use crate::collect::sweep::sweep;
    use crate::heap::reclaim_queue::{GARBAGE_BATCH, Owner};
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
        let arenas: Vec<u32> =
            pages.iter().map(|&page| space.page(page as usize).arena()).collect();
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
        let none = "stop: 1 stops, 0 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
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
                    let report = crate::collect::collection::collect(&mut m, Collect::full())
                        .expect("a stop");
                    assert!(
                        report.time_to_stop > std::time::Duration::ZERO,
                        "it waited for the other thread"
                    );
                }
                let expected =
                    if by_the_heap && garbage > GARBAGE_BATCH { theirs } else { m.thread_id() };
                let holders = std::mem::take(&mut heap.model().state().holders);
                assert_eq!(holders.len(), garbage);
                assert!(
                    holders.iter().all(|&holder| holder == expected),
                    "{garbage} {by_the_heap}"
                );
                while reclaim::reclaim(&mut m, Owner::Any, usize::MAX) {}
                on.store(false, Ordering::Relaxed);
                m.detach(|| other.join()).expect("no panic");
            });
            assert_eq!(heap.stats().live_objects, 0);
        }
    }
}
