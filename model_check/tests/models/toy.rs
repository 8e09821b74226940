//! A model with all parts, and faults that change one thing each.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use standstill::OutOfMemory;
use standstill::model::{
    Batches, Checks, ClaimRef, Count, DeadObject, Ends, Finalizers, Found, Live, ModelMutator,
    Object, ObjectModel, Reserved, SplitCounts, Stopped, ThreadData, Threads, Tracer, Verdict,
    Verdicts, WeakRefs, World,
};
use standstill::safepoint::ThreadId;
use standstill_model_check::{
    Abilities, Broken, Check, CheckReport, Journal, ObjectSpec, Specimen,
};

/// The one thing that the model does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    CountTooLow,
    CountTooHigh,
    CountWithoutOutside,
    ClaimCountsNothing,
    ClaimCountsTwice,
    ClaimForAnyCountsNothing,
    ReleaseDropsNothing,
    ReleaseDropsTwice,
    FreesEarly,
    FreesTwice,
    FreesNever,
    TraverseLowersCounts,
    ClearWeakFrees,
    TraversesTooFew,
    TraversesTwice,
    TraversesTheDead,
    TraversesOthers,
    TraversesOnlySometimes,
    TraverseSaysUnreadable,
    TraverseEachSkips,
    TraverseEachDoesNothing,
    TraverseEachMixes,
    PrefetchReports,
    MergeLeavesPending,
    MergeForgetsTheDead,
    MergeReportsTheLiving,
    MergeReportsTwice,
    DestroyMergedDoesNothing,
    PendingTooLow,
    CallbacksTooLow,
    SafepointInPrepare,
    DetachInFinalize,
    StopInClear,
    ClearsNothing,
    ClearsWithoutDropping,
    DropsWithoutClearing,
    ClearsOthers,
    ClearsAllButCycles,
    ClearedDropsNothing,
    FinalizesTwice,
    FinalizesNever,
    HasFinalizerAlways,
    HasFinalizerNever,
    RisesUncounted,
    FinalizerLeaksAfterPanic,
    ClearWeakDoesNothing,
    UpgradesTheDead,
    CallsBackTwice,
    CallsBackNever,
    TakesNoCallbacks,
    TakesCallbacksAndLeavesWeak,
    HasWeakNever,
    LegacyLies,
    HasLegacyNever,
    ImmortalIsCounted,
    IsImmortalLies,
    ImmortalForAll,
    CheckComplains,
    AllocPanicsWithoutMemory,
    AllocLeaksWithoutMemory,
    RefusedLies,
    CountsRace,
    PublishesUntracked,
    /// The method with this name panics.
    Panics(&'static str),
}

/// The fault of the models that are made now.
static FAULT: Mutex<Fault> = Mutex::new(Fault::None);
/// One check at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Checks the model with this fault.
pub(crate) fn checked(fault: Fault, check: &Check) -> Result<CheckReport, Broken> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    *FAULT.lock().unwrap() = fault;
    check.run::<Toy>()
}

#[repr(C)]
struct Header {
    count: AtomicI64,
    /// References from outside, with [`Fault::CountWithoutOutside`].
    outside: AtomicI64,
    traversals: AtomicU32,
    len: u32,
    spec: ObjectSpec,
}

const SIZE: usize = size_of::<Header>();

/// A weak reference: empty when the target is dead or cleared.
#[derive(Clone)]
pub(crate) struct Weak {
    target: Arc<Mutex<Option<Object>>>,
    ticket: Option<u64>,
}

/// See the [module's page](self).
pub(crate) struct Toy {
    fault: Fault,
    journal: Arc<Journal>,
    weak: Mutex<HashMap<usize, Vec<Weak>>>,
    last_freed: AtomicUsize,
    /// References that `clear` has removed and `cleared` drops.
    cleared: Mutex<Vec<Object>>,
}

type Mutator = ModelMutator<Toy>;

impl Toy {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn enter(&self, method: &'static str) {
        if self.fault == Fault::Panics(method) {
            panic!("{method}, on purpose");
        }
    }

    fn header(&self, object: Object) -> &Header {
        // SAFETY: an object starts with its header, and its memory stays mapped.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn slots(&self, object: Object) -> &[AtomicPtr<u8>] {
        // SAFETY: as in `header`; `alloc` made room for them.
        unsafe {
            let first = object.as_ptr().byte_add(SIZE).cast();
            std::slice::from_raw_parts(first.as_ptr(), self.header(object).len as usize)
        }
    }

    fn target(&self, slot: &AtomicPtr<u8>) -> Option<Object> {
        NonNull::new(slot.load(Relaxed)).map(Object::new)
    }

    fn swap(&self, object: Object, slot: usize, new: Option<Object>) -> Option<Object> {
        let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
        NonNull::new(self.slots(object)[slot].swap(new, AcqRel)).map(Object::new)
    }

    fn add(&self, object: Object, by: i64) -> i64 {
        let count = &self.header(object).count;
        if !self.is(Fault::CountsRace) {
            return count.fetch_add(by, AcqRel) + by;
        }
        let before = count.load(Relaxed);
        std::thread::yield_now();
        count.store(before + by, Relaxed);
        before + by
    }

    fn drop_one(&self, object: Object, m: &Mutator) {
        let left = self.add(object, -1);
        let early = i64::from(self.is(Fault::FreesEarly));
        if left == early && !self.header(object).spec.immortal {
            self.destroy(object, m);
        }
    }

    fn destroy(&self, object: Object, m: &Mutator) {
        let mut dead = vec![object];
        while let Some(object) = dead.pop() {
            if !self.is(Fault::UpgradesTheDead) {
                self.forget_weak(object);
            }
            for slot in 0..self.slots(object).len() {
                if let Some(target) = self.swap(object, slot, None)
                    && self.add(target, -1) == 0
                    && !self.header(target).spec.immortal
                {
                    dead.push(target);
                }
            }
            if self.is(Fault::FreesNever) {
                continue;
            }
            self.last_freed.store(object.address(), Relaxed);
            // SAFETY: the count is 0 (or this is a fault).
            unsafe { m.free(object.as_ptr()) };
            if self.is(Fault::FreesTwice) {
                // SAFETY: none: a fault.
                unsafe { m.free(object.as_ptr()) };
            }
        }
    }

    fn forget_weak(&self, object: Object) {
        for weak in self.weak.lock().unwrap().remove(&object.address()).unwrap_or_default() {
            *weak.target.lock().unwrap() = None;
        }
    }

    fn flush(&self, m: &Mutator) {
        for object in std::mem::take(&mut *m.local().lock().unwrap()) {
            self.drop_one(object, m);
        }
    }

    /// Makes new memory an object.
    fn init(m: &Mutator, cell: NonNull<u8>, spec: ObjectSpec) -> Object {
        let len = spec.fields;
        let header = Header {
            count: AtomicI64::new(1),
            outside: AtomicI64::new(0),
            traversals: AtomicU32::new(0),
            len: len as u32,
            spec,
        };
        let object = Object::new(cell);
        // SAFETY: new memory of this size. Once it is written, the model can count and traverse it.
        unsafe {
            cell.cast::<Header>().write(header);
            cell.byte_add(SIZE).cast::<AtomicPtr<u8>>().write_bytes(0, len);
            m.publish(object, !m.model().is(Fault::PublishesUntracked));
        }
        object
    }

    /// Forgets the first part if there is no memory for the second.
    fn alloc_in_two_parts(m: &Mutator, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
        let size = SIZE + spec.fields * size_of::<AtomicPtr<u8>>();
        let first = Self::init(m, m.allocate(size, 32)?, spec);
        let second = m.allocate(size, 32)?;
        // SAFETY: it is unused.
        unsafe { m.free(second) };
        Ok(first)
    }

    /// A second value for the same mutator, with which the faults break rule 6.
    fn stolen(m: &Mutator) -> ManuallyDrop<Mutator> {
        // SAFETY: none: a fault. It is never dropped.
        ManuallyDrop::new(unsafe { std::ptr::read(m) })
    }
}

// SAFETY: the six rules, without a fault: `count` is the number of references, with deferred ones;
// `destroy` frees at 0; attached threads and `merge` lower counts; slots are counted; `merge` drops
// the deferred references; no method reaches a safepoint.
unsafe impl ObjectModel for Toy {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        self.enter("count");
        let header = self.header(*object);
        let count = header.count.load(Relaxed);
        let is_immortal = match self.fault {
            Fault::ImmortalIsCounted => false,
            Fault::ImmortalForAll => true,
            _ => header.spec.immortal,
        };
        if is_immortal {
            return Count::Immortal;
        }
        Count::Exact(match self.fault {
            Fault::CountTooLow => count - 1,
            Fault::CountTooHigh => count + 1,
            _ => count,
        })
    }

    fn is_immortal(&self, object: Stopped<'_>) -> bool {
        self.header(*object).spec.immortal != self.is(Fault::IsImmortalLies)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        self.enter("traverse");
        let header = self.header(*object);
        let times = header.traversals.fetch_add(1, Relaxed);
        if self.is(Fault::TraversesOnlySometimes) && times % 2 == 1 {
            return;
        }
        if self.is(Fault::TraverseSaysUnreadable) {
            tracer.unreadable();
        }
        let last = usize::from(self.is(Fault::TraversesTooFew));
        for slot in self.slots(*object).iter().skip(last) {
            let Some(target) = self.target(slot) else { continue };
            let twice = if self.is(Fault::TraversesTwice) { 2 } else { 1 };
            // SAFETY: rule 4: a slot's reference is counted.
            (0..twice).for_each(|_| unsafe { tracer.visit_object(target) });
            if self.is(Fault::TraverseLowersCounts) {
                self.add(target, -1);
            }
            if self.is(Fault::TraversesOthers) {
                for target in self.slots(target).iter().filter_map(|slot| self.target(slot)) {
                    // SAFETY: none: a fault.
                    unsafe { tracer.visit_object(target) };
                }
            }
        }
        let dead = self.last_freed.load(Relaxed);
        if self.is(Fault::TraversesTheDead)
            && let Some(dead) = NonNull::new(std::ptr::with_exposed_provenance_mut(dead))
        {
            // SAFETY: none: a fault.
            unsafe { tracer.visit_object(Object::new(dead)) };
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.enter("claim_ref");
        let by = match self.fault {
            Fault::ClaimCountsNothing => 0,
            Fault::ClaimCountsTwice => 2,
            _ => 1,
        };
        self.add(*object, by);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        self.enter("release");
        let times = match self.fault {
            Fault::ReleaseDropsNothing => 0,
            Fault::ReleaseDropsTwice => 2,
            _ => 1,
        };
        (0..times).for_each(|_| self.drop_one(reference.object(), m));
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        self.enter("clear");
        if self.is(Fault::StopInClear) {
            drop(Self::stolen(m).stop());
        }
        if self.is(Fault::ClearsNothing) {
            return;
        }
        for slot in 0..self.slots(*object).len() {
            let target = self.target(&self.slots(*object)[slot]);
            let Some(target) = target else { continue };
            if self.is(Fault::ClearsAllButCycles) && target == object.object() {
                continue;
            }
            if self.is(Fault::ClearsOthers) && target != object.object() {
                for slot in 0..self.slots(target).len() {
                    self.cleared.lock().unwrap().extend(self.swap(target, slot, None));
                }
            }
            if !self.is(Fault::DropsWithoutClearing) {
                self.swap(*object, slot, None);
            }
            if !self.is(Fault::ClearsWithoutDropping) {
                self.cleared.lock().unwrap().push(target);
            }
        }
    }

    fn type_name(&self, _: Live<'_>) -> std::borrow::Cow<'static, str> {
        self.enter("type_name");
        "toy".into()
    }
}

standstill::parts!(
    Toy:
    ThreadData, Threads, SplitCounts, Batches, Finalizers, Verdicts, WeakRefs, Checks
);

impl ThreadData<Toy> for Toy {
    type Local = Mutex<Vec<Object>>;
    type Private = ();

    fn local(model: &Self) -> Self::Local {
        model.enter("local");
        Mutex::default()
    }

    fn private(model: &Self) -> Option<()> {
        model.enter("private");
        Some(())
    }
}

impl Threads<Toy> for Toy {
    fn refused(model: &Self, _: &Mutator) -> bool {
        model.enter("refused");
        model.is(Fault::RefusedLies)
    }

    fn attached(model: &Self, m: &Mutator) {
        model.enter("attached");
        if model.is(Fault::ClearWeakFrees) {
            STOLEN.set(Some(Self::stolen(m)));
        }
    }

    fn ending(model: &Self, m: &Mutator) {
        model.enter("ending");
        model.flush(m);
    }
}

impl SplitCounts<Toy> for Toy {
    fn claim_ref_for_any(model: &Self, object: Stopped<'_>, _: ThreadId) {
        model.enter("claim_ref_for_any");
        model.add(*object, i64::from(!model.is(Fault::ClaimForAnyCountsNothing)));
    }

    fn prepare(model: &Self, m: &Mutator) {
        model.enter("prepare");
        if model.is(Fault::SafepointInPrepare) {
            Self::stolen(m).safepoint();
        }
    }

    fn pending(model: &Self, world: &World<'_, Self>) -> usize {
        model.enter("pending");
        let mut pending = 0;
        world.locals(|_, local| pending += local.lock().unwrap().len());
        if model.is(Fault::PendingTooLow) { 0 } else { pending }
    }

    fn merge(model: &Self, world: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        model.enter("merge");
        if model.is(Fault::MergeLeavesPending) {
            return;
        }
        world.locals(|_, local| {
            for object in std::mem::take(&mut *local.lock().unwrap()) {
                let left = model.add(object, -1);
                if (left == 0 && !model.is(Fault::MergeForgetsTheDead))
                    || (left == 1 && model.is(Fault::MergeReportsTheLiving))
                {
                    // SAFETY: rule 5: the count is 0 (or this is a fault).
                    dead.push(unsafe { DeadObject::new(object) });
                    if model.is(Fault::MergeReportsTwice) {
                        // SAFETY: none: a fault.
                        dead.push(unsafe { DeadObject::new(object) });
                    }
                }
            }
        });
    }

    fn destroy_merged(model: &Self, dead: DeadObject, m: &Mutator) {
        model.enter("destroy_merged");
        if !model.is(Fault::DestroyMergedDoesNothing) {
            model.destroy(dead.object(), m);
        }
    }

    fn resumed(model: &Self, _: &Mutator) {
        model.enter("resumed");
    }

    fn after_clear(model: &Self, _: &Mutator) -> bool {
        model.enter("after_clear");
        false
    }
}

impl Batches<Toy> for Toy {
    fn traverse_each(
        model: &Self,
        objects: &[Stopped<'_>],
        tracer: &mut Tracer,
        ends: &mut Ends<'_>,
    ) {
        match model.fault {
            Fault::TraverseEachDoesNothing => {}
            Fault::TraverseEachSkips => {
                let first = objects[0];
                tracer.each(objects, ends, |object, tracer| {
                    if object == first {
                        model.traverse(object, tracer);
                    }
                });
            }
            Fault::TraverseEachMixes => {
                objects.iter().for_each(|&object| model.traverse(object, tracer));
                tracer.each(objects, ends, |_, _| {});
            }
            _ => tracer.each(objects, ends, |object, tracer| model.traverse(object, tracer)),
        }
    }

    fn prefetches(model: &Self) -> bool {
        model.is(Fault::PrefetchReports)
    }

    fn prefetch_each(model: &Self, objects: &[Stopped<'_>], tracer: &mut Tracer) {
        objects.iter().for_each(|&object| model.traverse(object, tracer));
    }

    fn clearing(model: &Self, _: &Mutator, _: usize) {
        model.enter("clearing");
    }

    fn cleared(model: &Self, m: &Mutator, last: bool) {
        model.enter("cleared");
        let dropped = std::mem::take(&mut *model.cleared.lock().unwrap());
        if last || dropped.len() > 2 {
            if !model.is(Fault::ClearedDropsNothing) {
                dropped.into_iter().for_each(|object| model.drop_one(object, m));
            }
        } else {
            *model.cleared.lock().unwrap() = dropped;
        }
    }
}

impl Finalizers<Toy> for Toy {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        model.enter("has_finalizer");
        match model.fault {
            Fault::HasFinalizerAlways => true,
            Fault::HasFinalizerNever => false,
            _ => model.header(*object).spec.finalizer,
        }
    }

    fn finalize(model: &Self, object: Live<'_>, m: &Mutator) {
        model.enter("finalize");
        if model.is(Fault::FinalizesNever) {
            return;
        }
        if model.is(Fault::DetachInFinalize) {
            Self::stolen(m).detach(|| ());
        }
        if model.is(Fault::FinalizerLeaksAfterPanic) {
            model.add(*object, 1);
        }
        if model.journal.finalized(*object) && !model.is(Fault::RisesUncounted) {
            model.add(*object, 1);
        }
        if model.is(Fault::FinalizerLeaksAfterPanic) {
            model.add(*object, -1);
        }
        if model.is(Fault::FinalizesTwice) {
            model.journal.finalized(*object);
        }
    }
}

impl Verdicts<Toy> for Toy {
    fn has_legacy(model: &Self) -> bool {
        model.enter("has_legacy");
        !model.is(Fault::HasLegacyNever)
    }

    fn legacy(model: &Self, object: Stopped<'_>) -> bool {
        model.enter("legacy");
        model.header(*object).spec.legacy != model.is(Fault::LegacyLies)
    }

    fn judge(model: &Self, _: &Found<'_>, _: &Mutator) -> Verdict {
        model.enter("judge");
        Verdict::Clear
    }
}

impl WeakRefs<Toy> for Toy {
    type Callback = u64;

    fn has_weak(model: &Self, object: Live<'_>) -> bool {
        model.enter("has_weak");
        !model.is(Fault::HasWeakNever) && model.weak.lock().unwrap().contains_key(&object.address())
    }

    fn callbacks(model: &Self, object: Stopped<'_>) -> usize {
        model.enter("callbacks");
        let weak = model.weak.lock().unwrap();
        let all = weak.get(&object.address()).map_or(0, Vec::len);
        if model.is(Fault::CallbacksTooLow) { 0 } else { all }
    }

    fn take_callbacks(
        model: &Self,
        object: Stopped<'_>,
        _: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<u64>,
    ) {
        model.enter("take_callbacks");
        if model.is(Fault::TakesNoCallbacks) {
            return;
        }
        if let Some(weak) = model.weak.lock().unwrap().get_mut(&object.address()) {
            for weak in weak.extract_if(.., |weak| weak.ticket.is_some()) {
                if !model.is(Fault::TakesCallbacksAndLeavesWeak) {
                    *weak.target.lock().unwrap() = None;
                }
                due.extend(weak.ticket);
            }
        }
    }

    fn call_back(model: &Self, callback: u64, _: &Mutator) {
        model.enter("call_back");
        if model.is(Fault::CallsBackNever) {
            return;
        }
        model.journal.called_back(callback);
        if model.is(Fault::CallsBackTwice) {
            model.journal.called_back(callback);
        }
    }

    fn clear_weak(model: &Self, object: Stopped<'_>) {
        model.enter("clear_weak");
        if model.is(Fault::ClearWeakDoesNothing) {
            return;
        }
        if model.is(Fault::ClearWeakFrees) {
            STOLEN.with(|stolen| {
                let stolen = stolen.borrow();
                // SAFETY: none: a fault.
                unsafe { stolen.as_ref().expect("attached").free(object.as_ptr()) };
            });
        }
        model.forget_weak(*object);
    }
}

impl Checks<Toy> for Toy {
    fn check(model: &Self, _: Stopped<'_>) -> Result<(), String> {
        model.enter("check");
        if model.is(Fault::CheckComplains) { Err("on purpose".to_owned()) } else { Ok(()) }
    }
}

thread_local! {
    static STOLEN: std::cell::RefCell<Option<ManuallyDrop<Mutator>>> =
        const { std::cell::RefCell::new(None) };
}

impl Specimen for Toy {
    type Weak = Weak;

    const FIELDS: usize = 3;
    const ABILITIES: Abilities =
        Abilities::NONE.finalizers().callbacks().deferred().legacy().immortals();

    fn specimen(journal: &Arc<Journal>) -> Self {
        Self {
            fault: *FAULT.lock().unwrap(),
            journal: Arc::clone(journal),
            weak: Mutex::default(),
            last_freed: AtomicUsize::new(0),
            cleared: Mutex::default(),
        }
    }

    fn alloc(m: &Mutator, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
        let len = spec.fields;
        let size = SIZE + len * size_of::<AtomicPtr<u8>>();
        if m.model().is(Fault::AllocLeaksWithoutMemory) {
            return Self::alloc_in_two_parts(m, spec);
        }
        let cell = match m.allocate(size, 32) {
            Err(error) if m.model().is(Fault::AllocPanicsWithoutMemory) => panic!("{error}"),
            cell => cell?,
        };
        Ok(Self::init(m, cell, spec))
    }

    fn set(m: &Mutator, object: Object, field: usize, target: Option<Object>) {
        let model = m.model();
        if let Some(target) = target {
            model.add(target, 1);
        }
        if let Some(old) = model.swap(object, field, target) {
            model.drop_one(old, m);
        }
    }

    fn retain(m: &Mutator, object: Object) {
        if m.model().is(Fault::CountWithoutOutside) {
            m.model().header(object).outside.fetch_add(1, Relaxed);
            return;
        }
        m.model().add(object, 1);
    }

    fn drop_ref(m: &Mutator, object: Object) {
        let outside = &m.model().header(object).outside;
        if outside.load(Relaxed) > 0 {
            outside.fetch_sub(1, Relaxed);
            return;
        }
        m.model().drop_one(object, m);
    }

    fn drop_later(m: &Mutator, object: Object) {
        m.local().lock().unwrap().push(object);
    }

    fn downgrade(m: &Mutator, object: Object, ticket: Option<u64>) -> Option<Weak> {
        let weak = Weak { target: Arc::new(Mutex::new(Some(object))), ticket };
        let mut all = m.model().weak.lock().unwrap();
        all.entry(object.address()).or_default().push(weak.clone());
        Some(weak)
    }

    fn upgrade(m: &Mutator, weak: &Weak) -> Option<Object> {
        let target = weak.target.lock().unwrap();
        let object = (*target)?;
        let count = &m.model().header(object).count;
        if m.model().is(Fault::UpgradesTheDead) {
            // The count of freed memory is poison.
            let dead = count.load(Relaxed) <= 0;
            count.fetch_add(i64::from(!dead), Relaxed);
            return Some(object);
        }
        count.fetch_update(Relaxed, Relaxed, |n| (n > 0).then_some(n + 1)).ok().map(|_| object)
    }
}
