//! Looking at a whole heap for what must not be: for stress modes, tests, and
//! [`Mutator::verify`](crate::Mutator::verify).
//!
//! Two views of the same memory are held against each other. The *pages*: what the pool, the arenas' lists, the free bits,
//! the remote stacks and the quarantine say about which cells are free. The *objects*: what the state bytes say is alive,
//! what the headers say, and what the fields lead to. A cell that neither knows is no error: its memory may have been handed
//! out and hold no object yet.

use std::collections::{HashMap, HashSet};

use crate::arena::{CLASSES, shape_of};
use crate::collect::count::{guard_traversal, object_at};
use crate::model::{ModelMutator, ObjectModel};
use crate::mutator::World;
use crate::object::Tracer;
use crate::space::{PAGE_GRANULES, PageKind, PoolView, Space};
use crate::sync::Ordering;
use crate::tracked::{DYING, LIVE, OLD, State, TRACKED, UNREACHABLE};

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
    pages(world)?;
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
            return Err(format!("the cell at {address:#x} is free twice, in {before:?} and {place:?}"));
        }
        Ok(())
    }

    /// All of them, found to be in one place each, must be as they were left.
    fn untouched(&self) -> Result<(), String> {
        let Some(freed) = self.space.freed() else { return Ok(()) };
        for (granule, &place) in self.places.iter().enumerate().filter(|&(_, &place)| place != Place::Nowhere)
        {
            // The first bytes of one on a remote stack are a link.
            let from = if place == Place::RemoteStack { size_of::<u32>() } else { 0 };
            // SAFETY: rules O and G: the cell is nobody's, and lies on a page that was handed out.
            unsafe { freed.check(self.space.memory(object_at(self.space, granule).as_ptr()), from)? };
        }
        Ok(())
    }
}

/// The pages against the lists that they are on, and the cells against the places where free ones wait.
fn pages<M: ObjectModel>(world: &World<'_, M>) -> Result<(), String> {
    let space = &world.core().space;
    let states = space.states();
    let mut free = Free { space, places: vec![Place::Nowhere; states.len()] };
    let PoolView { holes, abandoned, in_use, heap } = space.pool();

    let (mut cached, mut owners) = (Vec::new(), HashSet::new());
    // By page: whose list it is on, of which class, and whether among those with free cells.
    let mut listed = HashMap::<u32, (u32, u8, Option<bool>)>::new();
    let mut twice = None;
    world.arenas(|arena| {
        owners.insert(arena.id());
        arena.for_each_cached(|cell| cached.push((space.granule(cell.as_ptr().addr()), arena.id())));
        let id = arena.id();
        arena.for_each_page(space, |class, has_free, page| {
            if listed.insert(page, (id, class, Some(has_free))).is_some() {
                twice = Some(page);
            }
        });
    });
    for (class, page) in abandoned {
        if listed.insert(page, (0, class, None)).is_some() {
            twice = Some(page);
        }
    }
    if let Some(page) = twice {
        return Err(format!("page {page} is on two lists"));
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
                let Some((of, class, has_free)) = listed.remove(&(page as u32)) else {
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
        return Err(format!("{used} pages of {} are in use, and the pool says {in_use}", space.high_water()));
    }
    if let Some((page, (of, ..))) = listed.into_iter().next() {
        return Err(format!("page {page} is on a list of arena {of}, and is no page of small objects"));
    }
    for (granule, id) in cached {
        free.found(granule, Place::Magazine)?;
        let owner = space.page(granule / PAGE_GRANULES).arena();
        if owner != id {
            return Err(format!("a magazine of arena {id} has a cell of a page of arena {owner}"));
        }
    }
    for cell in space.freed().into_iter().flat_map(|freed| freed.kept()) {
        free.found(space.granule(cell.start().as_ptr().addr()), Place::Quarantine)?;
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
                    error =
                        Some(format!("a free cell at {:#x} has state {bits:#04x}", space.address(granule)));
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
        return Err(format!("no object starts at {:#x}, yet it has a state", space.address(granule)));
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
    use super::*;
    use crate::managed::Managed;
    use crate::space::{PAGE_SIZE, Shape};
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
        let heap = Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).stress(stress).build().unwrap();
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
                world.core().space.info(PAGE).owned(|owned| owned.free = owned.free.wrapping_add(by));
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
                space.free_bits(PAGE, |bits| bits.iter().position(|&word| word >> 63 != 0).unwrap() * 64 + 63)
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
        let found =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&world, Depth::Structure)));
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
            let freed = unsafe { cell.add(2 * space.page(PAGE as usize).shape().room().bytes() + 20) };
            // SAFETY: rule O: nobody uses it.
            unsafe { freed.write(0) };
            // SAFETY: as above.
            Box::new(move |_| unsafe { freed.write(crate::freed::POISON) })
        });
    }
}
