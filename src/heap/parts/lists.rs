//! Objects that the model lists, because a runtime with its own allocator would pay for telling a
//! heap about each birth and death. For example, threads 1 and 2 make a million objects, of which
//! 10 are left when a collection stops the world. The model lists the 10, and the heap hears of no
//! others.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::heap::listed::{ListedMemory, ObjectList};
use crate::heap::model::ObjectModel;
use crate::heap::world::World;

/// The model lists its objects in each stop that looks at objects, which are those of collections
/// and inspections, so that the heap is not told about births and deaths.
///
/// Such a model has [`Segments`](crate::model::Segments), because its objects lie in memory of
/// others; without them a heap of it does not compile. It has no young collections, and differs
/// from other models in these points.
///
/// * The states of objects are the model's, so the methods that change one panic. These are
///   `publish`, `register`, `unregister`, `dead`, `track`, `untrack`, `set_finalized`, `freeze` and
///   `unfreeze` of [`ModelMutator`](crate::model::ModelMutator). An object that is untracked,
///   frozen or dying returns [`Count::Outside`](crate::model::Count::Outside) from
///   [`count`](ObjectModel::count). [`has_finalizer`](crate::model::Finalizers::has_finalizer)
///   returns `false` once the finalizer has run. [`Count::Immortal`](crate::model::Count::Immortal)
///   holds for one collection.
/// * A traversal may report addresses in adopted memory where no listed object starts, which count
///   as untracked objects.
/// * While a child process [searches](crate::Collect::forked), and afterwards, the memory of a dead
///   object is reused, so each stop for a part of its proposal lists the proposed objects again.
/// * A report counts each released object as collected, even if it has survived.
/// * The heap does not know how many objects there are, so the statistics show the objects of the
///   last list, and no number of them makes a collection due.
pub trait Lists<M: ObjectModel> {
    /// Whether the model has this part, which a model with a parameter may compute.
    const PRESENT: bool = true;

    /// Prepares a list of all objects, adopts memory that is new, and returns the number of parts
    /// of the list. Called on the thread that has stopped the world, before
    /// [`merge`](crate::model::SplitCounts::merge). It may panic, which counts as an error.
    ///
    /// If `memory` [asks for some objects](ListedMemory::is_partial), the list may leave out all
    /// memory that is not [wanted](ListedMemory::wants).
    ///
    /// # Errors
    ///
    /// The reason why the objects cannot be listed. The collection is abandoned, and an inspection
    /// panics.
    fn list_parts(
        model: &M,
        world: &World<'_, M>,
        memory: &ListedMemory<'_>,
    ) -> Result<usize, Cow<'static, str>>;

    /// Lists the objects of one part, from 0 to one less than the number that
    /// [`list_parts`](Self::list_parts) has returned. Called once for each part, on several threads
    /// at the same time. If it panics, the collection is abandoned, while an inspection panics.
    ///
    /// The list has all objects that take part in collections. It may also have others, for which
    /// [`count`](ObjectModel::count) returns [`Count::Outside`](crate::model::Count::Outside), so
    /// that all that they refer to is kept. The traversal of such an object reports its references,
    /// or nothing, because the targets then have references that no traversal explains, and are
    /// kept as well.
    fn list(model: &M, part: usize, list: &mut ObjectList<'_>);
}

impl<M: ObjectModel> Lists<M> for () {
    const PRESENT: bool = false;

    fn list_parts(
        _: &M,
        _: &World<'_, M>,
        _: &ListedMemory<'_>,
    ) -> Result<usize, Cow<'static, str>> {
        Ok(0)
    }

    fn list(_: &M, _: usize, _: &mut ObjectList<'_>) {}
}
