//! The calls to the model between the stops of a collection.
//!
//! These methods may run code of the runtime, so the mutator is lent meanwhile. The collection owns
//! references to its garbage and holds the collector lock. A panic that unwound through it would
//! leak these references, and could keep the lock. So a panic is reported to the hook of
//! [`on_unraisable`](crate::model::ModelHeap::on_unraisable), and the collection continues.

#![forbid(unsafe_code)]

use crate::{During, LongestCall};
use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::base::fallible::{self, words};
use crate::base::outside::{guarded, panic_message};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;

/// Calls a method of the model. `None`: it panicked, and the panic was reported.
pub(crate) fn call<M: ObjectModel, R>(
    m: &ModelMutator<M>,
    during: During,
    method: &'static str,
    f: impl FnOnce(&M) -> R,
) -> Option<R> {
    let lent = m.lend_to_model();
    let result = guarded(|| f(m.model()));
    drop(lent);
    result
        .map_err(|payload| {
            let text = words!("`{method}` has panicked: {}", panic_message(payload));
            m.core().hooks.unraisable(during, "", text);
        })
        .ok()
}

/// Quick clear handlers and destructors that are measured together. Reading the clock takes about
/// as long as one of them.
pub(crate) const MEASURED_TOGETHER: usize = 32;

/// A shorter call is not noted, so quick code pays for no name.
const NOTED: Duration = Duration::from_micros(100);

/// Measures the code of the program that a collection calls on this thread, for
/// [`report_held_up`].
pub(crate) struct CallClock(Instant);

impl CallClock {
    /// The first call begins now.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The call for some objects ends now, and the next one begins. Returns how many objects to
    /// measure together next: one by one after a slow call, so that the next slow one is named.
    pub(crate) fn lap<'n, M: ObjectModel>(
        &mut self,
        m: &ModelMutator<M>,
        during: During,
        objects: usize,
        name: impl FnOnce() -> Cow<'n, str>,
    ) -> usize {
        let now = Instant::now();
        let took = now.duration_since(self.0);
        self.0 = now;
        // The behaviour of a model does not depend on time.
        if took < NOTED || cfg!(all(test, any(loom, shuttle))) {
            return MEASURED_TOGETHER;
        }
        // Without memory the call has no name.
        let type_name = fallible::owned(&name()).unwrap_or_default().into();
        m.held_up().note_call(LongestCall { during, type_name, objects, took });
        1
    }
}

/// The thread begins to collect, or to reclaim garbage.
pub(crate) fn begin_holding_up<M: ObjectModel>(m: &ModelMutator<M>) -> Instant {
    m.held_up().restart();
    Instant::now()
}

/// Parks for the stop of another thread, while the thread collects.
pub(crate) fn park<M: ObjectModel>(m: &mut ModelMutator<M>) {
    let begun = Instant::now();
    m.wait_parked();
    m.held_up().note_wait(begun.elapsed());
}

/// The thread has collected, or reclaimed garbage, since `begun`, and does something else now.
/// Reports if this took long. The waits for stops do not count: the threads that cause them are
/// reported.
pub(crate) fn report_held_up<M: ObjectModel>(m: &ModelMutator<M>, begun: Instant) {
    let held_up = begun.elapsed().saturating_sub(m.held_up().waited());
    // The behaviour of a model does not depend on time.
    let is_model = cfg!(all(test, any(loom, shuttle)));
    if held_up >= m.core().coordinator.slow_stop() && !is_model {
        let longest = m.held_up().take_longest();
        m.core().coordinator.report_held_up(m.thread_id(), held_up, longest);
    }
}

/// Calls [`SplitCounts::resumed`](crate::model::SplitCounts::resumed).
pub(crate) fn resumed<M: ObjectModel>(m: &ModelMutator<M>) {
    call(m, During::Drop, "resumed", |model| SplitCountsOf::<M>::resumed(model, m));
}

/// Calls [`Batches::cleared`](crate::model::Batches::cleared) after a batch, or before the thread
/// parks.
pub(crate) fn all_cleared<M: ObjectModel>(m: &ModelMutator<M>) {
    call(m, During::Clear, "cleared", |model| BatchesOf::<M>::cleared(model, m, true));
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
