//! Tests of the lists of objects.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::*;
use crate::{Heap, Pacing, Trace};

/// Drops its content when it is traversed, which a traversal should not do.
struct Dropper(std::sync::Mutex<Option<crate::Gc<Witness>>>);

impl Trace for Dropper {
    fn traverse(this: &Self, _: &mut Tracer) {
        drop(this.0.lock().expect("no panic").take());
    }
}

/// Counts how often it is destroyed outside and inside of a stop.
struct Witness(Arc<[std::sync::atomic::AtomicUsize; 2]>);

impl Trace for Witness {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Witness {
    fn drop(&mut self) {
        let in_stop = usize::from(crate::safepoint::is_stopping());
        self.0[in_stop].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn objects_that_a_traversal_drops_die_after_the_stop_and_before_the_answer() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let services = heap.services();
    let mut m = heap.attach();
    let died: Arc<[std::sync::atomic::AtomicUsize; 2]> = Arc::default();
    let held = m.alloc(Witness(Arc::clone(&died)));
    let dropper: AnyGc = m.alloc(Dropper(std::sync::Mutex::new(Some(held)))).into();
    assert!(
        services.referents(&mut m, std::slice::from_ref(&dropper)).expect("an answer").is_empty()
    );
    let died = [0, 1].map(|which: usize| died[which].load(std::sync::atomic::Ordering::SeqCst));
    assert_eq!((died, heap.stats().live_objects), ([1, 0], 1));
}
