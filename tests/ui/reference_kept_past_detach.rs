//! While a thread is detached, a collection may run without asking it.

use standstill::{Gc, Mutator};

fn read(name: &Gc<String>, m: &mut Mutator) {
    let text = name.get(m);
    m.detach(|| println!("waiting"));
    println!("{text}");
}

fn main() {}
