//! Types: the record that a description becomes, slot by slot and flag by flag, and the data that a
//! type owns.

#![cfg(not(loom))]

mod common;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;

use standstill::dynamic::{
    self, BASE, Class, Defaults, Flags, FreeProc, ModuleSpec, RawObject, RawVarObject, Slots, Type,
    TypeSpec, VisitProc,
};
use standstill::{Code, Fault, Heap, Mutator};

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "asks the system")]
fn a_type_that_goes_takes_its_name_with_it() {
    const NAME: usize = 1 << 20;
    let heap = Heap::new();
    let m = heap.attach();
    let make = |number: usize| {
        let name = format!("tests.{number}{}", "x".repeat(NAME));
        let class = Class::new(name).make(&m).unwrap();
        let object = class.instantiate(&m).unwrap();
        assert_eq!(class.record().name().len(), object.type_name(&m).len());
        assert!(dynamic::is_dynamic(&object));
    };
    make(0);
    let before = resident();
    (1..200).for_each(make);
    let more = resident().saturating_sub(before);
    // Other tests of this process take some meanwhile.
    assert!(more < 120 * NAME, "{more} bytes more after 200 types with names of 1 MiB");
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "asks the system")]
fn a_type_that_does_not_become_ready_leaves_nothing_behind() {
    const NAME: usize = 1 << 20;
    let heap = Heap::new();
    let m = heap.attach();
    let refuse = |number: usize| {
        let mut spec = described("tests.Refused", None);
        spec.name = format!("tests.{number}{}", "x".repeat(NAME));
        spec.item_size = -1;
        for is_heap_type in [false, true] {
            let Err(fault) = make(&m, &spec, is_heap_type) else {
                panic!("a type with items of -1 bytes")
            };
            assert_eq!(fault.code, Code::BadSize);
            assert!(
                fault.text.starts_with(&format!("type 'tests.{number}x")),
                "the report names the type"
            );
        }
    };
    refuse(0);
    let before = resident();
    (1..200).for_each(refuse);
    let more = resident().saturating_sub(before);
    // Other tests of this process take some meanwhile.
    assert!(more < 120 * NAME, "{more} bytes more after 200 types with names of 1 MiB");
}

// ------------------------------------------------------------------------------------ inheritance

macro_rules! handlers {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)? = $value:expr;)*) => {$(
        unsafe extern "C" fn $name($(_: $arg),*) $(-> $result)? { $value }
    )*};
}

// Each has functions of its own, so a slot shows its origin. None is ever called.
handlers! {
    base_traverse: fn(*mut RawObject, VisitProc, *mut c_void) -> c_int = 1;
    base_clear: fn(*mut RawObject) -> c_int = 2;
    base_dealloc: fn(*mut RawObject) = unreachable!("1");
    base_finalize: fn(*mut RawObject) = unreachable!("2");
    base_del: fn(*mut RawObject) = unreachable!("3");
    base_is_gc: fn(*mut RawObject) -> c_int = 3;
    base_alloc: fn(*mut c_void, isize) -> *mut RawObject = unreachable!("4");
    base_free: fn(*mut c_void) = unreachable!("5");
    own_traverse: fn(*mut RawObject, VisitProc, *mut c_void) -> c_int = 4;
    own_clear: fn(*mut RawObject) -> c_int = 5;
    own_dealloc: fn(*mut RawObject) = unreachable!("6");
    own_finalize: fn(*mut RawObject) = unreachable!("7");
    own_del: fn(*mut RawObject) = unreachable!("8");
    own_is_gc: fn(*mut RawObject) -> c_int = 6;
    own_alloc: fn(*mut c_void, isize) -> *mut RawObject = unreachable!("9");
    own_free: fn(*mut c_void) = unreachable!("10");
    default_alloc: fn(*mut c_void, isize) -> *mut RawObject = unreachable!("11");
    default_gc_free: fn(*mut c_void) = unreachable!("12");
    default_plain_free: fn(*mut c_void) = unreachable!("13");
}

static DEFAULTS: Defaults =
    Defaults { alloc: default_alloc, gc_free: default_gc_free, plain_free: default_plain_free };

/// Another runtime.
static OTHERS: Defaults =
    Defaults { alloc: own_alloc, gc_free: default_gc_free, plain_free: default_plain_free };

const BASE_SLOTS: Slots = Slots {
    traverse: Some(base_traverse),
    clear: Some(base_clear),
    dealloc: Some(base_dealloc),
    finalize: Some(base_finalize),
    del: Some(base_del),
    is_gc: Some(base_is_gc),
    alloc: Some(base_alloc),
    free: Some(base_free),
};

/// The slots of a type that sets those with a bit.
fn own_slots(given: u32) -> Slots {
    let is_given = |bit: u32| given & (1 << bit) != 0;
    Slots {
        traverse: is_given(0).then_some(own_traverse as _),
        clear: is_given(1).then_some(own_clear as _),
        dealloc: is_given(2).then_some(own_dealloc as _),
        finalize: is_given(3).then_some(own_finalize as _),
        del: is_given(4).then_some(own_del as _),
        is_gc: is_given(5).then_some(own_is_gc as _),
        alloc: is_given(6).then_some(own_alloc as _),
        free: is_given(7).then_some(own_free as _),
    }
}

/// The slots as numbers, in the order of [`NAMES`].
fn numbers(slots: &Slots) -> [usize; 8] {
    [
        slots.traverse.map_or(0, |f| f as usize),
        slots.clear.map_or(0, |f| f as usize),
        slots.dealloc.map_or(0, |f| f as usize),
        slots.finalize.map_or(0, |f| f as usize),
        slots.del.map_or(0, |f| f as usize),
        slots.is_gc.map_or(0, |f| f as usize),
        slots.alloc.map_or(0, |f| f as usize),
        slots.free.map_or(0, |f| f as usize),
    ]
}

const NAMES: [&str; 8] =
    ["traverse", "clear", "dealloc", "finalize", "del", "is_gc", "alloc", "free"];

/// A kind of base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    root: bool,
    heap_type: bool,
    gc: bool,
    slots: bool,
}

/// Makes a type of either kind.
fn make(m: &Mutator, spec: &TypeSpec, heap_type: bool) -> Result<Type, Fault> {
    // SAFETY: no instance is made of any of these types.
    unsafe {
        if heap_type {
            dynamic::ready_heap(m, spec, |_, _| {})
        } else {
            dynamic::ready_static(spec, std::ptr::null_mut()).map(Type::from_static)
        }
    }
}

fn described(name: &str, base: Option<&Type>) -> TypeSpec {
    let mut spec = TypeSpec::new(name);
    spec.bases = base.into_iter().cloned().collect();
    spec.defaults = Some(&DEFAULTS);
    spec
}

fn base_of(m: &Mutator, kind: Kind, flags: Flags) -> Type {
    if kind.root {
        return BASE.handle();
    }
    let mut spec = described("tests.Base", None);
    spec.flags = flags.and(Flags::BASE_TYPE);
    if kind.slots {
        spec.slots = BASE_SLOTS;
    }
    if kind.gc {
        spec.flags = spec.flags.and(Flags::HAVE_GC);
        spec.slots.traverse = Some(base_traverse);
    }
    with_items(&mut spec);
    make(m, &spec, kind.heap_type).unwrap()
}

/// Items that are references have a reference's size.
fn with_items(spec: &mut TypeSpec) {
    if spec.flags.has(Flags::ITEMS_ARE_REFERENCES) {
        spec.basic_size = size_of::<RawVarObject>() as isize;
        spec.item_size = size_of::<*mut RawObject>() as isize;
    }
}

/// Where a slot's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    NoType,
    Own,
    Base,
    Default,
    /// A function of the library's, which is none of the others.
    Library,
}

/// The rules for a slot, by its number; from the text of `src/dynamic/draft.rs`, "Inheritance", and
/// that of the header.
fn expected(slot: usize, given: u32, own_gc: bool, heap_type: bool, base: Kind) -> From {
    let own = given & (1 << slot) != 0;
    let inherited = if base.slots && !base.root { From::Base } else { From::NoType };
    match slot {
        _ if own => From::Own,
        // Traverse and clear come with the flag, from the same type.
        0 | 1 if own_gc || !base.gc => From::NoType,
        0 if heap_type && !base.heap_type => From::Library,
        0 => From::Base,
        1 => inherited,
        // The slots that are set in `slots` are the type's own.
        2 => From::NoType,
        3..=5 => inherited,
        6 if base.root => From::Default,
        6 => {
            if base.slots {
                From::Base
            } else {
                From::Default
            }
        }
        // Memory goes back the way of the base only if it is of the base's kind.
        7 => match base.slots && !base.root && base.gc == (own_gc || base.gc) {
            true => From::Base,
            false => From::Default,
        },
        _ => unreachable!(),
    }
}

/// Every slot, given or not, over every kind of base, in types of both kinds with and without the
/// flag.
#[test]
fn every_slot_comes_from_where_the_rules_say() {
    let heap = Heap::builder().reserve(1 << 30).checked(false).build().unwrap();
    let m = heap.attach();
    let (base_numbers, own_numbers) = (numbers(&BASE_SLOTS), numbers(&own_slots(!0)));
    let mut made = 0;
    let kinds = (0..8).map(|bits| Kind {
        root: false,
        heap_type: bits & 1 != 0,
        gc: bits & 2 != 0,
        slots: bits & 4 != 0,
    });
    let root = Kind { root: true, heap_type: false, gc: false, slots: false };
    for kind in kinds.chain([root]) {
        let base = base_of(&m, kind, Flags::default());
        for (heap_type, own_gc, given) in (0..1024).map(|n| (n & 1 != 0, n & 2 != 0, n >> 2)) {
            let mut spec = described("tests.Derived", Some(&base));
            spec.slots = own_slots(given);
            if own_gc {
                spec.flags = Flags::HAVE_GC;
            }
            let case =
                format!("{kind:?}, heap type: {heap_type}, flag: {own_gc}, slots: {given:#010b}");
            let result = make(&m, &spec, heap_type);
            let handlers = given & 3 != 0;
            let refused = if kind.heap_type && !heap_type {
                Some(Code::BadBase)
            } else if own_gc && given & 1 == 0 {
                Some(Code::MissingTraverse)
            } else if !own_gc && kind.gc && handlers {
                Some(Code::HandlersWithoutFlag)
            } else {
                None
            };
            let ty = match (result, refused) {
                (Err(fault), Some(code)) => {
                    assert_eq!(fault.code, code, "{case}");
                    continue;
                }
                (Ok(ty), None) => ty,
                (result, refused) => {
                    panic!("{case}: {:?} where {refused:?} was expected", result.map(|_| ()))
                }
            };
            made += 1;
            let record = ty.record();
            let gc = own_gc || kind.gc;
            assert_eq!((record.has_gc(), record.is_heap_type()), (gc, heap_type), "{case}");
            let found = numbers(&record.slots());
            for slot in 0..8 {
                let from = expected(slot, given, own_gc, heap_type, kind);
                let free: FreeProc = if gc { default_gc_free } else { default_plain_free };
                let default = numbers(&Slots {
                    alloc: Some(default_alloc),
                    free: Some(free),
                    ..Slots::default()
                });
                let place = match found[slot] {
                    0 => From::NoType,
                    f if f == own_numbers[slot] => From::Own,
                    f if f == base_numbers[slot] => From::Base,
                    f if f == default[slot] => From::Default,
                    _ => From::Library,
                };
                assert_eq!(place, from, "{}: {case}", NAMES[slot]);
            }
        }
    }
    assert!(made > 2000, "{made}");
}

/// Every bit of the flags: the types that inherit it, and the types that set it.
#[test]
fn every_flag_is_inherited_or_not_as_the_rules_say() {
    let heap = Heap::builder().reserve(1 << 30).checked(false).build().unwrap();
    let m = heap.attach();
    let families = Flags(0xff00_0000);
    let inherited = Flags::MANAGED_DICT
        .and(Flags::HAVE_GC)
        .and(Flags::ITEMS_AT_END)
        .and(Flags::ITEMS_ARE_REFERENCES)
        .and(families);
    for heap_type in [false, true] {
        for bit in (0..64).map(|bit| Flags(1 << bit)) {
            let kind = Kind { root: false, heap_type, gc: true, slots: false };
            let spec = |base: Option<&Type>, flags: Flags| {
                let mut spec = described("tests.Flagged", base);
                spec.flags = flags;
                if flags.has(Flags::HAVE_GC) {
                    spec.slots.traverse = Some(own_traverse);
                }
                with_items(&mut spec);
                spec
            };
            let needs_heap_type = bit == Flags::MANAGED_DICT && !heap_type;
            let own = make(&m, &spec(None, bit.and(Flags::HAVE_GC)), heap_type);
            assert_eq!(own.is_err(), needs_heap_type, "{bit:?}");
            if needs_heap_type {
                assert_eq!(own.unwrap_err().code, Code::BadFlags);
                continue;
            }
            let of_its_kind = if heap_type { Flags::HEAP_TYPE } else { Flags::default() };
            let always = Flags::READY.and(of_its_kind);
            // A type has the flags that it asks for; whether it is a heap type is not asked.
            let asked = if bit == Flags::HEAP_TYPE { Flags::default() } else { bit };
            assert_eq!(
                own.unwrap().record().flags(),
                asked.and(Flags::HAVE_GC).and(always),
                "{bit:?}"
            );
            let base = base_of(&m, kind, bit);
            let derived = make(&m, &spec(Some(&base), Flags::default()), heap_type).unwrap();
            let down = if inherited.has(bit) { bit } else { Flags::default() };
            assert_eq!(derived.record().flags(), down.and(Flags::HAVE_GC).and(always), "{bit:?}");
        }
    }
    // A managed dictionary takes the collector's flag, too.
    let mut spec = described("tests.Plain", None);
    spec.flags = Flags::MANAGED_DICT;
    assert_eq!(make(&m, &spec, true).unwrap_err().code, Code::BadFlags);
    // A static type that says that it is a heap type is none, and may not be treated as one.
    spec.flags = Flags::HEAP_TYPE;
    assert!(!make(&m, &spec, false).unwrap().record().flags().has(Flags::HEAP_TYPE));
}

/// Sizes over all kinds of bases, at every boundary.
#[test]
fn sizes_and_items_follow_the_base() {
    let heap = Heap::builder().reserve(1 << 30).checked(false).build().unwrap();
    let m = heap.attach();
    let head = size_of::<RawObject>();
    let var = size_of::<RawVarObject>();
    let sized = |base: Option<&Type>, basic: isize, item: isize, flags: Flags| {
        let mut spec = described("tests.Sized", base);
        (spec.basic_size, spec.item_size) = (basic, item);
        spec.flags = flags.and(Flags::BASE_TYPE);
        make(&m, &spec, true)
    };
    let none = Flags::default();
    // (basic, item, at end) of a base, and the permitted values of derived types.
    for (base_basic, base_item, at_end) in [
        (head, 0, false),
        (40, 0, false),
        (var, 0, false),
        (var, 8, false),
        (48, 8, true),
        (48, 1, false),
    ] {
        let flags = if at_end { Flags::ITEMS_AT_END } else { none };
        let base = sized(None, base_basic as isize, base_item as isize, flags).unwrap();
        for basic in (-64..=0)
            .chain([1, head - 1, head, var - 1, var, 40, 47, 48, 49, 4096].map(|n| n as isize))
        {
            for item in [-1, 0, 1, 7, 8, 9, 16] {
                let case =
                    format!("{basic}, {item} over {base_basic}, {base_item}, at end: {at_end}");
                let result = sized(Some(&base), basic, item, none);
                let (start, own) =
                    (base_basic.next_multiple_of(16), basic.unsigned_abs().next_multiple_of(16));
                let bytes = match basic {
                    0 => Some(base_basic),
                    // Where items lie behind the fields, there is no place for a part of one's own.
                    ..0 if base_item != 0 && !at_end => None,
                    ..0 => Some(start + own),
                    _ => Some(basic as usize).filter(|&bytes| bytes >= base_basic),
                };
                let items = match (item, base_item) {
                    (..0, _) => None,
                    (0, size) => Some(size),
                    // The number of items would lie in the base's fields.
                    (_, 0) if base_basic > head => None,
                    (size, 0) => Some(size as usize),
                    (size, has) => Some(has).filter(|&has| has == size as usize),
                };
                let good = bytes.zip(items).filter(|&(bytes, items)| items == 0 || bytes >= var);
                match (result, good) {
                    (Ok(ty), Some((bytes, items))) => {
                        let record = ty.record();
                        assert_eq!(
                            (record.basic_size(), record.item_size()),
                            (bytes, items),
                            "{case}"
                        );
                        assert_eq!(record.data_size(), if basic < 0 { own } else { 0 }, "{case}");
                    }
                    (Err(fault), None) => assert_eq!(fault.code, Code::BadSize, "{case}"),
                    (result, good) => {
                        panic!(
                            "{case}: {:?}, and not {good:?}",
                            result.map(|ty| ty.record().basic_size())
                        )
                    }
                }
            }
        }
    }
}

/// Two bases with fields, or with items alone, in the same place.
#[test]
fn layouts_that_conflict_are_refused() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let m = heap.attach();
    let derive = |bases: &[&Type], basic: isize, item: isize| {
        let mut spec = described("tests.Laid", None);
        spec.bases = bases.iter().map(|&base| base.clone()).collect();
        (spec.basic_size, spec.item_size) = (basic, item);
        spec.flags = Flags::BASE_TYPE;
        make(&m, &spec, true)
    };
    let fields = derive(&[], 24, 0).unwrap();
    let (same, items, more) = (
        derive(&[&fields], 0, 0).unwrap(),
        derive(&[&fields], 32, 8).unwrap(),
        derive(&[&fields], 48, 0).unwrap(),
    );
    for (bases, good) in [
        ([&same, &fields], true),
        ([&items, &same], true),
        ([&more, &same], true),
        ([&same, &items], false),
        ([&same, &more], false),
        ([&items, &more], false),
        ([&more, &items], false),
    ] {
        let result = derive(&bases, 0, 0);
        assert_eq!(
            result.as_ref().err().map(|fault| fault.code),
            (!good).then_some(Code::BadBase),
            "{result:?}"
        );
    }
}

/// Memory of the wrong family: refused where instances of derived types could come to it.
#[test]
fn a_free_function_for_other_memory_is_refused_for_bases_alone() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let m = heap.attach();
    for (gc, may_be_base, free) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
        let mut spec = described("tests.Freed", None);
        if gc {
            spec.flags = Flags::HAVE_GC;
            spec.slots.traverse = Some(own_traverse);
        }
        if may_be_base {
            spec.flags = spec.flags.and(Flags::BASE_TYPE);
        }
        spec.slots.free = Some(if free { default_plain_free } else { default_gc_free });
        let code = make(&m, &spec, true).err().map(|fault| fault.code);
        assert_eq!(
            code,
            (gc && may_be_base && free).then_some(Code::BadFree),
            "{gc} {may_be_base} {free}"
        );
    }
}

// ------------------------------------------------------------------------------------ modules

/// A module's state: one reference.
unsafe fn state<'a>(module: *mut RawObject) -> &'a Cell<*mut RawObject> {
    // SAFETY: called for modules with such a state.
    unsafe { &*dynamic::Obj::new(NonNull::new_unchecked(module)).module_state().unwrap().cast() }
}

unsafe extern "C" fn state_traverse(
    module: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a living module with such a state.
    let held = unsafe { state(module) }.get();
    // SAFETY: the visitor belongs to the argument.
    if held.is_null() { 0 } else { unsafe { visit(held, arg) } }
}

unsafe extern "C" fn state_clear(module: *mut RawObject) -> c_int {
    // SAFETY: a living module, whose state owned the reference.
    unsafe {
        if let Some(held) = NonNull::new(state(module).take()) {
            drop(dynamic::from_raw(held));
        }
    }
    0
}

unsafe extern "C" fn state_free(module: *mut c_void) {
    // SAFETY: a module, whose state owned the reference.
    unsafe { state_clear(module.cast()) };
}

/// A type owns its module, and shows it: a cycle of the two is collected.
#[test]
fn a_cycle_of_a_module_and_its_type_is_collected() {
    let heap = Heap::builder().reserve(1 << 30).checked(true).build().unwrap();
    let mut m = heap.attach();
    let mut spec = ModuleSpec::new("tests.module");
    spec.state_size = size_of::<*mut RawObject>();
    spec.traverse = Some(state_traverse);
    spec.clear = Some(state_clear);
    spec.free = Some(state_free);
    // SAFETY: the handlers are this state's.
    let module = unsafe { dynamic::new_module(&m, spec) }.unwrap();
    let class = Class::new("tests.Member").module(&module).make(&m).unwrap();
    let held = dynamic::into_raw(class.object().unwrap().clone());
    // SAFETY: a module with such a state.
    unsafe { state(dynamic::as_raw(&module).as_ptr()) }.set(held.as_ptr());
    assert_eq!(module.strong_count(), 2);
    drop(module);
    assert_eq!(m.collect().collected, 0);
    drop(class);
    assert_eq!(m.collect().collected, 2);
    assert_eq!(heap.stats().live_objects, 0);
}

/// One thread reads the address of a type's module. Another thread clears the type. The first
/// thread can use the module until its next safepoint.
#[test]
fn a_module_just_read_from_a_type_outlives_the_clearing_of_the_type_by_another_thread() {
    static FREED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn freed(_: *mut c_void) {
        FREED.store(true, SeqCst);
    }
    let heap = Heap::builder().reserve(1 << 30).checked(true).build().unwrap();
    let mut m = heap.attach();
    let mut spec = ModuleSpec::new("tests.module");
    spec.token = 7;
    spec.free = Some(freed);
    // SAFETY: the handler needs no state.
    let module = unsafe { dynamic::new_module(&m, spec) }.unwrap();
    let class = Class::new("tests.Member").module(&module).make(&m).unwrap();
    drop(module);
    let ((read, is_read), (clear, is_cleared)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        let (heap, class) = (&heap, &class);
        scope.spawn(move || {
            let mut m = heap.attach();
            // SAFETY: this thread is attached.
            let module = unsafe { dynamic::type_module_by_token(class.record(), 7) }.unwrap();
            read.send(()).unwrap();
            is_cleared.recv().unwrap();
            // SAFETY: this thread is attached.
            let now = unsafe { dynamic::type_module_by_token(class.record(), 7) };
            assert_eq!(now, None);
            assert!(!FREED.load(SeqCst), "this thread has passed no safepoint");
            // SAFETY: the module was read after the last safepoint.
            let module = unsafe { dynamic::Obj::new(module).share() };
            m.safepoint();
            // SAFETY: the handle owns a reference.
            let module = unsafe { dynamic::Obj::new(dynamic::as_raw(&module)) };
            assert_eq!(module.module_token(), Some(7));
        });
        is_read.recv().unwrap();
        let handler = dynamic::METATYPE.get().slots().clear.unwrap();
        // SAFETY: a living type, as the handler expects.
        assert_eq!(unsafe { handler(dynamic::as_raw(class.object().unwrap()).as_ptr()) }, 0);
        m.safepoint();
        clear.send(()).unwrap();
    });
    m.safepoint();
    m.collect();
    assert!(FREED.load(SeqCst), "the type's reference was the last but the reader's");
    drop(class);
    assert_eq!(heap.stats().live_objects, 0);
}

/// Tokens are found along the order of bases, the nearest first.
#[test]
fn a_token_finds_the_nearest_type_and_the_nearest_module() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let m = heap.attach();
    let module = |token: usize| {
        let mut spec = ModuleSpec::new("tests.module");
        spec.token = token;
        // SAFETY: no handlers, no state.
        unsafe { dynamic::new_module(&m, spec) }.unwrap()
    };
    let (first, second) = (module(70), module(80));
    let typed = |base: Option<&Type>, token: usize, module: Option<&standstill::AnyGc>| {
        let mut spec = described("tests.Token", base);
        spec.flags = Flags::BASE_TYPE;
        (spec.token, spec.module) = (token, module.cloned());
        make(&m, &spec, true).unwrap()
    };
    let root = typed(None, 7, Some(&first));
    let middle = typed(Some(&root), 8, Some(&second));
    let leaf = typed(Some(&middle), 7, None);
    let by_token =
        |ty: &Type, token| dynamic::base_by_token(ty.record(), token).map(std::ptr::from_ref);
    let record = |ty: &Type| Some(std::ptr::from_ref(ty.record()));
    assert_eq!(by_token(&leaf, 7), record(&leaf));
    assert_eq!(by_token(&middle, 7), record(&root));
    assert_eq!(by_token(&leaf, 8), record(&middle));
    assert_eq!((by_token(&leaf, 9), by_token(&leaf, 0)), (None, None));
    // SAFETY: this thread is attached.
    let by_module = |token| unsafe { dynamic::type_module_by_token(leaf.record(), token) };
    assert_eq!(by_module(80), Some(dynamic::as_raw(&second)));
    assert_eq!(by_module(70), Some(dynamic::as_raw(&first)));
    assert_eq!((by_module(7), by_module(0)), (None, None));
    assert_eq!(dynamic::type_module(leaf.record()), None);
    assert_eq!(dynamic::type_module(middle.record()), Some(dynamic::as_raw(&second)));
}

/// A type that one runtime makes has a face only for the functions of that runtime. So a base of
/// another runtime is refused, at each place among the bases. The types that the library itself
/// provides are for all.
#[test]
fn a_type_has_bases_of_its_own_runtime_alone() {
    let heap = Heap::builder().reserve(1 << 30).checked(false).build().unwrap();
    let m = heap.attach();
    let spec = |name: &str, of: Option<&'static Defaults>, bases: &[Type]| {
        let mut spec = TypeSpec::new(name);
        spec.flags = Flags::BASE_TYPE;
        spec.defaults = of;
        spec.bases = bases.to_vec();
        spec
    };
    let makers = [None, Some(&DEFAULTS), Some(&OTHERS)];
    for heap_type in [false, true] {
        for (at, of) in makers.into_iter().enumerate() {
            let base = make(&m, &spec("tests.Base", of, &[]), heap_type).unwrap();
            for (own, others) in makers.into_iter().enumerate() {
                let mine = make(&m, &spec("tests.Mine", others, &[]), true).unwrap();
                let derived =
                    |bases: &[Type]| make(&m, &spec("tests.Derived", others, bases), true);
                let first = derived(std::slice::from_ref(&base));
                let second = derived(&[mine, base.clone()]);
                for made in [first, second] {
                    let fits = made.is_ok();
                    assert_eq!(fits, own == at, "made by {own}, over a base made by {at}");
                    if let Err(fault) = made {
                        assert_eq!(fault.code, Code::BadBase);
                        let text = fault.to_string();
                        assert!(
                            text.contains("its base 'tests.Base' was made by another runtime"),
                            "{text}"
                        );
                    }
                }
            }
            let class = Class::new("tests.Class").base(&base).make(&m);
            assert_eq!(class.is_ok(), of.is_none(), "a class over a base made by {at}");
            for builtin in [&BASE, &dynamic::MODULE] {
                let made = make(&m, &spec("tests.Own", of, &[builtin.handle()]), true);
                assert!(made.is_ok(), "{made:?}");
            }
        }
    }
}
