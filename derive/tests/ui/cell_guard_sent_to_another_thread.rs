//! The lock belongs to the thread that took it, and so does the borrow of its mutator.

use standstill::{Gc, GcCell, Mutator};

fn unlock_elsewhere(counter: &Gc<GcCell<u64>>, m: &Mutator) {
    let guard = counter.lock(m);
    std::thread::scope(|scope| {
        scope.spawn(move || drop(guard));
    });
}

fn main() {}
