//! `Gc` and its kin.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

use standstill::{AnyGc, Gc, GcSlice, GcStr, GcWeak, Guardian, Home, SharedGc, Tracer, gc_dyn};

use super::{Rows, done, fate, ok, outcome};
use crate::stage::Call::{Free, Shared, Tracing};
use crate::stage::impossible;
use crate::things::{Leaf, Notes, Shown, View};

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
    ("Gc::strong_count", Free(|t| ok(Gc::strong_count(&t.leaf)))),
    ("Gc::is_unique", Shared(|t, m| ok(Gc::is_unique(&t.leaf, m)))),
    (
        "Gc::get_mut",
        Shared(|t, m| {
            let mut spare = t.spares.lock().unwrap().leaf.take().unwrap_or_else(|| t.leaf.clone());
            let mut guard = Gc::get_mut(&mut spare, m);
            let shown = format!("{:?}", guard.as_ref().map(|leaf| leaf.number));
            guard.iter_mut().for_each(|leaf| leaf.number += 1);
            ok((shown, guard.as_deref().map(|leaf| leaf.number)))
        }),
    ),
    (
        "Gc::make_mut",
        Shared(|t, m| {
            let mut own = t.any_number.clone();
            *Gc::make_mut(&mut own, m) += 1;
            ok((*own, *t.any_number))
        }),
    ),
    ("GcMut: Deref", Shared(|t, m| ok(*Gc::make_mut(&mut t.any_number.clone(), m)))),
    (
        "GcMut: DerefMut",
        Shared(|t, m| {
            *Gc::make_mut(&mut t.any_number.clone(), m) += 1;
            ok(*t.any_number)
        }),
    ),
    ("GcMut: Drop", Shared(|t, m| done(drop(Gc::make_mut(&mut t.any_number.clone(), m))))),
    (
        "GcMut: Debug",
        Shared(|t, m| ok(format!("{:?}", Gc::make_mut(&mut t.any_number.clone(), m)))),
    ),
    (
        "Gc::try_unwrap",
        Shared(|t, m| {
            let spare = t.spares.lock().unwrap().leaf.take().unwrap_or_else(|| t.leaf.clone());
            ok(Gc::try_unwrap(spare, m).map(|leaf| leaf.number).map_err(|_| "shared"))
        }),
    ),
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
    ("AnyGc::strong_count", Free(|t| ok(t.any.strong_count()))),
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
    (
        "AnyGc::downcast_slice",
        Shared(|t, m| {
            let row = GcSlice::into_any(t.row.clone());
            ok(row.downcast_slice::<u32, Gc<Leaf>>(m).map(|row| row.len()).map_err(|_| "no slice"))
        }),
    ),
    ("AnyGc::ptr_eq", Free(|t| ok(AnyGc::ptr_eq(&t.any, &t.any.clone())))),
    ("AnyGc: Pointer", Free(|t| ok(format!("{:p}", t.any).starts_with("0x")))),
    (
        "AnyGc::downgrade",
        Shared(|t, m| ok(AnyGc::downgrade(&t.any, m).upgrade(m).is_some_and(|it| it == t.any))),
    ),
    ("AnyGc: Debug", Free(|t| ok(format!("{:?}", t.any).starts_with("AnyGc(")))),
    ("gc_dyn!", Free(|t| ok(gc_dyn!(t.leaf.clone() => Shown).to_string()))),
    (
        "GcDyn::into_raw",
        Free(|t| {
            let raw = View::into_raw(t.view.clone());
            // SAFETY: of `into_raw`.
            ok(View::ptr_eq(&unsafe { View::from_raw(raw) }, &t.view))
        }),
    ),
    ("GcDyn::into_any", Free(|t| ok(View::into_any(t.view.clone()).strong_count()))),
    ("GcDyn::ptr_eq", Free(|t| ok(View::ptr_eq(&t.view, &t.view.clone())))),
    ("GcDyn: Deref", Free(|t| ok(t.view.to_string()))),
    ("GcDyn: PartialEq", Free(|t| ok(t.view == t.view.clone()))),
    ("GcDyn: Hash", Free(|t| ok(hash(&t.view) == hash(&t.view.clone())))),
    ("GcDyn: Clone", Free(|t| done(t.view.clone()))),
    ("GcDyn: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().view.take())))),
    ("GcDyn: Debug", Free(|t| ok(format!("{:?}", t.view).starts_with("GcDyn<")))),
    ("GcSlice: Deref", Free(|t| ok(t.row.items[0].number))),
    ("HeaderSlice: Deref", Free(|t| ok(t.row.len()))),
    ("GcSlice::from_iter", Shared(|t, m| ok(GcSlice::from_iter(m, 1, [t.leaf.clone()]).len()))),
    (
        "GcSlice::downgrade",
        Shared(|t, m| ok(GcSlice::downgrade(&t.row, m).upgrade(m).is_some_and(|r| r == t.row))),
    ),
    ("Mutator::alloc_str", Shared(|_, m| ok(m.alloc_str(1u8, "a").len()))),
    (
        "Mutator::try_alloc_str",
        Shared(|_, m| outcome(m.try_alloc_str(1u8, "a").map(|s| s.len()).map_err(|e| e.reason()))),
    ),
    ("GcStr: Deref", Free(|t| ok(t.text.len()))),
    ("GcStr::header", Free(|t| ok(**GcStr::header(&t.text)))),
    ("GcStr::into_any", Free(|t| ok(GcStr::into_any(t.text.clone()).strong_count()))),
    ("GcStr: Pointer", Free(|t| ok(format!("{:p}", t.text).starts_with("0x")))),
    (
        "GcStr::downgrade",
        Shared(|t, m| ok(GcStr::downgrade(&t.text, m).upgrade(m).is_some_and(|s| s == t.text))),
    ),
    ("GcStr: PartialEq", Free(|t| ok(t.text == t.text.clone()))),
    ("GcStr: Hash", Free(|t| ok(hash(&t.text) == hash(&t.text.clone())))),
    ("GcStr: Clone", Free(|t| done(t.text.clone()))),
    ("GcStr: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().text.take())))),
    ("GcStr: Debug", Free(|t| ok(format!("{:?}", t.text)))),
    ("GcStr: Display", Free(|t| ok(t.text.to_string()))),
    ("GcWeakMap::new", Shared(|t, m| ok(Notes::new(m).insert(m, &t.any, 1)))),
    (
        "GcWeakMap::try_new",
        Shared(|t, m| outcome(Notes::try_new(m).map(|notes| notes.contains(m, &t.any)))),
    ),
    ("GcWeakMap::get", Shared(|t, m| ok(t.notes.get(m, &t.any)))),
    ("GcWeakMap::with", Shared(|t, m| ok(t.notes.with(m, &t.any, |value| value + 1)))),
    ("GcWeakMap::contains", Shared(|t, m| ok(t.notes.contains(m, &t.any)))),
    ("GcWeakMap::insert", Shared(|t, m| ok(t.notes.insert(m, &t.any, 32)))),
    (
        "GcWeakMap::try_insert",
        Shared(|t, m| outcome(t.notes.try_insert(m, &t.any, 33).map_err(|e| e.reason()))),
    ),
    ("GcWeakMap::remove", Shared(|t, m| ok(t.notes.remove(m, &t.any)))),
    ("GcWeakMap::remove_all", Shared(|t, m| done(t.notes.remove_all(m)))),
    ("GcWeakMap::len", Shared(|t, m| ok(t.notes.len(m)))),
    ("GcWeakMap::is_empty", Shared(|t, m| ok(t.notes.is_empty(m)))),
    ("GcWeakMap::entries", Shared(|t, m| ok(t.notes.entries(m).len()))),
    ("GcWeakMap::try_entries", Shared(|t, m| outcome(t.notes.try_entries(m).map(|all| all.len())))),
    (
        "Guardian::register",
        Shared(|t, m| {
            let guardian = Guardian::<AnyGc>::new();
            guardian.register(m, &t.any);
            ok(guardian.is_ready())
        }),
    ),
    (
        "Guardian::try_register",
        Shared(|t, m| outcome(Guardian::<AnyGc>::default().try_register(m, &t.any))),
    ),
    ("Guardian::try_new", Free(|_| outcome(Guardian::<AnyGc>::try_new().map(|it| it.is_ready())))),
    ("Guardian::next", Shared(|t, m| ok(t.guardian.next(m).map(|leaf| leaf.number)))),
    ("Guardian::is_ready", Free(|t| ok(t.guardian.is_ready()))),
    ("Guardian: Clone", Free(|t| ok(t.guardian.clone().is_ready()))),
    ("Guardian: Debug", Free(|t| ok(format!("{:?}", t.guardian)))),
    ("Gc::finalize_with", Shared(|t, m| done(Gc::finalize_with(&t.leaf, m, |_, _| ())))),
    ("Gc::try_finalize_with", Shared(|t, m| outcome(Gc::try_finalize_with(&t.leaf, m, |_, _| ())))),
    ("Guardian::new", Free(|_| ok(Guardian::<AnyGc>::new().is_ready()))),
    ("Guardian: Default", Free(|_| ok(Guardian::<AnyGc>::default().is_ready()))),
    ("Home::new", Free(|_| ok(Home::new().is_waiting()))),
    ("Home::waking", Free(|_| ok(Home::waking(|| ()).drain()))),
    ("Home: Default", Free(|_| ok(Home::default().is_waiting()))),
    (
        "Home: Drop",
        Free(|_| {
            let home = Home::new();
            let value = home.bind(1);
            drop(home);
            ok(value.get().copied())
        }),
    ),
    ("Home::bind", Free(|_| ok(Home::new().bind(1).get().copied()))),
    ("Home::drain", Free(|_| ok(Home::default().drain()))),
    ("Home::is_waiting", Free(|_| ok(Home::waking(|| ()).is_waiting()))),
    ("Home::leaked", Free(|_| ok(Home::leaked()))),
    ("Home: Debug", Free(|_| ok(format!("{:?}", Home::new())))),
    ("AtHome::get", Free(|t| ok(t.at_home.get().is_some()))),
    ("AtHome::get_mut", Free(|_| ok(Home::new().bind(1).get_mut().copied()))),
    ("AtHome: Drop", Free(|_| done(Home::new().bind(1)))),
    ("AtHome: Debug", Free(|t| ok(format!("{:?}", t.at_home).starts_with("AtHome")))),
    (
        "GcWeakMap: Drop",
        Shared(|t, m| {
            let notes = Notes::new(m);
            notes.insert(m, &t.any, 36);
            drop(notes);
            ok(t.any.strong_count())
        }),
    ),
    ("GcWeakMap: Debug", Free(|t| ok(format!("{:?}", *t.notes)))),
    ("GcSlice::into_any", Free(|t| done(GcSlice::into_any(t.row.clone())))),
    ("GcSlice: PartialEq", Free(|t| ok(t.row == t.row.clone()))),
    ("GcSlice: Hash", Free(|t| ok(hash(&t.row) == hash(&t.row.clone())))),
    ("GcSlice: Clone", Free(|t| ok(t.row == t.row.clone()))),
    ("GcSlice: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().row.take())))),
    ("GcSlice: Pointer", Free(|t| ok(format!("{:p}", t.row).starts_with("0x")))),
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
    ("GcWeak::into_any", Shared(|t, m| ok(t.weak.clone().into_any().upgrade(m).is_some()))),
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
