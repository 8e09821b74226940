//! The coordinator on its own, which is public: its functions in the states that a participant's
//! thread can be in.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use standstill::safepoint::{self, Config, Coordinator, Participant, Suspend, ThreadId};

use crate::stage::{caught, impossible};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The participant is attached.
    Attached,
    /// It is detached, and its thread is attached to another coordinator.
    Elsewhere,
    /// The thread has no participant.
    Unregistered,
    /// It is detached.
    Detached,
    /// A `TraversalGuard` of the thread lives.
    Traversing,
    /// The participant is parked. The thread is in a callback for slow stops.
    Hook,
    /// A `NoSafepoint` of the participant lives.
    NoSafepoint,
    /// The thread holds a stop.
    Stopped,
    /// The thread keeps another one suspended.
    Suspending,
    /// Between `prepare_fork` and `ForkGuard::parent`.
    Forking,
    /// A `WorldStopped` of the participant was leaked.
    Leaked,
}

const STATES: [(State, &str); 11] = [
    (State::Attached, "attached"),
    (State::Elsewhere, "elsewhere"),
    (State::Unregistered, "unregistered"),
    (State::Detached, "detached"),
    (State::Traversing, "traversing"),
    (State::Hook, "hook"),
    (State::NoSafepoint, "no safepoint"),
    (State::Stopped, "stopped"),
    (State::Suspending, "suspending"),
    (State::Forking, "forking"),
    (State::Leaked, "leaked stop"),
];

type Threads = Arc<Coordinator<u32>>;
type Thread = Participant<u32>;

/// The arguments of the functions.
struct Cast<'a> {
    threads: &'a Threads,
    participant: Option<&'a Thread>,
    /// A thread that is registered and detached throughout.
    idle: ThreadId,
    /// Its id after its end.
    ended: ThreadId,
}

impl Cast<'_> {
    fn participant(&self) -> &Thread {
        self.participant
            .unwrap_or_else(|| impossible("a `Participant` is not `Send`, so there is none here"))
    }
}

type Call = fn(&Cast<'_>) -> String;

fn ok(value: impl std::fmt::Debug) -> String {
    format!("ok: {value:?}")
}

/// Like `?` for a stop.
fn stopped(cast: &Cast<'_>, f: impl FnOnce(safepoint::WorldStopped<'_, u32>) -> String) -> String {
    match cast.participant().stop() {
        Ok(world) => f(world),
        Err(error) => format!("error: {error}"),
    }
}

fn forking(cast: &Cast<'_>, f: impl FnOnce(safepoint::ForkGuard<'_, u32>) -> String) -> String {
    match cast.threads.prepare_fork(cast.participant()) {
        Ok(guard) => f(guard),
        Err(error) => format!("error: {error}"),
    }
}

/// As [`forking`], in the child of a real fork.
fn forked(cast: &Cast<'_>, f: impl FnOnce(safepoint::ForkGuard<'_, u32>) -> String) -> String {
    forking(cast, |guard| {
        let (mut told, mut tell) = std::io::pipe().expect("a pipe");
        // SAFETY: the child calls only the coordinator, whose lock this thread holds, and the
        // allocator, which the system's fork handlers keep usable. It leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let outcome = caught(|| f(guard));
            let told = tell.write_all(outcome.as_bytes());
            // SAFETY: ends the process, without destructors.
            unsafe { libc::_exit(i32::from(told.is_err())) };
        }
        guard.parent();
        drop(tell);
        let mut outcome = String::new();
        told.read_to_string(&mut outcome).expect("a text");
        // SAFETY: waits for the child, and asks for no status.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        outcome
    })
}

fn suspended(cast: &Cast<'_>, id: ThreadId) -> String {
    match cast.threads.suspend(id) {
        Suspend::Suspended(guard) => {
            format!("ok: suspended, showing {}, {}", *guard, guard.id() == id)
        }
        Suspend::Attached => "ok: it is attached".into(),
        Suspend::Ended => "ok: it has ended".into(),
    }
}

const ROWS: &[(&str, Call)] = &[
    ("Coordinator::new", |_| ok(Coordinator::<u32>::new().threads())),
    ("Coordinator::with_config", |_| {
        ok(Coordinator::<u32>::with_config(Config::default()).threads())
    }),
    ("Config: Default", |_| ok(Config::default())),
    ("Coordinator::register", |cast| ok(cast.threads.register(9).data())),
    ("Coordinator::name", |cast| ok(cast.threads.name())),
    ("Coordinator::poke", |cast| ok(cast.threads.poke(cast.idle, 1 << 8))),
    ("Coordinator::poke, a thread that has ended", |cast| {
        ok(cast.threads.poke(cast.ended, 1 << 8))
    }),
    ("Coordinator::poke_attached", |cast| ok(cast.threads.poke_attached(1 << 8))),
    ("Coordinator::with_data", |cast| ok(cast.threads.with_data(cast.idle, |data| *data))),
    ("Coordinator::with_data, which calls the coordinator", |cast| {
        ok(cast.threads.with_data(cast.idle, |_| cast.threads.threads()))
    }),
    ("Coordinator::with_data, a thread that has ended", |cast| {
        ok(cast.threads.with_data(cast.ended, |data| *data))
    }),
    ("Coordinator::suspend", |cast| suspended(cast, cast.idle)),
    ("Coordinator::suspend, itself", |cast| suspended(cast, cast.participant().id())),
    ("Coordinator::suspend, a thread that has ended", |cast| suspended(cast, cast.ended)),
    ("Coordinator::on_slow_stop", |cast| {
        cast.threads.on_slow_stop(|_| ());
        "ok".into()
    }),
    ("Coordinator::stats", |cast| ok(cast.threads.stats().threads)),
    ("Coordinator::leaked", |cast| ok(cast.threads.leaked().len())),
    ("Coordinator::thread", |cast| {
        ok(cast.threads.thread(cast.idle).map(|thread| thread.id == cast.idle))
    }),
    ("Coordinator::thread, one that has ended", |cast| {
        ok(cast.threads.thread(cast.ended).map(|thread| thread.id))
    }),
    ("Coordinator::thread_times", |cast| ok(cast.threads.thread_times().len())),
    ("Coordinator::threads", |cast| ok(cast.threads.threads())),
    ("Coordinator::prepare_fork", |cast| forking(cast, |_| "ok".into())),
    ("Coordinator::prepare_fork, by another's participant", |cast| {
        let other = Coordinator::new();
        let participant = other.register(9);
        match cast.threads.prepare_fork(&participant) {
            Ok(_) => "ok".into(),
            Err(error) => format!("error: {error}"),
        }
    }),
    ("Coordinator: Debug", |cast| ok(format!("{:?}", cast.threads).starts_with("Coordinator"))),
    ("Participant::mark", |cast| {
        cast.participant().mark("here");
        ok(())
    }),
    ("Participant::id", |cast| ok(cast.participant().id() != cast.idle)),
    ("Participant::data", |cast| ok(cast.participant().data())),
    ("Participant::coordinator", |cast| {
        ok(Arc::ptr_eq(cast.participant().coordinator(), cast.threads))
    }),
    ("Participant::attach", |cast| match cast.participant().attach() {
        Ok(()) => "ok".into(),
        Err(error) => format!("error: {error}"),
    }),
    ("Participant::try_attach", |cast| ok(cast.participant().try_attach())),
    ("Participant::detach", |cast| ok(cast.participant().detach())),
    ("Participant::is_attached", |cast| ok(cast.participant().is_attached())),
    ("Participant::poll", |cast| ok(cast.participant().poll())),
    ("Participant::poll_word", |cast| {
        let word = cast.participant().poll_word();
        // SAFETY: the participant lives, and the word of an `AtomicU32` is read as one.
        ok(unsafe { AtomicU32::from_ptr(word.as_ptr()) }.load(SeqCst))
    }),
    ("Participant::take_requests", |cast| ok(cast.participant().take_requests(u32::MAX))),
    ("Participant::raise", |cast| {
        cast.participant().raise(1 << 8);
        ok(cast.participant().poll())
    }),
    ("Participant::park", |cast| ok(cast.participant().park())),
    ("Participant::stop", |cast| stopped(cast, |_| "ok".into())),
    ("Participant::try_stop", |cast| match cast.participant().try_stop() {
        Ok(_) => "ok".into(),
        Err(error) => format!("error: {error}"),
    }),
    ("Participant::stop_for", |cast| match cast.participant().stop_for(Duration::from_secs(60)) {
        Ok(_) => "ok".into(),
        Err(error) => format!("error: {error}"),
    }),
    ("Participant::no_safepoint", |cast| {
        let guard = cast.participant().no_safepoint();
        let parked = cast.participant().park();
        drop(guard);
        ok(parked)
    }),
    ("Participant::no_safepoint_depth", |cast| ok(cast.participant().no_safepoint_depth())),
    ("Participant: Drop, another one of this thread", |cast| {
        drop(cast.threads.register(9));
        "ok".into()
    }),
    ("Participant: Debug", |cast| {
        ok(format!("{:?}", cast.participant()).starts_with("Participant {"))
    }),
    ("NoSafepoint: Drop", |cast| {
        drop(cast.participant().no_safepoint());
        ok(cast.participant().no_safepoint_depth())
    }),
    ("WorldStopped::time_to_stop", |cast| {
        stopped(cast, |world| ok(world.time_to_stop().as_secs() < 60))
    }),
    ("WorldStopped::requester", |cast| {
        let me = cast.participant().id();
        stopped(cast, |world| ok(world.requester() == me))
    }),
    ("WorldStopped::coordinator", |cast| stopped(cast, |world| ok(world.coordinator().threads()))),
    ("WorldStopped::threads", |cast| {
        stopped(cast, |world| {
            let mut data = Vec::new();
            world.threads(|_, &number| data.push(number));
            data.sort_unstable();
            ok(data)
        })
    }),
    ("WorldStopped::threads, which calls the coordinator", |cast| {
        stopped(cast, |world| {
            let mut calls = 0;
            world.threads(|id, _| {
                calls += usize::from(cast.threads.with_data(id, |_| ()).is_some())
            });
            ok(calls)
        })
    }),
    ("WorldStopped: Drop", |cast| stopped(cast, |world| ok(drop(world)))),
    ("WorldStopped: Debug", |cast| {
        stopped(cast, |world| ok(format!("{world:?}").starts_with("WorldStopped")))
    }),
    ("Suspended::id", |cast| suspended(cast, cast.idle)),
    ("Suspended: Deref", |cast| suspended(cast, cast.idle)),
    ("Suspended: Drop", |cast| suspended(cast, cast.idle)),
    ("ForkGuard::parent", |cast| forking(cast, |guard| ok(guard.parent()))),
    ("ForkGuard::child", |cast| forking(cast, |guard| ok(guard.child().len()))),
    ("ForkGuard::child, in a child", |cast| forked(cast, |guard| ok(guard.child().len()))),
    ("ForkGuard: Drop", |cast| forking(cast, |guard| ok(drop(guard)))),
    ("ForkGuard: Drop, in a child", |cast| {
        forked(cast, |guard| {
            drop(guard);
            ok(cast.threads.threads())
        })
    }),
    ("Ended::id", |cast| {
        forked(cast, |guard| ok(guard.child().iter().any(|ended| ended.id() == cast.idle)))
    }),
    ("Ended::data", |cast| {
        forked(cast, |guard| {
            ok(guard.child().iter().map(|ended| *ended.data()).collect::<Vec<_>>())
        })
    }),
    ("ThreadId::get", |cast| ok(cast.idle.get() > 0)),
];

thread_local! {
    static OUTCOME: RefCell<Option<String>> = const { RefCell::new(None) };
}

thread_local! {
    static HOOK: Cell<Option<*const (dyn Fn() + 'static)>> = const { Cell::new(None) };
}

/// Calls `f`. The callback of the coordinator for slow stops calls `hook` meanwhile, on this
/// thread.
fn in_hook<'a>(hook: &'a (dyn Fn() + 'a), f: impl FnOnce() -> bool) {
    let hook: *const (dyn Fn() + 'a) = hook;
    // SAFETY: only the lifetime differs. The pointer is used before `f` returns.
    HOOK.set(Some(unsafe {
        std::mem::transmute::<*const (dyn Fn() + 'a), *const (dyn Fn() + 'static)>(hook)
    }));
    f();
    HOOK.set(None);
}

fn enter(state: State, cast: &Cast<'_>, call: Call) {
    let me = cast.participant.expect("of this thread");
    let perform = |cast: &Cast<'_>| {
        let outcome = caught(|| call(cast));
        OUTCOME.set(Some(outcome));
    };
    if !matches!(state, State::Elsewhere | State::Detached | State::Unregistered) {
        me.attach().expect("nothing hinders it");
    }
    match state {
        State::Attached | State::Detached => perform(cast),
        State::Unregistered => perform(&Cast { participant: None, ..*cast }),
        State::Elsewhere => {
            let other = Coordinator::new();
            let there = other.register(());
            there.attach().expect("nothing hinders it");
            perform(cast);
        }
        State::Traversing => {
            let _guard = safepoint::traversing();
            perform(cast);
        }
        State::Hook => {
            let (entered, done) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let other = cast.threads.register(8);
                    other.attach().expect("nothing hinders it");
                    let world = other.stop().expect("the thread parks");
                    // A call that waits for the end of the stop goes on, after a while.
                    let mut patience = 500;
                    while !done.load(SeqCst) && patience > 0 {
                        std::thread::sleep(Duration::from_millis(1));
                        patience -= i32::from(entered.load(SeqCst));
                    }
                    drop(world);
                });
                let hook = || {
                    if !entered.swap(true, SeqCst) {
                        perform(cast);
                        done.store(true, SeqCst);
                    }
                };
                while !done.load(SeqCst) {
                    in_hook(&hook, || me.park());
                    std::thread::yield_now();
                }
            });
        }
        State::NoSafepoint => {
            let _guard = me.no_safepoint();
            perform(cast);
        }
        State::Stopped => {
            let _world = me.stop().expect("nothing hinders it");
            perform(cast);
        }
        State::Suspending => {
            let Suspend::Suspended(_guard) = cast.threads.suspend(cast.idle) else {
                panic!("it is detached")
            };
            perform(cast);
        }
        State::Forking => {
            let guard = cast.threads.prepare_fork(me).expect("nothing hinders it");
            perform(cast);
            guard.parent();
        }
        State::Leaked => {
            std::mem::forget(me.stop().expect("nothing hinders it"));
            perform(cast);
        }
    }
}

/// Plays one cell. Afterwards the world can be stopped by others: nothing was left behind.
fn cell(state: State, call: Call) -> String {
    let slow_stop = Duration::from_millis(if state == State::Hook { 1 } else { 1000 });
    let config = Config { name: Some("the threads".into()), slow_stop, ..Config::default() };
    let threads: Threads = Coordinator::with_config(config);
    threads.on_slow_stop(|_| {
        if let Some(hook) = HOOK.get() {
            // SAFETY: `in_hook` is up the stack.
            unsafe { (*hook)() }
        }
    });
    let over = Barrier::new(2);
    let (tell, told) = std::sync::mpsc::channel();
    let mut outcome = std::thread::scope(|scope| {
        let ended = scope.spawn(|| threads.register(2).id()).join().expect("an id");
        scope.spawn(|| {
            let idle = threads.register(1);
            tell.send(idle.id()).expect("the receiver waits");
            over.wait();
        });
        let idle = told.recv().expect("an id");
        let me = threads.register(0);
        let result = caught(|| {
            enter(state, &Cast { threads: &threads, participant: Some(&me), idle, ended }, call);
            String::new()
        });
        drop(me);
        over.wait();
        let outcome =
            OUTCOME.take().unwrap_or_else(|| "broken: the state was never reached".into());
        if result.is_empty() { outcome } else { format!("{outcome}; and then {result}") }
    });
    let left = threads.threads();
    let again = threads.register(3);
    let works = again.attach().is_ok() && again.stop().is_ok();
    if left != 0 || !works {
        outcome = format!("{outcome}; {left} threads left, works: {works}");
    }
    outcome.replace(['\n', '\t'], " ")
}

pub(crate) fn all() -> Vec<crate::Row> {
    ROWS.iter()
        .map(|&(name, call)| crate::Row {
            name,
            cells: STATES
                .iter()
                .map(|&(state, label)| {
                    (
                        label,
                        Box::new(move || cell(state, call)) as Box<dyn FnOnce() -> String + Send>,
                    )
                })
                .collect(),
        })
        .collect()
}
