//! A Scheme on `standstill`: R7RS small as far as programs need it, with threads.
//!
//! It shows the author of a runtime how to use the typed face of the library. The README has the
//! design and the figures.

#![forbid(unsafe_code)]

mod code;
mod codegen;
mod forms;
mod inline;
mod number;
mod port;
mod prims;
mod printer;
mod reader;
mod runtime;
mod stack;
mod symbol;
mod syntax;
mod syntax_rules;
mod table;
mod value;
mod vm;

pub use runtime::{Interpreter, flush};
pub use value::Value;
