//! Floor 2: one thread's allocator over the pages of a [`Space`].
//!
//! Sizes are rounded up to a class; a page holds cells of one class. For each class an [`Arena`] keeps
//! a magazine, a small stack of free cells, and the pages it owns. Allocation pops, freeing pushes; neither
//! locks, nor touches what another thread writes, nor the dead cell. Only an empty or a full magazine goes
//! on to the pages' free bits, and only when those have nothing to the pool of the space.
//!
//! ```text
//! alloc <- magazine <- free bits of own pages <- remote stacks of own pages <- abandoned pages <- fresh page
//! free  -> magazine -> free bits -> (page empty) -> pool
//! free by a stranger -> the page's remote stack
//! ```
//!
//! Where freed memory is watched (`freed`), magazines have no room at all: each cell is looked at on its way in and out,
//! and the fast paths, which find nothing and no room, know nothing of it.
//!
//! # Invariants
//!
//! * A page is on exactly one of its class's two lists: `partial` while it has marks in its free bits,
//!   `full` while it has none.
//! * Every cell in a magazine lies on a page of this arena. So a magazine is flushed before its pages leave.
//! * An empty page is released when the last cell's mark is set, save one per class (`spare`).
//! * A refill hands out cells of one page in ascending address order, so that objects born together lie
//!   together and the collector walks them in order.
//! * `young` of a page is set whenever a cell of it enters a magazine.

use std::ptr::NonNull;

use crate::base::fallible::{self, NoMemory};
use crate::base::stress::Stress;
use crate::base::sync::Ordering;
use crate::memory::class_pages::{ClassPages, is_empty, take_cells};
use crate::memory::magazine::{MAGAZINE_CAPACITY, Magazine};
use crate::memory::page::PageInfo;
use crate::memory::page_list::PageList;
use crate::memory::shape::{Cell, PAGE_SIZE, Shape};
use crate::memory::size_class::{CLASS_SHAPES, CLASS_SIZES};
pub(crate) use crate::memory::size_class::{CLASSES, class_for, class_size, shape_of};
use crate::memory::space::{PAGES_PROBED, Space, SpaceError};

/// A thread's allocator. It belongs to one space: every call names the same one.
///
/// It must be [retired](Arena::retire) before it is dropped while its space lives on: its pages would be
/// nobody's, under an id that somebody else may get.
pub(crate) struct Arena {
    id: u32,
    /// Cells that refills took, less the cells that this thread has freed, since `take_count`.
    objects: isize,
    bytes: isize,
    /// Whether the frees of this thread count in `objects` and `bytes`.
    counts_frees: bool,
    error: Option<SpaceError>,
    /// Boxed, and built there: tens of kilobytes that must not travel over a small stack.
    magazines: Box<[Magazine; CLASSES]>,
    pages: Box<[ClassPages; CLASSES]>,
}

// SAFETY: rules O and X: the pointers are free cells of pages that the arena owns, wherever it is.
unsafe impl Send for Arena {}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("id", &self.id).finish_non_exhaustive()
    }
}

/// An array on the heap, one element after the other.
fn boxed<T>(element: impl FnMut(usize) -> T) -> Result<Box<[T; CLASSES]>, NoMemory> {
    let elements = fallible::collect((0..CLASSES).map(element))?.into_boxed_slice();
    Ok(elements.try_into().unwrap_or_else(|_| unreachable!("one element a class")))
}

impl Arena {
    /// An arena without pages, as one in a heap under no stress.
    #[cfg(test)]
    pub(crate) fn new(id: u32) -> Self {
        Self::with_stress(Stress::none(), id).expect("memory")
    }

    /// An arena without pages. `id` is not 0 and no other living arena of the space has it. It may have been
    /// a retired arena's, if that retirement happened before this call.
    pub(crate) fn with_stress(stress: Stress, id: u32) -> Result<Self, NoMemory> {
        assert_ne!(id, 0, "0 is nobody");
        let most =
            if stress.uses_quarantine() { 0 } else { stress.shrink(MAGAZINE_CAPACITY).max(2) };
        Ok(Self {
            id,
            objects: 0,
            bytes: 0,
            counts_frees: true,
            error: None,
            magazines: boxed(|class| Magazine {
                len: 0,
                capacity: (PAGE_SIZE / CLASS_SIZES[class]).clamp(2, MAGAZINE_CAPACITY).min(most)
                    as u32,
                cells: [NonNull::dangling(); _],
            })?,
            pages: boxed(|_| ClassPages {
                partial: PageList::EMPTY,
                full: PageList::EMPTY,
                spare: None,
            })?,
        })
    }

    /// A free cell out of the magazine, if one waits there. The fast path: nothing else is looked at.
    #[inline(always)]
    pub(crate) fn pop(&mut self, class: u8) -> Option<NonNull<u8>> {
        self.magazines[usize::from(class)].pop()
    }

    /// A free cell, with whatever bytes its last user left. `None`: the space refuses, see
    /// [`last_error`](Self::last_error).
    #[inline]
    pub(crate) fn alloc(&mut self, space: &Space, class: u8) -> Option<NonNull<u8>> {
        match self.magazines[usize::from(class)].pop() {
            None => self.refill(space, class),
            cell => cell,
        }
    }

    /// Frees a cell of a page of this arena. `false`: it lies elsewhere or is a large object, and
    /// [`free_elsewhere`](Self::free_elsewhere) frees it.
    ///
    /// # Safety
    ///
    /// `cell` came from `alloc` or `alloc_large` of an arena of this space, is the caller's to free, is not used
    /// again, and has a state byte of 0.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_here(&mut self, space: &Space, cell: NonNull<u8>) -> bool {
        // SAFETY: rule G: the cell lies on a page that was handed out.
        let page = unsafe { space.page_of(cell.as_ptr().addr()) };
        let is_here = page.arena() == self.id;
        if is_here {
            // SAFETY: rule O: pages of an arena are small ones, made from `CLASS_SHAPES`: the class is theirs.
            unsafe { self.free_own(space, cell, page, page.shape().class()) };
        }
        is_here
    }

    /// As `free_here`, of a cell whose class the caller knows: a load less to wait for.
    ///
    /// # Safety
    ///
    /// As for `free_here`, and the cell was allocated with this class.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_of_class(
        &mut self,
        space: &Space,
        cell: NonNull<u8>,
        class: u8,
    ) -> bool {
        // SAFETY: rule G: the cell lies on a page that was handed out.
        let page = unsafe { space.page_of(cell.as_ptr().addr()) };
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
    pub(crate) unsafe fn free(&mut self, space: &Space, cell: NonNull<u8>) {
        // SAFETY: as the caller says.
        if !unsafe { self.free_here(space, cell) } {
            // SAFETY: as the caller says.
            unsafe { self.free_elsewhere(space, cell) };
        }
    }

    /// Frees a cell of a page of this arena, which has class `class`.
    #[inline(always)]
    unsafe fn free_own(&mut self, space: &Space, cell: NonNull<u8>, page: &PageInfo, class: u8) {
        debug_assert_eq!(page.shape().class(), class);
        // SAFETY: rule B: the class of a page is below `CLASSES`.
        let magazine = unsafe { self.magazines.get_unchecked_mut(usize::from(class)) };
        if magazine.is_full() {
            let half = magazine.capacity / 2;
            if half == 0 {
                // SAFETY: as for `free_here`.
                return unsafe { self.free_to_quarantine(space, cell) };
            }
            self.flush(space, class, half);
        }
        // SAFETY: rule B, as before.
        unsafe { self.magazines.get_unchecked_mut(usize::from(class)) }.push(cell);
        // Relaxed: see the field.
        page.young.store(1, Ordering::Relaxed);
    }

    /// As `free_own`, where freed memory is watched: the cell goes to the quarantine, and the oldest cell
    /// there becomes free.
    #[cold]
    #[inline(never)]
    unsafe fn free_to_quarantine(&mut self, space: &Space, cell: NonNull<u8>) {
        // SAFETY: as for `free_here`; the quarantine gives up its cell (rule O).
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
    pub(crate) unsafe fn free_remote(space: &Space, cell: NonNull<u8>) {
        // SAFETY: rules G and O: the cell lies on a page that was handed out, and is the caller's to free.
        unsafe {
            if let Some(due) = space.pass_quarantine(cell) {
                space.free_unowned(due);
            }
        }
    }

    /// Frees a cell of a page that is not this arena's, or a large object. Returns whether the caller
    /// should [take the count](Self::take_count), because this thread has freed many more objects than
    /// it has allocated. A thread that allocates takes the count with each refill.
    ///
    /// # Safety
    ///
    /// As for `free_here`.
    pub(crate) unsafe fn free_elsewhere(&mut self, space: &Space, cell: NonNull<u8>) -> bool {
        // SAFETY: as the caller says.
        unsafe {
            self.count_free(space.page_of(cell.as_ptr().addr()).shape());
            Self::free_remote(space, cell);
        }
        self.objects <= -(MAGAZINE_CAPACITY as isize)
    }

    /// Counts one object of `shape` as freed by this thread.
    fn count_free(&mut self, shape: Shape) {
        if self.counts_frees {
            self.objects -= 1;
            self.bytes -= shape.footprint().bytes() as isize;
        }
    }

    /// Memory for one object of its own pages, for what has no class. Its bytes are arbitrary.
    #[cold]
    pub(crate) fn alloc_large(
        &mut self,
        space: &Space,
        size: usize,
        align: usize,
    ) -> Result<NonNull<u8>, SpaceError> {
        let object = space.acquire_large(size, align).or_else(|_| {
            space.drain_quarantine();
            self.trim(space);
            space.sweep_abandoned();
            space.acquire_large(size, align)
        })?;
        // SAFETY: rule G: just handed out.
        let shape = unsafe { space.page_of(object.as_ptr().addr()) }.shape();
        self.objects += 1;
        self.bytes += shape.footprint().bytes() as isize;
        Ok(object)
    }

    /// Why the last `alloc` returned `None`.
    pub(crate) fn last_error(&self) -> Option<SpaceError> {
        self.error
    }

    /// Objects and bytes that this thread has allocated since the last call, less those that it has
    /// freed. The thread that frees an object counts it, wherever the object lies. An object that goes
    /// through a magazine counts when the magazine is filled or emptied, so the count includes the
    /// cells in the magazines.
    pub(crate) fn take_count(&mut self) -> (isize, isize) {
        (std::mem::take(&mut self.objects), std::mem::take(&mut self.bytes))
    }

    /// Sets whether the frees of this thread count, and returns the setting before.
    pub(crate) fn count_frees(&mut self, counts: bool) -> bool {
        std::mem::replace(&mut self.counts_frees, counts)
    }

    /// Its id.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Calls `f` with each of its pages: the class, and whether it is on the list of those with free cells.
    pub(crate) fn for_each_page(&self, space: &Space, mut f: impl FnMut(u8, bool, u32)) {
        for (class, pages) in self.pages.iter().enumerate() {
            // SAFETY: rule O: the pages are this arena's.
            unsafe {
                pages.partial.for_each(space, |page| f(class as u8, true, page));
                pages.full.for_each(space, |page| f(class as u8, false, page));
            }
        }
    }

    /// Calls `f` with each cell that waits in a magazine: free, but due to be handed out without anybody
    /// marking its page young again.
    pub(crate) fn for_each_cached(&self, mut f: impl FnMut(NonNull<u8>)) {
        for magazine in self.magazines.iter() {
            magazine.cells().iter().copied().for_each(&mut f);
        }
    }

    /// Empties the magazines, takes in what others freed, and releases every empty page.
    pub(crate) fn trim(&mut self, space: &Space) {
        for class in 0..CLASSES {
            self.flush(space, class as u8, self.magazines[class].len);
            let pages = &mut self.pages[class];
            pages.spare = None;
            // SAFETY: rule O: the pages are this arena's, and no magazine holds their cells any more.
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

    /// Gives everything up: empty pages to the pool, the others to whoever needs them. The arena is as new
    /// afterwards.
    pub(crate) fn retire(&mut self, space: &Space) {
        self.trim(space);
        for (class, pages) in self.pages.iter_mut().enumerate() {
            for list in [&mut pages.partial, &mut pages.full] {
                if list.len() != 0 {
                    // SAFETY: rule O: the pages are this arena's, and `trim` has emptied the magazines.
                    unsafe { space.abandon(class as u8, std::mem::replace(list, PageList::EMPTY)) };
                }
            }
        }
    }

    /// Fills the class's magazine and takes one cell out.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, space: &Space, class: u8) -> Option<NonNull<u8>> {
        let mut last_try = false;
        loop {
            self.fill(space, class);
            if let Some(cell) = self.magazines[usize::from(class)].pop() {
                if let Some(quarantine) = space.quarantine() {
                    // SAFETY: rule O: free until it is handed out, here.
                    unsafe {
                        quarantine.check_out(Cell::of(CLASS_SHAPES[usize::from(class)], cell))
                    };
                }
                return Some(cell);
            }
            if self.probe_full_pages(space, class) {
                continue;
            }
            match space.acquire(CLASS_SHAPES[usize::from(class)], self.id) {
                // SAFETY: rule O: the page is ours now, and on no list.
                Ok(page) => unsafe {
                    self.pages[usize::from(class)].partial.push_front(space, page)
                },
                Err(_) if !last_try => {
                    // Look everywhere before giving up: what strangers freed may be enough.
                    last_try = true;
                    space.drain_quarantine();
                    self.trim(space);
                    space.sweep_abandoned();
                }
                Err(error) => {
                    self.error = Some(error);
                    return None;
                }
            }
        }
    }

    /// Moves free cells of own pages into the magazine, which is empty, until it is full or they are used up.
    fn fill(&mut self, space: &Space, class: u8) {
        let (magazine, pages) =
            (&mut self.magazines[usize::from(class)], &mut self.pages[usize::from(class)]);
        // One without room has it for the one cell that `refill` takes out again.
        let capacity = magazine.capacity.max(1) as usize;
        let mut filled = 0;
        while filled < capacity
            && let Some(page) = pages.partial.front()
        {
            // SAFETY: rule O: the page is this arena's.
            unsafe {
                space.drain(page);
                filled += take_cells(space, page, &mut magazine.cells[filled..capacity]);
                let info = space.info(page);
                // Relaxed: see the field.
                info.young.store(1, Ordering::Relaxed);
                if info.owned(|owned| owned.free) == 0 {
                    pages.partial.remove(space, page);
                    pages.full.push_back(space, page);
                }
            }
            pages.spare.take_if(|spare| *spare == page);
        }
        // The lowest address comes out first.
        magazine.cells[..filled].reverse();
        magazine.len = filled as u32;
        self.objects += filled as isize;
        self.bytes += (filled * class_size(class)) as isize;
    }

    /// Looks at some full pages, others each time, for one on which a stranger has freed something.
    fn probe_full_pages(&mut self, space: &Space, class: u8) -> bool {
        let pages = &mut self.pages[usize::from(class)];
        for _ in 0..space.stress().shrink(PAGES_PROBED).min(pages.full.len()) {
            // SAFETY: rule O: the pages are this arena's.
            unsafe {
                let Some(page) = pages.full.pop_front(space) else { break };
                // Not drained here: `fill` does it.
                if space.info(page).has_remote() {
                    pages.partial.push_front(space, page);
                    return true;
                }
                pages.full.push_back(space, page);
            }
        }
        false
    }

    /// Moves the `count` oldest cells of the magazine to their pages' free bits.
    #[cold]
    #[inline(never)]
    fn flush(&mut self, space: &Space, class: u8, count: u32) {
        let (magazine, pages) =
            (&mut self.magazines[usize::from(class)], &mut self.pages[usize::from(class)]);
        let (len, count) = (magazine.len as usize, count as usize);
        // SAFETY: rule O: the cells of a magazine lie on pages of this arena, of the magazine's class, and are free.
        unsafe { pages.mark(space, class, &magazine.cells[..count]) };
        magazine.cells.copy_within(count..len, 0);
        magazine.len = (len - count) as u32;
        if self.counts_frees {
            self.objects -= count as isize;
            self.bytes -= (count * class_size(class)) as isize;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc;

    use super::*;
    use crate::memory::size_class::{SMALL_MAX, class_align, class_of};
    use crate::memory::space::SpaceConfig;

    fn space() -> Space {
        limited(usize::MAX)
    }

    fn limited(limit: usize) -> Space {
        Space::reserve(SpaceConfig { reserve: Some(1 << 30), limit: Some(limit) }).unwrap()
    }

    fn addr(cell: NonNull<u8>) -> usize {
        cell.as_ptr().addr()
    }

    /// A cell on its way to another thread.
    struct Sent(NonNull<u8>);
    // SAFETY: rule O: whoever has it may free it.
    unsafe impl Send for Sent {}

    #[test]
    fn cells_are_aligned_disjoint_ascending_and_reused() {
        let space = space();
        let mut arena = Arena::new(1);
        for class in 0..CLASSES as u8 {
            let size = class_size(class);
            let cells: Vec<_> = (0..200).map(|_| arena.alloc(&space, class).unwrap()).collect();
            for pair in cells.windows(2) {
                assert!(addr(pair[0]) + size <= addr(pair[1]), "class {class} does not ascend");
            }
            for &cell in &cells {
                assert!(
                    space.contains(addr(cell)) && addr(cell).is_multiple_of(class_align(class))
                );
                // SAFETY: rule O: all its bytes are ours.
                unsafe { cell.write_bytes(0xee, size) };
                let page = space.page_index(addr(cell));
                assert!(space.starts(page).any(|granule| granule == space.granule(addr(cell))));
                assert_eq!(space.page(page).young.load(Ordering::Relaxed), 1);
                assert_eq!(space.page(page).arena(), 1);
            }
            // The last one freed is the next one out.
            // SAFETY: rule O: freed once each.
            unsafe { arena.free(&space, cells[7]) };
            assert_eq!(arena.alloc(&space, class), Some(cells[7]));
            // SAFETY: rule O: freed once each.
            cells.iter().for_each(|&cell| unsafe { arena.free(&space, cell) });
            let again: HashSet<_> = (0..200).map(|_| arena.alloc(&space, class).unwrap()).collect();
            assert_eq!(again.len(), 200);
            // SAFETY: rule O: freed once each.
            again.iter().for_each(|&cell| unsafe { arena.free(&space, cell) });
        }
        arena.retire(&space);
        assert_eq!(space.in_use_bytes(), 0);
    }

    #[test]
    fn a_million_cells_come_and_go() {
        let space = space();
        let mut arena = Arena::new(1);
        let class = class_of(48).unwrap();
        let cells: Vec<_> = (0..1_000_000).map(|_| arena.alloc(&space, class).unwrap()).collect();
        assert!(cells.is_sorted());
        assert_eq!(arena.take_count().0 / 1000, 1000);
        let at_most = 1_000_000 * 64 * 101 / 100;
        assert!(space.in_use_bytes() <= at_most, "{} bytes", space.in_use_bytes());
        // In an order that has nothing to do with addresses.
        for n in 0..cells.len() {
            // SAFETY: rule O: 7919 is coprime with the length: each index once.
            unsafe { arena.free(&space, cells[n * 7919 % cells.len()]) };
        }
        let given_back = arena.take_count();
        assert_eq!((given_back.0 / 1000, given_back.1 / 64), (-1000, given_back.0));
        // Each cell that waits in the magazine holds its page back.
        assert!(
            space.in_use_bytes() <= (MAGAZINE_CAPACITY + 1) * PAGE_SIZE,
            "{} bytes",
            space.in_use_bytes()
        );
        arena.trim(&space);
        assert_eq!(space.in_use_bytes(), 0);
    }

    #[test]
    fn cached_cells_are_told() {
        let space = space();
        let mut arena = Arena::new(1);
        let mut cached = HashSet::new();
        let cells: Vec<_> = (0..10).map(|_| arena.alloc(&space, 3).unwrap()).collect();
        arena.for_each_cached(|cell| assert!(cached.insert(cell)));
        assert_eq!(cached.len(), MAGAZINE_CAPACITY - 10);
        assert!(cells.iter().all(|cell| !cached.contains(cell)));
        assert_eq!(
            arena.take_count(),
            (MAGAZINE_CAPACITY as isize, (MAGAZINE_CAPACITY * class_size(3)) as isize)
        );
    }

    #[test]
    fn large_objects_have_their_own_pages() {
        let space = space();
        let mut arena = Arena::new(1);
        let object = arena.alloc_large(&space, SMALL_MAX + 1, 32).unwrap();
        let huge = arena.alloc_large(&space, 10 * PAGE_SIZE, 4096).unwrap();
        assert_eq!(space.in_use_bytes(), 12 * PAGE_SIZE);
        assert_eq!(arena.take_count(), (2, 12 * PAGE_SIZE as isize));
        assert_eq!(space.page(space.page_index(addr(huge))).shape().pages(), 11);
        // SAFETY: rule O: freed once each.
        unsafe {
            arena.free(&space, object);
            Arena::free_remote(&space, huge);
        }
        assert_eq!(space.in_use_bytes(), 0);
        assert!(arena.alloc_large(&space, 1, 2 * PAGE_SIZE).is_err());
    }

    #[test]
    fn at_the_limit_nothing_breaks() {
        let space = limited(8 * PAGE_SIZE);
        let mut arena = Arena::new(1);
        let class = class_of(1000).unwrap();
        let mut cells = Vec::new();
        while let Some(cell) = arena.alloc(&space, class) {
            cells.push(cell);
        }
        assert_eq!(cells.len(), 8 * CLASS_SHAPES[usize::from(class)].cells());
        assert!(matches!(arena.last_error(), Some(SpaceError::Limit { .. })));
        assert!(arena.alloc_large(&space, 1, 1).is_err());
        // What strangers free is found at once, wherever it lies.
        let last = cells.pop().unwrap();
        // SAFETY: rule O: freed once.
        unsafe { Arena::free_remote(&space, last) };
        assert_eq!(arena.alloc(&space, class), Some(last));
        cells.push(last);
        assert_eq!(arena.alloc(&space, class), None);
        // An empty page is of use to another class, and to a large object.
        // SAFETY: rule O: freed once each.
        cells.drain(..).for_each(|cell| unsafe { arena.free(&space, cell) });
        let large = arena.alloc_large(&space, 7 * PAGE_SIZE, 1).unwrap();
        // SAFETY: rule O: freed once.
        unsafe { arena.free(&space, large) };
        assert!(arena.alloc(&space, 0).is_some());
    }

    #[test]
    fn the_arena_that_frees_an_object_counts_it() {
        let space = space();
        let (mut one, mut other) = (Arena::new(1), Arena::new(2));
        let cells: Vec<_> =
            (0..10 * MAGAZINE_CAPACITY).map(|_| one.alloc(&space, 3).unwrap()).collect();
        let all = cells.len() as isize;
        let bytes = class_size(3) as isize;
        // What a magazine still contains was taken too.
        let (taken, taken_bytes) = one.take_count();
        assert!((all..all + MAGAZINE_CAPACITY as isize).contains(&taken), "{taken} taken");
        assert_eq!(taken_bytes, taken * bytes);
        // The thread is to take the count once it has freed as many objects as a magazine contains.
        // SAFETY: rule O: freed once each.
        let many: Vec<_> =
            cells.iter().map(|&cell| unsafe { other.free_elsewhere(&space, cell) }).collect();
        assert_eq!(many.iter().position(|&many| many), Some(MAGAZINE_CAPACITY - 1));
        assert_eq!(other.take_count(), (-all, -all * bytes));
        // The owner finds the memory free, and uses it again: that counts as taken, and as nothing else.
        let cells: Vec<_> = cells.iter().map(|_| one.alloc(&space, 3).unwrap()).collect();
        let (again, again_bytes) = one.take_count();
        assert!(
            (all - (MAGAZINE_CAPACITY as isize)..all + MAGAZINE_CAPACITY as isize).contains(&again),
            "{again} taken again"
        );
        assert_eq!(again_bytes, again * bytes);
        let large = one.alloc_large(&space, SMALL_MAX + 1, 1).unwrap();
        one.take_count();
        // What is not to be counted is not.
        assert!(other.count_frees(false));
        // SAFETY: rule O: freed once each.
        unsafe {
            assert!(cells.iter().all(|&cell| !other.free_elsewhere(&space, cell)));
            assert!(!other.free_here(&space, large) && !other.free_elsewhere(&space, large));
        }
        assert_eq!(other.take_count(), (0, 0));
        assert!(!other.count_frees(true));
    }

    #[test]
    fn a_queue_between_threads_reuses_its_memory() {
        let space = space();
        let mut arena = Arena::new(1);
        let class = class_of(64).unwrap();
        let (send, receive) = mpsc::sync_channel::<Sent>(1000);
        std::thread::scope(|scope| {
            let space = &space;
            scope.spawn(move || {
                let mut other = Arena::new(2);
                for (n, Sent(cell)) in receive.into_iter().enumerate() {
                    // SAFETY: rule O: freed once each.
                    unsafe {
                        match n % 2 {
                            0 => other.free(space, cell),
                            _ => Arena::free_remote(space, cell),
                        }
                    }
                }
                other.retire(space);
            });
            for _ in 0..300_000 {
                let cell = arena.alloc(space, class).unwrap();
                // SAFETY: rule O: ours.
                unsafe { cell.write_bytes(0xaa, 64) };
                send.send(Sent(cell)).unwrap();
            }
            drop(send);
        });
        // Some 1,100 cells are alive at once: 2 pages, and what the cursor has not come round to.
        assert!(space.in_use_bytes() <= 40 * PAGE_SIZE, "{} bytes", space.in_use_bytes());
        arena.retire(&space);
        assert_eq!(space.in_use_bytes(), 0);
    }

    /// Two threads allocate, free their own cells and each other's, and end now and then. A shadow byte per
    /// granule says who has a cell: no cell is ever handed out twice.
    #[test]
    fn two_threads_never_share_a_cell() {
        const ROUNDS: usize = 400_000;
        let space = space();
        space.set_heap(std::ptr::without_provenance(0xbeef0));
        let (to_a, from_b) = mpsc::channel::<Sent>();
        let (to_b, from_a) = mpsc::channel::<Sent>();
        let worker = |id: u32, outbox: mpsc::Sender<Sent>, inbox: mpsc::Receiver<Sent>| {
            let space = &space;
            move || {
                let mut random = 0x9e37_79b9_7f4a_7c15 ^ u64::from(id);
                let mut next = move |below: usize| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    (random >> 33) as usize % below
                };
                let release = |arena: &mut Arena, cell: NonNull<u8>| {
                    let granule = space.granule(addr(cell));
                    // SAFETY: rule O: in use; freed once.
                    unsafe {
                        assert_eq!(Space::heap_of(addr(cell)).addr(), 0xbeef0);
                        assert_eq!(
                            space.state(granule).swap(0, Ordering::AcqRel),
                            1,
                            "freed twice"
                        );
                        arena.free(space, cell);
                    }
                };
                let mut arena = Arena::new(id);
                let mut mine = Vec::new();
                for round in 0..ROUNDS {
                    let class = [0, 1, 3, 20, CLASSES - 1][next(500) * next(500) / 50_000];
                    let cell = match next(2000) {
                        0 => arena.alloc_large(space, next(5 * PAGE_SIZE), 32).unwrap(),
                        _ => arena.alloc(space, class as u8).unwrap(),
                    };
                    // SAFETY: rule G: handed out.
                    let state = unsafe { space.state(space.granule(addr(cell))) };
                    assert_eq!(state.swap(1, Ordering::AcqRel), 0, "handed out twice");
                    mine.push(cell);
                    if mine.len() > 2000 || next(3) == 0 {
                        let cell = mine.swap_remove(next(mine.len()));
                        match next(2) {
                            0 => release(&mut arena, cell),
                            _ => drop(outbox.send(Sent(cell))),
                        }
                    }
                    inbox.try_iter().take(4).for_each(|Sent(cell)| release(&mut arena, cell));
                    match round % 50_000 {
                        20_000 => arena.trim(space),
                        49_999 => arena.retire(space),
                        _ => {}
                    }
                }
                drop(outbox);
                mine.into_iter().for_each(|cell| release(&mut arena, cell));
                inbox.into_iter().for_each(|Sent(cell)| release(&mut arena, cell));
                arena.retire(space);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(worker(1, to_b, from_b));
            scope.spawn(worker(2, to_a, from_a));
        });
        space.sweep_abandoned();
        assert_eq!(space.in_use_bytes(), 0);
        assert!(space.states().iter().all(|state| state.load(Ordering::Relaxed) == 0));
    }

    /// `cargo test --release -- --ignored --nocapture hot_pair`
    #[test]
    #[ignore = "a measurement"]
    fn hot_pair() {
        let space = space();
        let mut arena = Arena::new(1);
        let mut report = |name: &str, count: usize, work: &mut dyn FnMut(&mut Arena)| {
            let best = (0..7).map(|_| {
                let start = std::time::Instant::now();
                work(&mut arena);
                start.elapsed().as_nanos() as f64 / count as f64
            });
            println!("{name}: {:.2} ns", best.fold(f64::MAX, f64::min));
        };
        report("immediate pair", 10_000_000, &mut |arena| {
            for _ in 0..10_000_000 {
                let cell = arena.alloc(&space, 1).unwrap();
                // SAFETY: rule O: freed once; ours to write.
                unsafe {
                    cell.cast::<u64>().write_volatile(1);
                    arena.free(&space, cell);
                }
            }
        });
        let mut cells = vec![NonNull::dangling(); 1_000_000];
        for count in [1_000, 1_000_000] {
            let repeat = 2_000_000 / count;
            for stride in [1, 7919] {
                let order: Vec<usize> = (0..count).map(|n| n * stride % count).collect();
                report(&format!("{count} cells, stride {stride}"), count * repeat, &mut |arena| {
                    for _ in 0..repeat {
                        for place in &mut cells[..count] {
                            *place = arena.alloc(&space, 1).unwrap();
                            // SAFETY: rule O: ours to write.
                            unsafe { place.cast::<u64>().write(1) };
                        }
                        // SAFETY: rule O: freed once each.
                        order.iter().for_each(|&n| unsafe { arena.free(&space, cells[n]) });
                    }
                });
            }
        }
    }
}
