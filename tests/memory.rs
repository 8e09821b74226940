//! Memory: limits, memory that returns when objects die, large and over-aligned objects, objects
//! without size, slices, trait objects, immortals, and leaks that must be no more than leaks.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::*;
use standstill::{
    AnyGc, Gc, GcCell, GcDyn, GcSlice, Heap, Mutator, OutOfMemory, Trace, Tracer, gc_dyn,
};

/// An object of some size.
struct Block<const BYTES: usize> {
    bytes: [u8; BYTES],
    next: GcCell<Option<AnyGc>>,
    witness: Witness,
}
impl<const BYTES: usize> Trace for Block<BYTES> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.next, m);
    }
}

impl<const BYTES: usize> Block<BYTES> {
    fn value(census: &Arc<Census>, name: usize) -> Self {
        Self {
            bytes: [name as u8; BYTES],
            next: GcCell::default(),
            witness: Witness::new(census, name),
        }
    }

    fn check(&self) {
        self.witness.check();
        assert!(self.bytes.iter().all(|&byte| byte == self.witness.name() as u8), "overwritten");
    }
}

const MIB: usize = 1 << 20;

fn limited(bytes: usize) -> Heap {
    Heap::builder().reserve(1 << 30).limit(bytes).build().unwrap()
}

// ------------------------------------------------------------------------------------------ limits

#[test]
fn the_limit_gives_the_value_back_and_leaves_the_heap_intact() {
    let heap = limited(8 * MIB);
    let census = Census::new();
    let mut m = heap.attach();
    let mut kept: Vec<Gc<Block<1000>>> = Vec::new();
    let error = loop {
        match m.try_alloc(Block::value(&census, kept.len())) {
            Ok(gc) => kept.push(gc),
            Err(error) => break error,
        }
    };
    assert!(kept.len() > 4 * MIB / 1100, "most of the limit could be used: {}", kept.len());
    assert!(matches!(error.reason(), OutOfMemory::Limit { limit } if limit == 8 * MIB), "{error}");
    assert!(error.to_string().contains("limit"), "{error}");
    assert!(heap.stats().in_use_bytes <= 8 * MIB);
    // The value is back, unharmed, and all other values are too.
    let value = error.into_inner();
    assert_eq!(value.witness.name(), kept.len());
    value.check();
    kept.iter().for_each(|gc| gc.check());
    assert_eq!((census.dead(), census.alive()), (0, kept.len() + 1));
    m.verify().expect("a sound heap");
    assert_eq!(m.collect().unreachable, 0);
    // Each failure is like the first, and the panic of `alloc` costs only its value.
    let value = m.try_alloc(value).expect_err("still full").into_inner();
    assert!(panic_text(|| drop(m.alloc(value))).is_some_and(|text| text.contains("limit")));
    assert_eq!(census.dead(), 1);
    // As soon as something goes there is room again.
    kept.truncate(kept.len() / 2);
    for i in 0..kept.len() / 2 {
        kept.push(m.try_alloc(Block::value(&census, i)).expect("room"));
    }
    kept.iter().for_each(|gc| gc.check());
    drop(kept);
    assert_eq!(census.alive(), 0);
    m.verify().expect("a sound heap");
}

#[test]
fn a_full_heap_collects_and_goes_on() {
    let heap = limited(8 * MIB);
    let census = Census::new();
    let mut m = heap.attach();
    let mut full = 0;
    for name in 0..40_000 {
        let gc = match m.try_alloc(Block::<1000>::value(&census, name)) {
            Ok(gc) => gc,
            Err(error) => {
                full += 1;
                let before = heap.stats().collections;
                let gc = m.alloc_or_collect(error.into_inner()).expect("garbage made room");
                assert_eq!(heap.stats().collections, before + 1);
                gc
            }
        };
        gc.next.set(&m, Some(gc.clone().into()));
    }
    assert!(full >= 3, "40 MB of garbage in a heap of 8: full {full} times");
    // Full of living objects, it collects in vain and reports that.
    let mut kept = Vec::new();
    let error = loop {
        match m.alloc_or_collect(Block::<1000>::value(&census, kept.len())) {
            Ok(gc) => kept.push(gc),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.reason(), OutOfMemory::Limit { .. }));
    assert_eq!(error.into_inner().witness.name(), kept.len());
    assert_eq!(census.alive(), kept.len());
}

#[test]
fn an_object_that_can_never_fit_is_refused_as_too_large() {
    let heap = Heap::builder().reserve(64 * MIB).limit(16 * MIB).build().unwrap();
    let mut m = heap.attach();
    let error = m.try_alloc_slice((), (0..200 * MIB).map(|_| 0u8)).expect_err("200 MB in 64");
    assert!(
        matches!(error.reason(), OutOfMemory::TooLarge { size } if size >= 200 * MIB),
        "{error}"
    );
    let error =
        m.try_alloc_slice((), (0..2 * MIB).map(|_| [0u64; 4])).expect_err("64 MB in a limit of 16");
    assert!(matches!(error.reason(), OutOfMemory::TooLarge { .. }), "{error}");
    // More bytes than there are numbers for.
    let endless = (0..usize::MAX >> 4).map(|_| [0u64; 8]);
    assert!(panic_text(|| assert!(m.try_alloc_slice((), endless).is_err(), "too much")).is_none());
    assert_eq!(heap.stats().live_objects, 0);
    m.collect();
    drop(m.alloc_slice((), vec![1u8; 8 * MIB]));
}

#[test]
fn several_threads_at_the_limit() {
    let _watch = deadline("limit");
    let heap = limited(16 * MIB);
    let census = Census::new();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (heap, census) = (&heap, &census);
            scope.spawn(move || {
                let mut m = heap.attach();
                let mut rng = Rng::new(seed);
                let mut kept: Vec<Gc<Block<5000>>> = Vec::new();
                let mut refused = 0;
                while refused < 12 {
                    let name = rng.below(200);
                    match m.alloc_or_collect(Block::value(census, name)) {
                        Ok(gc) => {
                            gc.next.set(&m, Some(gc.clone().into()));
                            kept.push(gc);
                        }
                        Err(error) => {
                            refused += 1;
                            error.into_inner().check();
                            kept.truncate(rng.below(kept.len() + 1));
                        }
                    }
                    if let Some(gc) = kept.last() {
                        gc.check();
                    }
                }
            });
        }
    });
    heap.attach_scoped(|m| {
        m.collect();
        m.verify().expect("a sound heap");
    });
    assert_eq!(census.alive(), 0);
    assert!(heap.stats().in_use_bytes <= 16 * MIB);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    assert!(Heap::builder().workers(0).build().is_err());
    assert!(Heap::builder().reserve(0).build().is_err());
    assert!(Heap::builder().reserve(1 << 30).limit(0).build().is_err());
    // More than any machine has is not: it is halved until the system agrees.
    let heap = Heap::builder().reserve(1 << 46).build().expect("halved");
    assert!(heap.stats().reserved_bytes >= 1 << 30);
    // And a heap is no larger than the collector's names of objects reach.
    assert!(heap.stats().reserved_bytes <= 1 << 37);
    assert_eq!(*heap.attach_scoped(|m| m.alloc(1u8).clone()), 1);
}

// ------------------------------------------------------------------------------- returned memory

/// The number of these 4 KiB pages for which the system holds memory, where the system reports it.
fn resident(pages: &std::collections::BTreeSet<usize>) -> Option<usize> {
    use std::os::unix::fs::FileExt;
    let map = std::fs::File::open("/proc/self/pagemap").ok()?;
    let mut count = 0;
    for page in pages {
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, (page * 8) as u64).ok()?;
        count += (u64::from_ne_bytes(entry) >> 63) as usize;
    }
    Some(count)
}

#[test]
fn memory_comes_back_when_objects_go() {
    for by_collection in [false, true] {
        let heap = Heap::builder().reserve(1 << 30).build().unwrap();
        let census = Census::new();
        let mut m = heap.attach();
        let mut peaks = Vec::new();
        for _ in 0..4 {
            let kept: Vec<_> =
                (0..30_000).map(|name| m.alloc(Block::<1000>::value(&census, name))).collect();
            peaks.push(heap.stats().committed_bytes);
            assert!(heap.stats().in_use_bytes >= 30 * 1_000_000);
            let pages = set(kept.iter().map(|gc| Gc::as_ptr(gc) as usize / 4096));
            assert!(pages.len() > 7_000);
            if by_collection {
                for gc in &kept {
                    gc.next.set(&m, Some(gc.clone().into()));
                }
            }
            drop(kept);
            m.collect();
            assert_eq!(census.alive(), 0);
            let stats = heap.stats();
            assert_eq!((stats.live_objects, stats.live_bytes), (0, 0));
            assert!(stats.in_use_bytes < 4 * MIB, "{stats:?}");
            // The system has it back, save a small cache, when full collections have found it idle.
            (0..3).for_each(|_| drop(m.collect()));
            if let Some(resident) = resident(&pages) {
                assert!(
                    resident < pages.len() / 10,
                    "{resident} of {} pages are still there",
                    pages.len()
                );
            }
        }
        assert!(peaks[3] <= peaks[0] + 2 * MIB, "each round costs the same: {peaks:?}");
    }
}

/// One object in a thousand stays. The memory between them goes, also on pages of threads that have
/// ended. A thread without a mutator can still drop the objects.
#[test]
fn memory_between_few_objects_comes_back() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let census = Census::new();
    let make = |of: usize| {
        let m = heap.attach();
        let all: Vec<_> = (0..100_000)
            .map(|name| m.alloc(Block::<64>::value(&census, of * 100_000 + name)))
            .collect();
        let pages = set(all.iter().map(|gc| Gc::as_ptr(gc) as usize / 4096));
        let kept: Vec<_> = all.into_iter().step_by(1000).collect();
        (kept, pages)
    };
    let (there, mut pages) = std::thread::scope(|s| s.spawn(|| make(1)).join()).expect("no panic");
    let mut m = heap.attach();
    let (here, more) = m.detach(|| std::thread::scope(|s| s.spawn(|| make(0)).join()).unwrap());
    pages.extend(more);
    // The pool keeps free pages until full collections have found them idle.
    (0..4).for_each(|_| drop(m.collect()));
    if let Some(resident) = resident(&pages) {
        assert!(resident < pages.len() / 5, "{resident} of {} pages are still there", pages.len());
    }
    m.verify().expect("a sound heap");
    here.iter().chain(&there).for_each(|block| block.check());
    // The pages are filled again.
    let again: Vec<_> =
        (0..100_000).map(|name| m.alloc(Block::<64>::value(&census, 200_000 + name))).collect();
    again.iter().chain(&here).chain(&there).for_each(|block| block.check());
    m.verify().expect("a sound heap");
    drop(again);
    m.collect();
    m.detach(|| drop((here, there)));
    m.collect();
    assert_eq!(census.alive(), 0);
}

/// One object in a hundred stays: the pages stay, and their free cells are used again.
#[test]
fn fragmented_pages_are_filled_again() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let census = Census::new();
    let mut m = heap.attach();
    let mut kept: Vec<_> = (0..100_000).map(|name| node(&m, &census, name)).collect();
    let full = heap.stats().in_use_bytes;
    let mut i = 0;
    kept.retain(|_| {
        i += 1;
        i % 100 == 0
    });
    m.collect();
    let more: Vec<_> = (0..98_000).map(|name| node(&m, &census, name)).collect();
    let again = heap.stats().in_use_bytes;
    assert!(again <= full + full / 8, "{full} bytes at first, {again} afterwards");
    assert_eq!(census.alive(), kept.len() + more.len());
}

/// Objects that one thread makes and another drops do not pile up in either.
#[test]
fn memory_freed_by_another_thread_is_used_again() {
    let _watch = deadline("remote frees");
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let census = Census::new();
    let (give, take) = std::sync::mpsc::sync_channel::<Vec<Gc<Block<500>>>>(2);
    std::thread::scope(|scope| {
        let (heap, census) = (&heap, &census);
        scope.spawn(move || {
            let mut m = heap.attach();
            while let Ok(batch) = m.detach(|| take.recv()) {
                drop(batch);
                m.safepoint();
            }
        });
        let mut m = heap.attach();
        // 200 batches of 1000 objects: 100 MB in all, of which at most a few batches live at a
        // time.
        for _ in 0..200 {
            let batch: Vec<_> = (0..1000).map(|name| m.alloc(Block::value(census, name))).collect();
            m.detach(|| give.send(batch).unwrap());
            m.safepoint();
        }
        drop(give);
    });
    assert_eq!(census.alive(), 0);
    let stats = heap.stats();
    assert!(stats.committed_bytes < 40 * MIB, "{stats:?}");
}

// ---------------------------------------------------------------------------- sizes and alignments

macro_rules! sizes {
    ($lab:expr, $m:expr, $($bytes:literal)*) => {$({
        let block = |name| $m.alloc(Block::value(&$lab.census, name));
        let kept: Vec<Gc<Block<$bytes>>> = (0..8).map(block).collect();
        for (a, b) in kept.iter().zip(kept.iter().skip(1)) {
            a.next.set($m, Some(b.clone().into()));
        }
        kept[7].next.set($m, Some(kept[0].clone().into()));
        let mut spans: Vec<_> = kept.iter().map(|gc| Gc::as_ptr(gc) as usize).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[1] - pair[0] >= size_of::<Block<$bytes>>()), "overlap");
        $m.safepoint();
        kept.iter().for_each(|gc| gc.check());
        let first = kept[0].clone();
        drop(kept);
        assert_eq!($m.collect().unreachable, 0, "{} bytes", $bytes);
        first.check();
        drop(first);
        assert_eq!($m.collect().collected, 8, "{} bytes", $bytes);
    })*};
}

#[test]
fn objects_of_every_size() {
    on_every_heap_attached(|lab, m| {
        sizes!(lab, m, 0 1 7 8 31 32 33 100 250 500 1000 1500 2000 3000 4000 4096);
        sizes!(lab, m, 5000 8000 8192 10000 16000 16384 20000 30000 32768 40000 60000 65000);
        sizes!(lab, m, 65536 70000 131072 200000);
    });
}

#[test]
fn objects_of_several_megabytes() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let mut m = heap.attach();
    let before = heap.stats();
    for round in 0..3 {
        let big: Vec<GcSlice<u8, u64>> =
            (0..5).map(|i| m.alloc_slice(i, (0..MIB).map(|n| n as u64 + u64::from(i)))).collect();
        assert!(heap.stats().live_bytes >= 40 * MIB);
        m.collect();
        for (i, slice) in big.iter().enumerate() {
            assert_eq!(usize::from(slice.header), i);
            assert!(
                slice.items.iter().enumerate().all(|(at, &n)| n == (at + i) as u64),
                "round {round}"
            );
        }
        drop(big);
        m.collect();
        let after = heap.stats();
        assert_eq!(after.live_objects, before.live_objects);
        assert!(after.in_use_bytes < before.in_use_bytes + MIB, "{after:?}");
    }
}

macro_rules! aligned {
    ($($name:ident $align:literal)*) => {$(
        #[repr(align($align))]
        struct $name(u8, Witness, GcCell<Option<Gc<$name>>>);
        impl Trace for $name {
            fn traverse(this: &Self, tracer: &mut Tracer) {
                Trace::traverse(&this.2, tracer);
            }
            fn clear(this: &Self, m: &Mutator) {
                Trace::clear(&this.2, m);
            }
        }
        impl $name {
            fn run(lab: &Lab, m: &mut Mutator) {
                let witness = |i| Witness::new(&lab.census, i);
                let kept: Vec<_> = (0..30)
                    .map(|i| m.alloc($name(i as u8, witness(i), GcCell::default())))
                    .collect();
                for (i, gc) in kept.iter().enumerate() {
                    assert_eq!(Gc::as_ptr(gc) as usize % $align, 0);
                    assert_eq!(gc.0, i as u8);
                    gc.2.set(m, Some(kept[(i + 1) % 30].clone()));
                }
                m.safepoint();
                kept.iter().for_each(|gc| gc.1.check());
                drop(kept);
                assert_eq!(m.collect().collected, 30, "alignment {}", $align);
            }
        }
    )*};
}

aligned! {
    Align2 2 Align16 16 Align32 32 Align64 64 Align128 128 Align256 256 Align512 512
    Align1024 1024 Align4096 4096
}

#[test]
fn over_aligned_objects() {
    on_every_heap_attached(|lab, m| {
        Align2::run(lab, m);
        Align16::run(lab, m);
        Align32::run(lab, m);
        Align64::run(lab, m);
        Align128::run(lab, m);
        Align256::run(lab, m);
        Align512::run(lab, m);
        Align1024::run(lab, m);
        Align4096::run(lab, m);
        // In a slice, too, where the header comes first.
        let census = lab.census.clone();
        let items =
            (0..5).map(move |i| Align4096(i as u8, Witness::new(&census, i), GcCell::default()));
        let slice = m.alloc_slice(7u8, items);
        let items = &slice.items;
        assert_eq!(items.as_ptr() as usize % 4096, 0);
        assert!(items.iter().enumerate().all(|(i, item)| usize::from(item.0) == i));
        drop(slice);
        assert_eq!(lab.census.alive(), 0);
    });
}

#[test]
fn objects_without_size() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Nothing;
    impl Trace for Nothing {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    impl Drop for Nothing {
        fn drop(&mut self) {
            DROPS.fetch_add(1, SeqCst);
        }
    }
    on_every_heap_attached(|_, m| {
        let before = DROPS.load(SeqCst);
        let kept: Vec<_> = (0..1000).map(|_| m.alloc(Nothing)).collect();
        assert_eq!(set(kept.iter().map(Gc::as_ptr)).len(), 1000, "each has its own address");
        let weak = Gc::downgrade(&kept[500], m);
        m.safepoint();
        assert!(weak.upgrade(m).expect("alive") == kept[500]);
        assert_eq!(DROPS.load(SeqCst), before);
        drop(kept);
        assert_eq!(DROPS.load(SeqCst), before + 1000);
        assert!(weak.upgrade(m).is_none());
        let units = m.alloc_slice((), std::iter::repeat_n((), 1000));
        assert_eq!(units.items.len(), 1000);
    });
}

// -------------------------------------------------------------------------------- slices and views

#[test]
fn slices() {
    on_every_heap_attached(|lab, m| {
        for len in [0usize, 1, 2, 3, 17, 100, 1000, 20_000] {
            let items: Vec<_> = (0..len.min(50)).map(|name| node(m, &lab.census, name)).collect();
            let refs = (0..len).map(|i| GcCell::new(Some(items[i % 50].clone())));
            let slice: GcSlice<String, GcCell<Option<Gc<Node>>>> =
                m.alloc_slice(format!("of {len}"), refs);
            assert_eq!(size_of_val(&slice), size_of::<usize>(), "a thin handle");
            m.safepoint();
            assert_eq!(slice.header, format!("of {len}"));
            assert_eq!(slice.items.len(), len);
            for (i, cell) in slice.items.iter().enumerate() {
                assert_eq!(cell.get(m).expect("full").name(), i % 50);
            }
            drop(items);
            assert_eq!(m.collect().unreachable, 0, "the slice holds them");
            assert_eq!(lab.census.alive(), len.min(50));
            let same = slice.clone();
            drop(slice);
            assert_eq!(same.items.len(), len);
            drop(same);
            assert_eq!(lab.census.alive(), 0);
        }
    });
}

#[test]
fn a_cycle_through_a_slice() {
    struct Row {
        slice: GcCell<Option<GcSlice<(), GcCell<Option<Gc<Row>>>>>>,
        _witness: Witness,
    }
    trace_fields!(Row { slice });
    on_every_heap_attached(|lab, m| {
        let row = m.alloc(Row { slice: GcCell::default(), _witness: Witness::new(&lab.census, 0) });
        let slice = m.alloc_slice((), (0..10).map(|_| GcCell::new(Some(row.clone()))));
        row.slice.set(m, Some(slice.clone()));
        assert_eq!(Gc::strong_count(&row), 11);
        drop((row, slice));
        assert_eq!(m.collect().collected, 2);
    });
}

#[test]
fn trait_objects() {
    trait Shape: Send + Sync {
        fn area(&self) -> usize;
    }
    struct Square(usize, Witness);
    struct Pair(GcCell<Vec<GcDyn<dyn Shape>>>, Witness);
    impl Trace for Square {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    impl Trace for Pair {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.0, m);
        }
    }
    impl Shape for Square {
        fn area(&self) -> usize {
            self.1.check();
            self.0 * self.0
        }
    }
    impl Shape for Pair {
        fn area(&self) -> usize {
            self.1.check();
            Mutator::with_current(|m| {
                let parts = self.0.lock(m);
                // Not itself, which is in there as well.
                parts.iter().take(2).map(|part| part.area()).sum()
            })
            .expect("attached")
        }
    }
    on_every_heap_attached(|lab, m| {
        let witness = |name| Witness::new(&lab.census, name);
        let square = |m: &Mutator, side| gc_dyn!(m.alloc(Square(side, witness(side))) => dyn Shape);
        let pair = m.alloc(Pair(GcCell::default(), witness(0)));
        let view = gc_dyn!(pair.clone() => dyn Shape);
        pair.0.set(m, vec![square(m, 3), square(m, 4), view.clone()]);
        drop(pair);
        m.safepoint();
        assert_eq!(view.area(), 25);
        assert_eq!(m.collect().unreachable, 0);
        assert_eq!(view.area(), 25);
        drop(view);
        assert_eq!(m.collect().collected, 3);
    });
}

// -------------------------------------------------------------------------------- leaks, no more

#[test]
fn immortal_objects_are_not_counted() {
    on_every_heap(|lab| {
        let immortal = lab.heap.attach_scoped(|m| {
            let immortal = node(m, &lab.census, 0);
            Gc::immortalize(&immortal, m);
            assert_eq!(Gc::strong_count(&immortal), usize::MAX);
            immortal
        });
        std::thread::scope(|scope| {
            for attached in [true, true, false] {
                let immortal = &immortal;
                scope.spawn(move || {
                    let mut m = attached.then(|| lab.heap.attach());
                    for _ in 0..10_000 {
                        let clones = (immortal.clone(), immortal.clone());
                        drop(clones.0);
                        std::mem::forget(clones.1);
                        // A drop too many, which a wrong use of `unsafe` could make, is survived as
                        // well.
                    }
                    if let Some(m) = &mut m {
                        m.collect();
                    }
                });
            }
        });
        lab.heap.attach_scoped(|m| {
            assert_eq!(Gc::strong_count(&immortal), usize::MAX);
            assert_eq!(immortal.name(), 0);
            drop(immortal);
            m.collect();
            assert_eq!(lab.census.alive(), 1);
        });
        lab.leaves_behind(1);
    });
}

#[test]
fn a_forgotten_handle_keeps_its_cycle() {
    on_every_heap_attached(|lab, m| {
        let members = ring(m, &lab.census, 0, 3);
        std::mem::forget(members[1].clone());
        drop(members);
        let report = m.collect();
        assert_eq!((report.unreachable, report.collected), (0, 0));
        lab.leaves_behind(3);
    });
}

/// A cycle that `clear` does not break is uncollectable, and harmless.
#[test]
fn a_cycle_that_clear_does_not_break() {
    struct Once {
        cell: std::sync::OnceLock<Gc<Once>>,
        _witness: Witness,
    }
    impl Trace for Once {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            this.cell.get().into_iter().for_each(|gc| Trace::traverse(gc, tracer));
        }
    }
    on_every_heap_attached(|lab, m| {
        let once = m.alloc(Once {
            cell: std::sync::OnceLock::new(),
            _witness: Witness::new(&lab.census, 0),
        });
        assert!(once.cell.set(once.clone()).is_ok());
        drop(once);
        for _ in 0..2 {
            let report = m.collect();
            assert_eq!((report.unreachable, report.collected, report.uncollectable), (1, 0, 1));
        }
        lab.leaves_behind(1);
    });
}

/// An `Arc` is not followed: a reference behind it counts as a reference from outside.
#[test]
fn references_behind_an_arc_are_roots() {
    struct Shared {
        arc: Arc<std::sync::Mutex<Option<Gc<Shared>>>>,
        _witness: Witness,
    }
    trace_fields!(Shared { arc });
    on_every_heap_attached(|lab, m| {
        let arc = Arc::new(std::sync::Mutex::new(None));
        let gc = m.alloc(Shared { arc: arc.clone(), _witness: Witness::new(&lab.census, 0) });
        *arc.lock().unwrap() = Some(gc);
        assert_eq!(m.collect().unreachable, 0);
        let taken = arc.lock().unwrap().take();
        drop(taken);
        assert_eq!(lab.census.alive(), 0);
    });
}
