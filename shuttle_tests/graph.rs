//! The objects and references under test. Each reports its changes to the oracle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::below;
use super::shadow::{Holder, Id, Shadow};
use crate::base::sync::Mutex;
use crate::{AtomicGc, Finalizer, Gc, GcCell, GcWeak, Heap, Mutator, Trace, Tracer};

/// The number of places outside the heap that all threads share: `PLACES` for counted references,
/// and as many for weak ones.
pub(crate) const PLACES: usize = 6;

/// The state that the threads of one schedule share, besides the heap.
pub(crate) struct World<const FINAL: bool> {
    pub(crate) shadow: Shadow,
    pub(crate) places: [Mutex<Option<Ref<FINAL>>>; PLACES],
    pub(crate) weaks: [Mutex<Option<Weak<FINAL>>>; PLACES],
    /// Weak references to untracked objects. No collection finds these objects, so the end of the
    /// schedule clears them.
    pub(crate) untracked: Mutex<Vec<Weak<FINAL>>>,
    /// While this is set, finalizers change the graph.
    pub(crate) lively: AtomicBool,
    /// Failures that the oracle found in finalizers, callbacks, clear handlers and destructors. The
    /// library catches the panics of these, so they are recorded here.
    caught: std::sync::Mutex<Vec<String>>,
}

impl<const FINAL: bool> World<FINAL> {
    pub(crate) fn new(heap: &Heap) -> Arc<Self> {
        let world = Arc::new(Self {
            shadow: Shadow::default(),
            places: Default::default(),
            weaks: Default::default(),
            untracked: Mutex::default(),
            lively: AtomicBool::new(true),
            caught: std::sync::Mutex::default(),
        });
        let weak = Arc::downgrade(&world);
        heap.on_unraisable(move |report| {
            if let Some(world) = weak.upgrade() {
                world.caught.lock().unwrap().push(format!("{report:?}"));
            }
        });
        world
    }

    /// Fails if the library has caught a panic of the oracle.
    pub(crate) fn assert_well(&self) {
        let caught = std::mem::take(&mut *self.caught.lock().unwrap());
        assert!(caught.is_empty(), "{caught:#?}");
    }

    /// A new reference to the object in a random place, owned by the caller.
    pub(crate) fn pick(&self) -> Option<Ref<FINAL>> {
        self.places[below(PLACES)].lock().as_ref().map(|it| it.copy(Holder::Root))
    }

    /// Puts `it` into a random place. Returns the previous reference.
    #[must_use]
    pub(crate) fn put(&self, it: Option<Ref<FINAL>>) -> Option<Ref<FINAL>> {
        let it = it.map(|it| it.moved_to(Holder::Root));
        std::mem::replace(&mut *self.places[below(PLACES)].lock(), it)
    }
}

/// An object with references in a cell.
pub(crate) struct Thing<const FINAL: bool> {
    pub(crate) id: Id,
    pub(crate) edges: GcCell<Vec<Ref<FINAL>>>,
    world: Arc<World<FINAL>>,
}

impl<const FINAL: bool> Thing<FINAL> {
    /// A new object, and the caller's reference to it.
    pub(crate) fn make(m: &Mutator, world: &Arc<World<FINAL>>) -> Ref<FINAL> {
        let id = world.shadow.born();
        let gc = m.alloc(Self { id, edges: GcCell::default(), world: world.clone() });
        Ref::new(gc, id, Holder::Root, world.clone())
    }
}

impl<const FINAL: bool> Trace for Thing<FINAL> {
    const FINALIZER: Option<Finalizer<Self>> = if FINAL {
        Some(Finalizer::new(|this, m| {
            let thing = &*this;
            let world = &thing.world;
            world.shadow.finalizing(thing.id);
            if world.lively.load(Relaxed) {
                let me = Ref::new(this.clone(), thing.id, Holder::Root, world.clone());
                match thing.id % 6 {
                    // Resurrect the object.
                    0 => drop(world.put(Some(me))),
                    // Make the object refer to another.
                    1 => {
                        if let Some(other) = world.pick() {
                            me.link(&other, m);
                        }
                    }
                    // Allocate another object, in a cycle with this one.
                    2 => {
                        let bred = Self::make(m, world);
                        bred.link(&me, m);
                        me.link(&bred, m);
                    }
                    // Drop the object's references.
                    3 => drop(thing.edges.take(m)),
                    // Make another object refer to this one.
                    4 => {
                        if let Some(other) = world.pick() {
                            other.link(&me, m);
                        }
                    }
                    // Do nothing.
                    _ => {}
                }
            }
            world.shadow.finalized();
        }))
    } else {
        None
    };

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.edges, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.world.shadow.cleared(this.id);
        Trace::clear(&this.edges, m);
    }
}

impl<const FINAL: bool> Drop for Thing<FINAL> {
    fn drop(&mut self) {
        self.world.shadow.died(self.id);
    }
}

/// A counted reference, entered in the oracle.
pub(crate) struct Ref<const FINAL: bool> {
    gc: Gc<Thing<FINAL>>,
    pub(crate) to: Id,
    by: Holder,
    world: Arc<World<FINAL>>,
}

impl<const FINAL: bool> Ref<FINAL> {
    pub(crate) fn new(gc: Gc<Thing<FINAL>>, to: Id, by: Holder, world: Arc<World<FINAL>>) -> Self {
        world.shadow.refer(by, to);
        Self { gc, to, by, world }
    }

    /// A second reference to the object, with `by` as its holder.
    pub(crate) fn copy(&self, by: Holder) -> Self {
        self.world.shadow.touched(self.to);
        Self::new(self.gc.clone(), self.to, by, self.world.clone())
    }

    /// The same reference, with `by` as its holder.
    pub(crate) fn moved_to(mut self, by: Holder) -> Self {
        self.world.shadow.refer(by, self.to);
        self.world.shadow.strike(std::mem::replace(&mut self.by, by), self.to);
        self
    }

    pub(crate) fn gc(&self) -> &Gc<Thing<FINAL>> {
        &self.gc
    }

    /// The object.
    pub(crate) fn get<'a>(&'a self, _: &'a Mutator) -> &'a Thing<FINAL> {
        self.world.shadow.touched(self.to);
        let thing = &*self.gc;
        assert_eq!(thing.id, self.to, "another object lies where the reference leads");
        thing
    }

    /// Makes the object refer to `to`.
    pub(crate) fn link(&self, to: &Self, m: &Mutator) {
        let it = to.copy(Holder::Object(self.to));
        self.get(m).edges.lock(m).push(it);
    }

    /// Removes one of the object's references, and returns it.
    pub(crate) fn unlink(&self, m: &Mutator) -> Option<Self> {
        let mut edges = self.get(m).edges.lock(m);
        let at = if edges.is_empty() { return None } else { below(edges.len()) };
        let it = edges.swap_remove(at);
        drop(edges);
        Some(it.moved_to(Holder::Root))
    }

    pub(crate) fn downgrade(&self, m: &Mutator) -> Weak<FINAL> {
        Weak { weak: Gc::downgrade(&self.gc, m), to: self.to, world: self.world.clone() }
    }
}

impl<const FINAL: bool> Drop for Ref<FINAL> {
    fn drop(&mut self) {
        self.world.shadow.strike(self.by, self.to);
    }
}

impl<const FINAL: bool> Trace for Ref<FINAL> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.gc, tracer);
    }
}

/// A weak reference whose upgrades the oracle judges.
#[derive(Clone)]
pub(crate) struct Weak<const FINAL: bool> {
    weak: GcWeak<Thing<FINAL>>,
    to: Id,
    world: Arc<World<FINAL>>,
}

impl<const FINAL: bool> Weak<FINAL> {
    pub(crate) fn upgrade(&self, m: &Mutator) -> Option<Ref<FINAL>> {
        let before = self.world.shadow.before_upgrade(self.to);
        match self.weak.upgrade(m) {
            Some(gc) => {
                assert_eq!(gc.id, self.to, "another object lies where the weak reference leads");
                self.world.shadow.upgraded(self.to);
                Some(Ref::new(gc, self.to, Holder::Root, self.world.clone()))
            }
            None => {
                self.world.shadow.upgrade_failed(self.to, before);
                None
            }
        }
    }
}

/// The data of a weak reference with a callback. The callback checks that the object is gone and
/// that this is its first call.
pub(crate) struct Watched<const FINAL: bool> {
    pub(crate) to: Id,
    pub(crate) called: AtomicBool,
    pub(crate) world: Arc<World<FINAL>>,
}

/// An object that stays reachable for the whole schedule, with references in slots that threads
/// read without a lock. The slots change too fast for the oracle, which reads them at quiet points
/// instead.
pub(crate) struct Board<const FINAL: bool> {
    pub(crate) slots: [AtomicGc<Thing<FINAL>>; 3],
}

impl<const FINAL: bool> Board<FINAL> {
    pub(crate) fn new() -> Self {
        Self { slots: std::array::from_fn(|_| AtomicGc::new(None)) }
    }
}

impl<const FINAL: bool> Trace for Board<FINAL> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.slots, tracer);
    }

    fn clear(_: &Self, _: &Mutator) {
        panic!("the board is cleared, and held");
    }
}
