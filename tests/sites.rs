//! Where objects were made: the feature `stacks`.

#[path = "common/protobuf.rs"]
mod protobuf;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use standstill::diagnose::{AllocationSite, AllocationSites};
use standstill::{BuildError, Gc, GcCell, GcVec, Heap, Mutator, Trace};

use crate::protobuf::Message;

/// A cell of 64 bytes.
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
        let counts =
            ["from_north", "from_south", "from_west", "big"].map(|f| of(&found, f, objects));
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

#[test]
fn a_new_object_becomes_old_with_a_collection() {
    let heap = sampling(1);
    let mut m = heap.attach();
    let _guard = heap.defer_collections();
    let norths: Vec<_> = (0..10).map(|_| from_north(&m)).collect();
    let leaf = from_west(&m);
    let old = |site: &AllocationSite| site.old_objects;
    let found = sites(&mut m);
    assert_eq!(found.sites.iter().map(old).sum::<u64>(), 0, "{found}");
    assert_eq!(found.to_string().lines().count(), 1, "{found}");
    m.collect_young();
    let souths: Vec<_> = (0..5).map(|_| from_south(&m)).collect();
    let found = sites(&mut m);
    let counts = |name: &str| (of(&found, name, objects), of(&found, name, old));
    assert_eq!(
        [counts("from_north"), counts("from_south"), counts("from_west")],
        [(10, 10), (5, 0), (1, 1)]
    );
    let site = &found.sites[0];
    assert!(site.frames[0].function.ends_with("from_north"), "the oldest come first: {site:?}");
    assert_eq!((site.old_bytes, site.bytes), (640, 640));
    assert!(site.oldest >= site.youngest && !site.youngest.is_zero());
    let text = found.to_string();
    assert!(text.contains("from_north") && !text.contains("from_south"), "{text}");
    drop((norths, souths, leaf));
}

/// The program keeps every second object. With one magazine for both, this would make each sample
/// one of the objects that die.
#[test]
fn estimates_are_within_the_error_of_the_sampling() {
    let heap = sampling(1 << 10);
    let mut m = heap.attach();
    let _guard = heap.defer_collections();
    let mut kept = Vec::new();
    let mut wests = Vec::new();
    for at in 0..40_000 {
        drop(from_north(&m));
        kept.push(from_south(&m));
        if at % 4 == 0 {
            wests.push(from_west(&m));
        }
    }
    kept.truncate(30_000);
    let live = heap.stats().live_bytes as f64;
    let found = sites(&mut m);
    assert_eq!(of(&found, "from_north", objects), 0, "none of these live");
    let near = |seen: u64, is: f64, samples: u64| {
        let error = 4.0 / (samples as f64).sqrt();
        assert!((seen as f64 / is - 1.0).abs() < error, "{seen} for {is}, within {error}");
    };
    for (name, is) in [("from_south", 30_000.0), ("from_west", 10_000.0)] {
        let samples = of(&found, name, |site| site.samples as u64);
        assert!(samples > 100, "{samples} of {name}");
        near(of(&found, name, objects), is, samples);
    }
    let samples = found.sites.iter().map(|site| site.samples as u64).sum();
    near(found.sites.iter().map(|site| site.bytes).sum(), live, samples);
    assert_eq!((found.sampled_bytes, found.lost), (1 << 10, 0));
    drop((kept, wests));
}

#[test]
fn a_constructor_that_panics_leaves_no_sample() {
    let heap = sampling(1);
    let mut m = heap.attach();
    let made = catch_unwind(AssertUnwindSafe(|| {
        Gc::new_cyclic(&m, |_| -> Node { panic!("no value, on purpose") })
    }));
    assert!(made.is_err());
    agrees(&heap, &mut m);
    let node = Gc::new_cyclic(&m, |_| Node::default());
    assert_eq!(agrees(&heap, &mut m).sites.len(), 1);
    drop(node);
}

#[test]
fn a_sample_without_memory_is_lost_and_the_object_is_not() {
    // One page of objects fits, so none is left for samples.
    let heap = Heap::builder().sample_allocations(8 << 10).limit(1 << 16).build().unwrap();
    let mut m = heap.attach();
    let kept: Vec<_> = std::iter::from_fn(|| m.try_alloc(Node::default()).ok()).collect();
    assert!(kept.len() > 900, "{}", kept.len());
    let found = sites(&mut m);
    assert!(found.lost > 0 && found.sites.is_empty(), "{found}");
    assert!(found.to_string().ends_with("memory was refused for them\n"), "{found}");
    drop(kept);
}

#[test]
fn without_the_setting_there_are_no_sites() {
    let heap = Heap::new();
    assert!(heap.attach().allocation_sites().is_none());
    let refused = Heap::builder().sample_allocations(0).build();
    assert!(matches!(refused, Err(BuildError::Setting(text)) if text.contains("is 0")));
    // No number of bytes overflows.
    let heap = sampling(usize::MAX);
    let mut m = heap.attach();
    let node = (from_north(&m), big(&m));
    assert!(sites(&mut m).sites.is_empty());
    drop(node);
}

#[test]
fn a_profile_has_the_sites() {
    let heap = sampling(1);
    let mut m = heap.attach();
    let kept: Vec<_> = (0..7).map(|_| from_north(&m)).collect();
    m.collect();
    let new = from_south(&m);
    let found = sites(&mut m);
    let mut bytes = Vec::new();
    found.write_pprof(&mut bytes).unwrap();
    let profile = Message::of(&bytes);
    let strings: Vec<String> =
        profile.bytes(6).map(|text| String::from_utf8(text.to_vec()).unwrap()).collect();
    assert_eq!(strings[0], "");
    let string = |number: u64| strings[number as usize].as_str();
    let kinds: Vec<_> =
        profile.messages(1).map(|it| (string(it.number(1)), string(it.number(2)))).collect();
    assert_eq!(
        kinds,
        [
            ("old_objects", "count"),
            ("old_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes")
        ]
    );
    assert_eq!((string(profile.number(14)), profile.number(12)), ("old_space", 1));
    let functions: HashMap<u64, (&str, &str)> = profile
        .messages(5)
        .map(|it| (it.number(1), (string(it.number(2)), string(it.number(4)))))
        .collect();
    let locations: HashMap<u64, (u64, u64)> = profile
        .messages(4)
        .map(|it| (it.number(1), it.messages(4).next().unwrap()))
        .map(|(id, line)| (id, (line.number(1), line.number(2))))
        .collect();
    let samples: Vec<Message> = profile.messages(2).collect();
    assert_eq!(samples.len(), found.sites.len());
    for (sample, site) in samples.iter().zip(&found.sites) {
        let expected = [site.old_objects, site.old_bytes, site.objects, site.bytes];
        assert_eq!(sample.packed(2), expected);
        let frames: Vec<_> = sample.packed(1).iter().map(|id| locations[id]).collect();
        assert_eq!(frames.len(), site.frames.len());
        for ((function, line), frame) in frames.into_iter().zip(&site.frames) {
            let file = frame.file.as_deref().unwrap_or_default();
            assert_eq!(functions[&function], (frame.function.as_str(), file));
            assert_eq!(line, frame.line.unwrap_or(0).into());
        }
        let labels: Vec<_> = sample.messages(3).map(|it| string(it.number(1))).collect();
        assert_eq!(labels, ["thread", "oldest", "youngest"]);
        let thread = sample.messages(3).next().unwrap();
        assert_eq!(string(thread.number(2)), "a_profile_has_the_sites");
    }
    assert_eq!(samples[0].packed(2), [7, 448, 7, 448]);
    drop((kept, new));
}
