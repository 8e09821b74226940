//! Two answers to one question.

use standstill::Trace;

#[derive(Trace)]
#[trace(untracked, untracked)]
#[trace(bound = "")]
#[trace(bound = "T: Copy")]
struct Point<T> {
    #[trace(skip, skip)]
    x: T,
}

fn main() {}
