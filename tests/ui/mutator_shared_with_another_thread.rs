//! A borrowed mutator proves nothing about another thread.

use standstill::{Gc, Mutator};

fn read(number: &Gc<u64>, m: &Mutator) {
    std::thread::scope(|scope| {
        scope.spawn(|| println!("{}", number.get(m)));
    });
}

fn main() {}
