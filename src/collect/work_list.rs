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
mod tests {
    use super::*;

    fn taken(share: &WorkCursor<'_, (u32, u32)>, worker: Worker) -> Vec<(u32, u32)> {
        share.of(worker).flatten().copied().collect()
    }

    #[test]
    fn everybody_begins_with_his_own_and_nothing_is_left() {
        let items: Vec<(u32, u32)> = (0..40).map(|at| (at % 4, at)).collect();
        let list = WorkList::by_arena(items.clone(), |item| item.0, |item| item.1).unwrap();
        for arena in 0..6 {
            let share = list.share(3);
            let mut seen = taken(&share, Worker { index: 1, arena });
            if arena < 4 {
                let own: Vec<_> = items.iter().copied().filter(|item| item.0 == arena).collect();
                assert_eq!(seen[..10], own, "its own first, in their order");
            }
            seen.sort_unstable_by_key(|item| item.1);
            assert_eq!(seen, items);
            assert!(share.of(Worker { index: 0, arena: 0 }).next().is_none());
        }
    }

    #[test]
    fn two_threads_share_what_one_has_too_much_of() {
        let list = WorkList::new((0..10).map(|at| (7, at)).collect()).unwrap();
        let share = list.share(4);
        let mut one = share.of(Worker { index: 0, arena: 7 });
        let mut other = share.of(Worker { index: 1, arena: 8 });
        assert_eq!(other.next().unwrap().len(), 4);
        assert_eq!(one.next().unwrap().len(), 4);
        assert_eq!(other.next().unwrap(), [(7, 8), (7, 9)]);
        assert!(one.next().is_none());
        assert!(other.next().is_none() && share.of(Worker { index: 2, arena: 9 }).next().is_none());
    }

    #[test]
    fn the_end_of_a_group_is_found_where_the_last_portion_is_full() {
        let list = WorkList::new((0..8).collect()).unwrap();
        let share = list.share(4);
        let taken: Vec<&[i32]> = share.of(Worker { index: 0, arena: 0 }).collect();
        assert_eq!(taken, [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert!(share.of(Worker { index: 1, arena: 0 }).next().is_none());
    }

    #[test]
    fn nothing_is_handed_out_at_once() {
        let list = WorkList::<(u32, u32)>::new(Vec::new()).unwrap();
        assert!(list.share(1).of(Worker { index: 3, arena: 2 }).next().is_none());
    }
}
