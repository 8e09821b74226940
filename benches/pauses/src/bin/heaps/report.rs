//! The table.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use pauses::machine;
use pauses::stats::{Spread, spread};
use pauses::table::{grouped, number};

use crate::figures::{Figures, Line};
use crate::measure::Contestant;
use crate::python::FREE_THREADED;

/// Writes `heaps.md`.
pub(crate) fn write(out: &Path, lines: &[Line]) -> io::Result<()> {
    let heaps: Vec<Heap<'_>> = distinct(lines.iter().map(|line| &line.heap))
        .into_iter()
        .map(|name| Heap::of(lines.iter().filter(|line| line.heap == *name)))
        .collect();
    fs::write(out.join("heaps.md"), table(&heaps, lines))
}

/// The distinct values, in the order of first appearance.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

/// A contestant's medians over the rounds, in milliseconds.
struct Row<'a> {
    contestant: &'a str,
    workers: Option<usize>,
    held: Option<Spread>,
    held_stopped: Option<Spread>,
    dropped: Option<Spread>,
    dropped_collecting: Option<Spread>,
    dropped_stopped: Option<Spread>,
    trouble: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn of(lines: &[&'a Line]) -> Self {
        let trouble =
            lines.iter().map(|line| line.outcome.as_str()).find(|outcome| *outcome != "ok");
        // A figure with a failed check does not count.
        let over = |figure: fn(&Figures) -> Option<f64>| {
            let values: Vec<f64> = lines.iter().filter_map(|line| figure(&line.figures)).collect();
            if trouble.is_none() { spread(&values) } else { None }
        };
        Self {
            contestant: &lines[0].contestant,
            workers: lines[0].workers,
            held: over(|figures| median(&figures.held_ms)),
            held_stopped: over(|figures| median(&figures.held_stopped_ms)),
            dropped: over(|figures| figures.dropped_ms),
            dropped_collecting: over(|figures| figures.dropped_collecting_ms),
            dropped_stopped: over(|figures| figures.dropped_stopped_ms),
            trouble,
        }
    }

    /// Not ours, and no ideal.
    fn is_python(&self) -> bool {
        self.workers.is_none()
    }
}

fn median(values: &[f64]) -> Option<f64> {
    spread(values).map(|spread| spread.median)
}

/// The times of all contestants for one heap.
struct Heap<'a> {
    name: &'a str,
    objects: usize,
    edges: usize,
    rows: Vec<Row<'a>>,
}

impl<'a> Heap<'a> {
    fn of(lines: impl Iterator<Item = &'a Line>) -> Self {
        let lines: Vec<&Line> = lines.collect();
        let mut keys = distinct(lines.iter().map(|line| (line.workers, line.contestant.as_str())));
        // Rounds begin with different ones; the table is in one order, CPython last.
        keys.sort_by_key(|(workers, contestant)| {
            (workers.unwrap_or(usize::MAX), place(contestant))
        });
        let rows = keys.iter().map(|key| {
            let same = |line: &&Line| (line.workers, line.contestant.as_str()) == *key;
            Row::of(&lines.iter().copied().filter(same).collect::<Vec<_>>())
        });
        Self {
            name: &lines[0].heap,
            objects: lines[0].objects,
            edges: lines[0].edges,
            rows: rows.collect(),
        }
    }

    /// The ideal mark with as many workers.
    fn ideal(&self, workers: Option<usize>) -> Option<f64> {
        let name = Contestant::Ideal.name();
        let ideal =
            self.rows.iter().find(|row| row.contestant == name && row.workers == workers)?;
        Some(ideal.held?.median)
    }

    /// The least that a free-threaded CPython took; without one, the least of those with a GIL.
    fn python(&self, figure: fn(&Row<'_>) -> Option<Spread>) -> Option<f64> {
        let least = |free_threaded| {
            let same = |row: &&Row<'_>| {
                row.is_python() && row.contestant.ends_with(FREE_THREADED) == free_threaded
            };
            let medians = self.rows.iter().filter(same).filter_map(|row| Some(figure(row)?.median));
            medians.min_by(f64::total_cmp)
        };
        least(true).or_else(|| least(false))
    }

    /// Milliseconds for all as nanoseconds an object.
    fn per_object(&self, ms: f64) -> f64 {
        ms * 1e6 / self.objects as f64
    }
}

/// Where ours stand in the order of contestants; all others behind them.
fn place(contestant: &str) -> usize {
    use clap::ValueEnum;
    let ours = Contestant::value_variants();
    ours.iter().position(|known| known.name() == contestant).unwrap_or(ours.len())
}

fn table(heaps: &[Heap<'_>], lines: &[Line]) -> String {
    let rounds = lines.iter().map(|line| line.round + 1).max().unwrap_or(0);
    let mut text = format!(
        "# Collections of real programs' heaps\n\n{}; medians of {rounds} round{}. Times in ms, with \
         the least and the greatest of the rounds; in parentheses ns an object. × ideal: the \
         stopped time, divided by the time of the ideal mark with as many workers. × CPython: the \
         time of the caller, divided by the time of the fastest free-threaded CPython, or without \
         one of the fastest.\n",
        machine::describe(),
        if rounds == 1 { "" } else { "s" },
    );
    if !heaps.iter().any(|heap| heap.rows.iter().any(Row::is_python)) {
        text.push_str(
            "\nNo CPython of 3.13 or later was asked or found: there is nothing to compare with.\n",
        );
    }
    for heap in heaps {
        let (objects, edges) = (grouped(heap.objects), grouped(heap.edges));
        let _ = writeln!(text, "\n## {}: {objects} objects, {edges} edges\n", heap.name);
        text.push_str(
            "| | workers | held | stopped | × ideal | × CPython | dropped | of it collecting | stopped | × ideal \
             | × CPython |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for row in &heap.rows {
            row_of(&mut text, heap, row);
        }
    }
    text
}

fn row_of(text: &mut String, heap: &Heap<'_>, row: &Row<'_>) {
    let full = |figure: Option<Spread>| {
        figure.map_or_else(none, |Spread { median, least, greatest }| {
            let [median_ms, least, greatest] = [median, least, greatest].map(number);
            format!("{median_ms} [{least}–{greatest}] ({})", number(heap.per_object(median)))
        })
    };
    let short = |figure: Option<Spread>| figure.map_or_else(none, |figure| number(figure.median));
    let times = |figure: Option<Spread>, by: Option<f64>| {
        figure.zip(by).map_or_else(none, |(figure, by)| number(figure.median / by))
    };
    let ideal = heap.ideal(row.workers);
    let cells = [
        row.workers.map_or_else(none, |workers| workers.to_string()),
        row.trouble.map_or_else(|| full(row.held), |trouble| trouble.replace(['|', '\n'], " ")),
        short(row.held_stopped),
        times(row.held_stopped, ideal),
        times(row.held, heap.python(|row| row.held)),
        full(row.dropped),
        short(row.dropped_collecting),
        short(row.dropped_stopped),
        times(row.dropped_stopped, ideal),
        times(row.dropped, heap.python(|row| row.dropped)),
    ];
    let _ = writeln!(text, "| {} | {} |", row.contestant, cells.join(" | "));
}

fn none() -> String {
    "–".to_owned()
}
