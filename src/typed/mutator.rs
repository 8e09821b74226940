//! A stop waits until each attached thread is at a safepoint, where the thread must not hold a
//! borrow of an object. So the attachment to a heap is a value, the mutator: a borrow of an object
//! also borrows the mutator, and a safepoint takes it by `&mut`.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{LockResult, MutexGuard, mpsc};
use std::thread::Scope;

use crate::AnyGc;
use crate::base::fallible::NoMemory;
#[cfg(feature = "stacks")]
use crate::diagnose::AllocationSites;
use crate::diagnose::{Census, HeapGraph, NoSnapshot, Path, Surveyed, TypeNames};
use crate::heap::blocking::Join;
use crate::heap::detach::ModelDetached;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::Unmarked;
use crate::heap::request::{Collect, CollectError};
use crate::managed::{Managed, Raw};
use crate::model::inspect;
use crate::object::address::Object;
use crate::report::error::{AttachError, Fault};
use crate::report::facts::CollectionReport;
use crate::typed::heap::Heap;

/// A thread's attachment to a heap. Its methods need an attached thread, which the value itself
/// proves.
///
/// A mutator stays on its thread (it is neither `Send` nor `Sync`), and a thread has at most one. A
/// borrow from an object also borrows the mutator, and [`safepoint`](Self::safepoint),
/// [`detach`](Self::detach) and [`collect`](Self::collect) take `&mut self`. So the compiler proves
/// that no thread parks during a change of an object, and that no thread keeps a borrow across a
/// stop.
///
/// Call [`safepoint`](Self::safepoint) regularly, in loops or between bytecodes, and block only
/// inside [`detach`](Self::detach), because a stop waits for each attached thread. When the mutator
/// is dropped, the thread detaches and the attachment ends. If the mutator is leaked, every stop of
/// its heap fails once its thread has ended.
#[repr(transparent)]
pub struct Mutator {
    pub(super) raw: Unmarked<Raw>,
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*mut ()>,
}

impl fmt::Debug for Mutator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutator").field("id", &self.id()).field("heap", self.heap()).finish()
    }
}

impl Mutator {
    #[inline(always)]
    pub(crate) fn raw(&self) -> &Raw {
        &self.raw.0
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.raw.0.id()
    }

    pub(super) fn from_raw(raw: Raw) -> Self {
        Self { raw: Unmarked(raw), thread: PhantomData }
    }

    pub(crate) fn raw_mut(&mut self) -> &mut Raw {
        &mut self.raw.0
    }

    pub(super) fn from_raw_ref(raw: &Raw) -> &Self {
        // SAFETY: rule *typed*: a transparent wrapper.
        unsafe { &*std::ptr::from_ref(raw).cast::<Self>() }
    }

    pub(crate) fn from_raw_mut(raw: &mut Raw) -> &mut Self {
        // SAFETY: rule *typed*: a transparent wrapper.
        unsafe { &mut *std::ptr::from_mut(raw).cast::<Self>() }
    }
}

/// The mutator behind an opaque pointer, for the functions of type tables.
///
/// # Safety
///
/// The pointer was made from a `&Raw` that is the content of a [`Mutator`].
pub(crate) unsafe fn mutator<'a>(m: *const ()) -> &'a Mutator {
    // SAFETY: rule *typed*: `Mutator` is a transparent wrapper of `Raw`.
    unsafe { &*m.cast::<Mutator>() }
}

impl Heap {
    /// Attaches the calling thread to this heap.
    ///
    /// # Panics
    ///
    /// If [`try_attach`](Self::try_attach) returns an error.
    #[track_caller]
    pub fn attach(&self) -> Mutator {
        match self.try_attach() {
            Ok(mutator) => mutator,
            Err(error) => panic!("{error}"),
        }
    }

    /// Attaches the calling thread to this heap, after a wait if the heap's world is stopped.
    ///
    /// # Errors
    ///
    /// If the thread is already attached to this heap or another heap, is inside a traversal, or is
    /// ending. Inside the closure of [`Mutator::detach`], only
    /// [`attach_scoped`](Self::attach_scoped) is allowed. [`AttachError`] lists all cases.
    pub fn try_attach(&self) -> Result<Mutator, AttachError> {
        self.0.try_attach().map(Mutator::from_raw)
    }

    /// Attaches the calling thread for the duration of a closure. It is also allowed inside
    /// [`Mutator::detach`], for this heap or another heap.
    ///
    /// # Panics
    ///
    /// If the thread is attached, is inside a traversal, or is ending. [`AttachError`] lists all
    /// cases.
    #[track_caller]
    pub fn attach_scoped<R>(&self, f: impl FnOnce(&mut Mutator) -> R) -> R {
        self.0.attach_scoped(|raw| f(Mutator::from_raw_mut(raw)))
    }

    /// The heap of a model's handle.
    pub(super) fn from_model(heap: &ModelHeap<Managed>) -> &Self {
        // SAFETY: rule *typed*: a transparent wrapper.
        unsafe { &*std::ptr::from_ref(heap).cast::<Self>() }
    }
}

impl Mutator {
    /// Calls `f` with the calling thread's mutator. This is for code that gets no mutator as a
    /// parameter, such as a destructor. The code can use objects but cannot reach a safepoint,
    /// because a borrow of its caller must not cross a stop.
    ///
    /// Returns `None` if the thread is not attached to a heap of typed objects, is inside a
    /// traversal, or holds a stop.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        Raw::with_current(|raw| f(Self::from_raw_ref(raw)))
    }

    /// The heap to which the thread is attached.
    pub fn heap(&self) -> &Heap {
        Heap::from_model(self.raw.0.heap())
    }

    /// Notes what this thread is about to do, such as `"reading a request"`, so that a report says
    /// where a late thread was. Empty: nothing. It takes some nanoseconds.
    pub fn mark(&self, at: &'static str) {
        self.raw.0.mark(at);
    }

    /// Parks or collects here if the heap has requested it. Otherwise this is one relaxed load.
    ///
    /// It takes `&mut self`, so that no borrow from an object is held across it.
    #[inline(always)]
    pub fn safepoint(&mut self) {
        self.raw.0.safepoint();
    }

    /// Whether there may be something to do at a safepoint, by one relaxed load. 0: there is not.
    #[inline(always)]
    pub fn poll(&self) -> u32 {
        self.raw.0.poll()
    }

    /// Parks here if a stop is requested, and otherwise is one relaxed load. It never collects or
    /// reclaims garbage, so that no destructor or finalizer runs.
    #[inline]
    pub fn park(&mut self) {
        self.raw.0.park();
    }

    /// Runs a full collection, but waits first for the end of a running one.
    ///
    /// # Panics
    ///
    /// If [`try_collect`](Self::try_collect) returns an error, for example because a thread ended
    /// without dropping its mutator.
    #[track_caller]
    pub fn collect(&mut self) -> CollectionReport {
        self.raw.0.collect()
    }

    /// Collects among the objects allocated since the last collection or
    /// [promotion](crate::HeapStats::promotions).
    ///
    /// # Panics
    ///
    /// The same as [`collect`](Self::collect).
    #[track_caller]
    pub fn collect_young(&mut self) -> CollectionReport {
        self.raw.0.collect_young()
    }

    /// Runs the collection that `what` describes.
    ///
    /// # Errors
    ///
    /// If the world cannot be stopped, or if another thread is collecting and `what` says not to
    /// wait.
    pub fn try_collect(&mut self, what: Collect) -> Result<CollectionReport, CollectError> {
        self.raw.0.try_collect(what)
    }

    /// Tells the heap that its objects have got memory outside the heap, or, if `change` is
    /// negative, that they have given some up.
    ///
    /// The heap counts by itself what [`Trace::external_bytes`](crate::Trace::external_bytes)
    /// tells: the buffers of a `Vec` or `String`, also in a [`GcCell`](crate::GcCell). This
    /// function is for all else: memory of a foreign library, or behind a lock or an `Arc`. It is
    /// called once when the memory is allocated, and once with the opposite sign when it is freed,
    /// for example in a destructor:
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use standstill::{Heap, Mutator, Trace};
    ///
    /// #[derive(Trace)]
    /// struct Image { pixels: Arc<Mutex<Vec<u8>>>, bytes: usize }
    ///
    /// impl Drop for Image {
    ///     fn drop(&mut self) {
    ///         Mutator::with_current(|m| m.adjust_external_bytes(-(self.bytes as isize)));
    ///     }
    /// }
    ///
    /// let heap = Heap::new();
    /// let m = heap.attach();
    /// let pixels = Arc::new(Mutex::new(vec![0; 1 << 20]));
    /// let image = m.alloc(Image { pixels, bytes: 1 << 20 });
    /// m.adjust_external_bytes(image.bytes as isize);
    /// assert_eq!(heap.stats().external_bytes, 1 << 20);
    /// drop(image);
    /// assert_eq!(heap.stats().external_bytes, 0);
    /// ```
    ///
    /// The bytes count like those of objects, for
    /// [`Pacing::young_bytes`](crate::Pacing::young_bytes) and
    /// [`Pacing::full_minimum_bytes`](crate::Pacing::full_minimum_bytes), and for the heap's
    /// [limit](crate::HeapBuilder::limit). Wrong numbers make collections too frequent or too rare,
    /// or have a heap with a limit refuse memory, but have no other effect. The call costs a few
    /// instructions, never fails and never collects. A collection may be due at the next safepoint,
    /// however, and beyond the limit the next allocation is refused.
    #[inline]
    pub fn adjust_external_bytes(&self, change: isize) {
        self.raw.0.adjust_external_bytes(change);
    }
}

// Blocking operations, in which the thread is detached, so that stops do not wait for it.
impl Mutator {
    /// Whether this thread may now reach a safepoint, detach or collect. It may not inside a
    /// destructor, finalizer, callback or traversal, while it holds a stop, or while it keeps
    /// another thread suspended.
    pub fn may_park(&self) -> bool {
        self.raw().may_park()
    }

    /// Runs `f` detached, so that `f` may block, because stops do not wait for the thread
    /// meanwhile. The thread attaches again afterwards, even if `f` panics.
    ///
    /// The closure cannot use this mutator, but it can clone and drop handles, and enter this heap
    /// or another heap with [`Heap::attach_scoped`].
    ///
    /// # Panics
    ///
    /// Inside a destructor, finalizer or callback that the library calls, inside a traversal, while
    /// the thread holds a stop, and while it keeps another thread suspended. The process aborts if
    /// `f` leaves the thread attached elsewhere, or keeps a [`DetachedFork`](crate::DetachedFork)
    /// or a [`Suspended`](crate::safepoint::Suspended), because the callers of this function rely
    /// on the attachment.
    #[track_caller]
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.raw.0.detach(f)
    }

    /// Detaches without a closure, for languages that mark the two ends of a blocking region. The
    /// thread may attach to another heap meanwhile, but must end that attachment before it attaches
    /// here again.
    ///
    /// # Errors
    ///
    /// The mutator itself, if [`may_park`](Self::may_park) returns `false`. Also if what the thread
    /// runs before it leaves keeps a [`TraversalGuard`](crate::safepoint::TraversalGuard): a hook,
    /// or a destructor of an object whose last reference another thread has dropped.
    pub fn into_detached(self) -> Result<Detached, Self> {
        self.raw.0.into_detached().map(Detached).map_err(Self::from_raw)
    }

    /// Locks a std mutex outside the heap. Tries first, and otherwise waits detached, because if an
    /// attached thread waited for a mutex of a parked thread, the stop would never end.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned, as in [`Mutex::lock`](std::sync::Mutex::lock).
    ///
    /// # Panics
    ///
    /// If the mutex is locked, and [`detach`](Self::detach) would panic.
    pub fn lock<'a, T: ?Sized>(
        &mut self,
        mutex: &'a std::sync::Mutex<T>,
    ) -> LockResult<MutexGuard<'a, T>> {
        self.raw_mut().lock(mutex)
    }

    /// Waits, detached, for the end of a thread.
    ///
    /// An attached thread that waited would delay every stop, and so every collection, until the
    /// other thread ends. If the other thread collects, neither would ever continue.
    ///
    /// ```
    /// use standstill::Heap;
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let heap2 = heap.clone();
    /// let other = std::thread::spawn(move || heap2.attach().collect().collected);
    /// assert_eq!(m.join(other).unwrap(), 0);
    /// ```
    ///
    /// # Errors
    ///
    /// If the thread has panicked, as in [`JoinHandle::join`](std::thread::JoinHandle::join).
    ///
    /// # Panics
    ///
    /// If [`detach`](Self::detach) would panic.
    pub fn join<J: Join>(&mut self, thread: J) -> std::thread::Result<J::Output> {
        self.raw_mut().join(thread)
    }

    /// Receives the next message of a channel. Takes a message that is already there, and otherwise
    /// waits detached, so that no stop waits for the sender.
    ///
    /// ```
    /// use standstill::{Gc, Heap};
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let (sender, receiver) = std::sync::mpsc::channel::<Gc<u32>>();
    /// let heap2 = heap.clone();
    /// let other = std::thread::spawn(move || {
    ///     let mut m = heap2.attach();
    ///     m.collect();
    ///     sender.send(m.alloc(7)).unwrap();
    /// });
    /// assert_eq!(*m.recv(&receiver).unwrap(), 7);
    /// m.join(other).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// If the channel is empty and all senders are dropped, as in [`mpsc::Receiver::recv`].
    ///
    /// # Panics
    ///
    /// If the channel is empty, and [`detach`](Self::detach) would panic.
    pub fn recv<T>(&mut self, receiver: &mpsc::Receiver<T>) -> Result<T, mpsc::RecvError> {
        self.raw_mut().recv(receiver)
    }

    /// Runs `f`, attached, with a scope for threads that borrow from this thread. When `f` has
    /// returned, waits detached for these threads.
    ///
    /// This is [`std::thread::scope`] for attached threads. The function of std waits at its end
    /// too, and an attached thread would delay every stop until the scope's threads end.
    ///
    /// ```
    /// use standstill::Heap;
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let numbers = [1, 2, 3];
    /// let sum = m.scope(|s, m| {
    ///     s.spawn(|| heap.attach().collect()); // waited for at the end of the scope
    ///     let sum = s.spawn(|| numbers.iter().sum::<i32>());
    ///     m.join(sum).unwrap()
    /// });
    /// assert_eq!(sum, 6);
    /// ```
    ///
    /// # Panics
    ///
    /// If [`detach`](Self::detach) would panic; `f` does not run then. Also if `f` panics, or if a
    /// thread panics that was not joined, as in [`std::thread::scope`]; the thread is attached
    /// again in these cases.
    #[track_caller]
    pub fn scope<'env, R>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>, &mut Self) -> R,
    ) -> R {
        self.raw_mut().scope(|scope, raw| f(scope, Self::from_raw_mut(raw)))
    }
}

/// The mutator of a detached thread. Made by [`Mutator::into_detached`].
///
/// The drop attaches the thread once more, to end the attachment properly. A thread that is
/// attached to another heap, is inside a traversal, holds a fork, or keeps another thread suspended
/// cannot attach. Then the attachment ends when the thread has dropped its next mutator, of any
/// heap. A panic of a destructor at that time goes to
/// [`Heap::on_unraisable`](crate::Heap::on_unraisable). Until then
/// [`HeapStats::mutators`](crate::HeapStats::mutators) counts the mutator and the heap stays open,
/// but no stop waits for it.
#[must_use = "dropping it ends the attachment for good"]
pub struct Detached(ModelDetached<Managed>);

impl Detached {
    /// Attaches the thread again, after a wait if the world is stopped.
    ///
    /// # Errors
    ///
    /// The value itself, if the thread is attached elsewhere, is inside a traversal, keeps another
    /// thread suspended, is ending, or is in the closure of a [`Mutator::detach`].
    pub fn attach(self) -> Result<Mutator, Self> {
        self.0.attach().map(Mutator::from_raw).map_err(Self)
    }

    /// As [`attach`](Self::attach), but does not wait, for a thread that holds a lock which the
    /// stopped threads may need.
    ///
    /// # Errors
    ///
    /// The value itself, if the world is stopped, or in the cases of [`attach`](Self::attach).
    pub fn try_attach(self) -> Result<Mutator, Self> {
        self.0.try_attach().map(Mutator::from_raw).map_err(Self)
    }

    /// The heap to which the mutator belongs.
    pub fn heap(&self) -> &Heap {
        Heap::from_model(self.0.heap())
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("heap", self.heap()).finish()
    }
}

// Inspection. Each of these functions stops the world, but lists no object that a running
// collection is about to clear.
impl Mutator {
    /// All tracked objects of the heap except the frozen objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped: in a destructor, finalizer, callback or traversal, or if
    /// another thread has ended without dropping its mutator.
    #[track_caller]
    pub fn objects(&mut self) -> Vec<AnyGc> {
        let mut all = Vec::new();
        self.raw().inspect(|world| {
            inspect::listed(world, |object, _| all.push(self.any_from(object.live())));
        });
        all
    }

    /// All tracked objects that refer to `target`, except the frozen objects. Each object is listed
    /// once.
    ///
    /// # Panics
    ///
    /// * If `target` belongs to another heap than the mutator.
    /// * If a traversal panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referrers(&mut self, target: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(target.header(), self);
        let address = target.header().as_ptr() as usize;
        let result = self.raw().inspect(|world| {
            let mut found = Vec::new();
            let result = inspect::referring(world, vec![address], |object, _| found.push(object));
            let result = result.map(|kept| kept.unwrap_or_else(NoMemory::abort_process));
            result.map(|()| -> Vec<AnyGc> {
                found.into_iter().map(|object| self.any_from(object.live())).collect()
            })
        });
        result.unwrap_or_else(|reason| panic!("a traversal failed: {reason}"))
    }

    /// All targets of the references in `source`, tracked and untracked. An object is listed once
    /// per reference to it.
    ///
    /// # Panics
    ///
    /// * If `source` belongs to another heap than the mutator.
    /// * If the traversal of `source` panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referents(&mut self, source: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(source.header(), self);
        let object = Object::new(source.header().cast());
        let mut targets = Vec::new();
        let result = self.raw().inspect(|world| {
            inspect::targets(world, object, |target, _| targets.push(self.any_from(target.live())))
        });
        result.unwrap_or_else(|reason| panic!("a traversal failed: {reason}"));
        targets
    }

    /// Calls `f` with every object of the heap, its references and the number of references to it
    /// from outside, in one stop. All workers of the heap call `f`, in any order, under the guard
    /// of a traversal: it uses no object and no heap. Returns the names of the types, by number.
    ///
    /// # Panics
    ///
    /// * If `f` panics.
    /// * As for [`census`](Self::census).
    #[track_caller]
    pub fn survey(&mut self, f: impl Fn(&Surveyed<'_>) + Sync) -> TypeNames {
        self.raw.0.survey(f)
    }

    /// Counts objects and bytes by type, in one stop.
    ///
    /// # Panics
    ///
    /// * If a traversal panics, or if there is no memory.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn census(&mut self) -> Census {
        self.raw.0.census()
    }

    /// The places of the program that have made the objects that live. `None`: the heap was not
    /// built with [`HeapBuilder::sample_allocations`](crate::HeapBuilder::sample_allocations).
    ///
    /// It stops nothing. The thread is detached while it reads the program's debug information,
    /// which takes tenths of a second the first time. The child of a fork must not call it if
    /// another thread did at the fork.
    ///
    /// # Panics
    ///
    /// As for [`detach`](Self::detach).
    #[cfg(feature = "stacks")]
    #[track_caller]
    pub fn allocation_sites(&mut self) -> Option<AllocationSites> {
        self.raw.0.allocation_sites()
    }

    /// Like [`census`](Self::census), but returns an error where that panics.
    #[doc(hidden)]
    pub fn try_census(&mut self) -> Result<Census, Fault> {
        self.raw.0.try_census()
    }

    /// Copies all objects and references, in one stop.
    ///
    /// # Panics
    ///
    /// As for [`census`](Self::census).
    #[track_caller]
    pub fn graph(&mut self) -> HeapGraph {
        self.raw.0.graph()
    }

    /// Like [`graph`](Self::graph), but returns an error where that panics.
    #[doc(hidden)]
    pub fn try_graph(&mut self) -> Result<HeapGraph, Fault> {
        self.raw.0.try_graph()
    }

    /// Like [`graph`](Self::graph), with the [label](crate::Trace::label) of each object that has
    /// one. Labels are contents, such as names of users, so no other function asks for them.
    ///
    /// ```
    /// use standstill::{Gc, Heap, Trace};
    ///
    /// #[derive(Trace)]
    /// #[trace(label = Session::label)]
    /// struct Session {
    ///     user: String,
    /// }
    ///
    /// impl Session {
    ///     fn label(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    ///         f.write_str(&self.user)
    ///     }
    /// }
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let _session = m.alloc(Session { user: "alice".into() });
    /// assert_eq!(m.graph_with_labels().holders()[0].label, "alice");
    /// assert_eq!(m.graph().holders()[0].label, "");
    /// ```
    ///
    /// # Panics
    ///
    /// As for [`census`](Self::census), and if a label panics.
    #[track_caller]
    pub fn graph_with_labels(&mut self) -> HeapGraph {
        self.raw.0.graph_with_labels()
    }

    /// Like [`graph_with_labels`](Self::graph_with_labels), but returns an error where that panics.
    #[doc(hidden)]
    pub fn try_graph_with_labels(&mut self) -> Result<HeapGraph, Fault> {
        self.raw.0.try_graph_with_labels()
    }

    /// Writes all objects and references into a file that viewers open: the developer tools of
    /// Chrome and Edge, and `standstill-heap`. The file has names of types and fields, and no
    /// content of objects.
    ///
    /// On Linux a child of the process writes it, so that the stop lasts some milliseconds, however
    /// many objects there are. No handler for forks runs in it, and of the program's code only
    /// [`Trace::describe`](crate::Trace::describe) and what it calls, which must not allocate or
    /// wait there. If the system refuses a child, or the child fails, the heap is copied in one
    /// stop, and written while the world runs; an event says why. [`HeapGraph::save_snapshot`] uses
    /// no child.
    ///
    /// # Errors
    ///
    /// Those of the file system, and [`ErrorKind::Other`](std::io::ErrorKind) where
    /// [`graph`](Self::graph) panics. No part of the file is left.
    pub fn snapshot(&mut self, path: impl AsRef<std::path::Path>) -> std::io::Result<()> {
        self.raw.0.snapshot(path)
    }

    /// Like [`snapshot`](Self::snapshot), and returns the number of objects.
    #[doc(hidden)]
    pub fn try_snapshot(&mut self, path: &std::path::Path) -> Result<usize, NoSnapshot> {
        self.raw.0.try_snapshot(path)
    }

    /// The shortest path to an object from another one that is held from outside, for example by a
    /// handle. If there is none, the path is the object itself, because a handle to it is passed
    /// here.
    ///
    /// ```
    /// use standstill::{Gc, Heap, Trace};
    ///
    /// #[derive(Trace)]
    /// struct Registry {
    ///     sessions: Vec<Gc<u64>>,
    /// }
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let session = m.alloc(7);
    /// let registry = m.alloc(Registry { sessions: vec![session.clone()] });
    /// let path = m.why_alive(&Gc::into_any(session));
    /// assert_eq!(path.steps[1].field, "sessions");
    /// println!("{path}"); // outside (1 reference) -> app::Registry .sessions -> u64
    /// drop(registry);
    /// ```
    ///
    /// # Panics
    ///
    /// * If `object` belongs to another heap than the mutator.
    /// * As for [`census`](Self::census).
    #[track_caller]
    pub fn why_alive(&mut self, object: &AnyGc) -> Path {
        crate::typed::gc::check(object.header(), self);
        let address = object.header().as_ptr() as usize;
        // An object whose destruction has begun is not in the graph.
        let graph = self.graph();
        let path = self.detach(move || graph.why_alive(address));
        path.unwrap_or_else(|| Path::dying(object.type_name(self), address))
    }

    /// Freezes all tracked objects, and returns the number of frozen objects.
    ///
    /// Collections ignore frozen objects until [`unfreeze`](Self::unfreeze). The references of a
    /// frozen object keep their targets alive, because they count as references from outside.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn freeze(&mut self) -> usize {
        inspect::freeze(self.raw())
    }

    /// Unfreezes all objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn unfreeze(&mut self) {
        inspect::unfreeze(self.raw());
    }

    /// The number of frozen objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn frozen(&mut self) -> usize {
        inspect::frozen(self.raw())
    }

    /// Checks the whole heap for damage, and looks for these defects:
    ///
    /// * damaged tables;
    /// * references to addresses without an object;
    /// * overvisited objects, which traversals visit more often than references to them exist. A
    ///   wrong [`Trace::traverse`](crate::Trace::traverse) can cause this defect.
    ///
    /// # Errors
    ///
    /// A description of the first defect.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn verify(&mut self) -> Result<(), String> {
        inspect::verify(self.raw())
    }
}
