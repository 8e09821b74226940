//! Floor 0: who is told of collections by the services: progress callbacks, debugging lines, the audit hook; and
//! the records of what collections did.
//!
//! All of it is empty until somebody asks for it: then a collection costs a few looks at empty lists, and everything
//! else nothing.
//!
//! # Who may touch what
//!
//! | data | who, when |
//! |---|---|
//! | callbacks, sink, audit hook | anybody replaces them, under their locks; whoever calls one has cloned it out before, so nothing is called with a lock held |
//! | `debug`, `used`, `leaks` | anybody; relaxed, each is looked at by itself |
//! | records | written by the collecting thread at the end of a collection, under the lock |

use std::fmt;
use std::time::Duration;

use crate::base::event::{self, CollectionReport, During, Hook};
use crate::base::fallible::{self, NoMemory};
use crate::base::hooks::Hooks;
use crate::base::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// Debugging: a line at the start and one at the end of each collection.
pub const DEBUG_STATS: u32 = 1;
/// Debugging: a line for each object that is about to be cleared.
pub const DEBUG_COLLECTABLE: u32 = 2;
/// Debugging: a line for each object that must not be cleared.
pub const DEBUG_UNCOLLECTABLE: u32 = 4;
/// Debugging: unreachable objects go to the garbage list, whole, instead of being cleared.
pub const DEBUG_SAVEALL: u32 = 32;
/// Debugging a program that leaks: the three before.
pub const DEBUG_LEAK: u32 = DEBUG_COLLECTABLE | DEBUG_UNCOLLECTABLE | DEBUG_SAVEALL;

/// When a progress callback is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallbackPhase {
    /// Before a collection.
    Start,
    /// After it.
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

/// What a progress callback is told. At the start all figures but the generation are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallbackInfo {
    /// 0 or 1: a young collection, 2: a full one.
    pub generation: usize,
    /// Objects that were destroyed.
    pub collected: usize,
    /// Unreachable objects that were not.
    pub uncollectable: usize,
    /// Objects that were considered.
    pub candidates: usize,
    /// How long it took.
    pub duration: Duration,
    /// Of this, how long the world was stopped.
    pub stopped: Duration,
}

/// What collections of one generation did since the heap was made: the sums of their reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenerationStats {
    /// How many there were.
    pub collections: usize,
    /// Objects that they destroyed.
    pub collected: usize,
    /// Unreachable objects that they did not. An object that several collections found counts several times.
    pub uncollectable: usize,
    /// Objects that they considered.
    pub candidates: usize,
    /// From first step to last.
    pub duration: Duration,
    /// Of this, how long the world was stopped.
    pub stopped: Duration,
}

type Callback = Hook<dyn Fn(CallbackPhase, &CallbackInfo) + Send + Sync>;
type Line = Hook<dyn Fn(&str) + Send + Sync>;

/// See the [module's page](self).
#[derive(Default)]
pub(crate) struct Notices {
    callbacks: Mutex<Callbacks>,
    debug: AtomicU32,
    sink: Mutex<Option<Line>>,
    audit: Mutex<Option<Line>>,
    records: Mutex<Records>,
    /// Somebody has asked for the services.
    used: AtomicBool,
    /// The end of the heap is not to tell what is left.
    leaks_untold: AtomicBool,
}

#[derive(Default)]
struct Callbacks {
    list: Vec<(u64, Callback)>,
    last: u64,
}

#[derive(Default)]
struct Records {
    generations: [GenerationStats; 3],
    /// Young collections since the last full one.
    young: usize,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").field("debug", &self.debug).finish_non_exhaustive()
    }
}

impl Notices {
    /// Says that the services are in use.
    pub(crate) fn use_them(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the end of the heap tells what is left in it.
    pub(crate) fn tells_leaks(&self) -> bool {
        self.used.load(Ordering::Relaxed) && !self.leaks_untold.load(Ordering::Relaxed)
    }

    pub(crate) fn tell_leaks(&self, tell: bool) {
        self.leaks_untold.store(!tell, Ordering::Relaxed);
    }

    pub(crate) fn add_callback(&self, callback: Callback) -> Result<u64, NoMemory> {
        let mut callbacks = self.callbacks.lock();
        if callbacks.list.try_reserve(1).is_err() {
            drop(callbacks);
            // `callback` is dropped without the lock.
            return Err(NoMemory);
        }
        callbacks.last += 1;
        let id = callbacks.last;
        callbacks.list.push((id, callback));
        Ok(id)
    }

    pub(crate) fn remove_callback(&self, id: u64) -> bool {
        let removed = {
            let list = &mut self.callbacks.lock().list;
            list.iter().position(|(other, _)| *other == id).map(|at| list.remove(at))
        };
        // Dropped without the lock: what it has captured is the user's.
        removed.is_some()
    }

    pub(crate) fn debug(&self) -> u32 {
        self.debug.load(Ordering::Relaxed)
    }

    pub(crate) fn set_debug(&self, flags: u32) {
        self.debug.store(flags, Ordering::Relaxed);
    }

    pub(crate) fn set_sink(&self, sink: Option<Line>) {
        let old = std::mem::replace(&mut *self.sink.lock(), sink);
        drop(old);
    }

    pub(crate) fn set_audit(&self, audit: Option<Line>) {
        let old = std::mem::replace(&mut *self.audit.lock(), audit);
        drop(old);
    }

    /// Announces a question about the heap.
    pub(crate) fn audit(&self, hooks: &Hooks, what: &str) {
        let hook = self.audit.lock().clone();
        if let Some(hook) = hook
            && let Err(message) = hook.call(|hook| hook(what))
        {
            hooks.unraisable(During::AuditHook, "", message);
        }
    }

    /// Writes a line for debugging: to the sink, else to stderr.
    pub(crate) fn line(&self, hooks: &Hooks, line: fmt::Arguments<'_>) {
        let sink = self.sink.lock().clone();
        match sink {
            Some(sink) => {
                let line = crate::base::text::in_words(line);
                if let Err(message) = sink.call(|sink| sink(&line)) {
                    hooks.unraisable(During::DebugSink, "", message);
                }
            }
            None => event::line(line),
        }
    }

    /// A collection begins. `quiet`: the callbacks are not to know.
    pub(crate) fn starts(&self, hooks: &Hooks, generation: usize, quiet: bool) {
        if !quiet {
            self.call(
                hooks,
                CallbackPhase::Start,
                &CallbackInfo { generation, ..CallbackInfo::default() },
            );
        }
        if self.debug() & DEBUG_STATS != 0 {
            self.line(hooks, format_args!("gc: a collection of generation {generation} begins"));
        }
    }

    /// A collection that was not prevented is to be recorded.
    pub(crate) fn record(&self, report: &CollectionReport) {
        let mut records = self.records.lock();
        records.young =
            if report.kind == event::CollectionKind::Full { 0 } else { records.young + 1 };
        if let Some(record) = records.generations.get_mut(report.generation) {
            record.collections += 1;
            record.collected += report.collected;
            record.uncollectable += report.uncollectable;
            record.candidates += report.candidates;
            record.duration += report.duration;
            record.stopped += report.stops.iter().sum::<Duration>();
        }
    }

    /// A collection is over.
    pub(crate) fn stops(&self, hooks: &Hooks, report: &CollectionReport, quiet: bool) {
        if self.debug() & DEBUG_STATS != 0 {
            self.line(
                hooks,
                format_args!(
                    "gc: the collection of generation {} ends: {} unreachable, {} collected, {} uncollectable, \
                     {:.6} s elapsed",
                    report.generation,
                    report.unreachable,
                    report.collected,
                    report.uncollectable,
                    report.duration.as_secs_f64(),
                ),
            );
        }
        if !quiet {
            let info = CallbackInfo {
                generation: report.generation,
                collected: report.collected,
                uncollectable: report.uncollectable,
                candidates: report.candidates,
                duration: report.duration,
                stopped: report.stops.iter().sum(),
            };
            self.call(hooks, CallbackPhase::Stop, &info);
        }
    }

    /// Calls those that are registered now.
    fn call(&self, hooks: &Hooks, phase: CallbackPhase, info: &CallbackInfo) {
        let call = |callback: Callback| {
            if let Err(message) = callback.call(|callback| callback(phase, info)) {
                hooks.unraisable(During::CollectionCallback, "", message);
            }
        };
        let (list, last) = {
            let callbacks = self.callbacks.lock();
            if callbacks.list.is_empty() {
                return;
            }
            (fallible::collect(callbacks.list.iter().map(|(_, f)| f.clone())), callbacks.last)
        };
        if let Ok(list) = list {
            return list.into_iter().for_each(call);
        }
        // Without memory for a list, one after the other, by their ids, which grow: one that is removed meanwhile is left out.
        let mut before = 0;
        loop {
            let callbacks = self.callbacks.lock();
            let next = callbacks.list.iter().find(|(id, _)| (before + 1..=last).contains(id));
            let Some((id, callback)) = next.map(|(id, callback)| (*id, callback.clone())) else {
                return;
            };
            drop(callbacks);
            before = id;
            call(callback);
        }
    }

    /// The three records, and how many young collections there were since the last full one.
    pub(crate) fn records(&self) -> ([GenerationStats; 3], usize) {
        let records = self.records.lock();
        (records.generations, records.young)
    }
}
