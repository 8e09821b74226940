//! Floor 3: whose turn it is to collect, and what is left to do of a collection that its thread has walked away from.
//!
//! There is one collection at a time. Whoever runs one has the [`Turn`]. A collection that somebody asked for is over
//! when that call returns. One that the heap started is in nobody's hands: its world is restarted, its finalizers have run,
//! and what remains, to clear the garbage and to let go of it, is a [`Burial`]: piles of objects from which any mutator takes
//! a [`Piece`] at its own safepoints. So no thread pays for all the garbage of the others in one long pause, and each thread
//! frees what it has made, to its own pages.
//!
//! # States
//!
//! | state | `taken` | `burial` | next |
//! |---|---|---|---|
//! | nobody collects | no | none | *taken* by [`Turn::try_take`] |
//! | taken | yes | none | nobody's again, by [`Turn::give_back`]; or *burial*, by [`Turn::leave`] |
//! | burial, clearing | yes | objects to empty and let go of | when the last piece is done: *taken*, by who did it |
//! | taken, to settle | yes | none of whose pieces can be had | *burial, counting*, by [`Turn::tally`] |
//! | burial, counting | yes | the same objects, to see which are still there | when the last piece is done: *taken*, by who did it, to end the collection |
//!
//! A piece that was taken is done by its thread alone. So a burial ends with its last piece, wherever that is done, and
//! that thread ends the collection and gives the turn back. There is one burial at a time, and it belongs to the turn.
//!
//! # Order
//!
//! A thread that was told to collect takes a place in a queue ([`Turn::ask`]), and the turn goes to the first in it. A collection that
//! the heap starts, and one that does not want to wait, find the turn taken as long as the queue is not empty. So between the
//! moment that a thread asks and its own collection there are the one that was running, and those of the threads ahead in the
//! queue, however many threads make garbage meanwhile.
//!
//! # Progress
//!
//! Nobody is obliged to work on a burial, so nobody may wait for one without working on it himself: who wants the turn takes
//! pieces, whosever they are, until there are none ([`Turn::wait`] returns when there are some). What remains then is
//! in the hands of threads that run.
//!
//! These may run a finalizer or destructor that does not return. A thread that waits in the queue wakes up after a while. If no thread
//! has taken or given back the turn or a piece meanwhile, [`Asked::wait`] returns the threads that have them, for a report.
//!
//! All of it is under one lock, taken a few times for each thousand objects. Unattached threads wait here, also while a fork
//! happens; so the lock is one that survives it, and the fork holds it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::base::fallible;
use crate::base::sync::{AtomicBool, Ordering};
use crate::heap::reclaim_queue::{Burial, Cleared, Done, Open, Piece, Task, Whose};
use crate::safepoint::{ThreadId, attached_as, lock};

/// One collection at a time: see the module's page.
#[derive(Debug)]
pub(crate) struct Turn {
    state: lock::Mutex<State>,
    /// The turn is nobody's, or there are pieces to take.
    change: lock::Condvar,
    /// Whether there is a burial. A hint, for threads that pass by.
    burying: AtomicBool,
}

/// What the lock protects.
#[derive(Debug, Default)]
pub(crate) struct State {
    taken: bool,
    /// Threads that wait for a change. To wake nobody is not free.
    waiting: usize,
    /// Who is to have the turn next, first come first served, by number.
    queue: VecDeque<u64>,
    /// The last number that was given.
    last_asked: u64,
    burial: Option<Burial>,
    /// How many burials there were.
    burials: u64,
    /// The participants that have the turn, or a piece; for reports. One for which there was no memory is missing.
    at_work: Vec<u64>,
    /// How often that has changed.
    changes: u64,
    /// How long a thread had waited since the last of these changes when it reported that.
    told: Duration,
}

impl State {
    /// This thread has taken the turn, or a piece.
    fn begins(&mut self) {
        if self.at_work.try_reserve(1).is_ok() {
            self.at_work.push(attached_as());
        }
        self.has_changed();
    }

    /// This thread has done a piece.
    fn ends(&mut self) {
        let me = attached_as();
        if let Some(at) = self.at_work.iter().position(|&other| other == me) {
            self.at_work.swap_remove(at);
        }
        self.has_changed();
    }

    /// No thread has the turn any more, nor a piece.
    fn all_end(&mut self) {
        self.at_work.clear();
        self.has_changed();
    }

    fn has_changed(&mut self) {
        self.changes += 1;
        self.told = Duration::ZERO;
    }

    /// A thread has waited for so long since the last change. `None`: that was reported, and the time has not doubled.
    fn overdue(&mut self, waited: Duration) -> Option<Overdue> {
        if waited < 2 * self.told {
            return None;
        }
        self.told = waited;
        // Without memory the report names no thread.
        let by = fallible::collect(self.at_work.iter().copied()).unwrap_or_default();
        Some(Overdue { waited, by })
    }

    /// Whether the thread with this number in the queue may have the turn now; `None`: one without a place there.
    fn is_free_for(&self, number: Option<u64>) -> bool {
        !self.taken && self.queue.front().is_none_or(|&first| Some(first) == number)
    }

    /// Whether there is something to bury that no thread has taken.
    fn has_pieces(&self) -> bool {
        self.burial.as_ref().is_some_and(Burial::has_pieces)
    }

    /// In the child of a fork: the threads that waited do not exist here.
    pub(crate) fn forget_others(&mut self) {
        self.all_end();
        self.queue.clear();
        self.waiting = 0;
    }
}

impl Turn {
    pub(crate) fn new() -> Self {
        Self {
            state: lock::Mutex::new(State::default()),
            change: lock::Condvar::new(),
            burying: AtomicBool::new(false),
        }
    }

    /// Takes the turn unless somebody has it or has asked for it, or something is left to bury.
    pub(crate) fn try_take(&self) -> bool {
        self.take_as(None)
    }

    fn take_as(&self, number: Option<u64>) -> bool {
        let mut state = self.state.lock();
        let is_free = state.is_free_for(number);
        if is_free {
            state.taken = true;
            state.begins();
        }
        is_free
    }

    /// Asks for the turn: the caller is the last in the queue now.
    pub(crate) fn ask(&self) -> Asked<'_> {
        let mut state = self.state.lock();
        state.last_asked += 1;
        let number = state.last_asked;
        // Without memory for a place in the queue it has to wait until that is empty.
        if state.queue.try_reserve(1).is_ok() {
            state.queue.push_back(number);
        }
        Asked { turn: self, number, waited: Duration::ZERO, changes: state.changes }
    }

    /// Waits for a change, for a while: a thread that is only being slowed down may have what the holder's finalizers wait
    /// for.
    pub(crate) fn wait_a_while(&self) {
        let mut state = self.state.lock();
        // Pieces may have come since the caller looked, and their thread may be gone: nobody would wake this one.
        if !state.is_free_for(None) && !state.has_pieces() {
            state.waiting += 1;
            (state, _) = self.change.wait_for(state, Duration::from_millis(5));
            state.waiting -= 1;
        }
    }

    /// Keeps everybody away from the lock, for a fork. The caller has the turn.
    pub(crate) fn hold(&self) -> (lock::Kept<'_>, lock::Guard<'_, State>) {
        self.state.keep()
    }

    /// Keeps stops from writing state bytes as plain memory, for a reader whom no stop waits for; and such readers away, for
    /// a stop that is about to write.
    pub(crate) fn table(&self) -> lock::Guard<'_, State> {
        self.state.lock()
    }

    /// Gives the turn back, and the lock.
    pub(crate) fn let_go(&self, mut state: lock::Guard<'_, State>) {
        state.taken = false;
        state.all_end();
        self.changed(state);
    }

    /// Gives the turn back.
    pub(crate) fn give_back(&self) {
        self.let_go(self.state.lock());
    }

    /// Leaves the turn, which the caller has, to those who finish the burial.
    pub(crate) fn leave(&self, mut burial: Burial) {
        let mut state = self.state.lock();
        state.burials += 1;
        burial.number = state.burials;
        state.burial = Some(burial);
        state.all_end();
        // Relaxed: who misses it looks again at his next refill.
        self.burying.store(true, Ordering::Relaxed);
        self.changed(state);
    }

    /// Whether nobody has begun with what lies on the pages of this thread.
    pub(crate) fn is_untouched(&self, home: ThreadId) -> bool {
        let state = self.state.lock();
        let mut piles = state.burial.iter().flat_map(|burial| &burial.piles);
        piles.any(|pile| pile.is_of(home) && pile.next == 0)
    }

    /// Whether something may be left to bury.
    #[inline]
    pub(crate) fn is_burying(&self) -> bool {
        // Relaxed: a hint. What it leads to is under the lock.
        self.burying.load(Ordering::Relaxed)
    }

    /// Takes some objects of the burial with that number, or, without one, of the burial that there is. Whoever gets a piece calls
    /// [`done`](Self::done).
    pub(crate) fn take(&self, whose: Whose, number: Option<u64>) -> Option<Piece> {
        let mut state = self.state.lock();
        let burial = state.burial.as_mut()?;
        let piece =
            number.is_none_or(|number| number == burial.number).then(|| burial.take(whose))??;
        state.begins();
        Some(piece)
    }

    /// A piece is done.
    pub(crate) fn done(&self, piece: Piece, cleared: Cleared) -> Done {
        drop(piece);
        let mut state = self.state.lock();
        let Some(burial) = state.burial.as_mut() else { return Done::Nothing };
        if !burial.done(cleared) {
            state.ends();
            return Done::Nothing;
        }
        let open = burial.open.take();
        let done = match (burial.task, open) {
            (Task::Clear, Some(open)) => return Done::Settle(open),
            (Task::Tally, Some(open)) => Done::End(open, burial.cleared),
            (_, None) => return Done::Nothing,
        };
        self.burying.store(false, Ordering::Relaxed);
        let burial = state.burial.take();
        drop(state);
        drop(burial);
        done
    }

    /// All that hung in the air after clearing has been settled: who is still there is counted.
    pub(crate) fn tally(&self, open: Open) {
        let mut state = self.state.lock();
        if let Some(burial) = &mut state.burial {
            burial.open = Some(open);
            burial.task = Task::Tally;
            burial.piles.iter_mut().for_each(|pile| pile.next = 0);
        }
        state.ends();
        // Who waits for the turn can help.
        self.changed(state);
    }

    /// Lets go of the lock, and wakes those who wait for what has changed.
    fn changed(&self, state: lock::Guard<'_, State>) {
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.change.notify_all();
        }
    }
}

/// A place in the queue for the turn, until the turn has been taken and after that: dropping it leaves the queue.
#[derive(Debug)]
#[must_use = "dropping it leaves the queue"]
pub(crate) struct Asked<'a> {
    turn: &'a Turn,
    number: u64,
    /// How long the thread has waited since the last change that it has seen.
    waited: Duration,
    changes: u64,
}

/// The turn does not come, and nothing changes.
#[derive(Debug)]
pub(crate) struct Overdue {
    pub(crate) waited: Duration,
    /// The participants that have the turn, or a piece.
    pub(crate) by: Vec<u64>,
}

impl Asked<'_> {
    /// Takes the turn, unless somebody has it or is to have it before.
    pub(crate) fn try_take(&self) -> bool {
        self.turn.take_as(Some(self.number))
    }

    /// Waits until this thread may have the turn, or there is something to bury. The caller is detached, or the turn's holder could
    /// wait for it. If nothing changes for so long, and each time that this time has doubled, it returns which threads are at work.
    pub(crate) fn wait(&mut self, slow: Duration) -> Option<Overdue> {
        let mut state = self.turn.state.lock();
        let mut overdue = None;
        state.waiting += 1;
        while overdue.is_none() && !state.is_free_for(Some(self.number)) && !state.has_pieces() {
            if self.changes != state.changes {
                (self.changes, self.waited) = (state.changes, Duration::ZERO);
            }
            // As long again as the wait has taken.
            let limit = self.waited.max(slow);
            let timed_out;
            (state, timed_out) = self.turn.change.wait_for(state, limit);
            if timed_out && self.changes == state.changes {
                self.waited += limit;
                overdue = state.overdue(self.waited);
            }
        }
        state.waiting -= 1;
        overdue
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = self.turn.state.lock();
        state.queue.retain(|&number| number != self.number);
        // A thread that has not taken the turn makes way for the next.
        if state.taken {
            return;
        }
        self.turn.changed(state);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_turn_goes_to_those_who_ask_in_their_order() {
        let turn = Turn::new();
        assert!(turn.try_take());
        let [first, second, third] = [(); 3].map(|()| turn.ask());
        assert!(!first.try_take(), "it is taken");
        turn.give_back();
        assert!(!turn.try_take(), "not for who has not asked");
        assert!(!second.try_take(), "nor for the second");
        assert!(first.try_take());
        drop(first);
        drop(second);
        turn.give_back();
        assert!(!turn.try_take());
        assert!(third.try_take(), "the second has left the queue");
        drop(third);
        turn.give_back();
        assert!(turn.try_take(), "the queue is empty");
    }

    #[test]
    fn who_leaves_the_queue_wakes_the_next() {
        let turn = Turn::new();
        let (first, mut second) = (turn.ask(), turn.ask());
        std::thread::scope(|s| {
            let waits = s.spawn(|| {
                assert!(second.wait(Duration::from_secs(3600)).is_none());
                second.try_take()
            });
            while turn.state.lock().waiting == 0 {
                assert!(!waits.is_finished(), "it did not wait for its turn");
                std::thread::yield_now();
            }
            drop(first);
            assert!(waits.join().expect("no panic"));
        });
    }

    #[test]
    fn a_wait_in_which_nothing_changes_is_overdue_and_again_when_it_has_doubled() {
        const SLOW: Duration = Duration::from_millis(1);
        let turn = Turn::new();
        assert!(turn.try_take());
        let (mut first, mut second) = (turn.ask(), turn.ask());
        let waited = |asked: &mut Asked<'_>| asked.wait(SLOW).expect("nothing changes").waited;
        assert_eq!([(); 4].map(|()| waited(&mut first)), [1, 2, 4, 8].map(|times| times * SLOW));
        // The thread that waits beside it does not repeat that.
        assert_eq!(waited(&mut second), 16 * SLOW);
        assert_eq!(waited(&mut first), 32 * SLOW);
        // The next thread has the turn: its time begins.
        turn.give_back();
        assert!(first.try_take());
        assert_eq!(waited(&mut second), SLOW);
    }

    #[test]
    fn a_child_of_a_fork_waits_for_no_thread_that_it_does_not_have() {
        let turn = Turn::new();
        std::mem::forget(turn.ask());
        assert!(!turn.try_take());
        turn.hold().1.forget_others();
        assert!(turn.try_take());
    }
}
