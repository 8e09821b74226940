//! Floor 5: a heap of typed objects.

use std::fmt;
use std::sync::Arc;

use crate::base::error::Fault;
use crate::base::event::{CollectionEvent, Hook, Unraisable};
use crate::base::fallible::{self, NoMemory};
use crate::base::hooks::CallGuards;
use crate::base::stress::StressStats;
use crate::heap::model_heap::{HeapStats, ModelHeap};
use crate::heap::policy::Pacing;
use crate::heap::slow::SlowLock;
use crate::managed::{self, Managed};
use crate::safepoint::SlowStop;

/// A garbage collected heap of typed objects.
///
/// A value, of which there may be many: each has its own threads, stops only these, and knows nothing of
/// others. It is a counted handle, cheap to clone and to send; the heap is torn down when the last handle
/// and the last mutator are gone. Objects to which references remain then stay until these are dropped.
///
/// The thread that drops the last handle attaches for a last collection. This is impossible while the
/// thread is attached to another heap, is in a traversal, or is ending. Then the cycles of the heap are
/// never freed, and the hook of [`on_unraisable`](Self::on_unraisable) receives the number of objects that
/// are left. Drop the last handle on another thread, or inside of [`Mutator::detach`](crate::Mutator::detach).
///
/// ```
/// use standstill::{Gc, GcCell, Heap, Trace};
///
/// #[derive(Trace)]
/// struct Node { label: String, next: GcCell<Option<Gc<Node>>> }
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let a = m.alloc(Node { label: "a".into(), next: GcCell::new(None) });
/// let b = m.alloc(Node { label: "b".into(), next: GcCell::new(Some(a.clone())) });
/// a.next.set(&m, Some(b.clone()));
/// drop((a, b));
/// assert_eq!(m.collect().collected, 2);
/// ```
#[derive(Clone)]
#[repr(transparent)]
pub struct Heap(pub(super) ModelHeap<Managed>);

impl Heap {
    /// What the heap's stress modes have done so far.
    pub fn stress_stats(&self) -> StressStats {
        self.0.stress_stats()
    }

    /// Figures about the heap.
    pub fn stats(&self) -> HeapStats {
        self.0.stats()
    }

    /// When the heap collects by itself.
    pub fn pacing(&self) -> Pacing {
        self.core().pace.policy()
    }

    /// Changes when the heap collects by itself.
    ///
    /// # Panics
    ///
    /// When [`Pacing::full_growth`] is negative or not a number. Nothing has changed then.
    #[track_caller]
    pub fn set_pacing(&self, pacing: Pacing) {
        if let Some(reason) = pacing.refused() {
            panic!("{reason}");
        }
        self.core().pace.set_policy(pacing);
    }

    /// Switches automatic collections off while the guard lives: for building something large of which one
    /// knows that it will stay. Explicit collections are not affected.
    pub fn defer_collections(&self) -> DeferGuard {
        self.core().pace.hold_off();
        DeferGuard { heap: self.clone() }
    }

    /// Registers a callback that is called before and after each collection, on the collecting thread, with the
    /// world running. A panic in it goes to the hook of [`on_unraisable`](Self::on_unraisable).
    pub fn on_collection(&self, f: impl Fn(&CollectionEvent<'_>) + Send + Sync + 'static) {
        self.core().hooks.on_collection(Hook::new(Arc::new(f)));
    }

    /// Sets the hook for failures that no caller can be told of: panics of finalizers, callbacks, clear
    /// handlers, and of destructors that a collection caused; and the reason when one was abandoned.
    /// Without a hook they go to stderr.
    pub fn on_unraisable(&self, f: impl Fn(&Unraisable) + Send + Sync + 'static) {
        self.try_on_unraisable(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// As [`on_unraisable`](Self::on_unraisable), where memory may be refused: nothing has changed then.
    #[doc(hidden)]
    pub fn try_on_unraisable(
        &self,
        f: impl Fn(&Unraisable) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.core().hooks.on_unraisable(Hook::new(fallible::arc(f)?));
        Ok(())
    }

    /// Sets the hook for mistakes in the use of dynamic objects that no caller can be told of. Without a hook they go to
    /// stderr, five of a kind at most.
    pub fn on_misuse(&self, f: impl Fn(&Fault) + Send + Sync + 'static) {
        self.try_on_misuse(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// As [`on_misuse`](Self::on_misuse), where memory may be refused: nothing has changed then.
    #[doc(hidden)]
    pub fn try_on_misuse(
        &self,
        f: impl Fn(&Fault) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.core().hooks.on_misuse(Hook::new(fallible::arc(f)?));
        Ok(())
    }

    /// Sets the hook for stops that take longer than [`HeapBuilder::slow_stop`](crate::HeapBuilder::slow_stop): it is told which
    /// threads have not come to a safepoint. It is called on the thread that wants to stop the world,
    /// and again each time the wait has doubled. It is also told, once, of a thread that has ended
    /// without dropping its [`Mutator`](crate::Mutator): then no stop succeeds any more. And a thread that waits for the end of
    /// another thread's stop tells it which thread that is, once the world has been stopped for so long, and again each time
    /// that has doubled: inside of this call the hook cannot attach, and uses no object. A thread that waits for its turn to collect
    /// tells it which thread collects, if for so long nothing of that collection has come to an end. Without a hook, and without a
    /// `tracing` subscriber that takes the event, a line goes to standard error. [`SlowStop::kind`] says what has happened.
    ///
    /// The hook should wait for nothing that one of those threads may have. A panic in it is caught.
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.try_on_slow_stop(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// As [`on_slow_stop`](Self::on_slow_stop), where memory may be refused: nothing has changed then.
    #[doc(hidden)]
    pub fn try_on_slow_stop(
        &self,
        f: impl Fn(&SlowStop) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.core().slow.on_slow_stop(Hook::new(fallible::arc(f)?));
        Ok(())
    }

    /// Sets the hook for threads that wait for a [`GcCell`](crate::GcCell) longer than
    /// [`HeapBuilder::slow_stop`](crate::HeapBuilder::slow_stop). It is called on the thread that waits, once for each wait, and told
    /// which thread has the cell, and for which cell that thread may wait itself: two cells that two
    /// threads lock in opposite order are a deadlock. Without a hook, and without a `tracing`
    /// subscriber that takes the event, a line goes to standard error.
    ///
    /// The hook should lock no cell: its thread may have locked some. A slow wait of the hook itself
    /// goes to standard error, and does not call the hook again. A panic in it is caught.
    pub fn on_slow_lock(&self, f: impl Fn(&SlowLock) + Send + Sync + 'static) {
        self.core().slow.on_slow_lock(Hook::new(Arc::new(f)));
    }

    /// Says what is done around the handlers of dynamic types, by a runtime with an error indicator: once in a heap's life.
    ///
    /// # Errors
    ///
    /// The guards themselves, when the heap has some already. Those stay.
    pub fn set_call_guards(&self, guards: CallGuards) -> Result<(), CallGuards> {
        self.core().hooks.guards.set(guards)
    }

    /// Whether two handles are of the same heap.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }

    pub(crate) fn core(&self) -> &Arc<managed::ManagedCore> {
        &self.0.0.core
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heap").field(&self.core().name).finish()
    }
}

/// Automatic collections of a heap are off while this lives. Made by [`Heap::defer_collections`].
#[must_use = "automatic collections are on again when the guard is dropped"]
#[derive(Debug)]
pub struct DeferGuard {
    heap: Heap,
}

impl Drop for DeferGuard {
    fn drop(&mut self) {
        self.heap.core().pace.let_go();
    }
}
