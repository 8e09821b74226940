//! A program may block a signal in its own threads, and wait for it. If one other thread of the
//! process does not block it, the signal arrives there, and ends the process. So the threads of a
//! pool block all signals but those that a thread causes itself.

/// Signals that a thread causes itself. They stay unblocked, because they arrive at that thread in
/// any case, and a blocked one ends the process without a call of its handler.
#[cfg(unix)]
const OWN_SIGNALS: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
];

/// The signals that a thread blocked before, and blocks again when the value is dropped.
#[cfg(unix)]
struct SignalsBlocked {
    before: libc::sigset_t,
}

/// Blocks the signals of this thread until the result is dropped. A thread that it starts meanwhile
/// has them blocked for good, so that a signal of the program arrives at the program's threads.
#[cfg(unix)]
pub(crate) fn block_signals() -> impl Drop {
    // SAFETY: rule *bounds*: the system writes to the two sets, for which all zeroes are valid.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        for signal in OWN_SIGNALS {
            libc::sigdelset(&raw mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        SignalsBlocked { before }
    }
}

#[cfg(unix)]
impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: rule *bounds*: the system reads the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

/// Does nothing on systems without signals.
#[cfg(not(unix))]
pub(crate) fn block_signals() -> impl Drop {
    struct NoSignals;
    impl Drop for NoSignals {
        fn drop(&mut self) {}
    }
    NoSignals
}

/// The signals that this thread blocks: bit 0 is signal 1. `None`: the system does not tell.
#[cfg(all(test, not(shuttle)))]
pub(crate) fn blocked_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let set = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}
