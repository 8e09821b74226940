//! Numbers: 64 bits, big integers, fractions, and floats.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};

use crate::value::{Big, Ratio, Res, Value};
use crate::vm::Ctx;

/// A number of any kind, out of its object.
pub enum Number {
    Int(BigInt),
    Ratio(BigRational),
    Float(f64),
}

impl Number {
    pub fn of(value: &Value) -> Option<Number> {
        Some(match value {
            Value::Int(n) => Number::Int((*n).into()),
            Value::Big(n) => Number::Int(n.0.clone()),
            Value::Ratio(n) => Number::Ratio(n.0.clone()),
            Value::Float(x) => Number::Float(*x),
            _ => return None,
        })
    }

    pub fn value(self, cx: &Ctx) -> Value {
        match self {
            Number::Int(n) => match n.to_i64() {
                Some(n) => Value::Int(n),
                None => Value::Big(cx.m.alloc(Big(n))),
            },
            Number::Ratio(n) if n.is_integer() => Number::Int(n.to_integer()).value(cx),
            Number::Ratio(n) => Value::Ratio(cx.m.alloc(Ratio(n))),
            Number::Float(x) => Value::Float(x),
        }
    }

    pub fn float(&self) -> f64 {
        match self {
            Number::Int(n) => n.to_f64().unwrap_or(f64::NAN),
            Number::Ratio(n) => n.to_f64().unwrap_or(f64::NAN),
            Number::Float(x) => *x,
        }
    }

    fn ratio(self) -> BigRational {
        match self {
            Number::Int(n) => n.into(),
            Number::Ratio(n) => n,
            Number::Float(x) => BigRational::from_float(x).unwrap_or_default(),
        }
    }
}

fn both(cx: &Ctx, name: &str, a: &Value, b: &Value) -> Res<(Number, Number)> {
    match (Number::of(a), Number::of(b)) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ => Err(cx.error(&format!("{name}: not a number:"), &[a.clone(), b.clone()])),
    }
}

macro_rules! arithmetic {
    ($function:ident, $name:literal, $op:tt) => {
        #[inline(never)]
        pub fn $function(cx: &Ctx, a: &Value, b: &Value) -> Res {
            if let (Value::Float(a), Value::Float(b)) = (a, b) {
                return Ok(Value::Float(a $op b));
            }
            Ok(match both(cx, $name, a, b)? {
                (Number::Int(a), Number::Int(b)) => Number::Int(a $op b),
                (Number::Float(a), b) => Number::Float(a $op b.float()),
                (a, Number::Float(b)) => Number::Float(a.float() $op b),
                (a, b) => Number::Ratio(a.ratio() $op b.ratio()),
            }
            .value(cx))
        }
    };
}

arithmetic!(add, "+", +);
arithmetic!(subtract, "-", -);
arithmetic!(multiply, "*", *);

pub fn divide(cx: &Ctx, a: &Value, b: &Value) -> Res {
    match both(cx, "/", a, b)? {
        (Number::Float(a), b) => Ok(Value::Float(a / b.float())),
        (a, Number::Float(b)) => Ok(Value::Float(a.float() / b)),
        (a, b) => {
            let b = b.ratio();
            if b.is_zero() {
                return Err(cx.error("division by zero", &[]));
            }
            Ok(Number::Ratio(a.ratio() / b).value(cx))
        }
    }
}

/// `None`: one of them is not a number, in the sense of floats.
#[inline(never)]
pub fn compare(cx: &Ctx, a: &Value, b: &Value) -> Res<Option<Ordering>> {
    if let (Value::Float(a), Value::Float(b)) = (a, b) {
        return Ok(a.partial_cmp(b));
    }
    Ok(match both(cx, "comparison", a, b)? {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (Number::Float(a), b) if !a.is_finite() => a.partial_cmp(&b.float()),
        (a, Number::Float(b)) if !b.is_finite() => a.float().partial_cmp(&b),
        (a, b) => Some(a.ratio().cmp(&b.ratio())),
    })
}

/// Division of integers, with the rule for the sign. Floats that are integers are allowed.
fn integers(
    cx: &Ctx,
    name: &str,
    (a, b): (&Value, &Value),
    exact: fn(&BigInt, &BigInt) -> BigInt,
    float: fn(f64, f64) -> f64,
) -> Res {
    let wrong = || Err(cx.error(&format!("{name}: not integers:"), &[a.clone(), b.clone()]));
    match both(cx, name, a, b)? {
        (_, Number::Int(b)) if b.is_zero() => Err(cx.error("division by zero", &[])),
        (Number::Int(a), Number::Int(b)) => Ok(Number::Int(exact(&a, &b)).value(cx)),
        (Number::Ratio(_), _) | (_, Number::Ratio(_)) => wrong(),
        (a, b) if a.float().fract() == 0.0 && b.float().fract() == 0.0 && b.float() != 0.0 => {
            Ok(Value::Float(float(a.float(), b.float())))
        }
        _ => wrong(),
    }
}

pub fn quotient(cx: &Ctx, a: &Value, b: &Value) -> Res {
    integers(cx, "quotient", (a, b), |a, b| a / b, |a, b| (a / b).trunc())
}

pub fn remainder(cx: &Ctx, a: &Value, b: &Value) -> Res {
    integers(cx, "remainder", (a, b), |a, b| a % b, |a, b| a % b)
}

pub fn modulo(cx: &Ctx, a: &Value, b: &Value) -> Res {
    integers(cx, "modulo", (a, b), BigInt::mod_floor, |a, b| a - b * (a / b).floor())
}

pub fn floor_quotient(cx: &Ctx, a: &Value, b: &Value) -> Res {
    integers(cx, "floor-quotient", (a, b), BigInt::div_floor, |a, b| (a / b).floor())
}

pub fn gcd(cx: &Ctx, a: &Value, b: &Value) -> Res {
    let zero = matches!(b, Value::Int(0));
    if zero {
        return absolute(cx, a);
    }
    integers(
        cx,
        "gcd",
        (a, b),
        |a, b| a.gcd(b),
        |mut a, mut b| {
            while b != 0.0 {
                (a, b) = (b, a % b);
            }
            a.abs()
        },
    )
}

pub fn absolute(cx: &Ctx, a: &Value) -> Res {
    match Number::of(a) {
        Some(Number::Int(n)) => Ok(Number::Int(n.abs()).value(cx)),
        Some(Number::Ratio(n)) => Ok(Number::Ratio(n.abs()).value(cx)),
        Some(Number::Float(x)) => Ok(Value::Float(x.abs())),
        None => Err(cx.error("abs: not a number:", std::slice::from_ref(a))),
    }
}

pub fn exact(cx: &Ctx, a: &Value) -> Res {
    match a {
        Value::Float(x) if x.is_finite() => {
            Ok(Number::Ratio(BigRational::from_float(*x).unwrap_or_default()).value(cx))
        }
        Value::Int(_) | Value::Big(_) | Value::Ratio(_) => Ok(a.clone()),
        _ => Err(cx.error("exact: no exact number:", std::slice::from_ref(a))),
    }
}

pub fn expt(cx: &Ctx, a: &Value, b: &Value) -> Res {
    match both(cx, "expt", a, b)? {
        (Number::Float(a), b) => Ok(Value::Float(a.powf(b.float()))),
        (a, Number::Int(b)) => {
            let Some(power) = b.abs().to_u32() else {
                return Err(cx.error("expt: the exponent is too large", &[]));
            };
            if b.is_negative() {
                let a = a.ratio();
                if a.is_zero() {
                    return Err(cx.error("division by zero", &[]));
                }
                return Ok(Number::Ratio(Pow::pow(a.recip(), power)).value(cx));
            }
            Ok(match a {
                Number::Int(a) => Number::Int(Pow::pow(a, power)),
                a => Number::Ratio(Pow::pow(a.ratio(), power)),
            }
            .value(cx))
        }
        (a, b) => Ok(Value::Float(a.float().powf(b.float()))),
    }
}

pub fn sqrt(cx: &Ctx, a: &Value) -> Res {
    match Number::of(a) {
        Some(Number::Int(n)) if !n.is_negative() && n.sqrt().pow(2_u32) == n => {
            Ok(Number::Int(n.sqrt()).value(cx))
        }
        Some(Number::Ratio(n)) if !n.is_negative() => {
            let (top, bottom) = (n.numer().sqrt(), n.denom().sqrt());
            let root = BigRational::new(top, bottom);
            let is_exact = &root * &root == n;
            let rough = n.to_f64().unwrap_or(f64::NAN).sqrt();
            Ok(if is_exact { Number::Ratio(root).value(cx) } else { Value::Float(rough) })
        }
        Some(n) => Ok(Value::Float(n.float().sqrt())),
        None => Err(cx.error("sqrt: not a number:", std::slice::from_ref(a))),
    }
}

/// The root, rounded down, and what is left.
pub fn exact_sqrt(cx: &Ctx, a: &Value) -> Res<[Value; 2]> {
    match Number::of(a) {
        Some(Number::Int(n)) if !n.is_negative() => {
            let root = n.sqrt();
            let rest = n - &root * &root;
            Ok([Number::Int(root).value(cx), Number::Int(rest).value(cx)])
        }
        _ => Err(cx.error("exact-integer-sqrt: wrong argument:", std::slice::from_ref(a))),
    }
}

#[derive(Clone, Copy)]
pub enum Rounding {
    Floor,
    Ceiling,
    Truncate,
    Round,
}

pub fn round(cx: &Ctx, a: &Value, how: Rounding) -> Res {
    match a {
        Value::Int(_) | Value::Big(_) => Ok(a.clone()),
        Value::Float(x) => Ok(Value::Float(match how {
            Rounding::Floor => x.floor(),
            Rounding::Ceiling => x.ceil(),
            Rounding::Truncate => x.trunc(),
            Rounding::Round => x.round_ties_even(),
        })),
        Value::Ratio(n) => {
            let n = &n.0;
            let rounded = match how {
                Rounding::Floor => n.floor(),
                Rounding::Ceiling => n.ceil(),
                Rounding::Truncate => n.trunc(),
                Rounding::Round => {
                    let half = BigRational::new(BigInt::one(), 2.into());
                    let up = (n + &half).floor();
                    // A tie goes to the even neighbour.
                    let is_tie = (n - n.floor()) == half;
                    if is_tie && up.to_integer().is_odd() { up - BigRational::one() } else { up }
                }
            };
            Ok(Number::Ratio(rounded).value(cx))
        }
        _ => Err(cx.error("round: not a number:", std::slice::from_ref(a))),
    }
}

pub fn format(value: &Value, radix: u32) -> Option<String> {
    Some(match value {
        Value::Int(n) if radix == 10 => n.to_string(),
        Value::Int(n) => BigInt::from(*n).to_str_radix(radix),
        Value::Big(n) => n.0.to_str_radix(radix),
        Value::Ratio(n) => {
            format!("{}/{}", n.0.numer().to_str_radix(radix), n.0.denom().to_str_radix(radix))
        }
        Value::Float(x) if x.is_nan() => "+nan.0".to_string(),
        Value::Float(x) if x.is_infinite() => {
            if *x > 0.0 {
                "+inf.0".to_string()
            } else {
                "-inf.0".to_string()
            }
        }
        Value::Float(x) => {
            let (text, size) = (format!("{x}"), x.abs());
            if size != 0.0 && !(1e-7..1e21).contains(&size) {
                format!("{x:e}")
            } else if text.contains('.') {
                text
            } else {
                format!("{text}.0")
            }
        }
        _ => return None,
    })
}

/// Reads a number, with prefixes such as `#x`. `None`: the text is no number.
pub fn parse(cx: &Ctx, text: &str, radix: u32) -> Option<Value> {
    if let Some(prefixed) = text.strip_prefix('#') {
        let rest = prefixed.get(1..)?;
        return match prefixed.chars().next()? {
            'x' => parse(cx, rest, 16),
            'b' => parse(cx, rest, 2),
            'o' => parse(cx, rest, 8),
            'd' => parse(cx, rest, 10),
            'e' => exact(cx, &parse(cx, rest, radix)?).ok(),
            'i' => Some(Value::Float(Number::of(&parse(cx, rest, radix)?)?.float())),
            _ => None,
        };
    }
    match text {
        "+inf.0" => return Some(Value::Float(f64::INFINITY)),
        "-inf.0" => return Some(Value::Float(f64::NEG_INFINITY)),
        "+nan.0" | "-nan.0" => return Some(Value::Float(f64::NAN)),
        _ => {}
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_digit(radix) || c == '.') {
        return None;
    }
    let integer = |text: &str| {
        let plain = text.strip_prefix(['+', '-']).unwrap_or(text);
        let is_plain = !plain.is_empty() && plain.chars().all(|c| c.is_digit(radix));
        is_plain.then(|| BigInt::parse_bytes(text.as_bytes(), radix))?
    };
    if let Some(n) = integer(text) {
        return Some(Number::Int(n).value(cx));
    }
    if let Some((top, bottom)) = text.split_once('/') {
        let (top, bottom) = (integer(top)?, integer(bottom)?);
        let is_valid = !bottom.is_zero() && bottom.is_positive();
        return is_valid.then(|| Number::Ratio(BigRational::new(top, bottom)).value(cx));
    }
    let is_decimal = radix == 10
        && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'))
        && digits.chars().any(|c| c.is_ascii_digit());
    is_decimal.then(|| text.parse().ok().map(Value::Float))?
}
