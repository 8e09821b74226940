//! Forks of the process. In the child, the heap of the forking thread is complete, and this thread
//! is its only one.
//!
//! The system calls handlers before and after each `fork`. If the forking thread is attached, the
//! first handler stops the world of its heap. In the parent, the second handler resumes the world.
//! In the child, the objects that other threads owned become unowned. Two cases are not handled:
//! the heaps to which the forking thread is not attached, and a thread that forks inside a handler.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Once;

use standstill::{Fork, Mutator};

use crate::thread;

thread_local! {
    /// The mutator and its stopped world, between the two calls around a fork. The value is never
    /// dropped. It needs no destructor, so a thread that is ending can fork too.
    static FORKING: Cell<Option<ManuallyDrop<(*mut Mutator, Fork<'static>)>>> =
        const { Cell::new(None) };
}

type Handler = Option<unsafe extern "C" fn()>;

// SAFETY: rule *bounds*: this is the declaration in the system's headers.
unsafe extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

/// Registers the handlers for forks, once.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: rule *bounds*: the three functions are fork handlers. If there is no memory to
        // register them, forks happen without them.
        let _ = unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

unsafe extern "C" fn prepare() {
    let Some(mutator) = thread::take_up() else { return };
    // SAFETY: rule *thread* of the crate: `take_up` has taken the mutator, so no other code uses it
    // until `give_back`, and the fork ends before that.
    match unsafe { &mut *mutator }.prepare_fork() {
        Ok(fork) => FORKING.set(Some(ManuallyDrop::new((mutator, fork)))),
        Err(_) => thread::give_back(mutator),
    }
}

unsafe extern "C" fn parent() {
    if let Some((mutator, fork)) = FORKING.take().map(ManuallyDrop::into_inner) {
        fork.parent();
        thread::give_back(mutator);
    }
}

unsafe extern "C" fn child() {
    if let Some((mutator, fork)) = FORKING.take().map(ManuallyDrop::into_inner) {
        fork.child();
        thread::give_back(mutator);
    }
}
