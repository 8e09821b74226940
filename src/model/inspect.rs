//! A debugger looks for the objects of a heap and their references, which other threads change all
//! the time. So each function here, which the typed face and the `gc` functions call too, stops the
//! world.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::base::fallible::NoMemory;
use crate::collect::calls::{edges_of, guard_traversal};
use crate::collect::listing;
use crate::collect::scope::{live, state_of, stopped_at, visible};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::Stopped;
use crate::object::state::{DYING, FROZEN, ObjectFlags, TRACKED};
use crate::object::tracer::Tracer;
use crate::verify::objects::{Depth, check};

/// Calls `f` with each tracked object except the frozen ones, and those that a running collection
/// is about to clear.
pub(crate) fn listed<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    mut f: impl FnMut(Stopped<'w>, ObjectFlags),
) {
    visible(world, |object, state| {
        if state.get() & FROZEN == 0 {
            f(object, ObjectFlags::of(state.get()));
        }
    });
}

/// Calls `f` with each listed object that refers to an object at one of the `sought` addresses.
pub(crate) fn referring<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    sought: Vec<usize>,
    mut f: impl FnMut(Stopped<'w>, ObjectFlags),
) -> Result<Result<(), NoMemory>, Cow<'static, str>> {
    let space = &world.core().space;
    let (start, bytes) = space.bounds();
    let mut tracer = Tracer::seeking(start, bytes, sought);
    guard_traversal(world, &mut tracer, |tracer| {
        listed(world, |object, flags| {
            edges_of(world, object.object(), tracer);
            if tracer.take_found() {
                f(object, flags);
            }
        });
    })
    .map_err(|abandoned| abandoned.reason)?;
    Ok(tracer.lost_nothing())
}

/// Calls `f` with the target of each reference in `source`, an object of this heap.
pub(crate) fn targets<'w, M: ObjectModel>(
    world: &'w World<'_, M>,
    source: Object,
    mut f: impl FnMut(Stopped<'w>, ObjectFlags),
) -> Result<(), Cow<'static, str>> {
    let space = &world.core().space;
    let (start, bytes) = space.bounds();
    let mut tracer = Tracer::new(start, bytes);
    guard_traversal(world, &mut tracer, |tracer| edges_of(world, source, tracer))
        .map_err(|abandoned| abandoned.reason)?;
    tracer.lost_nothing().unwrap_or_else(NoMemory::abort_process);
    for &edge in tracer.edges() {
        if let Some(target) = stopped_at(world, space.granule(edge)) {
            f(target, ObjectFlags::of(state_of(space, target.object()).get()));
        }
    }
    Ok(())
}

impl<M: ObjectModel> ModelMutator<M> {
    /// Calls `f` while the world is stopped.
    #[track_caller]
    pub(crate) fn inspect<R>(&self, f: impl FnOnce(&World<'_, M>) -> R) -> R {
        let world = match self.stop_here() {
            Ok(world) => world,
            Err(error) => panic!("{error}"),
        };
        let result = listing::list(&world, usize::MAX).map(|()| f(&world));
        drop(world);
        let _lent = self.lend_to_model();
        SplitCountsOf::<M>::resumed(self.model(), self);
        match result {
            Ok(result) => result,
            Err(abandoned) => panic!("the objects cannot be listed: {}", abandoned.reason),
        }
    }

    /// Calls `f` with each object of the heap and its [`ObjectFlags`], in the order of memory,
    /// while the world is stopped.
    ///
    /// These are all objects that were published and are not dead, also untracked and frozen ones,
    /// and those that a running collection is about to clear ([`ObjectFlags::is_unreachable`]). `f`
    /// may add references to an object. But `f` lowers no count and frees nothing, because rule 3
    /// of [`ObjectModel`] applies to it. If `f` panics, the world resumes.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped: in a finalizer, callback, traversal, `with_current` or
    /// another stop, or if another thread has ended without dropping its mutator. If the model
    /// [cannot list its objects](crate::model::Lists::list_parts).
    #[track_caller]
    pub fn objects(&mut self, mut f: impl FnMut(Stopped<'_>, ObjectFlags)) {
        self.inspect(|world| {
            live(world, |object, state| {
                // An object that a merge found dead is left out, because it only waits for its
                // destruction.
                if state.get() & DYING == 0 {
                    f(object, ObjectFlags::of(state.get()));
                }
            });
        });
    }

    /// Calls `f` with each tracked object that refers to `target`, once for each object, while the
    /// world is stopped. Frozen objects are not included, nor those that a running collection is
    /// about to clear. [`objects`](Self::objects) says what `f` may do.
    ///
    /// # Panics
    ///
    /// * If a traversal panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referrers(&mut self, target: Object, mut f: impl FnMut(Stopped<'_>, ObjectFlags)) {
        let result = self.inspect(|world| {
            let mut found = Vec::new();
            let kept = referring(world, vec![target.address()], |object, flags| {
                found.push((object, flags));
            })?;
            kept.unwrap_or_else(NoMemory::abort_process);
            // Outside the guard of the traversal, because a panic of `f` is not one of a traversal.
            found.into_iter().for_each(|(object, flags)| f(object, flags));
            Ok(())
        });
        result.unwrap_or_else(|reason: Cow<'_, str>| panic!("a traversal failed: {reason}"));
    }

    /// Calls `f` with the target of each reference in `source`, while the world is stopped: tracked
    /// and untracked objects, each once for each reference to it. References to addresses where no
    /// object of this heap is are left out. [`objects`](Self::objects) says what `f` may do.
    ///
    /// # Panics
    ///
    /// * If `source` is no object of this heap, or is dead.
    /// * If the traversal of `source` panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referents(&mut self, source: Object, f: impl FnMut(Stopped<'_>, ObjectFlags)) {
        let result = self.inspect(|world| {
            let (space, address) = (&world.core().space, source.address());
            let is_object = space.contains(address)
                && world.core().is_start(address)
                && stopped_at(world, space.granule(address)).is_some();
            if !is_object {
                return Err(format!("no object of this heap is at {address:#x}"));
            }
            targets(world, source, f).map_err(|reason| format!("a traversal failed: {reason}"))
        });
        result.unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// Freezes all tracked objects, and returns the number of frozen objects.
    ///
    /// Collections ignore frozen objects until [`unfreeze`](Self::unfreeze), so that the references
    /// of a frozen object keep their targets alive.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects). If the model
    /// [lists its objects](crate::model::Lists).
    #[track_caller]
    pub fn freeze(&mut self) -> usize {
        self.assert_not_listed("freeze");
        freeze(self)
    }

    /// Unfreezes all objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects). If the model
    /// [lists its objects](crate::model::Lists).
    #[track_caller]
    pub fn unfreeze(&mut self) {
        self.assert_not_listed("unfreeze");
        unfreeze(self);
    }

    /// The number of frozen objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn frozen(&mut self) -> usize {
        frozen(self)
    }

    /// Checks the whole heap for damage. It looks for these defects:
    ///
    /// * damaged tables, and headers for which [`Checks::check`](crate::model::Checks::check)
    ///   returns an error;
    /// * references to addresses without an object (rules 2 and 4 of [`ObjectModel`]);
    /// * overvisited objects, which traversals visit more often than references to them exist
    ///   (rules 1 and 4);
    /// * traversals of one object that differ, counts that fall in a stop (rule 3), and methods
    ///   that contradict each other or panic.
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
        verify(self)
    }
}

#[track_caller]
pub(crate) fn freeze<M: ObjectModel>(m: &ModelMutator<M>) -> usize {
    m.inspect(|world| {
        let mut frozen = 0;
        visible(world, |_, state| {
            state.set(FROZEN);
            frozen += 1;
        });
        frozen
    })
}

#[track_caller]
pub(crate) fn unfreeze<M: ObjectModel>(m: &ModelMutator<M>) {
    m.inspect(|world| {
        // Untracked objects too, because an object that was untracked after the freeze would be
        // frozen when it is tracked again.
        live(world, |_, state| {
            state.unset(FROZEN);
        });
    });
}

#[track_caller]
pub(crate) fn frozen<M: ObjectModel>(m: &ModelMutator<M>) -> usize {
    m.inspect(|world| {
        let mut frozen = 0;
        visible(world, |_, state| {
            frozen += usize::from(state.get() & (FROZEN | TRACKED) == FROZEN | TRACKED);
        });
        frozen
    })
}

#[track_caller]
pub(crate) fn verify<M: ObjectModel>(m: &ModelMutator<M>) -> Result<(), String> {
    m.inspect(|world| check(world, Depth::Complete))
}
