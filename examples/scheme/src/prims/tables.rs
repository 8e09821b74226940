use standstill::Guardian;

use crate::prims::{ANY, native};
use crate::table::{self, Keys, Table};
use crate::value::{Guard, Native, Value};
use crate::vm::Ctx;

fn make(cx: &Ctx, keys: Keys) -> Value {
    Value::Table(cx.m.alloc(Table::new(keys)))
}

pub const NATIVES: &[Native] = &[
    // The procedures that compare and hash keys may be given, and the last ones decide.
    native!("make-hash-table", 0..ANY, |cx| {
        [Value::Native(it), ..] if matches!(it.name, "eq?" | "eqv?" | "=") => make(cx, Keys::Eqv),
        _ => make(cx, Keys::Equal),
    }),
    native!("make-eq-hash-table", 0..1, |cx| { _ => make(cx, Keys::Eqv) }),
    native!("make-eqv-hash-table", 0..1, |cx| { _ => make(cx, Keys::Eqv) }),
    native!("make-weak-hash-table", 0..ANY, |cx| {
        _ => Value::Table(cx.m.alloc(Table::weak(&cx.m))),
    }),
    native!("%make-guardian", 0..0, |cx| {
        _ => Value::Guardian(cx.m.alloc(Guard(Guardian::new()))),
    }),
    native!("%guardian-register!", 2..2, |cx| {
        [Value::Guardian(it), value] => {
            // A number never dies.
            value.object().iter().for_each(|object| it.0.register(&cx.m, object));
            Value::Unspecified
        }
    }),
    native!("%guardian-next", 1..1, |cx| {
        [Value::Guardian(it)] => {
            it.0.next(&cx.m).map_or(Value::Bool(false), |dead| Value::of_object(dead, &cx.m))
        }
    }),
    native!("hash-table?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Table(_))) }),
    native!("%hash-table-ref", 3..3, |cx| {
        [Value::Table(it), key, default] => it.get(&cx.m, key).unwrap_or_else(|| default.clone()),
    }),
    native!("hash-table-ref/default", 3..3, |cx| {
        [Value::Table(it), key, default] => it.get(&cx.m, key).unwrap_or_else(|| default.clone()),
    }),
    native!("hash-table-set!", 3..3, |cx| {
        [Value::Table(it), key, value] => {
            drop(it.set(&cx.m, key.clone(), value.clone()));
            Value::Unspecified
        }
    }),
    native!("hash-table-delete!", 2..2, |cx| {
        [Value::Table(it), key] => {
            drop(it.remove(&cx.m, key));
            Value::Unspecified
        }
    }),
    native!("hash-table-exists?", 2..2, |cx| {
        [Value::Table(it), key] => Value::Bool(it.get(&cx.m, key).is_some()),
    }),
    native!("hash-table-contains?", 2..2, |cx| {
        [Value::Table(it), key] => Value::Bool(it.get(&cx.m, key).is_some()),
    }),
    native!("hash-table-size", 1..1, |cx| { [Value::Table(it)] => Value::from(it.len(&cx.m)) }),
    native!("hash-table-clear!", 1..1, |cx| {
        [Value::Table(it)] => {
            it.clear(&cx.m);
            Value::Unspecified
        }
    }),
    native!("hash-table->alist", 1..1, |cx| {
        [Value::Table(it)] => {
            let pairs = it.pairs(&cx.m).into_iter();
            Value::list(&cx.m, pairs.map(|(key, value)| Value::cons(&cx.m, key, value)))
        }
    }),
    native!("hash-table-keys", 1..1, |cx| {
        [Value::Table(it)] => Value::list(&cx.m, it.pairs(&cx.m).into_iter().map(|(key, _)| key)),
    }),
    native!("hash-table-values", 1..1, |cx| {
        [Value::Table(it)] => {
            Value::list(&cx.m, it.pairs(&cx.m).into_iter().map(|(_, value)| value))
        }
    }),
    native!("hash", 1..2, |cx| {
        [a, ..] => Value::Int((table::hash(a, Keys::Equal, &cx.m) >> 2) as i64),
    }),
];
