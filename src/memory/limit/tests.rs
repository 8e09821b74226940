//! Tests of the limit.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn pages_and_memory_outside_share_the_limit() {
    let limit = Limit::new(Some(4 * PAGE_SIZE + 100));
    assert_eq!(limit.bytes(), 4 * PAGE_SIZE);
    assert!(limit.check(|| 4, 0).is_ok() && limit.check(|| 1, 3).is_ok());
    limit.count_external(3 * PAGE_SIZE as isize - 1);
    assert!(limit.check(|| 1, 1).is_ok());
    let (asked, in_use) = (PAGE_SIZE, 4 * PAGE_SIZE);
    let refused = Err(SpaceError::Limit { asked, in_use, limit: 4 * PAGE_SIZE });
    assert_eq!(limit.check(|| 2, 1), refused);
    limit.count_external(1);
    assert!(limit.check(|| 2, 0).is_err());
    limit.count_external(isize::MIN);
    assert_eq!(limit.external_bytes(), 0, "never negative");
    assert!(limit.check(|| 2, 2).is_ok());
}

#[test]
fn without_a_limit_nothing_is_refused() {
    let limit = Limit::new(None);
    limit.count_external(isize::MAX);
    assert!(limit.check(|| usize::MAX, usize::MAX).is_ok());
    assert!(!limit.is_tight(6, 8) && limit.is_tight(7, 8));
}

#[test]
fn more_than_three_quarters_of_the_limit_are_tight() {
    let limit = Limit::new(Some(8 * PAGE_SIZE));
    assert!(!limit.is_tight(6, 100) && limit.is_tight(7, 100) && limit.is_tight(7, 8));
    limit.count_external(PAGE_SIZE as isize);
    assert!(!limit.is_tight(5, 100) && limit.is_tight(6, 100));
}
