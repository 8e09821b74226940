//! Most calls are alike on all systems of the Unix family, so the systems' files share them.

use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

pub(super) const NO_MEMORY: i32 = libc::ENOMEM;

const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Writes to standard error without std, because another thread may hold std's lock at a fork, and
/// the child would wait for it for ever.
pub(super) fn write_error(mut text: &[u8]) {
    while !text.is_empty() {
        match rustix::io::write(rustix::stdio::stderr(), text) {
            Ok(0) => return,
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

pub(super) fn reserve(bytes: usize) -> Result<NonNull<u8>, i32> {
    // SAFETY: rule *bounds*: a fresh mapping at an address that the system chooses.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), PRIVATE) };
    NonNull::new(start.map_err(Errno::raw_os_error)?.cast()).ok_or(0)
}

pub(super) fn share(bytes: usize) -> Result<NonNull<u8>, i32> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: rule *bounds*: a fresh mapping at an address that the system chooses.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
    NonNull::new(start.map_err(Errno::raw_os_error)?.cast()).ok_or(0)
}

/// # Safety
///
/// As [`super::commit`].
pub(super) unsafe fn commit(start: NonNull<u8>, bytes: usize) -> Result<(), i32> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: as the caller says. The access only grows.
    unsafe { mprotect(start.as_ptr().cast(), bytes, access) }.map_err(Errno::raw_os_error)
}

/// Puts a new mapping in the place of a part.
///
/// # Safety
///
/// As [`super::discard`].
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[expect(clippy::let_underscore_must_use, reason = "a refusal costs memory only")]
pub(super) unsafe fn discard(start: NonNull<u8>, bytes: usize) {
    let (start, access) = (start.as_ptr().cast(), ProtFlags::READ | ProtFlags::WRITE);
    // `madvise` is only a hint on these systems. A new mapping in place is not.
    // SAFETY: as the caller says.
    let _ = unsafe { mmap_anonymous(start, bytes, access, PRIVATE | MapFlags::FIXED) };
}

/// # Safety
///
/// None.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) unsafe fn advise_huge(_start: NonNull<u8>, _bytes: usize, _request: bool) {}

/// # Safety
///
/// None.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) unsafe fn collapse(_start: NonNull<u8>, _bytes: usize) -> bool {
    false
}

/// # Safety
///
/// As [`super::release`].
pub(super) unsafe fn release(start: NonNull<u8>, bytes: usize) -> Result<(), i32> {
    // SAFETY: as the caller says.
    unsafe { munmap(start.as_ptr().cast(), bytes) }.map_err(Errno::raw_os_error)
}

#[inline]
pub(super) fn page_size() -> usize {
    rustix::param::page_size()
}

/// The least that 64-bit systems have.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn addresses() -> usize {
    1 << 47
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn total_memory() -> Option<usize> {
    // SAFETY: rule *bounds*: the system only reads.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).ok()?.checked_mul(page_size())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: rule *bounds*: the system only reads.
    !cfg!(miri) && unsafe { libc::issetugid() } != 0
}

/// See [`super::testing::spoil`]. The system then refuses to commit, because a mapping of a file
/// that was opened for reading cannot be made writable.
///
/// # Safety
///
/// As there.
#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) unsafe fn spoil(start: NonNull<u8>, bytes: usize) -> bool {
    use rustix::mm::mmap;
    let file = std::env::current_exe().and_then(std::fs::File::open).expect("this program");
    let (start, flags) = (start.as_ptr().cast(), MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: as the caller says.
    unsafe { mmap(start, bytes, ProtFlags::READ, flags, file, 0) }.is_ok()
}
