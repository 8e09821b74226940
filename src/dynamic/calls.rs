//! From the collector to the handlers: the built-in model's table of functions for dynamic objects,
//! and each call of a handler.
//!
//! The methods find the handler in the record of the object's type, or in the parts of a module.

use std::any::TypeId;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::dynamic::builtin::{BASE, METATYPE};
use crate::dynamic::dealloc::{Dying, call_dealloc};
use crate::dynamic::handlers::{guarded, traverse};
use crate::dynamic::module::MODULE;
use crate::dynamic::object::{
    Destructor, FreeProc, Inquiry, Obj, RawObject, TYPE_INDEX, TraverseProc, VisitProc, Visitor,
    from_raw, raw,
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

impl Obj<'_> {
    /// Calls the finalize handler of the object's type, if it has one.
    #[inline(always)]
    pub(super) fn run_finalize(self) {
        self.run(self.record().finalize);
    }

    /// Calls the legacy finalizer of the object's type, if it has one.
    #[inline(always)]
    pub(super) fn run_del(self) {
        self.run(self.record().del);
    }

    /// Calls the clear handler of the object's type, if it has one.
    #[inline(always)]
    pub(super) fn run_clear(self) {
        self.record().clear.map(|handler| self.ask(handler));
    }

    /// Whether the object passes the test of its type, if the type has a test.
    pub(super) fn passes_own_test(self) -> bool {
        self.record().is_gc.is_none_or(|test| self.ask(test) != 0)
    }

    /// Calls the traverse handler of the nearest static base, if there is one.
    pub(super) fn run_static_traverse(self, visitor: Visitor<'_>) -> c_int {
        let (visit, arg) = visitor.parts();
        self.record().static_traverse.map_or(0, |handler| self.visit_by(handler, visit, arg))
    }

    /// Calls the traverse handler of a module's state, if there is one.
    pub(super) fn run_state_traverse(self, visitor: Visitor<'_>) -> c_int {
        let (visit, arg) = visitor.parts();
        let handler = self.state_handlers().traverse;
        handler.map_or(0, |handler| self.visit_by(handler, visit, arg))
    }

    /// Calls the clear handler of a module's state, if there is one.
    pub(super) fn run_state_clear(self) -> c_int {
        self.state_handlers().clear.map_or(0, |handler| self.ask(handler))
    }

    /// Calls a traverse handler of the object's type. Outside of this file only the traversal of a
    /// collection calls it.
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

    #[inline(always)]
    fn run(self, handler: Option<Destructor>) {
        if let Some(handler) = handler {
            // SAFETY: rule *handlers*: called for an object of the handler's type.
            unsafe { handler(self.address().as_ptr()) };
        }
    }

    #[inline(always)]
    fn ask(self, handler: Inquiry) -> c_int {
        // SAFETY: rule *handlers*: called for an object of the handler's type.
        unsafe { handler(self.address().as_ptr()) }
    }

    #[inline(always)]
    fn free_by(self, handler: FreeProc) {
        // SAFETY: rule *handlers*: called at the end of an object of the handler's type.
        unsafe { handler(self.address().as_ptr().cast()) };
    }
}

impl Dying<'_> {
    /// Calls a dealloc handler, of the object's type or of a base.
    #[inline(always)]
    pub(super) fn run_dealloc(self, handler: Destructor) {
        self.object().run(Some(handler));
    }

    /// Calls the function of the object's type that frees the memory.
    #[inline(always)]
    pub fn run_free(self) {
        let object = self.object();
        object.free_by(object.record().free);
    }

    /// Calls the function that a module's state has for its end, if there is one. No reference to
    /// the state exists during the call.
    pub(super) fn run_state_free(&self) {
        let object = self.object();
        if let Some(handler) = object.state_handlers().free {
            object.free_by(handler);
        }
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
