//! The collector against a naive one: random programs run on a heap and on a plain graph in which
//! what is alive is defined by reachability, and after every step the two must agree about
//! everything that can be seen: who is alive, every count, every weak reference and callback, who
//! is tracked, finalized and frozen, and who panicked.
//!
//! A failing program is shrunk and printed as the body of a regression test.
//!
//! | module | its one idea |
//! |---|---|
//! | `program` | the language: steps, from bytes |
//! | `model` | the naive reference |
//! | `world`, `objects`, `dynamics` | real objects of all shapes |
//! | `driver` | a program on both at once |
//! | `random` | programs by chance, for as long as one likes |
//! | `corpus` | what the fuzzer has found worth keeping |
//! | `regressions` | what has failed once |
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
