#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use standstill::safepoint::*;
pub use standstill::{Distribution, set_line_sink};
