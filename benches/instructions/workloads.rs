//! The counted workloads: one for each row. A workload is always the same, and one thread works
//! while it is counted.

use std::array;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::mpsc;
use std::thread;

use standstill::dynamic::{self, Flags, RawObject, TypeRecord, TypeSpec, VisitProc};
use standstill::model::ModelHeap;
use standstill::{
    AnyGc, AtomicGc, Gc, GcCell, Heap, HeapBuilder, Mutator, Pacing, SharedGc, Trace,
};

use crate::lists::{self, Ambient, FreeList, Held, Lists, LookedUp, Memory};

/// Does its work, some of it [`measured`]; returns how many operations that was.
pub(crate) type Workload = fn() -> usize;

/// A line of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) work: Workload,
    /// Subtracted, instructions and operations alike. The rest are the operations that only `work`
    /// has.
    pub(crate) less: Option<Workload>,
}

const fn row(name: &'static str, work: Workload) -> Row {
    Row { name, work, less: None }
}

const fn difference(name: &'static str, work: Workload, less: Workload) -> Row {
    Row { name, work, less: Some(less) }
}

pub(crate) const ROWS: &[Row] = &[
    row("allocate and drop, 48 bytes", || {
        here(|m| each(|| drop(black_box(m.alloc(Plain::new())))))
    }),
    #[cfg(feature = "stacks")]
    row("allocate and drop, 48 bytes, no sample is due", || sampling(usize::MAX)),
    #[cfg(feature = "stacks")]
    row("allocate and drop, 48 bytes, a sample in 512 KiB", || sampling(512 << 10)),
    row("allocate and drop, with references", || {
        here(|m| each(|| drop(black_box(m.alloc(Link::default())))))
    }),
    row("allocate and keep, 48 bytes", allocate_and_keep),
    row("drop what was kept, 48 bytes", drop_kept),
    row("untrack and track", untrack_and_track),
    row("clone and drop, owner", || here(|m| clone_and_drop(&m.alloc(Plain::new())))),
    row("clone and drop, not the owner", || {
        made_elsewhere(|m| m.alloc(Plain::new()), |_, gc| clone_and_drop(&gc))
    }),
    row("clone and drop, merged", || here(|m| clone_and_drop(&merged(m.heap())))),
    row("clone and drop, SharedGc", clone_and_drop_shared),
    row("allocate and drop, SharedGc, 48 bytes", || {
        here(|m| each(|| drop(black_box(m.alloc_shared(Plain::new())))))
    }),
    row("last drop, not the owner", last_drop_elsewhere),
    row("last drop, the owner has ended", last_drop_without_owner),
    row("get", get),
    row("lock a cell", lock_a_cell),
    row("set a cell", set_a_cell),
    row("load an atomic slot", load_an_atomic_slot),
    row("upgrade a weak reference", upgrade_a_weak_reference),
    row("safepoint", || here(|m| each(|| m.safepoint()))),
    row("detach and attach", || here(|m| each(|| m.detach(|| ())))),
    row("attach, and drop the mutator", || attached_shortly(|_| ())),
    row("attach, allocate and drop, and drop the mutator", || {
        attached_shortly(|m| drop(black_box(m.alloc(Plain::new()))))
    }),
    row("full collection of nothing", || here(|m| each(|| drop(m.collect())))),
    row("full collection, a node without edges", full::<0>),
    row("full collection, a node with 4 edges", full::<4>),
    difference("full collection, an edge more", || 4 * full::<4>(), || 2 * full::<2>()),
    row("root named, a node with 4 edges", named::<4>),
    difference("root named, an edge more", || 4 * named::<4>(), || 2 * named::<2>()),
    row("garbage, a node with 4 edges", garbage_graph),
    row("garbage, a node of a ring", garbage_rings),
    row("young collection, a new object kept", young_kept),
    row("young collection, a new object in a dead ring", young_garbage),
    row("dynamic, allocate and drop", dynamic_allocate_and_drop),
    row("dynamic, full collection, a node with 4 edges", dynamic_full::<4>),
    difference(
        "dynamic, full collection, an edge more",
        || 4 * dynamic_full::<4>(),
        || 2 * dynamic_full::<2>(),
    ),
    row("dynamic, garbage, a node of a ring", dynamic_garbage),
    row("list of a model, held mutator", || {
        lists_on_a_heap(|heap| one_list(&Held(&heap.attach())))
    }),
    row("list of a model, ambient guard", || {
        lists_on_a_heap(|heap| one_list(&Ambient(&heap.enter())))
    }),
    row("list of a model, the mutator looked up at each call", || {
        lists_on_a_heap(|heap| {
            let _m = heap.attach();
            one_list(&LookedUp)
        })
    }),
    // Beside the three above.
    row("list, free list in front of malloc", || one_list(&FreeList)),
];

/// Repetitions of short workloads.
const TIMES: usize = 10_000;
/// The number of collected objects.
const NODES: usize = 100_000;
/// Of these, how many are new to a young collection, and how many a ring has.
const NEW: usize = 10_000;
const RING: usize = 10;

/// Callgrind counts inside of this, by its name.
#[unsafe(no_mangle)]
#[inline(never)]
fn standstill_measured(work: &mut dyn FnMut()) {
    work();
    // Else the call would be a jump, and the callee's return the end of both.
    black_box(());
}

/// Runs the operations of the row.
fn measured<R>(work: impl FnOnce() -> R) -> R {
    let (mut work, mut result) = (Some(work), None);
    standstill_measured(&mut || result = work.take().map(|work| work()));
    result.expect("called once")
}

/// Measures an operation, many times over. The first one fills caches and lists, which is lost
/// among the others.
fn each(mut operation: impl FnMut()) -> usize {
    measured(|| (0..TIMES).for_each(|_| operation()));
    TIMES
}

fn builder() -> HeapBuilder {
    // Neither the machine's memory nor its cores make a difference.
    Heap::builder().reserve(1 << 30).workers(1).pacing(Pacing::manual())
}

fn heap() -> Heap {
    builder().build().expect("a heap")
}

/// Runs a workload attached to a new heap.
fn here<R>(work: impl FnOnce(&mut Mutator) -> R) -> R {
    work(&mut heap().attach())
}

/// Allocates and drops in a heap that samples an object in each `bytes`, often enough for many
/// samples.
#[cfg(feature = "stacks")]
fn sampling(bytes: usize) -> usize {
    const OFTEN: usize = 20 * TIMES;
    let heap = builder().sample_allocations(bytes).build().expect("a heap");
    let m = heap.attach();
    measured(|| (0..OFTEN).for_each(|_| drop(black_box(m.alloc(Plain::new())))));
    OFTEN
}

/// Attaches for each operation.
fn attached_shortly(operation: impl Fn(&Mutator)) -> usize {
    let heap = heap();
    each(|| operation(&heap.attach()))
}

/// Runs a workload with objects of another thread, which is detached meanwhile.
fn made_elsewhere<T: Send>(
    make: impl FnOnce(&Mutator) -> T + Send,
    work: impl FnOnce(&mut Mutator, T) -> usize,
) -> usize {
    let heap = heap();
    let (sender, made) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            let made = make(&m);
            m.detach(move || {
                sender.send(made).expect("the receiver waits");
                let _ = wait.recv();
            });
        });
        let made = made.recv().expect("what was made");
        let operations = work(&mut heap.attach(), made);
        drop(done);
        operations
    })
}

/// 48 bytes without references.
#[derive(Trace)]
struct Plain([u64; 6]);

impl Plain {
    fn new() -> Self {
        Self([1; 6])
    }
}

/// 48 bytes with two references.
#[derive(Default, Trace)]
struct Link {
    next: GcCell<Option<Gc<Link>>>,
    other: GcCell<Option<Gc<Link>>>,
    payload: [u64; 2],
}

/// As many references as are asked for.
#[derive(Trace)]
struct Node<const E: usize> {
    edges: [GcCell<Option<Gc<Node<E>>>>; E],
}

fn allocate_and_keep() -> usize {
    here(|m| {
        let mut kept = Vec::with_capacity(TIMES);
        measured(|| (0..TIMES).for_each(|_| kept.push(m.alloc(Plain::new()))));
        kept.len()
    })
}

fn drop_kept() -> usize {
    here(|m| {
        let kept: Vec<_> = (0..TIMES).map(|_| m.alloc(Plain::new())).collect();
        measured(|| drop(kept));
        assert_eq!(m.heap().stats().live_objects, 0);
        TIMES
    })
}

fn untrack_and_track() -> usize {
    here(|m| {
        let gc = m.alloc(Link::default());
        each(|| assert!(Gc::untrack(&gc, m) && Gc::track(&gc, m)))
    })
}

fn clone_and_drop<T>(gc: &Gc<T>) -> usize {
    each(|| drop(black_box(gc.clone())))
}

fn clone_and_drop_shared() -> usize {
    here(|m| {
        let shared: SharedGc<Plain> = m.alloc_shared(Plain::new());
        each(|| drop(black_box(shared.clone())))
    })
}

/// An object whose owner has dropped its last reference.
fn merged(heap: &Heap) -> Gc<Plain> {
    let maker = || {
        let m = heap.attach();
        let gc = m.alloc(Plain::new());
        thread::scope(|scope| scope.spawn(|| gc.clone()).join().expect("a clone"))
    };
    thread::scope(|scope| scope.spawn(maker).join().expect("an object"))
}

fn last_drop_elsewhere() -> usize {
    let make = |m: &Mutator| (0..TIMES).map(|_| m.alloc(Plain::new())).collect::<Vec<_>>();
    made_elsewhere(make, |m, made| {
        measured(|| drop(made));
        assert_eq!(m.heap().stats().live_objects, 0);
        TIMES
    })
}

fn last_drop_without_owner() -> usize {
    let heap = heap();
    let make = || {
        let m = heap.attach();
        (0..TIMES).map(|_| m.alloc(Plain::new())).collect::<Vec<_>>()
    };
    let made = thread::scope(|scope| scope.spawn(make).join().expect("objects"));
    let _m = heap.attach();
    measured(|| drop(made));
    assert_eq!(heap.stats().live_objects, 0);
    TIMES
}

fn get() -> usize {
    here(|m| {
        let gc = m.alloc(Plain::new());
        each(|| assert_eq!(black_box(&gc).0[0], 1))
    })
}

fn lock_a_cell() -> usize {
    here(|m| {
        let gc = m.alloc(Link::default());
        let link = &*gc;
        assert_eq!(link.payload, [0; 2]);
        each(|| assert!(black_box(link).next.lock(m).is_none()))
    })
}

fn set_a_cell() -> usize {
    here(|m| {
        let (from, to) = (m.alloc(Link::default()), m.alloc(Link::default()));
        each(|| from.next.set(m, Some(to.clone())))
    })
}

fn load_an_atomic_slot() -> usize {
    here(|m| {
        let slot = AtomicGc::new(Some(m.alloc(Plain::new())));
        each(|| drop(black_box(slot.load(m))))
    })
}

fn upgrade_a_weak_reference() -> usize {
    here(|m| {
        let gc = m.alloc(Plain::new());
        let weak = Gc::downgrade(&gc, m);
        each(|| drop(black_box(weak.upgrade(m))))
    })
}

/// Numbers that look random, and are the same each time.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Calls `set` with every edge of a graph: the node it leaves, its number there, and the node it
/// leads to. The first edges make one ring of all nodes, the others lead anywhere.
fn edges(edges: usize, mut set: impl FnMut(usize, usize, usize)) {
    let mut random = SplitMix(7);
    for node in 0..NODES {
        for edge in 0..edges {
            set(node, edge, if edge == 0 { (node + 1) % NODES } else { random.below(NODES) });
        }
    }
}

/// The handles that keep a graph alive: one to its first node, or one to each node if there are no
/// edges.
fn graph<const E: usize>(m: &Mutator) -> Vec<Gc<Node<E>>> {
    let node = |_| m.alloc(Node { edges: array::from_fn(|_| GcCell::default()) });
    let mut nodes: Vec<_> = (0..NODES).map(node).collect();
    edges(E, |from, edge, to| nodes[from].edges[edge].set(m, Some(nodes[to].clone())));
    if E > 0 {
        nodes.truncate(1);
    }
    nodes
}

/// A full collection that frees nothing, not the first one.
fn collect_live(m: &mut Mutator) -> usize {
    m.collect();
    let report = measured(|| m.collect());
    assert_eq!((report.candidates, report.collected), (NODES, 0));
    NODES
}

fn full<const E: usize>() -> usize {
    here(|m| {
        let _kept = graph::<E>(m);
        collect_live(m)
    })
}

fn named<const E: usize>() -> usize {
    here(|m| {
        let kept = graph::<E>(m);
        let _root = m.heap().known_root(kept[0].clone());
        collect_live(m)
    })
}

/// A collection that frees all objects that it traverses.
fn collect_garbage(m: &mut Mutator, nodes: usize) -> usize {
    let report = measured(|| if nodes == NEW { m.collect_young() } else { m.collect() });
    assert_eq!((report.candidates, report.collected), (nodes, nodes));
    nodes
}

fn garbage_graph() -> usize {
    here(|m| {
        drop(graph::<4>(m));
        collect_garbage(m, NODES)
    })
}

/// Rings without references from outside.
fn rings(m: &Mutator, nodes: usize) {
    for _ in 0..nodes / RING {
        let ring: [_; RING] = array::from_fn(|_| m.alloc(Link::default()));
        for at in 0..RING {
            ring[at].next.set(m, Some(ring[(at + 1) % RING].clone()));
        }
    }
}

fn garbage_rings() -> usize {
    here(|m| {
        rings(m, NODES);
        collect_garbage(m, NODES)
    })
}

/// Old objects, each of which refers to the one before.
fn old(m: &mut Mutator) -> Option<Gc<Link>> {
    let link = |m: &Mutator, next| m.alloc(Link { next: GcCell::new(next), ..Link::default() });
    let last = (0..NODES).fold(None, |next, _| Some(link(m, next)));
    m.collect();
    last
}

fn young_kept() -> usize {
    here(|m| {
        let old = old(m);
        let new = |_| m.alloc(Link { next: GcCell::new(old.clone()), ..Link::default() });
        let _new: Vec<_> = (0..NEW).map(new).collect();
        let report = measured(|| m.collect_young());
        assert_eq!((report.candidates, report.collected), (NEW, 0));
        NEW
    })
}

fn young_garbage() -> usize {
    here(|m| {
        let _old = old(m);
        rings(m, NEW);
        collect_garbage(m, NEW)
    })
}

/// A dynamic object with some fields.
#[repr(C)]
struct Fields<const E: usize> {
    head: MaybeUninit<RawObject>,
    fields: [*mut RawObject; E],
}

unsafe fn fields<'a, const E: usize>(object: *mut RawObject) -> &'a mut [*mut RawObject; E] {
    // SAFETY: called for objects of this type alone, by the thread that has them, or in a stop.
    unsafe { &mut (*object.cast::<Fields<E>>()).fields }
}

unsafe extern "C" fn traverse<const E: usize>(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: called for a living object, with a visitor and its argument.
    unsafe {
        for &mut field in fields::<E>(object) {
            if !field.is_null() {
                let result = visit(field, arg);
                if result != 0 {
                    return result;
                }
            }
        }
    }
    0
}

unsafe extern "C" fn clear<const E: usize>(object: *mut RawObject) -> c_int {
    // SAFETY: called for a living object, which owns the references in its fields.
    unsafe {
        for field in fields::<E>(object) {
            if let Some(old) = NonNull::new(std::mem::replace(field, null_mut())) {
                assert!(dynamic::decref(old));
            }
        }
    }
    0
}

/// A static type of objects with some fields, which leaves their end to the generic handler.
fn fields_type<const E: usize>() -> &'static TypeRecord {
    let mut spec = TypeSpec::new("instructions.Fields");
    spec.basic_size = size_of::<Fields<E>>() as isize;
    spec.flags = Flags::HAVE_GC;
    spec.slots.traverse = Some(traverse::<E>);
    spec.slots.clear = Some(clear::<E>);
    // SAFETY: the handlers are those of such objects.
    unsafe { dynamic::ready_static(&spec, null_mut()) }.expect("a type")
}

/// As C does it.
fn dynamic_allocate_and_drop() -> usize {
    let record = fields_type::<2>();
    here(|m| {
        each(|| {
            // SAFETY: a ready type, and the reference that was just made.
            unsafe {
                let object = black_box(dynamic::allocate_common(m, record).expect("room"));
                assert!(dynamic::decref_common(object) || dynamic::decref_last(m, object));
            }
        })
    })
}

/// Dynamic objects without references.
fn objects<const E: usize>(m: &Mutator) -> Vec<AnyGc> {
    let record = fields_type::<E>();
    // SAFETY: a ready type; the reference goes over.
    let object =
        |_| unsafe { dynamic::from_raw(dynamic::allocate_tracked(m, record, 0).expect("room")) };
    (0..NODES).map(object).collect()
}

/// Makes an object with an empty field refer to another.
fn refer<const E: usize>(from: &AnyGc, edge: usize, to: &AnyGc) {
    // SAFETY: a living object of this type, which no other thread accesses.
    unsafe {
        fields::<E>(dynamic::as_raw(from).as_ptr())[edge] = dynamic::into_raw(to.clone()).as_ptr()
    };
}

fn dynamic_full<const E: usize>() -> usize {
    here(|m| {
        let mut nodes = objects::<E>(m);
        edges(E, |from, edge, to| refer::<E>(&nodes[from], edge, &nodes[to]));
        nodes.truncate(1);
        collect_live(m)
    })
}

fn dynamic_garbage() -> usize {
    here(|m| {
        for ring in objects::<2>(m).chunks(RING) {
            for (at, object) in ring.iter().enumerate() {
                refer::<2>(object, 0, &ring[(at + 1) % RING]);
            }
        }
        collect_garbage(m, NODES)
    })
}

fn lists_on_a_heap(work: fn(&ModelHeap<Lists>) -> usize) -> usize {
    let heap = builder().build_with(Lists).expect("a heap");
    work(&heap)
}

/// Makes and drops lists of an interpreter, one at a time.
fn one_list(memory: &impl Memory) -> usize {
    measured(|| lists::one(memory, TIMES));
    TIMES
}
