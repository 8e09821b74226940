//! The calls about the objects of a heap: lists, referrers, freezing.
//!
//! Threads make and change objects all the time, so a list of objects can be exact only in a stop.
//! A listed object could die as soon as the world runs again. So a list has handles, for example
//! those that [`Services::visit_objects`] passes to the program one by one.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::base::fallible::{self, words};
use crate::collect;
use crate::collect::calls::{edges_of, guard_traversal};
use crate::gc_module::collecting::bad_generation;
use crate::gc_module::services::{Services, stopped};
use crate::heap::world::World;
use crate::managed::Managed;
use crate::model::inspect;
use crate::object::address::Object;
use crate::object::state::{FROZEN, OLD};
use crate::object::tracer::Tracer;
use crate::report::error::{Code, Fault};
use crate::safepoint::ThreadId;
use crate::{AnyGc, Mutator};

/// Whether [`Services::visit_objects`] continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// With the next object.
    Continue,
    /// Not with another object.
    Stop,
}

impl Services {
    /// Returns the tracked objects, or those of one [generation](crate::gc_module#generations),
    /// without frozen objects, and without objects that a running collection has found unreachable.
    ///
    /// # Errors
    ///
    /// * [`Code::BadGeneration`] for a generation other than 0, 1 and 2.
    /// * [`Code::Memory`].
    /// * When the world cannot be stopped.
    pub fn objects(&self, m: &mut Mutator, generation: Option<i32>) -> Result<Vec<AnyGc>, Fault> {
        const NAME: &str = "objects";
        self.check(m);
        self.audit(m, "gc.get_objects");
        let wanted: fn(u8) -> bool = match generation {
            None => |state| state & FROZEN == 0,
            Some(0) => |state| state & (FROZEN | OLD) == 0,
            Some(1) => return Ok(Vec::new()),
            Some(2) => |state| state & (FROZEN | OLD) == OLD,
            Some(other) => return Err(bad_generation(NAME, other)),
        };
        stopped(m, NAME, |m, world| snapshot(m, world, NAME, wanted))
    }

    /// Returns the tracked objects that refer to one of `targets`, each once, without frozen
    /// objects, and without objects that a running collection has found unreachable. Use it only
    /// for debugging, because the result can contain objects that are not fully initialized.
    ///
    /// # Errors
    ///
    /// * [`Code::ForeignPointer`] when a target belongs to another heap.
    /// * [`Code::HandlerError`] when a traversal panics.
    /// * [`Code::Memory`].
    /// * When the world cannot be stopped.
    pub fn referrers(&self, m: &mut Mutator, targets: &[AnyGc]) -> Result<Vec<AnyGc>, Fault> {
        const NAME: &str = "referrers";
        self.check(m);
        of_this_heap(m, targets, NAME)?;
        self.audit(m, "gc.get_referrers");
        let addresses = fallible::collect(targets.iter().map(|t| t.header().as_ptr() as usize))?;
        stopped(m, NAME, |m, world| {
            let mut found = Vec::new();
            let mut kept = Ok(());
            inspect::referring(world, addresses, |object, _| {
                kept = kept.and_then(|()| fallible::push(&mut found, object));
            })
            .map_err(|reason| failed_traversal(NAME, &reason, "".into()))??;
            kept?;
            let mut all = room(found.len(), NAME)?;
            all.extend(found.into_iter().map(|object| m.any_from(object.live())));
            Ok(all)
        })
    }

    /// Returns the objects to which `sources` refer, in the order of the sources, one entry for
    /// each reference. Neither a source nor a result needs to be tracked.
    ///
    /// # Errors
    ///
    /// As for [`referrers`](Self::referrers).
    pub fn referents(&self, m: &mut Mutator, sources: &[AnyGc]) -> Result<Vec<AnyGc>, Fault> {
        const NAME: &str = "referents";
        self.check(m);
        of_this_heap(m, sources, NAME)?;
        self.audit(m, "gc.get_referents");
        stopped(m, NAME, |m, world| {
            let space = &world.core().space;
            let mut tracer = Tracer::for_collection(space.base(), space.reserved_bytes());
            let (mut edges, mut kept) = (Vec::new(), Ok(()));
            guard_traversal(world, &mut tracer, |tracer| {
                for source in sources {
                    edges_of(world, Object::new(source.header().cast()), tracer);
                    kept = kept.and(fallible::extend(&mut edges, tracer.edges()));
                }
            })
            .map_err(|abandoned| failed_traversal(NAME, &abandoned.reason, abandoned.type_name))?;
            kept.and(tracer.lost_nothing())?;
            let mut all = room(edges.len(), NAME)?;
            let target = |edge| collect::scope::stopped_at(world, space.granule(edge));
            let targets = edges.into_iter().filter_map(target);
            all.extend(targets.map(|target| m.any_from(target.live())));
            Ok(all)
        })
    }

    /// Whether an object is in the tracked set.
    pub fn is_tracked(&self, m: &Mutator, object: &AnyGc) -> bool {
        object.is_tracked(m)
    }

    /// Whether an object's finalizer has been called.
    pub fn is_finalized(&self, m: &Mutator, object: &AnyGc) -> bool {
        object.is_finalized(m)
    }

    /// Calls `f` with each tracked object, once and in no particular order, until `f` returns
    /// [`Visit::Stop`], and returns the number of calls. Frozen objects are included, but objects
    /// that a running collection has found unreachable are not.
    ///
    /// A short stop at the start collects references to all these objects. So objects that are made
    /// later are not visited, and an object without other references lives until it has been
    /// visited. Because the world runs during the calls, `f` may do anything, also visit all
    /// objects, and other threads can change objects.
    ///
    /// Until the visit is finished, the heap starts no collection, and on all threads the
    /// collecting calls of this module do nothing. A program that only visits, without a safepoint
    /// between two visits, collects nothing. The setting of [`enable`](Self::enable) is kept and
    /// may be changed. [`Mutator::collect`] still collects, which is harmless.
    ///
    /// If `f` panics, the references are dropped, automatic collections are possible again, and the
    /// panic continues.
    ///
    /// # Errors
    ///
    /// [`Code::Memory`] when there is no memory for the references, and when the world cannot be
    /// stopped. No object was visited then.
    pub fn visit_objects(
        &self,
        m: &mut Mutator,
        mut f: impl FnMut(&AnyGc, &mut Mutator) -> Visit,
    ) -> Result<usize, Fault> {
        const NAME: &str = "visit_objects";
        struct RunningVisit<'a>(&'a Services, ThreadId);
        impl Drop for RunningVisit<'_> {
            fn drop(&mut self) {
                self.0.state().switch.visit_finishes(self.1, self.0.pace());
                // A collection may have become due during the visit.
                self.0.core().request_what_is_due();
            }
        }
        self.check(m);
        let me = m.raw().thread_id();
        let begun = self.state().switch.visit_begins(me, self.pace());
        begun.map_err(|no_memory| Fault { function: NAME, ..Fault::from(no_memory) })?;
        // Declared first, so that it is dropped last, also when a destructor panics.
        let _running = RunningVisit(self, me);
        let set = stopped(m, NAME, |m, world| snapshot(m, world, NAME, |_| true))?;
        let mut visited = 0;
        for object in set {
            visited += 1;
            if f(&object, m) == Visit::Stop {
                break;
            }
        }
        Ok(visited)
    }
}

/// The number of visible objects for which `wanted` accepts the state.
pub(super) fn count(world: &World<'_, Managed>, wanted: impl Fn(u8) -> bool) -> usize {
    let mut count = 0;
    collect::visible(world, |_, state| count += usize::from(wanted(state.get())));
    count
}

/// References to the visible objects for which `wanted` accepts the state.
fn snapshot(
    m: &Mutator,
    world: &World<'_, Managed>,
    function: &'static str,
    wanted: impl Fn(u8) -> bool,
) -> Result<Vec<AnyGc>, Fault> {
    let mut all = room(count(world, &wanted), function)?;
    collect::visible(world, |object, state| {
        if wanted(state.get()) {
            all.push(m.any_from(object.live()));
        }
    });
    Ok(all)
}

fn room<T>(count: usize, function: &'static str) -> Result<Vec<T>, Fault> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|error| {
        Fault::new(Code::Memory, function)
            .because(words!("no memory for a list of {count}: {error}"))
    })?;
    Ok(list)
}

fn of_this_heap(m: &Mutator, objects: &[AnyGc], function: &'static str) -> Result<(), Fault> {
    let foreign = objects.iter().find(|object| !m.raw().owns(Object::new(object.header().cast())));
    foreign.map_or(Ok(()), |object| {
        let fault =
            Fault::new(Code::ForeignPointer, function).at(object.header().as_ptr() as usize);
        Err(fault.because("the object belongs to another heap than the mutator"))
    })
}

fn failed_traversal(function: &'static str, reason: &str, type_name: Cow<'static, str>) -> Fault {
    // Always borrowed, because the names of the built-in model are constants.
    let type_name = if let Cow::Borrowed(name) = type_name { name } else { "" };
    Fault::new(Code::HandlerError, function)
        .of_type(type_name)
        .because(words!("a traversal failed: {reason}"))
}

impl Services {
    /// Freezes all tracked objects, except objects that a running collection has found unreachable,
    /// and returns their number. Collections ignore frozen objects, and keep the objects to which
    /// they refer.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn freeze(&self, m: &mut Mutator) -> Result<usize, Fault> {
        self.check(m);
        stopped(m, "freeze", |_, world| {
            let mut frozen = 0;
            collect::visible(world, |_, state| {
                state.set(FROZEN);
                frozen += 1;
            });
            Ok(frozen)
        })
    }

    /// Unfreezes all objects.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn unfreeze(&self, m: &mut Mutator) -> Result<(), Fault> {
        self.check(m);
        stopped(m, "unfreeze", |_, world| {
            // All live objects, because an object that was untracked meanwhile would otherwise be
            // frozen when it is tracked again.
            collect::live(world, |_, state| {
                state.unset(FROZEN);
            });
            Ok(())
        })
    }

    /// The number of frozen objects.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn freeze_count(&self, m: &mut Mutator) -> Result<usize, Fault> {
        self.check(m);
        stopped(m, "freeze_count", |_, world| Ok(count(world, |state| state & FROZEN != 0)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
