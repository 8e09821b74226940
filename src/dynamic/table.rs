//! The built-in model's table of functions for dynamic objects.

use std::any::TypeId;
use std::ptr::NonNull;

use crate::During;
use crate::dynamic::builtin::make_builtins;
use crate::dynamic::dealloc::call_dealloc;
use crate::dynamic::handlers::{CLEARED, check_fields, guarded, traverse};
use crate::dynamic::object::{Obj, RawObject, TYPE_INDEX, raw};
use crate::object::header::Header;
use crate::object::type_info::{Ends, Object, Tracer, TypeInfo};
use crate::typed::extensions::DynamicTypes;
use crate::typed::mutator::mutator;

/// The table for the type index of dynamic objects.
static INFO: TypeInfo = TypeInfo {
    id: TypeId::of::<RawObject>,
    name,
    offset: 0,
    tracked: true,
    traverse_each,
    prefetch_each: None,
    clear,
    finalize: Some(finalize),
    has_finalizer: Some(has_finalizer),
    legacy: Some(legacy),
    drop: None,
    destroy: None,
    dealloc: Some(call_dealloc),
};

/// The functions that a heap of typed objects calls for dynamic objects.
pub(crate) const EXTENSION: DynamicTypes =
    DynamicTypes { info: &INFO, index: TYPE_INDEX, make_builtins, type_name, takes_part };

unsafe fn type_name(header: &Header) -> &str {
    // SAFETY: rule *typed*: the object keeps its type alive.
    unsafe { obj(NonNull::from(header)) }.record().name()
}

unsafe fn takes_part(header: NonNull<Header>) -> bool {
    // SAFETY: rule *typed*.
    unsafe { obj(header) }.is_gc()
}

/// The dynamic object with this header.
///
/// # Safety
///
/// Rule *typed*: a function of the table was called with it.
#[inline(always)]
unsafe fn obj<'a>(header: NonNull<Header>) -> Obj<'a> {
    // SAFETY: rules *typed* and *dynamic*: a living dynamic object.
    unsafe { Obj::new(header.cast()) }
}

unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
    tracer.each(objects, ends, |object, tracer| {
        // SAFETY: rules *typed* and *dynamic*: called for living dynamic objects.
        traverse(unsafe { obj(object.as_ptr().cast()) }, tracer);
    });
}

unsafe fn name(header: NonNull<Header>) -> &'static str {
    // SAFETY: rule *typed*.
    unsafe { obj(header) }.record().kept_name()
}

unsafe fn legacy(header: NonNull<Header>) -> bool {
    // SAFETY: rule *typed*.
    unsafe { obj(header) }.record().del.is_some()
}

unsafe fn has_finalizer(header: NonNull<Header>) -> bool {
    // SAFETY: rule *typed*.
    unsafe { obj(header) }.record().finalize.is_some()
}

unsafe fn clear(value: NonNull<u8>, m: *const ()) {
    // SAFETY: rule *typed*; `m` is a mutator.
    let (object, m) = unsafe { (obj(value.cast()), mutator(m)) };
    if object.record().clear.is_none() {
        return;
    }
    guarded(m, During::Clear, object, || raw(m).private().in_handler(|| object.run_clear()));
    if raw(m).model().is_checked()
        && let Err(fault) = check_fields(m, object, CLEARED)
    {
        raw(m).core().hooks.misuse(&fault);
    }
}

unsafe fn finalize(header: NonNull<Header>, m: *const ()) {
    // SAFETY: rule *typed*: the state was set before; `m` is a mutator.
    let (object, m) = unsafe { (obj(header), mutator(m)) };
    if object.record().finalize.is_none() {
        return;
    }
    guarded(m, During::Finalize, object, || {
        raw(m).private().in_handler(|| object.run(|record| record.finalize));
    });
}
