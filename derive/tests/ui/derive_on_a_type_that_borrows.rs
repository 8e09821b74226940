//! Objects outlive every borrow but `'static`.

use standstill::Trace;

#[derive(Trace)]
struct Token<'source, const N: usize> {
    text: &'source str,
    position: [usize; N],
}

fn main() {}
