//! The parts of mutators that have ended, for the next mutators of the heap.
//!
//! The memory of a mutator takes longer to allocate and to initialise than all other steps of an
//! attachment. So a mutator that ends leaves its memory to the heap as a *spare*, which the next
//! mutator of the heap takes, on any thread. For example, thread 1 ends, and its arena has id 5.
//! Thread 2 attaches, and gets that memory with its id. Thread 3 finds no spare left, so it gets
//! new memory with a new id.
//!
//! A spare owns nothing of the heap, because its arena has retired, without a page or a cell, and
//! its other parts are memory without a value. No registry, list or report knows it, and no stop
//! visits it, until it ends with the heap. Its arena keeps its id. The id of an arena that ends
//! without a spare is given out again, so that ids stay small.
//!
//! The list is under a lock, which orders the last use of a spare before the next. A thread that
//! leaves takes the lock when it is not attached any more, so no stop waits for it. Therefore a
//! fork holds the lock, and the child inherits a whole list.

#![forbid(unsafe_code)]

use std::mem::ManuallyDrop;

use crate::base::fallible::NoMemory;
use crate::base::sync::IS_MODEL;
use crate::safepoint::lock::ForkMutex;

/// How many spares, of some 30 KiB each, a heap keeps.
const MOST: usize = if IS_MODEL { 1 } else { 16 };

/// The spares of a heap, and the ids of its arenas. Both lists have room for all entries that they
/// may get, so that giving one back needs no memory.
#[derive(Debug)]
pub(crate) struct Spares<S> {
    /// At most [`MOST`], of which the last one is taken next, because it is in the caches.
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

/// The id of an arena, which is given back when this is dropped.
pub(super) struct ArenaId<'a, S> {
    spares: &'a ForkMutex<Spares<S>>,
    id: u32,
}

impl<S> ArenaId<'_, S> {
    pub(super) fn get(&self) -> u32 {
        self.id
    }

    /// The id, which the caller must give back by [`put`].
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
            // Without the lock, because tens of kilobytes are freed.
            drop(spare);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
