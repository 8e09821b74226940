//! What a heap holds, and why.
//!
//! A program grows, and its author asks which objects it keeps, and who keeps them. A count alone
//! does not answer that, but a stop does: the collector's own counting finds how many references to
//! each object come from outside of the heap, so a [`Census`] counts such objects by type, and a
//! [`HeapGraph`] knows the way from them to every other object.
//!
//! For example, a registry that a `static` holds refers to 1,000 sessions, of which 990 are
//! forgotten. The census names the type with its 1,000 objects. [`HeapGraph::holders`] shows the
//! registry as the only holder, with all bytes that it retains, and [`HeapGraph::why_alive`] says
//! for one session: `Registry` is held from outside, and its field `sessions` leads there.
//!
//! Each answer is one stop, in which the objects are read, and work on a copy afterwards, while the
//! world runs. [`Mutator`](crate::Mutator) and [`ModelMutator`] have the functions.

#![forbid(unsafe_code)]

// The primitive: all objects with their references, in one stop.
mod survey;
// Objects and bytes by type, and what has grown.
mod census;
// All objects and references as tables, with holders and paths.
mod graph;
// The same as a file, for viewers.
mod snapshot;
// The same file without a copy, written by a child of the process.
mod streamed;
// A thread that writes such files where the environment asks for them.
mod watch;
// Which object retains which.
mod dominators;
// Where the objects were made.
#[cfg(feature = "stacks")]
mod sites;
// The format of a profile.
#[doc(hidden)]
pub mod protobuf;

use std::io;

use crate::base::fallible::NoMemory;
pub use crate::diagnose::census::{Census, Growth, LeakWatch, Suspect, TypeCensus};
pub use crate::diagnose::dominators::{Digraph, Dominators};
pub use crate::diagnose::graph::{HeapGraph, Holder, Path, PathStep};
#[cfg(feature = "stacks")]
pub use crate::diagnose::sites::{AllocationSite, AllocationSites, SiteFrame};
#[doc(hidden)]
pub use crate::diagnose::streamed::NoSnapshot;
use crate::diagnose::streamed::{PendingSnapshot, Unfinished};
use crate::diagnose::survey::{SurveyVisitor, Wants, survey};
pub use crate::diagnose::survey::{Surveyed, TypeNames};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::object::address::Object;
pub use crate::object::handle_places::HandlePlace;
use crate::report::error::Fault;

/// A visitor that calls a function.
struct Calls<'f>(&'f (dyn Fn(&Surveyed<'_>) + Sync));

impl SurveyVisitor for Calls<'_> {
    fn object(&mut self, object: &Surveyed<'_>) -> Result<(), NoMemory> {
        self.0(object);
        Ok(())
    }
}

impl<M: ObjectModel> ModelMutator<M> {
    /// Calls `f` with every object of the heap, tracked or not, its references and the number of
    /// references to it from outside, in one stop. All workers of the heap call `f`, in any order.
    /// Returns the names of the types, by number.
    ///
    /// `f` runs under the guard of a traversal, so it uses no object and no heap. The other answers
    /// of [`diagnose`](crate::diagnose) are built on this function.
    ///
    /// # Panics
    ///
    /// * If a traversal or `f` panics, or if there is no memory.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn survey(&mut self, f: impl Fn(&Surveyed<'_>) + Sync) -> TypeNames {
        answer(survey(self, Wants::References, || Calls(&f))).1
    }

    /// Counts objects and bytes by type, in one stop.
    ///
    /// # Panics
    ///
    /// As for [`survey`](Self::survey).
    #[track_caller]
    pub fn census(&mut self) -> Census {
        answer(self.try_census())
    }

    /// Like [`census`](Self::census), but returns an error where that panics, or where memory is
    /// refused.
    #[doc(hidden)]
    pub fn try_census(&mut self) -> Result<Census, Fault> {
        let (parts, names) = survey(self, Wants::Objects, census::CensusPart::default)?;
        Ok(Census::of(parts, &names)?)
    }

    /// Copies all objects and references, in one stop. The copy takes 48 bytes for an object and 8
    /// for a reference, and about three times as much while it is made.
    ///
    /// # Panics
    ///
    /// As for [`survey`](Self::survey).
    #[track_caller]
    pub fn graph(&mut self) -> HeapGraph {
        answer(self.try_graph())
    }

    /// Like [`graph`](Self::graph), but returns an error where that panics, or where memory is
    /// refused.
    #[doc(hidden)]
    pub fn try_graph(&mut self) -> Result<HeapGraph, Fault> {
        self.graph_of(Wants::References)
    }

    /// Like [`graph`](Self::graph), with the [label](crate::model::Describe::label) of each object
    /// that has one. Labels are contents, such as names of users, so no other function asks for
    /// them. They are in [`Holder`] and [`PathStep`], and in the file of
    /// [`HeapGraph::save_snapshot`]. The copy takes up to 100 bytes more for each label.
    ///
    /// # Panics
    ///
    /// As for [`survey`](Self::survey), and if a label panics.
    #[track_caller]
    pub fn graph_with_labels(&mut self) -> HeapGraph {
        answer(self.try_graph_with_labels())
    }

    /// Like [`graph_with_labels`](Self::graph_with_labels), but returns an error where that panics,
    /// or where memory is refused.
    #[doc(hidden)]
    pub fn try_graph_with_labels(&mut self) -> Result<HeapGraph, Fault> {
        self.graph_of(Wants::Labels)
    }

    fn graph_of(&mut self, wants: Wants) -> Result<HeapGraph, Fault> {
        let (parts, names) = survey(self, wants, graph::GraphPart::default)?;
        // Detached, so that no stop waits for the rest of the work.
        Ok(self.detach(|| HeapGraph::of(parts, names))?)
    }

    /// Writes all objects and references into a file that viewers open, as
    /// [`HeapGraph::save_snapshot`] does. The world runs while it is written.
    ///
    /// On Linux a child of the process writes it, so that the stop lasts some milliseconds, however
    /// many objects there are. No handler for forks runs in it, and of the program's code only the
    /// model's traversals and descriptions, which must not allocate or wait there. If the system
    /// refuses a child, or the child fails, the objects are copied in a stop, as by
    /// [`graph`](Self::graph), and an event says why.
    ///
    /// # Errors
    ///
    /// Those of the file system, and [`ErrorKind::Other`](std::io::ErrorKind) where
    /// [`graph`](Self::graph) panics.
    pub fn snapshot(&mut self, path: impl AsRef<std::path::Path>) -> io::Result<()> {
        self.try_snapshot(path.as_ref()).map(|_| ()).map_err(|failed| match failed {
            NoSnapshot::Heap(fault) => io::Error::other(fault.text),
            NoSnapshot::File(error) => error,
        })
    }

    /// Like [`snapshot`](Self::snapshot), and returns the number of objects.
    #[doc(hidden)]
    pub fn try_snapshot(&mut self, path: &std::path::Path) -> Result<usize, NoSnapshot> {
        let pending = PendingSnapshot::begin(self, path)?;
        match self.detach(|| pending.finish()) {
            Err(Unfinished::Child(without)) => {
                // The heap is still there to be copied in a stop.
                let pending = without.copied(self)?;
                self.detach(|| pending.finish())
            }
            result => result,
        }
        .map_err(Unfinished::into_error)
    }

    /// The shortest path to an object from another one that is held from outside, as
    /// [`HeapGraph::why_alive`] finds it.
    ///
    /// # Panics
    ///
    /// As for [`survey`](Self::survey).
    #[track_caller]
    pub fn why_alive(&mut self, object: Object) -> Option<Path> {
        let graph = self.graph();
        self.detach(move || graph.why_alive(object.address()))
    }
}

#[track_caller]
fn answer<T>(result: Result<T, Fault>) -> T {
    result.unwrap_or_else(|fault| panic!("the heap cannot be surveyed: {}", fault.text))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
