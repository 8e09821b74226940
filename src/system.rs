//! Floor 0: what reports say of a thread in the terms of the operating system.

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
