//! The oracle: the graph as it is by definition, in plain maps under one lock.
//!
//! A reference is entered after it has been made and struck out before it is dropped. So while threads run, what is
//! reachable here is reachable, and who has a referrer here has one; when all are quiet, both are exact.
//!
//! The lock is std's: it is never held over a step at which another thread might run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An object, by the order of birth.
pub(crate) type Id = usize;

/// Who holds a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// Somebody outside the heap.
    Root,
    /// The object with this name.
    Object(Id),
}

/// What is known of one object.
#[derive(Debug, Default)]
struct Entry {
    /// Who refers to it, how often.
    referrers: BTreeMap<Holder, usize>,
    finalized: bool,
    cleared: bool,
    /// A weak reference led to it when no other reference did.
    brought_back: bool,
}

#[derive(Debug, Default)]
struct State {
    living: BTreeMap<Id, Entry>,
    last: Id,
    /// Finalizers that have begun, and those that have ended.
    begun: usize,
    ended: usize,
}

/// See the [file's page](self).
#[derive(Debug, Default)]
pub(crate) struct Shadow(Mutex<State>);

impl Shadow {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a new object.
    pub(crate) fn born(&self) -> Id {
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.living.insert(id, Entry::default());
        id
    }

    /// A reference to `to` has been made.
    pub(crate) fn refer(&self, by: Holder, to: Id) {
        let mut state = self.state();
        let entry =
            state.living.get_mut(&to).unwrap_or_else(|| panic!("{to} is referred to, and dead"));
        assert!(!entry.cleared, "{to} is referred to anew, and cleared");
        *entry.referrers.entry(by).or_default() += 1;
    }

    /// A reference to `to` is about to be dropped.
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

    /// Somebody reaches the object by a reference that he holds.
    pub(crate) fn touched(&self, id: Id) {
        let state = self.state();
        let entry = state.living.get(&id).unwrap_or_else(|| panic!("{id} is reached, and dead"));
        assert!(!entry.cleared, "{id} is reached, and cleared");
    }

    /// The object's finalizer begins: for the first time.
    pub(crate) fn finalizing(&self, id: Id) {
        let mut state = self.state();
        state.begun += 1;
        let entry =
            state.living.get_mut(&id).unwrap_or_else(|| panic!("{id} is finalized, and dead"));
        assert!(!std::mem::replace(&mut entry.finalized, true), "{id} is finalized twice");
    }

    /// A finalizer has ended.
    pub(crate) fn finalized(&self) {
        self.state().ended += 1;
    }

    /// The collector clears the object.
    pub(crate) fn cleared(&self, id: Id) {
        let mut state = self.state();
        assert!(!state.is_reachable(id), "{id} is cleared, and reachable");
        let entry =
            state.living.get_mut(&id).unwrap_or_else(|| panic!("{id} is cleared, and dead"));
        entry.cleared = true;
    }

    /// The object's destructor runs.
    pub(crate) fn died(&self, id: Id) {
        let entry = self.state().living.remove(&id).unwrap_or_else(|| panic!("{id} dies twice"));
        assert!(
            entry.referrers.is_empty(),
            "{id} dies, and is referred to by {:?}",
            entry.referrers
        );
    }

    /// A callback says that the object is gone. Until the last callback has run, a weak reference without one may bring the
    /// object back.
    pub(crate) fn gone(&self, id: Id) {
        let state = self.state();
        let is_brought_back = state.living.get(&id).is_some_and(|entry| entry.brought_back);
        assert!(
            is_brought_back || !state.is_reachable(id),
            "{id} is said to be gone, and reachable"
        );
    }

    /// A weak reference leads to the object, and the reference that this has made is not entered yet.
    pub(crate) fn upgraded(&self, id: Id) {
        let mut state = self.state();
        let is_reachable = state.is_reachable(id);
        let entry = state.living.get_mut(&id).unwrap_or_else(|| panic!("{id} is found, and dead"));
        entry.brought_back |= !is_reachable;
    }

    /// To be asked before a weak reference is upgraded.
    pub(crate) fn before_upgrade(&self, id: Id) -> Upgrade {
        let state = self.state();
        Upgrade {
            was_reachable: state.is_reachable(id) && state.begun == state.ended,
            begun: state.begun,
        }
    }

    /// The upgrade led nowhere. What is reachable stays so until it is let go, and what has been let go is brought back by
    /// finalizers alone: so if none has run, it was reachable all the time.
    pub(crate) fn upgrade_failed(&self, id: Id, before: Upgrade) {
        let state = self.state();
        let all_the_time =
            before.was_reachable && state.begun == before.begun && state.is_reachable(id);
        assert!(!all_the_time, "{id} is not found by a weak reference, and reachable");
    }

    /// Who lives.
    pub(crate) fn living(&self) -> BTreeSet<Id> {
        self.state().living.keys().copied().collect()
    }

    /// How often the object is referred to.
    pub(crate) fn count(&self, id: Id) -> usize {
        self.state().living.get(&id).map_or(0, |entry| entry.referrers.values().sum())
    }

    /// What is reachable from outside the heap and from `roots`.
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
            // What the dead still hold, on its way to be dropped, is held by nobody else.
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

/// What the oracle knew before an upgrade.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upgrade {
    was_reachable: bool,
    begun: usize,
}
