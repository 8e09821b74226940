//! Processes that fork, exit, and run out of the system's resources, in the middle of everything.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use standstill::{
    BuildError, Collect, Finalizer, Gc, GcCell, Heap, HeapBuilder, Mutator, OutOfMemory, Pacing,
    Trace, Tracer,
};

use crate::common::child::{Process, is_alone, role};
use crate::forked::on_new_thread;
use crate::{Alive, node, ring};

fn builder() -> HeapBuilder {
    Heap::builder().reserve(1 << 30).pacing(Pacing::manual())
}

/// Threads that do everything until they are stopped: they make garbage, hold and drop, detach,
/// collect, end and start again.
fn busy(
    heap: &Heap,
    alive: &Arc<Alive>,
    over: &Arc<AtomicBool>,
    threads: usize,
) -> Vec<std::thread::JoinHandle<()>> {
    let one = |at: usize| {
        let (heap, alive, over) = (heap.clone(), alive.clone(), over.clone());
        move || {
            let mut round = at;
            while !over.load(SeqCst) {
                let mut m = heap.attach();
                // It gets the collector lock in any case: there is not much garbage at any time.
                m.collect();
                for _ in 0..50 {
                    round += 1;
                    let kept = ring(&m, &alive, 3);
                    let weak = Gc::downgrade(&kept, &m);
                    match round % 7 {
                        0 => drop(m.try_collect(Collect::young().wait(false))),
                        1 => drop(m.try_collect(Collect::full().wait(false))),
                        2 => m.detach(|| drop(kept)),
                        3 => drop(weak.upgrade(&m)),
                        _ => m.safepoint(),
                    }
                }
            }
        }
    };
    (0..threads).map(|at| std::thread::spawn(one(at))).collect()
}

// ------------------------------------------------------------------------------------------- fork

/// The meaning of the child's exit status.
fn in_fork(m: &mut Mutator, child: impl FnOnce(&mut Mutator)) {
    let fork = m.prepare_fork().expect("the world stops");
    // SAFETY: the world is stopped; the child uses this heap and then leaves without destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        fork.child();
        // SAFETY: a child that hangs is killed.
        unsafe { libc::alarm(20) };
        let code = catch_unwind(AssertUnwindSafe(|| child(m)));
        // SAFETY: no destructors, no output: this is a copy of a test process.
        unsafe { libc::_exit(i32::from(code.is_err())) };
    }
    fork.parent();
    m.detach(|| {
        let mut status = 0;
        // SAFETY: `pid` is a child of this process.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child's own checks");
    });
}

#[test]
fn two_hundred_forks_in_the_middle_of_everything() {
    if !is_alone("process::two_hundred_forks_in_the_middle_of_everything") {
        return;
    }
    let heap = builder().workers(2).serial_below(0).build().expect("a heap");
    let (alive, over) = (Arc::<Alive>::default(), Arc::new(AtomicBool::new(false)));
    let others = busy(&heap, &alive, &over, 3);
    let mut m = heap.attach();
    for round in 0..200 {
        // Not always at the same point of the other threads' work.
        for _ in 0..round % 5 {
            drop(ring(&m, &alive, 2));
            m.safepoint();
        }
        let mine = ring(&m, &alive, 5);
        let heap = heap.clone();
        in_fork(&mut m, |m| {
            assert_eq!(heap.stats().mutators, 1, "the other threads are not here");
            m.verify().expect("a whole heap");
            m.collect();
            let mut at = mine.clone();
            for _ in 0..5 {
                at = at.next.get(m).expect("a ring");
            }
            assert!(at == mine);
            drop((at, mine));
            let alive = Arc::<Alive>::default();
            drop(ring(m, &alive, 10));
            m.collect();
            assert_eq!(alive.now(), 0);
            // Now and then a grandchild, and a thread of the child's own.
            if round % 20 == 0 {
                in_fork(m, |m| {
                    m.collect();
                    m.verify().expect("a whole heap");
                });
                m.detach(|| on_new_thread(|| drop(ring(&heap.attach(), &alive, 3))));
                m.collect();
                assert_eq!(alive.now(), 0);
            }
            m.verify().expect("a whole heap");
        });
    }
    over.store(true, SeqCst);
    m.detach(|| others.into_iter().for_each(|thread| thread.join().expect("a thread")));
    m.collect();
    m.collect();
    assert_eq!((heap.stats().live_objects, alive.now()), (0, 0));
}

/// A thread that is not attached is not waited for: it may be in the middle of a drop when the
/// process forks.
#[test]
fn forks_while_unattached_threads_drop() {
    if !is_alone("process::forks_while_unattached_threads_drop") {
        return;
    }
    let heap = builder().workers(1).build().expect("a heap");
    let (alive, over) = (Arc::<Alive>::default(), Arc::new(AtomicBool::new(false)));
    let mut m = heap.attach();
    let shared = node(&m, &alive);
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (shared, over) = (shared.clone(), over.clone());
            std::thread::spawn(move || {
                while !over.load(SeqCst) {
                    drop(shared.clone());
                }
            })
        })
        .collect();
    for _ in 0..200 {
        in_fork(&mut m, |m| {
            m.safepoint();
            m.collect();
            // One more that only can be deferred.
            let another = shared.clone();
            m.detach(|| drop(another));
            m.collect();
            m.verify().expect("a whole heap");
        });
    }
    over.store(true, SeqCst);
    m.detach(|| others.into_iter().for_each(|thread| thread.join().expect("a thread")));
    drop(shared);
    m.collect();
    assert_eq!((heap.stats().live_objects, alive.now()), (0, 0));
}

// ------------------------------------------------------------------------------------------- exit

/// Runs `test` of this program in a process of its own, which is to come to `end`.
fn ends(test: &str, end: &str) -> ExitStatus {
    let process = Process::start(test, end, |command| {
        command.stderr(Stdio::null());
    });
    process.ends()
}

/// Exits at the chosen point.
struct Exits {
    next: GcCell<Option<Gc<Exits>>>,
    end: &'static str,
}

impl Exits {
    fn here(&self, place: &str) {
        if self.end == place {
            std::process::exit(7);
        }
    }
}

impl Trace for Exits {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        this.here("finalizer");
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.here("traverse");
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.here("clear");
        Trace::clear(&this.next, m);
    }
}

impl Drop for Exits {
    fn drop(&mut self) {
        self.here("destructor");
    }
}

thread_local! {
    static MUTATOR: std::cell::RefCell<Option<Mutator>> = const { std::cell::RefCell::new(None) };
}

/// In the child: three threads collect without an end, and this one ends in the chosen way.
fn come_to(end: &'static str) {
    let heap = builder().workers(2).serial_below(0).build().expect("a heap");
    let (alive, over) = (Arc::<Alive>::default(), Arc::new(AtomicBool::new(false)));
    // They are never stopped.
    let _others = busy(&heap, &alive, &over, 3);
    let mut m = heap.attach();
    let kept = ring(&m, &alive, 1000);
    for _ in 0..3 {
        m.collect();
    }
    match end {
        "exit" => std::process::exit(7),
        "exit of another thread" => {
            std::thread::spawn(|| std::process::exit(7));
            loop {
                m.collect();
            }
        }
        "return" => {
            // To the test harness, and from there out of main, with all threads running.
            drop(m);
            std::mem::forget(kept);
        }
        "return with a mutator left" => {
            MUTATOR.set(Some(m));
            std::mem::forget(kept);
        }
        _ => {
            let first = m.alloc(Exits { next: GcCell::default(), end });
            first.next.set(&m, Some(first.clone()));
            drop(first);
            m.collect();
            unreachable!("it exits in its {end}");
        }
    }
}

const EXITS: [&str; 6] =
    ["exit", "exit of another thread", "traverse", "finalizer", "clear", "destructor"];
const RETURNS: [&str; 2] = ["return", "return with a mutator left"];

#[test]
fn a_process_exits_while_it_collects() {
    if let Some(end) = role() {
        let end = EXITS.into_iter().chain(RETURNS).find(|e| *e == end).expect("a known end");
        return come_to(end);
    }
    for _ in 0..2 {
        for end in EXITS {
            let status = ends("process::a_process_exits_while_it_collects", end);
            assert_eq!(status.code(), Some(7), "by '{end}': {status}");
        }
        for end in RETURNS {
            let status = ends("process::a_process_exits_while_it_collects", end);
            assert_eq!(status.code(), Some(0), "by '{end}': {status}");
        }
    }
}

// ---------------------------------------------------------------------------- limits of the system

/// Limits a resource of the process to its present use and some more.
fn limit(what: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: a struct of the right kind; this is a process of its own.
    assert_eq!(unsafe { libc::setrlimit(what, &raw const limit) }, 0);
}

/// Bytes that the process has of address space, and of memory that it may write.
fn in_use() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
        1024 * line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    (field("VmSize:"), field("VmData:"))
}

#[test]
fn a_process_without_address_space() {
    if role().is_none() {
        let status = ends("process::a_process_without_address_space", "limited");
        assert_eq!(status.code(), Some(0), "{status}");
        return;
    }
    limit(libc::RLIMIT_AS, in_use().0 + (96 << 20));
    // The default reservation shrinks step by step. The resulting one is usable.
    let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().expect("a small heap");
    let reserved = heap.stats().reserved_bytes;
    assert!(reserved <= 96 << 20, "{reserved}");
    let (mut m, alive) = (heap.attach(), Arc::<Alive>::default());
    drop(ring(&m, &alive, 1000));
    assert_eq!(m.collect().collected, 1000);
    // There is no room for another, and the error names the remedy.
    match Heap::builder().reserve(1 << 30).build() {
        Err(error @ BuildError::Reserve { .. }) => {
            assert!(error.to_string().contains("ulimit"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(m.verify(), Ok(()));
}

#[test]
fn a_process_without_memory() {
    if role().is_none() {
        let status = ends("process::a_process_without_memory", "limited");
        assert_eq!(status.code(), Some(0), "{status}");
        return;
    }
    let heap = builder().workers(1).build().expect("a heap");
    let (mut m, alive) = (heap.attach(), Arc::<Alive>::default());
    let kept = ring(&m, &alive, 10);
    let mut cells = Vec::with_capacity(1 << 20);
    limit(libc::RLIMIT_DATA, in_use().1 + (16 << 20));
    // The reserved range can no longer be made accessible.
    let refused = loop {
        match m.try_alloc([0u8; 4000]) {
            Ok(cell) => cells.push(cell),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.reason(), OutOfMemory::System);
    assert!(refused.to_string().contains("operating system"), "{refused}");
    assert!(cells.len() > 1000);
    m.verify().expect("a whole heap");
    // A heap that ends makes room for others.
    cells.truncate(cells.len() - 100);
    let report = m.try_collect(Collect::full()).expect("the world can be stopped");
    assert_eq!((report.abandoned, report.collected), (None, 0));
    for _ in 0..100 {
        cells.push(m.try_alloc([1; 4000]).expect("room"));
    }
    assert!(cells.iter().all(|cell| cell.iter().all(|&byte| byte < 2)));
    drop((cells, kept, node(&m, &alive)));
    m.collect();
    assert_eq!((heap.stats().live_objects, alive.now()), (0, 0));
}
