//! From text to data.

use crate::number;
use crate::value::{Kind, Res, Value};
use crate::vm::Ctx;

pub struct Reader<'a> {
    cx: &'a Ctx,
    text: &'a [char],
    at: usize,
    /// Data with labels: `#0=`.
    labels: Vec<(usize, Value)>,
}

/// Why there is no datum.
pub enum Stop {
    /// The text ends before the datum does; or there is none.
    End {
        inside: bool,
    },
    Raise(Value),
}

type Read<T> = Result<T, Stop>;

/// All data of a text.
pub fn read_all(cx: &Ctx, text: &str) -> Res<Vec<Value>> {
    let chars: Vec<char> = text.chars().collect();
    let mut reader = Reader::new(cx, &chars);
    let mut data = Vec::new();
    loop {
        match reader.datum() {
            Ok(datum) => data.push(datum),
            Err(Stop::End { inside: false }) => return Ok(data),
            Err(Stop::End { inside: true }) => {
                return Err(cx.condition(Kind::Read, "unexpected end of input", &[]));
            }
            Err(Stop::Raise(error)) => return Err(error),
        }
    }
}

fn is_delimiter(c: char) -> bool {
    c.is_whitespace() || matches!(c, '(' | ')' | '"' | ';' | '\'' | '`' | ',')
}

pub const NAMED: &[(&str, char)] = &[
    ("space", ' '),
    ("newline", '\n'),
    ("tab", '\t'),
    ("return", '\r'),
    ("null", '\0'),
    ("alarm", '\x07'),
    ("backspace", '\x08'),
    ("delete", '\x7f'),
    ("escape", '\x1b'),
];

impl<'a> Reader<'a> {
    pub fn new(cx: &'a Ctx, text: &'a [char]) -> Self {
        Reader { cx, text, at: 0, labels: Vec::new() }
    }

    /// The number of characters that are read.
    pub fn position(&self) -> usize {
        self.at
    }

    fn fail<T>(&self, message: &str) -> Read<T> {
        let line = self.text[..self.at].iter().filter(|c| **c == '\n').count() + 1;
        let message = format!("line {line}: {message}");
        Err(Stop::Raise(self.cx.condition(Kind::Read, &message, &[])))
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Read<char> {
        let c = self.peek().ok_or(Stop::End { inside: true })?;
        self.at += 1;
        Ok(c)
    }

    fn skip_space(&mut self) -> Read<()> {
        while let Some(c) = self.peek() {
            match c {
                c if c.is_whitespace() => self.at += 1,
                ';' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '#' if self.text.get(self.at + 1) == Some(&'|') => {
                    self.at += 2;
                    let mut depth = 1;
                    while depth > 0 {
                        match (self.next()?, self.peek()) {
                            ('|', Some('#')) => depth -= 1,
                            ('#', Some('|')) => depth += 1,
                            _ => continue,
                        }
                        self.at += 1;
                    }
                }
                '#' if self.text.get(self.at + 1) == Some(&';') => {
                    self.at += 2;
                    self.inner()?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    pub fn datum(&mut self) -> Read<Value> {
        self.skip_space()?;
        if self.peek().is_none() {
            return Err(Stop::End { inside: false });
        }
        self.inner()
    }

    fn inner(&mut self) -> Read<Value> {
        self.skip_space()?;
        let m = &self.cx.m;
        match self.next()? {
            '(' | '[' => self.list(),
            ')' | ']' => self.fail("a parenthesis too many"),
            '\'' => self.quoted("quote"),
            '`' => self.quoted("quasiquote"),
            ',' if self.peek() == Some('@') => {
                self.at += 1;
                self.quoted("unquote-splicing")
            }
            ',' => self.quoted("unquote"),
            '"' => Ok(Value::chars(m, self.delimited('"')?)),
            '#' => self.hash(),
            _ => {
                self.at -= 1;
                self.atom()
            }
        }
    }

    fn quoted(&mut self, name: &str) -> Read<Value> {
        let datum = self.inner()?;
        Ok(Value::list(&self.cx.m, [self.cx.symbol(name), datum]))
    }

    fn list(&mut self) -> Read<Value> {
        let mut items = Vec::new();
        let mut end = Value::Nil;
        loop {
            self.skip_space()?;
            match self.next()? {
                ')' | ']' => return Ok(Value::list_to(&self.cx.m, items, end)),
                '.' if !items.is_empty() && self.peek().is_some_and(is_delimiter) => {
                    end = self.inner()?;
                    self.skip_space()?;
                    if self.peek().is_some_and(|c| c != ')' && c != ']') {
                        return self.fail("more than one datum after a dot");
                    }
                }
                _ => {
                    self.at -= 1;
                    items.push(self.inner()?);
                }
            }
        }
    }

    /// The characters of a string or of a symbol in bars.
    fn delimited(&mut self, end: char) -> Read<Vec<char>> {
        let mut chars = Vec::new();
        loop {
            match self.next()? {
                c if c == end => return Ok(chars),
                '\\' => match self.next()? {
                    'n' => chars.push('\n'),
                    't' => chars.push('\t'),
                    'r' => chars.push('\r'),
                    'a' => chars.push('\x07'),
                    'b' => chars.push('\x08'),
                    'x' => {
                        let mut digits = String::new();
                        loop {
                            match self.next()? {
                                ';' => break,
                                c => digits.push(c),
                            }
                        }
                        match u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32) {
                            Some(c) => chars.push(c),
                            None => return self.fail("no such character"),
                        }
                    }
                    c if c.is_whitespace() => {
                        // A line continues after its end and the spaces there.
                        let mut c = c;
                        while c != '\n' && c.is_whitespace() {
                            c = self.next()?;
                        }
                        while self.peek().is_some_and(|c| c != '\n' && c.is_whitespace()) {
                            self.at += 1;
                        }
                    }
                    c => chars.push(c),
                },
                c => chars.push(c),
            }
        }
    }

    fn token(&mut self) -> String {
        let start = self.at;
        while self.peek().is_some_and(|c| !is_delimiter(c) && c != ']' && c != '[') {
            self.at += 1;
        }
        self.text[start..self.at].iter().collect()
    }

    fn atom(&mut self) -> Read<Value> {
        if self.peek() == Some('|') {
            self.at += 1;
            let name: String = self.delimited('|')?.into_iter().collect();
            return Ok(self.cx.symbol(&name));
        }
        let token = self.token();
        Ok(number::parse(self.cx, &token, 10).unwrap_or_else(|| self.cx.symbol(&token)))
    }

    fn hash(&mut self) -> Read<Value> {
        let m = &self.cx.m;
        match self.peek() {
            Some('(') => {
                self.at += 1;
                let items = self.list()?.proper(m);
                Ok(Value::vector(m, items.unwrap_or_default()))
            }
            Some('\\') => {
                self.at += 1;
                let first = self.next()?;
                let token = format!("{first}{}", self.token());
                self.character(&token)
            }
            Some('u') => {
                self.token();
                if self.next()? != '(' {
                    return self.fail("a bytevector must begin with #u8(");
                }
                let items = self.list()?.proper(m).unwrap_or_default();
                let byte = |it: &Value| match it {
                    Value::Int(n) => u8::try_from(*n).ok(),
                    _ => None,
                };
                match items.iter().map(byte).collect() {
                    Some(bytes) => Ok(Value::bytes(m, bytes)),
                    None => self.fail("a bytevector contains bytes only"),
                }
            }
            Some(c) if c.is_ascii_digit() => {
                let start = self.at;
                while self.peek().is_some_and(|c| c.is_ascii_digit()) {
                    self.at += 1;
                }
                let label: String = self.text[start..self.at].iter().collect();
                let label = label.parse().unwrap_or(usize::MAX);
                match self.next()? {
                    '#' => match self.labels.iter().rev().find(|(it, _)| *it == label) {
                        Some((_, value)) => Ok(value.clone()),
                        None => self.fail("an unknown label"),
                    },
                    '=' => {
                        // A pair stands for the datum until it is known.
                        let holder = Value::cons(m, Value::Nil, Value::Nil);
                        self.labels.push((label, holder.clone()));
                        let datum = self.inner()?;
                        self.close(&datum, &holder, &datum);
                        self.labels.retain(|(it, _)| *it != label);
                        self.labels.push((label, datum.clone()));
                        Ok(datum)
                    }
                    _ => self.fail("bad syntax after #"),
                }
            }
            _ => {
                let token = self.token();
                match &*token {
                    "t" | "true" => Ok(Value::Bool(true)),
                    "f" | "false" => Ok(Value::Bool(false)),
                    _ => match number::parse(self.cx, &format!("#{token}"), 10) {
                        Some(number) => Ok(number),
                        None => self.fail(&format!("bad syntax: #{token}")),
                    },
                }
            }
        }
    }

    /// Replaces what stands for a labelled datum by the datum.
    fn close(&self, within: &Value, holder: &Value, datum: &Value) {
        let m = &self.cx.m;
        let mut at = within.clone();
        while let Value::Pair(pair) = &at {
            let (mut head, mut tail) = pair.ends.get(m);
            self.close(&head, holder, datum);
            if head.is_same(holder) {
                head = datum.clone();
            }
            let is_end = tail.is_same(holder);
            if is_end {
                tail = datum.clone();
            }
            pair.ends.set(m, (head, tail.clone()));
            if is_end {
                return;
            }
            at = tail;
        }
        if let Value::Vector(vector) = &at {
            let items = vector.items.get(m);
            items.iter().for_each(|item| self.close(item, holder, datum));
            let replaced = items.iter().map(|it| if it.is_same(holder) { datum } else { it });
            vector.items.set(m, replaced.cloned().collect());
        }
    }

    fn character(&self, token: &str) -> Read<Value> {
        let mut chars = token.chars();
        if let (Some(c), None) = (chars.next(), chars.next()) {
            return Ok(Value::Char(c));
        }
        if let Some((_, c)) = NAMED.iter().find(|(name, _)| *name == token) {
            return Ok(Value::Char(*c));
        }
        let code = token.strip_prefix('x').and_then(|it| u32::from_str_radix(it, 16).ok());
        match code.and_then(char::from_u32) {
            Some(c) => Ok(Value::Char(c)),
            None => self.fail(&format!("no such character: #\\{token}")),
        }
    }
}
