//! A fork while other threads run. In the child only the forking thread exists. A lock that another
//! thread held would stay locked there for ever, and a structure would stay half changed. In a stop
//! the other threads are at safepoints, where they hold no lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use standstill_safepoint::{Coordinator, Participant};

const CHILDREN: usize = 20;

/// Two numbers that are equal, except while a thread changes them.
type Table = Mutex<(u64, u64)>;

fn change(me: &Participant, table: &Table, done: &AtomicBool) {
    me.attach().expect("the thread is detached");
    while !done.load(Relaxed) {
        let mut entry = table.lock().expect("no thread panics");
        entry.0 += 1;
        std::hint::black_box(&mut entry);
        entry.1 += 1;
        drop(entry);
        if me.poll() != 0 {
            me.park(); // the safepoint, without the lock
        }
    }
}

/// What a child does: 0 if all is whole.
fn in_child(table: &Table) -> i32 {
    match table.try_lock() {
        Ok(entry) => i32::from(entry.0 != entry.1),
        Err(_) => 2,
    }
}

fn main() {
    let coordinator = Coordinator::<()>::new();
    let table = Table::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| change(&coordinator.register(()), &table, &done));
        }
        let me = coordinator.register(());
        for _ in 0..CHILDREN {
            me.attach().expect("the thread is detached");
            let fork = coordinator.prepare_fork(&me).expect("no thread ends attached");
            // SAFETY: the child takes two locks that no lost thread holds, and leaves by `_exit`.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "the system can make a process");
            if pid == 0 {
                drop(fork.child()); // the participants of the lost threads
                let status = me.stop().map_or(3, |_| in_child(&table)); // it stops its own world
                // SAFETY: ends the process, without destructors.
                unsafe { libc::_exit(status) };
            }
            fork.parent(); // the threads run on
            me.detach();
            let mut status = -1;
            // SAFETY: waits for the child, and writes its status.
            let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!((waited, status), (pid, 0), "the table is whole in the child");
        }
        done.store(true, Relaxed);
    });
    println!("{CHILDREN} children found their table whole");
}

#[test]
fn each_child_finds_its_table_whole() {
    main();
}
