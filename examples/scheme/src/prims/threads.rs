use std::sync::PoisonError;
use std::time::{Duration, Instant};

use standstill::{Gc, GcCell, Mutator};

use crate::prims::native;
use crate::runtime::{self, NATIVE_STACK};
use crate::value::{Channel, Kind, Lock, Native, Res, Signal, Thread, Value};
use crate::vm::{Ctx, Vm};

impl Signal {
    /// Waits until `ready` accepts the count, and changes it then by `change`. `false`: the time is
    /// over. The thread is detached meanwhile, so that no stop waits for it.
    fn wait(
        &self,
        m: &mut Mutator,
        limit: Option<Instant>,
        ready: impl Fn(u64) -> bool,
        change: impl Fn(u64) -> u64,
    ) -> bool {
        m.detach(|| {
            // The count is right even after a panic.
            let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
            while !ready(*count) {
                count = match limit.map(|it| it.checked_duration_since(Instant::now())) {
                    None => self.changed.wait(count).unwrap_or_else(PoisonError::into_inner),
                    Some(None) => return false,
                    Some(Some(left)) => {
                        let waited = self.changed.wait_timeout(count, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            *count = change(*count);
            true
        })
    }

    fn change(&self, m: &mut Mutator, change: impl Fn(u64) -> u64, all: bool) {
        let mut count = m.lock(&self.count).unwrap_or_else(PoisonError::into_inner);
        *count = change(*count);
        drop(count);
        if all { self.changed.notify_all() } else { self.changed.notify_one() }
    }
}

/// A time in seconds from now, or `#f` for none.
fn limit(cx: &Ctx, seconds: Option<&Value>) -> Res<Option<Instant>> {
    let seconds = match seconds {
        None | Some(Value::Bool(false)) => return Ok(None),
        Some(Value::Int(n)) => *n as f64,
        Some(Value::Float(x)) => *x,
        Some(other) => return Err(cx.error("not a time:", std::slice::from_ref(other))),
    };
    let left = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
    Ok(Instant::now().checked_add(left))
}

fn start(cx: &mut Ctx, thread: &Gc<Thread>) -> Res<()> {
    let thunk = thread.thunk.take(&cx.m);
    if !thunk.is_procedure() {
        return Err(cx.error("the thread has been started already", &[]));
    }
    let mut dynamic = cx.dynamic.clone();
    (dynamic.winders, dynamic.handlers) = (Value::Nil, Value::Nil);
    let (rt, own) = (cx.rt.clone(), thread.clone());
    let spawned = std::thread::Builder::new().stack_size(NATIVE_STACK).spawn(move || {
        let m = rt.heap.attach();
        let mut vm = Vm::new(m, rt, own.clone(), dynamic);
        let result = vm.call(thunk);
        own.result.set(&vm.cx.m, Some(result));
        own.done.change(&mut vm.cx.m, |_| 1, true);
    });
    match spawned {
        Ok(_) => Ok(()), // it ends by itself
        Err(error) => Err(cx.error(&format!("no thread: {error}"), &[])),
    }
}

fn join(cx: &mut Ctx, thread: &Gc<Thread>, rest: &[Value]) -> Res {
    let limit = limit(cx, rest.first())?;
    if !thread.done.wait(&mut cx.m, limit, |done| done == 1, |done| done) {
        return match rest.get(1) {
            Some(default) => Ok(default.clone()),
            None => Err(cx.condition(Kind::Timeout, "thread-join!: the time is over", &[])),
        };
    }
    match thread.result.get(&cx.m) {
        Some(Ok(value)) => Ok(value),
        Some(Err(reason)) => {
            Err(cx.condition(Kind::Uncaught, "the thread ended with an error:", &[reason]))
        }
        None => Err(cx.error("the thread was cleared", &[])),
    }
}

fn lock(cx: &mut Ctx, mutex: &Gc<Lock>, seconds: Option<&Value>) -> Res<bool> {
    let limit = limit(cx, seconds)?;
    Ok(mutex.held.wait(&mut cx.m, limit, |held| held == 0, |_| 1))
}

fn is_free(cx: &mut Ctx, mutex: &Gc<Lock>) -> bool {
    *cx.m.lock(&mutex.held.count).unwrap_or_else(PoisonError::into_inner) == 0
}

/// Unlocks the mutex and waits for the condition, without a gap in which a signal gets lost.
fn unlock_and_wait(
    cx: &mut Ctx,
    mutex: &Gc<Lock>,
    signal: &Gc<Signal>,
    seconds: Option<&Value>,
) -> Res<bool> {
    let limit = limit(cx, seconds)?;
    let seen = *cx.m.lock(&signal.count).unwrap_or_else(PoisonError::into_inner);
    mutex.held.change(&mut cx.m, |_| 0, false);
    Ok(signal.wait(&mut cx.m, limit, |count| count != seen, |count| count))
}

fn receive(cx: &mut Ctx, channel: &Gc<Channel>, limit: Option<Instant>) -> Option<Value> {
    let claimed = channel.ready.wait(&mut cx.m, limit, |ready| ready > 0, |ready| ready - 1);
    claimed.then(|| channel.items.lock(&cx.m).pop_front()).flatten()
}

pub const NATIVES: &[Native] = &[
    native!("current-thread", 0..0, |cx| { [] => Value::Thread(cx.thread.clone()) }),
    native!("make-thread", 1..2, |cx| {
        [thunk, rest @ ..] if thunk.is_procedure() => {
            let name = rest.first().cloned().unwrap_or_default();
            Value::Thread(runtime::new_thread(&cx.m, name, thunk.clone()))
        }
    }),
    native!("thread?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Thread(_))) }),
    native!("thread-name", 1..1, |cx| { [Value::Thread(it)] => it.name.clone() }),
    native!("thread-specific", 1..1, |cx| { [Value::Thread(it)] => it.specific.get(&cx.m) }),
    native!("thread-specific-set!", 2..2, |cx| {
        [Value::Thread(it), value] => {
            it.specific.set(&cx.m, value.clone());
            Value::Unspecified
        }
    }),
    native!("thread-start!", 1..1, |cx| {
        [Value::Thread(it)] => {
            start(cx, it)?;
            Value::Thread(it.clone())
        }
    }),
    native!("thread-join!", 1..3, |cx| { [Value::Thread(it), rest @ ..] => join(cx, it, rest)? }),
    native!("thread-yield!", 0..0, |cx| {
        [] => {
            cx.m.detach(std::thread::yield_now);
            Value::Unspecified
        }
    }),
    native!("thread-sleep!", 1..1, |cx| {
        [seconds] => {
            let limit = limit(cx, Some(seconds))?;
            Signal::default().wait(&mut cx.m, limit, |_| false, |count| count);
            Value::Unspecified
        }
    }),
    native!("make-mutex", 0..1, |cx| {
        rest => Value::Mutex(cx.m.alloc(Lock {
            name: rest.first().cloned().unwrap_or_default(),
            held: Signal::default(),
            specific: GcCell::default(),
        })),
    }),
    native!("mutex?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Mutex(_))) }),
    native!("mutex-name", 1..1, |cx| { [Value::Mutex(it)] => it.name.clone() }),
    native!("mutex-specific", 1..1, |cx| { [Value::Mutex(it)] => it.specific.get(&cx.m) }),
    native!("mutex-specific-set!", 2..2, |cx| {
        [Value::Mutex(it), value] => {
            it.specific.set(&cx.m, value.clone());
            Value::Unspecified
        }
    }),
    native!("mutex-lock!", 1..3, |cx| {
        [Value::Mutex(it), rest @ ..] => Value::Bool(lock(cx, it, rest.first())?),
    }),
    native!("mutex-unlock!", 1..3, |cx| {
        [Value::Mutex(it), ..] if is_free(cx, it) => {
            return Err(cx.error("mutex-unlock!: the mutex is not locked", &[]));
        },
        [Value::Mutex(it)] => {
            it.held.change(&mut cx.m, |_| 0, false);
            Value::Bool(true)
        },
        [Value::Mutex(it), Value::CondVar(signal), rest @ ..] => {
            Value::Bool(unlock_and_wait(cx, it, signal, rest.first())?)
        }
    }),
    native!("make-condition-variable", 0..1, |cx| { _ => Value::CondVar(cx.m.alloc(Signal::default())) }),
    native!("condition-variable?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::CondVar(_))) }),
    // Each signal wakes all, because a waiting thread looks at its condition again anyway.
    native!("condition-variable-signal!", 1..1, |cx| {
        [Value::CondVar(it)] => {
            it.change(&mut cx.m, |count| count + 1, true);
            Value::Unspecified
        }
    }),
    native!("condition-variable-broadcast!", 1..1, |cx| {
        [Value::CondVar(it)] => {
            it.change(&mut cx.m, |count| count + 1, true);
            Value::Unspecified
        }
    }),
    native!("make-channel", 0..0, |cx| { [] => Value::Channel(cx.m.alloc(Channel::default())) }),
    native!("channel?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Channel(_))) }),
    native!("channel-send!", 2..2, |cx| {
        [Value::Channel(it), value] => {
            it.items.lock(&cx.m).push_back(value.clone());
            it.ready.change(&mut cx.m, |ready| ready + 1, false);
            Value::Unspecified
        }
    }),
    native!("channel-receive!", 1..3, |cx| {
        [Value::Channel(it), rest @ ..] => {
            let limit = limit(cx, rest.first())?;
            match (receive(cx, it, limit), rest.get(1)) {
                (Some(value), _) => value,
                (None, Some(default)) => default.clone(),
                (None, None) => {
                    return Err(cx.condition(Kind::Timeout, "channel-receive!: the time is over", &[]));
                }
            }
        }
    }),
];
