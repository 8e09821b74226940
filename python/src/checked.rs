//! Checked mode: each result is compared with that of CPython's collector before anything is
//! cleared.
//!
//! 1. CPython collects, with `gc.DEBUG_SAVEALL`: weak callbacks and finalizers run, and the garbage
//!    goes to `gc.garbage`. The addresses of these objects are noted, and the list is emptied
//!    again.
//! 2. This collector searches. Each object that it claims is compared.
//! 3. If it has claimed an object that CPython has not found, it searches again, and keeps all such
//!    objects.
//!
//! The cases of the comparison:
//!
//! - *The same objects.* They are cleared.
//! - *An object that CPython has not found.* Either a live object would be cleared, or another
//!   thread has dropped the object in between. The search ends: no weak reference, finalizer or
//!   object is touched, and the references to functions, types and modules are deferred again. The
//!   object is a *suspect*.
//! - *A suspect of the collection before.* A live object would be cleared, because CPython's
//!   collector finds all garbage that was there at the collection before. The search ends, with a
//!   report. But if CPython has found an object at this address now, or no object was there, then
//!   the suspect was garbage and another object has its memory: it is a new suspect.
//! - *Fewer objects.* Garbage is kept, or another thread has taken it. `stats()` has the number.

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
    /// The claimed objects with references that were deferred. Without memory for an entry the
    /// object may die if the search ends early.
    deferred: Mutex<HashSet<usize>>,
    /// Whether objects are kept that CPython has not found.
    restricts: AtomicBool,
    /// The objects that only this collector has found, in the last collection.
    suspects: Mutex<HashSet<usize>>,
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
    /// Objects that only this collector has found, in two collections.
    pub wrong: usize,
}

impl Checked {
    /// Expects these objects to be found by the collection that follows. `None`: it is not checked.
    pub fn expect(&self, garbage: Option<HashSet<usize>>) {
        // Relaxed, here and below: the stop orders it.
        self.is_on.store(garbage.is_some(), Ordering::Relaxed);
        self.restricts.store(false, Ordering::Relaxed);
        self.differs.store(false, Ordering::Relaxed);
        self.found.store(0, Ordering::Relaxed);
        if let (Ok(mut expected), Ok(mut wrong), Ok(mut deferred)) =
            (self.expected.write(), self.wrong.lock(), self.deferred.lock())
        {
            *expected = garbage.unwrap_or_default();
            wrong.clear();
            *deferred = HashSet::new();
        }
    }

    /// CPython has found all other objects to be garbage, or they are gone: they are no suspects.
    pub fn keep_suspects(&self, alive: &HashSet<usize>) {
        if let Ok(mut suspects) = self.suspects.lock() {
            suspects.retain(|suspect| alive.contains(suspect));
        }
    }

    /// The collector claims an object. The claim ends the deferred counting of its references.
    #[inline(always)]
    pub fn claimed(&self, object: *mut c::PyObject, is_deferred: bool) {
        if self.is_on.load(Ordering::Relaxed) {
            self.compare(object.addr(), is_deferred);
        }
    }

    /// Whether a search ends that has claimed too much, and the references to this object were
    /// deferred before.
    #[inline(always)]
    pub fn was_deferred(&self, object: *mut c::PyObject) -> bool {
        self.differs() && self.is_in_deferred(object.addr())
    }

    #[cold]
    fn is_in_deferred(&self, object: usize) -> bool {
        self.deferred.lock().is_ok_and(|deferred| deferred.contains(&object))
    }

    #[cold]
    fn compare(&self, object: usize, is_deferred: bool) {
        if is_deferred
            && let Ok(mut deferred) = self.deferred.lock()
            && deferred.try_reserve(1).is_ok()
        {
            deferred.insert(object);
        }
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

    /// Notes the result of the search that ends. Whether another one follows, which keeps all that
    /// CPython has not found.
    pub fn note(&self) -> bool {
        if !self.is_on.load(Ordering::Relaxed) || self.restricts.load(Ordering::Relaxed) {
            return false;
        }
        let wrong = self.take_wrong();
        let expected = self.expected.read().map_or(0, |expected| expected.len());
        if let Ok(mut results) = self.results.lock() {
            results.compared += 1;
            results.missed += expected.saturating_sub(self.found.load(Ordering::Relaxed));
            results.wrong += wrong.len();
        }
        let differs = self.differs.swap(false, Ordering::Relaxed);
        self.restricts.store(differs, Ordering::Relaxed);
        differs
    }

    /// The suspects that were found again. The others become suspects.
    fn take_wrong(&self) -> Vec<usize> {
        let (Ok(mut suspects), Ok(mut wrong)) = (self.suspects.lock(), self.wrong.lock()) else {
            return Vec::new();
        };
        let found = std::mem::take(&mut *wrong);
        let again = found.iter().copied().filter(|object| suspects.contains(object)).collect();
        *suspects = found.into_iter().collect();
        again
    }

    /// Whether an object is kept, because CPython has not found it.
    #[inline(always)]
    pub fn keeps(&self, object: *mut c::PyObject) -> bool {
        self.restricts.load(Ordering::Relaxed) && self.is_unexpected(object.addr())
    }

    #[cold]
    fn is_unexpected(&self, object: usize) -> bool {
        self.expected.read().is_ok_and(|expected| !expected.contains(&object))
    }

    /// Writes about some of the suspects that were found again. This thread is attached, and all
    /// claimed objects are alive.
    pub fn report(&self) {
        let (Ok(suspects), Ok(wrong)) = (self.suspects.lock(), self.wrong.lock()) else { return };
        let again: Vec<usize> =
            wrong.iter().copied().filter(|object| suspects.contains(object)).take(5).collect();
        drop((suspects, wrong));
        for address in again {
            let object: *mut c::PyObject = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: as the function's page says.
            unsafe {
                python::write_line(&format!(
                    "standstill_gc: checked mode: the {} at {object:p} was found twice, and not by \
                     CPython's collector. It is kept",
                    python::type_name(object)
                ));
            }
        }
    }
}
