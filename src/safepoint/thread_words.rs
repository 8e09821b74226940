//! What this thread is doing, in words that no other thread reads.
//!
//! | word | written | means |
//! |---|---|---|
//! | `current` | by attach and detach of this thread, put aside while traversing | the id of the participant this thread is attached as, in any coordinator; 0: none |
//! | `held` | by the guards of this thread (all `!Send`) | why this thread may not attach, park, detach or stop just now; 0: it may |
//!
//! The words have no destructor, so they can be used from anywhere, other thread-locals'
//! destructors included. The one that has a destructor is the *exit watcher*, which tells the
//! coordinators about participants that outlive their thread. Whatever runs after it on an ending
//! thread can no longer attach, so no attached thread is ever unwatched.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Weak;

use crate::base::sync::const_thread_local;

/// `held`, the low half: how many [`TraversalGuard`]s live.
const TRAVERSING: u32 = 0xffff;
const ONE_TRAVERSAL: u32 = 1;
/// `held`: this thread holds a stop, or waits for its stop to be complete.
pub(super) const STOPPING: u32 = 1 << 16;
/// `held`: this thread keeps another one suspended.
pub(super) const SUSPENDING: u32 = 1 << 17;
/// `held`: the exit watcher has gone.
const ENDING: u32 = 1 << 18;

struct Words {
    current: Cell<u64>,
    /// `current` of before the outermost traversal guard.
    aside: Cell<u64>,
    held: Cell<u32>,
    /// Whom this thread keeps suspended; 0: nobody.
    suspended: Cell<u64>,
}

const_thread_local! {
    static WORDS: Words = Words {
        current: Cell::new(0),
        aside: Cell::new(0),
        held: Cell::new(0),
        suspended: Cell::new(0),
    }
}

/// The `current` word: the id of the participant this thread is attached as, in whatever
/// coordinator; 0 when it is not attached, or traverses.
#[inline(always)]
pub fn current() -> u64 {
    WORDS.with(|w| w.current.get())
}

/// Whether this thread is inside a traversal: a [`TraversalGuard`] of it lives.
#[inline]
pub fn is_traversing() -> bool {
    held() & TRAVERSING != 0
}

/// Whether this thread holds a stop, or is waiting for the stop it asked for to be complete.
#[inline]
pub fn is_stopping() -> bool {
    held() & STOPPING != 0
}

/// Enters a traversal: [`current`] is 0 and attaching is refused in this thread while the guard
/// lives. Guards nest, and may be dropped in any order.
pub fn traversing() -> TraversalGuard {
    WORDS.with(|w| {
        if w.held.get() & TRAVERSING == 0 {
            w.aside.set(w.current.replace(0));
        }
        assert!(w.held.get() & TRAVERSING != TRAVERSING, "traversals are nested too deeply");
        w.held.set(w.held.get() + ONE_TRAVERSAL);
    });
    TraversalGuard { not_send: PhantomData }
}

/// This thread is inside a traversal; see [`traversing`]. Neither `Send` nor `Sync`.
#[must_use = "the traversal ends when the guard is dropped"]
#[derive(Debug)]
pub struct TraversalGuard {
    not_send: PhantomData<*mut ()>,
}

impl Drop for TraversalGuard {
    fn drop(&mut self) {
        WORDS.with(|w| {
            w.held.set(w.held.get() - ONE_TRAVERSAL);
            if w.held.get() & TRAVERSING == 0 {
                w.current.set(w.aside.replace(0));
            }
        });
    }
}

/// While this lives, user code on this thread finds it attached nowhere, and cannot attach it: for a call by a thread that is
/// detached under an attachment that its callers rely on.
pub(super) struct Nowhere {
    current: u64,
    aside: u64,
    traversing: Option<TraversalGuard>,
}

impl Nowhere {
    pub(super) fn new() -> Self {
        let (current, aside) = WORDS.with(|w| (w.current.replace(0), w.aside.replace(0)));
        Self { current, aside, traversing: Some(traversing()) }
    }
}

impl Drop for Nowhere {
    fn drop(&mut self) {
        drop(self.traversing.take());
        WORDS.with(|w| {
            w.current.set(self.current);
            w.aside.set(self.aside);
        });
    }
}

/// Why this thread may not attach: the `current` word and `held`, both 0 when it may.
#[inline(always)]
pub(super) fn obstacles() -> (u64, u32) {
    WORDS.with(|w| (w.current.get(), w.held.get()))
}

#[inline(always)]
pub(super) fn held() -> u32 {
    WORDS.with(|w| w.held.get())
}

pub(super) fn is_ending() -> bool {
    held() & ENDING != 0
}

/// Whom this thread is attached as, also while it traverses; 0: nobody.
pub(crate) fn attached_as() -> u64 {
    WORDS.with(|w| w.current.get().max(w.aside.get()))
}

/// Whether what this thread holds forbids it to detach, park or stop.
#[inline(always)]
pub(super) fn forbids_safepoint() -> bool {
    held() & !ENDING != 0
}

/// Whether this thread may take up an attachment again that code further up its stack relies on. Unlike a first attachment also
/// on an ending thread: its coordinator was told that the participant outlives the thread, and lets stops fail, not wait.
#[inline(always)]
pub(super) fn may_come_back() -> bool {
    WORDS.with(|w| w.current.get() | u64::from(w.held.get() & !ENDING) == 0)
}

/// Raises one of the flags of `held`.
pub(super) fn set_flag(flag: u32) {
    WORDS.with(|w| w.held.set(w.held.get() | flag));
}

/// Lowers one of the flags of `held`.
pub(super) fn clear_flag(flag: u32) {
    WORDS.with(|w| w.held.set(w.held.get() & !flag));
}

/// This thread is attached as `id`.
#[inline(always)]
pub(super) fn set_current(id: u64) {
    WORDS.with(|w| w.current.set(id));
}

/// This thread is no longer attached as `id`, if it was.
#[inline]
pub(super) fn clear_current(id: u64) {
    WORDS.with(|w| {
        if w.current.get() == id {
            w.current.set(0);
        } else if w.aside.get() == id {
            w.aside.set(0);
        }
    });
}

/// Whether this thread keeps another one suspended.
pub(crate) fn is_suspending() -> bool {
    suspended() != 0
}

/// Whom this thread keeps suspended.
pub(super) fn suspended() -> u64 {
    WORDS.with(|w| w.suspended.get())
}

/// Notes whom this thread keeps suspended; 0: nobody.
pub(super) fn set_suspended(id: u64) {
    WORDS.with(|w| w.suspended.set(id));
    if id == 0 { clear_flag(SUSPENDING) } else { set_flag(SUSPENDING) }
}

pub(super) use watcher::{unwatch, watch};

/// Who wants to know that a thread ended while one of its participants did not.
pub(super) trait Watched: Send + Sync {
    fn thread_ended(&self, id: u64);
}

/// This thread ends, and these participants of it have not ended. It can attach no more.
fn thread_ends(watched: Vec<(u64, Weak<dyn Watched>)>) {
    set_flag(ENDING);
    for (id, coordinator) in watched {
        if let Some(coordinator) = coordinator.upgrade() {
            coordinator.thread_ended(id);
        }
    }
}

/// The exit watcher.
#[cfg(not(all(test, any(loom, shuttle))))]
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

    /// Has `coordinator` told when this thread ends before [`unwatch`]. On a thread whose watcher
    /// has gone there is nothing to do: it cannot attach any more.
    pub(in super::super) fn watch(id: u64, coordinator: Weak<dyn Watched>) -> Result<(), NoMemory> {
        let watched =
            WATCHER.try_with(|w| fallible::push(&mut w.0.borrow_mut(), (id, coordinator)));
        watched.unwrap_or(Ok(()))
    }

    /// The participant has ended before its thread, as it should.
    pub(in super::super) fn unwatch(id: u64) {
        let entry = WATCHER.try_with(|w| {
            let mut list = w.0.borrow_mut();
            list.iter().rposition(|(i, _)| *i == id).map(|at| list.swap_remove(at))
        });
        drop(entry);
    }
}

/// The exit watcher in models: their threads have no end that could be watched from inside.
#[cfg(all(test, any(loom, shuttle)))]
mod watcher {
    use std::cell::RefCell;
    use std::sync::Weak;

    use super::{Watched, is_ending, thread_ends};
    use crate::base::fallible::NoMemory;
    use crate::base::sync::const_thread_local;

    const_thread_local! {
        static WATCHED: RefCell<Vec<(u64, Weak<dyn Watched>)>> = RefCell::new(Vec::new())
    }

    pub(in super::super) fn watch(id: u64, coordinator: Weak<dyn Watched>) -> Result<(), NoMemory> {
        if !is_ending() {
            WATCHED.with(|watched| watched.borrow_mut().push((id, coordinator)));
        }
        Ok(())
    }

    pub(in super::super) fn unwatch(id: u64) {
        WATCHED.with(|watched| watched.borrow_mut().retain(|(watched, _)| *watched != id));
    }

    /// The end of this thread, as far as its watcher goes: a step of a model. What the thread does afterwards a destructor of one
    /// of its thread-locals would do.
    pub(crate) fn end_thread() {
        let watched = WATCHED.with(|watched| watched.take());
        thread_ends(watched);
    }
}

#[cfg(all(test, loom))]
pub(crate) use watcher::end_thread;
