//! A runtime with objects of its own: its header, its counts, its way to destroy objects.
//!
//! `Gc<T>` and `Trace` are not used here. The collector reaches the objects through one trait,
//! [`ObjectModel`]: it reads counts, follows references, and clears fields; it never frees.
//! The guide docs/model.md walks through this file, and through a port. It runs by
//! `cargo run --example object_model`.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

use standstill::model::{
    ClaimRef, Count, Live, ModelMutator, Object, ObjectModel, Reserved, Stopped, Tracer,
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
}

/// The model, with the data of the whole heap: here, the number of pairs that have died.
#[derive(Default)]
struct Pairs {
    died: AtomicUsize,
}

type Mutator = ModelMutator<Pairs>;

impl Pairs {
    /// A new pair without references, and the one reference to it.
    fn pair(m: &Mutator) -> Object {
        Self::try_pair(m, Box::default()).expect("memory for a pair")
    }

    /// A new pair with a text, where memory may be refused.
    fn try_pair(m: &Mutator, text: Box<[u8]>) -> Result<Object, OutOfMemory> {
        let external = text.len().cast_signed();
        let cell = m.allocate(size_of::<Pair>(), align_of::<Pair>())?;
        let fields = [const { AtomicPtr::new(null_mut()) }; 2];
        // SAFETY: the cell is fresh, of this size and alignment; it holds a pair before the
        // collector can reach it.
        unsafe {
            cell.cast::<Pair>().write(Pair { count: AtomicUsize::new(1), fields, text });
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
}

// SAFETY: the rules of `ObjectModel`. 1: `count` is the number of references. 2: memory is
// freed only in `drop_reference`, at 0. 3: only attached threads lower counts, outside of stops. 4:
// `traverse` reports the fields, which are counted. 5: no count is pending anywhere. 6: no method
// reaches a safepoint: all get the mutator as `&`. 7: all references are counted.
unsafe impl ObjectModel for Pairs {
    /// All objects lie in memory of the heap.
    type Addresses = Reserved;

    type Parts = ();

    /// In a stop no thread changes a field.
    const STABLE_DURING_STOP: bool = true;

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

fn main() {
    let heap = Heap::builder().build_with(Pairs::default()).expect("address space for a heap");
    let mut m = heap.attach();
    let pairs = heap.model();

    // A list of a million pairs, freed by its counts.
    let mut list = Pairs::pair(&m);
    for _ in 1..1_000_000 {
        let pair = Pairs::pair(&m);
        pairs.swap(pair, 1, Some(list));
        list = pair;
        // Here the heap collects by itself, and the thread parks for collections of others.
        m.safepoint();
    }
    pairs.drop_reference(list, &m);
    println!("{} pairs died by their counts", pairs.died.load(Relaxed));
    assert_eq!(pairs.died.swap(0, Relaxed), 1_000_000);

    // Two pairs that refer to each other, and a third that is still held.
    let [a, b, held] = [(); 3].map(|()| Pairs::pair(&m));
    pairs.swap(a, 0, Some(pairs.retain(b)));
    pairs.swap(b, 0, Some(pairs.retain(a)));
    pairs.swap(a, 1, Some(pairs.retain(held)));
    pairs.drop_reference(a, &m);
    pairs.drop_reference(b, &m);
    assert_eq!(pairs.died.load(Relaxed), 0);

    let report = m.try_collect(Collect::full()).expect("no thread has leaked its mutator");
    println!("a collection cleared {} pairs", report.collected);
    assert_eq!((report.collected, pairs.died.load(Relaxed)), (2, 2));
    assert_eq!(pairs.view(held).count.load(Relaxed), 1);
    pairs.drop_reference(held, &m);
    assert_eq!(heap.stats().live_objects, 0);

    // Small dead pairs with large texts: the heap collects before there are many.
    let mut most = 0;
    for _ in 0..200 {
        let pair = Pairs::try_pair(&m, vec![0; 1 << 20].into()).expect("memory for a pair");
        pairs.swap(pair, 0, Some(pair));
        most = most.max(heap.stats().external_bytes);
        m.safepoint();
    }
    println!("{} MiB of texts at a time", most >> 20);
    assert!((1 << 20..32 << 20).contains(&most));
}

/// The conformance kit makes pairs, changes them, and tells whether `Pairs` breaks a rule:
/// `cargo test --example object_model`.
#[cfg(test)]
mod tests {
    use super::*;
    use standstill_model_check::{Journal, ObjectSpec, Specimen};
    use std::sync::Arc;

    impl Specimen for Pairs {
        type Weak = ();

        const FIELDS: usize = 2;

        fn specimen(_: &Arc<Journal>) -> Self {
            Self::default()
        }

        fn alloc(m: &Mutator, _: ObjectSpec) -> Result<Object, OutOfMemory> {
            Self::try_pair(m, Box::default())
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
    }

    #[test]
    fn pairs_break_no_rule() {
        println!("{}", standstill_model_check::check::<Pairs>().unwrap());
    }
}
