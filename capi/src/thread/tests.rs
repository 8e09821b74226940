//! Tests of the attachment of threads.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn a_refused_attachment_says_why() {
    let says = |error, code, part: &str| {
        let fault = refused(error, "function");
        assert_eq!((fault.code, fault.function), (code, "function"));
        assert!(fault.text.contains(part), "{error:?}: {}", fault.text);
    };
    says(AttachError::AlreadyAttached, Code::NotAllowedHere, "attached to a heap already");
    says(AttachError::Traversing, Code::NotAllowedHere, "in a traverse handler");
    says(AttachError::Suspending, Code::NotAllowedHere, "keeps another one suspended");
    says(AttachError::ThreadEnding, Code::NotAllowedHere, "the thread is ending");
    says(AttachError::Memory, Code::Memory, "no memory");
    says(AttachError::NoThreadIds, Code::NotAllowedHere, "no thread ids");
}
