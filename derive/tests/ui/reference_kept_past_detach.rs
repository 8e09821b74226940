//! While a thread is detached, references that were taken out of slots are dropped.

use standstill::{AtomicGc, Mutator};

fn read(name: &AtomicGc<String>, m: &mut Mutator) {
    let text = name.peek(m).unwrap();
    m.detach(|| println!("waiting"));
    println!("{text}");
}

fn main() {}
