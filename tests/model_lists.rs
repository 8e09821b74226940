//! Models that list their objects, instead of registering them.
//!
//! The objects of the model, [`Blocks`], lie in memory of an allocator of its own. A page of 64 KiB
//! has blocks of one size, and a bitmap says which blocks are in use. The heap learns about them in
//! stops alone. Besides objects a page may contain *atoms*: blocks of 16 bytes to which objects
//! refer and which nobody lists.
#![cfg(not(loom))]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, RwLock};

use proptest::prelude::*;
use standstill::model::{
    ClaimRef, Count, ListedMemory, Live, ModelHeap, ModelMutator, Object, ObjectList, ObjectModel,
    Segments, Stopped, Tracer, World,
};
use standstill::safepoint::{STOP, ThreadId};
use standstill::{Collect, CollectionReport, Heap, HeapBuilder, Pacing, Stress};

const UNIT: usize = 1 << 20;
const PAGE: usize = 1 << 16;
/// The sizes of blocks. Blocks of 48, 80 and 112 bytes start in both halves of 32 bytes.
const SIZES: [usize; 5] = [32, 48, 64, 80, 112];
/// Bytes in front of the first block of a page.
const PAGE_HEADER: usize = 16;
const ATOM: usize = 16;
/// The number of the size of a page of atoms.
const ATOMS: usize = SIZES.len();

/// Takes no part in collections, and a traversal reports nothing.
const UNTRACKED: u32 = 1;
const FROZEN: u32 = 2;
const FINALIZER: u32 = 4;
const FINALIZED: u32 = 8;
const WEAK: u32 = 16;
/// The last slot refers without a count.
const BORROWS: u32 = 32;
/// `clear` does nothing.
const REFUSES: u32 = 64;
const IMMORTAL: u32 = 128;

#[repr(C)]
struct Header {
    count: AtomicU32,
    flags: AtomicU32,
    serial: u32,
    slots: u32,
}

const _: () = assert!(size_of::<Header>() == 16);

struct Page {
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
struct Store {
    /// The addresses of segments of 1 MiB.
    segments: Vec<usize>,
    /// By address.
    pages: BTreeMap<usize, Page>,
    /// Pages without blocks.
    unused: Vec<usize>,
    /// Segments that were returned to the system. Nobody can access them, and nobody else gets
    /// their addresses: the heap has adopted them for its life.
    returned: Vec<usize>,
}

fn layout() -> Layout {
    Layout::from_size_align(UNIT, UNIT).unwrap()
}

fn pointer(address: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()
}

/// An access to a segment that is not accessible ends the process, where the system allows that.
fn make_accessible(segment: usize, is: bool) {
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
    fn return_memory(&mut self) -> usize {
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

type Hook<M> = Box<dyn FnOnce(Object, &ModelMutator<M>) + Send>;

/// What the model does wrong in its next list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    RefusesParts,
    PanicsInParts,
    PanicsInList,
    Adds(usize),
}

/// See the [file's page](self). With `RECHECKS` traversals report uncounted references, and the
/// recheck traverses all objects for them.
struct Blocks<const RECHECKS: bool> {
    store: Mutex<Store>,
    /// The pages of this stop.
    parts: RwLock<Vec<(usize, Vec<usize>)>>,
    born: AtomicU32,
    /// How often objects were listed.
    lists: AtomicUsize,
    asked: AtomicUsize,
    released: AtomicUsize,
    called_back: Mutex<Vec<u32>>,
    /// Called in the finalizer of the object with the serial number.
    finalizers: Mutex<HashMap<u32, Hook<Self>>>,
    /// Called before the release with the number.
    at_release: Mutex<HashMap<usize, Hook<Self>>>,
    fault: Mutex<Option<Fault>>,
}

impl<const RECHECKS: bool> Default for Blocks<RECHECKS> {
    fn default() -> Self {
        Self {
            store: Mutex::default(),
            parts: RwLock::default(),
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

type Mutator = ModelMutator<Blocks<false>>;

impl<const RECHECKS: bool> Blocks<RECHECKS> {
    fn header(&self, object: Object) -> &Header {
        // SAFETY: each object starts with a header. Callers have a reference, or are the collector.
        let header: &Header = unsafe { object.as_ptr().cast().as_ref() };
        assert!(header.slots <= 12, "no object is at {:#x}", object.address());
        header
    }

    fn has(&self, object: Object, flags: u32) -> bool {
        self.header(object).flags.load(Relaxed) & flags != 0
    }

    fn slots(&self, object: Object) -> &[AtomicPtr<u8>] {
        let slots = self.header(object).slots as usize;
        // SAFETY: `new` has written as many slots behind the header.
        unsafe {
            let first = object.as_ptr().byte_add(size_of::<Header>()).cast();
            std::slice::from_raw_parts(first.as_ptr(), slots)
        }
    }

    fn is_atom(&self, object: Object) -> bool {
        let store = self.store.lock().unwrap();
        store.pages[&(object.address() & !(PAGE - 1))].size == ATOM
    }

    /// An object with one reference. The heap does not learn about it.
    fn new(&self, size: usize, flags: u32) -> Object {
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

    fn atom(&self) -> Object {
        Object::new(pointer(self.store.lock().unwrap().allocate(ATOM)))
    }

    fn add_ref(&self, object: Object) -> Object {
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

    fn link(&self, from: Object, slot: usize, to: Object) {
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

    fn drop_ref(&self, object: Object) {
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
    fn alive(&self) -> BTreeSet<usize> {
        let store = self.store.lock().unwrap();
        let pages = store.pages.values().filter(|page| page.size != ATOM);
        pages.flat_map(Page::blocks).collect()
    }

    fn serial(&self, object: Object) -> u32 {
        self.header(object).serial
    }

    fn when_finalized(&self, object: Object, hook: Hook<Self>) {
        assert!(self.has(object, FINALIZER));
        self.finalizers.lock().unwrap().insert(self.serial(object), hook);
    }
}

// SAFETY: 1. `count` is the number of references. 2. `drop_ref` frees, at 0. 3. only attached
// threads lower counts. 4. `traverse` reports references in slots: they are counted, or lead to
// atoms, which nobody lists. 5. no count is pending. 6. no method reaches a safepoint. 7. a
// traversal reports the slots without counts.
unsafe impl<const RECHECKS: bool> ObjectModel for Blocks<RECHECKS> {
    type Local = ();
    type Callback = Object;
    type Private = ();
    type Addresses = Segments;

    const STABLE_DURING_STOP: bool = true;
    const LISTS_OBJECTS: bool = true;
    const UNCOUNTED_EDGES: bool = RECHECKS;

    fn local(&self) {}

    fn private(&self) {}

    fn list_parts(
        &self,
        _: &World<'_, Self>,
        memory: &ListedMemory<'_>,
    ) -> Result<usize, Cow<'static, str>> {
        self.lists.fetch_add(1, Relaxed);
        let fault = *self.fault.lock().unwrap();
        match fault {
            Some(Fault::RefusesParts) => return Err("no list, on purpose".into()),
            Some(Fault::PanicsInParts) => panic!("no parts, on purpose"),
            _ => {}
        }
        let store = self.store.lock().unwrap();
        for &segment in &store.segments {
            if !memory.is_adopted(segment) {
                // SAFETY: objects are listed only while the segment exists.
                unsafe { memory.adopt(pointer(segment), UNIT) }.map_err(|e| e.to_string())?;
            }
        }
        let pages = store.pages.values().filter(|page| page.size != ATOM);
        let parts: Vec<_> = pages.map(|page| (page.start, page.blocks().collect())).collect();
        let count = parts.len();
        *self.parts.write().unwrap() = parts;
        Ok(count)
    }

    fn list(&self, part: usize, list: &mut ObjectList<'_>) {
        let blocks = self.parts.read().unwrap()[part].1.clone();
        for address in blocks {
            // SAFETY: in use, and pages are aligned.
            unsafe { list.add(Object::new(pointer(address))) };
        }
        let fault = *self.fault.lock().unwrap();
        match fault {
            Some(Fault::PanicsInList) if part == 0 => panic!("no objects, on purpose"),
            // SAFETY: refused.
            Some(Fault::Adds(address)) if part == 0 => unsafe {
                list.add(Object::new(pointer(address)));
            },
            _ => {}
        }
    }

    fn count(&self, object: Stopped<'_>) -> Count {
        self.asked.fetch_add(1, Relaxed);
        let header = self.header(*object);
        match header.flags.load(Relaxed) {
            flags if flags & (UNTRACKED | FROZEN) != 0 => Count::Outside,
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

    fn has_finalizer(&self, object: Live<'_>) -> bool {
        self.header(*object).flags.load(Relaxed) & (FINALIZER | FINALIZED) == FINALIZER
    }

    fn finalize(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        let flags = self.header(*object).flags.fetch_or(FINALIZED, Relaxed);
        assert_eq!(flags & FINALIZED, 0, "each finalizer runs once");
        let hook = self.finalizers.lock().unwrap().remove(&self.serial(*object));
        if let Some(hook) = hook {
            hook(*object, m);
        }
    }

    fn has_weak(&self, object: Live<'_>) -> bool {
        self.has(*object, WEAK)
    }

    fn callbacks(&self, _: Stopped<'_>) -> usize {
        1
    }

    fn take_callbacks(
        &self,
        object: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<Object>,
    ) {
        assert!(is_unreachable(*object));
        for slot in self.slots(*object) {
            if let Some(target) = NonNull::new(slot.load(Relaxed)).map(Object::new) {
                let is_outside = self.is_atom(target) || self.has(target, UNTRACKED | FROZEN);
                assert!(!is_outside || !is_unreachable(target));
            }
        }
        due.push(self.add_ref(*object));
    }

    fn call_back(&self, object: Object, _: &ModelMutator<Self>) {
        self.called_back.lock().unwrap().push(self.serial(object));
        self.drop_ref(object);
    }

    fn type_name(&self, _: Live<'_>) -> Cow<'static, str> {
        "block".into()
    }
}

fn builder() -> HeapBuilder {
    Heap::builder().reserve(256 << 20).pacing(Pacing::manual()).workers(1)
}

fn heap<const RECHECKS: bool>() -> ModelHeap<Blocks<RECHECKS>> {
    builder().build_with(Blocks::default()).unwrap()
}

/// Heaps with one worker and with several, with usual and with small constants. The heap is
/// verified before, in and after each collection.
fn on_heaps(mut test: impl FnMut(&ModelHeap<Blocks<false>>, &mut Mutator)) {
    for workers in [1, 3] {
        for small in [false, true] {
            let stress = Stress::none().verify(true).verify_counts(true).small_constants(small);
            let builder = builder().workers(workers).serial_below(0).stress(stress);
            let heap = builder.build_with(Blocks::default()).unwrap();
            test(&heap, &mut heap.attach());
        }
    }
}

fn collect<const R: bool>(m: &mut ModelMutator<Blocks<R>>) -> CollectionReport {
    let report = m.try_collect(Collect::full()).unwrap();
    assert_eq!((&report.abandoned, report.overvisited), (&None, 0));
    report
}

/// A ring through the first slots of some objects. Drops the references to all but the first.
fn ring<const R: bool>(blocks: &Blocks<R>, objects: &[Object]) -> Object {
    for (at, &object) in objects.iter().enumerate() {
        blocks.link(object, 0, objects[(at + 1) % objects.len()]);
    }
    objects[1..].iter().for_each(|&object| blocks.drop_ref(object));
    objects[0]
}

/// A ring of objects of all sizes, and the reference to one of them.
fn some_ring<const R: bool>(blocks: &Blocks<R>, objects: usize) -> Object {
    let objects: Vec<_> = (0..objects).map(|at| blocks.new(at % SIZES.len(), 0)).collect();
    ring(blocks, &objects)
}

/// The objects that an inspection shows, and whether each is about to be cleared.
fn shown<const R: bool>(m: &mut ModelMutator<Blocks<R>>) -> BTreeMap<usize, bool> {
    let mut shown = BTreeMap::new();
    m.objects(|object, flags| {
        assert!(flags.is_tracked());
        assert!(shown.insert(object.address(), flags.is_unreachable()).is_none());
    });
    shown
}

fn message(f: impl FnOnce()) -> String {
    let thrown = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    match thrown.downcast::<String>() {
        Ok(text) => *text,
        Err(thrown) => thrown.downcast::<&str>().expect("a text").to_string(),
    }
}

/// The objects that a collection finds unreachable, and those that exist after it, by a search from
/// the held objects and from those that take no part.
fn expected(
    blocks: &Blocks<false>,
    held: &BTreeMap<usize, usize>,
) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let mut alive = blocks.alive();
    let edges = |&address: &usize| {
        let slots = blocks.slots(Object::new(pointer(address))).iter();
        let targets = slots.filter_map(|slot| NonNull::new(slot.load(Relaxed)).map(Object::new));
        targets.filter(|&target| !blocks.is_atom(target)).map(Object::address).collect::<Vec<_>>()
    };
    let edges: HashMap<usize, Vec<usize>> = alive.iter().map(|at| (*at, edges(at))).collect();
    let is_outside = |&at: &usize| blocks.has(Object::new(pointer(at)), UNTRACKED | FROZEN);
    let mut found: Vec<usize> = held.keys().copied().collect();
    found.extend(alive.iter().copied().filter(is_outside));
    let mut reached: BTreeSet<usize> = found.iter().copied().collect();
    while let Some(address) = found.pop() {
        found.extend(edges[&address].iter().filter(|&&target| reached.insert(target)));
    }
    let garbage: BTreeSet<usize> = alive.difference(&reached).copied().collect();
    // Without the garbage some of the others have no references.
    alive = reached;
    loop {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for address in alive.iter().flat_map(|at| &edges[at]) {
            *counts.entry(*address).or_default() += 1;
        }
        let before = alive.len();
        alive.retain(|at| held.contains_key(at) || counts.contains_key(at));
        if alive.len() == before {
            return (garbage, alive);
        }
    }
}

#[derive(Clone, Debug)]
struct Round {
    /// The size, whether the object takes no part, and whether it stays held.
    objects: Vec<(usize, u32, bool)>,
    /// From, slot, to. If the last number is 0, to an atom.
    links: Vec<(prop::sample::Index, usize, prop::sample::Index, u8)>,
    /// Held objects that are dropped.
    drops: Vec<prop::sample::Index>,
    returns_memory: bool,
}

fn round() -> impl Strategy<Value = Round> {
    let flags = prop_oneof![8 => Just(0), 1 => Just(UNTRACKED), 1 => Just(FROZEN)];
    let object = (0..SIZES.len(), flags, prop::bool::weighted(0.2));
    let index = any::<prop::sample::Index>;
    (
        prop::collection::vec(object, 0..60),
        prop::collection::vec((index(), 0usize..12, index(), 0u8..6), 0..120),
        prop::collection::vec(index(), 0..10),
        any::<bool>(),
    )
        .prop_map(|(objects, links, drops, returns_memory)| Round {
            objects,
            links,
            drops,
            returns_memory,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A collection finds the objects that a search does not reach. Blocks are used again, for
    /// objects of other sizes too, and memory returns to the system.
    #[test]
    fn a_collection_of_listed_objects_finds_what_a_search_does_not_reach(
        rounds in prop::collection::vec(round(), 1..6),
    ) {
        on_heaps(|heap, m| {
            let blocks = heap.model();
            let mut held = BTreeMap::<usize, usize>::new();
            for round in &rounds {
                let new: Vec<_> = round.objects.iter().map(|&(size, flags, stays)| {
                    let object = blocks.new(size, flags);
                    held.insert(object.address(), 1);
                    (object, stays)
                }).collect();
                let all: Vec<_> = held.keys().map(|&at| Object::new(pointer(at))).collect();
                for (from, slot, to, to_atom) in &round.links {
                    if !all.is_empty() {
                        let (from, to) = (*from.get(&all), *to.get(&all));
                        let to = if *to_atom == 0 { blocks.atom() } else { to };
                        blocks.link(from, slot % blocks.slots(from).len(), to);
                    }
                }
                let mut dropped: BTreeSet<_> =
                    new.iter().filter(|new| !new.1).map(|new| new.0.address()).collect();
                if !all.is_empty() {
                    dropped.extend(round.drops.iter().map(|index| index.get(&all).address()));
                }
                for address in dropped {
                    held.remove(&address);
                    blocks.drop_ref(Object::new(pointer(address)));
                }
                let (garbage, alive) = expected(blocks, &held);
                let report = collect(m);
                assert_eq!((report.unreachable, report.collected), (garbage.len(), garbage.len()));
                assert_eq!(blocks.alive(), alive);
                let shown = shown(m);
                assert!(shown.keys().eq(&alive) && shown.values().all(|&is| !is));
                if round.returns_memory {
                    blocks.store.lock().unwrap().return_memory();
                }
            }
        });
    }
}

#[test]
fn objects_start_in_both_halves_and_are_found_there() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let objects: Vec<_> = (0..200).map(|at| blocks.new(at % SIZES.len(), 0)).collect();
        let in_the_middle = objects.iter().filter(|object| object.address() % 32 == 16).count();
        assert!((50..150).contains(&in_the_middle), "{in_the_middle}");
        for pair in objects.windows(2) {
            blocks.link(pair[0], 0, pair[1]);
        }
        for pair in objects.windows(2) {
            let (mut to, mut from) = (Vec::new(), Vec::new());
            m.referents(pair[0], |object, _| to.push(object.address()));
            m.referrers(pair[1], |object, _| from.push(object.address()));
            assert_eq!((to, from), (vec![pair[1].address()], vec![pair[0].address()]));
            // The other half of the same 32 bytes.
            let beside = Object::new(pointer(pair[0].address() ^ 16));
            let text = message(|| m.referents(beside, |_, _| ()));
            assert!(text.starts_with("no object of this heap is at "), "{text}");
        }
        assert_eq!(m.verify(), Ok(()));
        blocks.link(objects[199], 0, objects[0]);
        objects.iter().for_each(|&object| blocks.drop_ref(object));
        assert_eq!((collect(m).collected, blocks.alive().len()), (200, 0));
    });
}

#[test]
fn memory_that_is_gone_has_no_objects_and_may_come_back() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let mut segments = BTreeSet::new();
        for round in 0..6 {
            let kept = some_ring(blocks, 10);
            let garbage = some_ring(blocks, 20_000);
            segments.extend(blocks.store.lock().unwrap().segments.iter().copied());
            blocks.drop_ref(garbage);
            assert_eq!(collect(m).collected, 20_000, "round {round}");
            assert_eq!(blocks.alive().len(), 10);
            blocks.drop_ref(kept);
            assert_eq!(collect(m).collected, 10);
            assert!(blocks.store.lock().unwrap().return_memory() >= 1);
            // The pages have no objects, and are not read.
            assert_eq!((collect(m).collected, shown(m).len()), (0, 0));
        }
        assert!(segments.len() < 6, "each was used again: {} segments", segments.len());
    });
}

#[test]
fn a_list_with_a_fault_is_an_abandoned_collection_and_nothing_is_lost() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let kept = some_ring(blocks, 7);
        let elsewhere = Box::new([0u128; 2]);
        let outside = std::ptr::from_ref(&*elsewhere).addr();
        let faults = |blocks: &Blocks<false>| {
            let listed = *blocks.alive().first().unwrap();
            [
                (Fault::RefusesParts, "no list, on purpose".to_owned()),
                (Fault::PanicsInParts, "no parts, on purpose".to_owned()),
                (Fault::PanicsInList, "no objects, on purpose".to_owned()),
                (Fault::Adds(outside), format!("{outside:#x}, which is not in adopted memory")),
                (Fault::Adds(listed + 8), format!("{:#x}, which is not", listed + 8)),
                (Fault::Adds(listed), format!("{listed:#x}, where one was listed before")),
                (Fault::Adds(listed ^ 16), format!("{:#x}, where one was", listed ^ 16)),
                (Fault::Adds(32), "0x20, which is not in adopted memory".to_owned()),
            ]
        };
        collect(m);
        for (fault, reason) in faults(blocks) {
            let garbage = some_ring(blocks, 5);
            blocks.drop_ref(garbage);
            *blocks.fault.lock().unwrap() = Some(fault);
            let report = m.try_collect(Collect::full()).unwrap();
            let why = report.abandoned.as_deref().unwrap_or_default();
            assert!(why.contains(&reason), "{fault:?}: {why}");
            assert_eq!((report.unreachable, report.collected), (0, 0));
            let text = message(|| m.objects(|_, _| panic!("no object is shown")));
            let expected = "the objects cannot be listed: ";
            assert!(text.starts_with(expected) && text.contains(&reason), "{text}");
            assert_eq!(blocks.alive().len(), 12);
            *blocks.fault.lock().unwrap() = None;
            assert_eq!((shown(m).len(), m.verify()), (12, Ok(())));
            assert_eq!((collect(m).collected, blocks.alive().len()), (5, 7));
        }
        blocks.drop_ref(kept);
        assert_eq!(collect(m).collected, 7);
    });
}

/// The heap's own memory is no place for listed objects: its free bits are no halves.
#[test]
fn memory_of_the_heap_itself_is_not_adopted() {
    let heap = heap::<false>();
    let mut m = heap.attach();
    let own = m.allocate(64, 32).unwrap();
    let kept = some_ring(heap.model(), 2);
    *heap.model().fault.lock().unwrap() = Some(Fault::Adds(own.as_ptr().addr()));
    let report = m.try_collect(Collect::full()).unwrap();
    assert!(report.abandoned.unwrap().contains("which is not in adopted memory"));
    *heap.model().fault.lock().unwrap() = None;
    heap.model().drop_ref(kept);
    assert_eq!(collect(&mut m).collected, 2);
    // SAFETY: allocated here, and never published.
    unsafe { m.free(own) };
    assert_eq!(m.verify(), Ok(()));
}

#[test]
fn methods_that_change_states_are_refused() {
    let heap = heap::<false>();
    let mut m = heap.attach();
    let object = some_ring(heap.model(), 2);
    type Call = fn(&mut Mutator, Object);
    // SAFETY: all calls are refused.
    let calls: [(&str, Call); 9] = unsafe {
        [
            ("publish", |m, object| m.publish(object, true)),
            ("register", |m, object| drop(m.register(object, true))),
            ("unregister", |m, object| m.unregister(object)),
            ("track", |m, object| drop(m.track(object))),
            ("untrack", |m, object| drop(m.untrack(object))),
            ("dead", |m, object| m.dead(object)),
            ("set_finalized", |m, object| drop(m.set_finalized(object))),
            ("freeze", |m, _| drop(m.freeze())),
            ("unfreeze", |m, _| m.unfreeze()),
        ]
    };
    for (name, call) in calls {
        let text = message(|| call(&mut m, object));
        assert!(text.starts_with(&format!("`{name}` is not for a model that lists")), "{text}");
    }
    heap.model().drop_ref(object);
    assert_eq!(collect(&mut m).collected, 2);
}

#[test]
fn each_stop_that_looks_at_objects_lists_them_and_no_other() {
    let heap = heap::<false>();
    let mut m = heap.attach();
    let kept = some_ring(heap.model(), 3);
    let mut lists = |f: &mut dyn FnMut(&mut Mutator)| {
        let before = heap.model().lists.load(Relaxed);
        f(&mut m);
        heap.model().lists.load(Relaxed) - before
    };
    assert_eq!(lists(&mut |m| drop(collect(m))), 1);
    assert_eq!(lists(&mut |m| drop(m.stop_owned().unwrap())), 0);
    assert_eq!(lists(&mut |m| drop(m.stop().unwrap())), 0);
    assert_eq!(lists(&mut |m| assert_eq!(shown(m).len(), 3)), 1);
    assert_eq!(lists(&mut |m| assert_eq!(m.verify(), Ok(()))), 1);
    assert_eq!(lists(&mut |m| m.referrers(kept, |_, _| ())), 1);
    assert_eq!(lists(&mut |m| m.referents(kept, |_, _| ())), 1);
    // A young collection is a full one.
    let report = m.try_collect(Collect::young()).unwrap();
    assert_eq!((report.kind, report.candidates), (standstill::CollectionKind::Full, 3));
    heap.model().drop_ref(kept);
    assert_eq!(collect(&mut m).collected, 3);
}

#[test]
fn immortal_objects_are_asked_about_again() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let object = blocks.new(1, IMMORTAL);
        let target = some_ring(blocks, 3);
        blocks.link(object, 0, target);
        blocks.drop_ref(target);
        for _ in 0..3 {
            assert_eq!((collect(m).collected, shown(m).len()), (0, 4));
        }
        blocks.link(object, 1, object);
        blocks.drop_ref(object);
        assert_eq!(collect(m).collected, 0);
        blocks.header(object).flags.store(0, Relaxed);
        assert_eq!((collect(m).collected, blocks.alive().len()), (4, 0));
    });
}

#[test]
fn garbage_that_survives_is_an_ordinary_object_again() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let objects: Vec<_> = (0..10).map(|at| blocks.new(at % 5, REFUSES)).collect();
        blocks.drop_ref(ring(blocks, &objects));
        for _ in 0..3 {
            // The report cannot know better.
            let report = collect(m);
            assert_eq!((report.unreachable, report.collected, report.uncollectable), (10, 10, 0));
            let shown = shown(m);
            assert!(shown.len() == 10 && shown.values().all(|&is| !is), "{shown:?}");
        }
        objects.iter().for_each(|&object| blocks.header(object).flags.store(0, Relaxed));
        assert_eq!((collect(m).collected, blocks.alive().len()), (10, 0));
    });
}

#[test]
fn weak_callbacks_are_called_once_and_objects_may_come_back() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let weak: Vec<_> = (0..20).map(|at| blocks.new(at % 5, WEAK)).collect();
        let serials: BTreeSet<_> = weak.iter().map(|&object| blocks.serial(object)).collect();
        blocks.link(weak[3], 1, blocks.atom());
        blocks.drop_ref(ring(blocks, &weak));
        let before = blocks.called_back.lock().unwrap().len();
        assert_eq!((collect(m).collected, blocks.alive().len()), (20, 0));
        let called = blocks.called_back.lock().unwrap()[before..].to_vec();
        assert_eq!((called.len(), called.into_iter().collect()), (20, serials));
    });
}

/// Finalizers change the graph: one makes its object reachable again, others drop objects and make
/// new ones in their places.
fn finalizers_change_the_graph<const RECHECKS: bool>() {
    for workers in [1, 3] {
        let stress = Stress::none().verify(true);
        let builder = builder().workers(workers).serial_below(0).stress(stress);
        let heap = builder.build_with(Blocks::<RECHECKS>::default()).unwrap();
        let mut m = heap.attach();
        let blocks = heap.model();
        let [back, gone] = [0, 1].map(|_| {
            let objects: Vec<_> =
                (0..4).map(|at| blocks.new(at, if at == 0 { FINALIZER } else { 0 })).collect();
            ring(blocks, &objects)
        });
        // Objects that the finalizer destroys: the recheck must not look at them.
        let passing: Vec<_> = (0..300).map(|at| blocks.new(at % 5, 0)).collect();
        blocks.when_finalized(
            back,
            Box::new(move |object, m| {
                passing.into_iter().for_each(|object| m.model().drop_ref(object));
                m.model().add_ref(object);
            }),
        );
        [back, gone].into_iter().for_each(|object| blocks.drop_ref(object));
        let lists = blocks.lists.load(Relaxed);
        let report = collect(&mut m);
        assert_eq!((report.unreachable, report.finalized), (8, 2));
        assert_eq!((report.resurrected, report.collected), (4, 4));
        // One of them in the verification after the collection.
        assert_eq!(blocks.lists.load(Relaxed) - lists, if RECHECKS { 3 } else { 2 });
        assert_eq!(blocks.alive().len(), 4);
        blocks.drop_ref(back);
        let report = collect(&mut m);
        assert_eq!((report.finalized, report.collected, blocks.alive().len()), (0, 4, 0));
    }
}

#[test]
fn finalizers_may_change_the_graph() {
    finalizers_change_the_graph::<false>();
    finalizers_change_the_graph::<true>();
}

/// The second stop lists the objects again, if it traverses them: the object with the reference is
/// new.
#[test]
fn a_new_object_that_refers_without_a_count_keeps_its_target() {
    let heap = heap::<true>();
    let mut m = heap.attach();
    let blocks = heap.model();
    let (object, other) = (blocks.new(2, FINALIZER), blocks.new(1, 0));
    ring(blocks, &[object, other]);
    let holder = Arc::new(Mutex::new(None));
    let kept = holder.clone();
    blocks.when_finalized(
        object,
        Box::new(move |object, m| {
            let new = m.model().new(4, BORROWS);
            let last = m.model().slots(new).len() - 1;
            m.model().link(new, last, object);
            *kept.lock().unwrap() = Some(new);
        }),
    );
    blocks.drop_ref(object);
    let report = collect(&mut m);
    assert_eq!((report.unreachable, report.resurrected, report.collected), (2, 2, 0));
    assert_eq!(blocks.alive().len(), 3);
    blocks.drop_ref(holder.lock().unwrap().take().unwrap());
    assert_eq!((collect(&mut m).collected, blocks.alive().len()), (2, 0));
}

/// Without a list for the second stop, all is kept.
#[test]
fn a_second_list_that_fails_keeps_the_set() {
    let heap = heap::<true>();
    let mut m = heap.attach();
    let blocks = heap.model();
    let object = blocks.new(0, FINALIZER);
    blocks.link(object, 0, object);
    blocks.when_finalized(
        object,
        Box::new(|_, m| *m.model().fault.lock().unwrap() = Some(Fault::RefusesParts)),
    );
    blocks.drop_ref(object);
    let report = m.try_collect(Collect::full()).unwrap();
    assert_eq!(report.abandoned.as_deref(), Some("no list, on purpose"));
    assert_eq!((report.unreachable, report.resurrected, report.collected), (1, 1, 0));
    *blocks.fault.lock().unwrap() = None;
    assert_eq!(shown(&mut m), BTreeMap::from([(object.address(), false)]));
    assert_eq!(collect(&mut m).collected, 1);
}

/// Between the stops of a collection another thread inspects the heap, once with success and once
/// without. The members keep their states: the recheck follows them.
#[test]
fn an_inspection_between_the_stops_of_a_collection_changes_nothing() {
    for fault in [None, Some(Fault::RefusesParts), Some(Fault::PanicsInList)] {
        let heap = heap::<false>();
        let mut m = heap.attach();
        let blocks = heap.model();
        let first = blocks.new(2, FINALIZER);
        let targets: Vec<_> = (0..5).map(|at| blocks.new(at, 0)).collect();
        for (slot, &target) in targets.iter().enumerate() {
            blocks.link(target, 0, target);
            blocks.link(first, slot, target);
            blocks.drop_ref(target);
        }
        blocks.link(first, 5, first);
        let kept = some_ring(blocks, 3);
        let other = heap.clone();
        blocks.when_finalized(
            first,
            Box::new(move |object, m| {
                *other.model().fault.lock().unwrap() = fault;
                std::thread::scope(|scope| {
                    let inspected = scope.spawn(|| {
                        let mut m = other.attach();
                        match fault {
                            None => Some(shown(&mut m)),
                            Some(_) => {
                                message(|| drop(shown(&mut m)));
                                None
                            }
                        }
                    });
                    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
                    while !inspected.is_finished() {
                        assert!(std::time::Instant::now() < until, "the inspection hangs");
                        // The inspection stops the world, and so this thread.
                        // SAFETY: in a finalizer, and no reference to an object is kept.
                        drop(unsafe { m.stop_inside() });
                    }
                    if let Some(shown) = inspected.join().unwrap() {
                        let unreachable = shown.values().filter(|&&is| is).count();
                        assert_eq!((shown.len(), unreachable), (9, 6));
                    }
                });
                *m.model().fault.lock().unwrap() = None;
                m.model().add_ref(object);
            }),
        );
        blocks.drop_ref(first);
        let report = collect(&mut m);
        assert_eq!((report.unreachable, report.resurrected, report.collected), (6, 6, 0));
        assert_eq!(blocks.alive().len(), 9, "what the resurrected object reaches");
        blocks.drop_ref(first);
        blocks.drop_ref(kept);
        assert_eq!((collect(&mut m).collected, blocks.alive().len()), (9, 0));
    }
}

/// An inspection while a collection releases its garbage shows the objects that are not released
/// yet, and a new object in the place of a released one as what it is.
#[test]
fn an_inspection_among_the_releases_shows_members_and_new_objects() {
    const GARBAGE: usize = 1_000;
    let heap = heap::<false>();
    let mut m = heap.attach();
    let blocks = heap.model();
    let objects: Vec<_> = (0..GARBAGE).map(|_| blocks.new(1, 0)).collect();
    let places = blocks.alive();
    blocks.drop_ref(ring(blocks, &objects));
    // The address of a new object.
    let new = Arc::new(AtomicUsize::new(0));
    let is_new = new.clone();
    blocks.at_release.lock().unwrap().insert(
        300,
        Box::new(move |_, m| {
            is_new.store(m.model().new(1, 0).address(), Release);
            while m.poll() & STOP == 0 {
                std::thread::yield_now();
            }
        }),
    );
    std::thread::scope(|scope| {
        let inspected = scope.spawn(|| {
            while new.load(Acquire) == 0 {
                std::thread::yield_now();
            }
            shown(&mut heap.attach())
        });
        assert_eq!(m.try_collect(Collect::full()).unwrap().collected, GARBAGE);
        let shown = m.join(inspected).unwrap();
        let new = new.load(Relaxed);
        assert!(places.contains(&new), "in the place of a released object");
        assert_eq!(shown.get(&new), Some(&false));
        assert!(shown.len() > 1 && shown.len() < GARBAGE - 298, "{}", shown.len());
        assert!(shown.iter().all(|(&at, &is)| is == (at != new)));
        assert_eq!(blocks.alive(), BTreeSet::from([new]));
        blocks.drop_ref(Object::new(pointer(new)));
    });
}

/// Several threads make and drop rings, exchange objects and collect.
#[test]
fn several_threads_and_their_collections() {
    const THREADS: usize = 4;
    let stress = Stress::none().verify(true).small_constants(true);
    let builder = builder().workers(3).serial_below(0).stress(stress);
    let heap = builder.build_with(Blocks::<false>::default()).unwrap();
    let shared = Mutex::new(Vec::<usize>::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (heap, shared) = (&heap, &shared);
            scope.spawn(move || {
                let mut m = heap.attach();
                for round in 0..400 {
                    let first = some_ring(heap.model(), 1 + round % 6);
                    let mut shared = shared.lock().unwrap();
                    shared.push(first.address());
                    if round % 3 != 0 {
                        let at = (round * 7 + thread) % shared.len();
                        let other = Object::new(pointer(shared.swap_remove(at)));
                        heap.model().drop_ref(other);
                    }
                    drop(shared);
                    m.safepoint();
                    match round % 40 {
                        20 => drop(m.try_collect(Collect::full().wait(false))),
                        30 => drop(shown(&mut m)),
                        _ => {}
                    }
                }
            });
        }
    });
    let mut m = heap.attach();
    for first in shared.into_inner().unwrap() {
        heap.model().drop_ref(Object::new(pointer(first)));
    }
    collect(&mut m);
    assert!(heap.model().alive().is_empty());
    assert!(heap.stats().collections > 4);
}
