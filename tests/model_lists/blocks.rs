//! The model of the tests, and its allocator. See [`Blocks`].

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Mutex, RwLock};

use standstill::model::{
    ClaimRef, Count, Finalizers, ListedMemory, Lists, Live, ModelHeap, ModelMutator, Object,
    ObjectList, ObjectModel, Segments, Stopped, Tracer, Uncounted, WeakRefs, World,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, CollectionReport, Heap, HeapBuilder, Pacing, Stress, model};

pub(crate) const UNIT: usize = 1 << 20;
pub(crate) const PAGE: usize = 1 << 16;
/// The sizes of blocks. Blocks of 48, 80 and 112 bytes start in both halves of 32 bytes.
pub(crate) const SIZES: [usize; 5] = [32, 48, 64, 80, 112];
/// Bytes in front of the first block of a page.
pub(crate) const PAGE_HEADER: usize = 16;
pub(crate) const ATOM: usize = 16;

/// Takes no part in collections, and a traversal reports nothing.
pub(crate) const UNTRACKED: u32 = 1;
pub(crate) const FROZEN: u32 = 2;
pub(crate) const FINALIZER: u32 = 4;
pub(crate) const FINALIZED: u32 = 8;
pub(crate) const WEAK: u32 = 16;
/// The last slot refers without a count.
pub(crate) const BORROWS: u32 = 32;
/// `clear` does nothing.
pub(crate) const REFUSES: u32 = 64;
pub(crate) const IMMORTAL: u32 = 128;
/// References without a count may lead to the object.
pub(crate) const LENT: u32 = 256;

#[repr(C)]
pub(crate) struct Header {
    count: AtomicU32,
    pub(crate) flags: AtomicU32,
    serial: u32,
    slots: u32,
}

const _: () = assert!(size_of::<Header>() == 16);

#[derive(Clone)]
pub(crate) struct Page {
    start: usize,
    size: usize,
    /// Whether a block is in use.
    used: Vec<bool>,
    /// The other blocks. Those that were freed last are used first.
    free: Vec<usize>,
}

impl Page {
    fn block(&self, at: usize) -> usize {
        self.start + PAGE_HEADER + at * self.size
    }

    fn blocks(&self) -> impl Iterator<Item = usize> {
        (0..self.used.len()).filter(|&at| self.used[at]).map(|at| self.block(at))
    }
}

/// The allocator.
#[derive(Default)]
pub(crate) struct Store {
    /// The addresses of segments of 1 MiB.
    pub(crate) segments: Vec<usize>,
    /// By address.
    pages: BTreeMap<usize, Page>,
    /// Pages without blocks.
    unused: Vec<usize>,
    /// Segments that were returned to the system. No code can access them, and no other
    /// mapping gets their addresses: the heap has adopted them for its life.
    returned: Vec<usize>,
}

pub(crate) fn layout() -> Layout {
    Layout::from_size_align(UNIT, UNIT).unwrap()
}

pub(crate) fn pointer(address: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()
}

/// An access to a segment that is not accessible ends the process, where the system allows that.
pub(crate) fn make_accessible(segment: usize, is: bool) {
    #[cfg(unix)]
    {
        let protection = if is { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        // SAFETY: a segment of a store, in whole pages.
        let code = unsafe { libc::mprotect(pointer(segment).as_ptr().cast(), UNIT, protection) };
        assert_eq!(code, 0);
    }
    #[cfg(not(unix))]
    let _ = (segment, is);
}

impl Store {
    fn new_page(&mut self, size: usize) -> &Page {
        if self.unused.is_empty() {
            let start = self.returned.pop().unwrap_or_else(|| {
                // SAFETY: the layout is not empty.
                let memory = NonNull::new(unsafe { alloc_zeroed(layout()) }).unwrap();
                memory.as_ptr().expose_provenance()
            });
            make_accessible(start, true);
            self.segments.push(start);
            self.unused.extend((0..UNIT / PAGE).rev().map(|page| start + page * PAGE));
        }
        let start = self.unused.pop().unwrap();
        let blocks = (PAGE - PAGE_HEADER) / size;
        let (used, free) = (vec![false; blocks], (0..blocks).rev().collect());
        self.pages.entry(start).or_insert(Page { start, size, used, free })
    }

    fn allocate(&mut self, size: usize) -> usize {
        let has_room = |page: &&mut Page| page.size == size && !page.free.is_empty();
        let page = match self.pages.values_mut().find(has_room) {
            Some(page) => page.start,
            None => self.new_page(size).start,
        };
        let page = self.pages.get_mut(&page).unwrap();
        let at = page.free.pop().unwrap();
        page.used[at] = true;
        page.block(at)
    }

    /// The memory contains no object afterwards, and nothing that looks like one.
    fn free(&mut self, address: usize) {
        let page = self.pages.get_mut(&(address & !(PAGE - 1))).unwrap();
        let at = (address - page.start - PAGE_HEADER) / page.size;
        assert!(std::mem::replace(&mut page.used[at], false), "freed twice");
        page.free.push(at);
        // SAFETY: a block of this page.
        unsafe { pointer(address).write_bytes(0xee, page.size) };
    }

    /// Gives the segments without blocks in use back to the system. Returns how many.
    pub(crate) fn return_memory(&mut self) -> usize {
        self.pages.retain(|&start, page| {
            let is_used = page.used.contains(&true);
            if !is_used {
                self.unused.push(start);
            }
            is_used
        });
        let of = |page: &usize| *page & !(UNIT - 1);
        let is_used = |segment: &usize| self.pages.keys().any(|page| of(page) == *segment);
        let (kept, given): (Vec<_>, Vec<_>) = self.segments.drain(..).partition(is_used);
        self.segments = kept;
        self.unused.retain(|page| !given.contains(&of(page)));
        given.iter().for_each(|&start| make_accessible(start, false));
        let count = given.len();
        self.returned.extend(given);
        count
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for &start in self.segments.iter().chain(&self.returned) {
            make_accessible(start, true);
            // SAFETY: allocated with this layout.
            unsafe { dealloc(pointer(start).as_ptr(), layout()) }
        }
    }
}

/// One bit for each block that is free.
fn free_bits(used: &[bool]) -> u64 {
    used.iter().enumerate().fold(0, |bits, (at, &used)| bits | u64::from(!used) << at)
}

pub(crate) type Hook<M> = Box<dyn FnOnce(Object, &ModelMutator<M>) + Send>;

/// What the model does wrong in its next list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    RefusesParts,
    PanicsInParts,
    PanicsInList,
    Adds(usize),
    /// With [`ObjectList::add_blocks`].
    AddsBlocks(Run),
}

/// Blocks that the allocator does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: usize,
    pub(crate) size: usize,
    pub(crate) count: usize,
    pub(crate) free: &'static [u64],
}

/// See the page of the tests. With `RECHECKS` traversals report uncounted references, and the
/// recheck traverses all objects for them.
pub(crate) struct Blocks<const RECHECKS: bool> {
    pub(crate) store: Mutex<Store>,
    /// The pages of this stop.
    parts: RwLock<Vec<Page>>,
    /// The list of this stop leaves out what is not wanted.
    is_partial: AtomicBool,
    born: AtomicU32,
    /// How often objects were listed. Each second list has single objects, the others have pages of
    /// blocks.
    pub(crate) lists: AtomicUsize,
    asked: AtomicUsize,
    released: AtomicUsize,
    pub(crate) called_back: Mutex<Vec<u32>>,
    /// Called in the finalizer of the object with the serial number.
    finalizers: Mutex<HashMap<u32, Hook<Self>>>,
    /// Called before the release with the number.
    pub(crate) at_release: Mutex<HashMap<usize, Hook<Self>>>,
    pub(crate) fault: Mutex<Option<Fault>>,
}

impl<const RECHECKS: bool> Default for Blocks<RECHECKS> {
    fn default() -> Self {
        Self {
            store: Mutex::default(),
            parts: RwLock::default(),
            is_partial: AtomicBool::default(),
            born: AtomicU32::default(),
            lists: AtomicUsize::default(),
            asked: AtomicUsize::default(),
            released: AtomicUsize::default(),
            called_back: Mutex::default(),
            finalizers: Mutex::default(),
            at_release: Mutex::default(),
            fault: Mutex::default(),
        }
    }
}

pub(crate) type Mutator = ModelMutator<Blocks<false>>;

impl<const RECHECKS: bool> Blocks<RECHECKS> {
    pub(crate) fn header(&self, object: Object) -> &Header {
        // SAFETY: each object starts with a header. Callers have a reference, or are the collector.
        let header: &Header = unsafe { object.as_ptr().cast().as_ref() };
        assert!(header.slots <= 12, "no object is at {:#x}", object.address());
        header
    }

    pub(crate) fn has(&self, object: Object, flags: u32) -> bool {
        self.header(object).flags.load(Relaxed) & flags != 0
    }

    pub(crate) fn slots(&self, object: Object) -> &[AtomicPtr<u8>] {
        let slots = self.header(object).slots as usize;
        // SAFETY: `block` has written as many slots behind the header.
        unsafe {
            let first = object.as_ptr().byte_add(size_of::<Header>()).cast();
            std::slice::from_raw_parts(first.as_ptr(), slots)
        }
    }

    pub(crate) fn is_atom(&self, object: Object) -> bool {
        let store = self.store.lock().unwrap();
        store.pages[&(object.address() & !(PAGE - 1))].size == ATOM
    }

    /// An object with one reference. The heap does not learn about it.
    pub(crate) fn block(&self, size: usize, flags: u32) -> Object {
        let memory = pointer(self.store.lock().unwrap().allocate(SIZES[size]));
        let slots = ((SIZES[size] - size_of::<Header>()) / 8) as u32;
        let serial = self.born.fetch_add(1, Relaxed);
        let (count, flags) = (AtomicU32::new(1), AtomicU32::new(flags));
        // SAFETY: a new block of this size.
        unsafe {
            memory.byte_add(size_of::<Header>()).write_bytes(0, slots as usize * 8);
            memory.cast::<Header>().write(Header { count, flags, serial, slots });
        }
        Object::new(memory)
    }

    pub(crate) fn atom(&self) -> Object {
        Object::new(pointer(self.store.lock().unwrap().allocate(ATOM)))
    }

    pub(crate) fn add_ref(&self, object: Object) -> Object {
        self.header(object).count.fetch_add(1, Relaxed);
        object
    }

    fn swap(&self, object: Object, slot: usize, new: Option<Object>) -> Option<Object> {
        let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
        NonNull::new(self.slots(object)[slot].swap(new, AcqRel)).map(Object::new)
    }

    /// Whether a slot refers without a count.
    fn borrows(&self, object: Object, slot: usize) -> bool {
        self.has(object, BORROWS) && slot + 1 == self.slots(object).len()
    }

    pub(crate) fn link(&self, from: Object, slot: usize, to: Object) {
        if !self.is_atom(to) && !self.borrows(from, slot) {
            self.add_ref(to);
        }
        self.empty_slot(from, slot);
        self.swap(from, slot, Some(to));
    }

    fn empty_slot(&self, object: Object, slot: usize) {
        if let Some(old) = self.swap(object, slot, None)
            && !self.borrows(object, slot)
        {
            self.drop_ref(old);
        }
    }

    pub(crate) fn drop_ref(&self, object: Object) {
        let mut dropped = vec![object];
        while let Some(object) = dropped.pop() {
            if self.is_atom(object) || self.header(object).count.fetch_sub(1, AcqRel) != 1 {
                continue;
            }
            for slot in 0..self.slots(object).len() {
                let target = self.swap(object, slot, None);
                dropped.extend(target.filter(|_| !self.borrows(object, slot)));
            }
            self.store.lock().unwrap().free(object.address());
        }
    }

    /// The addresses of the objects that are not destroyed.
    pub(crate) fn alive(&self) -> BTreeSet<usize> {
        let store = self.store.lock().unwrap();
        let pages = store.pages.values().filter(|page| page.size != ATOM);
        pages.flat_map(Page::blocks).collect()
    }

    pub(crate) fn serial(&self, object: Object) -> u32 {
        self.header(object).serial
    }

    pub(crate) fn when_finalized(&self, object: Object, hook: Hook<Self>) {
        assert!(self.has(object, FINALIZER));
        self.finalizers.lock().unwrap().insert(self.serial(object), hook);
    }
}

// SAFETY: 1. `count` is the number of references. 2. `drop_ref` frees, at 0. 3. only attached
// threads lower counts. 4. `traverse` reports references in slots: they are counted, or lead to
// atoms, which are not listed. 5. no count is pending. 6. no method reaches a safepoint. 7. a
// traversal reports the slots without counts.
unsafe impl<const RECHECKS: bool> ObjectModel for Blocks<RECHECKS> {
    type Addresses = Segments;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        self.asked.fetch_add(1, Relaxed);
        let header = self.header(*object);
        match header.flags.load(Relaxed) {
            flags if flags & (UNTRACKED | FROZEN) != 0 => Count::Outside,
            flags if flags & LENT != 0 && self.is_partial.load(Relaxed) => Count::Outside,
            flags if flags & IMMORTAL != 0 => Count::Immortal,
            _ => Count::Exact(i64::from(header.count.load(Relaxed))),
        }
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        if self.has(*object, UNTRACKED | FROZEN) {
            return;
        }
        for (at, slot) in self.slots(*object).iter().enumerate() {
            let Some(target) = NonNull::new(slot.load(Relaxed)) else { continue };
            // SAFETY: rules 4 and 7.
            unsafe {
                if self.borrows(*object, at) {
                    tracer.uncounted(Object::new(target));
                } else {
                    tracer.visit_object(Object::new(target));
                }
            }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.add_ref(*object);
    }

    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
        let number = self.released.fetch_add(1, Relaxed) + 1;
        let object = reference.object();
        self.drop_ref(object);
        let hook = self.at_release.lock().unwrap().remove(&number);
        if let Some(hook) = hook {
            hook(object, m);
        }
    }

    fn clear(&self, object: Live<'_>, _: &ModelMutator<Self>) {
        if !self.has(*object, REFUSES) {
            (0..self.slots(*object).len()).for_each(|slot| self.empty_slot(*object, slot));
        }
    }

    fn type_name(&self, _: Live<'_>) -> Cow<'static, str> {
        "block".into()
    }
}

standstill::parts!(
    impl[const RECHECKS: bool] Blocks<RECHECKS>:
    Finalizers, WeakRefs, Uncounted, Lists
);

impl<const RECHECKS: bool> Finalizers<Blocks<RECHECKS>> for Blocks<RECHECKS> {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        model.header(*object).flags.load(Relaxed) & (FINALIZER | FINALIZED) == FINALIZER
    }

    fn finalize(model: &Self, object: Live<'_>, m: &ModelMutator<Self>) {
        let flags = model.header(*object).flags.fetch_or(FINALIZED, Relaxed);
        assert_eq!(flags & FINALIZED, 0, "each finalizer runs once");
        let hook = model.finalizers.lock().unwrap().remove(&model.serial(*object));
        if let Some(hook) = hook {
            hook(*object, m);
        }
    }
}

impl<const RECHECKS: bool> WeakRefs<Blocks<RECHECKS>> for Blocks<RECHECKS> {
    type Callback = Object;

    fn has_weak(model: &Self, object: Live<'_>) -> bool {
        model.has(*object, WEAK)
    }

    fn callbacks(_: &Self, _: Stopped<'_>) -> usize {
        1
    }

    fn take_callbacks(
        model: &Self,
        object: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<Object>,
    ) {
        assert!(is_unreachable(*object));
        for slot in model.slots(*object) {
            if let Some(target) = NonNull::new(slot.load(Relaxed)).map(Object::new) {
                let is_outside = model.is_atom(target) || model.has(target, UNTRACKED | FROZEN);
                assert!(!is_outside || !is_unreachable(target));
            }
        }
        due.push(model.add_ref(*object));
    }

    fn call_back(model: &Self, object: Object, _: &ModelMutator<Self>) {
        model.called_back.lock().unwrap().push(model.serial(object));
        model.drop_ref(object);
    }

    fn clear_weak(_: &Self, _: Stopped<'_>) {}
}

impl<const RECHECKS: bool> Uncounted<Blocks<RECHECKS>> for Blocks<RECHECKS> {
    const PRESENT: bool = RECHECKS;
    const PROVES: bool = true;
}

impl<const RECHECKS: bool> Lists<Blocks<RECHECKS>> for Blocks<RECHECKS> {
    fn list_parts(
        model: &Self,
        _: &World<'_, Self>,
        memory: &ListedMemory<'_>,
    ) -> Result<usize, Cow<'static, str>> {
        model.lists.fetch_add(1, Relaxed);
        let fault = *model.fault.lock().unwrap();
        match fault {
            Some(Fault::RefusesParts) => return Err("no list, on purpose".into()),
            Some(Fault::PanicsInParts) => panic!("no parts, on purpose"),
            _ => {}
        }
        let store = model.store.lock().unwrap();
        for &segment in &store.segments {
            if !memory.is_adopted(segment) {
                // SAFETY: objects are listed only while the segment exists.
                unsafe { memory.adopt(pointer(segment), UNIT) }.map_err(|e| e.to_string())?;
            }
        }
        model.is_partial.store(memory.is_partial(), Relaxed);
        let pages = store.pages.values().filter(|page| page.size != ATOM);
        // The first block of a page is not at its start.
        let wanted = |page: &&Page| memory.wants(pointer(page.block(0)), PAGE - PAGE_HEADER);
        let parts: Vec<_> = pages.filter(wanted).cloned().collect();
        let count = parts.len();
        *model.parts.write().unwrap() = parts;
        Ok(count)
    }

    fn list(model: &Self, part: usize, list: &mut ObjectList<'_>) {
        let parts = model.parts.read().unwrap();
        let page = &parts[part];
        if model.lists.load(Relaxed).is_multiple_of(2) {
            for address in page.blocks() {
                // SAFETY: in use, and pages are aligned.
                unsafe { list.add(Object::new(pointer(address))) };
            }
        } else {
            let free: Vec<u64> = page.used.chunks(64).map(free_bits).collect();
            let (first, count) = (Object::new(pointer(page.block(0))), page.used.len());
            // SAFETY: as above.
            unsafe { list.add_blocks(model::Blocks { first, size: page.size, count, free: &free }) }
        }
        drop(parts);
        let fault = *model.fault.lock().unwrap();
        match fault {
            Some(Fault::PanicsInList) if part == 0 => panic!("no objects, on purpose"),
            // SAFETY: refused.
            Some(Fault::Adds(address)) if part == 0 => unsafe {
                list.add(Object::new(pointer(address)));
            },
            Some(Fault::AddsBlocks(Run { first, size, count, free })) if part == 0 => {
                let first = Object::new(pointer(first));
                // SAFETY: refused, or a test that only lists.
                unsafe { list.add_blocks(model::Blocks { first, size, count, free }) };
            }
            _ => {}
        }
    }
}

pub(crate) fn builder() -> HeapBuilder {
    Heap::builder().reserve(256 << 20).pacing(Pacing::manual()).workers(1)
}

pub(crate) fn heap<const RECHECKS: bool>() -> ModelHeap<Blocks<RECHECKS>> {
    builder().build_with(Blocks::default()).unwrap()
}

/// Heaps with one worker and with several, with usual and with small constants. The heap is
/// verified before, in and after each collection.
pub(crate) fn on_heaps(mut test: impl FnMut(&ModelHeap<Blocks<false>>, &mut Mutator)) {
    for workers in [1, 3] {
        for small in [false, true] {
            let stress = Stress::none().verify(true).verify_counts(true).small_constants(small);
            let builder = builder().workers(workers).serial_below(0).stress(stress);
            let heap = builder.build_with(Blocks::default()).unwrap();
            test(&heap, &mut heap.attach());
        }
    }
}

pub(crate) fn collect<const R: bool>(m: &mut ModelMutator<Blocks<R>>) -> CollectionReport {
    collect_with(m, Collect::full())
}

pub(crate) fn collect_with<const R: bool>(
    m: &mut ModelMutator<Blocks<R>>,
    what: Collect,
) -> CollectionReport {
    let report = m.try_collect(what).unwrap();
    assert_eq!((&report.abandoned, report.overvisited), (&None, 0));
    report
}

/// A ring through the first slots of some objects. Drops the references to all but the first.
pub(crate) fn ring<const R: bool>(blocks: &Blocks<R>, objects: &[Object]) -> Object {
    for (at, &object) in objects.iter().enumerate() {
        blocks.link(object, 0, objects[(at + 1) % objects.len()]);
    }
    objects[1..].iter().for_each(|&object| blocks.drop_ref(object));
    objects[0]
}

/// A ring of objects of all sizes, and the reference to one of them.
pub(crate) fn some_ring<const R: bool>(blocks: &Blocks<R>, objects: usize) -> Object {
    let objects: Vec<_> = (0..objects).map(|at| blocks.block(at % SIZES.len(), 0)).collect();
    ring(blocks, &objects)
}

/// The objects that an inspection shows, and whether each is about to be cleared.
pub(crate) fn shown<const R: bool>(m: &mut ModelMutator<Blocks<R>>) -> BTreeMap<usize, bool> {
    let mut shown = BTreeMap::new();
    m.objects(|object, flags| {
        assert!(flags.is_tracked());
        assert!(shown.insert(object.address(), flags.is_unreachable()).is_none());
    });
    shown
}

pub(crate) fn message(f: impl FnOnce()) -> String {
    let thrown = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    match thrown.downcast::<String>() {
        Ok(text) => *text,
        Err(thrown) => thrown.downcast::<&str>().expect("a text").to_string(),
    }
}
