//! A program must learn of collections, misuse and failures that no caller receives, so it
//! registers callbacks. They run without a lock, because a callback may register others.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use crate::base::outside::{Hook, line};
use crate::base::settings_lock::{Setting, SettingsHold};
use crate::report::error::{Code, Fault};
use crate::report::event;
use crate::report::facts::{CollectionEvent, During, Unraisable};

type CollectionHook = Hook<dyn Fn(&CollectionEvent<'_>) + Send + Sync>;
type MisuseHook = Hook<dyn Fn(&Fault) + Send + Sync>;
type UnraisableHook = Hook<dyn Fn(&Unraisable) + Send + Sync>;

/// Each callback is cloned before it is called, so that no lock is held meanwhile.
#[derive(Default)]
pub(crate) struct Hooks {
    collection: Setting<Vec<CollectionHook>>,
    unraisable: Setting<Option<UnraisableHook>>,
    misuse: Setting<Misuse>,
    guards: OnceLock<CallGuards>,
}

/// The functions that a runtime with an error indicator needs around the handlers of dynamic types.
/// See [`Heap::set_call_guards`](crate::Heap::set_call_guards).
#[derive(Clone, Copy, Debug)]
pub struct CallGuards {
    /// Called before a handler: saves and clears the indicator.
    pub enter: fn(),
    /// Called after a handler: takes the error that the handler left, as text, and restores the
    /// saved indicator.
    pub leave: fn() -> Option<Cow<'static, str>>,
}

/// Reports of misuse: the hook, and the number of reports of each kind.
#[derive(Default)]
struct Misuse {
    hook: Option<MisuseHook>,
    seen: HashMap<(Code, &'static str), usize>,
}

/// Reports on standard error for each code and type, because further reports say nothing new.
const MISUSE_LINES_PER_TYPE: usize = 5;

impl Hooks {
    pub(crate) fn on_collection(&self, hook: CollectionHook) {
        self.collection.with(|hooks| hooks.push(hook));
    }

    pub(crate) fn on_unraisable(&self, hook: UnraisableHook) {
        let old = self.unraisable.with(|place| place.replace(hook));
        // After the lock, because the drop of its captures may call this function.
        drop(old);
    }

    /// Sets the functions to call around handlers of dynamic types, once.
    pub(crate) fn set_guards(&self, guards: CallGuards) -> Result<(), CallGuards> {
        // Otherwise a second thread would wait in the cell for the first, which a fork's child may
        // lack.
        let _held = SettingsHold::new();
        self.guards.set(guards)
    }

    #[cfg(feature = "cpython")]
    pub(crate) fn guards(&self) -> Option<&CallGuards> {
        self.guards.get()
    }

    pub(crate) fn on_misuse(&self, hook: MisuseHook) {
        let old = self.misuse.with(|misuse| misuse.hook.replace(hook));
        // After the lock, as in `on_unraisable`.
        drop(old);
    }

    /// Reports a mistake in the use of dynamic objects to the hook, or else to standard error, in a
    /// limited number of lines.
    pub(crate) fn misuse(&self, fault: &Fault) {
        event::misuse(fault);
        let (hook, seen) = self.misuse.with(|misuse| {
            let seen = misuse.seen.entry((fault.code, fault.type_name)).or_default();
            *seen += 1;
            (misuse.hook.clone(), *seen)
        });
        match hook {
            // The panic of a hook is not reported.
            Some(hook) => drop(hook.call(|hook| hook(fault))),
            None if seen <= MISUSE_LINES_PER_TYPE => {
                line(format_args!("standstill: misuse: {fault}"))
            }
            None => {}
        }
    }

    pub(crate) fn collection(&self, event: &CollectionEvent<'_>) {
        // One at a time, because a list of them would take memory, and no hook is ever removed.
        let registered = self.collection.with(|hooks| hooks.len());
        for at in 0..registered {
            let Some(hook) = self.collection.with(|hooks| hooks.get(at).cloned()) else { break };
            if let Err(message) = hook.call(|hook| hook(event)) {
                self.unraisable(During::CollectionCallback, "", message);
            }
        }
    }

    /// Reports a failure to the hook, or else to standard error, and always to `tracing`. It never
    /// unwinds.
    pub(crate) fn unraisable(
        &self,
        during: During,
        type_name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) {
        self.unraisable_at(during, type_name, 0, message);
    }

    /// As [`unraisable`](Self::unraisable), for the object at an address.
    pub(crate) fn unraisable_at(
        &self,
        during: During,
        type_name: impl Into<Cow<'static, str>>,
        address: usize,
        message: impl Into<Cow<'static, str>>,
    ) {
        let what =
            Unraisable { during, type_name: type_name.into(), address, message: message.into() };
        event::unraisable(&what);
        let hook = self.unraisable.with(|place| place.clone());
        match hook {
            // The panic of a hook is not reported, because the report would go to that hook.
            Some(hook) => drop(hook.call(|hook| hook(&what))),
            None => line(format_args!("standstill: {what}")),
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}
