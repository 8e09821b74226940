//! Breaks each row of the conformance table: finds a mutant under which a test of the row fails.
//!
//! A mutant that few tests reach says more of a row than a mutant that many tests reach: an
//! allocator that returns nothing does not show a row about resizing. So the mutants that a row's
//! tests reach are sorted by the number of all tests that reach them, and tried from the smallest
//! on. A pair of a mutant and a test that an earlier run has found is tried first, and kept.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::judge::Suite;
use crate::tree::Entry;

type Error = Box<dyn std::error::Error>;

/// Where the pairs are kept.
const PAIRS: &str = "docs/generated/conformance-mutants.tsv";

/// So many mutants are tried for a row.
const TRIES: usize = 80;

/// So many rows are tried with a sample of mutants.
const FEW: usize = 25;

const HEAD: &str = "# Made by `ci/mutants.sh --rows`; do not edit. Each row of the conformance table, a change of the code that breaks it, and
# the test of the row that fails then.
# row	change	test
";

/// A mutant's key and a test's name.
type Pair = (String, String);

/// Tries each row, and writes the pairs. `false`: a pair that was known is no more, and there is no
/// other.
pub fn break_each(
    root: &Path,
    suite: &Suite,
    entries: &[Entry],
    jobs: usize,
) -> Result<bool, Error> {
    let rows = tests_of_rows(root, suite)?;
    let known = read(&root.join(PAIRS))?;
    let by_key: HashMap<String, &Entry> =
        entries.iter().map(|entry| (entry.key(), entry)).collect();
    let mut reached: HashMap<usize, Vec<&Entry>> = HashMap::new();
    for entry in entries {
        for &test in suite.reaching(entry) {
            reached.entry(test).or_default().push(entry);
        }
    }
    let rows: Vec<(String, Vec<usize>)> = rows.into_iter().collect();
    let (next, found, failure) =
        (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), Mutex::new(None));
    let search = |row: &str, tests: &[usize]| -> Result<Option<Pair>, Error> {
        if let Some((key, name)) = known.get(row)
            && let Some(entry) = by_key.get(key)
            && let Some(&test) = tests.iter().find(|&&test| suite.name(test) == *name)
            && suite.fails(entry, test)?
        {
            return Ok(Some((key.clone(), name.clone())));
        }
        let mut candidates: Vec<(&Entry, usize)> = tests
            .iter()
            .flat_map(|test| reached.get(test).into_iter().flatten().map(|&entry| (entry, *test)))
            .collect();
        candidates.sort_by_key(|(entry, test)| (suite.reaching(entry).len(), entry.number, *test));
        for (entry, test) in candidates.into_iter().take(TRIES) {
            if suite.fails(entry, test)? {
                return Ok(Some((entry.key(), suite.name(test))));
            }
        }
        Ok(None)
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some((row, tests)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match search(row, tests) {
                        Ok(Some(pair)) => {
                            found.lock().unwrap().insert(row.clone(), pair);
                        }
                        Ok(None) => println!("{row}: no mutant breaks it ({} tests)", tests.len()),
                        Err(error) => *failure.lock().unwrap() = Some(format!("{row}: {error}")),
                    }
                }
            });
        }
    });
    if let Some(failure) = failure.into_inner().unwrap() {
        return Err(failure.into());
    }
    let found = found.into_inner().unwrap();
    let mut text = HEAD.to_owned();
    for (row, (key, test)) in &found {
        writeln!(text, "{row}\t{key}\t{test}")?;
    }
    fs::write(root.join(PAIRS), text)?;
    println!("{} of {} rows with a test that runs are broken by a mutant", found.len(), rows.len());
    let lost: Vec<&String> = known.keys().filter(|row| !found.contains_key(*row)).collect();
    for row in &lost {
        println!("{row}: a mutant broke it, and none does now");
    }
    Ok(lost.is_empty())
}

/// Tries a few of the known pairs whose program is built: `false`, when the test of one passes
/// under its mutant, or too few pairs can be tried. A pair cannot be tried when its function has
/// changed and the mutant is no more.
pub fn check_some(
    root: &Path,
    suite: &Suite,
    entries: &[Entry],
    mut pick: impl FnMut(usize) -> usize,
) -> Result<bool, Error> {
    let mut known: Vec<(String, Pair)> = read(&root.join(PAIRS))?.into_iter().collect();
    let pairs = known.len();
    known.retain(|(_, (_, name))| name.split(' ').next().is_some_and(|program| suite.has(program)));
    println!(
        "{} of {pairs} rows of the conformance table have a test in a program that is built",
        known.len()
    );
    let by_key: HashMap<String, &Entry> =
        entries.iter().map(|entry| (entry.key(), entry)).collect();
    let by_name: HashMap<String, usize> =
        (0..suite.tests.len()).map(|test| (suite.name(test), test)).collect();
    let (all, mut gone, mut tried, mut broken) = (known.len(), 0, 0, 0);
    while tried < FEW && !known.is_empty() {
        let (row, (key, name)) = known.swap_remove(pick(known.len()));
        let (Some(entry), Some(&test)) = (by_key.get(&key), by_name.get(&name)) else {
            gone += 1;
            continue;
        };
        tried += 1;
        if suite.fails(entry, test)? {
            broken += 1;
        } else {
            println!("{row}: {name} passes under {key}");
        }
    }
    println!(
        "rows of the conformance table: {broken} of {tried} tried are broken by their mutants"
    );
    println!("{gone} further ones, of {all} in all, are to be found anew (--rows)");
    Ok(broken == FEW)
}

/// The tests of each row that can be run here. `ci/conformance.py` knows which names belong to a
/// row.
fn tests_of_rows(root: &Path, suite: &Suite) -> Result<BTreeMap<String, Vec<usize>>, Error> {
    let output = Command::new("python3")
        .arg("ci/conformance.py")
        .arg("--tests")
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
    for test in 0..suite.tests.len() {
        for part in suite.tests[test].1.name.split("::") {
            by_name.entry(part.to_owned()).or_default().push(test);
        }
    }
    let mut rows: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let (row, name) = line.split_once('\t').ok_or("a line without a row")?;
        if let Some(tests) = by_name.get(name) {
            rows.entry(row.to_owned()).or_default().extend(tests);
        }
    }
    Ok(rows)
}

fn read(path: &Path) -> Result<BTreeMap<String, Pair>, Error> {
    let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            [row, key, test] => Ok((row.to_owned(), (key.to_owned(), test.to_owned()))),
            _ => Err(format!("{PAIRS}: not three columns: {line}").into()),
        })
        .collect()
}
