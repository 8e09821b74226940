//! Inside `detach` the thread is not attached.

use standstill::{Gc, Mutator};

fn count(name: &Gc<String>, m: &mut Mutator) {
    m.detach(|| println!("{}", Gc::is_finalized(name, m)));
}

fn main() {}
