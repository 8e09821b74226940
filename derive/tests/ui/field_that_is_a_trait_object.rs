//! A trait object cannot say what it refers to; `GcDyn` can.

use standstill::Trace;

trait Shape: Send + Sync {}

#[derive(Trace)]
struct Canvas {
    shapes: Vec<Box<dyn Shape>>,
}

fn main() {}
