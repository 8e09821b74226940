//! What keeps the object alive is the handle, not the mutator.

use standstill::Heap;

fn main() {
    let m = Heap::new().attach();
    let name = m.alloc(String::from("Ann"));
    let text: &String = &name;
    drop(name);
    println!("{text}");
}
