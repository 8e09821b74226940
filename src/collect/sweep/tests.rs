//! Tests of `collect/sweep.rs`.

use super::*;
use crate::object::address::Object;
use crate::object::state::StateByte;
use crate::object::tracer::Tracer;
use crate::report::facts::CollectionKind;

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

    let heap = Heap::builder().workers(3).serial_below(0).pacing(Pacing::manual()).build().unwrap();
    let m = heap.attach();
    let kept: Vec<_> = (0..pages).map(|_| m.alloc(Page(GcCell::default(), [0; 6_000]))).collect();
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
            for &at in granules.iter().enumerate().filter(|(at, _)| at % 4 != 0).map(|(_, at)| at) {
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
            assert_eq!(scope.pages().iter().filter(is_young).count(), 0, "no page has a magazine");
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
        assert_eq!(age_all(world), 8);
        assert!((0..10).all(|place| is_old(place) == (place != 5)));
        StateByte(&states[granules[3]]).unset(state::FROZEN);
        assert!(
            scope.pages().iter().all(|&page| space
                .page(page as usize)
                .young
                .load(Ordering::Relaxed)
                == 0)
        );
        assert_eq!(age_all(world), 0, "nothing is new");
        page.young.store(1, Ordering::Relaxed);
        assert_eq!(age_all(world), 1);
    });
}
