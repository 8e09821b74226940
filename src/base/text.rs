//! Texts, made by fallible allocations.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fmt::{self, Write as _};

use crate::base::fallible::NoMemory;

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

/// The text, formatted. `None`: there is no memory for it.
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

/// As `format!`, for messages. [`NO_WORDS`](fallible::NO_WORDS) if there is no memory for the
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

/// The text, formatted for C: null bytes are replaced, and one is appended.
pub fn c_text(text: impl fmt::Display) -> Result<CString, NoMemory> {
    struct Bytes(Vec<u8>);
    impl fmt::Write for Bytes {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            // A text may be longer when it is formatted again. It then gets no more room.
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
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_out_and_copied() {
        assert_eq!(words!("memory {} out", "ran"), "memory ran out");
        assert_eq!(c_text(format_args!("a{}b", "\0")).unwrap().as_c_str(), c"a?b");
        assert_eq!(c_text("").unwrap().as_c_str(), c"");
        assert_eq!(lossy(b"good").unwrap(), "good");
        assert_eq!(lossy(b"b\xffd\xc3").unwrap(), String::from_utf8_lossy(b"b\xffd\xc3"));
    }
}
