#![forbid(unsafe_code)]

use std::time::Duration;

use super::{
    CallsAsJson, ChildAsJson, JsonList, JsonPair, OrNull, PhasesAsJson, Quoted, ShareAsJson,
};
use crate::report::facts::{ChildSearch, During, LongestCall, Phase, PhaseTimes, TypeShare};

#[test]
fn texts_are_escaped() {
    assert_eq!(
        Quoted("a \"b\" \\ c\n\t\u{1} ü").to_string(),
        r#""a \"b\" \\ c\u000a\u0009\u0001 ü""#
    );
    assert_eq!(Quoted(7).to_string(), "\"7\"");
}

#[test]
fn lists_have_commas_between_their_elements() {
    assert_eq!(JsonList([1, 2, 3].iter()).to_string(), "1,2,3");
    assert_eq!(JsonList([0; 0].iter()).to_string(), "");
    assert_eq!(JsonList([JsonPair("a", 1), JsonPair("b", 2)].iter()).to_string(), r#""a":1,"b":2"#);
    assert_eq!(OrNull::<u8>(None).to_string() + &OrNull(Some(1)).to_string(), "null1");
    let phases = PhaseTimes::of(|phase| match phase {
        Phase::Merge => 1_000,
        Phase::Clear => 2_500_000,
        _ => 0,
    });
    assert_eq!(PhasesAsJson(&phases).to_string(), r#""Merge":1,"Clear":2500"#);
    let call = |during| LongestCall {
        during,
        type_name: "a.B".into(),
        objects: 2,
        took: Duration::from_micros(9),
    };
    assert_eq!(
        CallsAsJson(&[call(During::Drop), call(During::Finalize)]).to_string(),
        r#"{"during":"Drop","type":"a.B","objects":2,"took_us":9},{"during":"Finalize","type":"a.B","objects":2,"took_us":9}"#
    );
    let child = ChildSearch {
        took: Duration::from_micros(9),
        proposed: 5,
        examined: 4,
        parts: 2,
        unreadable: 1,
    };
    assert_eq!(
        ChildAsJson(&child).to_string(),
        r#"{"took_us":9,"proposed":5,"examined":4,"parts":2,"unreadable":1}"#
    );
    let share = TypeShare { type_name: "a.B".into(), objects: 2, bytes: 96 };
    assert_eq!(ShareAsJson(&share).to_string(), r#"{"type":"a.B","objects":2,"bytes":96}"#);
}
