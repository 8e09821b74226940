//! One line of JSON for each collection, promotion and slow wait, for a program that nobody can
//! change.
//!
//! A subscriber of `tracing` must be built in. So `STANDSTILL_LOG=gc` makes every heap of the
//! process write lines to standard error, and `STANDSTILL_LOG=gc:FILE` appends them to a file. For
//! example, the line of a full collection begins with
//! `{"event":"collection","time_ms":1700000000000,"pid":4711,"heap":"app"`.
//!
//! A line is one object, without line breaks inside, and each number of microseconds has a name
//! that ends in `_us`. The text takes memory; a line without it is lost. Each line is one write, so
//! that those of several threads and processes do not mix. A line that the file does not take goes
//! to standard error. A file that blocks, such as a pipe that nobody reads, blocks the heap.

#![forbid(unsafe_code)]

use std::fmt::{self, Display, Write};
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use crate::base::environment::{Environment, LogTo};
use crate::base::fallible;
use crate::base::outside::{call_outside, whole_line};
use crate::report::facts::{ChildSearch, CollectionReport, LongestCall, TypeShare};

/// A text in quotes, as JSON writes it.
pub(crate) struct Quoted<T>(pub(crate) T);

impl<T: Display> Display for Quoted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escaped<'a, 'f>(&'a mut fmt::Formatter<'f>);
        impl Write for Escaped<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|c| match c {
                    '"' | '\\' => write!(self.0, "\\{c}"),
                    c if c < ' ' => write!(self.0, "\\u{:04x}", u32::from(c)),
                    c => self.0.write_char(c),
                })
            }
        }
        f.write_char('"')?;
        write!(Escaped(f), "{}", self.0)?;
        f.write_char('"')
    }
}

/// The elements of a list or of an object, separated by commas.
struct JsonList<I>(I);

impl<I: Clone + Iterator<Item: Display>> Display for JsonList<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, item) in self.0.clone().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}

struct JsonPair<T>(&'static str, T);

impl<T: Display> Display for JsonPair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", Quoted(self.0), self.1)
    }
}

/// When the line was written, since the epoch, and by which process.
struct Stamp;

impl Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        write!(f, "\"time_ms\":{},\"pid\":{}", now.as_millis(), std::process::id())
    }
}

fn micros(time: Duration) -> u128 {
    time.as_micros()
}

/// The search of a child.
struct ChildAsJson<'a>(&'a ChildSearch);

impl fmt::Display for ChildAsJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChildSearch { took, proposed, examined, parts, unreadable } = self.0;
        let pairs = [
            JsonPair("proposed", proposed),
            JsonPair("examined", examined),
            JsonPair("parts", parts),
            JsonPair("unreadable", unreadable),
        ];
        write!(f, "{{{},{}}}", JsonPair("took_us", micros(*took)), JsonList(pairs.iter()))
    }
}

/// A collection has ended.
pub(crate) fn collection(heap: &str, report: &CollectionReport) {
    let Some(to) = wanted() else { return };
    // Without `..`: a new field of the report does not compile until this function uses it.
    let CollectionReport {
        sequence,
        kind,
        generation,
        reason,
        because,
        tag,
        abandoned,
        tracked,
        candidates,
        known_alive,
        unreachable,
        finalized,
        resurrected,
        collected,
        uncollectable,
        external_bytes,
        overvisited,
        stops,
        time_to_stop,
        late_thread,
        waited,
        duration,
        phases,
        slowest,
        largest_types,
        workers,
        child,
        no_child,
    } = report;
    let phases = PhasesAsJson(phases);
    let slowest = CallsAsJson(slowest);
    let figures = [
        JsonPair("tracked", tracked),
        JsonPair("candidates", candidates),
        JsonPair("known_alive", known_alive),
        JsonPair("unreachable", unreachable),
        JsonPair("finalized", finalized),
        JsonPair("resurrected", resurrected),
        JsonPair("collected", collected),
        JsonPair("uncollectable", uncollectable),
        JsonPair("external_bytes", external_bytes),
        JsonPair("overvisited", overvisited),
        JsonPair("workers", workers),
        JsonPair("generation", generation),
    ];
    let because = OrNull(because.map(Quoted));
    let times =
        [("time_to_stop_us", time_to_stop), ("waited_us", waited), ("duration_us", duration)];
    let times = times.map(|(name, time)| JsonPair(name, micros(*time)));
    let stops = JsonList(stops.iter().map(|&stop| micros(stop)));
    let late_thread = OrNull(late_thread.as_deref().map(Quoted));
    let types = JsonList(largest_types.iter().map(ShareAsJson));
    let abandoned = OrNull(abandoned.as_deref().map(Quoted));
    let child = OrNull(child.as_ref().map(ChildAsJson));
    let no_child = OrNull(no_child.as_deref().map(Quoted));
    write(
        to,
        format_args!(
            "{{\"event\":\"collection\",{Stamp},\"heap\":{},\"sequence\":{sequence},\"kind\":\"{}\",\
             \"reason\":\"{reason:?}\",\"because\":{because},\"tag\":{tag},{},\"stops_us\":[{stops}],{},\"phases_us\":{{{phases}}},\"slowest\":[{slowest}],\
             \"late_thread\":{late_thread},\"largest_types\":[{types}],\"abandoned\":{abandoned},\"child\":{child},\
             \"no_child\":{no_child}}}",
            Quoted(heap),
            kind.name(),
            JsonList(figures.iter()),
            JsonList(times.iter()),
        ),
    );
}

struct PhasesAsJson<'a>(&'a crate::report::facts::PhaseTimes);

impl Display for PhasesAsJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (phase, took)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}\"{phase:?}\":{}", micros(took))?;
        }
        Ok(())
    }
}

struct ShareAsJson<'a>(&'a TypeShare);

impl Display for ShareAsJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TypeShare { type_name, objects, bytes } = self.0;
        let type_name = Quoted(type_name);
        write!(f, "{{\"type\":{type_name},\"objects\":{objects},\"bytes\":{bytes}}}")
    }
}

struct CallsAsJson<'a>(&'a [LongestCall]);

impl Display for CallsAsJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, call) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let (during, type_name) = (call.during, Quoted(&call.type_name));
            let (objects, took) = (call.objects, micros(call.took));
            write!(
                f,
                "{comma}{{\"during\":\"{during:?}\",\"type\":{type_name},\"objects\":{objects},\
                 \"took_us\":{took}}}"
            )?;
        }
        Ok(())
    }
}

struct OrNull<T>(Option<T>);

impl<T: Display> Display for OrNull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("null"),
        }
    }
}

/// New objects have become old without a traversal.
pub(crate) fn promotion(heap: &str, objects: usize, stopped: Duration) {
    let Some(to) = wanted() else { return };
    let (heap, stopped) = (Quoted(heap), micros(stopped));
    write(
        to,
        format_args!(
            "{{\"event\":\"promotion\",{Stamp},\"heap\":{heap},\"objects\":{objects},\
             \"stopped_us\":{stopped}}}"
        ),
    );
}

/// What a line about a slow wait says beside its text.
pub(crate) struct SlowLine<'a> {
    /// The name of the event.
    pub(crate) kind: &'static str,
    pub(crate) waited: Duration,
    /// The thread that causes the wait, or the first of them.
    pub(crate) thread: Option<&'a str>,
    pub(crate) os_thread: Option<u64>,
    pub(crate) purpose: Option<&'static str>,
    /// The slowest code of the program meanwhile, if some was slow.
    pub(crate) slowest: &'a [LongestCall],
}

/// A slow wait was reported.
pub(crate) fn slow(heap: &str, line: &SlowLine<'_>, report: &dyn Display) {
    let Some(to) = wanted() else { return };
    let &SlowLine { kind, waited, thread, os_thread, purpose, slowest } = line;
    let (heap, text, waited) = (Quoted(heap), Quoted(report), micros(waited));
    let (thread, os_thread) = (OrNull(thread.map(Quoted)), OrNull(os_thread));
    let purpose = OrNull(purpose.map(Quoted));
    let slowest = CallsAsJson(slowest);
    write(
        to,
        format_args!(
            "{{\"event\":\"slow\",{Stamp},\"heap\":{heap},\"kind\":\"{kind}\",\
             \"waited_us\":{waited},\"thread\":{thread},\"os_thread\":{os_thread},\
             \"purpose\":{purpose},\"slowest\":[{slowest}],\"text\":{text}}}"
        ),
    );
}

#[inline]
fn wanted() -> Option<&'static LogTo> {
    Environment::get().log.as_ref()
}

#[cold]
fn write(to: &LogTo, line: fmt::Arguments<'_>) {
    let Some(line) = fallible::written(format_args!("{line}\n")) else { return };
    let mut is_written = false;
    if let LogTo::File(path) = to {
        call_outside(|| {
            // Opened for each line, so that the file may be moved away.
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            is_written = file.and_then(|mut file| file.write_all(line.as_bytes())).is_ok();
        });
    }
    if !is_written {
        whole_line(&line);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
