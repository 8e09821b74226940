//! Looking at objects: several together, so that a model that knows of some that they are alike calls one function for all of
//! them.

use crate::base::fallible::NoMemory;
use crate::heap::model::ObjectModel;
use crate::memory::space::Space;
use crate::object::type_info::{Ends, Object, Tracer};

/// Objects that are looked at together.
pub(crate) const TOGETHER: usize = 16;

/// A tracer for a collection in this space.
pub(crate) fn tracer(space: &Space) -> Tracer {
    Tracer::for_collection(space.base(), space.reserved_bytes())
}

/// Has `objects` report what they refer to, behind what the tracer has already, and notes in `ends` where each one's
/// references end. One with a field that cannot be read reports nothing, and `unreadable` is called with its number.
///
/// # Safety
///
/// The objects are alive, and the world is stopped.
#[inline(always)]
pub(crate) unsafe fn look<M: ObjectModel>(
    model: &M,
    objects: &[Object],
    tracer: &mut Tracer,
    ends: &mut [u32],
    mut unreadable: impl FnMut(usize) -> Result<(), NoMemory>,
) -> Result<(), NoMemory> {
    let mut looked = 0;
    while looked < objects.len() {
        let before = tracer.edges().len() as u32;
        let mut own = Ends::new(&mut ends[looked..objects.len()]);
        // Whose the fault is, should it come to nothing.
        tracer.go_on(objects[looked]);
        // SAFETY: rule W: as the caller says.
        unsafe { model.traverse_each(&objects[looked..], tracer, &mut own) };
        let ends_of = own.noted();
        assert!(!ends_of.is_empty(), "`traverse_each` has looked at no object");
        let last = ends_of.len() - 1;
        if tracer.take_unreadable() {
            tracer.lost_nothing()?;
            let start = if last > 0 { ends_of[last - 1] } else { before };
            ends_of[last] = start;
            tracer.truncate(start as usize);
            unreadable(looked + last)?;
        } else if tracer.edges().len() > ends_of[last] as usize {
            // Reported for an object that did not come: nobody's.
            tracer.truncate(ends_of[last] as usize);
        }
        looked += last + 1;
    }
    Ok(())
}

/// Has the model ask memory for what traversing `objects`, if there are any, is going to read.
///
/// # Safety
///
/// As for [`look`].
#[inline(always)]
pub(crate) unsafe fn prefetch_each<M: ObjectModel>(
    model: &M,
    objects: &[Object],
    tracer: &mut Tracer,
) {
    let Some(&first) = objects.first() else { return };
    tracer.go_on(first);
    let before = tracer.edges().len();
    // SAFETY: rule W: as the caller says.
    unsafe { model.prefetch_each(objects, tracer) };
    debug_assert_eq!(tracer.edges().len(), before, "to prefetch reports nothing");
}
