//! `Phase::Clear`, which clears all garbage of a batch before any of it is released.
//!
//! All objects of a batch, which is all garbage or at most 512 objects, are cleared before one of
//! them is released. For example, A and B refer to each other. When the handler of B drops its
//! reference to A, A lives on, because the collection has one until it releases A. So a destructor
//! that runs meanwhile may find a neighbour cleared, although never one freed. Nothing here frees
//! memory, because the counts do.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::base::{outside, steps};
use crate::collect::calls::{self, CallClock, MEASURED_TOGETHER, all_cleared, call};
use crate::collect::scope::state_of;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::object::live::{ClaimRef, ClaimRefs, Live, prefetch_ahead};
use crate::object::state;
use crate::report::facts::During;

/// The number of objects between two reads of the poll word.
pub(super) const POLL_DISTANCE: usize = 256;

/// Runs `f`, whose frees of garbage do not count for the pace. Otherwise a collection that finds
/// much garbage would delay the next one.
pub(crate) fn off_the_pace<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    f: impl FnOnce(&mut ModelMutator<M>),
) {
    /// Restores the counting of frees, also when `f` panics.
    struct Before<'m, M: ObjectModel>(&'m mut ModelMutator<M>, bool);
    impl<M: ObjectModel> Drop for Before<'_, M> {
        fn drop(&mut self) {
            self.0.arena(|arena| {
                // The bytes of the garbage are no growth of the heap.
                self.0.core().count(arena);
                arena.count_frees(self.1);
            });
        }
    }
    let before = m.arena(|arena| arena.count_frees(false));
    let counting = Before(m, before);
    f(counting.0);
}

/// Clears objects, of `garbage` in all. The thread can park for stops in between, because no borrow
/// into an object is held.
pub(crate) fn clear_all<M: ObjectModel>(
    objects: &[Live<'_>],
    garbage: usize,
    m: &mut ModelMutator<M>,
) {
    steps::took(objects.len());
    call(m, During::Clear, "clearing", |model| BatchesOf::<M>::clearing(model, m, garbage));
    let mut next = 0;
    while next < objects.len() {
        if m.poll() != 0 {
            all_cleared(m);
            park(objects, m);
        }
        let mut clock = CallClock::start();
        let mut together = MEASURED_TOGETHER;
        // One guard serves many objects. A handler that panics is that of the last object that was
        // begun.
        let few = objects.len().min(next + m.core().stress.shrink(POLL_DISTANCE));
        let _lent = m.lend();
        let core = m.core();
        let result = outside::guarded(|| {
            while next < few {
                let (first, end) = (next, few.min(next + together));
                while next < end {
                    let object = objects[next];
                    prefetch_ahead(objects, next);
                    next += 1;
                    // Otherwise a clear handler, or a destructor that it caused, has untracked the
                    // object. A listed object is cleared in any case, because it stays tracked
                    // until it is released.
                    if ListsOf::<M>::PRESENT
                        || state_of(&core.space, object.object()).get() & state::TRACKED != 0
                    {
                        core.model.clear(object, m);
                        BatchesOf::<M>::cleared(&core.model, m, false);
                    }
                }
                let name = || core.model.type_name(objects[first]);
                together = clock.lap(m, During::Clear, end - first, name);
            }
        });
        if let Err(payload) = result {
            let object = objects[next - 1];
            let name = core.model.type_name(object);
            let text = outside::panic_message(payload);
            core.hooks.unraisable_at(During::Clear, name, object.address(), text);
        }
    }
    let mut clock = CallClock::start();
    all_cleared(m);
    if let Some(&first) = objects.first() {
        clock.lap(m, During::Clear, objects.len(), || m.core().model.type_name(first));
    }
}

/// Releases the references of the claim, on a mutator that is lent except while the thread may
/// park.
pub(crate) fn release_all<M: ObjectModel>(mut claims: ClaimRefs<'_>, m: &mut ModelMutator<M>) {
    let core = Arc::clone(m.core());
    while !claims.live().is_empty() {
        if m.poll() != 0 {
            park(claims.live(), m);
        }
        let _lent = m.lend_to_model();
        let mut clock = CallClock::start();
        let (mut left, mut together) = (claims.live().len().min(POLL_DISTANCE), MEASURED_TOGETHER);
        while left > 0 {
            let few = left.min(together);
            // The object has a name only until it is destroyed.
            let name = core.model.type_name(claims.live()[0]);
            for claim in claims.by_ref().take(few) {
                release(claim, m);
            }
            left -= few;
            together = clock.lap(m, During::Drop, few, || name);
        }
    }
}

/// Parks for a stop, and announces these objects, because the child of a fork must know that the
/// collection still has its references to them.
fn park<M: ObjectModel>(claimed: &[Live<'_>], m: &mut ModelMutator<M>) {
    let core = Arc::clone(m.core());
    let _announced = core.collector_lock.parks(claimed);
    calls::park(m);
}

/// Releases one reference, on a mutator that is lent. The state of a listed object ends before: see
/// [`listing`](super::listing).
pub(crate) fn release<M: ObjectModel>(claim: ClaimRef, m: &ModelMutator<M>) {
    if ListsOf::<M>::PRESENT {
        state_of(&m.core().space, claim.object()).death();
    }
    m.model().release(claim, m);
}
