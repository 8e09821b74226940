//! Threads allocate and free without pause, so the common case must not take a lock, touch the dead
//! cell, or touch data that another thread writes.
//!
//! Therefore each thread has an [`Arena`], which owns pages of a [`Space`]. Sizes are rounded up to
//! a size class, so that a page holds cells of one size. For each class an arena has a magazine,
//! which is a small stack of free cells. An allocation pops a cell from it, and a free pushes one.
//! Only an empty or full magazine uses the free bits of the pages. If they have no free cell
//! either, an allocation needs the pool of the space, which has a lock.
//!
//! ```text
//! alloc <- magazine <- free bits of own pages <- remote stacks of own pages <- abandoned pages
//!       <- fresh page
//! free  -> magazine -> free bits -> (page empty) -> pool
//! free by another thread -> the page's remote stack
//! ```
//!
//! For example, a thread frees 100 of its cells of 32 bytes, while the magazine is empty at first.
//! The magazine is full after 64 frees, so the 65th and the 97th first move the 32 oldest cells to
//! the free bits of their pages. The other 98 frees are only a push. Because the magazine has 36
//! cells afterwards, the next 36 allocations are a pop.
//!
//! If a stress mode needs the quarantine, magazines have no capacity, so that every allocation and
//! every free takes the slow path, which checks the cell. The fast paths contain no code for the
//! quarantine, because they find such a magazine empty, or full.
//!
//! # Invariants
//!
//! * A page is on exactly one of its class's two lists: on `partial` if its free bits have marks,
//!   or else on `full`.
//! * Every cell in a magazine lies on a page of this arena. A magazine is therefore flushed before
//!   its pages leave.
//! * A page is released as soon as all its cells are marked, except that one such page for each
//!   class stays (`spare`).
//! * A refill hands out the cells of one page in ascending address order, so that objects that are
//!   born together lie together and are traversed in order.
//! * `young` of a page is set whenever a cell of it enters a magazine, so that an allocation from
//!   the magazine need not set it.
//! * A class without its bit in `used` has an empty magazine and no pages. The calls that visit
//!   every class skip it, so that an arena that has used two classes looks at only these when it
//!   retires.

use std::ptr::NonNull;

use crate::base::fallible::NoMemory;
use crate::base::stress::Stress;
use crate::base::sync::Ordering;
use crate::memory::address_map::AddressMap;
use crate::memory::class_pages::{ClassPages, is_empty, take_cells};
use crate::memory::magazine::{MAGAZINE_CAPACITY, Magazines, boxed};
use crate::memory::page::{PageInfo, PageList};
use crate::memory::pool::SpaceError;
use crate::memory::samples::Countdown;
use crate::memory::shape::{Cell, GRANULE, Shape};
use crate::memory::size_class::{CLASS_SHAPES, CLASSES, class_size};
use crate::memory::space::{PAGES_PROBED, Space};
use crate::memory::sparse::VISITED_ASIDE;

/// The bytes outside the space that a thread counts before it reports them.
const EXTERNAL_UNREPORTED: usize = 64 << 10;

/// A thread's allocator over the pages of one space, which every call takes.
///
/// If its space lives on, an arena must be [retired](Arena::retire) before it is dropped. Otherwise
/// its pages would have an id that another arena may get. A retired arena can be used again like a
/// new one with the same id.
pub(crate) struct Arena {
    id: u32,
    /// Cells that refills took, minus the cells that this thread has freed, since `take_count`.
    objects: isize,
    bytes: isize,
    /// Bytes of the frees that did not count, since `take_uncounted`.
    reclaimed: usize,
    /// Bytes outside the space that objects have got, minus those that they have given up, since
    /// `take_uncounted`. They are also in `bytes` or `reclaimed`.
    external: isize,
    /// The bytes outside the space among `reclaimed`.
    external_reclaimed: usize,
    /// Whether the frees of this thread count in `objects` and `bytes`.
    counts_frees: bool,
    /// Bit n: the arena has had a page of class n since it was new.
    used: u64,
    /// The last round of `sparse` that the arena has begun, and the last that it has finished.
    rounds: (u32, u32),
    magazines: Magazines,
    /// In a heap that samples: when the next object is due.
    countdown: Option<Box<Countdown>>,
    pages: Box<[ClassPages; CLASSES]>,
}

// SAFETY: rules *owner* and *guarded*: the pointers are free cells of pages that the arena owns on
// any thread.
unsafe impl Send for Arena {}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The classes of the bits in `used`.
fn classes(mut used: u64) -> impl Iterator<Item = usize> {
    const { assert!(CLASSES <= u64::BITS as usize) };
    std::iter::from_fn(move || {
        let class = used.trailing_zeros() as usize;
        used &= used.wrapping_sub(1);
        (class < CLASSES).then_some(class)
    })
}

impl Arena {
    /// An arena without pages, for a heap without stress modes.
    #[cfg(test)]
    pub(crate) fn new(id: u32) -> Self {
        Self::with_stress(Stress::none(), id).expect("memory")
    }

    /// An arena without pages. `id` is not 0, and no other living arena of the space has it. A
    /// retired arena may have had it, if it retired before this call.
    pub(crate) fn with_stress(stress: Stress, id: u32) -> Result<Self, NoMemory> {
        assert_ne!(id, 0, "the id 0 means no arena");
        let most =
            if stress.uses_quarantine() { 0 } else { stress.shrink(MAGAZINE_CAPACITY).max(2) };
        Ok(Self {
            id,
            objects: 0,
            bytes: 0,
            reclaimed: 0,
            external: 0,
            external_reclaimed: 0,
            counts_frees: true,
            used: 0,
            rounds: (0, 0),
            magazines: Magazines::new(most)?,
            countdown: None,
            pages: boxed(|_| ClassPages {
                partial: PageList::EMPTY,
                full: PageList::EMPTY,
                spare: None,
                unvisited: [0, 0],
            })?,
        })
    }

    /// Samples an object in each `mean` bytes (see `samples`), on an arena that is new.
    pub(crate) fn sample_every(&mut self, mean: usize) -> Result<(), NoMemory> {
        self.magazines.part()?;
        self.countdown = Some(Countdown::new(mean)?);
        Ok(())
    }

    /// The fast path: a free cell from the magazine, if it has one.
    #[inline(always)]
    pub(crate) fn pop(&mut self, class: u8) -> Option<NonNull<u8>> {
        self.magazines.out()[usize::from(class)].pop()
    }

    /// In a heap that samples, a short refill: a cell of those that this thread has freed, if these
    /// are many and none of them is due.
    #[inline]
    pub(crate) fn turn(&mut self, class: u8) -> Option<NonNull<u8>> {
        let countdown = self.countdown.as_mut()?;
        let back = &self.magazines.back()[usize::from(class)];
        if back.len <= back.capacity / 2 {
            return None;
        }
        let count = back.len.min(countdown.left(class));
        countdown.hand_out(class, count);
        self.magazines.reuse(class, count);
        self.pop(class)
    }

    /// Whether the next object of the class is to be sampled. The next call is about another one.
    pub(crate) fn is_due(&mut self, class: u8) -> bool {
        self.countdown.as_mut().is_some_and(|countdown| countdown.is_due(class))
    }

    /// Whether a large object is to be sampled that takes so many bytes.
    pub(crate) fn is_large_due(&mut self, bytes: usize) -> bool {
        self.countdown.as_mut().is_some_and(|countdown| countdown.is_large_due(bytes))
    }

    /// A free cell, with the bytes that its last user left.
    #[inline]
    pub(crate) fn alloc(
        &mut self,
        space: &Space<impl AddressMap>,
        class: u8,
    ) -> Result<NonNull<u8>, SpaceError> {
        match self.pop(class) {
            None => self.refill(space, class),
            Some(cell) => Ok(cell),
        }
    }

    /// Frees a cell of a page of this arena. Returns `false` for other cells and for large objects,
    /// which [`free_elsewhere`](Self::free_elsewhere) frees.
    ///
    /// # Safety
    ///
    /// `cell` came from `alloc` or `alloc_large` of an arena of this space. The caller owns it and
    /// does not use it again. Its state byte is 0.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_here(
        &mut self,
        space: &Space<impl AddressMap>,
        cell: NonNull<u8>,
    ) -> bool {
        // SAFETY: rule *mapped*: the cell lies on a page that was handed out. The rest is as the
        // caller says.
        unsafe { self.free_on(space, space.page_of(cell.as_ptr().addr()), cell) }
    }

    /// As `free_here`, for a cell whose page the caller has looked up.
    ///
    /// # Safety
    ///
    /// As for `free_here`, and the cell lies on this page.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free_on(
        &mut self,
        space: &Space<impl AddressMap>,
        page: &PageInfo,
        cell: NonNull<u8>,
    ) -> bool {
        let is_here = page.arena() == self.id;
        if is_here {
            // SAFETY: rule *owner*: the pages of an arena are small pages, made from
            // `CLASS_SHAPES`, so they have a class.
            unsafe { self.free_own(space, cell, page, page.shape().class()) };
        }
        is_here
    }

    /// As `free_here`, for a cell whose page and class the caller knows, which saves a load on the
    /// critical path.
    ///
    /// # Safety
    ///
    /// As for `free_here`, and the cell lies on this page, and was allocated with this class.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_of_class(
        &mut self,
        space: &Space<impl AddressMap>,
        cell: NonNull<u8>,
        page: &PageInfo,
        class: u8,
    ) -> bool {
        let is_here = page.arena() == self.id;
        if is_here {
            // SAFETY: as the caller says.
            unsafe { self.free_own(space, cell, page, class) };
        }
        is_here
    }

    /// Frees a cell or a large object, wherever it lies.
    ///
    /// # Safety
    ///
    /// As for `free_here`.
    #[cfg(test)]
    pub(crate) unsafe fn free(&mut self, space: &Space<impl AddressMap>, cell: NonNull<u8>) {
        // SAFETY: as the caller says.
        if !unsafe { self.free_here(space, cell) } {
            // SAFETY: as the caller says.
            unsafe { self.free_elsewhere(space, cell) };
        }
    }

    /// Frees a cell of a page of this arena, which is of class `class`.
    #[inline(always)]
    unsafe fn free_own(
        &mut self,
        space: &Space<impl AddressMap>,
        cell: NonNull<u8>,
        page: &PageInfo,
        class: u8,
    ) {
        debug_assert_eq!(page.shape().class(), class);
        // SAFETY: rule *bounds*: the class of a page is below `CLASSES`.
        let magazine = unsafe { self.magazines.back().get_unchecked_mut(usize::from(class)) };
        if magazine.is_full() {
            // SAFETY: as for `free_here`.
            return unsafe { self.free_to_full(space, cell, page, class) };
        }
        magazine.push(cell);
        // Relaxed: see `PageInfo::young`.
        page.young.store(1, Ordering::Relaxed);
    }

    /// As `free_own`, when the magazine is full. It ends the free, so that the fast path, which
    /// returns nowhere from a call, saves no registers.
    #[cold]
    #[inline(never)]
    unsafe fn free_to_full(
        &mut self,
        space: &Space<impl AddressMap>,
        cell: NonNull<u8>,
        page: &PageInfo,
        class: u8,
    ) {
        let half = self.magazines.back()[usize::from(class)].capacity / 2;
        if half == 0 {
            // SAFETY: as for `free_here`.
            return unsafe { self.free_to_quarantine(space, cell) };
        }
        self.flush(space, class, half);
        self.magazines.back()[usize::from(class)].push(cell);
        // Relaxed: see `PageInfo::young`.
        page.young.store(1, Ordering::Relaxed);
    }

    /// As `free_own`, with quarantine: the cell enters the quarantine, and the oldest cell there
    /// becomes free.
    #[cold]
    #[inline(never)]
    unsafe fn free_to_quarantine(&mut self, space: &Space<impl AddressMap>, cell: NonNull<u8>) {
        // SAFETY: as for `free_here`. The quarantine gives up its cell (rule *owner*).
        unsafe {
            self.count_free(space.page_of(cell.as_ptr().addr()).shape());
            let Some(due) = space.pass_quarantine(cell) else { return };
            let page = space.page_of(due.as_ptr().addr());
            if page.arena() == self.id {
                let class = page.shape().class();
                self.pages[usize::from(class)].mark(space, class, &[due]);
            } else {
                space.free_unowned(due);
            }
        }
    }

    /// As `free_here`, on a thread that has no arena.
    ///
    /// # Safety
    ///
    /// As for `free_here`.
    #[cold]
    pub(crate) unsafe fn free_remote(space: &Space<impl AddressMap>, cell: NonNull<u8>) {
        // SAFETY: rules *mapped* and *owner*: the cell lies on a page that was handed out, and the
        // caller owns it.
        unsafe {
            space.forget_sample(cell);
            if let Some(due) = space.pass_quarantine(cell) {
                space.free_unowned(due);
            }
        }
    }

    /// Frees a large object, or a cell of another arena's page. Returns whether the caller should
    /// [take the count](Self::take_count), because this thread has freed many more objects than it
    /// has allocated. A thread that allocates takes the count with each refill.
    ///
    /// # Safety
    ///
    /// As for `free_here`.
    pub(crate) unsafe fn free_elsewhere(
        &mut self,
        space: &Space<impl AddressMap>,
        cell: NonNull<u8>,
    ) -> bool {
        // SAFETY: as the caller says.
        unsafe {
            self.count_free(space.page_of(cell.as_ptr().addr()).shape());
            Self::free_remote(space, cell);
        }
        self.objects <= -(MAGAZINE_CAPACITY as isize)
    }

    /// Counts objects that lie in memory of others, as one granule each. Returns whether the caller
    /// should [take the count](Self::take_count).
    pub(crate) fn count_foreign(&mut self, objects: isize) -> bool {
        let bytes = objects * GRANULE as isize;
        if objects > 0 || self.counts_frees {
            self.objects += objects;
            self.bytes += bytes;
        } else {
            self.reclaimed += bytes.unsigned_abs();
        }
        self.objects.unsigned_abs() >= MAGAZINE_CAPACITY
    }

    /// Counts one object of `shape` as freed by this thread.
    fn count_free(&mut self, shape: Shape) {
        self.count_freed(1, shape.footprint().bytes());
    }

    /// Counts objects of so many bytes as freed by this thread.
    fn count_freed(&mut self, objects: usize, bytes: usize) {
        if self.counts_frees {
            self.objects -= objects as isize;
            self.bytes -= bytes as isize;
        } else {
            self.reclaimed += bytes;
        }
    }

    /// Memory for one object on pages of its own, for sizes without a class, with at least `prefix`
    /// bytes in front of it. Its bytes are arbitrary. `prefix` is at most
    /// [`MAX_PREFIX`](crate::memory::shape::MAX_PREFIX).
    #[cold]
    pub(crate) fn alloc_large(
        &mut self,
        space: &Space<impl AddressMap>,
        size: usize,
        align: usize,
        prefix: usize,
    ) -> Result<NonNull<u8>, SpaceError> {
        let object = space.acquire_large(size, align, prefix).or_else(|_| {
            space.drain_quarantine();
            self.trim(space);
            space.sweep_abandoned();
            space.acquire_large(size, align, prefix)
        })?;
        // SAFETY: rule *mapped*: just handed out.
        let shape = unsafe { space.page_of(object.as_ptr().addr()) }.shape();
        self.count_one(shape.footprint().bytes());
        Ok(object)
    }

    /// Counts an object of so many bytes, whose memory is from no page of this arena.
    pub(crate) fn count_one(&mut self, bytes: usize) {
        self.objects += 1;
        self.bytes += bytes as isize;
    }

    /// Objects and bytes that this thread has allocated since the last call, minus those that it
    /// has freed. A free counts on the thread that frees, on any page. The count includes the cells
    /// in the magazines, because cells count when a magazine is filled or flushed.
    pub(crate) fn take_count(&mut self) -> (isize, isize) {
        (std::mem::take(&mut self.objects), std::mem::take(&mut self.bytes))
    }

    /// The bytes that this thread has freed without [counting](Self::count_frees) since the last
    /// call, those outside the space among them, and the change of the bytes outside the space.
    pub(crate) fn take_uncounted(&mut self) -> (usize, usize, isize) {
        let Self { reclaimed, external_reclaimed, external, .. } = self;
        let take = std::mem::take::<usize>;
        (take(reclaimed), take(external_reclaimed), std::mem::take(external))
    }

    /// Counts bytes outside the space that objects have got (positive) or given up (negative).
    /// Returns whether the caller should [take the count](Self::take_count).
    #[inline]
    pub(crate) fn count_external(&mut self, change: isize) -> bool {
        if change >= 0 || self.counts_frees {
            self.bytes = self.bytes.saturating_add(change);
        } else {
            let freed = change.unsigned_abs();
            self.reclaimed = self.reclaimed.saturating_add(freed);
            self.external_reclaimed = self.external_reclaimed.saturating_add(freed);
        }
        self.external = self.external.saturating_add(change);
        self.external.unsigned_abs() >= EXTERNAL_UNREPORTED
    }

    /// Sets whether the frees of this thread count, and returns the setting before.
    pub(crate) fn count_frees(&mut self, counts: bool) -> bool {
        std::mem::replace(&mut self.counts_frees, counts)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Calls `f` with each page: its class, whether it is on the `partial` list, and its index.
    pub(crate) fn for_each_page(
        &self,
        space: &Space<impl AddressMap>,
        mut f: impl FnMut(u8, bool, u32),
    ) {
        for class in classes(self.used) {
            let pages = &self.pages[class];
            // SAFETY: rule *owner*: the pages are this arena's.
            unsafe {
                pages.partial.for_each(space, |page| f(class as u8, true, page));
                pages.full.for_each(space, |page| f(class as u8, false, page));
            }
        }
    }

    /// Calls `f` with each cell in a magazine, which is free, and whose allocation will not mark
    /// its page young again.
    pub(crate) fn for_each_cached(&self, mut f: impl FnMut(NonNull<u8>)) {
        for class in classes(self.used) {
            self.magazines.cells(class).for_each(&mut f);
        }
    }

    /// Empties the magazines, so that the next allocation of each class is a refill.
    pub(crate) fn empty_magazines(&mut self, space: &Space<impl AddressMap>) {
        for class in classes(self.used) {
            self.empty_magazine(space, class);
            if self.magazines.swap(class) {
                // Cells that no object has got were counted when the magazine was filled.
                let cells = self.magazines.back()[class].len;
                if let Some(countdown) = &mut self.countdown {
                    countdown.take_back(class as u8, cells);
                }
                self.empty_magazine(space, class);
            }
        }
    }

    fn empty_magazine(&mut self, space: &Space<impl AddressMap>, class: usize) {
        let len = self.magazines.back()[class].len;
        self.flush(space, class as u8, len);
    }

    /// Empties the magazines, drains the remote stacks, and releases every empty page.
    pub(crate) fn trim(&mut self, space: &Space<impl AddressMap>) {
        self.empty_magazines(space);
        for class in classes(self.used) {
            let pages = &mut self.pages[class];
            pages.spare = None;
            // SAFETY: rule *owner*: the pages are this arena's, and no magazine holds their cells.
            unsafe {
                for _ in 0..pages.full.len() {
                    let Some(page) = pages.full.pop_front(space) else { break };
                    space.drain(page);
                    pages.file(space, page);
                }
                for _ in 0..pages.partial.len() {
                    let Some(page) = pages.partial.pop_front(space) else { break };
                    space.drain(page);
                    if is_empty(space, page) {
                        space.release(page);
                    } else {
                        pages.partial.push_back(space, page);
                    }
                }
            }
        }
    }

    /// If a round of `sparse` has begun, visits up to `most` pages, first those of this arena and
    /// then abandoned ones. Returns whether pages may be left.
    #[cold]
    pub(crate) fn visit_pages(&mut self, space: &Space<impl AddressMap>, most: usize) -> bool {
        let round = space.round();
        if self.rounds.1 == round {
            return false;
        }
        if self.rounds.0 != round {
            self.rounds.0 = round;
            for class in classes(self.used) {
                let pages = &mut self.pages[class];
                pages.unvisited = [pages.partial.len(), pages.full.len()];
            }
        }
        let mut left = most;
        for class in classes(self.used) {
            left -= self.pages[class].visit(space, left);
        }
        if left == 0 || space.visit_abandoned(left).is_break() {
            return true;
        }
        self.rounds.1 = round;
        false
    }

    /// Releases the empty pages and abandons the others. When its [count](Self::take_count) has
    /// been taken, the arena is as a new one.
    pub(crate) fn retire(&mut self, space: &Space<impl AddressMap>) {
        self.trim(space);
        for class in classes(std::mem::take(&mut self.used)) {
            let pages = &mut self.pages[class];
            for list in [&mut pages.partial, &mut pages.full] {
                if list.len() != 0 {
                    // SAFETY: rule *owner*: the pages are this arena's, and `trim` has emptied the
                    // magazines.
                    unsafe { space.abandon(class as u8, std::mem::replace(list, PageList::EMPTY)) };
                }
            }
        }
        self.counts_frees = true;
    }

    /// Fills the class's magazine and takes one cell out.
    #[cold]
    #[inline(never)]
    fn refill(
        &mut self,
        space: &Space<impl AddressMap>,
        class: u8,
    ) -> Result<NonNull<u8>, SpaceError> {
        let mut last_try = false;
        if self.rounds.1 != space.round() {
            self.visit_pages(space, VISITED_ASIDE);
        }
        loop {
            self.fill(space, class);
            if let Some(cell) = self.pop(class) {
                if let Some(quarantine) = space.quarantine() {
                    // SAFETY: rule *owner*: the cell is free until this function returns it.
                    unsafe {
                        quarantine.check_out(Cell::of(CLASS_SHAPES[usize::from(class)], cell))
                    };
                }
                return Ok(cell);
            }
            if self.probe_full_pages(space, class) {
                continue;
            }
            match space.acquire(CLASS_SHAPES[usize::from(class)], self.id) {
                Ok(page) => {
                    self.used |= 1 << class;
                    // SAFETY: rule *owner*: the page is this arena's now, and on no list.
                    unsafe { self.pages[usize::from(class)].partial.push_front(space, page) }
                }
                Err(_) if !last_try => {
                    // The allocation does not fail yet, because cells in quarantine and remote
                    // frees may suffice.
                    last_try = true;
                    space.drain_quarantine();
                    self.trim(space);
                    space.sweep_abandoned();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves free cells into the empty magazine, until it is full or no free cell is left. They are
    /// of own pages. In a heap that samples, those that this thread has freed come out first, and
    /// all come out before the next sample is due.
    fn fill(&mut self, space: &Space<impl AddressMap>, class: u8) {
        // A magazine without capacity takes the one cell that `refill` removes again.
        let mut capacity = self.magazines.out()[usize::from(class)].capacity.max(1);
        let mut reused = 0;
        if let Some(countdown) = &self.countdown {
            // At least one, for an object whose sample was refused.
            capacity = capacity.min(countdown.left(class).max(1));
            reused = capacity.min(self.magazines.back()[usize::from(class)].len);
        }
        let capacity = (capacity - reused) as usize;
        let (magazine, pages) =
            (&mut self.magazines.out()[usize::from(class)], &mut self.pages[usize::from(class)]);
        let mut filled = 0;
        while filled < capacity
            && let Some(page) = pages.partial.front()
        {
            // SAFETY: rule *owner*: the page is this arena's.
            unsafe {
                space.drain(page);
                filled += take_cells(space, page, &mut magazine.cells[filled..capacity]);
                let info = space.info(page);
                // Relaxed: see `PageInfo::young`.
                info.young.store(1, Ordering::Relaxed);
                if info.owned(|owned| owned.free) == 0 {
                    pages.partial.remove(space, page);
                    pages.full.push_back(space, page);
                }
            }
            pages.spare.take_if(|spare| *spare == page);
        }
        // Reversed, because `pop` takes the last cell, and the lowest address should come out
        // first.
        magazine.cells[..filled].reverse();
        magazine.len = filled as u32;
        self.objects += filled as isize;
        self.bytes += (filled * class_size(class)) as isize;
        if let Some(countdown) = &mut self.countdown {
            self.magazines.reuse(class, reused);
            countdown.hand_out(class, filled as u32 + reused);
        }
    }

    /// Probes some full pages for remote frees. A page without any goes to the end of the list, so
    /// that the next call probes others.
    fn probe_full_pages(&mut self, space: &Space<impl AddressMap>, class: u8) -> bool {
        let pages = &mut self.pages[usize::from(class)];
        for _ in 0..space.stress().shrink(PAGES_PROBED).min(pages.full.len()) {
            // SAFETY: rule *owner*: the pages are this arena's.
            unsafe {
                let Some(page) = pages.full.pop_front(space) else { break };
                // The caller goes on with `fill`, which drains it.
                if space.info(page).has_remote() {
                    pages.partial.push_front(space, page);
                    return true;
                }
                pages.full.push_back(space, page);
            }
        }
        false
    }

    /// Moves the `count` oldest cells of the magazine for frees to their pages' free bits.
    #[cold]
    #[inline(never)]
    fn flush(&mut self, space: &Space<impl AddressMap>, class: u8, count: u32) {
        let (magazine, pages) =
            (&mut self.magazines.back()[usize::from(class)], &mut self.pages[usize::from(class)]);
        let (len, count) = (magazine.len as usize, count as usize);
        // SAFETY: rule *owner*: the cells of a magazine are free and lie on pages of this arena, of
        // its class.
        unsafe { pages.mark(space, class, &magazine.cells[..count]) };
        magazine.cells.copy_within(count..len, 0);
        magazine.len = (len - count) as u32;
        self.count_freed(count, count * class_size(class));
        if self.rounds.1 != space.round() {
            self.visit_pages(space, VISITED_ASIDE);
        }
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
