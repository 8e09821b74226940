//! Listing the objects of a runtime that knows them itself.
//!
//! Objects in adopted memory are registered one by one, or the model *lists* them
//! ([`ObjectModel::LISTS_OBJECTS`]): the allocator of the runtime knows which of its blocks are in
//! use, and nobody tells the heap about births and deaths. Then a state byte says something about an
//! object from the stop that has listed it until the end of the collection, and only for the
//! objects that the collection holds.
//!
//! # Steps
//!
//! 1. [`ObjectModel::list_parts`], on the collecting thread: the model adopts memory that is new,
//!    and divides its pages into parts.
//! 2. The workers clear the state bytes of all adopted pages. `UNREACHABLE` stays: another thread
//!    may inspect the heap while a collection reclaims.
//! 3. [`ObjectModel::list`], on the workers, each part once: the bytes of the objects become
//!    `LIVE | TRACKED`. No page of the heap belongs to two parts, so each byte and each bit has one
//!    writer.
//!
//! Listing reads no object. Whether a listed object takes part is the answer of
//! [`ObjectModel::count`], which the collector asks only about objects that it has not reached from
//! roots before.
//!
//! # The end
//!
//! A claimed object stays where it is until it is released. Its death changes no byte, so the tally
//! clears the byte, and takes each released object for collected. The next listing clears all other
//! bytes. The heap does not notice that memory was returned to the system: its pages have no
//! objects in the next listing.

use std::borrow::Cow;
use std::fmt;
use std::ptr::NonNull;

use crate::base::steps;
use crate::base::sync::{AtomicU8, AtomicUsize, Mutex, Ordering};
use crate::collect::table::exclusively;
use crate::collect::traversal::{Abandoned, guard_traversal, tracer_of};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::address_map::{Index, Map};
use crate::memory::segments::{AdoptError, Directory, HALF, Segments};
use crate::memory::space::{PAGE_GRANULES, PageKind, Space};
use crate::object::state::{LIVE, TRACKED, UNREACHABLE};
use crate::object::type_info::Object;

/// The memory of a heap whose model lists its objects. [`ObjectModel::list_parts`] receives it.
pub struct ListedMemory<'a> {
    space: &'a Space<Segments>,
}

impl ListedMemory<'_> {
    /// Whether the heap has adopted the memory at an address.
    pub fn is_adopted(&self, address: usize) -> bool {
        self.space.contains(address)
    }

    /// Adopts memory in a stop. See [`ModelMutator::adopt`](crate::model::ModelMutator::adopt).
    ///
    /// Several heaps may adopt the same memory in this way, because a heap knows listed objects only
    /// during its own collections. So a program can replace its heap.
    ///
    /// # Errors
    ///
    /// Those of `ModelMutator::adopt`.
    ///
    /// # Safety
    ///
    /// A listed object lies in this memory only while the memory is readable. (The heap reads the
    /// memory of objects only. If the runtime unmaps the memory and maps it again, it stays
    /// adopted.)
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

/// The list of the objects of one stop. [`ObjectModel::list`] receives it.
pub struct ObjectList<'a> {
    directory: Directory,
    states: &'a [AtomicU8],
}

impl ObjectList<'_> {
    /// Adds an object.
    ///
    /// # Panics
    ///
    /// If the heap has not adopted the memory at this address, or if the address is not a multiple
    /// of 16. The collection is then abandoned.
    ///
    /// # Safety
    ///
    /// The object is alive: the model can count and traverse it in this stop. It takes at least 32
    /// bytes. Its aligned page of 64 KiB belongs to this part alone.
    #[inline(always)]
    pub unsafe fn add(&mut self, object: Object) {
        let address = object.address();
        let granule = self.directory.granule(address);
        if granule == 0 || address & (HALF - 1) != 0 {
            not_here(address);
        }
        // Relaxed, and a load and a store: only this worker writes the byte, and the end of the
        // job orders it before its readers.
        let state = &self.states[granule];
        state.store(state.load(Ordering::Relaxed) | LIVE | TRACKED, Ordering::Relaxed);
        self.directory.set_half_alone(granule, address);
    }
}

impl fmt::Debug for ObjectList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectList").finish_non_exhaustive()
    }
}

#[cold]
#[inline(never)]
fn not_here(address: usize) -> ! {
    panic!(
        "an object was listed at {address:#x}, which is not in adopted memory, or not a multiple \
         of {HALF}"
    )
}

/// Has the model list its objects, if it does so, on at most `most` threads. The collection has
/// changed nothing yet.
pub(crate) fn list<M: ObjectModel>(world: &World<'_, M>, most: usize) -> Result<(), Abandoned> {
    const {
        assert!(
            !M::LISTS_OBJECTS || (<M::Addresses as Map>::ADOPTS && !M::COLLECTS_YOUNG),
            "a model that lists its objects has `type Addresses = Segments`, and no young \
             collections"
        );
    }
    let core = world.core();
    let Some(space) = core.space.adopting() else { return Ok(()) };
    if !M::LISTS_OBJECTS {
        return Ok(());
    }
    let parts = guard_traversal(world, &mut tracer_of(world), |_| {
        core.model.list_parts(world, &ListedMemory { space })
    })?;
    let parts = parts.map_err(|reason| Abandoned { reason, type_name: Cow::Borrowed("") })?;
    let pages = space.high_water();
    let workers = core.workers.plan_workers(pages * PAGE_GRANULES, core.serial_below).min(most);
    let next = AtomicUsize::new(0);
    world.share(workers, &|_| {
        // Relaxed: each page is taken once, and the end of the job orders the bytes.
        while let Some(page) = take(&next, pages) {
            clear_page(space, page);
        }
    });
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    world.share(workers, &|_| {
        let listed = guard_traversal(world, &mut tracer_of(world), |_| {
            let mut list = ObjectList { directory: space.origin(), states: space.states() };
            while let Some(part) = take(&next, parts) {
                steps::took(1);
                core.model.list(part, &mut list);
            }
        });
        if let Err(abandoned) = listed {
            // The other workers list what is left, or fail too.
            failed.lock().get_or_insert(abandoned);
        }
    });
    failed.lock().take().map_or(Ok(()), Err)
}

/// Takes the next of `all` numbers.
fn take(next: &AtomicUsize, all: usize) -> Option<usize> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    (number < all).then_some(number)
}

/// Removes the objects of an adopted page.
fn clear_page(space: &Space<Segments>, page: usize) {
    if space.page(page).shape().kind() != PageKind::Foreign {
        return;
    }
    steps::took(1);
    let start = page * PAGE_GRANULES;
    let clear = |states: &mut [u8]| states.iter_mut().for_each(|state| *state &= UNREACHABLE);
    // SAFETY: rule *stopped*: only this worker accesses the page.
    unsafe { exclusively(&space.states()[start..start + PAGE_GRANULES], clear) };
}
