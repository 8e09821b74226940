//! The kit on the model of the loom tests: the same source, with the ordinary primitives.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::tiny::{Mutator, Tiny, set, try_new};
use crate::base::error::OutOfMemory;
use crate::model_check::specimen::{Abilities, Journal, ObjectSpec, Specimen};
use crate::object::type_info::Object;

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
    let report = crate::model_check::check::<Tiny>().unwrap();
    println!("{report}");
    assert!(!report.skipped.contains(&"finalizers"));
}
