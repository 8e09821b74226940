#![forbid(unsafe_code)]

use std::time::Duration;

use super::{Distribution, Times};

const MS: Duration = Duration::from_millis(1);

fn near(one: Duration, other: Duration) -> bool {
    (other..=other + other / 60 + Duration::from_nanos(100)).contains(&one)
}

#[test]
fn a_distribution_is_that_of_the_values() {
    let mut times = Times::<64>::default();
    assert_eq!(times.distribution(), None);
    (1..=2000).for_each(|n| times.add(n * MS));
    let found = times.distribution().unwrap();
    assert_eq!(found.count, 2000);
    let expected = [
        (found.mean, 1000 * MS + MS / 2),
        (found.p50, 1000 * MS),
        (found.p90, 1800 * MS),
        (found.p99, 1980 * MS),
        (found.p999, 1998 * MS),
        (found.max, 2000 * MS),
    ];
    for (found, expected) in expected {
        assert!(near(found, expected), "{found:?}, expected {expected:?}");
    }
    assert_eq!(Distribution::of((1..=2000).map(|n| n * MS)), found);
    assert_eq!(Distribution::of([]), Distribution::default());
}

#[test]
fn a_time_of_any_length_is_kept() {
    let mut times = Times::<64>::default();
    times.add(Duration::ZERO);
    times.add(Duration::from_secs(86_400));
    times.add(Duration::MAX);
    let found = times.distribution().unwrap();
    assert_eq!((found.count, found.max), (3, Duration::MAX));
    assert!(near(found.p50, Duration::from_secs(86_400)), "{found:?}");
}

#[test]
fn a_bucket_contains_its_longest_time_and_no_longer_one() {
    let mut before = Duration::ZERO;
    for at in 0..=Times::<64>::bucket(super::LONGEST) {
        let longest = Times::<64>::longest_of(at);
        assert_eq!(Times::<64>::bucket(longest), at);
        let next = longest + Duration::from_nanos(1);
        assert!(Times::<64>::bucket(next) == at + 1 || next > super::LONGEST, "{at}");
        assert!(longest - before <= longest / 60 + super::UNIT);
        before = longest;
    }
}
