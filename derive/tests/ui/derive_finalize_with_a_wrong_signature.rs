//! A finalizer takes the object's handle and a mutator.

use standstill::Trace;

#[derive(Trace)]
#[trace(finalize)]
struct File {
    descriptor: i32,
}

impl File {
    fn finalize(&self, _: u32) {}
}

#[derive(Trace)]
#[trace(finalize = close)]
struct Socket {
    descriptor: i32,
}

fn close(_: &Socket) {}

fn main() {}
