//! No code can tell which field of a union is the live one.

use standstill::Trace;

#[derive(Trace)]
union Bits {
    integer: u64,
    float: f64,
}

fn main() {}
