//! The built-in model's table of functions for dynamic objects.

use std::any::TypeId;
use std::ptr::NonNull;

use crate::base::error::Fault;
use crate::dynamic::builtin::BASE;
use crate::dynamic::dealloc::call_dealloc;
use crate::dynamic::handlers::{guarded, traverse};
use crate::dynamic::metatype::METATYPE;
use crate::dynamic::module::MODULE;
use crate::dynamic::object::{Obj, RawObject, TYPE_INDEX, raw};
use crate::dynamic::weakref::WEAKREF;
use crate::object::header::Header;
use crate::object::type_info::{Ends, Object, Tracer, TypeInfo};
use crate::typed::extensions::DynamicTypes;
use crate::typed::mutator::mutator;
use crate::{AnyGc, During, Mutator};

/// The table for the type index of dynamic objects.
static INFO: TypeInfo = TypeInfo {
    id: TypeId::of::<RawObject>,
    name,
    offset: 0,
    tracked: true,
    traverse_each,
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
    if object.record().clear.is_none() {
        return;
    }
    guarded(m, During::Clear, object, || raw(m).private().in_handler(|| object.run_clear()));
}

unsafe fn clears_last(header: NonNull<Header>) -> bool {
    // SAFETY: rule *typed*.
    unsafe { Obj::new(header.cast()) }.record().clears_last
}

unsafe fn finalize(header: NonNull<Header>, m: *const ()) {
    // SAFETY: rule *typed*: the state was set before; `m` is a mutator.
    let (object, m) = unsafe { (Obj::new(header.cast()), mutator(m)) };
    if object.record().finalize.is_none() {
        return;
    }
    guarded(m, During::Finalize, object, || {
        raw(m).private().in_handler(|| object.run_finalize());
    });
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
