//! A handle is read without a mutator (ADR 25), compared and hashed by the object's identity.

#![cfg(feature = "derive")]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use standstill::{
    AnyGc, AnyObject, Gc, GcCell, GcDyn, GcSlice, GcStr, GcWeak, Heap, Mutator, Pacing, Trace,
    Tracer, gc_dyn,
};

#[derive(Trace)]
struct Node {
    name: String,
    next: GcCell<Option<Gc<Node>>>,
}

impl Node {
    fn new(m: &Mutator, name: &str) -> Gc<Self> {
        m.alloc(Self { name: name.to_owned(), next: GcCell::default() })
    }
}

#[test]
fn a_value_is_read_on_every_thread_in_every_state() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = Node::new(&m, "node");
    let name: &str = &node.name;
    m.collect();
    m.safepoint();
    assert_eq!(name, "node", "a reference is kept past a collection");
    m.detach(|| {
        assert_eq!(name, "node");
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(node.name, "node")).join().expect("without a mutator");
        });
        Heap::new().attach_scoped(|_| assert_eq!(node.name, "node"));
    });
}

trait Named {
    fn name(&self) -> &str;
}

impl Named for Node {
    fn name(&self) -> &str {
        &self.name
    }
}

#[test]
fn a_value_is_read_after_its_heap_has_ended() {
    let heap = Heap::new();
    let m = heap.attach();
    let (kept, immortal) = (Node::new(&m, "kept"), Node::new(&m, "immortal"));
    let slice: GcSlice<String, Gc<Node>> = m.alloc_slice("header".to_owned(), [kept.clone()]);
    let view = gc_dyn!(kept.clone() => dyn Named);
    Gc::immortalize(&immortal, &m);
    drop((m, heap));
    // Its address range stays reserved: no other heap gets it.
    let others: Vec<_> =
        (0..4).map(|_| Heap::builder().reserve(1 << 24).build().unwrap()).collect();
    others.iter().for_each(|heap| drop(heap.attach().alloc([0_u8; 256])));
    assert_eq!((&*kept.name, &*immortal.name, &*slice.header), ("kept", "immortal", "header"));
    assert_eq!((&*slice.items[0].name, view.name()), ("kept", "kept"));
    drop(kept);
    assert_eq!((&*slice.items[0].name, view.name()), ("kept", "kept"));
}

/// A member of a cycle with a destructor that reads another member.
#[derive(Trace)]
struct Member {
    number: usize,
    peer: Option<Gc<Member>>,
    ring: GcCell<Option<Gc<Member>>>,
    #[trace(skip)]
    read: Arc<AtomicUsize>,
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(peer) = &self.peer {
            // The collector has emptied the cell of the peer, and has not destroyed the peer.
            self.read.fetch_add(peer.number, SeqCst);
        }
    }
}

#[test]
fn a_destructor_of_garbage_reads_the_object_it_refers_to() {
    let read = Arc::new(AtomicUsize::new(0));
    let heap = Heap::new();
    let mut m = heap.attach();
    let make = |number, peer| {
        m.alloc(Member { number, peer, ring: GcCell::default(), read: read.clone() })
    };
    let first = make(1, None);
    let second = make(2, Some(first.clone()));
    first.ring.set(&m, Some(second.clone()));
    drop((first, second));
    assert_eq!(m.collect().collected, 2);
    assert_eq!(read.load(SeqCst), 1);
}

/// An object with a finalizer that makes it reachable again.
#[derive(Trace)]
#[trace(finalize)]
struct Phoenix {
    name: &'static str,
    itself: GcCell<Option<Gc<Phoenix>>>,
    #[trace(skip)]
    saved: Arc<Mutex<Option<Gc<Phoenix>>>>,
}

impl Phoenix {
    fn finalize(this: &Gc<Self>, _: &Mutator) {
        *this.saved.lock().unwrap() = Some(this.clone());
    }
}

#[test]
fn an_object_that_its_finalizer_has_revived_is_read() {
    let saved = Arc::new(Mutex::new(None));
    let heap = Heap::new();
    let mut m = heap.attach();
    let phoenix =
        m.alloc(Phoenix { name: "phoenix", itself: GcCell::default(), saved: saved.clone() });
    phoenix.itself.set(&m, Some(phoenix.clone()));
    drop(phoenix);
    m.collect();
    let phoenix = saved.lock().unwrap().take().expect("revived");
    m.detach(|| assert_eq!(phoenix.name, "phoenix"));
    phoenix.itself.take(&m);
}

#[test]
fn a_dropped_reference_that_waits_for_a_drain_leaves_the_others_readable() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let node = Node::new(&m, "node");
    let clone = node.clone();
    m.detach(|| {
        drop(clone);
        assert_eq!(node.name, "node");
    });
    m.safepoint();
    m.collect();
    assert_eq!(node.name, "node");
}

/// Its traversal lets another thread act while the world is stopped.
struct Door {
    name: &'static str,
    inside: Mutex<Option<Gc<Door>>>,
    cell: GcCell<Option<Gc<Door>>>,
    /// Turns of the two threads: odd numbers are the detached thread's.
    turn: Arc<AtomicUsize>,
    /// The number that lets the detached thread act, before this door is read.
    at: usize,
}

impl Trace for Door {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        // Only the first traversal: the counting pass.
        let ask = |now| {
            if this.turn.compare_exchange(now, now + 1, SeqCst, SeqCst).is_ok() {
                while this.turn.load(SeqCst) == now + 1 {
                    std::thread::yield_now();
                }
            }
        };
        ask(this.at);
        match this.inside.try_lock() {
            Ok(inside) => Trace::traverse(&*inside, tracer),
            Err(_) => tracer.unreadable(),
        }
        ask(this.at + 2);
        Trace::traverse(&this.cell, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        drop(this.inside.lock().unwrap().take());
        Trace::clear(&this.cell, m);
    }
}

/// `Trace` is not implemented for a lock of std around references, so `Door` implements it by hand
/// and breaks rule 5 of the contract: a detached thread changes its references during a stop. The
/// collector may take live objects for garbage and clear them. It never frees them, so they can
/// still be read.
#[test]
fn a_thread_that_changes_a_lock_during_a_stop_keeps_its_objects_whole() {
    let turn = Arc::new(AtomicUsize::new(usize::MAX));
    let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
    let mut m = heap.attach();
    let door = |name, at| {
        m.alloc(Door {
            name,
            inside: Mutex::default(),
            cell: GcCell::default(),
            turn: turn.clone(),
            at,
        })
    };
    let (one, two) = (door("one", 0), door("two", 4));
    let leaf = door("leaf", usize::MAX / 2);
    one.cell.set(&m, Some(leaf));
    let turns = turn.clone();
    turn.store(0, SeqCst);
    let detached = std::thread::spawn(move || {
        let mut hands = [Some(one), Some(two)];
        let wait = |number| {
            while turns.load(SeqCst) < number {
                std::thread::yield_now();
            }
        };
        // The traversal of `one` finds `two` inside it, and the traversal of `two` finds `one`. But
        // the thread holds a handle to one of the two objects at all times.
        for (number, holder) in [(1, 0), (5, 1)] {
            wait(number);
            let guest = hands[1 - holder].take();
            *hands[holder].as_ref().unwrap().inside.lock().unwrap() = guest;
            turns.store(number + 1, SeqCst);
            wait(number + 2);
            let guest = hands[holder].as_ref().unwrap().inside.lock().unwrap().take();
            hands[1 - holder] = guest;
            turns.store(number + 3, SeqCst);
        }
        hands
    });
    let report = m.collect();
    // If an order of traversal left the thread waiting, it goes on.
    turn.store(usize::MAX / 4, SeqCst);
    let [one, two] = detached.join().expect("no panic");
    let (one, two) = (one.expect("held"), two.expect("held"));
    assert_eq!((one.name, two.name), ("one", "two"), "the objects are whole: {report:?}");
    // Cleared or not, both are ordinary objects that die by count.
    drop((one, two));
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

/// Its traversal waits for another thread: at turn 1 it starts turn 2 and waits for turn 3.
struct Gate(Arc<AtomicUsize>, GcCell<Option<Gc<Gate>>>);

impl Trace for Gate {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if this.0.compare_exchange(1, 2, SeqCst, SeqCst).is_ok() {
            Self::wait_for(&this.0, 3);
        }
        Trace::traverse(&this.1, tracer);
    }
}

impl Gate {
    fn wait_for(turn: &AtomicUsize, number: usize) {
        let begun = std::time::Instant::now();
        while turn.load(SeqCst) != number {
            assert!(begun.elapsed().as_secs() < 60, "no turn {number}");
            std::thread::yield_now();
        }
    }
}

/// Between the traversals of a leaf and of a ring that refers to it, the collector waits for a
/// detached thread. The thread clones its handle to the leaf out of the ring, and drops the ring.
/// The collector read the count of the leaf before the clone, and reads that of the ring after the
/// drop. The drop is deferred until the stop ends, so the ring stays a root.
#[test]
fn a_handle_cloned_out_of_an_object_during_a_stop_keeps_its_target() {
    #[derive(Trace)]
    struct Leaf(GcCell<Option<Gc<Leaf>>>);

    #[derive(Trace)]
    struct Ring {
        leaf: Gc<Leaf>,
        next: GcCell<Option<Gc<Ring>>>,
    }

    fn objects(m: &Mutator, turn: &Arc<AtomicUsize>) -> (Gc<Gate>, Gc<Ring>) {
        let leaf = m.alloc(Leaf(GcCell::new(Some(m.alloc(Leaf(GcCell::default()))))));
        let gate = m.alloc(Gate(turn.clone(), GcCell::default()));
        let ring = m.alloc(Ring { leaf, next: GcCell::default() });
        ring.next.set(m, Some(ring.clone()));
        (gate, ring)
    }

    fn act(turn: &AtomicUsize, ring: Gc<Ring>) -> Gc<Leaf> {
        Gate::wait_for(turn, 2);
        let leaf = ring.leaf.clone();
        drop(ring);
        turn.store(3, SeqCst);
        leaf
    }

    for its_own in [true, false] {
        let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
        let mut m = heap.attach();
        let turn = Arc::new(AtomicUsize::new(0));
        let given = (!its_own).then(|| objects(&m, &turn));
        let (thread_heap, thread_turn) = (heap.clone(), turn.clone());
        let detached = std::thread::spawn(move || {
            let mut m = thread_heap.attach();
            let (gate, ring) = given.unwrap_or_else(|| objects(&m, &thread_turn));
            let leaf = m.detach(|| {
                thread_turn.store(1, SeqCst);
                act(&thread_turn, ring)
            });
            (gate, leaf)
        });
        m.detach(|| Gate::wait_for(&turn, 1));
        let report = m.collect();
        let (_gate, leaf) = m.join(detached).expect("no panic");
        assert_eq!((report.abandoned, report.unreachable), (None, 0), "its own: {its_own}");
        assert!(leaf.0.get(&m).is_some(), "an object in use was cleared; its own: {its_own}");
        assert_eq!(m.collect().collected, 1, "the ring; its own: {its_own}");
    }
}

/// Between the traversals of `first` and `last`, the collector waits for a thread that is attached
/// to another heap. The thread puts a clone of its handle to `first` into a boxed cell of `last`.
/// The collector read the count of `first` before that and must not read the new reference.
///
/// In the second round a collection has found the cell before, so the thread cannot lock it.
#[test]
fn a_boxed_cell_changed_through_another_heap_during_a_stop_keeps_its_objects() {
    #[derive(Default, Trace)]
    struct Node {
        text: GcCell<Option<Gc<String>>>,
        fixed: Option<Gc<Node>>,
        boxed: Box<GcCell<Option<Gc<Node>>>>,
    }

    for is_found_before in [false, true] {
        let other = Heap::builder().reserve(1 << 28).build().unwrap();
        let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
        let mut m = heap.attach();
        let turn = Arc::new(AtomicUsize::new(0));
        // Candidates are traversed in the order of their addresses.
        let node = |fixed| {
            let text = GcCell::new(Some(m.alloc("first".to_owned())));
            m.alloc(Node { text, fixed, ..Node::default() })
        };
        let low: Vec<_> = (0..2000).map(|_| node(None)).collect();
        let gate = m.alloc(Gate(turn.clone(), GcCell::default()));
        let high: Vec<_> = (0..2000).map(|_| node(None)).collect();
        let is_high = |node: &Gc<Node>| Gc::as_ptr(node).addr() > Gc::as_ptr(&gate).addr();
        let last = low.iter().chain(&high).find(|node| is_high(node)).expect("a page").clone();
        drop((low, high));
        let weak_last = Gc::downgrade(&last, &m);
        // The memory of low objects is used again.
        let mut many: Vec<_> = (0..4000).map(|_| node(Some(last.clone()))).collect();
        let first = many.iter().position(|node| !is_high(node)).expect("a low object");
        let first = many.swap_remove(first);
        drop((last, many));
        if is_found_before {
            m.collect();
        }
        let (thread_turn, thread_first) = (turn.clone(), &first);
        let (report, locked) = m.scope(|scope, m| {
            let thread = scope.spawn(|| {
                let m = other.attach();
                thread_turn.store(1, SeqCst);
                Gate::wait_for(&thread_turn, 2);
                let last = thread_first.fixed.as_ref().expect("set");
                let locked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    last.boxed.set(&m, Some(thread_first.clone()));
                }));
                thread_turn.store(3, SeqCst);
                locked.is_ok()
            });
            m.detach(|| Gate::wait_for(&turn, 1));
            let report = m.collect();
            (report, m.join(thread).expect("no panic"))
        });
        assert_eq!((report.abandoned, report.unreachable), (None, 0), "{is_found_before}");
        assert_eq!(locked, !is_found_before);
        assert_eq!(first.text.get(&m).as_deref().map(String::as_str), Some("first"));
        assert!(weak_last.upgrade(&m).is_some());
        // The cell is part of this heap now, and carries the cycle that the thread has closed.
        drop(first);
        m.collect();
        assert!(weak_last.upgrade(&m).is_none(), "found before: {is_found_before}");
    }
}

/// A cell behind a `Box` or in a `Vec` carries a cycle from its first collection on, locked or not.
#[test]
fn a_cell_behind_a_box_carries_a_cycle() {
    #[derive(Default, Trace)]
    struct Node {
        boxed: Box<GcCell<Option<Gc<Node>>>>,
        list: Vec<GcCell<Option<Gc<Node>>>>,
    }
    let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
    let mut m = heap.attach();
    let node =
        m.alloc(Node { list: vec![GcCell::default(), GcCell::default()], ..Node::default() });
    node.boxed.set(&m, Some(node.clone()));
    node.list[1].set(&m, Some(node.clone()));
    drop(node);
    assert_eq!(m.collect().collected, 1);

    let node =
        m.alloc(Node { list: vec![GcCell::default(), GcCell::default()], ..Node::default() });
    m.collect();
    node.boxed.set(&m, Some(node.clone()));
    m.collect();
    assert!(node.boxed.try_lock(&m).is_some_and(|inside| inside.is_some()));
    let guard = node.list[0].lock(&m);
    assert!(node.list[0].try_lock(&m).is_none());
    drop(guard);
    drop(node);
    assert_eq!(m.collect().collected, 1);

    // Mutators of all heaps may lock a cell that no object contains.
    let shared = GcCell::new(vec![1]);
    let other = Heap::new();
    m.detach(|| other.attach_scoped(|other| shared.lock(other).push(2)));
    shared.lock(&m).push(3);
    m.detach(|| other.attach_scoped(|other| assert_eq!(*shared.lock(other), [1, 2, 3])));
}

#[test]
fn handles_are_equal_if_they_refer_to_one_object() {
    let heap = Heap::new();
    let m = heap.attach();
    let (one, other) = (m.alloc(7), m.alloc(7));
    assert!(one == one.clone() && one != other && *one == *other);
    let all: HashSet<Gc<i32>> = [one.clone(), other.clone(), one.clone()].into();
    assert_eq!(all.len(), 2);
    let (any, any_other): (AnyGc, AnyGc) = (one.clone().into(), other.clone().into());
    let names = HashMap::from([(any.clone(), "one"), (any_other, "other")]);
    assert_eq!(names[&any], "one");
    let (weak, nothing) = (Gc::downgrade(&one, &m), GcWeak::<i32>::new());
    let weaks: HashSet<GcWeak<i32>> = [weak.clone(), Gc::downgrade(&one, &m), nothing].into();
    assert!(weaks.len() == 2 && weaks.contains(&weak) && weak != Gc::downgrade(&other, &m));
    let view = gc_dyn!(one => dyn std::fmt::Display + Sync);
    assert!(view == view.clone() && GcDyn::into_any(view) == any);
    let slice: GcSlice<(), u8> = m.alloc_slice((), [1, 2]);
    assert!(slice == slice.clone() && slice != m.alloc_slice((), [1, 2]));
}

/// A runtime's own pointer type around a handle.
#[derive(Clone, PartialEq, Eq, Hash, Trace)]
struct Value(Gc<Body>);

#[derive(Default, Trace)]
struct Body {
    name: String,
    slots: GcCell<Vec<Value>>,
}

impl std::ops::Deref for Value {
    type Target = Body;

    fn deref(&self) -> &Body {
        &self.0
    }
}

#[test]
fn weak_references_to_any_objects_are_of_one_type() {
    let heap = Heap::new();
    let m = heap.attach();
    let node = Node::new(&m, "node");
    let (row, text) = (m.alloc_slice(7u32, [1u8, 2]), m.alloc_str((), "text"));
    let weak: Vec<GcWeak<AnyObject>> = vec![
        Gc::downgrade(&node, &m).into_any(),
        GcSlice::downgrade(&row, &m).into_any(),
        AnyGc::downgrade(&GcStr::into_any(text.clone()), &m),
        GcWeak::new(),
    ];
    // Equal by identity, however they were made.
    assert!(weak[0] == AnyGc::downgrade(&Gc::into_any(node.clone()), &m));
    let addresses = [format!("{node:p}"), format!("{row:p}"), format!("{text:p}")];
    let alive: Vec<AnyGc> = weak.iter().filter_map(|weak| weak.upgrade(&m)).collect();
    assert_eq!(alive.iter().map(|any| format!("{:p}", *any)).collect::<Vec<_>>(), addresses);
    assert!(alive[0].downcast_ref::<Node>(&m).is_some_and(|it| it.name == "node"));
    drop((alive, node));
    let alive: Vec<bool> = weak.iter().map(|weak| weak.upgrade(&m).is_some()).collect();
    assert_eq!(alive, [false, true, true, false]);
    drop((row, text));
    assert!(weak.iter().all(|weak| weak.upgrade(&m).is_none()));
}

#[test]
fn a_runtime_wraps_the_handle_in_a_type_of_its_own() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let value = Value(m.alloc(Body { name: "wrapped".into(), ..Body::default() }));
    value.slots.lock(&m).push(value.clone());
    assert_eq!((value.name.len(), value.slots.lock(&m)[0] == value), (7, true));
    drop(value);
    assert_eq!(m.collect().collected, 1);
}

#[test]
fn a_panic_names_the_line_of_the_caller() {
    let heap = Heap::new();
    let m = heap.attach();
    let (far, lines) = std::thread::scope(|scope| {
        let far = scope.spawn(|| Heap::new().attach().alloc(1)).join().expect("no panic");
        (far, Arc::new(Mutex::new(Vec::new())))
    });
    let (seen, hook) = (lines.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        let location = info.location().expect("known");
        seen.lock().unwrap().push((location.file().to_owned(), location.line()));
    }));
    let slot = standstill::AtomicGc::new(None);
    let calls: [(u32, &dyn Fn()); 5] = [
        (line!(), &|| drop(Gc::downgrade(&far, &m))),
        (line!(), &|| _ = Gc::is_tracked(&far, &m)),
        (line!(), &|| slot.store(&m, Some(far.clone()))),
        (line!(), &|| drop(heap.attach())),
        (line!(), &|| drop(heap.known_root(far.clone()))),
    ];
    for (_, call) in &calls {
        let call = std::panic::AssertUnwindSafe(call);
        std::panic::catch_unwind(call).expect_err("a panic");
    }
    std::panic::set_hook(hook);
    let expected: Vec<_> = calls.iter().map(|(line, _)| (file!().to_owned(), *line)).collect();
    assert_eq!(*lines.lock().unwrap(), expected);
}

#[test]
fn a_handle_to_a_trait_object_has_two_words_and_counts() {
    trait Area: Send + Sync {
        fn area(&self) -> u32;
    }
    #[derive(Trace)]
    struct Square(u32);
    #[derive(Trace)]
    #[repr(align(512))]
    struct Wide(u32);
    impl Area for Square {
        fn area(&self) -> u32 {
            self.0 * self.0
        }
    }
    impl Area for Wide {
        fn area(&self) -> u32 {
            self.0
        }
    }
    assert_eq!(size_of::<Option<GcDyn<dyn Area>>>(), 2 * size_of::<usize>());
    let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
    let mut m = heap.attach();
    let (square, wide) = (m.alloc(Square(3)), m.alloc(Wide(5)));
    let all = [gc_dyn!(square.clone() => dyn Area), gc_dyn!(wide.clone() => dyn Area)];
    assert_eq!(all.each_ref().map(|it| it.area()), [9, 5]);
    assert_eq!((Gc::strong_count(&square), Gc::strong_count(&wide)), (2, 2));
    let again = all.clone();
    assert!(again == all && all[0] != all[1]);
    assert_eq!((Gc::strong_count(&square), Gc::strong_count(&wide)), (3, 3));
    let raw = GcDyn::into_raw(again.into_iter().nth(1).unwrap());
    // SAFETY: of `into_raw`.
    let back = unsafe { GcDyn::from_raw(raw) };
    assert!(GcDyn::into_any(back) == Gc::into_any(wide.clone()));
    // An array becomes a slice in the same way.
    let numbers = gc_dyn!(m.alloc([1u8, 2, 3]) => [u8]);
    assert_eq!(numbers.iter().sum::<u8>(), 6);
    drop((square, wide, numbers));
    assert_eq!(heap.stats().live_objects, 2);
    std::thread::scope(|scope| scope.spawn(move || drop(all)).join().unwrap());
    m.safepoint();
    assert_eq!(heap.stats().live_objects, 0);
}
