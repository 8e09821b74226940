//! What a test tells the kit about a model: how to make its objects, and how to change them.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use standstill::OutOfMemory;
use standstill::kit::parts::*;
use standstill::model::{ModelMutator, Object, ObjectModel};

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
    /// Only the thread that has stopped the world traverses it. Only with [`Abilities::serial`].
    pub serial: bool,
}

/// The parts of a model that the kit can use. It skips the others and lists them in its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Abilities {
    pub(crate) finalizers: bool,
    pub(crate) weak: bool,
    pub(crate) callbacks: bool,
    pub(crate) deferred: bool,
    pub(crate) legacy: bool,
    pub(crate) immortals: bool,
    pub(crate) late: bool,
    pub(crate) uncounted: bool,
    pub(crate) roots: bool,
    pub(crate) apart: bool,
    pub(crate) serial: bool,
    pub(crate) keeps: bool,
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
        uncounted: false,
        roots: false,
        apart: false,
        serial: false,
        keeps: false,
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

    /// [`Specimen::drop_later`] defers the drop until
    /// [`SplitCounts::prepare`](standstill::model::SplitCounts::prepare) or
    /// [`SplitCounts::merge`](standstill::model::SplitCounts::merge).
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

    /// [`Specimen::set_uncounted`] works.
    pub const fn uncounted(mut self) -> Self {
        self.uncounted = true;
        self
    }

    /// [`Specimen::set_root`] works.
    pub const fn roots(mut self) -> Self {
        self.roots = true;
        self
    }

    /// [`Specimen::retain_apart`] and [`Specimen::drop_apart`] work.
    pub const fn counts_apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Objects can be [serial](standstill::model::Serial::serial).
    pub const fn serial(mut self) -> Self {
        self.serial = true;
        self
    }

    /// [`Verdicts::judge`](standstill::model::Verdicts::judge) keeps the garbage if
    /// [`Journal::keeps`] says so.
    pub const fn keeps(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// The names of the parts that the kit skips.
    pub(crate) fn skipped<M: Specimen>() -> Vec<&'static str> {
        let this = M::ABILITIES;
        [
            (this.finalizers, "finalizers"),
            (this.weak, "weak references"),
            (this.callbacks, "weak callbacks"),
            (this.deferred, "deferred drops"),
            (this.legacy, "legacy finalizers"),
            (this.immortals, "immortal objects"),
            (this.uncounted, "uncounted references"),
            (this.roots, "roots by callback"),
            (this.apart, "counts in several places"),
            (this.serial, "serial objects"),
            (this.keeps, "verdicts that keep garbage"),
            (M::REQUESTS != 0, "requests"),
            (PollWordOf::<M>::PRESENT, "a poll word of the runtime"),
            (RuntimeStopOf::<M>::PRESENT, "stops of the runtime"),
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

    /// A bit of [`MODEL_REQUESTS`](standstill::model::MODEL_REQUESTS) that the kit may raise. Then
    /// [`Threads::answer`](standstill::model::Threads::answer) calls [`Journal::answered`]. 0:
    /// none.
    const REQUESTS: u32 = 0;

    /// Stores a reference without a count in `object`, or removes it. The object has room for one.
    /// Clearing it or destroying it removes the reference too. Only with [`Abilities::uncounted`].
    fn set_uncounted(m: &ModelMutator<Self>, object: Object, target: Option<Object>) {
        let _ = (m, object, target);
    }

    /// `object` becomes one that [`Uncounted::roots`](standstill::model::Uncounted::roots) reports,
    /// or is none any more. No count changes. Only with [`Abilities::roots`].
    fn set_root(m: &ModelMutator<Self>, object: Object, is_root: bool) {
        let _ = (m, object, is_root);
    }

    /// Adds a reference, which belongs to the caller and is not in the object's count:
    /// [`Adjusted::adjustments`](standstill::model::Adjusted::adjustments) reports it. Only with
    /// [`Abilities::counts_apart`].
    fn retain_apart(m: &ModelMutator<Self>, object: Object) {
        let _ = (m, object);
    }

    /// Drops a reference of [`retain_apart`](Self::retain_apart). The caller has other references.
    fn drop_apart(m: &ModelMutator<Self>, object: Object) {
        let _ = (m, object);
    }

    /// Clears the runtime's own poll word of this thread. Returns whether it was set. Only with
    /// [`PollWord`](standstill::model::PollWord).
    fn take_word(m: &ModelMutator<Self>) -> bool {
        let _ = m;
        false
    }

    /// Whether the other threads of the runtime are stopped. Only with
    /// [`RuntimeStop`](standstill::model::RuntimeStop).
    fn is_stopped(&self) -> bool {
        false
    }
}

/// The text of the panics that the kit causes in finalizers and callbacks.
pub(crate) const ON_PURPOSE: &str = "a panic of the conformance kit, on purpose";

/// An entry of the [`Journal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalEntry {
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
    answered: u32,
    keeps: bool,
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

    /// Called by [`Threads::answer`](standstill::model::Threads::answer), with the requests.
    pub fn answered(&self, requests: u32) {
        self.0.lock().answered |= requests;
    }

    /// Called by [`Verdicts::judge`]: whether the verdict is to keep the garbage.
    pub fn keeps(&self) -> bool {
        self.0.lock().keeps
    }

    /// Tells [`keeps`](Self::keeps).
    pub(crate) fn set_keeps(&self, keeps: bool) {
        self.0.lock().keeps = keeps;
    }

    /// The requests that were answered since the last call.
    pub(crate) fn take_answered(&self) -> u32 {
        std::mem::take(&mut self.0.lock().answered)
    }

    /// The object's finalizer brings it back.
    pub(crate) fn rise(&self, object: Object) {
        self.0.lock().rising.insert(object.address());
    }

    /// The object's finalizer panics.
    pub(crate) fn fail(&self, object: Object) {
        self.0.lock().panicking.insert(object.address());
    }

    /// The callback with this ticket panics.
    pub(crate) fn fail_ticket(&self, ticket: u64) {
        self.0.lock().bad_tickets.insert(ticket);
    }

    /// The entries since the last call.
    pub(crate) fn take(&self) -> Vec<JournalEntry> {
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
