//! The rows without objects: stops, detaching and attaching, the poll.
//!
//! A heap of typed objects has no call that only stops the world. But [`Mutator::prepare_fork`]
//! followed by [`Fork::parent`](standstill::Fork::parent) comes close: beside the stop it takes and
//! releases two uncontended locks. [`Participant::stop`] is the coordinator's own stop, without
//! them.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pauses::stats::spread;
use standstill::model::{
    ClaimRef, Count, Live, ModelMutator, ObjectModel, Reserved, Stopped, Tracer,
};
use standstill::safepoint::{Coordinator, Participant, ThreadId};
use standstill::{Heap, Mutator};

use crate::objects::node;
use crate::{Args, each, in_us, us};

/// Runs `measure` while `n` threads wait. Each keeps the value that `prepare` has given it.
pub(crate) fn beside<T>(
    n: usize,
    prepare: impl Fn() -> T + Sync,
    measure: impl FnOnce() -> Vec<f64>,
) -> Vec<f64> {
    const STACK: usize = 128 << 10;
    let (ready, over) = (Barrier::new(n + 1), Barrier::new(n + 1));
    thread::scope(|scope| {
        for _ in 0..n {
            let thread = || {
                let kept = prepare();
                ready.wait();
                over.wait();
                drop(kept);
            };
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, thread).expect("a thread");
        }
        ready.wait();
        let values = measure();
        over.wait();
        values
    })
}

/// Stops beside threads that are detached.
pub(crate) fn idle(args: &Args, threads: usize) -> Vec<f64> {
    let coordinator = Coordinator::<()>::new();
    let detached = || {
        let other = coordinator.register(());
        other.attach().expect("nothing forbids it");
        other.detach();
        other
    };
    let measure = || {
        let me = coordinator.register(());
        me.attach().expect("nothing forbids it");
        each(args, 1000, || drop(me.stop().expect("no thread has leaked its mutator")))
    };
    in_us(beside(threads, detached, measure))
}

pub(crate) fn idle_heap(args: &Args, threads: usize) -> Vec<f64> {
    let heap = Heap::new();
    let measure = || {
        let mut m = heap.attach();
        each(args, 1000, || m.prepare_fork().expect("no thread has leaked its mutator").parent())
    };
    in_us(beside(threads, || heap.attach().into_detached().expect("it may park"), measure))
}

/// Long enough for the thread that is stopped to fall asleep, as it does in a collection.
pub(crate) const HELD: Duration = Duration::from_micros(100);

/// One stop of a running thread, in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct RunningStop {
    pub(crate) whole: f64,
    pub(crate) time_to_stop: f64,
    pub(crate) until_it_runs: f64,
}

/// Calls `stop` beside a thread that calls `poll` all the time, each time after that thread has
/// resumed. Returns the median of the values that `value` selects in each round. `stop` returns the
/// time to stop, and holds the stop for so long.
pub(crate) fn beside_running(
    args: &Args,
    poller: impl FnOnce(&mut dyn FnMut(&mut dyn FnMut())) + Send,
    mut stop: impl FnMut() -> Option<Duration>,
    held: Duration,
    value: impl Fn(RunningStop) -> f64,
) -> Vec<f64> {
    const STOPS: usize = 1000;
    let (polls, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let runs = || {
        let before = polls.load(Ordering::Relaxed);
        let begun = Instant::now();
        while polls.load(Ordering::Relaxed) < before + 1 {
            std::hint::spin_loop();
        }
        us(begun.elapsed())
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            poller(&mut |poll| {
                while !over.load(Ordering::Relaxed) {
                    poll();
                    polls.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        let mut one = || {
            // It is under way for a while, and not just out of the last stop.
            for _ in 0..10 {
                runs();
            }
            let begun = Instant::now();
            let time_to_stop = stop().map_or(f64::NAN, us);
            let whole = us(begun.elapsed().saturating_sub(held));
            RunningStop { whole, time_to_stop, until_it_runs: runs() }
        };
        let round =
            |_| spread(&(0..STOPS).map(|_| value(one())).collect::<Vec<_>>()).map(|all| all.median);
        let values = (0..args.rounds()).filter_map(round).collect();
        over.store(true, Ordering::Relaxed);
        values
    })
}

pub(crate) fn running(args: &Args, held: Duration, value: fn(RunningStop) -> f64) -> Vec<f64> {
    let coordinator = Coordinator::<()>::new();
    let attached = || {
        let participant = coordinator.register(());
        participant.attach().expect("nothing forbids it");
        participant
    };
    let poller = |run: &mut dyn FnMut(&mut dyn FnMut())| {
        let other: Participant = attached();
        run(&mut || {
            if other.poll() != 0 {
                other.park();
            }
        });
    };
    let me = attached();
    let stop = || {
        let world = me.stop().expect("no thread has leaked its mutator");
        let standing = Instant::now();
        while standing.elapsed() < held {
            std::hint::spin_loop();
        }
        Some(world.time_to_stop())
    };
    beside_running(args, poller, stop, held, value)
}

pub(crate) fn running_heap(args: &Args) -> Vec<f64> {
    let heap = Heap::new();
    let poller = |run: &mut dyn FnMut(&mut dyn FnMut())| {
        let mut other = heap.attach();
        run(&mut || other.safepoint());
    };
    let mut m = heap.attach();
    let stop = || {
        m.prepare_fork().expect("no thread has leaked its mutator").parent();
        None
    };
    beside_running(args, poller, stop, Duration::ZERO, |stop| stop.whole)
}

pub(crate) fn detach(args: &Args) -> Vec<f64> {
    let coordinator = Coordinator::<()>::new();
    let me = coordinator.register(());
    each(args, 1_000_000, || {
        me.attach().expect("nothing forbids it");
        me.detach();
    })
}

pub(crate) fn detach_heap(args: &Args) -> Vec<f64> {
    let heap = Heap::new();
    let mut m = heap.attach();
    each(args, 1_000_000, || m.detach(|| black_box(())))
}

/// A model without objects.
struct Empty;

// SAFETY: there is no object, and no method is called with one.
unsafe impl ObjectModel for Empty {
    type Addresses = Reserved;
    type Parts = ();

    fn count(&self, _: Stopped<'_>) -> Count {
        Count::Immortal
    }

    fn traverse(&self, _: Stopped<'_>, _: &mut Tracer) {}

    fn claim_ref(&self, _: Stopped<'_>, _: ThreadId) {}

    fn release(&self, _: ClaimRef, _: &ModelMutator<Self>) {}

    fn clear(&self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

/// As [`detach_heap`], with a mutator that is moved out of its place and back.
pub(crate) fn detach_moved(args: &Args) -> Vec<f64> {
    let heap = Heap::builder().build_with(Empty).expect("a heap");
    let mut m = Some(heap.attach());
    each(args, 1_000_000, || {
        let detached = m.take().and_then(|m| m.into_detached().ok()).expect("nothing forbids it");
        m = black_box(detached).attach().ok();
    })
}

/// As [`detach_heap`], with a mutator that stays where its runtime keeps it.
pub(crate) fn detach_in_place(args: &Args) -> Vec<f64> {
    let heap = Heap::builder().build_with(Empty).expect("a heap");
    let m = heap.attach();
    each(args, 1_000_000, || {
        // SAFETY: nothing uses the mutator or an object until it is back.
        assert!(unsafe { m.leave_for_now() });
        assert!(black_box(&m).come_back());
    })
}

/// The two locked instructions that a detach and an attach cannot do without.
pub(crate) fn exchanges(args: &Args) -> Vec<f64> {
    let word = black_box(AtomicU32::new(0));
    each(args, 1_000_000, || {
        black_box(word.swap(1, Ordering::SeqCst));
        black_box(word.swap(0, Ordering::SeqCst));
    })
}

/// A mutator that lives for `work` alone.
pub(crate) fn attach_heap(args: &Args, work: fn(&Mutator)) -> Vec<f64> {
    let heap = Heap::new();
    each(args, 100_000, || work(&heap.attach()))
}

pub(crate) fn attach(m: &Mutator) {
    drop(black_box(node(m, None)));
}

pub(crate) fn poll(args: &Args) -> Vec<f64> {
    let heap = Heap::new();
    let mut m = heap.attach();
    each(args, 10_000_000, || m.safepoint())
}
