//! The interpreter's objects, as standstill's collector sees them.
//!
//! | the collector asks for | answer |
//! |---|---|
//! | all objects ([`Lists::list`](standstill::model::Lists::list)) | the blocks in use on the
//! allocator's [pages](crate::pages). No object is read |
//! | a [count](crate::counts) | of tracked objects that are not frozen. All others are *outside*:
//! kept, and not traversed |
//! | references | `tp_traverse`, with [deferred references](crate::frames) apart, also those that
//! [extension modules](crate::foreign) show |
//! | roots | the stacks of all threads, and tables of the interpreter |
//! | a claim | one reference. The collecting thread owns the object until the release, and deferred
//! references become counted ones |
//! | weak references, finalizers, clearing | the interpreter's own functions, in its own order |
//!
//! # Which thread may touch which field
//!
//! In a stop the collector reads objects, and its workers write claimed objects only: a live object
//! is never written. (Three exceptions, all rare: a weak reference with a due callback gets a
//! reference, and so does the target of a deferred reference in garbage; the counts of objects in
//! the queues of threads are merged.) `pages`, `collector`, `has_listed` and `keep_deferred` are
//! written by the collecting thread, before the workers read them.

use std::borrow::Cow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use standstill::model::{
    Adjusted, Batches, ChildWait, ClaimRef, Count, DeadObject, Ends, Finalizers, Found,
    ListedMemory, Lists, Live, ModelMutator, Object, ObjectList, ObjectModel, RuntimeStop,
    Segments, Serial, SplitCounts, Stopped, Tracer, Uncounted, Verdict, Verdicts, WeakRefs, World,
};
use standstill::safepoint::ThreadId;

use crate::checked::Checked;
use crate::finalizers::Streams;
use crate::frames::{self, Traverse};
use crate::layout as c;
use crate::pages::{Pages, TOGETHER, in_use};
use crate::stop::StopFunctions;
use crate::traversals::Known;
use crate::{child, counts, pressure, python, weak};

/// 64 KiB: memory is adopted in such units.
const UNIT: usize = 1 << 16;

/// Figures of the running collection.
#[derive(Default)]
pub struct Figures {
    /// Blocks in use, tracked or not.
    pub blocks: AtomicUsize,
    /// Calls of finalizers.
    pub finalized: AtomicUsize,
    /// Objects that were cleared.
    pub cleared: AtomicUsize,
    /// Objects that legacy finalizers keep.
    pub uncollectable: AtomicUsize,
    /// References that the collection has added, for debug builds.
    pub added: AtomicUsize,
}

/// The times of the running collection's stops.
#[derive(Default)]
pub struct StopTimes {
    /// When the stop that goes on was requested.
    begun: Option<Instant>,
    /// The time until all threads stood, of all stops.
    pub to_stop: Duration,
    /// The time from the request of each stop until its threads ran again.
    pub pauses: Vec<Duration>,
    /// The time of the waits for children.
    pub waited: Duration,
}

/// See the [module's page](self).
pub struct Python {
    pub interpreter: *mut c::PyInterpreterState,
    pub stop: StopFunctions,
    pub clear_weak: weak::ClearRef,
    /// Bytes in front of each block, of the debug allocator.
    pub prefix: usize,
    pub known: Known,
    pub streams: Streams,
    pub checked: Checked,
    pub figures: Figures,
    stop_times: Mutex<StopTimes>,
    pages: RwLock<Pages>,
    /// The collecting thread, by the number in the owner field of objects.
    collector: AtomicUsize,
    /// All objects were listed in this stop: it is the first one of a collection.
    has_listed: AtomicBool,
    /// Objects with deferred references are kept: a stack could not be read in this stop, or it is
    /// the second one.
    keep_deferred: AtomicBool,
    /// The objects that were in queues of threads, with the queues' references, in a stop.
    taken: Mutex<Taken>,
    /// An object with a legacy finalizer was counted in this collection.
    has_legacy: AtomicBool,
    /// `gc.DEBUG_SAVEALL` is set: garbage is put into `gc.garbage` and not cleared.
    save_all: AtomicBool,
    /// The new objects that the first stop of this collection has counted.
    pub counted: AtomicI32,
    /// The generation that was asked for, which decides which counters begin anew.
    generation: AtomicUsize,
}

/// References to objects.
#[derive(Default)]
struct Taken(Vec<*mut c::PyObject>);

// SAFETY: a counted reference may move to another thread.
unsafe impl Send for Taken {}

// SAFETY: the interpreter exists as long as the module, and is accessed as the module's page says.
unsafe impl Send for Python {}
// SAFETY: as above.
unsafe impl Sync for Python {}

/// The pointer to an object.
#[inline(always)]
fn op(object: Object) -> *mut c::PyObject {
    object.as_ptr().as_ptr().cast()
}

impl Python {
    /// The model of an interpreter.
    pub fn new(
        interpreter: *mut c::PyInterpreterState,
        stop: StopFunctions,
        clear_weak: weak::ClearRef,
        known: Known,
        streams: Streams,
    ) -> Self {
        Self {
            interpreter,
            stop,
            clear_weak,
            prefix: crate::pages::debug_prefix(),
            known,
            streams,
            checked: Checked::default(),
            figures: Figures::default(),
            stop_times: Mutex::default(),
            pages: RwLock::default(),
            collector: AtomicUsize::new(0),
            has_listed: AtomicBool::new(false),
            keep_deferred: AtomicBool::new(false),
            taken: Mutex::default(),
            has_legacy: AtomicBool::new(false),
            save_all: AtomicBool::new(false),
            counted: AtomicI32::new(0),
            generation: AtomicUsize::new(2),
        }
    }

    fn lock_stop_times(&self) -> MutexGuard<'_, StopTimes> {
        self.stop_times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the times of the stops so far.
    pub fn take_stop_times(&self) -> StopTimes {
        std::mem::take(&mut *self.lock_stop_times())
    }

    /// A collection begins, on this thread, which is attached.
    pub fn begin(&self, generation: usize, save_all: bool) {
        // SAFETY: the state of an attached thread is one of its own.
        let thread =
            unsafe { (*pyo3_ffi::PyThreadState_Get().cast::<c::_PyThreadStateImpl>()).brc.tid };
        // Relaxed: the stop orders it.
        self.collector.store(thread as usize, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Relaxed);
        self.save_all.store(save_all, Ordering::Relaxed);
        self.has_legacy.store(false, Ordering::Relaxed);
        self.figures.finalized.store(0, Ordering::Relaxed);
        self.figures.cleared.store(0, Ordering::Relaxed);
        self.figures.uncollectable.store(0, Ordering::Relaxed);
        self.figures.blocks.store(0, Ordering::Relaxed);
    }

    /// Lets the interpreter's counters of allocations begin anew. The world is stopped.
    fn reset_counters(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        // SAFETY: no attached thread runs, and the fields belong to the collector. The package's
        // thread reads the first number also during a stop (`automatic::due`), by an atomic load.
        unsafe {
            let state = &raw mut (*self.interpreter).gc;
            let old: *mut [c::gc_generation] = &raw mut (*state).old;
            let (number, old) = (old.len(), old.cast::<c::gc_generation>());
            if generation < number {
                (*old.add(generation)).count += 1;
            }
            // Relaxed: any of its values will do there.
            let new = pressure::new_objects(self.interpreter);
            let counted = new.swap(0, Ordering::Relaxed);
            self.counted.store(counted, Ordering::Relaxed);
            pressure::stopped(counted);
            (0..generation.min(number)).for_each(|i| (*old.add(i)).count = 0);
        }
    }

    /// Adopts the memory of the listed pages that is new.
    fn adopt(&self, pages: &Pages, memory: &ListedMemory<'_>) -> Result<(), Cow<'static, str>> {
        for page in pages.pages() {
            let (start, bytes) = page.memory();
            for offset in (0..bytes).step_by(UNIT) {
                // SAFETY: inside the page.
                let start = unsafe { start.add(offset) };
                if !memory.is_adopted(start.addr().get()) {
                    // SAFETY: objects are listed only while the allocator has the page.
                    unsafe { memory.adopt(start, UNIT) }.map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }
}

// SAFETY: the rules. 1: counts are the interpreter's own, without deferred references, and with the
// adjustments. 2: only the interpreter frees. 3: the stop is the interpreter's. Threads that are
// not attached to it change no count. 4: traversals are the interpreter's own. Deferred references
// are reported as uncounted. 5: `merge` empties the threads' queues. Adjustments have the rest. 6:
// no method collects. 7: deferred references of objects are reported by traversals, those of
// threads as roots.
unsafe impl ObjectModel for Python {
    type Addresses = Segments;
    type Parts = Self;

    // The traversals of types that are not serial only read.
    const OVERLAPPING_TRAVERSALS: bool = true;

    #[inline(always)]
    fn count(&self, object: Stopped<'_>) -> Count {
        // SAFETY: the object was listed in this stop, or is claimed. An object that takes part has
        // a type.
        unsafe {
            let count = counts::count(op(*object), self.keep_deferred.load(Ordering::Relaxed));
            if self.checked.keeps(op(*object)) {
                return Count::Outside;
            }
            if let Count::Exact(_) = count
                && (*(*op(*object)).ob_type).tp_del.is_some()
            {
                // All garbage was counted. With legacy finalizers, one thread claims it all.
                self.has_legacy.store(true, Ordering::Relaxed);
            }
            count
        }
    }

    #[inline(always)]
    fn is_immortal(&self, _: Stopped<'_>) -> bool {
        // `count` does not return it.
        false
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        // SAFETY: the object was listed in this stop, or is claimed.
        unsafe { Traverse::new(self.known.of_classes).tracked(op(*object), tracer) };
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        // SAFETY: the world is stopped, and the collector claims each object once.
        unsafe {
            self.checked.claimed(op(*object), counts::is_deferred(op(*object)));
            // Relaxed: the stop orders it.
            let thread = self.collector.load(Ordering::Relaxed);
            counts::claim(op(*object), thread, self.interpreter);
            frames::strengthen(op(*object));
        }
        if cfg!(py_debug) {
            self.figures.added.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn release(&self, reference: ClaimRef, _: &ModelMutator<Self>) {
        let object = op(reference.object());
        // SAFETY: the claim's reference, on an attached thread.
        unsafe {
            if self.checked.was_deferred(object) {
                // Deferred references keep the object, if the claim was wrong.
                c::ss_defer(object);
            }
            counts::release(object);
            pressure::progressed();
        }
    }

    fn clear(&self, object: Live<'_>, _: &ModelMutator<Self>) {
        let object = op(object.object());
        // SAFETY: the claim's reference, on an attached thread.
        unsafe {
            counts::show(object);
            if !counts::is_tracked(object) {
                // The clearing of another object has untracked it.
                return;
            }
            // One thread adds.
            let cleared = self.figures.cleared.load(Ordering::Relaxed);
            self.figures.cleared.store(cleared + 1, Ordering::Relaxed);
            if self.save_all.load(Ordering::Relaxed) {
                return python::append_or_forget((*self.interpreter).gc.garbage, object);
            }
            if let Some(clear) = (*(*object).ob_type).tp_clear {
                clear(object);
                python::report_error_of_clear(object);
            }
            pressure::progressed();
        }
    }

    fn type_name(&self, object: Live<'_>) -> Cow<'static, str> {
        // SAFETY: the object is alive, and so is its type.
        unsafe { python::type_name(op(object.object())).into() }
    }
}

standstill::parts!(
    Python:
    SplitCounts, Adjusted, Batches, Serial, Finalizers, Verdicts, WeakRefs, Uncounted, Lists,
    RuntimeStop
);

impl SplitCounts<Python> for Python {
    fn merge(model: &Self, _: &World<'_, Self>, _: &mut Vec<DeadObject>) {
        // An object without another reference dies in `resumed`, or is garbage.
        if let Ok(mut taken) = model.taken.lock() {
            // SAFETY: the world is stopped, by this thread.
            unsafe { counts::take_queues(model.interpreter, &mut taken.0) };
        }
    }

    fn resumed(model: &Self, _: &ModelMutator<Self>) {
        let taken = model.taken.lock().map(|mut taken| std::mem::take(&mut *taken));
        for object in taken.unwrap_or_default().0 {
            // SAFETY: the reference of a queue, on an attached thread.
            unsafe { pyo3_ffi::Py_DECREF(object.cast()) };
        }
        // SAFETY: this thread is attached.
        unsafe { python::report_error() };
    }
}

impl Adjusted<Python> for Python {
    fn adjustments(model: &Self, _: &World<'_, Self>, report: &mut dyn FnMut(Object, i64)) {
        let mut report = |object: *mut c::PyObject, by| {
            // SAFETY: tables and queues have no null pointers.
            report(unsafe { Object::new(NonNull::new_unchecked(object.cast())) }, by);
        };
        // SAFETY: the world is stopped.
        unsafe { counts::adjustments(model.interpreter, &mut report) };
        if let Ok(taken) = model.taken.lock() {
            taken.0.iter().for_each(|&object| report(object, -1));
        }
    }
}

impl Batches<Python> for Python {
    #[inline(always)]
    fn traverse_each(
        model: &Self,
        objects: &[Stopped<'_>],
        tracer: &mut Tracer,
        ends: &mut Ends<'_>,
    ) {
        let mut traverse = Traverse::new(model.known.of_classes);
        // SAFETY: as above.
        tracer.each(objects, ends, |object, tracer| unsafe {
            traverse.tracked(op(*object), tracer);
        });
    }
}

impl Serial<Python> for Python {
    fn serial(model: &Self, object: Stopped<'_>) -> bool {
        // SAFETY: as above.
        unsafe { counts::is_tracked(op(*object)) && !model.known.is_known(op(*object)) }
    }
}

impl Finalizers<Python> for Python {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        // Also if its finalizer has run before. Such an object may be in a list that does not
        // count, from which another thread takes it after the first stop: `asyncio.all_tasks()`
        // does so. The second stop keeps it then.
        // SAFETY: the object is alive.
        unsafe { model.streams.has_finalizer(op(object.object())) }
    }

    fn finalize(model: &Self, object: Live<'_>, _: &ModelMutator<Self>) {
        let object = op(object.object());
        // SAFETY: the claim's reference, on an attached thread.
        unsafe {
            if !model.checked.differs()
                && counts::set_finalized(object)
                && let Some(finalize) = (*(*object).ob_type).tp_finalize
            {
                // One thread adds.
                let finalized = model.figures.finalized.load(Ordering::Relaxed);
                model.figures.finalized.store(finalized + 1, Ordering::Relaxed);
                finalize(object);
                python::report_error();
            }
            pressure::progressed();
        }
    }
}

impl Verdicts<Python> for Python {
    fn has_legacy(model: &Self) -> bool {
        model.has_legacy.load(Ordering::Relaxed)
    }

    fn legacy(_: &Self, object: Stopped<'_>) -> bool {
        // SAFETY: the object is alive.
        unsafe { (*(*op(*object)).ob_type).tp_del.is_some() }
    }

    fn judge(model: &Self, found: &Found<'_>, _: &ModelMutator<Self>) -> Verdict {
        let garbage = || found.garbage.iter().map(|object| op(object.object()));
        model.checked.report();
        if model.checked.differs() {
            return Verdict::Keep;
        }
        // Each part of a child's proposal is judged by itself.
        model.figures.uncollectable.fetch_add(found.uncollectable.len(), Ordering::Relaxed);
        // SAFETY: this thread is attached to the interpreter, and the objects are claimed.
        unsafe {
            let state = &raw const (*model.interpreter).gc;
            let debug = i64::from((*state).debug);
            if debug & c::SS_DEBUG_COLLECTABLE != 0 {
                garbage().for_each(|object| python::debug_line("collectable", object));
            }
            for object in found.uncollectable.iter().map(|object| op(object.object())) {
                if debug & c::SS_DEBUG_UNCOLLECTABLE != 0 {
                    python::debug_line("uncollectable", object);
                }
                let is_legacy = (*(*object).ob_type).tp_del.is_some();
                if is_legacy || debug & c::SS_DEBUG_SAVEALL != 0 {
                    python::append_or_forget((*state).garbage, object);
                }
            }
        }
        Verdict::Clear
    }
}

impl WeakRefs<Python> for Python {
    type Callback = weak::Callback;

    fn has_weak(_: &Self, object: Live<'_>) -> bool {
        // SAFETY: the world is stopped.
        unsafe { weak::concerns(op(object.object())) }
    }

    fn callbacks(_: &Self, object: Stopped<'_>) -> usize {
        // SAFETY: the world is stopped.
        unsafe { weak::callbacks(op(*object)) }
    }

    fn take_callbacks(
        model: &Self,
        object: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<weak::Callback>,
    ) {
        if model.checked.differs() {
            return;
        }
        let is_garbage = |object: *mut c::PyObject| {
            NonNull::new(object.cast()).is_some_and(|object| is_unreachable(Object::new(object)))
        };
        // SAFETY: the world is stopped, by this thread.
        unsafe { weak::take_callbacks(op(*object), model.clear_weak, is_garbage, due) };
    }

    fn call_back(_: &Self, callback: weak::Callback, _: &ModelMutator<Self>) {
        // SAFETY: this thread is attached to the interpreter.
        unsafe {
            weak::call(callback);
            pressure::progressed();
        }
    }

    fn clear_weak(model: &Self, object: Stopped<'_>) {
        if model.checked.differs() {
            return;
        }
        // SAFETY: the world is stopped, by this thread.
        unsafe { weak::clear_all(op(*object), model.clear_weak) };
    }
}

impl Uncounted<Python> for Python {
    // A claimed object has lost its deferred counting: all later references to it are counted. If
    // it has deferred counting again, it is kept.
    const RECHECKS: bool = false;

    // A stop whose list is partial keeps objects with deferred counting. A borrowed reference on a
    // stack leads to other objects too, but a variable of the same frame has a counted one, and an
    // object gets a frame only when the interpreter has made all of its references counted or
    // deferred ones.
    const PROVES: bool = true;

    fn roots(
        model: &Self,
        _: &World<'_, Self>,
        _: &dyn Fn(Object) -> bool,
        report: &mut dyn FnMut(Object),
    ) {
        // SAFETY: the world is stopped.
        let are_read = unsafe {
            frames::roots(model.interpreter, &mut |object| {
                report(Object::new(NonNull::new_unchecked(object.cast())));
            })
        };
        // A claimed object has lost its deferred counting. If a finalizer has enabled it again,
        // some references to the object may be uncounted. If a stop proves what a child proposes,
        // any generator may have such a reference.
        let is_first = model.has_listed.load(Ordering::Relaxed);
        model.keep_deferred.store(!are_read || !is_first, Ordering::Relaxed);
    }
}

impl Lists<Python> for Python {
    fn list_parts(
        model: &Self,
        _: &World<'_, Self>,
        memory: &ListedMemory<'_>,
    ) -> Result<usize, Cow<'static, str>> {
        let is_partial = memory.is_partial();
        if is_partial {
            pressure::stopped_again();
        } else {
            model.reset_counters();
            // A search in a stop follows the clone of a child that has failed.
            model.figures.blocks.store(0, Ordering::Relaxed);
        }
        // SAFETY: the world is stopped, by this thread.
        #[cfg(py315)]
        unsafe {
            crate::foreign::redirect()?;
        }
        // Garbage dies soon after this stop if its last references are in delayed decrements.
        // SAFETY: the world is stopped.
        unsafe { counts::each_thread(model.interpreter, |thread| c::ss_settle(thread.cast())) };
        // SAFETY: the world is stopped.
        let pages = unsafe { Pages::list(model.interpreter, model.prefix) };
        let mut pages = pages.map_err(|_| "no memory for the list of pages")?;
        if is_partial {
            pages.retain(|page| {
                let (start, bytes) = page.memory();
                memory.wants(start, bytes)
            });
        }
        // A page at a proposed address may have grown since the clone.
        model.adopt(&pages, memory)?;
        let parts = pages.pages().len().div_ceil(TOGETHER);
        model.has_listed.store(!is_partial, Ordering::Relaxed);
        *model.pages.write().map_err(|_| "another list has failed")? = pages;
        Ok(parts)
    }

    fn list(model: &Self, part: usize, list: &mut ObjectList<'_>) {
        let Ok(pages) = model.pages.read() else { return };
        let rest = &pages.pages()[part * TOGETHER..];
        let mine = &rest[..rest.len().min(TOGETHER)];
        let mut used = 0;
        // SAFETY: in the stop that has made the list. A block in use has an object, or will have
        // one: until then it is not tracked. Pages have slices of their own.
        unsafe {
            pages.blocks(mine, |blocks| {
                list.add_blocks(blocks);
                used += in_use(blocks);
            });
        }
        // Relaxed: the stop orders it.
        if model.has_listed.load(Ordering::Relaxed) {
            model.figures.blocks.fetch_add(used, Ordering::Relaxed);
        }
    }
}

impl RuntimeStop<Python> for Python {
    fn stop_runtime(model: &Self, (): &()) -> Result<(), Cow<'static, str>> {
        let begun = Instant::now();
        model.has_listed.store(false, Ordering::Relaxed);
        // SAFETY: this thread is attached to the interpreter.
        unsafe { (model.stop.stop)(model.interpreter) };
        let mut times = model.lock_stop_times();
        times.to_stop += begun.elapsed();
        times.begun = Some(begun);
        Ok(())
    }

    fn wait_for_child(model: &Self, has_ended: &mut dyn FnMut() -> bool) -> ChildWait {
        let begun = Instant::now();
        // SAFETY: this thread is attached to the interpreter.
        let result = unsafe { child::wait(model.interpreter, has_ended) };
        model.lock_stop_times().waited += begun.elapsed();
        result
    }

    fn resume_runtime(model: &Self, (): &()) {
        // SAFETY: this thread has stopped it, and the workers have ended their work.
        #[cfg(py315)]
        unsafe {
            crate::foreign::HOLDERS.count_claimed();
        }
        // SAFETY: this thread has stopped it.
        unsafe { (model.stop.start)(model.interpreter) };
        let mut times = model.lock_stop_times();
        if let Some(begun) = times.begun.take()
            && times.pauses.try_reserve(1).is_ok()
        {
            times.pauses.push(begun.elapsed());
        }
    }
}
