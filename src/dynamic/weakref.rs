//! Weak references as objects: they lead to their target while it lives, own their callback, and visit it alone.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::During;
use crate::base::error::{Code, Fault};
use crate::base::fallible;
use crate::base::shared::Shared;
use crate::base::sync::{AtomicBool, Ordering, RwLock};
use crate::dynamic::builtin::WEAKREF;
use crate::dynamic::dealloc::clear_weak_references;
use crate::dynamic::object::{
    Destructor, RawObject, VisitProc, as_raw, from_raw, header, refuse_in_traversal, type_of,
};
use crate::dynamic::record::Slots;
use crate::dynamic::{handlers, instance, tracking};
use crate::managed;
use crate::object::header::Header;
use crate::object::weak::{WeakRecord, WeakWatcher};
use crate::typed::mutator::mutator;
use crate::{AnyGc, Mutator};

/// Calls a callback with itself and the weak reference.
pub type WeakCall = unsafe extern "C" fn(callback: *mut RawObject, weak_ref: *mut RawObject);

#[repr(C)]
struct WeakRef {
    base: RawObject,
    /// Owned; null before the reference is whole.
    parts: *mut Parts,
}

struct Parts {
    record: Shared<WeakRecord>,
    /// Shared with the record's watcher: set, this leads to the target no longer.
    cleared: Shared<AtomicBool>,
    /// Taken by whoever calls it, or clears this.
    callback: RwLock<Option<(AnyGc, WeakCall)>>,
}

pub(crate) const SIZE: usize = size_of::<WeakRef>();
pub(crate) const SLOTS: Slots = Slots {
    traverse: Some(traverse),
    clear: Some(clear),
    dealloc: Some(dealloc as Destructor),
    finalize: None,
    del: None,
    is_gc: None,
    alloc: None,
    free: None,
};

/// Makes a weak reference to a dynamic object, with a callback or without.
///
/// The callback is called once, when the target is gone, unless the weak reference is gone by then.
///
/// # Errors
///
/// When the target lies in no heap or another one, or there is no memory.
///
/// # Safety
///
/// `target` is a living dynamic object to which the caller has a reference; the function can be called with the callback.
pub unsafe fn new_weakref(
    m: &Mutator,
    target: NonNull<RawObject>,
    callback: Option<(AnyGc, WeakCall)>,
) -> Result<AnyGc, Fault> {
    const FUNCTION: &str = "new_weakref";
    refuse_in_traversal(FUNCTION)?;
    let raw = m.raw();
    if !raw.owns(managed::object(header(target))) {
        return Err(Fault::new(Code::WrongType, FUNCTION)
            .at(target.as_ptr() as usize)
            .because("an immortal object outside of the heap cannot be referred to weakly"));
    }
    // SAFETY: rule N: a built-in type, whose objects are of that size; nobody else knows the object.
    unsafe {
        let record = raw.model().weak.record(header(target).as_ref())?;
        let cleared = Shared::new(AtomicBool::new(false))?;
        let called = callback.is_some();
        let parts = Parts {
            record: record.clone(),
            cleared: cleared.clone(),
            callback: RwLock::new(callback),
        };
        let parts = fallible::boxed(parts)?;
        let object = instance::allocate(m, WEAKREF.get(), 0, 0)?;
        (*object.cast::<WeakRef>().as_ptr()).parts = Box::into_raw(parts);
        // Dropped where something is refused: with it go the parts.
        let made = from_raw(object);
        if called {
            let own = raw.model().weak.record(header(object).as_ref())?;
            record.watch(WeakWatcher { weak_ref: own, cleared, invoke })?;
        }
        raw.track(managed::object(header(object)));
        Ok(made)
    }
}

/// The target of a weak reference; `None`: gone.
///
/// # Errors
///
/// When the object is no weak reference; in a traverse handler.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn weakref_target(
    m: &Mutator,
    object: NonNull<RawObject>,
) -> Result<Option<AnyGc>, Fault> {
    const FUNCTION: &str = "weakref_target";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: as the caller says.
    unsafe {
        let Some(parts) = parts(object) else {
            return Err(Fault::new(Code::WrongType, FUNCTION).of_type(type_of(object).kept_name()));
        };
        // Acquire: pairs with the release in `take_watchers`.
        if parts.cleared.load(Ordering::Acquire) {
            return Ok(None);
        }
        Ok(managed::upgrade(m.raw(), &parts.record).map(|header| AnyGc::from_header(header)))
    }
}

/// # Safety
///
/// `object` is a living dynamic object; the result is borrowed from it.
unsafe fn parts<'a>(object: NonNull<RawObject>) -> Option<&'a Parts> {
    // SAFETY: as the caller says.
    unsafe {
        if !type_of(object).is_subtype_of(WEAKREF.get()) {
            return None;
        }
        (*object.cast::<WeakRef>().as_ptr()).parts.as_ref()
    }
}

/// The target is gone: calls the callback, once.
unsafe fn invoke(header: NonNull<Header>, m: *const ()) {
    let object = header.cast::<RawObject>();
    // SAFETY: rules Y and R: registered with a weak reference, which is held meanwhile; `m` is a mutator.
    unsafe {
        let m = mutator(m);
        let callback = parts(object).and_then(|parts| parts.callback.write().take());
        if let Some((callback, call)) = callback {
            handlers::guarded(m, During::WeakCallback, object, || {
                m.raw().private().in_handler(|| call(as_raw(&callback).as_ptr(), object.as_ptr()));
            });
        }
    }
}

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    // SAFETY: rule H: called for a living weak reference, with a visitor and its argument.
    unsafe {
        let Some(parts) = NonNull::new(object).and_then(|object| parts(object)) else { return 0 };
        // In a stop nobody changes it: attached threads do, for a moment. Markers share it: two may visit one object at the
        // same time. Anywhere else what it guards counts as outside.
        let Some(callback) = parts.callback.try_read() else { return 0 };
        callback.as_ref().map_or(0, |(callback, _)| visit(as_raw(callback).as_ptr(), arg))
    }
}

unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
    // SAFETY: rule H: called for a living weak reference.
    let callback = unsafe {
        NonNull::new(object)
            .and_then(|object| parts(object))
            .and_then(|parts| parts.callback.write().take())
    };
    drop(callback);
    0
}

unsafe extern "C" fn dealloc(object: *mut RawObject) {
    let Some(object) = NonNull::new(object) else { return };
    // SAFETY: rules H and Z: called once, for a dying weak reference.
    unsafe {
        Mutator::with_current(|m| {
            tracking::untrack_dying(m, object);
            clear_weak_references(m, object);
            let parts = std::mem::replace(
                &mut (*object.cast::<WeakRef>().as_ptr()).parts,
                std::ptr::null_mut(),
            );
            if !parts.is_null() {
                drop(Box::from_raw(parts));
            }
            (type_of(object).free)(object.as_ptr().cast());
        });
    }
}
