//! Reachability among the claimed objects.
//!
//! A member is tracked and carries the `UNREACHABLE` bit. Reached members are marked in the side
//! table, which is zero before and after.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicU8, Ordering};
use crate::collect::scope::{claimed, stopped_at};
use crate::collect::table::{Spills, add_shared};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::World;
use crate::memory::address_map::Index;
use crate::object::live::{ClaimRef, Stopped};
use crate::object::state::{self, StateByte};
use crate::object::type_info::{Object, Tracer};

/// The members of the claimed set, in a stop.
pub(crate) struct Subset<'w, M: ObjectModel> {
    world: &'w World<'w, M>,
    /// The edges that counting found, by granule. A model without
    /// [`ObjectModel::STABLE_DURING_STOP`] has all members here. Other models have only the members
    /// with an unreadable field, which have no counted edges. Uncounted edges are included.
    counted: HashMap<usize, Vec<usize>>,
}

impl<'w, M: ObjectModel> Subset<'w, M> {
    pub(crate) fn new(world: &'w World<'w, M>) -> Self {
        Self { world, counted: HashMap::new() }
    }

    /// Whether an object is a member.
    pub(crate) fn contains(&self, object: Object) -> bool {
        self.contains_at(self.granule(object))
    }

    /// Whether a member starts at a granule.
    fn contains_at(&self, granule: usize) -> bool {
        is_member(self.world.core().space.states(), granule)
    }

    /// Whether a member has been reached.
    pub(crate) fn is_reached(&self, object: Object) -> bool {
        self.world.core().space.counts()[self.granule(object)].load(Ordering::Relaxed) != 0
    }

    /// Whether an object is a member that has not been reached.
    pub(crate) fn is_unreached(&self, object: Object) -> bool {
        let granule = self.granule(object);
        let mark = self.world.core().space.counts()[granule].load(Ordering::Relaxed);
        mark == 0 && self.contains_at(granule)
    }

    fn granule(&self, object: Object) -> usize {
        self.world.core().space.granule(object.address())
    }

    /// Marks a member. Returns `true` if it had no mark.
    pub(crate) fn reach(&self, object: Object) -> bool {
        // Relaxed: one thread accesses the marks.
        let mark = &self.world.core().space.counts()[self.granule(object)];
        let is_new = mark.load(Ordering::Relaxed) == 0;
        mark.store(1, Ordering::Relaxed);
        is_new
    }

    /// Removes the marks of `objects`, which include all members that were reached, and all members
    /// if a step has failed.
    pub(crate) fn forget(self, objects: impl Iterator<Item = Object>) {
        let marks = self.world.core().space.counts();
        for object in objects {
            marks[self.granule(object)].store(0, Ordering::Relaxed);
        }
    }

    /// Marks `objects`, which are members.
    pub(crate) fn reach_all(&self, objects: &[Stopped<'w>]) {
        objects.iter().for_each(|&object| {
            self.reach(*object);
        });
    }

    /// Traverses a member. Its edges are in the tracer afterwards. Returns `false` if a field is
    /// unreadable. Then the tracer has no edges.
    #[inline(always)]
    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) -> Result<bool, NoMemory> {
        tracer.begin(object.object());
        if M::UNCOUNTED_EDGES {
            tracer.forget_uncounted();
        }
        self.world.core().model.traverse(object, tracer);
        let is_readable = !tracer.take_unreadable();
        if !is_readable {
            tracer.lost_nothing()?;
            tracer.clear();
        }
        Ok(is_readable)
    }

    /// Marks and returns the members with references from outside. The count of any other member is
    /// the claim's reference plus the references from members. A member with an unreadable field
    /// has no edges, so its targets are marked.
    pub(crate) fn reach_from_outside(
        &mut self,
        objects: &[ClaimRef],
        tracer: &mut Tracer,
    ) -> Result<Vec<Stopped<'w>>, NoMemory> {
        let (space, model) = (&self.world.core().space, &self.world.core().model);
        // The references from members to each member: the lowest bytes lie in the table of the
        // marks, until the member gets its mark.
        let (sums, mut spills) = (space.counts(), Spills::default());
        let (origin, states) = (space.origin(), space.states());
        for object in objects.iter().map(|reference| claimed(self.world, reference)) {
            if !is_member(states, origin.granule(object.address())) {
                continue;
            }
            let is_readable = self.traverse(object, tracer)?;
            steps::took(1 + tracer.edges().len());
            for &edge in tracer.edges() {
                let target = origin.granule(edge);
                if is_member(states, target) {
                    add_shared(sums, target, &mut spills);
                }
            }
            if !is_readable || !M::STABLE_DURING_STOP {
                if M::UNCOUNTED_EDGES {
                    tracer.add_uncounted(|_| true)?;
                }
                self.counted.try_reserve(1)?;
                let edges = fallible::collect(tracer.edges().iter().copied())?;
                self.counted.insert(self.granule(*object), edges);
            }
        }
        for (granule, by) in self.world.adjustments() {
            if self.contains_at(granule as usize) {
                spills.add(granule, -by);
            }
        }
        spills.lost_nothing()?;
        let mut reached = Vec::new();
        for object in objects.iter().map(|reference| claimed(self.world, reference)) {
            let granule = origin.granule(object.address());
            if !is_member(states, granule) {
                continue;
            }
            // Relaxed: one thread accesses the table.
            let byte = &sums[granule];
            let inside = i64::from(byte.load(Ordering::Relaxed) as i8) + spills.of(granule as u32);
            // One reference is the claim's.
            let is_outside = model.count(object) != Count::Exact(inside + 1);
            byte.store(is_outside.into(), Ordering::Relaxed);
            if is_outside {
                fallible::push(&mut reached, object)?;
            }
        }
        Ok(reached)
    }

    /// Marks the members that the marked members on `stack` reach. Returns a member with a field
    /// that is unreadable now and was readable during counting. Then marks are missing.
    pub(crate) fn follow(
        &self,
        mut stack: Vec<Stopped<'w>>,
        tracer: &mut Tracer,
    ) -> Result<Option<Stopped<'w>>, NoMemory> {
        let space = &self.world.core().space;
        while let Some(object) = stack.pop() {
            let edges = match self.counted.get(&self.granule(*object)) {
                Some(edges) => edges,
                None if self.traverse(object, tracer)? => {
                    if M::UNCOUNTED_EDGES {
                        tracer.add_uncounted(|_| true)?;
                    }
                    tracer.edges()
                }
                None => return Ok(Some(object)),
            };
            steps::took(1 + edges.len());
            for &edge in edges {
                let Some(target) = stopped_at(self.world, space.granule(edge)) else { continue };
                if self.contains(*target) && self.reach(*target) {
                    fallible::push(&mut stack, target)?;
                }
            }
        }
        Ok(None)
    }
}

/// Whether a member starts at a granule.
#[inline(always)]
fn is_member(states: &[AtomicU8], granule: usize) -> bool {
    const MEMBER: u8 = state::UNREACHABLE | state::TRACKED;
    StateByte(&states[granule]).get() & MEMBER == MEMBER
}
