//! The thresholds: when a collection is due.

use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::event::Hook;
use crate::base::text::words;
use crate::gc_module::Services;
use crate::heap::policy::Thresholds;

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
            let old = policy.thresholds.unwrap_or_default();
            let new = Thresholds { t0, t1: t1.unwrap_or(old.t1), t2: t2.unwrap_or(old.t2) };
            policy.thresholds = Some(new);
        });
        Ok(())
    }

    /// The thresholds. In a heap that was given none, by [`set_threshold`](Self::set_threshold) or
    /// [`Pacing::with_thresholds`](crate::Pacing::with_thresholds), those that would be the default; its other
    /// [`Pacing`](crate::Pacing) decides there.
    pub fn threshold(&self) -> [i32; 3] {
        let Thresholds { t0, t1, t2 } = self.pace().policy().thresholds.unwrap_or_default();
        [t0, t1, t2].map(|number| i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// Makes memory a condition of collections by [`Thresholds`]: one that is due is skipped if memory has not
    /// grown by a tenth since the last, and no more than 40 times `t0` objects are new since. [`process_memory`] is such
    /// a source. Without one (the default) there is no such condition.
    ///
    /// The source is called when a thread has run out of cells and a collection is due, and after collections. It must use no heap. Where it
    /// cannot tell, the condition holds.
    pub fn set_memory_source(&self, source: impl Fn() -> Option<usize> + Send + Sync + 'static) {
        self.pace().set_memory(Some(Hook::new(Arc::new(source))));
    }

    /// Ends the condition of memory.
    pub fn remove_memory_source(&self) {
        self.pace().set_memory(None);
    }
}

/// How much memory the process uses now, in bytes, what was swapped out included; `None`: the system does not tell.
pub fn process_memory() -> Option<usize> {
    memory_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// What [`process_memory`] is, by the system's page on a process.
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
