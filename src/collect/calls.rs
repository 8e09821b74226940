//! The calls to the model, which are traversals in a stop, and its other methods between the stops.
//!
//! The model is code of others, which may be slow, or panic. In a stop, one call handles up to 16
//! objects, so that a model can call one function for several objects of one type. A panic of a
//! traversal abandons the collection, because the edges of the object are unknown.
//!
//! Between the stops, methods may run code of the runtime, so the mutator is lent meanwhile. A
//! panic must not unwind through the collection, because it would leak the references to the
//! garbage, and could keep the collector lock. So it is reported to the hook of
//! [`on_unraisable`](crate::model::ModelHeap::on_unraisable), and the collection continues.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::base::fallible::{self, NoMemory, words};
use crate::base::outside::{self, guarded, panic_message};
use crate::base::steps;
use crate::base::sync::IS_MODEL;
use crate::collect::scope::stopped_at;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::address_map::AddressMap;
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::live::Stopped;
use crate::object::tracer::{Ends, Tracer};
use crate::report::error::{Code, Fault};
use crate::report::facts::{During, LongestCall};

#[derive(Debug)]
pub(crate) struct Abandoned {
    /// What failed: a traversal, or another part of the collection.
    pub(crate) during: During,
    pub(crate) reason: Cow<'static, str>,
    pub(crate) type_name: Cow<'static, str>,
}

impl Abandoned {
    /// A failure of the collection itself.
    pub(crate) fn collection(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { during: During::Collect, reason: reason.into(), type_name: "".into() }
    }

    /// The fault of a function that is no collection.
    pub(crate) fn fault(self, function: &'static str) -> Fault {
        let code = match self.during {
            During::Traverse => Code::HandlerError,
            _ if self.reason == NoMemory::REASON => Code::Memory,
            _ => Code::Custom,
        };
        Fault::new(code, function).because(self.reason)
    }

    /// A field was readable in an object's first traversal and is unreadable in the second.
    pub(crate) fn locked(type_name: Cow<'static, str>) -> Self {
        Self {
            during: During::Traverse,
            reason: "a field that could be read when references were counted is locked now".into(),
            type_name,
        }
    }
}

impl From<NoMemory> for Abandoned {
    fn from(_: NoMemory) -> Self {
        Self::collection(NoMemory::REASON)
    }
}

/// The number of objects that one call traverses.
pub(crate) const BATCH_PART: usize = 16;

pub(crate) fn tracer(space: &Space<impl AddressMap>) -> Tracer {
    let (start, bytes) = space.bounds();
    Tracer::for_collection(start, bytes)
}

pub(crate) fn tracer_of<M: ObjectModel>(world: &World<'_, M>) -> Tracer {
    let mut tracer = tracer(&world.core().space);
    tracer.refuses_uncounted = !UncountedOf::<M>::PRESENT;
    tracer
}

/// The name of an object's type, which is empty if the object is dead.
pub(crate) fn type_name<M: ObjectModel>(world: &World<'_, M>, object: Object) -> Cow<'static, str> {
    let granule = world.core().space.granule(object.address());
    stopped_at(world, granule)
        .map_or("".into(), |object| world.core().model.type_name(object.live()))
}

/// Runs `scan`, and turns a panic of a traversal into [`Abandoned`], with the object that the
/// tracer was at.
pub(crate) fn guard_traversal<M: ObjectModel, R>(
    world: &World<'_, M>,
    tracer: &mut Tracer,
    scan: impl FnOnce(&mut Tracer) -> R,
) -> Result<R, Abandoned> {
    let result = {
        // While the guard lives, `current` is 0, so that clones use the shared count, drops are
        // deferred, and attaching is refused. The panic's payload is dropped before the guard,
        // because it may hold references.
        let _guard = crate::safepoint::traversing();
        outside::guarded(|| scan(tracer)).map_err(outside::panic_message)
    };
    result.map_err(|reason| Abandoned {
        during: During::Traverse,
        reason,
        type_name: tracer.at().map_or("".into(), |object| type_name(world, object)),
    })
}

/// Replaces the edges in `tracer` by the edges of `object`.
pub(crate) fn edges_of<M: ObjectModel>(world: &World<'_, M>, object: Object, tracer: &mut Tracer) {
    tracer.begin(object);
    let granule = world.core().space.granule(object.address());
    if let Some(object) = stopped_at(world, granule) {
        world.core().model.traverse(object, tracer);
    }
    tracer.take_unreadable();
}

/// Traverses `objects`, and appends their edges to the tracer, and the end of each object's edges
/// to `ends`. An object with an unreadable field gets no edges, and `unreadable` is called with its
/// number instead.
#[inline(always)]
pub(crate) fn traverse_batch<M: ObjectModel>(
    model: &M,
    objects: &[Stopped<'_>],
    tracer: &mut Tracer,
    ends: &mut [u32],
    mut unreadable: impl FnMut(usize) -> Result<(), NoMemory>,
) -> Result<(), NoMemory> {
    let mut traversed = 0;
    while traversed < objects.len() {
        let before = tracer.edges().len() as u32;
        let mut own = Ends::new(&mut ends[traversed..objects.len()]);
        // A panic is attributed to this object, unless the traversal reaches a later object.
        tracer.go_on(objects[traversed].object());
        BatchesOf::<M>::traverse_each(model, &objects[traversed..], tracer, &mut own);
        let ends_of = own.filled();
        assert!(!ends_of.is_empty(), "`traverse_each` has traversed no object");
        let last = ends_of.len() - 1;
        if tracer.take_unreadable() {
            tracer.lost_nothing()?;
            let start = if last > 0 { ends_of[last - 1] } else { before };
            ends_of[last] = start;
            tracer.truncate(start as usize);
            unreadable(traversed + last)?;
        } else {
            // Edges after the last end belong to no object.
            tracer.truncate(ends_of[last] as usize);
        }
        traversed += last + 1;
    }
    Ok(())
}

/// Traverses those objects once more that the model
/// [verifies](crate::model::Checks::verifies_traversal). Panics if one of them reports other edges
/// than those in the tracer, unless it has an unreadable field.
#[cold]
pub(crate) fn compare_traversals<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &[Stopped<'_>],
    ends: &[u32],
    tracer: &mut Tracer,
    is_unreadable: impl Fn(Object) -> bool,
) -> Result<(), NoMemory> {
    let model = &world.core().model;
    let mut again = tracer_of(world);
    let mut start = 0;
    for (&object, &end) in objects.iter().zip(ends) {
        let own = start..end as usize;
        start = end as usize;
        if !ChecksOf::<M>::verifies_traversal(model, object) || is_unreadable(object.object()) {
            continue;
        }
        // Attributes a fault to this object, not to the last traversed one.
        tracer.go_on(object.object());
        again.clear();
        again.forget_uncounted();
        let (mut end, mut is_readable) = ([0], true);
        traverse_batch(model, &[object], &mut again, &mut end, |_| {
            is_readable = false;
            Ok(())
        })?;
        tracer.lost_nothing()?;
        again.lost_nothing()?;
        let edges = &tracer.edges()[own];
        let is_same = edges == again.edges()
            && tracer.uncounted_of(object.object()).eq(again.uncounted_of(object.object()));
        steps::took(edges.len());
        if is_readable && !is_same {
            let name = model.type_name(object.live());
            let why = format!(
                "the traverse handler of '{name}' visited other references the second time"
            );
            // `guard_traversal` catches the panic, so the panic hook must not print a message.
            std::panic::resume_unwind(Box::new(why));
        }
    }
    Ok(())
}

/// Makes the model prefetch the memory that the traversal of `objects` will read.
#[inline(always)]
pub(crate) fn prefetch_each<M: ObjectModel>(
    model: &M,
    objects: &[Stopped<'_>],
    tracer: &mut Tracer,
) {
    let Some(&first) = objects.first() else { return };
    tracer.go_on(first.object());
    let before = tracer.edges().len();
    BatchesOf::<M>::prefetch_each(model, objects, tracer);
    debug_assert_eq!(tracer.edges().len(), before, "to prefetch reports nothing");
}

/// Calls a method of the model. Returns `None` if it panicked, which was reported.
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

/// Quick clear handlers and destructors are measured this many at a time, because reading the clock
/// takes about as long as one of them.
pub(crate) const MEASURED_TOGETHER: usize = 32;

/// A shorter call is not noted, so that quick code pays for no name.
const NOTED: Duration = Duration::from_micros(100);

/// Measures the code of the program that a collection calls on this thread, for
/// [`report_held_up`].
pub(crate) struct CallClock(Instant);

impl CallClock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The call for some objects ends now, and the next one begins. Returns how many objects to
    /// measure together next: one after a slow call, so that the next slow one is named.
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
        if took < NOTED || IS_MODEL {
            return MEASURED_TOGETHER;
        }
        // Without memory the call has no name.
        let type_name = fallible::owned(&name()).unwrap_or_default().into();
        let call = LongestCall { during, type_name, objects, took };
        m.core().timings.note_call(&call);
        m.held_up().note_call(call);
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
/// Reports if this took long without the waits for stops, because the threads that cause these are
/// reported.
pub(crate) fn report_held_up<M: ObjectModel>(m: &ModelMutator<M>, begun: Instant) {
    let held_up = begun.elapsed().saturating_sub(m.held_up().waited());
    // The behaviour of a model does not depend on time.
    if held_up >= m.core().coordinator.slow_stop() && !IS_MODEL {
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

/// At most [`BATCH_PART`] elements of the list, from number `first` on.
#[inline(always)]
pub(crate) fn part<T>(list: &[T], first: usize) -> &[T] {
    let rest = list.get(first..).unwrap_or_default();
    &rest[..rest.len().min(BATCH_PART)]
}

/// Divides objects into those that only the first worker traverses, of which `serial` gets the
/// granules, and the `rest`.
#[cold]
pub(crate) fn leave_serial<'w, M: ObjectModel>(
    model: &M,
    objects: &[Stopped<'w>],
    serial: &mut Vec<u32>,
    rest: &mut Vec<Stopped<'w>>,
    granule: impl Fn(Object) -> u32,
) -> Result<(), NoMemory> {
    rest.clear();
    rest.try_reserve(objects.len())?;
    for &object in objects {
        match SerialOf::<M>::serial(model, object) {
            true => fallible::push(serial, granule(*object))?,
            false => rest.push(object),
        }
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
