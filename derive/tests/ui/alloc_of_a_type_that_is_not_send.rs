//! Any thread may destroy an object.

use standstill::{Heap, Trace};

#[derive(Trace)]
struct Local {
    #[trace(skip)]
    shared: std::sync::MutexGuard<'static, u64>,
}

fn alloc(heap: &Heap, local: Local) {
    let m = heap.attach();
    m.alloc(local);
}

fn main() {}
