//! `get_mut`, `make_mut` and `try_unwrap`: who may change a value in place, under biased counts.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use standstill::{Collect, Gc, GcCell, Heap, Mutator, Pacing, SharedGc, Trace};

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().unwrap()
}

/// Counts its drops.
#[derive(Clone, Debug, Trace)]
struct Counted(u32, #[trace(skip)] Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn the_owner_changes_a_value_that_nobody_shares() {
    let heap = heap();
    let m = heap.attach();
    let mut one = m.alloc(1u32);
    let address = Gc::as_ptr(&one);
    *Gc::get_mut(&mut one, &m).expect("alone") += 1;
    let other = one.clone();
    assert!(!Gc::is_unique(&one, &m) && Gc::get_mut(&mut one, &m).is_none());
    drop(other);
    *Gc::make_mut(&mut one, &m) += 1;
    assert_eq!((*one, Gc::as_ptr(&one)), (3, address));
    let other = one.clone();
    *Gc::make_mut(&mut one, &m) += 1;
    assert_eq!((*one, *other), (4, 3));
    assert!(Gc::as_ptr(&one) != address && Gc::as_ptr(&other) == address);
}

#[test]
fn a_weak_reference_and_immortality_forbid_changes() {
    let heap = heap();
    let m = heap.attach();
    let mut one = m.alloc(1u32);
    let weak = Gc::downgrade(&one, &m);
    assert!(Gc::get_mut(&mut one, &m).is_none());
    assert_eq!(*Gc::try_unwrap(one, &m).expect_err("an upgrade could come between"), 1);
    assert!(weak.upgrade(&m).is_none());
    let mut immortal = m.alloc(2u32);
    Gc::immortalize(&immortal, &m);
    assert!(Gc::get_mut(&mut immortal, &m).is_none());
}

#[test]
fn another_heap_and_another_thread_do_not_know() {
    let (heap, other) = (heap(), Heap::new());
    let m = heap.attach();
    let mut one = m.alloc(1u32);
    thread::scope(|scope| {
        scope.spawn(|| {
            let m = other.attach();
            assert!(Gc::get_mut(&mut one, &m).is_none());
        });
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            let m = heap.attach();
            assert!(Gc::get_mut(&mut one, &m).is_none(), "the owner's half is unknown here");
            assert_eq!(*Gc::make_mut(&mut one, &m), 1);
            assert!(Gc::is_unique(&one, &m), "its own copy");
        });
    });
}

#[test]
fn any_thread_changes_a_merged_value_of_its_own() {
    let heap = heap();
    let m = heap.attach();
    let one = m.alloc(String::from("a"));
    // Counted in the shared half, because the other thread is not the owner.
    let mut other = thread::scope(|scope| scope.spawn(|| one.clone()).join().unwrap());
    assert!(!Gc::is_unique(&one, &m) && !Gc::is_unique(&other, &m));
    // The owner's last drop merges the object.
    drop(one);
    Gc::get_mut(&mut other, &m).expect("alone").push('b');
    let heap = &heap;
    thread::scope(|scope| {
        scope.spawn(move || {
            let m = heap.attach();
            Gc::get_mut(&mut other, &m).expect("alone").push('c');
            let second = other.clone();
            assert!(Gc::get_mut(&mut other, &m).is_none());
            drop(second);
            let text = Gc::try_unwrap(other, &m).expect("alone");
            assert_eq!((&*text, heap.stats().live_objects), ("abc", 0));
        });
    });
}

#[test]
fn a_value_that_is_taken_out_is_not_dropped() {
    let heap = heap();
    let mut m = heap.attach();
    let drops = Arc::new(AtomicUsize::new(0));
    for round in 0..1_000 {
        let one = m.alloc(Counted(round, Arc::clone(&drops)));
        let value = Gc::try_unwrap(one, &m).unwrap();
        assert_eq!((value.0, drops.load(SeqCst), heap.stats().live_objects), (round, 0, 0));
        std::mem::forget(value.1.clone());
        let again = m.alloc(value);
        let two = again.clone();
        let again = Gc::try_unwrap(again, &m).expect_err("shared");
        drop((again, two));
        assert_eq!(drops.swap(0, SeqCst), 1);
    }
    assert_eq!(m.collect().unreachable, 0);
}

#[test]
fn large_and_aligned_values_are_taken_out() {
    #[derive(Clone, Trace)]
    #[repr(align(256))]
    struct Aligned(u8);
    let heap = heap();
    let m = heap.attach();
    let large = m.alloc([7u64; 10_000]);
    assert_eq!(Gc::try_unwrap(large, &m).map(|all| all[9_999]), Ok(7));
    let mut aligned = m.alloc(Aligned(1));
    Gc::get_mut(&mut aligned, &m).unwrap().0 += 1;
    assert_eq!(Gc::try_unwrap(aligned, &m).map(|it| it.0).ok(), Some(2));
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_cycle_may_be_tied_and_untied_in_place() {
    #[derive(Default, Trace)]
    struct Node(GcCell<Option<Gc<Node>>>);
    let heap = heap();
    let mut m = heap.attach();
    let mut one = m.alloc(Node::default());
    let two = m.alloc(Node(GcCell::new(None)));
    *Gc::get_mut(&mut one, &m).unwrap().0.get_mut() = Some(two.clone());
    two.0.set(&m, Some(one.clone()));
    assert!(Gc::get_mut(&mut one, &m).is_none());
    drop((one, two));
    assert_eq!(m.collect().collected, 2);
}

#[test]
fn bytes_outside_of_the_heap_follow_the_changes() {
    let heap = heap();
    let m = heap.attach();
    let bytes = || heap.stats().external_bytes;
    let mut one = m.alloc(Vec::<u8>::new());
    let before = bytes();
    Gc::get_mut(&mut one, &m).unwrap().reserve_exact(1 << 20);
    assert_eq!(bytes() - before, 1 << 20);
    let value = Gc::try_unwrap(one, &m).unwrap();
    assert_eq!((bytes(), value.capacity()), (before, 1 << 20));
}

#[test]
fn a_finalizer_is_not_called_for_a_value_that_moves_out() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    #[derive(Trace)]
    #[trace(finalize)]
    struct Loud(u8);
    impl Loud {
        fn finalize(_: &Gc<Self>, _: &Mutator) {
            CALLS.fetch_add(1, SeqCst);
        }
    }
    let heap = heap();
    let mut m = heap.attach();
    assert_eq!(Gc::try_unwrap(m.alloc(Loud(1)), &m).map(|it| it.0).ok(), Some(1));
    m.try_collect(Collect::full()).unwrap();
    assert_eq!(CALLS.load(SeqCst), 0);
    drop(m.alloc(Loud(2)));
    assert_eq!(CALLS.load(SeqCst), 1);
}

#[test]
fn an_object_that_is_shared_for_life_is_unique_by_its_last_reference() {
    let heap = heap();
    let m = heap.attach();
    let shared = Gc::try_share(m.alloc(1u32), &m).unwrap();
    let mut gc = Gc::from(shared.clone());
    assert!(Gc::get_mut(&mut gc, &m).is_none());
    drop::<SharedGc<u32>>(shared);
    *Gc::get_mut(&mut gc, &m).expect("the last") += 1;
    assert_eq!(Gc::try_unwrap(gc, &m), Ok(2));
}
