//! The interfaces to modules that observe, pace or check the collections of a heap.
//!
//! Python's gc module has callbacks, statistics and thresholds that no other runtime needs, so the
//! core and the collector must not depend on them. A heap has at most one [`Observer`], from its
//! builder.
//!
//! For example, thread 1 has made so many objects that the [`PacingRule`] finds a young collection
//! due. It calls [`begins`](Observer::begins), then [`found`](Observer::found) for each unreachable
//! object of a kind that the observer wants, and in the end [`finishes`](Observer::finishes).

#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::base::fallible::NoMemory;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::counted::CountedRef;
use crate::object::live::{DeadObject, Live, Stopped};
use crate::report::facts::CollectionReport;
use crate::report::hooks::Hooks;
use crate::safepoint::ThreadId;

/// Whether a collection may clear an unreachable object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Collectable,
    Uncollectable,
}

/// A module that observes the collections of a heap. Unless a method says otherwise, it is called
/// while the world runs, and may call user code.
pub(crate) trait Observer: Any + fmt::Debug + Send + Sync {
    /// A collection begins, and if it is `quiet`, the program's own callbacks are not called.
    fn begins(&self, hooks: &Hooks, generation: usize, quiet: bool);

    /// The work of a collection is done, so [`finishes`](Self::finishes) follows.
    fn after_collection(&self);

    /// Records the figures of a collection that could stop the world.
    fn record(&self, report: &CollectionReport);

    fn finishes(&self, hooks: &Hooks, report: &CollectionReport, quiet: bool);

    /// In the child of a fork, where the thread of the mutator `id` does not exist. Returns how
    /// often that thread had forbidden collections.
    fn forget_thread(&self, id: ThreadId) -> usize;

    /// Whether [`found`](Self::found) must be called for objects of this fate.
    fn wants(&self, fate: Fate) -> bool;

    fn found(&self, hooks: &Hooks, fate: Fate, type_name: &'static str, address: usize);

    /// Whether all unreachable objects are saved, so that none is cleared.
    fn saves_all(&self) -> bool;

    /// Takes all references of the iterator.
    ///
    /// # Errors
    ///
    /// When there is no memory for them. The iterator is then unchanged.
    fn save(&self, objects: &mut dyn ExactSizeIterator<Item = CountedRef>) -> Result<(), NoMemory>;

    fn take_saved(&self) -> Vec<CountedRef>;

    /// The observer itself, so that the module that made it can downcast it.
    #[cfg(feature = "cpython")]
    fn as_any(&self) -> &dyn Any;
}

/// Checks of a heap and of its model, in the moments of a collection. See
/// [`verify`](crate::verify).
pub(crate) trait Verifier<M: ObjectModel>: Sync {
    /// Verifies the heap in a stop. Panics if it is damaged.
    fn verify(&self, world: &World<'_, M>, when: &str);

    /// Runs phases of a stop that follow its merge, and compares the model's answers around them.
    fn watch(&self, world: &World<'_, M>, phases: &mut dyn FnMut());

    /// A merge has reported dead objects. `limit`: the answer of `pending` before it.
    fn merged(&self, world: &World<'_, M>, dead: &[DeadObject], limit: usize);

    /// `take_callbacks` has taken callbacks for an object. `limit`: the answer of `callbacks`.
    fn callbacks(&self, world: &World<'_, M>, object: Stopped<'_>, limit: usize, taken: usize);

    /// The counts of cleared objects that a collection is about to release, if they are compared.
    fn releasing(&self, m: &ModelMutator<M>, claimed: &[Live<'_>]) -> Option<Vec<(Object, i64)>>;

    /// These objects were released. Reports one that has as many references as before.
    fn released(&self, m: &ModelMutator<M>, counts: &[(Object, i64)]);

    /// All garbage was released. Reports one of the objects that are alive all the same.
    fn survivors(&self, m: &ModelMutator<M>, released: &[Object]);

    /// Verifies the heap after a collection, while the world runs.
    fn ends(&self, m: &ModelMutator<M>);
}

/// The figures by which a [`PacingRule`] decides.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "cpython"),
    allow(dead_code, reason = "only a rule of `gc_module` reads it")
)]
pub(crate) struct Figures {
    /// New objects, without those set aside.
    pub(crate) new: usize,
    /// New objects that were [set aside](Ruling::SetAside) since the last collection.
    pub(crate) set_aside: usize,
    /// Objects that survived young collections since the last full one.
    pub(crate) grown: usize,
    /// Objects that survived the last full collection.
    pub(crate) old: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "cpython"),
    allow(dead_code, reason = "only a rule of `gc_module` makes it")
)]
pub(crate) enum Ruling {
    /// No collection is due, and the new objects are set aside, so that the rule is next consulted
    /// when as many further objects are new.
    SetAside,
    Young,
    Full,
}

/// A rule that decides when a heap collects, in place of the settings of [`Pacing`](crate::Pacing).
pub(crate) trait PacingRule: fmt::Debug + Send + Sync {
    /// The action that is due, when at least
    /// [`first_due`](crate::heap::pacing::RuleNumbers::first_due) objects are new.
    fn decide(&self, numbers: [u32; 3], figures: Figures) -> Ruling;

    /// The number of objects that may survive young collections, after a full collection that left
    /// `old` objects. Beyond it a full collection is due, however few objects are new, because the
    /// program may request young collections so often that [`decide`](Self::decide) is never asked.
    fn allowed_growth(&self, numbers: [u32; 3], old: usize) -> usize;
}

/// The observer and the pacing rule of a heap, which are the same object.
pub(crate) type ObserverAndRule = (Arc<dyn Observer>, Arc<dyn PacingRule>);
