//! The built-in model as a whole: the owner, other threads, detached threads drop handles of the
//! typed face, also after the end of the heap.
//!
//! Everything around the count is real here: queues, requests, suspension, the deferred list, the
//! end of a mutator and of the heap. The value of each object is a loom `UnsafeCell`. Its users
//! read it, and its destructor writes it. So loom fails a model in which a use is not ordered
//! before the destruction.
//!
//! The type registry is a dashmap, which loom cannot follow: the first thread registers the one
//! type before there is another thread. `Arc`s are std's: their counts are exact, but loom tries no
//! other order around them.
//!
//! # Transitions
//!
//! * queued for an attached owner, which is requested and merges at a safepoint:
//!   `another_thread_drops_a_reference_that_the_owner_counted`
//! * the owner is detached, is suspended, and another thread merges:
//!   `stranger_merges_while_the_owner_is_detached`
//! * the owner detaches between the two: `a_detached_owner_leaves_nothing_undone`
//! * the owner ends and closes its queue: `owner_ends_before_a_stranger_drops`
//! * a collection merges queues, and counts merged objects: `a_collection_merges_the_queues`,
//!   `a_collection_sees_the_merged_count`
//! * an object whose owner has ended, inherited against unattached threads and other mutators:
//!   `an_heir_meets_unattached_threads`, `an_owner_ends_while_mutators_use_its_object`
//! * deferred, drained by an attach, a safepoint, a collection, the end of the heap:
//!   `deferred_drop_meets_an_attach`, `deferred_drops_meet_a_safepoint`,
//!   `deferred_drop_meets_a_collection`, `deferred_drop_meets_the_end_of_the_heap`
//! * heap closed, its last objects dropped: `deferred_drop_meets_the_end_of_the_heap`,
//!   `last_objects_of_a_closed_heap`
//! * weak reference, upgraded against death: `weak_handle_meets_the_last_drop`,
//!   `weak_handle_from_birth_meets_the_last_drop`, `weak_handle_meets_a_deferred_drop`,
//!   `weak_reference_with_a_callback_meets_the_last_drop`
//! * weak reference, upgraded against the start of a dynamic object's destruction:
//!   `upgrade_meets_the_start_of_a_dynamic_destruction`
//! * weak reference, upgraded against clearing, in the first stop, and in the second:
//!   `weak_handle_meets_a_collection`, `weak_handle_meets_finalizers`,
//!   `weak_reference_with_a_callback_meets_a_collection`
//! * several workers in one collection: `two_markers_claim_one_object`,
//!   `two_markers_take_all_pieces_of_work`
//! * retired, published, dropped, against a reader, an attach, a collection:
//!   `a_retired_reference_meets_a_reader`, `a_retired_reference_meets_a_collection`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed};

use loom::thread;

use super::{model, model_to};
use crate::base::stress::Stress;
use crate::base::sync::UnsafeCell;
use crate::collect::mark::{Piece, Pool};
use crate::object::header::Dropped;
use crate::{
    AnyGc, AtomicGc, Collect, Finalizer, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer, WeakRef,
    managed,
};

/// A value. Its uses must happen before its destruction.
pub(super) struct Value {
    used: UnsafeCell<usize>,
    destroyed: Arc<Plain>,
}

// SAFETY: this is the claim under test: uses only read, and the destruction comes after all of
// them.
unsafe impl Sync for Value {}
// SAFETY: it belongs to no thread.
unsafe impl Send for Value {}

impl Value {
    pub(super) fn new(destroyed: &Arc<Plain>) -> Self {
        Self { used: UnsafeCell::new(0), destroyed: Arc::clone(destroyed) }
    }

    pub(super) fn touch(&self) {
        // SAFETY: see `Sync`.
        self.used.with(|used| assert_eq!(unsafe { *used }, 0, "used after its destruction"));
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: see `Sync`.
        self.used.with_mut(|used| unsafe { *used += 1 });
        self.destroyed.fetch_add(1, Relaxed);
    }
}

impl Trace for Value {
    fn traverse(this: &Self, _: &mut Tracer) {
        this.touch();
    }
}

/// A heap, and one object in it.
pub(super) fn world() -> (Heap, Mutator, Gc<Value>, Arc<Plain>) {
    let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
    let m = heap.attach();
    let destroyed = Arc::new(Plain::new(0));
    let object = m.alloc(Value::new(&destroyed));
    (heap, m, object, destroyed)
}

/// Another thread drops a reference that the owner counted, and the owner drops its own.
///
/// Mutations: `enqueue` sends no request to the owner, or merges on its behalf without a
/// suspension; `answer` does not merge.
#[test]
fn loom_another_thread_drops_a_reference_that_the_owner_counted() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.touch();
            drop(theirs);
        });
        object.touch();
        drop(object);
        m.safepoint();
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The same while the owner ends. Either the owner merges the object, or the other thread finds the
/// queue closed.
///
/// Mutations: `ending` closes the queue without a check; `enqueue` takes a closed queue for an open
/// one.
#[test]
fn loom_owner_ends_before_a_stranger_drops() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.touch();
            drop(theirs);
        });
        drop(object);
        drop(m);
        stranger.join().unwrap();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The same while the owner is detached, and counts as another thread does.
///
/// Mutations: an unattached drop counts instead of being deferred (`drop_foreign`); an attach does
/// not check the deferred list.
#[test]
fn loom_stranger_merges_while_the_owner_is_detached() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.touch();
            drop(theirs);
        });
        m.detach(|| {
            let more = object.clone();
            stranger.join().unwrap();
            drop(more);
        });
        drop(object);
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// An unattached thread drops the last reference, while another thread attaches. The latter drains
/// the list, or gets a request.
///
/// Mutations: `defer` sends no request; an attach does not check the list; the flag's store, or its
/// load, is not `SeqCst`.
#[test]
fn loom_deferred_drop_meets_an_attach() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        drop(m);
        let dropper = thread::spawn(move || drop(object));
        let mut m = heap.attach();
        dropper.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// An unattached thread clones and drops while another thread collects.
///
/// Mutations: `drop_foreign` counts on an unattached thread instead of deferring; `defer` sends no
/// request.
#[test]
fn loom_deferred_drop_meets_a_collection() {
    model(|| {
        let (_heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let dropper = thread::spawn(move || {
            drop(theirs.clone());
            drop(theirs);
        });
        drop(object);
        let report = m.try_collect(Collect::full()).unwrap();
        assert_eq!(report.collected, 0);
        dropper.join().unwrap();
        // No safepoint here: a collection drains the list itself.
        assert_eq!(m.try_collect(Collect::full()).unwrap().collected, 0);
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The owner has ended, and another mutator inherits the object. Meanwhile an unattached thread
/// clones and drops.
///
/// Mutation: `inherit` moves the shared half by a store (`src/object/header.rs`).
#[test]
fn loom_an_heir_meets_unattached_threads() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        drop(m);
        let mut m = heap.attach();
        let theirs = object.clone();
        let unattached = thread::spawn(move || {
            drop(theirs.clone());
            theirs.touch();
            theirs
        });
        drop(object.clone());
        drop(object);
        let theirs = unattached.join().unwrap();
        m.safepoint();
        theirs.touch();
        drop(theirs);
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The owner ends while a mutator drops references that the owner counted. A third mutator does the
/// same later. So the object is merged by the owner or for it, or is inherited.
///
/// Mutation: `inherit` does not ask the registry whether the owner has ended.
#[test]
fn loom_an_owner_ends_while_mutators_use_its_object() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        let theirs = object.clone();
        let other = {
            let heap = heap.clone();
            thread::spawn(move || {
                let m = heap.attach();
                drop(theirs.clone());
                theirs.touch();
                drop(theirs);
                drop(m);
            })
        };
        drop(m);
        let mut m = heap.attach();
        drop(object);
        m.detach(|| other.join().unwrap());
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The last handle of the heap is dropped, while an unattached thread drops the last references
/// into the heap.
///
/// Mutation: `close` does not check the deferred list.
#[test]
fn loom_deferred_drop_meets_the_end_of_the_heap() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        let core = Arc::downgrade(heap.core());
        let dropper = thread::spawn(move || drop(object));
        drop(m);
        drop(heap);
        dropper.join().unwrap();
        assert_eq!(destroyed.load(Relaxed), 1);
        assert!(core.upgrade().is_none(), "the heap's memory stays");
    });
}

/// A thread upgrades a weak reference while the owner drops the last strong one.
///
/// Mutation: the record is made without the `WEAK` flag (`src/object/header.rs`, `set_weak`).
#[test]
fn loom_weak_handle_meets_the_last_drop() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let weak = Gc::downgrade(&object, &m);
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            if let Some(object) = weak.upgrade(&m) {
                object.touch();
            }
        });
        drop(object);
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The owner drops its reference, and detaches while another thread drops a reference that the
/// owner counted. One of the two merges; the merge does not wait until the owner attaches again.
///
/// The other thread is attached already when the owner begins to detach.
#[test]
fn loom_a_detached_owner_leaves_nothing_undone() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        drop(object);
        let stranger = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.touch();
            drop(theirs);
        });
        m.detach(|| {
            stranger.join().unwrap();
            assert_eq!(
                destroyed.load(Relaxed),
                1,
                "it waits in the queue of a thread that is away"
            );
        });
    });
}

/// A thread drops a reference that the owner counted, and collects. The collection merges the
/// owner's queue in its stop.
#[test]
fn loom_a_collection_merges_the_queues() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let d = Arc::clone(&destroyed);
        let stranger = thread::spawn(move || {
            let mut m = heap.attach();
            theirs.touch();
            drop(theirs);
            let report = m.try_collect(Collect::full()).unwrap();
            assert_eq!(report.collected, 0);
            d.load(Relaxed)
        });
        drop(object);
        // From here on only the collection merges, or the thread itself at a safepoint.
        m.safepoint();
        let seen = m.detach(|| stranger.join().unwrap());
        assert_eq!((seen, destroyed.load(Relaxed)), (1, 1));
    });
}

/// Two unattached threads drop the last references while a mutator passes safepoints. The mutator
/// gets a request each time.
#[test]
fn loom_deferred_drops_meet_a_safepoint() {
    model(|| {
        let (_heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let droppers = [object, theirs].map(|object| thread::spawn(move || drop(object)));
        m.safepoint();
        droppers.into_iter().for_each(|dropper| dropper.join().unwrap());
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// Two unattached threads drop the last two objects of a closed heap.
#[test]
fn loom_last_objects_of_a_closed_heap() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        let d = Arc::clone(&destroyed);
        let other = m.alloc(Value { used: UnsafeCell::new(0), destroyed: d });
        drop(m);
        drop(heap);
        let dropper = thread::spawn(move || drop(other));
        drop(object);
        dropper.join().unwrap();
        assert_eq!(destroyed.load(Relaxed), 2);
    });
}

/// One thread empties a slot and passes safepoints. Another thread attaches and reads the slot.
#[test]
fn loom_a_retired_reference_meets_a_reader() {
    // With fewer preemptions, the reader never reads between two steps of the other thread.
    model_to(3, || {
        let (heap, mut m, object, destroyed) = world();
        // While there is no other thread, one safepoint is enough.
        AtomicGc::from(object).store(&m, None);
        m.safepoint();
        assert_eq!(destroyed.swap(0, Relaxed), 1);
        let object = m.alloc(Value::new(&destroyed));
        let slot = Arc::new(AtomicGc::from(object));
        drop(m);
        let (h, s) = (heap.clone(), Arc::clone(&slot));
        let emptier = thread::spawn(move || {
            let mut m = h.attach();
            s.store(&m, None);
            m.safepoint();
        });
        let m = heap.attach();
        slot.peek(&m).inspect(|value| value.touch());
        drop(m);
        emptier.join().unwrap();
        assert_eq!(heap.attach().try_collect(Collect::full()).unwrap().collected, 0);
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The same, but the reader is attached before. A third thread collects meanwhile.
#[test]
fn loom_a_retired_reference_meets_a_collection() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let slot = Arc::new(AtomicGc::from(object));
        let (h, s) = (heap.clone(), Arc::clone(&slot));
        let reader = thread::spawn(move || {
            let m = h.attach();
            s.peek(&m).inspect(|value| value.touch());
        });
        slot.store(&m, None);
        let report = m.try_collect(Collect::full()).unwrap();
        assert_eq!(report.collected, 0);
        m.detach(|| reader.join().unwrap());
        assert_eq!(destroyed.load(Relaxed), 1, "a collection is a safepoint of all threads");
        drop(heap);
    });
}

/// A value that may refer to another object, and to its own object.
struct Node {
    value: Value,
    edge: GcCell<Option<Gc<Node>>>,
}

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.value.touch();
        Trace::traverse(&this.edge, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.edge.set(m, None);
    }
}

/// The same, with a finalizer that does nothing.
struct Finalized(Node);

impl Trace for Finalized {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|_, _| {}));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

/// A heap with an object that refers to itself.
fn cycle() -> (Heap, Mutator, Gc<Node>, Arc<Plain>) {
    let (heap, m, object, destroyed) = world();
    drop(object);
    destroyed.store(0, Relaxed);
    let value = Value::new(&destroyed);
    let cycle = m.alloc(Node { value, edge: GcCell::new(None) });
    cycle.edge.set(&m, Some(cycle.clone()));
    (heap, m, cycle, destroyed)
}

/// A thread drops a reference that the owner counted, of an object that refers to itself. After the
/// merge the object is garbage.
#[test]
fn loom_a_collection_sees_the_merged_count() {
    model(|| {
        let (heap, mut m, object, destroyed) = cycle();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.value.touch();
            drop(theirs);
        });
        m.safepoint();
        drop(object);
        let first = m.try_collect(Collect::full()).unwrap();
        m.detach(|| stranger.join().unwrap());
        let second = m.try_collect(Collect::full()).unwrap();
        assert_eq!((first.collected + second.collected, destroyed.load(Relaxed)), (1, 1));
    });
}

/// A thread upgrades a weak reference to garbage, while a collection finds the garbage, clears the
/// weak references to it, and clears it. Either the upgrade comes first, and the object is not
/// garbage, or the upgrade fails.
#[test]
fn loom_weak_handle_meets_a_collection() {
    model(|| {
        let (heap, mut m, object, destroyed) = cycle();
        let weak = Gc::downgrade(&object, &m);
        drop(object);
        let stranger = thread::spawn(move || {
            let mut m = heap.attach();
            if let Some(object) = weak.upgrade(&m) {
                object.value.touch();
                m.safepoint();
                assert!(object.edge.get(&m).is_some(), "cleared while a thread holds it");
            }
        });
        let first = m.try_collect(Collect::full()).unwrap();
        m.detach(|| stranger.join().unwrap());
        let second = m.try_collect(Collect::full()).unwrap();
        assert_eq!((first.collected + second.collected, destroyed.load(Relaxed)), (1, 1));
    });
}

/// The same, but the garbage has a finalizer. Upgrades succeed until the finalizer has run.
#[test]
fn loom_weak_handle_meets_finalizers() {
    model(|| {
        let (heap, mut m, node, destroyed) = cycle();
        // An object with a finalizer refers to the cycle. The cycle does not refer to it.
        let value = Value::new(&destroyed);
        let edge = GcCell::new(Some(node.clone()));
        let holder = m.alloc(Finalized(Node { value, edge }));
        node.edge.set(&m, None);
        let weak = Gc::downgrade(&node, &m);
        // The two are in a cycle, through a third object.
        let knot =
            m.alloc(Knot { first: GcCell::new(Some(holder.clone())), second: GcCell::new(None) });
        knot.second.set(&m, Some(knot.clone()));
        drop((node, holder, knot));
        let stranger = thread::spawn(move || {
            let mut m = heap.attach();
            let object = weak.upgrade(&m);
            if let Some(object) = &object {
                object.value.touch();
            }
            m.safepoint();
            if let Some(object) = &object {
                object.value.touch();
            }
        });
        let first = m.try_collect(Collect::full()).unwrap();
        m.detach(|| stranger.join().unwrap());
        let second = m.try_collect(Collect::full()).unwrap();
        m.safepoint();
        assert!(first.collected + second.collected <= 3);
        assert_eq!(destroyed.load(Relaxed), 2);
    });
}

/// Closes a cycle through objects of the model above.
struct Knot {
    first: GcCell<Option<Gc<Finalized>>>,
    second: GcCell<Option<Gc<Knot>>>,
}

impl Trace for Knot {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.first, tracer);
        Trace::traverse(&this.second, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.first.set(m, None);
        this.second.set(m, None);
    }
}

/// A thread drops the last reference to the target of a weak reference with a callback, while
/// another thread upgrades the weak reference.
#[test]
fn loom_weak_reference_with_a_callback_meets_the_last_drop() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let called = Arc::new(Plain::new(0));
        let weak = m.alloc_weak(&object, Arc::clone(&called), called_back);
        let theirs = weak.clone();
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            if let Some(object) = theirs.upgrade(&m) {
                object.touch();
            }
        });
        drop(object);
        stranger.join().unwrap();
        m.safepoint();
        drop((weak, m));
        assert_eq!((destroyed.load(Relaxed), called.load(Relaxed)), (1, 1));
    });
}

/// The destruction of a dynamic object begins, as in `destroy_dynamic` and in a dealloc handler,
/// while another thread upgrades a weak reference. The handler increments and decrements the count.
/// An upgrade must not take that for a reference that keeps the object alive.
///
/// Mutations: `upgrade` does not check `DYING`; `mark_dying_for_upgrades` does not take the
/// record's lock.
#[test]
fn loom_upgrade_meets_the_start_of_a_dynamic_destruction() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let object = std::mem::ManuallyDrop::new(Gc::into_any(object));
        let header = object.header();
        // SAFETY: rule *counted*: this thread has a reference.
        let record = m.raw().model().weak.record(unsafe { header.as_ref() });
        let Ok(record) = record else { panic!("no memory") };
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            if let Some(header) = managed::upgrade(m.raw(), &record) {
                // SAFETY: rule *counted*: the upgrade added a reference.
                let object = unsafe { AnyGc::from_header(header) };
                object.downcast::<Value>(&m).unwrap_or_else(|_| unreachable!()).touch();
            }
        });
        let id = m.raw().id();
        // SAFETY: rules *counted* and *zero*: the reference is given up here, once; the thread that
        // gets `Dead` destroys the object.
        unsafe {
            if header.as_ref().drop_ref(id) == Dropped::Dead {
                let state = m.raw().core().state(header.as_ptr() as usize);
                managed::mark_dying_for_upgrades(m.raw(), header.as_ref(), state);
                header.as_ref().clone_ref(id);
                let after = header.as_ref().drop_ref(id);
                assert_eq!(
                    after,
                    Dropped::Dead,
                    "a thread took the handler's count for a reference"
                );
                managed::clear_weak_references(m.raw(), header.as_ref());
                m.raw().model().types.get(0).value(header).cast::<Value>().drop_in_place();
                m.raw().free(header.cast());
            }
        }
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// Counts its calls, and adds 100 for each call that finds its weak reference uncleared.
fn called_back<T: Trace>(weak: &Gc<WeakRef<T, Arc<Plain>>>, m: &Mutator) {
    let weak = &*weak;
    weak.data().fetch_add(if weak.upgrade(m).is_none() { 1 } else { 100 }, Relaxed);
}

/// The same, but a collection finds that the target is garbage.
#[test]
fn loom_weak_reference_with_a_callback_meets_a_collection() {
    model(|| {
        let (heap, mut m, object, destroyed) = cycle();
        let called = Arc::new(Plain::new(0));
        let weak = m.alloc_weak(&object, Arc::clone(&called), called_back);
        let theirs = weak.clone();
        drop(object);
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            if let Some(object) = theirs.upgrade(&m) {
                object.value.touch();
            }
        });
        let first = m.try_collect(Collect::full()).unwrap();
        m.detach(|| stranger.join().unwrap());
        let second = m.try_collect(Collect::full()).unwrap();
        assert_eq!(first.collected + second.collected, 1);
        assert_eq!((destroyed.load(Relaxed), called.load(Relaxed)), (1, 1));
        drop(weak);
    });
}

/// A thread upgrades a weak reference while the owner drops the last strong one on behalf of a
/// thread that is not attached.
///
/// Mutation: `take_last_of_weak` does not look for the record.
#[test]
fn loom_weak_handle_meets_a_deferred_drop() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let weak = Gc::downgrade(&object, &m);
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            if let Some(object) = weak.upgrade(&m) {
                object.touch();
            }
        });
        m.detach(|| drop(object));
        m.safepoint();
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// A weak reference that was made before its target is upgraded, while the owner drops the target.
#[test]
fn loom_weak_handle_from_birth_meets_the_last_drop() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        drop(object);
        destroyed.store(0, Relaxed);
        let mut weak = None;
        let object = Gc::new_cyclic(&m, |this| {
            weak = Some(this.clone());
            Value::new(&destroyed)
        });
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            if let Some(object) = weak.unwrap().upgrade(&m) {
                object.touch();
            }
        });
        drop(object);
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// A value that may refer to several others.
struct Fan {
    value: Value,
    edges: GcCell<Vec<Gc<Fan>>>,
}

impl Trace for Fan {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.value.touch();
        Trace::traverse(&this.edges, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.edges, m);
    }
}

/// Two pieces of work are in the pool when both workers look for one. No piece is left when both
/// have found that there is no more.
///
/// Mutation: a worker that takes a piece hides the other ones.
#[test]
fn loom_two_markers_take_all_pieces_of_work() {
    model(|| {
        let pool = Arc::new(Pool::new());
        pool.joined.store(2, Relaxed);
        for granule in 0..2 {
            assert!(pool.give(Piece::Objects(vec![granule])).is_ok());
        }
        let all = |pool: &Pool| std::iter::from_fn(|| pool.take()).count();
        let theirs = pool.clone();
        let marker = thread::spawn(move || all(&theirs));
        let mine = all(&pool);
        assert_eq!(mine + marker.join().unwrap(), 2);
    });
}

/// Two threads mark together. Both reach one object from different sides, and one thread gives work
/// away. Reachable objects stay alive, and unreachable objects are collected.
///
/// The second thread joins the open job, as a thread of the heap's pool does.
///
#[test]
fn loom_two_markers_claim_one_object() {
    model_to(1, || {
        let stress = Stress::none().small_constants(true);
        let builder = Heap::builder().pacing(Pacing::manual()).stress(stress);
        let heap = builder.workers(2).serial_below(0).build().unwrap();
        let mut m = heap.attach();
        let destroyed = Arc::new(Plain::new(0));
        let fan = |edges: Vec<Gc<Fan>>| {
            m.alloc(Fan { value: Value::new(&destroyed), edges: GcCell::new(edges) })
        };
        let leaf = || fan(Vec::new());
        let middle = [fan(vec![leaf()]), fan(vec![leaf()]), leaf(), leaf(), leaf()];
        let roots = [fan(middle.to_vec()), fan(vec![middle[0].clone(), leaf()])];
        drop(middle);
        let garbage = leaf();
        garbage.edges.set(&m, vec![garbage.clone()]);
        drop(garbage);
        let h = heap.clone();
        let marker = thread::spawn(move || {
            h.core().workers.job_slot().expect("two workers").join(0);
        });
        let report = m.try_collect(Collect::full()).unwrap();
        assert_eq!((report.abandoned, report.workers, report.collected), (None, 2, 1));
        assert_eq!(destroyed.load(Relaxed), 1);
        m.detach(|| marker.join().unwrap());
        for root in &roots {
            root.edges.lock(&m).first().expect("not cleared").value.touch();
        }
        drop(roots);
        assert_eq!(destroyed.load(Relaxed), 11);
    });
}
