#![forbid(unsafe_code)]

use std::time::Duration;

use super::Timings;
use crate::report::facts::{
    CollectionKind, CollectionReport, During, LongestCall, Phase, PhaseTimes,
};
use crate::{Collect, Finalizer, Gc, GcCell, Heap, Mutator, Trace, Tracer};

const MS: Duration = Duration::from_millis(1);

fn near(one: Duration, other: Duration) -> bool {
    (other..=other + other / 60 + Duration::from_nanos(100)).contains(&one)
}

fn call(during: During, took: Duration) -> LongestCall {
    LongestCall { during, type_name: format!("{took:?}").into(), objects: 1, took }
}

#[test]
fn the_slowest_call_of_each_kind_is_kept() {
    let timings = Timings::default();
    let calls = [
        (During::Finalize, 3 * MS),
        (During::Drop, 2 * MS),
        (During::Finalize, 5 * MS),
        (During::Finalize, 4 * MS),
    ];
    calls.into_iter().for_each(|(during, took)| timings.note_call(&call(during, took)));
    let mut report = CollectionReport::new(CollectionKind::Full);
    timings.close(&mut report);
    assert_eq!(report.slowest, [call(During::Finalize, 5 * MS), call(During::Drop, 2 * MS)]);
    // The next collection begins with none, and so does one before which others were noted.
    let mut next = CollectionReport::new(CollectionKind::Full);
    timings.close(&mut next);
    assert_eq!((next.slowest, next.sequence), (vec![], 2));
    timings.note_call(&call(During::Drop, MS));
    timings.forget_calls();
    timings.close(&mut report);
    assert_eq!((report.slowest, report.sequence), (vec![], 3));
}

#[test]
fn each_time_is_counted_once_and_under_its_kind() {
    let timings = Timings::default();
    let mut report = CollectionReport::new(CollectionKind::Young);
    report.stops = vec![MS, 3 * MS];
    report.time_to_stop = MS / 2;
    report.duration = 10 * MS;
    report.phases = PhaseTimes::of(|phase| if phase == Phase::Count { 2_000_000 } else { 0 });
    timings.close(&mut report);
    // It could not stop the world.
    let mut refused = CollectionReport::new(CollectionKind::Young);
    (refused.duration, refused.waited) = (77 * MS, 8 * MS);
    timings.close(&mut refused);
    let (young, full) = timings.times().expect("memory");
    assert_eq!(full, super::CollectionTimes::default());
    let counts =
        [&young.pause, &young.time_to_stop, &young.duration, &young.waited].map(|it| it.count);
    assert_eq!(counts, [2, 1, 1, 1]);
    assert!(near(young.pause.max, 3 * MS) && near(young.pause.mean, 2 * MS));
    assert!(near(young.time_to_stop.max, MS / 2) && near(young.waited.max, 8 * MS));
    assert!(near(young.duration.max, 10 * MS));
    let [(Phase::Count, count)] = young.phases[..] else { panic!("{:?}", young.phases) };
    assert!(near(count.max, 2 * MS) && count.count == 1);
}

#[test]
fn the_last_256_reports_are_kept() {
    let heap = Heap::new();
    let mut m = heap.attach();
    assert_eq!(heap.recent_collections(), []);
    for number in 1..=260u64 {
        let kind = if number % 2 == 0 { Collect::full() } else { Collect::young() };
        let report = m.try_collect(kind).unwrap();
        assert_eq!(report.sequence, number);
        assert_eq!(heap.recent_collections().last(), Some(&report));
    }
    let recent = heap.recent_collections();
    let numbers: Vec<u64> = recent.iter().map(|report| report.sequence).collect();
    assert_eq!(numbers, (5..=260).collect::<Vec<_>>());
    let stats = heap.stats();
    assert_eq!((stats.young.duration.count, stats.full.duration.count), (130, 130));
    assert_eq!(stats.full.pause.count, 130);
}

struct Slow {
    me: GcCell<Option<Gc<Slow>>>,
    drops: Duration,
}

impl Trace for Slow {
    const FINALIZER: Option<Finalizer<Self>> =
        Some(Finalizer::new(|_, _| std::thread::sleep(3 * MS)));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.me, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.me, m);
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(self.drops);
    }
}

#[test]
fn a_report_names_slow_code_and_its_phases() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let slow = m.alloc(Slow { me: GcCell::default(), drops: 2 * MS });
    *slow.me.lock(&m) = Some(slow.clone());
    let _weak = m.alloc_weak(&slow, (), |_, _| std::thread::sleep(MS));
    drop(slow);
    let report = m.collect();
    assert_eq!(report.collected, 1);
    // Which of them is the slowest, the machine decides.
    let slowest = &report.slowest;
    assert!(slowest.is_sorted_by_key(|call| std::cmp::Reverse(call.took)), "{slowest:?}");
    for during in [During::Finalize, During::Drop, During::WeakCallback] {
        assert!(slowest.iter().any(|call| call.during == during), "{during:?} of {slowest:?}");
    }
    assert!(slowest.iter().any(|call| call.type_name.ends_with("Slow")));
    let phases = report.phases;
    assert!(phases.get(Phase::Finalize) >= 3 * MS, "{phases:?}");
    assert!(phases.get(Phase::Callbacks) >= MS && phases.get(Phase::Clear) >= 2 * MS, "{phases:?}");
    assert_eq!(phases.get(Phase::Premark), Duration::ZERO);
    let sum: Duration = phases.iter().map(|(_, took)| took).sum();
    assert!(sum <= report.duration);
    // A quiet one has none.
    let quiet = m.collect();
    assert_eq!(quiet.slowest, []);
    assert_eq!(quiet.phases.get(Phase::Finalize), Duration::ZERO);
}
