//! Tests of the thresholds and of the memory condition.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn a_collection_is_due_behind_the_first_threshold_and_0_starts_none() {
    let first_due = |t0| RuleNumbers::from(Thresholds { t0, ..Thresholds::default() }).first_due;
    assert_eq!([1, 700, 0].map(first_due), [2, 701, usize::MAX]);
}

#[test]
fn a_collection_is_full_if_the_heap_has_grown_by_more_than_a_quarter() {
    let decide = |t1, [new, set_aside, grown, old]: [usize; 4]| {
        let figures = Figures { new, set_aside, grown, old };
        GcState::default().decide([10, t1, 0], figures)
    };
    assert_eq!(decide(1, [11, 0, 0, 44]), Ruling::Young);
    assert_eq!(decide(1, [12, 0, 0, 44]), Ruling::Full);
    assert_eq!(decide(1, [11, 1, 0, 44]), Ruling::Full);
    assert_eq!(decide(1, [11, 0, 1, 44]), Ruling::Full);
    assert_eq!(decide(1, [11, 4, 5, 80]), Ruling::Young);
    assert_eq!(decide(0, [11, 0, 0, 44]), Ruling::Full);
}

#[test]
fn u_06_memory_includes_swapped_out_memory() {
    let page = "Name:\tx\nVmPeak:\t  900 kB\nVmRSS:\t  300 kB\nVmSwap:\t   20 kB\n";
    assert_eq!(memory_of(page), Some(320 << 10));
    assert_eq!(memory_of("VmRSS:\t  300 kB\n"), Some(300 << 10), "no word of swapped memory");
    assert_eq!(memory_of("VmSwap:\t   20 kB\n"), None);
    assert_eq!(memory_of("VmRSS:\t much\n"), None);
}

#[test]
fn the_condition_holds_where_memory_has_grown_or_is_unknown_or_objects_are_many() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    let condition = MemoryCondition::default();
    assert!(condition.holds(10, 0), "without a source");
    let used = Arc::new(AtomicUsize::new(1000));
    let source = Arc::clone(&used);
    let source = move || Some(source.load(SeqCst)).filter(|&used| used != 0);
    condition.set_source(Some(Hook::new(Arc::new(source))));
    for (now, new, holds) in [
        (1000, 0, false),
        (1099, 0, false),
        (1100, 0, true),
        (1000, 400, false),
        (1000, 401, true),
        (0, 0, true),
    ] {
        used.store(now, SeqCst);
        assert_eq!(condition.holds(10, new), holds, "{now} bytes, {new} objects");
    }
    used.store(2000, SeqCst);
    condition.remember();
    assert!(!condition.holds(10, 0), "as after the last collection");
    used.store(0, SeqCst);
    condition.remember();
    used.store(2000, SeqCst);
    assert!(condition.holds(10, 0), "it was unknown after the last collection");
    condition.set_source(None);
    condition.remember();
    assert!(condition.holds(10, 0));
}
