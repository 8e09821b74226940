//! What a model names in a stop because the heap cannot know it: its objects, roots that no count
//! shows, and corrections of counts.
//!
//! # Listed objects
//!
//! Objects in adopted memory are registered one by one, or else the model *lists* them in a stop
//! ([`Lists`](crate::model::Lists)). Then nobody tells the heap about births and deaths, because
//! the runtime's allocator knows which blocks are in use. For example, A and B are listed, A dies,
//! and C takes its block. The heap learns this when the next listing shows B and C.
//!
//! ## When objects are listed
//!
//! They are listed in each stop that looks at objects: the first stop of a collection, the second
//! one if it traverses all objects ([`Uncounted::RECHECKS`](crate::model::Uncounted::RECHECKS)),
//! and inspections. A stop that [proves](super::forked) what a child proposes lists the proposed
//! objects alone, of which some may have died since the child was cloned. Other stops, such as
//! those of a fork, list nothing.
//!
//! ## Steps
//!
//! 1. [`Lists::list_parts`](crate::model::Lists::list_parts), on the collecting thread: the model
//!    adopts memory that is new, and divides its pages into parts.
//! 2. The workers clear the state bytes of all adopted pages, except those of *members*: objects
//!    with `UNREACHABLE`, which a running collection holds.
//! 3. [`Lists::list`](crate::model::Lists::list), on the workers, each part once: the bytes of the
//!    objects become `LIVE | TRACKED`. No page of the heap belongs to two parts, so each byte and
//!    each bit has one writer.
//!
//! Listing reads no object. Whether one takes part is the answer of [`ObjectModel::count`], which
//! the collector needs only for those that it has not reached from roots before. If a step fails,
//! some objects have states and others have none, until the next listing repairs that. No code
//! looks at states before.
//!
//! ## States between stops
//!
//! | object | its byte |
//! |---|---|
//! | a member, claimed and not released yet | as in every heap; a listing leaves it alone |
//! | any other | from its last listing: it may have died, and another object may have its place |
//!
//! A death changes no byte, so a thread zeroes the byte of a member right *before* it releases the
//! claim's reference. Because it passes no safepoint in between, no stop sees a member without a
//! state, or memory of a dead object with one. If the object survives, the closing takes it for
//! collected, because its byte is 0, and the next listing shows it again.
//!
//! If memory was returned to the system, or used for something else, its pages have no objects in
//! the next listing. All pages stay young, because each listing makes new states. The model
//! remembers itself which finalizers have run, because a listing clears the bits of all objects
//! except members.
//!
//! # Objects that references without a count keep alive
//!
//! If an object holds such a reference, its traversal can report an uncounted edge
//! ([`Tracer::uncounted`]). For other references
//! [`Uncounted::roots`](crate::model::Uncounted::roots) reports the targets.
//!
//! | phase | uncounted edges of a traversed object | reported roots |
//! |---|---|---|
//! | `Premark` | are followed; those to assumed roots are not counted | are marked first |
//! | `Count` | are ignored | are marked, so not counted |
//! | `Mark` | are followed | |
//! | `Claim` | are followed from legacy finalizers | |
//! | `Recheck` | are followed | are marked first, as are the targets of other objects |
//!
//! If marks may be lost in `Premark` ([*plain marks*](super::candidates#plain-marks)), these
//! targets are marked again at its end.
//!
//! An object with an unreadable field loses its counted edges. This is safe, because their targets
//! then have references that no candidate explains. Its uncounted edges stay, because nothing else
//! shows that their targets are alive.
//!
//! ## Uncounted edges of objects that are not traversed
//!
//! If an old object A holds the only reference to a young B, without a count, a young collection
//! misses it, because it does not traverse A. So such a model runs no young collections, unless it
//! reports these targets as roots
//! ([`Uncounted::COLLECTS_YOUNG`](crate::model::Uncounted::COLLECTS_YOUNG)). The recheck has the
//! same problem, because a finalizer can store an uncounted reference to a member in any object
//! outside the set. If the model does not report these targets
//! ([`Uncounted::RECHECKS`](crate::model::Uncounted::RECHECKS)), the recheck traverses all tracked
//! objects for their uncounted edges alone.

use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicUsize, Mutex, Ordering};
use crate::collect::calls::{Abandoned, guard_traversal, tracer_of};
use crate::collect::ephemerons::WeakPair;
use crate::collect::scope::{Selection, exclusively, live};
use crate::heap::listed::{ListedMemory, ObjectList, WANTED};
use crate::heap::model::ObjectModel;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::address_map::Map;
use crate::memory::segments::Segments;
use crate::memory::shape::{PAGE_GRANULES, PageKind};
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::state::{self, StateByte, UNREACHABLE};

/// Has the model list its objects, if it does so, on at most `most` threads. The collection has
/// changed nothing yet, so that a failure can abandon it.
pub(crate) fn list<M: ObjectModel>(world: &World<'_, M>, most: usize) -> Result<(), Abandoned> {
    list_wanted(world, most, None)
}

/// As [`list`], of the objects at some granules, in the order of memory. Those granules lose their
/// states where no object starts now. All other states stay.
pub(super) fn list_some<M: ObjectModel>(
    world: &World<'_, M>,
    most: usize,
    wanted: &[u32],
) -> Result<(), Abandoned> {
    if !ListsOf::<M>::PRESENT {
        return Ok(());
    }
    if world.core().verifier.is_some() {
        forget_others(world);
    }
    let states = world.core().space.states();
    let each = |change: fn(StateByte<'_>)| {
        wanted
            .iter()
            .filter_map(|&at| states.get(at as usize))
            .for_each(|at| change(StateByte(at)));
    };
    each(|state| {
        if state.get() & UNREACHABLE == 0 {
            state.change_plainly(WANTED, !WANTED);
        }
    });
    let listed = list_wanted(world, most, Some(wanted));
    each(|state| {
        if state.get() == WANTED {
            state.change_plainly(0, WANTED);
        }
    });
    listed
}

fn list_wanted<M: ObjectModel>(
    world: &World<'_, M>,
    most: usize,
    wanted: Option<&[u32]>,
) -> Result<(), Abandoned> {
    const {
        assert!(
            !ListsOf::<M>::PRESENT || (<M::Addresses as Map>::ADOPTS && !collects_young::<M>()),
            "a model that lists its objects has `type Addresses = Segments`, and no young \
             collections"
        );
    }
    let core = world.core();
    let Some(space) = core.space.adopting() else { return Ok(()) };
    if !ListsOf::<M>::PRESENT {
        return Ok(());
    }
    let parts = guard_traversal(world, &mut tracer_of(world), |_| {
        ListsOf::<M>::list_parts(&core.model, world, &ListedMemory::new(space, wanted))
    })?;
    let parts = parts.map_err(Abandoned::collection)?;
    let pages = space.high_water();
    let granules = wanted.map_or(pages * PAGE_GRANULES, <[u32]>::len);
    let workers = core.workers.plan_workers(granules, core.serial_below).min(most);
    if wanted.is_none() {
        clear_pages(world, workers);
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    world.share(workers, &|_| {
        let listed = guard_traversal(world, &mut tracer_of(world), |_| {
            let mut list = ObjectList::new(space, wanted.is_some());
            while let Some(part) = take(&next, parts) {
                steps::took(1);
                ListsOf::<M>::list(&core.model, part, &mut list);
            }
        });
        if let Err(abandoned) = listed {
            // The other workers list the other parts, or fail too.
            failed.lock().get_or_insert(abandoned);
        }
    });
    failed.lock().take().map_or(Ok(()), Err)
}

/// Removes all objects except members, in a stop without a list of all, so that a verification
/// looks at none that may have died since the last one.
pub(super) fn forget_others<M: ObjectModel>(world: &World<'_, M>) {
    clear_pages(world, 1);
}

/// Removes the objects of all adopted pages, except members.
fn clear_pages<M: ObjectModel>(world: &World<'_, M>, workers: usize) {
    let core = world.core();
    let Some(space) = core.space.adopting() else { return };
    let next = AtomicUsize::new(0);
    // The bytes are written as plain memory, so no thread may count live objects meanwhile.
    let _table = core.collector_lock.lock_states();
    world.share(workers, &|_| {
        while let Some(page) = take(&next, space.high_water()) {
            clear_page(space, page);
        }
    });
}

/// Takes the next of `all` numbers.
fn take(next: &AtomicUsize, all: usize) -> Option<usize> {
    // Relaxed: each number is taken once, and the end of the job orders what its workers wrote.
    let number = next.fetch_add(1, Ordering::Relaxed);
    (number < all).then_some(number)
}

/// Removes the objects of an adopted page, except members.
fn clear_page(space: &Space<Segments>, page: usize) {
    let info = space.page(page);
    if info.shape().kind() != PageKind::Foreign {
        return;
    }
    steps::took(1);
    // Relaxed: in a stop.
    info.young.store(1, Ordering::Relaxed);
    let start = page * PAGE_GRANULES;
    let clear = |states: &mut [u8]| {
        for state in states {
            *state = if *state & UNREACHABLE == 0 { 0 } else { *state };
        }
    };
    // SAFETY: rule *stopped*: only this worker accesses the page. The lock keeps threads away that
    // count live objects.
    unsafe { exclusively(&space.states()[start..start + PAGE_GRANULES], clear) };
}

/// The granules of the candidates that the model reports as roots, and of the claimed objects that
/// uncounted references from other objects lead to. No candidate is marked yet.
pub(crate) fn roots<M: ObjectModel>(
    world: &World<'_, M>,
    is_candidate: impl Fn(usize) -> bool,
    selection: Selection,
) -> Result<Vec<u32>, Abandoned> {
    let space = &world.core().space;
    let granule = |object: Object| {
        let address = object.address();
        space.contains(address).then(|| space.granule(address))
    };
    let mut found = Vec::new();
    let mut result = Ok(());
    let traverses = |object| granule(object).is_some_and(&is_candidate);
    // A survey shows all objects.
    let is_wanted = |&granule: &usize| selection == Selection::All || is_candidate(granule);
    let mut report = |object| {
        if let Some(granule) = granule(object).filter(is_wanted) {
            result = result.and(fallible::push(&mut found, granule as u32));
        }
    };
    guard_traversal(world, &mut tracer_of(world), |_| {
        UncountedOf::<M>::roots(&world.core().model, world, &traverses, &mut report);
    })?;
    result?;
    if UncountedOf::<M>::RECHECKS && selection == Selection::Claimed {
        let (space, model) = (&world.core().space, &world.core().model);
        guard_traversal(world, &mut tracer_of(world), |tracer| {
            let mut result = Ok(());
            live(world, |object, bits| {
                const HOLDER: u8 = state::TRACKED | state::UNREACHABLE | state::DYING;
                if bits.get() & HOLDER != state::TRACKED {
                    return;
                }
                steps::took(1);
                tracer.begin(object.object());
                tracer.forget_uncounted();
                model.traverse(object, tracer);
                tracer.take_unreadable();
                result = result.and(tracer.lost_nothing());
                let granules = tracer.all_uncounted().map(|address| space.granule(address));
                for granule in granules.filter(|&granule| is_candidate(granule)) {
                    result = result.and(fallible::push(&mut found, granule as u32));
                }
            });
            result
        })??;
    }
    Ok(found)
}

/// The corrections of some objects' counts, by granule. That of any other object is 0.
#[derive(Default)]
pub(crate) struct Adjustments(HashMap<u32, i64>);

impl Adjustments {
    /// Asks the model, and keeps the corrections of the granules for which `is_wanted` returns
    /// `true`.
    pub(crate) fn ask<M: ObjectModel>(
        world: &World<'_, M>,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Result<Self, NoMemory> {
        let (mut by_granule, mut result) = (HashMap::new(), Ok(()));
        if AdjustedOf::<M>::PRESENT {
            let space = &world.core().space;
            AdjustedOf::<M>::adjustments(&world.core().model, world, &mut |object, by| {
                if !space.contains(object.address()) {
                    return;
                }
                let granule = space.granule(object.address());
                if !is_wanted(granule) {
                    return;
                }
                match by_granule.try_reserve(1) {
                    Ok(()) => *by_granule.entry(granule as u32).or_default() += by,
                    Err(error) => result = Err(error.into()),
                }
            });
        }
        result.map(|()| Self(by_granule))
    }

    /// The references of the entries come from inside of the searched set.
    pub(super) fn add_ephemerons(&mut self, entries: &[WeakPair]) -> Result<(), NoMemory> {
        for entry in entries {
            self.0.try_reserve(1)?;
            *self.0.entry(entry.value).or_default() -= 1;
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn of(&self, granule: usize) -> i64 {
        self.0.get(&(granule as u32)).copied().unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, i64)> {
        self.0.iter().map(|(&granule, &by)| (granule, by))
    }
}
