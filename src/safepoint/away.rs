//! A guard for a detached thread, while its callers rely on its attachment.

#![forbid(unsafe_code)]

use crate::base::event;

/// This thread is detached, or about to be, while its callers rely on its attachment. See the page
/// of [`safepoint`](super).
///
/// If a panic drops it, the process ends. Otherwise the callers would go on with the proof of an
/// attachment that does not exist, and use objects while the world is stopped.
#[must_use = "a thread that does not come back ends the process"]
#[derive(Debug)]
pub(crate) struct Away(());

impl Away {
    pub(super) fn leaving() -> Self {
        Self(())
    }

    /// The thread is attached again, or no caller relies on the attachment any more.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Away {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        if cfg!(all(test, any(loom, shuttle))) {
            // A model that fails unwinds from anywhere.
            return;
        }
        event::abort(format_args!(
            "standstill: a detached thread unwinds into code that relies on its attachment"
        ));
    }
}
