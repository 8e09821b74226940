//! The arguments with which a model lists its objects. The page of `collect/listing.rs` has the
//! design.

use std::fmt;
use std::ptr::NonNull;

use crate::base::sync::{AtomicU8, Ordering};
use crate::memory::segments::{AdoptError, Directory, HALF, Segments};
use crate::memory::space::{GRANULE, PAGE_SIZE, Space};
use crate::object::state::{LIVE, TRACKED, UNREACHABLE};
use crate::object::type_info::Object;

/// The memory of a heap whose model lists its objects.
/// [`ObjectModel::list_parts`](crate::model::ObjectModel::list_parts) receives it.
pub struct ListedMemory<'a> {
    space: &'a Space<Segments>,
}

impl<'a> ListedMemory<'a> {
    pub(crate) fn new(space: &'a Space<Segments>) -> Self {
        Self { space }
    }

    /// Whether the heap has adopted the memory at an address.
    pub fn is_adopted(&self, address: usize) -> bool {
        self.space.contains(address)
    }

    /// Adopts memory in a stop. See [`ModelMutator::adopt`](crate::model::ModelMutator::adopt).
    ///
    /// Several heaps may adopt the same memory in this way, because a heap knows listed objects
    /// only during its own collections. So a program can replace its heap.
    ///
    /// # Errors
    ///
    /// Those of `ModelMutator::adopt`.
    ///
    /// # Safety
    ///
    /// An object is listed in this memory only while its part of the memory is readable. (The heap
    /// reads only the memory of objects. If the runtime unmaps the memory and maps it again, it
    /// stays adopted.)
    pub unsafe fn adopt(&self, start: NonNull<u8>, bytes: usize) -> Result<(), AdoptError> {
        // SAFETY: as the caller says. The collecting thread is attached.
        unsafe { self.space.adopt_memory(start, bytes, false) }
    }
}

impl fmt::Debug for ListedMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListedMemory").finish_non_exhaustive()
    }
}

/// The list of the objects of one stop. [`ObjectModel::list`](crate::model::ObjectModel::list)
/// receives it.
pub struct ObjectList<'a> {
    directory: Directory,
    states: &'a [AtomicU8],
    /// The page of the last object: its address by [`PAGE_SIZE`], and its first granule. Before the
    /// first object it is no page.
    page: (usize, usize),
}

impl<'a> ObjectList<'a> {
    pub(crate) fn new(space: &'a Space<Segments>) -> Self {
        Self { directory: space.origin(), states: space.states(), page: (usize::MAX, 0) }
    }

    /// Adds an object.
    ///
    /// # Panics
    ///
    /// If the heap has not adopted the memory at this address, if the address is not a multiple of
    /// 16, or if the object was listed before. The collection is then abandoned.
    ///
    /// # Safety
    ///
    /// The object is alive: the model can count and traverse it in this stop. It takes at least 32
    /// bytes. No other part lists objects in the same aligned page of 64 KiB. No traversal reports
    /// another address in the aligned 32 bytes in which the object starts.
    #[inline(always)]
    pub unsafe fn add(&mut self, object: Object) {
        let address = object.address();
        if address / PAGE_SIZE != self.page.0 {
            self.enter(address);
        }
        if address & (HALF - 1) != 0 {
            refuse(address, "which is not a multiple of 16");
        }
        let granule = self.page.1 + address % PAGE_SIZE / GRANULE;
        // Relaxed, and a load and a store: only this worker writes the byte, and the end of the
        // job orders it before its readers.
        let state = &self.states[granule];
        let before = state.load(Ordering::Relaxed);
        if before & (LIVE | UNREACHABLE) == LIVE {
            refuse(address, "where one was listed before");
        }
        state.store(before | LIVE | TRACKED, Ordering::Relaxed);
        self.directory.set_half_alone(granule, address);
    }

    /// Finds the page of an address.
    #[inline(never)]
    fn enter(&mut self, address: usize) {
        let start = address / PAGE_SIZE * PAGE_SIZE;
        let granule = self.directory.find(start);
        if !self.directory.is_adopted(granule) {
            refuse(address, "which is not in adopted memory");
        }
        self.page = (address / PAGE_SIZE, granule);
    }
}

impl fmt::Debug for ObjectList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectList").finish_non_exhaustive()
    }
}

#[cold]
#[inline(never)]
fn refuse(address: usize, reason: &str) -> ! {
    panic!("an object was listed at {address:#x}, {reason}")
}
