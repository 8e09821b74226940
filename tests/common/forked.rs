//! Threads in the child of a fork. Apart from `mod.rs`: many tests forbid `unsafe`.

use std::ffi::c_void;

/// Calls `f` on a new thread in the child of a fork, and waits for its end. A panic of `f` ends the
/// process.
///
/// The thread is none of `std`: `std` locks a mutex while one of its threads starts or ends. If a
/// thread of the parent does so at the moment of the fork, the child's copy of the mutex stays
/// locked, and no thread of `std` begins there. The pool of a heap has threads that start at any
/// time.
pub(crate) fn on_new_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    extern "C" fn start<F: FnOnce()>(call: *mut c_void) -> *mut c_void {
        // SAFETY: `on_new_thread` passes its call, and does not use it until this thread has ended.
        let call = unsafe { &mut *call.cast::<Option<F>>() };
        call.take().expect("one call")();
        std::ptr::null_mut()
    }
    fn start_of<F: FnOnce()>(_: &Option<F>) -> extern "C" fn(*mut c_void) -> *mut c_void {
        start::<F>
    }

    let mut result = None;
    let mut call = Some(|| result = Some(f()));
    // SAFETY: any bits are a thread's number, and the system writes it. The call lives until the
    // thread has ended.
    unsafe {
        let mut thread = std::mem::zeroed();
        let (start, data) = (start_of(&call), (&raw mut call).cast());
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), start, data), 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
    }
    result.expect("the thread has called it")
}
