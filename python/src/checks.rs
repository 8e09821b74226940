//! The checks of the interpreter before the package becomes active.
//!
//! The package reads structures that no interface of CPython promises. So it is active only in an
//! interpreter that it knows:
//!
//! | check | what it excludes |
//! |---|---|
//! | the version was tested | another meaning of the same structures |
//! | the functions exist | an interpreter that was linked in another way |
//! | the layouts agree with `_PyRuntime.debug_offsets`, the interpreter's own table of offsets |
//! headers of another build: another version, `Py_DEBUG`, another compiler |
//! | in one stop, each page of the allocator is [`plausible`] | another allocator, for example of a
//! build with ThreadSanitizer |
//! | in the same stop, [`pages`](crate::pages) finds the same tracked objects as
//! `PyUnstable_GC_VisitObjects` | a fault of the enumeration |
//!
//! They run in this order, because each relies on those before it. The first that fails gives the
//! reason. The package is then not active, and CPython's collector stays.
//!
//! The table of offsets is compared twice: with the table that the C compiler makes of the headers,
//! word by word; and with those fields of bindgen's structures that the table has. `build.rs`
//! compares all fields of the structures that the package uses with the C compiler's.

use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;

use crate::counts::takes_part;
use crate::layout as c;
use crate::pages::{Failed, Pages, debug_prefix};
use crate::plausible::{self, Alter};

/// Versions that were tested, by `sys.hexversion`: from the first to the last.
pub struct Tested {
    first: u32,
    last: u32,
}

/// The versions that the tests run with (`ci/python.sh`).
const TESTED: &[Tested] = &[
    Tested { first: 0x030e_07f0, last: 0x030e_07f0 },
    Tested { first: 0x030f_00c1, last: 0x030f_00c1 },
];

/// The interpreter's functions and data that the package uses, beyond CPython's public interface.
const SYMBOLS: &[&CStr] = &[
    c"_PyRuntime",
    c"_PyEval_StopTheWorld",
    c"_PyEval_StartTheWorld",
    c"_PyWeakref_ClearRef",
    c"_PyEval_AddPendingCall",
    c"PyUnstable_GC_VisitObjects",
];

/// The properties that the checks expect of the interpreter.
pub struct Expectations {
    versions: &'static [Tested],
    symbols: &'static [&'static CStr],
    /// One more symbol.
    further_symbol: Option<&'static CStr>,
    /// Bytes by which the offset of `gc.collecting` is expected to differ from that of the headers.
    shift: u64,
    /// Bytes by which the structure of bindgen is expected to be longer than it is.
    growth: u64,
    /// Objects that the self-test omits from this package's enumeration.
    omitted: usize,
    /// The change to each page before the self-test checks it.
    alter: Alter,
}

impl Expectations {
    /// The interpreters that were tested.
    pub const fn tested() -> Self {
        Self {
            versions: TESTED,
            symbols: SYMBOLS,
            further_symbol: None,
            shift: 0,
            growth: 0,
            omitted: 0,
            alter: plausible::AS_IT_IS,
        }
    }

    /// For tests: one expectation is wrong, so that its check must fail. `None`: there is no
    /// expectation of this name.
    pub fn wrong(name: &str) -> Option<Self> {
        let tested = Self::tested();
        Some(match name {
            "version" => Self { versions: &[], ..tested },
            "symbol" => Self { further_symbol: Some(c"_PyEval_StopTheUniverse"), ..tested },
            "headers" => Self { shift: 8, ..tested },
            "structures" => Self { growth: 8, ..tested },
            "enumeration" => Self { omitted: 1, ..tested },
            _ => {
                let (_, alter) = *plausible::CHANGES.iter().find(|change| change.0 == name)?;
                Self { alter, ..tested }
            }
        })
    }
}

/// Finds a function of the interpreter, or data.
pub fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("this interpreter does not export {}", name.to_string_lossy()));
    }
    Ok(found)
}

/// Runs all checks. An error is the reason why the package must not be active.
///
/// # Safety
///
/// This thread is attached, and the world runs.
pub unsafe fn run(expected: &Expectations) -> Result<(), String> {
    // SAFETY: the interpreter's constant.
    let version = unsafe { pyo3_ffi::Py_Version };
    check_version(expected, u32::try_from(version).unwrap_or(u32::MAX))?;
    for name in expected.symbols.iter().copied().chain(expected.further_symbol) {
        symbol(name)?;
    }
    // SAFETY: the version is right, and so the table is the first member of this symbol.
    unsafe { check_layouts(expected, symbol(c"_PyRuntime")?.cast()) }?;
    // SAFETY: as the caller says, and the layouts are right.
    unsafe { check_enumeration(expected) }
}

/// A version as CPython writes it.
fn readable(version: u32) -> String {
    let [major, minor, micro, level] = version.to_be_bytes();
    let (name, serial) = (level >> 4, level & 15);
    let end = match name {
        0xa => format!("a{serial}"),
        0xb => format!("b{serial}"),
        0xc => format!("rc{serial}"),
        _ => String::new(),
    };
    format!("{major}.{minor}.{micro}{end}")
}

fn check_version(expected: &Expectations, version: u32) -> Result<(), String> {
    let built = c::SS_VERSION as u32;
    // Versions with one number before the second point share an ABI, and so a wheel.
    if built >> 16 != version >> 16 {
        let (built, version) = (readable(built), readable(version));
        return Err(format!("it was built for CPython {built}, and this is {version}"));
    }
    if expected.versions.iter().any(|t| (t.first..=t.last).contains(&version)) {
        return Ok(());
    }
    let tested: Vec<String> = expected
        .versions
        .iter()
        .map(|t| match (readable(t.first), readable(t.last)) {
            (first, last) if first == last => first,
            (first, last) => format!("{first} to {last}"),
        })
        .collect();
    let tested = if tested.is_empty() { "none".into() } else { tested.join(", ") };
    Err(format!("CPython {} was not tested; tested: {tested}", readable(version)))
}

/// The words of the table of offsets.
const WORDS: usize = size_of::<c::_Py_DebugOffsets>() / size_of::<u64>();

/// A field of the table: its name, its place, and its value for the structures of bindgen.
type Field = (&'static str, usize, usize);

macro_rules! fields {
    ($($(#[$only:meta])? $table:ident . $field:ident: $value:expr;)*) => {
        &[$($(#[$only])? (
            concat!(stringify!($table), ".", stringify!($field)),
            offset_of!(c::_Py_DebugOffsets, $table.$field) / size_of::<u64>(),
            $value,
        ),)*]
    };
}

/// The fields of the table that describe structures that bindgen knows.
const FIELDS: &[Field] = fields! {
    runtime_state.size: size_of::<c::_PyRuntimeState>();
    runtime_state.finalizing: offset_of!(c::_PyRuntimeState, _finalizing);
    runtime_state.interpreters_head: offset_of!(c::_PyRuntimeState, interpreters.head);
    interpreter_state.size: size_of::<c::PyInterpreterState>();
    interpreter_state.id: offset_of!(c::PyInterpreterState, id);
    interpreter_state.next: offset_of!(c::PyInterpreterState, next);
    interpreter_state.threads_head: offset_of!(c::PyInterpreterState, threads.head);
    interpreter_state.threads_main: offset_of!(c::PyInterpreterState, threads.main);
    interpreter_state.gc: offset_of!(c::PyInterpreterState, gc);
    interpreter_state.imports_modules: offset_of!(c::PyInterpreterState, imports.modules);
    interpreter_state.sysdict: offset_of!(c::PyInterpreterState, sysdict);
    interpreter_state.builtins: offset_of!(c::PyInterpreterState, builtins);
    interpreter_state.ceval_gil: offset_of!(c::PyInterpreterState, ceval.gil);
    interpreter_state.gil_runtime_state: offset_of!(c::PyInterpreterState, _gil);
    interpreter_state.gil_runtime_state_locked: offset_of!(c::PyInterpreterState, _gil.locked);
    interpreter_state.gil_runtime_state_holder: offset_of!(c::PyInterpreterState, _gil.last_holder);
    interpreter_state.code_object_generation:
        offset_of!(c::PyInterpreterState, _code_object_generation);
    interpreter_state.tlbc_generation:
        offset_of!(c::PyInterpreterState, tlbc_indices.tlbc_generation);
    thread_state.size: size_of::<c::PyThreadState>();
    thread_state.prev: offset_of!(c::PyThreadState, prev);
    thread_state.next: offset_of!(c::PyThreadState, next);
    thread_state.interp: offset_of!(c::PyThreadState, interp);
    thread_state.current_frame: offset_of!(c::PyThreadState, current_frame);
    #[cfg(py315)]
    thread_state.base_frame: offset_of!(c::PyThreadState, base_frame);
    thread_state.thread_id: offset_of!(c::PyThreadState, thread_id);
    thread_state.native_thread_id: offset_of!(c::PyThreadState, native_thread_id);
    thread_state.datastack_chunk: offset_of!(c::PyThreadState, datastack_chunk);
    thread_state.status: offset_of!(c::PyThreadState, _status);
    #[cfg(py315)]
    thread_state.exc_state: offset_of!(c::PyThreadState, exc_state);
    interpreter_frame.size: size_of::<c::_PyInterpreterFrame>();
    interpreter_frame.previous: offset_of!(c::_PyInterpreterFrame, previous);
    interpreter_frame.executable: offset_of!(c::_PyInterpreterFrame, f_executable);
    interpreter_frame.instr_ptr: offset_of!(c::_PyInterpreterFrame, instr_ptr);
    interpreter_frame.localsplus: offset_of!(c::_PyInterpreterFrame, localsplus);
    interpreter_frame.owner: offset_of!(c::_PyInterpreterFrame, owner);
    interpreter_frame.stackpointer: offset_of!(c::_PyInterpreterFrame, stackpointer);
    interpreter_frame.tlbc_index: offset_of!(c::_PyInterpreterFrame, tlbc_index);
    code_object.size: size_of::<c::PyCodeObject>();
    code_object.filename: offset_of!(c::PyCodeObject, co_filename);
    code_object.name: offset_of!(c::PyCodeObject, co_name);
    code_object.qualname: offset_of!(c::PyCodeObject, co_qualname);
    code_object.localsplusnames: offset_of!(c::PyCodeObject, co_localsplusnames);
    code_object.co_code_adaptive: offset_of!(c::PyCodeObject, co_code_adaptive);
    code_object.co_tlbc: offset_of!(c::PyCodeObject, co_tlbc);
    pyobject.size: size_of::<c::PyObject>();
    pyobject.ob_type: offset_of!(c::PyObject, ob_type);
    type_object.size: size_of::<c::PyTypeObject>();
    type_object.tp_name: offset_of!(c::PyTypeObject, tp_name);
    type_object.tp_repr: offset_of!(c::PyTypeObject, tp_repr);
    type_object.tp_flags: offset_of!(c::PyTypeObject, tp_flags);
    #[cfg(py315)]
    type_object.tp_basicsize: offset_of!(c::PyTypeObject, tp_basicsize);
    #[cfg(py315)]
    type_object.tp_dictoffset: offset_of!(c::PyTypeObject, tp_dictoffset);
    #[cfg(py315)]
    heap_type_object.size: size_of::<c::PyHeapTypeObject>();
    #[cfg(py315)]
    heap_type_object.ht_cached_keys: offset_of!(c::PyHeapTypeObject, ht_cached_keys);
    tuple_object.size: size_of::<c::PyTupleObject>();
    tuple_object.ob_item: offset_of!(c::PyTupleObject, ob_item);
    tuple_object.ob_size: offset_of!(c::PyTupleObject, ob_base.ob_size);
    list_object.size: size_of::<c::PyListObject>();
    list_object.ob_item: offset_of!(c::PyListObject, ob_item);
    list_object.ob_size: offset_of!(c::PyListObject, ob_base.ob_size);
    dict_object.size: size_of::<c::PyDictObject>();
    dict_object.ma_keys: offset_of!(c::PyDictObject, ma_keys);
    dict_object.ma_values: offset_of!(c::PyDictObject, ma_values);
    gc.size: size_of::<c::_gc_runtime_state>();
    gc.collecting: offset_of!(c::_gc_runtime_state, collecting);
    #[cfg(py315)]
    gc.frame: offset_of!(c::_gc_runtime_state, frame);
    #[cfg(py315)]
    gc.generation_stats_size: size_of::<c::gc_stats>();
    #[cfg(py315)]
    gc.generation_stats: offset_of!(c::_gc_runtime_state, generation_stats);
    gen_object.size: size_of::<c::PyGenObject>();
    gen_object.gi_name: offset_of!(c::PyGenObject, gi_name);
    gen_object.gi_iframe: offset_of!(c::PyGenObject, gi_iframe);
    gen_object.gi_frame_state: offset_of!(c::PyGenObject, gi_frame_state);
    llist_node.next: offset_of!(c::llist_node, next);
    llist_node.prev: offset_of!(c::llist_node, prev);
};

/// Compares the interpreter's table of offsets with the headers and with bindgen's structures.
///
/// # Safety
///
/// `table` has the length of the headers' table.
unsafe fn check_layouts(expected: &Expectations, table: *const [u64; WORDS]) -> Result<(), String> {
    let mut headers = [0u64; WORDS];
    // SAFETY: the function writes a table, which consists of 64-bit numbers.
    let table = unsafe {
        c::ss_debug_offsets(headers.as_mut_ptr().cast());
        table.read()
    };
    let collecting = offset_of!(c::_Py_DebugOffsets, gc.collecting) / size_of::<u64>();
    headers[collecting] += expected.shift;
    for (at, (found, header)) in table.iter().zip(&headers).enumerate() {
        if found != header {
            let name = FIELDS.iter().find(|field| field.1 == at).map(|field| field.0);
            let name = name.map_or_else(|| format!("number {at}"), str::to_owned);
            return Err(format!(
                "it was built with headers of another interpreter: {name} of debug_offsets is \
                 {found} here, and {header} in the headers"
            ));
        }
    }
    for &(name, at, value) in FIELDS {
        let growth = if name == "gc.size" { expected.growth } else { 0 };
        let value = value as u64 + growth;
        if table[at] != value {
            let found = table[at];
            return Err(format!(
                "a structure differs from the interpreter's: {name} of debug_offsets is {found}, \
                 and {value} in bindgen's structures"
            ));
        }
    }
    Ok(())
}

/// The objects that both enumerations have found in one stop.
struct Found {
    interpreter: *mut c::PyInterpreterState,
    theirs: Vec<usize>,
    ours: Ours,
    alter: Alter,
    failed: Option<Failed>,
}

/// The objects that this package's enumeration has found.
#[derive(Default)]
struct Ours {
    objects: Vec<usize>,
    /// Pages for which the allocator has counted another number of blocks in use.
    uneven: usize,
}

impl Found {
    /// The interpreter calls it for an object, while the world is stopped and the list of threads
    /// is locked. The first call is also the place for the other enumeration.
    ///
    /// # Safety
    ///
    /// As the text says.
    unsafe fn add(&mut self, object: usize) -> Result<(), Failed> {
        if self.theirs.is_empty() {
            // SAFETY: as the caller says.
            unsafe { enumerate(self.interpreter, self.alter, &mut self.ours) }?;
        }
        push(&mut self.theirs, object)
    }
}

fn push(list: &mut Vec<usize>, object: usize) -> Result<(), Failed> {
    list.try_reserve(1)?;
    list.push(object);
    Ok(())
}

/// Lists the objects that take part in collections.
///
/// # Safety
///
/// The world is stopped, and the caller has the lock of the list of threads.
unsafe fn enumerate(
    interpreter: *mut c::PyInterpreterState,
    alter: Alter,
    into: &mut Ours,
) -> Result<(), Failed> {
    let mut result = Ok(());
    // SAFETY: as the caller says.
    unsafe {
        let pages = Pages::list_locked(interpreter, debug_prefix(), Some(alter))?;
        for &page in pages.pages() {
            let blocks = pages.each(page, |object| {
                if takes_part(object.cast().as_ptr()) && result.is_ok() {
                    result = push(&mut into.objects, object.addr().get());
                }
            });
            into.uneven += usize::from(blocks != pages.used(page));
        }
    }
    result
}

type Visit = unsafe extern "C" fn(*mut pyo3_ffi::PyObject, *mut c_void) -> c_int;

/// Compares the enumerations of one stop.
///
/// # Safety
///
/// This thread is attached, the world runs, and the layouts are right.
unsafe fn check_enumeration(expected: &Expectations) -> Result<(), String> {
    unsafe extern "C" fn visit(object: *mut pyo3_ffi::PyObject, found: *mut c_void) -> c_int {
        // SAFETY: the interpreter passes the argument that it was given below.
        let found = unsafe { &mut *found.cast::<Found>() };
        // SAFETY: the interpreter calls it as `add` demands.
        found.failed = unsafe { found.add(object.addr()) }.err();
        c_int::from(found.failed.is_none())
    }
    let visit_objects = symbol(c"PyUnstable_GC_VisitObjects")?;
    // SAFETY: the function has this type in all tested versions.
    let visit_objects = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Visit, *mut c_void)>(visit_objects)
    };
    let mut found = Found {
        // SAFETY: as the caller says.
        interpreter: unsafe { pyo3_ffi::PyInterpreterState_Get() }.cast(),
        theirs: Vec::new(),
        ours: Ours::default(),
        alter: expected.alter,
        failed: None,
    };
    // SAFETY: as the caller says.
    unsafe { visit_objects(visit, (&raw mut found).cast()) };
    let Found { mut theirs, ours: Ours { objects: mut ours, uneven }, failed, .. } = found;
    match failed {
        None => {}
        Some(Failed::NoMemory) => return Err("there is no memory for the self-test".into()),
        Some(Failed::Implausible(why)) => {
            return Err(format!(
                "the self-test has failed: the allocator is not that of the headers: {why}"
            ));
        }
    }
    ours.truncate(ours.len().saturating_sub(expected.omitted));
    theirs.sort_unstable();
    ours.sort_unstable();
    if theirs != ours {
        let absent = |from: &[usize], object| from.binary_search(object).is_err();
        let missing = theirs.iter().filter(|object| absent(&ours, object)).count();
        let added = ours.iter().filter(|object| absent(&theirs, object)).count();
        let all = theirs.len();
        return Err(format!(
            "the self-test has failed: of {all} objects of the interpreter, {missing} were not \
             found, and {added} others were found"
        ));
    }
    if uneven != 0 {
        return Err(format!(
            "the self-test has failed: in {uneven} pages the allocator has counted another number \
             of blocks"
        ));
    }
    Ok(())
}
