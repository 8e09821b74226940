//! Code without a domain: synchronization, errors, reports, allocation that can fail, test modes.
//!
//! No module here refers to heaps, objects or collections, except in documentation.

pub(crate) mod environment;
pub(crate) mod error;
#[cfg(feature = "tracing")]
pub(crate) mod event;
#[allow(unsafe_code)]
pub(crate) mod fallible;
#[cfg(not(all(test, any(loom, shuttle))))]
mod held;
pub(crate) mod hooks;
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) mod model_sync;
#[cfg(not(feature = "tracing"))]
pub(crate) mod no_event;
#[allow(unsafe_code)]
pub(crate) mod once_box;
pub(crate) mod outside;
pub(crate) mod phase;
#[allow(unsafe_code)]
pub(crate) mod prefetch;
pub(crate) mod report;
pub(crate) mod settings_lock;
#[allow(unsafe_code)]
pub(crate) mod shared;
pub(crate) mod steps;
pub(crate) mod stress;
pub(crate) mod sync;
#[allow(unsafe_code)]
pub(crate) mod system;
pub(crate) mod text;

#[cfg(not(feature = "tracing"))]
pub(crate) use no_event as event;
