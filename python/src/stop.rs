//! The stop of the interpreter, and the flag that admits one collector at a time.
//!
//! | thread | action | meaning |
//! |---|---|---|
//! | the collecting thread | sets `interp->gc.collecting` | CPython's collector returns at once,
//! and so does another call of this one |
//! | the same thread | `_PyEval_StopTheWorld` | all other threads of the interpreter are parked, or
//! detached from it |
//!
//! Both are CPython's own, so CPython's collector and this one never run at the same time.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::layout as c;

/// The functions of the interpreter that stop and start it. They are found at import, because a
/// version that lacks one is no reason to fail the import.
#[derive(Clone, Copy)]
pub struct StopFunctions {
    /// `_PyEval_StopTheWorld`
    pub stop: unsafe extern "C" fn(*mut c::PyInterpreterState),
    /// `_PyEval_StartTheWorld`
    pub start: unsafe extern "C" fn(*mut c::PyInterpreterState),
}

/// Admission to collect. Dropping it admits the next one.
pub struct Collecting(*mut c::PyInterpreterState);

impl Collecting {
    /// `None`: a collection is running.
    ///
    /// # Safety
    ///
    /// The interpreter exists as long as the value.
    pub unsafe fn try_begin(interpreter: *mut c::PyInterpreterState) -> Option<Self> {
        // SAFETY: as the caller says.
        let flag = unsafe { flag(interpreter) };
        // SeqCst, as in CPython's own collector: a thread that reads 0 sees all of the last
        // collection.
        flag.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).ok().map(|_| {
            // SAFETY: as the caller says. Only the collecting thread writes the field.
            #[cfg(py315)]
            unsafe {
                (*interpreter).gc.frame =
                    (*pyo3_ffi::PyThreadState_Get().cast::<c::PyThreadState>()).current_frame;
            }
            Self(interpreter)
        })
    }
}

impl Collecting {
    /// Whether a collection runs. The thread may be detached.
    ///
    /// # Safety
    ///
    /// The interpreter exists.
    pub unsafe fn is_taken(interpreter: *mut c::PyInterpreterState) -> bool {
        // SAFETY: as the caller says. Relaxed: the caller looks again.
        unsafe { flag(interpreter) }.load(Ordering::Relaxed) != 0
    }

    /// In the child of a fork: ends the collection of a thread that does not exist here.
    ///
    /// # Safety
    ///
    /// The process has one thread, and the interpreter exists.
    pub unsafe fn end_of_lost_thread(interpreter: *mut c::PyInterpreterState) {
        drop(Self(interpreter));
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        // SAFETY: `try_begin`'s caller.
        unsafe {
            #[cfg(py315)]
            {
                (*self.0).gc.frame = std::ptr::null_mut();
            }
            flag(self.0).store(0, Ordering::SeqCst);
        }
    }
}

/// # Safety
///
/// The interpreter exists.
unsafe fn flag<'a>(interpreter: *mut c::PyInterpreterState) -> &'a AtomicI32 {
    // SAFETY: as the caller says. CPython accesses the field by atomic operations too.
    unsafe { AtomicI32::from_ptr(&raw mut (*interpreter).gc.collecting) }
}
