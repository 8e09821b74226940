//! Forks of the process. The child has only the forking thread, although other threads may have
//! been changing heaps or holding locks. The handlers of this file make all heaps complete there.
//!
//! The system calls handlers before and after each `fork`. The first one detaches the thread, if it
//! is attached, and stops the worlds of all heaps. It also takes the locks of this library
//! (`docs/fork.md`), so that no other thread holds one. The second one releases all this. In the
//! child, the objects of the other threads also become unowned, and their collections are
//! abandoned, because these threads do not exist there. Then the thread attaches again.
//!
//! Nothing is prepared if the thread forks where it cannot detach: in a destructor, a finalizer, a
//! hook or a traverse handler. Nor if memory is short, or if no stop can succeed, because a thread
//! has ended attached. The child may then use no heap, which suffices for most, because they call
//! `exec`.
//!
//! Handlers of the program that were registered before these are called between them. Later ones
//! are called before `prepare`, and after `parent` or `child`.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use standstill::{Code, DetachedFork, Fault, Heap, fallible};

use crate::thread::{self, ForkingThread};
use crate::{builtins, errors, types, world};

thread_local! {
    /// From `Box::into_raw`, between the two calls around a fork. A pointer needs no destructor, so
    /// that a thread that is ending can fork too.
    static FORKING: Cell<*mut Forking> = const { Cell::new(std::ptr::null_mut()) };
    /// How many forks the thread is inside. A fork handler of the program may fork, too, for which
    /// nothing is prepared, because the outer fork has stopped all heaps until it ends.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// What a fork holds.
struct Forking {
    locks: Locks,
    fork: DetachedFork<'static>,
    heaps: StoppedHeaps,
    thread: ForkingThread,
}

/// The heaps that [`Forking::fork`] borrows: from `Box::into_raw`.
struct StoppedHeaps(*mut [Heap]);

impl Drop for StoppedHeaps {
    fn drop(&mut self) {
        // SAFETY: rule *pinned*: from `Box::into_raw`, and what has borrowed it is gone.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// The locks of the library that threads take without being attached, in the order in which a
/// thread may take several.
struct Locks {
    _default_heap: MutexGuard<'static, ()>,
    _builtins: MutexGuard<'static, ()>,
    _types: types::ForkLocks,
    _heaps: MutexGuard<'static, world::Heaps>,
    _hooks: errors::KeptHooks,
}

impl Locks {
    /// `None`: there are other heaps than these, which were stopped.
    fn new(stopped: &[Heap]) -> Option<Self> {
        Some(Self {
            _default_heap: world::lock_start_for_fork(),
            _builtins: errors::locked(&builtins::STARTING),
            _types: types::lock_for_fork(),
            _heaps: world::lock_list_for_fork(stopped)?,
            _hooks: errors::KeptHooks::new(),
        })
    }
}

/// The fault of a function that a fork handler of the program calls, while this thread holds the
/// locks that the function takes.
pub(crate) fn must_not_be_inside(function: &'static str) -> Result<(), Fault> {
    if FORKING.get().is_null() {
        return Ok(());
    }
    Err(Fault::new(Code::NotAllowedHere, function).because("the thread is inside a fork"))
}

type Handler = Option<unsafe extern "C" fn()>;

// SAFETY: rule *bounds*: this is the declaration in the system's headers.
unsafe extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

/// Registers the handlers for forks. The first threads may register them more than once, which
/// [`DEPTH`] makes harmless: no thread waits for another one, which a child might not have.
pub(crate) fn watch() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    // Acquire: pairs with the store below, so that the handlers are there.
    if IS_WATCHED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: rule *bounds*: the three functions are fork handlers. If there is no memory to
    // register them, forks happen without them.
    let _ = unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    // Release: pairs with the load above.
    IS_WATCHED.store(true, Ordering::Release);
}

/// Stops all heaps, and takes the locks. `None`: a world cannot be stopped, or memory is short.
fn stop_all() -> Option<(Locks, DetachedFork<'static>, StoppedHeaps)> {
    loop {
        let heaps = world::all_heaps().ok()?;
        let heaps = StoppedHeaps(Box::into_raw(heaps.into_boxed_slice()));
        // SAFETY: rule *pinned*: `heaps` is dropped after the fork that borrows it.
        let stopped: &'static [Heap] = unsafe { &*heaps.0 };
        let (fork, locks) = Heap::prepare_fork_with(stopped, || Locks::new(stopped)).ok()?;
        // None, because a thread that is not attached has made a heap meanwhile.
        match locks {
            Some(locks) => return Some((locks, fork, heaps)),
            None => fork.parent(),
        }
    }
}

unsafe extern "C" fn prepare() {
    if DEPTH.replace(DEPTH.get() + 1) != 0 {
        return;
    }
    let Ok(mut room) = fallible::boxed(MaybeUninit::uninit()) else { return };
    let Some(thread) = thread::put_down() else { return };
    let Some((locks, fork, heaps)) = stop_all() else { return thread::take_up(thread) };
    room.write(Forking { locks, fork, heaps, thread });
    FORKING.set(Box::into_raw(room).cast());
}

/// Ends what `prepare` has begun. The end of a [`DetachedFork`] repairs a child.
unsafe extern "C" fn parent() {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    if DEPTH.get() != 0 {
        return;
    }
    let forking = FORKING.replace(std::ptr::null_mut());
    if forking.is_null() {
        return;
    }
    // SAFETY: rule *pinned*: from `Box::into_raw` in `prepare`, and taken once.
    let Forking { locks, fork, heaps, thread } = *unsafe { Box::from_raw(forking) };
    drop(locks);
    drop(fork);
    thread::take_up(thread);
    // Last, because a heap whose last handle was dropped meanwhile ends here.
    drop(heaps);
}

unsafe extern "C" fn child() {
    // SAFETY: rule *pinned*: it takes what `prepare` has left, once.
    unsafe { parent() }
}
