//! A heap ends when nobody can use it any more, but the finalizers of its last collection can clone
//! its handle again. This page has the handle `Heap`, that end, and the named roots, with which
//! full collections begin.

#![forbid(unsafe_code)]

use crate::CallGuards;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::base::fallible::{self, NoMemory, words};
use crate::base::outside;
use crate::base::outside::Hook;
use crate::base::stress::StressStats;
use crate::heap::core::{Handle, KnownRoots, UserData};
use crate::heap::model_heap::{HeapStats, ModelHeap};
use crate::heap::mutator::ModelMutator;
use crate::heap::observer::ObserverAndRule;
use crate::heap::pacing::Pacing;
use crate::heap::request::Collect;
use crate::heap::settings::DeferGuard;
use crate::heap::slow::SlowLock;
use crate::managed::{self, Managed};
use crate::object::address::Object;
use crate::object::type_info::TypeInfo;
use crate::report::error::{AttachError, Fault};
use crate::report::facts::{CollectionEvent, CollectionReport, During, Unraisable};
use crate::safepoint::{SlowStop, ThreadTimes};
use crate::{AnyGc, Mutator};

/// A garbage collected heap of typed objects.
///
/// A process may have many heaps, each of which has its own threads and stops only these. `Heap` is
/// a counted handle, cheap to clone and to send to another thread. The heap is torn down when the
/// last handle and the last mutator are dropped. An object that is still referenced then stays
/// alive until its references are dropped. No collection runs any more, so a cycle that a reference
/// holds at that time is never freed.
///
/// The thread that drops the last handle attaches to the heap for a last collection. It cannot
/// attach if it is attached to another heap, inside a traversal, or ending, or if it keeps another
/// thread suspended. Then the heap's cycles are never freed, and the hook of
/// [`on_unraisable`](Self::on_unraisable) receives the number of remaining objects. To prevent
/// this, drop the last handle on another thread, or inside
/// [`Mutator::detach`](crate::Mutator::detach).
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
    /// Counters of the heap's stress modes.
    pub fn stress_stats(&self) -> StressStats {
        self.0.stress_stats()
    }

    /// Statistics of the heap.
    ///
    /// # Panics
    ///
    /// On a thread that holds a [`Fork`](crate::Fork) or [`DetachedFork`](crate::DetachedFork) of
    /// this heap.
    pub fn stats(&self) -> HeapStats {
        self.0.stats()
    }

    /// Like [`stats`](Self::stats), but returns an error when memory is refused.
    #[doc(hidden)]
    pub fn try_stats(&self) -> Result<HeapStats, NoMemory> {
        self.0.try_stats()
    }

    /// The reports of the last collections, up to 256, the newest last.
    pub fn recent_collections(&self) -> Vec<CollectionReport> {
        self.0.recent_collections()
    }

    /// The threads with a mutator, and how long stops have waited for each.
    ///
    /// # Panics
    ///
    /// On a thread that holds a fork.
    pub fn threads(&self) -> Vec<ThreadTimes> {
        self.0.threads()
    }

    /// Like [`threads`](Self::threads), but returns an error when memory is refused.
    #[doc(hidden)]
    pub fn try_threads(&self) -> Result<Vec<ThreadTimes>, NoMemory> {
        self.0.try_threads()
    }

    /// When the heap starts automatic collections.
    pub fn pacing(&self) -> Pacing {
        self.0.pacing()
    }

    /// Changes when the heap starts automatic collections.
    ///
    /// # Panics
    ///
    /// If [`Pacing::full_growth`] is negative or not a number. The setting is unchanged then.
    #[track_caller]
    pub fn set_pacing(&self, pacing: Pacing) {
        self.0.set_pacing(pacing);
    }

    /// Disables automatic collections while the guard is alive, although explicit collections still
    /// work. This helps, for example, a program that builds a large structure of which nothing
    /// becomes garbage.
    ///
    /// Garbage cycles stay for as long as a guard is alive, so a guard that is leaked, or that only
    /// garbage refers to, disables automatic collections for ever. The heap reports it once, as an
    /// event and otherwise on standard error. It does so when 400 times as many objects or bytes
    /// are new as make a young collection due. That is at least 400 times [`Pacing::young_objects`]
    /// or [`Pacing::young_bytes`], because the heap may have raised these numbers. Collections that
    /// the program requests begin the count anew. [`HeapStats::defer_guards`](crate::HeapStats) has
    /// the number of guards.
    pub fn defer_collections(&self) -> DeferGuard {
        self.0.defer_collections()
    }

    /// Registers a callback for the start and the end of each collection. The collecting thread
    /// calls it while the world runs. If the heap started the collection, another thread may call
    /// it at the end. The child of a fork that abandons a collection gets no call for its end. If
    /// the callback panics, the hook of [`on_unraisable`](Self::on_unraisable) receives the panic.
    pub fn on_collection(&self, f: impl Fn(&CollectionEvent<'_>) + Send + Sync + 'static) {
        self.0.on_collection(f);
    }

    /// Sets the hook for failures that no caller can receive. These are panics of finalizers,
    /// callbacks, clear handlers, and destructors that a collection has called, and the reason why
    /// a collection was abandoned. Without a hook the failures are written to standard error.
    pub fn on_unraisable(&self, f: impl Fn(&Unraisable) + Send + Sync + 'static) {
        self.try_on_unraisable(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`on_unraisable`](Self::on_unraisable), but returns an error if memory is refused.
    /// Nothing has changed then.
    #[doc(hidden)]
    pub fn try_on_unraisable(
        &self,
        f: impl Fn(&Unraisable) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.0.try_on_unraisable(f)
    }

    /// Sets the hook for wrong uses of dynamic objects that no caller can receive. Without a hook
    /// they are written to standard error, at most five of each kind.
    pub fn on_misuse(&self, f: impl Fn(&Fault) + Send + Sync + 'static) {
        self.try_on_misuse(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`on_misuse`](Self::on_misuse), but returns an error if memory is refused. Nothing has
    /// changed then.
    #[doc(hidden)]
    pub fn try_on_misuse(
        &self,
        f: impl Fn(&Fault) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.core().hooks.on_misuse(Hook::new(fallible::arc(f)?));
        Ok(())
    }

    /// Sets the hook for waits that last longer than
    /// [`HeapBuilder::slow_stop`](crate::HeapBuilder::slow_stop). [`SlowStop::kind`] distinguishes
    /// the cases:
    ///
    /// * A stop waits for threads that have not reached a safepoint. The thread that requests the
    ///   stop calls the hook with these threads.
    /// * A thread has ended without dropping its [`Mutator`](crate::Mutator), so every later stop
    ///   fails, which is reported once.
    /// * A thread waits for the end of another thread's stop. The waiting thread calls the hook
    ///   with the thread that stopped the world.
    /// * A thread waits to collect while another thread collects, and no step of that collection
    ///   has ended for this time. The waiting thread calls the hook with the collecting thread.
    /// * A collection, or the reclaiming of its garbage, has held up its thread. This thread calls
    ///   the hook afterwards, once, with the [longest call](SlowStop::longest) of the program's
    ///   code. The waits for stops do not count.
    /// * A thread waits to attach, because another thread has suspended it. The suspended thread
    ///   calls the hook, or a thread that waits to suspend it, too.
    ///
    /// The threads of the third, fourth and last case call the hook as if inside a traversal: they
    /// cannot attach, and must not use objects.
    ///
    /// The report of a wait is repeated each time the wait has doubled. Without a hook, and without
    /// a `tracing` subscriber that accepts the event, a report is one line on standard error.
    ///
    /// The hook should not wait for a resource that a reported thread may hold. A panic of the hook
    /// is caught.
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.try_on_slow_stop(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`on_slow_stop`](Self::on_slow_stop), but returns an error if memory is refused.
    /// Nothing has changed then.
    #[doc(hidden)]
    pub fn try_on_slow_stop(
        &self,
        f: impl Fn(&SlowStop) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.0.try_on_slow_stop(f)
    }

    /// Sets the hook for threads that wait longer than
    /// [`HeapBuilder::slow_stop`](crate::HeapBuilder::slow_stop) for a [`GcCell`](crate::GcCell).
    /// The waiting thread calls it, once for each wait. The report names the thread that has locked
    /// the cell, and the cell for which that thread itself waits, if any. Two threads that lock two
    /// cells in opposite order are reported as a deadlock. Without a hook, and without a `tracing`
    /// subscriber that accepts the event, one line is written to standard error.
    ///
    /// The hook should not lock a cell, because its thread may have locked some. A slow wait inside
    /// the hook is written to standard error, and does not call the hook again. A panic of the hook
    /// is caught.
    pub fn on_slow_lock(&self, f: impl Fn(&SlowLock) + Send + Sync + 'static) {
        self.core().slow.on_slow_lock(Hook::new(Arc::new(f)));
    }

    /// Sets the functions that run before and after each handler of a dynamic type, for a runtime
    /// with an error indicator. They can be set once in a heap's life.
    ///
    /// # Errors
    ///
    /// The given guards, if the heap already has guards. The existing guards stay.
    pub fn set_call_guards(&self, guards: CallGuards) -> Result<(), CallGuards> {
        self.core().hooks.set_guards(guards)
    }

    /// Names a long-lived object from which much of the heap is reachable, such as a module table
    /// or an interpreter's root frame.
    ///
    /// This is a hint that makes full collections faster, because objects reachable from named
    /// objects are marked first, and traversed once instead of twice. The hint does not change
    /// which objects are collected. The returned value holds a reference to the object, and the
    /// hint is valid as long as that value is alive.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap.
    #[track_caller]
    pub fn known_root(&self, root: impl Into<AnyGc>) -> KnownRoot {
        let root = root.into();
        let object = Object::new(root.header().cast());
        assert!(
            self.core().space.contains(object.address()),
            "`Heap::known_root` was given an object of another heap; call it on the object's own heap"
        );
        let names = Arc::clone(&self.core().roots);
        KnownRoot { key: names.add(object), names, _root: root }
    }

    /// Whether both handles refer to the same heap.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
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

/// An object from which full collections start. Made by [`Heap::known_root`]. The drop withdraws
/// the hint and drops the reference.
#[must_use = "the hint is withdrawn when this is dropped"]
pub struct KnownRoot {
    key: u64,
    names: Arc<KnownRoots>,
    /// Dropped after the name is removed, as [`KnownRoots`] says.
    _root: AnyGc,
}

impl Drop for KnownRoot {
    fn drop(&mut self) {
        self.names.remove(self.key);
    }
}

impl fmt::Debug for KnownRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownRoot").field(&self._root).finish()
    }
}

/// Runs the last collection and closes the heap, after the last handle and the last mutator are
/// dropped.
///
/// If the heap has data of the user, its finalizers find them in one more collection before. Then
/// the data are dropped, and the last collection finds the cycles that only they held.
pub(super) fn teardown(core: &Arc<managed::ManagedCore>, user: Option<UserData>) {
    let Some(user) = user else { return close(core) };
    let user = OnceLock::from(user);
    let last = |core: &Arc<_>, user| then(user, || close(core));
    let Ok(handle) = fallible::arc(Handle { core: Arc::clone(core), user, last }) else { return };
    #[expect(clippy::let_underscore_must_use, reason = "`close` has the same error and reports it")]
    let _ =
        ModelMutator::attach_scoped(&handle, |m| drop(m.try_collect(Collect::full().quietly())));
}

/// Drops the data of the user, and then calls `next`, also if a destructor panics.
fn then(user: Option<UserData>, next: impl FnOnce()) {
    let dropped = outside::guarded(|| drop(user));
    next();
    if let Err(payload) = dropped {
        std::panic::resume_unwind(payload);
    }
}

/// Runs the last collection and closes the heap.
fn close(core: &Arc<managed::ManagedCore>) {
    // A finalizer can clone this handle through its mutator. If a clone outlives the collection,
    // the heap stays open, and the drop of the last clone closes it.
    let last = |core: &Arc<_>, user| then(user, || managed::close(core));
    let handle = fallible::arc(Handle { core: Arc::clone(core), user: Default::default(), last });
    let cycles_are_left = |why: &'static str| core.hooks.unraisable(During::Shutdown, "", why);
    let no_memory = "no memory for the last collection: cycles are left";
    let Ok(handle) = handle else {
        cycles_are_left(no_memory);
        return managed::close(core);
    };
    let collected = ModelMutator::attach_scoped(&handle, |m| {
        let m = Mutator::from_raw_mut(m);
        match crate::EXTENSIONS.last_collection {
            Some(collect) => collect(m),
            // It fails if a thread ended without dropping its mutator, because then no stop
            // succeeds.
            None => drop(m.try_collect(Collect::full().quietly())),
        }
    });
    let why = match collected {
        Ok(()) => return,
        Err(AttachError::Memory) => return cycles_are_left(no_memory),
        Err(AttachError::NoThreadIds) => {
            return cycles_are_left(
                "no thread ids are left for the last collection: cycles are left",
            );
        }
        Err(AttachError::Traversing) => "is in a traversal",
        Err(AttachError::Suspending) => "keeps another thread suspended",
        Err(AttachError::ThreadEnding) => "is ending",
        // Inside a detach, the thread could attach to this heap.
        Err(AttachError::AlreadyAttached | AttachError::InsideDetach) => {
            "is attached to another heap"
        }
    };
    // The drop closes the heap and destroys the objects that only deferred drops kept alive, so the
    // remaining objects are counted afterwards.
    let closed = outside::guarded(|| drop(handle));
    let left = core.live_tracked();
    if left != 0 {
        let text = words!(
            "heap '{}' ended without a last collection, because the thread that dropped its last handle {why}; {left} \
             objects are left, and cycles of them are never freed",
            core.name
        );
        core.hooks.unraisable(During::Shutdown, "", text);
    }
    if let Err(payload) = closed {
        std::panic::resume_unwind(payload);
    }
}

/// The functions that a heap of typed objects calls in modules above this folder.
///
/// The modules above import from this folder, but this folder does not import from them. So
/// `lib.rs` joins the two: its constant `EXTENSIONS` names their functions.
pub(crate) struct Extensions {
    /// Types that are made at run time. `None` without the feature `cpython`, and in the models of
    /// loom.
    pub(crate) dynamic: Option<DynamicTypes>,
    /// The last collection of a heap, to which no handle and no other mutator refers. `None`: the
    /// last collection is a full one that calls no callbacks of the `gc` module.
    pub(crate) last_collection: Option<fn(&mut Mutator)>,
    /// Makes the observer of a new heap, which is also its pacing rule.
    pub(crate) observer: Option<NewObserver>,
}

/// Makes the observer of a new heap, and returns it twice: as the observer and as a pacing rule.
pub(crate) type NewObserver = fn() -> Result<ObserverAndRule, NoMemory>;

/// How a heap handles objects of types made at run time.
pub(crate) struct DynamicTypes {
    /// The table of these objects, which is the first that each heap registers, so that it has one
    /// index.
    pub(crate) info: &'static TypeInfo,
    /// The index of `info` in each heap.
    pub(crate) index: u32,
    /// Makes the builtin types, once in a process.
    pub(crate) make_builtins: fn() -> Result<(), Fault>,
    /// The name of a dynamic object's type.
    pub(crate) type_name: for<'a> fn(&'a AnyGc, &'a Mutator) -> &'a str,
    /// Whether a dynamic object takes part in cycle collection.
    pub(crate) takes_part: fn(&AnyGc, &Mutator) -> bool,
}
