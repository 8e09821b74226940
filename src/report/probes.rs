//! Probes for `bpftrace` and SystemTap, which look into a process from outside.
//!
//! A tracer of the system attaches to a running process that nobody has built for it. So each
//! report is also a probe of the provider `standstill`: an instruction that does nothing, and a
//! note in the program that says where it is and where its arguments lie. For example, the
//! argument of `stopped` is how long the stop has taken to come.
//!
//! Times are nanoseconds, a kind is 0 for young and 1 for full, and texts are an address and a
//! length.

#![forbid(unsafe_code)]

use std::time::Duration;

use probe::probe;

use crate::report::facts::{CollectionKind, CollectionReport, Phase};

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The world has been stopped.
pub(super) fn stopped(time_to_stop: Duration) {
    probe!(standstill, stopped, nanos(time_to_stop));
}

/// The world is about to run again.
pub(super) fn resumed(stopped: Duration) {
    probe!(standstill, resumed, nanos(stopped));
}

/// A phase begins; its number in the order of the documentation.
pub(super) fn phase(phase: Phase) {
    probe!(standstill, phase, phase as u64);
}

/// A collection begins.
pub(super) fn begun(kind: CollectionKind, heap: &str) {
    let full = u64::from(kind == CollectionKind::Full);
    probe!(standstill, collection__begin, full, heap.as_ptr(), heap.len());
}

/// A collection has ended.
pub(super) fn ended(report: &CollectionReport) {
    let full = u64::from(report.kind == CollectionKind::Full);
    let longest = report.stops.iter().max().copied().unwrap_or_default();
    let (duration, longest) = (nanos(report.duration), nanos(longest));
    probe!(standstill, collection__end, full, duration, longest, report.collected);
}

/// A thread waits long, because of another thread.
pub(super) fn slow(waited: Duration, os_thread: Option<u64>) {
    probe!(standstill, slow, nanos(waited), os_thread.unwrap_or(0));
}
