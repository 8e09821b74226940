//! The conformance kit for object models (`model_check/`, a package of its own) compares a heap
//! with its own books, for which it needs the inside of the heap. For example, it reads state
//! bytes, calls a model as the collector does, and looks for memory that was freed twice. No other
//! package may rely on this module, because it changes without notice: each version of the kit fits
//! one version of the library.

use std::borrow::Cow;

use crate::base::stress::Step;
use crate::collect::calls::{guard_traversal, traverse_batch};
use crate::collect::collection;
use crate::collect::scope::{state_of, stopped_at};
use crate::heap::core;
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::managed::Raw;
use crate::object::address::Object;
use crate::object::live::{DeadObject, Stopped};
use crate::object::state;
use crate::object::tracer::Tracer;
use crate::typed::mutator::Mutator;

/// The parts of a model by their short names, with which the collector calls them.
pub mod parts {
    pub use crate::heap::parts::*;
}

/// The built-in model, which the kit's own tests check.
pub use crate::managed::Managed;

/// State bits: see `object/state.rs`.
pub const LIVE: u8 = state::LIVE;
/// The object is in the tracked set.
pub const TRACKED: u8 = state::TRACKED;
/// The object's destruction has begun.
pub const DYING: u8 = state::DYING;

/// The request that [`take_collect`] clears.
pub const COLLECT: u32 = core::COLLECT;

/// The state bits of an object.
pub fn state<M: ObjectModel>(heap: &ModelHeap<M>, object: Object) -> u8 {
    state_of(&heap.0.core.space, object).get()
}

/// Clears state bits.
///
/// # Safety
///
/// The bits do not tell whether the object is alive.
pub unsafe fn unset_state<M: ObjectModel>(heap: &ModelHeap<M>, object: Object, bits: u8) {
    state_of(&heap.0.core.space, object).unset(bits);
}

/// How often threads were at a safepoint, attached, or stopped the world.
pub fn moves<M: ObjectModel>(heap: &ModelHeap<M>) -> [u64; 3] {
    [Step::Safepoint, Step::Attach, Step::Stop]
        .map(|step| heap.0.core.under.as_ref().map_or(0, |strain| strain.reached(step)))
}

/// Clears the request to this thread that a collection is due.
pub fn take_collect<M: ObjectModel>(m: &ModelMutator<M>) -> bool {
    m.take_collect()
}

/// The first freed object whose memory was freed twice, or written to since, by its address.
pub fn damaged<M: ObjectModel>(heap: &ModelHeap<M>) -> Option<(usize, String)> {
    let quarantine = heap.0.core.space.quarantine()?;
    let mut seen = std::collections::HashSet::new();
    quarantine.cells().into_iter().find_map(|cell| {
        let address = cell.start().as_ptr().addr();
        if !seen.insert(address) {
            return Some((address, "its memory was freed twice".to_owned()));
        }
        // SAFETY: rule *mapped*: a cell in quarantine is accessible, and no correct code writes
        // there.
        unsafe { quarantine.check(cell, 0) }.err().map(|text| (address, text))
    })
}

/// The proof that an object of the heap is alive, if it is.
pub fn stopped_object<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    object: Object,
) -> Option<Stopped<'w>> {
    stopped_at(world, world.core().space.granule(object.address()))
}

/// Merges pending counts, as each stop of a collection does, and checks the answers of the model.
///
/// # Safety
///
/// The caller destroys the objects in `dead`, as a collection does.
pub unsafe fn merge<M: ObjectModel>(world: &World<'_, M>, dead: &mut Vec<DeadObject>) {
    collection::merge_counts(world, dead).expect("memory for a list");
}

/// The references that a traversal of an object has reported, by their addresses.
#[derive(Debug, Default)]
pub struct Traversed {
    /// Counted references.
    pub targets: Vec<usize>,
    /// References without a count.
    pub uncounted: Vec<usize>,
    /// A field could not be read.
    pub is_unreadable: bool,
}

/// Calls `f` as a traversal, with a tracer. An error is the text of its panic.
fn traversing<M: ObjectModel, R>(
    world: &World<'_, M>,
    f: impl FnOnce(&M, &mut Tracer) -> R,
) -> Result<R, Cow<'static, str>> {
    let core = world.core();
    let (start, bytes) = core.space.bounds();
    let mut tracer = Tracer::new(start, bytes);
    guard_traversal(world, &mut tracer, |tracer| f(&core.model, tracer))
        .map_err(|abandoned| abandoned.reason)
}

/// Traverses an object by `traverse`.
///
/// # Errors
///
/// If the model panics.
pub fn traverse<M: ObjectModel>(
    world: &World<'_, M>,
    object: Stopped<'_>,
) -> Result<Traversed, Cow<'static, str>> {
    traversing(world, |model, tracer| {
        tracer.begin(*object);
        model.traverse(object, tracer);
        Traversed {
            is_unreadable: tracer.take_unreadable(),
            targets: tracer.edges().to_vec(),
            uncounted: tracer.all_uncounted().collect(),
        }
    })
}

/// Traverses objects by `traverse_each`, as a collection does.
///
/// # Errors
///
/// If the model panics.
pub fn traverse_each<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &[Stopped<'_>],
) -> Result<Vec<Traversed>, Cow<'static, str>> {
    traversing(world, |model, tracer| {
        let mut all: Vec<Traversed> = Vec::new();
        all.resize_with(objects.len(), Traversed::default);
        let mut ends = vec![0; objects.len()];
        let traversed = traverse_batch(model, objects, tracer, &mut ends, |at| {
            all[at].is_unreadable = true;
            Ok(())
        });
        traversed.expect("a tracer that loses nothing");
        let mut start = 0;
        for (found, end) in all.iter_mut().zip(ends) {
            found.targets = tracer.edges()[start..end as usize].to_vec();
            start = end as usize;
        }
        all
    })
}

/// The number of references that `prefetch_each` reports, which is 0 if the model is right.
///
/// # Errors
///
/// If the model panics.
pub fn prefetch_each<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &[Stopped<'_>],
) -> Result<usize, Cow<'static, str>> {
    traversing(world, |model, tracer| {
        tracer.go_on(*objects[0]);
        BatchesOf::<M>::prefetch_each(model, objects, tracer);
        tracer.edges().len()
    })
}

/// The built-in model, as [`HeapBuilder::build`](crate::HeapBuilder::build) makes it.
pub fn built_in() -> Managed {
    let model = Managed::new().expect("memory for a model");
    if let Some(types) = &crate::EXTENSIONS.dynamic {
        assert_eq!(model.types.index_of(types.info).expect("the first type"), types.index);
        (types.make_builtins)().expect("built-in types");
        #[cfg(feature = "cpython")]
        model.expect_legacy(true);
    }
    model
}

/// The typed face of a mutator.
pub fn face(m: &Raw) -> &Mutator {
    Mutator::from_raw_ref(m)
}
