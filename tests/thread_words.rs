//! What a thread is to the library, when user code keeps a `TraversalGuard` from places where the
//! thread is detached: hooks, traversals on parked threads, closures of a detach. The thread comes
//! back all the same. It has one mutator at most, and is inside a traversal until the guard goes.

#![cfg(not(loom))]

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use standstill::safepoint::{
    Config, Coordinator, Participant, SlowStopKind, StopError, Suspend, TraversalGuard, current,
    is_traversing, traversing,
};
use standstill::{
    AttachError, Collect, CollectError, Detached, Finalizer, Gc, GcCell, Heap, Mutator, Pacing,
    Trace, Tracer,
};

use common::child::is_alone;
use common::{Census, Rng, fin, garbage_loop, node, tie};

thread_local! {
    static KEPT: RefCell<Vec<TraversalGuard>> = const { RefCell::new(Vec::new()) };
    /// Processes that this thread has started.
    static CHILDREN: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a guard on this thread, for longer than the caller lives.
fn keep_guard() {
    KEPT.with_borrow_mut(|kept| kept.push(traversing()));
}

fn drop_guards() {
    KEPT.with_borrow_mut(Vec::clear);
}

fn heap() -> Heap {
    let heap = Heap::builder().reserve(64 << 20).workers(1).pacing(Pacing::manual());
    heap.slow_stop(Duration::from_millis(1)).build().unwrap()
}

/// Runs its function when it is traversed.
struct Seen(Box<dyn Fn() + Send + Sync>);

impl Trace for Seen {
    fn traverse(this: &Self, _: &mut Tracer) {
        (this.0)();
    }
}

/// The thread has kept a guard, and is attached by `m`. It has this mutator, now and after the
/// guard has gone, and no other.
fn has_one_mutator(m: &Mutator, census: &Arc<Census>, elsewhere: &Heap) {
    assert!(is_traversing());
    assert_eq!(current(), 0);
    assert!(Mutator::with_current(|_| ()).is_none());
    assert_eq!(elsewhere.try_attach().unwrap_err(), AttachError::Traversing);
    let (before, object) = (census.dead(), node(m, census, 0));
    drop(object);
    assert_eq!(census.dead(), before, "nothing dies in a traversal");
    drop_guards();
    assert!(!is_traversing());
    assert_eq!(Mutator::with_current(|here| format!("{here:?}")), Some(format!("{m:?}")));
    assert_eq!(elsewhere.try_attach().unwrap_err(), AttachError::AlreadyAttached);
    let object = node(m, census, 0);
    drop(object);
    assert_eq!(census.dead(), before + 1, "the owner drops the last reference");
}

/// All that was put off in a traversal is done, and the heap is sound and empty.
fn ends_well(mut m: Mutator, census: &Census) {
    m.safepoint();
    m.collect();
    m.verify().unwrap();
    assert_eq!(census.alive(), 0);
    assert_eq!(m.heap().stats().live_objects, 0);
    drop(m);
    assert_eq!(current(), 0);
}

/// Another thread collects. Its traversal of an object calls `traverse`.
fn collect_beside(heap: &Heap, traverse: impl Fn() + Send + Sync + 'static, parks: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut m = heap.attach();
            let object = m.alloc(Seen(Box::new(traverse)));
            m.collect();
            drop(object);
        });
        parks();
    });
}

#[test]
fn a_thread_parks_through_a_hook_that_keeps_a_guard() {
    let (heap, elsewhere, census) = (heap(), heap(), Census::new());
    let hooked = Arc::new(AtomicBool::new(false));
    let (here, tell) = (std::thread::current().id(), Arc::clone(&hooked));
    heap.on_slow_stop(move |report| {
        if std::thread::current().id() == here && !tell.swap(true, SeqCst) {
            assert_eq!((report.kind, current()), (SlowStopKind::Held, 0));
            keep_guard();
        }
    });
    let mut m = heap.attach();
    let (until, is_hooked) = (Arc::clone(&hooked), || hooked.load(SeqCst));
    let wait = move || {
        while !until.load(SeqCst) {
            std::thread::yield_now()
        }
    };
    collect_beside(&heap, wait, || {
        while !is_hooked() {
            m.safepoint();
        }
        has_one_mutator(&m, &census, &elsewhere);
        m.detach(|| ());
    });
    ends_well(m, &census);
}

#[test]
fn a_thread_attaches_through_a_hook_that_keeps_a_guard() {
    let (heap, elsewhere, census) = (heap(), heap(), Census::new());
    let (stopped, hooked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (here, tell) = (std::thread::current().id(), Arc::clone(&hooked));
    heap.on_slow_stop(move |_| {
        if std::thread::current().id() == here && !tell.swap(true, SeqCst) {
            keep_guard();
        }
    });
    let (in_stop, until) = (Arc::clone(&stopped), Arc::clone(&hooked));
    let wait = move || {
        in_stop.store(true, SeqCst);
        while !until.load(SeqCst) {
            std::thread::yield_now();
        }
    };
    let mut m = None;
    collect_beside(&heap, wait, || {
        while !stopped.load(SeqCst) {
            std::thread::yield_now();
        }
        let attached = heap.attach();
        assert!(hooked.load(SeqCst));
        has_one_mutator(&attached, &census, &elsewhere);
        m.insert(attached).detach(|| ());
    });
    ends_well(m.unwrap(), &census);
}

/// In the hook of a thread that waits for its turn to stop the world, and in that of a thread that
/// waits for another one's suspension to end.
#[test]
fn a_requester_waits_through_a_hook_that_keeps_a_guard() {
    let config = || Config { slow_stop: Duration::from_millis(1), ..Config::default() };
    let coordinator = Coordinator::<()>::with_config(config());
    let hooked = Arc::new(AtomicBool::new(false));
    let (here, tell) = (std::thread::current().id(), Arc::clone(&hooked));
    coordinator.on_slow_stop(move |_| {
        if std::thread::current().id() == here && !tell.swap(true, SeqCst) {
            assert_eq!(current(), 0);
            keep_guard();
        }
    });
    let me = coordinator.register(());
    let (stopped, until) = (AtomicBool::new(false), Arc::clone(&hooked));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let me = coordinator.register(());
            me.attach().unwrap();
            let world = me.stop().unwrap();
            stopped.store(true, SeqCst);
            while !until.load(SeqCst) {
                std::thread::yield_now();
            }
            drop(world);
        });
        while !stopped.load(SeqCst) {
            std::thread::yield_now();
        }
        me.attach().unwrap();
        assert!(hooked.load(SeqCst) && me.is_attached());
    });
    assert_eq!(current(), 0);
    drop_guards();
    assert_eq!(current(), me.id().get());
}

/// As `a_parked_thread_traverses_objects` in `tests/helping.rs`.
#[test]
fn a_thread_helps_through_a_traversal_that_keeps_a_guard() {
    struct Node(GcCell<Option<Gc<Node>>>, Arc<Helping>);
    /// The thread that helps, whether it may keep a guard, and whether it has kept one.
    struct Helping(ThreadId, AtomicBool, AtomicBool);
    impl Trace for Node {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            let Helping(here, may_keep, is_kept) = &*this.1;
            if std::thread::current().id() == *here
                && may_keep.load(SeqCst)
                && !is_kept.swap(true, SeqCst)
            {
                keep_guard();
            }
            Trace::traverse(&this.0, tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.0, m);
        }
    }
    if std::thread::available_parallelism().is_ok_and(|n| n.get() == 1) {
        return;
    }
    let (elsewhere, census) = (heap(), Census::new());
    let helping = Arc::new(Helping(std::thread::current().id(), false.into(), false.into()));
    while !helping.2.load(SeqCst) {
        let heap = Heap::builder().workers(2).pacing(Pacing::manual()).build().unwrap();
        let mut m = heap.attach();
        let first = m.alloc(Node(GcCell::new(None), Arc::clone(&helping)));
        let mut last = first.clone();
        for _ in 0..5000 {
            last = m.alloc(Node(GcCell::new(Some(last)), Arc::clone(&helping)));
        }
        first.0.set(&m, Some(last));
        let is_over = AtomicBool::new(false);
        helping.1.store(true, SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                heap.attach().collect();
                is_over.store(true, SeqCst);
            });
            while !is_over.load(SeqCst) && !is_traversing() {
                m.safepoint();
            }
            helping.1.store(false, SeqCst);
            if is_traversing() {
                has_one_mutator(&m, &census, &elsewhere);
            }
            m.detach(|| {
                while !is_over.load(SeqCst) {
                    std::thread::yield_now()
                }
            });
        });
        drop(first);
        ends_well(m, &census);
    }
}

#[test]
fn a_thread_comes_back_from_a_detach_that_keeps_a_guard() {
    let (heap, elsewhere, census) = (heap(), heap(), Census::new());
    let mut m = heap.attach();
    m.detach(keep_guard);
    has_one_mutator(&m, &census, &elsewhere);
    m.scope(|scope, _| scope.spawn(|| ()).join().unwrap());
    // A guard from outside, which goes in the closure, and one from there.
    keep_guard();
    drop_guards();
    m.detach(|| {
        keep_guard();
        drop_guards();
        keep_guard();
    });
    has_one_mutator(&m, &census, &elsewhere);
    ends_well(m, &census);
}

/// The mutator ends, and with it the attachment. The guard outlives both.
/// Keeps a guard when it dies.
#[derive(Trace)]
struct Keeper;

impl Drop for Keeper {
    fn drop(&mut self) {
        keep_guard();
    }
}

/// Another thread has dropped the last reference to an object of this one, which destroys it before
/// it detaches, so too late for the first check.
#[test]
fn a_thread_stays_attached_if_a_destructor_keeps_a_guard_before_the_detach() {
    let (heap, elsewhere, census) = (heap(), heap(), Census::new());
    let mut m = heap.attach();
    let for_the_owner = |m: &Mutator| {
        let keeper = m.alloc(Keeper);
        std::thread::scope(|scope| {
            scope.spawn(|| heap.attach_scoped(|_| drop(keeper)));
        });
    };
    for_the_owner(&m);
    assert!(!is_traversing() && m.may_park());
    m = m.into_detached().expect_err("it has kept a guard");
    has_one_mutator(&m, &census, &elsewhere);

    for_the_owner(&m);
    let detach = catch_unwind(AssertUnwindSafe(|| m.detach(|| panic!("it has detached"))));
    let payload = detach.unwrap_err();
    assert!(payload.downcast_ref::<String>().unwrap().contains("inside a traversal"));
    has_one_mutator(&m, &census, &elsewhere);

    let inside = m.scope(|_, m| {
        for_the_owner(m);
        current()
    });
    assert_ne!(inside, 0);
    has_one_mutator(&m, &census, &elsewhere);
    ends_well(m, &census);
}

#[test]
fn a_mutator_ends_before_the_guard_that_a_detach_has_kept() {
    let (heap, elsewhere, census) = (heap(), heap(), Census::new());
    let mut m = heap.attach();
    let object = node(&m, &census, 0);
    m.detach(keep_guard);
    drop((object, m));
    assert_eq!(heap.try_attach().unwrap_err(), AttachError::Traversing);
    drop_guards();
    assert_eq!(current(), 0);
    drop(elsewhere.attach());
    ends_well(heap.attach(), &census);
}

#[test]
fn a_collection_waits_through_a_hook_that_keeps_any_number_of_guards() {
    const GUARDS: usize = (1 << 16) + 1;
    let (heap, elsewhere, census) = (heap(), heap(), Census::new());
    let (here, hooked) = (std::thread::current().id(), Arc::new(AtomicBool::new(false)));
    let tell = Arc::clone(&hooked);
    heap.on_slow_stop(move |report| {
        if std::thread::current().id() == here && !tell.swap(true, SeqCst) {
            assert_eq!(report.kind, SlowStopKind::Waiting);
            (0..GUARDS).for_each(|_| keep_guard());
        }
    });
    let mut m = heap.attach();
    garbage_loop(&m, &census, 0);
    let finalized = fin(&m, &census, 1, |_, _| assert!(is_traversing()));
    tie(&m, std::slice::from_ref(&finalized));
    drop(finalized);
    let attached = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            attached.store(true, SeqCst);
            while !hooked.load(SeqCst) {
                std::thread::yield_now();
            }
            m.safepoint();
        });
        m.detach(|| {
            while !attached.load(SeqCst) {
                std::thread::yield_now()
            }
        });
        let report = m.collect();
        assert!(hooked.load(SeqCst) && is_traversing());
        assert_eq!((report.unreachable, census.dead()), (2, 0), "{report:?}");
    });
    has_one_mutator(&m, &census, &elsewhere);
    ends_well(m, &census);
}

/// The hook of a thread that waits, detached, until another one has collected.
#[test]
fn a_thread_waits_to_collect_through_a_hook_that_keeps_a_guard() {
    let (heap, elsewhere, census) = (heap(), heap(), Census::new());
    let (here, hooked) = (std::thread::current().id(), Arc::new(AtomicBool::new(false)));
    let (tell, other) = (Arc::clone(&hooked), elsewhere.clone());
    heap.on_slow_stop(move |report| {
        if std::thread::current().id() == here
            && report.kind == SlowStopKind::Collecting
            && !tell.swap(true, SeqCst)
        {
            assert!(is_traversing() && other.try_attach().is_err());
            keep_guard();
        }
    });
    struct Slow(GcCell<Option<Gc<Slow>>>, Arc<AtomicBool>, Arc<AtomicUsize>);
    impl Trace for Slow {
        const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
            this.2.fetch_add(1, SeqCst);
            while !this.1.load(SeqCst) {
                std::thread::yield_now();
            }
        }));
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.0, m);
        }
    }
    let mut m = heap.attach();
    let finalizing = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            let slow = m.alloc(Slow(GcCell::new(None), Arc::clone(&hooked), finalizing.clone()));
            slow.0.set(&m, Some(slow.clone()));
            drop(slow);
            m.collect();
        });
        while finalizing.load(SeqCst) == 0 {
            m.safepoint();
        }
        let refused = m.try_collect(Collect::full()).unwrap_err();
        assert_eq!(refused, CollectError::Stop(StopError::NoSafepoint));
        assert!(hooked.load(SeqCst));
        has_one_mutator(&m, &census, &elsewhere);
        m.detach(|| ());
    });
    ends_well(m, &census);
}

// --------------------------------------------------------------------------------- random programs

/// A random program of one thread, and what it should be: attached to one of two heaps or to none,
/// with so many guards, inside a fork or not. Other threads stop both heaps all the time, and hooks
/// keep and drop guards.
struct Program<'a> {
    rng: Rng,
    heaps: [Heap; 2],
    census: Arc<Census>,
    attached: Option<(usize, Mutator)>,
    /// Mutators that were put down, with their heaps.
    put_down: Vec<(usize, Detached)>,
    objects: Vec<Gc<common::Node>>,
    /// It has stopped its heap, or both of them, for a fork.
    is_forking: bool,
    /// A participant of a coordinator of its own, which the program suspends.
    other: &'a Participant<()>,
}

fn guards() -> usize {
    KEPT.with_borrow(Vec::len)
}

/// Keeps a guard, or drops one of those that are kept, in any order.
fn any_guard(rng: &mut Rng) {
    match guards() {
        n if n > 0 && !rng.one_in(3) => {
            let at = rng.below(n);
            drop(KEPT.with_borrow_mut(|kept| kept.swap_remove(at)));
        }
        _ => keep_guard(),
    }
}

impl Program<'_> {
    fn check(&self, m: Option<&Mutator>) {
        assert_eq!(is_traversing(), guards() > 0);
        let shown = m.filter(|_| guards() == 0).map(|m| format!("{m:?}"));
        assert_eq!(Mutator::with_current(|m| format!("{m:?}")), shown);
        assert!(current() != 0 || shown.is_none());
        assert!(current() == 0 || shown.is_some() || self.is_forking);
        if m.is_some() || guards() > 0 || self.is_forking {
            for heap in &self.heaps {
                assert!(heap.try_attach().is_err(), "a second mutator");
            }
        }
    }

    /// What user code does anywhere.
    fn anywhere(&mut self, m: Option<&Mutator>) {
        match self.rng.below(4) {
            0 => any_guard(&mut self.rng),
            1 => drop(self.objects.pop()),
            2 if !self.objects.is_empty() => {
                let at = self.rng.below(self.objects.len());
                self.objects.push(self.objects[at].clone());
            }
            _ if self.put_down.len() > 1 => drop(self.put_down.swap_remove(0)),
            _ => {}
        }
        self.check(m);
    }

    /// What this thread must not wait in.
    fn suspending(&mut self, m: Option<&Mutator>) {
        let Suspend::Suspended(guard) = self.other.coordinator().suspend(self.other.id()) else {
            panic!("the other participant is detached")
        };
        self.anywhere(m);
        assert!(self.heaps.iter().all(|heap| heap.try_attach().is_err()));
        self.anywhere(m);
        drop(guard);
        self.check(m);
    }

    fn fork(&mut self, m: &mut Mutator) {
        let Ok(fork) = m.prepare_fork() else { return assert!(guards() > 0) };
        self.is_forking = true;
        self.anywhere(None);
        if let Some(child) = forks(&mut self.rng) {
            fork.child();
            self.is_forking = false;
            child.goes_on(|| {
                // The other heap was not prepared, and cannot be used here.
                std::mem::forget((
                    std::mem::take(&mut self.put_down),
                    std::mem::take(&mut self.objects),
                ));
                self.check(Some(m));
                drop(m.alloc(GcCell::new(0)));
                drop(m.try_collect(Collect::full()));
                drop_guards();
                m.verify().unwrap();
                self.fork(m);
                drop_guards();
                m.detach(keep_guard);
                self.check(Some(m));
            });
        }
        fork.parent();
        self.is_forking = false;
    }

    fn fork_detached(&mut self) {
        let heaps = self.heaps.clone();
        let Ok(fork) = Heap::prepare_fork(&heaps) else { return assert!(guards() > 0) };
        self.is_forking = true;
        self.anywhere(None);
        if let Some(child) = forks(&mut self.rng) {
            // It attaches, to repair the heaps.
            drop_guards();
            fork.child();
            self.is_forking = false;
            child.goes_on(|| {
                self.check(None);
                (0..20).for_each(|_| self.step());
            });
        }
        fork.parent();
        self.is_forking = false;
    }

    fn step(&mut self) {
        let Some((at, mut m)) = self.attached.take() else {
            match self.rng.below(8) {
                0 => return self.suspending(None),
                1 => return self.fork_detached(),
                _ => {}
            }
            let at = self.rng.below(2);
            let known = self.put_down.iter().position(|(heap, _)| *heap == at);
            let result = match known {
                Some(known) if self.rng.one_in(2) => {
                    let (at, detached) = self.put_down.swap_remove(known);
                    detached.attach().map_err(|detached| self.put_down.push((at, detached))).ok()
                }
                _ => self.heaps[at].try_attach().ok(),
            };
            self.attached = result.map(|m| (at, m));
            let m = self.attached.take();
            self.anywhere(m.as_ref().map(|(_, m)| m));
            self.attached = m;
            return;
        };
        match self.rng.below(10) {
            0 => m.safepoint(),
            1 => drop(m.try_collect(Collect::full().wait(false))),
            2 => self.objects.push(node(&m, &self.census, 0)),
            3 if guards() == 0 => {
                let mut is_detached = false;
                let result = catch_unwind(AssertUnwindSafe(|| {
                    m.detach(|| {
                        is_detached = true;
                        self.anywhere(None);
                        if guards() == 0 && self.rng.one_in(2) {
                            let other = self.heaps[1 - at].clone();
                            other.attach_scoped(|m| self.anywhere(Some(m)));
                        }
                        (0..self.rng.below(3)).for_each(|_| self.anywhere(None));
                    })
                }));
                // Before it leaves, it may wait for a stop, and in a hook that keeps a guard.
                if let Err(payload) = result
                    && (is_detached || guards() == 0)
                {
                    resume_unwind(payload);
                }
            }
            4 => match m.into_detached() {
                Ok(detached) => {
                    self.put_down.push((at, detached));
                    return self.check(None);
                }
                Err(back) => {
                    assert!(guards() > 0);
                    m = back;
                }
            },
            5 => {
                drop(m);
                return self.check(None);
            }
            6 => self.suspending(Some(&m)),
            7 => self.fork(&mut m),
            _ => self.anywhere(Some(&m)),
        }
        self.check(Some(&m));
        self.attached = Some((at, m));
    }
}

/// The child of a fork.
struct Child;

impl Child {
    /// Leaves without destructors, because this is a copy of a test's process.
    fn goes_on(self, f: impl FnOnce()) -> ! {
        let result = catch_unwind(AssertUnwindSafe(f));
        // SAFETY: rule *bounds*: any status is right.
        unsafe { libc::_exit(i32::from(result.is_err())) }
    }
}

/// Forks now and then. `Some`: this is the child.
fn forks(rng: &mut Rng) -> Option<Child> {
    if cfg!(not(unix)) || !rng.one_in(8) {
        return None;
    }
    #[cfg(unix)]
    // SAFETY: rule *bounds*: the child uses heaps that were prepared, and no other thread.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: rule *bounds*: it ends a child that hangs.
            unsafe { libc::alarm(60) };
            return Some(Child);
        }
        -1 => panic!("no fork"),
        pid => CHILDREN.with_borrow_mut(|children| children.push(pid)),
    }
    None
}

/// Waits for the children of this thread, all of which must have succeeded.
fn wait_for_children() {
    #[cfg(unix)]
    for pid in CHILDREN.take() {
        let mut status = 0;
        // SAFETY: rule *bounds*: a child of this process, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "a child was killed: {status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "a child has failed");
    }
}

/// Ends the other threads, also if the program fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        drop_guards();
        self.0.store(true, SeqCst);
    }
}

fn random_program(seed: u64, steps: usize) {
    let census = Census::new();
    let heaps = [heap(), heap()];
    let (here, over) = (std::thread::current().id(), Arc::new(AtomicBool::new(false)));
    let hooked = Arc::new(Mutex::new(Rng::new(!seed)));
    for heap in &heaps {
        // A guard that is kept after the program would forbid the last collections.
        let (over, hooked) = (Arc::clone(&over), Arc::clone(&hooked));
        heap.on_slow_stop(move |_| {
            if std::thread::current().id() == here && !over.load(SeqCst) {
                any_guard(&mut hooked.lock().unwrap());
            }
        });
    }
    std::thread::scope(|scope| {
        for heap in &heaps {
            scope.spawn(|| {
                let mut m = heap.attach();
                let slow = Seen(Box::new(|| std::thread::sleep(Duration::from_millis(2))));
                let _slow = m.alloc(slow);
                while !over.load(SeqCst) {
                    m.collect();
                    m.detach(|| std::thread::sleep(Duration::from_micros(200)));
                }
            });
        }
        let (attached, put_down, objects) = (None, Vec::new(), Vec::new());
        let coordinator = Coordinator::new();
        let other = &coordinator.register(());
        let (rng, census) = (Rng::new(seed), Arc::clone(&census));
        let _over = Over(&over);
        let mut program = Program {
            rng,
            heaps: heaps.clone(),
            census,
            attached,
            put_down,
            objects,
            is_forking: false,
            other,
        };
        for _ in 0..steps {
            // A stop waits for a thread that is attached inside a traversal, so that does not last.
            if guards() > 0 && program.rng.one_in(4) {
                drop_guards();
            }
            program.step();
        }
        drop_guards();
        drop(program);
    });
    wait_for_children();
    assert_eq!(current(), 0);
    for heap in heaps {
        let mut m = heap.attach();
        m.collect();
        m.verify().unwrap();
        assert_eq!(heap.stats().live_objects, 0, "seed {seed}");
    }
    assert_eq!(census.alive(), 0, "seed {seed}");
}

/// Longer: `STANDSTILL_WORDS_SECS=3600 cargo test --release --test thread_words random`.
#[test]
fn random_programs_keep_the_words_true() {
    let limit = std::env::var("STANDSTILL_WORDS_SECS").map(|n| n.parse().expect("a number"));
    // Longer than other tests in a process of their own.
    if limit.is_err() && !is_alone("random_programs_keep_the_words_true") {
        return;
    }
    let (begun, limit) = (Instant::now(), limit.map_or(Duration::ZERO, Duration::from_secs));
    for seed in 1.. {
        random_program(seed, 300);
        if seed >= 10 && begun.elapsed() >= limit {
            println!("{seed} programs");
            return;
        }
    }
}
