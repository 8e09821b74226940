//! Allocations that can fail.
//!
//! A program that runs out of memory needs its collector most. So a collection must not end the
//! process if one of its own lists cannot grow, as std's containers would. All lists that grow
//! during a collection therefore use this module, or `try_reserve` ahead of many pushes, so that a
//! failure is a value. For example, [`NoMemory`] goes from a full list of roots up to the phase,
//! which abandons the collection. `tests/alloc_failure.rs` refuses each allocation in turn, and
//! lists those inside std and other packages whose failure still ends the process.
//!
//! Texts grow in the same way, except that a message without memory becomes [`NO_WORDS`].

use std::borrow::Cow;
use std::collections::TryReserveError;
use std::ffi::{CStr, CString};
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// Memory could not be allocated. It has no text, because a text would take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl NoMemory {
    /// For reports.
    pub(crate) const REASON: &str = "memory ran out";

    /// Ends the process, as std does, in functions without errors.
    #[cold]
    pub(crate) fn abort_process<T>(self) -> T {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<usize>())
    }
}

impl From<TryReserveError> for NoMemory {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

/// Adds a value to a list.
#[inline]
pub fn push<T>(list: &mut Vec<T>, value: T) -> Result<(), NoMemory> {
    list.try_reserve(1)?;
    list.push(value);
    Ok(())
}

/// Moves the elements of `more` to the end of a list, which takes them over uncopied if it is
/// empty.
pub(crate) fn append<T>(list: &mut Vec<T>, more: &mut Vec<T>) -> Result<(), NoMemory> {
    if list.is_empty() {
        std::mem::swap(list, more);
        return Ok(());
    }
    list.try_reserve(more.len())?;
    list.append(more);
    Ok(())
}

/// Adds copies of values to a list.
#[cfg(feature = "cpython")]
pub(crate) fn extend<T: Copy>(list: &mut Vec<T>, more: &[T]) -> Result<(), NoMemory> {
    list.try_reserve(more.len())?;
    list.extend_from_slice(more);
    Ok(())
}

/// Computes a value for each item, and adds the values that are kept: those with a 1 beside them,
/// and not a 0.
///
/// The loop has no branch, because it writes each value, and increments the length only for a kept
/// one. The length is in a register during the loop, because each item would wait for the store of
/// the previous item otherwise.
#[inline(always)]
pub(crate) fn extend_kept<A, T: Copy>(
    list: &mut Vec<T>,
    items: impl ExactSizeIterator<Item = A>,
    mut value: impl FnMut(A) -> (T, u8),
) -> Result<(), NoMemory> {
    let count = items.len();
    list.try_reserve(count)?;
    let mut len = list.len();
    let elements = list.as_mut_ptr();
    // `take`, which costs nothing for slices, makes it certain that there are no more.
    items.take(count).for_each(|item| {
        let (value, is_kept) = value(item);
        // SAFETY: rule *bounds*: there is room for `count` values.
        unsafe { elements.add(len).write(value) };
        len += usize::from(is_kept & 1);
    });
    // SAFETY: rule *bounds*: a value is written before it is counted.
    unsafe { list.set_len(len) };
    Ok(())
}

/// Collects an iterator of known length into a list.
pub fn collect<T>(values: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    list.try_reserve_exact(values.len())?;
    list.extend(values);
    Ok(list)
}

/// `len` zero bytes, which the system need not touch before their first use.
pub(crate) fn zeroes(len: usize) -> Result<Vec<u8>, NoMemory> {
    let layout = std::alloc::Layout::array::<u8>(len).map_err(|_| NoMemory)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: rule *bounds*: the layout is not empty.
    let bytes = unsafe { std::alloc::alloc_zeroed(layout) };
    if bytes.is_null() {
        return Err(NoMemory);
    }
    // SAFETY: rule *bounds*: from the global allocator, with the layout of `len` bytes, which are
    // all initialised.
    Ok(unsafe { Vec::from_raw_parts(bytes, len, len) })
}

/// An [`Arc`], for interfaces that need one. Because its allocation cannot fail as a value, this
/// function first allocates and frees as much memory. The process ends only if another thread takes
/// that memory in between, and no more is left.
pub fn arc<T>(value: T) -> Result<Arc<T>, NoMemory> {
    room_for_arc::<T>()?;
    Ok(Arc::new(value))
}

/// Checks for the memory that [`arc`] needs.
pub(crate) fn room_for_arc<T>() -> Result<(), NoMemory> {
    // With two counts, because those of an `Arc` lie in front of the value.
    seems_to_have(size_of::<(usize, usize, T)>()).then_some(()).ok_or(NoMemory)
}

/// A copy of the text.
pub fn owned(text: &str) -> Result<String, NoMemory> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy)
}

/// A boxed value, as [`Box::new`] makes it.
pub fn boxed<T>(value: T) -> Result<Box<T>, NoMemory> {
    let layout = std::alloc::Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: rule *bounds*: the layout is not empty.
    let place = unsafe { std::alloc::alloc(layout) }.cast::<T>();
    if place.is_null() {
        return Err(NoMemory);
    }
    // SAFETY: rule *bounds*: from the global allocator, with the layout of a box of this type.
    unsafe {
        place.write(value);
        Ok(Box::from_raw(place))
    }
}

/// Whether `bytes` bytes could be allocated just now. Correctness must not depend on it, because
/// it is only a hint, for allocations that cannot fail as a value.
pub(crate) fn seems_to_have(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

/// A text that grows while there is memory.
#[derive(Default)]
struct Growing(String);

impl fmt::Write for Growing {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0.try_reserve(more.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(more);
        Ok(())
    }
}

/// The text, formatted, or `None` if there is no memory for it.
pub fn written(text: impl fmt::Display) -> Option<String> {
    let mut growing = Growing::default();
    write!(growing, "{text}").is_ok().then_some(growing.0)
}

/// Replaces a message that there is no memory for.
pub const NO_WORDS: &str = "there is no memory for a message";

/// See [`words!`](crate::words).
pub fn in_words(text: fmt::Arguments<'_>) -> Cow<'static, str> {
    match text.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => written(text).map_or(Cow::Borrowed(NO_WORDS), Cow::Owned),
    }
}

/// As `format!`, for messages, or [`NO_WORDS`](fallible::NO_WORDS) if there is no memory for the
/// message.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($($text:tt)*) => { $crate::fallible::in_words(format_args!($($text)*)) };
}

pub(crate) use words;

/// The length of a formatted text.
struct TextLength(usize);

impl fmt::Write for TextLength {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0 += more.len();
        Ok(())
    }
}

/// The text, formatted for C, so that null bytes are replaced, and one is appended.
pub fn c_text(text: impl fmt::Display) -> Result<CString, NoMemory> {
    struct Bytes(Vec<u8>);
    impl fmt::Write for Bytes {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            // A text may be longer when it is formatted again, but gets no more room.
            let room = self.0.capacity() - self.0.len() - 1;
            self.0.extend(more.bytes().take(room).map(|byte| if byte == 0 { b'?' } else { byte }));
            Ok(())
        }
    }
    let mut length = TextLength(0);
    write!(length, "{text}").map_err(|_| NoMemory)?;
    let mut bytes = Bytes(Vec::new());
    bytes.0.try_reserve_exact(length.0 + 1)?;
    write!(bytes, "{text}").map_err(|_| NoMemory)?;
    // Fills the capacity, because a vector with spare capacity would be reallocated.
    bytes.0.resize(bytes.0.capacity(), 0);
    CString::from_vec_with_nul(bytes.0).map_err(|_| NoMemory)
}

/// A copy of a text for C.
pub fn c_copy(text: &CStr) -> Result<CString, NoMemory> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(text.to_bytes_with_nul().len())?;
    bytes.extend_from_slice(text.to_bytes_with_nul());
    CString::from_vec_with_nul(bytes).map_err(|_| NoMemory)
}

/// A text that may not be UTF-8, with a replacement character for invalid bytes.
pub fn lossy(bytes: &[u8]) -> Result<Cow<'_, str>, NoMemory> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Ok(Cow::Borrowed(text));
    }
    let mut text = Growing::default();
    for chunk in bytes.utf8_chunks() {
        let sign = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
        write!(text, "{}{sign}", chunk.valid()).map_err(|_| NoMemory)?;
    }
    Ok(Cow::Owned(text.0))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
