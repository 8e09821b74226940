//! The machine's resources that the process and its neighbours use, as Linux reports them. Not a
//! number elsewhere.

use std::fs::read_to_string;

/// The memory that the process has now, in MiB.
pub(crate) fn resident_mib() -> f64 {
    const PAGES_PER_MIB: f64 = 256.0;
    let text = read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(f64::NAN)
        / PAGES_PER_MIB
}

/// Processor time so far, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processors {
    own: f64,
    all: f64,
}

impl Processors {
    pub(crate) fn now() -> Self {
        // Both files count in these units, independently of the kernel's ticks.
        const PER_SECOND: f64 = 100.0;
        let sum = |text: &str, skip: usize, take: usize| {
            let numbers =
                text.split_whitespace().skip(skip).take(take).map(|word| word.parse::<f64>());
            numbers.sum::<Result<f64, _>>().unwrap_or(f64::NAN) / PER_SECOND
        };
        let own = read_to_string("/proc/self/stat").unwrap_or_default();
        // The name, in parentheses, may have spaces: user and system time are words 12 and 13
        // behind it.
        let own = own.rsplit_once(')').map_or(f64::NAN, |(_, rest)| sum(rest, 11, 2));
        let all = read_to_string("/proc/stat").unwrap_or_default();
        // User, nice and system.
        let all = all.lines().next().map_or(f64::NAN, |line| sum(line, 1, 3));
        Self { own, all }
    }

    /// How many cores this process, and how many all the others, have used since `before`, that is
    /// for `seconds`.
    pub(crate) fn since(self, before: Self, seconds: f64) -> (f64, f64) {
        let own = self.own - before.own;
        let others = self.all - before.all - own;
        (own / seconds, others.max(0.0) / seconds)
    }
}
