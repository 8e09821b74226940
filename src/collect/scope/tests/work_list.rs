//! Tests of the distribution of work.

#![forbid(unsafe_code)]

use super::super::*;

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
