//! Tests of `heap/collector_lock.rs`.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn requesters_acquire_the_lock_in_their_order() {
    let lock = CollectorLock::new();
    assert!(lock.try_acquire());
    let [first, second, third] = [(); 3].map(|()| lock.request());
    assert!(!first.try_acquire(), "it is taken");
    lock.release();
    assert!(!lock.try_acquire(), "a thread without a request comes last");
    assert!(!second.try_acquire(), "the first requester comes first");
    assert!(first.try_acquire());
    drop(first);
    drop(second);
    lock.release();
    assert!(!lock.try_acquire());
    assert!(third.try_acquire(), "the second has left");
    drop(third);
    lock.release();
    assert!(lock.try_acquire(), "no requester is left");
}

#[test]
fn a_requester_that_leaves_wakes_the_next() {
    let lock = CollectorLock::new();
    let (first, mut second) = (lock.request(), lock.request());
    std::thread::scope(|s| {
        let waits = s.spawn(|| {
            assert!(second.wait(Duration::from_secs(3600)).is_none());
            second.try_acquire()
        });
        while lock.state.lock().waiting == 0 {
            assert!(!waits.is_finished(), "it did not wait for the lock");
            std::thread::yield_now();
        }
        drop(first);
        assert!(waits.join().expect("no panic"));
    });
}

#[test]
fn a_wait_in_which_nothing_changes_is_overdue_and_again_when_it_has_doubled() {
    const SLOW_WAIT: Duration = Duration::from_millis(1);
    let lock = CollectorLock::new();
    assert!(lock.try_acquire());
    let (mut first, mut second) = (lock.request(), lock.request());
    let waited =
        |request: &mut Request<'_>| request.wait(SLOW_WAIT).expect("nothing changes").waited;
    assert_eq!([(); 4].map(|()| waited(&mut first)), [1, 2, 4, 8].map(|times| times * SLOW_WAIT));
    // Another requester does not report the same wait again.
    assert_eq!(waited(&mut second), 16 * SLOW_WAIT);
    assert_eq!(waited(&mut first), 32 * SLOW_WAIT);
    // The next thread has the lock: a new wait begins.
    lock.release();
    assert!(first.try_acquire());
    assert_eq!(waited(&mut second), SLOW_WAIT);
}

#[test]
fn a_child_of_a_fork_waits_for_no_thread_that_it_does_not_have() {
    let lock = CollectorLock::new();
    std::mem::forget(lock.request());
    assert!(!lock.try_acquire());
    assert!(lock.lock_for_fork().1.abandon().is_none(), "no thread collected");
    assert!(lock.try_acquire());
}

#[test]
fn a_child_of_a_fork_frees_the_lock_of_a_thread_that_it_does_not_have() {
    let lock = CollectorLock::new();
    let abandon = || lock.abandon_with(&mut lock.lock_for_fork().1).0;
    assert!(lock.try_acquire());
    let claims = |lost: Option<LostCollection>| lost.map(|lost| lost.all_unreachable);
    assert_eq!(claims(abandon()), Some(false));
    assert!(lock.try_acquire());
    lock.set_claimed();
    assert_eq!(claims(abandon()), Some(true));
    assert!(lock.try_acquire());
    lock.set_claimed();
    lock.set_releasing();
    let announced = lock.parks(&[]);
    assert_eq!(abandon().map(|lost| lost.parked.len()), Some(1));
    drop(announced);
    assert!(lock.try_acquire());
    // Also where the thread unwinds out of its stop.
    let unwinds = crate::base::outside::guarded(|| {
        let _announced = lock.parks(&[]);
        std::panic::panic_any(());
    });
    assert!(unwinds.is_err());
    assert_eq!(lock.claims(|_, _, parked| parked.len()), 0);
    assert_eq!(abandon().map(|lost| lost.parked.len()), Some(0));
    assert_eq!(claims(abandon()), None);
}
