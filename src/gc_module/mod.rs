//! Floor 5: the services of CPython's `gc` module, for a heap of typed and dynamic objects.
//!
//! [`Heap::services`] gives a handle: switching automatic collections on and off, thresholds, counters, records,
//! progress callbacks, debugging, the garbage list, freezing, and questions about who refers to whom. All handles of a heap are
//! alike, since the state lies with the heap; who does not ask for any of this pays nothing for it.
//!
//! ```
//! use standstill::{Gc, GcCell, Heap, Trace};
//!
//! #[derive(Trace)]
//! struct Node { next: GcCell<Option<Gc<Node>>> }
//!
//! let heap = Heap::new();
//! let services = heap.services();
//! let mut m = heap.attach();
//! let node = m.alloc(Node { next: GcCell::default() });
//! node.get(&m).next.set(&m, Some(node.clone()));
//! drop(node);
//!
//! assert!(services.disable());
//! assert!(services.collect_if_enabled(&mut m).is_none());
//! assert_eq!(services.collect_generation(&mut m, 2), Ok(1));
//! assert_eq!(services.stats()[2].collected, 1);
//! ```
//!
//! # Generations
//!
//! The interface is in three generations; the collector has two kinds of collection. So:
//!
//! | number | a collection | objects | a counter |
//! |---|---|---|---|
//! | 0 | young | new since the last collection (or [promotion](crate::HeapStats::promotions), in a heap without thresholds) | how many of them there are |
//! | 1 | young, under this number | none | 0 |
//! | 2 | full | the others | young collections since the last full one |
//!
//! # Where the state is, and who may touch it
//!
//! | state | values | where | who |
//! |---|---|---|---|
//! | what the user has said | enabled, disabled | `pacing` | anybody: one atomic swap. A collection that runs goes on |
//! | visits to all objects | how many are going on | `pacing` | who visits. While it is not 0 nothing collects by itself, and the collecting calls here do nothing |
//! | thresholds, source of memory | | `pacing` | anybody |
//! | callbacks, debugging flags and sink, audit hook, records | | `notices` | anybody; see there |
//! | the garbage list | references | the built-in model | attached threads, under its lock; a collection adds to it between its recheck and the clearing |
//! | legacy finalizers | unknown, expected | the built-in model | anybody; off by default |
//!
//! Automatic collections happen when the user has enabled them, nobody visits, no [`DeferGuard`](crate::DeferGuard) lives, and
//! [`Pacing::automatic`](crate::Pacing::automatic) is set: the first of these is all that [`Services::is_enabled`] tells.
//!
//! # Calls from inside
//!
//! What collects or stops the world takes `&mut Mutator`, which no finalizer, destructor, weak callback or progress callback has. Where
//! a language cannot express that, its layer has a mutator while user code up the stack is using it; then collecting calls give
//! nothing and the others a [`Fault`] with [`Code::NotAllowedHere`]. On other threads, collecting calls give nothing while
//! one collects, and do not wait.
//!
//! # The end of a heap
//!
//! When the last handle and mutator are gone the heap collects in full once more, without the progress callbacks of this
//! module, and with finalizers. Is anything in the garbage list then, the hook of
//! [`Heap::on_unraisable`] hears of it, the list is emptied, and the heap collected again. What is left after that (but
//! immortal objects) is told by type to the same hook, if the services were ever asked for; see [`Services::tell_leaks`].
//! Where the thread cannot attach to the heap, there is no last collection; that hook is told how many objects are left.
//!
//! # Out of memory
//!
//! Snapshots of objects fail as a [`Fault`] with [`Code::Memory`], and nothing has happened. A collection whose work lists
//! cannot grow is abandoned, and its report says so. What is left, in which a refusal aborts the process as it does in std, is
//! listed in `tests/alloc_failure.rs`.

pub(crate) mod callbacks;
mod collecting;
mod garbage;
mod objects;
mod stop;
mod thresholds;
mod watching;

use std::fmt;
use std::sync::Arc;

use crate::gc_module::callbacks::Notices;
use crate::heap::pacing::Pace;
use crate::managed::ManagedCore;
use crate::{Heap, Mutator};

pub use crate::gc_module::callbacks::{
    CallbackInfo, CallbackPhase, DEBUG_COLLECTABLE, DEBUG_LEAK, DEBUG_SAVEALL, DEBUG_STATS,
    DEBUG_UNCOLLECTABLE, GenerationStats,
};
pub(crate) use garbage::at_the_end;
pub use objects::Visit;
pub use thresholds::process_memory;

/// The services of a heap: a handle, which keeps the heap open. See the [module's page](self).
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
        self.core().notices.use_them();
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

    pub(super) fn notices(&self) -> &Notices {
        &self.core().notices
    }

    /// Panics for a mutator of another heap.
    #[track_caller]
    pub(super) fn check(&self, m: &Mutator) {
        assert!(
            Arc::ptr_eq(m.raw().core(), self.core()),
            "the services of one heap were used with the Mutator of another; take them from the Mutator's own heap"
        );
    }

    pub(super) fn audit(&self, m: &Mutator, what: &str) {
        let _lent = m.raw().lend();
        self.notices().audit(&self.core().hooks, what);
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
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
