//! Floor 4: one collection, step by step.
//!
//! | # | world | step | where |
//! |---|---|---|---|
//! | 0 | running | one collector takes the turn; "start" callbacks; then the model prepares: deferred drops are drained | [`collect`], the model |
//! | 1 | **stop** | the time it takes is measured | |
//! | 2 | stopped | merge pending counts; objects at 0 leave, to be destroyed after the restart | the model |
//! | 3 | stopped | full collections: what known roots reach is alive, and no candidate | [`mark::premark`] |
//! | 4 | stopped | count the references between candidates; full collections: write them down | [`count::count`], [`log`] |
//! | 5 | stopped | roots are candidates whose count differs; mark from them | [`count::roots`], [`mark::mark`] |
//! | 6 | stopped | what has no mark is unreachable: claim it, clear weak references | [`mark::sweep`], [`finalize::claim`] |
//! | 6 | stopped | where the model knows legacy finalizers: objects with one, and all that they reach, leave the set | [`finalize::claim`] |
//! | 7 | **start** | | |
//! | 8 | running | weak callbacks, then finalizers, once per object | [`finalize::finalize`] |
//! | 9 | **stop**, **start** | what is reachable again leaves the set; remaining weak references are cleared | [`finalize::recheck`] |
//! | 9 | running | the model is told what is garbage, and may keep it | [`finalize::judge`] |
//! | 10 | running | clear each, let go of each; counts do the rest | [`clear::clear`], [`clear::bury`] |
//! | – | running | "stop" callbacks; then the turn is given back | [`close`] |
//!
//! A collection that somebody asked for goes through all steps in that call ([`collect`]). Of one that the heap started
//! ([`by_itself`]) step 10 is left to all mutators, in pieces: see [`turn`](crate::heap::collector_lock).
//!
//! A collection that finds nothing, or nothing that can run code, skips 8 and 9: one stop. One to which step 3 has left no candidate
//! has no step 5.
//!
//! The steps consume one another's results, so none can be left out, and those that need the stop
//! take its token. Everything of one collection lives in these values: there is no collector state
//! between collections but the side tables, all zero, the age bits, and memory that is kept for the next one.
//!
//! # Giving up
//!
//! A traversal that panics, a field that counting could read and marking cannot, or memory that runs out, abandons the
//! collection: before anything was claimed with nothing changed, in the recheck with the whole set kept.
//!
//! # A rule
//!
//! cited by its letter where unsafe code relies on it:
//!
//! * **W** (world): whoever has the stop's token, or works for one who has, finds nothing freed and no count lowered until the world
//!   runs again. A candidate is alive, and so is whatever an edge of a living object leads to; what mutators own stands still.

pub(crate) mod clear;
pub(crate) mod count;
pub(crate) mod finalize;
pub(crate) mod log;
pub(crate) mod look;
pub(crate) mod mark;
pub(crate) mod portions;
#[cfg(all(test, not(any(loom, shuttle))))]
mod protocol;
pub(crate) mod verify;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::event::{self, CollectionEvent, CollectionKind, CollectionReport, During, Phase};
use crate::base::fallible::NoMemory;
use crate::base::sync::Ordering;
use crate::collect::count::{Abandoned, Scope};
use crate::collect::finalize::{Garbage, Homes, Unreachable};
use crate::heap::model::{ModelMutator, ObjectModel};
use crate::heap::mutator::{Core, World};
use crate::heap::pacing::Due;
use crate::heap::reclaim_queue::{Open, PIECE, Whose};
use crate::object::state::{self, State};
use crate::object::type_info::Object;
use crate::safepoint::StopError;

/// What to collect, and what to do if somebody else is collecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collect {
    kind: CollectionKind,
    wait: bool,
    /// What the records and callbacks are told.
    generation: u8,
    /// The callbacks of the services are not to know.
    quiet: bool,
}

impl Collect {
    /// Everything that is tracked and not frozen.
    pub fn full() -> Self {
        Self { kind: CollectionKind::Full, wait: true, generation: 2, quiet: false }
    }

    /// What is new since the last collection, or [promotion](crate::HeapStats::promotions).
    pub fn young() -> Self {
        Self { kind: CollectionKind::Young, wait: true, generation: 0, quiet: false }
    }

    /// Whether to wait, detached, for a collection that another thread is running, and then collect
    /// (the default); else [`CollectError::Busy`] comes back at once.
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// Under another number than its kind's.
    pub(crate) fn named(mut self, generation: u8) -> Self {
        self.generation = generation;
        self
    }

    /// Without the callbacks of the services.
    pub(crate) fn quietly(mut self) -> Self {
        self.quiet = true;
        self
    }
}

/// Why there was no collection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectError {
    /// Another thread is collecting, and the caller did not want to wait.
    Busy,
    /// The world cannot be stopped.
    Stop(StopError),
}

impl fmt::Display for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another thread is collecting"),
            Self::Stop(error) => write!(f, "the world cannot be stopped: {error}"),
        }
    }
}

impl std::error::Error for CollectError {}

impl From<StopError> for CollectError {
    fn from(error: StopError) -> Self {
        Self::Stop(error)
    }
}

/// The turn to collect: given back whatever happens.
struct HasTurn<'a, M: ObjectModel>(&'a Core<M>);

impl<M: ObjectModel> Drop for HasTurn<'_, M> {
    fn drop(&mut self) {
        self.0.turn.give_back();
    }
}

/// Takes the turn, and waits for it if need be.
pub(crate) fn wait_for_turn<M: ObjectModel>(m: &mut ModelMutator<M>) {
    if m.core().turn.try_take() {
        return;
    }
    let core = Arc::clone(m.core());
    let mut asked = core.turn.ask();
    while !take_turn(m, || asked.try_take()) {
        m.detach(|| {
            while let Some(overdue) = asked.wait(core.coordinator.slow_stop()) {
                core.coordinator.report_collecting(overdue.waited, &overdue.by);
            }
        });
    }
}

/// Takes the turn by `try_take`, unless it is in the hands of somebody who is working.
fn take_turn<M: ObjectModel>(m: &mut ModelMutator<M>, try_take: impl Fn() -> bool) -> bool {
    // What is left of another collection, and is in nobody's hands, is in the way.
    try_take() || (clear::bury(m, Whose::Anybodys, usize::MAX) && try_take())
}

/// Runs one collection, or tells why not.
pub(crate) fn collect<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
) -> Result<CollectionReport, CollectError> {
    if what.wait {
        wait_for_turn(m);
    }
    let core = Arc::clone(m.core());
    if !what.wait && !take_turn(m, || core.turn.try_take()) {
        return Err(CollectError::Busy);
    }
    let _turn = HasTurn(&core);
    let mut open = begin(m, what);
    let entered = open.span.enter();
    let found = find_garbage(m, &mut open.report, false);
    let found = found.map(|garbage| clear_at_once(m, garbage, &mut open.report));
    drop(entered);
    let report = close(m, open, found.as_ref().err());
    found?;
    Ok(report)
}

/// Runs a collection that the heap itself has found due, unless somebody else is collecting. Garbage may be left to bury when
/// it returns.
pub(crate) fn by_itself<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
) -> Result<(), CollectError> {
    let core = Arc::clone(m.core());
    if !core.turn.try_take() {
        return Err(CollectError::Busy);
    }
    let turn = HasTurn(&core);
    let mut open = begin(m, what);
    let entered = open.span.enter();
    let mut found = find_garbage(m, &mut open.report, true);
    if let Ok(Some(garbage)) = &mut found
        && !garbage.objects.is_empty()
    {
        let garbage = std::mem::take(garbage);
        let kept = garbage.kept;
        drop(entered);
        open.report.uncollectable = kept;
        if let Some((garbage, mut open)) = clear::leave(garbage, open, m) {
            let entered = open.span.enter();
            clear_at_once(m, Some(garbage), &mut open.report);
            drop(entered);
            close(m, open, None);
            return Ok(());
        }
        std::mem::forget(turn);
        // All of a small collection, to its end; and all of any, if room is wanted.
        let mine = Whose::Of(m.thread_id());
        let first = if core.space.is_tight() { usize::MAX } else { clear::MANY };
        clear::bury(m, mine, first);
        clear::bury(m, mine, PIECE);
        if core.turn.is_burying() {
            m.raise(crate::heap::mutator::COLLECT);
        }
        return Ok(());
    }
    let found = found.map(|garbage| clear_at_once(m, garbage, &mut open.report));
    drop(entered);
    close(m, open, found.as_ref().err());
    Ok(found?)
}

/// Makes what is new old without a look at it, where the heap has found that due, unless somebody is collecting: see
/// [`pacing`](crate::heap::pacing). No collection, so nobody is called back; what else a collection's first stop does happens in this
/// one.
pub(crate) fn promote<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), CollectError> {
    let core = Arc::clone(m.core());
    if !core.turn.try_take() {
        return Err(CollectError::Busy);
    }
    let _turn = HasTurn(&core);
    // Somebody may have collected, or promoted, since this thread looked.
    if core.pace.due() != Due::Promotion {
        return Ok(());
    }
    Ok(promote_now(m)?)
}

/// A promotion. The caller has the turn.
pub(crate) fn promote_now<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), StopError> {
    let core = Arc::clone(m.core());
    let _span = event::promotion(&core.name);
    m.model().prepare(m);
    let mut dead = Vec::new();
    let world = m.stop().inspect_err(|error| failed(&core, CollectionKind::Young, error))?;
    #[expect(
        clippy::let_underscore_must_use,
        reason = "without memory for its list, the next collection merges"
    )]
    let _ = merge(&world, &mut dead);
    let promoted = mark::promote(&world);
    core.pace.after_promotion(promoted);
    // Relaxed: figures.
    core.totals.promotions.fetch_add(1, Ordering::Relaxed);
    verify::stressed(&world, "after a promotion");
    let stopped = world.elapsed();
    drop(world);
    bury(dead, m);
    m.model().resumed(m);
    event::promoted(promoted, stopped);
    Ok(())
}

/// A collection begins: the turn is taken.
fn begin<M: ObjectModel>(m: &mut ModelMutator<M>, what: Collect) -> Open {
    let core = m.core();
    let mut report = CollectionReport::new(what.kind);
    report.generation = usize::from(what.generation);
    let open = Open {
        report,
        quiet: what.quiet,
        begun: Instant::now(),
        span: event::collection(what.kind, &core.name),
    };
    let _entered = open.span.enter();
    core.hooks.collection(&CollectionEvent::Start(what.kind));
    let lent = m.lend();
    core.notices.starts(&core.hooks, open.report.generation, what.quiet);
    drop(lent);
    drop(_entered);
    open
}

/// The world cannot be stopped, for this reason. Where that is for good, the pace is told: else every
/// safepoint would try again.
#[cold]
fn failed<M: ObjectModel>(core: &Core<M>, kind: CollectionKind, error: &StopError) {
    if matches!(error, StopError::ThreadGone { .. }) {
        core.pace.after_nothing(kind);
    }
}

/// The end of a collection, the turn still taken: it is told to who wants to know. It counts, unless the world could not be stopped
/// for it.
fn close<M: ObjectModel>(
    m: &ModelMutator<M>,
    open: Open,
    refused: Option<&StopError>,
) -> CollectionReport {
    verify::after(m);
    let core = m.core();
    let Open { mut report, quiet, begun, span } = open;
    core.pace.buried();
    core.pace.remember_memory();
    report.duration = begun.elapsed();
    if let Some(error) = refused {
        failed(core, report.kind, error);
        report.abandoned = Some(error.to_string().into());
    } else {
        core.notices.record(&report);
        // Relaxed: figures.
        core.totals.collected.fetch_add(report.collected, Ordering::Relaxed);
    }
    let _entered = span.enter();
    event::collected(&span, &report);
    core.hooks.collection(&CollectionEvent::Stop(&report));
    let _lent = m.lend();
    core.notices.stops(&core.hooks, &report, quiet);
    drop(_entered);
    report
}

/// Step 10 in one go. `None`: there is nothing to do, since the collection was abandoned.
fn clear_at_once<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    garbage: Option<Garbage>,
    report: &mut CollectionReport,
) {
    let Some(garbage) = garbage else { return };
    let kept = garbage.kept;
    let released = clear::clear(garbage, m);
    settle(m, report);
    let cleared = released.tally(m);
    report.collected = cleared.collected;
    report.uncollectable = cleared.uncollectable + kept;
}

/// Steps 1 to 9. `None`: the collection was abandoned. With `shared`, what lies on the pages of other running threads is
/// held by those.
fn find_garbage<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    report: &mut CollectionReport,
    shared: bool,
) -> Result<Option<Garbage>, StopError> {
    m.model().prepare(m);
    let mut dead = Vec::new();
    let world = m.stop()?;
    // Relaxed: figures.
    let totals = &world.core().totals;
    totals.collections.fetch_add(1, Ordering::Relaxed);
    totals.young.fetch_add(usize::from(report.kind == CollectionKind::Young), Ordering::Relaxed);
    let found = find(&world, report, &mut dead, shared);
    leave(world, report);
    bury(dead, m);
    m.model().resumed(m);
    let unreachable = match found {
        Ok(unreachable) => unreachable,
        Err(abandoned) => {
            m.core().pace.after_nothing(report.kind);
            give_up(m, report, abandoned);
            return Ok(None);
        }
    };
    let mut pending = finalize::finalize(unreachable, m);
    if let Some(doubt) = pending.doubt.take() {
        give_up(m, report, doubt);
    }
    report.finalized = pending.finalized;
    let garbage = if pending.looked_at {
        let mut dead = Vec::new();
        let checked = match m.stop() {
            Ok(world) => {
                let merged = merge(&world, &mut dead);
                let checked = merged.map(|()| finalize::recheck(&world, pending.take()));
                leave(world, report);
                checked.map_err(Abandoned::from)
            }
            // Somebody has ended a thread wrongly since the first stop.
            Err(error) => Err(Abandoned { reason: error.to_string().into(), type_name: "" }),
        };
        // Doubt keeps everything alive.
        let (garbage, abandoned) =
            checked.unwrap_or_else(|why| (finalize::keep(pending, m), Some(why)));
        bury(dead, m);
        m.model().resumed(m);
        if let Some(abandoned) = abandoned {
            give_up(m, report, abandoned);
        }
        garbage
    } else {
        pending.untouched()
    };
    let garbage = finalize::judge(garbage, m);
    report.resurrected = garbage.resurrected;
    Ok(Some(garbage))
}

/// Lets references go that wait until every thread has passed a safepoint: a stop is one for all of them.
///
/// Rare: only where something that was cleared is read without a lock, and other threads are running.
fn settle<M: ObjectModel>(m: &mut ModelMutator<M>, report: &mut CollectionReport) {
    if !m.model().settle(m) {
        return;
    }
    let mut dead = Vec::new();
    // If the world cannot be stopped, or there is no memory, they go later.
    if let Ok(world) = m.stop() {
        #[expect(
            clippy::let_underscore_must_use,
            reason = "without memory for its list, the next collection merges"
        )]
        let _ = merge(&world, &mut dead);
        leave(world, report);
    }
    bury(dead, m);
    m.model().resumed(m);
}

/// Steps 2 to 6, in the first stop.
fn find<M: ObjectModel>(
    world: &World<'_, M>,
    report: &mut CollectionReport,
    dead: &mut Vec<Object>,
    shared: bool,
) -> Result<Unreachable<M>, Abandoned> {
    let core = world.core();
    merge(world, dead)?;
    verify::stressed(world, "before a collection");
    let mut scope = Scope::new(&core.space, report.kind)?;
    let cells = scope.cells(&core.space);
    let workers = core.workers.muster(cells, core.serial_below);
    if workers > 1 && cells < core.serial_below {
        scope.sort_by_home(&core.space)?;
    }
    report.workers = workers;
    let result = mark::premark(world, &scope, workers);
    let result =
        result.and_then(|()| count::count(world, &scope, workers)).and_then(|mut counts| {
            report.tracked = counts.tracked;
            report.candidates = counts.candidates;
            report.known_alive = counts.known_alive;
            if counts.candidates == counts.known_alive {
                // There are none, or all of them have been reached from the roots that the runtime has named.
                return Ok(());
            }
            let roots = count::roots(world, &scope, &counts, workers)?;
            report.overvisited = roots.overvisited.len();
            for &granule in &roots.overvisited {
                // SAFETY: rule W: a candidate is alive, and the world is stopped.
                unsafe { core.model.overvisited(count::object_at(&core.space, granule as usize)) };
            }
            mark::mark(world, &scope, &mut counts, roots, workers)
        });
    let result = result.and_then(|()| Ok(mark::sweep(world, &scope, workers)?));
    let found = result.inspect_err(|_| {
        let _table = core.turn.table();
        count::wipe(&core.space, scope.pages());
    })?;
    report.unreachable = found.len();
    match report.kind {
        CollectionKind::Young => core.pace.after_young(report.candidates, found.len()),
        CollectionKind::Full => core.pace.after_full(report.candidates, found.len()),
    }
    // What makes less than a piece is not worth the sharing.
    let homes =
        if shared && found.len() > PIECE { Homes::of_parked(world) } else { Homes::default() };
    let unreachable = finalize::claim(world, found, homes, workers);
    verify::stressed(world, "in a collection");
    Ok(unreachable)
}

/// Step 2. Objects whose count turns out to be 0 are dying from here on: no candidates.
fn merge<M: ObjectModel>(world: &World<'_, M>, dead: &mut Vec<Object>) -> Result<(), NoMemory> {
    let _phase = event::phase(Phase::Merge);
    let core = world.core();
    let before = dead.len();
    dead.try_reserve(core.model.pending(world))?;
    core.model.merge(world, dead);
    for object in &dead[before..] {
        // SAFETY: rule W: the model has not freed them.
        unsafe { core.state(object.address()) }.set(state::DYING);
    }
    Ok(())
}

/// Resumes the world, and notes what the stop cost.
fn leave<M: ObjectModel>(world: World<'_, M>, report: &mut CollectionReport) {
    report.time_to_stop = report.time_to_stop.max(world.time_to_stop());
    let since = Instant::now();
    let stopped = world.elapsed();
    drop(world);
    if report.stops.try_reserve(1).is_ok() {
        report.stops.push(stopped + since.elapsed().min(Duration::from_millis(1)));
    }
}

/// Destroys what the merge found dead, also when the collection was abandoned.
fn bury<M: ObjectModel>(dead: Vec<Object>, m: &ModelMutator<M>) {
    for object in dead {
        // SAFETY: rule Z: it was given to this collection alone, and the world is running.
        unsafe {
            m.core().state(object.address()).unset(state::DYING);
            m.model().bury(object, m);
        }
    }
}

fn give_up<M: ObjectModel>(m: &ModelMutator<M>, report: &mut CollectionReport, why: Abandoned) {
    // It may have been memory that there was not enough of.
    m.core().workers.spare.give_up();
    m.core().hooks.unraisable(
        During::Traverse,
        why.type_name,
        crate::base::fallible::words!("the collection was abandoned: {}", why.reason),
    );
    report.abandoned = Some(why.reason);
}

/// Calls `f` with each object that an enumeration may show.
pub(crate) fn visible<M: ObjectModel>(world: &World<'_, M>, mut f: impl FnMut(Object, State<'_>)) {
    live(world, |object, state| {
        if state::is_visible(state.get()) {
            f(object, state);
        }
    });
}

/// Calls `f` with each object there is.
pub(crate) fn live<M: ObjectModel>(world: &World<'_, M>, mut f: impl FnMut(Object, State<'_>)) {
    let space = &world.core().space;
    let states = space.states();
    for page in 0..space.high_water() {
        for granule in space.starts(page) {
            let state = State(&states[granule]);
            if state.get() & state::LIVE != 0 {
                f(count::object_at(space, granule), state);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::{Mutex, mpsc};

    use super::*;
    use crate::{AnyGc, AtomicGc, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer, safepoint};

    /// Leads to itself, by a slot that is read without a lock. It has the rounds of a thread that runs.
    struct Slotted(AtomicGc<Slotted>, Arc<AtomicUsize>);

    impl Trace for Slotted {
        fn traverse(&self, tracer: &mut Tracer) {
            self.0.traverse(tracer);
        }
        fn clear(&self, m: &Mutator) {
            // Until the thread is surely back from the stop before.
            let before = self.1.load(Ordering::Relaxed);
            while self.1.load(Ordering::Relaxed) < before + 2 {
                std::thread::yield_now();
            }
            self.0.clear(m);
        }
    }

    /// Leads to itself, and may refuse to be cleared.
    struct Ring(GcCell<Option<Gc<Ring>>>, bool);

    impl Trace for Ring {
        fn traverse(&self, tracer: &mut Tracer) {
            self.0.traverse(tracer);
        }
        fn clear(&self, m: &Mutator) {
            if !self.1 {
                self.0.clear(m);
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

    fn rings(m: &Mutator, n: usize, refuses: bool) {
        for _ in 0..n {
            let ring = m.alloc(Ring(GcCell::new(None), refuses));
            ring.get(m).0.set(m, Some(ring.clone()));
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

    /// Another thread is attached all the time, takes part in stops, and passes no other safepoint. So it counts as a reader of each slot
    /// until the collection stops the world once more.
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
                        m.raw_mut().park();
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
                    slotted.get(m).0.store(m, Some(slotted.clone()));
                }
            };
            garbage(&m);
            let report = m.collect();
            garbage(&m);
            by_itself(m.raw_mut(), Collect::young()).expect("nobody else collects");
            on.store(false, Ordering::Relaxed);
            assert_eq!((report.collected, report.uncollectable), (OBJECTS, 0), "by request");
            assert!(report.stops.len() >= 2, "each stop is in the report");
            assert_eq!(ends.try_iter().collect::<Vec<_>>(), [(OBJECTS, 0); 2]);
            assert_eq!(heap.stats().live_objects, 0);
        });
    }

    /// In pieces, so many at once, and each object counted once.
    #[test]
    fn a_thread_that_would_rather_collect_buries_a_bounded_number_and_the_figures_are_exact_in_the_end()
     {
        const REFUSING: usize = 7;
        let heap = heap();
        let ends = ends(&heap);
        let mut m = heap.attach();
        let whole = Whose::Of(m.raw().thread_id());
        let garbage = clear::MANY + 2 * PIECE;
        rings(&m, REFUSING, true);
        rings(&m, garbage - REFUSING, false);
        by_itself(m.raw_mut(), Collect::young()).expect("nobody else collects");
        let live = || heap.stats().live_objects;
        assert_eq!(live(), PIECE + REFUSING, "all but one piece");
        assert_ne!(m.raw().poll() & crate::heap::mutator::COLLECT, 0, "the rest is due");
        assert_eq!(by_itself(m.raw_mut(), Collect::young()), Err(CollectError::Busy));
        assert_eq!(
            collect(m.raw_mut(), Collect::full().wait(false)).map(|_| ()),
            Ok(()),
            "what is in nobody's hands"
        );
        assert_eq!(
            ends.try_iter().collect::<Vec<_>>(),
            [(garbage - REFUSING, REFUSING), (0, REFUSING)]
        );
        assert!(!m.raw().core().turn.is_burying());
        assert!(!clear::bury(m.raw_mut(), whole, usize::MAX), "nothing is left");
        assert_eq!(live(), REFUSING);
    }

    /// What the objects of a graph share.
    #[derive(Default)]
    struct Shared {
        /// Numbers of objects whose finalizers have run, and of those that bring themselves back.
        finalized: Mutex<Vec<usize>>,
        brought_back: Mutex<Vec<AnyGc>>,
        called_back: AtomicUsize,
    }

    /// An object of a graph, with a finalizer or without.
    struct Node<const FINAL: bool> {
        number: usize,
        edges: GcCell<Vec<AnyGc>>,
        /// A field that no traversal can read.
        is_locked: AtomicBool,
        shared: Arc<Shared>,
    }

    impl<const FINAL: bool> Trace for Node<FINAL> {
        const HAS_FINALIZER: bool = FINAL;
        fn traverse(&self, tracer: &mut Tracer) {
            if self.is_locked.load(Ordering::Relaxed) {
                tracer.unreadable();
            }
            self.edges.traverse(tracer);
        }
        fn clear(&self, m: &Mutator) {
            self.edges.clear(m);
        }
        fn finalize(this: &Gc<Self>, m: &Mutator) {
            let node = this.get(m);
            node.shared.finalized.lock().expect("no panic").push(node.number);
            if is_brought_back(node.number) {
                node.shared.brought_back.lock().expect("no panic").push(this.clone().into());
            }
        }
    }

    /// Neighbours.
    const GROUP: usize = 25;

    fn has_finalizer(number: usize) -> bool {
        number % 5 == 3
    }

    fn is_brought_back(number: usize) -> bool {
        number % 75 == 3
    }

    fn is_watched(number: usize) -> bool {
        number % 3 == 1
    }

    fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        }
    }

    /// Whether a weak reference can be upgraded.
    type Upgrades = Box<dyn Fn(&Mutator) -> bool>;

    /// Objects, and what is known of them without a look at the heap.
    struct Graph {
        m: Mutator,
        shared: Arc<Shared>,
        weak: Vec<Upgrades>,
        watchers: Vec<Box<dyn std::any::Any>>,
        /// What holds objects from outside, by number.
        held: Vec<Option<AnyGc>>,
        edges: Vec<Vec<usize>>,
        is_old: Vec<bool>,
        is_gone: Vec<bool>,
        is_locked: Vec<bool>,
        is_finalized: Vec<bool>,
        /// The callback of its weak reference.
        is_called: Vec<bool>,
        /// Collected, finalized, brought back and called back by all collections.
        sums: [usize; 4],
    }

    impl Graph {
        fn new(m: Mutator) -> Self {
            Self {
                m,
                shared: Arc::default(),
                weak: Vec::new(),
                watchers: Vec::new(),
                held: Vec::new(),
                edges: Vec::new(),
                is_old: Vec::new(),
                is_gone: Vec::new(),
                is_locked: Vec::new(),
                is_finalized: Vec::new(),
                is_called: Vec::new(),
                sums: [0; 4],
            }
        }

        fn make<const FINAL: bool>(&mut self) {
            let m = &self.m;
            let node: Gc<Node<FINAL>> = m.alloc(Node {
                number: self.held.len(),
                edges: GcCell::new(Vec::new()),
                is_locked: AtomicBool::new(false),
                shared: self.shared.clone(),
            });
            let weak = Gc::downgrade(&node, m);
            self.weak.push(Box::new(move |m| weak.upgrade(m).is_some()));
            if is_watched(self.held.len()) {
                let watcher = m.alloc_weak(&node, Called(self.shared.clone()), |weak, m| {
                    weak.get(m).data().0.called_back.fetch_add(1, Ordering::Relaxed);
                });
                self.watchers.push(Box::new(watcher));
            }
            self.held.push(Some(node.into()));
            self.edges.push(Vec::new());
            self.is_old.push(false);
            self.is_gone.push(false);
            self.is_locked.push(false);
            self.is_finalized.push(false);
            self.is_called.push(false);
        }

        /// More objects, all of them held, with edges from and to all that are held.
        fn grow(&mut self, n: usize, seed: u64) {
            let first = self.held.len();
            for number in first..first + n {
                if has_finalizer(number) { self.make::<true>() } else { self.make::<false>() }
            }
            let mut random = numbers(seed);
            let there: Vec<usize> =
                (0..first + n).filter(|&number| self.held[number].is_some()).collect();
            for from in first..first + n {
                // Most have few edges. Some have more than are taken from the log at once, than it holds, and than a batch.
                let edges = match random(100) {
                    0 => 3_000,
                    1..4 => 70,
                    4..10 => 20,
                    10..40 => 0,
                    _ => 1 + random(3),
                };
                // Nearly all lead to neighbours, so that there are garbage rings.
                let group = from - from % GROUP;
                for _ in 0..edges {
                    let to = match random(edges.max(100)) {
                        0 => there[0],
                        1 => there[random(there.len())],
                        _ => (group + random(GROUP)).clamp(first, first + n - 1),
                    };
                    self.link(from, to);
                }
                // As in a list, which is marked one by one.
                if (from + 1) % GROUP != 0 && from % 7 < 5 {
                    self.link(from, from + 1);
                }
                if random(100) == 0 {
                    self.with(from, |is_locked, _| is_locked.store(true, Ordering::Relaxed));
                    self.is_locked[from] = true;
                }
            }
        }

        fn with(&self, number: usize, f: impl FnOnce(&AtomicBool, &GcCell<Vec<AnyGc>>)) {
            let node = self.held[number].as_ref().expect("held");
            if let Some(node) = node.downcast_ref::<Node<true>>(&self.m) {
                f(&node.is_locked, &node.edges);
            } else {
                let node = node.downcast_ref::<Node<false>>(&self.m).expect("a node");
                f(&node.is_locked, &node.edges);
            }
        }

        fn link(&mut self, from: usize, to: usize) {
            let target = self.held[to].clone().expect("held");
            self.with(from, |_, edges| edges.lock(&self.m).push(target));
            self.edges[from].push(to);
        }

        /// Lets go of all objects but one of so many.
        fn let_go(&mut self, but_one_of: usize) {
            for (number, held) in self.held.iter_mut().enumerate() {
                if number % but_one_of != 0 {
                    *held = None;
                }
            }
            let (finalized, calls) = self.die();
            self.check_told(finalized, calls);
        }

        /// What some objects lead to, themselves included, as far as it is among these.
        fn reached(&self, from: impl IntoIterator<Item = usize>, among: &[bool]) -> Vec<bool> {
            let mut reached = vec![false; among.len()];
            let mut stack: Vec<usize> = from.into_iter().collect();
            while let Some(number) = stack.pop() {
                if among[number]
                    && !std::mem::replace(&mut reached[number], true)
                    && !self.is_locked[number]
                {
                    stack.extend(&self.edges[number]);
                }
            }
            reached
        }

        /// Notes what dies by count alone, now that it was let go of, also by finalizers; and what finalizers and callbacks that makes.
        fn die(&mut self) -> (Vec<usize>, usize) {
            loop {
                let brought_back =
                    std::mem::take(&mut *self.shared.brought_back.lock().expect("no panic"));
                if brought_back.is_empty() {
                    break;
                }
            }
            let (mut finalized, mut calls) = (Vec::new(), 0);
            let mut counts = vec![0usize; self.edges.len()];
            for number in (0..self.edges.len()).filter(|&number| !self.is_gone[number]) {
                counts[number] += usize::from(self.held[number].is_some());
                self.edges[number].iter().for_each(|&to| counts[to] += 1);
            }
            let mut dying: Vec<usize> = (0..counts.len())
                .filter(|&number| counts[number] == 0 && !self.is_gone[number])
                .collect();
            while let Some(number) = dying.pop() {
                self.is_gone[number] = true;
                if has_finalizer(number) && !std::mem::replace(&mut self.is_finalized[number], true)
                {
                    finalized.push(number);
                }
                calls += usize::from(is_watched(number) && !self.is_called[number]);
                for &to in &self.edges[number] {
                    counts[to] -= 1;
                    if counts[to] == 0 {
                        dying.push(to);
                    }
                }
            }
            (finalized, calls)
        }

        /// Holds which finalizers and callbacks have run against those that were due.
        fn check_told(&mut self, mut finalized: Vec<usize>, calls: usize) {
            finalized.sort_unstable();
            let mut told = std::mem::take(&mut *self.shared.finalized.lock().expect("no panic"));
            told.sort_unstable();
            assert_eq!(told, finalized, "each finalizer once");
            assert_eq!(
                self.shared.called_back.swap(0, Ordering::Relaxed),
                calls,
                "each callback once"
            );
            let is_there: Vec<bool> = self.weak.iter().map(|upgrades| upgrades(&self.m)).collect();
            for (number, is_there) in is_there.into_iter().enumerate() {
                assert_eq!(is_there, !self.is_gone[number], "object {number}");
            }
        }

        /// Collects, and holds what has become of each object against what the edges say.
        fn collect(&mut self, kind: CollectionKind) {
            let all = self.edges.len();
            let is_candidate: Vec<bool> = (0..all)
                .map(|number| {
                    !self.is_gone[number] && (kind == CollectionKind::Full || !self.is_old[number])
                })
                .collect();
            let held = (0..all).filter(|&number| self.held[number].is_some());
            // What is no candidate, or cannot be read, leads from outside to what it refers to.
            let outside = (0..all).filter(|&number| {
                !self.is_gone[number] && (!is_candidate[number] || self.is_locked[number])
            });
            let roots = held.chain(outside.flat_map(|number| self.edges[number].iter().copied()));
            let reached = self.reached(roots, &is_candidate);
            let unreachable: Vec<bool> =
                (0..all).map(|number| is_candidate[number] && !reached[number]).collect();
            let among = |number: &usize| unreachable[*number];
            let finalized: Vec<usize> = (0..all)
                .filter(among)
                .filter(|&number| has_finalizer(number) && !self.is_finalized[number])
                .collect();
            let resurrected = self.reached(
                finalized.iter().copied().filter(|&number| is_brought_back(number)),
                &unreachable,
            );
            let count = |list: &[bool]| list.iter().filter(|&&is| is).count();
            let due = |&number: &usize| is_watched(number) && !self.is_called[number];
            let calls = (0..all).filter(among).filter(due).count();
            let what = match kind {
                CollectionKind::Full => Collect::full(),
                CollectionKind::Young => Collect::young(),
            };
            let report = collect(self.m.raw_mut(), what).expect("a stop");
            assert_eq!(report.abandoned, None);
            assert_eq!(report.unreachable, count(&unreachable), "unreachable");
            assert_eq!(report.finalized, finalized.len(), "finalized");
            assert_eq!(report.resurrected, count(&resurrected), "resurrected");
            assert_eq!(report.collected, count(&unreachable) - count(&resurrected), "collected");
            assert_eq!((report.uncollectable, report.overvisited), (0, 0));
            for (sum, more) in self.sums.iter_mut().zip([
                report.collected,
                report.finalized,
                report.resurrected,
                calls,
            ]) {
                *sum += more;
            }
            self.m.verify().expect("a sound heap");
            for number in 0..all {
                self.is_gone[number] |= unreachable[number] && !resurrected[number];
                self.is_old[number] = true;
                self.is_called[number] |= unreachable[number];
                self.is_finalized[number] |= finalized.binary_search(&number).is_ok();
            }
            // What was brought back is let go of again. What could not be read dies with who held it.
            let (mut others, more_calls) = self.die();
            others.extend(finalized);
            self.check_told(others, calls + more_calls);
        }
    }

    /// The data of a weak reference.
    struct Called(Arc<Shared>);

    impl Trace for Called {
        const TRACKED: bool = false;
        fn traverse(&self, _: &mut Tracer) {}
    }

    #[test]
    fn of_any_graph_what_nobody_reaches_is_collected_and_nothing_else() {
        for (seed, workers, is_small) in [(1, 1, false), (2, 1, true), (3, 3, false), (4, 3, true)]
        {
            let stress = crate::Stress::none().small_constants(is_small);
            let builder =
                Heap::builder().reserve(1 << 30).workers(workers).serial_below(0).stress(stress);
            let heap = builder.pacing(Pacing::manual()).build().expect("a heap");
            let mut graph = Graph::new(heap.attach());
            graph.grow(600, seed);
            graph.let_go(4 * GROUP);
            graph.collect(CollectionKind::Young);
            graph.collect(CollectionKind::Full);
            graph.grow(300, seed + 100);
            graph.let_go(5 * GROUP);
            graph.collect(CollectionKind::Young);
            graph.collect(CollectionKind::Full);
            assert!(graph.sums.iter().all(|&sum| sum > 10), "each happens: {:?}", graph.sums);
        }
    }

    /// How each look at a moody object ends; looks beyond the last end like the last.
    #[derive(Clone, Copy, PartialEq)]
    enum Look {
        Shows,
        /// A field cannot be read.
        Hides,
        Panics,
    }

    /// Leads to others, where its script says so.
    struct Moody<const FINAL: bool> {
        edges: GcCell<Vec<AnyGc>>,
        script: Arc<Mutex<Vec<Look>>>,
        shared: Arc<Shared>,
    }

    impl<const FINAL: bool> Trace for Moody<FINAL> {
        const HAS_FINALIZER: bool = FINAL;
        fn traverse(&self, tracer: &mut Tracer) {
            let mut script = self.script.lock().expect("no panic while it is held");
            let look = script[0];
            if script.len() > 1 {
                script.rotate_left(1);
                script.pop();
            }
            drop(script);
            match look {
                Look::Shows => self.edges.traverse(tracer),
                Look::Hides => tracer.unreadable(),
                Look::Panics => panic!("on purpose"),
            }
        }
        fn clear(&self, m: &Mutator) {
            self.edges.clear(m);
        }
        fn finalize(this: &Gc<Self>, m: &Mutator) {
            this.get(m).shared.brought_back.lock().expect("no panic").push(this.clone().into());
        }
    }

    const LOCKED: &str = "a field that could be read when references were counted is locked now";

    /// An object that refers to a ring, by so many edges, and is held or else garbage; and a moody object before it that shows nothing else.
    fn moody<const FINAL: bool>(
        m: &Mutator,
        edges: usize,
        script: &[Look],
        shared: &Arc<Shared>,
    ) -> Gc<Moody<FINAL>> {
        let ring = m.alloc(Ring(GcCell::new(None), false));
        ring.get(m).0.set(m, Some(ring.clone()));
        let edges = (0..edges).map(|_| ring.clone().into()).collect();
        let script = Arc::new(Mutex::new(script.to_vec()));
        m.alloc(Moody { edges: GcCell::new(edges), script, shared: shared.clone() })
    }

    /// What is logged is not looked at again, so in a full collection the object has many edges.
    #[test]
    fn a_field_that_is_locked_after_it_was_counted_is_tried_again_and_else_keeps_everything() {
        use Look::{Hides, Panics, Shows};
        for (kind, edges) in
            [(CollectionKind::Young, 1), (CollectionKind::Full, 1), (CollectionKind::Full, 100)]
        {
            let is_seen_twice = kind == CollectionKind::Young || edges > 1;
            for workers in [1, 3] {
                for script in [
                    &[Shows, Shows][..],
                    &[Hides],
                    &[Hides, Shows],
                    &[Shows, Hides, Shows],
                    &[Shows, Hides, Hides, Hides, Shows],
                    &[Shows, Hides],
                    &[Shows, Panics],
                    &[Panics],
                ] {
                    let builder = Heap::builder().reserve(1 << 30).workers(workers).serial_below(0);
                    let heap = builder.pacing(Pacing::manual()).build().expect("a heap");
                    heap.on_unraisable(|_| {});
                    let mut m = heap.attach();
                    let shared = Arc::default();
                    let kept: Gc<Moody<false>> = moody(&m, edges, script, &shared);
                    rings(&m, 3, false);
                    let what = if kind == CollectionKind::Young {
                        Collect::young()
                    } else {
                        Collect::full()
                    };
                    let report = collect(m.raw_mut(), what).expect("a stop");
                    let expected = match script {
                        [Panics] => Some("on purpose"),
                        [Shows, Panics] if is_seen_twice => Some("on purpose"),
                        [Shows, Hides] if is_seen_twice => Some(LOCKED),
                        _ => None,
                    };
                    assert_eq!(
                        report.abandoned.as_deref(),
                        expected,
                        "{kind:?}, {edges} edges, {workers} workers"
                    );
                    assert_eq!(report.collected, if expected.is_none() { 3 } else { 0 });
                    *kept.get(&m).script.lock().expect("no panic") = vec![Shows];
                    m.verify().expect("a sound heap");
                    assert_eq!(m.collect().collected, if expected.is_none() { 0 } else { 3 });
                    assert_eq!(heap.stats().live_objects, 2, "it, and its ring");
                    drop(kept);
                    assert_eq!(m.collect().collected, 1);
                }
            }
        }
    }

    /// After finalizers have run, which have brought the object back: once to count, and once to see what it reaches.
    #[test]
    fn a_field_that_is_locked_in_the_second_look_keeps_what_it_may_lead_to() {
        use Look::{Hides, Panics, Shows};
        for (script, is_abandoned) in [
            (&[Shows][..], false),
            (&[Shows, Hides, Shows], false),
            (&[Shows, Hides], false),
            (&[Shows, Shows, Hides], true),
            (&[Shows, Shows, Panics], true),
            (&[Shows, Panics], true),
        ] {
            let heap = heap();
            heap.on_unraisable(|_| {});
            let mut m = heap.attach();
            let shared: Arc<Shared> = Arc::default();
            let lost: Gc<Moody<true>> = moody(&m, 2, script, &shared);
            let itself = lost.clone().into();
            lost.get(&m).edges.lock(&m).push(itself);
            drop(lost);
            rings(&m, 3, false);
            let report = m.collect();
            let back = std::mem::take(&mut *shared.brought_back.lock().expect("no panic"));
            assert_eq!(
                (report.abandoned.is_some(), report.finalized, back.len()),
                (is_abandoned, 1, 1)
            );
            let kept = if is_abandoned { 5 } else { 2 };
            assert_eq!((report.resurrected, report.collected), (kept, 5 - kept));
            assert_eq!(heap.stats().live_objects, kept);
            let moody = back[0].downcast_ref::<Moody<true>>(&m).expect("it");
            *moody.script.lock().expect("no panic") = vec![Shows];
            m.verify().expect("a sound heap");
            assert_eq!(m.collect().collected, kept - 2);
            drop(back);
            assert_eq!((m.collect().collected, heap.stats().live_objects), (2, 0));
        }
    }

    /// Also where it lies in a cell that an allocator has kept at hand since before.
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
