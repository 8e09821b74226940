//! Bytes are a file for the reader of heap snapshots (`tools/replay`).

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tools/replay/bad_input.rs"]
mod bad_input;
mod examine;
#[path = "../../tools/replay/schema.rs"]
mod schema;
#[path = "../../tools/replay/snapshot.rs"]
mod snapshot;
#[path = "../../tools/replay/source.rs"]
mod source;

#[global_allocator]
static COUNTING: examine::Counting = examine::Counting;

fuzz_target!(|bytes: &[u8]| examine::examine(bytes));
