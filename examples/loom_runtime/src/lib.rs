//! A runtime with a poll word and a park of its own, and models of both.
//!
//! Compiled code of this runtime reads one word of the process, as many runtimes do, instead of the
//! word of each thread. So the runtime must make sure that a thread which has read the word parks,
//! and goes on after the stop. `tests/models.rs` checks that with loom:
//!
//! ```sh
//! RUSTFLAGS="--cfg standstill_loom" cargo test --release -p loom-runtime
//! ```
//!
//! With `--features double` they run on `standstill-model`, the double of the library.
//!
//! Without the flag everything here is made of std, so the runtime itself pays nothing for it.

// The one line that swaps the two.
#[cfg(feature = "double")]
extern crate standstill_model as standstill;

use std::sync::Arc;

use sync::{AtomicUsize, Condvar, Mutex, Ordering, UnsafeCell};

use standstill::safepoint::{Coordinator, Participant};

/// The primitives: loom's in models, and otherwise those of std in the same shape.
mod sync {
    #[cfg(standstill_loom)]
    pub(crate) use loom::{
        cell::UnsafeCell,
        sync::{
            Condvar, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };
    #[cfg(not(standstill_loom))]
    pub(crate) use std::sync::{
        Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    #[cfg(not(standstill_loom))]
    #[derive(Debug, Default)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    #[cfg(not(standstill_loom))]
    impl<T> UnsafeCell<T> {
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// The values on the stack of one thread. Its thread uses it while it is attached, and a scan reads
/// it in a stop.
#[derive(Debug, Default)]
struct Stack(UnsafeCell<Vec<u32>>);

// SAFETY: the stop of the coordinator keeps the two kinds of access apart. The models check this
// claim.
unsafe impl Sync for Stack {}

/// What all threads of the runtime share.
#[derive(Debug)]
pub struct Runtime {
    coordinator: Arc<Coordinator<Stack>>,
    /// The poll word: how many threads want the others to park.
    wanted: AtomicUsize,
    /// Held when `wanted` becomes smaller, so that a thread that is about to sleep notices.
    changes: Mutex<()>,
    resumed: Condvar,
}

impl Runtime {
    /// A runtime without threads.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            coordinator: Coordinator::new(),
            wanted: AtomicUsize::new(0),
            changes: Mutex::new(()),
            resumed: Condvar::new(),
        })
    }

    /// Makes the calling thread one of the runtime.
    ///
    /// # Panics
    ///
    /// If it is one already.
    pub fn enter(self: &Arc<Self>) -> Interpreter {
        let me = self.coordinator.register(Stack::default());
        me.attach().expect("not a thread of a runtime yet");
        Interpreter { runtime: self.clone(), me }
    }
}

/// One thread of the runtime.
#[derive(Debug)]
pub struct Interpreter {
    runtime: Arc<Runtime>,
    me: Participant<Stack>,
}

impl Interpreter {
    /// Executes one instruction, which pushes a value, after a poll.
    pub fn push(&self, value: u32) {
        // Relaxed, because it is a hint: the handshake is that of the coordinator.
        if self.runtime.wanted.load(Ordering::Relaxed) != 0 {
            self.park();
        }
        // SAFETY: this thread is attached, so there is no stop.
        self.me.data().0.with_mut(|stack| unsafe { (*stack).push(value) });
    }

    #[cold]
    fn park(&self) {
        self.native(|| {
            let mut held = self.runtime.changes.lock().unwrap();
            // Relaxed, because the lock orders it.
            while self.runtime.wanted.load(Ordering::Relaxed) != 0 {
                held = self.runtime.resumed.wait(held).unwrap();
            }
        });
    }

    /// Calls native code, which may block, and must not use the stack.
    ///
    /// # Panics
    ///
    /// If native code calls it.
    pub fn native<R>(&self, f: impl FnOnce() -> R) -> R {
        assert!(self.me.detach(), "native code called native code");
        let result = f();
        self.me.attach().expect("native code has left every runtime");
        result
    }

    /// Stops the other threads, and returns the sum of the values on all stacks.
    ///
    /// # Panics
    ///
    /// In native code, and if a thread has ended inside the runtime.
    pub fn scan(&self) -> u32 {
        // Before the stop, which waits for the threads that poll. The lock is not needed, because
        // no thread waits for a larger number. Relaxed, as in `push`.
        self.runtime.wanted.fetch_add(1, Ordering::Relaxed);
        let world = self.me.stop().expect("all threads are in the runtime");
        let mut sum = 0;
        // SAFETY: the world is stopped.
        world.threads(|_, stack| sum += stack.0.with(|s| unsafe { (*s).iter().sum::<u32>() }));
        drop(world);
        let changes = self.runtime.changes.lock().unwrap();
        self.runtime.wanted.fetch_sub(1, Ordering::Relaxed);
        drop(changes);
        self.runtime.resumed.notify_all();
        sum
    }
}
