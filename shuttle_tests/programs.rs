//! Programs: random operations of the threads of one schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shuttle::thread;

use super::graph::{Board, PLACES, Ref, Thing, Watched, World};
use super::shadow::{Holder, Id};
use super::{below, one_in};
use crate::{Collect, Gc, Heap, Mutator, Pacing, WeakRef};

/// One operation of a mutator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Allocate an object.
    Make,
    /// Allocate three objects in a ring, and drop all references from outside.
    Ring,
    /// Add or remove a reference between two objects that this thread refers to.
    Link,
    Unlink,
    /// Move a reference into a shared place, or copy one from there.
    Put,
    Pick,
    Drop,
    /// Make or upgrade a weak reference, or make one with a callback.
    Downgrade,
    Upgrade,
    Watch,
    /// Exchange or read a slot of the board.
    Slot,
    /// Untrack or track an object.
    Untrack,
    Track,
    /// Clone and drop references while the thread is detached, or attached as another mutator.
    Detach,
    Safepoint,
    Young,
    Full,
    /// Collect, unless another thread is collecting.
    Try,
}

/// Operations with their weights.
pub(crate) type Mix = &'static [(Op, usize)];

/// The threads of one schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) mix: Mix,
    /// Threads that attach as mutators, several times each.
    pub(crate) mutators: usize,
    /// Threads that clone and drop references and never attach.
    pub(crate) unattached: usize,
    /// Operations between attaching and ending.
    pub(crate) steps: usize,
    /// Whether safepoints start collections.
    pub(crate) paced: bool,
}

/// The references that one mutator owns.
struct Hands<const FINAL: bool> {
    world: Arc<World<FINAL>>,
    board: Gc<Board<FINAL>>,
    held: Vec<Ref<FINAL>>,
    watching: Vec<Gc<WeakRef<Thing<FINAL>, Arc<Watched<FINAL>>>>>,
}

impl<const FINAL: bool> Hands<FINAL> {
    fn any(&self) -> Option<&Ref<FINAL>> {
        if self.held.is_empty() { None } else { Some(&self.held[below(self.held.len())]) }
    }

    fn take(&mut self) -> Option<Ref<FINAL>> {
        if self.held.is_empty() {
            None
        } else {
            Some(self.held.swap_remove(below(self.held.len())))
        }
    }

    /// A new reference, entered in the oracle, to the object of a reference that the library
    /// returned.
    fn keep(&mut self, gc: Option<Gc<Thing<FINAL>>>, _: &Mutator) {
        if let Some(gc) = gc {
            let id = gc.id;
            self.held.push(Ref::new(gc, id, Holder::Root, self.world.clone()));
        }
    }

    fn act(&mut self, op: Op, m: &mut Mutator) {
        match op {
            Op::Make => self.held.push(Thing::make(m, &self.world)),
            Op::Ring => {
                let ring: [_; 3] = std::array::from_fn(|_| Thing::make(m, &self.world));
                (0..3).for_each(|i| ring[i].link(&ring[(i + 1) % 3], m));
            }
            Op::Link => {
                if let (Some(from), Some(to)) = (self.any(), self.any()) {
                    from.link(to, m);
                }
            }
            Op::Unlink => {
                let out = self.any().and_then(|it| it.unlink(m));
                self.held.extend(out);
            }
            Op::Put => {
                let it = self.take();
                drop(self.world.put(it));
            }
            Op::Pick => self.held.extend(self.world.pick()),
            Op::Drop => drop(self.take()),
            Op::Downgrade => {
                if let Some(it) = self.any() {
                    let weak = it.downgrade(m);
                    let old = self.world.weaks[below(PLACES)].lock().replace(weak);
                    drop(old);
                }
            }
            Op::Upgrade => {
                let weak = self.world.weaks[below(PLACES)].lock().clone();
                self.held.extend(weak.and_then(|weak| weak.upgrade(m)));
            }
            Op::Watch => {
                if let Some(it) = self.any() {
                    let (to, world) = (it.to, self.world.clone());
                    let data = Arc::new(Watched { to, called: AtomicBool::new(false), world });
                    self.watching.push(m.alloc_weak(it.gc(), data, |weak, m| {
                        let data = weak.data();
                        assert!(!data.called.swap(true, Relaxed), "a callback is called twice");
                        assert!(weak.upgrade(m).is_none());
                        // With finalizers, weak references without a callback are cleared later,
                        // and an upgrade may resurrect the object.
                        if !FINAL {
                            data.world.shadow.gone(data.to);
                        }
                    }));
                }
            }
            Op::Slot => self.slot(m),
            Op::Untrack => {
                if let Some(it) = self.any() {
                    let weak = it.downgrade(m);
                    self.world.untracked.lock().push(weak);
                    Gc::untrack(it.gc(), m);
                }
            }
            Op::Track => {
                if let Some(it) = self.any() {
                    Gc::track(it.gc(), m);
                }
            }
            Op::Detach => self.detach(m),
            Op::Safepoint => m.safepoint(),
            Op::Young => drop(m.collect_young()),
            Op::Full => drop(m.collect()),
            Op::Try => drop(m.try_collect(Collect::full().wait(false))),
        }
    }

    fn slot(&mut self, m: &Mutator) {
        let board = self.board.clone();
        let slot = &board.slots[below(3)];
        match below(4) {
            0 => {
                // The slot's reference is usually the last one afterwards.
                let mine = self.take();
                let new = mine.as_ref().map(|it| it.gc().clone());
                drop(mine);
                slot.store(m, new);
            }
            1 => {
                let new = self.any().map(|it| it.gc().clone());
                let old = slot.swap(m, new);
                self.keep(old, m);
            }
            2 => {
                if let Some(thing) = slot.peek(m) {
                    self.world.shadow.touched(thing.id);
                }
            }
            _ => {
                let loaded = slot.load(m);
                self.keep(loaded, m);
            }
        }
    }

    fn detach(&mut self, m: &mut Mutator) {
        let heap = m.heap().clone();
        let mine = self.take();
        let world = &self.world;
        m.detach(|| {
            let copy = mine.as_ref().map(|it| it.copy(Holder::Root));
            drop(mine);
            if one_in(3) {
                heap.attach_scoped(|m| {
                    let new = Thing::make(m, world);
                    if let Some(copy) = &copy {
                        new.link(copy, m);
                    }
                    drop(world.put(Some(new)));
                    m.safepoint();
                });
            }
            drop(world.put(copy));
        });
    }
}

impl Program {
    /// One schedule: two rounds of threads, and a quiet point after each.
    pub(crate) fn run<const FINAL: bool>(self) {
        let pacing = if self.paced {
            Pacing::default().with_young_objects(6).with_full_minimum(8)
        } else {
            Pacing::manual()
        };
        let heap = Heap::builder().reserve(1 << 20).workers(1).pacing(pacing).build().unwrap();
        let world = World::<FINAL>::new(&heap);
        let board = heap.attach_scoped(|m| m.alloc(Board::new()));
        for _ in 0..2 {
            let mut threads = Vec::new();
            for _ in 0..self.mutators {
                let (heap, world, board) = (heap.clone(), world.clone(), board.clone());
                threads.push(thread::spawn(move || self.mutate(&heap, &world, &board)));
            }
            for _ in 0..self.unattached {
                let world = world.clone();
                threads.push(thread::spawn(move || self.drop_unattached(&world)));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            heap.attach_scoped(|m| check_quiet_point(&world, &board, m));
        }
        finish(&heap, &world, board);
    }

    /// One schedule in which the heap ends first. Each remaining object dies with its last
    /// reference, on any thread. The heap's memory is freed with the last object.
    pub(crate) fn outlive(self) {
        let heap =
            Heap::builder().reserve(1 << 20).workers(1).pacing(Pacing::manual()).build().unwrap();
        let core = Arc::downgrade(heap.core());
        let world = World::<false>::new(&heap);
        let mut threads = Vec::new();
        for _ in 0..self.mutators {
            let (heap, world) = (heap.clone(), world.clone());
            threads.push(thread::spawn(move || {
                let m = heap.attach();
                for _ in 0..self.steps / 2 {
                    let new = Thing::make(&m, &world);
                    // References lead from newer to older objects, because no collection will clear
                    // a cycle.
                    if let Some(old) = world.pick() {
                        new.link(&old, &m);
                    }
                    drop(world.put(Some(new)));
                }
            }));
        }
        for _ in 0..self.unattached {
            let world = world.clone();
            threads.push(thread::spawn(move || self.drop_unattached(&world)));
        }
        drop(heap);
        for thread in threads {
            thread.join().unwrap();
        }
        for place in &world.places {
            let old = place.lock().take();
            drop(old);
        }
        assert_eq!(
            world.shadow.living(),
            BTreeSet::new(),
            "living objects without any reference from outside"
        );
        assert_eq!(core.strong_count(), 0, "the memory of a heap without objects");
        world.assert_well();
    }

    fn draw(&self) -> Op {
        let mut at = below(self.mix.iter().map(|(_, weight)| weight).sum());
        let drawn = self.mix.iter().find(|(_, weight)| {
            let is_here = at < *weight;
            at = at.saturating_sub(*weight);
            is_here
        });
        drawn.expect("below the sum of all").0
    }

    /// The body of a thread: attaches, performs operations and ends, once or twice.
    fn mutate<const FINAL: bool>(
        &self,
        heap: &Heap,
        world: &Arc<World<FINAL>>,
        board: &Gc<Board<FINAL>>,
    ) {
        for _ in 0..1 + below(2) {
            let (world, board) = (world.clone(), board.clone());
            let mut hands = Hands { world, board, held: Vec::new(), watching: Vec::new() };
            let mut m = heap.attach();
            for _ in 0..self.steps {
                hands.act(self.draw(), &mut m);
                if one_in(2) {
                    m.safepoint();
                }
            }
            // The references are dropped before the mutator, or after it. In the second case other
            // threads drop them.
            if one_in(2) {
                drop(m);
                drop(hands);
            }
        }
    }

    fn drop_unattached<const FINAL: bool>(&self, world: &World<FINAL>) {
        for _ in 0..self.steps {
            let it = world.pick();
            let copy = it.as_ref().map(|it| it.copy(Holder::Root));
            drop(it);
            if one_in(2) {
                drop(world.put(None));
            }
            if one_in(2) {
                drop(world.put(copy));
            }
        }
    }
}

/// Checks a quiet point: after two full collections exactly the reachable objects live, and each
/// count equals the number of references.
fn check_quiet_point<const FINAL: bool>(
    world: &Arc<World<FINAL>>,
    board: &Gc<Board<FINAL>>,
    m: &mut Mutator,
) {
    // The finalizers that these two collections run do not change the graph.
    m.safepoint();
    let lively = world.lively.swap(false, Relaxed);
    m.collect();
    m.collect();
    world.lively.store(lively, Relaxed);
    m.verify().expect("a sound heap");
    let shadow = &world.shadow;
    let mut in_slots: BTreeMap<Id, usize> = BTreeMap::new();
    for slot in &board.slots {
        if let Some(thing) = slot.peek(m) {
            *in_slots.entry(thing.id).or_default() += 1;
        }
    }
    let objects = m.objects();
    let mut tracked = BTreeSet::new();
    for any in objects {
        let Ok(gc) = any.downcast::<Thing<FINAL>>(m) else { continue };
        let id = gc.id;
        assert!(tracked.insert(id), "{id} is listed twice");
        // Plus the reference in the list of objects.
        let expected = shadow.count(id) + in_slots.get(&id).copied().unwrap_or(0) + 1;
        assert_eq!(Gc::strong_count(&gc), expected, "the count of {id}");
    }
    let living = shadow.living();
    let mut roots: BTreeSet<Id> = in_slots.keys().copied().collect();
    for &id in living.difference(&tracked) {
        assert!(
            shadow.count(id) + in_slots.get(&id).copied().unwrap_or(0) > 0,
            "{id} lives without a reference"
        );
        roots.insert(id);
    }
    let reachable = shadow.reachable(&roots);
    assert_eq!(living, reachable, "living objects and reachable objects");
    world.assert_well();
}

/// Drops all references, and checks that no object remains.
fn finish<const FINAL: bool>(heap: &Heap, world: &Arc<World<FINAL>>, board: Gc<Board<FINAL>>) {
    world.lively.store(false, Relaxed);
    heap.attach_scoped(|m| {
        let weaks = std::mem::take(&mut *world.untracked.lock());
        for it in weaks.iter().filter_map(|weak| weak.upgrade(m)) {
            Gc::track(it.gc(), m);
        }
        for (place, weak) in world.places.iter().zip(&world.weaks) {
            let old = (place.lock().take(), weak.lock().take());
            drop(old);
        }
        board.slots.iter().for_each(|slot| slot.store(m, None));
        check_quiet_point(world, &board, m);
    });
    assert_eq!(
        world.shadow.living(),
        BTreeSet::new(),
        "living objects without any reference from outside"
    );
    drop(board);
    heap.attach_scoped(|m| {
        m.collect();
        assert!(m.objects().is_empty());
        m.verify().expect("a sound heap");
    });
    assert_eq!(heap.stats().live_objects, 0);
}
