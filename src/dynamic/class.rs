//! Classes: types that need no unsafe code, for runtimes whose objects are bags of attributes.

use std::ptr::NonNull;

use crate::base::error::{Code, Fault};
use crate::base::text::words;
use crate::dynamic::builtin::{METATYPE, MODULE};
use crate::dynamic::object::{AllocProc, RawObject, as_raw, from_raw, is_dynamic, type_of};
use crate::dynamic::ready::{TypeSpec, ready_heap};
use crate::dynamic::record::{Flags, Type};
use crate::dynamic::{attributes, instance};
use crate::{AnyGc, Mutator};

/// What a class is to be: a heap type whose instances have attributes.
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
    finalizer: Option<Finalizer>,
    module: Option<AnyGc>,
}

/// A class's finalizer: called once in an object's life, when it is unreachable or its count reaches 0. It may bring it
/// back by keeping a clone of the handle.
pub type Finalizer = fn(&AnyGc, &Mutator);

impl Class {
    /// A class with this name, customarily `module.name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), bases: Vec::new(), finalizer: None, module: None }
    }

    /// With another base, after those there are. The first is the primary one.
    pub fn base(mut self, base: &Type) -> Self {
        self.bases.push(base.clone());
        self
    }

    /// With a finalizer.
    pub fn finalizer(mut self, finalizer: Finalizer) -> Self {
        self.finalizer = Some(finalizer);
        self
    }

    /// Belonging to a module.
    pub fn module(mut self, module: &AnyGc) -> Self {
        self.module = Some(module.clone());
        self
    }

    /// Makes the class: an object of the mutator's heap.
    ///
    /// # Errors
    ///
    /// When the bases do not fit together, the module is none, or there is no memory.
    pub fn make(self, m: &Mutator) -> Result<Type, Fault> {
        if self.module.as_ref().is_some_and(|module| !is_module(module)) {
            let text = words!("what class '{}' was said to belong to is no module", self.name);
            return Err(Fault::new(Code::WrongType, "make").because(text));
        }
        let mut spec = TypeSpec::new(self.name);
        spec.bases = self.bases;
        spec.module = self.module;
        spec.flags = Flags::BASE_TYPE;
        // Flag and handlers come with a base that has them.
        if !spec.bases.first().is_some_and(|base| base.record().has_gc()) {
            let own = TypeSpec::with_attributes("");
            spec.flags = own.flags;
            spec.slots = own.slots;
        }
        if self.finalizer.is_some() {
            spec.slots.finalize = Some(finalize);
        }
        spec.finalizer = self.finalizer;
        // SAFETY: rule H: the handlers are for attributes, which the type has itself or inherits with them.
        unsafe { ready_heap(m, &spec, |_, _| {}) }
    }
}

fn is_module(object: &AnyGc) -> bool {
    // SAFETY: rules R and D: the handle keeps the object alive.
    is_dynamic(object) && unsafe { type_of(as_raw(object)) }.is_subtype_of(MODULE.get())
}

/// Calls a class's finalizer.
unsafe extern "C" fn finalize(object: *mut RawObject) {
    let Some(object) = NonNull::new(object) else { return };
    Mutator::with_current(|m| {
        // SAFETY: rules H and R: called for a living object, to which whoever calls has a reference: this handle
        // borrows it.
        let (finalizer, this) = unsafe {
            let finalizer = type_of(object).mro().find_map(|record| record.finalizer);
            (finalizer, std::mem::ManuallyDrop::new(from_raw(object)))
        };
        if let Some(finalizer) = finalizer
            && let Err(payload) = crate::base::event::guarded(|| finalizer(&this, m))
        {
            // Not through the frames of a C program that may lie in between.
            // SAFETY: rule R: alive.
            let name = unsafe { type_of(object) }.kept_name();
            let message = crate::base::event::panic_message(payload);
            m.raw().core().hooks.unraisable(crate::During::Finalize, name, message);
        }
    });
}

impl Type {
    /// A new instance, made by the type's own allocator: tracked, its fields null, without attributes.
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
        if std::ptr::eq(record, METATYPE.get()) {
            let text = "types are made by `Class::make`, and not instantiated";
            return Err(Fault::new(Code::WrongType, FUNCTION)
                .of_type(record.kept_name())
                .because(text));
        }
        let generic: AllocProc = instance::generic_alloc;
        if std::ptr::fn_addr_eq(record.alloc, generic) {
            // Without the detour by the face, which may be that of another allocator.
            // SAFETY: rule N: a ready type of this heap, or a static one; the reference goes over.
            return Ok(unsafe { from_raw(instance::allocate_tracked(m, record, 0)?) });
        }
        // SAFETY: a ready type's own allocator, with its face (rule H); what it returns is a reference.
        unsafe {
            let made = NonNull::new((record.alloc)(record.face(), 0));
            match made {
                Some(object) if std::ptr::eq(type_of(object), record) => Ok(from_raw(object)),
                Some(object) => {
                    drop(from_raw(object));
                    Err(Fault::new(Code::BadAllocResult, FUNCTION).of_type(record.kept_name()))
                }
                None => Err(Fault::new(Code::Memory, FUNCTION).of_type(record.kept_name())),
            }
        }
    }

    /// The type of an object; `None`: it is a typed one. In a traversal, too.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator.
    pub fn of(object: &AnyGc, m: &Mutator) -> Option<Self> {
        crate::typed::gc::check(object.header(), m);
        // SAFETY: rules R and D: the handle keeps the object alive, and thereby its type.
        is_dynamic(object).then(|| unsafe { Self::from_record(type_of(as_raw(object))) })
    }
}

fn check_heap(object: &AnyGc, m: &Mutator, function: &'static str) -> Result<(), Fault> {
    if m.raw().owns(crate::managed::object(object.header())) {
        return Ok(());
    }
    Err(Fault::new(Code::ForeignPointer, function)
        .at(as_raw(object).as_ptr() as usize)
        .because("the object belongs to another heap than the mutator"))
}

/// The object, if it can be asked for attributes.
fn dynamic(
    object: &AnyGc,
    m: &Mutator,
    function: &'static str,
) -> Result<NonNull<RawObject>, Fault> {
    check_heap(object, m, function)?;
    if !is_dynamic(object) {
        return Err(
            Fault::new(Code::NoAttribute, function).because("a typed object has no attributes")
        );
    }
    Ok(as_raw(object))
}

impl AnyGc {
    /// The value of a dynamic object's attribute.
    ///
    /// # Errors
    ///
    /// When there is no such attribute, or the object belongs to another heap.
    pub fn attribute(&self, m: &Mutator, name: &str) -> Result<Self, Fault> {
        let object = dynamic(self, m, "attribute")?;
        // SAFETY: rule R: this handle keeps the object alive; it is the mutator's heap's.
        unsafe { attributes::get_attribute(m, object, name) }
    }

    /// Sets a dynamic object's attribute, or removes it.
    ///
    /// # Errors
    ///
    /// When objects of its type have no attributes, when there is none to remove, or the object belongs to another heap. A value of another
    /// heap is no error: it counts as held from outside.
    pub fn set_attribute(&self, m: &Mutator, name: &str, value: Option<Self>) -> Result<(), Fault> {
        let object = dynamic(self, m, "set_attribute")?;
        // SAFETY: as in `attribute`.
        unsafe { attributes::set_attribute(m, object, name, value) }
    }
}
