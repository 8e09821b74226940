//! A fork of the process: the heap of the forking thread is whole in the child, with this thread as its only one.
//!
//! The system calls back around each `fork`. A thread that is attached stops its heap's world before, and lets it go on after, in
//! the parent; in the child the objects of the threads that do not exist there are nobody's. Heaps that the forking thread is not
//! attached to are not looked after, nor is a thread that forks inside a handler.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Once;

use standstill::{Fork, Mutator};

use crate::thread;

thread_local! {
    /// Between the two calls around a fork: the mutator, and its stopped world. Never dropped, so it needs no destructor, and a
    /// thread that is ending can fork too.
    static FORKING: Cell<Option<ManuallyDrop<(*mut Mutator, Fork<'static>)>>> = const { Cell::new(None) };
}

type Handler = Option<unsafe extern "C" fn()>;

// SAFETY: rule B: declared as the system's headers have it.
unsafe extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

/// Asks the system to be called around forks.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: rule B: the three are for this. Should there be no memory for them, a child has only what it had
        // without.
        let _ = unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

unsafe extern "C" fn prepare() {
    let Some(mutator) = thread::take_up() else { return };
    // SAFETY: rule T of the crate: nobody else has it now, until `give_back`; and the fork is over before that.
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
