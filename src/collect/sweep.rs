//! `Phase::Sweep`, which lists the candidates that marking did not reach. The list has a fixed
//! place for each object, so that several workers can write it at once.
//!
//! 1. All workers, page by page, let the objects age, and count the unmarked candidates. For
//!    example, page 1 has A and B, and page 2 has C.
//! 2. One thread sorts these pages by address, and gives each a part of a list that has room for
//!    all. Page 1 gets the places 0 and 1, and page 2 the place 2.
//! 3. All workers, page by page, write the unmarked candidates into the page's places.
//!
//! So the list is in the order of memory, whichever worker had a page, and no part of it is copied.
//!
//! A *promotion* makes new objects old without a collection, so that none is traversed.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering};
use crate::collect::candidates::Candidates;
use crate::collect::collection::{self, prepare};
use crate::collect::reclaim::CollectorGuard;
use crate::collect::scope::{LANES, Scope, WorkList, exclusively, granules_of, object_at};
use crate::collect::{calls, open_report};
use crate::heap::mark_tables::{PAGE_WORDS, each_bit};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::pacing::Due;
use crate::heap::request::CollectError;
use crate::heap::world::World;
use crate::memory::address_map::AddressMap;
use crate::memory::shape::PAGE_GRANULES;
use crate::memory::space::Space;
use crate::object::live::Stopped;
use crate::object::state::{self, StateByte};
use crate::report::facts::{CollectionKind, Phase};
use crate::report::{event, log};
use crate::safepoint::{StopError, StopPurpose, StopRequest};

pub(crate) struct Swept<'w> {
    pub(crate) objects: Vec<Stopped<'w>>,
    /// The objects of each page, for sharing.
    pub(crate) pages: WorkList<Part>,
}

#[derive(Debug)]
pub(crate) struct Part {
    page: u32,
    pub(crate) range: Range<usize>,
}

/// The phase `Sweep`, which lists the unmarked candidates, and ages all objects.
///
/// Without memory for the list the collection is over. The reached objects have aged, and the
/// unmarked candidates are new, so that a later collection examines them.
pub(crate) fn sweep<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    scope: &Scope,
    candidates: &Candidates,
    workers: usize,
) -> Result<Swept<'w>, NoMemory> {
    let _phase = world.core().phase(Phase::Sweep);
    let space = &world.core().space;
    let swept = age_and_count(world, scope, candidates, workers)
        .and_then(|pages| list(world, candidates, pages, workers));
    magazines_stay_young(world);
    if swept.is_err() {
        // A later collection must examine the new objects that were not reached, so the unmarked
        // ones become new, even if they were old.
        for &page in scope.pages() {
            space.page(page as usize).young.store(1, Ordering::Relaxed);
            for (first, bits) in candidates.unmarked_on(page) {
                each_bit(first, bits, |at| {
                    StateByte(&space.states()[at]).change_plainly(0, state::OLD);
                });
            }
        }
    }
    swept
}

/// Ages all objects, and returns the pages with unmarked candidates, each with their number.
fn age_and_count<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    candidates: &Candidates,
    workers: usize,
) -> Result<Vec<(u32, usize)>, NoMemory> {
    let core = world.core();
    let share = scope.share(workers);
    let all = Mutex::new((Vec::new(), Ok(())));
    let _table = core.collector_lock.lock_states();
    world.share(workers, &|worker| {
        let (mut mine, mut outcome) = (Vec::new(), Ok(()));
        for &page in share.of(worker).flatten() {
            match unmarked_on(candidates, page) {
                0 => {}
                number => outcome = outcome.and(fallible::push(&mut mine, (page, number))),
            }
            age(&core.space, page);
        }
        let (pages, result) = &mut *all.lock();
        *result = result.and(outcome).and(fallible::append(pages, &mut mine));
    });
    let (pages, result) = std::mem::replace(&mut *all.lock(), (Vec::new(), Ok(())));
    result.map(|()| pages)
}

fn age(space: &Space<impl AddressMap>, page: u32) {
    let info = space.page(page as usize);
    // Relaxed: in a stop.
    if info.young.load(Ordering::Relaxed) == 0 {
        return;
    }
    info.young.store(0, Ordering::Relaxed);
    let Some(range) = granules_of(space, page) else { return };
    steps::took(range.len());
    let age = |states: &mut [u8]| states.iter_mut().for_each(|state| *state = aged(*state));
    // SAFETY: rule *stopped*: only this worker accesses the page. The caller's lock keeps threads
    // away that count live objects.
    unsafe { exclusively(&space.states()[range], age) };
}

/// The phase `Sweep` without ageing.
pub(super) fn list_unmarked<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    scope: &Scope,
    candidates: &Candidates,
    workers: usize,
) -> Result<Swept<'w>, NoMemory> {
    let _phase = world.core().phase(Phase::Sweep);
    let mut pages = Vec::new();
    for &page in scope.pages() {
        match unmarked_on(candidates, page) {
            0 => {}
            number => fallible::push(&mut pages, (page, number))?,
        }
    }
    list(world, candidates, pages, workers)
}

/// The number of unmarked candidates on a page.
fn unmarked_on(candidates: &Candidates, page: u32) -> usize {
    steps::took(PAGE_WORDS);
    candidates.unmarked_on(page).map(|(_, bits)| bits.count_ones() as usize).sum()
}

/// Lists the unmarked candidates of `pages`, which has their numbers.
fn list<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    candidates: &Candidates,
    mut pages: Vec<(u32, usize)>,
    workers: usize,
) -> Result<Swept<'w>, NoMemory> {
    struct ListMemory<'w>(NonNull<Stopped<'w>>);
    // SAFETY: rule *bounds*: each place belongs to one part, which one worker writes.
    unsafe impl Sync for ListMemory<'_> {}

    let space = &world.core().space;
    steps::took(pages.len());
    // Unstable, because the stable sort allocates.
    pages.sort_unstable_by_key(|&(page, _)| space.address(page as usize * PAGE_GRANULES));
    let mut parts = Vec::new();
    parts.try_reserve_exact(pages.len())?;
    let mut end = 0;
    for (page, number) in pages {
        parts.push(Part { page, range: end..end + number });
        end += number;
    }
    let arena = |part: &Part| space.page(part.page as usize).arena();
    let pages = WorkList::by_arena(parts, arena, |part| part.range.start)?;
    let mut objects = Vec::new();
    objects.try_reserve_exact(end)?;
    let list = ListMemory(NonNull::from(objects.spare_capacity_mut()).cast());
    let share = pages.share(1);
    world.share(workers.min(pages.items().len().max(1)), &|worker| {
        let list = &list;
        for part in share.of(worker).flatten() {
            steps::took(PAGE_WORDS + part.range.len());
            let mut places = part.range.clone();
            for (first, bits) in candidates.unmarked_on(part.page) {
                each_bit(first, bits, |granule| {
                    let place = places.next().expect("a place for each counted object");
                    // SAFETY: rule *stopped*: a candidate is alive. Rule *bounds*: there is room
                    // for all parts. No other worker has this part.
                    unsafe {
                        list.0.add(place).write(Stopped::new(object_at(space, granule)));
                    }
                });
            }
            assert!(places.is_empty(), "an object for each place");
        }
    });
    // SAFETY: rule *bounds*: the workers have written all parts, which have `end` places.
    unsafe { objects.set_len(end) };
    Ok(Swept { objects, pages })
}

/// A cell in a magazine becomes an object without a change to its page, so such pages stay young.
fn magazines_stay_young<M: ObjectModel>(world: &World<'_, M>) {
    let space = &world.core().space;
    world.arenas(|arena| {
        arena.for_each_cached(|cell| {
            steps::took(1);
            let page = space.page_index(cell.as_ptr() as usize);
            space.page(page).young.store(1, Ordering::Relaxed);
        });
    });
}

/// The state of an object when its page stops being young: a tracked object becomes old, even if it
/// is frozen.
#[inline(always)]
fn aged(state: u8) -> u8 {
    state | if state & state::TRACKED != 0 { state::OLD } else { 0 }
}

/// Makes all new objects old without a traversal, like the sweep of a young collection that found
/// no garbage. Returns the number of candidates among them.
///
/// It allocates no memory, and one thread is enough, because the work takes about a nanosecond for
/// an object.
pub(super) fn age_all<M: ObjectModel>(world: &World<'_, M>) -> usize {
    let core = world.core();
    let (space, states) = (&core.space, core.space.states());
    let mut promoted = 0;
    let _table = core.collector_lock.lock_states();
    steps::took(space.high_water());
    for page in 0..space.high_water() {
        let info = space.page(page);
        // Relaxed: in a stop.
        if info.young.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Some(range) = granules_of(space, page as u32) else { continue };
        info.young.store(0, Ordering::Relaxed);
        steps::took(range.len());
        let age = |states: &mut [u8]| {
            for lane in states.chunks_mut(LANES) {
                let mut young = 0;
                for state in lane {
                    young += u8::from(state::is_young_candidate(*state));
                    *state = aged(*state);
                }
                promoted += usize::from(young);
            }
        };
        // SAFETY: rule *stopped*: this thread is the only worker. The lock keeps threads away that
        // count live objects.
        unsafe { exclusively(&states[range], age) };
    }
    magazines_stay_young(world);
    promoted
}

/// A young collection or a promotion is due, although the model has neither. The new objects count
/// as old from now on, so that a full collection becomes due. If another thread collects, it counts
/// them.
pub(crate) fn skip_young<M: ObjectModel>(m: &ModelMutator<M>) {
    if let Some(_guard) = CollectorGuard::try_acquire(m.core()) {
        m.core().pace.skip_young();
    }
}

/// Makes all new objects old without traversing them, if a promotion is due and no other thread
/// collects: see [`pacing`](crate::heap::pacing). A promotion calls no callbacks, because it is no
/// collection, although its stop merges counts too.
pub(crate) fn promote<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), CollectError> {
    let _guard = CollectorGuard::try_acquire(m.core()).ok_or(CollectError::Busy)?;
    // Another thread may have collected or promoted since this thread found the promotion due.
    if m.core().pace.due() != Due::Promotion {
        return Ok(());
    }
    Ok(promote_now(m)?)
}

/// Promotes all new objects, while the caller holds the collector lock.
pub(crate) fn promote_now<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), StopError> {
    let core = Arc::clone(m.core());
    let _span = event::promotion(&core.name);
    prepare(m);
    m.free_left_memory();
    let mut dead = Vec::new();
    let world = m
        .stop_by(StopRequest::from(StopPurpose::Promotion).within(core.stop_limit))
        .inspect_err(|error| open_report::stop_failed(&core, CollectionKind::Young, error))?;
    #[expect(
        clippy::let_underscore_must_use,
        reason = "without memory for its list, the next collection merges"
    )]
    let _ = collection::merge_counts(&world, &mut dead);
    let promoted = age_all(&world);
    core.pace.after_promotion(promoted);
    // Relaxed: figures.
    core.totals.promotions.fetch_add(1, Ordering::Relaxed);
    if let Some(verifier) = core.verifier {
        verifier.verify(&world, "after a promotion");
    }
    let stopped = world.elapsed();
    drop(world);
    collection::destroy_merged(dead, m);
    calls::resumed(m);
    event::promoted(promoted, stopped);
    log::promotion(&core.name, promoted, stopped);
    Ok(())
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests;
