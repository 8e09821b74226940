//! Tests of `managed/drop_batch.rs`.

#![forbid(unsafe_code)]

use std::ptr::NonNull;
use std::rc::Rc;

use super::*;

/// The calls and the drops of values, in order.
type Log = Rc<RefCell<Vec<String>>>;

/// When a value panics.
#[derive(Clone, Copy, PartialEq)]
enum Panics {
    Never,
    Ahead,
    InDrop,
}

/// A value that logs its drop.
struct Logs<const BUFFERED: bool> {
    log: Log,
    name: usize,
    refers: bool,
    panics: Panics,
}

impl<const BUFFERED: bool> Batched for Logs<BUFFERED> {
    const IS_BUFFERED: bool = BUFFERED;

    fn prefetch_first(&self) -> bool {
        self.refers
    }

    fn prefetch_buffered(&self) {
        self.log.borrow_mut().push(format!("ahead {}", self.name));
        assert!(self.panics != Panics::Ahead, "ahead");
    }
}

impl<const BUFFERED: bool> Drop for Logs<BUFFERED> {
    fn drop(&mut self) {
        self.log.borrow_mut().push(format!("drop {}", self.name));
        assert!(self.panics != Panics::InDrop, "drop");
    }
}

/// A value that has no place in a batch.
struct TooLarge {
    logs: Logs<false>,
    _words: [u64; VALUE_WORDS],
}

impl Batched for TooLarge {
    const IS_BUFFERED: bool = false;

    fn prefetch_first(&self) -> bool {
        self.logs.prefetch_first()
    }

    fn prefetch_buffered(&self) {}
}

/// An address, which is never followed.
fn object(number: usize) -> Object {
    Object::new(NonNull::new((16 * number) as *mut u8).expect("not 0"))
}

struct Test {
    batch: DropBatch,
    log: Log,
}

impl Test {
    /// A batch that expects much garbage.
    fn new() -> Self {
        let test = Self { batch: DropBatch::default(), log: Log::default() };
        test.batch.expect(BATCHING_THRESHOLD, Stress::none());
        test
    }

    fn value<const BUFFERED: bool>(&self, name: usize) -> Logs<BUFFERED> {
        Logs { log: Rc::clone(&self.log), name, refers: true, panics: Panics::Never }
    }

    /// Drops a value while an object is being cleared.
    fn clear<T: Batched>(&self, from: usize, value: T) {
        self.batch.clearing(object(from), || self.batch.drop_later(value));
    }

    fn drop_all(&self) -> Vec<(Object, String)> {
        let mut failed = Vec::new();
        self.batch.drop_all(|from, payload| {
            failed.push((from, outside::panic_message(payload).to_string()));
        });
        failed
    }

    fn log(&self) -> Vec<String> {
        self.log.take()
    }
}

#[test]
fn a_value_waits_if_there_is_much_garbage_and_an_object_is_being_cleared() {
    let test = Test::new();
    let is_batched = |test: &Test| {
        test.clear(1, test.value::<false>(1));
        let is_batched = test.log().is_empty();
        assert!(test.drop_all().is_empty());
        assert_eq!(test.log().len(), usize::from(is_batched));
        is_batched
    };
    assert!(is_batched(&test));
    test.batch.expect(BATCHING_THRESHOLD - 1, Stress::none());
    assert!(!is_batched(&test), "a small amount of garbage");
    test.batch.expect(1, Stress::none().small_constants(true));
    assert!(is_batched(&test), "with small constants");
    test.batch.drop_later(test.value::<false>(2));
    assert_eq!(test.log(), ["drop 2"], "no object is being cleared");
    // An object that is cleared inside the clearing of another one.
    test.batch.clearing(object(1), || {
        test.clear(2, test.value::<false>(3));
        test.batch.drop_later(test.value::<false>(4));
    });
    assert_eq!(test.log(), [""; 0]);
    assert!(test.drop_all().is_empty());
    assert_eq!(test.log(), ["drop 3", "drop 4"]);
}

#[test]
fn a_value_that_refers_to_nothing_or_has_no_room_is_dropped_at_once() {
    let test = Test::new();
    let mut value = test.value::<false>(1);
    value.refers = false;
    test.clear(1, value);
    assert_eq!(test.log(), ["drop 1"]);
    test.clear(1, TooLarge { logs: test.value(2), _words: [0; _] });
    assert_eq!(test.log(), ["drop 2"]);
}

#[test]
fn a_batch_is_full_at_its_limit_and_is_dropped_in_order() {
    let test = Test::new();
    for name in 0..BATCH_SIZE {
        assert!(!test.batch.is_full());
        test.clear(1, test.value::<false>(name));
    }
    assert!(test.batch.is_full());
    assert!(test.drop_all().is_empty());
    assert!(!test.batch.is_full());
    let names: Vec<_> = (0..BATCH_SIZE).map(|name| format!("drop {name}")).collect();
    assert_eq!(test.log(), names);
    // Its memory is reused, up to a limit.
    let capacity = || test.batch.values.borrow().capacity();
    assert!((BATCH_SIZE..=2 * BATCH_SIZE).contains(&capacity()));
    (0..3 * BATCH_SIZE).for_each(|name| test.clear(1, test.value::<false>(name)));
    assert!(test.drop_all().is_empty());
    assert!((BATCH_SIZE..=2 * BATCH_SIZE).contains(&capacity()));
}

#[test]
fn the_buffers_of_all_values_are_read_before_the_first_value_is_dropped() {
    let test = Test::new();
    test.clear(1, test.value::<true>(1));
    test.clear(1, test.value::<false>(2));
    test.clear(1, test.value::<true>(3));
    assert!(test.drop_all().is_empty());
    assert_eq!(test.log(), ["ahead 1", "ahead 3", "drop 1", "drop 2", "drop 3"]);
}

#[test]
fn each_panic_is_told_with_its_object_and_every_value_is_dropped() {
    use Panics::{Ahead, InDrop, Never};

    let test = Test::new();
    for (name, panics) in [(1, Never), (2, InDrop), (3, Ahead), (4, InDrop)] {
        let mut value = test.value::<true>(name);
        value.panics = panics;
        test.clear(name, value);
    }
    let told = [(3, "ahead"), (2, "drop"), (4, "drop")];
    let told = told.map(|(name, text)| (object(name), text.to_owned()));
    assert_eq!(test.drop_all(), told);
    let names = ["ahead 1", "ahead 2", "ahead 3", "ahead 4"];
    let drops = ["drop 1", "drop 2", "drop 3", "drop 4"];
    assert_eq!(test.log(), [names, drops].concat());
}

/// A value whose drop removes another value from an object.
struct Outer<'a>(&'a Test);

impl Batched for Outer<'_> {
    const IS_BUFFERED: bool = false;

    fn prefetch_first(&self) -> bool {
        true
    }

    fn prefetch_buffered(&self) {}
}

impl Drop for Outer<'_> {
    fn drop(&mut self) {
        self.0.clear(2, self.0.value::<false>(1));
    }
}

#[test]
fn a_value_that_is_removed_while_a_batch_is_dropped_waits_for_the_next() {
    let test = Test::new();
    test.clear(1, Outer(&test));
    assert!(test.drop_all().is_empty());
    assert_eq!(test.log(), [""; 0]);
    assert!(test.drop_all().is_empty());
    assert_eq!(test.log(), ["drop 1"]);
}
