//! The id of a participant, unique in the process.

#![forbid(unsafe_code)]

use std::fmt;
use std::num::NonZeroU64;

/// The id of a participant. It is unique in the process, never reused, and below 2^40 - 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub(super) NonZeroU64);

/// The last id that was given out. It is the only static beside the thread-locals: ids must differ
/// between coordinators, because the `current` word does not name its coordinator. It is std's
/// atomic also under loom: loom's cannot be static. Relaxed: the numbers only have to
/// differ.
static LAST_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl ThreadId {
    /// The largest id: 2^40 - 3.
    pub const MAX: u64 = (1 << 40) - 3;

    /// The number; never 0.
    #[inline]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The id with this number. `None`: no id has this number.
    pub(crate) fn from_raw(id: u64) -> Option<Self> {
        if id > Self::MAX { None } else { NonZeroU64::new(id).map(Self) }
    }

    /// Whether an id with this number was given out.
    pub(crate) fn was_given(id: u64) -> bool {
        id != 0 && id <= LAST_ID.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// `None`: the process has used up its ids.
    pub(super) fn next() -> Option<Self> {
        Self::from_raw(LAST_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1)
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// In a process of its own, because it uses up the ids of the process.
    #[test]
    fn when_the_ids_are_used_up_attaching_is_an_error_and_others_go_on() {
        const CHILD: &str = "STANDSTILL_IDS_CHILD";
        const NAME: &str = "safepoint::thread_id::tests::\
            when_the_ids_are_used_up_attaching_is_an_error_and_others_go_on";
        if std::env::var_os(CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().expect("a program"));
            let output = child.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output();
            let output = output.expect("a child");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
            return;
        }
        let heap = crate::Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap");
        let second = crate::Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap");
        let mut m = heap.attach();
        let kept = m.alloc(7u64);
        LAST_ID.store(ThreadId::MAX - 1, std::sync::atomic::Ordering::Relaxed);
        // The last id works.
        std::thread::scope(|scope| {
            m.detach(|| {
                let last = scope.spawn(|| {
                    let _attached = heap.attach();
                    assert_eq!(*kept, 7);
                });
                last.join().expect("the last id");
            });
        });
        for _ in 0..3 {
            let error = m.detach(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| heap.try_attach().err()).join().expect("no panic")
                })
            });
            assert_eq!(error, Some(crate::AttachError::NoThreadIds));
        }
        // A heap can end without an id. It reports that it did not collect.
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        second
            .on_unraisable(move |unraisable| heard.lock().unwrap().push(format!("{unraisable:?}")));
        m.detach(|| drop(second));
        let told = told.lock().unwrap();
        assert!(told.len() == 1 && told[0].contains("no thread ids are left"), "{told:?}");
        // This thread goes on, and a stop does not wait for the refused threads.
        assert_eq!(m.collect().abandoned, None);
        assert_eq!(*kept, 7);
        m.verify().expect("a whole heap");
    }
}
