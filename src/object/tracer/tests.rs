//! Tests of the tracer.

use super::*;

fn object(address: usize) -> Object {
    Object::new(NonNull::new(std::ptr::without_provenance_mut(address)).unwrap())
}

#[test]
fn a_batch_traversal_ends_at_an_unreadable_object() {
    let mut t = Tracer::new(0x1000, 0x1000);
    let objects: Vec<Object> = (0..5).map(|at| object(0x1000 + 64 * at)).collect();
    let look = |t: &mut Tracer, room: usize, unreadable: usize| {
        t.clear();
        let mut room = vec![0; room];
        let mut ends = Ends::new(&mut room);
        t.each(&objects, &mut ends, |object, t| {
            let number = (object.address() - 0x1000) / 64;
            (0..number).for_each(|_| t.edge(0x1800));
            if number == unreadable {
                t.unreadable();
            }
        });
        ends.filled().to_vec()
    };
    assert_eq!(look(&mut t, 5, 3), [0, 1, 3, 6]);
    assert_eq!(t.at(), Some(objects[3]));
    assert_eq!(look(&mut t, 5, 7), [], "until the caller has taken it");
    assert!(t.take_unreadable());
    assert_eq!(look(&mut t, 5, 4), [0, 1, 3, 6, 10]);
    assert!(t.take_unreadable());
    assert_eq!(look(&mut t, 7, 7), [0, 1, 3, 6, 10]);
    assert!(!t.take_unreadable());
    assert_eq!((t.at(), t.edges().len()), (Some(objects[4]), 10));
    assert_eq!(look(&mut t, 2, 7), [0, 1], "as many as there is room for");
    t.begin(objects[1]);
    assert_eq!((t.at(), t.edges().len()), (Some(objects[1]), 0));
}

#[test]
fn objects_of_a_slice_are_visited_one_by_one() {
    let all = [None, Some(object(0x1100)), Some(object(0x2000)), Some(object(0x1fe0))];
    let most = 3 * BUFFER_STEP;
    for count in [0, 1, 2, 3, 4, BUFFER_STEP - 1, BUFFER_STEP, BUFFER_STEP + 1, most] {
        for already in [0, 1, BUFFER_STEP - 1] {
            let targets: Vec<Option<Object>> = all.into_iter().cycle().take(count).collect();
            let (mut one, mut each) = (Tracer::new(0x1000, 0x1000), Tracer::new(0x1000, 0x1000));
            for t in [&mut one, &mut each] {
                (0..already).for_each(|_| t.edge(0x1800));
            }
            // SAFETY: rule *counted*: the tracer belongs to no collection.
            unsafe {
                one.visit_slots(&targets);
                targets.iter().flatten().for_each(|&target| each.visit_object(target));
            }
            assert_eq!(one.edges(), each.edges(), "{count} targets after {already}");
            assert_eq!(
                one.edges().len(),
                already + count.saturating_sub(1).div_ceil(4) + count / 4
            );
        }
    }
    // A heap that begins at 0 does not contain a null pointer.
    let mut t = Tracer::new(1, usize::MAX);
    // SAFETY: rule *counted*: the tracer belongs to no collection.
    unsafe { t.visit_slots(&all) };
    assert_eq!(t.edges(), [0x1100, 0x2000, 0x1fe0]);
}

#[test]
fn long_slices_are_noted_for_marking() {
    let slots = |count: usize| vec![Some(object(0x1100)); count];
    let visit = |t: &mut Tracer, slots: &[Option<Object>]| {
        // SAFETY: rule *counted*: the tracer belongs to no collection.
        unsafe { t.visit_slots(slots) };
    };
    const LONG: usize = 1000;
    let (short, long) = (slots(LONG - 1), slots(LONG));
    let mut t = Tracer::new(0x1000, 0x1000);
    visit(&mut t, &long);
    assert_eq!(t.edges().len(), LONG, "other tracers read it at once");
    assert!(t.half_of_noted(0).is_none() && !t.visit_noted(1).expect("memory"));
    t.clear();
    t.long = LONG;
    visit(&mut t, &short);
    assert_eq!(t.edges().len(), LONG - 1);
    visit(&mut t, &long);
    visit(&mut t, &long);
    assert_eq!(t.edges().len(), LONG - 1);
    let half = t.half_of_noted(LONG - 1).expect("more than that");
    assert_eq!(half.len(), LONG / 2);
    let second = t.half_of_noted(LONG / 2).expect("the second one is long");
    assert_eq!(second.len(), LONG / 2);
    assert!(t.half_of_noted(LONG / 2).is_none(), "both are short now");
    t.add_slots(second).expect("memory");
    let mut pieces = Vec::new();
    while t.visit_noted(LONG - 1).expect("memory") {
        pieces.push(t.edges().len());
    }
    assert_eq!(pieces, [LONG / 2; 3]);
    t.add_slots(half).expect("memory");
    assert!(t.visit_noted(LONG).expect("memory"));
    assert_eq!(t.edges(), vec![0x1100; LONG / 2]);
    assert!(!t.visit_noted(LONG).expect("memory"));
}

#[test]
fn handles_are_taken_over_however_many_there_are() {
    for (count, already) in (0..40)
        .flat_map(|count| [0, 1, BUFFER_STEP - 3, BUFFER_STEP, BUFFER_STEP + 1].map(|n| (count, n)))
    {
        let mut t = Tracer::new(0x1000, 0x1000);
        (0..already).for_each(|_| t.edge(0x1000));
        let inside: Vec<usize> = (0..count).map(|i| 0x1100 + i).collect();
        t.edges_to(&inside, |&address| Edge::at(address));
        assert_eq!(t.edges()[already..], inside);
        // One handle leads to another heap, at each position.
        for at in 0..count {
            let mut handles = inside.clone();
            handles[at] = 0x3000;
            t.truncate(already);
            t.edges_to(&handles, |&address| Edge::at(address));
            handles.remove(at);
            assert_eq!(t.edges()[already..], handles, "{count} handles, the one at {at} elsewhere");
        }
    }
}

#[test]
fn handles_that_take_no_room_may_be_more_than_there_is_room_for() {
    let mut t = Tracer::new(0x1000, 0x1000);
    t.may_lose = true;
    t.edges_to(&[(); usize::MAX], |()| Edge::at(0x1000));
    assert_eq!(t.edges().len(), 0);
    assert!(t.take_unreadable() && t.lost_nothing().is_err());
}

#[test]
fn tracer_keeps_only_its_own_heap() {
    let mut t = Tracer::new(0x1000, 0x1000);
    for a in [0, 0xfff, 0x1000, 0x1fff, 0x2000, usize::MAX] {
        t.edge(a);
    }
    assert_eq!(t.edges(), [0x1000, 0x1fff]);
    let handles: Vec<usize> = (0..3000).map(|i| 0x1800 + 2 * i).collect();
    t.edges_to(&handles, |&address| Edge::at(address));
    assert_eq!(t.edges()[..3], [0x1000, 0x1fff, 0x1800]);
    assert_eq!(t.edges().len(), 2 + 0x400, "those within the heap");
    (0..3000).for_each(|_| t.edge(0x1000));
    assert_eq!(t.edges().len(), 2 + 0x400 + 3000);
    assert_eq!(t.edges()[2 + 0x3ff..][..2], [0x1ffe, 0x1000]);
    t.edges_to(&[0x2000, 0x1008, 0xfff, 0x1010, 0], |&address| Edge::at(address));
    assert_eq!(
        t.edges()[2 + 0x400 + 3000..],
        [0x1008, 0x1010],
        "also behind an edge to another heap"
    );
    t.truncate(2 + 0x400 + 3000);
    t.go_on(object(0x1000));
    (0..300).for_each(|_| t.edge(0x1008));
    assert_eq!(format!("{t:?}"), "Tracer { edges: 300, .. }");
    t.truncate(3);
    assert_eq!(t.edges(), [0x1000, 0x1fff, 0x1800]);
    t.clear();
    assert!(t.edges().is_empty());
    assert!(!t.take_unreadable());
    t.unreadable();
    assert!(t.take_unreadable() && !t.take_unreadable());
    t.enter(NonNull::new(std::ptr::without_provenance_mut(0x1000)).unwrap(), 64);
    assert!(t.owns(0x1000) && t.owns(0x103f) && !t.owns(0x1040) && !t.owns(0xfff));
}
