//! The tables and charts of some outcomes.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use pauses::chart::{Axis, Series, lines};
use pauses::machine;

use crate::outcome::{Collections, Distribution, Outcome, Utilisation, WINDOW};

/// Writes everything into `out`, and prints the tables.
pub(crate) fn write(out: &Path, outcomes: &[Outcome]) -> Result<(), Box<dyn Error>> {
    let tables = tables(outcomes)?;
    fs::write(out.join("load.md"), &tables)?;
    print!("{tables}");
    charts(out, outcomes)
}

/// A column of a table over all outcomes: a name, and a cell.
type Column = (&'static str, fn(&Outcome) -> String);

const SUMMARY: &[Column] = &[
    ("threads", |o| o.threads.to_string()),
    ("search in a", |o| o.search.to_string()),
    ("live objects", |o| o.live.to_string()),
    ("requests/s", |o| format!("{:.0}", o.requests as f64 / o.run.seconds)),
    ("objects/s", |o| format!("{:.0}", o.run.objects as f64 / o.run.seconds)),
    ("young", |o| o.run.young.count.to_string()),
    ("full", |o| o.run.full.count.to_string()),
    ("world stopped", |o| percent(o.run.paused_s() / o.run.seconds)),
    ("a thread collects", |o| percent(o.run.collecting_s() / o.run.seconds)),
    ("mutators blocked", |o| percent(o.run.blocked_s / o.run.seconds / o.threads as f64)),
    ("cores, own", |o| format!("{:.2}", o.cores.0)),
    ("others'", |o| format!("{:.2}", o.cores.1)),
    ("memory, start", |o| o.memory.first().map_or_else(String::new, |s| mib(s.resident_mib))),
    ("memory, end", |o| o.memory.last().map_or_else(String::new, |s| mib(s.resident_mib))),
    ("memory, peak", |o| mib(o.peak_mib)),
];

const BUILD: &[Column] = &[
    ("threads", |o| o.threads.to_string()),
    ("objects", |o| o.build.objects.to_string()),
    ("seconds", |o| format!("{:.2}", o.build.seconds)),
    ("ns/object", |o| per(o.build.seconds, o.build.objects)),
    ("of it collecting", |o| per(o.build.collecting_s(), o.build.objects)),
    ("of it stopped", |o| per(o.build.paused_s(), o.build.objects)),
    ("young", |o| o.build.young.count.to_string()),
    ("full", |o| o.build.full.count.to_string()),
    ("looked at, young", |o| share(o.build.young.candidates, o.build.objects)),
    ("looked at, full", |o| share(o.build.full.candidates, o.build.objects)),
    ("last collection", |o| format!("{:.0} ms", o.last_collection_ms)),
    ("died", |o| o.died.to_string()),
];

fn tables(outcomes: &[Outcome]) -> Result<String, std::fmt::Error> {
    let mut text = format!("## Load\n\n{}.\n\n", machine::describe());
    over_all(&mut text, SUMMARY, outcomes)?;
    text += "\nBuilding the live objects, with automatic collections (times the objects: how often each was looked at):\n\n";
    over_all(&mut text, BUILD, outcomes)?;
    for outcome in outcomes {
        let Outcome { threads, workers, search, .. } = outcome;
        writeln!(text, "\n### {threads} thread(s), {workers} worker(s), search in a {search}\n")?;
        text += "| µs | count | p50 | p99 | p99.9 | max | mean |\n|---|---:|---:|---:|---:|---:|---:|\n";
        for Distribution { name, count, p50, p99, p999, max, mean, .. } in &outcome.distributions {
            writeln!(
                text,
                "| {name} | {count} | {p50:.1} | {p99:.1} | {p999:.1} | {max:.1} | {mean:.1} |"
            )?;
        }
        utilisation(&mut text, &outcome.utilisations)?;
        text += "\n| phase | young, µs each | full, ms each |\n|---|---:|---:|\n";
        phases(&mut text, &outcome.run.young, &outcome.run.full)?;
        blocked(&mut text, outcome)?;
    }
    Ok(text)
}

fn over_all(text: &mut String, columns: &[Column], outcomes: &[Outcome]) -> std::fmt::Result {
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    writeln!(text, "| {} |\n|{}", names.join(" | "), "---:|".repeat(names.len()))?;
    for outcome in outcomes {
        let cells: Vec<_> = columns.iter().map(|(_, cell)| cell(outcome)).collect();
        writeln!(text, "| {} |", cells.join(" | "))?;
    }
    Ok(())
}

fn utilisation(text: &mut String, utilisations: &[Utilisation]) -> std::fmt::Result {
    let Some(first) = utilisations.first() else { return Ok(()) };
    let windows: Vec<_> = first.minimum.iter().map(|(window, _)| format!("{window} ms")).collect();
    writeln!(
        text,
        "\n| utilisation | mean | of {WINDOW} ms: 1 in 10 | 1 in 100 | minimum in {} |\n|---|{}",
        windows.join(" | "),
        "---:|".repeat(3 + windows.len())
    )?;
    for Utilisation { name, mean, minimum, windows: [_, hundredth, tenth, _] } in utilisations {
        let minima: Vec<_> = minimum.iter().map(|&(_, least)| percent(least)).collect();
        let (mean, tenth, hundredth) = (percent(*mean), percent(*tenth), percent(*hundredth));
        writeln!(text, "| {name} | {mean} | {tenth} | {hundredth} | {} |", minima.join(" | "))?;
    }
    Ok(())
}

fn phases(text: &mut String, young: &Collections, full: &Collections) -> std::fmt::Result {
    let each = |of: &Collections, total: f64, unit: f64| match of.count {
        0 => String::new(),
        count => format!("{:.1}", total / count as f64 * unit),
    };
    let of = |of: &Collections, name: &str| {
        of.phases.iter().find(|(phase, _)| phase == name).map(|p| p.1)
    };
    let (a, b) = (each(young, young.prepared_s, 1e6), each(full, full.prepared_s, 1e3));
    writeln!(text, "| before the first stop | {a} | {b} |")?;
    for phase in crate::observer::PHASES {
        let (in_young, in_full) = (of(young, phase), of(full, phase));
        if in_young.or(in_full).is_some() {
            let (a, b) = (in_young.unwrap_or(0.0), in_full.unwrap_or(0.0));
            writeln!(text, "| {phase} | {} | {} |", each(young, a, 1e6), each(full, b, 1e3))?;
        }
    }
    let (a, b) = (each(young, young.paused_s, 1e6), each(full, full.paused_s, 1e3));
    writeln!(text, "| stops, from request to resumption | {a} | {b} |")?;
    let (a, b) = (each(young, young.duration_s, 1e6), each(full, full.duration_s, 1e3));
    writeln!(text, "| all, from start to end | {a} | {b} |")
}

/// Where the mutators' blocked time has gone.
fn blocked(text: &mut String, outcome: &Outcome) -> std::fmt::Result {
    let run = &outcome.run;
    let stopped = run.paused_s() * outcome.threads as f64;
    let collecting = run.collecting_s() - run.paused_s();
    let (all, rest) = (run.blocked_s, run.blocked_s - stopped - collecting);
    let abandoned = run.abandoned + outcome.build.abandoned;
    writeln!(
        text,
        "\nMutators were blocked for {all:.2} thread-seconds. The world was stopped for about \
         {stopped:.2} of them. In {collecting:.2} a mutator collected while the world ran. The \
         remaining {rest:.2} are delays and wake-ups. {abandoned} collection(s) were abandoned."
    )
}

fn charts(out: &Path, outcomes: &[Outcome]) -> Result<(), Box<dyn Error>> {
    let name = |outcome: &Outcome, what: &str| match outcomes {
        [_] => what.to_owned(),
        _ => format!("{what}, {} thread(s), {}", outcome.threads, outcome.search),
    };
    for outcome in outcomes {
        let curve = |d: &Distribution| Series {
            name: d.name.clone(),
            points: d.curve.iter().map(|&(n, us)| (n, us.max(0.1))).collect(),
        };
        let series: Vec<_> =
            outcome.distributions.iter().filter(|d| d.curve.len() > 1).map(curve).collect();
        lines(
            &out.join(format!("load-percentiles-{}-{}.svg", outcome.threads, outcome.search)),
            &format!(
                "The longest of so many, {} thread(s), search in a {}",
                outcome.threads, outcome.search
            ),
            "one in",
            Axis { label: "µs", log: true },
            &series,
        )?;
    }
    // All latencies in one picture, where there are several places of the search.
    if outcomes.iter().any(|outcome| outcome.search != outcomes[0].search) {
        let steady = |outcome: &Outcome| {
            let requests = outcome.distributions.last()?;
            let points = requests.curve.iter().map(|&(n, us)| (n, us.max(0.1))).collect();
            Some(Series { name: name(outcome, &requests.name), points })
        };
        lines(
            &out.join("load-search.svg"),
            "The longest of so many requests, if they came steadily",
            "one in",
            Axis { label: "µs", log: true },
            &outcomes.iter().filter_map(steady).collect::<Vec<_>>(),
        )?;
    }
    let minima = |outcome: &Outcome| {
        let of = |u: &Utilisation| Series {
            name: name(outcome, &u.name),
            points: u.minimum.iter().map(|&(ms, left)| (ms as f64, left)).collect(),
        };
        outcome.utilisations.iter().map(of).collect::<Vec<_>>()
    };
    lines(
        &out.join("load-mmu.svg"),
        "Minimum mutator utilisation",
        "window, ms",
        Axis { label: "share left to the mutator", log: false },
        &outcomes.iter().flat_map(minima).collect::<Vec<_>>(),
    )
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn mib(mib: f64) -> String {
    format!("{mib:.0} MiB")
}

/// Nanoseconds an object.
fn per(seconds: f64, objects: u64) -> String {
    format!("{:.1} ns", seconds * 1e9 / objects.max(1) as f64)
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.2} x", part as f64 / whole.max(1) as f64)
}
