//! Floor 5: looking at a heap from outside: all objects, who refers to whom, what is frozen.
//!
//! Each question stops the world. Objects that a running collection is about to clear are not shown.

use std::borrow::Cow;

use crate::base::fallible::NoMemory;
use crate::collect;
use crate::collect::traversal::guard_traversal;
use crate::collect::verify::{self, Depth};
use crate::heap::mutator::World;
use crate::managed::Managed;
use crate::object::state::{FROZEN, TRACKED};
use crate::object::type_info::{Object, Tracer};
use crate::{AnyGc, Mutator};

/// Calls `f` with each object that lists show.
fn listed(world: &World<'_, Managed>, mut f: impl FnMut(Object)) {
    collect::visible(world, |object, state| {
        if state.get() & FROZEN == 0 {
            f(object.object());
        }
    });
}

/// Calls `f` with each listed object that refers to an object at one of the `sought` addresses.
pub(crate) fn referring(
    world: &World<'_, Managed>,
    sought: Vec<usize>,
    mut f: impl FnMut(Object),
) -> Result<Result<(), NoMemory>, Cow<'static, str>> {
    let space = &world.core().space;
    let mut tracer = Tracer::seeking(space.base(), space.reserved_bytes(), sought);
    guard_traversal(world, &mut tracer, |tracer| {
        listed(world, |object| {
            edges_of(world, object, tracer);
            if tracer.take_found() {
                f(object);
            }
        });
    })
    .map_err(|abandoned| abandoned.reason)?;
    Ok(tracer.lost_nothing())
}

/// Fills `tracer` with what an object refers to.
pub(crate) fn edges_of(world: &World<'_, Managed>, object: Object, tracer: &mut Tracer) {
    use crate::heap::model::ObjectModel;
    tracer.begin(object);
    let granule = world.core().space.granule(object.address());
    if let Some(object) = collect::scope::stopped_at(world, granule) {
        world.core().model.traverse(object, tracer);
    }
    tracer.take_unreadable();
}

impl Mutator {
    #[track_caller]
    fn stopped<R>(&mut self, f: impl FnOnce(&Self, &World<'_, Managed>) -> R) -> R {
        let world = match self.raw().stop_here() {
            Ok(world) => world,
            Err(error) => panic!("{error}"),
        };
        let result = f(self, &world);
        drop(world);
        crate::heap::model::ObjectModel::resumed(self.raw().model(), self.raw());
        result
    }

    /// Every tracked object of the heap that is not frozen.
    ///
    /// # Panics
    ///
    /// Like the following, when the world cannot be stopped.
    #[track_caller]
    pub fn objects(&mut self) -> Vec<AnyGc> {
        self.stopped(|m, world| {
            let mut all = Vec::new();
            listed(world, |object| all.push(m.any_from(object.as_ptr().cast())));
            all
        })
    }

    /// The tracked objects that refer to `target` and are not frozen, each once.
    ///
    /// # Panics
    ///
    /// When `target` belongs to another heap, or a traversal panics.
    #[track_caller]
    pub fn referrers(&mut self, target: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(target.header(), self);
        let address = target.header().as_ptr() as usize;
        self.stopped(|m, world| {
            let mut found = Vec::new();
            let result = referring(world, vec![address], |object| found.push(object));
            let result = result.map(|kept| kept.unwrap_or_else(NoMemory::abort_process));
            result.map(|()| found.into_iter().map(|o| m.any_from(o.as_ptr().cast())).collect())
        })
        .unwrap_or_else(|reason| panic!("a traversal failed: {reason}"))
    }

    /// What `source` refers to, as often as it does, tracked or not.
    ///
    /// # Panics
    ///
    /// When `source` belongs to another heap, or its traversal panics.
    #[track_caller]
    pub fn referents(&mut self, source: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(source.header(), self);
        let object = Object::new(source.header().cast());
        self.stopped(|m, world| {
            let space = &world.core().space;
            let mut tracer = Tracer::new(space.base(), space.reserved_bytes());
            let result =
                guard_traversal(world, &mut tracer, |tracer| edges_of(world, object, tracer));
            let to_header = |&edge: &usize| {
                let object = collect::scope::object_at(space, space.granule(edge));
                m.any_from(object.as_ptr().cast())
            };
            result.map(|()| tracer.edges().iter().map(to_header).collect::<Vec<_>>())
        })
        .unwrap_or_else(|abandoned| panic!("a traversal failed: {}", abandoned.reason))
    }

    /// Freezes every tracked object: none is looked at by collections until [`unfreeze`](Self::unfreeze),
    /// and what they refer to stays. Returns how many are frozen now.
    pub fn freeze(&mut self) -> usize {
        self.stopped(|_, world| {
            let mut frozen = 0;
            collect::visible(world, |_, state| {
                state.set(FROZEN);
                frozen += 1;
            });
            frozen
        })
    }

    /// Ends the freeze of all objects.
    pub fn unfreeze(&mut self) {
        self.stopped(|_, world| {
            // All of them: one that was untracked meanwhile would come back frozen.
            collect::live(world, |_, state| {
                state.unset(FROZEN);
            });
        });
    }

    /// How many objects are frozen.
    pub fn frozen(&mut self) -> usize {
        self.stopped(|_, world| {
            let mut frozen = 0;
            collect::visible(world, |_, state| {
                frozen += usize::from(state.get() & (FROZEN | TRACKED) == FROZEN | TRACKED);
            });
            frozen
        })
    }

    /// Looks at the whole heap for what must not be: damaged tables, references to where no object is, and
    /// objects that are visited more often than they are referred to (which a wrong traversal can cause).
    ///
    /// # Errors
    ///
    /// The first thing found.
    pub fn verify(&mut self) -> Result<(), String> {
        self.stopped(|_, world| verify::check(world, Depth::Complete))
    }
}
