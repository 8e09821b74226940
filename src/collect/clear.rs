//! Step 10: emptying garbage, and letting go of it.
//!
//! Every member is cleared before the collector lets go of any, so a member dies only when nothing the
//! collector still holds needs it; destructors that run in between see neighbours that may have been
//! cleared, never ones that have been freed. Counts do the rest: nothing here frees.

use crate::collect::finalize::Garbage;
use crate::event::{self, During, Phase};
use crate::model::{ModelMutator, ObjectModel};
use crate::object::Object;
use crate::tracked;

/// Objects between two looks at the poll word.
const POLL: usize = 256;

/// What became of the garbage.
#[derive(Debug, Default)]
pub(crate) struct Cleared {
    pub(crate) collected: usize,
    pub(crate) uncollectable: usize,
}

/// Step 10. With the world running. It parks for other stops in between: no borrow into an object is held.
pub(crate) fn clear<M: ObjectModel>(garbage: Garbage, m: &mut ModelMutator<M>) -> Released {
    let _phase = event::phase(Phase::Clear);
    let Garbage { objects, spared, .. } = garbage;
    m.model().clearing(m, objects.len());
    let mut next = 0;
    while next < objects.len() {
        if m.poll() != 0 {
            m.model().cleared(m, true);
            m.park();
        }
        // One guard for many: who fails is the last that was begun, and the others' turn comes all the same.
        let few = objects.len().min(next + POLL);
        let _lent = m.lend();
        let core = m.core();
        let result = event::guarded(|| {
            while next < few {
                let object = objects[next];
                next += 1;
                // SAFETY: held since the claim.
                unsafe {
                    // Else a clear handler, or a destructor it caused, has taken it out of the set.
                    if core.state(object.address()).get() & tracked::TRACKED != 0 {
                        core.model.clear(object, m);
                        core.model.cleared(m, false);
                    }
                }
            }
        });
        if let Err(payload) = result {
            let object = objects[next - 1];
            // SAFETY: as above.
            let name = unsafe { core.model.type_name(object) };
            let text = event::panic_message(payload);
            core.hooks.unraisable_at(During::Clear, name, object.address(), text);
        }
    }
    m.model().cleared(m, true);
    for (at, &object) in spared.iter().chain(&objects).enumerate() {
        if at % POLL == 0 && m.poll() != 0 {
            m.park();
        }
        // SAFETY: this gives back the claim's reference, once.
        unsafe { m.model().release(object, m) };
    }
    Released { objects }
}

/// Garbage that was cleared and let go of: names of objects that are dead, most of them.
#[must_use]
pub(crate) struct Released {
    objects: Vec<Object>,
}

impl Released {
    /// Counts the survivors, and lets them be ordinary objects again.
    pub(crate) fn tally<M: ObjectModel>(self, m: &ModelMutator<M>) -> Cleared {
        // Who still has the bit is still the object it was: the bit goes with the death, and no birth sets it.
        let uncollectable = self
            .objects
            .iter()
            .filter(|object| {
                // SAFETY: the page of a freed cell keeps its table entries; in a cell that is in use again the
                // bit is not set, and nothing is changed.
                unsafe { m.core().state(object.address()) }.survive()
            })
            .count();
        Cleared { collected: self.objects.len() - uncollectable, uncollectable }
    }
}
