//! The garbage list, and what is left at the end of a heap.
//!
//! Some unreachable objects must not be cleared: an object with a legacy finalizer and what it
//! reaches, and all objects under `DEBUG_SAVEALL`. If the collection only left them, the program
//! would have no reference with which to repair the damage. So the collection puts references into
//! a list. For example, an object with a legacy finalizer and a second object form a cycle. The
//! collection clears neither, and puts the first into the list. The program takes it from there,
//! removes its reference to the second, and drops it, so that both die by their counts.
//!
//! At the end of a heap the program has no such chance, so the list is reported and emptied. Then a
//! last collection clears the objects as far as it can.

#![cfg_attr(not(test), forbid(unsafe_code))]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::fallible::words;
use crate::base::sync::Ordering;
use crate::collect;
use crate::gc_module::services::{GcState, Services, stopped};
use crate::gc_module::watching::DEBUG_UNCOLLECTABLE;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::observer::Observer;
use crate::heap::request::Collect;
use crate::managed::ManagedCore;
use crate::object::state::DYING;
use crate::report::facts::During;
use crate::{AnyGc, Mutator};

impl Services {
    /// Sets whether there may be types with legacy finalizers, which the collector must not call.
    /// An unreachable object with one, and the objects reachable from it, are not cleared and count
    /// as uncollectable. The object with the finalizer is put into the garbage list. Off by
    /// default, because it costs a check of each unreachable object. Typed objects have no legacy
    /// finalizers.
    pub fn expect_legacy_finalizers(&self, expect: bool) {
        self.core().model.expect_legacy(expect);
    }

    /// Sets whether the end of the heap reports the remaining objects. By default it does so if
    /// [`Heap::services`](crate::Heap::services) has been called.
    pub fn report_leaks(&self, on: bool) {
        self.state().leaks_ignored.store(!on, Ordering::Relaxed);
    }

    /// The number of objects in the garbage list.
    pub fn garbage_len(&self, m: &Mutator) -> usize {
        self.check(m);
        self.state().garbage.lock().len()
    }

    /// An object of the garbage list.
    pub fn garbage_get(&self, m: &Mutator, index: usize) -> Option<AnyGc> {
        self.check(m);
        self.state().garbage.lock().get(index).map(|reference| m.any_from(reference.live()))
    }

    /// The objects of the garbage list.
    pub fn garbage(&self, m: &Mutator) -> Vec<AnyGc> {
        self.check(m);
        let garbage = self.state().garbage.lock();
        garbage.iter().map(|reference| m.any_from(reference.live())).collect()
    }

    /// Removes an object from the garbage list, in which the objects behind it move up.
    pub fn garbage_remove(&self, m: &Mutator, index: usize) -> Option<AnyGc> {
        self.check(m);
        let mut garbage = self.state().garbage.lock();
        (index < garbage.len()).then(|| AnyGc::from_reference(garbage.remove(index)))
    }

    /// Empties the garbage list. An object without other references dies when the result is
    /// dropped. Unreachable cycles live on until the next collection finds them again.
    pub fn garbage_take(&self, m: &Mutator) -> Vec<AnyGc> {
        self.check(m);
        take_garbage(self.state())
    }
}

fn take_garbage(state: &GcState) -> Vec<AnyGc> {
    state.take_saved().into_iter().map(AnyGc::from_reference).collect()
}

/// Reports the objects in the garbage list at the end of a heap. Returns their number.
pub(super) fn report_garbage(core: &ManagedCore) -> usize {
    let state = GcState::of(core);
    let count = state.garbage.lock().len();
    if count != 0 {
        let text = words!(
            "{count} objects are in the garbage list of heap '{}' at its end: they were \
             unreachable, and could not be destroyed",
            core.name
        );
        core.hooks.unraisable(During::Shutdown, "", text);
    }
    if state.debug.has(DEBUG_UNCOLLECTABLE) {
        // No other thread uses the heap any more, so the list does not change although the lines
        // are written without its lock.
        for at in 0..count {
            let named = state
                .garbage
                .lock()
                .get(at)
                .map(|reference| (core.model.type_name(reference.live()), reference.address()));
            let Some((name, address)) = named else { break };
            let line = format_args!("gc: uncollectable at the end <{name} {address:#x}>");
            state.debug.write(&core.hooks, line);
        }
    }
    count
}

/// Runs the last collection of a heap, on the thread that ends it.
pub(crate) fn at_the_end(m: &mut Mutator) {
    let core = Arc::clone(m.raw().core());
    let state = GcState::of(&core);
    // Fails if a thread ended without dropping its mutator, because nothing can be collected then.
    let collect = |m: &mut Mutator| drop(m.try_collect(Collect::full().quietly()));
    collect(m);
    if report_garbage(&core) != 0 {
        // Without the flags, this collection clears the objects, as far as possible. The flags stay
        // off, because no later collection reads them.
        state.debug.set_flags(0);
        drop(take_garbage(state));
        collect(m);
        drop(take_garbage(state));
    }
    if state.used.load(Ordering::Relaxed) && !state.leaks_ignored.load(Ordering::Relaxed) {
        let mut left = BTreeMap::<Cow<'static, str>, usize>::new();
        let looked = stopped(m, "at_the_end", |_, world| {
            collect::live(world, |object, state| {
                if state.get() & DYING != 0 {
                    return;
                }
                let (count, name) = (core.model.count(object), core.model.type_name(object.live()));
                if count != Count::Immortal {
                    *left.entry(name).or_default() += 1;
                }
            });
            Ok(())
        });
        if let Err(fault) = looked {
            let text = words!("the objects that are left were not counted: {fault}");
            core.hooks.unraisable(During::Shutdown, "", text);
        }
        for (name, count) in left {
            let text = words!("{count} objects are left in heap '{}' at its end", core.name);
            core.hooks.unraisable(During::Shutdown, name, text);
        }
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
