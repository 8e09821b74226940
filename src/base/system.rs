//! Floor 0: what only the operating system knows: the number of a thread, and which memory can be read.

/// The number by which the system's tools know the calling thread; 0: the library knows none here.
///
/// Not by way of rustix: its functions for threads look at the kernel's vDSO first, which is not
/// mapped under valgrind.
pub(crate) fn os_thread() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: rule B: a question to the system, without arguments, which always has an answer.
        let number = unsafe { libc::syscall(libc::SYS_gettid) };
        number.try_into().unwrap_or(0)
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    0
}

/// Whether the thread with this [number](os_thread) has ended, as far as the system says so. `false` also where the library knows
/// no numbers, and where the system has given the number to another thread of this process since.
pub(crate) fn has_ended(os_thread: u64) -> bool {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
    {
        const NO_SIGNAL: libc::c_int = 0;
        let Ok(number) = libc::pid_t::try_from(os_thread) else { return false };
        if number == 0 {
            return false;
        }
        // SAFETY: rule B: sends nothing, and fails with `ESRCH` where this process has no such thread.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, NO_SIGNAL) };
        result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }
    #[cfg(any(miri, not(any(target_os = "linux", target_os = "android"))))]
    {
        let _ = os_thread;
        false
    }
}

/// Whether memory can be read. The answer for the first page of the address space is always no.
pub(crate) fn is_readable(addr: usize, len: usize) -> bool {
    let page = rustix::param::page_size();
    if addr < page {
        return false;
    }
    let (first, end) = (addr / page * page, addr.saturating_add(len));
    (first..end).step_by(page).all(is_page_readable)
}

/// Whether the page that starts at an address can be read. The call reads a set of signals there.
/// It fails with `EFAULT` if it cannot read the page, and with `EINVAL` if it can, because there is
/// no such operation on the set. So it changes nothing, and no sandbox refuses it.
#[cfg(target_os = "linux")]
fn is_page_readable(start: usize) -> bool {
    const NO_OPERATION: libc::c_long = -1;
    let none = std::ptr::null::<u64>();
    // SAFETY: rule B: the system reads at the address, and answers with an error where it cannot.
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
    // SAFETY: rule B: the call looks at the mapping alone, and fails where there is none.
    unsafe {
        let start = std::ptr::with_exposed_provenance_mut(start);
        rustix::mm::msync(start, page, rustix::mm::MsyncFlags::ASYNC).is_ok()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A page that can be read, and behind it one that is mapped without access.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn memory_without_access_is_not_readable() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        let page = rustix::param::page_size();
        // SAFETY: rule B: a mapping of this test's own.
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
        // SAFETY: rule B: as above.
        unsafe { munmap(start, 2 * page) }.expect("to unmap");
        assert!(!is_readable(0, 8) && !is_readable(8, 8) && !is_readable(usize::MAX - 7, 8));
        let local = 7u64;
        assert!(is_readable(std::ptr::from_ref(&local).addr(), 8));
    }
}
