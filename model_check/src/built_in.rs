//! The kit on the built-in model: objects of the typed face, and dynamic objects, in turns.

#![allow(missing_debug_implementations, reason = "a test")]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use standstill::dynamic::{as_raw, from_raw, into_raw};
use standstill::kit::{self, Managed, face};
use standstill::model::{ModelMutator, Object};
use standstill::{
    AnyGc, Finalizer, Gc, GcCell, GcWeak, Mutator, OutOfMemory, Trace, Tracer, WeakRef,
};

use crate::built_in_dynamic as dynamic;
use crate::built_in_journal::{FIELDS, journal, object, set_journal};
use crate::specimen::{Abilities, Journal, ObjectSpec, Specimen};

type Raw = ModelMutator<Managed>;

thread_local! {
    /// Objects that this thread has made. Every second one is dynamic.
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// An object of the typed face, with or without a finalizer.
pub struct Thing<const FINALIZED: bool> {
    fields: [GcCell<Option<AnyGc>>; FIELDS],
}

impl<const FINALIZED: bool> Trace for Thing<FINALIZED> {
    const FINALIZER: Option<Finalizer<Self>> = if FINALIZED {
        Some(Finalizer::new(|this, _| {
            let address = object(as_raw(&Gc::into_any(Gc::clone(this))));
            if journal().finalized(address) {
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
pub struct Ticket(u64);

impl Trace for Ticket {
    const TRACKED: bool = false;

    fn traverse(_: &Self, _: &mut Tracer) {}
}

fn call<T: Trace>(weak: &Gc<WeakRef<T, Ticket>>, _: &Mutator) {
    journal().called_back(weak.data().0);
}

/// A weak reference. Those with a callback are objects of the heap.
pub enum Weak {
    Plain(GcWeak<Thing<false>>),
    Finalized(GcWeak<Thing<true>>),
    PlainCalls(Gc<WeakRef<Thing<false>, Ticket>>),
    FinalizedCalls(Gc<WeakRef<Thing<true>, Ticket>>),
    Dynamic(AnyGc),
}

/// The handle that stands for a reference of the kit. It is not dropped.
fn handle(object: Object) -> ManuallyDrop<AnyGc> {
    // SAFETY: rule *counted*: the kit holds a reference.
    ManuallyDrop::new(unsafe { from_raw(object.as_ptr().cast()) })
}

/// The object of a handle, whose reference goes to the kit.
fn given(gc: AnyGc) -> Object {
    object(into_raw(gc))
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
    // Only dynamic objects have legacy finalizers.
    const ABILITIES: Abilities =
        Abilities::NONE.finalizers().callbacks().immortals().frees_late().legacy();

    fn specimen(journal: &Arc<Journal>) -> Self {
        set_journal(journal);
        MADE.set(0);
        kit::built_in()
    }

    fn alloc(m: &Raw, spec: ObjectSpec) -> Result<Object, OutOfMemory> {
        let face = face(m);
        let number = MADE.get();
        let is_dynamic = number % 2 == 1 || spec.legacy;
        let made = match (is_dynamic, spec.finalizer) {
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
            None => dynamic::set(&from, field, target),
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
            (Err(target), ticket) => Some(Weak::Dynamic(dynamic::downgrade(m, &target, ticket))),
        }
    }

    fn upgrade(m: &Raw, weak: &Weak) -> Option<Object> {
        let m = face(m);
        let found = match weak {
            Weak::Plain(weak) => weak.upgrade(m).map(Gc::into_any),
            Weak::Finalized(weak) => weak.upgrade(m).map(Gc::into_any),
            Weak::PlainCalls(weak) => weak.upgrade(m).map(Gc::into_any),
            Weak::FinalizedCalls(weak) => weak.upgrade(m).map(Gc::into_any),
            Weak::Dynamic(weak) => dynamic::upgrade(m, weak),
        };
        found.map(given)
    }
}

#[test]
fn the_built_in_model_breaks_no_rule() {
    let report = crate::check::<Managed>().unwrap();
    println!("{report}");
    assert!(!report.skipped.contains(&"finalizers") && !report.skipped.contains(&"weak callbacks"));
    assert!(!report.skipped.contains(&"legacy finalizers"));
}
