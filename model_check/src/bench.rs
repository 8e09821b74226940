//! One heap under test, with its shadow: each call of the model is followed by a comparison.
//!
//! # Faults without crashes
//!
//! A broken model frees memory that is still in use, or loses references. The bench compares the
//! heap with the shadow after each call, before another call could use what was freed. Three
//! properties of the heap help:
//!
//! * The quarantine is never full. So an address names one object, and memory that was freed too
//!   early stays mapped.
//! * The state byte of an object tells whether the object was freed, without reading the object.
//! * After a finding nothing of the model runs any more: the heap and the mutator are leaked.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use standstill::kit::parts::*;
use standstill::kit::{self, COLLECT};
use standstill::model::{DeadObject, Live, ModelHeap, ModelMutator, Object};
use standstill::safepoint::{self, StopError};
use standstill::{During, Heap, HeapBuilder, Pacing, Stress};

use crate::broken::{CheckReport, Checked, Finding, Rule, exist, finding, guarded, name_of};
use crate::shadow::{Shadow, ShadowObject, ShadowWeak, WeakState};
use crate::specimen::{Journal, JournalEntry, ON_PURPOSE, ObjectSpec, Specimen};
use crate::stop_calls::InStop;

/// Frees before memory is used again: more than any program makes.
pub(crate) const QUARANTINE: usize = 1 << 20;

/// The name of this function in findings.
pub(crate) const METHOD_UPGRADE: &str = "Specimen::upgrade";

/// A builder of heaps for the kit.
pub(crate) fn builder(seed: u64) -> HeapBuilder {
    let stress = Stress::none()
        .verify_counts(true)
        .poison(true)
        .quarantine(QUARANTINE)
        .yield_at_random(seed);
    Heap::builder()
        .name("conformance")
        .reserve(1 << 24)
        .pacing(Pacing::manual())
        .workers(2)
        .serial_below(0)
        .stress(stress)
}

/// See the [module's page](self).
pub(crate) struct Bench<M: Specimen> {
    pub(crate) m: ModelMutator<M>,
    pub(crate) heap: ModelHeap<M>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) shadow: Shadow<M::Weak>,
    /// Failures that the library could only report.
    pub(crate) reported: Arc<Mutex<Vec<(During, String)>>>,
    /// The steps of the program so far, as text.
    pub(crate) log: Vec<String>,
    /// The last call that changed a reference.
    pub(crate) last: &'static str,
    /// The model's verdict has kept garbage.
    pub(crate) kept: bool,
    pub(crate) report: CheckReport,
}

impl<M: Specimen> Bench<M> {
    /// A new heap, with this thread attached.
    pub(crate) fn new(seed: u64) -> Checked<Self> {
        Self::with_builder(builder(seed))
    }

    /// As [`new`](Self::new), with these settings.
    pub(crate) fn with_builder(builder: HeapBuilder) -> Checked<Self> {
        let journal = Arc::new(Journal::default());
        let caught = |method, result: Result<_, _>| {
            result
                .or_else(|text| finding(Rule::Panics, method, None, format!("it panicked: {text}")))
        };
        let model = guarded(|| M::specimen(&journal));
        let model = caught("Specimen::specimen", model)?;
        // Once before the attach, which also calls them, so that a panic has its method's name.
        // A runtime that stops its threads counts the thread there, once.
        let local = guarded(|| {
            if !RuntimeStopOf::<M>::PRESENT {
                drop(ThreadDataOf::<M>::local(&model))
            }
        });
        caught("local", local.map(|()| model))
            .and_then(|model| {
                let private = guarded(|| drop(ThreadDataOf::<M>::private(&model)));
                caught("private", private.map(|()| model))
            })
            .and_then(|model| Self::with_model(model, journal, builder))
    }

    fn with_model(model: M, journal: Arc<Journal>, builder: HeapBuilder) -> Checked<Self> {
        let heap = match builder.build_with(model) {
            Ok(heap) => heap,
            Err(error) => {
                return finding(Rule::Refusal, "HeapBuilder::build_with", None, error.to_string());
            }
        };
        let reported = Arc::new(Mutex::new(Vec::new()));
        let reports = Arc::clone(&reported);
        heap.on_unraisable(move |what| {
            if what.message != ON_PURPOSE {
                reports.lock().push((what.during, what.to_string()));
            }
        });
        let attached = guarded(|| heap.try_attach());
        let m = match attached {
            Ok(Ok(m)) => m,
            Ok(Err(error)) => {
                return finding(Rule::Panics, "attached", None, error.to_string());
            }
            Err(text) => {
                let text = format!("it panicked: {text}");
                return finding(Rule::Panics, "attached", None, text);
            }
        };
        Ok(Self {
            m,
            heap,
            journal,
            shadow: Shadow::default(),
            reported,
            log: Vec::new(),
            last: "Specimen::alloc",
            kept: false,
            report: CheckReport { programs: 1, ..CheckReport::default() },
        })
    }

    /// Calls a method with the world running. The result of a panic is its text.
    pub(crate) fn attempt<R>(
        &self,
        method: &'static str,
        object: Option<usize>,
        f: impl FnOnce(&M, &ModelMutator<M>) -> R,
    ) -> Checked<Result<R, Cow<'static, str>>> {
        let before = kit::moves(&self.heap);
        let id = safepoint::current();
        // A safepoint without a request would pass without a trace.
        self.m.raise(COLLECT);
        let result = guarded(|| f(self.heap.model(), &self.m));
        if safepoint::current() != id {
            return finding(
                Rule::NoSafepoint,
                method,
                object,
                "the thread is not attached any more when it returns",
            );
        }
        kit::take_collect(&self.m);
        let moves = kit::moves(&self.heap);
        for (at, what) in
            ["reached a safepoint", "attached", "stopped the world"].iter().enumerate()
        {
            if moves[at] != before[at] {
                return finding(Rule::NoSafepoint, method, object, format!("it {what}"));
            }
        }
        Ok(result)
    }

    /// Calls a method with the world running. It must not panic.
    pub(crate) fn call<R>(
        &self,
        method: &'static str,
        object: Option<usize>,
        f: impl FnOnce(&M, &ModelMutator<M>) -> R,
    ) -> Checked<R> {
        self.attempt(method, object, f)?
            .or_else(|text| finding(Rule::Panics, method, object, format!("it panicked: {text}")))
    }

    /// Calls a method that runs a finalizer or a callback. These may panic on purpose.
    pub(crate) fn call_user(
        &self,
        method: &'static str,
        object: Option<usize>,
        f: impl FnOnce(&M, &ModelMutator<M>),
    ) -> Checked<()> {
        match self.attempt(method, object, f)? {
            Ok(()) => Ok(()),
            Err(text) if text == ON_PURPOSE => Ok(()),
            Err(text) => finding(Rule::Panics, method, object, format!("it panicked: {text}")),
        }
    }

    /// The state byte of an object.
    pub(crate) fn state(&self, at: usize) -> u8 {
        kit::state(&self.heap, self.shadow.objects[at].object)
    }

    /// Makes an object.
    pub(crate) fn alloc(&mut self, spec: ObjectSpec) -> Checked<usize> {
        let method = "Specimen::alloc";
        let object = match self.call(method, None, |_, m| M::alloc(m, spec))? {
            Ok(object) => object,
            Err(error) => return finding(Rule::Refusal, method, None, error.to_string()),
        };
        let at = self.add(object, spec)?;
        self.compare(method)?;
        Ok(at)
    }

    /// Adds a new object to the shadow.
    pub(crate) fn add(&mut self, object: Object, spec: ObjectSpec) -> Checked<usize> {
        let at = self.shadow.objects.len();
        let method = "Specimen::alloc";
        if !self.m.owns(object) {
            let text = "it returned an address outside of the heap";
            return finding(Rule::Answers, method, None, text);
        }
        if self.shadow.at(object.address()).is_some() {
            let text = "it returned the address of another object";
            return finding(Rule::Memory, method, None, text);
        }
        let bits = kit::state(&self.heap, object);
        if bits & (kit::LIVE | kit::TRACKED) != kit::LIVE | kit::TRACKED {
            let text = "the object is not published as a tracked one: see `ModelMutator::publish`";
            return finding(Rule::Answers, method, None, text);
        }
        // SAFETY: rule *counted*: the state says that the object is alive, and the kit has the
        // reference that `alloc` returned.
        let live = unsafe { Live::new(object) };
        let name = self.call("type_name", None, |model, _| model.type_name(live).to_string())?;
        self.shadow.objects.push(ShadowObject {
            object,
            spec,
            type_name: name,
            fields: vec![None; spec.fields],
            held: 1,
            later: 0,
            taken: 0,
            apart: 0,
            uncounted: None,
            rooted: false,
            untracked: false,
            alive: true,
            finalized: false,
        });
        self.report.objects += 1;
        Ok(at)
    }

    /// Makes a weak reference. `None`: the model makes none for this object.
    pub(crate) fn downgrade(&mut self, target: usize, callback: bool) -> Checked<Option<usize>> {
        let object = self.shadow.objects[target].object;
        let ticket = callback.then_some(self.shadow.weak.len() as u64);
        let method = "Specimen::downgrade";
        let made = self.call(method, Some(target), |_, m| M::downgrade(m, object, ticket))?;
        self.compare(method)?;
        let Some(weak) = made else { return Ok(None) };
        let state = WeakState::Whole;
        self.shadow.weak.push(ShadowWeak { weak, target, callback, called: false, state });
        Ok(Some(self.shadow.weak.len() - 1))
    }

    /// Upgrades a weak reference, and compares the result with the shadow. The kit gets the
    /// reference.
    pub(crate) fn upgrade(&mut self, at: usize, after: &'static str) -> Checked<bool> {
        let weak = &self.shadow.weak[at];
        let (target, expected) = (weak.target, weak.state);
        let method = METHOD_UPGRADE;
        let found = self.call(method, Some(target), |_, m| M::upgrade(m, &weak.weak))?;
        let Some(object) = found else {
            if expected == WeakState::Whole {
                let text = "a weak reference does not lead to its target, which is alive and was \
                            not cleared";
                return finding(Rule::Weak, method, Some(target), text);
            }
            return Ok(false);
        };
        if expected == WeakState::Cleared || !self.shadow.objects[target].alive {
            let text = match after {
                METHOD_UPGRADE => "a weak reference to it was upgraded after its death".to_owned(),
                _ => format!("a weak reference to it was upgraded after `{after}`"),
            };
            return finding(Rule::Weak, after, Some(target), text);
        }
        if object != self.shadow.objects[target].object {
            let text = "a weak reference leads to another object than its target";
            return finding(Rule::Weak, method, Some(target), text);
        }
        self.shadow.objects[target].held += 1;
        self.compare(method)?;
        Ok(true)
    }

    /// Takes over what finalizers and callbacks have written into the journal. `may_run` tells
    /// whether the finalizer of an object may run now, `may_call` the same of a callback.
    pub(crate) fn absorb(
        &mut self,
        method: &'static str,
        may_run: impl Fn(&Shadow<M::Weak>, usize) -> bool,
        may_call: impl Fn(&Shadow<M::Weak>, usize) -> bool,
    ) -> Checked<usize> {
        let entries = self.journal.take();
        let count = entries.len();
        for entry in entries {
            match entry {
                JournalEntry::Finalized { address, rises } => {
                    let Some(at) = self.shadow.at(address) else {
                        let text = "`Journal::finalized` got an address that is no object's";
                        return finding(Rule::Finalizer, method, None, text);
                    };
                    let object = &mut self.shadow.objects[at];
                    if std::mem::replace(&mut object.finalized, true) {
                        let text = "its finalizer ran a second time";
                        return finding(Rule::Finalizer, method, Some(at), text);
                    }
                    object.held += usize::from(rises);
                    if !object.spec.finalizer || !may_run(&self.shadow, at) {
                        let text = "its finalizer ran, although the object has none or is still \
                                    reachable";
                        return finding(Rule::Finalizer, method, Some(at), text);
                    }
                }
                JournalEntry::CalledBack { ticket } => {
                    let at = ticket as usize;
                    let Some(weak) = self.shadow.weak.get_mut(at).filter(|weak| weak.callback)
                    else {
                        let text = "`Journal::called_back` got a ticket that the kit never gave";
                        return finding(Rule::Weak, method, None, text);
                    };
                    let target = weak.target;
                    if std::mem::replace(&mut weak.called, true) {
                        let text = "the callback of a weak reference to it was called twice";
                        return finding(Rule::Weak, method, Some(target), text);
                    }
                    if !may_call(&self.shadow, at) {
                        let text = "the callback of a weak reference to it was called, although it \
                                    is reachable";
                        return finding(Rule::Weak, method, Some(target), text);
                    }
                }
            }
        }
        Ok(count)
    }

    /// After a call that could let objects die: compares the objects of the heap with the shadow.
    pub(crate) fn compare(&mut self, method: &'static str) -> Checked<()> {
        // Whether an object may die now is decided below.
        self.absorb(method, |_, _| true, |_, _| true)?;
        self.shadow.reap();
        self.lives(method, Rule::Memory)
    }

    /// Compares the objects of the heap with the shadow.
    pub(crate) fn lives(&mut self, method: &'static str, early: Rule) -> Checked<()> {
        while let Some(at) =
            self.shadow.alive().into_iter().find(|&at| self.state(at) & kit::LIVE == 0)
        {
            let count = self.shadow.count(at);
            if count > self.shadow.objects[at].later {
                let text = format!("its memory was freed while {} to it", exist(count));
                return finding(early, method, Some(at), text);
            }
            // All its references were dropped with `drop_later`, and the model did it by now.
            self.shadow.remove(at);
            self.shadow.reap();
        }
        self.freed_once(method)?;
        if M::ABILITIES.late {
            return Ok(());
        }
        let dead = (0..self.shadow.objects.len())
            .find(|&at| !self.shadow.objects[at].alive && self.state(at) & kit::LIVE != 0);
        match dead {
            Some(at) => {
                let text = "no reference to it is left, and its memory was not freed";
                finding(Rule::Memory, method, Some(at), text)
            }
            None => Ok(()),
        }
    }

    /// Checks that no memory was freed twice, or written to after it was freed.
    fn freed_once(&self, method: &'static str) -> Checked<()> {
        match kit::damaged(&self.heap) {
            Some((address, text)) => finding(Rule::Memory, method, self.shadow.at(address), text),
            None => Ok(()),
        }
    }

    /// Runs `f` in a stop. The merge and the comparison of all counts come first. Afterwards
    /// objects that the merge has found dead are destroyed.
    pub(crate) fn stop<R>(
        &mut self,
        f: impl FnOnce(&mut InStop<'_, M>) -> Checked<R>,
    ) -> Checked<R> {
        let last = self.last;
        let mut dead: Vec<DeadObject> = Vec::new();
        let world = match self.m.stop() {
            Ok(world) => world,
            Err(StopError::Refused { reason }) => {
                return finding(Rule::RuntimeStop, "stop_runtime", None, reason);
            }
            Err(error) => return finding(Rule::NoSafepoint, last, None, error.to_string()),
        };
        if RuntimeStopOf::<M>::PRESENT && !self.heap.model().is_stopped() {
            let text = "it returned, and the runtime is not stopped";
            return finding(Rule::RuntimeStop, "stop_runtime", None, text);
        }
        let mut stop = InStop::new(&self.heap, &world, &mut self.shadow, last);
        stop.merge(&mut dead)?;
        stop.compare_counts("count", Rule::Counts)?;
        let result = f(&mut stop)?;
        drop(world);
        if RuntimeStopOf::<M>::PRESENT && self.heap.model().is_stopped() {
            let text = "it returned, and the runtime is still stopped";
            return finding(Rule::RuntimeStop, "resume_runtime", None, text);
        }
        self.call("resumed", None, |model, m| SplitCountsOf::<M>::resumed(model, m))?;
        self.destroy(dead)?;
        Ok(result)
    }

    /// Runs `f` in a stop without a merge, after a call of `method`.
    pub(crate) fn in_stop<R>(
        &mut self,
        method: &'static str,
        f: impl FnOnce(&mut InStop<'_, M>) -> Checked<R>,
    ) -> Checked<R> {
        match self.m.stop() {
            Ok(world) => f(&mut InStop::new(&self.heap, &world, &mut self.shadow, method)),
            Err(error) => finding(Rule::NoSafepoint, method, None, error.to_string()),
        }
    }

    /// Destroys the objects that a merge has found.
    fn destroy(&mut self, dead: Vec<DeadObject>) -> Checked<()> {
        let method = "destroy_merged";
        for object in dead {
            let Some(at) = self.shadow.at(object.object().address()) else { continue };
            // SAFETY: rule *zero*: the object waits for its destruction, which is next.
            unsafe { kit::unset_state(&self.heap, object.object(), kit::DYING) };
            self.call(method, Some(at), |model, m| {
                SplitCountsOf::<M>::destroy_merged(model, object, m)
            })?;
            self.absorb(method, |_, _| true, |_, _| true)?;
        }
        self.compare(method)
    }

    /// Stops, compares every count, and traverses every object.
    pub(crate) fn audit(&mut self) -> Checked<()> {
        self.stop(|stop| {
            stop.inspect()?;
            stop.inspect_seam()
        })
    }

    /// Drops everything, and expects that nothing is left.
    pub(crate) fn wind_up(&mut self) -> Checked<()> {
        self.undo_seam()?;
        self.drop_all()?;
        for _ in 0..3 {
            self.audit()?;
            if self.shadow.garbage().is_empty() {
                break;
            }
            self.collect_by_heap(false)?;
            // Finalizers may have brought objects back.
            self.drop_all()?;
        }
        self.release_late()?;
        // These stay.
        let stays = self.shadow.reach(self.shadow.alive().into_iter().filter(|&at| {
            let spec = self.shadow.objects[at].spec;
            spec.immortal || spec.legacy
        }));
        let left = (0..self.shadow.objects.len())
            .find(|&at| !self.kept && self.state(at) & kit::LIVE != 0 && !stays[at]);
        if let Some(at) = left {
            let text = "all references were dropped, all garbage was collected, and its memory was \
                        not freed";
            return finding(Rule::Memory, "release", Some(at), text);
        }
        match self.reported.lock().first() {
            Some((_, text)) => finding(Rule::Panics, "finalize", None, text.clone()),
            None => Ok(()),
        }
    }

    /// Drops all references of the kit, also those that finalizers add meanwhile.
    fn drop_all(&mut self) -> Checked<()> {
        loop {
            let mut held = self.shadow.held().into_iter();
            let Some(at) = held.find(|&at| !self.shadow.objects[at].spec.immortal) else {
                return Ok(());
            };
            self.drop_ref(at)?;
        }
    }

    /// Ends the mutator and the heap.
    pub(crate) fn finish(self) -> Checked<CheckReport> {
        let Self { m, heap, shadow, report, .. } = self;
        let Shadow { weak, .. } = shadow;
        let dropped = guarded(|| drop(weak));
        let ended = dropped.and_then(|()| guarded(|| drop(m)));
        if let Err(text) = ended {
            let text = format!("it panicked: {text}");
            return finding(Rule::Panics, "ending", None, text);
        }
        match guarded(|| drop(heap)) {
            Ok(()) => Ok(report),
            Err(text) => finding(Rule::Memory, "ending", None, text),
        }
    }

    /// Gives a model that frees memory late the stops that it waits for.
    fn release_late(&mut self) -> Checked<()> {
        for _ in 0..4 {
            self.call("prepare", None, |model, m| SplitCountsOf::<M>::prepare(model, m))?;
            self.stop(|_| Ok(()))?;
            let waits = self
                .call("after_clear", None, |model, m| SplitCountsOf::<M>::after_clear(model, m))?;
            self.compare("after_clear")?;
            if !waits && !M::ABILITIES.late {
                break;
            }
        }
        Ok(())
    }

    /// Drops a reference of the kit.
    pub(crate) fn drop_ref(&mut self, at: usize) -> Checked<()> {
        let method = "Specimen::drop_ref";
        let object = self.shadow.objects[at].object;
        self.shadow.objects[at].held -= 1;
        self.last = method;
        // A finalizer may run here, and panic.
        self.call_user(method, Some(at), |_, m| M::drop_ref(m, object))?;
        self.compare(method)
    }

    /// The finding, with the name of the object's type.
    pub(crate) fn type_of(&self, finding: &Finding) -> Option<String> {
        finding.object.map(|at| {
            let name = &self.shadow.objects[at].type_name;
            format!("`{name}` ({} in the program)", name_of(at))
        })
    }
}
