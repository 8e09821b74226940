//! Memory as a condition of automatic collections.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::event::Hook;
use crate::base::sync::{AtomicBool, Mutex, Ordering};

/// Returns the memory use of the process. `None`: it is unknown now.
pub(super) type MemorySource = Hook<dyn Fn() -> Option<usize> + Send + Sync>;

/// The condition that memory use has grown since the last collection. It applies if there is a
/// source of memory use.
#[derive(Default)]
pub(super) struct MemoryCondition {
    /// Whether there is a source. Read before the lock is taken.
    is_set: AtomicBool,
    source: Mutex<Option<Source>>,
}

struct Source {
    source: MemorySource,
    /// The memory use after the last collection.
    last: Option<usize>,
}

impl fmt::Debug for MemoryCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCondition").field("is_set", &self.is_set).finish_non_exhaustive()
    }
}

impl MemoryCondition {
    /// Sets or removes the source.
    pub(super) fn set_source(&self, source: Option<MemorySource>) {
        let source = source.map(|source| Source { last: ask(&source), source });
        let old = {
            let mut slot = self.source.lock();
            self.is_set.store(source.is_some(), Ordering::Relaxed);
            std::mem::replace(&mut *slot, source)
        };
        drop(old);
    }

    /// Records the memory use after a collection, while the world runs.
    pub(super) fn remember(&self) {
        if !self.is_set.load(Ordering::Relaxed) {
            return;
        }
        let source = self.source.lock().as_ref().map(|slot| slot.source.clone());
        // Called without the lock: the source is user code.
        if let Some(now) = source.map(|source| ask(&source))
            && let Some(slot) = &mut *self.source.lock()
        {
            slot.last = now;
        }
    }

    /// Whether memory use has grown by a tenth since the last collection, or so many objects are
    /// new that a collection is due anyway.
    pub(super) fn holds(&self, t0: u32, new: usize) -> bool {
        /// With more new objects than this many times the threshold, a collection is due anyway.
        const PATIENCE: usize = 40;
        if !self.is_set.load(Ordering::Relaxed) {
            return true;
        }
        let (source, last) = match &*self.source.lock() {
            Some(slot) => (slot.source.clone(), slot.last),
            None => return true,
        };
        if new > PATIENCE * t0 as usize {
            return true;
        }
        let (Some(last), Some(now)) = (last, ask(&source)) else { return true };
        now >= last.saturating_add(last / 10)
    }
}

/// Calls the source. `None` if the source panics.
fn ask(source: &MemorySource) -> Option<usize> {
    source.call(|source| source()).unwrap_or(None)
}

/// The memory that the process uses now, in bytes, including swapped-out memory. `None`: the system
/// does not provide it.
pub fn process_memory() -> Option<usize> {
    memory_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The result of [`process_memory`], from the text of `/proc/self/status`.
fn memory_of(status: &str) -> Option<usize> {
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<usize>().ok()
    };
    let swapped = kilobytes("VmSwap:").unwrap_or(0);
    Some((kilobytes("VmRSS:")? + swapped) << 10)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn u_06_memory_is_what_is_resident_and_what_was_swapped_out() {
        let page = "Name:\tx\nVmPeak:\t  900 kB\nVmRSS:\t  300 kB\nVmSwap:\t   20 kB\n";
        assert_eq!(memory_of(page), Some(320 << 10));
        assert_eq!(memory_of("VmRSS:\t  300 kB\n"), Some(300 << 10), "no word of swapped memory");
        assert_eq!(memory_of("VmSwap:\t   20 kB\n"), None);
        assert_eq!(memory_of("VmRSS:\t much\n"), None);
    }
}
