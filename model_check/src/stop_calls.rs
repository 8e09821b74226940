//! The calls of a model in a stop, each with the comparison that follows it.

use std::borrow::Cow;

use standstill::kit;
use standstill::kit::parts::*;
use standstill::model::{Count, DeadObject, ModelHeap, Stopped, World};

use crate::broken::{Checked, Rule, exist, finding, found_by_heap, guarded, name_of};
use crate::shadow::Shadow;
use crate::specimen::Specimen;

/// A stop of the kit.
pub(crate) struct InStop<'a, M: Specimen> {
    pub(crate) heap: &'a ModelHeap<M>,
    pub(crate) world: &'a World<'a, M>,
    pub(crate) shadow: &'a mut Shadow<M::Weak>,
    /// The last call before the stop that changed a reference.
    last: &'static str,
}

impl<'a, M: Specimen> InStop<'a, M> {
    pub(crate) fn new(
        heap: &'a ModelHeap<M>,
        world: &'a World<'a, M>,
        shadow: &'a mut Shadow<M::Weak>,
        last: &'static str,
    ) -> Self {
        Self { heap, world, shadow, last }
    }

    /// The proof that an object is alive.
    pub(crate) fn stopped(&self, at: usize, method: &'static str) -> Checked<Stopped<'a>> {
        match kit::stopped_object(self.world, self.shadow.objects[at].object) {
            Some(object) => Ok(object),
            None => finding(Rule::Stop, method, Some(at), "its memory was freed during the stop"),
        }
    }

    /// Calls a method. It must not panic, nor free an object.
    pub(crate) fn call<R>(
        &self,
        method: &'static str,
        object: Option<usize>,
        f: impl FnOnce(&M) -> R,
    ) -> Checked<R> {
        let result = guarded(|| f(self.heap.model()));
        self.freed_nothing(method)?;
        result.or_else(|text| finding(Rule::Panics, method, object, format!("it panicked: {text}")))
    }

    /// The result of a traversal. It must not panic, nor free an object.
    pub(crate) fn traversed<R>(
        &self,
        method: &'static str,
        object: Option<usize>,
        result: Result<R, Cow<'static, str>>,
    ) -> Checked<R> {
        self.freed_nothing(method)?;
        result.or_else(|text| finding(Rule::Panics, method, object, format!("it panicked: {text}")))
    }

    fn freed_nothing(&self, method: &'static str) -> Checked<()> {
        let freed = self
            .shadow
            .alive()
            .into_iter()
            .find(|&at| kit::state(self.heap, self.shadow.objects[at].object) & kit::LIVE == 0);
        match freed {
            Some(at) => finding(Rule::Stop, method, Some(at), "its memory was freed in a stop"),
            None => Ok(()),
        }
    }

    /// Compares all counts with the shadow. `too_low` is the rule that a lower count breaks.
    pub(crate) fn compare_counts(&self, method: &'static str, too_low: Rule) -> Checked<()> {
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
    pub(crate) fn take_over_judged(&mut self, objects: &[usize]) -> Checked<()> {
        for &at in objects {
            let object = self.stopped(at, "judge")?;
            if let Ok(Count::Exact(count)) = guarded(|| self.heap.model().count(object)) {
                let known = self.shadow.count(at) - self.shadow.objects[at].apart;
                self.shadow.objects[at].taken += (count as usize).saturating_sub(known);
            }
        }
        Ok(())
    }

    /// Merges counts, and compares the dead objects with the shadow.
    pub(crate) fn merge(&mut self, dead: &mut Vec<DeadObject>) -> Checked<()> {
        self.call("pending", None, |model| SplitCountsOf::<M>::pending(model, self.world))?;
        // SAFETY: rule *zero*: the bench destroys these objects when the world runs again.
        let merged = guarded(|| unsafe { kit::merge(self.world, dead) });
        self.freed_nothing("merge")?;
        merged.or_else(|text| found_by_heap("merge", &text))?;
        let was_pending: Vec<usize> = (0..self.shadow.objects.len())
            .filter(|&at| std::mem::take(&mut self.shadow.objects[at].later) > 0)
            .collect();
        if M::ABILITIES.late {
            self.shadow.reap();
        }
        let lost = self.shadow.alive().into_iter().find(|&at| {
            let object = &self.shadow.objects[at];
            let is_known = dead.iter().any(|dead| dead.object() == object.object);
            !is_known && !object.spec.immortal && self.shadow.count(at) == 0
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
    pub(crate) fn inspect(&self) -> Checked<()> {
        let all = self.shadow.alive();
        for &at in &all {
            let object = self.stopped(at, "check")?;
            if let Err(error) =
                self.call("check", Some(at), |model| ChecksOf::<M>::check(model, object))?
            {
                let text = format!("it reports damage: {error}");
                return finding(Rule::Answers, "check", Some(at), text);
            }
            let found = self.traverse(at)?;
            self.compare_targets("traverse", at, &found)?;
        }
        self.compare_counts("traverse", Rule::Stop)?;
        self.traverse_together(&all)
    }

    /// The targets that `traverse` reports, sorted. They are objects of the program that exist.
    pub(crate) fn traverse(&self, at: usize) -> Checked<Vec<usize>> {
        let object = self.stopped(at, "traverse")?;
        let found = kit::traverse(self.world, object);
        let found = self.traversed("traverse", Some(at), found)?;
        if found.is_unreadable {
            let text = "it says that a field is unreadable, and no thread uses the object";
            return finding(Rule::Traversal, "traverse", Some(at), text);
        }
        self.targets("traverse", at, &found.targets)
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
        if self.call("prefetches", None, |model| BatchesOf::<M>::prefetches(model))? {
            let method = "prefetch_each";
            let reported = kit::prefetch_each(self.world, &objects);
            if self.traversed(method, None, reported)? > 0 {
                let text = "it reported references, which only a traversal does";
                return finding(Rule::Traversal, method, None, text);
            }
        }
        let found = kit::traverse_each(self.world, &objects);
        let found = self.traversed(METHOD, None, found)?;
        if found.iter().any(|found| found.is_unreadable) {
            let text = "it says that a field is unreadable, and no thread uses the objects";
            return finding(Rule::Traversal, METHOD, None, text);
        }
        for (&at, found) in all.iter().zip(&found) {
            let targets = self.targets(METHOD, at, &found.targets)?;
            self.compare_targets(METHOD, at, &targets)?;
        }
        self.compare_counts(METHOD, Rule::Stop)
    }
}
