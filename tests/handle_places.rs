//! Where the handles of an object were made: a planted leak is named.
#![cfg(all(feature = "handle-places", not(loom)))]

use std::mem::forget;
use std::panic::Location;

use standstill::diagnose::HandlePlace;
use standstill::{AnyGc, AtomicGc, Gc, GcCell, GcSlice, GcWeak, Heap, Mutator, SharedGc, Trace};

#[derive(Trace)]
struct Session(u64);

#[derive(Trace)]
struct Cache {
    session: GcCell<Option<Gc<Session>>>,
    slot: AtomicGc<Session>,
}

/// The line of the caller.
#[track_caller]
fn line() -> u32 {
    Location::caller().line()
}

/// The places of the one object that is held from outside, by line.
fn places(m: &mut Mutator) -> Vec<(u32, u64)> {
    let [holder] = &m.graph().holders()[..] else { panic!("one object is held") };
    of_this_file(&holder.places)
}

fn of_this_file(places: &[HandlePlace]) -> Vec<(u32, u64)> {
    assert!(places.iter().all(|it| it.place.file() == file!()), "{places:?}");
    let mut lines: Vec<_> = places.iter().map(|it| (it.place.line(), it.made)).collect();
    lines.sort_unstable();
    lines
}

fn returns_all(session: &Gc<Session>) -> u32 {
    for _ in 0..3 {
        drop(session.clone());
    }
    line() - 2
}

fn leaks_one(session: &Gc<Session>) -> u32 {
    forget(session.clone());
    line() - 1
}

#[test]
fn a_planted_leak_is_among_the_places() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let (session, allocated) = (m.alloc(Session(7)), line());
    let (returned, leaked) = (returns_all(&session), leaks_one(&session));
    assert_eq!(session.0, 7);
    let any = Gc::into_any(session);
    let path = m.why_alive(&any).to_string();
    let this = file!();
    let wanted = format!(
        "outside (2 references), handles made at {this}:{returned} (3 times), \
         {this}:{leaked} (once), {this}:{allocated} (once) -> "
    );
    assert!(path.starts_with(&wanted), "{path}");
    drop(any);
    let lines = [(returned, 3), (leaked, 1), (allocated, 1)];
    assert_eq!(places(&mut m), lines);
}

#[test]
fn each_way_to_make_a_handle_has_its_place() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let mut lines = Vec::new();
    let (session, at) = (m.try_alloc(Session(1)).expect("memory"), line());
    lines.push(at);
    let weak: GcWeak<Session> = Gc::downgrade(&session, &m);
    let cache = m.alloc(Cache { session: GcCell::default(), slot: AtomicGc::default() });
    cache.session.set(&m, Some(session.clone()));
    lines.push(line() - 1);
    cache.slot.store(&m, Some(session.clone()));
    lines.push(line() - 1);
    drop(cache.session.get(&m));
    lines.push(line() - 1);
    drop(cache.slot.load(&m));
    lines.push(line() - 1);
    drop(weak.upgrade(&m));
    lines.push(line() - 1);
    drop(cache.slot.swap(&m, None));
    lines.push(line() - 1);
    drop(cache.session.take(&m));
    drop(cache);
    let any: AnyGc = Gc::into_any(session);
    drop(any.clone());
    lines.push(line() - 1);
    lines.sort_unstable();
    assert_eq!(places(&mut m), lines.iter().map(|&line| (line, 1)).collect::<Vec<_>>());
}

#[test]
fn a_shared_handle_has_its_place() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let (shared, at): (SharedGc<Session>, u32) = (m.alloc_shared(Session(1)), line());
    drop(shared.clone());
    assert_eq!(places(&mut m), [(at, 1), (line() - 1, 1)]);
}

#[test]
fn a_new_object_at_an_old_address_has_no_places_of_the_old_one() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let address = |m: &mut Mutator| m.graph().holders()[0].address;
    let old = m.alloc(Session(1));
    for _ in 0..5 {
        drop(old.clone());
    }
    let old_address = address(&mut m);
    drop(old);
    // The cells of the size are used again, in whatever order.
    let (new, at) = loop {
        let (new, at) = (m.alloc(Session(2)), line());
        if address(&mut m) == old_address {
            break (new, at);
        }
    };
    assert_eq!(places(&mut m), [(at, 1)]);
    drop(new);
    let (slice, at): (GcSlice<u8, u8>, u32) = (m.alloc_slice(1, [2, 3]), line());
    drop(slice.clone());
    assert_eq!(places(&mut m), [(at, 1), (line() - 1, 1)]);
}

#[test]
fn threads_without_a_mutator_count_too() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let (session, at) = (m.alloc(Session(1)), line());
    let clones = std::thread::scope(|scope| {
        let threads =
            [(); 4].map(|()| scope.spawn(|| (0..100).map(|_| session.clone()).collect::<Vec<_>>()));
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!(places(&mut m), [(at, 1), (at + 3, 400)]);
    drop(clones);
    assert_eq!(m.graph().holders()[0].outside, 1);
}
