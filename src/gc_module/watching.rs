//! How a program observes collections: callbacks, debugging lines, the audit hook.
//!
//! All of these call code of the program, which may panic, or change the settings by which it was
//! called. So each is called without the lock of its setting, and its panic goes to the hook of
//! [`Heap::on_unraisable`](crate::Heap::on_unraisable).

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use crate::base::fallible::{self, NoMemory, words};
use crate::base::outside::{self, Hook};
use crate::base::settings_lock::Setting;
use crate::base::sync::{AtomicU32, Ordering};
use crate::gc_module::services::Services;
use crate::report::error::{Code, Fault};
use crate::report::facts::During;
use crate::report::hooks::Hooks;

/// The time at which a progress callback is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallbackPhase {
    /// Before a collection.
    Start,
    /// After a collection.
    Stop,
}

impl CallbackPhase {
    /// `start` or `stop`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
        }
    }
}

/// The figures for a progress callback, all 0 at the start of a collection except the generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallbackInfo {
    /// 0 or 1: a young collection. 2: a full one.
    pub generation: usize,
    /// Objects that were destroyed.
    pub collected: usize,
    /// Unreachable objects that were not destroyed.
    pub uncollectable: usize,
    /// Objects that the collection decided about.
    pub candidates: usize,
    /// The duration of the collection.
    pub duration: Duration,
    /// The part of `duration` in which the world was stopped.
    pub stopped: Duration,
    /// Bytes outside the heap that the destroyed objects have given up.
    pub external_bytes: usize,
}

type Callback = Hook<dyn Fn(CallbackPhase, &CallbackInfo) + Send + Sync>;

#[derive(Debug, Default)]
pub(super) struct Callbacks(Setting<List>);

#[derive(Debug, Default)]
struct List {
    list: Vec<(u64, Callback)>,
    last: u64,
}

impl Callbacks {
    pub(super) fn add(&self, callback: Callback) -> Result<u64, NoMemory> {
        let mut callback = Some(callback);
        // Taken only at the end, so that after an error the callback is dropped without the lock.
        self.0.with(|callbacks| {
            callbacks.list.try_reserve(1)?;
            callbacks.last += 1;
            let id = callbacks.last;
            callbacks.list.extend(callback.take().map(|callback| (id, callback)));
            Ok(id)
        })
    }

    pub(super) fn remove(&self, id: u64) -> bool {
        let removed = self.0.with(|List { list, .. }| {
            list.iter().position(|(other, _)| *other == id).map(|at| list.remove(at))
        });
        // Dropped without the lock, because the callback has captured data of the user.
        removed.is_some()
    }

    /// Calls the callbacks that are registered now, each without the lock.
    pub(super) fn call(&self, hooks: &Hooks, phase: CallbackPhase, info: &CallbackInfo) {
        let call = |callback: Callback| {
            if let Err(message) = callback.call(|callback| callback(phase, info)) {
                hooks.unraisable(During::CollectionCallback, "", message);
            }
        };
        let (list, last) = self.0.with(|callbacks| {
            (fallible::collect(callbacks.list.iter().map(|(_, f)| f.clone())), callbacks.last)
        });
        if let Ok(list) = list {
            return list.into_iter().for_each(call);
        }
        // There is no memory for a list, so the callbacks are fetched one by one in the order of
        // their ids. A callback that is removed meanwhile is not called.
        let mut before = 0;
        loop {
            let next = self.0.with(|callbacks| {
                let next = callbacks.list.iter().find(|(id, _)| (before + 1..=last).contains(id));
                next.map(|(id, callback)| (*id, callback.clone()))
            });
            let Some((id, callback)) = next else { return };
            before = id;
            call(callback);
        }
    }
}

/// A line at the start and one at the end of each collection.
pub const DEBUG_STATS: u32 = 1;
/// A line for each object that is about to be cleared.
pub const DEBUG_COLLECTABLE: u32 = 2;
/// A line for each object that must not be cleared.
pub const DEBUG_UNCOLLECTABLE: u32 = 4;
/// Unreachable objects are not cleared, but saved in the garbage list.
pub const DEBUG_SAVEALL: u32 = 32;
/// The flags for a program that leaks: the three flags above.
pub const DEBUG_LEAK: u32 = DEBUG_COLLECTABLE | DEBUG_UNCOLLECTABLE | DEBUG_SAVEALL;

/// Receives debugging lines, or the names of audited calls.
pub(super) type Listener = Hook<dyn Fn(&str) + Send + Sync>;

/// Replaces a setting, and drops the old value without the lock, because it may hold user data.
pub(super) fn replace<T>(setting: &Setting<Option<T>>, new: Option<T>) {
    drop(setting.with(|place| std::mem::replace(place, new)));
}

/// The debugging flags, and the sink for the lines.
#[derive(Debug, Default)]
pub(super) struct DebugLines {
    /// Relaxed: independent of other data.
    flags: AtomicU32,
    sink: Setting<Option<Listener>>,
}

impl DebugLines {
    pub(super) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    pub(super) fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Writes a debugging line to the sink, or to stderr if there is no sink.
    pub(super) fn write(&self, hooks: &Hooks, line: fmt::Arguments<'_>) {
        let sink = self.sink.with(|place| place.clone());
        match sink {
            Some(sink) => {
                let line = fallible::in_words(line);
                if let Err(message) = sink.call(|sink| sink(&line)) {
                    hooks.unraisable(During::DebugSink, "", message);
                }
            }
            None => outside::line(line),
        }
    }
}

impl Services {
    /// Registers a callback for the start and the end of each collection except the heap's last,
    /// and returns the id for [`remove_callback`](Self::remove_callback). The callback is called on
    /// the collecting thread, while the world runs. If the heap started the collection, another
    /// thread may finish it, and calls the callback for the end. A callback that adds or removes a
    /// callback changes the calls from the next phase on. Panics go to the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    ///
    /// A callback that holds the heap or its services keeps the heap open forever.
    pub fn add_callback(
        &self,
        f: impl Fn(CallbackPhase, &CallbackInfo) + Send + Sync + 'static,
    ) -> u64 {
        self.try_add_callback(f).unwrap_or_else(NoMemory::abort_process)
    }

    /// Like [`add_callback`](Self::add_callback), but returns an error when memory is refused, in
    /// which case nothing has changed.
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
    /// [`Code::BadDebugFlags`] for other bits, in which case nothing has changed.
    pub fn set_debug(&self, flags: u32) -> Result<(), Fault> {
        let unknown = flags & !(DEBUG_STATS | DEBUG_LEAK);
        if unknown != 0 {
            let text = words!("there are no debugging flags {unknown:#x}");
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

    /// Like [`set_debug_sink`](Self::set_debug_sink), but returns an error when memory is refused,
    /// in which case nothing has changed.
    #[doc(hidden)]
    pub fn try_set_debug_sink(
        &self,
        sink: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        replace(&self.state().debug.sink, Some(Hook::new(fallible::arc(sink)?)));
        Ok(())
    }

    /// Sends debugging lines to stderr again.
    pub fn reset_debug_sink(&self) {
        replace(&self.state().debug.sink, None);
    }

    /// Sets a hook that the calling thread calls before `gc.get_objects`, `gc.get_referrers` and
    /// `gc.get_referents`, with these names. Panics go to the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    pub fn set_audit_hook(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        self.try_set_audit_hook(hook).unwrap_or_else(NoMemory::abort_process);
    }

    /// Like [`set_audit_hook`](Self::set_audit_hook), but returns an error when memory is refused,
    /// in which case nothing has changed.
    #[doc(hidden)]
    pub fn try_set_audit_hook(
        &self,
        hook: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        replace(&self.state().audit, Some(Hook::new(fallible::arc(hook)?)));
        Ok(())
    }

    /// Removes the audit hook.
    pub fn remove_audit_hook(&self) {
        replace(&self.state().audit, None);
    }
}
