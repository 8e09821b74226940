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
//! become garbage later wait for the next collection.
//!
//! # What differs from a search in a stop
//!
//! * The collector lock is free while the child searches, and between the parts. So other
//!   collections and promotions run in between, with their callbacks.
//! * Each part is a collection of its own as to weak callbacks: one is called although its weak
//!   reference is garbage, if that belongs to a later part. Young collections do the same with old
//!   garbage.
//! * All objects age in the first stop, and not in the last one.
//! * No roots are remembered, because those that the child finds die with it. The list of the last
//!   search in a stop stays, since each use checks it.
//! * The pacing counts what is new from the first stop on.
//!
//! If there is no child, or if it fails, the search runs in a stop as always, and the report says
//! why.

#![forbid(unsafe_code)]

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::base::fallible::words;
use crate::base::system::memory_group::memory_left;
use crate::collect::calls::Abandoned;
use crate::collect::claim::Unreachable;
use crate::collect::collection::{self, Collection, FirstStop};
use crate::collect::open_report;
use crate::collect::proposal::{self, Proposal, Searching};
use crate::collect::reclaim::{self, CollectorGuard};
use crate::collect::scope::Scope;
use crate::collect::search::Search;
use crate::collect::sweep::{self, Swept};
use crate::heap::child::NoAnswer;
use crate::heap::core::Core;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::request::{Collect, CollectError};
use crate::heap::world::World;
use crate::object::live::DeadObject;
use crate::object::state::{self, StateByte};
use crate::report::event;
use crate::report::facts::{ChildSearch, CollectionReport};
use crate::safepoint::{StopError, StopPurpose};

/// A part of a proposal has at least so many objects, if there are as many, so that its stop is
/// worth its cost, and takes less than a millisecond.
const LEAST: usize = 5_000;

/// How the first stop ends.
enum Begun<M: ObjectModel> {
    Searching(Searching, Vec<DeadObject>),
    /// As without a child.
    Stopped(FirstStop<M>),
}

/// Runs a full collection whose search runs in a child, so that all garbage is reclaimed when it
/// returns.
pub(super) fn collect<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
) -> Result<CollectionReport, CollectError> {
    let waited = collection::acquire_lock(m, StopPurpose::Collection);
    let core = Arc::clone(m.core());
    let mut collection = Collection::begin(m, CollectorGuard::new(&core), what);
    collection.open.report.waited = waited;
    open_report::announce(collection.m, &collection.open);
    let refusal = refusal(&core);
    let (collection, begun) =
        collection.in_stop(|world, report, what| first_stop(world, report, what, refusal))?;
    match begun {
        Begun::Stopped(first) => Ok(collection.finish(first)),
        Begun::Searching(searching, dead) => search(collection, searching, dead),
    }
}

/// Why this heap gets no child now.
fn refusal<M: ObjectModel>(core: &Core<M>) -> Option<NoAnswer> {
    if ListsOf::<M>::PRESENT {
        return Some(NoAnswer::Impossible("the model lists its objects in each stop"));
    }
    // The program may write to each page of the heap while the child lives.
    let copied = core.space.in_use_bytes();
    memory_left().is_some_and(|left| left < copied).then_some(NoAnswer::Impossible(
        "the control group of the process has less memory left than a copy of the heap takes",
    ))
}

/// The stop in which the process is cloned. Without a child, the search runs in it.
fn first_stop<M: ObjectModel>(
    world: World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
    refusal: Option<NoAnswer>,
) -> Begun<M> {
    let mut dead = Vec::new();
    let begun = collection::merge(&world, report, &mut dead, what);
    let begun = begun.and_then(|()| match refusal {
        Some(refusal) => Ok(Err(refusal)),
        None => clone_child(&world),
    });
    let found = match begun {
        Ok(Ok(searching)) => {
            world.core().pace.after_nothing(report.kind);
            collection::resume(world, report);
            return Begun::Searching(searching, dead);
        }
        Ok(Err(reason)) => {
            tell(&world.core().name, report, &reason);
            collection::find(&world, report, what)
        }
        Err(abandoned) => Err(abandoned),
    };
    collection::resume(world, report);
    Begun::Stopped((found, dead))
}

fn clone_child<M: ObjectModel>(
    world: &World<'_, M>,
) -> Result<Result<Searching, NoAnswer>, Abandoned> {
    // All objects are as old as after a search in this stop, which would examine them. Before the
    // clone, because the first write to a page after it copies the page.
    sweep::age_all(world);
    proposal::begin(world, LEAST)
}

fn tell(heap: &str, report: &mut CollectionReport, reason: &NoAnswer) {
    event::no_child(heap, reason);
    report.no_child = Some(words!("{reason}"));
}

/// Waits for the child, and collects what it proposes.
fn search<M: ObjectModel>(
    mut collection: Collection<'_, M>,
    searching: Searching,
    dead: Vec<DeadObject>,
) -> Result<CollectionReport, CollectError> {
    let core = Arc::clone(collection.m.core());
    {
        let span = collection.open.span.clone();
        let _entered = span.enter();
        collection::after_stop(dead, collection.m);
    }
    let proposal = match collection.pause(|m| m.detach(|| searching.wait())) {
        Ok(proposal) => proposal,
        Err(reason) => {
            tell(&core.name, &mut collection.open.report, &reason);
            let (collection, first) = collection.in_stop(collection::first_stop)?;
            return Ok(collection.finish(first));
        }
    };
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
    let (collection, done) = collect_parts(collection, &proposal)?;
    core.pace.after_search(proposal.candidates(), collection.open.report.unreachable);
    let report = collection.close_by(|m, open| {
        let report = open_report::close(m, open, None);
        collection::return_memory(m);
        report
    });
    done.unwrap_or_else(|payload| resume_unwind(payload));
    Ok(report)
}

/// Collects the parts of a proposal. If one is abandoned, or a method of the model unwinds, the
/// others wait for the next collection.
fn collect_parts<'m, M: ObjectModel>(
    mut collection: Collection<'m, M>,
    proposal: &Proposal,
) -> Result<(Collection<'m, M>, std::thread::Result<()>), StopError> {
    let (mut at, mut part) = (0, Vec::new());
    while at < proposal.proposed {
        if at > 0 {
            // Another stop may be waiting.
            collection.pause(|m| m.wait_parked());
        }
        if let Err(no_memory) = proposal.part(at, &mut part) {
            collection.abandon(no_memory.into());
            break;
        }
        at += part.len();
        let (next, first) = collection
            .in_stop(|world, report, what| second_stop(world, report, what, &mut part))?;
        collection = next;
        let Some(garbage) = collection.judge(first) else { break };
        let done = reclaim::part(garbage, &mut collection.open, collection.m);
        if done.is_err() {
            return Ok((collection, done));
        }
    }
    Ok((collection, Ok(())))
}

/// The stop for a part, which examines the proposed objects at these granules.
fn second_stop<M: ObjectModel>(
    world: World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
    part: &mut Vec<u32>,
) -> FirstStop<M> {
    let mut dead = Vec::new();
    let found = collection::merge_counts(&world, &mut dead)
        .map_err(Abandoned::from)
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
        child.parts += 1;
        child.examined += part.len();
    }
    let proven = collection::watched(world, || {
        let found = find(world, report, what, part);
        for &granule in &*part {
            StateByte(&states[granule as usize]).change_plainly(0, state::UNREACHABLE);
        }
        Ok(collection::claim(world, found?, report, what))
    });
    if let Some(verifier) = world.core().verifier {
        verifier.verify(world, "in a collection");
    }
    proven
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
