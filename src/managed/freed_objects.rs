//! Floor 3: the memory of freed dynamic objects, in checked mode.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::base::fallible::NoMemory;
use crate::memory::shape::Footprint;
use crate::object::weak::HeaderPtr;

/// Freed dynamic objects. Their memory is not reused yet, so that a stale address is recognised.
///
/// Both limits hold after each free. If the heap refuses memory, all of this memory is freed, and
/// the allocation is tried again.
#[derive(Debug, Default)]
pub(crate) struct FreedObjects {
    /// Oldest first.
    objects: VecDeque<(HeaderPtr, Footprint)>,
    /// The sum of their footprints.
    bytes: usize,
}

impl FreedObjects {
    /// The limit of objects.
    const OBJECTS: usize = 4096;
    /// The limit of bytes.
    const BYTES: usize = 4 << 20;

    /// Adds an object. Call [`pop_excess`](Self::pop_excess) afterwards.
    pub(crate) fn push(&mut self, object: HeaderPtr, footprint: Footprint) -> Result<(), NoMemory> {
        self.objects.try_reserve(1)?;
        self.bytes += footprint.bytes();
        self.objects.push_back((object, footprint));
        Ok(())
    }

    /// Removes the oldest object, if a limit is exceeded.
    pub(crate) fn pop_excess(&mut self) -> Option<HeaderPtr> {
        let many = self.objects.len() > Self::OBJECTS || self.bytes > Self::BYTES;
        if many { self.pop() } else { None }
    }

    /// Removes the oldest object.
    pub(super) fn pop(&mut self) -> Option<HeaderPtr> {
        let (object, footprint) = self.objects.pop_front()?;
        self.bytes -= footprint.bytes();
        Some(object)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::ptr::NonNull;

    #[test]
    fn the_quarantine_counts_the_bytes_of_what_it_keeps() {
        let shape =
            crate::memory::shape::Shape::large(FreedObjects::BYTES / 4, 16).expect("a size");
        let footprint = shape.footprint();
        let most = FreedObjects::BYTES / footprint.bytes();
        let mut freed_objects = FreedObjects::default();
        let mut headers = [0u64; 64];
        // Each new object removes the oldest one, once the limit is reached.
        for (at, header) in headers.iter_mut().enumerate() {
            // Never dereferenced.
            let object = HeaderPtr(NonNull::from(header).cast());
            freed_objects.push(object, footprint).expect("memory");
            assert_eq!(freed_objects.pop_excess().is_some(), at >= most, "object {at}");
            assert!(freed_objects.pop_excess().is_none(), "one went, and that is enough");
            assert_eq!(freed_objects.objects.len(), (at + 1).min(most));
        }
        while freed_objects.pop().is_some() {}
        assert_eq!(freed_objects.bytes, 0);
    }

    #[test]
    fn the_quarantine_is_full_at_its_limits_and_not_before() {
        use crate::memory::arena::{CLASSES, shape_of};
        let footprints = || (0..CLASSES as u8).map(|class| shape_of(class).footprint());
        // Small objects up to the limit of objects, and larger ones up to the exact limit of bytes.
        let small = footprints().next().expect("a class");
        let exact = |footprint: &Footprint| {
            let bytes = footprint.bytes();
            bytes > 0
                && FreedObjects::BYTES.is_multiple_of(bytes)
                && FreedObjects::BYTES / bytes < FreedObjects::OBJECTS
        };
        let large = footprints().find(exact).expect("one whose size is a power of two");
        for (footprint, most) in
            [(small, FreedObjects::OBJECTS), (large, FreedObjects::BYTES / large.bytes())]
        {
            let mut freed_objects = FreedObjects::default();
            let header = 0u64;
            // Never dereferenced.
            let object = || HeaderPtr(NonNull::from(&header).cast());
            for _ in 0..most {
                freed_objects.push(object(), footprint).expect("memory");
                assert!(freed_objects.pop_excess().is_none());
            }
            freed_objects.push(object(), footprint).expect("memory");
            assert!(freed_objects.pop_excess().is_some() && freed_objects.pop_excess().is_none());
            assert_eq!(freed_objects.objects.len(), most);
        }
    }
}
