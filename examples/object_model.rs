//! A runtime with objects of its own: its header, its counts, its way to destroy objects.
//!
//! `Gc<T>` and `Trace` are not used here. The collector reaches the objects through one trait,
//! [`ObjectModel`]: it reads counts, follows references, and clears fields; it never frees.
//! The guide docs/model.md walks through this file, and through a port. It runs by
//! `cargo run --example object_model`.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock};

use standstill::model::{
    ClaimRef, Count, Describe, Finalizers, Live, ModelMutator, Object, ObjectModel, PollWord,
    Reserved, Stopped, ThreadData, Tracer, WeakRefs,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, Heap, OutOfMemory};

/// An object of this runtime: a Lisp pair. The count is one atomic number.
#[repr(C)]
struct Pair {
    count: AtomicUsize,
    /// Each is null or a counted reference.
    fields: [AtomicPtr<u8>; 2],
    /// Memory of Rust's allocator, which the heap cannot see.
    text: Box<[u8]>,
    has_finalizer: AtomicBool,
    /// Made with the first weak reference to the pair.
    weak: OnceLock<Weak>,
}

/// A weak reference: the pair, until the pair dies or the collector finds it to be garbage.
type Weak = Arc<Mutex<Option<Object>>>;

/// The model, with the data of the whole heap.
struct Pairs {
    /// The number of pairs that have died.
    died: AtomicUsize,
    /// The finalizer of all pairs that have one. It returns whether it keeps the pair alive, by a
    /// new reference.
    finalizer: Box<dyn Fn(Object) -> bool + Send + Sync>,
}

type Mutator = ModelMutator<Pairs>;

impl Pairs {
    fn new(finalizer: impl Fn(Object) -> bool + Send + Sync + 'static) -> Self {
        Self { died: AtomicUsize::new(0), finalizer: Box::new(finalizer) }
    }

    /// A new pair without references, and the one reference to it.
    fn pair(m: &Mutator) -> Object {
        Self::try_pair(m, Box::default()).expect("memory for a pair")
    }

    /// A new pair with a text, where memory may be refused.
    fn try_pair(m: &Mutator, text: Box<[u8]>) -> Result<Object, OutOfMemory> {
        let external = text.len().cast_signed();
        let cell = m.allocate(size_of::<Pair>(), align_of::<Pair>())?;
        let pair = Pair {
            count: AtomicUsize::new(1),
            fields: [const { AtomicPtr::new(null_mut()) }; 2],
            text,
            has_finalizer: AtomicBool::new(false),
            weak: OnceLock::new(),
        };
        // SAFETY: the cell is fresh, of this size and alignment; it holds a pair before the
        // collector can reach it.
        unsafe {
            cell.cast::<Pair>().write(pair);
            m.publish(Object::new(cell), true);
        }
        m.adjust_external_bytes(external);
        Ok(Object::new(cell))
    }

    /// The pair behind an address.
    fn view(&self, object: Object) -> &Pair {
        // SAFETY: every object of this heap is a pair. The caller holds a reference to it, or is
        // the collector, which names live objects only.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    /// Exchanges a field. Takes a counted reference and returns one.
    fn swap(&self, object: Object, field: usize, new: Option<Object>) -> Option<Object> {
        let new = new.map_or(null_mut(), |new| new.as_ptr().as_ptr());
        NonNull::new(self.view(object).fields[field].swap(new, AcqRel)).map(Object::new)
    }

    /// Adds a reference.
    fn retain(&self, object: Object) -> Object {
        self.view(object).count.fetch_add(1, Relaxed);
        object
    }

    /// Drops a reference. The last one destroys the pair, and drops the references in its fields:
    /// in a loop, because a recursion would be as deep as the list is long.
    fn drop_reference(&self, object: Object, m: &Mutator) {
        let mut dropped = vec![object];
        while let Some(object) = dropped.pop() {
            if self.view(object).count.fetch_sub(1, AcqRel) != 1 {
                continue;
            }
            self.forget_weak(object);
            dropped.extend((0..2).filter_map(|field| self.swap(object, field, None)));
            self.died.fetch_add(1, Relaxed);
            m.adjust_external_bytes(-self.view(object).text.len().cast_signed());
            // SAFETY: the count is 0, so nothing refers to the pair; its fields are empty.
            unsafe {
                object.as_ptr().cast::<Pair>().drop_in_place();
                m.free(object.as_ptr());
            }
        }
    }

    /// A weak reference to a pair to which the caller holds a reference.
    fn downgrade(&self, object: Object) -> Weak {
        self.view(object).weak.get_or_init(|| Arc::new(Mutex::new(Some(object)))).clone()
    }

    /// The pair with a new reference, if it is alive. Only attached threads may upgrade.
    fn upgrade(&self, weak: &Weak, _: &Mutator) -> Option<Object> {
        // The thread that destroys the pair takes this lock before it frees the memory.
        let target = weak.lock().unwrap();
        let object = (*target)?;
        // At 0 another thread destroys the pair already, so the count must not rise any more.
        let raised = |count| (count > 0).then_some(count + 1);
        self.view(object).count.fetch_update(Relaxed, Relaxed, raised).ok().map(|_| object)
    }

    fn forget_weak(&self, object: Object) {
        if let Some(weak) = self.view(object).weak.get() {
            *weak.lock().unwrap() = None;
        }
    }
}

// SAFETY: the rules of `ObjectModel`. 1: `count` is the number of references. 2: memory is
// freed only in `drop_reference`, at 0. 3: only attached threads lower counts, outside of stops. 4:
// `traverse` reports the fields, which are counted. 5: no count is pending anywhere. 6: no method
// reaches a safepoint: all get the mutator as `&`. 7: all references are counted. 8: in a stop no
// thread changes a field.
unsafe impl ObjectModel for Pairs {
    /// All objects lie in memory of the heap.
    type Addresses = Reserved;

    /// Those that are listed below.
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(self.view(*object).count.load(Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        for field in &self.view(*object).fields {
            if let Some(target) = NonNull::new(field.load(Relaxed)) {
                // SAFETY: rule 4: a reference in a field is counted.
                unsafe { tracer.visit_object(Object::new(target)) };
            }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.retain(*object);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        self.drop_reference(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        for field in 0..2 {
            if let Some(target) = self.swap(*object, field, None) {
                self.drop_reference(target, m);
            }
        }
    }
}

standstill::parts!(Pairs: Finalizers, WeakRefs, ThreadData, PollWord, Describe);

/// Collections call them; a pair that dies by its count dies without.
impl Finalizers<Self> for Pairs {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        model.view(*object).has_finalizer.load(Relaxed)
    }

    fn finalize(model: &Self, object: Live<'_>, _: &Mutator) {
        if (model.finalizer)(*object) {
            model.retain(*object);
        }
    }
}

/// Without callbacks.
impl WeakRefs<Self> for Pairs {
    type Callback = ();

    fn has_weak(model: &Self, object: Live<'_>) -> bool {
        model.view(*object).weak.get().is_some()
    }

    fn clear_weak(model: &Self, object: Stopped<'_>) {
        model.forget_weak(*object);
    }
}

/// The poll word of a thread.
impl ThreadData<Self> for Pairs {
    type Local = AtomicBool;
    type Private = ();

    fn local(_: &Self) -> AtomicBool {
        AtomicBool::new(false)
    }

    fn private(_: &Self) -> Option<()> {
        Some(())
    }
}

impl PollWord<Self> for Pairs {
    fn requested(_: ThreadId, word: &AtomicBool, _: u32) {
        word.swap(true, Release);
    }
}

/// For paths with the names of fields.
impl Describe<Self> for Pairs {
    fn fields(model: &Self, object: Stopped<'_>, tracer: &mut Tracer) {
        for (name, field) in ["head", "tail"].into_iter().zip(&model.view(*object).fields) {
            tracer.field(name);
            if let Some(target) = NonNull::new(field.load(Relaxed)) {
                // SAFETY: the pair holds a counted reference to the target.
                unsafe { tracer.visit_object(Object::new(target)) };
            }
        }
    }
}

/// The back edge of a loop. Here the heap collects, and the thread parks for collections of others.
fn tick(m: &mut Mutator) {
    // The word first: a request that arrives between the two lines is not lost then.
    if m.local().load(Relaxed) && m.local().swap(false, Acquire) {
        m.safepoint();
    }
}

fn main() {
    let pairs = Pairs::new(|_| false);
    let heap = Heap::builder().build_with(pairs).expect("address space for a heap");
    let mut m = heap.attach();
    let pairs = heap.model();

    // A list of a million pairs, freed by its counts.
    let mut list = Pairs::pair(&m);
    for _ in 1..1_000_000 {
        let pair = Pairs::pair(&m);
        pairs.swap(pair, 1, Some(list));
        list = pair;
        tick(&mut m);
    }
    pairs.drop_reference(list, &m);
    println!("{} pairs died by their counts", pairs.died.load(Relaxed));
    assert_eq!(pairs.died.swap(0, Relaxed), 1_000_000);

    // Two pairs that refer to each other, and a third that is still held.
    let [a, b, held] = [(); 3].map(|()| Pairs::pair(&m));
    pairs.swap(a, 0, Some(pairs.retain(b)));
    pairs.swap(b, 0, Some(pairs.retain(a)));
    pairs.swap(a, 1, Some(pairs.retain(held)));
    let weak = [a, held].map(|pair| pairs.downgrade(pair));
    pairs.view(a).has_finalizer.store(true, Relaxed);
    pairs.drop_reference(a, &m);
    pairs.drop_reference(b, &m);
    assert_eq!(pairs.died.load(Relaxed), 0);

    let report = m.try_collect(Collect::full()).expect("no thread has leaked its mutator");
    println!("a collection cleared {} pairs", report.collected);
    assert_eq!((report.finalized, report.collected, pairs.died.load(Relaxed)), (1, 2, 2));
    assert_eq!(weak.map(|weak| pairs.upgrade(&weak, &m)), [None, Some(held)]);
    assert_eq!(pairs.view(held).count.load(Relaxed), 2);
    pairs.drop_reference(held, &m);
    pairs.drop_reference(held, &m);
    assert_eq!(heap.stats().live_objects, 0);

    // Small dead pairs with large texts: the heap collects before there are many.
    let mut most = 0;
    for _ in 0..200 {
        let pair = Pairs::try_pair(&m, vec![0; 1 << 20].into()).expect("memory for a pair");
        pairs.swap(pair, 0, Some(pair));
        most = most.max(heap.stats().external_bytes);
        tick(&mut m);
    }
    println!("{} MiB of texts at a time", most >> 20);
    assert!((1 << 20..32 << 20).contains(&most));
}

/// The conformance kit makes pairs, changes them, and tells whether `Pairs` breaks a rule:
/// `cargo test --example object_model`.
#[cfg(test)]
mod tests {
    use super::*;
    use standstill_model_check::{Abilities, Journal, ObjectSpec, Specimen};

    impl Specimen for Pairs {
        type Weak = Weak;

        const FIELDS: usize = 2;
        const ABILITIES: Abilities = Abilities::NONE.finalizers().weak();

        fn specimen(journal: &Arc<Journal>) -> Self {
            let journal = journal.clone();
            Self::new(move |pair| journal.finalized(pair))
        }

        fn alloc(m: &Mutator, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
            let pair = Self::try_pair(m, Box::default())?;
            m.model().view(pair).has_finalizer.store(spec.finalizer, Relaxed);
            Ok(pair)
        }

        fn set(m: &Mutator, object: Object, field: usize, target: Option<Object>) {
            let pairs = m.model();
            let target = target.map(|target| pairs.retain(target));
            if let Some(old) = pairs.swap(object, field, target) {
                pairs.drop_reference(old, m);
            }
        }

        fn retain(m: &Mutator, object: Object) {
            m.model().retain(object);
        }

        fn drop_ref(m: &Mutator, object: Object) {
            m.model().drop_reference(object, m);
        }

        fn downgrade(m: &Mutator, object: Object, _: Option<u64>) -> Option<Weak> {
            Some(m.model().downgrade(object))
        }

        fn upgrade(m: &Mutator, weak: &Weak) -> Option<Object> {
            m.model().upgrade(weak, m)
        }

        fn take_word(m: &Mutator) -> bool {
            m.local().swap(false, Acquire)
        }
    }

    #[test]
    fn a_path_names_the_fields_of_pairs() {
        let heap = Heap::builder().build_with(Pairs::new(|_| false)).unwrap();
        let mut m = heap.attach();
        let pairs = heap.model();
        let last = Pairs::try_pair(&m, vec![0; 100].into()).unwrap();
        let [first, middle] = [(); 2].map(|()| Pairs::pair(&m));
        pairs.swap(first, 1, Some(middle));
        pairs.swap(middle, 0, Some(last));
        let path = m.why_alive(last).unwrap().to_string();
        let name = &m.census().types[0].type_name;
        assert_eq!(
            path,
            format!("outside (1 reference) -> {name} .tail -> {name} .head -> {name}")
        );
        let census = m.census();
        assert_eq!((census.total().objects, census.total().held), (3, 1));
        assert_eq!(m.graph().holders()[0].retained_objects, 3);
        pairs.drop_reference(first, &m);
        assert_eq!(m.census().total().objects, 0);
    }

    #[test]
    fn pairs_break_no_rule() {
        println!("{}", standstill_model_check::check::<Pairs>().unwrap());
    }
}
