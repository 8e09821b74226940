//! Objects: counts, allocation, tracking, queries and destruction.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use standstill::dynamic::{self, Family, TypeRecord};
use standstill::words;
use standstill::{Code, Fault, Mutator, safepoint};

use crate::call::{self, export};
use crate::errors;
use crate::layout::{PyObject, PyTypeObject, PyVarObject};
use crate::thread;
use crate::types;

/// The result of `Py_REFCNT` for an immortal object.
const IMMORTAL: isize = 1 << 30;

/// Drops a reference that is most likely the last one.
#[inline(always)]
unsafe fn decref_last(object: NonNull<PyObject>) {
    // SAFETY: rule *argument*.
    unsafe {
        if let Some(m) = thread::at_hand() {
            match catch_unwind(AssertUnwindSafe(|| dynamic::decref_last(m, object))) {
                Ok(true) => return,
                Ok(false) => {}
                Err(payload) => return call::panicked("Py_DecRef", payload),
            }
        }
        decref_slow(object);
    }
}

/// Drops a reference to any object, on any thread.
#[cold]
#[inline(never)]
unsafe fn decref_slow(object: NonNull<PyObject>) {
    const FUNCTION: &str = "Py_DecRef";
    // SAFETY: rule *argument*.
    unsafe {
        if !call::is_object(object, FUNCTION) {
            return;
        }
        let dropped = call::catching(FUNCTION, true, || dynamic::decref_slow(object));
        if !dropped {
            call::refuse(FUNCTION);
        }
    }
}

/// The record of a type from C, for an allocation.
unsafe fn allocatable<'a>(
    m: &Mutator,
    face: *mut PyTypeObject,
    function: &'static str,
) -> Result<&'a TypeRecord, Fault> {
    // SAFETY: rule *argument*.
    unsafe {
        let record = call::record(m, face)?;
        if dynamic::is_checked(m) {
            types::check_intact(face, record, true, function);
        }
        Ok(record)
    }
}

#[cold]
#[inline(never)]
unsafe fn generic_alloc_slow(face: *mut PyTypeObject, items: isize) -> *mut PyObject {
    const FUNCTION: &str = "PyType_GenericAlloc";
    call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
        // SAFETY: rule *argument*.
        unsafe {
            let record = allocatable(m, face, FUNCTION)?;
            dynamic::allocate_tracked(m, record, items).map(NonNull::as_ptr).map_err(sized)
        }
    })
}

/// Changes the code for items of a type without any: allocations report a bad size, as in the
/// header.
fn sized(mut fault: Fault) -> Fault {
    if fault.code == Code::NotResizable {
        fault.code = Code::BadSize;
    }
    fault
}

/// Allocates an untracked object, for one of the two kinds of types.
unsafe fn allocate(
    face: *mut PyTypeObject,
    items: isize,
    family: Family,
    function: &'static str,
) -> *mut PyObject {
    call::fallible(function, std::ptr::null_mut(), |m| {
        // SAFETY: rule *argument*.
        unsafe {
            let record = allocatable(m, face, function)?;
            family_fits(record, family, function)?;
            if items < 0 {
                let text = words!("the number of items is {items}");
                return Err(Fault::new(Code::BadSize, function)
                    .of_type(record.kept_name())
                    .because(text));
            }
            dynamic::allocate(m, record, items, 0).map(NonNull::as_ptr).map_err(sized)
        }
    })
}

fn family_fits(record: &TypeRecord, family: Family, function: &'static str) -> Result<(), Fault> {
    match (record.has_gc(), family) {
        (true, Family::Plain) => {
            Err(Fault::new(Code::GcType, function).of_type(record.kept_name()))
        }
        (false, Family::Container) => {
            Err(Fault::new(Code::NotGcType, function).of_type(record.kept_name()))
        }
        _ => Ok(()),
    }
}

#[cold]
#[inline(never)]
fn memory_given_back(object: *mut c_void, family: Family, function: &'static str) {
    call::reported(function, (), |m| {
        // SAFETY: rule *argument*.
        unsafe {
            let object = call::typed_object(m, object.cast(), Code::WrongAllocator).map_err(
                |mut fault| {
                    if fault.code == Code::FreedPointer {
                        fault.code = Code::DoubleFree;
                        fault = fault.because("the object was freed before");
                    }
                    fault
                },
            )?;
            dynamic::free(m, object.address(), family)
        }
    });
}

/// Fails unless the destruction of the object has begun. For functions that only deallocators may
/// call.
unsafe fn dying(object: NonNull<PyObject>, function: &'static str) -> Result<(), Fault> {
    // SAFETY: rule *argument*.
    match unsafe { dynamic::Obj::new(object).count() } {
        Some(0) => Ok(()),
        _ => {
            let fault = Fault::new(Code::NotAllowedHere, function).at(object.as_ptr() as usize);
            Err(fault.because("only deallocators may call this: the object still has references"))
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn track_slow(object: *mut c_void) {
    call::reported("PyObject_GC_Track", (), |m| {
        // SAFETY: rule *argument*.
        unsafe { call::typed_object(m, object.cast(), Code::NotGcObject)?.track(m) }
    });
}

#[cold]
#[inline(never)]
unsafe fn untrack_slow(object: *mut c_void) {
    call::reported("PyObject_GC_UnTrack", (), |m| {
        // SAFETY: rule *argument*.
        unsafe { call::typed_object(m, object.cast(), Code::NotGcObject)?.untrack(m) }
    });
}

export! {
    /// Adds a reference.
    fn standstill_Py_IncRef(object: *mut PyObject) {
        let Some(object) = NonNull::new(object) else { return };
        // SAFETY: rule *argument*.
        unsafe {
            if !call::is_object(object, "Py_IncRef") {
                return;
            }
            if !dynamic::Obj::new(object).incref() {
                call::refuse("Py_IncRef");
            }
        }
    }

    /// Drops a reference.
    fn standstill_Py_DecRef(object: *mut PyObject) {
        let Some(object) = NonNull::new(object) else { return };
        // SAFETY: rule *argument*.
        unsafe {
            if call::is_special() {
                decref_slow(object);
            } else if !dynamic::decref_common(object) {
                decref_last(object);
            }
        }
    }

    /// The number of references.
    fn standstill_Py_REFCNT(object: *mut PyObject) -> isize {
        call::outside("Py_REFCNT", 0, || {
            let Some(object) = NonNull::new(object) else {
                errors::misuse(Fault::new(Code::NullArgument, "Py_REFCNT"));
                return 0;
            };
            // SAFETY: rule *argument*.
            unsafe {
                if !call::is_object(object, "Py_REFCNT") {
                    return 0;
                }
                dynamic::Obj::new(object).count().map_or(IMMORTAL, |count| count as isize)
            }
        })
    }

    /// The number of items.
    fn standstill_Py_SIZE(object: *mut PyObject) -> isize {
        const FUNCTION: &str = "Py_SIZE";
        let size = match NonNull::new(object) {
            // SAFETY: rule *argument*.
            Some(object) => unsafe {
                if !call::is_object(object, FUNCTION) {
                    return 0;
                }
                match dynamic::try_type_of(object) {
                    Some(_) => dynamic::Obj::new(object).size(),
                    None => Err(Fault::new(Code::WrongType, FUNCTION).at(object.as_ptr() as usize)),
                }
            },
            None => Err(Fault::new(Code::NullArgument, FUNCTION)),
        };
        size.unwrap_or_else(|mut fault| {
            if fault.code == Code::NotResizable {
                fault.code = Code::WrongType;
                fault = fault.because("the object has no items");
            }
            fault.function = FUNCTION;
            errors::misuse(fault);
            0
        })
    }

    /// The default allocator. It tracks an object of a container type at once.
    fn standstill_PyType_GenericAlloc(face: *mut c_void, items: isize) -> *mut PyObject {
        let face = face.cast::<PyTypeObject>();
        if let Some(m) = thread::at_hand()
            && !face.is_null()
            && !call::is_special()
        {
            // SAFETY: rules *argument* and *record*.
            unsafe {
                if let Some(record) = (*face).ss_own.get().as_ref()
                    && items == 0
                    && !safepoint::is_traversing()
                    && let Some(object) = dynamic::allocate_common(m, record)
                {
                    return object.as_ptr();
                }
            }
        }
        // SAFETY: rule *argument*.
        unsafe { generic_alloc_slow(face, items) }
    }

    /// Allocates a container object, untracked.
    fn standstill__PyObject_GC_New(face: *mut PyTypeObject) -> *mut PyObject {
        // SAFETY: rule *argument*.
        unsafe { allocate(face, 0, Family::Container, "PyObject_GC_New") }
    }

    /// Allocates a container object with items, untracked.
    fn standstill__PyObject_GC_NewVar(face: *mut PyTypeObject, items: isize) -> *mut PyVarObject {
        // SAFETY: rule *argument*.
        unsafe { allocate(face, items, Family::Container, "PyObject_GC_NewVar") }.cast()
    }

    /// Allocates a plain object.
    fn standstill__PyObject_New(face: *mut PyTypeObject) -> *mut PyObject {
        // SAFETY: rule *argument*.
        unsafe { allocate(face, 0, Family::Plain, "PyObject_New") }
    }

    /// Allocates a plain object with items.
    fn standstill__PyObject_NewVar(face: *mut PyTypeObject, items: isize) -> *mut PyVarObject {
        // SAFETY: rule *argument*.
        unsafe { allocate(face, items, Family::Plain, "PyObject_NewVar") }.cast()
    }

    /// Allocates a container object with extra bytes at its end, untracked.
    fn standstill_PyUnstable_Object_GC_NewWithExtraData(
        face: *mut PyTypeObject,
        extra: usize,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyUnstable_Object_GC_NewWithExtraData";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let record = allocatable(m, face, FUNCTION)?;
                family_fits(record, Family::Container, FUNCTION)?;
                if record.item_size() != 0 {
                    let text = "the extra bytes would overlap the items";
                    return Err(Fault::new(Code::BadSize, FUNCTION)
                        .of_type(record.kept_name())
                        .because(text));
                }
                dynamic::allocate(m, record, 0, extra).map(NonNull::as_ptr)
            }
        })
    }

    /// Changes the number of items.
    fn standstill__PyObject_GC_Resize(object: *mut PyVarObject, items: isize) -> *mut PyVarObject {
        call::fallible("PyObject_GC_Resize", std::ptr::null_mut(), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let object = call::typed_object(m, object.cast(), Code::NotGcObject)?;
                dynamic::resize(m, object.address(), items).map(|object| object.as_ptr().cast())
            }
        })
    }

    /// Adds an object to the tracked set.
    fn standstill_PyObject_GC_Track(object: *mut c_void) {
        if let Some(m) = thread::at_hand()
            && let Some(object) = NonNull::new(object.cast::<PyObject>())
            && !call::is_special()
        {
            // SAFETY: rule *argument*.
            if unsafe { dynamic::Obj::new(object).track_common(m) } {
                return;
            }
        }
        // SAFETY: rule *argument*.
        unsafe { track_slow(object) };
    }

    /// Removes an object from the tracked set.
    fn standstill_PyObject_GC_UnTrack(object: *mut c_void) {
        if let Some(m) = thread::at_hand()
            && let Some(object) = NonNull::new(object.cast::<PyObject>())
            && !call::is_special()
        {
            // SAFETY: rule *argument*.
            if unsafe { dynamic::Obj::new(object).untrack_common(m) } {
                return;
            }
        }
        // SAFETY: rule *argument*.
        unsafe { untrack_slow(object) };
    }

    /// Frees the memory of a container object.
    fn standstill_PyObject_GC_Del(object: *mut c_void) {
        if let Some(m) = thread::at_hand()
            && let Some(object) = NonNull::new(object.cast::<PyObject>())
            && !call::is_special()
        {
            // SAFETY: rule *argument*.
            if unsafe { dynamic::free_common(m, object) } {
                return;
            }
        }
        memory_given_back(object, Family::Container, "PyObject_GC_Del");
    }

    /// Frees the memory of a plain object.
    fn standstill_PyObject_Free(object: *mut c_void) {
        if !object.is_null() {
            memory_given_back(object, Family::Plain, "PyObject_Free");
        }
    }

    /// Whether the object is a container object.
    fn standstill_PyObject_IS_GC(object: *mut PyObject) -> c_int {
        const FUNCTION: &str = "PyObject_IS_GC";
        call::catching(FUNCTION, 0, || {
            let Some(object) = NonNull::new(object) else {
                errors::misuse(Fault::new(Code::NullArgument, FUNCTION));
                return 0;
            };
            // SAFETY: rule *argument*.
            unsafe {
                if !call::is_object(object, FUNCTION) {
                    return 0;
                }
                c_int::from(dynamic::Obj::new(object).is_gc())
            }
        })
    }

    /// Whether the object is tracked now.
    fn standstill_PyObject_GC_IsTracked(object: *mut PyObject) -> c_int {
        call::reported("PyObject_GC_IsTracked", 0, |m| {
            // SAFETY: rule *argument*.
            unsafe { Ok(c_int::from(dynamic::Obj::new(call::object(m, object)?).is_tracked(m))) }
        })
    }

    /// Whether the object's finalizer has been called.
    fn standstill_PyObject_GC_IsFinalized(object: *mut PyObject) -> c_int {
        call::reported("PyObject_GC_IsFinalized", 0, |m| {
            // SAFETY: rule *argument*.
            unsafe { Ok(c_int::from(dynamic::Obj::new(call::object(m, object)?).is_finalized(m))) }
        })
    }

    /// Calls the finalizer, unless it has been called for this object before.
    fn standstill_PyObject_CallFinalizer(object: *mut PyObject) {
        call::reported("PyObject_CallFinalizer", (), |m| {
            // SAFETY: rule *argument*.
            unsafe { call::typed_object(m, object, Code::NotReady)?.call_finalizer(m) };
            Ok(())
        });
    }

    /// Calls the finalizer at the start of a deallocator.
    fn standstill_PyObject_CallFinalizerFromDealloc(object: *mut PyObject) -> c_int {
        const FUNCTION: &str = "PyObject_CallFinalizerFromDealloc";
        call::reported(FUNCTION, 0, |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let object = call::object(m, object)?;
                dying(object, FUNCTION)?;
                Ok(-c_int::from(dynamic::Dying::new(m, dynamic::Obj::new(object)).call_finalizer()))
            }
        })
    }

    /// Clears the weak references to a dying object.
    fn standstill_PyObject_ClearWeakRefs(object: *mut PyObject) {
        const FUNCTION: &str = "PyObject_ClearWeakRefs";
        call::reported(FUNCTION, (), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let object = call::object(m, object)?;
                dying(object, FUNCTION)?;
                dynamic::Dying::new(m, dynamic::Obj::new(object)).clear_weak_references();
            }
            Ok(())
        });
    }

    /// The part of an instance that a type reserves.
    fn standstill_PyObject_GetTypeData(
        object: *mut PyObject,
        class: *mut PyTypeObject,
    ) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetTypeData";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let object = call::typed_object(m, object, Code::WrongType)?;
                let record = call::record(m, class)?;
                object.type_data(record).map(NonNull::as_ptr).ok_or_else(|| {
                    let text = words!("the object has no part of type '{}'", record.name());
                    Fault::new(Code::WrongType, FUNCTION)
                        .at(object.address().as_ptr() as usize)
                        .because(text)
                })
            }
        })
    }

    /// The first item of an object, if its type keeps the items at the end.
    fn standstill_PyObject_GetItemData(object: *mut PyObject) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetItemData";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let object = call::typed_object(m, object, Code::WrongType)?;
                object.item_data().map(NonNull::as_ptr).ok_or_else(|| {
                    let text = "the type does not keep its items at the end";
                    Fault::new(Code::WrongType, FUNCTION)
                        .at(object.address().as_ptr() as usize)
                        .because(text)
                })
            }
        })
    }
}
