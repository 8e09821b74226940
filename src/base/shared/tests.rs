//! Tests of shared values.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::*;

#[test]
fn the_last_owner_gets_the_value_or_drops_it() {
    let witness = Arc::new(());
    let first = Shared::new(Arc::clone(&witness)).unwrap();
    let second = first.clone();
    assert!(first.into_inner().is_none());
    assert_eq!(Arc::strong_count(&witness), 2);
    let (value, room) = second.into_inner().expect("the last");
    assert_eq!(Arc::strong_count(&witness), 2);
    drop(value);
    assert_eq!(Arc::strong_count(&witness), 1);
    let last = Shared::new_in(room, Arc::clone(&witness));
    drop(last.clone());
    assert_eq!(Arc::strong_count(&witness), 2);
    drop(last);
    assert_eq!(Arc::strong_count(&witness), 1);
}
