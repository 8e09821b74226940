//! Tests of `collect/scope.rs`.

#![forbid(unsafe_code)]

mod work_list;

use super::*;
use crate::collect::scope::wipe;
use crate::heap::helpers::Worker;
use crate::managed::Managed;
use crate::memory::shape::PAGE_SIZE;
use crate::object::tracer::Tracer;
use crate::{AnyGc, Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// A tracked object of any size.
struct Item<const N: usize>(GcCell<Option<Gc<Item<N>>>>, [u64; N]);

impl<const N: usize> Trace for Item<N> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

/// A heap with several pages of small objects and one large object, stopped, and all of its
/// pages.
pub(crate) fn stopped(f: impl FnOnce(&World<'_, Managed>, &Scope)) {
    let builder =
        Heap::builder().reserve(1 << 30).workers(3).serial_below(0).pacing(Pacing::manual());
    let heap = builder.build().expect("a heap");
    let m: Mutator = heap.attach();
    let mut kept: Vec<AnyGc> =
        (0..5_000).map(|_| m.alloc(Item(GcCell::new(None), [0])).into()).collect();
    kept.push(m.alloc(Item(GcCell::new(None), [0; PAGE_SIZE / 4])).into());
    let world = m.raw().stop_here().expect("no other thread");
    let space = &world.core().space;
    let scope = Scope::new(space, CollectionKind::Full).expect("memory");
    assert!(scope.pages().len() > 3 && scope.cells(space) > 5_000);
    f(&world, &scope);
    wipe(space, scope.pages());
}

/// All granules that the scope's objects can have.
pub(crate) fn granules(world: &World<'_, Managed>, scope: &Scope) -> Vec<usize> {
    let space = &world.core().space;
    scope.pages().iter().filter_map(|&page| granules_of(space, page)).flatten().collect()
}

/// Each page is given to one thread. A page is given to its own thread first.
#[test]
fn a_young_collection_visits_the_pages_that_may_have_new_objects() {
    stopped(|world, scope| {
        let space = &world.core().space;
        let all = scope.pages().to_vec();
        let kinds = |kind| {
            (0..space.high_water()).filter(move |&page| space.page(page).shape().kind() == kind)
        };
        assert!(kinds(PageKind::Tail).count() > 0, "there are pages without objects of their own");
        assert_eq!(all.len(), kinds(PageKind::Small).count() + kinds(PageKind::Large).count());
        let young =
            |page: u32, is: u8| space.page(page as usize).young.store(is, Ordering::Relaxed);
        all.iter().for_each(|&page| young(page, 0));
        young(all[1], 1);
        let pages = |kind| Scope::new(space, kind).expect("memory").pages().to_vec();
        assert_eq!(pages(CollectionKind::Young), [all[1]]);
        assert_eq!(pages(CollectionKind::Full), all);
        all.iter().for_each(|&page| young(page, 1));
    });
}

#[test]
fn pages_are_shared_in_small_portions() {
    stopped(|world, _| {
        let space = &world.core().space;
        let mut scope = Scope::new(space, CollectionKind::Full).expect("memory");
        let before = scope.pages().to_vec();
        for (workers, most) in [(1, CHUNK.min(before.len() / 4).max(1)), (100, 1)] {
            let share = scope.share(workers);
            let seen: Vec<Vec<u32>> =
                share.of(Worker { index: 0, arena: 0 }).map(<[u32]>::to_vec).collect();
            assert!(seen.iter().all(|pages| pages.len() <= most), "{workers} workers: {seen:?}");
            assert_eq!(seen.concat(), before);
        }
        scope.sort_by_home(space).expect("memory");
        assert_eq!(scope.pages(), before, "all pages are one thread's");
    });
}
