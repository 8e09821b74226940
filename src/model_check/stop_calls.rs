//! The calls of a model in a stop, each with the comparison that follows it.

#![forbid(unsafe_code)]

use crate::base::event::{guarded, panic_message};
use crate::collect::scope::{state_of, stopped_at};
use crate::collect::traversal::{guard_traversal, traverse_batch};
use crate::heap::model::Count;
use crate::heap::world::World;
use crate::model_check::broken::{Checked, Rule, exist, finding, name_of};
use crate::model_check::shadow::Shadow;
use crate::model_check::specimen::Specimen;
use crate::object::live::{DeadObject, Stopped};
use crate::object::state;
use crate::object::type_info::Tracer;

/// A stop of the kit.
pub(super) struct InStop<'a, M: Specimen> {
    pub(super) world: &'a World<'a, M>,
    pub(super) shadow: &'a mut Shadow<M::Weak>,
    /// The last call before the stop that changed a reference.
    last: &'static str,
}

impl<'a, M: Specimen> InStop<'a, M> {
    pub(super) fn new(
        world: &'a World<'a, M>,
        shadow: &'a mut Shadow<M::Weak>,
        last: &'static str,
    ) -> Self {
        Self { world, shadow, last }
    }

    /// The proof that an object is alive.
    pub(super) fn stopped(&self, at: usize, method: &'static str) -> Checked<Stopped<'a>> {
        let space = &self.world.core().space;
        match stopped_at(self.world, space.granule(self.shadow.objects[at].object.address())) {
            Some(object) => Ok(object),
            None => finding(Rule::Stop, method, Some(at), "its memory was freed during the stop"),
        }
    }

    /// Calls a method. It must not panic, nor free an object.
    pub(super) fn call<R>(
        &self,
        method: &'static str,
        object: Option<usize>,
        f: impl FnOnce(&M) -> R,
    ) -> Checked<R> {
        let result = guarded(|| f(&self.world.core().model));
        self.freed_nothing(method)?;
        result.or_else(|payload| {
            let text = format!("it panicked: {}", panic_message(payload));
            finding(Rule::Panics, method, object, text)
        })
    }

    fn freed_nothing(&self, method: &'static str) -> Checked<()> {
        let space = &self.world.core().space;
        let freed =
            self.shadow.alive().into_iter().find(|&at| {
                state_of(space, self.shadow.objects[at].object).get() & state::LIVE == 0
            });
        match freed {
            Some(at) => finding(Rule::Stop, method, Some(at), "its memory was freed in a stop"),
            None => Ok(()),
        }
    }

    /// Compares all counts with the shadow. `too_low` is the rule that a lower count breaks.
    pub(super) fn compare_counts(&self, method: &'static str, too_low: Rule) -> Checked<()> {
        let adjustments = self.adjustments()?;
        for at in self.shadow.alive() {
            let object = self.stopped(at, method)?;
            let answer = self.call("count", Some(at), |model| model.count(object))?;
            let is_immortal =
                self.call("is_immortal", Some(at), |model| model.is_immortal(object))?;
            let spec = self.shadow.objects[at].spec;
            if is_immortal != spec.immortal {
                let text = format!(
                    "it returned {is_immortal} for an object that is {}immortal",
                    if spec.immortal { "" } else { "not " }
                );
                return finding(Rule::Answers, "is_immortal", Some(at), text);
            }
            let apart = adjustments.get(&*object).copied().unwrap_or(0);
            let expected = self.shadow.count(at) as i64;
            let known = self.shadow.objects[at].apart as i64;
            if answer == Count::Exact(expected - known) && apart != known {
                let text = format!(
                    "it reported a correction of {apart}, and {known} references are not in the \
                     object's count"
                );
                return finding(Rule::Counts, "adjustments", Some(at), text);
            }
            let answer = match answer {
                Count::Exact(count) => Count::Exact(count + apart),
                other => other,
            };
            match answer {
                Count::Immortal if spec.immortal => {}
                Count::Immortal => {
                    let text = "it says immortal of an object that is not";
                    return finding(Rule::Answers, "count", Some(at), text);
                }
                Count::Outside => {
                    let text = "it says outside of an object that takes part";
                    return finding(Rule::Answers, "count", Some(at), text);
                }
                Count::Exact(_) if spec.immortal => {
                    let text = "it returned a number for an immortal object";
                    return finding(Rule::Answers, "count", Some(at), text);
                }
                Count::Exact(count) if count == expected => {}
                Count::Exact(count) => {
                    let rule = if count < expected { too_low } else { Rule::Counts };
                    let after = if method == "count" { self.last } else { method };
                    // Functions of the test are trusted more than `count`.
                    let method = if after.contains(':') { method } else { after };
                    let text = format!(
                        "`count` returned {count} after `{after}`, and {}",
                        exist(expected as usize)
                    );
                    return finding(rule, method, Some(at), text);
                }
            }
        }
        Ok(())
    }

    /// Takes over the references that the model has added to these objects, in `judge`.
    pub(super) fn take_over_judged(&mut self, objects: &[usize]) -> Checked<()> {
        for &at in objects {
            let object = self.stopped(at, "judge")?;
            if let Count::Exact(count) =
                self.call("count", Some(at), |model| model.count(object))?
            {
                let known = self.shadow.count(at) - self.shadow.objects[at].apart;
                self.shadow.objects[at].taken += (count as usize).saturating_sub(known);
            }
        }
        Ok(())
    }

    /// Merges counts, and compares the dead objects with the shadow.
    pub(super) fn merge(&mut self, dead: &mut Vec<DeadObject>) -> Checked<()> {
        let limit = self.call("pending", None, |model| model.pending(self.world))?;
        self.call("merge", None, |model| model.merge(self.world, dead))?;
        let was_pending: Vec<usize> = (0..self.shadow.objects.len())
            .filter(|&at| std::mem::take(&mut self.shadow.objects[at].later) > 0)
            .collect();
        for found in &*dead {
            let Some(at) = self.shadow.at(found.object().address()) else {
                let text = "it reported an address that is no object's";
                return finding(Rule::Merge, "merge", None, text);
            };
            let count = self.shadow.count(at);
            let object = &mut self.shadow.objects[at];
            if count > 0 {
                let text = format!("it reported the object as dead, and {} to it", exist(count));
                return finding(Rule::Merge, "merge", Some(at), text);
            }
            if std::mem::replace(&mut object.dying, true) {
                return finding(Rule::Merge, "merge", Some(at), "it reported the object twice");
            }
            state_of(&self.world.core().space, found.object()).set(state::DYING);
        }
        if dead.len() > limit {
            let text = format!("`pending` returned {limit}, and `merge` found {} dead", dead.len());
            return finding(Rule::Limits, "pending", None, text);
        }
        if M::ABILITIES.late {
            self.shadow.reap();
        }
        let lost = self.shadow.alive().into_iter().find(|&at| {
            let object = &self.shadow.objects[at];
            !object.dying && !object.spec.immortal && self.shadow.count(at) == 0
        });
        if let Some(at) = lost {
            let text = "no reference to it is left, and `merge` did not report it as dead";
            return finding(Rule::Merge, "merge", Some(at), text);
        }
        // Of objects with deferred drops, the merge made the count.
        for at in was_pending {
            let object = self.stopped(at, "merge")?;
            let apart = self.shadow.objects[at].apart;
            let count = self.shadow.count(at) - apart;
            let answer = self.call("count", Some(at), |model| model.count(object))?;
            if answer != Count::Exact(count as i64) && answer != Count::Immortal {
                let text = format!("after it, `count` returned {answer:?}, and {}", exist(count));
                return finding(Rule::Merge, "merge", Some(at), text);
            }
        }
        Ok(())
    }

    /// Checks headers, and traverses all objects in both ways.
    pub(super) fn inspect(&mut self) -> Checked<()> {
        for at in self.shadow.alive() {
            let object = self.stopped(at, "check")?;
            let result = self.call("check", Some(at), |model| model.check(object))?;
            if let Err(error) = result {
                let text = format!("it reports damage: {error}");
                return finding(Rule::Answers, "check", Some(at), text);
            }
        }
        let all = self.shadow.alive();
        for &at in &all {
            self.traverse_and_compare(at)?;
        }
        self.traverse_together(&all)?;
        self.inspect_seam()
    }

    /// Traverses each object once. For graphs of many objects.
    pub(super) fn inspect_once(&self) -> Checked<()> {
        for at in self.shadow.alive() {
            let found = self.traverse(at)?;
            self.compare_targets("traverse", at, &found)?;
        }
        Ok(())
    }

    pub(super) fn tracer(&self) -> Tracer {
        let space = &self.world.core().space;
        let (start, bytes) = space.bounds();
        Tracer::new(start, bytes)
    }

    /// The targets that `traverse` reports, sorted. They are objects of the program that exist.
    pub(super) fn traverse(&self, at: usize) -> Checked<Vec<usize>> {
        let object = self.stopped(at, "traverse")?;
        let mut tracer = self.tracer();
        let model = &self.world.core().model;
        let result = guard_traversal(self.world, &mut tracer, |tracer| {
            tracer.begin(*object);
            model.traverse(object, tracer);
        });
        self.freed_nothing("traverse")?;
        if let Err(abandoned) = result {
            let text = format!("it panicked: {}", abandoned.reason);
            return finding(Rule::Panics, "traverse", Some(at), text);
        }
        if tracer.take_unreadable() {
            let text = "it says that a field is unreadable, and no thread uses the object";
            return finding(Rule::Traversal, "traverse", Some(at), text);
        }
        self.targets("traverse", at, tracer.edges())
    }

    fn targets(&self, method: &'static str, at: usize, edges: &[usize]) -> Checked<Vec<usize>> {
        let mut targets = Vec::new();
        for &edge in edges {
            match self.shadow.at(edge) {
                Some(target) if self.shadow.objects[target].alive => targets.push(target),
                Some(target) => {
                    let name = name_of(target);
                    let text = format!("it reported a reference to {name}, which is dead");
                    return finding(Rule::Traversal, method, Some(at), text);
                }
                None => {
                    let text = format!("it reported the address {edge:#x}, where no object is");
                    return finding(Rule::Traversal, method, Some(at), text);
                }
            }
        }
        targets.sort_unstable();
        Ok(targets)
    }

    /// An error if the targets are not those of the shadow.
    fn compare_targets(&self, method: &'static str, at: usize, found: &[usize]) -> Checked<()> {
        let expected = self.shadow.targets(at);
        if found == expected {
            return Ok(());
        }
        let names = |targets: &[usize]| match targets {
            [] => "nothing".to_owned(),
            _ => targets.iter().map(|&at| name_of(at)).collect::<Vec<_>>().join(", "),
        };
        let text = format!(
            "it reported references to {}, and the object refers to {}",
            names(found),
            names(&expected)
        );
        finding(Rule::Traversal, method, Some(at), text)
    }

    /// Traverses an object twice.
    fn traverse_and_compare(&self, at: usize) -> Checked<()> {
        let first = self.traverse(at)?;
        let second = self.traverse(at)?;
        if M::STABLE_DURING_STOP && first != second {
            let text = format!(
                "two traversals in one stop reported {} and {} references",
                first.len(),
                second.len()
            );
            return finding(Rule::Stable, "traverse", Some(at), text);
        }
        self.compare_targets("traverse", at, &first)?;
        self.compare_targets("traverse", at, &second)?;
        self.compare_counts("traverse", Rule::Stop)
    }

    /// Traverses objects in one call, as a collection does.
    fn traverse_together(&self, all: &[usize]) -> Checked<()> {
        const METHOD: &str = "traverse_each";
        if all.is_empty() {
            return Ok(());
        }
        let mut objects = Vec::new();
        for &at in all {
            objects.push(self.stopped(at, METHOD)?);
        }
        let mut tracer = self.tracer();
        let mut ends = vec![0; objects.len()];
        let mut unreadable = false;
        let model = &self.world.core().model;
        if self.call("prefetches", None, |model| model.prefetches())? {
            let prefetched = guard_traversal(self.world, &mut tracer, |tracer| {
                tracer.go_on(*objects[0]);
                model.prefetch_each(&objects, tracer);
            });
            if let Err(abandoned) = prefetched {
                let text = format!("it panicked: {}", abandoned.reason);
                return finding(Rule::Panics, "prefetch_each", None, text);
            }
            if !tracer.edges().is_empty() {
                let text = "it reported references, which only a traversal does";
                return finding(Rule::Traversal, "prefetch_each", None, text);
            }
        }
        let result = guard_traversal(self.world, &mut tracer, |tracer| {
            traverse_batch(model, &objects, tracer, &mut ends, |_| {
                unreadable = true;
                Ok(())
            })
        });
        self.freed_nothing(METHOD)?;
        if let Err(abandoned) = result {
            let text = format!("it panicked: {}", abandoned.reason);
            return finding(Rule::Panics, METHOD, None, text);
        }
        if unreadable {
            let text = "it says that a field is unreadable, and no thread uses the objects";
            return finding(Rule::Traversal, METHOD, None, text);
        }
        let mut start = 0;
        for (&at, &end) in all.iter().zip(&ends) {
            let edges = tracer.edges().get(start..end as usize).unwrap_or(&[]);
            let targets = self.targets(METHOD, at, edges)?;
            self.compare_targets(METHOD, at, &targets)?;
            start = end as usize;
        }
        self.compare_counts(METHOD, Rule::Stop)
    }
}
