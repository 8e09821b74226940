//! The calls to the model between the stops of a collection.
//!
//! These methods may run code of the runtime, so the mutator is lent meanwhile. The collection owns
//! references to its garbage and holds the collector lock. A panic that unwound through it would
//! leak these references, and could keep the lock. So a panic is reported to the hook of
//! [`on_unraisable`](crate::model::ModelHeap::on_unraisable), and the collection continues.

#![forbid(unsafe_code)]

use crate::base::event::{During, guarded, panic_message};
use crate::base::text::words;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;

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

/// Calls [`ObjectModel::resumed`].
pub(crate) fn resumed<M: ObjectModel>(m: &ModelMutator<M>) {
    call(m, During::Drop, "resumed", |model| model.resumed(m));
}

/// Calls [`ObjectModel::cleared`] after a batch, or before the thread parks.
pub(crate) fn all_cleared<M: ObjectModel>(m: &ModelMutator<M>) {
    call(m, During::Clear, "cleared", |model| model.cleared(m, true));
}
