//! Threads that are stopped without a heap: the coordinator on its own.
//!
//! A participant belongs to the thread that made it. So each thread has a list of its own, in which
//! a call finds the address that C has passed. A wrong address, or another thread's participant, is
//! refused there, without a lock that a fork would have to hold.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use standstill::safepoint::{Config, Coordinator, ForkGuard, Participant, StopError, WorldStopped};
use standstill::{AttachError, Code, Fault, fallible, words};

use crate::call::{self, Given, export};
use crate::gc::Bound;
use crate::{errors, thread};

/// What a thread shows to the others: the pointer that C has registered it with.
type Shared = Bound<()>;

/// A coordinator, as C holds it: from `Box::into_raw`.
#[derive(Debug)]
pub struct standstill_coordinator {
    threads: Arc<Coordinator<Shared>>,
}

/// The membership of a thread. C holds the address of what the thread's list has in an `Arc`.
#[derive(Debug)]
pub struct standstill_participant {
    /// Before the participant, which it borrows, because fields are dropped in their order.
    held: RefCell<Option<Held>>,
    participant: Participant<Shared>,
}

/// What its thread keeps stopped.
#[derive(Debug)]
enum Held {
    Stop(WorldStopped<'static, Shared>),
    #[expect(dead_code, reason = "its drop ends the fork")]
    Fork(ForkGuard<'static, Shared>),
}

thread_local! {
    static OWN: RefCell<Vec<Arc<standstill_participant>>> = const { RefCell::new(Vec::new()) };
}

/// This thread's participant at an address.
fn own(at: Given<'_, standstill_participant>) -> Result<Arc<standstill_participant>, Fault> {
    let address = at.some()?.as_ptr().cast_const();
    let find = |own: &RefCell<Vec<Arc<_>>>| {
        own.borrow().iter().find(|known| Arc::as_ptr(known) == address).cloned()
    };
    // On an ending thread the list is gone, and so are its participants.
    OWN.try_with(find).ok().flatten().ok_or_else(|| {
        Fault::new(Code::ForeignPointer, "argument")
            .at(address as usize)
            .because("the calling thread has no participant at this address")
    })
}

/// Runs a function that returns 0, or -1 after a fault.
fn status(function: &'static str, f: impl FnOnce() -> Result<(), Fault>) -> c_int {
    call::outside(function, -1, || match f() {
        Ok(()) => 0,
        Err(mut fault) => {
            fault.function = function;
            errors::set_fault(&fault);
            -1
        }
    })
}

impl standstill_participant {
    /// Why the thread cannot detach or park.
    fn must_have(&self, is_done: bool) -> Result<(), Fault> {
        let code = match is_done {
            true => return Ok(()),
            false if self.participant.is_attached() => Code::NotAllowedHere,
            false => Code::NotAttached,
        };
        Err(Fault::new(code, "argument"))
    }

    /// Keeps what `stop` returns until the thread resumes the others.
    fn hold(
        &self,
        stop: impl FnOnce(&'static Participant<Shared>) -> Result<Held, StopError>,
    ) -> Result<(), Fault> {
        let participant = &raw const self.participant;
        // SAFETY: rule *pinned*: the participant lies in an `Arc`. What borrows it is kept beside
        // it, in the field that is dropped first.
        let held = stop(unsafe { &*participant }).map_err(|error| error.fault("argument"))?;
        self.held.replace(Some(held));
        Ok(())
    }
}

export! {
    /// Makes a coordinator without threads.
    #[given(name)]
    fn standstill_coordinator_new(
        name: *const c_char,
        slow_stop_ms: c_uint,
    ) -> *mut standstill_coordinator {
        let mut made = std::ptr::null_mut();
        status("standstill_coordinator_new", || {
            let name = name.text().map(|name| fallible::lossy(name.to_bytes())).transpose()?;
            let name = name.map(|name| fallible::owned(&name)).transpose()?;
            let mut config = Config { name, ..Config::default() };
            if slow_stop_ms != 0 {
                config.slow_stop = Duration::from_millis(slow_stop_ms.into());
            }
            let threads = Coordinator::try_with_config(config)?;
            threads.try_on_slow_stop(errors::slow_stop)?;
            made = Box::into_raw(fallible::boxed(standstill_coordinator { threads })?);
            Ok(())
        });
        made
    }

    /// Gives a coordinator up.
    #[given(coordinator)]
    fn standstill_coordinator_free(coordinator: *mut standstill_coordinator) -> c_int {
        status("standstill_coordinator_free", || {
            // SAFETY: rule *argument*: from `standstill_coordinator_new`, and freed once.
            drop(unsafe { Box::from_raw(coordinator.some()?.as_ptr()) });
            Ok(())
        })
    }

    /// Registers the calling thread.
    #[given(coordinator)]
    fn standstill_participant_new(
        coordinator: *mut standstill_coordinator,
        data: *mut c_void,
    ) -> *mut standstill_participant {
        let mut made = std::ptr::null();
        status("standstill_participant_new", || {
            // SAFETY: rule *argument*: from `standstill_coordinator_new`, and not freed.
            let threads = unsafe { coordinator.some()?.as_ref() }.threads.clone();
            let shared = Bound { function: (), arg: data };
            let participant = threads.try_register(shared);
            let participant = participant.map_err(|error| thread::refused(error, "argument"))?;
            let own = standstill_participant { held: RefCell::default(), participant };
            let own = fallible::arc(own)?;
            let at = Arc::as_ptr(&own);
            // After the registration, so that the list is destroyed before the library's watch over
            // the thread, which would take its participants for leaked.
            OWN.try_with(|list| fallible::push(&mut list.borrow_mut(), own))
                .map_err(|_| thread::refused(AttachError::ThreadEnding, "argument"))??;
            made = at;
            Ok(())
        });
        made.cast_mut()
    }

    /// Ends a membership.
    #[given(participant)]
    fn standstill_participant_free(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_free", || {
            let own = own(participant)?;
            let is_other = |known: &Arc<_>| !Arc::ptr_eq(known, &own);
            OWN.with(|list| list.borrow_mut().retain(is_other));
            Ok(())
        })
    }

    /// Attaches, after the end of a stop.
    #[given(participant)]
    fn standstill_participant_attach(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_attach", || {
            own(participant)?.participant.attach().map_err(|error| {
                Fault::new(Code::NotAllowedHere, "argument").because(words!("{error}"))
            })
        })
    }

    /// Detaches.
    #[given(participant)]
    fn standstill_participant_detach(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_detach", || {
            let own = own(participant)?;
            own.must_have(own.participant.detach())
        })
    }

    /// The word that is not 0 when the thread should park.
    #[given(participant)]
    fn standstill_participant_poll_word(participant: *mut standstill_participant) -> *const u32 {
        let mut word = std::ptr::null();
        status("standstill_participant_poll_word", || {
            word = own(participant)?.participant.poll_word().as_ptr().cast_const();
            Ok(())
        });
        word
    }

    /// Waits while a stop is on.
    #[given(participant)]
    fn standstill_participant_park(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_park", || {
            let own = own(participant)?;
            own.must_have(own.participant.park())
        })
    }

    /// Stops the other threads.
    #[given(participant)]
    fn standstill_participant_stop(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_stop", || {
            own(participant)?.hold(|participant| participant.stop().map(Held::Stop))
        })
    }

    /// Stops the other threads, unless another one does.
    #[given(participant)]
    fn standstill_participant_try_stop(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_try_stop", || {
            own(participant)?.hold(|participant| participant.try_stop().map(Held::Stop))
        })
    }

    /// Stops the other threads, or gives up.
    #[given(participant)]
    fn standstill_participant_stop_for(
        participant: *mut standstill_participant,
        limit_ns: u64,
    ) -> c_int {
        status("standstill_participant_stop_for", || {
            let limit = Duration::from_nanos(limit_ns);
            own(participant)?.hold(|participant| participant.stop_for(limit).map(Held::Stop))
        })
    }

    /// Stops the other threads for a fork.
    #[given(participant)]
    fn standstill_participant_prepare_fork(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_prepare_fork", || {
            own(participant)?.hold(|participant| {
                participant.coordinator().prepare_fork(participant).map(Held::Fork)
            })
        })
    }

    /// Lets the other threads run.
    #[given(participant)]
    fn standstill_participant_resume(participant: *mut standstill_participant) -> c_int {
        status("standstill_participant_resume", || {
            let held = own(participant)?.held.take();
            held.map(drop).ok_or_else(not_stopped)
        })
    }

    /// Visits the threads of a stop.
    #[given(participant)]
    fn standstill_participant_threads(
        participant: *mut standstill_participant,
        each: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
        arg: *mut c_void,
    ) -> c_int {
        status("standstill_participant_threads", || {
            let own = own(participant)?;
            let each = each.ok_or_else(|| Fault::new(Code::NullArgument, "argument"))?;
            // Taken meanwhile, so that `each` cannot end the stop.
            let held = own.held.take();
            if let Some(Held::Stop(world)) = &held {
                // SAFETY: rule *argument*: the program has passed the function for this call.
                world.threads(|_, shared| unsafe { each(shared.arg, arg) });
            }
            let is_stop = matches!(held, Some(Held::Stop(_)));
            own.held.replace(held);
            if is_stop { Ok(()) } else { Err(not_stopped()) }
        })
    }
}

fn not_stopped() -> Fault {
    Fault::new(Code::NotAllowedHere, "argument").because("this thread has not stopped the others")
}
