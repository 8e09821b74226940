//! How a program watches collections: callbacks, debugging lines, the audit hook.

use crate::base::error::{Code, Fault};
use crate::base::event::Hook;
use crate::base::fallible::{self, NoMemory};
use crate::base::text::words;
use crate::gc_module::callbacks::{CallbackInfo, CallbackPhase};
use crate::gc_module::debug::{DEBUG_LEAK, DEBUG_STATS};
use crate::gc_module::services::Services;

impl Services {
    /// Registers a callback that is called before and after each collection but the heap's last, on the collecting thread, the world
    /// running; returns the id for [`remove_callback`](Self::remove_callback). One that is added or removed by a callback is so from
    /// the next phase on. Panics go to the hook of [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    ///
    /// A callback that holds the heap, or its services, keeps it open for ever.
    pub fn add_callback(
        &self,
        f: impl Fn(CallbackPhase, &CallbackInfo) + Send + Sync + 'static,
    ) -> u64 {
        self.try_add_callback(f).unwrap_or_else(NoMemory::abort_process)
    }

    /// As [`add_callback`](Self::add_callback), where memory may be refused: nothing has changed then.
    #[doc(hidden)]
    pub fn try_add_callback(
        &self,
        f: impl Fn(CallbackPhase, &CallbackInfo) + Send + Sync + 'static,
    ) -> Result<u64, NoMemory> {
        self.state().callbacks.add(Hook::new(fallible::arc(f)?))
    }

    /// Removes a callback; `false`: there is none of this id.
    pub fn remove_callback(&self, id: u64) -> bool {
        self.state().callbacks.remove(id)
    }

    /// Sets the debugging flags, an or of the `DEBUG_` constants.
    ///
    /// # Errors
    ///
    /// [`Code::BadDebugFlags`] for other bits; nothing has changed.
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

    /// Sends debugging lines there instead of to stderr. Panics go to the hook of [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    pub fn set_debug_sink(&self, sink: impl Fn(&str) + Send + Sync + 'static) {
        self.try_set_debug_sink(sink).unwrap_or_else(NoMemory::abort_process);
    }

    /// As [`set_debug_sink`](Self::set_debug_sink), where memory may be refused: nothing has changed then.
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

    /// Sets a hook that is told of questions about the heap before they are answered: `gc.get_objects`,
    /// `gc.get_referrers`, `gc.get_referents`. It is called by the thread that asks; panics go to the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    pub fn set_audit_hook(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        self.try_set_audit_hook(hook).unwrap_or_else(NoMemory::abort_process);
    }

    /// As [`set_audit_hook`](Self::set_audit_hook), where memory may be refused: nothing has changed then.
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
