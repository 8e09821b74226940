//! The kit on the built-in model: objects of the typed face.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::error::OutOfMemory;
use crate::managed::{Managed, Raw};
use crate::model_check::specimen::{Abilities, Journal, ObjectSpec, Specimen};
use crate::object::header::Header;
use crate::object::type_info::Object;
use crate::{Gc, GcCell, GcWeak, Mutator, Trace, Tracer};

/// The most fields of an object.
const FIELDS: usize = 3;

/// An object of the typed face.
pub(crate) struct Thing {
    fields: [GcCell<Option<Gc<Self>>>; FIELDS],
}

impl Trace for Thing {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.fields, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.fields, m);
    }
}

/// The face of the same mutator.
fn face(m: &Raw) -> &Mutator {
    // SAFETY: rule *typed*: a transparent wrapper.
    unsafe { &*std::ptr::from_ref(m).cast::<Mutator>() }
}

/// The handle that stands for a reference of the kit. It is not dropped.
fn handle(object: Object) -> ManuallyDrop<Gc<Thing>> {
    // SAFETY: rule *counted*: the kit holds a reference.
    ManuallyDrop::new(unsafe { Gc::from_header(object.as_ptr().cast::<Header>()) })
}

fn object(header: NonNull<Header>) -> Object {
    Object::new(header.cast())
}

impl Specimen for Managed {
    type Weak = GcWeak<Thing>;

    const FIELDS: usize = FIELDS;
    const ABILITIES: Abilities = Abilities::NONE.weak().frees_late();

    fn specimen(_: &Arc<Journal>) -> Self {
        Self::new()
    }

    fn alloc(m: &Raw, _: ObjectSpec) -> Result<Object, OutOfMemory> {
        let fields = [const { None }; FIELDS].map(GcCell::new);
        match face(m).try_alloc(Thing { fields }) {
            Ok(thing) => Ok(object(thing.into_header())),
            Err(_) => Err(OutOfMemory::System),
        }
    }

    fn set(m: &Raw, from: Object, field: usize, target: Option<Object>) {
        let target = target.map(|target| Gc::clone(&handle(target)));
        handle(from).fields[field].set(face(m), target);
    }

    fn retain(_: &Raw, object: Object) {
        let _ = ManuallyDrop::new(Gc::clone(&handle(object)));
    }

    fn drop_ref(_: &Raw, object: Object) {
        drop(ManuallyDrop::into_inner(handle(object)));
    }

    fn downgrade(m: &Raw, target: Object, _: Option<u64>) -> Option<GcWeak<Thing>> {
        Some(Gc::downgrade(&handle(target), face(m)))
    }

    fn upgrade(m: &Raw, weak: &GcWeak<Thing>) -> Option<Object> {
        weak.upgrade(face(m)).map(|thing| object(thing.into_header()))
    }
}

#[test]
fn the_built_in_model_breaks_no_rule() {
    println!("{}", crate::model_check::check::<Managed>().unwrap());
}
