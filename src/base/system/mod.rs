//! Memory, threads and the rights of a process differ from system to system. So only this folder of
//! the library depends on the operating system or on the size of an address: `ci/floors.py` rejects
//! such a `cfg` in any other file. This file is the interface, for which each system has a file
//! with the same functions:
//!
//! | file | systems |
//! |---|---|
//! | `linux` | Linux and Android |
//! | `apple` | macOS and its relatives |
//! | `other_unix` | the other systems of the Unix family |
//! | `unix` | the common part of these three |
//! | `windows` | Windows |
//!
//! `signals`, `interrupt`, `memory_group` and `process` are for all systems.
//!
//! Environment variables and the number of the process come from `std`, which is the same on each
//! system. [ADR 41](../../../docs/adr/0041-platforms.md) has the reasons for the choice of systems.
//!
//! # Address ranges
//!
//! A range is *reserved* first, so that no other memory of the process lies there, and any access
//! ends the process. A *committed* part can be read and written until the whole range is
//! *released*, and reads as zero at first. A *discarded* part stays committed, although it loses
//! its memory: each word there reads as zero or as before, also for a thread that reads it
//! meanwhile. The pages of the heap need no more than that.

use std::ptr::NonNull;

#[cfg(target_vendor = "apple")]
#[allow(unsafe_code)]
mod apple;
#[cfg(feature = "stacks")]
#[allow(unsafe_code)]
pub(crate) mod interrupt;
#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(unsafe_code)]
mod linux;
pub(crate) mod memory_group;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android", target_vendor = "apple"))))]
#[allow(unsafe_code)]
mod other_unix;
#[allow(unsafe_code)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "there are no children"))]
pub(crate) mod process;
#[cfg(all(feature = "parallel", not(any(all(test, loom), standstill_loom, standstill_shuttle))))]
#[allow(unsafe_code)]
pub(crate) mod signals;
#[cfg(unix)]
#[allow(unsafe_code)]
mod unix;
#[cfg(windows)]
#[allow(unsafe_code)]
mod windows;

#[cfg(target_vendor = "apple")]
use apple as platform;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as platform;
#[cfg(all(
    unix,
    not(any(target_os = "linux", target_os = "android", target_vendor = "apple"))
))]
use other_unix as platform;
#[cfg(windows)]
use windows as platform;

#[cfg(not(any(unix, windows)))]
compile_error!("standstill needs threads and virtual memory: it supports Unix and Windows");
#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "standstill needs 64-bit addresses: an owner and a type share one word of an object"
);

/// The system's code for "no memory".
pub(crate) const NO_MEMORY: i32 = platform::NO_MEMORY;

/// Writes to standard error. If it is closed or full, the text is lost. On systems with forks it
/// takes no lock, because another thread could hold it at a fork.
pub(crate) fn write_error(text: &[u8]) {
    platform::write_error(text);
}

/// Reserves `bytes` bytes of addresses, which start on a page of the system, and are not accessible
/// before [`commit`].
///
/// # Errors
///
/// The system's code, if it refuses the size.
pub(crate) fn reserve(bytes: usize) -> Result<NonNull<u8>, i32> {
    platform::reserve(bytes)
}

/// Memory that this process and its [children](process) share, readable and writable, and zero at
/// first. It starts on a page of the system. [`release`] ends it.
///
/// # Errors
///
/// The system's code, if it refuses the size, or has no such memory.
pub(crate) fn share(bytes: usize) -> Result<NonNull<u8>, i32> {
    platform::share(bytes)
}

/// Whether the system would reserve a range of so many bytes now.
pub(crate) fn would_reserve(bytes: usize) -> bool {
    // SAFETY: rule *mapped*: the range that was just reserved, whole. Nobody else has its address.
    reserve(bytes).is_ok_and(|start| unsafe { release(start, bytes) }.is_ok())
}

/// Makes a part of a range readable and writable. A part that is committed already keeps its
/// contents.
///
/// # Errors
///
/// The system's code, if it refuses. A part may be committed then.
///
/// # Safety
///
/// The part lies in one reserved range, on whole pages of the system, and is not empty.
pub(crate) unsafe fn commit(start: NonNull<u8>, bytes: usize) -> Result<(), i32> {
    // SAFETY: as the caller says.
    unsafe { platform::commit(start, bytes) }
}

/// Returns the memory of a committed part to the system, although the part stays committed. A
/// refusal costs memory only.
///
/// # Safety
///
/// The part is committed, and consists of whole pages of the system. No code relies on its
/// contents, or it is zero.
pub(crate) unsafe fn discard(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: as the caller says.
        unsafe { platform::discard(start, bytes) }
    }
}

/// Requests huge pages for a part of a range, or gives them up. A refusal only costs speed or
/// memory.
///
/// # Safety
///
/// The part lies in one reserved range. It starts on a page of the system.
pub(crate) unsafe fn advise_huge(start: NonNull<u8>, bytes: usize, request: bool) {
    // SAFETY: as the caller says.
    unsafe { platform::advise_huge(start, bytes, request) }
}

/// Gathers the system's pages of a part into huge pages, as its advice says, and waits for that,
/// about a tenth of a millisecond for each. Returns whether the system can do so. A refusal for
/// another reason, such as a lack of memory, costs speed only.
///
/// # Safety
///
/// As [`advise_huge`].
pub(crate) unsafe fn collapse(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: as the caller says.
    unsafe { platform::collapse(start, bytes) }
}

/// Gives a range back.
///
/// # Errors
///
/// The system's code, if there is no such range.
///
/// # Safety
///
/// `start` and `bytes` are those of one call of [`reserve`]. The range is not used any more.
pub(crate) unsafe fn release(start: NonNull<u8>, bytes: usize) -> Result<(), i32> {
    // SAFETY: as the caller says.
    unsafe { platform::release(start, bytes) }
}

/// Bytes of a page of the system.
#[inline]
pub(crate) fn page_size() -> usize {
    platform::page_size()
}

/// Bytes that a process can address, at least.
pub(crate) fn addresses() -> usize {
    platform::addresses()
}

/// Bytes of memory of this machine. `None`: not known.
pub(crate) fn total_memory() -> Option<usize> {
    platform::total_memory()
}

/// Whether memory can be read. The first page of the address space counts as unreadable.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
pub(crate) fn is_readable(addr: usize, len: usize) -> bool {
    let page = page_size();
    if addr < page {
        return false;
    }
    let (first, end) = (addr / page * page, addr.saturating_add(len));
    (first..end).step_by(page).all(platform::is_page_readable)
}

/// The number that the system's tools show for the calling thread. 0: not known on this system.
/// The thread that forks has another number in the child.
#[inline]
pub(crate) fn os_thread() -> u64 {
    platform::os_thread()
}

/// The first address of this thread's stack, and the end of it. Both are 0 where the system does
/// not tell.
#[cfg(feature = "stacks")]
pub(crate) fn own_stack() -> (usize, usize) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return linux::own_stack().unwrap_or((0, 0));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    (0, 0)
}

/// Whether the thread with this [number](os_thread) has ended, as far as the system says. It is
/// also `false` if the numbers are not known, and if another thread of this process has the number
/// by now.
pub(crate) fn has_ended(os_thread: u64) -> bool {
    os_thread != 0 && platform::has_ended(os_thread)
}

/// Whether the process has more rights than its caller.
pub(crate) fn has_more_rights_than_its_caller() -> bool {
    platform::has_more_rights_than_its_caller()
}

/// Prefetches the memory at an address. Any is valid, because a prefetch only affects caches.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rule *bounds*: a prefetch only affects caches, for any address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod testing {
    use super::platform;

    /// Bytes of a part of this process that are in memory. `None`: the system does not say.
    pub(crate) fn resident(start: usize, bytes: usize) -> Option<usize> {
        platform::resident(start, bytes)
    }

    /// Replaces a reserved part, so that the system refuses to commit it. `false`: the system
    /// has no way to do that.
    ///
    /// # Safety
    ///
    /// The part is reserved, and not in use.
    pub(crate) unsafe fn spoil(start: std::ptr::NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: as the caller says.
        unsafe { platform::spoil(start, bytes) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(unsafe_code)]
mod tests;
