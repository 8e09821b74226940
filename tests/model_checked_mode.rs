//! Models that break a rule, in checked mode: the finding names the rule, the method, and the
//! object.
//!
//! [`Pairs`] is the model of `examples/object_model.rs`, with a [`Fault`]. Each fault changes one
//! thing. None of them leads to undefined behaviour before it is found: the memory of a heap stays
//! mapped.
#![cfg(not(loom))]

mod common;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use standstill::model::{
    Batches, ClaimRef, Count, DeadObject, Ends, Finalizers, Live, ModelMutator, Object,
    ObjectModel, Reserved, SplitCounts, Stopped, Tracer, WeakRefs, World,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, Heap, Pacing, Stress};

/// The one thing that the model does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Sound,
    CountIsTooLow,
    CountLeavesOutTheClaim,
    CountChangesItsVariant,
    CountPanics,
    IsImmortalDiffers,
    TraverseLowersACount,
    TraverseFrees,
    TraverseReportsTwice,
    TraverseDiffers,
    TraverseReportsTheMiddle,
    TraverseReportsTheFreed,
    TraverseEachReportsLess,
    ClearWeakFrees,
    ClearWeakFreesInTheRecheck,
    ClaimLowersAnother,
    ClaimAddsNothing,
    ClaimAddsTwo,
    ReleaseDropsNothing,
    ClearDoesNothing,
    ClearDropsNothing,
    ClearDropsTwice,
    MergeReportsTheLiving,
    MergeReportsTwice,
    MergeReportsNoObject,
    PendingIsTooLow,
    CallbacksIsTooLow,
    TypeNamePanics,
}
use Fault::*;

/// An object: a count and two fields. Each field is null or a counted reference.
#[repr(C)]
struct Pair {
    count: AtomicUsize,
    asked: AtomicUsize,
    traversed: AtomicUsize,
    fields: [AtomicPtr<u8>; 2],
}

struct Pairs {
    fault: Fault,
    /// Objects that the next merge reports.
    dead: Mutex<Vec<Object>>,
    /// A freed object, at first.
    freed: AtomicPtr<u8>,
    /// An object that `traverse` frees.
    victim: AtomicPtr<u8>,
    /// The world is between the claim and the end of the collection.
    claimed: AtomicUsize,
    /// The mutator, for `traverse`, which gets none.
    mutator: AtomicPtr<Mutator>,
}

type Mutator = ModelMutator<Pairs>;

impl Pairs {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn pair(m: &Mutator) -> Object {
        let cell = m.allocate(size_of::<Pair>(), align_of::<Pair>()).expect("memory");
        let pair = Pair {
            count: AtomicUsize::new(1),
            asked: AtomicUsize::new(0),
            traversed: AtomicUsize::new(0),
            fields: [const { AtomicPtr::new(null_mut()) }; 2],
        };
        // SAFETY: the cell is fresh, of this size and alignment.
        unsafe {
            cell.cast::<Pair>().write(pair);
            m.publish(Object::new(cell), true);
        }
        Object::new(cell)
    }

    fn view<'a>(object: Object) -> &'a Pair {
        // SAFETY: the object starts with a pair, and its memory stays mapped.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn retain(object: Object) -> Object {
        Self::view(object).count.fetch_add(1, Relaxed);
        object
    }

    fn swap(object: Object, field: usize, new: Option<Object>) -> Option<Object> {
        let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
        NonNull::new(Self::view(object).fields[field].swap(new, AcqRel)).map(Object::new)
    }

    fn drop_reference(&self, object: Object, m: &Mutator) {
        let mut dropped = vec![object];
        while let Some(object) = dropped.pop() {
            if Self::view(object).count.fetch_sub(1, AcqRel) == 1 {
                dropped.extend((0..2).filter_map(|field| Self::swap(object, field, None)));
                // SAFETY: the count is 0.
                unsafe { m.free(object.as_ptr()) };
            }
        }
    }

    /// A cycle of two pairs without a reference from outside.
    fn ring(m: &Mutator) -> [Object; 2] {
        let [a, b] = [(); 2].map(|()| Self::pair(m));
        Self::swap(a, 0, Some(b));
        Self::swap(b, 0, Some(a));
        [a, b]
    }

    fn free_the_victim(&self) {
        if let Some(victim) = NonNull::new(self.victim.swap(null_mut(), Relaxed)) {
            // SAFETY: this thread's mutator, which lives. The object is not used any more, and that
            // it is freed now is the fault.
            unsafe { (*self.mutator.load(Relaxed)).free(victim) };
        }
    }

    fn report(object: Object, tracer: &mut Tracer) {
        // SAFETY: rule 4, or a fault that is to be found.
        unsafe { tracer.visit_object(object) };
    }
}

// SAFETY: the rules of `ObjectModel` hold without a fault, as in the example. With one, the
// collection ends before it relies on the rule.
unsafe impl ObjectModel for Pairs {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        let Pair { count, asked, .. } = Self::view(*object);
        let count = count.load(Relaxed) as i64;
        assert!(!self.is(CountPanics), "a count, on purpose");
        if self.is(CountChangesItsVariant) && asked.fetch_add(1, Relaxed) > 0 {
            return Count::Outside;
        }
        let claims = self.claimed.load(Relaxed).min(1) as i64;
        match self.fault {
            CountIsTooLow => Count::Exact(count - 1),
            CountLeavesOutTheClaim => Count::Exact(count - claims),
            _ => Count::Exact(count),
        }
    }

    fn is_immortal(&self, object: Stopped<'_>) -> bool {
        self.is(IsImmortalDiffers) || matches!(self.count(object), Count::Immortal)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let Pair { fields, traversed, .. } = Self::view(*object);
        let traversed = traversed.fetch_add(1, Relaxed);
        for field in fields {
            let Some(target) = NonNull::new(field.load(Relaxed)).map(Object::new) else { continue };
            match self.fault {
                TraverseReportsTwice => Self::report(target, tracer),
                TraverseDiffers if traversed % 2 == 1 => continue,
                TraverseReportsTheMiddle => {
                    // SAFETY: inside the pair.
                    let middle = unsafe { target.as_ptr().byte_add(32) };
                    return Self::report(Object::new(middle), tracer);
                }
                TraverseLowersACount => {
                    Self::view(target).count.fetch_sub(1, Relaxed);
                }
                _ => {}
            }
            Self::report(target, tracer);
        }
        if let Some(freed) = NonNull::new(self.freed.load(Relaxed)) {
            Self::report(Object::new(freed), tracer);
        }
        if self.is(TraverseFrees) {
            self.free_the_victim();
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        let victim = NonNull::new(self.victim.load(Relaxed)).map(Object::new);
        if let Some(victim) = victim.filter(|_| self.is(ClaimLowersAnother)) {
            Self::view(victim).count.fetch_sub(1, Relaxed);
        }
        self.claimed.fetch_add(1, Relaxed);
        for _ in 0..match self.fault {
            ClaimAddsNothing => 0,
            ClaimAddsTwo => 2,
            _ => 1,
        } {
            Self::retain(*object);
        }
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        if !self.is(ReleaseDropsNothing) {
            self.drop_reference(reference.object(), m);
        }
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        for field in 0..2 {
            if self.is(ClearDoesNothing) {
                continue;
            }
            let Some(target) = Self::swap(*object, field, None) else { continue };
            for _ in 0..match self.fault {
                ClearDropsNothing => 0,
                ClearDropsTwice => 2,
                _ => 1,
            } {
                self.drop_reference(target, m);
            }
        }
    }

    fn type_name(&self, _: Live<'_>) -> Cow<'static, str> {
        assert!(!self.is(TypeNamePanics), "a name, on purpose");
        "pair".into()
    }
}

standstill::parts!(Pairs: SplitCounts, Batches, Finalizers, WeakRefs);

impl SplitCounts<Pairs> for Pairs {
    fn pending(model: &Self, _: &World<'_, Self>) -> usize {
        let dead = model.dead.lock().unwrap().len();
        if model.is(PendingIsTooLow) { 0 } else { dead }
    }

    fn merge(model: &Self, _: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        // SAFETY: the count is 0, or the fault is to be found.
        dead.extend(
            model.dead.lock().unwrap().drain(..).map(|object| unsafe { DeadObject::new(object) }),
        );
    }
}

impl Batches<Pairs> for Pairs {
    fn traverse_each(
        model: &Self,
        objects: &[Stopped<'_>],
        tracer: &mut Tracer,
        ends: &mut Ends<'_>,
    ) {
        tracer.each(objects, ends, |object, tracer| {
            if !model.is(TraverseEachReportsLess) {
                model.traverse(object, tracer);
            }
        });
    }
}

impl Finalizers<Pairs> for Pairs {
    fn has_finalizer(model: &Self, _: Live<'_>) -> bool {
        model.is(ClearWeakFreesInTheRecheck)
    }

    fn finalize(_: &Self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

impl WeakRefs<Pairs> for Pairs {
    type Callback = ();

    fn has_weak(model: &Self, _: Live<'_>) -> bool {
        matches!(model.fault, CallbacksIsTooLow | ClearWeakFrees | ClearWeakFreesInTheRecheck)
    }

    fn clear_weak(model: &Self, _: Stopped<'_>) {
        model.free_the_victim();
    }

    fn take_callbacks(
        model: &Self,
        _: Stopped<'_>,
        _: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<()>,
    ) {
        due.extend(model.is(CallbacksIsTooLow).then_some(()));
    }
}

/// The finding, and the addresses of the objects. A breach is a panic, and a doubt a report.
struct Finding {
    text: String,
    is_breach: bool,
    objects: Vec<Object>,
}

/// Collects a ring, which a pair outside refers to, on a heap with this fault.
fn found(fault: Fault, stress: Stress, by_the_heap: bool) -> Finding {
    let pacing = if by_the_heap { Pacing::default() } else { Pacing::manual() };
    let stress = if by_the_heap { stress.collect_at_safepoints(1) } else { stress };
    let builder = Heap::builder().name("checked").reserve(1 << 28).workers(1).pacing(pacing);
    let model = Pairs {
        fault,
        dead: Mutex::default(),
        freed: AtomicPtr::default(),
        victim: AtomicPtr::default(),
        claimed: AtomicUsize::new(0),
        mutator: AtomicPtr::default(),
    };
    let heap = builder.stress(stress).build_with(model).expect("a heap");
    let reports = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&reports);
    heap.on_unraisable(move |what| {
        assert_eq!(what.type_name, "pair");
        hears.lock().unwrap().push((what.address, what.to_string()));
    });
    let mut m = heap.attach();
    let model = heap.model();
    let mut objects = Pairs::ring(&m).to_vec();
    // It keeps another pair alive, and not the ring.
    let [kept, other, single] = [(); 3].map(|()| Pairs::pair(&m));
    Pairs::swap(kept, 0, Some(other));
    objects.extend([kept, other, single]);
    match fault {
        TraverseReportsTheFreed => {
            let freed = Pairs::pair(&m);
            model.drop_reference(freed, &m);
            model.freed.store(freed.as_ptr().as_ptr(), Relaxed);
            objects.push(freed);
        }
        TraverseFrees | ClearWeakFrees | ClearWeakFreesInTheRecheck | ClaimLowersAnother => {
            model.mutator.store(&raw mut m, Relaxed);
            model.victim.store(single.as_ptr().as_ptr(), Relaxed);
        }
        MergeReportsTheLiving => model.dead.lock().unwrap().push(single),
        PendingIsTooLow | MergeReportsTwice => {
            Pairs::view(single).count.store(0, Relaxed);
            model.dead.lock().unwrap().extend([single; 2]);
        }
        MergeReportsNoObject => {
            // SAFETY: inside the pair.
            let middle = unsafe { single.as_ptr().byte_add(32) };
            model.dead.lock().unwrap().push(Object::new(middle));
        }
        _ => {}
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        if by_the_heap {
            (0..4).for_each(|_| m.safepoint());
        } else {
            drop(m.try_collect(Collect::full()));
        }
    }));
    let is_breach = result.is_err();
    let text = match result {
        Err(payload) => payload.downcast_ref::<String>().cloned().unwrap_or_default(),
        Ok(()) => {
            let reports = std::mem::take(&mut *reports.lock().unwrap());
            for &(address, _) in &reports {
                assert!(objects.iter().any(|object| object.address() == address));
            }
            reports.into_iter().map(|(_, text)| text).collect()
        }
    };
    // A stop is possible after each finding, and the lock to collect is open.
    assert!(m.stop().is_ok());
    assert!(m.prepare_fork().is_ok());
    Finding { text, is_breach, objects }
}

/// Whether the environment asks for other modes.
fn is_stressed() -> bool {
    std::env::var_os("STANDSTILL_STRESS").is_some()
}

#[test]
fn a_model_without_a_fault_has_no_finding() {
    for by_the_heap in [false, true] {
        let finding = found(Sound, Stress::none().verify_counts(true), by_the_heap);
        assert_eq!((&*finding.text, finding.is_breach), ("", false));
    }
}

#[test]
fn each_breach_names_its_rule_its_method_and_its_object() {
    // The rule, the method, and the numbers of the objects of which one is named.
    let breaches: [(Fault, &str, &str, &[usize]); 25] = [
        (CountIsTooLow, "rule 1", "`count`", &[]),
        (CountLeavesOutTheClaim, "rule 1", "`claim_ref`", &[0, 1]),
        (CountChangesItsVariant, "the contract of `count`", "`count`", &[0, 1, 2, 3, 4]),
        (CountPanics, "does not panic", "`count`", &[0, 1, 2, 3, 4]),
        (IsImmortalDiffers, "the contract of `is_immortal`", "`is_immortal`", &[0, 1, 2, 3, 4]),
        (TraverseLowersACount, "rule 3", "`count`", &[0, 1, 3]),
        (TraverseFrees, "rule 3", "was freed in a stop", &[4]),
        (ClearWeakFrees, "rule 3", "was freed in a stop", &[4]),
        (ClearWeakFreesInTheRecheck, "rule 3", "was freed in a stop", &[4]),
        (ClaimLowersAnother, "rule 3", "`count`", &[4]),
        (TraverseReportsTwice, "rule 4", "`traverse`", &[0, 1, 3]),
        (TraverseDiffers, "rule 8", "`traverse`", &[0, 1, 2]),
        (TraverseReportsTheMiddle, "rule 4", "it lies inside the memory", &[0, 1, 2]),
        (TraverseReportsTheFreed, "rule 4", "the memory is free", &[5]),
        (TraverseEachReportsLess, "rule 4", "`traverse_each`", &[0, 1, 2]),
        (ClaimAddsNothing, "rule 1", "`claim_ref`", &[0, 1]),
        (ClaimAddsTwo, "rule 1", "`claim_ref`", &[0, 1]),
        (ClearDropsTwice, "rule 2", "`clear`", &[0, 1]),
        (MergeReportsTheLiving, "rule 5", "`merge`", &[4]),
        (MergeReportsTwice, "rule 5", "`merge`", &[4]),
        (MergeReportsNoObject, "rule 5", "`merge`", &[]),
        (PendingIsTooLow, "the contract of `pending`", "`merge`", &[]),
        (CallbacksIsTooLow, "the contract of `pending` and `callbacks`", "`callbacks`", &[0, 1]),
        (TypeNamePanics, "does not panic", "`type_name`", &[0, 1, 2, 3, 4]),
        (TypeNamePanics, "does not panic", "a name, on purpose", &[0, 1, 2, 3, 4]),
    ];
    for (fault, rule, method, of) in breaches {
        for by_the_heap in [false, true] {
            let finding = found(fault, Stress::none().verify_counts(true), by_the_heap);
            is_named(fault, &finding, rule, method, of);
            assert!(finding.is_breach, "{fault:?}: {}", finding.text);
            assert!(finding.text.contains("heap 'checked': "), "{fault:?}: {}", finding.text);
        }
    }
}

#[test]
fn a_fault_that_the_program_could_have_made_is_reported_and_the_collection_ends() {
    let doubts: [(Fault, &str, &str, &[usize]); 3] = [
        (ReleaseDropsNothing, "rule 1", "`release`", &[0, 1]),
        (ClearDoesNothing, "the contract of `clear`", "a cycle of 2 objects", &[0, 1]),
        (ClearDropsNothing, "rule 1", "not dropped it", &[0, 1]),
    ];
    for (fault, rule, method, of) in doubts {
        for by_the_heap in [false, true] {
            let finding = found(fault, Stress::none().verify_counts(true), by_the_heap);
            is_named(fault, &finding, rule, method, of);
            assert!(!finding.is_breach, "{fault:?}: {}", finding.text);
        }
    }
}

fn is_named(fault: Fault, finding: &Finding, rule: &str, method: &str, of: &[usize]) {
    let Finding { text, objects, .. } = finding;
    assert!(text.contains(rule) && text.contains(method), "{fault:?}: {text}");
    let address = |&at: &usize| format!("{:#x}", objects[at].address());
    assert!(of.is_empty() || of.iter().any(|at| text.contains(&address(at))), "{fault:?}: {text}");
    let is_named = text.contains("pair at 0x") || text.contains("object");
    assert!(is_named || of.is_empty(), "{fault:?}: {text}");
}

/// The checks cost additional questions, so `verify` alone makes none of them.
#[test]
fn only_checked_counts_check_the_rules() {
    for fault in [ClaimAddsTwo, TraverseEachReportsLess, IsImmortalDiffers, ReleaseDropsNothing] {
        if !is_stressed() {
            let finding = found(fault, Stress::none().verify(true), false);
            assert_eq!((&*finding.text, finding.is_breach), ("", false), "{fault:?}");
        }
    }
}
