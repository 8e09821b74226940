//! A collection in which the kit calls each method of the model itself, in the order of a
//! collection, and compares the heap with the shadow after each call. So a finding names the method
//! that caused it.
//!
//! The garbage is that of the shadow. The steps are those of [`collect`](crate::collect):
//!
//! | step | world | calls |
//! |---|---|---|
//! | before | running | `prepare` |
//! | first stop | stopped | `pending`, `merge`, `count`, `traverse`; for each unreachable object `claim_ref`, `has_finalizer`, `has_weak`, `callbacks`, `take_callbacks`, `legacy`; `clear_weak`, if no code can run |
//! | user code | running | `resumed`, `destroy_merged`, `call_back`, `finalize` |
//! | second stop | stopped | as in the first, then `clear_weak` |
//! | end | running | `judge`, `clearing`, `clear`, `cleared`, `release`, `after_clear` |

#![forbid(unsafe_code)]

use crate::collect::scope::state_of;
use crate::heap::model::{Found, Verdict};
use crate::model_check::bench::Bench;
use crate::model_check::broken::{Checked, Rule, finding, name_of};
use crate::model_check::shadow::{Shadow, WeakState};
use crate::model_check::specimen::Specimen;
use crate::model_check::stop_calls::InStop;
use crate::object::live::ClaimRef;
use crate::object::state;

/// References that the kit adds to a cleared object: a release that drops twice then lowers the
/// count, and does not free the object.
const CUSHION: usize = 2;

/// The objects that the first stop has claimed.
struct Claimed<C> {
    /// To be finalized.
    objects: Vec<usize>,
    /// Objects with a legacy finalizer, and all objects of the garbage that they reach.
    exempt: Vec<usize>,
    legacy: Vec<usize>,
    callbacks: Vec<C>,
    /// The weak references whose callbacks are due.
    due: Vec<usize>,
    runs_code: bool,
}

impl<M: Specimen> InStop<'_, M> {
    /// The first stop.
    fn claim_garbage(&mut self, for_any: bool) -> Checked<Claimed<M::Callback>> {
        let garbage = self.shadow.garbage();
        let by = self.world.requester();
        let method = if for_any { "claim_ref_for_any" } else { "claim_ref" };
        for &at in &garbage {
            let object = self.stopped(at, method)?;
            self.call(method, Some(at), |model| {
                if for_any {
                    model.claim_ref_for_any(object, by)
                } else {
                    model.claim_ref(object, by)
                }
            })?;
            self.shadow.objects[at].claimed = 1;
            self.compare_counts(method, Rule::Counts)?;
            self.state(at).set(state::UNREACHABLE);
        }
        let legacy = self.legacy(&garbage)?;
        let reached = self.shadow.reach(legacy.iter().copied());
        let (exempt, objects): (Vec<_>, Vec<_>) = garbage.into_iter().partition(|&at| reached[at]);
        for &at in &exempt {
            self.state(at).survive();
        }
        let mut claimed = Claimed {
            objects,
            exempt,
            legacy,
            callbacks: Vec::new(),
            due: Vec::new(),
            runs_code: false,
        };
        for at in claimed.objects.clone() {
            let object = self.stopped(at, "has_finalizer")?;
            let spec = self.shadow.objects[at].spec;
            if !self.shadow.objects[at].finalized {
                let has = self
                    .call("has_finalizer", Some(at), |model| model.has_finalizer(object.live()))?;
                if has != spec.finalizer {
                    let text = format!(
                        "it returned {has}, and the object was made with finalizer: {}",
                        spec.finalizer
                    );
                    return finding(Rule::Finalizer, "has_finalizer", Some(at), text);
                }
                claimed.runs_code |= has;
            }
            let has = self.call("has_weak", Some(at), |model| model.has_weak(object.live()))?;
            let exists = self
                .shadow
                .weak
                .iter()
                .any(|weak| weak.target == at && weak.state == WeakState::Whole);
            if exists && !has {
                let text = "it returned false, and a weak reference to the object exists";
                return finding(Rule::Weak, "has_weak", Some(at), text);
            }
            if has {
                self.take_callbacks(at, &mut claimed)?;
            }
        }
        claimed.runs_code |= !claimed.callbacks.is_empty();
        if !claimed.runs_code {
            self.clear_weak(&claimed.objects)?;
        }
        self.compare_counts("take_callbacks", Rule::Stop)?;
        Ok(claimed)
    }

    fn state(&self, at: usize) -> crate::object::state::StateByte<'_> {
        state_of(&self.world.core().space, self.shadow.objects[at].object)
    }

    /// The objects with a legacy finalizer.
    fn legacy(&self, garbage: &[usize]) -> Checked<Vec<usize>> {
        let has_legacy = self.call("has_legacy", None, M::has_legacy)?;
        let mut legacy = Vec::new();
        for &at in garbage {
            let expected = self.shadow.objects[at].spec.legacy;
            if expected && !has_legacy {
                let text = "it returned false, and an object with a legacy finalizer exists";
                return finding(Rule::Answers, "has_legacy", Some(at), text);
            }
            if !has_legacy {
                continue;
            }
            let object = self.stopped(at, "legacy")?;
            let found = self.call("legacy", Some(at), |model| model.legacy(object))?;
            if found != expected {
                let text =
                    format!("it returned {found}, and the object was made with legacy: {expected}");
                return finding(Rule::Answers, "legacy", Some(at), text);
            }
            if found {
                legacy.push(at);
            }
        }
        Ok(legacy)
    }

    fn take_callbacks(&mut self, at: usize, claimed: &mut Claimed<M::Callback>) -> Checked<()> {
        let method = "take_callbacks";
        let object = self.stopped(at, method)?;
        let limit = self.call("callbacks", Some(at), |model| model.callbacks(object))?;
        let before = claimed.callbacks.len();
        let core = self.world.core();
        let is_unreachable = |object: crate::object::type_info::Object| {
            core.space.contains(object.address())
                && state_of(&core.space, object).get() & state::UNREACHABLE != 0
        };
        let callbacks = &mut claimed.callbacks;
        self.call(method, Some(at), |model| {
            model.take_callbacks(object, &is_unreachable, self.world, callbacks);
        })?;
        let taken = claimed.callbacks.len() - before;
        if taken > limit {
            let text = format!("it returned {limit}, and `take_callbacks` took {taken}");
            return finding(Rule::Limits, "callbacks", Some(at), text);
        }
        let mut expected = 0;
        for (number, weak) in self.shadow.weak.iter_mut().enumerate() {
            if weak.target != at || weak.state != WeakState::Whole {
                continue;
            }
            if weak.callback {
                expected += 1;
                claimed.due.push(number);
                weak.state = WeakState::Cleared;
            } else {
                // A model may clear all weak references here.
                weak.state = WeakState::Doubtful;
            }
        }
        if taken != expected {
            let text = format!(
                "it took {taken} callbacks, and {expected} weak references to the object have one"
            );
            return finding(Rule::Weak, method, Some(at), text);
        }
        Ok(())
    }

    /// Clears all weak references to the objects.
    fn clear_weak(&mut self, objects: &[usize]) -> Checked<()> {
        for &at in objects {
            let object = self.stopped(at, "clear_weak")?;
            self.call("clear_weak", Some(at), |model| model.clear_weak(object))?;
            for weak in self.shadow.weak.iter_mut().filter(|weak| weak.target == at) {
                weak.state = WeakState::Cleared;
            }
            self.compare_counts("clear_weak", Rule::Stop)?;
        }
        Ok(())
    }
}

impl<M: Specimen> Bench<M> {
    /// Collects. With `cushion` the kit holds each cleared object while it is released, so the
    /// count of an object that is released too often is seen before the object is freed.
    pub(super) fn collect_by_hand(&mut self, cushion: bool) -> Checked<()> {
        let lock = self.heap.0.core.collector_lock.try_acquire();
        debug_assert!(lock, "no other thread collects");
        self.report.by_hand += 1;
        let result = self.collect_with_lock(cushion);
        self.heap.0.core.collector_lock.release();
        result
    }

    fn collect_with_lock(&mut self, cushion: bool) -> Checked<()> {
        if cushion {
            // Without it, drops are pending in the first stop.
            self.audit()?;
            self.last = "prepare";
        }
        self.call("prepare", None, |model, m| model.prepare(m))?;
        self.compare("prepare")?;
        let for_any = self.report.by_hand.is_multiple_of(2);
        let claimed = self.stop(|stop| {
            stop.inspect()?;
            stop.claim_garbage(for_any)
        })?;
        let Claimed { mut objects, exempt, legacy, callbacks, due, runs_code } = claimed;
        let all: Vec<usize> = objects.iter().chain(&exempt).copied().collect();
        if runs_code {
            self.run_callbacks(callbacks, &due)?;
            self.finalize(&objects)?;
            objects = self.recheck(objects)?;
        }
        self.upgrade_none(&objects, "clear_weak")?;
        let verdict = self.judge(&objects, &exempt, &legacy)?;
        if verdict == Verdict::Clear {
            self.clear(&objects)?;
        } else {
            self.kept = true;
            objects.clear();
        }
        self.release(&all, cushion)?;
        for _ in 0..3 {
            let waits = self.call("after_clear", None, |model, m| model.after_clear(m))?;
            self.compare("after_clear")?;
            if !waits {
                break;
            }
            self.stop(|_| Ok(()))?;
        }
        for &at in &all {
            if self.shadow.objects[at].alive {
                state_of(&self.heap.0.core.space, self.shadow.objects[at].object).survive();
            }
        }
        let left = objects
            .iter()
            .find(|&&at| self.shadow.objects[at].alive && self.shadow.objects[at].taken == 0);
        if let Some(&at) = left {
            let text = "all garbage was cleared, and references among the cleared objects are left";
            return finding(Rule::Clear, "clear", Some(at), text);
        }
        Ok(())
    }

    fn run_callbacks(&mut self, callbacks: Vec<M::Callback>, due: &[usize]) -> Checked<()> {
        // Cleared in the stop.
        for &at in due {
            self.upgrade(at, "take_callbacks")?;
        }
        for callback in callbacks {
            let due = due.to_vec();
            self.call_user("call_back", None, |model, m| model.call_back(callback, m))?;
            let called = self.absorb("call_back", |_, _| false, |_, at| due.contains(&at))?;
            if called != 1 {
                let text = format!("it called {called} callbacks instead of one");
                return finding(Rule::Weak, "call_back", None, text);
            }
            self.compare("call_back")?;
        }
        self.last = "call_back";
        if due.is_empty() { Ok(()) } else { self.audit() }
    }

    fn finalize(&mut self, objects: &[usize]) -> Checked<()> {
        let method = "finalize";
        for &at in objects {
            let bits = state_of(&self.heap.0.core.space, self.shadow.objects[at].object);
            if !self.shadow.objects[at].spec.finalizer || self.shadow.objects[at].finalized {
                continue;
            }
            bits.set(state::FINALIZED);
            let claim = self.claim(at);
            self.call_user(method, Some(at), |model, m| model.finalize(claim.live(), m))?;
            let ran = self.absorb(method, |_, ran| ran == at, |_, _| false)?;
            if ran == 0 {
                let text = "it did not call the finalizer, which calls `Journal::finalized`";
                return finding(Rule::Finalizer, method, Some(at), text);
            }
            self.compare(method)?;
            self.last = method;
            self.audit()?;
        }
        Ok(())
    }

    /// The second stop. Returns the objects that are still garbage.
    fn recheck(&mut self, objects: Vec<usize>) -> Checked<Vec<usize>> {
        self.stop(|stop| {
            stop.inspect()?;
            let still = still_garbage(stop.shadow, &objects);
            stop.clear_weak(&still)?;
            Ok(still)
        })
    }

    /// No weak reference to a cleared object can be upgraded.
    fn upgrade_none(&mut self, objects: &[usize], after: &'static str) -> Checked<()> {
        for at in 0..self.shadow.weak.len() {
            if objects.contains(&self.shadow.weak[at].target) {
                self.upgrade(at, after)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, objects: &[usize], exempt: &[usize], legacy: &[usize]) -> Checked<Verdict> {
        let claims =
            |list: &[usize]| -> Vec<ClaimRef> { list.iter().map(|&at| self.claim(at)).collect() };
        if objects.is_empty() && exempt.is_empty() {
            return Ok(Verdict::Clear);
        }
        let all: Vec<usize> = objects.iter().chain(exempt).copied().collect();
        let [objects, exempt, legacy] = [objects, exempt, legacy].map(claims);
        let [garbage, uncollectable, legacy] =
            [&objects, &exempt, &legacy].map(|list| ClaimRef::live_slice(list));
        let found = Found::new(garbage, uncollectable, legacy);
        let verdict = self.call("judge", None, |model, m| model.judge(&found, m))?;
        self.compare("judge")?;
        let expected = if self.journal.keeps() { Verdict::Keep } else { Verdict::Clear };
        if M::ABILITIES.keeps && verdict != expected {
            let text = format!("it returned {verdict:?} instead of {expected:?}");
            return finding(Rule::Answers, "judge", None, text);
        }
        self.take_over_judged(&all)?;
        Ok(verdict)
    }

    /// Clears all objects. A stop after each shows what is left of it.
    fn clear(&mut self, objects: &[usize]) -> Checked<()> {
        self.call("clearing", None, |model, m| model.clearing(m, objects.len()))?;
        for &at in objects {
            if self.state(at) & state::TRACKED == 0 {
                continue;
            }
            let claim = self.claim(at);
            // A drop may run finalizers of objects that are no garbage.
            self.call_user("clear", Some(at), |model, m| model.clear(claim.live(), m))?;
            for last in [false, true] {
                self.call_user("cleared", Some(at), |model, m| model.cleared(m, last))?;
            }
            self.absorb("clear", |_, _| true, |_, _| true)?;
            self.last = "clear";
            self.take_over_cleared(at)?;
        }
        self.call_user("cleared", None, |model, m| model.cleared(m, true))?;
        self.compare("cleared")
    }

    /// Brings the shadow up to date with what `clear` has left of an object.
    fn take_over_cleared(&mut self, at: usize) -> Checked<()> {
        self.shadow.objects[at].uncounted = None;
        // The collection has a reference to all objects that could lose one here.
        for other in self.shadow.alive() {
            if self.state(other) & state::LIVE == 0 {
                let text = "its memory was freed, although a reference to it exists";
                return finding(Rule::Memory, "clear", Some(other), text);
            }
        }
        let world = match self.m.stop_here() {
            Ok(world) => world,
            Err(error) => return finding(Rule::NoSafepoint, "clear", Some(at), error.to_string()),
        };
        let stop = InStop::new(&world, &mut self.shadow, "clear");
        let left = stop.traverse(at)?;
        let is_a_part = stop.shadow.shrink_to(at, left);
        for other in stop.shadow.alive() {
            if other != at && stop.traverse(other)? != stop.shadow.targets(other) {
                let text = format!("it changed the fields of another object, {}", name_of(other));
                return finding(Rule::Clear, "clear", Some(at), text);
            }
        }
        drop(world);
        if !is_a_part {
            let text = "after it, the object has references that it did not have before";
            return finding(Rule::Clear, "clear", Some(at), text);
        }
        self.compare("clear")?;
        self.audit()
    }

    /// Releases the claims: survivors first.
    fn release(&mut self, claimed: &[usize], cushion: bool) -> Checked<()> {
        if cushion {
            for &at in claimed {
                let object = self.shadow.objects[at].object;
                for _ in 0..CUSHION {
                    self.call("Specimen::retain", Some(at), |_, m| M::retain(m, object))?;
                    self.shadow.objects[at].held += 1;
                }
            }
        }
        let mut order = claimed.to_vec();
        order.sort_by_key(|&at| std::cmp::Reverse(self.shadow.count(at)));
        for &at in &order {
            let claim = self.claim(at);
            self.shadow.objects[at].claimed = 0;
            self.last = "release";
            self.call_user("release", Some(at), |model, m| model.release(claim, m))?;
            self.compare("release")?;
            self.stop(|_| Ok(()))?;
        }
        if cushion {
            for at in claimed.iter().flat_map(|&at| [at; CUSHION]) {
                self.drop_ref(at)?;
            }
        }
        Ok(())
    }
}

/// The objects that no reference of the kit reaches. Claims are no references of the kit.
fn still_garbage<W>(shadow: &Shadow<W>, objects: &[usize]) -> Vec<usize> {
    let garbage = shadow.garbage();
    objects.iter().copied().filter(|at| garbage.contains(at)).collect()
}
