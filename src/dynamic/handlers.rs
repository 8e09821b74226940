//! Traversals of dynamic objects by their handlers.
//!
//! A traverse handler receives a C function as its visitor, and the tracer as an opaque argument.
//! Because it is code of the program, it may keep both and call the visitor when the tracer is
//! gone. So the visitor uses the argument only if it is the tracer that this thread handed out last
//! and its traversal has not ended.
//!
//! While a handler runs, its thread keeps the address of the object in `RUNNING`, so that a report
//! can name the object's type without dereferencing any other address. The tracer is accessed only
//! through the argument of the visitor.

use crate::base::outside;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::base::fallible::words;
use crate::base::sync::{Aside, const_thread_local};
use crate::dynamic::object::{Obj, RawObject, TraverseProc, target_fault};
use crate::dynamic::record::{Flags, TypeRecord};
use crate::heap::parts::*;
use crate::managed::{Managed, ManagedCore};
use crate::object::tracer::Tracer;
use crate::report::error::{Code, Fault};
use crate::report::hooks::CallGuards;
use crate::safepoint::{self, WorldStopped};
use crate::{During, Mutator};

const_thread_local! {
    /// The object of the traverse handler that this thread runs; null: it runs none.
    static RUNNING: Cell<*mut RawObject> = Cell::new(std::ptr::null_mut())
}

const_thread_local! {
    /// Whether a traverse handler of this thread has visited a managed dictionary since the last
    /// reset.
    static DICT_VISITED: Cell<bool> = Cell::new(false)
}

#[inline]
pub(super) fn traverse(object: Obj<'_>, tracer: &mut Tracer) {
    let record = object.record();
    let Some(handler) = record.traverse else { return };
    if tracer.hand_out() {
        begin(object, tracer);
    }
    if tracer.watchful || record.flags().has(Flags::SERIAL_TRAVERSE) {
        return call_specially(handler, object, tracer);
    }
    let result = call(handler, object, tracer);
    if result != 0 {
        stopped(tracer, record, result);
    }
}

/// Sets up a tracer that is handed out for the first time, or after another tracer, for a traversal
/// whose next object is this one.
#[cold]
fn begin(object: Obj<'_>, tracer: &mut Tracer) {
    let Some(core) = object.core() else { return };
    let model = &core.model;
    tracer.careful = (model.is_checked() && !tracer.takes_everything()) || tracer.seeks();
    tracer.watchful = model.is_checked() || model.slow_handler() != 0;
}

#[inline(always)]
fn call(handler: TraverseProc, object: Obj<'_>, tracer: &mut Tracer) -> c_int {
    let address = object.address().as_ptr();
    RUNNING.with(|word| word.set(address));
    // This call does not unwind: a panic that leaves an `extern "C"` function aborts the process.
    let result = object.visit_by(handler, visit, (&raw mut *tracer).cast());
    RUNNING.with(|word| word.set(std::ptr::null_mut()));
    result
}

/// [`call`] for a handler that is timed or checked, or that must not run in parallel with other
/// serial handlers. It is not inline, so that the common call needs no registers for this.
#[cold]
#[inline(never)]
fn call_specially(handler: TraverseProc, object: Obj<'_>, tracer: &mut Tracer) {
    let record = object.record();
    let serial = object.core().filter(|_| record.flags().has(Flags::SERIAL_TRAVERSE));
    let alone = serial.map(|core| core.model.serial.lock());
    // A handler starts no traversal, so it cannot need this lock.
    let _known = alone.as_ref().map(|_| Aside::all());
    let model = object.core().map(|core| &core.model);
    let begun = model.filter(|model| model.slow_handler() != 0).map(|_| Instant::now());
    let first = model.is_some_and(Managed::is_checked) && !record.tried.load(Relaxed);
    if first {
        DICT_VISITED.with(|word| word.set(false));
    }
    let result = call(handler, object, tracer);
    if let Some(begun) = begun {
        check_time(begun, object);
    }
    if result != 0 {
        stopped(tracer, record, result);
    } else if first && !tracer.seeks() {
        check_visits(object, tracer);
    }
}

/// Records a fault of a handler that does not visit the type or the dictionary, at the first
/// instance of the type that is traversed.
#[cold]
fn check_visits(object: Obj<'_>, tracer: &Tracer) {
    let record = object.record();
    let Some(core) = object.core() else { return };
    if record.tried.swap(true, Relaxed) {
        return;
    }
    let fault =
        |code| core.model.record_fault(Fault::new(code, "traverse").of_type(record.kept_name()));
    if record.is_heap_type() && !tracer.own_edges().contains(&(record.object as usize)) {
        fault(Code::MissingTypeVisit);
    }
    if record.flags().has(Flags::MANAGED_DICT) && !DICT_VISITED.with(Cell::get) {
        fault(Code::MissingDictVisit);
    }
}

#[cold]
fn check_time(begun: Instant, object: Obj<'_>) {
    let (took, core) = (begun.elapsed(), object.core());
    let slow = core.filter(|core| took.as_nanos() > u128::from(core.model.slow_handler()));
    if let Some(core) = slow {
        let text = words!("the traverse handler took {took:?}: does it wait for something?");
        core.model.record_fault(object.fault(Code::SlowHandler, "traverse").because(text));
    }
}

/// A handler has returned a result other than 0. This is correct if a seeking tracer has found a
/// sought object, because its visitor then answers 1. Otherwise the visitor has always answered 0,
/// so the result comes from the handler, and the collection is abandoned.
#[cold]
fn stopped(tracer: &Tracer, record: &TypeRecord, result: c_int) {
    if tracer.has_found() {
        return;
    }
    // Resumed, so that stderr gets no message, because the guard of the traversal passes it on.
    resume_unwind(Box::new(format!(
        "the traverse handler of '{}' returned {result}",
        record.name()
    )));
}

/// The visitor. In a collection it answers 0. For a [seeking](Tracer::seeking) tracer it answers 1
/// from the first sought object on.
unsafe extern "C" fn visit(target: *mut RawObject, arg: *mut c_void) -> c_int {
    let tracer = arg.cast::<Tracer>();
    // The tracer may be gone, because the end of a traversal withdraws it.
    if !Tracer::is_handed_out(tracer) {
        return stale(target);
    }
    // SAFETY: rule *pinned*: the tracer of this thread's current traversal.
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
    let checked = traversed_heap().filter(|core| core.model.is_checked());
    if let Some(code) = checked.and_then(|core| target_fault(core, target)) {
        return complain(code, target.as_ptr() as usize);
    }
    tracer.edge(target.as_ptr() as usize);
    c_int::from(tracer.seek(target.as_ptr() as usize))
}

/// Records a fault of the running handler, as [`record_fault`] does.
#[cold]
fn complain(code: Code, address: usize) -> c_int {
    let type_name = running().map_or("", |object| object.record().kept_name());
    if let Some(core) = traversed_heap() {
        core.model.record_fault(Fault::new(code, "traverse").of_type(type_name).at(address));
    }
    0
}

/// The heap of the traverse handler that this thread runs, if it runs one.
pub(crate) fn traversed_heap<'a>() -> Option<&'a ManagedCore> {
    running()?.core()
}

/// The object whose traverse handler this thread runs, if it runs one.
fn running<'a>() -> Option<Obj<'a>> {
    // SAFETY: rules *counted* and *dynamic*: the object is being traversed, and lives while its
    // handler runs.
    unsafe { Obj::from_ptr(RUNNING.with(Cell::get)) }
}

/// Records a fault of the traverse handler that runs on this thread. It is reported when the world
/// runs again, since no hook is called in a stop. A fault without a type gets the type of the
/// traversed object.
///
/// # Errors
///
/// The fault itself, if this thread runs no traverse handler.
pub fn record_fault(mut fault: Fault) -> Result<(), Fault> {
    let Some(object) = running() else { return Err(fault) };
    let Some(core) = object.core() else { return Err(fault) };
    if fault.type_name.is_empty() {
        fault.type_name = object.record().kept_name();
    }
    core.model.record_fault(fault);
    Ok(())
}

/// A visitor was called after its traversal had ended.
#[cold]
fn stale(target: *mut RawObject) -> c_int {
    let fault = Fault::new(Code::StaleVisitor, "visit").at(target as usize);
    if Mutator::with_current(|m| m.raw().core().hooks.misuse(&fault)).is_none() {
        outside::line(format_args!("standstill: {fault}"));
    }
    0
}

pub(super) fn record_dict_visit() {
    DICT_VISITED.with(|word| word.set(true));
}

/// Traverses one object, in a stop that is no collection's, and returns all visited addresses, in
/// any memory.
fn walk(_world: &WorldStopped<'_, impl Sized>, object: Obj<'_>) -> Result<Vec<usize>, Fault> {
    // The range of all addresses but 0, at which no object lies.
    let mut tracer = Tracer::new(1, usize::MAX);
    let guard = safepoint::traversing();
    let result = crate::base::outside::guarded(|| traverse(object, &mut tracer));
    drop(guard);
    match result {
        Ok(()) => Ok(tracer.edges().to_vec()),
        Err(payload) => {
            let type_name = object.record().kept_name();
            let text = crate::base::outside::panic_message(payload);
            Err(Fault::new(Code::HandlerError, "traverse").of_type(type_name).because(text))
        }
    }
}

impl Obj<'_> {
    /// Calls `f` with the address of each object that this object refers to, as often as its
    /// traverse handler visits it. The handler runs in a stop, and `f` after it: a safepoint of
    /// this thread, and of all others.
    ///
    /// # Errors
    ///
    /// When the handler returns a result other than 0, or panics. For an object of another heap.
    /// When the world cannot be stopped: in a destructor, finalizer, callback or traversal.
    pub fn referents(
        self,
        m: &mut Mutator,
        mut f: impl FnMut(NonNull<RawObject>),
    ) -> Result<(), Fault> {
        const FUNCTION: &str = "referents";
        if !m.raw().owns(self.object()) {
            return Err(self.fault(Code::ForeignPointer, FUNCTION));
        }
        let visited = {
            let world = m.raw().stop_here().map_err(|error| {
                let text = words!("the world cannot be stopped: {error}");
                self.fault(Code::NotAllowedHere, FUNCTION).because(text)
            })?;
            walk(world.stopped(), self)
        };
        SplitCountsOf::<Managed>::resumed(m.raw().model(), m.raw());
        for address in visited? {
            if let Some(target) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
                f(target);
            }
        }
        Ok(())
    }
}

/// Checks, for checked mode, that the fields of an object of the mutator's heap refer to objects.
///
/// The traverse handler needs a stop, because it reads the fields. The callers must not wait for
/// one, because they may hold locks and are at no safepoint. If another thread is attached, nothing
/// is checked here, because it may know the object already, and change it. Then the next collection
/// reports addresses without an object, because it looks at each address that the handler visits.
pub(super) fn check_fields(
    m: &Mutator,
    object: Obj<'_>,
    function: &'static str,
) -> Result<(), Fault> {
    let visited = {
        let Some(world) = m.raw().stop_alone() else { return Ok(()) };
        walk(&world, object)
    };
    let core = m.raw().core();
    core.model.report_faults(&core.hooks);
    for address in visited? {
        let target = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        if let Some(code) = target.and_then(|target| target_fault(core, target)) {
            let text = words!("a field refers to {address:#x}, where no object is");
            return Err(object.fault(code, function).because(text));
        }
    }
    Ok(())
}

/// Runs a handler of a living or dying object, between the heap's guards, if it has guards. An
/// error that the guards find is unraisable.
#[inline]
pub(super) fn guarded(m: &Mutator, during: During, object: Obj<'_>, f: impl FnOnce()) {
    match m.raw().core().hooks.guards() {
        None => f(),
        Some(&guards) => run_between(guards, m, during, object, f),
    }
}

/// [`guarded`] in a heap that has guards. Not inline, so that a call in a heap without them needs
/// no registers for this.
#[inline(never)]
fn run_between(guards: CallGuards, m: &Mutator, during: During, object: Obj<'_>, f: impl FnOnce()) {
    (guards.enter)();
    // A panic passes through, and the runtime's error indicator is restored.
    struct GuardedCall<'a>(&'a Mutator, During, Obj<'a>, CallGuards);
    impl Drop for GuardedCall<'_> {
        fn drop(&mut self) {
            if let Some(text) = (self.3.leave)() {
                let (type_name, address) = (self.2.record().kept_name(), self.2.number());
                self.0.raw().core().hooks.unraisable_at(self.1, type_name, address, text);
            }
        }
    }
    let _guarded = GuardedCall(m, during, object, guards);
    f();
}
