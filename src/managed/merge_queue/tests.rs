//! Tests of `managed/merge_queue.rs`.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn a_queue_closes_while_it_is_empty_and_takes_no_object_after_that() {
    let queue = MergeQueue::new();
    // Never followed.
    let object = || HeaderPtr(NonNull::dangling());
    assert!(queue.enqueue(object()));
    assert!(!queue.close_if_empty());
    assert_eq!(queue.close().len(), 1);
    assert!(!queue.enqueue(object()));
    queue.reopen();
    assert!(queue.close_if_empty());
    assert_eq!(queue.len(), None);
    assert!(!queue.enqueue(object()));
    assert!(!queue.close_if_empty(), "closed already");
}
