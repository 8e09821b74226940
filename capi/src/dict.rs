//! Attributes and managed dictionaries.

use std::ffi::{c_char, c_int, c_void};

use standstill::dynamic::{self, Head, Obj, VisitProc};
use standstill::words;
use standstill::{Code, Fault, Mutator};

use crate::call::{self, Given, export};
use crate::errors;
use crate::layout::PyObject;

/// Checks an object of a heap and the name of an attribute.
fn place<'a>(
    m: &Mutator,
    object: Given<'a, PyObject>,
    name: Given<'a, c_char>,
    function: &'static str,
) -> Result<(Obj<'a>, &'a str), Fault> {
    let object = object.object(m)?;
    let name = name.utf_8()?;
    match object.typed().filter(|object| object.count().is_some()) {
        Some(object) => Ok((object, name)),
        None => {
            let text = words!("a static object has no attribute '{name}'");
            Err(Fault::new(Code::NoAttribute, function)
                .at(object.address().as_ptr() as usize)
                .because(text))
        }
    }
}

export! {
    /// Sets an attribute, or removes it if the value is null.
    #[given(object, name, value)]
    fn standstill_PyObject_SetAttrString(
        object: *mut PyObject,
        name: *const c_char,
        value: *mut PyObject,
    ) -> c_int {
        const FUNCTION: &str = "PyObject_SetAttrString";
        call::fallible(FUNCTION, -1, |m| {
            let (object, name) = place(m, object, name, FUNCTION)?;
            let value = value.optional(m)?.map(Head::share);
            object.set_attribute(m, name, value).map(|()| 0)
        })
    }

    /// The value of an attribute.
    #[given(object, name)]
    fn standstill_PyObject_GetAttrString(
        object: *mut PyObject,
        name: *const c_char,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyObject_GetAttrString";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let (object, name) = place(m, object, name, FUNCTION)?;
            Ok(dynamic::into_raw(object.get_attribute(m, name)?).as_ptr())
        })
    }

    /// Whether the object has this attribute.
    #[given(object, name)]
    fn standstill_PyObject_HasAttrString(object: *mut PyObject, name: *const c_char) -> c_int {
        const FUNCTION: &str = "PyObject_HasAttrString";
        call::reported(FUNCTION, 0, |m| match place(m, object, name, FUNCTION) {
            Ok((object, name)) => Ok(c_int::from(object.has_attribute(m, name))),
            Err(fault) if fault.code == Code::NoAttribute => Ok(0),
            Err(fault) => Err(fault),
        })
    }

    /// Visits the values in an instance's dictionary.
    #[given(object)]
    fn standstill_PyObject_VisitManagedDict(
        object: *mut PyObject,
        visit: Option<VisitProc>,
        arg: *mut c_void,
    ) -> c_int {
        const FUNCTION: &str = "PyObject_VisitManagedDict";
        let Some(visit) = visit.filter(|_| !object.is_null()) else {
            errors::misuse(Fault::new(Code::NullArgument, FUNCTION));
            return 0;
        };
        // A static object has no dictionary.
        let Some(object) = object.here(FUNCTION).and_then(Head::typed) else { return 0 };
        // SAFETY: rule *argument*: a visitor and its argument.
        object.visit_managed_dict(unsafe { dynamic::Visitor::new(visit, arg) })
    }

    /// Empties an instance's dictionary.
    #[given(object)]
    fn standstill_PyObject_ClearManagedDict(object: *mut PyObject) {
        const FUNCTION: &str = "PyObject_ClearManagedDict";
        call::reported(FUNCTION, (), |m| {
            if let Some(object) = object.object(m)?.typed() {
                object.clear_managed_dict();
            }
            Ok(())
        });
    }
}
