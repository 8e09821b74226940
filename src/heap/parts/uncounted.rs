//! References without a count, for example from the stacks of a runtime's threads, which no
//! traversal of objects finds. Suppose that thread 1 has such a reference to B, and the garbage A
//! has a counted one. The counts alone would tell the collector that B is garbage too.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::object::address::Object;

/// Traversals may report references without a count
/// ([`Tracer::uncounted`](crate::Tracer::uncounted)). Without this part such a report panics, and
/// the collection is abandoned. Rule 7 of [`ObjectModel`] says what must be reported.
pub trait Uncounted<M: ObjectModel> {
    /// Whether traversals report uncounted references. If `false`, only [`roots`](Self::roots)
    /// does.
    const PRESENT: bool = true;

    /// Whether young collections and promotions run. If `false`, each collection is full, also one
    /// that was requested as [young](crate::Collect::young).
    ///
    /// A young collection does not find the uncounted references of old objects, because it does
    /// not traverse them. A model sets it to `true` if [`roots`](Self::roots) reports these
    /// references.
    const COLLECTS_YOUNG: bool = !Self::PRESENT;

    /// Whether the second stop of a collection, after the finalizers, traverses all tracked objects
    /// for uncounted references to objects that the first stop has found unreachable. This takes
    /// about as long as the first stop.
    ///
    /// A model sets it to `false` if [`roots`](Self::roots) reports these references, or if there
    /// are none. For example, [`claim_ref`](ObjectModel::claim_ref) may make sure that all further
    /// references to the object are counted.
    const RECHECKS: bool = Self::PRESENT && !Self::COLLECTS_YOUNG;

    /// Whether a collection may prove that some objects are garbage without a look at all others,
    /// as it must if a [child process](crate::Collect::forked) searches. A thread could store an
    /// uncounted reference in an object that no such stop traverses. So a model sets it to `true`
    /// only if [`count`](ObjectModel::count) then returns
    /// [`Count::Outside`](crate::model::Count::Outside) for each object that such a reference may
    /// lead to, unless `roots` reports it. A model that lists its objects knows these stops by
    /// their [partial list](crate::model::ListedMemory::is_partial).
    ///
    /// Garbage that is kept for this reason waits for a search in a stop.
    const PROVES: bool = !Self::PRESENT;

    /// Reports objects that references without a count keep alive, for example the references on
    /// the stacks of the runtime's threads. These objects, and all objects that they reach, stay
    /// alive. Called once in each search of a stop for the objects that are alive, which is in the
    /// first stop of each collection, young or full, and in the recheck.
    ///
    /// `traverses` tells whether the collector traverses an object in this stop, because an
    /// uncounted reference from an object that it does not traverse is reported here, by its
    /// target. Such objects are, by the kind of the stop:
    ///
    /// * full collection: untracked and frozen objects, and objects whose destruction has begun;
    /// * young collection: these, and old objects;
    /// * proof of a child's proposal: all objects but some of the proposed ones;
    /// * recheck: all objects outside the set that the first stop has found unreachable. If
    ///   [`COLLECTS_YOUNG`](Self::COLLECTS_YOUNG) is `false`, the recheck finds the uncounted
    ///   references from all tracked objects itself.
    #[expect(unused_variables, reason = "a model without such roots reports none")]
    fn roots(
        model: &M,
        world: &World<'_, M>,
        traverses: &dyn Fn(Object) -> bool,
        report: &mut dyn FnMut(Object),
    ) {
    }
}

impl<M: ObjectModel> Uncounted<M> for () {
    const PRESENT: bool = false;
}
