//! The coordinator's handshakes, every interleaving of them.
//!
//! What the stop protects is a plain counter, written by attached threads and by requesters, without
//! any synchronisation of its own: loom reports it when two of them touch it at once, or one does
//! not see what the other did. A wake-up that is lost shows as a deadlock.
//!
//! # Transitions
//!
//! The states are those of `safepoint`'s page, the names of the steps those of `docs/safepoints.md`.
//!
//! | transition | models |
//! |---|---|
//! | detached to attached: Enter, LookIn | `stop_meets_attach`, `poke_meets_attach`, `a_look_at_the_attached_meets_attach` |
//! | attached to detached to attached: StepBack, the gate | `stop_meets_attach`, `birth_during_stop` |
//! | attached to detached: Leave, LookOut | `stop_meets_detach`, `poke_meets_detach` |
//! | attached to detached to attached: parking | `stop_meets_safepoint`, `stop_asks_who_is_attached`, `two_requesters_and_one_who_parks` |
//! | the same: waiting for one's turn | `two_requesters`, `two_requesters_and_one_who_parks` |
//! | no stop to a stop: Raise, Scan | all that stop |
//! | a stop to none: Resume; by the end of a participant that has leaked it | all that stop; `a_leaked_stop_ends_with_its_participant` |
//! | owed a turn, and no longer | `owed_a_turn` |
//! | birth: during a stop | `birth_during_stop` |
//! | attached, or detached, to ended: during a stop | `exit_during_stop` |
//! | detached to suspended to detached | `suspend_meets_attach`, `stop_meets_suspension` |
//! | suspended to awaited to detached: for its thread, the next suspender, its end | `suspend_meets_attach`, `two_suspenders_meet_attach`, `suspend_meets_exit` |
//! | suspended, or awaited, to ended: by the suspender itself | `own_suspension_meets_exit` |
//! | suspended during a stop, from outside and from inside | `stop_meets_suspension`, `stop_meets_suspension_from_inside` |
//! | suspended between Leave and LookOut | `suspension_before_the_acknowledgement`, `acknowledgement_during_a_suspension` |
//! | suspended while it waits for its turn | `suspension_of_one_who_waits_for_its_turn` |
//! | a guard's LookOut that comes late | `late_acknowledgement` |
//! | request bits raised and taken | `a_request_carries_what_was_written`, `poke_meets_attach`, `poke_meets_detach` |
//! | a requester looks before it sleeps | `stop_looks_before_it_sleeps` |
//! | orphaned, and ended; orphaned for ever | `a_thread_ends_before_its_participant`, `a_thread_ends_attached`, `two_requesters_and_one_who_ends_attached` |
//! | past the exit watcher: refused to attach; detached | `no_attach_past_the_exit_watcher`, `a_detach_past_the_exit_watcher` |
//! | lost in a fork | none: loom has no fork; the locks that a fork takes: `fork` |
//!
//! The end of a thread is a step of the model (`end_thread`): it does what the exit watcher does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool as Plain, Ordering::Relaxed};

use loom::sync::mpsc;
use loom::thread;

use super::{Model, model};
use crate::base::sync::{AtomicBool, Ordering, UnsafeCell};
use crate::safepoint::{
    AttachError, Config, Coordinator, Participant, STOP, StopError, Suspend, Suspended, ThreadId,
    end_thread,
};

/// A world of one counter.
struct World {
    coordinator: Arc<Coordinator>,
    counter: UnsafeCell<usize>,
}

// SAFETY: this is the claim under test: the counter is touched by attached threads, by requesters in
// their stop, and by suspenders, never by two at once. loom checks each access.
unsafe impl Sync for World {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Arc<Self> {
        Arc::new(Self {
            coordinator: Coordinator::with_config(config),
            counter: UnsafeCell::new(0),
        })
    }

    fn attached(&self) -> Participant {
        let me = self.coordinator.register(());
        me.attach().unwrap();
        me
    }

    /// Changes what the stop protects.
    fn touch(&self) {
        // SAFETY: see `Sync`; nothing refers to the counter outside the closure.
        self.counter.with_mut(|c| unsafe { *c += 1 });
    }

    fn touches(&self) -> usize {
        // SAFETY: as in `touch`.
        self.counter.with(|c| unsafe { *c })
    }

    /// A whole life of a requester.
    fn stop_once(&self) {
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

/// Mutations: the step in `attach`, or the look after it, not `SeqCst`; the release of `stop := false` in `end` relaxed.
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

/// Mutations: raising `stop`, the swap in `set_state`, or the look in `detach` not `SeqCst`: the requester waits for ever.
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

/// Mutation: `attach` does not look at `stop`.
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

/// Mutations: the loser does not step out while it waits; `end` does not call the queue.
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
        // Nobody is left in the queue who has had his turn.
        me.attach().unwrap();
        let stopped = me.stop().unwrap();
        assert_eq!(world.touches(), 2);
        drop(stopped);
    });
}

/// Mutations: the suspender does not open the gate; the step back to `DETACHED` relaxed.
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

/// Mutation: the guard's drop does not look at `stop`.
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

/// A thread that suspends another in the middle of a stop, and ends while it does.
///
/// Mutation: `suspend` does not count the suspended thread when a stop is on.
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

/// A thread that a stop waits for has left and not said so yet, when an attached thread suspends it: the stop
/// waits for it once, and not past the one acknowledgement that comes.
///
/// Mutation: `count` counts who is counted already: the requester waits for ever.
#[test]
fn loom_suspension_before_the_acknowledgement() {
    suspend_a_leaver(|world, guard, me| {
        world.touch();
        drop(guard);
        drop(me);
    });
}

/// The same, and the suspender ends while it acts for the other: the stop waits for the suspension, whoever
/// acknowledged before.
///
/// Mutation: `detached_in_a_stop` acknowledges although the record is suspended by then.
#[test]
fn loom_acknowledgement_during_a_suspension() {
    suspend_a_leaver(|world, guard, me| {
        drop(me);
        world.touch();
        drop(guard);
    });
}

/// Has one thread detach, another stop the world, and this one suspend the first, and then `act`.
fn suspend_a_leaver(act: fn(&World, Suspended<'_, ()>, Participant)) {
    // With fewer, the acknowledgement never comes while the suspension lasts.
    Model::new().at_least(4).at_most(5).check(move || {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        // The id comes by a channel, so that this thread is here while the others run.
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

/// A suspender is slow to acknowledge the stop it saw; meanwhile that is over, the thread it had
/// suspended is attached, and a second stop waits for it.
///
/// Mutation: the guard's drop acknowledges whatever the state is.
#[test]
fn loom_late_acknowledgement() {
    // Below four preemptions the acknowledgement is never late enough.
    Model::new().at_least(4).check(|| {
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

/// Mutation: the loads of the states not `SeqCst`.
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

/// A thread that was kept waiting by one stop runs before the next.
///
/// Mutation: `may_stop` does not look at `owed`.
#[test]
fn loom_owed_a_turn() {
    model(|| {
        let world = World::new();
        // Not the algorithm's: what the test knows.
        let progress = Arc::new([Plain::new(false), Plain::new(false)]);
        let me = world.attached();
        let (w, p) = (world.clone(), progress.clone());
        let requester = thread::spawn(move || {
            let me = w.attached();
            let stopped = me.stop().unwrap();
            let was_parked = p[0].load(Relaxed);
            drop(stopped);
            let stopped = me.stop().unwrap();
            assert!(!was_parked || p[1].load(Relaxed), "stopped twice without a turn");
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

/// What was written before a request was raised is seen by who takes it.
#[test]
fn loom_a_request_carries_what_was_written() {
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

/// A thread is asked for something while it detaches: it sees the request, or can be suspended.
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
        assert!(poker.join().unwrap() || seen, "nobody sees to the request");
    });
}

/// Who looks which threads are attached, after it has stored something, and a thread that attaches and then loads that:
/// one sees the other.
#[test]
fn loom_a_look_at_the_attached_meets_attach() {
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

/// A participant ends that has leaked its own stop: the world goes on.
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

/// A third thread works on while two stop the world.
#[test]
fn loom_two_requesters_and_one_who_parks() {
    Model::new().at_most(3).check(|| {
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

/// Two threads want to suspend the same third, which attaches: one after the other, or not at all.
#[test]
fn loom_two_suspenders_meet_attach() {
    Model::new().at_most(4).check(|| {
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

/// A requester that waits for its turn, detached, is suspended: it has its turn when both are over.
#[test]
fn loom_suspension_of_one_who_waits_for_its_turn() {
    Model::new().at_most(3).check(|| {
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

/// A thread works until it is asked, and no longer: it is asked.
#[test]
fn loom_stop_asks_who_is_attached() {
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

/// A participant ends that its own thread keeps suspended, while another wants to suspend it, too.
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

/// The requester finds that all have come before it takes the lock: it takes the lock all the same.
///
/// Mutation: it believes the 0 that it has read without the lock.
#[test]
fn loom_stop_looks_before_it_sleeps() {
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

/// A thread ends attached; a destructor that runs later ends its participant. A stop waits for that, or fails, and the next
/// succeeds.
///
/// Mutation: the end of such a participant does not count the orphan down.
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
        assert!(try_to_stop(&world, &me), "nobody is left");
        assert_eq!(world.touches(), 2 + usize::from(stopped));
    });
}

/// Stops the world if that can be; `false`: a thread has ended attached.
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

/// A thread ends, and its participant stays attached for ever: a stop fails, also one that waits already.
///
/// Mutations: the exit watcher does not say so; does not wake the requester.
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

/// The same while two threads want to stop the world: both are told.
#[test]
fn loom_two_requesters_and_one_who_ends_attached() {
    Model::new().at_most(3).check(|| {
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

/// Past the exit watcher a thread cannot attach: nobody would see that it ends.
///
/// Mutation: the watcher does not say that the thread ends.
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

/// Past the exit watcher a thread detaches, and cannot come back: from then on stops succeed.
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
        assert!(try_to_stop(&world, &me), "nobody is attached");
        assert_eq!(world.touches(), 2 + usize::from(stopped));
    });
}
