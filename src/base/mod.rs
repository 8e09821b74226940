//! Code without a domain: synchronization, errors, reports, refusable memory, test modes.
//!
//! No module here knows what a heap, an object or a collection is.

pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod event;
pub mod fallible;
pub(crate) mod steps;
pub(crate) mod stress;
pub(crate) mod sync;
pub(crate) mod system;
