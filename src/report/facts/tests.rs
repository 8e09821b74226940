//! Tests of the reports' words.

#![forbid(unsafe_code)]

use super::*;

/// A new variant does not compile here until it has its line.
fn words(during: During) -> &'static str {
    match during {
        During::Traverse => "Traverse",
        During::Finalize => "Finalize",
        During::WeakCallback => "WeakCallback",
        During::Clear => "Clear",
        During::Drop => "Drop",
        During::CollectionCallback => "CollectionCallback",
        During::DebugSink => "DebugSink",
        During::AuditHook => "AuditHook",
        During::Collect => "Collect",
        During::Shutdown => "Shutdown",
    }
}

#[test]
fn an_ignored_failure_is_a_sentence_with_and_without_a_type() {
    for during in [
        During::Traverse,
        During::Finalize,
        During::WeakCallback,
        During::Clear,
        During::Drop,
        During::CollectionCallback,
        During::DebugSink,
        During::AuditHook,
        During::Collect,
        During::Shutdown,
    ] {
        let failure = |type_name: &'static str| {
            let type_name = type_name.into();
            Unraisable { during, type_name, address: 0, message: "why".into() }.to_string()
        };
        let place = words(during);
        assert_eq!(failure("tests.Node"), format!("ignored failure in {place} of tests.Node: why"));
        assert_eq!(failure(""), format!("ignored failure in {place}: why"));
    }
}
