//! Linux and Android.

use std::cell::Cell;
use std::io::Read as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{Advice, madvise};

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) use super::unix::spoil;
pub(super) use super::unix::{NO_MEMORY, commit, page_size, release, reserve, share, write_error};

/// # Safety
///
/// As [`super::discard`].
#[expect(clippy::let_underscore_must_use, reason = "a refusal costs memory only")]
pub(super) unsafe fn discard(start: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller says.
    let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
}

/// # Safety
///
/// As [`super::advise_huge`].
#[expect(clippy::let_underscore_must_use, reason = "a refusal costs speed or memory only")]
pub(super) unsafe fn advise_huge(start: NonNull<u8>, bytes: usize, request: bool) {
    let advice = if request { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: as the caller says. The advice changes no contents.
    let _ = unsafe { madvise(start.as_ptr().cast(), bytes, advice) };
}

/// # Safety
///
/// As [`super::collapse`].
pub(super) unsafe fn collapse(start: NonNull<u8>, bytes: usize) -> bool {
    // By the C library, because rustix has no name for it. The system knows it since Linux 6.1.
    const COLLAPSE: libc::c_int = 25;
    // SAFETY: as the caller says. The call changes no contents.
    let result = unsafe { libc::madvise(start.as_ptr().cast(), bytes, COLLAPSE) };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}

/// A local variable's address shows the size, because stacks lie at the end of the addresses.
pub(super) fn addresses() -> usize {
    /// The fewest bits of an address: the smallest address space of RISC-V, without the system's
    /// half.
    const MIN_ADDRESS_BITS: u32 = 38;
    let here = 0u8;
    let bits = usize::BITS - (&raw const here).addr().leading_zeros();
    1 << bits.max(MIN_ADDRESS_BITS)
}

#[cfg(feature = "stacks")]
pub(super) fn own_stack() -> Option<(usize, usize)> {
    // SAFETY: rule *bounds*: the system writes to the values, for which all zeroes are valid, and
    // frees what it has written if the first call succeeded.
    unsafe {
        let mut attributes = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return None;
        }
        let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
        let failed =
            libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut bytes);
        libc::pthread_attr_destroy(&raw mut attributes);
        (failed == 0).then(|| (start.addr(), start.addr() + bytes))
    }
}

pub(super) fn total_memory() -> Option<usize> {
    // Not the whole file, because reading that would allocate, and `MemTotal` is the first line.
    let mut start = [0; 256];
    let length = std::fs::File::open("/proc/meminfo").ok()?.read(&mut start).ok()?;
    let text = std::str::from_utf8(&start[..length]).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib = line.split_whitespace().next()?.parse::<usize>().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Whether the page that starts at an address can be read. The call reads a set of signals there,
/// and fails with `EFAULT` if it cannot. Otherwise it fails with `EINVAL`, because the operation on
/// the set does not exist, so that it changes nothing. No sandbox rejects it.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
pub(super) fn is_page_readable(start: usize) -> bool {
    const NO_OPERATION: libc::c_long = -1;
    let none = std::ptr::null::<u64>();
    // SAFETY: rule *bounds*: the system reads at the address, and returns an error if it cannot.
    let result = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, start, none, size_of::<u64>())
    };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// A thread queries the system once and keeps the answer, because the query takes as long as all
/// the rest of an attachment. The thread that forks has another number in the child, so a fork
/// handler makes it forget the old one.
///
/// It uses libc, because rustix's functions for threads first read the kernel's vDSO, which is not
/// mapped under valgrind.
pub(super) fn os_thread() -> u64 {
    std::thread_local! {
        /// 0: the thread has not queried the system.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    /// Whether the process has the fork handler. Relaxed, because two threads may both add it.
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

pub(super) fn has_ended(os_thread: u64) -> bool {
    const NO_SIGNAL: libc::c_int = 0;
    let Ok(number) = libc::pid_t::try_from(os_thread) else { return false };
    if cfg!(miri) {
        return false;
    }
    // SAFETY: rule *bounds*: it sends no signal, and fails with `ESRCH` if this process has no such
    // thread.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, NO_SIGNAL) };
    result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// The kernel's answer covers file capabilities.
pub(super) fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: rule *bounds*: the system only reads.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) fn resident(start: usize, bytes: usize) -> Option<usize> {
    let unit = page_size();
    let mut map = vec![0u8; bytes / unit];
    // SAFETY: rule *bounds*: queries a mapping of a test, one byte a page.
    let asked = unsafe {
        libc::mincore(std::ptr::with_exposed_provenance_mut(start), bytes, map.as_mut_ptr().cast())
    };
    assert_eq!(asked, 0);
    Some(map.iter().filter(|&&byte| byte & 1 != 0).count() * unit)
}
