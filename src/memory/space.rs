//! A collection meets addresses by the million. Of each it must know whether it belongs to the heap
//! ([`PageTable::contains`]), which table entry belongs to it ([`PageTable::granule`]), and which
//! page it is on ([`PageTable::page_index`]). A [`Space`] is the memory of one heap. With the map
//! [`Reserved`] it reserves one contiguous range once and makes it accessible as it grows, so that
//! the three answers cost arithmetic and no load. For example, an object at `base + 0x2_0060` is on
//! page 2, because `0x2_0060 / 64 KiB` is 2. Its state is `states[4099]`, because its granule is
//! `0x2_0060 / 32`.
//!
//! ```text
//! base                                  base + length
//! | page 0 | page 1 | ...  (64 KiB each) | states | counts | free bits | PageInfo |
//!   |                                      1 byte   1 byte   1 bit       64 bytes
//!   | header: heap word | cell | cell |..  per granule of 32 bytes       per page
//! ```
//!
//! # Access
//!
//! | field | access |
//! |---|---|
//! | `states`, `counts` | the collector and the model; all atomics. A free cell's state is 0 |
//! | free bits, `Owned` | the owner of the page |
//! | `PageInfo::arena` | written by the owner or under the pool's lock |
//! | `PageInfo::remote` | any thread that frees a cell pushes, the owner drains |
//! | `PageInfo::prefixed` | set by the owner, cleared while the page is free |
//! | `PageInfo::young` | set by the owner, by late tracking and in a stop, cleared in a stop and while the page is free |
//! | page header | written while the page is unowned, and by its owner; in use it is right or 0 |
//!
//! The owner of a page is the thread of the arena that has the page. Free and abandoned pages have
//! no arena, and pages of [samples](super::samples) have none that exists, so the holder of the
//! pool's lock owns them. A thread may read `PageInfo::arena` only to compare it with its own id or
//! the mark of samples, because the id of another thread can change at any time.
//!
//! # Invariants
//!
//! * A cell is in exactly one place: in use, in its owner's magazine, on its page's remote stack,
//!   in quarantine, or marked in the free bits. `Owned::free` counts the marks. If all cells of a
//!   page are marked, its remote stack is empty. No thread can be about to push to it, because a
//!   push needs a cell in use.
//! * An arena releases or abandons a page only when no magazine holds a cell of it, because another
//!   thread may own the page afterwards.
//! * The table entries of all pages below the high-water mark stay accessible, although memory
//!   returns to the system. A released page returns only its own memory, a page in use only memory
//!   without a cell in use (see `sparse`), and the counting table only zeros.
//! * Pages in use never exceed the [limit](Limit), and free pages that stay resident never exceed
//!   `max(16, in use / 8, reused)`, where `reused` is 512 at most (see `pool`). Therefore the
//!   resident size has a bound, too.
//!
//! # Rules
//!
//! Unsafe code relies on these rules, so its comments cite them:
//!
//! * **mapped**: all cells and objects lie on pages that the pool has handed out. Such pages
//!   lie in the range and below the high-water mark. They and their table entries are accessible as
//!   long as the space exists, and all bytes there are valid values.
//! * **owner**: every page and every cell has exactly one owner, as "Access" says.
//!   Only the owner, or a stop, touches it. A page belongs to the arena that took it from the pool.
//!   An allocated cell belongs to its allocator until it is freed, once.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;

use crate::base::stress::{MaybeStrain, Step, Stress, maybe_yield};
use crate::base::sync::{AtomicUsize, IS_MODEL, Mutex, Ordering};
use crate::memory::address_map::{AddressMap, Reserved};
use crate::memory::class_pages::{is_empty, take_cells};
use crate::memory::page::{PageList, SAMPLED, all_free};
use crate::memory::pool::{HeapWord, Limit, PagePool, SpaceError};
use crate::memory::quarantine::{Quarantine, TypeNamer, freed_twice};
use crate::memory::range::{ReserveError, with_ranges, word_at};
use crate::memory::samples::Samples;
use crate::memory::shape::{Cell, MAX_ALIGN, PAGE_SHIFT, PAGE_SIZE, PageKind, Shape};
use crate::memory::size_class::{CLASSES, shape_of};
use crate::memory::sparse::Rounds;
use crate::memory::table::PageTable;

/// How many pages a refill probes for remote frees before it takes a new page.
pub(crate) const PAGES_PROBED: usize = if IS_MODEL { 2 } else { 16 };

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceConfig {
    /// Bytes of address space for pages. The default depends on the machine and the number of heaps
    /// (see `range::default_length`).
    pub(crate) reserve: Option<usize>,
    /// The most bytes of pages in use and outside the space at once. The default is the whole
    /// range, and any number of bytes outside.
    pub(crate) limit: Option<usize>,
}

/// The range, its tables and the pool of pages.
pub(crate) struct Space<A: AddressMap = Reserved> {
    /// The quarantine of the stress modes.
    quarantine: Option<Box<Quarantine>>,
    strain: MaybeStrain,
    stress: Stress,
    samples: Option<Samples>,
    pub(super) table: PageTable<A>,
    pub(crate) limit: Limit,
    /// The last figure of the pool, written under its lock, so that a reader need not take the
    /// lock.
    in_use: AtomicUsize,
    committed: AtomicUsize,
    pub(super) rounds: Rounds,
    pub(super) pool: Mutex<PagePool>,
}

// SAFETY: rules *owner* and *guarded*: the raw parts are atomics, memory of cells (the users
// exclude each other), and owner-only data behind `unsafe` methods that name the owner.
unsafe impl<A: AddressMap> Send for Space<A> {}
// SAFETY: as above. Everything else is behind the pool's lock.
unsafe impl<A: AddressMap> Sync for Space<A> {}

impl<A: AddressMap> fmt::Debug for Space<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("map", &self.map)
            .field("reserved", &self.reserved_bytes())
            .field("committed", &self.committed_bytes())
            .field("in_use", &self.in_use_bytes())
            .finish_non_exhaustive()
    }
}

impl<A: AddressMap> Deref for Space<A> {
    type Target = PageTable<A>;

    #[inline(always)]
    fn deref(&self) -> &PageTable<A> {
        &self.table
    }
}

impl<A: AddressMap> Drop for Space<A> {
    fn drop(&mut self) {
        with_ranges(|ranges| ranges.retain(|range| !self.contains(range.base)));
        if let Some(quarantine) = self.quarantine().filter(|_| !std::thread::panicking()) {
            // SAFETY: rule *mapped*: the range is dropped after this function.
            unsafe { quarantine.check_last() };
        }
    }
}

impl Space {
    #[inline(always)]
    pub(crate) fn base(&self) -> usize {
        self.bounds().0
    }

    /// The heap word of the page that `addr` is on.
    ///
    /// # Safety
    ///
    /// `addr` is the start of a cell or large object in use, or of the first page of its run, of
    /// any space that still exists.
    #[inline]
    pub(crate) unsafe fn heap_of(addr: usize) -> *const () {
        let header = std::ptr::with_exposed_provenance::<AtomicPtr<()>>(addr & !(PAGE_SIZE - 1));
        // SAFETY: rule *mapped*: an object starts on the first page of its run, and the page starts
        // with the word. It was written before the first cell of the page was handed out. Relaxed:
        // while a cell is in use, the word changes only to 0 (see `sparse`) and back.
        match unsafe { (*header).load(Ordering::Relaxed) } {
            word if !word.is_null() => word.cast_const(),
            _ => std::ptr::with_exposed_provenance(word_at(addr).unwrap_or_default()),
        }
    }
}

impl<A: AddressMap> Space<A> {
    /// Reserves address space for a heap, in the way of its map.
    pub(crate) fn open(config: SpaceConfig) -> Result<Self, ReserveError> {
        let (table, pool) = A::open(config.reserve)?;
        Ok(Self {
            quarantine: None,
            strain: None,
            stress: Stress::none(),
            samples: None,
            table,
            limit: Limit::new(config.limit),
            in_use: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
            rounds: Rounds::default(),
            pool: Mutex::new(pool),
        })
    }

    /// Sets the stress modes of a space without users. `name` gives the name of the type whose
    /// object lay in a cell, for reports.
    pub(crate) fn set_stress(
        &mut self,
        stress: Stress,
        strain: MaybeStrain,
        name: Option<TypeNamer>,
    ) {
        self.quarantine = Quarantine::of_cells(stress, name);
        self.strain = strain;
        self.stress = stress;
    }

    pub(crate) fn stress(&self) -> Stress {
        self.stress
    }

    /// Samples objects, in a space without users.
    pub(crate) fn sample_every(&mut self, mean: usize) {
        self.samples = Some(Samples::new(mean));
    }

    /// The samples, in a heap that samples.
    #[inline]
    pub(crate) fn samples(&self) -> Option<&Samples> {
        self.samples.as_ref()
    }

    /// The quarantine, which exists only if a stress mode needs it.
    #[inline]
    pub(crate) fn quarantine(&self) -> Option<&Quarantine> {
        self.quarantine.as_deref()
    }

    /// Sets the word that the pool writes to the header of each page that it hands out from now on.
    pub(crate) fn set_heap(&self, heap: *const ()) {
        self.pool.lock().heap = HeapWord(heap);
        with_ranges(|ranges| {
            let own = ranges.iter_mut().filter(|range| self.contains(range.base));
            own.for_each(|range| range.word = heap.expose_provenance());
        });
    }

    /// Writes the heap word of a page again.
    ///
    /// # Safety
    ///
    /// The caller owns the page.
    pub(super) unsafe fn write_header(&self, page: u32, word: HeapWord) {
        let header = self.page_start(page).cast::<AtomicPtr<()>>();
        // SAFETY: rule *mapped*: the page is in use. Relaxed: see `heap_of`.
        unsafe { header.as_ref() }.store(word.0.cast_mut(), Ordering::Relaxed);
    }

    /// Bytes of pages and tables that were made accessible. Relaxed, like `in_use_bytes`, because
    /// it is a statistic.
    pub(crate) fn committed_bytes(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    /// Bytes of pages in use, which may be out of date, because no lock is taken.
    pub(crate) fn in_use_bytes(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) << PAGE_SHIFT
    }

    /// Publishes how many bytes the pool has made accessible, for readers without the lock.
    pub(super) fn count_committed(&self, pool: &PagePool) {
        self.committed.store(pool.committed_bytes, Ordering::Relaxed);
    }

    fn take(&self, pool: &mut PagePool, pages: u32) -> Result<u32, SpaceError> {
        self.limit.check(|| pool.in_use(), pages as usize)?;
        let start = pool.take(&self.table, pages)?;
        self.count_committed(pool);
        self.in_use.store(pool.in_use(), Ordering::Relaxed);
        Ok(start)
    }

    pub(super) fn put(&self, pool: &mut PagePool, page: u32, pages: u32) {
        pool.put(&self.table, page, pages, self.stress);
        self.in_use.store(pool.in_use(), Ordering::Relaxed);
    }

    /// Called when a full collection has ended. Returns free pages to the system that no thread
    /// needed since the last one, and begins a [round](crate::memory::sparse). Returns whether the
    /// tables of collections should return, too.
    ///
    /// The caller holds the collector lock and is attached.
    pub(crate) fn after_full(&self) -> bool {
        let mut pool = self.pool.lock();
        pool.after_full(&self.table, self.stress);
        self.begin_round(&mut pool)
    }

    /// Whether more than three quarters of what the space may use are in use.
    pub(crate) fn is_tight(&self) -> bool {
        self.limit.is_tight(self.in_use.load(Ordering::Relaxed), self.length >> PAGE_SHIFT)
    }

    /// An error, if memory outside the space exceeds the limit, together with the pages in use.
    pub(crate) fn check_limit(&self) -> Result<(), SpaceError> {
        self.limit.check(|| self.in_use.load(Ordering::Relaxed), 0)
    }

    /// Moves the remote stack of a page into its free bits.
    ///
    /// # Safety
    ///
    /// The caller owns the page.
    pub(crate) unsafe fn drain(&self, page: u32) {
        // SAFETY: as the caller says.
        unsafe { self.drain_remote(page, self.quarantine()) }
    }

    /// Puts a freed cell or large object into quarantine. Returns the memory that is to be freed
    /// now: the oldest in quarantine, or `cell` itself if the space has no quarantine.
    ///
    /// # Safety
    ///
    /// As for `Arena::free`.
    #[inline]
    pub(crate) unsafe fn pass_quarantine(&self, cell: NonNull<u8>) -> Option<NonNull<u8>> {
        match self.quarantine() {
            // SAFETY: as the caller says.
            Some(quarantine) => unsafe {
                let addr = cell.as_ptr().addr();
                if !matches!(self.page_of(addr).shape().kind(), PageKind::Small | PageKind::Large) {
                    freed_twice(addr);
                }
                quarantine.admit(self.memory(cell), 0)
            }
            .map(Cell::start),
            None => Some(cell),
        }
    }

    /// Empties the quarantine and frees its cells, as remote frees, so that an allocation that
    /// would fail can use them.
    pub(crate) fn drain_quarantine(&self) {
        while let Some(cell) = self.quarantine().and_then(Quarantine::pop) {
            // SAFETY: rule *owner*: a cell in quarantine is unowned, and its page stays in use.
            unsafe { self.free_unowned(cell.start()) };
        }
    }

    /// Frees memory that is not in quarantine, on a thread that does not own its page.
    ///
    /// # Safety
    ///
    /// As for `Arena::free`.
    #[inline]
    pub(crate) unsafe fn free_unowned(&self, cell: NonNull<u8>) {
        let addr = cell.as_ptr().addr();
        // SAFETY: as the caller says.
        unsafe {
            match self.page_of(addr).shape().kind() {
                PageKind::Large => {
                    if let Some(quarantine) = self.quarantine() {
                        // It is the last check of the poison, because the pages may return to the
                        // system.
                        quarantine.check_out(self.memory(cell));
                    }
                    self.release(self.page_index(addr) as u32);
                }
                _ => {
                    maybe_yield(&self.strain, Step::RemoteFree);
                    self.push_remote(cell);
                }
            }
        }
    }

    /// Finds a page of `shape` with a free cell for arena `id`: an abandoned page, or else a fresh
    /// one. The page is on no list, and the caller owns it.
    pub(crate) fn acquire(&self, shape: Shape, id: u32) -> Result<u32, SpaceError> {
        maybe_yield(&self.strain, Step::TakeOver);
        let mut pool = self.pool.lock();
        if let Some(page) = self.take_over(&mut pool, usize::from(shape.class())) {
            // SAFETY: rule *owner*: this thread owns the page by the lock.
            unsafe { self.info(page).set_arena(id) };
            return Ok(page);
        }
        self.take_fresh(&mut pool, shape, id)
    }

    /// A fresh page of `shape` for arena `id`.
    fn take_fresh(&self, pool: &mut PagePool, shape: Shape, id: u32) -> Result<u32, SpaceError> {
        let page = self.take(pool, 1)?;
        // SAFETY: rule *owner*: the page came out of the pool, so this thread owns it.
        unsafe {
            let info = self.info(page);
            self.free_bits(page, |bits| all_free(shape, bits));
            info.owned(|owned| (owned.free, owned.returned) = (shape.cells() as u32, 0));
            info.set_arena(id);
            info.shape.store(shape.to_bits(), Ordering::Relaxed);
            if let Some(quarantine) = self.quarantine() {
                for granule in self.starts(page as usize) {
                    quarantine.forget_free(self.address(granule));
                    quarantine.poison(Cell::of(shape, self.cell(granule)), 0);
                }
            }
        }
        Ok(page)
    }

    /// Probes a few abandoned pages of a list for a page with a free cell. Each page without one
    /// becomes the last, so that the next call probes others.
    fn take_over(&self, pool: &mut PagePool, list: usize) -> Option<u32> {
        let list = pool.abandoned.get_mut(list)?;
        for _ in 0..self.stress.shrink(PAGES_PROBED).min(list.len()) {
            // SAFETY: rule *owner*: the lock owns abandoned pages.
            unsafe {
                let page = list.pop_front(self)?;
                self.drain(page);
                if self.info(page).owned(|owned| owned.free) != 0 {
                    return Some(page);
                }
                list.push_back(self, page);
            }
        }
        None
    }

    /// A cell for a [sample](crate::memory::samples), on a page of samples.
    pub(crate) fn acquire_sampled(&self, class: u8) -> Result<NonNull<u8>, SpaceError> {
        let (shape, list) = (shape_of(class), CLASSES + usize::from(class));
        let mut pool = self.pool.lock();
        let page = match self.take_over(&mut pool, list) {
            Some(page) => page,
            None => self.take_fresh(&mut pool, shape, SAMPLED)?,
        };
        // Without the lock, which the call takes for some pages.
        drop(pool);
        let mut cell = [NonNull::dangling()];
        // SAFETY: rule *owner*: the page is on no list, so it is this thread's until it is filed.
        // The cell is free until this function returns it.
        unsafe {
            let taken = take_cells(self, page, &mut cell);
            debug_assert_eq!(taken, 1, "the page has a free cell");
            // Relaxed: see `PageInfo::young`.
            self.info(page).young.store(1, Ordering::Relaxed);
            self.pool.lock().abandoned[list].file(self, page);
            if let Some(quarantine) = self.quarantine() {
                quarantine.check_out(Cell::of(shape, cell[0]));
            }
        }
        Ok(cell[0])
    }

    /// Keeps the death of a large object in mind, which is a sample.
    ///
    /// # Safety
    ///
    /// The caller has just allocated the object.
    pub(crate) unsafe fn mark_sampled(&self, large: NonNull<u8>) {
        // SAFETY: rule *owner*: the first page of its run is the object's.
        unsafe { self.page_of(large.as_ptr().addr()).set_arena(SAMPLED) };
    }

    /// Removes the sample at a cell or a large object that is about to be freed, if there is one.
    ///
    /// # Safety
    ///
    /// As for `Arena::free`.
    #[inline]
    pub(super) unsafe fn forget_sample(&self, cell: NonNull<u8>) {
        if let Some(samples) = self.samples() {
            // SAFETY: rule *mapped*: as the caller says.
            if unsafe { self.page_of(cell.as_ptr().addr()) }.arena() == SAMPLED {
                samples.forget(cell);
            }
        }
    }

    /// Abandons the pages of an arena that ends, so that other arenas can take them over.
    ///
    /// # Safety
    ///
    /// The caller owns the pages and gives them up. All are of `class`, and no magazine holds a
    /// cell of them.
    pub(crate) unsafe fn abandon(&self, class: u8, mut pages: PageList) {
        maybe_yield(&self.strain, Step::TakeOver);
        let mut pool = self.pool.lock();
        let class = usize::from(class);
        // SAFETY: rule *owner*: the caller owns the pages, and the lock owns the pages on its list.
        unsafe {
            while let Some(page) = pages.pop_front(self) {
                self.info(page).set_arena(0);
                pool.abandoned[class].file(self, page);
            }
        }
    }

    /// Drains the remote stacks of the abandoned pages and releases the pages that are empty now.
    pub(crate) fn sweep_abandoned(&self) {
        let mut pool = self.pool.lock();
        for class in 0..pool.abandoned.len() {
            let mut pages = std::mem::replace(&mut pool.abandoned[class], PageList::EMPTY);
            // SAFETY: rule *owner*: the lock owns abandoned pages.
            unsafe {
                while let Some(page) = pages.pop_front(self) {
                    self.drain(page);
                    if is_empty(self, page) {
                        self.put(&mut pool, page, 1);
                    } else {
                        pool.abandoned[class].file(self, page);
                    }
                }
            }
        }
    }

    /// Takes a run of pages for one object of `size` bytes, with at least `prefix` bytes in front
    /// of it. `prefix` is at most [`MAX_PREFIX`](crate::memory::shape::MAX_PREFIX).
    pub(crate) fn acquire_large(
        &self,
        size: usize,
        align: usize,
        prefix: usize,
    ) -> Result<NonNull<u8>, SpaceError> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(SpaceError::Alignment { align });
        }
        let mut pool = self.pool.lock();
        let shape = Shape::large(size, align, prefix).ok_or(SpaceError::Full {
            asked: size,
            in_use: self.in_use_bytes(),
            reserved: self.length,
        })?;
        let pages = shape.pages() as u32;
        let head = self.take(&mut pool, pages)?;
        // SAFETY: rule *owner*: the pages came out of the pool; the offset is inside the first one.
        unsafe {
            for tail in head + 1..head + pages {
                self.info(tail).shape.store(Shape::TAIL.to_bits(), Ordering::Relaxed);
            }
            let info = self.info(head);
            info.young.store(1, Ordering::Relaxed);
            info.shape.store(shape.to_bits(), Ordering::Relaxed);
            let object = self.page_start(head).add(shape.offset());
            if let Some(quarantine) = self.quarantine() {
                quarantine.forget_free(object.as_ptr().addr());
            }
            Ok(object)
        }
    }

    /// Releases an empty page, or the run of a dead large object, to the pool.
    ///
    /// # Safety
    ///
    /// The caller owns the page. It is on no list and has all its cells marked free, or it is the
    /// first page of the large object. The state bytes of its objects are 0.
    pub(crate) unsafe fn release(&self, page: u32) {
        // SAFETY: rule *mapped*: the caller owns the page, so it was handed out.
        let pages = unsafe { self.info(page) }.shape().pages() as u32;
        let mut pool = self.pool.lock();
        self.put(&mut pool, page, pages);
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
