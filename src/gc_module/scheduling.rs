//! The calls that decide when a heap collects.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::event::Hook;
use crate::base::text::words;
use crate::gc_module::services::Services;
use crate::gc_module::thresholds::Thresholds;

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

    /// The thresholds. A heap without thresholds returns the default ones, although the other
    /// settings of its [`Pacing`](crate::Pacing) decide. [`set_threshold`](Self::set_threshold) and
    /// [`Pacing::with_thresholds`](crate::Pacing::with_thresholds) set thresholds.
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
    /// reaches a safepoint and a collection may be due. It must not use a heap. If it returns
    /// `None`, the condition holds.
    pub fn set_memory_source(&self, source: impl Fn() -> Option<usize> + Send + Sync + 'static) {
        self.state().memory.set_source(Some(Hook::new(Arc::new(source))));
    }

    /// Removes the source, and with it the condition.
    pub fn remove_memory_source(&self) {
        self.state().memory.set_source(None);
    }
}
