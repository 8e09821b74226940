//! G-01 to G-13, G-18 to G-25, G-45: the definition of garbage, and its fate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill::{AnyGc, Finalizer, Gc, GcCell, GcWeak, Mutator, Pacing, Trace, Tracer};

use crate::common::*;
use crate::trace_fields;

#[test]
fn g_01_a_self_cycle_counts_one() {
    on_every_heap_attached(|lab, m| {
        garbage_loop(m, &lab.census, 0);
        assert_eq!(lab.census.alive(), 1);
        let report = m.collect();
        assert_eq!((report.unreachable, report.collected, report.uncollectable), (1, 1, 0));
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(m.collect().collected, 0);
    });
}

struct Dict {
    entries: GcCell<HashMap<String, Gc<Dict>>>,
    _witness: Witness,
}
trace_fields!(Dict { entries });

#[test]
fn g_02_a_map_that_holds_itself_counts_one() {
    on_every_heap_attached(|lab, m| {
        let dict =
            m.alloc(Dict { entries: GcCell::default(), _witness: Witness::new(&lab.census, 0) });
        dict.entries.lock(m).insert("self".into(), dict.clone());
        m.safepoint();
        drop(dict);
        assert_eq!(m.collect().collected, 1);
    });
}

/// Holds references that never change, like a tuple.
struct Tuple {
    items: (Gc<List>, u32),
    _witness: Witness,
}
trace_fields!(Tuple { items });

#[derive(Default)]
struct Items(Vec<AnyGc>);
trace_fields!(Items { 0 });

struct List {
    items: GcCell<Items>,
    _witness: Witness,
}
trace_fields!(List { items });

#[test]
fn g_03_an_immutable_object_in_a_cycle_counts_too() {
    on_every_heap_attached(|lab, m| {
        let list =
            m.alloc(List { items: GcCell::default(), _witness: Witness::new(&lab.census, 0) });
        let tuple =
            m.alloc(Tuple { items: (list.clone(), 7), _witness: Witness::new(&lab.census, 1) });
        list.items.lock(m).0.push(AnyGc::from(tuple.clone()));
        m.safepoint();
        assert_eq!(tuple.items.1, 7);
        drop((list, tuple));
        assert_eq!(m.collect().collected, 2);
    });
}

struct Instance {
    attributes: GcCell<BTreeMap<String, Gc<Instance>>>,
    slot: GcCell<Option<Gc<Instance>>>,
    method: GcCell<Option<Gc<Method>>>,
    _witness: Witness,
}
trace_fields!(Instance { attributes, slot, method });

/// A function bound to its receiver.
struct Method {
    receiver: Gc<Instance>,
    function: fn(&Instance, &Mutator) -> usize,
    _witness: Witness,
}
trace_fields!(Method { receiver });

impl Instance {
    fn new(m: &Mutator, census: &Arc<Census>) -> Gc<Self> {
        m.alloc(Self {
            attributes: GcCell::default(),
            slot: GcCell::default(),
            method: GcCell::default(),
            _witness: Witness::new(census, 0),
        })
    }
}

#[test]
fn g_06_an_instance_that_refers_to_itself() {
    on_every_heap_attached(|lab, m| {
        let a = Instance::new(m, &lab.census);
        a.attributes.lock(m).insert("me".into(), a.clone());
        drop(a);
        assert_eq!(m.collect().collected, 1, "through its attributes");

        let a = Instance::new(m, &lab.census);
        a.slot.set(m, Some(a.clone()));
        drop(a);
        assert_eq!(m.collect().collected, 1, "through a slot");
    });
}

#[test]
fn g_08_an_instance_that_holds_its_own_bound_method() {
    on_every_heap_attached(|lab, m| {
        let a = Instance::new(m, &lab.census);
        let method = m.alloc(Method {
            receiver: a.clone(),
            function: |this, m| this.attributes.lock(m).len(),
            _witness: Witness::new(&lab.census, 1),
        });
        assert_eq!((method.function)(&method.receiver, m), 0);
        a.method.set(m, Some(method));
        drop(a);
        assert_eq!(m.collect().collected, 2);
    });
}

/// Shows its references and does not drop them.
pub(crate) struct Stubborn {
    pub(crate) next: GcCell<Option<Gc<Stubborn>>>,
    _witness: Witness,
}

impl Trace for Stubborn {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
    }
}

impl Stubborn {
    /// A cycle of `n` objects that no collection can break, without outside references.
    pub(crate) fn garbage(m: &Mutator, census: &Arc<Census>, n: usize) {
        let members: Vec<_> = (0..n)
            .map(|name| {
                m.alloc(Self { next: GcCell::default(), _witness: Witness::new(census, name) })
            })
            .collect();
        for (i, member) in members.iter().enumerate() {
            member.next.set(m, Some(members[(i + 1) % n].clone()));
        }
    }

    /// One that refers to another.
    pub(crate) fn referring(m: &Mutator, census: &Arc<Census>, to: Gc<Self>) -> Gc<Self> {
        m.alloc(Self { next: GcCell::new(Some(to)), _witness: Witness::new(census, 0) })
    }

    /// Breaks all cycles of the heap, and returns the number of objects that it found.
    pub(crate) fn break_all(m: &mut Mutator) -> usize {
        let mut found = 0;
        for object in m.objects() {
            if let Ok(stubborn) = object.downcast::<Self>(m) {
                found += 1;
                drop(stubborn.next.take(m));
            }
        }
        found
    }
}

#[test]
fn g_09_garbage_that_cannot_be_cleared_stays_and_all_other_garbage_is_collected() {
    on_every_heap_attached(|lab, m| {
        Stubborn::garbage(m, &lab.census, 1);
        drop(ring(m, &lab.census, 10, 2));
        let report = m.collect();
        assert_eq!((report.unreachable, report.collected, report.uncollectable), (3, 2, 1));
        assert_eq!(lab.census.alive(), 1);
        // It is still in the heap, whole, and dies as soon as its cycle is broken.
        assert_eq!(Stubborn::break_all(m), 1);
        assert_eq!(lab.census.alive(), 0);
        let report = m.collect();
        assert_eq!((report.unreachable, report.uncollectable), (0, 0));
    });
}

#[test]
fn g_10_a_function_and_its_globals() {
    on_every_heap_attached(|lab, m| {
        let globals = Instance::new(m, &lab.census);
        let function = m.alloc(Method {
            receiver: globals.clone(),
            function: |_, _| 0,
            _witness: Witness::new(&lab.census, 1),
        });
        globals.method.set(m, Some(function.clone()));
        drop((function, globals));
        assert_eq!(m.collect().collected, 2);
    });
}

/// A frame that is among its own locals from the start.
struct Frame {
    back: GcWeak<Frame>,
    locals: GcCell<Vec<Gc<Frame>>>,
    _witness: Witness,
}
trace_fields!(Frame { back, locals });

#[test]
fn g_13_a_frame_among_its_own_locals() {
    on_every_heap_attached(|lab, m| {
        let frame = Gc::new_cyclic(m, |weak| {
            assert!(weak.upgrade(m).is_none(), "not before it exists");
            Frame {
                back: weak.clone(),
                locals: GcCell::default(),
                _witness: Witness::new(&lab.census, 0),
            }
        });
        let myself = frame.back.upgrade(m).expect("it exists now");
        assert!(frame == myself);
        frame.locals.lock(m).push(myself);
        drop(frame);
        assert_eq!(m.collect().collected, 1);
    });
}

#[test]
fn g_15_a_finalizer_that_allocates_past_the_threshold() {
    on_every_heap_attached(|lab, m| {
        lab.heap.set_pacing(Pacing::default().with_young_objects(1).with_full_minimum(1));
        for round in 0..20 {
            let made = lab.census.clone();
            let ouch = fin(m, &lab.census, round, move |_, m| {
                for name in 0..200 {
                    garbage_loop(m, &made, 1000 + name);
                }
            });
            link(m, &ouch, &ouch);
            drop(ouch);
            m.collect();
            assert_eq!(lab.census.finalized(), round + 1);
            m.safepoint();
        }
    });
}

/// Nested containers of several kinds, each with a finalizer.
struct Nest {
    inner: GcCell<(Vec<Gc<Nest>>, BTreeMap<u32, Gc<Nest>>)>,
    finals: Arc<AtomicUsize>,
    witness: Witness,
}

impl Trace for Nest {
    /// Every 17th makes a deep nest of its own.
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, m| {
        if this.finals.fetch_add(1, SeqCst).is_multiple_of(17) && this.witness.name() == 0 {
            drop(Self::build(m, this.witness.census(), &this.finals, 150, 1));
        }
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.inner, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.inner, m);
    }
}

impl Nest {
    fn build(
        m: &Mutator,
        census: &Arc<Census>,
        finals: &Arc<AtomicUsize>,
        depth: usize,
        name: usize,
    ) -> Gc<Self> {
        let mut outer: Option<Gc<Self>> = None;
        for level in 0..depth {
            let mut inner = (Vec::new(), BTreeMap::new());
            if let Some(gc) = outer {
                match level % 3 {
                    0 => inner.0.push(gc),
                    1 => drop(inner.1.insert(7, gc)),
                    _ => {
                        inner.1.insert(8, gc.clone());
                        inner.0.push(gc);
                    }
                }
            }
            outer = Some(m.alloc(Self {
                inner: GcCell::new(inner),
                finals: finals.clone(),
                witness: Witness::new(census, name),
            }));
        }
        outer.expect("a nest")
    }
}

#[test]
fn g_18_deep_nests_whose_finalizers_make_more() {
    on_every_heap_attached(|lab, m| {
        let finals = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let nest = Nest::build(m, &lab.census, &finals, 150, 0);
            nest.inner.lock(m).0.push(nest.clone());
            drop(nest);
            drop(Nest::build(m, &lab.census, &finals, 150, 0));
            m.collect();
        }
        m.collect();
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(finals.load(SeqCst), lab.census.born());
    });
}

#[test]
fn g_19_deep_nests_on_two_threads() {
    on_every_heap(|lab| {
        let finals = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut m = lab.heap.attach();
                    for _ in 0..10 {
                        let nest = Nest::build(&m, &lab.census, &finals, 50, 0);
                        nest.inner.lock(&m).0.push(nest.clone());
                        m.safepoint();
                        drop(nest);
                        drop(Nest::build(&m, &lab.census, &finals, 50, 0));
                        m.safepoint();
                    }
                    m.collect();
                });
            }
        });
        let mut m = lab.heap.attach();
        m.collect();
        m.collect();
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(finals.load(SeqCst), lab.census.born());
    });
}

#[test]
fn g_25_a_finalizer_that_lets_part_of_the_garbage_die() {
    on_every_heap_attached(|lab, m| {
        // Each of three refers to itself and to a private tail; its finalizer drops the tail.
        for name in 0..3 {
            let head = fin(m, &lab.census, name, |this, m| {
                let taken = cut(m, this);
                drop(taken);
            });
            let tail = fin(m, &lab.census, 10 + name, |_, _| ());
            link(m, &head, &tail);
            link(m, &head, &head);
        }
        m.collect();
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(lab.census.finalized_names(), [0, 1, 2, 10, 11, 12]);
        assert_eq!(lab.census.dead_names(), [0, 1, 2, 10, 11, 12]);
    });
}

#[test]
fn g_45_the_heap_counts_its_live_objects() {
    on_every_heap_attached(|lab, m| {
        let before = lab.heap.stats();
        let a = node(m, &lab.census, 0);
        let b = node(m, &lab.census, 1);
        let during = lab.heap.stats();
        assert_eq!(during.live_objects, before.live_objects + 2);
        assert!(during.live_bytes >= before.live_bytes + 2 * size_of::<Node>());
        drop((a, b));
        let after = lab.heap.stats();
        assert_eq!(
            (after.live_objects, after.live_bytes),
            (before.live_objects, before.live_bytes)
        );
    });
}

#[test]
fn reachable_cycles_are_left_alone() {
    on_every_heap_attached(|lab, m| {
        let kept = ring(m, &lab.census, 0, 5);
        let first = kept[0].clone();
        drop(kept);
        drop(ring(m, &lab.census, 10, 3));
        let report = m.collect();
        assert_eq!((report.candidates, report.unreachable, report.collected), (8, 3, 3));
        // All five are there, linked as before, from the one handle that is left.
        let mut at = first.clone();
        for name in 0..5 {
            assert_eq!(at.name(), name);
            let next = at.edges.lock(m)[0].clone();
            at = next;
        }
        assert!(at == first);
        drop((at, first));
        assert_eq!(m.collect().collected, 5);
    });
}

#[test]
fn garbage_drops_its_references_to_living_objects() {
    on_every_heap_attached(|lab, m| {
        let kept = node(m, &lab.census, 0);
        let garbage = ring(m, &lab.census, 1, 4);
        for member in &garbage {
            link(m, member, &kept);
            link(m, member, &kept);
        }
        assert_eq!(Gc::strong_count(&kept), 9);
        drop(garbage);
        assert_eq!(m.collect().collected, 4);
        assert_eq!(Gc::strong_count(&kept), 1);
    });
}

#[test]
fn an_object_without_cycles_dies_at_once() {
    on_every_heap_attached(|lab, m| {
        let a = node(m, &lab.census, 0);
        let b = node(m, &lab.census, 1);
        link(m, &a, &b);
        drop(b);
        assert_eq!(lab.census.alive(), 2);
        drop(a);
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(m.collect().unreachable, 0);
    });
}
