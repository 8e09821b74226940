//! Queries to the operating system about threads, rights and memory.

/// The number that the system's tools show for the calling thread. 0: not known on this system.
///
/// A thread queries the system once and keeps the answer: the query takes as long as all the rest
/// of an attachment. The thread that forks has another number in the child, where a fork handler
/// makes it forget the old one.
///
/// rustix's functions for threads first read the kernel's vDSO, which is not mapped under valgrind.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn os_thread() -> u64 {
    use std::sync::atomic::{AtomicBool, Ordering};

    std::thread_local! {
        /// 0: the thread has not queried the system.
        static NUMBER: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    /// Whether the process has the fork handler. Relaxed: two threads may both add it.
    static HAS_HANDLER: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn forget() {
        NUMBER.set(0);
    }

    let known = NUMBER.get();
    if known != 0 {
        return known;
    }
    // SAFETY: rule *bounds*: a query to the system without arguments, which always succeeds.
    let number = unsafe { libc::syscall(libc::SYS_gettid) }.try_into().unwrap_or(0);
    if !HAS_HANDLER.load(Ordering::Relaxed) {
        // SAFETY: rule *bounds*: the handler writes a word of its thread, and nothing else.
        if cfg!(miri) || unsafe { libc::pthread_atfork(None, None, Some(forget)) } != 0 {
            return number;
        }
        HAS_HANDLER.store(true, Ordering::Relaxed);
    }
    NUMBER.set(number);
    number
}

/// See above.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn os_thread() -> u64 {
    0
}

/// Whether the thread with this [number](os_thread) has ended, as far as the system says. It is
/// also `false` if the numbers are not known, and if another thread of this process has the number
/// by now.
pub(crate) fn has_ended(os_thread: u64) -> bool {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
    {
        const NO_SIGNAL: libc::c_int = 0;
        let Ok(number) = libc::pid_t::try_from(os_thread) else { return false };
        if number == 0 {
            return false;
        }
        // SAFETY: rule *bounds*: it sends no signal, and fails with `ESRCH` if this process has no
        // such thread.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, NO_SIGNAL) };
        result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }
    #[cfg(any(miri, not(any(target_os = "linux", target_os = "android"))))]
    {
        let _ = os_thread;
        false
    }
}

/// Whether the process has more rights than its caller.
#[cfg(not(miri))]
pub(crate) fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: rule *bounds*: the system only reads. The kernel's answer covers file capabilities.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // SAFETY: rule *bounds*: the system only reads.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    return unsafe { libc::issetugid() } != 0;
}

#[cfg(miri)]
pub(crate) fn has_more_rights_than_its_caller() -> bool {
    false
}

/// Bytes of a page of the system.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Whether memory can be read. The first page of the address space counts as unreadable.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
pub(crate) fn is_readable(addr: usize, len: usize) -> bool {
    let page = rustix::param::page_size();
    if addr < page {
        return false;
    }
    let (first, end) = (addr / page * page, addr.saturating_add(len));
    (first..end).step_by(page).all(is_page_readable)
}

/// Whether the page that starts at an address can be read. The call reads a set of signals there.
/// It fails with `EFAULT` if it cannot read the page. Otherwise it fails with `EINVAL`, because the
/// operation on the set does not exist. It changes nothing, and no sandbox rejects it.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
#[cfg(target_os = "linux")]
fn is_page_readable(start: usize) -> bool {
    const NO_OPERATION: libc::c_long = -1;
    let none = std::ptr::null::<u64>();
    // SAFETY: rule *bounds*: the system reads at the address, and returns an error if it cannot.
    let result = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, start, none, size_of::<u64>())
    };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Whether the page that starts at an address is mapped. Other systems have no call that only
/// reads.
#[cfg(not(target_os = "linux"))]
fn is_page_readable(start: usize) -> bool {
    let page = rustix::param::page_size();
    // SAFETY: rule *bounds*: the call only inspects the mapping, and fails if there is none.
    unsafe {
        let start = std::ptr::with_exposed_provenance_mut(start);
        rustix::mm::msync(start, page, rustix::mm::MsyncFlags::ASYNC).is_ok()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_thread_keeps_its_number_until_it_forks() {
        let here = os_thread();
        assert_eq!(here, os_thread());
        assert_ne!(here, std::thread::spawn(os_thread).join().expect("no panic"));
        // SAFETY: rule *bounds*: the child calls only functions that are safe after a fork.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit((os_thread() != u64::from(std::process::id())).into());
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        assert_eq!((status, os_thread()), (0, here));
    }

    /// A readable page, and behind it a page that is mapped without access.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn memory_without_access_is_not_readable() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        let page = rustix::param::page_size();
        // SAFETY: rule *bounds*: a mapping of this test.
        let start = unsafe {
            let start =
                mmap_anonymous(std::ptr::null_mut(), 2 * page, ProtFlags::READ, MapFlags::PRIVATE);
            let start = start.expect("two pages");
            mprotect(start.byte_add(page), page, MprotectFlags::empty()).expect("no access");
            start
        };
        let (first, second) = (start.addr(), start.addr() + page);
        assert!(is_readable(first, page) && is_readable(second - 8, 8));
        assert!(!is_readable(second, 1) && !is_readable(second + page - 8, 8));
        assert!(!is_readable(second - 8, 16), "its end is not");
        // SAFETY: rule *bounds*: as above.
        unsafe { munmap(start, 2 * page) }.expect("to unmap");
        assert!(!is_readable(0, 8) && !is_readable(8, 8) && !is_readable(usize::MAX - 7, 8));
        let local = 7u64;
        assert!(is_readable(std::ptr::from_ref(&local).addr(), 8));
    }
}
