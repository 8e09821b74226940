//! From values to text.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use standstill::Mutator;

use crate::number;
use crate::reader::NAMED;
use crate::value::Value;

/// The text of a value: as `write` or, without quotes, as `display`. What a circular value contains
/// more than once has a label.
pub fn show(m: &Mutator, value: &Value, quoted: bool) -> String {
    let mut printer = Printer { m, quoted, labels: HashMap::new(), text: String::new(), used: 0 };
    let mut search = Search::new(m);
    if matches!(value, Value::Pair(_) | Value::Vector(_)) && search.visit(value) {
        printer.labels = search.shared.into_iter().map(|it| (it, None)).collect();
    }
    printer.print(value);
    printer.text
}

/// The identity of a pair or vector.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Identity {
    Pair(standstill::Gc<crate::value::Pair>),
    Vector(standstill::Gc<crate::value::Vector>),
}

impl Identity {
    fn of(value: &Value) -> Option<Identity> {
        match value {
            Value::Pair(it) => Some(Identity::Pair(it.clone())),
            Value::Vector(it) => Some(Identity::Vector(it.clone())),
            _ => None,
        }
    }
}

struct Search<'m> {
    m: &'m Mutator,
    seen: HashSet<Identity>,
    open: HashSet<Identity>,
    shared: HashSet<Identity>,
}

impl<'m> Search<'m> {
    fn new(m: &'m Mutator) -> Self {
        Search { m, seen: HashSet::new(), open: HashSet::new(), shared: HashSet::new() }
    }

    /// Whether the value contains itself. Collects what is met more than once.
    fn visit(&mut self, value: &Value) -> bool {
        let mut path = Vec::new();
        let mut at = value.clone();
        let mut is_circular = false;
        while let Some(identity) = Identity::of(&at) {
            if !self.seen.insert(identity.clone()) {
                is_circular |= self.open.contains(&identity);
                self.shared.insert(identity);
                break;
            }
            self.open.insert(identity.clone());
            path.push(identity);
            at = match &at {
                Value::Pair(pair) => {
                    let (head, tail) = pair.ends.get(self.m);
                    is_circular |= self.visit(&head);
                    tail
                }
                Value::Vector(vector) => {
                    for item in vector.items.get(self.m) {
                        is_circular |= self.visit(&item);
                    }
                    Value::Nil
                }
                _ => unreachable!("it has an identity"),
            };
        }
        for identity in path {
            self.open.remove(&identity);
        }
        is_circular
    }
}

struct Printer<'m> {
    m: &'m Mutator,
    quoted: bool,
    /// The numbers of the labels, as far as they are printed.
    labels: HashMap<Identity, Option<usize>>,
    used: usize,
    text: String,
}

impl Printer<'_> {
    fn add(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Prints the label of a shared value. Whether the value itself is printed already.
    fn label(&mut self, value: &Value) -> bool {
        let label = Identity::of(value).and_then(|it| self.labels.get_mut(&it));
        match label {
            None => false,
            Some(Some(number)) => {
                let number = *number;
                self.add(&format!("#{number}#"));
                true
            }
            Some(number) => {
                *number = Some(self.used);
                let text = format!("#{}=", self.used);
                self.used += 1;
                self.add(&text);
                false
            }
        }
    }

    fn is_labelled(&self, value: &Value) -> bool {
        Identity::of(value).is_some_and(|it| self.labels.contains_key(&it))
    }

    fn print(&mut self, value: &Value) {
        let m = self.m;
        match value {
            Value::Pair(_) => {
                if self.label(value) {
                    return;
                }
                let (head, tail) = value.ends(m).expect("a pair");
                if let (Value::Symbol(symbol), Some((datum, Value::Nil))) = (&head, tail.ends(m)) {
                    let prefix = match &*symbol.name {
                        "quote" => "'",
                        "quasiquote" => "`",
                        "unquote" => ",",
                        "unquote-splicing" => ",@",
                        _ => "",
                    };
                    if !prefix.is_empty() && !self.is_labelled(&tail) {
                        self.add(prefix);
                        return self.print(&datum);
                    }
                }
                self.add("(");
                self.print(&head);
                let mut rest = tail;
                while let Some((head, tail)) = rest.ends(m)
                    && !self.is_labelled(&rest)
                {
                    self.add(" ");
                    self.print(&head);
                    rest = tail;
                }
                if !matches!(rest, Value::Nil) {
                    self.add(" . ");
                    self.print(&rest);
                }
                self.add(")");
            }
            Value::Vector(vector) => {
                if self.label(value) {
                    return;
                }
                self.add("#(");
                for (i, item) in vector.items.get(m).iter().enumerate() {
                    self.add(if i > 0 { " " } else { "" });
                    self.print(item);
                }
                self.add(")");
            }
            _ => self.atom(value),
        }
    }

    fn atom(&mut self, value: &Value) {
        let m = self.m;
        if let Some(text) = number::format(value, 10) {
            return self.add(&text);
        }
        let text = match value {
            Value::Str(string) => {
                let chars = string.chars.get(m);
                return if self.quoted {
                    self.string(&chars, '"')
                } else {
                    self.text.extend(chars)
                };
            }
            Value::Symbol(symbol) => {
                let is_plain = !symbol.name.is_empty()
                    && symbol.name != "."
                    && !symbol
                        .name
                        .chars()
                        .any(|c| c.is_whitespace() || "()\"';`,|".contains(c) || c.is_uppercase())
                    && !symbol.name.starts_with(|c: char| c.is_ascii_digit() || c == '#');
                if is_plain || !self.quoted {
                    return self.add(&symbol.name);
                }
                let chars: Vec<char> = symbol.name.chars().collect();
                return self.string(&chars, '|');
            }
            Value::Char(c) if !self.quoted => return self.text.push(*c),
            Value::Char(c) => match NAMED.iter().find(|(_, it)| it == c) {
                Some((name, _)) => format!("#\\{name}"),
                None if c.is_control() => format!("#\\x{:x}", u32::from(*c)),
                None => format!("#\\{c}"),
            },
            Value::Bytes(bytes) => {
                let bytes: Vec<String> = bytes.bytes.get(m).iter().map(u8::to_string).collect();
                format!("#u8({})", bytes.join(" "))
            }
            Value::Unspecified => "#<unspecified>".to_string(),
            Value::Undefined => "#<undefined>".to_string(),
            Value::Eof => "#<eof>".to_string(),
            Value::Nil => "()".to_string(),
            Value::Bool(true) => "#t".to_string(),
            Value::Bool(false) => "#f".to_string(),
            Value::Native(native) => format!("#<procedure {}>", native.name),
            Value::Closure(closure) => format!("#<procedure {}>", closure.header.name),
            Value::Cases(_) => "#<procedure>".to_string(),
            Value::Continuation(_) => "#<continuation>".to_string(),
            Value::Special(_) | Value::Macro(_) => "#<syntax>".to_string(),
            Value::Record(record) => {
                self.add("#<");
                self.add(&record.header.name);
                for (field, value) in record.header.fields.iter().zip(&record.items) {
                    let value = value.get(m);
                    self.add(&format!(" {}: ", field.name));
                    // Records may refer to each other.
                    match &value {
                        Value::Record(inner) => self.add(&format!("#<{}>", inner.header.name)),
                        Value::Pair(_) | Value::Vector(_) => self.add("..."),
                        other => self.atom(other),
                    }
                }
                ">".to_string()
            }
            Value::RecordType(it) => format!("#<record-type {}>", it.name),
            Value::Condition(condition) => {
                self.add("#<condition ");
                self.print(&condition.message);
                for irritant in condition.irritants.items(m).0 {
                    self.add(" ");
                    self.print(&irritant);
                }
                ">".to_string()
            }
            Value::Values(values) => {
                for (i, value) in values.items.iter().enumerate() {
                    self.add(if i > 0 { " " } else { "" });
                    self.print(value);
                }
                String::new()
            }
            Value::Promise(_) => "#<promise>".to_string(),
            Value::Parameter(_) => "#<parameter>".to_string(),
            Value::Table(_) => "#<hash-table>".to_string(),
            Value::Port(_) => "#<port>".to_string(),
            Value::Thread(_) => "#<thread>".to_string(),
            Value::Mutex(_) => "#<mutex>".to_string(),
            Value::CondVar(_) => "#<condition-variable>".to_string(),
            Value::Channel(_) => "#<channel>".to_string(),
            Value::Guardian(_) => "#<guardian>".to_string(),
            _ => "#<object>".to_string(),
        };
        self.add(&text);
    }

    fn string(&mut self, chars: &[char], quote: char) {
        self.text.push(quote);
        for c in chars {
            match c {
                '\n' => self.add("\\n"),
                '\t' => self.add("\\t"),
                '\r' => self.add("\\r"),
                '\\' => self.add("\\\\"),
                c if *c == quote => self.text.extend(['\\', *c]),
                c if c.is_control() => {
                    write!(self.text, "\\x{:x};", u32::from(*c)).expect("a string takes all text");
                }
                c => self.text.push(*c),
            }
        }
        self.text.push(quote);
    }
}
