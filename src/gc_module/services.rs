//! The handle to the services of a heap, and the stop of the world for one of its calls.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::base::fallible::words;
use crate::gc_module::state::GcState;
use crate::heap::pacing::Pace;
use crate::heap::parts::SplitCounts;
use crate::heap::world::World;
use crate::managed::{Managed, ManagedCore};
use crate::report::error::{Code, Fault};
use crate::safepoint::StopError;
use crate::{Heap, Mutator};

/// A handle to the services of a heap. It keeps the heap open.
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

/// Runs `f` in its own stop, and then the work that is due after a stop.
pub(super) fn stopped<R>(
    m: &mut Mutator,
    function: &'static str,
    f: impl FnOnce(&Mutator, &World<'_, Managed>) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let world = m.raw().stop_here().map_err(|error| {
        let code = match error {
            StopError::NoSafepoint | StopError::Nested => Code::NotAllowedHere,
            _ => Code::Custom,
        };
        Fault::new(code, function).because(words!("the world cannot be stopped: {error}"))
    })?;
    let result = f(m, &world);
    drop(world);
    Managed::resumed(m.raw().model(), m.raw());
    result
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
