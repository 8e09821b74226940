//! Tests of shared values.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::{Arc, MutexGuard};

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

/// Whether `T` is `Send`, and whether it is `Sync`. A type's own constant comes before that of
/// a trait.
struct Is<T>(PhantomData<T>);

trait Not {
    const SEND: bool = false;
    const SYNC: bool = false;
}

impl<T> Not for Is<T> {}

impl<T: Send> Is<T> {
    const SEND: bool = true;
}

impl<T: Sync> Is<T> {
    const SYNC: bool = true;
}

macro_rules! is {
    ($type:ty) => {
        (Is::<$type>::SEND, Is::<$type>::SYNC)
    };
}

#[test]
fn a_value_that_stays_on_its_thread_is_not_shared_by_its_owner() {
    assert_eq!(is!(OnceBox<u8>), (true, true));
    assert_eq!(is!(MutexGuard<'static, u8>), (false, true));
    assert_eq!(is!(OnceBox<MutexGuard<'static, u8>>), (false, false));
    assert_eq!(is!(OnceBox<Cell<u8>>), (true, false));
    assert_eq!(is!(OnceBox<*const u8>), (false, false));
}
