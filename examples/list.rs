//! A cycle dies: a linked list is freed by its counts, a ring is collected.
//!
//! ```sh
//! cargo run --example list
//! ```

use standstill::{Gc, GcCell, Heap, Mutator, Trace};

/// An element of a singly linked list.
#[derive(Trace)]
struct Node {
    number: u32,
    next: GcCell<Option<Gc<Node>>>,
}

/// Makes a list of the numbers 1 to `length`. Returns its first element and its last.
fn list(m: &Mutator, length: u32) -> (Gc<Node>, Gc<Node>) {
    let last = m.alloc(Node { number: length, next: GcCell::new(None) });
    let mut first = last.clone();
    for number in (1..length).rev() {
        first = m.alloc(Node { number, next: GcCell::new(Some(first)) });
    }
    (first, last)
}

/// Adds up the numbers, from `first` to the end of the list or back to `first`.
fn sum(first: &Gc<Node>, m: &Mutator) -> u32 {
    let mut sum = first.number;
    let mut at = first.next.get(m);
    while let Some(node) = at
        && node != *first
    {
        sum += node.number;
        at = node.next.get(m);
    }
    sum
}

fn main() {
    let heap = Heap::new();
    let mut m = heap.attach(); // this thread may touch objects now

    let (first, last) = list(&m, 100);
    println!("a list of {} objects, sum {}", heap.stats().live_objects, sum(&first, &m));
    assert_eq!(sum(&first, &m), 5050);
    drop((first, last));
    println!("dropped: {} objects are left", heap.stats().live_objects);
    assert_eq!(heap.stats().live_objects, 0); // freed by its counts, without a collection

    let (first, last) = list(&m, 100);
    last.next.set(&m, Some(first.clone())); // the list is a ring now
    assert_eq!(sum(&first, &m), 5050);
    drop((first, last));
    println!("a ring, dropped: {} objects are left", heap.stats().live_objects);
    assert_eq!(heap.stats().live_objects, 100); // each is held by the one before it

    let report = m.collect();
    println!("collected {} objects in {:?}", report.collected, report.duration);
    assert_eq!(report.collected, 100);
    assert_eq!(heap.stats().live_objects, 0);
}
