//! loom does not try each order of two steps, because it compares a step with the last access to
//! its atomic alone. Thread A loads a word and stores to it, and thread B loads it. The load of A
//! hides that of B from the store, so no execution is added in which B loads after the store. A
//! test that passes then proves less than it seems to. So a model has its roles on both threads in
//! turn, and compares the outcomes of its executions with all that are expected.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use loom::thread::JoinHandle;

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
/// The thread of `model` has a stack that suffices for a collection of the library, as those of
/// [`race`] have, and the limit of branches suffices, too. Of loom's five threads three are left.
///
/// ```ignore
/// let mut outcomes = BTreeSet::new();
/// for swapped in [false, true] {
///     outcomes.extend(explore(2, move || {
///         let runtime = Runtime::new();
///         let other = runtime.clone();
///         race(swapped, move || runtime.enter().push(1), move || other.enter().scan()).1
///     }).outcomes);
/// }
/// assert_eq!(outcomes, BTreeSet::from([0, 1]));
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
            let first = spawn(move || {
                let outcome = model();
                outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(outcome);
            });
            first.join().expect("the model's first thread");
        }
    });
    let executions = executions.load(Relaxed);
    let outcomes = std::mem::take(&mut *outcomes.lock().unwrap_or_else(PoisonError::into_inner));
    Explored { outcomes, executions }
}

/// Runs `a` and `b` on two threads, and returns what they return. One of them is the thread that
/// calls this: it runs `b`, or `a` if they are `swapped`. loom begins with that thread.
///
/// # Panics
///
/// If `a` or `b` panics.
pub fn race<A: Send + 'static, B: Send + 'static>(
    swapped: bool,
    a: impl FnOnce() -> A + Send + 'static,
    b: impl FnOnce() -> B + Send + 'static,
) -> (A, B) {
    if swapped {
        let other = spawn(b);
        let a = a();
        (a, other.join().expect("the thread of `b`"))
    } else {
        let other = spawn(a);
        let b = b();
        (other.join().expect("the thread of `a`"), b)
    }
}

/// A thread whose stack suffices for a collection of the library.
fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(0x8000);
    builder.spawn(f).expect("a thread of loom")
}
