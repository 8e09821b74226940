use standstill::{Gc, GcCell};

use crate::prims::{ANY, native, range};
use crate::symbol::Symbol;
use crate::value::{Native, RecordType, Res, Value};
use crate::vm::Ctx;

/// The pair after `count` steps along the tails.
fn tail(cx: &Ctx, list: &Value, count: i64) -> Res {
    let mut rest = list.clone();
    for _ in 0..count {
        rest = match rest.ends(&cx.m) {
            Some((_, tail)) => tail,
            None => return Err(cx.error("the list is too short:", std::slice::from_ref(list))),
        };
    }
    Ok(rest)
}

/// Heads (`a`) and tails (`d`), one after the other.
fn part(cx: &Ctx, value: &Value, path: &str) -> Res {
    path.chars().try_fold(value.clone(), |at, step| match at.ends(&cx.m) {
        Some((head, tail)) => Ok(if step == 'a' { head } else { tail }),
        None => Err(cx.error("not enough pairs in:", std::slice::from_ref(value))),
    })
}

fn proper(cx: &Ctx, list: &Value) -> Res<Vec<Value>> {
    let improper = || cx.error("not a proper list:", std::slice::from_ref(list));
    list.proper(&cx.m).ok_or_else(improper)
}

/// The first tail whose head fits.
fn find(cx: &Ctx, list: &Value, fits: impl Fn(&Value) -> bool) -> Value {
    let mut rest = list.clone();
    while let Some((head, tail)) = rest.ends(&cx.m) {
        if fits(&head) {
            return rest;
        }
        rest = tail;
    }
    Value::Bool(false)
}

fn find_pair(cx: &Ctx, list: &Value, fits: impl Fn(&Value) -> bool) -> Value {
    let found = find(cx, list, |item| item.ends(&cx.m).is_some_and(|(key, _)| fits(&key)));
    found.ends(&cx.m).map_or(Value::Bool(false), |(pair, _)| pair)
}

fn append(cx: &Ctx, lists: &[Value]) -> Res {
    let Some((last, first)) = lists.split_last() else { return Ok(Value::Nil) };
    first
        .iter()
        .rev()
        .try_fold(last.clone(), |rest, list| Ok(Value::list_to(&cx.m, proper(cx, list)?, rest)))
}

fn place(at: i64, len: usize) -> Option<usize> {
    usize::try_from(at).ok().filter(|at| *at < len)
}

fn symbols(items: &[Value]) -> Option<Vec<Gc<Symbol>>> {
    let symbol = |item: &Value| match item {
        Value::Symbol(symbol) => Some(symbol.clone()),
        _ => None,
    };
    items.iter().map(symbol).collect()
}

pub const NATIVES: &[Native] = &[
    native!("cons", 2..2, |cx| { [a, b] => Value::cons(&cx.m, a.clone(), b.clone()) }),
    native!("car", 1..1, |cx| { [Value::Pair(pair)] => pair.ends.get(&cx.m).0 }),
    native!("cdr", 1..1, |cx| { [Value::Pair(pair)] => pair.ends.get(&cx.m).1 }),
    native!("caar", 1..1, |cx| {
        [a] => part(cx, a, "aa")?,
    }),
    native!("cadr", 1..1, |cx| {
        [a] => part(cx, a, "da")?,
    }),
    native!("cddr", 1..1, |cx| {
        [a] => part(cx, a, "dd")?,
    }),
    native!("set-car!", 2..2, |cx| {
        [Value::Pair(pair), value] => {
            // The old value is dropped after the pair is unlocked.
            drop(std::mem::replace(&mut pair.ends.lock(&cx.m).0, value.clone()));
            Value::Unspecified
        }
    }),
    native!("set-cdr!", 2..2, |cx| {
        [Value::Pair(pair), value] => {
            drop(std::mem::replace(&mut pair.ends.lock(&cx.m).1, value.clone()));
            Value::Unspecified
        }
    }),
    native!("pair?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Pair(_))) }),
    native!("null?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Nil)) }),
    native!("list?", 1..1, |cx| { [a] => Value::Bool(a.proper(&cx.m).is_some()) }),
    native!("not", 1..1, |cx| { [a] => Value::Bool(!a.is_true()) }),
    native!("eq?", 2..2, |cx| { [a, b] => Value::Bool(a.is_same(b)) }),
    native!("eqv?", 2..2, |cx| { [a, b] => Value::Bool(a.is_eqv(b)) }),
    native!("equal?", 2..2, |cx| { [a, b] => Value::Bool(a.is_equal(b, &cx.m)) }),
    native!("list", 0..ANY, |cx| { all => Value::list(&cx.m, all.iter().cloned()) }),
    native!("cons*", 1..ANY, |cx| {
        [first @ .., last] => Value::list_to(&cx.m, first.to_vec(), last.clone()),
    }),
    native!("make-list", 1..2, |cx| {
        [Value::Int(n @ 0..)] => Value::list(&cx.m, vec![Value::Unspecified; *n as usize]),
        [Value::Int(n @ 0..), fill] => Value::list(&cx.m, vec![fill.clone(); *n as usize]),
    }),
    native!("length", 1..1, |cx| { [a] => Value::from(proper(cx, a)?.len()) }),
    native!("append", 0..ANY, |cx| { all => append(cx, all)? }),
    native!("reverse", 1..1, |cx| {
        [a] => {
            let items = proper(cx, a)?.into_iter();
            items.fold(Value::Nil, |rest, item| Value::cons(&cx.m, item, rest))
        }
    }),
    native!("list-tail", 2..2, |cx| { [a, Value::Int(n)] => tail(cx, a, *n)? }),
    native!("list-ref", 2..2, |cx| {
        [a, Value::Int(n)] => match tail(cx, a, *n)?.ends(&cx.m) {
            Some((head, _)) => head,
            None => return Err(cx.error("list-ref: the list is too short", &[])),
        },
    }),
    native!("list-copy", 1..1, |cx| {
        [a] => {
            let (items, end) = a.items(&cx.m);
            Value::list_to(&cx.m, items, end)
        }
    }),
    native!("memq", 2..2, |cx| { [a, list] => find(cx, list, |item| item.is_same(a)) }),
    native!("memv", 2..2, |cx| { [a, list] => find(cx, list, |item| item.is_eqv(a)) }),
    native!("%member", 2..2, |cx| { [a, list] => find(cx, list, |item| item.is_equal(a, &cx.m)) }),
    native!("assq", 2..2, |cx| { [a, list] => find_pair(cx, list, |key| key.is_same(a)) }),
    native!("assv", 2..2, |cx| { [a, list] => find_pair(cx, list, |key| key.is_eqv(a)) }),
    native!("%assoc", 2..2, |cx| { [a, list] => find_pair(cx, list, |key| key.is_equal(a, &cx.m)) }),
    native!("symbol?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Symbol(_))) }),
    native!("boolean?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Bool(_))) }),
    native!("procedure?", 1..1, |cx| { [a] => Value::Bool(a.is_procedure()) }),
    native!("vector?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Vector(_))) }),
    native!("vector", 0..ANY, |cx| { all => Value::vector(&cx.m, all.to_vec()) }),
    native!("make-vector", 1..2, |cx| {
        [Value::Int(n @ 0..)] => Value::vector(&cx.m, vec![Value::Unspecified; *n as usize]),
        [Value::Int(n @ 0..), fill] => Value::vector(&cx.m, vec![fill.clone(); *n as usize]),
    }),
    native!("vector-length", 1..1, |cx| {
        [Value::Vector(it)] => Value::from(it.items.lock(&cx.m).len()),
    }),
    native!("vector-ref", 2..2, |cx| {
        [Value::Vector(it), Value::Int(at)] => {
            let items = it.items.lock(&cx.m);
            match place(*at, items.len()) {
                Some(at) => items[at].clone(),
                None => return Err(cx.error("vector-ref: no such place:", &[Value::Int(*at)])),
            }
        }
    }),
    native!("vector-set!", 3..3, |cx| {
        [Value::Vector(it), Value::Int(at), value] => {
            let mut items = it.items.lock(&cx.m);
            let Some(at) = place(*at, items.len()) else {
                return Err(cx.error("vector-set!: no such place:", &[Value::Int(*at)]));
            };
            let old = std::mem::replace(&mut items[at], value.clone());
            drop(items);
            drop(old);
            Value::Unspecified
        }
    }),
    native!("vector->list", 1..3, |cx| {
        [Value::Vector(it), bounds @ ..] => {
            let items = it.items.get(&cx.m);
            let range = range(cx, items.len(), bounds)?;
            Value::list(&cx.m, items[range].to_vec())
        }
    }),
    native!("list->vector", 1..1, |cx| { [a] => Value::vector(&cx.m, proper(cx, a)?) }),
    native!("vector-fill!", 2..4, |cx| {
        [Value::Vector(it), fill, bounds @ ..] => {
            let mut items = it.items.get(&cx.m);
            let range = range(cx, items.len(), bounds)?;
            items[range].fill(fill.clone());
            it.items.set(&cx.m, items);
            Value::Unspecified
        }
    }),
    native!("vector-copy", 1..3, |cx| {
        [Value::Vector(it), bounds @ ..] => {
            let items = it.items.get(&cx.m);
            let range = range(cx, items.len(), bounds)?;
            Value::vector(&cx.m, items[range].to_vec())
        }
    }),
    native!("vector-append", 0..ANY, |cx| {
        all if all.iter().all(|it| matches!(it, Value::Vector(_))) => {
            let items = all.iter().flat_map(|it| match it {
                Value::Vector(it) => it.items.get(&cx.m),
                _ => Vec::new(),
            });
            Value::vector(&cx.m, items.collect())
        }
    }),
    native!("vector-copy!", 3..5, |cx| {
        [Value::Vector(to), Value::Int(at @ 0..), Value::Vector(from), bounds @ ..] => {
            let source = from.items.get(&cx.m);
            let range = range(cx, source.len(), bounds)?;
            let (at, mut target) = (*at as usize, to.items.get(&cx.m));
            if at + range.len() > target.len() {
                return Err(cx.error("vector-copy!: the target is too short", &[]));
            }
            target[at..at + range.len()].clone_from_slice(&source[range]);
            to.items.set(&cx.m, target);
            Value::Unspecified
        }
    }),
    native!("%record-type", 2..2, |cx| {
        [Value::Symbol(name), fields] => match symbols(&proper(cx, fields)?) {
            Some(fields) => {
                let name = name.name.trim_matches(['<', '>']).to_string();
                Value::RecordType(cx.m.alloc(RecordType { name, fields }))
            }
            None => return Err(cx.error("fields must be symbols:", std::slice::from_ref(fields))),
        },
    }),
    native!("%make-record", 2..2, |cx| {
        [Value::RecordType(it), fields] => {
            let cells = proper(cx, fields)?.into_iter().map(GcCell::new);
            let cells: Vec<_> = cells.collect();
            Value::Record(cx.m.alloc_slice(it.clone(), cells))
        }
    }),
    native!("%record?", 2..2, |cx| {
        [Value::RecordType(it), value] => {
            Value::Bool(matches!(value, Value::Record(record) if record.header == *it))
        }
    }),
    native!("%record-ref", 3..3, |cx| {
        [Value::RecordType(it), Value::Int(at), Value::Record(record)] if record.header == *it => {
            record.items[*at as usize].get(&cx.m)
        }
    }),
    native!("%record-set!", 4..4, |cx| {
        [Value::RecordType(it), Value::Int(at), Value::Record(record), value]
            if record.header == *it =>
        {
            record.items[*at as usize].set(&cx.m, value.clone());
            Value::Unspecified
        }
    }),
    native!("%record-places", 2..2, |cx| {
        [Value::RecordType(it), names] => {
            let names = symbols(&proper(cx, names)?).unwrap_or_default();
            let place = |name: &Gc<Symbol>| it.fields.iter().position(|field| field == name);
            match names.iter().map(place).collect::<Option<Vec<usize>>>() {
                Some(places) => Value::list(&cx.m, places.into_iter().map(Value::from)),
                None => return Err(cx.error("no such field in the record type", &[])),
            }
        }
    }),
];
