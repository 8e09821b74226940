//! The seam to a runtime that counts, polls and stops in its own way.
//!
//! Only fixed programs use these parts, in this order: uncounted references, roots, counts in
//! several places, serial objects, tracking, verdicts, requests, stops of the runtime. The kit
//! compares them with the shadow in each stop ([`inspect_seam`](InStop::inspect_seam)).

use std::collections::HashMap;

use standstill::Collect;
use standstill::kit::parts::*;
use standstill::kit::{self, COLLECT};
use standstill::model::{ModelMutator, Object, Serial as _};

use crate::bench::Bench;
use crate::broken::{Checked, Rule, finding, guarded, name_of};
use crate::program::ProgramStep::{self, Audit, ByHeap, Drop, Seam};
use crate::program::SeamStep::{
    self, Apart, DropApart, Forget, Keep, OwnStop, Request, Root, Serial, TrackAll, Uncount,
    Unroot, Untrack,
};
use crate::program::{UserCode, link, plain};
use crate::specimen::{ObjectSpec, Specimen};
use crate::stop_calls::InStop;

/// The programs for the parts that the model has. An object that only an uncounted reference keeps
/// alive refers to itself, so that its count is not 0.
pub(crate) fn exercises<M: Specimen>() -> Vec<Vec<ProgramStep>> {
    let can = M::ABILITIES;
    let own = link(0, 0, 0);
    let mut all = Vec::new();
    for young in [false, true] {
        let (collect, full) = (ByHeap { young }, ByHeap { young: false });
        if can.uncounted {
            let held = [plain(1), own, plain(1), Seam(Uncount { from: 1, to: 0 }), Audit];
            let mut program = held.to_vec();
            program.extend([Drop(0), collect, Audit, collect, Seam(Forget(0)), Audit, full]);
            all.push(program);
            // Both are garbage.
            let mut program = held.to_vec();
            program.extend([link(1, 0, 1), Drop(1), Drop(0), collect, full]);
            all.push(program);
        }
        if can.roots {
            let root = [plain(1), own, Seam(Root(0)), Audit, Drop(0), collect, Audit];
            let mut program = root.to_vec();
            program.extend([collect, Seam(Unroot), Audit, full]);
            all.push(program);
        }
        if can.apart {
            all.push(vec![plain(1), Seam(Apart(0)), Audit, collect, Seam(DropApart(0)), Audit]);
            all.push(vec![
                plain(1),
                own,
                Seam(Apart(0)),
                Seam(Apart(0)),
                collect,
                Seam(DropApart(0)),
                Audit,
                Seam(DropApart(0)),
                Drop(0),
                collect,
            ]);
        }
        if can.serial {
            all.push(vec![plain(1), Seam(Serial), link(1, 0, 1), Audit, Drop(1), collect]);
        }
        all.push(vec![
            plain(1),
            own,
            Seam(Untrack(0)),
            Audit,
            collect,
            Seam(TrackAll),
            Audit,
            full,
        ]);
        let untracked = [plain(1), own, Seam(Untrack(0)), Drop(0), collect, Seam(TrackAll), full];
        all.push(untracked.to_vec());
        if can.keeps {
            all.push(vec![plain(1), own, Drop(0), Seam(Keep(true)), collect, Seam(Keep(false))]);
        }
        if M::REQUESTS != 0 || PollWordOf::<M>::PRESENT {
            all.push(vec![Seam(Request), collect, Seam(Request)]);
        }
        if RuntimeStopOf::<M>::PRESENT {
            all.push(vec![plain(1), own, Drop(0), Seam(OwnStop), collect]);
        }
    }
    all
}

impl<M: Specimen> InStop<'_, M> {
    /// The corrections of counts, by object.
    pub(crate) fn adjustments(&self) -> Checked<HashMap<Object, i64>> {
        let mut all = HashMap::new();
        self.call("adjustments", None, |model| {
            AdjustedOf::<M>::adjustments(model, self.world, &mut |object, by| {
                *all.entry(object).or_default() += by
            });
        })?;
        if !AdjustedOf::<M>::PRESENT && !all.is_empty() {
            let text = "it reported corrections, and the model has no part `Adjusted`";
            return finding(Rule::Answers, "adjustments", None, text);
        }
        Ok(all)
    }

    /// Compares uncounted references, roots and serial objects with the shadow. Calls the report
    /// about a wrong traversal, which changes nothing.
    pub(crate) fn inspect_seam(&self) -> Checked<()> {
        let roots = self.roots(true)?;
        for at in self.shadow.alive() {
            let object = self.stopped(at, "serial")?;
            let expected = self.shadow.objects[at].spec.serial;
            let serial = SerialOf::<M>::PRESENT
                && self.call("serial", Some(at), |model| SerialOf::<M>::serial(model, object))?;
            if serial != expected && M::ABILITIES.serial {
                let text = format!("it returned {serial} instead of {expected}");
                return finding(Rule::Answers, "serial", Some(at), text);
            }
            self.call("overvisited", Some(at), |model| ChecksOf::<M>::overvisited(model, object))?;
            self.inspect_uncounted(at, &roots)?;
        }
        let expected = |at: usize| {
            let leads = |holder: usize| self.shadow.objects[holder].uncounted == Some(at);
            self.shadow.objects[at].rooted || self.shadow.alive().into_iter().any(leads)
        };
        if let Some(&at) = roots.iter().find(|&&at| !expected(at)) {
            let text = "it reported the object, and no reference without a count leads to it";
            return finding(Rule::Uncounted, "roots", Some(at), text);
        }
        let forgotten = self
            .shadow
            .alive()
            .into_iter()
            .find(|&at| self.shadow.objects[at].rooted && !roots.contains(&at));
        if let Some(at) = forgotten {
            let text = "it did not report the object, which is a root";
            return finding(Rule::Uncounted, "roots", Some(at), text);
        }
        self.compare_counts("overvisited", Rule::Stop)
    }

    /// The objects of the program that the model reports as roots. `traverses`: the collector
    /// traverses all objects, or none.
    fn roots(&self, traverses: bool) -> Checked<Vec<usize>> {
        let mut reported = Vec::new();
        self.call("roots", None, |model| {
            UncountedOf::<M>::roots(model, self.world, &|_| traverses, &mut |object| {
                reported.push(object)
            });
        })?;
        let mut roots = Vec::new();
        // Others are the model's own.
        for at in reported.iter().filter_map(|object| self.shadow.at(object.address())) {
            if !self.shadow.objects[at].alive {
                let text = format!("it reported {}, which is dead", name_of(at));
                return finding(Rule::Uncounted, "roots", None, text);
            }
            roots.push(at);
        }
        Ok(roots)
    }

    /// The uncounted reference of an object: a traversal or `roots` names it.
    fn inspect_uncounted(&self, at: usize, roots: &[usize]) -> Checked<()> {
        let method = "traverse";
        let object = self.stopped(at, method)?;
        let found = self.traversed(method, Some(at), kit::traverse(self.world, object))?;
        let expected = self.shadow.objects[at].uncounted;
        let mut is_named = expected.is_none_or(|target| roots.contains(&target));
        for address in found.uncounted {
            let found = self.shadow.at(address);
            if !UncountedOf::<M>::PRESENT || found.is_none() || found != expected {
                let text = format!(
                    "it reported an uncounted reference to {}, which the object does not have",
                    found.map_or_else(|| format!("the address {address:#x}"), name_of)
                );
                return finding(Rule::Uncounted, method, Some(at), text);
            }
            is_named = true;
        }
        if !is_named {
            let text = "neither it nor `roots` named the object's uncounted reference";
            return finding(Rule::Uncounted, method, Some(at), text);
        }
        if let Some(target) = expected
            && collects_young::<M>()
            && !self.roots(false)?.contains(&target)
        {
            let text = "it did not report the target of an uncounted reference from an object that \
                        the collector does not traverse, and `COLLECTS_YOUNG` is true";
            return finding(Rule::Uncounted, "roots", Some(target), text);
        }
        Ok(())
    }
}

impl<M: Specimen> Bench<M> {
    /// Runs a step. As in [`step`](Self::step), numbers choose among the objects that the kit
    /// holds.
    pub(crate) fn seam_step(&mut self, step: SeamStep) -> Checked<()> {
        let held = self.shadow.held();
        let pick = |at: usize| held.get(at % held.len().max(1)).copied();
        let name = |at: Option<usize>| at.map_or_else(String::new, name_of);
        match step {
            Uncount { from, to } => {
                let (Some(from), Some(to)) = (pick(from), pick(to)) else { return Ok(()) };
                // The target's death would leave the reference behind.
                if !self.shadow.objects[to].fields.contains(&Some(to)) {
                    return Ok(());
                }
                self.log.push(format!("{} refers to {}, uncounted", name_of(from), name_of(to)));
                self.set_uncounted(from, Some(to))
            }
            Forget(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                self.log.push(format!("{} has no uncounted reference", name_of(at)));
                self.set_uncounted(at, None)
            }
            Root(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                if !self.shadow.objects[at].fields.contains(&Some(at)) {
                    return Ok(());
                }
                self.log.push(format!("{} is a root without a count", name_of(at)));
                self.set_root(at, true)
            }
            Unroot => {
                self.log.push("no roots any more".to_owned());
                self.unroot()
            }
            Apart(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                self.log.push(format!("one more reference to {}, counted apart", name_of(at)));
                let object = self.shadow.objects[at].object;
                self.last = "Specimen::retain_apart";
                self.call(self.last, Some(at), |_, m| M::retain_apart(m, object))?;
                self.shadow.objects[at].apart += 1;
                self.compare(self.last)
            }
            DropApart(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                self.log.push(format!("drop a reference to {}, counted apart", name_of(at)));
                self.drop_apart(at)
            }
            Serial => {
                let spec = ObjectSpec { fields: 1, serial: true, ..ObjectSpec::default() };
                self.alloc_step(spec, UserCode::None)
            }
            Untrack(at) => {
                let at = pick(at);
                self.log.push(format!("untrack {}", name(at)));
                at.map_or(Ok(()), |at| self.track(at, false))
            }
            TrackAll => {
                self.log.push("track all objects".to_owned());
                self.track_all()
            }
            Keep(keeps) => {
                self.log.push(format!("verdicts keep the garbage: {keeps}"));
                self.journal.set_keeps(keeps);
                Ok(())
            }
            Request => self.request(),
            OwnStop => {
                self.log.push("collect inside a stop of the runtime".to_owned());
                self.collect_in_own_stop()
            }
        }
    }

    fn set_uncounted(&mut self, from: usize, to: Option<usize>) -> Checked<()> {
        let object = self.shadow.objects[from].object;
        let target = to.map(|to| self.shadow.objects[to].object);
        self.last = "Specimen::set_uncounted";
        self.call(self.last, Some(from), |_, m| M::set_uncounted(m, object, target))?;
        self.shadow.objects[from].uncounted = to;
        self.compare(self.last)
    }

    fn set_root(&mut self, at: usize, is_root: bool) -> Checked<()> {
        let object = self.shadow.objects[at].object;
        self.last = "Specimen::set_root";
        self.call(self.last, Some(at), |_, m| M::set_root(m, object, is_root))?;
        self.shadow.objects[at].rooted = is_root;
        self.compare(self.last)
    }

    fn unroot(&mut self) -> Checked<()> {
        for at in self.shadow.alive() {
            if self.shadow.objects[at].rooted {
                self.set_root(at, false)?;
            }
        }
        Ok(())
    }

    fn drop_apart(&mut self, at: usize) -> Checked<()> {
        if self.shadow.objects[at].apart == 0 {
            return Ok(());
        }
        let object = self.shadow.objects[at].object;
        self.shadow.objects[at].apart -= 1;
        self.last = "Specimen::drop_apart";
        self.call_user(self.last, Some(at), |_, m| M::drop_apart(m, object))?;
        self.compare(self.last)
    }

    fn track(&mut self, at: usize, is_tracked: bool) -> Checked<()> {
        let object = self.shadow.objects[at].object;
        // SAFETY: rule *counted*: the shadow says that the object is alive, and `compare` has
        // found its memory in use.
        let _ = unsafe { if is_tracked { self.m.track(object) } else { self.m.untrack(object) } };
        self.shadow.objects[at].untracked = !is_tracked;
        Ok(())
    }

    fn track_all(&mut self) -> Checked<()> {
        for at in self.shadow.alive() {
            if self.shadow.objects[at].untracked {
                self.track(at, true)?;
            }
        }
        Ok(())
    }

    /// Before the end of a program: nothing but counted references is left.
    pub(crate) fn undo_seam(&mut self) -> Checked<()> {
        self.journal.set_keeps(false);
        self.unroot()?;
        self.track_all()?;
        for at in self.shadow.alive() {
            if self.shadow.objects[at].uncounted.is_some() {
                self.set_uncounted(at, None)?;
            }
            while self.shadow.objects[at].alive && self.shadow.objects[at].apart > 0 {
                self.drop_apart(at)?;
            }
        }
        Ok(())
    }

    /// Raises a request of the model. It sets the runtime's word, and a safepoint answers it.
    fn request(&mut self) -> Checked<()> {
        self.log.push("raise a request, and reach a safepoint".to_owned());
        // Not `call`: that raises requests of its own.
        let word = |bench: &Self| {
            guarded(|| M::take_word(&bench.m)).or_else(|text| {
                let text = format!("it panicked: {text}");
                finding(Rule::Panics, "Specimen::take_word", None, text)
            })
        };
        let bits = if M::REQUESTS == 0 { COLLECT } else { M::REQUESTS };
        word(self)?;
        self.journal.take_answered();
        self.m.raise(bits);
        if PollWordOf::<M>::PRESENT && !word(self)? {
            let text = "a request was raised, and the runtime's own word was not set";
            return finding(Rule::Requests, "requested", None, text);
        }
        kit::take_collect(&self.m);
        if let Err(text) = guarded(|| self.m.safepoint()) {
            let text = format!("it panicked: {text}");
            return finding(Rule::Panics, "answer", None, text);
        }
        let answered = self.journal.take_answered();
        if answered & M::REQUESTS != M::REQUESTS {
            let text = "the thread was at a safepoint, and a request was not answered";
            return finding(Rule::Requests, "answer", None, text);
        }
        Ok(())
    }

    /// Collects inside a stop that the runtime makes for a reason of its own.
    fn collect_in_own_stop(&mut self) -> Checked<()> {
        let heap = self.heap.clone();
        let stopped = std::cell::Cell::new([true; 2]);
        self.collect_and_compare(false, |m| {
            let model = heap.model();
            if RuntimeStopOf::<M>::stop_runtime(model, m.local()).is_err() {
                stopped.set([false; 2]);
            }
            let before = model.is_stopped();
            if !before {
                stopped.set([false; 2]);
            }
            let found = m.collect_stopped(Collect::full())?;
            stopped.set([before, model.is_stopped()]);
            // The collection borrows the mutator.
            if let Some(m) = ModelMutator::<M>::current() {
                RuntimeStopOf::<M>::resume_runtime(model, m.local());
            }
            Ok(found.finish())
        })?;
        match stopped.get() {
            [true, true] => Ok(()),
            [false, _] => {
                let text = "it returned, and the runtime is not stopped";
                finding(Rule::RuntimeStop, "stop_runtime", None, text)
            }
            [true, false] => {
                let text = "a method that runs in a stop has resumed the runtime";
                finding(Rule::RuntimeStop, "resume_runtime", None, text)
            }
        }
    }
}
