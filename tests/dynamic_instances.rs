//! Instances: operations on them, one by one and at random, against a model of each.

#![cfg(not(loom))]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::deadline;
use standstill::dynamic::{
    self, Address, Family, Flags, RawObject, RawVarObject, Type, TypeSpec, VisitProc,
};
use standstill::{AnyGc, CallGuards, Code, During, Gc, Heap, Mutator, Pacing, Trace, Tracer};

type Ptr = NonNull<RawObject>;

fn heap(checked: bool) -> Heap {
    Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).checked(checked).build().unwrap()
}

fn live(heap: &Heap) -> usize {
    heap.stats().live_objects
}

/// A heap type with attributes and items of one byte.
fn bytes_type(m: &Mutator, change: impl FnOnce(&mut TypeSpec)) -> Type {
    let mut spec = TypeSpec::with_attributes("tests.Bytes");
    (spec.basic_size, spec.item_size) = (size_of::<RawVarObject>() as isize, 1);
    change(&mut spec);
    // SAFETY: the handlers are for attributes, which the type has.
    unsafe { dynamic::ready_heap(m, &spec, |_, _| {}) }.unwrap()
}

/// The items of an instance, which lie behind its head.
unsafe fn items<'a>(object: Ptr) -> &'a mut [u8] {
    // SAFETY: called for instances of `bytes_type`, by their one user.
    unsafe {
        let count = dynamic::Obj::new(object).size().unwrap().unsigned_abs();
        std::slice::from_raw_parts_mut(
            object.cast::<u8>().add(size_of::<RawVarObject>()).as_ptr(),
            count,
        )
    }
}

// ------------------------------------------------------------------------------------ the oracle

thread_local! {
    /// The addresses of the objects with called finalizers.
    static FINALIZED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The addresses of weak references with called callbacks.
    static CALLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn count_finalizer(object: *mut RawObject) {
    FINALIZED.with_borrow_mut(|all| all.push(object as usize));
}

unsafe extern "C" fn count_call(_: *mut RawObject, weak_ref: *mut RawObject) {
    CALLED.with_borrow_mut(|all| all.push(weak_ref as usize));
}

/// The expected state of an object.
struct Shadow {
    at: Ptr,
    bytes: Vec<u8>,
    attributes: BTreeMap<&'static str, usize>,
    finalized: bool,
    tracked: bool,
    /// Tracked by the allocator, without a later change.
    by_allocator: bool,
    /// References that the program holds.
    held: usize,
    /// Weak references to it, and whether each has a callback.
    weak: Vec<(AnyGc, bool)>,
}

struct Oracle<'h> {
    heap: &'h Heap,
    m: Mutator,
    ty: Type,
    callback: AnyGc,
    objects: BTreeMap<usize, Shadow>,
    /// Weak references without targets.
    gone: Vec<AnyGc>,
    next: usize,
    random: u64,
}

const ATTRIBUTES: [&str; 3] = ["one", "two", "three"];

impl Oracle<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n as u64) as usize
    }

    fn any(&mut self) -> Option<usize> {
        let held: Vec<usize> =
            self.objects.iter().filter(|(_, o)| o.held > 0).map(|(&id, _)| id).collect();
        if held.is_empty() { None } else { Some(held[self.below(held.len())]) }
    }

    /// References to an object: the program's, and those of attributes.
    fn count(&self, id: usize) -> usize {
        let from = |o: &Shadow| o.attributes.values().filter(|&&to| to == id).count();
        self.objects[&id].held + self.objects.values().map(from).sum::<usize>()
    }

    /// These are gone: their finalizers were called if they had not been, and the callbacks of
    /// their weak references, each once.
    fn check_dead(&mut self, dead: Vec<Shadow>) {
        let mut finalized: Vec<usize> = Vec::new();
        let mut called: Vec<usize> = Vec::new();
        for shadow in dead {
            if !shadow.finalized {
                finalized.push(shadow.at.as_ptr() as usize);
            }
            for (weak, calls) in shadow.weak {
                if calls {
                    called.push(dynamic::as_raw(&weak).as_ptr() as usize);
                }
                self.gone.push(weak);
            }
        }
        for (what, expected, found) in
            [("finalizers", finalized, FINALIZED.take()), ("callbacks", called, CALLED.take())]
        {
            let sorted = |mut all: Vec<usize>| {
                all.sort_unstable();
                all
            };
            assert_eq!(sorted(found), sorted(expected), "{what}");
        }
    }

    /// Objects without references are dead by counting, and so are objects that only they referred
    /// to.
    fn remove_dead(&mut self, mut dead: Vec<Shadow>) {
        while let Some(id) = self.objects.keys().copied().find(|&id| self.count(id) == 0) {
            dead.extend(self.objects.remove(&id));
        }
        self.check_dead(dead);
    }

    /// The objects that a program's references reach.
    fn reached(&self) -> BTreeSet<usize> {
        let mut stack: Vec<usize> = self
            .objects
            .iter()
            .filter(|(_, o)| o.held > 0 || !o.tracked)
            .map(|(&id, _)| id)
            .collect();
        let mut reached = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if reached.insert(id) {
                stack.extend(self.objects[&id].attributes.values());
            }
        }
        reached
    }

    fn act(&mut self) {
        let what = self.below(13);
        let Some(id) = self.any().filter(|_| what > 0) else {
            let (n, tracked) = (self.below(40), self.below(3) > 0);
            let at = match tracked {
                true => dynamic::allocate_tracked(&self.m, self.ty.record(), n as isize),
                false => dynamic::allocate(&self.m, self.ty.record(), n as isize, 0),
            };
            self.objects.insert(
                self.next,
                Shadow {
                    at: at.unwrap(),
                    bytes: vec![0; n],
                    attributes: BTreeMap::new(),
                    finalized: false,
                    tracked,
                    by_allocator: tracked,
                    held: 1,
                    weak: Vec::new(),
                },
            );
            self.next += 1;
            return;
        };
        let at = self.objects[&id].at;
        let name = ATTRIBUTES[self.below(3)];
        let m = &self.m;
        // SAFETY: a living object of this heap and thread, all of it.
        unsafe {
            match what {
                1..=3 => {
                    let n = (self.random as usize % 5000) >> (self.random >> 60);
                    let refused = if self.objects[&id].tracked {
                        Some(Code::TrackedResize)
                    } else if self.count(id) > 1 || !self.objects[&id].weak.is_empty() {
                        Some(Code::SharedResize)
                    } else {
                        None
                    };
                    let result = dynamic::resize(m, at, n as isize);
                    assert_eq!(result.as_ref().err().map(|fault| fault.code), refused);
                    if let Ok(new) = result {
                        let shadow = self.objects.get_mut(&id).unwrap();
                        shadow.at = new;
                        shadow.bytes.resize(n, 0);
                    }
                }
                4 => {
                    let value = self.random as u8;
                    let shadow = self.objects.get_mut(&id).unwrap();
                    if let Some(last) = shadow.bytes.last_mut() {
                        *last = value;
                        *items(at).last_mut().unwrap() = value;
                    }
                }
                5 | 6 => {
                    let to = self.any().unwrap();
                    let value = dynamic::Obj::new(self.objects[&to].at).share();
                    dynamic::Obj::new(at).set_attribute(&self.m, name, Some(value)).unwrap();
                    self.objects.get_mut(&id).unwrap().attributes.insert(name, to);
                }
                7 => {
                    let removed = self.objects.get_mut(&id).unwrap().attributes.remove(name);
                    let result = dynamic::Obj::new(at).set_attribute(m, name, None);
                    assert_eq!(
                        result.err().map(|f| f.code),
                        removed.is_none().then_some(Code::NoAttribute)
                    );
                }
                8 => {
                    let calls = self.random & 8 != 0;
                    let callback =
                        calls.then(|| (self.callback.clone(), count_call as dynamic::WeakCall));
                    let weak = dynamic::new_weakref(m, dynamic::Obj::new(at), callback).unwrap();
                    self.objects.get_mut(&id).unwrap().weak.push((weak, calls));
                }
                9 => {
                    let shadow = self.objects.get_mut(&id).unwrap();
                    let twice = shadow.tracked && !shadow.by_allocator;
                    let result = dynamic::Obj::new(at).track(m);
                    assert_eq!(result.err().map(|f| f.code), twice.then_some(Code::AlreadyTracked));
                    (shadow.tracked, shadow.by_allocator) = (true, false);
                }
                10 => {
                    dynamic::Obj::new(at).untrack(m).unwrap();
                    let shadow = self.objects.get_mut(&id).unwrap();
                    (shadow.tracked, shadow.by_allocator) = (false, false);
                }
                11 => {
                    dynamic::Obj::new(at).call_finalizer(m);
                    let shadow = self.objects.get_mut(&id).unwrap();
                    assert_eq!(FINALIZED.take().len(), usize::from(!shadow.finalized));
                    shadow.finalized = true;
                }
                _ => {
                    if self.random & 8 != 0 {
                        std::mem::forget(dynamic::Obj::new(at).share());
                        self.objects.get_mut(&id).unwrap().held += 1;
                    } else {
                        self.objects.get_mut(&id).unwrap().held -= 1;
                        drop(dynamic::from_raw(at));
                    }
                }
            }
        }
        self.remove_dead(Vec::new());
    }

    fn collect(&mut self) {
        let reached = self.reached();
        let report = self.m.collect();
        let (kept, dead): (BTreeMap<usize, Shadow>, BTreeMap<usize, Shadow>) =
            std::mem::take(&mut self.objects).into_iter().partition(|(id, _)| reached.contains(id));
        self.objects = kept;
        assert_eq!((report.collected, report.uncollectable), (dead.len(), 0));
        // Objects that only these referred to die with them, also untracked ones.
        self.remove_dead(dead.into_values().collect());
    }

    fn check(&mut self) {
        for (&id, shadow) in &self.objects {
            // SAFETY: a living object of this heap and thread, all of it.
            unsafe {
                assert_eq!(
                    dynamic::Obj::new(shadow.at).size().unwrap() as usize,
                    shadow.bytes.len()
                );
                assert_eq!(items(shadow.at), shadow.bytes, "items");
                assert_eq!(dynamic::Obj::new(shadow.at).is_tracked(&self.m), shadow.tracked);
                assert_eq!(
                    dynamic::Obj::new(shadow.at).is_finalized(&self.m),
                    shadow.finalized,
                    "finalized"
                );
                assert_eq!(
                    dynamic::Obj::new(shadow.at).count(),
                    Some(self.count(id) as i64),
                    "references"
                );
                for name in ATTRIBUTES {
                    let found = dynamic::Obj::new(shadow.at).get_attribute(&self.m, name);
                    assert_eq!(
                        dynamic::Obj::new(shadow.at).has_attribute(&self.m, name),
                        found.is_ok()
                    );
                    match shadow.attributes.get(name) {
                        Some(to) => {
                            assert_eq!(dynamic::as_raw(&found.unwrap()), self.objects[to].at)
                        }
                        None => assert_eq!(found.unwrap_err().code, Code::NoAttribute),
                    }
                }
                for (weak, _) in &shadow.weak {
                    let target =
                        dynamic::Obj::new(dynamic::as_raw(weak)).weakref_target(&self.m).unwrap();
                    assert_eq!(dynamic::as_raw(&target.expect("it lives")), shadow.at);
                }
            }
        }
        for weak in &self.gone {
            // SAFETY: a living weak reference.
            let target =
                unsafe { dynamic::Obj::new(dynamic::as_raw(weak)).weakref_target(&self.m) };
            assert!(target.unwrap().is_none());
        }
        let weak = self.gone.len() + self.objects.values().map(|o| o.weak.len()).sum::<usize>();
        // The type, and the callback.
        assert_eq!(live(self.heap), 2 + self.objects.len() + weak);
        assert_eq!(self.ty.object().unwrap().strong_count(), 1 + self.objects.len(), "of the type");
    }
}

/// Resizing, items, attributes, weak references with callbacks, tracking, finalizers and counts,
/// against plain maps.
#[test]
fn instances_agree_with_plain_maps_after_every_step() {
    let _watch = deadline("the oracle of instances");
    for seed in 1..=30u64 {
        // The memory that the end of the last heap left there.
        drop((FINALIZED.take(), CALLED.take()));
        let heap = heap(seed % 2 == 0);
        let misuses = Arc::new(AtomicUsize::new(0));
        heap.on_misuse({
            let misuses = misuses.clone();
            move |_| {
                misuses.fetch_add(1, SeqCst);
            }
        });
        let m = heap.attach();
        let ty = bytes_type(&m, |spec| spec.slots.finalize = Some(count_finalizer));
        let callback = Gc::into_any(m.alloc(0u8));
        let mut oracle = Oracle {
            heap: &heap,
            m,
            ty,
            callback,
            objects: BTreeMap::new(),
            gone: Vec::new(),
            next: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        for step in 0..300 {
            oracle.act();
            if step % 60 == 59 {
                oracle.collect();
            }
            oracle.check();
        }
        oracle.m.verify().unwrap();
        for shadow in oracle.objects.values() {
            for _ in 0..shadow.held {
                // SAFETY: the references that the program held.
                unsafe { drop(dynamic::from_raw(shadow.at)) };
            }
            // SAFETY: alive, if an attribute refers to it.
            unsafe {
                if dynamic::look_up(&oracle.m, shadow.at) == Address::Live && !shadow.tracked {
                    dynamic::Obj::new(shadow.at).track(&oracle.m).unwrap_or(());
                }
            }
        }
        oracle.m.collect();
        let Oracle { m, ty, callback, gone, objects, .. } = oracle;
        drop((ty, callback, gone, objects));
        drop(m);
        heap.attach().collect();
        assert_eq!((live(&heap), misuses.load(SeqCst)), (0, 0), "seed {seed}");
    }
}

// ------------------------------------------------------------------------------------ one by one

/// Memory that a constructor gives back: no weak reference leads to it, its callbacks are called,
/// its attributes are dropped.
#[test]
fn memory_that_is_given_back_takes_weak_references_and_attributes_along() {
    for checked in [false, true] {
        let heap = heap(checked);
        let m = heap.attach();
        let ty = bytes_type(&m, |_| {});
        let callback = Gc::into_any(m.alloc(0u8));
        let before = live(&heap);
        CALLED.take();
        // SAFETY: an object of this thread, which no other thread uses; freed once.
        unsafe {
            let object = dynamic::allocate(&m, ty.record(), 3, 0).unwrap();
            let value = Gc::into_any(m.alloc(1u8));
            dynamic::Obj::new(object).set_attribute(&m, "value", Some(value)).unwrap();
            let weak = dynamic::new_weakref(
                &m,
                dynamic::Obj::new(object),
                Some((callback.clone(), count_call)),
            )
            .unwrap();
            assert_eq!(live(&heap), before + 3);
            dynamic::free(&m, object, Family::Container).unwrap();
            assert!(
                dynamic::Obj::new(dynamic::as_raw(&weak)).weakref_target(&m).unwrap().is_none()
            );
            assert_eq!(CALLED.take(), [dynamic::as_raw(&weak).as_ptr() as usize]);
            // The weak reference is left. (`free` gives no type back: the constructor does.)
            assert_eq!(live(&heap), before + 1);
            drop(dynamic::from_raw(NonNull::new(ty.record().object()).unwrap()));
        }
    }
}

/// Checked mode: freed memory is filled with a pattern, and not used again for 4,096 objects.
#[test]
#[cfg_attr(miri, ignore = "reads freed memory")]
fn freed_memory_is_poisoned_and_rests() {
    let heap = heap(true);
    let m = heap.attach();
    let ty = bytes_type(&m, |_| {});
    // SAFETY: objects of this thread; the freed one's memory is the heap's, and mapped.
    unsafe {
        let object = dynamic::allocate(&m, ty.record(), 40, 0).unwrap();
        items(object).fill(1);
        let byte = |at: usize| object.cast::<u8>().add(at).read_volatile();
        drop(dynamic::from_raw(object));
        let head = size_of::<RawObject>();
        assert!((head..size_of::<RawVarObject>() + 40).all(|at| byte(at) == 0xde), "not poisoned");
        let another = || dynamic::allocate(&m, ty.record(), 40, 0).unwrap();
        for _ in 0..4095 {
            let next = another();
            assert_ne!(next, object, "used again");
            drop(dynamic::from_raw(next));
        }
        assert_eq!(dynamic::look_up(&m, object), Address::Freed);
        let mut came_back = false;
        for _ in 0..8192 {
            let next = another();
            came_back |= next == object;
            drop(dynamic::from_raw(next));
        }
        assert!(came_back, "the memory is lost");
    }
}

/// Checked mode: a heap without free memory reuses the memory of freed objects at once.
#[test]
fn freed_memory_rests_only_while_there_is_other_memory() {
    const ITEMS: isize = 64 << 10;
    let heap = Heap::builder()
        .reserve(16 << 20)
        .pacing(Pacing::manual())
        .checked(true)
        .build()
        .expect("a heap");
    let m = heap.attach();
    let ty = bytes_type(&m, |_| {});
    let fill = || -> Vec<AnyGc> {
        // SAFETY: objects of this thread.
        let allocate = || unsafe {
            dynamic::allocate(&m, ty.record(), ITEMS, 0)
                .ok()
                .map(|object| dynamic::from_raw(object))
        };
        std::iter::from_fn(allocate).collect()
    };
    let objects = fill();
    let number = objects.len();
    assert!(number > 100);
    drop(objects);
    assert_eq!(fill().len(), number);
}

/// A finalizer called by hand is called once, whether the type takes part in cycle collection or
/// not.
#[test]
fn a_finalizer_called_by_hand_is_called_once() {
    let heap = heap(false);
    let m = heap.attach();
    for gc in [false, true] {
        let mut spec =
            if gc { TypeSpec::with_attributes("tests.Gc") } else { TypeSpec::new("tests.Plain") };
        spec.slots.finalize = Some(count_finalizer);
        // SAFETY: the handlers are for attributes, or for any object.
        let ty = unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.unwrap();
        FINALIZED.take();
        let object = ty.instantiate(&m).unwrap();
        for calls in [1, 0, 0] {
            // SAFETY: alive.
            unsafe { dynamic::Obj::new(dynamic::as_raw(&object)).call_finalizer(&m) };
            assert_eq!(FINALIZED.take().len(), calls);
            assert!(object.is_finalized(&m));
        }
        drop(object);
        assert_eq!(FINALIZED.take().len(), 0);
    }
}

/// A value with a destructor that panics, and is counted.
struct Loud(Arc<AtomicUsize>);

impl Trace for Loud {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Loud {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        panic!("a destructor that panics");
    }
}

/// The attributes of a dying object go one by one: a panic of one leaves the others to go as well.
#[test]
fn all_attributes_of_a_dying_object_are_dropped_whichever_panics() {
    let heap = heap(false);
    let reported = Arc::new(AtomicUsize::new(0));
    heap.on_unraisable({
        let reported = reported.clone();
        move |_| {
            reported.fetch_add(1, SeqCst);
        }
    });
    let mut m = heap.attach();
    let class = dynamic::Class::new("tests.Full").make(&m).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let object = class.instantiate(&m).unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        object.set_attribute(&m, name, Some(Gc::into_any(m.alloc(Loud(dropped.clone()))))).unwrap();
    }
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(object)));
    m.collect();
    assert_eq!(dropped.load(SeqCst), 5);
    assert_eq!(
        usize::from(thrown.is_err()) + reported.load(SeqCst),
        5,
        "each panic is told, or passed on"
    );
    assert_eq!(live(&heap), 1);
}

/// An attribute that the handler sets dies with the object.
#[test]
fn attributes_are_gone_when_the_clear_handler_of_a_dying_object_runs() {
    thread_local! {
        static SEEN: Cell<usize> = const { Cell::new(0) };
    }
    unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
        Mutator::with_current(|m| {
            // SAFETY: a living or dying object.
            unsafe {
                let object = NonNull::new_unchecked(object);
                assert!(!dynamic::Obj::new(object).has_attribute(m, "value"), "there yet");
                dynamic::Obj::new(object)
                    .set_attribute(m, "late", Some(Gc::into_any(m.alloc(2u8))))
                    .unwrap();
            }
        });
        SEEN.set(SEEN.get() + 1);
        0
    }
    let heap = heap(false);
    let m = heap.attach();
    let ty = bytes_type(&m, |spec| spec.slots.clear = Some(clear));
    let before = live(&heap);
    let object = ty.instantiate(&m).unwrap();
    object.set_attribute(&m, "value", Some(Gc::into_any(m.alloc(1u8)))).unwrap();
    drop(object);
    assert_eq!((SEEN.get(), live(&heap)), (1, before));
}

// ------------------------------------------------------------------------------------ reports

/// Two fields behind the head.
#[repr(C)]
struct Pair {
    base: std::mem::MaybeUninit<RawObject>,
    fields: [Cell<*mut RawObject>; 2],
}

unsafe fn fields<'a>(object: *mut RawObject) -> &'a [Cell<*mut RawObject>; 2] {
    // SAFETY: called for living pairs.
    unsafe { &(*object.cast::<Pair>()).fields }
}

unsafe extern "C" fn pair_traverse(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a living pair; the visitor belongs to the argument.
    unsafe {
        for _ in 0..1 + usize::from(VISITS_TWICE.get()) {
            for field in fields(object).iter().filter(|field| !field.get().is_null()) {
                let result = visit(field.get(), arg);
                if result != 0 {
                    return result;
                }
            }
        }
    }
    0
}

unsafe extern "C" fn pair_clear(object: *mut RawObject) -> c_int {
    // SAFETY: a living pair, which owns its fields.
    unsafe {
        for field in fields(object) {
            if let Some(old) = NonNull::new(field.take()) {
                drop(dynamic::from_raw(old));
            }
        }
    }
    0
}

thread_local! {
    static VISITS_TWICE: Cell<bool> = const { Cell::new(false) };
    /// The objects that the next clear handlers and finalizers untrack.
    static TO_UNTRACK: Cell<*mut RawObject> = const { Cell::new(std::ptr::null_mut()) };
    static CLEARED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn pair_type(change: impl FnOnce(&mut TypeSpec)) -> Type {
    let mut spec = TypeSpec::new("tests.Pair");
    spec.basic_size = size_of::<Pair>() as isize;
    spec.flags = Flags::HAVE_GC.and(Flags::BASE_TYPE);
    spec.slots.traverse = Some(pair_traverse);
    spec.slots.clear = Some(pair_clear);
    change(&mut spec);
    // SAFETY: the handlers are a pair's.
    Type::from_static(unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap())
}

fn set(object: &AnyGc, field: usize, value: &AnyGc) {
    let value = dynamic::into_raw(value.clone());
    // SAFETY: a living pair with a null field.
    let old = unsafe { fields(dynamic::as_raw(object).as_ptr()) }[field].replace(value.as_ptr());
    assert!(old.is_null());
}

/// Two objects that refer to each other.
fn ring(m: &Mutator, ty: &Type) -> [AnyGc; 2] {
    let ring = [ty.instantiate(m).unwrap(), ty.instantiate(m).unwrap()];
    set(&ring[0], 0, &ring[1]);
    set(&ring[1], 0, &ring[0]);
    ring
}

/// A field may lead to an object of another heap: it counts as held from outside, there, and is no
/// mistake.
#[test]
fn a_field_that_leads_to_another_heap_is_no_mistake() {
    let (here, there) = (heap(true), heap(true));
    let misuses = Arc::new(Mutex::new(Vec::new()));
    here.on_misuse({
        let misuses = misuses.clone();
        move |fault| misuses.lock().unwrap().push(fault.clone())
    });
    let ty = pair_type(|_| {});
    let foreign = there.attach_scoped(|m| ty.instantiate(m).unwrap());
    let mut m = here.attach();
    let [a, b] = ring(&m, &ty);
    set(&a, 1, &foreign);
    // SAFETY: a living object of this heap.
    unsafe {
        dynamic::Obj::new(dynamic::as_raw(&a)).untrack(&m).unwrap();
        dynamic::Obj::new(dynamic::as_raw(&a)).track(&m).unwrap();
    }
    m.collect();
    drop((a, b));
    assert_eq!(m.collect().collected, 2);
    assert_eq!(misuses.lock().unwrap().len(), 0, "{:?}", misuses.lock().unwrap());
    assert_eq!(live(&there), 1);
    drop(foreign);
    drop(m);
    there.attach().safepoint();
    assert_eq!(live(&there), 0);
}

/// A mistake of a handler is reported with the type of the traversed object.
#[test]
fn a_mistake_in_a_traversal_is_reported_with_its_type() {
    unsafe extern "C" fn visits_null(
        _: *mut RawObject,
        visit: VisitProc,
        arg: *mut c_void,
    ) -> c_int {
        dynamic::record_fault(standstill::Fault::new(Code::Custom, "tests")).unwrap();
        // SAFETY: the visitor belongs to the argument.
        unsafe { visit(std::ptr::null_mut(), arg) }
    }
    let heap = heap(false);
    let misuses = Arc::new(Mutex::new(Vec::new()));
    heap.on_misuse({
        let misuses = misuses.clone();
        move |fault| misuses.lock().unwrap().push((fault.code, fault.type_name))
    });
    let mut m = heap.attach();
    let right = pair_type(|_| {}).instantiate(&m).unwrap();
    let wrong = pair_type(|spec| {
        spec.name = "tests.Wrong".into();
        spec.slots.traverse = Some(visits_null);
    });
    let wrong = wrong.instantiate(&m).unwrap();
    m.collect();
    let mut told = misuses.lock().unwrap().clone();
    told.sort_by_key(|&(code, _)| code as u32);
    told.dedup();
    let mut expected = [(Code::NullVisit, "tests.Wrong"), (Code::Custom, "tests.Wrong")];
    expected.sort_by_key(|&(code, _)| code as u32);
    assert_eq!(told, expected);
    drop((right, wrong));
}

/// An error that a handler leaves in a runtime's error indicator is reported with the place, the
/// type and the address.
#[test]
fn an_error_that_a_handler_leaves_is_reported_with_its_place() {
    thread_local! {
        static LEFT: Cell<bool> = const { Cell::new(false) };
    }
    unsafe extern "C" fn finalize_badly(_: *mut RawObject) {
        LEFT.set(true);
    }
    unsafe extern "C" fn clear_badly(object: *mut RawObject) -> c_int {
        // SAFETY: a living pair.
        unsafe { pair_clear(object) };
        LEFT.set(true);
        0
    }
    unsafe extern "C" fn call_badly(_: *mut RawObject, _: *mut RawObject) {
        LEFT.set(true);
    }
    let told = Arc::new(Mutex::new(Vec::new()));
    let new_heap = || {
        let heap = heap(false);
        let guards = CallGuards {
            enter: || LEFT.set(false),
            leave: || LEFT.take().then(|| "left behind".into()),
        };
        heap.set_call_guards(guards).unwrap();
        let others = CallGuards { enter: || (), leave: || None };
        assert!(heap.set_call_guards(others).is_err(), "the first guards stay");
        let told = told.clone();
        heap.on_unraisable(move |what| {
            assert_eq!(what.message, "left behind");
            told.lock().unwrap().push((what.during, what.type_name.clone(), what.address));
        });
        heap
    };
    let finalizes = pair_type(|spec| {
        spec.name = "tests.Finalizes".into();
        spec.slots.finalize = Some(finalize_badly);
    });
    let clears = pair_type(|spec| {
        spec.name = "tests.Clears".into();
        spec.slots.clear = Some(clear_badly);
    });
    let plain = pair_type(|_| {});
    let at = |object: &AnyGc| dynamic::as_raw(object).as_ptr() as usize;
    for (ty, during) in [(&finalizes, During::Finalize), (&clears, During::Clear)] {
        let heap = new_heap();
        let mut m = heap.attach();
        let object = ty.instantiate(&m).unwrap();
        set(&object, 0, &object);
        let expected = (during, ty.record().kept_name().into(), at(&object));
        drop(object);
        m.collect();
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert!(
            !told.is_empty() && told.iter().all(|what| *what == expected),
            "{told:?}, not {expected:?}"
        );
    }
    let heap = new_heap();
    let m = heap.attach();
    let (target, callback) = (plain.instantiate(&m).unwrap(), plain.instantiate(&m).unwrap());
    // SAFETY: alive.
    let weak = unsafe {
        dynamic::new_weakref(
            &m,
            dynamic::Obj::new(dynamic::as_raw(&target)),
            Some((callback, call_badly)),
        )
    };
    let weak = weak.unwrap();
    drop(target);
    assert_eq!(
        std::mem::take(&mut *told.lock().unwrap()),
        [(During::WeakCallback, "weakref".into(), at(&weak))]
    );
}

// ------------------------------------------------------------------------------------ collections

/// Between the two looks of a collection a handler may come to show more than its object has:
/// doubt keeps all of it.
#[test]
fn an_object_with_fewer_references_than_edges_after_the_finalizers_is_kept() {
    unsafe extern "C" fn finalize(_: *mut RawObject) {
        VISITS_TWICE.set(true);
    }
    let heap = heap(false);
    let mut m = heap.attach();
    let ty = pair_type(|spec| spec.slots.finalize = Some(finalize));
    drop(ring(&m, &ty));
    let report = m.collect();
    VISITS_TWICE.set(false);
    assert_eq!((report.finalized, report.resurrected, report.collected), (2, 2, 0));
    assert_eq!(live(&heap), 2);
    assert_eq!(m.collect().collected, 2);
}

/// An object that a finalizer untracks is neither garbage nor resurrected.
#[test]
fn an_object_that_a_finalizer_untracks_does_not_count_as_resurrected() {
    unsafe extern "C" fn finalize(_: *mut RawObject) {
        let Some(object) = NonNull::new(TO_UNTRACK.take()) else { return };
        // SAFETY: a living object.
        Mutator::with_current(|m| unsafe { dynamic::Obj::new(object).untrack(m).unwrap() });
    }
    let heap = heap(false);
    let mut m = heap.attach();
    let ty = pair_type(|spec| spec.slots.finalize = Some(finalize));
    let [a, b] = ring(&m, &ty);
    TO_UNTRACK.set(dynamic::as_raw(&b).as_ptr());
    // SAFETY: alive.
    let weak =
        unsafe { dynamic::new_weakref(&m, dynamic::Obj::new(dynamic::as_raw(&a)), None) }.unwrap();
    drop((a, b));
    let report = m.collect();
    // An untracked object counts as outside: the objects to which it refers are reachable from
    // there.
    assert_eq!((report.finalized, report.resurrected, report.collected), (2, 1, 0));
    // SAFETY: a living weak reference.
    let a = unsafe { dynamic::Obj::new(dynamic::as_raw(&weak)).weakref_target(&m) }
        .unwrap()
        .expect("it was spared");
    // SAFETY: a living pair, and the object to which its field refers.
    unsafe {
        let b = fields(dynamic::as_raw(&a).as_ptr())[0].get();
        dynamic::Obj::new(NonNull::new(b).unwrap()).track(&m).unwrap();
    }
    drop(a);
    assert_eq!(m.collect().collected, 2);
}

/// When the world cannot be stopped for the second look, everything is kept, and counted as that.
#[test]
fn objects_kept_because_the_world_cannot_be_stopped_count_as_resurrected() {
    let heap = heap(false);
    let seen = Arc::new(AtomicUsize::new(usize::MAX));
    heap.on_collection({
        let seen = seen.clone();
        move |event| {
            if let standstill::CollectionEvent::Stop(report) = event {
                seen.store(report.resurrected, SeqCst);
            }
        }
    });
    unsafe extern "C" fn finalize(_: *mut RawObject) {
        Mutator::with_current(|m| {
            let heap = m.heap().clone();
            std::thread::spawn(move || std::mem::forget(heap.attach())).join().unwrap();
        });
    }
    let mut m = heap.attach();
    let ty = pair_type(|spec| spec.slots.finalize = Some(finalize));
    let object = ty.instantiate(&m).unwrap();
    set(&object, 0, &object);
    drop(object);
    let result = m.try_collect(standstill::Collect::full());
    let resurrected =
        result.as_ref().map_or_else(|_| seen.load(SeqCst), |report| report.resurrected);
    assert_eq!(resurrected, 1, "{result:?}");
    assert_eq!(live(&heap), 1);
    std::mem::forget(m);
}

/// Weak callbacks are called in the order of their targets' addresses, by however many threads
/// these were found.
#[test]
fn weak_callbacks_come_in_the_order_of_memory() {
    thread_local! {
        static ORDER: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }
    unsafe extern "C" fn called(_: *mut RawObject, weak_ref: *mut RawObject) {
        ORDER.with_borrow_mut(|order| order.push(weak_ref as usize));
    }
    for workers in [1, 4] {
        let heap = Heap::builder()
            .reserve(1 << 30)
            .pacing(Pacing::manual())
            .workers(workers)
            .serial_below(1)
            .build()
            .unwrap();
        let mut m = heap.attach();
        let ty = pair_type(|_| {});
        let callback = ty.instantiate(&m).unwrap();
        // Several pages of them, so that there is something to share.
        let mut weak = BTreeMap::new();
        let targets: Vec<AnyGc> = (0..20_000).map(|_| ty.instantiate(&m).unwrap()).collect();
        for (at, target) in targets.iter().enumerate() {
            set(target, 0, target);
            if at % 10 == 0 {
                let callback = Some((callback.clone(), called as dynamic::WeakCall));
                // SAFETY: alive.
                let made = unsafe {
                    dynamic::new_weakref(&m, dynamic::Obj::new(dynamic::as_raw(target)), callback)
                }
                .unwrap();
                weak.insert(dynamic::as_raw(target), made);
            }
        }
        drop(targets);
        assert_eq!(m.collect().collected, 20_000);
        let expected: Vec<usize> =
            weak.values().map(|weak| dynamic::as_raw(weak).as_ptr() as usize).collect();
        assert!(ORDER.take() == expected, "with {workers} workers");
    }
}

#[test]
fn an_object_that_a_clear_handler_untracks_is_not_cleared() {
    unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
        CLEARED.with_borrow_mut(|all| all.push(object as usize));
        if let Some(other) = NonNull::new(TO_UNTRACK.take()) {
            // SAFETY: a living object.
            Mutator::with_current(|m| unsafe { dynamic::Obj::new(other).untrack(m).unwrap() });
        }
        // SAFETY: a living pair.
        unsafe { pair_clear(object) }
    }
    unsafe extern "C" fn dealloc(object: *mut RawObject) {
        // SAFETY: a dying pair.
        unsafe {
            Mutator::with_current(|m| {
                let this = NonNull::new_unchecked(object);
                dynamic::Obj::new(this).untrack(m).unwrap();
                pair_clear(object);
                dynamic::free(m, this, Family::Container).unwrap();
            });
        }
    }
    let heap = heap(false);
    let mut m = heap.attach();
    let ty = pair_type(|spec| {
        spec.slots.clear = Some(clear);
        spec.slots.dealloc = Some(dealloc);
    });
    let mut ring = ring(&m, &ty);
    // The one at the lower address is cleared first.
    ring.sort_by_key(dynamic::as_raw);
    let first = dynamic::as_raw(&ring[0]).as_ptr();
    TO_UNTRACK.set(dynamic::as_raw(&ring[1]).as_ptr());
    drop(ring);
    let report = m.collect();
    assert_eq!(CLEARED.take(), [first as usize]);
    assert_eq!((report.collected, live(&heap)), (2, 0));
}
