//! Floor 2: the garbage of a collection that its thread has left to all mutators, in pieces.
//!
//! A [`Burial`] is under the lock of the [turn](super::collector_lock), whose page tells its states.

use crate::base::event::{CollectionReport, Span};
use crate::base::fallible::{self, NoMemory};
use crate::object::type_info::Object;
use crate::safepoint::ThreadId;

/// A collection whose figures are not complete yet.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) report: CollectionReport,
    /// The callbacks of the services are not to know.
    pub(crate) quiet: bool,
    pub(crate) begun: std::time::Instant,
    pub(crate) span: Span,
}

/// What became of garbage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cleared {
    pub(crate) collected: usize,
    pub(crate) uncollectable: usize,
}

/// What is done with the objects of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Empty them, then let go of them.
    Clear,
    /// See which of them are still there.
    Tally,
}

impl Task {
    /// How many objects are as much work as one to clear: to look at a byte costs little.
    pub(crate) fn share(self) -> usize {
        match self {
            Self::Clear => 1,
            Self::Tally => 16,
        }
    }
}

/// What there is to do for the thread that has done a piece.
#[derive(Debug)]
pub(crate) enum Done {
    /// Nothing.
    Nothing,
    /// Everything is cleared: it settles, and calls [`Turn::tally`].
    Settle(Open),
    /// Everything is counted: it has the turn, and ends the collection.
    End(Open, Cleared),
}

/// Objects of a piece, at most. To bury so many takes less than a tenth of a millisecond.
pub(crate) const PIECE: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 512 };

/// Garbage that lies on one thread's pages.
#[derive(Debug)]
pub(crate) struct Pile {
    home: ThreadId,
    objects: Vec<Object>,
    /// How many have been taken.
    pub(super) next: usize,
}

impl Pile {
    pub(crate) fn new(home: ThreadId, objects: Vec<Object>) -> Self {
        Self { home, objects, next: 0 }
    }

    pub(crate) fn is_of(&self, home: ThreadId) -> bool {
        self.home == home
    }

    pub(crate) fn push(&mut self, object: Object) -> Result<(), NoMemory> {
        fallible::push(&mut self.objects, object)
    }

    /// Whether there is something left to take.
    fn has_pieces(&self) -> bool {
        self.next < self.objects.len()
    }
}

/// Step 10 of a collection, in pieces.
#[derive(Debug)]
pub(crate) struct Burial {
    pub(super) piles: Vec<Pile>,
    pub(super) task: Task,
    /// Pieces that were taken and are not done.
    under_way: usize,
    garbage: usize,
    pub(super) cleared: Cleared,
    span: Span,
    /// The how manieth burial of the heap it is.
    pub(super) number: u64,
    /// With the thread that settles, while one does.
    pub(super) open: Option<Open>,
}

impl Burial {
    pub(crate) fn new(piles: Vec<Pile>, open: Open) -> Self {
        let garbage = piles.iter().map(|pile| pile.objects.len()).sum();
        let span = open.span.clone();
        Self {
            piles,
            task: Task::Clear,
            under_way: 0,
            garbage,
            cleared: Cleared::default(),
            span,
            number: 0,
            open: Some(open),
        }
    }

    pub(super) fn has_pieces(&self) -> bool {
        self.piles.iter().any(Pile::has_pieces)
    }

    pub(super) fn take(&mut self, whose: Whose) -> Option<Piece> {
        let pile = self.piles.iter_mut().find(|pile| {
            pile.has_pieces()
                && match whose {
                    // To count is anybody's work.
                    Whose::Of(home) => pile.is_of(home) || self.task == Task::Tally,
                    Whose::Anybodys => true,
                }
        })?;
        let left = &pile.objects[pile.next..];
        let taken = &left[..left.len().min(PIECE)];
        let mut objects = [*taken.first()?; PIECE];
        objects[..taken.len()].copy_from_slice(taken);
        let len = taken.len();
        pile.next += len;
        self.under_way += 1;
        let (task, garbage, span) = (self.task, self.garbage, self.span.clone());
        Some(Piece { objects, len, task, garbage, span, burial: self.number })
    }

    /// A piece is done. `true`: it was the last one of its kind.
    pub(super) fn done(&mut self, cleared: Cleared) -> bool {
        self.under_way -= 1;
        self.cleared.collected += cleared.collected;
        self.cleared.uncollectable += cleared.uncollectable;
        self.under_way == 0 && !self.has_pieces()
    }
}

/// Whose garbage a thread works on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    /// What lies on the pages of this thread.
    Of(ThreadId),
    /// Anybody's: for a thread that wants the turn.
    Anybodys,
}

/// Some objects of a burial: the taker's alone until they are [`done`](Turn::done). In place: to take one asks nobody for
/// memory, of which there may be none until something is buried.
#[derive(Debug)]
pub(crate) struct Piece {
    objects: [Object; PIECE],
    len: usize,
    pub(crate) task: Task,
    /// How many objects the whole burial has.
    pub(crate) garbage: usize,
    pub(crate) span: Span,
    burial: u64,
}

impl Piece {
    /// The number of the burial that it is a piece of.
    pub(crate) fn burial(&self) -> u64 {
        self.burial
    }

    pub(crate) fn objects(&self) -> &[Object] {
        &self.objects[..self.len]
    }
}
