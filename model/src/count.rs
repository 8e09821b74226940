//! References and their count, which has two halves, because that shows to the program: an object
//! whose last reference another thread drops dies on its owner's thread, at a safepoint.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::heap::{Inner, MERGE};
use crate::safepoint::current;
use crate::sync::{Order, Plain, thread_local};
use crate::{Mutator, Trace, Tracer};

/// The count of an object, and whom it belongs to.
#[derive(Debug)]
pub(crate) struct Count {
    /// The thread that counts in `local`; 0: none, so that `local` is 0.
    owner: u64,
    local: isize,
    pub(crate) shared: isize,
    /// A collection has found that it is garbage.
    pub(crate) is_doomed: bool,
}

impl Count {
    pub(crate) fn sum(&self) -> isize {
        self.local + self.shared
    }

    fn up(&mut self) {
        if self.owner == current() { self.local += 1 } else { self.shared += 1 }
    }

    /// Makes one number of the halves. Returns whether the object is dead.
    fn merge(&mut self) -> bool {
        (self.owner, self.local, self.shared) = (0, 0, self.sum());
        self.shared == 0
    }
}

/// What the collector knows of a value.
pub(crate) trait Body: Send + Sync {
    fn is_tracked(&self) -> bool;
    fn traverse(&self, tracer: &mut Tracer);
    fn clear(&self, m: &Mutator);
}

impl<T: Trace + Send + Sync> Body for T {
    fn is_tracked(&self) -> bool {
        T::TRACKED
    }

    fn traverse(&self, tracer: &mut Tracer) {
        T::traverse(self, tracer);
    }

    fn clear(&self, m: &Mutator) {
        T::clear(self, m);
    }
}

/// An object. It outlives its value, the body, which it holds while its count is not 0.
#[derive(Debug)]
pub(crate) struct Object {
    heap: Weak<Inner>,
    /// From each use to the destructor.
    order: Order,
    pub(crate) count: Plain<Count>,
    pub(crate) body: Plain<Option<Arc<dyn Body>>>,
}

thread_local! {
    /// While this thread runs a destructor: the objects that die next.
    static DYING: RefCell<Option<Vec<Arc<Object>>>> = RefCell::default();
}

impl Object {
    pub(crate) fn body(&self) -> Option<Arc<dyn Body>> {
        self.body.with(|body| body.clone())
    }

    /// Merges the halves. Returns whether the object is dead.
    pub(crate) fn merge(&self) -> bool {
        self.count.with(Count::merge)
    }

    fn add_reference(&self) {
        if self.count.with(|count| count.owner != current()) {
            self.order.step();
        }
        self.count.with(Count::up);
    }

    /// Drops a reference that the caller owns.
    pub(crate) fn drop_reference(self: Arc<Self>) {
        self.order.release();
        let heap = self.heap.upgrade();
        if let Some(heap) = &heap
            && !heap.is_attached_here()
        {
            return heap.defer(self);
        }
        let me = current();
        let (is_dead, queue_of) = self.count.with(|count| {
            if count.owner == me && me != 0 {
                count.local -= 1;
                (count.local == 0 && count.merge(), 0)
            } else {
                count.shared -= 1;
                let is_last = count.owner == 0 && count.shared == 0;
                (is_last, if count.shared < 0 { count.owner } else { 0 })
            }
        });
        if is_dead {
            self.die();
        } else if queue_of != 0 && !heap.is_some_and(|heap| self.enqueue(&heap, queue_of)) {
            // The owner has ended, or does not run.
            if self.merge() {
                self.die();
            }
        }
    }

    /// Has the owner merge the halves. `false`: it is not attached.
    fn enqueue(self: &Arc<Self>, heap: &Inner, owner: u64) -> bool {
        heap.coordinator.step();
        let member = heap.coordinator.inspect(owner, |member, is_attached| {
            is_attached.then(|| {
                member.data.queue.with(|queue| queue.push(self.clone()));
                member.clone()
            })
        });
        member.flatten().map(|member| member.raise(MERGE)).is_some()
    }

    /// Runs the destructor, after those that run already on this thread.
    pub(crate) fn die(self: Arc<Self>) {
        let is_outermost = DYING.with(|dying| {
            let is_outermost = dying.borrow().is_none();
            dying.borrow_mut().get_or_insert_default().push(self);
            is_outermost
        });
        let next = || DYING.with(|dying| dying.borrow_mut().as_mut().and_then(Vec::pop));
        if is_outermost {
            while let Some(object) = next() {
                object.order.acquire();
                drop(object.body.with(Option::take));
            }
            DYING.with(|dying| dying.take());
        }
    }
}

/// A counted reference to an object of a [`Heap`](crate::Heap).
pub struct Gc<T> {
    pub(crate) object: Arc<Object>,
    /// `None` only during a drop.
    value: Option<Arc<T>>,
}

impl<T: Trace + Send + Sync> Gc<T> {
    pub(crate) fn new(heap: &Arc<Inner>, value: T) -> Self {
        let value = Arc::new(value);
        let object = Arc::new(Object {
            heap: Arc::downgrade(heap),
            order: Order::new(),
            count: Plain::new(Count { owner: current(), local: 1, shared: 0, is_doomed: false }),
            body: Plain::new(Some(value.clone())),
        });
        heap.objects.with(|objects| objects.push(Arc::downgrade(&object)));
        Self { object, value: Some(value) }
    }
}

impl<T: Trace> Gc<T> {
    /// A weak reference to the object.
    pub fn downgrade(this: &Self, m: &Mutator) -> GcWeak<T> {
        m.must_be_attached();
        let value = this.value.as_ref().map(Arc::downgrade).unwrap_or_default();
        GcWeak { target: Some((this.object.clone(), value)) }
    }
}

impl<T> Clone for Gc<T> {
    fn clone(&self) -> Self {
        self.object.add_reference();
        Self { object: self.object.clone(), value: self.value.clone() }
    }
}

impl<T> Drop for Gc<T> {
    fn drop(&mut self) {
        // Before the count, so that the destructor runs where the object dies.
        drop(self.value.take());
        self.object.clone().drop_reference();
    }
}

impl<T> Deref for Gc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().expect("only a drop takes it")
    }
}

impl<T> PartialEq for Gc<T> {
    /// Whether both refer to the same object.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.object, &other.object)
    }
}

impl<T> Eq for Gc<T> {}

impl<T> Hash for Gc<T> {
    /// The identity of the object, as in `==`.
    fn hash<S: Hasher>(&self, state: &mut S) {
        Arc::as_ptr(&self.object).hash(state);
    }
}

impl<T> fmt::Debug for Gc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gc<{}>", std::any::type_name::<T>())
    }
}

/// A weak reference: it does not keep its target alive.
pub struct GcWeak<T> {
    target: Option<(Arc<Object>, Weak<T>)>,
}

impl<T> GcWeak<T> {
    /// A weak reference without a target.
    pub const fn new() -> Self {
        Self { target: None }
    }
}

impl<T: Trace> GcWeak<T> {
    /// A strong reference to the target, or `None` if the target is dead, or garbage that a
    /// collection has found.
    pub fn upgrade(&self, m: &Mutator) -> Option<Gc<T>> {
        m.must_be_attached();
        let (object, value) = self.target.as_ref()?;
        object.order.acquire();
        let value = object.count.with(|count| {
            let is_alive = count.sum() > 0 && !count.is_doomed;
            let value = is_alive.then(|| value.upgrade()).flatten();
            if value.is_some() {
                count.up();
            }
            value
        });
        Some(Gc { object: object.clone(), value: Some(value?) })
    }
}

impl<T> Clone for GcWeak<T> {
    fn clone(&self) -> Self {
        Self { target: self.target.clone() }
    }
}

impl<T> PartialEq for GcWeak<T> {
    /// Whether both have the same target, alive or dead, or both have none.
    fn eq(&self, other: &Self) -> bool {
        let object = |weak: &Self| weak.target.as_ref().map(|(object, _)| Arc::as_ptr(object));
        object(self) == object(other)
    }
}

impl<T> Eq for GcWeak<T> {}

impl<T> Default for GcWeak<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for GcWeak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcWeak<{}>", std::any::type_name::<T>())
    }
}
