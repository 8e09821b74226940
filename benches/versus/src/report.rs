//! From `results.jsonl` to `table.md` and the charts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use pauses::stats::{Spread, spread};
use pauses::table::number;
use pauses::{chart, machine};

use crate::contestants;
use crate::task::{Line, Workload};

/// One contestant in one row of the plan: a workload with a number of threads.
pub struct Entry {
    /// The contestant.
    pub contestant: String,
    /// Whether the contestant is another project.
    pub rival: bool,
    /// Nanoseconds a unit, in the rounds that passed their checks.
    pub ns: Option<Spread>,
    /// The largest peak, in MiB.
    pub peak: Option<f64>,
    /// The failures with their numbers, and other remarks.
    pub notes: Vec<String>,
    /// Medians of the facts.
    facts: BTreeMap<String, f64>,
}

/// All contestants with a workload and a number of threads.
pub struct Group {
    /// The workload.
    pub workload: Workload,
    /// The threads.
    pub threads: usize,
    /// The size.
    n: usize,
    /// The fastest first; those without a figure last.
    pub entries: Vec<Entry>,
}

/// Reads the results of a folder, and writes the table and the charts there.
pub fn write(out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let text = fs::read_to_string(out.join("results.jsonl"))?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Line>, _>>()?;
    let groups = groups(&lines);
    let rounds = lines.iter().map(|line| line.round + 1).max().unwrap_or(0);
    let table = table(&groups, rounds);
    fs::write(out.join("table.md"), &table)?;
    for &workload in Workload::ALL {
        let of: Vec<&Group> = groups.iter().filter(|group| group.workload == workload).collect();
        if !of.is_empty() {
            bars(&out.join(format!("{workload:?}.svg")), workload, &of)?;
        }
    }
    println!("{table}");
    println!("written to {}", out.display());
    Ok(())
}

fn groups(lines: &[Line]) -> Vec<Group> {
    type Key = (Workload, usize, usize);
    let mut by_row: BTreeMap<Key, BTreeMap<&str, Vec<&Line>>> = BTreeMap::new();
    for line in lines {
        let row = by_row.entry((line.workload, line.threads, line.n)).or_default();
        row.entry(&line.contestant).or_default().push(line);
    }
    by_row
        .into_iter()
        .map(|((workload, threads, n), by_contestant)| {
            let mut entries: Vec<Entry> =
                by_contestant.into_iter().map(|(name, lines)| entry(name, &lines)).collect();
            let rank = |entry: &Entry| entry.ns.map_or(f64::INFINITY, |ns| ns.median);
            entries.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
            Group { workload, threads, n, entries }
        })
        .collect()
}

fn entry(name: &str, lines: &[&Line]) -> Entry {
    let passed: Vec<&&Line> = lines.iter().filter(|line| line.outcome == "ok").collect();
    let ns = spread(&passed.iter().filter_map(|line| line.ns).collect::<Vec<_>>());
    let peak =
        passed.iter().filter_map(|line| line.peak_rss_kib).max().map(|kib| kib as f64 / 1024.0);
    let mut notes = Vec::new();
    let mut wrong: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.outcome != "ok") {
        *wrong.entry(&line.outcome).or_default() += 1;
    }
    for (what, times) in wrong {
        notes.push(if times == lines.len() {
            what.to_owned()
        } else {
            format!("{what} ({times} x)")
        });
    }
    if lines.iter().any(|line| line.overflowed) {
        notes.push("overflowed a stack of 8 MiB; again with 4 GiB".to_owned());
    }
    let mut facts: BTreeMap<String, f64> = BTreeMap::new();
    for key in passed.iter().flat_map(|line| line.facts.keys()) {
        let values: Vec<_> =
            passed.iter().filter_map(|line| line.facts.get(key).copied()).collect();
        facts.extend(spread(&values).map(|values| (key.clone(), values.median)));
    }
    if let Some(leaked) = facts.get("leaked_nodes").filter(|leaked| **leaked > 0.0) {
        notes.push(format!("leaks {leaked:.0} nodes"));
    }
    let rival = contestants::ALL.iter().any(|known| known.name == name && known.rival);
    Entry { contestant: name.to_owned(), rival, ns, peak, notes, facts }
}

/// Bars for each contestant, one for each number of threads.
fn bars(
    path: &Path,
    workload: Workload,
    groups: &[&Group],
) -> Result<(), Box<dyn std::error::Error>> {
    let what = if workload.threads_are_workers() { "workers" } else { "threads" };
    let series: Vec<String> =
        groups.iter().map(|group| format!("{what}: {}", group.threads)).collect();
    let mut names: Vec<&str> = Vec::new();
    for entry in groups.iter().flat_map(|group| &group.entries) {
        if !names.contains(&entry.contestant.as_str()) {
            names.push(&entry.contestant);
        }
    }
    let bars = names.into_iter().map(|name| {
        let entries: Vec<Option<&Entry>> = groups.iter().map(|group| group.entry(name)).collect();
        let remark = entries.iter().flatten().any(|entry| !entry.notes.is_empty());
        chart::Group {
            name: format!("{name}{}", if remark { " *" } else { "" }),
            values: entries.iter().map(|entry| (*entry)?.ns).collect(),
        }
    });
    let title = format!("{workload:?}: {}", workload.about());
    let label = format!("core ns per {}: median, and extremes", workload.unit());
    chart::bars(path, &title, &label, &series, &bars.collect::<Vec<_>>())
}

impl Group {
    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.contestant == name)
    }

    fn median_of(&self, name: &str) -> Option<f64> {
        self.entry(name)?.ns.map(|ns| ns.median)
    }

    /// Entries are sorted: the first rival with a figure is the best.
    fn best_rival(&self) -> Option<(&str, f64)> {
        let best = self.entries.iter().find(|entry| entry.rival && entry.ns.is_some())?;
        Some((&best.contestant, best.ns?.median))
    }
}

fn ratio(value: Option<f64>, to: Option<f64>) -> String {
    match (value, to) {
        (Some(value), Some(to)) => format!("{:.2}", value / to),
        _ => "–".to_owned(),
    }
}

fn table(groups: &[Group], rounds: usize) -> String {
    let mut text = String::from("# standstill beside its rivals\n\n");
    let _ = writeln!(
        text,
        "Core nanoseconds a unit (wall time, times the cores that the threads can have, by the units), medians \
         of {rounds} rounds. {}. T: threads; in W4 and W5 the collector's. Best rival: with the \
         same T, and where there is none, with one thread.\n",
        machine::describe()
    );
    summary(&mut text, groups);
    for group in groups {
        details(&mut text, group);
    }
    text
}

fn summary(text: &mut String, groups: &[Group]) {
    text.push_str(
        "| work | T | standstill | x Arc | best rival | | x rival | with hint | x rival |\n",
    );
    text.push_str("|---|---:|---:|---:|---|---:|---:|---:|---:|\n");
    for group in groups {
        let ours = group.median_of("standstill");
        let hinted = group.median_of("standstill-hint");
        let alone = groups
            .iter()
            .find(|other| (other.workload, other.n, other.threads) == (group.workload, group.n, 1));
        let rival = group.best_rival().or_else(|| alone.and_then(Group::best_rival));
        let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
        let _ = writeln!(
            text,
            "| {:?} | {} | {} | {} | {} | {} | {} | {} | {} |",
            group.workload,
            group.threads,
            cell(ours),
            ratio(ours, group.median_of("Arc")),
            rival.map_or("–", |(name, _)| name),
            cell(rival.map(|(_, ns)| ns)),
            ratio(ours, rival.map(|(_, ns)| ns)),
            cell(hinted),
            ratio(hinted, rival.map(|(_, ns)| ns)),
        );
    }
}

fn details(text: &mut String, group: &Group) {
    let _ = writeln!(
        text,
        "\n## {:?}, T = {}, n = {}: {} (ns per {})\n",
        group.workload,
        group.threads,
        group.n,
        group.workload.about(),
        group.workload.unit()
    );
    let (arc, best) = (group.median_of("Arc"), group.best_rival().map(|(_, ns)| ns));
    // The facts of all contestants, as columns. The number of leaked nodes is a remark.
    let mut facts: Vec<&str> =
        group.entries.iter().flat_map(|entry| entry.facts.keys().map(String::as_str)).collect();
    facts.sort_unstable();
    facts.dedup();
    facts.retain(|fact| fact.ends_with("_ns"));
    text.push_str("| contestant | median | min | max | x Arc | x best rival | peak MiB |");
    for fact in &facts {
        let _ = write!(text, " {} ms |", fact.trim_end_matches("_ns"));
    }
    text.push_str(" notes |\n|---|---:|---:|---:|---:|---:|---:|");
    text.push_str(&"---:|".repeat(facts.len()));
    text.push_str("---|\n");
    for entry in &group.entries {
        let median = entry.ns.map(|ns| ns.median);
        let cells = entry.ns.map_or_else(Default::default, |Spread { median, least, greatest }| {
            [median, least, greatest].map(number)
        });
        let _ = write!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            entry.contestant,
            cells[0],
            cells[1],
            cells[2],
            ratio(median, arc),
            ratio(median, best),
            entry.peak.map_or_else(String::new, |peak| format!("{peak:.0}")),
        );
        for fact in &facts {
            let value = entry.facts.get(*fact).map_or_else(String::new, |ns| number(ns / 1e6));
            let _ = write!(text, " {value} |");
        }
        let _ = writeln!(text, " {} |", entry.notes.join("; "));
    }
}
