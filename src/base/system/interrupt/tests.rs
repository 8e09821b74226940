//! Tests of the stacks of other threads.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use super::*;
use crate::base::stack;
use crate::base::system::os_thread;

/// The table is one for the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The functions on the stack of a thread, or why there is none. On a busy machine a thread may not
/// answer in time, so a test that wants an answer asks again.
fn ask(thread: u64) -> Result<Vec<String>, NoStack> {
    let mut frames = [0; MOST];
    let count = stack_of(thread, &mut frames)?;
    let mut found = Vec::new();
    frames[..count]
        .iter()
        .for_each(|&frame| stack::resolve(frame, |name, _, _| found.extend(name)));
    Ok(found)
}

#[inline(never)]
fn spin_here(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

fn block(how: libc::c_int) {
    // SAFETY: rule *bounds*: the system writes and reads the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGURG);
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

#[test]
fn a_thread_that_spins_answers_and_keeps_its_errno() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    install().unwrap();
    install().expect("the handler is this one already");
    let stop = AtomicBool::new(false);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|s| {
        let spinning = s.spawn(|| {
            // SAFETY: rule *bounds*: the word is this thread's.
            unsafe { *libc::__errno_location() = 77 };
            send.send(os_thread()).unwrap();
            spin_here(&stop);
            std::io::Error::last_os_error().raw_os_error()
        });
        let thread = receive.recv().unwrap();
        let found = (0..100)
            .filter_map(|_| ask(thread).ok())
            .find(|found| found.iter().any(|name| name.ends_with("spin_here")));
        stop.store(true, Ordering::Relaxed);
        let found = found.expect("the thread spins there");
        let handler = found.iter().position(|name| name.ends_with(HANDLER)).unwrap();
        let here = found.iter().position(|name| name.ends_with("spin_here")).unwrap();
        assert!(handler < here, "{found:?}");
        assert_eq!(spinning.join().unwrap(), Some(77));
    });
}

#[inline(never)]
fn spin_there(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

#[test]
fn two_threads_that_ask_get_the_stacks_of_their_own() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    install().unwrap();
    let stop = AtomicBool::new(false);
    type Spin = fn(&AtomicBool);
    let spins: [(Spin, [&str; 2]); 2] =
        [(spin_here, ["spin_here", "spin_there"]), (spin_there, ["spin_there", "spin_here"])];
    std::thread::scope(|s| {
        let stop = &stop;
        let askers = spins.map(|(spin, [own, other])| {
            let (send, receive) = mpsc::channel();
            s.spawn(move || {
                send.send(os_thread()).unwrap();
                spin(stop);
            });
            s.spawn(move || {
                let thread = receive.recv().unwrap();
                let is_in = |found: &[String], name| found.iter().any(|f| f.ends_with(name));
                let mut own_found = 0;
                for _ in 0..10_000 {
                    if own_found == 20 {
                        break;
                    }
                    // Without a pause, the questions that find the table in use all fall into the
                    // time that the other thread waits for one answer.
                    let Ok(found) = ask(thread) else {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        continue;
                    };
                    assert!(!is_in(&found, other), "{found:?}");
                    own_found += usize::from(is_in(&found, own));
                }
                own_found
            })
        });
        let found = askers.map(|asker| asker.join());
        stop.store(true, Ordering::Relaxed);
        assert!(found.into_iter().all(|found| found.unwrap() == 20));
    });
}

#[test]
fn a_thread_that_cannot_answer_leaves_the_table_free() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    install().unwrap();
    let ended = std::thread::spawn(os_thread).join().unwrap();
    assert_eq!(ask(ended), Err("the thread has ended"));
    let stop = AtomicBool::new(false);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(|| {
            block(libc::SIG_BLOCK);
            send.send(os_thread()).unwrap();
            spin_here(&stop);
            // The first signal arrives now, and finds no question.
            block(libc::SIG_UNBLOCK);
            stop.store(false, Ordering::Relaxed);
            send.send(0).unwrap();
            spin_here(&stop);
        });
        let thread = receive.recv().unwrap();
        assert_eq!(ask(thread), Err("the thread did not answer the signal SIGURG in time"));
        stop.store(true, Ordering::Relaxed);
        receive.recv().unwrap();
        assert!((0..100).any(|_| ask(thread).is_ok_and(|found| !found.is_empty())));
        stop.store(true, Ordering::Relaxed);
    });
}
