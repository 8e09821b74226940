//! A drafted record is no type yet, because a runtime has no face for it, and instances cannot own
//! a reference to it. This file completes the record of a [`TypeSpec`] or a [`Class`]: it gets a
//! face, and the record of a heap type gets an object.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::base::fallible;
use crate::base::fallible::words;
use crate::dynamic::builtin::{Builtin, Finalizing, METATYPE};
use crate::dynamic::calls::finalize_in_rust;
use crate::dynamic::draft::{FACE, TypeSpec, draft, fault};
use crate::dynamic::instance;
use crate::dynamic::module::MODULE;
use crate::dynamic::object::{AllocProc, Obj, RawObject, as_raw, into_raw};
use crate::dynamic::record::{ClassFinalizer, Flags, RecordRef, Slots, Type, TypeRecord};
use crate::report::error::{Code, Fault};
use crate::{AnyGc, Mutator};

/// A description of a class: a heap type for objects with attributes.
///
/// ```
/// use standstill::Heap;
/// use standstill::dynamic::Class;
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let node = Class::new("example.Node").make(&m)?;
/// let (a, b) = (node.instantiate(&m)?, node.instantiate(&m)?);
/// a.set_attribute(&m, "next", Some(b.clone()))?;
/// b.set_attribute(&m, "next", Some(a.clone()))?;
/// assert!(a.attribute(&m, "next")? == b);
/// drop((a, b));
/// assert_eq!(m.collect().collected, 2);
/// # Ok::<(), standstill::Fault>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a description makes no class before `make` is called"]
pub struct Class {
    name: String,
    bases: Vec<Type>,
    finalizer: Option<ClassFinalizer>,
    module: Option<AnyGc>,
}

impl Class {
    /// A class with this name, customarily `module.name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), bases: Vec::new(), finalizer: None, module: None }
    }

    /// With another base, after the bases so far, of which the first is the primary base.
    pub fn base(mut self, base: &Type) -> Self {
        self.bases.push(base.clone());
        self
    }

    /// With a finalizer.
    pub fn finalizer(mut self, finalizer: ClassFinalizer) -> Self {
        self.finalizer = Some(finalizer);
        self
    }

    /// With a module, to which the class belongs.
    pub fn module(mut self, module: &AnyGc) -> Self {
        self.module = Some(module.clone());
        self
    }

    /// Makes the class: an object of the mutator's heap.
    ///
    /// # Errors
    ///
    /// When the bases do not fit together, `module` is no module, or there is no memory.
    pub fn make(self, m: &Mutator) -> Result<Type, Fault> {
        let Self { name, bases, finalizer, module } = self;
        let is_module = |object| {
            Obj::of(object, m).is_some_and(|object| object.record().is_subtype_of(MODULE.get()))
        };
        if module.as_ref().is_some_and(|module| !is_module(module)) {
            let text = words!("the module of class '{name}' is an object that is no module");
            return Err(Fault::new(Code::WrongType, "make").because(text));
        }
        let mut spec = TypeSpec::with_attributes(name);
        // A base with the flag `HAVE_GC` passes on its flags and handlers.
        if bases.first().is_some_and(|base| base.record().has_gc()) {
            spec.flags = Flags::BASE_TYPE;
            spec.slots = Slots::default();
        }
        if finalizer.is_some() {
            spec.slots.finalize = Some(finalize_in_rust::<Finalizing>);
        }
        (spec.bases, spec.module, spec.finalizer) = (bases, module, finalizer);
        // SAFETY: rule *handlers*: the handlers serve attributes. The type has both of its own, or
        // inherits both.
        unsafe { ready_heap(m, &spec, |_, _| {}) }
    }
}

impl Type {
    /// A new instance from the type's own allocator: tracked, with null fields and no attributes.
    ///
    /// # Errors
    ///
    /// When the type belongs to another heap, or is the type of types, or there is no memory.
    pub fn instantiate(&self, m: &Mutator) -> Result<AnyGc, Fault> {
        const FUNCTION: &str = "instantiate";
        if let Some(object) = self.object() {
            check_heap(object, m, FUNCTION)?;
        }
        let record = self.record();
        let fault = |code| Fault::new(code, FUNCTION).of_type(record.kept_name());
        if std::ptr::eq(record, METATYPE.get()) {
            let text = "types are made by `Class::make`, and not instantiated";
            return Err(fault(Code::WrongType).because(text));
        }
        let generic: AllocProc = instance::generic_alloc;
        if std::ptr::fn_addr_eq(record.alloc, generic) {
            // Called directly, because the generic allocator cannot read a face of another runtime.
            return instance::allocate_handle(m, record);
        }
        let made = record.run_alloc().ok_or_else(|| fault(Code::Memory))?;
        match Obj::of(&made, m) {
            Some(object) if std::ptr::eq(object.record(), record) => Ok(made),
            _ => Err(fault(Code::BadAllocResult)),
        }
    }

    /// The type of an object; `None`: the object is typed. It may be called in a traversal.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator.
    pub fn of(object: &AnyGc, m: &Mutator) -> Option<Self> {
        crate::typed::gc::check(object.header(), m);
        Obj::of(object, m).map(|object| Self::from_record(object.record()))
    }
}

fn check_heap(object: &AnyGc, m: &Mutator, function: &'static str) -> Result<(), Fault> {
    if m.raw().owns(crate::managed::object(object.header())) {
        return Ok(());
    }
    Err(Fault::new(Code::ForeignPointer, function)
        .at(object.header().as_ptr() as usize)
        .because("the object belongs to another heap than the mutator"))
}

/// The object of a handle, if objects of its kind can have attributes.
fn dynamic<'a>(
    object: &'a AnyGc,
    m: &'a Mutator,
    function: &'static str,
) -> Result<Obj<'a>, Fault> {
    check_heap(object, m, function)?;
    Obj::of(object, m).ok_or_else(|| {
        Fault::new(Code::NoAttribute, function).because("a typed object has no attributes")
    })
}

impl AnyGc {
    /// The value of a dynamic object's attribute.
    ///
    /// # Errors
    ///
    /// When there is no such attribute, or the object belongs to another heap.
    pub fn attribute(&self, m: &Mutator, name: &str) -> Result<Self, Fault> {
        dynamic(self, m, "attribute")?.get_attribute(m, name)
    }

    /// Sets a dynamic object's attribute, or removes it.
    ///
    /// # Errors
    ///
    /// When objects of its type have no attributes, when there is none to remove, or the object
    /// belongs to another heap. A value of another heap is no error: the reference counts as an
    /// external one.
    pub fn set_attribute(&self, m: &Mutator, name: &str, value: Option<Self>) -> Result<(), Fault> {
        dynamic(self, m, "set_attribute")?.set_attribute(m, name, value)
    }
}

/// Makes a static type ready, which the runtime identifies by the address `face`; null: its record.
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
    let record = Box::leak(fallible::boxed(draft(spec, false)?)?);
    let face = if face.is_null() { (&raw mut *record).cast() } else { face };
    *record.face.get_mut() = face;
    Ok(record)
}

/// Makes a heap type. `init` receives the type's object and record, before any other code can use
/// them, and finds the object zero behind its first 24 bytes.
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
    let mut record = fallible::boxed(draft(spec, true)?)?;
    // It stays untracked until its tail is set, because a traversal reads the record there.
    let object = instance::allocate_type(m, METATYPE.get(), size)
        .map_err(|why| fault(why.code, &record.name, format_args!("{}", why.text)))?;
    let address = as_raw(&object);
    record.object = address.as_ptr();
    *record.face.get_mut() = address.as_ptr().cast();
    if let Some(module) = &spec.module {
        *record.module.get_mut() = into_raw(module.clone()).as_ptr();
    }
    let made = Obj::of(&object, m).and_then(|object| Some((object, object.slot()?)));
    let (this, slot) = made.expect("an object of the metatype");
    // Before any other code can read the record from the object.
    let record = slot.set(record);
    init(address, record);
    this.put_in(m);
    let record = RecordRef(NonNull::from(record));
    Ok(Type { record, object: Some(object) })
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
