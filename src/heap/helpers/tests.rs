//! Tests of `heap/helpers.rs`.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn a_parked_thread_works_on_jobs_as_long_as_its_stop_is_on() {
    let (slot, on) = (JobSlot::new(), AtomicBool::new(true));
    let came = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while on.load(Ordering::Relaxed) {
                slot.helper(9).wait(|| on.load(Ordering::Relaxed));
            }
        });
        while came.load(Ordering::Relaxed) < 100 {
            slot.run_on(
                2,
                3,
                &|worker| {
                    assert_eq!(worker.arena, [3, 9][worker.index]);
                    came.fetch_add(worker.index, Ordering::Relaxed);
                },
                || (),
            );
        }
        on.store(false, Ordering::Relaxed);
    });
    assert_eq!(slot.helpers(), 0);
}

#[test]
fn a_job_takes_no_thread_after_a_call_has_returned() {
    let slot = JobSlot::new();
    let calls = AtomicUsize::new(0);
    let job = |worker: Worker| {
        calls.fetch_add(1, Ordering::Relaxed);
        if worker.index == 0 {
            assert!(slot.join(0), "the job takes three threads");
            assert!(!slot.join(0), "the job is finished");
        }
    };
    slot.run_on(3, 0, &job, || ());
    assert_eq!(calls.into_inner(), 2);
}

#[test]
fn a_helper_without_work_returns() {
    let slot = JobSlot::new();
    let helper = slot.helper(1);
    assert_eq!(slot.helpers(), 1);
    helper.wait(|| true);
    assert_eq!(slot.helpers(), 0);
    assert!(!slot.join(1), "no job");
}

#[test]
fn a_panic_on_either_side_comes_back_and_the_slot_is_free() {
    let slot = JobSlot::new();
    for fails in [0, 1] {
        std::thread::scope(|scope| {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                let came = AtomicBool::new(false);
                let job = |worker: Worker| {
                    came.fetch_or(worker.index == 1, Ordering::Relaxed);
                    while !came.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    assert_ne!(worker.index, fails, "one of them fails");
                };
                slot.run_on(2, 0, &job, || {
                    scope.spawn(|| while !slot.join(0) {});
                });
            }));
            assert!(caught.is_err());
        });
    }
    slot.run_on(1, 0, &|_| (), || ());
}

#[test]
fn a_panic_is_not_forgotten_when_another_call_returns_after_it() {
    let slot = JobSlot::new();
    let (begun, panicked) = (AtomicUsize::new(0), AtomicBool::new(false));
    let wait = |until: &dyn Fn() -> bool| {
        while !until() {
            std::thread::yield_now();
        }
    };
    let caught = std::thread::scope(|scope| {
        let job = |worker: Worker| {
            begun.fetch_add(1, Ordering::Relaxed);
            wait(&|| begun.load(Ordering::Relaxed) == 3);
            match worker.index {
                1 => panic!("on purpose"),
                2 => wait(&|| panicked.load(Ordering::Relaxed)),
                _ => {}
            }
        };
        catch_unwind(AssertUnwindSafe(|| {
            slot.run_on(3, 0, &job, || {
                for _ in 0..2 {
                    scope.spawn(|| {
                        slot.join(0);
                        // The thread that panics returns first.
                        panicked.store(true, Ordering::Relaxed);
                    });
                }
            });
        }))
    });
    assert!(caught.is_err());
}

/// Two calls panic beside the caller, or one call and the caller. The spare payload is dropped
/// without the lock, and its own panic is caught.
#[test]
fn of_several_panics_one_comes_back_and_the_others_do_no_harm() {
    /// Joins the slot when it is dropped, then panics.
    struct Payload(std::sync::Arc<JobSlot>, std::sync::Arc<AtomicUsize>);
    impl Drop for Payload {
        fn drop(&mut self) {
            self.0.join(0);
            self.1.fetch_add(1, Ordering::Relaxed);
            panic!("a payload, on purpose");
        }
    }
    for (others, caller_panics) in [(2, false), (1, true)] {
        let slot = std::sync::Arc::new(JobSlot::new());
        let (begun, dropped) = (AtomicUsize::new(0), std::sync::Arc::new(AtomicUsize::new(0)));
        let caught = std::thread::scope(|scope| {
            let job = |worker: Worker| {
                begun.fetch_add(1, Ordering::Relaxed);
                while begun.load(Ordering::Relaxed) <= others {
                    std::thread::yield_now();
                }
                if worker.index > 0 {
                    resume_unwind(Box::new(Payload(slot.clone(), dropped.clone())));
                }
                assert!(!caller_panics, "the caller, on purpose");
            };
            catch_unwind(AssertUnwindSafe(|| {
                slot.run_on(others + 1, 0, &job, || {
                    for _ in 0..others {
                        scope.spawn(|| assert!(slot.join(0)));
                    }
                });
            }))
        });
        let payload = caught.expect_err("a panic");
        assert_eq!(payload.is::<Payload>(), !caller_panics);
        assert_eq!(dropped.load(Ordering::Relaxed), 1, "the other payload");
        drop(outside::panic_message(payload));
    }
}

#[test]
fn helpers_of_the_parent_are_forgotten() {
    let slot = JobSlot::new();
    std::mem::forget([slot.helper(1), slot.helper(2)]);
    assert_eq!(slot.helpers(), 2);
    slot.forget_helpers();
    assert_eq!(slot.helpers(), 0);
}

#[test]
fn an_invitation_that_panics_waits_for_the_threads_inside() {
    let slot = JobSlot::new();
    std::thread::scope(|scope| {
        let through = AtomicUsize::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let job = |worker: Worker| {
                assert_eq!(worker.index, 1, "the caller does not come to it");
                through.fetch_add(1, Ordering::Relaxed);
                while through.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
            };
            slot.run_on(2, 0, &job, || {
                scope.spawn(|| slot.join(0));
                while through.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                through.fetch_add(1, Ordering::Relaxed);
                panic!("nobody is there");
            });
        }));
        assert!(caught.is_err());
        let state = slot.state.lock();
        assert!(state.job.is_none() && state.running == 0 && state.panic.is_none());
    });
}
