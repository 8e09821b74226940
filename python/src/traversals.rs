//! Traverse functions that may run on several threads.
//!
//! The workers of a collection have no thread state. The traverse functions of CPython need none,
//! and neither do those of most extensions. An unknown one is left to the collecting thread.
//!
//! A function is known if it lies in the interpreter's executable or in one of its own libraries
//! and extension modules: those below the directory of the standard library.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::layout as c;

/// The known functions.
#[derive(Default)]
pub struct Known {
    /// The traverse function of classes, which calls that of the first base with another one.
    pub of_classes: usize,
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
    /// The class is alive.
    pub unsafe fn new(class: *mut c::PyTypeObject) -> Self {
        // SAFETY: as the caller says.
        let of_classes = unsafe { (*class).tp_traverse }.map_or(0, |function| function as usize);
        Self { of_classes, interpreter: code_around(of_classes), ..Self::default() }
    }

    /// The same functions, for another heap.
    pub fn again(&self) -> Self {
        let (of_classes, interpreter) = (self.of_classes, self.interpreter.clone());
        Self { of_classes, interpreter, ..Self::default() }
    }

    /// Whether the traverse function of a type is known.
    ///
    /// # Safety
    ///
    /// The type is alive.
    #[inline(always)]
    pub unsafe fn is_known(&self, class: *mut c::PyTypeObject) -> bool {
        let mut class = class;
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
        self.interpreter.contains(&address) || self.is_known_elsewhere(address)
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
        let known = file_of(address).is_some_and(|file| is_of_the_interpreter(&file));
        if let Ok(mut all) = self.others.write()
            && let Err(at) = all.binary_search_by_key(&address, |&(at, _)| at)
            && all.try_reserve(1).is_ok()
        {
            all.insert(at, (address, known));
        }
        known
    }
}

/// The extension modules of the standard library lie in a directory with this name.
fn is_of_the_interpreter(file: &str) -> bool {
    file.contains("/lib-dynload/") || file.contains("/libpython")
        // An interpreter that was not installed.
        || (file.contains("/build/lib.") && file.contains("/Modules/"))
        || file.contains("/build/lib.linux")
}

/// The file that a function was loaded from.
fn file_of(address: usize) -> Option<String> {
    // SAFETY: `dladdr` accepts any address, and fills the structure if it returns nonzero.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr(address as *const c_void, &raw mut info) != 0;
        let is_named = found && !info.dli_fname.is_null();
        is_named.then(|| CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned())
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
