//! macOS and its relatives.

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) use super::unix::spoil;
pub(super) use super::unix::{
    NO_MEMORY, addresses, advise_huge, collapse, commit, discard, has_more_rights_than_its_caller,
    page_size, release, reserve, share, total_memory, write_error,
};

// SAFETY: rule *bounds*: both are declared as in the system's headers.
unsafe extern "C" {
    /// Copies memory of a process (`mach/mach_vm.h`). The result is 0 if all of it can be read.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    fn mach_vm_read_overwrite(
        task: libc::mach_port_t,
        address: u64,
        size: u64,
        data: u64,
        copied: *mut u64,
    ) -> libc::c_int;

    /// This process.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    static mach_task_self_: libc::mach_port_t;
}

/// Whether the page that starts at an address can be read, which a copy of one byte shows.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
pub(super) fn is_page_readable(start: usize) -> bool {
    let (mut byte, mut copied) = (0u8, 0);
    let to = (&raw mut byte).expose_provenance() as u64;
    // SAFETY: rule *bounds*: the system reads at the address, and returns an error if it cannot. It
    // writes one byte.
    let result =
        unsafe { mach_vm_read_overwrite(mach_task_self_, start as u64, 1, to, &raw mut copied) };
    result == 0
}

/// The C library knows the number of the calling thread, also after a fork, so no copy is kept.
pub(super) fn os_thread() -> u64 {
    let mut number = 0;
    // SAFETY: rule *bounds*: thread 0 is the calling one. The call only writes the number.
    match unsafe { libc::pthread_threadid_np(0, &raw mut number) } {
        0 => number,
        _ => 0,
    }
}

pub(super) fn has_ended(os_thread: u64) -> bool {
    /// The flavor that takes the number of a thread (`sys/proc_info.h`).
    const PROC_PIDTHREADID64INFO: libc::c_int = 15;
    // SAFETY: rule *bounds*: the call fills the structure, or fails with `ESRCH` if this process
    // has no such thread.
    let filled = unsafe {
        let mut info: libc::proc_threadinfo = std::mem::zeroed();
        let size = size_of::<libc::proc_threadinfo>() as libc::c_int;
        let to = (&raw mut info).cast();
        libc::proc_pidinfo(libc::getpid(), PROC_PIDTHREADID64INFO, os_thread, to, size)
    };
    filled <= 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) fn resident(_start: usize, _bytes: usize) -> Option<usize> {
    None
}
