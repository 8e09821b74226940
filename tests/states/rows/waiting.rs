//! Readers and parts of cells, waits, channels, and data of the program.

use std::time::Duration;

use standstill::{
    Gc, GcCellGuard, GcCellMappedGuard, GcCellReadGuard, GcChannel, GcCondvar, Mutator, Trace,
};

use super::{Rows, done, ok, outcome};
use crate::stage::Call::{Exclusive, Free, Shared};
use crate::things::{Leaf, Things};

/// Long enough that the thread detaches.
const SOON: Duration = Duration::from_millis(1);

type Part<'a> = GcCellMappedGuard<'a, Gc<Leaf>>;

/// The handle in the cell of the things, which is locked.
fn part<'a>(t: &'a Things, m: &'a Mutator) -> Part<'a> {
    GcCellGuard::map(t.cell().lock(m), |leaf| leaf.as_mut().expect("a leaf"))
}

pub(super) const ROWS: Rows = &[
    ("GcCell::read", Shared(|t, m| ok(t.cell().read(m).is_some()))),
    (
        "GcCell::try_read",
        Shared(|t, m| ok(t.cell().try_read(m).is_some_and(|leaf| leaf.is_some()))),
    ),
    (
        "GcCell::read, locked by this thread",
        Shared(|t, m| {
            let _locked = t.cell().lock(m);
            ok(t.cell().read(m).is_some())
        }),
    ),
    (
        "GcCell::read, read by this thread",
        Shared(|t, m| {
            let _read = t.cell().read(m);
            ok(t.cell().read(m).is_some())
        }),
    ),
    (
        "GcCell::try_lock, read by this thread",
        Shared(|t, m| {
            let _read = t.cell().read(m);
            ok(t.cell().try_lock(m).is_some())
        }),
    ),
    ("GcCellReadGuard: Deref", Shared(|t, m| ok((*t.cell().read(m)).is_some()))),
    ("GcCellReadGuard: Drop", Shared(|t, m| done(drop(t.cell().read(m))))),
    (
        "GcCellReadGuard::map",
        Shared(|t, m| {
            let leaf =
                GcCellReadGuard::map(t.cell().read(m), |leaf| leaf.as_ref().expect("a leaf"));
            ok(leaf.number)
        }),
    ),
    (
        "GcCellReadGuard::filter_map",
        Shared(|t, m| {
            let leaf = GcCellReadGuard::filter_map(t.cell().read(m), Option::as_ref);
            ok(leaf.map(|leaf| leaf.number).ok())
        }),
    ),
    ("GcCellGuard::map", Shared(|t, m| ok(part(t, m).number))),
    (
        "GcCellGuard::filter_map",
        Shared(|t, m| {
            let leaf = GcCellGuard::filter_map(t.cell().lock(m), Option::as_mut);
            ok(leaf.map(|leaf| leaf.number).ok())
        }),
    ),
    ("GcCellMappedGuard::map", Shared(|t, m| ok(Part::map(part(t, m), |leaf| leaf).number))),
    (
        "GcCellMappedGuard::filter_map",
        Shared(|t, m| ok(Part::filter_map(part(t, m), |_| None::<&mut u8>).is_err())),
    ),
    ("GcCellMappedGuard: Deref", Shared(|t, m| ok(part(t, m).number))),
    ("GcCellMappedGuard: DerefMut", Shared(|t, m| done(*part(t, m) = t.leaf_of(m, 30)))),
    ("GcCellMappedGuard: Drop", Shared(|t, m| done(drop(part(t, m))))),
    ("GcCondvar::new", Free(|_| done(GcCondvar::new()))),
    ("GcCondvar::notify_one", Shared(|t, m| done(t.condvar().notify_one(m)))),
    ("GcCondvar::notify_all", Shared(|t, m| done(t.condvar().notify_all(m)))),
    (
        "Mutator::wait",
        Exclusive(|t, m| ok(m.wait(t.condvar(), t.cell(), |leaf, _| Some(leaf.is_some())))),
    ),
    (
        "Mutator::wait_timeout",
        Exclusive(|t, m| {
            ok(m.wait_timeout(SOON, t.condvar(), t.cell(), |leaf, _| Some(leaf.is_some())))
        }),
    ),
    (
        "Mutator::wait_timeout, not ready",
        Exclusive(|t, m| ok(m.wait_timeout(SOON, t.condvar(), t.cell(), |_, _| None::<u8>))),
    ),
    ("GcChannel::new", Free(|_| done(GcChannel::<Leaf>::new()))),
    ("GcChannel: Default", Free(|_| done(GcChannel::<Leaf>::default()))),
    ("GcChannel::send", Shared(|t, m| ok(t.channel().send(m, t.leaf_of(m, 30)).is_ok()))),
    (
        "GcChannel::send, closed",
        Shared(|t, m| {
            t.channel().close(m);
            outcome(t.channel().send(m, t.leaf_of(m, 30)))
        }),
    ),
    ("GcChannel::recv", Exclusive(|t, m| outcome(t.channel().recv(m).map(|leaf| leaf.number)))),
    ("GcChannel::try_recv", Shared(|t, m| outcome(t.channel().try_recv(m).map(|l| l.number)))),
    (
        "GcChannel::recv_timeout",
        Exclusive(|t, m| outcome(t.channel().recv_timeout(m, SOON).map(|leaf| leaf.number))),
    ),
    (
        "GcChannel::recv_timeout, empty",
        Exclusive(|t, m| {
            drop(t.channel().try_recv(m));
            outcome(t.channel().recv_timeout(m, SOON).map(|leaf| leaf.number))
        }),
    ),
    ("GcChannel::close", Shared(|t, m| done(t.channel().close(m)))),
    ("GcChannel: Trace::clear", Shared(|t, m| done(Trace::clear(t.channel(), m)))),
    ("Heap::set_user_data", Free(|t| outcome(t.heap().set_user_data(7).map_err(|_| "set")))),
    ("Heap::user_data", Free(|t| ok(t.heap().user_data::<u32>()))),
    ("Mutator::set_user_data", Shared(|_, m| done(m.set_user_data(7)))),
    (
        "Mutator::user_data",
        Shared(|_, m| {
            m.set_user_data(7);
            ok(m.user_data::<i32>())
        }),
    ),
];
