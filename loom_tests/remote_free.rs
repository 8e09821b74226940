//! A cell is freed by a thread that does not own its page, while the page's owner drains it, gives it
//! away, or releases it.
//!
//! The page's free bits and counts are loom's `UnsafeCell`s, so that a second owner at the same time fails
//! the model; `World::users` holds one such cell per memory cell, so that using memory twice, or reusing it
//! without being ordered behind its last user, fails it as well.
//!
//! loom compares an exchange only with the *last* access to its atomic: were a push to begin with a load,
//! that load would hide the owner's look at the stack, and loom would not try the two in the other order.

use std::ptr::NonNull;
use std::sync::Arc;

use loom::cell::UnsafeCell;

use loom::thread;

use crate::arena::{Arena, class_of};
use crate::space::{PAGE_GRANULES, PAGE_HEADER, PAGE_SIZE, PageKind, Space, SpaceConfig};

/// A cell on its way to another thread.
struct Sent(NonNull<u8>);
// SAFETY: whoever has it may free it.
unsafe impl Send for Sent {}

/// Two cells fill a page.
const HALF: usize = (PAGE_SIZE - PAGE_HEADER) / 2;

struct World {
    space: Space,
    users: Vec<UnsafeCell<usize>>,
}

// SAFETY: the cells are only touched by whoever holds the memory they stand for; loom checks it.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(pages: usize) -> Arc<Self> {
        let config = SpaceConfig { reserve: Some(pages * PAGE_SIZE), limit: None };
        let users = (0..pages * PAGE_GRANULES).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { space: Space::reserve(config).unwrap(), users })
    }

    /// Uses the memory of a cell, as its holder does.
    fn touch(&self, cell: NonNull<u8>) {
        let granule = self.space.granule(cell.as_ptr().addr());
        // SAFETY: the holder is one thread; loom fails the model if it is not.
        self.users[granule].with_mut(|uses| unsafe { *uses += 1 });
    }

    fn take(&self, arena: &mut Arena) -> Option<NonNull<u8>> {
        let cell = arena.alloc(&self.space, class_of(HALF).unwrap())?;
        self.touch(cell);
        Some(cell)
    }

    fn give(&self, arena: Option<&mut Arena>, cell: NonNull<u8>) {
        self.touch(cell);
        // SAFETY: each cell is given once, by its holder.
        unsafe {
            match arena {
                Some(arena) => arena.free(&self.space, cell),
                None => Arena::free_remote(&self.space, cell),
            }
        }
    }

    /// Frees a cell on a thread without an arena.
    fn spawn_give(self: &Arc<Self>, cell: NonNull<u8>) -> thread::JoinHandle<()> {
        let (world, cell) = (Arc::clone(self), Sent(cell));
        thread::spawn(move || {
            let Sent(cell) = { cell };
            world.give(None, cell);
        })
    }

    /// All memory is back, and the pages agree.
    fn assert_empty(&self) {
        self.space.sweep_abandoned();
        assert_eq!(self.space.in_use_bytes(), 0);
        for page in 0..self.space.high_water() {
            assert_eq!(self.space.page(page).shape().kind(), PageKind::Free);
        }
    }
}

/// Two strangers free into one page while its owner looks for memory there.
///
/// Fails when the push publishes with `Relaxed`, or the drain takes with `Relaxed`: the owner then reuses a
/// cell without being ordered behind the thread that freed it. Fails when the drain is a load and a store:
/// a cell is lost in between.
#[test]
fn loom_remote_frees_meet_the_owner() {
    super::model(|| {
        let world = World::new(1);
        let mut arena = Arena::new(1);
        let cells = [world.take(&mut arena).unwrap(), world.take(&mut arena).unwrap()];
        let strangers = cells.map(|cell| world.spawn_give(cell));
        // The range is one page: what comes now was freed by a stranger.
        let again = world.take(&mut arena);
        for stranger in strangers {
            stranger.join().unwrap();
        }
        let rest = [world.take(&mut arena), world.take(&mut arena), None];
        let mut cells: Vec<_> = rest.into_iter().chain([again]).flatten().collect();
        assert_eq!(cells.len(), 2, "a freed cell was lost or came twice");
        cells.drain(..).for_each(|cell| world.give(Some(&mut arena), cell));
        arena.retire(&world.space);
        world.assert_empty();
    });
}

/// A stranger frees into a page while its arena ends and another adopts the page.
///
/// Fails when `abandon` leaves the pages' arena as it was (a former owner then takes a cell for its own),
/// when the sweep releases a page one cell early, and with a `Relaxed` push or drain.
#[test]
fn loom_remote_free_meets_retirement_and_adoption() {
    super::model(|| {
        let world = World::new(1);
        let mut first = Arena::new(1);
        let cells = [world.take(&mut first).unwrap(), world.take(&mut first).unwrap()];
        let stranger = world.spawn_give(cells[0]);
        let adopter = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut second = Arena::new(2);
                // The page may still be the first arena's, or adopted without a free cell on it.
                if let Some(cell) = world.take(&mut second) {
                    world.give(Some(&mut second), cell);
                }
                second.retire(&world.space);
            })
        };
        first.retire(&world.space);
        world.give(Some(&mut first), cells[1]);
        stranger.join().unwrap();
        adopter.join().unwrap();
        world.assert_empty();
    });
}

/// A stranger frees the last cell of a page whose owner trims: the page is released, and taken again for
/// one object, as soon as the owner sees the cell, and not before.
///
/// Fails when a page counts as empty while one of its cells is still out (`free + 1 >= cells`), and with a
/// `Relaxed` push or drain.
#[test]
fn loom_remote_free_meets_the_release_of_its_page() {
    super::model(|| {
        let world = World::new(1);
        let mut arena = Arena::new(1);
        let cells = [world.take(&mut arena).unwrap(), world.take(&mut arena).unwrap()];
        let stranger = world.spawn_give(cells[0]);
        world.give(Some(&mut arena), cells[1]);
        arena.trim(&world.space);
        if let Ok(object) = world.space.acquire_large(PAGE_SIZE - PAGE_HEADER, 1) {
            // All memory of the page is this object's now.
            cells.iter().for_each(|&cell| world.touch(cell));
            // SAFETY: ours, and freed once.
            unsafe { arena.free(&world.space, object) };
        }
        stranger.join().unwrap();
        arena.retire(&world.space);
        world.assert_empty();
    });
}
