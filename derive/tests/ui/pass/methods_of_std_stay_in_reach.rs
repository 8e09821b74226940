//! `Trace` has no methods, so it takes none away from the types that implement it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use standstill::{Gc, Heap, Trace};

#[derive(Trace)]
struct Bow {
    target: u32,
}

impl Bow {
    fn target(&self) -> u32 {
        self.target
    }

    fn traverse(&mut self, by: u32) {
        self.target += by;
    }
}

pub(crate) fn main() {
    let (mut items, mut queue) = (vec![1], VecDeque::from([1]));
    let mut text = String::from("text");
    let (mut map, mut tree) = (HashMap::from([(1, 2)]), BTreeMap::from([(1, 2)]));
    items.clear();
    queue.clear();
    text.clear();
    map.clear();
    tree.clear();
    assert!(items.is_empty() && queue.is_empty() && text.is_empty());
    assert!(map.is_empty() && tree.is_empty());

    let m = Heap::new().attach();
    let mut bow = Bow { target: 1 };
    bow.traverse(2);
    let bow = m.alloc(bow);
    let mut bows: Vec<Gc<Bow>> = vec![bow.clone()];
    bows.clear();
    assert_eq!(bow.target(), 3);
}
