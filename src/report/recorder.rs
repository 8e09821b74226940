//! Metrics of a heap, for whatever recorder the program has installed.
//!
//! A service already has a place for its metrics, such as Prometheus. So each collection updates
//! those of its heap through the facade of the crate `metrics`, with names and units as
//! OpenTelemetry has them, in seconds and bytes. For example, a full collection with two stops adds
//! two values to the histogram `standstill.gc.pause.duration` with `gc.kind` `full`.
//!
//! The recorder is code of the program, so it is called where callbacks are, and its panic stays
//! there. The facade takes memory for labels, so a program that must survive a refusal leaves the
//! feature off.

#![forbid(unsafe_code)]

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::base::outside::call_outside;
use crate::report::facts::CollectionReport;

/// The sizes of a heap at the end of a collection.
pub(crate) struct HeapSizes {
    pub(crate) in_use: usize,
    pub(crate) committed: usize,
    pub(crate) external: usize,
    pub(crate) limit: usize,
    pub(crate) threads: usize,
}

/// Tells the recorder the units and what the metrics mean.
#[cold]
fn describe() {
    let histograms = [
        ("standstill.gc.duration", "From the beginning of a collection to its end"),
        ("standstill.gc.pause.duration", "How long a collection has stopped the world"),
        ("standstill.gc.time_to_stop", "From the request of a stop until all threads stand still"),
        ("standstill.gc.phase.duration", "How long a phase of a collection took"),
    ];
    for (name, text) in histograms {
        describe_histogram!(name, Unit::Seconds, text);
    }
    describe_counter!("standstill.gc.collected", Unit::Count, "Objects that collections destroyed");
    let gauges = [
        ("standstill.heap.used", Unit::Bytes, "Pages in use"),
        ("standstill.heap.committed", Unit::Bytes, "Memory that was made accessible"),
        ("standstill.heap.external", Unit::Bytes, "Memory outside the heap that its objects own"),
        ("standstill.heap.limit", Unit::Bytes, "The most bytes that the heap may use"),
        ("standstill.heap.threads", Unit::Count, "Threads with a mutator"),
    ];
    for (name, unit, text) in gauges {
        describe_gauge!(name, unit, text);
    }
}

/// A collection has ended.
pub(crate) fn collection(heap: &str, report: &CollectionReport, sizes: &HeapSizes) {
    call_outside(|| {
        if report.sequence == 1 {
            describe();
        }
        let heap = heap.to_owned();
        let kind = report.kind.name();
        let reason = format!("{:?}", report.reason);
        let labels = || [("heap.name", heap.clone()), ("gc.kind", kind.to_owned())];
        let [name, of_kind] = labels();
        histogram!("standstill.gc.duration", &[name, of_kind, ("gc.reason", reason)])
            .record(report.duration);
        for stop in &report.stops {
            histogram!("standstill.gc.pause.duration", &labels()).record(*stop);
        }
        if !report.stops.is_empty() {
            histogram!("standstill.gc.time_to_stop", &labels()).record(report.time_to_stop);
        }
        for (phase, took) in report.phases.iter() {
            let [name, of_kind] = labels();
            let of_phase = ("gc.phase", format!("{phase:?}"));
            histogram!("standstill.gc.phase.duration", &[name, of_kind, of_phase]).record(took);
        }
        counter!("standstill.gc.collected", &labels()).increment(report.collected as u64);
        let gauges = [
            ("standstill.heap.used", sizes.in_use),
            ("standstill.heap.committed", sizes.committed),
            ("standstill.heap.external", sizes.external),
            ("standstill.heap.limit", sizes.limit),
            ("standstill.heap.threads", sizes.threads),
        ];
        for (metric, value) in gauges {
            gauge!(metric, "heap.name" => heap.clone()).set(value as f64);
        }
    });
}
