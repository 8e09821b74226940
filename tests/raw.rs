//! Handles that were given up as addresses: `into_raw`, and `from_raw`.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use standstill::{AnyGc, Gc, GcWeak, Heap, Mutator, Pacing, Trace};

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().unwrap()
}

#[derive(Trace)]
struct Counted<T: 'static + Send + Sync> {
    #[trace(skip)]
    value: T,
    #[trace(skip)]
    dropped: Arc<AtomicUsize>,
}

impl<T: Send + Sync + 'static> Drop for Counted<T> {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Relaxed);
    }
}

fn new<T: Send + Sync + 'static>(m: &Mutator, value: T) -> (Gc<Counted<T>>, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    (m.alloc(Counted { value, dropped: Arc::clone(&dropped) }), dropped)
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(256))]
struct Aligned(u8);

fn back_and_forth<T: Send + Sync + Copy + PartialEq + 'static>(value: T) {
    let heap = heap();
    let m = heap.attach();
    let (gc, dropped) = new(&m, value);
    let (raw, kept) = (Gc::into_raw(gc.clone()), gc);
    assert_eq!((raw, Gc::strong_count(&kept)), (Gc::as_ptr(&kept), 2));
    // As a number, for example in a tagged word.
    let number = raw.expose_provenance();
    let raw: *const Counted<T> = std::ptr::with_exposed_provenance(number);
    // SAFETY: of `into_raw`.
    let again = unsafe { Gc::from_raw(raw) };
    assert!(Gc::ptr_eq(&again, &kept) && again == kept && again.value == value);
    drop(kept);
    assert_eq!(dropped.load(Relaxed), 0);
    drop(again);
    assert_eq!(dropped.load(Relaxed), 1);
}

#[test]
fn a_handle_comes_back_from_its_address() {
    back_and_forth(());
    back_and_forth(7_u8);
    back_and_forth([1_u64; 100]);
    back_and_forth(Aligned(3));
    back_and_forth([7_u8; 100_000]);
}

#[test]
fn a_reference_without_a_handle_keeps_its_object() {
    let heap = heap();
    let mut m = heap.attach();
    let (gc, dropped) = new(&m, 1);
    let raw = Gc::into_raw(gc);
    assert_eq!((m.collect().collected, dropped.load(Relaxed)), (0, 0));
    // SAFETY: of `into_raw`.
    drop(unsafe { Gc::from_raw(raw) });
    assert_eq!(dropped.load(Relaxed), 1);
}

#[test]
fn any_thread_may_take_it_back() {
    let heap = heap();
    let mut m = heap.attach();
    let dropped = [(); 3].map(|()| {
        let (gc, dropped) = new(&m, 1);
        let raw = Gc::into_any(gc).into_raw().as_ptr().expose_provenance();
        let heap = heap.clone();
        let other = thread::spawn(move || {
            let address = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(raw));
            // SAFETY: of `into_raw`.
            let any = unsafe { AnyGc::from_raw(address.unwrap()) };
            assert!(AnyGc::ptr_eq(&any, &any.clone()));
            if raw % 64 == 0 {
                heap.attach_scoped(|_| drop(any));
            } else {
                drop(any);
            }
        });
        m.join(other).unwrap();
        dropped
    });
    m.safepoint();
    assert!(dropped.iter().all(|dropped| dropped.load(Relaxed) == 1));
    // Also after the heap has closed.
    let (gc, dropped) = new(&m, 1);
    let raw = Gc::into_raw(gc);
    drop(m);
    drop(heap);
    // SAFETY: of `into_raw`.
    drop(unsafe { Gc::from_raw(raw) });
    assert_eq!(dropped.load(Relaxed), 1);
}

#[test]
fn a_weak_reference_comes_back_from_its_address() {
    let heap = heap();
    let m = heap.attach();
    let (gc, _) = new(&m, 5);
    let [one, other] = [(); 2].map(|()| Gc::downgrade(&gc, &m).into_raw());
    assert_eq!(one, other);
    // SAFETY: of `into_raw`.
    let weak: GcWeak<Counted<i32>> = unsafe { GcWeak::from_raw(one) };
    assert_eq!(weak.upgrade(&m).unwrap().value, 5);
    drop((weak, gc));
    // SAFETY: of `into_raw`, and given up twice.
    let weak: GcWeak<Counted<i32>> = unsafe { GcWeak::from_raw(other) };
    assert!(weak.upgrade(&m).is_none());
    assert!(GcWeak::<u32>::new().into_raw().is_null());
}
