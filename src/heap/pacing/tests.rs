//! Tests of the pacing: each rule by itself, and an oracle of the bounds.

#![forbid(unsafe_code)]

use super::*;
#[cfg(feature = "cpython")]
use crate::gc_module::{self, Thresholds};
use std::time::Duration;

use crate::heap::child::{JobError, NoAnswer};
use crate::heap::child_pace::ForkedSearch;

fn pace(policy: Pacing) -> Pace {
    Pace::new(policy, None, usize::MAX)
}

/// A pace with the rule of the gc module, for policies with thresholds.
#[cfg(feature = "cpython")]
fn pace_by_rule(policy: Pacing) -> Pace {
    Pace::new(policy, Some(gc_module::new_state().expect("memory").1), usize::MAX)
}

#[test]
fn nothing_is_due_below_the_thresholds() {
    let p = pace(Pacing::default());
    let threshold = Pacing::default().young_objects as isize;
    p.taken(threshold - 1, 0);
    assert_eq!(p.due(), Due::Nothing);
    p.taken(1, 0);
    assert_eq!(p.due(), Due::Young);
    p.taken(-2 * threshold, 0);
    assert_eq!(p.new_objects(), 0, "never negative");
    p.taken(10, Pacing::default().young_bytes as isize);
    assert_eq!(p.due(), Due::Young, "bytes count too");
}

#[test]
fn growth_makes_a_full_collection_due_and_the_threshold_adapts() {
    let p = pace(Pacing::default());
    let mut young = 0;
    loop {
        p.taken(p.young_objects.load(Ordering::Relaxed) as isize, 0);
        match p.due() {
            Due::Young => p.after_young(p.new_objects(), 0),
            Due::Full => break,
            Due::Promotion => panic!("before the first full collection"),
            Due::Nothing => panic!("starved"),
        }
        young += 1;
    }
    // No object dies, and the old set is small. So each period is as long as the threshold,
    // until the growth exceeds the minimum.
    let policy = Pacing::default();
    assert_eq!(young, policy.full_minimum / policy.young_objects + 1);
    p.after_full(1_000_000, 0);
    for _ in 0..10 {
        p.taken(1 << 20, 0);
        p.after_young(1 << 17, 0);
    }
    assert!(p.period.load(Ordering::Relaxed) > 60_000);
    for _ in 0..10 {
        p.after_young(100, 100);
    }
    assert_eq!(p.young_objects.load(Ordering::Relaxed), Pacing::default().young_objects);
}

#[test]
fn a_heap_that_is_being_built_waits_for_twice_the_growth() {
    for (dead, growth) in [(0, 2), (124_999, 2), (125_000, 1), (900_000, 1)] {
        let p = pace(Pacing::default());
        p.after_full(1_000_000, dead);
        let allowed = (1_000_000 - dead) * growth;
        p.after_young(allowed, 0);
        assert_eq!(
            after_promotions(&p),
            (p.slices() - 1, Due::Young),
            "{dead} dead, grown by {allowed}"
        );
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Full, "{dead} dead, grown by one more");
    }
}

/// Whatever the program requests: the period in which the heap would have looked at its growth
/// need not end.
#[test]
fn growth_makes_a_full_collection_due_where_a_young_one_ends() {
    for few in [0, 1, Pacing::default().young_objects - 1] {
        let p = pace(Pacing::default());
        let minimum = Pacing::default().full_minimum;
        p.taken(few as isize, 0);
        p.after_young(minimum, 0);
        assert_eq!(p.due(), Due::Nothing);
        p.taken(few as isize, 0);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Full, "{few} new objects");
        p.after_full(minimum, 0);
        p.after_reclaim(0);
        assert_eq!(p.due(), Due::Nothing);
    }
    // In a period with promotions, too.
    let p = being_built();
    assert!(p.slices() > 1);
    p.after_young(2_000_001, 0);
    assert_eq!(p.due(), Due::Full);
    // Where the policy changes, and where a guard ends.
    let p = pace(Pacing::default());
    p.after_young(1_000, 0);
    p.set_policy(Pacing::default().with_full_minimum(1_000));
    assert_eq!(p.due(), Due::Nothing);
    p.set_policy(Pacing::default().with_full_minimum(999));
    assert_eq!(p.due(), Due::Full);
    p.forbid_collections();
    assert_eq!(p.due(), Due::Nothing);
    p.allow_collections();
    assert_eq!(p.due(), Due::Full);
}

#[test]
fn bytes_that_survive_make_a_full_collection_due() {
    const MIB: isize = 1 << 20;
    let p = pace(Pacing::default());
    for _ in 0..16 {
        p.taken(1, MIB);
        assert_eq!(p.due(), Due::Young);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Nothing);
    }
    p.taken(1, MIB);
    p.after_young(1, 0);
    assert_eq!(p.due(), Due::Full);
    // 10 of the 17 are dead. Until they are destroyed, they are no growth.
    p.after_full(17, 10);
    p.reclaimed(10 << 20);
    p.after_reclaim(0);
    for _ in 0..16 {
        p.taken(1, MIB);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Nothing, "16 MiB at least");
    }
    p.taken(1, MIB);
    p.after_young(1, 1);
    assert_eq!(p.due(), Due::Nothing, "its bytes are still to be freed");
    p.reclaimed(MIB as usize);
    p.after_reclaim(0);
    assert_eq!(p.due(), Due::Nothing);
    p.taken(1, MIB);
    p.after_young(1, 0);
    assert_eq!(p.due(), Due::Full);
}

/// A child searches 20 objects of 1 MiB, of which 10 are dead, while 3 more come and stay.
fn beside_a_child(meanwhile: impl FnOnce(&Pace)) -> Pace {
    const MIB: isize = 1 << 20;
    let p = pace(Pacing::default().with_full_minimum(100));
    p.taken(20, 20 * MIB);
    p.after_nothing(CollectionKind::Full);
    let clone = p.beside_search();
    p.taken(3, 3 * MIB);
    p.after_young(3, 0);
    meanwhile(&p);
    let searched = p.beside_search();
    p.proposed(10);
    assert_eq!(p.unreclaimed.load(Ordering::Relaxed), 10);
    p.reclaimed(10 << 20);
    p.after_child(20, 10, [clone, searched]);
    p.after_reclaim(0);
    p
}

#[test]
fn a_policy_decides_which_searches_run_in_a_child() {
    let forks = |forked, objects| {
        let p = pace(Pacing::default().with_forked(forked));
        p.taken(objects, objects);
        p.forks()
    };
    assert!(!forks(ForkedSearch::Never, 1 << 30));
    assert!(forks(ForkedSearch::Always, 0));
    let least = ForkedSearch::FromObjects(10);
    assert!(!forks(least, 9) && forks(least, 10));
    let least = ForkedSearch::FromStop(Duration::from_nanos(300));
    assert!(!forks(least, 9) && forks(least, 10));
}

#[test]
fn the_old_and_the_new_objects_are_searched() {
    let p = pace(Pacing::default().with_forked(ForkedSearch::FromObjects(30)));
    p.taken(10, 0);
    p.after_full(10, 0);
    p.taken(10, 0);
    p.after_young(10, 0);
    p.taken(9, 0);
    assert!(!p.forks());
    p.taken(1, 0);
    assert!(p.forks());
}

#[test]
fn the_last_search_in_a_stop_tells_how_long_the_next_one_takes() {
    let p = pace(Pacing::default().with_forked(ForkedSearch::FromStop(Duration::from_micros(1))));
    p.taken(10, 0);
    assert!(!p.forks(), "it is assumed to take 300 ns");
    // Few objects say little.
    p.children.searched_for(Duration::from_millis(1), 9_999);
    assert!(!p.forks());
    p.children.searched_for(Duration::from_millis(1), 10_000);
    assert!(p.forks());
    p.children.searched_for(Duration::from_millis(1), 10_011);
    assert!(!p.forks(), "990 ns");
}

#[test]
fn children_that_fail_are_tried_ever_more_rarely() {
    let p = pace(Pacing::default().with_forked(ForkedSearch::Always));
    let skipped = || (0..1_000).take_while(|_| !p.forks()).count();
    for expected in [0, 2, 6, 14, 30, 62, 62] {
        p.children.failed_by(&NoAnswer::Failed(JobError::Room));
        assert_eq!(skipped(), expected);
    }
    p.children.failed_by(&NoAnswer::Unwise("now"));
    assert_eq!(skipped(), 0);
    p.children.succeeded();
    p.children.failed_by(&NoAnswer::Refused(std::io::ErrorKind::OutOfMemory.into()));
    assert_eq!(skipped(), 0);
    for reason in [
        NoAnswer::Impossible("for ever"),
        NoAnswer::Refused(std::io::ErrorKind::PermissionDenied.into()),
        // Of a filter of calls.
        NoAnswer::Refused(std::io::ErrorKind::Unsupported.into()),
    ] {
        p.children.failed_by(&reason);
        assert_eq!(skipped(), 1_000);
        p.set_policy(p.policy());
        assert_eq!(skipped(), 0);
    }
}

#[test]
fn below_a_limit_a_heap_grows_into_half_of_the_room_while_a_child_searches() {
    const MIB: isize = 1 << 20;
    let limited = |limit: usize| {
        let p = Pace::new(Pacing::default().with_full_minimum_bytes(64 << 20), None, limit << 20);
        p.taken(30, 30 * MIB);
        p.after_young(30, 0);
        p.after_clone();
        p.taken(6, 6 * MIB);
        p.after_young(6, 0);
        p.is_full_due()
    };
    assert!(limited(40), "it has grown by 6 of 10 MiB");
    assert!(!limited(50), "and by 6 of 20");
}

#[test]
fn what_grows_while_a_child_searches_stays_growth() {
    let p = beside_a_child(|_| ());
    let of = |number: &AtomicUsize| number.load(Ordering::Relaxed);
    assert_eq!((of(&p.old_objects), of(&p.grown_objects)), (10, 3));
    assert_eq!((of(&p.old_bytes), of(&p.unreclaimed)), (10 << 20, 0));
}

#[test]
fn a_full_collection_beside_a_child_has_the_newer_figures() {
    let p = beside_a_child(|p| {
        p.after_full(23, 10);
        p.after_reclaim(0);
    });
    let of = |number: &AtomicUsize| number.load(Ordering::Relaxed);
    assert_eq!((of(&p.old_objects), of(&p.grown_objects)), (13, 0));
}

#[test]
fn objects_that_a_collection_could_not_destroy_are_growth_once() {
    let p = pace(Pacing::default().with_full_minimum(100));
    p.after_young(101, 101);
    p.after_reclaim(101);
    assert_eq!(p.due(), Due::Full);
    for _ in 0..3 {
        p.after_full(101, 101);
        p.after_reclaim(101);
        assert_eq!(p.due(), Due::Nothing, "a full collection has seen them");
    }
}

#[test]
fn infinite_growth_makes_no_full_collection_due() {
    let p = pace(Pacing::default().with_full_growth(f64::INFINITY));
    for _ in 0..3 {
        p.taken(1 << 20, 1 << 40);
        p.after_young(1 << 20, 0);
        assert_eq!(p.due(), Due::Nothing);
    }
}

#[cfg(feature = "cpython")]
#[test]
fn under_thresholds_too_a_full_collection_is_due_where_a_young_one_ends() {
    let thresholds = |t0| Pacing::default().with_thresholds(Thresholds { t0, t1: 10, t2: 0 });
    let p = pace_by_rule(thresholds(100));
    p.after_young(4_000, 0);
    assert_eq!(p.due(), Due::Nothing);
    p.after_young(1, 0);
    assert_eq!(p.due(), Due::Full, "40 times the threshold");
    p.after_full(40_000, 0);
    p.after_reclaim(0);
    p.after_young(10_000, 0);
    assert_eq!(p.due(), Due::Nothing);
    p.after_young(1, 0);
    assert_eq!(p.due(), Due::Full, "a quarter of what was left");
    let p = pace_by_rule(thresholds(100));
    p.taken(1, 16 << 20);
    p.after_young(1, 0);
    assert_eq!(p.due(), Due::Nothing);
    p.taken(1, 1);
    p.after_young(1, 0);
    assert_eq!(p.due(), Due::Full, "bytes");
    let p = pace_by_rule(thresholds(0));
    p.taken(1 << 20, 1 << 40);
    p.after_young(1 << 20, 0);
    assert_eq!(p.due(), Due::Nothing, "no threshold");
}

impl Pace {
    fn slices(&self) -> usize {
        self.slices.load(Ordering::Relaxed)
    }
}

/// Allocates and promotes, with `candidates` in each slice, until another action is due.
/// Returns the number of promotions and the action.
fn promotions(p: &Pace, candidates: usize) -> (usize, Due) {
    for promoted in 0.. {
        assert_eq!(p.due(), Due::Nothing);
        p.taken(p.young_objects.load(Ordering::Relaxed) as isize - 1, 0);
        assert_eq!(p.due(), Due::Nothing, "one object below the threshold");
        p.taken(1, 0);
        match p.due() {
            Due::Promotion => p.after_promotion(candidates),
            due => return (promoted, due),
        }
    }
    unreachable!()
}

/// The same, without growth.
fn after_promotions(p: &Pace) -> (usize, Due) {
    promotions(p, 0)
}

#[test]
fn while_a_heap_is_built_few_slices_are_traversed() {
    let p = pace(Pacing::default());
    let young = Pacing::default().young_objects;
    p.after_full(1_000_000, 0);
    for (slices, looks) in [(1, 0), (2, 1), (4, 2), (8, 3), (8, 4), (8, 5)] {
        assert_eq!(after_promotions(&p), (slices - 1, Due::Young));
        let period = (young << looks).min((1_000_000 + looks * young) / 16);
        assert_eq!(
            p.young_objects.load(Ordering::Relaxed),
            period / slices,
            "the slices divide the period"
        );
        p.after_young(young, 0);
    }
    // A requested collection begins a period too.
    assert_eq!(after_promotions(&p).0, 7);
    p.after_young(young, 0);
    assert_eq!(after_promotions(&p).0, 7);
}

/// The pace of a heap of a million objects, after many collections without garbage.
fn being_built() -> Pace {
    build(pace(Pacing::default()))
}

fn build(p: Pace) -> Pace {
    p.after_full(1_000_000, 0);
    (0..10).for_each(|_| p.after_young(2_500, 0));
    assert_eq!(p.slices(), SLICES);
    p
}

#[test]
fn whatever_shows_that_a_heap_is_not_being_built_ends_promotions() {
    for (candidates, dead, slices) in
        [(3_200, 99, 8), (3_200, 100, 1), (3_200, 3_200, 1), (10, 1, 1), (1, 0, 8), (0, 0, 8)]
    {
        let p = being_built();
        p.after_young(candidates, dead);
        assert_eq!(p.slices(), slices, "{dead} of {candidates} dead");
        assert_eq!(after_promotions(&p), (slices - 1, Due::Young));
    }
    for (dead, slices) in [(0, 8), (124_999, 8), (125_000, 1)] {
        let p = being_built();
        p.after_full(1_000_000, dead);
        assert_eq!(after_promotions(&p), (slices - 1, Due::Young), "{dead} of a million dead");
    }
    // Promotions begin again only after a lean full collection and further young collections.
    let p = being_built();
    p.after_full(1_000_000, 500_000);
    (0..10).for_each(|_| p.after_young(2_500, 0));
    assert_eq!(after_promotions(&p), (0, Due::Young));
    p.after_full(1_000_000, 0);
    assert_eq!(after_promotions(&p), (0, Due::Young));
    p.after_young(2_500, 0);
    assert_eq!(after_promotions(&p), (1, Due::Young));
    // A change of the policy resets everything that was learned.
    let p = being_built();
    p.change_policy(|_| ());
    assert_eq!(after_promotions(&p), (0, Due::Young));
}

#[test]
fn few_candidates_and_small_heaps_teach_nothing() {
    let p = pace(Pacing::default());
    p.after_full(1_000_000, 0);
    (0..10).for_each(|_| p.after_young(1_249, 0));
    assert_eq!(after_promotions(&p), (0, Due::Young));
    // A sixteenth of the old set is less than two thresholds.
    let p = pace(Pacing::default());
    p.after_full(50_000, 0);
    p.after_young(2_500, 0);
    assert_eq!(after_promotions(&p), (0, Due::Young));
}

#[test]
fn promotions_count_as_growth_and_a_full_collection_comes_when_their_period_ends() {
    let p = being_built();
    let grown = p.grown_objects.load(Ordering::Relaxed);
    let slice = p.young_objects.load(Ordering::Relaxed);
    assert_eq!(promotions(&p, slice), (7, Due::Young));
    assert_eq!(p.grown_objects.load(Ordering::Relaxed), grown + 7 * slice);
    p.after_young(slice, 0);
    // The heap is being built, so it waits for twice the growth, and then for the end of the
    // period.
    assert_eq!(promotions(&p, 1_999_999), (7, Due::Full));
}

#[cfg(feature = "cpython")]
#[test]
fn bytes_alone_and_thresholds_promote_nothing() {
    let p = being_built();
    p.taken(1, p.young_bytes.load(Ordering::Relaxed) as isize);
    assert_eq!(p.due(), Due::Young);
    let p =
        pace_by_rule(Pacing::default().with_thresholds(Thresholds { t0: 1_000, t1: 10, t2: 0 }));
    for _ in 0..10 {
        p.after_full(1_000_000, 0);
        p.after_young(2_500, 0);
        assert_eq!(after_promotions(&p), (0, Due::Young));
    }
    let p = build(pace_by_rule(Pacing::default()));
    p.set_policy(Pacing::default().with_thresholds(Thresholds::default()));
    assert_eq!(after_promotions(&p), (0, Due::Young));
}

#[test]
fn what_came_to_nothing_is_not_due_again_at_once() {
    let p = pace(Pacing::default().with_full_minimum(10_000));
    let young = Pacing::default().young_objects;
    p.taken(young as isize, 0);
    assert_eq!(p.due(), Due::Young);
    p.after_nothing(CollectionKind::Young);
    assert_eq!(p.due(), Due::Nothing);
    p.after_young(20_000, 0);
    let due = |p: &Pace| {
        p.taken(p.period.load(Ordering::Relaxed) as isize, 0);
        p.due()
    };
    assert_eq!(due(&p), Due::Full);
    p.after_nothing(CollectionKind::Full);
    assert_eq!(p.due(), Due::Nothing);
    assert_eq!(due(&p), Due::Young, "a full collection waits until the heap has grown again");
}

#[test]
fn a_threshold_out_of_reach_stays_out_of_reach() {
    let p = pace(Pacing::default().with_young_objects(usize::MAX));
    p.after_young(100, 0);
    assert_eq!(p.period.load(Ordering::Relaxed), usize::MAX);
}

#[test]
fn slices_slow_nobody_down_earlier() {
    let p = being_built();
    p.taken(4 * p.period.load(Ordering::Relaxed) as isize, 0);
    assert!(!p.is_overdue());
    p.taken(1, 0);
    assert!(p.is_overdue());
}

#[test]
fn a_large_collection_slows_nobody_down_who_makes_less_than_half_of_it() {
    let p = pace(Pacing::default());
    let young = Pacing::default().young_objects;
    p.after_full(1_000_000, 1_000_000);
    p.taken(500_000, 0);
    assert!(!p.is_overdue(), "half of the garbage");
    p.taken(1, 0);
    assert!(p.is_overdue());
    p.after_reclaim(0);
    p.after_young(0, 0);
    p.taken(4 * young as isize, 0);
    assert!(!p.is_overdue(), "four times the threshold, while no garbage is destroyed");
    p.taken(1, 0);
    assert!(p.is_overdue());
}

#[test]
fn a_collection_is_late_when_it_waits_for_much_garbage() {
    let p = pace(Pacing::default());
    let young = Pacing::default().young_objects;
    for (dead, late) in [(8 * young, false), (8 * young + 1, true)] {
        p.after_full(1_000_000, dead);
        p.taken(2 * young as isize, 0);
        assert!(!p.is_late(), "twice the period");
        p.taken(1, 0);
        assert_eq!(p.is_late(), late, "{dead} dead");
    }
}

#[test]
fn deferral_and_manual_pacing() {
    let p = pace(Pacing::manual());
    p.taken(1 << 30, 0);
    assert_eq!(p.due(), Due::Nothing);
    p.set_policy(Pacing::default());
    assert_ne!(p.due(), Due::Nothing);
    p.forbid_collections();
    assert_eq!(p.due(), Due::Nothing);
    p.allow_collections();
    assert_ne!(p.due(), Due::Nothing);
}

/// A heap of tracked objects, which does at once what its pace says.
struct Sim {
    pace: Pace,
    policy: Pacing,
    guards: usize,
    /// New objects: those in use, and cyclic garbage. Then old ones.
    young: [usize; 2],
    old: [usize; 2],
    /// Objects and bytes that the last full collection left, and whether it freed little.
    left: (usize, usize),
    lean: bool,
    /// Bytes outside the heap.
    external: usize,
}

/// Bytes of each object.
const EACH: usize = 64;
/// A thread fetches so many cells at a time, and only then looks at the pace.
const REFILL: usize = 64;
/// More than a period may have, because its slices end late.
const LATE: usize = SLICES * REFILL;

#[derive(Clone, Copy, Debug)]
enum Op {
    Keep(usize),
    Garbage(usize),
    /// Objects in use, old ones first, become cyclic garbage.
    Lose(usize),
    /// Objects in use, new ones first, die by their counts.
    Free(usize),
    External(usize),
    Young,
    Full,
    Abandon(CollectionKind),
    Policy(usize, usize, u8),
    Guard,
    EndOfGuard,
}

impl Sim {
    fn objects(&self) -> usize {
        self.young.iter().chain(&self.old).sum()
    }

    fn bytes(&self) -> usize {
        self.objects() * EACH + self.external
    }

    fn lose(&mut self, many: usize, age: fn(&mut Self) -> &mut [usize; 2]) -> usize {
        let [used, garbage] = age(self);
        let lost = many.min(*used);
        *used -= lost;
        *garbage += lost;
        lost
    }

    fn young_collection(&mut self) {
        let [used, dead] = std::mem::take(&mut self.young);
        self.pace.after_young(used + dead, dead);
        self.old[0] += used;
        self.pace.reclaimed(dead * EACH);
        self.pace.after_reclaim(0);
    }

    fn full_collection(&mut self) {
        let all = self.objects();
        let dead = self.young[1] + self.old[1];
        self.pace.after_full(all, dead);
        self.old = [self.old[0] + self.young[0], 0];
        self.young = [0; 2];
        self.pace.reclaimed(dead * EACH);
        self.pace.after_reclaim(0);
        self.left = (self.old[0], self.bytes());
        self.lean = dead * 8 < all;
    }

    fn take(&mut self, place: usize, many: usize) {
        // A refill at a time, and a safepoint behind it.
        for start in (0..many).step_by(REFILL) {
            let refill = (many - start).min(REFILL);
            self.young[place] += refill;
            self.pace.taken(refill as isize, (refill * EACH) as isize);
            self.safepoint();
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Keep(many) => self.take(0, many),
            Op::Garbage(many) => self.take(1, many),
            Op::Lose(many) => {
                let lost = self.lose(many, |sim| &mut sim.old);
                self.lose(many - lost, |sim| &mut sim.young);
            }
            Op::Free(many) => {
                let new = many.min(self.young[0]);
                let old = (many - new).min(self.old[0]);
                self.young[0] -= new;
                self.old[0] -= old;
                let freed = (new + old) as isize;
                self.pace.taken(-freed, -freed * EACH as isize);
            }
            Op::External(bytes) => {
                self.external += bytes;
                self.pace.taken(0, bytes as isize);
            }
            Op::Young => self.young_collection(),
            Op::Full => self.full_collection(),
            Op::Abandon(kind) => {
                self.pace.after_nothing(kind);
                if kind == CollectionKind::Full {
                    // As after a collection that has found no garbage. What has died by its
                    // count since the last one is in the number of objects.
                    let old = self.pace.old_objects.load(Ordering::Relaxed);
                    self.left = (old, self.bytes());
                }
            }
            Op::Policy(young, minimum, growth) => {
                self.policy = Pacing::default()
                    .with_young_objects(young)
                    .with_young_bytes(young * EACH * 2)
                    .with_full_minimum(minimum)
                    .with_full_minimum_bytes(minimum * EACH)
                    .with_full_growth(f64::from(growth) / 2.0);
                self.pace.set_policy(self.policy);
            }
            Op::Guard => {
                self.guards += 1;
                self.pace.guard_begins();
            }
            Op::EndOfGuard if self.guards == 0 => {}
            Op::EndOfGuard => {
                self.guards -= 1;
                self.pace.guard_ends();
            }
        }
        self.safepoint();
    }

    fn safepoint(&mut self) {
        loop {
            match self.pace.due() {
                Due::Nothing => return,
                Due::Promotion => {
                    let [used, dead] = std::mem::take(&mut self.young);
                    self.pace.after_promotion(used + dead);
                    self.old = [self.old[0] + used, self.old[1] + dead];
                }
                Due::Young => self.young_collection(),
                Due::Full => self.full_collection(),
            }
        }
    }

    /// The bounds of this file's page.
    fn assert_bounded(&self, op: Op) -> Result<(), proptest::test_runner::TestCaseError> {
        let Pacing { young_objects, young_bytes, full_growth, .. } = self.policy;
        let Pacing { full_minimum, full_minimum_bytes, .. } = self.policy;
        let growth = full_growth * if self.lean { 2.0 } else { 1.0 };
        let may_grow = |left: usize, least: usize| ((left as f64 * growth) as usize).max(least);
        let old = self.left.0 + may_grow(self.left.0, full_minimum);
        let period = young_objects.max(old / 15);
        let objects = old + period + LATE;
        let old = self.left.1 + may_grow(self.left.1, full_minimum_bytes);
        let bytes = old + young_bytes.max(old / 15) + LATE * EACH;
        let (are, use_) = (self.objects(), self.bytes());
        proptest::prop_assert!(are <= objects, "{op:?}: {are} objects, at most {objects}");
        proptest::prop_assert!(use_ <= bytes, "{op:?}: {use_} bytes, at most {bytes}");
        Ok(())
    }
}

fn any_op() -> impl proptest::strategy::Strategy<Value = Op> {
    use proptest::prelude::{Just, Strategy, any, prop_oneof};
    prop_oneof![
        8 => (1..2_000_usize).prop_map(Op::Keep),
        8 => (1..2_000_usize).prop_map(Op::Garbage),
        6 => (1..2_000_usize).prop_map(Op::Lose),
        3 => (1..2_000_usize).prop_map(Op::Free),
        2 => (1..100_000_usize).prop_map(Op::External),
        6 => Just(Op::Young),
        1 => Just(Op::Full),
        1 => any::<bool>().prop_map(|full| Op::Abandon(match full {
            true => CollectionKind::Full,
            false => CollectionKind::Young,
        })),
        1 => (1..500_usize, 0..2_000_usize, 0..5_u8)
            .prop_map(|(young, least, growth)| Op::Policy(young, least, growth)),
        1 => Just(Op::Guard),
        2 => Just(Op::EndOfGuard),
    ]
}

/// A guard defers any number of new objects. They are more than a slice, so they are collected.
#[test]
fn a_whole_period_at_once_is_not_promoted() {
    let p = being_built();
    p.guard_begins();
    p.taken(p.period.load(Ordering::Relaxed) as isize - 1, 0);
    p.guard_ends();
    assert_eq!(p.due(), Due::Promotion);
    p.taken(1, 0);
    assert_eq!(p.due(), Due::Young);
}

/// How many programs are tried.
fn cases() -> u32 {
    if std::env::var_os("STANDSTILL_FULL").is_some() { 500 } else { 100 }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(cases()))]

    #[test]
    fn whatever_a_program_calls_the_heap_stays_below_the_bounds(
        ops in proptest::collection::vec(any_op(), 1..200),
    ) {
        let policy = Pacing::default();
        let mut sim = Sim {
            pace: pace(policy),
            policy,
            guards: 0,
            young: [0; 2],
            old: [0; 2],
            left: (0, 0),
            lean: false,
            external: 0,
        };
        sim.run(Op::Policy(100, 1_000, 2));
        for op in ops {
            sim.run(op);
            if sim.guards == 0 {
                sim.assert_bounded(op)?;
            }
        }
    }
}

#[cfg(feature = "cpython")]
#[test]
fn no_number_of_a_policy_overflows() {
    let edge = [0, 1, 2, usize::MAX / 2, usize::MAX - 1, usize::MAX];
    let growths = [0.0, 1.0, -1.0, f64::MAX, f64::INFINITY, f64::NAN];
    let thresholds = [0, 1, u32::MAX].map(|t| Some(Thresholds { t0: t, t1: t, t2: t }));
    for (objects, bytes) in edge.into_iter().flat_map(|objects| edge.map(|bytes| (objects, bytes)))
    {
        for (full_growth, at) in growths.into_iter().flat_map(|growth| edge.map(|at| (growth, at)))
        {
            for thresholds in thresholds.into_iter().chain([None]) {
                let pace = pace_by_rule(Pacing {
                    automatic: true,
                    young_objects: objects,
                    young_bytes: bytes,
                    full_growth,
                    full_minimum: at,
                    full_minimum_bytes: at,
                    forked: ForkedSearch::Never,
                    rule: thresholds.map(Thresholds::into),
                });
                // A heap has fewer objects: their numbers have 32 bits.
                for many in [0, 1, 1 << 32] {
                    pace.taken(many as isize, many as isize);
                    pace.deferred(many);
                    let _ = (pace.due(), pace.is_overdue(), pace.is_late());
                    pace.after_young(many, many / 2);
                    pace.after_young(many, 0);
                    pace.after_promotion(many);
                    pace.after_full(many, 0);
                    pace.after_full(many, many);
                    pace.set_policy(pace.policy());
                    let _ = (pace.due(), pace.is_overdue(), pace.is_late());
                }
            }
        }
    }
}
