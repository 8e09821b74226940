#![forbid(unsafe_code)]

use std::thread;

use crate::{GcCondvar, Heap};

/// In the child of a fork.
#[test]
fn a_notification_passes_waiters_of_another_process_over() {
    let heap = Heap::new();
    let m = heap.attach();
    let condvar = GcCondvar::new();
    let lost = (std::process::id() ^ 1, thread::current());
    for notify in [GcCondvar::notify_one, GcCondvar::notify_all] {
        condvar.waiters.lock(&m).0.extend([lost.clone(), lost.clone()]);
        condvar.add_waiter(&m);
        condvar.add_waiter(&m);
        notify(&condvar, &m);
        let left = condvar.waiters.take(&m).0.len();
        assert!(left < 2, "the notification went to a lost thread");
    }
}
