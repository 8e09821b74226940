//! The procedures that are instructions of the machine.

use std::mem::replace;

use standstill::Mutator;

use crate::code::{One, Two};
use crate::number;
use crate::value::{Res, Value};
use crate::vm::Ctx;

#[inline(always)]
pub fn one(cx: &Ctx, op: One, a: &Value) -> Res {
    let m = &cx.m;
    Ok(match op {
        One::Cadr => match a.ends(m).and_then(|(_, tail)| tail.ends(m)) {
            Some((head, _)) => head,
            None => return Err(cx.wrong_type("cadr", &[a])),
        },
        One::Cddr => match a.ends(m).and_then(|(_, tail)| tail.ends(m)) {
            Some((_, tail)) => tail,
            None => return Err(cx.wrong_type("cddr", &[a])),
        },
        One::Caar => match a.ends(m).and_then(|(head, _)| head.ends(m)) {
            Some((head, _)) => head,
            None => return Err(cx.wrong_type("caar", &[a])),
        },
        // Of a pair, the loop does it itself.
        One::Car => return Err(cx.wrong_type("car", &[a])),
        One::Cdr => return Err(cx.wrong_type("cdr", &[a])),
        One::VectorLength => match a {
            Value::Vector(vector) => Value::from(vector.items.lock(m).len()),
            _ => return Err(cx.wrong_type("vector-length", &[a])),
        },
        One::StringLength => match a {
            Value::Str(string) => Value::from(string.chars.lock(m).len()),
            _ => return Err(cx.wrong_type("string-length", &[a])),
        },
        _ => Value::Bool(test1(cx, op, a)?),
    })
}

#[inline(always)]
pub fn test1(cx: &Ctx, op: One, a: &Value) -> Res<bool> {
    Ok(match op {
        One::Not => !a.is_true(),
        One::IsNull => matches!(a, Value::Nil),
        One::IsPair => matches!(a, Value::Pair(_)),
        One::IsSymbol => matches!(a, Value::Symbol(_)),
        One::IsVector => matches!(a, Value::Vector(_)),
        One::IsString => matches!(a, Value::Str(_)),
        One::IsChar => matches!(a, Value::Char(_)),
        One::IsEof => matches!(a, Value::Eof),
        One::IsZero => match a {
            Value::Int(n) => *n == 0,
            Value::Float(x) => *x == 0.0,
            Value::Big(_) | Value::Ratio(_) => false,
            _ => return Err(cx.wrong_type("zero?", &[a])),
        },
        _ => return one(cx, op, a).map(|value| value.is_true()),
    })
}

/// The result of arithmetic, if it and both operands have 64 bits.
#[inline(always)]
pub fn small(op: Two, a: &Value, b: &Value) -> Option<i64> {
    let (Value::Int(x), Value::Int(y)) = (a, b) else { return None };
    match op {
        Two::Add => x.checked_add(*y),
        Two::Sub => x.checked_sub(*y),
        Two::Mul => x.checked_mul(*y),
        Two::Quotient => x.checked_div(*y),
        Two::Remainder => x.checked_rem(*y),
        Two::Modulo if *y > 0 => Some(x.rem_euclid(*y)),
        _ => None,
    }
}

#[inline(always)]
pub fn two(cx: &Ctx, op: Two, a: &Value, b: &Value) -> Res {
    match op {
        Two::Cons => Ok(Value::cons(&cx.m, a.clone(), b.clone())),
        Two::VectorRef => match (a, b) {
            (Value::Vector(vector), Value::Int(at)) => {
                let items = vector.items.lock(&cx.m);
                match usize::try_from(*at).ok().and_then(|at| items.get(at)) {
                    Some(item) => Ok(item.clone()),
                    None => Err(cx.wrong_type("vector-ref", &[a, b])),
                }
            }
            _ => Err(cx.wrong_type("vector-ref", &[a, b])),
        },
        Two::StringRef => match (a, b) {
            (Value::Str(string), Value::Int(at)) => {
                let chars = string.chars.lock(&cx.m);
                match usize::try_from(*at).ok().and_then(|at| chars.get(at)) {
                    Some(char) => Ok(Value::Char(*char)),
                    None => Err(cx.wrong_type("string-ref", &[a, b])),
                }
            }
            _ => Err(cx.wrong_type("string-ref", &[a, b])),
        },
        Two::Add => number::add(cx, a, b),
        Two::Sub => number::subtract(cx, a, b),
        Two::Mul => number::multiply(cx, a, b),
        Two::Quotient => number::quotient(cx, a, b),
        Two::Remainder => number::remainder(cx, a, b),
        Two::Modulo => number::modulo(cx, a, b),
        _ => test2(cx, op, a, b).map(Value::Bool),
    }
}

#[inline(always)]
pub fn test2(cx: &Ctx, op: Two, a: &Value, b: &Value) -> Res<bool> {
    if let (Value::Int(x), Value::Int(y)) = (a, b) {
        match op {
            Two::Less => return Ok(x < y),
            Two::Greater => return Ok(x > y),
            Two::LessEqual => return Ok(x <= y),
            Two::GreaterEqual => return Ok(x >= y),
            Two::Equal | Two::Eq | Two::Eqv => return Ok(x == y),
            _ => {}
        }
    }
    match op {
        Two::Eq => Ok(a.is_same(b)),
        Two::Eqv => Ok(a.is_eqv(b)),
        Two::CharEqual => match (a, b) {
            (Value::Char(a), Value::Char(b)) => Ok(a == b),
            _ => Err(cx.wrong_type("char=?", &[a, b])),
        },
        Two::Less => Ok(number::compare(cx, a, b)?.is_some_and(|it| it.is_lt())),
        Two::Greater => Ok(number::compare(cx, a, b)?.is_some_and(|it| it.is_gt())),
        Two::LessEqual => Ok(number::compare(cx, a, b)?.is_some_and(|it| it.is_le())),
        Two::GreaterEqual => Ok(number::compare(cx, a, b)?.is_some_and(|it| it.is_ge())),
        Two::Equal => Ok(number::compare(cx, a, b)?.is_some_and(|it| it.is_eq())),
        _ => unreachable!("{op:?} is no test"),
    }
}

pub fn vector_set(m: &Mutator, arguments: &[Value]) -> Option<Value> {
    let [Value::Vector(vector), Value::Int(at), value] = arguments else { return None };
    let mut items = vector.items.lock(m);
    let item = items.get_mut(usize::try_from(*at).ok()?)?;
    Some(replace(item, value.clone()))
}
