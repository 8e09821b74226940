//! How a type is made ready from a [`TypeSpec`]: its record gets a face, and an object.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::base::error::{Code, Fault};
use crate::base::fallible;
use crate::dynamic::builtin::Builtin;
use crate::dynamic::draft::{FACE, TypeSpec, draft, fault};
use crate::dynamic::metatype::METATYPE;
use crate::dynamic::object::{Obj, RawObject, as_raw, into_raw};
use crate::dynamic::record::{ClassFinalizer, Flags, RecordRef, Slots, Type, TypeRecord};
use crate::dynamic::supplied::Finalizing;
use crate::dynamic::{entries, instance};
use crate::{AnyGc, Mutator};

/// Makes a static type ready. `face` is the address by which the runtime identifies it; null: the
/// record itself.
///
/// # Errors
///
/// When the spec is inconsistent, or there is no memory. Nothing has changed then.
///
/// # Safety
///
/// Each handler fulfils its contract, for objects with the layout of the spec: rule *handlers*.
pub unsafe fn ready_static(
    spec: &TypeSpec,
    face: *mut c_void,
) -> Result<&'static TypeRecord, Fault> {
    let record = Box::leak(fallible::boxed(draft(spec, false)?.record)?);
    let face = if face.is_null() { (&raw mut *record).cast() } else { face };
    *record.face.get_mut() = face;
    Ok(record)
}

/// Makes a heap type. `init` receives the type's object and record, before any other code can use
/// them. The object is zero behind its first 24 bytes.
///
/// # Errors
///
/// When the spec is inconsistent, or there is no memory. Nothing has changed then.
///
/// # Safety
///
/// As for [`ready_static`].
pub unsafe fn ready_heap(
    m: &Mutator,
    spec: &TypeSpec,
    init: impl FnOnce(NonNull<RawObject>, &TypeRecord),
) -> Result<Type, Fault> {
    let size = spec.face_size.max(FACE);
    if size > instance::SIZE_LIMIT {
        return Err(fault(Code::BadSize, &spec.name, format_args!("a face of {size} bytes")));
    }
    let mut record = fallible::boxed(draft(spec, true)?.record)?;
    // It stays untracked until its tail is set: a traversal reads the record there.
    let object = instance::allocate_type(m, METATYPE.get(), size)
        .map_err(|why| fault(why.code, &record.name, format_args!("{}", why.text)))?;
    let address = as_raw(&object);
    record.object = address.as_ptr();
    *record.face.get_mut() = address.as_ptr().cast();
    if let Some(module) = &spec.module {
        *record.module.get_mut() = into_raw(module.clone()).as_ptr();
    }
    let made = Obj::of(&object, m).and_then(|object| Some((object, object.tail()?)));
    let (this, slot) = made.expect("an object of the metatype");
    // Before any other code can read the record from the object.
    let record = slot.set(record);
    init(address, record);
    this.put_in(m);
    let record = RecordRef(NonNull::from(record));
    Ok(Type { record, object: Some(object) })
}

/// Makes a class: a heap type for objects with attributes.
///
/// # Errors
///
/// As for [`ready_heap`].
pub(super) fn ready_class(
    m: &Mutator,
    name: String,
    bases: Vec<Type>,
    module: Option<AnyGc>,
    finalizer: Option<ClassFinalizer>,
) -> Result<Type, Fault> {
    let mut spec = TypeSpec::with_attributes(name);
    // A base with the flag `HAVE_GC` passes on its flags and handlers.
    if bases.first().is_some_and(|base| base.record().has_gc()) {
        spec.flags = Flags::BASE_TYPE;
        spec.slots = Slots::default();
    }
    if finalizer.is_some() {
        spec.slots.finalize = Some(entries::finalize::<Finalizing>);
    }
    (spec.bases, spec.module, spec.finalizer) = (bases, module, finalizer);
    // SAFETY: rule *handlers*: the handlers serve attributes. The type has both of its own, or
    // inherits both.
    unsafe { ready_heap(m, &spec, |_, _| {}) }
}

impl Builtin {
    /// Gives the built-in type a face, before it has instances or derived types.
    ///
    /// # Safety
    ///
    /// The functions in the type's slots can be called with the face.
    pub unsafe fn set_face(&self, face: *mut c_void) {
        // Relaxed: as in `TypeRecord::face`.
        self.get().face.store(face, Ordering::Relaxed);
    }
}
