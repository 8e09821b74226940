//! `Phase::Claim`, which takes a reference on each unreachable object.
//!
//! When the world runs again, a finalizer can break a cycle, so that its objects could die while
//! the collection still uses them. For example, A and B refer to each other. The finalizer of A
//! empties A's field, so that B would die before its own finalizer has run. So the collection takes
//! a reference on both during the stop, and drops it last. Each is taken on behalf of the thread
//! that will drop it, which may be the owner of the object's page.

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::Mutex;
use crate::collect::calls::{Abandoned, type_name};
use crate::collect::scope::{claimed, object_at, state_of};
use crate::collect::search::Search;
use crate::collect::sweep::Swept;
use crate::heap::core::Core;
use crate::heap::model::ObjectModel;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::address_map::AddressMap;
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::live::{ClaimRef, Stopped, prefetch_ahead};
use crate::object::state;
use crate::report::facts::Phase;
use crate::safepoint::ThreadId;

/// The threads that continue after the stop and can reclaim the garbage on their own pages. The
/// collecting thread reclaims all other garbage.
#[derive(Debug, Default)]
pub(crate) struct Reclaimers {
    /// By the number of the arena, which is small.
    arenas: Vec<Option<ThreadId>>,
    /// More threads continue than there are processors, so the owner of some garbage may be waiting
    /// for one. Therefore any thread may reclaim any garbage.
    crowded: bool,
}

impl Reclaimers {
    /// The threads that are parked now. If memory for the list runs out, the collecting thread
    /// reclaims for the missing threads.
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

    pub(crate) fn is_empty(&self) -> bool {
        self.arenas.is_empty()
    }

    pub(crate) fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.arenas.iter().flatten().copied()
    }

    pub(crate) fn of(&self, object: Object, space: &Space<impl AddressMap>) -> Option<ThreadId> {
        let page = space.page(space.page_index(object.address()));
        self.arenas.get(page.arena() as usize).copied().flatten()
    }
}

/// Candidates without a reference from outside, still in the stop that found them. Each has the
/// `UNREACHABLE` bit, and a reference on behalf of the thread that will reclaim it.
#[must_use]
pub(crate) struct Unreachable<M: ObjectModel> {
    pub(super) objects: Vec<ClaimRef>,
    pub(super) reclaimers: Reclaimers,
    pub(super) callbacks: Vec<CallbackOf<M>>,
    pub(super) runs_code: bool,
    pub(super) exempt: Exempt,
    pub(super) failure: Option<Abandoned>,
}

/// Unreachable objects that were removed from the set right after the claim. They are ordinary
/// objects again, although the claim's references still keep them alive.
#[derive(Debug, Default)]
pub(crate) struct Exempt {
    /// Uncollectable: objects with a legacy finalizer, and all objects that they reach.
    pub(super) objects: Vec<ClaimRef>,
    pub(super) legacy: Vec<Object>,
    /// Objects that are kept because the claim failed.
    pub(super) spared: Vec<ClaimRef>,
}

/// The phase `Claim`, which claims the unreachable objects and clears their weak references with
/// callbacks. If nothing in the set can run code, it clears all other weak references too, because
/// no recheck follows that would.
pub(crate) fn claim<M: ObjectModel>(
    world: &World<'_, M>,
    found: Swept<'_>,
    reclaimers: Reclaimers,
    workers: usize,
) -> Unreachable<M> {
    let _phase = world.core().phase(Phase::Claim);
    let core = world.core();
    let has_legacy = VerdictsOf::<M>::has_legacy(&core.model);
    let mut summary = claim_all(world, &found, &reclaimers, if has_legacy { 1 } else { workers });
    // SAFETY: rule *counted*: `claim_all` has just taken a reference on each.
    let mut objects = unsafe { ClaimRef::all(found.objects) };
    let (mut left_out, mut failure) = (Exempt::default(), None);
    if has_legacy {
        // First, so that what follows treats an object that leaves the set as one outside of it.
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
    let due = weak.iter().map(|&object| WeakRefsOf::<M>::callbacks(&core.model, object)).sum();
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
    for &object in &weak {
        steps::took(1);
        let before = set.callbacks.len();
        let limit = core.verifier.map(|_| WeakRefsOf::<M>::callbacks(&core.model, object));
        WeakRefsOf::<M>::take_callbacks(
            &core.model,
            object,
            &is_unreachable,
            world,
            &mut set.callbacks,
        );
        if let (Some(verifier), Some(limit)) = (core.verifier, limit) {
            verifier.callbacks(world, object, limit, set.callbacks.len() - before);
        }
    }
    set.runs_code |= !set.callbacks.is_empty();
    if !set.runs_code {
        for &object in &weak {
            WeakRefsOf::<M>::clear_weak(&core.model, object);
        }
    }
    set
}

/// Facts about the claimed objects, from one visit to each.
struct ClaimSummary<'w> {
    runs_code: bool,
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
        self.runs_code |= state & state::FINALIZED == 0
            && FinalizersOf::<M>::has_finalizer(&core.model, object.live())
            || FinalizersOf::<M>::is_guarded(&core.model, object.live());
        if WeakRefsOf::<M>::has_weak(&core.model, object.live()) {
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
                SplitCountsOf::<M>::claim_ref_for_any(&core.model, object, holder);
            } else {
                core.model.claim_ref(object, holder);
            }
            // No other thread changes this state, because attached threads are parked, and other
            // workers process other objects.
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

/// Claims all objects, page by page, where each worker begins with its own pages, because they are
/// in its caches.
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
    // They are put in the order of memory, so that runs repeat regardless of the division of work.
    steps::took(summary.weak.len());
    summary.weak.sort_unstable();
    summary
}

/// Moves the objects with legacy finalizers, and all objects of the set that they reach, out of
/// `objects`. Fails if a field is unreadable now or a handler panics, because the reached objects
/// are then unknown.
fn exempt<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &mut Vec<ClaimRef>,
) -> Result<Exempt, Abandoned> {
    let core = world.core();
    let mut legacy = Vec::new();
    for reference in &*objects {
        let object = claimed(world, reference);
        if VerdictsOf::<M>::legacy(&core.model, object) {
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

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests;
