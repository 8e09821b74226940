//! The kit on the built-in model: objects of the typed face, and dynamic objects, in turns.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::base::error::OutOfMemory;
use crate::managed::{Managed, Raw};
#[cfg(feature = "cpython")]
use crate::model_check::built_in_dynamic as dynamic;
use crate::model_check::built_in_journal::{FIELDS, journal, object, set_journal};
use crate::model_check::specimen::{Abilities, Journal, ObjectSpec, Specimen};
use crate::object::header::Header;
use crate::object::type_info::Object;
use crate::typed::weak::WeakRef;
use crate::{AnyGc, Finalizer, Gc, GcCell, GcWeak, Mutator, Trace, Tracer};

thread_local! {
    /// Objects that this thread has made. Every second one is dynamic.
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// An object of the typed face, with or without a finalizer.
pub(crate) struct Thing<const FINALIZED: bool> {
    fields: [GcCell<Option<AnyGc>>; FIELDS],
}

impl<const FINALIZED: bool> Trace for Thing<FINALIZED> {
    const FINALIZER: Option<Finalizer<Self>> = if FINALIZED {
        Some(Finalizer::new(|this, _| {
            if journal().finalized(object(this.header())) {
                let _ = ManuallyDrop::new(Gc::clone(this));
            }
        }))
    } else {
        None
    };

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.fields, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.fields, m);
    }
}

/// The data of a weak reference with a callback.
pub(crate) struct Ticket(u64);

impl Trace for Ticket {
    const TRACKED: bool = false;

    fn traverse(_: &Self, _: &mut Tracer) {}
}

fn call<T: Trace>(weak: &Gc<WeakRef<T, Ticket>>, _: &Mutator) {
    journal().called_back(weak.data().0);
}

/// A weak reference. Those with a callback are objects of the heap.
pub(crate) enum Weak {
    Plain(GcWeak<Thing<false>>),
    Finalized(GcWeak<Thing<true>>),
    PlainCalls(Gc<WeakRef<Thing<false>, Ticket>>),
    FinalizedCalls(Gc<WeakRef<Thing<true>, Ticket>>),
    #[cfg(feature = "cpython")]
    Dynamic(AnyGc),
}

/// The face of the same mutator.
fn face(m: &Raw) -> &Mutator {
    // SAFETY: rule *typed*: a transparent wrapper.
    unsafe { &*std::ptr::from_ref(m).cast::<Mutator>() }
}

/// The handle that stands for a reference of the kit. It is not dropped.
fn handle(object: Object) -> ManuallyDrop<AnyGc> {
    // SAFETY: rule *counted*: the kit holds a reference.
    ManuallyDrop::new(unsafe { AnyGc::from_header(object.as_ptr().cast::<Header>()) })
}

/// The object of a handle, whose reference goes to the kit.
fn given(gc: AnyGc) -> Object {
    object(ManuallyDrop::new(gc).header())
}

fn alloc<const FINALIZED: bool>(m: &Mutator) -> Result<AnyGc, OutOfMemory> {
    let fields = [const { None }; FIELDS].map(GcCell::new);
    let made = m.try_alloc(Thing::<FINALIZED> { fields });
    made.map(Gc::into_any).map_err(|_| OutOfMemory::System)
}

fn fields<'a>(from: &'a AnyGc, m: &'a Mutator) -> Option<&'a [GcCell<Option<AnyGc>>; FIELDS]> {
    let plain = from.downcast_ref::<Thing<false>>(m).map(|thing| &thing.fields);
    plain.or_else(|| from.downcast_ref::<Thing<true>>(m).map(|thing| &thing.fields))
}

impl Specimen for Managed {
    type Weak = Weak;

    const FIELDS: usize = FIELDS;
    const ABILITIES: Abilities = {
        let typed = Abilities::NONE.finalizers().callbacks().immortals().frees_late();
        // Only dynamic objects have legacy finalizers.
        if cfg!(feature = "cpython") { typed.legacy() } else { typed }
    };

    fn specimen(journal: &Arc<Journal>) -> Self {
        set_journal(journal);
        MADE.set(0);
        let model = Self::new();
        // As in `HeapBuilder::build`.
        if let Some(types) = &crate::EXTENSIONS.dynamic {
            assert_eq!(model.types.index_of(types.info).expect("the first type"), types.index);
            (types.make_builtins)().expect("built-in types");
            model.expect_legacy(true);
        }
        model
    }

    fn alloc(m: &Raw, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
        let face = face(m);
        let number = MADE.get();
        let is_dynamic = cfg!(feature = "cpython") && (number % 2 == 1 || spec.legacy);
        let made = match (is_dynamic, spec.finalizer) {
            #[cfg(feature = "cpython")]
            (true, _) => dynamic::alloc(face, spec),
            (_, true) => alloc::<true>(face),
            (_, false) => alloc::<false>(face),
        }?;
        MADE.set(number + 1);
        if spec.immortal {
            made.immortalize(face);
        }
        Ok(given(made))
    }

    fn set(m: &Raw, from: Object, field: usize, target: Option<Object>) {
        let target = target.map(|target| AnyGc::clone(&handle(target)));
        let from = handle(from);
        match fields(&from, face(m)) {
            Some(fields) => fields[field].set(face(m), target),
            #[cfg(feature = "cpython")]
            None => dynamic::set(&from, field, target),
            #[cfg(not(feature = "cpython"))]
            None => unreachable!("all objects are typed"),
        }
    }

    fn retain(_: &Raw, object: Object) {
        let _ = ManuallyDrop::new(AnyGc::clone(&handle(object)));
    }

    fn drop_ref(_: &Raw, object: Object) {
        drop(ManuallyDrop::into_inner(handle(object)));
    }

    fn downgrade(m: &Raw, target: Object, ticket: Option<u64>) -> Option<Weak> {
        let (target, m) = (AnyGc::clone(&handle(target)), face(m));
        let target = match target.downcast::<Thing<false>>(m) {
            Ok(target) => {
                return Some(match ticket {
                    None => Weak::Plain(Gc::downgrade(&target, m)),
                    Some(ticket) => Weak::PlainCalls(m.alloc_weak(&target, Ticket(ticket), call)),
                });
            }
            Err(target) => target,
        };
        match (target.downcast::<Thing<true>>(m), ticket) {
            (Ok(target), None) => Some(Weak::Finalized(Gc::downgrade(&target, m))),
            (Ok(target), Some(ticket)) => {
                Some(Weak::FinalizedCalls(m.alloc_weak(&target, Ticket(ticket), call)))
            }
            #[cfg(feature = "cpython")]
            (Err(target), ticket) => Some(Weak::Dynamic(dynamic::downgrade(m, &target, ticket))),
            #[cfg(not(feature = "cpython"))]
            (Err(_), _) => None,
        }
    }

    fn upgrade(m: &Raw, weak: &Weak) -> Option<Object> {
        let m = face(m);
        let found = match weak {
            Weak::Plain(weak) => weak.upgrade(m).map(Gc::into_any),
            Weak::Finalized(weak) => weak.upgrade(m).map(Gc::into_any),
            Weak::PlainCalls(weak) => weak.upgrade(m).map(Gc::into_any),
            Weak::FinalizedCalls(weak) => weak.upgrade(m).map(Gc::into_any),
            #[cfg(feature = "cpython")]
            Weak::Dynamic(weak) => dynamic::upgrade(m, weak),
        };
        found.map(given)
    }
}

#[test]
fn the_built_in_model_breaks_no_rule() {
    let report = crate::model_check::check::<Managed>().unwrap();
    println!("{report}");
    assert!(!report.skipped.contains(&"finalizers") && !report.skipped.contains(&"weak callbacks"));
    assert_eq!(report.skipped.contains(&"legacy finalizers"), !cfg!(feature = "cpython"));
}
