//! The state byte of an object: changed by threads that know nothing of one another, read in a stop.
//!
//! # Transitions
//!
//! The bits are those of `tracked`'s page.
//!
//! | transition | models |
//! |---|---|
//! | tracked late, untracked | `one_of_two_tracks`, `attributes_of_one_byte` |
//! | `FINALIZED`, `FROZEN` set and cleared beside that | `attributes_of_one_byte` |
//! | tracked and untracked against an enumeration, which ages what it finds | `tracking_meets_an_enumeration`, `collect::late_tracking_meets_a_young_collection` |
//! | old, untracked, tracked late: young again | `collect::late_tracking_meets_a_young_collection` |
//! | `UNREACHABLE` cleared by the tally, of who is still there | `survivor_meets_late_tracking`, `who_is_alone_meets_the_tally` |
//! | the same, of a cell that is in use again: dying, death, birth | none: loom does not order these stores against the exchange before them, and shows what cannot be; the exchange is that of the row above |
//! | `DYING`, `ALIVE`, `FINALIZER` | one thread's, or a stop's: nothing to interleave |

use std::sync::Arc;

use loom::thread;

use super::model;
use crate::base::sync::{AtomicU8, UnsafeCell};
use crate::object::state::{
    BY_ALLOCATOR, FINALIZED, FROZEN, LIVE, OLD, StateByte, TRACKED, UNREACHABLE, is_candidate,
};
use crate::safepoint::{Coordinator, STOP};

/// One thread tracks late and untracks, another changes other bits of the same byte.
///
/// Mutations: `set` or `unset` is a load and a store; `track` stores what it read.
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

/// Two threads track, and two untrack: one of each is told that it did it.
///
/// Mutations: `track` stores what it read; `untrack` is a load and a store.
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

/// The collecting thread looks which of its garbage is still there, while somebody who has some of it untracks it, tracks
/// it again, and freezes it.
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

/// Who has the only reference to a survivor changes its byte as if alone, while the tally, which has let go of it, clears what it had set.
///
/// Mutation: `change_alone` does not ask for `UNREACHABLE`.
#[test]
fn loom_who_is_alone_meets_the_tally() {
    model(|| {
        let byte = Arc::new(AtomicU8::new(LIVE | TRACKED | UNREACHABLE | BY_ALLOCATOR));
        let b = Arc::clone(&byte);
        let tally = thread::spawn(move || assert!(StateByte(&b).survive()));
        assert_ne!(StateByte(&byte).change_alone(0, BY_ALLOCATOR) & BY_ALLOCATOR, 0);
        tally.join().unwrap();
        assert_eq!(StateByte(&byte).get(), LIVE | TRACKED | OLD);
    });
}

/// An object of which the stop alone protects the value.
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

// SAFETY: this is the claim under test: a value is written by its attached thread, and read in a stop by who
// finds the object tracked. loom checks each access.
unsafe impl Sync for World {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for World {}

/// A thread tracks one object late and untracks another, and changes both, while a collector enumerates them
/// in its stop, reads those that are members, and ages them.
///
/// Everything about the bits is relaxed: the stop orders it.
///
/// Mutations, here: the enumeration is not in the stop. In `src/safepoint/mod.rs`: a parked thread does not wait
/// (`step_in`), the requester does not wait for it (`await_arrivals`).
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
