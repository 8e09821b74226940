//! The request for a collection.

use std::fmt;

use crate::base::event::CollectionKind;
use crate::safepoint::StopError;

/// What to collect, and what to do if somebody else is collecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collect {
    pub(super) kind: CollectionKind,
    pub(super) wait: bool,
    /// What the records and callbacks are told.
    pub(super) generation: u8,
    /// The callbacks of the services are not to know.
    pub(super) quiet: bool,
}

impl Collect {
    /// Everything that is tracked and not frozen.
    pub fn full() -> Self {
        Self { kind: CollectionKind::Full, wait: true, generation: 2, quiet: false }
    }

    /// What is new since the last collection, or [promotion](crate::HeapStats::promotions).
    pub fn young() -> Self {
        Self { kind: CollectionKind::Young, wait: true, generation: 0, quiet: false }
    }

    /// Whether to wait, detached, for a collection that another thread is running, and then collect
    /// (the default); else [`CollectError::Busy`] comes back at once.
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// Under another number than its kind's.
    pub(crate) fn named(mut self, generation: u8) -> Self {
        self.generation = generation;
        self
    }

    /// Without the callbacks of the services.
    pub(crate) fn quietly(mut self) -> Self {
        self.quiet = true;
        self
    }
}

/// Why there was no collection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectError {
    /// Another thread is collecting, and the caller did not want to wait.
    Busy,
    /// The world cannot be stopped.
    Stop(StopError),
}

impl fmt::Display for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another thread is collecting"),
            Self::Stop(error) => write!(f, "the world cannot be stopped: {error}"),
        }
    }
}

impl std::error::Error for CollectError {}

impl From<StopError> for CollectError {
    fn from(error: StopError) -> Self {
        Self::Stop(error)
    }
}
