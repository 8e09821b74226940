//! The interpreter's structures, as bindgen has read them from its headers.
//!
//! Names are those of the headers. Those of [`interpreter.h`](interpreter.h) begin with `SS_` or
//! `ss_`.
#![allow(non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code)]
#![allow(unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/layout.rs"));
