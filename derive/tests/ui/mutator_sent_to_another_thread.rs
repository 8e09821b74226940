//! A mutator says that *this* thread is attached.

use standstill::Heap;

fn main() {
    let m = Heap::new().attach();
    std::thread::spawn(move || drop(m));
}
