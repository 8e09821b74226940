//! The objects of the calls: handles to objects of one heap, which live independently of its state.

use std::fmt;
use std::sync::{Arc, Mutex};

use standstill::dynamic::{Class, Type};
use standstill::gc_module::Services;
use standstill::{
    AnyGc, AtHome, AtomicGc, DeferGuard, Gc, GcCell, GcChannel, GcCondvar, GcDyn, GcOnce, GcSlice,
    GcStr, GcVec, GcWeak, GcWeakMap, Guardian, Heap, Home, KnownRoot, Mutator, SharedGc, Trace,
    Tracer, WeakRef, gc_dyn,
};

use crate::common::{Census, Witness};
use crate::stage::impossible;

/// An object with a number.
pub(crate) struct Leaf {
    pub(crate) number: u32,
    witness: Witness,
}

impl Trace for Leaf {
    fn traverse(this: &Self, _: &mut Tracer) {
        this.witness.check();
    }
}

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.witness.check();
        write!(f, "leaf {}", self.number)
    }
}

pub(crate) type Notes = GcWeakMap<AnyGc, u32>;
pub(crate) type Shown = dyn fmt::Display + Send + Sync;
pub(crate) type View = GcDyn<Shown>;
pub(crate) type Row = GcSlice<u32, Gc<Leaf>>;
pub(crate) type Slot = GcCell<Option<Gc<Leaf>>>;

pub(crate) struct Things {
    pub(crate) census: Arc<Census>,
    heap: Option<Heap>,
    services: Option<Services>,
    pub(crate) other: Heap,
    pub(crate) leaf: Gc<Leaf>,
    pub(crate) shared: SharedGc<Leaf>,
    pub(crate) any: AnyGc,
    pub(crate) view: View,
    pub(crate) text: GcStr<Gc<u32>>,
    /// It has an object in its queue.
    pub(crate) guardian: Guardian<Gc<Leaf>>,
    pub(crate) at_home: AtHome<u32>,
    /// It has an entry for `any`.
    pub(crate) notes: Gc<Notes>,
    /// Of a type that can be cloned.
    pub(crate) any_number: Gc<u32>,
    pub(crate) row: Row,
    pub(crate) weak: GcWeak<Leaf>,
    pub(crate) weak_ref: Gc<WeakRef<Leaf, u32>>,
    cell: Gc<Slot>,
    atomic: Gc<AtomicGc<Leaf>>,
    once: Gc<GcOnce<Leaf>>,
    unset: Gc<GcOnce<Leaf>>,
    condvar: Gc<GcCondvar>,
    channel: Gc<GcChannel<Gc<Leaf>>>,
    pub(crate) class: Type,
    pub(crate) instance: AnyGc,
    pub(crate) spares: Mutex<Spares>,
}

/// Last references, to be dropped by the call.
#[derive(Default)]
pub(crate) struct Spares {
    pub(crate) leaf: Option<Gc<Leaf>>,
    pub(crate) shared: Option<SharedGc<Leaf>>,
    pub(crate) view: Option<View>,
    pub(crate) text: Option<GcStr<Gc<u32>>>,
    pub(crate) row: Option<Row>,
    pub(crate) atomic: Option<AtomicGc<Leaf>>,
    pub(crate) once: Option<GcOnce<Leaf>>,
    /// One handle, in a buffer.
    pub(crate) vector: Option<GcVec<Leaf, 0>>,
    pub(crate) root: Option<KnownRoot>,
    pub(crate) defer: Option<DeferGuard>,
    pub(crate) heap: Option<Heap>,
}

impl Things {
    /// With `open`, the heap's handles are among the things.
    pub(crate) fn new(m: &Mutator, census: &Arc<Census>, other: &Heap, open: bool) -> Self {
        let leaf =
            |number| m.alloc(Leaf { number, witness: Witness::new(census, number as usize) });
        let share = |leaf| Gc::try_share(leaf, m).expect("its own");
        let seven = leaf(7);
        let once = m.alloc(GcOnce::new());
        assert!(once.set_handle(m, leaf(13)).is_ok());
        let spare_once = GcOnce::new();
        assert!(spare_once.set_handle(m, leaf(23)).is_ok());
        let channel = m.alloc(GcChannel::new());
        assert!(channel.send(m, leaf(28)).is_ok());
        let mut vector = GcVec::new();
        vector.push(m, leaf(26));
        let class = Class::new("states.Class").make(m).expect("a class");
        let instance = class.instantiate(m).expect("an instance");
        instance.set_attribute(m, "number", Some(m.alloc(14u32).into())).expect("room");
        let heap = m.heap();
        let spares = Spares {
            leaf: Some(leaf(20)),
            shared: Some(share(leaf(27))),
            view: Some(gc_dyn!(leaf(21) => Shown)),
            text: Some(m.alloc_str(m.alloc(28u32), "spare")),
            row: Some(m.alloc_slice(0, [leaf(22)])),
            atomic: Some(AtomicGc::new(Some(leaf(24)))),
            once: Some(spare_once),
            vector: Some(vector),
            root: Some(heap.known_root(leaf(25))),
            defer: open.then(|| heap.defer_collections()),
            heap: open.then(|| heap.clone()),
        };
        let any: AnyGc = leaf(8).into();
        let notes = Notes::new(m);
        notes.insert(m, &any, 31);
        let guardian = Guardian::new();
        guardian.register(m, &leaf(34));
        Self {
            guardian,
            at_home: Home::new().bind(35),
            notes,
            census: Arc::clone(census),
            heap: open.then(|| heap.clone()),
            services: open.then(|| heap.services()),
            other: other.clone(),
            any,
            view: gc_dyn!(leaf(9) => Shown),
            text: m.alloc_str(m.alloc(29u32), "text"),
            any_number: m.alloc(30),
            row: m.alloc_slice(10, [leaf(10)]),
            weak: Gc::downgrade(&seven, m),
            weak_ref: m.alloc_weak(&seven, 0, |_, _| ()),
            leaf: seven,
            shared: share(leaf(15)),
            cell: m.alloc(GcCell::new(Some(leaf(11)))),
            atomic: m.alloc(AtomicGc::new(Some(leaf(12)))),
            once,
            unset: m.alloc(GcOnce::new()),
            condvar: m.alloc(GcCondvar::new()),
            channel,
            class,
            instance,
            spares: Mutex::new(spares),
        }
    }

    /// The heap itself. While a handle to it exists, it is not gone.
    pub(crate) fn heap(&self) -> &Heap {
        self.heap.as_ref().unwrap_or_else(|| impossible("a handle keeps the heap"))
    }

    pub(crate) fn services(&self) -> &Services {
        self.services.as_ref().unwrap_or_else(|| impossible("a handle keeps the heap"))
    }

    pub(crate) fn cell(&self) -> &Slot {
        lent(&self.cell)
    }

    pub(crate) fn atomic(&self) -> &AtomicGc<Leaf> {
        lent(&self.atomic)
    }

    pub(crate) fn once(&self) -> &GcOnce<Leaf> {
        lent(&self.once)
    }

    pub(crate) fn unset(&self) -> &GcOnce<Leaf> {
        lent(&self.unset)
    }

    pub(crate) fn condvar(&self) -> &GcCondvar {
        lent(&self.condvar)
    }

    pub(crate) fn channel(&self) -> &GcChannel<Gc<Leaf>> {
        lent(&self.channel)
    }

    pub(crate) fn weak_ref(&self) -> &WeakRef<Leaf, u32> {
        lent(&self.weak_ref)
    }

    /// A new leaf in any heap.
    pub(crate) fn leaf_of(&self, m: &Mutator, number: u32) -> Gc<Leaf> {
        m.alloc(self.value(number))
    }

    pub(crate) fn value(&self, number: u32) -> Leaf {
        Leaf { number, witness: Witness::new(&self.census, number as usize) }
    }
}

/// The value, on any thread. It stands for a value that an attached thread has lent to this thread,
/// and waits.
fn lent<T: Trace>(gc: &Gc<T>) -> &T {
    // SAFETY: `as_ptr` is the address of the value, and `gc` keeps it. There is no `&mut` to the
    // value.
    unsafe { &*Gc::as_ptr(gc) }
}
