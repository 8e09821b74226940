//! Floor 3: one job that several threads work on, and the threads that wait to be given one.
//!
//! Whoever has stopped the world hands out the steps of a collection as *jobs*, one after the other ([`Crew::share`]). Each is
//! a closure that any number of threads can run at once, and that the caller alone can finish. Two kinds of threads come
//! to join in ([`Crew::join`]): those of the heap's pool, which have to be woken, and mutators that are parked for this very
//! stop ([`Hand::wait`]): these run already, on a processor that has nothing else to do.
//!
//! # States
//!
//! | state | `job` | `running` | next |
//! |---|---|---|---|
//! | no job | none | 0 | *open*, by `share` |
//! | open | some | threads inside | the same, one more or less, by `join`; *closing*, by `share`, once its own part is done |
//! | closing | none | threads inside | *no job*, when the last of these is through |
//!
//! All of it is under one lock, taken twice by each thread and job. `open` and `hands` are hints beside it. Threads of the pool may come
//! to it at any time, also while a fork happens; so the lock is one that survives it, and the fork holds it.
//!
//! # Invariants
//!
//! * A closure is called only between the beginning and the end of the `share` that brought it: a thread counts itself among
//!   `running` while the job is open, under the lock, and `share` returns when the job is closed and nobody is running.
//! * Indices are unique within a job, 0 is the caller's, all are below its `limit`.
//! * A job takes nobody any more once a call of it has returned: that call found nothing left.
//! * A thread that comes late works on the job that is open then, or on none: nobody is promised to one job.
//!
//! # A parked thread may not stay away
//!
//! A hand that waits for a job holds up nothing: it looks whether its stop is still on, a bounded number of times between two jobs,
//! and then sleeps at the gate like everybody else. It goes on by itself when the stop is over, where a sleeper has to be woken, which
//! takes the system some 50 µs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crossbeam_utils::CachePadded;

use crate::base::event;
use crate::base::sync::{AtomicBool, AtomicUsize, Ordering, spin_loop};
use crate::safepoint::lock::{Condvar, Guard, Kept, Mutex};

/// What is shared: any call can do all of the work.
pub(crate) type Job<'a> = dyn Fn(Seat) + Sync + 'a;

/// Who works on a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// The number within the job; 0: the thread that has brought it.
    pub(crate) index: usize,
    /// The arena of a mutator; 0: none.
    pub(crate) home: u32,
}

/// Looks for a job, or at the end of one, before a thread goes to sleep: some 50 µs.
const PATIENCE: usize = if cfg!(all(test, loom)) {
    // There, each look lets everybody else come to an end first.
    0
} else if cfg!(all(test, shuttle)) {
    2
} else {
    2000
};

/// See the [module's page](self).
pub(crate) struct Crew {
    state: Mutex<State>,
    /// Nobody is running any more.
    through: Condvar,
    /// There is a job with room. A hint, for those who look again and again.
    open: CachePadded<AtomicBool>,
    /// Parked threads that wait for a job, or are about to. A hint.
    hands: AtomicUsize,
}

/// What the lock protects.
#[derive(Default)]
pub(crate) struct State {
    job: Option<Open>,
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
}

/// A job that can be joined.
struct Open {
    /// The caller's closure, its lifetime erased: see the safety comments at its uses.
    job: *const Job<'static>,
    next: usize,
    limit: usize,
}

// SAFETY: rule V: the job is `Sync`, and is called only while the `share` lasts that borrows it.
unsafe impl Send for Open {}

impl Crew {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State::default()),
            through: Condvar::new(),
            open: CachePadded::new(AtomicBool::new(false)),
            hands: AtomicUsize::new(0),
        }
    }

    /// Calls the job on this thread, whose arena is `home`, and on up to `n - 1` others, as far as these come in time. `invite` is called
    /// once they can come. Returns when all calls that began have returned; passes a panic on.
    ///
    /// One job at a time: the callers have stopped the world.
    pub(crate) fn share(&self, n: usize, home: u32, job: &Job<'_>, invite: impl FnOnce()) {
        // SAFETY: rule V: only the lifetime changes; `join` calls it only while this frame waits.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        {
            let mut state = self.state.lock();
            debug_assert!(state.job.is_none() && state.running == 0, "one job at a time");
            state.job = Some(Open { job: erased, next: 1, limit: n });
            // Relaxed: a hint; the lock carries the job.
            self.open.store(n > 1, Ordering::Relaxed);
        }
        // The invitation too: whoever comes by himself may be in the job by now.
        let mine = catch_unwind(AssertUnwindSafe(|| {
            invite();
            job(Seat { index: 0, home });
        }));
        let theirs = self.close();
        match (mine, theirs) {
            (Ok(()), None) => {}
            (Ok(()), Some(payload)) => resume_unwind(payload),
            (Err(payload), theirs) => {
                // One is enough; the other's payload may panic when it is dropped.
                theirs.map(event::panic_message);
                resume_unwind(payload);
            }
        }
    }

    /// The job takes nobody any more; returns when those who are in are through, with the panic of one of them.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state.lock();
        state.job = None;
        self.open.store(false, Ordering::Relaxed);
        // They have a piece of the work each: nearly always that is done sooner than this thread could be woken.
        for _ in 0..PATIENCE {
            if state.running == 0 {
                break;
            }
            drop(state);
            spin_loop();
            state = self.state.lock();
        }
        while state.running > 0 {
            state = self.through.wait(state);
        }
        state.panic.take()
    }

    /// Takes part in the job that is open, as the thread of arena `home`; `false`: there is none, or it has all it wants.
    pub(crate) fn join(&self, home: u32) -> bool {
        let (job, index) = {
            let state = &mut *self.state.lock();
            let Some(open) = state.job.as_mut().filter(|open| open.next < open.limit) else {
                return false;
            };
            open.next += 1;
            if open.next == open.limit {
                self.open.store(false, Ordering::Relaxed);
            }
            state.running += 1;
            (open.job, open.next - 1)
        };
        // SAFETY: rule V: `running` was raised while the job was open, so `share`, whose caller owns the closure, returns
        // only after it is lowered below.
        let job = unsafe { &*job };
        let result = catch_unwind(AssertUnwindSafe(|| job(Seat { index, home })));
        let mut state = self.state.lock();
        state.running -= 1;
        if let Some(open) = &mut state.job {
            // It is the same one. A call that has returned found nothing left to do: nobody needs to come for more.
            open.limit = open.next;
            self.open.store(false, Ordering::Relaxed);
        }
        let mut spare = result.err();
        if state.panic.is_none() {
            state.panic = spare.take();
        }
        if state.running == 0 {
            self.through.notify_all();
        }
        drop(state);
        if let Some(payload) = spare {
            drop(event::panic_message(payload));
        }
        true
    }

    /// Announces a thread that is about to park, the one of arena `home`, so that who stops the world counts on it.
    pub(crate) fn hand(&self, home: u32) -> Hand<'_> {
        // Relaxed: a guess.
        self.hands.fetch_add(1, Ordering::Relaxed);
        Hand { crew: self, home }
    }

    /// Keeps everybody away from the lock, for a fork. No job is open.
    pub(crate) fn hold(&self) -> (Kept<'_>, Guard<'_, State>) {
        self.state.keep()
    }

    /// In a forked child: the parked threads do not exist here.
    pub(crate) fn forget_hands(&self) {
        self.hands.store(0, Ordering::Relaxed);
    }

    /// Parked threads that would come to a job at once: a guess.
    pub(crate) fn hands(&self) -> usize {
        self.hands.load(Ordering::Relaxed)
    }
}

/// A parked thread that lends a hand.
pub(crate) struct Hand<'a> {
    crew: &'a Crew,
    home: u32,
}

impl Hand<'_> {
    /// Joins what jobs there are, as long as the stop is on and there is one every now and then.
    pub(crate) fn wait(self, is_on: impl Fn() -> bool) {
        let mut looks = 0;
        while looks < PATIENCE && is_on() {
            if self.crew.open.load(Ordering::Relaxed) && self.crew.join(self.home) {
                looks = 0;
            } else {
                looks += 1;
                spin_loop();
            }
        }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        self.crew.hands.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_parked_thread_works_on_jobs_as_long_as_its_stop_is_on() {
        let (crew, on) = (Crew::new(), AtomicBool::new(true));
        let came = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while on.load(Ordering::Relaxed) {
                    crew.hand(9).wait(|| on.load(Ordering::Relaxed));
                }
            });
            while came.load(Ordering::Relaxed) < 100 {
                crew.share(
                    2,
                    3,
                    &|seat| {
                        assert_eq!(seat.home, [3, 9][seat.index]);
                        came.fetch_add(seat.index, Ordering::Relaxed);
                    },
                    || (),
                );
            }
            on.store(false, Ordering::Relaxed);
        });
        assert_eq!(crew.hands(), 0);
    }

    #[test]
    fn when_one_call_has_returned_nobody_is_asked_for_more() {
        let crew = Crew::new();
        let calls = AtomicUsize::new(0);
        let job = |seat: Seat| {
            calls.fetch_add(1, Ordering::Relaxed);
            if seat.index == 0 {
                assert!(crew.join(0), "there is room for three");
                assert!(!crew.join(0), "and nothing left to do");
            }
        };
        crew.share(3, 0, &job, || ());
        assert_eq!(calls.into_inner(), 2);
    }

    #[test]
    fn a_thread_that_nobody_gives_work_goes_its_way() {
        let crew = Crew::new();
        let hand = crew.hand(1);
        assert_eq!(crew.hands(), 1);
        hand.wait(|| true);
        assert_eq!(crew.hands(), 0);
        assert!(!crew.join(1), "no job");
    }

    #[test]
    fn a_panic_on_either_side_comes_back_and_the_crew_is_whole() {
        let crew = Crew::new();
        for fails in [0, 1] {
            std::thread::scope(|scope| {
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    let came = AtomicBool::new(false);
                    let job = |seat: Seat| {
                        came.fetch_or(seat.index == 1, Ordering::Relaxed);
                        while !came.load(Ordering::Relaxed) {
                            std::thread::yield_now();
                        }
                        assert_ne!(seat.index, fails, "one of them fails");
                    };
                    crew.share(2, 0, &job, || {
                        scope.spawn(|| while !crew.join(0) {});
                    });
                }));
                assert!(caught.is_err());
            });
        }
        crew.share(1, 0, &|_| (), || ());
    }

    #[test]
    fn a_panic_is_not_forgotten_when_another_call_returns_after_it() {
        let crew = Crew::new();
        let (begun, panicked) = (AtomicUsize::new(0), AtomicBool::new(false));
        let wait = |until: &dyn Fn() -> bool| {
            while !until() {
                std::thread::yield_now();
            }
        };
        let caught = std::thread::scope(|scope| {
            let job = |seat: Seat| {
                begun.fetch_add(1, Ordering::Relaxed);
                wait(&|| begun.load(Ordering::Relaxed) == 3);
                match seat.index {
                    1 => panic!("on purpose"),
                    2 => wait(&|| panicked.load(Ordering::Relaxed)),
                    _ => {}
                }
            };
            catch_unwind(AssertUnwindSafe(|| {
                crew.share(3, 0, &job, || {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            crew.join(0);
                            // Of the two, the one that panics is through first.
                            panicked.store(true, Ordering::Relaxed);
                        });
                    }
                });
            }))
        });
        assert!(caught.is_err());
    }

    /// Two calls panic beside the caller, or one. Payloads that are too many are dropped, under no lock, and
    /// a panic of theirs ends nothing.
    #[test]
    fn of_several_panics_one_comes_back_and_the_others_do_no_harm() {
        /// Comes to the crew when it is dropped, and panics then.
        struct Payload(std::sync::Arc<Crew>, std::sync::Arc<AtomicUsize>);
        impl Drop for Payload {
            fn drop(&mut self) {
                self.0.join(0);
                self.1.fetch_add(1, Ordering::Relaxed);
                panic!("a payload, on purpose");
            }
        }
        for (others, caller_panics) in [(2, false), (1, true)] {
            let crew = std::sync::Arc::new(Crew::new());
            let (begun, dropped) = (AtomicUsize::new(0), std::sync::Arc::new(AtomicUsize::new(0)));
            let caught = std::thread::scope(|scope| {
                let job = |seat: Seat| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    while begun.load(Ordering::Relaxed) <= others {
                        std::thread::yield_now();
                    }
                    if seat.index > 0 {
                        resume_unwind(Box::new(Payload(crew.clone(), dropped.clone())));
                    }
                    assert!(!caller_panics, "the caller, on purpose");
                };
                catch_unwind(AssertUnwindSafe(|| {
                    crew.share(others + 1, 0, &job, || {
                        for _ in 0..others {
                            scope.spawn(|| assert!(crew.join(0)));
                        }
                    });
                }))
            });
            let payload = caught.expect_err("a panic");
            assert_eq!(payload.is::<Payload>(), !caller_panics);
            assert_eq!(dropped.load(Ordering::Relaxed), 1, "of the two payloads the other one");
            drop(event::panic_message(payload));
        }
    }

    #[test]
    fn hands_that_did_not_come_along_are_forgotten() {
        let crew = Crew::new();
        std::mem::forget([crew.hand(1), crew.hand(2)]);
        assert_eq!(crew.hands(), 2);
        crew.forget_hands();
        assert_eq!(crew.hands(), 0);
    }

    #[test]
    fn an_invitation_that_panics_waits_for_who_has_come_all_the_same() {
        let crew = Crew::new();
        std::thread::scope(|scope| {
            let through = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                let job = |seat: Seat| {
                    assert_eq!(seat.index, 1, "the caller does not come to it");
                    through.fetch_add(1, Ordering::Relaxed);
                    while through.load(Ordering::Relaxed) < 2 {
                        std::thread::yield_now();
                    }
                };
                crew.share(2, 0, &job, || {
                    scope.spawn(|| crew.join(0));
                    while through.load(Ordering::Relaxed) == 0 {
                        std::thread::yield_now();
                    }
                    through.fetch_add(1, Ordering::Relaxed);
                    panic!("nobody is there");
                });
            }));
            assert!(caught.is_err());
            let state = crew.state.lock();
            assert!(state.job.is_none() && state.running == 0 && state.panic.is_none());
        });
    }
}
