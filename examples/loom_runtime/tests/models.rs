//! The runtime in the interleavings of two threads. loom fails a model if the runtime accesses a
//! stack twice at once or without an order, and aborts if all threads wait. Each model names all
//! outcomes, and has its roles on both threads in turn, because loom skips schedules otherwise.

#![cfg(standstill_loom)]

use std::collections::BTreeSet;

use loom_runtime::Runtime;
use standstill_model::{explore, race};

/// The outcomes with up to three preemptions in an execution, because all executions of two scans
/// take a minute.
fn outcomes<T: Ord + Send + 'static>(
    model: impl Fn(bool) -> T + Copy + Send + Sync + 'static,
) -> BTreeSet<T> {
    let [mut all, swapped] =
        [false, true].map(|swapped| explore(3, move || model(swapped)).outcomes);
    all.extend(swapped);
    all
}

/// A thread that executes three instructions meets one that scans. The scan sees a prefix of what
/// lies before a poll, or nothing if the thread has entered later, or has left.
#[test]
fn a_scan_meets_instructions() {
    let scanned = outcomes(|swapped| {
        let runtime = Runtime::new();
        let scanner = runtime.clone();
        let instructions = move || {
            let interpreter = runtime.enter();
            interpreter.push(1);
            interpreter.push(2);
            interpreter.push(4);
        };
        race(swapped, instructions, move || scanner.enter().scan()).1
    });
    assert_eq!(scanned, BTreeSet::from([0, 1, 3]));
}

/// Two threads scan at once: each parks for the other one.
#[test]
fn two_scans_meet() {
    let scanned = outcomes(|swapped| {
        let runtime = Runtime::new();
        let other = runtime.clone();
        let pushes = move || {
            let interpreter = runtime.enter();
            interpreter.push(1);
            interpreter.scan()
        };
        race(swapped, pushes, move || other.enter().scan())
    });
    assert_eq!(scanned, BTreeSet::from([(1, 0), (1, 1)]));
}

/// A planted fault: native code pushes its result itself, while it is detached, so that a scan may
/// read the stack at the same time.
#[test]
#[should_panic(expected = "Causality violation")]
fn native_code_that_pushes_is_found() {
    explore(3, || {
        let runtime = Runtime::new();
        let scanner = runtime.clone();
        let native = move || {
            let interpreter = runtime.enter();
            interpreter.native(|| interpreter.push(1));
        };
        race(true, native, move || scanner.enter().scan());
    });
}
