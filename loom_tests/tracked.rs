//! The state byte of an object, which unrelated threads change and which a stop reads.
//!
//! # Transitions
//!
//! The page of `state` describes the bits.
//!
//! * tracked late, untracked: `one_of_two_tracks`, `attributes_of_one_byte`
//! * `FINALIZED`, `FROZEN` set and cleared beside that: `attributes_of_one_byte`
//! * tracked and untracked against an enumeration, which ages the objects that it finds:
//!   `tracking_meets_an_enumeration`, `collect::late_tracking_meets_a_young_collection`
//! * old, untracked, tracked late, which makes it young again:
//!   `collect::late_tracking_meets_a_young_collection`
//! * `UNREACHABLE` cleared by the closing of a collection: `survivor_meets_late_tracking`,
//!   `an_exclusive_owner_meets_the_closing`
//! * the same, in a cell that is reused (dying, death, birth): none. loom does not order these
//!   stores after the exchange before them, and reports impossible executions. The exchange is the
//!   one of the row above.
//! * `DYING`, `ALIVE`, `FINALIZER`: only one thread, or a stop, changes them

use std::sync::Arc;

use loom::thread;

use super::model;
use crate::base::sync::{AtomicU8, UnsafeCell};
use crate::object::state::{
    BY_ALLOCATOR, FINALIZED, FROZEN, LIVE, OLD, StateByte, TRACKED, UNREACHABLE, is_candidate,
};
use crate::safepoint::{Coordinator, STOP};

/// One thread tracks late and untracks. Another thread changes other bits of the same byte.
///
/// Mutations: `set` or `unset` is a load and a store; `track` stores the byte that it read.
#[test]
fn loom_attributes_of_one_byte() {
    model(|| {
        let byte = Arc::new(AtomicU8::new(LIVE | OLD | FROZEN));
        let b = Arc::clone(&byte);
        let other = thread::spawn(move || {
            let state = StateByte(&b);
            assert_eq!(state.set(FINALIZED) & FINALIZED, 0);
            assert_ne!(state.unset(FROZEN) & FROZEN, 0);
        });
        let state = StateByte(&byte);
        assert!(state.track() && !state.track());
        assert!(state.untrack() && !state.untrack());
        assert!(state.track());
        other.join().unwrap();
        assert_eq!(state.get(), LIVE | TRACKED | FINALIZED);
    });
}

/// Two threads track, and two untrack. One thread of each pair learns that it made the change.
///
/// Mutations: `track` stores the byte that it read; `untrack` is a load and a store.
#[test]
fn loom_one_of_two_tracks() {
    model(|| {
        let byte = Arc::new(AtomicU8::new(LIVE));
        let changes: [fn(StateByte<'_>) -> bool; 2] =
            [|state| state.track(), |state| state.untrack()];
        for change in changes {
            let b = Arc::clone(&byte);
            let other = thread::spawn(move || change(StateByte(&b)));
            let mine = change(StateByte(&byte));
            assert_ne!(mine, other.join().unwrap(), "both or neither made the change");
        }
        assert_eq!(StateByte(&byte).get(), LIVE);
    });
}

/// The collecting thread counts the survivors of its garbage, while the owner of a survivor
/// untracks it, tracks it again, and freezes it.
#[test]
fn loom_survivor_meets_late_tracking() {
    model(|| {
        let byte = Arc::new(AtomicU8::new(LIVE | TRACKED | UNREACHABLE));
        let b = Arc::clone(&byte);
        let other = thread::spawn(move || {
            let state = StateByte(&b);
            state.set(FROZEN);
            assert!(state.untrack());
            assert!(state.track());
        });
        assert!(StateByte(&byte).survive());
        other.join().unwrap();
        assert_eq!(StateByte(&byte).get() & !OLD, LIVE | TRACKED | FROZEN);
    });
}

/// A thread with the only reference to a survivor changes its byte without a read-modify-write. The
/// closing of the collection that has released the object clears the bit that it had set.
///
/// Mutation: `change_alone` does not check `UNREACHABLE`.
#[test]
fn loom_an_exclusive_owner_meets_the_closing() {
    model(|| {
        let byte = Arc::new(AtomicU8::new(LIVE | TRACKED | UNREACHABLE | BY_ALLOCATOR));
        let b = Arc::clone(&byte);
        let closing = thread::spawn(move || assert!(StateByte(&b).survive()));
        assert_ne!(StateByte(&byte).change_alone(0, BY_ALLOCATOR) & BY_ALLOCATOR, 0);
        closing.join().unwrap();
        assert_eq!(StateByte(&byte).get(), LIVE | TRACKED | OLD);
    });
}

/// An object with a value that only the stop protects.
struct Object {
    state: AtomicU8,
    value: UnsafeCell<usize>,
}

impl Object {
    /// Changes the value, as an attached thread does.
    fn write(&self) {
        // SAFETY: see `World`.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }
}

struct World {
    coordinator: Arc<Coordinator>,
    objects: [Object; 2],
}

// SAFETY: this is the claim under test: an attached thread writes a value, and the stop reads the
// values of the tracked objects. loom checks each access.
unsafe impl Sync for World {}
// SAFETY: it belongs to no thread.
unsafe impl Send for World {}

/// A thread tracks one object late, untracks another, and changes both. A collector enumerates them
/// in its stop, reads the members, and ages them.
///
/// All accesses to the bits are relaxed: the stop orders them.
///
/// Mutations, here: the enumeration is not in the stop. In `src/safepoint/`: a parked thread does
/// not wait (`step_in`); the requester does not wait for it (`await_arrivals`).
#[test]
fn loom_tracking_meets_an_enumeration() {
    model(|| {
        let world = Arc::new(World {
            coordinator: Coordinator::new(),
            objects: [LIVE, LIVE | TRACKED]
                .map(|state| Object { state: AtomicU8::new(state), value: UnsafeCell::new(0) }),
        });
        let me = world.coordinator.register(());
        me.attach().unwrap();
        let w = Arc::clone(&world);
        let collector = thread::spawn(move || {
            let me = w.coordinator.register(());
            me.attach().unwrap();
            let stopped = me.stop().unwrap();
            for object in &w.objects {
                let state = StateByte(&object.state);
                if is_candidate(state.get()) {
                    // SAFETY: see `World`.
                    assert_eq!(
                        object.value.with(|value| unsafe { *value }) % 2,
                        0,
                        "a half-made change"
                    );
                    state.set(OLD);
                }
            }
            drop(stopped);
        });
        let [late, early] = &world.objects;
        late.write();
        assert!(StateByte(&late.state).track());
        late.write();
        if me.poll() & STOP != 0 {
            me.park();
        }
        early.write();
        assert!(StateByte(&early.state).untrack());
        early.write();
        drop(me);
        collector.join().unwrap();
        let state = |object: &Object| StateByte(&object.state).get() & !OLD;
        assert_eq!([state(late), state(early)], [LIVE | TRACKED, LIVE]);
    });
}
