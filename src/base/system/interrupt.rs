//! The stack of another thread of the process, which a signal makes it write down.
//!
//! A thread that does not poll cannot be asked, but a signal interrupts it anywhere, also where it
//! holds a lock. So its handler takes no lock and no memory: it writes return addresses to a table
//! that is always there. That is true of the unwinder only with glibc 2.35 or later, whose
//! `_dl_find_object` takes no lock, and so other systems are refused. For example, thread 1 waits
//! for thread 2. It claims the table for thread 2 and sends the signal. The handler on thread 2
//! finds its own number in the table, writes, and says that it is done.
//!
//! # States of the table
//!
//! | state | by | next |
//! |---|---|---|
//! | free | | *asked*, by the thread that asks |
//! | asked, with the number of a thread | the thread that asks | *writing*, by that thread; *free*, by the asker, which waits no longer |
//! | writing | the handler | *done*; *left*, by the asker, which waits no longer |
//! | done | the handler | *free*, by the asker |
//! | left | the asker | *free*, by the handler when it is done |
//!
//! A signal that comes late finds no question for its thread, and does nothing. The child of a fork
//! may inherit a table in use, and then gets no stacks.
//!
//! # Orderings
//!
//! The state hands the table over: from the handler to the asker by *done*, and from the asker to
//! the next handler by *free*. Both are released, and the one who uses the table next acquires
//! them. Exchanges in between are read-modify-writes, which continue the release sequence, so they
//! are relaxed, and so are the frames.

use crate::base::stack::MOST;

/// Why there is no stack.
pub(crate) type NoStack = &'static str;

#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
mod linux_gnu {
    use std::ffi::CStr;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::NoStack;
    use crate::base::stack::{self, MOST};

    /// It is ignored where nobody has installed a handler, so that a late one ends no process.
    const SIGNAL: libc::c_int = libc::SIGURG;
    const FREE: u64 = 0;
    const ASKED: u64 = 1;
    const WRITING: u64 = 2;
    const DONE: u64 = 3;
    /// The asker has gone while the handler was writing.
    const LEFT: u64 = 4;
    /// The number of the thread, above the state.
    const THREAD: u32 = 8;
    /// How often the asker looks, and how long it sleeps in between.
    const LOOKS: u32 = 100;
    const NAP: Duration = Duration::from_millis(1);

    static STATE: AtomicU64 = AtomicU64::new(FREE);
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static FRAMES: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

    /// The table may be claimed again.
    fn free() {
        STATE.store(FREE, Ordering::Release);
    }

    extern "C" fn write_stack_down(_: libc::c_int) {
        // SAFETY: rule *bounds*: the calls have no precondition, and the word is this thread's.
        let (word, thread) = unsafe { (libc::__errno_location(), libc::gettid()) };
        // SAFETY: as above. The interrupted code may be about to read it.
        let before = unsafe { *word };
        let me = u64::from(thread.unsigned_abs()) << THREAD;
        let claimed =
            STATE.compare_exchange(me | ASKED, WRITING, Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_ok() {
            let mut frames = [0; MOST];
            let frames = stack::capture(&mut frames);
            for (to, &frame) in FRAMES.iter().zip(frames) {
                to.store(frame, Ordering::Relaxed);
            }
            COUNT.store(frames.len(), Ordering::Relaxed);
            let done = STATE.compare_exchange(WRITING, DONE, Ordering::Release, Ordering::Relaxed);
            if done.is_err() {
                free();
            }
        }
        // SAFETY: as above.
        unsafe { *word = before };
    }

    pub(super) fn install() -> Result<(), NoStack> {
        // SAFETY: rule *bounds*: the text is constant.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy();
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (2, 35) {
            return Err("needs glibc 2.35 or later, whose unwinder takes no lock");
        }
        // The first call may bind functions, which a handler must not.
        stack::capture(&mut [0; MOST]);
        // SAFETY: rule *bounds*: the system reads and writes the two values, for which all zeroes
        // are valid. The handler is safe to run anywhere, as this page says.
        unsafe {
            let (mut new, mut old) = (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed());
            new.sa_sigaction = write_stack_down as extern "C" fn(libc::c_int) as usize;
            new.sa_flags = libc::SA_RESTART;
            libc::sigaction(SIGNAL, std::ptr::null(), &raw mut old);
            let old: libc::sigaction = old;
            if old.sa_sigaction == new.sa_sigaction {
                return Ok(());
            }
            if !matches!(old.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                return Err("needs the signal SIGURG, which the program handles itself");
            }
            match libc::sigaction(SIGNAL, &raw const new, std::ptr::null_mut()) {
                0 => Ok(()),
                _ => Err("needs a handler for SIGURG, which the system refuses"),
            }
        }
    }

    pub(super) fn stack_of(thread: u64, into: &mut [usize; MOST]) -> Result<usize, NoStack> {
        let asked = thread << THREAD | ASKED;
        if STATE.compare_exchange(FREE, asked, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return Err("another thread is asked for its stack");
        }
        let give_up =
            || STATE.compare_exchange(asked, FREE, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // SAFETY: rule *bounds*: the system sends the signal to a thread of this process, or fails.
        let sent = unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread as libc::pid_t, SIGNAL)
        };
        if sent != 0 && give_up() {
            return Err("the thread has ended");
        }
        let is_done = || STATE.load(Ordering::Acquire) == DONE;
        // Twice, if the handler has begun when the time is up.
        for is_last in [false, true] {
            for _ in 0..LOOKS {
                if is_done() {
                    break;
                }
                std::thread::sleep(NAP);
            }
            if give_up() {
                return Err("the thread did not answer the signal SIGURG in time");
            }
            let leave =
                || STATE.compare_exchange(WRITING, LEFT, Ordering::Relaxed, Ordering::Relaxed);
            if is_last && leave().is_ok() {
                return Err("the thread has not finished its answer in time");
            }
            if is_done() {
                break;
            }
        }
        let count = COUNT.load(Ordering::Relaxed).min(MOST);
        for (frame, from) in into.iter_mut().zip(&FRAMES) {
            *frame = from.load(Ordering::Relaxed);
        }
        free();
        Ok(count)
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
mod linux_gnu {
    use super::{MOST, NoStack};

    pub(super) fn install() -> Result<(), NoStack> {
        Err("is supported only on Linux with glibc")
    }

    pub(super) fn stack_of(_: u64, _: &mut [usize; MOST]) -> Result<usize, NoStack> {
        Err("stacks of other threads are supported only on Linux with glibc")
    }
}

/// Installs the handler, which stays for the life of the process. The error continues the name of
/// what needs it.
pub(crate) fn install() -> Result<(), NoStack> {
    linux_gnu::install()
}

/// Writes the return addresses of another thread, by its [number](super::os_thread), and returns
/// how many there are. The innermost belong to the handler. It waits 100 ms for the answer, or 200
/// if the thread has begun it.
///
/// [`install`] has succeeded.
pub(crate) fn stack_of(thread: u64, into: &mut [usize; MOST]) -> Result<usize, NoStack> {
    linux_gnu::stack_of(thread, into)
}

/// The name of the handler. On a stack the interrupted code lies behind the function that follows
/// it, by which the system returns.
pub(crate) const HANDLER: &str = "write_stack_down";

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
