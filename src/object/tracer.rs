//! The [`Tracer`], which collects the references that a type's traversal visits.
//!
//! A collection could pass a closure to each traversal. But such a call costs more than all other
//! work on a reference, and the target of one would be awaited before the next is read. So a
//! traversal only writes addresses into the tracer's buffer, and the collector reads the buffer
//! afterwards, when it can prefetch the targets together. For example, `a` refers to `b` and `c`,
//! and `b` to `c`. After [`Tracer::each`] for both the buffer is `[b, c, c]`, and the [`Ends`] are
//! `[2, 3]`.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::const_thread_local;
use crate::base::system::prefetch;
use crate::object::address::Object;
use crate::object::header::Header;

/// Collects the references of an object while the collector or an inspection traverses it.
///
/// [`Trace::traverse`](crate::Trace::traverse) receives a tracer and reports each field to it. A
/// traversal can only report handles that it can borrow, so every reported object is a live object
/// of some heap. Only the library makes tracers.
pub struct Tracer {
    /// A buffer for the visited addresses that lie inside the heap. As a vector it is always empty,
    /// because a visit is cheapest if the tracer writes from the start to `next` by bare pointers.
    buffer: Vec<usize>,
    next: *mut usize,
    end: *mut usize,
    base: usize,
    len: usize,
    /// Start and size of the value being traversed.
    object: (usize, usize),
    unreadable: u32,
    /// The object that is being traversed, which the report names if its traversal panics.
    at: Option<Object>,
    /// The first address that the current object's traversal has visited, because the buffer may
    /// hold the addresses of earlier objects before it.
    own: *mut usize,
    /// Whether a collection uses it, which unlike an inspection can do without an object's edges.
    may_lose: bool,
    /// Whether its lists must not grow.
    pub(super) is_fixed: bool,
    /// The buffer had no room for an address, and there was no memory.
    pub(super) lost: bool,
    /// The [uncounted](Self::uncounted) references that lie inside the heap: the traversed object
    /// and the target, in the order of the reports.
    uncounted: Vec<(Option<Object>, usize)>,
    /// The model has said that it reports no uncounted references.
    pub(crate) refuses_uncounted: bool,
    /// Slices of so many slots are noted, and not read at once.
    pub(crate) long: usize,
    /// The slices that were noted.
    slots: Vec<LongSlice>,
    /// Whether [leaves](Self::visit_leaf) are kept apart from other references, and not read.
    pub(crate) skips_leaves: bool,
    /// The leaves inside the heap since [`clear_leaves`](Self::clear_leaves).
    leaves: Vec<usize>,
    /// Whether each visit by a handler of a dynamic type takes the slow path: the heap is in
    /// checked mode, or the tracer was made by [`seeking`](Self::seeking).
    #[cfg_attr(
        not(feature = "cpython"),
        allow(dead_code, reason = "only dynamic objects read it")
    )]
    pub(crate) careful: bool,
    /// The targets that an inspection seeks, sorted for a binary search. Empty in a collection.
    sought: Vec<usize>,
    /// A handler of the current object has visited one of the sought objects.
    found: bool,
    /// Whether each call of a handler of a dynamic type takes the slow path: the heap is in checked
    /// mode, or measures the run time of handlers.
    #[cfg_attr(
        not(feature = "cpython"),
        allow(dead_code, reason = "only dynamic objects read it")
    )]
    pub(crate) watchful: bool,
    /// The fields of the current object, each with the number of the edges before it. `None`: they
    /// are not wanted.
    pub(super) fields: Option<Vec<(usize, Cow<'static, str>)>>,
    /// The bytes outside the heap that were told since they were last taken.
    pub(super) external: usize,
    /// A tracer belongs to the thread that made it, so it is not `Send`.
    local: PhantomData<*mut ()>,
}

/// The target of a handle, for as long as the handle is borrowed. Only handles make one.
///
/// ```compile_fail,E0624
/// // Any address would become a handle.
/// let made_up = standstill::Edge::at(0x1000);
/// ```
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Edge<'a> {
    address: usize,
    handle: PhantomData<&'a Header>,
}

impl Edge<'_> {
    /// The edge of an empty handle: null, where no object lies.
    pub(crate) const NONE: Self = Self::at(0);

    /// The edge of a handle to the object at `address`.
    #[inline(always)]
    pub(crate) const fn at(address: usize) -> Self {
        Self { address, handle: PhantomData }
    }
}

/// No heap has a range of so many bytes, because it would have more granules than a `u32` counts.
const RANGE_MAX: usize = 1 << 47;
/// The most uncounted references that a fixed tracer has room for.
const UNCOUNTED_MOST: usize = 1 << 16;
/// The buffer grows by at least this many addresses.
const BUFFER_STEP: usize = 256;
/// How many handles are read without testing their number: as many as a parent and two children in
/// a tree. With four, lists and trees would pay for handles that they do not have.
const HANDLE_BATCH: usize = 3;

impl Tracer {
    /// A tracer for the objects that lie in `len` bytes from `base`, which is not 0.
    pub(crate) fn new(base: usize, len: usize) -> Self {
        debug_assert!(base > 0, "a null pointer lies in no heap");
        // Empty at first, because not every tracer visits an object.
        let mut buffer = Vec::new();
        let next: *mut usize = buffer.as_mut_ptr();
        Self {
            end: next,
            buffer,
            next,
            base,
            len,
            object: (0, 0),
            unreadable: 0,
            at: None,
            own: next,
            may_lose: false,
            is_fixed: false,
            lost: false,
            uncounted: Vec::new(),
            refuses_uncounted: false,
            long: usize::MAX,
            slots: Vec::new(),
            skips_leaves: false,
            leaves: Vec::new(),
            careful: false,
            sought: Vec::new(),
            found: false,
            watchful: false,
            fields: None,
            external: 0,
            local: PhantomData,
        }
    }

    /// A tracer for a collection. If memory runs out it drops addresses and counts the object as
    /// unreadable: see [`take_unreadable`](Self::take_unreadable).
    pub(crate) fn for_collection(base: usize, len: usize) -> Self {
        let mut tracer = Self::new(base, len);
        tracer.may_lose = true;
        tracer
    }

    /// A tracer that seeks references to the objects at the `sought` addresses. It ends a handler
    /// of a dynamic type at the first visit of one of them.
    pub(crate) fn seeking(base: usize, len: usize, mut sought: Vec<usize>) -> Self {
        sought.sort_unstable();
        let mut tracer = Self::for_collection(base, len);
        tracer.sought = sought;
        tracer
    }

    /// Whether this tracer was made by [`seeking`](Self::seeking).
    #[cfg(feature = "cpython")]
    pub(crate) fn seeks(&self) -> bool {
        !self.sought.is_empty()
    }

    /// Records a visit by a handler. `true`: the handler is to end, having visited a sought object.
    #[cfg(feature = "cpython")]
    pub(crate) fn seek(&mut self, address: usize) -> bool {
        self.found |= self.sought.binary_search(&address).is_ok();
        self.found
    }

    /// Whether a handler of the current object has visited a sought object.
    #[cfg(feature = "cpython")]
    pub(crate) fn has_found(&self) -> bool {
        self.found
    }

    /// Whether the object that was traversed last refers to a sought object. The answer is reset,
    /// so that it holds for one object.
    pub(crate) fn take_found(&mut self) -> bool {
        std::mem::take(&mut self.found)
            || self.edges().iter().any(|edge| self.sought.binary_search(edge).is_ok())
    }

    /// Reports a reference by the address of its target, but ignores references to other heaps, in
    /// which these references count as external.
    #[inline(always)]
    pub(crate) fn edge(&mut self, address: usize) {
        if self.next == self.end {
            return self.grow_and_add(address);
        }
        let is_inside = address.wrapping_sub(self.base) < self.len;
        // SAFETY: rule *bounds*: there is room for one more.
        unsafe {
            self.next.write(address);
            self.next = self.next.add(usize::from(is_inside));
        }
    }

    /// As [`edge`](Self::edge), for the target of a handle.
    #[inline(always)]
    pub(crate) fn target(&mut self, target: Edge<'_>) {
        self.edge(target.address);
    }

    /// As [`edge`](Self::edge), for the targets of all `handles`.
    ///
    /// The number of handles of the next object is unpredictable, and a mispredicted branch costs
    /// as much as all other work for it. So [`HANDLE_BATCH`] handles are read without testing the
    /// number, while the last handle is read again in place of missing ones.
    #[inline(always)]
    pub(crate) fn edges_to<H>(&mut self, handles: &[H], mut target: impl FnMut(&H) -> Edge<'_>) {
        let count = handles.len();
        if count == 0 {
            return;
        }
        // A slice of zero-sized values may have any length.
        let most = count.saturating_add(HANDLE_BATCH);
        // SAFETY: rule *bounds*: both pointers point into the buffer or one past it.
        if most > unsafe { self.end.offset_from_unsigned(self.next) } && !self.grow(most) {
            return;
        }
        let (base, len) = (self.base, self.len);
        let is_inside = |address: usize| address.wrapping_sub(base) < len;
        let mut next = self.next;
        if count <= HANDLE_BATCH {
            let mut are_inside = true;
            for at in 0..HANDLE_BATCH {
                let Edge { address, .. } = target(&handles[at.min(count - 1)]);
                are_inside &= is_inside(address);
                // SAFETY: rule *bounds*: there is room for `HANDLE_BATCH` more addresses than
                // handles.
                unsafe { next.add(at).write(address) };
            }
            if are_inside {
                // SAFETY: rule *bounds*: `count` addresses have been written.
                self.next = unsafe { next.add(count) };
                return;
            }
        }
        let mut handles = handles.iter();
        for handle in &mut handles {
            let Edge { address, .. } = target(handle);
            if !is_inside(address) {
                break;
            }
            // SAFETY: rule *bounds*: there is room for one address for each handle.
            unsafe {
                next.write(address);
                next = next.add(1);
            }
        }
        self.next = next;
        // Nearly always no handle is left here, because the first loop, to be simple, ends at an
        // edge to another heap instead of skipping it.
        handles.for_each(|handle| self.target(target(handle)));
    }

    #[cold]
    #[inline(never)]
    fn grow_and_add(&mut self, address: usize) {
        if self.grow(1) {
            self.edge(address);
        }
    }

    /// A tracer for a collection in a child of the process, which must not allocate. Memory counts
    /// as lacking for objects with more references than fit.
    pub(crate) fn for_child(base: usize, len: usize, references: usize) -> Result<Self, NoMemory> {
        let mut tracer = Self::for_collection(base, len);
        tracer.fix(references)?;
        Ok(tracer)
    }

    /// Makes room for so many references, and for no more later.
    pub(super) fn fix(&mut self, references: usize) -> Result<(), NoMemory> {
        self.uncounted.try_reserve_exact(references.min(UNCOUNTED_MOST))?;
        if !self.grow(references) {
            return Err(NoMemory);
        }
        self.is_fixed = true;
        Ok(())
    }

    /// Makes room for `more` addresses. `false`: there is no memory, and the object counts as
    /// unreadable.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, more: usize) -> bool {
        self.lost |= self.is_fixed;
        if self.lost {
            // The collection is abandoned, so no further address asks the system for memory.
            self.unreadable();
            return false;
        }
        let len = self.edges().len();
        let more = more.max(BUFFER_STEP);
        // SAFETY: rule *bounds*: `len` elements have been written. `own` points into the buffer
        // or one past it, and is moved with it.
        unsafe {
            let own = self.own.offset_from_unsigned(self.buffer.as_ptr());
            self.buffer.set_len(len);
            if !self.may_lose {
                self.buffer.reserve(more);
            } else if len.saturating_add(more) > u32::MAX as usize
                || self.buffer.try_reserve(more).is_err()
            {
                // There is no memory, or `Ends`, which counts in a `u32`, could not count the
                // addresses.
                self.lost = true;
                self.unreadable();
            }
            self.buffer.set_len(0);
            self.own = self.buffer.as_mut_ptr().add(own);
            self.next = self.buffer.as_mut_ptr().add(len);
            self.end = self.buffer.as_mut_ptr().add(self.buffer.capacity());
        }
        !self.lost
    }

    /// Reports a reference to an object of a custom
    /// [`ObjectModel`](crate::model::ObjectModel). A target outside the heap is ignored, and so is
    /// an untracked target.
    ///
    /// # Safety
    ///
    /// If `target` lies in the heap, it is the address of an object that is alive: the object being
    /// traversed holds a counted reference to it.
    #[inline(always)]
    pub unsafe fn visit_object(&mut self, target: Object) {
        self.edge(target.address());
    }

    /// As [`visit_object`](Self::visit_object), for a target that refers to no tracked object of
    /// the heap: a *leaf*. While [`skips_leaves`](Self::skips_leaves) is true, marking does not
    /// read the target.
    ///
    /// If the target does refer to tracked objects, by counted references, the collection may keep
    /// these objects. An immortal leaf stays in the tracked set.
    ///
    /// A traversal may leave the reference out while `skips_leaves` is false. Then the target has a
    /// reference that counting does not find, so it is alive.
    ///
    /// # Safety
    ///
    /// As for `visit_object`. The target has no [uncounted](Self::uncounted) references.
    #[inline(always)]
    pub unsafe fn visit_leaf(&mut self, target: Object) {
        let address = target.address();
        if self.skips_leaves && self.is_in_heap(address) && self.leaves.try_reserve(1).is_ok() {
            self.leaves.push(address);
        } else {
            self.edge(address);
        }
    }

    /// Whether marking does not read the objects that [`visit_leaf`](Self::visit_leaf) names. If it
    /// is `false`, that method does the same as `visit_object`.
    #[inline(always)]
    pub fn skips_leaves(&self) -> bool {
        self.skips_leaves
    }

    /// The leaves that were kept apart.
    #[inline(always)]
    pub(crate) fn leaves(&self) -> &[usize] {
        &self.leaves
    }

    #[inline(always)]
    pub(crate) fn clear_leaves(&mut self) {
        self.leaves.clear();
    }

    /// As [`visit_object`](Self::visit_object), for the object in each of the slots. The collector
    /// may read a long slice later in the same stop, in pieces and on several threads.
    ///
    /// # Safety
    ///
    /// As for `visit_object`, for the object in each slot. The slots are a part of the object being
    /// traversed, or of memory that belongs to it. They stay where they are, and do not change,
    /// until the stop ends.
    #[inline(always)]
    pub unsafe fn visit_slots(&mut self, slots: &[Option<Object>]) {
        if slots.len() >= self.long && self.note(slots) {
            return;
        }
        self.edges_in_slots(slots);
    }

    /// Notes a long slice, if there is memory for the note.
    #[cold]
    #[inline(never)]
    fn note(&mut self, slots: &[Option<Object>]) -> bool {
        fallible::push(&mut self.slots, LongSlice::new(slots)).is_ok()
    }

    /// Adds slots that another worker has noted.
    pub(crate) fn add_slots(&mut self, slots: LongSlice) -> Result<(), NoMemory> {
        fallible::push(&mut self.slots, slots)
    }

    /// Empties the buffer, and visits the next of the slots that were noted, up to `most`. `false`:
    /// there are none.
    pub(crate) fn visit_noted(&mut self, most: usize) -> Result<bool, NoMemory> {
        let Some(slots) = self.slots.last_mut() else { return Ok(false) };
        let piece = slots.take(most);
        if slots.len() == 0 {
            self.slots.pop();
        }
        self.clear();
        // SAFETY: rule *stopped*: a tracer for marking does not outlive the stop.
        self.edges_in_slots(unsafe { piece.read() });
        self.lost_nothing()?;
        Ok(true)
    }

    /// Removes half of the first slice with more than `most` slots that are still to be read.
    pub(crate) fn half_of_noted(&mut self, most: usize) -> Option<LongSlice> {
        let slots = self.slots.iter_mut().find(|slots| slots.len() > most)?;
        Some(slots.take(slots.len() / 2))
    }

    /// Adds the objects in slots that lie in the heap.
    #[inline(always)]
    fn edges_in_slots(&mut self, targets: &[Option<Object>]) {
        // SAFETY: rule *bounds*: both pointers point into the buffer or one past it.
        let left = unsafe { self.end.offset_from_unsigned(self.next) };
        if targets.len() > left && !self.grow(targets.len()) {
            return;
        }
        let (base, len, mut next) = (self.base, self.len, self.next);
        for target in targets {
            // A null pointer is in no heap.
            let address = target.map_or(std::ptr::null_mut(), |it| it.as_ptr().as_ptr()).addr();
            let is_inside = address.wrapping_sub(base) < len;
            // SAFETY: rule *bounds*: there is room for all targets.
            unsafe {
                next.write(address);
                next = next.add(usize::from(is_inside));
            }
        }
        self.next = next;
    }

    /// Reports a reference that is not counted: the object being traversed refers to `target` and
    /// holds no counted reference to it. The target stays alive while the object is alive. See
    /// [`model`](crate::model#references-that-nobody-counts).
    ///
    /// # Safety
    ///
    /// `target` is alive.
    ///
    /// # Panics
    ///
    /// In a collection of a model without
    /// [`Uncounted`](crate::model::Uncounted).
    pub unsafe fn uncounted(&mut self, target: Object) {
        assert!(
            !self.refuses_uncounted,
            "an uncounted reference in a model without the part `Uncounted`; name it in `parts!`"
        );
        let target = target.address();
        if target.wrapping_sub(self.base) >= self.len {
            return;
        }
        let is_full = self.is_fixed && self.uncounted.len() == self.uncounted.capacity();
        if is_full || self.uncounted.try_reserve(1).is_err() {
            // The collection is abandoned.
            self.lost = true;
            self.unreadable();
        } else {
            self.uncounted.push((self.at, target));
        }
    }

    /// The uncounted references of all objects since [`forget_uncounted`](Self::forget_uncounted).
    pub(crate) fn all_uncounted(&self) -> impl Iterator<Item = usize> {
        self.uncounted.iter().map(|&(_, target)| target)
    }

    /// The uncounted references of an object that was traversed since
    /// [`forget_uncounted`](Self::forget_uncounted).
    pub(crate) fn uncounted_of(&self, object: Object) -> impl Iterator<Item = usize> {
        let own = self.uncounted.iter().filter(move |&&(at, _)| at == Some(object));
        own.map(|&(_, target)| target)
    }

    pub(crate) fn forget_uncounted(&mut self) {
        self.uncounted.clear();
    }

    /// Adds the uncounted references with a `wanted` target to the edges, and removes them.
    pub(crate) fn add_uncounted(&mut self, wanted: impl Fn(usize) -> bool) -> Result<(), NoMemory> {
        let mut uncounted = std::mem::take(&mut self.uncounted);
        for (_, target) in uncounted.drain(..).filter(|&(_, target)| wanted(target)) {
            self.edge(target);
        }
        self.uncounted = uncounted;
        self.lost_nothing()
    }

    /// Whether an address lies in the heap that is being traversed. A traversal can use it to skip
    /// references to values elsewhere before it looks at them, although
    /// [`visit_object`](Self::visit_object) ignores such references itself.
    #[inline(always)]
    pub fn is_in_heap(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.len
    }

    /// Reports that a field could not be read, because its lock is held.
    ///
    /// The target of the field stays alive, because references that the collector cannot explain
    /// count as external.
    #[inline]
    pub fn unreadable(&mut self) {
        self.unreadable += 1;
    }

    /// Prefetches the memory at an address, for [`Trace::prefetch`](crate::Trace::prefetch). Any
    /// address is valid, because a prefetch only affects caches.
    #[inline(always)]
    pub fn fetch<T>(&self, address: *const T) {
        prefetch(address.cast());
    }

    /// Whether `address` lies in the value that is being traversed. One test of the lock of a cell
    /// in the value then suffices, because a tracer works in stops only, when no thread is about to
    /// take it.
    #[inline(always)]
    pub(crate) fn owns(&self, address: usize) -> bool {
        address.wrapping_sub(self.object.0) < self.object.1
    }

    /// The value that is traversed next, in this stop, has `size` bytes from `start`.
    #[inline(always)]
    pub(crate) fn enter(&mut self, start: NonNull<u8>, size: usize) {
        self.object = (start.as_ptr() as usize, size);
    }

    /// The start of the stopped heap's range. `None`: the tracer is of no heap, or of one with
    /// segments, which all have the same bounds, so that these name no heap.
    pub(crate) fn heap(&self) -> Option<usize> {
        (self.len < RANGE_MAX).then_some(self.base)
    }

    /// Whether the tracer accepts all addresses, as for the inspection of a single object.
    #[cfg(feature = "cpython")]
    pub(crate) fn takes_everything(&self) -> bool {
        self.len == usize::MAX
    }

    /// Whether a field could not be read since the last call of
    /// [`take_unreadable`](Self::take_unreadable).
    #[inline(always)]
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable != 0
    }

    /// Whether a field could not be read since the last call.
    #[inline(always)]
    pub(crate) fn take_unreadable(&mut self) -> bool {
        let unreadable = self.is_unreadable();
        self.unreadable = 0;
        unreadable
    }

    /// An error if memory for the references of an object was lacking since the tracer was made.
    pub(crate) fn lost_nothing(&self) -> Result<(), NoMemory> {
        if self.lost { Err(NoMemory) } else { Ok(()) }
    }

    /// The addresses visited.
    #[inline(always)]
    pub(crate) fn edges(&self) -> &[usize] {
        // SAFETY: rule *bounds*: the buffer is written from its start to `next`.
        unsafe {
            let start = self.buffer.as_ptr();
            std::slice::from_raw_parts(start, self.next.cast_const().offset_from_unsigned(start))
        }
    }

    /// The addresses that the traversal of the current object has visited.
    #[cfg(feature = "cpython")]
    pub(crate) fn own_edges(&self) -> &[usize] {
        // SAFETY: rule *bounds*: `own` points into what was written, or to its end.
        unsafe {
            let len = self.next.cast_const().offset_from_unsigned(self.own);
            std::slice::from_raw_parts(self.own, len)
        }
    }

    /// Drops all addresses but the first `len`.
    #[cold]
    pub(crate) fn truncate(&mut self, len: usize) {
        let len = len.min(self.edges().len());
        // SAFETY: rule *bounds*: `next` only moves back.
        self.next = unsafe { self.buffer.as_mut_ptr().add(len) };
        self.own = self.own.min(self.next);
    }

    /// `object` is traversed next, and the addresses of earlier objects stay in the buffer.
    #[inline(always)]
    pub(crate) fn go_on(&mut self, object: Object) {
        self.at = Some(object);
        self.own = self.next;
    }

    /// `object` is traversed next, with an empty buffer.
    #[inline(always)]
    pub(crate) fn begin(&mut self, object: Object) {
        self.clear();
        self.at = Some(object);
        if let Some(fields) = &mut self.fields {
            fields.clear();
        }
    }

    /// The object that was traversed last.
    pub(crate) fn at(&self) -> Option<Object> {
        self.at
    }

    /// Calls `traverse` for the objects in turn, and records where the references of each object
    /// end. It stops after an object with a field that could not be read, and does nothing if there
    /// was one before.
    ///
    /// For [`Batches::traverse_each`](crate::model::Batches::traverse_each).
    #[inline(always)]
    pub fn each<O: Copy + Into<Object>>(
        &mut self,
        objects: &[O],
        ends: &mut Ends<'_>,
        mut traverse: impl FnMut(O, &mut Self),
    ) {
        let mut filled = ends.filled;
        for (&object, end) in objects.iter().zip(&mut ends.ends[filled..]) {
            if self.is_unreadable() {
                break;
            }
            self.go_on(object.into());
            traverse(object, self);
            *end = self.edges().len() as u32;
            filled += 1;
        }
        ends.filled = filled;
    }

    /// Empties the buffer and keeps its memory.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.next = self.buffer.as_mut_ptr();
        self.own = self.next;
    }
}

/// Where the references of several objects end in the buffer of a [`Tracer`].
///
/// Only [`Tracer::each`] fills it, so that the collector can rely on the ends.
#[derive(Debug)]
pub struct Ends<'a> {
    ends: &'a mut [u32],
    filled: usize,
}

impl<'a> Ends<'a> {
    /// Has room for as many objects as `ends` has elements.
    pub(crate) fn new(ends: &'a mut [u32]) -> Self {
        Self { ends, filled: 0 }
    }

    /// The ends of the traversed objects.
    #[inline(always)]
    pub(crate) fn filled(self) -> &'a mut [u32] {
        &mut self.ends[..self.filled]
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // A function that received this tracer as an opaque argument may have kept it, so the
        // visitor must reject it from now on.
        VISITING.with(|visiting| {
            if std::ptr::eq(visiting.get(), &raw const *self) {
                visiting.set(std::ptr::null());
            }
        });
    }
}

const_thread_local! {
    /// The tracer that this thread has passed to a dynamic type's handler as an opaque argument.
    /// The visitor compares its argument with it, and dereferences the argument only if both are
    /// equal.
    static VISITING: Cell<*const Tracer> = Cell::new(std::ptr::null())
}

impl Tracer {
    /// Announces that a handler of this thread receives this tracer as an opaque argument. `true`:
    /// the last announced tracer was another.
    #[cfg(feature = "cpython")]
    #[inline(always)]
    pub(crate) fn hand_out(&mut self) -> bool {
        let this: *const Self = self;
        VISITING.with(|visiting| {
            let other = !std::ptr::eq(visiting.get(), this);
            if other {
                visiting.set(this);
            }
            other
        })
    }

    /// Whether `argument` is the tracer that this thread's handler has received.
    #[cfg(feature = "cpython")]
    #[inline(always)]
    pub(crate) fn is_handed_out(argument: *const Self) -> bool {
        !argument.is_null() && VISITING.with(|visiting| std::ptr::eq(visiting.get(), argument))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: rule *bounds*: both pointers point into the buffer or one past it.
        let own = unsafe { self.next.offset_from_unsigned(self.own) };
        f.debug_struct("Tracer").field("edges", &own).finish_non_exhaustive()
    }
}

/// A slice of slots that a traversal has visited in this stop: see [`Tracer::visit_slots`].
///
/// The addresses in a list of a million elements would fill several buffers with megabytes, and one
/// worker would have to look at all of them. So the tracer of a marking worker only notes where
/// such a slice is. The worker can then read it in pieces, and give half of it to an idle worker
/// ([ADR 51](../../docs/adr/0051-marking-with-several-workers.md)).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LongSlice {
    first: NonNull<Option<Object>>,
    len: usize,
}

// SAFETY: rule *stopped*: the slots do not change until the stop ends, and are only read.
unsafe impl Send for LongSlice {}

impl LongSlice {
    pub(crate) fn new(slots: &[Option<Object>]) -> Self {
        Self { first: NonNull::from(slots).cast(), len: slots.len() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Removes the first `len` slots, or all if there are fewer.
    pub(crate) fn take(&mut self, len: usize) -> Self {
        let taken = Self { first: self.first, len: len.min(self.len) };
        // SAFETY: rule *bounds*: inside the slice, or one past it.
        self.first = unsafe { self.first.add(taken.len) };
        self.len -= taken.len;
        taken
    }

    /// The slots.
    ///
    /// # Safety
    ///
    /// The stop in which a traversal has visited them lasts until the last use of the result.
    pub(crate) unsafe fn read<'a>(&self) -> &'a [Option<Object>] {
        // SAFETY: as the caller says, and as the caller of `Tracer::visit_slots` has said.
        unsafe { NonNull::slice_from_raw_parts(self.first, self.len).as_ref() }
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
