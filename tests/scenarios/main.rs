//! The scenarios that CPython's own tests of its collector run through, as far as they make sense
//! for typed objects, each on four heaps: serial, parallel, and both again with a checked full
//! collection at every safepoint. A scenario's id is in its test's name.
//!
//! | id | why there is no test of it here |
//! |---|---|
//! | G-04, G-05, G-07 | classes as objects: types are Rust types here, and no objects of a heap |
//! | G-14 | a debugging flag that keeps garbage instead of clearing it: the dynamic face's |
//! | G-16 | generation counters of the default build: `g_17` shows what stands in their place |
//! | G-20 | attribute hooks: looking for a finalizer reads a constant of the type |
//! | G-26, G-29, G-56, G-57 | the end of an interpreter: `g_27` shows the end of a heap |
//! | G-28 | printed statistics: the facts are values of `CollectionReport` |
//! | G-44 | tuples that untrack themselves: whether an object is tracked does not change by itself |
//! | G-49 | a count that is too low cannot be made: counts belong to handles. See `laws.rs`, law 1, for a traversal that makes it look so |
//! | G-73, G-74, G-75 | the legacy finalizer `tp_del`, which Rust types cannot have |
//! | G-79 | callbacks that are replaced: here they are only added |
//! | G-83 to G-86 | the C interface |
//!
//! Some scenarios are adapted. A type with a `clear` that does nothing stands for a legacy
//! finalizer, that is, for an object that cannot be collected (`g_09`, `g_48`). "A garbage
//! collection inside a finalizer" is a finalizer that allocates under a threshold of one object
//! (`g_15`, `g_18`, `g_19`). A class with a finalizer outside of the collector's knowledge is an
//! untracked type (`g_60`, `g_61`).

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

#[path = "../common/mod.rs"]
mod common;

mod basics;
mod finalizers;
mod inspect;
mod policy;
mod threads;
mod weak;
