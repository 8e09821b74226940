//! Detaching, so that no stop waits for a thread that may block.
//!
//! For example, thread 1 waits for a message of thread 2, while thread 2 collects. If thread 1
//! waited attached, the stop would wait for it, and neither thread would ever continue. So it
//! detaches for the wait, and attaches again when the message has come.
//!
//! There are three ways, which differ in the code that keeps the mutator unused meanwhile.
//!
//! | | while the thread is detached | the mutator is used meanwhile |
//! |---|---|---|
//! | [`detach`](ModelMutator::detach) | it runs a closure, which has no mutator | impossible: the closure borrows it |
//! | [`into_detached`](ModelMutator::into_detached) | a [`ModelDetached`] has the mutator | impossible: it was moved |
//! | [`leave_for_now`](ModelMutator::leave_for_now) | the mutator stays in its place, such as a thread-local | the caller promises not to |
//!
//! The last two cost the same, and exist for languages that mark the two ends of a region in which
//! a thread may block. In such a region the thread may attach to another heap, or to this heap with
//! another mutator, if it ends that attachment before it attaches here again.
//!
//! A thread answers its requests before it detaches, because they would otherwise wait until it is
//! back. When it is, it calls [`Threads::attached`](crate::model::Threads::attached).

use std::fmt;

use crate::heap::core::{Core, MODEL_REQUESTS, WATCHED};
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::{ModelMutator, set_inside_detach};
use crate::heap::parts::*;
use crate::heap::runtime_stop;
use crate::safepoint::{self, Away};

impl<M: ObjectModel> ModelMutator<M> {
    #[inline(always)]
    pub(crate) fn call_attached(&self, core: &Core<M>) {
        let _lent = self.lend_to_model();
        ThreadsOf::<M>::attached(&core.model, self);
    }

    /// Polls, and shows a look for late polls that it has.
    pub(super) fn take_watched(&self) -> u32 {
        let requests = self.poll();
        if requests & WATCHED != 0 {
            self.participant().take_requests(WATCHED);
        }
        requests
    }

    /// Whether this thread may now reach a safepoint, detach or collect. It may not inside a
    /// destructor, finalizer, callback or traversal, while it holds a stop, or while it keeps
    /// another thread suspended.
    pub fn may_park(&self) -> bool {
        !self.is_lent()
            && !safepoint::is_traversing()
            && !safepoint::is_stopping()
            && !safepoint::is_suspending()
    }

    /// Runs `f` detached, so that stops do not wait for this thread meanwhile, and `f` can block.
    ///
    /// The thread attaches again afterwards, also if `f` panics, and waits for the resume if the
    /// world is stopped at that time. If `f` has kept a
    /// [`TraversalGuard`](safepoint::TraversalGuard), the thread is inside that traversal when it
    /// is back, until the guard is dropped.
    ///
    /// # Panics
    ///
    /// Inside a destructor, finalizer, callback or traversal, while the thread holds a stop, and
    /// while it keeps another thread suspended. The process aborts if the thread cannot attach
    /// again, because code up the stack relies on the attachment. The cause is that `f` left the
    /// thread attached to another [`Coordinator`](safepoint::Coordinator), or leaked or kept a
    /// [`Suspended`](safepoint::Suspended) or a
    /// [`ModelDetachedFork`](crate::model::ModelDetachedFork).
    #[track_caller]
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.refuse_lent();
        let away = self.step_out().expect(
            "`Mutator::detach` inside a traversal or a stop of this thread; detach when that is over",
        );
        let _reattach = Reattach::new(self, set_inside_detach(true), away);
        f()
    }

    /// Calls `f`, detached unless this thread cannot detach now, because it is in a traversal or a
    /// stop, or its mutator is lent.
    pub(crate) fn detach_if_possible<R>(&mut self, f: impl FnOnce() -> R) -> R {
        if self.is_lent() {
            return f();
        }
        let away = self.step_out();
        let _reattach = away.map(|away| Reattach::new(self, set_inside_detach(true), away));
        f()
    }

    /// Detaches without a closure, for runtimes that mark the two ends of a blocking region.
    /// Meanwhile the thread may attach to another heap, if it ends that attachment before it
    /// attaches here again.
    ///
    /// It costs as much as a detach with a closure, some 15 ns with the attach. So a runtime whose
    /// threads enter and leave often keeps the [`ModelDetached`] instead of making a mutator again.
    ///
    /// # Errors
    ///
    /// The mutator itself, if [`may_park`](Self::may_park) returns `false`, or if code that the
    /// thread runs before it leaves keeps a [`TraversalGuard`](safepoint::TraversalGuard). This may
    /// be a hook, or a destructor of an object whose last reference another thread has dropped.
    #[inline]
    pub fn into_detached(self) -> Result<ModelDetached<M>, Self> {
        if !self.may_park() {
            return Err(self);
        }
        let Some(away) = self.step_out() else { return Err(self) };
        // The mutator is inside the result now, so no code relies on the attachment.
        away.disarm();
        Ok(ModelDetached(self))
    }

    /// Detaches and leaves the mutator in its place, for runtimes that cannot move it because it
    /// lies in a thread-local or in a record of the thread. Call [`come_back`](Self::come_back) at
    /// the end of the blocking region. The mutator may be dropped before that, with the effect of
    /// dropping a [`ModelDetached`].
    ///
    /// It is also allowed inside [`Finalizers::finalize`](crate::model::Finalizers::finalize) and
    /// [`WeakRefs::call_back`](crate::model::WeakRefs::call_back), if a collection calls them. So a
    /// finalizer may block while other threads stop the world and fork, but do not collect.
    ///
    /// Returns `false`, and changes nothing, if the thread is detached already, holds a stop, is
    /// inside a traversal or a destructor, or keeps another thread suspended. The traversal may
    /// also have begun in a hook or a destructor that runs before the thread leaves.
    ///
    /// # Safety
    ///
    /// Until [`come_back`](Self::come_back) has returned `true`, the thread calls no other function
    /// on this mutator, and uses no reference to an object of the heap, or to a part of one. It may
    /// hold such references, and counted references, and use them again afterwards, as after a
    /// [`safepoint`](Self::safepoint). A finalizer or callback does not return before that.
    #[inline]
    pub unsafe fn leave_for_now(&self) -> bool {
        let may_leave = self.participant().is_attached()
            && !self.is_lent_otherwise()
            && !safepoint::is_traversing()
            && !safepoint::is_stopping()
            && !safepoint::is_suspending();
        if !may_leave {
            return false;
        }
        let Some(away) = self.step_out() else { return false };
        // The caller promises that no code relies on the attachment.
        away.disarm();
        true
    }

    /// Attaches again after [`leave_for_now`](Self::leave_for_now), and waits for that while the
    /// world is stopped.
    ///
    /// Returns `false`, and changes nothing, if the thread is attached, here or elsewhere, inside a
    /// traversal, in the closure of a [`detach`](Self::detach), keeps another one suspended, or is
    /// ending.
    #[inline]
    pub fn come_back(&self) -> bool {
        // Inside the closure of another mutator's detach, the attachment could outlive the closure.
        !Self::is_inside_detach() && self.step_in()
    }

    /// As [`come_back`](Self::come_back), but does not wait. Also `false`, and nothing has changed,
    /// if the world is stopped, or if a runtime that
    /// [stops its threads itself](crate::model::RuntimeStop) is.
    #[must_use = "the thread is detached if it is `false`"]
    pub fn try_come_back(&self) -> bool {
        let attached = !Self::is_inside_detach()
            && self.participant().try_attach()
            && runtime_stop::try_return(self.core(), self.participant());
        if attached {
            self.arrive();
        }
        attached
    }

    #[track_caller]
    pub(super) fn refuse_lent(&self) {
        assert!(
            !self.is_lent(),
            "`Mutator::detach` inside a destructor, finalizer, callback or `with_current`: its caller \
             relies on the attachment; detach when it has returned"
        );
    }

    /// Attaches again after [`step_out`](Self::step_out). Returns `false` if the thread is attached
    /// to another heap, or is traversing.
    fn step_in(&self) -> bool {
        let attached = self.participant().attach().is_ok();
        if attached {
            self.return_to_runtime();
            self.arrive();
        }
        attached
    }

    /// Detaches, after this thread has answered every request that only it can answer. `None` if
    /// the thread is still attached, because it is in a traversal or a stop. The answer, or a hook
    /// of a wait at the gate, may have begun it. A panic leaves the thread attached, too.
    pub(super) fn step_out(&self) -> Option<Away> {
        let participant = self.participant();
        let mut answered = 0;
        loop {
            if self.poll() & MODEL_REQUESTS != 0 {
                self.answer();
            }
            let (away, raised) = participant.step_away()?;
            // Another thread may have raised a request while this thread was still attached.
            let raised = raised & (MODEL_REQUESTS | WATCHED);
            self.leave_runtime();
            if raised == 0 {
                return Some(away);
            }
            if raised & WATCHED != 0 {
                participant.take_requests(WATCHED);
            }
            let requests = raised & MODEL_REQUESTS;
            if requests == 0 {
                return Some(away);
            }
            answered += 1;
            if answered > 1 && requests & !ThreadsOf::<M>::SHARED_REQUESTS == 0 {
                // Each further answer would give other threads time to raise the next request.
                self.core().coordinator.poke_attached(requests);
                return Some(away);
            }
            away.disarm();
            participant.come_back();
            self.return_to_runtime();
        }
    }
}

/// Attaches a detached thread again when this is dropped, and takes over the duty of its [`Away`].
/// The second field tells whether the thread was inside another detach before.
pub(super) struct Reattach<'a, M: ObjectModel>(&'a ModelMutator<M>, bool);

impl<'a, M: ObjectModel> Reattach<'a, M> {
    #[inline(always)]
    pub(super) fn new(mutator: &'a ModelMutator<M>, was_inside: bool, away: Away) -> Self {
        away.disarm();
        Self(mutator, was_inside)
    }
}

impl<M: ObjectModel> Drop for Reattach<'_, M> {
    fn drop(&mut self) {
        set_inside_detach(self.1);
        let core = &**self.0.core();
        self.0.participant().come_back();
        self.0.return_to_runtime();
        self.0.arrive_in(core);
    }
}

/// The mutator of a detached thread, as [`ModelMutator::into_detached`] returns it.
///
/// The drop attaches the thread once more, to end the attachment properly. A thread cannot attach
/// while it is attached to another heap, is inside a traversal, holds a fork, or keeps another
/// thread suspended. Then the attachment ends when the thread has dropped its next mutator, of any
/// heap. A panic of the model at that time goes to [`ModelHeap::on_unraisable`]. Until then
/// [`HeapStats::mutators`](crate::HeapStats::mutators) counts the mutator and the heap stays open,
/// although no stop waits for it.
#[must_use = "dropping it ends the attachment for good"]
pub struct ModelDetached<M: ObjectModel>(ModelMutator<M>);

impl<M: ObjectModel> ModelDetached<M> {
    /// Attaches the thread again, and waits for that while the world is stopped.
    ///
    /// # Errors
    ///
    /// The value itself, if the thread is attached elsewhere, is inside a traversal, keeps another
    /// thread suspended, is ending, or is in the closure of a [`ModelMutator::detach`].
    #[inline]
    pub fn attach(self) -> Result<ModelMutator<M>, Self> {
        if self.0.come_back() { Ok(self.0) } else { Err(self) }
    }

    /// As [`attach`](Self::attach), but does not wait, for a thread that holds a lock which the
    /// stopped threads may need.
    ///
    /// # Errors
    ///
    /// The value itself, if the world is stopped, or in the cases of [`attach`](Self::attach).
    pub fn try_attach(self) -> Result<ModelMutator<M>, Self> {
        if self.0.try_come_back() { Ok(self.0) } else { Err(self) }
    }

    /// The heap to which the mutator belongs.
    pub fn heap(&self) -> &ModelHeap<M> {
        self.0.heap()
    }
}

impl<M: ObjectModel> fmt::Debug for ModelDetached<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelDetached").field("heap", self.heap()).finish()
    }
}
