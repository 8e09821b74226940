//! Attacks from the surroundings of a program: signals in the middle of everything, and threads
//! that cannot be started. Each runs in a process of its own. docs/verification.md lists the other
//! attacks with their tests.

#![cfg(all(not(loom), target_os = "linux"))]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::child::{Process, role};
use standstill::{Gc, GcCell, Heap, Mutator, Trace};

static ALIVE: AtomicUsize = AtomicUsize::new(0);

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    #[trace(skip)]
    _counted: Counted,
}

struct Counted;

impl Counted {
    fn new() -> Self {
        ALIVE.fetch_add(1, SeqCst);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, SeqCst);
    }
}

fn ring(m: &Mutator, n: usize) -> Gc<Node> {
    let first = m.alloc(Node { next: GcCell::default(), _counted: Counted::new() });
    let mut last = first.clone();
    for _ in 1..n {
        let node = m.alloc(Node { next: GcCell::default(), _counted: Counted::new() });
        last.next.set(m, Some(node.clone()));
        last = node;
    }
    last.next.set(m, Some(first.clone()));
    first
}

/// Threads that make garbage, wait detached, wait for locks, and collect; at the end nothing is
/// left.
fn work(heap: &Heap, rounds: usize) {
    let lock = std::sync::Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut m = heap.attach();
                for round in 0..rounds {
                    let kept = ring(&m, 50);
                    drop(ring(&m, 50));
                    *m.lock(&lock).expect("no panic") += 1;
                    m.detach(|| std::thread::sleep(Duration::from_micros(200)));
                    if round % 10 == 0 {
                        m.collect();
                    }
                    m.safepoint();
                    assert!(kept.next.get(&m).is_some());
                }
            });
        }
    });
    assert_eq!(*lock.lock().expect("no panic"), 3 * rounds);
    heap.attach_scoped(|m| {
        m.collect();
        m.verify().expect("a whole heap");
    });
    assert_eq!((heap.stats().live_objects, ALIVE.load(SeqCst)), (0, 0));
}

#[test]
fn signals_interrupt_every_wait_and_change_nothing() {
    if role().is_none() {
        let status =
            Process::start("signals_interrupt_every_wait_and_change_nothing", "attack", |_| ())
                .ends();
        assert!(status.success(), "{status}");
        return;
    }
    static SIGNALS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn count(_: libc::c_int) {
        SIGNALS.fetch_add(1, SeqCst);
    }
    // SAFETY: the handler changes an atomic counter only. Without SA_RESTART each wait returns
    // early.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let heap = Heap::builder().reserve(1 << 30).workers(2).serial_below(0).build().expect("a heap");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                for entry in std::fs::read_dir("/proc/self/task").expect("threads") {
                    let id = entry.expect("a thread").file_name().to_string_lossy().parse::<i32>();
                    // SAFETY: a signal to a thread of this process; one that has ended meanwhile
                    // gets none.
                    unsafe {
                        libc::syscall(
                            libc::SYS_tgkill,
                            libc::getpid(),
                            id.expect("an id"),
                            libc::SIGUSR1,
                        )
                    };
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        while SIGNALS.load(SeqCst) < 3000 {
            work(&heap, 50);
        }
        done.store(true, SeqCst);
    });
}

#[test]
fn collections_work_where_no_thread_can_be_started() {
    const USER: u32 = 65_534;
    if role().is_none() {
        let status =
            Process::start("collections_work_where_no_thread_can_be_started", "attack", |_| ())
                .ends();
        assert!(status.success(), "{status}");
        return;
    }
    let heap = Heap::builder().reserve(1 << 30).workers(4).serial_below(0).build().expect("a heap");
    // SAFETY: limits and the user of this process, which ends after the test. The limit on threads
    // does not hold for root.
    unsafe {
        let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &none), 0);
        if libc::getuid() == 0 {
            assert_eq!(libc::setresuid(USER, USER, USER), 0);
        }
    }
    assert!(
        std::thread::Builder::new().spawn(|| ()).is_err(),
        "a thread could be started all the same"
    );
    let mut m = heap.attach();
    for round in 0..3 {
        let kept = ring(&m, 10_000);
        drop(ring(&m, 10_000));
        let report = m.collect();
        assert_eq!((report.abandoned, report.collected), (None, 10_000));
        // The first collection finds out that there are no others.
        assert!(round == 0 || report.workers == 1, "{} workers", report.workers);
        kept.next.set(&m, None);
        drop(kept);
    }
    m.verify().expect("a whole heap");
    m.collect();
    assert_eq!((heap.stats().live_objects, ALIVE.load(SeqCst)), (0, 0));
}
