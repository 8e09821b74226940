//! The heap: attachments, references that other threads have dropped, and collections. The search
//! of a collection is no step, because the world is stopped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use crate::count::{Gc, Object};
use crate::safepoint::{Coordinator, Participant, WorldStopped, current};
use crate::sync::{Order, Plain, thread_local};
use crate::{Trace, Tracer};

/// The request to merge the own queue.
pub(crate) const MERGE: u32 = 1 << 8;
/// The request to drop the deferred references.
const DRAIN: u32 = 1 << 9;

/// What other threads know of a mutator: the objects that they have dropped, and that it merges.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) queue: Plain<Vec<Arc<Object>>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) coordinator: Arc<Coordinator<Part>>,
    pub(crate) objects: Plain<Vec<Weak<Object>>>,
    /// References that threads have dropped that were not attached.
    deferred: Plain<Vec<Arc<Object>>>,
    /// From each drop that was deferred to the thread that does it.
    drained: Order,
}

impl Inner {
    pub(crate) fn is_attached_here(&self) -> bool {
        self.coordinator.inspect(current(), |_, is_attached| is_attached) == Some(true)
    }

    /// Leaves the drop of a reference to an attached thread.
    pub(crate) fn defer(&self, object: Arc<Object>) {
        self.drained.release();
        self.deferred.with(|list| list.push(object));
        self.coordinator.poke_attached(DRAIN);
    }

    fn drain(&self) {
        let deferred = self.deferred.with(std::mem::take);
        if !deferred.is_empty() {
            self.drained.acquire();
        }
        deferred.into_iter().for_each(Object::drop_reference);
    }

    /// The garbage, each with a reference that keeps it, and the objects that have died because
    /// their halves were merged.
    fn search(&self, world: &WorldStopped<'_, Part>) -> [Vec<Arc<Object>>; 2] {
        let mut dead = Vec::new();
        world.threads(|_, part| dead.extend(part.queue.with(std::mem::take)));
        dead.retain(|object| object.merge());

        let objects: Vec<_> = self.objects.with(|list| {
            list.retain(|object| object.strong_count() != 0);
            list.iter().filter_map(Weak::upgrade).collect()
        });
        let alive: Vec<_> = objects
            .into_iter()
            .filter(|object| object.count.with(|count| count.sum()) > 0)
            .filter_map(|object| object.body().map(|body| (object, body)))
            .collect();
        let places: HashMap<_, _> =
            alive.iter().enumerate().map(|(at, (object, _))| (Arc::as_ptr(object), at)).collect();
        let mut from_objects = vec![0; alive.len()];
        let mut edges: Vec<Vec<usize>> = Vec::new();
        for (_, body) in &alive {
            let mut tracer = Tracer::default();
            body.traverse(&mut tracer);
            let targets = tracer.targets.iter().filter_map(|target| places.get(target).copied());
            edges.push(targets.inspect(|&at| from_objects[at] += 1).collect());
        }
        let outside = |at: usize| alive[at].0.count.with(|count| count.sum()) - from_objects[at];
        assert!(
            (0..alive.len()).all(|at| outside(at) >= 0),
            "a `traverse` shows a reference that its object does not own"
        );
        let mut is_used = vec![false; alive.len()];
        let mut work: Vec<_> = (0..alive.len()).filter(|&at| outside(at) != 0).collect();
        while let Some(at) = work.pop() {
            if !std::mem::replace(&mut is_used[at], true) {
                work.extend(&edges[at]);
            }
        }
        let unused = alive
            .into_iter()
            .zip(is_used)
            .filter(|((_, body), is_used)| !is_used && body.is_tracked());
        let garbage = unused.map(|((object, _), _)| object);
        [
            garbage
                .inspect(|object| {
                    object.count.with(|count| {
                        count.is_doomed = true;
                        count.shared += 1;
                    })
                })
                .collect(),
            dead,
        ]
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.drain();
    }
}

/// A heap. All of its handles and mutators are equal, and it lives as long as one of them.
#[derive(Clone, Debug)]
pub struct Heap(Arc<Inner>);

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl Heap {
    /// A heap, which collects only when it is asked to.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            coordinator: Coordinator::new(),
            objects: Plain::new(Vec::new()),
            deferred: Plain::new(Vec::new()),
            drained: Order::new(),
        }))
    }

    /// Attaches the calling thread to this heap.
    ///
    /// # Panics
    ///
    /// If it is attached, to this heap or another one.
    pub fn attach(&self) -> Mutator {
        let part = Part { queue: Plain::new(Vec::new()) };
        let thread = self.0.coordinator.register(part);
        thread.attach().expect("this thread is attached already, here or elsewhere");
        self.0.drain();
        Mutator { thread, heap: self.clone() }
    }

    /// Attaches the calling thread by the mutator that its [`Attached`]s share, which the first one
    /// makes.
    ///
    /// # Panics
    ///
    /// If it is attached to another heap, or by a mutator of the caller.
    pub fn enter(&self) -> Attached {
        thread_local! {
            static KEPT: RefCell<std::rc::Weak<RefCell<Mutator>>> = RefCell::default();
        }
        KEPT.with(|kept| {
            let mutator = kept.borrow().upgrade().filter(|m| m.borrow().heap.ptr_eq(self));
            let mutator = mutator.unwrap_or_else(|| Rc::new(RefCell::new(self.attach())));
            *kept.borrow_mut() = Rc::downgrade(&mutator);
            Attached(mutator)
        })
    }

    /// Whether both are handles to one heap.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The figures of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectionReport {
    /// The number of garbage objects.
    pub collected: usize,
}

/// The proof that the calling thread is attached. Dropping it detaches the thread.
#[derive(Debug)]
pub struct Mutator {
    thread: Participant<Part>,
    heap: Heap,
}

impl Mutator {
    /// The heap to which the thread is attached.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    pub(crate) fn must_be_attached(&self) {
        assert!(self.heap.0.is_attached_here(), "a thread uses a heap, and is not attached to it");
    }

    /// Allocates an object. It never collects.
    pub fn alloc<T: Trace + Send + Sync>(&self, value: T) -> Gc<T> {
        self.must_be_attached();
        Gc::new(&self.heap.0, value)
    }

    /// Whether there may be something to do at a safepoint. 0: there is not.
    pub fn poll(&self) -> u32 {
        self.thread.poll()
    }

    /// Parks here if a stop is requested, and drops what other threads have left to this one.
    pub fn safepoint(&mut self) {
        if self.poll() != 0 {
            self.answer();
            self.thread.park();
            self.heap.0.drain();
        }
    }

    /// Parks here if a stop is requested.
    pub fn park(&mut self) {
        self.thread.park();
    }

    /// Merges the own queue, and drops the deferred references.
    fn answer(&self) {
        self.thread.take_requests(MERGE | DRAIN);
        for object in self.thread.data().queue.with(std::mem::take) {
            if object.merge() {
                object.die();
            }
        }
        self.heap.0.drain();
    }

    /// Leaves once nothing is left for this thread to drop.
    fn leave(&self) {
        let is_idle = || {
            let queue = &self.thread.data().queue;
            [queue, &self.heap.0.deferred].iter().all(|list| list.with(|list| list.is_empty()))
        };
        while !self.thread.leave(|_| is_idle()) {
            self.answer();
        }
    }

    /// Runs `f` detached, so that `f` may block. The thread attaches again afterwards, even if `f`
    /// panics.
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Back<'a>(&'a Mutator);

        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.thread.attach().expect("the closure has left every other heap");
                self.0.heap.0.drain();
            }
        }

        self.leave();
        let _back = Back(self);
        f()
    }

    /// Collects. Two collections do not overlap, because a thread that clears garbage reaches no
    /// safepoint.
    pub fn collect(&mut self) -> CollectionReport {
        let Heap(heap) = self.heap.clone();
        self.answer();
        let world = self.thread.stop().expect("this thread is attached");
        let [garbage, dead] = heap.search(&world);
        drop(world);
        dead.into_iter().for_each(Object::die);
        garbage.iter().filter_map(|object| object.body()).for_each(|body| body.clear(self));
        let collected = garbage.len();
        garbage.into_iter().for_each(Object::drop_reference);
        self.answer();
        CollectionReport { collected }
    }
}

impl Drop for Mutator {
    fn drop(&mut self) {
        if self.thread.is_attached() && !std::thread::panicking() {
            self.leave();
        }
    }
}

/// A thread is attached to a heap while this lives. [`Heap::enter`] makes it.
#[must_use = "the thread leaves when this is dropped"]
#[derive(Clone, Debug)]
pub struct Attached(Rc<RefCell<Mutator>>);

impl Attached {
    /// Calls `f` with the mutator, lent.
    ///
    /// # Panics
    ///
    /// If the thread is detached.
    pub fn with<R>(&self, f: impl FnOnce(&Mutator) -> R) -> R {
        f(&self.0.borrow())
    }

    /// Calls `f` with exclusive use of the mutator. `None`: somebody up the stack uses it.
    pub fn with_mut<R>(&self, f: impl FnOnce(&mut Mutator) -> R) -> Option<R> {
        self.0.try_borrow_mut().ok().map(|mut m| f(&mut m))
    }

    /// As [`Mutator::safepoint`]. It does nothing while somebody up the stack uses the mutator.
    pub fn safepoint(&self) {
        self.with_mut(Mutator::safepoint);
    }

    /// Calls `f`, detached, or attached if somebody up the stack uses the mutator.
    pub fn detached<R>(&self, f: impl FnOnce() -> R) -> R {
        match self.0.try_borrow_mut() {
            Ok(mut m) => m.detach(f),
            Err(_) => f(),
        }
    }
}
