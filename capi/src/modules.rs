//! Modules.

use std::ffi::{CStr, c_char, c_int, c_void};

use standstill::dynamic::{self, Head, ModuleSpec, Obj};
use standstill::fallible;
use standstill::words;
use standstill::{Code, Fault, Mutator};

use crate::builtins;
use crate::call::{self, Given, export};
use crate::layout::{PyModuleDef, PyObject};

const MOD_CREATE: c_int = 1;
const MOD_GIL: c_int = 4;

unsafe fn new_module(
    m: &Mutator,
    def: *mut PyModuleDef,
    spec: *mut PyObject,
    function: &'static str,
) -> Result<*mut PyObject, Fault> {
    builtins::start()?;
    // SAFETY: rule *argument*: a definition outlives its modules.
    unsafe {
        let address = def;
        let def = call::some(def)?.as_ref();
        let mut name = call::text(def.m_name)?;
        let own_name;
        let spec = Given::new(spec).optional(m)?;
        let spec = spec.map(|spec| call::with_type(spec, Code::WrongType)).transpose()?;
        if let Some(spec) = spec
            && let Ok(given) = spec.get_attribute(m, "name")
            && dynamic::is_dynamic(&given)
            && let Some(given) = builtins::string(Head::new(dynamic::as_raw(&given)))
        {
            // A copy, because the string may be freed before the module.
            own_name = fallible::owned(call::utf_8(given)?)?;
            name = Some(&own_name);
        }
        let Some(name) = name else {
            return Err(Fault::new(Code::BadSlot, function).because("a module needs a name"));
        };
        let mut slot = def.m_slots;
        while !slot.is_null() && (*slot).slot != 0 {
            let number = (*slot).slot;
            if number == MOD_CREATE || !(MOD_CREATE..=MOD_GIL).contains(&number) {
                let text = words!("module '{name}': slot {number} is not supported");
                return Err(Fault::new(Code::BadSlot, function).because(text));
            }
            slot = slot.add(1);
        }
        let mut wanted = ModuleSpec::new(fallible::owned(name)?);
        wanted.state_size = usize::try_from(def.m_size).unwrap_or(0);
        wanted.token = address as usize;
        wanted.face = address.cast();
        wanted.traverse = def.m_traverse;
        wanted.clear = def.m_clear;
        wanted.free = def.m_free;
        Ok(dynamic::into_raw(dynamic::new_module(m, wanted)?).as_ptr())
    }
}

fn no_module(function: &'static str, object: Head<'_>) -> Fault {
    Fault::new(Code::WrongType, function)
        .at(object.address().as_ptr() as usize)
        .because("this is no module")
}

/// An answer about a module. Fails for another object.
fn of_module<'a, R>(
    m: &Mutator,
    module: Given<'a, PyObject>,
    function: &'static str,
    f: impl FnOnce(Obj<'a>) -> Option<R>,
) -> Result<R, Fault> {
    let module = module.object(m)?;
    // A static object without a type is no module.
    module.typed().and_then(f).ok_or_else(|| no_module(function, module))
}

export! {
    /// Makes a module.
    fn standstill_PyModule_Create(def: *mut PyModuleDef) -> *mut PyObject {
        const FUNCTION: &str = "PyModule_Create";
        // SAFETY: rule *argument*.
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| unsafe {
            new_module(m, def, std::ptr::null_mut(), FUNCTION)
        })
    }

    /// Makes a module with the name from a spec.
    fn standstill_PyModule_FromDefAndSpec(
        def: *mut PyModuleDef,
        spec: *mut PyObject,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyModule_FromDefAndSpec";
        // SAFETY: rule *argument*.
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| unsafe {
            new_module(m, def, spec, FUNCTION)
        })
    }

    /// The state of a module.
    #[given(module)]
    fn standstill_PyModule_GetState(module: *mut PyObject) -> *mut c_void {
        const FUNCTION: &str = "PyModule_GetState";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            of_module(m, module, FUNCTION, Obj::module_state)
        })
    }

    /// The definition from which a module was made.
    #[given(module)]
    fn standstill_PyModule_GetDef(module: *mut PyObject) -> *mut PyModuleDef {
        const FUNCTION: &str = "PyModule_GetDef";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            Ok(of_module(m, module, FUNCTION, Obj::module_face)?.cast_mut().cast())
        })
    }

    /// The token of a module.
    #[given(module, result)]
    fn standstill_PyModule_GetToken(module: *mut PyObject, result: *mut *mut c_void) -> c_int {
        const FUNCTION: &str = "PyModule_GetToken";
        let token = call::fallible(FUNCTION, None, |m| {
            result.some()?;
            of_module(m, module, FUNCTION, Obj::module_token).map(Some)
        });
        result.write(std::ptr::with_exposed_provenance_mut(token.unwrap_or(0)));
        if token.is_some() { 0 } else { -1 }
    }

    /// The name of a module.
    #[given(module)]
    fn standstill_PyModule_GetName(module: *mut PyObject) -> *const c_char {
        const FUNCTION: &str = "PyModule_GetName";
        call::fallible(FUNCTION, std::ptr::null(), |m| {
            of_module(m, module, FUNCTION, Obj::module_name).map(CStr::as_ptr)
        })
    }
}
