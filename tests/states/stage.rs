//! The states: how a thread gets into each of them, and calls a function there.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use standstill::safepoint::traversing;
use standstill::{Detached, Finalizer, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer, WeakRef};

use crate::common::Census;
use crate::things::Things;

/// The state of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing special: attached to the heap of the things it uses.
    Attached,
    /// Attached to another heap than that of the things.
    Elsewhere,
    /// It has no mutator.
    Unattached,
    /// In the closure of `Mutator::detach`.
    Detached,
    /// In `Trace::traverse`, the world being stopped.
    Traverse,
    /// In a hook of a thread that is parked, and waits for the end of another one's collection.
    Hook,
    /// In `Trace::traverse` of a thread that is parked, and helps another one's collection.
    Helping,
    /// Attached, and a `TraversalGuard` of the thread lives.
    Traversing,
    /// In `Trace::finalize`.
    Finalize,
    /// In a destructor, the last reference having been dropped.
    Destructor,
    /// In a destructor, called by a collection.
    Collected,
    /// In `Trace::clear`.
    Clear,
    /// In a weak reference's callback.
    Callback,
    /// Between `Mutator::prepare_fork` and `Fork::parent`.
    Stopped,
    /// The heap of the things has lost its last handle and mutator. The thread is attached to
    /// another one.
    Gone,
}

pub(crate) const STATES: [(State, &str); 15] = [
    (State::Attached, "attached"),
    (State::Elsewhere, "elsewhere"),
    (State::Unattached, "unattached"),
    (State::Detached, "detached"),
    (State::Traverse, "traverse"),
    (State::Hook, "hook"),
    (State::Helping, "helping"),
    (State::Traversing, "traversing"),
    (State::Finalize, "finalize"),
    (State::Destructor, "destructor"),
    (State::Collected, "collected"),
    (State::Clear, "clear"),
    (State::Callback, "callback"),
    (State::Stopped, "stopped"),
    (State::Gone, "gone"),
];

impl State {
    /// The reason why a thread has no mutator of its own there, in safe Rust.
    fn why_no_mutator(self) -> &'static str {
        match self {
            Self::Unattached => "a `Mutator` is not `Send`, so there is none here",
            Self::Detached => "`detach` borrows the `Mutator`",
            Self::Stopped => "`Fork` borrows the `Mutator`",
            Self::Hook | Self::Helping => "the safepoint borrows the `Mutator`",
            _ => "the collection borrows the `Mutator`",
        }
    }
}

/// The way to call a function: by its parameters.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    /// No mutator.
    Free(fn(&Things) -> String),
    /// `&Mutator`: the one that user code is given there, else that of `Mutator::with_current`.
    Shared(fn(&Things, &Mutator) -> String),
    /// `&mut Mutator`: the one that the thread has kept where a destructor finds it.
    Exclusive(fn(&Things, &mut Mutator) -> String),
    /// The same by value.
    Owned(fn(&Things, Mutator) -> String),
    /// A `Detached` of the other heap, made before.
    Parked(fn(&Things, Detached) -> String),
    /// A tracer.
    Tracing(fn(&Things, &mut Tracer) -> String),
}

impl Call {
    fn needs_own_mutator(self) -> bool {
        matches!(self, Self::Exclusive(_) | Self::Owned(_))
    }
}

/// The values that a state provides.
enum Given<'a> {
    Nothing,
    Mutator(&'a Mutator),
    Tracer(&'a mut Tracer),
}

/// The call that waits for this thread, and its outcome.
struct Stage {
    state: State,
    call: Option<Call>,
    things: Arc<Things>,
    /// Kept where any code of this thread finds it, as a careless program would in a thread-local.
    mutator: Option<Mutator>,
    parked: Option<Detached>,
    outcome: Option<String>,
}

thread_local! {
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

fn on_stage<R>(f: impl FnOnce(&mut Stage) -> R) -> R {
    STAGE.with_borrow_mut(|stage| f(stage.as_mut().expect("a stage")))
}

/// The type system forbids the call there: thrown through the row's function.
struct Impossible(&'static str);

pub(crate) fn impossible(why: &'static str) -> ! {
    resume_unwind(Box::new(Impossible(why)))
}

pub(crate) fn text_of(payload: Box<dyn std::any::Any + Send>) -> String {
    let payload = match payload.downcast::<String>() {
        Ok(text) => return *text,
        Err(payload) => payload,
    };
    payload.downcast_ref::<&str>().map_or_else(|| "?".into(), |text| (*text).into())
}

/// The result of `f`, or its end.
pub(crate) fn caught(f: impl FnOnce() -> String) -> String {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(text) => text,
        Err(payload) => match payload.downcast::<Impossible>() {
            Ok(reason) => format!("impossible: {}", reason.0),
            Err(payload) => format!("panic: {}", text_of(payload)),
        },
    }
}

/// Makes the call that waits, if it still does.
fn perform(given: Given<'_>) {
    let (state, call, things) =
        on_stage(|stage| (stage.state, stage.call.take(), Arc::clone(&stage.things)));
    if let Some(call) = call {
        let outcome = caught(|| play(state, call, &things, given));
        drop(things);
        on_stage(|stage| stage.outcome = Some(outcome));
    }
}

fn play(state: State, call: Call, things: &Things, given: Given<'_>) -> String {
    match (call, given) {
        (Call::Free(f), _) => f(things),
        (Call::Shared(f), Given::Mutator(m)) => f(things, m),
        (Call::Shared(f), _) => Mutator::with_current(|m| f(things, m))
            .unwrap_or_else(|| "refused: `Mutator::with_current` gives `None`".into()),
        (Call::Exclusive(f), _) => {
            let mut m = own_mutator(state);
            let outcome = caught(|| f(things, &mut m));
            on_stage(|stage| stage.mutator = Some(m));
            outcome
        }
        (Call::Owned(f), _) => f(things, own_mutator(state)),
        (Call::Parked(f), _) => {
            f(things, on_stage(|stage| stage.parked.take()).expect("made before"))
        }
        (Call::Tracing(f), Given::Tracer(tracer)) => f(things, tracer),
        (Call::Tracing(_), _) => impossible("only the collector makes a `Tracer`"),
    }
}

fn own_mutator(state: State) -> Mutator {
    on_stage(|stage| stage.mutator.take()).unwrap_or_else(|| impossible(state.why_no_mutator()))
}

/// An object with a traversal, finalizer, clear handler or destructor that makes the call.
struct Trap {
    state: State,
    next: GcCell<Option<Gc<Trap>>>,
}

impl Trace for Trap {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, m| {
        if this.state == State::Finalize {
            perform(Given::Mutator(m));
        }
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        if this.state == State::Traverse {
            perform(Given::Tracer(tracer));
        }
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        if this.state == State::Clear {
            perform(Given::Mutator(m));
        }
        Trace::clear(&this.next, m);
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        if matches!(self.state, State::Destructor | State::Collected) {
            perform(Given::Nothing);
        }
    }
}

fn trap(m: &Mutator, state: State) -> Gc<Trap> {
    m.alloc(Trap { state, next: GcCell::new(None) })
}

/// Objects of collections by another thread than `waits`, which is parked. The traversals of the
/// other one wait until that thread is in the state, and has made the call.
struct Gate {
    waits: ThreadId,
    state: State,
    /// The thread that waits is about to make the call.
    entered: AtomicBool,
    done: AtomicBool,
    /// For how many more milliseconds the traversals of this collection wait.
    patience: AtomicI32,
}

impl Gate {
    /// Called in a traversal or a hook of any thread.
    fn meet(&self, state: State, given: Given<'_>) {
        if std::thread::current().id() != self.waits {
            while !self.done.load(SeqCst) && self.patience.fetch_sub(1, SeqCst) > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        } else if state == self.state
            && self.patience.load(SeqCst) > 0
            && !self.entered.swap(true, SeqCst)
        {
            // A call that waits for the end of the stop goes on, after a while.
            self.patience.store(500, SeqCst);
            perform(given);
            self.done.store(true, SeqCst);
        }
    }
}

/// Its traversal meets the gate.
struct Gated(Arc<Gate>);

impl Trace for Gated {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.0.meet(State::Helping, Given::Tracer(tracer));
    }
}

/// Makes the call while this thread is parked for a collection by another one. A parked thread does
/// not always come in time to help, so that there are collections until it has.
fn parked(state: State, m: &mut Mutator) {
    let waits = std::thread::current().id();
    let (entered, done, patience) = (false.into(), false.into(), 0.into());
    let gate = Arc::new(Gate { waits, state, entered, done, patience });
    let (heap, hook) = (m.heap().clone(), Arc::clone(&gate));
    heap.on_slow_stop(move |_| hook.meet(State::Hook, Given::Nothing));
    // From some number of objects on, a collection is shared.
    let count = if state == State::Helping { 4000 } else { 1 };
    let objects: Vec<_> = (0..count).map(|_| m.alloc(Gated(Arc::clone(&gate)))).collect();
    m.scope(|scope, m| {
        scope.spawn(|| {
            let mut m = heap.attach();
            while !gate.entered.load(SeqCst) {
                gate.patience.store(20, SeqCst);
                m.collect();
            }
        });
        while !gate.done.load(SeqCst) {
            m.safepoint();
            std::thread::yield_now();
        }
    });
    drop(objects);
}

/// A trap that only a collection finds.
fn lost_trap(m: &Mutator, state: State) {
    let trap = trap(m, state);
    trap.next.set(m, Some(trap.clone()));
}

fn callback(_: &Gc<WeakRef<Trap, ()>>, m: &Mutator) {
    perform(Given::Mutator(m));
}

/// Leaves the mutator where the call finds it, while `f` brings the thread into the state.
fn lending(m: Mutator, f: impl FnOnce()) -> Option<Mutator> {
    on_stage(|stage| stage.mutator = Some(m));
    f();
    on_stage(|stage| stage.mutator.take())
}

/// Makes the call in the state. The mutator comes back, unless the call took it.
fn enter(state: State, call: Call, other: &Heap, mut m: Mutator) -> Option<Mutator> {
    match state {
        State::Attached => return at_hand(call, m),
        State::Elsewhere | State::Gone => {
            drop(m);
            drop(at_hand(call, other.attach()));
            return None;
        }
        State::Unattached => {
            drop(m);
            perform(Given::Nothing);
            return None;
        }
        State::Detached => m.detach(|| perform(Given::Nothing)),
        State::Traverse => {
            let trap = trap(&m, state);
            m.collect();
            drop(trap);
        }
        State::Hook | State::Helping => parked(state, &mut m),
        State::Traversing => {
            let _guard = traversing();
            return at_hand(call, m);
        }
        State::Collected | State::Clear => {
            lost_trap(&m, state);
            m.collect();
        }
        State::Destructor => {
            let trap = trap(&m, state);
            return lending(m, || drop(trap));
        }
        // A collection borrows the mutator. A death by count leaves it where the finalizer can find
        // it.
        State::Finalize if call.needs_own_mutator() => {
            let trap = trap(&m, state);
            return lending(m, || drop(trap));
        }
        State::Finalize => {
            lost_trap(&m, state);
            m.collect();
        }
        State::Callback => {
            let target = trap(&m, state);
            let _watcher = m.alloc_weak(&target, (), callback);
            if call.needs_own_mutator() {
                return lending(m, || drop(target));
            }
            target.next.set(&m, Some(target.clone()));
            drop(target);
            m.collect();
        }
        State::Stopped => {
            let fork = m.prepare_fork().expect("nothing hinders it");
            perform(Given::Nothing);
            fork.parent();
        }
    }
    Some(m)
}

/// The thread is attached by `m`, and nothing else goes on.
fn at_hand(call: Call, m: Mutator) -> Option<Mutator> {
    if call.needs_own_mutator() {
        lending(m, || perform(Given::Nothing))
    } else {
        perform(Given::Mutator(&m));
        Some(m)
    }
}

fn heap(name: &str, state: State, reports: &Arc<Mutex<Vec<String>>>) -> Heap {
    // Checked in every profile: it is the default of some.
    let builder = Heap::builder()
        .reserve(64 << 20)
        .workers(if state == State::Helping { 2 } else { 1 })
        .slow_stop(Duration::from_millis(if state == State::Hook { 1 } else { 1000 }))
        .pacing(Pacing::manual())
        .checked(true)
        .late_poll(Duration::ZERO)
        .name(name);
    let heap = builder.build().expect("a heap");
    let to = Arc::clone(reports);
    heap.on_unraisable(move |unraisable| to.lock().unwrap().push(unraisable.to_string()));
    heap
}

/// Plays one cell: fresh heaps, the call in its state, and then all must be well.
pub(crate) fn cell(state: State, call: Call) -> String {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let (home, other) = (heap("home", state, &reports), heap("other", state, &reports));
    let census = Census::new();
    // Made here, so that the thread can be attached at home afterwards.
    let parked =
        matches!(call, Call::Parked(_)).then(|| other.attach().into_detached().expect("it may"));
    let m = home.attach();
    let things = Arc::new(Things::new(&m, &census, &other, state != State::Gone));
    STAGE.set(Some(Stage {
        state,
        call: Some(call),
        things,
        mutator: None,
        parked,
        outcome: None,
    }));
    let (home, m) = if state == State::Gone {
        // The heap closes when `m` goes, before the thread attaches to the other one.
        drop(home);
        (None, enter(state, call, &other, m))
    } else {
        (Some(home), None.or_else(|| enter(state, call, &other, m)))
    };
    let Stage { things, outcome, parked, .. } = STAGE.take().expect("the stage");
    let mut outcome = outcome.unwrap_or_else(|| "broken: the state was never reached".into());
    drop((things, parked));
    let mut wrong = Vec::new();
    if let Some(home) = home {
        let mut m = m.unwrap_or_else(|| home.attach());
        wrong.extend(wrongs(&home, &mut m));
        drop(m);
    }
    other.attach_scoped(|m| wrong.extend(wrongs(&other, m)));
    if census.alive() != 0 {
        wrong.push(format!("{} not destroyed", census.alive()));
    }
    wrong.extend(std::mem::take(&mut *reports.lock().unwrap()));
    for text in wrong {
        outcome = format!("{outcome}; {text}");
    }
    nameless(&outcome)
}

/// The same on every run: without line breaks and addresses.
fn nameless(outcome: &str) -> String {
    let words = outcome.split_whitespace().map(|word| {
        let digits = word
            .strip_prefix("0x")
            .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_hexdigit()));
        match digits {
            Some(digits) if digits.len() > 8 => word.replace(digits, "…"),
            _ => word.into(),
        }
    });
    words.collect::<Vec<String>>().join(" ")
}

/// The defects of a heap whose objects have no handles any more.
fn wrongs(heap: &Heap, m: &mut Mutator) -> Vec<String> {
    let mut wrong = Vec::new();
    m.safepoint();
    m.collect();
    m.collect();
    wrong.extend(m.verify().err().map(|text| format!("the heap is unsound: {text}")));
    match heap.stats().live_objects {
        0 => {}
        left => wrong.push(format!("{left} left in the heap called {heap:?}")),
    }
    wrong
}
