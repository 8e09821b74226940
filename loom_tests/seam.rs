//! The poll word and the stop of a runtime.
//!
//! # Transitions
//!
//! * the runtime's own word: set after the bits of a poke, after the bit of a stop; cleared by its
//!   thread: `a_runtimes_word_loses_no_request`, `a_runtimes_word_loses_no_stop`
//! * a stop of the heap, with a stop of the runtime inside, against another stop of the runtime by
//!   an attached thread: `a_stop_of_the_heap_meets_one_of_the_runtime`
//! * the same, by a thread that attaches or parks meanwhile, and comes back to the runtime:
//!   `a_thread_comes_back_while_the_runtime_is_stopped`
//! * the same, against a stop of the heap that has begun: `a_stop_in_a_stop_does_not_wait`
//!
//! The runtime of these models is a number of running threads under a lock.

use std::borrow::Cow;
use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::model;
use crate::base::sync::{AtomicBool, Ordering, UnsafeCell};
use crate::memory::address_map::Reserved;
use crate::model::{Count, ModelHeap, ModelMutator, ObjectModel, RuntimeStop, ThreadData, Threads};
use crate::object::live::{ClaimRef, Live, Stopped};
use crate::object::tracer::Tracer;
use crate::safepoint::{Config, Coordinator, StopError, StopPurpose, ThreadId};
use crate::{Heap, Pacing};

type Word = AtomicBool;

fn coordinator() -> Arc<Coordinator<Word>> {
    let requested = |_: ThreadId, word: &Word, _: u32| {
        word.swap(true, Ordering::Release);
    };
    Coordinator::under(None, Config::default(), Some(requested)).unwrap()
}

/// Mutations: the word is set before the bits.
#[test]
fn loom_a_runtimes_word_loses_no_request() {
    model(|| {
        let coordinator = coordinator();
        let me = coordinator.register(AtomicBool::new(false));
        me.attach().unwrap();
        let (c, id) = (coordinator.clone(), me.id());
        let poker = thread::spawn(move || assert!(c.poke(id, 2)));
        // As an interpreter does: it looks at its own word, and then takes the requests.
        let look =
            || if me.data().swap(false, Ordering::Acquire) { me.take_requests(!0) } else { 0 };
        let taken = look();
        poker.join().unwrap();
        assert_eq!(taken | look(), 2, "a request was lost");
    });
}

/// Mutations: the word is not set by a stop; it is set before the bit.
#[test]
fn loom_a_runtimes_word_loses_no_stop() {
    model(|| {
        let coordinator = coordinator();
        let me = coordinator.register(AtomicBool::new(false));
        me.attach().unwrap();
        let c = coordinator.clone();
        let requester = thread::spawn(move || {
            let me = c.register(AtomicBool::new(false));
            me.attach().unwrap();
            drop(me.stop().unwrap());
        });
        // The stop waits for this thread, which looks at nothing but its own word.
        while !me.data().swap(false, Ordering::Acquire) {
            thread::yield_now();
        }
        assert!(me.poll() & crate::safepoint::STOP != 0, "the bit comes first");
        assert!(me.park());
        requester.join().unwrap();
    });
}

#[derive(Default)]
struct Running {
    running: usize,
    stopping: bool,
}

/// A runtime, and data that only a thread which has stopped it changes.
struct Runtime {
    threads: Mutex<Running>,
    changed: Condvar,
    data: UnsafeCell<usize>,
}

// SAFETY: the claim under test: one thread at a time has stopped the runtime. loom checks each
// access.
unsafe impl Sync for Runtime {}
// SAFETY: it belongs to no thread.
unsafe impl Send for Runtime {}

impl Runtime {
    fn new() -> Arc<Self> {
        let (threads, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { threads, changed, data: UnsafeCell::new(0) })
    }

    fn leave(&self) {
        self.threads.lock().unwrap().running -= 1;
        self.changed.notify_all();
    }

    fn comes_back(&self) -> bool {
        let mut threads = self.threads.lock().unwrap();
        threads.running += usize::from(!threads.stopping);
        !threads.stopping
    }

    fn wait(&self) {
        let mut threads = self.threads.lock().unwrap();
        while threads.stopping {
            threads = self.changed.wait(threads).unwrap();
        }
    }

    /// Stops all other threads. While it waits for another stop, this thread does not run.
    fn stop(&self) {
        let mut threads = self.threads.lock().unwrap();
        threads.running -= 1;
        self.changed.notify_all();
        while threads.stopping {
            threads = self.changed.wait(threads).unwrap();
        }
        threads.running += 1;
        threads.stopping = true;
        while threads.running > 1 {
            threads = self.changed.wait(threads).unwrap();
        }
        drop(threads);
        self.touch();
    }

    fn resume(&self) {
        self.touch();
        self.threads.lock().unwrap().stopping = false;
        self.changed.notify_all();
    }

    fn touch(&self) {
        // SAFETY: see `Sync`.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }
}

/// A model without objects, in such a runtime.
struct Own(Arc<Runtime>);

// SAFETY: there is no object.
unsafe impl ObjectModel for Own {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, _: Stopped<'_>) -> Count {
        Count::Outside
    }

    fn traverse(&self, _: Stopped<'_>, _: &mut Tracer) {}

    fn claim_ref(&self, _: Stopped<'_>, _: ThreadId) {}

    fn release(&self, reference: ClaimRef, _: &ModelMutator<Self>) {
        drop(reference);
    }

    fn clear(&self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

crate::parts!(Own: ThreadData, Threads, RuntimeStop);

impl ThreadData<Own> for Own {
    type Local = ();
    type Private = ();

    fn local(model: &Self) {
        while !model.0.comes_back() {
            model.0.wait();
        }
    }

    fn private(_: &Self) -> Option<()> {
        Some(())
    }
}

impl Threads<Own> for Own {
    fn ending(model: &Self, _: &ModelMutator<Self>) {
        model.0.leave();
    }
}

impl RuntimeStop<Own> for Own {
    fn stop_runtime(model: &Self, (): &()) -> Result<(), Cow<'static, str>> {
        model.0.stop();
        Ok(())
    }

    fn resume_runtime(model: &Self, (): &()) {
        model.0.resume();
    }

    fn leaving(model: &Self, (): &()) {
        model.0.leave();
    }

    fn comes_back(model: &Self, (): &()) -> bool {
        model.0.comes_back()
    }

    fn wait_for_runtime(model: &Self, (): &()) {
        model.0.wait();
    }
}

fn heap(runtime: &Arc<Runtime>) -> ModelHeap<Own> {
    let builder = Heap::builder().reserve(1 << 21).pacing(Pacing::manual()).workers(1);
    builder.build_with(Own(runtime.clone())).unwrap()
}

/// One thread stops the heap, and with it the runtime. The other one is attached and stops the
/// runtime. Mutations: the first thread does not leave the runtime before it waits.
#[test]
fn loom_a_stop_of_the_heap_meets_one_of_the_runtime() {
    model(|| {
        let runtime = Runtime::new();
        let heap = heap(&runtime);
        let mut m = heap.attach();
        let (h, r) = (heap.clone(), runtime.clone());
        let other = thread::spawn(move || {
            let m = h.attach();
            r.stop();
            r.resume();
            drop(m);
        });
        drop(m.stop().unwrap());
        drop(m);
        other.join().unwrap();
        assert_eq!(runtime.threads.lock().unwrap().running, 0);
    });
}

/// A thread detaches and comes back, while another one stops the runtime and, inside that stop, the
/// heap. Mutations: the thread waits attached.
#[test]
fn loom_a_thread_comes_back_while_the_runtime_is_stopped() {
    model(|| {
        let runtime = Runtime::new();
        let heap = heap(&runtime);
        let mut m = heap.attach();
        let (h, r) = (heap.clone(), runtime.clone());
        let other = thread::spawn(move || {
            let mut m = h.attach();
            r.stop();
            drop(m.stop_in_runtime_stop(StopPurpose::Collection.into()).expect("no other stop"));
            r.resume();
            drop(m);
        });
        m.detach(|| ());
        drop(m);
        other.join().unwrap();
        assert_eq!(runtime.threads.lock().unwrap().running, 0);
    });
}

/// A thread stops the heap, while another one stops the runtime and, inside that stop, the heap.
/// Mutations: the second thread waits for its turn.
#[test]
fn loom_a_stop_in_a_stop_does_not_wait() {
    model(|| {
        let runtime = Runtime::new();
        let heap = heap(&runtime);
        let mut m = heap.attach();
        let (h, r) = (heap.clone(), runtime.clone());
        let other = thread::spawn(move || {
            let mut m = h.attach();
            r.stop();
            match m.stop_in_runtime_stop(StopPurpose::Collection.into()) {
                Ok(_) | Err(StopError::Busy) => {}
                Err(error) => unreachable!("{error}"),
            }
            r.resume();
            drop(m);
        });
        drop(m.stop().unwrap());
        drop(m);
        other.join().unwrap();
        assert_eq!(runtime.threads.lock().unwrap().running, 0);
    });
}
