//! Tables with weak keys, whose values must not keep the keys alive.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::report::error::OutOfMemory;

/// There are tables with weak keys, which own a value for each key. Such an entry is an
/// *ephemeron*: the reference to its value counts only while the table and the key are alive.
///
/// For example, a table is alive, and its entry for the key K owns V, which refers to K. By counts
/// alone V would be alive, and thereby K. A collection finds that nothing but the entry leads to
/// the two, so both are garbage, and the model removes the entry
/// ([`clear_weak`](crate::model::WeakRefs::clear_weak) of K says so).
///
/// A collection that looks at young objects only keeps the values alive, and so their keys.
pub trait Ephemerons<M: ObjectModel> {
    /// Reports each entry whose key is alive, in a stop, once for each counted reference that the
    /// entry holds. The traversal of the table does *not* report these references.
    ///
    /// Called in each stop that counts the references of all objects or of given ones, and perhaps
    /// before a child of the process is cloned. A reference that is not reported counts as one from
    /// outside, which keeps its target alive. A report too many can have a live value cleared, as
    /// an edge that a traversal reports twice can.
    ///
    /// # Errors
    ///
    /// If memory for the report is refused. The collection is then abandoned.
    fn ephemerons(
        model: &M,
        world: &World<'_, M>,
        report: &mut dyn FnMut(Ephemeron),
    ) -> Result<(), OutOfMemory>;
}

impl<M: ObjectModel> Ephemerons<M> for () {
    fn ephemerons(
        _: &M,
        _: &World<'_, M>,
        _: &mut dyn FnMut(Ephemeron),
    ) -> Result<(), OutOfMemory> {
        Ok(())
    }
}

/// A reference from a table with weak keys, as a model [reports](Ephemerons::ephemerons) it.
#[derive(Clone, Copy, Debug)]
pub struct Ephemeron {
    /// The object that has the entry.
    pub table: Object,
    /// The object that the entry refers to weakly.
    pub key: Object,
    /// The object to which the entry holds a counted reference.
    pub value: Object,
}
