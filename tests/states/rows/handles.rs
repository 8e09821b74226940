//! `Gc` and its kin.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

use standstill::{AnyGc, Gc, GcSlice, GcWeak, SharedGc, Tracer};

use super::{Rows, done, fate, ok, outcome};
use crate::stage::Call::{Free, Shared, Tracing};
use crate::stage::impossible;
use crate::things::{Leaf, View};

/// The target of a weak reference.
fn number(gc: Option<Gc<Leaf>>) -> String {
    gc.map_or_else(|| "None".into(), |gc| ok(gc.number))
}

fn hash(value: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

pub(super) const ROWS: Rows = &[
    ("Gc: PartialEq", Free(|t| ok(t.leaf == t.leaf.clone()))),
    ("Gc: Hash", Free(|t| ok(hash(&t.leaf) == hash(&t.leaf.clone())))),
    ("Gc: Deref", Free(|t| ok(t.leaf.number))),
    ("Gc::as_ptr", Free(|t| ok(Gc::as_ptr(&t.leaf) == Gc::as_ptr(&t.leaf.clone())))),
    (
        "Gc::into_raw",
        Free(|t| {
            let raw = Gc::into_raw(t.leaf.clone());
            // SAFETY: of `into_raw`.
            ok(unsafe { Gc::from_raw(raw) }.number)
        }),
    ),
    (
        "Gc::into_raw, taken back and dropped",
        Free(|t| {
            fate(t, || {
                let raw = t.spares.lock().unwrap().leaf.take().map(Gc::into_raw);
                // SAFETY: of `into_raw`.
                drop(raw.map(|raw| unsafe { Gc::from_raw(raw) }));
            })
        }),
    ),
    ("Gc::ptr_eq", Free(|t| ok(Gc::ptr_eq(&t.leaf, &t.leaf.clone())))),
    ("Gc::strong_count", Shared(|t, m| ok(Gc::strong_count(&t.leaf, m)))),
    ("Gc::downgrade", Shared(|t, m| ok(Gc::downgrade(&t.leaf, m) == t.weak))),
    (
        "Gc::try_downgrade",
        Shared(|t, m| outcome(Gc::try_downgrade(&t.leaf, m).map(|w| w == t.weak))),
    ),
    (
        "Gc::try_new_cyclic",
        Shared(|t, m| {
            let made = Gc::try_new_cyclic(m, |weak: &GcWeak<Leaf>| {
                t.value(u32::from(weak.upgrade(m).is_some()))
            });
            outcome(made.map(|gc| gc.number).map_err(|error| error.reason()))
        }),
    ),
    (
        "Gc::new_cyclic",
        Shared(|t, m| {
            let gc = Gc::new_cyclic(m, |weak: &GcWeak<Leaf>| {
                t.value(u32::from(weak.upgrade(m).is_some()))
            });
            ok(gc.number)
        }),
    ),
    ("Gc::is_tracked", Shared(|t, m| ok(Gc::is_tracked(&t.leaf, m)))),
    ("Gc::track", Shared(|t, m| ok(Gc::track(&t.leaf, m)))),
    ("Gc::untrack", Shared(|t, m| ok(Gc::untrack(&t.leaf, m)))),
    ("Gc::is_finalized", Shared(|t, m| ok(Gc::is_finalized(&t.leaf, m)))),
    ("Gc::immortalize", Shared(|t, m| done(Gc::immortalize(&t.leaf, m)))),
    (
        "Gc::try_share",
        Shared(|t, m| match Gc::try_share(t.leaf.clone(), m) {
            Ok(shared) => ok(shared.number),
            Err(gc) => format!("error: {}", gc.number),
        }),
    ),
    ("Gc: From", Free(|t| ok(Gc::from(t.shared.clone()).number))),
    ("Gc::into_any", Free(|t| ok(Gc::into_any(t.leaf.clone()) == Gc::into_any(t.leaf.clone())))),
    ("Gc: Clone", Free(|t| ok(t.leaf == t.leaf.clone()))),
    ("Gc: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().leaf.take())))),
    ("Gc: Debug", Free(|t| ok(format!("{:?}", t.leaf).starts_with("Gc<")))),
    ("Gc: Pointer", Free(|t| ok(format!("{:p}", t.leaf).starts_with("0x")))),
    ("SharedGc::as_gc", Free(|t| ok(SharedGc::as_gc(&t.shared) == SharedGc::as_gc(&t.shared)))),
    ("SharedGc: PartialEq", Free(|t| ok(t.shared == t.shared.clone()))),
    ("SharedGc: Hash", Free(|t| ok(hash(&t.shared) == hash(&t.shared.clone())))),
    ("SharedGc: Deref", Free(|t| ok(t.shared.number))),
    ("SharedGc: Clone", Free(|t| ok(t.shared == t.shared.clone()))),
    ("SharedGc: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().shared.take())))),
    ("SharedGc: Debug", Free(|t| ok(format!("{:?}", t.shared).starts_with("SharedGc<")))),
    ("AnyGc::is", Shared(|t, m| ok((t.any.is::<Leaf>(m), t.any.is::<u8>(m))))),
    (
        "AnyGc::downcast",
        Shared(|t, m| {
            outcome(
                t.any
                    .clone()
                    .downcast::<Leaf>(m)
                    .map(|leaf| leaf.number)
                    .map_err(|_| "another type"),
            )
        }),
    ),
    (
        "AnyGc::downcast_ref",
        Shared(|t, m| ok(t.any.downcast_ref::<Leaf>(m).map(|leaf| leaf.number))),
    ),
    ("AnyGc::type_name", Shared(|t, m| ok(t.any.type_name(m)))),
    ("AnyGc: PartialEq", Free(|t| ok(t.any == t.any.clone()))),
    ("AnyGc: Hash", Free(|t| ok(hash(&t.any) == hash(&t.any.clone())))),
    ("AnyGc::strong_count", Shared(|t, m| ok(t.any.strong_count(m)))),
    ("AnyGc::is_tracked", Shared(|t, m| ok(t.any.is_tracked(m)))),
    ("AnyGc::track", Shared(|t, m| ok(t.any.track(m)))),
    ("AnyGc::untrack", Shared(|t, m| ok(t.any.untrack(m)))),
    ("AnyGc::is_finalized", Shared(|t, m| ok(t.any.is_finalized(m)))),
    ("AnyGc::immortalize", Shared(|t, m| done(t.any.immortalize(m)))),
    ("AnyGc: From", Free(|t| done(AnyGc::from(t.leaf.clone())))),
    ("AnyGc: Clone", Free(|t| ok(t.any == t.any.clone()))),
    (
        "AnyGc: Drop",
        Free(|t| fate(t, || drop(t.spares.lock().unwrap().leaf.take().map(Gc::into_any)))),
    ),
    (
        "AnyGc::into_raw",
        Free(|t| {
            let raw = t.any.clone().into_raw();
            // SAFETY: of `into_raw`.
            ok(unsafe { AnyGc::from_raw(raw) } == t.any)
        }),
    ),
    (
        "AnyGc::into_raw, taken back and dropped",
        Free(|t| {
            fate(t, || {
                let leaf = t.spares.lock().unwrap().leaf.take();
                let raw = leaf.map(|leaf| Gc::into_any(leaf).into_raw());
                // SAFETY: of `into_raw`.
                drop(raw.map(|raw| unsafe { AnyGc::from_raw(raw) }));
            })
        }),
    ),
    ("AnyGc::ptr_eq", Free(|t| ok(AnyGc::ptr_eq(&t.any, &t.any.clone())))),
    ("AnyGc: Debug", Free(|t| ok(format!("{:?}", t.any).starts_with("AnyGc(")))),
    ("GcDyn::new", Free(|t| ok(View::new(t.leaf.clone(), |leaf| leaf).to_string()))),
    ("GcDyn: Deref", Free(|t| ok(t.view.to_string()))),
    ("GcDyn::as_any", Free(|t| ok(t.view.as_any() == t.view.clone().as_any()))),
    ("GcDyn: PartialEq", Free(|t| ok(t.view == t.view.clone()))),
    ("GcDyn: Hash", Free(|t| ok(hash(&t.view) == hash(&t.view.clone())))),
    ("GcDyn: Clone", Free(|t| done(t.view.clone()))),
    ("GcDyn: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().view.take())))),
    ("GcDyn: Debug", Free(|t| ok(format!("{:?}", t.view).starts_with("GcDyn<")))),
    ("GcSlice: Deref", Free(|t| ok(t.row.items[0].number))),
    ("GcSlice::into_any", Free(|t| done(GcSlice::into_any(t.row.clone())))),
    ("GcSlice: PartialEq", Free(|t| ok(t.row == t.row.clone()))),
    ("GcSlice: Hash", Free(|t| ok(hash(&t.row) == hash(&t.row.clone())))),
    ("GcSlice: Clone", Free(|t| ok(t.row == t.row.clone()))),
    ("GcSlice: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().row.take())))),
    ("GcSlice: Debug", Free(|t| ok(format!("{:?}", t.row).starts_with("GcSlice<")))),
    ("GcWeak::new", Free(|_| ok(GcWeak::<Leaf>::new() == GcWeak::new()))),
    ("GcWeak: PartialEq", Free(|t| ok(t.weak == t.weak.clone()))),
    ("GcWeak: Hash", Free(|t| ok(hash(&t.weak) == hash(&t.weak.clone())))),
    (
        "GcWeak::into_raw",
        Free(|t| {
            let raw = t.weak.clone().into_raw();
            // SAFETY: of `into_raw`.
            ok(unsafe { GcWeak::from_raw(raw) } == t.weak)
        }),
    ),
    (
        "GcWeak::into_raw, of nothing",
        Free(|_| {
            // SAFETY: what `into_raw` returns for `new`.
            ok(unsafe { GcWeak::<Leaf>::from_raw(std::ptr::null()) } == GcWeak::new())
        }),
    ),
    ("GcWeak::upgrade", Shared(|t, m| number(t.weak.upgrade(m)))),
    ("GcWeak: Default", Free(|t| ok(GcWeak::default() == t.weak))),
    ("GcWeak: Clone", Free(|t| ok(t.weak.clone() == t.weak))),
    ("GcWeak: Debug", Free(|t| ok(format!("{:?}", t.weak).starts_with("GcWeak<")))),
    ("WeakRef::upgrade", Shared(|t, m| number(t.weak_ref().upgrade(m)))),
    ("WeakRef::data", Free(|t| ok(t.weak_ref().data()))),
    ("WeakRef: Debug", Free(|t| ok(t.weak_ref()))),
    ("Tracer::visit", Tracing(|t, tracer| done(tracer.visit(&t.leaf)))),
    ("Tracer::visit_any", Tracing(|t, tracer| done(tracer.visit_any(&t.any)))),
    ("Tracer::each", Tracing(|_, _| impossible("only models are given `Ends`"))),
    ("Tracer::unreadable", Tracing(|_, tracer| done(tracer.unreadable()))),
    ("Tracer::fetch", Tracing(|t, tracer| done(tracer.fetch(Gc::as_ptr(&t.leaf))))),
    ("Tracer: Debug", Tracing(|_, tracer: &mut Tracer| ok(tracer))),
];
