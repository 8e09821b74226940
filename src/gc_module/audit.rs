//! The audit hook. It is called before the module answers a question about the heap.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::event::{During, Hook};
use crate::base::hooks::Hooks;
use crate::base::settings_lock::Setting;

type Listener = Hook<dyn Fn(&str) + Send + Sync>;

/// The audit hook, if one is set.
#[derive(Default)]
pub(super) struct Audit(Setting<Option<Listener>>);

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").finish_non_exhaustive()
    }
}

impl Audit {
    pub(super) fn set(&self, hook: Option<Listener>) {
        // The old hook is dropped without the lock.
        drop(self.0.with(|place| std::mem::replace(place, hook)));
    }

    /// Calls the hook without the lock.
    pub(super) fn call(&self, hooks: &Hooks, what: &str) {
        let hook = self.0.with(|place| place.clone());
        if let Some(hook) = hook
            && let Err(message) = hook.call(|hook| hook(what))
        {
            hooks.unraisable(During::AuditHook, "", message);
        }
    }
}
