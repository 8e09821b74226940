//! The services of the `gc` module, for the heap to which the calling thread is attached.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void};

use standstill::dynamic;
use standstill::fallible;
use standstill::gc_module::{CallbackPhase, Services, Visit};
use standstill::words;
use standstill::{AnyGc, Code, Fault, Mutator};

use crate::call::{self, Given, export};
use crate::layout::PyObject;
use crate::{builtins, errors, objects, thread};

thread_local! {
    /// The number of visits to all objects that are running on this thread.
    static VISITING: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f` with exclusive use of the mutator, while the error indicator is set aside.
fn collecting(
    function: &'static str,
    f: impl FnOnce(&Services, &mut Mutator) -> Result<isize, Fault>,
) -> Result<isize, Fault> {
    if thread::is_collecting() {
        // In a finalizer, or in other code that a collection calls.
        return Ok(0);
    }
    if VISITING.get() != 0 {
        let text = "no collection runs during PyUnstable_GC_VisitObjects";
        return Err(Fault::new(Code::NotAllowedHere, function).because(text));
    }
    thread::exclusively(function, |m| {
        struct PutBack;
        impl Drop for PutBack {
            fn drop(&mut self) {
                let _ = errors::put_back();
            }
        }
        errors::set_aside();
        let _put_back = PutBack;
        let services = m.heap().services();
        f(&services, m)
    })?
}

fn found(report: Option<standstill::CollectionReport>) -> isize {
    report.map_or(0, |report| isize::try_from(report.found()).unwrap_or(isize::MAX))
}

/// The last collection of the heap of this thread, for `Py_Finalize`.
pub(crate) fn last_collection(function: &'static str) {
    let result = collecting(function, |services, m| Ok(found(services.final_collection(m))));
    if let Err(fault) = result {
        errors::misuse(fault);
    }
}

/// Runs a service that needs only an attached thread.
fn ask<R: Copy>(
    function: &'static str,
    failure: R,
    f: impl FnOnce(&Services, &Mutator) -> Result<R, Fault>,
) -> R {
    call::fallible(function, failure, |m| f(&m.heap().services(), m))
}

/// Runs a service that stops the world.
fn stop_and_ask<R: Copy>(
    function: &'static str,
    failure: R,
    f: impl FnOnce(&Services, &mut Mutator) -> Result<R, Fault>,
) -> R {
    call::outside(function, failure, || {
        let result = thread::exclusively(function, |m| {
            let services = m.heap().services();
            f(&services, m)
        });
        result.and_then(|result| result).unwrap_or_else(|mut fault| {
            fault.function = function;
            errors::set_fault(&fault);
            failure
        })
    })
}

fn switch(function: &'static str, f: impl FnOnce(&Services) -> bool) -> c_int {
    call::reported(function, 0, |m| Ok(c_int::from(f(&m.heap().services()))))
}

/// A tuple of the dynamic objects among these, because C cannot use the others.
fn tuple(m: &Mutator, mut objects: Vec<AnyGc>) -> Result<*mut PyObject, Fault> {
    objects.retain(dynamic::is_dynamic);
    builtins::tuple_of(m, objects)
}

/// Converts an array of objects from C, without the static ones.
unsafe fn list(m: &Mutator, objects: *const *mut PyObject, n: isize) -> Result<Vec<AnyGc>, Fault> {
    let n = usize::try_from(n).map_err(|_| {
        Fault::new(Code::BadSize, "argument").because(words!("the number of objects is {n}"))
    })?;
    if n != 0 {
        call::some(objects.cast_mut())?;
    }
    let mut all = Vec::new();
    for at in 0..n {
        // SAFETY: rule *argument*: the array has `n` elements.
        let object = unsafe { Given::new(*objects.add(at)) }.object(m)?;
        // A static object belongs to no heap, so that no tracked object counts as its referrer, and
        // it refers to no tracked object.
        if object.count().is_some() {
            fallible::push(&mut all, object.share())?;
        }
    }
    Ok(all)
}

/// `standstill_gc_stats` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_gc_stats {
    pub collections: u64,
    pub collected: u64,
    pub uncollectable: u64,
    pub candidates: u64,
    pub duration: f64,
    pub stopped: f64,
}

/// `standstill_gc_info` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_gc_info {
    pub generation: c_int,
    pub collected: u64,
    pub uncollectable: u64,
    pub candidates: u64,
    pub duration: f64,
    pub stopped: f64,
    pub external_bytes: u64,
}

type Progress = unsafe extern "C" fn(*const c_char, *const standstill_gc_info, *mut c_void);
type Line = unsafe extern "C" fn(*const c_char, *mut c_void);
type VisitAll = unsafe extern "C" fn(*mut PyObject, *mut c_void) -> c_int;

/// A function of C with its argument, which any thread may call.
#[derive(Clone, Copy)]
pub(crate) struct Bound<F> {
    pub(crate) function: F,
    pub(crate) arg: *mut c_void,
}

// SAFETY: rule *guarded*: the argument is only passed back to the function. C must make that safe.
unsafe impl<F: Send> Send for Bound<F> {}
// SAFETY: as above.
unsafe impl<F: Sync> Sync for Bound<F> {}

impl Bound<Line> {
    fn call(&self, text: &str) {
        let text = errors::Text::new(text);
        // SAFETY: rule *argument*: the program has set the function for this call.
        unsafe { (self.function)(text.as_ptr(), self.arg) };
    }
}

impl Bound<Progress> {
    fn call(&self, phase: CallbackPhase, info: &standstill_gc_info) {
        let phase = if phase == CallbackPhase::Start { c"start" } else { c"stop" };
        // SAFETY: as above.
        unsafe { (self.function)(phase.as_ptr(), info, self.arg) };
    }
}

/// Calls `callback` for every tracked object.
fn visit_all(function: &'static str, callback: &Bound<VisitAll>) -> Result<(), Fault> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            VISITING.set(VISITING.get() - 1);
        }
    }
    thread::exclusively(function, |m| {
        let services = m.heap().services();
        let visited = services.visit_objects(m, |object, m| {
            if !dynamic::is_dynamic(object) {
                return Visit::Continue;
            }
            VISITING.set(VISITING.get() + 1);
            let leave = Leave;
            let object = dynamic::as_raw(object).as_ptr();
            // SAFETY: rule *argument*: the program has passed the function for this call; the visit
            // holds the object.
            let answer =
                thread::lend_again(m, || unsafe { (callback.function)(object, callback.arg) });
            drop(leave);
            match answer {
                1 => Visit::Continue,
                0 => Visit::Stop,
                other => {
                    let text = words!("the callback returned {other}, which is neither 1 nor 0");
                    let fault = Fault::new(Code::BadCallbackResult, function).at(object as usize);
                    errors::misuse(fault.because(text));
                    Visit::Stop
                }
            }
        });
        visited.map(|_| ())
    })?
}

export! {
    /// Runs a full collection, unless collections are disabled.
    fn standstill_PyGC_Collect() -> isize {
        const FUNCTION: &str = "PyGC_Collect";
        call::outside(FUNCTION, 0, || {
            collecting(FUNCTION, |services, m| Ok(found(services.collect_if_enabled(m))))
                .unwrap_or_else(|fault| {
                    errors::misuse(fault);
                    0
                })
        })
    }

    /// Enables automatic collections.
    fn standstill_PyGC_Enable() -> c_int {
        switch("PyGC_Enable", Services::enable)
    }

    /// Disables automatic collections.
    fn standstill_PyGC_Disable() -> c_int {
        switch("PyGC_Disable", Services::disable)
    }

    /// Whether automatic collections are enabled.
    fn standstill_PyGC_IsEnabled() -> c_int {
        switch("PyGC_IsEnabled", Services::is_enabled)
    }

    /// Calls `callback` for every tracked object.
    fn standstill_PyUnstable_GC_VisitObjects(
        callback: Option<unsafe extern "C" fn(*mut PyObject, *mut c_void) -> c_int>,
        arg: *mut c_void,
    ) {
        const FUNCTION: &str = "PyUnstable_GC_VisitObjects";
        call::outside(FUNCTION, (), || {
            let Some(function) = callback else {
                return errors::misuse(Fault::new(Code::NullArgument, FUNCTION));
            };
            match visit_all(FUNCTION, &Bound { function, arg }) {
                Ok(()) => {}
                Err(fault) if fault.code == Code::Memory => {
                    errors::unraisable("visit of all objects", "", std::ptr::null(), &fault);
                }
                Err(mut fault) => {
                    fault.function = FUNCTION;
                    errors::misuse(fault);
                }
            }
        });
    }

    /// Collects a generation.
    fn standstill_gc_collect(generation: c_int) -> isize {
        const FUNCTION: &str = "standstill_gc_collect";
        call::outside(FUNCTION, -1, || {
            let result = if (0..=2).contains(&generation) {
                collecting(FUNCTION, |services, m| services.collect(m, generation).map(found))
            } else {
                let text = words!("there is no generation {generation}");
                Err(Fault::new(Code::BadGeneration, FUNCTION).because(text))
            };
            result.unwrap_or_else(|mut fault| {
                fault.function = FUNCTION;
                if matches!(fault.code, Code::NotAllowedHere) {
                    errors::misuse(fault);
                    return 0;
                }
                errors::set_fault(&fault);
                -1
            })
        })
    }

    /// Counts memory outside the heap.
    fn standstill_adjust_external_bytes(change: isize) -> c_int {
        call::fallible("standstill_adjust_external_bytes", -1, |m| {
            m.adjust_external_bytes(change);
            Ok(0)
        })
    }

    /// The same as `PyGC_Enable`.
    fn standstill_gc_enable() -> c_int {
        switch("standstill_gc_enable", Services::enable)
    }

    /// The same as `PyGC_Disable`.
    fn standstill_gc_disable() -> c_int {
        switch("standstill_gc_disable", Services::disable)
    }

    /// The same as `PyGC_IsEnabled`.
    fn standstill_gc_isenabled() -> c_int {
        switch("standstill_gc_isenabled", Services::is_enabled)
    }

    /// Sets the thresholds.
    fn standstill_gc_set_threshold(t0: c_int, t1: c_int, t2: c_int) -> c_int {
        ask("standstill_gc_set_threshold", -1, |services, _| {
            services.set_threshold(t0, Some(t1), Some(t2)).map(|()| 0)
        })
    }

    /// Writes the thresholds.
    #[given(out)]
    fn standstill_gc_get_threshold(out: *mut c_int) -> c_int {
        ask("standstill_gc_get_threshold", -1, |services, _| {
            out.write_three(services.threshold()).map(|()| 0)
        })
    }

    /// Writes the counters.
    #[given(out)]
    fn standstill_gc_get_count(out: *mut isize) -> c_int {
        stop_and_ask("standstill_gc_get_count", -1, |services, m| {
            let counts = services.counts(m)?.map(|count| count as isize);
            out.write_three(counts).map(|()| 0)
        })
    }

    /// Writes the totals of each generation.
    #[given(out)]
    fn standstill_gc_get_stats(out: *mut standstill_gc_stats) -> c_int {
        ask("standstill_gc_get_stats", -1, |services, _| {
            let stats = services.stats().map(|stats| standstill_gc_stats {
                collections: stats.collections as u64,
                collected: stats.collected as u64,
                uncollectable: stats.uncollectable as u64,
                candidates: stats.candidates as u64,
                duration: stats.duration.as_secs_f64(),
                stopped: stats.stopped.as_secs_f64(),
            });
            out.write_three(stats).map(|()| 0)
        })
    }

    /// Registers a callback, which runs before and after collections.
    fn standstill_gc_add_callback(
        callback: Option<
            unsafe extern "C" fn(*const c_char, *const standstill_gc_info, *mut c_void),
        >,
        arg: *mut c_void,
    ) -> c_int {
        const FUNCTION: &str = "standstill_gc_add_callback";
        ask(FUNCTION, -1, |services, _| {
            let function: Progress =
                callback.ok_or_else(|| Fault::new(Code::NullArgument, FUNCTION))?;
            let bound = Bound { function, arg };
            let id = services.try_add_callback(move |phase, info| {
                let info = standstill_gc_info {
                    generation: info.generation as c_int,
                    collected: info.collected as u64,
                    uncollectable: info.uncollectable as u64,
                    candidates: info.candidates as u64,
                    duration: info.duration.as_secs_f64(),
                    stopped: info.stopped.as_secs_f64(),
                    external_bytes: info.external_bytes as u64,
                };
                errors::set_aside();
                bound.call(phase, &info);
                if let Some(text) = errors::put_back() {
                    errors::unraisable("collection callback", "", std::ptr::null(), &text);
                }
            });
            Ok(c_int::try_from(id?).unwrap_or(c_int::MAX))
        })
    }

    /// Removes a callback.
    fn standstill_gc_remove_callback(id: c_int) -> c_int {
        ask("standstill_gc_remove_callback", -1, |services, _| {
            let removed = u64::try_from(id).is_ok_and(|id| services.remove_callback(id));
            Ok(if removed { 0 } else { -1 })
        })
    }

    /// Selects the debugging lines that collections write.
    fn standstill_gc_set_debug(flags: c_uint) -> c_int {
        ask("standstill_gc_set_debug", -1, |services, _| services.set_debug(flags).map(|()| 0))
    }

    /// The debugging lines that are selected, as bits.
    fn standstill_gc_get_debug() -> c_uint {
        ask("standstill_gc_get_debug", 0, |services, _| Ok(services.debug()))
    }

    /// Sets the function that receives the debugging lines.
    fn standstill_gc_set_debug_sink(
        sink: Option<unsafe extern "C" fn(*const c_char, *mut c_void)>,
        arg: *mut c_void,
    ) {
        call::reported("standstill_gc_set_debug_sink", (), |m| {
            let services = m.heap().services();
            match sink {
                Some(function) => {
                    let bound = Bound::<Line> { function, arg };
                    services.try_set_debug_sink(move |line| bound.call(line))?;
                }
                None => services.reset_debug_sink(),
            }
            Ok(())
        });
    }

    /// The number of objects in the garbage list.
    fn standstill_gc_garbage_size() -> isize {
        ask("standstill_gc_garbage_size", -1, |services, m| Ok(services.garbage_len(m) as isize))
    }

    /// An object of the garbage list.
    fn standstill_gc_garbage_get(index: isize) -> *mut PyObject {
        const FUNCTION: &str = "standstill_gc_garbage_get";
        ask(FUNCTION, std::ptr::null_mut(), |services, m| {
            let object =
                usize::try_from(index).ok().and_then(|index| services.garbage_get(m, index));
            let object = object.filter(dynamic::is_dynamic);
            object.map(|object| dynamic::into_raw(object).as_ptr()).ok_or_else(|| {
                Fault::new(Code::BadSize, FUNCTION)
                    .because(words!("there is no object {index} in the garbage list"))
            })
        })
    }

    /// Empties the garbage list.
    fn standstill_gc_garbage_clear() -> c_int {
        ask("standstill_gc_garbage_clear", -1, |services, m| {
            drop(services.garbage_take(m));
            Ok(0)
        })
    }

    /// Excludes all objects that are tracked now from collections.
    fn standstill_gc_freeze() -> c_int {
        stop_and_ask("standstill_gc_freeze", -1, |services, m| services.freeze(m).map(|_| 0))
    }

    /// Includes the excluded objects in collections again.
    fn standstill_gc_unfreeze() -> c_int {
        stop_and_ask("standstill_gc_unfreeze", -1, |services, m| services.unfreeze(m).map(|()| 0))
    }

    /// The number of excluded objects.
    fn standstill_gc_get_freeze_count() -> isize {
        stop_and_ask("standstill_gc_get_freeze_count", -1, |services, m| {
            services.freeze_count(m).map(|count| count as isize)
        })
    }

    /// All tracked objects.
    fn standstill_gc_get_objects(generation: c_int) -> *mut PyObject {
        stop_and_ask("standstill_gc_get_objects", std::ptr::null_mut(), |services, m| {
            let generation = (generation != -1).then_some(generation);
            let objects = services.objects(m, generation)?;
            tuple(m, objects)
        })
    }

    /// The tracked objects that refer to one of these.
    fn standstill_gc_get_referrers(objects: *const *mut PyObject, n: isize) -> *mut PyObject {
        stop_and_ask("standstill_gc_get_referrers", std::ptr::null_mut(), |services, m| {
            // SAFETY: rule *argument*.
            let targets = unsafe { list(m, objects, n) }?;
            let found = services.referrers(m, &targets)?;
            tuple(m, found)
        })
    }

    /// The objects to which these refer.
    fn standstill_gc_get_referents(objects: *const *mut PyObject, n: isize) -> *mut PyObject {
        stop_and_ask("standstill_gc_get_referents", std::ptr::null_mut(), |services, m| {
            // SAFETY: rule *argument*.
            let sources = unsafe { list(m, objects, n) }?;
            let found = services.referents(m, &sources)?;
            tuple(m, found)
        })
    }

    /// The same as `PyObject_GC_IsTracked`.
    fn standstill_gc_is_tracked(object: *mut PyObject) -> c_int {
        // SAFETY: rule *argument*.
        unsafe { objects::standstill_PyObject_GC_IsTracked(object) }
    }

    /// The same as `PyObject_GC_IsFinalized`.
    fn standstill_gc_is_finalized(object: *mut PyObject) -> c_int {
        // SAFETY: rule *argument*.
        unsafe { objects::standstill_PyObject_GC_IsFinalized(object) }
    }

    /// Sets the hook that is called when a program lists objects, referrers or referents.
    fn standstill_gc_set_audit_hook(
        hook: Option<unsafe extern "C" fn(*const c_char, *mut c_void)>,
        arg: *mut c_void,
    ) {
        call::reported("standstill_gc_set_audit_hook", (), |m| {
            let services = m.heap().services();
            match hook {
                Some(function) => {
                    let bound = Bound::<Line> { function, arg };
                    services.try_set_audit_hook(move |event| bound.call(event))?;
                }
                None => services.remove_audit_hook(),
            }
            Ok(())
        });
    }

    /// The number of objects in the heap.
    fn standstill_live_objects() -> c_longlong {
        call::fallible("standstill_live_objects", -1, |m| {
            Ok(m.heap().try_stats()?.live_objects as c_longlong)
        })
    }

    /// The size of the objects in the heap, in bytes.
    fn standstill_live_bytes() -> usize {
        call::fallible("standstill_live_bytes", 0, |m| Ok(m.heap().try_stats()?.live_bytes))
    }

    /// The bytes that objects have outside the heap.
    fn standstill_external_bytes() -> usize {
        call::fallible("standstill_external_bytes", 0, |m| Ok(m.heap().try_stats()?.external_bytes))
    }
}
