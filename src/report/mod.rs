//! The program must learn why a call failed, and what a collection did that it has not started. So
//! this folder has errors, facts about collections, callbacks, spans and events. It lies below all
//! that works with threads, pages or objects, because each of them can fail. For example,
//! `safepoint` reports a slow stop with the [`LongestCall`](facts::LongestCall) that caused it.
//! Nothing here refers to a heap, except in documentation.

#![forbid(unsafe_code)]

/// The errors that functions return.
pub(crate) mod error;
/// The same as spans and events of `tracing`, and the phases, each of which has a span.
pub(crate) mod event;
/// The facts about a collection, about a long call, and about a failure that no caller receives.
pub(crate) mod facts;
/// The callbacks of a heap, which receive the facts.
pub(crate) mod hooks;
/// The same as lines of JSON, if the environment asks for them.
pub(crate) mod log;
/// The same as probes for tracers of the system, if the feature is on.
#[cfg(feature = "usdt")]
mod probes;
/// The same as metrics, if the feature is on.
#[cfg(feature = "metrics")]
pub(crate) mod recorder;
/// Histograms of times, and their percentiles.
pub(crate) mod times;
