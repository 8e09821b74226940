//! Reclaiming garbage: by the collecting thread at once, or by all mutators in batches.
//!
//! | stage | objects | next |
//! |---|---|---|
//! | clearing | carry the claim's reference | *counting*, when all are cleared and released |
//! | counting | are addresses, most of freed cells | closed |
//!
//! A requested collection goes through all stages in the requesting call ([`at_once`]). If the heap
//! started the collection, each thread receives the garbage on its own pages ([`hand_over`]). Then
//! the [collector lock](crate::heap::collector_lock) has the stage. The thread that finishes the
//! last batch of a stage enters the next stage, and the thread that counts the last batch closes
//! the collection.
//!
//! # Objects that are alive
//!
//! A released object may be alive although no reference to it will be left. A thread that is not
//! the owner has dropped a reference, so the object waits in the owner's queue. Or a thread may be
//! reading the slot that held the reference. Or another thread is destroying an object that refers
//! to it. If some objects are alive when they are counted, the closing thread [settles](settle)
//! their fate in one more stop. So the figures of a report are final: an object that a report calls
//! uncollectable does not die of the collection.

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::outside::guarded;
use crate::base::steps;
use crate::collect::calls::{self, call};
use crate::collect::claim::Reclaimers;
use crate::collect::clear::{clear_all, release_all, release_each, uncounted};
use crate::collect::recheck::Garbage;
use crate::collect::released::{HeldGarbage, examine, survivors};
use crate::collect::scope::{object_at, state_of, stopped_at};
use crate::collect::{collection, open_report};
use crate::heap::collector_lock::LostCollection;
use crate::heap::core::{COLLECT, Core};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::reclaim_queue::{
    GARBAGE_BATCH, GarbageBatch, OpenReport, Owner, ReclaimQueue, Released, Task, ThreadGarbage,
};
use crate::memory::shape::PAGE_GRANULES;
use crate::object::address::Object;
use crate::object::live::{ClaimRef, ClaimRefs};
use crate::object::state::{DYING, StateByte, UNREACHABLE};
use crate::report::facts::{CollectionReport, During};
use crate::safepoint::StopPurpose;

/// The number of objects that a thread reclaims in its first call on a new queue. A thread that is
/// far ahead of a collection reclaims as many in one call.
pub(crate) const RECLAIMED_FIRST: usize =
    if cfg!(all(test, any(loom, shuttle))) { 1 } else { 8 * GARBAGE_BATCH };

/// The collector lock. It is released on drop.
pub(crate) struct CollectorGuard<'a, M: ObjectModel>(pub(crate) &'a Core<M>);

impl<M: ObjectModel> Drop for CollectorGuard<'_, M> {
    fn drop(&mut self) {
        self.0.collector_lock.release();
    }
}

/// Reclaims all garbage, and closes the collection. The caller holds the collector lock, and the
/// world is running.
pub(crate) fn at_once<M: ObjectModel>(
    garbage: Garbage,
    open: OpenReport,
    m: &mut ModelMutator<M>,
) -> CollectionReport {
    let span = open.span.clone();
    let entered = span.enter();
    let Garbage { objects, spared, .. } = garbage;
    let mut addresses = Vec::new();
    uncounted(m, |m| {
        release_spared(spared, m);
        clear_all(ClaimRef::live_slice(&objects), objects.len(), m);
        examine(m, ClaimRef::live_slice(&objects), 1);
        let held = HeldGarbage::before(m, objects.iter().map(ClaimRef::object));
        m.core().collector_lock.set_releasing();
        addresses = ClaimRef::consume(objects, |claims| release_all(claims, m));
        if let Some(held) = held {
            held.after(m);
        }
    });
    let alive = tally(&addresses, m.core());
    drop(entered);
    let parts = &mut [ThreadGarbage::new(m.thread_id(), addresses)];
    close(open, parts, alive, m)
}

/// Releases the objects that stay alive. They have no state bit by which the child of a fork would
/// find them. So they come first, before the thread can park, and in one list: a thread that parks
/// announces the list that it releases. Without memory for that list, a child may keep some.
fn release_spared<M: ObjectModel>(mut spared: [Vec<ClaimRef>; 4], m: &mut ModelMutator<M>) {
    let [first, rest @ ..] = &mut spared;
    for list in rest {
        if first.try_reserve(list.len()).is_ok() {
            first.append(list);
        }
    }
    for list in spared {
        ClaimRef::consume(list, |claims| release_all(claims, m));
    }
}

/// Releases the references of a collection whose thread is lost, in the child of a fork. Its
/// objects are ordinary objects again. If memory for the list runs out, references leak, and their
/// objects stay.
pub(crate) fn release_lost<M: ObjectModel>(lost: LostCollection, m: &ModelMutator<M>) {
    let core = m.core();
    let (space, states) = (&core.space, core.space.states());
    let mut objects: Vec<Object> = Vec::new();
    let mut add = |object| fallible::push(&mut objects, object).unwrap_or(());
    for parked in &lost.parked {
        // SAFETY: rule *counted*: a lost thread was parked, and had borrowed this list until it
        // went on. Its memory is copied by the fork, and nothing in the child changes or frees it.
        let list = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(parked.first), parked.len)
        };
        list.iter().copied().for_each(&mut add);
    }
    lost.queue.iter().flat_map(ReclaimQueue::untaken).for_each(&mut add);
    for page in 0..states.len() / PAGE_GRANULES {
        for granule in space.objects(page) {
            let survives = states.get(granule).is_some_and(|state| StateByte(state).survive());
            if survives && lost.all_unreachable {
                add(object_at(space, granule));
            }
        }
    }
    // A collection has one reference to each of its objects.
    objects.sort_unstable();
    objects.dedup();
    // SAFETY: rule *counted*: the lost collection has taken a reference to each of these objects,
    // and has not released it. The values that stood for the references belonged to its threads, or
    // to its queue, which is dropped here.
    release_each(unsafe { ClaimRefs::new(&objects) }, m);
}

/// Completes the figures of a collection whose garbage is released, and closes its report. The
/// caller holds the collector lock. If the settling unwinds, the report is closed first: otherwise
/// it would be lost.
fn close<M: ObjectModel>(
    mut open: OpenReport,
    released: &mut [ThreadGarbage],
    alive: usize,
    m: &mut ModelMutator<M>,
) -> CollectionReport {
    let garbage: usize = released.iter().map(|part| part.objects.len()).sum();
    let span = open.span.clone();
    let entered = span.enter();
    let settled = guarded(|| settle(released, alive, m, &mut open.report));
    // They are ordinary objects again. The death of an object clears the bit, and an allocation
    // does not set it. So a cell with the bit still has the same object.
    let left = if alive == 0 {
        0
    } else {
        let objects = released.iter().flat_map(|part| &part.objects);
        objects.filter(|&&object| state_of(&m.core().space, object).survive()).count()
    };
    drop(entered);
    open.report.collected = garbage - left;
    open.report.uncollectable += left;
    let report = open_report::close(m, open, None);
    settled.unwrap_or_else(|payload| resume_unwind(payload));
    report
}

/// Hands the garbage, with the collector lock, to all mutators. Each mutator reclaims the objects
/// on its own pages. Without memory for the queue the garbage is returned. A spared object that
/// another thread owns may die at a later safepoint of the owner, after the tally.
pub(crate) fn hand_over<M: ObjectModel>(
    garbage: Garbage,
    open: OpenReport,
    m: &mut ModelMutator<M>,
) -> Option<(Garbage, OpenReport)> {
    let me = m.thread_id();
    let Ok(mut lists) = by_thread(&garbage.objects, &garbage.reclaimers, m) else {
        return Some((garbage, open));
    };
    if lists.is_empty() && lists.try_reserve_exact(1).is_err() {
        return Some((garbage, open));
    }
    let Garbage { objects, reclaimers, spared, .. } = garbage;
    if lists.is_empty() {
        lists.push(ThreadGarbage::new(me, ClaimRef::into_objects(objects)));
    } else {
        // The queue has the references.
        drop(ClaimRef::into_objects(objects));
    }
    release_spared(spared, m);
    m.core().collector_lock.hand_over(ReclaimQueue::new(lists, open.span.clone()), open);
    // A thread notices the queue at its next refill. A thread without a refill notices the request.
    reclaimers.threads().filter(|&reclaimer| reclaimer != me).for_each(|reclaimer| {
        m.core().coordinator.poke(reclaimer, COLLECT);
    });
    None
}

/// The garbage, divided by the thread that owns the objects' pages. Empty, if the calling thread
/// owns all pages.
fn by_thread<M: ObjectModel>(
    objects: &[ClaimRef],
    reclaimers: &Reclaimers,
    m: &ModelMutator<M>,
) -> Result<Vec<ThreadGarbage>, NoMemory> {
    let mut lists: Vec<ThreadGarbage> = Vec::new();
    if reclaimers.is_empty() {
        return Ok(lists);
    }
    let mut at = 0;
    for object in objects.iter().map(ClaimRef::object) {
        let reclaimer = reclaimers.of(object, &m.core().space).unwrap_or(m.thread_id());
        // Mostly the reclaimer of the previous object: neighbours lie on one page.
        steps::took(1);
        if lists.get(at).is_none_or(|part| !part.is_of(reclaimer)) {
            steps::took(lists.len());
            at = match lists.iter().position(|part| part.is_of(reclaimer)) {
                Some(at) => at,
                None => {
                    fallible::push(&mut lists, ThreadGarbage::new(reclaimer, Vec::new()))?;
                    lists.len() - 1
                }
            };
        }
        lists[at].push(object)?;
    }
    Ok(lists)
}

/// Reclaims batches of one queue until about `limit` objects are cleared. `false`: there was no
/// batch. The call stays with one queue because other threads can finish the queue and hand over a
/// new queue without end.
pub(crate) fn reclaim<M: ObjectModel>(m: &mut ModelMutator<M>, owner: Owner, limit: usize) -> bool {
    let (mut reclaimed, mut queue) = (0, None);
    let begun = calls::begin_holding_up(m);
    while reclaimed < limit {
        match reclaim_batch(m, owner, &mut queue) {
            Some(work) => reclaimed += work,
            None => break,
        }
    }
    calls::report_held_up(m, begun);
    reclaimed > 0
}

/// Reclaims one batch of the queue with the number `queue`. If `queue` is `None`, it takes a batch
/// of the current queue, and stores the queue's number. The result is the work done, in objects to
/// clear.
fn reclaim_batch<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    owner: Owner,
    queue: &mut Option<u64>,
) -> Option<usize> {
    /// Finishes the batch also when a handler of the model unwinds. Objects that are not released
    /// yet keep the claim's reference.
    struct Working<'a, M: ObjectModel>(&'a Core<M>, Option<GarbageBatch>);
    impl<M: ObjectModel> Drop for Working<'_, M> {
        fn drop(&mut self) {
            let Some(batch) = self.1.take() else { return };
            // A tally calls nothing that unwinds, so this is no last batch of a tally.
            let _ = self.0.collector_lock.finish_batch(batch, 0);
        }
    }
    let core = Arc::clone(m.core());
    let batch = core.collector_lock.take_batch(owner, *queue)?;
    *queue = Some(batch.queue());
    let work = batch.objects().len().div_ceil(batch.task.objects_per_unit());
    let _span = batch.span.enter();
    let mut working = Working(&core, Some(batch));
    let mut alive = 0;
    if let Some(batch) = &working.1 {
        match batch.task {
            Task::Clear => uncounted(m, |m| {
                // SAFETY: rule *counted*: the claim's references. Each object is in one batch, and
                // one thread has the batch.
                let claims = unsafe { ClaimRefs::new(batch.objects()) };
                clear_all(claims.live(), batch.garbage, m);
                // Other batches may be released.
                examine(m, claims.live(), 0);
                let held = HeldGarbage::before(m, batch.objects().iter().copied());
                release_all(claims, m);
                if let Some(held) = held {
                    held.after(m);
                }
            }),
            Task::Tally => alive = tally(batch.objects(), &core),
        }
    }
    let batch = working.1.take();
    let ended = batch.and_then(|batch| core.collector_lock.finish_batch(batch, alive));
    if let Some((open, Released { mut parts, alive })) = ended {
        let _guard = CollectorGuard(&core);
        close(open, &mut parts, alive, m);
    }
    Some(work)
}

/// Makes the fate of the released objects final, of which `alive` were alive when they were
/// counted. Those that nothing but the collection's own drops keeps alive are dead afterwards, and
/// so are the objects that die with them. If objects are alive, `released` has only these
/// afterwards.
///
/// In a stop no drop is under way, and the merge makes counts exact. The stop takes a reference to
/// each object that is alive, on behalf of any thread, so later drops need no owner: the release of
/// these references destroys all that can die. References that wait until each thread has passed a
/// safepoint are dropped, too, because a stop is a safepoint of all threads.
fn settle<M: ObjectModel>(
    released: &mut [ThreadGarbage],
    alive: usize,
    m: &mut ModelMutator<M>,
    report: &mut CollectionReport,
) {
    let needs_stop =
        call(m, During::Clear, "after_clear", |model| SplitCountsOf::<M>::after_clear(model, m));
    let core = Arc::clone(m.core());
    let keep = |released: &mut [ThreadGarbage], mask: u8| {
        for part in &mut *released {
            part.objects
                .retain(|&object| state_of(&core.space, object).get() & mask == UNREACHABLE);
        }
        released.iter().any(|part| !part.objects.is_empty())
    };
    let any_left = alive > 0 && keep(released, UNREACHABLE);
    if !any_left && needs_stop != Some(true) {
        return;
    }
    // One list: while this thread parks, the list tells the child of a fork of the references that
    // are not released yet.
    if let Some((first, rest)) = released.split_first_mut() {
        for part in rest {
            if first.objects.try_reserve(part.objects.len()).is_ok() {
                first.objects.append(&mut part.objects);
            }
        }
    }
    let (mut dead, mut claimed) = (Vec::new(), false);
    // Without a stop, or without memory, the objects die later.
    if let Ok(world) = m.stop_for(StopPurpose::Collection) {
        if collection::merge_counts(&world, &mut dead).is_ok() && any_left {
            // Without those that threads have destroyed before they parked, and those in `dead`.
            claimed = keep(released, UNREACHABLE | DYING);
            for &object in released.iter().flat_map(|part| &part.objects) {
                let granule = core.space.granule(object.address());
                if let Some(object) = stopped_at(&world, granule) {
                    SplitCountsOf::<M>::claim_ref_for_any(&core.model, object, world.requester());
                }
            }
        }
        collection::resume(world, report);
        collection::destroy_merged(dead, m);
        calls::resumed(m);
    }
    if claimed {
        uncounted(m, |m| {
            for part in &*released {
                // SAFETY: rule *counted*: the references that were just taken. The list has each
                // object once, and all of them are alive.
                release_all(unsafe { ClaimRefs::new(&part.objects) }, m);
            }
        });
    }
    if !ListsOf::<M>::PRESENT {
        released.iter().for_each(|part| survivors(m, &part.objects));
    }
}

/// The number of released objects that are still alive. Most addresses are those of freed cells.
fn tally<M: ObjectModel>(objects: &[Object], core: &Core<M>) -> usize {
    let is_alive = |object: &&Object| state_of(&core.space, **object).get() & UNREACHABLE != 0;
    objects.iter().filter(is_alive).count()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
