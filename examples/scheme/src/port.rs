//! Ports. No references lie in them, so their state is behind a mutex of std.

use std::fs::File;
use std::io::{BufRead, BufWriter, Write};
use std::sync::Mutex;

use standstill::{Gc, Trace};

use crate::value::{Kind, Res, Value};
use crate::vm::Ctx;

#[derive(Trace)]
pub struct Port {
    #[trace(skip)]
    pub state: Mutex<State>,
}

pub enum State {
    /// Text that is there already: of a string, or of a file.
    Text {
        chars: Vec<char>,
        at: usize,
    },
    /// Standard input: the lines that have been read.
    Terminal {
        chars: Vec<char>,
        at: usize,
    },
    Octets {
        bytes: Vec<u8>,
        at: usize,
    },
    Written(String),
    WrittenOctets(Vec<u8>),
    File(BufWriter<File>),
    Output,
    Closed,
}

impl State {
    pub fn port(self, cx: &Ctx) -> Value {
        Value::Port(cx.m.alloc(Port { state: Mutex::new(self) }))
    }

    pub fn is_input(&self) -> bool {
        matches!(self, State::Text { .. } | State::Terminal { .. } | State::Octets { .. })
    }
}

/// Reads the next lines of standard input, detached: a stop does not wait for the user.
fn more(cx: &mut Ctx) -> Res<Vec<char>> {
    let read = cx.m.detach(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    match read {
        Ok(line) => Ok(line.chars().collect()),
        Err(error) => Err(cx.condition(Kind::File, &error.to_string(), &[])),
    }
}

impl Ctx {
    /// Calls `f` with the state of the port, after a wait in which stops do not wait for this
    /// thread.
    pub fn with_port<R>(&mut self, port: &Gc<Port>, f: impl FnOnce(&mut State) -> R) -> R {
        // A panic while the port was locked leaves a state that is as good as any.
        let lock = self.m.lock(&port.state);
        f(&mut lock.unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub fn write_text(&mut self, port: &Gc<Port>, text: &str) -> Res<()> {
        let result = self.with_port(port, |state| match state {
            State::Written(written) => {
                written.push_str(text);
                Ok(true)
            }
            State::File(file) => file.write_all(text.as_bytes()).map(|()| true),
            State::Output => std::io::stdout().lock().write_all(text.as_bytes()).map(|()| true),
            _ => Ok(false),
        });
        match result {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.error("not an open textual output port", &[])),
            Err(error) => Err(self.condition(Kind::File, &error.to_string(), &[])),
        }
    }

    /// Calls `f` with the unread text, which returns a result and what it has read.
    pub fn read_text<R>(
        &mut self,
        port: &Gc<Port>,
        mut f: impl FnMut(&Ctx, &[char], bool) -> Option<(R, usize)>,
    ) -> Res<R> {
        loop {
            // Out of the lock, because `f` may allocate and raise.
            let taken = self.with_port(port, |state| match state {
                State::Text { chars, at } => Some((std::mem::take(chars), *at, false)),
                State::Terminal { chars, at } => Some((std::mem::take(chars), *at, true)),
                _ => None,
            });
            let Some((mut text, start, is_terminal)) = taken else {
                return Err(self.error("not an open textual input port", &[]));
            };
            let found = f(self, &text[start..], !is_terminal);
            let mut end = start;
            let mut at_end = false;
            match &found {
                Some((_, read)) => end += read,
                None if is_terminal => {
                    let line = more(self)?;
                    at_end = line.is_empty();
                    text.extend(line);
                }
                None => at_end = true,
            }
            let last = if at_end && found.is_none() { f(self, &text[start..], true) } else { None };
            if let Some((_, read)) = &last {
                end += read;
            }
            self.with_port(port, |state| match state {
                State::Text { chars, at } | State::Terminal { chars, at } => {
                    (*chars, *at) = (text, end);
                }
                _ => {}
            });
            if let Some((result, _)) = found.or(last) {
                return Ok(result);
            }
            if at_end {
                return Err(self.condition(Kind::Read, "unexpected end of input", &[]));
            }
        }
    }

    pub fn read_file(&self, name: &str) -> Res<Vec<Value>> {
        let text = std::fs::read_to_string(name)
            .map_err(|error| self.condition(Kind::File, &format!("{name}: {error}"), &[]))?;
        crate::reader::read_all(self, &text)
    }
}
