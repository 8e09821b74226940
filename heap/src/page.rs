//! All about a snapshot as one HTML file, which needs no server, no network and no script.

use std::fmt;

use crate::census::{ClassTable, Summary};
use crate::pauses::{Pause, PauseKind, Pauses, SlowReport, nearest_rank};
use crate::suspects::{Suspect, Suspects};
use crate::text::grouped;
use crate::tree::Tree;
use crate::treemap;

/// The classes that the table has.
const CLASSES: usize = 40;
/// A longer path is cut in its middle.
const STEPS: usize = 24;

/// Scripts and everything from elsewhere are forbidden, so that no name of a hostile snapshot can
/// do harm, even if it were not escaped.
const HEAD: &str = "<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" \
content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">
<meta name=\"viewport\" content=\"width=device-width\">
<link rel=\"icon\" href=\"data:,\">
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1180px;
  margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em }
table { border-collapse: collapse } td, th { padding: 2px 12px 2px 0; text-align: right;
  font-variant-numeric: tabular-nums; border-bottom: 1px solid #e4e4e4 }
td:last-child, th:last-child { text-align: left; overflow-wrap: anywhere }
svg { width: 100%; height: auto; font-size: 11px } rect { stroke: #fff; stroke-width: 1 }
svg text { pointer-events: none } p.note { color: #666 }
ol { overflow-wrap: anywhere; padding-left: 1.6em } code { font-size: 13px }
article { border-left: 3px solid #c8553d; padding-left: 1em; margin: 1.5em 0 }
dl { display: grid; grid-template-columns: max-content auto; gap: 2px 1em } dd { margin: 0 }
</style>
";

/// A report about a snapshot.
#[derive(Debug)]
pub struct Page<'a> {
    /// Its name.
    pub title: &'a str,
    /// What it is about.
    pub tree: &'a Tree<'a>,
    /// The pauses of the process, if there is a log of them.
    pub pauses: Option<&'a Pauses>,
    /// The percentage of the reachable bytes that makes a suspect.
    pub share: u64,
}

/// `text` as it stands in HTML, without control characters.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push(char::REPLACEMENT_CHARACTER),
            c => safe.push(c),
        }
    }
    safe
}

/// For example `6.7 MB`.
pub(crate) fn bytes(number: u64) -> String {
    let units = ["kB", "MB", "GB", "TB", "PB"];
    let mut value = number as f64;
    let mut unit = "B";
    for next in units {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    if unit == "B" || value >= 99.95 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = escaped(self.title);
        writeln!(f, "<!DOCTYPE html>\n<html lang=\"en\">\n{HEAD}<title>{title}</title>")?;
        writeln!(f, "<h1>{title}</h1>")?;
        let summary = Summary::of(self.tree);
        figures(f, &summary)?;
        writeln!(f, "<h2>Retained bytes</h2>")?;
        writeln!(
            f,
            "<p class=note>A rectangle is as large as what would be free without its object. What \
             lies in it is retained by it. Point at a rectangle for its figures.</p>"
        )?;
        let mut map = String::new();
        treemap::draw(&mut map, self.tree)?;
        f.write_str(&map)?;
        self.suspects(f)?;
        classes(f, &ClassTable::of(self.tree, CLASSES))?;
        if let Some(pauses) = self.pauses {
            chart(f, pauses)?;
        }
        writeln!(f, "</html>")
    }
}

fn figures(f: &mut fmt::Formatter<'_>, summary: &Summary) -> fmt::Result {
    let mut rows = vec![
        ("reachable", summary.reachable_nodes as u64, Some(summary.reachable_bytes)),
        ("in the snapshot", summary.nodes as u64, Some(summary.bytes)),
        ("references", summary.edges as u64, None),
        ("weak references", summary.weak_edges as u64, None),
        ("references of the root", summary.held as u64, None),
        ("classes", summary.classes as u64, None),
    ];
    rows.extend(summary.old.map(|old| ("old objects", old as u64, None)));
    rows.extend(summary.outside.map(|all| ("references from outside", all, None)));
    writeln!(f, "<dl>")?;
    for (name, number, size) in rows {
        let size = size.map(|size| format!(" objects, {}", bytes(size))).unwrap_or_default();
        writeln!(f, "<dt>{name}<dd>{}{size}", grouped(number))?;
    }
    writeln!(f, "</dl>")
}

impl Page<'_> {
    fn suspects(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Suspects { total, suspects } = Suspects::of(self.tree, self.share);
        writeln!(f, "<h2>Suspects</h2>")?;
        if suspects.is_empty() {
            writeln!(f, "<p>Nothing retains {} % of the reachable bytes.</p>", self.share)?;
        }
        for suspect in &suspects {
            writeln!(f, "<article><strong>{}</strong>", escaped(&suspect.headline(total)))?;
            article(f, suspect)?;
            writeln!(f, "</article>")?;
        }
        Ok(())
    }
}

fn article(f: &mut fmt::Formatter<'_>, suspect: &Suspect) -> fmt::Result {
    let largest = if suspect.objects > 1 { "The largest one" } else { "It" };
    writeln!(f, "<p>{largest} piles up {}.</p>", escaped(&suspect.place(bytes)))?;
    if suspect.list.is_none() && !suspect.below.is_empty() {
        writeln!(f, "<ul>")?;
        for (count, retained, class) in &suspect.below {
            let count = grouped(*count as u64);
            writeln!(f, "<li>{count} x {}, {}", escaped(class), bytes(*retained))?;
        }
        writeln!(f, "</ul>")?;
    }
    writeln!(f, "<p>The shortest path to it:</p><ol start=0>")?;
    let steps = &suspect.path.steps;
    for (at, step) in steps.iter().enumerate() {
        let (first, last) = (STEPS / 2, steps.len().saturating_sub(STEPS / 2));
        if at == first && first < last {
            writeln!(f, "<li value={at}>and {} more objects", last - first)?;
        }
        if at < first || at >= last {
            let (field, object) = (escaped(&step.field), escaped(&step.object.to_string()));
            writeln!(f, "<li value={at}><code>{field}</code> {object}")?;
        }
    }
    writeln!(f, "</ol>")
}

fn classes(f: &mut fmt::Formatter<'_>, table: &ClassTable) -> fmt::Result {
    let rows = &table.classes;
    let (has_old, has_outside) =
        (rows.iter().any(|row| row.old.is_some()), rows.iter().any(|row| row.outside.is_some()));
    write!(f, "<h2>Classes</h2>\n<table>\n<tr><th>retained<th>own bytes<th>objects")?;
    let columns = [(has_old, "old"), (has_outside, "from outside")];
    for (_, head) in columns.iter().filter(|(is_there, _)| *is_there) {
        write!(f, "<th>{head}")?;
    }
    writeln!(f, "<th>class")?;
    for row in rows {
        let (retained, own) = (bytes(row.retained_bytes), bytes(row.bytes));
        write!(f, "<tr><td>{retained}<td>{own}<td>{}", grouped(row.objects))?;
        for number in [row.old, row.outside].into_iter().flatten() {
            write!(f, "<td>{}", grouped(number))?;
        }
        writeln!(f, "<td>{}", escaped(&row.class))?;
    }
    writeln!(f, "</table>")?;
    match table.omitted {
        0 => Ok(()),
        more => writeln!(f, "<p class=note>and {} more classes</p>", grouped(more as u64)),
    }
}

const CHART: (f64, f64) = (1160.0, 260.0);
/// Bars of a chart: of more pauses than that, each bar is the longest of several.
const BARS: usize = 580;
const KINDS: [(PauseKind, &str, &str); 3] = [
    (PauseKind::Full, "full collections", "#c8553d"),
    (PauseKind::Young, "young collections", "#2a7f9e"),
    (PauseKind::Promotion, "promotions", "#8a8a3c"),
];

fn chart(f: &mut fmt::Formatter<'_>, pauses: &Pauses) -> fmt::Result {
    writeln!(f, "<h2>Pauses over time</h2>")?;
    if pauses.pauses.is_empty() {
        writeln!(f, "<p>The log has none.</p>")?;
    } else {
        bars(f, pauses)?;
    }
    if pauses.slow_count > 0 {
        let (count, kept) = (grouped(pauses.slow_count as u64), pauses.slow.len());
        writeln!(f, "<h2>Slow waits</h2><p>{count} reports; the last {kept}:</p><ul>")?;
        for SlowReport { text, .. } in &pauses.slow {
            writeln!(f, "<li>{}", escaped(text))?;
        }
        writeln!(f, "</ul>")?;
    }
    Ok(())
}

fn bars(f: &mut fmt::Formatter<'_>, pauses: &Pauses) -> fmt::Result {
    let all = &pauses.pauses;
    let longest = all.iter().map(|pause| pause.micros).max().unwrap_or(0);
    writeln!(f, "<table><tr><th>pauses<th>median<th>99th percentile<th>maximum<th>sum<th>of")?;
    for (kind, name, color) in KINDS {
        let times = pauses.sorted(kind);
        let Some(&last) = times.last() else { continue };
        let at = |percent| time(nearest_rank(&times, percent));
        let sum = times.iter().fold(0, |sum: u64, micros| sum.saturating_add(*micros));
        writeln!(
            f,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td><span style=\"color:{color}\">■</span> {name}",
            grouped(times.len() as u64),
            at(50),
            at(99),
            time(last),
            time(sum)
        )?;
    }
    let (width, height) = CHART;
    let size = all.len().div_ceil(BARS);
    let step = (width - 60.0) / all.len().div_ceil(size) as f64;
    let high = |micros: u64| (micros as f64 / longest.max(1) as f64) * (height - 30.0);
    writeln!(
        f,
        "</table>\n<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Pauses over time\">"
    )?;
    for part in [0.0, 0.5, 1.0] {
        let y = height - 10.0 - part * (height - 30.0);
        let text = time((longest as f64 * part) as u64);
        writeln!(
            f,
            "<path d=\"M60 {y:.1}H{width}\" stroke=\"#ddd\"/><text x=\"0\" y=\"{:.1}\">{text}</text>",
            y + 4.0
        )?;
    }
    for (at, several) in all.chunks(size).enumerate() {
        let Some(Pause { kind, micros }) = several.iter().max_by_key(|pause| pause.micros) else {
            continue;
        };
        let (_, name, color) = KINDS.iter().find(|row| row.0 == *kind).unwrap_or(&KINDS[0]);
        let (x, tall) = (60.0 + at as f64 * step, high(*micros).max(1.0));
        writeln!(
            f,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{color}\">\
             <title>{}, {name}</title></rect>",
            height - 10.0 - tall,
            step.min(20.0),
            time(*micros)
        )?;
    }
    for SlowReport { pauses_before, kind, micros, thread, .. } in &pauses.slow {
        let x = 60.0 + *pauses_before as f64 / size as f64 * step;
        let kind = escaped(kind.as_deref().unwrap_or("slow wait"));
        let took = micros.map(|micros| format!(", {}", time(micros))).unwrap_or_default();
        let by = thread.as_ref().map(|name| format!(", because of thread {}", escaped(name)));
        writeln!(
            f,
            "<path d=\"M{x:.1} 14l-5 -10h10z\"><title>{kind}{took}{}</title></path>",
            by.unwrap_or_default()
        )?;
    }
    writeln!(f, "</svg>")?;
    if size > 1 {
        writeln!(f, "<p class=note>A bar is the longest of {size} pauses.</p>")?;
    }
    if !pauses.slow.is_empty() {
        writeln!(f, "<p class=note>A triangle is a slow wait.</p>")?;
    }
    Ok(())
}

/// Microseconds, for example `1.3 ms`.
fn time(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}
