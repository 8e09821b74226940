//! The collector must be able to look into every field.

use standstill::Trace;

struct Opaque;

#[derive(Trace)]
struct Window {
    title: String,
    handle: Option<Opaque>,
}

fn main() {}
