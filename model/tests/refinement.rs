//! What a program observes of the library, it observes of the double, and nothing else. Each
//! scenario is written once, runs on both, and its outcomes are compared.
//!
//! A scenario is a model, and returns what one execution has observed. The outcome of an execution
//! that loom rejects, because of a data race, is [`RACE`].

#![cfg(standstill_loom)]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use standstill_model::{Explored, explore};

/// loom has found accesses without an order.
const RACE: u32 = 1 << 31;

/// Plain data, which loom watches.
struct Watched(loom::cell::UnsafeCell<u32>);

// SAFETY: loom rejects an execution in which two threads access it at once.
unsafe impl Sync for Watched {}
// SAFETY: it belongs to no thread.
unsafe impl Send for Watched {}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self(loom::cell::UnsafeCell::new(0)))
    }

    fn read(&self) -> u32 {
        // SAFETY: as for `Sync`.
        self.0.with(|count| unsafe { *count })
    }

    /// Counts an access, and returns the number of those before.
    fn access(&self) -> u32 {
        // SAFETY: as for `Sync`.
        self.0.with_mut(|count| unsafe {
            *count += 1;
            *count - 1
        })
    }
}

/// The outcomes of all executions with up to this many preemptions. Prints their number.
fn outcomes(name: &str, preemptions: usize, scenario: fn() -> u32) -> BTreeSet<u32> {
    let explored = catch_unwind(AssertUnwindSafe(|| explore(preemptions, scenario)));
    let explored = explored.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map_or("", String::as_str);
        assert!(text.contains("Causality violation"), "loom has rejected the scenario: {text}");
        // The first race ends the exploration.
        Explored { outcomes: BTreeSet::from([RACE]), executions: 0 }
    });
    println!("{name}: {} executions", explored.executions);
    explored.outcomes
}

/// The scenarios, for the library or the double with the name `$gc`.
macro_rules! scenarios {
    ($name:ident, $gc:ident, $heap:expr) => {
        mod $name {
            use std::sync::Arc;

            use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
            use loom::thread::spawn;
            use $gc::safepoint::{Coordinator, STOP};
            use $gc::{Gc, GcCell, GcWeak, Heap, Trace};

            use super::Watched;

            fn heap() -> Heap {
                $heap
            }

            /// The number of earlier accesses that a thread which attaches sees, beside a stop.
            pub(super) fn attach_beside_a_stop() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let stopper = spawn({
                    let (coordinator, watched) = (coordinator.clone(), watched.clone());
                    move || {
                        let me = coordinator.register(());
                        me.attach().unwrap();
                        let world = me.stop().unwrap();
                        watched.access();
                        drop(world);
                    }
                });
                let me = coordinator.register(());
                me.attach().unwrap();
                let before = watched.access();
                drop(me);
                stopper.join().unwrap();
                before
            }

            /// Two threads that attach, and no stop: nothing orders their accesses.
            pub(super) fn two_attached_threads() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let life = move || {
                    let me = coordinator.register(());
                    me.attach().unwrap();
                    watched.access();
                    assert!(me.detach());
                };
                let other = spawn(life.clone());
                life();
                other.join().unwrap();
                0
            }

            /// A thread that attaches and detaches after another one has detached. No stop lies
            /// between, and so no order.
            pub(super) fn a_detach_orders_nothing() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let has_left = Arc::new(AtomicU32::new(0));
                let other = spawn({
                    let (coordinator, watched) = (coordinator.clone(), watched.clone());
                    let has_left = has_left.clone();
                    move || {
                        let me = coordinator.register(());
                        me.attach().unwrap();
                        watched.access();
                        assert!(me.detach());
                        has_left.store(1, Relaxed);
                        // The end of a participant orders more than its detach.
                        std::mem::forget(me);
                    }
                });
                let me = coordinator.register(());
                if has_left.load(Relaxed) == 1 {
                    me.attach().unwrap();
                    assert!(me.detach());
                    watched.access();
                }
                other.join().unwrap();
                0
            }

            /// A request to all attached threads beside a detach: how many got it.
            pub(super) fn a_poke_of_all_meets_a_detach() -> u32 {
                let coordinator = Coordinator::new();
                let me = coordinator.register(());
                me.attach().unwrap();
                let poker = spawn({
                    let coordinator = coordinator.clone();
                    move || coordinator.poke_attached(2) as u32
                });
                assert!(me.detach());
                let taken = me.take_requests(2);
                10 * poker.join().unwrap() + taken
            }

            /// Polls of an attached thread beside a stop: 1 for each one that sees the request.
            pub(super) fn polls_beside_a_stop() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let me = coordinator.register(());
                me.attach().unwrap();
                let stopper = spawn({
                    let (coordinator, watched) = (coordinator.clone(), watched.clone());
                    move || {
                        let me = coordinator.register(());
                        me.attach().unwrap();
                        let world = me.stop().unwrap();
                        watched.access();
                        drop(world);
                    }
                });
                let mut seen = 0;
                for _ in 0..2 {
                    watched.access();
                    if me.poll() & STOP != 0 {
                        seen += 1;
                        assert!(me.park());
                    }
                }
                drop(me);
                stopper.join().unwrap();
                seen
            }

            /// A detach beside a stop: whether the stopper's access comes before that after the
            /// next attach.
            pub(super) fn detach_beside_a_stop() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let me = coordinator.register(());
                me.attach().unwrap();
                let stopper = spawn({
                    let (coordinator, watched) = (coordinator.clone(), watched.clone());
                    move || {
                        let me = coordinator.register(());
                        me.attach().unwrap();
                        let world = me.stop().unwrap();
                        let before = watched.access();
                        drop(world);
                        before
                    }
                });
                watched.access();
                assert!(me.detach());
                me.attach().unwrap();
                let mine = watched.access();
                drop(me);
                10 * stopper.join().unwrap() + mine
            }

            /// Two threads stop the world: which is first.
            pub(super) fn two_stops() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let life = move || {
                    let me = coordinator.register(());
                    me.attach().unwrap();
                    let world = me.stop().unwrap();
                    let before = watched.access();
                    drop(world);
                    before
                };
                let other = spawn(life.clone());
                let mine = life();
                10 * other.join().unwrap() + mine
            }

            /// A thread raises a bit of another one, which may have ended.
            pub(super) fn a_poke_meets_an_end() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let me = coordinator.register(());
                me.attach().unwrap();
                let id = me.id();
                let poker = spawn({
                    let (coordinator, watched) = (coordinator.clone(), watched.clone());
                    move || {
                        watched.access();
                        coordinator.poke(id, 2)
                    }
                });
                let taken = me.take_requests(2);
                if taken != 0 {
                    watched.access();
                }
                drop(me);
                10 * u32::from(poker.join().unwrap()) + taken
            }

            /// An object that counts the destructors that have run.
            #[derive(Trace)]
            #[trace(crate = $gc)]
            struct Node {
                next: GcCell<Option<Gc<Node>>>,
                #[trace(skip)]
                died: Arc<AtomicU32>,
            }

            impl Drop for Node {
                fn drop(&mut self) {
                    self.died.fetch_add(1, Relaxed);
                }
            }

            fn node(m: &$gc::Mutator, died: &Arc<AtomicU32>) -> Gc<Node> {
                m.alloc(Node { next: GcCell::new(None), died: died.clone() })
            }

            /// A collection beside a thread that moves the only reference to an object out of
            /// another object. Nothing is garbage. Returns the number of objects collected, and of
            /// those that have died too early.
            pub(super) fn a_collection_beside_a_moving_reference() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let (from, moved) = (node(&m, &died), node(&m, &died));
                from.next.set(&m, Some(moved));
                let mover = spawn({
                    let (heap, from) = (heap.clone(), from.clone());
                    move || {
                        let m = heap.attach();
                        let moved = from.next.take(&m).unwrap();
                        drop(from);
                        moved
                    }
                });
                let collected = m.collect().collected as u32;
                let moved = m.detach(|| mover.join().unwrap());
                let early = died.load(Relaxed);
                drop((moved, from));
                m.safepoint();
                100 * died.load(Relaxed) + 10 * early + collected
            }

            /// A collection beside a thread that drops the last reference to a cycle.
            pub(super) fn a_collection_beside_the_birth_of_garbage() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let cycle = node(&m, &died);
                cycle.next.set(&m, Some(cycle.clone()));
                let dropper = spawn({
                    let heap = heap.clone();
                    move || {
                        let m = heap.attach();
                        drop(cycle);
                        drop(m);
                    }
                });
                let first = m.collect().collected as u32;
                m.detach(|| dropper.join().unwrap());
                let second = m.collect().collected as u32;
                100 * died.load(Relaxed) + 10 * first + second
            }

            /// Two threads collect one piece of garbage.
            pub(super) fn two_collections() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let cycle = node(&m, &died);
                cycle.next.set(&m, Some(cycle.clone()));
                drop(cycle);
                let other = spawn(move || heap.attach().collect().collected as u32);
                let mine = m.collect().collected as u32;
                // After a collection of one's own, no garbage of before it is left.
                let dead = died.load(Relaxed);
                drop(m);
                100 * dead + 10 * mine + other.join().unwrap()
            }

            /// An upgrade beside the last drop, by the thread that has allocated the object.
            pub(super) fn an_upgrade_beside_a_death() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let object = node(&m, &died);
                let weak: GcWeak<Node> = Gc::downgrade(&object, &m);
                let upgrader = spawn({
                    let heap = heap.clone();
                    move || {
                        let m = heap.attach();
                        let target = weak.upgrade(&m);
                        target.map_or(0, |target| 1 + target.died.load(Relaxed))
                    }
                });
                drop(object);
                m.safepoint();
                let upgraded = m.detach(|| upgrader.join().unwrap());
                m.safepoint();
                10 * died.load(Relaxed) + upgraded
            }

            /// An upgrade beside the collection of its target.
            pub(super) fn an_upgrade_beside_a_collection() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let object = node(&m, &died);
                object.next.set(&m, Some(object.clone()));
                let weak: GcWeak<Node> = Gc::downgrade(&object, &m);
                drop(object);
                let upgrader = spawn({
                    let heap = heap.clone();
                    move || weak.upgrade(&heap.attach())
                });
                let collected = m.collect().collected as u32;
                let upgraded = m.detach(|| upgrader.join().unwrap());
                let is_upgraded = u32::from(upgraded.is_some());
                drop(upgraded);
                let later = m.collect().collected as u32;
                1000 * died.load(Relaxed) + 100 * later + 10 * collected + is_upgraded
            }

            /// Another thread drops what its owner holds no more: on which thread the object dies.
            pub(super) fn a_death_by_another_thread() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let object = node(&m, &died);
                let other = spawn({
                    let (heap, died) = (heap.clone(), died.clone());
                    move || {
                        let m = heap.attach();
                        drop(object);
                        let here = died.load(Relaxed);
                        drop(m);
                        here
                    }
                });
                m.safepoint();
                let at_a_safepoint = died.load(Relaxed);
                let here = m.detach(|| other.join().unwrap());
                let after_a_detach = died.load(Relaxed);
                m.safepoint();
                1000 * died.load(Relaxed) + 100 * after_a_detach + 10 * at_a_safepoint + here
            }

            /// The same, where the first thread drops, and the second one is the owner.
            pub(super) fn a_death_by_the_first_thread() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let (sender, receiver) = loom::sync::mpsc::channel();
                let owner = spawn({
                    let (heap, died) = (heap.clone(), died.clone());
                    move || {
                        let mut m = heap.attach();
                        sender.send(node(&m, &died)).unwrap();
                        m.detach(|| ());
                        let after_a_detach = died.load(Relaxed);
                        drop(m);
                        10 * died.load(Relaxed) + after_a_detach
                    }
                });
                let object = receiver.recv().unwrap();
                let m = heap.attach();
                drop(object);
                let here = died.load(Relaxed);
                drop(m);
                100 * here + owner.join().unwrap()
            }

            /// The same while the owner is detached.
            pub(super) fn a_death_beside_a_detached_owner() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let (object, kept) = (node(&m, &died), node(&m, &died));
                let theirs = [object.clone(), kept.clone()];
                let other = spawn({
                    let (heap, died) = (heap.clone(), died.clone());
                    move || {
                        let m = heap.attach();
                        drop(theirs);
                        let here = died.load(Relaxed);
                        drop(m);
                        here
                    }
                });
                drop(object);
                let here = m.detach(|| other.join().unwrap());
                m.safepoint();
                let died_first = died.load(Relaxed);
                drop(kept);
                100 * died.load(Relaxed) + 10 * died_first + here
            }

            /// Two stops beside a thread that parks. It runs before the next one begins, so that it
            /// sees at most one.
            pub(super) fn a_parked_thread_is_owed_a_run() -> u32 {
                let (coordinator, watched) = (Coordinator::new(), Watched::new());
                let me = coordinator.register(());
                me.attach().unwrap();
                let stopper = spawn({
                    let (coordinator, watched) = (coordinator.clone(), watched.clone());
                    move || {
                        let me = coordinator.register(());
                        me.attach().unwrap();
                        for _ in 0..2 {
                            let world = me.stop().unwrap();
                            watched.access();
                            drop(world);
                        }
                    }
                });
                let seen = if me.poll() & STOP != 0 && me.park() { watched.access() } else { 0 };
                drop(me);
                stopper.join().unwrap();
                seen
            }

            /// A thread that is not attached drops the last reference: when the object dies.
            pub(super) fn a_death_by_an_unattached_thread() -> u32 {
                let (heap, died) = (heap(), Arc::new(AtomicU32::new(0)));
                let mut m = heap.attach();
                let object = node(&m, &died);
                drop(m);
                let other = spawn({
                    let died = died.clone();
                    move || {
                        drop(object);
                        died.load(Relaxed)
                    }
                });
                m = heap.attach();
                let at_the_attach = died.load(Relaxed);
                m.safepoint();
                let at_a_safepoint = died.load(Relaxed);
                let here = m.detach(|| other.join().unwrap());
                m.safepoint();
                1000 * died.load(Relaxed) + 100 * at_a_safepoint + 10 * at_the_attach + here
            }

            /// An object whose destructor accesses what others have read.
            #[derive(Trace)]
            #[trace(crate = $gc)]
            struct Used(#[trace(skip)] Arc<Watched>);

            impl Drop for Used {
                fn drop(&mut self) {
                    self.0.access();
                }
            }

            /// Two threads use an object, and drop it: the destructor comes after all uses.
            pub(super) fn a_destructor_beside_uses() -> u32 {
                let (heap, watched) = (heap(), Watched::new());
                let mut m = heap.attach();
                let object = m.alloc(Used(watched));
                let other = spawn({
                    let (heap, object) = (heap.clone(), object.clone());
                    move || {
                        let _m = heap.attach();
                        let seen = object.0.read();
                        drop(object);
                        seen
                    }
                });
                let mine = object.0.read();
                drop(object);
                m.safepoint();
                let theirs = m.detach(|| other.join().unwrap());
                mine + theirs
            }

            /// A thread makes an object, and drops it when its mutator has ended.
            pub(super) fn a_drop_after_the_end_of_a_mutator() -> u32 {
                let (heap, watched) = (heap(), Watched::new());
                let other = spawn({
                    let (heap, watched) = (heap.clone(), watched.clone());
                    move || {
                        let m = heap.attach();
                        watched.access();
                        let object = m.alloc(Used(watched));
                        drop(m);
                        drop(object);
                    }
                });
                let mut m = heap.attach();
                m.safepoint();
                m.detach(|| other.join().unwrap());
                m.safepoint();
                watched.read()
            }

            /// Two threads lock a cell.
            pub(super) fn two_threads_lock_a_cell() -> u32 {
                let (heap, watched) = (heap(), Watched::new());
                let m = heap.attach();
                let cell = m.alloc(GcCell::new(0u32));
                let life = |m: &$gc::Mutator, cell: &Gc<GcCell<u32>>, watched: &Watched| {
                    let mut value = cell.lock(m);
                    watched.access();
                    *value += 1;
                    *value
                };
                let other = spawn({
                    let (heap, cell, watched) = (heap.clone(), cell.clone(), watched.clone());
                    move || life(&heap.attach(), &cell, &watched)
                });
                let mine = life(&m, &cell, &watched);
                drop((m, cell));
                10 * other.join().unwrap() + mine
            }
        }
    };
}

scenarios!(library, standstill, {
    let heap = Heap::builder().pacing(standstill::Pacing::manual()).workers(1);
    heap.build().unwrap()
});
scenarios!(double, standstill_model, Heap::new());

/// A test for each scenario, which has exactly these outcomes. The library explores it with up to
/// two preemptions, and the double with one more, so that it lacks none for want of depth.
macro_rules! refined {
    ($($name:ident: [$($outcome:expr),*];)*) => {$(
        #[test]
        fn $name() {
            let library = outcomes("library", 2, library::$name);
            let double = outcomes("double", 3, double::$name);
            assert_eq!(library, double, "the library's outcomes, and those of the double");
            assert_eq!(library, BTreeSet::from([$($outcome),*]));
        }
    )*};
}

refined! {
    attach_beside_a_stop: [0, 1];
    two_attached_threads: [RACE];
    a_detach_orders_nothing: [RACE];
    polls_beside_a_stop: [0, 1];
    detach_beside_a_stop: [12, 21];
    two_stops: [1, 10];
    a_poke_of_all_meets_a_detach: [0, 10, 12];
    a_poke_meets_an_end: [0, 10, 12];
    a_collection_beside_a_moving_reference: [200];
    a_collection_beside_the_birth_of_garbage: [101, 110];
    two_collections: [101, 110];
    an_upgrade_beside_a_death: [10, 11];
    an_upgrade_beside_a_collection: [1010, 1101];
    a_death_by_another_thread: [1100, 1101, 1110, 1111];
    a_death_by_the_first_thread: [10, 11, 100, 110, 111];
    a_death_beside_a_detached_owner: [210, 211];
    a_parked_thread_is_owed_a_run: [0, 1];
    a_death_by_an_unattached_thread: [1000, 1001, 1100, 1101, 1110, 1111];
    a_destructor_beside_uses: [0];
    a_drop_after_the_end_of_a_mutator: [2];
    two_threads_lock_a_cell: [12, 21];
}

/// The destructors of other threads' objects, while the panic unwinds, do not abort the process.
#[test]
#[should_panic(expected = "a reference that its object does not own")]
fn a_wrong_traverse_ends_a_model() {
    use standstill_model::{Gc, Heap, Trace, Tracer};

    struct Twice(Gc<u32>);

    impl Trace for Twice {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            tracer.visit(&this.0);
            tracer.visit(&this.0);
        }
    }
    explore(1, || {
        let heap = Heap::new();
        let other = loom::thread::spawn({
            let heap = heap.clone();
            move || {
                let m = heap.attach();
                let kept = (m.alloc(1), m.alloc(2));
                loom::thread::yield_now();
                drop(kept);
            }
        });
        let mut m = heap.attach();
        let twice = m.alloc(Twice(m.alloc(1)));
        m.collect();
        drop(twice);
        m.detach(|| other.join().unwrap());
    });
}
