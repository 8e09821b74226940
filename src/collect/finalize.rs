//! `Phase::Callbacks` and `Phase::Finalize`: running user code on unreachable objects.

#![forbid(unsafe_code)]

use crate::base::outside;
use crate::collect::calls::CallClock;
use crate::collect::claim::{Exempt, Reclaimers, Unreachable};
use crate::collect::scope::state_of;
use crate::collect::traversal::Abandoned;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::object::live::ClaimRef;
use crate::object::state;
use crate::report::event::{self, Phase};
use crate::report::facts::During;

/// Unreachable objects after their finalizers have run. Some may be reachable again.
#[must_use]
#[derive(Default)]
pub(crate) struct Pending {
    pub(super) objects: Vec<ClaimRef>,
    pub(super) reclaimers: Reclaimers,
    pub(crate) finalized: usize,
    /// Whether user code ran. Otherwise nothing can have changed.
    pub(crate) needs_recheck: bool,
    pub(super) exempt: Exempt,
    /// The reason why everything was kept, if it was.
    pub(crate) failure: Option<Abandoned>,
}

impl Pending {
    /// Moves the set out, for a step that may fail.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// The phases `Callbacks` and `Finalize`, with the world
/// running. Each finalizer runs once.
pub(crate) fn finalize<M: ObjectModel>(set: Unreachable<M>, m: &ModelMutator<M>) -> Pending {
    let Unreachable { objects, reclaimers, callbacks, runs_code, exempt, failure } = set;
    let mut pending =
        Pending { objects, reclaimers, finalized: 0, needs_recheck: runs_code, exempt, failure };
    if !runs_code {
        return pending;
    }
    let core = m.core();
    let _lent = m.lend_to_finalizers();
    let mut clock = CallClock::start();
    {
        let _phase = event::phase(Phase::Callbacks);
        for callback in callbacks {
            if let Err(payload) =
                outside::guarded(|| WeakRefsOf::<M>::call_back(&core.model, callback, m))
            {
                core.hooks.unraisable(During::WeakCallback, "", outside::panic_message(payload));
            }
            clock.lap(m, During::WeakCallback, 1, || "".into());
        }
    }
    let _phase = event::phase(Phase::Finalize);
    for reference in &pending.objects {
        let object = reference.live();
        // A model that lists its objects remembers itself which finalizers have run.
        let state = (!ListsOf::<M>::PRESENT).then(|| state_of(&core.space, reference.object()));
        if state.is_some_and(|state| state.get() & state::FINALIZED != 0)
            || !FinalizersOf::<M>::has_finalizer(&core.model, object)
        {
            continue;
        }
        // Set before the call, so that the finalizer runs once, even if another thread calls it now
        // through a weak reference.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
