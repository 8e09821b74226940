//! Tests of `heap/pair_room.rs`.

use std::sync::Arc;

use super::*;

type Counted = PairRoom<Arc<()>, Arc<()>>;

#[test]
fn each_value_is_dropped_once_and_the_second_can_stay() {
    let (first, second) = (Arc::new(()), Arc::new(()));
    let mut room = Counted::new().unwrap();
    room.fill(|| Some(Arc::clone(&second))).unwrap();
    room.fill(|| unreachable!("it has a value")).unwrap();
    let place = room.write(Arc::clone(&first));
    // SAFETY: rule *boxed*: the room was written, and is read once.
    let (taken, mut room) = unsafe {
        assert!(Arc::ptr_eq(Counted::beside(place), &second));
        Counted::read(place)
    };
    assert!(Arc::ptr_eq(&taken, &first));
    drop(taken);
    room.empty(|kept| Arc::ptr_eq(kept, &second));
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 2));
    room.empty(|_| false);
    assert_eq!(Arc::strong_count(&second), 1);
    room.empty(|_| unreachable!("it has no value"));
    room.fill(|| Some(Arc::clone(&second))).unwrap();
    drop(room);
    assert_eq!(Arc::strong_count(&second), 1);
}

#[test]
fn a_refused_second_value_leaves_the_room_empty() {
    let mut room = Counted::new().unwrap();
    assert!(room.fill(|| None).is_err());
    room.empty(|_| unreachable!("it has no value"));
}
