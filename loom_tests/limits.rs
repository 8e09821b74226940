//! Stops and attaches that give up, in every interleaving.
//!
//! Models have no clock. A stop with a limit of zero gives up when its requester first looks, at
//! any time after its beginning, unless no thread is late by then. So the models meet each moment
//! at which a clock could end the limit.
//!
//! # Transitions
//!
//! * a stop to none, because a thread is late: `a_late_thread_is_waited_for_no_longer`, and the
//!   others that stop
//! * StepBack, Leave, LookOut, park, acknowledge, after the end of the stop that they meet:
//!   `a_thread_parks_too_late`, `a_thread_attaches_and_detaches_too_late`
//! * suspended in a stop that gives up: `a_suspension_meets_a_stop_that_gives_up`
//! * a requester that waits, while a stop gives up: `a_stop_gives_up_beside_a_requester`
//! * no turn: `two_stops_that_take_no_turn`
//! * detached to attached, or not: `an_attach_that_does_not_wait_meets_a_stop`

use std::time::Duration;

use loom::sync::mpsc;
use loom::thread;

use super::model;
use super::safepoint::World;
use crate::safepoint::{Participant, STOP, StopError, Suspend};

/// Stops the world, or gives up. Returns how often it was stopped.
fn stop_at_once(world: &World, me: &Participant) -> usize {
    match me.stop_for(Duration::ZERO) {
        Ok(stopped) => {
            world.touch();
            drop(stopped);
            1
        }
        Err(StopError::TimedOut { stragglers }) => {
            assert!(!stragglers.is_empty(), "it gave up for no thread");
            0
        }
        Err(error) => unreachable!("{error}"),
    }
}

fn stop(world: &World, me: &Participant) -> usize {
    let stopped = me.stop().unwrap();
    world.touch();
    drop(stopped);
    1
}

/// A thread stays attached until the stop has been given up.
///
/// Mutations: the requester does not look at its limit; it does not end the stop.
#[test]
fn loom_a_late_thread_is_waited_for_no_longer() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let late = thread::spawn(move || {
            let late = w.attached();
            tell.send(late.id()).unwrap();
            ended.recv().unwrap();
            w.touch();
            assert_eq!(late.poll() & STOP, 0, "no stop waits for it any more");
            drop(late);
        });
        let id = told.recv().unwrap();
        let Err(StopError::TimedOut { stragglers }) = me.stop_for(Duration::ZERO) else {
            unreachable!("a thread is attached")
        };
        assert_eq!(stragglers[0].thread.id, id);
        assert!(me.detach());
        end.send(()).unwrap();
        late.join().unwrap();
        me.attach().unwrap();
        assert_eq!(stop_at_once(&world, &me), 1, "no other thread is left");
        assert_eq!(world.touches(), 2);
        assert_eq!(world.coordinator.stats().failed_stops, 1);
    });
}

/// A thread parks, perhaps when the stop has been given up, and perhaps in the next one.
#[test]
fn loom_a_thread_parks_too_late() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let w = world.clone();
        let other = thread::spawn(move || {
            let other = w.attached();
            w.touch();
            if other.poll() & STOP != 0 {
                assert!(other.park());
            }
            w.touch();
            drop(other);
        });
        let stopped = stop_at_once(&world, &me) + stop(&world, &me);
        assert!(me.detach());
        other.join().unwrap();
        me.attach().unwrap();
        assert_eq!(world.touches(), 2 + stopped);
    });
}

/// The same for a thread that attaches, and detaches.
#[test]
fn loom_a_thread_attaches_and_detaches_too_late() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let other = world.clone();
        let other = thread::spawn(move || {
            let w = other;
            let other = w.coordinator.register(());
            other.attach().unwrap();
            w.touch();
            assert!(other.detach());
            other.attach().unwrap();
            w.touch();
            drop(other);
        });
        let stopped = stop_at_once(&world, &me) + stop(&world, &me);
        assert!(me.detach());
        other.join().unwrap();
        me.attach().unwrap();
        assert_eq!(world.touches(), 2 + stopped);
    });
}

/// A thread that is suspended counts for a stop, which gives up, and for the next one.
#[test]
fn loom_a_suspension_meets_a_stop_that_gives_up() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let away = world.coordinator.register(());
        let (w, id) = (world.clone(), away.id());
        let suspender = thread::spawn(move || match w.coordinator.suspend(id) {
            Suspend::Suspended(guard) => {
                w.touch();
                drop(guard);
                1
            }
            Suspend::Attached | Suspend::Ended => 0,
        });
        let stopped = stop_at_once(&world, &me) + stop(&world, &me);
        assert!(me.detach());
        let suspended = suspender.join().unwrap();
        me.attach().unwrap();
        assert_eq!(world.touches(), stopped + suspended);
    });
}

/// A requester waits for its turn, while another one gives up.
#[test]
fn loom_a_stop_gives_up_beside_a_requester() {
    model(|| {
        let world = World::new();
        let me = world.attached();
        let requesters = [stop_at_once, stop].map(|stop| {
            let w = world.clone();
            thread::spawn(move || stop(&w, &w.attached()))
        });
        world.touch();
        if me.poll() & STOP != 0 {
            assert!(me.park());
        }
        drop(me);
        let stopped: usize = requesters.into_iter().map(|r| r.join().unwrap()).sum();
        assert_eq!(world.touches(), 1 + stopped);
    });
}

/// Two threads stop the world, and neither waits for the other's stop. The one that is refused is
/// attached, so that the stop of the other waits for it.
#[test]
fn loom_two_stops_that_take_no_turn() {
    fn try_stop(world: &World) -> usize {
        let me = world.attached();
        match me.try_stop() {
            Ok(stopped) => {
                world.touch();
                drop(stopped);
                1
            }
            Err(StopError::Busy) => {
                assert!(me.is_attached());
                world.touch();
                1
            }
            Err(error) => unreachable!("{error}"),
        }
    }
    model(|| {
        let world = World::new();
        let w = world.clone();
        let other = thread::spawn(move || try_stop(&w));
        let touched = try_stop(&world) + other.join().unwrap();
        assert_eq!(world.touches(), touched);
        assert_eq!(world.coordinator.threads(), 0);
    });
}

/// Mutations: `try_attach` does not look for a stop after its step; it does not step back; its load
/// is not `SeqCst`.
#[test]
fn loom_an_attach_that_does_not_wait_meets_a_stop() {
    model(|| {
        let world = World::new();
        let me = world.coordinator.register(());
        let w = world.clone();
        let requester = thread::spawn(move || w.stop_once());
        let attached = me.try_attach();
        if attached {
            world.touch();
            assert!(me.detach());
        }
        requester.join().unwrap();
        assert!(me.try_attach(), "no stop is on");
        assert_eq!(world.touches(), 1 + usize::from(attached));
    });
}
