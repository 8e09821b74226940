//! The handle to the gc module of a heap.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::gc_module::state::GcState;
use crate::heap::pacing::Pace;
use crate::managed::ManagedCore;
use crate::{Heap, Mutator};

/// A handle to the services of a heap. It keeps the heap open. See the [module's page](super).
#[derive(Clone)]
pub struct Services {
    heap: Heap,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Services").field(&self.heap).finish()
    }
}

impl Heap {
    /// The services of CPython's `gc` module for this heap.
    pub fn services(&self) -> Services {
        GcState::of(self.core()).use_them();
        Services { heap: self.clone() }
    }
}

impl Services {
    pub(super) fn core(&self) -> &Arc<ManagedCore> {
        self.heap.core()
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.core().pace
    }

    pub(super) fn state(&self) -> &GcState {
        GcState::of(self.core())
    }

    /// Panics for a mutator of another heap.
    #[track_caller]
    pub(super) fn check(&self, m: &Mutator) {
        assert!(
            Arc::ptr_eq(m.raw().core(), self.core()),
            "the services of one heap were used with the Mutator of another; take them from the \
             Mutator's own heap"
        );
    }

    pub(super) fn audit(&self, m: &Mutator, what: &str) {
        let _lent = m.raw().lend();
        self.state().audit.call(&self.core().hooks, what);
    }

    /// The heap of these services.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::gc_module::objects::Visit;
    use crate::{AnyGc, Pacing};

    #[test]
    fn the_services_refuse_the_mutator_of_another_heap() {
        let builder = || Heap::builder().reserve(1 << 30).pacing(Pacing::manual());
        let services = builder().build().expect("a heap").services();
        let other = builder().build().expect("a heap");
        let mut m = other.attach();
        let object: AnyGc = m.alloc(7).into();
        type Call<'a> = (&'a str, &'a dyn Fn(&mut Mutator));
        let calls: [Call<'_>; 15] = [
            ("collect_if_enabled", &|m| drop(services.collect_if_enabled(m))),
            ("collect", &|m| drop(services.collect(m, 2))),
            ("collect_generation", &|m| drop(services.collect_generation(m, 2))),
            ("final_collection", &|m| drop(services.final_collection(m))),
            ("counts", &|m| drop(services.counts(m))),
            ("garbage_len", &|m| _ = services.garbage_len(m)),
            ("garbage_get", &|m| drop(services.garbage_get(m, 0))),
            ("garbage", &|m| drop(services.garbage(m))),
            ("garbage_remove", &|m| drop(services.garbage_remove(m, 0))),
            ("garbage_take", &|m| drop(services.garbage_take(m))),
            ("freeze", &|m| drop(services.freeze(m))),
            ("unfreeze", &|m| drop(services.unfreeze(m))),
            ("freeze_count", &|m| drop(services.freeze_count(m))),
            ("objects", &|m| drop(services.objects(m, None))),
            ("visit_objects", &|m| drop(services.visit_objects(m, |_, _| Visit::Continue))),
        ];
        for (name, call) in calls {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(&mut m)));
            let payload = result.expect_err(name);
            let text = payload.downcast_ref::<&str>().copied().unwrap_or_default();
            assert!(
                text.starts_with("the services of one heap were used with the Mutator of another"),
                "{name}"
            );
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(services.referrers(&mut m, std::slice::from_ref(&object)));
        }));
        assert!(result.is_err(), "referrers");
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(services.referents(&mut m, std::slice::from_ref(&object)));
        }));
        assert!(result.is_err(), "referents");
    }
}
