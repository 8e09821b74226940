//! Programs that have failed once, as a failing test prints them, and a few short ones that are
//! worth running every time.

use crate::driver::run;
use crate::program::{Errand, Kind::*, Program, Shape::*, Step, Step::*, VARIETIES, Variety};

fn replay(variety: Variety, steps: &[Step]) {
    run(&Program { variety, steps: steps.to_vec() });
}

fn replay_on_all(steps: &[Step]) {
    VARIETIES.into_iter().for_each(|variety| replay(variety, steps));
}

#[test]
fn a_destructor_panics_when_an_attribute_is_cleared() {
    replay(
        Variety::Plain,
        &[
            Alloc(0, Instance, Plain),
            Link(0, 0),
            Alloc(1, List, Burst),
            Untrack(1),
            Link(0, 1),
            Drop(1),
            Drop(0),
            Full,
        ],
    );
}

#[test]
fn a_destructor_panics_when_an_item_of_a_slice_is_cleared() {
    replay_on_all(&[
        Alloc(5, Slice, Plain),
        Alloc(4, List, Burst),
        Untrack(4),
        Link(5, 4),
        Link(5, 5),
        Drop(4),
        Drop(5),
        Full,
    ]);
}

#[test]
fn a_thread_ends_with_a_reference_in_a_lock_free_slot_still_retired() {
    replay_on_all(&[Alloc(1, Slots, Plain), LinkAnchor(1, 0, false), Go(1), Swap(1, 0, 2)]);
    replay_on_all(&[
        Alloc(1, Slots, Plain),
        Go(1),
        Clone(1, 0),
        LinkAnchor(0, 0, false),
        Unlink(0, 0),
    ]);
}

#[test]
fn objects_of_an_ended_thread_die_wherever_they_are_dropped() {
    replay_on_all(&[
        Go(1),
        Alloc(0, List, Rise),
        Alloc(1, Items, Cling),
        Link(0, 1),
        Go(0),
        End(1),
        Send(0, Errand::DropAttached, false),
        TakeShelf(2),
        Send(2, Errand::Drop, true),
        Drop(1),
        ClearAnchor(1),
    ]);
}

#[test]
fn a_weak_reference_that_is_garbage_with_its_target_does_not_call() {
    replay_on_all(&[
        Alloc(0, List, Rise),
        Watch(0, 0, 1),
        Link(0, 1),
        Watch(0, 0, 2),
        Drop(1),
        Drop(0),
        Full,
        TakeShelf(0),
        Drop(0),
        Full,
    ]);
}

#[test]
fn an_object_that_cannot_be_cleared_is_uncollectable_in_each_collection() {
    replay_on_all(&[
        Alloc(0, List, Stubborn),
        Link(0, 0),
        Weak(0, 0),
        Drop(0),
        Full,
        Upgrade(0, 1),
        Full,
    ]);
}

#[test]
fn legacy_garbage_goes_to_the_list_and_comes_back() {
    replay_on_all(&[
        Alloc(0, Legacy, Rise),
        Alloc(1, Pair, Quiet),
        Link(0, 1),
        Link(1, 0),
        Drop(0),
        Drop(1),
        Full,
        TakeGarbage,
        Full,
        TakeGarbage,
        Young,
    ]);
}
