//! The audit hook. It is called before the module answers a question about the heap.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::event::{During, Hook};
use crate::base::hooks::Hooks;
use crate::base::sync::Mutex;

type Listener = Hook<dyn Fn(&str) + Send + Sync>;

/// The audit hook, if one is set.
#[derive(Default)]
pub(super) struct Audit(Mutex<Option<Listener>>);

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").finish_non_exhaustive()
    }
}

impl Audit {
    pub(super) fn set(&self, hook: Option<Listener>) {
        // The statement releases the lock. The old value is dropped after that.
        let _old = std::mem::replace(&mut *self.0.lock(), hook);
    }

    /// Calls the hook without the lock.
    pub(super) fn call(&self, hooks: &Hooks, what: &str) {
        let hook = self.0.lock().clone();
        if let Some(hook) = hook
            && let Err(message) = hook.call(|hook| hook(what))
        {
            hooks.unraisable(During::AuditHook, "", message);
        }
    }
}
