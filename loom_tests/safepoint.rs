//! The coordinator's handshakes, in every interleaving.
//!
//! The stop protects a plain counter. Attached threads and requesters write it without any
//! synchronisation. loom reports two accesses at once, and an access that does not see an earlier
//! one. A lost wake-up shows as a deadlock.
//!
//! # Transitions
//!
//! The page of `safepoint` describes the states, and `docs/safepoints.md` names the steps.
//!
//! * detached to attached: Enter, LookIn: `stop_meets_attach`, `poke_meets_attach`,
//!   `a_list_of_the_attached_meets_attach`, `a_stop_without_a_wait_meets_attach`
//! * attached to detached to attached: StepBack, the gate: `stop_meets_attach`, `birth_during_stop`
//! * attached to detached: Leave, LookOut: `stop_meets_detach`, `poke_meets_detach`
//! * attached to detached to attached, by parking: `stop_meets_safepoint`,
//!   `stop_requests_an_attached_thread`, `two_requesters_and_a_parking_thread`
//! * the same, by waiting for another stop: `two_requesters`, `two_requesters_and_a_parking_thread`
//! * no stop to a stop: Raise, Scan: all models that stop
//! * a stop to none: Resume: all models that stop
//! * a leaked stop to none, when its participant ends: `a_leaked_stop_ends_with_its_participant`
//! * owed a run, and no longer: `owed_a_turn`
//! * registered during a stop: `birth_during_stop`
//! * attached, or detached, to ended, during a stop: `exit_during_stop`
//! * detached to suspended to detached: `suspend_meets_attach`, `stop_meets_suspension`
//! * suspended to awaited to detached, for the thread, for the next suspender, for the end:
//!   `suspend_meets_attach`, `two_suspenders_meet_attach`, `suspend_meets_exit`
//! * suspended, or awaited, to ended, by the suspender itself: `own_suspension_meets_exit`
//! * suspended during a stop, from outside and from inside: `stop_meets_suspension`,
//!   `stop_meets_suspension_from_inside`
//! * suspended between Leave and LookOut: `suspension_before_the_acknowledgement`,
//!   `acknowledgement_during_a_suspension`
//! * suspended while it waits for another stop: `suspension_of_a_waiting_requester`
//! * a late LookOut of a guard: `late_acknowledgement`
//! * request bits raised and taken: `a_request_shows_the_writes_before_it`, `poke_meets_attach`,
//!   `poke_meets_detach`
//! * a requester spins before it sleeps: `stop_checks_before_it_sleeps`
//! * orphaned, then ended, or not: `a_thread_ends_before_its_participant`,
//!   `a_thread_ends_attached`, `two_requesters_and_a_thread_that_ends_attached`
//! * past the exit watcher, refused to attach, or detached: `no_attach_past_the_exit_watcher`,
//!   `a_detach_past_the_exit_watcher`
//! * a stop to none, because the requester gives up: `limits`
//! * lost in a fork: none, because loom has no fork. `fork` models the locks that a fork takes.
//!
//! The end of a thread is a step of a model (`end_thread`), which does the work of the exit
//! watcher.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool as Plain, Ordering::Relaxed};

use loom::sync::mpsc;
use loom::thread;

use super::{model, model_to};
use crate::base::sync::{AtomicBool, Ordering, UnsafeCell};
use crate::safepoint::{
    AttachError, Config, Coordinator, Participant, STOP, StopError, Suspend, Suspended, ThreadId,
    end_thread,
};

/// A world of one counter.
pub(super) struct World {
    pub(super) coordinator: Arc<Coordinator>,
    counter: UnsafeCell<usize>,
}

// SAFETY: this is the claim under test: attached threads, requesters in their stop, and suspenders
// touch the counter, never two at once. loom checks each access.
unsafe impl Sync for World {}
// SAFETY: it belongs to no thread.
unsafe impl Send for World {}

impl World {
    pub(super) fn new() -> Arc<Self> {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Arc<Self> {
        Arc::new(Self {
            coordinator: Coordinator::with_config(config),
            counter: UnsafeCell::new(0),
        })
    }

    pub(super) fn attached(&self) -> Participant {
        let me = self.coordinator.register(());
        me.attach().unwrap();
        me
    }

    /// Changes the protected counter.
    pub(super) fn touch(&self) {
        // SAFETY: see `Sync`; nothing refers to the counter outside the closure.
        self.counter.with_mut(|c| unsafe { *c += 1 });
    }

    pub(super) fn touches(&self) -> usize {
        // SAFETY: as in `touch`.
        self.counter.with(|c| unsafe { *c })
    }

    /// The whole life of a requester.
    pub(super) fn stop_once(&self) {
        let me = self.attached();
        let stopped = me.stop().unwrap();
        self.touch();
        drop(stopped);
    }
}

/// Mutations: `step_in` does not wait for the end of the stop; `acknowledge` does not notify.
#[test]
fn loom_stop_meets_safepoint() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let requester = thread::spawn(move || w.stop_once());
        for _ in 0..2 {
            world.touch();
            if me.poll() & STOP != 0 {
                assert!(me.park());
                assert_eq!(me.poll() & STOP, 0, "the only stop is over");
            }
        }
        drop(me);
        requester.join().unwrap();
        assert_eq!(world.touches(), 3);
    });
}

/// Mutations: the step in `attach`, or the load after it, is not `SeqCst`; the release of `stop :=
/// false` in `resume` is relaxed.
#[test]
fn loom_stop_meets_attach() {
    model(|| {
        let world = World::new();
        let me = world.coordinator.register(());
        let w = world.clone();
        let requester = thread::spawn(move || w.stop_once());
        me.attach().unwrap();
        world.touch();
        drop(me);
        requester.join().unwrap();
        assert_eq!(world.touches(), 2);
    });
}

/// Mutations: `stop_alone` does not give up when its scan has found a thread; it does not lower the
/// flag when it gives up.
#[test]
fn loom_a_stop_without_a_wait_meets_attach() {
    // The other thread registers, attaches between the hint and the scan, and is interrupted there.
    model_to(4, || {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let other = thread::spawn(move || {
            let other = w.coordinator.register(());
            other.attach().unwrap();
            w.touch();
            assert!(other.detach());
        });
        let stopped = me.stop_alone();
        let touched = usize::from(stopped.is_some());
        if stopped.is_some() {
            world.touch();
        }
        drop(stopped);
        assert!(me.detach());
        other.join().unwrap();
        me.attach().unwrap();
        assert_eq!(world.touches(), 1 + touched);
    });
}

/// Mutations: the store of `stop`, the swap in `set_state`, or the load in `detach` is not
/// `SeqCst`: the requester waits for ever.
#[test]
fn loom_stop_meets_detach() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let requester = thread::spawn(move || w.stop_once());
        world.touch();
        assert!(me.detach());
        requester.join().unwrap();
        assert_eq!(world.touches(), 2);
    });
}

/// Mutation: `attach` does not load `stop`.
#[test]
fn loom_birth_during_stop() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let stopped = me.stop().unwrap();
        let w = world.clone();
        let newborn = thread::spawn(move || {
            let me = w.attached();
            w.touch();
            drop(me);
        });
        world.touch();
        drop(stopped);
        newborn.join().unwrap();
        assert_eq!(world.touches(), 2);
        assert_eq!(world.coordinator.threads(), 1);
    });
}

/// Mutation: dropping a participant does not acknowledge.
#[test]
fn loom_exit_during_stop() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let requester = thread::spawn(move || w.stop_once());
        world.touch();
        drop(me);
        requester.join().unwrap();
        assert_eq!(world.touches(), 2);
        assert_eq!(world.coordinator.threads(), 0);
    });
}

/// Mutations: the losing requester does not step out while it waits; `resume` does not notify the
/// requesters.
#[test]
fn loom_two_requesters() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let other = thread::spawn(move || w.stop_once());
        let stopped = me.stop().unwrap();
        world.touch();
        drop(stopped);
        assert!(me.detach());
        other.join().unwrap();
        // No requester that has stopped the world is left in the queue.
        me.attach().unwrap();
        let stopped = me.stop().unwrap();
        assert_eq!(world.touches(), 2);
        drop(stopped);
    });
}

/// Mutations: the suspender does not open the gate; the step back to `DETACHED` is relaxed.
#[test]
fn loom_suspend_meets_attach() {
    model(|| {
        let world = World::new();
        let me = world.coordinator.register(());
        let (w, id) = (world.clone(), me.id());
        let suspender = thread::spawn(move || match w.coordinator.suspend(id) {
            Suspend::Suspended(guard) => {
                w.touch();
                drop(guard);
                1
            }
            Suspend::Attached => 0,
            Suspend::Ended => unreachable!("it lives"),
        });
        me.attach().unwrap();
        world.touch();
        let suspended = suspender.join().unwrap();
        assert_eq!(world.touches(), 1 + suspended);
    });
}

/// Mutation: dropping a participant does not wait for the end of a suspension.
#[test]
fn loom_suspend_meets_exit() {
    model(|| {
        let world = World::new();
        let me = world.coordinator.register(());
        let (w, id) = (world.clone(), me.id());
        let suspender = thread::spawn(move || match w.coordinator.suspend(id) {
            Suspend::Suspended(guard) => {
                w.touch();
                drop(guard);
                1
            }
            Suspend::Attached => unreachable!("it never attaches"),
            Suspend::Ended => 0,
        });
        drop(me);
        world.touch();
        let suspended = suspender.join().unwrap();
        assert_eq!(world.touches(), 1 + suspended);
    });
}

/// Mutation: the drop of the guard does not load `stop`.
#[test]
fn loom_stop_meets_suspension() {
    model(|| {
        let world = World::new();
        let suspended = world.coordinator.register(());
        let (w, id) = (world.clone(), suspended.id());
        let suspender = thread::spawn(move || touch_for(&w, id));
        world.stop_once();
        suspender.join().unwrap();
        assert_eq!(world.touches(), 2);
    });
}

fn touch_for(world: &World, id: ThreadId) {
    let Suspend::Suspended(guard) = world.coordinator.suspend(id) else {
        unreachable!("it is detached")
    };
    world.touch();
    drop(guard);
}

/// A thread suspends another thread in the middle of a stop, and ends during the suspension.
///
/// Mutation: `suspend` does not count the suspended thread while a stop is on.
#[test]
fn loom_stop_meets_suspension_from_inside() {
    model(|| {
        let world = World::new();
        let suspended = world.coordinator.register(());
        let (w, id) = (world.clone(), suspended.id());
        let suspender = thread::spawn(move || {
            let me = w.attached();
            let Suspend::Suspended(guard) = w.coordinator.suspend(id) else {
                unreachable!("it is detached")
            };
            drop(me);
            w.touch();
            drop(guard);
        });
        world.stop_once();
        suspender.join().unwrap();
        assert_eq!(world.touches(), 2);
    });
}

/// A thread that a stop waits for has left, and has not acknowledged yet, when an attached thread
/// suspends it. The stop waits for one acknowledgement, not for two.
///
/// Mutation: `count` counts a counted thread again: the requester waits for ever.
#[test]
fn loom_suspension_before_the_acknowledgement() {
    suspend_an_ending_thread(|world, guard, me| {
        world.touch();
        drop(guard);
        drop(me);
    });
}

/// The same, and the suspender ends during the suspension. The stop waits for the end of the
/// suspension, also after the first acknowledgement.
///
/// Mutation: `detached_in_a_stop` acknowledges although the record is suspended by then.
#[test]
fn loom_acknowledgement_during_a_suspension() {
    suspend_an_ending_thread(|world, guard, me| {
        drop(me);
        world.touch();
        drop(guard);
    });
}

/// One thread detaches, another stops the world, and this thread suspends the first and then calls
/// `act`.
fn suspend_an_ending_thread(act: fn(&World, Suspended<'_, ()>, Participant)) {
    // With fewer preemptions, the acknowledgement never comes during the suspension.
    model_to(4, move || {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        // The id comes through a channel, so that this thread waits while the others run.
        let (send, receive) = mpsc::channel();
        let leaver = thread::spawn(move || {
            let me = w.attached();
            send.send(me.id()).unwrap();
            let requester = thread::spawn({
                let w = w.clone();
                move || w.stop_once()
            });
            w.touch();
            assert!(me.detach());
            requester.join().unwrap();
        });
        let suspended = match world.coordinator.suspend(receive.recv().unwrap()) {
            Suspend::Suspended(guard) => {
                act(&world, guard, me);
                1
            }
            Suspend::Attached | Suspend::Ended => {
                drop(me);
                0
            }
        };
        leaver.join().unwrap();
        assert_eq!(world.touches(), 2 + suspended);
    });
}

/// A suspender is slow to acknowledge the stop that it has read. Meanwhile that stop ends, the
/// suspended thread attaches, and a second stop waits for it.
///
/// Mutation: the drop of the guard acknowledges in every state.
#[test]
fn loom_late_acknowledgement() {
    // Below four preemptions the acknowledgement is never late enough.
    model_to(4, || {
        let world = World::new();
        let first = world.coordinator.register(());
        let suspended = world.coordinator.register(());
        let id = suspended.id();
        let w = world.clone();
        let suspender = thread::spawn(move || drop(w.coordinator.suspend(id)));
        first.attach().unwrap();
        drop(first.stop().unwrap());
        drop(first);
        suspended.attach().unwrap();
        let w = world.clone();
        let second = thread::spawn(move || w.stop_once());
        world.touch();
        drop(suspended);
        second.join().unwrap();
        suspender.join().unwrap();
        assert_eq!(world.touches(), 2);
    });
}

/// Mutation: the loads of the states are not `SeqCst`.
#[test]
fn loom_poke_meets_attach() {
    model(|| {
        let coordinator = Coordinator::new();
        let asked = Arc::new(AtomicBool::new(false));
        let me = coordinator.register(());
        let (c, a) = (coordinator.clone(), asked.clone());
        let poker = thread::spawn(move || {
            a.store(true, Ordering::SeqCst);
            c.poke_attached(2);
        });
        me.attach().unwrap();
        let seen = asked.load(Ordering::SeqCst);
        poker.join().unwrap();
        assert!(seen || me.take_requests(!0) == 2, "a request was lost");
    });
}

/// A thread that one stop has kept waiting runs before the next stop.
///
/// Mutation: `may_stop` does not check `owed`.
#[test]
fn loom_owed_a_turn() {
    model(|| {
        let world = World::new();
        // Knowledge of the test, not a part of the algorithm.
        let progress = Arc::new([Plain::new(false), Plain::new(false)]);
        let me = world.attached();
        let (w, p) = (world.clone(), progress.clone());
        let requester = thread::spawn(move || {
            let me = w.attached();
            let stopped = me.stop().unwrap();
            let was_parked = p[0].load(Relaxed);
            drop(stopped);
            let stopped = me.stop().unwrap();
            assert!(
                !was_parked || p[1].load(Relaxed),
                "stopped twice and did not run between the stops"
            );
            drop(stopped);
        });
        if me.poll() & STOP != 0 {
            progress[0].store(true, Relaxed);
            me.park();
            progress[1].store(true, Relaxed);
        }
        drop(me);
        requester.join().unwrap();
    });
}

/// A thread that takes a request sees the writes made before the request was raised.
#[test]
fn loom_a_request_shows_the_writes_before_it() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let (w, id) = (world.clone(), me.id());
        let poker = thread::spawn(move || {
            w.touch();
            assert!(w.coordinator.poke(id, 2));
        });
        let taken = me.take_requests(!0);
        if taken != 0 {
            assert_eq!((taken, world.touches()), (2, 1));
        }
        poker.join().unwrap();
        assert_eq!(taken | me.take_requests(!0), 2);
        assert_eq!(world.touches(), 1);
    });
}

/// A request is raised while its thread detaches. Either the thread reads the request, or the other
/// thread can suspend it.
#[test]
fn loom_poke_meets_detach() {
    model(|| {
        let coordinator = Coordinator::<()>::new();
        let me = coordinator.register(());
        me.attach().unwrap();
        let (c, id) = (coordinator.clone(), me.id());
        let poker = thread::spawn(move || {
            assert!(c.poke(id, 2));
            matches!(c.suspend(id), Suspend::Suspended(_))
        });
        let seen = me.detach_and_poll().expect("it can") != 0;
        assert!(poker.join().unwrap() || seen, "no thread answers the request");
    });
}

/// One thread stores a flag and then reads the attached threads. Another thread attaches and then
/// loads the flag. At least one sees the other.
#[test]
fn loom_a_list_of_the_attached_meets_attach() {
    model(|| {
        let coordinator = Coordinator::<()>::new();
        let asked = Arc::new(AtomicBool::new(false));
        let me = coordinator.register(());
        let (c, a) = (coordinator.clone(), asked.clone());
        let looker = thread::spawn(move || {
            a.store(true, Ordering::SeqCst);
            let mut found = 0;
            c.attached(|_, ()| found += 1);
            found
        });
        me.attach().unwrap();
        let seen = asked.load(Ordering::SeqCst);
        assert!(looker.join().unwrap() == 1 || seen, "neither saw the other");
    });
}

/// A participant with a leaked stop ends: the world resumes.
#[test]
fn loom_a_leaked_stop_ends_with_its_participant() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        std::mem::forget(me.stop().unwrap());
        world.touch();
        let w = world.clone();
        let other = thread::spawn(move || {
            let me = w.attached();
            w.touch();
            drop(me);
        });
        drop(me);
        other.join().unwrap();
        assert_eq!(world.touches(), 2);
    });
}

/// A third thread works while two threads stop the world.
#[test]
fn loom_two_requesters_and_a_parking_thread() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let requesters = [(); 2].map(|()| {
            let w = world.clone();
            thread::spawn(move || w.stop_once())
        });
        for _ in 0..2 {
            world.touch();
            if me.poll() & STOP != 0 {
                assert!(me.park());
            }
        }
        drop(me);
        requesters.into_iter().for_each(|requester| requester.join().unwrap());
        assert_eq!(world.touches(), 4);
    });
}

/// Two threads suspend the same third thread, which attaches. The suspensions come one after the
/// other, or not at all.
#[test]
fn loom_two_suspenders_meet_attach() {
    model(|| {
        let world = World::new();
        let me = world.coordinator.register(());
        let suspenders = [(); 2].map(|()| {
            let (w, id) = (world.clone(), me.id());
            thread::spawn(move || match w.coordinator.suspend(id) {
                Suspend::Suspended(guard) => {
                    w.touch();
                    drop(guard);
                    1
                }
                Suspend::Attached => 0,
                Suspend::Ended => unreachable!("it lives"),
            })
        });
        me.attach().unwrap();
        world.touch();
        let suspended: usize =
            suspenders.into_iter().map(|suspender| suspender.join().unwrap()).sum();
        assert_eq!(world.touches(), 1 + suspended);
    });
}

/// A requester that waits detached for another stop is suspended. It begins its stop when both are
/// over.
#[test]
fn loom_suspension_of_a_waiting_requester() {
    model(|| {
        let world = World::new();
        let waiting = world.coordinator.register(());
        let id = waiting.id();
        let w = world.clone();
        let suspender = thread::spawn(move || match w.coordinator.suspend(id) {
            Suspend::Suspended(guard) => {
                w.touch();
                drop(guard);
                1
            }
            Suspend::Attached | Suspend::Ended => 0,
        });
        let w = world.clone();
        let first = thread::spawn(move || w.stop_once());
        waiting.attach().unwrap();
        let stopped = waiting.stop().unwrap();
        world.touch();
        drop(stopped);
        drop(waiting);
        first.join().unwrap();
        let suspended = suspender.join().unwrap();
        assert_eq!(world.touches(), 2 + suspended);
    });
}

/// A thread works until its poll word is set. The stop sets the poll word.
#[test]
fn loom_stop_requests_an_attached_thread() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let requester = thread::spawn(move || w.stop_once());
        world.touch();
        while me.poll() & STOP == 0 {
            thread::yield_now();
        }
        assert!(me.park());
        requester.join().unwrap();
        assert_eq!(world.touches(), 2);
    });
}

/// A participant ends while its own thread keeps it suspended, and another thread waits to suspend
/// it.
#[test]
fn loom_own_suspension_meets_exit() {
    model(|| {
        let world = World::new();
        let me = world.coordinator.register(());
        let Suspend::Suspended(guard) = world.coordinator.suspend(me.id()) else {
            unreachable!("it is detached")
        };
        let (w, id) = (world.clone(), me.id());
        let other =
            thread::spawn(move || assert!(matches!(w.coordinator.suspend(id), Suspend::Ended)));
        drop(me);
        drop(guard);
        other.join().unwrap();
    });
}

/// The requester reads, without the lock, that all threads have arrived. It takes the lock all the
/// same.
///
/// Mutation: it relies on the 0 that it has read without the lock.
#[test]
fn loom_stop_checks_before_it_sleeps() {
    model(|| {
        let world = World::with(Config { spin: 1, ..Config::default() });
        let me = world.attached();
        let w = world.clone();
        let requester = thread::spawn(move || w.stop_once());
        world.touch();
        if me.poll() & STOP != 0 {
            assert!(me.park());
            world.touch();
        } else {
            assert!(me.detach());
        }
        drop(me);
        requester.join().unwrap();
        assert!(matches!(world.touches(), 2 | 3));
    });
}

/// A thread ends attached. A later destructor drops its participant. A stop waits for that, or
/// fails. The next stop succeeds.
///
/// Mutation: the drop of such a participant does not lower the number of orphans.
#[test]
fn loom_a_thread_ends_before_its_participant() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let ending = thread::spawn(move || {
            let me = w.attached();
            end_thread();
            w.touch();
            drop(me);
        });
        let stopped = try_to_stop(&world, &me);
        assert!(me.detach());
        ending.join().unwrap();
        me.attach().unwrap();
        assert!(try_to_stop(&world, &me), "no other thread is left");
        assert_eq!(world.touches(), 2 + usize::from(stopped));
    });
}

/// Stops the world. `false`: a thread has ended attached.
fn try_to_stop(world: &World, me: &Participant) -> bool {
    match me.stop() {
        Ok(stopped) => {
            world.touch();
            drop(stopped);
            true
        }
        Err(StopError::ThreadGone { .. }) => false,
        Err(error) => unreachable!("{error}"),
    }
}

/// A thread ends, and its participant stays attached for ever. A stop fails, also a stop that waits
/// already.
///
/// Mutations: the exit watcher does not record the orphan; it does not wake the requester.
#[test]
fn loom_a_thread_ends_attached() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let ending = thread::spawn(move || {
            let me = w.attached();
            w.touch();
            std::mem::forget(me);
            end_thread();
        });
        let stopped = try_to_stop(&world, &me);
        assert!(me.detach());
        ending.join().unwrap();
        me.attach().unwrap();
        assert!(matches!(me.stop(), Err(StopError::ThreadGone { .. })));
        assert_eq!(world.touches(), 1 + usize::from(stopped));
    });
}

/// The same, with two requesters: both stops fail.
#[test]
fn loom_two_requesters_and_a_thread_that_ends_attached() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let ending = thread::spawn(move || {
            std::mem::forget(w.attached());
            end_thread();
        });
        let w = world.clone();
        let other = thread::spawn(move || {
            let me = w.attached();
            usize::from(try_to_stop(&w, &me))
        });
        let stopped = usize::from(try_to_stop(&world, &me));
        assert!(me.detach());
        ending.join().unwrap();
        assert_eq!(world.touches(), stopped + other.join().unwrap());
    });
}

/// After its exit watcher has run, a thread cannot attach, because its end would not be noticed.
///
/// Mutation: the watcher does not record that the thread ends.
#[test]
fn loom_no_attach_past_the_exit_watcher() {
    model(|| {
        let world = World::new();
        let w = world.clone();
        let ending = thread::spawn(move || {
            let older = w.coordinator.register(());
            end_thread();
            assert_eq!(older.attach(), Err(AttachError::ThreadEnding));
            let newer = w.coordinator.register(());
            assert_eq!(newer.attach(), Err(AttachError::ThreadEnding));
            std::mem::forget(newer);
        });
        world.stop_once();
        ending.join().unwrap();
        world.stop_once();
        assert_eq!(world.touches(), 2);
    });
}

/// A thread detaches after its exit watcher has run, and cannot attach again. From then on stops
/// succeed.
///
/// Mutation: a stop fails for an orphan although it is detached.
#[test]
fn loom_a_detach_past_the_exit_watcher() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let ending = thread::spawn(move || {
            let me = w.attached();
            end_thread();
            w.touch();
            assert!(me.detach());
            assert_eq!(me.attach(), Err(AttachError::ThreadEnding));
            std::mem::forget(me);
        });
        let stopped = try_to_stop(&world, &me);
        assert!(me.detach());
        ending.join().unwrap();
        me.attach().unwrap();
        assert!(try_to_stop(&world, &me), "no other thread is attached");
        assert_eq!(world.touches(), 2 + usize::from(stopped));
    });
}
