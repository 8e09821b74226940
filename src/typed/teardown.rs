//! The end of a heap of typed objects.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::base::error::AttachError;
use crate::base::event::{self, During};
use crate::base::fallible::{self};
use crate::base::text::words;
use crate::collect::Collect;
use crate::heap::core::Handle;
use crate::heap::mutator::ModelMutator;
use crate::managed::{self};
use crate::typed::mutator::Mutator;

/// Runs the last collection and closes the heap, after the last handle and the last mutator are
/// dropped.
pub(super) fn teardown(core: &Arc<managed::ManagedCore>) {
    // A finalizer can clone this handle through its mutator. If a clone outlives the collection,
    // the heap stays open, and the drop of the last clone closes it.
    let handle = fallible::arc(Handle { core: Arc::clone(core), last: managed::close });
    let cycles_are_left = |why: &'static str| core.hooks.unraisable(During::Shutdown, "", why);
    let no_memory = "no memory for the last collection: cycles are left";
    let Ok(handle) = handle else {
        cycles_are_left(no_memory);
        return managed::close(core);
    };
    let collected = ModelMutator::attach_scoped(&handle, |m| {
        let m = Mutator::from_raw_mut(m);
        match crate::EXTENSIONS.last_collection {
            Some(collect) => collect(m),
            // Fails if a thread ended without dropping its mutator. Then nothing can be collected.
            None => drop(m.try_collect(Collect::full().quietly())),
        }
    });
    let why = match collected {
        Ok(()) => return,
        Err(AttachError::Memory) => return cycles_are_left(no_memory),
        Err(AttachError::NoThreadIds) => {
            return cycles_are_left(
                "no thread ids are left for the last collection: cycles are left",
            );
        }
        Err(AttachError::Traversing) => "is in a traversal",
        Err(AttachError::Suspending) => "keeps another thread suspended",
        Err(AttachError::ThreadEnding) => "is ending",
        // Inside a detach, the thread could attach to this heap.
        Err(AttachError::AlreadyAttached | AttachError::InsideDetach) => {
            "is attached to another heap"
        }
    };
    // The drop closes the heap and destroys the objects that only deferred drops kept alive. The
    // remaining objects are counted afterwards.
    let closed = event::guarded(|| drop(handle));
    let left = core.live_tracked();
    if left != 0 {
        let text = words!(
            "heap '{}' ended without a last collection, because the thread that dropped its last handle {why}; {left} \
             objects are left, and cycles of them are never freed",
            core.name
        );
        core.hooks.unraisable(During::Shutdown, "", text);
    }
    if let Err(payload) = closed {
        std::panic::resume_unwind(payload);
    }
}
