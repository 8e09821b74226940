//! Checked mode: each result is compared with that of CPython's collector before anything is
//! cleared.
//!
//! 1. CPython collects, with `gc.DEBUG_SAVEALL`: weak callbacks and finalizers run, and the garbage
//!    goes to `gc.garbage`. The addresses of these objects are noted, and the list is emptied
//!    again.
//! 2. This collector collects. Each object that it claims is compared.
//!
//! | it has found | meaning | reaction |
//! |---|---|---|
//! | the same objects | | they are cleared |
//! | an object that CPython has not found | a live object would be cleared, or another thread has dropped the object in between | no weak reference, finalizer or object is touched; a report. If it is garbage, the next collection finds it in both |
//! | fewer objects | garbage is kept, or another thread has taken it | a figure in `stats()` |

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};

use crate::layout as c;
use crate::python;

/// The state of the checked mode.
#[derive(Default)]
pub struct Checked {
    /// Whether the running collection is checked.
    is_on: AtomicBool,
    /// The addresses of the garbage that CPython has found.
    expected: RwLock<HashSet<usize>>,
    /// The number of objects that both have found.
    found: AtomicUsize,
    /// The objects that only this collector has found, in the running collection.
    wrong: Mutex<Vec<usize>>,
    /// Whether `wrong` has some.
    differs: AtomicBool,
    /// All results.
    pub results: Mutex<Results>,
}

/// How often results were compared.
#[derive(Clone, Copy, Default)]
pub struct Results {
    /// Collections.
    pub compared: usize,
    /// Objects that only CPython's collector has found.
    pub missed: usize,
    /// Objects that only this collector has found.
    pub wrong: usize,
}

impl Checked {
    /// Expects these objects to be found by the collection that follows. `None`: it is not checked.
    pub fn expect(&self, garbage: Option<HashSet<usize>>) {
        // Relaxed, here and below: the stop orders it.
        self.is_on.store(garbage.is_some(), Ordering::Relaxed);
        self.differs.store(false, Ordering::Relaxed);
        self.found.store(0, Ordering::Relaxed);
        if let (Ok(mut expected), Ok(mut wrong)) = (self.expected.write(), self.wrong.lock()) {
            *expected = garbage.unwrap_or_default();
            wrong.clear();
        }
    }

    /// The collector has claimed an object.
    #[inline(always)]
    pub fn claimed(&self, object: *mut c::PyObject) {
        if self.is_on.load(Ordering::Relaxed) {
            self.compare(object.addr());
        }
    }

    #[cold]
    fn compare(&self, object: usize) {
        if self.expected.read().is_ok_and(|expected| expected.contains(&object)) {
            self.found.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.differs.store(true, Ordering::Relaxed);
        if let Ok(mut wrong) = self.wrong.lock()
            && wrong.try_reserve(1).is_ok()
        {
            wrong.push(object);
        }
    }

    /// Whether the collector has claimed an object that CPython has not found. Then nothing may be
    /// changed.
    #[inline(always)]
    pub fn differs(&self) -> bool {
        self.differs.load(Ordering::Relaxed)
    }

    /// Notes the result of the collection that ends.
    pub fn note(&self) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let expected = self.expected.read().map_or(0, |expected| expected.len());
        let wrong = self.wrong.lock().map_or(0, |wrong| wrong.len());
        if let Ok(mut results) = self.results.lock() {
            results.compared += 1;
            results.missed += expected.saturating_sub(self.found.load(Ordering::Relaxed));
            results.wrong += wrong;
        }
    }

    /// Writes about some of the objects that only this collector has found. This thread is
    /// attached, and all claimed objects are alive.
    pub fn report(&self) {
        let wrong = self.wrong.lock().map(|wrong| wrong.clone()).unwrap_or_default();
        for &address in wrong.iter().take(5) {
            let object: *mut c::PyObject = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: as the function's page says.
            unsafe {
                python::write_line(&format!(
                    "standstill_gc: checked mode: the {} at {object:p} was found, and not by \
                     CPython's collector. Nothing is cleared",
                    python::type_name(object)
                ));
            }
        }
    }
}
