//! Floor 0: what can be seen from outside: reports, callbacks, and the only file that names `tracing`.
//!
//! Every phase of a collection is entered through [`phase`], so a phase that happens and a span that
//! says so are one call. `docs/tracing.md` is the table of everything that is emitted. With no
//! subscriber a span costs one relaxed load of `tracing`'s global level, a few dozen times per
//! collection; allocation, counting and the safepoint poll emit nothing at all.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Code, Fault};
use crate::sync::Mutex;

/// What is looked at in a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectionKind {
    /// Only objects that were allocated, or tracked, since the last collection, or [promotion](crate::HeapStats::promotions).
    Young,
    /// Every tracked object that is not frozen.
    Full,
}

impl CollectionKind {
    fn name(self) -> &'static str {
        match self {
            Self::Young => "young",
            Self::Full => "full",
        }
    }
}

/// The facts about one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectionReport {
    /// What was looked at.
    pub kind: CollectionKind,
    /// The number it was asked for by, in the terms of [`services`](crate::services): 0 or 1 for a young collection, 2
    /// for a full one.
    pub generation: usize,
    /// Why the collection gave up, if it did: nothing was cleared then.
    pub abandoned: Option<Cow<'static, str>>,
    /// Tracked objects in the pages that were looked at, frozen ones not counted.
    pub tracked: usize,
    /// Objects whose references were counted.
    pub candidates: usize,
    /// Of the candidates, how many the roots named with [`Heap::known_root`](crate::Heap::known_root) were found to
    /// reach: these were looked at once instead of twice.
    pub known_alive: usize,
    /// Candidates that nothing outside refers to, directly or through others.
    pub unreachable: usize,
    /// Finalizers that ran.
    pub finalized: usize,
    /// Unreachable objects that finalizers or callbacks made reachable again.
    pub resurrected: usize,
    /// Unreachable objects that were destroyed.
    pub collected: usize,
    /// Unreachable objects that are still there after everything was cleared: no field of their cycle
    /// can be emptied. They stay tracked, and the next full collection tries again. Those that were not to be cleared,
    /// because of a legacy finalizer or for debugging, count too.
    pub uncollectable: usize,
    /// Objects whose type visited more references than exist: kept, whatever they are. A traversal
    /// that does so is wrong.
    pub overvisited: usize,
    /// How long the world was stopped, each time: one stop where one was enough, else two.
    pub stops: Vec<Duration>,
    /// From the request to the last thread's parking, the longer of the two.
    pub time_to_stop: Duration,
    /// From the first step to the last, stops and finalizers included; of a collection that the heap started, also what the
    /// program did while its garbage was cleared in pieces.
    pub duration: Duration,
    /// Threads that were allowed to count and mark, the collecting one included; 1: that one alone. Fewer
    /// have worked if the collection was over before the others could begin.
    pub workers: usize,
}

impl CollectionReport {
    pub(crate) fn new(kind: CollectionKind) -> Self {
        Self {
            kind,
            generation: match kind {
                CollectionKind::Young => 0,
                CollectionKind::Full => 2,
            },
            abandoned: None,
            tracked: 0,
            candidates: 0,
            known_alive: 0,
            unreachable: 0,
            finalized: 0,
            resurrected: 0,
            collected: 0,
            uncollectable: 0,
            overvisited: 0,
            stops: Vec::new(),
            time_to_stop: Duration::ZERO,
            duration: Duration::ZERO,
            workers: 1,
        }
    }
}

/// What a callback registered with [`Heap::on_collection`](crate::Heap::on_collection) is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CollectionEvent<'a> {
    /// A collection begins; the world is still running.
    Start(CollectionKind),
    /// A collection is over; the world is running. Of one that the heap started itself another thread may tell this than told of
    /// the start.
    Stop(&'a CollectionReport),
}

impl<'a> CollectionEvent<'a> {
    /// What is, or was, looked at.
    pub fn kind(&self) -> CollectionKind {
        match self {
            Self::Start(kind) => *kind,
            Self::Stop(report) => report.kind,
        }
    }

    /// The facts, once the collection is over.
    pub fn report(&self) -> Option<&'a CollectionReport> {
        match self {
            Self::Start(_) => None,
            Self::Stop(report) => Some(report),
        }
    }
}

/// Where user code was running when it failed in a way that no caller can be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum During {
    /// A traversal: the collection is abandoned.
    Traverse,
    /// A finalizer.
    Finalize,
    /// A weak callback.
    WeakCallback,
    /// A clear handler.
    Clear,
    /// A destructor.
    Drop,
    /// A callback of [`Heap::on_collection`](crate::Heap::on_collection), or of
    /// [`Services::add_callback`](crate::services::Services::add_callback).
    CollectionCallback,
    /// The sink of debugging lines.
    DebugSink,
    /// The audit hook.
    AuditHook,
    /// A collection that was asked for by a call that gives no errors, and could not be.
    Collect,
    /// The end of a heap: what is left there.
    Shutdown,
}

/// A failure that no caller could be told of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unraisable {
    /// Where it happened.
    pub during: During,
    /// The type of the object concerned; empty where there is none.
    pub type_name: &'static str,
    /// The address of the object concerned; 0 where there is none, or it is not known.
    pub address: usize,
    /// The panic's message, or the reason for an abandoned collection.
    pub message: String,
}

impl fmt::Display for Unraisable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ignored failure in {:?} of {}: {}", self.during, self.type_name, self.message)
    }
}

/// The text of a caught panic. The payload is dropped here, where a panic of its own destructor, which is user
/// code too, does no harm.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    if let Err(again) = guarded(|| drop(payload)) {
        // Somebody means it. Leaked rather than dropped: it could go on for ever.
        std::mem::forget(again);
    }
    message
}

type CollectionHook = Arc<dyn Fn(&CollectionEvent<'_>) + Send + Sync>;
type MisuseHook = Arc<dyn Fn(&Fault) + Send + Sync>;
type UnraisableHook = Arc<dyn Fn(&Unraisable) + Send + Sync>;

/// A heap's callbacks. They are cloned out before they are called, so a callback may register others.
#[derive(Default)]
pub(crate) struct Hooks {
    collection: Mutex<Vec<CollectionHook>>,
    unraisable: Mutex<Option<UnraisableHook>>,
    misuse: Mutex<Misuse>,
    /// What is done around handlers of dynamic types.
    pub(crate) guards: OnceLock<CallGuards>,
}

/// What a runtime with an error indicator does around the handlers of dynamic types. See
/// [`Heap::set_call_guards`](crate::Heap::set_call_guards).
#[derive(Clone, Copy, Debug)]
pub struct CallGuards {
    /// Before: puts aside what stands in the indicator.
    pub enter: fn(),
    /// After: takes what the handler has left there, as text, and puts back what was put aside.
    pub leave: fn() -> Option<String>,
}

/// Reports of misuse: the hook, and how many there were of each kind.
#[derive(Default)]
struct Misuse {
    hook: Option<MisuseHook>,
    seen: HashMap<(Code, &'static str), usize>,
}

/// Reports on stderr of one code and type: more say nothing new.
const MISUSE_LINES: usize = 5;

impl Hooks {
    pub(crate) fn on_collection(&self, hook: CollectionHook) {
        self.collection.lock().push(hook);
    }

    pub(crate) fn on_unraisable(&self, hook: UnraisableHook) {
        *self.unraisable.lock() = Some(hook);
    }

    pub(crate) fn on_misuse(&self, hook: MisuseHook) {
        self.misuse.lock().hook = Some(hook);
    }

    /// Tells of a mistake in the use of dynamic objects: to the hook, else a limited number of times to stderr.
    pub(crate) fn misuse(&self, fault: &Fault) {
        tracing::warn!(target: "standstill", code = fault.code.name(), type_name = fault.type_name, message_text = %fault.text, "misuse");
        let hook = {
            let mut misuse = self.misuse.lock();
            let seen = misuse.seen.entry((fault.code, fault.type_name)).or_default();
            *seen += 1;
            let seen = *seen;
            match misuse.hook.clone() {
                Some(hook) => hook,
                None if seen <= MISUSE_LINES => {
                    eprintln!("standstill: misuse: {fault}");
                    return;
                }
                None => return,
            }
        };
        // A hook that panics has had its chance.
        swallow(guarded(|| hook(fault)));
    }

    pub(crate) fn collection(&self, event: &CollectionEvent<'_>) {
        // One at a time, as a list of them would take memory. None is ever taken out.
        let registered = self.collection.lock().len();
        for at in 0..registered {
            let Some(hook) = self.collection.lock().get(at).cloned() else { break };
            if let Err(payload) = guarded(|| hook(event)) {
                self.unraisable(During::CollectionCallback, "", panic_message(payload));
            }
        }
    }

    /// Tells of a failure: to the hook, else to stderr; to `tracing` in any case. Never unwinds.
    pub(crate) fn unraisable(&self, during: During, type_name: &'static str, message: String) {
        self.unraisable_at(during, type_name, 0, message);
    }

    /// As [`unraisable`](Self::unraisable), concerning the object at an address.
    pub(crate) fn unraisable_at(
        &self,
        during: During,
        type_name: &'static str,
        address: usize,
        message: String,
    ) {
        let what = Unraisable { during, type_name, address, message };
        tracing::error!(target: "standstill", during = ?what.during, type_name, message_text = %what.message, "unraisable");
        let hook = self.unraisable.lock().clone();
        match hook {
            Some(hook) => {
                // A hook that panics has had its chance.
                swallow(guarded(|| hook(&what)));
            }
            None => eprintln!("standstill: {what}"),
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// Forgets a panic, and that of its payload's destructor.
fn swallow(result: Result<(), Box<dyn Any + Send>>) {
    if let Err(payload) = result {
        panic_message(payload);
    }
}

/// Runs user code and catches its panic.
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    // Unwind safety: what the closure touches is user data behind the user's own locks, or ours that
    // each caller keeps whole by itself.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
}

/// The span of a collection: entered by each thread that works on it, while it does.
pub(crate) use tracing::Span;

/// The steps of a collection, in their order. The table in `docs/tracing.md` says what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Merge,
    Premark,
    Count,
    Roots,
    Mark,
    Sweep,
    Claim,
    Callbacks,
    Finalize,
    Recheck,
    Clear,
}

/// Enters a phase: a span that closes when the value is dropped.
pub(crate) fn phase(phase: Phase) -> tracing::span::EnteredSpan {
    tracing::debug_span!(target: "standstill::phase", "phase", name = ?phase).entered()
}

/// The span of a whole collection.
pub(crate) fn collection(kind: CollectionKind, heap: &str) -> Span {
    tracing::info_span!(
        target: "standstill",
        "collection",
        heap,
        kind = kind.name(),
        candidates = tracing::field::Empty,
        unreachable = tracing::field::Empty,
        collected = tracing::field::Empty,
    )
}

/// The span of a promotion: open from before the stop to after it.
pub(crate) fn promotion(heap: &str) -> tracing::span::EnteredSpan {
    tracing::debug_span!(target: "standstill", "promotion", heap).entered()
}

/// What was new is old, without having been looked at.
pub(crate) fn promoted(objects: usize, stopped: Duration) {
    tracing::debug!(
        target: "standstill",
        objects,
        stopped_us = stopped.as_micros() as u64,
        "promoted"
    );
}

/// The end of a collection, with its facts.
pub(crate) fn collected(span: &Span, report: &CollectionReport) {
    span.record("candidates", report.candidates);
    span.record("unreachable", report.unreachable);
    span.record("collected", report.collected);
    tracing::info!(
        target: "standstill",
        kind = report.kind.name(),
        tracked = report.tracked,
        candidates = report.candidates,
        known_alive = report.known_alive,
        unreachable = report.unreachable,
        finalized = report.finalized,
        resurrected = report.resurrected,
        collected = report.collected,
        uncollectable = report.uncollectable,
        overvisited = report.overvisited,
        stops = report.stops.len(),
        stopped_us = report.stops.iter().sum::<Duration>().as_micros() as u64,
        time_to_stop_us = report.time_to_stop.as_micros() as u64,
        duration_us = report.duration.as_micros() as u64,
        workers = report.workers,
        abandoned = report.abandoned.as_deref(),
        "collected"
    );
}

/// A type brings its own traverse handler, and leaves the clear handler that its base has out: allowed, and most likely a mistake.
pub(crate) fn no_clear_handler(type_name: &str, base: &str) {
    tracing::info!(target: "standstill", type_name, base, "a type without the clear handler that its base has");
}

/// The world has been stopped.
pub(crate) fn stopped(time_to_stop: Duration) {
    tracing::debug!(target: "standstill", time_to_stop_us = time_to_stop.as_micros() as u64, "stopped");
}

/// The world runs again.
pub(crate) fn resumed(stopped: Duration) {
    tracing::debug!(target: "standstill", stopped_us = stopped.as_micros() as u64, "resumed");
}

/// A stop is slow, and this thread is one of those it waits for.
pub(crate) fn slow_stop(heap: &str, waited: Duration, thread: &str, attached_for: Duration) {
    tracing::warn!(
        target: "standstill",
        heap,
        waited_ms = waited.as_millis() as u64,
        thread,
        attached_ms = attached_for.as_millis() as u64,
        "slow stop"
    );
}

/// The marking pool could not be started: collections stay serial.
pub(crate) fn no_pool(reason: &str) {
    tracing::warn!(target: "standstill", reason, "the marking pool cannot start; collections are serial");
}
