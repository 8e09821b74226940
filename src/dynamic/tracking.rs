//! The tracked set: the objects that the collector examines.
//!
//! In some programs the allocator tracks a new object, while in others its constructor does so at
//! the end. A constructor cannot know which, so its call of [`Obj::track`] must succeed in both
//! cases. Therefore an object that the allocator has tracked bears a bit (`BY_ALLOCATOR`), with
//! which the first call succeeds.

use crate::Mutator;
use crate::dynamic::handlers;
use crate::dynamic::object::{Obj, is_checked, refuse_in_traversal};
use crate::memory::shape::Cell;
use crate::object::state::{self, StateByte};
use crate::report::error::{Code, Fault};

#[derive(Clone, Copy, Debug)]
pub(super) struct InHeap<'m> {
    pub(super) m: &'m Mutator,
    pub(super) object: Obj<'m>,
}

impl<'m> InHeap<'m> {
    #[inline(always)]
    pub(super) fn state(self) -> StateByte<'m> {
        // SAFETY: rules *mapped* and *dynamic*: an object of this heap.
        unsafe { self.m.raw().core().state(self.object.number()) }
    }

    pub(super) fn cell(self) -> Cell {
        // SAFETY: rule *mapped*: an object of this heap.
        unsafe { self.m.raw().core().space.memory(self.object.address().cast()) }
    }

    /// Puts the object into the tracked set; `false`: it was there.
    #[inline(always)]
    pub(super) fn put_in(self) -> bool {
        // SAFETY: rule *stopped*: a living object of this heap.
        unsafe { self.m.raw().track(self.object.object()) }
    }
}

/// Removes an object from the tracked set. `now` is the state just read.
#[inline(always)]
fn take_out(state: &StateByte<'_>, now: u8) {
    if now & state::DYING != 0 {
        // The plain change suffices, because the dealloc handler has exclusive access.
        state.change_plainly(0, state::TRACKED | state::BY_ALLOCATOR);
    } else {
        state.unset(state::TRACKED | state::BY_ALLOCATOR);
    }
}

/// Clears the bit with which a constructor may track an object that its allocator has tracked;
/// `true`: the bit was set.
#[inline(always)]
fn take_over(m: &Mutator, object: Obj<'_>, state: &StateByte<'_>) -> bool {
    let before = if object.header().is_unique(m.id()) {
        state.change_alone(0, state::BY_ALLOCATOR)
    } else {
        state.unset(state::BY_ALLOCATOR)
    };
    before & state::BY_ALLOCATOR != 0
}

impl<'m> Obj<'m> {
    /// The object as one of the mutator's heap; `None`: it lies elsewhere.
    #[inline(always)]
    pub(super) fn here(self, m: &'m Mutator) -> Option<InHeap<'m>> {
        m.raw().owns(self.object()).then_some(InHeap { m, object: self })
    }

    #[inline(always)]
    fn state(self, m: &'m Mutator) -> Option<StateByte<'m>> {
        self.here(m).map(InHeap::state)
    }

    /// Puts a new object into the tracked set. Does nothing for one of another heap.
    pub(super) fn put_in(self, m: &'m Mutator) {
        self.here(m).map(InHeap::put_in);
    }

    /// Puts the object into the tracked set.
    ///
    /// # Errors
    ///
    /// - Its type takes no part in cycle collection.
    /// - It is tracked already. The first call after
    ///   [`allocate_tracked`](crate::dynamic::allocate_tracked) succeeds all the same.
    /// - A traverse handler runs on this thread.
    /// - In checked mode, while no other thread is attached: a field refers to memory without an
    ///   object. An untracked object stays untracked. While another thread is attached, the field
    ///   cannot be read here, so the next collection reports it, and does not follow it.
    pub fn track(self, m: &'m Mutator) -> Result<(), Fault> {
        const FUNCTION: &str = "track";
        refuse_in_traversal(FUNCTION)?;
        let here = self.gc_here(m, FUNCTION)?;
        let state = here.state();
        let was_tracked = state.get() & state::TRACKED != 0;
        if was_tracked && !take_over(m, self, &state) {
            return Err(self.fault(Code::AlreadyTracked, FUNCTION));
        }
        if is_checked(m) {
            handlers::check_fields(m, self, FUNCTION)?;
        }
        here.put_in();
        Ok(())
    }

    /// Removes the object from the tracked set. Does nothing for an untracked object.
    ///
    /// # Errors
    ///
    /// When its type takes no part in cycle collection, and in a traverse handler.
    pub fn untrack(self, m: &'m Mutator) -> Result<(), Fault> {
        const FUNCTION: &str = "untrack";
        refuse_in_traversal(FUNCTION)?;
        let state = self.gc_here(m, FUNCTION)?.state();
        take_out(&state, state.get());
        Ok(())
    }

    /// The object as one of the mutator's heap that takes part in cycle collection.
    fn gc_here(self, m: &'m Mutator, function: &'static str) -> Result<InHeap<'m>, Fault> {
        let here = if self.is_gc() { self.here(m) } else { None };
        here.ok_or_else(|| self.fault(Code::NotGcObject, function))
    }

    /// The common case of [`track`](Self::track), in which no error occurs and no code of the
    /// program runs. `false`: nothing was done, and `track` must be called.
    ///
    /// The heap must not be in checked mode, because this function makes none of its checks.
    #[inline]
    pub fn track_common(self, m: &'m Mutator) -> bool {
        debug_assert!(!is_checked(m));
        let Some(here) = self.here(m) else { return false };
        let state = here.state();
        if state.get() & state::TRACKED == 0 {
            return self.is_common() && here.put_in();
        }
        // The allocator tracks only objects that take part in cycle collection.
        take_over(m, self, &state)
    }

    /// The common case of [`untrack`](Self::untrack), as [`track_common`](Self::track_common).
    #[inline]
    pub fn untrack_common(self, m: &'m Mutator) -> bool {
        debug_assert!(!is_checked(m));
        let Some(state) = self.state(m) else { return false };
        let now = state.get();
        if now & state::TRACKED == 0 {
            return self.is_common();
        }
        take_out(&state, now);
        true
    }

    /// Whether the object takes part in cycle collection, and its type has no test of its own.
    #[inline(always)]
    fn is_common(self) -> bool {
        let record = self.record();
        record.has_gc() && record.is_gc.is_none()
    }

    /// Whether the object is in the tracked set.
    pub fn is_tracked(self, m: &'m Mutator) -> bool {
        self.state(m).is_some_and(|state| state.get() & state::TRACKED != 0)
    }

    /// Whether its finalizer was called.
    pub fn is_finalized(self, m: &'m Mutator) -> bool {
        self.state(m).is_some_and(|state| state.get() & state::FINALIZED != 0)
    }

    /// Whether the object takes part in cycle collection, because its type does, and the type's own
    /// test agrees, if there is one. Static objects do not.
    pub fn is_gc(self) -> bool {
        if self.is_static() {
            // Decided first, because the object may have no type yet.
            return false;
        }
        let record = self.record();
        record.has_gc() && record.is_gc.is_none_or(|test| self.ask(test) != 0)
    }
}
