//! Inside `detach` the thread is not attached.

use standstill::{Gc, Mutator};

fn count(name: &Gc<String>, m: &mut Mutator) {
    m.detach(|| println!("{}", Gc::strong_count(name, m)));
}

fn main() {}
