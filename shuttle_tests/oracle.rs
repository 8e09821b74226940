//! The tests: one mix of operations each.
//!
//! Each test lists mutations of the library that make it fail. Each mutation was tried.

use super::programs::{Mix, Op, Program};
use super::{assert_repeatable, explore};

const EVERYTHING: Mix = &[
    (Op::Make, 6),
    (Op::Ring, 2),
    (Op::Link, 5),
    (Op::Unlink, 2),
    (Op::Put, 4),
    (Op::Pick, 4),
    (Op::Drop, 4),
    (Op::Downgrade, 2),
    (Op::Upgrade, 3),
    (Op::Watch, 1),
    (Op::Slot, 3),
    (Op::Untrack, 1),
    (Op::Track, 1),
    (Op::Detach, 2),
    (Op::Safepoint, 2),
    (Op::Young, 1),
    (Op::Full, 1),
    (Op::Try, 1),
];

const BASE: Program =
    Program { mix: EVERYTHING, mutators: 3, unattached: 1, steps: 12, paced: false };

/// Mutations: `claim` takes no reference (`object/header.rs`); a thread that detaches does not
/// acknowledge the stop (`safepoint/`).
#[test]
fn shuttle_everything_at_once() {
    explore("everything", || BASE.run::<false>());
}

/// Mutations: `claim` takes no reference; no recheck of the objects that finalizers made reachable
/// (`collect/`).
#[test]
fn shuttle_everything_at_once_with_finalizers() {
    explore("everything, with finalizers", || BASE.run::<true>());
}

/// Safepoints start young and full collections, and threads wait for each other's collections.
///
/// Mutation: an object that the merge finds dead does not become `DYING` (`collect/`).
#[test]
fn shuttle_collections_at_safepoints() {
    explore("collections at safepoints", || {
        Program { paced: true, mutators: 4, ..BASE }.run::<true>()
    });
}

/// Every thread attaches as a new mutator after a few operations. Objects outlive their owners, and
/// other threads merge their counts.
///
/// Mutation: a mutator that ends closes its merge queue without merging the queue's objects
/// (`managed/`).
#[test]
fn shuttle_births_and_exits() {
    const MIX: Mix =
        &[(Op::Make, 4), (Op::Link, 3), (Op::Put, 4), (Op::Pick, 4), (Op::Drop, 3), (Op::Full, 1)];
    explore("births and exits", || {
        Program { mix: MIX, mutators: 4, steps: 5, ..BASE }.run::<false>()
    });
}

/// Unattached threads clone and drop references while others collect, attach, detach and end.
///
/// Mutation: on an unattached thread `drop_foreign` counts instead of deferring (`managed/`).
#[test]
fn shuttle_unattached_threads_drop() {
    const MIX: Mix = &[
        (Op::Make, 4),
        (Op::Link, 2),
        (Op::Put, 6),
        (Op::Detach, 4),
        (Op::Safepoint, 2),
        (Op::Young, 1),
        (Op::Full, 1),
    ];
    explore("unattached threads", || {
        Program { mix: MIX, mutators: 2, unattached: 2, ..BASE }.run::<false>()
    });
}

/// Objects with weak references and callbacks die by count and by collection.
///
/// Mutation: `try_upgrade` ignores a count of 0 (`object/header.rs`).
#[test]
fn shuttle_weak_references() {
    const MIX: Mix = &[
        (Op::Make, 4),
        (Op::Ring, 1),
        (Op::Link, 2),
        (Op::Put, 4),
        (Op::Pick, 4),
        (Op::Drop, 6),
        (Op::Downgrade, 6),
        (Op::Upgrade, 8),
        (Op::Watch, 3),
        (Op::Young, 1),
        (Op::Full, 2),
    ];
    explore("weak references", || Program { mix: MIX, ..BASE }.run::<true>());
}

/// Several threads run young and full collections while others change the graph. Some wait for
/// their collection and some do not.
///
/// Mutations: `claim` takes no reference; an object that the merge finds dead does not become
/// `DYING`; no recheck after finalizers.
#[test]
fn shuttle_collectors_meet() {
    const MIX: Mix = &[
        (Op::Make, 6),
        (Op::Ring, 4),
        (Op::Link, 6),
        (Op::Unlink, 4),
        (Op::Put, 4),
        (Op::Pick, 4),
        (Op::Drop, 4),
        (Op::Young, 3),
        (Op::Full, 3),
        (Op::Try, 3),
    ];
    explore("collectors", || {
        Program { mix: MIX, mutators: 4, unattached: 0, ..BASE }.run::<true>()
    });
}

/// Threads remove references from slots while others read the slots without a lock.
///
/// Mutation: a retired reference is dropped at once (`managed/`: `reap` does not wait for the
/// readers).
#[test]
fn shuttle_slots() {
    const MIX: Mix = &[
        (Op::Make, 3),
        (Op::Slot, 12),
        (Op::Drop, 4),
        (Op::Detach, 1),
        (Op::Safepoint, 2),
        (Op::Young, 1),
        (Op::Full, 1),
    ];
    explore("slots", || Program { mix: MIX, unattached: 0, ..BASE }.run::<false>());
}

/// Objects are untracked and tracked again during collections.
///
/// Mutations: `claim` takes no reference; an object that the merge finds dead does not become
/// `DYING`.
#[test]
fn shuttle_track_and_untrack() {
    const MIX: Mix = &[
        (Op::Make, 4),
        (Op::Link, 4),
        (Op::Put, 4),
        (Op::Pick, 6),
        (Op::Drop, 4),
        (Op::Untrack, 6),
        (Op::Track, 6),
        (Op::Young, 2),
        (Op::Full, 2),
    ];
    explore("track and untrack", || Program { mix: MIX, ..BASE }.run::<true>());
}

/// The last handle and mutator of a heap are dropped while unattached threads still own references.
///
/// Mutations: `drop_foreign` counts on an unattached thread; a mutator that ends closes its merge
/// queue without merging.
#[test]
fn shuttle_the_end_of_a_heap() {
    explore("the end of a heap", || Program { mutators: 2, unattached: 2, ..BASE }.outlive());
}

/// The same random choices make the same run, so a failing schedule can be replayed.
#[test]
fn shuttle_a_schedule_repeats() {
    assert_repeatable(|| Program { paced: true, ..BASE }.run::<true>());
}
