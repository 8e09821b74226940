//! One collection, from its request to its report.
//!
//! [`Collection::search`], and then [`Collection::finish`] or [`Collection::share`], call the
//! phases in the order that the [module above](super) explains.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::fallible::{NoMemory, words};
use crate::base::sync::Ordering;
use crate::collect::calls::{self, Abandoned, call};
use crate::collect::claim::{self, Reclaimers, Unreachable};
use crate::collect::recheck::{self, Garbage, Pending};
use crate::collect::reclaim::{self, CollectorGuard};
use crate::collect::scope::{Scope, state_of, stopped_at};
use crate::collect::search::Search;
use crate::collect::sweep::Swept;
use crate::collect::{forked, largest, listing, open_report};
use crate::heap::child::NoAnswer;
use crate::heap::core::COLLECT;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::reclaim_queue::{GARBAGE_BATCH, OpenReport, Owner};
use crate::heap::request::{Collect, CollectError};
use crate::heap::world::World;
use crate::memory::sparse::VISITED_TOGETHER;
use crate::object::live::DeadObject;
use crate::object::state;
use crate::report::facts::{CollectionKind, CollectionReason, CollectionReport, During, Phase};
use crate::safepoint::{StopError, StopPurpose};

/// Acquires the collector lock, for which the thread waits as a requester, detached. Returns how
/// long it has waited.
pub(super) fn acquire_lock<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    purpose: StopPurpose,
) -> Duration {
    if m.core().collector_lock.try_acquire() {
        return Duration::ZERO;
    }
    let begun = Instant::now();
    let core = Arc::clone(m.core());
    let mut request = core.collector_lock.request();
    while !acquire_helping(m, || request.try_acquire()) {
        m.detach(|| {
            while let Some(overdue) = request.wait(core.coordinator.slow_stop()) {
                core.coordinator.report_collecting(purpose, overdue.waited, &overdue.by);
            }
        });
    }
    begun.elapsed()
}

/// Acquires the collector lock by `try_acquire`. If a reclaim queue holds it, the thread first
/// reclaims all batches that no other thread has taken, because the lock is free only afterwards.
fn acquire_helping<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    try_acquire: impl Fn() -> bool,
) -> bool {
    try_acquire() || (reclaim::reclaim(m, Owner::Any, usize::MAX) && try_acquire())
}

/// Runs a collection that a thread has requested, so that all garbage is reclaimed when it returns.
pub(crate) fn collect<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
) -> Result<CollectionReport, CollectError> {
    let waited = if what.wait { acquire_lock(m, StopPurpose::Collection) } else { Duration::ZERO };
    let core = Arc::clone(m.core());
    if !what.wait && !acquire_helping(m, || core.collector_lock.try_acquire()) {
        // The thread that has the lock may be stopping the world. So this one parks, because its
        // collections may be its only safepoints, and the stop would wait for ever.
        m.park();
        m.slow_down();
        return Err(CollectError::Busy);
    }
    let guard = CollectorGuard::new(&core);
    if is_full::<M>(what) {
        forked::supersede(m, &guard);
    }
    let mut collection = Collection::begin(m, guard, what);
    collection.open.report.waited = waited;
    if what.forked && collection.open.report.kind == CollectionKind::Full {
        return Ok(forked::collect(collection)?);
    }
    match collection.search() {
        Ok(first) => Ok(collection.finish(first)),
        Err(refused) => Err(collection.refused(refused).into()),
    }
}

/// Runs a collection that is due, unless another thread collects. All mutators reclaim its garbage,
/// so the last of them closes the report.
pub(crate) fn collect_due<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    mut what: Collect,
) -> Result<(), CollectError> {
    let guard = CollectorGuard::try_acquire(m.core()).ok_or(CollectError::Busy)?;
    what.in_batches = true;
    let mut no_child = None;
    if is_full::<M>(what) {
        let core = m.core();
        // If the heap has outgrown one child, it could outgrow the next.
        let is_outgrown = forked::supersede(m, &guard);
        if is_outgrown {
            core.pace.children.failed_by(&NoAnswer::Outgrown);
        }
        if what.reason == CollectionReason::Growth && core.pace.wants_child() {
            no_child = if is_outgrown {
                Some("the heap has outgrown the last child process")
            } else if core.space.is_tight() {
                Some("little memory is left in the heap")
            } else if !core.pace.forks() {
                Some("the last child processes have failed")
            } else {
                what.forked = true;
                None
            };
        }
    }
    let mut collection = Collection::begin(m, guard, what);
    if let Some(why) = no_child {
        forked::tell(
            &collection.m.core().name,
            &mut collection.open.report,
            &NoAnswer::Unwise(why),
        );
    }
    if what.forked {
        forked::collect_due(collection)?;
    } else {
        match collection.search() {
            Ok(first) => collection.share(first),
            Err(refused) => return Err(collection.refused(refused).into()),
        }
    }
    reclaim_first(m);
    Ok(())
}

/// Goes on with the collection that waits for its child, or has parts of a proposal left.
pub(super) fn go_on<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), CollectError> {
    forked::go_on(m)?;
    reclaim_first(m);
    Ok(())
}

/// Whether this is the extent of the collection, in a heap of the model.
fn is_full<M: ObjectModel>(what: Collect) -> bool {
    open_report::kind::<M>(what) == CollectionKind::Full
}

/// Reclaims some of the garbage that this thread has just handed over.
fn reclaim_first<M: ObjectModel>(m: &mut ModelMutator<M>) {
    // This thread reclaims all garbage of a small collection, and closes it. If memory is short, it
    // reclaims all of its own garbage, so that it can allocate again.
    let first = if m.core().space.is_tight() { usize::MAX } else { reclaim::RECLAIMED_FIRST };
    reclaim::reclaim(m, Owner::This(m.thread_id()), first);
    if m.core().collector_lock.is_reclaiming() {
        m.raise(COLLECT);
    }
}

/// The first stop's unreachable objects, and those that its merge found dead.
pub(crate) type FirstStop<M> = (Result<Unreachable<M>, Abandoned>, Vec<DeadObject>);

pub(crate) struct Collection<'m, M: ObjectModel> {
    pub(crate) m: &'m mut ModelMutator<M>,
    pub(crate) open: OpenReport,
    guard: CollectorGuard<M>,
    what: Collect,
    /// The thread has collected since then, and done nothing else.
    begun: Instant,
}

impl<'m, M: ObjectModel> Collection<'m, M> {
    pub(crate) fn begin(
        m: &'m mut ModelMutator<M>,
        guard: CollectorGuard<M>,
        what: Collect,
    ) -> Self {
        let begun = calls::begin_holding_up(m);
        let open = open_report::open(m, what);
        Self { m, open, guard, what, begun }
    }

    /// Goes on with a collection that was [taken up](open_report::take_up).
    pub(super) fn again(
        m: &'m mut ModelMutator<M>,
        guard: CollectorGuard<M>,
        open: OpenReport,
    ) -> Self {
        let begun = calls::begin_holding_up(m);
        let what = Collect { in_batches: true, ..Collect::full() };
        Self { m, open, guard, what, begun }
    }

    /// Puts the collection off for a later safepoint of any thread, after so long at the earliest.
    pub(super) fn put_off(self, after: Duration) {
        let Self { m, open, guard, begun, .. } = self;
        open_report::put_off(m, open, after);
        drop(guard);
        calls::report_held_up(m, begun);
    }

    /// After a part of a proposal.
    pub(super) fn put_off_or_close(self) {
        let Self { m, open, guard, begun, .. } = self;
        open_report::put_off_or_close(m, open);
        drop(guard);
        calls::report_held_up(m, begun);
    }

    /// Lets other threads collect, while `f` runs with the mutator. Afterwards the thread waits for
    /// them.
    pub(super) fn pause<R>(&mut self, f: impl FnOnce(&mut ModelMutator<M>) -> R) -> R {
        open_report::pause(self.m, &mut self.open);
        self.guard.pause();
        calls::report_held_up(self.m, self.begun);
        let result = f(self.m);
        acquire_lock(self.m, StopPurpose::Collection);
        self.guard.resume();
        open_report::resume(self.m, &mut self.open);
        self.begun = calls::begin_holding_up(self.m);
        result
    }

    /// The runtime was stopped by the thread itself, and runs again.
    pub(crate) fn runtime_resumed(&mut self) {
        self.begun = calls::begin_holding_up(self.m);
        open_report::announce(self.m, &self.open);
    }

    /// Runs the phases up to the end of the first stop.
    fn search(&mut self) -> Result<FirstStop<M>, StopError> {
        open_report::announce(self.m, &self.open);
        let first = self.in_stop(first_stop);
        let report = &self.open.report;
        if let (CollectionKind::Full, Some(&stop)) = (report.kind, report.stops.first()) {
            self.m.core().pace.children.searched_for(stop, report.candidates);
        }
        first
    }

    /// Stops the world for `phases`, which resume it.
    pub(super) fn in_stop<T>(
        &mut self,
        phases: impl FnOnce(World<'_, M>, &mut CollectionReport, Collect) -> T,
    ) -> Result<T, StopError> {
        let _entered = self.open.span.enter();
        prepare(self.m);
        self.m.free_left_memory();
        let world = self.m.stop_by(self.open.stop_request())?;
        Ok(phases(world, &mut self.open.report, self.what))
    }

    /// Ends a collection that could not stop the world at all.
    pub(super) fn refused(self, why: StopError) -> StopError {
        self.close_by(|m, open| open_report::close(m, open, Some(&why)));
        why
    }

    /// Runs the phases after the first stop, and reclaims all garbage.
    pub(crate) fn finish(mut self, first: FirstStop<M>) -> CollectionReport {
        let garbage = self.judge(first);
        self.reclaim(garbage)
    }

    /// Runs the phases after the first stop, and hands the garbage, if there is any, with the
    /// collector lock to all mutators.
    pub(super) fn share(mut self, first: FirstStop<M>) {
        match self.judge(first) {
            Some(garbage) if !garbage.objects.is_empty() => self.hand_over(garbage),
            garbage => {
                self.reclaim(garbage);
            }
        }
    }

    /// Hands the garbage, with the collector lock, to all mutators.
    pub(super) fn hand_over(self, garbage: Garbage) {
        let Self { m, open, guard, begun, .. } = self;
        reclaim::hand_over(garbage, open, guard, m);
        calls::report_held_up(m, begun);
    }

    /// Runs the phases between the first stop and the phase `Clear`. Returns `None` if the
    /// collection was abandoned.
    pub(super) fn judge(&mut self, (found, dead): FirstStop<M>) -> Option<Garbage> {
        let span = self.open.span.clone();
        let _entered = span.enter();
        after_stop(dead, self.m);
        let unreachable = match found {
            Ok(unreachable) => unreachable,
            Err(abandoned) => {
                // After the clone of a child nothing is left to tell.
                if self.open.report.child.is_none() {
                    self.m.core().pace.after_nothing(self.open.report.kind);
                }
                self.abandon(abandoned);
                return None;
            }
        };
        let mut pending = recheck::finalize(unreachable, self.m);
        if let Some(failure) = pending.failure.take() {
            self.abandon(failure);
        }
        self.open.report.finalized += pending.finalized;
        let garbage =
            if pending.needs_recheck { self.recheck(pending) } else { pending.untouched() };
        let garbage = recheck::judge(garbage, self.m);
        self.open.report.resurrected += garbage.resurrected;
        self.open.report.uncollectable += garbage.kept;
        Some(garbage)
    }

    /// The second stop, with the recheck. If there can be none, or if it fails, all objects of the
    /// set are kept, because any of them may be reachable.
    fn recheck(&mut self, mut pending: Pending) -> Garbage {
        let request = self.open.stop_request();
        let (m, report) = (&mut *self.m, &mut self.open.report);
        let checked = match m.stop_by(request) {
            Ok(world) => {
                let mut dead = Vec::new();
                // Only a recheck that traverses all objects needs their list, because another one
                // looks at members alone. It comes before the merge, as in the first stop.
                let listed = match UncountedOf::<M>::RECHECKS {
                    true => listing::list(&world, report.workers),
                    false => {
                        if ListsOf::<M>::PRESENT && world.core().verifier.is_some() {
                            listing::forget_others(&world);
                        }
                        Ok(())
                    }
                };
                let merged = listed.and_then(|()| Ok(merge_counts(&world, &mut dead)?));
                let checked = merged.map(|()| {
                    watched(&world, || {
                        recheck::recheck(&world, std::mem::take(&mut pending), report.workers)
                    })
                });
                resume(world, report);
                after_stop(dead, m);
                checked
            }
            // A thread has ended without detaching since the first stop, or is late, or a finalizer
            // has kept a loan or a stop.
            Err(error) => Err(Abandoned::collection(words!(
                "the world cannot be stopped again after the finalizers and callbacks: {error}"
            ))),
        };
        let (garbage, abandoned) =
            checked.unwrap_or_else(|why| (recheck::keep_all(pending, m), Some(why)));
        if let Some(abandoned) = abandoned {
            self.abandon(abandoned);
        }
        garbage
    }

    fn reclaim(self, garbage: Option<Garbage>) -> CollectionReport {
        let returns_memory = !self.what.in_batches;
        self.close_by(|m, open| {
            let Some(garbage) = garbage else { return open_report::close(m, open, None) };
            let report = reclaim::at_once(garbage, open, m);
            if returns_memory {
                return_memory(m);
            }
            report
        })
    }

    /// Closes the report by `close`, and releases the collector lock.
    pub(super) fn close_by(
        self,
        close: impl FnOnce(&mut ModelMutator<M>, OpenReport) -> CollectionReport,
    ) -> CollectionReport {
        let Self { m, open, guard, begun, .. } = self;
        let report = close(m, open);
        drop(guard);
        calls::report_held_up(m, begun);
        report
    }

    pub(super) fn abandon(&mut self, why: Abandoned) {
        open_report::abandon(self.m, &mut self.open.report, why);
    }
}

/// The model drops deferred references. A panic may leave the collection, because nothing is
/// claimed yet.
pub(crate) fn prepare<M: ObjectModel>(m: &ModelMutator<M>) {
    let _lent = m.lend_to_model();
    SplitCountsOf::<M>::prepare(m.model(), m);
}

/// The phases of the first stop, `Merge` to `Claim`.
pub(crate) fn first_stop<M: ObjectModel>(
    world: World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
) -> FirstStop<M> {
    let mut dead = Vec::new();
    let found = merge(&world, report, &mut dead, what).and_then(|()| find(&world, report, what));
    resume(world, report);
    (found, dead)
}

/// Begins the first stop of a collection, up to `Merge`.
pub(super) fn merge<M: ObjectModel>(
    world: &World<'_, M>,
    report: &CollectionReport,
    dead: &mut Vec<DeadObject>,
    what: Collect,
) -> Result<(), Abandoned> {
    if report.stops.is_empty() {
        // Relaxed: figures.
        let (totals, is_young) = (&world.core().totals, report.kind == CollectionKind::Young);
        totals.collections.fetch_add(1, Ordering::Relaxed);
        totals.young.fetch_add(usize::from(is_young), Ordering::Relaxed);
    }
    // Listing comes first because it adopts memory, and objects elsewhere have no adjusted counts.
    listing::list(world, what.workers)?;
    merge_counts(world, dead)?;
    if let Some(verifier) = world.core().verifier {
        verifier.verify(world, "before a collection");
    }
    Ok(())
}

/// The phases of the first stop after `Merge`.
pub(super) fn find<M: ObjectModel>(
    world: &World<'_, M>,
    report: &mut CollectionReport,
    what: Collect,
) -> Result<Unreachable<M>, Abandoned> {
    let (most, verifier) = (what.workers, world.core().verifier);
    let unreachable = watched(world, || {
        let mut search = Search::begin(world, Scope::new(&world.core().space, report.kind)?, most)?;
        report.workers = search.workers;
        report.tracked = search.candidates.tracked;
        report.candidates = search.candidates.count;
        let marked = search.mark_reachable();
        report.known_alive = search.known_alive;
        report.overvisited = search.overvisited.len();
        for object in search.overvisited.iter().filter_map(|&at| stopped_at(world, at as usize)) {
            ChecksOf::<M>::overvisited(&world.core().model, object);
        }
        let swept = marked.and_then(|marked| Ok(search.sweep(marked)?));
        let found = search.close(swept)?;
        let unreachable = found.objects.len();
        match report.kind {
            CollectionKind::Young => world.core().pace.after_young(report.candidates, unreachable),
            CollectionKind::Full => world.core().pace.after_full(report.candidates, unreachable),
        }
        Ok::<_, Abandoned>(claim(world, found, report, what))
    })?;
    if let Some(verifier) = verifier {
        verifier.verify(world, "in a collection");
    }
    if world.is_slow() {
        report.largest_types = largest::types(world).unwrap_or_default();
    }
    Ok(unreachable)
}

/// Runs phases of a stop, and has the verifier compare the answers of the model before and after
/// them.
pub(super) fn watched<M: ObjectModel, R>(world: &World<'_, M>, phases: impl FnOnce() -> R) -> R {
    let Some(verifier) = world.core().verifier else { return phases() };
    let (mut phases, mut result) = (Some(phases), None);
    verifier.watch(world, &mut || result = phases.take().map(|phases| phases()));
    result.expect("the verifier runs the phases")
}

pub(super) fn claim<M: ObjectModel>(
    world: &World<'_, M>,
    found: Swept<'_>,
    report: &mut CollectionReport,
    what: Collect,
) -> Unreachable<M> {
    let core = world.core();
    let unreachable = found.objects.len();
    report.unreachable += unreachable;
    // Garbage of at most one batch (512 objects) is not worth sharing.
    let reclaimers = if what.in_batches && unreachable > GARBAGE_BATCH {
        Reclaimers::of_parked(world)
    } else {
        Reclaimers::default()
    };
    let claimed = claim::claim(world, found, reclaimers, report.workers);
    core.collector_lock.set_claimed();
    claimed
}

/// Returns the memory of this thread's sparse pages to the system, if a full collection has begun a
/// [round](crate::memory::sparse), and then the memory of the tables. The caller holds the
/// collector lock.
pub(super) fn return_memory<M: ObjectModel>(m: &mut ModelMutator<M>) {
    let core = Arc::clone(m.core());
    while m.arena(|arena| arena.visit_pages(&core.space, VISITED_TOGETHER)) {
        m.wait_parked();
    }
    if core.space.return_tables() {
        core.workers.forget_tables();
    }
}

/// Makes all counts exact. An object with count 0 is dying from now on, so that it is no candidate.
pub(crate) fn merge_counts<M: ObjectModel>(
    world: &World<'_, M>,
    dead: &mut Vec<DeadObject>,
) -> Result<(), NoMemory> {
    let _phase = world.core().phase(Phase::Merge);
    merge_unmeasured(world, dead)
}

/// As [`merge_counts`], in a stop that belongs to no collection and no promotion.
pub(crate) fn merge_unmeasured<M: ObjectModel>(
    world: &World<'_, M>,
    dead: &mut Vec<DeadObject>,
) -> Result<(), NoMemory> {
    let core = world.core();
    let before = dead.len();
    let limit = SplitCountsOf::<M>::pending(&core.model, world);
    dead.try_reserve(limit)?;
    SplitCountsOf::<M>::merge(&core.model, world, dead);
    if let Some(verifier) = core.verifier {
        verifier.merged(world, &dead[before..], limit);
    }
    for object in &dead[before..] {
        state_of(&core.space, object.object()).set(state::DYING);
    }
    Ok(())
}

/// Resumes the world, and adds the duration of the stop to the report.
pub(crate) fn resume<M: ObjectModel>(world: World<'_, M>, report: &mut CollectionReport) {
    let time_to_stop = world.time_to_stop();
    if time_to_stop > report.time_to_stop {
        report.time_to_stop = time_to_stop;
        report.late_thread = world.late_thread();
    }
    let since = Instant::now();
    let stopped = world.elapsed();
    drop(world);
    if report.stops.try_reserve(1).is_ok() {
        report.stops.push(stopped + since.elapsed().min(Duration::from_millis(1)));
    }
}

/// The world runs again after a stop whose merge has found `dead`.
pub(super) fn after_stop<M: ObjectModel>(dead: Vec<DeadObject>, m: &ModelMutator<M>) {
    destroy_merged(dead, m);
    calls::resumed(m);
}

/// Destroys the objects that a merge has found dead, also when the collection was abandoned.
pub(crate) fn destroy_merged<M: ObjectModel>(dead: Vec<DeadObject>, m: &ModelMutator<M>) {
    for object in dead {
        state_of(&m.core().space, object.object()).unset(state::DYING);
        call(m, During::Drop, "destroy_merged", |model| {
            SplitCountsOf::<M>::destroy_merged(model, object, m)
        });
    }
}
