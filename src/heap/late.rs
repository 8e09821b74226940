//! The stacks of the threads that others wait for, in the reports of slow waits.
//!
//! A report names the thread that is late, and with this page also where it runs: the thread that
//! waits sends the late one a [signal](crate::base::system::interrupt). For example, `reader` has
//! not polled for a second, and the report says that it is in `read` below `load_index`. The names
//! of functions are looked up on the thread that waits, without a lock of the library, because that
//! takes long the first time.

#![forbid(unsafe_code)]

use crate::base::stack::{self, MOST};
use crate::base::system::interrupt;
use crate::safepoint::{SlowStop, SlowStopKind};

/// The most threads of a report with a stack: those that a line names.
const MOST_THREADS: usize = 4;
/// The most calls of a stack in a report.
const MOST_CALLS: usize = 16;

/// The report with the stacks of the threads that run.
pub(super) fn with_stacks(report: &SlowStop) -> SlowStop {
    let mut report = report.clone();
    let is_other = matches!(
        report.kind,
        SlowStopKind::Waiting
            | SlowStopKind::Held
            | SlowStopKind::Collecting
            | SlowStopKind::LatePoll
    );
    let most = if is_other { MOST_THREADS } else { 0 };
    for straggler in report.stragglers.iter_mut().take(most) {
        straggler.stack = straggler.thread.os_thread.map(stack_of);
    }
    report
}

fn stack_of(os_thread: u64) -> String {
    let mut frames = [0; MOST];
    let count = match interrupt::stack_of(os_thread, &mut frames) {
        Ok(count) => count,
        Err(why) => return format!("no stack: {why}"),
    };
    let (mut calls, mut from) = (Vec::<String>::new(), 0);
    // How many frames follow the handler's own: first the return from it, then the program's.
    let mut behind = None;
    for &address in &frames[..count] {
        let before = calls.len();
        let is_interrupted = behind == Some(1);
        if is_interrupted {
            from = before;
        }
        // That address is no return address, behind a call, but the next instruction itself.
        stack::resolve(address + usize::from(is_interrupted), |function, file, line| {
            let function = function.unwrap_or_else(|| format!("{address:#x}"));
            calls.push(match (file, line) {
                (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
                _ => function,
            });
        });
        if calls.len() == before {
            calls.push(format!("{address:#x}"));
        }
        let is_handler = || calls[before..].iter().any(|call| call.contains(interrupt::HANDLER));
        behind = match behind {
            Some(frames) => Some(frames + 1),
            None => is_handler().then_some(0),
        };
    }
    let calls: Vec<String> = calls.drain(from..).take(MOST_CALLS).collect();
    calls.join(" < ")
}
