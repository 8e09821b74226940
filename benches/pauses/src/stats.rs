//! Medians and spreads.

/// The median and the extremes of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

/// The spread of `values`; nothing for no values.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, greatest) = (*sorted.first()?, *sorted.last()?);
    let half = sorted.len() / 2;
    let median =
        if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 };
    Some(Spread { median, least, greatest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(spread(&[]), None);
        assert_eq!(
            spread(&[3.0, 1.0, 9.0]),
            Some(Spread { median: 3.0, least: 1.0, greatest: 9.0 })
        );
        assert_eq!(
            spread(&[4.0, 1.0, 2.0, 9.0]),
            Some(Spread { median: 3.0, least: 1.0, greatest: 9.0 })
        );
    }
}
