//! The pages of the interpreter's allocator that contain objects of the collector.
//!
//! CPython allocates each object that takes part in cycles from one of two heaps of a thread: for
//! objects without and with a prefix of two words. A heap is a set of pages. A page contains blocks
//! of one size, and free lists that say which of them are not in use. Pages of ended threads are in
//! a pool of the interpreter.
//!
//! The list of pages is made, and read, while the world is stopped. Threads that are not attached
//! to the interpreter use neither heap, so nothing changes meanwhile. The list only reads.
//!
//! # The parts of a page
//!
//! ```text
//! segment (aligned to 32 MiB) | slices of 64 KiB: a page has one or more
//! page                        | start | block | block | ... capacity blocks
//! block                       | prefix (0, 2, or 4 words) | object
//! ```

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};

use standstill::model::{Blocks, Object};

use crate::layout as c;
use crate::plausible::{self, Alter, Place};

/// A page with blocks in use.
#[derive(Clone, Copy)]
pub struct Page {
    page: *mut c::mi_page_t,
    /// The first block.
    start: usize,
    /// Bytes from the start of a block to the object.
    offset: usize,
}

// SAFETY: the pointer is read only while the world is stopped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// The pages of a stopped interpreter.
#[derive(Default)]
pub struct Pages {
    pages: Vec<Page>,
    /// Blocks that other threads have freed and the owner has not taken back, sorted.
    delayed: Vec<usize>,
    /// Each page is [checked](plausible) before it is used.
    check: Option<Alter>,
}

/// Why there is no list of pages.
#[derive(Debug)]
pub enum Failed {
    /// There is no memory for it.
    NoMemory,
    /// A page or a segment is not as the headers say. Only a checked list fails so.
    Implausible(&'static str),
}

impl From<std::collections::TryReserveError> for Failed {
    fn from(_: std::collections::TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// Words of the bitmap of a page: it has at most 65,535 blocks, of at least 32 bytes each, in a
/// page of 64 KiB; larger pages have fewer.
const WORDS: usize = 128;

/// The most blocks of a page.
pub const MOST_BLOCKS: usize = WORDS * 64;

/// The free lists of so many pages are walked at once, one block of each after the other. The steps
/// of a list wait for memory, and those of different lists do not wait for each other.
pub const TOGETHER: usize = 8;

impl Page {
    fn block_size(&self) -> usize {
        // SAFETY: the page exists while the world is stopped.
        unsafe { (*self.page).xblock_size as usize }
    }

    fn capacity(&self) -> usize {
        // SAFETY: as above.
        usize::from(unsafe { (*self.page).capacity })
    }

    /// Whether the page has one block, with a memory of its own.
    fn is_huge(&self) -> bool {
        self.block_size() >= c::SS_HUGE_BLOCK_SIZE as usize
    }

    /// The number of a block.
    fn number(&self, block: usize) -> usize {
        // The numbers are small: a segment has 32 MiB. Such a division is faster.
        ((block - self.start) as u32 / self.block_size() as u32) as usize
    }

    /// The memory in which the page's objects start: its slices. One block takes all others that a
    /// page with one block has.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        const SLICE: usize = c::SS_SLICE_SIZE as usize;
        // SAFETY: the page exists while the world is stopped.
        let slices = if self.capacity() == 1 { 1 } else { unsafe { (*self.page).slice_count } };
        let start = std::ptr::with_exposed_provenance_mut(self.start & !(SLICE - 1));
        (NonNull::new(start).expect("a page does not start at 0"), slices as usize * SLICE)
    }
}

impl Pages {
    /// Lists the pages of an interpreter. `prefix` is the number of bytes that the allocator puts
    /// in front of each block of the program: see [`debug_prefix`].
    ///
    /// # Safety
    ///
    /// The world is stopped.
    pub unsafe fn list(
        interpreter: *mut c::PyInterpreterState,
        prefix: usize,
    ) -> Result<Self, Failed> {
        // SAFETY: the world is stopped. The lock keeps threads away that start or end.
        unsafe {
            c::ss_lock_heads();
            let list = Self::list_locked(interpreter, prefix, None);
            c::ss_unlock_heads();
            list
        }
    }

    /// As [`list`](Self::list), inside of the interpreter's own enumeration. `check`: each page is
    /// checked before it is used.
    ///
    /// # Safety
    ///
    /// The world is stopped, and the caller has the lock of the list of threads.
    pub unsafe fn list_locked(
        interpreter: *mut c::PyInterpreterState,
        prefix: usize,
        check: Option<Alter>,
    ) -> Result<Self, Failed> {
        let mut list = Self { check, ..Self::default() };
        let with_words = prefix + 2 * size_of::<usize>();
        // SAFETY: as the caller says.
        unsafe { list.add_all(interpreter, prefix, with_words) }?;
        list.delayed.sort_unstable();
        Ok(list)
    }

    /// # Safety
    ///
    /// As for [`list`](Self::list), and the caller has the lock of the list of threads.
    unsafe fn add_all(
        &mut self,
        interpreter: *mut c::PyInterpreterState,
        plain: usize,
        with_words: usize,
    ) -> Result<(), Failed> {
        let heaps = [(c::SS_HEAP_GC, plain), (c::SS_HEAP_GC_PRE, with_words)];
        // SAFETY: as the caller says. All structures are the interpreter's own.
        unsafe {
            let mut thread = (*interpreter).threads.head;
            while !thread.is_null() {
                let own = &raw mut (*thread.cast::<c::_PyThreadStateImpl>()).mimalloc;
                // Acquire, with the interpreter's store: a thread that is not attached makes its
                // heaps also during a stop, and then says that they exist.
                let exists = AtomicI32::from_ptr(&raw mut (*own).initialized);
                if exists.load(Ordering::Acquire) != 0 {
                    for (heap, offset) in heaps {
                        self.add_heap(&raw mut (*own).heaps[heap as usize], heap, offset)?;
                    }
                }
                thread = (*thread).next;
            }
            let pool = &raw mut (*interpreter).mimalloc.abandoned_pool;
            let mask = c::SS_SEGMENT_SIZE as usize - 1;
            let abandoned = ((*pool).abandoned & !mask) as *mut c::mi_segment_t;
            for first in [abandoned, (*pool).abandoned_visited] {
                let mut segment = first;
                while !segment.is_null() {
                    self.add_segment(segment, heaps)?;
                    segment = (*segment).abandoned_next;
                }
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`list`](Self::list).
    unsafe fn add_heap(
        &mut self,
        heap: *mut c::mi_heap_t,
        tag: i64,
        offset: usize,
    ) -> Result<(), Failed> {
        // Blocks in use, as far as the heap is checked.
        let mut used = 0;
        // SAFETY: as the caller says.
        unsafe {
            for queue in &(&(*heap).pages)[..=c::SS_BIN_FULL as usize] {
                let mut at = Place { heap, tag, before: std::ptr::null_mut() };
                let mut page = queue.first;
                while !page.is_null() {
                    self.add_page(page, at, offset)?;
                    used += (*page).used as usize;
                    at.before = page;
                    page = (*page).next;
                }
            }
            let mut block = (*heap).thread_delayed_free;
            while !block.is_null() {
                if self.check.is_some() && used == 0 {
                    return Err(Failed::Implausible("a heap has more blocks freed than in use"));
                }
                used = used.wrapping_sub(1);
                self.delayed.try_reserve(1)?;
                self.delayed.push(block.addr());
                block = c::ss_next_delayed(heap, block);
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`list`](Self::list).
    unsafe fn add_segment(
        &mut self,
        segment: *mut c::mi_segment_t,
        heaps: [(i64, usize); 2],
    ) -> Result<(), Failed> {
        if self.check.is_some() {
            // SAFETY: as the caller says, and the address is a link of the pool.
            unsafe { plausible::segment(segment) }.map_err(Failed::Implausible)?;
        }
        // SAFETY: as the caller says. The first `slice_entries` slices exist. The first slice of a
        // page has the number of its slices, and a block size above 1.
        unsafe {
            let first = (&raw mut (*segment).slices).cast::<c::mi_slice_t>();
            let mut at = 0;
            while at < (*segment).slice_entries {
                let page = first.add(at);
                for (heap_tag, offset) in heaps {
                    if (*page).xblock_size > 1 && i64::from((*page).tag()) == heap_tag {
                        let (heap, before) = (std::ptr::null_mut(), std::ptr::null_mut());
                        self.add_page(page, Place { heap, tag: heap_tag, before }, offset)?;
                    }
                }
                at += ((*page).slice_count as usize).max(1);
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`list`](Self::list).
    unsafe fn add_page(
        &mut self,
        page: *mut c::mi_page_t,
        at: Place,
        offset: usize,
    ) -> Result<(), Failed> {
        if let Some(alter) = self.check {
            // SAFETY: as the caller says, and `page` is a link of a heap or a slice.
            unsafe { plausible::page(page, at, alter) }.map_err(Failed::Implausible)?;
        }
        // SAFETY: as the caller says.
        if unsafe { (*page).used } == 0 {
            return Ok(());
        }
        self.pages.try_reserve(1)?;
        // SAFETY: as the caller says.
        let start = unsafe { first_block(page) };
        self.pages.push(Page { page, start, offset });
        Ok(())
    }

    /// The pages.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Leaves pages out.
    pub fn retain(&mut self, is_wanted: impl FnMut(&Page) -> bool) {
        self.pages.retain(is_wanted);
    }

    /// Calls `f` with the blocks of each page, of [`TOGETHER`] at most.
    ///
    /// # Safety
    ///
    /// The world is stopped, in the stop that has made the list.
    #[inline(always)]
    pub unsafe fn blocks(&self, pages: &[Page], mut f: impl FnMut(Blocks<'_>)) {
        let mut free = [[0u64; WORDS]; TOGETHER];
        let mut release = |at: usize, block: usize| {
            let number = pages[at].number(block);
            free[at][number / 64] |= 1 << (number % 64);
        };
        // The next block of each free list that has one, and the place of its page.
        let mut lists = [(0, std::ptr::null_mut()); 3 * TOGETHER];
        let mut left = 0;
        for (at, page) in pages.iter().enumerate().filter(|(_, page)| !page.is_huge()) {
            // SAFETY: as the caller says.
            let of_page = unsafe {
                let other = ((*page.page).xthread_free & !3) as *mut c::mi_block_t;
                [(*page.page).free, (*page.page).local_free, other]
            };
            for first in of_page.into_iter().filter(|first| !first.is_null()) {
                lists[left] = (at, first);
                left += 1;
            }
            let from = self.delayed.partition_point(|&block| block < page.start);
            let end = page.start + page.capacity() * page.block_size();
            let delayed = self.delayed[from..].iter().take_while(|&&block| block < end);
            delayed.for_each(|&block| release(at, block));
        }
        while left > 0 {
            let mut one = 0;
            while one < left {
                let (at, block) = lists[one];
                release(at, block.addr());
                // SAFETY: the block is in a free list of the page.
                let next = unsafe { next_free(pages[at].page, block) };
                if next.is_null() {
                    left -= 1;
                    lists[one] = lists[left];
                } else {
                    lists[one].1 = next;
                    one += 1;
                }
            }
        }
        for (page, free) in pages.iter().zip(&free) {
            let (size, count) = (page.block_size(), page.capacity());
            let first = std::ptr::with_exposed_provenance_mut(page.start + page.offset);
            // SAFETY: blocks do not start at 0.
            let first = Object::new(unsafe { NonNull::new_unchecked(first) });
            f(Blocks { first, size, count, free: &free[..count.div_ceil(64)] });
        }
    }

    /// Calls `f` with the address of the object of each block of a page that is in use. Returns the
    /// number of these blocks.
    ///
    /// # Safety
    ///
    /// As for [`blocks`](Self::blocks).
    pub unsafe fn each(&self, page: Page, mut f: impl FnMut(NonNull<u8>)) -> usize {
        let mut used = 0;
        let each = |blocks: Blocks<'_>| {
            let is_free =
                |at: usize| blocks.free.get(at / 64).is_some_and(|w| w >> (at % 64) & 1 != 0);
            for at in (0..blocks.count).filter(|&at| !is_free(at)) {
                f(blocks.first.as_ptr().map_addr(|first| first.saturating_add(at * blocks.size)));
            }
            used += in_use(blocks);
        };
        // SAFETY: as the caller says.
        unsafe { self.blocks(&[page], each) }
        used
    }
}

/// The number of blocks that are not free.
pub fn in_use(blocks: Blocks<'_>) -> usize {
    blocks.count - blocks.free.iter().map(|word| word.count_ones() as usize).sum::<usize>()
}

impl Pages {
    /// The number of blocks of a page in use, from the allocator's own count, which contains the
    /// blocks that other threads have freed. For the self-test: [`each`](Self::each) must find as
    /// many.
    ///
    /// # Safety
    ///
    /// As for [`each`](Self::each).
    pub unsafe fn used(&self, page: Page) -> usize {
        let end = page.start + page.capacity() * page.block_size();
        let from = self.delayed.partition_point(|&block| block < page.start);
        let to = self.delayed.partition_point(|&block| block < end);
        let mut freed = to - from;
        // SAFETY: as the caller says.
        unsafe {
            let mut block = ((*page.page).xthread_free & !3) as *mut c::mi_block_t;
            while !block.is_null() {
                freed += 1;
                block = next_free(page.page, block);
            }
            ((*page.page).used as usize).saturating_sub(freed)
        }
    }
}

/// The address of the first block of a page. For small blocks the allocator skips some bytes of the
/// first slice. The self-test on import compares the result with the interpreter's own enumeration.
///
/// # Safety
///
/// The world is stopped.
pub unsafe fn first_block(page: *mut c::mi_page_t) -> usize {
    // SAFETY: as the caller says. A page is an element of its segment's array of slices.
    unsafe {
        let segment = c::ss_segment_of(page.cast());
        let slices = (&raw mut (*segment).slices).cast::<c::mi_slice_t>();
        let at = page.offset_from_unsigned(slices);
        let size = (*page).xblock_size as usize;
        let skipped = match size {
            8..=64 => 3 * size,
            65..=512 => size,
            _ => 0,
        };
        segment.expose_provenance() + at * c::SS_SLICE_SIZE as usize + skipped
    }
}

/// The block after `block` in a free list of a page.
///
/// # Safety
///
/// The world is stopped, and the block is in such a list.
#[inline(always)]
pub unsafe fn next_free(page: *mut c::mi_page_t, block: *mut c::mi_block_t) -> *mut c::mi_block_t {
    // SAFETY: as the caller says. A free block begins with the address of the next one, which
    // debug builds encode. (The call costs more than the load.)
    unsafe {
        if cfg!(py_debug) {
            c::ss_next_in_page(page, block)
        } else {
            (*block).next as *mut c::mi_block_t
        }
    }
}

/// Bytes that the allocator puts in front of each block: with `PYTHONMALLOC=debug` and in debug
/// builds, a size and an identification.
pub fn debug_prefix() -> usize {
    // SAFETY: reads a number that is constant after the start of the interpreter. (The name of the
    // allocator does not tell: a hook of tracemalloc has no name.)
    let is_on = unsafe { c::ss_has_debug_allocator() } != 0;
    if is_on { 2 * size_of::<usize>() } else { 0 }
}
