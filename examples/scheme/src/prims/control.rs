use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use standstill::{Collect, GcCell};

use crate::prims::{ANY, native};
use crate::runtime;
use crate::value::{Condition, Kind, Native, Parameter, Promise, Run, Value, VarBox};
use crate::vm::Ctx;

const fn special(name: &'static str, min: u8, max: u8, run: Run) -> Native {
    Native { name, min, max, run }
}

fn is_kind(value: &Value, kind: Kind) -> Value {
    Value::Bool(matches!(value, Value::Condition(it) if it.kind == kind))
}

fn entry(cx: &Ctx, name: &str, value: impl Into<Value>) -> Value {
    Value::cons(&cx.m, cx.symbol(name), value.into())
}

fn milliseconds(time: std::time::Duration) -> Value {
    Value::Float(time.as_secs_f64() * 1000.0)
}

static SEED: AtomicI64 = AtomicI64::new(1);

/// The next number of a fixed sequence, which all threads share.
fn random() -> i64 {
    // Relaxed: any order of the threads' numbers is as random as another.
    let step = SEED.fetch_add(0x2545_f491_4f6c_dd1d, Ordering::Relaxed) as u64;
    let mut z = step;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 1) as i64
}

pub const NATIVES: &[Native] = &[
    special("apply", 2, ANY, Run::Apply),
    special("%call/cc", 1, 1, Run::CallCc),
    special("%apply-values", 2, 2, Run::ApplyValues),
    special("%throw", 2, 2, Run::Throw),
    special("eval", 1, 2, Run::Eval),
    native!("values", 0..ANY, |cx| {
        [one] => one.clone(),
        all => Value::Values(cx.m.alloc_slice((), all.to_vec())),
    }),
    native!("%winders", 0..0, |cx| { [] => cx.dynamic.winders.clone() }),
    native!("%set-winders!", 1..1, |cx| {
        [list] => {
            cx.dynamic.winders = list.clone();
            Value::Unspecified
        }
    }),
    native!("%continuation-winders", 1..1, |cx| {
        [Value::Continuation(it)] => it.dynamic.winders.clone(),
    }),
    native!("%handlers", 0..0, |cx| { [] => cx.dynamic.handlers.clone() }),
    native!("%set-handlers!", 1..1, |cx| {
        [list] => {
            cx.dynamic.handlers = list.clone();
            Value::Unspecified
        }
    }),
    native!("%uncaught", 1..1, |cx| {
        [object] => {
            cx.uncaught = Some(object.clone());
            return Err(Value::Unspecified);
        }
    }),
    native!("%condition", 2..2, |cx| {
        [message, irritants] => {
            let (message, irritants) = (message.clone(), irritants.clone());
            Value::Condition(cx.m.alloc(Condition { kind: Kind::Error, message, irritants }))
        }
    }),
    native!("error-object?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Condition(_))) }),
    native!("error-object-message", 1..1, |cx| { [Value::Condition(it)] => it.message.clone() }),
    native!("error-object-irritants", 1..1, |cx| { [Value::Condition(it)] => it.irritants.clone() }),
    native!("file-error?", 1..1, |cx| { [a] => is_kind(a, Kind::File) }),
    native!("read-error?", 1..1, |cx| { [a] => is_kind(a, Kind::Read) }),
    native!("uncaught-exception?", 1..1, |cx| { [a] => is_kind(a, Kind::Uncaught) }),
    native!("join-timeout-exception?", 1..1, |cx| { [a] => is_kind(a, Kind::Timeout) }),
    native!("uncaught-exception-reason", 1..1, |cx| {
        [Value::Condition(it)] if it.kind == Kind::Uncaught => {
            it.irritants.ends(&cx.m).map(|(reason, _)| reason).unwrap_or_default()
        }
    }),
    native!("condition->string", 1..1, |cx| { [a] => Value::string(&cx.m, &cx.describe(a)) }),
    native!("%make-parameter", 2..2, |cx| {
        [value, converter] => {
            let value = VarBox { value: GcCell::new(value.clone()) };
            Value::Parameter(cx.m.alloc(Parameter { value, converter: converter.clone() }))
        }
    }),
    native!("%parameter-converter", 1..1, |cx| {
        [Value::Parameter(it)] => it.converter.clone(),
    }),
    native!("%parameters", 0..0, |cx| { [] => cx.dynamic.parameters.clone() }),
    native!("%set-parameters!", 1..1, |cx| {
        [list] => {
            cx.dynamic.parameters = list.clone();
            Value::Unspecified
        }
    }),
    native!("%bind-parameter", 3..3, |cx| {
        [parameter @ Value::Parameter(_), value, list] => {
            let value = Value::boxed(&cx.m, value.clone());
            let binding = Value::cons(&cx.m, parameter.clone(), value);
            Value::cons(&cx.m, binding, list.clone())
        }
    }),
    native!("%delay", 1..1, |cx| {
        [thunk] => {
            // A delayed value is the promise of a promise that is forced.
            Promise::make(&cx.m, false, Value::cons(&cx.m, thunk.clone(), Value::Bool(true)))
        }
    }),
    native!("%delay-force", 1..1, |cx| {
        [thunk] => {
            Promise::make(&cx.m, false, Value::cons(&cx.m, thunk.clone(), Value::Bool(false)))
        }
    }),
    native!("make-promise", 1..1, |cx| {
        [promise @ Value::Promise(_)] => promise.clone(),
        [value] => Promise::make(&cx.m, true, value.clone()),
    }),
    native!("promise?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Promise(_))) }),
    native!("%promise-forced?", 1..1, |cx| {
        [Value::Promise(it)] => Value::Bool(it.state.lock(&cx.m).0),
    }),
    native!("%promise-content", 1..1, |cx| { [Value::Promise(it)] => it.state.get(&cx.m).1 }),
    native!("%promise-set!", 3..3, |cx| {
        [Value::Promise(it), Value::Bool(forced), content] => {
            it.state.set(&cx.m, (*forced, content.clone()));
            Value::Unspecified
        }
    }),
    native!("collect", 0..0, |cx| {
        [] => match cx.m.try_collect(Collect::full()) {
            Ok(report) => Value::from(report.collected),
            Err(error) => return Err(cx.error(&error.to_string(), &[])),
        },
    }),
    native!("heap-census", 0..0, |cx| {
        [] => {
            let census = cx.m.census();
            let types = census.types.iter().map(|it| {
                let name = it.type_name.rsplit("::").next().unwrap_or_default();
                let name = Value::string(&cx.m, if it.type_name.contains('<') { &it.type_name } else { name });
                Value::list(&cx.m, [name, Value::from(it.objects), Value::from(it.bytes)])
            });
            Value::list(&cx.m, types.collect::<Vec<_>>())
        }
    }),
    native!("heap-stats", 0..0, |cx| {
        [] => {
            let stats = cx.rt.heap.stats();
            let pauses = [&stats.young.pause, &stats.full.pause];
            Value::list(&cx.m, [
                entry(cx, "live-objects", stats.live_objects),
                entry(cx, "live-bytes", stats.live_bytes),
                entry(cx, "external-bytes", stats.external_bytes),
                entry(cx, "committed-bytes", stats.committed_bytes),
                entry(cx, "threads", stats.mutators),
                entry(cx, "collections", stats.collections),
                entry(cx, "young-collections", stats.young_collections),
                entry(cx, "collected", stats.collected),
                entry(cx, "young-pause-p99-ms", milliseconds(pauses[0].p99)),
                entry(cx, "full-pause-p99-ms", milliseconds(pauses[1].p99)),
                entry(cx, "full-pause-max-ms", milliseconds(pauses[1].max)),
            ])
        }
    }),
    native!("heap-snapshot", 1..1, |cx| {
        [Value::Str(name)] => {
            let name: String = name.chars.get(&cx.m).into_iter().collect();
            if let Err(error) = cx.m.snapshot(&name) {
                return Err(cx.condition(Kind::File, &format!("{name}: {error}"), &[]));
            }
            Value::Unspecified
        }
    }),
    native!("%exit", 0..1, |cx| {
        all => {
            runtime::flush();
            std::process::exit(match all.first() {
                None | Some(Value::Bool(true)) => 0,
                Some(Value::Int(code)) => *code as i32,
                Some(_) => 1,
            })
        }
    }),
    native!("current-jiffy", 0..0, |cx| {
        [] => Value::Int(cx.rt.start.elapsed().as_nanos() as i64),
    }),
    native!("jiffies-per-second", 0..0, |cx| { [] => Value::Int(1_000_000_000) }),
    native!("current-second", 0..0, |cx| {
        [] => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Value::Float(now.as_secs_f64())
        }
    }),
    native!("random", 1..1, |cx| { [Value::Int(n @ 1..)] => Value::Int(random() % n) }),
];
