//! The seam to a runtime that counts, polls and stops in its own way.
//!
//! [`Seam`] is the model of such a runtime. An object has counted and uncounted slots. Its count is
//! the sum of a number in the object and of a number in a table. Objects are destroyed by
//! collections alone, as objects with deferred counts are.
#![cfg(not(loom))]

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use standstill::model::{
    Adjusted, Batches, Checks, ClaimRef, Count, Describe, Finalizers, Live, ModelHeap,
    ModelMutator, Object, ObjectModel, PollWord, Reserved, RuntimeStop, Serial, Stopped,
    ThreadData, Threads, Tracer, Uncounted, Verdicts, World,
};
use standstill::safepoint::{STOP, StopError, ThreadId};
use standstill::{Collect, CollectError, CollectionKind, CollectionReport, Heap, HeapBuilder};
use standstill::{Pacing, Stress};

/// The header in front of an object's slots.
#[repr(C)]
struct Header {
    count: AtomicI64,
    kind: AtomicU32,
    /// How many slots follow.
    len: u32,
    /// Its number among all objects of the heap.
    serial: usize,
}

const _: () = assert!(size_of::<Header>() == 24);

/// `kind`: was cleared by the collector.
const CLEARED: u32 = 1;
/// `kind`: only the collecting thread traverses it.
const SERIAL: u32 = 2;
/// `kind`: its first counted slot cannot be read.
const SHUT: u32 = 4;
/// `kind`: immortal.
const FOREVER: u32 = 8;
/// `kind`: its finalizer does what the test has set.
const FINALIZES: u32 = 16;
/// `kind`: has a legacy finalizer.
const LEGACY: u32 = 32;
/// `kind`: takes no part in collections.
const OUTSIDE: u32 = 64;
/// `kind`: others report it as a leaf while it refers to nothing.
const LEAF: u32 = 128;

/// How many slots an object has: the first half is counted.
const SLOTS: usize = 4;

/// A runtime with threads and stops of its own.
#[derive(Default)]
struct Runtime {
    state: Mutex<Running>,
    changed: Condvar,
    refuses: AtomicBool,
    panics: AtomicBool,
    log: Mutex<Vec<&'static str>>,
}

#[derive(Default)]
struct Running {
    /// The threads that run.
    running: usize,
    /// A thread has stopped the others, or is about to.
    stopping: bool,
}

impl Runtime {
    fn enter(&self) {
        let state = self.state.lock().unwrap();
        self.changed.wait_while(state, |state| state.stopping).unwrap().running += 1;
    }

    fn leave(&self) {
        self.state.lock().unwrap().running -= 1;
        self.changed.notify_all();
    }

    fn wait(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| state.stopping).unwrap());
    }

    /// Stops all other threads. The calling thread is running, and counts as stopped while it waits
    /// for another stop.
    fn stop(&self) {
        let mut state = self.state.lock().unwrap();
        state.running -= 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.stopping).unwrap();
        state.running += 1;
        state.stopping = true;
        drop(self.changed.wait_while(state, |state| state.running > 1).unwrap());
    }

    fn resume(&self) {
        self.state.lock().unwrap().stopping = false;
        self.changed.notify_all();
    }

    fn stops(&self) -> bool {
        self.state.lock().unwrap().stopping
    }

    fn log(&self, what: &'static str) {
        self.log.lock().unwrap().push(what);
    }
}

/// The parts that a mutator shares.
#[derive(Default)]
struct Word {
    set: AtomicBool,
    bits: AtomicU32,
}

type Act<const YOUNG: bool, const OVERLAPS: bool> =
    Box<dyn FnOnce(Object, &Mutator<YOUNG, OVERLAPS>) + Send>;

/// See the [module's page](self). `YOUNG`: it has young collections. `OVERLAPS`:
/// its traversals may overlap, so several workers mark plainly.
#[derive(Default)]
struct Seam<const YOUNG: bool, const OVERLAPS: bool> {
    born: AtomicUsize,
    /// The objects that exist, by address.
    alive: Mutex<HashMap<usize, Object>>,
    roots: Mutex<Vec<Object>>,
    /// The part of the counts that is not in the objects.
    elsewhere: Mutex<HashMap<usize, (Object, i64)>>,
    /// The thread that stopped the runtime last.
    collector: Mutex<Option<thread::ThreadId>>,
    /// Traversals and prefetches of serial objects: by the collecting thread, by others.
    traversals: [AtomicUsize; 2],
    finalizer: Mutex<Option<Act<YOUNG, OVERLAPS>>>,
    overvisited: AtomicUsize,
    runtime: Arc<Runtime>,
}

type Mutator<const YOUNG: bool, const OVERLAPS: bool> = ModelMutator<Seam<YOUNG, OVERLAPS>>;

fn header<'a>(object: Object) -> &'a Header {
    // SAFETY: an object starts with its header, and the tests name live ones.
    unsafe { object.as_ptr().cast().as_ref() }
}

fn slots<'a>(object: Object) -> &'a [AtomicPtr<u8>] {
    // SAFETY: as in `header`; `alloc` has made room for that many, and written them.
    unsafe {
        let first = object.as_ptr().byte_add(size_of::<Header>()).cast();
        std::slice::from_raw_parts(first.as_ptr(), header(object).len as usize)
    }
}

fn counted(object: Object) -> impl Iterator<Item = Object> {
    let slots = &slots(object)[..SLOTS / 2];
    slots.iter().filter_map(|slot| std::ptr::NonNull::new(slot.load(Relaxed))).map(Object::new)
}

fn bare(object: Object) -> impl Iterator<Item = Object> {
    let slots = &slots(object)[SLOTS / 2..];
    slots.iter().filter_map(|slot| std::ptr::NonNull::new(slot.load(Relaxed))).map(Object::new)
}

impl<const YOUNG: bool, const OVERLAPS: bool> Seam<YOUNG, OVERLAPS> {
    /// Links by a counted slot.
    fn link(&self, from: Object, slot: usize, to: Object) {
        assert!(slot < SLOTS / 2);
        header(to).count.fetch_add(1, Relaxed);
        let old = slots(from)[slot].swap(to.as_ptr().as_ptr(), AcqRel);
        std::ptr::NonNull::new(old).map(|old| header(Object::new(old)).count.fetch_sub(1, AcqRel));
    }

    /// Links by an uncounted slot.
    fn point(&self, from: Object, slot: usize, to: Option<Object>) {
        assert!(slot < SLOTS / 2);
        let to = to.map_or(null_mut(), |to| to.as_ptr().as_ptr());
        slots(from)[SLOTS / 2 + slot].store(to, Release);
    }

    fn drop_ref(&self, object: Object) {
        header(object).count.fetch_sub(1, AcqRel);
    }

    /// Moves a part of a count to the table.
    fn put_elsewhere(&self, object: Object, part: i64) {
        header(object).count.fetch_sub(part, AcqRel);
        let mut elsewhere = self.elsewhere.lock().unwrap();
        elsewhere.entry(object.address()).or_insert((object, 0)).1 += part;
    }

    fn total(&self, object: Object) -> i64 {
        let elsewhere = self.elsewhere.lock().unwrap();
        let part = elsewhere.get(&object.address()).map_or(0, |&(_, part)| part);
        header(object).count.load(Acquire) + part
    }

    fn serials(&self) -> HashSet<usize> {
        self.alive.lock().unwrap().values().map(|&object| header(object).serial).collect()
    }

    fn objects(&self) -> Vec<Object> {
        let mut all: Vec<_> = self.alive.lock().unwrap().values().copied().collect();
        all.sort_by_key(|&object| header(object).serial);
        all
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Seam<YOUNG, OVERLAPS> {
    fn note_serial(&self, object: Stopped<'_>) {
        if <Self as Serial<Self>>::serial(self, object) {
            let elsewhere = *self.collector.lock().unwrap() != Some(thread::current().id());
            self.traversals[usize::from(elsewhere)].fetch_add(1, Relaxed);
        }
    }
}

// SAFETY: 1. a count is the object's number and the table's; `claim_ref` adds one, `release`
// removes one. 2. `release` frees at 0. 3. only attached threads drop. 4. counted slots are
// counted, and uncounted slots of live objects lead to live ones. 5. nothing is pending. 6. nothing
// here reaches a safepoint. 7. `traverse` reports all uncounted slots, and `roots` those of old
// objects.
unsafe impl<const YOUNG: bool, const OVERLAPS: bool> ObjectModel for Seam<YOUNG, OVERLAPS> {
    type Addresses = Reserved;
    type Parts = Self;
    const OVERLAPPING_TRAVERSALS: bool = OVERLAPS;

    fn count(&self, object: Stopped<'_>) -> Count {
        match header(*object).kind.load(Relaxed) & (FOREVER | OUTSIDE) {
            0 => Count::Exact(header(*object).count.load(Relaxed)),
            OUTSIDE => Count::Outside,
            _ => Count::Immortal,
        }
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let kind = header(*object).kind.load(Relaxed);
        self.note_serial(object);
        for target in bare(*object) {
            // SAFETY: rule 7.
            unsafe { tracer.uncounted(target) };
        }
        if kind & SHUT != 0 {
            tracer.unreadable();
        }
        for target in counted(*object).skip(usize::from(kind & SHUT != 0)) {
            let is_leaf = header(target).kind.load(Relaxed) & LEAF != 0
                && counted(target).chain(bare(target)).next().is_none();
            // SAFETY: rule 4.
            unsafe { if is_leaf { tracer.visit_leaf(target) } else { tracer.visit_object(target) } }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        header(*object).count.fetch_add(1, Relaxed);
    }

    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
        let object = reference.object();
        self.drop_ref(object);
        // An object that is not cleared may be alive with the count 0.
        let is_cleared = header(object).kind.load(Relaxed) & CLEARED != 0;
        if is_cleared && self.total(object) == 0 {
            self.elsewhere.lock().unwrap().remove(&object.address());
            assert!(self.alive.lock().unwrap().remove(&object.address()).is_some());
            // SAFETY: rule 2.
            unsafe { m.free(object.as_ptr()) };
        }
    }

    fn clear(&self, object: Live<'_>, _: &ModelMutator<Self>) {
        header(*object).kind.fetch_or(CLEARED, Relaxed);
        counted(*object).for_each(|target| self.drop_ref(target));
        slots(*object).iter().for_each(|slot| slot.store(null_mut(), Relaxed));
    }
}

standstill::parts!(
    impl[const YOUNG: bool, const OVERLAPS: bool] Seam<YOUNG, OVERLAPS>:
    ThreadData, Threads, Adjusted, Batches, Serial, Finalizers, Verdicts, Checks, Uncounted,
    RuntimeStop, PollWord, Describe
);

impl<const YOUNG: bool, const OVERLAPS: bool> ThreadData<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    type Local = Arc<Word>;
    type Private = ();

    fn local(model: &Self) -> Arc<Word> {
        model.runtime.enter();
        Arc::default()
    }

    fn private(_: &Self) -> Option<()> {
        Some(())
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Threads<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn ending(model: &Self, _: &ModelMutator<Self>) {
        model.runtime.leave();
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Adjusted<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn adjustments(model: &Self, _: &World<'_, Self>, report: &mut dyn FnMut(Object, i64)) {
        let elsewhere = model.elsewhere.lock().unwrap();
        elsewhere.values().for_each(|&(object, part)| report(object, part));
        // An object outside the heap, for example of a class that all heaps share.
        report(Object::new(std::ptr::NonNull::from(model).cast()), 1);
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Batches<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn prefetches(_: &Self) -> bool {
        true
    }

    fn prefetch_each(model: &Self, objects: &[Stopped<'_>], _: &mut Tracer) {
        objects.iter().for_each(|&object| model.note_serial(object));
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Serial<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn serial(_: &Self, object: Stopped<'_>) -> bool {
        header(*object).kind.load(Relaxed) & SERIAL != 0
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Finalizers<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn has_finalizer(_: &Self, object: Live<'_>) -> bool {
        header(*object).kind.load(Relaxed) & FINALIZES != 0
    }

    fn finalize(model: &Self, object: Live<'_>, m: &ModelMutator<Self>) {
        assert!(!model.runtime.stops(), "finalizers run in a runtime that runs");
        let act = model.finalizer.lock().unwrap().take();
        if let Some(act) = act {
            act(*object, m);
        }
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Verdicts<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn has_legacy(_: &Self) -> bool {
        true
    }

    fn legacy(_: &Self, object: Stopped<'_>) -> bool {
        header(*object).kind.load(Relaxed) & LEGACY != 0
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Checks<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn overvisited(model: &Self, _: Stopped<'_>) {
        model.overvisited.fetch_add(1, Relaxed);
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> Uncounted<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    const COLLECTS_YOUNG: bool = YOUNG;

    fn roots(
        model: &Self,
        _: &World<'_, Self>,
        traverses: &dyn Fn(Object) -> bool,
        report: &mut dyn FnMut(Object),
    ) {
        model.roots.lock().unwrap().iter().for_each(|&object| report(object));
        if YOUNG {
            let alive = model.alive.lock().unwrap();
            let others = alive.values().filter(|&&object| !traverses(object));
            others.for_each(|&object| bare(object).for_each(&mut *report));
        }
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> RuntimeStop<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn stop_runtime(model: &Self, _: &Arc<Word>) -> Result<(), std::borrow::Cow<'static, str>> {
        if model.runtime.refuses.load(Relaxed) {
            return Err("it is starting".into());
        }
        assert!(!model.runtime.panics.load(Relaxed), "a stop, on purpose");
        model.runtime.stop();
        *model.collector.lock().unwrap() = Some(thread::current().id());
        model.runtime.log("stop");
        Ok(())
    }

    fn resume_runtime(model: &Self, _: &Arc<Word>) {
        model.runtime.log("resume");
        model.runtime.resume();
    }

    fn leaving(model: &Self, _: &Arc<Word>) {
        model.runtime.leave();
    }

    fn comes_back(model: &Self, _: &Arc<Word>) -> bool {
        let mut state = model.runtime.state.lock().unwrap();
        state.running += usize::from(!state.stopping);
        !state.stopping
    }

    fn wait_for_runtime(model: &Self, _: &Arc<Word>) {
        model.runtime.wait();
    }
}

impl<const YOUNG: bool, const OVERLAPS: bool> PollWord<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn requested(_: ThreadId, local: &Arc<Word>, bits: u32) {
        local.bits.fetch_or(bits, Relaxed);
        local.set.fetch_or(true, Release);
    }
}

fn builder(workers: usize) -> HeapBuilder {
    let stress = Stress::none().verify_counts(true);
    let builder = Heap::builder().reserve(1 << 28).pacing(Pacing::manual());
    builder.workers(workers).serial_below(0).stress(stress)
}

fn heap<const YOUNG: bool, const OVERLAPS: bool>(
    workers: usize,
) -> ModelHeap<Seam<YOUNG, OVERLAPS>> {
    builder(workers).build_with(Seam::default()).unwrap()
}

/// A new object with one reference.
fn alloc<const YOUNG: bool, const OVERLAPS: bool>(
    m: &Mutator<YOUNG, OVERLAPS>,
    kind: u32,
) -> Object {
    let size = size_of::<Header>() + SLOTS * size_of::<AtomicPtr<u8>>();
    let cell = m.allocate(size, 32).unwrap();
    let serial = m.model().born.fetch_add(1, Relaxed);
    let (count, kind) = (AtomicI64::new(1), AtomicU32::new(kind));
    // SAFETY: the cell is ours, of this size, and aligned. Once header and slots are written, it is
    // an object that the model can count and traverse.
    unsafe {
        cell.cast::<Header>().write(Header { count, kind, len: SLOTS as u32, serial });
        cell.byte_add(size_of::<Header>()).cast::<AtomicPtr<u8>>().write_bytes(0, SLOTS);
        m.publish(Object::new(cell), true);
    }
    let object = Object::new(cell);
    m.model().alive.lock().unwrap().insert(object.address(), object);
    object
}

/// Collects, and expects nothing unusual.
fn collect<const YOUNG: bool, const OVERLAPS: bool>(
    m: &mut Mutator<YOUNG, OVERLAPS>,
    what: Collect,
) -> CollectionReport {
    let report = m.try_collect(what).unwrap();
    assert_eq!((&report.abandoned, report.overvisited), (&None, 0));
    report
}

/// Calls a generic function for each kind of model, with one worker and with three.
macro_rules! on_all {
    ($test:ident) => {
        for workers in [1, 3] {
            $test::<false, true>(workers);
            $test::<true, true>(workers);
            $test::<false, false>(workers);
            $test::<true, false>(workers);
        }
    };
}

// References without a count.

#[test]
fn an_uncounted_reference_keeps_its_target_alive_while_its_source_lives() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let (source, target, next) = (alloc(&m, 0), alloc(&m, 0), alloc(&m, 0));
        model.point(source, 0, Some(target));
        model.link(target, 0, next);
        model.drop_ref(target);
        model.drop_ref(next);
        // From the second one on, the source is an assumed root.
        for _ in 0..3 {
            assert_eq!(collect(&mut m, Collect::full()).collected, 0);
            assert_eq!(collect(&mut m, Collect::young()).collected, 0);
        }
        model.drop_ref(source);
        assert_eq!(collect(&mut m, Collect::full()).collected, 3);
        assert!(model.objects().is_empty());
    }
    on_all!(check);
}

/// If they were subtracted, the target would look as if nothing outside held it, or as if it were
/// visited too often.
#[test]
fn an_uncounted_reference_does_not_explain_a_counted_one() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let (garbage, target) = (alloc(&m, 0), alloc(&m, 0));
        // The test's reference to the target is the only one.
        model.point(garbage, 0, Some(target));
        model.point(garbage, 1, Some(target));
        model.point(target, 0, Some(target));
        model.drop_ref(garbage);
        assert_eq!(collect(&mut m, Collect::full()).collected, 1);
        for _ in 0..3 {
            model.point(target, 1, Some(target));
            assert_eq!(collect(&mut m, Collect::full()).collected, 0);
        }
        assert_eq!(model.overvisited.load(Relaxed), 0);
        model.drop_ref(target);
        assert_eq!(collect(&mut m, Collect::full()).collected, 1);
    }
    on_all!(check);
}

#[test]
fn an_object_that_cannot_be_read_keeps_its_uncounted_targets() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let (source, target) = (alloc(&m, SHUT), alloc(&m, 0));
        model.point(source, 0, Some(target));
        model.drop_ref(target);
        for _ in 0..3 {
            assert_eq!(collect(&mut m, Collect::full()).collected, 0);
        }
        model.drop_ref(source);
        assert_eq!(collect(&mut m, Collect::full()).collected, 2);
    }
    on_all!(check);
}

#[test]
fn an_object_without_a_count_keeps_its_uncounted_targets_in_each_collection() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        for kind in [FOREVER, OUTSIDE] {
            let heap = heap::<YOUNG, OVERLAPS>(workers);
            let mut m = heap.attach();
            let model = heap.model();
            let (source, target) = (alloc(&m, kind), alloc(&m, 0));
            model.point(source, 0, Some(target));
            model.drop_ref(target);
            for _ in 0..3 {
                assert_eq!(collect(&mut m, Collect::full()).collected, 0);
            }
        }
    }
    on_all!(check);
}

#[test]
fn a_model_that_cannot_name_old_holders_has_full_collections_only() {
    let heap = heap::<false, true>(1);
    let mut m = heap.attach();
    let old = alloc(&m, 0);
    collect(&mut m, Collect::full());
    let young = alloc(&m, 0);
    heap.model().point(old, 0, Some(young));
    heap.model().drop_ref(young);
    let report = collect(&mut m, Collect::young());
    assert_eq!((report.kind, report.collected), (CollectionKind::Full, 0));
    assert_eq!(heap.stats().young_collections, 0);
}

#[test]
fn a_young_collection_keeps_young_objects_that_old_objects_refer_to() {
    for workers in [1, 3] {
        let heap = heap::<true, true>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let old = alloc(&m, 0);
        collect(&mut m, Collect::full());
        let [young, next, garbage] = [0; 3].map(|kind| alloc(&m, kind));
        model.point(old, 0, Some(young));
        model.point(young, 0, Some(next));
        [young, next, garbage].iter().for_each(|&object| model.drop_ref(object));
        let report = collect(&mut m, Collect::young());
        assert_eq!((report.kind, report.collected), (CollectionKind::Young, 1));
        assert!(!model.serials().contains(&3));
    }
}

/// Its new objects count as old when a young collection would be due, so a full one becomes due.
#[test]
fn a_heap_without_young_collections_collects_by_itself() {
    let mut pacing = Pacing::default();
    (pacing.young_objects, pacing.full_minimum) = (100, 1_000);
    let builder = Heap::builder().reserve(1 << 28).workers(1).pacing(pacing);
    let heap = builder.build_with(Seam::<false, true>::default()).unwrap();
    let mut m = heap.attach();
    for _ in 0..20_000 {
        heap.model().drop_ref(alloc(&m, 0));
        m.safepoint();
    }
    let stats = heap.stats();
    assert!(stats.collections > 0 && stats.live_objects < 19_000, "{stats:?}");
    assert_eq!((stats.young_collections, stats.promotions), (0, 0));
}

#[test]
fn a_legacy_finalizer_keeps_objects_that_it_reaches_by_uncounted_references() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let (legacy, target) = (alloc(&m, LEGACY), alloc(&m, 0));
        model.point(legacy, 0, Some(target));
        model.drop_ref(target);
        model.drop_ref(legacy);
        let report = collect(&mut m, Collect::full());
        assert_eq!((report.collected, report.uncollectable), (0, 2));
        assert_eq!(model.serials().len(), 2);
    }
    on_all!(check);
}

#[test]
fn uncounted_references_of_garbage_keep_nothing_alive_after_its_finalizers() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let (source, target) = (alloc(&m, FINALIZES), alloc(&m, 0));
        model.link(source, 0, target);
        model.point(source, 0, Some(target));
        model.drop_ref(target);
        model.drop_ref(source);
        let report = collect(&mut m, Collect::full());
        assert_eq!((report.finalized, report.resurrected, report.collected), (1, 0, 2));
        assert!(model.objects().is_empty());
    }
    on_all!(check);
}

#[test]
fn a_finalizer_brings_an_object_back_by_an_uncounted_reference() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        for by_root in [false, true] {
            let heap = heap::<YOUNG, OVERLAPS>(workers);
            let mut m = heap.attach();
            let model = heap.model();
            let outside = alloc(&m, 0);
            collect(&mut m, Collect::full());
            let ring = [FINALIZES, 0, 0].map(|kind| alloc(&m, kind));
            model.link(ring[0], 0, ring[1]);
            model.point(ring[1], 0, Some(ring[2]));
            ring.iter().for_each(|&object| model.drop_ref(object));
            let other = alloc(&m, 0);
            model.drop_ref(other);
            *model.finalizer.lock().unwrap() = Some(Box::new(move |object, m| {
                if by_root {
                    m.model().roots.lock().unwrap().push(object);
                } else {
                    m.model().point(outside, 0, Some(object));
                }
            }));
            let report = collect(&mut m, Collect::full());
            assert_eq!((report.resurrected, report.collected), (3, 1), "{by_root}");
            model.roots.lock().unwrap().clear();
            model.point(outside, 0, None);
            assert_eq!(collect(&mut m, Collect::full()).collected, 3);
        }
    }
    on_all!(check);
}

/// A model that forgets the constant.
struct Forgetful;

// SAFETY: as `Seam`, but rule 7: its constant is missing, and the collector notices.
unsafe impl ObjectModel for Forgetful {
    type Addresses = Reserved;
    type Parts = ();

    fn count(&self, _: Stopped<'_>) -> Count {
        Count::Exact(0)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        // SAFETY: an object that is being traversed is alive.
        unsafe { tracer.uncounted(*object) };
    }

    fn claim_ref(&self, _: Stopped<'_>, _: ThreadId) {}

    fn release(&self, reference: ClaimRef, _: &ModelMutator<Self>) {
        drop(reference);
    }

    fn clear(&self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

#[test]
fn an_uncounted_reference_without_the_constant_abandons_the_collection() {
    let builder = Heap::builder().reserve(1 << 28).pacing(Pacing::manual()).workers(1);
    let heap = builder.build_with(Forgetful).unwrap();
    let mut m = heap.attach();
    let cell = m.allocate(32, 32).unwrap();
    // SAFETY: the model reads no object.
    unsafe { m.publish(Object::new(cell), true) };
    let report = m.try_collect(Collect::full()).unwrap();
    let reason = report.abandoned.unwrap();
    assert!(reason.contains("without the part `Uncounted`"), "{reason}");
}

#[test]
fn objects_that_the_model_reports_are_alive_with_all_that_they_reach() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let [root, next, last, garbage] = [0; 4].map(|kind| alloc(&m, kind));
        model.link(root, 0, next);
        model.point(next, 0, Some(last));
        [root, next, last, garbage].iter().for_each(|&object| model.drop_ref(object));
        // A root may be named twice.
        model.roots.lock().unwrap().extend([root, root]);
        assert_eq!(collect(&mut m, Collect::young()).collected, 1);
        for _ in 0..2 {
            let report = collect(&mut m, Collect::full());
            assert_eq!((report.collected, report.known_alive), (0, 3));
        }
        model.roots.lock().unwrap().clear();
        assert_eq!(collect(&mut m, Collect::full()).collected, 3);
    }
    on_all!(check);
}

#[test]
fn a_count_is_the_sum_of_its_parts() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        // One is held from outside. One is held by itself alone.
        let (held, ring) = (alloc(&m, 0), alloc(&m, 0));
        model.link(held, 0, held);
        model.link(ring, 0, ring);
        model.drop_ref(ring);
        for (object, part) in [(held, 1), (ring, 1), (held, 1), (ring, -300), (held, -7)] {
            model.put_elsewhere(object, part);
        }
        let report = collect(&mut m, Collect::young());
        assert_eq!((report.collected, model.serials()), (1, HashSet::from([0])));
        for _ in 0..3 {
            assert_eq!(collect(&mut m, Collect::full()).collected, 0);
        }
        // Now nothing outside holds the other one, and the table knows.
        model.elsewhere.lock().unwrap().get_mut(&held.address()).unwrap().1 -= 1;
        assert_eq!(collect(&mut m, Collect::full()).collected, 1);
        // In the recheck too.
        let risen = alloc(&m, FINALIZES);
        model.drop_ref(risen);
        *model.finalizer.lock().unwrap() = Some(Box::new(move |object, m| {
            m.model().elsewhere.lock().unwrap().insert(object.address(), (object, 1));
        }));
        let report = collect(&mut m, Collect::full());
        assert_eq!((report.resurrected, report.collected), (1, 0));
    }
    on_all!(check);
}

#[test]
fn only_the_collecting_thread_traverses_serial_objects() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        let heap = heap::<YOUNG, OVERLAPS>(workers);
        let mut m = heap.attach();
        let model = heap.model();
        let first = alloc(&m, 0);
        let mut last = first;
        // A long chain, and many objects beside it that share the work out.
        for at in 0..20_000 {
            let kind = if at % 3 == 0 { SERIAL } else { 0 };
            let next = alloc(&m, kind);
            model.link(last, usize::from(at % 7 == 0), next);
            model.drop_ref(next);
            if at % 7 != 0 {
                last = next;
            }
        }
        for _ in 0..3 {
            assert_eq!(collect(&mut m, Collect::full()).unreachable, 0);
        }
        model.drop_ref(first);
        let all = model.serials().len();
        assert_eq!(collect(&mut m, Collect::full()).collected, all);
        let [here, elsewhere] = [0, 1].map(|at| model.traversals[at].load(Relaxed));
        assert!(here > 0);
        assert_eq!(elsewhere, 0);
    }
    on_all!(check);
}

/// A source of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// The objects of a set, and those that they reach by references of both kinds.
fn reachable(mut objects: HashSet<Object>) -> HashSet<Object> {
    let mut stack: Vec<_> = objects.iter().copied().collect();
    while let Some(object) = stack.pop() {
        let targets = counted(object).chain(bare(object));
        stack.extend(targets.filter(|&target| objects.insert(target)));
    }
    objects
}

/// The objects that marking reaches from the roots: it does not follow the counted references of an
/// object that cannot be read.
fn readable_from(roots: &[Object]) -> HashSet<Object> {
    let mut objects: HashSet<Object> = roots.iter().copied().collect();
    let mut stack = roots.to_vec();
    while let Some(object) = stack.pop() {
        let is_shut = header(object).kind.load(Relaxed) & SHUT != 0;
        let counted = counted(object).filter(|_| !is_shut);
        stack.extend(bare(object).chain(counted).filter(|&target| objects.insert(target)));
    }
    objects
}

fn is_full() -> bool {
    std::env::var_os("STANDSTILL_FULL").is_some()
}

/// Compares collections of random graphs with the definition: an object is alive if the test, a
/// root of the model, an outside object, or an old object (in a young collection) is it or reaches
/// it, by references of both kinds. The counted targets of an object that cannot be read are alive
/// too.
fn compare_random_graphs<const YOUNG: bool, const OVERLAPS: bool>(
    workers: usize,
    loses_marks: bool,
) {
    for seed in 1..=if is_full() { 12 } else { 4 } {
        let mut stress = Stress::none().verify_counts(true);
        if loses_marks {
            stress = stress.yield_at_random(seed);
        }
        let heap: ModelHeap<Seam<YOUNG, OVERLAPS>> =
            builder(workers).stress(stress).build_with(Seam::default()).unwrap();
        let mut m = heap.attach();
        let model = heap.model();
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed << 20);
        let mut held: Vec<Object> = Vec::new();
        let mut old = HashSet::new();
        for round in 0..12 {
            for _ in 0..random.below(60) {
                let kind = [0, 0, 0, SERIAL, SHUT, OUTSIDE, LEAF, LEAF | SHUT][random.below(8)];
                held.push(alloc(&m, kind));
            }
            let all = model.objects();
            for _ in 0..random.below(150).min(all.len() * 4) {
                // Only objects that are alive have references to each other.
                let [from, to] = [0; 2].map(|_| all[random.below(all.len())]);
                let slot = random.below(SLOTS / 2);
                match random.below(4) {
                    0 => model.point(from, slot, None),
                    1 => model.point(from, slot, Some(to)),
                    _ => model.link(from, slot, to),
                }
                if random.below(8) == 0 {
                    model.put_elsewhere(to, random.below(400) as i64 - 200);
                }
            }
            while !held.is_empty() && random.below(12) != 0 {
                model.drop_ref(held.swap_remove(random.below(held.len())));
            }
            let roots: Vec<_> = all.iter().filter(|_| random.below(12) == 0).copied().collect();
            model.roots.lock().unwrap().clone_from(&roots);
            let is_young = YOUNG && random.below(2) == 0;
            let mut alive: HashSet<Object> = held.iter().chain(&roots).copied().collect();
            for &object in &all {
                if header(object).kind.load(Relaxed) & SHUT != 0 {
                    alive.extend(counted(object));
                }
                let is_outside = header(object).kind.load(Relaxed) & OUTSIDE != 0;
                if is_outside || is_young && old.contains(&object) {
                    alive.insert(object);
                }
            }
            let alive = reachable(alive);
            let from_roots = reachable(roots.iter().copied().collect()).len();
            let readable = readable_from(&roots).len();
            let expected: HashSet<_> = alive.iter().map(|&o| header(o).serial).collect();
            let what = if is_young { Collect::young() } else { Collect::full() };
            let report = collect(&mut m, what);
            let context = format!("seed {seed}, round {round}, young: {is_young}");
            assert_eq!(report.collected, all.len() - expected.len(), "{context}");
            assert_eq!(model.serials(), expected, "{context}");
            // In a young collection also the targets of old objects.
            if !is_young {
                // Several workers that mark plainly lose marks: few, unless the stress mode does.
                let least = match OVERLAPS && workers > 1 {
                    false => readable,
                    true if loses_marks => 0,
                    true => readable / 2,
                };
                let known = least..=from_roots;
                assert!(known.contains(&report.known_alive), "{context}: {known:?}");
            }
            old = alive;
        }
        assert_eq!(model.traversals[1].load(Relaxed), 0);
    }
}

#[test]
fn collections_keep_the_objects_that_the_definition_keeps() {
    fn check<const YOUNG: bool, const OVERLAPS: bool>(workers: usize) {
        compare_random_graphs::<YOUNG, OVERLAPS>(workers, false);
    }
    on_all!(check);
}

/// Only several workers lose marks, and only if they mark plainly.
#[test]
fn collections_keep_the_objects_that_the_definition_keeps_if_marks_are_lost() {
    compare_random_graphs::<false, true>(3, true);
    compare_random_graphs::<true, true>(3, true);
}

/// A wide graph that three workers mark together, with serial objects, and with garbage beside it.
#[test]
fn several_workers_mark_the_objects_that_roots_reach() {
    for loses_marks in [false, true] {
        let mut stress = Stress::none();
        if loses_marks {
            stress = stress.yield_at_random(3);
        }
        let builder = builder(3).stress(stress);
        let heap: ModelHeap<Seam<false, true>> = builder.build_with(Seam::default()).unwrap();
        let mut m = heap.attach();
        let model = heap.model();
        let kind = |at: usize| if at.is_multiple_of(5) { SERIAL } else { 0 };
        // A tree, by references of both kinds. Each node also refers to any two nodes.
        let tree: Vec<Object> =
            (0..if is_full() { 60_000 } else { 20_000 }).map(|at| alloc(&m, kind(at))).collect();
        for at in 1..tree.len() {
            let (parent, slot, other) = (tree[(at - 1) / 2], at % 2, tree[at * 31 % tree.len()]);
            if at % 7 == 0 {
                model.point(parent, slot, Some(tree[at]));
                model.link(parent, slot, other);
            } else {
                model.link(parent, slot, tree[at]);
                model.point(parent, slot, Some(other));
            }
        }
        let garbage: Vec<Object> = (0..3_000).map(|at| alloc(&m, kind(at))).collect();
        for (at, &object) in garbage.iter().enumerate() {
            model.link(object, 0, garbage[at * 7 % garbage.len()]);
            model.link(object, 1, tree[at]);
        }
        tree.iter().chain(&garbage).for_each(|&object| model.drop_ref(object));
        *model.roots.lock().unwrap() = vec![tree[0]];
        for round in 0..4 {
            let report = collect(&mut m, Collect::full());
            let expected = if round == 0 { garbage.len() } else { 0 };
            assert_eq!((report.collected, report.workers), (expected, 3), "round {round}");
            // Without stress few marks are lost.
            let least = if loses_marks { 1 } else { tree.len() / 2 };
            let known = least..=tree.len();
            assert!(known.contains(&report.known_alive), "{} of {known:?}", report.known_alive);
        }
        assert_eq!(model.traversals[1].load(Relaxed), 0);
        model.roots.lock().unwrap().clear();
        assert_eq!(collect(&mut m, Collect::full()).collected, tree.len());
        assert!(model.objects().is_empty());
    }
}

/// Objects with lost marks are traversed again, before or after they are counted.
#[test]
fn the_stress_mode_loses_marks() {
    for (workers, loses) in [(1, false), (3, true)] {
        let stress = Stress::none().yield_at_random(7);
        let builder = builder(workers).stress(stress);
        let heap: ModelHeap<Seam<false, true>> = builder.build_with(Seam::default()).unwrap();
        let mut m = heap.attach();
        let chain: Vec<Object> = (0..1_000).map(|_| alloc(&m, SERIAL)).collect();
        for pair in chain.windows(2) {
            heap.model().link(pair[0], 0, pair[1]);
        }
        *heap.model().roots.lock().unwrap() = vec![chain[0]];
        collect(&mut m, Collect::full());
        let [traversals, elsewhere] = heap.model().traversals.each_ref().map(|n| n.load(Relaxed));
        // The list of a worker has one object at a time, so there are no prefetches.
        assert_eq!((traversals > chain.len(), elsewhere), (loses, 0), "{traversals}");
    }
}

// The runtime's own poll word.

#[test]
fn each_request_sets_the_runtimes_own_word() {
    let heap = heap::<true, true>(1);
    let m = heap.attach();
    let word = m.local().clone();
    assert!(!word.set.load(Relaxed));
    // By the thread itself.
    m.raise(1 << 20);
    assert!(word.set.swap(false, AcqRel));
    assert_eq!(word.bits.swap(0, Relaxed), 1 << 20);
    drop(m);
    // By a stop of another thread. The thread looks at nothing else.
    let mut m = heap.attach();
    let word = m.local().clone();
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            drop(m.stop().unwrap());
            stopped.store(true, Release);
        });
        while !stopped.load(Acquire) {
            if word.set.load(Relaxed) && word.set.swap(false, Acquire) {
                m.safepoint();
            }
            thread::yield_now();
        }
    });
    assert_ne!(word.bits.load(Relaxed) & STOP, 0);
}

#[test]
fn a_due_collection_sets_the_runtimes_own_word() {
    let mut pacing = Pacing::default();
    pacing.young_objects = 100;
    let builder = Heap::builder().reserve(1 << 28).workers(1).pacing(pacing);
    let heap = builder.build_with(Seam::<true, true>::default()).unwrap();
    let mut m = heap.attach();
    let word = m.local().clone();
    let mut made = 0;
    while !word.set.load(Relaxed) {
        heap.model().drop_ref(alloc(&m, 0));
        made += 1;
        assert!(made < 1_000_000, "no request");
    }
    assert!(word.set.swap(false, Acquire));
    m.safepoint();
    assert!(heap.stats().collections + heap.stats().promotions > 0);
}

#[test]
fn requests_that_a_safepoint_leaves_set_the_word_again() {
    let heap = heap::<true, true>(1);
    let mut m = heap.attach();
    let word = m.local().clone();
    m.raise(1 << 20);
    assert!(word.set.swap(false, Acquire));
    // The mutator is lent, so the safepoint does nothing.
    Mutator::<true, true>::with_current(|_| m.safepoint()).unwrap();
    assert!(word.set.swap(false, Acquire), "the request waits");
    m.safepoint();
    assert!(!word.set.load(Relaxed), "the request was answered");
}

// The runtime's own stop.

/// Runs a thread of the runtime that is no mutator, as long as `f` takes. It looks for stops of the
/// runtime. It must not run in a stop of the heap.
fn beside_a_thread<R>(runtime: &Runtime, f: impl FnOnce(&AtomicUsize) -> R) -> R {
    let (done, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            runtime.enter();
            while !done.load(Relaxed) {
                if runtime.stops() {
                    runtime.leave();
                    runtime.enter();
                }
                rounds.fetch_add(1, Relaxed);
            }
            runtime.leave();
        });
        while rounds.load(Relaxed) == 0 {
            thread::yield_now();
        }
        let result = f(&rounds);
        done.store(true, Relaxed);
        result
    })
}

#[test]
fn a_stop_of_the_heap_stops_the_runtime_and_resumes_it() {
    let heap = heap::<true, true>(1);
    let mut m = heap.attach();
    let runtime = heap.model().runtime.clone();
    beside_a_thread(&runtime, |rounds| {
        let world = m.stop().unwrap();
        assert!(runtime.stops());
        let before = rounds.load(Relaxed);
        thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(rounds.load(Relaxed), before);
        drop(world);
        assert!(!runtime.stops());
        while rounds.load(Relaxed) == before {
            thread::yield_now();
        }
        collect(&mut m, Collect::full());
    });
    assert_eq!(runtime.log.lock().unwrap()[..2], ["stop", "resume"]);
    assert_eq!(runtime.state.lock().unwrap().running, 1, "this thread");
    drop(m);
    assert_eq!(runtime.state.lock().unwrap().running, 0);
}

#[test]
fn an_attempt_to_attach_waits_neither_for_the_heap_nor_for_the_runtime() {
    let heap = heap::<true, true>(1);
    let runtime = heap.model().runtime.clone();
    let running = || runtime.state.lock().unwrap().running;
    let mut detached = heap.attach().into_detached().expect("nothing hinders it");
    runtime.enter();
    runtime.stop();
    detached = detached.try_attach().expect_err("the runtime is stopped");
    assert_eq!(running(), 1);
    runtime.resume();
    let mut m = detached.try_attach().expect("nothing is stopped");
    assert_eq!(running(), 2);
    runtime.leave();
    collect(&mut m, Collect::full());
    drop(m);
    assert_eq!(running(), 0);
}

#[test]
fn a_runtime_that_does_not_stop_abandons_the_collection() {
    let heap = heap::<true, true>(1);
    let mut m = heap.attach();
    let model = heap.model();
    let (live, garbage) = (alloc(&m, 0), alloc(&m, 0));
    model.drop_ref(garbage);
    for (flag, reason) in
        [(&model.runtime.refuses, "it is starting"), (&model.runtime.panics, "a stop, on purpose")]
    {
        flag.store(true, Relaxed);
        let refused = StopError::Refused { reason: reason.into() };
        let text = format!("the runtime has not stopped its threads: {reason}");
        assert_eq!(refused.to_string(), text);
        let result = m.try_collect(Collect::full()).map(|_| ());
        assert_eq!(result, Err(CollectError::Stop(refused.clone())));
        assert_eq!(m.stop().map(drop), Err(refused));
        flag.store(false, Relaxed);
    }
    assert_eq!((model.serials().len(), model.runtime.stops()), (2, false));
    assert_eq!(collect(&mut m, Collect::full()).collected, 1);
    assert_eq!(model.objects(), [live]);
}

/// Threads stop the runtime for reasons of their own, and others collect, park and detach.
#[test]
fn stops_of_the_runtime_and_of_the_heap_do_not_wait_for_each_other() {
    let heap = heap::<true, true>(2);
    let runtime = heap.model().runtime.clone();
    // Written in stops only.
    let (mut inside, rounds) = (AtomicUsize::new(0), 30);
    let critical = || {
        assert_eq!(inside.fetch_add(1, Relaxed), 0, "two stops at once");
        thread::yield_now();
        inside.fetch_sub(1, Relaxed);
    };
    /// A safepoint of an interpreter.
    fn poll(runtime: &Runtime, m: &mut Mutator<true, true>) {
        m.safepoint();
        if runtime.stops() {
            m.detach(|| runtime.wait());
        }
    }
    thread::scope(|scope| {
        for at in 0..4 {
            let (heap, runtime, critical) = (heap.clone(), &*runtime, &critical);
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut m = heap.attach();
                    match (at + round) % 4 {
                        0 => {
                            drop(m.try_collect(Collect::full()).unwrap());
                        }
                        1 => {
                            let world = m.stop().unwrap();
                            critical();
                            drop(world);
                        }
                        2 => {
                            runtime.stop();
                            critical();
                            runtime.resume();
                        }
                        _ => m.detach(thread::yield_now),
                    }
                    for _ in 0..20 {
                        heap.model().drop_ref(alloc(&m, 0));
                        poll(runtime, &mut m);
                    }
                }
            });
        }
    });
    assert_eq!(*inside.get_mut(), 0);
    assert_eq!(runtime.state.lock().unwrap().running, 0);
}

#[test]
fn a_collection_begins_inside_a_stop_of_the_runtime_and_is_finished_after_it() {
    let heap = heap::<true, true>(1);
    let runtime = heap.model().runtime.clone();
    let mut m = heap.attach();
    let model = heap.model();
    let garbage = [FINALIZES, 0].map(|kind| alloc(&m, kind));
    model.link(garbage[0], 0, garbage[1]);
    garbage.iter().for_each(|&object| model.drop_ref(object));
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    *model.finalizer.lock().unwrap() = Some(Box::new(move |_, _| runs.store(true, Relaxed)));
    beside_a_thread(&runtime, |_| {
        runtime.stop();
        let found = m.collect_stopped(Collect::full()).unwrap();
        assert!(runtime.stops() && !ran.load(Relaxed));
        assert!(runtime.log.lock().unwrap().is_empty(), "no stop inside the stop");
        runtime.resume();
        let report = found.finish();
        assert_eq!((report.collected, ran.load(Relaxed)), (2, true));
        // A dropped one is finished too.
        model.drop_ref(alloc(&m, 0));
        runtime.stop();
        let found = m.collect_stopped(Collect::full()).unwrap();
        runtime.resume();
        drop(found);
        assert!(model.objects().is_empty());
    });
    assert!(m.try_collect(Collect::full()).is_ok(), "the lock is free");
}

#[test]
fn a_collection_inside_a_stop_of_the_runtime_does_not_wait_for_another() {
    let heap = heap::<true, true>(1);
    let runtime = heap.model().runtime.clone();
    let mut m = heap.attach();
    let garbage = alloc(&m, FINALIZES);
    heap.model().drop_ref(garbage);
    let (sender, receiver) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    // The finalizer waits detached, so the runtime can be stopped meanwhile.
    let act: Act<true, true> = Box::new(move |_, m| {
        Seam::<true, true>::leaving(m.model(), m.local());
        sender.send(()).unwrap();
        wait.recv().unwrap();
        while !Seam::<true, true>::comes_back(m.model(), m.local()) {
            Seam::<true, true>::wait_for_runtime(m.model(), m.local());
        }
    });
    *heap.model().finalizer.lock().unwrap() = Some(act);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The collecting thread.
            let mut m = heap.attach();
            assert_eq!(collect(&mut m, Collect::full()).collected, 1);
        });
        m.detach(|| receiver.recv().unwrap());
        runtime.stop();
        let busy = m.collect_stopped(Collect::full()).map(drop);
        runtime.resume();
        assert_eq!(busy, Err(CollectError::Busy));
        go_on.send(()).unwrap();
        m.detach(|| ());
        drop(m);
    });
}

#[test]
fn a_collection_inside_a_stop_of_the_runtime_does_not_wait_for_a_stop_of_the_heap() {
    let heap = heap::<true, true>(1);
    let runtime = heap.model().runtime.clone();
    let mut m = heap.attach();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            drop(m.stop().unwrap());
        });
        // The other thread has left the runtime, and waits for this one.
        while m.poll() & STOP == 0 {
            thread::yield_now();
        }
        runtime.stop();
        let busy = m.collect_stopped(Collect::full()).map(drop);
        runtime.resume();
        assert_eq!(busy, Err(CollectError::Busy));
        m.detach(|| ());
        drop(m);
    });
}

// -------------------------------------------------------------------------------------- surveys

impl<const YOUNG: bool, const OVERLAPS: bool> Describe<Seam<YOUNG, OVERLAPS>>
    for Seam<YOUNG, OVERLAPS>
{
    fn fields(model: &Self, object: Stopped<'_>, tracer: &mut Tracer) {
        tracer.field("slots");
        model.traverse(object, tracer);
        tracer.field("after");
    }

    fn label(_: &Self, object: Stopped<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:#x}", object.address())
    }

    fn external_bytes(_: &Self, _: Stopped<'_>, _: &mut Tracer) -> usize {
        7
    }
}

/// What a survey tells of an object: its count, the references from outside, whether it is held,
/// and the names of its references.
type Told = (Option<usize>, usize, bool, Vec<String>);

fn survey(m: &mut Mutator<true, false>) -> HashMap<usize, Told> {
    let told = Mutex::new(HashMap::new());
    m.survey(|object| {
        let names = object.references().map(|(_, name)| name.to_owned()).collect();
        let this = (object.count, object.outside, object.is_held, names);
        assert!(told.lock().unwrap().insert(object.address, this).is_none());
    });
    told.into_inner().unwrap()
}

#[test]
fn a_survey_corrects_counts_also_of_untracked_objects() {
    let heap = heap::<true, false>(1);
    let mut m = heap.attach();
    let object = alloc(&m, 0);
    heap.model().put_elsewhere(object, 1);
    assert_eq!(survey(&mut m)[&object.address()], (Some(1), 1, true, vec![]));
    // SAFETY: an object of this heap.
    unsafe { m.untrack(object) };
    assert_eq!(survey(&mut m)[&object.address()], (Some(1), 1, true, vec![]));
    assert_eq!(m.why_alive(object).unwrap().steps.len(), 1);
    assert_eq!(m.census().total().external_bytes, 7);
    let label = &m.graph_with_labels().holders()[0].label;
    assert_eq!(*label, format!("at {:#x}", object.address()));
    // Bytes outside the heap are a node of their own.
    let mut file = Vec::new();
    m.graph().write_snapshot(&mut file).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let numbers = |name| -> Vec<u64> { serde_json::from_value(file[name].clone()).unwrap() };
    let nodes = numbers("nodes");
    assert_eq!((nodes.len(), nodes[9 + 4]), (3 * 9, 1));
    assert_eq!(nodes[18..], [8, 2, nodes[9 + 2] + 1, 7, 0, 0, 0, 0, 0]);
    assert_eq!(numbers("edges"), [1, 0, 9, 3, 3, 18]);
}

#[test]
fn a_root_of_the_model_is_held_also_if_it_is_untracked() {
    let heap = heap::<true, false>(1);
    let mut m = heap.attach();
    let object = alloc(&m, 0);
    heap.model().roots.lock().unwrap().push(object);
    heap.model().drop_ref(object);
    assert_eq!(survey(&mut m)[&object.address()], (Some(0), 0, true, vec![]));
    // SAFETY: an object of this heap.
    unsafe { m.untrack(object) };
    assert_eq!(survey(&mut m)[&object.address()], (Some(0), 0, true, vec![]));
}

#[test]
fn an_unreadable_field_leaves_no_name_behind() {
    let heap = heap::<true, false>(1);
    let mut m = heap.attach();
    let (shut, target, other) = (alloc(&m, SHUT), alloc(&m, 0), alloc(&m, 0));
    heap.model().point(shut, 0, Some(target));
    heap.model().link(shut, 0, other);
    heap.model().link(shut, 1, other);
    assert_eq!(survey(&mut m)[&shut.address()].3[0], "uncounted");
}

#[test]
fn a_survey_traverses_serial_objects_on_its_own_thread() {
    for workers in [1, 3] {
        let heap = heap::<true, false>(workers);
        let mut m = heap.attach();
        let kind = |number: usize| if number.is_multiple_of(2) { SERIAL } else { 0 };
        let all: Vec<_> = (0..20_000).map(|number| alloc(&m, kind(number))).collect();
        all.windows(2).for_each(|pair| heap.model().link(pair[0], 0, pair[1]));
        let told = survey(&mut m);
        assert_eq!(told.len(), 20_000);
        assert!(told.values().all(|(_, outside, is_held, _)| *outside == 1 && *is_held));
        assert_eq!(heap.model().traversals[1].load(Relaxed), 0);
        assert_eq!(collect(&mut m, Collect::full()).collected, 0);
    }
}

/// A thread could store an uncounted reference while a child searches.
#[test]
fn a_model_with_uncounted_references_is_searched_in_a_stop() {
    let heap = heap::<true, false>(1);
    let mut m = heap.attach();
    let garbage = alloc(&m, 0);
    heap.model().link(garbage, 0, garbage);
    heap.model().drop_ref(garbage);
    let report = collect(&mut m, Collect::full().forked(true));
    assert_eq!((report.child, report.collected), (None, 1));
    let reason = report.no_child.expect("a reason");
    assert!(
        reason.contains("without a count")
            || cfg!(not(all(target_os = "linux", target_env = "gnu"))),
        "{reason}"
    );
}
