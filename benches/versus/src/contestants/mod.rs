//! The contestants: one file each. A new one is a file here, and its name in [`ALL`].

mod arc;
mod boa_gc;
mod dumpster_sync;
mod dumpster_unsync;
mod gc;
mod gc_arena;
mod gcmodule_threaded;
mod gcmodule_unthreaded;
mod rust_cc;
mod standstill;
mod standstill_gcvec;
mod standstill_shared;

use crate::peer::{Can, Contestant};
use crate::tally;
use crate::task::Workload;

/// In the order in which a round begins.
pub const ALL: &[Contestant] = &[
    standstill::PLAIN,
    standstill::HINTED,
    standstill_gcvec::INLINE,
    standstill_shared::SHARED,
    arc::ARC,
    dumpster_sync::DUMPSTER_SYNC,
    gcmodule_threaded::GCMODULE_THREADED,
    dumpster_unsync::DUMPSTER_UNSYNC,
    gcmodule_unthreaded::GCMODULE,
    rust_cc::RUST_CC,
    boa_gc::BOA_GC,
    gc::GC,
    gc_arena::GC_ARENA,
];

/// The capabilities of a rival with handles for all threads.
fn any_threads(workload: Workload) -> Can {
    if workload.orders_lists() { Can::No } else { Can::Many }
}

/// The capabilities of a rival with handles that stay on their thread.
fn one_thread(workload: Workload) -> Can {
    match workload {
        Workload::W6 | Workload::W7hot | Workload::W7over => Can::No,
        _ if workload.orders_lists() => Can::No,
        _ => Can::One,
    }
}

/// A trigger for contestants that have none: collect once as many nodes were born since the last
/// collection as were alive then, at least 10,000.
#[derive(Debug)]
struct Trigger {
    next: u64,
}

impl Default for Trigger {
    fn default() -> Self {
        Self { next: tally::births() + 10_000 }
    }
}

impl Trigger {
    fn poll(&mut self, collect: impl FnOnce() -> usize) {
        if tally::births() >= self.next {
            collect();
            self.next = tally::births() + tally::alive().max(10_000);
        }
    }
}
