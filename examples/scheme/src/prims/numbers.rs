use std::cmp::Ordering;

use crate::number::{self, Number, Rounding};
use crate::prims::{ANY, native};
use crate::value::{Native, Res, Value};
use crate::vm::Ctx;

fn fold(cx: &Ctx, first: Value, rest: &[Value], f: fn(&Ctx, &Value, &Value) -> Res) -> Res {
    rest.iter().try_fold(first, |sum, item| f(cx, &sum, item))
}

fn ordered(cx: &Ctx, items: &[Value], fits: fn(Ordering) -> bool) -> Res {
    let mut all = true;
    for pair in items.windows(2) {
        all &= number::compare(cx, &pair[0], &pair[1])?.is_some_and(fits);
    }
    Ok(Value::Bool(all))
}

fn extreme(cx: &Ctx, items: &[Value], better: Ordering) -> Res {
    let mut best = items[0].clone();
    for item in items {
        if number::compare(cx, item, &best)? == Some(better) {
            best = item.clone();
        }
    }
    let has_float = items.iter().any(|item| matches!(item, Value::Float(_)));
    match Number::of(&best) {
        Some(number) if has_float => Ok(Value::Float(number.float())),
        _ => Ok(best),
    }
}

fn float(cx: &Ctx, value: &Value) -> Res<f64> {
    let not = || cx.error("not a number:", std::slice::from_ref(value));
    Number::of(value).map(|number| number.float()).ok_or_else(not)
}

fn is_integer(value: &Value) -> bool {
    match value {
        Value::Int(_) | Value::Big(_) => true,
        Value::Float(x) => x.is_finite() && x.fract() == 0.0,
        _ => false,
    }
}

fn is_odd(cx: &Ctx, value: &Value) -> Res<bool> {
    let rest = number::remainder(cx, value, &Value::Int(2))?;
    Ok(!matches!(number::compare(cx, &rest, &Value::Int(0))?, Some(Ordering::Equal)))
}

fn sign(cx: &Ctx, value: &Value, wanted: Ordering) -> Res {
    Ok(Value::Bool(number::compare(cx, value, &Value::Int(0))? == Some(wanted)))
}

pub const NATIVES: &[Native] = &[
    native!("+", 0..ANY, |cx| { all => fold(cx, Value::Int(0), all, number::add)? }),
    native!("*", 0..ANY, |cx| { all => fold(cx, Value::Int(1), all, number::multiply)? }),
    native!("-", 1..ANY, |cx| {
        [a] => number::subtract(cx, &Value::Int(0), a)?,
        [a, rest @ ..] => fold(cx, a.clone(), rest, number::subtract)?,
    }),
    native!("/", 1..ANY, |cx| {
        [a] => number::divide(cx, &Value::Int(1), a)?,
        [a, rest @ ..] => fold(cx, a.clone(), rest, number::divide)?,
    }),
    native!("=", 1..ANY, |cx| { all => ordered(cx, all, Ordering::is_eq)? }),
    native!("<", 1..ANY, |cx| { all => ordered(cx, all, Ordering::is_lt)? }),
    native!(">", 1..ANY, |cx| { all => ordered(cx, all, Ordering::is_gt)? }),
    native!("<=", 1..ANY, |cx| { all => ordered(cx, all, Ordering::is_le)? }),
    native!(">=", 1..ANY, |cx| { all => ordered(cx, all, Ordering::is_ge)? }),
    native!("max", 1..ANY, |cx| { all => extreme(cx, all, Ordering::Greater)? }),
    native!("min", 1..ANY, |cx| { all => extreme(cx, all, Ordering::Less)? }),
    native!("quotient", 2..2, |cx| { [a, b] => number::quotient(cx, a, b)? }),
    native!("truncate-quotient", 2..2, |cx| { [a, b] => number::quotient(cx, a, b)? }),
    native!("remainder", 2..2, |cx| { [a, b] => number::remainder(cx, a, b)? }),
    native!("truncate-remainder", 2..2, |cx| { [a, b] => number::remainder(cx, a, b)? }),
    native!("modulo", 2..2, |cx| { [a, b] => number::modulo(cx, a, b)? }),
    native!("floor-remainder", 2..2, |cx| { [a, b] => number::modulo(cx, a, b)? }),
    native!("floor-quotient", 2..2, |cx| { [a, b] => number::floor_quotient(cx, a, b)? }),
    native!("gcd", 0..ANY, |cx| { all => fold(cx, Value::Int(0), all, number::gcd)? }),
    native!("abs", 1..1, |cx| { [a] => number::absolute(cx, a)? }),
    native!("number?", 1..1, |cx| { [a] => Value::Bool(Number::of(a).is_some()) }),
    native!("integer?", 1..1, |cx| { [a] => Value::Bool(is_integer(a)) }),
    native!("rational?", 1..1, |cx| {
        [Value::Float(x)] => Value::Bool(x.is_finite()),
        [a] => Value::Bool(Number::of(a).is_some()),
    }),
    native!("exact?", 1..1, |cx| {
        [Value::Float(_)] => Value::Bool(false),
        [a] if Number::of(a).is_some() => Value::Bool(true),
    }),
    native!("exact-integer?", 1..1, |cx| {
        [a] => Value::Bool(matches!(a, Value::Int(_) | Value::Big(_))),
    }),
    native!("nan?", 1..1, |cx| { [a] => Value::Bool(float(cx, a)?.is_nan()) }),
    native!("zero?", 1..1, |cx| { [a] => sign(cx, a, Ordering::Equal)? }),
    native!("positive?", 1..1, |cx| { [a] => sign(cx, a, Ordering::Greater)? }),
    native!("negative?", 1..1, |cx| { [a] => sign(cx, a, Ordering::Less)? }),
    native!("odd?", 1..1, |cx| { [a] => Value::Bool(is_odd(cx, a)?) }),
    native!("even?", 1..1, |cx| { [a] => Value::Bool(!is_odd(cx, a)?) }),
    native!("exact", 1..1, |cx| { [a] => number::exact(cx, a)? }),
    native!("inexact", 1..1, |cx| { [a] => Value::Float(float(cx, a)?) }),
    native!("expt", 2..2, |cx| { [a, b] => number::expt(cx, a, b)? }),
    native!("sqrt", 1..1, |cx| { [a] => number::sqrt(cx, a)? }),
    native!("exact-integer-sqrt", 1..1, |cx| {
        [a] => {
            let both = number::exact_sqrt(cx, a)?;
            Value::Values(cx.m.alloc_slice((), both))
        }
    }),
    native!("floor", 1..1, |cx| { [a] => number::round(cx, a, Rounding::Floor)? }),
    native!("ceiling", 1..1, |cx| { [a] => number::round(cx, a, Rounding::Ceiling)? }),
    native!("truncate", 1..1, |cx| { [a] => number::round(cx, a, Rounding::Truncate)? }),
    native!("round", 1..1, |cx| { [a] => number::round(cx, a, Rounding::Round)? }),
    native!("numerator", 1..1, |cx| {
        [Value::Ratio(n)] => Number::Int(n.0.numer().clone()).value(cx),
        [a] if is_integer(a) => a.clone(),
    }),
    native!("denominator", 1..1, |cx| {
        [Value::Ratio(n)] => Number::Int(n.0.denom().clone()).value(cx),
        [a] if is_integer(a) => Value::Int(1),
    }),
    native!("log", 1..2, |cx| {
        [a] => Value::Float(float(cx, a)?.ln()),
        [a, b] => Value::Float(float(cx, a)?.log(float(cx, b)?)),
    }),
    native!("atan", 1..2, |cx| {
        [a] => Value::Float(float(cx, a)?.atan()),
        [a, b] => Value::Float(float(cx, a)?.atan2(float(cx, b)?)),
    }),
    native!("exp", 1..1, |cx| { [a] => Value::Float(float(cx, a)?.exp()) }),
    native!("sin", 1..1, |cx| { [a] => Value::Float(float(cx, a)?.sin()) }),
    native!("cos", 1..1, |cx| { [a] => Value::Float(float(cx, a)?.cos()) }),
    native!("tan", 1..1, |cx| { [a] => Value::Float(float(cx, a)?.tan()) }),
    native!("asin", 1..1, |cx| { [a] => Value::Float(float(cx, a)?.asin()) }),
    native!("acos", 1..1, |cx| { [a] => Value::Float(float(cx, a)?.acos()) }),
    native!("number->string", 1..2, |cx| {
        [a] if Number::of(a).is_some() => {
            Value::string(&cx.m, &number::format(a, 10).unwrap_or_default())
        },
        [a, Value::Int(radix @ 2..=36)] if Number::of(a).is_some() => {
            Value::string(&cx.m, &number::format(a, *radix as u32).unwrap_or_default())
        }
    }),
    native!("string->number", 1..2, |cx| {
        [Value::Str(text)] => parse(cx, &text.chars.get(&cx.m), 10),
        [Value::Str(text), Value::Int(radix @ 2..=36)] => {
            parse(cx, &text.chars.get(&cx.m), *radix as u32)
        }
    }),
];

fn parse(cx: &Ctx, chars: &[char], radix: u32) -> Value {
    let text: String = chars.iter().collect();
    number::parse(cx, &text, radix).unwrap_or(Value::Bool(false))
}
