//! The C ABI of [standstill]: CPython's protocol for cyclic garbage collection, under CPython's
//! names.
//!
//! `include/standstill.h` is the reference of every function. This crate implements the header and
//! uses only the library's public API. An exported symbol is the CPython name with the prefix
//! `standstill_`.
//!
//! # A call from C
//!
//! Most exported functions run their bodies through one of the helpers in `call`. The helper takes
//! these steps, in this order:
//!
//! 1. It refuses the call in a traverse handler, unless the function is on the safe list
//!    (`tests/conformance/safe_list.txt`).
//! 2. It finds the thread's mutator, or fails.
//! 3. It puts a fault into the error indicator. If the function has no failure value, it reports
//!    the fault as misuse instead.
//! 4. It catches panics, so that no panic crosses into C.
//!
//! The macro `export!` converts the pointers that `#[given(…)]` names, so that they are
//! `call::Given` in the body. Most bodies need no unsafe code, because the methods of `Given` check
//! a pointer and return a proof: `Head` or `Obj` for an object, `Face` for a type.
//!
//! The functions that run for every object
//! ([`PyType_GenericAlloc`](objects::standstill_PyType_GenericAlloc), counting, tracking) do the
//! same, but first try the common case.
//!
//! # Terms
//!
//! A type has two parts, each of which points to the other: its *face* is the `PyTypeObject` that C
//! reads, and its *record* is the library's [`TypeRecord`](standstill::dynamic::TypeRecord).
//!
//! # Rules
//!
//! Unsafe code cites these rules:
//!
//! * **argument**: a pointer from C is NULL, or valid as the header says. In checked mode the
//!   library has looked it up.
//! * **record**: `ss_own` of a type is null, or the address of the type's record. The record lives
//!   as long as the type.
//! * **thread**: the thread's mutator pointer is null, or points to the mutator that this thread
//!   attached, and that no other thread uses. The pointer is null while a caller up the stack has
//!   the mutator exclusively.
//! * **statics**: one thread writes the exported statics while the library starts. Afterwards only
//!   type readiness writes to them.

#![deny(unsafe_code)]
#![warn(clippy::let_underscore_must_use)]
// `standstill::stderr` writes the lines. It ignores write errors, at which the macros would panic.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "the names are C's"
)]

#[cfg(not(unix))]
compile_error!(
    "the C ABI of standstill needs Unix: it uses `pthread_atfork`, and types of 64 bits"
);

/// The structs of the header.
#[allow(unsafe_code)]
pub mod layout;

/// How a function that C calls checks its pointers, and catches faults and panics.
#[allow(unsafe_code)]
pub(crate) mod call;

/// The error indicator of a thread, reports of misuse, the unraisable hook.
#[allow(unsafe_code)]
pub mod errors;

/// Heaps: the default heap of the process, and others.
#[allow(unsafe_code)]
pub mod world;

/// The calling thread: how it attaches, detaches and comes back.
#[allow(unsafe_code)]
pub mod thread;

/// Threads that are stopped without a heap.
#[allow(unsafe_code)]
pub mod coordinator;

/// Forks of the process.
#[allow(unsafe_code)]
mod fork;

/// Objects: counts, allocation, tracking, queries, destruction, weak references.
#[allow(unsafe_code)]
pub mod objects;

/// Tables with weak keys, and guardians.
#[allow(unsafe_code)]
pub mod weak_maps;

/// Attributes of objects.
#[allow(unsafe_code)]
pub mod dict;

/// Types, made ready from the structs that a program has filled.
#[allow(unsafe_code)]
pub mod types;

/// The built-in types and objects, in exported statics.
#[allow(unsafe_code)]
pub mod builtins;

/// Modules, with a state that the methods of their types can reach.
#[allow(unsafe_code)]
pub mod modules;

/// The functions of Python's module `gc`.
#[allow(unsafe_code)]
pub mod gc;

/// What a heap holds, and how long its collections take.
#[allow(unsafe_code)]
pub mod diagnose;

/// The functions that a traverse handler may call.
#[allow(unsafe_code)]
pub mod during_gc;

/// Blocks of memory outside the heap, which objects own.
#[allow(unsafe_code)]
pub mod blocks;

pub use layout::{PyObject, PyTypeObject, PyVarObject};
