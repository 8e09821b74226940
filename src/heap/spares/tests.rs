//! Tests of `heap/spares.rs`.

#![forbid(unsafe_code)]

use std::sync::{Arc, Barrier};
use std::thread;

use super::MOST;
use crate::managed::ManagedCore;
use crate::{Heap, Mutator};

fn heap() -> Heap {
    Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap")
}

fn core(m: &Mutator) -> Arc<ManagedCore> {
    Arc::clone(m.raw().core())
}

fn arena_id(m: &Mutator) -> u32 {
    m.raw().arena(|arena| arena.id())
}

/// The numbers of spare arenas and of free ids, and the last id.
fn spare(core: &ManagedCore) -> (usize, usize, u32) {
    let spare = core.spares.lock();
    (spare.kept.len(), spare.ids.len(), spare.last)
}

#[test]
fn the_next_mutator_on_any_thread_gets_the_arena_of_the_last() {
    let heap = heap();
    let m = heap.attach();
    let core = core(&m);
    assert_eq!((arena_id(&m), spare(&core)), (1, (0, 0, 1)));
    let kept = m.alloc(7u64);
    drop(m.alloc([0u64; 100]));
    drop(m);
    assert_eq!(spare(&core), (1, 0, 1));
    // It is no thread, and owns no page.
    let stats = heap.stats();
    assert_eq!((stats.mutators, stats.live_objects), (0, 1));
    assert!(stats.leaked_mutators.is_empty());
    let pool = core.space.pool();
    assert_eq!((pool.in_use, pool.abandoned.len()), (1, 1), "one page, with one object");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            assert_eq!((arena_id(&m), spare(&core)), (1, (0, 0, 1)));
            assert_eq!(*kept, 7);
            drop(m.alloc(8u64));
            m.verify().expect("a whole heap");
        });
    });
    assert_eq!(spare(&core), (1, 0, 1));
}

#[test]
fn a_heap_keeps_some_arenas_and_the_ids_of_all() {
    const THREADS: usize = MOST + 3;
    let heap = heap();
    let m = heap.attach();
    let core = core(&m);
    drop(m);
    for _ in 0..2 {
        let (attached, all) = (Barrier::new(THREADS), Barrier::new(THREADS));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let m = heap.attach();
                    let id = arena_id(&m);
                    attached.wait();
                    assert!(id as usize <= THREADS);
                    assert_eq!(spare(&core), (0, 0, THREADS as u32));
                    all.wait();
                    drop(m);
                });
            }
        });
        assert_eq!(spare(&core), (MOST, THREADS - MOST, THREADS as u32));
    }
    let spare = core.spares.lock();
    let mut ids: Vec<_> = spare.kept.iter().map(|spare| spare.arena_id()).collect();
    ids.extend(&spare.ids);
    ids.sort_unstable();
    assert_eq!(ids, (1..=THREADS as u32).collect::<Vec<_>>(), "each id once");
}

/// Then that thread frees the arena.
#[test]
fn an_arena_that_another_thread_is_looking_at_gives_only_its_id_back() {
    let heap = heap();
    let m = heap.attach();
    let core = core(&m);
    let id = m.raw().thread_id();
    core.coordinator.with_data(id, |_| drop(m)).expect("it was registered");
    assert_eq!(spare(&core), (0, 1, 1));
    let m = heap.attach();
    assert_eq!((arena_id(&m), spare(&core)), (1, (0, 0, 1)));
}
