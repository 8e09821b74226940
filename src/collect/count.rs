//! Steps 4 and 5a: counting the references that candidates hold to each other, and telling roots.
//!
//! Candidates are walked in address order. Each edge into the set counts *up* in a side table of one byte an
//! object; nothing is copied out of the objects beforehand, and nothing is written into them. A byte that
//! wraps carries 256 into a small map (*spills*), so counts are exact, also for hubs. Each worker counts
//! into a table of its own; the tables are added afterwards, without a locked instruction anywhere.
//!
//! A candidate whose real count *differs* from what was counted is a root: more references exist than the
//! set explains, or (a traversal that visits too much) fewer, and doubt keeps it alive. The byte then
//! becomes the mark: 1 for roots and for whatever must not be visited, 0 for the rest.

use std::collections::HashMap;

use crate::event::{self, CollectionKind, Phase};
use crate::model::ObjectModel;
use crate::mutator::World;
use crate::object::{Object, Tracer};
use crate::space::{GRANULE, PAGE_GRANULES, PageKind, Space};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::tracked::{self, State};

/// Edges that are buffered before they are counted.
const BATCH: usize = 512;
/// Pages that a worker takes at a time.
const CHUNK: usize = 4;

/// Why a collection cannot go on.
#[derive(Debug)]
pub(crate) struct Abandoned {
    pub(crate) reason: String,
    pub(crate) type_name: &'static str,
}

/// What a collection looks at: the pages, and which objects on them are candidates.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) kind: CollectionKind,
    pub(crate) pages: Vec<u32>,
}

impl Scope {
    /// The pages in use; for a young collection, those on which something may be new.
    pub(crate) fn new(space: &Space, kind: CollectionKind) -> Self {
        let pages = (0..space.high_water())
            .filter(|&index| {
                let page = space.page(index);
                matches!(page.shape().kind(), PageKind::Small | PageKind::Large)
                    // Relaxed: in a stop.
                    && (kind == CollectionKind::Full || page.young.load(Ordering::Relaxed) != 0)
            })
            .map(|index| index as u32)
            .collect();
        Self { kind, pages }
    }

    /// Whether an object in this state is a candidate.
    #[inline(always)]
    pub(crate) fn contains(&self, state: u8) -> bool {
        match self.kind {
            CollectionKind::Full => tracked::is_candidate(state),
            CollectionKind::Young => tracked::is_young_candidate(state),
        }
    }

    /// Upper bound of the number of candidates, for deciding how many workers are worth it.
    pub(crate) fn cells(&self, space: &Space) -> usize {
        self.pages.iter().map(|&p| space.starts(p as usize).len()).sum()
    }

    /// Hands the pages out to workers, a few at a time.
    pub(crate) fn share(&self) -> Share<'_> {
        Share { pages: &self.pages, next: AtomicUsize::new(0) }
    }
}

/// The pages of a scope, being handed out.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    pages: &'a [u32],
    next: AtomicUsize,
}

impl<'a> Share<'a> {
    /// The next few pages; `None`: all are handed out.
    pub(crate) fn take(&self) -> Option<&'a [u32]> {
        // Relaxed: only the number must be unique; `Workers::run` orders everything else.
        let start = self.next.fetch_add(CHUNK, Ordering::Relaxed);
        if start >= self.pages.len() {
            return None;
        }
        Some(&self.pages[start..(start + CHUNK).min(self.pages.len())])
    }
}

/// The object that starts at a granule.
#[inline(always)]
pub(crate) fn object_at(space: &Space, granule: usize) -> Object {
    debug_assert!(granule < space.reserved_bytes() / GRANULE);
    // SAFETY: granules come from `Space::starts` and from edges, which were checked against the range.
    Object::new(unsafe { space.cell(granule) })
}

/// Where a worker counts.
trait Table {
    /// Counts one reference; `true`: the byte has wrapped.
    fn add(&mut self, granule: usize) -> bool;
}

/// The heap's own table, for one worker at a time.
impl Table for &[crate::sync::AtomicU8] {
    #[inline(always)]
    fn add(&mut self, granule: usize) -> bool {
        // Relaxed load and store: one worker, or the stop.
        let more = self[granule].load(Ordering::Relaxed).wrapping_add(1);
        self[granule].store(more, Ordering::Relaxed);
        more == 0
    }
}

/// A worker's private table.
impl Table for Vec<u8> {
    #[inline(always)]
    fn add(&mut self, granule: usize) -> bool {
        self[granule] = self[granule].wrapping_add(1);
        self[granule] == 0
    }
}

/// References beyond what a byte holds, in multiples of 256, by granule.
type Spills = HashMap<u32, i64>;

/// What counting found.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) tracked: usize,
    pub(crate) candidates: usize,
    spills: Spills,
    /// Objects with a field that could not be read: none of their edges were counted, so all their targets
    /// are roots, and marking need not look at them.
    pub(crate) unreadable: Vec<u32>,
    /// What each object was seen to refer to, by granule: for models whose traversals do not repeat
    /// themselves ([`ObjectModel::STABLE_DURING_STOP`]). Marking must follow what was counted.
    pub(crate) kept: HashMap<u32, Box<[u32]>>,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.tracked += other.tracked;
        self.candidates += other.candidates;
        for (granule, carry) in other.spills {
            *self.spills.entry(granule).or_default() += carry;
        }
        self.unreadable.extend(other.unreadable);
        self.kept.extend(other.kept);
    }
}

/// Runs `scan` over objects and turns a panic of a traversal into [`Abandoned`]. `at` says which object is
/// being traversed.
pub(crate) fn guard_traversal<M: ObjectModel>(
    world: &World<'_, M>,
    scan: impl FnOnce(&mut Option<Object>),
) -> Result<(), Abandoned> {
    let mut at = None;
    // Inside, `current` is 0: clones count shared, drops are deferred, attaching is refused.
    let guard = crate::safepoint::traversing();
    let result = event::guarded(|| scan(&mut at));
    drop(guard);
    result.map_err(|payload| Abandoned {
        reason: event::panic_message(&*payload),
        // SAFETY: the object was a candidate, hence alive, and nothing is freed in a stop.
        type_name: at.map_or("", |object| unsafe { world.core().model.type_name(object) }),
    })
}

/// Step 4. Counts the edges between the scope's candidates into the side table.
pub(crate) fn count<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    workers: usize,
) -> Result<Counts, Abandoned> {
    let _phase = event::phase(Phase::Count);
    let core = world.core();
    let share = scope.share();
    let total = Mutex::new((Counts::default(), Vec::new()));
    let failed = Mutex::new(None);
    let stop = AtomicBool::new(false);
    core.workers.run(workers, &|index| {
        let mut counts = Counts::default();
        let mut private = None;
        let result = guard_traversal(world, |at| {
            if index == 0 {
                count_share(world, scope, &share, &stop, &mut core.space.counts(), &mut counts, at);
            } else {
                let table = private.insert(core.workers.take_table(core.space.counts().len()));
                count_share(world, scope, &share, &stop, table, &mut counts, at);
            }
        });
        if let Err(abandoned) = result {
            // Relaxed: a hint to hurry; the lock carries the reason.
            stop.store(true, Ordering::Relaxed);
            failed.lock().get_or_insert(abandoned);
        }
        let mut total = total.lock();
        total.0.add(counts);
        total.1.extend(private);
    });
    let (mut counts, tables) = std::mem::take(&mut *total.lock());
    merge_tables(world, scope, workers, tables, &mut counts);
    match failed.lock().take() {
        Some(abandoned) => Err(abandoned),
        None => Ok(counts),
    }
}

fn count_share<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    share: &Share<'_>,
    stop: &AtomicBool,
    table: &mut impl Table,
    counts: &mut Counts,
    at: &mut Option<Object>,
) {
    let (space, model) = (&world.core().space, &world.core().model);
    let states = space.states();
    let mut tracer = Tracer::new(space.base(), space.reserved_bytes());
    let young = scope.kind == CollectionKind::Young;
    let mut flush = |tracer: &mut Tracer, spills: &mut Spills| {
        for &edge in tracer.edges() {
            let granule = space.granule(edge);
            // In a full collection every tracked object is a candidate, and a byte counted for another is
            // ignored. In a young one, edges to old objects must leave the table alone: it stays zero there.
            if young && !tracked::is_young_candidate(State(&states[granule]).get()) {
                continue;
            }
            if table.add(granule) {
                *spills.entry(granule as u32).or_default() += 256;
            }
        }
        tracer.clear();
    };
    while let Some(pages) = share.take() {
        // Relaxed: see where it is set.
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for &page in pages {
            for granule in space.starts(page as usize) {
                let state = State(&states[granule]).get();
                if !scope.contains(state) {
                    counts.tracked += usize::from(tracked::is_candidate(state));
                    continue;
                }
                let object = object_at(space, granule);
                counts.tracked += 1;
                counts.candidates += 1;
                *at = Some(object);
                let mark = tracer.mark();
                // SAFETY: a candidate is alive, and the world is stopped.
                unsafe { model.traverse(object, &mut tracer) };
                if tracer.take_unreadable() {
                    tracer.truncate(mark);
                    counts.unreadable.push(granule as u32);
                }
                if !M::STABLE_DURING_STOP {
                    let edges = tracer.edges()[mark..].iter().map(|&edge| space.granule(edge) as u32);
                    counts.kept.insert(granule as u32, edges.collect());
                }
                if tracer.mark() >= BATCH {
                    flush(&mut tracer, &mut counts.spills);
                }
            }
        }
    }
    flush(&mut tracer, &mut counts.spills);
}

/// Adds the workers' private tables to the heap's, and leaves them zero.
fn merge_tables<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    workers: usize,
    mut tables: Vec<Vec<u8>>,
    counts: &mut Counts,
) {
    if tables.is_empty() {
        return;
    }
    let core = world.core();
    let main = core.space.counts();
    let share = scope.share();
    let spilled = Mutex::new(Vec::new());
    core.workers.run(workers, &|_| {
        let mut carries = Vec::new();
        while let Some(pages) = share.take() {
            for &page in pages {
                if let Some(range) = granules_of(&core.space, page) {
                    for table in &tables {
                        add_bytes(&main[range.clone()], &table[range.clone()], |at| {
                            carries.push((range.start + at) as u32);
                        });
                    }
                }
            }
        }
        spilled.lock().extend(carries);
    });
    for granule in std::mem::take(&mut *spilled.lock()) {
        *counts.spills.entry(granule).or_default() += 256;
    }
    for mut table in tables.drain(..) {
        for &page in &scope.pages {
            if let Some(range) = granules_of(&core.space, page) {
                table[range].fill(0);
            }
        }
        core.workers.give_table(table);
    }
}

/// The table entries that a page's objects can have: the whole page, or a large object's one.
fn granules_of(space: &Space, page: u32) -> Option<std::ops::Range<usize>> {
    let start = page as usize * PAGE_GRANULES;
    match space.page(page as usize).shape().kind() {
        PageKind::Small => Some(start..start + PAGE_GRANULES),
        PageKind::Large => space.starts(page as usize).next().map(|g| g..g + 1),
        _ => None,
    }
}

fn add_bytes(main: &[crate::sync::AtomicU8], table: &[u8], mut carry: impl FnMut(usize)) {
    for (at, (sum, &add)) in main.iter().zip(table).enumerate() {
        if add != 0 {
            // Relaxed: this page is this worker's.
            let (now, wrapped) = sum.load(Ordering::Relaxed).overflowing_add(add);
            sum.store(now, Ordering::Relaxed);
            if wrapped {
                carry(at);
            }
        }
    }
}

/// Zeroes the side table where the scope used it.
pub(crate) fn wipe(space: &Space, pages: &[u32]) {
    let counts = space.counts();
    for &page in pages {
        if let Some(range) = granules_of(space, page) {
            for count in &counts[range] {
                // Relaxed: this page is this worker's.
                count.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// What stands in for the world outside: the candidates to start marking from.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// By worker, each in address order.
    pub(crate) stacks: Vec<Vec<u32>>,
    pub(crate) overvisited: usize,
}

/// Step 5a. Compares the counts and turns the table into marks.
pub(crate) fn roots<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    counts: &Counts,
    workers: usize,
) -> Roots {
    let _phase = event::phase(Phase::Roots);
    let core = world.core();
    let (space, model) = (&core.space, &core.model);
    let (states, marks) = (space.states(), space.counts());
    // Whether a hub's references explain its count, decided once and exactly.
    let hubs: HashMap<u32, (i64, Option<i64>)> = counts
        .spills
        .iter()
        .map(|(&granule, &carry)| {
            let internal = carry + i64::from(marks[granule as usize].load(Ordering::Relaxed));
            // SAFETY: an edge led to it, so it is alive; the world is stopped.
            (granule, (internal, unsafe { model.count(object_at(space, granule as usize)) }))
        })
        .collect();
    let share = scope.share();
    let all = Mutex::new(Roots::default());
    core.workers.run(workers, &|_| {
        let mut stack = Vec::new();
        let mut overvisited = 0;
        while let Some(pages) = share.take() {
            for &page in pages {
                for granule in space.starts(page as usize) {
                    let state = State(&states[granule]);
                    let bits = state.get();
                    if !scope.contains(bits) {
                        if bits & tracked::LIVE != 0 {
                            marks[granule].store(1, Ordering::Relaxed);
                        }
                        continue;
                    }
                    // SAFETY: a candidate is alive, and the world is stopped.
                    let count = unsafe { model.count(object_at(space, granule)) };
                    let mut internal = i64::from(marks[granule].load(Ordering::Relaxed));
                    if count.is_none_or(|n| n >= 256)
                        && let Some((exact, _)) = hubs.get(&(granule as u32))
                    {
                        internal = *exact;
                    }
                    let is_root = match count {
                        Some(n) => {
                            overvisited += usize::from(n < internal);
                            n != internal
                        }
                        None => {
                            // An immortal needs no collector: what it refers to counts as held from outside
                            // from the next collection on.
                            state.untrack();
                            true
                        }
                    };
                    marks[granule].store(u8::from(is_root), Ordering::Relaxed);
                    if is_root {
                        stack.push(granule as u32);
                    }
                }
            }
        }
        let mut all = all.lock();
        all.overvisited += overvisited;
        all.stacks.push(stack);
    });
    let mut roots = std::mem::take(&mut *all.lock());
    // Objects with few references of which a traversal claims hundreds: the bytes alone cannot tell.
    for (granule, (internal, count)) in hubs {
        if count.is_some_and(|n| n < 256 && n != internal)
            && scope.contains(State(&states[granule as usize]).get())
            && marks[granule as usize].swap(1, Ordering::Relaxed) == 0
        {
            roots.stacks.push(vec![granule]);
            roots.overvisited += 1;
        }
    }
    roots
}
