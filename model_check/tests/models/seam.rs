//! A model of a runtime that counts, polls and stops in its own way, and faults that change one
//! thing each.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use standstill::OutOfMemory;
use standstill::model::{
    Adjusted, Checks, ClaimRef, Count, Found, Live, ModelMutator, Object, ObjectModel, PollWord,
    Reserved, RuntimeStop, Serial, Stopped, ThreadData, Threads, Tracer, Uncounted, Verdict,
    Verdicts, World,
};
use standstill::safepoint::ThreadId;
use standstill_model_check::{
    Abilities, Broken, Check, CheckReport, Journal, ObjectSpec, Rule, Specimen,
};

/// The parts that this model has, and the other model of these tests has not.
pub(crate) const PARTS: [&str; 8] = [
    "uncounted references",
    "roots by callback",
    "counts in several places",
    "serial objects",
    "verdicts that keep garbage",
    "requests",
    "a poll word of the runtime",
    "stops of the runtime",
];

/// The one thing that the model does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    UncountedIsReportedAsCounted,
    UncountedIsNotReported,
    UncountedIsNotForgotten,
    RootIsNotReported,
    RootIsNotForgotten,
    RootsOfOldObjectsAreNotReported,
    AdjustmentsAreNotReported,
    AdjustmentsHaveTheWrongSign,
    SerialLies,
    OvervisitedPanics,
    OvervisitedLowersCounts,
    JudgeClears,
    RequestedDoesNothing,
    AnswerDoesNothing,
    AnswerPanics,
    StopsNothing,
    StopRefuses,
    ResumesNothing,
    TraverseResumes,
}

/// Each fault, with the rule and the method that the kit names.
const FAULTS: &[(Fault, Rule, &str)] = &[
    (Fault::UncountedIsReportedAsCounted, Rule::Traversal, "traverse"),
    (Fault::UncountedIsNotReported, Rule::Uncounted, "traverse"),
    (Fault::UncountedIsNotForgotten, Rule::Uncounted, "traverse"),
    (Fault::RootIsNotReported, Rule::Uncounted, "roots"),
    (Fault::RootIsNotForgotten, Rule::Uncounted, "roots"),
    (Fault::AdjustmentsAreNotReported, Rule::Counts, "adjustments"),
    (Fault::AdjustmentsHaveTheWrongSign, Rule::Counts, "adjustments"),
    (Fault::SerialLies, Rule::Answers, "serial"),
    (Fault::OvervisitedPanics, Rule::Panics, "overvisited"),
    (Fault::OvervisitedLowersCounts, Rule::Stop, "overvisited"),
    (Fault::JudgeClears, Rule::Answers, "judge"),
    (Fault::RequestedDoesNothing, Rule::Requests, "requested"),
    (Fault::AnswerDoesNothing, Rule::Requests, "answer"),
    (Fault::AnswerPanics, Rule::Panics, "answer"),
    (Fault::StopsNothing, Rule::RuntimeStop, "stop_runtime"),
    (Fault::StopRefuses, Rule::RuntimeStop, "stop_runtime"),
    (Fault::ResumesNothing, Rule::RuntimeStop, "resume_runtime"),
    (Fault::TraverseResumes, Rule::RuntimeStop, "resume_runtime"),
];

/// The fault of the models that are made now.
static FAULT: Mutex<Fault> = Mutex::new(Fault::None);
/// One check at a time.
static ONE: Mutex<()> = Mutex::new(());

fn checked<const YOUNG: bool>(fault: Fault, check: &Check) -> Result<CheckReport, Broken> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    *FAULT.lock().unwrap() = fault;
    check.run::<Parts<YOUNG>>()
}

#[test]
fn a_correct_model_with_a_seam_passes() {
    for report in [
        checked::<false>(Fault::None, &crate::programs(100)).unwrap(),
        checked::<true>(Fault::None, &crate::programs(100)).unwrap(),
    ] {
        println!("{report}");
        assert!(PARTS.iter().all(|part| !report.skipped.contains(part)));
    }
}

#[test]
fn each_fault_of_a_seam_is_named() {
    let check = Check::new().programs(10).threads(1);
    let mut wrong = Vec::new();
    for (fault, rule, method) in FAULTS {
        match checked::<false>(*fault, &check) {
            Ok(_) => wrong.push(format!("{fault:?}: not found")),
            Err(broken) if (broken.rule, broken.method) == (*rule, *method) => {
                println!("{fault:?}\n{broken}\n");
            }
            Err(broken) => wrong.push(format!("{fault:?}\n{broken}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    // Without young collections the collector traverses all objects, and the fault is none.
    let fault = Fault::RootsOfOldObjectsAreNotReported;
    assert!(checked::<false>(fault, &check).is_ok());
    let broken = checked::<true>(fault, &check).unwrap_err();
    assert_eq!((broken.rule, broken.method), (Rule::Uncounted, "roots"), "{broken}");
}

#[derive(Default)]
struct Running {
    running: usize,
    stopping: bool,
}

/// A runtime that stops its threads itself.
#[derive(Default)]
struct Runtime {
    threads: Mutex<Running>,
    changed: Condvar,
}

impl Runtime {
    fn leave(&self) {
        self.threads.lock().unwrap().running -= 1;
        self.changed.notify_all();
    }

    fn comes_back(&self) -> bool {
        let mut threads = self.threads.lock().unwrap();
        threads.running += usize::from(!threads.stopping);
        !threads.stopping
    }

    fn wait(&self) {
        let threads = self.threads.lock().unwrap();
        drop(self.changed.wait_while(threads, |threads| threads.stopping).unwrap());
    }

    /// Stops all other threads. While it waits for another stop, this thread does not run.
    fn stop(&self) {
        self.leave();
        let threads = self.threads.lock().unwrap();
        let mut threads = self.changed.wait_while(threads, |threads| threads.stopping).unwrap();
        threads.running += 1;
        threads.stopping = true;
        drop(self.changed.wait_while(threads, |threads| threads.running > 1).unwrap());
    }

    fn resume(&self) {
        self.threads.lock().unwrap().stopping = false;
        self.changed.notify_all();
    }
}

struct Header {
    count: AtomicI64,
    serial: bool,
    /// A counted reference.
    field: AtomicPtr<u8>,
    /// A reference without a count.
    bare: AtomicPtr<u8>,
}

/// See the [module's page](self). `YOUNG`: it has young collections.
struct Parts<const YOUNG: bool> {
    fault: Fault,
    journal: Arc<Journal>,
    alive: Mutex<HashSet<Object>>,
    roots: Mutex<HashSet<Object>>,
    /// The references that the headers do not count.
    apart: Mutex<HashMap<Object, i64>>,
    runtime: Runtime,
}

type Mutator<const YOUNG: bool> = ModelMutator<Parts<YOUNG>>;

fn header<'a>(object: Object) -> &'a Header {
    // SAFETY: an object starts with its header, and its memory stays mapped.
    unsafe { object.as_ptr().cast().as_ref() }
}

fn target(slot: &AtomicPtr<u8>) -> Option<Object> {
    NonNull::new(slot.load(Relaxed)).map(Object::new)
}

fn swap(slot: &AtomicPtr<u8>, new: Option<Object>) -> Option<Object> {
    let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
    NonNull::new(slot.swap(new, AcqRel)).map(Object::new)
}

impl<const YOUNG: bool> Parts<YOUNG> {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn drop_one(&self, object: Object, m: &Mutator<YOUNG>) {
        let mut next = Some(object);
        while let Some(object) = next.take() {
            let left = header(object).count.fetch_sub(1, AcqRel) - 1;
            if left + self.apart.lock().unwrap().get(&object).copied().unwrap_or(0) != 0 {
                continue;
            }
            next = swap(&header(object).field, None);
            self.alive.lock().unwrap().remove(&object);
            self.roots.lock().unwrap().remove(&object);
            // SAFETY: rule 2: no reference is left.
            unsafe { m.free(object.as_ptr()) };
        }
    }
}

// SAFETY: the seven rules, without a fault: a count is the header's number and the table's;
// `drop_one` frees at 0; attached threads lower counts; fields are counted; nothing is pending; no
// method reaches a safepoint; `traverse` and `roots` name the references without a count.
unsafe impl<const YOUNG: bool> ObjectModel for Parts<YOUNG> {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(header(*object).count.load(Relaxed))
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        if self.is(Fault::TraverseResumes) {
            self.runtime.resume();
        }
        if let Some(target) = target(&header(*object).field) {
            // SAFETY: rule 4: a field's reference is counted.
            unsafe { tracer.visit_object(target) };
        }
        if let Some(target) = target(&header(*object).bare) {
            match self.fault {
                Fault::UncountedIsNotReported => {}
                // SAFETY: none: a fault.
                Fault::UncountedIsReportedAsCounted => unsafe { tracer.visit_object(target) },
                // SAFETY: rule 7: the target is alive.
                _ => unsafe { tracer.uncounted(target) },
            }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        header(*object).count.fetch_add(1, Relaxed);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator<YOUNG>) {
        self.drop_one(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &Mutator<YOUNG>) {
        swap(&header(*object).bare, None);
        if let Some(target) = swap(&header(*object).field, None) {
            self.drop_one(target, m);
        }
    }
}

standstill::parts!(
    impl[const YOUNG: bool] Parts<YOUNG>:
    ThreadData, Threads, Adjusted, Serial, Verdicts, Checks, Uncounted, RuntimeStop, PollWord
);

impl<const YOUNG: bool> ThreadData<Parts<YOUNG>> for Parts<YOUNG> {
    type Local = AtomicBool;
    type Private = ();

    fn local(model: &Self) -> AtomicBool {
        // The thread enters the runtime.
        while !model.runtime.comes_back() {
            model.runtime.wait();
        }
        AtomicBool::new(false)
    }

    fn private(_: &Self) -> Option<()> {
        Some(())
    }
}

impl<const YOUNG: bool> Threads<Parts<YOUNG>> for Parts<YOUNG> {
    fn answer(model: &Self, requests: u32, _: &Mutator<YOUNG>) {
        match model.fault {
            Fault::AnswerDoesNothing => {}
            Fault::AnswerPanics => panic!("on purpose"),
            _ => model.journal.answered(requests),
        }
    }

    fn ending(model: &Self, _: &Mutator<YOUNG>) {
        model.runtime.leave();
    }
}

impl<const YOUNG: bool> Adjusted<Parts<YOUNG>> for Parts<YOUNG> {
    fn adjustments(model: &Self, _: &World<'_, Self>, report: &mut dyn FnMut(Object, i64)) {
        for (&object, &by) in model.apart.lock().unwrap().iter() {
            match model.fault {
                Fault::AdjustmentsAreNotReported => {}
                Fault::AdjustmentsHaveTheWrongSign => report(object, -by),
                _ => report(object, by),
            }
        }
    }
}

impl<const YOUNG: bool> Serial<Parts<YOUNG>> for Parts<YOUNG> {
    fn serial(model: &Self, object: Stopped<'_>) -> bool {
        header(*object).serial && !model.is(Fault::SerialLies)
    }
}

impl<const YOUNG: bool> Verdicts<Parts<YOUNG>> for Parts<YOUNG> {
    fn judge(model: &Self, _: &Found<'_>, _: &Mutator<YOUNG>) -> Verdict {
        match model.journal.keeps() {
            true if !model.is(Fault::JudgeClears) => Verdict::Keep,
            _ => Verdict::Clear,
        }
    }
}

impl<const YOUNG: bool> Checks<Parts<YOUNG>> for Parts<YOUNG> {
    fn overvisited(model: &Self, object: Stopped<'_>) {
        match model.fault {
            Fault::OvervisitedPanics => panic!("on purpose"),
            Fault::OvervisitedLowersCounts => {
                header(*object).count.fetch_sub(1, Relaxed);
            }
            _ => {}
        }
    }
}

impl<const YOUNG: bool> Uncounted<Parts<YOUNG>> for Parts<YOUNG> {
    const COLLECTS_YOUNG: bool = YOUNG;

    fn roots(
        model: &Self,
        _: &World<'_, Self>,
        traverses: &dyn Fn(Object) -> bool,
        report: &mut dyn FnMut(Object),
    ) {
        if !model.is(Fault::RootIsNotReported) {
            model.roots.lock().unwrap().iter().for_each(|&root| report(root));
        }
        if YOUNG && !model.is(Fault::RootsOfOldObjectsAreNotReported) {
            let alive = model.alive.lock().unwrap();
            let others = alive.iter().filter(|&&object| !traverses(object));
            others.filter_map(|&object| target(&header(object).bare)).for_each(report);
        }
    }
}

impl<const YOUNG: bool> RuntimeStop<Parts<YOUNG>> for Parts<YOUNG> {
    fn stop_runtime(model: &Self, _: &AtomicBool) -> Result<(), Cow<'static, str>> {
        match model.fault {
            Fault::StopsNothing => {}
            Fault::StopRefuses => return Err("on purpose".into()),
            _ => model.runtime.stop(),
        }
        Ok(())
    }

    fn resume_runtime(model: &Self, _: &AtomicBool) {
        if !model.is(Fault::ResumesNothing) {
            model.runtime.resume();
        }
    }

    fn leaving(model: &Self, _: &AtomicBool) {
        model.runtime.leave();
    }

    fn comes_back(model: &Self, _: &AtomicBool) -> bool {
        model.runtime.comes_back()
    }

    fn wait_for_runtime(model: &Self, _: &AtomicBool) {
        model.runtime.wait();
    }
}

impl<const YOUNG: bool> PollWord<Parts<YOUNG>> for Parts<YOUNG> {
    fn requested(_: ThreadId, local: &AtomicBool, _: u32) {
        if *FAULT.lock().unwrap() != Fault::RequestedDoesNothing {
            local.swap(true, AcqRel);
        }
    }
}

impl<const YOUNG: bool> Specimen for Parts<YOUNG> {
    type Weak = ();

    const FIELDS: usize = 1;
    const ABILITIES: Abilities =
        Abilities::NONE.uncounted().roots().counts_apart().serial().keeps();
    const REQUESTS: u32 = 1 << 8;

    fn specimen(journal: &Arc<Journal>) -> Self {
        Self {
            fault: *FAULT.lock().unwrap(),
            journal: Arc::clone(journal),
            alive: Mutex::default(),
            roots: Mutex::default(),
            apart: Mutex::default(),
            runtime: Runtime::default(),
        }
    }

    fn alloc(m: &Mutator<YOUNG>, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
        let cell = m.allocate(size_of::<Header>(), align_of::<Header>())?;
        let object = Object::new(cell);
        // SAFETY: new memory of this size. Once it is written, the model can count and traverse it.
        unsafe {
            cell.cast::<Header>().write(Header {
                count: AtomicI64::new(1),
                serial: spec.serial,
                field: AtomicPtr::default(),
                bare: AtomicPtr::default(),
            });
            m.model().alive.lock().unwrap().insert(object);
            m.publish(object, true);
        }
        Ok(object)
    }

    fn set(m: &Mutator<YOUNG>, object: Object, _: usize, target: Option<Object>) {
        if let Some(target) = target {
            Self::retain(m, target);
        }
        if let Some(old) = swap(&header(object).field, target) {
            m.model().drop_one(old, m);
        }
    }

    fn retain(_: &Mutator<YOUNG>, object: Object) {
        header(object).count.fetch_add(1, Relaxed);
    }

    fn drop_ref(m: &Mutator<YOUNG>, object: Object) {
        m.model().drop_one(object, m);
    }

    fn set_uncounted(m: &Mutator<YOUNG>, object: Object, target: Option<Object>) {
        if target.is_some() || !m.model().is(Fault::UncountedIsNotForgotten) {
            swap(&header(object).bare, target);
        }
    }

    fn set_root(m: &Mutator<YOUNG>, object: Object, is_root: bool) {
        let mut roots = m.model().roots.lock().unwrap();
        if is_root {
            roots.insert(object);
        } else if !m.model().is(Fault::RootIsNotForgotten) {
            roots.remove(&object);
        }
    }

    fn retain_apart(m: &Mutator<YOUNG>, object: Object) {
        *m.model().apart.lock().unwrap().entry(object).or_default() += 1;
    }

    fn drop_apart(m: &Mutator<YOUNG>, object: Object) {
        let mut apart = m.model().apart.lock().unwrap();
        *apart.get_mut(&object).expect("a reference that is counted apart") -= 1;
        apart.retain(|_, by| *by != 0);
    }

    fn take_word(m: &Mutator<YOUNG>) -> bool {
        m.local().swap(false, AcqRel)
    }

    fn is_stopped(&self) -> bool {
        self.runtime.threads.lock().unwrap().stopping
    }
}
