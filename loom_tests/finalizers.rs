//! Finalizers of the built-in model, where an object dies by its count.
//!
//! The heap is the real one, and the values are those of [`managed`](super::managed). The
//! finalizers of garbage belong to the models of [whole collections](super::collect).
//!
//! # Transitions
//!
//! * dead, marked as finalized, revived by its finalizer, against the thread that gets the object:
//!   `a_finalizer_gives_its_object_away`
//! * found dead by the merge of a collection, revived by its finalizer, garbage in the next
//!   collection: `a_merged_object_is_revived`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed};

use loom::thread;

use super::managed::{Value, world};
use super::model;
use crate::{AtomicGc, Collect, Finalizer, Gc, GcCell, Mutator, Trace, Tracer};

/// A value whose finalizer puts a reference to its object into a slot.
struct GivesAway {
    value: Value,
    to: Arc<AtomicGc<GivesAway>>,
    finalized: Arc<Plain>,
}

impl Trace for GivesAway {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, m| {
        this.finalized.fetch_add(1, Relaxed);
        this.to.store(m, Some(this.clone()));
    }));

    fn traverse(this: &Self, _: &mut Tracer) {
        this.value.touch();
    }
}

/// The owner drops the last reference. Another thread gets the object from the finalizer, which may
/// still run. The object is finalized by then, and its finalizer does not run again.
///
/// Mutations: the object is marked after the call, or not at all.
#[test]
fn loom_a_finalizer_gives_its_object_away() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        drop(object);
        destroyed.store(0, Relaxed);
        let (slot, finalized) = (Arc::new(AtomicGc::new(None)), Arc::new(Plain::new(0)));
        let value = Value::new(&destroyed);
        let (to, f) = (Arc::clone(&slot), Arc::clone(&finalized));
        let object = m.alloc(GivesAway { value, to, finalized: f });
        let s = Arc::clone(&slot);
        let taker = thread::spawn(move || {
            let m = heap.attach();
            if let Some(object) = s.take(&m) {
                assert!(Gc::is_finalized(&object, &m));
                object.value.touch();
            }
        });
        drop(object);
        m.detach(|| taker.join().unwrap());
        drop(slot.take(&m));
        m.safepoint();
        m.collect();
        assert_eq!((finalized.load(Relaxed), destroyed.load(Relaxed)), (1, 1));
    });
}

/// A value whose finalizer makes its object refer to itself.
struct Revives {
    value: Value,
    edge: GcCell<Option<Gc<Revives>>>,
}

impl Trace for Revives {
    const FINALIZER: Option<Finalizer<Self>> =
        Some(Finalizer::new(|this, m| this.edge.set(m, Some(this.clone()))));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.value.touch();
        Trace::traverse(&this.edge, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.edge.set(m, None);
    }
}

/// A thread drops a reference that the owner counted, and the owner collects. If the merge finds
/// the object dead, its finalizer runs after the stop, and revives it. Then the object is an
/// ordinary one, and garbage.
///
/// Mutation: the object stays `DYING`.
#[test]
fn loom_a_merged_object_is_revived() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        drop(object);
        destroyed.store(0, Relaxed);
        let value = Value::new(&destroyed);
        let object = m.alloc(Revives { value, edge: GcCell::new(None) });
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.value.touch();
            drop(theirs);
        });
        drop(object);
        let first = m.try_collect(Collect::full()).unwrap();
        m.detach(|| stranger.join().unwrap());
        m.safepoint();
        let second = m.try_collect(Collect::full()).unwrap();
        assert_eq!((first.collected + second.collected, destroyed.load(Relaxed)), (1, 1));
    });
}
