//! `Phase::Callbacks` and `Phase::Finalize`: running user code on unreachable objects.

#![forbid(unsafe_code)]

use crate::base::event::{self, During, Phase};
use crate::collect::calls::CallClock;
use crate::collect::claim::{Exempt, Reclaimers, Unreachable};
use crate::collect::scope::state_of;
use crate::collect::traversal::Abandoned;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::object::live::ClaimRef;
use crate::object::state;

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
            if let Err(payload) = event::guarded(|| core.model.call_back(callback, m)) {
                core.hooks.unraisable(During::WeakCallback, "", event::panic_message(payload));
            }
            clock.lap(m, During::WeakCallback, 1, || "".into());
        }
    }
    let _phase = event::phase(Phase::Finalize);
    for reference in &pending.objects {
        let object = reference.live();
        // A model that lists its objects remembers itself which finalizers have run.
        let state = (!M::LISTS_OBJECTS).then(|| state_of(&core.space, reference.object()));
        if state.is_some_and(|state| state.get() & state::FINALIZED != 0)
            || !core.model.has_finalizer(object)
        {
            continue;
        }
        // Set before the call, so that the finalizer runs once, even if another thread calls it now
        // through a weak reference.
        if state.is_some_and(|state| state.set(state::FINALIZED) & state::FINALIZED != 0) {
            continue;
        }
        pending.finalized += 1;
        if let Err(payload) = event::guarded(|| core.model.finalize(object, m)) {
            let name = core.model.type_name(object);
            let text = event::panic_message(payload);
            core.hooks.unraisable_at(During::Finalize, name, object.address(), text);
        }
        clock.lap(m, During::Finalize, 1, || core.model.type_name(object));
    }
    pending
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::collect::Collect;
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Script, are_ordinary, scripted_heap};

    #[test]
    fn callbacks_alone_require_a_recheck() {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', "c"), ('b', "")]);
        let brought_back = ring[0];
        heap.model()
            .when("call back a", move |m| Script::of(m, brought_back, |thing| thing.count += 1));
        let (report, calls) = collect(&mut m, Collect::full());
        let end = "stop: 2 stops, 2 unreachable, 0 finalized, 2 resurrected, 0 collected, 0 uncollectable";
        assert_eq!(calls.last().map(String::as_str), Some(end));
        assert_eq!(report.finalized, 0);
        are_ordinary(&m, &ring[1..], 1);
    }

    #[test]
    fn a_finalizer_that_another_thread_runs_first_is_not_run_again() {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        Script::ring(&m, &[('a', "fr"), ('b', "f")]);
        let (report, calls) = collect(&mut m, Collect::full());
        let finalized: Vec<&String> =
            calls.iter().filter(|what| what.starts_with("finalize")).collect();
        assert_eq!(finalized, ["finalize b"]);
        assert_eq!(report.finalized, 1);
    }
}
