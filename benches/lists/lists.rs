//! Lists of an interpreter, on three kinds of memory: a heap of this library, a free list in front
//! of malloc, and malloc alone.
//!
//! A list is what such a runtime allocates most: a count, a pointer to the kind of the object, and
//! a vector of references. Counts are atomic, and an object dies through its kind. So the memory is
//! all that differs. On a heap the operations also differ in how they get at the mutator. Each
//! `make` is inlined, so that none of them copies the list from the stack.

use std::alloc::{Layout, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use standstill::model::{
    ClaimRef, Count, Live, ModelAttached, ModelMutator, Object, ObjectModel, Reserved, Stopped,
    Tracer,
};
use standstill::safepoint::ThreadId;

/// The header of an object, and a list's items.
#[repr(C)]
pub(crate) struct List {
    count: AtomicUsize,
    kind: &'static Kind,
    items: Vec<Ref>,
}

/// A counted reference.
type Ref = NonNull<List>;

/// What all objects of a type share.
struct Kind {
    /// The bytes in front of its objects.
    prefix: usize,
    /// Takes a reference out of an object that dies. `None`: its content is destroyed.
    take: unsafe fn(Ref) -> Option<Ref>,
}

/// Not a constant, so that the compiler knows neither the prefix nor the function.
static LIST: Kind = Kind { prefix: 0, take: take_item };

unsafe fn take_item(list: Ref) -> Option<Ref> {
    // The vector is not moved: to load it as a whole, just after it was written in parts, would
    // wait for these stores.
    // SAFETY: the caller has dropped the last reference.
    unsafe {
        let items = &raw mut (*list.as_ptr()).items;
        let item = (*items).pop();
        if item.is_none() {
            items.drop_in_place();
        }
        item
    }
}

/// Where the objects lie.
pub(crate) trait Memory {
    /// A list with these items, and the only reference to it.
    fn make(&self, list: List) -> Ref;

    /// # Safety
    ///
    /// `make` returned the list, which is destroyed, and has no references.
    unsafe fn free(&self, list: Ref);

    /// Drops a reference. Lists of lists are not deep here, so it may call itself.
    ///
    /// # Safety
    ///
    /// The caller has the reference.
    unsafe fn drop_reference(&self, list: Ref) {
        // SAFETY: the reference is counted. Acquire and release: the thread that destroys an object
        // sees what the others did with it.
        unsafe {
            if list.as_ref().count.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            let take = list.as_ref().kind.take;
            while let Some(item) = take(list) {
                self.drop_reference(item);
            }
            self.free(list);
        }
    }
}

/// The items of a list of lists.
const INNER: usize = 10;
/// The lists that are alive in [`window`].
const ALIVE: usize = 100;

fn list(items: Vec<Ref>) -> List {
    List { count: AtomicUsize::new(1), kind: std::hint::black_box(&LIST), items }
}

/// Makes an empty list, and drops it.
pub(crate) fn one(memory: &impl Memory, times: usize) {
    for _ in 0..times {
        // SAFETY: the only reference.
        unsafe { memory.drop_reference(std::hint::black_box(memory.make(list(Vec::new())))) };
    }
}

/// Makes empty lists, and drops each when [`ALIVE`] others have been made after it.
pub(crate) fn window(memory: &impl Memory, times: usize) {
    let mut alive = [None; ALIVE];
    for at in 0..times {
        let made = memory.make(list(Vec::new()));
        if let Some(old) = alive[at % ALIVE].replace(made) {
            // SAFETY: the only reference.
            unsafe { memory.drop_reference(old) };
        }
    }
    for old in alive.into_iter().flatten() {
        // SAFETY: the only reference.
        unsafe { memory.drop_reference(old) };
    }
}

/// Makes `times` lists, in lists of [`INNER`], and drops these.
pub(crate) fn nested(memory: &impl Memory, times: usize) {
    for _ in 0..times / (INNER + 1) {
        let mut items = Vec::with_capacity(INNER);
        items.extend((0..INNER).map(|_| memory.make(list(Vec::new()))));
        // SAFETY: the only reference.
        unsafe { memory.drop_reference(memory.make(list(items))) };
    }
}

/// The system's allocator.
pub(crate) struct Malloc;

impl Memory for Malloc {
    #[inline(always)]
    fn make(&self, list: List) -> Ref {
        NonNull::from(Box::leak(Box::new(list)))
    }

    unsafe fn free(&self, list: Ref) {
        let layout = Layout::new::<List>();
        // SAFETY: `make` has allocated it as a box, and the content is destroyed.
        unsafe { std::alloc::dealloc(list.as_ptr().cast(), layout) };
    }
}

/// A free list of each thread, in front of malloc, as interpreters have it for frequent types.
pub(crate) struct FreeList;

/// The objects in a free list at most.
const MOST: usize = 80;

#[derive(Default)]
struct Free(Vec<Ref>);

impl Drop for Free {
    fn drop(&mut self) {
        for list in self.0.drain(..) {
            // SAFETY: as `FreeList::free` got it.
            unsafe { Malloc.free(list) };
        }
    }
}

thread_local! {
    static FREE: Cell<Free> = const { Cell::new(Free(Vec::new())) };
}

impl FreeList {
    fn with<R>(f: impl FnOnce(&mut Vec<Ref>) -> R) -> Option<R> {
        FREE.try_with(|free| {
            let mut lists = free.take();
            let result = f(&mut lists.0);
            free.set(lists);
            result
        })
        .ok()
    }
}

impl Memory for FreeList {
    #[inline(always)]
    fn make(&self, list: List) -> Ref {
        let Some(free) = Self::with(Vec::pop).flatten() else { return Malloc.make(list) };
        // SAFETY: the memory of a list, which nobody uses.
        unsafe { free.write(list) };
        free
    }

    unsafe fn free(&self, list: Ref) {
        let is_kept = Self::with(|lists| {
            let has_room = lists.len() < MOST;
            if has_room {
                lists.push(list);
            }
            has_room
        });
        if is_kept != Some(true) {
            // SAFETY: as the caller says.
            unsafe { Malloc.free(list) };
        }
    }
}

/// The model of lists on a heap.
pub(crate) struct Lists;

pub(crate) type Mutator = ModelMutator<Lists>;

fn view(object: Object) -> Ref {
    object.as_ptr().cast()
}

// SAFETY: the rules of `ObjectModel`. 1: `count` is the number of references. 2: memory is freed in
// `drop_reference`, at 0. 3: one thread uses the heap. 4: `traverse` reports the items, which are
// counted. 5: no count is pending. 6: no method reaches a safepoint. 7: all references are counted.
// 8: nobody changes items in a stop.
unsafe impl ObjectModel for Lists {
    type Addresses = Reserved;
    type Parts = ();

    fn count(&self, object: Stopped<'_>) -> Count {
        // SAFETY: the object is alive.
        Count::Exact(unsafe { view(*object).as_ref() }.count.load(Ordering::Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        // SAFETY: the object is alive; its items are counted references.
        unsafe {
            for &item in &view(*object).as_ref().items {
                tracer.visit_object(Object::new(item.cast()));
            }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        // SAFETY: the object is alive.
        unsafe { view(*object).as_ref() }.count.fetch_add(1, Ordering::Relaxed);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        // SAFETY: the reference that `claim_ref` has added.
        unsafe { Held(m).drop_reference(view(reference.object())) };
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        // SAFETY: garbage, so nobody else uses it; the references were its own.
        unsafe {
            for item in std::mem::take(&mut (*view(*object).as_ptr()).items) {
                Held(m).drop_reference(item);
            }
        }
    }
}

/// A list in memory of the heap, not published yet.
#[inline(always)]
fn allocate(m: &Mutator, list: List) -> Ref {
    let (size, align) = (size_of::<List>(), align_of::<List>());
    let Ok(memory) = m.allocate_at(size, align, list.kind.prefix) else {
        handle_alloc_error(Layout::new::<List>())
    };
    // SAFETY: fresh memory of this size.
    unsafe { memory.cast().write(list) };
    memory.cast()
}

/// A heap, with the mutator that the interpreter's frame holds.
pub(crate) struct Held<'a>(pub(crate) &'a Mutator);

impl Memory for Held<'_> {
    #[inline(always)]
    fn make(&self, list: List) -> Ref {
        // SAFETY: a list, written before it is published.
        unsafe {
            let made = allocate(self.0, list);
            self.0.publish(Object::new(made.cast()), true);
            made
        }
    }

    unsafe fn free(&self, list: Ref) {
        // SAFETY: as the caller says.
        unsafe { self.0.free(list.cast()) };
    }
}

/// A heap, with the guard of the thread's own mutator.
pub(crate) struct Ambient<'a>(pub(crate) &'a ModelAttached<Lists>);

impl Memory for Ambient<'_> {
    #[inline(always)]
    fn make(&self, list: List) -> Ref {
        self.0.with(|m| Held(m).make(list))
    }

    unsafe fn free(&self, list: Ref) {
        // SAFETY: as the caller says.
        self.0.with(|m| unsafe { Held(m).free(list) });
    }
}

/// A heap, with a look-up of the thread's mutator for each call.
pub(crate) struct LookedUp;

impl LookedUp {
    fn with<R>(f: impl FnOnce(&Mutator) -> R) -> R {
        // SAFETY: `f` is one call that reaches no safepoint.
        f(&unsafe { Mutator::current_unlent() }.expect("the thread is attached"))
    }
}

impl Memory for LookedUp {
    #[inline(always)]
    fn make(&self, list: List) -> Ref {
        // SAFETY: a list, written before it is published.
        unsafe {
            let made = Self::with(|m| allocate(m, list));
            Self::with(|m| m.publish(Object::new(made.cast()), true));
            made
        }
    }

    unsafe fn free(&self, list: Ref) {
        // SAFETY: as the caller says.
        Self::with(|m| unsafe { m.free(list.cast()) });
    }
}
