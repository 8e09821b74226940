use std::cmp::Ordering;

use crate::prims::{ANY, native, range};
use crate::value::{Native, Res, Value};
use crate::vm::Ctx;

fn text(cx: &Ctx, value: &Value) -> Res<Vec<char>> {
    match value {
        Value::Str(string) => Ok(string.chars.get(&cx.m)),
        _ => Err(cx.error("not a string:", std::slice::from_ref(value))),
    }
}

fn folded(chars: &[char]) -> Vec<char> {
    chars.iter().flat_map(|c| c.to_lowercase()).collect()
}

fn compare(cx: &Ctx, items: &[Value], fold: bool, fits: fn(Ordering) -> bool) -> Res {
    let key = |item: &Value| {
        let chars = match item {
            Value::Char(c) => vec![*c],
            item => text(cx, item)?,
        };
        Ok(if fold { folded(&chars) } else { chars })
    };
    let keys: Vec<_> = items.iter().map(key).collect::<Res<_>>()?;
    Ok(Value::Bool(keys.windows(2).all(|pair| fits(pair[0].cmp(&pair[1])))))
}

macro_rules! comparisons {
    ($($name:literal $fold:literal $fits:ident),* $(,)?) => {
        &[$(native!($name, 1..ANY, |cx| { all => compare(cx, all, $fold, Ordering::$fits)? })),*]
    };
}

pub const COMPARISONS: &[Native] = comparisons!(
    "char=?" false is_eq, "char<?" false is_lt, "char>?" false is_gt, "char<=?" false is_le,
    "char>=?" false is_ge, "char-ci=?" true is_eq, "string=?" false is_eq, "string<?" false is_lt,
    "string>?" false is_gt, "string<=?" false is_le, "string>=?" false is_ge,
    "string-ci=?" true is_eq, "string-ci<?" true is_lt,
);

/// The octets of a part of a bytevector.
fn octets(cx: &Ctx, value: &Value, bounds: &[Value]) -> Res<Vec<u8>> {
    let Value::Bytes(bytes) = value else {
        return Err(cx.error("not a bytevector:", std::slice::from_ref(value)));
    };
    let bytes = bytes.bytes.get(&cx.m);
    Ok(bytes[range(cx, bytes.len(), bounds)?].to_vec())
}

fn part(cx: &Ctx, value: &Value, bounds: &[Value]) -> Res<Vec<char>> {
    let chars = text(cx, value)?;
    Ok(chars[range(cx, chars.len(), bounds)?].to_vec())
}

fn byte(cx: &Ctx, value: &Value) -> Res<u8> {
    match value {
        Value::Int(n @ 0..=255) => Ok(*n as u8),
        _ => Err(cx.error("not a byte:", std::slice::from_ref(value))),
    }
}

fn character(cx: &Ctx, value: &Value) -> Res<char> {
    match value {
        Value::Char(c) => Ok(*c),
        _ => Err(cx.error("not a character:", std::slice::from_ref(value))),
    }
}

fn name(chars: Vec<char>) -> String {
    chars.into_iter().collect()
}

pub const NATIVES: &[Native] = &[
    native!("char?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Char(_))) }),
    native!("char->integer", 1..1, |cx| { [Value::Char(c)] => Value::Int(i64::from(u32::from(*c))) }),
    native!("integer->char", 1..1, |cx| {
        [Value::Int(n)] => match u32::try_from(*n).ok().and_then(char::from_u32) {
            Some(c) => Value::Char(c),
            None => return Err(cx.error("no such character:", &[Value::Int(*n)])),
        },
    }),
    native!("char-upcase", 1..1, |cx| {
        [Value::Char(c)] => Value::Char(c.to_uppercase().next().unwrap_or(*c)),
    }),
    native!("char-downcase", 1..1, |cx| {
        [Value::Char(c)] => Value::Char(c.to_lowercase().next().unwrap_or(*c)),
    }),
    native!("char-alphabetic?", 1..1, |cx| { [Value::Char(c)] => Value::Bool(c.is_alphabetic()) }),
    native!("char-numeric?", 1..1, |cx| { [Value::Char(c)] => Value::Bool(c.is_numeric()) }),
    native!("char-whitespace?", 1..1, |cx| { [Value::Char(c)] => Value::Bool(c.is_whitespace()) }),
    native!("char-upper-case?", 1..1, |cx| { [Value::Char(c)] => Value::Bool(c.is_uppercase()) }),
    native!("char-lower-case?", 1..1, |cx| { [Value::Char(c)] => Value::Bool(c.is_lowercase()) }),
    native!("digit-value", 1..1, |cx| {
        [Value::Char(c)] => match c.to_digit(10) {
            Some(digit) => Value::Int(i64::from(digit)),
            None => Value::Bool(false),
        },
    }),
    native!("string?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Str(_))) }),
    native!("string-length", 1..1, |cx| {
        [Value::Str(it)] => Value::from(it.chars.lock(&cx.m).len()),
    }),
    native!("string-ref", 2..2, |cx| {
        [Value::Str(it), Value::Int(at)] => {
            let at_index = usize::try_from(*at).ok();
            match at_index.and_then(|at| it.chars.lock(&cx.m).get(at).copied()) {
                Some(c) => Value::Char(c),
                None => return Err(cx.error("string-ref: no such place:", &[Value::Int(*at)])),
            }
        }
    }),
    native!("string-set!", 3..3, |cx| {
        [Value::Str(it), Value::Int(at), Value::Char(c)] => {
            let mut chars = it.chars.lock(&cx.m);
            match usize::try_from(*at).ok().and_then(|at| chars.get_mut(at)) {
                Some(place) => *place = *c,
                None => return Err(cx.error("string-set!: no such place:", &[Value::Int(*at)])),
            }
            Value::Unspecified
        }
    }),
    native!("make-string", 1..2, |cx| {
        [Value::Int(n @ 0..)] => Value::chars(&cx.m, vec![' '; *n as usize]),
        [Value::Int(n @ 0..), Value::Char(c)] => Value::chars(&cx.m, vec![*c; *n as usize]),
    }),
    native!("string", 0..ANY, |cx| {
        all => {
            let chars = all.iter().map(|it| character(cx, it)).collect::<Res<_>>()?;
            Value::chars(&cx.m, chars)
        }
    }),
    native!("string-append", 0..ANY, |cx| {
        all => {
            let mut chars = Vec::new();
            for item in all {
                chars.extend(text(cx, item)?);
            }
            Value::chars(&cx.m, chars)
        }
    }),
    native!("substring", 2..3, |cx| {
        [a, bounds @ ..] => Value::chars(&cx.m, part(cx, a, bounds)?),
    }),
    native!("string-copy", 1..3, |cx| {
        [a, bounds @ ..] => Value::chars(&cx.m, part(cx, a, bounds)?),
    }),
    native!("string-copy!", 3..5, |cx| {
        [Value::Str(to), Value::Int(at @ 0..), from, bounds @ ..] => {
            let source = part(cx, from, bounds)?;
            let (at, mut target) = (*at as usize, to.chars.lock(&cx.m));
            if at + source.len() > target.len() {
                return Err(cx.error("string-copy!: the target is too short", &[]));
            }
            target[at..at + source.len()].copy_from_slice(&source);
            Value::Unspecified
        }
    }),
    native!("string-fill!", 2..4, |cx| {
        [Value::Str(to), Value::Char(c), bounds @ ..] => {
            let mut chars = to.chars.lock(&cx.m);
            let range = range(cx, chars.len(), bounds)?;
            chars[range].fill(*c);
            Value::Unspecified
        }
    }),
    native!("string-upcase", 1..1, |cx| {
        [a] => Value::chars(&cx.m, text(cx, a)?.iter().flat_map(|c| c.to_uppercase()).collect()),
    }),
    native!("string-downcase", 1..1, |cx| { [a] => Value::chars(&cx.m, folded(&text(cx, a)?)) }),
    native!("string->list", 1..3, |cx| {
        [a, bounds @ ..] => Value::list(&cx.m, part(cx, a, bounds)?.into_iter().map(Value::Char)),
    }),
    native!("string->vector", 1..3, |cx| {
        [a, bounds @ ..] => {
            Value::vector(&cx.m, part(cx, a, bounds)?.into_iter().map(Value::Char).collect())
        }
    }),
    native!("list->string", 1..1, |cx| {
        [a] => match a.proper(&cx.m) {
            Some(items) => {
                let chars = items.iter().map(|it| character(cx, it)).collect::<Res<_>>()?;
                Value::chars(&cx.m, chars)
            }
            None => return Err(cx.error("not a proper list:", std::slice::from_ref(a))),
        },
    }),
    native!("vector->string", 1..3, |cx| {
        [Value::Vector(it), bounds @ ..] => {
            let items = it.items.get(&cx.m);
            let items = &items[range(cx, items.len(), bounds)?];
            Value::chars(&cx.m, items.iter().map(|it| character(cx, it)).collect::<Res<_>>()?)
        }
    }),
    native!("string-contains", 2..2, |cx| {
        [a, b] => {
            let (a, b) = (text(cx, a)?, text(cx, b)?);
            let last = (a.len() + 1).saturating_sub(b.len());
            let found = (0..last).find(|at| a[*at..].starts_with(&b));
            found.map_or(Value::Bool(false), Value::from)
        }
    }),
    native!("string->symbol", 1..1, |cx| { [a] => cx.symbol(&name(text(cx, a)?)) }),
    native!("symbol->string", 1..1, |cx| {
        [Value::Symbol(it)] => Value::string(&cx.m, &it.name),
    }),
    native!("gensym", 0..1, |cx| { _ => Value::Symbol(cx.rt.symbols.fresh(&cx.m, "g", None)) }),
    native!("symbol-count", 0..0, |cx| { [] => Value::from(cx.rt.symbols.len()) }),
    native!("bytevector?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Bytes(_))) }),
    native!("make-bytevector", 1..2, |cx| {
        [Value::Int(n @ 0..)] => Value::bytes(&cx.m, vec![0; *n as usize]),
        [Value::Int(n @ 0..), fill] => Value::bytes(&cx.m, vec![byte(cx, fill)?; *n as usize]),
    }),
    native!("bytevector", 0..ANY, |cx| {
        all => Value::bytes(&cx.m, all.iter().map(|it| byte(cx, it)).collect::<Res<_>>()?),
    }),
    native!("bytevector-length", 1..1, |cx| {
        [Value::Bytes(it)] => Value::from(it.bytes.lock(&cx.m).len()),
    }),
    native!("bytevector-u8-ref", 2..2, |cx| {
        [Value::Bytes(it), Value::Int(at)] => {
            let at_index = usize::try_from(*at).ok();
            match at_index.and_then(|at| it.bytes.lock(&cx.m).get(at).copied()) {
                Some(byte) => Value::Int(i64::from(byte)),
                None => return Err(cx.error("no such place:", &[Value::Int(*at)])),
            }
        }
    }),
    native!("bytevector-u8-set!", 3..3, |cx| {
        [Value::Bytes(it), Value::Int(at), value] => {
            let byte = byte(cx, value)?;
            let mut bytes = it.bytes.lock(&cx.m);
            match usize::try_from(*at).ok().and_then(|at| bytes.get_mut(at)) {
                Some(place) => *place = byte,
                None => return Err(cx.error("no such place:", &[Value::Int(*at)])),
            }
            Value::Unspecified
        }
    }),
    native!("bytevector-copy", 1..3, |cx| {
        [a, bounds @ ..] => Value::bytes(&cx.m, octets(cx, a, bounds)?),
    }),
    native!("bytevector-append", 0..ANY, |cx| {
        all => {
            let mut bytes = Vec::new();
            for item in all {
                bytes.extend(octets(cx, item, &[])?);
            }
            Value::bytes(&cx.m, bytes)
        }
    }),
    native!("bytevector-copy!", 3..5, |cx| {
        [Value::Bytes(to), Value::Int(at @ 0..), from, bounds @ ..] => {
            let source = octets(cx, from, bounds)?;
            let (at, mut target) = (*at as usize, to.bytes.lock(&cx.m));
            if at + source.len() > target.len() {
                return Err(cx.error("bytevector-copy!: the target is too short", &[]));
            }
            target[at..at + source.len()].copy_from_slice(&source);
            Value::Unspecified
        }
    }),
    native!("utf8->string", 1..3, |cx| {
        [a, bounds @ ..] => match String::from_utf8(octets(cx, a, bounds)?) {
            Ok(text) => Value::string(&cx.m, &text),
            Err(_) => return Err(cx.error("the bytes are no UTF-8", &[])),
        },
    }),
    native!("string->utf8", 1..3, |cx| {
        [a, bounds @ ..] => Value::bytes(&cx.m, name(part(cx, a, bounds)?).into_bytes()),
    }),
];
