//! Tests of the arena.

use std::collections::HashSet;
use std::sync::mpsc;

use super::*;
use crate::memory::shape::PAGE_SIZE;
use crate::memory::size_class::{SMALL_MAX, class_align, class_of};
use crate::memory::space::SpaceConfig;

fn space() -> Space {
    limited(usize::MAX)
}

fn limited(limit: usize) -> Space {
    <Space>::open(SpaceConfig { reserve: Some(1 << 30), limit: Some(limit) }).unwrap()
}

fn addr(cell: NonNull<u8>) -> usize {
    cell.as_ptr().addr()
}

/// A cell on its way to another thread.
struct Sent(NonNull<u8>);
// SAFETY: rule *owner*: the receiver may free it.
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
            assert!(space.contains(addr(cell)) && addr(cell).is_multiple_of(class_align(class)));
            // SAFETY: rule *owner*: all its bytes belong to this thread.
            unsafe { cell.write_bytes(0xee, size) };
            let page = space.page_index(addr(cell));
            assert!(space.starts(page).any(|granule| granule == space.granule(addr(cell))));
            assert_eq!(space.page(page).young.load(Ordering::Relaxed), 1);
            assert_eq!(space.page(page).arena(), 1);
        }
        // The last one freed is the next one out.
        // SAFETY: rule *owner*: freed once each.
        unsafe { arena.free(&space, cells[7]) };
        assert_eq!(arena.alloc(&space, class), Ok(cells[7]));
        // SAFETY: rule *owner*: freed once each.
        cells.iter().for_each(|&cell| unsafe { arena.free(&space, cell) });
        let again: HashSet<_> = (0..200).map(|_| arena.alloc(&space, class).unwrap()).collect();
        assert_eq!(again.len(), 200);
        // SAFETY: rule *owner*: freed once each.
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
    // In an order that is unrelated to the addresses.
    for n in 0..cells.len() {
        // SAFETY: rule *owner*: 7919 is coprime with the length: each index once.
        unsafe { arena.free(&space, cells[n * 7919 % cells.len()]) };
    }
    let given_back = arena.take_count();
    assert_eq!((given_back.0 / 1000, given_back.1 / 64), (-1000, given_back.0));
    // Each cell in the magazine keeps its page in use.
    assert!(
        space.in_use_bytes() <= (MAGAZINE_CAPACITY + 1) * PAGE_SIZE,
        "{} bytes",
        space.in_use_bytes()
    );
    arena.trim(&space);
    assert_eq!(space.in_use_bytes(), 0);
}

#[test]
fn cached_cells_are_listed() {
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
    let object = arena.alloc_large(&space, SMALL_MAX + 1, 32, 0).unwrap();
    let huge = arena.alloc_large(&space, 10 * PAGE_SIZE, 4096, 0).unwrap();
    assert_eq!(space.in_use_bytes(), 12 * PAGE_SIZE);
    assert_eq!(arena.take_count(), (2, 12 * PAGE_SIZE as isize));
    assert_eq!(space.page(space.page_index(addr(huge))).shape().pages(), 11);
    // SAFETY: rule *owner*: freed once each.
    unsafe {
        arena.free(&space, object);
        Arena::free_remote(&space, huge);
    }
    assert_eq!(space.in_use_bytes(), 0);
    assert!(arena.alloc_large(&space, 1, 2 * PAGE_SIZE, 0).is_err());
}

#[test]
fn at_the_limit_nothing_breaks() {
    let space = limited(8 * PAGE_SIZE);
    let mut arena = Arena::new(1);
    let class = class_of(1000).unwrap();
    let mut cells = Vec::new();
    let mut refused = None;
    while let Ok(cell) = arena.alloc(&space, class).map_err(|error| refused = Some(error)) {
        cells.push(cell);
    }
    assert_eq!(cells.len(), 8 * CLASS_SHAPES[usize::from(class)].cells());
    assert!(matches!(refused, Some(SpaceError::Limit { .. })));
    assert!(arena.alloc_large(&space, 1, 1, 0).is_err());
    // Remote frees are found at once, on any page.
    let last = cells.pop().unwrap();
    // SAFETY: rule *owner*: freed once.
    unsafe { Arena::free_remote(&space, last) };
    assert_eq!(arena.alloc(&space, class), Ok(last));
    cells.push(last);
    assert!(arena.alloc(&space, class).is_err());
    // An empty page is of use to another class, and to a large object.
    // SAFETY: rule *owner*: freed once each.
    cells.drain(..).for_each(|cell| unsafe { arena.free(&space, cell) });
    let large = arena.alloc_large(&space, 7 * PAGE_SIZE, 1, 0).unwrap();
    // SAFETY: rule *owner*: freed once.
    unsafe { arena.free(&space, large) };
    assert!(arena.alloc(&space, 0).is_ok());
}

#[test]
fn the_arena_that_frees_an_object_counts_it() {
    let space = space();
    let (mut one, mut other) = (Arena::new(1), Arena::new(2));
    let cells: Vec<_> =
        (0..10 * MAGAZINE_CAPACITY).map(|_| one.alloc(&space, 3).unwrap()).collect();
    let all = cells.len() as isize;
    let bytes = class_size(3) as isize;
    // The count includes the cells that are still in the magazine.
    let (taken, taken_bytes) = one.take_count();
    assert!((all..all + MAGAZINE_CAPACITY as isize).contains(&taken), "{taken} taken");
    assert_eq!(taken_bytes, taken * bytes);
    // The thread is to take the count once it has freed as many objects as a magazine contains.
    // SAFETY: rule *owner*: freed once each.
    let many: Vec<_> =
        cells.iter().map(|&cell| unsafe { other.free_elsewhere(&space, cell) }).collect();
    assert_eq!(many.iter().position(|&many| many), Some(MAGAZINE_CAPACITY - 1));
    assert_eq!(other.take_count(), (-all, -all * bytes));
    // The owner finds the free memory and uses it again. This counts as taken, and nothing else
    // does.
    let cells: Vec<_> = cells.iter().map(|_| one.alloc(&space, 3).unwrap()).collect();
    let (again, again_bytes) = one.take_count();
    assert!(
        (all - (MAGAZINE_CAPACITY as isize)..all + MAGAZINE_CAPACITY as isize).contains(&again),
        "{again} taken again"
    );
    assert_eq!(again_bytes, again * bytes);
    let large = one.alloc_large(&space, SMALL_MAX + 1, 1, 0).unwrap();
    one.take_count();
    // Frees that are not to be counted are not.
    assert!(other.count_frees(false));
    // SAFETY: rule *owner*: freed once each.
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
                // SAFETY: rule *owner*: freed once each.
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
            // SAFETY: rule *owner*: the cell belongs to this thread.
            unsafe { cell.write_bytes(0xaa, 64) };
            send.send(Sent(cell)).unwrap();
        }
        drop(send);
    });
    // Some 1,100 cells are alive at once. They need 2 pages, and the probing of full pages lags
    // behind.
    assert!(space.in_use_bytes() <= 40 * PAGE_SIZE, "{} bytes", space.in_use_bytes());
    arena.retire(&space);
    assert_eq!(space.in_use_bytes(), 0);
}

/// Two threads allocate, free their own cells and each other's, and sometimes end. A shadow byte
/// for each granule says whether a cell is in use, so no cell is ever handed out twice.
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
                // SAFETY: rule *owner*: in use; freed once.
                unsafe {
                    assert_eq!(Space::heap_of(addr(cell)).addr(), 0xbeef0);
                    assert_eq!(space.state(granule).swap(0, Ordering::AcqRel), 1, "freed twice");
                    arena.free(space, cell);
                }
            };
            let mut arena = Arena::new(id);
            let mut mine = Vec::new();
            for round in 0..ROUNDS {
                if next(2000) == 0 {
                    space.after_full();
                }
                let class = [0, 1, 3, 20, CLASSES - 1][next(500) * next(500) / 50_000];
                let cell = match next(2000) {
                    0 => arena.alloc_large(space, next(5 * PAGE_SIZE), 32, 0).unwrap(),
                    _ => arena.alloc(space, class as u8).unwrap(),
                };
                // SAFETY: rule *mapped*: handed out.
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
            // SAFETY: rule *owner*: freed once; ours to write.
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
                        // SAFETY: rule *owner*: this thread may write it.
                        unsafe { place.cast::<u64>().write(1) };
                    }
                    // SAFETY: rule *owner*: freed once each.
                    order.iter().for_each(|&n| unsafe { arena.free(&space, cells[n]) });
                }
            });
        }
    }
}

#[test]
fn a_retired_arena_is_as_a_new_one_and_visits_only_classes_that_it_has_used() {
    let space = limited(2 * PAGE_SIZE);
    let mut arena = Arena::new(1);
    assert_eq!(arena.used, 0);
    let cells: Vec<_> = (0..3).map(|_| arena.alloc(&space, 0).unwrap()).collect();
    let other = arena.alloc(&space, CLASSES as u8 - 1).unwrap();
    assert_eq!(arena.used, 1 | 1 << (CLASSES - 1));
    assert!(arena.alloc(&space, 5).is_err());
    let mut pages = Vec::new();
    arena.for_each_page(&space, |class, has_free, _| pages.push((class, has_free)));
    assert_eq!(pages, [(0, true), (CLASSES as u8 - 1, true)]);
    assert!(arena.count_frees(false));
    // SAFETY: rule *owner*: freed once.
    assert!(unsafe { arena.free_here(&space, other) });
    arena.retire(&space);
    arena.take_count();
    assert_eq!((arena.used, arena.counts_frees), (0, true));
    arena.for_each_page(&space, |_, _, _| panic!("a page"));
    arena.for_each_cached(|_| panic!("a cell"));
    assert!((0..CLASSES).all(|class| arena.magazines.cells(class).next().is_none()));
    assert!(
        arena
            .pages
            .iter()
            .all(|pages| { (pages.partial.len(), pages.full.len(), pages.spare) == (0, 0, None) })
    );
    // The page with cells is abandoned, and taken over again. The empty one is free for any class.
    assert_eq!((space.in_use_bytes(), space.pool().abandoned.len()), (PAGE_SIZE, 1));
    let again = arena.alloc(&space, 0).unwrap();
    assert_eq!(space.page_index(addr(again)), space.page_index(addr(cells[0])));
    assert_eq!((arena.used, space.pool().abandoned.len()), (1, 0));
    arena.alloc(&space, 5).expect("a page");
}
