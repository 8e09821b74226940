//! Weak references.

use std::ffi::c_int;

use standstill::dynamic::{self, WeakCall};
use standstill::{Code, Fault};

use crate::builtins;
use crate::call::{self, export};
use crate::layout::PyObject;

export! {
    /// Makes a weak reference.
    fn standstill_PyWeakref_NewRef(
        object: *mut PyObject,
        callback: *mut PyObject,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyWeakref_NewRef";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let target = call::object(m, object)?;
                let none = builtins::standstill__Py_NoneStruct.get();
                let callback =
                    call::optional(m, callback)?.filter(|callback| callback.as_ptr() != none);
                let callback = match callback {
                    None => None,
                    Some(callback) if builtins::is_callback(callback) => Some((
                        dynamic::Obj::new(callback).share(),
                        builtins::invoke_callback as WeakCall,
                    )),
                    Some(other) => {
                        let fault =
                            Fault::new(Code::WrongType, FUNCTION).at(other.as_ptr() as usize);
                        return Err(fault.because(
                            "the callback must be an object from standstill_Callback_New, or None",
                        ));
                    }
                };
                let target = dynamic::Obj::new(target);
                Ok(dynamic::into_raw(dynamic::new_weakref(m, target, callback)?).as_ptr())
            }
        })
    }

    /// The target of a weak reference.
    fn standstill_PyWeakref_GetRef(weak_ref: *mut PyObject, out: *mut *mut PyObject) -> c_int {
        const FUNCTION: &str = "PyWeakref_GetRef";
        if !out.is_null() && !standstill::safepoint::is_traversing() {
            // SAFETY: rule *argument*.
            unsafe { *out = std::ptr::null_mut() };
        }
        call::fallible(FUNCTION, -1, |m| {
            let out = call::some(out)?;
            // SAFETY: rule *argument*.
            unsafe {
                let weak_ref = call::object(m, weak_ref)?;
                if !builtins::is_a(weak_ref, &builtins::standstill_PyWeakref_Type) {
                    let fault =
                        Fault::new(Code::WrongType, FUNCTION).at(weak_ref.as_ptr() as usize);
                    return Err(fault.because("this is no weak reference"));
                }
                match dynamic::Obj::new(weak_ref).weakref_target(m)? {
                    Some(target) => {
                        out.write(dynamic::into_raw(target).as_ptr());
                        Ok(1)
                    }
                    None => Ok(0),
                }
            }
        })
    }
}
