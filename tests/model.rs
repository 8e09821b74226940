//! The seam below the typed face: a heap of objects that know nothing of it.
//!
//! [`Nodes`] is the model of a small runtime with its own objects: a header of 24 bytes with one
//! plain atomic count, and a chosen number of slots behind it, which are read and written with
//! atomic exchanges. It has the other features of such runtimes too: deferred drops that are merged
//! later, weak references with callbacks, finalizers that resurrect objects, and a destruction
//! without recursion.
#![cfg(not(loom))]

mod common;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Barrier, Mutex};

/// The address map of the heaps. `tests/model_segments.rs` runs these tests with the other map.
#[allow(unused_imports, reason = "the other program has another one")]
use standstill::model::Reserved as Addresses;
use standstill::model::{
    Batches, Checks, ClaimRef, Count, DeadObject, Ends, Finalizers, Live, ModelHeap, ModelMutator,
    Object, ObjectModel, SplitCounts, Stopped, ThreadData, Threads, Tracer, WeakRefs, World,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, CollectionReport, Heap, HeapBuilder, OutOfMemory, Pacing};

/// The header in front of each object's slots.
#[repr(C)]
struct Header {
    count: AtomicUsize,
    /// How many slots follow.
    len: u32,
    kind: AtomicU32,
    /// Its number among all objects of the heap.
    serial: usize,
}

const _: () = assert!(size_of::<Header>() == 24);

/// `kind`: has a finalizer, which brings the object back.
const RISES: u32 = 1;
/// `kind`: was cleared by the collector.
const CLEARED: u32 = 2;
/// `kind`: its traversal panics.
const BITES: u32 = 4;
/// `kind`: immortal.
const FOREVER: u32 = 8;
/// `kind`: the second half of its slots cannot be read.
const SHUT: u32 = 16;
/// `kind`: is to show the same in both traversals of a collection.
const DOUBTED: u32 = 32;
/// `kind`: cannot be read the second time that it is traversed.
const WINKS: u32 = 64;
/// `kind`: has been traversed once more.
const TRAVERSAL: u32 = 1 << 16;

/// `kind`: of four traversals, reports its slots in those of which `lights` has the bit, and
/// nothing in the others.
const fn flickers(lights: u32) -> u32 {
    (lights ^ 0xf) << 8
}

/// The tests' record of the objects.
#[derive(Default)]
struct Census {
    born: AtomicUsize,
    /// How often each object was destroyed.
    died: Mutex<HashMap<usize, usize>>,
    finalized: AtomicUsize,
    called_back: Mutex<Vec<usize>>,
}

/// A weak reference: empty when the target is dead or cleared.
#[derive(Clone)]
struct Weak {
    target: Arc<Mutex<Option<Object>>>,
    /// Has a callback, which logs this number.
    callback: Option<usize>,
}

/// See the [module's page](self).
#[derive(Default)]
struct Nodes {
    census: Census,
    /// By address. The lock is taken by attached threads, and by a stop, in which it is free.
    weak: Mutex<HashMap<usize, Vec<Weak>>>,
    /// Counted references that finalizers have left.
    risen: Mutex<Vec<Object>>,
    /// Its batch traversal traverses no object.
    idle: AtomicBool,
    /// The end of a mutator panics.
    fails: AtomicBool,
}

type Mutator = ModelMutator<Nodes>;

/// The data of a mutator's thread: objects with the count 0.
#[derive(Default)]
struct Dying(RefCell<Vec<Object>>, AtomicBool);

impl Nodes {
    fn header(&self, object: Object) -> &Header {
        // SAFETY: an object starts with its header. A caller that names one holds a reference to
        // it, or is the collector, which names only live ones.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn slots(&self, object: Object) -> &[AtomicPtr<u8>] {
        let len = self.header(object).len as usize;
        // SAFETY: as in `header`; `alloc` has made room for that many, and written them.
        unsafe {
            let first = object.as_ptr().byte_add(size_of::<Header>()).cast();
            std::slice::from_raw_parts(first.as_ptr(), len)
        }
    }

    fn add_ref(&self, object: Object) -> Object {
        self.header(object).count.fetch_add(1, Relaxed);
        object
    }

    /// Puts a counted reference into a slot, and returns the previous one.
    fn swap(&self, object: Object, slot: usize, new: Option<Object>) -> Option<Object> {
        let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
        NonNull::new(self.slots(object)[slot].swap(new, AcqRel)).map(Object::new)
    }

    fn link(&self, from: Object, slot: usize, to: Object, m: &Mutator) {
        if let Some(old) = self.swap(from, slot, Some(self.add_ref(to))) {
            self.drop_ref(old, m);
        }
    }

    fn drop_ref(&self, object: Object, m: &Mutator) {
        if self.header(object).count.fetch_sub(1, AcqRel) == 1 {
            self.destroy(object, m);
        }
    }

    /// Drops a reference some time: counted when the collector asks, or at the end.
    fn drop_later(&self, object: Object, m: &Mutator) {
        m.local().lock().unwrap().push(object);
    }

    fn flush(&self, m: &Mutator) {
        let pending = std::mem::take(&mut *m.local().lock().unwrap());
        for object in pending {
            self.drop_ref(object, m);
        }
    }

    /// Destroys an object with the count 0, and then the objects that die with it, one after the
    /// other.
    fn destroy(&self, object: Object, m: &Mutator) {
        let Dying(stack, busy) = m.private();
        stack.borrow_mut().push(object);
        if busy.swap(true, Relaxed) {
            return;
        }
        loop {
            let Some(object) = stack.borrow_mut().pop() else { break };
            self.forget_weak(object);
            for slot in 0..self.slots(object).len() {
                if let Some(target) = self.swap(object, slot, None) {
                    self.drop_ref(target, m);
                }
            }
            let serial = self.header(object).serial;
            *self.census.died.lock().unwrap().entry(serial).or_default() += 1;
            // SAFETY: rule 2: the count is 0, so no other thread has it, and its content needs no
            // destructor.
            unsafe { m.free(object.as_ptr()) };
        }
        busy.store(false, Relaxed);
    }

    fn forget_weak(&self, object: Object) {
        for weak in self.weak.lock().unwrap().remove(&object.address()).unwrap_or_default() {
            *weak.target.lock().unwrap() = None;
        }
    }

    fn downgrade(&self, object: Object, callback: Option<usize>) -> Weak {
        let weak = Weak { target: Arc::new(Mutex::new(Some(object))), callback };
        self.weak.lock().unwrap().entry(object.address()).or_default().push(weak.clone());
        weak
    }

    fn upgrade(&self, weak: &Weak, _: &Mutator) -> Option<Object> {
        // While the target stands there and the lock is held its memory is not freed.
        let target = weak.target.lock().unwrap();
        let object = (*target)?;
        let count = &self.header(object).count;
        count.fetch_update(Relaxed, Relaxed, |n| (n > 0).then_some(n + 1)).ok().map(|_| object)
    }

    fn was_cleared(&self, object: Object) -> bool {
        self.header(object).kind.load(Relaxed) & CLEARED != 0
    }

    /// Objects destroyed, each once.
    fn dead(&self) -> usize {
        let died = self.census.died.lock().unwrap();
        assert!(died.values().all(|&times| times == 1), "an object was destroyed twice");
        died.len()
    }
}

// SAFETY: 1. `count` holds every reference, including deferred drops until they are merged; `hold`
// adds one, `release` removes one. 2. `destroy` frees, at 0. 3. only attached threads lower counts,
// and `merge`, which the collector calls. 4. `traverse` reports the references in slots, which are
// counted. 5. `merge` drops the deferred references of every mutator, and returns the objects with
// the count 0. 6. nothing here reaches a safepoint: no method gets the mutator exclusively.
unsafe impl ObjectModel for Nodes {
    type Addresses = crate::Addresses;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        let header = self.header(*object);
        if header.kind.load(Relaxed) & FOREVER != 0 {
            return Count::Immortal;
        }
        Count::Exact(header.count.load(Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let kind = self.header(*object).kind.load(Relaxed);
        assert!(kind & BITES == 0, "this one bites");
        let dark = kind >> 8 & 0xf;
        if dark != 0 {
            let before = self.header(*object).kind.fetch_add(TRAVERSAL, Relaxed) / TRAVERSAL;
            if dark >> (before % 4) & 1 != 0 {
                return;
            }
        }
        if kind & WINKS != 0
            && self.header(*object).kind.fetch_add(TRAVERSAL, Relaxed) / TRAVERSAL == 1
        {
            return tracer.unreadable();
        }
        let slots = self.slots(*object);
        let readable = if kind & SHUT == 0 { slots.len() } else { slots.len() / 2 };
        for slot in &slots[..readable] {
            if let Some(target) = NonNull::new(slot.load(Relaxed)) {
                // SAFETY: rule 4: a slot's reference is counted.
                unsafe { tracer.visit_object(Object::new(target)) };
            }
        }
        if readable < slots.len() {
            tracer.unreadable();
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.add_ref(*object);
    }

    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
        self.drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        self.header(*object).kind.fetch_or(CLEARED, Relaxed);
        for slot in 0..self.slots(*object).len() {
            if let Some(target) = self.swap(*object, slot, None) {
                self.drop_ref(target, m);
            }
        }
    }

    fn type_name(&self, _: Live<'_>) -> Cow<'static, str> {
        "node".into()
    }
}

standstill::parts!(
    Nodes:
    ThreadData, Threads, SplitCounts, Batches, Finalizers, WeakRefs, Checks
);

impl ThreadData<Nodes> for Nodes {
    type Local = Mutex<Vec<Object>>;
    type Private = Dying;

    fn local(_: &Self) -> Self::Local {
        Mutex::default()
    }

    fn private(_: &Self) -> Option<Dying> {
        Some(Dying::default())
    }
}

impl Threads<Nodes> for Nodes {
    fn ending(model: &Self, m: &ModelMutator<Self>) {
        model.flush(m);
        assert!(!model.fails.load(Relaxed), "the end of a mutator, as asked");
    }
}

impl SplitCounts<Nodes> for Nodes {
    fn prepare(model: &Self, m: &ModelMutator<Self>) {
        model.flush(m);
    }

    fn merge(model: &Self, world: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        world.locals(|_, pending| {
            for object in std::mem::take(&mut *pending.lock().unwrap()) {
                if model.header(object).count.fetch_sub(1, AcqRel) == 1 {
                    // SAFETY: rule 5: the count is 0, and no thread knows the object.
                    dead.push(unsafe { DeadObject::new(object) });
                }
            }
        });
    }

    fn pending(_: &Self, world: &World<'_, Self>) -> usize {
        let mut pending = 0;
        world.locals(|_, objects| pending += objects.lock().unwrap().len());
        pending
    }

    fn destroy_merged(model: &Self, dead: DeadObject, m: &ModelMutator<Self>) {
        model.destroy(dead.object(), m);
    }
}

impl Batches<Nodes> for Nodes {
    /// Those with as many slots as the first, in two portions.
    fn traverse_each(
        model: &Self,
        objects: &[Stopped<'_>],
        tracer: &mut Tracer,
        ends: &mut Ends<'_>,
    ) {
        if model.idle.load(Relaxed) {
            return;
        }
        let len = |object: &Object| model.header(*object).len;
        let alike = objects.iter().take_while(|object| len(object) == len(&objects[0])).count();
        for some in objects[..alike].chunks(alike.div_ceil(2)) {
            tracer.each(some, ends, |object, tracer| model.traverse(object, tracer));
        }
    }
}

impl Finalizers<Nodes> for Nodes {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        model.header(*object).kind.load(Relaxed) & RISES != 0
    }

    fn finalize(model: &Self, object: Live<'_>, _: &ModelMutator<Self>) {
        model.census.finalized.fetch_add(1, Relaxed);
        model.risen.lock().unwrap().push(model.add_ref(*object));
    }
}

impl WeakRefs<Nodes> for Nodes {
    type Callback = usize;

    fn has_weak(model: &Self, object: Live<'_>) -> bool {
        model.weak.lock().unwrap().contains_key(&object.address())
    }

    fn callbacks(model: &Self, object: Stopped<'_>) -> usize {
        model.weak.lock().unwrap().get(&object.address()).map_or(0, Vec::len)
    }

    fn take_callbacks(
        model: &Self,
        object: Stopped<'_>,
        _: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<usize>,
    ) {
        // The weak references lie outside the heap: they are never garbage themselves.
        if let Some(weak) = model.weak.lock().unwrap().get_mut(&object.address()) {
            for weak in weak.extract_if(.., |weak| weak.callback.is_some()) {
                *weak.target.lock().unwrap() = None;
                due.extend(weak.callback);
            }
        }
    }

    fn call_back(model: &Self, callback: usize, _: &ModelMutator<Self>) {
        model.census.called_back.lock().unwrap().push(callback);
    }

    fn clear_weak(model: &Self, object: Stopped<'_>) {
        model.forget_weak(*object);
    }
}

impl Checks<Nodes> for Nodes {
    fn verifies_traversals(_: &Self) -> bool {
        true
    }

    fn verifies_traversal(model: &Self, object: Stopped<'_>) -> bool {
        model.header(*object).kind.load(Relaxed) & DOUBTED != 0
    }
}

/// What the conformance kit can use of the model.
mod specimen {
    use super::*;
    use standstill_model_check::{Abilities, Check, Journal, ObjectSpec, Specimen};

    impl Specimen for Nodes {
        type Weak = Weak;

        const FIELDS: usize = 4;
        const ABILITIES: Abilities = Abilities::NONE.weak().deferred().immortals();

        fn specimen(_: &Arc<Journal>) -> Self {
            Self::default()
        }

        fn alloc(m: &Mutator, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
            let kind = if spec.immortal { FOREVER } else { 0 };
            try_alloc(m, kind, spec.fields, true)
        }

        fn set(m: &Mutator, object: Object, field: usize, target: Option<Object>) {
            let target = target.map(|target| m.model().add_ref(target));
            if let Some(old) = m.model().swap(object, field, target) {
                m.model().drop_ref(old, m);
            }
        }

        fn retain(m: &Mutator, object: Object) {
            m.model().add_ref(object);
        }

        fn drop_ref(m: &Mutator, object: Object) {
            m.model().drop_ref(object, m);
        }

        fn drop_later(m: &Mutator, object: Object) {
            m.model().drop_later(object, m);
        }

        fn downgrade(m: &Mutator, object: Object, _: Option<u64>) -> Option<Weak> {
            Some(m.model().downgrade(object, None))
        }

        fn upgrade(m: &Mutator, weak: &Weak) -> Option<Object> {
            m.model().upgrade(weak, m)
        }
    }

    #[test]
    fn the_model_breaks_no_rule() {
        let is_full = std::env::var_os("STANDSTILL_FULL").is_some();
        Check::new().programs(if is_full { 100 } else { 20 }).run::<Nodes>().unwrap();
    }
}

fn builder() -> HeapBuilder {
    Heap::builder().reserve(1 << 28).pacing(Pacing::manual()).workers(2).serial_below(0)
}

fn heap() -> ModelHeap<Nodes> {
    builder().build_with(Nodes::default()).unwrap()
}

/// A new object with one reference, tracked or not.
fn alloc(m: &Mutator, kind: u32, len: usize, tracked: bool) -> Object {
    try_alloc(m, kind, len, tracked).unwrap()
}

/// As [`alloc`], where memory may be refused.
fn try_alloc(m: &Mutator, kind: u32, len: usize, tracked: bool) -> Result<Object, OutOfMemory> {
    let size = size_of::<Header>() + len * size_of::<AtomicPtr<u8>>();
    let cell = m.allocate(size, 32)?;
    let serial = m.model().census.born.fetch_add(1, Relaxed);
    let header =
        Header { count: AtomicUsize::new(1), len: len as u32, kind: AtomicU32::new(kind), serial };
    // SAFETY: the cell is ours, of this size, and aligned. Once header and slots are written, it is
    // an object that the model can count and traverse.
    unsafe {
        cell.cast::<Header>().write(header);
        cell.byte_add(size_of::<Header>()).cast::<AtomicPtr<u8>>().write_bytes(0, len);
        m.publish(Object::new(cell), tracked);
    }
    Ok(Object::new(cell))
}

/// A node with two slots.
fn node(m: &Mutator) -> Object {
    alloc(m, 0, 2, true)
}

/// A ring of nodes through their first slots; the reference to one of them comes back.
fn ring(m: &Mutator, kind: u32, len: usize) -> Object {
    let nodes: Vec<_> = (0..len).map(|_| alloc(m, kind, 2, true)).collect();
    for at in 0..len {
        m.model().link(nodes[at], 0, nodes[(at + 1) % len], m);
    }
    nodes[1..].iter().for_each(|&node| m.model().drop_ref(node, m));
    nodes[0]
}

/// Collects, and expects nothing unusual.
fn collect(m: &mut Mutator, what: Collect) -> CollectionReport {
    let report = m.try_collect(what).unwrap();
    assert_eq!((&report.abandoned, report.uncollectable), (&None, 0));
    report
}

/// Everything that was born is gone, once.
fn assert_empty(heap: &ModelHeap<Nodes>) {
    assert_eq!(heap.model().dead(), heap.model().census.born.load(Relaxed));
    assert_eq!(heap.stats().live_objects, 0);
}

fn acyclic_objects_die_by_count() {
    let heap = heap();
    let m = heap.attach();
    // A list that is too long for any stack, with a large object at its end.
    let mut list = alloc(&m, 0, 50_000, true);
    for _ in 0..100_000 {
        let next = node(&m);
        assert!(heap.model().swap(next, 0, Some(list)).is_none());
        list = next;
    }
    assert_eq!(heap.stats().live_objects, 100_001);
    heap.model().drop_ref(list, &m);
    drop(m);
    assert_empty(&heap);
}

fn rings_are_collected_and_held_objects_are_not() {
    let heap = heap();
    let mut m = heap.attach();
    let held = ring(&m, 0, 10);
    let large = alloc(&m, 0, 50_000, true);
    m.model().link(held, 1, large, &m);
    m.model().link(large, 49_999, held, &m);
    m.model().drop_ref(large, &m);
    for len in 1..=20 {
        let ring = ring(&m, 0, len);
        m.model().drop_ref(ring, &m);
    }
    let report = collect(&mut m, Collect::full());
    assert_eq!((report.tracked, report.unreachable, report.collected), (221, 210, 210));
    assert_eq!(report.stops.len(), 1);
    assert!(!m.model().was_cleared(held));
    m.model().drop_ref(held, &m);
    assert_eq!(collect(&mut m, Collect::full()).collected, 11);
    drop(m);
    assert_empty(&heap);
}

/// A hub that more objects refer to than a byte can count.
fn hubs_are_counted_exactly() {
    let heap = heap();
    let mut m = heap.attach();
    for outside in [1, 0] {
        let hub = alloc(&m, 0, 1000, true);
        for at in 0..1000 {
            let spoke = node(&m);
            m.model().link(spoke, 0, hub, &m);
            assert!(m.model().swap(hub, at, Some(spoke)).is_none());
        }
        if outside == 0 {
            m.model().drop_ref(hub, &m);
        }
        let report = collect(&mut m, Collect::full());
        assert_eq!(report.collected, if outside == 0 { 1001 } else { 0 });
        if outside == 1 {
            m.model().drop_ref(hub, &m);
            assert_eq!(collect(&mut m, Collect::full()).collected, 1001);
        }
    }
    drop(m);
    assert_empty(&heap);
}

fn young_collections_ignore_old_objects() {
    let heap = heap();
    let mut m = heap.attach();
    let old = ring(&m, 0, 3);
    assert_eq!(collect(&mut m, Collect::young()).candidates, 3);
    m.model().drop_ref(old, &m);
    let kept = ring(&m, 0, 5);
    let lost = ring(&m, 0, 7);
    m.model().drop_ref(lost, &m);
    let report = collect(&mut m, Collect::young());
    assert_eq!((report.candidates, report.collected), (12, 7));
    assert_eq!(collect(&mut m, Collect::young()).candidates, 0);
    // From an old object to a new one no edge is visited: it keeps its target.
    let new = node(&m);
    m.model().link(kept, 1, new, &m);
    m.model().drop_ref(new, &m);
    assert_eq!(collect(&mut m, Collect::young()).collected, 0);
    m.model().drop_ref(kept, &m);
    assert_eq!(collect(&mut m, Collect::young()).collected, 0);
    assert_eq!(collect(&mut m, Collect::full()).collected, 9);
    drop(m);
    assert_empty(&heap);
}

/// Memory may be requested before a stop, and become an object after it. Then the object is new,
/// and a young collection traverses it.
fn an_object_published_after_a_stop_is_new() {
    let heap = heap();
    let mut m = heap.attach();
    let late = m.allocate(size_of::<Header>() + size_of::<AtomicPtr<u8>>(), 32).unwrap();
    collect(&mut m, Collect::young());
    let serial = m.model().census.born.fetch_add(1, Relaxed);
    let header = Header { count: AtomicUsize::new(1), len: 1, kind: AtomicU32::new(0), serial };
    let late = Object::new(late);
    // SAFETY: as in `alloc`.
    unsafe {
        late.as_ptr().cast::<Header>().write(header);
        late.as_ptr().byte_add(size_of::<Header>()).cast::<*mut u8>().write(null_mut());
        m.publish(late, true);
    }
    m.model().link(late, 0, late, &m);
    m.model().drop_ref(late, &m);
    assert_eq!(collect(&mut m, Collect::young()).collected, 1);
    drop(m);
    assert_empty(&heap);
}

fn tracking_late_and_no_more() {
    let heap = heap();
    let mut m = heap.attach();
    let object = alloc(&m, 0, 1, false);
    m.model().link(object, 0, object, &m);
    // SAFETY: `object` is alive: the slot refers to it, and the collector does not clear untracked
    // objects.
    unsafe {
        assert!(!m.is_tracked(object));
        m.model().drop_ref(object, &m);
        assert_eq!(collect(&mut m, Collect::full()).tracked, 0);
        assert!(m.track(object) && !m.track(object) && m.is_tracked(object));
        assert!(m.untrack(object) && !m.untrack(object));
        assert_eq!(collect(&mut m, Collect::full()).tracked, 0);
        assert!(m.track(object));
    }
    // Tracked late is as good as new.
    assert_eq!(collect(&mut m, Collect::young()).collected, 1);
    drop(m);
    assert_empty(&heap);
}

fn finalizers_bring_objects_back_once() {
    let heap = heap();
    let mut m = heap.attach();
    let back = ring(&m, RISES, 3);
    let lost = ring(&m, 0, 4);
    let beyond = ring(&m, 0, 2);
    m.model().link(back, 1, beyond, &m);
    for object in [back, lost, beyond] {
        m.model().drop_ref(object, &m);
    }
    let report = collect(&mut m, Collect::full());
    assert_eq!((report.unreachable, report.finalized), (9, 3));
    assert_eq!((report.resurrected, report.collected, report.stops.len()), (5, 4, 2));
    assert!(!m.model().was_cleared(beyond));
    // SAFETY: `back` has risen: the model holds it.
    assert!(unsafe { m.is_finalized(back) });
    let risen = std::mem::take(&mut *m.model().risen.lock().unwrap());
    assert_eq!(risen.len(), 3);
    risen.into_iter().for_each(|object| m.model().drop_ref(object, &m));
    let report = collect(&mut m, Collect::full());
    assert_eq!((report.finalized, report.resurrected, report.collected), (0, 0, 5));
    assert_eq!(m.model().census.finalized.load(Relaxed), 3);
    drop(m);
    assert_empty(&heap);
}

fn weak_references_end_with_their_target() {
    let heap = heap();
    let mut m = heap.attach();
    let (held, lost, counted) = (ring(&m, 0, 2), ring(&m, 0, 2), node(&m));
    let weak = [held, lost, counted].map(|object| m.model().downgrade(object, None));
    let told = [(held, 1), (lost, 2)].map(|(object, n)| m.model().downgrade(object, Some(n)));
    m.model().drop_ref(lost, &m);
    m.model().drop_ref(counted, &m);
    assert!(m.model().upgrade(&weak[2], &m).is_none());
    // Unreachable is not dead: an upgrade before the collection returns it.
    let again = m.model().upgrade(&weak[1], &m).unwrap();
    assert_eq!(collect(&mut m, Collect::full()).collected, 0);
    m.model().drop_ref(again, &m);
    let report = collect(&mut m, Collect::full());
    assert_eq!((report.collected, report.stops.len()), (2, 2));
    assert_eq!(*m.model().census.called_back.lock().unwrap(), [2]);
    let alive = |weak: &Weak| {
        let target = m.model().upgrade(weak, &m);
        target.inspect(|&object| m.model().drop_ref(object, &m)).is_some()
    };
    assert_eq!(weak.each_ref().map(alive), [true, false, false]);
    assert_eq!(told.each_ref().map(alive), [true, false]);
    m.model().drop_ref(held, &m);
    assert_eq!(collect(&mut m, Collect::full()).collected, 2);
    drop(m);
    assert_empty(&heap);
}

fn drops_that_were_put_off_are_merged() {
    let heap = heap();
    let mut m = heap.attach();
    let (ring, single) = (ring(&m, 0, 4), node(&m));
    let (later, go) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            m.model().drop_later(ring, &m);
            m.model().drop_later(single, &m);
            // Detached, with both still uncounted.
            m.detach(|| {
                later.wait();
                go.wait();
            });
        });
        m.detach(|| later.wait());
        assert_eq!(m.model().dead(), 0);
        let report = collect(&mut m, Collect::full());
        // The one at 0 was no candidate: it died by its count.
        assert_eq!((report.candidates, report.collected, m.model().dead()), (4, 4, 5));
        m.detach(|| go.wait());
    });
    drop(m);
    assert_empty(&heap);
}

fn immortals_keep_their_targets() {
    let heap = heap();
    let mut m = heap.attach();
    let forever = alloc(&m, FOREVER, 1, true);
    let ring = ring(&m, 0, 3);
    m.model().link(forever, 0, ring, &m);
    m.model().drop_ref(ring, &m);
    for tracked in [4, 3] {
        let report = collect(&mut m, Collect::full());
        assert_eq!((report.tracked, report.collected), (tracked, 0));
    }
    // Mortal again, and released.
    m.model().header(forever).kind.store(0, Relaxed);
    m.model().drop_ref(forever, &m);
    assert_eq!(collect(&mut m, Collect::full()).collected, 3);
    drop(m);
    assert_empty(&heap);
}

fn a_traversal_that_panics_changes_nothing() {
    let heap = heap();
    let mut m = heap.attach();
    let (biting, lost) = (alloc(&m, BITES, 1, true), ring(&m, 0, 3));
    m.model().drop_ref(lost, &m);
    let report = m.try_collect(Collect::full()).unwrap();
    assert!(report.abandoned.is_some_and(|why| why.contains("bites")));
    assert_eq!((report.collected, m.model().dead()), (0, 0));
    m.model().drop_ref(biting, &m);
    assert_eq!(collect(&mut m, Collect::full()).collected, 3);
    drop(m);
    assert_empty(&heap);
}

/// Objects between unreadable objects keep their own edges in every batch: objects that only they
/// reach stay, in a long chain as well as beside it.
fn objects_that_cannot_be_read_lie_among_others() {
    const LEN: usize = 300;
    let heap = heap();
    let mut m = heap.attach();
    let shut = |at: usize| at % 7 == 3 || at % 50 > 46;
    let chain: Vec<_> = (0..LEN)
        .map(|at| alloc(&m, if shut(at) { SHUT } else { 0 }, 2 + at / 20 % 3, true))
        .collect();
    for (at, &object) in chain.iter().enumerate() {
        let beside = node(&m);
        m.model().link(object, 0, beside, &m);
        m.model().drop_ref(beside, &m);
        let last = m.model().slots(object).len() - 1;
        m.model().link(object, last, chain[(at + 1) % LEN], &m);
    }
    chain[1..].iter().for_each(|&object| m.model().drop_ref(object, &m));
    for what in [Collect::young(), Collect::full(), Collect::full()] {
        let report = collect(&mut m, what);
        assert_eq!((report.abandoned, report.unreachable), (None, 0), "{what:?}");
    }
    m.model().drop_ref(chain[0], &m);
    assert_eq!(
        collect(&mut m, Collect::full()).unreachable,
        0,
        "what cannot be read may lead anywhere"
    );
    chain.iter().for_each(|&object| {
        m.model().header(object).kind.fetch_and(!SHUT, Relaxed);
    });
    assert_eq!(collect(&mut m, Collect::full()).collected, 2 * LEN);
    drop(m);
    assert_empty(&heap);
}

/// Objects with verified traversals are not at fault if a field could be read only once: another
/// thread can hold its lock. The traversal is repeated. An object that can never be read is left
/// alone.
fn verified_objects_may_be_unreadable() {
    for (kind, later) in [(WINKS, 0), (SHUT, 0), (0, SHUT), (WINKS, SHUT)] {
        let heap = heap();
        let mut m = heap.attach();
        let first = ring(&m, DOUBTED | kind, 5);
        let other = ring(&m, DOUBTED | later, 5);
        m.model().link(first, 1, other, &m);
        m.model().drop_ref(other, &m);
        let report = collect(&mut m, Collect::full());
        assert_eq!((report.abandoned, report.unreachable), (None, 0), "{kind} {later}");
        m.model().header(first).kind.fetch_and(!SHUT, Relaxed);
        m.model().drop_ref(first, &m);
        drop(m);
    }
}

/// A model whose batch traversal traverses no object is reported, and nothing else happens.
fn a_model_that_traverses_nothing_is_reported() {
    let heap = heap();
    let mut m = heap.attach();
    let lost = ring(&m, 0, 3);
    m.model().drop_ref(lost, &m);
    m.model().idle.store(true, Relaxed);
    let report = m.try_collect(Collect::full()).unwrap();
    assert!(
        report.abandoned.is_some_and(|why| why.contains("`traverse_each` has traversed no object"))
    );
    m.model().idle.store(false, Relaxed);
    assert_eq!(collect(&mut m, Collect::full()).collected, 3);
    drop(m);
    assert_empty(&heap);
}

/// Two threads build cycles through each other's objects, and drop them. One of them collects
/// meanwhile, young and in full. The numbers in the reports add up to exactly the number of built
/// objects.
fn two_threads_build_and_one_collects(stress: bool) {
    let rounds = if stress { 40 } else { 2_000 };
    let heap: ModelHeap<Nodes> = builder().stress(stress).build_with(Nodes::default()).unwrap();
    let exchange = Mutex::new(Vec::<Object>::new());
    let collected = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (heap, exchange, collected) = (&heap, &exchange, &collected);
            scope.spawn(move || {
                let mut m = heap.attach();
                for round in 0..rounds {
                    let mine = ring(&m, 0, 1 + round % 5);
                    // Each ring refers to an older one of either thread, which may refer to
                    // another.
                    let (give, theirs) = (m.model().add_ref(mine), exchange.lock().unwrap().pop());
                    exchange.lock().unwrap().push(give);
                    if let Some(theirs) = theirs {
                        m.model().link(mine, 1, theirs, &m);
                        if round % 3 == 0 {
                            // And back: one cycle of both.
                            m.model().link(theirs, 1, mine, &m);
                        }
                        m.model().drop_later(theirs, &m);
                    }
                    assert!(!m.model().was_cleared(mine), "cleared while it is held");
                    m.model().drop_ref(mine, &m);
                    m.safepoint();
                    if thread == 0 && round % 50 == 49 {
                        let what =
                            if round % 100 == 99 { Collect::full() } else { Collect::young() };
                        collected.fetch_add(collect(&mut m, what).collected, Relaxed);
                    }
                }
            });
        }
    });
    let mut m = heap.attach();
    for object in exchange.into_inner().unwrap() {
        assert!(!m.model().was_cleared(object), "cleared while it is held");
        m.model().drop_ref(object, &m);
    }
    collected.fetch_add(collect(&mut m, Collect::full()).collected, Relaxed);
    drop(m);
    assert_empty(&heap);
    // Every object was on a ring, so none died by its count alone.
    let (born, stats) = (heap.model().census.born.load(Relaxed), heap.stats());
    assert_eq!(stats.collected, born);
    if !stress {
        assert_eq!(collected.into_inner(), born);
    }
    // Under stress each safepoint collects, unless the other thread is at it.
    assert!(stats.collections > if stress { 1 } else { rounds / 50 });
}

macro_rules! tests {
    ($($name:ident $(($($argument:expr),*) as $test:ident)?;)*) => {
        /// One test for each set of arguments.
        mod nodes {
            $(tests!(@ $name $(($($argument),*) as $test)?);)*
        }
    };
    (@ $name:ident) => {
        #[test]
        fn $name() {
            super::$name();
        }
    };
    (@ $name:ident ($($argument:expr),*) as $test:ident) => {
        #[test]
        fn $test() {
            super::$name($($argument),*);
        }
    };
}

tests! {
    acyclic_objects_die_by_count;
    rings_are_collected_and_held_objects_are_not;
    hubs_are_counted_exactly;
    young_collections_ignore_old_objects;
    tracking_late_and_no_more;
    an_object_published_after_a_stop_is_new;
    finalizers_bring_objects_back_once;
    weak_references_end_with_their_target;
    drops_that_were_put_off_are_merged;
    immortals_keep_their_targets;
    a_traversal_that_panics_changes_nothing;
    objects_that_cannot_be_read_lie_among_others;
    verified_objects_may_be_unreadable;
    a_model_that_traverses_nothing_is_reported;
    two_threads_build_and_one_collects(false) as two_threads_build_and_one_collects;
    two_threads_build_and_one_collects(true) as two_threads_build_under_stress;
}

/// An object that shows its slots only in some traversals, between held objects and objects that
/// only it refers to. Returns how often the collector cleared reachable objects in six collections.
fn flicker(lights: u32, serial_below: usize) -> usize {
    let heap: ModelHeap<Nodes> =
        builder().serial_below(serial_below).build_with(Nodes::default()).unwrap();
    let mut m = heap.attach();
    let mut cleared = 0;
    for young in [false, true, false, false, true, false] {
        let flickering = alloc(&m, flickers(lights), 1, true);
        let target = ring(&m, 0, 3);
        m.model().link(flickering, 0, target, &m);
        let lost = ring(&m, 0, 2);
        m.model().drop_ref(target, &m);
        m.model().drop_ref(lost, &m);
        let report = m.try_collect(if young { Collect::young() } else { Collect::full() }).unwrap();
        let target = m.model().swap(flickering, 0, None).unwrap();
        let wrong = usize::from(m.model().was_cleared(target));
        m.model().drop_ref(target, &m);
        cleared += wrong;
        // The garbage beside it. Objects that were cleared by mistake are still held, and their
        // ring is gone.
        assert_eq!((report.collected, report.uncollectable), (2 + 2 * wrong, wrong));
        m.model().drop_ref(flickering, &m);
        collect(&mut m, Collect::full());
    }
    drop(m);
    assert_empty(&heap);
    cleared
}

/// The same object is garbage, and its finalizer resurrects it. Returns whether the objects to
/// which it refers were cleared.
fn flicker_and_rise(lights: u32) -> bool {
    let heap = heap();
    let mut m = heap.attach();
    let flickering = alloc(&m, RISES | flickers(lights), 2, true);
    let target = ring(&m, 0, 3);
    m.model().link(flickering, 0, target, &m);
    m.model().link(flickering, 1, flickering, &m);
    m.model().drop_ref(target, &m);
    m.model().drop_ref(flickering, &m);
    let report = m.try_collect(Collect::full()).unwrap();
    assert_eq!((report.unreachable, report.finalized), (4, 1));
    let wrong = m.model().was_cleared(target);
    assert_eq!(report.resurrected, if wrong { 1 } else { 4 });
    let risen = std::mem::take(&mut *m.model().risen.lock().unwrap());
    risen.into_iter().for_each(|object| m.model().drop_ref(object, &m));
    m.model().header(flickering).kind.store(0, Relaxed);
    collect(&mut m, Collect::full());
    drop(m);
    assert_empty(&heap);
    wrong
}

/// The panic comes out of the drop; where that would end the process, since the thread unwinds
/// already, it is reported.
#[test]
fn a_model_that_panics_at_the_end_of_a_mutator_keeps_no_thread_attached() {
    let heap = heap();
    heap.model().fails.store(true, Relaxed);
    let m = heap.attach();
    let text = common::panic_text(move || drop(m)).expect("a panic");
    assert_eq!(text, "the end of a mutator, as asked");
    let m = heap.attach();
    let text = common::panic_text(move || {
        let _m = m;
        panic!("another panic");
    });
    assert_eq!(text.expect("a panic"), "another panic");
    // The threads have ended: this one may attach, and stops wait for no thread.
    assert_eq!(heap.stats().mutators, 0);
    heap.model().fails.store(false, Relaxed);
    let mut m = heap.attach();
    let first = ring(&m, 0, 3);
    m.model().drop_ref(first, &m);
    assert_eq!(collect(&mut m, Collect::full()).collected, 3);
    drop(m);
    assert_empty(&heap);
}

#[test]
fn memory_is_aligned_as_asked_or_refused() {
    let heap = heap();
    let m = heap.attach();
    for align in (0..=15).map(|shift| 1_usize << shift) {
        for size in [0, 1, 32, 33, 100, 4_000, 32_736, 32_737, 65_472, 65_473, 200_000] {
            let memory = m.allocate(size, align).unwrap();
            assert_eq!(memory.addr().get() % align, 0, "{size} bytes on a multiple of {align}");
            // SAFETY: so many bytes are this test's own, until they are given back.
            unsafe {
                memory.write_bytes(0xff, size);
                m.free(memory);
            }
        }
    }
    for align in [0, 3, 24, 48, 100, 4_097, 1 << 16, 1 << 40, usize::MAX] {
        for size in [32, 4_000, 100_000, usize::MAX] {
            let reason = m.allocate(size, align).unwrap_err();
            assert_eq!(reason, OutOfMemory::Alignment { align }, "{size} bytes");
            assert!(reason.to_string().contains(&align.to_string()));
        }
    }
    for size in [1 << 40, isize::MAX as usize, usize::MAX - 64, usize::MAX - 63, usize::MAX] {
        for align in [1, 32, 4_096, 32_768] {
            assert_eq!(m.allocate(size, align), Err(OutOfMemory::TooLarge { size }));
        }
    }
    assert_eq!(heap.stats().live_objects, 0);
}

/// A model that breaks rule 8. The results are memory-safe and wrong. These collections traverse an
/// object twice, to count and to mark.
#[test]
fn changing_traversals_clear_reachable_objects() {
    assert_eq!(flicker(0b0101, usize::MAX), 6);
    assert_eq!(flicker(0b1010, usize::MAX), 0);
    assert!(flicker_and_rise(0b0011));
}
