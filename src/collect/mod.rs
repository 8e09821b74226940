//! Floor 4: one collection, step by step.
//!
//! | # | world | step | where |
//! |---|---|---|---|
//! | 0 | running | one collector takes the turn; "start" callbacks; then the model prepares: deferred drops are drained | [`collect`], the model |
//! | 1 | **stop** | the time it takes is measured | |
//! | 2 | stopped | merge pending counts; objects at 0 leave, to be destroyed after the restart | the model |
//! | 3 | stopped | full collections: what known roots reach is alive, and no candidate | [`mark::premark`] |
//! | 4 | stopped | count the references between candidates | [`count::count`] |
//! | 5 | stopped | roots are candidates whose count differs; mark from them | [`count::roots`], [`mark::mark`] |
//! | 6 | stopped | what has no mark is unreachable: claim it, clear weak references | [`mark::sweep`], [`finalize::claim`] |
//! | 6 | stopped | where the model knows legacy finalizers: objects with one, and all that they reach, leave the set | [`finalize::claim`] |
//! | 7 | **start** | | |
//! | 8 | running | weak callbacks, then finalizers, once per object | [`finalize::finalize`] |
//! | 9 | **stop**, **start** | what is reachable again leaves the set; remaining weak references are cleared | [`finalize::recheck`] |
//! | 9 | running | the model is told what is garbage, and may keep it | [`finalize::judge`] |
//! | 10 | running | clear each, let go of each; counts do the rest | [`clear::clear`] |
//! | – | running | "stop" callbacks; then the turn is given back | [`collect`] |
//!
//! A collection that finds nothing, or nothing that can run code, skips 8 and 9: one stop.
//!
//! The steps consume one another's results, so none can be left out, and those that need the stop
//! take its token. Everything of one collection lives in these values: there is no collector state
//! between collections but the side tables, all zero, and the age bits.
//!
//! # Giving up
//!
//! A traversal that panics, or a field that counting could read and marking cannot, abandons the
//! collection: before anything was claimed with nothing changed, in the recheck with the whole set kept.

pub(crate) mod clear;
pub(crate) mod count;
pub(crate) mod finalize;
pub(crate) mod mark;
pub(crate) mod verify;
pub(crate) mod workers;

use std::fmt;
use std::time::{Duration, Instant};

use crate::collect::count::{Abandoned, Scope};
use crate::collect::finalize::Unreachable;
use crate::event::{self, CollectionEvent, CollectionKind, CollectionReport, During, Phase};
use crate::model::{ModelMutator, ObjectModel};
use crate::mutator::World;
use crate::object::Object;
use crate::safepoint::StopError;
use crate::sync::Ordering;
use crate::tracked::{self, State};

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

    /// What is new since the last collection.
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
struct HasTurn<'a, M: ObjectModel>(&'a crate::mutator::Core<M>);

impl<M: ObjectModel> Drop for HasTurn<'_, M> {
    fn drop(&mut self) {
        self.0.turn.give_back();
    }
}

/// Runs one collection, or tells why not.
pub(crate) fn collect<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    what: Collect,
) -> Result<CollectionReport, CollectError> {
    let core = std::sync::Arc::clone(m.core());
    while !core.turn.try_take() {
        if !what.wait {
            return Err(CollectError::Busy);
        }
        m.detach(|| core.turn.wait());
    }
    let turn = HasTurn(&core);
    let begun = Instant::now();
    let span = event::collection(what.kind, &core.name);
    core.hooks.collection(&CollectionEvent::Start(what.kind));
    let mut report = CollectionReport::new(what.kind);
    report.generation = usize::from(what.generation);
    {
        let _lent = m.lend();
        core.notices.starts(&core.hooks, report.generation, what.quiet);
    }
    let result = run(m, &mut report);
    core.pace.buried();
    core.pace.remember_memory();
    report.duration = begun.elapsed();
    if result.is_ok() {
        core.notices.record(&report);
        // Relaxed: figures.
        core.totals.collections.fetch_add(1, Ordering::Relaxed);
        core.totals.young.fetch_add(usize::from(what.kind == CollectionKind::Young), Ordering::Relaxed);
        core.totals.collected.fetch_add(report.collected, Ordering::Relaxed);
    }
    event::collected(&span, &report);
    core.hooks.collection(&CollectionEvent::Stop(&report));
    {
        let _lent = m.lend();
        core.notices.stops(&core.hooks, &report, what.quiet);
    }
    drop(turn);
    result?;
    Ok(report)
}

/// Steps 1 to 10.
fn run<M: ObjectModel>(m: &mut ModelMutator<M>, report: &mut CollectionReport) -> Result<(), StopError> {
    m.model().prepare(m);
    let mut dead = Vec::new();
    let world = m.stop()?;
    let found = find(&world, report, &mut dead);
    leave(world, report);
    bury(dead, m);
    m.model().resumed(m);
    let unreachable = match found {
        Ok(unreachable) => unreachable,
        Err(abandoned) => {
            give_up(m, report, abandoned);
            return Ok(());
        }
    };
    let mut pending = finalize::finalize(unreachable, m);
    if let Some(doubt) = pending.doubt.take() {
        give_up(m, report, doubt);
    }
    report.finalized = pending.finalized;
    let garbage = if pending.looked_at {
        let mut dead = Vec::new();
        let checked = m.stop().map(|world| {
            merge(&world, &mut dead);
            let checked = finalize::recheck(&world, pending.take());
            leave(world, report);
            checked
        });
        let (garbage, abandoned) = checked.unwrap_or_else(|error| {
            // Somebody has ended a thread wrongly since the first stop. Doubt keeps everything alive.
            let why = Abandoned { reason: error.to_string(), type_name: "" };
            (finalize::keep(pending, m), Some(why))
        });
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
    let kept = garbage.kept;
    let released = clear::clear(garbage, m);
    settle(m, report);
    let cleared = released.tally(m);
    report.collected = cleared.collected;
    report.uncollectable = cleared.uncollectable + kept;
    Ok(())
}

/// Lets references go that wait until every thread has passed a safepoint: a stop is one for all of them.
///
/// Rare: only where something that was cleared is read without a lock, and other threads are running.
fn settle<M: ObjectModel>(m: &mut ModelMutator<M>, report: &mut CollectionReport) {
    if !m.model().settle(m) {
        return;
    }
    let mut dead = Vec::new();
    // If the world cannot be stopped, they go later.
    if let Ok(world) = m.stop() {
        merge(&world, &mut dead);
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
) -> Result<Unreachable<M>, Abandoned> {
    let core = world.core();
    merge(world, dead);
    if core.stress {
        verify::check(world, verify::Depth::Structure).unwrap_or_else(|e| panic!("before a collection: {e}"));
    }
    let scope = Scope::new(&core.space, report.kind);
    let workers = if scope.cells(&core.space) < core.serial_below { 1 } else { core.workers.size() };
    report.workers = workers;
    let result = mark::premark(world, &scope, workers);
    let result = result.and_then(|()| count::count(world, &scope, workers)).and_then(|mut counts| {
        report.tracked = counts.tracked;
        report.candidates = counts.candidates;
        report.known_alive = counts.known_alive;
        let roots = count::roots(world, &scope, &counts, workers);
        report.overvisited = roots.overvisited.len();
        for &granule in &roots.overvisited {
            // SAFETY: a candidate is alive, and the world is stopped.
            unsafe { core.model.overvisited(count::object_at(&core.space, granule as usize)) };
        }
        mark::mark(world, &scope, &mut counts, roots, workers)
    });
    if let Err(abandoned) = result {
        count::wipe(&core.space, &scope.pages);
        return Err(abandoned);
    }
    let found = mark::sweep(world, &scope, workers);
    report.unreachable = found.len();
    match report.kind {
        CollectionKind::Young => core.pace.after_young(report.candidates, found.len()),
        CollectionKind::Full => core.pace.after_full(report.candidates, found.len()),
    }
    let unreachable = finalize::claim(world, found);
    if core.stress {
        verify::check(world, verify::Depth::Structure).unwrap_or_else(|e| panic!("in a collection: {e}"));
    }
    Ok(unreachable)
}

/// Step 2. Objects whose count turns out to be 0 are dying from here on: no candidates.
fn merge<M: ObjectModel>(world: &World<'_, M>, dead: &mut Vec<Object>) {
    let _phase = event::phase(Phase::Merge);
    let core = world.core();
    let before = dead.len();
    core.model.merge(world, dead);
    for object in &dead[before..] {
        // SAFETY: the model has not freed them.
        unsafe { core.state(object.address()) }.set(tracked::DYING);
    }
}

/// Resumes the world, and notes what the stop cost.
fn leave<M: ObjectModel>(world: World<'_, M>, report: &mut CollectionReport) {
    report.time_to_stop = report.time_to_stop.max(world.time_to_stop());
    let since = Instant::now();
    let stopped = world.elapsed();
    drop(world);
    report.stops.push(stopped + since.elapsed().min(Duration::from_millis(1)));
}

/// Destroys what the merge found dead, also when the collection was abandoned.
fn bury<M: ObjectModel>(dead: Vec<Object>, m: &ModelMutator<M>) {
    for object in dead {
        // SAFETY: it was given to this collection alone, and the world is running.
        unsafe {
            m.core().state(object.address()).unset(tracked::DYING);
            m.model().bury(object, m);
        }
    }
}

fn give_up<M: ObjectModel>(m: &ModelMutator<M>, report: &mut CollectionReport, why: Abandoned) {
    m.core().hooks.unraisable(
        During::Traverse,
        why.type_name,
        format!("the collection was abandoned: {}", why.reason),
    );
    report.abandoned = Some(why.reason);
}

/// Calls `f` with each object that an enumeration may show.
pub(crate) fn visible<M: ObjectModel>(world: &World<'_, M>, mut f: impl FnMut(Object, State<'_>)) {
    live(world, |object, state| {
        if tracked::is_visible(state.get()) {
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
            if state.get() & tracked::LIVE != 0 {
                f(count::object_at(space, granule), state);
            }
        }
    }
}
