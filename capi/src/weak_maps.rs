//! Tables with weak keys, and guardians. Each is a typed object of the heap, and C gets its address
//! as an opaque pointer, with a reference that C owns. So checked mode looks such a pointer up like
//! any other, and a traverse handler can report a table.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};

use standstill::dynamic::{self, Address, Head, RawObject, VisitProc};
use standstill::{AnyGc, Code, Fault, Gc, GcWeakMap, Guardian, Mutator, Trace, Tracer};

use crate::call::{self, Given, export};
use crate::errors;
use crate::layout::PyObject;

type Table = GcWeakMap<AnyGc, AnyGc>;

/// `standstill_weak_map` of the header.
#[repr(C)]
#[derive(Debug)]
pub struct standstill_weak_map([u8; 0]);

/// `standstill_guardian` of the header.
#[repr(C)]
#[derive(Debug)]
pub struct standstill_guardian([u8; 0]);

/// A guardian as an object. It reports nothing, because the references of its queue count as
/// references from outside.
struct Queue(Guardian<AnyGc>);

impl Trace for Queue {
    const TRACKED: bool = false;

    fn traverse(_: &Self, _: &mut Tracer) {}
}

/// The result of `f` for the value of a typed object, of which C has the address. The object lives
/// until `f` returns, also if a destructor in `f` gives up the reference of C.
fn with<T: Trace, P, R>(
    m: &Mutator,
    given: Given<'_, P>,
    f: impl FnOnce(&T) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let address: NonNull<RawObject> = given.some()?.cast();
    let fault = |code| Fault::new(code, "argument").at(address.as_ptr() as usize);
    if dynamic::is_checked(m) {
        // SAFETY: rule *argument*; the lookup accepts any address.
        match unsafe { dynamic::look_up(m, address) } {
            Address::Live => {}
            Address::Freed => return Err(fault(Code::FreedPointer)),
            _ => return Err(fault(Code::ForeignPointer)),
        }
    }
    // SAFETY: rule *argument*: C owns a reference, which this borrows.
    let lent = ManuallyDrop::new(unsafe { dynamic::from_raw(address) });
    let object = AnyGc::clone(&lent);
    match object.downcast_ref::<T>(m) {
        Some(value) => f(value),
        None => Err(fault(Code::WrongType)),
    }
}

/// Gives up the reference of C to a typed object, unless the pointer is null.
fn free<T: Trace, P>(function: &'static str, given: Given<'_, P>) {
    if given.is_null() {
        return;
    }
    call::reported(function, (), |m| {
        with(m, given, |_: &T| Ok(()))?;
        // SAFETY: rule *argument*: C gives up its reference to this object.
        drop(unsafe { dynamic::from_raw(given.some()?.cast()) });
        Ok(())
    });
}

/// A new object of the mutator's heap for C.
fn raw<T, P>(object: Gc<T>) -> *mut P
where
    T: Trace,
{
    dynamic::into_raw(Gc::into_any(object)).as_ptr().cast()
}

fn refused<E>(_: E) -> Fault {
    Fault::new(Code::Memory, "argument")
}

/// A handle to an object of the mutator's heap, as a key of a table or for a guardian. Fails for a
/// static object, which never dies.
fn mortal(m: &Mutator, object: Given<'_, PyObject>) -> Result<AnyGc, Fault> {
    let object = object.object(m)?;
    // SAFETY: rule *argument*; the lookup accepts any address.
    match unsafe { dynamic::look_up(m, object.address()) } {
        Address::Live => Ok(object.share()),
        _ => Err(Fault::new(Code::WrongType, "argument")
            .at(object.address().as_ptr() as usize)
            .because("an object of this heap is needed, because static objects never die")),
    }
}

export! {
    /// Makes a table.
    fn standstill_weak_map_new() -> *mut standstill_weak_map {
        call::fallible("standstill_weak_map_new", null_mut(), |m| {
            Table::try_new(m).map(raw).map_err(refused)
        })
    }

    /// Gives up a table.
    #[given(map)]
    fn standstill_weak_map_free(map: *mut standstill_weak_map) {
        free::<Table, _>("standstill_weak_map_free", map);
    }

    /// Sets the value of a key.
    #[given(map, key, value)]
    fn standstill_weak_map_set(
        map: *mut standstill_weak_map,
        key: *mut PyObject,
        value: *mut PyObject,
    ) -> c_int {
        call::fallible("standstill_weak_map_set", -1, |m| {
            with(m, map, |table: &Table| {
                let (key, value) = (mortal(m, key)?, value.object(m)?.share());
                table.try_insert(m, &key, value).map(|_| 0).map_err(refused)
            })
        })
    }

    /// Gets the value of a key.
    #[given(map, key, out)]
    fn standstill_weak_map_get(
        map: *mut standstill_weak_map,
        key: *mut PyObject,
        out: *mut *mut PyObject,
    ) -> c_int {
        if !standstill::safepoint::is_traversing() {
            out.write(null_mut());
        }
        call::fallible("standstill_weak_map_get", -1, |m| {
            out.some()?;
            with(m, map, |table: &Table| {
                let Some(value) = table.get(m, &mortal(m, key)?) else { return Ok(0) };
                out.write(dynamic::into_raw(value).as_ptr());
                Ok(1)
            })
        })
    }

    /// Removes the entry of a key.
    #[given(map, key)]
    fn standstill_weak_map_remove(map: *mut standstill_weak_map, key: *mut PyObject) -> c_int {
        call::fallible("standstill_weak_map_remove", -1, |m| {
            with(m, map, |table: &Table| {
                Ok(c_int::from(table.remove(m, &mortal(m, key)?).is_some()))
            })
        })
    }

    /// The number of entries.
    #[given(map)]
    fn standstill_weak_map_length(map: *mut standstill_weak_map) -> isize {
        call::fallible("standstill_weak_map_length", -1, |m| {
            with(m, map, |table: &Table| Ok(table.len(m) as isize))
        })
    }

    /// Passes on all entries.
    #[given(map)]
    fn standstill_weak_map_entries(
        map: *mut standstill_weak_map,
        entry: Option<unsafe extern "C" fn(*mut PyObject, *mut PyObject, *mut c_void)>,
        arg: *mut c_void,
    ) -> isize {
        const FUNCTION: &str = "standstill_weak_map_entries";
        call::fallible(FUNCTION, -1, |m| {
            let entry = entry.ok_or_else(|| Fault::new(Code::NullArgument, FUNCTION))?;
            let entries =
                with(m, map, |table: &Table| table.try_entries(m).map_err(refused))?;
            for (key, value) in &entries {
                let (key, value) = (dynamic::as_raw(key).as_ptr(), dynamic::as_raw(value).as_ptr());
                // SAFETY: rule *argument*: the program has passed the function for this call.
                unsafe { entry(key, value, arg) };
            }
            Ok(entries.len() as isize)
        })
    }

    /// Reports a table to a traversal.
    #[given(map)]
    fn standstill_weak_map_visit(
        map: *mut standstill_weak_map,
        visit: Option<VisitProc>,
        arg: *mut c_void,
    ) -> c_int {
        const FUNCTION: &str = "standstill_weak_map_visit";
        let Some(visit) = visit else {
            errors::misuse(Fault::new(Code::NullArgument, FUNCTION));
            return 0;
        };
        let Some(address) = NonNull::new(map.raw().cast::<RawObject>()) else { return 0 };
        // SAFETY: rule *argument*; the lookup accepts any address.
        let looked = unsafe { dynamic::look_up_here(address) };
        // SAFETY: rule *argument*: C owns a reference, which this borrows.
        let is_typed = looked.is_none_or(|address| address == Address::Live)
            && !dynamic::is_dynamic(&ManuallyDrop::new(unsafe { dynamic::from_raw(address) }));
        if !is_typed {
            let fault = Fault::new(Code::ForeignPointer, FUNCTION);
            errors::misuse(fault.at(address.as_ptr() as usize));
            return 0;
        }
        // SAFETY: rule *argument*: a visitor and its argument, and a living object.
        unsafe { dynamic::Visitor::new(visit, arg).visit(Head::new(address)) }
    }

    /// Makes a guardian.
    fn standstill_guardian_new() -> *mut standstill_guardian {
        call::fallible("standstill_guardian_new", null_mut(), |m| {
            let guardian = Guardian::try_new().map_err(refused)?;
            m.try_alloc(Queue(guardian)).map(raw).map_err(refused)
        })
    }

    /// Gives up a guardian.
    #[given(guardian)]
    fn standstill_guardian_free(guardian: *mut standstill_guardian) {
        free::<Queue, _>("standstill_guardian_free", guardian);
    }

    /// Registers an object.
    #[given(guardian, object)]
    fn standstill_guardian_register(
        guardian: *mut standstill_guardian,
        object: *mut PyObject,
    ) -> c_int {
        call::fallible("standstill_guardian_register", -1, |m| {
            with(m, guardian, |Queue(guardian)| {
                guardian.try_register(m, &mortal(m, object)?).map(|()| 0).map_err(refused)
            })
        })
    }

    /// Takes the next object out.
    #[given(guardian)]
    fn standstill_guardian_next(guardian: *mut standstill_guardian) -> *mut PyObject {
        call::fallible("standstill_guardian_next", null_mut(), |m| {
            with(m, guardian, |Queue(guardian)| {
                Ok(guardian.next(m).map_or(null_mut(), |it| dynamic::into_raw(it).as_ptr()))
            })
        })
    }

    /// Whether there are objects to take out.
    #[given(guardian)]
    fn standstill_guardian_is_ready(guardian: *mut standstill_guardian) -> c_int {
        call::fallible("standstill_guardian_is_ready", -1, |m| {
            with(m, guardian, |Queue(guardian)| Ok(c_int::from(guardian.is_ready())))
        })
    }
}
