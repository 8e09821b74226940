//! The built-in model's table for dynamic objects.

use std::any::TypeId;
use std::ptr::NonNull;

use crate::During;
use crate::dynamic::builtin::make_builtins;
use crate::dynamic::dealloc::call_dealloc;
use crate::dynamic::handlers::{CLEARED, check_fields, guarded, traverse};
use crate::dynamic::object::{RawObject, TYPE_INDEX, raw, type_of};
use crate::dynamic::tracking::is_gc;
use crate::object::header::Header;
use crate::object::type_info::{Ends, Object, Tracer, TypeInfo};
use crate::typed::extensions::DynamicTypes;
use crate::typed::mutator::mutator;

/// How dynamic objects are handled: the table that their headers lead to.
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
    end: None,
    dealloc: Some(call_dealloc),
};

/// What a heap of typed objects calls for dynamic ones.
pub(crate) const EXTENSION: DynamicTypes =
    DynamicTypes { info: &INFO, index: TYPE_INDEX, make_builtins, type_name, takes_part };

unsafe fn type_name(header: &Header) -> &str {
    // SAFETY: rules Y and D: called for a living dynamic object, which keeps its type alive.
    unsafe { type_of(NonNull::from(header).cast()) }.name()
}

unsafe fn takes_part(header: NonNull<Header>) -> bool {
    // SAFETY: rule Y: called for a living dynamic object.
    unsafe { is_gc(header.cast()) }
}

unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
    // SAFETY: rules Y and D: called for living dynamic objects.
    tracer.each(objects, ends, |object, tracer| unsafe { traverse(object.as_ptr(), tracer) });
}

unsafe fn name(header: NonNull<Header>) -> &'static str {
    // SAFETY: rule Y: called for a living dynamic object.
    unsafe { type_of(header.cast()) }.kept_name()
}

unsafe fn legacy(header: NonNull<Header>) -> bool {
    // SAFETY: rule Y: called for a living dynamic object.
    unsafe { type_of(header.cast()) }.del.is_some()
}

unsafe fn has_finalizer(header: NonNull<Header>) -> bool {
    // SAFETY: rule Y: called for a living dynamic object.
    unsafe { type_of(header.cast()) }.finalize.is_some()
}

unsafe fn clear(value: NonNull<u8>, m: *const ()) {
    let object = value.cast::<RawObject>();
    // SAFETY: rules Y and H: a living dynamic object; `m` is a mutator.
    unsafe {
        let (record, m) = (type_of(object), mutator(m));
        let Some(handler) = record.clear else { return };
        guarded(m, During::Clear, object, || {
            raw(m).private().in_handler(|| handler(object.as_ptr()));
        });
        if raw(m).model().is_checked()
            && let Err(fault) = check_fields(m, object, CLEARED)
        {
            raw(m).core().hooks.misuse(&fault);
        }
    }
}

unsafe fn finalize(header: NonNull<Header>, m: *const ()) {
    // SAFETY: rules Y and H: a living dynamic object, whose state was set before; `m` is a mutator.
    unsafe {
        let (record, m) = (type_of(header.cast()), mutator(m));
        let Some(handler) = record.finalize else { return };
        guarded(m, During::Finalize, header.cast(), || {
            raw(m).private().in_handler(|| handler(header.as_ptr().cast()));
        });
    }
}
