//! Objects that the program wants instead of their deaths: a guardian queues them, and a function
//! that was given to one object is called. Both are [guards](Guard) in the weak record of the
//! object, because that is where a thread looks that destroys one, and an object without guards
//! costs nothing.
//!
//! * Death by count: the thread that has dropped the last reference revives the object, as for a
//!   finalizer, hands it to its guards, and drops the reference of the revival.
//! * Garbage: in place of the finalizer. The recheck finds the references that the guards have got,
//!   so the object and all that it reaches leave the set. If an object of the set has guards again
//!   by then, for example from the finalizer of another one, the whole set is kept, and the next
//!   collection hands it over.
//!
//! A guard gets its object once. If it registers the object again, it gets it again, at once if the
//! object dies by its count, and in the next collection otherwise. A finalizer of the type runs at
//! the later death, when no guard is left. Garbage that a guard has not kept waits for the next
//! collection, so that its finalizer finds it intact.

#![forbid(unsafe_code)]

use crate::base::outside;
use crate::managed::parts::{Managed, Raw};
use crate::managed::release::drop_revival;
use crate::object::counted::header;
use crate::object::live::{DeadObject, Live};
use crate::object::weak::{Guard, WeakRecord};
use crate::report::facts::During;

/// Whether an object with a weak record has guards. The caller keeps the object alive, or stops the
/// world.
#[cold]
pub(super) fn is_guarded(model: &Managed, object: Live<'_>) -> bool {
    model.weak.known(object.header()).is_some_and(|record| record.is_guarded())
}

/// Hands garbage to its guards. The recheck keeps the object if it is registered meanwhile.
pub(super) fn hand_over(model: &Managed, object: Live<'_>, m: &Raw) {
    let record = model.weak.known(object.header());
    call(record.map_or_else(Vec::new, |record| record.take_guards()), object, m);
}

fn call(guards: Vec<Box<dyn Guard>>, object: Live<'_>, m: &Raw) {
    for guard in guards {
        let handed = outside::guarded(|| {
            guard.hand_over(header(object.object()), std::ptr::from_ref(m).cast());
        });
        if let Err(payload) = handed {
            let text = outside::panic_message(payload);
            m.core().hooks.unraisable(During::Finalize, m.model().typed(object).name(), text);
        }
    }
}

/// Hands an object whose last reference is gone to its guards. `None`: one of them keeps it.
#[inline(always)]
pub(super) fn spare(m: &Raw, dead: DeadObject) -> Option<DeadObject> {
    if dead.header().has_weak() { spare_guarded(m, dead) } else { Some(dead) }
}

#[cold]
#[inline(never)]
fn spare_guarded(m: &Raw, mut dead: DeadObject) -> Option<DeadObject> {
    let guarded = |record: &&WeakRecord| record.is_guarded();
    // A guard may have registered the object again.
    while let Some(record) = m.model().weak.get(dead.header_ptr()).filter(guarded) {
        let guards = record.take_guards();
        // The guards use this reference.
        let reference = dead.revive(m.id());
        let _lent = m.lend();
        call(guards, reference.live(), m);
        dead = drop_revival(m, reference)?;
    }
    Some(dead)
}
