//! The interface to a contestant with references that are handles. The workloads use it, so they
//! are written once.
//!
//! A contestant with references that cannot be kept over a collection (gc-arena) has its own
//! workloads, with the same shapes.

use std::any::Any;
use std::time::Duration;

use crate::tally::Tally;
use crate::task::{Measured, Task, Workload};

/// A collector with handles that can be cloned and kept.
///
/// A node holds one [`Tally`] and a growing list of edges behind the lock or cell that the
/// contestant's own users would take.
pub trait Peer {
    /// The data that all threads share: the heap, if it is a value.
    type Shared: Sync;
    /// The data of each thread.
    type Local<'a>;
    /// A handle to a node.
    type Node: Clone + 'static;
    /// Cycles are never freed: the checks allow for that.
    const LEAKS: bool = false;

    /// Makes the heap; `task.threads` is also how many workers a collection may have.
    fn shared(task: &Task) -> Self::Shared;
    /// Makes this thread one that works with it.
    fn attach(shared: &Self::Shared) -> Self::Local<'_>;
    /// Allocates a node without edges.
    fn alloc(local: &Self::Local<'_>, tally: Tally) -> Self::Node;
    /// Adds an edge.
    fn link(local: &Self::Local<'_>, from: &Self::Node, to: &Self::Node);
    /// Takes the last edge away.
    fn unlink(local: &Self::Local<'_>, from: &Self::Node) -> Option<Self::Node>;
    /// The sum of the names of the nodes that this one leads to.
    fn read(local: &Self::Local<'_>, node: &Self::Node) -> u64;
    /// Between two pieces of work: where a contestant without a trigger of its own may collect.
    fn safepoint(_local: &mut Self::Local<'_>) {}
    /// Collects everything; returns for how long others were stopped, where that is not all of it.
    fn collect(local: &mut Self::Local<'_>) -> Option<Duration>;
    /// Names a root for the lifetime of the returned value.
    fn hint(_local: &Self::Local<'_>, _root: &Self::Node) -> Option<Box<dyn Any>> {
        None
    }
}

/// How many threads a contestant can do a workload with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Can {
    /// Not at all.
    No,
    /// With one.
    One,
    /// With any number.
    Many,
}

/// One entry of the list in `contestants`.
#[derive(Clone, Copy, Debug)]
pub struct Contestant {
    /// As in the table.
    pub name: &'static str,
    /// Another project: counts for "the best rival".
    pub rival: bool,
    /// The capabilities.
    pub can: fn(Workload) -> Can,
    /// Does it.
    pub run: fn(&Task) -> Measured,
}
