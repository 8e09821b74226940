//! `Phase::Premark` and `Phase::Mark`: marking from roots.
//!
//! Both phases run the same code. They differ in the byte that marks an object
//! ([`Claims`](super::marks::Claims)): `Premark` starts from the known roots and sets a bit in the
//! state byte, so that the object is no candidate. `Mark` starts from the roots that counting
//! found, and writes the side table.
//!
//! With one worker the [`pass`](super::pass) first marks the objects that lie in the order of the
//! graph.

#![forbid(unsafe_code)]

use crate::base::event::{self, CollectionKind, Phase};
use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering, yield_now};
use crate::collect::count::Counts;
use crate::collect::log_reader::Reader;
use crate::collect::marker::{Leftovers, marker};
use crate::collect::marks;
use crate::collect::marks::{Claims, Premark};
use crate::collect::pass;
use crate::collect::pass::PassMarks;
use crate::collect::pool::{CHUNK, Pool};
use crate::collect::roots::Roots;
use crate::collect::scope::{Scope, object_at};
use crate::collect::traversal::{Abandoned, guard_traversal, tracer, type_name};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::object::state::{self, StateByte};

/// Attempts to read a field that counting could read and marking could not.
const RETRIES: usize = 100;

/// The phase `Premark`. Marks the objects that known roots reach as alive. They are not candidates
/// of this collection.
///
/// If a field is unreadable, its targets stay candidates. They have a reference that counting does
/// not find, so they are roots.
pub(crate) fn premark<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    workers: usize,
) -> Result<(), Abandoned> {
    let core = world.core();
    // A young collection does not examine old objects, and most objects here are old.
    let named = if scope.kind == CollectionKind::Full { core.roots.list()? } else { Vec::new() };
    if named.is_empty() {
        return Ok(());
    }
    let _phase = event::phase(Phase::Premark);
    let claims = Premark { states: core.space.states() };
    let granules = named.iter().map(|object| core.space.granule(object.address()));
    let mut roots = Vec::new();
    roots.try_reserve_exact(named.len()).map_err(NoMemory::from)?;
    roots.extend(granules.filter(|&granule| claims.claim(granule)).map(|granule| granule as u32));
    let leftovers = drive(world, claims, [roots], workers)?;
    for granule in leftovers.immortal {
        // A candidate again: counting handles immortal objects.
        StateByte(&claims.states[granule as usize]).unset(state::ALIVE);
    }
    Ok(())
}

/// The phase `Mark`. Marks the objects that the roots reach. Afterwards a candidate with byte 0 is
/// unreachable.
pub(crate) fn mark<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    counts: &mut Counts,
    roots: Roots,
    workers: usize,
) -> Result<(), Abandoned> {
    let _phase = event::phase(Phase::Mark);
    counts.unreadable.sort_unstable();
    let logs = std::mem::take(&mut counts.logs);
    let core = world.core();
    let log = Reader::new(&logs, core.space.high_water());
    let (states, marks, counts) = (core.space.states(), core.space.counts(), &*counts);
    match scope.kind {
        CollectionKind::Young => {
            let claims = marks::MarkBytes::<true> { states, marks, counts, log: &log };
            let leftovers = drive(world, claims, roots.stacks, workers)?;
            retry_unreadable(world, claims, leftovers.unreadable_now)
        }
        CollectionKind::Full => {
            let claims = marks::MarkBytes::<false> { states, marks, counts, log: &log };
            let (mut stacks, mut unreadable_now) = (roots.stacks, Vec::new());
            if roots.marked {
                let rest = pass::pass(world, PassMarks::new(marks, counts, &log))?;
                unreadable_now = rest.unreadable_now;
                if !rest.stack.is_empty() {
                    fallible::push(&mut stacks, rest.stack)?;
                }
            }
            if !stacks.is_empty() {
                let mut leftovers = drive(world, claims, stacks, workers)?;
                fallible::append(&mut unreadable_now, &mut leftovers.unreadable_now)?;
            }
            retry_unreadable(world, claims, unreadable_now)
        }
    }
}

/// Marks the objects that the claimed objects on `stacks` reach. Returns the immortal and
/// unreadable objects that it found.
fn drive<M: ObjectModel, C: Claims>(
    world: &World<'_, M>,
    claims: C,
    stacks: impl IntoIterator<Item = Vec<u32>>,
    workers: usize,
) -> Result<Leftovers, Abandoned> {
    let pool = Pool::new();
    for stack in stacks {
        let most = world.core().stress.shrink(CHUNK);
        if stack.len() <= most {
            pool.give(stack).map_err(|_| NoMemory)?;
            continue;
        }
        for chunk in stack.chunks(most) {
            steps::took(chunk.len());
            pool.give(fallible::collect(chunk.iter().copied())?).map_err(|_| NoMemory)?;
        }
    }
    let failed = Mutex::new(None);
    let leftovers = Mutex::new(Leftovers::default());
    world.share(workers, &|_| {
        pool.joined.fetch_add(1, Ordering::Relaxed);
        let result = guard_traversal(world, &mut tracer(&world.core().space), |tracer| {
            let mut marker = marker(world, claims, tracer, Vec::new());
            while let Some(chunk) = pool.take() {
                steps::took(1);
                marker.stack = chunk;
                marker.run(&pool)?;
            }
            let mut leftovers = leftovers.lock();
            fallible::append(&mut leftovers.unreadable_now, &mut marker.leftovers.unreadable_now)?;
            fallible::append(&mut leftovers.immortal, &mut marker.leftovers.immortal)
        });
        if let Err(abandoned) = result.and_then(|marked| Ok(marked?)) {
            // Relaxed: a hint to finish. The lock protects the reason.
            pool.failed.store(true, Ordering::Relaxed);
            failed.lock().get_or_insert(abandoned);
        }
    });
    match failed.lock().take() {
        Some(abandoned) => Err(abandoned),
        None => Ok(std::mem::take(&mut *leftovers.lock())),
    }
}

/// Tries again to read fields that counting could read and marking could not. An unattached thread
/// holds the lock, and may release it. If it does not, the collection is abandoned. One thread does
/// this, with its own pool, so that no worker is idle and receives work.
#[cold]
fn retry_unreadable<M: ObjectModel, C: Claims>(
    world: &World<'_, M>,
    claims: C,
    unreadable_now: Vec<u32>,
) -> Result<(), Abandoned> {
    if unreadable_now.is_empty() {
        return Ok(());
    }
    let pool = Pool::new();
    let locked = guard_traversal(world, &mut tracer(&world.core().space), |tracer| {
        let mut marker = marker(world, claims, tracer, unreadable_now);
        for _ in 0..RETRIES {
            yield_now();
            steps::took(marker.stack.len());
            marker.run(&pool)?;
            fallible::append(&mut marker.stack, &mut marker.leftovers.unreadable_now)?;
            if marker.stack.is_empty() {
                break;
            }
        }
        Ok::<_, NoMemory>(marker.stack.first().copied())
    })??;
    match locked {
        None => Ok(()),
        Some(granule) => {
            let object = object_at(&world.core().space, granule as usize);
            Err(Abandoned::locked(type_name(world, object)))
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Raw, Script, scripted_heap, small_heap};

    use crate::base::stress::Stress;
    use crate::collect::Collect;
    use crate::collect::marker::granule;
    use crate::object::type_info::Object;

    /// Counting by several workers lists them in any order.
    #[test]
    fn a_field_that_counting_could_not_read_either_abandons_nothing() {
        use crate::collect::script::tests::Script;
        use crate::{Heap, Pacing};

        let builder = Heap::builder().reserve(1 << 28).workers(1).pacing(Pacing::manual());
        let heap = builder.build_with(Script::default()).unwrap();
        let m = heap.attach();
        let things: Vec<Object> = (0..5).map(|_| Script::thing(&m, 'h', "", "h")).collect();
        let world = m.stop_here().expect("no other thread");
        let space = &world.core().space;
        let scope = Scope::new(space, CollectionKind::Full).expect("memory");
        let unreadable: Vec<u32> =
            things.iter().rev().map(|&thing| granule(space, thing)).collect();
        for is_known in [true, false] {
            let stacks = vec![unreadable.clone()];
            let known = if is_known { unreadable.clone() } else { unreadable[1..].to_vec() };
            let mut counts = Counts { unreadable: known, ..Counts::default() };
            let roots = Roots { stacks, ..Roots::default() };
            let marked = mark(&world, &scope, &mut counts, roots, 1);
            assert_eq!(marked.is_ok(), is_known, "{marked:?}");
        }
        drop(world);
    }

    #[test]
    fn immortal_objects_behind_known_roots_leave_the_tracked_set() {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let root = Script::thing(&m, 'r', "", "s");
        let objects =
            [('a', ""), ('i', "i"), ('b', "")].map(|(name, has)| Script::thing(&m, name, has, "s"));
        for (from, to) in [(root, objects[0]), (root, objects[1]), (objects[1], objects[2])] {
            Script::link(&m, from, to);
        }
        objects.iter().for_each(|&object| heap.model().drop_ref(object, &m));
        let key = m.core().roots.add(root);
        let (report, _) = collect(&mut m, Collect::young());
        assert_eq!(
            (report.known_alive, report.candidates),
            (0, 4),
            "young collections do without known roots"
        );
        // The first collection has untracked the immortal object.
        let is_tracked = |m: &Raw| m.core().state_at(objects[1]).get() & state::TRACKED != 0;
        assert!(!is_tracked(&m));
        assert!(Script::track(&m, objects[1]));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.known_alive, report.candidates, report.unreachable), (3, 4, 0));
        assert!(!is_tracked(&m), "also behind a known root");
        heap.forget_root(key);
    }

    /// Marking takes edges from the log. Untracked objects are not traversed at all.
    #[test]
    fn a_full_collection_traverses_each_object_once() {
        let heaps = [scripted_heap(), small_heap(1)];
        for heap in heaps {
            let Some(heap) = heap else { return };
            let mut m = heap.attach();
            // Each object refers to the one before, so marking goes down the memory. The last one,
            // which the test holds, has ten edges, and one to the untracked object.
            let mut list = vec![Script::thing(&m, 'u', "", "s")];
            assert!(Script::untrack(&m, list[0]));
            for at in 1..6 {
                let object = Script::thing(&m, 'o', "", "s");
                (0..if at == 5 { 10 } else { 1 })
                    .for_each(|_| Script::link(&m, object, list[at - 1]));
                list.push(object);
            }
            Script::link(&m, list[5], list[0]);
            list[..5].iter().for_each(|&object| heap.model().drop_ref(object, &m));
            let report = crate::collect::collect(&mut m, Collect::full()).expect("a stop");
            assert_eq!((report.candidates, report.unreachable), (5, 0));
            let traversed: Vec<usize> = list
                .iter()
                .map(|&object| Script::of(&m, object, |thing| thing.traversed))
                .collect();
            assert_eq!(traversed[0], 0, "an untracked object");
            if m.core().stress == Stress::none() {
                assert_eq!(traversed[1..], [1; 5]);
            }
        }
    }
}
