//! `#[trace(finalize)]` calls the type's own function `finalize`.

use standstill::Trace;

#[derive(Trace)]
#[trace(finalize)]
struct File {
    descriptor: i32,
}

fn main() {}
