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
//! in an execution, or the number that a model [needs](Model::at_least). With `STANDSTILL_FULL=1`
//! it has no bound, but some models would take too long: they state
//! [their own bound](Model::at_most).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod cell;
mod collect;
mod collector_lock;
mod count;
mod finalizers;
mod fork;
mod freed;
mod helpers;
mod managed;
mod marking;
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

/// The depth to which a model is explored.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    at_least: usize,
    at_most: Option<usize>,
}

impl Model {
    /// Up to 2 preemptions. No bound in a full run.
    pub(crate) const fn new() -> Self {
        Self { at_least: 2, at_most: None }
    }

    /// With fewer preemptions the modelled event never happens.
    pub(crate) const fn at_least(self, preemptions: usize) -> Self {
        Self { at_least: preemptions, ..self }
    }

    /// With more preemptions the model takes too long, also in a full run.
    pub(crate) const fn at_most(self, preemptions: usize) -> Self {
        Self { at_most: Some(preemptions), ..self }
    }

    /// The bound on preemptions in this run. `None`: no bound.
    fn bound(self) -> Option<usize> {
        if std::env::var_os("LOOM_FULL").is_some() {
            return self.at_most;
        }
        let asked =
            std::env::var("LOOM_MAX_PREEMPTIONS").map_or(0, |n| n.parse().expect("a number"));
        Some(asked.max(self.at_least).min(self.at_most.unwrap_or(usize::MAX)))
    }

    /// Explores `f`, and prints the number of executions.
    pub(crate) fn check(self, f: impl Fn() + Sync + Send + 'static) {
        let executions = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&executions);
        let bound = self.bound();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = bound;
        builder.max_branches = 20_000;
        let f = Arc::new(f);
        builder.check(move || {
            count.fetch_add(1, Relaxed);
            crate::base::model_sync::begin_execution();
            // On a thread of its own: the stack of loom's first thread is too small for an
            // unoptimised collection.
            let f = Arc::clone(&f);
            let model = loom::thread::Builder::new().stack_size(STACK).spawn(move || f());
            model
                .expect("loom has threads")
                .join()
                .expect("loom ends the model when a thread panics");
        });
        let executions = executions.load(Relaxed);
        match bound {
            Some(bound) => {
                println!("explored: {executions} executions with up to {bound} preemptions")
            }
            None => println!("explored: {executions} executions, all there are"),
        }
    }
}

/// Explores `f` to the usual depth.
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    Model::new().check(f);
}
