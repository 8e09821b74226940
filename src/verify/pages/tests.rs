//! Tests of `verify/pages.rs`.

use super::*;
use crate::base::stress::Stress;
use crate::collect::scope::object_at;
use crate::managed::Managed;
use crate::memory::shape::{PAGE_SIZE, Shape};
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::state::LIVE;
use crate::object::tracer::Tracer;
use crate::verify::objects::{Depth, check};
use crate::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

// By hand: the derive names the crate, which this is.
impl Trace for Node {
    fn traverse(this: &Self, t: &mut Tracer) {
        Trace::traverse(&this.next, t);
    }
}

fn node(m: &Mutator) -> Gc<Node> {
    m.alloc(Node { next: GcCell::new(None) })
}

/// Damages a heap of two nodes, a freed node and a large object with `plant`. The verifier's
/// message must contain `expected`. Then repairs the damage with the closure that `plant`
/// returned.
fn finds(
    expected: &str,
    plant: impl FnOnce(&World<'_, Managed>, Gc<Node>) -> Box<dyn FnOnce(&World<'_, Managed>)>,
) {
    // Magazines have no room, so free cells are in the free bits.
    let stress = Stress::none().poison(true);
    let heap =
        Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).stress(stress).build().unwrap();
    let mut m = heap.attach();
    let (a, b) = (node(&m), node(&m));
    a.next.set(&m, Some(b.clone()));
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
            // SAFETY: rule *stopped*: the world is stopped.
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
            // SAFETY: rule *stopped*: the world is stopped.
            world.core().space.free_bits(PAGE, |bits| bits[0] ^= 1);
        };
        flip(world);
        Box::new(flip)
    });
}

#[test]
fn a_page_that_miscounts_its_free_bits() {
    finds("but counts", |world, _| {
        let add = |world: &World<'_, Managed>, by: u32| unsafe {
            // SAFETY: rule *stopped*: the world is stopped.
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
        // SAFETY: rule *stopped*: the world is stopped; the free bits stand still.
        let cell = unsafe {
            let first = space.free_bits(PAGE, |bits| {
                bits.iter()
                    .position(|&word| word != 0)
                    .map(|at| at * 64 + bits[at].trailing_zeros() as usize)
            });
            object_at(space, first.unwrap()).as_ptr()
        };
        // SAFETY: rule *owner*: it is free, if twice.
        unsafe { space.push_remote(cell) };
        Box::new(move |world| {
            let space = &world.core().space;
            // SAFETY: rules *owner* and *stopped*: the world is stopped, and with it the page's
            // owner. The bit is set already, and the count one too high.
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
        // SAFETY: rule *stopped*: the world is stopped.
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
    finds("its page is not marked as young", |world, _| {
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
            // SAFETY: rule *stopped*: the world is stopped.
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
            // SAFETY: rule *stopped*: the world is stopped.
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
        // SAFETY: rule *mapped*: inside the range.
        let header = unsafe { space.cell(PAGE as usize * PAGE_GRANULES) }.cast::<u64>();
        // SAFETY: rules *owner* and *stopped*: the header of a page in use; the world is
        // stopped.
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
    // The cell is freed as if by another thread, and then written to.
    // SAFETY: rule *stopped*: the world is stopped, and the handle is leaked below.
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
        // The third cell of the page was freed. It follows the second cell.
        // SAFETY: rule *bounds*: on the page.
        let freed = unsafe { cell.add(2 * space.page(PAGE as usize).shape().room().bytes() + 20) };
        // SAFETY: rule *owner*: nothing uses it.
        unsafe { freed.write(0) };
        // SAFETY: as above.
        Box::new(move |_| unsafe { freed.write(crate::memory::quarantine::POISON) })
    });
}

/// The heap has a page of small objects, a hole of two pages, and a large object of two pages.
/// Another page of small objects follows, and at the end a large object of two pages. `plant`
/// damages the heap or the lists, and returns the error that the verifier must find.
fn says(plant: impl FnOnce(&Space, &mut PageLists) -> String) {
    let heap = Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).build().unwrap();
    let m = heap.attach();
    let two_pages = || m.alloc([0u64; PAGE_SIZE / 8]);
    let small = node(&m);
    let (hole, large, other, last) = (two_pages(), two_pages(), m.alloc([0u64; 100]), two_pages());
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
        let mut lists = PageLists::of(&world);
        assert!(!lists.cached.is_empty());
        lists.pages.sort_by_key(|entry| entry.page);
        let expected = plant(space, &mut lists);
        assert_eq!(pages(&world, lists), Err(expected));
        for (page, (shape, arena)) in shapes.into_iter().enumerate() {
            // SAFETY: rule *stopped*: the world is stopped.
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
    // SAFETY: rule *stopped*: the world is stopped.
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
        "page 3 is on a list of arena 9, but holds no small objects".to_owned()
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
        // The page has the right class and a wrong cell size.
        shape(space, 5, Shape::small(lists.pages[1].class, 32));
        is_on_another_list(arena(space), space, &lists.pages[1])
    });
    says(|space, lists| {
        // SAFETY: rules *owner* and *stopped*: the world is stopped.
        let free = unsafe { space.info(5).owned(|owned| owned.free) };
        let has_free = lists.pages[1].has_free.unwrap();
        assert_eq!(has_free, free > 0);
        lists.pages[1].has_free = Some(!has_free);
        let which = if free == 0 { "some" } else { "none" };
        format!("page 5 has {free} free bits, and is on the list of pages that have {which}")
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
        shape(space, 3, Shape::large(3 * PAGE_SIZE - 64, 32, 0).unwrap());
        "page 5 is Small, 1 pages before the end of a large object".to_owned()
    });
    says(|space, _| {
        shape(space, 3, Shape::large(PAGE_SIZE - 64, 32, 0).unwrap());
        "page 4 is Tail, 0 pages before the end of a large object".to_owned()
    });
    says(|space, lists| {
        shape(space, 6, Shape::large(3 * PAGE_SIZE - 64, 32, 0).unwrap());
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
    let lists = PageLists::of(&world);
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
    let heap =
        Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).stress(stress).build().unwrap();
    let m = heap.attach();
    let kept = node(&m);
    drop(node(&m));
    let world = m.raw().stop_here().unwrap();
    let space = &world.core().space;
    let freed = PageLists::of(&world).quarantine;
    assert_eq!(freed.len(), 1);
    assert_eq!(pages(&world, PageLists::of(&world)), Ok(()));
    let address = space.address(freed[0]);
    let found = |granule: usize| {
        let mut lists = PageLists::of(&world);
        lists.quarantine.push(granule);
        pages(&world, lists)
    };
    let twice = format!("the cell at {address:#x} is free twice, in Quarantine and Quarantine");
    assert_eq!(found(freed[0]), Err(twice));
    let live = granule(space, &kept);
    let state = StateByte(&space.states()[live]).get();
    let not_free =
        format!("a free cell at {:#x} (Quarantine) has state {state:#04x}", space.address(live));
    assert_eq!(found(live), Err(not_free));
    drop(world);
}

/// In a cell on a remote stack the first bytes are a link, in other free cells they are poison.
#[test]
fn a_write_to_the_first_byte_of_free_memory() {
    let stress = Stress::none().poison(true);
    let heap =
        Heap::builder().pacing(Pacing::manual()).reserve(1 << 30).stress(stress).build().unwrap();
    let m = heap.attach();
    let (here, there) = (node(&m), node(&m));
    let cells = [&here, &there]
        .map(|node| object_at(&heap.core().space, granule(&heap.core().space, node)));
    drop(here);
    std::mem::forget(there);
    let world = m.raw().stop_here().unwrap();
    let [here, there] = cells.map(Object::as_ptr);
    // SAFETY: rule *owner*: it is free, and nothing uses it.
    unsafe { here.write(0) };
    let error = check(&world, Depth::Structure).expect_err("a write");
    assert!(error.contains("bytes 0 to 0 are no longer 0xde"), "{error}");
    // SAFETY: as above.
    unsafe { here.write(crate::memory::quarantine::POISON) };
    // The cell is freed as if by another thread.
    // SAFETY: rules *owner* and *stopped*: the world is stopped, and the handle was leaked
    // above.
    unsafe {
        world.core().state(there.as_ptr().addr()).death();
        there.write_bytes(
            crate::memory::quarantine::POISON,
            world.core().space.memory(there).room().bytes(),
        );
        world.core().space.push_remote(there);
    }
    assert_eq!(check(&world, Depth::Structure), Ok(()));
    // SAFETY: rule *owner*: it is free, and nothing uses it.
    let behind = unsafe { there.add(size_of::<u32>()) };
    // SAFETY: as above.
    unsafe { behind.write(0) };
    let error = check(&world, Depth::Structure).expect_err("a write");
    assert!(error.contains("bytes 4 to 4 are no longer 0xde"), "{error}");
    // SAFETY: as above.
    unsafe { behind.write(crate::memory::quarantine::POISON) };
    drop(world);
}
