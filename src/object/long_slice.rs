//! Long slices of references, which marking reads in pieces.
//!
//! The addresses in a list of a million elements would fill several buffers with megabytes, and one
//! worker would have to look at all of them. So the [tracer](super::tracer) of a marking worker
//! only notes where such a slice is. The worker reads it in pieces, and gives half of it to an idle
//! worker ([ADR 51](../../docs/adr/0051-marking-with-several-workers.md)).

use std::ptr::NonNull;

use crate::object::address::Object;

/// A slice of slots that a traversal has visited in this stop: see
/// [`Tracer::visit_slots`](super::tracer::Tracer::visit_slots).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LongSlice {
    first: NonNull<Option<Object>>,
    len: usize,
}

// SAFETY: rule *stopped*: the slots do not change until the stop ends, and are only read.
unsafe impl Send for LongSlice {}

impl LongSlice {
    pub(crate) fn new(slots: &[Option<Object>]) -> Self {
        Self { first: NonNull::from(slots).cast(), len: slots.len() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Removes the first `len` slots, or all if there are fewer.
    pub(crate) fn take(&mut self, len: usize) -> Self {
        let taken = Self { first: self.first, len: len.min(self.len) };
        // SAFETY: rule *bounds*: inside the slice, or one past it.
        self.first = unsafe { self.first.add(taken.len) };
        self.len -= taken.len;
        taken
    }

    /// The slots.
    ///
    /// # Safety
    ///
    /// The stop in which a traversal has visited them lasts until the last use of the result.
    pub(crate) unsafe fn read<'a>(&self) -> &'a [Option<Object>] {
        // SAFETY: as the caller says, and as the caller of `Tracer::visit_slots` has said.
        unsafe { NonNull::slice_from_raw_parts(self.first, self.len).as_ref() }
    }
}
