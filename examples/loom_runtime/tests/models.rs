//! The runtime in every interleaving of two threads. loom fails a model if the runtime accesses a
//! stack twice at once or without an order, and if all threads wait.

#![cfg(standstill_loom)]

use loom::thread;
use loom_runtime::Runtime;

/// Explores `f` with up to three preemptions in an execution, because all executions of two scans
/// take a minute.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// A thread that executes two instructions meets one that scans. The scan sees a prefix of its
/// work, or nothing if the thread has entered later.
#[test]
fn a_scan_meets_instructions() {
    model(|| {
        let runtime = Runtime::new();
        let scanned = thread::spawn({
            let runtime = runtime.clone();
            move || runtime.enter().scan()
        });
        let interpreter = runtime.enter();
        interpreter.push(1);
        interpreter.push(2);
        drop(interpreter);
        assert!([0, 1, 3].contains(&scanned.join().unwrap()));
    });
}

/// Two threads scan at once: each parks for the other one.
#[test]
fn two_scans_meet() {
    model(|| {
        let runtime = Runtime::new();
        let other = thread::spawn({
            let runtime = runtime.clone();
            move || runtime.enter().scan()
        });
        let interpreter = runtime.enter();
        interpreter.push(1);
        assert_eq!(interpreter.scan(), 1);
        drop(interpreter);
        assert!(other.join().unwrap() <= 1);
    });
}

/// A planted fault: native code pushes its result itself, while it is detached, so that a scan may
/// read the stack at the same time.
#[test]
#[should_panic(expected = "Causality violation")]
fn native_code_that_pushes_is_found() {
    model(|| {
        let runtime = Runtime::new();
        let scanned = thread::spawn({
            let runtime = runtime.clone();
            move || runtime.enter().scan()
        });
        let interpreter = runtime.enter();
        interpreter.native(|| interpreter.push(1));
        drop(interpreter);
        scanned.join().unwrap();
    });
}
