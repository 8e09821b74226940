//! A language whose finalizers are programs of that language, such as `__gc` of Lua or the will
//! executors of Scheme, cannot run them where the library calls [`Trace::FINALIZER`]: the thread
//! has a `&Mutator` there, so it reaches no safepoint. So a *guardian* gives the dead objects to
//! the runtime, which takes them out where its interpreter may run, on a thread of its choice.
//!
//! The other need is a finalizer for one object instead of a type: [`Gc::finalize_with`].

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicUsize, Mutex, Ordering};
use crate::object::header::Header;
use crate::object::weak::Guard;
use crate::report::error::{AllocError, OutOfMemory};
use crate::typed::gc::{Gc, check, out_of_memory};
use crate::typed::mutator::mutator;
use crate::typed::weak::HeaderAddress;
use crate::typed::weak_map::WeakKey;
use crate::{Mutator, Trace, Tracer};

/// A queue that gets objects instead of their deaths. `K` is the type of a handle, for example
/// `Gc<Node>` or [`AnyGc`](crate::AnyGc).
///
/// An object that was [registered](Self::register) is put into the queue when its last reference is
/// dropped, or when a collection finds it to be garbage. It is intact, and so is all that it
/// reaches. It is then no longer registered, so it dies next time, unless the program registers it
/// again. Its finalizer, if its type has one, runs when it dies, and not when it is put into the
/// queue. Weak references with a callback to it are cleared by a collection before that.
///
/// A guardian belongs to the heap of its first object. When the last clone of it is dropped, its
/// objects die as others do. References in the queue count as references from outside, so a
/// guardian in an object of the heap that only its queue leads to is never freed. At the end of the
/// heap, nothing is put into queues.
///
/// ```
/// use standstill::{Gc, Guardian, Heap, Trace};
///
/// #[derive(Trace)]
/// struct File(u32);
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let closing: Guardian<Gc<File>> = Guardian::new();
/// closing.register(&m, &m.alloc(File(3)));
/// // The handle is gone. An interpreter would look at each safepoint.
/// while closing.is_ready() {
///     let file = closing.next(&m).expect("it was ready");
///     assert_eq!(file.0, 3);
///     // Here programs may run, which collect and park.
///     m.safepoint();
/// }
/// # m.collect();
/// assert_eq!(heap.stats().live_objects, 0);
/// ```
pub struct Guardian<K>(Arc<DeadQueue<K>>);

struct DeadQueue<K> {
    dead: Mutex<Dead<K>>,
    /// The length of the queue.
    ready: AtomicUsize,
}

struct Dead<K> {
    queue: VecDeque<K>,
    /// The objects that are registered, for which the queue has room, because an object that dies
    /// must not need memory.
    registered: usize,
}

/// In the record of a registered object.
struct Registered<K>(Weak<DeadQueue<K>>);

impl<K: WeakKey + Send> Guard for Registered<K> {
    fn hand_over(self: Box<Self>, object: NonNull<Header>, m: *const ()) {
        let Some(queue) = self.0.upgrade() else { return };
        // SAFETY: rules *typed* and *counted*: a mutator; the caller keeps the object alive, which
        // `register` got as a `K`, and this counts a reference.
        let object = unsafe {
            object.as_ref().clone_ref(mutator(m).id());
            K::from_address(HeaderAddress(object))
        };
        let mut dead = queue.dead.lock();
        dead.registered = dead.registered.saturating_sub(1);
        dead.queue.push_back(object);
        // Relaxed: a hint. The lock orders the queue.
        queue.ready.store(dead.queue.len(), Ordering::Relaxed);
    }
}

impl<K: WeakKey + Send> Guardian<K> {
    /// A guardian without objects.
    pub fn new() -> Self {
        Self::try_new().unwrap_or_else(|_| NoMemory.abort_process())
    }

    /// A guardian without objects.
    ///
    /// # Errors
    ///
    /// If memory is refused.
    pub fn try_new() -> Result<Self, OutOfMemory> {
        let dead = Mutex::new(Dead { queue: VecDeque::new(), registered: 0 });
        Ok(Self(fallible::arc(DeadQueue { dead, ready: AtomicUsize::new(0) })?))
    }

    /// Registers an object. An object that is registered several times is handed over as often.
    ///
    /// # Panics
    ///
    /// If memory is refused; [`try_register`](Self::try_register) returns an error instead. If the
    /// object belongs to another heap than the mutator.
    #[track_caller]
    pub fn register(&self, m: &Mutator, object: &K) {
        if let Err(reason) = self.try_register(m, object) {
            out_of_memory(AllocError::of::<K>((), reason));
        }
    }

    /// Registers an object.
    ///
    /// # Errors
    ///
    /// If memory is refused. Nothing has changed.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn try_register(&self, m: &Mutator, object: &K) -> Result<(), OutOfMemory> {
        let HeaderAddress(header) = object.address();
        check(header, m);
        {
            let mut dead = self.0.dead.lock();
            let room = dead.registered + 1;
            dead.queue.try_reserve(room).map_err(NoMemory::from)?;
            dead.registered = room;
        }
        let added = add_guard(m, header, Registered(Arc::downgrade(&self.0)));
        if added.is_err() {
            self.0.dead.lock().registered -= 1;
        }
        added
    }

    /// Takes an object out of the queue, in the order of their deaths.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn next(&self, m: &Mutator) -> Option<K> {
        let mut dead = self.0.dead.lock();
        if let Some(first) = dead.queue.front() {
            check(first.address().0, m);
        }
        let object = dead.queue.pop_front();
        // Relaxed: as in `hand_over`.
        self.0.ready.store(dead.queue.len(), Ordering::Relaxed);
        object
    }

    /// Whether the queue has objects: one load.
    #[inline]
    pub fn is_ready(&self) -> bool {
        // Relaxed: as in `hand_over`.
        self.0.ready.load(Ordering::Relaxed) > 0
    }
}

impl<K> Clone for Guardian<K> {
    /// Another handle to the same queue.
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: WeakKey + Send> Default for Guardian<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// Untracked: the queue may belong to several handles, so none of them reports its references.
impl<K: 'static> Trace for Guardian<K> {
    const TRACKED: bool = false;

    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl<K> fmt::Debug for Guardian<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = self.0.ready.load(Ordering::Relaxed);
        f.debug_struct("Guardian").field("ready", &ready).finish_non_exhaustive()
    }
}

/// A guard that calls a function.
struct OneFinalizer<T, F>(F, std::marker::PhantomData<fn() -> T>);

impl<T: Trace, F: FnOnce(&Gc<T>, &Mutator) + Send> Guard for OneFinalizer<T, F> {
    fn hand_over(self: Box<Self>, object: NonNull<Header>, m: *const ()) {
        // A handle that borrows the caller's reference.
        // SAFETY: rule *typed*: `finalize_with` got the object as a `T`; `m` is a mutator.
        let (this, m) =
            unsafe { (std::mem::ManuallyDrop::new(Gc::<T>::from_header(object)), mutator(m)) };
        (self.0)(&this, m);
    }
}

impl<T: Trace> Gc<T> {
    /// Calls `f` once with the object when its last reference is dropped, or when a collection
    /// finds it to be garbage, as a [finalizer](Trace::FINALIZER) of its type. So the object is
    /// intact, and lives on if `f` stores a reference to it.
    ///
    /// If it is called several times, all functions are called, in this order, and a finalizer of
    /// the type only after that, when the object dies. If `f` registers the object again, the
    /// object is handed over again: at once if its last reference is gone, and in the next
    /// collection if it is garbage. A handle in `f` that leads to the object keeps it alive for
    /// ever.
    ///
    /// # Panics
    ///
    /// If memory is refused; [`try_finalize_with`](Self::try_finalize_with) returns an error
    /// instead. If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn finalize_with<F>(this: &Self, m: &Mutator, f: F)
    where
        F: FnOnce(&Self, &Mutator) + Send + 'static,
    {
        if let Err(reason) = Self::try_finalize_with(this, m, f) {
            out_of_memory(AllocError::of::<F>((), reason));
        }
    }

    /// As [`finalize_with`](Self::finalize_with).
    ///
    /// # Errors
    ///
    /// If memory is refused. The function is dropped.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn try_finalize_with<F>(this: &Self, m: &Mutator, f: F) -> Result<(), OutOfMemory>
    where
        F: FnOnce(&Self, &Mutator) + Send + 'static,
    {
        check(this.header(), m);
        add_guard(m, this.header(), OneFinalizer(f, std::marker::PhantomData))
    }
}

/// Registers an object of the mutator's heap.
fn add_guard(
    m: &Mutator,
    header: NonNull<Header>,
    guard: impl Guard + 'static,
) -> Result<(), OutOfMemory> {
    let guard = fallible::boxed(guard)?;
    // SAFETY: rule *counted*: the caller's handle keeps the object alive.
    let record = m.raw().model().weak.record(unsafe { header.as_ref() })?;
    Ok(record.add_guard(guard)?)
}
