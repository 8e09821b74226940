//! The calls with which a program observes collections: callbacks, debugging lines, the audit hook.

#![forbid(unsafe_code)]

use crate::base::error::{Code, Fault};
use crate::base::event::Hook;
use crate::base::fallible::{self, NoMemory};
use crate::base::text::words;
use crate::gc_module::callbacks::{CallbackInfo, CallbackPhase};
use crate::gc_module::debug::{DEBUG_LEAK, DEBUG_STATS};
use crate::gc_module::services::Services;

impl Services {
    /// Registers a callback for the start and the end of each collection except the heap's last. It
    /// is called on the collecting thread, while the world runs. If the heap started the
    /// collection, the end may be called on another thread. Returns the id for
    /// [`remove_callback`](Self::remove_callback). If a callback adds or removes a callback, that
    /// takes effect from the next phase on. Panics go to the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    ///
    /// A callback that holds the heap or its services keeps the heap open forever.
    pub fn add_callback(
        &self,
        f: impl Fn(CallbackPhase, &CallbackInfo) + Send + Sync + 'static,
    ) -> u64 {
        self.try_add_callback(f).unwrap_or_else(NoMemory::abort_process)
    }

    /// Like [`add_callback`](Self::add_callback), but returns an error when memory is refused. Then
    /// nothing has changed.
    #[doc(hidden)]
    pub fn try_add_callback(
        &self,
        f: impl Fn(CallbackPhase, &CallbackInfo) + Send + Sync + 'static,
    ) -> Result<u64, NoMemory> {
        self.state().callbacks.add(Hook::new(fallible::arc(f)?))
    }

    /// Removes a callback. `false`: no callback has this id.
    pub fn remove_callback(&self, id: u64) -> bool {
        self.state().callbacks.remove(id)
    }

    /// Sets the debugging flags: a combination of the `DEBUG_` constants.
    ///
    /// # Errors
    ///
    /// [`Code::BadDebugFlags`] for other bits. Then nothing has changed.
    pub fn set_debug(&self, flags: u32) -> Result<(), Fault> {
        if flags & !(DEBUG_STATS | DEBUG_LEAK) != 0 {
            let text =
                words!("there are no debugging flags {:#x}", flags & !(DEBUG_STATS | DEBUG_LEAK));
            return Err(Fault::new(Code::BadDebugFlags, "set_debug").because(text));
        }
        self.state().debug.set_flags(flags);
        Ok(())
    }

    /// The debugging flags.
    pub fn debug(&self) -> u32 {
        self.state().debug.flags()
    }

    /// Sends debugging lines to `sink` instead of stderr. Panics go to the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    pub fn set_debug_sink(&self, sink: impl Fn(&str) + Send + Sync + 'static) {
        self.try_set_debug_sink(sink).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`set_debug_sink`](Self::set_debug_sink), but returns an error when memory is refused.
    /// Then nothing has changed.
    #[doc(hidden)]
    pub fn try_set_debug_sink(
        &self,
        sink: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.state().debug.set_sink(Some(Hook::new(fallible::arc(sink)?)));
        Ok(())
    }

    /// Sends debugging lines to stderr again.
    pub fn reset_debug_sink(&self) {
        self.state().debug.set_sink(None);
    }

    /// Sets a hook that is called before `gc.get_objects`, `gc.get_referrers` and
    /// `gc.get_referents`, with these names. The calling thread calls it. Panics go to the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    pub fn set_audit_hook(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        self.try_set_audit_hook(hook).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`set_audit_hook`](Self::set_audit_hook), but returns an error when memory is refused.
    /// Then nothing has changed.
    #[doc(hidden)]
    pub fn try_set_audit_hook(
        &self,
        hook: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.state().audit.set(Some(Hook::new(fallible::arc(hook)?)));
        Ok(())
    }

    /// Removes the audit hook.
    pub fn remove_audit_hook(&self) {
        self.state().audit.set(None);
    }
}
