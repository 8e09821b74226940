//! The collector against a naive one. Random programs run on a heap and on a plain graph in which
//! reachability defines the living objects. After every step the two must agree about all visible
//! facts: the living objects, every count, every weak reference and callback, the tracked,
//! finalized and frozen objects, and the panics.
//!
//! A failing program is shrunk and printed as the body of a regression test.
//!
//! | module | contents |
//! |---|---|
//! | `program` | the language: steps, from bytes |
//! | `model` | the naive reference |
//! | `world`, `objects`, `dynamics` | real objects of all shapes |
//! | `driver` | a program on both at once |
//! | `random` | random programs, for any length of time |
//! | `corpus` | programs that the fuzzer has kept |
//! | `regressions` | programs that have failed once |
//! | `graphs` | larger graphs |
//!
//! The fuzzer (`fuzz/`) uses the first four rows.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

#[path = "../common/mod.rs"]
mod common;

mod corpus;
mod driver;
mod dynamics;
mod graphs;
mod model;
mod objects;
mod program;
mod random;
mod regressions;
mod world;
