//! Tests of the space.

use std::collections::HashSet;

use super::*;
use crate::base::system::testing;
use crate::memory::arena::Arena;
use crate::memory::pool::RESIDENT_PAGES;
use crate::memory::shape::{GRANULE, PAGE_GRANULES, PAGE_HEADER};
use crate::memory::size_class::class_of;

const CHUNK_PAGES: usize = (2 << 20) / PAGE_SIZE;

fn space(reserve: usize, limit: usize) -> Space {
    <Space>::open(SpaceConfig { reserve: Some(reserve), limit: Some(limit) }).unwrap()
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
    assert!(!space.contains(space.base() - 1) && !space.contains(space.base() + 64 * PAGE_SIZE));
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
    let space = <Space>::open(SpaceConfig::default()).unwrap();
    assert!(space.reserved_bytes() >= 64 << 20);
    assert_eq!((space.committed_bytes(), space.in_use_bytes(), space.high_water()), (0, 0, 0));
    assert!(space.states().is_empty());
}

#[test]
fn an_absurd_reserve_is_halved_and_a_refused_one_is_an_error() {
    // No address space is that large: the number of pages is capped, and then halved.
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
        let object = space.acquire_large(size, align, 0).unwrap();
        assert_eq!(object.as_ptr().addr() % align, 0);
        // SAFETY: rule *owner*: a large object in use. All its bytes belong to this thread.
        unsafe {
            object.write_bytes(0xff, size);
            assert_eq!(Space::heap_of(object.as_ptr().addr()), word);
        }
        let page = space.page_index(object.as_ptr().addr());
        assert_eq!(space.starts(page).collect::<Vec<_>>(), [space.granule(object.as_ptr().addr())]);
    }
    let error = space.acquire_large(1, PAGE_SIZE, 0).unwrap_err();
    assert_eq!(error, SpaceError::Alignment { align: PAGE_SIZE });
}

#[test]
fn runs_coalesce_and_the_lowest_hole_is_reused() {
    let space = space(64 * PAGE_SIZE, usize::MAX);
    let take = |pages: usize| space.acquire_large(pages * PAGE_SIZE - PAGE_HEADER, 1, 0).unwrap();
    // SAFETY: rule *owner*: each is released once.
    let give = |object| unsafe { space.release(page_of(&space, object)) };
    let runs: Vec<_> = (0..6).map(|_| take(2)).collect();
    assert_eq!(space.high_water(), 12);
    assert_eq!(space.page(3).shape().kind(), PageKind::Tail);
    assert_eq!(space.starts(3).len(), 0);
    // Two holes of two pages, then the page run between them: together one hole of six pages.
    give(runs[1]);
    give(runs[3]);
    assert_eq!(take(3), space_at(&space, 12));
    give(runs[2]);
    assert_eq!(space.pool().holes, [(2, 6)]);
    assert_eq!(take(1), space_at(&space, 2));
    assert_eq!(take(5), space_at(&space, 3));
    assert!(space.pool().holes.is_empty());
    // A hole that reaches the high-water mark is the beginning of a larger run.
    give(space_at(&space, 12));
    assert_eq!(take(10), space_at(&space, 12));
    assert_eq!(space.high_water(), 22);
    for page in [0, 2, 3, 8, 10, 12] {
        give(space_at(&space, page));
    }
    assert_eq!(space.in_use_bytes(), 0);
    assert_eq!(space.pool().holes, [(0, 22)]);
    assert!((0..22).all(|page| space.page(page).shape() == Shape::FREE));
}

fn space_at(space: &Space, page: usize) -> NonNull<u8> {
    // SAFETY: rule *mapped*: inside the range.
    unsafe { space.cell(page * PAGE_GRANULES + PAGE_HEADER / GRANULE) }
}

#[test]
fn the_limit_and_the_range_refuse_and_change_nothing() {
    let small = space(16 * PAGE_SIZE, 4 * PAGE_SIZE + 100);
    let object = small.acquire_large(3 * PAGE_SIZE, 1, 0).unwrap();
    let error = small.acquire_large(1, 1, 0).unwrap_err();
    let (asked, full) = (PAGE_SIZE, 4 * PAGE_SIZE);
    assert_eq!(error, SpaceError::Limit { asked, in_use: full, limit: full });
    assert!(error.to_string().contains("limit"));
    // SAFETY: rule *owner*: released once.
    unsafe { small.release(page_of(&small, object)) };
    assert!(small.acquire_large(1, 1, 0).is_ok());

    let tight = space(4 * PAGE_SIZE, usize::MAX);
    let first = tight.acquire_large(1, 1, 0).unwrap();
    let second = tight.acquire_large(PAGE_SIZE, 1, 0).unwrap();
    // SAFETY: rule *owner*: released once.
    unsafe { tight.release(page_of(&tight, first)) };
    // One page is free on each side of the second object, but no two adjacent pages are.
    assert!(matches!(tight.acquire_large(PAGE_SIZE, 1, 0), Err(SpaceError::Full { .. })));
    assert!(matches!(tight.acquire_large(usize::MAX, 1, 0), Err(SpaceError::Full { .. })));
    assert_eq!((tight.in_use_bytes(), tight.high_water()), (2 * PAGE_SIZE, 3));
    assert_eq!(tight.page_index(second.as_ptr().addr()), 1);
    assert!(tight.acquire_large(1, 1, 0).is_ok() && tight.acquire_large(1, 1, 0).is_ok());
}

#[test]
fn every_byte_is_accessible_across_chunks() {
    // A multiple neither of the pages of a chunk nor of a page of the tables.
    let pages = 3 * CHUNK_PAGES + 5;
    let space = space(pages * PAGE_SIZE, usize::MAX);
    let mut committed = 0;
    for page in 0..pages {
        let object = space.acquire_large(PAGE_SIZE - PAGE_HEADER, 1, 0).unwrap();
        assert_eq!(space.page_index(object.as_ptr().addr()), page);
        // SAFETY: rule *owner*: all its bytes belong to this thread.
        unsafe { object.write_bytes(1, PAGE_SIZE - PAGE_HEADER) };
        assert_eq!(space.states().len(), (page + 1) * PAGE_GRANULES);
        space.states()[(page + 1) * PAGE_GRANULES - 1].store(1, Ordering::Relaxed);
        space.counts()[(page + 1) * PAGE_GRANULES - 1].store(1, Ordering::Relaxed);
        // SAFETY: rule *owner*: this thread owns the page.
        unsafe { space.free_bits(page as u32, |bits| assert_eq!(*bits, [0; _])) };
        assert!(space.committed_bytes() >= committed);
        committed = space.committed_bytes();
    }
    assert!(committed >= pages * PAGE_SIZE);
    assert!(matches!(space.acquire_large(1, 1, 0), Err(SpaceError::Full { .. })));
    // One run across all chunks.
    let space = self::space(pages * PAGE_SIZE, usize::MAX);
    let bytes = pages * PAGE_SIZE - PAGE_HEADER;
    // SAFETY: rule *owner*: all its bytes belong to this thread.
    unsafe { space.acquire_large(bytes, 1, 0).unwrap().write_bytes(1, bytes) };
    assert!(space.states().iter().all(|state| state.load(Ordering::Relaxed) == 0));
}

#[test]
fn pages_beyond_the_huge_threshold_work_like_others() {
    let space = space(96 << 20, usize::MAX);
    let objects: Vec<_> = (0..(80 << 20) / PAGE_SIZE)
        .map(|_| {
            let object = space.acquire_large(100, 1, 0).unwrap();
            // SAFETY: rule *owner*: the object belongs to this thread.
            unsafe { object.write(1) };
            object
        })
        .collect();
    for object in objects {
        // SAFETY: rule *owner*: released once.
        unsafe { space.release(page_of(&space, object)) };
    }
    assert_eq!(space.in_use_bytes(), 0);
}

#[test]
fn released_memory_goes_back_to_the_system() {
    let space = space(64 << 20, usize::MAX);
    let bytes = 16 << 20;
    if testing::resident(space.base(), PAGE_SIZE).is_none() {
        return;
    }
    let resident = |start, bytes| testing::resident(start, bytes).expect("as before");
    let take = || space.acquire_large(PAGE_SIZE - PAGE_HEADER, 1, 0).unwrap();
    let objects: Vec<_> = (0..bytes / PAGE_SIZE).map(|_| take()).collect();
    for object in &objects {
        // SAFETY: rule *owner*: all its bytes belong to this thread.
        unsafe { object.write_bytes(1, PAGE_SIZE - PAGE_HEADER) };
    }
    assert_eq!(resident(space.base(), bytes), bytes);
    for object in objects {
        // SAFETY: rule *owner*: released once.
        unsafe { space.release(page_of(&space, object)) };
    }
    assert_eq!(space.in_use_bytes(), 0);
    assert!(resident(space.base(), bytes) <= RESIDENT_PAGES * PAGE_SIZE);
    // A run that is larger than the cache is returned at once.
    let object = space.acquire_large(bytes - PAGE_HEADER, 1, 0).unwrap();
    // SAFETY: rule *owner*: all its bytes belong to this thread. It is released once.
    unsafe {
        object.write_bytes(1, bytes - PAGE_HEADER);
        assert_eq!(resident(space.base(), bytes), bytes);
        space.release(page_of(&space, object));
    }
    assert!(resident(space.base(), bytes) <= RESIDENT_PAGES * PAGE_SIZE);
}

#[test]
fn a_refusing_system_is_a_clean_error() {
    let space = space(4 * PAGE_SIZE, usize::MAX);
    // SAFETY: rule *owner*: replaces a part of the space's range that has no users yet.
    if !unsafe { testing::spoil(space.range.base, PAGE_SIZE) } {
        return;
    }
    let error = space.acquire_large(1, 1, 0).unwrap_err();
    assert!(matches!(error, SpaceError::Refused { asked: PAGE_SIZE, .. }), "{error}");
    assert!(error.to_string().contains("refuses"));
    assert_eq!((space.in_use_bytes(), space.high_water(), space.committed_bytes()), (0, 0, 0));
}

#[test]
fn pages_of_a_retired_arena_are_taken_over() {
    let space = space(1 << 30, usize::MAX);
    let (mut first, mut second) = (Arena::new(1), Arena::new(2));
    let class = class_of(2000).unwrap();
    let cells: Vec<_> = (0..100).map(|_| first.alloc(&space, class).unwrap()).collect();
    let in_use = space.in_use_bytes();
    // SAFETY: rule *owner*: freed once.
    unsafe { first.free(&space, cells[3]) };
    first.retire(&space);
    // Some cells were freed before the arena retired and some after. All are found before a
    // fresh page is taken.
    // SAFETY: rule *owner*: freed once.
    cells[50..].iter().for_each(|&cell| unsafe { second.free(&space, cell) });
    let mut again = HashSet::new();
    while space.in_use_bytes() == in_use {
        again.insert(second.alloc(&space, class).unwrap());
    }
    assert!(again.contains(&cells[3]) && cells[50..].iter().all(|cell| again.contains(cell)));
    for &cell in again.iter().chain(&cells[..3]).chain(&cells[4..50]) {
        // SAFETY: rule *owner*: freed once each.
        unsafe { second.free(&space, cell) };
    }
    second.retire(&space);
    space.sweep_abandoned();
    assert_eq!(space.in_use_bytes(), 0);
}

#[test]
fn abandoned_pages_that_became_empty_are_swept() {
    let space = space(1 << 30, usize::MAX);
    let mut arena = Arena::new(1);
    let cells: Vec<_> = (0..10_000).map(|n| arena.alloc(&space, n as u8 % 20).unwrap()).collect();
    arena.retire(&space);
    space.sweep_abandoned();
    assert!(space.in_use_bytes() >= 20 * PAGE_SIZE);
    // SAFETY: rule *owner*: freed once each.
    cells.into_iter().for_each(|cell| unsafe { Arena::free_remote(&space, cell) });
    space.sweep_abandoned();
    assert_eq!(space.in_use_bytes(), 0);
}
