use std::fs::File;
use std::io::{BufWriter, Write};

use standstill::Gc;

use crate::port::{Port, State};
use crate::prims::native;
use crate::printer;
use crate::reader::{Reader, Stop};
use crate::runtime;
use crate::value::{Kind, Native, Res, Value};
use crate::vm::Ctx;

/// The port among the optional arguments, or the present one.
fn port(cx: &Ctx, given: Option<&Value>, name: &str) -> Res<Gc<Port>> {
    let port = match given {
        Some(port) => port.clone(),
        None => {
            let symbol = cx.rt.symbols.intern(&cx.m, name);
            match symbol.global.peek(&cx.m).map(|global| &global.0) {
                Some(Value::Parameter(parameter)) => cx.parameter(parameter),
                _ => Value::Nil,
            }
        }
    };
    match port {
        Value::Port(port) => Ok(port),
        other => Err(cx.error("not a port:", &[other])),
    }
}

fn output(cx: &Ctx, given: Option<&Value>) -> Res<Gc<Port>> {
    port(cx, given, "current-output-port")
}

fn input(cx: &Ctx, given: Option<&Value>) -> Res<Gc<Port>> {
    port(cx, given, "current-input-port")
}

fn print(cx: &mut Ctx, value: &Value, given: Option<&Value>, quoted: bool) -> Res {
    let port = output(cx, given)?;
    let text = printer::show(&cx.m, value, quoted);
    cx.write_text(&port, &text)?;
    Ok(Value::Unspecified)
}

fn path(cx: &Ctx, name: &Value) -> Res<String> {
    match name {
        Value::Str(name) => Ok(name.chars.get(&cx.m).into_iter().collect()),
        _ => Err(cx.error("not the name of a file:", std::slice::from_ref(name))),
    }
}

/// Opens a file, detached, because a disk may be slow.
fn open<T>(cx: &mut Ctx, name: &Value, open: fn(&str) -> std::io::Result<T>) -> Res<T> {
    let name = path(cx, name)?;
    let opened = cx.m.detach(|| open(&name));
    opened.map_err(|error| cx.condition(Kind::File, &format!("{name}: {error}"), &[]))
}

fn next_char(cx: &mut Ctx, given: Option<&Value>, count: usize) -> Res {
    let port = input(cx, given)?;
    cx.read_text(&port, |_, text, at_end| match text.first() {
        Some(c) => Some((Value::Char(*c), count)),
        None => at_end.then_some((Value::Eof, 0)),
    })
}

fn read_line(cx: &mut Ctx, given: Option<&Value>) -> Res {
    let port = input(cx, given)?;
    cx.read_text(&port, |cx, text, at_end| {
        let line = |len: usize| Value::chars(&cx.m, text[..len].to_vec());
        match text.iter().position(|c| *c == '\n') {
            Some(end) => Some((line(end), end + 1)),
            None if !at_end => None,
            None if text.is_empty() => Some((Value::Eof, 0)),
            None => Some((line(text.len()), text.len())),
        }
    })
}

fn read(cx: &mut Ctx, given: Option<&Value>) -> Res {
    let port = input(cx, given)?;
    let read = cx.read_text(&port, |cx, text, at_end| {
        let mut reader = Reader::new(cx, text);
        match reader.datum() {
            Ok(datum) => Some((Ok(datum), reader.position())),
            Err(Stop::Raise(error)) => Some((Err(error), reader.position())),
            Err(Stop::End { .. }) if !at_end => None,
            Err(Stop::End { inside: false }) => Some((Ok(Value::Eof), text.len())),
            Err(Stop::End { inside: true }) => {
                let error = cx.condition(Kind::Read, "unexpected end of input", &[]);
                Some((Err(error), text.len()))
            }
        }
    });
    read?
}

fn next_byte(cx: &mut Ctx, given: Option<&Value>, count: usize) -> Res {
    let port = input(cx, given)?;
    let byte = cx.with_port(&port, |state| match state {
        State::Octets { bytes, at } => {
            let byte = bytes.get(*at).copied();
            *at += count.min(bytes.len() - *at);
            Some(byte)
        }
        _ => None,
    });
    match byte {
        Some(Some(byte)) => Ok(Value::Int(i64::from(byte))),
        Some(None) => Ok(Value::Eof),
        None => Err(cx.error("not an open binary input port", &[])),
    }
}

fn close(cx: &mut Ctx, port: &Gc<Port>) -> Res {
    let state = cx.with_port(port, |state| std::mem::replace(state, State::Closed));
    if let State::File(mut file) = state
        && let Err(error) = cx.m.detach(|| file.flush())
    {
        return Err(cx.condition(Kind::File, &error.to_string(), &[]));
    }
    Ok(Value::Unspecified)
}

pub const NATIVES: &[Native] = &[
    native!("display", 1..2, |cx| { [a, rest @ ..] => print(cx, a, rest.first(), false)? }),
    native!("write", 1..2, |cx| { [a, rest @ ..] => print(cx, a, rest.first(), true)? }),
    native!("write-shared", 1..2, |cx| { [a, rest @ ..] => print(cx, a, rest.first(), true)? }),
    native!("write-simple", 1..2, |cx| { [a, rest @ ..] => print(cx, a, rest.first(), true)? }),
    native!("write-string", 1..2, |cx| { [a, rest @ ..] => print(cx, a, rest.first(), false)? }),
    native!("write-char", 1..2, |cx| { [a, rest @ ..] => print(cx, a, rest.first(), false)? }),
    native!("newline", 0..1, |cx| {
        rest => {
            let port = output(cx, rest.first())?;
            cx.write_text(&port, "\n")?;
            Value::Unspecified
        }
    }),
    native!("write-u8", 2..2, |cx| {
        [Value::Int(byte @ 0..=255), Value::Port(port)] => {
            let written = cx.with_port(port, |state| match state {
                State::WrittenOctets(bytes) => {
                    bytes.push(*byte as u8);
                    true
                }
                State::File(file) => file.write_all(&[*byte as u8]).is_ok(),
                _ => false,
            });
            match written {
                true => Value::Unspecified,
                false => return Err(cx.error("not an open binary output port", &[])),
            }
        }
    }),
    native!("flush-output-port", 0..1, |cx| {
        rest => {
            let port = output(cx, rest.first())?;
            cx.with_port(&port, |state| match state {
                State::File(file) => file.flush().is_ok(),
                _ => {
                    runtime::flush();
                    true
                }
            });
            Value::Unspecified
        }
    }),
    native!("read-char", 0..1, |cx| { rest => next_char(cx, rest.first(), 1)? }),
    native!("peek-char", 0..1, |cx| { rest => next_char(cx, rest.first(), 0)? }),
    native!("read-line", 0..1, |cx| { rest => read_line(cx, rest.first())? }),
    native!("read", 0..1, |cx| { rest => read(cx, rest.first())? }),
    native!("read-string", 1..2, |cx| {
        [Value::Int(n @ 0..), rest @ ..] => {
            let (port, n) = (input(cx, rest.first())?, *n as usize);
            cx.read_text(&port, |cx, text, at_end| match text.len() {
                0 if at_end && n > 0 => Some((Value::Eof, 0)),
                len if len < n && !at_end => None,
                len => Some((Value::chars(&cx.m, text[..len.min(n)].to_vec()), len.min(n))),
            })?
        }
    }),
    native!("read-u8", 0..1, |cx| { rest => next_byte(cx, rest.first(), 1)? }),
    native!("peek-u8", 0..1, |cx| { rest => next_byte(cx, rest.first(), 0)? }),
    native!("char-ready?", 0..1, |cx| { _ => Value::Bool(true) }),
    native!("eof-object", 0..0, |cx| { [] => Value::Eof }),
    native!("eof-object?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Eof)) }),
    native!("open-input-string", 1..1, |cx| {
        [Value::Str(text)] => State::Text { chars: text.chars.get(&cx.m), at: 0 }.port(cx),
    }),
    native!("open-output-string", 0..0, |cx| { [] => State::Written(String::new()).port(cx) }),
    native!("open-input-bytevector", 1..1, |cx| {
        [Value::Bytes(it)] => State::Octets { bytes: it.bytes.get(&cx.m), at: 0 }.port(cx),
    }),
    native!("open-output-bytevector", 0..0, |cx| { [] => State::WrittenOctets(Vec::new()).port(cx) }),
    native!("get-output-string", 1..1, |cx| {
        [Value::Port(port)] => {
            let text = cx.with_port(port, |state| match state {
                State::Written(text) => Some(text.clone()),
                _ => None,
            });
            match text {
                Some(text) => Value::string(&cx.m, &text),
                None => return Err(cx.error("not a string port", &[])),
            }
        }
    }),
    native!("get-output-bytevector", 1..1, |cx| {
        [Value::Port(port)] => {
            let bytes = cx.with_port(port, |state| match state {
                State::WrittenOctets(bytes) => Some(bytes.clone()),
                _ => None,
            });
            match bytes {
                Some(bytes) => Value::bytes(&cx.m, bytes),
                None => return Err(cx.error("not a bytevector port", &[])),
            }
        }
    }),
    native!("open-input-file", 1..1, |cx| {
        [name] => {
            let text = open(cx, name, |name| std::fs::read_to_string(name))?;
            State::Text { chars: text.chars().collect(), at: 0 }.port(cx)
        }
    }),
    native!("open-binary-input-file", 1..1, |cx| {
        [name] => {
            let bytes = open(cx, name, |name| std::fs::read(name))?;
            State::Octets { bytes, at: 0 }.port(cx)
        }
    }),
    native!("open-output-file", 1..1, |cx| {
        [name] => State::File(BufWriter::new(open(cx, name, |name| File::create(name))?)).port(cx),
    }),
    native!("open-binary-output-file", 1..1, |cx| {
        [name] => State::File(BufWriter::new(open(cx, name, |name| File::create(name))?)).port(cx),
    }),
    native!("close-port", 1..1, |cx| { [Value::Port(port)] => close(cx, port)? }),
    native!("close-input-port", 1..1, |cx| { [Value::Port(port)] => close(cx, port)? }),
    native!("close-output-port", 1..1, |cx| { [Value::Port(port)] => close(cx, port)? }),
    native!("port?", 1..1, |cx| { [a] => Value::Bool(matches!(a, Value::Port(_))) }),
    native!("input-port?", 1..1, |cx| {
        [Value::Port(port)] => Value::Bool(cx.with_port(port, |state| state.is_input())),
        _ => Value::Bool(false),
    }),
    native!("output-port?", 1..1, |cx| {
        [Value::Port(port)] => {
            Value::Bool(cx.with_port(port, |state| {
                !state.is_input() && !matches!(state, State::Closed)
            }))
        },
        _ => Value::Bool(false),
    }),
    native!("file-exists?", 1..1, |cx| { [name] => Value::Bool(std::fs::exists(path(cx, name)?).unwrap_or(false)) }),
    native!("delete-file", 1..1, |cx| {
        [name] => {
            open(cx, name, |name| std::fs::remove_file(name))?;
            Value::Unspecified
        }
    }),
    native!("%read-file", 1..1, |cx| {
        [name] => {
            let name = path(cx, name)?;
            Value::list(&cx.m, cx.read_file(&name)?)
        }
    }),
];
