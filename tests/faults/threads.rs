//! Threads that end at the wrong time, that never come, and that are very many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};

use standstill::{Collect, Gc, GcCell, GcWeak, Heap, HeapBuilder, Mutator, Pacing, Trace};

use crate::{Alive, Life, Node, node, ring};

fn builder() -> HeapBuilder {
    Heap::builder().reserve(1 << 30).workers(1).pacing(Pacing::manual())
}

/// Nothing is left, and everything is whole.
fn assert_empty(heap: &Heap, m: &mut Mutator, alive: &Alive) {
    for _ in 0..3 {
        m.safepoint();
        m.collect();
    }
    m.verify().expect("a whole heap");
    assert_eq!((heap.stats().live_objects, alive.now()), (0, 0));
    assert_eq!(heap.stats().mutators, 1, "threads that have ended have left");
}

fn spawn<R: Send + 'static>(
    stack: usize,
    f: impl FnOnce() -> R + Send + 'static,
) -> std::thread::JoinHandle<R> {
    std::thread::Builder::new().stack_size(stack).spawn(f).expect("a thread")
}

/// Ends its thread from inside a destructor, by a panic that no code catches there.
#[derive(Trace)]
struct Last {
    neighbour: GcCell<Option<Gc<Node>>>,
    #[trace(skip)]
    _life: Life,
}

impl Drop for Last {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("the last words of a thread"));
        }
    }
}

thread_local! {
    /// Dropped when the thread ends, after everything that lies on its stack.
    static KEPT: std::cell::RefCell<Vec<Gc<Node>>> = const { std::cell::RefCell::new(Vec::new()) };
    /// A mutator that ends with its thread.
    static MUTATOR: std::cell::RefCell<Option<Mutator>> = const { std::cell::RefCell::new(None) };
}

/// One way for a thread to come to its end, with everything that it has left behind.
type Ending = fn(&Heap, &Arc<Alive>, &Shelf);

/// References that are on their way from thread to thread, and die on any.
type Shelf = Mutex<Vec<Gc<Node>>>;

const ENDINGS: [(&str, Ending); 12] = [
    ("at once", |heap, _, _| drop(heap.attach())),
    ("with garbage", |heap, alive, _| {
        let m = heap.attach();
        drop(ring(&m, alive, 3));
    }),
    ("with its mutator gone before its handles", |heap, alive, _| {
        let m = heap.attach();
        let kept = ring(&m, alive, 3);
        drop(m);
        drop(kept);
    }),
    ("with handles in a thread-local", |heap, alive, _| {
        let m = heap.attach();
        let kept = ring(&m, alive, 2);
        KEPT.with_borrow_mut(|all| all.push(kept));
    }),
    ("with its mutator in a thread-local", |heap, alive, _| {
        let m = heap.attach();
        drop(ring(&m, alive, 2));
        MUTATOR.set(Some(m));
    }),
    ("with weak references", |heap, alive, shelf| {
        let m = heap.attach();
        let (kept, given) = (node(&m, alive), node(&m, alive));
        let weak: [GcWeak<Node>; 2] = [Gc::downgrade(&kept, &m), Gc::downgrade(&given, &m)];
        shelf.lock().unwrap().push(given);
        drop((kept, m));
        drop(weak);
    }),
    ("with references that others hold", |heap, alive, shelf| {
        let m = heap.attach();
        let given = ring(&m, alive, 3);
        let old = std::mem::replace(&mut *shelf.lock().unwrap(), vec![given.clone(), given]);
        // Counted for other threads, dropped by this one, which ends before it is asked to merge.
        drop(old);
    }),
    ("asked for a stop", |heap, alive, _| {
        let mut m = heap.attach();
        let kept = ring(&m, alive, 3);
        for _ in 0..3 {
            m.safepoint();
        }
        drop(m);
        drop(kept);
    }),
    ("detached and back", |heap, alive, shelf| {
        let mut m = heap.attach();
        let given = node(&m, alive);
        shelf.lock().unwrap().push(given.clone());
        // Meanwhile other threads drop its objects: they suspend it, and merge on its behalf.
        m.detach(std::thread::yield_now);
        drop(given);
        m.detach(|| {});
    }),
    ("with its own collection", |heap, alive, _| {
        let mut m = heap.attach();
        drop(ring(&m, alive, 3));
        drop(m.try_collect(Collect::full().wait(false)));
    }),
    ("by a panic", |heap, alive, _| {
        let m = heap.attach();
        let _kept = ring(&m, alive, 3);
        std::panic::resume_unwind(Box::new("as planned"));
    }),
    ("by a panic in a destructor", |heap, alive, _| {
        let m = heap.attach();
        let neighbour = ring(&m, alive, 2);
        let last =
            m.alloc(Last { neighbour: GcCell::new(Some(neighbour)), _life: Life::new(alive) });
        drop(last);
    }),
];

#[test]
fn threads_end_in_every_way_while_others_collect() {
    let heap = builder().build().expect("a heap");
    heap.on_unraisable(|_| {});
    let (alive, shelf, over) =
        (Arc::<Alive>::default(), Arc::<Shelf>::default(), Arc::new(AtomicBool::new(false)));
    let collectors: Vec<_> = (0..2)
        .map(|_| {
            let (heap, alive, shelf, over) =
                (heap.clone(), alive.clone(), shelf.clone(), over.clone());
            spawn(1 << 20, move || {
                let mut m = heap.attach();
                let mut collections = 0;
                while !over.load(SeqCst) {
                    drop(ring(&m, &alive, 2));
                    let taken = std::mem::take(&mut *shelf.lock().unwrap());
                    drop(taken);
                    collections += usize::from(m.try_collect(Collect::full().wait(false)).is_ok());
                    m.detach(std::thread::yield_now);
                }
                collections
            })
        })
        .collect();
    // Two ends at a time, of every two ways.
    for round in 0..3 {
        for (at, (name, one)) in ENDINGS.iter().enumerate() {
            let (other_name, other) = &ENDINGS[(at + round * 5 + 1) % ENDINGS.len()];
            let threads = [(name, *one), (other_name, *other)].map(|(name, ending)| {
                let (heap, alive, shelf) = (heap.clone(), alive.clone(), shelf.clone());
                let thread = spawn(1 << 20, move || ending(&heap, &alive, &shelf));
                (name, thread)
            });
            for (name, thread) in threads {
                assert_eq!(
                    thread.join().is_err(),
                    name.contains("panic"),
                    "a thread that ends {name}"
                );
            }
        }
    }
    over.store(true, SeqCst);
    let collections: usize =
        collectors.into_iter().map(|thread| thread.join().expect("a collector")).sum();
    assert!(collections > 0, "no thread collected meanwhile");
    drop(std::mem::take(&mut *shelf.lock().unwrap()));
    assert_empty(&heap, &mut heap.attach(), &alive);
}

/// A thread that leaks its mutator stays attached, and stops fail. But all else continues, and its
/// objects are whole.
#[test]
fn a_thread_that_leaks_its_mutator_harms_nothing_but_stops() {
    let heap = builder().build().expect("a heap");
    heap.on_unraisable(|_| {});
    let alive = Arc::<Alive>::default();
    let (kept, weak) = {
        let (heap, alive) = (heap.clone(), alive.clone());
        let thread = std::thread::Builder::new().name("leaky".into()).spawn(move || {
            let m = heap.attach();
            let kept = ring(&m, &alive, 3);
            let weak = Gc::downgrade(&kept, &m);
            std::mem::forget(m);
            (kept, weak)
        });
        thread.expect("a thread").join().expect("it leaks, and no more")
    };
    let mut m = heap.attach();
    let error = m.try_collect(Collect::full()).expect_err("no stop").to_string();
    assert!(error.contains("leaky"), "it is named: {error}");
    // Its ring is whole: it leads back to its start.
    let mut at = kept.clone();
    for _ in 0..3 {
        at = at.next.get(&m).expect("a ring");
    }
    assert!(at == kept);
    drop(at);
    assert!(weak.upgrade(&m).is_some_and(|strong| strong == kept));
    // Counting works, on objects of its own and of others.
    let before = alive.now();
    for _ in 0..1000 {
        drop(node(&m, &alive));
        m.safepoint();
    }
    assert_eq!(alive.now(), before);
    kept.next.set(&m, None);
    drop(kept);
    assert!(m.try_collect(Collect::young()).is_err());
}

/// A stop waits for a thread that is attached, busy, and at no safepoint. The results of that
/// thread are whole when it has come.
#[cfg(feature = "tracing")]
#[test]
fn a_thread_that_is_long_in_coming_is_named_and_corrupts_nothing() {
    use std::sync::mpsc;
    use std::time::Duration;
    use tracing_subscriber::layer::SubscriberExt;

    /// Prints the named threads.
    struct Names(mpsc::SyncSender<String>);
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Names {
        fn on_event(
            &self,
            event: &tracing::Event<'_>,
            _: tracing_subscriber::layer::Context<'_, S>,
        ) {
            struct Thread(String, bool);
            impl tracing::field::Visit for Thread {
                fn record_debug(
                    &mut self,
                    field: &tracing::field::Field,
                    value: &dyn std::fmt::Debug,
                ) {
                    let value = format!("{value:?}");
                    match field.name() {
                        "thread" => self.0 = value,
                        "message" => self.1 = value == "slow stop",
                        _ => {}
                    }
                }
            }
            let mut thread = Thread(String::new(), false);
            event.record(&mut thread);
            if thread.1 {
                let _ = self.0.try_send(thread.0);
            }
        }
    }

    let heap = builder().slow_stop(Duration::from_millis(20)).build().expect("a heap");
    let (alive, named) = (Arc::<Alive>::default(), Arc::new(AtomicBool::new(false)));
    let (is_attached, attached) = mpsc::channel();
    let busy = {
        let (heap, alive, named) = (heap.clone(), alive.clone(), named.clone());
        let thread = std::thread::Builder::new().name("busy".into()).spawn(move || {
            let mut m = heap.attach();
            let kept = ring(&m, &alive, 100);
            is_attached.send(()).expect("the receiver waits");
            let mut made = 0;
            while !named.load(SeqCst) {
                // It allocates, links, counts and destroys all the time.
                drop(node(&m, &alive));
                let garbage = ring(&m, &alive, 3);
                let before = kept.next.get(&m);
                kept.next.set(&m, before);
                drop(garbage);
                made += 3;
            }
            m.safepoint();
            drop(kept);
            made
        });
        thread.expect("a thread")
    };
    attached.recv().expect("attached");
    let (names, said) = mpsc::sync_channel(16);
    let teller = {
        let named = named.clone();
        std::thread::spawn(move || {
            let name = said.recv().expect("a report");
            named.store(true, SeqCst);
            name
        })
    };
    let mut m = heap.attach();
    let subscriber = tracing_subscriber::registry().with(Names(names));
    let report = tracing::subscriber::with_default(subscriber, || m.collect());
    assert_eq!(report.abandoned, None);
    assert!(teller.join().expect("a name").contains("busy"));
    m.verify().expect("a whole heap");
    let made = m.detach(|| busy.join().expect("the busy thread"));
    m.collect();
    assert!(made > 0);
    assert_empty(&heap, &mut m, &alive);
}

#[test]
fn ten_thousand_threads_one_after_the_other_leave_memory_flat() {
    let heap = builder().build().expect("a heap");
    let (alive, shelf) = (Arc::<Alive>::default(), Arc::<Shelf>::default());
    let mut m = heap.attach();
    let mut warm = 0;
    for at in 0..10_000 {
        let thread = {
            let (heap, alive, shelf) = (heap.clone(), alive.clone(), shelf.clone());
            spawn(64 << 10, move || {
                let m = heap.attach();
                let mine = ring(&m, &alive, 4);
                let old = std::mem::take(&mut *shelf.lock().unwrap());
                // The objects of the thread before it refer to the objects of this one.
                if let Some(old) = old.first() {
                    old.next.set(&m, Some(mine.clone()));
                }
                shelf.lock().unwrap().push(mine);
            })
        };
        m.detach(|| thread.join().expect("a thread"));
        if at % 250 == 249 {
            m.collect();
            let stats = heap.stats();
            assert_eq!(stats.mutators, 1);
            // Pages of the ended are taken over: there are not more than at the first time.
            if warm == 0 {
                warm = stats.committed_bytes
            } else {
                assert_eq!(stats.committed_bytes, warm)
            }
            assert!(stats.in_use_bytes <= warm);
        }
    }
    drop(std::mem::take(&mut *shelf.lock().unwrap()));
    assert_empty(&heap, &mut m, &alive);
}

#[test]
fn two_thousand_threads_at_once() {
    const THREADS: usize = 2000;
    let heap = builder().build().expect("a heap");
    let (alive, shelf) = (Arc::<Alive>::default(), Arc::<Shelf>::default());
    let (all_here, may_end) =
        (Arc::new(Barrier::new(THREADS + 1)), Arc::new(Barrier::new(THREADS + 1)));
    let found = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (heap, alive, shelf, found) =
                (heap.clone(), alive.clone(), shelf.clone(), found.clone());
            let (all_here, may_end) = (all_here.clone(), may_end.clone());
            spawn(64 << 10, move || {
                let mut m = heap.attach();
                let mine = ring(&m, &alive, 2);
                drop(ring(&m, &alive, 2));
                shelf.lock().unwrap().push(mine.clone());
                m.detach(|| all_here.wait());
                // Collected meanwhile: its own ring is whole.
                let next = mine.next.get(&m).expect("a ring");
                found.fetch_add(usize::from(next.next.get(&m).is_some_and(|n| n == mine)), SeqCst);
                m.detach(|| may_end.wait());
                m.safepoint();
            })
        })
        .collect();
    let mut m = heap.attach();
    m.detach(|| all_here.wait());
    assert_eq!(heap.stats().mutators, THREADS + 1);
    let report = m.collect();
    assert_eq!((report.collected, alive.now()), (2 * THREADS, 2 * THREADS));
    m.detach(|| may_end.wait());
    m.detach(|| threads.into_iter().for_each(|thread| thread.join().expect("a thread")));
    assert_eq!(found.load(SeqCst), THREADS);
    drop(std::mem::take(&mut *shelf.lock().unwrap()));
    assert_empty(&heap, &mut m, &alive);
}
