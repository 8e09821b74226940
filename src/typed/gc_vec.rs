//! A node that keeps its references in a `Vec` costs a second allocation, from the process's
//! allocator, and a collection must follow the vector's pointer to find them. Because most nodes
//! have few references, a vector of handles, `GcVec<T, N>`, has `N` places of its own. It takes a
//! cell of the heap only if it needs more. For example, the first two handles of a `GcVec<T, 2>`
//! lie in the vector. The third push fetches a cell with four places or more, and moves the two
//! handles there.
//!
//! # States
//!
//! | `capacity` | state | place of the handles |
//! |---|---|---|
//! | `N` | in line | the vector itself |
//! | more than `N` | in a buffer | a cell of the heap whose mutator made the vector grow |
//!
//! The first `len` places are initialized. All handles lie in one place, so that the vector is a
//! slice in both states, and a traversal reads one array (`Tracer::edges_to`). A vector in a buffer
//! stays there, also when it becomes shorter. The buffer has its own page:
//! [`managed`](crate::managed), `handle_buffer.rs`.
//!
//! # Access
//!
//! The vector has no lock, like a `Vec`: each change takes `&mut`. Inside an object it is the
//! content of a [`GcCell`](crate::GcCell), whose lock gives out the `&mut`. So in a stop no thread
//! changes a vector that a traversal can read: threads of the stopped heap hold no guard, and
//! others cannot lock the cell.
//!
//! The mutator that a growing vector takes names the heap of the new buffer, and nothing else. A
//! buffer of another heap than the object's is sound, because it is only memory, and its heap stays
//! mapped while the buffer lives. A traversal reads the handles there, but ignores those to other
//! heaps.
//!
//! # Rule
//!
//! Unsafe code here keeps what the table says:
//!
//! * **vector**: the vector's first `len` places contain handles that the vector owns, and `len` is
//!   `capacity` at most. `capacity` tells which field of the union is in use.

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::base::system::prefetch;
use crate::managed::HandleBuffer;
use crate::report::error::{AllocError, OutOfMemory};
use crate::typed::gc::out_of_memory;
use crate::{Gc, Mutator, Trace, Tracer};

/// A vector of handles, which holds up to `N` of them in line, and more in a cell of the heap.
///
/// Use it for the references of a node, instead of a `Vec<Gc<T>>`. A node with up to `N` references
/// needs no second allocation, and the collector finds these references in the node itself. A
/// `GcVec<T, 2>` is as large as a `Vec`, and each further place adds 8 bytes to the node. [ADR 32]
/// has the gain. Choose `N` so that most nodes need no more: a place that stays empty costs memory,
/// and a node with more than `N` references costs a second allocation.
///
/// A `GcVec` dereferences to a slice: `len`, `get`, `iter`, `first`, `swap`, `sort_by_key` and
/// indexing are the slice's. Functions that may need memory of the heap take a [`Mutator`]. Inside
/// an object the vector is the content of a [`GcCell`](crate::GcCell), like any mutable field:
///
/// ```
/// use standstill::{Gc, GcCell, GcVec, Heap, Trace};
///
/// #[derive(Trace)]
/// struct Node {
///     name: &'static str,
///     edges: GcCell<GcVec<Node, 3>>,
/// }
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let node = |name| m.alloc(Node { name, edges: GcCell::default() });
/// let (a, b) = (node("a"), node("b"));
/// a.edges.lock(&m).push(&m, b.clone());
/// b.edges.lock(&m).extend(&m, [a.clone(), b.clone()]);
/// assert_eq!(b.edges.lock(&m).iter().map(|to| to.name).collect::<String>(), "ab");
/// assert_eq!(b.edges.lock(&m)[0].name, "a");
///
/// drop((a, b)); // they still hold each other
/// assert_eq!(m.collect().collected, 2);
/// ```
///
/// A vector with more than `N` handles has an array in its heap, which
/// [`HeapStats::live_objects`](crate::HeapStats) counts as an object. The array belongs to the heap
/// of the mutator with which the vector grew. The vector itself may lie anywhere, also in an object
/// of another heap, and any thread may drop it. A shorter vector keeps its array, and never moves
/// the handles back in line.
///
/// `clear`, `truncate` and `retain` drop handles, and objects may die with them. If a destructor
/// locks the cell around the vector, take the vector out of the cell first ([`GcCell::take`]), and
/// drop the handles then.
///
/// [ADR 32]: https://example.invalid/standstill/blob/main/docs/adr/0032-vectors-of-handles.md
/// [`GcCell::take`]: crate::GcCell::take
pub struct GcVec<T, const N: usize> {
    len: u32,
    /// `N`, or the size of the buffer, which is larger.
    capacity: u32,
    handles: Handles<T, N>,
}

/// The place of the handles: `inline` if the capacity is `N`, otherwise `buffer`.
#[repr(C)]
union Handles<T, const N: usize> {
    inline: ManuallyDrop<[MaybeUninit<Gc<T>>; N]>,
    buffer: ManuallyDrop<HandleBuffer>,
}

// SAFETY: rule *guarded*: the vector owns `Gc<T>`s and memory that any thread may free; `&self`
// gives `&Gc<T>`.
unsafe impl<T: Send + Sync, const N: usize> Send for GcVec<T, N> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, const N: usize> Sync for GcVec<T, N> {}

impl<T, const N: usize> GcVec<T, N> {
    const INLINE: u32 = {
        assert!(N < u32::MAX as usize, "too many handles in line");
        N as u32
    };

    /// An empty vector, which needs no memory of a heap.
    pub const fn new() -> Self {
        let inline = ManuallyDrop::new([const { MaybeUninit::uninit() }; N]);
        Self { len: 0, capacity: Self::INLINE, handles: Handles { inline } }
    }

    /// An empty vector with room for at least `capacity` handles.
    ///
    /// # Panics
    ///
    /// If the heap is full. [`try_reserve`](Self::try_reserve) returns an error instead.
    #[track_caller]
    pub fn with_capacity(m: &Mutator, capacity: usize) -> Self {
        let mut vector = Self::new();
        vector.reserve(m, capacity);
        vector
    }

    /// The number of handles that the vector has room for.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    #[inline(always)]
    fn is_inline(&self) -> bool {
        self.capacity == Self::INLINE
    }

    /// The place of the first handle, for reads.
    #[inline(always)]
    fn start(&self) -> NonNull<Gc<T>> {
        if self.is_inline() {
            NonNull::from(&self.handles).cast()
        } else {
            // SAFETY: rule *vector*: the handles lie in a buffer.
            unsafe { &self.handles.buffer }.start().cast()
        }
    }

    #[inline(always)]
    fn start_mut(&mut self) -> NonNull<Gc<T>> {
        if self.is_inline() { NonNull::from(&mut self.handles).cast() } else { self.start() }
    }

    /// Makes room for at least `additional` more handles.
    ///
    /// # Panics
    ///
    /// As [`with_capacity`](Self::with_capacity). The vector is unchanged.
    #[track_caller]
    pub fn reserve(&mut self, m: &Mutator, additional: usize) {
        if let Err(reason) = self.try_reserve(m, additional) {
            panic!("cannot make room for {additional} handles: {reason}");
        }
    }

    /// Makes room for at least `additional` more handles.
    ///
    /// # Errors
    ///
    /// If the heap is full, or if the vector would have more than 2³² - 1 handles. The vector is
    /// unchanged.
    pub fn try_reserve(&mut self, m: &Mutator, additional: usize) -> Result<(), OutOfMemory> {
        let needed = self.len().saturating_add(additional);
        if needed <= self.capacity() { Ok(()) } else { self.grow(m, needed) }
    }

    /// Moves the handles to a buffer with room for `needed` of them, more than the capacity, and at
    /// least for twice the capacity. So each handle of a growing vector is moved twice on average.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, m: &Mutator, needed: usize) -> Result<(), OutOfMemory> {
        let doubled = (2 * self.capacity()).min(HandleBuffer::MOST);
        let (buffer, capacity) = HandleBuffer::new(m.raw(), needed.max(doubled))?;
        let old = self.take_buffer();
        // SAFETY: rule *vector*: the new buffer is larger than the old place, and another one. The
        // handles are owned by the new place afterwards. The old buffer lives to the end of this
        // function.
        unsafe {
            let from = match &old {
                Some(old) => old.start().cast(),
                None => NonNull::from(&self.handles).cast::<Gc<T>>(),
            };
            from.copy_to_nonoverlapping(buffer.start().cast(), self.len as usize);
        }
        self.handles = Handles { buffer: ManuallyDrop::new(buffer) };
        self.capacity = capacity;
        Ok(())
    }

    /// The buffer, if there is one, which the caller takes over: the vector is not used again, or
    /// gets another.
    #[inline(always)]
    fn take_buffer(&mut self) -> Option<HandleBuffer> {
        if self.is_inline() {
            return None;
        }
        // SAFETY: rule *vector*: the handles lie in a buffer, and the caller does not use it as the
        // vector's again.
        Some(unsafe { ManuallyDrop::take(&mut self.handles.buffer) })
    }

    /// Appends a handle.
    ///
    /// # Panics
    ///
    /// If the heap is full. [`try_push`](Self::try_push) returns an error instead.
    #[inline]
    #[track_caller]
    pub fn push(&mut self, m: &Mutator, gc: Gc<T>) {
        if let Err(error) = self.try_push(m, gc) {
            out_of_memory(error);
        }
    }

    /// Appends a handle.
    ///
    /// # Errors
    ///
    /// If the heap is full. The error contains the handle, and the vector is unchanged.
    #[inline]
    pub fn try_push(&mut self, m: &Mutator, gc: Gc<T>) -> Result<(), AllocError<Gc<T>>> {
        if self.len == self.capacity
            && let Err(reason) = self.grow(m, self.len() + 1)
        {
            return Err(AllocError::new(gc, reason));
        }
        // SAFETY: rule *vector*: there is room for one more handle, which is counted next.
        unsafe { self.start_mut().add(self.len as usize).write(gc) };
        self.len += 1;
        Ok(())
    }

    /// Removes the last handle and returns it.
    #[inline]
    pub fn pop(&mut self) -> Option<Gc<T>> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: rule *vector*: the last handle, which no longer counts.
        Some(unsafe { self.start().add(self.len as usize).read() })
    }

    /// Inserts a handle before the handle at `index`, so that the handles behind it move up.
    ///
    /// # Panics
    ///
    /// If `index` is greater than the length, or as [`push`](Self::push). The vector is unchanged.
    #[track_caller]
    pub fn insert(&mut self, m: &Mutator, index: usize, gc: Gc<T>) {
        let len = self.len();
        assert!(index <= len, "insertion index (is {index}) should be <= len (is {len})");
        self.push(m, gc);
        self[index..].rotate_right(1);
    }

    /// Removes the handle at `index` and returns it, so that the handles behind it move down.
    ///
    /// # Panics
    ///
    /// If there is no such handle.
    #[track_caller]
    pub fn remove(&mut self, index: usize) -> Gc<T> {
        let len = self.len();
        assert!(index < len, "removal index (is {index}) should be < len (is {len})");
        self[index..].rotate_left(1);
        self.pop().expect("a vector with a handle")
    }

    /// Removes the handle at `index` and returns it. Only the last handle moves, because it takes
    /// the place.
    ///
    /// # Panics
    ///
    /// If there is no such handle.
    #[track_caller]
    pub fn swap_remove(&mut self, index: usize) -> Gc<T> {
        let len = self.len();
        assert!(index < len, "swap_remove index (is {index}) should be < len (is {len})");
        self.swap(index, len - 1);
        self.pop().expect("a vector with a handle")
    }

    /// Drops all handles but the first `len`, in order. The capacity stays.
    pub fn truncate(&mut self, len: usize) {
        let Some(tail) = self.get_mut(len..).map(std::ptr::from_mut) else { return };
        self.len = len as u32;
        // SAFETY: rule *vector*: these handles no longer count.
        unsafe { tail.drop_in_place() };
    }

    /// Drops all handles. The capacity stays.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Drops the handles for which `keep` returns `false`, while the others stay in order.
    ///
    /// The handles are dropped after the last call of `keep`.
    pub fn retain(&mut self, mut keep: impl FnMut(&Gc<T>) -> bool) {
        let mut kept = 0;
        for at in 0..self.len() {
            if keep(&self[at]) {
                self.swap(kept, at);
                kept += 1;
            }
        }
        self.truncate(kept);
    }

    /// Appends the handles of an iterator.
    ///
    /// # Panics
    ///
    /// If the heap is full. The vector then contains the handles before the failure.
    #[track_caller]
    pub fn extend(&mut self, m: &Mutator, handles: impl IntoIterator<Item = Gc<T>>) {
        let handles = handles.into_iter();
        self.reserve(m, handles.size_hint().0);
        for gc in handles {
            self.push(m, gc);
        }
    }
}

impl<T, const N: usize> Drop for GcVec<T, N> {
    #[inline]
    fn drop(&mut self) {
        let handles = NonNull::slice_from_raw_parts(self.start_mut(), self.len as usize);
        // A local, so that it is freed after the handles, also by a panic of a destructor.
        let _buffer = self.take_buffer();
        // SAFETY: rule *vector*: the vector owned the handles, and is not used again.
        unsafe { handles.drop_in_place() };
    }
}

impl<T, const N: usize> Deref for GcVec<T, N> {
    type Target = [Gc<T>];

    #[inline]
    fn deref(&self) -> &[Gc<T>] {
        // SAFETY: rule *vector*: so many handles are initialized.
        unsafe { NonNull::slice_from_raw_parts(self.start(), self.len as usize).as_ref() }
    }
}

impl<T, const N: usize> DerefMut for GcVec<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Gc<T>] {
        // SAFETY: as in `deref`.
        unsafe { NonNull::slice_from_raw_parts(self.start_mut(), self.len as usize).as_mut() }
    }
}

impl<T: Trace, const N: usize> Trace for GcVec<T, N> {
    const INDIRECT: bool = true;

    #[inline(always)]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Gc::traverse_slice(this, tracer);
    }

    /// The buffer is a part of the object that has the vector.
    fn describe(this: &Self, tracer: &mut Tracer) {
        if !this.is_inline() {
            // SAFETY: rule *vector*: the handles lie in a buffer.
            tracer.target(unsafe { &this.handles.buffer }.edge());
        }
        Gc::traverse_slice(this, tracer);
    }

    #[inline]
    fn prefetch(this: &Self, tracer: &Tracer) {
        if !this.is_inline()
            && let (Some(first), Some(last)) = (this.first(), this.last())
        {
            tracer.fetch(first);
            tracer.fetch(last);
        }
    }

    #[inline]
    fn fetch_target(this: &Self) -> bool {
        if this.is_inline() {
            this.iter().for_each(|gc| _ = Gc::fetch_target(gc));
        } else if let (Some(first), Some(last)) = (this.first(), this.last()) {
            prefetch((&raw const *first).cast());
            prefetch((&raw const *last).cast());
        }
        !this.is_empty()
    }

    #[inline]
    fn fetch_targets(this: &Self) {
        if !this.is_inline() {
            this.iter().for_each(|gc| _ = Gc::fetch_target(gc));
        }
    }
}

impl<T, const N: usize> Default for GcVec<T, N> {
    /// An empty vector, which the collector leaves in a cell that it clears.
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> From<[Gc<T>; N]> for GcVec<T, N> {
    /// A vector that is full, but in line, so that it needs no memory of a heap.
    fn from(handles: [Gc<T>; N]) -> Self {
        let mut vector = Self::new();
        vector.len = vector.capacity;
        vector.handles.inline = ManuallyDrop::new(handles.map(MaybeUninit::new));
        vector
    }
}

impl<T, const N: usize> fmt::Debug for GcVec<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a GcVec<T, N> {
    type Item = &'a Gc<T>;
    type IntoIter = std::slice::Iter<'a, Gc<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a mut GcVec<T, N> {
    type Item = &'a mut Gc<T>;
    type IntoIter = std::slice::IterMut<'a, Gc<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
