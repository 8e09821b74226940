//! Tests of the state byte.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn life_of_a_byte() {
    let byte = AtomicU8::new(0);
    let s = StateByte(&byte);
    s.birth(TRACKED);
    assert!(is_candidate(s.get()) && is_young_candidate(s.get()) && is_visible(s.get()));
    s.set(OLD);
    assert!(is_candidate(s.get()) && !is_young_candidate(s.get()));
    s.set(FROZEN);
    assert!(!is_candidate(s.get()) && is_visible(s.get()));
    s.unset(FROZEN);
    s.set(UNREACHABLE);
    assert!(!is_visible(s.get()) && s.get() & TRACKED != 0);
    assert!(!s.track());
    assert!(s.untrack() && !s.untrack() && s.track());
    assert_eq!(s.get() & OLD, 0, "tracked late is young again");
    s.dying();
    assert!(!s.track() && !is_candidate(s.get()));
    s.death();
    assert!(!s.track());
    assert_eq!(s.get(), 0);
}

#[test]
fn two_threads_change_two_attributes() {
    // With loads and stores, one of the two changes would be lost.
    let byte = AtomicU8::new(LIVE | TRACKED);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100_000 {
                assert!(StateByte(&byte).untrack());
                assert!(StateByte(&byte).track());
            }
        });
        scope.spawn(|| {
            for _ in 0..100_000 {
                assert_eq!(StateByte(&byte).set(FROZEN) & FROZEN, 0);
                assert_ne!(StateByte(&byte).unset(FROZEN) & FROZEN, 0);
            }
        });
    });
    assert_eq!(StateByte(&byte).get() & (LIVE | TRACKED | FROZEN), LIVE | TRACKED);
}
