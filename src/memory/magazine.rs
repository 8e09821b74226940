//! A magazine: a small stack of free cells.

use std::ptr::NonNull;

/// The most cells in a magazine.
pub(super) const MAGAZINE_CAPACITY: usize =
    if cfg!(all(test, any(loom, shuttle))) { 2 } else { 64 };

/// A stack of free cells of one class.
#[derive(Debug)]
pub(super) struct Magazine {
    pub(super) len: u32,
    /// At most `MAGAZINE_CAPACITY`. Less for large cells, so that a magazine holds at most a page.
    pub(super) capacity: u32,
    pub(super) cells: [NonNull<u8>; MAGAZINE_CAPACITY],
}

impl Magazine {
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<NonNull<u8>> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: rule *bounds*: `len` is below `capacity`, which is at most `MAGAZINE_CAPACITY`.
        Some(unsafe { *self.cells.get_unchecked(self.len as usize) })
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// The caller has made room.
    #[inline(always)]
    pub(super) fn push(&mut self, cell: NonNull<u8>) {
        debug_assert!(self.len < self.capacity);
        // SAFETY: rule *bounds*: `len` is below `capacity`, which is at most `MAGAZINE_CAPACITY`.
        unsafe { *self.cells.get_unchecked_mut(self.len as usize) = cell };
        self.len += 1;
    }

    pub(super) fn cells(&self) -> &[NonNull<u8>] {
        &self.cells[..self.len as usize]
    }
}
