//! `Phase::Recheck`: finding the objects that finalizers have made reachable again.

use crate::base::outside;
use crate::collect::claim::{Exempt, Reclaimers};
use crate::collect::finalize::Pending;
use crate::collect::scope::{claimed, state_of};
use crate::collect::search::Search;
use crate::collect::traversal::Abandoned;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::live::{ClaimRef, Live};
use crate::object::state;
use crate::report::event::{self, Phase};
use crate::report::facts::During;

/// Objects to be cleared: nothing outside the set reaches them, and all weak references to them are
/// cleared.
#[must_use]
#[derive(Default)]
pub(crate) struct Garbage {
    pub(crate) objects: Vec<ClaimRef>,
    pub(crate) reclaimers: Reclaimers,
    /// Claimed objects that are reachable again or no longer tracked. Only the claim's reference is
    /// dropped. There are several lists because joining them would allocate.
    pub(crate) spared: [Vec<ClaimRef>; 4],
    pub(crate) resurrected: usize,
    /// The number of objects that are uncollectable without an attempt to clear them. `judge` moves
    /// them to `spared`.
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
/// again leave it, and so do the objects that they reach. The other objects lose their remaining
/// weak references.
///
/// If a traversal fails, the whole set is kept.
pub(crate) fn recheck<M: ObjectModel>(
    world: &World<'_, M>,
    mut pending: Pending,
    most: usize,
) -> (Garbage, Option<Abandoned>) {
    let _phase = event::phase(Phase::Recheck);
    let core = world.core();
    let mut garbage = Garbage::none(pending.reclaimers, pending.exempt);
    let (spared, abandoned) = match take_reachable(world, &mut pending.objects, most) {
        Ok(spared) => (spared, None),
        Err(abandoned) => (std::mem::take(&mut pending.objects), Some(abandoned)),
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
fn take_reachable<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &mut Vec<ClaimRef>,
    most: usize,
) -> Result<Vec<ClaimRef>, Abandoned> {
    let mut search = Search::among(world, objects, most)?;
    let marked = search.mark_reachable();
    let taken = marked.and_then(|()| Ok(search.take_marked(objects)?));
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
                // After a failure everything is kept.
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
