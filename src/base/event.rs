//! The spans and events of the library, for `tracing`.
//!
//! [`phase`] enters every phase of a collection, so each phase has a span. `docs/tracing.md` lists
//! all spans and events. A build without the feature `tracing` has `no_event.rs` in the place of
//! this file. Without a subscriber a span costs one relaxed load of `tracing`'s global
//! level, a few dozen times for each collection. Allocation, counting and the safepoint poll emit
//! nothing.

#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tracing::{Dispatch, Id};

use crate::base::error::Fault;
use crate::base::outside::call_outside;
pub(crate) use crate::base::outside::{Hook, guarded, must_hold_no_lock, panic_message};
pub(crate) use crate::base::outside::{abort, line};
pub(crate) use crate::base::phase::Phase;
pub(crate) use crate::base::report::{
    CollectionEvent, CollectionKind, CollectionReport, During, LongestCall, SlowWait, Unraisable,
};

/// A span. Each thread that works on its subject enters it meanwhile. It is empty if no subscriber
/// wants it.
///
/// If a subscriber panics when the span is made or entered, the span does not call it again. Clones
/// share one span and do not call the subscriber, so a span can be cloned under a lock.
#[derive(Clone, Debug)]
pub(crate) struct Span(Option<Arc<OpenSpan>>);

/// The span behind all clones.
#[derive(Debug)]
struct OpenSpan(tracing::Span);

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, tracing::Span::none());
        // If the subscriber is dropped as its last span closes, it may panic again. This must not
        // happen while the first panic unwinds.
        let subscriber = span.with_subscriber(|(_, subscriber)| subscriber.clone());
        call_outside(|| drop(span));
        call_outside(|| drop(subscriber));
    }
}

impl Span {
    fn new(make: impl FnOnce() -> tracing::Span) -> Self {
        let mut made = tracing::Span::none();
        call_outside(|| made = make());
        Self((!made.is_disabled()).then(|| Arc::new(OpenSpan(made))))
    }

    /// Calls the subscriber. Returns whether there is one and it did not panic. Not inlined: mostly
    /// no subscriber wants the span, and the callers test that first.
    #[cold]
    #[inline(never)]
    fn call_subscriber(&self, f: impl FnOnce(&Dispatch, &Id)) -> bool {
        let mut done = false;
        if let Some(span) = &self.0 {
            // Not `tracing`'s own `enter`: as a panic unwinds, its guard would leave and close the
            // span.
            span.0.with_subscriber(|(id, subscriber)| {
                call_outside(|| {
                    f(subscriber, id);
                    done = true;
                });
            });
        }
        done
    }

    /// Enters the span until the returned value is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> EnteredSpan {
        let entered = self.0.is_some() && self.call_subscriber(Dispatch::enter);
        EnteredSpan { span: if entered { self.clone() } else { Self(None) }, not_send: PhantomData }
    }

    #[inline]
    fn record(&self, field: &'static str, value: usize) {
        if let Some(span) = &self.0 {
            span.record(field, value);
        }
    }
}

impl OpenSpan {
    #[cold]
    #[inline(never)]
    fn record(&self, field: &'static str, value: usize) {
        call_outside(|| {
            self.0.record(field, value);
        });
    }
}

/// This thread is in a span. The drop leaves it.
#[must_use = "the span is left when this is dropped"]
#[derive(Debug)]
pub(crate) struct EnteredSpan {
    span: Span,
    not_send: PhantomData<*mut ()>,
}

impl Drop for EnteredSpan {
    #[inline]
    fn drop(&mut self) {
        if self.span.0.is_some() {
            self.span.call_subscriber(Dispatch::exit);
        }
    }
}

/// Enters a phase: a span that closes when the returned value is dropped.
pub(crate) fn phase(phase: Phase) -> EnteredSpan {
    Span::new(|| tracing::debug_span!(target: "standstill::phase", "phase", name = ?phase)).enter()
}

/// The span of a whole collection.
pub(crate) fn collection(kind: CollectionKind, heap: &str) -> Span {
    Span::new(|| {
        tracing::info_span!(
            target: "standstill",
            "collection",
            heap,
            kind = kind.name(),
            candidates = tracing::field::Empty,
            unreachable = tracing::field::Empty,
            collected = tracing::field::Empty,
        )
    })
}

/// The span of a promotion, from before the stop until after it.
pub(crate) fn promotion(heap: &str) -> EnteredSpan {
    Span::new(|| tracing::debug_span!(target: "standstill", "promotion", heap)).enter()
}

/// The young objects became old without being traversed.
pub(crate) fn promoted(objects: usize, stopped: Duration) {
    call_outside(|| {
        tracing::debug!(
            target: "standstill",
            objects,
            stopped_us = stopped.as_micros() as u64,
            "promoted"
        );
    });
}

/// The end of a collection, with its facts.
pub(crate) fn collected(span: &Span, report: &CollectionReport) {
    // Without `..`: a new field of the report does not compile until this function uses it.
    let CollectionReport {
        kind,
        generation: _,
        abandoned,
        tracked,
        candidates,
        known_alive,
        unreachable,
        finalized,
        resurrected,
        collected,
        uncollectable,
        external_bytes,
        overvisited,
        stops,
        time_to_stop,
        waited,
        duration,
        workers,
    } = report;
    span.record("candidates", *candidates);
    span.record("unreachable", *unreachable);
    span.record("collected", *collected);
    call_outside(|| {
        tracing::info!(
            target: "standstill",
            kind = kind.name(),
            tracked,
            candidates,
            known_alive,
            unreachable,
            finalized,
            resurrected,
            collected,
            uncollectable,
            external_bytes,
            overvisited,
            stops = stops.len(),
            stopped_us = stops.iter().sum::<Duration>().as_micros() as u64,
            time_to_stop_us = time_to_stop.as_micros() as u64,
            waited_us = waited.as_micros() as u64,
            duration_us = duration.as_micros() as u64,
            workers,
            abandoned = abandoned.as_deref(),
            "collected"
        );
    });
}

/// A type has its own traverse handler, and lacks the clear handler of its base. This is allowed,
/// and probably a mistake.
#[cfg(feature = "cpython")]
pub(crate) fn no_clear_handler(type_name: &str, base: &str) {
    call_outside(|| {
        tracing::info!(target: "standstill", type_name, base, "a type without the clear handler that its base has");
    });
}

/// The world has been stopped.
pub(crate) fn stopped(time_to_stop: Duration) {
    call_outside(|| {
        tracing::debug!(target: "standstill", time_to_stop_us = time_to_stop.as_micros() as u64, "stopped");
    });
}

/// The world runs again.
pub(crate) fn resumed(stopped: Duration) {
    call_outside(|| {
        tracing::debug!(target: "standstill", stopped_us = stopped.as_micros() as u64, "resumed");
    });
}

/// A stop is slow, because it waits for this thread.
pub(crate) fn slow_stop(wait: &SlowWait<'_>) {
    let &SlowWait { heap, waited, thread, os_thread, registered_for, waiter, purpose } = wait;
    call_outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            waiter,
            purpose,
            "slow stop"
        );
    });
}

/// A stop that this thread has requested does not end, or another thread keeps this thread
/// suspended.
pub(crate) fn long_stop(wait: &SlowWait<'_>, is_suspended: bool) {
    let &SlowWait { heap, waited, thread, os_thread, registered_for, waiter, purpose } = wait;
    call_outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            is_suspended,
            waiter,
            purpose,
            "long stop"
        );
    });
}

/// A thread waits for the collector's lock, which this thread holds.
pub(crate) fn long_collection(wait: &SlowWait<'_>) {
    let &SlowWait { heap, waited, thread, os_thread, registered_for, waiter, purpose } = wait;
    call_outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            waiter,
            purpose,
            "long collection"
        );
    });
}

/// Guards defer the collections of a heap that has grown much meanwhile.
pub(crate) fn long_deferral(heap: &str, guards: usize, objects: usize, bytes: usize) {
    call_outside(|| {
        tracing::warn!(target: "standstill", heap, guards, objects, bytes, "long deferral");
    });
}

/// A collection, or a batch of its garbage, has held up this thread.
pub(crate) fn held_up(
    heap: &str,
    took: Duration,
    thread: &str,
    os_thread: Option<u64>,
    longest: Option<&LongestCall>,
) {
    call_outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            took_ms = took.as_millis() as u64,
            thread,
            os_thread,
            longest_during = longest.map(|call| tracing::field::debug(call.during)),
            longest_type = longest.map(|call| &*call.type_name),
            longest_ms = longest.map(|call| call.took.as_millis() as u64),
            "held up"
        );
    });
}

/// This thread has ended without dropping its mutator. A stop has failed, and all later stops will
/// fail.
pub(crate) fn leaked_mutator(
    heap: &str,
    thread: &str,
    os_thread: Option<u64>,
    registered_for: Duration,
) {
    call_outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            "leaked mutator"
        );
    });
}

/// A thread has waited long for a cell that another thread has locked.
pub(crate) fn slow_lock(
    heap: &str,
    waited: Duration,
    waiter: &str,
    holder: &str,
    type_name: &str,
    is_deadlock: bool,
) {
    call_outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            waiter,
            holder,
            type_name,
            is_deadlock,
            "slow lock"
        );
    });
}

/// Whether a subscriber receives warnings of this library.
#[doc(hidden)]
pub fn is_warning_enabled() -> bool {
    let mut is_enabled = false;
    call_outside(|| {
        is_enabled = tracing::event_enabled!(target: "standstill", tracing::Level::WARN)
    });
    is_enabled
}

/// A mistake in the use of dynamic objects.
pub(super) fn misuse(fault: &Fault) {
    call_outside(|| {
        tracing::warn!(target: "standstill", code = fault.code.name(), type_name = fault.type_name, message_text = %fault.text, "misuse");
    });
}

/// A failure that no caller could be told of.
pub(super) fn unraisable(what: &Unraisable) {
    call_outside(|| {
        tracing::error!(target: "standstill", during = ?what.during, type_name = &*what.type_name, message_text = %what.message, "unraisable");
    });
}

/// The marking pool could not start. Collections stay serial.
#[cfg(feature = "parallel")]
pub(crate) fn no_pool(reason: &str) {
    call_outside(|| {
        tracing::warn!(target: "standstill", reason, "the marking pool cannot start; collections are serial");
    });
}
