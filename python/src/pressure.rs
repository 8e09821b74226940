//! Back pressure: threads that make garbage faster than a collection clears it are held up.
//!
//! One thread runs finalizers and clears: the package's own, or one that calls `gc.collect()`. All
//! other threads run meanwhile, and could make more garbage than it clears: each collection would
//! find more than the last, and `gc.collect()` would take longer each time. CPython does nothing
//! against this. A thread that allocates collects there, so one thread makes no garbage meanwhile;
//! with four, memory grows without limit.
//!
//! # When
//!
//! The collecting thread counts the new objects since its stop. The threads *outrun* the collection
//! if there are more of them than
//!
//! - CPython's rule demands for another collection: the threshold, and a quarter of the live ones,
//! - half of the new objects that this collection began with, and
//! - [`FEW`].
//!
//! Then each thread that allocates is *asked* to pause. The further the number is above that limit,
//! the longer the pauses are ([`SHORTEST`] to [`LONGEST`], by [`STEEPNESS`]). Between two pauses a
//! thread runs until the next look of the collecting thread ([`LOOK`]), and makes [`BUSY`] objects
//! at least.
//!
//! # How
//!
//! No function of the interpreter has a thread run something. But threads destroy objects for
//! others: if a thread drops the last reference to an object of another thread, the interpreter
//! puts the object into a queue of its owner. The owner destroys it between two instructions of
//! Python. A *request* is such an object. The collecting thread makes it, writes another thread's
//! number into its owner field, and drops it. Its destructor is the pause.
//!
//! ```text
//! collecting thread                        thread that allocates
//! -----------------                        ---------------------
//! clears an object; 1 ms since the last
//! look: are there too many new objects?
//! makes a request for the thread,
//! and drops it  --- queue of the owner --> next check of the eval breaker:
//!                                          the destructor detaches and sleeps
//! clears objects: PROGRESS grows           wakes each half millisecond, until the pause is over
//!                                          attaches, and goes on
//! ```
//!
//! # A pause ends
//!
//! | when | why |
//! |---|---|
//! | the collection has ended | nothing is left to clear |
//! | its time has passed | no thread waits without limit |
//! | no object was finalized or cleared for [`STALL`] | a finalizer may wait for a lock that the
//! paused thread holds |
//! | a signal, an exception or a call is pending for the thread | it must arrive |
//! | automatic collections are disabled or uninstalled, or a block of `defer` begins | |
//!
//! A thread is asked only by a collecting thread that makes progress. While a finalizer waits,
//! no thread is asked, and the pauses end. So there is no deadlock.
//!
//! The paused thread is detached: a stop does not wait for it.
//!
//! # Which thread may touch which field
//!
//! | | written by | read by |
//! |---|---|---|
//! | `WATCH` | the collecting thread; it is local to that thread | the same |
//! | `RUNNING`, `PROGRESS` | the collecting thread; in the child of a fork its only thread | paused
//! threads |
//! | a request | the collecting thread, before it drops the request | the thread that destroys it |
//! | `gc.alloc_count`, `brc.tid` | each thread its own, without atomic instructions | the
//! collecting thread, atomically: any value will do |
//!
//! If a request is still in its queue at the next stop, that stop takes it out, and the
//! collecting thread destroys it. A request of a thread that has ended is destroyed at once.
//! Neither is a pause.
//!
//! # The number of new objects
//!
//! The interpreter subtracts objects that die from the number of new objects, down to 0. While much
//! is cleared, the number would stay 0. So the collecting thread keeps its own freed objects out of
//! the interpreter's number, and subtracts them at the end. If threads had to be asked, it does
//! not: then the next collection is due at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicIsize, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3_ffi::{
    Py_DECREF, Py_TPFLAGS_DEFAULT, Py_TPFLAGS_DISALLOW_INSTANTIATION, Py_TPFLAGS_IMMUTABLETYPE,
    Py_tp_dealloc, PyEval_RestoreThread, PyEval_SaveThread, PyObject, PyObject_Free,
    PyThreadState_Get, PyType_FromSpec, PyType_GenericAlloc, PyType_Slot, PyType_Spec,
    PyTypeObject,
};

use crate::counts::each_thread;
use crate::layout as c;
use crate::switch;

/// How often the collecting thread looks for threads that outrun it.
const LOOK: Duration = Duration::from_millis(1);
/// The shortest pause that a thread is asked for.
const SHORTEST: Duration = Duration::from_millis(10);
/// The longest pause that a thread is asked for.
const LONGEST: Duration = Duration::from_millis(200);
/// The power of the distance from the limit with which pauses grow. If a collection's limit is half
/// of the new objects that it began with, and as many are new again, a pause is nearly the longest.
/// So the next collection finds hardly more than this one, even if other programs keep the
/// collecting thread from its core, so that the threads run for long between two looks.
const STEEPNESS: i32 = 4;
/// A pause ends if the collection has made no progress for so long.
const STALL: Duration = Duration::from_millis(20);
/// How often a paused thread looks whether the pause is over.
const NAP: Duration = Duration::from_micros(500);
/// So many new objects are no reason to hold threads up.
const FEW: i64 = 20_000;
/// A thread that has made fewer objects than this between two looks is not asked.
const BUSY: isize = 16;
/// The collecting thread reads the clock once for so many objects.
const CLOCK: u64 = 16;

/// The number of the collection that runs. 0: none that holds threads up.
static RUNNING: AtomicU64 = AtomicU64::new(0);
/// The number of the last such collection.
static LAST: AtomicU64 = AtomicU64::new(0);
/// How many objects such collections have finalized, cleared or released.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
/// The type of requests. Null: threads are not held up.
static REQUEST: AtomicPtr<PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
/// The pauses of all threads: their number, their nanoseconds, the nanoseconds of the longest.
static PAUSES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

thread_local! {
    /// The collection that runs on this thread.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// The object that is a request.
#[repr(C)]
struct Request {
    object: c::PyObject,
    /// The owner: the thread that is asked.
    thread: usize,
    /// The number of the collection.
    collection: u64,
    until: Instant,
}

/// The data of the collecting thread about another thread.
struct Seen {
    /// The objects in the thread's counter at the last look.
    count: isize,
    /// Until when the thread was asked to pause.
    until: Instant,
}

/// A collection, for its thread.
struct Watch {
    interpreter: *mut c::PyInterpreterState,
    /// The state of this thread.
    own: *mut c::_PyThreadStateImpl,
    /// The new objects when the collection began.
    before: i64,
    /// Those of the present number that were made before the first stop for a part of what a child
    /// has proposed. `None`: there was none.
    base: Option<i64>,
    /// Objects that this thread has freed, and not subtracted from the number of new ones.
    freed: i64,
    /// Whether a thread was asked.
    has_asked: bool,
    looked: Instant,
    seen: HashMap<usize, Seen>,
}

/// Makes the type of requests, if there is none. `false`: no memory, and an error is set.
///
/// # Safety
///
/// This thread is attached to the main interpreter.
pub unsafe fn prepare() -> bool {
    // Acquire: the type is complete.
    if !REQUEST.load(Ordering::Acquire).is_null() {
        return true;
    }
    let mut slots = [
        PyType_Slot { slot: Py_tp_dealloc, pfunc: destroy as *mut c_void },
        PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() },
    ];
    let flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE;
    let mut spec = PyType_Spec {
        name: c"standstill_gc._standstill_gc.Request".as_ptr(),
        basicsize: size_of::<Request>() as c_int,
        itemsize: 0,
        flags: flags as c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: as the caller says. The interpreter copies all that it keeps but for the name, which
    // is a constant.
    let made = unsafe { PyType_FromSpec(&raw mut spec) };
    if made.is_null() {
        return false;
    }
    // The type lives for ever. If two threads make one, both work.
    REQUEST.store(made.cast(), Ordering::Release);
    true
}

/// Notes a collection on this thread until it is dropped.
pub struct Pressure(());

impl Pressure {
    /// # Safety
    ///
    /// This thread collects, and is attached.
    pub unsafe fn begin(interpreter: *mut c::PyInterpreterState) -> Self {
        let watch = Watch {
            interpreter,
            // SAFETY: as the caller says.
            own: unsafe { PyThreadState_Get() }.cast(),
            before: 0,
            base: None,
            freed: 0,
            has_asked: false,
            looked: Instant::now(),
            seen: HashMap::new(),
        };
        WATCH.set(Some(watch));
        // Relaxed: one collection runs at a time. A request goes through the interpreter's queue,
        // which orders the number before it.
        RUNNING.store(LAST.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        // Relaxed: paused threads look again.
        RUNNING.store(0, Ordering::Relaxed);
        let Some(watch) = WATCH.take() else { return };
        if watch.has_asked || watch.freed == 0 {
            return;
        }
        // Relaxed: a number.
        let less = |now: c_int| {
            let left = i64::from(now) - watch.freed;
            (now > 0).then(|| c_int::try_from(left.max(0)).unwrap_or(0))
        };
        // SAFETY: the interpreter exists while it collects.
        let new = unsafe { new_objects(watch.interpreter) };
        let _never_negative = new.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// In the child of a fork during a collection of another thread.
pub fn lost() {
    // Relaxed: the process has one thread.
    RUNNING.store(0, Ordering::Relaxed);
}

/// The interpreter's number of new objects.
///
/// # Safety
///
/// The interpreter exists as long as the result.
pub unsafe fn new_objects<'a>(interpreter: *mut c::PyInterpreterState) -> &'a AtomicI32 {
    // SAFETY: as the caller says. All threads change the number by atomic operations.
    unsafe { AtomicI32::from_ptr(&raw mut (*interpreter).gc.young.count) }
}

/// The collecting thread begins a stop. So many objects are new, and the number begins anew.
pub fn stopped(new: c_int) {
    WATCH.with_borrow_mut(|watch| {
        if let Some(watch) = watch {
            watch.before = watch.before.max(new.into());
            watch.base = None;
        }
    });
}

/// The collecting thread begins a stop for a part of what a child process has proposed. The objects
/// that were made while the child searched are no reason to hold threads up.
pub fn stopped_again() {
    WATCH.with_borrow_mut(|watch| {
        if let Some(watch) = watch {
            // SAFETY: the interpreter exists while it collects. Relaxed: any value will do.
            let new = unsafe { new_objects(watch.interpreter) }.load(Ordering::Relaxed);
            watch.base.get_or_insert(new.into());
        }
    });
}

/// The collecting thread has finalized, cleared or released an object.
///
/// # Safety
///
/// This thread collects, and is attached.
#[inline(always)]
pub unsafe fn progressed() {
    // Relaxed: this thread, or the collecting thread before it, has written it.
    if RUNNING.load(Ordering::Relaxed) != 0 {
        // SAFETY: as the caller says.
        unsafe { count_progress() };
    }
}

/// A collection that holds threads up has finalized, cleared or released an object.
///
/// # Safety
///
/// As for [`progressed`].
unsafe fn count_progress() {
    // Relaxed: one thread adds, and paused threads look again.
    let progress = PROGRESS.load(Ordering::Relaxed).wrapping_add(1);
    PROGRESS.store(progress, Ordering::Relaxed);
    WATCH.with_borrow_mut(|watch| {
        let Some(watch) = watch else { return };
        // SAFETY: as the caller says: the state is this thread's.
        unsafe {
            let count = &raw mut (*watch.own).gc.alloc_count;
            if *count < 0 {
                watch.freed -= *count as i64;
                *count = 0;
            }
        }
        if progress.is_multiple_of(CLOCK) && watch.looked.elapsed() >= LOOK {
            // SAFETY: as the caller says.
            unsafe { watch.look() };
            watch.looked = Instant::now();
        }
    });
}

impl Watch {
    /// Asks threads to pause, if they outrun this collection.
    ///
    /// # Safety
    ///
    /// This thread collects, and is attached.
    #[cold]
    unsafe fn look(&mut self) {
        let kind = REQUEST.load(Ordering::Acquire);
        // SAFETY: as the caller says. Any value of these fields will do: see `automatic::due`.
        unsafe {
            // Relaxed: the next look sees changes that this one does not.
            let new = i64::from(new_objects(self.interpreter).load(Ordering::Relaxed))
                - self.base.unwrap_or(0);
            let limit = self.limit();
            if !switch::runs() || kind.is_null() || new <= limit {
                return;
            }
            let times = (new as f64 / limit as f64).powi(STEEPNESS);
            let long = SHORTEST.mul_f64(times.min(LONGEST.div_duration_f64(SHORTEST)));
            let now = Instant::now();
            let mut asked = Vec::new();
            // Without memory a thread is not asked.
            let mut seen = HashMap::new();
            each_thread(self.interpreter, |thread| {
                // Relaxed: a thread writes its number when it begins. 0: not yet.
                let number = AtomicUsize::from_ptr(&raw mut (*thread).brc.tid);
                let number = number.load(Ordering::Relaxed);
                if number == 0 || thread == self.own {
                    return;
                }
                let count = AtomicIsize::from_ptr(&raw mut (*thread).gc.alloc_count);
                let count = count.load(Ordering::Relaxed);
                let mut until = now;
                if let Some(last) = self.seen.get(&number) {
                    until = last.until;
                    if now >= until
                        && count.abs_diff(last.count) >= BUSY.unsigned_abs()
                        && asked.try_reserve(1).is_ok()
                    {
                        until = now + long;
                        asked.push(number);
                    }
                }
                if seen.try_reserve(1).is_ok() {
                    seen.insert(number, Seen { count, until });
                }
            });
            self.seen = seen;
            for thread in asked {
                self.has_asked = true;
                ask(kind, thread, now + long);
            }
        }
    }

    /// More new objects than this are a reason to hold threads up.
    ///
    /// # Safety
    ///
    /// This thread collects.
    unsafe fn limit(&self) -> i64 {
        // SAFETY: as the caller says. The fields change rarely, and CPython reads them in this way.
        let (threshold, live) = unsafe {
            let state = &raw mut (*self.interpreter).gc;
            let threshold = AtomicI32::from_ptr(&raw mut (*state).young.threshold);
            let live = AtomicIsize::from_ptr(&raw mut (*state).long_lived_total);
            (threshold.load(Ordering::Relaxed), live.load(Ordering::Relaxed))
        };
        i64::from(threshold).max(live as i64 / 4).max(self.before / 2).max(FEW)
    }
}

/// Asks a thread to pause. Without memory it is not asked.
///
/// # Safety
///
/// This thread is attached, and `kind` is the type of requests.
unsafe fn ask(kind: *mut PyTypeObject, thread: usize, until: Instant) {
    // SAFETY: as the caller says. The object is this thread's alone until it is dropped. An object
    // with one reference that its owner has counted, and that another thread drops, goes into the
    // queue of the owner.
    unsafe {
        let object = PyType_GenericAlloc(kind, 0);
        if object.is_null() {
            return pyo3_ffi::PyErr_Clear();
        }
        let request = object.cast::<Request>();
        (*request).thread = thread;
        (*request).collection = RUNNING.load(Ordering::Relaxed);
        (&raw mut (*request).until).write(until);
        (*request).object.ob_tid = thread;
        Py_DECREF(object);
    }
}

/// The destructor of a request.
unsafe extern "C" fn destroy(object: *mut PyObject) {
    // SAFETY: the interpreter calls it with an object of the type, on an attached thread.
    let (thread, collection, until) = unsafe {
        let request = object.cast::<Request>();
        ((*request).thread, (*request).collection, (*request).until)
    };
    // SAFETY: nothing else refers to the object. The object has a reference to its type.
    unsafe {
        let kind = pyo3_ffi::Py_TYPE(object);
        PyObject_Free(object.cast());
        Py_DECREF(kind.cast());
        // A stop may have taken the request from the queue, and another thread destroys it.
        if (*PyThreadState_Get().cast::<c::_PyThreadStateImpl>()).brc.tid == thread {
            pause(collection, until);
        }
    }
}

/// Waits, detached, until the pause is over. See the [module's page](self).
///
/// # Safety
///
/// This thread is attached.
unsafe fn pause(collection: u64, until: Instant) {
    // Relaxed: it looks again.
    let is_over = |now: Instant| {
        now >= until || RUNNING.load(Ordering::Relaxed) != collection || !switch::runs()
    };
    let begun = Instant::now();
    if is_over(begun) {
        return;
    }
    // SAFETY: as the caller says. A thread's own state exists while it is detached.
    unsafe {
        let thread = PyEval_SaveThread();
        let state = thread.cast::<c::PyThreadState>();
        let mut progress = (PROGRESS.load(Ordering::Relaxed), begun);
        loop {
            std::thread::sleep(NAP);
            let now = Instant::now();
            let last = PROGRESS.load(Ordering::Relaxed);
            if last != progress.0 {
                progress = (last, now);
            }
            let breaker = c::ss_eval_breaker(state);
            if is_over(now)
                || now - progress.1 >= STALL
                || breaker & c::SS_MUST_ARRIVE as usize != 0
            {
                break;
            }
        }
        let long = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: figures.
        PAUSES[0].fetch_add(1, Ordering::Relaxed);
        PAUSES[1].fetch_add(long, Ordering::Relaxed);
        PAUSES[2].fetch_max(long, Ordering::Relaxed);
        PyEval_RestoreThread(thread);
    }
}

/// The pauses since the start: their number, their time in all, and the longest.
pub fn figures() -> (u64, Duration, Duration) {
    // Relaxed: figures.
    let [count, total, longest] = [0, 1, 2].map(|at: usize| PAUSES[at].load(Ordering::Relaxed));
    (count, Duration::from_nanos(total), Duration::from_nanos(longest))
}
