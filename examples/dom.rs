//! A document tree: parents, an index of weak references, listeners behind a trait, and an observer
//! that is notified when a subtree dies.
//!
//! ```sh
//! cargo run --example dom
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use standstill::{Gc, GcCell, GcDyn, GcWeak, Heap, Mutator, Trace, gc_dyn};

/// An element. A child refers to its parent with an ordinary reference: cycles are allowed.
#[derive(Trace)]
struct Node {
    name: String,
    parent: GcCell<Option<Gc<Node>>>,
    children: GcCell<Vec<Gc<Node>>>,
    listeners: GcCell<Vec<GcDyn<dyn Listener>>>,
}

/// Code that runs when an event reaches a node. Listeners are objects, so the collector can follow
/// the references that they hold.
trait Listener: Send + Sync {
    fn on_event(&self, event: &str, m: &Mutator);
}

/// A listener that refers back to its node: one more cycle.
#[derive(Trace)]
struct Counter {
    node: Gc<Node>,
    events: AtomicUsize,
}

impl Listener for Counter {
    fn on_event(&self, event: &str, _: &Mutator) {
        self.events.fetch_add(1, Ordering::Relaxed);
        println!("  {event} at {}", self.node.name);
    }
}

/// Finds nodes by their names, and keeps none of them alive.
#[derive(Default)]
struct Index(HashMap<String, GcWeak<Node>>);

impl Index {
    fn node(&mut self, name: &str, parent: Option<&Gc<Node>>, m: &Mutator) -> Gc<Node> {
        let node = m.alloc(Node {
            name: name.to_owned(),
            parent: GcCell::new(parent.cloned()),
            children: GcCell::default(),
            listeners: GcCell::default(),
        });
        if let Some(parent) = parent {
            parent.children.lock(m).push(node.clone());
        }
        self.0.insert(name.to_owned(), Gc::downgrade(&node, m));
        node
    }

    fn find(&self, name: &str, m: &Mutator) -> Option<Gc<Node>> {
        self.0.get(name)?.upgrade(m)
    }
}

/// Delivers an event to a node and then to its ancestors. Returns the number of listeners called.
fn dispatch(node: &Gc<Node>, event: &str, m: &Mutator) -> usize {
    let mut called = 0;
    let mut at = Some(node.clone());
    while let Some(node) = at {
        // A copy: a listener may add listeners.
        let listeners = node.listeners.get(m);
        for listener in &listeners {
            listener.on_event(event, m);
        }
        called += listeners.len();
        at = node.parent.get(m);
    }
    called
}

fn listen(node: &Gc<Node>, m: &Mutator) -> Gc<Counter> {
    let counter = m.alloc(Counter { node: node.clone(), events: AtomicUsize::new(0) });
    let listener = gc_dyn!(counter.clone() => dyn Listener);
    node.listeners.lock(m).push(listener);
    counter
}

fn main() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let mut index = Index::default();

    let document = index.node("document", None, &m);
    let menu = index.node("menu", Some(&document), &m);
    let item = index.node("item", Some(&menu), &m);
    index.node("footer", Some(&document), &m);

    println!("an event rises from the item to the document:");
    let (on_menu, on_document) = (listen(&menu, &m), listen(&document, &m));
    assert_eq!(dispatch(&item, "click", &m), 2);
    assert_eq!(on_menu.events.load(Ordering::Relaxed), 1);
    assert_eq!(on_document.events.load(Ordering::Relaxed), 1);

    // An observer: a weak reference with a callback.
    let died = Arc::new(AtomicUsize::new(0));
    let observer = m.alloc_weak(&menu, died.clone(), |weak, _| {
        println!("  the observer is notified: the menu died");
        weak.data().fetch_add(1, Ordering::Relaxed);
    });

    // Removes the menu from the document. Its parent link stays; the document does not refer to it.
    document.children.lock(&m).retain(|child| *child != menu);
    drop((menu, on_menu));
    println!("the menu is removed, but a variable still holds one of its items:");
    assert_eq!(m.collect().collected, 0);
    assert!(index.find("menu", &m).is_some());

    println!("the item is dropped too:");
    drop(item);
    let report = m.collect();
    println!("  collected {} objects", report.collected);
    assert_eq!(report.collected, 3); // the menu, its item, and the menu's listener
    assert_eq!(died.load(Ordering::Relaxed), 1);
    assert!(observer.upgrade(&m).is_none());
    assert!(index.find("menu", &m).is_none() && index.find("item", &m).is_none());
    assert!(index.find("footer", &m).is_some());
}
