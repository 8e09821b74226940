//! Inspection of a heap: its objects, their references, and the frozen objects.
//!
//! Each function stops the world. Objects that a running collection is about to clear are not
//! listed.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::base::fallible::NoMemory;
use crate::collect;
use crate::collect::traversal::guard_traversal;
use crate::collect::verify::{self, Depth};
use crate::heap::mutator::World;
use crate::managed::Managed;
use crate::object::live::Stopped;
use crate::object::state::{FROZEN, TRACKED};
use crate::object::type_info::{Object, Tracer};
use crate::{AnyGc, Mutator};

/// Calls `f` with each object that the functions of this module list.
fn listed<'w>(world: &'w World<'_, Managed>, mut f: impl FnMut(Stopped<'w>)) {
    collect::visible(world, |object, state| {
        if state.get() & FROZEN == 0 {
            f(object);
        }
    });
}

/// Calls `f` with each listed object that refers to an object at one of the `sought` addresses.
pub(crate) fn referring<'w>(
    world: &'w World<'_, Managed>,
    sought: Vec<usize>,
    mut f: impl FnMut(Stopped<'w>),
) -> Result<Result<(), NoMemory>, Cow<'static, str>> {
    let space = &world.core().space;
    let mut tracer = Tracer::seeking(space.base(), space.reserved_bytes(), sought);
    guard_traversal(world, &mut tracer, |tracer| {
        listed(world, |object| {
            edges_of(world, object.object(), tracer);
            if tracer.take_found() {
                f(object);
            }
        });
    })
    .map_err(|abandoned| abandoned.reason)?;
    Ok(tracer.lost_nothing())
}

/// Replaces the edges in `tracer` by the edges of `object`.
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
    /// Calls `f` while the world is stopped.
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

    /// All tracked objects of the heap except the frozen objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped: in a destructor, finalizer, callback or traversal, or if
    /// another thread has ended without dropping its mutator.
    #[track_caller]
    pub fn objects(&mut self) -> Vec<AnyGc> {
        self.stopped(|m, world| {
            let mut all = Vec::new();
            listed(world, |object| all.push(m.any_from(object.live())));
            all
        })
    }

    /// All tracked objects that refer to `target`, except the frozen objects. Each object is listed
    /// once.
    ///
    /// # Panics
    ///
    /// * If `target` belongs to another heap than the mutator.
    /// * If a traversal panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referrers(&mut self, target: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(target.header(), self);
        let address = target.header().as_ptr() as usize;
        self.stopped(|m, world| {
            let mut found = Vec::new();
            let result = referring(world, vec![address], |object| found.push(object));
            let result = result.map(|kept| kept.unwrap_or_else(NoMemory::abort_process));
            result.map(|()| found.into_iter().map(|object| m.any_from(object.live())).collect())
        })
        .unwrap_or_else(|reason| panic!("a traversal failed: {reason}"))
    }

    /// All targets of the references in `source`, tracked and untracked. An object is listed once
    /// per reference to it.
    ///
    /// # Panics
    ///
    /// * If `source` belongs to another heap than the mutator.
    /// * If the traversal of `source` panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referents(&mut self, source: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(source.header(), self);
        let object = Object::new(source.header().cast());
        self.stopped(|m, world| {
            let space = &world.core().space;
            let mut tracer = Tracer::new(space.base(), space.reserved_bytes());
            let result =
                guard_traversal(world, &mut tracer, |tracer| edges_of(world, object, tracer));
            tracer.lost_nothing().unwrap_or_else(NoMemory::abort_process);
            let targets = |edges: &[usize]| -> Vec<AnyGc> {
                let target = |&edge| collect::scope::stopped_at(world, space.granule(edge));
                edges.iter().filter_map(target).map(|target| m.any_from(target.live())).collect()
            };
            result.map(|()| targets(tracer.edges()))
        })
        .unwrap_or_else(|abandoned| panic!("a traversal failed: {}", abandoned.reason))
    }

    /// Freezes all tracked objects. Returns the number of frozen objects.
    ///
    /// Collections ignore frozen objects until [`unfreeze`](Self::unfreeze). The references of a
    /// frozen object keep their targets alive.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
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

    /// Unfreezes all objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn unfreeze(&mut self) {
        self.stopped(|_, world| {
            // Untracked objects too: an object that was untracked after the freeze would be frozen
            // when it is tracked again.
            collect::live(world, |_, state| {
                state.unset(FROZEN);
            });
        });
    }

    /// The number of frozen objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn frozen(&mut self) -> usize {
        self.stopped(|_, world| {
            let mut frozen = 0;
            collect::visible(world, |_, state| {
                frozen += usize::from(state.get() & (FROZEN | TRACKED) == FROZEN | TRACKED);
            });
            frozen
        })
    }

    /// Checks the whole heap for damage. It looks for these defects:
    ///
    /// * damaged tables;
    /// * references to addresses without an object;
    /// * overvisited objects, which traversals visit more often than references to them exist. A
    ///   wrong [`Trace::traverse`](crate::Trace::traverse) can cause this defect.
    ///
    /// # Errors
    ///
    /// A description of the first defect.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn verify(&mut self) -> Result<(), String> {
        self.stopped(|_, world| verify::check(world, Depth::Complete))
    }
}
