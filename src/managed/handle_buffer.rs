//! A [`GcVec`](crate::GcVec) with more handles than fit into it needs memory elsewhere, which any
//! thread may have to free. So it takes an array of handles in a cell of a heap, a *buffer*.
//!
//! ```text
//! | Header | handle | handle | …      (not initialized from the vector's length on)
//! ```
//!
//! A buffer is an object of the heap with one reference, which the vector owns. It is not tracked,
//! so no collection takes it for a candidate. Its table of functions visits, clears and destroys
//! nothing, because the vector reports the handles as its own references, and drops them before it
//! drops the buffer.
//!
//! The header is there so that a buffer can die wherever an object can die. If the thread is
//! attached to the buffer's heap, it frees the cell at once and ignores the count, because the
//! vector had the only reference. Any other thread puts the reference on the heap's deferred list,
//! or frees the cell of a closed heap, as for any other object.

use std::any::TypeId;
use std::ptr::NonNull;

use crate::managed::deferred::defer;
use crate::managed::parts::{Raw, type_index};
use crate::memory::shape::GRANULE;
use crate::memory::size_class::{class_for, class_size};
use crate::object::counted::{CountedRef, object};
use crate::object::header::Header;
use crate::object::tracer::Edge;
use crate::object::type_info::TypeInfo;
use crate::report::error::OutOfMemory;

/// The one reference to a buffer. The drop frees the buffer, but drops no handle, because the
/// vector owns those.
#[derive(Debug)]
pub(crate) struct HandleBuffer(NonNull<Header>);

const HANDLE: usize = size_of::<NonNull<Header>>();
/// The distance from the header to the first handle, in bytes.
const HANDLES: usize = size_of::<Header>().next_multiple_of(HANDLE);

/// The type of all buffers.
pub(super) static INFO: &TypeInfo = &TypeInfo {
    id: TypeId::of::<HandleBuffer>,
    name: |_| "the buffer of a GcVec",
    offset: HANDLES,
    tracked: false,
    traverse_each: |objects, tracer, ends| tracer.each(objects, ends, |_, _| {}),
    describe: None,
    label: None,
    prefetch_each: None,
    clear: |_, _| {},
    finalize: None,
    has_finalizer: None,
    clears_last: None,
    legacy: None,
    external: None,
    drop: None,
    destroy: None,
    dealloc: None,
};

impl HandleBuffer {
    /// The edge to the buffer, for a description.
    pub(crate) fn edge(&self) -> Edge<'_> {
        Edge::at(self.0.as_ptr() as usize)
    }

    /// The most handles of one buffer.
    pub(crate) const MOST: usize = u32::MAX as usize;

    /// A buffer for at least `least` handles, and the number of handles that it has room for, which
    /// is [`MOST`](Self::MOST) at most.
    pub(crate) fn new(m: &Raw, least: usize) -> Result<(Self, u32), OutOfMemory> {
        let size = HANDLES.saturating_add(least.saturating_mul(HANDLE));
        if least > Self::MOST {
            return Err(OutOfMemory::TooLarge { size });
        }
        let index = type_index(m, INFO)?;
        let (cell, size) = match class_for(size, GRANULE) {
            Some(class) => (m.allocate_cell(class)?, class_size(class)),
            None => (m.allocate(size, GRANULE)?, size),
        };
        let header = cell.cast();
        // SAFETY: rule *new*: fresh memory, larger than a header.
        unsafe {
            header.write(Header::new(m.id(), index));
            m.publish_as(object(header), 0);
        }
        Ok((Self(header), ((size - HANDLES) / HANDLE) as u32))
    }

    /// The place of the first handle, which is constant for the lifetime of the buffer.
    #[inline(always)]
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: rule *counted*: the cell of a buffer is at least so large.
        unsafe { self.0.cast::<u8>().add(HANDLES) }
    }
}

impl Drop for HandleBuffer {
    #[inline]
    fn drop(&mut self) {
        match Raw::current_owning(object(self.0)) {
            // SAFETY: rule *counted*: this is the only reference, and a buffer has no destructor.
            Some(m) => unsafe { m.free_unprefixed(self.0.cast()) },
            // SAFETY: rule *counted*: this value owned the reference.
            None => defer(unsafe { CountedRef::new(self.0) }),
        }
    }
}
