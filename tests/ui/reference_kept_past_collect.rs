//! A collection may clear what the reference points into.

use standstill::{Gc, Mutator};

fn read(name: &Gc<String>, m: &mut Mutator) {
    let text = name.get(m);
    m.collect();
    println!("{text}");
}

fn main() {}
