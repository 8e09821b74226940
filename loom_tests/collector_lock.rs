//! The collector lock, and reclaim queues that are handed over.
//!
//! * free, taken, free, while a thread waits:
//!   [`loom_a_reclaim_queue_ends_once_and_the_lock_is_released`]
//! * taken, reclaiming, taken, free: the same
//! * taken, free, taken, with a requester: [`loom_the_lock_goes_to_the_requester`]
//! * the same in a heap: `collect::loom_a_reclaim_queue_is_finished_once`

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::model;
use crate::heap::collector_lock::CollectorLock;
use crate::heap::reclaim_queue::{OpenReport, Owner, ReclaimQueue, ThreadGarbage};
use crate::object::address::Object;
use crate::report::event;
use crate::report::facts::{CollectionKind, CollectionReport, PhaseTimes};
use crate::safepoint::{Coordinator, ThreadId};

/// The objects of the queue. The model never dereferences them.
const OBJECTS: usize = 3;

struct World {
    lock: CollectorLock,
    cleared: [AtomicUsize; OBJECTS],
    ended: AtomicUsize,
}

fn name(number: usize) -> Object {
    Object::new(NonNull::new((number * 32 + 32) as *mut u8).unwrap())
}

/// Takes one batch, and reclaims all of its objects but the first of the queue.
fn work(world: &World, whose: Owner) -> bool {
    let Some(mut batch) = world.lock.take_batch(whose, None) else { return false };
    for object in batch.objects() {
        let cleared = &world.cleared[object.address() / 32 - 1];
        assert_eq!(cleared.fetch_add(1, Relaxed), 0, "cleared twice");
    }
    batch.retain(|object| object == name(0));
    if let Some(queue) = world.lock.finish_batch(batch) {
        let cleared: usize = world.cleared.iter().map(|n| n.load(Relaxed)).sum();
        assert_eq!(cleared, OBJECTS, "ended before all is cleared");
        let left: Vec<Object> = queue.into_left().1.flatten().collect();
        assert_eq!(left, [name(0)], "the object that is alive is given back");
        assert_eq!(world.ended.fetch_add(1, Relaxed), 0, "ended twice");
        world.lock.release();
    }
    true
}

/// One thread hands over a queue, works on its own garbage, and leaves. The other thread requests
/// the lock, helps, waits, and acquires it.
#[test]
fn loom_a_reclaim_queue_ends_once_and_the_lock_is_released() {
    model(|| {
        let coordinator = Coordinator::<()>::new();
        let [mine, theirs]: [ThreadId; 2] = [(); 2].map(|()| coordinator.register(()).id());
        let world = Arc::new(World {
            lock: CollectorLock::new(),
            cleared: Default::default(),
            ended: AtomicUsize::new(0),
        });
        assert!(world.lock.try_acquire());
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut request = world.lock.request();
                while !request.try_acquire() {
                    if !work(&world, Owner::Any) {
                        let _ = request.wait(Duration::ZERO);
                    }
                }
                drop(request);
                assert_eq!(world.ended.load(Relaxed), 1);
                world.lock.release();
            })
        };
        let open = OpenReport {
            report: CollectionReport::new(CollectionKind::Full),
            quiet: true,
            begun: Instant::now(),
            span: event::collection(CollectionKind::Full, "model"),
            stop_limit: None,
            external_before: 0,
            phases_before: PhaseTimes::default(),
            rest: None,
            is_superseded: false,
        };
        let threads = vec![
            ThreadGarbage::new(mine, vec![name(0), name(1)]),
            ThreadGarbage::new(theirs, vec![name(2)]),
        ];
        let whole = ThreadGarbage::new(mine, Vec::new());
        world.lock.hand_over(ReclaimQueue::new(whole, threads, open));
        while work(&world, Owner::This(mine)) {}
        other.join().unwrap();
        assert!(!world.lock.is_reclaiming());
        assert!(world.lock.try_acquire());
    });
}

/// One thread requests the lock while another has it. After the request, the other thread does not
/// acquire the lock again before the requester.
#[test]
fn loom_the_lock_goes_to_the_requester() {
    model(|| {
        let lock = Arc::new(CollectorLock::new());
        let (has_asked, has_had) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        assert!(lock.try_acquire());
        let other = {
            let (lock, has_asked, has_had) = (lock.clone(), has_asked.clone(), has_had.clone());
            thread::spawn(move || {
                let mut request = lock.request();
                has_asked.store(true, SeqCst);
                while !request.try_acquire() {
                    let _ = request.wait(Duration::ZERO);
                }
                has_had.store(true, SeqCst);
                drop(request);
                lock.release();
            })
        };
        let is_waiting = has_asked.load(SeqCst);
        lock.release();
        if lock.try_acquire() {
            assert!(!is_waiting || has_had.load(SeqCst), "the thread that has asked is passed by");
            lock.release();
        }
        other.join().unwrap();
        assert!(lock.try_acquire(), "no thread has it");
    });
}
