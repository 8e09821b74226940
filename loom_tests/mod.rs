//! Models of the protocols, which loom explores: `ci/loom.sh`.
//!
//! Each file models one protocol. Its page lists the transitions of the protocol, and the models
//! that make them. `mutations.toml` lists every ordering and check in the code, and the models that
//! fail if it is weakened or removed (`ci/mutations.py`). A model that cannot fail proves nothing.
//!
//! # Depth
//!
//! A model runs once for each interleaving of its threads, and for each value that a relaxed load
//! may return. A *preemption* suspends a thread that could go on. `ci/loom.sh` allows 2 preemptions
//! in an execution, or the number that a model [needs](model_to).
//!
//! With `STANDSTILL_FULL=1` each model has some seconds (`LOOM_SECONDS`) to run without a bound.
//! Many models have too many executions for that, so that loom would explore one corner of them
//! only. Such a model runs with one preemption more, and one more, as long as it has time, because
//! most faults need few preemptions. The output says how deep each model got.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

mod ambient;
mod cell;
mod collect;
mod collector_lock;
mod count;
mod finalizers;
mod fork;
mod freed;
mod helpers;
mod home;
mod limits;
mod managed;
mod marking;
mod proposed;
mod queues;
mod remote_free;
mod safepoint;
mod seam;
mod slot;
mod thread_words;
mod tiny;
mod tracked;

// What `tiny` uses: the library, its primitives under loom, and a function.
use crate as standstill;
use crate::base::sync;

/// Makes a new object known. Published as typed objects are, which rely on the marks of magazines.
///
/// # Safety
///
/// As for `ModelMutator::publish`.
unsafe fn publish(m: &tiny::Mutator, object: crate::model::Object) {
    // SAFETY: as the caller says.
    unsafe { m.publish_as(object, crate::object::state::TRACKED) };
}

/// The stack of a model's main thread, in words, as loom's generators count it.
const STACK: usize = 0x8000;

/// Explores `f` with up to 2 preemptions, or more in a full run, and prints how deep.
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    model_to(2, f);
}

/// Explores `f` with up to this many preemptions, or more in a full run: with fewer the modelled
/// event never happens, or with more the model takes too long.
pub(crate) fn model_to(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let f: Arc<dyn Fn() + Sync + Send> = Arc::new(f);
    let time = std::env::var("LOOM_SECONDS").ok();
    let time = time.map(|s| Duration::from_secs(s.parse().expect("a number of seconds")));
    let (first, _) = explore(&f, Some(preemptions), None);
    let (mut depth, mut total) = (preemptions, first);
    if let Some(time) = time {
        let (executions, complete) = explore(&f, None, Some(time));
        if complete {
            println!("explored: {executions} executions, all there are");
            return;
        }
        total += executions;
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()) {
            let (executions, complete) = explore(&f, Some(depth + 1), Some(left));
            total += executions;
            depth += usize::from(complete);
        }
    }
    println!("explored: {total} executions, all with up to {depth} preemptions");
}

/// Explores `f` with at most `preemptions` in an execution, and for at most `time`. Returns the
/// number of executions, and whether they are all that there are.
fn explore(
    f: &Arc<dyn Fn() + Sync + Send>,
    preemptions: Option<usize>,
    time: Option<Duration>,
) -> (usize, bool) {
    let executions = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    builder.max_duration = time;
    builder.checkpoint_interval = 64; // executions between two looks at the clock
    let begun = Instant::now();
    let (count, f) = (Arc::clone(&executions), Arc::clone(f));
    builder.check(move || {
        count.fetch_add(1, Relaxed);
        crate::base::model_sync::watch_locks(false);
        // On a thread of its own: the stack of loom's first thread is too small for an
        // unoptimised collection.
        let f = Arc::clone(&f);
        let model = loom::thread::Builder::new().stack_size(STACK).spawn(move || f());
        model.expect("loom has threads").join().expect("loom ends the model when a thread panics");
    });
    (executions.load(Relaxed), time.is_none_or(|time| begun.elapsed() < time))
}
