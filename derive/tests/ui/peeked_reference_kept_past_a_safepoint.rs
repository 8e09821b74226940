//! A slot lends what it refers to until the thread's next safepoint, when a replaced reference
//! dies.

use standstill::{AtomicGc, Mutator};

fn read(slot: &AtomicGc<String>, m: &mut Mutator) {
    let text = slot.peek(m);
    m.safepoint();
    println!("{text:?}");
}

fn main() {}
