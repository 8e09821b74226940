//! Windows, which has no `fork`, so that a lock here cannot be inherited locked.

use std::ptr::NonNull;
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::{
    CloseHandle, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY, WAIT_OBJECT_0,
};
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RELEASE, MEM_RESERVE, MEM_RESET, MEMORY_BASIC_INFORMATION, PAGE_GUARD,
    PAGE_NOACCESS, PAGE_READWRITE, VirtualAlloc, VirtualFree, VirtualQuery, VirtualUnlock,
};
use windows_sys::Win32::System::SystemInformation::{
    GetSystemInfo, GlobalMemoryStatusEx, MEMORYSTATUSEX, SYSTEM_INFO,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcessId, GetCurrentThreadId, GetProcessIdOfThread, OpenThread,
    THREAD_QUERY_LIMITED_INFORMATION, THREAD_SYNCHRONIZE, WaitForSingleObject,
};

pub(super) const NO_MEMORY: i32 = ERROR_NOT_ENOUGH_MEMORY as i32;

fn last_error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub(super) fn write_error(text: &[u8]) {
    // A line that cannot be written is lost.
    drop(std::io::Write::write_all(&mut std::io::stderr(), text));
}

/// There are no children that could share it.
pub(super) fn share(_bytes: usize) -> Result<NonNull<u8>, i32> {
    Err(0)
}

/// Only addresses are reserved, without a part of the page file.
pub(super) fn reserve(bytes: usize) -> Result<NonNull<u8>, i32> {
    // SAFETY: rule *bounds*: a fresh range at an address that the system chooses.
    let start = unsafe { VirtualAlloc(std::ptr::null(), bytes, MEM_RESERVE, PAGE_NOACCESS) };
    NonNull::new(start.cast()).ok_or_else(last_error)
}

/// # Safety
///
/// As [`super::commit`].
pub(super) unsafe fn commit(start: NonNull<u8>, bytes: usize) -> Result<(), i32> {
    let start = start.as_ptr().cast();
    // SAFETY: as the caller says. Memory that is committed already keeps its contents.
    match unsafe { VirtualAlloc(start, bytes, MEM_COMMIT, PAGE_READWRITE) }.is_null() {
        true => Err(last_error()),
        false => Ok(()),
    }
}

/// `MEM_RESET` tells the system that it may drop the contents. The part stays committed, so the
/// system cannot refuse it to this process later, and other threads can read it meanwhile. If the
/// part were removed and committed again instead, both could fail. The unlock removes the pages
/// from the working set, although it reports that they were not locked.
///
/// # Safety
///
/// As [`super::discard`].
pub(super) unsafe fn discard(start: NonNull<u8>, bytes: usize) {
    let start = start.as_ptr().cast();
    // SAFETY: as the caller says.
    unsafe {
        if !VirtualAlloc(start, bytes, MEM_RESET, PAGE_READWRITE).is_null() {
            VirtualUnlock(start, bytes);
        }
    }
}

/// Does nothing, because a process needs a privilege for large pages, and must commit them at once.
///
/// # Safety
///
/// As [`super::advise_huge`].
pub(super) unsafe fn advise_huge(_start: NonNull<u8>, _bytes: usize, _request: bool) {}

/// # Safety
///
/// None.
pub(super) unsafe fn collapse(_start: NonNull<u8>, _bytes: usize) -> bool {
    false
}

/// # Safety
///
/// As [`super::release`].
pub(super) unsafe fn release(start: NonNull<u8>, _bytes: usize) -> Result<(), i32> {
    // SAFETY: as the caller says. The system knows the size.
    match unsafe { VirtualFree(start.as_ptr().cast(), 0, MEM_RELEASE) } {
        0 => Err(last_error()),
        _ => Ok(()),
    }
}

fn system_info() -> SYSTEM_INFO {
    // SAFETY: rule *bounds*: a plain structure, which the system fills.
    unsafe {
        let mut info = std::mem::zeroed();
        GetSystemInfo(&raw mut info);
        info
    }
}

#[inline]
pub(super) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| system_info().dwPageSize as usize)
}

pub(super) fn addresses() -> usize {
    system_info().lpMaximumApplicationAddress.addr()
}

pub(super) fn total_memory() -> Option<usize> {
    // SAFETY: rule *bounds*: a plain structure, which names its size. The system fills it.
    unsafe {
        let mut status: MEMORYSTATUSEX = std::mem::zeroed();
        status.dwLength = size_of::<MEMORYSTATUSEX>() as u32;
        if GlobalMemoryStatusEx(&raw mut status) == 0 {
            return None;
        }
        usize::try_from(status.ullTotalPhys).ok()
    }
}

/// Whether the page that starts at an address is committed, with access. The call does not read
/// there, because a read could consume the guard page of a stack.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
pub(super) fn is_page_readable(start: usize) -> bool {
    // SAFETY: rule *bounds*: the call only inspects the address, and fills a plain structure.
    unsafe {
        let mut found: MEMORY_BASIC_INFORMATION = std::mem::zeroed();
        let size = size_of::<MEMORY_BASIC_INFORMATION>();
        VirtualQuery(std::ptr::with_exposed_provenance(start), &raw mut found, size) != 0
            && found.State == MEM_COMMIT
            && found.Protect & (PAGE_NOACCESS | PAGE_GUARD) == 0
    }
}

#[inline]
pub(super) fn os_thread() -> u64 {
    // SAFETY: rule *bounds*: a query without arguments.
    unsafe { GetCurrentThreadId() }.into()
}

/// The system gives the number of a thread that has ended to another thread, perhaps of another
/// process, so the process is compared too.
pub(super) fn has_ended(os_thread: u64) -> bool {
    const NO_WAIT: u32 = 0;
    let Ok(number) = u32::try_from(os_thread) else { return false };
    let access = THREAD_SYNCHRONIZE | THREAD_QUERY_LIMITED_INFORMATION;
    // SAFETY: rule *bounds*: the calls only inspect a thread. The handle is closed once.
    unsafe {
        let thread = OpenThread(access, 0, number);
        if thread.is_null() {
            return last_error() == ERROR_INVALID_PARAMETER as i32;
        }
        let process = GetProcessIdOfThread(thread);
        let ended = WaitForSingleObject(thread, NO_WAIT) == WAIT_OBJECT_0
            || (process != 0 && process != GetCurrentProcessId());
        CloseHandle(thread);
        ended
    }
}

/// An elevated process does not get the environment of the process that requested it.
pub(super) fn has_more_rights_than_its_caller() -> bool {
    false
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) fn resident(_start: usize, _bytes: usize) -> Option<usize> {
    None
}

/// # Safety
///
/// None.
#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) unsafe fn spoil(_start: NonNull<u8>, _bytes: usize) -> bool {
    false
}
