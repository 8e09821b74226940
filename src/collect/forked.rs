//! A full collection whose search runs in a child of the process, while the program goes on.
//!
//! The search takes most of a full collection: a tenth of a second for 4 million objects. To *find*
//! garbage, all objects must be looked at. But to *prove* that some given objects are garbage, only
//! these must be looked at, because a set of objects is unreachable if all references to them come
//! from the set. So a child, which has a copy of the heap, finds, and the collector proves:
//!
//! 1. A short stop: counts are merged, and the process is cloned ([`child`](crate::heap::child)).
//! 2. The child searches, and proposes garbage, in parts ([`proposal`](super::proposal)).
//! 3. A short stop for each part. The proposed objects that still take part in a full collection
//!    are the only candidates of a search like [that of the recheck](super::recheck). Those that
//!    stay unmarked are claimed, and this part of the collection goes on as always.
//!
//! For example, A and B refer to each other and are garbage, and a weak reference leads to C, which
//! refers to itself. The child proposes both parts. Meanwhile a thread upgrades the weak reference.
//! The second stop of the first part finds the count of A and of B explained, and claims both. That
//! of the second part finds a reference to C that no candidate holds, so C stays alive.
//!
//! # Why no live object is lost
//!
//! The second stop relies on nothing that the child has said. Its counts are merged and real, and
//! it counts only references that its candidates hold now. So whatever a proposal contains, each
//! claimed object is one that no reference from outside of the claimed objects reaches. A proposal
//! that is wrong, old, torn or hostile costs time, and can only miss garbage. Its granules are
//! compared with the states of the heap, and all others are left out.
//!
//! # Why no garbage is missed
//!
//! An object that is garbage in the first stop can gain no reference afterwards, except by the
//! upgrade of a weak reference, or by a finalizer of another collection. So it is proven in its
//! second stop, unless somebody has upgraded it, or another collection has taken it. Objects that
//! become garbage later wait for the next collection, and so do those to which an object refers
//! that the child could not read.
//!
//! # References without a count
//!
//! All of this is about references that are counted. A thread could store one without a count in an
//! object that no part contains, and nothing in the second stop would show it. So a model with such
//! references gets a child only if it
//! [keeps](crate::model::Uncounted::PROVES) each object in the second stop that one may lead to.
//! Garbage that such objects hold waits for a search in a stop.
//!
//! # Listed objects
//!
//! If the model [lists](super::listing) its objects, the first stop lists all of them, so that the
//! child knows them, and the stop for a part lists the proposed ones again. Then a granule whose
//! object has died has no state, and one with another object by now is proven or kept as that.
//!
//! # What differs from a search in a stop
//!
//! * The collector lock is free while the child searches, and between the parts. So other
//!   collections and promotions run in between, with their callbacks.
//! * Each part is a collection of its own as to weak callbacks: one is called although its weak
//!   reference is garbage, if that belongs to a later part. Young collections do the same with old
//!   garbage.
//! * All objects age in the first stop, and not in the last one.
//! * Named roots are found by their counts, as all others are.
//! * Mistakes of traversals are not recorded, except more references than exist, for which the
//!   search runs in a stop. Immortal objects stay in the set, and the report has no `known_alive`.
//! * No roots are remembered, because those that the child finds die with it. The list of the last
//!   search in a stop stays, since each use checks it.
//! * The pacing counts what is new from the first stop on.
//!
//! If there is no child, or if it fails, the search runs in a stop as always, and the report says
//! why.

#![forbid(unsafe_code)]

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use crate::base::fallible::words;
use crate::base::sync::AtomicU8;
use crate::base::system::memory_group;
use crate::collect::calls::{self, Abandoned, guard_traversal, tracer_of};
use crate::collect::claim::Unreachable;
use crate::collect::collection::{self, Collection, FirstStop};
use crate::collect::listing;
use crate::collect::open_report;
use crate::collect::proposal;
use crate::collect::recheck::Garbage;
use crate::collect::reclaim::{self, CollectorGuard};
use crate::collect::scope::{Scope, stopped_at};
use crate::collect::search::Search;
use crate::collect::sweep::{self, Swept};
use crate::heap::child::{self, NoAnswer};
use crate::heap::core::{COLLECT, Core};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::request::{Collect, CollectError};
use crate::heap::unfinished::{OnlyChild, Proposal, Rest, Searching};
use crate::heap::world::World;
use crate::object::live::DeadObject;
use crate::object::state::{self, StateByte};
use crate::object::tracer::Tracer;
use crate::report::event;
use crate::report::facts::{ChildSearch, CollectionReport};
use crate::safepoint::StopError;

/// A part of a proposal has at least so many objects, if there are as many, so that its stop is
/// worth its cost. It takes about half a millisecond, or more if the objects are far apart. If the
/// model lists its objects, a stop takes a millisecond or two before it looks at the first of them.
const fn least<M: ObjectModel>() -> usize {
    if ListsOf::<M>::PRESENT { 20_000 } else { 5_000 }
}

/// How long no thread looks for the end of the child.
const LOOK: Duration = Duration::from_millis(1);

/// How a collection begins.
enum Begun<M: ObjectModel> {
    Searching(Searching),
    /// As without a child, for this reason, unless the collection was abandoned before.
    Stopped(FirstStop<M>, Option<NoAnswer>),
}

/// Runs a full collection whose search runs in a child, so that all garbage is reclaimed when it
/// returns.
pub(super) fn collect<M: ObjectModel>(
    mut collection: Collection<'_, M>,
) -> Result<CollectionReport, StopError> {
    let core = Arc::clone(collection.m.core());
    let searching = match begin(&mut collection) {
        Ok(Begun::Searching(searching)) => searching,
        Ok(Begun::Stopped(first, _)) => return Ok(collection.finish(first)),
        Err(why) => return Err(collection.refused(why)),
    };
    let wait =
        |ended: &mut dyn FnMut() -> bool| RuntimeStopOf::<M>::wait_for_child(&core.model, ended);
    let answer = collection.pause(|m| m.detach(|| searching.wait(&core.pace, wait)));
    if let Err(reason) = answered(&mut collection, answer) {
        tell(&core.name, &mut collection.open.report, &reason);
        if matches!(reason, NoAnswer::GivenUp) {
            collection.open.is_superseded = true;
            collection.open.report.abandoned = Some(words!("{reason}"));
            return Ok(collection.close_by(|m, open| open_report::close(m, open, None)));
        }
        return Ok(match collection.in_stop(collection::first_stop) {
            Ok(first) => collection.finish(first),
            Err(refused) => close_unstopped(collection, &refused),
        });
    }
    while restores_huge_pages(&mut collection) {}
    let done = collect_parts(&mut collection);
    let report = collection.close_by(|m, open| {
        let report = open_report::close(m, open, None);
        collection::return_memory(m);
        report
    });
    done.unwrap_or_else(|payload| resume_unwind(payload));
    Ok(report)
}

/// Begins a full collection that is due, and puts it off while the child searches.
pub(super) fn collect_due<M: ObjectModel>(
    mut collection: Collection<'_, M>,
) -> Result<(), StopError> {
    match begin(&mut collection) {
        Ok(Begun::Searching(searching)) => {
            collection.open.rest = Some(Rest::Searching(searching));
            collection.put_off(LOOK);
        }
        Ok(Begun::Stopped(first, reason)) => {
            if let Some(reason) = reason {
                collection.m.core().pace.children.failed_by(&reason);
            }
            collection.share(first);
        }
        Err(why) => return Err(collection.refused(why)),
    }
    Ok(())
}

/// Goes on with the collection that was put off, if there is one, by one step.
pub(crate) fn go_on<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), CollectError> {
    let core = Arc::clone(m.core());
    let guard = CollectorGuard::try_acquire(&core).ok_or(CollectError::Busy)?;
    let Some(mut open) = open_report::take_up(m) else { return Ok(()) };
    let searching = match open.rest.take() {
        Some(Rest::Searching(searching)) => searching,
        proposed => {
            open.rest = proposed;
            share_part(Collection::again(m, guard, open));
            return Ok(());
        }
    };
    let mut collection = Collection::again(m, guard, open);
    match searching.ended(&core.pace) {
        Err(searching) => {
            collection.open.rest = Some(Rest::Searching(searching));
            collection.put_off(LOOK);
        }
        Ok(answer) => match answered(&mut collection, answer) {
            Ok(()) => {
                core.pace.children.succeeded();
                collection.put_off_or_close();
            }
            Err(reason) => {
                tell(&core.name, &mut collection.open.report, &reason);
                core.pace.children.failed_by(&reason);
                match collection.in_stop(collection::first_stop) {
                    Ok(first) => collection.share(first),
                    Err(refused) => _ = close_unstopped(collection, &refused),
                }
            }
        },
    }
    Ok(())
}

/// Ends the collection that was put off, because another full collection begins and finds its
/// garbage too. Returns whether there was one.
pub(super) fn supersede<M: ObjectModel>(m: &ModelMutator<M>, _held: &CollectorGuard<M>) -> bool {
    m.core().collector_lock.is_unfinished() && supersede_unfinished(m)
}

#[cold]
fn supersede_unfinished<M: ObjectModel>(m: &ModelMutator<M>) -> bool {
    let Some(mut open) = open_report::take_up(m) else { return false };
    let begun = calls::begin_holding_up(m);
    // A child that still searches is ended here.
    drop(open.rest.take());
    open.is_superseded = true;
    let why = "another full collection has begun before this one was over";
    open.report.abandoned = Some(words!("{why}"));
    open_report::close(m, open, None);
    calls::report_held_up(m, begun);
    true
}

/// What the child needs, or why there is none.
fn may_search<M: ObjectModel>(core: &Core<M>) -> Result<(Tracer, OnlyChild), NoAnswer> {
    let impossible = if !child::is_possible() {
        Some("child processes that search are supported only on Linux with glibc")
    } else if !UncountedOf::<M>::PROVES {
        // A thread could store one of these while the child searches.
        Some("the model has references without a count, and does not declare `Uncounted::PROVES`")
    } else {
        None
    };
    if let Some(why) = impossible {
        return Err(NoAnswer::Impossible(why));
    }
    // The program may write to each of its pages while the child lives. Where memory runs out, the
    // system ends the child first, unless the process has no such child.
    let heap = core.space.in_use_bytes().saturating_add(core.space.limit.external_bytes());
    let copy = memory_group::resident().unwrap_or(0).max(heap);
    let left = [memory_group::memory_left(), memory_group::available()].into_iter().flatten().min();
    let short = |bytes| left.is_some_and(|left| left < bytes);
    if short(copy) {
        return Err(NoAnswer::Unwise(
            "less memory is left, in the control group or the system, than the process takes",
        ));
    }
    if short(copy.saturating_mul(2)) && !memory_group::is_clone_victim() {
        return Err(NoAnswer::Unwise(
            "less memory is left than twice what the process takes, and the system might end it \
             before its child",
        ));
    }
    let only = OnlyChild::take(&core.is_searched)
        .ok_or(NoAnswer::Unwise("another child searches this heap"))?;
    let tracer = proposal::tracer(core)
        .map_err(|_| NoAnswer::Refused(std::io::ErrorKind::OutOfMemory.into()))?;
    Ok((tracer, only))
}

/// Announces the collection, and clones a child in its first stop.
fn begin<M: ObjectModel>(collection: &mut Collection<'_, M>) -> Result<Begun<M>, StopError> {
    let child = may_search(collection.m.core());
    open_report::announce(collection.m, &collection.open);
    let mut dead = Vec::new();
    let begun = collection
        .in_stop(|world, report, what| first_stop(world, report, what, child, &mut dead))?;
    if matches!(begun, Begun::Searching(_)) {
        let span = collection.open.span.clone();
        let _entered = span.enter();
        collection::after_stop(dead, collection.m);
    }
    Ok(begun)
}

/// The stop in which the process is cloned. Without a child, the search runs in it.
fn first_stop<M: ObjectModel>(
    world: World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
    child: Result<(Tracer, OnlyChild), NoAnswer>,
    dead: &mut Vec<DeadObject>,
) -> Begun<M> {
    let begun = collection::merge(&world, report, dead, what).and_then(|()| {
        let child = match child {
            Ok(child) => child,
            Err(reason) => return Ok(Err(reason)),
        };
        let told = proposal::Told::by_model(&world)?;
        // All objects are as old as after a search in this stop, which would examine them. Before
        // the clone, because the first write to a page after it copies the page.
        sweep::age_all(&world);
        Ok(proposal::begin(&world, child, &told, least::<M>()))
    });
    let (found, reason) = match begun {
        Ok(Ok(searching)) => {
            world.core().pace.after_clone();
            collection::resume(world, report);
            return Begun::Searching(searching);
        }
        Ok(Err(reason)) => {
            tell(&world.core().name, report, &reason);
            (collection::find(&world, report, what), Some(reason))
        }
        Err(abandoned) => (Err(abandoned), None),
    };
    collection::resume(world, report);
    Begun::Stopped((found, std::mem::take(dead)), reason)
}

pub(super) fn tell(heap: &str, report: &mut CollectionReport, reason: &NoAnswer) {
    event::no_child(heap, reason);
    report.no_child = Some(words!("{reason}"));
}

/// Adds to the report what the child has answered. The collection has a proposal then.
fn answered<M: ObjectModel>(
    collection: &mut Collection<'_, M>,
    answer: Result<Proposal, NoAnswer>,
) -> Result<(), NoAnswer> {
    let proposal = answer?;
    let report = &mut collection.open.report;
    report.candidates = proposal.candidates();
    report.tracked = proposal.candidates();
    report.child = Some(ChildSearch {
        took: proposal.took(),
        proposed: proposal.proposed,
        examined: 0,
        parts: 0,
        unreadable: proposal.unreadable(),
    });
    collection.open.rest = Some(Rest::Proposed(proposal));
    Ok(())
}

fn no_more_stops(refused: &StopError) -> Abandoned {
    Abandoned::collection(words!("the world cannot be stopped again: {refused}"))
}

fn close_unstopped<M: ObjectModel>(
    mut collection: Collection<'_, M>,
    refused: &StopError,
) -> CollectionReport {
    collection.abandon(no_more_stops(refused));
    collection.close_by(|m, open| open_report::close(m, open, None))
}

/// Collects all parts of a proposal. If one is abandoned, or a method of the model unwinds, the
/// others wait for the next collection.
fn collect_parts<M: ObjectModel>(collection: &mut Collection<'_, M>) -> std::thread::Result<()> {
    while let Some(proposal) = collection.open.proposal().filter(|proposal| proposal.has_parts()) {
        if !proposal.is_untouched() {
            // What is due runs here, because other threads hardly find the lock free.
            collection.pause(|m| {
                m.raise(COLLECT);
                m.safepoint();
            });
        }
        let Some(garbage) = next_part(collection) else { break };
        reclaim::part(garbage, &mut collection.open, collection.m)?;
    }
    Ok(())
}

/// Stops the world for the next part of a proposal, and hands its garbage to all mutators.
fn share_part<M: ObjectModel>(mut collection: Collection<'_, M>) {
    let has_parts = |proposal: &&Proposal| proposal.has_parts();
    if restores_huge_pages(&mut collection)
        || collection.open.proposal().filter(has_parts).is_none()
    {
        return collection.put_off_or_close();
    }
    match next_part(&mut collection) {
        Some(garbage) if !garbage.objects.is_empty() => collection.hand_over(garbage),
        Some(garbage) => {
            let done = reclaim::part(garbage, &mut collection.open, collection.m);
            collection.put_off_or_close();
            done.unwrap_or_else(|payload| resume_unwind(payload));
        }
        None => {
            collection.close_by(|m, open| open_report::close(m, open, None));
        }
    }
}

/// Repairs a part of the heap's huge pages, of which a clone of the process breaks up each one that
/// the program writes while the child lives. `false`: all are whole.
fn restores_huge_pages<M: ObjectModel>(collection: &mut Collection<'_, M>) -> bool {
    let core = Arc::clone(collection.m.core());
    let Some(Rest::Proposed(proposal)) = &mut collection.open.rest else { return false };
    proposal.restore_huge_pages(|at| core.space.restore_huge_pages(at))
}

/// Runs the phases of the next part up to `Recheck`. Returns `None` if it was abandoned.
fn next_part<M: ObjectModel>(collection: &mut Collection<'_, M>) -> Option<Garbage> {
    let mut rest = collection.open.rest.take();
    let first = stop_for_part(collection, rest.as_mut());
    collection.open.rest = rest;
    match first {
        Ok(first) => collection.judge(first?),
        Err(why) => {
            collection.abandon(why);
            None
        }
    }
}

fn stop_for_part<M: ObjectModel>(
    collection: &mut Collection<'_, M>,
    rest: Option<&mut Rest>,
) -> Result<Option<FirstStop<M>>, Abandoned> {
    let Some(Rest::Proposed(proposal)) = rest else { return Ok(None) };
    collection.m.core().pace.proposed(proposal.left());
    let is_first = proposal.is_untouched();
    let mut part = proposal.take_part()?;
    if let Some(child) = &mut collection.open.report.child {
        child.parts += usize::from(!part.is_empty());
    }
    let stopped = collection.in_stop(|world, report, what| {
        // A listed object that could not be read may be dead by now.
        if is_first && !ListsOf::<M>::PRESENT {
            read_again(&world, proposal);
        }
        second_stop(world, report, what, &mut part)
    });
    stopped.map(Some).map_err(|refused| no_more_stops(&refused))
}

/// Traverses objects that the child could not read, as a search in this stop would, because a
/// traversal may change what the next one reads, and a change in the child is lost. For example, a
/// cell that another heap has locked last notes at the first traversal that it belongs to this
/// heap, and can be read from the second one on.
fn read_again<M: ObjectModel>(world: &World<'_, M>, proposal: &Proposal) {
    let core = world.core();
    let read = guard_traversal(world, &mut tracer_of(world), |tracer| {
        for granule in proposal.some_unreadable() {
            if let Some(object) = stopped_at(world, granule) {
                tracer.begin(object.object());
                core.model.traverse(object, tracer);
                tracer.take_unreadable();
            }
        }
    });
    // One that panics is found by the next search in a stop.
    drop(read);
}

/// The stop for a part, which examines the proposed objects at these granules.
fn second_stop<M: ObjectModel>(
    world: World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
    part: &mut Vec<u32>,
) -> FirstStop<M> {
    let mut dead = Vec::new();
    let found = listing::list_some(&world, what.workers, part)
        .and_then(|()| Ok(collection::merge_counts(&world, &mut dead)?))
        .and_then(|()| prove(&world, report, what, part));
    collection::resume(world, report);
    (found, dead)
}

/// Claims those of the proposed objects that nothing outside of them reaches.
fn prove<M: ObjectModel>(
    world: &World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
    part: &mut Vec<u32>,
) -> Result<Unreachable<M>, Abandoned> {
    let states = world.core().space.states();
    // Those that take part in a full collection now. A granule may be there twice.
    part.retain(|&granule| {
        let state = states.get(granule as usize).map(StateByte);
        let state = state.filter(|state| state::is_candidate(state.get()));
        state.inspect(|state| _ = state.change_plainly(state::UNREACHABLE, 0)).is_some()
    });
    if let Some(child) = &mut report.child {
        child.examined += part.len();
    }
    let proven = collection::watched(world, || {
        let found = {
            let _named = Named { states, part };
            find(world, report, what, part)
        };
        Ok(collection::claim(world, found?, report, what))
    });
    if let Some(verifier) = world.core().verifier {
        verifier.verify(world, "in a collection");
    }
    proven
}

/// Objects that have the bit `UNREACHABLE` until this is dropped.
struct Named<'a> {
    states: &'a [AtomicU8],
    part: &'a [u32],
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        for &granule in self.part {
            StateByte(&self.states[granule as usize]).change_plainly(0, state::UNREACHABLE);
        }
    }
}

/// Finds those of the objects with the bit `UNREACHABLE` that nothing outside of them reaches.
fn find<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
    part: &[u32],
) -> Result<Swept<'w>, Abandoned> {
    let mut search = Search::begin(world, Scope::of_proposed(part)?, what.workers)?;
    report.workers = report.workers.max(search.workers);
    let swept = search.mark_reachable().and_then(|marked| Ok(search.list(marked)?));
    search.close(swept)
}

/// Puts off a collection whose child has proposed these words.
#[cfg(all(test, loom))]
pub(crate) fn put_off_proposed<M: ObjectModel>(m: &mut ModelMutator<M>, words: &[u64]) {
    let core = Arc::clone(m.core());
    assert!(core.collector_lock.try_acquire());
    let mut collection = Collection::begin(m, CollectorGuard::new(&core), Collect::full());
    open_report::announce(collection.m, &collection.open);
    collection.open.report.child = Some(ChildSearch::default());
    collection.open.rest = Some(Rest::Proposed(Proposal::hostile(words, &core.pace)));
    collection.put_off(LOOK);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
