//! Floor 0: what can be seen from outside: reports, callbacks, spans and lines on standard error.
//!
//! # Calling out
//!
//! This file is the only one through which the library speaks to the outside: a `tracing` subscriber, a hook, standard
//! error. All of these are code of somebody else's: they can panic, and they can call the library. Two rules hold for
//! each such call, and for each drop of something that belongs to the outside (a hook, a span, a panic's payload):
//!
//! * *It does not unwind into the library.* Subscribers are called through [`outside`], hooks through [`Hook::call`],
//!   lines are written by [`line`]. Each catches a panic. The panic hook of the process has printed it by then.
//! * *It runs under no lock of the library's.* In debug builds `sync` counts the locks that a thread holds, and each call
//!   out ends the process when there is one ([`must_hold_no_lock`]). Release builds do not count.
//!
//! Types and lints keep other ways closed: [`Span`], [`Entered`] and [`Hook`] call nobody but through here, `ci/floors.sh`
//! refuses the name `tracing` in other files, and `clippy` refuses `eprintln!` and `println!` in the library's packages.
//!
//! A condition under which the process cannot go on ends it by [`abort`], which does not unwind either.
//!
//! # What is emitted
//!
//! Every phase of a collection is entered through [`phase`], so a phase that happens and a span that
//! says so are one call. `docs/tracing.md` is the table of everything that is emitted. With no
//! subscriber a span costs one relaxed load of `tracing`'s global level, a few dozen times per
//! collection; allocation, counting and the safepoint poll emit nothing at all.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::{Dispatch, Id};

use crate::base::error::{Code, Fault};
use crate::base::sync::{Mutex, are_locks_held};

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
    /// The number it was asked for by, in the terms of [`services`](crate::gc_module): 0 or 1 for a young collection, 2
    /// for a full one.
    pub generation: usize,
    /// Why the collection gave up, if it did: nothing was cleared then. Of a collection that could not stop the world, the reason of
    /// that: it names the thread that leaked its mutator.
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
    /// [`Services::add_callback`](crate::gc_module::Services::add_callback).
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
    pub message: Cow<'static, str>,
}

impl fmt::Display for Unraisable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.type_name.is_empty() { "" } else { " of " };
        write!(f, "ignored failure in {:?}{of}{}: {}", self.during, self.type_name, self.message)
    }
}

/// Ends the process in a debug build if this thread holds a lock of the library's. Release builds do not count locks.
#[inline(always)]
pub(crate) fn must_hold_no_lock() {
    if are_locks_held() {
        abort(format_args!(
            "standstill: code of the program is about to run under a lock of the library; that is a fault of the library"
        ));
    }
}

/// Runs code of the program's, and catches its panic.
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    must_hold_no_lock();
    // Unwind safety: what the closure touches is user data behind the user's own locks, or ours that
    // each caller keeps whole by itself.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
}

/// Calls a subscriber, or whoever else listens. A panic there ends with this call: the panic hook has printed it.
fn outside(f: impl FnOnce()) {
    if let Err(payload) = guarded(f) {
        panic_message(payload);
    }
}

/// The text of a caught panic. The payload is dropped here, where a panic of its own destructor, which is user
/// code too, does no harm.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> Cow<'static, str> {
    // Taken out of the payload, since a copy would take memory.
    let payload = match payload.downcast::<String>() {
        Ok(message) => return Cow::Owned(*message),
        Err(payload) => payload,
    };
    let message = payload
        .downcast_ref::<&'static str>()
        .map_or("a panic without a message", |message| message);
    let message = Cow::Borrowed(message);
    if let Err(again) = guarded(|| drop(payload)) {
        // Somebody means it. Leaked rather than dropped: it could go on for ever.
        std::mem::forget(again);
    }
    message
}

/// Writes a line to standard error. If that is closed, or full, the line is lost.
#[doc(hidden)]
pub fn line(text: fmt::Arguments<'_>) {
    outside(|| write_line(text));
}

fn write_line(text: fmt::Arguments<'_>) {
    // Unlike `eprintln!`, which panics when the line cannot be written. There is nowhere to tell that.
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Ends the process, after a line on standard error if one can be written. It never unwinds, whatever that line meets: for
/// threads that must not go on, and whose callers must not either.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn abort(reason: fmt::Arguments<'_>) -> ! {
    // Not by `line`, which comes here when a lock is held.
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write_line(reason)));
    std::mem::forget(written);
    std::process::abort()
}

/// A function of the program's that the library calls: whoever registers one gets it called, and dropped, as the
/// [module's page](self) says.
pub(crate) struct Hook<F: ?Sized>(Option<Arc<F>>);

impl<F: ?Sized> Hook<F> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self(Some(function))
    }

    /// Calls it, by way of `f`.
    ///
    /// # Errors
    ///
    /// The message of its panic.
    pub(crate) fn call<R>(&self, f: impl FnOnce(&F) -> R) -> Result<R, Cow<'static, str>> {
        match &self.0 {
            Some(function) => guarded(|| f(function)).map_err(panic_message),
            // It is taken out when the hook is dropped, and at no other time.
            None => Err("the hook has been dropped".into()),
        }
    }
}

impl<F: ?Sized> Clone for Hook<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: ?Sized> Drop for Hook<F> {
    fn drop(&mut self) {
        let function = self.0.take();
        outside(|| drop(function));
    }
}

impl<F: ?Sized> fmt::Debug for Hook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").finish_non_exhaustive()
    }
}

type CollectionHook = Hook<dyn Fn(&CollectionEvent<'_>) + Send + Sync>;
type MisuseHook = Hook<dyn Fn(&Fault) + Send + Sync>;
type UnraisableHook = Hook<dyn Fn(&Unraisable) + Send + Sync>;

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
    pub leave: fn() -> Option<Cow<'static, str>>,
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
        let old = self.unraisable.lock().replace(hook);
        // Without the lock: what it has captured may come back here when it is dropped.
        drop(old);
    }

    pub(crate) fn on_misuse(&self, hook: MisuseHook) {
        let old = self.misuse.lock().hook.replace(hook);
        // As in `on_unraisable`.
        drop(old);
    }

    /// Tells of a mistake in the use of dynamic objects: to the hook, else a limited number of times to stderr.
    pub(crate) fn misuse(&self, fault: &Fault) {
        outside(|| {
            tracing::warn!(target: "standstill", code = fault.code.name(), type_name = fault.type_name, message_text = %fault.text, "misuse");
        });
        let (hook, seen) = {
            let mut misuse = self.misuse.lock();
            let seen = misuse.seen.entry((fault.code, fault.type_name)).or_default();
            *seen += 1;
            let seen = *seen;
            (misuse.hook.clone(), seen)
        };
        match hook {
            // A hook that panics has had its chance.
            Some(hook) => drop(hook.call(|hook| hook(fault))),
            None if seen <= MISUSE_LINES => line(format_args!("standstill: misuse: {fault}")),
            None => {}
        }
    }

    pub(crate) fn collection(&self, event: &CollectionEvent<'_>) {
        // One at a time, as a list of them would take memory. None is ever taken out.
        let registered = self.collection.lock().len();
        for at in 0..registered {
            let Some(hook) = self.collection.lock().get(at).cloned() else { break };
            if let Err(message) = hook.call(|hook| hook(event)) {
                self.unraisable(During::CollectionCallback, "", message);
            }
        }
    }

    /// Tells of a failure: to the hook, else to stderr; to `tracing` in any case. Never unwinds.
    pub(crate) fn unraisable(
        &self,
        during: During,
        type_name: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) {
        self.unraisable_at(during, type_name, 0, message);
    }

    /// As [`unraisable`](Self::unraisable), concerning the object at an address.
    pub(crate) fn unraisable_at(
        &self,
        during: During,
        type_name: &'static str,
        address: usize,
        message: impl Into<Cow<'static, str>>,
    ) {
        let what = Unraisable { during, type_name, address, message: message.into() };
        outside(|| {
            tracing::error!(target: "standstill", during = ?what.during, type_name, message_text = %what.message, "unraisable");
        });
        let hook = self.unraisable.lock().clone();
        match hook {
            // A hook that panics has had its chance.
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

/// A span: entered by each thread that works on what it stands for, while it does. Nothing, where no subscriber wants it.
///
/// A subscriber that panics when the span is made or entered does not hear of it any more. Clones are of one span, and ask
/// the subscriber for nothing: so a span can be cloned under a lock.
#[derive(Clone, Debug)]
pub(crate) struct Span(Option<Arc<Open>>);

/// The one span behind all clones.
#[derive(Debug)]
struct Open(tracing::Span);

impl Drop for Open {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, tracing::Span::none());
        // A subscriber that is dropped as its last span closes may panic once more: not while the first panic unwinds.
        let subscriber = span.with_subscriber(|(_, subscriber)| subscriber.clone());
        outside(|| drop(span));
        outside(|| drop(subscriber));
    }
}

impl Span {
    fn new(make: impl FnOnce() -> tracing::Span) -> Self {
        let mut made = tracing::Span::none();
        outside(|| made = make());
        Self((!made.is_disabled()).then(|| Arc::new(Open(made))))
    }

    /// Calls the subscriber; whether there is one, and it has not panicked. Not inline: mostly no subscriber wants the span, and
    /// the callers look for that first.
    #[cold]
    #[inline(never)]
    fn ask(&self, f: impl FnOnce(&Dispatch, &Id)) -> bool {
        let mut done = false;
        if let Some(span) = &self.0 {
            // Not `tracing`'s own `enter`: its guard would leave, and close, the span as a panic passes.
            span.0.with_subscriber(|(id, subscriber)| {
                outside(|| {
                    f(subscriber, id);
                    done = true;
                });
            });
        }
        done
    }

    /// Enters the span, until the value is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Entered {
        let entered = self.0.is_some() && self.ask(Dispatch::enter);
        Entered { span: if entered { self.clone() } else { Self(None) }, not_send: PhantomData }
    }

    #[inline]
    fn record(&self, field: &'static str, value: usize) {
        if let Some(span) = &self.0 {
            span.record(field, value);
        }
    }
}

impl Open {
    #[cold]
    #[inline(never)]
    fn record(&self, field: &'static str, value: usize) {
        outside(|| {
            self.0.record(field, value);
        });
    }
}

/// This thread is in a span, which it leaves when this is dropped.
#[must_use = "the span is left when this is dropped"]
#[derive(Debug)]
pub(crate) struct Entered {
    span: Span,
    not_send: PhantomData<*mut ()>,
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if self.span.0.is_some() {
            self.span.ask(Dispatch::exit);
        }
    }
}

/// The phases of a collection, in their order. `docs/tracing.md` quotes this documentation, and
/// `ci/docs.sh` compares the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Stopped: merges the counts that threads have pending; runs in each stop of a collection and
    /// of a promotion.
    Merge,
    /// Stopped: marks the objects that known roots reach; only in a full collection of a heap with
    /// known roots.
    Premark,
    /// Stopped: counts the references between candidates.
    Count,
    /// Stopped: finds the roots: candidates whose count differs from the references inside.
    Roots,
    /// Stopped: marks the objects that the roots reach.
    Mark,
    /// Stopped: gathers the unmarked candidates, which are unreachable, and makes the others old.
    Sweep,
    /// Stopped: takes a reference to each unreachable object, and clears weak references with
    /// callbacks.
    Claim,
    /// Running: calls the weak callbacks that are due.
    Callbacks,
    /// Running: runs finalizers.
    Finalize,
    /// Stopped: removes resurrected objects from the set, and clears the remaining weak references.
    Recheck,
    /// Running: clears the garbage and releases it.
    Clear,
}

/// Enters a phase: a span that closes when the value is dropped.
pub(crate) fn phase(phase: Phase) -> Entered {
    Span::new(|| tracing::debug_span!(target: "standstill::phase", "phase", name = ?phase)).enter()
}

/// The span of a whole collection.
pub(crate) fn collection(kind: CollectionKind, heap: &str) -> Span {
    Span::new(|| {
        tracing::info_span!(
            target: "standstill",
            "collection",
            heap,
            kind = kind.name(),
            candidates = tracing::field::Empty,
            unreachable = tracing::field::Empty,
            collected = tracing::field::Empty,
        )
    })
}

/// The span of a promotion: open from before the stop to after it.
pub(crate) fn promotion(heap: &str) -> Entered {
    Span::new(|| tracing::debug_span!(target: "standstill", "promotion", heap)).enter()
}

/// What was new is old, without having been looked at.
pub(crate) fn promoted(objects: usize, stopped: Duration) {
    outside(|| {
        tracing::debug!(
            target: "standstill",
            objects,
            stopped_us = stopped.as_micros() as u64,
            "promoted"
        );
    });
}

/// The end of a collection, with its facts.
pub(crate) fn collected(span: &Span, report: &CollectionReport) {
    span.record("candidates", report.candidates);
    span.record("unreachable", report.unreachable);
    span.record("collected", report.collected);
    outside(|| {
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
    });
}

/// A type brings its own traverse handler, and leaves the clear handler that its base has out: allowed, and most likely a mistake.
pub(crate) fn no_clear_handler(type_name: &str, base: &str) {
    outside(|| {
        tracing::info!(target: "standstill", type_name, base, "a type without the clear handler that its base has");
    });
}

/// The world has been stopped.
pub(crate) fn stopped(time_to_stop: Duration) {
    outside(|| {
        tracing::debug!(target: "standstill", time_to_stop_us = time_to_stop.as_micros() as u64, "stopped");
    });
}

/// The world runs again.
pub(crate) fn resumed(stopped: Duration) {
    outside(|| {
        tracing::debug!(target: "standstill", stopped_us = stopped.as_micros() as u64, "resumed");
    });
}

/// A stop is slow, and this thread is one of those it waits for.
pub(crate) fn slow_stop(
    heap: &str,
    waited: Duration,
    thread: &str,
    os_thread: Option<u64>,
    registered_for: Duration,
    attached_for: Duration,
) {
    outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            attached_ms = attached_for.as_millis() as u64,
            "slow stop"
        );
    });
}

/// A stop does not end that this thread has asked for; or another thread keeps this one suspended.
pub(crate) fn long_stop(
    heap: &str,
    waited: Duration,
    thread: &str,
    os_thread: Option<u64>,
    registered_for: Duration,
    is_suspended: bool,
) {
    outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            is_suspended,
            "long stop"
        );
    });
}

/// A thread waits for its turn to collect, which this thread has.
pub(crate) fn long_collection(
    heap: &str,
    waited: Duration,
    thread: &str,
    os_thread: Option<u64>,
    registered_for: Duration,
) {
    outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            "long collection"
        );
    });
}

/// A stop has failed, and no stop will succeed: this thread has ended without dropping its mutator.
pub(crate) fn leaked_mutator(
    heap: &str,
    thread: &str,
    os_thread: Option<u64>,
    registered_for: Duration,
) {
    outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            thread,
            os_thread,
            registered_ms = registered_for.as_millis() as u64,
            "leaked mutator"
        );
    });
}

/// A thread has waited long for a cell that another one has locked.
pub(crate) fn slow_lock(
    heap: &str,
    waited: Duration,
    waiter: &str,
    holder: &str,
    type_name: &str,
    is_deadlock: bool,
) {
    outside(|| {
        tracing::warn!(
            target: "standstill",
            heap,
            waited_ms = waited.as_millis() as u64,
            waiter,
            holder,
            type_name,
            is_deadlock,
            "slow lock"
        );
    });
}

/// Whether a subscriber takes warnings of this library.
#[doc(hidden)]
pub fn is_warning_heard() -> bool {
    let mut is_heard = false;
    outside(|| is_heard = tracing::event_enabled!(target: "standstill", tracing::Level::WARN));
    is_heard
}

/// The marking pool could not be started: collections stay serial.
pub(crate) fn no_pool(reason: &str) {
    outside(|| {
        tracing::warn!(target: "standstill", reason, "the marking pool cannot start; collections are serial");
    });
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Each variant: one that is new does not compile here before it has its line.
    fn words(during: During) -> &'static str {
        match during {
            During::Traverse => "Traverse",
            During::Finalize => "Finalize",
            During::WeakCallback => "WeakCallback",
            During::Clear => "Clear",
            During::Drop => "Drop",
            During::CollectionCallback => "CollectionCallback",
            During::DebugSink => "DebugSink",
            During::AuditHook => "AuditHook",
            During::Collect => "Collect",
            During::Shutdown => "Shutdown",
        }
    }

    #[test]
    fn an_ignored_failure_is_a_sentence_with_and_without_a_type() {
        for during in [
            During::Traverse,
            During::Finalize,
            During::WeakCallback,
            During::Clear,
            During::Drop,
            During::CollectionCallback,
            During::DebugSink,
            During::AuditHook,
            During::Collect,
            During::Shutdown,
        ] {
            let failure = |type_name| {
                Unraisable { during, type_name, address: 0, message: "why".into() }.to_string()
            };
            let place = words(during);
            assert_eq!(
                failure("tests.Node"),
                format!("ignored failure in {place} of tests.Node: why")
            );
            assert_eq!(failure(""), format!("ignored failure in {place}: why"));
        }
    }
}
