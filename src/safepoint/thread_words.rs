//! Each use of a handle asks which participant this thread is attached as, so the answer must cost
//! only one load. It must be "none" during a traversal, because code that a traversal calls must
//! not use objects of a stopped heap, although the thread remains attached. So the id moves between
//! two words of the thread, which no other thread reads. For example, a thread that is attached as
//! 7 has `current` 7 and `hidden` 0, and while it traverses an object it has `current` 0 and
//! `hidden` 7.
//!
//! * `current` and `hidden`: the id of the participant that this thread is attached as, in any
//!   coordinator; 0: none. The id is in `hidden` while a traversal guard lives, and otherwise in
//!   `current`, so that the other word is 0.
//! * `held`: the number of traversal guards, and why else this thread must not attach, park, detach
//!   or stop now; 0: it may. Guards of this thread write it, so they are all `!Send`.
//!
//! # States
//!
//! Two facts make the state: whether the thread is attached, and whether a guard lives. Because
//! they change independently, and no transition saves a word for a later one, guards may be kept,
//! leaked and dropped in any order. A thread attaches only from `0, 0`, or comes back to an
//! attachment that its callers rely on. So it has at most one attached participant, and thus one
//! attached mutator.
//!
//! | state | `current` | `hidden` | guards | entered by | left by |
//! |---|---|---|---|---|---|
//! | detached | 0 | 0 | 0 | [`detached`], [`detached_in_sight`], the last guard's drop |
//! [`attached`], [`attached_in_sight`], [`traversing`] |
//! | attached | id | 0 | 0 | [`attached`], [`attached_in_sight`], the last guard's drop |
//! [`detached`], [`detached_in_sight`], [`traversing`] |
//! | alone | 0 | 0 | some | [`traversing`], [`detached`] | [`attached`], the last guard's drop |
//! | traversing | 0 | id | some | [`traversing`], [`attached`] | [`detached`], the last guard's
//! drop |
//!
//! | the thread | is | until |
//! |---|---|---|
//! | attaches, and waits at the gate | detached | [`attached`] |
//! | parks, or waits for its turn to stop | detached, and alone while it helps a collection |
//! [`attached`] |
//! | is in a hook that it calls in such a wait | alone | the hook's guard is dropped |
//! | is in the closure of a detach | detached | [`attached_in_sight`], or [`attached`] if the
//! closure has kept a guard |
//! | traverses an object | traversing, or alone if it helps | the traversal's guard is dropped |
//! | ends a participant | detached, or alone if it has kept a guard | |
//!
//! The flags of `held` do not change where the id is: [`STOPPING`], [`SUSPENDING`], and `ENDING`,
//! after which the thread only comes back to an attachment, or attaches to end one.
//!
//! A guard can outlive the hook, the traversal or the closure that made it. The thread then comes
//! back all the same, and is *traversing*: attached, without a mutator that
//! [`with_current`](crate::Mutator::with_current) finds, until the guard is dropped.
//!
//! The words have no destructor, so that they can be used from anywhere, also from destructors of
//! other thread-locals. The *exit watcher* does have one, in which it tells the coordinators about
//! participants that outlive their thread. Destructors that run after it on an ending thread cannot
//! attach, except to end a participant at once, so that no attached thread is unwatched.
//!
//! [`attached`]: Words::attached
//! [`attached_in_sight`]: Words::attached_in_sight
//! [`detached`]: Words::detached
//! [`detached_in_sight`]: Words::detached_in_sight

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Weak;

use crate::base::outside;
use crate::base::sync::const_thread_local;

/// `held`, the low 48 bits: the number of live [`TraversalGuard`]s.
const TRAVERSALS: u64 = (1 << 48) - 1;
/// `held`: this thread has stopped the world, or waits for its stop to be complete.
pub(crate) const STOPPING: u64 = 1 << 48;
/// `held`: this thread has suspended another thread.
pub(crate) const SUSPENDING: u64 = 1 << 49;
/// `held`: the exit watcher has run.
pub(crate) const ENDING: u64 = 1 << 63;

#[cfg_attr(any(all(test, loom), standstill_loom), derive(Clone))]
pub(crate) struct Words {
    current: Cell<u64>,
    hidden: Cell<u64>,
    held: Cell<u64>,
    /// The participant that this thread has suspended; 0: none.
    suspended: Cell<u64>,
    /// The number of this thread: the id of its first participant; 0: it has had none. In the
    /// child of a fork, the thread knows its own participants by it.
    number: Cell<u64>,
}

const_thread_local! {
    static WORDS: Words = Words::new()
}

impl Words {
    pub(crate) const fn new() -> Self {
        Self {
            current: Cell::new(0),
            hidden: Cell::new(0),
            held: Cell::new(0),
            suspended: Cell::new(0),
            number: Cell::new(0),
        }
    }

    #[inline(always)]
    pub(crate) fn current(&self) -> u64 {
        self.current.get()
    }

    #[inline(always)]
    pub(crate) fn is_traversing(&self) -> bool {
        self.held.get() & TRAVERSALS != 0
    }

    #[inline(always)]
    fn has(&self, flags: u64) -> bool {
        self.held.get() & flags != 0
    }

    /// The word that the id belongs in now.
    fn place(&self) -> &Cell<u64> {
        if self.is_traversing() { &self.hidden } else { &self.current }
    }

    /// The participant that this thread is attached as, also during a traversal; 0: none.
    pub(crate) fn attached_as(&self) -> u64 {
        self.current.get() | self.hidden.get()
    }

    /// Whether this thread may attach: it is not attached, no guard lives, and it does not end.
    #[inline(always)]
    pub(crate) fn may_attach(&self) -> bool {
        // Without a guard `hidden` is 0, so it need not be read.
        self.current.get() | self.held.get() == 0
    }

    /// Whether this thread may attach as a participant that it ends at once. Unlike other
    /// attachments, this one is allowed on an ending thread, because the participant ends before
    /// the thread returns to code that could leak it.
    pub(crate) fn may_attach_to_end(&self) -> bool {
        self.attached_as() == 0 && !self.has(!ENDING)
    }

    /// Whether this thread may attach again as a participant that its callers rely on. It must not
    /// be attached, hold a stop or keep another thread suspended, although traversal guards do not
    /// hinder it.
    pub(crate) fn may_come_back(&self) -> bool {
        self.attached_as() == 0 && !self.has(STOPPING | SUSPENDING)
    }

    /// Whether a guard forbids this thread to detach, park or stop.
    #[inline(always)]
    pub(crate) fn forbids_safepoint(&self) -> bool {
        self.has(!ENDING)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.has(ENDING)
    }

    /// This thread, which was detached, is attached as `id`.
    pub(crate) fn attached(&self, id: u64) {
        debug_assert_eq!(self.attached_as(), 0, "attached twice");
        self.place().set(id);
    }

    /// This thread is no longer attached as `id`. Nothing changes if it was not.
    pub(crate) fn detached(&self, id: u64) {
        if self.attached_as() == id {
            self.place().set(0);
        }
    }

    /// As [`attached`](Self::attached), on a thread without traversal guards.
    #[inline(always)]
    pub(crate) fn attached_in_sight(&self, id: u64) {
        self.current.set(id);
    }

    /// As [`detached`](Self::detached), on an attached thread without traversal guards.
    #[inline(always)]
    pub(crate) fn detached_in_sight(&self) {
        self.current.set(0);
    }

    pub(crate) fn set_flag(&self, flag: u64) {
        self.held.set(self.held.get() | flag);
    }

    pub(crate) fn clear_flag(&self, flag: u64) {
        self.held.set(self.held.get() & !flag);
    }

    pub(super) fn suspended(&self) -> u64 {
        self.suspended.get()
    }

    pub(super) fn set_suspended(&self, id: u64) {
        self.suspended.set(id);
        if id == 0 { self.clear_flag(SUSPENDING) } else { self.set_flag(SUSPENDING) }
    }

    pub(super) fn number(&self) -> u64 {
        self.number.get()
    }

    /// The number of this thread. `id`: the participant that is its first, if it has had none.
    pub(super) fn number_or(&self, id: u64) -> u64 {
        if self.number.get() == 0 {
            self.number.set(id);
        }
        self.number.get()
    }

    pub(crate) fn begin_traversal(&self) {
        if !self.is_traversing() {
            self.hidden.set(self.current.replace(0));
        }
        if self.held.get() & TRAVERSALS == TRAVERSALS {
            outside::abort(format_args!("standstill: a thread has leaked 2^48 traversal guards"));
        }
        self.held.set(self.held.get() + 1);
    }

    pub(crate) fn end_traversal(&self) {
        self.held.set(self.held.get() - 1);
        if !self.is_traversing() {
            self.current.set(self.hidden.replace(0));
        }
    }
}

#[inline(always)]
pub(super) fn words<R>(f: impl FnOnce(&Words) -> R) -> R {
    WORDS.with(f)
}

/// The `current` word: the id of the participant that this thread is attached as, in any
/// coordinator. 0: the thread is not attached, or is inside a traversal.
#[inline(always)]
pub fn current() -> u64 {
    WORDS.with(Words::current)
}

/// Whether this thread is inside a traversal: it has a live [`TraversalGuard`].
#[inline]
pub fn is_traversing() -> bool {
    WORDS.with(Words::is_traversing)
}

/// Whether this thread has stopped the world, or waits for its stop to be complete.
#[inline]
pub fn is_stopping() -> bool {
    WORDS.with(|w| w.has(STOPPING))
}

/// Enters a traversal. While the guard lives, [`current`] is 0, and this thread cannot attach,
/// reach a safepoint, detach, collect or stop the world.
///
/// Guards nest, and may be dropped in any order, also after the hook, the traversal or the closure
/// of a detach that made them. The traversal ends with the last one. If the thread is attached
/// then, [`current`] is its participant again.
///
/// If an attached thread leaks a guard, it reaches no safepoint any more, and every stop waits for
/// it until its participant is dropped. The process ends when a thread leaks 2^48 guards.
pub fn traversing() -> TraversalGuard {
    WORDS.with(Words::begin_traversal);
    TraversalGuard { not_send: PhantomData }
}

/// A traversal of this thread. See [`traversing`]. Neither `Send` nor `Sync`.
#[must_use = "the traversal ends when the guard is dropped"]
#[derive(Debug)]
pub struct TraversalGuard {
    not_send: PhantomData<*mut ()>,
}

impl Drop for TraversalGuard {
    fn drop(&mut self) {
        WORDS.with(Words::end_traversal);
    }
}

pub(crate) fn attached_as() -> u64 {
    WORDS.with(Words::attached_as)
}

pub(crate) fn is_suspending() -> bool {
    WORDS.with(|w| w.has(SUSPENDING))
}

/// This thread, for its name. `None` on a thread whose exit watcher has run, because std's own
/// record of the thread may be gone, and `std::thread::current` would panic.
pub(crate) fn this_thread() -> Option<std::thread::Thread> {
    (!words(Words::is_ending)).then(std::thread::current)
}

pub(super) use watcher::{unwatch, watch};

/// A receiver of the news that a thread has ended before its participant.
pub(super) trait Watched: Send + Sync {
    fn thread_ended(&self, id: u64);
}

/// This thread, which cannot attach any more, ends before these participants.
fn thread_ends(watched: Vec<(u64, Weak<dyn Watched>)>) {
    words(|w| w.set_flag(ENDING));
    for (id, coordinator) in watched {
        if let Some(coordinator) = coordinator.upgrade() {
            coordinator.thread_ended(id);
        }
    }
}

/// The exit watcher.
#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
mod watcher {
    use std::cell::RefCell;
    use std::sync::Weak;

    use super::{Watched, thread_ends};
    use crate::base::fallible::{self, NoMemory};

    #[derive(Default)]
    struct ExitWatcher(RefCell<Vec<(u64, Weak<dyn Watched>)>>);

    impl Drop for ExitWatcher {
        fn drop(&mut self) {
            thread_ends(self.0.take());
        }
    }

    thread_local! {
        static WATCHER: ExitWatcher = ExitWatcher::default();
    }

    /// Notifies `coordinator` if this thread ends before [`unwatch`]. After the watcher has run
    /// this does nothing, because the thread cannot attach.
    pub(in super::super) fn watch(id: u64, coordinator: Weak<dyn Watched>) -> Result<(), NoMemory> {
        let watched =
            WATCHER.try_with(|w| fallible::push(&mut w.0.borrow_mut(), (id, coordinator)));
        watched.unwrap_or(Ok(()))
    }

    /// The participant has ended before its thread.
    pub(in super::super) fn unwatch(id: u64) {
        let entry = WATCHER.try_with(|w| {
            let mut list = w.0.borrow_mut();
            list.iter().rposition(|(i, _)| *i == id).map(|at| list.swap_remove(at))
        });
        drop(entry);
    }
}

/// The exit watcher in models, which call `end_thread`, because a model's thread has no destructor
/// that the watcher could run in.
#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
mod watcher {
    use std::cell::RefCell;
    use std::sync::Weak;

    use super::{Watched, Words, thread_ends, words};
    use crate::base::fallible::NoMemory;
    use crate::base::sync::const_thread_local;

    const_thread_local! {
        static WATCHED: RefCell<Vec<(u64, Weak<dyn Watched>)>> = RefCell::new(Vec::new())
    }

    pub(in super::super) fn watch(id: u64, coordinator: Weak<dyn Watched>) -> Result<(), NoMemory> {
        if !words(Words::is_ending) {
            WATCHED.with(|watched| watched.borrow_mut().push((id, coordinator)));
        }
        Ok(())
    }

    pub(in super::super) fn unwatch(id: u64) {
        WATCHED.with(|watched| watched.borrow_mut().retain(|(watched, _)| *watched != id));
    }

    /// Code of a model after this call stands for destructors of other thread-locals.
    pub(crate) fn end_thread() {
        let watched = WATCHED.with(|watched| watched.take());
        thread_ends(watched);
    }
}

#[cfg(any(all(test, loom), standstill_loom))]
pub(crate) use watcher::end_thread;
