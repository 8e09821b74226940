//! The pages and objects of a phase, and how workers share them.
//!
//! A collection works on the pages in use, and on the candidates on them: a [`Scope`].
//!
//! Each phase *shares* its pages: workers take them in chunks of up to four, until none is left. In
//! a collection of fewer than `serial_below` cells, parked mutators help the collecting thread.
//! Each begins with its own pages, because its objects are in the caches of its processor, and then
//! takes others. For example, worker 1 owns pages A and B, and worker 2 owns C, which it finishes
//! first. So it takes B next.

use std::cmp::Reverse;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicU8, AtomicUsize, Ordering};
use crate::heap::helpers::Worker;
use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::memory::address_map::{AddressMap, Index};
use crate::memory::shape::{PAGE_GRANULES, PageKind};
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::live::{ClaimRef, Stopped};
use crate::object::state::{self, StateByte};
use crate::report::facts::CollectionKind;

/// The most pages that a worker takes at a time.
const CHUNK: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All that take part, in a full collection.
    Full,
    /// All tracked ones, also frozen and claimed ones, in a survey.
    All,
    /// The new ones, in a young collection.
    Young,
    /// Of the recheck, and of a search from legacy finalizers: the claimed ones, so that their
    /// counts include the claim's reference.
    Claimed,
    /// Those that [a child has proposed](super::proposal), which have the bits of claimed ones
    /// during the search.
    Proposed,
}

impl Selection {
    /// A mask and the value that a candidate has in its bits.
    #[inline(always)]
    pub(crate) const fn bits(self) -> (u8, u8) {
        match self {
            Self::Full => (state::FULL, state::TRACKED),
            Self::All => (state::TRACKED | state::DYING, state::TRACKED),
            Self::Young => (state::YOUNG, state::TRACKED),
            Self::Claimed | Self::Proposed => (state::CLAIMED, state::CLAIMED),
        }
    }
}

/// The pages of a search for garbage, and the condition for candidates on them.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) selection: Selection,
    pages: WorkList<u32>,
}

impl Scope {
    /// The pages in use, of which a young collection needs only those on which something may be
    /// new.
    pub(crate) fn new(
        space: &Space<impl AddressMap>,
        kind: CollectionKind,
    ) -> Result<Self, NoMemory> {
        let mut pages = Vec::new();
        pages.try_reserve_exact(space.high_water())?;
        steps::took(space.high_water());
        let in_use = (0..space.high_water()).filter(|&index| {
            let page = space.page(index);
            // The entry of unknown addresses has no candidates. It is included because counting
            // writes there, so that a later phase wipes it.
            let is_unknown = index == 0 && kind == CollectionKind::Full;
            match page.shape().kind() {
                // Relaxed: in a stop.
                PageKind::Small | PageKind::Large | PageKind::Foreign => {
                    kind == CollectionKind::Full || page.young.load(Ordering::Relaxed) != 0
                }
                PageKind::Nowhere => is_unknown,
                PageKind::Free | PageKind::Tail => false,
            }
        });
        pages.extend(in_use.map(|index| index as u32));
        let selection = match kind {
            CollectionKind::Full => Selection::Full,
            CollectionKind::Young => Selection::Young,
        };
        Ok(Self { selection, pages: WorkList::new(pages)? })
    }

    /// All pages in use, for a survey.
    pub(crate) fn all(space: &Space<impl AddressMap>) -> Result<Self, NoMemory> {
        let Self { pages, .. } = Self::new(space, CollectionKind::Full)?;
        Ok(Self { selection: Selection::All, pages })
    }

    /// The pages of some objects, which are in the order of memory.
    fn of(selection: Selection, in_order: impl Iterator<Item = usize>) -> Result<Self, NoMemory> {
        let mut pages = Vec::new();
        for page in in_order.map(|page| page as u32) {
            steps::took(1);
            if pages.last() != Some(&page) {
                fallible::push(&mut pages, page)?;
            }
        }
        Ok(Self { selection, pages: WorkList::new(pages)? })
    }

    /// The claimed objects, which are in the order of memory.
    pub(crate) fn of_claimed(
        space: &Space<impl AddressMap>,
        objects: &[ClaimRef],
    ) -> Result<Self, NoMemory> {
        let page = |claim: &ClaimRef| space.page_index(claim.object().address());
        Self::of(Selection::Claimed, objects.iter().map(page))
    }

    /// The proposed objects at these granules, which are in order.
    pub(super) fn of_proposed(granules: &[u32]) -> Result<Self, NoMemory> {
        let page = |&granule: &u32| granule as usize / PAGE_GRANULES;
        Self::of(Selection::Proposed, granules.iter().map(page))
    }

    /// Whether an object in this state is a candidate.
    #[inline(always)]
    pub(crate) fn contains(&self, state: u8) -> bool {
        let (mask, value) = self.selection.bits();
        state & mask == value
    }

    /// An upper bound of the number of candidates, by which the number of workers is planned.
    pub(crate) fn cells(&self, space: &Space<impl AddressMap>) -> usize {
        self.pages().iter().map(|&p| space.starts(p as usize).len()).sum()
    }

    pub(crate) fn pages(&self) -> &[u32] {
        self.pages.items()
    }

    /// Has the pages handed out first to the threads that they belong to.
    pub(crate) fn sort_by_home(&mut self, space: &Space<impl AddressMap>) -> Result<(), NoMemory> {
        let pages = std::mem::replace(&mut self.pages, WorkList::new(Vec::new())?).into_items();
        self.pages =
            WorkList::by_arena(pages, |&page| space.page(page as usize).arena(), |&page| page)?;
        Ok(())
    }

    /// Hands the pages out to workers, a few at a time.
    pub(crate) fn share(&self, workers: usize) -> WorkCursor<'_, u32> {
        self.pages.share((self.pages().len() / (4 * workers)).clamp(1, CHUNK))
    }
}

/// The table entries that a phase may write for a page, which are all of them or a large object's
/// one.
pub(crate) fn granules_of(
    space: &Space<impl AddressMap>,
    page: u32,
) -> Option<std::ops::Range<usize>> {
    let start = page as usize * PAGE_GRANULES;
    match space.page(page as usize).shape().kind() {
        PageKind::Small | PageKind::Foreign | PageKind::Nowhere => {
            Some(start..start + PAGE_GRANULES)
        }
        PageKind::Large => space.starts(page as usize).next().map(|g| g..g + 1),
        _ => None,
    }
}

/// The object that starts at a granule, if one does.
pub(crate) fn stopped_at<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    granule: usize,
) -> Option<Stopped<'w>> {
    let space = &world.core().space;
    let state = StateByte(space.states().get(granule)?).get();
    // SAFETY: rule *stopped*: the state says that an object is alive there.
    (state & state::LIVE != 0).then(|| unsafe { Stopped::new(object_at(space, granule)) })
}

/// An object with a reference of the collection, which nothing releases before the stop ends.
pub(crate) fn claimed<'w, M: ObjectModel>(
    _: &'w World<'_, M>,
    reference: &ClaimRef,
) -> Stopped<'w> {
    // SAFETY: rules *counted* and *stopped*: the reference keeps the object alive, and the world is
    // stopped.
    unsafe { Stopped::new(reference.object()) }
}

/// The state of an object of this heap, which may have died.
#[inline(always)]
pub(crate) fn state_of(space: &Space<impl AddressMap>, object: Object) -> StateByte<'_> {
    StateByte(&space.states()[space.granule(object.address())])
}

/// The address at which an object starts that a granule is the first of.
#[inline(always)]
pub(crate) fn object_at(space: &Space<impl AddressMap>, granule: usize) -> Object {
    debug_assert!(granule < space.high_water() * PAGE_GRANULES);
    object_from(space.origin(), granule)
}

#[inline(always)]
pub(crate) fn object_from(origin: impl Index, granule: usize) -> Object {
    // SAFETY: rule *mapped*: granules come from `Space::starts`, from states that are not 0, and
    // from edges, which were checked against the range.
    Object::new(unsafe { origin.cell(granule) })
}

/// The objects at the granules of a word whose bits are set, which begins at `first`.
#[inline(always)]
pub(crate) fn objects_of(
    origin: impl Index,
    (first, mut bits): (usize, u64),
) -> impl ExactSizeIterator<Item = Object> {
    // SAFETY: rule *mapped*: as in `object_from`. A word has granules of one page.
    let cell = unsafe { origin.cells(first) };
    // The exact size lets a list that is extended by these compare its length with its capacity
    // once.
    (0..bits.count_ones()).map(move |_| {
        let at = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        Object::new(cell(at))
    })
}

/// Calls `f` with each object that an enumeration may show.
pub(crate) fn visible<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    mut f: impl FnMut(Stopped<'w>, StateByte<'_>),
) {
    live(world, |object, state| {
        if state::is_visible(state.get()) {
            f(object, state);
        }
    });
}

/// Calls `f` with each object, even if an enumeration must not show it.
pub(crate) fn live<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    mut f: impl FnMut(Stopped<'w>, StateByte<'_>),
) {
    let space = &world.core().space;
    let states = space.states();
    for page in 0..space.high_water() {
        for granule in space.objects(page) {
            if let Some(object) = stopped_at(world, granule) {
                f(object, StateByte(&states[granule]));
            }
        }
    }
}

/// Pieces of work by the arena that they belong to.
#[derive(Debug)]
pub(crate) struct WorkList<T> {
    items: Vec<T>,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    arena: u32,
    end: usize,
    /// The first item that no thread has taken.
    next: AtomicUsize,
    start: usize,
}

impl<T> WorkList<T> {
    /// A list whose items belong to no arena, so that each worker takes them from the same group.
    pub(crate) fn new(items: Vec<T>) -> Result<Self, NoMemory> {
        Self::grouped(items, |_| 0)
    }

    /// A list of items with the numbers of their arenas, or 0. The items are sorted by arena, and
    /// within an arena by `place`.
    pub(crate) fn by_arena<K: Ord>(
        mut items: Vec<T>,
        arena: impl Fn(&T) -> u32,
        place: impl Fn(&T) -> K,
    ) -> Result<Self, NoMemory> {
        // Unstable, because the stable sort allocates. Arena 0 comes last.
        items.sort_unstable_by_key(|item| (Reverse(arena(item)), place(item)));
        Self::grouped(items, arena)
    }

    fn grouped(items: Vec<T>, arena: impl Fn(&T) -> u32) -> Result<Self, NoMemory> {
        let mut groups: Vec<Group> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let arena = arena(item);
            match groups.last_mut() {
                Some(group) if group.arena == arena => group.end = at + 1,
                _ => {
                    let group = Group { arena, end: at + 1, next: AtomicUsize::new(at), start: at };
                    fallible::push(&mut groups, group)?;
                }
            }
        }
        Ok(Self { items, groups })
    }

    pub(crate) fn into_items(self) -> Vec<T> {
        self.items
    }

    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// Distributes all items again, at most `chunk` at a time. Only one phase at a time does so.
    pub(crate) fn share(&self, chunk: usize) -> WorkCursor<'_, T> {
        // Relaxed, here and below: the numbers must only be unique, because the start of the worker
        // threads orders the accesses to the items.
        self.groups.iter().for_each(|group| group.next.store(group.start, Ordering::Relaxed));
        WorkCursor { list: self, chunk }
    }
}

#[derive(Debug)]
pub(crate) struct WorkCursor<'a, T> {
    list: &'a WorkList<T>,
    chunk: usize,
}

impl<'a, T> WorkCursor<'a, T> {
    /// The chunks of one thread, first from its own items and then from others', until all are
    /// taken.
    pub(crate) fn of(&self, worker: Worker) -> WorkChunks<'a, T> {
        let groups = &self.list.groups;
        steps::took(groups.len());
        let own =
            groups.iter().position(|group| group.arena == worker.arena).unwrap_or(worker.index);
        WorkChunks { list: self.list, chunk: self.chunk, group: own, left: groups.len() }
    }
}

/// The iteration of one thread over the groups, each of which it visits once, until it is empty.
#[derive(Debug)]
pub(crate) struct WorkChunks<'a, T> {
    list: &'a WorkList<T>,
    chunk: usize,
    /// The current group, modulo the number of groups.
    group: usize,
    /// The number of groups left, including the current one.
    left: usize,
}

impl<'a, T> Iterator for WorkChunks<'a, T> {
    type Item = &'a [T];

    fn next(&mut self) -> Option<&'a [T]> {
        let WorkList { items, groups } = self.list;
        while self.left > 0 {
            steps::took(1);
            let group = &groups[self.group % groups.len()];
            let start = group.next.fetch_add(self.chunk, Ordering::Relaxed);
            if start < group.end {
                return Some(&items[start..group.end.min(start + self.chunk)]);
            }
            self.group += 1;
            self.left -= 1;
        }
        None
    }
}

/// The number of bytes that a scan examines together.
pub(crate) const LANES: usize = 32;

/// Table bytes as plain memory, for scans that the compiler can vectorise.
///
/// # Safety
///
/// No other thread accesses the bytes before `f` returns, and `f` accesses them by its argument
/// only. So the world is stopped, and each page is given to one worker.
#[cfg(not(any(all(test, loom), standstill_loom)))]
pub(crate) unsafe fn exclusively<R>(bytes: &[AtomicU8], f: impl FnOnce(&mut [u8]) -> R) -> R {
    // SAFETY: rule *guarded*: an atomic byte has the layout of a byte and may be written through a
    // shared reference. No other access is made, as the caller says.
    f(unsafe {
        std::slice::from_raw_parts_mut(bytes.as_ptr().cast::<u8>().cast_mut(), bytes.len())
    })
}

/// Table bytes as plain memory, as [`exclusively`], for scans that only read.
///
/// # Safety
///
/// No thread writes the bytes before `f` returns.
#[cfg(not(any(all(test, loom), standstill_loom)))]
pub(crate) unsafe fn plainly<R>(bytes: &[AtomicU8], f: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: rule *guarded*: an atomic byte has the layout of a byte. No thread writes it, as the
    // caller says.
    f(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), bytes.len()) })
}

/// In models the bytes are copied, so that loom sees each access.
#[cfg(any(all(test, loom), standstill_loom))]
pub(crate) unsafe fn plainly<R>(bytes: &[AtomicU8], f: impl FnOnce(&[u8]) -> R) -> R {
    f(&bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect::<Vec<u8>>())
}

/// In models the bytes are copied, so that loom sees each access.
#[cfg(any(all(test, loom), standstill_loom))]
pub(crate) unsafe fn exclusively<R>(bytes: &[AtomicU8], f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut copy: Vec<u8> = bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    let result = f(&mut copy);
    bytes.iter().zip(copy).for_each(|(byte, value)| byte.store(value, Ordering::Relaxed));
    result
}

/// Zeroes the side table on the pages of the scope.
pub(crate) fn wipe(space: &Space<impl AddressMap>, pages: &[u32]) {
    for &page in pages {
        if let Some(range) = granules_of(space, page) {
            steps::took(range.len());
            // Relaxed: only this worker accesses the page. This is rare, so the bytes need no
            // access as plain memory.
            space.counts()[range].iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests;
