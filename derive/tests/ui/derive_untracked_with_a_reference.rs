//! An untracked type promises to hold no references.

use standstill::{Gc, Trace};

#[derive(Trace)]
#[trace(untracked)]
struct Span {
    start: usize,
    file: Option<Gc<String>>,
}

fn main() {
    let m = standstill::Heap::new().attach();
    m.alloc(Span { start: 0, file: None });
}
