//! Floor 4: the work of one step, handed out in portions, to each thread first what is its own.
//!
//! What a mutator has made lies in the caches of the processor that it runs on. So where parked mutators take part in a collection,
//! each begins with its own pages, and takes those of others when it has no more; the rest, of threads that are not here, comes last
//! or whenever somebody is done.

use std::cmp::Reverse;

use crate::collect::crew::Seat;
use crate::fallible::{self, NoMemory};
use crate::sync::{AtomicUsize, Ordering};

/// Pieces of work by the arena that they belong to.
#[derive(Debug)]
pub(crate) struct Portions<T> {
    items: Vec<T>,
    groups: Vec<Group>,
}

/// Pieces of one arena, one after the other.
#[derive(Debug)]
struct Group {
    home: u32,
    end: usize,
    /// The first that nobody has taken.
    next: AtomicUsize,
    /// Where `next` begins.
    start: usize,
}

impl<T> Portions<T> {
    /// All of it is everybody's.
    pub(crate) fn new(items: Vec<T>) -> Result<Self, NoMemory> {
        Self::grouped(items, |_| 0)
    }

    /// Each item is `home`'s, a number of an arena or 0. They are sorted by it, and otherwise stay in the order of `place`.
    pub(crate) fn by_home<K: Ord>(
        mut items: Vec<T>,
        home: impl Fn(&T) -> u32,
        place: impl Fn(&T) -> K,
    ) -> Result<Self, NoMemory> {
        // Unstable: the stable sort takes memory. Nobody's last.
        items.sort_unstable_by_key(|item| (Reverse(home(item)), place(item)));
        Self::grouped(items, home)
    }

    fn grouped(items: Vec<T>, home: impl Fn(&T) -> u32) -> Result<Self, NoMemory> {
        let mut groups: Vec<Group> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let home = home(item);
            match groups.last_mut() {
                Some(group) if group.home == home => group.end = at + 1,
                _ => {
                    let group = Group { home, end: at + 1, next: AtomicUsize::new(at), start: at };
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

    /// Hands everything out anew, at most `chunk` items at a time. One step after the other.
    pub(crate) fn share(&self, chunk: usize) -> Share<'_, T> {
        // Relaxed, here and below: numbers that must be unique; what is handed out is ordered by whoever calls the threads.
        self.groups.iter().for_each(|group| group.next.store(group.start, Ordering::Relaxed));
        Share { portions: self, chunk }
    }
}

/// Pieces of work, being handed out.
#[derive(Debug)]
pub(crate) struct Share<'a, T> {
    portions: &'a Portions<T>,
    chunk: usize,
}

impl<'a, T> Share<'a, T> {
    /// The next few items for a thread: its own first. `None`: all are handed out.
    pub(crate) fn take(&self, seat: Seat) -> Option<&'a [T]> {
        let groups = &self.portions.groups;
        let own = groups.iter().position(|group| group.home == seat.home).unwrap_or(seat.index);
        for at in 0..groups.len() {
            let group = &groups[(own + at) % groups.len()];
            if group.next.load(Ordering::Relaxed) >= group.end {
                continue;
            }
            let start = group.next.fetch_add(self.chunk, Ordering::Relaxed);
            if start < group.end {
                return Some(&self.portions.items[start..group.end.min(start + self.chunk)]);
            }
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn taken(share: &Share<'_, (u32, u32)>, seat: Seat) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| share.take(seat)).flatten().copied().collect()
    }

    #[test]
    fn everybody_begins_with_his_own_and_nothing_is_left() {
        let items: Vec<(u32, u32)> = (0..40).map(|at| (at % 4, at)).collect();
        let portions = Portions::by_home(items.clone(), |item| item.0, |item| item.1).unwrap();
        for home in 0..6 {
            let share = portions.share(3);
            let mut seen = taken(&share, Seat { index: 1, home });
            if home < 4 {
                let own: Vec<_> = items.iter().copied().filter(|item| item.0 == home).collect();
                assert_eq!(seen[..10], own, "its own first, in their order");
            }
            seen.sort_unstable_by_key(|item| item.1);
            assert_eq!(seen, items);
            assert!(share.take(Seat { index: 0, home: 0 }).is_none());
        }
    }

    #[test]
    fn two_threads_share_what_one_has_too_much_of() {
        let portions = Portions::new((0..10).map(|at| (7, at)).collect()).unwrap();
        let share = portions.share(4);
        let (one, other) = (Seat { index: 0, home: 7 }, Seat { index: 1, home: 8 });
        assert_eq!(share.take(other).unwrap().len(), 4);
        assert_eq!(share.take(one).unwrap().len(), 4);
        assert_eq!(share.take(other).unwrap(), [(7, 8), (7, 9)]);
        assert!(share.take(one).is_none());
    }

    #[test]
    fn nothing_is_handed_out_at_once() {
        let portions = Portions::<(u32, u32)>::new(Vec::new()).unwrap();
        assert!(portions.share(1).take(Seat { index: 3, home: 2 }).is_none());
    }
}
