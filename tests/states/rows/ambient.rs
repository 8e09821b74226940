//! `Heap::enter`, and the guards that it returns.

use standstill::{Attached, Mutator};

use super::{Rows, done, ok, outcome};
use crate::stage::Call::{Exclusive, Free, Shared};
use crate::things::Things;

/// Calls `f` with a guard of the heap of the things, where the thread gets one.
fn entered(t: &Things, f: impl FnOnce(Attached) -> String) -> String {
    match t.heap().try_enter() {
        Ok(attached) => f(attached),
        Err(error) => format!("error: {error}"),
    }
}

pub(super) const ROWS: Rows = &[
    ("Heap::enter", Free(|t| done(t.heap().enter()))),
    ("Heap::enter, another heap", Free(|t| done(t.other.enter()))),
    ("Heap::try_enter", Free(|t| outcome(t.heap().try_enter().map(|_| ())))),
    ("Heap::with", Free(|t| ok(t.heap().with(|m| t.leaf_of(m, 30).number)))),
    ("Heap::try_with", Free(|t| outcome(t.heap().try_with(|m| t.leaf_of(m, 30).number)))),
    ("Heap::try_with, another heap", Free(|t| outcome(t.other.try_with(|_| ())))),
    ("Attached::poll", Free(|t| entered(t, |a| done(a.poll())))),
    ("Attached::poll_word", Free(|t| entered(t, |a| ok(a.poll_word().is_some())))),
    ("Attached::safepoint", Free(|t| entered(t, |a| done(a.safepoint())))),
    ("Attached::park", Free(|t| entered(t, |a| done(a.park())))),
    ("Attached::may_park", Free(|t| entered(t, |a| ok(a.may_park())))),
    ("Attached::with", Free(|t| entered(t, |a| ok(a.with(|m| t.leaf_of(m, 30).number))))),
    ("Attached::try_with", Free(|t| entered(t, |a| outcome(a.try_with(|_| ()))))),
    (
        "Attached::with_mut",
        Free(|t| entered(t, |a| ok(a.with_mut(|m| m.collect().abandoned.is_none())))),
    ),
    (
        "Attached::detached",
        Free(|t| entered(t, |a| ok(a.detached(|| Mutator::with_current(|_| ()).is_some())))),
    ),
    ("Attached::depart", Free(|t| entered(t, |a| ok(a.depart().has_left())))),
    (
        "Attached::depart, leaked",
        Free(|t| {
            entered(t, |a| {
                std::mem::forget(a.depart());
                outcome(a.try_with(|_| ()))
            })
        }),
    ),
    ("Attached::end_mutator", Free(|t| entered(t, |a| done(a.end_mutator())))),
    ("Attached: Debug", Free(|t| entered(t, ok))),
    ("Departure::has_left", Free(|t| entered(t, |a| ok(a.depart().has_left())))),
    ("Departure::try_come_back", Free(|t| entered(t, |a| ok(a.depart().try_come_back().is_ok())))),
    ("Departure: Drop", Free(|t| entered(t, |a| done(a.depart())))),
    ("Departure: Debug", Free(|t| entered(t, |a| ok(a.depart())))),
    ("Mutator::poll", Shared(|_, m| done(m.poll()))),
    ("Mutator::park", Exclusive(|_, m| done(m.park()))),
];
