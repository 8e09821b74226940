//! Tests of the sampling.

use super::*;
use crate::memory::arena::Arena;
use crate::memory::space::{Space, SpaceConfig};

/// What the mutator does: whether the cell is for a sample, which is freed at once.
fn allocate(arena: &mut Arena, space: &Space, class: u8) -> Option<NonNull<u8>> {
    arena
        .pop(class)
        .or_else(|| arena.turn(class))
        .or_else(|| if arena.is_due(class) { None } else { arena.alloc(space, class).ok() })
}

#[test]
fn each_allocation_counts_whatever_is_freed_meanwhile() {
    let space = <Space>::open(SpaceConfig { reserve: Some(1 << 30), limit: None }).unwrap();
    let mut arena = Arena::new(1);
    arena.sample_every(2_000).unwrap();
    let (class, bytes) = (1, 64.0);
    assert_eq!(f64::from(class_size(class) as u32), bytes);
    // Of three objects the first one dies at once, and the third one later.
    let (mut samples, mut later) = ([0_u32; 3], Vec::new());
    for _ in 0..100_000 {
        for (kind, samples) in samples.iter_mut().enumerate() {
            match (allocate(&mut arena, &space, class), kind) {
                (None, _) => *samples += 1,
                // SAFETY: rule *owner*: freed once.
                (Some(cell), 0) => assert!(unsafe { arena.free_here(&space, cell) }),
                (Some(_), 1) => {}
                (Some(cell), _) => later.push(cell),
            }
        }
        if later.len() == 100 {
            // SAFETY: rule *owner*: freed once.
            later.drain(..).for_each(|cell| assert!(unsafe { arena.free_here(&space, cell) }));
        }
    }
    let expected = 100_000.0 * (1.0 - f64::exp(-bytes / 2_000.0));
    for seen in samples {
        let error = (f64::from(seen) - expected).abs() / expected.sqrt();
        assert!(error < 4.0, "{samples:?} for {expected}: {error} standard errors");
    }
}

/// As a thread does that attaches for an object each.
#[test]
fn cells_that_come_back_without_an_object_do_not_count() {
    let space = <Space>::open(SpaceConfig { reserve: Some(1 << 30), limit: None }).unwrap();
    let mut arena = Arena::new(1);
    arena.sample_every(2_000).unwrap();
    let (class, bytes, mut samples) = (1, 64.0, 0_u32);
    for _ in 0..20_000 {
        samples += u32::from(allocate(&mut arena, &space, class).is_none());
        arena.empty_magazines(&space);
    }
    let expected = 20_000.0 * (1.0 - f64::exp(-bytes / 2_000.0));
    let error = (f64::from(samples) - expected).abs() / expected.sqrt();
    assert!(error < 4.0, "{samples} for {expected}: {error} standard errors");
}

#[test]
fn the_countdown_is_geometric() {
    let mut countdown = Countdown::new(1_000).unwrap();
    let p = 1.0 - f64::exp(-0.1);
    let drawn: Vec<u32> = (0..100_000).map(|_| countdown.draw(100)).collect();
    let share = |n: u32| drawn.iter().filter(|&&drawn| drawn == n).count() as f64 / 1e5;
    assert!((share(0) - p).abs() < 0.005, "{}", share(0));
    assert!((share(5) - p * (1.0 - p).powi(5)).abs() < 0.005, "{}", share(5));
    // An object as large as a thousand means is always one, and one of a thousandth hardly ever.
    assert!((0..1_000).all(|_| countdown.is_large_due(1_000_000)));
    assert!((0..1_000).filter(|_| countdown.is_large_due(1)).count() < 10);
}

/// The number of samples of a heap with a sample for each object.
#[cfg(feature = "stacks")]
fn live(m: &mut crate::Mutator) -> usize {
    let found = m.allocation_sites().expect("the heap samples");
    found.sites.iter().map(|site| site.samples).sum()
}

#[cfg(feature = "stacks")]
#[test]
fn an_object_with_a_prefix_has_its_sample_until_its_memory_is_freed() {
    use crate::memory::shape::PAGE_SIZE;

    let heap = crate::Heap::builder().sample_allocations(1).reserve(1 << 30).build().unwrap();
    let mut m = heap.attach();
    for size in [0, 40, 1_000, PAGE_SIZE, 3 * PAGE_SIZE] {
        let made = [0, 8, 100].map(|prefix| m.raw().allocate_at(size, 32, prefix).unwrap());
        assert_eq!(live(&mut m), 3);
        // SAFETY: rule *new*: each was never published, and is freed once.
        unsafe {
            m.raw().free(made[1]);
            assert_eq!(live(&mut m), 2);
            // As a thread without a mutator frees: an attached one does the rest.
            m.raw().heap().free_from_anywhere(made[0]);
            m.raw().heap().free_from_anywhere(made[2]);
        }
        assert_eq!(live(&mut m), 2);
        m.raw().free_left_memory();
        assert_eq!(live(&mut m), 0);
    }
    m.verify().unwrap();
}
