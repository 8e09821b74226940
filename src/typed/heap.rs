//! Floor 5: heaps, and the typed face of mutators.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::environment::Environment;
use crate::base::error::{AllocError, AttachError, BuildError, Fault};
use crate::base::event::{
    self, CallGuards, CollectionEvent, CollectionReport, During, Hook, Unraisable,
};
use crate::base::fallible::words;
use crate::base::fallible::{self, NoMemory};
use crate::base::stress::{Step, Stress, StressStats, maybe_yield};
use crate::base::sync::{Aside, Ordering};
use crate::collect::{self, Collect, CollectError, clear};
use crate::heap::helpers;
use crate::heap::known_roots::KnownRoots;
use crate::heap::model::{ModelMutator, ObjectModel};
use crate::heap::mutator::{Core, CoreConfig, Handle};
use crate::heap::pacing::{Due, Pacing};
use crate::heap::reclaim_queue::{PIECE, Whose};
use crate::heap::slow::SlowLock;
use crate::managed::{self, Managed, Raw};
use crate::memory::space::{Space, SpaceConfig};
use crate::object::type_info::Object;
use crate::safepoint::{ForkGuard, SlowStop, StopError, lock};
use crate::typed::gc::{self, Gc, WeakCallback, WeakRef};
use crate::typed::slice::GcSlice;
use crate::{AnyGc, Trace};

/// Objects below which one thread collects alone, where nobody says how many.
const SERIAL_BELOW: usize = 50_000;
/// Threads that work on a collection, at most. Each has a table of counts and a list in memory; with more of them these would
/// take longer than the work that they share.
const MOST_WORKERS: usize = 1024;

/// How to build a heap. Made by [`Heap::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct HeapBuilder {
    reserve: Option<usize>,
    limit: Option<usize>,
    workers: Option<usize>,
    serial_below: Option<usize>,
    pacing: Pacing,
    stress: Stress,
    slow_stop: Duration,
    checked: bool,
    slow_handler: Duration,
    name: Result<Cow<'static, str>, NoMemory>,
}

impl Default for HeapBuilder {
    fn default() -> Self {
        Self {
            reserve: None,
            limit: None,
            workers: None,
            serial_below: None,
            pacing: Pacing::default(),
            stress: Stress::none(),
            slow_stop: Duration::from_secs(1),
            checked: Environment::get().checked.unwrap_or(cfg!(debug_assertions)),
            slow_handler: Duration::ZERO,
            name: Ok(Cow::Borrowed("heap")),
        }
    }
}

impl HeapBuilder {
    /// Bytes of address space to reserve: the most the heap can ever hold. It costs nothing until used.
    /// Default: four times the machine's memory, 64 GiB at most, and no more than a sixteenth of the process's address space divided by the
    /// number of its heaps; half of what the system would give, if it refuses that. No heap holds more than 128 GiB: what is
    /// asked for beyond that is not reserved.
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.reserve = Some(bytes);
        self
    }

    /// Bytes that objects may occupy at a time, in whole pages of 64 KiB. Beyond it allocation fails with
    /// an [`AllocError`]. Default: what is reserved.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Threads that work on a collection, the collecting one included: 1,024 at most; [`build`](Self::build) refuses
    /// other numbers. Default: the machine's parallelism.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Objects below which a collection wakes nobody to help, since that costs more. Threads that are parked for it anyway
    /// help from 2,000 on. What is counted are the places for objects on the pages that are looked at. Default: 50,000.
    pub fn serial_below(mut self, objects: usize) -> Self {
        self.serial_below = Some(objects);
        self
    }

    /// When the heap collects by itself.
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.pacing = pacing;
        self
    }

    /// Stress modes, for tests: see [`Stress`]. Very slow. `true` stands for a full collection at every safepoint, verified,
    /// with small constants.
    ///
    /// The environment variable `STANDSTILL_STRESS` adds modes to those given here, for programs that cannot be changed. It is read
    /// once in a process, and not in one with more rights than its caller has. With a word in it that is none it adds nothing, and
    /// one line on standard error says so.
    pub fn stress(mut self, stress: impl Into<Stress>) -> Self {
        self.stress = stress.into();
        self
    }

    /// How long a wait may take before it is reported. [`Heap::on_slow_stop`] receives the threads that a
    /// stop waits for, the thread that keeps the world stopped, and the thread that collects while
    /// another thread waits for its turn. [`Heap::on_slow_lock`] receives the wait for a
    /// [`GcCell`](crate::GcCell). Default: one second. A shorter time than a millisecond,
    /// zero too, is taken for a millisecond.
    pub fn slow_stop(mut self, after: Duration) -> Self {
        self.slow_stop = after;
        self
    }

    /// Checked mode, for dynamic objects: their addresses are looked up, what handlers visit is verified, and freed
    /// memory is poisoned and kept for a while. Default: on in builds with debug assertions; the environment variable
    /// `STANDSTILL_CHECKED` (`0` or `1`) decides over that. It is read as `STANDSTILL_STRESS` is: see [`stress`](Self::stress).
    pub fn checked(mut self, checked: bool) -> Self {
        self.checked = checked;
        self
    }

    /// How long one call of a dynamic type's traverse handler may take before it is reported to
    /// [`Heap::on_misuse`], with its type: a handler that waits for something waits for a thread that is stopped. It is told when
    /// the world runs again. Off by default, which is what zero means.
    pub fn slow_handler(mut self, after: Duration) -> Self {
        self.slow_handler = after;
        self
    }

    /// A name for reports.
    pub fn name(mut self, name: &str) -> Self {
        self.name = fallible::owned(name).map(Cow::Owned);
        self
    }

    /// Builds a heap of typed objects.
    ///
    /// # Errors
    ///
    /// When the system refuses the address space, or a setting makes no sense.
    pub fn build(self) -> Result<Heap, BuildError> {
        let model = Managed::new();
        model.set_checked(self.checked);
        model.set_slow_handler(self.slow_handler.as_nanos().try_into().unwrap_or(u64::MAX));
        // The first type: rule D of `dynamic`.
        #[cfg(not(all(test, loom)))]
        {
            let index = model.types.index_of(&crate::dynamic::INFO)?;
            assert_eq!(index, crate::dynamic::TYPE_INDEX);
            crate::dynamic::make_builtins().map_err(|_| BuildError::Memory)?;
        }
        ModelHeap::build(self, model, |core| {
            teardown(core);
        })
        .map(Heap)
    }

    /// Builds a heap of objects of another [`ObjectModel`].
    ///
    /// # Errors
    ///
    /// Like [`build`](Self::build).
    pub fn build_with<M: ObjectModel>(self, model: M) -> Result<ModelHeap<M>, BuildError> {
        ModelHeap::build(self, model, |_| {})
    }
}

/// A heap of objects of model `M`: a counted handle. See [`model`](crate::heap::model).
#[repr(transparent)]
pub struct ModelHeap<M: ObjectModel>(pub(crate) Arc<Handle<M>>);

impl<M: ObjectModel> ModelHeap<M> {
    fn build(builder: HeapBuilder, model: M, last: fn(&Arc<Core<M>>)) -> Result<Self, BuildError> {
        let workers = match builder.workers {
            Some(0) => {
                return Err(BuildError::Setting(
                    "`workers` is 0; at least one thread collects".into(),
                ));
            }
            Some(workers) if workers > MOST_WORKERS => {
                return Err(BuildError::Setting(words!(
                    "`workers` is {workers}; at most {MOST_WORKERS} threads collect"
                )));
            }
            Some(workers) => workers,
            None => std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS),
        };
        for (name, value) in [("reserve", builder.reserve), ("limit", builder.limit)] {
            if value.is_some_and(|bytes| bytes < crate::memory::space::PAGE_SIZE) {
                return Err(BuildError::Setting(words!(
                    "`{name}` is less than a page of {} bytes",
                    crate::memory::space::PAGE_SIZE
                )));
            }
        }
        if let Some(reason) = builder.pacing.refused() {
            return Err(BuildError::Setting(reason.into()));
        }
        let stress = builder.stress.and(Environment::get().stress);
        let space = Space::reserve(SpaceConfig { reserve: builder.reserve, limit: builder.limit })
            .map_err(|e| BuildError::Reserve { tried: e.asked, reason: words!("{e}") })?;
        let core = Core::new(
            space,
            model,
            CoreConfig {
                name: builder.name?,
                stress,
                serial_below: builder.serial_below.unwrap_or(stress.shrink(SERIAL_BELOW)),
                workers,
                slow_stop: builder.slow_stop,
                pacing: builder.pacing,
            },
        )?;
        fallible::room_for_arc::<Handle<M>>()?;
        Ok(Self(Arc::new(Handle { core, last })))
    }

    /// Makes the calling thread a mutator.
    ///
    /// # Panics
    ///
    /// Where [`try_attach`](Self::try_attach) gives an error.
    pub fn attach(&self) -> ModelMutator<M> {
        self.try_attach().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Makes the calling thread a mutator.
    ///
    /// # Errors
    ///
    /// When the thread is attached already, to whatever heap, when it is inside a traversal, or in a
    /// closure of a detach.
    pub fn try_attach(&self) -> Result<ModelMutator<M>, AttachError> {
        ModelMutator::attach(&self.0)
    }

    /// The heap's model.
    pub fn model(&self) -> &M {
        &self.0.core.model
    }

    /// Names a root that full collections start from, and returns the key for [`forget_root`](Self::forget_root). A
    /// hint: what is collected is the same without it.
    ///
    /// # Safety
    ///
    /// `object` is one of this heap's. The caller holds a reference to it until it is forgotten.
    pub unsafe fn known_root(&self, object: Object) -> u64 {
        self.0.core.roots.add(object)
    }

    /// Takes back what [`known_root`](Self::known_root) said.
    pub fn forget_root(&self, key: u64) {
        self.0.core.roots.remove(key);
    }

    /// As [`Heap::on_slow_stop`].
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.0.core.slow.on_slow_stop(Hook::new(Arc::new(f)));
    }

    /// What the heap's stress modes have done so far.
    pub fn stress_stats(&self) -> StressStats {
        let core = &self.0.core;
        let mut stats =
            core.under.as_ref().map_or_else(StressStats::default, |strain| strain.stats());
        if let Some(freed) = core.space.freed() {
            freed.tell(&mut stats);
        }
        stats
    }

    /// Figures about the heap. See [`HeapStats`].
    pub fn stats(&self) -> HeapStats {
        let core = &self.0.core;
        // First: it refuses a thread that holds a fork, which would wait for itself below.
        let coordinator = core.coordinator.stats();
        let (live_objects, live_bytes) = core.live();
        HeapStats {
            live_objects,
            live_bytes,
            in_use_bytes: core.space.in_use_bytes(),
            committed_bytes: core.space.committed_bytes(),
            reserved_bytes: core.space.reserved_bytes(),
            mutators: coordinator.threads,
            // Relaxed: figures.
            collections: core.totals.collections.load(Ordering::Relaxed),
            young_collections: core.totals.young.load(Ordering::Relaxed),
            promotions: core.totals.promotions.load(Ordering::Relaxed),
            collected: core.totals.collected.load(Ordering::Relaxed),
            stops: coordinator.stops,
            time_to_stop_max: coordinator.max_time_to_stop,
            leaked_mutators: core.coordinator.leaked().iter().map(ToString::to_string).collect(),
        }
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

impl<M: ObjectModel> ModelMutator<M> {
    /// Lets the heap stop or collect here, if it wants to. One relaxed load if it does not.
    ///
    /// It takes `&mut self`, so nothing borrowed from an object is held across it.
    #[inline(always)]
    pub fn safepoint(&mut self) {
        if self.poll() != 0 {
            self.safepoint_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn safepoint_slow(&mut self) {
        if self.is_lent() || crate::safepoint::is_traversing() {
            return;
        }
        self.answer();
        maybe_yield(&self.core().under, Step::Safepoint);
        self.park();
        // What was asked for while this thread was parked may not have been asked of it.
        self.model().attached(self);
        if self.take_collect() {
            let stressed = self.core().under.as_ref().is_some_and(|strain| strain.collects_now());
            if self.core().turn.is_burying() {
                self.bury_a_piece();
            }
            // A stop that fails is told to those who ask for a collection; here nobody did.
            let result = match self.core().pace.due() {
                _ if stressed => Some(collect::by_itself(self, Collect::full())),
                Due::Nothing => None,
                // Where room is short, all garbage that there is counts.
                Due::Promotion if !self.core().space.is_tight() => Some(collect::promote(self)),
                Due::Promotion | Due::Young => Some(collect::by_itself(self, Collect::young())),
                Due::Full => Some(collect::by_itself(self, Collect::full())),
            };
            if let Some(result) = result {
                // The last one is not over. Far ahead of it, this thread helps with what has been found, whosever it is, or lets
                // those who work on it keep up.
                if matches!(result, Err(CollectError::Busy))
                    && self.core().pace.is_overdue()
                    && !clear::bury(self, Whose::Anybodys, clear::MANY)
                {
                    self.keep_pace();
                }
            }
            if self.core().stress.collects() {
                self.raise(crate::heap::mutator::COLLECT);
            }
        }
    }

    /// Works on what a collection of the heap's own has left to bury. A piece at a time, so that no pause is long, and half of
    /// the time at most, so that the program comes on between the pieces; but at each safepoint once the next collection is late:
    /// it waits for this, and has the more to look at the later it comes.
    fn bury_a_piece(&mut self) {
        if self.core().space.is_tight() {
            // Allocation fails soon, and what it needs may be what is to be buried: all of it, whosever it is.
            clear::bury(self, Whose::Anybodys, usize::MAX);
            return;
        }
        let begun = Instant::now();
        // Models know no time, so what they do must not depend on it, the look at the pace included.
        let is_time = cfg!(all(test, any(loom, shuttle)))
            || begun >= self.rest_until()
            || self.core().pace.is_late();
        if is_time {
            let me = self.thread_id();
            // As much at first as the collecting thread does: then most collections are over at once.
            let few = if self.core().turn.is_untouched(me) { clear::MANY } else { PIECE };
            if !clear::bury(self, Whose::Of(me), few) {
                return;
            }
            self.rest(Instant::now() + begun.elapsed());
        }
        // More of it may be there.
        self.raise(crate::heap::mutator::COLLECT);
    }

    /// Collects.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped, or another thread is collecting and `what` says not to wait.
    pub fn try_collect(&mut self, what: Collect) -> Result<CollectionReport, CollectError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint.into());
        }
        collect::collect(self, what)
    }
}

/// Figures about a heap: a snapshot, exact when no thread is allocating.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Objects alive, tracked or not.
    pub live_objects: usize,
    /// Bytes of their cells, headers and rounding included.
    pub live_bytes: usize,
    /// Bytes of the pages that hold them.
    pub in_use_bytes: usize,
    /// Bytes made accessible, side tables included.
    pub committed_bytes: usize,
    /// Bytes of address space for pages.
    pub reserved_bytes: usize,
    /// Mutators, attached or detached.
    pub mutators: usize,
    /// Collections so far.
    pub collections: usize,
    /// How many of them were young ones.
    pub young_collections: usize,
    /// How often what was new was taken for old, where a young collection would have found next to nothing. No collections: nothing was
    /// looked at, and nobody called back. See [`Pacing::young_objects`].
    pub promotions: usize,
    /// Objects that collections destroyed so far. Objects that died by count are not among them.
    pub collected: usize,
    /// Stops so far, for collections and otherwise.
    pub stops: u64,
    /// The longest time from a stop's request to the last thread's parking.
    pub time_to_stop_max: Duration,
    /// The threads that have ended attached, since they leaked their [`Mutator`]: each with its name,
    /// and its number at the operating system. While there is one, no stop succeeds, and so no
    /// collection.
    pub leaked_mutators: Vec<String>,
}

/// A garbage collected heap of typed objects.
///
/// A value, of which there may be many: each has its own threads, stops only these, and knows nothing of
/// others. It is a counted handle, cheap to clone and to send; the heap is torn down when the last handle
/// and the last mutator are gone. Objects to which references remain then stay until these are dropped.
///
/// The thread that drops the last handle attaches for a last collection. This is impossible while the
/// thread is attached to another heap, is in a traversal, or is ending. Then the cycles of the heap are
/// never freed, and the hook of [`on_unraisable`](Self::on_unraisable) receives the number of objects that
/// are left. Drop the last handle on another thread, or inside of [`Mutator::detach`].
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
/// a.get(&m).next.set(&m, Some(b.clone()));
/// drop((a, b));
/// assert_eq!(m.collect().collected, 2);
/// ```
#[derive(Clone)]
#[repr(transparent)]
pub struct Heap(ModelHeap<Managed>);

impl Heap {
    /// A heap with the default settings.
    ///
    /// # Panics
    ///
    /// When the system refuses the address space; see [`HeapBuilder::build`].
    #[expect(
        clippy::new_without_default,
        reason = "a heap reserves address space: to make one is a decision"
    )]
    pub fn new() -> Self {
        Self::builder().build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// A heap with other settings.
    pub fn builder() -> HeapBuilder {
        HeapBuilder::default()
    }

    /// Makes the calling thread a mutator of this heap.
    ///
    /// # Panics
    ///
    /// Where [`try_attach`](Self::try_attach) gives an error.
    pub fn attach(&self) -> Mutator {
        self.try_attach().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Makes the calling thread a mutator of this heap. Waits while the heap's world is stopped.
    ///
    /// # Errors
    ///
    /// When the thread is attached already, to whatever heap; inside a traversal; and in the closure of
    /// [`Mutator::detach`], where only [`attach_scoped`](Self::attach_scoped) is allowed.
    pub fn try_attach(&self) -> Result<Mutator, AttachError> {
        self.0.try_attach().map(Mutator)
    }

    /// Attaches for the length of a closure. Also allowed inside [`Mutator::detach`], to enter a second heap.
    ///
    /// # Panics
    ///
    /// When the thread is attached, or inside a traversal.
    pub fn attach_scoped<R>(&self, f: impl FnOnce(&mut Mutator) -> R) -> R {
        ModelMutator::attach_scoped(&self.0.0, |raw| f(Mutator::from_raw_mut(raw)))
            .unwrap_or_else(|error| panic!("{error}"))
    }

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

    /// Names an object from which much of the heap is reached, and which will live long: a module table, an
    /// interpreter's root frame.
    ///
    /// A hint, which makes full collections faster: whatever the named objects lead to is marked first, and looked at
    /// once instead of twice. What is collected is the same with and without. The object is held, and the
    /// name is valid, as long as the returned value lives.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap.
    pub fn known_root(&self, root: impl Into<AnyGc>) -> KnownRoot {
        let root = root.into();
        let object = Object::new(root.header().cast());
        assert!(
            self.core().space.contains(object.address()),
            "`Heap::known_root` was given an object of another heap; name it to its own heap"
        );
        let names = Arc::clone(&self.core().roots);
        KnownRoot { key: names.add(object), names, _root: root }
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
        self.try_on_unraisable(f).unwrap_or_else(NoMemory::end_process);
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
        self.try_on_misuse(f).unwrap_or_else(NoMemory::end_process);
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

    /// Sets the hook for stops that take longer than [`HeapBuilder::slow_stop`]: it is told which
    /// threads have not come to a safepoint. It is called on the thread that wants to stop the world,
    /// and again each time the wait has doubled. It is also told, once, of a thread that has ended
    /// without dropping its [`Mutator`]: then no stop succeeds any more. And a thread that waits for the end of
    /// another thread's stop tells it which thread that is, once the world has been stopped for so long, and again each time
    /// that has doubled: inside of this call the hook cannot attach, and uses no object. A thread that waits for its turn to collect
    /// tells it which thread collects, if for so long nothing of that collection has come to an end. Without a hook, and without a
    /// `tracing` subscriber that takes the event, a line goes to standard error. [`SlowStop::kind`] says what has happened.
    ///
    /// The hook should wait for nothing that one of those threads may have. A panic in it is caught.
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.try_on_slow_stop(f).unwrap_or_else(NoMemory::end_process);
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
    /// [`HeapBuilder::slow_stop`]. It is called on the thread that waits, once for each wait, and told
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

    pub(crate) fn core(&self) -> &Arc<managed::Core> {
        &self.0.0.core
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heap").field(&self.core().name).finish()
    }
}

/// The last handle and the last mutator are gone: collects once more, and closes the heap.
fn teardown(core: &Arc<managed::Core>) {
    // Finalizers get a mutator, which can make handles: this one counts them. If any outlives the
    // collection the heap stays open, and its last handle closes it.
    let handle = fallible::arc(Handle { core: Arc::clone(core), last: managed::close });
    let cycles_are_left = |why: &'static str| core.hooks.unraisable(During::Shutdown, "", why);
    let no_memory = "no memory for the last collection: cycles are left";
    let Ok(handle) = handle else {
        cycles_are_left(no_memory);
        return managed::close(core);
    };
    let collected = ModelMutator::attach_scoped(&handle, |m| {
        crate::gc_module::at_the_end(Mutator::from_raw_mut(m));
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
        // Inside of a detach it can attach for a while.
        Err(AttachError::AlreadyAttached | AttachError::InsideDetach) => {
            "is attached to another heap"
        }
    };
    // This closes the heap, and destroys what only deferred drops have kept. Then what is left is counted.
    let closed = event::guarded(|| drop(handle));
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

/// An object that full collections start from. Made by [`Heap::known_root`]; to drop it withdraws the hint, and the
/// reference.
#[must_use = "the hint is withdrawn when this is dropped"]
pub struct KnownRoot {
    key: u64,
    names: Arc<KnownRoots>,
    /// Dropped after the name is gone: rule R of `roots`.
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

/// A thread that is attached to a heap: the proof of it, and what it can do.
///
/// It belongs to its thread (neither `Send` nor `Sync`), and there is at most one per thread. Whatever is
/// borrowed from an object borrows the mutator, and [`safepoint`](Self::safepoint),
/// [`detach`](Self::detach) and [`collect`](Self::collect) take `&mut self`: so the compiler proves
/// that nobody parks in the middle of a change to an object, or keeps a reference over a stop.
///
/// Call [`safepoint`](Self::safepoint) regularly (in loops, between bytecodes): stops wait for it. Blocking
/// belongs into [`detach`](Self::detach). Dropping the mutator detaches the thread for good; one that is
/// leaked makes stops of its heap fail once its thread has ended.
#[repr(transparent)]
pub struct Mutator(Raw);

impl Mutator {
    #[inline(always)]
    pub(crate) fn raw(&self) -> &Raw {
        &self.0
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.0.id()
    }

    pub(crate) fn raw_mut(&mut self) -> &mut Raw {
        &mut self.0
    }

    pub(crate) fn from_raw_mut(raw: &mut Raw) -> &mut Self {
        // SAFETY: rule Y: a transparent wrapper.
        unsafe { &mut *std::ptr::from_mut(raw).cast::<Self>() }
    }

    /// Calls `f` with the calling thread's mutator, if it has one: for code that is not handed one, as a
    /// destructor. It can touch objects; it can reach no safepoint under somebody's borrow.
    ///
    /// `None` on a thread that is not attached (to a heap of typed objects), inside a traversal, and while
    /// the thread holds a stop.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        Raw::with_current(|raw| {
            // SAFETY: rule Y: a transparent wrapper.
            f(unsafe { &*std::ptr::from_ref(raw).cast::<Self>() })
        })
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        let handle: *const Arc<Handle<Managed>> = self.0.handle();
        // SAFETY: rule Y: `Heap` is a transparent wrapper of `ModelHeap`, and that of the handle.
        unsafe { &*handle.cast::<Heap>() }
    }

    /// Allocates an object. Its type is tracked at birth if [`Trace::TRACKED`] says so.
    ///
    /// `T` is `Send + Sync`, since any thread may look at the object, and any may destroy it.
    ///
    /// # Panics
    ///
    /// When the heap is full; see [`try_alloc`](Self::try_alloc) and [`alloc_or_collect`](Self::alloc_or_collect).
    #[inline]
    pub fn alloc<T: Trace + Send + Sync>(&self, value: T) -> Gc<T> {
        match gc::allocate(&self.0, value) {
            Ok(gc) => gc,
            Err(error) => out_of_memory(error),
        }
    }

    /// Allocates an object, or gives the value back.
    ///
    /// # Errors
    ///
    /// When the heap is full. The heap is as it was.
    #[inline]
    pub fn try_alloc<T: Trace + Send + Sync>(&self, value: T) -> Result<Gc<T>, AllocError<T>> {
        gc::allocate(&self.0, value)
    }

    /// Allocates an object; collects in full first if there is no room.
    ///
    /// # Errors
    ///
    /// When the heap is full even then, or cannot be collected.
    pub fn alloc_or_collect<T: Trace + Send + Sync>(
        &mut self,
        value: T,
    ) -> Result<Gc<T>, AllocError<T>> {
        self.try_alloc(value).or_else(|error| {
            #[expect(
                clippy::let_underscore_must_use,
                reason = "the second attempt says why there is no room"
            )]
            let _ = self.try_collect(Collect::full());
            self.try_alloc(error.into_inner())
        })
    }

    /// Allocates one object for a header and items.
    ///
    /// # Panics
    ///
    /// When the heap is full, or the iterator gives fewer items than it promises.
    pub fn alloc_slice<H, T, I>(&self, header: H, items: I) -> GcSlice<H, T>
    where
        H: Trace + Send + Sync,
        T: Trace + Send + Sync,
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    {
        self.try_alloc_slice(header, items).unwrap_or_else(|error| panic!("{}", error.reason()))
    }

    /// Allocates one object for a header and items, or gives them back.
    ///
    /// # Errors
    ///
    /// When the heap is full. The heap is as it was.
    pub fn try_alloc_slice<H, T, I>(
        &self,
        header: H,
        items: I,
    ) -> Result<GcSlice<H, T>, RefusedSlice<H, I>>
    where
        H: Trace + Send + Sync,
        T: Trace + Send + Sync,
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    {
        GcSlice::allocate(&self.0, header, items.into_iter())
    }

    /// Allocates a weak reference to `target` that calls `callback` when the target is gone.
    ///
    /// # Panics
    ///
    /// When the heap is full, or the target belongs to another one.
    pub fn alloc_weak<T, D>(
        &self,
        target: &Gc<T>,
        data: D,
        callback: WeakCallback<T, D>,
    ) -> Gc<WeakRef<T, D>>
    where
        T: Trace,
        D: Trace + Send + Sync,
    {
        WeakRef::alloc(target, data, callback, self).unwrap_or_else(|error| out_of_memory(error))
    }

    /// Lets the heap stop or collect here, if it wants to. One relaxed load if it does not.
    #[inline(always)]
    pub fn safepoint(&mut self) {
        self.0.safepoint();
    }

    /// Runs `f` detached: stops do not wait for this thread meanwhile, so it may block. Attached again
    /// afterwards, also when `f` panics.
    ///
    /// The closure cannot use this mutator. Handles can be cloned and dropped in it; another heap (or the
    /// same) can be entered with [`Heap::attach_scoped`].
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.0.detach(f)
    }

    /// Whether this thread may reach a safepoint, detach or collect now: not inside a destructor, finalizer, callback or
    /// traversal, and not while it holds a stop.
    pub fn may_park(&self) -> bool {
        self.0.may_step_out()
    }

    /// Detaches without a closure, for languages that mark the two ends of a blocking region. The thread may attach
    /// elsewhere meanwhile, as long as it has left there again when it comes back.
    ///
    /// # Errors
    ///
    /// The mutator itself, where [`may_park`](Self::may_park) says no.
    pub fn into_detached(self) -> Result<Detached, Self> {
        if !self.may_park() {
            return Err(self);
        }
        // The mutator is put away: nothing relies on the attachment any more.
        self.0.step_out().end();
        Ok(Detached(std::mem::ManuallyDrop::new(self)))
    }

    /// Collects in full: waits for a collection that is running, and then runs one.
    ///
    /// # Panics
    ///
    /// When the world cannot be stopped because a thread ended without dropping its mutator; see
    /// [`try_collect`](Self::try_collect).
    pub fn collect(&mut self) -> CollectionReport {
        self.try_collect(Collect::full()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Collects among what is new since the last collection, or [promotion](HeapStats::promotions).
    ///
    /// # Panics
    ///
    /// Like [`collect`](Self::collect).
    pub fn collect_young(&mut self) -> CollectionReport {
        self.try_collect(Collect::young()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Collects as `what` says.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped, or another thread is collecting and `what` says not to wait.
    pub fn try_collect(&mut self, what: Collect) -> Result<CollectionReport, CollectError> {
        self.0.try_collect(what)
    }

    /// To be called right before `fork`: waits until no collection runs, stops the world, and keeps it so
    /// that the child finds the heap whole. Then the parent calls [`Fork::parent`], the child
    /// [`Fork::child`]. In between, [`Heap::stats`] panics on this thread, which holds the lock of the heap's threads.
    ///
    /// What threads that are not attached do cannot be waited for. They may drop references, attach and detach at that moment; but one
    /// that is naming a [root](Heap::known_root), changing a heap's settings or hooks, or making or ending a heap would leave a lock in
    /// the child that nobody opens.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn prepare_fork(&mut self) -> Result<Fork<'_>, StopError> {
        if self.0.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let core = Arc::clone(self.0.core());
        collect::wait_for_turn(&mut self.0);
        let raw = &self.0;
        match raw.prepare_fork() {
            Ok(guard) => {
                let core = raw.core();
                let lists = Lists {
                    _deferred: core.model.hold_deferred(),
                    _arenas: core.arena_ids.keep(),
                    _crew: core.workers.crew().map(|crew| crew.hold()),
                };
                let turn = Some(core.turn.hold());
                Ok(Fork {
                    guard: Some(guard),
                    lists: Some(lists),
                    turn,
                    core,
                    _known: Aside::all(),
                })
            }
            Err(error) => {
                core.turn.give_back();
                Err(error)
            }
        }
    }

    pub(crate) fn any_from(
        &self,
        header: std::ptr::NonNull<crate::object::header::Header>,
    ) -> AnyGc {
        // SAFETY: rule R: callers name a live object of this heap; the count makes the reference.
        unsafe {
            header.as_ref().clone_ref(self.id());
            AnyGc::from_header(header)
        }
    }
}

/// A mutator whose thread is detached. Made by [`Mutator::into_detached`].
///
/// To drop it attaches the thread once more, to leave the heap in order.
#[must_use = "dropping it ends the attachment for good"]
pub struct Detached(std::mem::ManuallyDrop<Mutator>);

impl Detached {
    /// Attaches the thread again. If the world is stopped, that waits.
    ///
    /// # Errors
    ///
    /// The value itself, when the thread is attached elsewhere, inside a traversal, or in the closure of a
    /// [`Mutator::detach`].
    pub fn attach(self) -> Result<Mutator, Self> {
        // Inside the closure of another mutator's detach, this one could outlive the closure.
        if Raw::is_inside_detach() || !self.0.0.step_in() {
            return Err(self);
        }
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: rule V: taken once: `this` is neither used again nor dropped.
        Ok(unsafe { std::mem::ManuallyDrop::take(&mut this.0) })
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        self.0.heap()
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if self.0.0.step_in() {
            // SAFETY: rule V: attached again, and not used any more.
            unsafe { std::mem::ManuallyDrop::drop(&mut self.0) };
        }
        // Else the thread is busy elsewhere, and leaks it, as it would leak a mutator.
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("heap", self.heap()).finish()
    }
}

/// Header and items of a slice that found no room.
pub type RefusedSlice<H, I> = AllocError<(H, <I as IntoIterator>::IntoIter)>;

#[cold]
#[inline(never)]
fn out_of_memory<T>(error: AllocError<T>) -> ! {
    panic!("{error}")
}

impl fmt::Debug for Mutator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutator").field("id", &self.id()).field("heap", self.heap()).finish()
    }
}

/// A lock that a fork keeps.
type Held<'a, T> = (lock::Kept<'a>, lock::Guard<'a, T>);

/// What threads that are not attached may be in the middle of changing, when nobody keeps them from it: the child would wait
/// for them for ever.
struct Lists<'a> {
    _deferred: Held<'a, managed::Deferred>,
    _arenas: Held<'a, crate::heap::mutator::ArenaIds>,
    _crew: Option<Held<'a, helpers::State>>,
}

/// The world is stopped for a `fork`. Made by [`Mutator::prepare_fork`].
///
/// It must not be leaked, as by [`std::mem::forget`]: the world then stays stopped and the heap's locks
/// stay locked. This thread panics when it needs one of these locks: when it collects, detaches, asks for
/// a fork or for statistics, or drops its mutator. Other threads wait for ever when they attach or pass
/// a safepoint. A thread that begins to wait for one of the locks later says so on standard error after a second. A
/// thread that has parked for the fork says nothing.
#[must_use = "the world stays stopped until `parent` or `child` is called"]
pub struct Fork<'a> {
    guard: Option<ForkGuard<'a, crate::heap::mutator::Shared<Managed>>>,
    lists: Option<Lists<'a>>,
    turn: Option<Held<'a, crate::heap::collector_lock::State>>,
    core: &'a managed::Core,
    /// Dropped last: the thread knows that it keeps the locks of the others above.
    _known: Aside,
}

impl Fork<'_> {
    /// In the parent (also when `fork` failed): the world runs again. In the child this does what
    /// [`child`](Self::child) does, and so does a drop.
    pub fn parent(self) {}

    /// In the child: this thread is the heap's only one. Objects of the others are nobody's now, and
    /// collected like any. The marking pool is started anew when it is needed.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, which still has its other threads. The world runs again then, as after
    /// [`parent`](Self::parent).
    pub fn child(self) {
        if let Some(guard) = &self.guard {
            guard.must_be_child();
        }
    }
}

#[cfg(all(test, loom))]
impl Fork<'_> {
    /// Whether a child, which has this thread alone, could take each lock that threads take which are not attached: this
    /// fork holds it, or it is open.
    pub(crate) fn is_whole_for_child(&self) -> bool {
        let (lists, guard) =
            (self.lists.as_ref().expect("held"), self.guard.as_ref().expect("held"));
        guard.has_registry()
            && self.core.model.is_whole_for_child(&lists._deferred.1)
            && self.core.arena_ids.is_held_by_or_open(Some(&lists._arenas.1))
    }
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        drop(self.lists.take());
        match self.guard.take() {
            Some(guard) if guard.is_child() => {
                self.core.workers.forget_others();
                if let Some((_, turn)) = &mut self.turn {
                    turn.forget_others();
                }
                for ended in guard.child() {
                    // This thread is the only one there is.
                    self.core.abandon(ended.data());
                    managed::orphan(self.core, &ended.data().local);
                }
            }
            guard => drop(guard),
        }
        if let Some((kept, turn)) = self.turn.take() {
            drop(kept);
            self.core.turn.let_go(turn);
        }
    }
}

impl fmt::Debug for Fork<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fork").finish_non_exhaustive()
    }
}
