//! The result of a check: the broken rule and its place.

#![forbid(unsafe_code)]

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The rule that a model has broken. The first seven are the numbered rules of
/// [`ObjectModel`](standstill::model::ObjectModel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Rule 1: counts are real.
    Counts,
    /// Rule 2: memory is freed only at count 0, and then it is freed, once.
    Memory,
    /// Rule 3: a stop is a stop.
    Stop,
    /// Rule 4: traversal reports live references, all of them, each once.
    Traversal,
    /// Rule 5: `merge` merges pending counts.
    Merge,
    /// Rule 6: no safepoint inside.
    NoSafepoint,
    /// Rule 7: uncounted references are named.
    Uncounted,
    /// Rule 8: two traversals in one stop report the same references.
    Stable,
    /// `clear` empties the fields that can be part of a cycle.
    Clear,
    /// A finalizer runs once, and `has_finalizer` knows it.
    Finalizer,
    /// A cleared weak reference cannot be upgraded, and its callback is called once.
    Weak,
    /// `pending` and `callbacks` are upper limits.
    Limits,
    /// `count`, `is_immortal`, `legacy`, `has_legacy` and `check` answer for the object that
    /// they are asked about.
    Answers,
    /// Methods do not panic, except where their documentation says so.
    Panics,
    /// Refused memory is an error, and leaves everything as it was.
    Refusal,
    /// A request sets the runtime's poll word, and is answered.
    Requests,
    /// A stop of the heap stops the runtime, and resumes it.
    RuntimeStop,
    /// No thread waits for ever. It is found only under `--cfg standstill_shuttle`.
    Ends,
}

impl Rule {
    /// The number in the documentation of [`ObjectModel`](standstill::model::ObjectModel), if the
    /// rule has one.
    pub fn number(self) -> Option<u8> {
        match self {
            Self::Counts => Some(1),
            Self::Memory => Some(2),
            Self::Stop => Some(3),
            Self::Traversal => Some(4),
            Self::Merge => Some(5),
            Self::NoSafepoint => Some(6),
            Self::Uncounted => Some(7),
            Self::Stable => Some(8),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Counts => "counts are real",
            Self::Memory => "memory is freed at count 0, once, and not before",
            Self::Stop => "no count is lowered and nothing is freed in a stop",
            Self::Traversal => "a traversal reports each live reference of the object, once",
            Self::Merge => "`merge` makes counts exact and reports every dead object",
            Self::NoSafepoint => {
                "no method reaches a safepoint, detaches, attaches or stops the world"
            }
            Self::Uncounted => "each uncounted reference is named, and nothing else",
            Self::Stable => "two traversals in a stop report the same",
            Self::Clear => "`clear` empties the fields that can be part of a cycle",
            Self::Finalizer => {
                "a finalizer runs once, and `has_finalizer` tells whether there is one"
            }
            Self::Weak => {
                "a cleared weak reference cannot be upgraded, and each callback is called once"
            }
            Self::Limits => "`pending` and `callbacks` return upper limits",
            Self::Answers => "each answer fits the object",
            Self::Panics => "this method does not panic",
            Self::Refusal => "refused memory is an error that changes nothing",
            Self::Requests => "a request sets the runtime's poll word, and is answered",
            Self::RuntimeStop => "a stop of the heap stops the runtime, and its end resumes it",
            Self::Ends => "no thread waits for ever",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "rule {number} of `ObjectModel`: {}", self.text()),
            None => f.write_str(self.text()),
        }
    }
}

/// A broken rule, found while a program ran.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    pub(crate) method: &'static str,
    /// The number of the object in the program.
    pub(crate) object: Option<usize>,
    pub(crate) text: Cow<'static, str>,
}

/// The result of a step.
pub(crate) type Checked<T> = Result<T, Box<Finding>>;

/// A finding, as an error.
pub(crate) fn finding<T>(
    rule: Rule,
    method: &'static str,
    object: Option<usize>,
    text: impl Into<Cow<'static, str>>,
) -> Checked<T> {
    let text = text.into();
    // A panic of the heap names the rule: a second free of the same memory.
    let names_memory = rule == Rule::Panics && text.contains("rule 2 of `ObjectModel`");
    let rule = if names_memory { Rule::Memory } else { rule };
    Err(Box::new(Finding { rule, method, object, text }))
}

/// A finding of the heap's own checks, whose text names the rule, or a panic of the model.
pub(crate) fn found_by_heap<T>(method: &'static str, text: &str) -> Checked<T> {
    let rules = [
        ("rule 1 (", Rule::Counts),
        ("rule 2 (", Rule::Memory),
        ("rule 3 (", Rule::Stop),
        ("rule 4 (", Rule::Traversal),
        ("rule 5 (", Rule::Merge),
        ("rule 8 (", Rule::Stable),
        ("the contract of `clear`", Rule::Clear),
        ("the contract of `pending`", Rule::Limits),
        ("the method does not panic", Rule::Panics),
    ];
    let first = rules
        .into_iter()
        .filter_map(|(start, rule)| Some((text.find(start)?, rule)))
        .min_by_key(|&(at, _)| at);
    let rule = match first {
        Some((_, rule)) => rule,
        None if text.contains("memory was written to after it was freed") => Rule::Memory,
        None if text.contains("heap 'conformance': ") => Rule::Answers,
        None => Rule::Panics,
    };
    let (text, _advice) = text.split_once(". Unsafe code,").unwrap_or((text, ""));
    finding(rule, method, None, text.to_owned())
}

/// Calls code of the model. An error is the text of its panic.
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Cow<'static, str>> {
    catch_unwind(AssertUnwindSafe(f)).map_err(text_of)
}

fn text_of(payload: Box<dyn Any + Send>) -> Cow<'static, str> {
    let payload = match payload.downcast::<String>() {
        Ok(text) => return Cow::Owned(*text),
        Err(payload) => payload,
    };
    let text = payload.downcast_ref::<&'static str>().copied().map(Cow::Borrowed);
    // Its destructor is code of the model, and may panic.
    std::mem::forget(payload);
    text.unwrap_or(Cow::Borrowed("a panic without a message"))
}

/// The name of the object with this number in texts: a, b, … z, a1, b1, …
pub(crate) fn name_of(object: usize) -> String {
    let letter = char::from(b'a' + (object % 26) as u8);
    if object < 26 { letter.to_string() } else { format!("{letter}{}", object / 26) }
}

/// "n references exist", in the right number.
pub(crate) fn exist(count: usize) -> String {
    match count {
        1 => "1 reference exists".to_owned(),
        _ => format!("{count} references exist"),
    }
}

/// A model has broken a rule: which one, where, and the program that shows it.
///
/// Its `Display` and `Debug` are the same text, so `check::<M>().unwrap()` shows it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broken {
    /// The rule.
    pub rule: Rule,
    /// The method that broke it: of [`ObjectModel`](standstill::model::ObjectModel), or of
    /// [`Specimen`](super::Specimen) with that prefix.
    pub method: &'static str,
    /// The name of the object's type, as the model says, if one object is concerned.
    pub type_name: Option<String>,
    /// The expected and the observed behaviour.
    pub what: String,
    /// The seed with which [`Check::seed`](super::Check::seed) repeats it.
    pub seed: u64,
    /// The shortest program that was found to show it, a line for each step. The last line is the
    /// step in which the rule was broken.
    pub program: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the model breaks {}", self.rule)?;
        write!(f, "  method:  {}", self.method)?;
        if let Some(name) = &self.type_name {
            write!(f, ", for an object of type {name}")?;
        }
        writeln!(f, "\n  finding: {}", self.what)?;
        write!(f, "  program: (seed {})", self.seed)?;
        for (at, line) in self.program.iter().enumerate() {
            write!(f, "\n    {:2}. {line}", at + 1)?;
        }
        if !self.program.is_empty() {
            write!(f, "    <- here")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Broken {}

/// The extent of a check that found no broken rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Programs that ran.
    pub programs: usize,
    /// Their steps.
    pub steps: usize,
    /// Objects that they made.
    pub objects: usize,
    /// Collections.
    pub collections: usize,
    /// The parts that the model does not have, or that [`Specimen`](super::Specimen) does not show.
    pub skipped: Vec<&'static str>,
}

impl CheckReport {
    pub(crate) fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.steps += other.steps;
        self.objects += other.objects;
        self.collections += other.collections;
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no broken rule in {} programs, {} steps, {} objects, {} collections",
            self.programs, self.steps, self.objects, self.collections
        )?;
        if !self.skipped.is_empty() {
            write!(f, "; not checked: {}", self.skipped.join(", "))?;
        }
        Ok(())
    }
}
