//! Real objects of all shapes, and one handle for them.

use std::sync::Arc;

use standstill::dynamic;
use standstill::{
    AnyGc, AtomicGc, Finalizer, Gc, GcCell, GcOnce, GcSlice, GcWeak, Mutator, Trace, Tracer,
    WeakRef,
};

use crate::dynamics;
use crate::model::Id;
use crate::program::{Kind, Shape};
use crate::world::{Tag, World};

/// A list of references, with a finalizer or without one: these are different types.
pub(crate) struct Object<const FINAL: bool> {
    tag: Tag,
    /// Leads to the object itself, if it was made so.
    me: Option<GcWeak<Self>>,
    edges: GcCell<Edges>,
}

/// Lock-free slots.
pub(crate) struct Slots {
    tag: Tag,
    slots: [AtomicGc<Object<false>>; 2],
}

/// A slot that is set once.
pub(crate) struct Single {
    tag: Tag,
    once: GcOnce<Object<false>>,
}

/// The data of a weak reference with a callback.
pub(crate) struct Data {
    tag: Tag,
    edges: GcCell<Edges>,
}

type Slice = GcSlice<Tag, GcCell<Option<Ref>>>;

/// A handle, with the known facts about its object.
#[derive(Clone)]
pub(crate) enum Ref {
    Plain(Gc<Object<false>>),
    Final(Gc<Object<true>>),
    Slots(Gc<Slots>),
    Once(Gc<Single>),
    Slice(Slice),
    Watch(Gc<WeakRef<Object<false>, Data>>),
    WatchFinal(Gc<WeakRef<Object<true>, Data>>),
    Dynamic(AnyGc),
}

/// A weak reference that is no object.
pub(crate) enum Weak {
    Plain(GcWeak<Object<false>>),
    Final(GcWeak<Object<true>>),
    Slots(GcWeak<Slots>),
    Once(GcWeak<Single>),
}

#[derive(Default)]
struct Edges(Vec<Ref>);

// ----------------------------------------------------------------------------------------- tracing

impl Trace for Ref {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        match this {
            Self::Plain(gc) => Trace::traverse(gc, tracer),
            Self::Final(gc) => Trace::traverse(gc, tracer),
            Self::Slots(gc) => Trace::traverse(gc, tracer),
            Self::Once(gc) => Trace::traverse(gc, tracer),
            Self::Slice(gc) => Trace::traverse(gc, tracer),
            Self::Watch(gc) => Trace::traverse(gc, tracer),
            Self::WatchFinal(gc) => Trace::traverse(gc, tracer),
            Self::Dynamic(gc) => Trace::traverse(gc, tracer),
        }
    }
}

impl Trace for Edges {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.0.iter().for_each(|edge| Trace::traverse(edge, tracer));
    }
}

impl<const FINAL: bool> Trace for Object<FINAL> {
    const FINALIZER: Option<Finalizer<Self>> = if FINAL {
        Some(Finalizer::new(|this, m| {
            // The handle has the type's other face only here.
            this.tag.finalize(m, || Ref::of(this.clone().into(), m));
        }))
    } else {
        None
    };

    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.tag.check();
        Trace::traverse(&this.edges, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        if let Some(me) = &this.me {
            assert!(
                me.upgrade(m).is_none(),
                "a weak reference leads to garbage that is being cleared"
            );
        }
        this.tag.clear();
        Trace::clear(&this.edges, m);
    }
}

impl Trace for Slots {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.tag.check();
        this.slots.iter().for_each(|slot| Trace::traverse(slot, tracer));
    }

    fn clear(this: &Self, m: &Mutator) {
        this.tag.clear();
        this.slots.iter().for_each(|slot| Trace::clear(slot, m));
    }
}

impl Trace for Single {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.tag.check();
        Trace::traverse(&this.once, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.tag.clear();
        Trace::clear(&this.once, m);
    }
}

impl Trace for Data {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.tag.check();
        Trace::traverse(&this.edges, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.edges, m);
    }
}

// --------------------------------------------------------------------------------- birth and names

impl Ref {
    pub(crate) fn alloc(m: &Mutator, world: &Arc<World>, id: Id, shape: Shape, kind: Kind) -> Self {
        let tag = || Tag::new(world, id, kind);
        let gc = match (shape, kind.has_finalizer()) {
            (Shape::List, false) => Self::Plain(m.alloc(Object::new(tag(), None))),
            (Shape::List, true) => Self::Final(m.alloc(Object::new(tag(), None))),
            (Shape::Cyclic, false) => Self::Plain(Object::cyclic(m, tag())),
            (Shape::Cyclic, true) => Self::Final(Object::cyclic(m, tag())),
            (Shape::Slots, _) => {
                Self::Slots(m.alloc(Slots { tag: tag(), slots: Default::default() }))
            }
            (Shape::Once, _) => Self::Once(m.alloc(Single { tag: tag(), once: GcOnce::new() })),
            (Shape::Slice, _) => {
                Self::Slice(m.alloc_slice(tag(), [const { GcCell::new(None) }; 3]))
            }
            (shape, _) => Self::Dynamic(dynamics::alloc(m, shape, tag())),
        };
        gc.named(world, id)
    }

    /// A weak reference to this that calls back, and holds something. A dynamic one needs a dynamic
    /// object for it.
    pub(crate) fn watch(
        &self,
        m: &Mutator,
        world: &Arc<World>,
        id: Id,
        holds: Option<Self>,
    ) -> Self {
        let data = |holds: Option<Self>| Data {
            tag: Tag::new(world, id, Kind::Plain),
            edges: GcCell::new(Edges(holds.into_iter().collect())),
        };
        let gc = match (self, holds) {
            (Self::Plain(gc), holds) => Self::Watch(m.alloc_weak(gc, data(holds), |weak, m| {
                assert!(weak.upgrade(m).is_none(), "cleared before the callback");
                let tag = &weak.data().tag;
                tag.world.was_called(tag.id);
            })),
            (Self::Final(gc), holds) => {
                Self::WatchFinal(m.alloc_weak(gc, data(holds), |weak, m| {
                    assert!(weak.upgrade(m).is_none(), "cleared before the callback");
                    let tag = &weak.data().tag;
                    tag.world.was_called(tag.id);
                }))
            }
            (Self::Dynamic(gc), None) => Self::Dynamic(dynamics::watch(m, gc, None)),
            (Self::Dynamic(gc), Some(Self::Dynamic(holds))) => {
                Self::Dynamic(dynamics::watch(m, gc, Some(holds)))
            }
            _ => unreachable!("what can be watched, and with what, is asked before"),
        };
        gc.named(world, id)
    }

    fn named(self, world: &World, id: Id) -> Self {
        world.names.lock().unwrap().insert(self.address(), id);
        self
    }

    pub(crate) fn address(&self) -> usize {
        dynamic::as_raw(&self.any()).as_ptr() as usize
    }

    /// The handle, with the type that its object names. Slices do not name theirs.
    pub(crate) fn of(any: AnyGc, m: &Mutator) -> Self {
        fn or<T: Trace>(
            any: Result<Ref, AnyGc>,
            m: &Mutator,
            face: fn(Gc<T>) -> Ref,
        ) -> Result<Ref, AnyGc> {
            any.or_else(|any| any.downcast(m).map(face))
        }
        let any = or(Err(any), m, Self::Plain);
        let any = or(any, m, Self::Final);
        let any = or(any, m, Self::Slots);
        let any = or(any, m, Self::Once);
        let any = or(any, m, Self::Watch);
        or(any, m, Self::WatchFinal).unwrap_or_else(Self::Dynamic)
    }

    pub(crate) fn any(&self) -> AnyGc {
        match self.clone() {
            Self::Plain(gc) => gc.into(),
            Self::Final(gc) => gc.into(),
            Self::Slots(gc) => gc.into(),
            Self::Once(gc) => gc.into(),
            Self::Slice(gc) => GcSlice::into_any(gc),
            Self::Watch(gc) => gc.into(),
            Self::WatchFinal(gc) => gc.into(),
            Self::Dynamic(gc) => gc,
        }
    }

    pub(crate) fn id(&self, _: &Mutator, world: &World) -> Id {
        let tag = match self {
            Self::Plain(gc) => &gc.tag,
            Self::Final(gc) => &gc.tag,
            Self::Slots(gc) => &gc.tag,
            Self::Once(gc) => &gc.tag,
            Self::Slice(gc) => &gc.header,
            Self::Watch(gc) => &gc.data().tag,
            Self::WatchFinal(gc) => &gc.data().tag,
            Self::Dynamic(gc) => match dynamics::tag(gc) {
                Some(tag) => tag,
                None => return world.names.lock().unwrap()[&self.address()],
            },
        };
        tag.check();
        tag.id
    }
}

impl<const FINAL: bool> Object<FINAL> {
    fn new(tag: Tag, me: Option<GcWeak<Self>>) -> Self {
        Self { tag, me, edges: GcCell::default() }
    }

    fn cyclic(m: &Mutator, tag: Tag) -> Gc<Self> {
        Gc::new_cyclic(m, |me| {
            assert!(me.upgrade(m).is_none(), "not born yet");
            Self::new(tag, Some(me.clone()))
        })
    }
}

// ------------------------------------------------------------------------------------------ fields

impl Ref {
    fn edges<'a>(&'a self, _: &'a Mutator) -> Option<&'a GcCell<Edges>> {
        Some(match self {
            Self::Plain(gc) => &gc.edges,
            Self::Final(gc) => &gc.edges,
            Self::Watch(gc) => &gc.data().edges,
            Self::WatchFinal(gc) => &gc.data().edges,
            _ => return None,
        })
    }

    /// A lock-free slot.
    pub(crate) fn slot<'a>(
        &'a self,
        _: &'a Mutator,
        at: usize,
    ) -> Option<&'a AtomicGc<Object<false>>> {
        match self {
            Self::Slots(gc) => gc.slots.get(at),
            _ => None,
        }
    }

    /// The handle, if its object fits a lock-free slot.
    pub(crate) fn plain(&self) -> Option<Gc<Object<false>>> {
        match self {
            Self::Plain(gc) => Some(gc.clone()),
            _ => None,
        }
    }

    /// The object's references, field by field.
    pub(crate) fn fields(&self, m: &Mutator) -> Vec<Option<Self>> {
        match self {
            Self::Slots(gc) => gc.slots.iter().map(|slot| slot.load(m).map(Self::Plain)).collect(),
            Self::Once(gc) => vec![gc.once.handle(m).map(Self::Plain)],
            Self::Slice(gc) => gc.items.iter().map(|item| item.get(m)).collect(),
            Self::Dynamic(gc) => dynamics::fields(m, gc),
            list => list.edges(m).expect("a list").lock(m).0.iter().cloned().map(Some).collect(),
        }
    }

    pub(crate) fn has_room(&self, m: &Mutator) -> bool {
        self.edges(m).is_some() || self.fields(m).iter().any(Option::is_none)
    }

    /// Puts a reference into the first empty field that takes it; says whether there was one.
    pub(crate) fn push(&self, m: &Mutator, to: Self) -> bool {
        if let Some(edges) = self.edges(m) {
            edges.lock(m).0.push(to);
            return true;
        }
        match (self, to) {
            (Self::Slots(gc), Self::Plain(to)) => {
                let mut slots = gc.slots.iter();
                slots.any(|slot| slot.compare_exchange(m, None, Some(to.clone())).is_ok())
            }
            (Self::Once(gc), Self::Plain(to)) => gc.once.set_handle(m, to).is_ok(),
            (Self::Slice(gc), to) => match gc.items.iter().find(|item| item.lock(m).is_none()) {
                Some(item) => {
                    item.set(m, Some(to));
                    true
                }
                None => false,
            },
            (Self::Dynamic(gc), to) if !matches!(to, Self::Slice(_)) => {
                dynamics::push(m, gc, to.any())
            }
            _ => false,
        }
    }

    /// Takes a reference out.
    pub(crate) fn remove(&self, m: &Mutator, at: usize) -> Option<Self> {
        match self {
            Self::Slots(gc) => gc.slots.get(at)?.take(m).map(Self::Plain),
            Self::Once(_) => None,
            Self::Slice(gc) => gc.items.get(at)?.take(m),
            Self::Dynamic(gc) => dynamics::remove(m, gc, at).map(|gc| Self::of(gc, m)),
            list => {
                let mut edges = list.edges(m).expect("a list").lock(m);
                (at < edges.0.len()).then(|| edges.0.remove(at))
            }
        }
    }

    /// Takes all references out that can be.
    pub(crate) fn take_all(&self, m: &Mutator) -> Vec<Self> {
        match self.edges(m) {
            Some(edges) => edges.take(m).0,
            None => (0..3).filter_map(|at| self.remove(m, at)).collect(),
        }
    }

    /// The target of a weak reference that is an object; `None`: it is no weak reference.
    pub(crate) fn upgrade_any(&self, m: &Mutator) -> Option<Option<Self>> {
        match self {
            Self::Watch(gc) => Some(gc.upgrade(m).map(Self::Plain)),
            Self::WatchFinal(gc) => Some(gc.upgrade(m).map(Self::Final)),
            Self::Dynamic(gc) => Some(dynamics::upgrade_any(m, gc)?.map(|gc| Self::of(gc, m))),
            _ => None,
        }
    }

    /// Where an object's own weak reference to itself leads, if it has one.
    pub(crate) fn itself(&self, m: &Mutator) -> Option<Option<Self>> {
        match self {
            Self::Plain(gc) => gc.me.as_ref().map(|me| me.upgrade(m).map(Self::Plain)),
            Self::Final(gc) => gc.me.as_ref().map(|me| me.upgrade(m).map(Self::Final)),
            _ => None,
        }
    }

    /// A weak reference; `None`: there are none to such objects.
    pub(crate) fn weak(&self, m: &Mutator) -> Option<Weak> {
        Some(match self {
            Self::Plain(gc) => Weak::Plain(Gc::downgrade(gc, m)),
            Self::Final(gc) => Weak::Final(Gc::downgrade(gc, m)),
            Self::Slots(gc) => Weak::Slots(Gc::downgrade(gc, m)),
            Self::Once(gc) => Weak::Once(Gc::downgrade(gc, m)),
            _ => return None,
        })
    }
}

impl Weak {
    pub(crate) fn upgrade(&self, m: &Mutator) -> Option<Ref> {
        match self {
            Self::Plain(weak) => weak.upgrade(m).map(Ref::Plain),
            Self::Final(weak) => weak.upgrade(m).map(Ref::Final),
            Self::Slots(weak) => weak.upgrade(m).map(Ref::Slots),
            Self::Once(weak) => weak.upgrade(m).map(Ref::Once),
        }
    }
}
