//! Traverse functions that may run on several threads.
//!
//! The workers of a collection have no thread state. The traverse functions of CPython need none,
//! and neither do those of most extensions. An unknown one is left to the collecting thread.
//!
//! A function is known if it lies in the executable or the library that contains the interpreter,
//! or in one of the interpreter's own extension modules: those in a directory `lib-dynload` that
//! was on the path when the package was imported. The traverse function of modules calls another
//! one, which each extension module may have: then that one has to be known.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::layout as c;

/// The known functions.
#[derive(Default)]
pub struct Known {
    /// The traverse function of classes, which calls that of the first base with another one.
    pub of_classes: usize,
    /// The traverse function of modules, which calls one of the module.
    of_modules: usize,
    /// The directories of the interpreter's extension modules.
    directories: Vec<PathBuf>,
    /// The code of the executable, or of the library that contains the interpreter.
    interpreter: Range<usize>,
    /// Functions that were looked up: the address, and whether it is known.
    others: RwLock<Vec<(usize, bool)>>,
    /// The last known function that was looked up. It saves the lock.
    last: AtomicUsize,
}

impl Known {
    /// The functions of an interpreter. `class` is a class that a program has defined.
    ///
    /// # Safety
    ///
    /// The class is alive, and this thread is attached.
    pub unsafe fn new(class: *mut c::PyTypeObject) -> Self {
        let modules: *mut c::PyTypeObject = (&raw mut pyo3_ffi::PyModule_Type).cast();
        // SAFETY: as the caller says. The type of modules lives for ever.
        let [of_classes, of_modules] = [class, modules]
            .map(|class| unsafe { (*class).tp_traverse.map_or(0, |function| function as usize) });
        let interpreter = code_around(of_classes);
        // SAFETY: as the caller says.
        let directories = unsafe { directories() };
        Self { of_classes, of_modules, directories, interpreter, ..Self::default() }
    }

    /// The same functions, for another heap.
    pub fn again(&self) -> Self {
        Self {
            of_classes: self.of_classes,
            of_modules: self.of_modules,
            directories: self.directories.clone(),
            interpreter: self.interpreter.clone(),
            ..Self::default()
        }
    }

    /// Whether the traverse function of an object is known.
    ///
    /// # Safety
    ///
    /// The object is tracked, and the world is stopped.
    #[inline(always)]
    pub unsafe fn is_known(&self, op: *mut c::PyObject) -> bool {
        // SAFETY: as the caller says.
        let mut class = unsafe { (*op).ob_type };
        let address = loop {
            // SAFETY: as the caller says. A class keeps its bases alive, and its last base,
            // `object`, has no traverse function.
            let Some(function) = (unsafe { (*class).tp_traverse }) else { return true };
            if function as usize != self.of_classes {
                break function as usize;
            }
            // SAFETY: as above.
            class = unsafe { (*class).tp_base };
        };
        if address == self.of_modules {
            // SAFETY: as the caller says. A type with this traverse function is one of modules.
            return unsafe { self.is_known_module(op.cast()) };
        }
        self.is_known_at(address)
    }

    #[inline(always)]
    fn is_known_at(&self, address: usize) -> bool {
        self.interpreter.contains(&address) || self.is_known_elsewhere(address)
    }

    /// Whether a module's own traverse function is known, or it has none.
    ///
    /// # Safety
    ///
    /// The module is alive, and the world is stopped.
    unsafe fn is_known_module(&self, module: *mut c::PyModuleObject) -> bool {
        // SAFETY: as the caller says.
        let function = unsafe {
            #[cfg(py315)]
            {
                (*module).md_state_traverse
            }
            #[cfg(not(py315))]
            {
                (*module).md_def.as_ref().and_then(|definition| definition.m_traverse)
            }
        };
        function.is_none_or(|function| self.is_known_at(function as usize))
    }

    fn is_known_elsewhere(&self, address: usize) -> bool {
        // Relaxed: a cache of one address.
        if self.last.load(Ordering::Relaxed) == address {
            return true;
        }
        let found = |all: &[(usize, bool)]| {
            all.binary_search_by_key(&address, |&(at, _)| at).map(|at| all[at].1)
        };
        let known = self.others.read().is_ok_and(|all| found(&all).is_ok_and(|known| known));
        let is_new = self.others.read().is_ok_and(|all| found(&all).is_err());
        let known = if is_new { self.look_up(address) } else { known };
        if known {
            self.last.store(address, Ordering::Relaxed);
        }
        known
    }

    #[cold]
    fn look_up(&self, address: usize) -> bool {
        let known = file_of(address).is_some_and(|file| {
            file.parent().is_some_and(|parent| self.directories.iter().any(|own| own == parent))
        });
        if let Ok(mut all) = self.others.write()
            && let Err(at) = all.binary_search_by_key(&address, |&(at, _)| at)
            && all.try_reserve(1).is_ok()
        {
            all.insert(at, (address, known));
        }
        known
    }
}

/// The directories on the path that have the extension modules of the standard library.
///
/// # Safety
///
/// This thread is attached.
unsafe fn directories() -> Vec<PathBuf> {
    let mut found = Vec::new();
    // SAFETY: as the caller says. The list, each entry and its text live as long as the references
    // to the list and the entry.
    unsafe {
        let path = pyo3_ffi::PySys_GetObject(c"path".as_ptr());
        if path.is_null() || pyo3_ffi::PyList_Check(path) == 0 {
            return found;
        }
        pyo3_ffi::Py_INCREF(path);
        for at in 0..pyo3_ffi::PyList_Size(path) {
            let entry = pyo3_ffi::PyList_GetItemRef(path, at);
            if !entry.is_null() && pyo3_ffi::PyUnicode_Check(entry) != 0 {
                let text = pyo3_ffi::PyUnicode_AsUTF8(entry);
                if !text.is_null() {
                    let text = CStr::from_ptr(text).to_string_lossy().into_owned();
                    found.extend(Some(PathBuf::from(text)).filter(|p| p.ends_with("lib-dynload")));
                }
            }
            // An entry that is no text, or a list that another thread has shortened.
            pyo3_ffi::PyErr_Clear();
            pyo3_ffi::Py_XDECREF(entry);
        }
        pyo3_ffi::Py_DECREF(path);
    }
    found
}

/// The file that a function was loaded from.
fn file_of(address: usize) -> Option<PathBuf> {
    // SAFETY: `dladdr` accepts any address, and fills the structure if it returns nonzero.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr(address as *const c_void, &raw mut info) != 0;
        let is_named = found && !info.dli_fname.is_null();
        is_named.then(|| Path::new(&*CStr::from_ptr(info.dli_fname).to_string_lossy()).into())
    }
}

/// The loaded code that contains an address.
fn code_around(address: usize) -> Range<usize> {
    struct Search {
        address: usize,
        found: Range<usize>,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid structure, and the caller's data.
        unsafe {
            let search = &mut *search.cast::<Search>();
            for at in 0..usize::from((*info).dlpi_phnum) {
                let part = (*info).dlpi_phdr.add(at);
                let start = (*info).dlpi_addr as usize + (*part).p_vaddr as usize;
                let range = start..start + (*part).p_memsz as usize;
                if (*part).p_type == libc::PT_LOAD && range.contains(&search.address) {
                    search.found = range;
                    return 1;
                }
            }
        }
        0
    }
    let mut search = Search { address, found: 0..0 };
    // SAFETY: the callback matches, and the data lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}
