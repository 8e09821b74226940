//! The arguments with which a model lists its objects.
//!
//! A runtime with an allocator of its own knows where its objects are, so a stop asks it instead of
//! a heap that was told of each birth. For example, a page has room for 100 blocks of 640 bytes, of
//! which all but two have an object. The model adds all 98 in one call
//! ([`ObjectList::add_blocks`]), with two bits for the free blocks, while no other worker lists
//! objects on that page. The page of `collect/listing.rs` has the design.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use crate::base::sync::{AtomicU8, Ordering};
use crate::heap::mark_tables::{PAGE_WORDS, WORD, each_bit};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::memory::segments::{AdoptError, Directory, HALF, Segments};
use crate::memory::shape::{GRANULE, PAGE_SIZE};
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::state::{self, LIVE, StateByte, TRACKED, UNREACHABLE};

/// The memory of a heap whose model lists its objects, as
/// [`Lists::list_parts`](crate::model::Lists::list_parts) receives it.
pub struct ListedMemory<'a> {
    space: &'a Space<Segments>,
    /// The only granules that are listed in this stop, in the order of memory.
    wanted: Option<&'a [u32]>,
}

impl<'a> ListedMemory<'a> {
    pub(crate) fn new(space: &'a Space<Segments>, wanted: Option<&'a [u32]>) -> Self {
        Self { space, wanted }
    }

    /// Whether this stop asks about few objects, so that a list of the [wanted](Self::wants) memory
    /// is enough. The heap leaves out all other objects there. So does a stop that proves what a
    /// [child process](crate::Collect::forked) proposes.
    pub fn is_partial(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether the objects that start in these bytes must be listed in this stop.
    pub fn wants(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let Some(wanted) = self.wanted else { return true };
        let (start, end) = (start.addr().get(), start.addr().get().saturating_add(bytes));
        let pages = start / PAGE_SIZE..end.div_ceil(PAGE_SIZE);
        pages.into_iter().any(|page| {
            let at = page * PAGE_SIZE;
            if !self.space.contains(at) {
                return false;
            }
            let first = self.space.granule(at);
            let offset = |address: usize| address.clamp(at, at + PAGE_SIZE) - at;
            let (from, to) = (offset(start) / GRANULE, offset(end).div_ceil(GRANULE));
            let (from, to) = (first + from, first + to);
            let next = wanted.partition_point(|&granule| (granule as usize) < from);
            wanted.get(next).is_some_and(|&granule| (granule as usize) < to)
        })
    }

    /// Whether the heap has adopted the memory at an address.
    pub fn is_adopted(&self, address: usize) -> bool {
        self.space.contains(address)
    }

    /// Adopts memory in a stop, as [`ModelMutator::adopt`](crate::model::ModelMutator::adopt) does.
    ///
    /// Several heaps may adopt the same memory in this way, because a heap knows listed objects
    /// only during its own collections. So a program can replace its heap.
    ///
    /// # Errors
    ///
    /// Those of `ModelMutator::adopt`.
    ///
    /// # Safety
    ///
    /// An object is listed in this memory only while its part of the memory is readable. (The heap
    /// reads only the memory of objects, so if the runtime unmaps the memory and maps it again, it
    /// stays adopted.)
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

/// The list of the objects of one stop, as [`Lists::list`](crate::model::Lists::list) receives it.
pub struct ObjectList<'a> {
    directory: Directory,
    states: &'a [AtomicU8],
    /// The page of the last object, as its address by [`PAGE_SIZE`] and its first granule. Before
    /// the first object it is no page.
    page: (usize, usize),
    /// Where the blocks of the last page start, as the next page mostly has blocks of the same
    /// size.
    pattern: Pattern,
    /// Only objects with the state [`WANTED`] are listed.
    is_partial: bool,
}

/// Blocks of one size on a page of the runtime's allocator, for [`ObjectList::add_blocks`].
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// The object of the first block.
    pub first: Object,
    /// Bytes from the object of a block to the object of the next one, which are a multiple of 16,
    /// and at least 32. Without meaning for a single block.
    pub size: usize,
    /// The number of blocks, including free ones.
    pub count: usize,
    /// The free blocks, where bit `i % 64` of word `i / 64` is set if block `i` has no object. A
    /// block whose word is missing is in use.
    pub free: &'a [u64],
}

struct Pattern {
    /// Bytes from the start of the page to the first object.
    offset: usize,
    size: usize,
    count: usize,
    /// One bit for each granule, where an object starts in its first, or in its second half.
    starts: [[u64; PAGE_WORDS]; 2],
}

impl Pattern {
    fn new(offset: usize, size: usize, count: usize) -> Self {
        let mut starts = [[0; PAGE_WORDS]; 2];
        for number in 0..count {
            let (half, word, bit) = place(offset + number * size);
            starts[half][word] |= bit;
        }
        Self { offset, size, count, starts }
    }
}

/// The state of a granule whose object is to be listed in a partial list. No candidate has it.
pub(crate) const WANTED: u8 = LIVE;

/// Makes an object a listed one. Returns `false` if it was one, and is no member.
#[inline(always)]
fn list(state: &AtomicU8, is_partial: bool) -> bool {
    // Relaxed, and a load and a store, because only this worker writes the byte, and the end of the
    // job orders it before its readers.
    let before = state.load(Ordering::Relaxed);
    if is_partial {
        if before == WANTED {
            state.store(LIVE | TRACKED, Ordering::Relaxed);
        }
        return true;
    }
    state.store(before | LIVE | TRACKED, Ordering::Relaxed);
    before & (LIVE | UNREACHABLE) != LIVE
}

/// The half of a granule, the word, and the bit, for an object at `offset` of a page.
#[inline(always)]
fn place(offset: usize) -> (usize, usize, u64) {
    let granule = offset / GRANULE;
    (offset / HALF % 2, granule / WORD, 1 << (granule % WORD))
}

impl<'a> ObjectList<'a> {
    pub(crate) fn new(space: &'a Space<Segments>, is_partial: bool) -> Self {
        Self {
            is_partial,
            directory: space.origin(),
            states: space.states(),
            page: (usize::MAX, 0),
            pattern: Pattern::new(0, 0, 0),
        }
    }

    /// Adds an object to the list of this stop.
    ///
    /// # Panics
    ///
    /// If the heap has not adopted the memory at this address, if the address is not a multiple of
    /// 16, or if the object was listed before. The collection is then abandoned.
    ///
    /// # Safety
    ///
    /// The object is alive, so that the model can count and traverse it in this stop, and takes at
    /// least 32 bytes. No other part lists objects in the same aligned page of 64 KiB. No traversal
    /// reports another address in the aligned 32 bytes in which the object starts.
    #[inline(always)]
    pub unsafe fn add(&mut self, object: Object) {
        let address = object.address();
        self.enter(address);
        let granule = self.page.1 + address % PAGE_SIZE / GRANULE;
        self.directory.set_half_alone(granule, address);
        if !list(&self.states[granule], self.is_partial) {
            self.refuse_second(granule);
        }
    }

    /// Adds the objects of all blocks that are not free, which takes less time than to add each.
    ///
    /// # Panics
    ///
    /// Like [`add`](Self::add), and if there are several blocks whose size is not a multiple of 16,
    /// or below 32.
    ///
    /// # Safety
    ///
    /// That of [`add`](Self::add) for each object.
    pub unsafe fn add_blocks(&mut self, blocks: Blocks<'_>) {
        let Blocks { first, size, count, free } = blocks;
        if count > 1 && (size % HALF != 0 || size < GRANULE) {
            refuse(first.address(), &format!("with a block size of {size} bytes"));
        }
        let mut from = 0;
        while from < count {
            let address = first.address() + from * size;
            let room = (PAGE_SIZE - address % PAGE_SIZE).div_ceil(size.max(1));
            let to = count.min(from + room);
            self.enter(address);
            self.add_on_page(address % PAGE_SIZE, size, from..to, free);
            from = to;
        }
    }

    /// Adds the blocks with the numbers `range`, without the free ones. All are on the page of the
    /// last object, the first one at `offset`.
    fn add_on_page(&mut self, offset: usize, size: usize, range: Range<usize>, free: &[u64]) {
        let key = (offset, size, range.len());
        if key != (self.pattern.offset, self.pattern.size, self.pattern.count) {
            self.pattern = Pattern::new(offset, size, range.len());
        }
        let [mut first, mut second] = self.pattern.starts;
        let bits = u64::BITS as usize;
        let words = free.iter().enumerate().take(range.end.div_ceil(bits));
        for (at, &word) in words.skip(range.start / bits) {
            each_bit(at * bits, word, |number| {
                if range.contains(&number) {
                    let (_, word, bit) = place(offset + (number - range.start) * size);
                    first[word] &= !bit;
                    second[word] &= !bit;
                }
            });
        }
        for (word, (&first, &second)) in first.iter().zip(&second).enumerate() {
            let granule = self.page.1 + word * WORD;
            if first | second != 0 {
                self.directory.set_halves_alone(granule, first, second);
                let states: &[AtomicU8] = &self.states[granule..][..WORD];
                each_bit(0, first | second, |at| {
                    if !list(&states[at % WORD], self.is_partial) {
                        self.refuse_second(granule + at);
                    }
                });
            }
        }
    }

    #[cold]
    fn refuse_second(&self, granule: usize) -> ! {
        refuse(self.directory.place(granule).addr().get(), "where one was listed before")
    }

    /// Finds the page of an object's address, if it is not that of the last one.
    #[inline(always)]
    fn enter(&mut self, address: usize) {
        if address / PAGE_SIZE != self.page.0 {
            self.find(address);
        }
        if !address.is_multiple_of(HALF) {
            refuse(address, "which is not a multiple of 16");
        }
    }

    #[inline(never)]
    fn find(&mut self, address: usize) {
        let start = address / PAGE_SIZE * PAGE_SIZE;
        let granule = self.directory.find(start);
        if !self.directory.is_adopted(granule) {
            refuse(address, "which is not in adopted memory");
        }
        self.page = (address / PAGE_SIZE, granule);
    }
}

impl fmt::Debug for ObjectList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectList").finish_non_exhaustive()
    }
}

#[cold]
#[inline(never)]
fn refuse(address: usize, reason: &str) -> ! {
    panic!("an object was listed at {address:#x}, {reason}")
}

impl<M: ObjectModel<Addresses = Segments>> ModelMutator<M> {
    /// Adopts `bytes` bytes of memory from `start` on, so that objects in it can be
    /// [registered](Self::register) from now on. Both numbers are multiples of 64 KiB.
    ///
    /// The heap never frees this memory, and accesses it only through the model. The memory stays
    /// adopted until the heap ends. It counts against the bytes of
    /// [`HeapBuilder::reserve`](crate::HeapBuilder::reserve), because it has entries in the heap's
    /// tables, which take 4.3 KiB for each 64 KiB.
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
    /// The heap finds an object by the aligned 32 bytes in which it starts. The collector would
    /// take any address in these 32 bytes for the object. So no traversal reports another one
    /// there, for example that of something small right in front of the object.
    ///
    /// From now on the object may be passed to each method that takes an object of this heap,
    /// except [`free`](Self::free) and
    /// [`free_from_anywhere`](crate::model::ModelHeap::free_from_anywhere). When its count reaches
    /// 0, the model [unregisters](Self::unregister) it, or declares it [dead](Self::dead), and
    /// gives the memory back in its own way. The statistics and the pacing of the heap count it as
    /// an object of 32 bytes.
    ///
    /// # Errors
    ///
    /// [`AdoptError::Misplaced`], [`AdoptError::NotAdopted`] and [`AdoptError::Registered`]. Then
    /// nothing has changed.
    ///
    /// # Panics
    ///
    /// If the model [lists its objects](crate::model::Lists).
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

    /// Removes a registered object from this heap, so that the memory is the runtime's again.
    ///
    /// # Panics
    ///
    /// If no object is registered there, or the model [lists its objects](crate::model::Lists).
    ///
    /// # Safety
    ///
    /// No reference to the object exists, such as the one that a collection holds to each object
    /// that it has found unreachable.
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
