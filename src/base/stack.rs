//! The return addresses of the calling thread, which cost some tenths of a microsecond each, and
//! their functions, which cost the reading of the program's debug information.
//!
//! A thread that looks at its stack often finds the outer calls unchanged. So [`capture_next`]
//! remembers the return addresses of the last look with the *places* where they lie on the stack.
//! For example, the last look has found 20 calls, and now the sixth frame has the address and the
//! place of one of them. Then the other 14 are not unwound, but compared: each return address must
//! still lie in its place. Unwinding would look for the next address where the code of the frame
//! says, which is the same place for the same code, and so would find the same calls. (Only below a
//! frame whose size varies could an old address be left in its place, and be taken for a call.)
//!
//! A place is read only if it lies between this frame and the end of the thread's stack, where all
//! memory is accessible. On a stack that is not the thread's own, and on processors that do not
//! save return addresses right below the frame of the caller, no call is found again, and all are
//! unwound.

#[cfg(feature = "stacks")]
use crate::base::system;

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
            let address = frame.ip().addr();
            // An outermost function has no caller, whose address unwinders give as 0.
            if address == 0 {
                return false;
            }
            frames[count] = address;
            count += 1;
            count < MOST
        });
    }
    &frames[..count]
}

/// As `capture`, for a thread that calls it often. It is not for signal handlers.
#[cfg(feature = "stacks")]
pub(crate) fn capture_next(frames: &mut [usize; MOST]) -> &[usize] {
    LAST.with(|last| match last.try_borrow_mut() {
        Ok(mut last) => last.capture(frames),
        Err(_) => capture(frames),
    })
}

#[cfg(not(feature = "stacks"))]
pub(crate) use capture as capture_next;

#[cfg(feature = "stacks")]
thread_local! {
    /// It has no destructor, so that a thread can use it until its end.
    static LAST: std::cell::RefCell<LastStack> = const { std::cell::RefCell::new(LastStack {
        own: None,
        count: 0,
        frames: [0; MOST],
        places: [0; MOST],
        #[cfg(test)]
        unwound: 0,
    }) };
}

/// The last stack that a thread has captured.
#[cfg(feature = "stacks")]
struct LastStack {
    /// The first and the last address of the thread's stack, when they are known.
    own: Option<(usize, usize)>,
    count: usize,
    frames: [usize; MOST],
    places: [usize; MOST],
    #[cfg(test)]
    unwound: usize,
}

#[cfg(feature = "stacks")]
impl LastStack {
    #[inline(never)]
    fn capture<'f>(&mut self, frames: &'f mut [usize; MOST]) -> &'f [usize] {
        let own = *self.own.get_or_insert_with(system::own_stack);
        let mut places = [0; MOST];
        let here = (&raw const places).addr();
        let (mut count, mut at) = (0, 0);
        // SAFETY: as in `capture`.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                #[cfg(test)]
                (self.unwound += 1);
                let place = frame.sp().addr().wrapping_sub(size_of::<usize>());
                while at < self.count && self.places[at] < place {
                    at += 1;
                }
                let found = (frame.ip().addr(), place);
                if found.0 == 0 {
                    return false;
                }
                if self.at(at) == Some(found) && self.is_unchanged(at, here, own) {
                    let more = (self.count - at).min(MOST - count);
                    frames[count..][..more].copy_from_slice(&self.frames[at..][..more]);
                    places[count..][..more].copy_from_slice(&self.places[at..][..more]);
                    count += more;
                    return false;
                }
                (frames[count], places[count]) = found;
                count += 1;
                count < MOST
            });
        }
        (self.count, self.frames, self.places) = (count, *frames, places);
        &frames[..count]
    }

    fn at(&self, at: usize) -> Option<(usize, usize)> {
        (at < self.count).then(|| (self.frames[at], self.places[at]))
    }

    /// Whether the calls from one on are still there. `here` is an address in a frame of this
    /// thread, and `own` its stack.
    fn is_unchanged(&self, from: usize, here: usize, own: (usize, usize)) -> bool {
        // What lies further out than the last look went may have changed.
        let is_whole = self.count < MOST;
        is_whole
            && own.0 <= here
            && (from..self.count).all(|at| {
                let place = self.places[at];
                here < place
                    && place <= own.1.saturating_sub(size_of::<usize>())
                    && place.is_multiple_of(align_of::<usize>())
                    // SAFETY: rule *bounds*: the place is aligned, and lies between a frame of this
                    // thread and the end of its stack, where all memory is accessible. Volatile,
                    // because the compiler does not know what lies there.
                    && self.frames[at] == unsafe {
                        std::ptr::with_exposed_provenance::<usize>(place).read_volatile()
                    }
            })
    }
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
