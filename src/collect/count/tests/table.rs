//! Tests of the table of counts.

#![forbid(unsafe_code)]

use super::super::*;
use crate::base::sync::Ordering;
use crate::collect::scope::tests::{granules, stopped};
use crate::collect::scope::wipe;

#[test]
fn a_wiped_page_has_no_counts() {
    stopped(|world, scope| {
        let table = world.core().space.counts();
        for at in granules(world, scope) {
            table[at].store(7, Ordering::Relaxed);
        }
        wipe(&world.core().space, scope.pages());
        assert!(table.iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
    });
}

#[test]
fn bytes_added_under_a_lock_carry_too() {
    let table: Vec<AtomicU8> = (0..3).map(|_| AtomicU8::new(0)).collect();
    let mut spills = Spills::default();
    for count in 1..=700i64 {
        add_shared(&table, 1, &mut spills);
        let byte = table[1].load(Ordering::Relaxed) as i8;
        assert_eq!(i64::from(byte) + spills.of(1), count);
    }
    assert_eq!((spills.of(0), table[0].load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn counts_beyond_a_byte_are_kept_in_both_directions() {
    let mut table = [0u8; 3];
    let mut spills = Spills::default();
    let mut sums = [0i64; 3];
    for round in 0..1_000 {
        for (at, by) in [(0, 127), (1, -127), (2, if round % 300 < 150 { 100 } else { -90 })] {
            add(&mut table, at, by, &mut spills);
            sums[at] += i64::from(by);
            let carry = spills.carries.get(&(at as u32)).copied().unwrap_or_default();
            assert_eq!(i64::from(table[at] as i8) + carry, sums[at]);
        }
    }
    assert!(spills.lost_nothing().is_ok());
    // A wrap is recorded. A sum that does not wrap is not.
    let mut spills = Spills::default();
    let mut table = [0u8; 1];
    (0..127).for_each(|_| add(&mut table, 0, 1, &mut spills));
    assert!(spills.carries.is_empty());
    add(&mut table, 0, 1, &mut spills);
    assert_eq!(spills.carries, HashMap::from([(0, 256)]));
}

#[test]
fn what_is_delayed_comes_back_once_and_in_order() {
    for n in [0, 1, Delay::LEN - 1, Delay::LEN, Delay::LEN + 1, 1000] {
        let mut delay = Delay::default();
        for round in 0..2 {
            let mut seen: Vec<usize> =
                (0..n).filter_map(|target| delay.swap(target, std::ptr::null())).collect();
            delay.drain(|target| seen.push(target));
            assert_eq!(seen, (0..n).collect::<Vec<_>>(), "round {round}");
        }
    }
}
