//! The built-in model, whole: handles of the typed face are dropped by their owner, by strangers, by threads
//! that are not attached, and after the heap.
//!
//! Here everything around the count is the real thing: queues, requests, suspension, the deferred list, the
//! end of a mutator, and of the heap. The value of each object is a loom `UnsafeCell` that its users read and
//! its destructor writes: loom fails a model in which a use is not ordered before the destruction.
//!
//! The type registry is a dashmap, which loom does not see: the first thread registers the one type before
//! there is another. `Arc`s are std's: their counts are exact, but loom tries no other order around them.
//!
//! Each model names the mutation of `src/managed.rs` (or of the file it names) that makes it fail; each was
//! tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed};

use loom::thread;

use crate::sync::UnsafeCell;
use crate::{Collect, Gc, Heap, Mutator, Pacing, Trace, Tracer};

/// Explores `f`, which has more branches than loom expects of a model.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 20_000;
    builder.check(f);
}

/// A value whose uses happen before its destruction.
struct Value {
    used: UnsafeCell<usize>,
    destroyed: Arc<Plain>,
}

// SAFETY: this is the claim under test: uses only read, and the destruction comes after them all.
unsafe impl Sync for Value {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Value {}

impl Value {
    fn touch(&self) {
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
    fn traverse(&self, _: &mut Tracer) {
        self.touch();
    }
}

/// A heap, and one object in it.
fn world() -> (Heap, Mutator, Gc<Value>, Arc<Plain>) {
    let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
    let m = heap.attach();
    let destroyed = Arc::new(Plain::new(0));
    let object = m.alloc(Value { used: UnsafeCell::new(0), destroyed: Arc::clone(&destroyed) });
    (heap, m, object, destroyed)
}

/// A stranger drops a reference that the owner counted, and the owner its own.
///
/// Mutations: `enqueue` does not ask the owner, or merges for it without suspending it; `answer` does not merge.
#[test]
fn loom_stranger_drops_what_the_owner_counted() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            theirs.get(&m).touch();
            drop(theirs);
        });
        object.get(&m).touch();
        drop(object);
        m.safepoint();
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The same while the owner ends: it merges what it finds in its queue, or the stranger finds it closed.
///
/// Mutations: `ending` closes the queue without looking; `enqueue` takes a closed queue for an open one.
#[test]
fn loom_owner_ends_before_a_stranger_drops() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            theirs.get(&m).touch();
            drop(theirs);
        });
        drop(object);
        drop(m);
        stranger.join().unwrap();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The same while the owner is detached, and counts as a stranger itself.
///
/// Mutations: an unattached drop counts, instead of being deferred (`drop_foreign`); an attach does not look at
/// what was deferred.
#[test]
fn loom_stranger_merges_while_the_owner_is_detached() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            theirs.get(&m).touch();
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

/// A thread that is not attached drops the last reference, while another attaches: it drains, or is asked to.
///
/// Mutations: `defer` pokes nobody; an attach does not look at the list; no fence in `poke_attached`
/// (`safepoint.rs`).
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

/// A thread that is not attached clones and drops while another collects.
///
/// Mutations: `drop_foreign` counts on an unattached thread, instead of deferring; `defer` pokes nobody.
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
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The last handle of the heap goes while an unattached thread drops the last references into it.
///
/// Mutation: `close` does not look at the deferred list.
#[test]
fn loom_deferred_drop_meets_the_end_of_the_heap() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        let dropper = thread::spawn(move || drop(object));
        drop(m);
        drop(heap);
        dropper.join().unwrap();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// A stranger upgrades a weak reference while the owner drops the last strong one.
///
/// Mutation: the record is made without the `WEAK` flag (`src/header.rs`, `set_weak`).
#[test]
fn loom_weak_handle_meets_the_last_drop() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let weak = Gc::downgrade(&object, &m);
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            if let Some(object) = weak.upgrade(&m) {
                object.get(&m).touch();
            }
        });
        drop(object);
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}
