//! `Phase::Sweep`: listing the candidates that marking did not reach.
//!
//! 1. All workers, page by page: the objects age, and the unmarked candidates are counted.
//! 2. One thread: the pages with unmarked candidates are sorted by address. Each receives its part
//!    of a list that has room for all.
//! 3. All workers, page by page: the unmarked candidates are written into the list.
//!
//! So the list is in the order of memory regardless of the division of work, and no part of it is
//! copied.

use crate::collect::candidates::Candidates;
use crate::collect::work_list::WorkList;
use crate::object::live::Stopped;
use std::ops::Range;
use std::ptr::NonNull;

use crate::base::event::{self, Phase};
use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering};
use crate::collect::scope::{Scope, granules_of, object_at};
use crate::collect::table::{LANES, exclusively};
use crate::heap::mark_tables::{PAGE_WORDS, each_bit};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::reserved::AddressMap;
use crate::memory::space::{PAGE_GRANULES, Space};
use crate::object::state::{self, StateByte};

/// The unmarked candidates, in the order of memory.
pub(crate) struct Swept<'w> {
    pub(crate) objects: Vec<Stopped<'w>>,
    /// The objects of each page, for sharing.
    pub(crate) pages: WorkList<Part>,
}

/// The objects of one page in the list.
#[derive(Debug)]
pub(crate) struct Part {
    page: u32,
    pub(crate) range: Range<usize>,
}

/// The phase `Sweep`. Lists the unmarked candidates, and ages all objects.
///
/// Without memory for the list the collection is over: reached objects have aged, and the unmarked
/// candidates are new.
pub(crate) fn sweep<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    scope: &Scope,
    candidates: &Candidates,
    workers: usize,
) -> Result<Swept<'w>, NoMemory> {
    let _phase = event::phase(Phase::Sweep);
    let space = &world.core().space;
    let swept = age_and_count(world, scope, candidates, workers)
        .and_then(|pages| list(world, candidates, pages, workers));
    magazines_stay_young(world);
    if swept.is_err() {
        // A later collection must examine the new objects that were not reached. Those that were
        // old become new too.
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

/// Ages all objects. Returns the pages with unmarked candidates, each with their number.
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
            steps::took(PAGE_WORDS);
            let unmarked = candidates.unmarked_on(page).map(|(_, bits)| bits.count_ones() as usize);
            match unmarked.sum() {
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

/// Ages the objects of a page, if some are young.
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

/// Lists the unmarked candidates of `pages`, which has their numbers.
fn list<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    candidates: &Candidates,
    mut pages: Vec<(u32, usize)>,
    workers: usize,
) -> Result<Swept<'w>, NoMemory> {
    /// The first of the list's places.
    struct ListMemory<'w>(NonNull<Stopped<'w>>);
    // SAFETY: rule *bounds*: each place belongs to one part, which one worker writes.
    unsafe impl Sync for ListMemory<'_> {}

    let space = &world.core().space;
    steps::took(pages.len());
    // Unstable, since the stable sort allocates.
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

/// A cell in a magazine becomes an object without another change to its page: such pages stay
/// young.
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

/// The state of an object when its page stops being young. A tracked object becomes old, even if it
/// is frozen.
#[inline(always)]
fn aged(state: u8) -> u8 {
    state | if state & state::TRACKED != 0 { state::OLD } else { 0 }
}

/// Makes all new objects old without a traversal, like the sweep of a young collection that found
/// no garbage. Returns the number of candidates among them.
///
/// It allocates no memory. One thread does the work, which takes about a nanosecond for an object.
pub(crate) fn promote<M: ObjectModel>(world: &World<'_, M>) -> usize {
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

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use super::*;
    use crate::base::event::CollectionKind;
    use crate::object::state::StateByte;
    use crate::object::type_info::Object;
    use crate::object::type_info::Tracer;

    /// A stopped heap of tracked objects that fill a page each, and all of its pages.
    pub(crate) fn stopped(
        pages: usize,
        f: impl FnOnce(&World<'_, crate::managed::Managed>, &Scope, &[usize]),
    ) {
        use crate::{Gc, GcCell, Heap, Pacing, Trace};

        #[expect(dead_code, reason = "the numbers are there to fill the page")]
        struct Page(GcCell<Option<Gc<Page>>>, [u64; 6_000]);
        impl Trace for Page {
            fn traverse(this: &Self, tracer: &mut Tracer) {
                Trace::traverse(&this.0, tracer);
            }
        }

        let heap =
            Heap::builder().workers(3).serial_below(0).pacing(Pacing::manual()).build().unwrap();
        let m = heap.attach();
        let kept: Vec<_> =
            (0..pages).map(|_| m.alloc(Page(GcCell::default(), [0; 6_000]))).collect();
        let world = m.raw().stop_here().expect("no other thread");
        let space = &world.core().space;
        let scope = Scope::new(space, CollectionKind::Full).expect("memory");
        let granules: Vec<usize> =
            scope.pages().iter().flat_map(|&page| granules_of(space, page)).flatten().collect();
        assert_eq!((granules.len(), scope.pages().len()), (pages, pages));
        f(&world, &scope, &granules);
        drop(world);
        drop(kept);
    }

    #[test]
    fn the_sweep_lists_open_candidates_and_ages_the_rest() {
        stopped(40, |world, scope, granules| {
            let space = &world.core().space;
            let states = space.states();
            let state = |place: usize| StateByte(&states[granules[place]]).get();
            for workers in [1, 3] {
                for &at in granules {
                    StateByte(&states[at]).unset(state::OLD);
                }
                // Frozen, so not a candidate.
                StateByte(&states[granules[4]]).set(state::FROZEN);
                for (at, &page) in scope.pages().iter().enumerate() {
                    // Objects on a page that is not young are old.
                    let is_young = at != 1;
                    space.page(page as usize).young.store(is_young.into(), Ordering::Relaxed);
                }
                let candidates = Candidates::new(world, scope, workers).expect("memory");
                assert_eq!(candidates.count, 39);
                for &at in
                    granules.iter().enumerate().filter(|(at, _)| at % 4 != 0).map(|(_, at)| at)
                {
                    assert!(candidates.mark_alone(at));
                }
                let found = sweep(world, scope, &candidates, workers).expect("memory");
                candidates.close(world, scope);
                let expected: Vec<Object> = (0..40)
                    .filter(|place| place % 4 == 0 && *place != 4)
                    .map(|place| object_at(space, granules[place]))
                    .collect();
                assert_eq!(Stopped::objects(&found.objects), expected, "in the order of memory");
                let mut parts: Vec<_> =
                    found.pages.items().iter().map(|part| part.range.clone()).collect();
                parts.sort_unstable_by_key(|part| part.start);
                assert!(parts.into_iter().eq((0..9).map(|at| at..at + 1)), "one for each page");
                for place in 0..40 {
                    assert_eq!(state(place) & state::OLD != 0, place != 1, "{place}");
                }
                let is_young =
                    |&&page: &&u32| space.page(page as usize).young.load(Ordering::Relaxed) != 0;
                assert_eq!(
                    scope.pages().iter().filter(is_young).count(),
                    0,
                    "no page has a magazine"
                );
                StateByte(&states[granules[4]]).unset(state::FROZEN);
            }
        });
    }

    /// Pages are distributed by arena: one thread reaches pages of high addresses first.
    #[test]
    fn what_the_sweep_lists_goes_up_where_pages_come_in_another_order() {
        stopped(8, |world, _, granules| {
            let space = &world.core().space;
            let mut scope = Scope::new(space, CollectionKind::Full).expect("memory");
            let pages = scope.pages().to_vec();
            let arena = space.page(pages[0] as usize).arena();
            // SAFETY: rule *stopped*: the world is stopped.
            let own = |page: u32, arena: u32| unsafe { space.info(page).set_arena(arena) };
            pages[4..].iter().for_each(|&page| own(page, arena + 1));
            scope.sort_by_home(space).expect("memory");
            assert_eq!(scope.pages(), [&pages[4..], &pages[..4]].concat());
            for is_garbage in [false, true] {
                let candidates = Candidates::new(world, &scope, 1).expect("memory");
                if !is_garbage {
                    assert!(granules.iter().all(|&at| candidates.mark_alone(at)));
                }
                let found = sweep(world, &scope, &candidates, 1).expect("memory");
                candidates.close(world, &scope);
                let all = granules.iter().map(|&at| object_at(space, at)).filter(|_| is_garbage);
                assert!(
                    Stopped::objects(&found.objects).iter().copied().eq(all),
                    "in the order of memory"
                );
            }
            pages[4..].iter().for_each(|&page| own(page, arena));
        });
    }

    #[test]
    fn a_promotion_makes_each_young_object_old_and_counts_it() {
        stopped(10, |world, scope, granules| {
            let space = &world.core().space;
            let states = space.states();
            let is_old = |place: usize| StateByte(&states[granules[place]]).get() & state::OLD != 0;
            // Frozen objects age, and are not candidates.
            StateByte(&states[granules[3]]).set(state::FROZEN);
            assert!(!(0..10).any(is_old));
            // A page that is not young has no young object: it is skipped.
            let page = space.page(scope.pages()[5] as usize);
            page.young.store(0, Ordering::Relaxed);
            assert_eq!(promote(world), 8);
            assert!((0..10).all(|place| is_old(place) == (place != 5)));
            StateByte(&states[granules[3]]).unset(state::FROZEN);
            assert!(
                scope.pages().iter().all(|&page| space
                    .page(page as usize)
                    .young
                    .load(Ordering::Relaxed)
                    == 0)
            );
            assert_eq!(promote(world), 0, "nothing is new");
            page.young.store(1, Ordering::Relaxed);
            assert_eq!(promote(world), 1);
        });
    }
}
