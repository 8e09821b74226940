//! The calls that decide when a heap collects.

use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::event::Hook;
use crate::base::text::words;
use crate::gc_module::services::Services;
use crate::gc_module::thresholds::Thresholds;

impl Services {
    /// Sets the thresholds; see [`Thresholds`] for what they mean. Those that are `None` stay. `t0` at 0 switches automatic
    /// collections off, whatever [`is_enabled`](Self::is_enabled) says.
    ///
    /// The heap's other [`Pacing`](crate::Pacing) means nothing from now on, but for
    /// [`automatic`](crate::Pacing::automatic).
    ///
    /// # Errors
    ///
    /// [`Code::BadThreshold`] when one is negative; nothing has changed.
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
        Ok(())
    }

    /// The thresholds. In a heap that was given none, by [`set_threshold`](Self::set_threshold) or
    /// [`Pacing::with_thresholds`](crate::Pacing::with_thresholds), those that would be the default; its other
    /// [`Pacing`](crate::Pacing) decides there.
    pub fn threshold(&self) -> [i32; 3] {
        let Thresholds { t0, t1, t2 } = self.pace().policy().thresholds().unwrap_or_default();
        [t0, t1, t2].map(|number| i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// Makes memory a condition of collections by [`Thresholds`]: one that is due is skipped if memory has not
    /// grown by a tenth since the last, and no more than 40 times `t0` objects are new since. [`process_memory`](crate::gc_module::process_memory) is such
    /// a source. Without one (the default) there is no such condition.
    ///
    /// The source is called when a thread has run out of cells and a collection is due, and after collections. It must use no heap. Where it
    /// cannot tell, the condition holds.
    pub fn set_memory_source(&self, source: impl Fn() -> Option<usize> + Send + Sync + 'static) {
        self.state().memory.set_source(Some(Hook::new(Arc::new(source))));
    }

    /// Ends the condition of memory.
    pub fn remove_memory_source(&self) {
        self.state().memory.set_source(None);
    }
}
