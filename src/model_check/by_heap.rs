//! A collection of the heap, whose result is compared with the shadow.

#![forbid(unsafe_code)]

use crate::base::event::{CollectionReport, guarded, panic_message};
use crate::collect::{Collect, CollectError};
use crate::heap::mutator::ModelMutator;
use crate::model_check::bench::Bench;
use crate::model_check::broken::{Checked, Rule, finding};
use crate::model_check::shadow::WeakState;
use crate::model_check::specimen::Specimen;
use crate::object::state;

/// The method that findings about a whole collection name.
const METHOD: &str = "ModelMutator::try_collect";

impl<M: Specimen> Bench<M> {
    /// Lets the heap collect. A young collection may leave old garbage.
    pub(super) fn collect_by_heap(&mut self, young: bool) -> Checked<()> {
        let what = if young { Collect::young() } else { Collect::full() };
        self.collect_and_compare(young, |m| m.try_collect(what))
    }

    /// The same, with this collection.
    pub(super) fn collect_and_compare(
        &mut self,
        young: bool,
        collect: impl FnOnce(&mut ModelMutator<M>) -> Result<CollectionReport, CollectError>,
    ) -> Checked<()> {
        // Before, so that the collection does not clear objects because of a wrong count.
        self.audit()?;
        self.report.collections += 1;
        let garbage = self.shadow.garbage();
        let was_finalized: Vec<bool> =
            self.shadow.objects.iter().map(|object| object.finalized).collect();
        let report = match guarded(|| collect(&mut self.m)) {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => return finding(Rule::NoSafepoint, METHOD, None, error.to_string()),
            Err(payload) => {
                let text = format!("it panicked: {}", panic_message(payload));
                return finding(Rule::Panics, METHOD, None, text);
            }
        };
        if let Some(text) = self.reported.lock().first() {
            return finding(Rule::Panics, METHOD, None, text.clone());
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
            if self.state(at) & state::LIVE == 0 {
                self.shadow.remove(at);
            } else if !young && !self.kept && !M::ABILITIES.late {
                let text = "the object is garbage, and was not destroyed";
                return finding(Rule::Clear, METHOD, Some(at), text);
            }
        }
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
        let stayed: Vec<usize> = garbage
            .into_iter()
            .filter(|&at| self.shadow.objects[at].alive && (exempt[at] || self.kept))
            .collect();
        self.take_over_judged(&stayed)?;
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
