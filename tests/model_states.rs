//! The states that a runtime's objects have, and that the collector must know: tests with a model
//! whose objects may stay out of a collection, die before their memory is free, and have bytes in
//! front of their address.
//!
//! Each test is named by a sentence about runtimes. The numbers are those of the findings of two
//! ports, from which the sentences come.
#![cfg(not(loom))]

mod common;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

use standstill::model::{
    ClaimRef, Count, Finalizers, Live, ModelHeap, ModelMutator, Object, ObjectFlags, ObjectModel,
    Reserved, Stopped, Tracer, WeakRefs, World,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, Heap, HeapBuilder, OutOfMemory, Pacing, Stress};

/// What lies at the address of an object. In front of it are `prefix` bytes.
#[repr(C)]
struct Body {
    count: AtomicUsize,
    flags: AtomicU32,
    prefix: u32,
    /// The interpreter that it belongs to.
    interpreter: u32,
    slots: [AtomicPtr<u8>; 2],
}

/// `flags`: takes no part in collections.
const OUTSIDE: u32 = 1;
/// `flags`: immortal.
const FOREVER: u32 = 2;
/// `flags`: has a finalizer.
const FINALIZED: u32 = 4;
/// `flags`: its finalizer takes it out of the collection.
const LEAVES: u32 = 8;
/// `flags`: has a weak reference without a callback.
const WEAK: u32 = 16;

/// See the [module's page](self).
#[derive(Default)]
struct Bodies {
    /// The interpreter that collects; 0: all.
    collects: AtomicU32,
    /// Dead objects keep their memory, and are listed here.
    waits: AtomicBool,
    waiting: Mutex<Vec<Object>>,
    died: AtomicUsize,
    finalized: Mutex<Vec<Object>>,
    /// How often each object was asked for its count.
    asked: Mutex<HashMap<Object, usize>>,
    /// References that traversals skipped, because they lead elsewhere.
    skipped: AtomicUsize,
    /// Weak references are cleared before finalizers run.
    clears_early: AtomicBool,
}

type Mutator = ModelMutator<Bodies>;

fn body<'a>(object: Object) -> &'a Body {
    // SAFETY: an object starts with its body. A test that names one has a reference, or has not
    // freed the memory.
    unsafe { object.as_ptr().cast().as_ref() }
}

impl Bodies {
    fn add_ref(object: Object) -> Object {
        body(object).count.fetch_add(1, Relaxed);
        object
    }

    fn swap(object: Object, slot: usize, new: Option<Object>) -> Option<Object> {
        let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
        NonNull::new(body(object).slots[slot].swap(new, AcqRel)).map(Object::new)
    }

    fn drop_ref(&self, object: Object, m: &Mutator) {
        if body(object).count.fetch_sub(1, AcqRel) == 1 {
            self.destroy(object, m);
        }
    }

    /// Destroys an object with the count 0.
    fn destroy(&self, object: Object, m: &Mutator) {
        for slot in 0..2 {
            if let Some(target) = Self::swap(object, slot, None) {
                self.drop_ref(target, m);
            }
        }
        self.died.fetch_add(1, Relaxed);
        if self.waits.load(Relaxed) {
            // SAFETY: the count is 0. The memory is freed later.
            unsafe { m.dead(object) };
            self.waiting.lock().unwrap().push(object);
        } else {
            // SAFETY: the count is 0, and the content needs no destructor.
            unsafe { m.free(object.as_ptr()) };
        }
    }
}

// SAFETY: 1. `count` has every reference; `claim_ref` adds one, `release` removes one. 2. `destroy`
// frees, at 0, or the tests do, later. 3. Attached threads lower counts. 4. Slots hold counted
// references, or addresses outside the heap. 5. No count is pending. 6. No method gets the mutator
// exclusively.
unsafe impl ObjectModel for Bodies {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        *self.asked.lock().unwrap().entry(*object).or_default() += 1;
        let Body { count, flags, interpreter, .. } = body(*object);
        let (flags, collects) = (flags.load(Relaxed), self.collects.load(Relaxed));
        if flags & FOREVER != 0 {
            Count::Immortal
        } else if flags & OUTSIDE != 0 || (collects != 0 && collects != *interpreter) {
            Count::Outside
        } else {
            Count::Exact(count.load(Relaxed) as i64)
        }
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        for slot in &body(*object).slots {
            let Some(target) = NonNull::new(slot.load(Relaxed)) else { continue };
            if !tracer.is_in_heap(target.as_ptr() as usize) {
                self.skipped.fetch_add(1, Relaxed);
                continue;
            }
            // SAFETY: rule 4: the reference is counted.
            unsafe { tracer.visit_object(Object::new(target)) };
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        Self::add_ref(*object);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        self.drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        for slot in 0..2 {
            if let Some(target) = Self::swap(*object, slot, None) {
                self.drop_ref(target, m);
            }
        }
    }

    fn type_name(&self, object: Live<'_>) -> Cow<'static, str> {
        format!("body of interpreter {}", body(*object).interpreter).into()
    }
}

standstill::parts!(Bodies: Finalizers, WeakRefs);

impl Finalizers<Bodies> for Bodies {
    fn has_finalizer(_: &Self, object: Live<'_>) -> bool {
        body(*object).flags.load(Relaxed) & (FINALIZED | LEAVES) != 0
    }

    fn finalize(model: &Self, object: Live<'_>, _: &Mutator) {
        let flags = &body(*object).flags;
        if flags.load(Relaxed) & LEAVES != 0 {
            flags.fetch_or(OUTSIDE, Relaxed);
        }
        if flags.load(Relaxed) & WEAK != 0 {
            assert!(!model.clears_early.load(Relaxed), "cleared before the finalizers");
        }
        model.finalized.lock().unwrap().push(*object);
    }
}

impl WeakRefs<Bodies> for Bodies {
    type Callback = ();

    fn has_weak(_: &Self, object: Live<'_>) -> bool {
        body(*object).flags.load(Relaxed) & WEAK != 0
    }

    fn take_callbacks(
        model: &Self,
        object: Stopped<'_>,
        _: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        _: &mut Vec<()>,
    ) {
        if model.clears_early.load(Relaxed) {
            body(*object).flags.fetch_and(!WEAK, Relaxed);
        }
    }

    fn clear_weak(_: &Self, object: Stopped<'_>) {
        body(*object).flags.fetch_and(!WEAK, Relaxed);
    }
}

fn builder() -> HeapBuilder {
    Heap::builder().reserve(1 << 28).pacing(Pacing::manual()).workers(2).serial_below(0)
}

fn heap() -> ModelHeap<Bodies> {
    builder().build_with(Bodies::default()).unwrap()
}

/// Heaps with one worker and with several, and one with all checks.
fn heaps() -> impl Iterator<Item = ModelHeap<Bodies>> {
    let checked = Stress::none().poison(true).quarantine(4).verify(true);
    [builder().workers(1), builder(), builder().stress(checked)]
        .into_iter()
        .map(|builder| builder.build_with(Bodies::default()).unwrap())
}

/// A new tracked object with one reference, `prefix` bytes in front of it, and `extra` bytes behind
/// its body.
fn sized(m: &Mutator, flags: u32, prefix: usize, extra: usize) -> Object {
    let at = m.allocate_at(size_of::<Body>() + extra, 8, prefix).unwrap();
    let new = Body {
        count: AtomicUsize::new(1),
        flags: AtomicU32::new(flags),
        prefix: prefix as u32,
        interpreter: 1,
        slots: [const { AtomicPtr::new(null_mut()) }; 2],
    };
    // SAFETY: the memory is new: `prefix` bytes in front of the object, its body, and `extra`
    // bytes.
    unsafe {
        at.sub(prefix).write_bytes(0xab, prefix);
        at.cast::<Body>().write(new);
        at.byte_add(size_of::<Body>()).write_bytes(0xcd, extra);
        m.publish(Object::new(at), true);
    }
    Object::new(at)
}

fn object(m: &Mutator, flags: u32) -> Object {
    sized(m, flags, 0, 0)
}

fn link(from: Object, slot: usize, to: Object) {
    assert_eq!(Bodies::swap(from, slot, Some(Bodies::add_ref(to))), None);
}

/// Makes the objects a ring through their first slots. Nothing else refers to them.
fn close_ring(m: &Mutator, objects: &[Object]) {
    for (at, &from) in objects.iter().enumerate() {
        link(from, 0, objects[(at + 1) % objects.len()]);
    }
    objects.iter().for_each(|&object| m.model().drop_ref(object, m));
}

/// A ring of `n` objects, to which nothing else refers. The flags are those of the first.
fn ring(m: &Mutator, flags: u32, n: usize) -> Vec<Object> {
    let objects: Vec<_> = (0..n).map(|at| object(m, if at == 0 { flags } else { 0 })).collect();
    close_ring(m, &objects);
    objects
}

fn set(object: Object, flags: u32, is: bool) {
    if is {
        body(object).flags.fetch_or(flags, Relaxed);
    } else {
        body(object).flags.fetch_and(!flags, Relaxed);
    }
}

/// Collects. The result has the numbers of collected and of uncollectable objects.
fn collect(m: &mut Mutator, what: Collect) -> (usize, usize) {
    let report = m.try_collect(what).unwrap();
    assert_eq!(report.abandoned, None);
    m.verify().unwrap();
    (report.collected, report.uncollectable)
}

fn full(m: &mut Mutator) -> (usize, usize) {
    collect(m, Collect::full())
}

fn is_tracked(m: &Mutator, object: Object) -> bool {
    // SAFETY: the tests ask for live objects.
    unsafe { m.is_tracked(object) }
}

fn listed(m: &mut Mutator) -> HashMap<Object, ObjectFlags> {
    let mut all = HashMap::new();
    m.objects(|object, flags| assert!(all.insert(*object, flags).is_none(), "listed twice"));
    all
}

fn panic_of(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a text")).to_owned(),
    }
}

/// Rows 7 and 22.
#[test]
fn an_object_that_is_not_this_collections_stays_tracked_and_is_asked_again() {
    for heap in heaps() {
        for what in [Collect::young, Collect::full] {
            let mut m = heap.attach();
            let ring = ring(&m, OUTSIDE, 3);
            let leaf = object(&m, 0);
            link(ring[2], 1, leaf);
            heap.model().drop_ref(leaf, &m);
            for _ in 0..2 {
                assert_eq!(collect(&mut m, what()), (0, 0));
                assert!(ring.iter().all(|&object| is_tracked(&m, object)));
                assert_eq!(heap.stats().live_objects, 4, "also what it reaches");
            }
            let asked = heap.model().asked.lock().unwrap()[&ring[0]];
            assert_eq!(full(&mut m), (0, 0));
            assert!(heap.model().asked.lock().unwrap()[&ring[0]] > asked, "asked again");
            set(ring[0], OUTSIDE, false);
            // All are old by now.
            assert_eq!((full(&mut m), heap.stats().live_objects), ((4, 0), 0));
        }
    }
}

/// Row 7: also if the last collection has remembered it as a root, or if a known root reaches it.
#[test]
fn an_object_outside_is_kept_even_if_a_root_reaches_it_first() {
    for heap in heaps() {
        let mut m = heap.attach();
        let first = object(&m, 0);
        let inner = object(&m, 0);
        link(first, 0, inner);
        heap.model().drop_ref(inner, &m);
        for _ in 0..2 {
            assert_eq!(full(&mut m), (0, 0), "a root that is remembered");
        }
        link(inner, 0, first);
        set(first, OUTSIDE, true);
        heap.model().drop_ref(first, &m);
        for _ in 0..2 {
            assert_eq!(full(&mut m), (0, 0));
        }
        // A root that reaches an object outside, which is the only one that reaches another.
        let named = object(&m, 0);
        link(named, 0, first);
        // SAFETY: the reference stays until the root is forgotten.
        let key = unsafe { heap.known_root(named) };
        assert_eq!(full(&mut m), (0, 0));
        heap.forget_root(key);
        heap.model().drop_ref(named, &m);
        assert!(is_tracked(&m, first) && is_tracked(&m, inner));
        set(first, OUTSIDE, false);
        assert_eq!((full(&mut m), heap.stats().live_objects), ((2, 0), 0));
    }
}

/// Row 7: the answer of the second stop counts, too.
#[test]
fn an_object_that_its_finalizer_takes_out_of_the_collection_is_kept() {
    for heap in heaps() {
        let mut m = heap.attach();
        let ring = ring(&m, LEAVES, 2);
        let report = m.try_collect(Collect::full()).unwrap();
        assert_eq!((report.finalized, report.resurrected, report.collected), (1, 2, 0));
        assert_eq!(full(&mut m), (0, 0));
        set(ring[0], OUTSIDE, false);
        assert_eq!(full(&mut m), (2, 0));
    }
}

/// Row 7.
#[test]
fn an_immortal_object_is_untracked_and_not_asked_again() {
    for heap in heaps() {
        let mut m = heap.attach();
        let ring = ring(&m, FOREVER, 2);
        assert_eq!(full(&mut m), (0, 0));
        assert!(!is_tracked(&m, ring[0]) && is_tracked(&m, ring[1]));
        let asked = heap.model().asked.lock().unwrap()[&ring[0]];
        assert_eq!(m.try_collect(Collect::full()).unwrap().collected, 0);
        assert_eq!(heap.model().asked.lock().unwrap()[&ring[0]], asked);
        set(ring[0], FOREVER, false);
        assert_eq!(m.try_collect(Collect::full()).unwrap().collected, 0, "for good");
        // SAFETY: the other object refers to it.
        assert!(unsafe { m.track(ring[0]) });
        assert_eq!(full(&mut m), (2, 0));
    }
}

/// Row 22: several interpreters share one heap.
#[test]
fn a_collection_of_one_interpreter_leaves_the_objects_of_the_others_alone() {
    let heap = heap();
    let mut m = heap.attach();
    let mine = ring(&m, 0, 2);
    heap.model().collects.store(2, Relaxed);
    assert_eq!(full(&mut m), (0, 0));
    assert!(mine.iter().all(|&object| is_tracked(&m, object)));
    heap.model().collects.store(1, Relaxed);
    assert_eq!(full(&mut m), (2, 0));
}

/// Row 8: its destruction has begun, and waits in a callback or a queue.
#[test]
fn a_tracked_object_with_count_0_is_no_garbage_and_keeps_its_references() {
    for heap in heaps() {
        for what in [Collect::young, Collect::full] {
            let mut m = heap.attach();
            let parked = object(&m, FINALIZED);
            let ring = ring(&m, 0, 2);
            link(parked, 0, ring[0]);
            // The first step of its destruction.
            body(parked).count.fetch_sub(1, Relaxed);
            for _ in 0..2 {
                let report = m.try_collect(what()).unwrap();
                assert_eq!((report.unreachable, report.overvisited), (0, 0));
                assert_eq!(body(parked).count.load(Relaxed), 0, "no thread took a reference");
                assert!(is_tracked(&m, parked));
            }
            m.verify().unwrap();
            assert!(heap.model().finalized.lock().unwrap().is_empty());
            heap.model().destroy(parked, &m);
            assert_eq!((full(&mut m), heap.stats().live_objects), ((2, 0), 0));
        }
    }
}

/// Row 8: a model that breaks rule 4 learns of it.
#[test]
fn a_reference_to_an_object_with_count_0_is_a_fault_that_is_reported() {
    for what in [Collect::young, Collect::full] {
        let heap = heap();
        let mut m = heap.attach();
        let ring = ring(&m, 0, 2);
        let lost = Bodies::add_ref(ring[1]);
        body(lost).count.fetch_sub(2, Relaxed);
        let report = m.try_collect(what()).unwrap();
        assert_eq!((report.overvisited, report.unreachable), (1, 0));
        let error = m.verify().unwrap_err();
        assert!(error.contains("is visited 1 times but has 0 references"), "{error}");
        body(lost).count.fetch_add(1, Relaxed);
        assert_eq!(full(&mut m), (2, 0));
    }
}

/// Row 6: readers without a reference may still look at it.
#[test]
fn the_memory_of_a_dead_object_stays_until_it_is_freed() {
    for heap in heaps() {
        heap.model().waits.store(true, Relaxed);
        let mut m = heap.attach();
        let ring = ring(&m, 0, 3);
        let held = object(&m, 0);
        assert_eq!(full(&mut m), (3, 0), "collected, and not uncollectable");
        assert_eq!(heap.stats().live_objects, 1);
        assert_eq!(listed(&mut m).into_keys().collect::<Vec<_>>(), [held]);
        let others: HashSet<_> = (0..500).map(|_| object(&m, 0)).collect();
        for &dead in &ring {
            assert!(!others.contains(&dead), "its memory is not used again");
            assert_eq!(body(dead).count.load(Relaxed), 0, "a late reader");
            // SAFETY: its memory is in use.
            unsafe {
                assert!(!m.is_tracked(dead) && !m.track(dead));
            }
        }
        assert_eq!(full(&mut m), (0, 0));
        // The grace period is over.
        heap.model().waits.store(false, Relaxed);
        for dead in heap.model().waiting.lock().unwrap().drain(..) {
            // SAFETY: no thread reads it any more.
            unsafe { m.free(dead.as_ptr()) };
        }
        others.into_iter().chain([held]).for_each(|other| heap.model().drop_ref(other, &m));
        assert_eq!((full(&mut m), heap.stats().live_objects), ((0, 0), 0));
    }
}

/// Rule 2: a model that breaks it learns which rule, and where.
#[test]
fn an_object_dies_once_and_its_memory_is_freed_once() {
    let checked = Stress::none().poison(true).quarantine(4);
    let heap = builder().stress(checked).build_with(Bodies::default()).unwrap();
    let m = heap.attach();
    for extra in [0, 100_000] {
        let object = sized(&m, 0, 0, extra);
        // SAFETY: the first calls are right, the others are the faults of this test.
        unsafe {
            m.dead(object);
            let text = panic_of(|| m.dead(object));
            assert!(text.contains("rule 2") && text.contains("once"), "{text}");
            m.free(object.as_ptr());
            let text = panic_of(|| m.free(object.as_ptr()));
            let place = format!("{:#x} is freed twice", object.address());
            assert!(text.contains("rule 2") && text.contains(&place), "{text}");
        }
    }
    // Memory that was never an object has not died.
    let unpublished = m.allocate(40, 8).unwrap();
    // SAFETY: the fault of this test, and then the right call.
    unsafe {
        let text = panic_of(|| m.dead(Object::new(unpublished)));
        assert!(text.contains("no object lives at"), "{text}");
        m.free(unpublished);
    }
    drop(m);
    assert_eq!(heap.stats().live_objects, 0);
}

/// Row 16: a finalizer also runs by plain death.
#[test]
fn a_finalizer_that_the_model_has_called_is_not_called_again() {
    let heap = heap();
    let mut m = heap.attach();
    let ring = ring(&m, FINALIZED, 2);
    set(ring[1], FINALIZED, true);
    // SAFETY: the ring refers to them.
    unsafe {
        assert!(!m.is_finalized(ring[0]));
        assert!(m.set_finalized(ring[0]), "the first time");
        assert!(!m.set_finalized(ring[0]) && m.is_finalized(ring[0]));
    }
    assert_eq!(full(&mut m), (2, 0));
    assert_eq!(*heap.model().finalized.lock().unwrap(), ring[1..]);
}

/// Row 17: whether weak references without a callback are cleared before finalizers is the model's
/// choice.
#[test]
fn weak_references_without_a_callback_may_be_cleared_before_finalizers() {
    let heap = heap();
    let mut m = heap.attach();
    for early in [false, true] {
        heap.model().clears_early.store(early, Relaxed);
        ring(&m, FINALIZED | WEAK, 2);
        assert_eq!(full(&mut m), (2, 0));
    }
    assert_eq!(heap.model().finalized.lock().unwrap().len(), 2);
}

/// Row 5: `[weak list][slots][dict]` lie in front of the object, and the prefix has any length.
#[test]
fn an_object_need_not_be_the_first_byte_of_its_memory() {
    const PREFIXES: [usize; 10] = [0, 1, 8, 16, 31, 32, 40, 100, 3_000, 32_704];
    for heap in heaps() {
        let mut m = heap.attach();
        // Bodies of small and large objects, and those that only the prefix makes large.
        let sizes = [0, 100, 5_000, 20_000, 70_000];
        let all = |m: &Mutator| -> Vec<Object> {
            let of = |extra| PREFIXES.map(|prefix| sized(m, 0, prefix, extra));
            sizes.into_iter().flat_map(of).collect()
        };
        let objects = all(&m);
        let intact = |objects: &[Object]| {
            for &object in objects {
                assert_eq!(object.address() % 32, 0);
                let prefix = body(object).prefix as usize;
                // SAFETY: so many bytes in front of the object belong to it.
                let bytes = unsafe {
                    std::slice::from_raw_parts(object.as_ptr().sub(prefix).as_ptr(), prefix)
                };
                assert!(bytes.iter().all(|&byte| byte == 0xab));
            }
        };
        let seen: HashSet<_> = listed(&mut m).into_keys().collect();
        assert_eq!(seen, objects.iter().copied().collect());
        assert_eq!(heap.stats().live_objects, objects.len());
        m.verify().unwrap();
        intact(&objects);
        // Each refers to the next, and the first is held.
        for pair in objects.windows(2) {
            link(pair[0], 0, pair[1]);
            heap.model().drop_ref(pair[1], &m);
        }
        assert_eq!(collect(&mut m, Collect::young()), (0, 0));
        assert_eq!(full(&mut m), (0, 0));
        intact(&objects);
        let mut found = Vec::new();
        m.referrers(objects[1], |object, _| found.push(*object));
        assert_eq!(found, objects[..1]);
        // Now a ring.
        link(*objects.last().unwrap(), 0, objects[0]);
        heap.model().drop_ref(objects[0], &m);
        assert_eq!((full(&mut m), heap.stats().live_objects), ((objects.len(), 0), 0));
        // New garbage in a young collection, in memory that is used again.
        let new = all(&m);
        close_ring(&m, &new);
        assert_eq!(collect(&mut m, Collect::young()), (new.len(), 0));
        // By count.
        all(&m).into_iter().for_each(|object| heap.model().drop_ref(object, &m));
        assert_eq!(heap.stats().live_objects, 0);
        m.verify().unwrap();
    }
}

/// Row 5: another thread frees them, or the page has changed its owner.
#[test]
fn any_thread_frees_an_object_with_a_prefix() {
    for heap in heaps() {
        let make = |m: &Mutator| -> Vec<Object> {
            (0..2_000).map(|at| sized(m, 0, at % 200, at % 3 * 60)).collect()
        };
        let left = std::thread::scope(|scope| {
            let objects = scope.spawn(|| make(&heap.attach())).join().unwrap();
            // The owner of their pages has ended.
            let m = heap.attach();
            objects.into_iter().for_each(|object| heap.model().drop_ref(object, &m));
            make(&m)
        });
        let mut m = heap.attach();
        let again = make(&m);
        m.verify().unwrap();
        for object in left.into_iter().chain(again) {
            heap.model().drop_ref(object, &m);
        }
        assert_eq!((full(&mut m), heap.stats().live_objects), ((0, 0), 0));
    }
}

#[test]
fn a_prefix_or_an_alignment_that_no_object_can_have_is_refused() {
    let heap = heap();
    let m = heap.attach();
    for size in [32, 100_000] {
        let refused = m.allocate_at(size, 32, 32_705);
        assert_eq!(refused, Err(OutOfMemory::Prefix { prefix: 32_705 }));
        assert_eq!(m.allocate_at(size, 3, 8), Err(OutOfMemory::Alignment { align: 3 }));
        assert_eq!(m.allocate_at(size, 0, 8), Err(OutOfMemory::Alignment { align: 0 }));
        assert!(refused.unwrap_err().to_string().contains("32705 bytes in front"));
    }
    let refused = m.allocate_at(usize::MAX, 32, 8);
    assert_eq!(refused, Err(OutOfMemory::TooLarge { size: usize::MAX }));
    for (align, prefix) in [(64, 8), (4_096, 8), (32_768, 1), (32_768, 32_704)] {
        let at = m.allocate_at(100, align, prefix).unwrap();
        assert_eq!(at.as_ptr() as usize % align, 0);
        // SAFETY: never published.
        unsafe { m.free(at) };
    }
    assert_eq!(heap.stats().live_objects, 0);
}

/// Row 20.
#[test]
fn an_alignment_below_32_counts_as_32() {
    let heap = heap();
    let m = heap.attach();
    for size in [0, 1, 24, 40, 1_000, 100_000] {
        for align in [1, 2, 4, 8, 16, 32] {
            let memory = [m.allocate(size, align).unwrap(), m.allocate_at(size, align, 8).unwrap()];
            for at in memory {
                assert_eq!(at.as_ptr() as usize % 32, 0);
                // SAFETY: never published.
                unsafe { m.free(at) };
            }
        }
    }
}

/// Row 19: most references of a runtime lead to values outside the heap.
#[test]
fn a_traversal_asks_whether_a_reference_leads_into_the_heap() {
    let heap = heap();
    let mut m = heap.attach();
    let outside = Box::new(0u64);
    let address = &raw const *outside as usize;
    let inside = object(&m, 0);
    assert!(heap.contains(inside.address()) && !heap.contains(address) && !heap.contains(0));
    assert!(!self::heap().contains(inside.address()), "another heap");
    body(inside).slots[1].store(std::ptr::with_exposed_provenance_mut(address), Relaxed);
    assert_eq!(full(&mut m), (0, 0));
    assert_ne!(heap.model().skipped.load(Relaxed), 0);
    body(inside).slots[1].store(null_mut(), Relaxed);
    heap.model().drop_ref(inside, &m);
}

/// Row 13: type setup before any thread state, thread teardown, drops in detached code.
#[test]
fn memory_is_freed_on_a_thread_that_is_not_attached_also_in_a_stop() {
    for heap in heaps() {
        let mut m = heap.attach();
        let sizes = [(0, 0), (40, 0), (0, 70_000), (3_000, 70_000)];
        let mut objects: Vec<Object> = (0..40)
            .map(|at: usize| sizes[at % 4])
            .map(|(prefix, extra)| sized(&m, 0, prefix, extra))
            .collect();
        let pages = heap.stats().in_use_bytes;
        // SAFETY: nothing else refers to them, and each is freed once.
        objects.iter().for_each(|&object| unsafe { m.dead(object) });
        let unpublished = Object::new(m.allocate(40, 8).unwrap());
        objects.push(unpublished);
        let free = |objects: &[Object]| {
            // SAFETY: no reference to them is left, and each is freed once.
            objects.iter().for_each(|o| unsafe { heap.free_from_anywhere(o.as_ptr()) });
        };
        let (first, second) = objects.split_at(20);
        {
            let _world = m.stop().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| free(first)).join().unwrap();
            });
        }
        m.verify().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| free(second)).join().unwrap();
        });
        assert_eq!((full(&mut m), heap.stats().live_objects), ((0, 0), 0));
        // Their memory serves new objects.
        let again: Vec<Object> = (0..40)
            .map(|at: usize| sizes[at % 4])
            .map(|(prefix, extra)| sized(&m, 0, prefix, extra))
            .collect();
        // A cell in quarantine is not used again at once.
        assert!(heap.stats().in_use_bytes <= pages + (4 << 17), "the pages are used again");
        again.into_iter().for_each(|object| heap.model().drop_ref(object, &m));
        assert_eq!((full(&mut m), heap.stats().live_objects), ((0, 0), 0));
    }
}

/// Row 13, with threads that allocate and collect meanwhile.
#[test]
fn many_threads_free_from_anywhere_while_others_allocate_and_collect() {
    let heap = heap();
    heap.model().waits.store(true, Relaxed);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let freeing: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !ended.load(Acquire) {
                        let dead = std::mem::take(&mut *heap.model().waiting.lock().unwrap());
                        for object in dead {
                            // SAFETY: dead, and each is listed once.
                            unsafe { heap.free_from_anywhere(object.as_ptr()) };
                        }
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let making: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut m = heap.attach();
                    for round in 0..60 {
                        for at in 0..20 {
                            ring(&m, 0, 1 + at % 3);
                            heap.model().drop_ref(sized(&m, 0, at * 9, 0), &m);
                        }
                        if round % 6 == 5 {
                            m.try_collect(Collect::full()).unwrap();
                        }
                        m.safepoint();
                    }
                })
            })
            .collect();
        making.into_iter().for_each(|thread| thread.join().unwrap());
        ended.store(true, Release);
        freeing.into_iter().for_each(|thread| thread.join().unwrap());
    });
    heap.model().waits.store(false, Relaxed);
    let mut m = heap.attach();
    for dead in std::mem::take(&mut *heap.model().waiting.lock().unwrap()) {
        // SAFETY: dead, and each is listed once.
        unsafe { m.free(dead.as_ptr()) };
    }
    full(&mut m);
    assert_eq!(heap.stats().live_objects, 0);
}

/// Rules 2 and 3: a model that breaks one learns which, and where.
#[test]
fn free_from_anywhere_refuses_addresses_other_than_dead_objects_of_the_heap() {
    let checked = Stress::none().poison(true);
    let heap = builder().stress(checked).build_with(Bodies::default()).unwrap();
    let m = heap.attach();
    let object = object(&m, 0);
    let free = |address: NonNull<u8>| {
        // SAFETY: the faults of this test: each is refused.
        panic_of(|| unsafe { heap.free_from_anywhere(address) })
    };
    let elsewhere = Box::new([0u64; 8]);
    for address in [
        NonNull::from(&*elsewhere).cast(),
        object.as_ptr().map_addr(|address| address.saturating_add(8)),
        object.as_ptr().map_addr(|address| address.saturating_add(1 << 24)),
    ] {
        let (text, place) = (free(address), format!("{:#x}", address.as_ptr() as usize));
        assert!(text.contains("no address of an object of this heap"), "{text}");
        assert!(text.contains(&place), "{text}");
    }
    let text = free(object.as_ptr());
    assert!(text.contains("alive for the heap") && text.contains("rules 2 and 3"), "{text}");
    heap.model().drop_ref(object, &m);
}

/// What the documentation did not say, 9.
#[test]
fn memory_is_published_by_another_mutator_than_its_allocators() {
    let heap = heap();
    let at = heap.attach().allocate_at(size_of::<Body>(), 8, 24).unwrap();
    let mut m = heap.attach();
    m.try_collect(Collect::full()).unwrap();
    let new = Body {
        count: AtomicUsize::new(1),
        flags: AtomicU32::new(0),
        prefix: 24,
        interpreter: 1,
        slots: [const { AtomicPtr::new(null_mut()) }; 2],
    };
    // SAFETY: the memory is new, and large enough.
    unsafe {
        at.cast::<Body>().write(new);
        m.publish(Object::new(at), true);
    }
    let object = Object::new(at);
    link(object, 0, object);
    heap.model().drop_ref(object, &m);
    assert_eq!(collect(&mut m, Collect::young()), (1, 0));
}

/// Row 9.
#[test]
fn the_objects_of_a_heap_are_listed_with_their_flags() {
    for heap in heaps() {
        let mut m = heap.attach();
        assert!(listed(&mut m).is_empty());
        let [old, untracked, finalized] = [0; 3].map(|flags| object(&m, flags));
        full(&mut m);
        let young = sized(&m, 0, 40, 0);
        // SAFETY: the test has a reference to each.
        unsafe {
            assert!(m.untrack(untracked) && m.set_finalized(finalized));
            assert!(m.is_young(young) && !m.is_young(old));
        }
        let all = listed(&mut m);
        assert_eq!(all.len(), 4);
        assert!(all[&young].is_young() && !all[&old].is_young());
        assert!(!all[&untracked].is_tracked() && all[&old].is_tracked());
        assert!(all[&finalized].is_finalized() && !all[&old].is_finalized());
        assert!(all.values().all(|flags| !flags.is_frozen() && !flags.is_unreachable()));
        assert_eq!(format!("{:?}", all[&young]), r#"{"tracked", "young"}"#);
        for object in [old, untracked, finalized, young] {
            heap.model().drop_ref(object, &m);
        }
        assert!(listed(&mut m).is_empty());
    }
}

/// Row 9.
#[test]
fn the_referrers_and_referents_of_an_object_are_found() {
    let heap = heap();
    let mut m = heap.attach();
    let [a, b, c] = [0; 3].map(|flags| object(&m, flags));
    link(a, 0, b);
    link(a, 1, b);
    link(c, 0, b);
    link(b, 0, a);
    let referrers = |m: &mut Mutator, target| {
        let mut found = Vec::new();
        m.referrers(target, |object, flags| {
            assert!(flags.is_tracked());
            found.push(*object);
        });
        found.sort_unstable();
        found
    };
    let mut expected = vec![a, c];
    expected.sort_unstable();
    assert_eq!(referrers(&mut m, b), expected);
    assert_eq!(referrers(&mut m, c), []);
    let referents = |m: &mut Mutator, source| {
        let mut found = Vec::new();
        m.referents(source, |object, _| found.push(*object));
        found
    };
    assert_eq!(referents(&mut m, a), [b, b]);
    assert_eq!(referents(&mut m, c), [b]);
    for wrong in [
        Object::new(NonNull::dangling()),
        Object::new(a.as_ptr().map_addr(|address| address.saturating_add(8))),
        Object::new(m.allocate(40, 8).unwrap()),
    ] {
        let text = panic_of(|| m.referents(wrong, |_, _| ()));
        assert!(text.contains("no object of this heap is at"), "{text}");
    }
    // An inspection inside a borrow of the mutator does not stop the world.
    let text = panic_of(|| {
        Mutator::with_current(|_| m.objects(|_, _| ()));
    });
    assert!(text.contains("safepoint"), "{text}");
    // A panic in the function resumes the world.
    assert_eq!(panic_of(|| m.objects(|_, _| panic!("on purpose"))), "on purpose");
    [a, b, c].iter().for_each(|&object| heap.model().drop_ref(object, &m));
    assert_eq!(full(&mut m).1, 0);
    assert_eq!(heap.stats().live_objects, 0);
}

/// Row 9.
#[test]
fn frozen_objects_are_ignored_by_collections_until_they_are_unfrozen() {
    for heap in heaps() {
        let mut m = heap.attach();
        let garbage = ring(&m, 0, 3);
        assert_eq!((m.frozen(), m.freeze(), m.frozen()), (0, 3, 3));
        assert!(listed(&mut m).values().all(|flags| flags.is_frozen()));
        assert_eq!(full(&mut m), (0, 0));
        let mut found = 0;
        m.referrers(garbage[0], |_, _| found += 1);
        assert_eq!(found, 0, "a frozen object is no referrer");
        m.unfreeze();
        assert_eq!((m.frozen(), full(&mut m)), (0, (3, 0)));
    }
}

/// Row 18.
#[test]
fn the_name_of_a_type_is_made_at_run_time() {
    let heap = heap();
    let mut m = heap.attach();
    let source = object(&m, 0);
    let target = object(&m, 0);
    link(source, 0, target);
    // A reference without a count.
    heap.model().drop_ref(target, &m);
    heap.model().drop_ref(target, &m);
    let error = m.verify().unwrap_err();
    assert!(error.contains("the body of interpreter 1 at"), "{error}");
    assert!(error.contains("where no object is"), "{error}");
    body(source).slots[0].store(null_mut(), Relaxed);
    heap.model().drop_ref(source, &m);
}
