//! Marking in the order of memory.
//!
//! A tree that is built from its root lies in memory in the order of its edges, and so do its edges
//! in the [log](crate::collect::log). To read the log from its start to its end needs no lookup for
//! each object, and hardly a stack. So a full collection with one worker goes up the pages, the
//! *pass*:
//!
//! * A reached object ahead is only marked: the pass comes to its page later.
//! * A reached object behind is marked and pushed. When the stack grows, `Marker::run` empties it
//!   before the next page.
//! * Objects that are not in the log are traversed at the end of their page.
//!
//! On a page with a reached object the loop follows all edges, in the order of the log. An edge of
//! an object that is not reached marks nothing. So the loop has no branch on the end of an object's
//! edges or on its mark. [`Owners`] has the object of each edge.
//!
//! If much of that work is in vain, the objects do not lie in order. Then the pass ends, and pushes
//! the reached objects ahead. It also ends where objects have many edges: it saves time for each
//! object, and loses some for each edge. Without a log there is no pass, and all reached objects
//! are pushed.
//!
//! # Marks
//!
//! | mark | during the pass |
//! |---|---|
//! | 0 | a candidate that was not reached |
//! | [`REACHED`](super::table::REACHED) | a reached candidate; an object behind was also traversed or pushed |
//! | [`EXCLUDED`](super::table::EXCLUDED) | no candidate |
//! | both | no candidate, with an edge to it |
//!
//! After the pass, and without one, only a mark of 0 differs from the others.
//!
//! # Why one worker
//!
//! A second worker would push the objects that the pass only marks, so that their edges would be
//! followed twice. It could also mark an object just after the pass has left its page: without an
//! atomic read-modify-write that mark would be lost.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicU8, Ordering};
use crate::collect::count::Counts;
use crate::collect::log::{READ_WIDTH, UNLOGGED};
use crate::collect::log_reader::{Reader, Sequence};
use crate::collect::marker::{Marker, marker, prefetch_body};
use crate::collect::marks::Claims;
use crate::collect::pool::Pool;
use crate::collect::scope::{granules_of, object_at};
use crate::collect::table::{EXCLUDED, LANES, REACHED, plainly};
use crate::collect::traversal::{Abandoned, guard_traversal, tracer};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::space::{PAGE_GRANULES, Space, Starts};

/// The pass empties the stack when it has more objects than this.
const STACK_LIMIT: usize = 2048;

/// After this many candidates the pass checks whether it saves time.
const TRIAL_OBJECTS: usize = 512;

/// The distance, in objects, from the prefetch of an object that is not in the log to its
/// traversal.
const PREFETCH_DISTANCE: usize = 8;

/// With more edges for each object the pass costs time. An object that is not in the log counts as
/// [`UNLOGGED`] edges.
const EDGE_LIMIT: usize = 6;

/// The least number of edges in a chunk. A chunk also has the other edges of its last object.
const CHUNK: usize = 4096;

/// The work that the pass leaves.
pub(super) struct Rest {
    /// The pushed objects.
    pub(super) stack: Vec<u32>,
    /// Objects with a field that is unreadable now.
    pub(super) unreadable_now: Vec<u32>,
}

/// Follows the edges of reached objects in the order of memory.
pub(super) fn pass<M: ObjectModel>(
    world: &World<'_, M>,
    claims: PassMarks<'_>,
) -> Result<Rest, Abandoned> {
    // Its own pool, so that no worker is idle.
    let pool = Pool::new();
    let rest = guard_traversal(world, &mut tracer(&world.core().space), |tracer| {
        let mut marker = marker(world, claims, tracer, Vec::new());
        marker.pass(&pool)?;
        Ok::<_, NoMemory>(Rest {
            stack: marker.stack,
            unreadable_now: marker.leftovers.unreadable_now,
        })
    })?;
    Ok(rest?)
}

/// The claims of the pass. They mark all targets, and push the targets behind the pass.
#[derive(Clone, Copy)]
pub(super) struct PassMarks<'a> {
    marks: &'a [AtomicU8],
    counts: &'a Counts,
    log: &'a Reader<'a>,
    /// The last granule of the current page.
    upto: usize,
}

impl<'a> PassMarks<'a> {
    pub(super) fn new(marks: &'a [AtomicU8], counts: &'a Counts, log: &'a Reader<'a>) -> Self {
        Self { marks, counts, log, upto: 0 }
    }

    #[inline(always)]
    fn is_reached(&self, granule: usize) -> bool {
        // Relaxed: there is one worker.
        self.marks[granule].load(Ordering::Relaxed) == REACHED
    }
}

impl PassMarks<'_> {
    /// Calls `f` with the marks of a page and its first granule, for scans that the compiler can
    /// vectorise. `None`: no object starts on the page.
    fn on_page<R>(
        &self,
        space: &Space,
        page: usize,
        f: impl FnOnce(&[u8], usize) -> R,
    ) -> Option<R> {
        let range = granules_of(space, page as u32)?;
        Some(plainly(&self.marks[range.clone()], |marks| f(marks, range.start)))
    }
}

impl Claims for PassMarks<'_> {
    #[inline(always)]
    fn claim(&self, target: usize) -> bool {
        // Relaxed: there is one worker.
        let mark = self.marks[target].load(Ordering::Relaxed);
        self.marks[target].store(mark | REACHED, Ordering::Relaxed);
        (mark == 0) & (target <= self.upto)
    }

    #[inline(always)]
    fn entry(&self, target: usize) -> *const u8 {
        self.marks.as_ptr().wrapping_add(target).cast()
    }

    fn counts(&self) -> Option<&Counts> {
        Some(self.counts)
    }

    fn log(&self) -> Option<&Reader<'_>> {
        (!self.log.is_empty()).then_some(self.log)
    }
}

impl<M: ObjectModel> Marker<'_, M, PassMarks<'_>> {
    fn pass(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        let mut owners = Owners { by_edge: [0; _], unlogged: Vec::new() };
        let space = self.space;
        let (mut reached, mut candidates, mut edges) = (0, 0, 0);
        let mut pages = 0..space.high_water();
        while !self.claims.log.is_empty()
            && let Some(page) = pages.next()
        {
            steps::took(PAGE_GRANULES);
            if self.claims.on_page(space, page, |marks, _| marks.contains(&REACHED)) != Some(true) {
                continue;
            }
            edges += self.pass_page(page, &mut owners)?;
            if self.stack.len() > self.stress.shrink(STACK_LIMIT) {
                self.run(pool)?;
            }
            let noted = |marks: &[u8], _| (how_many(marks, REACHED), how_many(marks, 0));
            let (now_reached, not_reached) =
                self.claims.on_page(space, page, noted).unwrap_or_default();
            reached += now_reached;
            candidates += now_reached + not_reached;
            let in_vain = candidates - reached;
            if candidates > self.stress.shrink(TRIAL_OBJECTS)
                && (in_vain > candidates / 4 || edges > EDGE_LIMIT * candidates)
            {
                break;
            }
        }
        for page in pages {
            steps::took(PAGE_GRANULES);
            let stack = &mut self.stack;
            self.claims
                .on_page(space, page, |marks, first| push_reached(marks, first, stack))
                .transpose()?;
        }
        Ok(())
    }

    /// Follows the edges of the reached objects of a page. It marks their targets, and pushes the
    /// targets behind the pass. Returns the number of edges of the page.
    fn pass_page(&mut self, page: usize, owners: &mut Owners) -> Result<usize, NoMemory> {
        let (space, first) = (self.space, page * PAGE_GRANULES);
        let mut cells = space.starts(page);
        let mut followed = 0;
        owners.unlogged.clear();
        if let Some(sequence) = self.claims.log.sequence(page) {
            let mut edges = sequence.edges;
            followed = edges.len();
            while cells.len() > 0 {
                let places = owners.record(&mut cells, sequence)?;
                let (chunk, rest) = edges.split_at(places.min(edges.len()));
                self.follow(first, &owners.by_edge[..chunk.len()], chunk)?;
                edges = rest;
            }
            debug_assert!(
                edges.is_empty(),
                "all edges of a page are those of objects that start there"
            );
        } else {
            for cell in cells {
                fallible::push(&mut owners.unlogged, cell as u32)?;
            }
        }
        self.claims.upto = first + PAGE_GRANULES - 1;
        owners.unlogged.retain(|&object| self.claims.is_reached(object as usize));
        for (at, &object) in owners.unlogged.iter().enumerate() {
            if let Some(&ahead) = owners.unlogged.get(at + PREFETCH_DISTANCE) {
                prefetch_body(object_at(space, ahead as usize));
            }
            self.scan(object)?;
        }
        // Before the pass moves on: the delayed targets are compared with its place.
        self.drain_delayed()?;
        Ok(followed)
    }

    /// Follows `edges` of a page that begins at granule `first`.
    #[inline(never)]
    fn follow(&mut self, first: usize, owners: &[u16], edges: &[u32]) -> Result<(), NoMemory> {
        let (stack, marks) = (&mut self.stack, self.claims.marks);
        let own: &[AtomicU8; PAGE_GRANULES] = marks[first..].first_chunk().expect("a whole page");
        steps::took(edges.len());
        fallible::extend_kept(stack, owners.iter().zip(edges), |(&owner, &target)| {
            let owner = usize::from(owner) % PAGE_GRANULES;
            let target = target as usize;
            // Relaxed: there is one worker. The stored value is often the old one. A store is
            // cheaper than a check.
            let noted = own[owner].load(Ordering::Relaxed) & REACHED;
            let mark = marks[target].load(Ordering::Relaxed);
            marks[target].store(mark | noted, Ordering::Relaxed);
            let behind = noted & u8::from(target < first + owner);
            // For a target with a mark the shift leaves 0.
            (target as u32, behind >> (mark & (REACHED | EXCLUDED)))
        })
    }
}

/// The number of marks that are equal to `wanted`.
fn how_many(marks: &[u8], wanted: u8) -> usize {
    let of_lane = |lane: &[u8]| lane.iter().fold(0, |sum, &mark| sum + u8::from(mark == wanted));
    marks.chunks(LANES).map(|lane| usize::from(of_lane(lane))).sum()
}

/// Pushes the reached objects. The first mark is that of granule `first`.
fn push_reached(marks: &[u8], first: usize, stack: &mut Vec<u32>) -> Result<(), NoMemory> {
    for (at, lane) in marks.chunks(LANES).enumerate() {
        if how_many(lane, REACHED) == 0 {
            continue;
        }
        // All are written, but only the reached objects are counted.
        let (mut noted, mut len) = ([0; LANES], 0);
        for (place, &mark) in lane.iter().enumerate() {
            noted[len % LANES] = (first + at * LANES + place) as u32;
            len += usize::from(mark == REACHED);
        }
        stack.try_reserve(len)?;
        stack.extend_from_slice(&noted[..len]);
    }
    Ok(())
}

/// The owner of each edge of a chunk of a page's log.
struct Owners {
    /// By edge: the granule of the object, relative to the page. 0, where no object starts, for
    /// edges without an owner.
    by_edge: [u16; CHUNK + UNLOGGED],
    /// Objects that are not in the log.
    unlogged: Vec<u32>,
}

impl Owners {
    /// Records the owners of the next edges, for the next cells. Returns an upper limit of their
    /// number.
    #[inline(never)]
    fn record(&mut self, cells: &mut Starts, sequence: Sequence<'_>) -> Result<usize, NoMemory> {
        let mut at = 0;
        let mut next = cells.clone();
        while at < CHUNK
            && let Some(cell) = next.next()
        {
            let count = sequence.count(cell);
            let owner = (cell % PAGE_GRANULES) as u16;
            if count <= READ_WIDTH {
                // The number cannot be predicted, so the fill is always this long. The next object
                // overwrites the excess.
                self.by_edge[at..at + READ_WIDTH].fill(owner);
            } else if count < UNLOGGED {
                self.by_edge[at..at + count].fill(owner);
            } else {
                // Such an object has this many edges without an owner, or none where the log of the
                // page has ended.
                self.by_edge[at..at + count].fill(0);
                fallible::push(&mut self.unlogged, cell as u32)?;
            }
            at += count;
        }
        *cells = next;
        Ok(at)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::collect::Collect;
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Script, scripted_heap, small_heap};
    use crate::object::type_info::Object;

    #[test]
    fn marks_are_counted_and_the_noted_ones_pushed_lane_by_lane() {
        // A lane with all objects reached, a lane with none, and a part of a lane with marks of all
        // kinds.
        let mut marks = vec![REACHED; LANES];
        marks.extend([EXCLUDED; LANES]);
        marks.extend([0, REACHED, EXCLUDED, REACHED | EXCLUDED, REACHED, 0, 0]);
        assert_eq!(
            [0, REACHED, EXCLUDED].map(|mark| how_many(&marks, mark)),
            [3, LANES + 2, LANES + 1]
        );
        assert_eq!(how_many(&marks[LANES..], REACHED), 2);
        assert_eq!(how_many(&[], REACHED), 0);
        let first = 100;
        let mut stack = vec![7];
        push_reached(&marks, first, &mut stack).expect("memory");
        let noted =
            (0..marks.len()).filter(|&at| marks[at] == REACHED).map(|at| (first + at) as u32);
        assert!(stack.into_iter().eq(std::iter::once(7).chain(noted)));
    }

    /// An object with too many edges for the log refers to the last object of the page, and that
    /// one to the first.
    #[test]
    fn the_last_object_of_a_page_leads_on_where_it_is_found_late() {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let mut objects = vec![Script::thing(&m, 'b', "", "s"), Script::thing(&m, 'r', "", "s")];
        while m.core().space.granule(objects[objects.len() - 1].address()) % PAGE_GRANULES
            != PAGE_GRANULES - 1
        {
            objects.push(Script::thing(&m, 'o', "", "s"));
        }
        let [behind, root, last] = [objects[0], objects[1], objects[objects.len() - 1]];
        assert!(
            m.core().space.page_index(behind.address())
                == m.core().space.page_index(last.address())
        );
        (0..100).for_each(|_| Script::link(&m, root, last));
        Script::link(&m, last, behind);
        objects
            .iter()
            .filter(|&&object| object != root)
            .for_each(|&object| heap.model().drop_ref(object, &m));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (3, 0));
        assert_eq!(heap.stats().live_objects, 3);
    }

    /// The edges of the first object lead to a later page, and none leads back.
    #[test]
    fn targets_on_later_pages_are_noted_before_the_collector_comes_there() {
        let Some(heap) = small_heap(1) else { return };
        let mut m = heap.attach();
        let root = Script::thing(&m, 'r', "", "s");
        let leaves: Vec<Object> = (0..200).map(|_| Script::sized(&m, 64, 'l', "", "s")).collect();
        for &leaf in &leaves {
            Script::link(&m, root, leaf);
            heap.model().drop_ref(leaf, &m);
        }
        let page = |object: Object| m.core().space.page_index(object.address());
        assert!(leaves.iter().all(|&leaf| page(leaf) > page(root)));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (201, 0));
    }
}
