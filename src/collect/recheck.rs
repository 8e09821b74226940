//! `Phase::Callbacks`, `Phase::Finalize` and `Phase::Recheck`, which find the unreachable objects
//! that are garbage.
//!
//! Weak callbacks and finalizers are code of the program, which may make objects reachable again.
//! For example, A and B refer to each other, and the finalizer of A stores A in a global handle.
//! Then clearing them would destroy objects in use. So the recheck, a search in a second stop,
//! finds that A has a reference from outside and leads to B, and both leave the set.

use crate::base::outside;
use crate::collect::calls::{Abandoned, CallClock};
use crate::collect::claim::{Exempt, Reclaimers, Unreachable};
use crate::collect::scope::{claimed, state_of};
use crate::collect::search::Search;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::live::{ClaimRef, Live};
use crate::object::state;
use crate::report::facts::{During, Phase};

/// Unreachable objects after their finalizers have run, of which some may be reachable again.
#[must_use]
#[derive(Default)]
pub(crate) struct Pending {
    pub(super) objects: Vec<ClaimRef>,
    pub(super) reclaimers: Reclaimers,
    pub(crate) finalized: usize,
    /// Whether user code ran, because otherwise nothing can have changed.
    pub(crate) needs_recheck: bool,
    /// Whether an object was handed over, so that its finalizer was not called.
    handed_over: bool,
    pub(super) exempt: Exempt,
    /// The reason why everything was kept, if it was.
    pub(crate) failure: Option<Abandoned>,
}

/// The phases `Callbacks` and `Finalize`, with the world running. Each finalizer runs once.
pub(crate) fn finalize<M: ObjectModel>(set: Unreachable<M>, m: &ModelMutator<M>) -> Pending {
    let Unreachable { objects, reclaimers, callbacks, runs_code, exempt, failure } = set;
    let mut pending = Pending {
        objects,
        reclaimers,
        needs_recheck: runs_code,
        exempt,
        failure,
        ..Pending::default()
    };
    if !runs_code {
        return pending;
    }
    let core = m.core();
    let _lent = m.lend_to_finalizers();
    let mut clock = CallClock::start();
    {
        let _phase = core.phase(Phase::Callbacks);
        for callback in callbacks {
            if let Err(payload) =
                outside::guarded(|| WeakRefsOf::<M>::call_back(&core.model, callback, m))
            {
                core.hooks.unraisable(During::WeakCallback, "", outside::panic_message(payload));
            }
            clock.lap(m, During::WeakCallback, 1, || "".into());
        }
    }
    let _phase = core.phase(Phase::Finalize);
    for reference in &pending.objects {
        let object = reference.live();
        if FinalizersOf::<M>::is_guarded(&core.model, object) {
            pending.handed_over = true;
            if let Err(payload) =
                outside::guarded(|| FinalizersOf::<M>::hand_over(&core.model, object, m))
            {
                let name = core.model.type_name(object);
                let text = outside::panic_message(payload);
                core.hooks.unraisable_at(During::Finalize, name, object.address(), text);
            }
            continue;
        }
        // A model that lists its objects remembers itself which finalizers have run, because states
        // do not last.
        let state = (!ListsOf::<M>::PRESENT).then(|| state_of(&core.space, reference.object()));
        if state.is_some_and(|state| state.get() & state::FINALIZED != 0)
            || !FinalizersOf::<M>::has_finalizer(&core.model, object)
        {
            continue;
        }
        // The bit is set before the call, so that the finalizer runs once, even if another thread
        // calls it now through a weak reference.
        if state.is_some_and(|state| state.set(state::FINALIZED) & state::FINALIZED != 0) {
            continue;
        }
        pending.finalized += 1;
        if let Err(payload) =
            outside::guarded(|| FinalizersOf::<M>::finalize(&core.model, object, m))
        {
            let name = core.model.type_name(object);
            let text = outside::panic_message(payload);
            core.hooks.unraisable_at(During::Finalize, name, object.address(), text);
        }
        clock.lap(m, During::Finalize, 1, || core.model.type_name(object));
    }
    pending
}

/// Objects to be cleared, because nothing outside the set reaches them, and all weak references to
/// them are cleared.
#[must_use]
#[derive(Default)]
pub(crate) struct Garbage {
    pub(crate) objects: Vec<ClaimRef>,
    pub(crate) reclaimers: Reclaimers,
    /// Claimed objects that are reachable again or no longer tracked, so that only the claim's
    /// reference is dropped. There are several lists because joining them would allocate.
    pub(crate) spared: [Vec<ClaimRef>; 4],
    pub(crate) resurrected: usize,
    /// The number of objects that are uncollectable without an attempt to clear them, which `judge`
    /// moves to `spared`.
    pub(crate) kept: usize,
    exempt: Exempt,
}

impl Garbage {
    fn none(reclaimers: Reclaimers, exempt: Exempt) -> Self {
        Self { reclaimers, exempt, ..Self::default() }
    }
}

impl Pending {
    /// No user code ran, so all unreachable objects are garbage.
    pub(crate) fn untouched(self) -> Garbage {
        debug_assert!(!self.needs_recheck);
        Garbage { objects: self.objects, ..Garbage::none(self.reclaimers, self.exempt) }
    }
}

/// The phase `Recheck`, on at most `most` threads. Objects that are reachable from outside the set
/// again leave it, and so do the objects that they reach. The others lose their remaining weak
/// references, because they are garbage now.
///
/// If a traversal fails, the whole set is kept, because any object may be reachable.
pub(crate) fn recheck<M: ObjectModel>(
    world: &World<'_, M>,
    mut pending: Pending,
    most: usize,
) -> (Garbage, Option<Abandoned>) {
    let _phase = world.core().phase(Phase::Recheck);
    let core = world.core();
    let mut garbage = Garbage::none(pending.reclaimers, pending.exempt);
    let is_guarded = |claim: &ClaimRef| FinalizersOf::<M>::is_guarded(&core.model, claim.live());
    let (spared, abandoned) = if pending.objects.iter().any(is_guarded) {
        // Registered since the last hand-over, for example by the finalizer of another object. The
        // next collection hands it over, with all that it reaches intact.
        (std::mem::take(&mut pending.objects), None)
    } else {
        match take_reachable(world, &mut pending.objects, most, pending.handed_over) {
            Ok(spared) => (spared, None),
            Err(abandoned) => (std::mem::take(&mut pending.objects), Some(abandoned)),
        }
    };
    for claim in &pending.objects {
        WeakRefsOf::<M>::clear_weak(&core.model, claimed(world, claim));
    }
    for claim in &spared {
        let state = state_of(&core.space, claim.object());
        state.survive();
        garbage.resurrected += usize::from(state.get() & state::TRACKED != 0);
    }
    garbage.objects = pending.objects;
    garbage.spared[0] = spared;
    (garbage, abandoned)
}

/// Moves the objects out that are reachable from outside the set or no longer tracked.
///
/// If objects were handed over, and one of them is garbage all the same, its finalizer must see it
/// intact. So all objects are moved out, and the next collection calls the finalizer.
fn take_reachable<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &mut Vec<ClaimRef>,
    most: usize,
    handed_over: bool,
) -> Result<Vec<ClaimRef>, Abandoned> {
    let mut search = Search::among(world, objects, most)?;
    let marked = search.mark_reachable();
    let space = &world.core().space;
    let awaits_finalizer = |claim: &ClaimRef| {
        search.candidates.is_unmarked(space.granule(claim.object().address()))
            && state_of(space, claim.object()).get() & state::FINALIZED == 0
            && FinalizersOf::<M>::has_finalizer(&world.core().model, claim.live())
    };
    let taken = match marked {
        Ok(_) if handed_over && objects.iter().any(awaits_finalizer) => Ok(std::mem::take(objects)),
        marked => marked.and_then(|_| Ok(search.take_marked(objects)?)),
    };
    search.close(taken)
}

/// Keeps the whole set, because the world cannot be stopped for the recheck.
pub(crate) fn keep_all<M: ObjectModel>(pending: Pending, m: &ModelMutator<M>) -> Garbage {
    for claim in &pending.objects {
        state_of(&m.core().space, claim.object()).survive();
    }
    let resurrected = pending.objects.len();
    let mut garbage = Garbage { resurrected, ..Garbage::none(pending.reclaimers, pending.exempt) };
    garbage.spared[0] = pending.objects;
    garbage
}

/// Between the phases `Recheck` and `Clear`, with the world running: passes the garbage to the
/// model, which may keep it.
pub(crate) fn judge<M: ObjectModel>(mut garbage: Garbage, m: &ModelMutator<M>) -> Garbage {
    let exempt = std::mem::take(&mut garbage.exempt);
    // SAFETY: rule *counted*: these objects are among those that `exempt` holds.
    let legacy = unsafe { Live::slice(&exempt.legacy) };
    let [objects, uncollectable] =
        [&garbage.objects, &exempt.objects].map(|l| ClaimRef::live_slice(l));
    let found = Found::new(objects, uncollectable, legacy);
    let mut verdict = Verdict::Clear;
    if !found.garbage.is_empty() || !found.uncollectable.is_empty() {
        let _lent = m.lend();
        match outside::guarded(|| VerdictsOf::<M>::judge(m.model(), &found, m)) {
            Ok(decided) => verdict = decided,
            Err(payload) => {
                verdict = Verdict::Keep;
                m.core().hooks.unraisable(During::Clear, "", outside::panic_message(payload));
            }
        }
    }
    garbage.kept = exempt.objects.len();
    garbage.spared[1] = exempt.objects;
    garbage.spared[2] = exempt.spared;
    if verdict == Verdict::Keep {
        for claim in &garbage.objects {
            // An object that was untracked meanwhile also counts as kept.
            garbage.kept += usize::from(state_of(&m.core().space, claim.object()).survive());
        }
        garbage.spared[3] = std::mem::take(&mut garbage.objects);
    }
    garbage
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
