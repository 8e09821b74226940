//! Signals do not arrive at the package's thread.
//!
//! A program may block a signal in its own threads, and wait for it with `signal.sigwait`. If one
//! other thread of the process does not block it, the signal arrives there, and ends the process.

/// Signals that a thread causes itself. They arrive at that thread, blocked or not, and a blocked
/// one ends the process without a call of its handler.
const OWN: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
];

/// All signals of this thread are blocked until this value is dropped. A thread that it starts
/// meanwhile has them blocked for good.
pub struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    pub fn new() -> Self {
        // SAFETY: the system writes to the two sets, for which all zeroes are valid.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            for signal in OWN {
                libc::sigdelset(&raw mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the system reads the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}
