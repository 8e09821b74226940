//! The spans and events of the library, for `tracing`.
//!
//! [`phase`] enters every phase of a collection, so that each phase has a span. `docs/tracing.md`
//! lists all spans and events. Without a subscriber a span costs one relaxed load of `tracing`'s
//! global level, a few dozen times for each collection, while allocation, counting and the
//! safepoint poll emit nothing.
//!
//! In a build without the feature `tracing` these functions do nothing, because each report also
//! reaches a hook, or else standard error.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "tracing"),
    allow(dead_code, unused_mut, unused_variables, reason = "only events use them")
)]

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tracing")]
use tracing::{Dispatch, Id};

#[cfg(feature = "tracing")]
use crate::base::outside::call_outside;
#[cfg(all(feature = "parallel", not(feature = "tracing")))]
use crate::base::outside::line;
use crate::report::error::Fault;
use crate::report::facts::{
    CollectionKind, CollectionReport, LongestCall, Phase, SlowWait, Unraisable,
};
#[cfg(feature = "usdt")]
use crate::report::probes;

/// Emits an event, with a level of `tracing`.
macro_rules! emit {
    ($level:ident, $($event:tt)*) => {
        #[cfg(feature = "tracing")]
        call_outside(|| {
            tracing::$level!(target: "standstill", $($event)*);
        });
    };
}

/// Makes a span, with a macro of `tracing`.
macro_rules! span {
    ($make:ident, $target:literal, $($span:tt)*) => {{
        #[cfg(feature = "tracing")]
        let span = Span::new(|| tracing::$make!(target: $target, $($span)*));
        #[cfg(not(feature = "tracing"))]
        let span = Span(None);
        span
    }};
}

/// A span, which each thread that works on its subject enters meanwhile. It is empty if no
/// subscriber wants it.
///
/// If a subscriber panics when the span is made or entered, the span does not call it again. A span
/// can be cloned under a lock, because clones share it and do not call the subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Span(Option<Arc<OpenSpan>>);

/// The span behind all clones.
#[derive(Debug)]
struct OpenSpan(#[cfg(feature = "tracing")] tracing::Span);

#[cfg(feature = "tracing")]
impl Drop for OpenSpan {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, tracing::Span::none());
        // If the subscriber is dropped as its last span closes, it may panic again, which must not
        // happen while the first panic unwinds.
        let subscriber = span.with_subscriber(|(_, subscriber)| subscriber.clone());
        call_outside(|| drop(span));
        call_outside(|| drop(subscriber));
    }
}

impl Span {
    #[cfg(feature = "tracing")]
    fn new(make: impl FnOnce() -> tracing::Span) -> Self {
        let mut made = tracing::Span::none();
        call_outside(|| made = make());
        Self((!made.is_disabled()).then(|| Arc::new(OpenSpan(made))))
    }

    /// Calls the subscriber. Returns whether there is one and it did not panic. Not inlined,
    /// because mostly no subscriber wants the span, and the callers test that first.
    #[cfg(feature = "tracing")]
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
        #[cfg(feature = "tracing")]
        if self.0.is_some() && self.call_subscriber(Dispatch::enter) {
            return EnteredSpan { span: self.clone(), not_send: PhantomData };
        }
        EnteredSpan { span: Self(None), not_send: PhantomData }
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
        #[cfg(feature = "tracing")]
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
        #[cfg(feature = "tracing")]
        if self.span.0.is_some() {
            self.span.call_subscriber(Dispatch::exit);
        }
    }
}

/// Enters a phase: a span that closes when the returned value is dropped.
pub(crate) fn phase(phase: Phase) -> EnteredSpan {
    #[cfg(feature = "usdt")]
    probes::phase(phase);
    // Each name is a constant of its own, because viewers group spans by their names.
    macro_rules! named {
        ($($name:ident)*) => {
            match phase {
                $(Phase::$name => span!(debug_span, "standstill::phase", stringify!($name)),)*
            }
        };
    }
    let span = named!(
        Merge Premark Count Roots Mark Sweep Claim Callbacks Finalize Recheck Clear
    );
    span.enter()
}

/// The span of a whole collection.
pub(crate) fn collection(kind: CollectionKind, heap: &str) -> Span {
    #[cfg(feature = "usdt")]
    probes::begun(kind, heap);
    span!(
        info_span,
        "standstill",
        "collection",
        heap,
        kind = kind.name(),
        candidates = tracing::field::Empty,
        unreachable = tracing::field::Empty,
        collected = tracing::field::Empty,
    )
}

/// The span of a promotion, from before the stop until after it.
pub(crate) fn promotion(heap: &str) -> EnteredSpan {
    span!(debug_span, "standstill", "promotion", heap).enter()
}

/// The span of a thread that stands still for a stop, until it goes on.
#[cold]
pub(crate) fn thread_stopped(heap: &str) -> EnteredSpan {
    span!(debug_span, "standstill", "thread stopped", heap).enter()
}

/// The young objects became old without being traversed.
pub(crate) fn promoted(objects: usize, stopped: Duration) {
    emit!(debug, objects, stopped_us = stopped.as_micros() as u64, "promoted");
}

/// A collection has ended.
pub(crate) fn collected(span: &Span, report: &CollectionReport) {
    // Without `..`: a new field of the report does not compile until this function uses it.
    let CollectionReport {
        sequence,
        kind,
        generation: _,
        reason,
        because,
        tag,
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
        late_thread,
        waited,
        duration,
        phases: _,
        slowest,
        largest_types: _,
        workers,
        child,
        no_child,
    } = report;
    #[cfg(feature = "usdt")]
    probes::ended(report);
    span.record("candidates", *candidates);
    span.record("unreachable", *unreachable);
    span.record("collected", *collected);
    let slowest = slowest.first();
    emit!(
        info,
        sequence,
        kind = kind.name(),
        reason = ?reason,
        because,
        tag,
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
        late_thread,
        waited_us = waited.as_micros() as u64,
        duration_us = duration.as_micros() as u64,
        workers,
        longest_type = slowest.map_or("", |call| &*call.type_name),
        longest_us = slowest.map_or(0, |call| call.took.as_micros() as u64),
        abandoned = abandoned.as_deref(),
        child_us = child.map(|child| child.took.as_micros() as u64),
        parts = child.map(|child| child.parts),
        no_child = no_child.as_deref(),
        "collected"
    );
}

/// A collection has cost the program as much as [`slow_collection`] allows.
///
/// [`slow_collection`]: crate::HeapBuilder::slow_collection
#[cold]
pub(crate) fn slow_collection(heap: &str, report: &CollectionReport) {
    let longest = report.slowest.first();
    emit!(
        warn,
        heap,
        sequence = report.sequence,
        kind = report.kind.name(),
        reason = ?report.reason,
        because = report.because,
        cost_ms = report.cost().as_millis() as u64,
        waited_ms = report.waited.as_millis() as u64,
        time_to_stop_ms = report.time_to_stop.as_millis() as u64,
        late_thread = report.late_thread,
        phases = ?report.phases,
        types = %ListOf(&report.largest_types),
        longest = longest.map(tracing::field::display),
        "slow collection"
    );
}

/// The elements of a list, separated by semicolons.
struct ListOf<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for ListOf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// A file with all objects was written.
pub(crate) fn snapshot(heap: &str, path: &dyn fmt::Display, objects: usize) {
    emit!(info, heap, %path, objects, "snapshot");
}

/// A snapshot copies the heap in a stop.
pub(crate) fn no_child(heap: &str, reason: &dyn fmt::Display) {
    emit!(debug, heap, %reason, "no child process");
}

/// A snapshot could not be written.
pub(crate) fn no_snapshot(heap: &str, path: &dyn fmt::Display, reason: &dyn fmt::Display) {
    emit!(warn, heap, %path, %reason, "no snapshot");
}

/// A type has its own traverse handler, and lacks the clear handler of its base. This is allowed,
/// and probably a mistake.
#[cfg(feature = "cpython")]
pub(crate) fn no_clear_handler(type_name: &str, base: &str) {
    emit!(info, type_name, base, "a type without the clear handler that its base has");
}

/// The world has been stopped.
pub(crate) fn stopped(time_to_stop: Duration) {
    #[cfg(feature = "usdt")]
    probes::stopped(time_to_stop);
    emit!(debug, time_to_stop_us = time_to_stop.as_micros() as u64, "stopped");
}

/// The world runs again.
pub(crate) fn resumed(stopped: Duration) {
    #[cfg(feature = "usdt")]
    probes::resumed(stopped);
    emit!(debug, stopped_us = stopped.as_micros() as u64, "resumed");
}

/// A thread waits long, because of another thread: a "slow stop", a "long stop" with
/// `is_suspended`, or a "long collection".
pub(crate) fn slow_wait(message: &str, wait: &SlowWait<'_>, is_suspended: Option<bool>) {
    let &SlowWait { heap, waited, thread, os_thread, registered_for, waiter, purpose } = wait;
    #[cfg(feature = "usdt")]
    probes::slow(waited, os_thread);
    emit!(
        warn,
        heap,
        waited_ms = waited.as_millis() as u64,
        thread,
        os_thread,
        registered_ms = registered_for.as_millis() as u64,
        is_suspended,
        waiter,
        purpose,
        "{message}"
    );
}

/// A thread is attached, and has not polled for long. No thread waits for it yet.
pub(crate) fn late_poll(wait: &SlowWait<'_>, mark: Option<&str>) {
    emit!(
        warn,
        heap = wait.heap,
        waited_ms = wait.waited.as_millis() as u64,
        thread = wait.thread,
        os_thread = wait.os_thread,
        registered_ms = wait.registered_for.as_millis() as u64,
        mark,
        "late poll"
    );
}

/// Guards defer the collections of a heap that has grown much meanwhile.
pub(crate) fn long_deferral(heap: &str, guards: usize, objects: usize, bytes: usize) {
    emit!(warn, heap, guards, objects, bytes, "long deferral");
}

/// A collection, or a batch of its garbage, has held up this thread.
pub(crate) fn held_up(
    heap: &str,
    took: Duration,
    thread: &str,
    os_thread: Option<u64>,
    longest: Option<&LongestCall>,
) {
    emit!(
        warn,
        heap,
        took_ms = took.as_millis() as u64,
        thread,
        os_thread,
        longest_during = longest.map(|call| tracing::field::debug(call.during)),
        longest_type = longest.map(|call| &*call.type_name),
        longest_ms = longest.map(|call| call.took.as_millis() as u64),
        "held up"
    );
}

/// This thread has ended without dropping its mutator, so that a stop has failed, as all later
/// stops will.
pub(crate) fn leaked_mutator(
    heap: &str,
    thread: &str,
    os_thread: Option<u64>,
    registered_for: Duration,
) {
    emit!(
        warn,
        heap,
        thread,
        os_thread,
        registered_ms = registered_for.as_millis() as u64,
        "leaked mutator"
    );
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
    emit!(
        warn,
        heap,
        waited_ms = waited.as_millis() as u64,
        waiter,
        holder,
        type_name,
        is_deadlock,
        "slow lock"
    );
}

/// Whether a subscriber receives warnings of this library, because otherwise they go to standard
/// error.
#[doc(hidden)]
pub fn is_warning_enabled() -> bool {
    let mut is_enabled = false;
    #[cfg(feature = "tracing")]
    call_outside(|| {
        is_enabled = tracing::event_enabled!(target: "standstill", tracing::Level::WARN)
    });
    is_enabled
}

/// A mistake in the use of dynamic objects.
pub(super) fn misuse(fault: &Fault) {
    emit!(warn, code = fault.code.name(), type_name = fault.type_name, message_text = %fault.text, "misuse");
}

/// A failure that no caller could be told of.
pub(super) fn unraisable(what: &Unraisable) {
    emit!(error, during = ?what.during, type_name = &*what.type_name, message_text = %what.message, "unraisable");
}

/// The marking pool could not start, so that collections stay serial.
#[cfg(feature = "parallel")]
pub(crate) fn no_pool(reason: &str) {
    emit!(warn, reason, "the marking pool cannot start; collections are serial");
    #[cfg(not(feature = "tracing"))]
    line(format_args!(
        "standstill: the marking pool cannot start; collections are serial: {reason}"
    ));
}
