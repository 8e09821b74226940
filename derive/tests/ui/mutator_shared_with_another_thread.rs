//! A borrowed mutator proves nothing about another thread.

use standstill::{Gc, Mutator};

fn count(number: &Gc<u64>, m: &Mutator) {
    std::thread::scope(|scope| {
        scope.spawn(|| println!("{}", Gc::is_finalized(number, m)));
    });
}

fn main() {}
