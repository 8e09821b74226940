//! Several threads share a cache that forgets its least recently used entry.
//!
//! The entries form a doubly linked list: each pair of neighbours is a cycle. The cache never cuts
//! the links of the whole list; when it is dropped, the collector frees the entries.
//!
//! ```sh
//! cargo run --example lru
//! ```

use std::collections::HashMap;

use standstill::{Gc, GcCell, Heap, Mutator, Trace};

const CAPACITY: usize = 100;

/// The cache, an object of the heap as its entries are.
#[derive(Trace)]
struct Cache {
    state: GcCell<State>,
}

#[derive(Default, Trace)]
struct State {
    entries: HashMap<u32, Gc<Entry>>,
    newest: Option<Gc<Entry>>,
    oldest: Option<Gc<Entry>>,
    hits: usize,
    misses: usize,
}

#[derive(Trace)]
struct Entry {
    key: u32,
    value: String,
    newer: GcCell<Option<Gc<Entry>>>,
    older: GcCell<Option<Gc<Entry>>>,
}

impl State {
    /// Takes an entry out of the list.
    fn unlink(&mut self, entry: &Gc<Entry>, m: &Mutator) {
        let newer = entry.newer.take(m);
        let older = entry.older.take(m);
        match &newer {
            Some(newer) => newer.older.set(m, older.clone()),
            None => self.newest = older.clone(),
        }
        match &older {
            Some(older) => older.newer.set(m, newer),
            None => self.oldest = newer,
        }
    }

    /// Puts an entry at the newest end of the list.
    fn link(&mut self, entry: &Gc<Entry>, m: &Mutator) {
        match &self.newest {
            Some(newest) => newest.newer.set(m, Some(entry.clone())),
            None => self.oldest = Some(entry.clone()),
        }
        entry.older.set(m, self.newest.replace(entry.clone()));
    }
}

impl Cache {
    /// The value for a key: the one in the cache, or a new one, which may displace the oldest.
    fn value(&self, key: u32, m: &Mutator) -> Gc<Entry> {
        let mut state = self.state.lock(m);
        if let Some(entry) = state.entries.get(&key).cloned() {
            state.hits += 1;
            state.unlink(&entry, m);
            state.link(&entry, m);
            return entry;
        }
        state.misses += 1;
        if state.entries.len() == CAPACITY {
            let oldest = state.oldest.clone().expect("a full cache has an oldest entry");
            state.unlink(&oldest, m);
            state.entries.remove(&oldest.key);
        } // the displaced entry has no links: its count frees it
        let entry = m.alloc(Entry {
            key,
            value: format!("value {key}"),
            newer: GcCell::default(),
            older: GcCell::default(),
        });
        state.link(&entry, m);
        state.entries.insert(key, entry.clone());
        entry
    }
}

fn main() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let cache = m.alloc(Cache { state: GcCell::default() });

    m.scope(|scope, _| {
        for thread in 0..4 {
            let (heap, cache) = (&heap, cache.clone());
            scope.spawn(move || {
                let mut m = heap.attach();
                let mut random = thread + 1;
                for _ in 0..20_000 {
                    random = random * 1_103_515_245_u64 % 2_147_483_647;
                    let key = (random % 120) as u32;
                    let entry = cache.value(key, &m);
                    assert_eq!(entry.value, format!("value {key}"));
                    m.safepoint(); // another thread may collect here
                }
            });
        }
    }); // waits for the threads, detached

    {
        let state = cache.state.lock(&m);
        println!("{} hits, {} misses", state.hits, state.misses);
        assert_eq!(state.hits + state.misses, 80_000);
        assert_eq!(state.entries.len(), CAPACITY);
    } // the guard ends before the next safepoint; the compiler insists on it

    // Displaced entries are gone: the cache and its entries live.
    println!("{} objects live", heap.stats().live_objects);
    assert_eq!(heap.stats().live_objects, CAPACITY + 1);

    drop(cache); // its count frees it; its entries hold each other
    assert_eq!(heap.stats().live_objects, CAPACITY);
    let report = m.collect();
    println!("the cache is dropped: collected {} entries", report.collected);
    assert_eq!(report.collected, CAPACITY);
}
