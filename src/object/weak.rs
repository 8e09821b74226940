//! Floor 2: weak records.
//!
//! An object that was ever referred to weakly has one *record*, shared by all its weak references and
//! found through the heap's table by address. Its one lock decides between an upgrade and the death of the
//! target: the path to zero takes it before the memory goes, an upgrade holds it while it looks.
//!
//! | field | who, when |
//! |---|---|
//! | `WEAK` flag of the header | set before the record is made, never cleared: the last drop cannot miss it |
//! | `target` | set at birth; emptied by whoever destroys or clears the object, under the lock |
//! | `DYING` of a dynamic target's state | set under the lock by whoever destroys it ([`hold`](WeakRecord::block_upgrades)), since its dealloc handler may count it: an upgrade looks at it under the lock |
//! | `watchers` | added by attached threads, taken by a stop or by the death of the target, under the lock |
//!
//! The lock is never held over a call out, and only attached threads take it: so it is free in a stop.
//! The table's own locks are held for an insertion or removal and nothing else.

use std::fmt;
use std::ptr::NonNull;

use crate::base::fallible::{self, NoMemory};
use crate::base::shared::Shared;
use crate::base::shared_map::SharedMap;
use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::object::header::Header;

/// The address of a header, as a record keeps it: no reference, valid while `target` holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderPtr(pub(crate) NonNull<Header>);

// SAFETY: rule X: a bare address; it is dereferenced under the record's lock only.
unsafe impl Send for HeaderPtr {}
// SAFETY: as above.
unsafe impl Sync for HeaderPtr {}

/// A weak reference with a callback, as the record of its target knows it.
#[derive(Clone)]
pub(crate) struct WeakWatcher {
    /// The record of the weak reference itself, which is an object too.
    pub(crate) weak_ref: Shared<WeakRecord>,
    /// Shared with the weak reference: set, it no longer leads to the target.
    pub(crate) cleared: Shared<AtomicBool>,
    /// Calls the callback, given the weak reference's header and the mutator.
    pub(crate) invoke: unsafe fn(NonNull<Header>, *const ()),
}

/// See the [module's page](self).
pub(crate) struct WeakRecord {
    state: Mutex<RecordState>,
}

#[derive(Default)]
struct RecordState {
    target: Option<HeaderPtr>,
    watchers: Vec<WeakWatcher>,
    /// Watchers after the last pruning; doubling since then is time for the next.
    pruned: usize,
}

impl fmt::Debug for WeakRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakRecord").finish_non_exhaustive()
    }
}

impl WeakRecord {
    /// A record without a target, for an object that is still being made.
    pub(crate) fn without_target() -> Result<Shared<Self>, NoMemory> {
        Shared::new(Self { state: Mutex::new(RecordState::default()) })
    }

    /// Calls `f` with the target while it cannot die; `None`: it is dead, or not born yet.
    pub(crate) fn with_target<R>(&self, f: impl FnOnce(&Header) -> R) -> Option<R> {
        let state = self.state.lock();
        // SAFETY: rules X and R: while `target` is set and the lock is held, the object's memory is not freed: whoever
        // frees it empties `target` first.
        state.target.map(|target| f(unsafe { target.0.as_ref() }))
    }

    /// Keeps upgrades away until the guard is dropped.
    pub(crate) fn block_upgrades(&self) -> impl Sized + '_ {
        self.state.lock()
    }

    /// Adds a reference to the target for the thread `current`, if it lives.
    pub(crate) fn upgrade(&self, current: u64) -> Option<NonNull<Header>> {
        self.with_target(|header| header.try_upgrade(current).then(|| NonNull::from(header)))
            .flatten()
    }

    /// Adds a watcher, and drops those that died meanwhile whenever their number has doubled.
    pub(crate) fn watch(&self, watcher: WeakWatcher) -> Result<(), NoMemory> {
        let mut state = self.state.lock();
        if state.watchers.len() > 2 * state.pruned + 8 {
            // No waiting for other records' locks: two could watch one another. Who is being looked at lives.
            state
                .watchers
                .retain(|w| w.weak_ref.state.try_lock().is_none_or(|state| state.target.is_some()));
            state.pruned = state.watchers.len();
        }
        fallible::push(&mut state.watchers, watcher)
    }

    /// How many watchers there are.
    pub(crate) fn watchers(&self) -> usize {
        self.state.lock().watchers.len()
    }

    /// Takes the watchers, and tells their weak references that they are cleared.
    pub(crate) fn take_watchers(&self) -> Vec<WeakWatcher> {
        let watchers = std::mem::take(&mut self.state.lock().watchers);
        for watcher in &watchers {
            // Release: who sees the flag sees what led to it. Nothing in the library reads through it.
            watcher.cleared.store(true, Ordering::Release);
        }
        watchers
    }

    /// Empties the record: upgrades fail from now on.
    pub(crate) fn clear(&self) {
        self.state.lock().target = None;
    }
}

/// A heap's weak records by the address of the target.
#[derive(Debug, Default)]
pub(crate) struct WeakTable {
    records: SharedMap<usize, Shared<WeakRecord>>,
}

impl WeakTable {
    /// The record of a live object to which the caller holds a reference.
    pub(crate) fn record(&self, header: &Header) -> Result<Shared<WeakRecord>, NoMemory> {
        // Also where no record is made then: whoever sees the mark finds none.
        header.set_weak();
        let target = NonNull::from(header);
        self.records.get_or_make(target.as_ptr() as usize, || {
            let state = RecordState { target: Some(HeaderPtr(target)), ..RecordState::default() };
            Shared::new(WeakRecord { state: Mutex::new(state) })
        })
    }

    /// Gives an unborn record its target.
    pub(crate) fn set_target(
        &self,
        record: &Shared<WeakRecord>,
        header: &Header,
    ) -> Result<(), NoMemory> {
        header.set_weak();
        let target = NonNull::from(header);
        self.records.get_or_make(target.as_ptr() as usize, || Ok(record.clone()))?;
        record.state.lock().target = Some(HeaderPtr(target));
        Ok(())
    }

    /// The record of an object, if it has one.
    pub(crate) fn get(&self, header: NonNull<Header>) -> Option<Shared<WeakRecord>> {
        self.records.get(&(header.as_ptr() as usize))
    }

    /// The object is dying, or being cleared: its record is emptied and leaves the table. The watchers come
    /// back.
    pub(crate) fn remove(&self, header: NonNull<Header>) -> Vec<WeakWatcher> {
        match self.records.remove(&(header.as_ptr() as usize)) {
            Some(record) => {
                record.clear();
                record.take_watchers()
            }
            None => Vec::new(),
        }
    }
}
