//! Slices of handles are read some at a time, beyond their end too. Exactly the handles of the
//! slice are found, for any number of them, with any targets, in any container.

#![cfg(not(loom))]
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use standstill::{
    AnyGc, Gc, GcCell, GcSlice, GcStr, GcWeak, HeaderSlice, Heap, Mutator, Pacing, Trace, Tracer,
};

type Cells = GcSlice<usize, GcCell<Option<AnyGc>>>;

#[derive(Trace, Default)]
struct Lists {
    plain: GcCell<Vec<Gc<Lists>>>,
    any: GcCell<Vec<AnyGc>>,
    optional: GcCell<Vec<Option<Gc<Lists>>>>,
    slices: GcCell<Vec<Cells>>,
    /// In the object itself.
    within: [GcCell<Option<AnyGc>>; 5],
    /// Behind a pointer: cells that no object contains.
    boxed: Box<[GcCell<Option<AnyGc>>]>,
}

/// An object of one of two kinds.
enum Made {
    Lists(Gc<Lists>),
    Cells(Cells),
}

impl Made {
    fn any(&self) -> AnyGc {
        match self {
            Self::Lists(lists) => lists.clone().into(),
            Self::Cells(cells) => GcSlice::into_any(cells.clone()),
        }
    }

    /// Lets it refer to `target`, somewhere. Returns the cell, if the previous target is gone.
    fn refer(&self, target: &Self, place: usize, m: &Mutator) -> Option<usize> {
        let (cell, cells): (usize, &[GcCell<Option<AnyGc>>]) = match self {
            Self::Cells(cells) => (place % cells.items.len(), &cells.items),
            Self::Lists(lists) => {
                match (place % 8, target) {
                    (0 | 1, Self::Lists(target)) => lists.plain.lock(m).push(target.clone()),
                    (2, Self::Lists(target)) => {
                        lists.optional.lock(m).extend([None, Some(target.clone()), None]);
                    }
                    (0..3, Self::Cells(target)) => lists.slices.lock(m).push(target.clone()),
                    (3 | 4, target) => lists.any.lock(m).push(target.any()),
                    (5, target) => {
                        lists.boxed[place % 3].set(m, Some(target.any()));
                        return Some(5 + place % 3);
                    }
                    (_, target) => {
                        lists.within[place % 5].set(m, Some(target.any()));
                        return Some(place % 5);
                    }
                }
                return None;
            }
        };
        cells[cell].set(m, Some(target.any()));
        Some(cell)
    }
}

fn lists(m: &Mutator) -> Gc<Lists> {
    m.alloc(Lists { boxed: (0..3).map(|_| GcCell::default()).collect(), ..Lists::default() })
}

/// Some of `sizes` cells, the others lists.
fn make(sizes: &[usize], m: &Mutator) -> Vec<Made> {
    let one = |(number, &size): (usize, &usize)| match size {
        0..10 => Made::Cells(m.alloc_slice(number, (0..size + 1).map(|_| GcCell::new(None)))),
        _ => Made::Lists(lists(m)),
    };
    sizes.iter().enumerate().map(one).collect()
}

fn heap(workers: usize) -> Heap {
    Heap::builder().workers(workers).serial_below(0).pacing(Pacing::manual()).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Exactly the objects that are reachable by a list of all references, which is kept beside the
    /// heap, live on.
    #[test]
    fn objects_reachable_through_slices_live_and_all_others_die(
        sizes in proptest::collection::vec(0..20usize, 1..120),
        edges in proptest::collection::vec(any::<(usize, usize, usize)>(), 0..600),
        held in proptest::collection::vec(any::<usize>(), 0..4),
        named in any::<bool>(),
        workers in 1..3usize,
    ) {
        let (ours, other) = (heap(workers), heap(1));
        let strangers = other.attach_scoped(|m| make(&[3, 12], m));
        let mut m = ours.attach();
        let all = make(&sizes, &m);
        // By object: the targets of its cells and its lists. A number beyond the last is an object
        // of another heap.
        let mut cells = vec![BTreeMap::new(); all.len()];
        let mut lists = vec![Vec::new(); all.len()];
        for (from, to, place) in edges {
            let (from, to) = (from % all.len(), to % (all.len() + 1));
            let target = all.get(to).unwrap_or(&strangers[place % 2]);
            match all[from].refer(target, place, &m) {
                Some(cell) => _ = cells[from].insert(cell, to),
                None => lists[from].push(to),
            }
        }
        let mut unseen: Vec<usize> = held.iter().map(|at| at % all.len()).collect();
        let held: Vec<AnyGc> = unseen.iter().map(|&at| all[at].any()).collect();
        let _root = held.first().filter(|_| named).map(|first| ours.known_root(first.clone()));
        let mut reached = BTreeSet::new();
        while let Some(at) = unseen.pop() {
            if at < all.len() && reached.insert(at) {
                unseen.extend(cells[at].values().chain(&lists[at]));
            }
        }
        drop(all);
        let report = m.collect();
        prop_assert_eq!((report.abandoned, report.overvisited), (None, 0));
        prop_assert_eq!(ours.stats().live_objects, reached.len());
        drop((held, _root));
        m.collect();
        prop_assert_eq!(ours.stats().live_objects, 0);
        drop(strangers);
    }
}

/// A forgotten guard keeps the object's targets, and no object is freed that a thread may still
/// use.
#[test]
fn a_cell_among_others_that_is_locked_for_ever() {
    for (size, locked) in (1..9).flat_map(|size| (0..size).map(move |locked| (size, locked))) {
        let ours = heap(1);
        let mut m = ours.attach();
        let cells: Cells = m.alloc_slice(0, (0..size).map(|_| GcCell::new(None)));
        let targets: Vec<Gc<Lists>> = (0..size).map(|_| lists(&m)).collect();
        for (cell, target) in cells.items.iter().zip(&targets) {
            cell.set(&m, Some(target.clone().into()));
            // A cycle, so that counts alone would not end it.
            target.plain.lock(&m).push(target.clone());
        }
        let seen: Vec<_> = targets.iter().map(|target| Gc::downgrade(target, &m)).collect();
        drop(targets);
        std::mem::forget(cells.items[locked].lock(&m));
        for _ in 0..2 {
            assert_eq!(m.collect().collected, 0);
        }
        assert!(seen.iter().all(|weak| weak.upgrade(&m).is_some()));
        drop(cells);
        assert_eq!(m.collect().collected, size, "the cells died, and dropped them");
    }
}

/// Cells outside of objects. Threads that no stop of this heap waits for may lock them until a
/// collection has found them.
#[derive(Clone)]
struct Shared(Arc<Box<[GcCell<Option<AnyGc>>]>>);

impl Trace for Shared {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        // Not the `Arc`'s, which is skipped.
        Box::traverse(&this.0, tracer);
    }
}

#[test]
fn cells_outside_of_objects_change_while_they_are_read() {
    let (ours, other) = (heap(2), heap(1));
    let mut m = ours.attach();
    let mut in_hand: Vec<Option<AnyGc>> = (0..5).map(|_| Some(lists(&m).into())).collect();
    let (mut holders, mut filled) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let shared = Shared(Arc::new((0..3).map(|_| GcCell::default()).collect()));
        holders.push(m.alloc(shared.clone()));
        m.scope(|scope, m| {
            let thread = scope.spawn(|| {
                let m = other.attach();
                // A lock panics once a collection has found the cell.
                (0..1000).find(|turn| {
                    let (cell, at) = (&shared.0[turn % 3], turn * 7 % 5);
                    let lock = || std::mem::swap(&mut *cell.lock(&m), &mut in_hand[at]);
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(lock)).is_err()
                })
            });
            (0..3).for_each(|_| assert_eq!(m.collect().collected, 0));
            m.join(thread).expect("no other panic");
        });
        m.collect();
        filled.push(shared.0.iter().filter(|cell| cell.lock(&m).is_some()).count());
    }
    m.collect();
    let referents = holders.iter().map(|holder| m.referents(&holder.clone().into()).len());
    assert_eq!(referents.collect::<Vec<_>>(), filled);
    drop((holders, in_hand));
    m.safepoint();
    m.collect();
    assert_eq!(ours.stats().live_objects, 0);
}

#[test]
fn a_weak_reference_to_a_slice_or_a_string_is_upgraded_while_it_lives() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
    let m = heap.attach();
    let slice = m.alloc_slice(1u8, [2u64, 3]);
    let text = m.alloc_str(4u8, "weak");
    let (weak_slice, weak_text) = (GcSlice::downgrade(&slice, &m), GcStr::downgrade(&text, &m));
    assert!(weak_slice.upgrade(&m).is_some_and(|it| it == slice && it[1] == 3));
    assert!(weak_text.upgrade(&m).is_some_and(|it| it == text && *it == *"weak"));
    assert_eq!((slice.header, *GcStr::header(&text)), (1, 4));
    drop((slice, text));
    assert!(weak_slice.upgrade(&m).is_none() && weak_text.upgrade(&m).is_none());
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_table_of_strings_does_not_keep_them() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
    let m = heap.attach();
    let mut table = std::collections::HashMap::new();
    let mut intern = |name: &str| -> GcStr {
        if let Some(known) =
            table.get(name).and_then(|weak: &GcWeak<HeaderSlice<(), str>>| weak.upgrade(&m))
        {
            return known;
        }
        let new = m.alloc_str((), name);
        table.insert(name.to_owned(), GcStr::downgrade(&new, &m));
        new
    };
    let (one, other) = (intern("name"), intern("other"));
    assert!(one == intern("name") && one != other);
    drop((one, other));
    assert_eq!((heap.stats().live_objects, &*intern("name")), (0, "name"));
}

#[test]
fn strings_of_all_lengths_are_read_back() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
    let m = heap.attach();
    for len in [0, 1, 7, 8, 100, 5_000, 100_000] {
        let text = "é".repeat(len);
        let gc: GcStr<u64> = m.alloc_str(len as u64, &text);
        assert!(*gc == text && *GcStr::header(&gc) == len as u64 && gc.to_string() == text);
        assert_eq!(format!("{gc:?}"), format!("{text:?}"));
        assert_eq!(GcStr::into_any(gc).strong_count(), 1);
    }
    assert_eq!(GcSlice::from_iter(&m, (), (0..9).filter(|n| n % 2 == 1)).items, [1, 3, 5, 7]);
    assert_eq!(heap.stats().live_objects, 0);
    assert_eq!((size_of::<GcStr>(), size_of::<Option<GcStr>>()), (8, 8));
}
