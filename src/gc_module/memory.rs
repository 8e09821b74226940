//! Memory as a condition of automatic collections.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::event::Hook;
use crate::base::settings_lock::Setting;

/// With more new objects than this many times the threshold, a collection is due anyway.
pub(super) const OVERRUN_LIMIT: usize = 40;

/// Returns the memory use of the process. `None`: it is unknown now.
pub(super) type MemorySource = Hook<dyn Fn() -> Option<usize> + Send + Sync>;

/// The condition that memory use has grown since the last collection. It applies if there is a
/// source of memory use.
#[derive(Default)]
pub(super) struct MemoryCondition {
    source: Setting<Option<Source>>,
}

struct Source {
    source: MemorySource,
    /// The memory use after the last collection.
    last: Option<usize>,
}

impl fmt::Debug for MemoryCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCondition").finish_non_exhaustive()
    }
}

impl MemoryCondition {
    /// Sets or removes the source.
    pub(super) fn set_source(&self, source: Option<MemorySource>) {
        let source = source.map(|source| Source { last: ask(&source), source });
        // The old source is dropped without the lock.
        drop(self.source.with(|place| std::mem::replace(place, source)));
    }

    /// Records the memory use after a collection, while the world runs.
    pub(super) fn remember(&self) {
        let source = self.source.with(|place| place.as_ref().map(|slot| slot.source.clone()));
        // Called without the lock: the source is user code.
        let Some(now) = source.map(|source| ask(&source)) else { return };
        self.source.with(|place| place.iter_mut().for_each(|slot| slot.last = now));
    }

    /// Whether memory use has grown by a tenth since the last collection, or so many objects are
    /// new that a collection is due anyway.
    pub(super) fn holds(&self, t0: u32, new: usize) -> bool {
        let known =
            self.source.with(|place| place.as_ref().map(|slot| (slot.source.clone(), slot.last)));
        let Some((source, last)) = known else { return true };
        if new > OVERRUN_LIMIT * t0 as usize {
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

    #[test]
    fn the_condition_holds_where_memory_has_grown_or_is_unknown_or_objects_are_many() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

        let condition = MemoryCondition::default();
        assert!(condition.holds(10, 0), "without a source");
        let used = Arc::new(AtomicUsize::new(1000));
        let source = Arc::clone(&used);
        let source = move || Some(source.load(SeqCst)).filter(|&used| used != 0);
        condition.set_source(Some(Hook::new(Arc::new(source))));
        for (now, new, holds) in [
            (1000, 0, false),
            (1099, 0, false),
            (1100, 0, true),
            (1000, 400, false),
            (1000, 401, true),
            (0, 0, true),
        ] {
            used.store(now, SeqCst);
            assert_eq!(condition.holds(10, new), holds, "{now} bytes, {new} objects");
        }
        used.store(2000, SeqCst);
        condition.remember();
        assert!(!condition.holds(10, 0), "as after the last collection");
        used.store(0, SeqCst);
        condition.remember();
        used.store(2000, SeqCst);
        assert!(condition.holds(10, 0), "it was unknown after the last collection");
        condition.set_source(None);
        condition.remember();
        assert!(condition.holds(10, 0));
    }
}
