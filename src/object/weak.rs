//! Weak records.
//!
//! An object with a weak reference has one *record*, which all its weak references share. The
//! heap's table finds it by the object's address. The record's lock decides between an upgrade and
//! the death of the target: the path to zero takes the lock before the memory is freed, and an
//! upgrade holds it while it reads the target.
//!
//! | field | access |
//! |---|---|
//! | `WEAK` flag of the header | set before the record is made, never cleared |
//! | `target` | set at birth; emptied by the thread that destroys or clears the object |
//! | `DYING` of a dynamic target's state | set by the thread that destroys the object |
//! | `watchers` | added by attached threads, taken by a stop or by the target's death |
//!
//! * The lock protects the last three fields.
//! * Because of the flag the last drop cannot miss the record.
//! * A dealloc handler may count its object up and down.
//!   [`block_upgrades`](WeakRecord::block_upgrades) therefore holds the lock while `DYING` is set,
//!   and an upgrade tests `DYING` under the lock.
//! * The lock is never held over a call of foreign code, and only attached threads take it. It is
//!   therefore free in a stop. The table's own locks are held only for an insertion or a removal.

use std::fmt;
use std::ptr::NonNull;

use crate::base::fallible::{self, NoMemory};
use crate::base::shared::Shared;
use crate::base::shared_map::SharedMap;
use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::object::header::Header;

/// The address of a header, in a record. It is not a reference, and is valid as long as `target`
/// holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderPtr(pub(crate) NonNull<Header>);

// SAFETY: rule *guarded*: a bare address. It is dereferenced only under the record's lock.
unsafe impl Send for HeaderPtr {}
// SAFETY: as above.
unsafe impl Sync for HeaderPtr {}

/// A weak reference with a callback, in the record of its target.
#[derive(Clone)]
pub(crate) struct WeakWatcher {
    /// The record of the weak reference itself, which is an object too.
    pub(crate) weak_ref: Shared<WeakRecord>,
    /// Shared with the weak reference. Once it is set, the reference does not lead to the target.
    pub(crate) cleared: Shared<AtomicBool>,
    /// Calls the callback with the weak reference's header and the mutator.
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
    /// The number of watchers after the last pruning. When it has doubled, the list is pruned
    /// again.
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

    /// Calls `f` with the target while it cannot die. `None`: it is dead, or not yet born.
    pub(crate) fn with_target<R>(&self, f: impl FnOnce(&Header) -> R) -> Option<R> {
        let state = self.state.lock();
        // SAFETY: rules *guarded* and *counted*: while `target` is set and the lock is held, the
        // object's memory is not freed. The thread that frees it empties `target` first.
        state.target.map(|target| f(unsafe { target.0.as_ref() }))
    }

    /// Blocks upgrades until the guard is dropped.
    pub(crate) fn block_upgrades(&self) -> impl Sized + '_ {
        self.state.lock()
    }

    /// Adds a reference to the target for the thread `current`, if the target is alive.
    pub(crate) fn upgrade(&self, current: u64) -> Option<NonNull<Header>> {
        self.with_target(|header| header.try_upgrade(current).then(|| NonNull::from(header)))
            .flatten()
    }

    /// Adds a watcher. Whenever the number of watchers has doubled, it removes the dead ones.
    pub(crate) fn watch(&self, watcher: WeakWatcher) -> Result<(), NoMemory> {
        let mut state = self.state.lock();
        if state.watchers.len() > 2 * state.pruned + 8 {
            // It does not wait for the locks of other records, because two objects could watch each
            // other. A record whose lock is held counts as alive.
            state
                .watchers
                .retain(|w| w.weak_ref.state.try_lock().is_none_or(|state| state.target.is_some()));
            state.pruned = state.watchers.len();
        }
        fallible::push(&mut state.watchers, watcher)
    }

    /// The number of watchers.
    pub(crate) fn watchers(&self) -> usize {
        self.state.lock().watchers.len()
    }

    /// Removes the watchers and marks their weak references as cleared.
    pub(crate) fn take_watchers(&self) -> Vec<WeakWatcher> {
        let watchers = std::mem::take(&mut self.state.lock().watchers);
        for watcher in &watchers {
            // Release: a thread that sees the flag sees all that happened before. The library
            // itself reads nothing through it.
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
        // Even if no record can be made: a thread that sees the flag then finds none.
        header.set_weak();
        let target = NonNull::from(header);
        self.records.get_or_make(target.as_ptr() as usize, || {
            let state = RecordState { target: Some(HeaderPtr(target)), ..RecordState::default() };
            Shared::new(WeakRecord { state: Mutex::new(state) })
        })
    }

    /// Gives a record without a target its target.
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

    /// Empties the record of an object that dies or is cleared, and removes it from the table.
    /// Returns its watchers.
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
