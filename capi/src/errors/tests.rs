//! Tests of the error indicator and the reports.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn a_text_that_does_not_fit_in_is_cut_between_two_characters() {
    let of = |text: &str| {
        let mut beginning = Beginning { bytes: [0; 120], len: 0 };
        let result = write!(beginning, "{text}");
        (result.is_ok(), Text::Beginning(beginning).as_c_str().to_str().expect("UTF-8").to_owned())
    };
    assert_eq!(of("short"), (true, "short".to_owned()));
    assert_eq!(of("one\0two"), (true, "one?two".to_owned()), "a 0 would end it");
    let full = "a".repeat(119);
    assert_eq!(of(&full), (true, full.clone()), "a 0 has room behind it");
    assert_eq!(of(&format!("{full}b")), (false, full));
    let wide = "\u{e9}".repeat(59);
    assert_eq!(of(&format!("{wide}\u{e9}")), (false, wide), "half of a character is none");
}

#[test]
fn each_kind_of_unraisable_error_has_a_name() {
    let names = [
        (During::Traverse, "traverse handler"),
        (During::Finalize, "finalizer"),
        (During::WeakCallback, "weak reference callback"),
        (During::Clear, "clear handler"),
        (During::Drop, "deallocator"),
        (During::CollectionCallback, "collection callback"),
        (During::DebugSink, "debug sink"),
        (During::AuditHook, "audit hook"),
        (During::Collect, "collection"),
        (During::Shutdown, "heap's end"),
    ];
    for (during, name) in names {
        assert_eq!(kind(during), name);
    }
}

/// Indicators that were set aside come back in the opposite order. At each depth the indicator
/// starts empty.
#[test]
fn errors_and_their_absence_are_set_aside_in_any_order() {
    let put = |text: Option<&'static str>| {
        let new = text.map(|text| Indicator {
            code: Code::Custom,
            exception: Exception::System.object(),
            held: None,
            message: Text::new(text),
        });
        with(|errors| errors.now = new).expect("a thread that is not ending");
    };
    let now = || with(|errors| errors.now.as_ref().map(|now| now.message.to_string())).flatten();
    // Bit `depth` of the pattern says whether an error is set at this depth.
    for pattern in 0..1u32 << 5 {
        let at = |depth: u32| {
            (pattern >> depth & 1 != 0).then_some(["a", "b", "c", "d", "e"][depth as usize])
        };
        for depth in 0..5 {
            put(at(depth));
            assert_eq!(IS_SET.get(), at(depth).is_some());
            set_aside();
            assert_eq!((now(), IS_SET.get()), (None, false), "pattern {pattern:b}");
        }
        for depth in (0..5).rev() {
            // The error that was left there comes out, once.
            let left = (depth % 2 == 0).then_some("left");
            put(left);
            assert_eq!(put_back().as_deref(), left, "pattern {pattern:b}, depth {depth}");
            assert_eq!(now().as_deref(), at(depth), "pattern {pattern:b}, depth {depth}");
            assert_eq!(IS_SET.get(), at(depth).is_some());
        }
        put(None);
        assert_eq!(EMPTY_ASIDE.get(), 0);
    }
}
