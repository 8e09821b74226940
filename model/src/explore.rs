//! The exploration of a model, with the outcomes that its executions have had.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The outcomes of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explored<T> {
    /// What the executions have returned.
    pub outcomes: BTreeSet<T>,
    /// Their number.
    pub executions: usize,
}

/// Runs `model` in the interleavings with at most this many preemptions, and collects what it
/// returns. Only under `--cfg standstill_loom`.
///
/// `model` runs on a thread whose stack suffices for a collection of the library, with a limit of
/// branches that suffices, too. Each [`loom::thread::spawn`] of the model has loom's small stack.
///
/// Compare the outcomes with *all* that you expect, so that an interleaving which loom does not try
/// is noticed. loom compares a store only with the last access to its atomic. So an access by the
/// storing thread hides those of others. Give the roles of a model to its threads in each order:
///
/// ```ignore
/// for swapped in [false, true] {
///     let explored = standstill_model::explore(2, move || race(swapped));
///     assert_eq!(explored.outcomes, BTreeSet::from([0, 1]));
/// }
/// ```
///
/// # Panics
///
/// As `model`, and as loom: for two accesses without an order ("Causality violation") and for too
/// many branches. At a deadlock the process aborts, because loom panics while it unwinds.
pub fn explore<T: Ord + Send + 'static>(
    preemptions: usize,
    model: impl Fn() -> T + Send + Sync + 'static,
) -> Explored<T> {
    let outcomes = Arc::new(Mutex::new(BTreeSet::new()));
    let executions = Arc::new(AtomicUsize::new(0));
    let model = Arc::new(model);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check({
        let (outcomes, executions) = (Arc::clone(&outcomes), Arc::clone(&executions));
        move || {
            executions.fetch_add(1, Relaxed);
            let (model, outcomes) = (Arc::clone(&model), Arc::clone(&outcomes));
            let first = loom::thread::Builder::new().stack_size(0x8000).spawn(move || {
                let outcome = model();
                outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(outcome);
            });
            first.expect("a thread of loom").join().expect("the model's first thread");
        }
    });
    let executions = executions.load(Relaxed);
    let outcomes = std::mem::take(&mut *outcomes.lock().unwrap_or_else(PoisonError::into_inner));
    Explored { outcomes, executions }
}
