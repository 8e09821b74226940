//! `Phase::Premark` and `Phase::Mark`: marking from roots.
//!
//! Both phases run the same code. `Premark` comes before counting, and starts from named roots,
//! roots of the model, and assumed roots. `Mark` comes after it, and starts from the roots that
//! counting has found.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering, yield_now};
use crate::collect::assumed::Inside;
use crate::collect::count::Counts;
use crate::collect::marker::{Done, Leaves, Marker};
use crate::collect::pool::{Piece, Pool};
use crate::collect::roots::Roots;
use crate::collect::scope::object_at;
use crate::collect::search::Search;
use crate::collect::traversal::{Abandoned, guard_traversal, tracer_of, type_name};
use crate::heap::model::ObjectModel;
use crate::heap::parts::*;

/// Attempts to read a field that counting could read and marking could not.
const RETRIES: usize = 100;

/// Roots in a piece of work.
const CHUNK: usize = 2048;

/// Marks the objects that `roots` reach, without the result of counting. Afterwards no immortal
/// object is marked, except skipped leaves.
pub(crate) fn mark_before_counting<M: ObjectModel>(
    search: &Search<'_, '_, M>,
    mut roots: Vec<u32>,
    inside: Option<&Inside<'_>>,
    leaves: Leaves,
) -> Result<Done, Abandoned> {
    let candidates = &search.candidates;
    if roots.is_empty() {
        return Ok(Done::default());
    }
    steps::took(roots.len());
    roots.retain(|&granule| candidates.mark_alone(granule as usize));
    if inside.is_some() {
        // Each edge to an assumed root is met.
        roots.iter().for_each(|&granule| candidates.unmark(granule as usize));
    }
    let marking = Marking { search, counts: None, inside, leaves };
    let mut work = Vec::new();
    add_pieces(&mut work, &roots)?;
    let mut done = marking.run(work, search.workers)?;
    if M::OVERLAPPING_TRAVERSALS {
        // No count shows why these objects are alive, so they keep no lost mark.
        for &granule in roots.iter().chain(&done.uncounted) {
            candidates.mark_alone(granule as usize);
        }
    }
    for &granule in &done.immortal {
        // A candidate again: counting handles immortal objects.
        candidates.unmark(granule as usize);
    }
    done.traversed -= done.immortal.len();
    Ok(done)
}

/// Makes pieces of work from marked objects.
fn add_pieces(work: &mut Vec<Piece>, objects: &[u32]) -> Result<(), NoMemory> {
    for chunk in objects.chunks(CHUNK) {
        fallible::push(work, Piece::Objects(fallible::collect(chunk.iter().copied())?))?;
    }
    Ok(())
}

/// The phase `Mark`. Marks the objects that the roots reach. Afterwards the unmarked candidates are
/// unreachable.
pub(crate) fn mark<M: ObjectModel>(
    search: &Search<'_, '_, M>,
    counts: &mut Counts,
    roots: Roots,
) -> Result<(), Abandoned> {
    counts.unreadable.sort_unstable();
    let leaves = Leaves::Traverse;
    let marking = Marking { search, counts: Some(&*counts), inside: None, leaves };
    let mut work = Vec::new();
    for found in roots.found {
        add_pieces(&mut work, &found)?;
    }
    let mut unreadable = marking.run(work, search.workers)?.unreadable_now;
    for _ in 0..RETRIES {
        if unreadable.is_empty() {
            return Ok(());
        }
        // An unattached thread holds the lock of a field that counting could read, and may release
        // it.
        yield_now();
        unreadable = marking
            .run(fallible::collect([Piece::Objects(unreadable)].into_iter())?, 1)?
            .unreadable_now;
    }
    match unreadable.first() {
        None => Ok(()),
        Some(&granule) => {
            let object = object_at(&search.world.core().space, granule as usize);
            Err(Abandoned::locked(type_name(search.world, object)))
        }
    }
}

/// The data that the workers of one marking share.
struct Marking<'a, 'w, M: ObjectModel> {
    search: &'a Search<'a, 'w, M>,
    counts: Option<&'a Counts>,
    inside: Option<&'a Inside<'a>>,
    leaves: Leaves,
}

impl<M: ObjectModel> Marking<'_, '_, M> {
    /// Does `work`, and all work that comes from it.
    fn run(&self, work: Vec<Piece>, workers: usize) -> Result<Done, Abandoned> {
        let run = if workers > 1 { Self::run_with::<true> } else { Self::run_with::<false> };
        let mut done = run(self, work, Vec::new(), workers)?;
        while SerialOf::<M>::PRESENT && !done.serial.is_empty() {
            let serial = std::mem::take(&mut done.serial);
            done.add(run(self, Vec::new(), serial, workers)?)?;
        }
        Ok(done)
    }

    /// Does `work`. `serial`: marked objects that the first worker traverses. The result may have
    /// more such objects.
    fn run_with<const SHARED: bool>(
        &self,
        work: Vec<Piece>,
        serial: Vec<u32>,
        workers: usize,
    ) -> Result<Done, Abandoned> {
        let Self { search: &Search { world, ref candidates, .. }, counts, inside, leaves } = *self;
        let pool = Pool::new();
        for piece in work {
            pool.give(piece).map_err(|_| NoMemory)?;
        }
        let failed = Mutex::new(None);
        let all = Mutex::new(Done::default());
        let serial = Mutex::new(serial);
        world.share(workers, &|worker| {
            pool.joined.fetch_add(1, Ordering::Relaxed);
            let result = guard_traversal(world, &mut tracer_of(world), |tracer| {
                let mut marker = Marker::<M, SHARED>::new(
                    world,
                    candidates,
                    worker.index,
                    counts,
                    inside,
                    leaves,
                    tracer,
                );
                if SerialOf::<M>::PRESENT && worker.index == 0 {
                    let serial = std::mem::take(&mut *serial.lock());
                    marker.run_serial(serial, &pool)?;
                }
                while let Some(piece) = pool.take() {
                    steps::took(1);
                    marker.run(piece, &pool)?;
                }
                all.lock().add(marker.finish())
            });
            if let Err(abandoned) = result.and_then(|marked| Ok(marked?)) {
                // Relaxed: a hint to finish. The lock protects the reason.
                pool.failed.store(true, Ordering::Relaxed);
                failed.lock().get_or_insert(abandoned);
            }
        });
        match failed.lock().take() {
            Some(abandoned) => Err(abandoned),
            None => Ok(std::mem::take(&mut *all.lock())),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
