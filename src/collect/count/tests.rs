//! Tests of `collect/count.rs`.

#![forbid(unsafe_code)]

mod table;

use super::*;
use crate::collect::scope::tests::{granules, stopped};
use crate::collect::tests::script::{Script, collect, scripted_heap};

/// Arbitrary positive and negative numbers of a signed byte.
fn numbers(seed: usize) -> impl Fn(usize) -> i8 {
    move |at| ((at * 31 + seed * 17) % 251) as u8 as i8
}

#[test]
fn the_counts_of_all_workers_are_added_up_exactly() {
    stopped(|world, scope| {
        let space = &world.core().space;
        let (table, workers) = (space.counts(), &world.core().workers);
        let granules = granules(world, scope);
        for helpers in [0, 1, 3] {
            let expected = |at| (0..=helpers).map(|seed| i64::from(numbers(seed)(at))).sum::<i64>();
            for &at in &granules {
                table[at].store(numbers(0)(at) as u8, Ordering::Relaxed);
            }
            let private = |seed| {
                let mut table = workers.take_table(table.len()).expect("memory");
                assert!(
                    table.iter().all(|&byte| byte == 0),
                    "a table that was used before is zero"
                );
                granules.iter().for_each(|&at| table[at] = numbers(seed)(at) as u8);
                table
            };
            let tables: Vec<_> = (1..=helpers).map(private).collect();
            // The earlier carries of the workers' bytes are kept.
            let mut counts = Counts::default();
            counts.spills.add(granules[7] as u32, 256);
            counts.spills.add(granules[8] as u32, -256);
            merge_tables(world, scope, helpers + 1, tables, &mut counts).expect("memory");
            for (place, &at) in granules.iter().enumerate() {
                let carry = counts.spills.carries.get(&(at as u32)).copied().unwrap_or_default();
                let before = [256, -256].get(place.wrapping_sub(7)).copied().unwrap_or_default();
                let sum = i64::from(table[at].load(Ordering::Relaxed) as i8) + carry - before;
                assert_eq!(sum, expected(at), "granule {at}, {helpers} tables");
            }
            // A kept table has its full length. A new table would have length 1.
            let again: Vec<_> =
                (0..helpers).map(|_| workers.take_table(1).expect("memory")).collect();
            again.into_iter().for_each(|again| {
                assert_eq!(again.len(), table.len(), "it is kept");
                assert!(again.iter().all(|&byte| byte == 0), "it is left zero");
                workers.give_table(again);
            });
        }
        // The only sum of two signed bytes that overflows to 0.
        table[granules[5]].store(-128i8 as u8, Ordering::Relaxed);
        let mut private = vec![0; table.len()];
        private[granules[5]] = -128i8 as u8;
        let mut counts = Counts::default();
        merge_tables(world, scope, 2, vec![private], &mut counts).expect("memory");
        assert_eq!(counts.spills.carries, HashMap::from([(granules[5] as u32, -256)]));
        let mut lost = Counts::default();
        lost.spills.lost = true;
        assert!(merge_tables(world, scope, 2, vec![vec![0; table.len()]], &mut lost).is_err());
    });
}

#[test]
fn what_workers_found_is_put_together_and_a_loss_is_not_forgotten() {
    let some = |first: u32| {
        let mut counts = Counts { traversed: 5, ..Counts::default() };
        counts.spills.add(7, 256);
        counts.spills.add(first, -256);
        counts.immortal.push(first + 1);
        counts.outside.push(first + 4);
        counts.dying.push(first + 5);
        counts.unreadable.push(first + 2);
        counts
    };
    let mut all = some(100);
    all.add(some(200)).expect("memory");
    assert_eq!(all.traversed, 10);
    assert_eq!(all.spills.carries, HashMap::from([(7, 512), (100, -256), (200, -256)]));
    assert_eq!(
        (all.immortal.as_slice(), all.unreadable.as_slice()),
        (&[101, 201][..], &[102, 202][..])
    );
    assert_eq!((all.outside.as_slice(), all.dying.as_slice()), (&[104, 204][..], &[105, 205][..]));
    let mut lost = some(1);
    lost.spills.lost = true;
    assert!(all.add(lost).is_err());
    assert!(all.add(some(2)).is_err(), "nor later");
}

/// The second traversal is that of marking, or that of a comparison.
#[test]
fn marking_does_not_traverse_an_outside_object_without_edges() {
    use crate::heap::request::Collect;

    for (has, edges, traversals) in [("o", 0, 1), ("o", 1, 2), ("od", 0, 2), ("i", 0, 2)] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let object = Script::thing(&m, 'l', has, "s");
        let target = Script::thing(&m, 't', "o", "s");
        (0..edges).for_each(|_| Script::link(&m, object, target));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (2, 0));
        let traversed = Script::of(&m, object, |thing| thing.traversed);
        assert_eq!(traversed, traversals, "{has}, {edges} edges");
    }
}

/// Each of the two workers waits for the other in its first traversal.
#[cfg(feature = "parallel")]
#[test]
fn each_worker_but_the_first_counts_into_a_table_of_its_own_which_is_kept() {
    use crate::heap::request::Collect;
    use crate::object::address::Object;
    use crate::{Heap, Pacing};

    let builder =
        Heap::builder().reserve(1 << 28).workers(2).serial_below(0).pacing(Pacing::manual());
    let heap = builder.build_with(Script::default()).expect("a heap");
    let mut m = heap.attach();
    let objects: Vec<Object> = (0..16).map(|_| Script::sized(&m, 60_000, 'o', "", "s")).collect();
    heap.model().state().meets = 2;
    let (report, _) = collect(&mut m, Collect::full());
    assert_eq!((report.workers, report.candidates, report.unreachable), (2, 16, 0));
    assert_eq!(heap.model().state().there.len(), 2);
    // A kept table is as long as the heap's table.
    let table = m.core().workers.take_table(1).expect("memory");
    assert_eq!(table.len(), m.core().space.counts().len());
    assert!(table.iter().all(|&byte| byte == 0));
    objects.iter().for_each(|&object| heap.model().drop_ref(object, &m));
}
