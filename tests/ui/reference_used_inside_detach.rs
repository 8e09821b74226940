//! Inside `detach` the thread is not attached: nothing borrowed from an object may be used there.

use standstill::{Gc, Mutator};

fn print(name: &Gc<String>, m: &mut Mutator) {
    let text = name.get(m);
    m.detach(|| println!("{text}"));
}

fn main() {}
