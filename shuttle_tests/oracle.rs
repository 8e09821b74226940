//! The tests: one mix of operations each. Each names mutations of the library that make it fail; each was tried.

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
    Program { mix: EVERYTHING, mutators: 3, strangers: 1, steps: 12, paced: false };

/// Mutations: `claim` takes no count (`header.rs`); a thread that steps out does not acknowledge the stop
/// (`safepoint.rs`).
#[test]
fn shuttle_everything_at_once() {
    explore("everything", || BASE.run::<false>());
}

/// Mutations: `claim` takes no count; no second look at what finalizers made reachable (`collect/mod.rs`).
#[test]
fn shuttle_everything_at_once_with_finalizers() {
    explore("everything, with finalizers", || BASE.run::<true>());
}

/// Safepoints collect by themselves, young and in full, and threads wait for one another's collections.
///
/// Mutation: what the merge finds dead is not marked dying (`collect/mod.rs`).
#[test]
fn shuttle_collections_at_safepoints() {
    explore("collections at safepoints", || {
        Program { paced: true, mutators: 4, ..BASE }.run::<true>()
    });
}

/// Every thread is a new mutator after a few operations: objects outlive their owners, and are merged for them.
///
/// Mutation: `ending` closes the queue without looking (`managed.rs`).
#[test]
fn shuttle_births_and_exits() {
    const MIX: Mix =
        &[(Op::Make, 4), (Op::Link, 3), (Op::Put, 4), (Op::Pick, 4), (Op::Drop, 3), (Op::Full, 1)];
    explore("births and exits", || {
        Program { mix: MIX, mutators: 4, steps: 5, ..BASE }.run::<false>()
    });
}

/// Threads that are not attached clone and drop while others collect, attach, detach and end.
///
/// Mutation: `drop_foreign` counts on an unattached thread, instead of deferring (`managed.rs`).
#[test]
fn shuttle_strangers_drop() {
    const MIX: Mix = &[
        (Op::Make, 4),
        (Op::Link, 2),
        (Op::Put, 6),
        (Op::Detach, 4),
        (Op::Safepoint, 2),
        (Op::Young, 1),
        (Op::Full, 1),
    ];
    explore("strangers", || Program { mix: MIX, mutators: 2, strangers: 2, ..BASE }.run::<false>());
}

/// Weak references, and their callbacks, meet death by count and by collection.
///
/// Mutation: an upgrade does not ask whether the count is 0 (`header.rs`, `try_upgrade`).
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

/// Several threads collect, young and in full, waiting for each other or not, while others change the graph.
///
/// Mutations: `claim` takes no count; what the merge finds dead is not marked dying; no second look.
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
    explore("collectors", || Program { mix: MIX, mutators: 4, strangers: 0, ..BASE }.run::<true>());
}

/// References are taken out of slots while others read them without a lock.
///
/// Mutation: a retired reference is dropped at once (`managed.rs`, `reap` does not ask the others).
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
    explore("slots", || Program { mix: MIX, strangers: 0, ..BASE }.run::<false>());
}

/// Objects leave the tracked set and come back while collections go through it.
///
/// Mutations: `claim` takes no count; what the merge finds dead is not marked dying.
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

/// The last handle and mutator of a heap go while strangers still have references into it.
///
/// Mutations: `drop_foreign` counts on an unattached thread; `ending` closes the queue without looking.
#[test]
fn shuttle_the_end_of_a_heap() {
    explore("the end of a heap", || Program { mutators: 2, strangers: 2, ..BASE }.outlive());
}

/// What a failing test prints can be run again: the same choices make the same run.
#[test]
fn shuttle_a_schedule_repeats() {
    assert_repeatable(|| Program { paced: true, ..BASE }.run::<true>());
}
