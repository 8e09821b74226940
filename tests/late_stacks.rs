//! The stack of a thread that is late: the feature `stacks`. One test, because the signal belongs
//! to the process.
#![cfg(all(target_os = "linux", target_env = "gnu", not(any(loom, shuttle))))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use standstill::safepoint::{SlowStop, SlowStopKind};
use standstill::{BuildError, Heap, HeapBuilder};

fn builder() -> HeapBuilder {
    Heap::builder().slow_stop(Duration::from_millis(20))
}

extern "C" fn the_programs_own(_: libc::c_int) {}

fn handle(handler: libc::sighandler_t) {
    // SAFETY: the handler does nothing, or the signal is ignored.
    assert_ne!(unsafe { libc::signal(libc::SIGURG, handler) }, libc::SIG_ERR);
}

#[inline(never)]
fn computes_without_a_poll(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// The first report that `is_wanted`, of a stop that waits for a thread in
/// `computes_without_a_poll`. Others come before on a busy machine, where the thread may not answer
/// in time.
fn report(builder: HeapBuilder, is_wanted: fn(Option<&str>) -> bool) -> SlowStop {
    report_of(builder, true, is_wanted).expect("one of ten reports")
}

/// Without a collection no thread waits for the late one, which is then reported once.
fn report_of(
    builder: HeapBuilder,
    collects: bool,
    is_wanted: fn(Option<&str>) -> bool,
) -> Option<SlowStop> {
    let heap = builder.build().unwrap();
    let (send, receive) = mpsc::channel();
    let send = Mutex::new(send);
    heap.on_slow_stop(move |report| _ = send.lock().unwrap().send(report.clone()));
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|s| {
        let late = std::thread::Builder::new().name("late".into());
        late.spawn_scoped(s, || {
            let _m = heap.attach();
            ready.send(()).unwrap();
            computes_without_a_poll(&stop);
        })
        .unwrap();
        is_ready.recv().unwrap();
        let collecting = collects.then(|| s.spawn(|| heap.attach().collect()));
        let is_wanted = |report: &SlowStop| is_wanted(report.stragglers[0].stack.as_deref());
        let most = if collects { 10 } else { 1 };
        let mut reports =
            (0..most).map_while(|_| receive.recv_timeout(Duration::from_secs(20)).ok());
        let found = reports.find(is_wanted);
        stop.store(true, Ordering::Relaxed);
        collecting.map(|thread| thread.join().unwrap());
        found
    })
}

#[test]
fn a_report_has_the_stack_of_the_late_thread() {
    // A program that handles the signal keeps its handler.
    handle(the_programs_own as extern "C" fn(libc::c_int) as libc::sighandler_t);
    let refused = builder().late_stacks(true).build();
    assert!(matches!(refused, Err(BuildError::Setting(text)) if text.contains("SIGURG")));
    report(builder(), |stack| stack.is_none());

    handle(libc::SIG_DFL);
    let is_there = |stack: Option<&str>| stack.unwrap().contains("computes_without_a_poll");
    let report = report(builder().late_stacks(true), is_there);
    assert_eq!(report.kind, SlowStopKind::Waiting);
    let stack = report.stragglers[0].stack.as_deref().expect("a stack");
    let first = stack.split(" < ").next().unwrap();
    // Of the handler nothing is left, and optimised code begins with the function itself.
    assert!(first.starts_with("core::") || first.starts_with("late_stacks::"), "{stack}");
    let text = report.to_string();
    assert!(text.contains(&format!("ago, in {stack}: it has not polled")), "{text}");
    assert!(!text.contains('\n'));

    let late_poll = || builder().late_poll(Duration::from_millis(20)).late_stacks(true);
    let report = (0..10).find_map(|_| report_of(late_poll(), false, is_there));
    assert_eq!(report.expect("one of ten late polls").kind, SlowStopKind::LatePoll);
}
