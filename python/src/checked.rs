//! Checked mode: each result is compared with that of CPython's collector before anything is
//! cleared.
//!
//! 1. CPython collects, with `gc.DEBUG_SAVEALL`: weak callbacks and finalizers run, and the garbage
//!    goes to `gc.garbage`. The addresses of these objects are noted, and the list is emptied again.
//! 2. This collector collects. Before it clears, it compares.
//!
//! | it has found | meaning | reaction |
//! |---|---|---|
//! | the same objects | | they are cleared |
//! | an object that CPython has not found | a live object would be cleared, or another thread has dropped the object in between | nothing is cleared; a report. If it is garbage, the next collection finds it in both |
//! | fewer objects | garbage is kept, or another thread has taken it | a report |

use std::collections::HashSet;
use std::sync::Mutex;

use crate::layout as c;
use crate::python;

/// The state of the checked mode.
#[derive(Default)]
pub struct Checked {
    /// The addresses of the garbage that CPython has found. `None`: no collection is checked.
    expected: Mutex<Option<HashSet<usize>>>,
    /// Results that were compared, and those that differed.
    pub results: Mutex<Results>,
}

/// How often results were compared.
#[derive(Clone, Copy, Default)]
pub struct Results {
    pub compared: usize,
    pub missed: usize,
    pub wrong: usize,
}

impl Checked {
    /// Expects these objects to be found by the collection that follows. `None`: it is not checked.
    pub fn expect(&self, garbage: Option<HashSet<usize>>) {
        if let Ok(mut expected) = self.expected.lock() {
            *expected = garbage;
        }
    }

    /// Compares the garbage with the expectation. `false`: nothing may be cleared.
    pub fn agrees(&self, garbage: impl Iterator<Item = *mut c::PyObject>) -> bool {
        let Some(mut expected) = self.expected.lock().ok().and_then(|mut e| e.take()) else {
            return true;
        };
        let mut wrong = Vec::new();
        for object in garbage {
            if !expected.remove(&object.addr()) {
                wrong.push(object);
            }
        }
        if let Ok(mut results) = self.results.lock() {
            results.compared += 1;
            results.missed += expected.len();
            results.wrong += wrong.len();
        }
        for &object in wrong.iter().take(5) {
            // SAFETY: the object is claimed, so it is alive. `judge` runs on an attached thread.
            unsafe {
                python::write_line(&format!(
                    "standstill_gc: checked mode: the {} at {object:p} was found, and not by \
                     CPython's collector. Nothing is cleared",
                    python::type_name(object)
                ));
            }
        }
        wrong.is_empty()
    }
}
