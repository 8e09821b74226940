//! Objects: counts, allocation, tracking, queries and destruction; weak references to them.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use standstill::dynamic::{self, Dying, Family, Head, TypeRecord, WeakCall};
use standstill::words;
use standstill::{Code, Fault, Mutator, safepoint};

use crate::blocks;
use crate::builtins;
use crate::call::{self, Given, export};
use crate::errors;
use crate::layout::{PyObject, PyTypeObject, PyVarObject};
use crate::thread;

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
    // SAFETY: rule *argument*: C gives up the reference.
    let dropped = unsafe {
        if Given::new(object.as_ptr()).here(FUNCTION).is_none() {
            return;
        }
        call::catching(FUNCTION, true, || dynamic::decref_slow(object))
    };
    if !dropped {
        call::refuse(FUNCTION);
    }
}

/// The record of a type from C, for an allocation.
fn allocatable<'a>(
    m: &Mutator,
    face: Given<'a, PyTypeObject>,
    function: &'static str,
) -> Result<&'a TypeRecord, Fault> {
    let record = face.record(m)?;
    if dynamic::is_checked(m) {
        face.face()?.check_intact(record, true, function);
    }
    Ok(record)
}

#[cold]
#[inline(never)]
fn generic_alloc_slow(face: Given<'_, PyTypeObject>, items: isize) -> *mut PyObject {
    const FUNCTION: &str = "PyType_GenericAlloc";
    call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
        let record = allocatable(m, face, FUNCTION)?;
        dynamic::allocate_tracked(m, record, items).map(NonNull::as_ptr).map_err(sized)
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
fn allocate(
    face: Given<'_, PyTypeObject>,
    items: isize,
    family: Family,
    function: &'static str,
) -> *mut PyObject {
    call::fallible(function, std::ptr::null_mut(), |m| {
        let record = allocatable(m, face, function)?;
        family_fits(record, family, function)?;
        if items < 0 {
            let text = words!("the number of items is {items}");
            return Err(Fault::new(Code::BadSize, function)
                .of_type(record.kept_name())
                .because(text));
        }
        dynamic::allocate(m, record, items, 0).map(NonNull::as_ptr).map_err(sized)
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
fn memory_given_back(object: Given<'_, PyObject>, family: Family, function: &'static str) {
    call::reported(function, (), |m| {
        let object = object.typed(m, Code::WrongAllocator).map_err(|mut fault| {
            if fault.code == Code::FreedPointer {
                fault.code = Code::DoubleFree;
                fault = fault.because("the object was freed before");
            }
            fault
        })?;
        // SAFETY: rule *argument*: C gives the memory back.
        unsafe { dynamic::free(m, object.address(), family) }
    });
}

/// An object whose destruction has begun, for functions that only deallocators may call. Fails for
/// other objects.
fn dying<'a>(
    m: &'a Mutator,
    object: Given<'a, PyObject>,
    function: &'static str,
) -> Result<Dying<'a>, Fault> {
    let object = object.object(m)?;
    match object.typed().filter(|object| object.count() == Some(0)) {
        // SAFETY: rule *argument*: a deallocator has called.
        Some(object) => Ok(unsafe { Dying::new(m, object) }),
        None => {
            let address = object.address().as_ptr() as usize;
            let fault = Fault::new(Code::NotAllowedHere, function).at(address);
            Err(fault.because("only deallocators may call this: the object still has references"))
        }
    }
}

#[cold]
#[inline(never)]
fn track_slow(object: Given<'_, PyObject>) {
    call::reported("PyObject_GC_Track", (), |m| object.typed(m, Code::NotGcObject)?.track(m));
}

#[cold]
#[inline(never)]
fn untrack_slow(object: Given<'_, PyObject>) {
    call::reported("PyObject_GC_UnTrack", (), |m| object.typed(m, Code::NotGcObject)?.untrack(m));
}

export! {
    /// Adds a reference.
    #[given(object)]
    fn standstill_Py_IncRef(object: *mut PyObject) {
        const FUNCTION: &str = "Py_IncRef";
        if let Some(object) = object.here(FUNCTION)
            && !object.incref()
        {
            call::refuse(FUNCTION);
        }
    }

    /// Drops a reference.
    fn standstill_Py_DecRef(object: *mut PyObject) {
        let Some(object) = NonNull::new(object) else { return };
        // SAFETY: rule *argument*: C gives up the reference.
        unsafe {
            if call::is_special() {
                decref_slow(object);
            } else if !dynamic::decref_common(object) {
                decref_last(object);
            }
        }
    }

    /// The number of references.
    #[given(object)]
    fn standstill_Py_REFCNT(object: *mut PyObject) -> isize {
        const FUNCTION: &str = "Py_REFCNT";
        call::outside(FUNCTION, 0, || {
            let object = object.needed_here(FUNCTION);
            object.map_or(0, |object| object.count().map_or(IMMORTAL, |count| count as isize))
        })
    }

    /// The number of items.
    #[given(object)]
    fn standstill_Py_SIZE(object: *mut PyObject) -> isize {
        const FUNCTION: &str = "Py_SIZE";
        let Some(object) = object.needed_here(FUNCTION) else { return 0 };
        let size = match object.typed() {
            Some(object) => object.size(),
            None => {
                let address = object.address().as_ptr() as usize;
                Err(Fault::new(Code::WrongType, FUNCTION).at(address))
            }
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
    #[given(face)]
    fn standstill_PyType_GenericAlloc(face: *mut c_void, items: isize) -> *mut PyObject {
        let face = face.to_type();
        if let Some(m) = thread::at_hand()
            && let Ok(known) = face.face()
            && !call::is_special()
            && let Some(record) = known.shown_record()
            && items == 0
            && !safepoint::is_traversing()
            && let Some(object) = dynamic::allocate_common(m, record)
        {
            return object.as_ptr();
        }
        generic_alloc_slow(face, items)
    }

    /// Allocates a container object, untracked.
    #[given(face)]
    fn standstill__PyObject_GC_New(face: *mut PyTypeObject) -> *mut PyObject {
        allocate(face, 0, Family::Container, "PyObject_GC_New")
    }

    /// Allocates a container object with items, untracked.
    #[given(face)]
    fn standstill__PyObject_GC_NewVar(face: *mut PyTypeObject, items: isize) -> *mut PyVarObject {
        allocate(face, items, Family::Container, "PyObject_GC_NewVar").cast()
    }

    /// Allocates a plain object.
    #[given(face)]
    fn standstill__PyObject_New(face: *mut PyTypeObject) -> *mut PyObject {
        allocate(face, 0, Family::Plain, "PyObject_New")
    }

    /// Allocates a plain object with items.
    #[given(face)]
    fn standstill__PyObject_NewVar(face: *mut PyTypeObject, items: isize) -> *mut PyVarObject {
        allocate(face, items, Family::Plain, "PyObject_NewVar").cast()
    }

    /// Allocates a container object with extra bytes at its end, untracked.
    #[given(face)]
    fn standstill_PyUnstable_Object_GC_NewWithExtraData(
        face: *mut PyTypeObject,
        extra: usize,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyUnstable_Object_GC_NewWithExtraData";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let record = allocatable(m, face, FUNCTION)?;
            family_fits(record, Family::Container, FUNCTION)?;
            if record.item_size() != 0 {
                let text = "the extra bytes would overlap the items";
                return Err(Fault::new(Code::BadSize, FUNCTION)
                    .of_type(record.kept_name())
                    .because(text));
            }
            dynamic::allocate(m, record, 0, extra).map(NonNull::as_ptr)
        })
    }

    /// Changes the number of items.
    #[given(object)]
    fn standstill__PyObject_GC_Resize(object: *mut PyVarObject, items: isize) -> *mut PyVarObject {
        call::fallible("PyObject_GC_Resize", std::ptr::null_mut(), |m| {
            let object = object.to_object().typed(m, Code::NotGcObject)?;
            // SAFETY: rule *argument*: C gives up the reference to the old object.
            unsafe { dynamic::resize(m, object.address(), items) }
                .map(|object| object.as_ptr().cast())
        })
    }

    /// Adds an object to the tracked set.
    #[given(object)]
    fn standstill_PyObject_GC_Track(object: *mut c_void) {
        let object = object.to_object();
        if let Some(m) = thread::at_hand()
            && let Some(object) = object.fast()
            && object.track_common(m)
        {
            return;
        }
        track_slow(object);
    }

    /// Removes an object from the tracked set.
    #[given(object)]
    fn standstill_PyObject_GC_UnTrack(object: *mut c_void) {
        let object = object.to_object();
        if let Some(m) = thread::at_hand()
            && let Some(object) = object.fast()
            && object.untrack_common(m)
        {
            return;
        }
        untrack_slow(object);
    }

    /// Frees the memory of a container object.
    #[given(object)]
    fn standstill_PyObject_GC_Del(object: *mut c_void) {
        let object = object.to_object();
        if let Some(m) = thread::at_hand()
            && let Some(object) = object.fast()
        {
            // SAFETY: rule *argument*: C gives the memory back.
            if unsafe { dynamic::free_common(m, object.address()) } {
                return;
            }
        }
        memory_given_back(object, Family::Container, "PyObject_GC_Del");
    }

    /// Frees the memory of a plain object, or a block.
    #[given(object)]
    fn standstill_PyObject_Free(object: *mut c_void) {
        const FUNCTION: &str = "PyObject_Free";
        if !object.is_null() && !blocks::is_freed(FUNCTION, object) {
            memory_given_back(object.to_object(), Family::Plain, FUNCTION);
        }
    }

    /// Whether the object is a container object.
    #[given(object)]
    fn standstill_PyObject_IS_GC(object: *mut PyObject) -> c_int {
        const FUNCTION: &str = "PyObject_IS_GC";
        call::catching(FUNCTION, 0, || {
            c_int::from(object.needed_here(FUNCTION).is_some_and(Head::is_gc))
        })
    }

    /// Whether the object is tracked now.
    #[given(object)]
    fn standstill_PyObject_GC_IsTracked(object: *mut PyObject) -> c_int {
        call::reported("PyObject_GC_IsTracked", 0, |m| {
            Ok(c_int::from(object.object(m)?.is_tracked(m)))
        })
    }

    /// Whether the object's finalizer has been called.
    #[given(object)]
    fn standstill_PyObject_GC_IsFinalized(object: *mut PyObject) -> c_int {
        call::reported("PyObject_GC_IsFinalized", 0, |m| {
            Ok(c_int::from(object.object(m)?.is_finalized(m)))
        })
    }

    /// Calls the finalizer, unless it has been called for this object before.
    #[given(object)]
    fn standstill_PyObject_CallFinalizer(object: *mut PyObject) {
        call::reported("PyObject_CallFinalizer", (), |m| {
            object.typed(m, Code::NotReady)?.call_finalizer(m);
            Ok(())
        });
    }

    /// Calls the finalizer at the start of a deallocator.
    #[given(object)]
    fn standstill_PyObject_CallFinalizerFromDealloc(object: *mut PyObject) -> c_int {
        const FUNCTION: &str = "PyObject_CallFinalizerFromDealloc";
        call::reported(FUNCTION, 0, |m| {
            Ok(-c_int::from(dying(m, object, FUNCTION)?.call_finalizer()))
        })
    }

    /// Clears the weak references to a dying object.
    #[given(object)]
    fn standstill_PyObject_ClearWeakRefs(object: *mut PyObject) {
        const FUNCTION: &str = "PyObject_ClearWeakRefs";
        call::reported(FUNCTION, (), |m| {
            dying(m, object, FUNCTION)?.clear_weak_references();
            Ok(())
        });
    }

    /// The part of an instance that a type reserves.
    #[given(object, class)]
    fn standstill_PyObject_GetTypeData(
        object: *mut PyObject,
        class: *mut PyTypeObject,
    ) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetTypeData";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let object = object.typed(m, Code::WrongType)?;
            let record = class.record(m)?;
            object.type_data(record).map(NonNull::as_ptr).ok_or_else(|| {
                let text = words!("the object has no part of type '{}'", record.name());
                Fault::new(Code::WrongType, FUNCTION)
                    .at(object.address().as_ptr() as usize)
                    .because(text)
            })
        })
    }

    /// The first item of an object, if its type keeps the items at the end.
    #[given(object)]
    fn standstill_PyObject_GetItemData(object: *mut PyObject) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetItemData";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let object = object.typed(m, Code::WrongType)?;
            object.item_data().map(NonNull::as_ptr).ok_or_else(|| {
                let text = "the type does not keep its items at the end";
                Fault::new(Code::WrongType, FUNCTION)
                    .at(object.address().as_ptr() as usize)
                    .because(text)
            })
        })
    }

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
