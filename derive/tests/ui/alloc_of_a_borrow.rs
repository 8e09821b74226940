//! Objects outlive every borrow but `'static`.

use standstill::Heap;

fn main() {
    let m = Heap::new().attach();
    let name = String::from("Ann");
    m.alloc(name.as_str());
}
