//! Weak references.

use std::ffi::c_int;

use standstill::dynamic::{self, WeakCall};
use standstill::{Code, Fault};

use crate::builtins;
use crate::call::{self, export};
use crate::layout::PyObject;

export! {
    /// Makes a weak reference.
    #[given(object, callback)]
    fn standstill_PyWeakref_NewRef(
        object: *mut PyObject,
        callback: *mut PyObject,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyWeakref_NewRef";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let target = object.object(m)?;
            let none = builtins::standstill__Py_NoneStruct.get();
            let callback =
                callback.optional(m)?.filter(|callback| callback.address().as_ptr() != none);
            let callback = match callback {
                None => None,
                Some(callback) if builtins::is_callback(callback) => {
                    Some((callback.share(), builtins::invoke_callback as WeakCall))
                }
                Some(other) => {
                    let fault =
                        Fault::new(Code::WrongType, FUNCTION).at(other.address().as_ptr() as usize);
                    return Err(fault.because(
                        "the callback must be an object from standstill_Callback_New, or None",
                    ));
                }
            };
            // SAFETY: rule *handlers*: the function is for callbacks of this type.
            let weak_ref = unsafe { dynamic::new_weakref(m, target, callback) }?;
            Ok(dynamic::into_raw(weak_ref).as_ptr())
        })
    }

    /// The target of a weak reference.
    #[given(weak_ref, out)]
    fn standstill_PyWeakref_GetRef(weak_ref: *mut PyObject, out: *mut *mut PyObject) -> c_int {
        const FUNCTION: &str = "PyWeakref_GetRef";
        if !standstill::safepoint::is_traversing() {
            out.write(std::ptr::null_mut());
        }
        call::fallible(FUNCTION, -1, |m| {
            out.some()?;
            let weak_ref = weak_ref.object(m)?;
            let Some(known) = builtins::as_a(weak_ref, &builtins::standstill_PyWeakref_Type) else {
                let fault =
                    Fault::new(Code::WrongType, FUNCTION).at(weak_ref.address().as_ptr() as usize);
                return Err(fault.because("this is no weak reference"));
            };
            match known.weakref_target(m)? {
                Some(target) => {
                    out.write(dynamic::into_raw(target).as_ptr());
                    Ok(1)
                }
                None => Ok(0),
            }
        })
    }
}
