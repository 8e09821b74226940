//! Inside `detach` the thread is not attached.

use standstill::{Gc, Mutator};

fn print(name: &Gc<String>, m: &mut Mutator) {
    m.detach(|| println!("{}", name.get(m)));
}

fn main() {}
