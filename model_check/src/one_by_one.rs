//! Calls of a model's methods, one by one, for an object that the kit holds. Each is followed by a
//! comparison, so a finding names the method.
//!
//! The order is that of a collection, but nothing is garbage: the kit's own reference keeps the
//! object alive.

use standstill::kit::parts::*;
use standstill::model::{ClaimRef, Object};

use crate::bench::Bench;
use crate::broken::{Checked, Rule, finding, name_of};
use crate::shadow::{ShadowObject, WeakState};
use crate::specimen::Specimen;
use crate::stop_calls::InStop;

impl<M: Specimen> InStop<'_, M> {
    /// The calls in a stop. Adds two references to the object, and returns its callbacks.
    fn claim(&mut self, at: usize) -> Checked<Vec<CallbackOf<M>>> {
        let object = self.stopped(at, "claim_ref")?;
        let by = self.world.requester();
        self.call("claim_ref", Some(at), |model| model.claim_ref(object, by))?;
        self.shadow.objects[at].held += 1;
        self.compare_counts("claim_ref", Rule::Counts)?;
        let method = "claim_ref_for_any";
        self.call(method, Some(at), |model| {
            SplitCountsOf::<M>::claim_ref_for_any(model, object, by)
        })?;
        self.shadow.objects[at].held += 1;
        self.compare_counts(method, Rule::Counts)?;
        let spec = self.shadow.objects[at].spec;
        let has_legacy = self.call("has_legacy", None, VerdictsOf::<M>::has_legacy)?;
        let legacy =
            self.call("legacy", Some(at), |model| VerdictsOf::<M>::legacy(model, object))?;
        let has = self.call("has_finalizer", Some(at), |model| {
            FinalizersOf::<M>::has_finalizer(model, object.live())
        })?;
        let wrong = [
            (spec.legacy && !has_legacy, "has_legacy", Rule::Answers),
            (has_legacy && legacy != spec.legacy, "legacy", Rule::Answers),
            (has != spec.finalizer, "has_finalizer", Rule::Finalizer),
        ];
        if let Some((_, method, rule)) = wrong.into_iter().find(|&(is_wrong, ..)| is_wrong) {
            return finding(rule, method, Some(at), "its answer does not fit the object");
        }
        let callbacks = self.take_callbacks(at)?;
        self.call("clear_weak", Some(at), |model| WeakRefsOf::<M>::clear_weak(model, object))?;
        for weak in self.shadow.weak.iter_mut().filter(|weak| weak.target == at) {
            weak.state = WeakState::Cleared;
        }
        self.compare_counts("clear_weak", Rule::Stop)?;
        Ok(callbacks)
    }

    fn take_callbacks(&mut self, at: usize) -> Checked<Vec<CallbackOf<M>>> {
        let (mut callbacks, method) = (Vec::new(), "take_callbacks");
        let object = self.stopped(at, method)?;
        let has = self
            .call("has_weak", Some(at), |model| WeakRefsOf::<M>::has_weak(model, object.live()))?;
        let of_object = self.shadow.weak.iter().filter(|weak| weak.target == at);
        let whole: Vec<bool> = of_object
            .filter(|weak| weak.state == WeakState::Whole)
            .map(|weak| weak.callback)
            .collect();
        if !whole.is_empty() && !has {
            let text = "it returned false, and a weak reference to the object exists";
            return finding(Rule::Weak, "has_weak", Some(at), text);
        }
        if !has {
            return Ok(callbacks);
        }
        let limit =
            self.call("callbacks", Some(at), |model| WeakRefsOf::<M>::callbacks(model, object))?;
        let is_unreachable = |other: Object| other == *object;
        self.call(method, Some(at), |model| {
            WeakRefsOf::<M>::take_callbacks(
                model,
                object,
                &is_unreachable,
                self.world,
                &mut callbacks,
            );
        })?;
        let (taken, expected) = (callbacks.len(), whole.iter().filter(|&&calls| calls).count());
        if taken > limit {
            let text = format!("it returned {limit}, and `take_callbacks` took {taken}");
            return finding(Rule::Limits, "callbacks", Some(at), text);
        }
        if taken != expected {
            let text = format!(
                "it took {taken} callbacks, and {expected} weak references to the object have one"
            );
            return finding(Rule::Weak, method, Some(at), text);
        }
        Ok(callbacks)
    }
}

impl<M: Specimen> Bench<M> {
    /// Calls the methods for an object.
    pub(crate) fn call_one_by_one(&mut self, at: usize) -> Checked<()> {
        let ShadowObject { spec, finalized, fields, .. } = &self.shadow.objects[at];
        // `clear` drops these.
        let dies = |&target: &usize| target != at && self.shadow.objects[target].held == 0;
        if spec.immortal || *finalized || fields.iter().flatten().any(dies) {
            return Ok(());
        }
        // Otherwise the order of deferred drops is unknown.
        self.audit()?;
        self.call("prepare", None, |model, m| SplitCountsOf::<M>::prepare(model, m))?;
        self.compare("prepare")?;
        let callbacks = self.stop(|stop| stop.claim(at))?;
        let object = self.shadow.objects[at].object;
        // SAFETY: rule *counted*: the stop has added the two references, and compared the counts.
        let claims = [(); 2].map(|()| unsafe { ClaimRef::new(object) });
        for weak in 0..self.shadow.weak.len() {
            if self.shadow.weak[weak].target == at {
                let after = if callbacks.is_empty() { "clear_weak" } else { "take_callbacks" };
                self.upgrade(weak, after)?;
            }
        }
        for callback in callbacks {
            self.call_user("call_back", None, |model, m| {
                WeakRefsOf::<M>::call_back(model, callback, m)
            })?;
            let of_object = |weak: usize| self.shadow.weak[weak].target == at;
            let due: Vec<bool> = (0..self.shadow.weak.len()).map(of_object).collect();
            let called = self.absorb("call_back", |_, _| false, |_, weak| due[weak])?;
            if called != 1 {
                let text = format!("it called {called} callbacks instead of one");
                return finding(Rule::Weak, "call_back", None, text);
            }
        }
        let [first, second] = claims;
        if self.shadow.objects[at].spec.finalizer {
            // SAFETY: rule *counted*: as above.
            unsafe { self.m.set_finalized(object) };
            self.call_user("finalize", Some(at), |model, m| {
                FinalizersOf::<M>::finalize(model, first.live(), m)
            })?;
            if self.absorb("finalize", |_, ran| ran == at, |_, _| false)? == 0 {
                let text = "it did not call the finalizer, which calls `Journal::finalized`";
                return finding(Rule::Finalizer, "finalize", Some(at), text);
            }
            self.last = "finalize";
            self.audit()?;
        }
        self.call("clearing", None, |model, m| BatchesOf::<M>::clearing(model, m, 1))?;
        self.call_user("clear", Some(at), |model, m| model.clear(first.live(), m))?;
        for last in [false, true] {
            self.call_user("cleared", Some(at), |model, m| {
                BatchesOf::<M>::cleared(model, m, last)
            })?;
        }
        self.take_over_cleared(at)?;
        for claim in [first, second] {
            self.shadow.objects[at].held -= 1;
            self.last = "release";
            self.call_user("release", Some(at), |model, m| model.release(claim, m))?;
            self.compare("release")?;
            self.audit()?;
        }
        self.call("after_clear", None, |model, m| SplitCountsOf::<M>::after_clear(model, m))?;
        self.compare("after_clear")
    }

    /// Brings the shadow up to date with what `clear` has left of an object.
    fn take_over_cleared(&mut self, at: usize) -> Checked<()> {
        self.last = "clear";
        self.absorb("clear", |_, _| true, |_, _| true)?;
        self.shadow.objects[at].uncounted = None;
        let left = self.in_stop("clear", |stop| stop.traverse(at))?;
        if left.contains(&at) || !self.shadow.shrink_to(at, left) {
            let text = "after it, the object refers to itself, or has a reference that it did not \
                        have before";
            return finding(Rule::Clear, "clear", Some(at), text);
        }
        self.compare("clear")?;
        let changed = self.in_stop("clear", |stop| {
            for other in stop.shadow.alive() {
                if stop.traverse(other)? != stop.shadow.targets(other) {
                    return Ok(Some(other));
                }
            }
            Ok(None)
        })?;
        if let Some(other) = changed {
            let text = format!("it changed the fields of another object, {}", name_of(other));
            return finding(Rule::Clear, "clear", Some(at), text);
        }
        self.audit()
    }
}
