//! `AtomicGc`: a reference that threads read without a lock, change, and take out.
//!
//! The slots and the heap are the real ones. The value of an object is a loom `UnsafeCell`, as in
//! the models of `managed`. So loom fails a model in which a use is not ordered after the creation
//! of the object and before its destruction.
//!
//! # Transitions
//!
//! * stored, against a reader: `an_object_in_a_slot_is_whole`
//! * swapped out, against a swap: `two_threads_swap`
//! * swapped out and dropped, against a reader: `a_reader_meets_a_swap`
//! * exchanged by comparison, by the thread that wins and by the thread that loses:
//!   `one_of_two_sets_a_slot`, `an_exchange_sees_the_writes_before_the_store`
//! * emptied, against a reader that detaches and comes back:
//!   `a_reader_comes_back_while_a_slot_is_emptied`
//! * emptied from another heap, against a reader at a safepoint:
//!   `a_reader_finds_an_epoch_before_its_request`
//! * the same, against a reader inside a safepoint, in a destructor:
//!   `a_destructor_at_a_safepoint_reads_a_slot`
//! * emptied, against a reader that attaches or parks:
//!   `managed::a_retired_reference_meets_a_reader`,
//!   `managed::a_retired_reference_meets_a_collection`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed};

use loom::thread;

use super::managed::{Value, world};
use super::{model, model_to};
use crate::base::sync::UnsafeCell;
use crate::{AtomicGc, Heap, Mutator, Pacing, Stress, Trace, Tracer};

/// A heap, a mutator, and slots with one object each. When the mutator has ended, the thread that
/// drops the last reference destroys the object.
fn slots<const N: usize>() -> (Heap, Mutator, Arc<[AtomicGc<Value>; N]>, Arc<Plain>) {
    let (heap, m, object, destroyed) = world();
    let slots = Arc::new([(); N].map(|()| AtomicGc::from(m.alloc(Value::new(&destroyed)))));
    drop(object);
    destroyed.store(0, Relaxed);
    (heap, m, slots, destroyed)
}

/// One thread stores a new object. Another thread finds it, by a load or by its own reference.
///
/// Mutation: the load is relaxed.
#[test]
fn loom_an_object_in_a_slot_is_whole() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        drop(object);
        let slot = Arc::new(AtomicGc::new(None));
        let (s, d) = (Arc::clone(&slot), Arc::clone(&destroyed));
        let writer = thread::spawn(move || {
            let m = heap.attach();
            s.store(&m, Some(m.alloc(Value::new(&d))));
        });
        slot.peek(&m).inspect(|value| value.touch());
        slot.load(&m).inspect(|gc| gc.touch());
        m.detach(|| writer.join().unwrap());
        drop(slot);
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 2);
    });
}

/// Two threads put their objects into a slot. Each uses the object that it takes out.
///
/// Mutation: the exchange has no acquire.
#[test]
fn loom_two_threads_swap() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let slot = Arc::new(AtomicGc::new(None));
        let (s, d) = (Arc::clone(&slot), Arc::clone(&destroyed));
        let other = thread::spawn(move || {
            let m = heap.attach();
            let old = s.swap(&m, Some(m.alloc(Value::new(&d))));
            old.inspect(|old| old.touch());
        });
        slot.swap(&m, Some(object)).inspect(|old| old.touch());
        m.detach(|| other.join().unwrap());
        drop(slot);
        m.safepoint();
        m.collect();
        assert_eq!(destroyed.load(Relaxed), 2);
    });
}

/// Two threads set an empty slot. One wins. Both use the object in the slot.
///
/// Mutation: the exchange has no release.
#[test]
fn loom_one_of_two_sets_a_slot() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let slot = Arc::new(AtomicGc::new(None));
        let (s, d) = (Arc::clone(&slot), Arc::clone(&destroyed));
        let other = thread::spawn(move || {
            let m = heap.attach();
            let has_won = s.compare_exchange(&m, None, Some(m.alloc(Value::new(&d)))).is_ok();
            s.peek(&m).expect("one has won").touch();
            has_won
        });
        let has_won = slot.compare_exchange(&m, None, Some(object)).is_ok();
        slot.peek(&m).expect("one has won").touch();
        assert_ne!(m.detach(|| other.join().unwrap()), has_won);
        drop(slot);
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 2);
    });
}

/// Plain data beside the slot.
struct Beside(UnsafeCell<usize>);

// SAFETY: this is the claim under test: one thread writes before its store, the other reads after
// its exchange.
unsafe impl Sync for Beside {}
// SAFETY: it belongs to no thread.
unsafe impl Send for Beside {}

/// A thread that takes an object out by comparison sees the writes made before the object was put
/// in.
///
/// Mutations: the exchange has no acquire; the store has no release.
#[test]
fn loom_an_exchange_sees_the_writes_before_the_store() {
    model(|| {
        let (heap, mut m, object, _) = world();
        let slot = Arc::new(AtomicGc::new(None));
        let beside = Arc::new(Beside(UnsafeCell::new(0)));
        let (s, b, theirs) = (Arc::clone(&slot), Arc::clone(&beside), object.clone());
        let writer = thread::spawn(move || {
            let m = heap.attach();
            // SAFETY: see `Sync`.
            b.0.with_mut(|beside| unsafe { *beside = 1 });
            s.store(&m, Some(theirs));
        });
        if slot.compare_exchange(&m, Some(&object), None).is_ok() {
            // SAFETY: see `Sync`.
            beside.0.with(|beside| assert_eq!(unsafe { *beside }, 1));
        }
        m.detach(|| writer.join().unwrap());
    });
}

/// One thread takes a reference out of a slot, drops it, and passes a safepoint, while another
/// thread reads the object.
///
/// Mutation: the thread that empties the slot receives the slot's own reference.
#[test]
fn loom_a_reader_meets_a_swap() {
    model(|| {
        let (heap, m, slots, destroyed) = slots::<1>();
        drop(m);
        let mut m = heap.attach();
        let s = Arc::clone(&slots);
        let taker = thread::spawn(move || {
            let mut m = heap.attach();
            drop(s[0].take(&m));
            m.safepoint();
        });
        slots[0].peek(&m).inspect(|value| value.touch());
        slots[0].load(&m).inspect(|gc| gc.touch());
        m.detach(|| taker.join().unwrap());
        m.safepoint();
        m.collect();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// One thread empties a slot and passes safepoints. Another thread, which is registered already,
/// reads the slot, detaches, attaches, and reads again. The first thread waits for it each time
/// that it is attached.
///
/// Mutations: the store of the new epoch, or the load of the epoch in an attach, is not `SeqCst`.
#[test]
fn loom_a_reader_comes_back_while_a_slot_is_emptied() {
    model_to(3, || {
        let (heap, m, slots, destroyed) = slots::<1>();
        drop(m);
        let mut m = heap.attach();
        let s = Arc::clone(&slots);
        let emptier = thread::spawn(move || {
            let mut m = heap.attach();
            s[0].store(&m, None);
            m.safepoint();
        });
        slots[0].peek(&m).inspect(|value| value.touch());
        m.detach(|| ());
        slots[0].peek(&m).inspect(|value| value.touch());
        m.detach(|| emptier.join().unwrap());
        m.safepoint();
        m.collect();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// A thread at a safepoint answers the request of one epoch, and reads a newer epoch. A thread that
/// is attached to another heap made that epoch. The reads after it are at least as new as the
/// epoch.
///
/// Mutation: a retirement from another heap makes no epoch.
#[test]
fn loom_a_reader_finds_an_epoch_before_its_request() {
    model(|| {
        let (heap, m, slots, destroyed) = slots::<2>();
        drop(m);
        let mut m = heap.attach();
        let s = Arc::clone(&slots);
        let elsewhere = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
        let emptier = thread::spawn(move || {
            let m = elsewhere.attach();
            s.iter().for_each(|slot| Trace::clear(slot, &m));
            drop(m);
            drop(heap.attach());
        });
        m.safepoint();
        slots[1].peek(&m).inspect(|value| value.touch());
        m.detach(|| emptier.join().unwrap());
        m.safepoint();
        m.collect();
        assert_eq!(destroyed.load(Relaxed), 2);
    });
}

/// A value whose destructor reads a slot.
struct Reads(Arc<[AtomicGc<Value>; 1]>);

impl Trace for Reads {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Reads {
    fn drop(&mut self) {
        Mutator::with_current(|m| self.0[0].peek(m).map(Value::touch));
    }
}

/// A thread at a safepoint records the epoch that it has seen, and drops a retired reference. The
/// destructor of that object reads a slot, which another thread empties. The reference from the
/// slot has a later epoch, or the destructor finds the slot empty.
///
/// Mutations: a thread at a safepoint records the next epoch as seen; its load of the epoch is
/// relaxed.
#[test]
fn loom_a_destructor_at_a_safepoint_reads_a_slot() {
    model_to(3, || {
        // With small constants a retired reference has its epoch at once.
        let stress = Stress::none().small_constants(true);
        let heap = Heap::builder().pacing(Pacing::manual()).workers(1).stress(stress);
        let heap = heap.build().unwrap();
        let destroyed = Arc::new(Plain::new(0));
        let m = heap.attach();
        let slots = Arc::new([AtomicGc::from(m.alloc(Value::new(&destroyed)))]);
        drop(m);
        let mut m = heap.attach();
        let reads = AtomicGc::from(m.alloc(Reads(Arc::clone(&slots))));
        reads.store(&m, None);
        let elsewhere = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
        let s = Arc::clone(&slots);
        let emptier = thread::spawn(move || {
            let m = elsewhere.attach();
            Trace::clear(&s[0], &m);
            drop(m);
            drop(heap.attach());
        });
        m.safepoint();
        m.detach(|| emptier.join().unwrap());
        m.safepoint();
        m.collect();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}
