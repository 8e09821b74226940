//! The kit on the model of the loom tests: the same source, with the ordinary primitives.

use std::sync::Arc;

use ::standstill::model::Object;
use ::standstill::{self, OutOfMemory};
use standstill_model_check::{Abilities, Journal, ObjectSpec, Specimen, check};
use tiny::{Mutator, Tiny, set, try_new};

#[path = "../../../loom_tests/tiny.rs"]
mod tiny;

/// The primitives, with the functions that loom's have.
mod sync {
    pub(super) use parking_lot::Mutex;
    pub(super) use std::sync::atomic::{AtomicUsize, Ordering};

    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Makes a new object known.
///
/// # Safety
///
/// As for `ModelMutator::publish`.
unsafe fn publish(m: &Mutator, object: Object) {
    // SAFETY: as the caller says.
    unsafe { m.publish(object, true) };
}

impl Specimen for Tiny {
    type Weak = ();

    const FIELDS: usize = 1;
    const ABILITIES: Abilities = Abilities::NONE.finalizers();

    fn specimen(journal: &Arc<Journal>) -> Self {
        let journal = Arc::clone(journal);
        Self { asked: Some(Box::new(move |object| journal.finalized(object))), ..Self::default() }
    }

    fn alloc(m: &Mutator, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
        try_new(m, spec.finalizer)
    }

    fn set(m: &Mutator, object: Object, _: usize, target: Option<Object>) {
        let target = target.map(|target| m.model().add_ref(target));
        if let Some(old) = set(m, object, target) {
            m.model().drop_ref(old, m);
        }
    }

    fn retain(m: &Mutator, object: Object) {
        m.model().add_ref(object);
    }

    fn drop_ref(m: &Mutator, object: Object) {
        m.model().drop_ref(object, m);
    }
}

#[test]
fn the_model_of_loom_breaks_no_rule() {
    let report = check::<Tiny>().unwrap();
    println!("{report}");
    assert!(!report.skipped.contains(&"finalizers"));
}
