//! Attributes and managed dictionaries.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use standstill::dynamic::{self, VisitProc};
use standstill::words;
use standstill::{Code, Fault, Mutator};

use crate::call::{self, export};
use crate::errors;
use crate::layout::PyObject;

/// Checks an object of a heap and the name of an attribute.
unsafe fn place<'a>(
    m: &Mutator,
    object: *mut PyObject,
    name: *const c_char,
    function: &'static str,
) -> Result<(NonNull<PyObject>, &'a str), Fault> {
    // SAFETY: rule *argument*.
    unsafe {
        let object = call::object(m, object)?;
        call::some(name.cast_mut())?;
        let name = call::utf_8(CStr::from_ptr(name))?;
        if dynamic::Obj::new(object).count().is_none() {
            let text = words!("a static object has no attribute '{name}'");
            return Err(Fault::new(Code::NoAttribute, function)
                .at(object.as_ptr() as usize)
                .because(text));
        }
        Ok((object, name))
    }
}

export! {
    /// Sets an attribute, or removes it if the value is null.
    fn standstill_PyObject_SetAttrString(
        object: *mut PyObject,
        name: *const c_char,
        value: *mut PyObject,
    ) -> c_int {
        const FUNCTION: &str = "PyObject_SetAttrString";
        call::fallible(FUNCTION, -1, |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let (object, name) = place(m, object, name, FUNCTION)?;
                let value = call::optional(m, value)?;
                let value = value.map(|value| dynamic::Obj::new(value).share());
                dynamic::Obj::new(object).set_attribute(m, name, value).map(|()| 0)
            }
        })
    }

    /// The value of an attribute.
    fn standstill_PyObject_GetAttrString(
        object: *mut PyObject,
        name: *const c_char,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyObject_GetAttrString";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let (object, name) = place(m, object, name, FUNCTION)?;
                Ok(dynamic::into_raw(dynamic::Obj::new(object).get_attribute(m, name)?).as_ptr())
            }
        })
    }

    /// Whether the object has this attribute.
    fn standstill_PyObject_HasAttrString(object: *mut PyObject, name: *const c_char) -> c_int {
        const FUNCTION: &str = "PyObject_HasAttrString";
        call::reported(FUNCTION, 0, |m| {
            // SAFETY: rule *argument*.
            match unsafe { place(m, object, name, FUNCTION) } {
                Ok((object, name)) => {
                    // SAFETY: as above.
                    Ok(c_int::from(unsafe { dynamic::Obj::new(object).has_attribute(m, name) }))
                }
                Err(fault) if fault.code == Code::NoAttribute => Ok(0),
                Err(fault) => Err(fault),
            }
        })
    }

    /// Visits the values in an instance's dictionary.
    fn standstill_PyObject_VisitManagedDict(
        object: *mut PyObject,
        visit: Option<VisitProc>,
        arg: *mut c_void,
    ) -> c_int {
        const FUNCTION: &str = "PyObject_VisitManagedDict";
        let (Some(object), Some(visit)) = (NonNull::new(object), visit) else {
            errors::misuse(Fault::new(Code::NullArgument, FUNCTION));
            return 0;
        };
        // SAFETY: rule *argument*; a static object has no dictionary.
        unsafe {
            if !call::is_object(object, FUNCTION) || dynamic::try_type_of(object).is_none() {
                return 0;
            }
            dynamic::Obj::new(object).visit_managed_dict(dynamic::Visitor::new(visit, arg))
        }
    }

    /// Empties an instance's dictionary.
    fn standstill_PyObject_ClearManagedDict(object: *mut PyObject) {
        const FUNCTION: &str = "PyObject_ClearManagedDict";
        call::reported(FUNCTION, (), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let object = call::object(m, object)?;
                if dynamic::try_type_of(object).is_some() {
                    dynamic::Obj::new(object).clear_managed_dict();
                }
            }
            Ok(())
        });
    }
}
