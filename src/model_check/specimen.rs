//! What a test tells the kit about a model: how to make its objects, and how to change them.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::base::error::OutOfMemory;
use crate::base::sync::Mutex;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::object::type_info::Object;

/// The object that [`Specimen::alloc`] makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectSpec {
    /// The least number of fields: at most [`Specimen::FIELDS`].
    pub fields: usize,
    /// It has a finalizer, which calls [`Journal::finalized`]. Only with
    /// [`Abilities::finalizers`].
    pub finalizer: bool,
    /// It has a legacy finalizer. Only with [`Abilities::legacy`].
    pub legacy: bool,
    /// It is immortal. Only with [`Abilities::immortals`].
    pub immortal: bool,
}

/// The parts of a model that the kit can use. It skips the others and lists them in its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Abilities {
    pub(super) finalizers: bool,
    pub(super) weak: bool,
    pub(super) callbacks: bool,
    pub(super) deferred: bool,
    pub(super) legacy: bool,
    pub(super) immortals: bool,
    pub(super) late: bool,
}

impl Abilities {
    /// Objects with fields and counts, and nothing else.
    pub const NONE: Self = Self {
        finalizers: false,
        weak: false,
        callbacks: false,
        deferred: false,
        legacy: false,
        immortals: false,
        late: false,
    };

    /// Objects can have finalizers. A finalizer calls [`Journal::finalized`] once, and adds a
    /// reference to its object if the result is `true`.
    pub const fn finalizers(mut self) -> Self {
        self.finalizers = true;
        self
    }

    /// [`Specimen::downgrade`] and [`Specimen::upgrade`] work.
    pub const fn weak(mut self) -> Self {
        self.weak = true;
        self
    }

    /// Weak references can have callbacks, which call [`Journal::called_back`]. Includes
    /// [`weak`](Self::weak).
    pub const fn callbacks(mut self) -> Self {
        self.callbacks = true;
        self.weak()
    }

    /// [`Specimen::drop_later`] defers the drop until [`ObjectModel::prepare`] or
    /// [`ObjectModel::merge`].
    pub const fn deferred(mut self) -> Self {
        self.deferred = true;
        self
    }

    /// Objects can have legacy finalizers.
    pub const fn legacy(mut self) -> Self {
        self.legacy = true;
        self
    }

    /// Objects can be immortal.
    pub const fn immortals(mut self) -> Self {
        self.immortals = true;
        self
    }

    /// Memory of objects with count 0 may be freed later, for example after a grace period. The kit
    /// then expects it to be free when all threads have passed several stops.
    pub const fn frees_late(mut self) -> Self {
        self.late = true;
        self
    }

    /// The names of the parts that the kit skips.
    pub(super) fn skipped(self) -> Vec<&'static str> {
        [
            (self.finalizers, "finalizers"),
            (self.weak, "weak references"),
            (self.callbacks, "weak callbacks"),
            (self.deferred, "deferred drops"),
            (self.legacy, "legacy finalizers"),
            (self.immortals, "immortal objects"),
        ]
        .into_iter()
        .filter_map(|(is_there, name)| (!is_there).then_some(name))
        .collect()
    }
}

/// A model whose objects the kit can make and change. See [`check`](super::check).
///
/// The kit calls these functions with objects of the mutator's heap, and holds a reference to each
/// object that it passes.
pub trait Specimen: ObjectModel {
    /// A weak reference, outside of the heap. `()` for models without weak references.
    type Weak: Send + 'static;

    /// The most fields that an object can have: at least 1.
    const FIELDS: usize;

    /// The parts of the model that the kit can use.
    const ABILITIES: Abilities = Abilities::NONE;

    /// A new model, for a new heap. Finalizers and callbacks report to the journal, so a model with
    /// such parts keeps it.
    fn specimen(journal: &Arc<Journal>) -> Self;

    /// Makes a tracked object with empty fields, and returns the one reference to it.
    ///
    /// # Errors
    ///
    /// If the heap has no memory. Nothing has changed then.
    fn alloc(m: &ModelMutator<Self>, spec: ObjectSpec) -> Result<Object, OutOfMemory>;

    /// Puts a new reference to `target` into a field, or empties the field. Drops the reference
    /// that was there. The caller keeps its own reference to `target`.
    fn set(m: &ModelMutator<Self>, object: Object, field: usize, target: Option<Object>);

    /// Adds a reference, which belongs to the caller.
    fn retain(m: &ModelMutator<Self>, object: Object);

    /// Drops a reference of the caller.
    fn drop_ref(m: &ModelMutator<Self>, object: Object);

    /// Drops a reference of the caller at some time, at the latest in the next collection. Only
    /// with [`Abilities::deferred`].
    fn drop_later(m: &ModelMutator<Self>, object: Object) {
        Self::drop_ref(m, object);
    }

    /// Makes a weak reference to `object`. With a ticket it has a callback, which calls
    /// [`Journal::called_back`] with the ticket. `None`: the model has no such references.
    fn downgrade(
        m: &ModelMutator<Self>,
        object: Object,
        ticket: Option<u64>,
    ) -> Option<Self::Weak> {
        let _ = (m, object, ticket);
        None
    }

    /// Returns the target of a weak reference, with a reference that belongs to the caller. `None`:
    /// the target is dead, or the weak reference was cleared.
    fn upgrade(m: &ModelMutator<Self>, weak: &Self::Weak) -> Option<Object> {
        let _ = (m, weak);
        None
    }
}

/// The text of the panics that the kit causes in finalizers and callbacks.
pub(super) const ON_PURPOSE: &str = "a panic of the conformance kit, on purpose";

/// An entry of the [`Journal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalEntry {
    /// A finalizer ran. Whether the object has a new reference, which belongs to the kit.
    Finalized { address: usize, rises: bool },
    /// A weak callback ran.
    CalledBack { ticket: u64 },
}

#[derive(Default)]
struct JournalState {
    entries: Vec<JournalEntry>,
    rising: HashSet<usize>,
    panicking: HashSet<usize>,
    bad_tickets: HashSet<u64>,
}

/// The calls of a model's finalizers and weak callbacks, as the kit sees them.
#[derive(Default)]
pub struct Journal(Mutex<JournalState>);

impl Journal {
    /// Called by the finalizer of `object`, once. If the result is `true`, the finalizer adds a
    /// reference to the object, which belongs to the kit from then on.
    ///
    /// Some calls panic on purpose, because the finalizers of programs do. The model lets such a
    /// panic pass.
    pub fn finalized(&self, object: Object) -> bool {
        let mut state = self.0.lock();
        let address = object.address();
        let panics = state.panicking.contains(&address);
        let rises = !panics && state.rising.contains(&address);
        state.entries.push(JournalEntry::Finalized { address, rises });
        drop(state);
        if panics {
            panic_on_purpose();
        }
        rises
    }

    /// Called by the callback of the weak reference with this ticket, once. Some calls panic on
    /// purpose, as in [`finalized`](Self::finalized).
    pub fn called_back(&self, ticket: u64) {
        let mut state = self.0.lock();
        state.entries.push(JournalEntry::CalledBack { ticket });
        let panics = state.bad_tickets.contains(&ticket);
        drop(state);
        if panics {
            panic_on_purpose();
        }
    }

    /// The object's finalizer brings it back.
    pub(super) fn rise(&self, object: Object) {
        self.0.lock().rising.insert(object.address());
    }

    /// The object's finalizer panics.
    pub(super) fn fail(&self, object: Object) {
        self.0.lock().panicking.insert(object.address());
    }

    /// The callback with this ticket panics.
    pub(super) fn fail_ticket(&self, ticket: u64) {
        self.0.lock().bad_tickets.insert(ticket);
    }

    /// The entries since the last call.
    pub(super) fn take(&self) -> Vec<JournalEntry> {
        std::mem::take(&mut self.0.lock().entries)
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

/// Panics without a line on standard error.
fn panic_on_purpose() -> ! {
    std::panic::resume_unwind(Box::new(ON_PURPOSE))
}
