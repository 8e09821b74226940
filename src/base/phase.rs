//! The phases of a collection.

#![forbid(unsafe_code)]

/// The phases of a collection, in their order. `docs/tracing.md` quotes this documentation, and
/// `ci/docs.sh` compares the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Stopped: merges the counts that threads have pending; runs in each stop of a collection and
    /// of a promotion.
    Merge,
    /// Stopped: marks the objects that the model's roots reach, and in a full collection those that
    /// known roots reach, then those that the roots of the last full collection reach; only in a
    /// collection with such roots, and once more if some of the last are roots no longer.
    Premark,
    /// Stopped: counts the references between candidates.
    Count,
    /// Stopped: finds the roots: candidates with references from outside.
    Roots,
    /// Stopped: marks the objects that the roots reach.
    Mark,
    /// Stopped: gathers the unmarked candidates, which are unreachable, and makes the others old.
    Sweep,
    /// Stopped: takes a reference to each unreachable object, and clears weak references with
    /// callbacks.
    Claim,
    /// Running: calls the weak callbacks that are due.
    Callbacks,
    /// Running: runs finalizers.
    Finalize,
    /// Stopped: removes resurrected objects from the set, and clears the remaining weak references.
    Recheck,
    /// Running: clears the garbage and releases it.
    Clear,
}
