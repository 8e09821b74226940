//! Weak references as objects. A weak reference owns its callback, which may refer back to it. So
//! it is an object of the heap that visits its callback, and neither owns nor visits its target.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::base::shared::Shared;
use crate::base::sync::{AtomicBool, Ordering, RwLock};
use crate::dynamic::builtin::Builtin;
use crate::dynamic::calls::RustHandlers;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::draft::builtin;
use crate::dynamic::object::{
    Head, Obj, PARTS_SIZE, Part, RawObject, Visitor, as_raw, refuse_in_traversal,
};
use crate::dynamic::record::{Flags, TypeRecord};
use crate::dynamic::{handlers, instance};
use crate::object::header::Header;
use crate::object::weak::{WeakRecord, WeakWatcher};
use crate::report::error::{Code, Fault};
use crate::typed::mutator::mutator;
use crate::{AnyGc, During, Mutator, managed};

/// The type of weak references.
pub static WEAKREF: Builtin =
    Builtin::new(|| builtin::<WeakRefParts>("weakref", PARTS_SIZE, Flags::default()));

/// Calls a callback with itself and the weak reference.
pub type WeakCall = unsafe extern "C" fn(callback: *mut RawObject, weak_ref: *mut RawObject);

pub(super) struct WeakRefParts {
    record: Shared<WeakRecord>,
    /// Shared with the record's watcher, which sets it when the target is gone.
    cleared: Shared<AtomicBool>,
    /// Removed before it is called, so that it is called once, and when this object is cleared.
    callback: RwLock<Option<(AnyGc, WeakCall)>>,
}

// SAFETY: rule *dynamic*: `WEAKREF` gives the type this size, and no type is derived from it.
unsafe impl Part for WeakRefParts {
    const IN_TAIL: bool = false;

    fn is_in_instances_of(record: &TypeRecord) -> bool {
        record.is_subtype_of(WEAKREF.get())
    }
}

/// Makes a weak reference to a dynamic object, with an optional callback.
///
/// The callback is called once, when the target is gone, unless the weak reference has died before.
///
/// # Errors
///
/// When the target is not an object of the mutator's heap, when there is no memory, and in a
/// traverse handler.
///
/// # Safety
///
/// The function can be called with the callback.
pub unsafe fn new_weakref<'a>(
    m: &Mutator,
    target: impl Into<Head<'a>>,
    callback: Option<(AnyGc, WeakCall)>,
) -> Result<AnyGc, Fault> {
    const FUNCTION: &str = "new_weakref";
    refuse_in_traversal(FUNCTION)?;
    let raw = m.raw();
    let target = target.into().untyped();
    if !raw.owns(target.object()) {
        return Err(Fault::new(Code::WrongType, FUNCTION)
            .at(target.number())
            .because("a weak reference needs a target in the mutator's heap"));
    }
    let record = raw.model().weak.record(target.header())?;
    let cleared = Shared::new(AtomicBool::new(false))?;
    let called = callback.is_some();
    let parts = WeakRefParts {
        record: record.clone(),
        cleared: cleared.clone(),
        callback: RwLock::new(callback),
    };
    instance::allocate_with(m, WEAKREF.get(), parts, |object| {
        if called {
            let own = raw.model().weak.record(object.header())?;
            record.room_for_watcher()?.add(WeakWatcher { weak_ref: own, cleared, invoke });
        }
        Ok(())
    })
}

impl Obj<'_> {
    /// The target of a weak reference; `None`: it is gone.
    ///
    /// # Errors
    ///
    /// When the object is no weak reference; in a traverse handler.
    pub fn weakref_target(self, m: &Mutator) -> Result<Option<AnyGc>, Fault> {
        const FUNCTION: &str = "weakref_target";
        refuse_in_traversal(FUNCTION)?;
        let Some(parts) = self.part::<WeakRefParts>() else {
            let type_name = self.record().kept_name();
            return Err(Fault::new(Code::WrongType, FUNCTION).of_type(type_name));
        };
        // Acquire: pairs with the release in `take_watchers`.
        if parts.cleared.load(Ordering::Acquire) {
            return Ok(None);
        }
        // SAFETY: rule *counted*: `upgrade` has added the reference.
        Ok(managed::upgrade(m.raw(), &parts.record).map(|it| unsafe { AnyGc::from_header(it) }))
    }

    fn take_callback(self) -> Option<(AnyGc, WeakCall)> {
        self.part::<WeakRefParts>().and_then(|parts| parts.callback.write().take())
    }
}

/// Calls the callback, unless it was removed. The target is gone.
unsafe fn invoke(header: NonNull<Header>, m: *const ()) {
    // SAFETY: rules *typed* and *counted*: registered with a weak reference, which the caller keeps
    // alive; `m` is a mutator.
    let (object, m) = unsafe { (Obj::new(header.cast()), mutator(m)) };
    if let Some((callback, call)) = object.take_callback() {
        handlers::guarded(m, During::WeakCallback, object, || {
            let (callback, this) = (as_raw(&callback).as_ptr(), object.address().as_ptr());
            // SAFETY: rule *handlers*: the function was registered with this callback.
            m.raw().private().in_handler(|| unsafe { call(callback, this) });
        });
    }
}

impl RustHandlers for WeakRefParts {
    fn traverse(object: Obj<'_>, visitor: Visitor<'_>) -> c_int {
        let Some(parts) = object.part::<Self>() else { return 0 };
        // An attached thread holds the lock only for a moment, so in a stop it is free. Workers
        // share it, because two may visit one object at the same time. If it is locked all the
        // same, the callback is not visited, so that the reference counts as an external one.
        let Some(callback) = parts.callback.try_read() else { return 0 };
        callback.as_ref().map_or(0, |(callback, _)| visitor.visit_gc(callback))
    }

    fn clear(object: Obj<'_>) -> c_int {
        drop(object.take_callback());
        0
    }

    fn dealloc(dying: Dying<'_>) {
        dying.untrack();
        dying.clear_weak_references();
        drop(dying.take::<Self>());
        dying.run_free();
    }
}
