//! Tests of the count of held locks.

#![forbid(unsafe_code)]

use super::*;
use crate::safepoint::lock;

#[test]
fn each_lock_counts_as_long_as_it_is_held() {
    let (mutex, rw, survives_forks) = (Mutex::new(1), RwLock::new(2), lock::ForkMutex::new(3));
    assert!(!are_locks_held());
    let first = mutex.lock();
    assert!(are_locks_held());
    let second = rw.write();
    drop(first);
    assert!(are_locks_held());
    drop(second);
    assert!(!are_locks_held());
    let third = rw.try_read();
    assert!(are_locks_held());
    drop(third);
    let condition = lock::ForkCondvar::new();
    let (fourth, timed_out) =
        condition.wait_for(survives_forks.lock(), std::time::Duration::from_millis(1));
    assert!(timed_out && are_locks_held());
    drop(fourth);
    assert!(!are_locks_held());
}

#[test]
fn a_lock_that_is_set_aside_does_not_count_and_others_do() {
    let (outer, inner) = (Mutex::new(1), Mutex::new(2));
    let held = outer.lock();
    let aside = Aside::all();
    assert!(!are_locks_held());
    let second = inner.lock();
    assert!(are_locks_held());
    drop(second);
    assert!(!are_locks_held());
    drop(aside);
    assert!(are_locks_held());
    // Dropped in the other order, as the locks of a fork are.
    let aside = Aside::all();
    drop(held);
    drop(aside);
    assert!(!are_locks_held());
}
