//! A thread frees a cell on a page of another thread, while that thread drains the page, gives it
//! away, or releases it.
//!
//! The free bits and the counts of the page are loom's `UnsafeCell`s, so a second owner at the same
//! time fails the model. `World::users` has one such cell per memory cell. So a model fails, too,
//! if memory is used twice, or reused without an ordering after its last user.
//!
//! loom compares an exchange only with the *last* access to its atomic. If a push began with a
//! load, that load would hide the owner's load of the stack, and loom would not try the two in the
//! other order.
//!
//! # Transitions
//!
//! The page of `space` describes the places of a cell, and the page of `arena` those of a page of
//! cells.
//!
//! * in use to the remote stack of its page, by another thread: all models
//! * remote stack to free bits, by the owner at a refill or a trim: `remote_frees_meet_the_owner`,
//!   `remote_free_meets_the_release_of_its_page`
//! * the same, by a thread that takes over or sweeps abandoned pages:
//!   `remote_free_meets_retirement_and_takeover`, `two_arenas_end_and_one_takes_over`
//! * page: owned to abandoned: `remote_free_meets_retirement_and_takeover`
//! * page: abandoned to owned by another arena: `remote_free_meets_retirement_and_takeover`,
//!   `two_arenas_end_and_one_takes_over`
//! * page: owned, or abandoned, to the pool: `remote_free_meets_the_release_of_its_page`,
//!   `remote_free_meets_retirement_and_takeover`
//! * page: from the pool to in use, as another kind: `remote_free_meets_the_release_of_its_page`
//! * large object: in use to the pool, by another thread, and out of the pool again:
//!   `a_large_object_is_freed_by_a_stranger`
//! * a mutator ends while a collection counts: `collect::collection_meets_a_birth_and_an_end`

use std::ptr::NonNull;
use std::sync::Arc;

use loom::cell::UnsafeCell;

use loom::thread;

use crate::memory::arena::Arena;
use crate::memory::shape::{PAGE_GRANULES, PAGE_HEADER, PAGE_SIZE, PageKind};
use crate::memory::size_class::class_of;
use crate::memory::space::{Space, SpaceConfig};

/// A cell on its way to another thread.
struct Sent(NonNull<u8>);
// SAFETY: the thread that has it may free it.
unsafe impl Send for Sent {}

/// Two cells fill a page.
const HALF: usize = (PAGE_SIZE - PAGE_HEADER) / 2;

struct World {
    space: Space,
    users: Vec<UnsafeCell<usize>>,
}

// SAFETY: only the thread that holds a memory cell touches its counter; loom checks it.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(pages: usize) -> Arc<Self> {
        let config = SpaceConfig { reserve: Some(pages * PAGE_SIZE), limit: None };
        let users = (0..pages * PAGE_GRANULES).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { space: <Space>::open(config).unwrap(), users })
    }

    /// Uses the memory of a cell.
    fn touch(&self, cell: NonNull<u8>) {
        let granule = self.space.granule(cell.as_ptr().addr());
        // SAFETY: one thread holds the cell; loom fails the model otherwise.
        self.users[granule].with_mut(|uses| unsafe { *uses += 1 });
    }

    fn take(&self, arena: &mut Arena) -> Option<NonNull<u8>> {
        let cell = arena.alloc(&self.space, class_of(HALF).unwrap()).ok()?;
        self.touch(cell);
        Some(cell)
    }

    fn give(&self, arena: Option<&mut Arena>, cell: NonNull<u8>) {
        self.touch(cell);
        // SAFETY: its holder frees each cell once.
        unsafe {
            match arena {
                Some(arena) => arena.free(&self.space, cell),
                None => Arena::free_remote(&self.space, cell),
            }
        }
    }

    /// As [`give`](Self::give), by a thread that knows the size class.
    fn give_of_class(&self, arena: &mut Arena, cell: NonNull<u8>) {
        self.touch(cell);
        // SAFETY: its holder frees each cell once, and the cell is of this class.
        unsafe {
            let page = self.space.page_of(cell.as_ptr().addr());
            if !arena.free_of_class(&self.space, cell, page, class_of(HALF).unwrap()) {
                arena.free_elsewhere(&self.space, cell);
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

/// Two threads free into one page while the page's owner allocates there.
///
/// Fails if the push publishes with `Relaxed`, or the drain takes with `Relaxed`: the owner then
/// reuses a cell without an ordering after the thread that freed it. Fails if the drain is a load
/// and a store: a cell is lost in between.
#[test]
fn loom_remote_frees_meet_the_owner() {
    super::model(|| {
        let world = World::new(1);
        let mut arena = Arena::new(1);
        let cells = [world.take(&mut arena).unwrap(), world.take(&mut arena).unwrap()];
        let strangers = cells.map(|cell| world.spawn_give(cell));
        // The range is one page, so this cell was freed by another thread.
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

/// A thread frees into a page of another thread, while the page's arena ends and another arena
/// takes over the page.
///
/// Fails if `abandon` does not change the pages' arena: then a former owner takes a cell for its
/// own. Fails if the sweep releases a page one cell early, and with a `Relaxed` push or drain.
#[test]
fn loom_remote_free_meets_retirement_and_takeover() {
    super::model(|| {
        let world = World::new(1);
        let mut first = Arena::new(1);
        let cells = [world.take(&mut first).unwrap(), world.take(&mut first).unwrap()];
        let stranger = world.spawn_give(cells[0]);
        let successor = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut second = Arena::new(2);
                // The page may still belong to the first arena, or may be taken over without a free
                // cell.
                if let Some(cell) = world.take(&mut second) {
                    world.give(Some(&mut second), cell);
                }
                second.retire(&world.space);
            })
        };
        first.retire(&world.space);
        world.give(Some(&mut first), cells[1]);
        stranger.join().unwrap();
        successor.join().unwrap();
        world.assert_empty();
    });
}

/// A thread frees the last cell of a page while the owner trims. The page is released, and taken
/// again for one object, when the owner reads the freed cell, and not before.
///
/// Fails if a page counts as empty while one of its cells is in use (`free + 1 >= cells`), and with
/// a `Relaxed` push or drain.
#[test]
fn loom_remote_free_meets_the_release_of_its_page() {
    super::model(|| {
        let world = World::new(1);
        let mut arena = Arena::new(1);
        let cells = [world.take(&mut arena).unwrap(), world.take(&mut arena).unwrap()];
        let stranger = world.spawn_give(cells[0]);
        world.give(Some(&mut arena), cells[1]);
        arena.trim(&world.space);
        if let Ok(object) = world.space.acquire_large(PAGE_SIZE - PAGE_HEADER, 1, 0) {
            // All memory of the page belongs to this object now.
            cells.iter().for_each(|&cell| world.touch(cell));
            // SAFETY: ours, and freed once.
            unsafe { arena.free(&world.space, object) };
        }
        stranger.join().unwrap();
        arena.retire(&world.space);
        world.assert_empty();
    });
}

/// A thread frees a large object while another thread allocates that much memory, and its owner
/// ends.
#[test]
fn loom_a_large_object_is_freed_by_a_stranger() {
    super::model(|| {
        let world = World::new(2);
        let size = 2 * PAGE_SIZE - PAGE_HEADER;
        let object = world.space.acquire_large(size, 1, 0).unwrap();
        world.touch(object);
        let stranger = world.spawn_give(object);
        let mut arena = Arena::new(1);
        if let Ok(object) = arena.alloc_large(&world.space, size, 1, 0) {
            world.touch(object);
            world.give(Some(&mut arena), object);
        }
        arena.retire(&world.space);
        stranger.join().unwrap();
        world.assert_empty();
    });
}

/// Two threads end, and a third takes over from both, while another thread frees on the pages of
/// one.
#[test]
fn loom_two_arenas_end_and_one_takes_over() {
    super::model(|| {
        let world = World::new(2);
        let mut arenas = [Arena::new(1), Arena::new(2)];
        let cells = arenas.each_mut().map(|arena| [(); 2].map(|()| world.take(arena).unwrap()));
        let stranger = world.spawn_give(cells[0][0]);
        let [mut first, mut second] = arenas;
        let other = {
            let (world, theirs) = (Arc::clone(&world), Sent(cells[1][0]));
            thread::spawn(move || {
                let Sent(cell) = { theirs };
                world.give(Some(&mut second), cell);
                second.retire(&world.space);
            })
        };
        first.retire(&world.space);
        let mut third = Arena::new(3);
        let taken = world.take(&mut third);
        stranger.join().unwrap();
        other.join().unwrap();
        for cell in taken.into_iter().chain([cells[0][1], cells[1][1]]) {
            world.give_of_class(&mut third, cell);
        }
        third.retire(&world.space);
        world.assert_empty();
    });
}
