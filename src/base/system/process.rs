//! A copy of the process, made by a bare `clone`.
//!
//! `fork` of the C library runs the handlers of all libraries of the program, and makes its own
//! allocator usable in the child. A child that needs neither is one call of the system: no handler
//! runs, no signal tells the parent's runtime about its end, and it shares the table of open files,
//! so that no copy of a socket stays open in it.
//!
//! | | the child |
//! |---|---|
//! | threads | the one that cloned |
//! | signals | all are blocked, and the system's own action ends it after a fault, without a core file |
//! | the parent's thread ends | so does the child |
//! | memory runs out | the system ends it before any other process |
//! | its end | is seen by [`Process::wait`] alone; a `wait` of the program for any child does not see it |
//!
//! Only Linux has such a call.

use std::io;
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::time::Instant;

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    /// By [`leave_child`].
    Left(i32),
    /// A signal has ended it.
    Signal(i32),
    /// It took too long, and was ended.
    Late,
    /// The program has waited for it with flags of the system for such children, so that its end is
    /// unknown.
    Unknown,
}

/// A child that has not been waited for.
#[derive(Debug)]
pub(crate) struct Process {
    #[cfg(target_os = "linux")]
    id: libc::pid_t,
}

/// Which of the two processes goes on.
#[derive(Debug)]
pub(crate) enum Cloned {
    /// The child.
    Child,
    /// The process that has cloned.
    Parent(Process),
}

#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn clone_process() -> io::Result<Cloned> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn at_most_a_second(f: impl FnOnce()) {
    f();
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn leave_child(code: i32) -> ! {
    std::process::exit(code)
}

#[cfg(not(target_os = "linux"))]
impl Process {
    pub(crate) fn wait(self, _limit: Duration) -> ChildEnd {
        ChildEnd::Unknown
    }
}

/// Copies the process. The signals of this thread are blocked, and stay so in the child.
///
/// # Safety
///
/// The child calls nothing that may wait for another thread of the parent, such as a lock that one
/// may hold: no allocator, and no function that buffers. It ends by [`leave_child`].
///
/// # Errors
///
/// Those of the system, which may be out of memory or processes, or may forbid the call.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn clone_process() -> io::Result<Cloned> {
    if cfg!(miri) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: rule *bounds*: calls of the system, with sets for which all zeroes are valid. Without
    // a stack of its own and without shared memory, the child goes on here on a copy of this one.
    let (id, error) = unsafe {
        let (mut all, mut before): (libc::sigset_t, _) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let files = libc::CLONE_FILES as libc::c_long;
        let id = libc::syscall(libc::SYS_clone, files, 0, 0, 0, 0);
        if id == 0 {
            settle_child();
            return Ok(Cloned::Child);
        }
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        (id, error)
    };
    if id < 0 { Err(error) } else { Ok(Cloned::Parent(Process { id: id as libc::pid_t })) }
}

/// Makes the child one that nobody has to care for.
#[cfg(target_os = "linux")]
fn settle_child() {
    // SAFETY: rule *bounds*: calls of the system with constant arguments. The actions for signals
    // are the child's own.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        // `abort` unblocks its signal. For others the system ignores a handler that is blocked.
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        let file =
            libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, c"1000".as_ptr().cast(), 4);
            libc::close(file);
        }
    }
}

/// Calls `f` in the child, and lets a signal end the child if that takes more than a second.
#[cfg(target_os = "linux")]
pub(crate) fn at_most_a_second(f: impl FnOnce()) {
    // SAFETY: rule *bounds*: calls of the system, with values for which all zeroes are valid.
    unsafe {
        let mut alarm: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const alarm, std::ptr::null_mut());
        libc::alarm(1);
        f();
        libc::alarm(0);
    }
}

/// Ends the child, without a handler of the program.
#[cfg(target_os = "linux")]
pub(crate) fn leave_child(code: i32) -> ! {
    // SAFETY: rule *bounds*: a call of the system.
    unsafe { libc::_exit(code) }
}

#[cfg(target_os = "linux")]
impl Process {
    /// Waits for the end of the child, and ends it after `limit`.
    pub(crate) fn wait(self, limit: Duration) -> ChildEnd {
        let begun = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            if let Some(end) = self.ended(libc::WNOHANG) {
                return end;
            }
            if begun.elapsed() >= limit {
                // SAFETY: rule *bounds*: nobody has waited for this child, so the number is its.
                unsafe { libc::kill(self.id, libc::SIGKILL) };
                return match self.ended(0) {
                    Some(ChildEnd::Left(code)) => ChildEnd::Left(code),
                    _ => ChildEnd::Late,
                };
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// The end, if the child has ended, or without a flag when it does.
    fn ended(&self, flags: libc::c_int) -> Option<ChildEnd> {
        let mut status = 0;
        loop {
            // SAFETY: rule *bounds*: the system writes the status.
            let id = unsafe { libc::waitpid(self.id, &raw mut status, libc::__WALL | flags) };
            if id == 0 {
                return None;
            }
            if id == self.id {
                return Some(if libc::WIFEXITED(status) {
                    ChildEnd::Left(libc::WEXITSTATUS(status))
                } else {
                    ChildEnd::Signal(libc::WTERMSIG(status))
                });
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Some(ChildEnd::Unknown);
            }
        }
    }
}
