//! The other folders need memory that can be refused, locks and atomics, the system, calls of
//! foreign code, and the modes and counters of tests.
//!
//! None of this is special to a collector, so no module here refers to heaps, objects or
//! collections, except in documentation. The modes of [`stress`] and the counter of [`steps`] stay
//! here although collections gave them their names, because memory and safepoints obey them.

// Memory of the process.

/// Allocations that can fail, and texts in such memory.
#[allow(unsafe_code)]
pub(crate) mod fallible;
/// Values that several owners share, or that are set once, whose allocation can fail.
#[allow(unsafe_code)]
pub(crate) mod shared;

// Threads of the process.

/// The versions of `sync` for models, under loom and shuttle.
#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
pub(crate) mod model_sync;
/// The one lock of settings, hooks and lists of the process, which a fork holds.
pub(crate) mod settings_lock;
/// Locks, atomics and thread-locals, which models replace.
pub(crate) mod sync;

// The world outside.

/// The environment variables, which a process reads once.
pub(crate) mod environment;
/// Calls of foreign code: without a lock, and without a panic that unwinds into the library.
pub(crate) mod outside;
/// The stack of the calling thread.
#[allow(unsafe_code)]
pub(crate) mod stack;
/// The operating system, and the processor's prefetch.
#[allow(unsafe_code)]
pub(crate) mod system;

// Tests.

/// A count of steps, by which tests find work in a stop that grows too fast.
pub(crate) mod steps;
/// The stress modes, which make rare schedules frequent and hidden faults visible.
pub(crate) mod stress;
