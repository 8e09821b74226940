//! Floor 2: one address range for all objects of a heap, its pages, and the tables beside it.
//!
//! A [`Space`] reserves one contiguous range once and makes it accessible as it grows, so that three
//! questions cost arithmetic and no load: is this address mine ([`Space::contains`]), which table
//! entry belongs to it ([`Space::granule`]), which page is it on ([`Space::page_index`]). It knows
//! pages and cells; what lies in a cell is nobody's business here.
//!
//! ```text
//! base                                  base + length
//! | page 0 | page 1 | ...  (64 KiB each) | states | counts | free bits | PageInfo |
//!   |                                      1 byte   1 byte   1 bit       64 bytes
//!   | header: heap word | cell | cell |..  per granule of 32 bytes       per page
//! ```
//!
//! # Who may touch what
//!
//! | what | who, when |
//! |---|---|
//! | `states`, `counts` | the callers' business; all atomics. The state bytes of a free cell are 0 |
//! | free bits, [`Owned`] | the page's owner: the thread whose arena has the page; for pages of nobody (free, abandoned) whoever holds the pool's lock |
//! | [`PageInfo::arena`] | written by the owner or under the pool's lock; anybody compares it with his *own* id |
//! | [`PageInfo::remote`] | pushed by anybody who frees a cell of the page, emptied by the owner |
//! | [`PageInfo::young`] | set by the owner and by late tracking, cleared in a stop |
//! | page header | written while the page is nobody's, constant while it is in use |
//!
//! # Invariants
//!
//! * A cell is in exactly one place: in use, in its owner's magazine, on its page's remote stack, in
//!   quarantine (`freed`), or marked in the free bits. [`Owned::free`] counts the marks. So a page whose marks equal its
//!   cells has nothing on its remote stack, and nobody can be about to push there.
//! * An arena gives a page away (to the pool, or abandons it) only when no magazine holds a cell of it.
//! * Pages below the high-water mark have their table entries accessible for ever; what a released
//!   page gives back to the system is its own memory only.
//! * In-use pages never exceed the limit; free pages still resident never exceed
//!   `max(16, in use / 8)`: together they bound the resident size.
//!
//! # Rules
//!
//! cited by their letters where unsafe code relies on them:
//!
//! * **G** (granules): cells and objects lie on pages that were handed out. Those lie in the range and below the mark; they and their
//!   table entries are accessible as long as the space is, and whatever bytes are there are valid ones.
//! * **O** (owner): memory has one owner at a time, as "Who may touch what" says, and nobody else touches it but a stop. A page out of
//!   the pool is its taker's; a cell that was handed out is its taker's too, until he gives it back, once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ptr::NonNull;

use crate::base::steps;
use crate::base::stress::{Step, Stress, Under, maybe_yield};
use crate::base::sync::{
    AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, UnsafeCell,
};
use crate::memory::quarantine::{Freed, Namer};
pub(crate) use crate::memory::shape::{
    Cell, GRANULE, GRANULE_SHIFT, MAX_ALIGN, PAGE_GRANULES, PAGE_HEADER, PAGE_SHIFT, PAGE_SIZE,
    PageKind, Shape,
};

/// Free pages that stay resident however small the heap is: 1 MiB.
const RESIDENT_PAGES: usize = 16;
/// Pages one refill looks at for remote frees before it takes new memory.
pub(crate) const LOOK: usize = if cfg!(all(test, any(loom, shuttle))) { 2 } else { 16 };
/// "No page" in a link.
const NONE: u32 = u32::MAX;

/// What [`Space::reserve`] is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceConfig {
    /// Bytes of address space for pages; by default what is left for it: see `mapped::default_length`.
    pub(crate) reserve: Option<usize>,
    /// The most bytes of pages in use at once; by default all that is reserved.
    pub(crate) limit: Option<usize>,
}

/// Size classes that there is a list of abandoned pages for.
pub(crate) const CLASSES: usize = 64;

/// The system's code for "no memory".
const ENOMEM: i32 = 12;

/// The system refuses the address range, even at its smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReserveError {
    /// Bytes asked for in the last attempt.
    pub(crate) asked: usize,
    /// The system's error code.
    pub(crate) code: i32,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot reserve {} bytes of address space: ", self.asked)?;
        match self.code {
            // The system's own words take memory.
            ENOMEM => f.write_str("no memory"),
            code => std::io::Error::from_raw_os_error(code).fmt(f),
        }
    }
}

impl std::error::Error for ReserveError {}

/// A page or a run of pages cannot be had. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceError {
    /// The configured limit would be exceeded.
    Limit {
        /// Bytes asked for, in whole pages.
        asked: usize,
        /// Bytes in use.
        in_use: usize,
        /// The limit.
        limit: usize,
    },
    /// The reserved range has no room, or no hole that is large enough.
    Full {
        /// Bytes asked for, in whole pages.
        asked: usize,
        /// Bytes in use.
        in_use: usize,
        /// Bytes reserved.
        reserved: usize,
    },
    /// The system does not give memory.
    Refused {
        /// Bytes asked for, in whole pages.
        asked: usize,
        /// The system's error code.
        code: i32,
    },
    /// An alignment that is no power of two, or above [`MAX_ALIGN`].
    Alignment {
        /// What was asked for.
        align: usize,
    },
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Limit { asked, in_use, limit } => {
                write!(
                    f,
                    "the heap limit is reached: {asked} bytes asked, {in_use} of {limit} in use"
                )
            }
            Self::Full { asked, in_use, reserved } => {
                write!(
                    f,
                    "the address range is full: {asked} bytes asked, {in_use} of {reserved} in use"
                )
            }
            Self::Refused { asked, code } => {
                let cause = std::io::Error::from_raw_os_error(code);
                write!(f, "the system refuses {asked} bytes: {cause}")
            }
            Self::Alignment { align } => {
                write!(f, "alignment {align} is no power of two up to {MAX_ALIGN}")
            }
        }
    }
}

impl std::error::Error for SpaceError {}

/// What only the owner of a page touches.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Cells marked in the free bits.
    pub(crate) free: u32,
    prev: u32,
    next: u32,
}

/// Where a space begins: enough to tell granules from addresses. In the loops of a collection it stays in a register, as
/// the space itself, which others change meanwhile, would not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(NonNull<u8>);

impl Origin {
    /// The granule of an address of the space.
    #[inline(always)]
    pub(crate) fn granule(self, addr: usize) -> usize {
        (addr - self.0.addr().get()) >> GRANULE_SHIFT
    }

    /// The memory at a granule, with leave to use all of its cell.
    ///
    /// # Safety
    ///
    /// The granule is inside the range.
    #[inline(always)]
    pub(crate) unsafe fn cell(self, granule: usize) -> NonNull<u8> {
        // SAFETY: as the caller says.
        unsafe { self.0.add(granule << GRANULE_SHIFT) }
    }
}

/// One page's entry in the side table: one cache line, so that neighbours do not share.
///
/// All zero is the entry of a page never used.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PageInfo {
    /// [`Shape`]. Relaxed: who acts on it either holds a cell of the page, which reached him after the
    /// store through whatever handed the cell over, or runs in a stop, ordered by its handshake.
    shape: AtomicU64,
    /// The arena that owns the page; 0 is nobody. Relaxed: the only question is "is it mine", and only
    /// this thread writes its own id here or takes it away. An id that is given out again is ordered
    /// behind the retirement by whatever gave it out, so nobody can read his own id from an older life.
    arena: AtomicU32,
    /// Cells freed by threads that do not own the page: the granule within the page of the newest, 0
    /// for none; each dead cell's first word is the link to the next.
    remote: AtomicU32,
    /// Something on this page may be newer than the last collection. Relaxed: set by running threads,
    /// read and cleared in a stop, whose handshake orders them.
    pub(crate) young: AtomicU8,
    owned: UnsafeCell<Owned>,
}

impl PageInfo {
    /// The page's layout.
    #[inline(always)]
    pub(crate) fn shape(&self) -> Shape {
        Shape::from_bits(self.shape.load(Ordering::Relaxed))
    }

    /// The arena that owns the page; 0 is nobody.
    #[inline(always)]
    pub(crate) fn arena(&self) -> u32 {
        self.arena.load(Ordering::Relaxed)
    }

    /// Gives the page an owner, or takes it away.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and orders the new owner behind itself (the pool's lock does).
    pub(crate) unsafe fn set_arena(&self, id: u32) {
        self.arena.store(id, Ordering::Relaxed);
    }

    /// Gives the page a layout that is not its own: a fault, for tests of what finds it.
    ///
    /// # Safety
    ///
    /// The world is stopped, and the layout is put right before it goes on.
    #[cfg(test)]
    pub(crate) unsafe fn set_shape(&self, shape: Shape) {
        self.shape.store(shape.to_bits(), Ordering::Relaxed);
    }

    /// Whether cells wait on the remote stack. Relaxed and a hint: a miss is found the next time.
    #[inline]
    pub(crate) fn has_remote(&self) -> bool {
        self.remote.load(Ordering::Relaxed) != 0
    }

    /// The owner's data.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and `f` does not come here again.
    #[inline]
    pub(crate) unsafe fn owned<R>(&self, f: impl FnOnce(&mut Owned) -> R) -> R {
        // SAFETY: rule O: the owner is one thread, and it does not nest (caller).
        self.owned.with_mut(|owned| f(unsafe { &mut *owned }))
    }

    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self {
            shape: AtomicU64::new(0),
            arena: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            young: AtomicU8::new(0),
            owned: UnsafeCell::new(Owned::default()),
        }
    }
}

/// One page's free bits, by granule: set on the first granule of each free cell.
pub(crate) type FreeBits = [u64; PAGE_GRANULES.div_ceil(64)];

/// A doubly linked list of pages through [`Owned`]. Whoever has the list owns its pages.
#[derive(Debug)]
pub(crate) struct PageList {
    head: u32,
    tail: u32,
    len: u32,
}

impl PageList {
    /// No pages.
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    /// How many pages.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// The first page.
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Calls `f` with each page.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages, and `f` changes no list.
    pub(crate) unsafe fn for_each(&self, space: &Space, mut f: impl FnMut(u32)) {
        let mut next = self.front();
        for _ in 0..self.len {
            let Some(page) = next else { return };
            f(page);
            // SAFETY: rule O: the caller owns the page.
            let link = unsafe { space.info(page).owned(|owned| owned.next) };
            next = (link != NONE).then_some(link);
        }
    }

    /// Puts a page in front.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(crate) unsafe fn push_front(&mut self, space: &Space, page: u32) {
        // SAFETY: rule O: the caller owns all pages involved.
        unsafe { self.link(space, NONE, page, self.head) }
    }

    /// Puts a page at the end.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(crate) unsafe fn push_back(&mut self, space: &Space, page: u32) {
        // SAFETY: rule O: the caller owns all pages involved.
        unsafe { self.link(space, self.tail, page, NONE) }
    }

    /// Takes the first page off.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages.
    pub(crate) unsafe fn pop_front(&mut self, space: &Space) -> Option<u32> {
        let page = self.front()?;
        // SAFETY: rule O: it is on this list.
        unsafe { self.remove(space, page) };
        Some(page)
    }

    /// Takes one page off.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages, of which `page` is one.
    pub(crate) unsafe fn remove(&mut self, space: &Space, page: u32) {
        // SAFETY: rule O: the caller owns the page and its neighbours; each closure touches one entry.
        unsafe {
            let (prev, next) = space.info(page).owned(|owned| (owned.prev, owned.next));
            self.set_next(space, prev, next);
            self.set_prev(space, next, prev);
        }
        self.len -= 1;
    }

    /// Puts a page with free cells in front, another at the end.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    unsafe fn file(&mut self, space: &Space, page: u32) {
        // SAFETY: rule O: the caller owns all pages involved.
        unsafe {
            match space.info(page).owned(|owned| owned.free) {
                0 => self.push_back(space, page),
                _ => self.push_front(space, page),
            }
        }
    }

    /// # Safety
    ///
    /// The caller owns all pages named and the list, where `prev` and `next` are neighbours.
    unsafe fn link(&mut self, space: &Space, prev: u32, page: u32, next: u32) {
        // SAFETY: rule O: the caller owns the pages; each closure touches one entry.
        unsafe {
            space.info(page).owned(|owned| (owned.prev, owned.next) = (prev, next));
            self.set_next(space, prev, page);
            self.set_prev(space, next, page);
        }
        self.len += 1;
    }

    /// # Safety
    ///
    /// The caller owns `page`, or it is `NONE`: then the list's head is meant.
    unsafe fn set_next(&mut self, space: &Space, page: u32, next: u32) {
        match page {
            NONE => self.head = next,
            // SAFETY: rule O: the caller owns the page.
            page => unsafe { space.info(page).owned(|owned| owned.next = next) },
        }
    }

    /// # Safety
    ///
    /// The caller owns `page`, or it is `NONE`: then the list's tail is meant.
    unsafe fn set_prev(&mut self, space: &Space, page: u32, prev: u32) {
        match page {
            NONE => self.tail = prev,
            // SAFETY: rule O: the caller owns the page.
            page => unsafe { space.info(page).owned(|owned| owned.prev = prev) },
        }
    }
}

/// The granules on which the objects of one page start: every cell, in use or not. An iterator made of
/// one addition and one countdown.
#[derive(Clone, Debug)]
pub(crate) struct Starts {
    next: usize,
    step: usize,
    left: usize,
}

impl Iterator for Starts {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        let granule = self.next;
        self.left -= 1;
        self.next += self.step;
        Some(granule)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Starts {}

/// The range, its tables and the pool of pages.
pub(crate) struct Space {
    /// Freed memory under watch. First, so that it goes before the range does.
    freed: Option<Box<Freed>>,
    under: Under,
    stress: Stress,
    /// Both plain and constant: the range question must not load what anybody writes.
    base: usize,
    length: usize,
    range: Range,
    limit: usize,
    /// Pages ever handed out. Written under the pool's lock.
    high_water: AtomicUsize,
    /// For statistics; written under the pool's lock.
    in_use: AtomicUsize,
    committed: AtomicUsize,
    pool: Mutex<Pool>,
}

/// What the lock protects.
#[derive(Debug)]
struct Pool {
    /// Free runs below the high-water mark by first page: disjoint, no two adjacent.
    free: BTreeMap<u32, u32>,
    /// Free pages whose memory has not been given back.
    resident: BTreeSet<u32>,
    /// Pages of ended arenas, by class: no owner but this lock.
    abandoned: [PageList; CLASSES],
    /// Pages made accessible.
    committed: usize,
    in_use: usize,
    heap: HeapWord,
}

/// What the pool knows, for looking at a whole heap.
#[derive(Debug)]
pub(crate) struct PoolView {
    /// Free runs: first page and length, ascending.
    pub(crate) holes: Vec<(u32, u32)>,
    /// Abandoned pages, with their classes.
    pub(crate) abandoned: Vec<(u8, u32)>,
    /// How many pages are in use.
    pub(crate) in_use: usize,
    /// The word that the header of each page in use holds.
    pub(crate) heap: *const (),
}

/// The word at the start of each page.
#[derive(Clone, Copy, Debug)]
struct HeapWord(*const ());

// SAFETY: rule X: an opaque value to this module, never dereferenced here.
unsafe impl Send for HeapWord {}

// SAFETY: rules O and X: the raw parts are atomics, memory of cells (whose exclusion is the callers' contract), and
// owner-only data behind `unsafe` methods that name the owner.
unsafe impl Send for Space {}
// SAFETY: as above; everything else is behind the pool's lock.
unsafe impl Sync for Space {}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("base", &format_args!("{:#x}", self.base))
            .field("reserved", &self.reserved_bytes())
            .field("committed", &self.committed_bytes())
            .field("in_use", &self.in_use_bytes())
            .finish_non_exhaustive()
    }
}

/// The address ranges of all heaps of the process, sorted by base, with their lengths: what no heap can know of another, and what is
/// asked on two cold paths only. std's own lock, since a static must be made in a constant.
static RANGES: std::sync::RwLock<Vec<(usize, usize)>> = std::sync::RwLock::new(Vec::new());

/// Whether an address lies in any heap's range.
#[cold]
pub(crate) fn is_in_any_heap(addr: usize) -> bool {
    let ranges = RANGES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    steps::took(1 + ranges.len().checked_ilog2().unwrap_or(0) as usize);
    // They are disjoint: only the last that begins at the address or before can have it.
    let before = ranges.partition_point(|&(base, _)| base <= addr);
    ranges[..before].last().is_some_and(|&(base, length)| addr - base < length)
}

impl Drop for Space {
    fn drop(&mut self) {
        let mut ranges = RANGES.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        ranges.retain(|&(base, _)| base != self.base);
    }
}

impl Space {
    /// Reserves the range. Takes less when the system refuses, down to 64 MiB (or what was asked for, if
    /// that is less).
    pub(crate) fn reserve(config: SpaceConfig) -> Result<Self, ReserveError> {
        // Locked until the range is in the list: how many heaps there are decides how long it is.
        let mut ranges = RANGES.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let range = match config.reserve {
            Some(bytes) => Range::reserve(bytes)?,
            None => Range::reserve_some(ranges.len())?,
        };
        let (base, length) = (range.base.as_ptr().expose_provenance(), range.length);
        let known = ranges.try_reserve(1).map_err(|_| ReserveError { asked: length, code: ENOMEM });
        known?;
        let at = ranges.partition_point(|&(other, _)| other < base);
        ranges.insert(at, (base, length));
        drop(ranges);
        Ok(Self {
            freed: None,
            under: None,
            stress: Stress::none(),
            base,
            length,
            range,
            limit: config.limit.unwrap_or(usize::MAX) >> PAGE_SHIFT,
            high_water: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
            pool: Mutex::new(Pool {
                free: BTreeMap::new(),
                resident: BTreeSet::new(),
                abandoned: [const { PageList::EMPTY }; CLASSES],
                committed: 0,
                in_use: 0,
                heap: HeapWord(std::ptr::null()),
            }),
        })
    }

    /// Puts a space that nobody uses yet under stress. `name` tells what lay in a cell, for reports.
    pub(crate) fn put_under(&mut self, stress: Stress, under: Under, name: Option<Namer>) {
        self.freed = Freed::new(stress, name);
        self.under = under;
        self.stress = stress;
    }

    /// The stress modes that it is in.
    pub(crate) fn stress(&self) -> Stress {
        self.stress
    }

    /// Freed memory, if somebody watches it.
    #[inline]
    pub(crate) fn freed(&self) -> Option<&Freed> {
        self.freed.as_deref()
    }

    /// The memory of the cell or large object that starts at `start`.
    ///
    /// # Safety
    ///
    /// See there; its page has been handed out.
    pub(crate) unsafe fn memory(&self, start: NonNull<u8>) -> Cell {
        // SAFETY: as the caller says.
        Cell::of(unsafe { self.page_of(start.as_ptr().addr()) }.shape(), start)
    }

    /// Sets the word that the header of each page taken from now on holds.
    pub(crate) fn set_heap(&self, heap: *const ()) {
        self.pool.lock().heap = HeapWord(heap);
    }

    /// The heap word of the page that `addr` is on.
    ///
    /// # Safety
    ///
    /// `addr` is the start of a cell or large object in use, or of the first page of its run, of any space that still
    /// exists.
    #[inline]
    pub(crate) unsafe fn heap_of(addr: usize) -> *const () {
        let header = std::ptr::with_exposed_provenance::<*const ()>(addr & !(PAGE_SIZE - 1));
        // SAFETY: rule G: objects start on the first page of their run, which starts with the word; it was written
        // before the page's first cell was handed out and stays while one is in use.
        unsafe { *header }
    }

    /// Whether the address lies in this space's range. No load.
    #[inline(always)]
    pub(crate) fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.base) < self.length
    }

    /// The range's first address.
    #[inline(always)]
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Where the range begins.
    #[inline(always)]
    pub(crate) fn origin(&self) -> Origin {
        Origin(self.range.base)
    }

    /// The index of an address of this space in the tables of a byte a granule.
    #[inline(always)]
    pub(crate) fn granule(&self, addr: usize) -> usize {
        debug_assert!(self.contains(addr));
        (addr - self.base) >> GRANULE_SHIFT
    }

    /// The address of a granule.
    #[inline(always)]
    pub(crate) fn address(&self, granule: usize) -> usize {
        self.base + (granule << GRANULE_SHIFT)
    }

    /// The page that an address of this space is on.
    #[inline(always)]
    pub(crate) fn page_index(&self, addr: usize) -> usize {
        debug_assert!(self.contains(addr));
        (addr - self.base) >> PAGE_SHIFT
    }

    /// Pages ever handed out: all others are untouched, and have no table entries.
    ///
    /// Acquire, with the release store in `take`: the entries below the mark are accessible. Who got a
    /// page's address from anywhere is ordered behind that store and cannot read an older mark.
    #[inline]
    pub(crate) fn high_water(&self) -> usize {
        self.high_water.load(Ordering::Acquire)
    }

    /// One page's entry. Panics at and above the high-water mark.
    #[inline]
    pub(crate) fn page(&self, index: usize) -> &PageInfo {
        assert!(index < self.high_water(), "page {index} was never handed out");
        // SAFETY: rule G: below the mark.
        unsafe { self.range.info(index) }
    }

    /// The entry of the page that `addr` is on, unchecked.
    ///
    /// # Safety
    ///
    /// `addr` lies on a page that this space has handed out.
    #[inline(always)]
    pub(crate) unsafe fn page_of(&self, addr: usize) -> &PageInfo {
        debug_assert!(self.handed_out(self.page_index(addr)));
        // SAFETY: rule G: the page was handed out, so it is below the mark.
        unsafe { self.range.info(self.page_index(addr)) }
    }

    /// As `page`, unchecked.
    ///
    /// # Safety
    ///
    /// This space has handed the page out.
    #[inline(always)]
    pub(crate) unsafe fn info(&self, page: u32) -> &PageInfo {
        debug_assert!(self.handed_out(page as usize));
        // SAFETY: rule G: the page was handed out, so it is below the mark.
        unsafe { self.range.info(page as usize) }
    }

    /// For assertions. Under loom the tables check themselves, and each load here would be a branch of the
    /// model.
    fn handed_out(&self, page: usize) -> bool {
        cfg!(all(test, loom)) || page < self.high_water()
    }

    /// One byte a granule up to the high-water mark, 0 on free cells; the callers' own.
    #[inline]
    pub(crate) fn states(&self) -> &[AtomicU8] {
        // SAFETY: rule G: the entries below the mark are accessible.
        unsafe { self.range.states(self.high_water() * PAGE_GRANULES) }
    }

    /// One byte a granule up to the high-water mark, for collections; the callers' own.
    #[inline]
    pub(crate) fn counts(&self) -> &[AtomicU8] {
        // SAFETY: rule G: the entries below the mark are accessible.
        unsafe { self.range.counts(self.high_water() * PAGE_GRANULES) }
    }

    /// One granule's state byte, without looking at the high-water mark: for births and deaths.
    ///
    /// # Safety
    ///
    /// The granule lies on a page that this space has handed out.
    #[inline(always)]
    pub(crate) unsafe fn state(&self, granule: usize) -> &AtomicU8 {
        debug_assert!(self.handed_out(granule / PAGE_GRANULES));
        // SAFETY: rule G: the page was handed out, so its entries are accessible.
        unsafe { self.range.state(granule) }
    }

    /// The granules on which objects of a page start, in address order; none for a free or tail page.
    #[inline]
    pub(crate) fn starts(&self, page: usize) -> Starts {
        let shape = self.page(page).shape();
        let (step, left) = match shape.kind() {
            PageKind::Small => (shape.cell(), shape.cells()),
            PageKind::Large => (0, 1),
            PageKind::Free | PageKind::Tail => (0, 0),
        };
        Starts { next: page * PAGE_GRANULES + shape.first(), step, left }
    }

    /// Whether an object can start at an address.
    pub(crate) fn starts_at(&self, addr: usize) -> bool {
        let granule = self.granule(addr);
        let page = granule / PAGE_GRANULES;
        if !self.contains(addr) || !addr.is_multiple_of(GRANULE) || page >= self.high_water() {
            return false;
        }
        let shape = self.page(page).shape();
        let first = page * PAGE_GRANULES + shape.first();
        match shape.kind() {
            PageKind::Small => {
                granule >= first
                    && (granule - first).is_multiple_of(shape.cell())
                    && (granule - first) / shape.cell() < shape.cells()
            }
            PageKind::Large => granule == first,
            PageKind::Free | PageKind::Tail => false,
        }
    }

    /// A page's free bits.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and `f` does not come here again for it.
    #[inline]
    pub(crate) unsafe fn free_bits<R>(&self, page: u32, f: impl FnOnce(&mut FreeBits) -> R) -> R {
        debug_assert!(self.handed_out(page as usize));
        // SAFETY: rules G and O: the page was handed out, so its bits are accessible, and only the owner comes here.
        unsafe { self.range.bits(page as usize).with_mut(|bits| f(&mut *bits)) }
    }

    /// Bytes of the range for pages.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.length
    }

    /// Bytes of pages and tables made accessible. Relaxed, like `in_use_bytes`: a figure.
    pub(crate) fn committed_bytes(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    /// Bytes of pages in use.
    pub(crate) fn in_use_bytes(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) << PAGE_SHIFT
    }

    /// Whether pages are running short: three quarters of those there may be are in use.
    pub(crate) fn is_tight(&self) -> bool {
        let most = self.limit.min(self.length >> PAGE_SHIFT);
        self.in_use.load(Ordering::Relaxed) > most - most / 4
    }

    /// Frees a cell of a page of somebody else, from any thread. The last access is the exchange: from then
    /// on the page may be anybody's, or gone.
    ///
    /// # Safety
    ///
    /// `cell` is the start of a cell in use of a small page of this space, and the caller's to free.
    pub(crate) unsafe fn push_remote(&self, cell: NonNull<u8>) {
        let addr = cell.as_ptr().addr();
        // SAFETY: rule G: the cell lies on a page that was handed out.
        let page = unsafe { self.page_of(addr) };
        let slot = ((addr & (PAGE_SIZE - 1)) >> GRANULE_SHIFT) as u32;
        maybe_yield(&self.under, Step::RemoteFree);
        // A guess instead of a load: mostly right, and the line comes over once, for writing.
        let mut head = 0;
        loop {
            // SAFETY: rule O: the cell is dead and still ours, a granule long and aligned to one.
            unsafe { cell.cast::<u32>().write(head) };
            // Release: hands the link, and all this thread did with the cell, to whoever drains. Pushes by
            // others in between are read-modify-writes and keep the release sequence alive.
            // Relaxed on failure: the head is copied, never followed, so nothing behind it need be visible;
            // and popping takes all, so a head that left and came back is still the right link.
            match page.remote.compare_exchange_weak(
                head,
                slot,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Moves the remote stack of a page into its free bits.
    ///
    /// # Safety
    ///
    /// The caller owns the page.
    pub(crate) unsafe fn drain(&self, page: u32) {
        // SAFETY: rule G: an owned page was handed out.
        let info = unsafe { self.info(page) };
        if !info.has_remote() {
            return;
        }
        // Acquire: see `push_remote`.
        let mut slot = info.remote.swap(0, Ordering::Acquire) as usize;
        let start = self.page_start(page);
        // SAFETY: rule O: the caller owns the page; the chain is of dead cells of this page, now ours alone.
        unsafe {
            let mut drained = 0;
            self.free_bits(page, |bits| {
                while slot != 0 {
                    debug_assert!(
                        bits[slot / 64] & (1 << (slot % 64)) == 0,
                        "a cell was freed twice"
                    );
                    bits[slot / 64] |= 1 << (slot % 64);
                    let cell = start.add(slot * GRANULE);
                    slot = cell.cast::<u32>().read() as usize;
                    if let Some(freed) = self.freed() {
                        self.check_link(page, slot);
                        freed.unlinked(cell);
                    }
                    drained += 1;
                }
            });
            info.owned(|owned| owned.free += drained);
        }
    }

    /// Panics if a link of a page's remote stack leads to where no cell is.
    pub(crate) fn check_link(&self, page: u32, slot: usize) {
        let addr = self.address(page as usize * PAGE_GRANULES + slot);
        assert!(
            slot == 0 || (slot < PAGE_GRANULES && self.starts_at(addr)),
            "the link to the next freed cell of page {page} was written to after the cell was freed: it leads to granule {slot}"
        );
    }

    /// The cells on a page's remote stack, by granules of the page. For looking at a whole heap.
    ///
    /// # Safety
    ///
    /// The world is stopped, and nobody frees.
    pub(crate) unsafe fn remote_cells(&self, page: u32) -> Vec<usize> {
        // SAFETY: as the caller says: the page was handed out, and the stack stands still.
        unsafe {
            let mut slot = self.info(page).remote.load(Ordering::Acquire) as usize;
            let mut cells = Vec::new();
            while slot != 0 && cells.len() <= PAGE_GRANULES {
                self.check_link(page, slot);
                cells.push(slot);
                slot = self.page_start(page).add(slot * GRANULE).cast::<u32>().read() as usize;
            }
            cells
        }
    }

    /// What the pool knows now.
    pub(crate) fn pool(&self) -> PoolView {
        let pool = self.pool.lock();
        let mut abandoned = Vec::new();
        for (class, list) in pool.abandoned.iter().enumerate() {
            // SAFETY: rule O: the lock owns abandoned pages.
            unsafe { list.for_each(self, |page| abandoned.push((class as u8, page))) };
        }
        let holes = pool.free.iter().map(|(&start, &len)| (start, len)).collect();
        PoolView { holes, abandoned, in_use: pool.in_use, heap: pool.heap.0 }
    }

    /// A cell or large object has been freed: what comes back is to be free now. Itself, where nobody watches freed memory.
    ///
    /// # Safety
    ///
    /// As for `Arena::free`.
    #[inline]
    pub(crate) unsafe fn bury(&self, cell: NonNull<u8>) -> Option<NonNull<u8>> {
        match self.freed() {
            // SAFETY: as the caller says.
            Some(freed) => unsafe { freed.bury(self.memory(cell)) }.map(Cell::start),
            None => Some(cell),
        }
    }

    /// Ends the quarantine: its cells are free, as if strangers had freed them just now. Before the heap is given up as full.
    pub(crate) fn end_quarantine(&self) {
        for cell in self.freed().into_iter().flat_map(Freed::empty) {
            // SAFETY: rule O: a cell in quarantine is nobody's, on a page that is in use for its sake.
            unsafe { self.give_back(cell.start()) };
        }
    }

    /// Frees memory that nobody watches any longer, on a thread that does not own its page.
    ///
    /// # Safety
    ///
    /// As for `Arena::free`.
    #[inline]
    pub(crate) unsafe fn give_back(&self, cell: NonNull<u8>) {
        let addr = cell.as_ptr().addr();
        // SAFETY: as the caller says.
        unsafe {
            match self.page_of(addr).shape().kind() {
                PageKind::Large => {
                    if let Some(freed) = self.freed() {
                        // Its pages may go to the system: the last chance to look.
                        freed.check_out(self.memory(cell));
                    }
                    self.release(self.page_index(addr) as u32);
                }
                _ => self.push_remote(cell),
            }
        }
    }

    /// Finds a page of `shape` with a free cell for arena `id`: one of an ended arena, else a fresh one.
    /// It is on no list, and the caller owns it.
    pub(crate) fn acquire(&self, shape: Shape, id: u32) -> Result<u32, SpaceError> {
        maybe_yield(&self.under, Step::Adopt);
        let mut pool = self.pool.lock();
        if let Some(page) = self.adopt(&mut pool, shape.class()) {
            // SAFETY: rule O: ours by the lock.
            unsafe { self.info(page).set_arena(id) };
            return Ok(page);
        }
        let page = self.take(&mut pool, 1)?;
        // SAFETY: rule O: the page came out of the pool, so it is ours alone.
        unsafe {
            let info = self.info(page);
            self.free_bits(page, |bits| {
                *bits = [0; _];
                for n in 0..shape.cells() {
                    let granule = shape.first() + n * shape.cell();
                    bits[granule / 64] |= 1 << (granule % 64);
                }
            });
            info.owned(|owned| owned.free = shape.cells() as u32);
            info.set_arena(id);
            info.shape.store(shape.to_bits(), Ordering::Relaxed);
            if let Some(freed) = self.freed() {
                for granule in self.starts(page as usize) {
                    freed.fill(Cell::of(shape, self.cell(granule)));
                }
            }
        }
        Ok(page)
    }

    /// Looks through a few abandoned pages of a class for one with a free cell.
    fn adopt(&self, pool: &mut Pool, class: u8) -> Option<u32> {
        let list = pool.abandoned.get_mut(usize::from(class))?;
        for _ in 0..self.stress.shrink(LOOK).min(list.len()) {
            // SAFETY: rule O: the lock owns abandoned pages.
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

    /// Leaves the pages of an ending arena to whoever needs their class.
    ///
    /// # Safety
    ///
    /// The caller owns the pages, all of `class`, with no cell in a magazine, and gives them up.
    pub(crate) unsafe fn abandon(&self, class: u8, mut pages: PageList) {
        maybe_yield(&self.under, Step::Adopt);
        let mut pool = self.pool.lock();
        let class = usize::from(class);
        // SAFETY: rule O: the caller owns the pages, and the lock those on its list.
        unsafe {
            while let Some(page) = pages.pop_front(self) {
                self.info(page).set_arena(0);
                pool.abandoned[class].file(self, page);
            }
        }
    }

    /// Collects what was freed on abandoned pages and releases those that became empty.
    pub(crate) fn sweep_abandoned(&self) {
        let mut pool = self.pool.lock();
        for class in 0..pool.abandoned.len() {
            let mut pages = std::mem::replace(&mut pool.abandoned[class], PageList::EMPTY);
            // SAFETY: rule O: the lock owns abandoned pages.
            unsafe {
                while let Some(page) = pages.pop_front(self) {
                    self.drain(page);
                    let info = self.info(page);
                    if info.owned(|owned| owned.free as usize) == info.shape().cells() {
                        self.put(&mut pool, page, 1);
                    } else {
                        pool.abandoned[class].file(self, page);
                    }
                }
            }
        }
    }

    /// Takes a run of pages for one object of `size` bytes.
    pub(crate) fn acquire_large(
        &self,
        size: usize,
        align: usize,
    ) -> Result<NonNull<u8>, SpaceError> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(SpaceError::Alignment { align });
        }
        let mut pool = self.pool.lock();
        let shape = Shape::large(size, align).ok_or(SpaceError::Full {
            asked: size,
            in_use: self.in_use_bytes(),
            reserved: self.length,
        })?;
        let pages = shape.pages() as u32;
        let head = self.take(&mut pool, pages)?;
        // SAFETY: rule O: the pages came out of the pool; the offset is inside the first one.
        unsafe {
            for tail in head + 1..head + pages {
                self.info(tail).shape.store(Shape::TAIL.to_bits(), Ordering::Relaxed);
            }
            let info = self.info(head);
            info.young.store(1, Ordering::Relaxed);
            info.shape.store(shape.to_bits(), Ordering::Relaxed);
            Ok(self.page_start(head).add(shape.offset()))
        }
    }

    /// Releases an empty page, or the run of a dead large object, to the pool.
    ///
    /// # Safety
    ///
    /// The caller owns the page, which is on no list and has all its cells marked free, or the large object
    /// whose first page this is. The state bytes of its objects are 0.
    pub(crate) unsafe fn release(&self, page: u32) {
        // SAFETY: rule G: the caller owns the page, so it was handed out.
        let pages = unsafe { self.info(page) }.shape().pages() as u32;
        let mut pool = self.pool.lock();
        self.put(&mut pool, page, pages);
    }

    /// The memory at a granule, with leave to use all of its cell.
    ///
    /// # Safety
    ///
    /// The granule is inside the range.
    #[inline(always)]
    pub(crate) unsafe fn cell(&self, granule: usize) -> NonNull<u8> {
        // SAFETY: as the caller says.
        unsafe { self.origin().cell(granule) }
    }

    /// A page's first byte.
    fn page_start(&self, page: u32) -> NonNull<u8> {
        debug_assert!((page as usize) < self.length >> PAGE_SHIFT);
        // SAFETY: rule G: inside the range.
        unsafe { self.range.base.add((page as usize) << PAGE_SHIFT) }
    }

    /// Takes `pages` adjacent pages out of the pool, lowest address first, and writes the header.
    fn take(&self, pool: &mut MutexGuard<'_, Pool>, pages: u32) -> Result<u32, SpaceError> {
        let (count, asked) = (pages as usize, (pages as usize) << PAGE_SHIFT);
        if pool.in_use + count > self.limit {
            let (in_use, limit) = (pool.in_use << PAGE_SHIFT, self.limit << PAGE_SHIFT);
            return Err(SpaceError::Limit { asked, in_use, limit });
        }
        let hole =
            pool.free.iter().find(|&(_, &len)| len >= pages).map(|(&start, &len)| (start, len));
        let start = match hole {
            Some((start, len)) => {
                pool.free.remove(&start);
                if len > pages {
                    pool.free.insert(start + pages, len - pages);
                }
                start
            }
            None => {
                let mark = self.high_water();
                let last = pool.free.last_key_value().map(|(&start, &len)| (start, len));
                // A free run that reaches the mark is the beginning of the new one.
                let joined = last.filter(|&(start, len)| (start + len) as usize == mark);
                let start = joined.map_or(mark as u32, |(start, _)| start);
                let end = start as usize + count;
                if end > self.length >> PAGE_SHIFT {
                    let in_use = pool.in_use << PAGE_SHIFT;
                    return Err(SpaceError::Full { asked, in_use, reserved: self.length });
                }
                if end > pool.committed {
                    let (committed, bytes) = self
                        .range
                        .commit(pool.committed, end)
                        .map_err(|code| SpaceError::Refused { asked, code })?;
                    pool.committed = committed;
                    self.committed.store(bytes, Ordering::Relaxed);
                }
                if joined.is_some() {
                    pool.free.remove(&start);
                }
                // Release: see `high_water`.
                self.high_water.store(end, Ordering::Release);
                start
            }
        };
        if !pool.resident.is_empty() {
            let kept: Vec<u32> = pool.resident.range(start..start + pages).copied().collect();
            for page in kept {
                pool.resident.remove(&page);
            }
        }
        pool.in_use += count;
        self.in_use.store(pool.in_use, Ordering::Relaxed);
        // SAFETY: rules O and G: the page is accessible, nobody's, and its start is aligned for anything.
        unsafe { self.page_start(start).cast::<*const ()>().write(pool.heap.0) };
        Ok(start)
    }

    /// Puts pages back, joins them with free neighbours, and returns memory beyond the cache to the system.
    fn put(&self, pool: &mut MutexGuard<'_, Pool>, page: u32, pages: u32) {
        #[cfg(all(debug_assertions, not(all(test, loom))))]
        {
            let first = page as usize * PAGE_GRANULES;
            let states = &self.states()[first..first + PAGE_GRANULES];
            let clean = states.iter().all(|state| state.load(Ordering::Relaxed) == 0);
            debug_assert!(clean, "a page is released with an object's state on it");
            let info = self.page(page as usize);
            debug_assert!(!info.has_remote(), "a page is released with cells on its stack");
        }
        for free in page..page + pages {
            // SAFETY: rule G: the caller gives pages back that were handed out.
            let info = unsafe { self.info(free) };
            info.shape.store(Shape::FREE.to_bits(), Ordering::Relaxed);
            info.young.store(0, Ordering::Relaxed);
            info.arena.store(0, Ordering::Relaxed);
        }
        pool.in_use -= pages as usize;
        self.in_use.store(pool.in_use, Ordering::Relaxed);

        let (mut start, mut len) = (page, pages);
        if let Some((&before, &room)) = pool.free.range(..page).next_back()
            && before + room == page
        {
            (start, len) = (before, room + len);
        }
        if let Some(room) = pool.free.remove(&(page + pages)) {
            len += room;
        }
        pool.free.insert(start, len);

        let keep = self.stress.shrink(RESIDENT_PAGES).max(pool.in_use / 8);
        if pages as usize > keep {
            self.range.discard(page as usize, pages as usize);
        } else {
            pool.resident.extend(page..page + pages);
        }
        self.shrink(pool, keep);
    }

    /// Gives resident free pages back, highest first, until `keep` are left; a few more than needed, so that
    /// the next release does not come here again.
    fn shrink(&self, pool: &mut MutexGuard<'_, Pool>, keep: usize) {
        if pool.resident.len() <= keep {
            return;
        }
        let mut run = 0..0;
        while pool.resident.len() > keep - keep / 4 {
            let Some(page) = pool.resident.pop_last() else { break };
            let page = page as usize;
            if page + 1 == run.start {
                run.start = page;
            } else {
                self.range.discard(run.start, run.len());
                run = page..page + 1;
            }
        }
        self.range.discard(run.start, run.len());
    }
}

#[cfg(not(all(test, loom)))]
use mapped::Range;
#[cfg(all(test, loom))]
use modelled::Range;

/// The real range: one mapping without access, opened in chunks.
#[cfg(not(all(test, loom)))]
mod mapped {
    use std::io::Read as _;
    use std::ptr::NonNull;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::{FreeBits, GRANULE, PAGE_GRANULES, PAGE_SHIFT, PAGE_SIZE, PageInfo, ReserveError};
    use crate::base::sync::{AtomicU8, UnsafeCell};

    #[cfg(not(target_pointer_width = "64"))]
    compile_error!("a heap reserves its address range whole: 64-bit targets only");

    /// Grown by this much at a time: a huge page, so that chunks can be backed by one.
    const CHUNK: usize = 2 << 20;
    /// The least worth reserving: less than this and the system is out of address space.
    const FLOOR: usize = 64 << 20;
    /// The most reserved by default.
    const CEILING: usize = 64 << 30;
    /// A heap alone may have one of so many parts of the address space, and each further heap that part divided by the number of
    /// heaps.
    const PART: usize = 16;
    /// From this size on huge pages are asked for. They save 5 to 13 percent of a mark once the heap is far
    /// larger than what the second-level TLB reaches (some 8 MiB); below, rounding every hole up to 2 MiB
    /// costs more memory than that is worth.
    const HUGE_FROM: usize = 32 << 20;

    /// The collector's lists name objects by granules, as `u32`.
    const MAX_PAGES: usize = (1 << 32) / PAGE_GRANULES;

    pub(super) struct Range {
        mapping: NonNull<u8>,
        mapped: usize,
        pub(super) base: NonNull<u8>,
        pub(super) length: usize,
        states: NonNull<AtomicU8>,
        counts: NonNull<AtomicU8>,
        bits: NonNull<UnsafeCell<FreeBits>>,
        infos: NonNull<PageInfo>,
    }

    impl Range {
        /// Reserves what is worth it beside `heaps` others. Where the system refuses that, a limit is near: then half of what it
        /// would give is left to the program.
        pub(super) fn reserve_some(heaps: usize) -> Result<Self, ReserveError> {
            let length = default_length(heaps, addresses(), total_memory());
            let range = Self::reserve(length)?;
            if range.length == length || range.length == FLOOR {
                return Ok(range);
            }
            let half = range.length / 2;
            drop(range);
            Self::reserve(half.max(FLOOR))
        }

        /// Reserves so many bytes, or less when the system refuses.
        pub(super) fn reserve(bytes: usize) -> Result<Self, ReserveError> {
            let pages = bytes.div_ceil(PAGE_SIZE).clamp(1, MAX_PAGES);
            let mut length = pages << PAGE_SHIFT;
            let floor = FLOOR.min(length);
            loop {
                match Self::map(length) {
                    Ok(range) => return Ok(range),
                    Err(_) if length / 2 >= floor => {
                        length = (length / 2).next_multiple_of(PAGE_SIZE)
                    }
                    Err(code) => return Err(ReserveError { asked: length, code }),
                }
            }
        }

        fn map(length: usize) -> Result<Self, i32> {
            // Tables start on chunks, so that opening one never touches its neighbour.
            let after = |start: usize, bytes: usize| (start + bytes).next_multiple_of(CHUNK);
            let states = after(0, length);
            let counts = after(states, length / GRANULE);
            let bits = after(counts, length / GRANULE);
            let infos = after(bits, length / PAGE_SIZE * size_of::<FreeBits>());
            let end = after(infos, length / PAGE_SIZE * size_of::<PageInfo>());
            // One chunk more, to align the base.
            let mapped = end + CHUNK;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: rule B: a fresh mapping at an address of the system's choice.
            let mapping =
                unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::empty(), flags) };
            let mapping = mapping.map_err(|error| error.raw_os_error())?;
            let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(0)?;
            let base_offset = mapping.as_ptr().align_offset(CHUNK);
            // SAFETY: rule G: all offsets are inside the mapping, which has a chunk to spare.
            unsafe {
                let base = mapping.add(base_offset);
                Ok(Self {
                    mapping,
                    mapped,
                    base,
                    length,
                    states: base.add(states).cast(),
                    counts: base.add(counts).cast(),
                    bits: base.add(bits).cast(),
                    infos: base.add(infos).cast(),
                })
            }
        }

        /// Opens pages `from..` up to at least `to`, with their table entries. Returns how many pages are
        /// open now and how many bytes all that makes. On refusal nothing that anybody relies on has changed:
        /// a part may be open already, and is opened again the next time.
        pub(super) fn commit(&self, from: usize, to: usize) -> Result<(usize, usize), i32> {
            let to = to.next_multiple_of(CHUNK / PAGE_SIZE).min(self.length / PAGE_SIZE);
            let per_page = |bytes: usize| (from * bytes, to * bytes);
            let mut total = 0;
            let granules = PAGE_SIZE / GRANULE;
            let parts = [
                (self.base, per_page(PAGE_SIZE)),
                (self.states.cast(), per_page(granules)),
                (self.counts.cast(), per_page(granules)),
                (self.bits.cast(), per_page(size_of::<FreeBits>())),
                (self.infos.cast(), per_page(size_of::<PageInfo>())),
            ];
            let unit = rustix::param::page_size();
            for (start, (from, to)) in parts {
                // Outwards to the system's pages: opening an open one again is harmless.
                let (from, to) = (from / unit * unit, to.next_multiple_of(unit));
                let access = MprotectFlags::READ | MprotectFlags::WRITE;
                // SAFETY: rule G: inside the mapping (each part ends before the next chunk), and only ever opened.
                unsafe { mprotect(start.add(from).as_ptr().cast(), to - from, access) }
                    .map_err(|error| error.raw_os_error())?;
                total += to;
            }
            if (from * PAGE_SIZE) < HUGE_FROM && to * PAGE_SIZE >= HUGE_FROM {
                self.advise_huge();
            }
            Ok((to, total))
        }

        /// Once, for all that is still to come as well. A refusal costs speed only.
        fn advise_huge(&self) {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            {
                use rustix::mm::{Advice, madvise};
                let bytes = self.length / GRANULE;
                let parts = [
                    (self.base, self.length),
                    (self.states.cast(), bytes),
                    (self.counts.cast(), bytes),
                ];
                for (start, bytes) in parts {
                    #[expect(
                        clippy::let_underscore_must_use,
                        reason = "a refusal costs speed only"
                    )]
                    // SAFETY: rule G: inside the mapping; the advice changes no contents.
                    let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
                }
            }
        }

        /// Gives the memory of free pages back; they read as zero afterwards. A refusal costs memory only:
        /// nobody relies on the contents of a free page.
        #[expect(clippy::let_underscore_must_use, reason = "a refusal costs memory only")]
        pub(super) fn discard(&self, page: usize, pages: usize) {
            if pages == 0 {
                return;
            }
            // SAFETY: rules G and O: inside the range, on pages that are nobody's.
            unsafe {
                let start = self.base.add(page << PAGE_SHIFT).as_ptr().cast();
                #[cfg(any(target_os = "linux", target_os = "android"))]
                let _ = rustix::mm::madvise(
                    start,
                    pages << PAGE_SHIFT,
                    rustix::mm::Advice::LinuxDontNeed,
                );
                // Elsewhere that advice is only a hint; a new mapping in place is not.
                #[cfg(not(any(target_os = "linux", target_os = "android")))]
                let _ = mmap_anonymous(
                    start,
                    pages << PAGE_SHIFT,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                );
            }
        }

        /// # Safety
        ///
        /// The page is open. So for all below.
        #[inline(always)]
        pub(super) unsafe fn info(&self, page: usize) -> &PageInfo {
            // SAFETY: rule G: open; zeroed memory is a valid entry.
            unsafe { self.infos.add(page).as_ref() }
        }

        #[inline(always)]
        pub(super) unsafe fn bits(&self, page: usize) -> &UnsafeCell<FreeBits> {
            // SAFETY: rule G: open; any bytes are valid.
            unsafe { self.bits.add(page).as_ref() }
        }

        #[inline(always)]
        pub(super) unsafe fn state(&self, granule: usize) -> &AtomicU8 {
            // SAFETY: rule G: open; any bytes are valid.
            unsafe { self.states.add(granule).as_ref() }
        }

        #[inline(always)]
        pub(super) unsafe fn states(&self, granules: usize) -> &[AtomicU8] {
            // SAFETY: rule G: open up to there; any bytes are valid.
            unsafe { std::slice::from_raw_parts(self.states.as_ptr(), granules) }
        }

        #[inline(always)]
        pub(super) unsafe fn counts(&self, granules: usize) -> &[AtomicU8] {
            // SAFETY: rule G: open up to there; any bytes are valid.
            unsafe { std::slice::from_raw_parts(self.counts.as_ptr(), granules) }
        }
    }

    impl Drop for Range {
        fn drop(&mut self) {
            // SAFETY: rule V: ours, and nobody has a reference into the space any more.
            let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
            debug_assert!(unmapped.is_ok());
        }
    }

    /// Bytes that a heap reserves by default, beside `heaps` others: four times the machine's memory, 64 GiB at most; and no more than its
    /// part of the `addresses` that a process has, so that there is room for other heaps and for the program.
    ///
    /// Of the heaps that there are at any time the `k`th was made beside `k - 1` others, or more. So the parts of `n` heaps are no
    /// more than a sixteenth of the addresses times the sum of `1/k` for `k` up to `n`: less than half of the addresses for a thousand
    /// heaps, and less than two thirds for ten thousand.
    pub(super) fn default_length(heaps: usize, addresses: usize, memory: usize) -> usize {
        memory.saturating_mul(4).min(CEILING).min(addresses / PART / (heaps + 1)).max(FLOOR)
    }

    /// Bytes that a process can address. Linux puts stacks at the end of them; elsewhere they are as many as 64-bit systems have at
    /// least.
    fn addresses() -> usize {
        /// The fewest bits of an address: those of RISC-V's smallest address space, less the system's half.
        const FEWEST: u32 = 38;
        let here = 0u8;
        let bits = usize::BITS - (&raw const here).addr().leading_zeros();
        let linux = cfg!(any(target_os = "linux", target_os = "android"));
        1 << if linux { bits.max(FEWEST) } else { 47 }
    }

    /// Bytes of memory this machine has; a guess where the system does not say it in a file.
    fn total_memory() -> usize {
        let guess = CEILING / 4;
        // The line is the first one. A list for the whole file would take memory.
        let mut start = [0; 256];
        let read = std::fs::File::open("/proc/meminfo").and_then(|mut file| file.read(&mut start));
        let text = read.ok().and_then(|length| std::str::from_utf8(&start[..length]).ok());
        let Some(text) = text else { return guess };
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
        kib.map_or(guess, |kib| kib.saturating_mul(1024))
    }
}

/// The range under loom: a handful of pages, and tables of loom's own atomics, which no mapping can hold.
#[cfg(all(test, loom))]
mod modelled {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use super::{FreeBits, PAGE_GRANULES, PAGE_SIZE, PageInfo, ReserveError};
    use crate::base::sync::{AtomicU8, UnsafeCell};

    /// Pages when nothing else is asked for.
    const PAGES: usize = 6;

    pub(super) struct Range {
        pub(super) base: NonNull<u8>,
        pub(super) length: usize,
        states: Vec<AtomicU8>,
        counts: Vec<AtomicU8>,
        bits: Vec<UnsafeCell<FreeBits>>,
        infos: Vec<PageInfo>,
    }

    impl Range {
        fn layout(length: usize) -> Layout {
            Layout::from_size_align(length, PAGE_SIZE).expect("a small power of two")
        }

        pub(super) fn reserve_some(_: usize) -> Result<Self, ReserveError> {
            Self::reserve(PAGES * PAGE_SIZE)
        }

        pub(super) fn reserve(bytes: usize) -> Result<Self, ReserveError> {
            let pages = bytes.div_ceil(PAGE_SIZE).clamp(1, PAGES);
            let length = pages * PAGE_SIZE;
            // SAFETY: rule B: not empty.
            let base = NonNull::new(unsafe { alloc_zeroed(Self::layout(length)) });
            let bytes = || (0..pages * PAGE_GRANULES).map(|_| AtomicU8::new(0)).collect();
            Ok(Self {
                base: base.ok_or(ReserveError { asked: length, code: 0 })?,
                length,
                states: bytes(),
                counts: bytes(),
                bits: (0..pages).map(|_| UnsafeCell::new([0; _])).collect(),
                infos: (0..pages).map(|_| PageInfo::new()).collect(),
            })
        }

        pub(super) fn commit(&self, _from: usize, to: usize) -> Result<(usize, usize), i32> {
            Ok((to, to * PAGE_SIZE))
        }

        pub(super) fn discard(&self, _page: usize, _pages: usize) {}

        pub(super) unsafe fn info(&self, page: usize) -> &PageInfo {
            &self.infos[page]
        }

        pub(super) unsafe fn bits(&self, page: usize) -> &UnsafeCell<FreeBits> {
            &self.bits[page]
        }

        pub(super) unsafe fn state(&self, granule: usize) -> &AtomicU8 {
            &self.states[granule]
        }

        pub(super) unsafe fn states(&self, granules: usize) -> &[AtomicU8] {
            &self.states[..granules]
        }

        pub(super) unsafe fn counts(&self, granules: usize) -> &[AtomicU8] {
            &self.counts[..granules]
        }
    }

    impl Drop for Range {
        fn drop(&mut self) {
            // SAFETY: rule V: allocated with this layout.
            unsafe { dealloc(self.base.as_ptr(), Self::layout(self.length)) }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A page that can be read, and behind it one that is mapped without access.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn memory_without_access_is_not_readable() {
        use crate::base::system::is_readable;
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        let page = rustix::param::page_size();
        // SAFETY: rule B: a mapping of this test's own.
        let start = unsafe {
            let start =
                mmap_anonymous(std::ptr::null_mut(), 2 * page, ProtFlags::READ, MapFlags::PRIVATE);
            let start = start.expect("two pages");
            mprotect(start.byte_add(page), page, MprotectFlags::empty()).expect("no access");
            start
        };
        let (first, second) = (start.addr(), start.addr() + page);
        assert!(is_readable(first, page) && is_readable(second - 8, 8));
        assert!(!is_readable(second, 1) && !is_readable(second + page - 8, 8));
        assert!(!is_readable(second - 8, 16), "its end is not");
        // SAFETY: rule B: as above.
        unsafe { munmap(start, 2 * page) }.expect("to unmap");
        assert!(!is_readable(0, 8) && !is_readable(8, 8) && !is_readable(usize::MAX - 7, 8));
        let local = 7u64;
        assert!(is_readable(std::ptr::from_ref(&local).addr(), 8));
    }

    const CHUNK_PAGES: usize = (2 << 20) / PAGE_SIZE;

    fn space(reserve: usize, limit: usize) -> Space {
        Space::reserve(SpaceConfig { reserve: Some(reserve), limit: Some(limit) }).unwrap()
    }

    /// Resident bytes of part of this process, as the system counts them.
    #[cfg(target_os = "linux")]
    fn resident(start: usize, bytes: usize) -> usize {
        let unit = rustix::param::page_size();
        let mut map = vec![0u8; bytes / unit];
        // SAFETY: rule B: asks about a mapping of ours, one byte a page.
        let asked = unsafe {
            libc::mincore(
                std::ptr::with_exposed_provenance_mut(start),
                bytes,
                map.as_mut_ptr().cast(),
            )
        };
        assert_eq!(asked, 0);
        map.iter().filter(|&&byte| byte & 1 != 0).count() * unit
    }

    fn page_of(space: &Space, object: NonNull<u8>) -> u32 {
        space.page_index(object.as_ptr().addr()) as u32
    }

    #[test]
    fn addresses_map_to_granules_and_pages_and_back() {
        let space = space(64 * PAGE_SIZE, usize::MAX);
        assert_eq!(space.reserved_bytes(), 64 * PAGE_SIZE);
        assert_eq!(space.base() % PAGE_SIZE, 0);
        assert!(space.contains(space.base()) && space.contains(space.base() + 64 * PAGE_SIZE - 1));
        assert!(
            !space.contains(space.base() - 1) && !space.contains(space.base() + 64 * PAGE_SIZE)
        );
        assert!(!space.contains(0) && !space.contains(usize::MAX));
        for granule in [0, 1, PAGE_GRANULES - 1, PAGE_GRANULES, 64 * PAGE_GRANULES - 1] {
            let addr = space.address(granule);
            assert_eq!(space.granule(addr), granule);
            assert_eq!(space.granule(addr + GRANULE - 1), granule);
            assert_eq!(space.page_index(addr), granule / PAGE_GRANULES);
        }
    }

    #[test]
    fn the_default_reserve_is_large_and_costs_nothing() {
        let space = Space::reserve(SpaceConfig::default()).unwrap();
        assert!(space.reserved_bytes() >= 64 << 20);
        assert_eq!((space.committed_bytes(), space.in_use_bytes(), space.high_water()), (0, 0, 0));
        assert!(space.states().is_empty());
    }

    #[test]
    fn an_absurd_reserve_is_halved_and_a_refused_one_is_an_error() {
        // More than any address space has: pages are capped first, then halved.
        let space = space(usize::MAX, usize::MAX);
        assert!(space.reserved_bytes() < usize::MAX / 2);
        let error = ReserveError { asked: 7, code: 12 };
        assert!(error.to_string().starts_with("cannot reserve 7 bytes"));
    }

    #[test]
    fn headers_hold_the_heap_word() {
        let space = space(64 * PAGE_SIZE, usize::MAX);
        let word = std::ptr::without_provenance(0x1234_5678);
        space.set_heap(word);
        for (size, align) in [(1, 1), (3 * PAGE_SIZE, 64), (5, MAX_ALIGN), (PAGE_SIZE, 4096)] {
            let object = space.acquire_large(size, align).unwrap();
            assert_eq!(object.as_ptr().addr() % align, 0);
            // SAFETY: rule O: a large object in use; all its bytes are ours.
            unsafe {
                object.write_bytes(0xff, size);
                assert_eq!(Space::heap_of(object.as_ptr().addr()), word);
            }
            let page = space.page_index(object.as_ptr().addr());
            assert_eq!(
                space.starts(page).collect::<Vec<_>>(),
                [space.granule(object.as_ptr().addr())]
            );
        }
        let error = space.acquire_large(1, PAGE_SIZE).unwrap_err();
        assert_eq!(error, SpaceError::Alignment { align: PAGE_SIZE });
    }

    #[test]
    fn runs_coalesce_and_the_lowest_hole_is_reused() {
        let space = space(64 * PAGE_SIZE, usize::MAX);
        let take = |pages: usize| space.acquire_large(pages * PAGE_SIZE - PAGE_HEADER, 1).unwrap();
        // SAFETY: rule O: each is released once.
        let give = |object| unsafe { space.release(page_of(&space, object)) };
        let runs: Vec<_> = (0..6).map(|_| take(2)).collect();
        assert_eq!(space.high_water(), 12);
        assert_eq!(space.page(3).shape().kind(), PageKind::Tail);
        assert_eq!(space.starts(3).len(), 0);
        // Two holes of two pages, then the piece between them: one hole of six.
        give(runs[1]);
        give(runs[3]);
        assert_eq!(take(3), space_at(&space, 12));
        give(runs[2]);
        assert_eq!(space.pool.lock().free, BTreeMap::from([(2, 6)]));
        assert_eq!(take(1), space_at(&space, 2));
        assert_eq!(take(5), space_at(&space, 3));
        assert!(space.pool.lock().free.is_empty());
        // A hole that reaches the mark is the beginning of a larger run.
        give(space_at(&space, 12));
        assert_eq!(take(10), space_at(&space, 12));
        assert_eq!(space.high_water(), 22);
        for page in [0, 2, 3, 8, 10, 12] {
            give(space_at(&space, page));
        }
        assert_eq!(space.in_use_bytes(), 0);
        assert_eq!(space.pool.lock().free, BTreeMap::from([(0, 22)]));
        assert!((0..22).all(|page| space.page(page).shape() == Shape::FREE));
    }

    fn space_at(space: &Space, page: usize) -> NonNull<u8> {
        // SAFETY: rule G: inside the range.
        unsafe { space.cell(page * PAGE_GRANULES + PAGE_HEADER / GRANULE) }
    }

    #[test]
    fn the_limit_and_the_range_refuse_and_change_nothing() {
        let small = space(16 * PAGE_SIZE, 4 * PAGE_SIZE + 100);
        let object = small.acquire_large(3 * PAGE_SIZE, 1).unwrap();
        let error = small.acquire_large(1, 1).unwrap_err();
        let (asked, full) = (PAGE_SIZE, 4 * PAGE_SIZE);
        assert_eq!(error, SpaceError::Limit { asked, in_use: full, limit: full });
        assert!(error.to_string().contains("limit"));
        // SAFETY: rule O: released once.
        unsafe { small.release(page_of(&small, object)) };
        assert!(small.acquire_large(1, 1).is_ok());

        let tight = space(4 * PAGE_SIZE, usize::MAX);
        let first = tight.acquire_large(1, 1).unwrap();
        let second = tight.acquire_large(PAGE_SIZE, 1).unwrap();
        // SAFETY: rule O: released once.
        unsafe { tight.release(page_of(&tight, first)) };
        // One page is free on each side of the second object, and not two in a row.
        assert!(matches!(tight.acquire_large(PAGE_SIZE, 1), Err(SpaceError::Full { .. })));
        assert!(matches!(tight.acquire_large(usize::MAX, 1), Err(SpaceError::Full { .. })));
        assert_eq!((tight.in_use_bytes(), tight.high_water()), (2 * PAGE_SIZE, 3));
        assert_eq!(tight.page_index(second.as_ptr().addr()), 1);
        assert!(tight.acquire_large(1, 1).is_ok() && tight.acquire_large(1, 1).is_ok());
    }

    #[test]
    fn every_byte_is_accessible_across_chunks() {
        // Not a whole number of chunks, nor of table pages.
        let pages = 3 * CHUNK_PAGES + 5;
        let space = space(pages * PAGE_SIZE, usize::MAX);
        let mut committed = 0;
        for page in 0..pages {
            let object = space.acquire_large(PAGE_SIZE - PAGE_HEADER, 1).unwrap();
            assert_eq!(space.page_index(object.as_ptr().addr()), page);
            // SAFETY: rule O: all its bytes are ours.
            unsafe { object.write_bytes(1, PAGE_SIZE - PAGE_HEADER) };
            assert_eq!(space.states().len(), (page + 1) * PAGE_GRANULES);
            space.states()[(page + 1) * PAGE_GRANULES - 1].store(1, Ordering::Relaxed);
            space.counts()[(page + 1) * PAGE_GRANULES - 1].store(1, Ordering::Relaxed);
            // SAFETY: rule O: ours.
            unsafe { space.free_bits(page as u32, |bits| assert_eq!(*bits, [0; _])) };
            assert!(space.committed_bytes() >= committed);
            committed = space.committed_bytes();
        }
        assert!(committed >= pages * PAGE_SIZE);
        assert!(matches!(space.acquire_large(1, 1), Err(SpaceError::Full { .. })));
        // One run over all chunks at once.
        let space = self::space(pages * PAGE_SIZE, usize::MAX);
        let bytes = pages * PAGE_SIZE - PAGE_HEADER;
        // SAFETY: rule O: all its bytes are ours.
        unsafe { space.acquire_large(bytes, 1).unwrap().write_bytes(1, bytes) };
        assert!(space.states().iter().all(|state| state.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn pages_beyond_the_huge_threshold_work_like_others() {
        let space = space(96 << 20, usize::MAX);
        let objects: Vec<_> = (0..(80 << 20) / PAGE_SIZE)
            .map(|_| {
                let object = space.acquire_large(100, 1).unwrap();
                // SAFETY: rule O: ours.
                unsafe { object.write(1) };
                object
            })
            .collect();
        for object in objects {
            // SAFETY: rule O: released once.
            unsafe { space.release(page_of(&space, object)) };
        }
        assert_eq!(space.in_use_bytes(), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn released_memory_goes_back_to_the_system() {
        let space = space(64 << 20, usize::MAX);
        let bytes = 16 << 20;
        let take = || space.acquire_large(PAGE_SIZE - PAGE_HEADER, 1).unwrap();
        for _ in 0..2 {
            let objects: Vec<_> = (0..bytes / PAGE_SIZE).map(|_| take()).collect();
            for object in &objects {
                // SAFETY: rule O: all its bytes are ours.
                unsafe { object.write_bytes(1, PAGE_SIZE - PAGE_HEADER) };
            }
            assert_eq!(resident(space.base(), bytes), bytes);
            for object in objects {
                // SAFETY: rule O: released once.
                unsafe { space.release(page_of(&space, object)) };
            }
            assert_eq!(space.in_use_bytes(), 0);
            assert!(resident(space.base(), bytes) <= RESIDENT_PAGES * PAGE_SIZE);
        }
        // A run that is larger than the cache goes at once.
        let object = space.acquire_large(bytes - PAGE_HEADER, 1).unwrap();
        // SAFETY: rule O: all its bytes are ours; released once.
        unsafe {
            object.write_bytes(1, bytes - PAGE_HEADER);
            assert_eq!(resident(space.base(), bytes), bytes);
            space.release(page_of(&space, object));
        }
        assert!(resident(space.base(), bytes) <= RESIDENT_PAGES * PAGE_SIZE);
    }

    #[test]
    fn a_refusing_system_is_a_clean_error() {
        // What is mapped from a file opened for reading cannot be made writable.
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let space = space(4 * PAGE_SIZE, usize::MAX);
        // SAFETY: rule O: replaces part of the space's mapping, which nobody uses yet.
        unsafe {
            use rustix::mm::{MapFlags, ProtFlags, mmap};
            let start = space.range.base.as_ptr().cast();
            mmap(start, PAGE_SIZE, ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED, file, 0)
                .unwrap();
        }
        let error = space.acquire_large(1, 1).unwrap_err();
        assert!(matches!(error, SpaceError::Refused { asked: PAGE_SIZE, .. }), "{error}");
        assert!(error.to_string().contains("refuses"));
        assert_eq!((space.in_use_bytes(), space.high_water(), space.committed_bytes()), (0, 0, 0));
    }
}
