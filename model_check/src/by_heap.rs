//! A collection of the heap, whose result is compared with the shadow.

#![forbid(unsafe_code)]

use standstill::kit::parts::*;
use standstill::model::ModelMutator;
use standstill::{Collect, CollectError, CollectionReport, During, kit};

use crate::bench::Bench;
use crate::broken::{Checked, Rule, finding, found_by_heap, guarded};
use crate::shadow::WeakState;
use crate::specimen::Specimen;

/// The method that findings about a whole collection name.
const METHOD: &str = "ModelMutator::try_collect";

impl<M: Specimen> Bench<M> {
    /// Lets the heap collect. A young collection may leave old garbage.
    pub(crate) fn collect_by_heap(&mut self, young: bool) -> Checked<()> {
        let what = if young { Collect::young() } else { Collect::full() };
        self.collect_and_compare(young, |m| m.try_collect(what))
    }

    /// The same, with this collection.
    pub(crate) fn collect_and_compare(
        &mut self,
        young: bool,
        collect: impl FnOnce(&mut ModelMutator<M>) -> Result<CollectionReport, CollectError>,
    ) -> Checked<()> {
        // Before, so that the collection does not clear objects because of a wrong count.
        self.audit()?;
        self.call("prepare", None, |model, m| SplitCountsOf::<M>::prepare(model, m))?;
        self.compare("prepare")?;
        self.report.collections += 1;
        let garbage = self.shadow.garbage();
        let was_finalized: Vec<bool> =
            self.shadow.objects.iter().map(|object| object.finalized).collect();
        let report = match guarded(|| collect(&mut self.m)) {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => return finding(Rule::NoSafepoint, METHOD, None, error.to_string()),
            Err(text) => return found_by_heap(METHOD, &text),
        };
        if let Some((during, text)) = self.reported.lock().first() {
            // Of other methods only the phase is known.
            let method = match during {
                During::Finalize => "finalize",
                During::WeakCallback => "call_back",
                During::Clear => "clear",
                _ => METHOD,
            };
            return found_by_heap(method, text);
        }
        self.kept |= self.journal.keeps();
        if let Some(reason) = report.abandoned {
            let text = format!("the collection was abandoned: {reason}");
            return finding(Rule::Traversal, METHOD, None, text);
        }
        if report.overvisited > 0 {
            let text = "traversals reported more references to an object than exist";
            return finding(Rule::Traversal, METHOD, None, text);
        }
        let held: Vec<usize> = self.shadow.objects.iter().map(|object| object.held).collect();
        self.absorb(
            METHOD,
            |_, at| garbage.contains(&at),
            |shadow, at| garbage.contains(&shadow.weak[at].target),
        )?;
        let legacy = garbage.iter().copied().filter(|&at| self.shadow.objects[at].spec.legacy);
        let exempt = self.shadow.reach(legacy);
        let risen = garbage.iter().copied().filter(|&at| self.shadow.objects[at].held > held[at]);
        let back = self.shadow.reach(risen);
        let expected: Vec<usize> =
            garbage.iter().copied().filter(|&at| !exempt[at] && !back[at]).collect();
        if !young {
            self.expect_code_ran(&garbage, &exempt, &was_finalized)?;
        }
        for &at in &expected {
            if self.state(at) & kit::LIVE == 0 {
                if self.journal.keeps() && M::ABILITIES.keeps {
                    let text = "the verdict was to keep the garbage, and the object was destroyed";
                    return finding(Rule::Answers, "judge", Some(at), text);
                }
                self.shadow.remove(at);
            } else if !young && !self.kept && !M::ABILITIES.late {
                let text = "the object is garbage, and was not destroyed";
                return finding(Rule::Clear, METHOD, Some(at), text);
            }
        }
        // The verdict may have added references to those that were not cleared.
        let stayed: Vec<usize> = garbage
            .iter()
            .copied()
            .filter(|&at| (exempt[at] || self.kept) && self.shadow.objects[at].alive)
            .filter(|&at| self.state(at) & kit::LIVE != 0)
            .collect();
        self.in_stop("judge", |stop| stop.take_over_judged(&stayed))?;
        if self.kept || M::ABILITIES.late {
            self.shadow.reap();
        }
        for weak in &mut self.shadow.weak {
            if garbage.contains(&weak.target) && weak.state == WeakState::Whole {
                weak.state = match weak.callback {
                    true if weak.called => WeakState::Cleared,
                    // The young collection has left the target.
                    true => WeakState::Whole,
                    false => WeakState::Doubtful,
                };
            }
        }
        self.last = METHOD;
        self.compare(METHOD)?;
        for at in 0..self.shadow.weak.len() {
            if self.shadow.weak[at].state == WeakState::Cleared {
                self.upgrade(at, METHOD)?;
            }
        }
        self.audit()
    }

    /// After a full collection: the finalizer of each unreachable object has run, and so has each
    /// callback.
    fn expect_code_ran(
        &self,
        garbage: &[usize],
        exempt: &[bool],
        was_finalized: &[bool],
    ) -> Checked<()> {
        for &at in garbage.iter().filter(|&&at| !exempt[at]) {
            let object = &self.shadow.objects[at];
            if object.spec.finalizer && !object.finalized && !was_finalized[at] {
                let text = "the object is garbage, and its finalizer did not run";
                return finding(Rule::Finalizer, "finalize", Some(at), text);
            }
            let lost = self.shadow.weak.iter().any(|weak| {
                weak.target == at && weak.callback && !weak.called && weak.state == WeakState::Whole
            });
            if lost {
                let text = "the object is garbage, and the callback of a weak reference to it was \
                            not called";
                return finding(Rule::Weak, "take_callbacks", Some(at), text);
            }
        }
        Ok(())
    }
}
