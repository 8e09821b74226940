//! The turn to collect, and burials that are left to whoever comes.
//!
//! | transition | model |
//! |---|---|
//! | nobody's → taken → nobody's, a thread waiting | [`loom_a_burial_ends_once_and_the_turn_comes_free`] |
//! | taken → burial, clearing → taken, to settle → burial, counting → taken → nobody's | the same |
//! | taken → nobody's → taken, a thread in the queue | [`loom_the_turn_goes_to_the_thread_that_has_asked`] |
//! | the same with a heap around it | `collect::loom_what_is_left_to_bury_is_buried_once` |
//!
//! Bound in a full run: 4 preemptions.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::Model;
use crate::base::event::{self, CollectionKind, CollectionReport};
use crate::heap::collector_lock::Turn;
use crate::heap::reclaim_queue::{Burial, Cleared, Done, Open, Pile, Task, Whose};
use crate::object::type_info::Object;
use crate::safepoint::{Coordinator, ThreadId};

/// Objects of the burial: names, never looked at.
const OBJECTS: usize = 3;

struct World {
    turn: Turn,
    cleared: [AtomicUsize; OBJECTS],
    settled: AtomicUsize,
    ended: AtomicUsize,
}

fn name(number: usize) -> Object {
    Object::new(NonNull::new((number * 32 + 32) as *mut u8).unwrap())
}

/// Takes one piece and does what is to be done.
fn work(world: &World, whose: Whose) -> bool {
    let Some(piece) = world.turn.take(whose, None) else { return false };
    let mut found = Cleared::default();
    for object in piece.objects() {
        let number = object.address() / 32 - 1;
        match piece.task {
            Task::Clear => {
                assert_eq!(world.settled.load(Relaxed), 0, "cleared after it was settled");
                assert_eq!(world.cleared[number].fetch_add(1, Relaxed), 0, "cleared twice");
            }
            Task::Tally => {
                assert_eq!(world.settled.load(Relaxed), 1, "counted before it was settled");
                found.collected += world.cleared[number].load(Relaxed);
            }
        }
    }
    match world.turn.done(piece, found) {
        Done::Nothing => {}
        Done::Settle(open) => {
            assert!(
                world.cleared.iter().all(|n| n.load(Relaxed) == 1),
                "settled before all is cleared"
            );
            assert_eq!(world.settled.fetch_add(1, Relaxed), 0, "settled twice");
            world.turn.tally(open);
        }
        Done::End(_, found) => {
            assert_eq!(found.collected, OBJECTS);
            assert_eq!(world.ended.fetch_add(1, Relaxed), 0, "ended twice");
            world.turn.give_back();
        }
    }
    true
}

/// One thread leaves a burial, works on its own pile and goes away; another wants the turn, helps, waits, and gets it.
///
#[test]
fn loom_a_burial_ends_once_and_the_turn_comes_free() {
    Model::new().at_most(4).check(|| {
        let coordinator = Coordinator::<()>::new();
        let [mine, theirs]: [ThreadId; 2] = [(); 2].map(|()| coordinator.register(()).id());
        let world = Arc::new(World {
            turn: Turn::new(),
            cleared: Default::default(),
            settled: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        });
        assert!(world.turn.try_take());
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut asked = world.turn.ask();
                while !asked.try_take() {
                    if !work(&world, Whose::Anybodys) {
                        let _ = asked.wait(Duration::ZERO);
                    }
                }
                drop(asked);
                assert_eq!(world.ended.load(Relaxed), 1);
                world.turn.give_back();
            })
        };
        let open = Open {
            report: CollectionReport::new(CollectionKind::Full),
            quiet: true,
            begun: Instant::now(),
            span: event::collection(CollectionKind::Full, "model"),
        };
        let piles = vec![Pile::new(mine, vec![name(0), name(1)]), Pile::new(theirs, vec![name(2)])];
        world.turn.leave(Burial::new(piles, open));
        while work(&world, Whose::Of(mine)) {}
        other.join().unwrap();
        assert!(!world.turn.is_burying());
        assert!(world.turn.try_take());
    });
}

/// One thread asks for the turn while another has it. Once it has asked, the other does not get the turn again before it.
#[test]
fn loom_the_turn_goes_to_the_thread_that_has_asked() {
    Model::new().at_most(4).check(|| {
        let turn = Arc::new(Turn::new());
        let (has_asked, has_had) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        assert!(turn.try_take());
        let other = {
            let (turn, has_asked, has_had) = (turn.clone(), has_asked.clone(), has_had.clone());
            thread::spawn(move || {
                let mut asked = turn.ask();
                has_asked.store(true, SeqCst);
                while !asked.try_take() {
                    let _ = asked.wait(Duration::ZERO);
                }
                has_had.store(true, SeqCst);
                drop(asked);
                turn.give_back();
            })
        };
        let is_waiting = has_asked.load(SeqCst);
        turn.give_back();
        if turn.try_take() {
            assert!(!is_waiting || has_had.load(SeqCst), "the thread that has asked is passed by");
            turn.give_back();
        }
        other.join().unwrap();
        assert!(turn.try_take(), "nobody has it");
    });
}
