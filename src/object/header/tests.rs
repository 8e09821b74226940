//! Tests of the header.

#![forbid(unsafe_code)]

use super::*;

const ME: u64 = 7;
const OTHER: u64 = 8;

fn fresh() -> Header {
    Header::new(ME, 5)
}

#[test]
fn type_index_and_owner_share_a_word() {
    let h = Header::new((1 << 40) - 1, (1 << 24) - 1);
    assert_eq!(h.owner(), (1 << 40) - 1);
    assert_eq!(h.type_index(), (1 << 24) - 1);
    h.set_owner(3);
    assert_eq!((h.owner(), h.type_index()), (3, (1 << 24) - 1));
}

#[test]
fn owner_counts_locally_and_dies_at_zero() {
    let h = fresh();
    h.clone_ref(ME);
    assert_eq!(h.count(), Some(2));
    assert_eq!(h.shared.load(Ordering::Relaxed), 0);
    assert_eq!(h.drop_local(), Dropped::Alive);
    assert_eq!(h.drop_local(), Dropped::Dead);
}

#[test]
fn foreign_drop_below_zero_queues_once() {
    let h = fresh();
    h.clone_ref(ME);
    h.clone_ref(ME);
    assert_eq!(h.drop_shared(), Dropped::Enqueue(ME));
    assert_eq!(h.drop_shared(), Dropped::Alive);
    assert_eq!(h.count(), Some(1));
    assert_eq!(h.merge(), Dropped::Alive);
    assert_eq!(h.count(), Some(1));
    assert_eq!(h.owner(), NO_OWNER);
    assert_eq!(h.drop_shared(), Dropped::Dead);
}

#[test]
fn a_queued_object_is_freed_by_the_drain_alone() {
    let h = fresh();
    h.clone_ref(ME);
    assert_eq!(h.drop_shared(), Dropped::Enqueue(ME));
    h.clone_ref(OTHER);
    h.clone_ref(OTHER); // local 2, shared 1
    assert_eq!(h.drop_local(), Dropped::Alive);
    assert_eq!(h.drop_local(), Dropped::Alive); // merges; still queued
    assert_eq!(h.drop_shared(), Dropped::Alive); // zero, but the queue points here
    assert_eq!(h.merge(), Dropped::Dead);
}

#[test]
fn last_local_drop_of_a_shared_object_merges() {
    let h = fresh();
    h.clone_ref(OTHER);
    assert_eq!(h.drop_local(), Dropped::Alive);
    assert_eq!(h.owner(), NO_OWNER);
    h.clone_ref(ME); // no longer the owner
    assert_eq!(h.count(), Some(2));
    assert_eq!(h.drop_shared(), Dropped::Alive);
    assert_eq!(h.drop_shared(), Dropped::Dead);
}

#[test]
fn ended_owner_is_merged_once() {
    let h = fresh();
    h.clone_ref(ME);
    assert_eq!(h.drop_shared(), Dropped::Enqueue(ME));
    assert_eq!(h.merge_ended(ME), Dropped::Alive);
    assert_eq!(h.merge_ended(ME), Dropped::Alive);
    assert_eq!(h.count(), Some(1));
    assert_eq!(h.drop_shared(), Dropped::Dead);
}

fn with(local: u32, shared: i32) -> Header {
    let h = fresh();
    h.local.store(LOCAL_ZERO + local, Ordering::Relaxed);
    h.shared.store((shared as u32) << 4, Ordering::Relaxed);
    h
}

fn halves(h: &Header) -> (i32, i32) {
    let load = |half: &AtomicU32| half.load(Ordering::Relaxed);
    (local_count(load(&h.local)), count_of(load(&h.shared)))
}

#[test]
fn a_full_local_half_moves_to_the_shared_half() {
    let most = LOCAL_LIMIT as i32 - 1;
    let h = with(LOCAL_LIMIT - 2, 5);
    h.clone_ref(ME);
    assert_eq!(halves(&h), (most, 5));
    h.clone_ref(ME);
    assert_eq!((halves(&h), h.count()), ((1, most + 5), Some(i64::from(most) + 6)));
    assert_eq!(h.drop_local(), Dropped::Alive);
    assert_eq!(h.merge(), Dropped::Alive);
    assert_eq!(h.count(), Some(i64::from(most) + 5));
    // A claim adds a reference too.
    let h = with(LOCAL_LIMIT - 1, 0);
    h.claim(OTHER);
    assert_eq!((halves(&h), h.owner()), ((1, most), OTHER));
}

#[test]
fn an_owner_that_clones_while_others_drop_reaches_no_limit() {
    let h = fresh();
    assert_eq!(h.drop_shared(), Dropped::Enqueue(ME));
    for _ in 0..5 {
        // The owner clones, and other threads drop as many references: here in one step.
        h.local.store(LOCAL_ZERO + LOCAL_LIMIT - 1, Ordering::Relaxed);
        h.shared.fetch_sub((LOCAL_LIMIT - 1) * ONE, Ordering::Relaxed);
        h.clone_ref(ME);
        assert_eq!((halves(&h), h.check(|_| true)), ((1, -1), Ok(())));
    }
    h.clone_ref(ME);
    assert_eq!(h.count(), Some(1));
    assert_eq!(h.merge(), Dropped::Alive);
    assert_eq!(h.drop_shared(), Dropped::Dead);
}

#[test]
fn shared_overflow_and_underflow_are_immortal() {
    let h = with(1, SHARED_LIMIT);
    h.clone_ref(OTHER);
    assert_eq!(h.count(), None);
    let h = with(1, -SHARED_LIMIT);
    assert_eq!(h.drop_shared(), Dropped::Enqueue(ME));
    assert_eq!(h.count(), None);
    for over in [0, 1] {
        let h = with(10, SHARED_LIMIT - 10 + over);
        assert_eq!(h.merge(), Dropped::Alive);
        assert_eq!(h.count().is_none(), over == 1, "a sum beyond the shared half saturates");
        let h = with(LOCAL_LIMIT - 1, SHARED_LIMIT - LOCAL_LIMIT as i32 + over);
        h.clone_ref(ME);
        assert_eq!(h.count().is_none(), over == 1);
        assert!(h.check(|_| true).is_ok());
    }
}

#[test]
fn an_immortal_survives_every_drop() {
    let h = fresh();
    h.make_immortal();
    assert_eq!(h.drop_local(), Dropped::Alive);
    assert_eq!(h.drop_local(), Dropped::Alive);
    h.clone_ref(ME);
    assert_eq!(h.drop_shared(), Dropped::Alive);
}

#[test]
fn claim_rebias_keeps_the_sum() {
    let h = fresh();
    h.clone_ref(OTHER); // 1 + 1
    h.claim(OTHER);
    assert_eq!(h.count(), Some(3));
    assert!(h.is_owned_by(OTHER) && !h.is_owned_by(ME));
    let h = fresh();
    h.clone_ref(OTHER);
    assert_eq!(h.merge(), Dropped::Alive); // merged, 2
    h.claim(OTHER);
    assert_eq!(h.count(), Some(3));
    assert_eq!(h.drop_local(), Dropped::Alive);
    assert_eq!(h.count(), Some(2));
    assert_eq!(h.drop_shared(), Dropped::Alive);
    assert_eq!(h.drop_shared(), Dropped::Dead);
}

#[test]
fn a_merged_claim_adds_a_reference_for_any_thread() {
    for shared in [-1, 0, 2] {
        let h = with(3, shared);
        h.set_weak();
        h.claim_merged();
        assert_eq!(
            (h.owner(), h.count(), h.has_weak()),
            (NO_OWNER, Some(i64::from(4 + shared)), true)
        );
        h.claim_merged();
        assert_eq!((h.owner(), h.count()), (NO_OWNER, Some(i64::from(5 + shared))));
        for _ in 0..4 + shared {
            assert_eq!(h.drop_ref(OTHER), Dropped::Alive);
        }
        assert_eq!(h.drop_ref(ME), Dropped::Dead);
    }
    let h = with(10, SHARED_LIMIT - 9);
    h.claim_merged();
    assert_eq!(h.count(), None, "too many references");
}

#[test]
fn weak_upgrade_fails_once_dead_and_works_after_revival() {
    let h = fresh();
    h.set_weak();
    assert!(h.try_upgrade(OTHER));
    assert_eq!(h.drop_shared(), Dropped::Alive);
    assert_eq!(h.drop_local(), Dropped::Dead);
    assert!(!h.try_upgrade(OTHER) && !h.try_upgrade(ME));
    h.revive(ME);
    assert!(h.try_upgrade(OTHER) && h.try_upgrade(ME));
    assert_eq!(h.count(), Some(3));
}

#[test]
fn the_fast_end_leaves_an_object_with_a_weak_record_alone() {
    let h = fresh();
    h.set_weak();
    assert!(!h.take_last(ME) && h.is_last_but_weak(ME));
    assert_eq!(h.count(), Some(1), "nothing has happened");
    h.unset_weak();
    assert!(h.take_last(ME));
}

#[test]
fn an_heir_counts_all_references_locally_if_they_fit() {
    for (local, shared, flags) in
        [(2, 0, 0), (1, 3, 0), (5, -4, QUEUED), (1, 2, QUEUED), (1, 1, WEAK)]
    {
        let h = with(local, shared);
        h.shared.fetch_or(flags, Ordering::Relaxed);
        let count = h.count().expect("counted") as i32;
        assert!(!h.inherit(OTHER, ME) && h.inherit(ME, OTHER));
        assert!(!h.inherit(ME, 7), "it is inherited");
        assert_eq!((halves(&h), h.owner(), h.count()), ((count, 0), OTHER, Some(i64::from(count))));
        assert_eq!((h.has_weak(), h.type_index()), (flags == WEAK, fresh().type_index()));
        // A thread that queued it for the ended owner finds the new one.
        if flags == QUEUED {
            assert_eq!(h.merge_ended(ME), Dropped::Enqueue(OTHER));
            assert_eq!(h.merge(), Dropped::Alive);
            assert!(!h.inherit(ME, 7) && !h.inherit(OTHER, 7), "it is merged");
            continue;
        }
        (1..count).for_each(|_| assert_eq!(h.drop_local(), Dropped::Alive));
        assert_eq!(h.drop_local(), Dropped::Dead);
    }
    let most = LOCAL_LIMIT as i32 - 1;
    for (shared, halves_after) in [(most - 1, (most, 0)), (most, (1, most))] {
        let h = with(1, shared);
        assert!(h.inherit(ME, OTHER));
        assert_eq!((halves(&h), h.owner()), (halves_after, OTHER));
        assert_eq!((h.count(), h.check(|_| true)), (Some(i64::from(shared) + 1), Ok(())));
    }
}

#[test]
fn some_objects_stay_without_an_owner() {
    let merged = fresh();
    merged.clone_ref(OTHER);
    assert_eq!(merged.drop_local(), Dropped::Alive);
    let shared = shared_for_life(1);
    for h in [&merged, &shared] {
        let before = (h.owner(), h.count());
        assert!(!h.inherit(ME, OTHER));
        assert_eq!((h.owner(), h.count()), before);
    }
    // The flag goes with the object, and keeps it alive for any owner.
    let immortal = fresh();
    immortal.make_immortal();
    assert!(immortal.inherit(ME, OTHER));
    (0..3).for_each(|_| assert_eq!(immortal.drop_ref(OTHER), Dropped::Alive));
    assert!(immortal.inherit(OTHER, ME));
    assert_eq!((immortal.count(), immortal.check(|_| true)), (None, Ok(())));
}

#[test]
fn a_merge_for_an_ended_owner_leaves_the_object_without_one() {
    let h = with(2, 0);
    assert_eq!(h.drop_shared(), Dropped::Enqueue(ME));
    assert_eq!(h.merge_ended(ME), Dropped::Alive);
    assert_eq!((h.owner(), h.count()), (NO_OWNER, Some(1)));
    assert!(!h.inherit(ME, OTHER));
    assert_eq!(h.drop_shared(), Dropped::Dead);
    // Its owner has dropped its last local reference, while the object was queued.
    let h = with(2, 1);
    assert_eq!((h.drop_shared(), h.drop_shared()), (Dropped::Alive, Dropped::Enqueue(ME)));
    h.clone_shared();
    assert_eq!((h.drop_local(), h.drop_local()), (Dropped::Alive, Dropped::Alive));
    assert_eq!(h.merge_ended(ME), Dropped::Dead);
}

/// An object that is shared for life, with some references.
fn shared_for_life(references: i32) -> Header {
    let h = fresh();
    (1..references).for_each(|_| h.clone_ref(ME));
    assert!(h.share_for_life(ME));
    assert_eq!((halves(&h).1, h.count()), (references, Some(i64::from(references))));
    assert_eq!((h.owner(), h.check(|_| false)), (SHARED_OWNER, Ok(())));
    h
}

#[test]
fn an_object_is_shared_by_its_owner_or_once_it_is_merged() {
    // A part of the references is counted in the shared half, on either side of zero.
    for shared in [-2, 0, 3] {
        let h = with(4, shared);
        h.set_weak();
        assert!(!h.share_for_life(OTHER), "it has an owner");
        assert_eq!((h.owner(), halves(&h)), (ME, (4, shared)));
        assert!(h.share_for_life(ME) && h.share_for_life(ME) && h.share_for_life(OTHER));
        assert_eq!((h.count(), h.has_weak()), (Some(i64::from(4 + shared)), true));
        assert_eq!((h.owner(), h.type_index()), (SHARED_OWNER, 5));
    }
    // Its owner has dropped its references, or has merged them.
    let merged = [
        || {
            let h = fresh();
            h.clone_ref(OTHER);
            assert_eq!(h.drop_local(), Dropped::Alive);
            h
        },
        || {
            let h = fresh();
            assert_eq!(h.merge(), Dropped::Alive);
            h
        },
    ];
    for merged in merged {
        let h = merged();
        assert!(h.share_for_life(OTHER));
        assert_eq!((h.owner(), h.count()), (SHARED_OWNER, Some(1)));
        assert_eq!(h.drop_merged(), Dropped::Dead);
    }
}

#[test]
fn a_queued_object_is_not_shared_before_it_leaves_the_queue() {
    let h = fresh();
    h.clone_ref(ME);
    assert_eq!(h.drop_shared(), Dropped::Enqueue(ME));
    assert!(!h.share_for_life(ME) && !h.share_for_life(OTHER));
    assert_eq!((h.owner(), h.count()), (ME, Some(1)));
    h.clone_ref(OTHER);
    assert_eq!(h.drop_local(), Dropped::Alive); // local 1
    assert_eq!(h.drop_local(), Dropped::Alive); // merged; still queued
    h.clone_ref(OTHER);
    assert!(!h.share_for_life(ME) && !h.share_for_life(OTHER));
    assert_eq!(h.merge(), Dropped::Alive);
    assert!(h.share_for_life(OTHER));
    assert_eq!((h.owner(), h.count()), (SHARED_OWNER, Some(1)));
}

#[test]
fn all_threads_count_a_shared_object_in_one_half() {
    let h = shared_for_life(2);
    h.clone_ref(ME);
    h.clone_ref(0);
    h.clone_shared();
    assert_eq!(h.count(), Some(5));
    assert!(!h.try_drop_local(ME) && !h.take_last(ME) && !h.is_last_but_weak(ME));
    assert_eq!(h.drop_ref(ME), Dropped::Alive);
    assert_eq!(h.drop_ref(OTHER), Dropped::Alive);
    assert_eq!(h.drop_merged(), Dropped::Alive);
    assert_eq!(h.drop_shared(), Dropped::Alive);
    h.set_weak();
    assert!(!h.is_last_but_weak(ME) && h.try_upgrade(ME));
    assert_eq!(h.drop_merged(), Dropped::Alive);
    assert_eq!(h.drop_merged(), Dropped::Dead);
    assert!(!h.try_upgrade(ME) && !h.try_upgrade(OTHER));
}

#[test]
fn a_claim_a_revival_and_an_heir_leave_a_shared_object_shared() {
    let is_shared = |h: &Header, count| {
        assert_eq!((h.owner(), h.count()), (SHARED_OWNER, Some(count)));
        assert_eq!((h.is_owned_by(OTHER), h.check(|_| false)), (false, Ok(())));
    };
    let h = shared_for_life(2);
    assert!(!h.inherit(ME, OTHER));
    is_shared(&h, 2);
    h.claim(OTHER);
    is_shared(&h, 3);
    (0..2).for_each(|_| assert_eq!(h.drop_merged(), Dropped::Alive));
    assert_eq!(h.drop_ref(OTHER), Dropped::Dead);
    h.revive(OTHER);
    is_shared(&h, 1);
    assert!(h.try_upgrade(ME));
    assert_eq!(h.drop_ref(OTHER), Dropped::Alive);
    assert_eq!(h.drop_merged(), Dropped::Dead);
}

#[test]
fn a_shared_object_saturates_and_a_count_that_wraps_keeps_the_flags() {
    for over in [0, 1] {
        let h = with(10, SHARED_LIMIT - 10 + over);
        assert!(h.share_for_life(ME));
        assert_eq!(h.count().is_none(), over == 1);
        h.clone_shared();
        assert_eq!((h.count(), h.check(|_| false)), (None, Ok(())));
    }
    // The upper bits of the word run through zero, in both directions.
    let h = shared_for_life(1);
    h.make_immortal();
    let flags = || h.shared.load(Ordering::Relaxed) & FLAGS;
    for _ in 0..3 {
        assert_eq!(h.drop_merged(), Dropped::Alive);
        assert_eq!((h.count(), flags()), (None, MERGED | IMMORTAL));
    }
    h.shared.fetch_or(!FLAGS, Ordering::Relaxed);
    h.clone_shared();
    assert_eq!((halves(&h).1, h.count(), flags()), (0, None, MERGED | IMMORTAL));
    h.shared.store((i32::MAX as u32 & !FLAGS) | flags(), Ordering::Relaxed);
    h.clone_shared();
    assert_eq!((h.count(), flags()), (None, MERGED | IMMORTAL));
    assert_eq!(h.drop_merged(), Dropped::Alive);
    // An immortal object can be shared, too.
    let h = fresh();
    h.make_immortal();
    assert!(h.share_for_life(ME));
    assert_eq!((h.drop_merged(), h.count()), (Dropped::Alive, None));
    assert_eq!(h.check(|_| false), Ok(()));
}

#[test]
fn a_check_tells_a_shared_object_with_wrong_flags() {
    for (wrong, right) in [(QUEUED, 0), (0, MERGED)] {
        let h = shared_for_life(1);
        h.shared.fetch_or(wrong, Ordering::Relaxed);
        h.shared.fetch_and(!right, Ordering::Relaxed);
        let told = h.check(|_| true).expect_err("wrong flags");
        assert!(told.contains("shared for life"), "{told}");
    }
}

#[test]
fn no_mutator_has_the_owner_of_shared_objects() {
    use crate::safepoint::ThreadId;
    assert!(ThreadId::from_raw(SHARED_OWNER).is_none());
    assert!(ThreadId::from_raw(SHARED_OWNER - 1).is_some());
}
