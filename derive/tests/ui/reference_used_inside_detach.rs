//! Inside `detach` the thread is not attached: nothing lent by a slot may be used there.

use standstill::{AtomicGc, Mutator};

fn print(name: &AtomicGc<String>, m: &mut Mutator) {
    let text = name.peek(m).unwrap();
    m.detach(|| println!("{text}"));
}

fn main() {}
