//! Whether the pages of the allocator are as the headers describe them.
//!
//! The interpreter's table of offsets has no entry for pages. Another build of the interpreter may
//! have other pages: with ThreadSanitizer two fields are longer, and all later ones lie behind
//! their place in the headers. Lists that are read from such pages lead anywhere, or never end.
//!
//! So the self-test on import reads each page once before it uses a pointer or a number of it. The
//! allocator keeps these relations at all times when no thread uses the page:
//!
//! | field | relation |
//! |---|---|
//! | the page | is an element of the slices of its segment, and ends inside of that segment |
//! | its heap | the one with the list that has led to it; none in the interpreter's pool |
//! | its tag | that of the heap |
//! | the page before | the one that has led to it. So a list of pages has no circle |
//! | its numbers | `used <= capacity <= reserved`, and all blocks lie inside of the page |
//! | its two lists of free blocks | have `capacity - used` blocks together, each a block of the
//! page |
//! | the blocks that other threads have freed | are blocks of the page, and not more than `used` |
//!
//! The page is read into a copy first, which a test may alter: [`Alter`].

use crate::layout as c;
use crate::pages::{first_block, next_free};

/// Changes the copy of a page before it is checked. For tests: each check must be able to fail.
pub type Alter = fn(&mut c::mi_page_t);

/// No change.
pub const AS_IT_IS: Alter = |_| {};

/// Changes by name, each of which one check must notice.
pub const CHANGES: &[(&str, Alter)] = &[
    // A page of an interpreter with ThreadSanitizer: all from `free` on is behind.
    ("page.sanitizer", |page| {
        let bytes = std::ptr::from_mut(page).cast::<u8>();
        let at = std::mem::offset_of!(c::mi_page_t, free);
        // SAFETY: both ranges lie inside of the copy, which consists of numbers and raw pointers.
        unsafe { bytes.add(at).copy_to(bytes.add(at + 8), size_of::<c::mi_page_t>() - at - 8) };
    }),
    ("page.heap", |page| page.xheap ^= 64),
    ("page.pool", |page| page.xheap += 64 * usize::from(page.xheap == 0)),
    ("page.tag", |page| page.set_tag(page.tag() ^ 4)),
    ("page.previous", |page| page.prev = std::ptr::dangling_mut()),
    ("page.used", |page| page.used = u32::from(page.capacity) + 1),
    ("page.capacity", |page| page.capacity = page.reserved + 1),
    ("page.size", |page| page.xblock_size = 4),
    ("page.blocks", |page| page.xblock_size <<= 12),
    ("page.slices", |page| page.slice_count = 1 << 20),
    ("page.offset", |page| page.slice_offset = 96),
    ("page.free", |page| page.free = std::ptr::dangling_mut()),
    ("page.number", |page| page.used = page.used.saturating_sub(1)),
    ("page.freed", |page| page.xthread_free = 1 << 40),
];

/// Where a page was found.
#[derive(Clone, Copy)]
pub struct Place {
    /// The heap. Null: the interpreter's pool.
    pub heap: *mut c::mi_heap_t,
    /// The number of the kind of heap.
    pub tag: i64,
    /// The page with the link that has led here, or null.
    pub before: *mut c::mi_page_t,
}

/// Checks a page. An error names the difference.
///
/// # Safety
///
/// The world is stopped. `page` is a link of a heap, of a page that was checked, or an element of
/// the slices of a segment that was checked.
pub unsafe fn page(page: *mut c::mi_page_t, at: Place, alter: Alter) -> Result<(), &'static str> {
    let demand = |is_so: bool, otherwise| if is_so { Ok(()) } else { Err(otherwise) };
    // SAFETY: only the address is used.
    let segment = unsafe { c::ss_segment_of(page.cast()) };
    let slices = segment.addr() + std::mem::offset_of!(c::mi_segment_t, slices);
    let from_first = page.addr().wrapping_sub(slices);
    let slice = from_first / size_of::<c::mi_slice_t>();
    let is_slice = from_first.is_multiple_of(size_of::<c::mi_slice_t>());
    demand(is_slice && slice < SLICES, "a page is no slice of its segment")?;
    // SAFETY: as the caller says. Links lead to pages, so the address can be read; and so can the
    // segment, which it lies in.
    let (mut copy, segment_slices) = unsafe { (page.read(), (*segment).segment_slices) };
    alter(&mut copy);
    demand(copy.xheap == at.heap.addr(), "a page has another heap")?;
    demand(i64::from(copy.tag()) == at.tag, "a page has another tag than its heap")?;
    demand(at.heap.is_null() || copy.prev == at.before, "a page follows another one")?;
    demand(copy.slice_offset == 0 && copy.slice_count > 0, "a slice is not the first of its page")?;
    let count = copy.slice_count as usize;
    demand(slice + count <= segment_slices, "a page ends outside of its segment")?;
    let (capacity, used, size) =
        (usize::from(copy.capacity), copy.used as usize, copy.xblock_size as usize);
    let numbers = (used <= capacity, copy.capacity <= copy.reserved);
    demand(numbers == (true, true), "a page has more blocks in use than it has")?;
    if capacity <= 1 {
        // One block may be longer than the field can say.
        return Ok(());
    }
    demand(size >= size_of::<c::mi_block_t>(), "a page has blocks without a length")?;
    demand(capacity <= crate::pages::MOST_BLOCKS, "a page has too many blocks")?;
    // SAFETY: the page is a slice of its segment.
    let first = unsafe { first_block(page) };
    let end = (segment.addr() + slice * SLICE) + count * SLICE;
    demand(first + capacity * size <= end, "the blocks of a page end outside of it")?;

    // The length of a list of blocks, if all of them are the page's.
    let length = |mut block: *mut c::mi_block_t, most: usize| {
        let mut length = 0;
        while !block.is_null() {
            let offset = block.addr().wrapping_sub(first);
            if offset >= capacity * size || !offset.is_multiple_of(size) || length == most {
                return None;
            }
            length += 1;
            // SAFETY: it is a block of the page, in a list of free ones.
            block = unsafe { next_free(page, block) };
        }
        Some(length)
    };
    let free = length(copy.free, capacity).zip(length(copy.local_free, capacity));
    let others = length((copy.xthread_free & !3) as *mut c::mi_block_t, used);
    demand(free.is_some() && others.is_some(), "a list of free blocks leads out of its page")?;
    let free = free.map_or(0, |(free, local)| free + local);
    demand(free + used == capacity, "a page has another number of free blocks")
}

/// Checks a segment of the interpreter's pool. An error names the difference.
///
/// # Safety
///
/// The world is stopped, and the address is a link of the pool or of a segment that was checked.
pub unsafe fn segment(segment: *mut c::mi_segment_t) -> Result<(), &'static str> {
    if !segment.addr().is_multiple_of(c::SS_SEGMENT_SIZE as usize) {
        return Err("a segment begins at another address");
    }
    // SAFETY: as the caller says.
    let segment = unsafe { &*segment };
    if segment.thread_id != 0 || segment.abandoned > segment.used {
        return Err("a segment of the pool has a thread");
    }
    if segment.slice_entries > SLICES || segment.slice_entries > segment.segment_slices {
        return Err("a segment has too many slices");
    }
    Ok(())
}

/// Bytes of a slice.
const SLICE: usize = c::SS_SLICE_SIZE as usize;

/// Slices of a segment.
const SLICES: usize = c::SS_SEGMENT_SIZE as usize / SLICE;
