//! Objects in memory that others allocated.
//!
//! The page of [`segments`](crate::memory::segments) has the design. The safety rule:
//!
//! * **adopted**: the memory of an adopted segment stays readable until the heap ends. An object is
//!   registered there from the time that the model can count and traverse it until the model is
//!   about to give its memory away.

use std::ptr::NonNull;

use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::memory::segments::{AdoptError, Segments};
use crate::object::state::{self, StateByte};
use crate::object::type_info::Object;

impl<M: ObjectModel<Addresses = Segments>> ModelMutator<M> {
    /// Adopts `bytes` bytes of memory from `start` on: objects in it can be
    /// [registered](Self::register) from now on. Both numbers are multiples of 64 KiB.
    ///
    /// The heap never frees this memory, and accesses it only through the model. It stays adopted
    /// until the heap ends. It counts against the bytes of
    /// [`HeapBuilder::reserve`](crate::HeapBuilder::reserve), because it has entries in the heap's
    /// tables: 4.3 KiB for each 64 KiB.
    ///
    /// # Errors
    ///
    /// [`AdoptError::Unaligned`], [`AdoptError::Taken`] if a part of it belongs to a heap,
    /// [`AdoptError::Full`], also for addresses above 2⁴⁸, and [`AdoptError::System`]. Then nothing
    /// has changed.
    ///
    /// # Safety
    ///
    /// The memory is readable, and stays so until the heap ends.
    pub unsafe fn adopt(&self, start: NonNull<u8>, bytes: usize) -> Result<(), AdoptError> {
        // SAFETY: as the caller says.
        unsafe { self.core().space.adopt_memory(start, bytes, true) }
    }

    /// Makes an object in adopted memory one of this heap, and puts it into the tracked set if
    /// `tracked`. An object takes at least 32 bytes, and starts at a multiple of 16.
    ///
    /// The heap finds an object by the aligned 32 bytes in which it starts. So no traversal reports
    /// another address in these 32 bytes, for example that of something small right in front of the
    /// object: the collector would take it for the object.
    ///
    /// From now on the object may be passed to each method that takes an object of this heap,
    /// except [`free`](Self::free) and
    /// [`free_from_anywhere`](crate::model::ModelHeap::free_from_anywhere). When its count reaches
    /// 0, the model [unregisters](Self::unregister) it, or declares it [dead](Self::dead). It gives
    /// the memory back in its own way. The statistics and the pacing of the heap count it as an
    /// object of 32 bytes.
    ///
    /// # Errors
    ///
    /// [`AdoptError::Misplaced`], [`AdoptError::NotAdopted`] and [`AdoptError::Registered`]. Then
    /// nothing has changed.
    ///
    /// # Panics
    ///
    /// If the model [lists its objects](ObjectModel::LISTS_OBJECTS).
    ///
    /// # Safety
    ///
    /// The model can count and traverse the object. No other thread registers an object at this
    /// address.
    pub unsafe fn register(&self, object: Object, tracked: bool) -> Result<(), AdoptError> {
        self.assert_not_listed("register");
        let space = &self.core().space;
        space.check_place(object.address())?;
        // SAFETY: rule *adopted*: the place was checked, so its page has table entries.
        unsafe {
            if self.core().state(object.address()).get() != 0 {
                return Err(AdoptError::Registered { address: object.address() });
            }
            space.set_half(object.address());
            self.publish(object, tracked);
        }
        if self.arena(|arena| arena.count_foreign(1)) {
            self.account();
        }
        Ok(())
    }

    /// Removes a registered object from this heap. The memory is the runtime's again.
    ///
    /// # Panics
    ///
    /// If no object is registered there, or the model
    /// [lists its objects](ObjectModel::LISTS_OBJECTS).
    ///
    /// # Safety
    ///
    /// No reference to the object exists. A collection holds a reference to each object that it
    /// has found unreachable.
    pub unsafe fn unregister(&self, object: Object) {
        self.assert_not_listed("unregister");
        let space = &self.core().space;
        let place = space.check_place(object.address());
        assert!(place.is_ok(), "{}", place.unwrap_err());
        // SAFETY: rule *adopted*: the place was checked, so its page has table entries.
        let state: StateByte<'_> = unsafe { self.core().state(object.address()) };
        assert!(
            self.core().is_start(object.address()) && state.get() & state::LIVE != 0,
            "no object is registered at {:#x}",
            object.address()
        );
        state.death();
        if self.arena(|arena| arena.count_foreign(-1)) {
            self.account();
        }
    }
}
