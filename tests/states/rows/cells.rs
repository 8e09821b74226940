//! The mutable fields of objects, and what they contain: `GcCell`, `AtomicGc`, `GcOnce`, `GcVec`.

use standstill::{AtomicGc, Gc, GcCell, GcOnce, GcVec, Mutator, Trace};

use super::{Rows, done, fate, ok, outcome};
use crate::stage::Call::{Free, Shared};
use crate::things::{Leaf, Things};

fn number(gc: Option<Gc<Leaf>>) -> String {
    ok(gc.map(|gc| gc.number))
}

/// Another leaf for a slot, of the heap that the slot lies in; where the mutator is of another one,
/// of that.
fn new(t: &Things, m: &Mutator) -> Option<Gc<Leaf>> {
    Some(t.leaf_of(m, 30))
}

/// With the cell locked by this thread.
fn held<R>(t: &Things, m: &Mutator, f: impl FnOnce() -> R) -> R {
    let guard = t.cell().lock(m);
    let result = f();
    drop(guard);
    result
}

type Vector = GcVec<Leaf, 1>;

/// A vector with a handle of the things, in line.
fn inline(t: &Things) -> Vector {
    Vector::from([t.leaf.clone()])
}

/// A vector with two handles, in a buffer of the mutator's heap.
fn buffered(t: &Things, m: &Mutator) -> Vector {
    let mut vector = inline(t);
    vector.push(m, t.leaf_of(m, 30));
    vector
}

fn of_vector(vector: &[Gc<Leaf>]) -> String {
    ok(vector.iter().map(|leaf| leaf.number).collect::<Vec<_>>())
}

/// The numbers in a vector that was changed.
fn changed(mut vector: Vector, change: impl FnOnce(&mut Vector)) -> String {
    change(&mut vector);
    of_vector(&vector)
}

pub(super) const ROWS: Rows = &[
    ("GcCell::new", Free(|t| done(GcCell::new(Some(t.leaf.clone()))))),
    ("GcCell::into_inner", Free(|t| ok(GcCell::new(Some(t.leaf.clone())).into_inner().is_some()))),
    ("GcCell::get_mut", Free(|t| ok(GcCell::new(Some(t.leaf.clone())).get_mut().is_some()))),
    ("GcCell::set", Shared(|t, m| done(t.cell().set(m, new(t, m))))),
    ("GcCell::replace", Shared(|t, m| number(t.cell().replace(m, new(t, m))))),
    ("GcCell::get", Shared(|t, m| number(t.cell().get(m)))),
    ("GcCell::take", Shared(|t, m| number(t.cell().take(m)))),
    ("GcCell::lock", Shared(|t, m| ok(t.cell().lock(m).is_some()))),
    (
        "GcCell::try_lock",
        Shared(|t, m| ok(t.cell().try_lock(m).is_some_and(|guard| guard.is_some()))),
    ),
    (
        "GcCell::lock, locked by this thread",
        Shared(|t, m| held(t, m, || ok(t.cell().lock(m).is_some()))),
    ),
    (
        "GcCell::try_lock, locked by this thread",
        Shared(|t, m| held(t, m, || ok(t.cell().try_lock(m).is_some()))),
    ),
    ("GcCell: Trace::clear", Shared(|t, m| done(Trace::clear(t.cell(), m)))),
    ("GcCell: From", Free(|t| done(GcCell::from(Some(t.leaf.clone()))))),
    ("GcCell: Debug", Free(|t| ok(t.cell()))),
    ("GcCellGuard: Deref", Shared(|t, m| ok((*t.cell().lock(m)).is_some()))),
    ("GcCellGuard: DerefMut", Shared(|t, m| done((*t.cell().lock(m)).take()))),
    ("GcCellGuard: Drop", Shared(|t, m| done(drop(t.cell().lock(m))))),
    (
        "GcCellGuard: Debug",
        Shared(|t, m| ok(format!("{:?}", t.cell().lock(m)).starts_with("Some("))),
    ),
    ("AtomicGc::new", Free(|t| done(AtomicGc::new(Some(t.leaf.clone()))))),
    ("AtomicGc::load", Shared(|t, m| number(t.atomic().load(m)))),
    ("AtomicGc::peek", Shared(|t, m| ok(t.atomic().peek(m).map(|leaf| leaf.number)))),
    ("AtomicGc::store", Shared(|t, m| done(t.atomic().store(m, new(t, m))))),
    ("AtomicGc::swap", Shared(|t, m| number(t.atomic().swap(m, new(t, m))))),
    ("AtomicGc::take", Shared(|t, m| number(t.atomic().take(m)))),
    (
        "AtomicGc::compare_exchange",
        Shared(|t, m| match t.atomic().compare_exchange(m, None, new(t, m)) {
            Ok(old) => number(old),
            Err(refused) => {
                format!("error: it holds another one, and {} comes back", number(refused))
            }
        }),
    ),
    ("AtomicGc: Trace::clear", Shared(|t, m| done(Trace::clear(t.atomic(), m)))),
    ("AtomicGc: Default", Free(|_| done(AtomicGc::<Leaf>::default()))),
    ("AtomicGc: From", Free(|t| done(AtomicGc::from(t.leaf.clone())))),
    ("AtomicGc: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().atomic.take())))),
    ("AtomicGc: Debug", Free(|t| ok(format!("{:?}", t.atomic()).starts_with("AtomicGc<")))),
    ("GcOnce::new", Free(|_| done(GcOnce::<Leaf>::new()))),
    ("GcOnce::set", Shared(|t, m| ok(t.unset().set(m, t.value(30)).is_ok()))),
    (
        "GcOnce::set, set already",
        Shared(|t, m| match t.once().set(m, t.value(30)) {
            Ok(()) => done(()),
            Err(refused) => {
                format!("error: it is set, and {} comes back", ok(refused.number))
            }
        }),
    ),
    ("GcOnce::set_handle", Shared(|t, m| ok(t.unset().set_handle(m, t.leaf_of(m, 30)).is_ok()))),
    (
        "GcOnce::set_handle, set already",
        Shared(|t, m| match t.once().set_handle(m, t.leaf_of(m, 30)) {
            Ok(()) => done(()),
            Err(refused) => {
                format!("error: it is set, and {} comes back", ok(refused.number))
            }
        }),
    ),
    ("GcOnce::get", Shared(|t, m| ok(t.once().get(m).map(|leaf| leaf.number)))),
    ("GcOnce::handle", Shared(|t, m| number(t.once().handle(m)))),
    ("GcOnce::get_or_init", Shared(|t, m| ok(t.unset().get_or_init(m, || t.value(30)).number))),
    ("GcOnce: Trace::clear", Shared(|t, m| done(Trace::clear(t.once(), m)))),
    ("GcOnce: Default", Free(|_| done(GcOnce::<Leaf>::default()))),
    ("GcOnce: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().once.take())))),
    ("GcOnce: Debug", Free(|t| ok(format!("{:?}", t.once()).starts_with("GcOnce(")))),
    ("GcVec::new", Free(|_| done(Vector::new()))),
    ("GcVec::with_capacity", Shared(|_, m| ok(Vector::with_capacity(m, 2).capacity()))),
    ("GcVec::capacity", Free(|t| ok(inline(t).capacity()))),
    ("GcVec::reserve", Shared(|t, m| changed(inline(t), |v| v.reserve(m, 4)))),
    ("GcVec::try_reserve", Shared(|t, m| outcome(inline(t).try_reserve(m, 4)))),
    ("GcVec::try_reserve, too many", Shared(|t, m| outcome(inline(t).try_reserve(m, usize::MAX)))),
    ("GcVec::push", Shared(|t, m| of_vector(&buffered(t, m)))),
    ("GcVec::try_push", Shared(|t, m| outcome(inline(t).try_push(m, t.leaf_of(m, 30))))),
    ("GcVec::pop", Free(|t| number(inline(t).pop()))),
    ("GcVec::insert", Shared(|t, m| changed(inline(t), |v| v.insert(m, 0, t.leaf_of(m, 30))))),
    (
        "GcVec::insert, beyond the end",
        Shared(|t, m| changed(inline(t), |v| v.insert(m, 2, t.leaf_of(m, 30)))),
    ),
    ("GcVec::remove", Free(|t| ok(inline(t).remove(0).number))),
    ("GcVec::remove, beyond the end", Free(|t| ok(inline(t).remove(1).number))),
    ("GcVec::swap_remove", Shared(|t, m| changed(buffered(t, m), |v| drop(v.swap_remove(0))))),
    ("GcVec::swap_remove, beyond the end", Free(|t| ok(inline(t).swap_remove(1).number))),
    ("GcVec::truncate", Shared(|t, m| changed(buffered(t, m), |v| v.truncate(1)))),
    ("GcVec::clear", Shared(|t, m| changed(buffered(t, m), Vector::clear))),
    ("GcVec::retain", Shared(|t, m| changed(buffered(t, m), |v| v.retain(|l| l.number == 30)))),
    ("GcVec::extend", Shared(|t, m| changed(inline(t), |v| v.extend(m, [t.leaf_of(m, 30)])))),
    ("GcVec: Trace::clear", Shared(|t, m| done(Trace::clear(&buffered(t, m), m)))),
    ("GcVec: Default", Free(|_| done(Vector::default()))),
    ("GcVec: From", Free(|t| of_vector(&inline(t)))),
    ("GcVec: Deref", Free(|t| ok(inline(t)[0].number))),
    ("GcVec: DerefMut", Free(|t| changed(inline(t), |v| v[0] = t.leaf.clone()))),
    ("GcVec: Drop", Free(|t| fate(t, || drop(t.spares.lock().unwrap().vector.take())))),
    ("GcVec: Debug", Free(|t| ok(format!("{:?}", inline(t)).starts_with("[Gc<")))),
];
