//! Memory that threads without a mutator have freed.
//!
//! Such a thread may run while the world is stopped. It therefore changes no page and no state
//! byte: the collection and the verifier rely on that. It puts the memory on a stack of the heap.
//! The next attached thread that refills a magazine, allocates a large object or begins a
//! collection frees it.
//!
//! The stack lies in the freed memory itself: the first word of each entry is the address of the
//! next one. So a free needs no memory. A push is one exchange, so a fork at any time leaves a
//! whole stack to the child.

use std::ptr::NonNull;

use crate::base::sync::{AtomicPtr, Ordering};

/// The stack. See the module's page.
#[derive(Debug)]
pub(crate) struct Freed {
    /// The entry that was pushed last, or null.
    last: AtomicPtr<u8>,
}

impl Default for Freed {
    fn default() -> Self {
        Self { last: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

impl Freed {
    /// Pushes memory of at least one word.
    ///
    /// # Safety
    ///
    /// The caller owns the memory, which is aligned for a pointer, and gives it up.
    pub(crate) unsafe fn push(&self, memory: NonNull<u8>) {
        // A guess instead of a load: mostly no other memory waits.
        let mut last = std::ptr::null_mut();
        loop {
            // SAFETY: rule *owner*: the memory is this thread's until the exchange succeeds.
            unsafe { memory.cast::<*mut u8>().write(last) };
            // Release: the thread that takes the stack sees the link, and all that this thread did
            // with the memory before. Later pushes are read-modify-writes, so they continue the
            // release sequence. Relaxed on failure: the value is only copied. A thread that takes
            // entries takes the whole stack, so an address that is on top again is still the right
            // link.
            let pushed = self.last.compare_exchange_weak(
                last,
                memory.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// Takes all memory, and calls `f` with each entry, which the caller owns.
    #[inline]
    pub(crate) fn take(&self, f: impl FnMut(NonNull<u8>)) {
        // Relaxed: a hint. The next call takes an entry that this call misses.
        if !self.last.load(Ordering::Relaxed).is_null() {
            self.take_all(f);
        }
    }

    #[cold]
    fn take_all(&self, mut f: impl FnMut(NonNull<u8>)) {
        // Acquire: see `push`.
        let mut next = self.last.swap(std::ptr::null_mut(), Ordering::Acquire);
        while let Some(memory) = NonNull::new(next) {
            // SAFETY: rule *owner*: the exchange has made the entries this thread's. `push` has
            // written the link.
            next = unsafe { memory.cast::<*mut u8>().read() };
            f(memory);
        }
    }
}
