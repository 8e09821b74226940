//! Tests of the registry's buckets.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn indices_fall_into_doubling_buckets() {
    assert_eq!(TypeRegistry::locate(256), (0, 0));
    assert_eq!(TypeRegistry::locate(511), (0, 255));
    assert_eq!(TypeRegistry::locate(512), (1, 0));
    assert_eq!(TypeRegistry::locate(1023), (1, 511));
    assert_eq!(TypeRegistry::locate((1 << 23) - 1).0, BUCKETS - 1);
}
