//! `SharedGc`: an object that all threads count in one half of its count, for its whole life.

#![cfg(all(feature = "derive", not(any(loom, shuttle))))]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};

use common::*;
use standstill::{AnyGc, AtomicGc, Gc, GcCell, Heap, Mutator, SharedGc, Stress, Trace, gc_dyn};

/// Runs its action when it is destroyed.
#[derive(Default)]
struct OnDrop(Option<Box<dyn Fn() + Send + Sync>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(action) = &self.0 {
            action();
        }
    }
}

/// An object with references of both kinds.
#[derive(Trace)]
struct Class {
    base: GcCell<Option<SharedGc<Class>>>,
    members: GcCell<Vec<SharedGc<Class>>>,
    instances: GcCell<Vec<Gc<Class>>>,
    #[trace(skip)]
    witness: Witness,
    #[trace(skip)]
    _on_drop: OnDrop,
}

fn value(census: &Arc<Census>, action: Option<Box<dyn Fn() + Send + Sync>>) -> Class {
    Class {
        base: GcCell::default(),
        members: GcCell::default(),
        instances: GcCell::default(),
        witness: Witness::new(census, 0),
        _on_drop: OnDrop(action),
    }
}

fn class(m: &Mutator, census: &Arc<Census>) -> SharedGc<Class> {
    m.alloc_shared(value(census, None))
}

fn count<T: Trace>(shared: &SharedGc<T>) -> usize {
    Gc::strong_count(SharedGc::as_gc(shared))
}

/// Runs `f` on a thread that is attached to the heap.
fn on_attached_thread<R: Send>(heap: &Heap, f: impl FnOnce(&mut Mutator) -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(|| f(&mut heap.attach())).join().expect("no panic"))
}

/// Runs `f` on a thread that is not attached.
fn on_unattached_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(f).join().expect("no panic"))
}

#[test]
fn both_handles_count_the_same_references() {
    on_every_heap_attached(|lab, m| {
        let shared = class(m, &lab.census);
        let gc: Gc<Class> = SharedGc::as_gc(&shared).clone();
        let other = shared.clone();
        assert_eq!(count(&shared), 3);
        assert!(shared == other && *SharedGc::as_gc(&shared) == gc);
        assert!(std::ptr::eq(&*shared, &*gc) && std::ptr::eq(&*shared, Gc::as_ptr(&gc)));
        assert_eq!(format!("{shared:?}"), format!("Shared{gc:?}"));
        let gcs = [gc, Gc::from(other)];
        assert_eq!(count(&shared), 3, "a conversion counts nothing");
        let [one, two] = gcs.map(|gc| Gc::try_share(gc, m).expect("shared already"));
        assert_eq!(count(&shared), 3);
        let any = AnyGc::from(Gc::from(one));
        let view = gc_dyn!(Gc::from(two) => Class);
        view.witness.check();
        let slot = AtomicGc::new(Some(shared.into()));
        m.collect();
        assert_eq!(any.strong_count(), 3);
        drop((view, any));
        slot.load(m).expect("a class").witness.check();
        assert_eq!(lab.census.alive(), 1);
        drop(slot);
        m.safepoint();
        assert_eq!(lab.census.alive(), 0, "it dies with the last reference");
    });
}

#[test]
fn a_mutator_shares_its_own_objects_and_those_without_an_owner() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let own = m.alloc(1u32);
    let clone = own.clone();
    // Another thread may not, while the owner counts.
    let clone = on_attached_thread(&heap, |m| Gc::try_share(clone, m).expect_err("owned"));
    let shared = Gc::try_share(own, &m).expect("its own");
    drop(clone);
    assert_eq!((count(&shared), *shared), (1, 1));
    drop(shared);
    // Queued: another thread has dropped a reference that the owner counted.
    let (own, clone) = (m.alloc(2u32), m.alloc(3u32));
    let clones = (own.clone(), clone.clone());
    on_attached_thread(&heap, |_| drop(clones));
    let own = Gc::try_share(own, &m).expect_err("queued");
    m.safepoint();
    // Merged: any mutator may.
    let shared = Gc::try_share(own, &m).expect("merged");
    let other = on_attached_thread(&heap, |m| Gc::try_share(clone, m).expect("merged"));
    assert_eq!((count(&shared), count(&other), *other), (1, 1, 3));
    // The owner has ended with references left: any mutator may.
    let left = on_attached_thread(&heap, |m| m.alloc(4u32));
    let left = Gc::try_share(left, &m).expect("its owner has ended");
    assert_eq!(count(&left), 1);
    m.verify().expect("a sound heap");
    drop((shared, other, left));
    assert_eq!(heap.stats().live_objects, 0);
    let foreign = Heap::new();
    let foreign = on_attached_thread(&foreign, |m| m.alloc(5u32));
    let text = panic_text(|| drop(Gc::try_share(foreign, &m))).expect("a panic");
    assert!(text.contains("another heap"), "{text}");
}

#[test]
fn cycles_of_both_handles_are_collected() {
    on_every_heap_attached(|lab, m| {
        let census = &lab.census;
        // A class that is its own base, and a ring of classes with an instance.
        let own = class(m, census);
        own.base.set(m, Some(own.clone()));
        let ring: Vec<_> = (0..3).map(|_| class(m, census)).collect();
        for at in 0..3 {
            ring[at].members.lock(m).push(ring[(at + 1) % 3].clone());
        }
        let instance = m.alloc(value(census, None));
        instance.base.set(m, Some(ring[0].clone()));
        ring[2].instances.lock(m).push(instance.clone());
        ring[1].instances.lock(m).push(SharedGc::as_gc(&ring[0]).clone());
        drop(instance);
        m.collect();
        assert_eq!(census.alive(), 5);
        drop((own, ring));
        let collected = m.collect().collected;
        assert_eq!(census.alive(), 0);
        assert!(lab.stress || collected == 5);
    });
}

/// An object with a finalizer that makes it reachable again.
#[derive(Trace)]
#[trace(finalize)]
struct Phoenix {
    itself: GcCell<Option<SharedGc<Phoenix>>>,
    owned: GcCell<Option<Gc<Phoenix>>>,
    #[trace(skip)]
    saved: Arc<Mutex<Vec<SharedGc<Phoenix>>>>,
    #[trace(skip)]
    witness: Witness,
}

impl Phoenix {
    fn finalize(this: &Gc<Self>, m: &Mutator) {
        let shared = Gc::try_share(this.clone(), m).expect("shared already, or this thread's");
        this.saved.lock().unwrap().push(shared.clone());
    }
}

#[test]
fn a_finalizer_revives_a_shared_object_which_dies_later() {
    on_every_heap_attached(|lab, m| {
        for (in_cycle, elsewhere) in [(false, false), (true, false), (false, true), (true, true)] {
            let saved = Arc::new(Mutex::new(Vec::new()));
            let phoenix = m.alloc_shared(Phoenix {
                itself: GcCell::default(),
                owned: GcCell::default(),
                saved: saved.clone(),
                witness: Witness::new(&lab.census, 0),
            });
            let weak = Gc::downgrade(SharedGc::as_gc(&phoenix), m);
            if in_cycle {
                phoenix.itself.set(m, Some(phoenix.clone()));
            }
            let take = || saved.lock().unwrap().pop();
            if elsewhere {
                m.detach(|| on_attached_thread(&lab.heap, |_| drop(phoenix)));
            } else {
                drop(phoenix);
            }
            m.collect();
            let again = take().expect("revived");
            assert!(Gc::is_finalized(SharedGc::as_gc(&again), m) && take().is_none());
            assert_eq!(count(&again), if in_cycle { 2 } else { 1 });
            again.witness.check();
            // A collection clears the weak references of garbage before it knows the survivors, or
            // keeps them: either way an upgrade finds the object, or nothing.
            drop(weak.upgrade(m));
            let clones: Vec<_> = (0..3).map(|_| again.clone()).collect();
            m.detach(|| on_attached_thread(&lab.heap, |_| drop(clones)));
            assert_eq!(count(&again), if in_cycle { 2 } else { 1 });
            drop(again);
            m.collect();
            assert!(weak.upgrade(m).is_none() && take().is_none());
            assert_eq!(lab.census.alive(), 0, "the second time it dies");
        }
    });
}

/// The thread that runs the finalizer owns the object: by its claim, or by the revival.
#[test]
fn a_finalizer_shares_an_object_that_was_owned() {
    on_every_heap_attached(|lab, m| {
        for in_cycle in [false, true] {
            let saved = Arc::new(Mutex::new(Vec::new()));
            let phoenix = m.alloc(Phoenix {
                itself: GcCell::default(),
                owned: GcCell::default(),
                saved: saved.clone(),
                witness: Witness::new(&lab.census, 0),
            });
            if in_cycle {
                phoenix.owned.set(m, Some(phoenix.clone()));
            }
            drop(phoenix);
            m.collect();
            let again = saved.lock().unwrap().pop().expect("revived");
            assert_eq!(count(&again), if in_cycle { 2 } else { 1 });
            m.verify().expect("a sound heap");
            let clones = vec![again.clone(); 3];
            m.detach(|| on_attached_thread(&lab.heap, |_| drop((clones, again))));
            m.collect();
            assert_eq!(lab.census.alive(), 0);
        }
    });
}

#[test]
fn a_weak_reference_is_upgraded_and_shared() {
    on_every_heap_attached(|lab, m| {
        let shared = class(m, &lab.census);
        let weak = Gc::downgrade(SharedGc::as_gc(&shared), m);
        let upgraded = weak.upgrade(m).expect("alive");
        assert_eq!(count(&shared), 2);
        let upgraded = Gc::try_share(upgraded, m).expect("shared already");
        drop(shared);
        let other = m.detach(|| {
            on_attached_thread(&lab.heap, |m| {
                weak.upgrade(m).map(|gc| Gc::try_share(gc, m).expect("shared already"))
            })
        });
        assert_eq!(count(&upgraded), 2);
        drop((upgraded, other));
        assert_eq!(lab.census.alive(), 0);
        assert!(weak.upgrade(m).is_none());
        // A callback is called at the end.
        let shared = class(m, &lab.census);
        let watch = m.alloc_weak(SharedGc::as_gc(&shared), (), |_, _| ());
        drop(shared);
        assert!(lab.census.alive() == 0 && watch.upgrade(m).is_none());
    });
}

#[test]
fn threads_that_may_not_drop_leave_it_to_those_that_may() {
    on_every_heap_attached(|lab, m| {
        let alive = || lab.census.alive();
        let make = |m: &Mutator| class(m, &lab.census);
        let shared = make(m);
        on_unattached_thread(|| drop(shared));
        assert_eq!(alive(), 1, "unattached");
        m.safepoint();
        assert_eq!(alive(), 0);
        let shared = make(m);
        m.detach(|| {
            let clone = shared.clone();
            drop((shared, clone));
            assert_eq!(alive(), 1, "detached");
        });
        m.safepoint();
        assert_eq!(alive(), 0);
        let shared = make(m);
        on_attached_thread(&Heap::new(), |_| {
            let clone = shared.clone();
            drop((shared, clone));
        });
        assert_eq!(alive(), 1, "attached to another heap");
        m.safepoint();
        assert_eq!(alive(), 0);
        // Another thread of this heap drops it at once.
        let shared = make(m);
        m.detach(|| on_attached_thread(&lab.heap, |_| drop(shared)));
        assert_eq!(alive(), 0);
    });
}

/// Drops a handle in its traversal.
struct Drops(Mutex<Option<SharedGc<u32>>>);

impl Trace for Drops {
    fn traverse(this: &Self, _: &mut standstill::Tracer) {
        drop(this.0.lock().unwrap().take());
    }
}

#[test]
fn a_drop_in_a_traversal_waits_for_its_end() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let shared = m.alloc_shared(7u32);
    let drops = m.alloc(Drops(Mutex::new(Some(shared.clone()))));
    m.collect();
    assert!(drops.0.lock().unwrap().is_none());
    m.safepoint();
    assert_eq!((count(&shared), *shared), (1, 7));
    m.verify().expect("a sound heap");
}

#[test]
fn the_thread_that_made_an_object_ends_and_no_mutator_inherits_it() {
    on_every_heap(|lab| {
        let census = &lab.census;
        let (shared, own) = on_attached_thread(&lab.heap, |m| {
            let shared: Vec<_> = (0..100).map(|_| class(m, census)).collect();
            for pair in shared.windows(2) {
                pair[0].base.set(m, Some(pair[1].clone()));
            }
            (shared, m.alloc(value(census, None)))
        });
        let mut m = lab.heap.attach();
        m.collect();
        // It can inherit the other object.
        let own = Gc::try_share(own, &m).expect("inherited");
        assert!(shared.iter().skip(1).all(|shared| count(shared) == 2));
        let clones = on_unattached_thread(|| shared.clone());
        m.collect();
        m.verify().expect("a sound heap");
        m.detach(|| on_attached_thread(&lab.heap, |_| drop(shared)));
        m.detach(|| on_unattached_thread(|| drop(own)));
        assert!(clones.iter().skip(1).all(|shared| count(shared) == 2));
        drop(clones);
        m.safepoint();
        assert_eq!(census.alive(), 0);
    });
}

#[test]
fn a_handle_outlives_its_heap() {
    let census = Census::new();
    let (shared, chain) = {
        let heap = Heap::new();
        let m = heap.attach();
        let chain: Vec<_> = (0..3).map(|_| class(&m, &census)).collect();
        chain[0].base.set(&m, Some(chain[1].clone()));
        chain[1].base.set(&m, Some(chain[2].clone()));
        (class(&m, &census), chain[0].clone())
    };
    assert_eq!(census.alive(), 4);
    let clone = shared.clone();
    drop(shared);
    clone.witness.check();
    Heap::new().attach_scoped(|_| drop(clone));
    assert_eq!(census.alive(), 3);
    on_unattached_thread(|| drop(chain));
    assert_eq!(census.alive(), 0);
}

#[test]
fn an_immortal_object_is_counted_and_never_freed() {
    let (heap, census) = (Heap::new(), Census::new());
    let mut m = heap.attach();
    let shared = class(&m, &census);
    Gc::immortalize(SharedGc::as_gc(&shared), &m);
    let immortal = m.alloc(value(&census, None));
    Gc::immortalize(&immortal, &m);
    let immortal = Gc::try_share(immortal, &m).expect("its own");
    let addresses = [&shared, &immortal].map(|s| Gc::as_ptr(SharedGc::as_gc(s)) as usize);
    let weak = Gc::downgrade(SharedGc::as_gc(&shared), &m);
    for shared in [shared, immortal] {
        let clone = shared.clone();
        drop((shared, clone));
    }
    let shared = weak.upgrade(&m).expect("immortal");
    let shared = Gc::try_share(shared, &m).expect("shared already");
    drop(shared);
    let shared = Gc::try_share(weak.upgrade(&m).expect("immortal"), &m).expect("shared already");
    on_unattached_thread(|| drop(shared));
    m.collect();
    m.verify().expect("a sound heap");
    assert_eq!(census.alive(), 2);
    live_for_ever(&heap, addresses);
}

#[test]
fn a_panic_of_a_destructor_goes_to_the_thread_that_drops_the_last_reference() {
    let (heap, census) = (Heap::new(), Census::new());
    let reports = Arc::new(AtomicUsize::new(0));
    heap.on_unraisable({
        let reports = reports.clone();
        move |_| {
            reports.fetch_add(1, SeqCst);
        }
    });
    let mut m = heap.attach();
    let loud = |m: &Mutator| {
        m.alloc_shared(value(&census, Some(Box::new(|| panic!("a loud destructor")))))
    };
    let (one, below) = (loud(&m), class(&m, &census));
    one.base.set(&m, Some(below));
    assert_eq!(panic_text(|| drop(one)).as_deref(), Some("a loud destructor"));
    assert_eq!((census.alive(), reports.load(SeqCst)), (0, 0), "the others die all the same");
    // A drain and a collection report the panic.
    let one = loud(&m);
    on_unattached_thread(|| drop(one));
    m.safepoint();
    assert_eq!((census.alive(), reports.load(SeqCst)), (0, 1));
    let one = loud(&m);
    one.base.set(&m, Some(one.clone()));
    drop(one);
    m.collect();
    assert_eq!((census.alive(), reports.load(SeqCst)), (0, 2));
    m.verify().expect("a sound heap");
}

#[test]
fn a_destructor_drops_the_last_reference_to_a_shared_object() {
    on_every_heap_attached(|lab, m| {
        // A list, longer than any stack, with an owned object behind each shared one.
        let mut list: Option<SharedGc<Class>> = None;
        for _ in 0..if lab.stress { 1_000 } else { 100_000 } {
            let next = class(m, &lab.census);
            let owned = m.alloc(value(&lab.census, None));
            owned.base.set(m, list);
            next.instances.lock(m).push(owned);
            list = Some(next);
        }
        drop(list);
        assert_eq!(lab.census.alive(), 0);
        // A destructor clones and drops a handle that its value has no part in.
        let other = class(m, &lab.census);
        let kept = Arc::new(Mutex::new(Some(other.clone())));
        let in_drop = kept.clone();
        let action = move || drop(in_drop.lock().unwrap().take().map(|kept| (kept.clone(), kept)));
        let first = m.alloc_shared(value(&lab.census, Some(Box::new(action))));
        drop((other, first));
        assert!(kept.lock().unwrap().is_none());
        assert_eq!(lab.census.alive(), 0);
    });
}

/// The memory of a full heap comes back with the value.
#[test]
fn a_refused_allocation_returns_its_value() {
    let heap = Heap::builder().reserve(1 << 24).build().expect("a heap");
    let m = heap.attach();
    let mut kept = Vec::new();
    let refused = loop {
        match m.try_alloc_shared([kept.len(); 256]) {
            Ok(shared) => kept.push(shared),
            Err(refused) => break refused.into_inner(),
        }
    };
    assert_eq!(refused, [kept.len(); 256]);
    assert!(panic_text(|| drop(m.alloc_shared([0usize; 256]))).is_some());
    drop(kept);
    assert_eq!(heap.stats().live_objects, 0);
}

/// Threads clone, drop, store and upgrade the same objects, and collect, in all stress modes.
#[test]
fn many_threads_count_the_same_objects() {
    let _watch = deadline("many threads");
    for stress in [Stress::none(), Stress::all(7).collect_at_safepoints(16)] {
        let busy = if stress.is_none() { 4000 } else { 300 };
        let heap = Heap::builder().reserve(1 << 30).workers(2).stress(stress).build().unwrap();
        let census = Census::new();
        let classes: Vec<_> = heap.attach_scoped(|m| {
            let classes: Vec<_> = (0..4).map(|_| class(m, &census)).collect();
            for class in &classes {
                class.members.lock(m).extend(classes.iter().cloned());
            }
            classes
        });
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let mut mine = classes.clone();
                let (heap, barrier, census) = (&heap, &barrier, &census);
                scope.spawn(move || {
                    let mut m = heap.attach();
                    m.detach(|| barrier.wait());
                    let weak = Gc::downgrade(SharedGc::as_gc(&mine[thread]), &m);
                    let mut random = Rng::new(thread as u64);
                    for _ in 0..busy {
                        let one = mine[random.below(mine.len())].clone();
                        match random.below(8) {
                            0 => mine.push(one),
                            1 if mine.len() > 4 => drop(mine.swap_remove(4)),
                            2 => one.base.set(&m, Some(class(&m, census))),
                            3 => drop(one.base.take(&m)),
                            4 => drop(weak.upgrade(&m)),
                            5 => drop(m.detach(|| (one.clone(), one))),
                            6 => m.safepoint(),
                            _ => {
                                let own = m.alloc(value(census, None));
                                own.base.set(&m, Some(one));
                                drop(Gc::try_share(own, &m));
                            }
                        }
                        if random.one_in(if stress.is_none() { 500 } else { 100 }) {
                            m.collect();
                        }
                    }
                });
            }
        });
        let mut m = heap.attach();
        m.collect();
        m.verify().expect("a sound heap");
        for class in &classes {
            drop(class.base.take(&m));
            assert_eq!(count(class), 5, "this handle, and one in each class");
        }
        drop(classes);
        m.collect();
        assert_eq!((census.alive(), heap.stats().live_objects), (0, 0));
    }
}
