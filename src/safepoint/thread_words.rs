//! The state of this thread, in words that no other thread reads.
//!
//! * `current`: the id of the participant that this thread is attached as, in any coordinator; 0:
//!   none. Attach and detach write it. A traversal sets it aside.
//! * `held`: why this thread must not attach, park, detach or stop now; 0: it may. The guards of
//!   this thread write it. They are all `!Send`.
//!
//! The words have no destructor, so they can be used from anywhere, also from destructors of other
//! thread-locals. The *exit watcher* has a destructor. It tells the coordinators about participants
//! that outlive their thread. Destructors that run after it on an ending thread cannot attach,
//! except to end a participant at once. So no attached thread is unwatched.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Weak;

use crate::base::sync::const_thread_local;

/// `held`, the low half: the number of live [`TraversalGuard`]s.
const TRAVERSING: u32 = 0xffff;
const ONE_TRAVERSAL: u32 = 1;
/// `held`: this thread has stopped the world, or waits for its stop to be complete.
pub(super) const STOPPING: u32 = 1 << 16;
/// `held`: this thread has suspended another thread.
pub(super) const SUSPENDING: u32 = 1 << 17;
/// `held`: the exit watcher has run.
const ENDING: u32 = 1 << 18;

struct Words {
    current: Cell<u64>,
    /// The value of `current` before the outermost traversal guard.
    aside: Cell<u64>,
    held: Cell<u32>,
    /// The participant that this thread has suspended; 0: none.
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

/// The `current` word: the id of the participant that this thread is attached as, in any
/// coordinator. 0: the thread is not attached, or is inside a traversal.
#[inline(always)]
pub fn current() -> u64 {
    WORDS.with(|w| w.current.get())
}

/// Whether this thread is inside a traversal: it has a live [`TraversalGuard`].
#[inline]
pub fn is_traversing() -> bool {
    held() & TRAVERSING != 0
}

/// Whether this thread has stopped the world, or waits for its stop to be complete.
#[inline]
pub fn is_stopping() -> bool {
    held() & STOPPING != 0
}

/// Enters a traversal. While the guard lives, [`current`] is 0 and this thread cannot attach.
/// Guards nest, and may be dropped in any order.
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

/// A traversal of this thread. See [`traversing`]. Neither `Send` nor `Sync`.
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

/// Hides the attachment from user code on this thread, which also cannot attach. For calls by a
/// thread that is detached while its callers rely on its attachment.
pub(super) struct HiddenAttachment {
    current: u64,
    aside: u64,
    traversing: Option<TraversalGuard>,
}

impl HiddenAttachment {
    pub(super) fn new() -> Self {
        let (current, aside) = WORDS.with(|w| (w.current.replace(0), w.aside.replace(0)));
        Self { current, aside, traversing: Some(traversing()) }
    }
}

impl Drop for HiddenAttachment {
    fn drop(&mut self) {
        drop(self.traversing.take());
        WORDS.with(|w| {
            w.current.set(self.current);
            w.aside.set(self.aside);
        });
    }
}

/// The reasons why this thread must not attach: the `current` word and `held`. Both are 0 when it
/// may.
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

/// The participant that this thread is attached as, also during a traversal; 0: none.
pub(crate) fn attached_as() -> u64 {
    WORDS.with(|w| w.current.get().max(w.aside.get()))
}

/// Whether a guard forbids this thread to detach, park or stop.
#[inline(always)]
pub(super) fn forbids_safepoint() -> bool {
    held() & !ENDING != 0
}

/// Whether this thread may attach again as a participant that its callers rely on, or that it ends
/// at once. Unlike a first attachment, this is allowed on an ending thread: the coordinator knows
/// that the participant outlives the thread, so stops fail and do not wait.
#[inline(always)]
pub(super) fn may_come_back() -> bool {
    WORDS.with(|w| w.current.get() | u64::from(w.held.get() & !ENDING) == 0)
}

/// Sets one of the flags of `held`.
pub(super) fn set_flag(flag: u32) {
    WORDS.with(|w| w.held.set(w.held.get() | flag));
}

/// Clears one of the flags of `held`.
pub(super) fn clear_flag(flag: u32) {
    WORDS.with(|w| w.held.set(w.held.get() & !flag));
}

/// This thread is attached as `id`.
#[inline(always)]
pub(super) fn set_current(id: u64) {
    WORDS.with(|w| w.current.set(id));
}

/// Clears `current` if it is `id`.
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

/// Whether this thread has suspended another thread.
pub(crate) fn is_suspending() -> bool {
    suspended() != 0
}

/// The participant that this thread has suspended; 0: none.
pub(super) fn suspended() -> u64 {
    WORDS.with(|w| w.suspended.get())
}

/// Records the participant that this thread has suspended; 0: none.
pub(super) fn set_suspended(id: u64) {
    WORDS.with(|w| w.suspended.set(id));
    if id == 0 { clear_flag(SUSPENDING) } else { set_flag(SUSPENDING) }
}

pub(super) use watcher::{unwatch, watch};

/// A receiver of the news that a thread has ended before its participant.
pub(super) trait Watched: Send + Sync {
    fn thread_ended(&self, id: u64);
}

/// This thread ends before these participants. It cannot attach any more.
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

    /// Notifies `coordinator` if this thread ends before [`unwatch`]. After the watcher has run
    /// this does nothing: the thread cannot attach.
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

/// The exit watcher in models. A model's thread has no destructor that it could run in.
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

    /// Ends this thread in a model, as the exit watcher does. Code after it stands for destructors
    /// of other thread-locals.
    pub(crate) fn end_thread() {
        let watched = WATCHED.with(|watched| watched.take());
        thread_ends(watched);
    }
}

#[cfg(all(test, loom))]
pub(crate) use watcher::end_thread;
