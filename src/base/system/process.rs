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
//! | signals | all are blocked, but for its own alarm; after a fault the system's own action ends it, without a core file |
//! | the parent's thread ends | so does the child, unless only the end of the process [ends](Bound) it |
//! | memory runs out | the system ends it before any other process, unless it ends the whole control group, or the process may not, or does, ask for the same |
//! | its end | is seen by its [`ChildProcess`] alone; a `wait` of the program for any child does not see it |
//! | the parent forks | the copy has a [`ChildProcess`] without effect, because the child is not its own |
//!
//! It is for Linux with glibc, because `abort` of musl sends its signal to the thread that the C
//! library remembers, which is one of the parent; and for processors on which the call has its
//! arguments in this order.

use std::io;
use std::time::Duration;

pub(crate) use self::platform::{IS_POSSIBLE, clone_process, leave_child, leave_orphan};

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    /// By [`leave_child`].
    Left(i32),
    /// A signal has ended it.
    Signal(i32),
    /// It took too long, and was ended.
    Late,
    /// The system does not tell.
    Unknown,
}

/// Whose end is the end of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// That of the thread that has cloned it.
    Thread,
    /// That of the parent, for which the child looks ([`leave_orphan`]). It has no open files,
    /// since a parent that has ended must not leave any open.
    Process,
}

/// A child. It is ended with this value, unless it was waited for.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    id: i32,
    /// The process that has cloned it. A fork of that one copies this value.
    parent: u32,
    /// Its end is known, so that another process may have its number.
    is_over: bool,
}

/// Which of the two processes goes on.
pub(crate) enum Cloned {
    /// The child.
    Child,
    /// The process that has cloned.
    Parent(ChildProcess),
}

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"),
    not(miri)
)))]
mod platform {
    use super::{Bound, ChildEnd, ChildProcess, Cloned, Duration, io};

    pub(crate) const IS_POSSIBLE: bool = false;

    pub(crate) unsafe fn clone_process(
        _: Duration,
        _: Bound,
        _: impl FnOnce(),
    ) -> io::Result<Cloned> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn leave_child(code: i32) -> ! {
        std::process::exit(code)
    }

    pub(crate) fn leave_orphan(_: u32) {}

    impl ChildProcess {
        pub(crate) fn wait(self, _: Duration) -> ChildEnd {
            ChildEnd::Unknown
        }

        pub(crate) fn ended(&mut self) -> Option<ChildEnd> {
            Some(ChildEnd::Unknown)
        }
    }
}

#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"),
    not(miri)
))]
mod platform {
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::time::Instant;

    use super::{Bound, ChildEnd, ChildProcess, Cloned, Duration, io};

    /// Whether there can be children.
    pub(crate) const IS_POSSIBLE: bool = true;

    /// How long the end of a killed child is awaited. It takes longer to free much memory.
    const DYING: Duration = Duration::from_millis(2);

    /// Children that were killed and had not ended yet, by their numbers. 0: none.
    static KILLED: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

    /// Lets the system forget the killed children that have ended since.
    fn forget_killed() {
        for slot in &KILLED {
            // Relaxed, here and below: the numbers order nothing.
            let id = slot.swap(0, Ordering::Relaxed);
            let mut child = ChildProcess { id, parent: std::process::id(), is_over: id == 0 };
            if id != 0 && child.ended().is_none() {
                remember_killed(id);
            }
            child.is_over = true;
        }
    }

    /// Without room for its number, an ended child stays in the system's list until the parent
    /// ends.
    fn remember_killed(id: i32) {
        let is_free = |slot: &&AtomicI32| {
            slot.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        KILLED.iter().find(is_free);
    }

    /// Copies the process. The child first calls `prepare`, and a signal ends it if that takes more
    /// than a second; and after `limit` in any case, also if the parent may not send it one.
    ///
    /// # Safety
    ///
    /// After `prepare` the child calls nothing that may wait for another thread of the parent, such
    /// as a lock that one may hold: no allocator, and no function that buffers. It ends by
    /// [`leave_child`].
    ///
    /// # Errors
    ///
    /// Those of the system, which may be out of memory or processes, or may forbid the call.
    pub(crate) unsafe fn clone_process(
        limit: Duration,
        bound: Bound,
        prepare: impl FnOnce(),
    ) -> io::Result<Cloned> {
        // SAFETY: rule *bounds*: calls of the system, with sets for which all zeroes are valid.
        // Without a stack of its own and without shared memory, the child goes on here on a copy of
        // this one.
        let (id, error) = unsafe {
            let (mut all, mut before): (libc::sigset_t, _) =
                (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let parent = libc::getpid();
            let files = libc::CLONE_FILES as libc::c_long;
            forget_killed();
            let id = libc::syscall(libc::SYS_clone, files, 0, 0, 0, 0);
            if id == 0 {
                settle_child(parent, limit, bound, prepare);
                return Ok(Cloned::Child);
            }
            let error = io::Error::last_os_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            (id, error)
        };
        if id < 0 {
            Err(error)
        } else {
            let parent = std::process::id();
            Ok(Cloned::Parent(ChildProcess { id: id as libc::pid_t, parent, is_over: false }))
        }
    }

    /// Makes the child one that nobody has to care for.
    fn settle_child(parent: libc::pid_t, limit: Duration, bound: Bound, prepare: impl FnOnce()) {
        // SAFETY: rule *bounds*: calls of the system, with a set for which all zeroes are valid.
        // The actions for signals are the child's own.
        unsafe {
            let mut alarm: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut alarm, libc::SIGALRM);
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const alarm, std::ptr::null_mut());
            libc::alarm(1);
            if bound == Bound::Process {
                // First, because a child that is killed must not leave a file open in the parent.
                // Of a table of its own. Without the call, the files stay shared and open.
                let unshare = libc::CLOSE_RANGE_UNSHARE;
                libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, unshare);
            }
            // Before the process is made undumpable, because the file belongs to root then.
            let file =
                libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, c"1000".as_ptr().cast(), 4);
                libc::close(file);
            }
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            if bound == Bound::Thread {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
            if libc::getppid() != parent {
                leave_child(1);
            }
            // `abort` unblocks its signal. For others the system ignores a handler that is blocked.
            // The C library may take a lock here.
            libc::signal(libc::SIGABRT, libc::SIG_DFL);
            prepare();
            libc::alarm(u32::try_from(limit.as_secs()).unwrap_or(u32::MAX));
        }
    }

    /// Ends the child if the process `parent`, which has cloned it, has ended.
    pub(crate) fn leave_orphan(parent: u32) {
        if std::os::unix::process::parent_id() != parent {
            leave_child(1);
        }
    }

    /// Ends the child, without a handler of the program.
    pub(crate) fn leave_child(code: i32) -> ! {
        // SAFETY: rule *bounds*: a call of the system.
        unsafe { libc::_exit(code) }
    }

    impl ChildProcess {
        /// Waits for the end of the child, and ends it after `limit`.
        pub(crate) fn wait(mut self, limit: Duration) -> ChildEnd {
            let end = self.ended_within(limit);
            // Dropped, it is ended.
            end.unwrap_or(ChildEnd::Late)
        }

        fn ended_within(&mut self, limit: Duration) -> Option<ChildEnd> {
            let begun = Instant::now();
            let mut pause = Duration::from_micros(100);
            loop {
                if let Some(end) = self.ended() {
                    return Some(end);
                }
                if begun.elapsed() >= limit {
                    return None;
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }

        /// The end, if the child has ended.
        pub(crate) fn ended(&mut self) -> Option<ChildEnd> {
            let mut status = 0;
            // SAFETY: rule *bounds*: the system writes the status.
            let id =
                unsafe { libc::waitpid(self.id, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if id == 0 {
                return None;
            }
            if id < 0 {
                let error = io::Error::last_os_error();
                self.is_over = error.raw_os_error() == Some(libc::ECHILD);
                let is_interrupted = error.kind() == io::ErrorKind::Interrupted;
                return (!is_interrupted).then_some(ChildEnd::Unknown);
            }
            self.is_over = true;
            Some(if libc::WIFEXITED(status) {
                ChildEnd::Left(libc::WEXITSTATUS(status))
            } else {
                match libc::WTERMSIG(status) {
                    // Its own alarm.
                    libc::SIGALRM => ChildEnd::Late,
                    signal => ChildEnd::Signal(signal),
                }
            })
        }
    }

    impl Drop for ChildProcess {
        fn drop(&mut self) {
            if !self.is_over && std::process::id() == self.parent {
                // SAFETY: rule *bounds*: nobody has waited for this child, so the number is its.
                unsafe { libc::kill(self.id, libc::SIGKILL) };
                if self.ended_within(DYING).is_none() {
                    remember_killed(self.id);
                }
            }
        }
    }
}
