//! How the collector calls handlers: the table of the built-in model for dynamic objects, the visitor, and what is looked at
//! around a call.
//!
//! A traverse handler gets a C function as its visitor and the tracer as an opaque argument. What comes back is only
//! believed if it is the tracer that this thread handed out last, and the traversal has not ended.
//!
//! The thread keeps the object whose handler it runs in [`RUNNING`], from the call of the handler to its return. Reports take the
//! type from there: no address is asked what lies at it, and the tracer is reached through the visitor's argument alone.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::time::Instant;

use crate::During;
use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::base::event;
use crate::base::hooks::CallGuards;
use crate::base::sync::Aside;
use crate::base::sync::const_thread_local;
use crate::base::text::words;
use crate::dynamic::attributes;
use crate::dynamic::object::{
    RawObject, TraverseProc, VisitProc, count, is_static_at, raw, type_of,
};
use crate::dynamic::record::{Flags, TypeRecord};
use crate::managed::ManagedCore;
use crate::memory::space::Space;
use crate::object::state;
use crate::object::type_info::Tracer;
use crate::safepoint;

const_thread_local! {
    /// The heap that the tracer handed out last is of.
    static HEAP: Cell<*const ManagedCore> = Cell::new(std::ptr::null())
}

const_thread_local! {
    /// The object whose traverse handler this thread runs, in `HEAP`; null: it runs none.
    static RUNNING: Cell<*mut RawObject> = Cell::new(std::ptr::null_mut())
}

const_thread_local! {
    /// Whether a traverse handler of this thread has visited a managed dictionary since this was last reset.
    static DICT_VISITED: Cell<bool> = Cell::new(false)
}

/// The core of the heap that a living object lies in: one that is being traversed. One that is looked at by itself is looked up by
/// whoever does so.
fn core_of<'a>(object: NonNull<RawObject>) -> &'a ManagedCore {
    // SAFETY: rule R: the callers have a living object of a heap, and are done before it dies.
    unsafe { &*Space::heap_of(object.as_ptr() as usize).cast::<ManagedCore>() }
}

#[inline]
pub(super) unsafe fn traverse(value: NonNull<u8>, tracer: &mut Tracer) {
    let object = value.cast::<RawObject>();
    // SAFETY: rules Y and D: called for a living dynamic object.
    let record = unsafe { type_of(object) };
    let Some(handler) = record.traverse else { return };
    if tracer.hand_out() {
        begin(object, tracer);
    }
    if tracer.timing || record.flags().has(Flags::SERIAL_TRAVERSE) {
        // SAFETY: rule H.
        return unsafe { call_specially(handler, record, object, tracer) };
    }
    // SAFETY: rule H.
    let result = unsafe { call(handler, object, tracer) };
    if result != 0 {
        stopped(tracer, record, result);
    }
}

/// A tracer was handed out for the first time, or after another one, with this object.
#[cold]
fn begin(object: NonNull<RawObject>, tracer: &mut Tracer) {
    let core = core_of(object);
    HEAP.with(|word| word.set(core));
    let model = &core.model;
    tracer.careful = (model.is_checked() && !tracer.takes_everything()) || tracer.seeks();
    tracer.timing = model.slow_handler() != 0;
}

#[inline(always)]
unsafe fn call(handler: TraverseProc, object: NonNull<RawObject>, tracer: &mut Tracer) -> c_int {
    RUNNING.with(|word| word.set(object.as_ptr()));
    // SAFETY: rule H; the visitor belongs to its argument. What unwinds out of an `extern "C"` function ends the process, so this
    // one returns.
    let result = unsafe { handler(object.as_ptr(), visit, (&raw mut *tracer).cast()) };
    RUNNING.with(|word| word.set(std::ptr::null_mut()));
    result
}

/// [`call`] for a handler whose time is taken, or that no other such handler of the heap may run beside. Not inline, so that the
/// common call needs no registers for this.
#[cold]
#[inline(never)]
unsafe fn call_specially(
    handler: TraverseProc,
    record: &TypeRecord,
    object: NonNull<RawObject>,
    tracer: &mut Tracer,
) {
    let alone =
        record.flags().has(Flags::SERIAL_TRAVERSE).then(|| core_of(object).model.serial.lock());
    // What the handler reaches traverses nothing, so it cannot want this lock.
    let _known = alone.as_ref().map(|_| Aside::all());
    let begun = if tracer.timing { Some(Instant::now()) } else { None };
    // SAFETY: rule H.
    let result = unsafe { call(handler, object, tracer) };
    if let Some(begun) = begun {
        look_at_time(begun, record, object);
    }
    if result != 0 {
        stopped(tracer, record, result);
    }
}

/// Notes a handler that took too long.
#[cold]
fn look_at_time(begun: Instant, record: &TypeRecord, object: NonNull<RawObject>) {
    let (took, model) = (begun.elapsed(), &heap().model);
    if took.as_nanos() > u128::from(model.slow_handler()) {
        let text = words!("the traverse handler took {took:?}: does it wait for something?");
        let fault = Fault::new(Code::SlowHandler, "traverse").of_type(record.kept_name());
        model.record_fault(fault.at(object.as_ptr() as usize).because(text));
    }
}

/// A handler has returned something else than 0. A seeking tracer answers 1 once it has found something, and a correct handler
/// passes that on. Otherwise the visitor has answered 0 each time, the result is the handler's own, and the collection is abandoned.
#[cold]
fn stopped(tracer: &Tracer, record: &TypeRecord, result: c_int) {
    if tracer.has_found() {
        return;
    }
    // Not a panic with its message on stderr: whoever guards the traversal tells the hook.
    resume_unwind(Box::new(format!(
        "the traverse handler of '{}' returned {result}",
        record.name()
    )));
}

/// The visitor. In a collection it answers 0. For a [seeking](Tracer::seeking) tracer it answers 1 from the first sought object
/// on, and ignores each later visit of that traversal.
unsafe extern "C" fn visit(target: *mut RawObject, arg: *mut c_void) -> c_int {
    let tracer = arg.cast::<Tracer>();
    // A tracer that is gone is not handed out any more.
    if !Tracer::is_handed_out(tracer) {
        return stale(target);
    }
    // SAFETY: rule V: the tracer that this thread's traversal was given, which is going on.
    let tracer = unsafe { &mut *tracer };
    let Some(target) = NonNull::new(target) else {
        return complain(Code::NullVisit, 0);
    };
    if tracer.careful {
        return visit_with_care(tracer, target);
    }
    tracer.edge(target.as_ptr() as usize);
    0
}

/// The visitor's slow path: see [`Tracer::careful`].
#[cold]
fn visit_with_care(tracer: &mut Tracer, target: NonNull<RawObject>) -> c_int {
    if tracer.has_found() {
        return 1;
    }
    if heap().model.is_checked()
        && let Some(code) = doubt(heap(), target)
    {
        return complain(code, target.as_ptr() as usize);
    }
    tracer.edge(target.as_ptr() as usize);
    c_int::from(tracer.seek(target.as_ptr() as usize))
}

/// What is wrong with an address that a handler visits; `None`: a living object is there, a static one, or another heap.
fn doubt(core: &ManagedCore, target: NonNull<RawObject>) -> Option<Code> {
    let address = target.as_ptr() as usize;
    if !core.space.contains(address) {
        let known = crate::memory::space::is_in_any_heap(address) || is_static_at(target);
        return (!known).then_some(Code::ForeignPointer);
    }
    // SAFETY: rule G: objects can start there, so the page was handed out.
    let lives =
        core.space.starts_at(address) && unsafe { core.state(address) }.get() & state::LIVE != 0;
    (!lives).then_some(Code::FreedPointer)
}

/// What is wrong with an address that is visited `times` times after an object was cleared: there may be an object yet because the
/// running collection holds it, and nobody else. (Of one that is buried in pieces it is not known what is still held.)
fn doubt_cleared(core: &ManagedCore, target: NonNull<RawObject>, times: usize) -> Option<Code> {
    let address = target.as_ptr() as usize;
    doubt(core, target).or_else(|| {
        if !core.space.contains(address) {
            return None;
        }
        // SAFETY: rules G and D: no doubt, and in the heap: a living object.
        unsafe {
            let held = core.state(address).get() & state::UNREACHABLE != 0;
            let count = count(target)?;
            let hold = i64::from(!core.collector_lock.is_reclaiming());
            (held && count < hold + times as i64).then_some(Code::FreedPointer)
        }
    })
}

/// Notes a mistake of the handler that is running, to be told when the world runs again.
#[cold]
fn complain(code: Code, address: usize) -> c_int {
    let type_name = running().map_or("", TypeRecord::kept_name);
    heap().model.record_fault(Fault::new(code, "traverse").of_type(type_name).at(address));
    0
}

/// The heap of the traversal that this thread is in.
fn heap<'a>() -> &'a ManagedCore {
    // SAFETY: rule V: the callers were handed a tracer, and this was set with it, to the heap that is being traversed.
    unsafe { &*HEAP.with(Cell::get) }
}

/// The heap of the traverse handler that this thread is running, if it is running one.
pub(crate) fn traversed_heap<'a>() -> Option<&'a ManagedCore> {
    (!RUNNING.with(Cell::get).is_null()).then(heap)
}

/// The type of the object whose traverse handler this thread runs, if it runs one.
fn running<'a>() -> Option<&'a TypeRecord> {
    // SAFETY: rules R and D: a dynamic object that is being traversed, and lives as long as its handler runs.
    NonNull::new(RUNNING.with(Cell::get)).map(|object| unsafe { type_of(object) })
}

/// Notes a mistake that the traverse handler running on this thread makes: it is told when the world runs again, since no hook is
/// called in a stop. The fault comes back if this thread runs no handler. One without a type is given that of the object traversed.
///
/// # Errors
///
/// See above.
pub fn note(mut fault: Fault) -> Result<(), Fault> {
    let Some(record) = running() else { return Err(fault) };
    if fault.type_name.is_empty() {
        fault.type_name = record.kept_name();
    }
    heap().model.record_fault(fault);
    Ok(())
}

/// A visitor that was kept, and called when its traversal was over.
#[cold]
fn stale(target: *mut RawObject) -> c_int {
    let fault = Fault::new(Code::StaleVisitor, "visit").at(target as usize);
    if Mutator::with_current(|m| raw(m).core().hooks.misuse(&fault)).is_none() {
        event::line(format_args!("standstill: {fault}"));
    }
    0
}

/// A managed dictionary was visited.
pub(crate) fn note_dict_visit() {
    DICT_VISITED.with(|word| word.set(true));
}

/// Traverses one object outside of a collection, and returns what was visited, wherever it lies.
///
/// The guard of traversals is on: the handler may do what it may in a stop.
unsafe fn walk(m: &Mutator, object: NonNull<RawObject>) -> Result<Vec<usize>, Fault> {
    // From 1 on: nothing lies at 0.
    let mut tracer = Tracer::new(1, usize::MAX);
    let guard = safepoint::traversing();
    // SAFETY: as for `referents`.
    let result = crate::base::event::guarded(|| unsafe { traverse(object.cast(), &mut tracer) });
    drop(guard);
    raw(m).model().report_faults(&raw(m).core().hooks);
    match result {
        Ok(()) => Ok(tracer.edges().to_vec()),
        Err(payload) => {
            // SAFETY: as above.
            let type_name = unsafe { type_of(object) }.kept_name();
            let text = crate::base::event::panic_message(payload);
            Err(Fault::new(Code::HandlerError, "traverse").of_type(type_name).because(text))
        }
    }
}

/// Calls `f` with each object that one object refers to, as often as its traverse handler visits it.
///
/// # Errors
///
/// When the handler refuses, or panics.
///
/// # Safety
///
/// `object` is a living dynamic object of the mutator's heap, and nobody changes it meanwhile.
pub unsafe fn referents(
    m: &Mutator,
    object: NonNull<RawObject>,
    mut f: impl FnMut(NonNull<RawObject>),
) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    for address in unsafe { walk(m, object) }? {
        if let Some(target) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
            f(target);
        }
    }
    Ok(())
}

/// What [`check_fields`] is told after a clear handler.
pub(super) const CLEARED: &str = "clear";

/// Checked mode, before an object is tracked: its fields must lead to objects. The first instance of a type shows whether the
/// handler visits what it has to.
///
/// # Safety
///
/// As for [`referents`].
pub(crate) unsafe fn check_fields(
    m: &Mutator,
    object: NonNull<RawObject>,
    function: &'static str,
) -> Result<(), Fault> {
    use std::sync::atomic::Ordering::Relaxed;
    // SAFETY: as the caller says.
    let record = unsafe { type_of(object) };
    DICT_VISITED.with(|word| word.set(false));
    // SAFETY: as the caller says.
    let visited = unsafe { walk(m, object) }?;
    let core = raw(m).core();
    for &address in &visited {
        let target = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        let code = target.and_then(|target| match function {
            CLEARED => doubt_cleared(
                core,
                target,
                visited.iter().filter(|&&visited| visited == address).count(),
            ),
            _ => doubt(core, target),
        });
        if let Some(code) = code {
            return Err(Fault::new(code, function)
                .of_type(record.kept_name())
                .at(object.as_ptr() as usize)
                .because(words!("a field leads to {address:#x}, where no object is")));
        }
    }
    if !record.tried.swap(true, Relaxed) {
        let report =
            |code| core.hooks.misuse(&Fault::new(code, function).of_type(record.kept_name()));
        if record.is_heap_type() && !visited.contains(&(record.object as usize)) {
            report(Code::MissingTypeVisit);
        }
        if record.flags().has(Flags::MANAGED_DICT) && !DICT_VISITED.with(Cell::get) {
            report(Code::MissingDictVisit);
        }
    }
    Ok(())
}

/// Runs a handler whose failure no caller can be told of.
///
/// # Safety
///
/// `object` is a living or dying dynamic object, and its memory is its own until `f` has returned.
#[inline]
pub(crate) unsafe fn guarded(
    m: &Mutator,
    during: During,
    object: NonNull<RawObject>,
    f: impl FnOnce(),
) {
    match raw(m).core().hooks.guards.get() {
        None => f(),
        // SAFETY: as the caller says.
        Some(&guards) => unsafe { run_between(guards, m, during, object, f) },
    }
}

/// [`guarded`] in a heap that has guards. Not inline, so that a call in a heap without them needs no registers for this.
#[inline(never)]
unsafe fn run_between(
    guards: CallGuards,
    m: &Mutator,
    during: During,
    object: NonNull<RawObject>,
    f: impl FnOnce(),
) {
    (guards.enter)();
    // Not caught here: a panic passes through, with the indicator as it was.
    struct Leave<'a>(&'a Mutator, During, NonNull<RawObject>, CallGuards);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            if let Some(text) = (self.3.leave)() {
                // SAFETY: rule D: the object is living or dying, as the caller of `guarded` says.
                let type_name = unsafe { type_of(self.2) }.kept_name();
                let address = self.2.as_ptr() as usize;
                raw(self.0).core().hooks.unraisable_at(self.1, type_name, address, text);
            }
        }
    }
    let _leave = Leave(m, during, object, guards);
    f();
}

/// The traverse handler of a heap type that brings none, under a static base: visits the type, and then what the base's
/// instances have. Types derived from this one inherit it as it is, so that the type is visited once.
pub(crate) unsafe extern "C" fn traverse_inherited(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    let Some(object) = NonNull::new(object) else { return 0 };
    // SAFETY: rule H: called for a living object, with a visitor and its argument.
    unsafe {
        let record = type_of(object);
        if record.is_heap_type() {
            let result = visit(record.object, arg);
            if result != 0 {
                return result;
            }
        }
        record.static_traverse.map_or(0, |handler| handler(object.as_ptr(), visit, arg))
    }
}

/// The traverse handler of types with attributes alone.
pub(crate) unsafe extern "C" fn traverse_attributes(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    let Some(object) = NonNull::new(object) else { return 0 };
    // SAFETY: rule H: called for a living object, with a visitor and its argument.
    unsafe {
        let type_object = type_of(object).object;
        if !type_object.is_null() {
            let result = visit(type_object, arg);
            if result != 0 {
                return result;
            }
        }
        attributes::visit_managed_dict(object, visit, arg)
    }
}

/// The clear handler of types with attributes alone.
pub(crate) unsafe extern "C" fn clear_attributes(object: *mut RawObject) -> c_int {
    if let Some(object) = NonNull::new(object) {
        // SAFETY: rule H: called for a living object.
        unsafe { attributes::clear_managed_dict(object) };
    }
    0
}
