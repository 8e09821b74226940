//! A collection may drop the reference that a slot held.

use standstill::{AtomicGc, Mutator};

fn read(name: &AtomicGc<String>, m: &mut Mutator) {
    let text = name.peek(m).unwrap();
    m.collect();
    println!("{text}");
}

fn main() {}
