//! Bytes are a file for the reader of heap snapshots (the package `standstill-heap`).

#![no_main]

use libfuzzer_sys::fuzz_target;

mod examine;

#[global_allocator]
static COUNTING: examine::Counting = examine::Counting;

fuzz_target!(|bytes: &[u8]| examine::examine(bytes));
