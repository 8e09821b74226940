//! The roots that the last full collection found.
//!
//! The list is a guess about the next full collection: see
//! [`collect/assumed.rs`](crate::collect::assumed). It holds no references, so its objects may die
//! and their cells may be used again.

#![forbid(unsafe_code)]

use crate::base::sync::Mutex;

/// A root of the last full collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundRoot {
    pub(crate) granule: u32,
    /// The number of edges that led to it.
    pub(crate) inside: u32,
}

/// The remembered roots of one heap. Only the collecting thread uses them, in a stop.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<Vec<FoundRoot>>);

impl Remembered {
    /// Takes the roots.
    pub(crate) fn take(&self) -> Vec<FoundRoot> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Remembers roots for the next full collection.
    pub(crate) fn set(&self, roots: Vec<FoundRoot>) {
        *self.0.lock() = roots;
    }
}
