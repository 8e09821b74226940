//! A program that makes types in Rust and in C, in one heap: neither library takes the other's
//! types for its own.

use std::ptr::{NonNull, null_mut};

use standstill::dynamic::{self, Class, Flags, RawObject, Type, TypeSpec};
use standstill::{AnyGc, Code, Mutator};
use standstill_capi::builtins::standstill_PyTuple_Type;
use standstill_capi::errors::{
    standstill_PyErr_Clear, standstill_error_code, standstill_error_message,
};
use standstill_capi::layout::{PyType_Spec, PyTypeObject};
use standstill_capi::objects::standstill_PyType_GenericAlloc;
use standstill_capi::thread::{standstill_attach, standstill_detach};
use standstill_capi::types::{
    standstill_PyObject_TypeCheck, standstill_PyType_FromSpecWithBases, standstill_PyType_GetFlags,
    standstill_PyType_IsSubtype, standstill_PyType_Ready,
};

/// Runs on a thread that C has attached.
fn attached(f: impl FnOnce(&Mutator)) {
    // SAFETY: the default heap.
    assert_eq!(unsafe { standstill_attach(null_mut()) }, 0);
    Mutator::with_current(f).unwrap();
    // SAFETY: attached above.
    assert_eq!(unsafe { standstill_detach() }, 0);
}

/// Code and text of the error that C finds; it is gone then.
fn error() -> (u32, String) {
    // SAFETY: a text, or null.
    unsafe {
        let code = standstill_error_code() as u32;
        let text = standstill_error_message();
        assert!(!text.is_null(), "no error");
        let text = std::ffi::CStr::from_ptr(text).to_str().unwrap().to_owned();
        standstill_PyErr_Clear();
        (code, text)
    }
}

/// A type made in C, with these bases.
fn made_in_c(bases: *mut RawObject) -> Option<AnyGc> {
    let mut spec = PyType_Spec {
        name: c"tests.MadeInC".as_ptr(),
        basicsize: 0,
        itemsize: 0,
        flags: Flags::BASE_TYPE.0 as u32,
        slots: null_mut(),
    };
    // SAFETY: a spec without slots; the reference that comes back goes over.
    unsafe {
        let made = standstill_PyType_FromSpecWithBases(&raw mut spec, bases);
        NonNull::new(made).map(|made| dynamic::from_raw(made))
    }
}

fn type_of(object: &AnyGc) -> Type {
    // SAFETY: the handle keeps the type.
    unsafe { Type::from_record(dynamic::Obj::new(dynamic::as_raw(object)).describe().unwrap()) }
}

#[test]
fn a_class_made_in_rust_has_no_base_made_in_c() {
    attached(|m| {
        let made = made_in_c(null_mut()).unwrap();
        let fault = Class::new("tests.Class").base(&type_of(&made)).make(m).unwrap_err();
        assert_eq!(fault.code, Code::BadBase);
        assert!(
            fault.to_string().contains("its base 'tests.MadeInC' was made by another runtime"),
            "{fault}"
        );
        // SAFETY: ready since the start.
        let tuple = Type::from_static(unsafe { &*(*standstill_PyTuple_Type.get()).ss_own.get() });
        let fault = Class::new("tests.Class").base(&tuple).make(m).unwrap_err();
        assert_eq!(fault.code, Code::BadBase);
    });
}

#[test]
fn a_type_made_in_c_has_no_base_made_in_rust() {
    attached(|m| {
        let class = Class::new("tests.Class").make(m).unwrap();
        let base = dynamic::as_raw(class.object().unwrap()).as_ptr();
        assert!(made_in_c(base).is_none());
        let (code, text) = error();
        assert_eq!(code, Code::BadBase as u32);
        assert!(text.contains("its base 'tests.Class' was made by another runtime"), "{text}");
    });
}

/// Functions that are given such a type answer for the type that it is; C finds zeros in the
/// members that it could read.
#[test]
fn functions_of_c_know_a_class_made_in_rust() {
    attached(|m| {
        let class = Class::new("tests.Class").make(m).unwrap();
        let derived = Class::new("tests.Derived").base(&class).make(m).unwrap();
        let object = derived.instantiate(m).unwrap();
        let face = |class: &Type| class.record().face().cast::<PyTypeObject>();
        let (base, own) = (face(&class), face(&derived));
        // SAFETY: living types, and an instance.
        unsafe {
            assert!(
                (*own).tp_name.is_null()
                    && (*own).tp_free.is_none()
                    && (*own).ss_own.get().is_null()
            );
            assert_eq!(standstill_PyType_GetFlags(own), derived.record().flags().0);
            assert_eq!(standstill_PyType_IsSubtype(own, base), 1);
            assert_eq!(standstill_PyType_IsSubtype(base, own), 0);
            assert_eq!(standstill_PyObject_TypeCheck(dynamic::as_raw(&object).as_ptr(), base), 1);
            assert_eq!(standstill_PyType_Ready(own), 0);
            let made = standstill_PyType_GenericAlloc(own.cast(), 0);
            assert!(
                (*own).tp_free.is_none() && (*own).tp_basicsize == 0,
                "the library wrote to the object"
            );
            let made = dynamic::from_raw(NonNull::new(made).unwrap());
            made.set_attribute(m, "next", Some(made.clone())).unwrap();
            assert_eq!(Type::of(&made, m).unwrap().record().name(), "tests.Derived");
        }
    });
}

/// A face that asks for less has room for C to read, too.
#[test]
fn a_type_of_any_face_can_be_read_by_c() {
    attached(|m| {
        let spec = TypeSpec::new("tests.Plain");
        // SAFETY: no handlers.
        let made = unsafe { dynamic::ready_heap(m, &spec, |_, _| {}) }.unwrap();
        let face = made.record().face().cast::<PyTypeObject>();
        // SAFETY: a living type.
        unsafe { assert_eq!(standstill_PyType_GetFlags(face), made.record().flags().0) };
    });
}
