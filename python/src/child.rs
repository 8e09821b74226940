//! Automatic collections whose search runs in a child process, while the program goes on.
//!
//! The search stops the program for a few milliseconds: to clone the process, and to prove a part
//! of what the child proposes. standstill's page of `collect/forked.rs` has the design, and this
//! file what the interpreter adds: when such a collection begins, how its thread waits, and which
//! garbage is left.
//!
//! # What is left
//!
//! A reference to a function, a type, a module or a code object may be deferred, and any generator
//! may have got one since the clone. So no stop for a part claims such an object, or what it holds
//! ([`PROVES`](standstill::model::Uncounted::PROVES)). It is proposed again by each child, and
//! found by the next search in a stop: `gc.collect()` is one, and so is the next automatic
//! collection if an eighth of the live objects ([`LEFT`]) is left.
//!
//! # How the wait ends
//!
//! | first of these | then |
//! |---|---|
//! | the child has ended | a stop for each part; without a proposal the search runs in a stop |
//! | half as many objects as are live are new, and 100,000 | the search runs in a stop |
//! | a thread wants to collect | the collection is over, and that thread collects |
//! | automatic collections end, or a block of `defer` is open at a look | the collection is over. It
//! is due again at once, and that one searches in a stop: blocks that come often must not end them
//! all |
//!
//! # Who may touch it
//!
//! All values are hints, so they are relaxed. The collecting thread writes all but [`FROM`], which
//! `install` writes.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, AtomicUsize, Ordering};

use standstill::CollectionReport;
use standstill::model::ChildWait;

use crate::automatic::{self, Place};
use crate::layout as c;
use crate::{pressure, switch};

/// If this part of the live objects is proposed garbage that is left, the next search runs in a
/// stop.
const LEFT: usize = 8;

/// So many new objects are no reason to end a child.
const FEW: usize = 100_000;

/// From how many live objects on a child searches. 0: never.
pub static FROM: AtomicUsize = AtomicUsize::new(0);

/// The next automatic collections that search in a stop.
static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// The children in a row that have failed.
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// The wait of the running collection was given up.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Whether the collection that begins on this thread searches in a child. `debug`: the flags of the
/// interpreter.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn is_wanted(interpreter: *mut c::PyInterpreterState, debug: i64) -> bool {
    GIVEN_UP.store(false, Ordering::Relaxed);
    let from = FROM.load(Ordering::Relaxed);
    // A thread of the program would wait for the child.
    if from == 0 || !automatic::is_current() || switch::place() != Place::Package || debug != 0 {
        return false;
    }
    // SAFETY: as the caller says.
    if unsafe { live(interpreter) } < from {
        return false;
    }
    let skipped = SKIPPED.load(Ordering::Relaxed);
    if skipped != 0 {
        SKIPPED.store(skipped - 1, Ordering::Relaxed);
    }
    skipped == 0
}

/// The objects after the last collection.
///
/// # Safety
///
/// The interpreter exists.
unsafe fn live(interpreter: *mut c::PyInterpreterState) -> usize {
    // SAFETY: as the caller says. Its collections write the number.
    unsafe {
        let live = AtomicIsize::from_ptr(&raw mut (*interpreter).gc.long_lived_total);
        live.load(Ordering::Relaxed).max(0) as usize
    }
}

/// Waits for the child, detached from the interpreter. See the [module's page](self).
///
/// # Safety
///
/// This thread collects, and is attached.
pub unsafe fn wait(
    interpreter: *mut c::PyInterpreterState,
    has_ended: &mut dyn FnMut() -> bool,
) -> ChildWait {
    let mut result = ChildWait::ToTheEnd;
    let mut is_over = || {
        // SAFETY: as the caller says: the interpreter exists while its thread is in a call.
        let (new, live) = unsafe {
            let new = pressure::new_objects(interpreter).load(Ordering::Relaxed);
            (new.max(0) as usize, live(interpreter))
        };
        if has_ended() {
            return true;
        }
        if automatic::is_wanted_elsewhere() {
            result = ChildWait::GivenUp;
        } else if !switch::runs() {
            result = ChildWait::GivenUp;
            SKIPPED.fetch_max(1, Ordering::Relaxed);
        } else if new > (live / 2).max(FEW) {
            result = ChildWait::Outgrown;
        }
        result != ChildWait::ToTheEnd
    };
    // SAFETY: as the caller says.
    unsafe { automatic::look_often(&mut is_over) };
    GIVEN_UP.store(result == ChildWait::GivenUp, Ordering::Relaxed);
    result
}

/// Whether the collection that ends was given up, so that nothing was done.
pub fn is_given_up() -> bool {
    GIVEN_UP.swap(false, Ordering::Relaxed)
}

/// The collection that was given up has counted so many objects as no longer new. They are new
/// again.
pub fn take_back(new: &AtomicI32, counted: i32) {
    automatic::forget_growth();
    new.fetch_add(counted.max(0), Ordering::Relaxed);
}

/// Decides, by the report of a collection that wanted a child, about the next ones.
///
/// # Safety
///
/// This thread collects, and is attached.
pub unsafe fn ended(interpreter: *mut c::PyInterpreterState, report: &CollectionReport) {
    let Some(child) = &report.child else {
        // As standstill does it with its own: 0, 2, 6, 14, 30, and then 62.
        let failed = FAILED.fetch_add(1, Ordering::Relaxed).min(5);
        SKIPPED.store((1 << (failed + 1)) - 2, Ordering::Relaxed);
        return;
    };
    FAILED.store(0, Ordering::Relaxed);
    // SAFETY: as the caller says.
    let most = unsafe { live(interpreter) } / LEFT;
    // Some proposed objects have died by themselves. If a part was abandoned, nobody knows.
    let left = child.examined.saturating_sub(report.unreachable);
    if report.abandoned.is_none() && left > most {
        SKIPPED.store(1, Ordering::Relaxed);
    }
}
