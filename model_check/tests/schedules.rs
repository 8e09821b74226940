//! The kit under random schedules finds races that real threads meet rarely, and a thread that
//! waits for ever. Programs on the typed face run under them too.
#![cfg(standstill_shuttle)]

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use standstill::OutOfMemory;
use standstill::model::*;
use standstill::safepoint::ThreadId;
use standstill_model_check::{Broken, Check, CheckReport, Journal, ObjectSpec, Rule, Specimen};

/// What a model does wrong.
const NOTHING: u8 = 0;
/// A drop lowers the count, and then looks at it: two threads may both see 0.
const LOOKS_AGAIN: u8 = 1;
/// A count is read and written, instead of incremented.
const READS_AND_WRITES: u8 = 2;
/// Two locks are taken in any order.
const ANY_ORDER: u8 = 3;

/// An object: a count, and one field.
struct Link {
    count: AtomicUsize,
    next: AtomicPtr<u8>,
}

/// A model with one of the faults.
#[derive(Default)]
struct Links<const FAULT: u8> {
    ups: Mutex<usize>,
    downs: Mutex<usize>,
}

type Mutator<const FAULT: u8> = ModelMutator<Links<FAULT>>;

impl<const FAULT: u8> Links<FAULT> {
    fn link(&self, object: Object) -> &Link {
        // SAFETY: every object of this heap is a `Link`.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn swap(&self, object: Object, next: Option<Object>) -> Option<Object> {
        let next = next.map_or(null_mut(), |next| next.as_ptr().as_ptr());
        NonNull::new(self.link(object).next.swap(next, AcqRel)).map(Object::new)
    }

    fn raise(&self, object: Object) {
        let count = &self.link(object).count;
        if FAULT == READS_AND_WRITES {
            count.store(count.load(Relaxed) + 1, Relaxed);
        } else {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Whether the reference was the last.
    fn lower(&self, object: Object) -> bool {
        let count = &self.link(object).count;
        if FAULT == LOOKS_AGAIN {
            count.fetch_sub(1, AcqRel);
            return count.load(Acquire) == 0;
        }
        count.fetch_sub(1, AcqRel) == 1
    }

    fn drop_reference(&self, object: Object, m: &Mutator<FAULT>) {
        let mut next = Some(object);
        while let Some(object) = next {
            if !self.lower(object) {
                break;
            }
            next = self.swap(object, None);
            // SAFETY: the count is 0, if the model has no fault. Freed memory stays mapped.
            unsafe { m.free(object.as_ptr()) };
        }
    }
}

// SAFETY: `NOTHING` breaks no rule, and the kit watches the others.
unsafe impl<const FAULT: u8> ObjectModel for Links<FAULT> {
    type Addresses = Reserved;
    type Parts = ();

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(self.link(*object).count.load(Relaxed) as i64)
    }
    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        if let Some(next) = NonNull::new(self.link(*object).next.load(Relaxed)) {
            // SAFETY: the field's reference is counted.
            unsafe { tracer.visit_object(Object::new(next)) };
        }
    }
    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.link(*object).count.fetch_add(1, Relaxed);
    }
    fn release(&self, reference: ClaimRef, m: &Mutator<FAULT>) {
        self.drop_reference(reference.object(), m);
    }
    fn clear(&self, object: Live<'_>, m: &Mutator<FAULT>) {
        if let Some(next) = self.swap(*object, None) {
            self.drop_reference(next, m);
        }
    }
}

impl<const FAULT: u8> Specimen for Links<FAULT> {
    type Weak = ();
    const FIELDS: usize = 1;

    fn specimen(_: &Arc<Journal>) -> Self {
        Self::default()
    }
    fn alloc(m: &Mutator<FAULT>, _: ObjectSpec) -> Result<Object, OutOfMemory> {
        let cell = m.allocate(size_of::<Link>(), align_of::<Link>())?;
        let link = Link { count: AtomicUsize::new(1), next: AtomicPtr::new(null_mut()) };
        // SAFETY: new memory, of this size.
        unsafe {
            cell.cast::<Link>().write(link);
            m.publish(Object::new(cell), true);
        }
        Ok(Object::new(cell))
    }
    fn set(m: &Mutator<FAULT>, object: Object, _: usize, target: Option<Object>) {
        if let Some(target) = target {
            Self::retain(m, target);
        }
        if let Some(old) = m.model().swap(object, target) {
            m.model().drop_reference(old, m);
        }
    }
    fn retain(m: &Mutator<FAULT>, object: Object) {
        if FAULT == ANY_ORDER {
            let mut ups = m.model().ups.lock().unwrap();
            *ups = 1 + *m.model().downs.lock().unwrap();
        }
        m.model().raise(object);
    }
    fn drop_ref(m: &Mutator<FAULT>, object: Object) {
        if FAULT == ANY_ORDER {
            let mut downs = m.model().downs.lock().unwrap();
            *downs = 1 + *m.model().ups.lock().unwrap();
        }
        m.model().drop_reference(object, m);
    }
}

fn checked<const FAULT: u8>() -> Result<CheckReport, Broken> {
    Check::new().programs(100).schedules(10).run::<Links<FAULT>>()
}

fn broken<const FAULT: u8>() -> Broken {
    let broken = checked::<FAULT>().unwrap_err();
    println!("{broken}");
    assert!(broken.program.iter().any(|line| line.contains("under schedule")), "{broken}");
    broken
}

#[test]
fn a_correct_model_passes() {
    let report = checked::<NOTHING>().unwrap();
    println!("{report}");
    assert_eq!(report.programs, 10 * 15);
    assert!(report.collections > 1000);
}

#[test]
fn a_count_that_two_threads_see_at_0_is_found() {
    let broken = broken::<LOOKS_AGAIN>();
    assert!(matches!(broken.rule, Rule::Counts | Rule::Memory), "{broken}");
}

#[test]
fn a_lost_increment_is_found_and_the_seed_repeats_it() {
    let first = broken::<READS_AND_WRITES>();
    assert!(matches!(first.rule, Rule::Counts | Rule::Memory), "{first}");
    let again =
        Check::new().seed(first.seed).programs(1).schedules(10).run::<Links<READS_AND_WRITES>>();
    assert_eq!(again.unwrap_err(), first);
}

#[test]
fn a_thread_that_waits_for_ever_is_found() {
    let broken = broken::<ANY_ORDER>();
    assert_eq!(broken.rule, Rule::Ends, "{broken}");
}

/// Two threads exchange the parts of a cycle, which a third one collects.
#[test]
fn programs_on_the_typed_face_have_random_schedules() {
    use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

    #[derive(Trace)]
    struct Node {
        next: GcCell<Option<Gc<Node>>>,
    }

    fn ring(m: &Mutator) -> Gc<Node> {
        let first = m.alloc(Node { next: GcCell::new(None) });
        first.next.lock(m).replace(m.alloc(Node { next: GcCell::new(Some(first.clone())) }));
        first
    }

    let seen = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let most = Arc::clone(&seen);
    let program = move || {
        let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
        let m = heap.attach();
        let shared = Arc::new(ring(&m));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (heap, shared) = (heap.clone(), Arc::clone(&shared));
                shuttle::thread::spawn(move || {
                    let mut m = heap.attach();
                    let mine = ring(&m);
                    let old = shared.next.lock(&m).replace(mine.clone());
                    *mine.next.lock(&m) = old;
                    m.safepoint();
                })
            })
            .collect();
        let mut m = m;
        m.collect();
        m.detach(|| threads.into_iter().for_each(|thread| thread.join().unwrap()));
        drop(shared);
        m.collect();
        assert_eq!(heap.stats().live_objects, 0);
        most.fetch_max(shuttle::current::context_switches(), std::sync::atomic::Ordering::Relaxed);
    };
    shuttle::check_random_with_seed(program, 7, 50);
    assert!(seen.load(std::sync::atomic::Ordering::Relaxed) > 100);
}
