//! The tracked set: the objects that the collector examines.

use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::dynamic::handlers;
use crate::dynamic::object::{Inquiry, Obj, is_checked, raw, refuse_in_traversal};
use crate::object::state::{self, StateByte};

/// The state of an object; `None`: it is not of the mutator's heap.
#[inline(always)]
pub(super) fn state_of<'m>(m: &'m Mutator, object: Obj<'m>) -> Option<StateByte<'m>> {
    // SAFETY: rules *mapped* and *dynamic*: an object of this heap.
    raw(m).owns(object.object()).then(|| unsafe { raw(m).core().state(object.number()) })
}

/// Clears the bit with which a constructor may track an object that its allocator has tracked;
/// `true`: the bit was set.
#[inline(always)]
fn take_over(m: &Mutator, object: Obj<'_>, state: &StateByte<'_>) -> bool {
    let before = if object.header().is_alone(m.id()) {
        state.change_alone(0, state::BY_ALLOCATOR)
    } else {
        state.unset(state::BY_ALLOCATOR)
    };
    before & state::BY_ALLOCATOR != 0
}

impl<'m> Obj<'m> {
    /// Puts the object into the tracked set.
    ///
    /// # Errors
    ///
    /// - Its type takes no part in cycle collection.
    /// - It is tracked already. The first call after
    ///   [`allocate_tracked`](crate::dynamic::allocate_tracked) succeeds all the same.
    /// - A traverse handler runs on this thread.
    /// - In checked mode: a field refers to memory without an object. The object stays untracked.
    pub fn track(self, m: &'m Mutator) -> Result<(), Fault> {
        const FUNCTION: &str = "track";
        refuse_in_traversal(FUNCTION)?;
        let state = self.tracked_state(m, FUNCTION)?;
        let was_tracked = state.get() & state::TRACKED != 0;
        // Two conventions exist: the allocator tracks the object, or its constructor does.
        if was_tracked && !take_over(m, self, &state) {
            return Err(self.fault(Code::AlreadyTracked, FUNCTION));
        }
        if is_checked(m) {
            handlers::check_fields(m, self, FUNCTION)?;
        }
        if !was_tracked {
            // SAFETY: rule *stopped*: a living object of this heap.
            unsafe { raw(m).track(self.object()) };
        }
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
        let state = self.tracked_state(m, FUNCTION)?;
        if state.get() & state::DYING != 0 {
            // In its dealloc handler, which has exclusive access.
            state.change_plainly(0, state::TRACKED | state::BY_ALLOCATOR);
        } else {
            state.unset(state::TRACKED | state::BY_ALLOCATOR);
        }
        Ok(())
    }

    /// The state of an object of the mutator's heap that takes part in cycle collection.
    fn tracked_state(self, m: &'m Mutator, function: &'static str) -> Result<StateByte<'m>, Fault> {
        let state = if self.is_gc() { state_of(m, self) } else { None };
        state.ok_or_else(|| self.fault(Code::NotGcObject, function))
    }

    /// The common case of [`track`](Self::track), in which no error occurs and no code of the
    /// program runs. `false`: nothing was done; `track` must be called.
    ///
    /// # Safety
    ///
    /// The heap is not in checked mode, and this thread runs no traverse handler in a stop.
    #[inline]
    pub unsafe fn track_common(self, m: &'m Mutator) -> bool {
        debug_assert!(!is_checked(m));
        let Some(state) = state_of(m, self) else { return false };
        let now = state.get();
        if now & state::TRACKED == 0 {
            // SAFETY: rule *stopped*: a living object of this heap.
            return self.is_common() && unsafe { raw(m).track(self.object()) };
        }
        // The allocator tracks only objects that take part in cycle collection.
        now & state::BY_ALLOCATOR != 0 && take_over(m, self, &state)
    }

    /// The common case of [`untrack`](Self::untrack), as [`track_common`](Self::track_common).
    ///
    /// # Safety
    ///
    /// As for [`track_common`](Self::track_common).
    #[inline]
    pub unsafe fn untrack_common(self, m: &'m Mutator) -> bool {
        debug_assert!(!is_checked(m));
        let Some(state) = state_of(m, self) else { return false };
        let now = state.get();
        if now & (state::DYING | state::TRACKED) == state::DYING | state::TRACKED {
            // In its dealloc handler, which has exclusive access.
            state.change_plainly(0, state::TRACKED | state::BY_ALLOCATOR);
        } else if now & state::TRACKED != 0 {
            state.unset(state::TRACKED | state::BY_ALLOCATOR);
        } else {
            return self.is_common();
        }
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
        state_of(m, self).is_some_and(|state| state.get() & state::TRACKED != 0)
    }

    /// Whether its finalizer was called.
    pub fn is_finalized(self, m: &'m Mutator) -> bool {
        state_of(m, self).is_some_and(|state| state.get() & state::FINALIZED != 0)
    }

    /// Whether the object takes part in cycle collection: its type does, and the type's own test
    /// agrees, if there is one. Static objects do not.
    pub fn is_gc(self) -> bool {
        if self.is_static() {
            // It may have no type yet.
            return false;
        }
        let record = self.record();
        // SAFETY: rule *handlers*: the test is called for an object of its type.
        let passes = |test: Inquiry| unsafe { test(self.address().as_ptr()) } != 0;
        record.has_gc() && record.is_gc.is_none_or(passes)
    }
}
