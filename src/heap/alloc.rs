//! The memory of objects, from the allocation to the release.
//!
//! The safety rule:
//!
//! * **new**: the memory that [`allocate`](ModelMutator::allocate) has just returned has the
//!   requested size and alignment. No other thread has its address until the object is
//!   [published](ModelMutator::publish) and the address is passed on.

use std::ptr::NonNull;

use crate::base::error::OutOfMemory;
use crate::base::sync::Ordering;
use crate::heap::core::COLLECT;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::pacing::Due;
use crate::memory::address_map::Map;
use crate::memory::arena::{Arena, class_for, class_size};
use crate::memory::shape::MAX_ALIGN;
use crate::memory::space::SpaceError;
use crate::object::state::{self};
use crate::object::type_info::Object;

impl<M: ObjectModel> ModelMutator<M> {
    /// Allocates memory for an object of `size` bytes at a multiple of `align`. Its bytes are
    /// arbitrary. [`publish`](Self::publish) makes it an object.
    ///
    /// # Errors
    ///
    /// When the heap's limit is reached, or the system refuses. When the object is too large for a
    /// heap. When the alignment is not a power of two or exceeds 32 KiB. Then nothing has changed.
    pub fn allocate(&self, size: usize, align: usize) -> Result<NonNull<u8>, OutOfMemory> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(OutOfMemory::Alignment { align });
        }
        match class_for(size, align) {
            Some(class) => self.allocate_cell(class),
            None => self.allocate_large(size, align),
        }
    }

    /// Allocates memory for an object of a known size class.
    #[inline(always)]
    pub(crate) fn allocate_cell(&self, class: u8) -> Result<NonNull<u8>, OutOfMemory> {
        match self.arena(|arena| arena.pop(class)) {
            Some(cell) => Ok(cell),
            None => self.refill(class),
        }
    }

    #[cold]
    #[inline(never)]
    fn refill(&self, class: u8) -> Result<NonNull<u8>, OutOfMemory> {
        let space = &self.core().space;
        self.twice(class_size(class), || {
            self.arena(|arena| arena.alloc(space, class).ok_or_else(|| arena.last_error()))
        })
    }

    #[cold]
    #[inline(never)]
    fn allocate_large(&self, size: usize, align: usize) -> Result<NonNull<u8>, OutOfMemory> {
        let space = &self.core().space;
        self.twice(size, || self.arena(|arena| arena.alloc_large(space, size, align)).map_err(Some))
    }

    /// Allocates from the arena. If that fails and the model can release memory, tries once more.
    fn twice(
        &self,
        size: usize,
        attempt: impl Fn() -> Result<NonNull<u8>, Option<SpaceError>>,
    ) -> Result<NonNull<u8>, OutOfMemory> {
        let mut result = attempt();
        if result.is_err() && self.model().refused(self) {
            result = attempt();
        }
        let memory = result.map_err(|error| self.out_of_memory(error, size))?;
        self.account();
        Ok(memory)
    }

    fn out_of_memory(&self, error: Option<SpaceError>, size: usize) -> OutOfMemory {
        match error {
            Some(SpaceError::Limit { asked, limit, .. }) if asked <= limit => {
                OutOfMemory::Limit { limit }
            }
            Some(SpaceError::Full { asked, reserved, .. }) if asked <= reserved => {
                OutOfMemory::Limit { limit: reserved }
            }
            Some(SpaceError::Limit { .. } | SpaceError::Full { .. }) => {
                OutOfMemory::TooLarge { size }
            }
            Some(SpaceError::Alignment { align }) => OutOfMemory::Alignment { align },
            Some(SpaceError::Refused { .. }) | None => OutOfMemory::System,
        }
    }

    /// Reports this thread's allocations and frees to the pace. If a collection is due, requests
    /// it.
    pub(super) fn account(&self) {
        let (objects, bytes) = self.arena(Arena::take_count);
        let pace = &self.core().pace;
        pace.taken(objects, bytes);
        if pace.due() != Due::Nothing || self.core().collector_lock.is_reclaiming() {
            self.raise(COLLECT);
        }
    }

    /// Gives memory back that was allocated and not published, or that held an object.
    ///
    /// # Panics
    ///
    /// If the memory is [adopted](Self::adopt): the heap does not own it.
    ///
    /// # Safety
    ///
    /// [`allocate`](Self::allocate) of this heap returned the memory. No reference to it exists.
    /// Its content has been destroyed.
    #[inline]
    pub unsafe fn free(&self, cell: NonNull<u8>) {
        let core = self.core();
        if <M::Addresses as Map>::ADOPTS {
            // SAFETY: rule *mapped*: an object of this heap.
            unsafe { core.space.assert_own(cell.as_ptr() as usize) };
        }
        // SAFETY: rule *mapped*: the cell was handed out by this heap's space.
        unsafe { core.state(cell.as_ptr() as usize) }.death();
        // SAFETY: as the caller says; the state byte is 0.
        unsafe {
            if !self.arena(|arena| arena.free_here(&core.space, cell)) {
                self.free_elsewhere(cell);
            }
        }
    }

    /// Like [`free`](Self::free), for an object of a known size class.
    ///
    /// # Safety
    ///
    /// As for `free`, and the memory was allocated with this class.
    #[inline(always)]
    pub(crate) unsafe fn free_of_class(&self, cell: NonNull<u8>, class: u8) {
        let core = self.core();
        // SAFETY: as in `free`.
        unsafe { core.state(cell.as_ptr() as usize) }.death();
        // SAFETY: as the caller says; the state byte is 0.
        unsafe {
            if !self.arena(|arena| arena.free_of_class(&core.space, cell, class)) {
                self.free_elsewhere(cell);
            }
        }
    }

    /// Like `free`, for memory that is not on a page of this thread's arena.
    ///
    /// # Safety
    ///
    /// As for `free`.
    #[cold]
    unsafe fn free_elsewhere(&self, cell: NonNull<u8>) {
        // SAFETY: as for `free`.
        if self.arena(|arena| unsafe { arena.free_elsewhere(&self.core().space, cell) }) {
            self.account();
        }
    }

    /// Makes the memory an object, and puts it into the tracked set if `tracked`.
    ///
    /// # Safety
    ///
    /// [`allocate`](Self::allocate) of this mutator returned the memory. The model can count and
    /// traverse its content.
    #[inline(always)]
    pub unsafe fn publish(&self, object: Object, tracked: bool) {
        // SAFETY: as the caller says.
        unsafe {
            // A stop since the allocation may have marked the page as old. Relaxed: see
            // `PageInfo::young`.
            self.core().space.page_of(object.address()).young.store(1, Ordering::Relaxed);
            self.publish_as(object, if tracked { state::TRACKED } else { 0 });
        }
    }

    /// Like [`publish`](Self::publish), with these initial state bits.
    ///
    /// # Safety
    ///
    /// As for `publish`.
    #[inline(always)]
    pub(crate) unsafe fn publish_as(&self, object: Object, bits: u8) {
        // SAFETY: rule *new*: handed out by this heap's space.
        unsafe { self.core().state(object.address()) }.birth(bits);
    }

    /// Puts an object into the tracked set. `false`: it was already in the set.
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn track(&self, object: Object) -> bool {
        let core = self.core();
        // SAFETY: as the caller says.
        let (state, page) =
            unsafe { (core.state(object.address()), core.space.page_of(object.address())) };
        // Relaxed: see `PageInfo::young`. Before the bit: a stop in between traverses the page.
        page.young.store(1, Ordering::Relaxed);
        state.track()
    }

    /// Removes an object from the tracked set. `false`: it was not in the set.
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn untrack(&self, object: Object) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.core().state(object.address()) }.untrack()
    }

    /// Whether an object is in the tracked set.
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn is_tracked(&self, object: Object) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.core().state(object.address()) }.get() & state::TRACKED != 0
    }

    /// Whether a collection has called the object's finalizer.
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn is_finalized(&self, object: Object) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.core().state(object.address()) }.get() & state::FINALIZED != 0
    }
}
