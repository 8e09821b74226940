//! The words of one thread (`safepoint/thread_words`).
//!
//! | transition | model |
//! |---|---|
//! | every sequence of transitions, with up to three guards | `loom_the_thread_words_agree_with_the_steps_of_the_thread` |
//! | attach, wait at the gate, park, wait for another stop, detach, end | `loom_the_current_id_is_that_of_the_attached_participant` |
//! | park and come back with a guard that the work of the stop has kept | `loom_a_parked_thread_keeps_a_guard` |

use std::cell::RefCell;
use std::collections::HashSet;

use loom::thread;

use super::model;
use crate::safepoint::thread_words::{ENDING, STOPPING, SUSPENDING, Words};
use crate::safepoint::{AttachError, Coordinator, attached_as, current, is_traversing, traversing};

/// What the thread has done, in the plainest words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Done {
    /// 0: detached.
    attached: u64,
    guards: usize,
    stopping: bool,
    suspending: bool,
    ending: bool,
}

impl Done {
    fn holds_nothing(self) -> bool {
        self.guards == 0 && !self.stopping && !self.suspending
    }

    fn check(self, words: &Words) {
        let Self { attached, guards, stopping, suspending, ending } = self;
        assert_eq!(words.current(), if guards == 0 { attached } else { 0 }, "{self:?}");
        assert_eq!(words.attached_as(), attached, "{self:?}");
        assert_eq!(words.is_traversing(), guards > 0, "{self:?}");
        assert_eq!(words.forbids_safepoint(), !self.holds_nothing(), "{self:?}");
        let is_free = attached == 0 && self.holds_nothing();
        assert_eq!(words.may_attach(), is_free && !ending, "{self:?}");
        assert_eq!(words.may_attach_to_end(), is_free, "{self:?}");
        let may_come_back = attached == 0 && !stopping && !suspending;
        assert_eq!(words.may_come_back(), may_come_back, "{self:?}");
    }
}

/// One thing that a thread does, where it may.
#[derive(Clone, Copy, Debug)]
enum Step {
    Attach(u64),
    /// Waits at the gate, where a hook runs and keeps a guard.
    AttachSlowly(u64),
    Detach,
    /// After a detach, whatever the closure has done.
    ComeBack(u64),
    AttachToEnd(u64),
    /// The participant ends.
    End(u64),
    /// Parks. The work of the stop, or a hook, keeps so many guards.
    Park(usize),
    Guard,
    DropGuard,
    Flag(u64),
    Unflag(u64),
}

const GUARDS: usize = 3;
const STEPS: [Step; 19] = [
    Step::Attach(1),
    Step::Attach(2),
    Step::AttachSlowly(1),
    Step::Detach,
    Step::ComeBack(1),
    Step::ComeBack(2),
    Step::AttachToEnd(1),
    Step::AttachToEnd(2),
    Step::End(1),
    Step::End(2),
    Step::Park(0),
    Step::Park(1),
    Step::Guard,
    Step::DropGuard,
    Step::Flag(STOPPING),
    Step::Unflag(STOPPING),
    Step::Flag(SUSPENDING),
    Step::Unflag(SUSPENDING),
    Step::Flag(ENDING),
];

/// The thread after `step`. `None`: it may not make this step.
fn after(words: &Words, done: Done, step: Step) -> Option<(Words, Done)> {
    let (words, mut done) = (words.clone(), done);
    match step {
        Step::Attach(id) if words.may_attach() => {
            words.attached_in_sight(id);
            done.attached = id;
        }
        Step::AttachSlowly(id) if words.may_attach() => {
            // The hook's own guard, and the one that it keeps.
            words.begin_traversal();
            words.begin_traversal();
            words.end_traversal();
            words.attached(id);
            (done.attached, done.guards) = (id, 1);
        }
        Step::Detach if done.attached != 0 && !words.forbids_safepoint() => {
            words.detached_in_sight();
            done.attached = 0;
        }
        Step::ComeBack(id) if words.may_come_back() => {
            if words.may_attach() {
                words.attached_in_sight(id);
            } else {
                words.attached(id);
            }
            done.attached = id;
        }
        Step::AttachToEnd(id) if words.may_attach_to_end() => {
            words.attached_in_sight(id);
            done.attached = id;
        }
        Step::End(id) => {
            words.detached(id);
            if done.attached == id {
                done.attached = 0;
            }
        }
        Step::Park(kept) if done.attached != 0 && !words.forbids_safepoint() => {
            words.detached(done.attached);
            words.begin_traversal();
            Done { attached: 0, guards: 1, ..done }.check(&words);
            (0..kept).for_each(|_| words.begin_traversal());
            words.attached(done.attached);
            words.end_traversal();
            done.guards = kept;
        }
        Step::Guard if done.guards < GUARDS => {
            words.begin_traversal();
            done.guards += 1;
        }
        Step::DropGuard if done.guards > 0 => {
            words.end_traversal();
            done.guards -= 1;
        }
        Step::Flag(flag) | Step::Unflag(flag) => {
            let is_set = matches!(step, Step::Flag(_));
            if is_set {
                words.set_flag(flag)
            } else {
                words.clear_flag(flag)
            }
            match flag {
                STOPPING => done.stopping = is_set,
                SUSPENDING => done.suspending = is_set,
                _ => done.ending = is_set,
            }
        }
        _ => return None,
    }
    Some((words, done))
}

/// All sequences of steps, of any length: each pair of words and deeds is entered once.
#[test]
fn loom_the_thread_words_agree_with_the_steps_of_the_thread() {
    let (mut seen, mut open) = (HashSet::new(), vec![(Words::new(), Done::default())]);
    while let Some((words, done)) = open.pop() {
        done.check(&words);
        if seen.insert(done) {
            open.extend(STEPS.iter().filter_map(|&step| after(&words, done, step)));
        }
    }
    // Detached, or attached as one of two; no guard to three; three flags.
    assert_eq!(seen.len(), 3 * (GUARDS + 1) * 8);
    println!("explored: {} executions, all there are", seen.len());
}

#[test]
fn loom_the_current_id_is_that_of_the_attached_participant() {
    model(|| {
        let coordinator = Coordinator::<()>::new();
        let other = {
            let coordinator = coordinator.clone();
            thread::spawn(move || {
                let me = coordinator.register(());
                me.attach().unwrap();
                drop(me.stop().unwrap());
                assert_eq!(current(), me.id().get());
                assert!(me.detach());
                assert_eq!(current(), 0);
            })
        };
        let me = coordinator.register(());
        let id = me.id().get();
        me.attach().unwrap();
        assert_eq!(current(), id);
        me.park();
        assert_eq!(current(), id);
        drop(me.stop().unwrap());
        assert_eq!(current(), id);
        let (away, _) = me.step_away().unwrap();
        assert_eq!(current(), 0);
        let guard = traversing();
        away.disarm();
        me.come_back();
        assert_eq!((current(), attached_as()), (0, id));
        drop(guard);
        assert_eq!(current(), id);
        let second = coordinator.register(());
        assert_eq!(second.attach(), Err(AttachError::AlreadyAttached));
        drop(second);
        assert_eq!(current(), id);
        drop(me);
        assert_eq!(current(), 0);
        other.join().unwrap();
    });
}

#[test]
fn loom_a_parked_thread_keeps_a_guard() {
    model(|| {
        let coordinator = Coordinator::<()>::new();
        let other = {
            let coordinator = coordinator.clone();
            thread::spawn(move || {
                let (me, kept) = (coordinator.register(()), RefCell::new(None));
                let elsewhere = Coordinator::<()>::new().register(());
                me.attach().unwrap();
                me.park_and(|_| {
                    assert_eq!(attached_as(), 0);
                    assert_eq!(elsewhere.attach(), Err(AttachError::Traversing));
                    *kept.borrow_mut() = Some(traversing());
                });
                assert_eq!(attached_as(), me.id().get());
                assert_eq!(is_traversing(), kept.borrow().is_some());
                assert!(elsewhere.attach().is_err());
                drop(kept);
                assert_eq!((current(), is_traversing()), (me.id().get(), false));
            })
        };
        let me = coordinator.register(());
        me.attach().unwrap();
        drop(me.stop().unwrap());
        drop(me);
        other.join().unwrap();
    });
}
