//! The callbacks around a collection.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use crate::base::event::{During, Hook};
use crate::base::fallible::{self, NoMemory};
use crate::base::hooks::Hooks;
use crate::base::settings_lock::Setting;

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

/// The figures for a progress callback. At the start of a collection all are 0 except the
/// generation.
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

/// The registered callbacks.
#[derive(Default)]
pub(super) struct Callbacks(Setting<List>);

#[derive(Default)]
struct List {
    list: Vec<(u64, Callback)>,
    last: u64,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

impl Callbacks {
    pub(super) fn add(&self, callback: Callback) -> Result<u64, NoMemory> {
        let mut callback = Some(callback);
        // After an error the callback is dropped without the lock.
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
        // Dropped without the lock: the callback has captured data of the user.
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
        // There is no memory for a list. The callbacks are called one after the other in the order
        // of their ids. A callback that is removed meanwhile is not called.
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
