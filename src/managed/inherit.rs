//! The last mutator inherits the objects of mutators that have ended.
//!
//! An object whose owner has ended has no thread that counts locally: every thread counts it by
//! atomic read-modify-writes. If one mutator is left, that mutator will count the object. So it
//! becomes the owner ([`Header::inherit`](crate::object::header::Header::inherit)), in the merge of
//! a stop that it makes itself. With two or more mutators left, none of them inherits: the library
//! does not know which of them will use an object.
//!
//! # Pages
//!
//! An object lies on a page of the arena that allocated it. An arena that ends abandons its pages,
//! and marks each. So the stop reads the objects on marked pages only. A marked page that another
//! arena adopts stays marked, because the objects on it stay. A large object has pages of its own
//! and no arena, so every large object counts as marked.
//!
//! The page records the mutator that has inherited its objects, and that mutator does not read the
//! page again. If it ends, the next one does. A stop reads at most [`MOST_PAGES`] pages. The record
//! on the pages is also the record of the progress: the next stop skips the pages that are done.
//! When no page is left, stops do not look for pages until another mutator ends.
//!
//! Only the owner of the objects changes. The owner of the page stays the same, and so does the
//! path by which the memory of a dead object returns to the page.
//!
//! # Threads that run during the stop
//!
//! | thread | answer |
//! |---|---|
//! | another mutator, detached | none is registered |
//! | a new mutator | it registers, and waits in its attachment. It has never counted. The end of the stop orders it behind the new owners |
//! | unattached, clones | it adds to `shared` at any time. The stop subtracts what it has read from `shared`, and so loses no reference |
//! | unattached, drops | it defers the drop, and an attached thread drops the reference later |
//! | attached to another heap, clones or drops | as an unattached thread: its id is not the owner's |
//! | any thread, upgrades a weak reference | only a thread attached to the heap reads the target, and not at a safepoint |
//! | merges an object for an ended owner | it is attached, and reaches no safepoint between the drop that queued the object and the merge. A mutator that ends, and a forked child, merge so too, and make no stop meanwhile |
//!
//! # Objects that keep their owner
//!
//! * A queued object: the thread that drains the queue merges it. The merge of the same stop has
//!   emptied the queues before, so there is none on usual pages.
//! * A dead or dying object: a weak upgrade by an owner always succeeds.
//! * An immortal object: its counts are void.
//! * An object with so many references that the local half has no room for them.
//!
//! A weak record does not matter: the flag stays, and a collection reads no owner.
//!
//! # The end of the heir
//!
//! The heir is an owner as any other. A thread that attaches later queues an object for it, and the
//! heir's queue is open. When the heir ends it closes its queue, and from then on its local counts
//! are final, for inherited objects too.

use crate::base::steps;
use crate::base::sync::Ordering;
use crate::heap::world::World;
use crate::managed::parts::Managed;
use crate::object::live::Stopped;
use crate::object::state;
use crate::object::type_info::Object;

/// The number of pages that one stop reads. It bounds the pause: 4 MiB.
const MOST_PAGES: usize = 64;

/// A mutator ends, and leaves its objects.
pub(super) fn leave_objects(model: &Managed) {
    // Relaxed: the end of the mutator orders it before a stop that finds one mutator less.
    model.ended.store(true, Ordering::Relaxed);
}

/// The mutator that has stopped the world inherits objects. No other mutator is registered.
pub(super) fn inherit(world: &World<'_, Managed>) {
    let (space, ended) = (world.pages(), &world.core().model.ended);
    // Relaxed, also below: see `leave_objects`.
    if !ended.load(Ordering::Relaxed) {
        return;
    }
    let heir = world.requester().get();
    let mut left = world.core().stress.shrink(MOST_PAGES);
    steps::took(space.high_water());
    for page in 0..space.high_water() {
        let info = space.page(page);
        if !info.is_left_to(heir) {
            continue;
        }
        if left == 0 {
            return;
        }
        left -= 1;
        info.set_heir(heir);
        for granule in space.starts(page) {
            steps::took(1);
            let state = space.states()[granule].load(Ordering::Relaxed);
            if state & (state::LIVE | state::DYING) == state::LIVE {
                // SAFETY: rule *stopped*: the state says that an object is alive there.
                let object = unsafe { Stopped::new(Object::new(space.cell(granule))) };
                object.live().header().inherit(heir);
            }
        }
    }
    ended.store(false, Ordering::Relaxed);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::managed::tests::{header_of, on_attached_thread, plain_heap};
    use crate::memory::space::PAGE_SIZE;
    use crate::object::header::{Dropped, Header};
    use crate::{AnyGc, Gc, GcCell, Heap, Mutator, Stress, Trace, Tracer};

    struct Node<const N: usize>(GcCell<Vec<AnyGc>>, [u8; N]);

    impl<const N: usize> Trace for Node<N> {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }

        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.0, m);
        }
    }

    type Small = Gc<Node<8>>;

    fn node<const N: usize>(m: &Mutator) -> Gc<Node<N>> {
        m.alloc(Node(GcCell::default(), [0; N]))
    }

    fn owner<T: Trace>(gc: &Gc<T>) -> u64 {
        // SAFETY: rule *counted*: the handle is a reference.
        unsafe { header_of(gc).as_ref() }.owner()
    }

    fn owned<T: Trace>(objects: &[Gc<T>], by: &Mutator) -> usize {
        objects.iter().filter(|object| owner(object) == by.raw().id()).count()
    }

    /// Nodes of a thread that ends, in rings of three.
    fn rings(heap: &Heap, nodes: usize) -> Vec<Small> {
        on_attached_thread(heap, |m| {
            let nodes: Vec<Small> = (0..nodes).map(|_| node(m)).collect();
            for ring in nodes.chunks(3) {
                for (at, from) in ring.iter().enumerate() {
                    let to: AnyGc = ring[(at + 1) % ring.len()].clone().into();
                    from.0.lock(m).push(to);
                }
            }
            nodes
        })
    }

    #[test]
    fn the_last_mutator_inherits_all_kinds_of_objects_and_frees_them() {
        let heap = plain_heap();
        let mut m = heap.attach();
        // Some objects are merged: their owner has dropped its reference.
        let (handles, merged) = on_attached_thread(&heap, |m| {
            let nodes: Vec<Small> = (0..10).map(|_| node(m)).collect();
            let clones = on_attached_thread(&heap, |_| nodes.clone());
            drop(nodes);
            (rings(&heap, 1000), clones)
        });
        let large = on_attached_thread(&heap, |m| node::<{ 2 * PAGE_SIZE }>(m));
        let weak = Gc::downgrade(&handles[0], &m);
        // An unattached thread has counted one reference in the shared half.
        let clone = std::thread::scope(|scope| scope.spawn(|| handles[0].clone()).join());
        let clone = clone.expect("no panic");
        m.collect();
        assert_eq!(
            (owned(&handles, &m), owned(&merged, &m), owner(&large)),
            (1000, 10, m.raw().id())
        );
        assert!(!heap.core().model.ended.load(Ordering::Relaxed), "all pages are done");
        m.verify().expect("a whole heap");
        assert_eq!(Gc::strong_count(&handles[0], &m), 3, "two handles, and the ring");
        assert!(weak.upgrade(&m).is_some());
        drop((clone, merged, large));
        assert_eq!(heap.stats().live_objects, 1000);
        drop(handles);
        m.collect();
        assert_eq!(heap.stats().live_objects, 0);
        assert!(weak.upgrade(&m).is_none());
        m.verify().expect("a whole heap");
        // Pages that are free again have no heir.
        let space = &heap.core().space;
        space.sweep_abandoned();
        assert!((0..space.high_water()).all(|page| !space.page(page).is_left_to(1)));
    }

    #[test]
    fn with_two_mutators_none_inherits() {
        let heap = plain_heap();
        let mut m = heap.attach();
        let handles = rings(&heap, 30);
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = heap.attach();
                other.detach(|| {
                    barrier.wait();
                    barrier.wait();
                });
            });
            m.detach(|| barrier.wait());
            m.collect();
            assert_eq!(owned(&handles, &m), 0, "the other is detached");
            barrier.wait();
            m.detach(|| ());
        });
        m.collect_young();
        assert_eq!(owned(&handles, &m), 30);
    }

    #[test]
    fn one_stop_reads_at_most_64_pages_and_the_next_goes_on() {
        const OBJECTS: usize = 400;
        let nodes = |heap: &Heap, count: usize| {
            on_attached_thread(heap, |m| {
                (0..count).map(|_| node::<{ PAGE_SIZE / 5 }>(m)).collect::<Vec<_>>()
            })
        };
        let heap = plain_heap();
        let mut m = heap.attach();
        let pages = |handles: &[Gc<_>]| -> HashSet<usize> {
            handles.iter().map(|gc| header_of(gc).addr().get() / PAGE_SIZE).collect()
        };
        let mut handles = nodes(&heap, OBJECTS - 2);
        let abandoned = pages(&handles);
        handles.extend((0..2).map(|_| node(&m)));
        assert_eq!(pages(&handles), abandoned, "the last mutator has adopted a page");
        let (pages, on_a_page) = (abandoned.len(), OBJECTS.div_ceil(abandoned.len()));
        assert!(pages > MOST_PAGES && pages < 2 * MOST_PAGES, "{pages} pages");
        m.collect();
        // Two were the mutator's own before.
        let first = owned(&handles, &m) - 2;
        assert!((MOST_PAGES..=MOST_PAGES * on_a_page).contains(&first), "{first} of {OBJECTS}");
        m.collect();
        assert_eq!(owned(&handles, &m), OBJECTS);
        // The next one inherits from the heir.
        drop(m);
        let mut m = heap.attach();
        m.collect();
        m.collect();
        assert_eq!(owned(&handles, &m), OBJECTS);
        m.verify().expect("a whole heap");
        drop((handles, m));
        // With small constants: one page.
        let stress = Stress::none().small_constants(true);
        let heap = Heap::builder().reserve(1 << 30).stress(stress).build().expect("a heap");
        let mut m = heap.attach();
        let handles = nodes(&heap, 2 * on_a_page);
        m.collect();
        assert!((1..=on_a_page).contains(&owned(&handles, &m)));
    }

    /// Header by header, because such objects do not lie on usual pages.
    #[test]
    fn some_objects_keep_their_owner() {
        const GONE: u64 = 7;
        const HEIR: u64 = 9;
        let object = || Header::new(GONE, 5);
        let queued = object();
        queued.clone_ref(GONE);
        assert_eq!(queued.drop_shared(), Dropped::Enqueue(GONE));
        let immortal = object();
        immortal.make_immortal();
        let dead = object();
        dead.set_weak();
        assert_eq!(dead.drop_local(), Dropped::Dead);
        for (header, count) in [(&queued, Some(1)), (&immortal, None), (&dead, Some(0))] {
            let before = header.owner();
            header.inherit(HEIR);
            assert_eq!((header.owner(), header.count()), (before, count));
        }
        assert!(!dead.try_upgrade(HEIR));
        assert_eq!(queued.merge_ended(), Dropped::Alive);
        queued.inherit(HEIR);
        assert_eq!((queued.owner(), queued.count()), (HEIR, Some(1)));
        assert!(queued.take_last(HEIR), "all counts are local");
        let weak = object();
        weak.set_weak();
        weak.inherit(HEIR);
        assert!(weak.is_last_but_weak(HEIR) && weak.try_upgrade(HEIR));
        assert_eq!(weak.count(), Some(2));
    }

    #[test]
    fn an_object_in_its_destruction_keeps_its_owner() {
        let heap = plain_heap();
        let m = heap.attach();
        let object = rings(&heap, 1).pop().expect("one");
        let state = m.raw().core().state_at(crate::object::counted::object(header_of(&object)));
        state.set(state::DYING);
        let before = owner(&object);
        inherit(&m.raw().stop_here().expect("a stop"));
        assert_eq!(owner(&object), before);
        state.unset(state::DYING);
    }
}
