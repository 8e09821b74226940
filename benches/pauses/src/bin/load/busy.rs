//! The intervals of a timeline in which a thread could not work, and the mutator's share of the
//! time between them.

/// From when to when, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Interval {
    pub(crate) fn length(self) -> u64 {
        self.to.saturating_sub(self.from)
    }
}

/// Pauses within a period: sorted, disjoint, and with the sum of those before each.
#[derive(Debug)]
pub(crate) struct Pauses {
    period: Interval,
    pauses: Vec<Interval>,
    /// How much of the period before each pause was paused.
    before: Vec<u64>,
    total: u64,
}

impl Pauses {
    /// The parts of `pauses` that lie in `period`.
    pub(crate) fn new(mut pauses: Vec<Interval>, period: Interval) -> Self {
        pauses.retain(|pause| pause.to > period.from && pause.from < period.to);
        pauses.sort_by_key(|pause| pause.from);
        let mut disjoint: Vec<Interval> = Vec::with_capacity(pauses.len());
        for pause in pauses {
            let (from, to) = (pause.from.max(period.from), pause.to.min(period.to));
            match disjoint.last_mut() {
                Some(last) if from <= last.to => last.to = last.to.max(to),
                _ => disjoint.push(Interval { from, to }),
            }
        }
        let mut total = 0;
        let before = disjoint
            .iter()
            .map(|pause| {
                total += pause.length();
                total - pause.length()
            })
            .collect();
        Self { period, pauses: disjoint, before, total }
    }

    /// Nanoseconds of pauses.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The share of the period that is left.
    pub(crate) fn utilisation(&self) -> f64 {
        1.0 - self.total as f64 / self.period.length().max(1) as f64
    }

    /// How much was paused from the period's beginning until `time`.
    fn until(&self, time: u64) -> u64 {
        match self.pauses.partition_point(|pause| pause.from < time) {
            0 => 0,
            n => self.before[n - 1] + self.pauses[n - 1].to.min(time) - self.pauses[n - 1].from,
        }
    }

    /// The share of a window that is left.
    fn left(&self, from: u64, window: u64) -> f64 {
        1.0 - (self.until(from + window) - self.until(from)) as f64 / window as f64
    }

    /// The minimum mutator utilisation: the least that any window of this length leaves; none if
    /// the period is shorter.
    ///
    /// Exact: the share in a sliding window is least if the window begins or ends with a pause.
    pub(crate) fn minimum(&self, window: u64) -> Option<f64> {
        let last = self.period.to.checked_sub(window).filter(|&last| last >= self.period.from)?;
        let begins = self.pauses.iter().map(|pause| pause.from);
        let ends = self.pauses.iter().map(|pause| pause.to.saturating_sub(window));
        let windows = begins.chain(ends).map(|from| from.clamp(self.period.from, last));
        Some(windows.map(|from| self.left(from, window)).fold(1.0, f64::min))
    }

    /// The shares in consecutive windows of this length.
    pub(crate) fn windows(&self, window: u64) -> impl Iterator<Item = f64> {
        let n = self.period.length() / window;
        (0..n).map(move |i| self.left(self.period.from + i * window, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(list: &[(u64, u64)]) -> Pauses {
        let list = list.iter().map(|&(from, to)| Interval { from, to }).collect();
        Pauses::new(list, Interval { from: 100, to: 200 })
    }

    #[test]
    fn pauses_are_merged_and_cut() {
        let p = pauses(&[(150, 160), (90, 110), (155, 170), (195, 300), (10, 20)]);
        assert_eq!(p.total(), 10 + 20 + 5);
        assert_eq!(p.utilisation(), 0.65);
    }

    #[test]
    fn the_minimum_is_that_of_every_window() {
        let p = pauses(&[(110, 115), (120, 124), (150, 160), (161, 165)]);
        for window in 1..=100 {
            let all = (100..=200 - window).map(|from| p.left(from, window)).fold(1.0, f64::min);
            assert_eq!(p.minimum(window), Some(all), "window {window}");
        }
        assert_eq!(p.minimum(101), None);
        assert_eq!(pauses(&[]).minimum(10), Some(1.0));
    }

    #[test]
    fn windows_lie_side_by_side() {
        let p = pauses(&[(105, 110), (140, 160)]);
        assert_eq!(p.windows(25).collect::<Vec<_>>(), [0.8, 0.6, 0.6, 1.0]);
    }
}
