//! The part of the verifier that compares pages with the lists of free cells. For example, a cell
//! that a magazine and the free bits both name would be allocated twice.

#![cfg_attr(not(test), forbid(unsafe_code))]

use crate::object::state::{DYING, OLD, TRACKED, UNREACHABLE};
use std::collections::HashMap;

use crate::base::sync::Ordering;
use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::memory::address_map::AddressMap;
use crate::memory::shape::{PAGE_GRANULES, PageKind};
use crate::memory::size_class::{CLASSES, shape_of};
use crate::memory::view::{PoolView, SpaceView};
use crate::object::state::StateByte;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Place {
    Nowhere,
    FreeBits,
    Magazine,
    RemoteStack,
    Quarantine,
}

struct Free<'a, A: AddressMap> {
    space: SpaceView<'a, A>,
    places: Vec<Place>,
}

impl<A: AddressMap> Free<'_, A> {
    /// Records that a free cell was found at `place`. The address must be the start of a cell,
    /// which must be dead and at no other place.
    fn found(&mut self, granule: usize, place: Place) -> Result<(), String> {
        let space = self.space;
        let address = space.address(granule);
        if !space.starts_at(address) {
            return Err(format!(
                "{place:?} of page {} names {address:#x}, where no cell starts",
                granule / PAGE_GRANULES
            ));
        }
        let shape = space.page(granule / PAGE_GRANULES).shape();
        let cell = if shape.kind() == PageKind::Small { shape.cell() } else { 1 };
        for state in &space.states()[granule..granule + cell] {
            let state = StateByte(state).get();
            if state != 0 {
                return Err(format!(
                    "a free cell at {address:#x} ({place:?}) has state {state:#04x}"
                ));
            }
        }
        let before = std::mem::replace(&mut self.places[granule], place);
        if before != Place::Nowhere {
            return Err(format!(
                "the cell at {address:#x} is free twice, in {before:?} and {place:?}"
            ));
        }
        Ok(())
    }

    /// Checks that no free cell was written to since it was freed, when each of them is known with
    /// its place.
    fn untouched(&self) -> Result<(), String> {
        let mut found =
            self.places.iter().enumerate().filter(|&(_, &place)| place != Place::Nowhere);
        found.try_for_each(|(granule, &place)| {
            self.space.check_poison(granule, place == Place::RemoteStack)
        })
    }
}

/// A page on a list of pages with small objects.
struct Listed {
    page: u32,
    /// The arena of the list, or 0 or `SAMPLED` for abandoned pages, which the pool lists.
    of: u32,
    class: u8,
    /// Which list of an arena: the pages with free cells (`true`) or without. `None`: not an
    /// arena's list.
    has_free: Option<bool>,
}

/// The pages and free cells that the pool, the arenas and the quarantine list.
pub(crate) struct PageLists {
    pool: PoolView,
    pages: Vec<Listed>,
    /// The cells in magazines, by granule, with the arena of the magazine.
    cached: Vec<(usize, u32)>,
    quarantine: Vec<usize>,
}

impl PageLists {
    pub(super) fn of<M: ObjectModel>(world: &World<'_, M>) -> Self {
        let space = &world.core().space;
        let pool = space.pool();
        let (mut pages, mut cached) = (Vec::new(), Vec::new());
        world.arenas(|arena| {
            let of = arena.id();
            arena.for_each_cached(|cell| cached.push((space.granule(cell.as_ptr().addr()), of)));
            arena.for_each_page(space, |class, has_free, page| {
                pages.push(Listed { page, of, class, has_free: Some(has_free) });
            });
        });
        let abandoned = pool.abandoned.iter();
        pages.extend(abandoned.map(|&(of, class, page)| Listed {
            page,
            of,
            class,
            has_free: None,
        }));
        let kept = space.quarantine().into_iter().flat_map(|quarantine| quarantine.cells());
        let quarantine = kept.map(|cell| space.granule(cell.start().as_ptr().addr())).collect();
        Self { pool, pages, cached, quarantine }
    }
}

/// Compares the pages with the lists that they are on, and the cells with the places of free cells.
pub(crate) fn pages<M: ObjectModel>(world: &World<'_, M>, lists: PageLists) -> Result<(), String> {
    let space = world.pages();
    let states = space.states();
    let mut free = Free { space, places: vec![Place::Nowhere; states.len()] };
    let PoolView { holes, in_use, heap, .. } = lists.pool;
    let mut listed = HashMap::new();
    for entry in lists.pages {
        let page = entry.page;
        if listed.insert(page, entry).is_some() {
            return Err(format!("page {page} is on two lists"));
        }
    }

    let (mut used, mut tails) = (0, 0);
    let mut hole = holes.iter().copied().peekable();
    for page in 0..space.high_water() {
        let info = space.page(page);
        let (shape, owner) = (info.shape(), info.arena());
        let is_outside = matches!(shape.kind(), PageKind::Foreign | PageKind::Nowhere);
        hole.next_if(|&(start, len)| (start + len) as usize <= page);
        let in_hole = hole.peek().is_some_and(|&(start, _)| start as usize <= page);
        if in_hole != (shape.kind() == PageKind::Free) {
            return Err(format!(
                "page {page} is {:?}, and the pool says {}",
                shape.kind(),
                if in_hole { "free" } else { "in use" }
            ));
        }
        if (tails > 0) != (shape.kind() == PageKind::Tail) {
            return Err(format!(
                "page {page} is {:?}, {tails} pages before the end of a large object",
                shape.kind()
            ));
        }
        used += usize::from(!in_hole && !is_outside);
        if space.heap_word(page as u32).is_some_and(|word| word != heap) {
            let start = space.address(page * PAGE_GRANULES);
            return Err(format!(
                "the header of the page at {start:#x} does not name this heap: a write in front of \
                 its first object, or past the end of the previous object, damaged it"
            ));
        }
        match shape.kind() {
            PageKind::Free | PageKind::Foreign | PageKind::Nowhere => {}
            PageKind::Tail => tails -= 1,
            PageKind::Large => tails = shape.pages() - 1,
            PageKind::Small => {
                let Some(Listed { of, class, has_free, .. }) = listed.remove(&(page as u32)) else {
                    return Err(format!("page {page} of arena {owner} is on no list"));
                };
                if of != owner
                    || class != shape.class()
                    || usize::from(class) >= CLASSES
                    || shape != shape_of(class)
                {
                    return Err(format!(
                        "page {page} of arena {owner} with {shape:?} is on the list of arena {of} and \
                         class {class}"
                    ));
                }
                small_page(page as u32, has_free, &mut free)?;
            }
        }
        // A page with a new object must be marked as young, because no young collection examines it
        // otherwise.
        if info.young.load(Ordering::Relaxed) == 0 {
            for granule in space.objects(page) {
                let state = StateByte(&states[granule]).get();
                if state & (TRACKED | OLD | UNREACHABLE | DYING) == TRACKED {
                    return Err(format!(
                        "the object at {:#x} is new, but its page is not marked as young",
                        space.address(granule)
                    ));
                }
            }
        }
    }
    if tails != 0
        || hole.next_if(|&(start, len)| (start + len) as usize > space.high_water()).is_some()
        || used != in_use
    {
        return Err(format!(
            "{used} pages of {} are in use, and the pool says {in_use}",
            space.high_water()
        ));
    }
    if let Some(Listed { page, of, .. }) = listed.into_values().next() {
        return Err(format!("page {page} is on a list of arena {of}, but holds no small objects"));
    }
    for (granule, id) in lists.cached {
        free.found(granule, Place::Magazine)?;
        let owner = space.page(granule / PAGE_GRANULES).arena();
        if owner != id {
            return Err(format!("a magazine of arena {id} has a cell of a page of arena {owner}"));
        }
    }
    for granule in lists.quarantine {
        free.found(granule, Place::Quarantine)?;
    }
    free.untouched()
}

/// Checks the free cells of one page, and the page's number of free cells.
fn small_page(
    page: u32,
    has_free: Option<bool>,
    free: &mut Free<'_, impl AddressMap>,
) -> Result<(), String> {
    let space = free.space;
    let first = page as usize * PAGE_GRANULES;
    let ((bits, marked), remote) = (space.free_cells(page), space.remote_cells(page));
    let mut found = 0;
    for (index, mut word) in bits.into_iter().enumerate() {
        while word != 0 {
            free.found(first + index * 64 + word.trailing_zeros() as usize, Place::FreeBits)?;
            word &= word - 1;
            found += 1;
        }
    }
    if found != marked {
        return Err(format!("page {page} has {found} free bits, but counts {marked}"));
    }
    if has_free.is_some_and(|has_free| has_free != (found != 0)) {
        return Err(format!(
            "page {page} has {found} free bits, and is on the list of pages that have {}",
            if found == 0 { "some" } else { "none" }
        ));
    }
    remote.into_iter().try_for_each(|granule| free.found(first + granule, Place::RemoteStack))
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
