//! Dynamic objects for the kit's check of the built-in model: three fields, and each combination of
//! a finalizer and a legacy finalizer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use standstill::dynamic::{
    Flags, Obj, RawObject, TypeRecord, TypeSpec, VisitProc, allocate_tracked, as_raw, decref,
    from_raw, into_raw, new_weakref, ready_static,
};
use standstill::{AnyGc, Mutator, OutOfMemory};

use crate::broken::guarded;
use crate::built_in_journal::{FIELDS, journal, object};
use crate::specimen::ObjectSpec;

#[repr(C)]
struct Fields {
    head: MaybeUninit<RawObject>,
    fields: [AtomicPtr<RawObject>; FIELDS],
}

thread_local! {
    /// The tickets of this thread's weak references, by address.
    static TICKETS: RefCell<HashMap<usize, u64>> = RefCell::default();
}

/// # Safety
///
/// A living object of a type of this file.
unsafe fn fields<'a>(object: *mut RawObject) -> &'a [AtomicPtr<RawObject>; FIELDS] {
    // SAFETY: as the caller says.
    unsafe { &(*object.cast::<Fields>()).fields }
}

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    // SAFETY: rule *handlers*: called for a living object of this type.
    for field in unsafe { fields(object) } {
        let target = field.load(Ordering::Relaxed);
        if !target.is_null() {
            // SAFETY: rule *handlers*: the visitor's own argument.
            let result = unsafe { visit(target, arg) };
            if result != 0 {
                return result;
            }
        }
    }
    0
}

unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
    // SAFETY: rule *handlers*: as in `traverse`.
    unsafe { fields(object) }.iter().for_each(|field| replace(field, null_mut()));
    0
}

/// Stores a reference, and drops the old one. Relaxed: the kit gives an object to one thread at a
/// time.
fn replace(field: &AtomicPtr<RawObject>, new: *mut RawObject) {
    if let Some(old) = NonNull::new(field.swap(new, Ordering::Relaxed)) {
        // SAFETY: rule *counted*: the field owned the reference.
        assert!(unsafe { decref(old) });
    }
}

unsafe extern "C" fn finalize(this: *mut RawObject) {
    let this = NonNull::new(this).expect("an object");
    // A panic on purpose must not leave this function.
    if let Ok(true) = guarded(|| journal().finalized(object(this))) {
        // SAFETY: rule *handlers*: a living object. The kit gets the reference.
        assert!(unsafe { Obj::new(this) }.incref());
    }
}

/// A legacy finalizer. It runs at count 0, and never in a collection.
unsafe extern "C" fn del(_: *mut RawObject) {}

unsafe extern "C" fn call(_: *mut RawObject, weak: *mut RawObject) {
    let ticket = TICKETS.with_borrow(|tickets| tickets[&weak.addr()]);
    let _ = guarded(|| journal().called_back(ticket));
}

/// The type of such objects.
fn record(spec: ObjectSpec) -> &'static TypeRecord {
    static RECORDS: [OnceLock<&'static TypeRecord>; 4] = [const { OnceLock::new() }; 4];
    RECORDS[usize::from(spec.finalizer) + 2 * usize::from(spec.legacy)].get_or_init(|| {
        let mut ty = TypeSpec::new("kit.Fields");
        ty.basic_size = size_of::<Fields>() as isize;
        ty.flags = Flags::HAVE_GC;
        ty.slots.traverse = Some(traverse);
        ty.slots.clear = Some(clear);
        ty.slots.finalize = spec.finalizer.then_some(finalize as _);
        ty.slots.del = spec.legacy.then_some(del as _);
        // SAFETY: rule *handlers*: they are this type's.
        unsafe { ready_static(&ty, null_mut()) }.expect("a type")
    })
}

pub(crate) fn alloc(m: &Mutator, spec: ObjectSpec) -> Result<AnyGc, OutOfMemory> {
    let made = allocate_tracked(m, record(spec), 0).map_err(|_| OutOfMemory::System)?;
    // SAFETY: rule *counted*: the new object's reference.
    Ok(unsafe { from_raw(made) })
}

pub(crate) fn set(from: &AnyGc, field: usize, target: Option<AnyGc>) {
    let new = target.map_or(null_mut(), |target| into_raw(target).as_ptr());
    // SAFETY: rule *dynamic*: the objects that are not typed are of this file.
    replace(&unsafe { fields(as_raw(from).as_ptr()) }[field], new);
}

pub(crate) fn downgrade(m: &Mutator, target: &AnyGc, ticket: Option<u64>) -> AnyGc {
    // The callback's own object, of which nothing is used.
    let callback = ticket.map(|_| {
        (alloc(m, ObjectSpec::default()).expect("memory"), call as unsafe extern "C" fn(_, _))
    });
    // SAFETY: rule *handlers*: a living object; `call` takes these arguments.
    let weak = unsafe { new_weakref(m, Obj::new(as_raw(target)), callback) }.expect("memory");
    if let Some(ticket) = ticket {
        TICKETS.with_borrow_mut(|tickets| tickets.insert(as_raw(&weak).as_ptr().addr(), ticket));
    }
    weak
}

pub(crate) fn upgrade(m: &Mutator, weak: &AnyGc) -> Option<AnyGc> {
    // SAFETY: rule *dynamic*: a living object.
    unsafe { Obj::new(as_raw(weak)) }.weakref_target(m).expect("a weak reference")
}
