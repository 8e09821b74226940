//! The parts of mutators that have ended, for the next mutators of the heap.
//!
//! The memory of a mutator takes longer to allocate and to initialise than all other steps of an
//! attachment. So a mutator that ends leaves its memory to the heap: a *spare*. The next mutator of
//! the heap takes the spare, on any thread.
//!
//! A spare owns nothing of the heap: its arena has retired, and has no page and no cell. Its other
//! parts are memory without a value. No registry, list or report knows it, and a stop does not
//! visit it. It ends with the heap.
//!
//! Each arena has an id. The ids are small, so an id is given out again when its arena has retired.
//! A spare keeps the id of its arena.
//!
//! The list is under a lock, which orders the last use of a spare before the next. A thread that
//! leaves takes the lock when it is not attached any more. So a fork holds the lock, and the child
//! inherits a whole list.

#![forbid(unsafe_code)]

use std::mem::ManuallyDrop;

use crate::base::fallible::NoMemory;
use crate::safepoint::lock::ForkMutex;

/// How many spares a heap keeps. A spare takes some 30 KiB.
const MOST: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 16 };

/// The spares of a heap, and the ids of its arenas. See the module's page.
///
/// Both lists have room for all entries that they may get, so giving one back needs no memory.
#[derive(Debug)]
pub(crate) struct Spares<S> {
    /// At most [`MOST`]. The last one is the next to be taken, because it is in the caches.
    kept: Vec<S>,
    /// The ids of arenas that do not exist any more.
    ids: Vec<u32>,
    /// The last new id.
    last: u32,
}

impl<S> Default for Spares<S> {
    fn default() -> Self {
        Self { kept: Vec::new(), ids: Vec::new(), last: 0 }
    }
}

impl<S> Spares<S> {
    /// An id for a new arena.
    fn take_id(&mut self) -> Result<u32, NoMemory> {
        if let Some(id) = self.ids.pop() {
            return Ok(id);
        }
        self.kept.try_reserve_exact(MOST)?;
        self.ids.try_reserve(self.last as usize + 1)?;
        self.last += 1;
        Ok(self.last)
    }
}

/// The id of an arena. Dropping this gives the id back.
pub(super) struct ArenaId<'a, S> {
    spares: &'a ForkMutex<Spares<S>>,
    id: u32,
}

impl<S> ArenaId<'_, S> {
    pub(super) fn get(&self) -> u32 {
        self.id
    }

    /// The id. The caller must give it back by [`put`].
    pub(super) fn into_id(self) -> u32 {
        ManuallyDrop::new(self).id
    }
}

impl<S> Drop for ArenaId<'_, S> {
    fn drop(&mut self) {
        self.spares.lock().ids.push(self.id);
    }
}

/// Takes an id, and the spare that has it, if there is one. `id_of` is the id of a spare's arena.
pub(super) fn take<S>(
    spares: &ForkMutex<Spares<S>>,
    id_of: impl FnOnce(&S) -> u32,
) -> Result<(Option<S>, ArenaId<'_, S>), NoMemory> {
    let mut list = spares.lock();
    let spare = list.kept.pop();
    let id = match &spare {
        Some(spare) => id_of(spare),
        None => list.take_id()?,
    };
    drop(list);
    Ok((spare, ArenaId { spares, id }))
}

/// Gives an id back, with the spare that has it, if the caller has that. The mutator has left the
/// registry.
pub(super) fn put<S>(spares: &ForkMutex<Spares<S>>, id: u32, spare: Option<S>) {
    let mut list = spares.lock();
    match spare {
        Some(spare) if list.kept.len() < MOST => list.kept.push(spare),
        spare => {
            list.ids.push(id);
            drop(list);
            // Without the lock: tens of kilobytes are freed.
            drop(spare);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::thread;

    use super::MOST;
    use crate::managed::ManagedCore;
    use crate::{Heap, Mutator};

    fn heap() -> Heap {
        Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap")
    }

    fn core(m: &Mutator) -> Arc<ManagedCore> {
        Arc::clone(m.raw().core())
    }

    fn arena_id(m: &Mutator) -> u32 {
        m.raw().arena(|arena| arena.id())
    }

    /// The numbers of spare arenas and of free ids, and the last id.
    fn spare(core: &ManagedCore) -> (usize, usize, u32) {
        let spare = core.spares.lock();
        (spare.kept.len(), spare.ids.len(), spare.last)
    }

    #[test]
    fn the_next_mutator_on_any_thread_gets_the_arena_of_the_last() {
        let heap = heap();
        let m = heap.attach();
        let core = core(&m);
        assert_eq!((arena_id(&m), spare(&core)), (1, (0, 0, 1)));
        let kept = m.alloc(7u64);
        drop(m.alloc([0u64; 100]));
        drop(m);
        assert_eq!(spare(&core), (1, 0, 1));
        // It is no thread, and owns no page.
        let stats = heap.stats();
        assert_eq!((stats.mutators, stats.live_objects), (0, 1));
        assert!(stats.leaked_mutators.is_empty());
        let pool = core.space.pool();
        assert_eq!((pool.in_use, pool.abandoned.len()), (1, 1), "one page, with one object");
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut m = heap.attach();
                assert_eq!((arena_id(&m), spare(&core)), (1, (0, 0, 1)));
                assert_eq!(*kept, 7);
                drop(m.alloc(8u64));
                m.verify().expect("a whole heap");
            });
        });
        assert_eq!(spare(&core), (1, 0, 1));
    }

    #[test]
    fn a_heap_keeps_some_arenas_and_the_ids_of_all() {
        const THREADS: usize = MOST + 3;
        let heap = heap();
        let m = heap.attach();
        let core = core(&m);
        drop(m);
        for _ in 0..2 {
            let (attached, all) = (Barrier::new(THREADS), Barrier::new(THREADS));
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let m = heap.attach();
                        let id = arena_id(&m);
                        attached.wait();
                        assert!(id as usize <= THREADS);
                        assert_eq!(spare(&core), (0, 0, THREADS as u32));
                        all.wait();
                        drop(m);
                    });
                }
            });
            assert_eq!(spare(&core), (MOST, THREADS - MOST, THREADS as u32));
        }
        let spare = core.spares.lock();
        let mut ids: Vec<_> = spare.kept.iter().map(|spare| spare.arena_id()).collect();
        ids.extend(&spare.ids);
        ids.sort_unstable();
        assert_eq!(ids, (1..=THREADS as u32).collect::<Vec<_>>(), "each id once");
    }

    /// Then that thread frees the arena.
    #[test]
    fn an_arena_that_another_thread_is_looking_at_gives_only_its_id_back() {
        let heap = heap();
        let m = heap.attach();
        let core = core(&m);
        let id = m.raw().thread_id();
        core.coordinator.with_data(id, |_| drop(m)).expect("it was registered");
        assert_eq!(spare(&core), (0, 1, 1));
        let m = heap.attach();
        assert_eq!((arena_id(&m), spare(&core)), (1, (0, 0, 1)));
    }
}
