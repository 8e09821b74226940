//! Buffers of numbers, in huge pages if they are large.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::base::fallible::NoMemory;

/// A buffer of numbers that is filled from the front and does not grow by itself.
///
/// From the size of a huge page on it is a mapping of its own, in huge pages if the system has
/// some. Random accesses then cost far less, because they miss the TLB less. The mapping returns to
/// the system as a whole and does not fragment the program's allocator.
pub(crate) struct HugeBuffer {
    start: NonNull<u32>,
    capacity: usize,
    len: usize,
    /// Start and length in bytes of the mapping. `None`: the memory is the allocator's.
    mapping: Option<(NonNull<u8>, usize)>,
}

/// The size of a huge page.
const HUGE_PAGE: usize = 2 << 20;

// SAFETY: rule *guarded*: it owns its memory, which holds numbers.
unsafe impl Send for HugeBuffer {}
// SAFETY: as above.
unsafe impl Sync for HugeBuffer {}

impl HugeBuffer {
    /// A buffer for `capacity` numbers.
    pub(crate) fn new(capacity: usize) -> Result<Self, NoMemory> {
        let layout = std::alloc::Layout::array::<u32>(capacity).map_err(|_| NoMemory)?;
        if layout.size() >= HUGE_PAGE && !cfg!(any(miri, all(test, loom))) {
            return Self::map(capacity, layout.size());
        }
        let mut list = Vec::<u32>::new();
        list.try_reserve_exact(capacity)?;
        let mut list = std::mem::ManuallyDrop::new(list);
        let start = NonNull::new(list.as_mut_ptr()).ok_or(NoMemory)?;
        Ok(Self { start, capacity: list.capacity(), len: 0, mapping: None })
    }

    fn map(capacity: usize, bytes: usize) -> Result<Self, NoMemory> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // One huge page more, so that the start can be aligned.
        let mapped = bytes.checked_add(HUGE_PAGE).ok_or(NoMemory)?;
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: rule *bounds*: a new mapping at an address that the system chooses.
        let mapping = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, access, flags) };
        let mapping = NonNull::new(mapping.map_err(|_| NoMemory)?.cast::<u8>()).ok_or(NoMemory)?;
        // SAFETY: rule *bounds*: the offset is less than the `HUGE_PAGE` bytes that were added.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE_PAGE)) };
        #[cfg(any(target_os = "linux", target_os = "android"))]
        #[expect(clippy::let_underscore_must_use, reason = "a refusal costs speed only")]
        // SAFETY: rule *bounds*: inside the mapping. The advice changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage)
        };
        Ok(Self { start: start.cast(), capacity, len: 0, mapping: Some((mapping, mapped)) })
    }

    /// The number of numbers in the buffer.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The numbers in the buffer.
    #[inline(always)]
    pub(crate) fn numbers(&self) -> &[u32] {
        // SAFETY: rule *bounds*: `len` numbers have been written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The unfilled part.
    #[inline(always)]
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u32>] {
        // SAFETY: rule *bounds*: from the last number to the end of the allocation.
        unsafe {
            let start = self.start.as_ptr().add(self.len).cast::<MaybeUninit<u32>>();
            std::slice::from_raw_parts_mut(start, self.capacity - self.len)
        }
    }

    /// Appends `more` numbers.
    ///
    /// # Safety
    ///
    /// The first `more` places of [`spare`](Self::spare) have been written.
    pub(crate) unsafe fn add(&mut self, more: usize) {
        assert!(more <= self.capacity - self.len);
        self.len += more;
    }
}

impl Default for HugeBuffer {
    fn default() -> Self {
        Self { start: NonNull::dangling(), capacity: 0, len: 0, mapping: None }
    }
}

impl std::fmt::Debug for HugeBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HugeBuffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish()
    }
}

impl Drop for HugeBuffer {
    fn drop(&mut self) {
        match self.mapping {
            Some((mapping, bytes)) => {
                // SAFETY: rule *bounds*: mapped by `map`. No reference into it is left.
                let unmapped = unsafe { rustix::mm::munmap(mapping.as_ptr().cast(), bytes) };
                debug_assert!(unmapped.is_ok());
            }
            // SAFETY: rule *bounds*: the parts of a vector of numbers, which have no destructors.
            None => drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), 0, self.capacity) }),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn room_small_and_large_is_filled_from_the_front() {
        for capacity in [0, 1, 1000, HUGE_PAGE / 4 - 1, HUGE_PAGE / 4, HUGE_PAGE] {
            let mut room = HugeBuffer::new(capacity).unwrap();
            assert!(room.spare().len() >= capacity && room.numbers().is_empty());
            for round in 0..2 {
                let half = capacity / 2;
                let spare = &mut room.spare()[..half];
                spare.iter_mut().zip(round..).for_each(|(place, number)| _ = place.write(number));
                // SAFETY: rule *bounds*: `half` numbers have just been written.
                unsafe { room.add(half) };
                assert_eq!(room.len(), (round as usize + 1) * half);
                assert!(
                    room.numbers()[round as usize * half..]
                        .iter()
                        .copied()
                        .eq((round..).take(half))
                );
            }
        }
        assert_eq!(HugeBuffer::default().spare().len(), 0);
        for capacity in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4] {
            assert!(HugeBuffer::new(capacity).is_err());
        }
        // SAFETY: rule *bounds*: the call is refused.
        assert!(std::panic::catch_unwind(|| unsafe { HugeBuffer::default().add(1) }).is_err());
    }
}
