//! The graph as the kit knows it: every reference, and so every count.
//!
//! The kit makes each reference itself, so the shadow is exact. It is the definition that the model
//! is compared with: an object dies when no reference to it is left, and it is garbage when no
//! reference of the kit leads to it.

#![forbid(unsafe_code)]

use standstill::model::Object;

use crate::specimen::ObjectSpec;

/// What the kit knows about an object.
#[derive(Debug)]
pub(crate) struct ShadowObject {
    pub(crate) object: Object,
    pub(crate) spec: ObjectSpec,
    pub(crate) type_name: String,
    /// The objects that its fields refer to.
    pub(crate) fields: Vec<Option<usize>>,
    /// References of the kit.
    pub(crate) held: usize,
    /// References that the kit has dropped with `drop_later`, and that may still be counted.
    pub(crate) later: usize,
    /// References that the model has added in `judge`, and keeps.
    pub(crate) taken: usize,
    /// References of the kit that its count does not include.
    pub(crate) apart: usize,
    /// The object that it refers to without a count.
    pub(crate) uncounted: Option<usize>,
    /// The model reports it as a root.
    pub(crate) rooted: bool,
    /// The kit has untracked it.
    pub(crate) untracked: bool,
    /// A reference to it exists.
    pub(crate) alive: bool,
    /// Its finalizer has run.
    pub(crate) finalized: bool,
}

/// The state of a weak reference whose target is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeakState {
    /// It leads to its target.
    Whole,
    /// The model decides whether it was cleared.
    Doubtful,
    /// It was cleared.
    Cleared,
}

/// What the kit knows about a weak reference.
#[derive(Debug)]
pub(crate) struct ShadowWeak<W> {
    pub(crate) weak: W,
    pub(crate) target: usize,
    /// It has a callback, with its number as the ticket.
    pub(crate) callback: bool,
    /// The callback has been called.
    pub(crate) called: bool,
    pub(crate) state: WeakState,
}

/// See the [module's page](self).
#[derive(Debug)]
pub(crate) struct Shadow<W> {
    pub(crate) objects: Vec<ShadowObject>,
    pub(crate) weak: Vec<ShadowWeak<W>>,
}

impl<W> Default for Shadow<W> {
    fn default() -> Self {
        Self { objects: Vec::new(), weak: Vec::new() }
    }
}

impl<W> Shadow<W> {
    /// The numbers of the objects that exist.
    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.objects.len()).filter(|&at| self.objects[at].alive).collect()
    }

    /// The numbers of the objects that the kit holds references to.
    pub(crate) fn held(&self) -> Vec<usize> {
        (0..self.objects.len()).filter(|&at| self.objects[at].held > 0).collect()
    }

    /// The number of the object at an address.
    pub(crate) fn at(&self, address: usize) -> Option<usize> {
        // Addresses of dead objects are not used again, because of the quarantine.
        self.objects.iter().position(|object| object.object.address() == address)
    }

    /// References to an object from the fields of existing objects.
    fn references(&self, target: usize) -> usize {
        let fields = |object: &ShadowObject| {
            object.fields.iter().filter(|&&field| field == Some(target)).count()
        };
        self.objects.iter().filter(|object| object.alive).map(fields).sum()
    }

    /// The number of existing references to an object.
    pub(crate) fn count(&self, at: usize) -> usize {
        let object = &self.objects[at];
        object.held + object.apart + object.later + object.taken + self.references(at)
    }

    /// Removes the objects without references, and their references.
    pub(crate) fn reap(&mut self) {
        while let Some(dead) = (0..self.objects.len()).find(|&at| {
            let object = &self.objects[at];
            object.alive && !object.spec.immortal && self.count(at) == 0
        }) {
            self.remove(dead);
        }
    }

    /// Removes an object and its references.
    pub(crate) fn remove(&mut self, at: usize) {
        let object = &mut self.objects[at];
        object.alive = false;
        object.later = 0;
        object.fields.fill(None);
        (object.uncounted, object.rooted, object.untracked) = (None, false, false);
        for weak in self.weak.iter_mut().filter(|weak| weak.target == at) {
            weak.state = WeakState::Cleared;
        }
    }

    /// Which objects `from` reach, themselves included.
    pub(crate) fn reach(&self, from: impl IntoIterator<Item = usize>) -> Vec<bool> {
        let mut reached = vec![false; self.objects.len()];
        let mut next: Vec<usize> = from.into_iter().collect();
        while let Some(at) = next.pop() {
            if !std::mem::replace(&mut reached[at], true) {
                next.extend(self.objects[at].fields.iter().flatten());
                next.extend(self.objects[at].uncounted);
            }
        }
        reached
    }

    /// The existing objects that no reference of the kit leads to.
    pub(crate) fn garbage(&self) -> Vec<usize> {
        let roots = self.alive().into_iter().filter(|&at| {
            let object = &self.objects[at];
            object.held + object.apart + object.later + object.taken > 0
                || object.rooted
                || object.untracked
                || object.spec.immortal
        });
        let reached = self.reach(roots);
        self.alive().into_iter().filter(|&at| !reached[at]).collect()
    }

    /// The targets of an object's fields, sorted.
    pub(crate) fn targets(&self, at: usize) -> Vec<usize> {
        let mut targets: Vec<usize> = self.objects[at].fields.iter().flatten().copied().collect();
        targets.sort_unstable();
        targets
    }

    /// Removes the references that are not among `left` from an object's fields. Returns whether
    /// `left` is a part of the references.
    pub(crate) fn shrink_to(&mut self, at: usize, mut left: Vec<usize>) -> bool {
        for field in &mut self.objects[at].fields {
            let Some(target) = *field else { continue };
            match left.iter().position(|&other| other == target) {
                Some(found) => {
                    left.swap_remove(found);
                }
                None => *field = None,
            }
        }
        left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::NonNull;

    fn shadow(fields: &[&[usize]]) -> Shadow<()> {
        let objects = fields.iter().enumerate().map(|(at, targets)| ShadowObject {
            object: Object::new(
                NonNull::new(std::ptr::without_provenance_mut(32 * (at + 1))).expect("not null"),
            ),
            spec: ObjectSpec::default(),
            type_name: String::new(),
            fields: targets.iter().map(|&target| Some(target)).collect(),
            held: 0,
            later: 0,
            taken: 0,
            apart: 0,
            uncounted: None,
            rooted: false,
            untracked: false,
            alive: true,
            finalized: false,
        });
        Shadow { objects: objects.collect(), weak: Vec::new() }
    }

    #[test]
    fn counts_reachability_and_death_follow_the_references() {
        // 0 -> 1 <-> 2 -> 3, and 4 -> 4.
        let mut shadow = shadow(&[&[1], &[2, 2], &[1, 3], &[], &[4]]);
        shadow.objects[0].held = 1;
        assert_eq!([0, 1, 2, 3, 4].map(|at| shadow.count(at)), [1, 2, 2, 1, 1]);
        assert_eq!(shadow.garbage(), [4]);
        shadow.reap();
        assert_eq!(shadow.alive(), [0, 1, 2, 3, 4]);
        shadow.objects[0].held = 0;
        shadow.reap();
        assert_eq!((shadow.alive(), shadow.garbage()), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
        assert!(shadow.shrink_to(1, vec![2]));
        assert_eq!((shadow.targets(1), shadow.count(2)), (vec![2], 1));
        assert!(!shadow.shrink_to(1, vec![3]), "a reference that it did not have");
        shadow.reap();
        assert_eq!(shadow.alive(), [4], "2, then 1 and 3");
        assert_eq!(shadow.at(64), Some(1));
    }
}
