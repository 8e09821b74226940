//! Each call of a handler.
//!
//! The methods find the handler in the record of the object's type, or in the parts of a module.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::AnyGc;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::object::{
    Destructor, FreeProc, Inquiry, Obj, TraverseProc, VisitProc, Visitor, from_raw,
};
use crate::dynamic::record::TypeRecord;

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
