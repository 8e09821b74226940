//! Looking at a whole heap for what must not be: for stress modes, tests, and
//! [`Mutator::verify`](crate::Mutator::verify).
//!
//! Two views of the same memory are held against each other. The *pages*: what the pool, the arenas' lists, the free bits,
//! the remote stacks and the quarantine say about which cells are free. The *objects*: what the state bytes say is alive,
//! what the headers say, and what the fields lead to. A cell that neither knows is no error: its memory may have been handed
//! out and hold no object yet.

use std::collections::HashMap;

use crate::base::sync::Ordering;
use crate::collect::count::{guard_traversal, object_at};
use crate::heap::model::{ModelMutator, ObjectModel};
use crate::heap::mutator::World;
use crate::memory::arena::{CLASSES, shape_of};
use crate::memory::space::{PAGE_GRANULES, PageKind, PoolView, Space};
use crate::object::state::{DYING, LIVE, OLD, State, TRACKED, UNREACHABLE};
use crate::object::type_info::Tracer;

/// How much to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Depth {
    /// What holds whatever user code does: pages, tables, headers, and that edges lead to live objects.
    Structure,
    /// Also that no object is visited more often than it is referred to, which a wrong traversal can
    /// break.
    Counts,
    /// Also that no traversal panics, which leaves what it would have shown unseen.
    Complete,
}

/// What whoever reads a finding can do about it.
const ADVICE: &str = "Unsafe code, an object model or a C extension has damaged the heap or a count since it was looked at \
                      last, or this library has. With more of `standstill::Stress`, or STANDSTILL_STRESS=all, it may be found earlier: \
                      poison and quarantine find writes through stale pointers";

/// Under stress that asks for it, looks at the heap; panics if it is not sound.
#[inline]
pub(crate) fn stressed<M: ObjectModel>(world: &World<'_, M>, when: &str) {
    if world.core().stress.verifies() {
        look(world, when);
    }
}

#[cold]
#[inline(never)]
fn look<M: ObjectModel>(world: &World<'_, M>, when: &str) {
    let core = world.core();
    let depth = if core.stress.verifies_counts() { Depth::Counts } else { Depth::Structure };
    if let Err(error) = check(world, depth) {
        panic!("{when}, heap '{}': {error}. {ADVICE}", core.name);
    }
    if let Some(strain) = &core.under {
        strain.verified();
    }
}

/// As [`stressed`], when a collection is over and the world runs.
#[inline]
pub(crate) fn after<M: ObjectModel>(m: &ModelMutator<M>) {
    if m.core().stress.verifies() {
        stop_and_look(m);
    }
}

#[cold]
#[inline(never)]
fn stop_and_look<M: ObjectModel>(m: &ModelMutator<M>) {
    // If the world cannot be stopped any more, others say so.
    if let Ok(world) = m.stop_here() {
        look(&world, "after a collection");
        drop(world);
        m.model().resumed(m);
    }
}

/// Checks the heap; the error names the first thing found.
pub(crate) fn check<M: ObjectModel>(world: &World<'_, M>, depth: Depth) -> Result<(), String> {
    let space = &world.core().space;
    if let Some(granule) = space.counts().iter().position(|c| c.load(Ordering::Relaxed) != 0) {
        return Err(format!("the counting table is not zero at {:#x}", space.address(granule)));
    }
    pages(world, Lists::of(world))?;
    objects(world, depth)
}

/// Where a free cell can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Place {
    Nowhere,
    FreeBits,
    Magazine,
    RemoteStack,
    Quarantine,
}

/// The free cells found so far.
struct Free<'a> {
    space: &'a Space,
    places: Vec<Place>,
}

impl Free<'_> {
    /// A cell is found to be free at a place: it must be a cell, dead, and at no other place.
    fn found(&mut self, granule: usize, place: Place) -> Result<(), String> {
        let space = self.space;
        let address = space.address(granule);
        if !space.starts_at(address) {
            return Err(format!(
                "{place:?} of page {} names {address:#x}, where no cell starts",
                granule / PAGE_GRANULES
            ));
        }
        let state = State(&space.states()[granule]).get();
        if state != 0 {
            return Err(format!("a free cell at {address:#x} ({place:?}) has state {state:#04x}"));
        }
        let before = std::mem::replace(&mut self.places[granule], place);
        if before != Place::Nowhere {
            return Err(format!(
                "the cell at {address:#x} is free twice, in {before:?} and {place:?}"
            ));
        }
        Ok(())
    }

    /// All of them, found to be in one place each, must be as they were left.
    fn untouched(&self) -> Result<(), String> {
        let Some(freed) = self.space.freed() else { return Ok(()) };
        for (granule, &place) in
            self.places.iter().enumerate().filter(|&(_, &place)| place != Place::Nowhere)
        {
            // The first bytes of one on a remote stack are a link.
            let from = if place == Place::RemoteStack { size_of::<u32>() } else { 0 };
            // SAFETY: rules O and G: the cell is nobody's, and lies on a page that was handed out.
            unsafe {
                freed.check(self.space.memory(object_at(self.space, granule).as_ptr()), from)?
            };
        }
        Ok(())
    }
}

/// A page on a list of pages with small objects.
struct Listed {
    page: u32,
    /// Whose list it is; 0: the pool's, of abandoned pages.
    of: u32,
    class: u8,
    /// On an arena's list: whether it is that of the pages with free cells.
    has_free: Option<bool>,
}

/// What the pool, the arenas and the quarantine say about pages and free cells.
struct Lists {
    pool: PoolView,
    pages: Vec<Listed>,
    /// Cells in magazines, by granule, with the arena.
    cached: Vec<(usize, u32)>,
    /// Cells in quarantine, by granule.
    quarantine: Vec<usize>,
}

impl Lists {
    fn of<M: ObjectModel>(world: &World<'_, M>) -> Self {
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
        pages.extend(abandoned.map(|&(class, page)| Listed { page, of: 0, class, has_free: None }));
        let kept = space.freed().into_iter().flat_map(|freed| freed.kept());
        let quarantine = kept.map(|cell| space.granule(cell.start().as_ptr().addr())).collect();
        Self { pool, pages, cached, quarantine }
    }
}

/// The pages against the lists that they are on, and the cells against the places where free ones wait.
fn pages<M: ObjectModel>(world: &World<'_, M>, lists: Lists) -> Result<(), String> {
    let space = &world.core().space;
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
        used += usize::from(!in_hole);
        if matches!(shape.kind(), PageKind::Small | PageKind::Large) {
            let start = space.address(page * PAGE_GRANULES);
            // SAFETY: rules G and W: the page is in use, and the world is stopped.
            if unsafe { Space::heap_of(start) } != heap {
                return Err(format!(
                    "the header of the page at {start:#x} does not name this heap: something was written in front of its \
                     first object, or behind the end of the object before it"
                ));
            }
        }
        match shape.kind() {
            PageKind::Free => {}
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
                        "page {page} of arena {owner} with {shape:?} is on the list of arena {of} and class {class}"
                    ));
                }
                small_page(page as u32, has_free, &mut free)?;
            }
        }
        // What is new must lie on a page that says so, or no young collection would look at it.
        if info.young.load(Ordering::Relaxed) == 0 {
            for granule in space.starts(page) {
                let state = State(&states[granule]).get();
                if state & (TRACKED | OLD | UNREACHABLE | DYING) == TRACKED {
                    return Err(format!(
                        "the object at {:#x} is new, and its page says that none is",
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
        return Err(format!(
            "page {page} is on a list of arena {of}, and is no page of small objects"
        ));
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

/// The free cells of one page, and how many it thinks there are.
fn small_page(page: u32, has_free: Option<bool>, free: &mut Free<'_>) -> Result<(), String> {
    let space = free.space;
    let first = page as usize * PAGE_GRANULES;
    // SAFETY: rules O and W: the world is stopped: what is the owner's is ours to look at.
    let (bits, marked, remote) = unsafe {
        (
            space.free_bits(page, |bits| *bits),
            space.info(page).owned(|owned| owned.free),
            space.remote_cells(page),
        )
    };
    let mut found = 0;
    for (index, mut word) in bits.into_iter().enumerate() {
        while word != 0 {
            free.found(first + index * 64 + word.trailing_zeros() as usize, Place::FreeBits)?;
            word &= word - 1;
            found += 1;
        }
    }
    if found != marked {
        return Err(format!("page {page} has {found} free bits, and thinks {marked}"));
    }
    if has_free.is_some_and(|has_free| has_free != (found != 0)) {
        return Err(format!(
            "page {page} has {found} free bits, and is on the list of those that have {}",
            if found == 0 { "some" } else { "none" }
        ));
    }
    remote.into_iter().try_for_each(|granule| free.found(first + granule, Place::RemoteStack))
}

/// Every object: its state, its header, what its fields lead to; and, if asked, the edges against the counts.
fn objects<M: ObjectModel>(world: &World<'_, M>, depth: Depth) -> Result<(), String> {
    let core = world.core();
    let space = &core.space;
    let states = space.states();
    let mut tracer = Tracer::new(space.base(), space.reserved_bytes());
    let mut visits = HashMap::<usize, i64>::new();
    let mut error = None;
    let mut starts = vec![false; states.len()];
    let result = guard_traversal(world, &mut tracer, |tracer| {
        for page in 0..space.high_water() {
            for granule in space.starts(page) {
                starts[granule] = true;
                let bits = State(&states[granule]).get();
                if bits & LIVE == 0 && bits != 0 {
                    error = Some(format!(
                        "a free cell at {:#x} has state {bits:#04x}",
                        space.address(granule)
                    ));
                    return;
                }
                if bits & (LIVE | DYING) != LIVE {
                    continue;
                }
                let object = object_at(space, granule);
                // SAFETY: rule W: alive; the world is stopped.
                if let Err(what) = unsafe { core.model.check(object) } {
                    error = Some(format!(
                        "the header of the object at {:#x} is damaged: {what}",
                        object.address()
                    ));
                    return;
                }
                // Enumerations skip the unreachable, but the heap does not.
                if bits & TRACKED == 0 {
                    continue;
                }
                tracer.begin(object);
                // SAFETY: rule W: tracked and not dying, so alive; the world is stopped.
                unsafe { core.model.traverse(object, tracer) };
                if tracer.take_unreadable() {
                    continue;
                }
                for &edge in tracer.edges() {
                    let target = space.granule(edge);
                    if !space.starts_at(edge) || State(&states[target]).get() & LIVE == 0 {
                        // SAFETY: as above.
                        let name = unsafe { core.model.type_name(object) };
                        error = Some(format!(
                            "the {name} at {:#x} refers to {edge:#x}, where no object is",
                            object.address()
                        ));
                        return;
                    }
                    if depth >= Depth::Counts {
                        *visits.entry(target).or_default() += 1;
                    }
                }
            }
        }
    });
    if let Err(abandoned) = result {
        // A traversal that panics is the user's bug, and the collection's to deal with.
        return if depth == Depth::Complete { Err(abandoned.reason.into_owned()) } else { Ok(()) };
    }
    if let Some(error) = error {
        return Err(error);
    }
    if let Some(granule) = (0..states.len()).find(|&g| !starts[g] && State(&states[g]).get() != 0) {
        return Err(format!(
            "no object starts at {:#x}, yet it has a state",
            space.address(granule)
        ));
    }
    for (granule, visits) in visits {
        let object = object_at(space, granule);
        // SAFETY: rule W: an edge leads to it and it is live; the world is stopped.
        let count = unsafe { core.model.count(object) };
        let bits = State(&states[granule]).get();
        if count.is_some_and(|n| n < visits) && bits & (UNREACHABLE | DYING) == 0 {
            // SAFETY: as above.
            let name = unsafe { core.model.type_name(object) };
            return Err(format!(
                "the {name} at {:#x} is visited {visits} times but has {count:?} references",
                object.address()
            ));
        }
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::collect::protocol::tests::{Raw, Script};
    use crate::managed::Managed;
    use crate::memory::space::{PAGE_SIZE, Shape};
    use crate::object::type_info::Object;
    use crate::{Gc, GcCell, Heap, Mutator, Pacing, Stress, Trace, Tracer};

    struct Node {
        next: GcCell<Option<Gc<Node>>>,
    }

    // By hand: the derive names the crate, which this is.
    impl Trace for Node {
        fn traverse(&self, t: &mut Tracer) {
            self.next.traverse(t);
        }
    }

    fn node(m: &Mutator) -> Gc<Node> {
        m.alloc(Node { next: GcCell::new(None) })
    }

    /// Damages a heap of two nodes, a freed one, and a large object, by `plant`; what is found has to contain `expected`. Then
    /// mends it, by `mend`.
    fn finds(
        expected: &str,
        plant: impl FnOnce(&World<'_, Managed>, Gc<Node>) -> Box<dyn FnOnce(&World<'_, Managed>)>,
    ) {
        // No room in magazines: what is free is so in the free bits.
        let stress = Stress::none().poison(true);
        let heap = Heap::builder()
            .pacing(Pacing::manual())
            .reserve(1 << 30)
            .stress(stress)
            .build()
            .unwrap();
        let mut m = heap.attach();
        let (a, b) = (node(&m), node(&m));
        a.get(&m).next.set(&m, Some(b.clone()));
        drop(node(&m));
        let large = m.alloc([0u64; PAGE_SIZE / 4]);
        m.verify().expect("a sound heap");
        let world = m.raw().stop_here().unwrap();
        let mend = plant(&world, a.clone());
        let found = check(&world, Depth::Counts);
        mend(&world);
        let error = found.expect_err(expected);
        assert!(error.contains(expected), "{expected}: {error}");
        check(&world, Depth::Counts).expect("mended");
        drop(world);
        drop((a, b, large));
        m.collect();
        m.verify().expect("a sound heap at the end");
    }

    fn granule(space: &Space, node: &Gc<Node>) -> usize {
        space.granule(Gc::as_ptr(node).addr())
    }

    /// A heap's first page, where the nodes are.
    const PAGE: u32 = 0;

    #[test]
    fn a_count_left_in_the_table() {
        finds("counting table", |world, node| {
            let at = granule(&world.core().space, &node);
            world.core().space.counts()[at].store(1, Ordering::Relaxed);
            Box::new(move |world| world.core().space.counts()[at].store(0, Ordering::Relaxed))
        });
    }

    #[test]
    fn a_live_cell_that_is_free() {
        finds("has state", |world, node| {
            let flip = move |world: &World<'_, Managed>, at: usize| unsafe {
                // SAFETY: rule W: the world is stopped.
                world.core().space.free_bits(PAGE, |bits| bits[at / 64] ^= 1 << (at % 64));
            };
            let at = granule(&world.core().space, &node);
            flip(world, at);
            Box::new(move |world| flip(world, at))
        });
    }

    #[test]
    fn a_free_bit_where_no_cell_starts() {
        finds("where no cell starts", |world, _| {
            let flip = |world: &World<'_, Managed>| unsafe {
                // SAFETY: rule W: the world is stopped.
                world.core().space.free_bits(PAGE, |bits| bits[0] ^= 1);
            };
            flip(world);
            Box::new(flip)
        });
    }

    #[test]
    fn a_page_that_miscounts_its_free_bits() {
        finds("and thinks", |world, _| {
            let add = |world: &World<'_, Managed>, by: u32| unsafe {
                // SAFETY: rule W: the world is stopped.
                world
                    .core()
                    .space
                    .info(PAGE)
                    .owned(|owned| owned.free = owned.free.wrapping_add(by));
            };
            add(world, 1);
            Box::new(move |world| add(world, u32::MAX))
        });
    }

    #[test]
    fn a_cell_that_waits_at_two_places() {
        finds("free twice", |world, _| {
            let space = &world.core().space;
            // SAFETY: rule W: the world is stopped; the free bits stand still.
            let cell = unsafe {
                let first = space.free_bits(PAGE, |bits| {
                    bits.iter()
                        .position(|&word| word != 0)
                        .map(|at| at * 64 + bits[at].trailing_zeros() as usize)
                });
                object_at(space, first.unwrap()).as_ptr()
            };
            // SAFETY: rule O: it is free, if twice.
            unsafe { space.push_remote(cell) };
            Box::new(move |world| {
                let space = &world.core().space;
                // SAFETY: rules O and W: the world is stopped, and with it the page's owner. The bit is set already,
                // and the count one too high.
                unsafe {
                    space.free_bits(PAGE, |bits| {
                        let at = space.granule(cell.as_ptr().addr());
                        bits[at / 64] &= !(1 << (at % 64));
                    });
                    space.drain(PAGE);
                    space.info(PAGE).owned(|owned| owned.free -= 1);
                }
            })
        });
    }

    #[test]
    fn a_state_byte_of_a_free_cell() {
        finds("has state", |world, node| {
            let space = &world.core().space;
            // SAFETY: rule W: the world is stopped.
            let at = unsafe {
                space.free_bits(PAGE, |bits| {
                    bits.iter().position(|&word| word >> 63 != 0).unwrap() * 64 + 63
                })
            };
            assert_ne!(at, granule(space, &node));
            space.states()[at].store(OLD, Ordering::Relaxed);
            Box::new(move |world| world.core().space.states()[at].store(0, Ordering::Relaxed))
        });
    }

    #[test]
    fn a_state_byte_in_the_middle_of_an_object() {
        finds("no object starts", |world, _| {
            let space = &world.core().space;
            let large = (0..space.high_water())
                .find(|&page| space.page(page).shape().kind() == PageKind::Tail)
                .unwrap();
            let at = large * PAGE_GRANULES + 5;
            space.states()[at].store(LIVE, Ordering::Relaxed);
            Box::new(move |world| world.core().space.states()[at].store(0, Ordering::Relaxed))
        });
    }

    #[test]
    fn a_page_with_new_objects_that_calls_itself_old() {
        finds("its page says that none is", |world, _| {
            let young = |world: &World<'_, Managed>, young| {
                world.core().space.page(PAGE as usize).young.store(young, Ordering::Relaxed);
            };
            young(world, 0);
            Box::new(move |world| young(world, 1))
        });
    }

    #[test]
    fn a_page_of_another_arena_than_its_list() {
        finds("is on the list of arena", |world, _| {
            let own = |world: &World<'_, Managed>, id| unsafe {
                // SAFETY: rule W: the world is stopped.
                world.core().space.info(PAGE).set_arena(id);
            };
            let id = world.core().space.page(PAGE as usize).arena();
            own(world, id + 7);
            Box::new(move |world| own(world, id))
        });
    }

    #[test]
    fn a_page_that_is_on_no_list_of_its_class() {
        finds("is on the list of arena", |world, _| {
            let space = &world.core().space;
            let shape = space.page(PAGE as usize).shape();
            let other = shape_of(shape.class() + 1);
            let set = |world: &World<'_, Managed>, shape: Shape| unsafe {
                // SAFETY: rule W: the world is stopped.
                world.core().space.info(PAGE).set_shape(shape);
            };
            set(world, other);
            Box::new(move |world| set(world, shape))
        });
    }

    #[test]
    fn a_page_header_that_was_written_to() {
        finds("does not name this heap", |world, _| {
            let space = &world.core().space;
            // SAFETY: rule G: inside the range.
            let header = unsafe { space.cell(PAGE as usize * PAGE_GRANULES) }.cast::<u64>();
            // SAFETY: rules O and W: the header of a page in use; the world is stopped.
            let before = unsafe { header.replace(0xdbdb_dbdb_dbdb_dbdb) };
            // SAFETY: as above.
            Box::new(move |_| unsafe { header.write(before) })
        });
    }

    #[test]
    fn a_link_that_was_written_to() {
        let heap = Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).build().unwrap();
        let mut m = heap.attach();
        let node = node(&m);
        let cell = object_at(&heap.core().space, granule(&heap.core().space, &node)).as_ptr();
        let world = m.raw().stop_here().unwrap();
        // Freed by a stranger, as far as the page knows; then somebody writes to it.
        // SAFETY: rule W: the world is stopped, and the handle is leaked below.
        unsafe {
            world.core().state(cell.as_ptr() as usize).death();
            world.core().space.push_remote(cell);
            cell.cast::<u32>().write(0xdede);
        }
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&world, Depth::Structure)
        }));
        let text = *found.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("link to the next freed cell"), "{text}");
        // SAFETY: as above.
        unsafe { cell.cast::<u32>().write(0) };
        check(&world, Depth::Structure).expect("mended");
        drop(world);
        std::mem::forget(node);
        m.verify().expect("a sound heap at the end");
    }

    #[test]
    fn a_write_to_free_memory() {
        finds("written to after it was freed", |world, node| {
            let space = &world.core().space;
            let cell = object_at(space, granule(space, &node)).as_ptr();
            // The third cell of the page was freed, and is the neighbour of the second.
            // SAFETY: rule B: on the page.
            let freed =
                unsafe { cell.add(2 * space.page(PAGE as usize).shape().room().bytes() + 20) };
            // SAFETY: rule O: nobody uses it.
            unsafe { freed.write(0) };
            // SAFETY: as above.
            Box::new(move |_| unsafe { freed.write(crate::memory::quarantine::POISON) })
        });
    }

    /// A page of small objects, a hole of two pages, a large object of two pages, another page of
    /// small objects, and at the end a large object of two pages. `plant` damages the heap or the
    /// lists, and returns the error that the verifier is to find.
    fn says(plant: impl FnOnce(&Space, &mut Lists) -> String) {
        let heap = Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).build().unwrap();
        let m = heap.attach();
        let two_pages = || m.alloc([0u64; PAGE_SIZE / 8]);
        let small = node(&m);
        let (hole, large, other, last) =
            (two_pages(), two_pages(), m.alloc([0u64; 100]), two_pages());
        drop(hole);
        let world = m.raw().stop_here().unwrap();
        let space = &world.core().space;
        let shapes: Vec<(Shape, u32)> = (0..space.high_water())
            .map(|page| (space.page(page).shape(), space.page(page).arena()))
            .collect();
        use PageKind::{Free, Large, Small, Tail};
        let kinds: Vec<PageKind> = shapes.iter().map(|(shape, _)| shape.kind()).collect();
        assert_eq!(kinds, [Small, Free, Free, Large, Tail, Small, Large, Tail]);
        assert_eq!(check(&world, Depth::Complete), Ok(()));
        if heap.core().stress.is_none() {
            let mut lists = Lists::of(&world);
            assert!(!lists.cached.is_empty());
            lists.pages.sort_by_key(|entry| entry.page);
            let expected = plant(space, &mut lists);
            assert_eq!(pages(&world, lists), Err(expected));
            for (page, (shape, arena)) in shapes.into_iter().enumerate() {
                // SAFETY: rule W: the world is stopped.
                unsafe {
                    space.info(page as u32).set_shape(shape);
                    space.info(page as u32).set_arena(arena);
                }
            }
            assert_eq!(check(&world, Depth::Complete), Ok(()), "mended");
        }
        drop(world);
        drop((small, large, other, last));
    }

    fn shape(space: &Space, page: u32, shape: Shape) {
        // SAFETY: rule W: the world is stopped.
        unsafe { space.info(page).set_shape(shape) };
    }

    #[test]
    fn pages_and_lists_that_contradict_each_other() {
        let arena = |space: &Space| space.page(0).arena();
        says(|_, lists| {
            let Listed { page, of, class, has_free } = lists.pages[1];
            lists.pages.push(Listed { page, of, class, has_free });
            "page 5 is on two lists".to_owned()
        });
        says(|space, lists| {
            lists.pages.remove(1);
            format!("page 5 of arena {} is on no list", arena(space))
        });
        says(|space, lists| {
            lists.pages.push(Listed { page: 3, of: 9, class: 0, has_free: None });
            assert_eq!(space.page(3).shape().kind(), PageKind::Large);
            "page 3 is on a list of arena 9, and is no page of small objects".to_owned()
        });
        let is_on_another_list = |of: u32, space: &Space, entry: &Listed| {
            let shape = space.page(5).shape();
            let class = entry.class;
            format!(
                "page 5 of arena {of} with {shape:?} is on the list of arena {} and class {class}",
                entry.of
            )
        };
        says(|space, lists| {
            lists.pages[1].of += 1;
            is_on_another_list(arena(space), space, &lists.pages[1])
        });
        says(|space, lists| {
            lists.pages[1].class += 1;
            is_on_another_list(arena(space), space, &lists.pages[1])
        });
        says(|space, lists| {
            // No class has this number, and the table of shapes has no row for it.
            shape(space, 5, Shape::small(CLASSES as u8, 32));
            lists.pages[1].class = CLASSES as u8;
            is_on_another_list(arena(space), space, &lists.pages[1])
        });
        says(|space, lists| {
            // The page has the right class, and cells of another size.
            shape(space, 5, Shape::small(lists.pages[1].class, 32));
            is_on_another_list(arena(space), space, &lists.pages[1])
        });
        says(|space, lists| {
            // SAFETY: rules O and W: the world is stopped.
            let free = unsafe { space.info(5).owned(|owned| owned.free) };
            let has_free = lists.pages[1].has_free.unwrap();
            assert_eq!(has_free, free > 0);
            lists.pages[1].has_free = Some(!has_free);
            let which = if free == 0 { "some" } else { "none" };
            format!("page 5 has {free} free bits, and is on the list of those that have {which}")
        });
    }

    #[test]
    fn pages_and_a_pool_that_contradict_each_other() {
        says(|_, lists| {
            assert_eq!(lists.pool.holes, [(1, 2)]);
            lists.pool.holes = Vec::new();
            "page 1 is Free, and the pool says in use".to_owned()
        });
        says(|_, lists| {
            lists.pool.holes = vec![(1, 1)];
            "page 2 is Free, and the pool says in use".to_owned()
        });
        says(|_, lists| {
            lists.pool.holes = vec![(1, 3)];
            "page 3 is Large, and the pool says free".to_owned()
        });
        says(|space, _| {
            shape(space, 5, Shape::TAIL);
            "page 5 is Tail, 0 pages before the end of a large object".to_owned()
        });
        says(|space, _| {
            shape(space, 3, Shape::large(3 * PAGE_SIZE - 64, 32).unwrap());
            "page 5 is Small, 1 pages before the end of a large object".to_owned()
        });
        says(|space, _| {
            shape(space, 3, Shape::large(PAGE_SIZE - 64, 32).unwrap());
            "page 4 is Tail, 0 pages before the end of a large object".to_owned()
        });
        says(|space, lists| {
            shape(space, 6, Shape::large(3 * PAGE_SIZE - 64, 32).unwrap());
            assert_eq!((space.high_water(), lists.pool.in_use), (8, 6));
            "6 pages of 8 are in use, and the pool says 6".to_owned()
        });
        says(|_, lists| {
            lists.pool.holes.push((8, 1));
            "6 pages of 8 are in use, and the pool says 6".to_owned()
        });
        says(|_, lists| {
            lists.pool.in_use = 7;
            "6 pages of 8 are in use, and the pool says 7".to_owned()
        });
    }

    #[test]
    fn cells_in_magazines_that_are_no_free_cells_of_their_arena() {
        says(|space, lists| {
            let (granule, id) = lists.cached[0];
            lists.cached[0].1 = id + 1;
            let owner = space.page(granule / PAGE_GRANULES).arena();
            format!("a magazine of arena {} has a cell of a page of arena {owner}", id + 1)
        });
        says(|space, lists| {
            lists.cached.push(lists.cached[0]);
            let address = space.address(lists.cached[0].0);
            format!("the cell at {address:#x} is free twice, in Magazine and Magazine")
        });
        says(|space, lists| {
            let (granule, id) = lists.cached[0];
            lists.cached.push((granule / PAGE_GRANULES * PAGE_GRANULES, id));
            let page = granule / PAGE_GRANULES;
            let address = space.address(page * PAGE_GRANULES);
            format!("Magazine of page {page} names {address:#x}, where no cell starts")
        });
    }

    #[test]
    fn pages_of_threads_that_have_ended_are_on_the_lists_of_the_pool() {
        let heap = Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).build().unwrap();
        let m = heap.attach();
        let kept = std::thread::scope(|scope| scope.spawn(|| node(&heap.attach())).join().unwrap());
        let world = m.raw().stop_here().unwrap();
        let lists = Lists::of(&world);
        let page = granule(&world.core().space, &kept) / PAGE_GRANULES;
        let Listed { of, has_free, .. } =
            lists.pages.iter().find(|entry| entry.page as usize == page).unwrap();
        assert_eq!((*of, *has_free), (0, None));
        assert_eq!(check(&world, Depth::Complete), Ok(()));
        drop(world);
    }

    #[test]
    fn cells_in_quarantine_are_free_and_nowhere_else() {
        let stress = Stress::none().quarantine(8);
        let heap = Heap::builder()
            .pacing(Pacing::manual())
            .reserve(1 << 30)
            .stress(stress)
            .build()
            .unwrap();
        let m = heap.attach();
        let kept = node(&m);
        drop(node(&m));
        let world = m.raw().stop_here().unwrap();
        let space = &world.core().space;
        let freed = Lists::of(&world).quarantine;
        assert_eq!(freed.len(), 1);
        assert_eq!(pages(&world, Lists::of(&world)), Ok(()));
        let address = space.address(freed[0]);
        let found = |granule: usize| {
            let mut lists = Lists::of(&world);
            lists.quarantine.push(granule);
            pages(&world, lists)
        };
        let twice = format!("the cell at {address:#x} is free twice, in Quarantine and Quarantine");
        assert_eq!(found(freed[0]), Err(twice));
        let live = granule(space, &kept);
        let state = State(&space.states()[live]).get();
        let not_free = format!(
            "a free cell at {:#x} (Quarantine) has state {state:#04x}",
            space.address(live)
        );
        assert_eq!(found(live), Err(not_free));
        drop(world);
    }

    /// In a cell on a remote stack the first bytes are a link, in other free cells they are poison.
    #[test]
    fn a_write_to_the_first_byte_of_free_memory() {
        let stress = Stress::none().poison(true);
        let heap = Heap::builder()
            .pacing(Pacing::manual())
            .reserve(1 << 30)
            .stress(stress)
            .build()
            .unwrap();
        let m = heap.attach();
        let (here, there) = (node(&m), node(&m));
        let cells = [&here, &there]
            .map(|node| object_at(&heap.core().space, granule(&heap.core().space, node)));
        drop(here);
        std::mem::forget(there);
        let world = m.raw().stop_here().unwrap();
        let [here, there] = cells.map(Object::as_ptr);
        // SAFETY: rule O: it is free, and nothing uses it.
        unsafe { here.write(0) };
        let error = check(&world, Depth::Structure).expect_err("a write");
        assert!(error.contains("bytes 0 to 0 are no longer 0xde"), "{error}");
        // SAFETY: as above.
        unsafe { here.write(crate::memory::quarantine::POISON) };
        // Freed by a stranger.
        // SAFETY: rules O and W: the world is stopped, and the handle was leaked above.
        unsafe {
            world.core().state(there.as_ptr().addr()).death();
            there.write_bytes(
                crate::memory::quarantine::POISON,
                world.core().space.memory(there).room().bytes(),
            );
            world.core().space.push_remote(there);
        }
        assert_eq!(check(&world, Depth::Structure), Ok(()));
        // SAFETY: rule O: it is free, and nothing uses it.
        let behind = unsafe { there.add(size_of::<u32>()) };
        // SAFETY: as above.
        unsafe { behind.write(0) };
        let error = check(&world, Depth::Structure).expect_err("a write");
        assert!(error.contains("bytes 4 to 4 are no longer 0xde"), "{error}");
        // SAFETY: as above.
        unsafe { behind.write(crate::memory::quarantine::POISON) };
        drop(world);
    }

    /// Two objects that lead to each other, and an untracked one, each with one more reference, that of
    /// the test. `damage` changes them. The verifier's answer at each depth.
    fn found(damage: impl FnOnce(&Raw, [Object; 3])) -> [Result<(), String>; 3] {
        let builder = Heap::builder().name("scripted").pacing(Pacing::manual()).reserve(1 << 28);
        let heap = builder.build_with(Script::default()).unwrap();
        let m = heap.attach();
        let things = ['a', 'b', 'c'].map(|name| Script::thing(&m, name, "", "s"));
        Script::link(&m, things[0], things[1]);
        Script::link(&m, things[1], things[0]);
        // SAFETY: rule R: the test has a reference.
        assert!(unsafe { m.untrack(things[2]) });
        let at_each_depth = || {
            let world = m.stop_here().unwrap();
            [Depth::Structure, Depth::Counts, Depth::Complete].map(|depth| check(&world, depth))
        };
        assert_eq!(at_each_depth(), [const { Ok(()) }; 3]);
        damage(&m, things);
        at_each_depth()
    }

    fn always(text: String) -> [Result<(), String>; 3] {
        std::array::from_fn(|_| Err(text.clone()))
    }

    const NOTHING: [Result<(), String>; 3] = [const { Ok(()) }; 3];

    fn state(m: &Raw, object: Object) -> State<'_> {
        // SAFETY: rule G: on a page that was handed out.
        unsafe { m.core().state(object.address()) }
    }

    #[test]
    fn headers_of_all_objects_are_looked_at_that_are_not_dying() {
        for at in [0, 2] {
            let mut address = 0;
            let result = found(|m, things| {
                address = things[at].address();
                Script::of(m, things[at], |thing| thing.has = "x");
            });
            let text =
                format!("the header of the object at {address:#x} is damaged: damage, on purpose");
            assert_eq!(result, always(text), "tracked or not");
        }
        let dying = |m: &Raw, [a, ..]: [Object; 3]| {
            Script::of(m, a, |thing| thing.has = "x");
            state(m, a).set(DYING);
        };
        assert_eq!(found(dying), NOTHING);
    }

    #[test]
    fn fields_of_tracked_objects_lead_to_objects() {
        // The middle of an object, the memory of a dead object, and memory without an object so far.
        let middle = |_: &Raw, b: Object| {
            Object::new(b.as_ptr().map_addr(|address| address.saturating_add(16)))
        };
        let free = |m: &Raw, _: Object| {
            let gone = Script::thing(m, 'd', "", "s");
            m.model().drop_ref(gone, m);
            gone
        };
        let unused = |m: &Raw, _: Object| Object::new(m.allocate(32, 32).unwrap());
        type Target<'a> = &'a dyn Fn(&Raw, Object) -> Object;
        let targets: [Target<'_>; 3] = [&middle, &free, &unused];
        for target in targets {
            let mut text = String::new();
            let result = found(|m, [a, b, _]| {
                let target = target(m, b);
                text = format!(
                    "the thing at {:#x} refers to {:#x}, where no object is",
                    a.address(),
                    target.address()
                );
                Script::of(m, a, |thing| thing.edges.push(target));
            });
            assert_eq!(result, always(text));
            // The verifier does not traverse untracked objects, nor follow edges of unreadable ones.
            let result = found(|m, [_, b, c]| {
                let target = target(m, b);
                Script::of(m, c, |thing| thing.edges.push(target));
            });
            assert_eq!(result, NOTHING);
            let result = found(|m, [a, b, _]| {
                let target = target(m, b);
                Script::of(m, a, |thing| {
                    thing.edges.push(target);
                    thing.looks = "h";
                });
            });
            assert_eq!(result, NOTHING);
        }
    }

    #[test]
    fn no_object_is_visited_more_often_than_it_is_referred_to() {
        let mut text = String::new();
        let twice = |m: &Raw, [a, b, _]: [Object; 3]| {
            Script::of(m, a, |thing| thing.looks = "t");
            assert_eq!(Script::of(m, b, |thing| thing.count), 2);
        };
        assert_eq!(found(twice), NOTHING, "as often as it is referred to");
        let [structure, counts, complete] = found(|m, things| {
            twice(m, things);
            m.model().drop_ref(things[1], m);
            text = format!(
                "the thing at {:#x} is visited 2 times but has Some(1) references",
                things[1].address()
            );
        });
        assert_eq!((structure, counts, complete), (Ok(()), Err(text.clone()), Err(text)));
        // Objects that are about to be cleared are left out.
        let unreachable = |m: &Raw, things: [Object; 3]| {
            twice(m, things);
            m.model().drop_ref(things[1], m);
            state(m, things[1]).set(UNREACHABLE);
        };
        assert_eq!(found(unreachable), NOTHING);
    }

    #[test]
    fn a_traversal_that_panics_is_an_error_where_everything_is_to_be_seen() {
        let result = found(|m, [a, ..]| Script::of(m, a, |thing| thing.looks = "p"));
        assert_eq!(result, [Ok(()), Ok(()), Err("a traversal, on purpose".to_owned())]);
    }

    #[test]
    fn states_of_what_is_no_object() {
        let mut text = String::new();
        let result = found(|m, _| {
            let object = Object::new(m.allocate(32, 32).unwrap());
            state(m, object).set(OLD);
            text = format!("a free cell at {:#x} has state 0x10", object.address());
        });
        assert_eq!(result, always(text));
        let mut text = String::new();
        let result = found(|m, _| {
            let space = &m.core().space;
            space.states()[0].store(LIVE, Ordering::Relaxed);
            text = format!("no object starts at {:#x}, yet it has a state", space.address(0));
        });
        assert_eq!(result, always(text));
    }

    /// Runs a collection or a promotion under this stress, after `damage` to a ring of two objects. The
    /// message of the verifier's panic, and how many times the verifier found a sound heap.
    fn stressed_by(
        stress: Stress,
        damage: impl FnOnce(&Raw, &[Object]),
        promotes: bool,
    ) -> (String, u64) {
        let builder =
            Heap::builder().name("scripted").pacing(Pacing::manual()).reserve(1 << 28).workers(1);
        let heap = builder.stress(stress).build_with(Script::default()).unwrap();
        let mut m = heap.attach();
        let objects = Script::ring(&m, &[('a', "f"), ('b', "")]);
        Script::thing(&m, 'k', "", "s");
        damage(&m, &objects);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if promotes {
                assert!(m.core().turn.try_take());
                crate::collect::promote_now(&mut m).unwrap();
            } else {
                assert_eq!(m.try_collect(crate::Collect::full()).unwrap().collected, 2);
            }
        }));
        let text = panics.err().map_or(String::new(), |panic| *panic.downcast::<String>().unwrap());
        let looks = heap.stress_stats().verifications;
        (text, looks)
    }

    #[test]
    fn under_stress_the_heap_is_looked_at_before_within_and_after_each_collection() {
        let verify = Stress::none().verify(true);
        let nothing = |_: &Raw, _: &[Object]| ();
        if Heap::builder().build().unwrap().core().stress != Stress::none() {
            return; // The environment asks for more of it.
        }
        assert_eq!(stressed_by(Stress::none(), nothing, false), (String::new(), 0));
        assert_eq!(stressed_by(verify, nothing, false), (String::new(), 3));
        assert_eq!(stressed_by(verify, nothing, true), (String::new(), 1));
        let damaged =
            |m: &Raw, objects: &[Object]| Script::of(m, objects[0], |thing| thing.has = "x");
        for (promotes, when) in [(false, "before a collection"), (true, "after a promotion")] {
            let (text, looks) = stressed_by(verify, damaged, promotes);
            let start = format!("{when}, heap 'scripted': the header of the object at ");
            let end = format!(" is damaged: damage, on purpose. {ADVICE}");
            assert!(text.starts_with(&start) && text.ends_with(&end), "{text}");
            assert_eq!(looks, 0);
        }
        // The model is told that the world runs, and it does.
        let resumed = Arc::new(AtomicBool::new(false));
        let told = resumed.clone();
        let looks_again = |m: &Raw, _: &[Object]| {
            m.model().when("settle", move |m| {
                m.model().when("resumed", move |m| {
                    drop(m.stop_here().unwrap());
                    told.store(true, Ordering::Relaxed);
                });
            });
        };
        assert_eq!(stressed_by(verify, looks_again, false), (String::new(), 3));
        assert!(resumed.load(Ordering::Relaxed));
        // Damage that happens later is found by the next look.
        let later = |m: &Raw, _: &[Object]| {
            m.model().when("settle", |m| assert_ne!(Script::thing(m, 'z', "x", "s").address(), 0));
        };
        let (text, looks) = stressed_by(verify, later, false);
        assert!(text.starts_with("after a collection, heap 'scripted': the header of "), "{text}");
        assert_eq!(looks, 2);
    }

    #[test]
    fn under_stress_a_wrong_traversal_is_an_error_only_where_counts_are_looked_at() {
        let twice = |m: &Raw, objects: &[Object]| {
            let kept = Script::thing(m, 't', "", "t");
            let target = Script::thing(m, 'u', "", "s");
            Script::link(m, kept, target);
            m.model().drop_ref(target, m);
            assert!(objects.len() == 2);
        };
        if Heap::builder().build().unwrap().core().stress != Stress::none() {
            return; // The environment asks for more of it.
        }
        assert_eq!(stressed_by(Stress::none().verify(true), twice, false), (String::new(), 3));
        let (text, _) = stressed_by(Stress::none().verify_counts(true), twice, false);
        assert!(text.starts_with("before a collection, heap 'scripted': the thing at "), "{text}");
        assert!(text.contains(" is visited 2 times but has Some(1) references. "), "{text}");
    }
}
