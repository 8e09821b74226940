//! Tests of the environment's variables.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn a_value_that_makes_no_sense_is_ignored_with_a_complaint() {
    let checked = |value| {
        let (read, complaints) = Environment::of(value, None);
        assert!(read.stress.is_none());
        (read.checked, complaints.len())
    };
    assert_eq!((checked(None), checked(Some(""))), ((None, 0), (None, 0)));
    for yes in ["1", "true", "TRUE", "yes", "on"] {
        assert_eq!(checked(Some(yes)), (Some(true), 0), "{yes}");
    }
    for no in ["0", "false", "False", "no", "off"] {
        assert_eq!(checked(Some(no)), (Some(false), 0), "{no}");
    }
    for odd in ["2", "-1", "ture", " 1"] {
        assert_eq!(checked(Some(odd)), (None, 1), "{odd}");
    }
    let (read, complaints) = Environment::of(Some("1"), Some("verify,poisn"));
    assert_eq!((read.checked, read.stress), (Some(true), Stress::none()));
    assert!(complaints[0].contains("poisn") && complaints[0].contains(STRESS_VARIABLE));
    let (read, complaints) = Environment::of(None, Some("verify"));
    assert_eq!((read.stress, complaints.len()), (Stress::none().verify(true), 0));
}

#[test]
fn the_log_goes_to_standard_error_or_to_a_file() {
    let log = |value: &str| LogTo::of(value.into());
    assert_eq!((log(""), log("off"), log("0")), (Ok(None), Ok(None), Ok(None)));
    assert_eq!(log("gc"), Ok(Some(LogTo::Errors)));
    assert_eq!(log("gc:/tmp/a b"), Ok(Some(LogTo::File("/tmp/a b".into()))));
    let long = format!("gc:{}", "x".repeat(LONGEST_PATH));
    for odd in ["gc:", "1", "GC", "all", &long] {
        assert!(log(odd).unwrap_err().contains(odd), "{odd}");
    }
}
