//! Cells that many threads read, parts of guards, waits, channels, and data of the program.

#![cfg(not(loom))]

mod common;

use std::cell::Cell;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use common::*;
use standstill::{
    Finalizer, Gc, GcCell, GcCellGuard, GcCellMappedGuard, GcCellReadGuard, GcChannel, GcCondvar,
    GcOnce, Heap, Mutator, Pacing, Trace, Tracer,
};

fn small() -> Heap {
    Heap::builder().reserve(1 << 30).build().unwrap()
}

/// Collects, by another thread, as long as `f` runs.
fn beside_collections<R>(heap: &Heap, f: impl FnOnce() -> R) -> R {
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(SeqCst) {
                heap.attach().collect();
                std::thread::yield_now();
            }
        });
        // Also if `f` panics, so that the test fails and does not hang.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _over = Over(&over);
        f()
    })
}

/// A value of a language: a number or an object.
#[derive(Default, Trace)]
enum Value {
    #[default]
    Nil,
    Number(u32),
    Object(Gc<Global>),
}

#[derive(Trace)]
struct Global {
    value: GcOnce<Value>,
    witness: Witnessed,
}

struct Witnessed(#[expect(dead_code, reason = "its drop counts")] Witness);

impl Trace for Witnessed {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

// ------------------------------------------------------------------------------------ set once

#[test]
fn a_value_of_any_type_is_set_once_and_its_cycle_is_collected() {
    let heap = small();
    let census = Census::new();
    let mut m = heap.attach();
    let global = |name| {
        let witness = Witnessed(Witness::new(&census, name));
        m.alloc(Global { value: GcOnce::new(), witness })
    };
    let (first, second) = (global(0), global(1));
    // An initializer that panics leaves the slot empty; one that sets the slot loses.
    let text = panic_text(|| {
        first.value.get_or_init(&m, || panic!("no value"));
    });
    assert_eq!(text.as_deref(), Some("no value"));
    assert!(first.value.get(&m).is_none());
    let value = first.value.get_or_init(&m, || {
        assert!(first.value.set(&m, Value::Number(7)).is_ok());
        Value::Nil
    });
    assert!(matches!(value, Value::Number(7)));
    let refused = first.value.set(&m, Value::Object(second.clone()));
    assert!(matches!(refused, Err(Value::Object(_))));
    assert!(second.value.set(&m, Value::Object(second.clone())).is_ok());
    let handle = m.alloc(Value::Nil);
    assert!(first.value.set_handle(&m, handle.clone()).expect_err("set") == handle);
    assert!(first.value.handle(&m).is_some());
    drop((first, second, refused, handle));
    m.collect();
    assert_eq!((census.alive(), heap.stats().live_objects), (0, 0));
}

#[test]
fn a_value_that_is_read_outlives_the_clear_of_its_slot() {
    let heap = small();
    let mut m = heap.attach();
    let slot = m.alloc(GcOnce::new());
    assert!(slot.set(&m, vec![7]).is_ok());
    let value = slot.get(&m).unwrap();
    Trace::clear(&*slot, &m);
    assert!(slot.get(&m).is_none());
    assert_eq!(value[0], 7);
    m.safepoint();
    m.collect();
    assert_eq!(heap.stats().live_objects, 1);
}

/// Of the values that threads set at once, one stays, and the others come back whole.
#[test]
fn of_threads_that_set_a_slot_one_wins_and_the_others_have_their_values() {
    let _watch = deadline("slots that many set");
    const THREADS: usize = 3;
    const SLOTS: usize = 3_000;
    let heap = small();
    let census = Census::new();
    let slots: Vec<GcOnce<Letter>> = (0..SLOTS).map(|_| GcOnce::new()).collect();
    let slots = heap.attach().alloc(slots);
    let lost = AtomicUsize::new(0);
    let start = Barrier::new(THREADS);
    beside_collections(&heap, || {
        std::thread::scope(|s| {
            for me in 0..THREADS {
                let (slots, lost, census, heap, start) = (&slots, &lost, &census, &heap, &start);
                s.spawn(move || {
                    start.wait();
                    let mut m = heap.attach();
                    for slot in &**slots {
                        if let Err(letter) = slot.set(&m, letter(census, me)) {
                            assert_eq!(letter.number, me);
                            lost.fetch_add(1, SeqCst);
                        }
                        assert!(slot.get(&m).unwrap().number < THREADS);
                        m.safepoint();
                    }
                });
            }
        });
    });
    assert_eq!(lost.into_inner(), (THREADS - 1) * SLOTS);
    assert_eq!(census.alive(), SLOTS);
    drop(slots);
    heap.attach().collect();
    assert_eq!((census.alive(), heap.stats().live_objects), (0, 0));
}

/// The slot is set between the look at it and the exchange, by the only code of the program that
/// runs there.
#[test]
fn a_value_that_loses_at_the_last_moment_comes_back_out_of_its_object() {
    struct Sly {
        sets: Option<Arc<GcOnce<Sly>>>,
        witness: Witness,
    }
    impl Trace for Sly {
        const HAS_EXTERNAL_BYTES: bool = true;

        fn external_bytes(this: &mut Self) -> usize {
            if let Some(slot) = this.sets.take() {
                let witness = Witness::new(this.witness.census(), 1);
                let set =
                    Mutator::with_current(|m| slot.set(m, Self { sets: None, witness }).is_ok());
                assert_eq!(set, Some(true));
            }
            1 << 20
        }

        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    let heap = small();
    let census = Census::new();
    let m = heap.attach();
    let slot = Arc::new(GcOnce::new());
    let (sets, witness) = (Some(Arc::clone(&slot)), Witness::new(&census, 0));
    let refused = slot.set(&m, Sly { sets, witness }).expect_err("the other one has won");
    assert_eq!((refused.witness.name(), census.alive()), (0, 2));
    assert_eq!((heap.stats().live_objects, heap.stats().external_bytes), (1, 1 << 20));
    assert_eq!(slot.get(&m).unwrap().witness.name(), 1);
    drop(refused);
    drop(slot);
    assert_eq!((census.alive(), heap.stats().live_objects, heap.stats().external_bytes), (0, 0, 0));
}

// --------------------------------------------------------------------------------- many readers

#[test]
fn readers_share_a_cell_and_keep_a_writer_out() {
    let heap = small();
    let m = heap.attach();
    for cell in [&*m.alloc(GcCell::new(1)), &GcCell::new(1)] {
        let (first, second) = (cell.read(&m), cell.try_read(&m).expect("only readers"));
        assert!(cell.try_lock(&m).is_none());
        drop(first);
        assert!(cell.try_lock(&m).is_none());
        assert_eq!(*second, 1);
        drop(second);
        let guard = cell.try_lock(&m).expect("free");
        assert!(cell.try_read(&m).is_none());
        let again = panic_text(|| drop(cell.read(&m))).expect("it would wait for itself");
        assert!(again.contains("has locked this GcCell already"), "{again}");
        drop(guard);
        // A reader that panics unlocks.
        assert!(
            panic_text(|| {
                let _guard = cell.read(&m);
                panic!("a reader")
            })
            .is_some()
        );
        cell.set(&m, 1);
    }
}

/// Each writer changes both halves of a cell, and readers compare them.
#[test]
fn readers_see_whole_values_while_others_write_and_collect() {
    let _watch = deadline("readers and writers");
    let heap = small();
    let object = heap.attach().alloc((GcCell::new((0, 0)), Box::new(GcCell::new((0, 0)))));
    let reads = AtomicUsize::new(0);
    beside_collections(&heap, || {
        std::thread::scope(|s| {
            for writes in [true, true, false, false] {
                let (object, reads, heap) = (&object, &reads, &heap);
                s.spawn(move || {
                    let mut m = heap.attach();
                    for _ in 0..20_000 {
                        for cell in [&object.0, &*object.1] {
                            if writes {
                                let mut pair = cell.lock(&m);
                                pair.0 += 1;
                                pair.1 += 1;
                            } else {
                                let (pair, same) = (cell.read(&m), cell.read(&m));
                                assert_eq!(pair.0, same.1);
                                reads.fetch_add(1, SeqCst);
                            }
                        }
                        m.safepoint();
                    }
                });
            }
        });
    });
    let m = heap.attach();
    assert_eq!(*object.0.read(&m), (40_000, 40_000));
    assert_eq!(*object.1.read(&m), (40_000, 40_000));
    assert_eq!(reads.into_inner(), 80_000);
}

#[test]
fn a_cell_with_a_leaked_reader_stays_locked_and_keeps_its_target() {
    let heap = small();
    let census = Census::new();
    let mut m = heap.attach();
    let cell = m.alloc(GcCell::new(Some(node(&m, &census, 0))));
    forget(cell.read(&m));
    assert_eq!(m.collect().collected, 0);
    assert_eq!(census.alive(), 1);
    assert!(cell.try_lock(&m).is_none());
    assert!(cell.try_read(&m).is_some(), "readers share it");
    Trace::clear(&*cell, &m);
    assert!(cell.read(&m).is_some(), "a locked cell is not cleared");
    drop(cell);
    assert_eq!(census.alive(), 0);
}

#[test]
fn a_cell_has_a_limit_of_readers() {
    let heap = small();
    let m = heap.attach();
    for cell in [&*m.alloc(GcCell::new(1)), &GcCell::new(1)] {
        let guards: Vec<_> = (0..0xffff).map(|_| cell.try_read(&m).expect("room")).collect();
        assert!(cell.try_read(&m).is_none());
        drop(guards);
        assert!(cell.try_lock(&m).is_some());
    }
}

#[derive(Trace)]
struct Ring {
    edges: Vec<GcCell<Option<Gc<Ring>>>>,
}

/// A read leaves the name of the heap that has locked the cell, and a part of a heap is refused.
#[test]
fn a_cell_that_mutators_of_two_heaps_read_belongs_to_the_one_that_wrote() {
    let (home, other) = (small(), small());
    let mut m = home.attach();
    let ring = |m: &Mutator| {
        let ring = m.alloc(Ring { edges: vec![GcCell::default()] });
        ring.edges[0].set(m, Some(ring.clone()));
        ring
    };
    let (lost, kept) = (ring(&m), ring(&m));
    m.detach(|| other.attach_scoped(|m| assert!(lost.edges[0].read(m).is_some())));
    // It would be unreadable, and the ring no garbage, if the reader had renamed it.
    drop(lost);
    assert_eq!(m.collect().collected, 1);
    // Now the other one's cell is a part of this heap.
    let refused = m.detach(|| {
        other.attach_scoped(|m| {
            let text = panic_text(|| drop(kept.edges[0].read(m)));
            assert_eq!(panic_text(|| drop(kept.edges[0].try_read(m))), text);
            text
        })
    });
    assert!(refused.unwrap().contains("a collection of another heap found this GcCell"));
    // In an object the address says it.
    let inside = m.alloc(GcCell::new(1));
    let refused = m.detach(|| other.attach_scoped(|m| panic_text(|| drop(inside.read(m)))));
    assert!(refused.unwrap().contains("in an object of another heap"));
    assert!(kept.edges[0].read(&m).is_some());
    kept.edges[0].set(&m, None);
}

// ------------------------------------------------------------------------------ parts of guards

#[test]
fn a_guard_of_a_part_keeps_the_cell_locked() {
    let heap = small();
    let m = heap.attach();
    let cell = m.alloc(GcCell::new((vec![1, 2], String::from("x"))));
    let first = GcCellGuard::map(cell.lock(&m), |pair| &mut pair.0);
    let mut second = GcCellMappedGuard::map(first, |list| &mut list[1]);
    *second += 5;
    assert!(cell.try_lock(&m).is_none());
    assert_eq!(format!("{second:?}"), "7");
    let second = GcCellMappedGuard::filter_map(second, |_| None::<&mut u8>).expect_err("no part");
    let second = GcCellMappedGuard::filter_map(second, |n| Some(n)).expect("the whole");
    assert!(cell.try_lock(&m).is_none());
    drop(second);
    let whole = GcCellGuard::filter_map(cell.lock(&m), |_| None::<&mut u8>).expect_err("no part");
    assert_eq!(whole.0, [1, 7]);
    GcCellGuard::filter_map(whole, |pair| pair.0.last_mut()).map(|mut n| *n = 8).unwrap();
    // A panic unlocks.
    for part in [0, 1] {
        let text = panic_text(|| {
            let first = GcCellGuard::map(cell.lock(&m), |pair| match part {
                0 => panic!("of the first"),
                _ => &mut pair.0,
            });
            drop(GcCellMappedGuard::map(first, |list| &mut list[2]));
        });
        assert!(text.is_some());
    }
    assert_eq!(cell.lock(&m).0, [1, 8]);
}

#[test]
fn a_guard_of_a_part_counts_what_the_cell_owns() {
    let heap = small();
    let m = heap.attach();
    let cell = m.alloc(GcCell::new((Vec::<u8>::new(), 0)));
    let before = heap.stats().external_bytes;
    GcCellGuard::map(cell.lock(&m), |pair| &mut pair.0).reserve_exact(1 << 20);
    assert_eq!(heap.stats().external_bytes - before, 1 << 20);
    drop(cell);
    assert_eq!(heap.stats().external_bytes, before);
}

#[test]
fn a_reader_of_a_part_reads_with_others() {
    let heap = small();
    let m = heap.attach();
    let cell = m.alloc(GcCell::new((vec![1, 2], "x")));
    let first = GcCellReadGuard::map(cell.read(&m), |pair| &pair.0[1]);
    let second = GcCellReadGuard::filter_map(cell.read(&m), |pair| pair.0.get(2));
    let second = GcCellReadGuard::filter_map(second.expect_err("no part"), |pair| pair.0.first());
    assert_eq!((*first, format!("{:?}", second.unwrap())), (2, "1".into()));
    assert!(cell.try_lock(&m).is_none());
    drop(first);
    assert!(panic_text(|| drop(GcCellReadGuard::map(cell.read(&m), |p| &p.0[2]))).is_some());
    assert!(cell.try_lock(&m).is_some());
}

// ---------------------------------------------------------------------------------------- waits

#[derive(Default, Trace)]
struct Turn {
    whose: GcCell<usize>,
    changed: GcCondvar,
}

/// Each of some threads takes its turn, thousands of times. A lost notification stops them.
#[test]
fn threads_that_take_turns_lose_no_notification() {
    let _watch = deadline("turns");
    const THREADS: usize = 3;
    let heap = small();
    let turn = heap.attach().alloc(Turn::default());
    beside_collections(&heap, || {
        std::thread::scope(|s| {
            for me in 0..THREADS {
                let (turn, heap) = (&turn, &heap);
                s.spawn(move || {
                    let mut m = heap.attach();
                    for round in 0..2_000 {
                        m.wait(&turn.changed, &turn.whose, |whose, m| {
                            let mine = *whose % THREADS == me;
                            // Under the lock of the cell, or after it.
                            if mine && round % 2 == 0 {
                                turn.changed.notify_all(m);
                            }
                            mine.then(|| *whose += 1)
                        });
                        turn.changed.notify_all(&m);
                    }
                });
            }
        });
    });
    assert_eq!(*turn.whose.lock(&heap.attach()), THREADS * 2_000);
}

#[test]
fn one_notification_wakes_the_thread_that_waited_longest() {
    let _watch = deadline("waiters in a row");
    let heap = small();
    let mut m = heap.attach();
    let turn = m.alloc(Turn::default());
    let entered = AtomicUsize::new(0);
    let woken = Mutex::new(Vec::new());
    m.scope(|s, m| {
        for me in 0..3 {
            s.spawn({
                let (turn, heap, entered, woken) = (&turn, &heap, &entered, &woken);
                move || {
                    let mut m = heap.attach();
                    let mut is_first = true;
                    m.wait(&turn.changed, &turn.whose, |whose, _| {
                        if std::mem::replace(&mut is_first, false) {
                            entered.store(me + 1, SeqCst);
                        }
                        let mut woken = woken.lock().unwrap();
                        (*whose > woken.len()).then(|| woken.push(me))
                    });
                }
            });
            // The thread is in the list as soon as its cell is free.
            while entered.load(SeqCst) <= me {
                m.safepoint();
                std::thread::yield_now();
            }
            drop(turn.whose.lock(m));
        }
        for round in 1..=3 {
            turn.whose.set(m, round);
            turn.changed.notify_one(m);
            while woken.lock().unwrap().len() < round {
                m.safepoint();
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(woken.lock().unwrap()[..], [0, 1, 2]);
    // Nobody is left to be woken.
    turn.changed.notify_one(&m);
}

#[test]
fn a_wait_ends_at_its_timeout_or_with_a_panic_and_leaves_nothing() {
    let _watch = deadline("timeouts");
    let heap = small();
    let mut m = heap.attach();
    let turn = m.alloc(Turn::default());
    let mut calls = 0;
    for timeout in [Duration::ZERO, Duration::from_millis(2)] {
        let waited = m.wait_timeout(timeout, &turn.changed, &turn.whose, |_, _| {
            calls += 1;
            None::<u8>
        });
        assert_eq!(waited, None);
    }
    assert!(calls >= 3, "at least once before and once after a time that passes");
    let now = |_: &mut usize, _: &Mutator| Some(7);
    assert_eq!(m.wait_timeout(Duration::MAX, &turn.changed, &turn.whose, now), Some(7));
    assert_eq!(m.wait_timeout(Duration::ZERO, &turn.changed, &turn.whose, now), Some(7));
    let text = panic_text(|| m.wait(&turn.changed, &turn.whose, |_, _| panic!("not ready")));
    assert!(text.is_some());
    assert!(turn.whose.try_lock(&m).is_some(), "it is unlocked");
    assert!(Mutator::with_current(|_| ()).is_some(), "it is attached");
}

/// A thread that may not park cannot wait. It does not stay in the list, where it would take a
/// notification from another thread.
#[test]
fn a_wait_in_a_finalizer_is_refused() {
    let _watch = deadline("a refused wait");
    let heap = small();
    let mut m = heap.attach();
    let turn = m.alloc(Turn::default());
    Mutator::with_current(|_| {
        let text = panic_text(|| m.wait(&turn.changed, &turn.whose, |_, _| None::<()>));
        assert!(text.unwrap().contains("`Mutator::detach` inside a destructor"));
        assert_eq!(m.wait(&turn.changed, &turn.whose, |_, _| Some(7)), 7);
    });
    let entered = AtomicBool::new(false);
    m.scope(|s, m| {
        let waiter = s.spawn(|| {
            heap.attach().wait(&turn.changed, &turn.whose, |whose, _| {
                entered.store(true, SeqCst);
                (*whose == 1).then_some(())
            });
        });
        while !entered.load(SeqCst) {
            m.safepoint();
        }
        turn.whose.set(m, 1);
        turn.changed.notify_one(m);
        m.join(waiter).unwrap();
    });
}

/// What the page of `GcCondvar` says of std's: two words, and no function of the library.
#[test]
fn a_condition_variable_of_std_is_waited_for_detached() {
    let _watch = deadline("a condition variable of std");
    #[derive(Default, Trace)]
    struct Flag(Mutex<bool>, Condvar);
    let heap = small();
    let mut m = heap.attach();
    let flag = m.alloc(Flag::default());
    m.scope(|s, m| {
        s.spawn(|| {
            let mut m = heap.attach();
            m.collect();
            *m.lock(&flag.0).unwrap() = true;
            flag.1.notify_one();
        });
        let guard = m.lock(&flag.0).unwrap();
        assert!(*m.detach(|| flag.1.wait_while(guard, |set| !*set)).unwrap());
    });
}

// ------------------------------------------------------------------------------------- channels

/// A message of a channel, which may lead back to the channel.
#[derive(Trace)]
struct Letter {
    back: Option<Gc<GcChannel<Letter>>>,
    number: usize,
    witness: Witnessed,
}

fn letter(census: &Arc<Census>, number: usize) -> Letter {
    Letter { back: None, number, witness: Witnessed(Witness::new(census, number)) }
}

#[test]
fn a_cycle_through_a_channel_is_collected_with_its_messages() {
    let heap = small();
    let census = Census::new();
    let mut m = heap.attach();
    let channel = m.alloc(GcChannel::new());
    let others = m.alloc(GcChannel::new());
    for number in 0..3 {
        let back = Some(channel.clone());
        channel.send(&m, Letter { back, ..letter(&census, number) }).unwrap();
        others.send(&m, letter(&census, 10 + number)).unwrap();
    }
    // A message is as alive as its channel.
    m.collect();
    assert_eq!(census.alive(), 6);
    drop(channel);
    assert_eq!(m.collect().collected, 1);
    assert_eq!(census.dead(), 3);
    assert_eq!(others.recv(&mut m).unwrap().number, 10);
    drop(others);
    assert_eq!((census.alive(), heap.stats().live_objects), (0, 0));
}

#[test]
fn a_closed_channel_gives_what_it_has_and_then_an_error() {
    let heap = small();
    let mut m = heap.attach();
    let channel = m.alloc(GcChannel::default());
    let soon = Duration::from_millis(1);
    assert_eq!(channel.try_recv(&m), Err(TryRecvError::Empty));
    assert_eq!(channel.recv_timeout(&mut m, soon), Err(RecvTimeoutError::Timeout));
    for number in 0..4 {
        channel.send(&m, number).unwrap();
    }
    channel.close(&m);
    channel.close(&m);
    assert_eq!(channel.send(&m, 7).unwrap_err().0, 7);
    assert_eq!(channel.recv(&mut m), Ok(0));
    assert_eq!(channel.try_recv(&m), Ok(1));
    assert_eq!(channel.recv_timeout(&mut m, Duration::ZERO), Ok(2));
    assert_eq!(channel.recv(&mut m), Ok(3));
    assert!(channel.recv(&mut m).is_err());
    assert_eq!(channel.try_recv(&m), Err(TryRecvError::Disconnected));
    assert_eq!(channel.recv_timeout(&mut m, soon), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn each_message_of_many_threads_is_received_once() {
    let _watch = deadline("a channel of many threads");
    const MESSAGES: usize = 5_000;
    let heap = Heap::builder().pacing(Pacing::default().with_young_objects(500)).build().unwrap();
    let census = Census::new();
    let m = heap.attach();
    let channel = m.alloc(GcChannel::<Letter>::new());
    drop(m);
    let sum = AtomicUsize::new(0);
    std::thread::scope(|s| {
        let receivers: Vec<_> = (0..3)
            .map(|_| {
                s.spawn(|| {
                    let mut m = heap.attach();
                    while let Ok(letter) = channel.recv(&mut m) {
                        sum.fetch_add(letter.number, SeqCst);
                    }
                })
            })
            .collect();
        let senders: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut m = heap.attach();
                    for number in 1..=MESSAGES {
                        let back = Some(channel.clone());
                        let letter = Letter { back, ..letter(&census, number) };
                        channel.send(&m, letter).expect("open");
                        m.safepoint();
                    }
                })
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        channel.close(&heap.attach());
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
    });
    assert_eq!(sum.into_inner(), MESSAGES * (MESSAGES + 1));
    assert_eq!((census.born(), census.alive()), (2 * MESSAGES, 0));
}

/// A send takes no exclusive mutator, so a destructor may send. The buffer counts.
#[test]
fn a_destructor_sends_and_the_queue_counts_as_outside_memory() {
    struct Sends(Gc<GcChannel<u64>>);
    impl Trace for Sends {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
    }
    impl Drop for Sends {
        fn drop(&mut self) {
            Mutator::with_current(|m| self.0.send(m, 7).unwrap()).expect("attached");
        }
    }
    let heap = small();
    let mut m = heap.attach();
    let channel = m.alloc(GcChannel::new());
    drop(m.alloc(Sends(channel.clone())));
    assert_eq!(channel.recv(&mut m), Ok(7));
    let before = heap.stats().external_bytes;
    (0..10_000).for_each(|n| channel.send(&m, n).unwrap());
    assert!(heap.stats().external_bytes - before > 60_000);
    drop(channel);
    assert_eq!(heap.stats().external_bytes, 0);
}

// --------------------------------------------------------------------------- data of the program

/// The data of a heap: what its finalizers have saved, and a root.
#[derive(Default)]
struct Runtime {
    saved: Mutex<Vec<Gc<Table>>>,
    names: Mutex<Vec<usize>>,
    dropped: Option<Arc<AtomicUsize>>,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.dropped
            .iter()
            .for_each(|dropped| dropped.store(self.names.lock().unwrap().len(), SeqCst));
    }
}

struct Table {
    next: GcCell<Option<Gc<Table>>>,
    saves: bool,
    witness: Witness,
}

impl Trace for Table {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, m| {
        if let Some(runtime) = m.heap().user_data::<Runtime>() {
            runtime.names.lock().unwrap().push(this.witness.name());
            if this.saves {
                runtime.saved.lock().unwrap().push(this.clone());
            }
        }
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.next, m);
    }
}

/// A table that refers to itself.
fn table(m: &Mutator, census: &Arc<Census>, name: usize, saves: bool) -> Gc<Table> {
    let witness = Witness::new(census, name);
    let table = m.alloc(Table { next: GcCell::default(), saves, witness });
    table.next.set(m, Some(table.clone()));
    table
}

#[test]
fn finalizers_find_the_data_of_their_heap() {
    let heap = small();
    let census = Census::new();
    assert!(heap.user_data::<Runtime>().is_none());
    assert!(heap.set_user_data(Runtime::default()).is_ok());
    assert_eq!(heap.set_user_data(7), Err(7));
    assert!(heap.user_data::<u32>().is_none());
    assert!(small().user_data::<Runtime>().is_none(), "another heap has none");
    let mut m = heap.attach();
    drop(table(&m, &census, 3, true));
    m.collect();
    let saved =
        std::mem::take(&mut *m.heap().user_data::<Runtime>().unwrap().saved.lock().unwrap());
    assert_eq!(saved[0].witness.name(), 3);
    drop(saved);
    m.collect();
    assert_eq!(census.alive(), 0);
}

/// The finalizers of the last collections find the data, and the cycles that only the data held are
/// collected. Also if the thread has no memory of the heap but its data.
#[test]
fn at_its_end_a_heap_collects_before_and_after_it_drops_its_data() {
    let census = Census::new();
    let names = Arc::new(AtomicUsize::new(0));
    let heap = small();
    heap.on_unraisable(|why| die(&why.to_string()));
    let mut runtime = Runtime::default();
    runtime.dropped = Some(Arc::clone(&names));
    assert!(heap.set_user_data(runtime).is_ok());
    let m = heap.attach();
    for name in 0..3 {
        drop(table(&m, &census, name, name == 1));
    }
    let held = table(&m, &census, 3, false);
    heap.user_data::<Runtime>().unwrap().saved.lock().unwrap().push(held);
    drop(heap);
    assert_eq!(census.alive(), 4);
    drop(m);
    assert_eq!(names.load(SeqCst), 3, "the finalizers of the garbage have found the data");
    assert_eq!(census.alive(), 0);
}

/// Where no collection runs, the data are dropped all the same.
#[test]
fn a_heap_that_ends_on_a_thread_of_another_heap_drops_its_data() {
    let (heap, other) = (small(), small());
    let census = Census::new();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&reports);
    heap.on_unraisable(move |why| to.lock().unwrap().push(why.to_string()));
    let m = heap.attach();
    let object = node(&m, &census, 0);
    drop(m);
    assert!(heap.set_user_data(object).is_ok());
    let m = other.attach();
    drop(heap);
    drop(m);
    assert_eq!(census.alive(), 0);
    assert_eq!(reports.lock().unwrap()[..], [] as [String; 0], "no object is left");
}

#[test]
fn data_whose_destructor_panics_end_the_heap_all_the_same() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("the data");
        }
    }
    let census = Census::new();
    let heap = small();
    let m = heap.attach();
    garbage_loop(&m, &census, 0);
    assert!(heap.set_user_data(Panics).is_ok());
    drop(m);
    assert_eq!(panic_text(|| drop(heap)).as_deref(), Some("the data"));
    assert_eq!(census.alive(), 0);
    // The same for those of a mutator.
    let heap = small();
    let m = heap.attach();
    m.set_user_data(Panics);
    assert_eq!(panic_text(|| drop(m)).as_deref(), Some("the data"));
    assert_eq!(heap.stats().mutators, 0);
    drop(heap.attach());
}

/// Of each thread, gone with its mutator, and attached until then.
#[test]
fn the_data_of_a_mutator_are_its_threads_own() {
    struct Frame(
        Cell<u32>,
        #[expect(dead_code, reason = "it keeps an object")] Gc<Node>,
        Rc<Cell<u32>>,
    );
    impl Drop for Frame {
        fn drop(&mut self) {
            let has_data = Mutator::with_current(|m| m.user_data::<Self>().is_some());
            assert_eq!(has_data, Some(false), "attached, and the data are out of reach");
            self.2.set(self.2.get() + 1);
        }
    }
    let heap = small();
    let census = Census::new();
    let dropped = Rc::new(Cell::new(0));
    let mut m = heap.attach();
    assert!(m.user_data::<Frame>().is_none());
    m.set_user_data(7u8);
    let byte = m.user_data::<u8>().unwrap();
    m.set_user_data(Frame(Cell::new(1), node(&m, &census, 0), Rc::clone(&dropped)));
    assert_eq!(*byte, 7, "what the caller has stays");
    assert!(m.user_data::<u8>().is_none());
    m.detach(|| {
        std::thread::scope(|s| {
            s.spawn(|| heap.attach_scoped(|m| assert!(m.user_data::<Frame>().is_none())));
        });
    });
    m.collect();
    Mutator::with_current(|m| m.user_data::<Frame>().unwrap().0.set(2));
    assert_eq!(m.user_data::<Frame>().unwrap().0.get(), 2);
    drop(m);
    assert_eq!((dropped.get(), census.alive()), (1, 0));
    // The next mutator has the memory of the last one, and not its data.
    assert!(heap.attach().user_data::<Frame>().is_none());
}

/// Of which `external_bytes` panics while [`PANICS`] is set.
#[derive(Default)]
struct Panics;

static PANICS: AtomicBool = AtomicBool::new(false);

impl Trace for Panics {
    const HAS_EXTERNAL_BYTES: bool = true;

    fn traverse(_: &Self, _: &mut Tracer) {}

    fn external_bytes(_: &mut Self) -> usize {
        assert!(!PANICS.load(SeqCst), "external_bytes, on purpose");
        8
    }
}

#[test]
fn a_cell_is_unlocked_if_external_bytes_panics() {
    let heap = small();
    let m = heap.attach();
    let cell = m.alloc(GcCell::new(Panics));
    let guard = cell.lock(&m);
    PANICS.store(true, SeqCst);
    catch_unwind(AssertUnwindSafe(|| drop(guard))).unwrap_err();
    catch_unwind(AssertUnwindSafe(|| drop(cell.lock(&m)))).unwrap_err();
    PANICS.store(false, SeqCst);
    assert!(cell.try_lock(&m).is_some());
}
