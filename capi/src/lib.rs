//! The C ABI of [standstill]: CPython's protocol for cyclic garbage collection, under its own names.
//!
//! `include/standstill.h` is the reference of every function; this crate is what stands behind it, made of nothing but the
//! library's public API. An exported symbol is the customary name behind the prefix `standstill_`.
//!
//! # A call from C
//!
//! Each exported function goes through one of the helpers in `call`, which in this order
//!
//! 1. refuse it in a traverse handler, unless it is on the safe list (`tests/conformance/safe_list.txt`);
//! 2. find the thread's mutator, or fail;
//! 3. turn a fault into the error indicator, or into a report of misuse where nobody could look at the indicator;
//! 4. catch panics: none crosses into C.
//!
//! The few that are called for every object ([`PyType_GenericAlloc`](objects::standstill_PyType_GenericAlloc), counting, tracking)
//! do the same with the common case in front.
//!
//! # Rules
//!
//! cited by their letters where unsafe code relies on them:
//!
//! * **C** (caller): a pointer from C is NULL or what the header says of it. In checked mode it has been looked up.
//! * **F** (faces): `ss_own` of a type is null, or the address of its record, which lives as long as the type does.
//! * **T** (thread): the thread's mutator pointer is null, or leads to the mutator that this thread attached, which nobody else
//!   uses. It is null while somebody up the stack has the mutator exclusively.
//! * **S** (statics): the exported statics are written while the library starts, by one thread, and later by nobody but their
//!   readiness.

#![warn(clippy::let_underscore_must_use)]
// Lines go through `standstill::stderr`, which is not disturbed when they cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "the names are C's"
)]

pub mod builtins;
pub(crate) mod call;
pub mod dict;
pub mod during_gc;
pub mod errors;
mod fork;
pub mod gc;
pub mod layout;
pub mod modules;
pub mod objects;
pub mod thread;
pub mod types;
pub mod weakrefs;
pub mod world;

pub use layout::{PyObject, PyTypeObject, PyVarObject};
