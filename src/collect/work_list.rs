//! The work of one phase, distributed in chunks. Each thread gets its own work first.
//!
//! The objects of a mutator are in the caches of its processor. So a parked mutator that takes part
//! in a collection begins with its own pages. Then it takes pages of other threads. Pages of
//! threads that are not attached come last.

#![forbid(unsafe_code)]

use std::cmp::Reverse;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicUsize, Ordering};
use crate::heap::helpers::Worker;

/// Pieces of work by the arena that they belong to.
#[derive(Debug)]
pub(crate) struct WorkList<T> {
    items: Vec<T>,
    groups: Vec<Group>,
}

/// Pieces of one arena, one after the other.
#[derive(Debug)]
struct Group {
    arena: u32,
    end: usize,
    /// The first item that no thread has taken.
    next: AtomicUsize,
    /// The initial value of `next`.
    start: usize,
}

impl<T> WorkList<T> {
    /// A list without arenas.
    pub(crate) fn new(items: Vec<T>) -> Result<Self, NoMemory> {
        Self::grouped(items, |_| 0)
    }

    /// A list of items with the numbers of their arenas, or 0. The items are sorted by arena, and
    /// within an arena by `place`.
    pub(crate) fn by_arena<K: Ord>(
        mut items: Vec<T>,
        arena: impl Fn(&T) -> u32,
        place: impl Fn(&T) -> K,
    ) -> Result<Self, NoMemory> {
        // Unstable, since the stable sort allocates. Arena 0 comes last.
        items.sort_unstable_by_key(|item| (Reverse(arena(item)), place(item)));
        Self::grouped(items, arena)
    }

    fn grouped(items: Vec<T>, arena: impl Fn(&T) -> u32) -> Result<Self, NoMemory> {
        let mut groups: Vec<Group> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let arena = arena(item);
            match groups.last_mut() {
                Some(group) if group.arena == arena => group.end = at + 1,
                _ => {
                    let group = Group { arena, end: at + 1, next: AtomicUsize::new(at), start: at };
                    fallible::push(&mut groups, group)?;
                }
            }
        }
        Ok(Self { items, groups })
    }

    /// The items alone.
    pub(crate) fn into_items(self) -> Vec<T> {
        self.items
    }

    /// All items.
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// Distributes all items again, at most `chunk` items at a time. Only one phase at a time does
    /// this.
    pub(crate) fn share(&self, chunk: usize) -> WorkCursor<'_, T> {
        // Relaxed, here and below: the numbers must only be unique. The start of the worker threads
        // orders the accesses to the items.
        self.groups.iter().for_each(|group| group.next.store(group.start, Ordering::Relaxed));
        WorkCursor { list: self, chunk }
    }
}

/// The distribution of the items to threads.
#[derive(Debug)]
pub(crate) struct WorkCursor<'a, T> {
    list: &'a WorkList<T>,
    chunk: usize,
}

impl<'a, T> WorkCursor<'a, T> {
    /// The chunks of one thread: first from its own items, then from the items of others, until all
    /// items are taken.
    pub(crate) fn of(&self, worker: Worker) -> WorkChunks<'a, T> {
        let groups = &self.list.groups;
        steps::took(groups.len());
        let own =
            groups.iter().position(|group| group.arena == worker.arena).unwrap_or(worker.index);
        WorkChunks { list: self.list, chunk: self.chunk, group: own, left: groups.len() }
    }
}

/// The iteration of one thread over the groups. It visits each group once, until the group is
/// empty.
#[derive(Debug)]
pub(crate) struct WorkChunks<'a, T> {
    list: &'a WorkList<T>,
    chunk: usize,
    /// The current group, modulo the number of groups.
    group: usize,
    /// The number of groups left, including the current one.
    left: usize,
}

impl<'a, T> Iterator for WorkChunks<'a, T> {
    type Item = &'a [T];

    fn next(&mut self) -> Option<&'a [T]> {
        let WorkList { items, groups } = self.list;
        while self.left > 0 {
            steps::took(1);
            let group = &groups[self.group % groups.len()];
            let start = group.next.fetch_add(self.chunk, Ordering::Relaxed);
            if start < group.end {
                return Some(&items[start..group.end.min(start + self.chunk)]);
            }
            self.group += 1;
            self.left -= 1;
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
