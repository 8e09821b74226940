//! From the collector to the handlers.
//!
//! A handler is a C function that a program supplies, so each call of one is unsafe. All calls but
//! those of weak callbacks are made here, because they are sound for one reason. The handler comes
//! from the record of the object's type, or from the parts of a module.
//!
//! The collector reaches the handlers through the built-in model's table of functions for dynamic
//! objects. The handlers of this library are written in safe Rust, because the functions at the end
//! of this file convert the pointers for them.

use std::any::TypeId;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::NonNull;

use crate::dynamic::builtin::{BASE, METATYPE};
use crate::dynamic::dealloc::{Dying, call_dealloc};
use crate::dynamic::handlers::{guarded, traverse};
use crate::dynamic::module::MODULE;
use crate::dynamic::object::{
    Destructor, FreeProc, Inquiry, Obj, RawObject, TYPE_INDEX, TraverseProc, VisitProc, Visitor,
    from_raw,
};
use crate::dynamic::record::TypeRecord;
use crate::dynamic::weakref::WEAKREF;
use crate::object::address::Object;
use crate::object::header::Header;
use crate::object::tracer::{Ends, Tracer};
use crate::object::type_info::TypeInfo;
use crate::report::error::Fault;
use crate::typed::heap::DynamicTypes;
use crate::typed::mutator::mutator;
use crate::{AnyGc, During, Mutator};

/// The table for the type index of dynamic objects.
static INFO: TypeInfo = TypeInfo {
    id: TypeId::of::<RawObject>,
    name,
    offset: 0,
    tracked: true,
    traverse_each,
    describe: Some(describe),
    label: Some(label),
    prefetch_each: None,
    clear,
    clears_last: Some(clears_last),
    finalize: Some(finalize),
    has_finalizer: Some(has_finalizer),
    legacy: Some(legacy),
    external: None,
    drop: None,
    destroy: None,
    dealloc: Some(call_dealloc),
};

/// The functions that a heap of typed objects calls for dynamic objects.
pub(crate) const EXTENSION: DynamicTypes =
    DynamicTypes { info: &INFO, index: TYPE_INDEX, make_builtins, type_name, takes_part };

fn type_name<'a>(object: &'a AnyGc, m: &'a Mutator) -> &'a str {
    Obj::of(object, m).map_or("", |object| object.record().name())
}

fn takes_part(object: &AnyGc, m: &Mutator) -> bool {
    Obj::of(object, m).is_some_and(Obj::is_gc)
}

unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
    tracer.each(objects, ends, |object, tracer| {
        // SAFETY: rules *typed* and *dynamic*: called for living dynamic objects.
        traverse(unsafe { Obj::new(object.as_ptr().cast()) }, tracer);
    });
}

/// Names the references that are attributes. Those of other fields are known to C alone.
unsafe fn describe(object: Object, tracer: &mut Tracer) {
    // SAFETY: rules *typed* and *dynamic*: called for living dynamic objects.
    let object = unsafe { Obj::new(object.as_ptr().cast()) };
    traverse(object, tracer);
    object.name_attributes(tracer);
}

/// The object of a type has the type's name.
unsafe fn label(object: Object, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // SAFETY: rules *typed* and *dynamic*: called for living dynamic objects.
    let object = unsafe { Obj::new(object.as_ptr().cast()) };
    object.describe().map_or(Ok(()), |record| f.write_str(record.name()))
}

unsafe fn name(header: NonNull<Header>) -> &'static str {
    // SAFETY: rule *typed*.
    unsafe { Obj::new(header.cast()) }.record().kept_name()
}

unsafe fn legacy(header: NonNull<Header>) -> bool {
    // SAFETY: rule *typed*.
    unsafe { Obj::new(header.cast()) }.record().del.is_some()
}

unsafe fn has_finalizer(header: NonNull<Header>) -> bool {
    // SAFETY: rule *typed*.
    unsafe { Obj::new(header.cast()) }.record().finalize.is_some()
}

unsafe fn clear(value: NonNull<u8>, m: *const ()) {
    // SAFETY: rule *typed*; `m` is a mutator.
    let (object, m) = unsafe { (Obj::new(value.cast()), mutator(m)) };
    if let Some(handler) = object.record().clear {
        guarded(m, During::Clear, object, || {
            m.raw().private().in_handler(|| object.ask(handler));
        });
    }
}

unsafe fn clears_last(header: NonNull<Header>) -> bool {
    // SAFETY: rule *typed*.
    unsafe { Obj::new(header.cast()) }.record().clears_last
}

unsafe fn finalize(header: NonNull<Header>, m: *const ()) {
    // SAFETY: rule *typed*: the state was set before; `m` is a mutator.
    let (object, m) = unsafe { (Obj::new(header.cast()), mutator(m)) };
    if let Some(handler) = object.record().finalize {
        guarded(m, During::Finalize, object, || {
            m.raw().private().in_handler(|| object.run(handler));
        });
    }
}

/// Makes the built-in types, so that their first use needs no memory.
///
/// # Errors
///
/// When there is no memory.
fn make_builtins() -> Result<(), Fault> {
    [&BASE, &METATYPE, &MODULE, &WEAKREF]
        .into_iter()
        .try_for_each(|builtin| builtin.try_get().map(drop))
}

impl Obj<'_> {
    /// Calls a traverse handler of the object's type, for the traversals of `handlers`, or for a
    /// handler that passes its visitor on.
    #[inline(always)]
    pub(super) fn visit_by(
        self,
        handler: TraverseProc,
        visit: VisitProc,
        arg: *mut c_void,
    ) -> c_int {
        // SAFETY: rule *handlers*: called for an object of the handler's type, with a visitor and
        // the visitor's argument.
        unsafe { handler(self.address().as_ptr(), visit, arg) }
    }

    /// Calls a finalize handler, a legacy finalizer or a dealloc handler of the object's type.
    #[inline(always)]
    pub(super) fn run(self, handler: Destructor) {
        // SAFETY: rule *handlers*: called for an object of the handler's type.
        unsafe { handler(self.address().as_ptr()) };
    }

    /// Calls a clear handler of the object's type, or the type's own test.
    #[inline(always)]
    pub(super) fn ask(self, handler: Inquiry) -> c_int {
        // SAFETY: rule *handlers*: called for an object of the handler's type.
        unsafe { handler(self.address().as_ptr()) }
    }

    /// Calls the function that frees the object, or the function for the end of its state.
    #[inline(always)]
    pub(super) fn free_by(self, handler: FreeProc) {
        // SAFETY: rule *handlers*: called at the end of an object of the handler's type.
        unsafe { handler(self.address().as_ptr().cast()) };
    }
}

impl Dying<'_> {
    /// Calls the function of the object's type that frees the memory.
    #[inline(always)]
    pub fn run_free(self) {
        let object = self.object();
        object.free_by(object.record().free);
    }
}

impl TypeRecord {
    /// A new instance from the allocator of the type; `None`: there is no memory.
    pub(super) fn run_alloc(&self) -> Option<AnyGc> {
        // SAFETY: rule *handlers*: the allocator of a ready type, called with the type's face,
        // returns a new reference.
        unsafe { NonNull::new((self.alloc)(self.face(), 0)).map(|made| from_raw(made)) }
    }
}

/// The handlers of a type that is made in Rust. The handlers themselves need no unsafe code,
/// although the collector calls each as a C function with pointers. The functions below are such
/// functions: each converts the pointers, and calls a handler of `H`.
pub(super) trait RustHandlers {
    /// Visits the references of a living object.
    fn traverse(_object: Obj<'_>, _visitor: Visitor<'_>) -> c_int {
        0
    }

    /// Removes the references of a living object.
    fn clear(_object: Obj<'_>) -> c_int {
        0
    }

    fn finalize(_m: &Mutator, _object: Obj<'_>) {}

    fn dealloc(_dying: Dying<'_>) {}
}

pub(super) unsafe extern "C" fn traverse_in_rust<H: RustHandlers>(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: rule *handlers*: called for a living object, with a visitor and its argument.
    let (object, visitor) = unsafe { (Obj::from_ptr(object), Visitor::new(visit, arg)) };
    object.map_or(0, |object| H::traverse(object, visitor))
}

pub(super) unsafe extern "C" fn clear_in_rust<H: RustHandlers>(object: *mut RawObject) -> c_int {
    // SAFETY: rule *handlers*: called for a living object.
    unsafe { Obj::from_ptr(object) }.map_or(0, H::clear)
}

pub(super) unsafe extern "C" fn finalize_in_rust<H: RustHandlers>(object: *mut RawObject) {
    // SAFETY: rule *handlers*: called for a living object.
    if let Some(object) = unsafe { Obj::from_ptr(object) } {
        Mutator::with_current(|m| H::finalize(m, object));
    }
}

pub(super) unsafe extern "C" fn dealloc_in_rust<H: RustHandlers>(object: *mut RawObject) {
    Mutator::with_current(|m| {
        // SAFETY: rules *handlers* and *zero*: called once, for a dying object.
        let dying = unsafe { Obj::from_ptr(object).map(|object| Dying::new(m, object)) };
        dying.map(H::dealloc);
    });
}
