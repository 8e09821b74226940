//! One collection, phase by phase.
//!
//! A cycle of garbage never frees itself, because each of its objects has a reference. A collection
//! finds such objects by a comparison: an object whose references all come from other objects of
//! the heap, none of which is reachable either, is garbage. The [search](search) explains this with
//! four objects and two workers. [`collection`] makes the calls in this order:
//!
//! * Open ([`open_report`]): one thread acquires the collector lock, and calls the start
//!   callbacks. The model drops deferred drops.
//! * **The world stops.** If the model [lists](listing) its objects, it does so now.
//! * `Merge` ([`collection`], and the model): counts become exact. Objects with the count 0 leave
//!   the candidates, and are destroyed after the stop.
//! * The [candidates](candidates) are found by their state bytes. None is marked.
//! * `Premark` ([`mark`]): marks the candidates that the [roots of the model](listing) reach, and
//!   in full collections those that named roots and [assumed roots](assumed) reach.
//! * `Count` ([`count`]): counts the references from the unmarked candidates. Then the assumed
//!   roots are checked.
//! * `Roots` ([`roots`]): an unmarked candidate is a root if this number differs from its count.
//! * `Mark` ([`mark`]): marks the candidates that the roots reach.
//! * `Sweep` ([`sweep`]): lists the unmarked candidates.
//! * `Claim` ([`claim`]): takes a reference on each listed object, and clears weak references with
//!   callbacks. Objects that legacy finalizers reach leave the set.
//! * **The world starts.**
//! * `Callbacks`, `Finalize` ([`recheck`]): calls the weak callbacks, then the finalizers, once
//!   per object.
//! * `Recheck` ([`recheck`]), in a second stop: resurrected objects leave the set. The other
//!   objects lose their weak references.
//! * Judge ([`recheck::judge`]): the model may keep the garbage.
//! * `Clear` ([`clear`], [`reclaim`]): clears each object, then releases each. In between, the
//!   model may have the cleared ones examined in a stop ([`released`]). The counts free the
//!   objects. The model may clear some after the others (`SplitCounts::after_clear`). If objects
//!   are still alive then, one more stop decides their fate.
//! * Close ([`open_report`]): calls the stop callbacks. Then the collector lock is released.
//!
//! A requested collection goes through all phases in the call. A collection that the heap started
//! leaves `Clear` to all mutators, in batches, so that no thread pauses for the garbage of all.
//!
//! If no object of the set can run code, there is one stop: the phases from `Callbacks` to
//! `Recheck` are omitted. If `Premark` leaves no candidate, `Roots` and `Mark` are omitted.
//!
//! Each phase takes the result of the phase before it, and the phases that need the stop take its
//! token. All data of a collection is in these values. Four things remain between collections: the
//! side tables (all zero), the age bits, the remembered roots, and memory for the next collection.
//!
//! # Abandoned collections
//!
//! A collection is abandoned if a traversal panics, if a field that was readable in `Count` is
//! locked in `Mark`, or if memory runs out. Before `Claim`, an abandoned collection has changed no
//! object but these: objects with the count 0 are dying, immortal ones have left the tracked set,
//! and others may have aged. In `Recheck`, an abandoned collection keeps the whole set alive.
//!
//! # A rule
//!
//! `SAFETY` comments cite this rule:
//!
//! * **stopped**: while the world is stopped, no thread frees an object or lowers a count. So a
//!   candidate is alive, and so is the target of each edge of a live object. The data of mutators
//!   does not change.

// The work of a thread at a safepoint: it parks, collects or promotes.
pub(crate) mod safepoint;
// The driver: a collection from its request to its report.
pub(crate) mod collection;
// The open report, and the callbacks around a collection.
pub(crate) mod open_report;

// The search for unreachable objects: `Premark` to `Sweep`.
pub(crate) mod search;
// The pages and objects of a phase, and how workers share them.
#[allow(unsafe_code)]
pub(crate) mod scope;
// The candidates, and their marks.
#[allow(unsafe_code)]
pub(crate) mod candidates;
// What a model names: its objects, uncounted roots, corrections of counts.
#[allow(unsafe_code)]
pub(crate) mod listing;
// Calls to the model: traversals in a stop, other methods between the stops.
pub(crate) mod calls;
// The roots of the last full collection, as an assumption about this one.
pub(crate) mod assumed;
// `Count`, and its table.
#[allow(unsafe_code)]
pub(crate) mod count;
// `Roots`.
#[allow(unsafe_code)]
pub(crate) mod roots;
// `Premark` and `Mark`.
#[allow(unsafe_code)]
pub(crate) mod mark;
// `Sweep`, and promotions.
#[allow(unsafe_code)]
pub(crate) mod sweep;

// `Claim`.
#[allow(unsafe_code)]
pub(crate) mod claim;
// `Callbacks`, `Finalize` and `Recheck`, and the judgement of the model.
#[allow(unsafe_code)]
pub(crate) mod recheck;
// `Clear`: by one thread, or by all in batches.
#[allow(unsafe_code)]
pub(crate) mod reclaim;
// `Clear`: clearing and releasing some objects.
pub(crate) mod clear;
// A check of cleared objects, in checked mode.
pub(crate) mod released;

#[cfg(feature = "cpython")]
pub(crate) use self::scope::{live, visible};

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests;
