//! One collection, phase by phase.
//!
//! * Open ([`open_report`]): one thread acquires the collector lock, and calls the start
//!   callbacks. The model drains deferred drops.
//! * **The world stops.**
//! * `Merge` ([`stop`], and the model): counts become exact. Objects with the count 0 leave the
//!   candidates, and are destroyed after the stop.
//! * The [candidates](candidates) are found by their state bytes. None is marked. If the model
//!   [lists](listing) its objects, it does so first.
//! * `Premark` ([`mark::mark_from_named`], [`mark::mark_from_assumed`]): marks the candidates that
//!   the [roots of the model](uncounted) reach, and in full collections those that named roots
//!   reach, and those that the [assumed roots](assumed) reach.
//! * `Count` ([`count::count`]): counts the references from the unmarked candidates. Then the
//!   assumed roots are checked.
//! * `Roots` ([`roots::roots`]): an unmarked candidate is a root if this number differs from its
//!   count.
//! * `Mark` ([`mark::mark`]): marks the candidates that the roots reach.
//! * `Sweep` ([`sweep::sweep`]): lists the unmarked candidates.
//! * `Claim` ([`claim::claim`]): takes a reference on each listed object, and clears weak
//!   references. Objects that legacy finalizers reach leave the set.
//! * **The world starts.**
//! * `Callbacks`, `Finalize` ([`finalize::finalize`]): calls the weak callbacks, then the
//!   finalizers, once per object.
//! * `Recheck` ([`recheck::recheck`]), in a second stop: resurrected objects leave the set. The
//!   other objects lose their weak references.
//! * Judge ([`recheck::judge`]): the model may keep the garbage.
//! * `Clear` ([`clear::clear_all`], [`reclaim`]): clears each object, then releases each. The
//!   counts free the objects. The model may clear some of them after the others
//!   (`ObjectModel::after_clear`), and may ask for a stop in between, to examine the cleared ones.
//! * Close ([`open_report::close`]): calls the stop callbacks. Then the collector lock is
//!   released.
//!
//! A requested collection goes through all phases in the call ([`collect`]). A collection that the
//! heap started ([`collect_due`]) leaves `Clear` to all mutators, in batches: see [`reclaim`].
//!
//! If no object of the set can run code, there is one stop: the phases from `Callbacks` to
//! `Recheck` are omitted. If `Premark` leaves no candidate, `Roots` and `Mark` are omitted.
//!
//! Each phase consumes the result of the phase before it, so no phase can be omitted by mistake.
//! The phases that need the stop take its token. All data of a collection is in these values. Three
//! things remain between collections: the side tables (all zero), the age bits, and memory for the
//! next collection.
//!
//! # Abandoned collections
//!
//! A collection is abandoned if a traversal panics, if a field that was readable in `Count` is
//! locked in `Mark`, or if memory runs out. Before `Claim`, an abandoned collection has changed no
//! object. In `Recheck`, an abandoned collection keeps the whole set alive.
//!
//! # A rule
//!
//! `SAFETY` comments cite this rule:
//!
//! * **stopped**: while the world is stopped, no thread frees an object or lowers a count. So a
//!   candidate is alive, and so is the target of each edge of a live object. The data of mutators
//!   does not change.

pub(crate) mod adjustments;
pub mod api;
pub(crate) mod assumed;
pub(crate) mod calls;
#[allow(unsafe_code)]
pub(crate) mod candidates;
#[allow(unsafe_code)]
pub(crate) mod claim;
pub(crate) mod clear;
#[allow(unsafe_code)]
pub(crate) mod count;
pub(crate) mod finalize;
pub(crate) mod fork;
#[cfg(all(test, not(any(loom, shuttle))))]
mod graph;
pub(crate) mod inspect;
#[allow(unsafe_code)]
pub(crate) mod listing;
pub(crate) mod mark;
#[allow(unsafe_code)]
pub(crate) mod marker;
pub(crate) mod open_report;
pub(crate) mod pool;
#[cfg(all(test, not(any(loom, shuttle))))]
mod protocol;
#[allow(unsafe_code)]
pub(crate) mod recheck;
#[allow(unsafe_code)]
pub(crate) mod reclaim;
pub(crate) mod released;
pub(crate) mod request;
#[allow(unsafe_code)]
pub(crate) mod roots;
pub(crate) mod rules;
pub(crate) mod safepoint;
#[allow(unsafe_code)]
pub(crate) mod scope;
#[cfg(all(test, not(any(loom, shuttle))))]
mod script;
pub(crate) mod stop;
pub(crate) mod stopped;
#[allow(unsafe_code)]
pub(crate) mod sweep;
#[allow(unsafe_code)]
pub(crate) mod table;
pub(crate) mod traversal;
pub(crate) mod uncounted;
pub(crate) mod verify;
pub(crate) mod verify_pages;
pub(crate) mod work_list;

pub use self::request::{Collect, CollectError};
#[cfg(feature = "cpython")]
pub(crate) use self::scope::{live, visible};
pub use self::stopped::StoppedCollection;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::event::{self, CollectionKind, CollectionReport, Phase};
use crate::base::fallible;
use crate::base::sync::Ordering;
use crate::collect::assumed::Inside;
use crate::collect::candidates::Candidates;
use crate::collect::claim::{Reclaimers, Unreachable};
use crate::collect::count::Counts;
use crate::collect::mark::Marked;
use crate::collect::recheck::Garbage;
use crate::collect::reclaim::CollectorGuard;
use crate::collect::scope::{Scope, Selection};
use crate::collect::table::Spills;
use crate::collect::traversal::Abandoned;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::mutator::{COLLECT, World};
use crate::heap::pacing::Due;
use crate::heap::reclaim_queue::{GARBAGE_BATCH, Owner};
use crate::heap::remembered::FoundRoot;
use crate::memory::sparse::VISITED_TOGETHER;
use crate::object::live::DeadObject;
use crate::safepoint::{StopError, StopPurpose};

/// With fewer unmarked candidates on a page than these, on average, one worker counts all of them.
const FEW_ON_PAGE: usize = 64;

/// The threads that reclaim the garbage of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReclaimedBy {
    /// The collecting thread, before its call returns.
    Collector,
    /// All mutators, in batches, after the call returns.
    Mutators,
}

/// Acquires the collector lock. The thread waits for it as a requester.
pub(crate) fn acquire_lock<M: ObjectModel>(m: &mut ModelMutator<M>, purpose: StopPurpose) {
    if m.core().collector_lock.try_acquire() {
        return;
    }
    let core = Arc::clone(m.core());
    let mut request = core.collector_lock.request();
    while !acquire_helping(m, || request.try_acquire()) {
        m.detach(|| {
            while let Some(overdue) = request.wait(core.coordinator.slow_stop()) {
                core.coordinator.report_collecting(purpose, overdue.waited, &overdue.by);
            }
        });
    }
}

/// Acquires the collector lock by `try_acquire`. If a reclaim queue holds the lock, the thread
/// first reclaims all batches of the queue that no other thread has taken.
fn acquire_helping<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    try_acquire: impl Fn() -> bool,
) -> bool {
    try_acquire() || (reclaim::reclaim(m, Owner::Any, usize::MAX) && try_acquire())
}

/// Runs a collection that a thread has requested.
pub(crate) fn collect<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
) -> Result<CollectionReport, CollectError> {
    let begun = Instant::now();
    if what.wait {
        acquire_lock(m, StopPurpose::Collection);
    }
    let core = Arc::clone(m.core());
    if !what.wait && !acquire_helping(m, || core.collector_lock.try_acquire()) {
        // The thread that has the lock may be stopping the world. It would wait for ever for a
        // thread whose only safepoints are its collections.
        m.park();
        m.slow_down();
        return Err(CollectError::Busy);
    }
    let guard = CollectorGuard(&core);
    // This thread has reclaimed the garbage, so there is a report.
    Ok(run(m, what, ReclaimedBy::Collector, guard, begun.elapsed())?
        .unwrap_or_else(|| CollectionReport::new(what.kind)))
}

/// A young collection or a promotion is due, and the model has neither: the new objects count as
/// old from now on, so that a full collection becomes due. If another thread collects, it counts
/// them.
pub(crate) fn skip_young<M: ObjectModel>(m: &ModelMutator<M>) {
    let core = m.core();
    if core.collector_lock.try_acquire() {
        let _guard = CollectorGuard(core);
        core.pace.skip_young();
    }
}

/// Runs a collection that is due, unless another thread collects. The call may return before all
/// garbage is reclaimed.
pub(crate) fn collect_due<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
) -> Result<(), CollectError> {
    let core = Arc::clone(m.core());
    if !core.collector_lock.try_acquire() {
        return Err(CollectError::Busy);
    }
    run(m, what, ReclaimedBy::Mutators, CollectorGuard(&core), Duration::ZERO)?;
    Ok(())
}

/// Runs a collection, for which the thread has `waited`. `None`: the mutators reclaim its garbage,
/// and the last of them closes the report. Reports if this holds up the thread for long.
fn run<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
    by: ReclaimedBy,
    guard: CollectorGuard<'_, M>,
    waited: Duration,
) -> Result<Option<CollectionReport>, StopError> {
    let begun = calls::begin_holding_up(m);
    let result = run_until_handed_over(m, what, by, waited);
    let is_handed_over = matches!(result, Ok(None));
    if is_handed_over {
        std::mem::forget(guard);
    } else {
        drop(guard);
    }
    calls::report_held_up(m, begun);
    if !is_handed_over {
        return result;
    }
    // This thread reclaims all garbage of a small collection, and closes it. If memory is short, it
    // reclaims all of its own garbage.
    let mine = Owner::This(m.thread_id());
    let first = if m.core().space.is_tight() { usize::MAX } else { reclaim::RECLAIMED_FIRST };
    reclaim::reclaim(m, mine, first);
    reclaim::reclaim(m, mine, GARBAGE_BATCH);
    if m.core().collector_lock.is_reclaiming() {
        m.raise(COLLECT);
    }
    Ok(None)
}

/// The part of [`run`] with the collector lock. `None`: it is handed over with the garbage.
fn run_until_handed_over<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
    by: ReclaimedBy,
    waited: Duration,
) -> Result<Option<CollectionReport>, StopError> {
    let mut open = open_report::open(m, what);
    open.report.waited = waited;
    open_report::announce(m, &open);
    let entered = open.span.enter();
    let found = find_garbage(m, &mut open.report, by, what.workers);
    drop(entered);
    let garbage = match found {
        Ok(Some(garbage)) => garbage,
        Ok(None) => return Ok(Some(open_report::close(m, open, None))),
        Err(refused) => {
            open_report::close(m, open, Some(&refused));
            return Err(refused);
        }
    };
    open.report.uncollectable = garbage.kept;
    if by == ReclaimedBy::Collector || garbage.objects.is_empty() {
        let report = reclaim::at_once(garbage, open, m);
        if by == ReclaimedBy::Collector {
            return_memory(m);
        }
        return Ok(Some(report));
    }
    if let Some((garbage, open)) = reclaim::hand_over(garbage, open, m) {
        return Ok(Some(reclaim::at_once(garbage, open, m)));
    }
    Ok(None)
}

/// Returns the memory of this thread's sparse pages to the system, if a full collection has begun a
/// [round](crate::memory::sparse), and then the memory of the tables. The caller holds the
/// collector lock.
pub(crate) fn return_memory<M: ObjectModel>(m: &mut ModelMutator<M>) {
    let core = Arc::clone(m.core());
    while m.arena(|arena| arena.visit_pages(&core.space, VISITED_TOGETHER)) {
        m.wait_parked();
    }
    if core.space.return_tables() {
        core.workers.forget_tables();
    }
}

/// Makes all new objects old without traversing them, if a promotion is due and no other thread
/// collects: see [`pacing`](crate::heap::pacing). A promotion is no collection, so it calls no
/// callbacks. Its stop merges counts, as the first stop of a collection does.
pub(crate) fn promote<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), CollectError> {
    let core = Arc::clone(m.core());
    if !core.collector_lock.try_acquire() {
        return Err(CollectError::Busy);
    }
    let _guard = CollectorGuard(&core);
    // Another thread may have collected or promoted since this thread found the promotion due.
    if core.pace.due() != Due::Promotion {
        return Ok(());
    }
    Ok(promote_now(m)?)
}

/// Promotes all new objects. The caller holds the collector lock.
pub(crate) fn promote_now<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), StopError> {
    let core = Arc::clone(m.core());
    let _span = event::promotion(&core.name);
    prepare(m);
    m.free_left_memory();
    let mut dead = Vec::new();
    let world = m
        .stop_for(StopPurpose::Promotion)
        .inspect_err(|error| open_report::stop_failed(&core, CollectionKind::Young, error))?;
    #[expect(
        clippy::let_underscore_must_use,
        reason = "without memory for its list, the next collection merges"
    )]
    let _ = stop::merge_counts(&world, &mut dead);
    let promoted = sweep::promote(&world);
    core.pace.after_promotion(promoted);
    // Relaxed: figures.
    core.totals.promotions.fetch_add(1, Ordering::Relaxed);
    verify::stressed(&world, "after a promotion");
    let stopped = world.elapsed();
    drop(world);
    stop::destroy_merged(dead, m);
    calls::resumed(m);
    event::promoted(promoted, stopped);
    Ok(())
}

/// The model drops deferred references. Nothing is claimed yet, so a panic leaves the collection.
fn prepare<M: ObjectModel>(m: &ModelMutator<M>) {
    let _lent = m.lend_to_model();
    m.model().prepare(m);
}

/// Runs the phases up to the judgement of the model. `None`: the collection was abandoned before
/// `Claim`.
fn find_garbage<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    report: &mut CollectionReport,
    by: ReclaimedBy,
    most: usize,
) -> Result<Option<Garbage>, StopError> {
    prepare(m);
    m.free_left_memory();
    let world = m.stop_for(StopPurpose::Collection)?;
    let first = find_in_stop(world, report, by, most);
    find_rest(m, report, first)
}

/// The result of the first stop: the unreachable objects, and those that the merge found dead.
pub(crate) type FirstStop<M> = (Result<Unreachable<M>, Abandoned>, Vec<DeadObject>);

/// Runs the phases of the first stop on at most `most` threads, and ends it.
pub(crate) fn find_in_stop<M: ObjectModel>(
    world: World<'_, M>,
    report: &mut CollectionReport,
    by: ReclaimedBy,
    most: usize,
) -> FirstStop<M> {
    // Relaxed: figures.
    let totals = &world.core().totals;
    totals.collections.fetch_add(1, Ordering::Relaxed);
    totals.young.fetch_add(usize::from(report.kind == CollectionKind::Young), Ordering::Relaxed);
    let mut dead = Vec::new();
    let found = find(&world, report, &mut dead, by, most);
    stop::resume(world, report);
    (found, dead)
}

/// Runs the phases after the first stop, up to the judgement of the model. `None`: the collection
/// was abandoned before `Claim`.
pub(crate) fn find_rest<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    report: &mut CollectionReport,
    (found, dead): FirstStop<M>,
) -> Result<Option<Garbage>, StopError> {
    stop::destroy_merged(dead, m);
    calls::resumed(m);
    let unreachable = match found {
        Ok(unreachable) => unreachable,
        Err(abandoned) => {
            m.core().pace.after_nothing(report.kind);
            open_report::abandon(m, report, abandoned);
            return Ok(None);
        }
    };
    let mut pending = finalize::finalize(unreachable, m);
    if let Some(failure) = pending.failure.take() {
        open_report::abandon(m, report, failure);
    }
    report.finalized = pending.finalized;
    let garbage = if pending.needs_recheck {
        let mut dead = Vec::new();
        let checked = match m.stop_for(StopPurpose::Collection) {
            Ok(world) => {
                let merged = stop::merge_counts(&world, &mut dead).map_err(Abandoned::from);
                let listed = merged.and_then(|()| {
                    // The recheck looks at members alone, or traverses all objects.
                    if M::RECHECKS_UNCOUNTED {
                        listing::list(&world, report.workers)
                    } else {
                        Ok(())
                    }
                });
                let checked = listed.map(|()| {
                    rules::watched(&world, || {
                        recheck::recheck(&world, pending.take(), report.workers)
                    })
                });
                stop::resume(world, report);
                stop::destroy_merged(dead, m);
                calls::resumed(m);
                checked
            }
            // A thread has ended without detaching since the first stop, or a finalizer has kept a
            // loan or a stop.
            Err(error) => Err(Abandoned::collection(crate::base::text::words!(
                "the world cannot be stopped again after the finalizers and callbacks: {error}"
            ))),
        };
        // Without a recheck all objects of the set are kept.
        let (garbage, abandoned) =
            checked.unwrap_or_else(|why| (recheck::keep_all(pending, m), Some(why)));
        if let Some(abandoned) = abandoned {
            open_report::abandon(m, report, abandoned);
        }
        garbage
    } else {
        pending.untouched()
    };
    let garbage = recheck::judge(garbage, m);
    report.resurrected = garbage.resurrected;
    Ok(Some(garbage))
}

/// Runs the phases of the first stop, `Merge` to `Claim`, on at most `most` threads.
fn find<M: ObjectModel>(
    world: &World<'_, M>,
    report: &mut CollectionReport,
    dead: &mut Vec<DeadObject>,
    by: ReclaimedBy,
    most: usize,
) -> Result<Unreachable<M>, Abandoned> {
    // First, because it adopts memory: objects elsewhere have no adjusted counts.
    listing::list(world, most)?;
    stop::merge_counts(world, dead)?;
    verify::stressed(world, "before a collection");
    let unreachable = rules::watched(world, || find_unreachable(world, report, by, most))?;
    verify::stressed(world, "in a collection");
    Ok(unreachable)
}

/// Runs the phases of the first stop after `Merge`, on at most `most` threads.
fn find_unreachable<M: ObjectModel>(
    world: &World<'_, M>,
    report: &mut CollectionReport,
    by: ReclaimedBy,
    most: usize,
) -> Result<Unreachable<M>, Abandoned> {
    let core = world.core();
    let mut scope = Scope::new(&core.space, report.kind)?;
    let cells = scope.cells(&core.space);
    let workers = core.workers.plan_workers(cells, core.serial_below).min(most);
    if workers > 1 && cells < core.serial_below {
        scope.sort_by_home(&core.space)?;
    }
    report.workers = workers;
    let mut candidates = Candidates::new(world, &scope, workers)?;
    let result = find_reachable(world, &scope, &mut candidates, report, workers);
    let found = result.and_then(|()| Ok(sweep::sweep(world, &scope, &candidates, workers)?));
    candidates.close(world, &scope);
    let found = found.inspect_err(|_| table::wipe(&core.space, scope.pages()))?;
    let unreachable = found.objects.len();
    report.unreachable = unreachable;
    match report.kind {
        CollectionKind::Young => core.pace.after_young(report.candidates, unreachable),
        CollectionKind::Full => core.pace.after_full(report.candidates, unreachable),
    }
    // Garbage of at most one batch is not worth sharing.
    let reclaimers = if by == ReclaimedBy::Mutators && unreachable > GARBAGE_BATCH {
        Reclaimers::of_parked(world)
    } else {
        Reclaimers::default()
    };
    let claimed = claim::claim(world, found, reclaimers, workers);
    core.collector_lock.set_claimed();
    Ok(claimed)
}

/// Runs the phases `Premark` to `Mark`. Afterwards the unmarked candidates are unreachable.
fn find_reachable<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    candidates: &mut Candidates,
    report: &mut CollectionReport,
    workers: usize,
) -> Result<(), Abandoned> {
    let core = world.core();
    report.tracked = candidates.tracked;
    report.candidates = candidates.count;
    let is_full = scope.selection == Selection::Full;
    let reported = uncounted::roots(world, candidates)?;
    let premark = |candidates: &mut Candidates| {
        let marked = mark::mark_from_named(world, candidates, scope, &reported, workers)?;
        candidates.adjust(world)?;
        Ok::<_, Abandoned>(marked)
    };
    let mut assumed = Vec::new();
    report.known_alive = premark(candidates)?;
    if is_full {
        assumed = assumed::take(world, candidates);
    }
    let mut attempts = 1;
    let mut counts = loop {
        let unmarked = candidates.count - report.known_alive;
        let counted = mark_and_count(world, scope, candidates, unmarked, &mut assumed, workers)?;
        if let Some(counts) = counted {
            break counts;
        }
        if attempts == assumed::MOST_ATTEMPTS {
            assumed.clear();
        }
        attempts += 1;
        table::wipe(&core.space, scope.pages());
        candidates.find(world, scope);
        report.known_alive = premark(candidates)?;
        // With plain marks, a root of the last attempt may be marked this time.
        assumed.retain(|root| candidates.is_unmarked(root.granule as usize));
    };
    if counts.traversed == 0 {
        // There are no candidates, or premarking has reached all of them.
        if is_full {
            core.remembered.set(assumed);
        }
        return Ok(());
    }
    let mut roots = {
        let _phase = event::phase(Phase::Roots);
        roots::roots(world, scope, candidates, &mut counts, workers)?
    };
    report.overvisited = roots.overvisited.len();
    for &granule in &roots.overvisited {
        if let Some(object) = scope::stopped_at(world, granule as usize) {
            core.model.overvisited(object);
        }
    }
    // A collection that counts all objects finds these again.
    let counts_all = M::STABLE_DURING_STOP && !counts.kept.is_empty();
    if is_full && !counts_all && roots.overvisited.is_empty() {
        let remembered = &mut roots.remembered;
        // If many objects are roots, marking from roots saves little. Without memory for both
        // lists, the next collection assumes nothing either.
        let are_few = assumed.len() + remembered.len() <= assumed::most_roots(candidates.count);
        if !are_few || fallible::append(&mut assumed, remembered).is_err() {
            assumed.clear();
        }
        core.remembered.set(assumed);
    }
    let _phase = event::phase(Phase::Mark);
    mark::mark(world, candidates, &mut counts, roots, workers)
}

/// Marks from the assumed roots, and counts the edges of the other candidates. `unmarked` is the
/// number of candidates that are not marked yet.
///
/// `None`: not all assumed roots are roots. `assumed` has those that are. The same edges lead to
/// them in the next attempt, unless a field becomes readable or unreadable, a traversal differs, or
/// a mark is lost. Then the list gets shorter again.
fn mark_and_count<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    candidates: &mut Candidates,
    mut unmarked: usize,
    assumed: &mut Vec<FoundRoot>,
    workers: usize,
) -> Result<Option<Counts>, Abandoned> {
    let core = world.core();
    let mut spills = Spills::default();
    if !assumed.is_empty() {
        let pages = core.space.high_water();
        let inside = Inside::new(core.space.counts());
        candidates.assume(pages, assumed, true)?;
        let marked = mark::mark_from_assumed(world, candidates, assumed, &inside, workers);
        candidates.assume(pages, assumed, false)?;
        match marked? {
            Marked::All(marked) => unmarked -= marked,
            Marked::MustCompare => {
                assumed.clear();
                return Ok(None);
            }
        }
        spills = inside.into_spills();
    }
    let counts = {
        let _phase = event::phase(Phase::Count);
        // It takes longer to add up the tables of several workers than to count few candidates.
        let few = (FEW_ON_PAGE * scope.pages().len()).min(candidates.count / 4);
        let workers = if unmarked < few { 1 } else { workers };
        count::count(world, scope, candidates, spills, workers)?
    };
    let proven = assumed::check(world, &candidates.adjustments, assumed, &counts.spills);
    if proven < assumed.len() {
        assumed.truncate(proven);
        return Ok(None);
    }
    Ok(Some(counts))
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use super::*;
    use crate::base::event::CollectionEvent;
    use crate::base::sync::{AtomicBool, AtomicUsize};
    use crate::object::type_info::Tracer;
    use crate::safepoint;
    use crate::{AtomicGc, Gc, GcCell, Heap, Mutator, Pacing, Trace};
    use std::sync::mpsc;

    /// References itself, by a slot that is read without a lock. The second field counts the rounds
    /// of a running thread.
    struct Slotted(AtomicGc<Slotted>, Arc<AtomicUsize>);

    impl Trace for Slotted {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            // Two more rounds: the thread has certainly returned from the previous stop.
            let before = this.1.load(Ordering::Relaxed);
            while this.1.load(Ordering::Relaxed) < before + 2 {
                std::thread::yield_now();
            }
            Trace::clear(&this.0, m);
        }
    }

    /// References itself, and may refuse to be cleared.
    pub(crate) struct Ring(pub(crate) GcCell<Option<Gc<Ring>>>, pub(crate) bool);

    impl Trace for Ring {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            if !this.1 {
                Trace::clear(&this.0, m);
            }
        }
    }

    pub(super) fn heap() -> Heap {
        Heap::builder()
            .reserve(1 << 30)
            .workers(1)
            .pacing(Pacing::manual())
            .build()
            .expect("a heap")
    }

    pub(crate) fn rings(m: &Mutator, n: usize, refuses: bool) {
        for _ in 0..n {
            let ring = m.alloc(Ring(GcCell::new(None), refuses));
            ring.0.set(m, Some(ring.clone()));
        }
    }

    /// Receives the figures of each collection that ends: collected and uncollectable.
    pub(super) fn ends(heap: &Heap) -> mpsc::Receiver<(usize, usize)> {
        let (sender, receiver) = mpsc::channel();
        heap.on_collection(move |event| {
            if let CollectionEvent::Stop(report) = event {
                let _ = sender.send((report.collected, report.uncollectable));
            }
        });
        receiver
    }

    /// Another thread is attached all the time. It takes part in stops, and passes no other
    /// safepoint. So it counts as a reader of each slot until the collection stops the world again.
    #[test]
    fn what_lock_free_slots_held_is_gone_when_the_collection_ends_though_other_threads_run() {
        const OBJECTS: usize = 100;
        let heap = heap();
        let ends = ends(&heap);
        let on = AtomicBool::new(true);
        let rounds = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let other = heap.clone();
            let (on, rounds) = (&on, &rounds);
            scope.spawn(move || {
                let mut m = other.attach();
                sender.send(()).expect("a receiver");
                while on.load(Ordering::Relaxed) {
                    if m.raw().poll() & safepoint::STOP != 0 {
                        m.raw_mut().wait_parked();
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            let mut m = heap.attach();
            m.recv(&receiver).expect("a sender");
            let garbage = |m: &Mutator| {
                for _ in 0..OBJECTS {
                    let slotted = m.alloc(Slotted(AtomicGc::new(None), rounds.clone()));
                    slotted.0.store(m, Some(slotted.clone()));
                }
            };
            garbage(&m);
            let report = m.collect();
            garbage(&m);
            collect_due(m.raw_mut(), Collect::young()).expect("nobody else collects");
            on.store(false, Ordering::Relaxed);
            assert_eq!((report.collected, report.uncollectable), (OBJECTS, 0), "by request");
            assert!(report.stops.len() >= 2, "each stop is in the report");
            assert_eq!(ends.try_iter().collect::<Vec<_>>(), [(OBJECTS, 0); 2]);
            assert_eq!(heap.stats().live_objects, 0);
        });
    }

    /// The thread reclaims batches up to a limit, and the report counts each object once.
    #[test]
    fn a_late_thread_reclaims_up_to_a_limit_and_the_report_is_exact() {
        const REFUSING: usize = 7;
        let heap = heap();
        let ends = ends(&heap);
        let mut m = heap.attach();
        let whole = Owner::This(m.raw().thread_id());
        let garbage = reclaim::RECLAIMED_FIRST + 2 * GARBAGE_BATCH;
        rings(&m, REFUSING, true);
        rings(&m, garbage - REFUSING, false);
        collect_due(m.raw_mut(), Collect::young()).expect("nobody else collects");
        let live = || heap.stats().live_objects;
        assert_eq!(live(), GARBAGE_BATCH + REFUSING, "all but one piece");
        assert_ne!(m.raw().poll() & crate::heap::mutator::COLLECT, 0, "the rest is due");
        assert_eq!(collect_due(m.raw_mut(), Collect::young()), Err(CollectError::Busy));
        assert_eq!(
            collect(m.raw_mut(), Collect::full().wait(false)).map(|_| ()),
            Ok(()),
            "what is in nobody's hands"
        );
        assert_eq!(
            ends.try_iter().collect::<Vec<_>>(),
            [(garbage - REFUSING, REFUSING), (0, REFUSING)]
        );
        assert!(!m.raw().core().collector_lock.is_reclaiming());
        assert!(!reclaim::reclaim(m.raw_mut(), whole, usize::MAX), "nothing is left");
        assert_eq!(live(), REFUSING);
    }

    /// An object is new also in a cell that an allocator has kept since before the collection.
    #[test]
    fn what_is_made_after_a_collection_is_new() {
        let heap = heap();
        let mut m = heap.attach();
        let mut kept = Vec::new();
        for round in 0..6 {
            kept.push(m.alloc(Ring(GcCell::new(None), false)));
            match round % 3 {
                0 => drop(m.collect_young()),
                1 => drop(m.collect()),
                _ => promote_now(m.raw_mut()).expect("a stop"),
            }
            rings(&m, 1, false);
            m.verify().expect("a sound heap");
            assert_eq!(m.collect_young().collected, 1, "round {round}");
        }
    }
}
