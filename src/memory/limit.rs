//! The limit of a space: of its pages in use, together with memory outside of it.
//!
//! Objects get memory outside the space without asking, and threads report it late. So it can
//! exceed the limit. Pages cannot: a page is taken only if the limit has room for it then.

#![forbid(unsafe_code)]

use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::pool::SpaceError;
use crate::memory::shape::{PAGE_SHIFT, PAGE_SIZE};

/// The limit, and the bytes outside the space that objects have.
#[derive(Debug)]
pub(crate) struct Limit {
    /// `None`: no limit. Then no function but those of the bytes reads an atomic.
    pages: Option<usize>,
    external: AtomicUsize,
}

impl Limit {
    /// `None`: no limit.
    pub(super) fn new(bytes: Option<usize>) -> Self {
        Self { pages: bytes.map(|bytes| bytes >> PAGE_SHIFT), external: AtomicUsize::new(0) }
    }

    /// In bytes. `usize::MAX`: no limit.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.map_or(usize::MAX, |pages| pages << PAGE_SHIFT)
    }

    /// Records bytes outside the space that objects have got (positive) or given up (negative).
    pub(crate) fn count_external(&self, change: isize) {
        let change = |now: usize| Some(now.saturating_add_signed(change));
        // Relaxed: threads report late, so the limit is approximate in any case.
        self.external
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
            .unwrap_or_default();
    }

    /// Bytes outside the space that objects have.
    pub(crate) fn external_bytes(&self) -> usize {
        self.external.load(Ordering::Relaxed)
    }

    /// With this many pages in use: as many as count for the limit.
    fn used(&self, in_use: usize) -> usize {
        in_use.saturating_add(self.external_bytes() >> PAGE_SHIFT)
    }

    /// An error, if the limit has no room for `more` pages. `in_use` gives the pages in use.
    pub(super) fn check(
        &self,
        in_use: impl FnOnce() -> usize,
        more: usize,
    ) -> Result<(), SpaceError> {
        let Some(pages) = self.pages else { return Ok(()) };
        let used = self.used(in_use());
        if used.saturating_add(more) <= pages {
            return Ok(());
        }
        let [asked, in_use] = [more, used].map(|pages| pages.saturating_mul(PAGE_SIZE));
        Err(SpaceError::Limit { asked, in_use, limit: self.bytes() })
    }

    /// Whether more than three quarters of the limit are used, or of `most` pages.
    pub(super) fn is_tight(&self, in_use: usize, most: usize) -> bool {
        let is_tight = |used: usize, most: usize| used > most - most / 4;
        is_tight(in_use, most) || self.pages.is_some_and(|pages| is_tight(self.used(in_use), pages))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
