//! Changes the code of the library, one small change (*mutant*) at a time, and reports the changes
//! that no test notices.
//!
//! All mutants are woven into one copy of the repository, each behind a switch, so the copy is
//! built once. Each test runs once without a mutant and records which mutants it reaches. Then each
//! mutant is switched on, and the tests that reach it run until one fails. A test that does not end
//! counts as a failure. `ci/mutants/survivors.toml` has the reason for each mutant that no test
//! catches.

mod find;
mod judge;
mod rows;
mod table;
mod tree;
mod weave;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use judge::{Suite, Verdict};
use table::Table;
use tree::{AREAS, Entry, Tree};

const USAGE: &str = "usage: ci/mutants.sh [OPTION]...
    (nothing)          a sample, drawn by the commit, within the time of --seconds (60), against
                       the programs that catch most in little time, unless --program names some
    --all              every mutant
    --file PART        mutants of files with PART in the path
    --function PART    mutants of functions with PART in the name
    --id N             one mutant
    --program NAME     builds and runs only this program with tests (may be repeated; `standstill`:
                       the tests inside the library). Other programs may catch the rest
    --again            only mutants that their last run did not catch, without a reason
    --list             lists the mutants, checks that each reason names one, and runs nothing
    --seconds N        stops after N seconds of running tests
    --patience N       passes a mutant as a survivor after N seconds of tests (default: 4 in a
                       sample, else all tests that reach it)
    --built            uses the programs of the last build, if no mutated file has changed since
    --seed WORD        draws another sample
    --rows             breaks each row of the conformance table, and writes
                       docs/generated/conformance-mutants.tsv
    --jobs N           tests at a time (default: the number of cores)
    --markdown         with --all: writes docs/generated/mutants.md";

type Error = Box<dyn std::error::Error>;

/// So many of 100 mutants of each area are to be caught when all are tried.
const MOST: f64 = 95.0;

/// A sample of fewer says nothing.
const FEWEST: usize = 40;

/// The programs that a sample asks. They build and run in a fraction of the time of all programs,
/// and catch most mutants. `ci/mutants.sh --all` asks all programs.
const QUICK: [&str; 10] = [
    "standstill",
    "conformance",
    "dynamic",
    "dynamic_calls",
    "dynamic_instances",
    "dynamic_traversals",
    "dynamic_types",
    "model",
    "regressions",
    "services",
];

#[derive(Default)]
struct Options {
    all: bool,
    files: Vec<String>,
    functions: Vec<String>,
    ids: Vec<u32>,
    again: bool,
    list: bool,
    seconds: Option<u64>,
    built: bool,
    programs: Vec<String>,
    patience: Option<f64>,
    seed: Option<String>,
    jobs: Option<usize>,
    markdown: bool,
    rows: bool,
}

impl Options {
    fn read() -> Result<Self, Error> {
        let mut options = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
            match word.as_str() {
                "--all" => options.all = true,
                "--file" => options.files.push(value()?),
                "--function" => options.functions.push(value()?),
                "--id" => options.ids.push(value()?.parse()?),
                "--program" => options.programs.push(value()?),
                "--again" => options.again = true,
                "--list" => options.list = true,
                "--seconds" => options.seconds = Some(value()?.parse()?),
                "--patience" => options.patience = Some(value()?.parse()?),
                "--built" => options.built = true,
                "--seed" => options.seed = Some(value()?),
                "--jobs" => options.jobs = Some(value()?.parse()?),
                "--markdown" => options.markdown = true,
                "--rows" => options.rows = true,
                _ => return Err(format!("{word}?\n{USAGE}").into()),
            }
        }
        Ok(options)
    }

    fn is_sample(&self) -> bool {
        !self.all
            && !self.again
            && !self.rows
            && self.files.is_empty()
            && self.functions.is_empty()
            && self.ids.is_empty()
    }

    fn wants(&self, entry: &Entry, results: &Results) -> bool {
        let has = |parts: &[String], text: &str| {
            parts.is_empty() || parts.iter().any(|part| text.contains(part.as_str()))
        };
        has(&self.files, &entry.file)
            && has(&self.functions, &entry.function)
            && (self.ids.is_empty() || self.ids.contains(&entry.number))
            && (!self.again || results.get(&entry.key()).is_none_or(|verdict| !verdict.is_caught()))
    }
}

/// The last verdict on each mutant.
type Results = BTreeMap<String, Verdict>;

fn main() -> ExitCode {
    match work() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn work() -> Result<bool, Error> {
    let mut options = Options::read()?;
    if options.is_sample() && options.programs.is_empty() {
        options.programs = QUICK.map(str::to_owned).to_vec();
    }
    let root = std::env::current_dir()?;
    if !root.join("ci/mutants").is_dir() {
        return Err("to be run in the root of the repository".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join("mutants");
    fs::create_dir_all(&target)?;
    let jobs =
        options.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));

    let mut tree = Tree::new(&root, &target)?;
    if options.list {
        let entries = tree.entries();
        for entry in &entries {
            println!(
                "{} {}:{} {}: {}",
                entry.number, entry.file, entry.line, entry.function, entry.what
            );
        }
        Table::read(&root.join("ci/mutants/survivors.toml"), &entries)?;
        return Ok(true);
    }
    let found = tree.highest();
    let programs = if options.built {
        tree.built(&options.programs)?
    } else {
        tree.settle()?;
        Vec::new()
    };
    let entries = tree.entries();
    println!(
        "{} mutants, and {} that do not compile",
        entries.len(),
        found as usize - entries.len()
    );
    let table = Table::read(&root.join("ci/mutants/survivors.toml"), &entries)?;
    let programs = if options.built { programs } else { tree.build(&options.programs)? };
    let mut suite = Suite::survey(&programs, &table.slow, found, &target.join("survey"), jobs)?;

    if options.rows {
        return rows::break_each(&root, &suite, &entries, jobs);
    }
    let results_file = target.join("results.json");
    let mut results: Results = fs::read_to_string(&results_file)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let mut chosen: Vec<Entry> =
        entries.iter().filter(|entry| options.wants(entry, &results)).cloned().collect();
    if options.again {
        chosen.retain(|entry| table.reason(entry).is_none());
    }
    let (mut until, mut patience) = (options.seconds, options.patience);
    if options.is_sample() {
        let seed = match &options.seed {
            Some(seed) => seed.clone(),
            None => head()?,
        };
        println!("a sample, drawn by {seed}");
        // A mutant with a reason survives all tests that reach it: there is no time to run them.
        chosen.retain(|entry| table.reason(entry).is_none());
        if !rows::check_some(&root, &suite, &entries, numbers(&seed))? {
            return Ok(false);
        }
        shuffle(&mut chosen, &seed);
        until = until.or(Some(60));
        patience = patience.or(Some(4.0));
    }
    suite.patience = patience;
    let begun = Instant::now();
    let known: std::collections::HashSet<String> = entries.iter().map(Entry::key).collect();
    results.retain(|key, _| known.contains(key));
    let results = Mutex::new(results);
    let tell = |entry: &Entry, verdict: &Verdict| {
        let mut results = results.lock().unwrap();
        let before = results.get(&entry.key());
        // A few programs that catch no mutant show nothing about the results of others.
        if options.programs.is_empty()
            || verdict.is_caught()
            || before.is_none_or(|before| !before.is_caught())
        {
            results.insert(entry.key(), verdict.clone());
        }
        // A run that is ended early keeps most of its results.
        if results.len().is_multiple_of(50) {
            let _ = write(&results_file, &results);
        }
        let how = match verdict {
            _ if verdict.is_caught() && options.ids.is_empty() => return,
            _ if verdict.is_caught() => "caught",
            _ if table.reason(entry).is_some() => "explained",
            _ => "SURVIVES",
        };
        println!("{how}: {}", describe(entry, verdict));
    };
    let judged = suite.judge_all(
        &chosen,
        jobs,
        until.map(|seconds| begun + Duration::from_secs(seconds)),
        &tell,
    )?;
    write(&results_file, &results.into_inner().unwrap())?;

    let rates = Rates::of(&judged, &table);
    print!("{}", rates.text());
    println!(
        "{} of {} mutants judged in {} s",
        judged.len(),
        chosen.len(),
        begun.elapsed().as_secs()
    );
    for (entry, verdict) in &judged {
        if verdict.is_caught() && table.reason(entry).is_some() {
            println!(
                "caught, though ci/mutants/survivors.toml says that it survives: {}",
                entry.key()
            );
        }
    }
    let left = judged
        .iter()
        .filter(|(entry, verdict)| !verdict.is_caught() && table.reason(entry).is_none())
        .count();
    println!("{left} survive that ci/mutants/survivors.toml does not explain");
    // A sample says how many are caught, give or take a few of 100. All mutants say it exactly, and
    // then each survivor needs a reason. Of chosen ones each must be caught or explained.
    let is_well = if options.is_sample() {
        let rate = 100.0 * (judged.len() - left) as f64 / judged.len().max(1) as f64;
        println!("{rate:.1} % of the sample are caught; at least {} % must be", table.least);
        judged.len() >= FEWEST && rate >= table.least
    } else {
        left == 0 && (!options.all || rates.lowest() >= MOST)
    };
    if options.markdown && options.all && until.is_none() {
        fs::write(
            root.join("docs/generated/mutants.md"),
            page(&judged, &table, &rates, found as usize - entries.len()),
        )?;
    }
    Ok(is_well)
}

fn write(file: &Path, results: &Results) -> Result<(), Error> {
    Ok(fs::write(file, serde_json::to_string_pretty(results)?)?)
}

fn describe(entry: &Entry, verdict: &Verdict) -> String {
    let why = match verdict {
        Verdict::Caught(test) => format!("by {test}"),
        Verdict::Hung(test) => format!("{test} does not end"),
        Verdict::Survived { reach, run } => format!("{reach} tests reach it, {run} were run"),
        Verdict::Unreached => "no test reaches it".to_owned(),
    };
    format!(
        "{} {}:{} {}: {} ({why})",
        entry.number,
        entry.file,
        entry.line,
        entry.function,
        nth(entry)
    )
}

fn nth(entry: &Entry) -> String {
    if entry.nth > 1 { format!("{} ({})", entry.what, entry.nth) } else { entry.what.clone() }
}

fn head() -> Result<String, Error> {
    let output = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Numbers below a limit, made from the seed.
fn numbers(seed: &str) -> impl FnMut(usize) -> usize {
    let mut state = seed.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    move |below| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % below as u64) as usize
    }
}

/// Fisher and Yates.
fn shuffle(entries: &mut [Entry], seed: &str) {
    let mut number = numbers(seed);
    for last in (1..entries.len()).rev() {
        entries.swap(last, number(last + 1));
    }
}

/// Caught, explained and unexplained, by file and by area.
struct Rates {
    files: BTreeMap<String, [usize; 3]>,
    areas: BTreeMap<&'static str, [usize; 3]>,
}

impl Rates {
    fn of(judged: &[(Entry, Verdict)], table: &Table) -> Self {
        let mut rates = Self { files: BTreeMap::new(), areas: BTreeMap::new() };
        for (entry, verdict) in judged {
            let kind = match () {
                () if verdict.is_caught() => 0,
                () if table.reason(entry).is_some() => 1,
                () => 2,
            };
            rates.files.entry(entry.file.clone()).or_default()[kind] += 1;
            let area =
                AREAS.into_iter().find(|area| entry.file.starts_with(area)).unwrap_or("others");
            rates.areas.entry(area).or_default()[kind] += 1;
        }
        rates
    }

    fn lowest(&self) -> f64 {
        self.areas.values().map(percent).fold(100.0, f64::min)
    }

    fn rows(&self) -> impl Iterator<Item = (&str, &[usize; 3])> {
        let files = self.files.iter().map(|(name, counts)| (name.as_str(), counts));
        files.chain(
            self.areas
                .iter()
                .map(|(name, counts)| (*name, counts))
                .filter(|(name, _)| name.ends_with('/')),
        )
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, counts) in self.rows() {
            let [caught, explained, left] = counts;
            writeln!(
                text,
                "{name:32} {caught:5} caught {explained:4} explained {left:4} not caught  {:5.1} %",
                percent(counts)
            )
            .expect("a string");
        }
        text
    }
}

fn percent(counts: &[usize; 3]) -> f64 {
    100.0 * counts[0] as f64 / counts.iter().sum::<usize>().max(1) as f64
}

fn page(judged: &[(Entry, Verdict)], table: &Table, rates: &Rates, refused: usize) -> String {
    let caught = judged.iter().filter(|(_, verdict)| verdict.is_caught()).count();
    let hung = judged.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Hung(_))).count();
    let mut page = format!(
        "# Changes of the code that tests notice

Made by `ci/mutants.sh --all --markdown`; do not edit. A mutant is one small change: another
operator, a condition that is always true or false, a statement left out, a function that returns at
once. `ci/mutants/src/find.rs` has the kinds of changes. Memory orderings are not among them:
[mutations.md](mutations.md) has those.

{} mutants: {caught} caught ({:.1} %), {hung} of them by a test that does not end; {} survive.
Further {refused} do not compile.

| file | caught | survive, explained | survive, unexplained | rate |
|---|---|---|---|---|
",
        judged.len(),
        100.0 * caught as f64 / judged.len().max(1) as f64,
        judged.len() - caught,
    );
    for (name, [caught, explained, left]) in rates.rows() {
        let rate = percent(&[*caught, *explained, *left]);
        writeln!(page, "| `{name}` | {caught} | {explained} | {left} | {rate:.1} % |")
            .expect("a string");
    }
    page.push_str("\n## Survivors\n\n| function | change | why no test notices |\n|---|---|---|\n");
    let mut last = HashMap::new();
    for (entry, _) in judged.iter().filter(|(_, verdict)| !verdict.is_caught()) {
        if last.insert("file", entry.file.clone()).as_ref() != Some(&entry.file) {
            writeln!(page, "| **`{}`** | | |", entry.file).expect("a string");
        }
        let reason = table.reason(entry).unwrap_or("**not explained**");
        let change = nth(entry).replace('|', "\\|");
        writeln!(page, "| `{}` | {change} | {reason} |", entry.function).expect("a string");
    }
    page
}
