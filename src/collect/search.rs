//! The search for unreachable objects, in a stop.
//!
//! A search examines the references of its *candidates*, and finds those that no reference from
//! outside of the candidates reaches. For example, a handle refers to A, A to B, and C and D refer
//! to each other. Each of the four has a count of 1. Two workers search:
//!
//! 1. `Count`: the first worker traverses A and B, the second one C and D. They find one reference
//!    each to B, C and D. None leads to A, so A is a *root*, because its reference must come from
//!    outside.
//! 2. `Mark`: one worker marks A, traverses it, meets the edge to B, and marks B. The other worker
//!    has no work, because there is only one root.
//! 3. C and D are not marked, because no root leads to them, so they are unreachable.
//!
//! `Premark` marks the objects that are known to be reachable. It comes before counting, because an
//! object that is marked by then need not be counted.
//!
//! Four searches differ mainly in their candidates. A collection searches among all objects that
//! it may collect. The [recheck](super::recheck) searches among the objects that it has claimed,
//! because finalizers may have made some of them reachable. A stop that [proves](super::forked)
//! what a child proposes searches among these objects. The [claim](super::claim) searches for
//! the claimed objects that legacy finalizers reach, for which marking alone is enough.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::Ordering;
use crate::collect::assumed;
use crate::collect::calls::Abandoned;
use crate::collect::candidates::Candidates;
use crate::collect::count::{self, Counts, Spills};
use crate::collect::ephemerons;
use crate::collect::listing::{self, Adjustments};
use crate::collect::mark::{self, Leaves};
use crate::collect::roots::{self, Roots};
use crate::collect::scope::{self, Scope, Selection, WorkCursor};
use crate::collect::sweep::{self, Swept};
use crate::heap::model::ObjectModel;
use crate::heap::timings::OpenPhase;
use crate::heap::world::World;
use crate::object::live::ClaimRef;
use crate::report::facts::Phase;

/// If pages have fewer unmarked candidates than this on average, and fewer than a quarter of all
/// are unmarked, one worker counts all of them.
const FEW_ON_PAGE: usize = 64;

/// The proof that all candidates that are reachable from outside are marked.
pub(crate) struct Marked(());

/// A search in one stop, whose tables are zeroed by [`close`](Self::close).
pub(crate) struct Search<'a, 'w, M: ObjectModel> {
    pub(super) world: &'a World<'w, M>,
    pub(super) scope: Scope,
    pub(super) candidates: Candidates,
    pub(crate) workers: usize,
    /// The granules of the candidates that the model has reported as roots.
    reported: Vec<u32>,
    /// The entries of tables with weak keys that may fire at the end of `Mark`.
    ephemerons: Vec<ephemerons::WeakPair>,
    /// The number of candidates that named roots, and the roots of the model, reach.
    pub(crate) known_alive: usize,
    pub(crate) overvisited: Vec<u32>,
}

impl<'a, 'w, M: ObjectModel> Search<'a, 'w, M> {
    /// Begins a search on at most `most` threads, with no candidate marked.
    pub(crate) fn begin(
        world: &'a World<'w, M>,
        mut scope: Scope,
        most: usize,
    ) -> Result<Self, NoMemory> {
        let core = world.core();
        let cells = scope.cells(&core.space);
        let workers = core.workers.plan_workers(cells, core.serial_below).min(most);
        if workers > 1 && cells < core.serial_below {
            scope.sort_by_home(&core.space)?;
        }
        let candidates = Candidates::new(world, &scope, workers)?;
        let (reported, ephemerons, overvisited, known_alive) = Default::default();
        Ok(Self {
            world,
            scope,
            candidates,
            workers,
            reported,
            ephemerons,
            known_alive,
            overvisited,
        })
    }

    /// Begins a search among claimed objects, which are in the order of memory.
    pub(crate) fn among(
        world: &'a World<'w, M>,
        claimed: &[ClaimRef],
        most: usize,
    ) -> Result<Self, NoMemory> {
        Self::begin(world, Scope::of_claimed(&world.core().space, claimed)?, most)
    }

    /// Marks the candidates that are reachable from outside, in the phases `Premark` to `Mark`.
    pub(crate) fn mark_reachable(&mut self) -> Result<Marked, Abandoned> {
        self.reported = self.reported_roots()?;
        self.mark_known()?;
        let (mut counts, proven) = assumed::mark_and_count(self)?;
        if counts.traversed == 0 {
            // There are no candidates, or premarking has reached all of them.
            assumed::remember(self, proven, Vec::new());
            return Ok(Marked(()));
        }
        let mut roots = self.roots(&mut counts)?;
        assumed::remember(self, proven, std::mem::take(&mut roots.remembered));
        let _phase = self.phase(Phase::Mark);
        mark::mark(self, &mut counts, roots)?;
        let entries = std::mem::take(&mut self.ephemerons);
        ephemerons::fire(self, &mut counts, entries).map(Marked)
    }

    fn reported_roots(&self) -> Result<Vec<u32>, Abandoned> {
        let is_candidate = |granule| self.candidates.is_unmarked(granule);
        listing::roots(self.world, is_candidate, self.scope.selection)
    }

    /// Marks the candidates that the roots of the model reach, and in a full collection those that
    /// named roots reach. They stay alive without being counted.
    ///
    /// If a field is unreadable, its targets stay unmarked. They become roots, because they have a
    /// reference that counting does not find.
    fn mark_known(&mut self) -> Result<(), Abandoned> {
        let core = self.world.core();
        let named = if self.is_full() { core.roots.list()? } else { Vec::new() };
        let named = named.iter().map(|object| core.space.granule(object.address()) as u32);
        let mut roots = fallible::collect(named)?;
        roots.try_reserve(self.reported.len()).map_err(NoMemory::from)?;
        roots.extend(&self.reported);
        let traversed = {
            let _phase = if roots.is_empty() { None } else { self.phase(Phase::Premark) };
            mark::mark_before_counting(self, roots, None, Leaves::Skip)?.traversed
        };
        self.known_alive = if M::OVERLAPPING_TRAVERSALS && self.workers > 1 {
            // Some objects may have been traversed twice.
            self.candidates.count - self.candidates.count_unmarked(self.world, &self.scope)
        } else {
            traversed
        };
        self.candidates.adjust(self.world)?;
        if self.scope.selection == Selection::Young {
            return Ok(());
        }
        self.ephemerons =
            ephemerons::list(self.world, |granule| self.candidates.is_unmarked(granule))?;
        Ok(self.candidates.adjustments.add_ephemerons(&self.ephemerons)?)
    }

    /// Begins again, because an assumption has failed. Only the candidates that named roots and the
    /// roots of the model reach are marked then.
    pub(super) fn begin_again(&mut self) -> Result<(), Abandoned> {
        scope::wipe(&self.world.core().space, self.scope.pages());
        self.candidates.find(self.world, &self.scope);
        self.mark_known()
    }

    /// Counts the references from the unmarked candidates. `marked` is the number of the others,
    /// and `spills` has the carries of bytes that are not 0 before.
    pub(super) fn count(&self, marked: usize, spills: Spills) -> Result<Counts, Abandoned> {
        let _phase = self.phase(Phase::Count);
        let all = self.candidates.count;
        // For few candidates one worker is faster, because the tables of several must be added up.
        let few = (FEW_ON_PAGE * self.scope.pages().len()).min(all / 4);
        let workers = if all - marked < few { 1 } else { self.workers };
        count::count(self.world, &self.scope, &self.candidates, spills, workers)
    }

    /// Counts the references from all candidates, for a survey. Returns the granules of the
    /// objects that the model has reported as roots, and the counts, for
    /// [`references`](Self::references).
    pub(crate) fn survey(&mut self) -> Result<(Vec<u32>, Counts), Abandoned> {
        let roots = self.reported_roots()?;
        // Also of objects that are no candidates.
        self.candidates.adjustments = Adjustments::ask(self.world, |_| true)?;
        self.ephemerons = ephemerons::list(self.world, |_| true)?;
        self.candidates.adjustments.add_ephemerons(&self.ephemerons)?;
        Ok((roots, self.count(0, Spills::default())?))
    }

    /// After a [`survey`](Self::survey): the correction of the count at a granule.
    pub(crate) fn adjustment(&self, granule: usize) -> i64 {
        self.candidates.adjustments.of(granule)
    }

    /// After a [`survey`](Self::survey): the number of references to an object from candidates. Of
    /// a candidate with a count, the count is already subtracted.
    pub(crate) fn references(&self, counts: &Counts, granule: usize) -> i64 {
        // Relaxed: the workers have returned.
        let byte = self.world.core().space.counts()[granule].load(Ordering::Relaxed);
        counts.carry(granule as u32) + i64::from(byte as i8)
    }

    /// The pages of the search, to be shared by workers.
    pub(crate) fn share(&self) -> WorkCursor<'_, u32> {
        self.scope.share(self.workers)
    }

    /// Whether the object at a granule takes part.
    pub(crate) fn contains(&self, state: u8) -> bool {
        self.scope.contains(state)
    }

    /// Ends a survey, and zeroes its tables.
    pub(crate) fn close_survey(self) {
        scope::wipe(&self.world.core().space, self.scope.pages());
        self.candidates.close(self.world, &self.scope);
    }

    /// Finds the unmarked candidates with references that counting has not found.
    fn roots(&mut self, counts: &mut Counts) -> Result<Roots, Abandoned> {
        let _phase = self.phase(Phase::Roots);
        let (world, workers) = (self.world, self.workers);
        let mut roots = roots::roots(world, &self.scope, &self.candidates, counts, workers)?;
        self.overvisited = std::mem::take(&mut roots.overvisited);
        Ok(roots)
    }

    /// Marks only the candidates that `roots` reach. Returns those with an unreadable field, whose
    /// targets are unknown.
    pub(crate) fn mark_from(&self, roots: Vec<u32>) -> Result<Vec<u32>, Abandoned> {
        Ok(mark::mark_before_counting(self, roots, None, Leaves::Traverse)?.unreadable_now)
    }

    /// Lists the unmarked candidates, and ages all objects of the scope, in the phase `Sweep`.
    pub(crate) fn sweep(&self, _: Marked) -> Result<Swept<'a>, NoMemory> {
        sweep::sweep(self.world, &self.scope, &self.candidates, self.workers)
    }

    /// Lists the unmarked candidates. Objects do not age, because others on their pages were not
    /// examined.
    pub(super) fn list(&self, _: Marked) -> Result<Swept<'a>, NoMemory> {
        sweep::list_unmarked(self.world, &self.scope, &self.candidates, self.workers)
    }

    pub(crate) fn take_marked(
        &self,
        objects: &mut Vec<ClaimRef>,
    ) -> Result<Vec<ClaimRef>, NoMemory> {
        self.candidates.take_marked(self.world, objects)
    }

    /// Ends the search, and zeroes its tables: those of counting only after a failure, because the
    /// phase `Roots` zeroes them otherwise.
    pub(crate) fn close<T>(self, result: Result<T, Abandoned>) -> Result<T, Abandoned> {
        self.candidates.close(self.world, &self.scope);
        result.inspect_err(|_| scope::wipe(&self.world.core().space, self.scope.pages()))
    }

    /// Whether this is the search of a full collection.
    pub(super) fn is_full(&self) -> bool {
        self.scope.selection == Selection::Full
    }

    /// Enters a phase, unless this is a search among claimed objects, which is a part of another
    /// phase, or a survey.
    pub(super) fn phase(&self, phase: Phase) -> Option<OpenPhase<'a>> {
        let is_collection = matches!(
            self.scope.selection,
            Selection::Full | Selection::Young | Selection::Proposed
        );
        is_collection.then(|| self.world.core().phase(phase))
    }
}
