//! Debugging lines about collections.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::event::{self, During, Hook};
use crate::base::hooks::Hooks;
use crate::base::settings_lock::Setting;
use crate::base::sync::{AtomicU32, Ordering};

/// A line at the start and one at the end of each collection.
pub const DEBUG_STATS: u32 = 1;
/// A line for each object that is about to be cleared.
pub const DEBUG_COLLECTABLE: u32 = 2;
/// A line for each object that must not be cleared.
pub const DEBUG_UNCOLLECTABLE: u32 = 4;
/// Unreachable objects are not cleared. They are saved in the garbage list.
pub const DEBUG_SAVEALL: u32 = 32;
/// The flags for a program that leaks: the three flags above.
pub const DEBUG_LEAK: u32 = DEBUG_COLLECTABLE | DEBUG_UNCOLLECTABLE | DEBUG_SAVEALL;

type Line = Hook<dyn Fn(&str) + Send + Sync>;

/// The debugging flags, and the sink for the lines.
#[derive(Default)]
pub(super) struct DebugLines {
    /// Relaxed: independent of other data.
    flags: AtomicU32,
    sink: Setting<Option<Line>>,
}

impl fmt::Debug for DebugLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugLines").field("flags", &self.flags).finish_non_exhaustive()
    }
}

impl DebugLines {
    pub(super) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    pub(super) fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    pub(super) fn set_sink(&self, sink: Option<Line>) {
        // The old sink is dropped without the lock.
        drop(self.sink.with(|place| std::mem::replace(place, sink)));
    }

    /// Writes a debugging line to the sink. Without a sink it goes to stderr.
    pub(super) fn write(&self, hooks: &Hooks, line: fmt::Arguments<'_>) {
        let sink = self.sink.with(|place| place.clone());
        match sink {
            Some(sink) => {
                let line = crate::base::text::in_words(line);
                if let Err(message) = sink.call(|sink| sink(&line)) {
                    hooks.unraisable(During::DebugSink, "", message);
                }
            }
            None => event::line(line),
        }
    }
}
