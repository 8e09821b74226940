//! Stack references that extension modules show to visitors.
//!
//! A traverse function of an extension module may visit frames that no thread runs now, as
//! greenlet's does. CPython 3.15 exports two functions for this purpose. They hide a reference that
//! is not counted from two visitors of CPython's own. Every other visitor gets it, and cannot tell
//! it from a counted one. A collector that subtracts such a reference from a count clears live
//! objects.
//!
//! So libraries call [`visit_reference`] and [`visit_frame`] instead, which report such references
//! as uncounted to the visitors of this package. For all other visitors they call CPython's
//! functions. [`redirect`] changes the addresses in the tables through which a library calls the
//! functions of others (the *global offset table*). Each stop that lists objects does this for the
//! libraries that were loaded since the last one, before any traversal. If a table cannot be
//! changed, CPython collects.
//!
//! It does not matter which function a traversal begins with: it may be that of a class of Python,
//! or of another library's type, with a base of such a library.
//!
//! A library that asks `dlsym` for the functions is overlooked, and so is one that is linked into
//! the interpreter's executable.
//!
//! # Garbage
//!
//! As in other [frames](crate::frames), the references that a garbage object shows are made counted
//! ones. Foreign traverse functions do not run on workers. So [`Holders`] notes which objects have
//! such references, and the collecting thread traverses these once more at the end of the stop.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use standstill::model::{Object, Tracer};

use crate::checks::symbol;
use crate::frames::{count_reference, each_local, edge, uncounted};
use crate::layout as c;

type Visitor = unsafe extern "C" fn(*mut c::PyObject, *mut c_void) -> c_int;
type Handler = unsafe extern "C" fn(*mut c::PyObject, Option<Visitor>, *mut c_void) -> c_int;
type VisitReference = unsafe extern "C" fn(*mut c::_PyStackRef, Visitor, *mut c_void) -> c_int;
type VisitFrame = unsafe extern "C" fn(*mut c::_PyInterpreterFrame, Visitor, *mut c_void) -> c_int;

const NAMES: [&CStr; 2] = [c"_PyGC_VisitStackRef", c"_PyGC_VisitFrameStack"];

/// CPython's functions.
static ORIGINAL: OnceLock<(VisitReference, VisitFrame)> = OnceLock::new();

/// The number of libraries that the process had loaded when their tables were last changed.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// The process whose tables were changed last. The clone that searches is another one.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether a library calls the functions of this module.
static IS_REDIRECTED: AtomicBool = AtomicBool::new(false);

/// Finds CPython's functions.
pub fn prepare() -> Result<(), String> {
    let [reference, frame] = [symbol(NAMES[0])?, symbol(NAMES[1])?];
    // SAFETY: the functions have these types in all tested versions that export them.
    ORIGINAL.get_or_init(|| unsafe {
        (
            std::mem::transmute::<*mut c_void, VisitReference>(reference),
            std::mem::transmute::<*mut c_void, VisitFrame>(frame),
        )
    });
    Ok(())
}

/// Whether a library calls the functions of this module.
pub fn is_redirected() -> bool {
    // Relaxed: the stop orders it.
    IS_REDIRECTED.load(Ordering::Relaxed)
}

// ------------------------------------------------------------------------------- the traversal

/// The data of [`visit`].
struct Visit<'t> {
    tracer: &'t mut Tracer,
    /// The object has shown a reference that is not counted.
    holds: bool,
}

/// The visitor of objects whose traverse function may call the functions of this module.
unsafe extern "C" fn visit(op: *mut c::PyObject, data: *mut c_void) -> c_int {
    // SAFETY: `traverse` passes its data. The target is alive: an object refers to it.
    unsafe { edge((*data.cast::<Visit<'_>>()).tracer, op) };
    0
}

/// The visitor that makes references counted.
unsafe extern "C" fn count(_: *mut c::PyObject, _: *mut c_void) -> c_int {
    0
}

/// The visitors have one address each for all comparisons.
static VISIT: Visitor = visit;
static COUNT: Visitor = count;

/// Reports all references of an object.
///
/// # Panics
///
/// If the traverse function fails, or if there is no memory. The collection is then abandoned.
///
/// # Safety
///
/// The world is stopped, and `handler` is the traverse function of the object's type.
#[cold]
pub unsafe fn traverse(op: *mut c::PyObject, handler: Handler, tracer: &mut Tracer) {
    let mut data = Visit { tracer, holds: false };
    // SAFETY: as the caller says.
    let failed = unsafe { handler(op, Some(VISIT), (&raw mut data).cast()) };
    assert!(failed == 0, "a traverse function has failed");
    // A child that searches needs no list, and must not allocate. Relaxed: the stop orders it.
    if data.holds && std::process::id() == PROCESS.load(Ordering::Relaxed) {
        HOLDERS.add(op);
    }
}

/// Replaces CPython's function in other libraries.
unsafe extern "C" fn visit_reference(
    reference: *mut c::_PyStackRef,
    visitor: Visitor,
    data: *mut c_void,
) -> c_int {
    // SAFETY: a traverse function calls, with a valid reference. Only `traverse` and `Holders` pass
    // these visitors, in a stop.
    unsafe {
        if visitor as usize == VISIT as usize {
            if let Some(object) = uncounted(*reference) {
                let visit = &mut *data.cast::<Visit<'_>>();
                visit.holds = true;
                visit.tracer.uncounted(Object::new(NonNull::new_unchecked(object.cast())));
                return 0;
            }
        } else if visitor as usize == COUNT as usize {
            count_reference(reference);
            return 0;
        }
        ORIGINAL.get().map_or(0, |original| original.0(reference, visitor, data))
    }
}

/// Replaces CPython's function in other libraries.
unsafe extern "C" fn visit_frame(
    frame: *mut c::_PyInterpreterFrame,
    visitor: Visitor,
    data: *mut c_void,
) -> c_int {
    // SAFETY: a traverse function calls, with a frame that no thread runs. See `visit_reference`.
    unsafe {
        if visitor as usize != VISIT as usize && visitor as usize != COUNT as usize {
            return ORIGINAL.get().map_or(0, |original| original.1(frame, visitor, data));
        }
        each_local(frame, |reference| {
            if !c::ss_stackref_object(*reference).is_null() {
                visit_reference(reference, visitor, data);
            }
        });
    }
    0
}

// ---------------------------------------------------------------------------------- garbage

/// The objects that have shown references that are not counted, in this stop.
pub struct Holders(Mutex<Vec<usize>>);

pub static HOLDERS: Holders = Holders(Mutex::new(Vec::new()));

impl Holders {
    fn add(&self, op: *mut c::PyObject) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(all.try_reserve(1).is_ok(), "no memory to traverse a frame");
        all.push(op as usize);
    }

    /// At the end of a stop: makes the references of those that were claimed counted ones.
    ///
    /// # Safety
    ///
    /// This thread has stopped the world, and no worker of the collection runs.
    pub unsafe fn count_claimed(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for op in all {
            let op = op as *mut c::PyObject;
            // SAFETY: as the caller says. The object was traversed in this stop, so it is alive. A
            // second visit finds no reference that is not counted.
            unsafe {
                if (*op).ob_gc_bits & c::SS_BITS_UNREACHABLE as u8 != 0
                    && let Some(handler) = (*(*op).ob_type).tp_traverse
                {
                    handler(op, Some(COUNT), null_mut());
                }
            }
        }
    }
}

// -------------------------------------------------------------------------------- the tables

/// Types of entries that have the address of a function (x86-64).
const R_64: u64 = 1;
const R_GLOB_DAT: u64 = 6;
const R_JUMP_SLOT: u64 = 7;

/// Tags of the dynamic section: the tables of symbols and their names, and the two tables of
/// relocations with their sizes in bytes.
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// An entry of a library's dynamic section, as in `elf.h`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// A place that the loader has filled with an address, as in `elf.h`.
#[repr(C)]
struct Relocation {
    offset: usize,
    symbol_and_type: u64,
    added: i64,
}

/// Has the libraries that were loaded since the last call use the functions of this module.
///
/// # Safety
///
/// The world is stopped.
pub unsafe fn redirect() -> Result<(), &'static str> {
    struct Search {
        loaded: u64,
        result: Result<(), &'static str>,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid structure of a library that stays loaded during
        // the call, and the caller's data.
        unsafe {
            let search = &mut *search.cast::<Search>();
            search.loaded = (*info).dlpi_adds;
            // Relaxed, here and below: only the thread that has stopped the world accesses it.
            if search.loaded == LOADED.load(Ordering::Relaxed) {
                return 1;
            }
            search.result = redirect_in(&*info);
            c_int::from(search.result.is_err())
        }
    }
    // Relaxed: only the thread that has stopped the world accesses it.
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    let mut search = Search { loaded: 0, result: Ok(()) };
    // SAFETY: the callback matches, and the data lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    if search.result.is_ok() {
        LOADED.store(search.loaded, Ordering::Relaxed);
    }
    search.result
}

/// # Safety
///
/// The structure describes a library that stays loaded during the call.
unsafe fn redirect_in(library: &libc::dl_phdr_info) -> Result<(), &'static str> {
    const SIZE: usize = size_of::<Relocation>();
    let base = library.dlpi_addr as usize;
    // SAFETY: as the caller says. The sections have the layouts of `elf.h`, and the loader has
    // used them.
    unsafe {
        let parts = std::slice::from_raw_parts(library.dlpi_phdr, library.dlpi_phnum.into());
        let Some(part) = parts.iter().find(|part| part.p_type == libc::PT_DYNAMIC) else {
            return Ok(());
        };
        let mut entry = (base + part.p_vaddr as usize) as *const Dynamic;
        let (mut symbols, mut names, mut tables) = (0, 0, [(0, 0); 2]);
        while (*entry).tag != 0 {
            let value = (*entry).value;
            // Some loaders replace offsets by addresses.
            let address = if value < base { base + value } else { value };
            match (*entry).tag {
                DT_PLTRELSZ => tables[0].1 = value / SIZE,
                DT_STRTAB => names = address,
                DT_SYMTAB => symbols = address,
                DT_RELA => tables[1].0 = address,
                DT_RELASZ => tables[1].1 = value / SIZE,
                DT_JMPREL => tables[0].0 = address,
                _ => {}
            }
            entry = entry.add(1);
        }
        // Without one of them there are no functions of other libraries.
        let is_whole = |table| symbols != 0 && names != 0 && table != 0;
        for (table, number) in tables.into_iter().filter(|&(table, _)| is_whole(table)) {
            for relocation in std::slice::from_raw_parts(table as *const Relocation, number) {
                let (symbol, kind) =
                    (relocation.symbol_and_type >> 32, relocation.symbol_and_type & 0xffff_ffff);
                let symbol = &*(symbols as *const libc::Elf64_Sym).add(symbol as usize);
                let name = CStr::from_ptr((names as *const c_char).add(symbol.st_name as usize));
                // A library that has the function itself is the interpreter's.
                let is_imported = symbol.st_name != 0 && symbol.st_shndx == 0;
                let which = NAMES.iter().position(|own| is_imported && *own == name);
                let Some(which) = which else { continue };
                if !matches!(kind, R_64 | R_GLOB_DAT | R_JUMP_SLOT) || relocation.added != 0 {
                    return Err("a library refers to stack references in an unknown way");
                }
                let Some(original) = ORIGINAL.get() else { continue };
                let (function, original) = if which == 0 {
                    (visit_reference as VisitReference as usize, original.0 as usize)
                } else {
                    (visit_frame as VisitFrame as usize, original.1 as usize)
                };
                write(base, parts, base + relocation.offset, function, original)?;
                IS_REDIRECTED.store(true, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Writes an address into a library's table.
///
/// # Safety
///
/// `place` has the address of a function, in the library at `base` with these parts. `original` is
/// the address of CPython's function.
unsafe fn write(
    base: usize,
    parts: &[libc::Elf64_Phdr],
    place: usize,
    function: usize,
    original: usize,
) -> Result<(), &'static str> {
    // SAFETY: it only asks.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let within = |part: &libc::Elf64_Phdr, address: usize| {
        let begin = base + part.p_vaddr as usize;
        (begin..begin + part.p_memsz as usize).contains(&address)
    };
    let has = |kind, flags, address| {
        let mut parts = parts.iter();
        parts.any(|p| p.p_type == kind && p.p_flags & flags == flags && within(p, address))
    };
    // SAFETY: as the caller says. Other threads may read the table meanwhile: the page stays
    // readable, and the address is written at once.
    unsafe {
        let entry = AtomicUsize::from_ptr(place as *mut usize);
        // Relaxed: a thread that loads a library is the only one that writes.
        let now = entry.load(Ordering::Relaxed);
        if now == function {
            return Ok(());
        }
        // Before its first call, an entry may lead back into its own library.
        if now != original && !has(libc::PT_LOAD, 0, now) {
            return Err("a library is being loaded");
        }
        // The loader has made this part read-only, and perhaps not its last page.
        let is_protected = has(libc::PT_GNU_RELRO, 0, place);
        let start = (place & !(page - 1)) as *mut c_void;
        let protect = |how| libc::mprotect(start, page, how) == 0;
        if !has(libc::PT_LOAD, libc::PF_W, place)
            || is_protected && !protect(libc::PROT_READ | libc::PROT_WRITE)
        {
            return Err("a library's table of functions cannot be changed");
        }
        // Release: a thread that calls the function sees what it needs (`ORIGINAL`).
        entry.store(function, Ordering::Release);
        let ends_after =
            |p: &libc::Elf64_Phdr| base + (p.p_vaddr + p.p_memsz) as usize >= start as usize + page;
        if is_protected && parts.iter().any(|p| p.p_type == libc::PT_GNU_RELRO && ends_after(p)) {
            // If it fails, the page stays writable, which does no harm.
            protect(libc::PROT_READ);
        }
    }
    Ok(())
}
