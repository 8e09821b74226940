//! Tests of the stress modes.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn words_name_modes() {
    for (text, stress) in [
        ("", Stress::none()),
        ("0", Stress::none()),
        ("all", Stress::all(1)),
        ("all:7", Stress::all(7)),
        ("all:7,none", Stress::none()),
        ("counts", Stress::none().verify_counts(true)),
        (
            "collect:3, quarantine:9,yield:5",
            Stress::none().collect_at_safepoints(3).quarantine(9).yield_at_random(5),
        ),
        ("collect,verify,small", Stress::from(true)),
        ("all,no-verify", Stress::all(1).verify_counts(false).verify(false)),
        ("all,no-collect,no-verify,no-poison,no-quarantine,no-yield,no-small", Stress::none()),
    ] {
        assert_eq!(text.parse(), Ok(stress), "{text}");
    }
}

#[test]
fn other_words_are_errors_that_name_them() {
    for text in [
        "on",
        "al",
        "verify:1",
        "collect:x",
        "collect:-1",
        "poison,yield:",
        "no-all",
        "collect:99999999999",
    ] {
        let error = text.parse::<Stress>().unwrap_err().to_string();
        assert!(
            error.contains(text.rsplit(',').next().unwrap()) && error.contains("quarantine[:N]"),
            "{error}"
        );
    }
}

#[test]
fn steps_are_numbered_as_they_are_listed() {
    assert!(STEP_NAMES.iter().enumerate().all(|(at, &(step, _))| step as usize == at));
}

#[test]
fn a_seed_decides_which_steps_yield() {
    let yields = |seed| {
        let strain = Strain::new(Stress::none().yield_at_random(seed)).unwrap();
        (0..2000)
            .map(|_| {
                let before = strain.stats().yields;
                strain.maybe_yield(Step::Queue);
                strain.stats().yields != before
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(yields(3), yields(3));
    assert_ne!(yields(3), yields(4));
    let some = yields(3).iter().filter(|&&y| y).count();
    assert!((1..2000).contains(&some), "{some}");
}

#[test]
fn every_third_safepoint_collects() {
    let strain = Strain::new(Stress::none().collect_at_safepoints(3)).unwrap();
    let due: Vec<_> = (0..7).map(|_| strain.collects_now()).collect();
    assert_eq!(due, [false, false, true, false, false, true, false]);
    strain.collected();
    assert_eq!(strain.stats().collections, 1);
}
