//! Code that was lent a `&Mutator` cannot park under its lender's borrows.

use standstill::Mutator;

fn poll(m: &Mutator) {
    m.safepoint();
}

fn main() {}
