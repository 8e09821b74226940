//! `GcVec` works like a `Vec` of handles, holds each handle once, and its buffer dies with it on
//! any thread, in any state of its heap.

#![cfg(not(loom))]
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::{Census, Clock, Rng, Witness, is_full, on_every_heap, panic_text};
use proptest::prelude::*;
use standstill::{Finalizer, Gc, GcCell, GcVec, Heap, Mutator, OutOfMemory, Pacing, Trace, Tracer};

fn manual() -> Heap {
    Heap::builder().reserve(1 << 30).workers(1).pacing(Pacing::manual()).build().unwrap()
}

fn numbers(m: &Mutator, count: usize) -> Vec<Gc<usize>> {
    (0..count).map(|number| m.alloc(number)).collect()
}

/// A vector with these handles.
fn vector<T, const N: usize>(m: &Mutator, handles: &[Gc<T>]) -> GcVec<T, N> {
    let mut vector = GcVec::new();
    vector.extend(m, handles.iter().cloned());
    vector
}

// ------------------------------------------------------------------------------------ like a `Vec`

#[derive(Clone, Copy, Debug)]
enum Op {
    Push(usize),
    Pop,
    Insert(usize, usize),
    Remove(usize),
    SwapRemove(usize),
    Truncate(usize),
    Retain(usize),
    Extend(usize, usize),
    Reserve(usize),
    Sort,
    Swap,
    Replace,
}

fn op() -> impl Strategy<Value = Op> {
    let at = any::<usize>;
    prop_oneof![
        4 => at().prop_map(Op::Push),
        2 => Just(Op::Pop),
        2 => (at(), at()).prop_map(|(at, what)| Op::Insert(at, what)),
        1 => at().prop_map(Op::Remove),
        1 => at().prop_map(Op::SwapRemove),
        1 => at().prop_map(Op::Truncate),
        1 => (2..5usize).prop_map(Op::Retain),
        1 => (at(), 0..9usize).prop_map(|(first, count)| Op::Extend(first, count)),
        1 => (0..40usize).prop_map(Op::Reserve),
        1 => Just(Op::Sort),
        1 => Just(Op::Swap),
        1 => Just(Op::Replace),
    ]
}

/// Does the same with two `GcVec`s and with two `Vec`s. After each step the contents are equal, the
/// count of each object is the number of its handles, and each vector has one buffer or none.
fn like_a_vec<const N: usize>(ops: &[Op]) {
    let heap = manual();
    let m = heap.attach();
    let all = numbers(&m, 7);
    let (mut ours, mut other) = (GcVec::<usize, N>::new(), GcVec::<usize, N>::new());
    let (mut theirs, mut other_theirs) = (Vec::new(), Vec::new());
    let gc = |at: usize| all[at % all.len()].clone();
    for &op in ops {
        let len = theirs.len();
        match op {
            Op::Push(what) => {
                ours.push(&m, gc(what));
                theirs.push(gc(what));
            }
            Op::Pop => assert_eq!(ours.pop(), theirs.pop()),
            Op::Insert(at, what) => {
                ours.insert(&m, at % (len + 1), gc(what));
                theirs.insert(at % (len + 1), gc(what));
            }
            Op::Remove(at) if len > 0 => {
                assert_eq!(ours.remove(at % len), theirs.remove(at % len));
            }
            Op::SwapRemove(at) if len > 0 => {
                assert_eq!(ours.swap_remove(at % len), theirs.swap_remove(at % len));
            }
            Op::Remove(_) | Op::SwapRemove(_) => {}
            Op::Truncate(to) => {
                ours.truncate(to % (len + 3));
                theirs.truncate(to % (len + 3));
            }
            Op::Retain(divisor) => {
                ours.retain(|gc| !gc.is_multiple_of(divisor));
                theirs.retain(|gc: &Gc<usize>| !gc.is_multiple_of(divisor));
            }
            Op::Extend(first, count) => {
                let more = || (0..count).map(|at| gc(first % 100 + at));
                ours.extend(&m, more());
                theirs.extend(more());
            }
            Op::Reserve(more) => ours.reserve(&m, more),
            Op::Sort => {
                ours.sort_by_key(|gc| **gc);
                theirs.sort_by_key(|gc| **gc);
            }
            Op::Swap => {
                std::mem::swap(&mut ours, &mut other);
                std::mem::swap(&mut theirs, &mut other_theirs);
            }
            Op::Replace => {
                ours = GcVec::with_capacity(&m, 3);
                theirs = Vec::new();
            }
        }
        assert_eq!(*ours, *theirs);
        assert_eq!((ours.len(), ours.is_empty()), (theirs.len(), theirs.is_empty()));
        assert!(ours.capacity() >= ours.len().max(N));
        for gc in &all {
            let is = |other: &&Gc<usize>| *other == gc;
            let handles = theirs.iter().chain(&other_theirs).filter(is).count();
            assert_eq!(Gc::strong_count(gc), 1 + 2 * handles);
        }
        let buffers = [&ours, &other].into_iter().filter(|v| v.capacity() > N).count();
        assert_eq!(heap.stats().live_objects, all.len() + buffers);
    }
    drop((ours, other));
    assert_eq!(heap.stats().live_objects, all.len());
}

/// How many cases a test tries of those of a full run.
fn cases(full: u32) -> ProptestConfig {
    ProptestConfig::with_cases(if is_full() { full } else { full / 4 })
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn a_vector_does_as_the_vector_of_std(ops in proptest::collection::vec(op(), 0..120)) {
        like_a_vec::<0>(&ops);
        like_a_vec::<1>(&ops);
        like_a_vec::<3>(&ops);
        like_a_vec::<8>(&ops);
    }
}

#[test]
fn a_vector_is_as_small_as_it_says() {
    assert_eq!(size_of::<GcVec<u8, 0>>(), 16);
    assert_eq!(size_of::<GcVec<u8, 1>>(), 16);
    assert_eq!(size_of::<GcVec<u8, 2>>(), size_of::<Vec<u8>>());
    assert_eq!(size_of::<GcVec<u8, 7>>(), 64);
    const EMPTY: GcVec<u8, 3> = GcVec::new();
    assert_eq!((EMPTY.len(), EMPTY.capacity()), (0, 3));
}

#[test]
fn conversions_and_iterators() {
    let heap = manual();
    let m = heap.attach();
    let all = numbers(&m, 4);
    let mut full = GcVec::<usize, 3>::from([all[0].clone(), all[1].clone(), all[2].clone()]);
    assert_eq!((&*full, full.capacity()), (&all[..3], 3));
    assert_eq!(GcVec::<usize, 0>::from([]).len(), 0);
    assert_eq!(format!("{full:?}"), format!("{:?}", &all[..3]));
    for gc in &mut full {
        *gc = all[3].clone();
    }
    let mut found = 0;
    for gc in &full {
        found += **gc;
    }
    assert_eq!((found, *full[2], full.get(3)), (9, 3, None));
    drop(full);
    assert!(all.iter().all(|gc| Gc::strong_count(gc) == 1));
    // The lower bound of this iterator's length is 0.
    let mut odd = GcVec::<usize, 1>::new();
    odd.extend(&m, all.iter().filter(|gc| ***gc % 2 == 1).cloned());
    assert_eq!(*odd, [all[1].clone(), all[3].clone()]);
}

#[test]
fn positions_beyond_the_end_panic_and_change_nothing() {
    let heap = manual();
    let m = heap.attach();
    let all = numbers(&m, 3);
    let mut vector: GcVec<usize, 2> = vector(&m, &all);
    let texts = [
        panic_text(|| vector.insert(&m, 4, all[0].clone())),
        panic_text(|| drop(vector.remove(3))),
        panic_text(|| drop(vector.swap_remove(3))),
    ];
    let texts = texts.map(|text| text.expect("a panic"));
    assert!(texts[0].contains("insertion index (is 4) should be <= len (is 3)"), "{texts:?}");
    assert!(texts[1].contains("removal index (is 3) should be < len (is 3)"), "{texts:?}");
    assert!(texts[2].contains("swap_remove index (is 3) should be < len (is 3)"), "{texts:?}");
    assert!(panic_text(|| drop(vector[3].clone())).is_some());
    assert_eq!(*vector, *all);
    // A panic of the condition leaves every handle in the vector.
    let mut left = 2;
    let condition = |_: &Gc<usize>| {
        left -= 1;
        assert!(left > 0, "enough");
        false
    };
    assert_eq!(panic_text(|| vector.retain(condition)).as_deref(), Some("enough"));
    assert_eq!(vector.len(), 3);
    assert!(all.iter().all(|gc| Gc::strong_count(gc) == 2));
}

// ------------------------------------------------------------------------------------- collections

/// An object with vectors of three sizes.
#[derive(Default)]
struct Lists {
    none: GcCell<GcVec<Lists, 0>>,
    few: GcCell<GcVec<Lists, 3>>,
    /// Behind a pointer: a cell that no object contains.
    boxed: Box<GcCell<GcVec<Lists, 1>>>,
    witness: Option<Witness>,
}

impl Trace for Lists {
    const INDIRECT: bool = true;

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.none, tracer);
        Trace::traverse(&this.few, tracer);
        Trace::traverse(&this.boxed, tracer);
    }

    fn prefetch(this: &Self, tracer: &Tracer) {
        Trace::prefetch(&this.none, tracer);
        Trace::prefetch(&this.few, tracer);
        Trace::prefetch(&this.boxed, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.none, m);
        Trace::clear(&this.few, m);
        Trace::clear(&this.boxed, m);
    }
}

impl Lists {
    fn refer(&self, to: &Gc<Self>, place: usize, m: &Mutator) {
        match place % 4 {
            0 => self.none.lock(m).push(m, to.clone()),
            1 => self.boxed.lock(m).push(m, to.clone()),
            _ => self.few.lock(m).push(m, to.clone()),
        }
    }

    fn buffers(&self, m: &Mutator) -> usize {
        usize::from(self.none.lock(m).capacity() > 0)
            + usize::from(self.boxed.lock(m).capacity() > 1)
            + usize::from(self.few.lock(m).capacity() > 3)
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// Exactly the objects that are reachable by a list of all references, which is kept beside the
    /// heap, live on, each with its buffers.
    #[test]
    fn objects_reachable_through_vectors_live_and_all_others_die(
        count in 1..120usize,
        edges in proptest::collection::vec(any::<(usize, usize, usize)>(), 0..600),
        held in proptest::collection::vec(any::<usize>(), 0..4),
        named in any::<bool>(),
        batched in any::<bool>(),
        workers in 1..3usize,
    ) {
        let stress = standstill::Stress::none().small_constants(batched);
        let ours = Heap::builder().reserve(1 << 30).workers(workers).serial_below(0);
        let ours = ours.stress(stress).pacing(Pacing::manual()).build().unwrap();
        let other = manual();
        let stranger = other.attach_scoped(|m| m.alloc(Lists::default()));
        let mut m = ours.attach();
        let all: Vec<_> = (0..count).map(|_| m.alloc(Lists::default())).collect();
        let mut leads = vec![Vec::new(); count];
        for (from, to, place) in edges {
            // The number beyond the last is the object of another heap.
            let (from, to) = (from % count, to % (count + 1));
            all[from].refer(all.get(to).unwrap_or(&stranger), place, &m);
            leads[from].push(to);
        }
        let mut unseen: Vec<usize> = held.iter().map(|at| at % count).collect();
        let held: Vec<_> = unseen.iter().map(|&at| all[at].clone()).collect();
        let _root = held.first().filter(|_| named).map(|first| ours.known_root(first.clone()));
        let (mut reached, mut buffers) = (BTreeSet::new(), 0);
        while let Some(at) = unseen.pop() {
            if at < count && reached.insert(at) {
                buffers += all[at].buffers(&m);
                unseen.extend(&leads[at]);
            }
        }
        drop(all);
        let report = m.collect();
        prop_assert_eq!((report.abandoned, report.overvisited), (None, 0));
        prop_assert_eq!(ours.stats().live_objects, reached.len() + buffers);
        m.verify().expect("a whole heap");
        drop((held, _root));
        m.collect();
        prop_assert_eq!(ours.stats().live_objects, 0);
        drop(stranger);
    }
}

/// A forgotten guard keeps the targets, in line and in a buffer.
#[test]
fn a_vector_that_is_locked_for_ever() {
    for count in [1, 3, 4, 20] {
        let heap = manual();
        let mut m = heap.attach();
        let object = m.alloc(Lists::default());
        (0..count).for_each(|_| object.refer(&m.alloc(Lists::default()), 3, &m));
        object.refer(&object, 3, &m);
        std::mem::forget(object.few.lock(&m));
        drop(object);
        let report = m.collect();
        assert_eq!((report.collected, report.abandoned), (0, None));
        assert!(heap.stats().live_objects > count);
    }
}

// ----------------------------------------------------------------------------------------- threads

/// Threads change the vectors of shared objects, swap them between objects, and drop them in all
/// states, while collections run. All objects and buffers are gone in the end.
#[test]
fn threads_change_and_drop_vectors_during_collections() {
    on_every_heap(|lab| {
        let clock = Clock::start(2);
        let born = AtomicUsize::new(0);
        let new = |m: &Mutator| {
            let name = born.fetch_add(1, SeqCst);
            m.alloc(Lists { witness: Some(Witness::new(&lab.census, name)), ..Lists::default() })
        };
        let other = manual();
        let shared: Vec<_> = lab.heap.attach_scoped(|m| (0..16).map(|_| new(m)).collect());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (clock, shared, other) = (&clock, &shared, &other);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    let mut m = lab.heap.attach();
                    while clock.running() {
                        for _ in 0..50 {
                            let (at, to) = (&shared[rng.below(16)], &shared[rng.below(16)]);
                            let place = rng.below(4);
                            match rng.below(8) {
                                0 => at.refer(to, place, &m),
                                1..4 => {
                                    let fresh = new(&m);
                                    fresh.refer(at, place, &m);
                                    at.refer(&fresh, rng.below(4), &m);
                                }
                                4 => {
                                    let taken = at.few.take(&m);
                                    let old = to.few.replace(&m, taken);
                                    old.iter().for_each(|gc| {
                                        gc.witness.as_ref().expect("a witness").check();
                                    });
                                }
                                5 => {
                                    let (few, none) = (at.few.take(&m), at.none.take(&m));
                                    m.detach(|| drop(few));
                                    m.detach(|| other.attach_scoped(|_| drop(none)));
                                }
                                6 => {
                                    let last = at.none.lock(&m).pop();
                                    drop(last);
                                    let taken = at.boxed.take(&m);
                                    drop(taken);
                                }
                                _ => {
                                    let mut outside: GcVec<_, 2> = GcVec::new();
                                    let few = at.few.lock(&m);
                                    outside.extend(&m, few.iter().take(9).cloned());
                                    drop(few);
                                    outside.retain(|_| rng.one_in(2));
                                }
                            }
                        }
                        match rng.below(20) {
                            0 => drop(m.collect_young()),
                            1 => m.detach(std::thread::yield_now),
                            _ => m.safepoint(),
                        }
                    }
                });
            }
        });
        lab.heap.attach_scoped(|m| {
            drop(shared);
            m.collect();
            m.collect();
            assert_eq!(lab.census.alive(), 0);
            assert_eq!(lab.heap.stats().live_objects, 0);
        });
    });
}

// ------------------------------------------------------------------------------ where vectors die

/// Calls `end` with the heap's last vectors, in line and in a buffer, and afterwards attaches once
/// more.
fn dies_in(end: impl Fn(&Heap, [GcVec<Lists, 2>; 3]) + Sync) {
    on_every_heap(|lab| {
        let vectors = |m: &Mutator| {
            let new = |name| {
                let witness = Some(Witness::new(&lab.census, name));
                m.alloc(Lists { witness, ..Lists::default() })
            };
            let mut made = [1, 3, 60].map(|count| vector(m, &Vec::from_iter((0..count).map(new))));
            // A large object.
            made[2].reserve(m, 5000);
            made
        };
        // On the thread that made them, and on another one.
        let made = lab.heap.attach_scoped(|m| vectors(m));
        end(&lab.heap, made);
        let mut m = lab.heap.attach();
        let made = vectors(&m);
        m.scope(|scope, _| _ = scope.spawn(|| end(&lab.heap, made)));
        drop(m);
        drop(lab.heap.attach());
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(lab.heap.stats().live_objects, 0);
    });
}

#[test]
fn on_a_thread_that_is_attached() {
    dies_in(|heap, vectors| {
        let _m = heap.attach();
        drop(vectors);
    });
}

#[test]
fn on_a_thread_without_a_mutator() {
    dies_in(|_, vectors| drop(vectors));
}

#[test]
fn on_a_detached_thread() {
    dies_in(|heap, vectors| heap.attach().detach(|| drop(vectors)));
}

#[test]
fn on_a_thread_of_another_heap() {
    dies_in(|_, vectors| {
        let other = manual();
        let m = other.attach();
        // It grows there: the new buffers are of that heap.
        for mut vector in vectors {
            vector.reserve(&m, 9000);
            assert_eq!(other.stats().live_objects, 1);
            drop(vector);
            assert_eq!(other.stats().live_objects, 0);
        }
    });
}

#[test]
fn in_an_object_of_another_heap() {
    dies_in(|heap, vectors| {
        let other = manual();
        let mut m = other.attach();
        let objects = vectors.map(|vector| {
            let object = m.alloc(GcCell::new(vector));
            assert!(Gc::is_tracked(&object, &m));
            object
        });
        m.collect();
        assert!(objects.iter().all(|object| !object.lock(&m).is_empty()));
        drop(m);
        // Nothing of this heap is referenced by objects of this heap.
        heap.attach_scoped(|m| assert_eq!(m.collect().collected, 0));
        drop(objects);
    });
}

#[test]
fn in_a_traversal() {
    /// Drops the vectors in its traversal.
    struct Careless(std::sync::Mutex<Option<[GcVec<Lists, 2>; 3]>>);
    impl Trace for Careless {
        fn traverse(this: &Self, _: &mut Tracer) {
            drop(this.0.lock().unwrap().take());
        }
    }
    dies_in(|heap, vectors| {
        let mut m = heap.attach();
        let careless = m.alloc(Careless(std::sync::Mutex::new(Some(vectors))));
        m.collect();
        drop(careless);
    });
}

#[test]
fn in_a_finalizer_and_in_a_destructor() {
    struct Ends(std::sync::Mutex<Option<[GcVec<Lists, 2>; 3]>>, bool);
    impl Trace for Ends {
        const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, m| {
            let vectors = this.0.lock().unwrap().take();
            if this.1 {
                for mut vector in vectors.into_iter().flatten() {
                    vector.reserve(m, 500);
                }
            } else {
                *this.0.lock().unwrap() = vectors;
            }
        }));
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    for in_finalizer in [false, true] {
        dies_in(|heap, vectors| {
            let m = heap.attach();
            drop(m.alloc(Ends(std::sync::Mutex::new(Some(vectors)), in_finalizer)));
        });
    }
}

#[test]
fn after_the_end_of_its_heap() {
    for (stress, attached) in [(false, false), (true, false), (false, true)] {
        let census = Census::new();
        let heap = Heap::builder().reserve(1 << 30).stress(stress).build().unwrap();
        let m = heap.attach();
        let new = |name| {
            let witness = Some(Witness::new(&census, name));
            m.alloc(Lists { witness, ..Lists::default() })
        };
        let objects: Vec<_> = (0..9).map(new).collect();
        // The last object leads to all others, by a vector in an object.
        objects.iter().take(8).for_each(|to| objects[8].refer(to, 0, &m));
        let mut vector: GcVec<_, 2> = vector(&m, &objects[8..]);
        vector.reserve(&m, 100);
        drop(objects);
        drop((m, heap));
        // The vector still works, with the mutator of another heap.
        let other = manual();
        let m = attached.then(|| other.attach());
        assert_eq!(census.alive(), 9);
        if let Some(m) = &m {
            vector.push(m, vector[0].clone());
            vector.reserve(m, 1000);
            assert_eq!(vector.len(), 2);
        }
        std::thread::spawn(move || drop(vector)).join().unwrap();
        assert_eq!(census.alive(), 0);
    }
}

/// Every object dies, and the buffer too, if destructors panic. The first panic goes on.
#[test]
fn among_destructors_that_panic() {
    struct Panics(#[expect(dead_code, reason = "counts")] Arc<()>, usize);
    impl Trace for Panics {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("destructor {}", self.1);
        }
    }
    let heap = manual();
    let reports = Arc::new(AtomicUsize::new(0));
    let reported = Arc::clone(&reports);
    heap.on_unraisable(move |_| _ = reported.fetch_add(1, SeqCst));
    let m = heap.attach();
    for count in [1, 2, 3, 20] {
        let alive = Arc::new(());
        let make = || -> GcVec<Panics, 2> {
            let new = |number| m.alloc(Panics(Arc::clone(&alive), number));
            vector(&m, &(0..count).map(new).collect::<Vec<_>>())
        };
        let made = make();
        assert_eq!(panic_text(|| drop(made)).as_deref(), Some("destructor 0"));
        assert_eq!((reports.swap(0, SeqCst), Arc::strong_count(&alive)), (count - 1, 1));
        assert_eq!(heap.stats().live_objects, 0);
        let mut made = make();
        assert_eq!(panic_text(|| made.clear()).as_deref(), Some("destructor 0"));
        assert_eq!((reports.swap(0, SeqCst), Arc::strong_count(&alive)), (count - 1, 1));
        assert_eq!(made.len(), 0);
        drop(made);
        assert_eq!(heap.stats().live_objects, 0);
    }
}

// ---------------------------------------------------------------------------------- refused memory

#[test]
fn a_full_heap_refuses_and_changes_nothing() {
    let heap = Heap::builder().reserve(1 << 30).limit(1 << 20).pacing(Pacing::manual());
    let heap = heap.workers(1).build().unwrap();
    let m = heap.attach();
    let one = m.alloc(1usize);
    let mut vector: GcVec<usize, 2> = GcVec::new();
    let refused = loop {
        match vector.try_push(&m, one.clone()) {
            Ok(()) => assert!(vector.len() < 1 << 17),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.reason(), OutOfMemory::Limit { limit: 1 << 20 });
    let len = vector.len();
    assert!(len > 1 << 14 && len == vector.capacity(), "{len}");
    assert_eq!(Gc::strong_count(&one), len + 2);
    assert_eq!(refused.into_inner(), one);
    for result in [vector.try_reserve(&m, len), vector.try_reserve(&m, 1)] {
        assert_eq!(result, Err(OutOfMemory::Limit { limit: 1 << 20 }));
    }
    let text = panic_text(|| vector.push(&m, one.clone())).expect("a panic");
    assert!(text.contains("the heap's limit of 1048576 bytes is reached"), "{text}");
    let text = panic_text(|| vector.extend(&m, [one.clone()])).expect("a panic");
    assert!(text.contains("cannot make room for 1 handles: the heap's limit"), "{text}");
    assert_eq!((vector.len(), Gc::strong_count(&one)), (len, len + 1));
    drop(vector);
    let again: GcVec<usize, 2> = GcVec::with_capacity(&m, len);
    assert!(again.capacity() >= len);
}

#[test]
fn a_length_without_end_is_refused() {
    let heap = manual();
    let m = heap.attach();
    let mut vector: GcVec<usize, 1> = GcVec::from([m.alloc(1)]);
    for more in [u32::MAX as usize, 1 << 61, 1 << 62, usize::MAX - 1, usize::MAX] {
        let Err(OutOfMemory::TooLarge { size }) = vector.try_reserve(&m, more) else {
            panic!("room for {more}");
        };
        assert!(size > 1 << 34, "{size}");
    }
    assert_eq!((vector.len(), vector.capacity()), (1, 1));
    assert!(panic_text(|| drop(GcVec::<usize, 1>::with_capacity(&m, usize::MAX))).is_some());
}

fn is_sent<T: Send + Sync>() {}

#[test]
fn a_vector_goes_to_other_threads() {
    is_sent::<GcVec<Lists, 3>>();
}

/// A value that is counted until it is dropped.
#[derive(Trace)]
#[trace(untracked)]
struct Numbered(usize, #[trace(skip)] Arc<AtomicUsize>);

impl Drop for Numbered {
    fn drop(&mut self) {
        self.1.fetch_sub(1, SeqCst);
    }
}

/// Closures and iterators that panic at each place, with vectors in line and in buffers.
#[test]
fn closures_and_iterators_that_panic_lose_no_handle() {
    let heap = manual();
    let m = heap.attach();
    let alive = Arc::new(AtomicUsize::new(0));
    let new = |number| {
        alive.fetch_add(1, SeqCst);
        m.alloc(Numbered(number, alive.clone()))
    };
    let panics = |f: &mut dyn FnMut()| assert_eq!(panic_text(f).as_deref(), Some("on purpose"));
    for len in [1, 2, 3, 4, 9] {
        for at in 0..len {
            let mut vector: GcVec<Numbered, 3> = GcVec::new();
            (0..len).for_each(|number| vector.push(&m, new(number)));
            let mut calls = 0;
            panics(&mut || {
                vector.retain(|gc| {
                    calls += 1;
                    assert!(calls <= at, "on purpose");
                    gc.0 % 2 == 0
                });
            });
            let mut all: Vec<usize> = vector.iter().map(|gc| gc.0).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..len), "each once");
            // It may need no comparison that panics.
            let mut calls = 0;
            drop(panic_text(|| {
                vector.sort_by(|a, b| {
                    calls += 1;
                    assert!(calls <= at, "on purpose");
                    b.0.cmp(&a.0)
                });
            }));
            let all: BTreeSet<usize> = vector.iter().map(|gc| gc.0).collect();
            assert_eq!((all.len(), vector.len()), (len, len));
            // The handles before the panic are in the vector.
            let mut next = 0;
            panics(&mut || {
                let handles = std::iter::from_fn(|| {
                    assert!(next < at, "on purpose");
                    next += 1;
                    Some(new(len + next))
                });
                vector.extend(&m, handles);
            });
            assert_eq!((vector.len(), alive.load(SeqCst)), (len + at, len + at));
            drop(vector);
            assert_eq!(alive.load(SeqCst), 0);
        }
    }
    drop(m);
    assert_eq!(heap.stats().live_objects, 0);
}

/// An iterator whose length is a lie.
struct Lies(usize, Vec<Gc<usize>>);

impl Iterator for Lies {
    type Item = Gc<usize>;

    fn next(&mut self) -> Option<Gc<usize>> {
        self.1.pop()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0, Some(self.0))
    }
}

#[test]
fn an_iterator_that_lies_about_its_length() {
    let heap = manual();
    let m = heap.attach();
    let mut vector: GcVec<usize, 2> = GcVec::new();
    for claimed in [0, 1, 2, 3, 1000] {
        let before = vector.len();
        vector.extend(&m, Lies(claimed, numbers(&m, 5)));
        assert_eq!(vector.len(), before + 5);
    }
    let many = Lies(usize::MAX, numbers(&m, 5));
    let text = panic_text(|| vector.extend(&m, many)).expect("a panic");
    assert!(text.starts_with("cannot make room for"), "{text}");
    assert_eq!(vector.len(), 25);
    drop((vector, m));
    assert_eq!(heap.stats().live_objects, 0);
}

/// The destructor of an object that the vector drops locks the cell around the vector.
struct LocksItsOwner(GcCell<Option<standstill::GcWeak<Owner>>>, Arc<AtomicUsize>);

struct Owner(GcCell<GcVec<LocksItsOwner, 1>>);

impl Trace for LocksItsOwner {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Trace for Owner {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

impl Drop for LocksItsOwner {
    fn drop(&mut self) {
        Mutator::with_current(|m| {
            let owner = self.0.lock(m).as_ref().and_then(|weak| weak.upgrade(m));
            let Some(owner) = owner else { return };
            // The cell is locked during `retain`, and free after `take`.
            match owner.0.try_lock(m) {
                Some(mut vector) => vector.clear(),
                None => _ = self.1.fetch_add(1, SeqCst),
            };
        });
    }
}

#[test]
fn a_destructor_finds_the_vector_around_it_locked() {
    let heap = manual();
    let mut m = heap.attach();
    let locked = Arc::new(AtomicUsize::new(0));
    let owner = m.alloc(Owner(GcCell::default()));
    let fill = |m: &Mutator| {
        for _ in 0..6 {
            let weak = Gc::downgrade(&owner, m);
            let object = m.alloc(LocksItsOwner(GcCell::new(Some(weak)), locked.clone()));
            owner.0.lock(m).push(m, object);
        }
    };
    fill(&m);
    owner.0.lock(&m).retain(|_| false);
    assert_eq!(locked.swap(0, SeqCst), 6);
    fill(&m);
    owner.0.lock(&m).truncate(3);
    assert_eq!(locked.swap(0, SeqCst), 3);
    // The first destructor clears the rest.
    fill(&m);
    let first = owner.0.lock(&m).swap_remove(0);
    drop(first);
    assert!(owner.0.lock(&m).is_empty());
    fill(&m);
    drop(owner.0.take(&m));
    drop(owner);
    m.verify().expect("a whole heap");
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}
