//! The memory of objects, from the allocation to the release.
//!
//! A runtime decides what an object is, while the heap must find each object by a number. For
//! example, thread 1 allocates 40 bytes behind a prefix of 8. It gets the address 32 bytes behind
//! the start of a cell, writes the header, and [publishes](ModelMutator::publish) the object, whose
//! state byte collections see from then on. When the count is 0, it [frees](ModelMutator::free) the
//! object. If a thread 2 without a mutator must free memory, it pushes it onto a stack ([`Freed`]),
//! from which thread 1 takes it when it next needs memory.
//!
//! # Addresses
//!
//! The address of an object is a multiple of 32 bytes, so that its granule has the object's state
//! byte. The collector computes the address from the number of the granule. Most objects start with
//! their cells, while an object with a *prefix* starts behind the first granules of its cell
//! ([`allocate_at`](ModelMutator::allocate_at)). Its page has the flag `PageInfo::prefixed`, so
//! that a thread that frees the object finds the cell by the page's shape. The other granules of a
//! cell have the state 0.
//!
//! # The rule
//!
//! * **new**: the memory that [`allocate`](ModelMutator::allocate) has just returned has the
//!   requested size and alignment. No other thread has its address until the object is
//!   [published](ModelMutator::publish) and the address is passed on.

use std::ptr::NonNull;

use crate::base::sync::{AtomicPtr, Ordering};
use crate::heap::core::COLLECT;
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::memory::address_map::Map;
use crate::memory::pool::SpaceError;
use crate::memory::samples::Samples;
use crate::memory::shape::{GRANULE, MAX_ALIGN, MAX_PREFIX, PageKind};
use crate::memory::size_class::{class_for, class_size};
use crate::object::address::Object;
use crate::object::handle_places;
use crate::object::state::{self, StateByte};
use crate::report::error::OutOfMemory;
use crate::safepoint;

impl<M: ObjectModel> ModelMutator<M> {
    /// Allocates memory for an object of `size` bytes at a multiple of `align`. Its bytes are
    /// arbitrary until [`publish`](Self::publish) makes it an object. An alignment below 32 counts
    /// as 32, because the address of an object is a multiple of 32.
    ///
    /// # Errors
    ///
    /// When the heap's limit is reached, the system refuses, or the object is too large for a heap.
    /// When the alignment is not a power of two or exceeds 32 KiB. Then nothing has changed.
    ///
    /// In a heap with [`Segments`](crate::model::Segments), which has no memory of its own, the
    /// call does not compile.
    #[inline]
    pub fn allocate(&self, size: usize, align: usize) -> Result<NonNull<u8>, OutOfMemory> {
        const { assert!(!<M::Addresses as Map>::ADOPTS, "a heap with `Segments` has no memory") }
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(OutOfMemory::Alignment { align });
        }
        match class_for(size, align) {
            Some(class) => self.allocate_cell(class),
            None => self.allocate_large(size, align, 0),
        }
    }

    /// Like [`allocate`](Self::allocate), with at least `prefix` bytes in front of the object.
    /// Returns the address of the object, and not that of the first byte of the memory.
    ///
    /// The bytes in front of the object belong to it, up to [`free`](Self::free). A runtime keeps
    /// there what some of its objects have and others have not, such as a dictionary, a list of
    /// weak references, or slots. The prefix may have any length, and its last byte is the byte
    /// before the object's address, which references and all functions of the heap name.
    ///
    /// The memory is rounded up on both sides, because the address of the object is a multiple of
    /// 32, and of `align`. So with a prefix of 8 bytes the object lies 32 bytes behind the start of
    /// its memory.
    ///
    /// # Errors
    ///
    /// Those of [`allocate`](Self::allocate), and if `prefix` is above 32,704.
    #[inline]
    pub fn allocate_at(
        &self,
        size: usize,
        align: usize,
        prefix: usize,
    ) -> Result<NonNull<u8>, OutOfMemory> {
        if prefix == 0 {
            self.allocate(size, align)
        } else {
            self.allocate_behind(size, align, prefix)
        }
    }

    /// As [`allocate_at`](Self::allocate_at) with a prefix. Apart, so that callers inline the rest.
    #[inline(never)]
    fn allocate_behind(
        &self,
        size: usize,
        align: usize,
        prefix: usize,
    ) -> Result<NonNull<u8>, OutOfMemory> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(OutOfMemory::Alignment { align });
        }
        if prefix > MAX_PREFIX {
            return Err(OutOfMemory::Prefix { prefix });
        }
        // An object without a byte of its own would lie at the start of the next cell.
        let size = size.max(1);
        let front = prefix.next_multiple_of(align.max(GRANULE));
        let Some(class) = size.checked_add(front).and_then(|whole| class_for(whole, align)) else {
            return self.allocate_large(size, align, prefix);
        };
        let cell = self.allocate_cell(class)?;
        // SAFETY: rule *new*: the cell has room for the front and the object. It lies on a page
        // that was handed out. Relaxed: see `PageInfo::prefixed`.
        unsafe {
            self.core().space.page_of(cell.as_ptr().addr()).prefixed.store(1, Ordering::Relaxed);
            Ok(cell.add(front))
        }
    }

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
        if let Some(samples) = space.samples()
            && let Some(cell) = self.refill_sampling(samples, class)
        {
            return Ok(cell);
        }
        self.free_left_memory();
        self.twice(class_size(class), || {
            self.within_limit()?;
            self.arena(|arena| arena.alloc(space, class))
        })
    }

    /// In a heap that samples: a cell that this thread has freed, or one for a sample. `None`: an
    /// ordinary refill is needed.
    #[inline]
    fn refill_sampling(&self, samples: &Samples, class: u8) -> Option<NonNull<u8>> {
        if let Some(cell) = self.arena(|arena| arena.turn(class)) {
            return Some(cell);
        }
        if !self.arena(|arena| arena.is_due(class)) {
            return None;
        }
        let fits = self.within_limit().is_ok();
        let cell = fits.then(|| self.core().space.acquire_sampled(class));
        let Some(Ok(cell)) = cell else {
            samples.lose();
            return None;
        };
        self.arena(|arena| arena.count_one(class_size(class)));
        self.keep_sample(samples, cell, class_size(class));
        self.account();
        Some(cell)
    }

    #[cold]
    fn keep_sample(&self, samples: &Samples, memory: NonNull<u8>, bytes: usize) {
        samples.add(memory, bytes, safepoint::this_thread(), self.core().totals.epoch());
    }

    #[cold]
    #[inline(never)]
    fn allocate_large(
        &self,
        size: usize,
        align: usize,
        prefix: usize,
    ) -> Result<NonNull<u8>, OutOfMemory> {
        self.free_left_memory();
        let space = &self.core().space;
        let memory =
            self.twice(size, || self.arena(|arena| arena.alloc_large(space, size, align, prefix)))?;
        if let Some(samples) = space.samples() {
            // SAFETY: rule *mapped*: just handed out.
            let shape = unsafe { space.page_of(memory.as_ptr().addr()) }.shape();
            let bytes = shape.footprint().bytes();
            if self.arena(|arena| arena.is_large_due(bytes)) {
                // SAFETY: rule *new*: no other thread has its address.
                unsafe { space.mark_sampled(memory) };
                self.keep_sample(samples, memory, bytes);
            }
        }
        Ok(memory)
    }

    /// An error if the heap exceeds its limit, because objects have got memory outside the heap.
    pub fn has_room(&self) -> Result<(), OutOfMemory> {
        self.within_limit().map_err(|error| self.reason(error, 0))
    }

    /// An error, if the heap exceeds its limit, by memory outside the heap.
    fn within_limit(&self) -> Result<(), SpaceError> {
        let core = self.core();
        core.space.check_limit().or_else(|_| {
            // This thread may have given memory up that the limit still counts.
            self.arena(|arena| {
                core.count(arena);
                arena.trim(&core.space);
            });
            core.space.check_limit()
        })
    }

    /// Allocates from the arena. If that fails and the model can release memory, tries once more.
    fn twice(
        &self,
        size: usize,
        attempt: impl Fn() -> Result<NonNull<u8>, SpaceError>,
    ) -> Result<NonNull<u8>, OutOfMemory> {
        let mut result = attempt();
        if result.is_err() && ThreadsOf::<M>::refused(self.model(), self) {
            result = attempt();
        }
        let memory = result.map_err(|error| self.out_of_memory(error, size))?;
        self.account();
        Ok(memory)
    }

    #[cold]
    fn out_of_memory(&self, error: SpaceError, size: usize) -> OutOfMemory {
        let reason = self.reason(error, size);
        // An object that no heap could hold says nothing about this one.
        if matches!(reason, OutOfMemory::Limit { .. } | OutOfMemory::System) {
            self.core().distress.tell();
        }
        reason
    }

    fn reason(&self, error: SpaceError, size: usize) -> OutOfMemory {
        match error {
            SpaceError::Limit { asked, limit, .. } if asked <= limit => {
                OutOfMemory::Limit { limit }
            }
            SpaceError::Full { asked, reserved, .. } if asked <= reserved => {
                OutOfMemory::Limit { limit: reserved }
            }
            SpaceError::Limit { .. } | SpaceError::Full { .. } => OutOfMemory::TooLarge { size },
            SpaceError::Alignment { align } => OutOfMemory::Alignment { align },
            SpaceError::Refused { .. } => OutOfMemory::System,
        }
    }

    /// Reports this thread's allocations and frees to the pace, and requests a collection when due.
    pub(super) fn account(&self) {
        self.arena(|arena| self.core().count(arena));
        let pace = &self.core().pace;
        let lock = &self.core().collector_lock;
        if pace.wants_safepoint() || lock.is_reclaiming() || lock.wants_to_go_on() {
            self.raise(COLLECT);
        }
    }

    /// Tells the heap that its objects have got memory outside the heap, or have given some up, if
    /// `change` is negative. Examples are buffers, foreign objects and file mappings. A small
    /// object can keep much memory outside the heap, and the heap cannot see it.
    ///
    /// The bytes count like those of objects, for [`Pacing::young_bytes`](crate::Pacing) and
    /// `full_minimum_bytes`, and in [`HeapStats::external_bytes`](crate::HeapStats). Because the
    /// heap does not know to which object they belong, the runtime reports them when it allocates
    /// the memory, and again, with the opposite sign, when it frees it. Wrong numbers make
    /// collections too frequent or too rare, and a heap with a [limit](crate::HeapBuilder::limit)
    /// may refuse memory, but they have no other effect. More bytes given up than got count as 0.
    ///
    /// It costs a few instructions, because threads add up the changes, and each tells the heap
    /// when 64 KiB have come together. It never fails and never collects, although a collection may
    /// be due at the next safepoint, and beyond the heap's limit the next allocation is refused.
    #[inline]
    pub fn adjust_external_bytes(&self, change: isize) {
        if self.arena(|arena| arena.count_external(change)) {
            self.account_external();
        }
    }

    #[cold]
    #[inline(never)]
    fn account_external(&self) {
        self.account();
        let space = &self.core().space;
        if space.check_limit().is_err() {
            // The next allocation is a refill, which refuses.
            self.arena(|arena| arena.empty_magazines(space));
        }
    }

    /// Gives memory back that was allocated and not published, or that held an object. `object` is
    /// the object's address.
    ///
    /// # Panics
    ///
    /// If the memory is [adopted](Self::adopt), because the heap does not own it.
    ///
    /// # Safety
    ///
    /// [`allocate`](Self::allocate) or [`allocate_at`](Self::allocate_at) of this heap returned the
    /// address. No reference to the object exists, its content has been destroyed, and the memory
    /// is freed once. (With [`Stress::poison`](crate::Stress::poison) or
    /// [`Stress::quarantine`](crate::Stress::quarantine) a second free panics.)
    #[inline]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        const { assert!(!<M::Addresses as Map>::ADOPTS, "call `unregister` or `dead`") }
        let (core, address) = (self.core(), object.as_ptr() as usize);
        // Both before the store, behind which the compiler would compute them anew.
        // SAFETY: rule *mapped*: the memory was handed out by this heap's space.
        let (state, page) = unsafe { (core.state(address), core.space.page_of(address)) };
        state.death();
        handle_places::forget(address);
        // SAFETY: as the caller says; the state byte is 0. Relaxed: see `PageInfo::prefixed`.
        unsafe {
            if page.prefixed.load(Ordering::Relaxed) != 0 {
                self.free_around(object);
            } else if !self.arena(|arena| arena.free_on(&core.space, page, object)) {
                self.free_elsewhere(object);
            }
        }
    }

    /// Like [`free_cell`](Self::free_cell), for an object that may have a prefix.
    ///
    /// # Safety
    ///
    /// As for `free_cell`.
    #[inline(never)]
    unsafe fn free_around(&self, object: NonNull<u8>) {
        // SAFETY: as the caller says.
        unsafe { self.free_cell(self.core().space.cell_around(object)) };
    }

    /// Like [`free`](Self::free), for an object without a prefix. The built-in model, which has no
    /// others, spares the search for the cell.
    ///
    /// # Safety
    ///
    /// As for `free`, and [`allocate`](Self::allocate) returned the address.
    #[inline]
    pub(crate) unsafe fn free_unprefixed(&self, cell: NonNull<u8>) {
        // SAFETY: rule *mapped*: the cell was handed out by this heap's space.
        unsafe { self.core().state(cell.as_ptr() as usize) }.death();
        handle_places::forget(cell.as_ptr() as usize);
        // SAFETY: as the caller says; the state byte is 0.
        unsafe { self.free_cell(cell) };
    }

    /// Like [`free`](Self::free), for the start of a cell without an object, or the address of a
    /// large object that is dead.
    ///
    /// # Safety
    ///
    /// As for `free`. All state bytes of the cell are 0.
    #[inline(always)]
    pub(super) unsafe fn free_cell(&self, cell: NonNull<u8>) {
        let core = self.core();
        // SAFETY: as the caller says.
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
        // SAFETY: as the caller says.
        unsafe {
            if !self.free_own_of_class(cell, class) {
                self.free_elsewhere(cell);
            }
        }
    }

    /// The quick part of [`free_of_class`](Self::free_of_class), without calls to which `self`
    /// would be passed, and for which it would need an address. `false`: the object is dead, and
    /// its memory still has to be freed by [`free_elsewhere`](Self::free_elsewhere).
    ///
    /// # Safety
    ///
    /// As for `free_of_class`.
    #[inline(always)]
    pub(crate) unsafe fn free_own_of_class(&self, cell: NonNull<u8>, class: u8) -> bool {
        let (core, address) = (self.core(), cell.as_ptr() as usize);
        // SAFETY: as in `free`; rule *mapped*. Both addresses are computed here, because after the
        // store of the death the compiler would load once more what they are computed from.
        let (state, page) = unsafe { (core.state(address), core.space.page_of(address)) };
        state.death();
        handle_places::forget(address);
        // SAFETY: as the caller says; the state byte is 0.
        unsafe { self.arena(|arena| arena.free_of_class(&core.space, cell, page, class)) }
    }

    /// Like `free`, for memory that is not on a page of this thread's arena.
    ///
    /// # Safety
    ///
    /// As for `free`.
    #[cold]
    pub(crate) unsafe fn free_elsewhere(&self, cell: NonNull<u8>) {
        // SAFETY: as for `free`.
        if self.arena(|arena| unsafe { arena.free_elsewhere(&self.core().space, cell) }) {
            self.account();
        }
    }

    /// Makes the memory an object, and puts it into the tracked set if `tracked`.
    ///
    /// # Panics
    ///
    /// If the model [lists its objects](crate::model::Lists).
    ///
    /// # Safety
    ///
    /// [`allocate`](Self::allocate) or [`allocate_at`](Self::allocate_at) of a mutator of this heap
    /// returned the address, although that mutator may have ended meanwhile. The object was not
    /// published before, and the model can count and traverse its content.
    #[inline(always)]
    pub unsafe fn publish(&self, object: Object, tracked: bool) {
        self.assert_not_listed("publish");
        let (core, address) = (self.core(), object.address());
        // Both before the stores, as in `free`.
        // SAFETY: rule *new*: handed out by this heap's space.
        let (state, page) = unsafe { (core.state(address), core.space.page_of(address)) };
        // A stop since the allocation may have marked the page as old. Relaxed: see
        // `PageInfo::young`.
        page.young.store(1, Ordering::Relaxed);
        // The memory of a closed heap is given back with its objects in it.
        handle_places::forget(address);
        state.birth(if tracked { state::TRACKED } else { 0 });
    }

    /// Like [`publish`](Self::publish), with these initial state bits.
    ///
    /// # Safety
    ///
    /// As for `publish`.
    #[inline(always)]
    pub(crate) unsafe fn publish_as(&self, object: Object, bits: u8) {
        // The memory of a closed heap is given back with its objects in it.
        handle_places::forget(object.address());
        // SAFETY: rule *new*: handed out by this heap's space.
        unsafe { self.core().state(object.address()) }.birth(bits);
    }

    /// Puts an object into the tracked set, and returns `false` if it was already in the set.
    ///
    /// # Panics
    ///
    /// If the model [lists its objects](crate::model::Lists).
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn track(&self, object: Object) -> bool {
        self.assert_not_listed("track");
        let core = self.core();
        // SAFETY: as the caller says.
        let (state, page) =
            unsafe { (core.state(object.address()), core.space.page_of(object.address())) };
        // Relaxed: see `PageInfo::young`. Before the bit: a stop in between traverses the page.
        page.young.store(1, Ordering::Relaxed);
        state.track()
    }

    /// Removes an object from the tracked set, and returns `false` if it was not in the set.
    ///
    /// # Panics
    ///
    /// If the model [lists its objects](crate::model::Lists).
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn untrack(&self, object: Object) -> bool {
        self.assert_not_listed("untrack");
        // SAFETY: as the caller says.
        unsafe { self.core().state(object.address()) }.untrack()
    }

    /// Whether an object is in the tracked set of this heap.
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn is_tracked(&self, object: Object) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.core().state(object.address()) }.get() & state::TRACKED != 0
    }

    /// Declares an object dead whose memory is still in use, for example because readers without a
    /// reference may look at it until a grace period has passed.
    ///
    /// The heap has no object there from now on. So it is not counted in
    /// [`HeapStats::live_objects`](crate::HeapStats::live_objects), nor listed, nor a candidate,
    /// although it counts as collected if it is garbage that a collection has cleared. Its memory
    /// stays until [`free`](Self::free) or
    /// [`ModelHeap::free_from_anywhere`](crate::model::ModelHeap::free_from_anywhere). In adopted
    /// memory the call also unregisters the object.
    ///
    /// # Panics
    ///
    /// If no object is there, because it was declared dead before, or never published. If the model
    /// [lists its objects](crate::model::Lists).
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free), except that the memory is not freed yet, and the content may be
    /// read until it is.
    pub unsafe fn dead(&self, object: Object) {
        self.assert_not_listed("dead");
        // SAFETY: as the caller says.
        let state = unsafe { self.core().state(object.address()) };
        let is_here = !<M::Addresses as Map>::ADOPTS || self.core().is_start(object.address());
        assert!(
            is_here && state.get() & state::LIVE != 0,
            "no object lives at {:#x}: `ModelMutator::dead` is called once for each published \
             object, when its count is 0 (rule 2 of `ObjectModel`)",
            object.address()
        );
        state.death();
    }

    /// Records that the object's finalizer has been called, or is about to be, so that no
    /// collection calls it. Returns `false` if that was recorded before.
    ///
    /// A runtime that also runs finalizers when an object dies by its count calls this first, and
    /// runs the finalizer if the result is `true`. So each finalizer runs once.
    ///
    /// # Panics
    ///
    /// If the model [lists its objects](crate::model::Lists).
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn set_finalized(&self, object: Object) -> bool {
        self.assert_not_listed("set_finalized");
        // SAFETY: as the caller says.
        let before = unsafe { self.core().state(object.address()) }.set(state::FINALIZED);
        before & state::FINALIZED == 0
    }

    /// Whether a collection has called the object's finalizer, or
    /// [`set_finalized`](Self::set_finalized) was called.
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn is_finalized(&self, object: Object) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.core().state(object.address()) }.get() & state::FINALIZED != 0
    }

    /// Whether an object is new since the last collection or promotion, and so a candidate of young
    /// collections. While other threads run, this is a snapshot.
    ///
    /// # Safety
    ///
    /// `object` is alive, and of this heap.
    pub unsafe fn is_young(&self, object: Object) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.core().state(object.address()) }.get() & state::OLD == 0
    }
}

impl<M: ObjectModel> ModelMutator<M> {
    /// Panics if the model lists its objects, because the next list would undo the call.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn assert_not_listed(&self, function: &str) {
        assert!(
            !ListsOf::<M>::PRESENT,
            "`{function}` is not for a model that lists its objects \
             (`Lists`): the next list would undo it"
        );
    }

    #[inline]
    pub(crate) fn free_left_memory(&self) {
        // SAFETY: rule *owner*: as the caller of `free_from_anywhere` says; the state is 0.
        self.core().freed.take(|cell| unsafe { self.free_cell(cell) });
    }
}

impl<M: ObjectModel> ModelHeap<M> {
    /// Whether an address lies in the memory of this heap, although not necessarily in an object.
    /// Any thread may ask, because it takes no lock and reads no memory of the heap.
    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        self.0.core.space.contains(address)
    }

    /// Gives memory back as [`ModelMutator::free`] does, on any thread, attached or not, also while
    /// the world is stopped. `object` is the object's address.
    ///
    /// No object is there any more, because an attached thread has called [`ModelMutator::dead`]
    /// for it, or because the memory was never [published](ModelMutator::publish). An attached
    /// thread frees the memory, when it next needs memory from the heap or begins a collection. A
    /// thread that has a mutator calls [`ModelMutator::free`] instead, because that is faster.
    ///
    /// To *drop a reference* on a thread without a mutator is something else, because the count
    /// would change in a stop, which rule 3 of [`ObjectModel`] forbids. A model keeps such
    /// references in a list, and drops them on an attached thread, for example in
    /// [`SplitCounts::prepare`](crate::model::SplitCounts::prepare) and
    /// [`Threads::attached`](crate::model::Threads::attached).
    ///
    /// # Panics
    ///
    /// If `object` lies outside of this heap or in adopted memory, although an address in the
    /// middle of a cell is not always noticed. If an object is there, in builds with debug
    /// assertions, and with [`Stress::poison`](crate::Stress::poison) or
    /// [`Stress::quarantine`](crate::Stress::quarantine).
    ///
    /// # Safety
    ///
    /// As for [`ModelMutator::free`], and `dead` was called for the object, unless it was never
    /// published.
    pub unsafe fn free_from_anywhere(&self, object: NonNull<u8>) {
        let (core, address) = (&self.0.core, object.as_ptr().addr());
        let is_in_use = core.space.contains(address)
            && address.is_multiple_of(GRANULE)
            && core.space.page_index(address) < core.space.high_water()
            && matches!(
                core.space.page(core.space.page_index(address)).shape().kind(),
                PageKind::Small | PageKind::Large
            );
        assert!(
            is_in_use,
            "`free_from_anywhere` of {address:#x}, which is no address of an object of this heap; \
             pass the address that `allocate` or `allocate_at` of this heap has returned, once"
        );
        if cfg!(debug_assertions) || core.space.quarantine().is_some() {
            // A stop writes state bytes as plain memory under this lock.
            let _table = core.collector_lock.lock_states();
            let state = StateByte(&core.space.states()[core.space.granule(address)]).get();
            assert!(
                state == 0,
                "`free_from_anywhere` of the object at {address:#x}, which is alive for the heap; \
                 call `ModelMutator::dead` on an attached thread before (rules 2 and 3 of \
                 `ObjectModel`)"
            );
        }
        // SAFETY: rule *owner*: as the caller says. A cell is at least one granule long and aligned
        // to one.
        unsafe { core.freed.push(core.space.cell_around(object)) };
    }
}

/// A stack of memory that threads without a mutator have freed, linked through its first words.
#[derive(Debug)]
pub(crate) struct Freed {
    last: AtomicPtr<u8>,
}

impl Default for Freed {
    fn default() -> Self {
        Self { last: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

impl Freed {
    /// Pushes memory of at least one word.
    ///
    /// # Safety
    ///
    /// The caller owns the memory, which is aligned for a pointer, and gives it up.
    pub(crate) unsafe fn push(&self, memory: NonNull<u8>) {
        // A guess instead of a load, because mostly no other memory waits.
        let mut last = std::ptr::null_mut();
        loop {
            // SAFETY: rule *owner*: the memory is this thread's until the exchange succeeds.
            unsafe { memory.cast::<*mut u8>().write(last) };
            // Release: the thread that takes the stack sees the link, and all that this thread did
            // with the memory before. Later pushes are read-modify-writes, so they continue the
            // release sequence. Relaxed on failure: the value is only copied. A thread that takes
            // entries takes the whole stack, so an address that is on top again is still the right
            // link.
            let pushed = self.last.compare_exchange_weak(
                last,
                memory.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// Takes all memory, and calls `f` with each entry, which the caller owns.
    #[inline]
    pub(crate) fn take(&self, f: impl FnMut(NonNull<u8>)) {
        // Relaxed: a hint. The next call takes an entry that this call misses.
        if !self.last.load(Ordering::Relaxed).is_null() {
            self.take_all(f);
        }
    }

    #[cold]
    fn take_all(&self, mut f: impl FnMut(NonNull<u8>)) {
        // Acquire: see `push`.
        let mut next = self.last.swap(std::ptr::null_mut(), Ordering::Acquire);
        while let Some(memory) = NonNull::new(next) {
            // SAFETY: rule *owner*: the exchange has made the entries this thread's. `push` has
            // written the link.
            next = unsafe { memory.cast::<*mut u8>().read() };
            f(memory);
        }
    }
}
