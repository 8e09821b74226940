//! Tests of the records.

#![forbid(unsafe_code)]

use super::*;
use crate::{Heap, Pacing};

#[test]
fn each_generation_has_the_sums_of_its_collections() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let mut records = Records::default();
    let mut sums = [GenerationStats::default(); 3];
    for (what, young) in [(0, 1), (0, 2), (2, 0), (0, 1)] {
        let kind = if what == 0 { crate::Collect::young() } else { crate::Collect::full() };
        let report = m.try_collect(kind).expect("a collection");
        records.add(&report);
        let sum = &mut sums[what];
        sum.collections += 1;
        sum.candidates += report.candidates;
        sum.duration += report.duration;
        sum.stopped += report.stops.iter().sum::<Duration>();
        assert!(!sum.stopped.is_zero());
        assert_eq!((records.generations, records.young), (sums, young));
    }
}
