//! `Phase::Clear`: the garbage of a collection, until its report is closed.
//!
//! A requested collection has one batch with all garbage ([`at_once`]). One that the heap started
//! hands a queue over ([`hand_over`]). From it each thread reclaims the garbage on its own pages
//! ([`reclaim`]), in batches of up to 512 objects. For example, 800 objects lie on the pages of
//! thread 1, and 100 on those of thread 2. Then thread 1 takes two batches, and thread 2 takes one.
//! Both kinds do the same with a batch ([`clear_and_release`]), and [close] the collection when the
//! last one is finished: the report gets its final figures.
//!
//! # Objects that are alive
//!
//! A released object may be alive although no reference to it will be left. For example, a thread
//! that is not the owner has dropped a reference, so the object waits in the owner's queue. Or a
//! thread is reading the slot that held the reference, or is destroying an object that refers to
//! this one. Or that object's batch is not cleared yet. So the objects of a batch that are alive
//! stay in a list. If some of them still are when the last batch is finished, the closing thread
//! [settles](settle) their fate in one more stop. This makes the figures of a report final, so that
//! an object that a report calls uncollectable does not die of the collection.

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::outside::{guarded, panic_message};
use crate::base::steps;
use crate::base::sync::IS_MODEL;
use crate::collect::calls::{self, call};
use crate::collect::claim::Reclaimers;
use crate::collect::clear::{clear_all, off_the_pace, release_all};
use crate::collect::recheck::Garbage;
use crate::collect::released::examine;
use crate::collect::scope::{state_of, stopped_at};
use crate::collect::{collection, open_report};
use crate::heap::core::{COLLECT, Core};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::reclaim_queue::{GARBAGE_BATCH, OpenReport, Owner, ReclaimQueue, ThreadGarbage};
use crate::object::address::Object;
use crate::object::live::{ClaimRef, ClaimRefs};
use crate::object::state::{DYING, UNREACHABLE};
use crate::report::facts::{CollectionReport, During, Phase};
use crate::safepoint::StopRequest;

/// The number of objects that a thread reclaims in its first call on a new queue. A thread that is
/// far ahead of a collection reclaims as many in a call.
pub(crate) const RECLAIMED_FIRST: usize = if IS_MODEL { 1 } else { 8 * GARBAGE_BATCH };

/// The collector lock, which is released on drop, unless it was handed over.
pub(crate) struct CollectorGuard<M: ObjectModel> {
    core: Arc<Core<M>>,
    is_held: bool,
}

impl<M: ObjectModel> CollectorGuard<M> {
    pub(crate) fn new(core: &Arc<Core<M>>) -> Self {
        Self { core: Arc::clone(core), is_held: true }
    }

    /// Acquires the lock, unless a thread has it, or has requested it, or garbage is left.
    pub(crate) fn try_acquire(core: &Arc<Core<M>>) -> Option<Self> {
        core.collector_lock.try_acquire().then(|| Self::new(core))
    }

    /// Releases the lock for a time.
    pub(super) fn pause(&mut self) {
        self.is_held = false;
        self.core.collector_lock.release();
    }

    /// The caller has acquired the lock again.
    pub(super) fn resume(&mut self) {
        self.is_held = true;
    }

    /// Hands the lock to the threads that finish the queue.
    fn hand_over(mut self, queue: ReclaimQueue) {
        self.is_held = false;
        self.core.collector_lock.hand_over(queue);
    }
}

impl<M: ObjectModel> Drop for CollectorGuard<M> {
    fn drop(&mut self) {
        if self.is_held {
            self.core.collector_lock.release();
        }
    }
}

/// Reclaims all garbage, and closes the collection. The caller holds the collector lock while the
/// world is running.
pub(crate) fn at_once<M: ObjectModel>(
    garbage: Garbage,
    open: OpenReport,
    m: &mut ModelMutator<M>,
) -> CollectionReport {
    let (done, all, left) = reclaim_all(garbage, &open, m);
    end_after(done, open, (all, std::iter::once(left)), m, |m, open| {
        open_report::close(m, open, None)
    })
}

/// As [`at_once`], for a part of a collection that goes on. The error is the panic of a method of
/// the model.
pub(super) fn part<M: ObjectModel>(
    garbage: Garbage,
    open: &mut OpenReport,
    m: &mut ModelMutator<M>,
) -> std::thread::Result<()> {
    let (done, all, left) = reclaim_all(garbage, open, m);
    let completed = complete(open, all, std::iter::once(left), m);
    match (done, completed) {
        (Err(first), Err(second)) => {
            m.core().hooks.unraisable(During::Clear, "", panic_message(second));
            Err(first)
        }
        (done, completed) => done.and(completed),
    }
}

/// Clears and releases all garbage. Returns whether a method of the model has unwound, the number
/// of the objects, and those that are still alive.
fn reclaim_all<M: ObjectModel>(
    garbage: Garbage,
    open: &OpenReport,
    m: &mut ModelMutator<M>,
) -> (std::thread::Result<()>, usize, Vec<Object>) {
    let _entered = open.span.enter();
    let spared = guarded(|| release_spared(garbage.spared, m));
    let mut objects = ClaimRef::into_objects(garbage.objects);
    let all = objects.len();
    let done = spared.and(clear_and_release(&objects, all, m));
    objects.retain(|&object| is_alive(object, m));
    (done, all, objects)
}

/// Hands the garbage, with the collector lock, to all mutators, of which each reclaims the objects
/// on its own pages. A spared object that another thread owns may die only after the report is
/// closed, at a later safepoint of the owner.
pub(crate) fn hand_over<M: ObjectModel>(
    garbage: Garbage,
    open: OpenReport,
    guard: CollectorGuard<M>,
    m: &mut ModelMutator<M>,
) {
    let Garbage { objects, reclaimers, spared, .. } = garbage;
    let spared = guarded(|| release_spared(spared, m));
    // Without memory it is not divided, so this thread or one that helps reclaims all of it.
    let divided = by_thread(&objects, &reclaimers, m).unwrap_or_default();
    let objects = ClaimRef::into_objects(objects);
    let whole = if divided.is_empty() { objects } else { Vec::new() };
    let whole = ThreadGarbage::new(m.thread_id(), whole);
    guard.hand_over(ReclaimQueue::new(whole, divided, open));
    // A thread notices the queue at its next refill, and one that allocates nothing notices the
    // request.
    reclaimers.threads().filter(|&reclaimer| reclaimer != m.thread_id()).for_each(|reclaimer| {
        m.core().coordinator.poke(reclaimer, COLLECT);
    });
    spared.unwrap_or_else(|payload| resume_unwind(payload));
}

/// The garbage, divided by the thread that owns the objects' pages. It is empty if this thread
/// reclaims all garbage.
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
        // Mostly it is the reclaimer of the previous object, because neighbours lie on one page.
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

/// Releases the objects that stay alive. They have no state bit by which the child of a fork would
/// find them, so the thread releases them before it does anything else. They are in one list,
/// because a thread that parks announces the list that it releases. Without memory for that list, a
/// child may keep some.
fn release_spared<M: ObjectModel>(mut spared: [Vec<ClaimRef>; 4], m: &mut ModelMutator<M>) {
    let [first, rest @ ..] = &mut spared;
    for list in rest {
        if first.try_reserve(list.len()).is_ok() {
            first.append(list);
        }
    }
    off_the_pace(m, |m| {
        for list in spared.into_iter().map(ClaimRef::into_objects) {
            // SAFETY: rule *counted*: the references of these values.
            release_all(unsafe { ClaimRefs::new(&list) }, m);
        }
    });
}

/// Reclaims batches of one queue until about `limit` objects are cleared. Returns `false` if there
/// was no batch. The call stays with one queue, because other threads could finish it and hand over
/// new ones without end.
pub(crate) fn reclaim<M: ObjectModel>(m: &mut ModelMutator<M>, owner: Owner, limit: usize) -> bool {
    let (mut reclaimed, mut queue) = (0, None);
    let begun = calls::begin_holding_up(m);
    while reclaimed < limit {
        match reclaim_batch(m, owner, &mut queue) {
            Some(objects) => reclaimed += objects,
            None => break,
        }
    }
    calls::report_held_up(m, begun);
    reclaimed > 0
}

/// Reclaims one batch of the queue with the number `queue`. If `queue` is `None`, it takes a batch
/// of the current queue, and stores the queue's number. Returns the number of objects.
fn reclaim_batch<M: ObjectModel>(
    m: &mut ModelMutator<M>,
    owner: Owner,
    queue: &mut Option<u64>,
) -> Option<usize> {
    let core = Arc::clone(m.core());
    let mut batch = core.collector_lock.take_batch(owner, *queue)?;
    *queue = Some(batch.queue());
    let objects = batch.objects().len();
    let span = batch.span.clone();
    let entered = span.enter();
    let done = clear_and_release(batch.objects(), batch.garbage, m);
    batch.retain(|object| is_alive(object, m));
    let ended = core.collector_lock.finish_batch(batch);
    drop(entered);
    if let Some(queue) = ended {
        let _guard = CollectorGuard::new(&core);
        let all = queue.garbage();
        let (open, left) = queue.into_left();
        end_after(done, open, (all, left), m, open_report::put_off_or_close);
    } else {
        done.unwrap_or_else(|payload| resume_unwind(payload));
    }
    Some(objects)
}

/// Clears the objects of a batch, and then releases them. All garbage are `garbage` objects. If a
/// method of the model unwinds, the objects that are not released yet keep the claim's reference,
/// so that they stay alive.
fn clear_and_release<M: ObjectModel>(
    objects: &[Object],
    garbage: usize,
    m: &mut ModelMutator<M>,
) -> std::thread::Result<()> {
    let core = Arc::clone(m.core());
    let _phase = core.phase(Phase::Clear);
    guarded(|| {
        off_the_pace(m, |m| {
            // SAFETY: rule *counted*: the claim's references. Each object is in one batch, and one
            // thread has the batch.
            let claims = unsafe { ClaimRefs::new(objects) };
            clear_all(claims.live(), garbage, m);
            // The collection still holds each object only if this is the one batch, because those
            // of others may be released.
            examine(m, claims.live(), i64::from(objects.len() == garbage));
            let verifier = m.core().verifier;
            let counts = verifier.and_then(|verifier| verifier.releasing(m, claims.live()));
            m.core().collector_lock.set_releasing();
            release_all(claims, m);
            if let Some((verifier, counts)) = verifier.zip(counts) {
                verifier.released(m, &counts);
            }
        });
    })
}

/// Whether an object of the garbage is alive after its release. Because its death clears the bit,
/// and an allocation does not set it, a cell with the bit still has the same object.
fn is_alive<M: ObjectModel>(object: Object, m: &ModelMutator<M>) -> bool {
    state_of(&m.core().space, object).get() & UNREACHABLE != 0
}

/// Completes the figures of a collection whose garbage is released, and ends it by `end`, also if a
/// panic, which it resumes, is the result of its last batch.
fn end_after<M: ObjectModel, R>(
    done: std::thread::Result<()>,
    open: OpenReport,
    garbage: (usize, impl Iterator<Item = Vec<Object>>),
    m: &mut ModelMutator<M>,
    end: impl FnOnce(&ModelMutator<M>, OpenReport) -> R,
) -> R {
    let Err(first) = done else { return complete_and_end(open, garbage, m, end) };
    if let Err(payload) = guarded(|| complete_and_end(open, garbage, m, end)) {
        m.core().hooks.unraisable(During::Clear, "", panic_message(payload));
    }
    resume_unwind(first)
}

/// If the settling unwinds, the collection is ended first, because its report would be lost
/// otherwise.
fn complete_and_end<M: ObjectModel, R>(
    mut open: OpenReport,
    (garbage, lists): (usize, impl Iterator<Item = Vec<Object>>),
    m: &mut ModelMutator<M>,
    end: impl FnOnce(&ModelMutator<M>, OpenReport) -> R,
) -> R {
    let completed = complete(&mut open, garbage, lists, m);
    let result = end(m, open);
    completed.unwrap_or_else(|payload| resume_unwind(payload));
    result
}

/// Completes the figures of a collection whose garbage is released. The caller holds the collector
/// lock. The error is a panic of the model, after which the figures are complete too.
///
/// `garbage`: the number of all objects. `lists`: those that were alive when their batches were
/// finished. They are ordinary objects afterwards.
fn complete<M: ObjectModel>(
    open: &mut OpenReport,
    garbage: usize,
    lists: impl Iterator<Item = Vec<Object>>,
    m: &mut ModelMutator<M>,
) -> std::thread::Result<()> {
    let span = open.span.clone();
    let entered = span.enter();
    let survive = |list: Vec<Object>, m: &ModelMutator<M>| {
        list.into_iter().filter(|&object| state_of(&m.core().space, object).survive()).count()
    };
    // They are in one list, so that it can tell the child of a fork, while this thread parks, of
    // the references that are not released yet. Without memory for it some objects count as
    // uncollectable unexamined.
    let (mut left, mut kept) = (Vec::new(), 0);
    for mut list in lists {
        match fallible::append(&mut left, &mut list) {
            Ok(()) => {}
            Err(NoMemory) => kept += survive(list, m),
        }
    }
    let settled = guarded(|| settle(&mut left, m, open.stop_request(), &mut open.report));
    kept += survive(left, m);
    drop(entered);
    open.report.collected += garbage - kept;
    open.report.uncollectable += kept;
    settled
}

/// Makes the fate of the released objects final that were alive when their batches were finished.
/// Those that only the collection's own drops still kept alive are dead afterwards, and so are the
/// objects that die with them.
///
/// In a stop no drop is under way, and the merge makes counts exact. The stop takes a reference to
/// each object that is alive, on behalf of any thread, so that later drops need no owner. Then the
/// release of these references destroys all that can die. References that wait until each thread
/// has passed a safepoint are dropped too, because a stop is a safepoint of all threads.
fn settle<M: ObjectModel>(
    left: &mut Vec<Object>,
    m: &mut ModelMutator<M>,
    stop: StopRequest,
    report: &mut CollectionReport,
) {
    let needs_stop =
        call(m, During::Clear, "after_clear", |model| SplitCountsOf::<M>::after_clear(model, m));
    let core = Arc::clone(m.core());
    left.retain(|&object| is_alive(object, m));
    if left.is_empty() && needs_stop != Some(true) {
        return;
    }
    let (mut dead, mut claimed) = (Vec::new(), false);
    // Without a stop, or without memory, the objects die later.
    if let Ok(world) = m.stop_by(stop) {
        if collection::merge_counts(&world, &mut dead).is_ok() && !left.is_empty() {
            // Leaves out those that threads have destroyed before they parked, and those in `dead`.
            left.retain(|&object| {
                state_of(&core.space, object).get() & (UNREACHABLE | DYING) == UNREACHABLE
            });
            claimed = true;
            for object in &*left {
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
        // SAFETY: rule *counted*: the references that were just taken. The list has each object
        // once, and all of them are alive.
        off_the_pace(m, |m| release_all(unsafe { ClaimRefs::new(left) }, m));
    }
    if let Some(verifier) = core.verifier.filter(|_| !ListsOf::<M>::PRESENT) {
        verifier.survivors(m, left);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
