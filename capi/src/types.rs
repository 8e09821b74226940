//! Types: makes records from C's structs, because the library cannot read those. The values that a
//! record inherits are written back into the struct, where C programs read them.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int, c_ulong, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use standstill::dynamic::{
    self, Address, AllocProc, BASE, Defaults, Destructor, Flags, FreeProc, Head, Inquiry, METATYPE,
    Obj, Slots, TraverseProc, Type, TypeRecord, TypeSpec,
};
use standstill::fallible::{self, NoMemory};
use standstill::words;
use standstill::{AnyGc, Code, Fault, Mutator};

use crate::builtins::{self, Tuple};
use crate::call::{self, Given, export};
use crate::errors;
use crate::fork;
use crate::layout::{InitProc, NewProc, PyModuleDef, PyObject, PyType_Spec, PyTypeObject};
use crate::objects::{
    standstill_PyObject_Free, standstill_PyObject_GC_Del, standstill_PyType_GenericAlloc,
};

pub(crate) static DEFAULTS: Defaults = Defaults {
    alloc: standstill_PyType_GenericAlloc,
    gc_free: standstill_PyObject_GC_Del,
    plain_free: standstill_PyObject_Free,
};

/// The `tp_dealloc` of a type without its own: the library's generic deallocator.
unsafe extern "C" fn generic_dealloc(object: *mut PyObject) {
    call::reported("tp_dealloc", (), |m| {
        // SAFETY: rule *argument*: called for a dying object.
        unsafe { dynamic::Dying::new(m, Given::new(object).typed(m, Code::WrongType)?).dealloc() };
        Ok(())
    });
}

/// The texts to which the face of a heap type points, kept as long as the type.
struct Texts {
    name: CString,
    doc: Option<CString>,
}

/// The allocator that a face shows. Because the library's own allocator takes records, and not
/// faces of C, this crate's takes its place.
fn alloc_of(record: &TypeRecord) -> Option<AllocProc> {
    let address = |alloc: Option<AllocProc>| alloc.map(|alloc| alloc as usize);
    let own = record.slots().alloc;
    if address(own) == address(METATYPE.get().slots().alloc) { Some(DEFAULTS.alloc) } else { own }
}

fn free_of(record: &TypeRecord) -> Option<FreeProc> {
    let address = |free: Option<FreeProc>| free.map(|free| free as usize);
    let own = record.slots().free;
    if address(own) != address(METATYPE.get().slots().free) {
        own
    } else if record.has_gc() {
        Some(DEFAULTS.gc_free)
    } else {
        Some(DEFAULTS.plain_free)
    }
}

fn base_face(record: &TypeRecord) -> *mut PyTypeObject {
    record.base().map_or(std::ptr::null_mut(), |base| base.face().cast())
}

/// A type for the time of a call, ready or not.
#[derive(Clone, Copy)]
pub(crate) struct Face<'a> {
    address: NonNull<PyTypeObject>,
    face: PhantomData<&'a PyTypeObject>,
}

impl<'a> Face<'a> {
    /// The type at an address.
    ///
    /// # Safety
    ///
    /// Rule *argument*, for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(address: NonNull<PyTypeObject>) -> Self {
        Self { address, face: PhantomData }
    }

    fn of_member(member: *mut PyTypeObject) -> Option<Self> {
        // SAFETY: rules *argument* and *record*: such a type lives as long as the other.
        NonNull::new(member).map(|face| unsafe { Self::new(face) })
    }

    #[inline(always)]
    pub(crate) fn members(self) -> &'a PyTypeObject {
        // SAFETY: rule *argument*.
        unsafe { self.address.as_ref() }
    }

    fn raw(self) -> *mut PyTypeObject {
        self.address.as_ptr()
    }

    pub(crate) fn head(self) -> Head<'a> {
        // SAFETY: rule *argument*: a type starts with the head of an object.
        unsafe { Head::new(self.address.cast()) }
    }

    #[inline(always)]
    pub(crate) fn shown_record(self) -> Option<&'a TypeRecord> {
        self.members().ss_own.record()
    }

    /// The record of the type, or `None` if the type is not ready. The record of a heap type that
    /// was made elsewhere is found through its object, because its face has no pointer to it.
    pub(crate) fn own(self) -> Option<&'a TypeRecord> {
        self.shown_record().or_else(|| self.head().typed()?.describe())
    }

    /// The record of the type. Fails for a type that is not ready.
    pub(crate) fn ready(self) -> Result<&'a TypeRecord, Fault> {
        self.own().ok_or_else(|| {
            // SAFETY: rule *argument*.
            let name = unsafe { call::text(self.members().tp_name) }.ok().flatten();
            let name = name.unwrap_or("without a name");
            Fault::new(Code::NotReady, "argument").because(words!("type '{name}' is not ready"))
        })
    }

    fn flags(self) -> u64 {
        self.own().map_or_else(|| self.members().tp_flags, |record| record.flags().0)
    }

    /// Whether the type is another, or, if both are ready, derives from it.
    pub(crate) fn is_subtype(self, other: Self) -> bool {
        match (self.own(), other.own()) {
            (Some(a), Some(b)) => a.is_subtype_of(b),
            _ => self.address == other.address,
        }
    }

    /// Restores the members of a ready type that the program has overwritten, which checked mode
    /// reports, and returns whether the collector's flag was among them. The object of a type that
    /// was made elsewhere is left as it is, because it shows no members.
    pub(crate) fn check_intact(
        self,
        record: &TypeRecord,
        checked: bool,
        function: &'static str,
    ) -> bool {
        let is_ours = record.face() == self.raw().cast()
            && self.shown_record().is_some_and(|shown| std::ptr::eq(shown, record));
        if !is_ours || is_intact(self.members(), record) {
            return false;
        }
        let flipped = (self.members().tp_flags ^ record.flags().0) & Flags::HAVE_GC.0 != 0;
        // SAFETY: rule *statics*: the face of this record.
        unsafe { show(self.raw(), record) };
        if checked {
            let text = "a member of the ready type was overwritten; its value is restored";
            errors::misuse(
                Fault::new(Code::WrittenAfterReady, function)
                    .of_type(record.kept_name())
                    .because(text),
            );
        }
        flipped
    }
}

/// Writes the values of a record into its face.
///
/// # Safety
///
/// The face belongs to the record, and no other thread writes to it.
unsafe fn show(face: *mut PyTypeObject, record: &TypeRecord) {
    let Slots { traverse, clear, dealloc, finalize, del, is_gc, .. } = record.slots();
    // SAFETY: as the caller says.
    let face = unsafe { &mut *face };
    face.tp_basicsize = record.basic_size() as isize;
    face.tp_itemsize = record.item_size() as isize;
    face.tp_flags = record.flags().0;
    face.tp_traverse = traverse;
    face.tp_clear = clear;
    face.tp_dealloc = dealloc.or(Some(generic_dealloc as Destructor));
    face.tp_finalize = finalize;
    face.tp_del = del;
    face.tp_is_gc = is_gc;
    face.tp_alloc = alloc_of(record);
    face.tp_free = free_of(record);
    face.tp_base = base_face(record);
}

/// Whether a face still shows the values of its record.
fn is_intact(face: &PyTypeObject, record: &TypeRecord) -> bool {
    let Slots { traverse, clear, dealloc, finalize, del, is_gc, .. } = record.slots();
    macro_rules! same {
        ($($a:expr, $b:expr;)*) => { true $(&& $a.map(|f| f as usize) == $b.map(|f| f as usize))* };
    }
    face.tp_basicsize == record.basic_size() as isize
        && face.tp_itemsize == record.item_size() as isize
        && face.tp_flags == record.flags().0
        && std::ptr::eq(face.tp_base, base_face(record))
        && same! {
            face.tp_traverse, traverse;
            face.tp_clear, clear;
            face.tp_dealloc, dealloc.or(Some(generic_dealloc as Destructor));
            face.tp_finalize, finalize;
            face.tp_del, del;
            face.tp_is_gc, is_gc;
            face.tp_alloc, alloc_of(record);
            face.tp_free, free_of(record);
        }
}

/// Connects a static face with its record, which makes the type ready. It cannot fail after
/// [`expect_ready`].
///
/// # Safety
///
/// The face is static, and no other thread writes to it.
pub(crate) unsafe fn wear(face: *mut PyTypeObject, record: &'static TypeRecord) {
    // SAFETY: as the caller says.
    unsafe {
        show(face, record);
        let head = face.cast::<PyObject>();
        // With a zero head the object would be counted, although it lies in no heap.
        head.write(PyObject::immortal());
        dynamic::set_static_type(NonNull::new_unchecked(head), METATYPE.get());
        ready_ones().get_or_insert_default().insert(face as usize);
        // Last, because a thread that finds the record without a lock must see the values above.
        (*face).ss_own.set(record);
    }
}

/// The addresses of the ready static types, by which checked mode recognises the types.
static READY: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

fn ready_ones() -> MutexGuard<'static, Option<HashSet<usize>>> {
    errors::locked(&READY)
}

/// Makes room for one more ready type, because only one thread at a time makes a type ready.
pub(crate) fn expect_ready() -> Result<(), NoMemory> {
    Ok(ready_ones().get_or_insert_default().try_reserve(1)?)
}

/// In checked mode, checks an address before the type at it becomes ready. It accepts a type in a
/// heap, a static type that is ready, and other memory whose `ss_own` is null.
fn may_become_ready(face: Face<'_>) -> Result<(), Fault> {
    let address = face.raw() as usize;
    let fault =
        |code, text: &'static str| Err(Fault::new(code, "argument").at(address).because(text));
    // SAFETY: rule *argument*. The lookup reads only a head; the type is read where the lookup has
    // shown that it may be one.
    match unsafe { dynamic::look_up_here(face.address.cast()) } {
        None => Ok(()),
        Some(Address::Live) => call::must_be_type(face.head()),
        Some(Address::Freed) => fault(Code::FreedPointer, "the type was freed"),
        Some(Address::Foreign | Address::Nowhere) => {
            fault(Code::ForeignPointer, "there is no type at this address")
        }
        Some(Address::Static) if face.head().typed().is_some() => call::must_be_type(face.head()),
        Some(Address::Static | Address::Outside) => {
            let known = ready_ones().as_ref().is_some_and(|ready| ready.contains(&address));
            let claims = !face.members().ss_own.get().is_null();
            if claims && !known {
                return fault(
                    Code::ForeignPointer,
                    "this is no type, or its private members were overwritten",
                );
            }
            Ok(())
        }
    }
}

/// The lock under which types become ready, one at a time.
///
/// # Errors
///
/// This thread holds the lock for a fork.
fn readying() -> Result<MutexGuard<'static, ()>, Fault> {
    fork::must_not_be_inside("PyType_Ready")?;
    Ok(errors::locked(&READYING))
}

static READYING: Mutex<()> = Mutex::new(());

/// The locks of this file that a fork takes, in this order.
pub(crate) type ForkLocks = (MutexGuard<'static, ()>, MutexGuard<'static, Option<HashSet<usize>>>);

pub(crate) fn lock_for_fork() -> ForkLocks {
    (errors::locked(&READYING), ready_ones())
}

/// Makes a static type ready, after its bases.
fn ready_static(face: Face<'_>, depth: usize) -> Result<(), Fault> {
    if face.own().is_some() {
        return Ok(());
    }
    let members = face.members();
    // SAFETY: rule *argument*.
    let name = unsafe { call::text(members.tp_name) }?.ok_or_else(|| {
        Fault::new(Code::BadSlot, "PyType_Ready").because("a type needs a tp_name")
    })?;
    let name = fallible::owned(name)?;
    let bad = |code, text: &str| {
        Err(Fault::new(code, "PyType_Ready").because(words!("type '{name}': {text}")))
    };
    if members.tp_basicsize < 0 {
        return bad(Code::BadSize, "a static type cannot have a negative tp_basicsize");
    }
    if depth > 64 {
        return bad(Code::BadBase, "its chain of bases is too long or has a cycle");
    }
    let mut bases = Vec::new();
    if let Some(tuple) = Face::of_member(members.tp_bases.cast()) {
        collect_bases(tuple.head(), &mut bases, &name)?;
    }
    if bases.is_empty()
        && let Some(base) = Face::of_member(members.tp_base)
    {
        ready_static(base, depth + 1)?;
        fallible::push(&mut bases, base.own().map(Type::from_record).expect("it is ready"))?;
    }
    let mut spec = TypeSpec::new(name);
    spec.basic_size = members.tp_basicsize;
    spec.item_size = members.tp_itemsize;
    spec.flags = Flags(members.tp_flags);
    spec.slots = slots_of(members);
    complete(&mut spec, bases);
    expect_ready()?;
    // SAFETY: rules *argument* and *statics*: the handlers are for objects of this type, and one
    // thread at a time makes a type ready.
    unsafe {
        let record = dynamic::ready_static(&spec, face.raw().cast())?;
        inherit(face.raw(), record);
        wear(face.raw(), record);
    }
    Ok(())
}

fn slots_of(given: &PyTypeObject) -> Slots {
    Slots {
        traverse: given.tp_traverse,
        clear: given.tp_clear,
        dealloc: given.tp_dealloc,
        finalize: given.tp_finalize,
        del: given.tp_del,
        is_gc: given.tp_is_gc,
        alloc: given.tp_alloc,
        free: given.tp_free,
    }
}

/// Fills in the parts of all types of C: bases, defaults, and an allocator that takes faces.
fn complete(spec: &mut TypeSpec, bases: Vec<Type>) {
    spec.bases = bases;
    spec.defaults = Some(&DEFAULTS);
    if spec.slots.del.is_some() {
        crate::world::expect_legacy();
    }
    let base = spec.bases.first().map_or(BASE.get(), Type::record);
    spec.slots.alloc = spec.slots.alloc.or_else(|| alloc_of(base));
}

/// Inherits the members that the library only stores.
///
/// # Safety
///
/// As for [`show`].
unsafe fn inherit(face: *mut PyTypeObject, record: &TypeRecord) {
    if let Some(base) = Face::of_member(base_face(record)).map(Face::members) {
        // SAFETY: as the caller says.
        let face = unsafe { &mut *face };
        face.tp_new = face.tp_new.or(base.tp_new);
        face.tp_init = face.tp_init.or(base.tp_init);
    }
}

/// The record of an object that is a type, or `None` if the object is no type or not ready.
pub(crate) fn record_of(object: Head<'_>) -> Option<&TypeRecord> {
    builtins::as_a(object, &builtins::standstill_PyType_Type)?;
    // SAFETY: rule *record*: objects of the metatype are faces.
    unsafe { Face::new(object.address().cast()) }.own()
}

/// Adds a type, or all types of a tuple, to `bases`.
fn collect_bases(object: Head<'_>, bases: &mut Vec<Type>, name: &str) -> Result<(), Fault> {
    if let Some(record) = record_of(object) {
        return Ok(fallible::push(bases, Type::from_record(record))?);
    }
    let bad = || {
        let text = words!("type '{name}': a base is no type or is not ready");
        let address = object.address().as_ptr() as usize;
        Err(Fault::new(Code::BadBase, "type readiness").at(address).because(text))
    };
    let Some(tuple) = Tuple::of(object) else { return bad() };
    // The exported functions for tuples are of no use, because they need an attached thread.
    for item in tuple.objects() {
        match item.and_then(record_of) {
            Some(record) => fallible::push(bases, Type::from_record(record))?,
            None => return bad(),
        }
    }
    Ok(())
}

/// Slots by CPython's numbers.
mod number {
    use std::ffi::c_int;

    pub(super) const ALLOC: c_int = 47;
    pub(super) const BASE: c_int = 48;
    pub(super) const BASES: c_int = 49;
    pub(super) const CLEAR: c_int = 51;
    pub(super) const DEALLOC: c_int = 52;
    pub(super) const DEL: c_int = 53;
    pub(super) const DOC: c_int = 56;
    pub(super) const INIT: c_int = 60;
    pub(super) const IS_GC: c_int = 61;
    pub(super) const NEW: c_int = 65;
    pub(super) const TRAVERSE: c_int = 71;
    pub(super) const FREE: c_int = 74;
    pub(super) const FINALIZE: c_int = 80;
    pub(super) const TOKEN: c_int = 83;
    /// Ours: see `STANDSTILL_tp_flags`.
    pub(super) const FLAGS: c_int = 1001;
}

struct Parsed {
    given: PyTypeObject,
    token: usize,
}

unsafe fn parse(spec: &PyType_Spec, name: &str) -> Result<Parsed, Fault> {
    let mut given = PyTypeObject::named(c"");
    let mut token = 0;
    let mut seen = Vec::new();
    let bad = |number: c_int, why: &str| {
        let text = words!("type '{name}': slot {number} {why}");
        Err(Fault::new(Code::BadSlot, "PyType_FromSpec").because(text))
    };
    let mut slot = spec.slots;
    // SAFETY: rule *argument*: the list ends with the slot 0, and the number of a slot determines
    // the type of its value.
    unsafe {
        while !slot.is_null() && (*slot).slot != 0 {
            let (number, value) = ((*slot).slot, (*slot).pfunc);
            if seen.contains(&number) {
                return bad(number, "is given twice");
            }
            fallible::push(&mut seen, number)?;
            let may_be_null = [number::DOC, number::TOKEN, number::BASE, number::BASES];
            if value.is_null() && !may_be_null.contains(&number) {
                return bad(number, "has no value");
            }
            macro_rules! function {
                ($place:ident, $kind:ty) => {
                    given.$place = Some(std::mem::transmute::<*mut c_void, $kind>(value))
                };
            }
            match number {
                number::ALLOC => function!(tp_alloc, AllocProc),
                number::BASE => given.tp_base = value.cast(),
                number::BASES => given.tp_bases = value.cast(),
                number::CLEAR => function!(tp_clear, Inquiry),
                number::DEALLOC => function!(tp_dealloc, Destructor),
                number::DEL => function!(tp_del, Destructor),
                number::DOC => given.tp_doc = value.cast(),
                number::INIT => function!(tp_init, InitProc),
                number::IS_GC => function!(tp_is_gc, Inquiry),
                number::NEW => function!(tp_new, NewProc),
                number::TRAVERSE => function!(tp_traverse, TraverseProc),
                number::FREE => function!(tp_free, FreeProc),
                number::FINALIZE => function!(tp_finalize, Destructor),
                number::TOKEN if value.is_null() => token = std::ptr::from_ref(spec) as usize,
                number::TOKEN => token = value as usize,
                number::FLAGS => given.tp_flags = value.cast::<u64>().read(),
                _ => return bad(number, "is not supported"),
            }
            slot = slot.add(1);
        }
    }
    Ok(Parsed { given, token })
}

fn from_spec<'a>(
    m: &Mutator,
    module: Option<Given<'a, PyObject>>,
    spec: Given<'a, PyType_Spec>,
    bases: Option<Given<'a, PyObject>>,
) -> Result<*mut PyObject, Fault> {
    const FUNCTION: &str = "PyType_FromSpec";
    builtins::start()?;
    let spec = spec.some()?;
    // SAFETY: rule *argument*.
    let (spec, name) = unsafe {
        let spec = spec.as_ref();
        (spec, (!spec.name.is_null()).then(|| CStr::from_ptr(spec.name)))
    };
    let Some(name) = name else {
        return Err(Fault::new(Code::BadSlot, FUNCTION).because("a type needs a name"));
    };
    let text = fallible::owned(call::utf_8(name)?)?;
    let optional = |given: Option<Given<'a, PyObject>>| given.map_or(Ok(None), |it| it.optional(m));
    let module = optional(module)?.map(|it| call::with_type(it, Code::WrongType)).transpose()?;
    if let Some(module) = module.filter(|module| module.module_face().is_none()) {
        let fault = Fault::new(Code::WrongType, FUNCTION).at(module.address().as_ptr() as usize);
        return Err(fault.because(words!("type '{text}': this is no module")));
    }
    // SAFETY: rule *argument*.
    let Parsed { mut given, token } = unsafe { parse(spec, &text) }?;
    let mut list = Vec::new();
    match optional(bases)?.or_else(|| Face::of_member(given.tp_bases.cast()).map(Face::head)) {
        Some(bases) => collect_bases(bases, &mut list, &text)?,
        None => {
            if let Some(base) = Face::of_member(given.tp_base) {
                {
                    let _one = readying()?;
                    ready_static(base, 0)?;
                }
                let base = base.own().map(Type::from_record);
                fallible::push(&mut list, base.expect("it is ready"))?;
            }
        }
    }
    let mut wanted = TypeSpec::new(text);
    wanted.basic_size = spec.basicsize as isize;
    wanted.item_size = spec.itemsize as isize;
    wanted.flags = Flags(u64::from(spec.flags) | given.tp_flags);
    wanted.slots = slots_of(&given);
    wanted.module = module.map(Obj::share);
    wanted.token = token;
    // SAFETY: rule *argument*.
    let doc = unsafe { Given::new(given.tp_doc.cast_mut()) }.text();
    let texts = fallible::arc(Texts {
        name: fallible::c_copy(name)?,
        doc: doc.map(fallible::c_copy).transpose()?,
    })?;
    wanted.keeps = Some(texts.clone());
    complete(&mut wanted, list);
    // SAFETY: rules *argument* and *new*: the handlers are for objects of this type. No other
    // thread has the new type's face, which has this size.
    let made = unsafe {
        dynamic::ready_heap(m, &wanted, |object, record| {
            let face = object.cast::<PyTypeObject>().as_ptr();
            (*face).tp_name = texts.name.as_ptr();
            (*face).tp_doc = texts.doc.as_ref().map_or(std::ptr::null(), |doc| doc.as_ptr());
            (*face).tp_new = given.tp_new.take();
            (*face).tp_init = given.tp_init.take();
            inherit(face, record);
            show(face, record);
            (*face).ss_own.set(record);
        })
    }?;
    let object: Option<AnyGc> = made.object().cloned();
    Ok(object.map_or(std::ptr::null_mut(), |object| dynamic::into_raw(object).as_ptr()))
}

fn no_module(function: &'static str, record: &TypeRecord) -> Fault {
    let text = words!("type '{}' has no such module", record.kept_name());
    Fault::new(Code::NoModule, function).of_type(record.kept_name()).because(text)
}

fn null_type(function: &'static str) -> c_int {
    errors::misuse(Fault::new(Code::NullArgument, function));
    0
}

export! {
    /// Makes a static type ready.
    #[given(face)]
    fn standstill_PyType_Ready(face: *mut PyTypeObject) -> c_int {
        const FUNCTION: &str = "PyType_Ready";
        call::outside(FUNCTION, -1, || {
            let result = face.face().and_then(|face| {
                builtins::start()?;
                if call::is_special() {
                    may_become_ready(face)?;
                }
                let _one = readying()?;
                let Some(record) = face.shown_record() else { return ready_static(face, 0) };
                let checked = Mutator::with_current(dynamic::is_checked) == Some(true);
                if face.check_intact(record, checked, FUNCTION) {
                    let text = "Py_TPFLAGS_HAVE_GC of a ready type cannot be changed";
                    return Err(Fault::new(Code::WrittenAfterReady, FUNCTION)
                        .of_type(record.kept_name())
                        .because(text));
                }
                Ok(())
            });
            match result {
                Ok(()) => 0,
                Err(mut fault) => {
                    fault.function = FUNCTION;
                    errors::set_fault(&fault);
                    -1
                }
            }
        })
    }

    /// Makes a heap type.
    #[given(spec)]
    fn standstill_PyType_FromSpec(spec: *mut PyType_Spec) -> *mut PyObject {
        call::fallible("PyType_FromSpec", std::ptr::null_mut(), |m| from_spec(m, None, spec, None))
    }

    /// Makes a heap type with these bases.
    #[given(spec, bases)]
    fn standstill_PyType_FromSpecWithBases(
        spec: *mut PyType_Spec,
        bases: *mut PyObject,
    ) -> *mut PyObject {
        call::fallible("PyType_FromSpecWithBases", std::ptr::null_mut(), |m| {
            from_spec(m, None, spec, Some(bases))
        })
    }

    /// Makes a heap type that belongs to a module.
    #[given(module, spec, bases)]
    fn standstill_PyType_FromModuleAndSpec(
        module: *mut PyObject,
        spec: *mut PyType_Spec,
        bases: *mut PyObject,
    ) -> *mut PyObject {
        call::fallible("PyType_FromModuleAndSpec", std::ptr::null_mut(), |m| {
            from_spec(m, Some(module), spec, Some(bases))
        })
    }

    /// Whether one type is another or derives from it.
    #[given(a, b)]
    fn standstill_PyType_IsSubtype(a: *mut PyTypeObject, b: *mut PyTypeObject) -> c_int {
        const FUNCTION: &str = "PyType_IsSubtype";
        if a.is_null() || b.is_null() {
            return null_type(FUNCTION);
        }
        let known = a.here(FUNCTION).and_then(|a| Some((a, b.here(FUNCTION)?)));
        c_int::from(known.is_some_and(|(a, b)| a.is_subtype(b)))
    }

    /// Whether an object is an instance of a type or of a derived type.
    #[given(object, face)]
    fn standstill_PyObject_TypeCheck(object: *mut PyObject, face: *mut PyTypeObject) -> c_int {
        const FUNCTION: &str = "PyObject_TypeCheck";
        if object.is_null() || face.is_null() {
            return null_type(FUNCTION);
        }
        let known = object.here(FUNCTION).and_then(|object| Some((object, face.here(FUNCTION)?)));
        let records = known.and_then(|(object, face)| Some((object.record()?, face.own()?)));
        c_int::from(records.is_some_and(|(own, wanted)| own.is_subtype_of(wanted)))
    }

    /// Whether the type has at least one of these flags.
    #[given(face)]
    fn standstill_PyType_HasFeature(face: *mut PyTypeObject, feature: c_ulong) -> c_int {
        const FUNCTION: &str = "PyType_HasFeature";
        c_int::from(face.needed_here(FUNCTION).is_some_and(|face| face.flags() & feature != 0))
    }

    /// The flags of a type.
    #[given(face)]
    fn standstill_PyType_GetFlags(face: *mut PyTypeObject) -> c_ulong {
        const FUNCTION: &str = "PyType_GetFlags";
        call::outside(FUNCTION, 0, || face.needed_here(FUNCTION).map_or(0, Face::flags))
    }

    /// The value of a slot.
    #[given(face)]
    fn standstill_PyType_GetSlot(face: *mut PyTypeObject, slot: c_int) -> *mut c_void {
        const FUNCTION: &str = "PyType_GetSlot";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let record = face.record(m)?;
            let face = face.face()?.members();
            macro_rules! function {
                ($place:ident) => {
                    face.$place.map_or(std::ptr::null_mut(), |function| function as *mut c_void)
                };
            }
            Ok(match slot {
                number::ALLOC => function!(tp_alloc),
                number::BASE => face.tp_base.cast(),
                number::BASES => face.tp_bases.cast(),
                number::CLEAR => function!(tp_clear),
                number::DEALLOC => function!(tp_dealloc),
                number::DEL => function!(tp_del),
                number::DOC => face.tp_doc.cast_mut().cast(),
                number::INIT => function!(tp_init),
                number::IS_GC => function!(tp_is_gc),
                number::NEW => function!(tp_new),
                number::TRAVERSE => function!(tp_traverse),
                number::FREE => function!(tp_free),
                number::FINALIZE => function!(tp_finalize),
                number::TOKEN => std::ptr::with_exposed_provenance_mut(record.token()),
                _ => {
                    let fault = Fault::new(Code::BadSlot, FUNCTION).of_type(record.kept_name());
                    return Err(fault.because(words!("there is no slot {slot}")));
                }
            })
        })
    }

    /// The type's own module, borrowed.
    #[given(face)]
    fn standstill_PyType_GetModule(face: *mut PyTypeObject) -> *mut PyObject {
        const FUNCTION: &str = "PyType_GetModule";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let record = face.record(m)?;
            dynamic::type_module(record)
                .map(NonNull::as_ptr)
                .ok_or_else(|| no_module(FUNCTION, record))
        })
    }

    /// The state of the type's own module.
    #[given(face)]
    fn standstill_PyType_GetModuleState(face: *mut PyTypeObject) -> *mut c_void {
        const FUNCTION: &str = "PyType_GetModuleState";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let record = face.record(m)?;
            // SAFETY: rule *thread*: this thread is attached.
            let module = unsafe { record.module_object() };
            let module = module.ok_or_else(|| no_module(FUNCTION, record))?;
            Ok(module.module_state().unwrap_or(std::ptr::null_mut()))
        })
    }

    /// The first module in the resolution order that was made from `def`, borrowed.
    #[given(face)]
    fn standstill_PyType_GetModuleByDef(
        face: *mut PyTypeObject,
        def: *mut PyModuleDef,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyType_GetModuleByDef";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            call::some(def)?;
            let record = face.record(m)?;
            // SAFETY: as above.
            let mut modules = record.mro().filter_map(|record| unsafe { record.module_object() });
            let found = modules.find(|module| {
                module.module_face().is_some_and(|face| std::ptr::addr_eq(face, def))
            });
            found.map(|module| module.address().as_ptr()).ok_or_else(|| no_module(FUNCTION, record))
        })
    }

    /// The first module in the resolution order that has this token.
    #[given(face)]
    fn standstill_PyType_GetModuleByToken(
        face: *mut PyTypeObject,
        token: *const c_void,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyType_GetModuleByToken";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            call::some(token.cast_mut())?;
            let record = face.record(m)?;
            // SAFETY: as above.
            let found = unsafe { dynamic::type_module_by_token(record, token as usize) };
            let module = found.ok_or_else(|| no_module(FUNCTION, record))?;
            // SAFETY: rule *counted*: the type owns its module.
            let module = unsafe { Head::new(module) };
            Ok(dynamic::into_raw(module.share()).as_ptr())
        })
    }

    /// The first type in the resolution order that has this token.
    #[given(face, result)]
    fn standstill_PyType_GetBaseByToken(
        face: *mut PyTypeObject,
        token: *mut c_void,
        result: *mut *mut PyTypeObject,
    ) -> c_int {
        const FUNCTION: &str = "PyType_GetBaseByToken";
        let found = call::fallible(FUNCTION, Err(()), |m| {
            call::some(token)?;
            let record = face.record(m)?;
            let found = dynamic::base_by_token(record, token as usize);
            if let Some(object) = found.and_then(|base| Type::from_record(base).object().cloned())
                && !result.is_null()
            {
                // The caller receives the reference.
                std::mem::forget(object);
            }
            Ok(Ok(found.map_or(std::ptr::null_mut(), |base| base.face().cast::<PyTypeObject>())))
        });
        result.write(found.unwrap_or(std::ptr::null_mut()));
        found.map_or(-1, |base| c_int::from(!base.is_null()))
    }

    /// The number of bytes that the type reserves in its instances.
    #[given(face)]
    fn standstill_PyType_GetTypeDataSize(face: *mut PyTypeObject) -> isize {
        call::fallible("PyType_GetTypeDataSize", -1, |m| Ok(face.record(m)?.data_size() as isize))
    }
}
