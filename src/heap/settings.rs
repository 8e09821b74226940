//! The pacing and the hooks of a heap, which its owner may set while the heap is in use.
//!
//! A setting changes while other threads allocate, so they must notice if it makes a collection
//! due. For example, thread 1 drops the last [`DeferGuard`], and thread 2, which has made a million
//! objects meanwhile, is asked to look at the pace at its next safepoint.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::outside::Hook;
use crate::heap::core::Handle;
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::pacing::Pacing;
use crate::report::facts::{CollectionEvent, Unraisable};
use crate::safepoint::SlowStop;

impl<M: ObjectModel> ModelHeap<M> {
    /// When the heap starts automatic collections.
    pub fn pacing(&self) -> Pacing {
        self.0.core.pace.policy()
    }

    /// Changes when the heap starts automatic collections, also for the objects that are new now.
    ///
    /// # Panics
    ///
    /// If [`Pacing::full_growth`] is negative or not a number. The setting is unchanged then.
    #[track_caller]
    pub fn set_pacing(&self, pacing: Pacing) {
        if let Some(reason) = pacing.refused() {
            panic!("{reason}");
        }
        self.0.core.pace.set_policy(pacing);
        self.0.core.request_what_is_due();
    }

    /// Disables automatic collections while the guard is alive, although explicit collections still
    /// work, as for [`Heap::defer_collections`](crate::Heap::defer_collections).
    pub fn defer_collections(&self) -> DeferGuard {
        self.0.core.pace.guard_begins();
        DeferGuard { heap: Arc::clone(&self.0) as Arc<dyn Defers> }
    }

    /// Registers a callback for the start and the end of each collection. The collecting thread
    /// calls it while the world runs, but if the heap started the collection, another thread may
    /// call it at the end. If it panics, the hook of [`on_unraisable`](Self::on_unraisable)
    /// receives the panic.
    pub fn on_collection(&self, f: impl Fn(&CollectionEvent<'_>) + Send + Sync + 'static) {
        self.0.core.hooks.on_collection(Hook::new(Arc::new(f)));
    }

    /// Sets the hook for failures that no caller can receive, which are panics of the model's
    /// methods during a collection, and the reason why a collection was abandoned. Without a hook
    /// the failures are written to standard error.
    pub fn on_unraisable(&self, f: impl Fn(&Unraisable) + Send + Sync + 'static) {
        self.try_on_unraisable(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`on_unraisable`](Self::on_unraisable), but returns an error, and changes nothing, if
    /// memory is refused.
    #[doc(hidden)]
    pub fn try_on_unraisable(
        &self,
        f: impl Fn(&Unraisable) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.0.core.hooks.on_unraisable(Hook::new(fallible::arc(f)?));
        Ok(())
    }

    /// Sets the hook for waits that last longer than
    /// [`HeapBuilder::slow_stop`](crate::HeapBuilder::slow_stop), as
    /// [`Heap::on_slow_stop`](crate::Heap::on_slow_stop) does.
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.try_on_slow_stop(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`on_slow_stop`](Self::on_slow_stop), but returns an error, and changes nothing, if
    /// memory is refused.
    #[doc(hidden)]
    pub fn try_on_slow_stop(
        &self,
        f: impl Fn(&SlowStop) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.0.core.slow.on_slow_stop(Hook::new(fallible::arc(f)?));
        Ok(())
    }
}

/// A heap of any model, as a [`DeferGuard`] knows it.
trait Defers: Send + Sync {
    fn end_deferral(&self);
    fn name(&self) -> &str;
}

impl<M: ObjectModel> Defers for Handle<M> {
    fn end_deferral(&self) {
        self.core.pace.guard_ends();
        self.core.request_what_is_due();
    }

    fn name(&self) -> &str {
        &self.core.name
    }
}

/// Disables automatic collections of a heap, and is a handle of the heap, while it is alive.
/// [`Heap::defer_collections`](crate::Heap::defer_collections) and [`ModelHeap::defer_collections`]
/// return it.
#[must_use = "automatic collections are on again when the guard is dropped"]
pub struct DeferGuard {
    heap: Arc<dyn Defers>,
}

impl Drop for DeferGuard {
    fn drop(&mut self) {
        self.heap.end_deferral();
    }
}

impl fmt::Debug for DeferGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferGuard").field("heap", &self.heap.name()).finish()
    }
}
