//! The oracle: the graph of references in plain maps under one lock.
//!
//! A thread enters a reference after making it and removes the entry before dropping the reference.
//! So while threads run, the oracle's graph is a subset of the real one: an object that is
//! reachable here is reachable. At a quiet point the two graphs are equal.
//!
//! The lock is std's. No thread holds it across a step at which shuttle might switch threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An object's number, in the order of allocation.
pub(crate) type Id = usize;

/// The holder of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// A thread or a place outside the heap.
    Root,
    /// The object with this number.
    Object(Id),
}

/// The state of one living object.
#[derive(Debug, Default)]
struct Entry {
    /// The holders of references to it, with their numbers of references.
    referrers: BTreeMap<Holder, usize>,
    finalized: bool,
    cleared: bool,
    /// An upgrade succeeded while the object was unreachable.
    resurrected: bool,
}

#[derive(Debug, Default)]
struct State {
    living: BTreeMap<Id, Entry>,
    last: Id,
    /// Numbers of finalizers that have begun and that have ended.
    begun: usize,
    ended: usize,
}

/// The oracle: see the [module's page](self).
#[derive(Debug, Default)]
pub(crate) struct Shadow(Mutex<State>);

impl Shadow {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a new object, and returns its number.
    pub(crate) fn born(&self) -> Id {
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.living.insert(id, Entry::default());
        id
    }

    /// Enters a reference to `to`. The caller has made it already.
    pub(crate) fn refer(&self, by: Holder, to: Id) {
        let mut state = self.state();
        let entry =
            state.living.get_mut(&to).unwrap_or_else(|| panic!("{to} is referred to, and dead"));
        assert!(!entry.cleared, "{to} is referred to anew, and cleared");
        *entry.referrers.entry(by).or_default() += 1;
    }

    /// Removes a reference to `to`. The caller drops it afterwards.
    pub(crate) fn strike(&self, by: Holder, to: Id) {
        let mut state = self.state();
        let entry = state
            .living
            .get_mut(&to)
            .unwrap_or_else(|| panic!("{to} was referred to, and is dead"));
        let count = entry.referrers.get_mut(&by).expect("entered when it was made");
        *count -= 1;
        if *count == 0 {
            entry.referrers.remove(&by);
        }
    }

    /// Records that a thread reads the object through a counted reference.
    pub(crate) fn touched(&self, id: Id) {
        let state = self.state();
        let entry = state.living.get(&id).unwrap_or_else(|| panic!("{id} is reached, and dead"));
        assert!(!entry.cleared, "{id} is reached, and cleared");
    }

    /// Records that the object's finalizer begins, and checks that it is the first time.
    pub(crate) fn finalizing(&self, id: Id) {
        let mut state = self.state();
        state.begun += 1;
        let entry =
            state.living.get_mut(&id).unwrap_or_else(|| panic!("{id} is finalized, and dead"));
        assert!(!std::mem::replace(&mut entry.finalized, true), "{id} is finalized twice");
    }

    /// Records that a finalizer has ended.
    pub(crate) fn finalized(&self) {
        self.state().ended += 1;
    }

    /// Records that the collector clears the object.
    pub(crate) fn cleared(&self, id: Id) {
        let mut state = self.state();
        assert!(!state.is_reachable(id), "{id} is cleared, and reachable");
        let entry =
            state.living.get_mut(&id).unwrap_or_else(|| panic!("{id} is cleared, and dead"));
        entry.cleared = true;
    }

    /// Records that the object's destructor runs.
    pub(crate) fn died(&self, id: Id) {
        let entry = self.state().living.remove(&id).unwrap_or_else(|| panic!("{id} dies twice"));
        assert!(
            entry.referrers.is_empty(),
            "{id} dies, and is referred to by {:?}",
            entry.referrers
        );
    }

    /// Records that a callback reports the object as gone. Until the last callback has run, an
    /// upgrade of a weak reference without a callback may resurrect the object.
    pub(crate) fn gone(&self, id: Id) {
        let state = self.state();
        let is_resurrected = state.living.get(&id).is_some_and(|entry| entry.resurrected);
        assert!(
            is_resurrected || !state.is_reachable(id),
            "{id} is said to be gone, and reachable"
        );
    }

    /// Records a successful upgrade. The new reference is not entered yet.
    pub(crate) fn upgraded(&self, id: Id) {
        let mut state = self.state();
        let is_reachable = state.is_reachable(id);
        let entry = state.living.get_mut(&id).unwrap_or_else(|| panic!("{id} is found, and dead"));
        entry.resurrected |= !is_reachable;
    }

    /// The object's state before an upgrade.
    pub(crate) fn before_upgrade(&self, id: Id) -> Upgrade {
        let state = self.state();
        Upgrade {
            was_reachable: state.is_reachable(id) && state.begun == state.ended,
            begun: state.begun,
        }
    }

    /// Records a failed upgrade. An object that was reachable before and is reachable now was
    /// reachable all the time, unless a finalizer has run in between: only finalizers resurrect
    /// objects. The upgrade of such an object must not fail.
    pub(crate) fn upgrade_failed(&self, id: Id, before: Upgrade) {
        let state = self.state();
        let all_the_time =
            before.was_reachable && state.begun == before.begun && state.is_reachable(id);
        assert!(!all_the_time, "{id} is not found by a weak reference, and reachable");
    }

    /// The living objects.
    pub(crate) fn living(&self) -> BTreeSet<Id> {
        self.state().living.keys().copied().collect()
    }

    /// The number of references to the object.
    pub(crate) fn count(&self, id: Id) -> usize {
        self.state().living.get(&id).map_or(0, |entry| entry.referrers.values().sum())
    }

    /// The objects that are reachable from outside the heap or from `roots`.
    pub(crate) fn reachable(&self, roots: &BTreeSet<Id>) -> BTreeSet<Id> {
        let state = self.state();
        let mut to: BTreeMap<Holder, Vec<Id>> = BTreeMap::new();
        for (&id, entry) in &state.living {
            for &by in entry.referrers.keys() {
                to.entry(by).or_default().push(id);
            }
        }
        let mut stack: Vec<Id> = roots.iter().copied().collect();
        stack.extend(to.get(&Holder::Root).into_iter().flatten());
        let mut seen = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if seen.insert(id) {
                stack.extend(to.get(&Holder::Object(id)).into_iter().flatten());
            }
        }
        seen
    }
}

impl State {
    /// Whether a chain of references leads to the object from outside the heap.
    fn is_reachable(&self, id: Id) -> bool {
        let mut seen = BTreeSet::from([id]);
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            // A holder that has died already is about to drop its reference.
            let Some(entry) = self.living.get(&id) else { continue };
            for &by in entry.referrers.keys() {
                match by {
                    Holder::Root => return true,
                    Holder::Object(by) if seen.insert(by) => stack.push(by),
                    Holder::Object(_) => {}
                }
            }
        }
        false
    }
}

/// An object's state before an upgrade.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upgrade {
    was_reachable: bool,
    begun: usize,
}
