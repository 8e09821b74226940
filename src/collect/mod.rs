//! One collection, phase by phase.
//!
//! A cycle of garbage never frees itself, because each of its objects has a reference. So a
//! collection looks for objects whose references all come from other objects of the heap, none of
//! which is reachable either. The [search](search) explains this with four objects and two workers,
//! and [`collection`] makes the calls in this order:
//!
//! * Open ([`open_report`]): one thread acquires the collector lock, calls the start callbacks, and
//!   has the model do its deferred drops.
//! * **The world stops.** If the model [lists](listing) its objects, it does so now.
//! * `Merge` ([`collection`], and the model) makes counts exact, so that objects with the count 0
//!   are known. They are no candidates, and are destroyed after the stop.
//! * The [candidates](candidates) are found by their state bytes, and none of them is marked yet.
//! * `Premark` ([`mark`]) marks the candidates that the [roots of the model](listing) reach, and in
//!   full collections those that named roots and [assumed roots](assumed) reach.
//! * `Count` ([`count`]) counts the references from the unmarked candidates. Now the edges to the
//!   assumed roots are known too, so these are checked.
//! * `Roots` ([`roots`]) finds the roots: an unmarked candidate is one if this number differs from
//!   its count, because then something outside may refer to it.
//! * `Mark` ([`mark`]) marks the candidates that the roots reach, and then the values of
//!   [ephemerons] whose tables and keys are marked.
//! * `Sweep` ([`sweep`]) lists the unmarked candidates, which are unreachable.
//! * `Claim` ([`claim`]) takes a reference on each listed object, so that none dies before its
//!   turn, and clears weak references with callbacks. Objects that legacy finalizers reach leave
//!   the set.
//! * **The world starts.**
//! * `Callbacks` and `Finalize` ([`recheck`]) call the weak callbacks, and then the finalizers,
//!   once per object.
//! * `Recheck` ([`recheck`]), in a second stop, finds the objects that this code has made
//!   reachable. They leave the set, and the others lose their weak references.
//! * Judge ([`recheck::judge`]) passes the garbage to the model, which may keep it.
//! * `Clear` ([`clear`], [`reclaim`]) clears each object, and then releases each, so that the
//!   counts free them. In between, the model may have the cleared ones examined in a stop
//!   ([`released`]). The model may clear some after the others (`SplitCounts::after_clear`). If
//!   objects are still alive then, one more stop decides their fate.
//! * Close ([`open_report`]) calls the stop callbacks, and then the collector lock is released.
//!
//! A requested collection goes through all phases in the call. A collection that the heap started
//! leaves `Clear` to all mutators, in batches of up to 512 objects, so that no thread pauses for
//! the garbage of all.
//!
//! If no object of the set can run code, the phases from `Callbacks` to `Recheck` are omitted,
//! because nothing can become reachable again. So one stop is enough. If `Premark` leaves no
//! candidate to count, `Roots` and `Mark` are omitted too.
//!
//! All data of a collection is in the values that its phases pass on, and a phase that needs the
//! stop takes the stop's token. Between collections remain only the side tables (all zero), the age
//! bits, the remembered roots, and memory for the next collection.
//!
//! # Abandoned collections
//!
//! A collection is abandoned if a traversal panics, if a field that was readable in `Count` is
//! locked in `Mark`, or if memory runs out. Before `Claim`, it has changed only this: objects with
//! the count 0 are dying, immortal ones may have left the tracked set, and others may have aged. In
//! `Recheck` it has claimed its objects already, so it keeps the whole set alive.
//!
//! # A rule
//!
//! `SAFETY` comments cite this rule:
//!
//! * **stopped**: while the world is stopped, no thread frees an object or lowers a count, and the
//!   data of mutators does not change. So a candidate is alive, and so is the target of each edge
//!   of a live object.

// The work of a thread at a safepoint, where it parks, collects or promotes.
pub(crate) mod safepoint;
// The driver, which runs a collection from its request to its report.
pub(crate) mod collection;
// The open report, and the callbacks around a collection.
pub(crate) mod open_report;

// The search for unreachable objects, from `Premark` to `Sweep`.
pub(crate) mod search;
// The pages and objects of a phase, and how workers share them.
#[allow(unsafe_code)]
pub(crate) mod scope;
// The candidates, and their marks.
#[allow(unsafe_code)]
pub(crate) mod candidates;
// What a model names, which is its objects, uncounted roots, and corrections of counts.
#[allow(unsafe_code)]
pub(crate) mod listing;
// The types with the most bytes, for the report of a slow collection.
mod largest;
// Calls to the model, with traversals in a stop, and other methods between the stops.
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
// The entries of tables with weak keys, after `Mark`.
pub(crate) mod ephemerons;
// `Sweep`, and promotions.
#[allow(unsafe_code)]
pub(crate) mod sweep;

// Full collections whose search runs in a child of the process.
pub(crate) mod forked;
// What that child proposes.
mod proposal;

// `Claim`.
#[allow(unsafe_code)]
pub(crate) mod claim;
// `Callbacks`, `Finalize` and `Recheck`, and the judgement of the model.
#[allow(unsafe_code)]
pub(crate) mod recheck;
// `Clear`, by one thread, or by all threads in batches.
#[allow(unsafe_code)]
pub(crate) mod reclaim;
// The loops of `Clear`, which clear and release some objects.
pub(crate) mod clear;
// A check of cleared objects, in checked mode.
pub(crate) mod released;

#[cfg(feature = "cpython")]
pub(crate) use self::scope::{live, visible};

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests;
