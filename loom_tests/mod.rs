//! Models of the protocols, explored by loom: `ci/loom.sh`.
//!
//! One file a protocol. The page of each lists the transitions of its protocol and the models that take them, and
//! `mutations.toml` every ordering and check in the code, with the models that fail when it is weakened or
//! removed (`ci/mutations.py`); a model that cannot fail proves nothing.
//!
//! # How deep
//!
//! A model is run once for each interleaving of its threads, and for each value that a relaxed load may see.
//! `ci/loom.sh` bounds the number of *preemptions* in an execution (a thread that could go on is put aside
//! for another), by 2 or what a model [needs](Model::at_least). `ci/loom.sh --full` bounds nothing, save the
//! models that would take too long: these say [how far](Model::at_most) they go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod cell;
mod collect;
mod collector_lock;
mod count;
mod fork;
mod helpers;
mod managed;
mod remote_free;
mod safepoint;
mod slot;
mod tracked;

/// Of a model's main thread, in the units of loom's generators, which are words.
const STACK: usize = 0x8000;

/// How deep a model is explored.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    at_least: usize,
    at_most: Option<usize>,
}

impl Model {
    /// Up to 2 preemptions; without a bound in a full run.
    pub(crate) const fn new() -> Self {
        Self { at_least: 2, at_most: None }
    }

    /// With fewer preemptions than this, what the model is about never happens.
    pub(crate) const fn at_least(self, preemptions: usize) -> Self {
        Self { at_least: preemptions, ..self }
    }

    /// With more preemptions than this, the model takes too long, for any run.
    pub(crate) const fn at_most(self, preemptions: usize) -> Self {
        Self { at_most: Some(preemptions), ..self }
    }

    /// The bound on preemptions of this run; `None`: there is none.
    fn bound(self) -> Option<usize> {
        if std::env::var_os("LOOM_FULL").is_some() {
            return self.at_most;
        }
        let asked =
            std::env::var("LOOM_MAX_PREEMPTIONS").map_or(0, |n| n.parse().expect("a number"));
        Some(asked.max(self.at_least).min(self.at_most.unwrap_or(usize::MAX)))
    }

    /// Explores `f`, and says how many executions that took.
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
            crate::base::sync::begin_execution();
            // On a thread of its own: the stack of loom's first thread is too small for a collection that is not optimised.
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

/// Explores `f` as deep as most models go.
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    Model::new().check(f);
}
