//! The guard of a thread that is detached under callers that rely on its attachment.

#![forbid(unsafe_code)]

use crate::base::event;

/// This thread is detached, or about to be, while code further up its stack relies on its attachment. See the
/// module's page.
///
/// Dropped, by a panic that passes above all, it ends the process: a thread that goes on with the proof of an attachment that it
/// does not have works on objects while the world is stopped.
#[must_use = "a thread that does not come back ends the process"]
#[derive(Debug)]
pub(crate) struct Away(());

impl Away {
    pub(super) fn leaving() -> Self {
        Self(())
    }

    /// The thread is attached again, or nobody relies on the attachment any more.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Away {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        if cfg!(all(test, any(loom, shuttle))) {
            // A model that fails unwinds out of wherever its threads are.
            return;
        }
        event::abort(format_args!(
            "standstill: a detached thread unwinds into code that relies on its attachment"
        ));
    }
}
