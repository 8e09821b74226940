//! Threads without a mutator give memory back, while an attached thread takes it.
//!
//! The page of [`heap::freed`](crate::heap::alloc) describes the stack. `Memory::users` is a loom
//! cell for each piece of memory. So a model fails if memory is taken twice, or without an ordering
//! after the last thread that used it.
//!
//! A push begins with an exchange and not with a load, for the reason that
//! [`remote_free`](super::remote_free) gives.
//!
//! # Transitions
//!
//! * in use to the stack, by any thread: `freed_memory_is_taken_once`
//! * the stack to its next user: `freed_memory_is_taken_once`

use std::ptr::NonNull;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::heap::alloc::Freed;

/// Pieces of memory, and the stack.
struct Memory {
    freed: Freed,
    pieces: [UnsafeCell<[usize; 4]>; 2],
    users: [UnsafeCell<usize>; 2],
}

// SAFETY: one thread has each piece; loom checks the counters.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn address(&self, at: usize) -> NonNull<u8> {
        self.pieces[at].with(|piece| NonNull::new(piece.cast_mut()).expect("a piece").cast())
    }

    fn touch(&self, at: usize) {
        // SAFETY: one thread has the piece; loom fails the model otherwise.
        self.users[at].with_mut(|uses| unsafe { *uses += 1 });
    }

    fn take(&self, taken: &mut Vec<usize>) {
        self.freed.take(|memory| {
            let at = (0..2).find(|&at| self.address(at) == memory).expect("a piece");
            self.touch(at);
            taken.push(at);
        });
    }
}

/// Two threads push, and a third takes.
///
/// Fails if the push publishes with `Relaxed`, or the stack is taken with `Relaxed`: the taker then
/// uses memory without an ordering after the thread that freed it. Fails if taking is a load and a
/// store: an entry is lost in between.
#[test]
fn loom_freed_memory_is_taken_once() {
    super::model(|| {
        let memory = Arc::new(Memory {
            freed: Freed::default(),
            pieces: [[0; 4], [0; 4]].map(UnsafeCell::new),
            users: [0, 0].map(UnsafeCell::new),
        });
        let threads = [0, 1].map(|at| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                memory.touch(at);
                // SAFETY: the thread gives its piece up.
                unsafe { memory.freed.push(memory.address(at)) };
            })
        });
        let mut taken = Vec::new();
        memory.take(&mut taken);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        memory.take(&mut taken);
        taken.sort_unstable();
        assert_eq!(taken, [0, 1]);
    });
}
