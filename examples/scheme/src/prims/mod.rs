//! The procedures in Rust. Those that call procedures of the program are in `prelude.scm`, because
//! the machine does not call itself: a continuation could not cross a frame of Rust.

mod control;
mod lists;
mod numbers;
mod ports;
mod tables;
mod text;
mod threads;

use crate::value::{Native, Res, Value};
use crate::vm::Ctx;

pub const ANY: u8 = 255;

/// A procedure whose arguments one of the patterns fits. Others are an error that names it.
macro_rules! native {
    ($name:literal, $min:literal..$max:expr, |$cx:ident| {
        $($pattern:pat $(if $guard:expr)? => $body:expr),+ $(,)?
    }) => {
        $crate::value::Native {
            name: $name,
            min: $min,
            max: $max,
            run: $crate::value::Run::Plain(|$cx, arguments| {
                #[allow(unreachable_code, unreachable_patterns, reason = "some take all, some only fail")]
                Ok(match &*arguments {
                    $($pattern $(if $guard)? => $body,)+
                    _ => return Err($crate::prims::wrong($cx, $name, arguments)),
                })
            }),
        }
    };
}
use native;

pub fn all() -> impl Iterator<Item = &'static Native> {
    [
        control::NATIVES,
        lists::NATIVES,
        numbers::NATIVES,
        ports::NATIVES,
        tables::NATIVES,
        text::NATIVES,
        text::COMPARISONS,
        threads::NATIVES,
    ]
    .into_iter()
    .flatten()
}

#[cold]
fn wrong(cx: &Ctx, name: &str, arguments: &[Value]) -> Value {
    cx.error(&format!("{name}: wrong arguments:"), arguments)
}

/// The bounds of a part of a sequence, from optional arguments.
fn range(cx: &Ctx, len: usize, bounds: &[Value]) -> Res<std::ops::Range<usize>> {
    let index = |at: usize, default: usize| match bounds.get(at) {
        None => Some(default),
        Some(Value::Int(n)) => usize::try_from(*n).ok(),
        Some(_) => None,
    };
    match (index(0, 0), index(1, len)) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok(start..end),
        _ => Err(cx.error("not a part of the sequence:", bounds)),
    }
}
