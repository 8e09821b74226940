//! The return addresses of the calling thread, which cost some tenths of a microsecond each, and
//! their functions, which cost the reading of the program's debug information.

/// The most frames of a stack. What lies further out is cut off.
pub(crate) const MOST: usize = 64;

/// Writes the return addresses of the calling thread, innermost first, and returns them. It takes
/// no lock and no memory. Without the feature `stacks` there are none.
#[inline(never)]
pub(crate) fn capture(frames: &mut [usize; MOST]) -> &[usize] {
    #[allow(unused_mut, reason = "without the feature nothing is counted")]
    let mut count = 0;
    #[cfg(feature = "stacks")]
    // SAFETY: rule *bounds*: the unwinders of 64-bit systems may run on several threads at once.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            frames[count] = frame.ip().addr();
            count += 1;
            count < MOST
        });
    }
    &frames[..count]
}

/// Calls `f` with each function that a return address lies in, the innermost inlined one first: its
/// name, its file and the line.
#[cfg(feature = "stacks")]
pub(crate) fn resolve(
    address: usize,
    mut f: impl FnMut(Option<String>, Option<String>, Option<u32>),
) {
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        let file = symbol.filename().map(|file| file.display().to_string());
        f(symbol.name().map(|name| format!("{name:#}")), file, symbol.lineno());
    });
}
