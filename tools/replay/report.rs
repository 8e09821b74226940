//! The result: a table for people, one line of JSON for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use standstill_heap::text::grouped;

/// All that the replay measured. The names are those of the JSON line.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) heap: String,
    pub(crate) objects: usize,
    pub(crate) edges: usize,
    pub(crate) reachable: usize,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) read_ms: f64,
    pub(crate) build_ns_per_object: f64,
    pub(crate) full_pause_ms_min: f64,
    pub(crate) full_pause_ms_median: f64,
    pub(crate) full_pause_ms_max: f64,
    pub(crate) young_pause_ms_max: f64,
    pub(crate) time_to_stop_us_max: f64,
    pub(crate) churn_operations: u64,
    pub(crate) churn_ns_per_op: f64,
    pub(crate) collections: usize,
    pub(crate) young_collections: usize,
    pub(crate) abandoned: usize,
    pub(crate) collected: usize,
    pub(crate) freed: usize,
    pub(crate) leaked: usize,
    pub(crate) destroyed_twice: usize,
    pub(crate) weak_alive: usize,
    pub(crate) peak_rss_kb: u64,
    pub(crate) failed_checks: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = [self.full_pause_ms_min, self.full_pause_ms_median, self.full_pause_ms_max];
        let full = full.map(|ms| format!("{ms:.2}")).join(" / ");
        let rows = [
            ("heap", self.heap.clone(), ""),
            ("objects", grouped(self.objects as u64), ""),
            ("edges", grouped(self.edges as u64), ""),
            ("reachable from the root", grouped(self.reachable as u64), ""),
            ("threads", grouped(self.threads as u64), ""),
            ("reading the file", format!("{:.1}", self.read_ms), "ms"),
            ("building, an object", format!("{:.1}", self.build_ns_per_object), "ns"),
            ("full pause, min / median / max", full, "ms"),
            ("young pause, max", format!("{:.2}", self.young_pause_ms_max), "ms"),
            ("time to stop, max", format!("{:.1}", self.time_to_stop_us_max), "us"),
            ("churn, operations", grouped(self.churn_operations), ""),
            ("churn, an operation", format!("{:.1}", self.churn_ns_per_op), "ns"),
            ("collections", grouped(self.collections as u64), ""),
            ("  of these young", grouped(self.young_collections as u64), ""),
            ("  of these abandoned", grouped(self.abandoned as u64), ""),
            ("collected", grouped(self.collected as u64), ""),
            ("freed", grouped(self.freed as u64), ""),
            ("leaked", grouped(self.leaked as u64), ""),
            ("peak memory", grouped(self.peak_rss_kb), "kB"),
        ];
        let label = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
        let value = rows.iter().map(|row| row.1.chars().count()).max().unwrap_or(0);
        for (name, number, unit) in rows {
            let line = format!("{name:<label$}  {number:>value$} {unit}");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The smallest, the middle and the largest of `pauses`; zeros if there are none.
pub(crate) fn spread(mut pauses: Vec<Duration>) -> [Duration; 3] {
    pauses.sort_unstable();
    let middle = pauses.len() / 2;
    let median = match pauses.len() {
        0 => Duration::ZERO,
        n if n.is_multiple_of(2) => (pauses[middle - 1] + pauses[middle]) / 2,
        _ => pauses[middle],
    };
    [
        pauses.first().copied().unwrap_or_default(),
        median,
        pauses.last().copied().unwrap_or_default(),
    ]
}

/// In milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The most memory that this process ever had in RAM.
pub(crate) fn peak_rss_kb() -> u64 {
    // SAFETY: `rusage` is plain old data, for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes, and `RUSAGE_SELF` is this process.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0;
    let peak = if failed { 0 } else { u64::try_from(usage.ru_maxrss).unwrap_or(0) };
    // Apple counts in bytes, other systems in kilobytes.
    if cfg!(target_vendor = "apple") { peak / 1024 } else { peak }
}
