//! Tables with weak keys: an entry lives while its table and its key do.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use common::{Census, Rng, Witness, deadline};
use standstill::{
    AnyGc, Collect, CollectionKind, Gc, GcCell, GcStr, GcWeakMap, GcWeakSet, Heap, Mutator, Pacing,
    Trace,
};

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().unwrap()
}

type Table = GcWeakMap<Gc<Node>, Value>;

/// An object of a test, with edges to nodes and tables.
#[derive(Trace)]
struct Node {
    name: usize,
    nodes: GcCell<Vec<Gc<Node>>>,
    tables: GcCell<Vec<Gc<Table>>>,
    #[trace(skip)]
    witness: Witness,
}

/// What an entry holds.
#[derive(Clone, Trace)]
struct Value(Vec<Gc<Node>>);

fn node(m: &Mutator, census: &Arc<Census>, name: usize) -> Gc<Node> {
    m.alloc(Node {
        name,
        nodes: GcCell::default(),
        tables: GcCell::default(),
        witness: Witness::new(census, name),
    })
}

#[test]
fn an_entry_whose_value_refers_to_its_key_dies_with_the_key() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let table: Gc<Table> = GcWeakMap::new(&m);
    let kept = node(&m, &census, 0);
    table.insert(&m, &kept, Value(vec![kept.clone(), node(&m, &census, 1)]));
    for name in 2..10_002 {
        let key = node(&m, &census, name);
        table.insert(&m, &key, Value(vec![key.clone()]));
    }
    assert_eq!(table.len(&m), 10_001);
    let report = m.collect();
    assert_eq!((report.collected, report.uncollectable, table.len(&m)), (10_000, 0, 1));
    assert_eq!((census.alive(), table.get(&m, &kept).unwrap().0[1].name), (2, 1));
    drop(kept);
    assert_eq!(m.collect().collected, 2);
    assert_eq!((census.alive(), table.is_empty(&m)), (0, true));
}

#[test]
fn a_key_that_dies_by_its_count_takes_its_value_along_at_once() {
    let heap = heap();
    let m = heap.attach();
    let census = Census::new();
    let table: Gc<Table> = GcWeakMap::new(&m);
    let (key, value) = (node(&m, &census, 0), node(&m, &census, 1));
    table.insert(&m, &key, Value(vec![value]));
    assert!(table.contains(&m, &key));
    drop(key);
    assert_eq!((census.alive(), table.len(&m)), (0, 0));
}

#[test]
fn a_table_that_only_its_own_values_reach_is_garbage_although_its_keys_live() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let key = node(&m, &census, 0);
    let table: Gc<Table> = GcWeakMap::new(&m);
    let value = node(&m, &census, 1);
    value.tables.lock(&m).push(table.clone());
    table.insert(&m, &key, Value(vec![value]));
    drop(table);
    let report = m.collect();
    assert_eq!((report.collected, census.alive()), (2, 1));
    assert_eq!(heap.stats().live_objects, 1);
}

#[test]
fn a_long_chain_of_entries_is_kept_and_collected() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let table: Gc<Table> = GcWeakMap::new(&m);
    let first = node(&m, &census, 0);
    let mut last = first.clone();
    for name in 1..=50_000 {
        let next = node(&m, &census, name);
        table.insert(&m, &last, Value(vec![next.clone()]));
        last = next;
    }
    last.nodes.lock(&m).push(first.clone());
    drop(last);
    assert_eq!(m.collect().unreachable, 0);
    assert_eq!(table.len(&m), 50_000);
    drop(first);
    let report = m.collect();
    assert_eq!((report.collected, table.len(&m), census.alive()), (50_001, 0, 0));
}

#[test]
fn the_methods_do_what_those_of_a_map_do() {
    let heap = heap();
    let m = heap.attach();
    let table: Gc<GcWeakMap<AnyGc, u32>> = GcWeakMap::new(&m);
    let [one, two]: [AnyGc; 2] = [m.alloc(1u8).into(), m.alloc(2u8).into()];
    assert_eq!(table.insert(&m, &one, 10), None);
    assert_eq!(table.insert(&m, &one, 11), Some(10));
    assert_eq!((table.get(&m, &one), table.get(&m, &two)), (Some(11), None));
    assert_eq!(table.with(&m, &one, |value| value + 1), Some(12));
    table.insert(&m, &two, 20);
    let mut all = table.entries(&m);
    all.sort_by_key(|(_, value)| *value);
    assert!(all == [(one.clone(), 11), (two.clone(), 20)]);
    assert_eq!(table.remove(&m, &one), Some(11));
    assert_eq!((table.remove(&m, &one), table.len(&m)), (None, 1));
    table.remove_all(&m);
    assert!(table.is_empty(&m) && !table.contains(&m, &two));
    // The records of the keys know no entry any more.
    for _ in 0..1_000 {
        table.insert(&m, &one, 1);
        table.remove(&m, &one);
    }
    let names: Gc<GcWeakSet<GcStr>> = GcWeakMap::new(&m);
    let name = m.alloc_str((), "name");
    names.insert(&m, &name, ());
    assert!(names.contains(&m, &name));
    drop(name);
    assert!(names.is_empty(&m));
}

#[test]
fn a_key_that_dies_while_the_table_is_locked_leaves_it_afterwards() {
    let heap = heap();
    let m = heap.attach();
    let census = Census::new();
    let table: Gc<Table> = GcWeakMap::new(&m);
    let (one, two) = (node(&m, &census, 0), node(&m, &census, 1));
    table.insert(&m, &one, Value(vec![node(&m, &census, 2)]));
    table.insert(&m, &two, Value(vec![node(&m, &census, 3)]));
    table.with(&m, &two, |_| drop(one));
    assert_eq!((census.alive(), table.len(&m)), (2, 1));
}

/// A value that dies with its key while the table is locked, is dropped after the unlock.
#[test]
fn what_dies_with_a_key_may_use_the_table() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    #[derive(Trace)]
    #[trace(finalize)]
    struct Loud(Gc<GcWeakMap<Gc<Node>, Gc<Loud>>>);
    impl Loud {
        fn finalize(this: &Gc<Self>, m: &Mutator) {
            SEEN.fetch_add(this.0.len(m), SeqCst);
        }
    }
    let heap = heap();
    heap.on_unraisable(|error| panic!("{error}"));
    let m = heap.attach();
    let census = Census::new();
    let table = GcWeakMap::new(&m);
    let keys = [0, 1, 2].map(|name| node(&m, &census, name));
    keys.iter().for_each(|key| _ = table.insert(&m, key, m.alloc(Loud(table.clone()))));
    let [one, two, three] = keys;
    table.with(&m, &three, |_| drop(one));
    assert_eq!(SEEN.load(SeqCst), 2);
    let panics = catch_unwind(AssertUnwindSafe(|| {
        table.with(&m, &three, |_| {
            drop(two);
            resume_unwind(Box::new("in the table"));
        })
    }));
    assert!(panics.is_err());
    assert_eq!((table.len(&m), SEEN.load(SeqCst)), (1, 3));
}

#[test]
fn a_long_chain_of_entries_dies_by_counts() {
    let heap = heap();
    let m = heap.attach();
    let census = Census::new();
    let table: Gc<Table> = GcWeakMap::new(&m);
    let first = node(&m, &census, 0);
    let mut last = first.clone();
    for name in 1..=100_000 {
        let next = node(&m, &census, name);
        table.insert(&m, &last, Value(vec![next.clone()]));
        last = next;
    }
    drop(last);
    assert_eq!(census.alive(), 100_001);
    drop(first);
    assert_eq!((table.len(&m), census.alive()), (0, 0));
}

#[test]
fn an_object_may_be_key_and_value_and_table() {
    let heap = heap();
    let mut m = heap.attach();
    let tables: [Gc<GcWeakMap<AnyGc, AnyGc>>; 2] = [GcWeakMap::new(&m), GcWeakMap::new(&m)];
    let [one, two] = tables.clone().map(AnyGc::from);
    for table in &tables {
        for (key, value) in [(&one, &one), (&one, &two), (&two, &one)] {
            table.insert(&m, key, value.clone());
        }
        let own = AnyGc::from(m.alloc(GcCell::new(0u8)));
        table.insert(&m, &own, own.clone());
    }
    drop((one, two));
    assert_eq!(m.collect().unreachable, 0, "untracked keys count as alive");
    assert_eq!(tables.each_ref().map(|table| table.len(&m)), [3, 3]);
    drop(tables);
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_value_of_another_heap_lives_until_its_key_dies() {
    let (heap, elsewhere) = (heap(), heap());
    let census = Census::new();
    let value = node(&elsewhere.attach(), &census, 1);
    let mut m = heap.attach();
    let table: Gc<Table> = GcWeakMap::new(&m);
    let key = node(&m, &census, 0);
    table.insert(&m, &key, Value(vec![value, key.clone()]));
    drop(key);
    m.detach(|| elsewhere.attach_scoped(|m| m.collect()));
    assert_eq!(census.alive(), 2);
    assert_eq!((m.collect().collected, table.len(&m)), (1, 0));
    m.detach(|| elsewhere.attach_scoped(|m| m.collect()));
    assert_eq!(census.alive(), 0);
}

#[test]
fn a_finalizer_still_finds_the_entry_of_its_object() {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    #[derive(Trace)]
    #[trace(finalize)]
    struct Loud {
        table: Gc<GcWeakMap<Gc<Loud>, usize>>,
        me: GcCell<Option<Gc<Loud>>>,
    }
    impl Loud {
        fn finalize(this: &Gc<Self>, m: &Mutator) {
            FOUND.fetch_add(this.table.get(m, this).unwrap_or(1_000), SeqCst);
        }
    }
    let heap = heap();
    let mut m = heap.attach();
    let table = GcWeakMap::new(&m);
    let cyclic = m.alloc(Loud { table: table.clone(), me: GcCell::default() });
    cyclic.me.set(&m, Some(cyclic.clone()));
    table.insert(&m, &cyclic, 3);
    let counted = m.alloc(Loud { table: table.clone(), me: GcCell::default() });
    table.insert(&m, &counted, 4);
    drop((cyclic, counted));
    assert_eq!((m.collect().collected, FOUND.load(SeqCst), table.len(&m)), (1, 7, 0));
}

#[test]
fn a_key_that_its_finalizer_revives_keeps_its_entry() {
    static SAVED: std::sync::Mutex<Option<Gc<Phoenix>>> = std::sync::Mutex::new(None);
    #[derive(Trace)]
    #[trace(finalize)]
    struct Phoenix(GcCell<Option<Gc<Phoenix>>>);
    impl Phoenix {
        fn finalize(this: &Gc<Self>, _: &Mutator) {
            *SAVED.lock().unwrap() = Some(this.clone());
        }
    }
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let table: Gc<GcWeakMap<Gc<Phoenix>, Value>> = GcWeakMap::new(&m);
    let key = m.alloc(Phoenix(GcCell::default()));
    key.0.set(&m, Some(key.clone()));
    let value = node(&m, &census, 0);
    value.nodes.lock(&m).push(value.clone());
    table.insert(&m, &key, Value(vec![value]));
    drop(key);
    let report = m.collect();
    assert_eq!((report.collected, report.resurrected), (0, 2));
    let key = SAVED.lock().unwrap().take().expect("revived");
    assert_eq!((table.get(&m, &key).unwrap().0[0].name, census.alive()), (0, 1));
    key.0.take(&m);
    drop(key);
    m.collect();
    assert_eq!((table.len(&m), census.alive()), (0, 0));
}

#[test]
fn a_value_that_cannot_be_read_keeps_its_targets() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let table = GcWeakMap::new(&m);
    for name in 0..2 {
        let key = node(&m, &census, name);
        table.insert(&m, &key, GcCell::new(vec![key.clone()]));
        if name == 0 {
            // The guard is leaked, so the value stays locked.
            table.with(&m, &key, |value| std::mem::forget(value.lock(&m)));
        }
    }
    assert_eq!((m.collect().collected, table.len(&m), census.alive()), (1, 1, 1));
    drop(table);
    assert_eq!(census.alive(), 0);
}

#[test]
fn a_young_collection_keeps_what_an_entry_holds() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let table: Gc<Table> = GcWeakMap::new(&m);
    let key = node(&m, &census, 0);
    table.insert(&m, &key, Value(vec![key.clone()]));
    drop(key);
    let report = m.try_collect(Collect::young()).unwrap();
    assert_eq!((report.kind, report.collected, table.len(&m)), (CollectionKind::Young, 0, 1));
    assert_eq!((m.collect().collected, table.len(&m)), (1, 0));
}

/// The naive definition: what the roots reach, where an entry leads from its table and its key
/// together.
struct Naive {
    /// By object: a node has edges to nodes and tables. Tables follow the nodes.
    edges: Vec<Vec<usize>>,
    entries: Vec<(usize, usize, Vec<usize>)>,
}

impl Naive {
    fn alive(&self, roots: &[usize]) -> Vec<bool> {
        let mut alive = vec![false; self.edges.len()];
        let mut list = roots.to_vec();
        loop {
            while let Some(at) = list.pop() {
                if !std::mem::replace(&mut alive[at], true) {
                    list.extend(&self.edges[at]);
                }
            }
            for (table, key, values) in &self.entries {
                if alive[*table] && alive[*key] {
                    list.extend(values.iter().filter(|&&value| !alive[value]));
                }
            }
            if list.is_empty() {
                return alive;
            }
        }
    }
}

/// Random graphs of nodes and tables, of which some have handles, are collected and compared with
/// the naive definition.
fn random(seed: u64, heap: &Heap, collect: impl Fn(&mut Mutator)) {
    let mut m = heap.attach();
    let mut rng = Rng::new(seed);
    let (nodes, tables) = (rng.below(60) + 1, rng.below(6) + 1);
    let census = Census::new();
    let all: Vec<_> = (0..nodes).map(|name| node(&m, &census, name)).collect();
    let maps: Vec<Gc<Table>> = (0..tables).map(|_| GcWeakMap::new(&m)).collect();
    if rng.below(3) == 0 {
        // The objects are old now.
        m.try_collect(Collect::young()).unwrap();
    }
    let mut naive = Naive { edges: vec![Vec::new(); nodes + tables], entries: Vec::new() };
    for _ in 0..rng.below(2 * nodes) {
        let (from, to) = (rng.below(nodes), rng.below(nodes + tables));
        naive.edges[from].push(to);
        match all.get(to) {
            Some(node) => all[from].nodes.lock(&m).push(node.clone()),
            None => all[from].tables.lock(&m).push(maps[to - nodes].clone()),
        }
    }
    let mut entries = HashMap::new();
    for _ in 0..rng.below(3 * nodes) {
        let (table, key) = (rng.below(tables), rng.below(nodes));
        let values: Vec<_> = (0..rng.below(3)).map(|_| rng.below(nodes)).collect();
        let value = Value(values.iter().map(|&at| all[at].clone()).collect());
        maps[table].insert(&m, &all[key], value);
        entries.insert((table + nodes, key), values);
    }
    naive.entries = entries.into_iter().map(|((table, key), v)| (table, key, v)).collect();
    let is_root: Vec<bool> = (0..nodes + tables).map(|_| rng.below(5) == 0).collect();
    let mut kept: Vec<Option<Gc<Node>>> = all.into_iter().map(Some).collect();
    let mut kept_maps: Vec<Option<Gc<Table>>> = maps.into_iter().map(Some).collect();
    let roots: Vec<usize> = (0..nodes + tables).filter(|&at| is_root[at]).collect();
    let weak: Vec<_> = kept.iter().map(|gc| Gc::downgrade(gc.as_ref().unwrap(), &m)).collect();
    kept.iter_mut().zip(&is_root).filter(|(_, root)| !**root).for_each(|(gc, _)| *gc = None);
    kept_maps
        .iter_mut()
        .zip(&is_root[nodes..])
        .filter(|(_, root)| !**root)
        .for_each(|(gc, _)| *gc = None);
    collect(&mut m);
    let alive = naive.alive(&roots);
    for (at, weak) in weak.iter().enumerate() {
        let upgraded = weak.upgrade(&m);
        assert_eq!(upgraded.is_some(), alive[at], "seed {seed}: node {at}");
        upgraded.inspect(|node| node.witness.check());
    }
    assert_eq!(census.alive(), alive[..nodes].iter().filter(|alive| **alive).count());
    for (table, key, values) in &naive.entries {
        let (Some(map), Some(key_gc)) = (&kept_maps[table - nodes], weak[*key].upgrade(&m)) else {
            continue;
        };
        let found = map.get(&m, &key_gc).expect("an entry of a living key");
        let names: Vec<_> = found.0.iter().map(|node| node.name).collect();
        assert_eq!(&names, values, "seed {seed}: the entry of {key} in {table}");
    }
    for map in kept_maps.iter().flatten() {
        assert!(map.entries(&m).iter().all(|(key, _)| alive[key.name]), "seed {seed}");
    }
    drop((kept, kept_maps));
    collect(&mut m);
    collect(&mut m);
    assert_eq!(census.alive(), 0, "seed {seed}");
}

#[test]
fn random_tables_agree_with_the_naive_definition() {
    let heap = heap();
    for seed in 0..2_000 {
        random(seed, &heap, |m| {
            m.collect();
        });
    }
}

#[test]
fn the_same_on_several_workers_in_checked_mode() {
    let heap = Heap::builder()
        .pacing(Pacing::manual())
        .workers(2)
        .serial_below(0)
        .checked(true)
        .build()
        .unwrap();
    for seed in 0..300 {
        random(seed, &heap, |m| {
            m.collect();
        });
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_same_if_a_child_searches() {
    let _watch = deadline("ephemerons in a child");
    let heap = heap();
    for seed in 0..60 {
        random(seed, &heap, |m| {
            // What a young collection or a second search finds is the same.
            m.try_collect(Collect::full().forked(true)).unwrap();
        });
    }
}

/// Threads share tables, and insert, look up, drop and collect.
#[test]
fn threads_lose_nothing_and_leak_nothing() {
    let _watch = deadline("ephemerons of threads");
    let heap = Heap::builder().pacing(Pacing::default().with_young_objects(500)).build().unwrap();
    let census = Census::new();
    let table: Gc<Table> = GcWeakMap::new(&heap.attach());
    thread::scope(|scope| {
        for thread in 0..3 {
            let (heap, census, table) = (&heap, &census, &table);
            scope.spawn(move || {
                let mut m = heap.attach();
                let mut rng = Rng::new(thread as u64);
                let mut keys: Vec<Gc<Node>> = Vec::new();
                for round in 0..20_000 {
                    match rng.below(10) {
                        0..=4 => {
                            let key = node(&m, census, round);
                            let mut value = vec![node(&m, census, round + 1)];
                            if rng.below(2) == 0 {
                                value.push(key.clone());
                            }
                            table.insert(&m, &key, Value(value));
                            if rng.below(3) == 0 {
                                keys.push(key);
                            }
                        }
                        5 if !keys.is_empty() => {
                            keys.swap_remove(rng.below(keys.len()));
                        }
                        6 if !keys.is_empty() => {
                            let key = &keys[rng.below(keys.len())];
                            let value = table.get(&m, key).expect("its entry");
                            assert_eq!(value.0[0].name, key.name + 1);
                            value.0[0].witness.check();
                        }
                        7 if round % 100 == 0 => {
                            for (key, value) in table.entries(&m) {
                                assert_eq!(value.0[0].name, key.name + 1);
                                value.0[0].witness.check();
                            }
                        }
                        8 if round % 500 == 0 => _ = m.try_collect(Collect::full()),
                        _ => m.safepoint(),
                    }
                }
            });
        }
    });
    let mut m = heap.attach();
    m.collect();
    m.collect();
    assert_eq!((table.len(&m), census.alive()), (0, 0));
}
