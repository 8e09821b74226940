//! Other systems of the Unix family. Threads have no numbers here, so none counts as ended.

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) use super::unix::spoil;
pub(super) use super::unix::{
    NO_MEMORY, addresses, advise_huge, collapse, commit, discard, has_more_rights_than_its_caller,
    page_size, release, reserve, share, total_memory, write_error,
};

/// Whether the page that starts at an address is mapped, which stands for readable because these
/// systems have no call in common that only reads.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
pub(super) fn is_page_readable(start: usize) -> bool {
    use rustix::mm::{MsyncFlags, msync};
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: rule *bounds*: the call only inspects the mapping, and fails if there is none.
    unsafe { msync(start, page_size(), MsyncFlags::ASYNC) }.is_ok()
}

pub(super) fn os_thread() -> u64 {
    0
}

pub(super) fn has_ended(_os_thread: u64) -> bool {
    false
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) fn resident(_start: usize, _bytes: usize) -> Option<usize> {
    None
}
