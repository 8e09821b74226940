//! Bytes are a file for the reader of heap snapshots (`examples/replay`).

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../examples/replay/bad_input.rs"]
mod bad_input;
mod examine;
#[path = "../../examples/replay/schema.rs"]
mod schema;
#[path = "../../examples/replay/snapshot.rs"]
mod snapshot;
#[path = "../../examples/replay/source.rs"]
mod source;

#[global_allocator]
static COUNTING: examine::Counting = examine::Counting;

fuzz_target!(|bytes: &[u8]| examine::examine(bytes));
