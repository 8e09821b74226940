//! Floor 3: the seam to a module that observes the collections of a heap and may pace them.
//!
//! The core of a heap has at most one [`Observer`], which it is given when it is built. Neither the
//! core nor the collector depends on a particular observer.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::base::event::CollectionReport;
use crate::base::fallible::NoMemory;
use crate::base::hooks::Hooks;
use crate::object::weak::HeaderPtr;

/// What a collection does with an unreachable object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is cleared.
    Collectable,
    /// It must not be cleared.
    Uncollectable,
}

/// A module that observes the collections of a heap. Unless a method says otherwise it is called
/// with the world running, and it may call user code.
pub(crate) trait Observer: Any + fmt::Debug + Send + Sync {
    /// A collection begins. In a `quiet` one the program's own callbacks are not called.
    fn begins(&self, hooks: &Hooks, generation: usize, quiet: bool);

    /// A collection has done its work. Comes before [`finishes`](Self::finishes).
    fn after_collection(&self);

    /// Records the figures of a collection that was not prevented.
    fn record(&self, report: &CollectionReport);

    /// A collection is over.
    fn finishes(&self, hooks: &Hooks, report: &CollectionReport, quiet: bool);

    /// Whether [`found`](Self::found) is to be called for objects of this fate.
    fn wants(&self, fate: Fate) -> bool;

    /// A collection has found an unreachable object.
    fn found(&self, hooks: &Hooks, fate: Fate, type_name: &'static str, address: usize);

    /// Whether all unreachable objects are saved, so that none is cleared.
    fn saves_all(&self) -> bool;

    /// Takes over the references that the iterator makes: all of them, or none.
    ///
    /// # Errors
    ///
    /// When there is no memory for them. The iterator was not advanced then.
    fn save(&self, objects: &mut dyn ExactSizeIterator<Item = HeaderPtr>) -> Result<(), NoMemory>;

    /// Gives up all references that were saved.
    fn take_saved(&self) -> Vec<HeaderPtr>;

    /// The observer itself, for the module that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Numbers of a heap that a [`PacingRule`] decides by.
#[derive(Clone, Copy, Debug)]
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

/// The decision of a [`PacingRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// No collection is due. The new objects are set aside, so that the rule is not consulted again
    /// before as many objects more are new.
    SetAside,
    /// A young collection is due.
    Young,
    /// A full collection is due.
    Full,
}

/// A rule that decides when a heap collects, in place of the settings of
/// [`Pacing`](crate::Pacing).
pub(crate) trait PacingRule: fmt::Debug + Send + Sync {
    /// What is due. Called when at least [`first_due`](crate::heap::policy::RuleNumbers::first_due)
    /// objects are new.
    fn decide(&self, numbers: [u32; 3], figures: Figures) -> Ruling;
}

/// One object as the observer of a heap and as its pacing rule.
pub(crate) type ObserverAndRule = (Arc<dyn Observer>, Arc<dyn PacingRule>);
