//! Heaps of segments, with objects in memory that others allocated.
//!
//! The objects of [`Cells`] lie in [`Shelf`]s: memory from the program's allocator that the heap
//! adopts.
#![cfg(not(loom))]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

use standstill::model::{
    AdoptError, ClaimRef, Count, Live, ModelHeap, ModelMutator, Object, ObjectModel,
    Segments as Addresses, Stopped, Tracer,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, Heap, HeapBuilder, Pacing, Stress};

const UNIT: usize = 1 << 20;
/// Bytes of an object on a shelf. Every second object starts in the middle of 32 bytes.
const PLACE: usize = 80;

/// The header of an object. Slots follow.
#[repr(C)]
struct Header {
    count: AtomicUsize,
    len: u32,
    serial: usize,
}

const _: () = assert!(size_of::<Header>() == 24);

/// Aligned memory of the program's allocator.
struct Shelf {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to the shelf.
unsafe impl Send for Shelf {}

impl Shelf {
    fn new(units: usize) -> Self {
        let layout = Layout::from_size_align(units * UNIT, UNIT).unwrap();
        // SAFETY: the layout is not empty.
        Self { start: NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap(), layout }
    }

    /// The place number `n`.
    fn place(&self, n: usize) -> NonNull<u8> {
        assert!((n + 1) * PLACE <= self.layout.size());
        // SAFETY: inside the memory.
        unsafe { self.start.add(n * PLACE) }
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The places of all shelves that no object takes.
#[derive(Default)]
struct Places {
    free: Vec<usize>,
    shelves: Vec<Shelf>,
}

/// See the [module's page](self).
#[derive(Default)]
struct Cells {
    born: AtomicUsize,
    /// The serial numbers of destroyed objects.
    died: Mutex<HashSet<usize>>,
    places: Mutex<Places>,
}

type Mutator = ModelMutator<Cells>;

impl Cells {
    fn header(&self, object: Object) -> &Header {
        // SAFETY: each object starts with a header. Callers have a reference, or are the collector.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn slots(&self, object: Object) -> &[AtomicPtr<u8>] {
        let len = self.header(object).len as usize;
        // SAFETY: `Cells::fill` has written as many slots behind the header.
        unsafe {
            let first = object.as_ptr().byte_add(size_of::<Header>()).cast();
            std::slice::from_raw_parts(first.as_ptr(), len)
        }
    }

    /// Makes memory an object with one reference, and without references in its slots.
    fn fill(&self, memory: NonNull<u8>, len: usize) -> Object {
        let serial = self.born.fetch_add(1, Relaxed);
        let header = Header { count: AtomicUsize::new(1), len: len as u32, serial };
        // SAFETY: the caller owns the memory, which is large enough.
        unsafe {
            memory.cast::<Header>().write(header);
            memory.byte_add(size_of::<Header>()).cast::<AtomicPtr<u8>>().write_bytes(0, len);
        }
        Object::new(memory)
    }

    /// An object on a shelf of the heap.
    fn on_shelf(m: &Mutator, len: usize) -> Object {
        assert!(size_of::<Header>() + len * 8 <= PLACE);
        let place = m.model().places.lock().unwrap().free.pop().expect("a free place");
        let memory = NonNull::new(std::ptr::with_exposed_provenance_mut(place)).unwrap();
        let object = m.model().fill(memory, len);
        // SAFETY: the object was just filled, and no other thread has its place.
        unsafe { m.register(object, true) }.unwrap();
        object
    }

    /// Has the heap adopt a shelf. Returns how many objects it has room for.
    fn add_shelf(m: &Mutator, units: usize) -> usize {
        let shelf = Shelf::new(units);
        // SAFETY: the model, which the heap owns, keeps the shelf.
        unsafe { m.adopt(shelf.start, shelf.layout.size()) }.unwrap();
        let room = shelf.layout.size() / PLACE;
        let mut places = m.model().places.lock().unwrap();
        places.free.extend((0..room).map(|n| shelf.place(n).as_ptr().expose_provenance()));
        places.shelves.push(shelf);
        room
    }

    fn add_ref(&self, object: Object) -> Object {
        self.header(object).count.fetch_add(1, Relaxed);
        object
    }

    fn swap(&self, object: Object, slot: usize, new: Option<Object>) -> Option<Object> {
        let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
        NonNull::new(self.slots(object)[slot].swap(new, AcqRel)).map(Object::new)
    }

    fn link(from: Object, slot: usize, to: Object, m: &Mutator) {
        let cells = m.model();
        if let Some(old) = cells.swap(from, slot, Some(cells.add_ref(to))) {
            cells.drop_ref(old, m);
        }
    }

    fn drop_ref(&self, object: Object, m: &Mutator) {
        let mut dropped = vec![object];
        while let Some(object) = dropped.pop() {
            if self.header(object).count.fetch_sub(1, AcqRel) != 1 {
                continue;
            }
            let len = self.slots(object).len();
            dropped.extend((0..len).filter_map(|slot| self.swap(object, slot, None)));
            let &Header { serial, .. } = self.header(object);
            assert!(self.died.lock().unwrap().insert(serial), "destroyed twice");
            // SAFETY: the count is 0, so no thread has a reference.
            unsafe {
                m.unregister(object);
                object.as_ptr().write_bytes(0xee, PLACE);
                let place = object.as_ptr().as_ptr().expose_provenance();
                self.places.lock().unwrap().free.push(place);
            }
        }
    }

    fn dead(&self) -> usize {
        self.died.lock().unwrap().len()
    }
}

// SAFETY: 1. `count` is the number of references. 2. `drop_ref` frees or unregisters, at 0. 3. only
// attached threads lower counts. 4. `traverse` reports the references in slots, which are counted,
// and addresses at which no object of the heap is. 5. no count is pending. 6. no method reaches a
// safepoint.
unsafe impl ObjectModel for Cells {
    type Addresses = Addresses;
    type Parts = ();

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(self.header(*object).count.load(Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        for slot in self.slots(*object) {
            if let Some(target) = NonNull::new(slot.load(Relaxed)) {
                // SAFETY: rule 4: a slot's reference is counted.
                unsafe { tracer.visit_object(Object::new(target)) };
            }
        }
        // Addresses of no heap: the tracer ignores them.
        for elsewhere in [std::ptr::from_ref(self) as usize, 1 << 47, 1 << 48, usize::MAX - 31] {
            let elsewhere = NonNull::new(std::ptr::without_provenance_mut(elsewhere)).unwrap();
            // SAFETY: no object of the heap is there.
            unsafe { tracer.visit_object(Object::new(elsewhere)) };
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.add_ref(*object);
    }

    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
        self.drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        for slot in 0..self.slots(*object).len() {
            if let Some(target) = self.swap(*object, slot, None) {
                self.drop_ref(target, m);
            }
        }
    }

    fn type_name(&self, _: Live<'_>) -> std::borrow::Cow<'static, str> {
        "cell".into()
    }
}

fn builder() -> HeapBuilder {
    Heap::builder().reserve(256 << 20).pacing(Pacing::manual()).workers(1)
}

/// Heaps with one worker and with several, with usual and with small constants. The heap is
/// verified before and after each collection.
fn on_heaps(test: impl Fn(&ModelHeap<Cells>, &mut Mutator)) {
    for workers in [1, 3] {
        for small in [false, true] {
            let stress = Stress::none().verify(true).verify_counts(true).small_constants(small);
            let builder = builder().workers(workers).serial_below(0).stress(stress);
            let heap = builder.build_with(Cells::default()).unwrap();
            let mut m = heap.attach();
            test(&heap, &mut m);
            m.try_collect(Collect::full()).unwrap();
            assert_eq!(heap.model().dead(), heap.model().born.load(Relaxed), "all are gone");
            assert_eq!(heap.stats().live_objects, 0);
        }
    }
}

fn collect(m: &mut Mutator, what: Collect) -> usize {
    let report = m.try_collect(what).unwrap();
    assert_eq!((&report.abandoned, report.overvisited), (&None, 0));
    assert_eq!(report.uncollectable, 0);
    report.collected
}

/// A ring through the first slots of some objects, and the reference to the first.
fn ring(m: &Mutator, objects: &[Object]) -> Object {
    for (at, &object) in objects.iter().enumerate() {
        Cells::link(object, 0, objects[(at + 1) % objects.len()], m);
    }
    objects[1..].iter().for_each(|&object| m.model().drop_ref(object, m));
    objects[0]
}

#[test]
fn objects_in_memory_of_others_are_collected() {
    on_heaps(|heap, m| {
        let room = Cells::add_shelf(m, 2);
        for round in 0..3 {
            let mut kept = Vec::new();
            for number in 0..400 {
                let objects: Vec<_> = (0..1 + number % 9).map(|_| Cells::on_shelf(m, 2)).collect();
                let first = ring(m, &objects);
                if number % 4 == 0 {
                    kept.push((first, objects.len()));
                } else {
                    m.model().drop_ref(first, m);
                }
            }
            let alive: usize = kept.iter().map(|&(_, len)| len).sum();
            assert!(
                collect(m, if round == 1 { Collect::full() } else { Collect::young() }) > 1_000
            );
            assert_eq!(collect(m, Collect::full()), 0);
            assert_eq!(heap.stats().live_objects, alive);
            kept.iter().for_each(|&(first, _)| heap.model().drop_ref(first, m));
            assert_eq!(collect(m, Collect::full()), alive);
            let free = heap.model().places.lock().unwrap().free.len();
            assert_eq!(free, room, "all places are free");
        }
        assert_eq!(heap.stats().in_use_bytes, 0, "adopted memory is not the heap's");
    });
}

/// A pseudo-random number below `below`.
fn random(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

#[test]
fn a_random_graph_loses_exactly_the_unreachable_objects() {
    for seed in 1..4 {
        on_heaps(|heap, m| {
            let mut seed = seed;
            Cells::add_shelf(m, 1);
            let mut held = HashMap::<usize, Object>::new();
            let mut edges = HashMap::<usize, [Option<usize>; 2]>::new();
            let cells = heap.model();
            for round in 0..6 {
                for _ in 0..150 {
                    let object = Cells::on_shelf(m, 2 + random(&mut seed, 6));
                    let serial = cells.header(object).serial;
                    held.insert(serial, object);
                    edges.insert(serial, [None; 2]);
                }
                let mut all: Vec<usize> = held.keys().copied().collect();
                all.sort_unstable();
                for _ in 0..400 {
                    let (from, to) =
                        (all[random(&mut seed, all.len())], all[random(&mut seed, all.len())]);
                    let slot = random(&mut seed, 2);
                    Cells::link(held[&from], slot, held[&to], m);
                    edges.get_mut(&from).unwrap()[slot] = Some(to);
                }
                for &serial in &all {
                    if random(&mut seed, 3) == 0 {
                        cells.drop_ref(held.remove(&serial).unwrap(), m);
                    }
                }
                let what = if round % 3 == 2 { Collect::full() } else { Collect::young() };
                collect(m, what);
                collect(m, Collect::full());
                let mut reached: HashSet<usize> = held.keys().copied().collect();
                let mut stack: Vec<usize> = held.keys().copied().collect();
                while let Some(serial) = stack.pop() {
                    stack.extend(edges[&serial].iter().flatten().filter(|&&to| reached.insert(to)));
                }
                let died = cells.died.lock().unwrap();
                for serial in edges.keys() {
                    assert_eq!(died.contains(serial), !reached.contains(serial));
                }
                drop(died);
                edges.retain(|serial, _| reached.contains(serial));
            }
            held.into_values().for_each(|object| cells.drop_ref(object, m));
        });
    }
}

#[test]
fn threads_share_graphs() {
    const THREADS: usize = 4;
    let pacing = Pacing::default().with_young_objects(2_000);
    let builder = builder().pacing(pacing).workers(2).serial_below(0);
    let heap = builder.build_with(Cells::default()).unwrap();
    Cells::add_shelf(&heap.attach(), 8);
    let shared = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (heap, shared) = (heap.clone(), &shared);
            scope.spawn(move || {
                let mut m = heap.attach();
                let mut seed = thread as u64 + 1;
                for round in 0..3_000 {
                    let objects: Vec<_> =
                        (0..1 + random(&mut seed, 6)).map(|_| Cells::on_shelf(&m, 2)).collect();
                    let first = ring(&m, &objects);
                    // Another thread drops it.
                    let other = {
                        let mut shared = shared.lock().unwrap();
                        shared.push(first);
                        let at = random(&mut seed, shared.len());
                        (shared.len() > 50).then(|| shared.swap_remove(at))
                    };
                    if let Some(other) = other {
                        m.model().drop_ref(other, &m);
                    }
                    m.safepoint();
                    if round % 1_000 == 500 {
                        let _busy = m.try_collect(Collect::full());
                    }
                }
            });
        }
    });
    let mut m = heap.attach();
    for first in std::mem::take(&mut *shared.lock().unwrap()) {
        heap.model().drop_ref(first, &m);
    }
    collect(&mut m, Collect::full());
    assert_eq!(heap.model().dead(), heap.model().born.load(Relaxed));
    assert!(heap.stats().collections > 1);
}

#[test]
fn mistakes_with_adopted_memory_are_refused() {
    let heap = builder().build_with(Cells::default()).unwrap();
    let m = heap.attach();
    Cells::add_shelf(&m, 1);
    let object = Cells::on_shelf(&m, 1);
    let address = object.address();
    let at = |address: usize| {
        Object::new(NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap())
    };
    // SAFETY: all calls are refused.
    unsafe {
        let registered = AdoptError::Registered { address };
        assert_eq!(m.register(object, true), Err(registered));
        let misplaced = AdoptError::Misplaced { address: address + 8 };
        assert_eq!(m.register(at(address + 8), true), Err(misplaced));
        // The other half of the same 32 bytes.
        let beside = AdoptError::Registered { address: address ^ 16 };
        assert_eq!(m.register(at(address ^ 16), true), Err(beside));
        let own = Box::new([0u64; 4]);
        let own = at((&raw const *own).addr() & !15);
        let elsewhere = AdoptError::NotAdopted { address: own.address() };
        assert_eq!(m.register(own, true), Err(elsewhere));
        let start = NonNull::new(std::ptr::without_provenance_mut(address & !(UNIT - 1))).unwrap();
        let taken = AdoptError::Taken { start: start.addr().get(), bytes: UNIT };
        assert_eq!(m.adopt(start, UNIT), Err(taken));
        let panics = |f: &dyn Fn()| {
            let thrown = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
            match thrown.downcast::<String>() {
                Ok(text) => *text,
                Err(thrown) => thrown.downcast::<&str>().expect("a text").to_string(),
            }
        };
        let text = panics(&|| m.unregister(at(address + 32)));
        assert_eq!(text, format!("no object is registered at {:#x}", address + 32));
        let text = panics(&|| m.unregister(at(address ^ 16)));
        assert_eq!(text, format!("no object is registered at {:#x}", address ^ 16));
        let text = panics(&|| m.dead(at(address ^ 16)));
        assert!(text.starts_with("no object lives at "), "{text}");
        let text = panics(&|| m.unregister(own));
        assert!(text.contains("does not lie in adopted memory"), "{text}");
        let still = AdoptError::Registered { address };
        assert_eq!(m.register(object, true), Err(still), "nothing has changed");
    }
    assert!(m.owns(object) && !m.owns(at(1 << 47)));
}

/// Bytes of addresses that this process has.
#[cfg(target_os = "linux")]
fn addresses() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().next().unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_thousand_heaps_live_at_once() {
    const HEAPS: usize = 1_000;
    #[cfg(target_os = "linux")]
    let before = addresses();
    let heaps: Vec<_> = (0..HEAPS)
        .map(|_| {
            let builder = Heap::builder().reserve(64 << 20).pacing(Pacing::manual()).workers(1);
            let heap = builder.build_with(Cells::default()).unwrap();
            let objects = {
                let m = heap.attach();
                Cells::add_shelf(&m, 1);
                let objects = [Cells::on_shelf(&m, 2), Cells::on_shelf(&m, 2)];
                objects.iter().for_each(|&object| Cells::link(object, 0, object, &m));
                objects
            };
            (heap, objects)
        })
        .collect();
    #[cfg(target_os = "linux")]
    {
        let each = (addresses() - before) / HEAPS;
        println!("a heap takes {} KiB of addresses", each >> 10);
        assert!(each < 32 << 20, "{each} bytes of addresses for a heap");
    }
    for (heap, objects) in &heaps {
        assert!(heap.stats().reserved_bytes < 32 << 20);
        let mut m = heap.attach();
        assert!(objects.iter().all(|&object| m.owns(object)));
        heap.model().drop_ref(objects[0], &m);
        assert_eq!(collect(&mut m, Collect::full()), 1);
    }
    // Each heap has its own object, and no other.
    for (number, (_, objects)) in heaps.iter().enumerate() {
        let m = heaps[(number + 1) % HEAPS].0.attach();
        assert!(!m.owns(objects[1]));
    }
}
