//! The output of the derive, and the traversals of the containers of the standard library. Every
//! kind of container must carry a cycle that a collection finds: a reference that is not shown
//! leaks, and one that is shown twice is worse.

#![cfg(feature = "derive")]
#![deny(missing_docs, unused, unused_qualifications, single_use_lifetimes)]

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use standstill::{AnyGc, Gc, GcCell, GcVec, GcWeak, Heap, Mutator, Trace};

// -------------------------------------------------------------------- containers carry edges

/// An object that refers to others through a container.
#[derive(Trace)]
struct Hub<C: Default> {
    spokes: GcCell<C>,
}

/// Puts `wrap(hub)` into the hub itself. While the hub is held it stays; then it is found.
#[track_caller]
fn carries_a_cycle<C: Trace + Default + Send + Sync>(wrap: impl Fn(AnyGc) -> C) {
    let heap = Heap::new();
    let mut m = heap.attach();
    let hub = m.alloc(Hub { spokes: GcCell::new(C::default()) });
    hub.spokes.set(&m, wrap(AnyGc::from(hub.clone())));
    assert!(C::TRACKED);
    assert_eq!(m.collect().collected, 0, "held from outside");
    drop(hub);
    assert_eq!(m.collect().collected, 1, "held by nothing but itself");
}

/// An object that refers to others through a [`GcVec`], whose type it names itself.
#[derive(Trace)]
struct Spread {
    spokes: GcCell<GcVec<Spread, 1>>,
    /// Not in a cell: it never changes.
    fixed: GcVec<Spread, 2>,
}

#[test]
fn vectors_of_handles() {
    for spokes in [1, 2, 9] {
        let heap = Heap::new();
        let mut m = heap.attach();
        let new = |fixed| m.alloc(Spread { spokes: GcCell::default(), fixed });
        let leaf = new(GcVec::new());
        let hub = new(GcVec::from([leaf.clone(), leaf.clone()]));
        leaf.spokes.lock(&m).extend(&m, (0..spokes).map(|_| hub.clone()));
        drop(leaf);
        assert_eq!(m.collect().collected, 0, "held from outside");
        drop(hub);
        assert_eq!(m.collect().collected, 2, "held by nothing but themselves");
        assert_eq!(heap.stats().live_objects, 0);
    }
}

/// A key with an order and a hash that do not depend on the object.
#[derive(Clone, Trace)]
struct Key(u32, AnyGc);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for Key {}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// A handle in a foreign type counts, and is not reported.
#[test]
fn opaque_values() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let inner = m.alloc(7_u32);
    let weak = Gc::downgrade(&inner, &m);
    let opaque = m.alloc_opaque(Mutex::new(Some(inner)));
    assert!(!Gc::is_tracked(&opaque, &m));
    let any = Gc::into_any(opaque.clone());
    assert!(m.referents(&any).is_empty());
    drop(any);
    assert_eq!(m.collect().collected, 0);
    assert_eq!(opaque.lock().unwrap().as_deref(), Some(&7));
    drop(opaque);
    assert!(weak.upgrade(&m).is_none());
}

#[test]
fn single_values() {
    carries_a_cycle(Some);
    carries_a_cycle(|hub| Some(Box::new(hub)));
    carries_a_cycle(|hub| Some(Ok::<_, u8>(hub)));
    carries_a_cycle(|hub| Some(Err::<u8, _>(hub)));
    carries_a_cycle(|hub| Reverse(Some(hub)));
    carries_a_cycle(|hub| Some(Some(hub.clone())..Some(hub)));
    carries_a_cycle(|hub| Some(Some(hub.clone())..=Some(hub)));
}

#[test]
fn sequences() {
    carries_a_cycle(|hub| vec![hub.clone(), hub.clone(), hub]);
    carries_a_cycle(|hub| vec![hub; 2].into_boxed_slice());
    carries_a_cycle(|hub| VecDeque::from([hub.clone(), hub]));
    carries_a_cycle(|hub| LinkedList::from([hub.clone(), hub]));
    carries_a_cycle(|hub| [None, Some(hub.clone()), Some(hub)]);
    carries_a_cycle(|hub| Cow::<'static, [AnyGc]>::Owned(vec![hub]));
    carries_a_cycle(|hub| BinaryHeap::from([Key(1, hub.clone()), Key(2, hub)]));
    carries_a_cycle(|hub| BTreeSet::from([Key(1, hub.clone()), Key(2, hub)]));
    carries_a_cycle(|hub| HashSet::from([Key(1, hub.clone()), Key(2, hub)]));
}

#[test]
fn maps_show_keys_and_values() {
    carries_a_cycle(|hub| BTreeMap::from([(1, hub)]));
    carries_a_cycle(|hub| BTreeMap::from([(Key(1, hub), 1)]));
    carries_a_cycle(|hub| BTreeMap::from([(Key(1, hub.clone()), hub)]));
    carries_a_cycle(|hub| HashMap::from([("one", hub)]));
    carries_a_cycle(|hub| HashMap::from([(Key(1, hub), 1)]));
    carries_a_cycle(|hub| HashMap::from([(Key(1, hub.clone()), hub)]));
}

#[test]
fn tuples() {
    carries_a_cycle(|hub| (Some(hub),));
    carries_a_cycle(|hub| (1, Some(hub.clone()), "two", Some(hub)));
    carries_a_cycle(|hub| {
        let hub = || Some(hub.clone());
        (hub(), hub(), hub(), hub(), hub(), hub(), hub(), hub(), hub(), hub(), hub(), hub())
    });
}

// ------------------------------------------------------------------------- leaves and skips

fn is_leaf<T: Trace + ?Sized>() {
    assert!(!T::TRACKED, "{} holds no references", std::any::type_name::<T>());
}

#[test]
fn leaves_are_not_tracked() {
    is_leaf::<()>();
    is_leaf::<bool>();
    is_leaf::<char>();
    is_leaf::<u128>();
    is_leaf::<f64>();
    is_leaf::<str>();
    is_leaf::<String>();
    is_leaf::<&'static [u8]>();
    is_leaf::<Box<str>>();
    is_leaf::<std::num::NonZeroU32>();
    is_leaf::<std::time::Instant>();
    is_leaf::<std::path::PathBuf>();
    is_leaf::<std::net::SocketAddr>();
    is_leaf::<std::thread::ThreadId>();
    is_leaf::<AtomicUsize>();
    is_leaf::<Ordering>();
    is_leaf::<fn()>();
    is_leaf::<extern "C" fn(i32, *const u8) -> i32>();
    is_leaf::<unsafe fn(u8, u8, u8, u8, u8, u8) -> AnyGc>();
}

#[test]
fn a_container_is_tracked_if_its_elements_are() {
    is_leaf::<Vec<Option<(u8, [String; 4])>>>();
    is_leaf::<HashMap<String, Box<[u8]>>>();
    is_leaf::<Result<u8, String>>();
    is_leaf::<PhantomData<AnyGc>>();
    is_leaf::<Arc<Mutex<Option<AnyGc>>>>();
    const { assert!(<HashMap<u8, AnyGc>>::TRACKED && <HashMap<Key, u8>>::TRACKED) };
    const { assert!(<(u8, u8, AnyGc)>::TRACKED && <Result<u8, AnyGc>>::TRACKED) };
}

/// A shared value is counted by its own pointer. It holds from outside, and a cycle through it is
/// not seen.
#[test]
fn the_contents_of_an_arc_are_skipped() {
    #[derive(Trace)]
    struct Node {
        shared: Arc<Mutex<Option<Gc<Node>>>>,
    }
    let heap = Heap::new();
    let mut m = heap.attach();
    let shared = Arc::new(Mutex::new(None));
    let node = m.alloc(Node { shared: Arc::clone(&shared) });
    assert!(node.shared.lock().unwrap().is_none());
    *shared.lock().unwrap() = Some(node);
    assert_eq!(m.collect().unreachable, 0);
    drop(shared.lock().unwrap().take());
}

#[test]
fn a_skipped_field_holds_from_outside() {
    struct Opaque(GcCell<Option<Gc<Node>>>);
    #[derive(Trace)]
    struct Node {
        #[trace(skip)]
        opaque: Opaque,
    }
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = m.alloc(Node { opaque: Opaque(GcCell::new(None)) });
    node.opaque.0.set(&m, Some(node.clone()));
    assert_eq!(m.collect().unreachable, 0);
    let kept = node.opaque.0.take(&m);
    drop((kept, node));
}

/// `derive/tests/ui` has the fields that must say so and do not.
#[test]
fn a_skipped_field_of_references_leaks_cycles_if_it_says_so() {
    #[derive(Trace)]
    struct Node {
        #[trace(skip, leaks_cycles)]
        itself: Mutex<Option<Gc<Node>>>,
    }
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = m.alloc(Node { itself: Mutex::new(None) });
    *node.itself.lock().unwrap() = Some(node.clone());
    assert_eq!(m.collect().unreachable, 0);
    let kept = node.itself.lock().unwrap().take();
    drop((kept, node));
}

#[test]
fn a_skipped_field_that_names_references_and_holds_none_need_not_say_so() {
    const SIZE: usize = 1;
    struct Grid<const N: usize, const M: usize, T>([[T; N]; M]);
    #[derive(Trace)]
    struct Node<const N: usize, T: 'static> {
        #[trace(skip)]
        function: for<'a> fn(&'a Gc<String>) -> &'a str,
        #[trace(skip)]
        phantom: PhantomData<Gc<String>>,
        #[trace(skip)]
        shared: Arc<Mutex<Option<Gc<String>>>>,
        #[trace(skip)]
        constants: Grid<N, SIZE, T>,
    }
    #[derive(Trace)]
    #[trace(untracked)]
    struct Leaf(#[trace(skip)] Mutex<std::sync::mpsc::Sender<[String; SIZE]>>);
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = m.alloc(Node {
        function: |name| name,
        phantom: PhantomData,
        shared: Arc::default(),
        constants: Grid([[7; 2]]),
    });
    assert_eq!((node.function)(&m.alloc("a name".into())), "a name");
    assert!(node.shared.lock().unwrap().is_none() && node.phantom == PhantomData);
    let (sender, receiver) = std::sync::mpsc::channel();
    let leaf = m.alloc(Leaf(Mutex::new(sender)));
    leaf.0.lock().unwrap().send(["sent".into()]).expect("a receiver");
    assert_eq!((node.constants.0, receiver.recv()), ([[7; 2]], Ok(["sent".into()])));
    assert_eq!(m.collect().unreachable, 0);
}

// ------------------------------------------------------------------------------------ locks

/// A lock around a value without references is a leaf: a collection neither locks it nor waits for
/// it. The guard is leaked, so the lock stays locked. `derive/tests/ui` has the locks that do not
/// compile.
#[test]
fn a_lock_around_a_number_is_a_leaf() {
    #[derive(Default, Trace)]
    struct Node {
        number: Mutex<u64>,
        names: RwLock<Vec<String>>,
        small: parking_lot::Mutex<Option<GcWeak<Node>>>,
        next: GcCell<Option<Gc<Node>>>,
    }
    is_leaf::<Mutex<u64>>();
    is_leaf::<RwLock<Vec<String>>>();
    is_leaf::<parking_lot::Mutex<Option<GcWeak<Node>>>>();
    is_leaf::<parking_lot::RwLock<u64>>();
    is_leaf::<OnceLock<String>>();
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = m.alloc(Node::default());
    node.next.set(&m, Some(node.clone()));
    std::mem::forget((node.number.lock(), node.names.write(), node.small.lock()));
    drop(node);
    assert_eq!(m.collect().collected, 1);
}

// ----------------------------------------------------------------------- shapes of the derive

#[derive(Default, Trace)]
enum Shape {
    #[default]
    Nil,
    Number(f64),
    Pair(AnyGc, Box<Shape>),
    List {
        items: Vec<Shape>,
        #[trace(skip)]
        _source: Option<Arc<str>>,
    },
    r#Type {
        r#fn: AnyGc,
    },
}

#[test]
fn enums_show_the_fields_of_their_variant() {
    carries_a_cycle(|hub| Shape::Pair(hub.clone(), Box::new(Shape::Pair(hub, Box::default()))));
    carries_a_cycle(|hub| Shape::List {
        items: vec![
            Shape::Nil,
            Shape::r#Type { r#fn: hub.clone() },
            Shape::Number(0.5),
            Shape::Pair(hub, Box::default()),
        ],
        _source: None,
    });
}

/// `clear` reaches a cell in a variant, in a box, in a tuple.
#[test]
fn clear_is_forwarded() {
    #[derive(Trace)]
    enum Node {
        Deep { way: Box<(u8, Vec<Cell>)> },
    }
    #[derive(Trace)]
    struct Cell(GcCell<Option<Gc<Node>>>, #[trace(skip)] Option<&'static str>);

    let heap = Heap::new();
    let mut m = heap.attach();
    let cells = vec![Cell(GcCell::new(None), None), Cell(GcCell::new(None), Some("second"))];
    let node = m.alloc(Node::Deep { way: Box::new((0, cells)) });
    let Node::Deep { way } = &*node;
    assert_eq!(way.1[1].1, Some("second"));
    way.1[1].0.set(&m, Some(node.clone()));
    drop(node);
    assert_eq!(m.collect().collected, 1);
}

/// Types without anything to show, and without a warning, which this file denies.
#[test]
fn shapes_without_references() {
    #[derive(Trace)]
    struct Unit;
    #[derive(Trace)]
    struct Empty {}
    #[derive(Trace)]
    struct Tuple();
    #[derive(Trace)]
    enum Never {}
    #[derive(Trace)]
    enum Tokens {
        Plus,
        Other(#[trace(skip)] Opaque),
    }
    struct Opaque;
    fn traced<T: Trace>() {
        const { assert!(T::TRACKED && T::FINALIZER.is_none()) };
    }
    traced::<Never>();
    let heap = Heap::new();
    let mut m = heap.attach();
    let objects = (m.alloc(Unit), m.alloc(Empty {}), m.alloc(Tuple()));
    let tokens = [m.alloc(Tokens::Plus), m.alloc(Tokens::Other(Opaque))];
    assert!(matches!(&*tokens[1], Tokens::Other(Opaque)));
    assert_eq!(m.collect().unreachable, 0);
    drop((objects, tokens));
}

// --------------------------------------------------------------------------------- generics

#[derive(Trace)]
struct Table<K: Ord, V, const N: usize, S = u8>
where
    V: Default + Clone,
{
    rows: [GcCell<BTreeMap<K, V>>; N],
    _settings: PhantomData<S>,
}

#[test]
fn generic_types_keep_their_bounds() {
    type Rows = Table<u8, Option<AnyGc>, 2>;
    let heap = Heap::new();
    let mut m = heap.attach();
    let table: Gc<Rows> = m.alloc(Table { rows: Default::default(), _settings: PhantomData });
    table.rows[1].lock(&m).insert(7, Some(AnyGc::from(table.clone())));
    drop(table);
    assert_eq!(m.collect().collected, 1);
}

/// A parameter that only a skipped field names needs no `Trace`.
#[test]
fn a_skipped_parameter_needs_no_trace() {
    struct Opaque;
    #[derive(Trace)]
    struct Tagged<T, U> {
        value: T,
        #[trace(skip)]
        tag: Option<U>,
    }
    fn traced<T: Trace>(_: &T) {}
    let tagged = Tagged { value: 7, tag: Some(Opaque) };
    traced(&tagged);
    assert_eq!(tagged.value, 7);
    assert!(tagged.tag.is_some());
}

/// `bound` takes the place of `I: Trace`, which an iterator does not have.
#[test]
fn bounds_may_be_written_out() {
    #[derive(Trace)]
    #[trace(bound = "I::Item: Trace")]
    struct Peeked<I: Iterator> {
        next: Option<I::Item>,
        #[trace(skip)]
        _rest: I,
    }
    let heap = Heap::new();
    let m = heap.attach();
    let peeked = m.alloc(Peeked { next: Some(1), _rest: 2..5 });
    assert_eq!(peeked.next, Some(1));
}

// ------------------------------------------------------------------------------- attributes

#[test]
fn untracked_types_are_not_tracked() {
    #[derive(Trace)]
    #[trace(untracked)]
    struct Point<T> {
        at: (T, T),
        name: Option<Box<str>>,
        #[trace(skip, leaks_cycles)]
        _anything: Option<AnyGc>,
    }
    /// Recursive: its proof must not depend on itself.
    #[derive(Trace)]
    #[trace(untracked)]
    #[expect(dead_code, reason = "for its shape only")]
    enum Tree {
        Leaf(Point<u8>),
        Fork(Box<[Self; 2]>),
        Chain(Option<Box<Tree>>),
    }
    is_leaf::<Tree>();
    let heap = Heap::new();
    let m = heap.attach();
    let point = m.alloc(Point { at: (1, 2), name: None, _anything: None });
    assert!(point.at == (1, 2) && point.name.is_none());
    assert!(!Gc::is_tracked(&point, &m));
    assert!(Gc::is_tracked(&m.alloc(Hub { spokes: GcCell::new(vec![0_u8]) }), &m));
}

static FINALIZED: AtomicUsize = AtomicUsize::new(0);

#[derive(Trace)]
#[trace(finalize)]
struct Inherent<T: Default> {
    next: GcCell<Option<Gc<Inherent<T>>>>,
    add: T,
}

impl<T: Trace + Default + Copy + Into<usize>> Inherent<T> {
    const ADD: fn(T) -> usize = Into::into;
}

impl<T: Trace + Default> Inherent<T> {
    fn finalize(this: &Gc<Self>, m: &Mutator) {
        let next = this.next.get(m);
        assert!(*this == next.expect("nothing is cleared before all finalizers have run"));
        FINALIZED.fetch_add(1, Relaxed);
    }
}

#[derive(Trace)]
#[trace(finalize = finalizers::count)]
struct Elsewhere(GcCell<Option<Gc<Elsewhere>>>);

mod finalizers {
    use super::{Elsewhere, FINALIZED, Gc, Mutator, Relaxed};

    pub(crate) fn count(this: &Gc<Elsewhere>, m: &Mutator) {
        assert!(this.0.get(m).is_some());
        FINALIZED.fetch_add(100, Relaxed);
    }
}

#[test]
fn finalizers_run_once() {
    const { assert!(Inherent::<u8>::FINALIZER.is_some() && Elsewhere::FINALIZER.is_some()) };
    const {
        assert!(<Vec<Elsewhere>>::FINALIZER.is_none(), "an element's finalizer is not the object's")
    };
    let heap = Heap::new();
    let mut m = heap.attach();
    let inherent = m.alloc(Inherent { next: GcCell::new(None), add: 1_u8 });
    assert_eq!(Inherent::ADD(inherent.add), 1);
    inherent.next.set(&m, Some(inherent.clone()));
    let elsewhere = m.alloc(Elsewhere(GcCell::new(None)));
    elsewhere.0.set(&m, Some(elsewhere.clone()));
    drop((inherent, elsewhere));
    let report = m.collect();
    assert_eq!((report.finalized, report.collected), (2, 2));
    assert_eq!(FINALIZED.load(Relaxed), 101);
}

/// The library under another name, and a module in which every name of ours means something else.
mod renamed {
    #![expect(dead_code, reason = "decoys")]

    pub(crate) mod gc {
        pub(crate) use standstill::{Finalizer, Gc, GcCell, Mutator, Trace, Tracer};
    }

    mod standstill {}
    mod core {}
    mod std {}
    struct Finalizer;
    struct Mutator;
    struct Tracer;
    struct Gc;
    trait Trace {}

    #[derive(gc::Trace)]
    #[trace(crate = crate::renamed::gc, finalize = Self::close)]
    pub(crate) struct Node {
        pub(crate) next: gc::GcCell<Option<gc::Gc<Node>>>,
    }

    impl Node {
        fn close(_: &gc::Gc<Self>, _: &gc::Mutator) {}
    }

    #[derive(gc::Trace)]
    #[trace(crate = gc, untracked)]
    pub(crate) struct Leaf {
        bits: u64,
    }
}

#[test]
fn the_crate_may_have_another_name() {
    is_leaf::<renamed::Leaf>();
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = m.alloc(renamed::Node { next: GcCell::new(None) });
    node.next.set(&m, Some(node.clone()));
    drop(node);
    let report = m.collect();
    assert_eq!((report.finalized, report.collected), (1, 1));
}

/// Field names and types that meet the names in the generated code, and fields from a macro.
#[test]
fn generated_code_is_hygienic() {
    macro_rules! node {
        ($name:ident<$parameter:ident> { $($field:ident: $ty:ty),* $(,)? }) => {
            #[derive(Trace)]
            struct $name<$parameter> { $($field: $ty),* }
        };
    }
    node! {
        Node<Tracer> {
            tracer: GcCell<Option<AnyGc>>,
            m: Option<Tracer>,
            self_: u8,
            this: u8,
            argument: u8,
            field0: u8,
            r#type: u8,
            clear: fn() -> u8,
            traverse: (),
        }
    }
    #[expect(non_upper_case_globals, reason = "a trap for patterns")]
    const argument: u8 = 7;
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = m.alloc(Node {
        tracer: GcCell::new(None),
        m: Some(1_u8),
        self_: 1,
        this: 1,
        argument,
        field0: 1,
        r#type: 1,
        clear: || 1,
        traverse: (),
    });
    let value = &*node;
    let sum =
        value.self_ + value.this + value.argument + value.field0 + value.r#type + (value.clear)();
    assert_eq!((sum, value.m, value.traverse), (12, Some(1), ()));
    value.tracer.set(&m, Some(AnyGc::from(node.clone())));
    drop(node);
    assert_eq!(m.collect().collected, 1);
}

/// Unlike some derives for collectors, this one leaves `Drop` to the type.
#[test]
fn a_traced_type_may_implement_drop() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);

    #[derive(Trace)]
    struct Noisy(GcCell<Option<Gc<Noisy>>>);
    impl Drop for Noisy {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Relaxed);
        }
    }
    let heap = Heap::new();
    let mut m = heap.attach();
    let noisy = m.alloc(Noisy(GcCell::new(None)));
    noisy.0.set(&m, Some(noisy.clone()));
    drop(noisy);
    assert_eq!(DROPS.load(Relaxed), 0);
    assert_eq!(m.collect().collected, 1);
    assert_eq!(DROPS.load(Relaxed), 1);
}
