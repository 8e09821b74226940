//! Every byte of an object belongs to that object alone: around each size at which something
//! changes (a cell of another size, a run of pages of its own, one page more), for both faces, with
//! and without checked mode, poison and quarantine.
//!
//! The heap's cells are no blocks of malloc, so a sanitizer does not see one object write into
//! another. Each test therefore fills every byte of its objects, makes, resizes and frees the
//! neighbours, and checks everything again: fields, attributes, weak references, and through
//! `verify` the headers of the pages.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::time::Duration;

use common::{deadline, is_full};
use standstill::dynamic::{self, Flags, RawObject, Type, TypeSpec, VisitProc};
use standstill::{
    AnyGc, Code, Gc, GcSlice, HeaderSlice, Heap, HeapBuilder, Mutator, OutOfMemory, Pacing, Stress,
    Thresholds, Trace,
};

/// A page's size, which the documentation of `HeapBuilder::limit` states.
const PAGE: usize = 64 << 10;
/// Pages beyond those that a small heap keeps resident when they are free: to free such a run
/// zeroes its memory.
const WIDE: usize = 20 * PAGE;
/// Bytes at the start of a dynamic object that the tests leave alone: header and type, and the
/// number of items.
const HEAD: usize = size_of::<dynamic::RawVarObject>();

/// The modes that treat freed memory differently.
const MODES: [&str; 3] = ["plain", "checked", "poison and quarantine"];

fn heap(mode: &str) -> Heap {
    let builder =
        Heap::builder().reserve(1 << 28).pacing(Pacing::manual()).checked(mode == "checked");
    let watched = Stress::none().poison(true).quarantine(3);
    let stress = if mode == "poison and quarantine" { watched } else { Stress::none() };
    builder.stress(stress).build().unwrap()
}

/// The sizes behind which an object takes more memory. The test finds them by the heap's own
/// figures.
fn boundaries() -> BTreeSet<usize> {
    let heap = heap("plain");
    let m = heap.attach();
    let kind = Kind { part: Part::Items(1), gc: false, dict: false };
    let record = kind.new_type(&m, 0);
    let taken = |size: usize| {
        let before = heap.stats().live_bytes;
        let _object = kind.make(&m, &record, size, 0);
        heap.stats().live_bytes - before
    };
    let mut last = taken(HEAD);
    let mut found = BTreeSet::new();
    // An object begins on a multiple of 32 bytes, so nothing changes in between.
    for size in (HEAD..=2 * PAGE + 256).step_by(32) {
        let now = taken(size);
        assert!(now >= size, "{size} bytes do not fit into {now}");
        if now != last {
            found.insert(size - 32);
        }
        last = now;
    }
    found
}

/// All tested sizes: those next to a boundary, by bytes and by words, and every small one. Where
/// they are not fine, a third of them unless the run is a full one.
fn sizes(boundaries: &BTreeSet<usize>, fine: bool) -> BTreeSet<usize> {
    let runs = boundaries.iter().filter(|&&size| size > PAGE / 2).count();
    assert!(boundaries.len() >= 40 && runs >= 2, "{boundaries:?}");
    let mut sizes: BTreeSet<usize> =
        if fine { (HEAD..200).collect() } else { (HEAD..200).step_by(8).collect() };
    // The length of a run with its header too: the boundaries found are without.
    for boundary in boundaries.iter().copied().chain([PAGE, 2 * PAGE]) {
        let near: &[usize] =
            if fine { &[0, 1, 7, 8, 9, 16, 24, 31, 32, 40, 63, 64, 72] } else { &[0, 8, 32, 64] };
        sizes.extend(near.iter().map(|by| boundary + by));
        sizes.extend(
            near.iter().filter_map(|by| boundary.checked_sub(*by)).filter(|&size| size >= HEAD),
        );
    }
    sizes.into_iter().step_by(if fine || is_full() { 1 } else { 3 }).collect()
}

// -------------------------------------------------------------------------------- the dynamic face

/// Where the bytes of an object come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// Items of this size.
    Items(usize),
    /// Bytes that the allocation asked for.
    Extra,
    /// The type's basic size.
    Basic,
    /// Bytes that the type asked for behind its base.
    Data,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    part: Part,
    gc: bool,
    dict: bool,
}

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    // SAFETY: called for living objects.
    unsafe {
        let this = NonNull::new_unchecked(object);
        let result = visit(dynamic::Obj::new(this).record().object(), arg);
        if result != 0 {
            result
        } else {
            dynamic::Obj::new(this).visit_managed_dict(dynamic::Visitor::new(visit, arg))
        }
    }
}

unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
    // SAFETY: called for living objects.
    unsafe { dynamic::Obj::new(NonNull::new_unchecked(object)).clear_managed_dict() };
    0
}

impl Kind {
    fn all() -> impl Iterator<Item = Self> {
        let parts = [Part::Items(1), Part::Items(24), Part::Extra, Part::Basic, Part::Data];
        parts.into_iter().flat_map(|part| {
            // Extra bytes exist for types that take part in cycle collection, dictionaries too.
            let modes: &[(bool, bool)] = if part == Part::Extra {
                &[(true, false), (true, true)]
            } else {
                &[(false, false), (true, false), (true, true)]
            };
            modes.iter().map(move |&(gc, dict)| Self { part, gc, dict })
        })
    }

    fn new_type(self, m: &Mutator, size: usize) -> Type {
        let mut spec = TypeSpec::new("tests.Sized");
        spec.basic_size = HEAD as isize;
        match self.part {
            Part::Items(unit) => spec.item_size = unit as isize,
            Part::Extra => {}
            Part::Basic => spec.basic_size = size as isize,
            Part::Data => spec.basic_size = -(size.saturating_sub(HEAD).max(1) as isize),
        }
        if self.gc {
            spec.flags = Flags::HAVE_GC;
            spec.slots.traverse = Some(traverse);
            spec.slots.clear = Some(clear);
        }
        if self.dict {
            spec.flags = spec.flags.and(Flags::MANAGED_DICT);
        }
        // SAFETY: the handlers fit any object.
        unsafe { dynamic::ready_heap(m, &spec, |_, _| {}) }.unwrap()
    }

    /// Whether its objects can be given any other number of bytes.
    fn is_resizable(self) -> bool {
        self.gc && self.part == Part::Items(1)
    }

    /// Whether the size is the type's.
    fn is_in_type(self) -> bool {
        matches!(self.part, Part::Basic | Part::Data)
    }

    /// An object of about `size` bytes, all of them filled.
    fn make(self, m: &Mutator, of: &Type, size: usize, fill: u8) -> Filled {
        let record = of.record();
        // SAFETY: a ready type; the reference goes over.
        let gc = unsafe {
            dynamic::from_raw(
                match self.part {
                    Part::Items(unit) => {
                        dynamic::allocate(m, record, ((size - HEAD) / unit) as isize, 0)
                    }
                    Part::Extra => dynamic::allocate(m, record, 0, size - HEAD),
                    Part::Basic | Part::Data => dynamic::allocate_tracked(m, record, 0),
                }
                .unwrap(),
            )
        };
        let end = match self.part {
            Part::Items(unit) => HEAD + (size - HEAD) / unit * unit,
            Part::Extra => size,
            Part::Basic | Part::Data => record.basic_size(),
        };
        let mut object = Filled { gc: Some(gc), end, fill: 0, value: None, weak: None };
        object.check(m, "new");
        object.fill(fill);
        if self.gc && !self.is_in_type() {
            // SAFETY: a living object, untracked, that can be traversed.
            unsafe { dynamic::Obj::new(object.raw()).track(m) }.unwrap();
        }
        if self.dict {
            object.value = Some(AnyGc::from(m.alloc(u64::from(fill))));
            // SAFETY: a living object.
            unsafe {
                dynamic::Obj::new(object.raw()).set_attribute(m, "value", object.value.clone())
            }
            .unwrap();
        }
        object
    }
}

/// Whether all bytes are alike. By one comparison of memory: a loop takes long without
/// optimization.
fn is_all(bytes: &[u8], fill: u8) -> bool {
    bytes.first().is_none_or(|&first| first == fill && bytes[1..] == bytes[..bytes.len() - 1])
}

/// An object, and all that is known of it.
struct Filled {
    /// `None`: it is dead.
    gc: Option<AnyGc>,
    /// From `HEAD` to here its bytes are its user's.
    end: usize,
    fill: u8,
    value: Option<AnyGc>,
    weak: Option<AnyGc>,
}

impl Filled {
    fn raw(&self) -> NonNull<RawObject> {
        dynamic::as_raw(self.gc.as_ref().unwrap())
    }

    fn bytes(&self) -> &[u8] {
        let (start, len) = (self.raw().cast::<u8>(), self.end.saturating_sub(HEAD));
        // SAFETY: the object is alive, has so many bytes, and is this thread's.
        unsafe { std::slice::from_raw_parts(start.add(HEAD).as_ptr(), len) }
    }

    fn fill(&mut self, fill: u8) {
        self.fill = fill;
        // SAFETY: as in `bytes`.
        unsafe {
            self.raw().cast::<u8>().add(HEAD).write_bytes(fill, self.end.saturating_sub(HEAD))
        };
    }

    fn check(&self, m: &Mutator, when: &str) {
        let bytes = self.bytes();
        if !is_all(bytes, self.fill) {
            let at = bytes.iter().position(|&byte| byte != self.fill).unwrap();
            panic!(
                "{when}: byte {} of {} is {:#04x}, and not {:#04x}",
                HEAD + at,
                self.end,
                bytes[at],
                self.fill
            );
        }
        if let Some(value) = &self.value {
            // SAFETY: a living object.
            let found = unsafe { dynamic::Obj::new(self.raw()).get_attribute(m, "value") };
            let found =
                found.unwrap_or_else(|fault| panic!("{when}: the attribute is lost: {fault}"));
            assert!(found == *value, "{when}: another attribute");
        }
        if let Some(weak) = &self.weak {
            // SAFETY: a living weak reference.
            let target =
                unsafe { dynamic::Obj::new(dynamic::as_raw(weak)).weakref_target(m) }.unwrap();
            assert!(
                target.is_some_and(|target| target == *self.gc.as_ref().unwrap()),
                "{when}: weak"
            );
        }
    }

    /// With a weak reference that leads to it. It cannot be resized any more.
    fn with_weak(mut self, m: &Mutator) -> Self {
        // SAFETY: a living object to which there is a reference.
        self.weak =
            Some(unsafe { dynamic::new_weakref(m, dynamic::Obj::new(self.raw()), None) }.unwrap());
        self
    }

    fn end(mut self, m: &Mutator) {
        drop(self.gc.take());
        if let Some(weak) = &self.weak {
            // SAFETY: a living weak reference.
            let target =
                unsafe { dynamic::Obj::new(dynamic::as_raw(weak)).weakref_target(m) }.unwrap();
            assert!(target.is_none(), "a dead object is found");
        }
    }

    /// Another number of items, each of them one byte.
    fn resize(&mut self, m: &Mutator, size: usize) {
        let (kept, fill) = (self.end.min(size), self.fill);
        // SAFETY: a living object of this thread, to which this is the only reference.
        unsafe {
            dynamic::Obj::new(self.raw()).untrack(m).unwrap();
            let old = dynamic::into_raw(self.gc.take().unwrap());
            let new = dynamic::resize(m, old, (size - HEAD) as isize).unwrap();
            self.gc = Some(dynamic::from_raw(new));
            self.end = size;
            let bytes = self.bytes();
            assert!(is_all(&bytes[..kept - HEAD], fill), "an old item has changed");
            assert!(is_all(&bytes[kept - HEAD..], 0), "a new item is not zero");
            self.fill(fill);
            dynamic::Obj::new(self.raw()).track(m).unwrap();
        }
    }
}

/// Objects of one size as each other's neighbours, while some of them go and come.
fn dynamic_neighbours(m: &mut Mutator, kind: Kind, of: &Type, size: usize) {
    let make = |m: &Mutator, size, fill| kind.make(m, of, size, fill);
    // The memory of a wide neighbour goes back to the system when that is freed, and reads as zero:
    // a write behind the end of the object before it is lost.
    let wide = Kind { part: Part::Items(1), gc: true, dict: false };
    let wide_type = (size > PAGE / 2 - 256).then(|| wide.new_type(m, 0));
    let a = make(m, size, 0xa1).with_weak(m);
    let behind = wide_type.as_ref().map(|of| wide.make(m, of, WIDE, 0xee));
    let b = make(m, size, 0xb2);
    let mut c = make(m, size, 0xc3);
    let d = make(m, size, 0xd4).with_weak(m);
    let all = |m: &Mutator, objects: &[&Filled], when| {
        objects.iter().for_each(|object| object.check(m, when))
    };
    all(m, &[&a, &b, &c, &d], "made");
    behind.into_iter().for_each(|behind| behind.end(m));
    all(m, &[&a, &b, &c, &d], "after the end of a wide neighbour");
    b.end(m);
    verify_at_times(m, size);
    all(m, &[&a, &c, &d], "after the end of the second");
    let b = make(m, size, 0x5b);
    all(m, &[&a, &b, &c, &d], "after a new second");
    if kind.is_resizable() {
        for size in [size + 8, size.saturating_sub(8).max(HEAD), size + 33, size] {
            c.resize(m, size);
            all(m, &[&a, &b, &c, &d], "after another size");
        }
    }
    a.end(m);
    all(m, &[&b, &c, &d], "after the end of the first");
    [b, c, d].into_iter().for_each(|object| object.end(m));
}

/// `verify` examines every granule of the heap, so not each time.
fn verify_at_times(m: &mut Mutator, size: usize) {
    if size.is_multiple_of(if size > PAGE / 2 - 256 { 40 } else { 512 }) {
        m.verify().unwrap();
    }
}

/// Runs `f` for each size, and says for which one it failed.
fn each(what: &str, sizes: &BTreeSet<usize>, mut f: impl FnMut(usize)) {
    for &size in sizes {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| f(size))) {
            eprintln!("{what}, {size} bytes");
            resume_unwind(payload);
        }
    }
}

fn dynamic_objects(mode: &str) {
    let _watch = deadline("dynamic sizes");
    let boundaries = boundaries();
    for kind in Kind::all() {
        let heap = heap(mode);
        let mut m = heap.attach();
        let shared = (!kind.is_in_type()).then(|| kind.new_type(&m, 0));
        let fine = kind.part == Part::Items(1) && (mode == MODES[0] || is_full());
        each(&format!("{kind:?}"), &sizes(&boundaries, fine), |size| {
            let own = shared.is_none().then(|| kind.new_type(&m, size));
            dynamic_neighbours(&mut m, kind, shared.as_ref().or(own.as_ref()).unwrap(), size);
        });
        drop(shared);
        m.collect();
        assert_eq!(heap.stats().live_objects, 0, "{kind:?}");
        m.verify().unwrap();
    }
}

#[test]
fn every_byte_of_a_dynamic_object_is_its_own() {
    dynamic_objects(MODES[0]);
}

#[test]
fn every_byte_of_a_dynamic_object_is_its_own_in_checked_mode() {
    dynamic_objects(MODES[1]);
}

#[test]
fn every_byte_of_a_dynamic_object_is_its_own_under_poison() {
    dynamic_objects(MODES[2]);
}

/// Freed memory that checked mode keeps counts as free where there is no other, for both faces.
#[test]
fn checked_mode_gives_freed_memory_back_before_memory_is_refused() {
    let heap =
        Heap::builder().limit(40 * PAGE).pacing(Pacing::manual()).checked(true).build().unwrap();
    let m = heap.attach();
    let kind = Kind { part: Part::Items(1), gc: true, dict: true };
    let of = kind.new_type(&m, 0);
    for size in [100, 5_000, 40_000, 100_000, WIDE] {
        // All of the memory, several times over.
        for round in 0..(5 * 40 * PAGE / size).min(3_000) {
            kind.make(&m, &of, size, round as u8).end(&m);
        }
    }
    let few: Vec<_> = (0..300).map(|_| kind.make(&m, &of, 4_000, 1)).collect();
    few.into_iter().for_each(|object| object.end(&m));
    drop(m.try_alloc_slice((), std::iter::repeat_n(0u64, 37 * PAGE / 8)).unwrap());
}

// ---------------------------------------------------------------------------------- the typed face

/// Bytes at any alignment: a slice of these has a gap behind its header where the alignment asks
/// for one.
macro_rules! aligned {
    ($($name:ident $align:literal)*) => {$(
        #[derive(Trace, Clone, Copy, PartialEq, Debug)]
        #[repr(align($align))]
        struct $name(#[trace(skip)] [u8; $align]);

        #[allow(dead_code)]
        impl $name {
            fn of(fill: u8) -> Self {
                Self([fill; $align])
            }
        }
    )*};
}

aligned! { A1 1 A8 8 A32 32 A64 64 A128 128 A4096 4096 A32768 32768 }

/// Slices of one length as each other's neighbours, while some of them go and come.
fn slice_neighbours<H, T>(m: &mut Mutator, size: usize, header: fn(u8) -> H, item: fn(u8) -> T)
where
    H: Trace + Copy + PartialEq + Send + Sync + 'static,
    T: Trace + Copy + PartialEq + Send + Sync + 'static,
{
    let before = 24_usize.next_multiple_of(align_of::<HeaderSlice<H, [T; 0]>>());
    let len = size.saturating_sub(before + size_of::<H>()) / size_of::<T>();
    let make =
        |m: &Mutator, fill| m.alloc_slice(header(fill), std::iter::repeat_n(item(fill), len));
    let check = |_: &Mutator, slices: &[(&GcSlice<H, T>, u8)]| {
        for &(slice, fill) in slices {
            let value = slice;
            let address = (&raw const value.items).addr();
            assert_eq!((value.items.len(), address % align_of::<T>()), (len, 0));
            assert_eq!((&raw const value.header).addr() % align_of::<H>(), 0);
            assert!(value.header == header(fill), "the header of {fill:#04x}");
            let same = value.items.first().is_none_or(|first| *first == item(fill));
            assert!(same && is_all_alike(&value.items), "an item of {fill:#04x}");
        }
    };
    let (a, b, c) = (make(m, 0xa1), make(m, 0xb2), make(m, 0xc3));
    check(m, &[(&a, 0xa1), (&b, 0xb2), (&c, 0xc3)]);
    drop(b);
    check(m, &[(&a, 0xa1), (&c, 0xc3)]);
    let b = make(m, 0x5b);
    check(m, &[(&a, 0xa1), (&b, 0x5b), (&c, 0xc3)]);
    drop(a);
    verify_at_times(m, size);
    check(m, &[(&b, 0x5b), (&c, 0xc3)]);
}

/// Whether all items have the same bytes, by one comparison of memory. The types above have no
/// padding.
fn is_all_alike<T>(items: &[T]) -> bool {
    // SAFETY: items without padding.
    let bytes =
        unsafe { std::slice::from_raw_parts(items.as_ptr().cast::<u8>(), size_of_val(items)) };
    bytes.len() < 2 * size_of::<T>()
        || bytes[size_of::<T>()..] == bytes[..bytes.len() - size_of::<T>()]
}

/// Stack for values of 32 KiB, which unoptimised code copies in each of many frames.
const DEEP: usize = 16 << 20;

#[test]
fn every_byte_of_a_slice_is_its_own() {
    let _watch = deadline("sizes of slices");
    let thread = std::thread::Builder::new().stack_size(DEEP);
    thread.spawn(every_slice_in_each_mode).unwrap().join().unwrap();
}

fn every_slice_in_each_mode() {
    let boundaries = boundaries();
    for mode in MODES {
        let heap = heap(mode);
        let mut m = heap.attach();
        let mut all = |what: &str, fine, f: &mut dyn FnMut(&mut Mutator, usize)| {
            let fine = fine && (mode == MODES[0] || is_full());
            each(&format!("{mode}, {what}"), &sizes(&boundaries, fine), |size| f(&mut m, size));
        };
        all("bytes behind a word", false, &mut |m, size| {
            slice_neighbours(m, size, u64::from, |f| f)
        });
        all("words", true, &mut |m, size| slice_neighbours(m, size, A1::of, A8::of));
        all("one cell", true, &mut |m, size| slice_neighbours(m, size, A8::of, A32::of));
        all("cache lines", false, &mut |m, size| slice_neighbours(m, size, A1::of, A64::of));
        all("bytes behind a cache line", false, &mut |m, size| {
            slice_neighbours(m, size, A64::of, A1::of)
        });
        all("two cache lines", false, &mut |m, size| slice_neighbours(m, size, A64::of, A128::of));
        all("pages of the system", false, &mut |m, size| {
            slice_neighbours(m, size, A8::of, A4096::of)
        });
        all("half pages", false, &mut |m, size| slice_neighbours(m, size, A8::of, A32768::of));
        m.collect();
        assert_eq!(heap.stats().live_objects, 0, "{mode}");
    }
}

macro_rules! each_value {
    ($m:ident, $($len:expr)*) => {$( values::<{ $len }>($m); )*};
}

/// Values of a size that the compiler knows.
fn values<const N: usize>(m: &mut Mutator) {
    let make = |m: &Mutator, fill| m.alloc([fill; N]);
    let check = |_: &Mutator, all: &[(&Gc<[u8; N]>, u8)]| {
        all.iter().for_each(|&(gc, fill)| assert!(is_all(&**gc, fill), "{N} bytes of {fill:#04x}"));
    };
    let (a, b, c) = (make(m, 0xa1), make(m, 0xb2), make(m, 0xc3));
    drop(b);
    check(m, &[(&a, 0xa1), (&c, 0xc3)]);
    let b = make(m, 0x5b);
    drop(a);
    m.verify().unwrap();
    check(m, &[(&b, 0x5b), (&c, 0xc3)]);
}

#[test]
fn every_byte_of_a_value_is_its_own() {
    let _watch = deadline("sizes of values");
    for mode in MODES {
        let heap = heap(mode);
        let m = &mut heap.attach();
        // With the 16 bytes of the header: around one and several granules, the largest cell, one
        // page, and two.
        each_value!(m, 0 1 7 8 15 16 17 24 47 48 49 111 112 113 495 496 497 511 512 513);
        const HALF: usize = PAGE / 2;
        each_value!(m, HALF - 81 HALF - 80 HALF - 49 HALF - 48 HALF - 47 HALF - 16 HALF);
        each_value!(m, PAGE - 88 PAGE - 81 PAGE - 80 PAGE - 79 PAGE - 17 PAGE - 16 PAGE - 15);
        each_value!(m, PAGE PAGE + 1);
        const TWO: usize = 2 * PAGE;
        each_value!(m, TWO - 88 TWO - 81 TWO - 80 TWO - 79 TWO - 16 TWO - 15);
    }
}

// ------------------------------------------------------------------------- numbers that users give

/// Iterators that do not keep their word about how many items they have.
struct Liar {
    says: usize,
    has: usize,
    made: std::sync::Arc<()>,
}

impl Iterator for Liar {
    type Item = std::sync::Arc<()>;

    fn next(&mut self) -> Option<Self::Item> {
        self.has = self.has.checked_sub(1)?;
        Some(self.made.clone())
    }
}

impl ExactSizeIterator for Liar {
    fn len(&self) -> usize {
        self.says
    }
}

#[test]
fn a_slice_has_as_many_items_as_were_promised_or_none() {
    let heap = heap("plain");
    let m = heap.attach();
    let made = std::sync::Arc::new(());
    let liar = |says, has| Liar { says, has, made: made.clone() };
    for (says, has) in [(1, 0), (5, 4), (100_000, 99_999)] {
        let Err(payload) = catch_unwind(AssertUnwindSafe(|| m.alloc_slice(0u8, liar(says, has))))
        else {
            panic!("{has} items instead of {says}");
        };
        let text = payload.downcast_ref::<String>().unwrap();
        assert!(
            text.contains(&format!("returned {has} items, but its length was {says}")),
            "{text}"
        );
        assert_eq!(std::sync::Arc::strong_count(&made), 1, "an item was lost");
        assert_eq!(heap.stats().live_objects, 0);
    }
    for (says, has) in [(0, 1), (4, 5)] {
        let slice = m.alloc_slice(0u8, liar(says, has));
        assert_eq!(slice.items.len(), says);
        drop(slice);
        assert_eq!(std::sync::Arc::strong_count(&made), 1, "an item was lost");
    }
    // A slice that no memory can hold is refused before the iterator is asked for an item, and the
    // iterator comes back.
    for says in
        [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8, isize::MAX as usize / 8 - 9, 1 << 40]
    {
        let refused = m.try_alloc_slice(0u8, liar(says, usize::MAX)).unwrap_err();
        assert!(
            matches!(refused.reason(), OutOfMemory::TooLarge { size } if size >= says),
            "{refused}"
        );
        assert_eq!(refused.into_inner().1.has, usize::MAX);
    }
}

#[test]
fn a_type_of_a_size_that_no_instance_can_have_is_refused() {
    let heap = heap("plain");
    let m = heap.attach();
    let make = |change: &dyn Fn(&mut TypeSpec)| {
        let mut spec = TypeSpec::new("tests.Huge");
        spec.flags = Flags::BASE_TYPE;
        change(&mut spec);
        // SAFETY: no handlers.
        unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.map_err(|fault| fault.code)
    };
    let most = isize::MAX / 2;
    for asked in [most + 1, isize::MAX, -most, -most - 1, isize::MIN + 1, isize::MIN] {
        let refused = make(&|spec| spec.basic_size = asked).unwrap_err();
        assert_eq!(refused, Code::BadSize, "{asked} bytes");
    }
    // Each part fits, and together they do not.
    let half = make(&|spec| spec.basic_size = -(most / 2)).unwrap();
    assert!(half.record().basic_size() > most as usize / 2);
    let derived = make(&|spec| {
        spec.basic_size = -(most / 2);
        spec.bases = vec![half.clone()];
    });
    assert_eq!(derived.unwrap_err(), Code::BadSize);
    let refused = dynamic::allocate(&m, half.record(), 0, 0).unwrap_err();
    assert_eq!(refused.code, Code::Memory);
    for face in [usize::MAX, usize::MAX - 7, 1 << 63, isize::MAX as usize / 2 + 1] {
        assert_eq!(
            make(&|spec| spec.face_size = face).unwrap_err(),
            Code::BadSize,
            "a face of {face} bytes"
        );
    }
    assert_eq!(make(&|spec| spec.face_size = 1 << 45).unwrap_err(), Code::Memory);
    // Items that are references are read word by word.
    for (basic, item) in [(32, 1), (32, 16), (33, 8), (36, 8)] {
        let refused = make(&|spec| {
            (spec.basic_size, spec.item_size) = (basic, item);
            spec.flags = spec.flags.and(Flags::ITEMS_ARE_REFERENCES);
        });
        assert_eq!(refused.unwrap_err(), Code::BadSize, "{item} bytes an item, behind {basic}");
    }
    drop(half);
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn an_instance_of_a_size_that_no_memory_has_is_refused() {
    for mode in MODES {
        let heap = heap(mode);
        let m = heap.attach();
        for unit in [1, 8, 24, 1 << 40, isize::MAX] {
            let kind = Kind { part: Part::Items(unit as usize), gc: true, dict: true };
            let of = kind.new_type(&m, 0);
            let allocate = |items, extra| dynamic::allocate(&m, of.record(), items, extra);
            for items in [-1, isize::MIN] {
                assert_eq!(
                    allocate(items, 0).unwrap_err().code,
                    Code::BadSize,
                    "{items} items of {unit} bytes"
                );
            }
            let fits = isize::MAX / 2 / unit;
            for items in [
                fits - 8,
                fits,
                fits + 1,
                isize::MAX / unit,
                usize::MAX as isize / unit,
                isize::MAX - 1,
                isize::MAX,
            ] {
                if items > 1 << 30 || unit > 1 << 32 && items > 0 {
                    let refused = allocate(items, 0).unwrap_err();
                    assert_eq!(refused.code, Code::Memory, "{items} items of {unit} bytes");
                }
            }
        }
        let kind = Kind { part: Part::Extra, gc: true, dict: true };
        let of = kind.new_type(&m, 0);
        for extra in [
            usize::MAX,
            usize::MAX - 7,
            usize::MAX - 40,
            isize::MAX as usize,
            isize::MAX as usize / 2,
            1 << 47,
        ] {
            let refused = dynamic::allocate(&m, of.record(), 0, extra).unwrap_err();
            assert_eq!(refused.code, Code::Memory, "{extra} bytes behind it");
        }
    }
}

#[test]
fn a_resize_copies_no_more_than_the_object_has_if_its_number_of_items_is_wrong() {
    for (mode, dict) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let heap = heap(mode);
        let m = heap.attach();
        let kind = Kind { part: Part::Items(1), gc: true, dict };
        let of = kind.new_type(&m, 0);
        for size in [100, 5_000, PAGE - 100] {
            let mut object = kind.make(&m, &of, size, 0x77);
            let neighbour = kind.make(&m, &of, size, 0x88);
            // SAFETY: an object with items, which is this thread's.
            let count = unsafe { object.raw().add(1).cast::<isize>().as_mut() };
            let before = *count;
            // SAFETY: a living object of this thread, to which this is the only reference; it stays
            // as it is when this fails.
            unsafe { dynamic::Obj::new(object.raw()).untrack(&m) }.unwrap();
            for wrong in [size as isize * 2 + 100, isize::MAX, isize::MIN] {
                *count = wrong;
                // SAFETY: an untracked object of this thread, which stays as it is when this
                // fails.
                let refused = unsafe { dynamic::resize(&m, object.raw(), 10) }.unwrap_err();
                assert_eq!(refused.code, Code::BadSize);
                assert!(refused.text.contains(&wrong.to_string()), "{refused}");
            }
            *count = before;
            for wrong in [-1, isize::MIN, isize::MAX, isize::MAX / 2] {
                // SAFETY: an untracked object of this thread, which stays as it is when this
                // fails.
                let refused = unsafe { dynamic::resize(&m, object.raw(), wrong) }.unwrap_err();
                let code = if wrong < 0 { Code::BadSize } else { Code::Memory };
                assert_eq!(refused.code, code, "{wrong} items");
            }
            object.check(&m, "after refusals");
            object.resize(&m, size + 9);
            object.check(&m, "after another size");
            neighbour.check(&m, "beside them");
        }
    }
}

#[test]
fn a_heap_works_with_any_numbers_in_its_builder() {
    let _watch = deadline("numbers of builders");
    let edge = [0, 1, 2, PAGE, usize::MAX / 2, usize::MAX - 1, usize::MAX];
    let times = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    let small = || Heap::builder().reserve(1 << 26).workers(2);
    let mut heaps: Vec<(String, Heap)> = Vec::new();
    let mut add = |what: String, builder: HeapBuilder| heaps.push((what, builder.build().unwrap()));
    for number in edge {
        add(format!("serial_below {number}"), small().serial_below(number));
        let watched = Stress::none().poison(true).quarantine(number);
        add(format!("quarantine {number}"), small().limit(8 * PAGE).stress(watched));
        for growth in [0.0, 1.0, f64::MAX, f64::INFINITY] {
            let pacing = Pacing::default().with_young_objects(number).with_young_bytes(number);
            add(
                format!("pacing {number}, {growth}"),
                small().pacing(pacing.with_full_growth(growth)),
            );
            add(
                format!("minimum {number}"),
                small().pacing(Pacing::default().with_full_minimum(number)),
            );
        }
        if number >= PAGE {
            add(format!("limit {number}"), small().limit(number));
            add(format!("reserve {number}"), small().reserve(number));
        } else {
            let refused = small().limit(number).build().unwrap_err();
            assert!(refused.to_string().contains("`limit`"), "{refused}");
            let refused = small().reserve(number).build().unwrap_err();
            assert!(refused.to_string().contains("`reserve`"), "{refused}");
        }
    }
    for number in [0, 1, 2, u32::MAX - 1, u32::MAX] {
        let thresholds = Thresholds { t0: number, t1: number, t2: number };
        add(
            format!("thresholds {number}"),
            small().pacing(Pacing::default().with_thresholds(thresholds)),
        );
        let stress = Stress::none().collect_at_safepoints(number);
        add(format!("every {number}th safepoint"), small().stress(stress));
    }
    for time in times {
        add(format!("slow_stop {time:?}"), small().slow_stop(time));
        add(format!("slow_handler {time:?}"), small().slow_handler(time));
    }
    for (what, heap) in heaps {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut m = heap.attach();
            for _ in 0..3 {
                for at in 0..200u64 {
                    // A heap of one page has no room for both sizes.
                    drop((m.try_alloc(at), m.try_alloc([at; 100])));
                    m.safepoint();
                }
                m.collect();
            }
            m.verify().unwrap();
        }));
        if let Err(payload) = result {
            eprintln!("{what}");
            resume_unwind(payload);
        }
    }
}
