//! A fork handler of the program's own, which the system calls while the library keeps the world
//! stopped: what it calls here fails or is put off, and waits for nothing.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill_capi::errors::standstill_PyErr_Clear;
use standstill_capi::gc::standstill_PyGC_Collect;
use standstill_capi::thread::{
    standstill_Py_Initialize, standstill_Py_IsInitialized, standstill_PyEval_SaveThread,
    standstill_PyGILState_Ensure, standstill_PyGILState_Release, standstill_attach,
    standstill_detach,
};

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Forks, and waits for the child, which ends at once.
unsafe fn forks(in_child: fn()) {
    // SAFETY: as the caller says.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            in_child();
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
}

unsafe extern "C" fn handler() {
    // SAFETY: the arguments may be anything of the kind.
    unsafe {
        if CALLS.fetch_add(1, SeqCst) != 0 {
            return;
        }
        // The outer fork keeps what it has.
        forks(|| ());
        assert_eq!(standstill_PyGC_Collect(), 0);
        standstill_PyErr_Clear();
        assert_eq!(standstill_attach(std::ptr::null_mut()), -1);
        standstill_PyErr_Clear();
        assert!(standstill_PyEval_SaveThread().is_null());
        let state = standstill_PyGILState_Ensure();
        assert_eq!(standstill_PyGC_Collect(), 0);
        standstill_PyGILState_Release(state);
        standstill_PyErr_Clear();
        standstill_Py_Initialize();
        assert_eq!(standstill_Py_IsInitialized(), 0);
    }
}

#[test]
fn a_fork_handler_of_the_programs_own_waits_for_nothing() {
    // SAFETY: before the library's own handlers: of those for the time before a fork the last to
    // come is called first.
    unsafe {
        assert_eq!(libc::pthread_atfork(Some(handler), None, None), 0);
        assert_eq!(standstill_attach(std::ptr::null_mut()), 0);
        forks(|| {
            standstill_PyGC_Collect();
            assert_eq!(standstill_detach(), 0);
        });
        assert_eq!(CALLS.load(SeqCst), 2);
        standstill_PyGC_Collect();
        assert_eq!(standstill_detach(), 0);
    }
}
