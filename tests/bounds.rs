//! Bounds: the cost that the settings of a heap, other threads and other heaps can add to one call.
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(not(loom))]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

use common::child::{Process, role};
use standstill::{BuildError, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

// ------------------------------------------------------------------------------------ settings

/// A heap takes the number or refuses it; no number makes its collections fail.
#[test]
fn any_number_of_workers_is_refused_or_works() {
    for workers in
        [1, 2, 1024, 1025, 1 << 32, 1 << 62, (1 << 62) + 1, usize::MAX / 4 + 1, usize::MAX]
    {
        // A pool of a thousand threads is not started.
        for serial_below in if workers > 2 { [usize::MAX; 2] } else { [0, usize::MAX] } {
            let builder = Heap::builder()
                .reserve(1 << 28)
                .workers(workers)
                .serial_below(serial_below)
                .build();
            let heap = match builder {
                Ok(heap) => heap,
                Err(BuildError::Setting(text)) => {
                    assert!(workers > 1024 && text.contains(&workers.to_string()), "{text}");
                    continue;
                }
                Err(other) => panic!("{other}"),
            };
            assert!(workers <= 1024);
            let mut m = heap.attach();
            let keep = m.alloc(Node { next: GcCell::default() });
            let ring = m.alloc(Node { next: GcCell::default() });
            ring.next.set(&m, Some(ring.clone()));
            drop(ring);
            let report = m.collect();
            assert_eq!((report.collected, report.abandoned), (1, None));
            drop(keep);
        }
    }
}

/// The numbers of a pacing and of stress modes have no arithmetic that wraps.
#[test]
fn extreme_numbers_in_settings_do_no_harm() {
    use standstill::{Stress, Thresholds};
    for objects in [0, usize::MAX / 2 + 1, usize::MAX] {
        for growth in [0.0, f64::MAX, f64::INFINITY] {
            let pacing = Pacing::default()
                .with_young_objects(objects)
                .with_young_bytes(objects)
                .with_full_minimum(objects)
                .with_full_growth(growth);
            let heap = Heap::builder()
                .reserve(1 << 28)
                .workers(1)
                .limit(objects.max(1 << 20))
                .serial_below(objects)
                .stress(Stress::none().quarantine(objects))
                .pacing(pacing)
                .build()
                .unwrap();
            churn(&heap);
            for (t0, t1) in [(0, 0), (u32::MAX, u32::MAX), (1, u32::MAX)] {
                heap.set_pacing(pacing.with_thresholds(Thresholds { t0, t1, t2: u32::MAX }));
                churn(&heap);
            }
        }
    }
}

#[test]
fn a_growth_that_is_negative_or_no_number_is_refused_and_changes_nothing() {
    let heap = Heap::builder().reserve(1 << 28).workers(1).build().unwrap();
    let before = heap.pacing();
    for growth in [f64::NAN, -1.0, -f64::MIN_POSITIVE, f64::NEG_INFINITY] {
        let pacing = Pacing::manual().with_full_growth(growth);
        let refused = Heap::builder().reserve(1 << 28).pacing(pacing).build().expect_err("refused");
        assert_eq!(refused.to_string(), "`Pacing::full_growth` is negative or not a number");
        assert_eq!(common::panic_text(|| heap.set_pacing(pacing)), Some(refused.to_string()));
        assert_eq!(heap.pacing(), before);
        churn(&heap);
    }
    // Zero: any growth; infinite: none.
    for growth in [0.0, f64::INFINITY] {
        heap.set_pacing(before.with_full_growth(growth));
        churn(&heap);
    }
}

fn churn(heap: &Heap) {
    let mut m = heap.attach();
    for _ in 0..50 {
        let node = m.alloc(Node { next: GcCell::default() });
        node.next.set(&m, Some(node.clone()));
        drop(node);
        m.safepoint();
    }
    m.collect_young();
    m.collect();
}

// ---------------------------------------------------------------------------------- deferred drops

/// A link of a chain. Its end makes a thread that is not attached drop the next link, and waits for
/// that.
struct Link {
    next: Mutex<Option<Gc<Link>>>,
    dropper: mpsc::Sender<(Gc<Link>, mpsc::Sender<()>)>,
    ended: Arc<AtomicUsize>,
}

impl Trace for Link {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ended.fetch_add(1, SeqCst);
        if let Some(next) = self.next.get_mut().unwrap().take() {
            let (done, wait) = mpsc::channel();
            self.dropper.send((next, done)).unwrap();
            wait.recv().unwrap();
        }
    }
}

/// Makes a chain, has its first link dropped by a thread that is not attached, and calls `call`
/// until all have ended: once for each few links, at least.
fn feed(call: impl Fn(&Heap, &mut Option<Mutator>)) {
    const LINKS: usize = 40;
    /// A call comes by the list a few times. It does not stay there.
    const FEW: usize = 4;
    let heap =
        Heap::builder().reserve(1 << 28).workers(1).pacing(Pacing::manual()).build().unwrap();
    let ended = Arc::new(AtomicUsize::new(0));
    let (dropper, chains) = mpsc::channel::<(Gc<Link>, mpsc::Sender<()>)>();
    let stranger = std::thread::spawn(move || {
        for (link, done) in chains {
            drop(link);
            done.send(()).unwrap();
        }
    });
    let mut m = Some(heap.attach());
    let mut first = None;
    for _ in 0..LINKS {
        let link = Link { next: Mutex::new(first), dropper: dropper.clone(), ended: ended.clone() };
        first = Some(m.as_ref().unwrap().alloc(link));
    }
    let (done, wait) = mpsc::channel();
    dropper.send((first.unwrap(), done)).unwrap();
    wait.recv().unwrap();
    let mut calls = 0;
    while ended.load(SeqCst) < LINKS {
        let before = ended.load(SeqCst);
        call(&heap, &mut m);
        let now = ended.load(SeqCst);
        assert!(now - before <= FEW, "one call ended {} links", now - before);
        calls += 1;
        assert!(calls <= 2 * LINKS, "the links do not end");
    }
    drop((m, dropper));
    stranger.join().unwrap();
}

#[test]
fn a_safepoint_drops_the_references_deferred_before_it() {
    feed(|_, m| m.as_mut().unwrap().safepoint());
}

#[test]
fn a_detach_drops_the_references_deferred_before_it() {
    feed(|_, m| m.as_mut().unwrap().detach(|| ()));
}

#[test]
fn an_attach_drops_the_references_deferred_before_it() {
    feed(|heap, m| {
        *m = None;
        *m = Some(heap.attach());
    });
}

#[test]
fn a_collection_drops_the_references_deferred_before_it() {
    feed(|_, m| {
        m.as_mut().unwrap().collect();
    });
}

// ----------------------------------------------------------------------------- the turn to collect

/// Threads that make cycles have the heap collect all the time. A thread that asks for a collection
/// gets one after the collection that is running; it does not compete with those that the heap
/// starts.
#[test]
fn a_thread_that_requests_a_collection_is_next() {
    const THREADS: usize = 16;
    const REQUESTS: usize = 6;
    let heap = Heap::builder().workers(1).checked(false).build().unwrap();
    let stop = AtomicBool::new(false);
    let running = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                let mut m = heap.attach();
                running.fetch_add(1, SeqCst);
                while !stop.load(SeqCst) {
                    for _ in 0..100 {
                        let node = m.alloc(Node { next: GcCell::default() });
                        node.next.set(&m, Some(node.clone()));
                    }
                    m.safepoint();
                }
            });
        }
        while running.load(SeqCst) < THREADS || heap.stats().collections < 3 {
            std::thread::yield_now();
        }
        let mut m = heap.attach();
        let begun = std::time::Instant::now();
        let mut others = Vec::new();
        for _ in 0..REQUESTS {
            // In between the heap collects by itself, or the garbage would grow.
            let so_far = heap.stats().collections;
            while heap.stats().collections < so_far + 2 {
                m.detach(|| std::thread::sleep(std::time::Duration::from_millis(1)));
            }
            let before = heap.stats();
            m.collect();
            let after = heap.stats();
            let passed =
                after.collections - before.collections + after.promotions - before.promotions;
            others.push(passed - 1);
        }
        stop.store(true, SeqCst);
        println!("collections of others: {others:?}, {:?} each", begun.elapsed() / REQUESTS as u32);
        // One that has the turn already and one that takes it before this thread has asked, if that
        // is put off just there.
        assert!(
            others.iter().sum::<usize>() <= 2 * REQUESTS,
            "the collections of others before its own: {others:?}"
        );
    });
}

// ------------------------------------------------------------------------------------ many heaps

/// Whether the rest of the program can still have address space, in pieces that a thread or another
/// library asks for.
fn has_room(bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping wherever the system likes, that is unmapped at once.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        memory != libc::MAP_FAILED && libc::munmap(memory, bytes) == 0
    }
}

/// Runs the rest of a test in a process of its own, where it can use up resources that tests share.
fn alone(test: &str, body: impl FnOnce()) {
    if role().is_some() {
        return body();
    }
    let status = Process::start(test, "alone", |_| ()).ends();
    assert!(status.success(), "{status}");
}

#[test]
fn thousands_of_default_heaps_leave_room() {
    alone("thousands_of_default_heaps_leave_room", || {
        const HEAPS: usize = 5_000;
        let first = Heap::new();
        let large = first.stats().reserved_bytes;
        assert!(large >= 8 << 30, "one heap alone has a large range: {large}");
        for round in 0..2 {
            let heaps: Vec<_> = (0..HEAPS)
                .map(|number| {
                    Heap::builder().build().unwrap_or_else(|error| panic!("heap {number}: {error}"))
                })
                .collect();
            let reserved = |heap: &Heap| heap.stats().reserved_bytes;
            let total: usize = heaps.iter().map(reserved).sum();
            println!(
                "round {round}: {} each at first, {} at last, {total} in all",
                reserved(&heaps[0]),
                reserved(&heaps[HEAPS - 1])
            );
            assert!(reserved(&heaps[HEAPS - 1]) >= 256 << 20, "the last one is of use");
            assert!(
                has_room(1 << 40),
                "a process with {HEAPS} heaps has no room for anything else"
            );
            for heap in heaps.iter().step_by(7) {
                let m = heap.attach();
                assert_eq!(*m.alloc(7), 7);
            }
            // Heaps that end return their part, in any order.
            drop(heaps);
        }
        drop(first);
        assert_eq!(Heap::new().stats().reserved_bytes, large);
    });
}

/// Limits the addresses of this process, which a test has to itself, to so many bytes more.
fn limit_addresses(more: usize) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used = pages.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096;
    let limit = libc::rlimit { rlim_cur: (used + more) as u64, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

/// Also if the limit allows a default heap in full: the program needs addresses, too.
#[test]
fn a_default_heap_that_a_limit_just_allows_leaves_room() {
    alone("a_default_heap_that_a_limit_just_allows_leaves_room", || {
        let full = Heap::new().stats().reserved_bytes;
        // The tables take a fifteenth of the range.
        limit_addresses(full + full / 4);
        let heap = Heap::new();
        assert!(heap.stats().reserved_bytes >= full / 4, "{heap:?}");
        assert!(has_room(full / 4));
    });
}

/// A limit on the address space, as `ulimit -v` sets it, leaves the program as much as a default
/// heap takes.
#[test]
fn default_heaps_under_a_limit_leave_room() {
    alone("default_heaps_under_a_limit_leave_room", || {
        limit_addresses(4 << 30);
        let heaps: Vec<_> = (0..4).map(|_| Heap::new()).collect();
        for heap in &heaps {
            let m = heap.attach();
            assert_eq!(*m.alloc(7), 7);
        }
        assert!(heaps[0].stats().reserved_bytes >= 512 << 20);
        assert!(has_room(64 << 20));
    });
}
