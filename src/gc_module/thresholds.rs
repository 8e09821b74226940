//! When a heap collects: the thresholds of CPython's `gc.set_threshold`, and memory use.
//!
//! Programs in Python tune their collector with thresholds, which the other settings of [`Pacing`]
//! do not express. So thresholds are a rule, which replaces these settings in a heap.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::Pacing;
use crate::base::fallible::words;
use crate::base::outside::Hook;
use crate::base::settings_lock::Setting;
use crate::gc_module::services::{GcState, Services};
use crate::gc_module::watching::replace;
use crate::heap::observer::{Figures, PacingRule, Ruling};
use crate::heap::pacing::RuleNumbers;
use crate::report::error::{Code, Fault};

/// With more new objects than this many times the threshold, a collection is due anyway.
const OVERRUN_LIMIT: usize = 40;

/// Returns the memory use of the process. `None`: it is unknown now.
type MemorySource = Hook<dyn Fn() -> Option<usize> + Send + Sync>;

/// When a heap starts collections, in the terms of CPython's `gc.set_threshold`.
///
/// A collection is due when more than `t0` objects are new. It is full if `t1` is 0, or if the
/// objects since the last full collection exceed a quarter of the objects that it left. Otherwise
/// it is young, without a condition of that kind, because the cost of a young collection does not
/// depend on the size of the heap. With `t0` at 0 the heap starts no collection.
///
/// A program can request young collections so often that `t0` is never exceeded. So a full
/// collection is also due when enough objects have survived young ones since the last full one.
/// That is more than 40 times `t0`, and than a quarter of the objects that it left. It is also due
/// when the bytes of all objects have doubled since, and grown by more than
/// [`full_minimum_bytes`](Pacing::full_minimum_bytes).
///
/// New objects are counted as in [`Pacing`]: tracked and untracked cells, minus cells that were
/// given back. A thread counts cells when it fetches them, up to 64 of one size at a time, so that
/// a collection can begin that much early or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The number of new objects that makes no collection due yet. 0: any number.
    pub t0: u32,
    /// 0: every automatic collection is full. All other values are alike.
    pub t1: u32,
    /// Without effect, and stored only so that
    /// [`Services::threshold`](crate::gc_module::Services::threshold) returns it.
    pub t2: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { t0: 2000, t1: 10, t2: 0 }
    }
}

impl From<Thresholds> for RuleNumbers {
    fn from(thresholds: Thresholds) -> Self {
        let Thresholds { t0, t1, t2 } = thresholds;
        let first_due = if t0 == 0 { usize::MAX } else { t0 as usize + 1 };
        Self { first_due, numbers: [t0, t1, t2] }
    }
}

impl Pacing {
    /// Sets thresholds, which replace `young_objects`, `young_bytes`, `full_growth` and
    /// `full_minimum`.
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.rule = Some(thresholds.into());
        self
    }

    /// The thresholds. `None`: the settings that thresholds would replace decide.
    pub fn thresholds(&self) -> Option<Thresholds> {
        self.rule.map(|RuleNumbers { numbers: [t0, t1, t2], .. }| Thresholds { t0, t1, t2 })
    }
}

impl PacingRule for GcState {
    fn decide(&self, [t0, t1, _]: [u32; 3], figures: Figures) -> Ruling {
        let Figures { new, set_aside, grown, old } = figures;
        if !self.memory.holds(t0, new + set_aside) {
            return Ruling::SetAside;
        }
        if t1 == 0 || grown + set_aside + new > old / 4 { Ruling::Full } else { Ruling::Young }
    }

    fn allowed_growth(&self, [t0, ..]: [u32; 3], old: usize) -> usize {
        if t0 == 0 { usize::MAX } else { (old / 4).max(OVERRUN_LIMIT * t0 as usize) }
    }
}

/// The condition that memory use has grown since the last collection, if there is a source of it.
#[derive(Debug, Default)]
pub(super) struct MemoryCondition {
    source: Setting<Option<Source>>,
}

#[derive(Debug)]
struct Source {
    source: MemorySource,
    /// The memory use after the last collection.
    last: Option<usize>,
}

impl MemoryCondition {
    pub(super) fn set_source(&self, source: Option<MemorySource>) {
        let source = source.map(|source| Source { last: ask(&source), source });
        replace(&self.source, source);
    }

    /// Records the memory use after a collection, while the world runs.
    pub(super) fn remember(&self) {
        let source = self.source.with(|place| place.as_ref().map(|slot| slot.source.clone()));
        // Called without the lock, because the source is user code.
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

impl Services {
    /// Sets the thresholds, which [`Thresholds`] explains. A threshold that is `None` keeps its
    /// value. With `t0` at 0 the heap starts no collection, even if
    /// [`is_enabled`](Self::is_enabled) returns `true`.
    ///
    /// From now on the other settings of the heap's [`Pacing`](crate::Pacing) have no effect,
    /// except [`automatic`](crate::Pacing::automatic) and
    /// [`full_minimum_bytes`](crate::Pacing::full_minimum_bytes).
    ///
    /// # Errors
    ///
    /// [`Code::BadThreshold`] when a threshold is negative. Then nothing has changed.
    pub fn set_threshold(&self, t0: i32, t1: Option<i32>, t2: Option<i32>) -> Result<(), Fault> {
        let number = |threshold: i32| {
            u32::try_from(threshold).map_err(|_| {
                let text = words!("a threshold must not be negative, and {threshold} is");
                Fault::new(Code::BadThreshold, "set_threshold").because(text)
            })
        };
        let t0 = number(t0)?;
        let (t1, t2) = (t1.map(number).transpose()?, t2.map(number).transpose()?);
        self.pace().change_policy(|policy| {
            let old = policy.thresholds().unwrap_or_default();
            let new = Thresholds { t0, t1: t1.unwrap_or(old.t1), t2: t2.unwrap_or(old.t2) };
            policy.rule = Some(new.into());
        });
        self.core().request_what_is_due();
        Ok(())
    }

    /// The thresholds, as [`set_threshold`](Self::set_threshold) or
    /// [`Pacing::with_thresholds`](crate::Pacing::with_thresholds) has set them. A heap without
    /// thresholds returns the default ones, although the other settings of its
    /// [`Pacing`](crate::Pacing) decide.
    pub fn threshold(&self) -> [i32; 3] {
        let Thresholds { t0, t1, t2 } = self.pace().policy().thresholds().unwrap_or_default();
        [t0, t1, t2].map(|number| i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// Makes memory use a condition of collections by [`Thresholds`]. A due collection is skipped
    /// if memory use has not grown by a tenth since the last collection, and at most 40 times `t0`
    /// objects are new. [`process_memory`](crate::gc_module::process_memory) can be the source. By
    /// default there is no source and no condition.
    ///
    /// The source is called by this function, after collections, and when a thread fetches cells or
    /// reaches a safepoint and a collection may be due. So it must not use a heap. If it returns
    /// `None`, the condition holds.
    pub fn set_memory_source(&self, source: impl Fn() -> Option<usize> + Send + Sync + 'static) {
        self.state().memory.set_source(Some(Hook::new(Arc::new(source))));
    }

    /// Removes the source, and with it the condition.
    pub fn remove_memory_source(&self) {
        self.state().memory.set_source(None);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
