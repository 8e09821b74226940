//! Where objects were made: the feature `stacks`.

use std::collections::HashMap;

use standstill::diagnose::{AllocationSite, AllocationSites};
use standstill::{Collect, Gc, GcCell, GcVec, Heap, Mutator, Trace};

/// 64 bytes with its header, so that a site of 1,000 has 64,000.
#[derive(Default, Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    rest: [u64; 3],
}

#[derive(Trace)]
struct Big([u64; 20_000]);

#[inline(never)]
fn from_north(m: &Mutator) -> Gc<Node> {
    m.alloc(Node::default())
}

#[inline(never)]
fn from_south(m: &Mutator) -> Gc<Node> {
    m.alloc(Node { rest: [1; 3], ..Node::default() })
}

#[inline(never)]
fn from_west(m: &Mutator) -> Gc<String> {
    m.alloc("a leaf, which no collection tracks".to_owned())
}

#[inline(never)]
fn big(m: &Mutator) -> Gc<Big> {
    m.alloc(Big([0; 20_000]))
}

fn sampling(bytes: usize) -> Heap {
    Heap::builder().sample_allocations(bytes).build().unwrap()
}

fn sites(m: &mut Mutator) -> AllocationSites {
    m.allocation_sites().expect("the heap samples")
}

/// A figure of all sites whose innermost frame is a function of this file.
fn of(found: &AllocationSites, function: &str, figure: fn(&AllocationSite) -> u64) -> u64 {
    let made_by = |site: &&AllocationSite| site.frames[0].function.ends_with(function);
    found.sites.iter().filter(made_by).map(figure).sum()
}

fn objects(site: &AllocationSite) -> u64 {
    site.objects
}

/// With one byte of each drawn, every object is a sample, so the sites are a ledger.
#[track_caller]
fn agrees(heap: &Heap, m: &mut Mutator) -> AllocationSites {
    let (stats, found) = (heap.stats(), sites(m));
    let sum = |figure: fn(&AllocationSite) -> u64| found.sites.iter().map(figure).sum::<u64>();
    assert_eq!(sum(objects), stats.live_objects as u64);
    assert_eq!(sum(|site| site.bytes), stats.live_bytes as u64);
    assert_eq!(sum(|site| site.samples as u64), stats.live_objects as u64);
    assert_eq!(found.lost, 0);
    found
}

#[test]
fn every_birth_and_death_is_in_the_ledger() {
    for stress in [false, true] {
        let builder = Heap::builder().sample_allocations(1).stress(stress);
        let heap = builder.build().unwrap();
        let mut m = heap.attach();
        let _guard = heap.defer_collections();
        let mut kept: Vec<_> = (0..50).map(|_| from_north(&m)).collect();
        let souths: Vec<_> = (0..20).map(|_| from_south(&m)).collect();
        let leaves: Vec<_> = (0..30).map(|_| from_west(&m)).collect();
        let large = [big(&m), big(&m)];
        let mut list: GcVec<Node, 1> = GcVec::new();
        list.extend(&m, kept.iter().cloned());
        let found = agrees(&heap, &mut m);
        let counts = ["from_north", "from_south", "from_west", "big"].map(|f| of(&found, f, objects));
        assert_eq!(counts, [50, 20, 30, 2], "{found:#?}");
        let buffers: u64 = found.sites.iter().map(objects).sum::<u64>() - 102;
        assert_eq!(buffers, 1, "the buffer of the list");

        drop((list, large, leaves));
        kept.truncate(40);
        // A thread that has made none of them drops some, and its own live on.
        let theirs = std::thread::scope(|s| {
            let threads = std::thread::Builder::new().name("helper".into());
            let work = || {
                let m = heap.attach();
                drop(souths);
                [from_north(&m), from_south(&m)]
            };
            let thread = threads.spawn_scoped(s, work).unwrap();
            m.detach(|| thread.join().unwrap())
        });
        let found = agrees(&heap, &mut m);
        assert_eq!(of(&found, "from_north", objects), 41);
        assert_eq!(of(&found, "from_south", objects), 1);
        let helper = |site: &&AllocationSite| site.thread.as_deref() == Some("helper");
        assert_eq!(found.sites.iter().filter(helper).map(objects).sum::<u64>(), 2);

        // A ring, which a collection frees, and a reference that dies with no mutator.
        kept[0].next.set(&m, Some(kept[1].clone()));
        kept[1].next.set(&m, Some(kept[0].clone()));
        kept.drain(..2);
        assert_eq!(m.collect().collected, 2);
        assert_eq!(of(&agrees(&heap, &mut m), "from_north", objects), 39);
        std::thread::scope(|s| drop(s.spawn(|| drop(theirs))));
        m.collect();
        assert_eq!(of(&agrees(&heap, &mut m), "from_south", objects), 0);
        m.verify().unwrap();
        drop(kept);
        assert!(agrees(&heap, &mut m).sites.is_empty());
        m.verify().unwrap();
    }
}
