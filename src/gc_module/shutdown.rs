//! The end of a heap.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Mutator;
use crate::base::event::During;
use crate::base::text::words;
use crate::collect::{self, Collect};
use crate::gc_module::garbage::{report_garbage, take_garbage};
use crate::gc_module::services::Services;
use crate::gc_module::state::GcState;
use crate::gc_module::stop::stopped;
use crate::heap::model::{Count, ObjectModel};
use crate::object::state::DYING;

impl Services {
    /// Sets whether the end of the heap reports the remaining objects. It does once
    /// [`Heap::services`](crate::Heap::services) has been called, unless this switches it off.
    pub fn report_leaks(&self, on: bool) {
        self.state().report_leaks(on);
    }
}

/// The end of a heap, on the thread that ends it. See the [module's page](super#the-end-of-a-heap).
pub(crate) fn at_the_end(m: &mut Mutator) {
    let core = Arc::clone(m.raw().core());
    let state = GcState::of(&core);
    // Fails if a thread ended without dropping its mutator. Then nothing can be collected.
    let collect = |m: &mut Mutator| drop(m.try_collect(Collect::full().quietly()));
    collect(m);
    if report_garbage(&core) != 0 {
        // Without the flags, this collection clears the objects, as far as possible. No later
        // collection reads the flags.
        state.debug.set_flags(0);
        drop(take_garbage(state));
        collect(m);
        drop(take_garbage(state));
    }
    if state.reports_leaks() {
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
