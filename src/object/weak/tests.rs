//! Tests of the table by address.

#![forbid(unsafe_code)]

use super::*;

/// The longest range of a heap: see `memory::range`.
const LONGEST: usize = SPACING << 32;

#[test]
fn no_two_addresses_of_a_range_have_the_same_place() {
    for base in [0, 2 << 20, LONGEST - (2 << 20), LONGEST + (6 << 20), 0x7fff_ffe0_0000] {
        let steps = (5..37).map(|bit| 1usize << bit);
        let near = steps.flat_map(|step| [step, LONGEST - step]).chain([0]);
        let all: std::collections::BTreeSet<_> = near.clone().map(|at| digits(base + at)).collect();
        let distinct: std::collections::BTreeSet<_> = near.collect();
        assert_eq!(all.len(), distinct.len(), "{base:#x}");
    }
}

#[test]
fn a_place_stays_where_it_is_and_is_not_made_by_a_lookup() {
    let places = Places::<std::sync::atomic::AtomicU8>::default();
    let base = 0x7fff_ffe0_0000;
    assert!(places.get(base).is_none());
    let made = places.get_or_make(base).expect("memory");
    assert!(std::ptr::eq(made, places.get(base).expect("made")));
    assert!(std::ptr::eq(made, places.get_or_make(base + SPACING - 1).expect("memory")));
    // In the same block, in another one, and below other nodes.
    let of_block = places.get(base + SPACING).expect("of the same block");
    assert!(!std::ptr::eq(made, of_block));
    for shift in [10, 19, 28] {
        assert!(places.get(base + (1 << shift)).is_none(), "{shift}");
        let other = places.get_or_make(base + (1 << shift)).expect("memory");
        assert!(!std::ptr::eq(made, other));
    }
}
