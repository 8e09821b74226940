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
use std::collections::HashSet;
use std::sync::Arc;

use crate::base::event::{guarded, panic_message};
use crate::base::stress::{Step, Stress};
use crate::base::sync::Mutex;
use crate::collect::scope::state_of;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::{COLLECT, ModelMutator};
use crate::heap::policy::Pacing;
use crate::model_check::broken::{CheckReport, Checked, Finding, Rule, exist, finding, name_of};
use crate::model_check::shadow::{Shadow, ShadowObject, ShadowWeak, WeakState};
use crate::model_check::specimen::{Journal, JournalEntry, ON_PURPOSE, ObjectSpec, Specimen};
use crate::model_check::stop_calls::InStop;
use crate::object::live::{ClaimRef, DeadObject};
use crate::object::state;
use crate::object::type_info::Object;
use crate::safepoint::StopError;
use crate::typed::builder::HeapBuilder;
use crate::typed::heap::Heap;

/// Frees before memory is used again: more than any program makes.
pub(super) const QUARANTINE: usize = 1 << 20;

/// The name of this function in findings.
pub(super) const METHOD_UPGRADE: &str = "Specimen::upgrade";

/// A builder of heaps for the kit.
pub(super) fn builder(seed: u64) -> HeapBuilder {
    let stress = Stress::none().poison(true).quarantine(QUARANTINE).yield_at_random(seed);
    Heap::builder()
        .name("conformance")
        .reserve(1 << 27)
        .pacing(Pacing::manual())
        .workers(2)
        .serial_below(0)
        .stress(stress)
}

/// See the [module's page](self).
pub(super) struct Bench<M: Specimen> {
    pub(super) m: ModelMutator<M>,
    pub(super) heap: ModelHeap<M>,
    pub(super) journal: Arc<Journal>,
    pub(super) shadow: Shadow<M::Weak>,
    /// Failures that the library could only report.
    pub(super) reported: Arc<Mutex<Vec<String>>>,
    /// The steps of the program so far, as text.
    pub(super) log: Vec<String>,
    /// The last call that changed a reference.
    pub(super) last: &'static str,
    /// The model's verdict has kept garbage.
    pub(super) kept: bool,
    pub(super) report: CheckReport,
}

impl<M: Specimen> Bench<M> {
    /// A new heap, with this thread attached.
    pub(super) fn new(seed: u64) -> Checked<Self> {
        Self::with_builder(builder(seed))
    }

    /// As [`new`](Self::new), with these settings.
    pub(super) fn with_builder(builder: HeapBuilder) -> Checked<Self> {
        let journal = Arc::new(Journal::default());
        let caught = |method, result: Result<_, _>| {
            result.or_else(|payload| {
                let text = panic_message(payload);
                finding(Rule::Panics, method, None, format!("it panicked: {text}"))
            })
        };
        let model = guarded(|| M::specimen(&journal));
        let model = caught("Specimen::specimen", model)?;
        // Once before the attach, which also calls them, so that a panic has its method's name.
        // A runtime that stops its threads counts the thread there, once.
        let local = guarded(|| {
            if !M::STOPS_RUNTIME {
                drop(model.local())
            }
        });
        caught("local", local.map(|()| model))
            .and_then(|model| {
                let private = guarded(|| drop(model.private()));
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
        heap.0.core.hooks.on_unraisable(crate::base::event::Hook::new(Arc::new(
            move |what: &crate::base::report::Unraisable| {
                if what.message != ON_PURPOSE {
                    reports.lock().push(what.to_string());
                }
            },
        )));
        let attached = guarded(|| heap.try_attach());
        let m = match attached {
            Ok(Ok(m)) => m,
            Ok(Err(error)) => {
                return finding(Rule::Panics, "attached", None, error.to_string());
            }
            Err(payload) => {
                let text = format!("it panicked: {}", panic_message(payload));
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

    /// How often this thread was at a safepoint, attached, or stopped the world.
    fn moves(&self) -> [u64; 3] {
        [Step::Safepoint, Step::Attach, Step::Stop]
            .map(|step| self.heap.0.core.under.as_ref().map_or(0, |strain| strain.reached(step)))
    }

    /// Calls a method with the world running. The result of a panic is its text.
    pub(super) fn attempt<R>(
        &self,
        method: &'static str,
        object: Option<usize>,
        f: impl FnOnce(&M, &ModelMutator<M>) -> R,
    ) -> Checked<Result<R, Cow<'static, str>>> {
        let before = self.moves();
        let id = self.m.id();
        // A safepoint without a request would pass without a trace.
        self.m.raise(COLLECT);
        let result = guarded(|| f(self.heap.model(), &self.m));
        if crate::safepoint::current() != id {
            return finding(
                Rule::NoSafepoint,
                method,
                object,
                "the thread is not attached any more when it returns",
            );
        }
        self.m.take_collect();
        let moves = self.moves();
        for (at, what) in
            ["reached a safepoint", "attached", "stopped the world"].iter().enumerate()
        {
            if moves[at] != before[at] {
                return finding(Rule::NoSafepoint, method, object, format!("it {what}"));
            }
        }
        Ok(result.map_err(panic_message))
    }

    /// Calls a method with the world running. It must not panic.
    pub(super) fn call<R>(
        &self,
        method: &'static str,
        object: Option<usize>,
        f: impl FnOnce(&M, &ModelMutator<M>) -> R,
    ) -> Checked<R> {
        self.attempt(method, object, f)?
            .or_else(|text| finding(Rule::Panics, method, object, format!("it panicked: {text}")))
    }

    /// Calls a method that runs a finalizer or a callback. These may panic on purpose.
    pub(super) fn call_user(
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
    pub(super) fn state(&self, at: usize) -> u8 {
        state_of(&self.heap.0.core.space, self.shadow.objects[at].object).get()
    }

    /// The collection's reference to an object, which `claim_ref` has added.
    pub(super) fn claim(&self, at: usize) -> ClaimRef {
        debug_assert_eq!(self.shadow.objects[at].claimed, 1);
        // SAFETY: rule *counted*: the shadow says that a call of `claim_ref` added the reference,
        // and the counts were compared after it.
        unsafe { ClaimRef::new(self.shadow.objects[at].object) }
    }

    /// Makes an object.
    pub(super) fn alloc(&mut self, spec: ObjectSpec) -> Checked<usize> {
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
    pub(super) fn add(&mut self, object: Object, spec: ObjectSpec) -> Checked<usize> {
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
        let bits = state_of(&self.heap.0.core.space, object).get();
        if bits & (state::LIVE | state::TRACKED) != state::LIVE | state::TRACKED {
            let text = "the object is not published as a tracked one: see `ModelMutator::publish`";
            return finding(Rule::Answers, method, None, text);
        }
        // SAFETY: rule *counted*: the state says that the object is alive, and the kit has the
        // reference that `alloc` returned.
        let live = unsafe { crate::object::live::Live::new(object) };
        let name = self.call("type_name", None, |model, _| model.type_name(live).to_string())?;
        self.shadow.objects.push(ShadowObject {
            object,
            spec,
            type_name: name,
            fields: vec![None; spec.fields],
            held: 1,
            later: 0,
            claimed: 0,
            taken: 0,
            apart: 0,
            uncounted: None,
            rooted: false,
            untracked: false,
            alive: true,
            dying: false,
            finalized: false,
        });
        self.report.objects += 1;
        Ok(at)
    }

    /// Makes a weak reference. `None`: the model makes none for this object.
    pub(super) fn downgrade(&mut self, target: usize, callback: bool) -> Checked<Option<usize>> {
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
    pub(super) fn upgrade(&mut self, at: usize, after: &'static str) -> Checked<bool> {
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
    pub(super) fn absorb(
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
    pub(super) fn compare(&mut self, method: &'static str) -> Checked<()> {
        // Whether an object may die now is decided below.
        self.absorb(method, |_, _| true, |_, _| true)?;
        self.shadow.reap();
        self.lives(method, Rule::Memory)
    }

    /// Compares the objects of the heap with the shadow.
    pub(super) fn lives(&mut self, method: &'static str, early: Rule) -> Checked<()> {
        while let Some(at) =
            self.shadow.alive().into_iter().find(|&at| self.state(at) & state::LIVE == 0)
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
            .find(|&at| !self.shadow.objects[at].alive && self.state(at) & state::LIVE != 0);
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
        let Some(quarantine) = self.heap.0.core.space.quarantine() else { return Ok(()) };
        let mut seen = HashSet::new();
        for cell in quarantine.cells() {
            let address = cell.start().as_ptr().addr();
            if !seen.insert(address) {
                let text = "its memory was freed twice";
                return finding(Rule::Memory, method, self.shadow.at(address), text);
            }
            // SAFETY: rule *mapped*: a cell in quarantine is accessible, and no correct code
            // writes there.
            if let Err(text) = unsafe { quarantine.check(cell, 0) } {
                return finding(Rule::Memory, method, self.shadow.at(address), text);
            }
        }
        Ok(())
    }

    /// Runs `f` in a stop. The merge and the comparison of all counts come first. Afterwards
    /// objects that the merge has found dead are destroyed.
    pub(super) fn stop<R>(
        &mut self,
        f: impl FnOnce(&mut InStop<'_, M>) -> Checked<R>,
    ) -> Checked<R> {
        let last = self.last;
        let mut dead: Vec<DeadObject> = Vec::new();
        let world = match self.m.stop_here() {
            Ok(world) => world,
            Err(StopError::Refused { reason }) => {
                return finding(Rule::RuntimeStop, "stop_runtime", None, reason);
            }
            Err(error) => return finding(Rule::NoSafepoint, last, None, error.to_string()),
        };
        if M::STOPS_RUNTIME && !self.heap.model().is_stopped() {
            let text = "it returned, and the runtime is not stopped";
            return finding(Rule::RuntimeStop, "stop_runtime", None, text);
        }
        let mut stop = InStop::new(&world, &mut self.shadow, last);
        stop.merge(&mut dead)?;
        stop.compare_counts("count", Rule::Counts)?;
        let result = f(&mut stop)?;
        drop(world);
        if M::STOPS_RUNTIME && self.heap.model().is_stopped() {
            let text = "it returned, and the runtime is still stopped";
            return finding(Rule::RuntimeStop, "resume_runtime", None, text);
        }
        self.call("resumed", None, |model, m| model.resumed(m))?;
        self.destroy(dead)?;
        Ok(result)
    }

    /// The model may keep objects in `judge`: takes over the references that it has added.
    pub(super) fn take_over_judged(&mut self, objects: &[usize]) -> Checked<()> {
        match self.m.stop_here() {
            Ok(world) => InStop::new(&world, &mut self.shadow, "judge").take_over_judged(objects),
            Err(error) => finding(Rule::NoSafepoint, "judge", None, error.to_string()),
        }
    }

    /// Destroys the objects that a merge has found.
    fn destroy(&mut self, dead: Vec<DeadObject>) -> Checked<()> {
        let method = "destroy_merged";
        for object in dead {
            let Some(at) = self.shadow.at(object.object().address()) else { continue };
            state_of(&self.heap.0.core.space, object.object()).unset(state::DYING);
            self.call(method, Some(at), |model, m| model.destroy_merged(object, m))?;
            self.absorb(method, |_, _| true, |_, _| true)?;
            self.shadow.objects[at].dying = false;
            self.compare(method)?;
        }
        Ok(())
    }

    /// Stops, compares every count, and traverses every object.
    pub(super) fn audit(&mut self) -> Checked<()> {
        self.stop(|stop| stop.inspect())
    }

    /// Drops everything, and expects that nothing is left.
    pub(super) fn wind_up(&mut self) -> Checked<()> {
        self.undo_seam()?;
        self.drop_all()?;
        for _ in 0..3 {
            self.collect_by_hand(true)?;
            // Finalizers may have brought objects back.
            self.drop_all()?;
            if self.shadow.garbage().is_empty() {
                break;
            }
        }
        self.release_late()?;
        // These stay.
        let stays = self.shadow.reach(self.shadow.alive().into_iter().filter(|&at| {
            let spec = self.shadow.objects[at].spec;
            spec.immortal || spec.legacy
        }));
        let left = (0..self.shadow.objects.len())
            .find(|&at| !self.kept && self.state(at) & state::LIVE != 0 && !stays[at]);
        if let Some(at) = left {
            let text = "all references were dropped, all garbage was collected, and its memory was \
                        not freed";
            return finding(Rule::Memory, "release", Some(at), text);
        }
        match self.reported.lock().first() {
            Some(text) => finding(Rule::Panics, "finalize", None, text.clone()),
            None => Ok(()),
        }
    }

    /// Drops all references of the kit.
    fn drop_all(&mut self) -> Checked<()> {
        for at in self.shadow.held() {
            while self.shadow.objects[at].held > 0 && !self.shadow.objects[at].spec.immortal {
                self.drop_ref(at)?;
            }
        }
        Ok(())
    }

    /// Ends the mutator and the heap.
    pub(super) fn finish(self) -> Checked<CheckReport> {
        let Self { m, heap, shadow, report, .. } = self;
        let Shadow { weak, .. } = shadow;
        let dropped = guarded(|| drop(weak));
        let ended = dropped.and_then(|()| guarded(|| drop(m)));
        if let Err(payload) = ended {
            let text = format!("it panicked: {}", panic_message(payload));
            return finding(Rule::Panics, "ending", None, text);
        }
        match guarded(|| drop(heap)) {
            Ok(()) => Ok(report),
            Err(payload) => {
                finding(Rule::Memory, "ending", None, panic_message(payload).into_owned())
            }
        }
    }

    /// Gives a model that frees memory late the stops that it waits for.
    fn release_late(&mut self) -> Checked<()> {
        for _ in 0..4 {
            self.call("prepare", None, |model, m| model.prepare(m))?;
            self.stop(|_| Ok(()))?;
            let waits = self.call("after_clear", None, |model, m| model.after_clear(m))?;
            self.compare("after_clear")?;
            if !waits && !M::ABILITIES.late {
                break;
            }
        }
        Ok(())
    }

    /// Drops a reference of the kit.
    pub(super) fn drop_ref(&mut self, at: usize) -> Checked<()> {
        let method = "Specimen::drop_ref";
        let object = self.shadow.objects[at].object;
        self.shadow.objects[at].held -= 1;
        self.last = method;
        // A finalizer may run here, and panic.
        self.call_user(method, Some(at), |_, m| M::drop_ref(m, object))?;
        self.compare(method)
    }

    /// The finding, with the name of the object's type.
    pub(super) fn type_of(&self, finding: &Finding) -> Option<String> {
        finding.object.map(|at| {
            let name = &self.shadow.objects[at].type_name;
            format!("`{name}` ({} in the program)", name_of(at))
        })
    }
}
