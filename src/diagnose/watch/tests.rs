//! Looks for late polls, each when the test wants it.

#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::heap::core::WATCHED;
use crate::safepoint::{SlowStop, SlowStopKind};
use crate::{Heap, Mutator, Pacing};

/// A heap with its reports. Nothing looks but the test.
struct Watched {
    heap: Heap,
    reports: Arc<Mutex<Vec<SlowStop>>>,
}

impl Watched {
    fn new() -> Self {
        let builder = Heap::builder().reserve(64 << 20).workers(1).pacing(Pacing::manual());
        let heap = builder.late_poll(Duration::ZERO).build().expect("a heap");
        let reports = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&reports);
        heap.on_slow_stop(move |report| to.lock().unwrap().push(report.clone()));
        Self { heap, reports }
    }

    /// Looks, and returns the number of reports so far.
    fn look(&self, after: Duration) -> usize {
        self.heap.core().coordinator.look_for_late_polls(WATCHED, after);
        self.reports.lock().unwrap().len()
    }
}

#[test]
fn a_thread_is_reported_once_until_it_polls() {
    let watched = Watched::new();
    let mut m = watched.heap.attach();
    m.mark("sorting");
    let (zero, long) = (Duration::ZERO, Duration::MAX);
    assert_eq!((watched.look(zero), watched.look(long), m.raw().poll()), (0, 0, WATCHED));
    assert_eq!((watched.look(zero), watched.look(zero)), (1, 1));
    m.safepoint();
    assert_eq!((m.raw().poll(), watched.look(zero)), (0, 1));
    assert_eq!((watched.look(zero), watched.look(zero)), (2, 2));
    for report in &*watched.reports.lock().unwrap() {
        assert_eq!((report.kind, report.purpose), (SlowStopKind::LatePoll, None));
        assert!(report.waiter.is_none(), "{report:?}");
        let [late] = &report.stragglers[..] else { panic!("{report:?}") };
        assert_eq!(
            (late.thread.id, late.thread.mark),
            (m.raw().participant().id(), Some("sorting"))
        );
        let text = report.to_string();
        assert!(text.starts_with("a stop would wait for ") && text.contains("sorting"), "{text}");
        assert!(text.contains(": it has not polled for "), "{text}");
    }
}

#[test]
fn each_way_to_let_a_stop_happen_counts_as_a_poll() {
    type LetsStop = fn(&mut Mutator);
    let ways: [(&str, LetsStop); 4] = [
        ("safepoint", Mutator::safepoint),
        ("park", |m| m.raw_mut().park()),
        ("detach", |m| m.detach(|| ())),
        ("collect", |m| drop(m.collect())),
    ];
    for (way, polls) in ways {
        let watched = Watched::new();
        let mut m = watched.heap.attach();
        watched.look(Duration::ZERO);
        polls(&mut m);
        assert_eq!(watched.look(Duration::ZERO), 0, "{way}");
        assert_eq!(watched.look(Duration::ZERO), 1, "{way}, and no other poll");
    }
}

#[test]
fn neither_a_detached_nor_a_stopping_thread_is_late() {
    let watched = Watched::new();
    let mut m = watched.heap.attach();
    let id = m.raw().participant().id();
    m.detach(|| {
        // As a look does whose thread detaches at that moment.
        watched.heap.core().coordinator.poke(id, WATCHED);
        assert_eq!((watched.look(Duration::ZERO), watched.look(Duration::ZERO)), (0, 0));
    });
    assert_eq!(m.raw().poll(), 0, "a look takes the bit of a detached thread");
    watched.look(Duration::ZERO);
    let world = m.raw().stop_here().expect("nothing hinders it");
    assert_eq!((watched.look(Duration::ZERO), watched.look(Duration::ZERO)), (0, 0));
    drop(world);
    assert_eq!(watched.look(Duration::ZERO), 1);
}
