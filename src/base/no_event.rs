//! The functions of `event.rs` for a build without the feature `tracing`: no spans, no events.
//!
//! Every report has another way: a hook, or else a line on standard error.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::base::error::Fault;
pub(crate) use crate::base::outside::{Hook, guarded, must_hold_no_lock, panic_message};
pub(crate) use crate::base::outside::{abort, line};
pub(crate) use crate::base::phase::Phase;
pub(crate) use crate::base::report::{
    CollectionEvent, CollectionKind, CollectionReport, During, LongestCall, SlowWait, Unraisable,
};

/// In the place of a span.
#[derive(Clone, Debug)]
pub(crate) struct Span;

impl Span {
    #[inline]
    pub(crate) fn enter(&self) -> EnteredSpan {
        EnteredSpan
    }
}

/// As a span: a caller may drop it early.
impl Drop for Span {
    #[inline]
    fn drop(&mut self) {}
}

/// In the place of a span that this thread is in.
#[derive(Debug)]
pub(crate) struct EnteredSpan;

/// As above.
impl Drop for EnteredSpan {
    #[inline]
    fn drop(&mut self) {}
}

#[inline]
pub(crate) fn phase(_: Phase) -> EnteredSpan {
    EnteredSpan
}

pub(crate) fn collection(_kind: CollectionKind, _heap: &str) -> Span {
    Span
}

pub(crate) fn promotion(_heap: &str) -> EnteredSpan {
    EnteredSpan
}

pub(crate) fn promoted(_objects: usize, _stopped: Duration) {}

pub(crate) fn collected(_: &Span, _: &CollectionReport) {}

#[cfg(feature = "cpython")]
pub(crate) fn no_clear_handler(_type_name: &str, _base: &str) {}

pub(crate) fn stopped(_time_to_stop: Duration) {}

pub(crate) fn resumed(_stopped: Duration) {}

pub(crate) fn slow_stop(_: &SlowWait<'_>) {}

pub(crate) fn long_stop(_: &SlowWait<'_>, _is_suspended: bool) {}

pub(crate) fn long_collection(_: &SlowWait<'_>) {}

pub(crate) fn held_up(
    _heap: &str,
    _took: Duration,
    _thread: &str,
    _os_thread: Option<u64>,
    _longest: Option<&LongestCall>,
) {
}

pub(crate) fn long_deferral(_heap: &str, _guards: usize, _objects: usize, _bytes: usize) {}

pub(crate) fn leaked_mutator(
    _heap: &str,
    _thread: &str,
    _os_thread: Option<u64>,
    _registered_for: Duration,
) {
}

pub(crate) fn slow_lock(
    _heap: &str,
    _waited: Duration,
    _waiter: &str,
    _holder: &str,
    _type_name: &str,
    _is_deadlock: bool,
) {
}

/// No subscriber receives warnings, so they go to standard error.
#[doc(hidden)]
pub fn is_warning_enabled() -> bool {
    false
}

pub(super) fn misuse(_: &Fault) {}

pub(super) fn unraisable(_: &Unraisable) {}

#[cfg(feature = "parallel")]
pub(crate) fn no_pool(reason: &str) {
    line(format_args!(
        "standstill: the marking pool cannot start; collections are serial: {reason}"
    ));
}
