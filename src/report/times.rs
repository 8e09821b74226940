//! How values of one time are distributed.
//!
//! A histogram has buckets of growing width: below `PER_OCTAVE` units each unit has its own, and
//! above that each octave has `PER_OCTAVE` ones. For example, with 4 of them the times of 8 and 9
//! units share a bucket. The crate hdrhistogram has such histograms too, but memory for them cannot
//! be refused.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::base::fallible;

/// Histograms count in this unit, so that a stop of some microseconds is still precise.
const UNIT: Duration = Duration::from_nanos(100);
const PER_SECOND: u64 = 1_000_000_000 / UNIT.subsec_nanos() as u64;

/// A longer time counts as this.
const LONGEST: Duration = Duration::from_secs(86_400);

/// How values of one time are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Distribution {
    /// The number of values.
    pub count: u64,
    /// Their mean.
    pub mean: Duration,
    /// Half of the values are at most this. It may be too long, and so may the next three: by 1.6 %
    /// in [`CollectionTimes`](crate::CollectionTimes), by a quarter in
    /// [`ThreadTimes`](crate::safepoint::ThreadTimes).
    pub p50: Duration,
    /// 90 % are at most this.
    pub p90: Duration,
    /// 99 % are at most this.
    pub p99: Duration,
    /// 99.9 % are at most this.
    pub p999: Duration,
    /// The largest one.
    pub max: Duration,
}

impl Distribution {
    /// That of these values, as precise as in [`CollectionTimes`](crate::CollectionTimes), for a
    /// runtime that measures its own pauses. Without memory it has no values.
    #[doc(hidden)]
    pub fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut all = Times::<PRECISION>::default();
        times.into_iter().for_each(|time| all.add(time));
        all.distribution().unwrap_or_default()
    }
}

/// An octave of the histograms of collections has so many buckets, so that percentiles are up to
/// 1.6 % too long.
pub(crate) const PRECISION: u64 = 64;

/// A histogram, whose memory is taken with its first value.
#[derive(Debug, Default)]
pub(crate) struct Times<const PER_OCTAVE: u64> {
    buckets: Vec<u32>,
    sum: Duration,
    max: Duration,
}

impl<const PER_OCTAVE: u64> Times<PER_OCTAVE> {
    /// The bucket of a time.
    fn bucket(time: Duration) -> usize {
        let time = time.min(LONGEST);
        let within = u64::from(time.subsec_nanos() / UNIT.subsec_nanos());
        let units = time.as_secs() * PER_SECOND + within;
        let shift = units.checked_ilog2().unwrap_or(0).saturating_sub(PER_OCTAVE.ilog2());
        (u64::from(shift) * PER_OCTAVE + (units >> shift)) as usize
    }

    /// The longest time of a bucket.
    fn longest_of(bucket: usize) -> Duration {
        let bucket = bucket as u64;
        let shift = (bucket / PER_OCTAVE).saturating_sub(1);
        let units = (bucket - shift * PER_OCTAVE + 1) << shift;
        Duration::from_nanos(units * u64::from(UNIT.subsec_nanos()) - 1)
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let at = Self::bucket(time);
        if self.buckets.is_empty() {
            // Without memory the value is lost.
            let zeroes = std::iter::repeat_n(0, Self::bucket(LONGEST) + 1);
            self.buckets = fallible::collect(zeroes).unwrap_or_default();
        }
        if let Some(count) = self.buckets.get_mut(at) {
            *count = count.saturating_add(1);
            self.sum = self.sum.saturating_add(time);
            self.max = self.max.max(time);
        }
    }

    pub(crate) fn distribution(&self) -> Option<Distribution> {
        let count: u64 = self.buckets.iter().copied().map(u64::from).sum();
        if count == 0 {
            return None;
        }
        // The first bucket with which the sum reaches this part of all values.
        let quantile = |part: f64| {
            let wanted = ((part * count as f64).ceil() as u64).max(1);
            let mut sum = 0;
            let at = self.buckets.iter().position(|&here| {
                sum += u64::from(here);
                sum >= wanted
            });
            at.map_or(self.max, |at| Self::longest_of(at).min(self.max))
        };
        Some(Distribution {
            count,
            mean: Duration::from_nanos((self.sum.as_nanos() / u128::from(count)) as u64),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: self.max,
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
