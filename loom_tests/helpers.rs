//! Jobs of a collection, and the parked threads that join them.
//!
//! * no job, open, closing, no job, while a thread joins:
//!   [`loom_a_job_is_called_only_while_it_is_published`]
//! * the same, while the thread joins repeatedly during two jobs:
//!   [`loom_a_late_thread_works_on_the_open_job`]
//! * parked, helping, at the gate, while one stop ends and another begins:
//!   [`loom_the_work_of_a_parked_thread_meets_one_stop`]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::thread;

use super::{model, model_to};
use crate::heap::helpers::JobSlot;
use crate::safepoint::Coordinator;

/// The places that a job writes: one for each of its threads.
struct Places([UnsafeCell<usize>; 2]);

// SAFETY: loom checks each access.
unsafe impl Sync for Places {}
// SAFETY: as above.
unsafe impl Send for Places {}

impl Places {
    fn new() -> Self {
        Self([(); 2].map(|()| UnsafeCell::new(0)))
    }

    fn write(&self, index: usize, value: usize) {
        // SAFETY: loom checks that no other thread accesses it.
        self.0[index].with_mut(|place| unsafe { *place += value });
    }

    fn read(&self, index: usize) -> usize {
        // SAFETY: as above.
        self.0[index].with(|place| unsafe { *place })
    }
}

/// When `run_on` has returned, the closure and its borrows are gone, and the writes of the other
/// threads are visible.
#[test]
fn loom_a_job_is_called_only_while_it_is_published() {
    model(|| {
        let slot = Arc::new(JobSlot::new());
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.join(7))
        };
        // On this frame, and destroyed before the other thread is joined: loom detects a later use.
        let places = Places::new();
        slot.run_on(
            2,
            3,
            &|worker| {
                assert_eq!(worker.arena, if worker.index == 0 { 3 } else { 7 });
                places.write(worker.index, 1);
            },
            || (),
        );
        assert_eq!(places.read(0), 1);
        let joined = places.read(1);
        drop(places);
        assert_eq!(other.join().unwrap(), joined == 1);
    });
}

/// A thread that joins twice may work on either job, on both, twice on one, or on none. It never
/// works on a finished job.
#[test]
fn loom_a_late_thread_works_on_the_open_job() {
    model(|| {
        let slot = Arc::new(JobSlot::new());
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || usize::from(slot.join(0)) + usize::from(slot.join(0)))
        };
        let mut came = 0;
        for job in 1..=2 {
            let places = Places::new();
            slot.run_on(2, 0, &|worker| places.write(worker.index, job), || ());
            assert_eq!(places.read(0), job);
            came += places.read(1) / job;
        }
        assert_eq!(other.join().unwrap(), came);
    });
}

/// The work of a parked thread begins and ends in the stop that the thread is parked for.
#[test]
fn loom_the_work_of_a_parked_thread_meets_one_stop() {
    model_to(6, || {
        let coordinator = Coordinator::<()>::new();
        let stops = Arc::new(Mutex::new(0)); // which is complete
        let other = {
            let (coordinator, stops) = (Arc::clone(&coordinator), Arc::clone(&stops));
            thread::spawn(move || {
                let me = coordinator.register(());
                me.attach().unwrap();
                me.park_and(|_| {
                    assert_eq!(crate::safepoint::current(), 0);
                    let seen = [(); 2].map(|()| *stops.lock().unwrap());
                    assert_ne!(seen, [1, 2], "another stop");
                });
            })
        };
        let me = coordinator.register(());
        me.attach().unwrap();
        for stop in 1..=2 {
            let world = me.stop().unwrap();
            *stops.lock().unwrap() = stop;
            *stops.lock().unwrap() = 0;
            drop(world);
        }
        drop(me);
        other.join().unwrap();
    });
}
