//! A heap of objects of any model, as its runtime holds it.
//!
//! A heap must live as long as a handle or a mutator can use it. For example, thread 1 makes a
//! heap, attaches, and gives thread 2 a clone of the handle. When thread 1 has ended, the heap is
//! still open, because thread 2's handle counts, and thread 2 may attach later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::fallible::{self, NoMemory};
use crate::base::stress::StressStats;
use crate::base::sync::Ordering;
use crate::heap::core::Handle;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::timings::CollectionTimes;
use crate::object::address::Object;
use crate::report::error::AttachError;
use crate::report::facts::CollectionReport;
use crate::safepoint::ThreadTimes;

/// A heap of objects of model `M`, as a counted handle. See [`model`](crate::model).
#[repr(transparent)]
pub struct ModelHeap<M: ObjectModel>(pub(crate) Arc<Handle<M>>);

impl<M: ObjectModel> ModelHeap<M> {
    /// Makes the calling thread a mutator of this heap.
    ///
    /// # Panics
    ///
    /// If [`try_attach`](Self::try_attach) returns an error.
    #[track_caller]
    pub fn attach(&self) -> ModelMutator<M> {
        match self.try_attach() {
            Ok(mutator) => mutator,
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes the calling thread a mutator of this heap.
    ///
    /// A new mutator costs some 250 ns, although it gets the memory of one that has ended. So a
    /// thread that attaches often keeps its mutator detached meanwhile, in a
    /// [`ModelDetached`](crate::model::ModelDetached), or has the heap [keep](Self::enter) it. That
    /// costs some 15 ns, and the objects of the thread keep their owner.
    ///
    /// # Errors
    ///
    /// If the thread is already attached to any heap, inside a traversal, or in the closure of a
    /// detach, or in another case that [`AttachError`] lists.
    pub fn try_attach(&self) -> Result<ModelMutator<M>, AttachError> {
        ModelMutator::attach(&self.0)
    }

    /// Makes the calling thread a mutator for the duration of a closure. It is also allowed inside
    /// [`ModelMutator::detach`], for this heap or another heap.
    ///
    /// # Panics
    ///
    /// If [`try_attach_scoped`](Self::try_attach_scoped) returns an error.
    #[track_caller]
    pub fn attach_scoped<R>(&self, f: impl FnOnce(&mut ModelMutator<M>) -> R) -> R {
        match self.try_attach_scoped(f) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes the calling thread a mutator for the duration of a closure. It is also allowed inside
    /// [`ModelMutator::detach`], for this heap or another heap.
    ///
    /// # Errors
    ///
    /// If the thread is attached, is inside a traversal, or is ending, or in another case that
    /// [`AttachError`] lists. `f` was not called then.
    pub fn try_attach_scoped<R>(
        &self,
        f: impl FnOnce(&mut ModelMutator<M>) -> R,
    ) -> Result<R, AttachError> {
        ModelMutator::attach_scoped(&self.0, f)
    }

    /// The model with which the heap was made.
    pub fn model(&self) -> &M {
        &self.0.core.model
    }

    /// Whether both handles refer to the same heap.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.core, &other.0.core)
    }

    /// Names a root that full collections start from, and returns its key for
    /// [`forget_root`](Self::forget_root). Known roots are a hint, since collections find the same
    /// garbage without them.
    ///
    /// # Safety
    ///
    /// `object` is an object of this heap, to which the caller holds a reference until the root is
    /// forgotten.
    pub unsafe fn known_root(&self, object: Object) -> u64 {
        self.0.core.roots.add(object)
    }

    /// Forgets the root with this key of [`known_root`](Self::known_root).
    pub fn forget_root(&self, key: u64) {
        self.0.core.roots.remove(key);
    }

    /// The figures of the heap's stress modes so far.
    pub fn stress_stats(&self) -> StressStats {
        let core = &self.0.core;
        let mut stats =
            core.under.as_ref().map_or_else(StressStats::default, |strain| strain.stats());
        if let Some(freed) = core.space.quarantine() {
            freed.add_figures(&mut stats);
        }
        stats
    }

    /// Figures about the heap, as a snapshot that [`HeapStats`] describes.
    pub fn stats(&self) -> HeapStats {
        self.try_stats().unwrap_or_else(NoMemory::abort_process)
    }

    /// Like [`stats`](Self::stats), but returns an error when memory is refused.
    #[doc(hidden)]
    pub fn try_stats(&self) -> Result<HeapStats, NoMemory> {
        let core = &self.0.core;
        // First, because it panics on a thread that holds a fork, while the calls below would wait
        // for that thread itself.
        let coordinator = core.coordinator.stats();
        let (live_objects, live_bytes) = core.live();
        let (young, full) = core.timings.times()?;
        let mut leaked_mutators = Vec::new();
        for thread in core.coordinator.leaked() {
            fallible::push(&mut leaked_mutators, fallible::written(thread).ok_or(NoMemory)?)?;
        }
        Ok(HeapStats {
            live_objects,
            live_bytes,
            external_bytes: core.space.limit.external_bytes(),
            defer_guards: core.pace.guards(),
            in_use_bytes: core.space.in_use_bytes(),
            committed_bytes: core.space.committed_bytes(),
            reserved_bytes: core.space.reserved_bytes(),
            mutators: coordinator.threads,
            // Relaxed: statistics.
            collections: core.totals.collections.load(Ordering::Relaxed),
            young_collections: core.totals.young.load(Ordering::Relaxed),
            promotions: core.totals.promotions.load(Ordering::Relaxed),
            collected: core.totals.collected.load(Ordering::Relaxed),
            stops: coordinator.stops,
            time_to_stop_max: coordinator.max_time_to_stop,
            young,
            full,
            leaked_mutators,
        })
    }
}

impl<M: ObjectModel> ModelHeap<M> {
    /// The reports of the last collections, up to 256, the newest last.
    pub fn recent_collections(&self) -> Vec<CollectionReport> {
        self.0.core.timings.recent()
    }

    /// The threads with a mutator, and how long stops have waited for each.
    ///
    /// # Panics
    ///
    /// On a thread that holds a fork.
    pub fn threads(&self) -> Vec<ThreadTimes> {
        self.0.core.coordinator.thread_times()
    }

    /// Like [`threads`](Self::threads), but returns an error when memory is refused.
    #[doc(hidden)]
    pub fn try_threads(&self) -> Result<Vec<ThreadTimes>, NoMemory> {
        self.0.core.coordinator.try_thread_times()
    }
}

impl<M: ObjectModel> ModelMutator<M> {
    /// The heap to which the thread is attached.
    pub fn heap(&self) -> &ModelHeap<M> {
        let handle: *const Arc<Handle<M>> = self.handle();
        // SAFETY: rule *pinned*: the handle lies in the mutator, and `ModelHeap` is a transparent
        // wrapper of it.
        unsafe { &*handle.cast::<ModelHeap<M>>() }
    }
}

impl<M: ObjectModel> Clone for ModelHeap<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: ObjectModel> fmt::Debug for ModelHeap<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelHeap").field(&self.0.core).finish()
    }
}

/// Figures about a heap, as a snapshot that is exact when no thread is allocating.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// The objects that are alive, tracked or not.
    pub live_objects: usize,
    /// The bytes of their cells, including headers and rounding.
    pub live_bytes: usize,
    /// Bytes outside the heap that objects have, which are those that [`Trace::external_bytes`] has
    /// told, and those of [`Mutator::adjust_external_bytes`]. The number may be wrong by 64 KiB for
    /// each thread.
    ///
    /// [`Trace::external_bytes`]: crate::Trace::external_bytes
    /// [`Mutator::adjust_external_bytes`]: crate::Mutator::adjust_external_bytes
    pub external_bytes: usize,
    /// The [`DeferGuard`](crate::DeferGuard)s that are alive. While there are any, the heap starts
    /// no collection.
    pub defer_guards: usize,
    /// Bytes of the pages that hold them, and of pages that are empty and not given back yet. A
    /// page whose objects other threads have freed is given back when its owner next needs cells,
    /// or some full collections later.
    pub in_use_bytes: usize,
    /// Bytes made accessible, including side tables.
    pub committed_bytes: usize,
    /// Bytes of address space for pages. With [`Segments`](crate::model::Segments): those of the
    /// tables.
    pub reserved_bytes: usize,
    /// The mutators of the heap, attached or detached.
    pub mutators: usize,
    /// The collections so far, young and full.
    pub collections: usize,
    /// The young collections among them.
    pub young_collections: usize,
    /// How often new objects became old without a collection, because a young collection would have
    /// found almost no garbage. A promotion traverses no object and calls no callback, as
    /// [`Pacing::young_objects`](crate::Pacing::young_objects) says.
    pub promotions: usize,
    /// Objects that collections, and not reference counting, have destroyed so far.
    pub collected: usize,
    /// Stops so far, including those outside collections, but not those in which checked mode
    /// examines one object.
    pub stops: u64,
    /// The longest time that a stop took until the last thread parked, without the wait for another
    /// stop before.
    pub time_to_stop_max: Duration,
    /// How long the young collections took.
    pub young: CollectionTimes,
    /// How long the full collections took.
    pub full: CollectionTimes,
    /// The threads that ended attached because they leaked their [`Mutator`](crate::Mutator), each
    /// with its name and its number in the operating system. While this list is not empty, every
    /// stop fails, and so does every collection.
    pub leaked_mutators: Vec<String>,
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
