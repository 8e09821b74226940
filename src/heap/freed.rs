//! Memory that threads without a mutator have freed.
//!
//! Such a thread may run while the world is stopped. It therefore changes no page and no state
//! byte: the collection and the verifier rely on that. It puts the memory on a stack of the heap.
//! The next attached thread that refills a magazine, allocates a large object or begins a
//! collection frees it.
//!
//! The stack lies in the freed memory itself: the first word of each entry is the address of the
//! next one. So a free needs no memory. A push is one exchange, so a fork at any time leaves a whole
//! stack to the child.

use std::ptr::NonNull;

use crate::base::sync::{AtomicPtr, Ordering};
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::ModelMutator;
use crate::memory::space::{GRANULE, PageKind};
use crate::object::state::StateByte;

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
        // Relaxed: the value is only copied.
        let mut last = self.last.load(Ordering::Relaxed);
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

impl<M: ObjectModel> ModelMutator<M> {
    /// Frees the memory that threads without a mutator have freed.
    #[inline]
    pub(crate) fn free_left_memory(&self) {
        // SAFETY: rule *owner*: as the caller of `free_from_anywhere` says; the state is 0.
        self.core().freed.take(|cell| unsafe { self.free_cell(cell) });
    }
}

impl<M: ObjectModel> ModelHeap<M> {
    /// Whether an address lies in the memory of this heap. It need not be that of an object.
    ///
    /// Any thread may ask. It takes no lock and reads no memory of the heap.
    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        self.0.core.space.contains(address)
    }

    /// Gives memory back as [`ModelMutator::free`] does, on any thread, attached or not, also while
    /// the world is stopped. `object` is the object's address.
    ///
    /// No object is there any more: either an attached thread has called [`ModelMutator::dead`]
    /// for it, or the memory was never [published](ModelMutator::publish). An attached thread frees
    /// the memory, when it next needs memory from the heap or begins a collection. A thread that has
    /// a mutator calls [`ModelMutator::free`] instead, which is faster.
    ///
    /// To *drop a reference* on a thread without a mutator is something else. The count would change
    /// in a stop, which rule 3 of [`ObjectModel`] forbids. A model keeps such references in a list,
    /// and drops them on an attached thread, for example in [`ObjectModel::prepare`] and
    /// [`ObjectModel::attached`].
    ///
    /// # Panics
    ///
    /// If `object` is no address of an object of this heap. With
    /// [`Stress::poison`](crate::Stress::poison) or
    /// [`Stress::quarantine`](crate::Stress::quarantine), and in builds with debug assertions: if an
    /// object is there.
    ///
    /// # Safety
    ///
    /// As for [`ModelMutator::free`], and `dead` was called for the object, unless it was never
    /// published.
    pub unsafe fn free_from_anywhere(&self, object: NonNull<u8>) {
        let (core, address) = (&self.0.core, object.as_ptr().addr());
        let is_in_use = core.space.contains(address)
            && address.is_multiple_of(GRANULE)
            && core.space.page_index(address) < core.space.high_water()
            && matches!(
                core.space.page(core.space.page_index(address)).shape().kind(),
                PageKind::Small | PageKind::Large
            );
        assert!(
            is_in_use,
            "`free_from_anywhere` of {address:#x}, which is no address of an object of this heap; \
             pass the address that `allocate` or `allocate_at` of this heap has returned, once"
        );
        if cfg!(debug_assertions) || core.space.quarantine().is_some() {
            // A stop writes state bytes as plain memory under this lock.
            let _table = core.collector_lock.lock_states();
            let state = StateByte(&core.space.states()[core.space.granule(address)]).get();
            assert!(
                state == 0,
                "`free_from_anywhere` of the object at {address:#x}, which is alive for the heap; \
                 call `ModelMutator::dead` on an attached thread before (rules 2 and 3 of \
                 `ObjectModel`)"
            );
        }
        // SAFETY: rule *owner*: as the caller says. A cell is at least one granule long and aligned
        // to one.
        unsafe { core.freed.push(core.space.cell_around(object)) };
    }
}
