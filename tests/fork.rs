//! A heap across `fork`: the child finds it whole, with one mutator.
//!
//! | the fork | test |
//! |---|---|
//! | by an attached thread, while others run | `the_child_collects_the_garbage_of_lost_threads_and_goes_on` |
//! | by a detached thread, of several heaps | `a_detached_thread_forks_and_its_child_collects_in_each_heap` |
//! | while another thread is in any phase of a collection | `in_each_phase_of_another_threads_collection_the_child_collects` |
//! | while another thread waits for the second stop of its collection | `garbage_that_a_lost_thread_had_claimed_is_collected_in_the_child` |
//! | while another thread clears, after a finalizer has saved an object | `an_object_that_a_finalizer_has_saved_dies_in_the_child_too` |
//! | while other threads make heaps, name roots and change settings | `a_child_waits_for_no_lost_thread_that_used_settings` |
//! | given up, while another thread is in a finalizer | `a_fork_gives_up_beside_a_finalizer_that_waits_for_it` |
//! | none: it is held | `a_thread_that_uses_a_setting_waits_for_the_end_of_a_fork` |
//! | while another thread writes to standard error | `a_message_of_the_library_in_a_child_waits_for_no_lost_thread` |
//! | while another thread visits all objects | `a_child_collects_also_if_a_lost_thread_was_visiting_all_objects` |
//! | while another thread writes a snapshot, and threads mark | `a_child_collects_also_if_a_lost_thread_was_writing_a_snapshot` |
//! | left by `exit`, in the child or the parent | `a_process_that_exits_inside_a_fork_ends_with_its_own_status` |
//!
//! With `STANDSTILL_STRESS_SECS` there are 400 children of each kind.
#![cfg(not(loom))]

mod common;
#[path = "common/forked.rs"]
mod forked;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use standstill::safepoint::StopError;
use standstill::{Finalizer, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

use crate::common::child::{Process, is_alone, role};
use crate::forked::on_new_thread;

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

fn ring(m: &standstill::Mutator, n: usize) -> Gc<Node> {
    let first = m.alloc(Node { next: GcCell::default() });
    let mut last = first.clone();
    for _ in 1..n {
        last = m.alloc(Node { next: GcCell::new(Some(last)) });
    }
    first.next.set(m, Some(last));
    first
}

/// The meaning of the child's exit status.
fn child_says(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `pid` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn the_child_collects_the_garbage_of_lost_threads_and_goes_on() {
    if !is_alone("the_child_collects_the_garbage_of_lost_threads_and_goes_on") {
        return;
    }
    let builder = Heap::builder()
        .workers(2)
        .serial_below(0)
        .pacing(Pacing::default().with_young_objects(500));
    #[cfg(feature = "stacks")]
    let builder = builder.sample_allocations(1);
    let heap = builder.build().expect("a heap");
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (heap, stop) = (heap.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut m = heap.attach();
                let mut kept = ring(&m, 3);
                while !stop.load(Ordering::Relaxed) {
                    kept = ring(&m, 3);
                    m.safepoint();
                }
                drop(kept);
            })
        })
        .collect();
    let mut m = heap.attach();
    let mine = ring(&m, 5);
    // Most likely the pool runs now, so that the child has threads to forget.
    m.collect();
    for _ in 0..5 {
        let fork = m.prepare_fork().expect("the world stops");
        // SAFETY: the world is stopped; the child uses this heap and then leaves without
        // destructors.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            // SAFETY: a child that hangs is killed.
            unsafe { libc::alarm(20) };
            fork.child();
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut m = m;
                assert_eq!(heap.stats().mutators, 1);
                m.verify().expect("a whole heap");
                m.collect();
                // The other threads' last rings are held by handles on stacks that do not exist any
                // more: they stay. Everything else of theirs is gone, and ours is whole.
                assert!(heap.stats().live_objects <= 5 + 2 * 6, "{:?}", heap.stats());
                #[cfg(feature = "stacks")]
                assert_eq!(
                    m.allocation_sites()
                        .unwrap()
                        .sites
                        .iter()
                        .map(|site| site.samples)
                        .sum::<usize>(),
                    heap.stats().live_objects
                );
                let mut at = mine.clone();
                for _ in 0..5 {
                    at = at.next.get(&m).expect("a ring");
                }
                assert!(at == mine);
                drop((at, mine));
                drop(ring(&m, 100));
                assert_eq!(m.collect().collected, 105);
                let other = || {
                    let mut m = heap.attach();
                    drop(ring(&m, 7));
                    m.collect().collected
                };
                let collected = m.detach(|| on_new_thread(other));
                assert_eq!(collected, 7);
                std::mem::forget(m);
            }));
            // SAFETY: no destructors, no output: this is a copy of a test process.
            unsafe { libc::_exit(i32::from(code.is_err())) };
        }
        fork.parent();
        assert_eq!(m.detach(|| child_says(pid)), 0);
    }
    stop.store(true, Ordering::Relaxed);
    m.detach(|| others.into_iter().for_each(|t| t.join().expect("a thread")));
    drop(mine);
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

/// The number of children of one kind.
fn children(few: usize) -> usize {
    if std::env::var_os("STANDSTILL_STRESS_SECS").is_some() { 400 } else { few }
}

/// The child's part of a fork. Leaves without destructors and without output, because it is a copy
/// of a test process.
fn in_child(f: impl FnOnce()) -> ! {
    let result = catch_unwind(AssertUnwindSafe(f));
    // SAFETY: no destructors.
    unsafe { libc::_exit(i32::from(result.is_err())) }
}

/// SAFETY: the child runs `in_child`.
unsafe fn fork() -> libc::pid_t {
    // SAFETY: as the caller says.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: a child that hangs is killed.
        unsafe { libc::alarm(20) };
    }
    pid
}

#[test]
fn a_detached_thread_forks_and_its_child_collects_in_each_heap() {
    if !is_alone("a_detached_thread_forks_and_its_child_collects_in_each_heap") {
        return;
    }
    let heaps = [(); 2].map(|()| Heap::builder().workers(1).build().expect("a heap"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for heap in heaps.iter().chain(&heaps) {
            let stop = &stop;
            scope.spawn(move || {
                let mut m = heap.attach();
                while !stop.load(Ordering::Relaxed) {
                    drop(ring(&m, 3));
                    m.safepoint();
                }
            });
        }
        let _over = Over(&stop);
        let collects = |heap: &Heap| {
            let mut m = heap.attach();
            assert_eq!(heap.stats().mutators, 1);
            m.collect();
            drop(ring(&m, 100));
            assert_eq!(m.collect().collected, 100);
            m.verify().expect("a whole heap");
        };
        for round in 0..children(6) {
            // Once from inside a detach, too.
            let attached = (round % 2 == 1).then(|| heaps[0].attach().into_detached());
            let fork_of = Heap::prepare_fork(&heaps).expect("the worlds stop");
            assert!(heaps[1].try_attach().is_err(), "the thread holds stops");
            // SAFETY: the worlds are stopped; the child leaves in `in_child`.
            let pid = unsafe { fork() };
            if pid == 0 {
                fork_of.child();
                in_child(|| {
                    drop(attached);
                    heaps.iter().for_each(collects);
                });
            }
            fork_of.parent();
            drop(attached);
            assert_eq!(child_says(pid), 0);
        }
        let m = heaps[0].attach();
        assert!(matches!(Heap::prepare_fork(&heaps), Err(StopError::Attached)));
        drop(m);
        let same = [heaps[0].clone(), heaps[0].clone()];
        let twice = Heap::prepare_fork(&same).expect("one heap, named twice");
        let refused = catch_unwind(AssertUnwindSafe(|| twice.child())).expect_err("no fork");
        assert!(text(refused).contains("in the process that prepared the fork"));
    });
}

/// A ring whose first object has a finalizer.
#[derive(Trace)]
#[trace(finalize)]
struct Ended {
    next: GcCell<Option<Gc<Ended>>>,
    /// Tells that a finalizer runs, and waits for the other thread's fork.
    meets: Option<Arc<[AtomicBool; 2]>>,
}

impl Ended {
    fn finalize(&self, _: &standstill::Mutator) {
        if let Some(meets) = &self.meets {
            meet(meets);
        }
    }
}

/// Tells the other thread where this one is, and waits for its fork.
fn meet(meets: &[AtomicBool; 2]) {
    meets[0].store(true, Ordering::SeqCst);
    while !meets[1].load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    // Most likely the fork's stop is on by now, so that it comes before the next stop or poll.
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// The claim's references of the lost collection are dropped.
#[test]
fn garbage_that_a_lost_thread_had_claimed_is_collected_in_the_child() {
    const OBJECTS: usize = 10;
    if !is_alone("garbage_that_a_lost_thread_had_claimed_is_collected_in_the_child") {
        return;
    }
    for _ in 0..children(5) {
        let heap = Heap::builder().workers(1).pacing(Pacing::manual()).build().expect("a heap");
        let meets = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        std::thread::scope(|scope| {
            let theirs = Arc::clone(&meets);
            let heap = &heap;
            let collector = scope.spawn(move || {
                let mut m = heap.attach();
                for meets in std::iter::once(Some(theirs)).chain((1..OBJECTS).map(|_| None)) {
                    let object = m.alloc(Ended { next: GcCell::default(), meets });
                    object.next.set(&m, Some(object.clone()));
                }
                m.collect().collected
            });
            let mut m = heap.attach();
            m.detach(|| {
                while !meets[0].load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
            meets[1].store(true, Ordering::SeqCst);
            let prepared = m.prepare_fork().expect("the world stops");
            // SAFETY: the world is stopped; the child leaves in `in_child`.
            let pid = unsafe { fork() };
            if pid == 0 {
                prepared.child();
                in_child(|| {
                    m.verify().expect("a whole heap");
                    m.collect();
                    assert_eq!(heap.stats().live_objects, 0, "nothing is kept for ever");
                    drop(ring(&m, 100));
                    assert_eq!(m.collect().collected, 100);
                });
            }
            prepared.parent();
            m.detach(|| {
                assert_eq!(child_says(pid), 0);
                assert_eq!(collector.join().expect("no panic"), OBJECTS);
            });
        });
    }
}

/// The finalizer waits for the thread that forks, so a fork without a limit would wait for ever.
#[test]
fn a_fork_gives_up_beside_a_finalizer_that_waits_for_it() {
    const LIMIT: std::time::Duration = std::time::Duration::from_millis(5);
    if !is_alone("a_fork_gives_up_beside_a_finalizer_that_waits_for_it") {
        return;
    }
    let heap = Heap::builder().workers(1).pacing(Pacing::manual()).build().expect("a heap");
    let meets = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    std::thread::scope(|scope| {
        let (theirs, heap) = (Arc::clone(&meets), &heap);
        let collector = scope.spawn(move || {
            let mut m = heap.attach();
            let object = m.alloc(Ended { next: GcCell::default(), meets: Some(theirs) });
            object.next.set(&m, Some(object.clone()));
            drop(object);
            (standstill::safepoint::current(), m.collect().collected)
        });
        let mut m = heap.attach();
        m.detach(|| {
            while !meets[0].load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        let late = |result: Result<(), StopError>| match result {
            Err(StopError::TimedOut { stragglers }) => stragglers[0].thread.id.get(),
            other => panic!("{other:?}"),
        };
        let attached = late(m.try_prepare_fork(LIMIT).map(drop));
        let heaps = std::slice::from_ref(heap);
        let detached = m.detach(|| late(Heap::try_prepare_fork(heaps, LIMIT).map(drop)));
        assert!(m.may_park() && heap.stats().mutators == 2, "no lock is held");
        meets[1].store(true, Ordering::SeqCst);
        let found = m.detach(|| collector.join().expect("no panic"));
        assert_eq!(found, (attached, 1));
        assert_eq!(attached, detached);
        let prepared = m.try_prepare_fork(LIMIT).expect("no other thread is left");
        // SAFETY: the world is stopped; the child leaves in `in_child`.
        let pid = unsafe { fork() };
        if pid == 0 {
            prepared.child();
            in_child(|| {
                drop(ring(&m, 100));
                assert_eq!(m.collect().collected, 100);
            });
        }
        prepared.parent();
        assert_eq!(child_says(pid), 0);
    });
}

/// An object that its finalizer saves, or one that is cleared while another thread forks.
struct Saved {
    next: GcCell<Option<Gc<Saved>>>,
    by: Option<Arc<Mutex<Option<Gc<Saved>>>>>,
    meets: Option<Arc<[AtomicBool; 2]>>,
}

impl Trace for Saved {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, m| {
        if let Some(by) = &this.by {
            *by.lock().expect("no panic") = this.next.get(m);
        }
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        if let Some(meets) = &this.meets {
            meet(meets);
        }
        Trace::clear(&this.next, m);
    }
}

/// The lost collection has no reference to an object that is no garbage any more.
#[test]
fn an_object_that_a_finalizer_has_saved_dies_in_the_child_too() {
    if !is_alone("an_object_that_a_finalizer_has_saved_dies_in_the_child_too") {
        return;
    }
    for _ in 0..children(3) {
        let heap = Heap::builder().workers(1).pacing(Pacing::manual()).build().expect("a heap");
        let meets = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let by = Arc::new(Mutex::new(None));
        std::thread::scope(|scope| {
            let (heap, theirs, saver) = (&heap, Arc::clone(&meets), Arc::clone(&by));
            let collector = scope.spawn(move || {
                let mut m = heap.attach();
                let alone = |by, meets| {
                    let object = m.alloc(Saved { next: GcCell::default(), by, meets });
                    object.next.set(&m, Some(object.clone()));
                };
                alone(Some(saver), None);
                alone(None, Some(theirs));
                // So many that the thread parks while it clears.
                (0..10_000).for_each(|_| alone(None, None));
                m.collect().resurrected
            });
            let mut m = heap.attach();
            m.detach(|| {
                while !meets[0].load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
            meets[1].store(true, Ordering::SeqCst);
            let prepared = m.prepare_fork().expect("the world stops");
            // SAFETY: the world is stopped; the child leaves in `in_child`.
            let pid = unsafe { fork() };
            if pid == 0 {
                prepared.child();
                in_child(|| {
                    by.lock().expect("no panic").take().expect("it was saved").next.take(&m);
                    m.verify().expect("a whole heap");
                    m.collect();
                    assert_eq!(heap.stats().live_objects, 0, "nothing is kept for ever");
                });
            }
            prepared.parent();
            m.detach(|| {
                assert_eq!(child_says(pid), 0);
                assert_eq!(collector.join().expect("no panic"), 1);
            });
            by.lock().expect("no panic").take();
        });
    }
}

#[test]
fn in_each_phase_of_another_threads_collection_the_child_collects() {
    if !is_alone("in_each_phase_of_another_threads_collection_the_child_collects") {
        return;
    }
    // With much garbage the collecting thread parks while it clears and releases, and automatic
    // collections have reclaim queues.
    let pacing = Pacing::default().with_young_objects(3000);
    let heap = Heap::builder().workers(2).serial_below(0).pacing(pacing).build().expect("a heap");
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for requests in [true, false] {
            let (heap, stop, rounds) = (&heap, &stop, &rounds);
            scope.spawn(move || {
                let mut m = heap.attach();
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..200 {
                        drop(ring(&m, 10));
                        let object = m.alloc(Ended { next: GcCell::default(), meets: None });
                        object.next.set(&m, Some(object.clone()));
                        m.safepoint();
                    }
                    if requests {
                        m.collect();
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = Over(&stop);
        let mut m = heap.attach();
        let mine = ring(&m, 5);
        for number in 0..children(8) {
            let before = rounds.load(Ordering::Relaxed);
            m.detach(|| {
                while rounds.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                (0..number % 7 * 50).for_each(|_| std::thread::yield_now());
            });
            let prepared = m.prepare_fork().expect("the world stops");
            // SAFETY: the world is stopped; the child leaves in `in_child`.
            let pid = unsafe { fork() };
            if pid == 0 {
                prepared.child();
                in_child(|| {
                    m.verify().expect("a whole heap");
                    assert_eq!(m.collect().abandoned, None);
                    m.verify().expect("a whole heap");
                    // Handles of the lost threads keep the rest.
                    let left = heap.stats().live_objects;
                    assert!(left <= 5 + 2 * 12, "{left}");
                    drop((mine, ring(&m, 100)));
                    assert_eq!(m.collect().collected, 105);
                    for _ in 0..1000 {
                        drop(ring(&m, 10));
                        m.safepoint();
                    }
                });
            }
            prepared.parent();
            assert_eq!(m.detach(|| child_says(pid)), 0);
        }
    });
}

#[test]
fn a_process_that_exits_inside_a_fork_ends_with_its_own_status() {
    const TEST: &str = "a_process_that_exits_inside_a_fork_ends_with_its_own_status";
    let heap = Heap::builder().workers(1).pacing(Pacing::manual()).build().expect("a heap");
    let Some(role) = role() else {
        for role in ["parent", "detached parent", "children"] {
            let status = Process::start(TEST, role, |_| ()).ends();
            assert_eq!(status.code(), Some(7), "{role}: {status}");
        }
        return;
    };
    match &*role {
        "parent" => {
            let mut m = heap.attach();
            let _inside = m.prepare_fork().expect("the world stops");
            std::process::exit(7);
        }
        "detached parent" => {
            let _inside = heap.attach().into_detached();
            let heaps = [heap];
            let _inside = Heap::prepare_fork(&heaps).expect("the world stops");
            std::process::exit(7);
        }
        _ => {
            let mut m = heap.attach();
            for repairs in [false, true] {
                let prepared = m.prepare_fork().expect("the world stops");
                // SAFETY: the child ends here.
                let pid = unsafe { fork() };
                if pid == 0 {
                    // As after an `exec` that has failed.
                    if repairs {
                        prepared.child()
                    } else {
                        std::mem::forget(prepared)
                    }
                    std::process::exit(7);
                }
                prepared.parent();
                assert_eq!(m.detach(|| child_says(pid)), 7, "{repairs}");
            }
            std::process::exit(7);
        }
    }
}

#[cfg(feature = "cpython")]
#[test]
fn a_child_collects_also_if_a_lost_thread_was_visiting_all_objects() {
    use standstill::gc_module::Visit;
    if !is_alone("a_child_collects_also_if_a_lost_thread_was_visiting_all_objects") {
        return;
    }
    let pacing = Pacing::default().with_young_objects(100);
    let heap = Heap::builder().pacing(pacing).build().expect("a heap");
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let theirs = &heap;
        scope.spawn(move || {
            let mut m = theirs.attach();
            let _kept = ring(&m, 1);
            let visited = theirs.services().visit_objects(&mut m, |_, m| {
                tell.send(()).expect("a reader");
                m.detach(|| ended.recv().expect_err("it hangs up"));
                Visit::Continue
            });
            assert_eq!(visited, Ok(1));
        });
        told.recv().expect("the visit has begun");
        let mut m = heap.attach();
        let prepared = m.prepare_fork().expect("the world stops");
        // SAFETY: the world is stopped; the child leaves in `in_child`.
        let pid = unsafe { fork() };
        if pid == 0 {
            prepared.child();
            in_child(|| {
                assert!(!heap.services().is_visiting());
                (0..1_000).for_each(|_| {
                    drop(ring(&m, 10));
                    m.safepoint();
                });
                assert!(heap.stats().collections > 0);
            });
        }
        prepared.parent();
        assert!(heap.services().is_visiting());
        drop(end);
        assert_eq!(m.detach(|| child_says(pid)), 0);
    });
}

#[test]
fn a_child_collects_also_if_a_lost_thread_was_writing_a_snapshot() {
    const TEST: &str = "a_child_collects_also_if_a_lost_thread_was_writing_a_snapshot";
    const VARIABLE: &str = "STANDSTILL_DIAG";
    if role().is_none() {
        let folder = std::env::temp_dir().join(format!("standstill-fork-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let prepare = |command: &mut std::process::Command| {
            command.env(VARIABLE, &folder);
        };
        let status = Process::start(TEST, "alone", prepare).ends();
        std::fs::remove_dir_all(&folder).expect("the folder");
        return assert!(status.success(), "{status}");
    }
    let folder = std::path::PathBuf::from(std::env::var_os(VARIABLE).expect("a folder"));
    let heap = Heap::builder().workers(2).serial_below(0).build().expect("a heap");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            while !stop.load(Ordering::Relaxed) {
                drop(ring(&m, 10));
                m.collect();
            }
        });
        let _over = Over(&stop);
        let mut m = heap.attach();
        let kept = ring(&m, 20_000);
        for number in 0..children(8) {
            std::fs::write(folder.join("snapshot"), "").expect("a request");
            // The request is served within 250 ms, and that takes a while.
            let wait = std::time::Duration::from_millis(number as u64 % 8 * 45);
            m.detach(|| std::thread::sleep(wait));
            let prepared = m.prepare_fork().expect("the world stops");
            // SAFETY: the world is stopped; the child leaves in `in_child`.
            let pid = unsafe { fork() };
            if pid == 0 {
                prepared.child();
                in_child(|| {
                    m.verify().expect("a whole heap");
                    drop(ring(&m, 100));
                    let report = m.collect();
                    assert!(report.abandoned.is_none() && report.collected >= 100);
                    assert!(m.graph().objects() >= 20_000);
                });
            }
            prepared.parent();
            assert_eq!(m.detach(|| child_says(pid)), 0);
        }
        let is_written = || {
            let files = std::fs::read_dir(&folder).expect("a folder").flatten();
            files
                .into_iter()
                .any(|file| file.path().extension().is_some_and(|it| it == "heapsnapshot"))
        };
        m.detach(|| {
            while !is_written() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        drop(kept);
    });
}

#[test]
fn a_child_waits_for_no_lost_thread_that_used_settings() {
    if !is_alone("a_child_waits_for_no_lost_thread_that_used_settings") {
        return;
    }
    let made = || Heap::builder().reserve(1 << 26).build().expect("a heap");
    let heap = made();
    let stop = AtomicBool::new(false);
    let uses_settings = || {
        heap.set_pacing(heap.pacing().with_full_minimum(1_000));
        heap.on_unraisable(|_| ());
        heap.on_slow_stop(|_| ());
        #[cfg(feature = "cpython")]
        {
            let callback = heap.services().add_callback(|_, _| ());
            assert!(heap.services().remove_callback(callback));
            heap.services().set_audit_hook(|_| ());
        }
    };
    // Either of the two kinds of forks.
    fn forked<T>(prepared: Result<T, StopError>, uses_settings: &dyn Fn()) {
        let prepared = prepared.expect("the world stops");
        // Not even this thread waits for itself.
        uses_settings();
        // SAFETY: the world is stopped; the child leaves in `in_child`.
        let pid = unsafe { fork() };
        drop(prepared);
        if pid == 0 {
            in_child(uses_settings);
        }
        assert_eq!(child_says(pid), 0);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                uses_settings();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(made());
            }
        });
        let _over = Over(&stop);
        for _ in 0..children(20) {
            let mut m = heap.attach();
            let root = ring(&m, 1);
            let uses_settings = || {
                uses_settings();
                drop(heap.known_root(root.clone()));
                drop(made());
            };
            forked(m.prepare_fork(), &uses_settings);
            let m = m.into_detached();
            forked(Heap::prepare_fork(std::slice::from_ref(&heap)), &uses_settings);
            drop(m);
        }
    });
}

#[test]
fn a_thread_that_uses_a_setting_waits_for_the_end_of_a_fork() {
    let heap = Heap::new();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mut m = heap.attach();
        let fork = m.prepare_fork().expect("the world stops");
        scope.spawn(|| tell.send(heap.pacing()).expect("a reader"));
        // A slow machine can hide a fault here, and cannot cause a failure.
        assert!(told.recv_timeout(std::time::Duration::from_millis(100)).is_err());
        fork.parent();
        told.recv().expect("the thread goes on");
    });
}

#[test]
fn a_message_of_the_library_in_a_child_waits_for_no_lost_thread() {
    if !is_alone("a_message_of_the_library_in_a_child_waits_for_no_lost_thread") {
        return;
    }
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _lock = std::io::stderr().lock();
            tell.send(()).expect("a reader");
            ended.recv().expect_err("it hangs up");
        });
        told.recv().expect("the lock is taken");
        let mut m = heap.attach();
        let prepared = m.prepare_fork().expect("the world stops");
        // SAFETY: the world is stopped; the child leaves in `in_child`.
        let pid = unsafe { fork() };
        if pid == 0 {
            prepared.child();
            in_child(|| {
                // It says that collections have been deferred for long.
                heap.set_pacing(Pacing::default().with_young_objects(1));
                let _guard = heap.defer_collections();
                (0..10_000).for_each(|_| drop(ring(&m, 1)));
                m.safepoint();
            });
        }
        prepared.parent();
        assert_eq!(child_says(pid), 0);
        drop(end);
    });
}

/// The text of a panic.
fn text(payload: Box<dyn std::any::Any + Send>) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|&text| text.to_owned())
        .or_else(|| payload.downcast().ok().map(|text| *text))
        .unwrap_or_default()
}

/// Stops the other threads, also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_process_that_prepared_a_fork_is_not_taken_for_its_child() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let (stop, safepoints) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut m = heap.attach();
            let kept = ring(&m, 3);
            while !stop.load(Ordering::Relaxed) {
                m.safepoint();
                safepoints.fetch_add(1, Ordering::Relaxed);
                drop(m.alloc(Node { next: GcCell::default() }));
            }
            drop(kept);
        });
        let over = Over(&stop);
        let mut m = heap.attach();
        m.detach(|| {
            while safepoints.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        });
        for _ in 0..20 {
            let fork = m.prepare_fork().expect("the world stops");
            let refused =
                catch_unwind(AssertUnwindSafe(|| fork.child())).expect_err("there was no fork");
            assert!(text(refused).contains("in the process that prepared the fork"));
            assert_eq!(heap.stats().mutators, 2);
            m.collect();
            m.verify().expect("a whole heap");
        }
        // The other thread goes on as before.
        let so_far = safepoints.load(Ordering::Relaxed);
        m.detach(|| {
            while safepoints.load(Ordering::Relaxed) < so_far + 10 {
                std::thread::yield_now();
            }
        });
        drop(over);
        m.detach(|| other.join()).expect("the other thread saw nothing of it");
        m.collect();
    });
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_child_that_calls_parent_is_a_child_all_the_same() {
    if !is_alone("a_child_that_calls_parent_is_a_child_all_the_same") {
        return;
    }
    let heap = Heap::builder()
        .workers(2)
        .serial_below(0)
        .pacing(Pacing::manual())
        .build()
        .expect("a heap");
    let (stop, attached) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            while !stop.load(Ordering::Relaxed) {
                drop(m.alloc(Node { next: GcCell::default() }));
                m.safepoint();
                attached.store(true, Ordering::Relaxed);
            }
        });
        let _over = Over(&stop);
        let mut m = heap.attach();
        m.detach(|| {
            while !attached.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        for drops in [false, true] {
            let fork = m.prepare_fork().expect("the world stops");
            // SAFETY: the world is stopped; the child uses this heap and then leaves without
            // destructors.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork failed");
            if drops {
                drop(fork)
            } else {
                fork.parent()
            }
            if pid == 0 {
                // SAFETY: a child that hangs is killed.
                unsafe { libc::alarm(20) };
                let alone = heap.stats().mutators == 1;
                drop(ring(&m, 7));
                let works =
                    m.collect().abandoned.is_none() && m.collect_young().abandoned.is_none();
                // SAFETY: no destructors, no output: this is a copy of a test process.
                unsafe { libc::_exit(i32::from(!(alone && works))) };
            }
            assert_eq!(m.detach(|| child_says(pid)), 0);
        }
    });
}
