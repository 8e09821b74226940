//! Refused memory, through C: each allocation behind each function of the header is refused in
//! turn.
//!
//! `refused_memory/cases.c` has a case for every function that the header declares; the last trial
//! here compares. A case is one call. It is made again and again, each time in a process of its
//! own, with another allocation refused: once with that one alone, once with all later ones too.
//! The call then has its usual result, or it has failed for want of memory: it gives its failure
//! value with `STANDSTILL_E_MEMORY` in the error indicator, or, where it has none, the report goes
//! to a hook. Afterwards there is memory again. Then the same call works, as it does without any
//! refusal, the next collection finds all garbage and nothing else, and no object is damaged.
//!
//! Where a refusal ends the process, `refused_memory/exceptions.tsv` names the case, the function
//! in which that happens, and why it cannot be avoided. Another end of a process is a failure, and
//! so is an exception that does not happen.

#[path = "static_library/mod.rs"]
mod static_library;

#[path = "pointers/signatures.rs"]
#[allow(dead_code, reason = "the names alone are of interest here")]
mod signatures;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use static_library::{library, profile_dir, text};

fn main() {
    let mut trials = Vec::new();
    match build().and_then(|program| Ok((cases(&program)?, program))) {
        Ok((cases, program)) => {
            let exceptions = Arc::new(exceptions());
            let played: BTreeSet<String> =
                cases.iter().map(|(function, _)| function.clone()).collect();
            let known: BTreeSet<String> = cases.iter().map(|(_, case)| case.clone()).collect();
            let all = Arc::clone(&exceptions);
            trials.push(Trial::test(
                "every function has a case, and every exception is of a case",
                move || {
                    let declared = signatures::declared()
                        .into_iter()
                        .map(|signature| signature.name)
                        .collect();
                    match played == declared
                        && all.iter().all(|exception| known.contains(&exception.case))
                    {
                        true => Ok(()),
                        false => Err(format!("played: {played:?}\ndeclared: {declared:?}").into()),
                    }
                },
            ));
            for (_, case) in cases {
                let (program, exceptions) = (program.clone(), Arc::clone(&exceptions));
                trials.push(Trial::test(case.clone(), move || play(&program, &case, &exceptions)));
            }
        }
        Err(message) => trials.push(Trial::test("build", move || Err(message.into()))),
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused_memory")
}

fn build() -> Result<PathBuf, String> {
    let profile = profile_dir();
    let library = library(&profile)?;
    let program = profile.join(format!("refused-memory-{}", std::process::id()));
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args([
            "-std=gnu99",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-missing-field-initializers",
            "-g",
            "-no-pie",
        ])
        .arg(format!("-I{}/include", env!("CARGO_MANIFEST_DIR")))
        .args(["program.c", "cases.c", "allocator.c"].map(|file| here().join(file)))
        .arg("-o")
        .arg(&program)
        .arg(library)
        .arg("-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign,--wrap=aligned_alloc")
        .args(["-lpthread", "-ldl", "-lm"])
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    if !output.status.success() {
        return Err(text(&output));
    }
    // One name for all runs, replaced as a whole: another run of this test may be executing the old
    // one.
    let settled = profile.join("refused-memory-c");
    fs::rename(&program, &settled).map_err(|error| error.to_string())?;
    Ok(settled)
}

/// Function and name of each case.
fn cases(program: &Path) -> Result<Vec<(String, String)>, String> {
    let output = Command::new(program).arg("--list").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(|line| {
            line.split_once(' ').map(|(function, case)| (function.to_owned(), case.to_owned()))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| format!("no list of cases: {text}"))
}

/// A place where a refusal ends the process.
struct Exception {
    case: String,
    /// A part of the name of a function that is being executed then.
    place: String,
}

fn exceptions() -> Vec<Exception> {
    let table = fs::read_to_string(here().join("exceptions.tsv")).expect("the table of exceptions");
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let parts: Vec<_> = line.split('\t').collect();
            let [case, place, reason] = parts[..] else { panic!("three parts: {line}") };
            assert!(!reason.is_empty(), "{line}");
            Exception { case: case.to_owned(), place: place.to_owned() }
        })
        .collect()
}

/// What a child has said.
#[derive(Debug)]
enum Outcome {
    /// Values by name.
    Ended(BTreeMap<String, i64>),
    /// The functions that were being executed, by addresses.
    Died(Vec<u64>),
    Else,
}

fn outcome(said: &str) -> Outcome {
    if let Some((_, addresses)) = said.split_once("died signal=6 at ") {
        let addresses =
            addresses.split_whitespace().map(|address| u64::from_str_radix(address, 16));
        return addresses.collect::<Result<_, _>>().map_or(Outcome::Else, Outcome::Died);
    }
    let pairs = said.split(" text=").next().unwrap_or_default().split_whitespace().map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    pairs
        .collect::<Option<BTreeMap<_, _>>>()
        .filter(|pairs| pairs.len() > 1)
        .map_or(Outcome::Else, Outcome::Ended)
}

const MEMORY: i64 = standstill::Code::Memory as i64;

/// Whether a call went as it does without refusals, or failed for want of memory, and left
/// everything in order.
fn is_right(found: &BTreeMap<String, i64>, usual: &BTreeMap<String, i64>) -> bool {
    let same =
        ["result", "code", "memory", "other"].iter().all(|name| found[*name] == usual[*name]);
    let told = found["memory"] == 1;
    let failed = (found["failure"] == 1 && found["code"] == MEMORY) || told;
    // The same call with memory. Where it failed without refusals too, it fails in the same way.
    let works = found["again"] == usual["result"] && found["next"] == usual["code"];
    // It succeeded, and something else could not be told in full.
    let works = works || (told && found["result"] == usual["result"]);
    found["whole"] == 1 && (same || (failed && works))
}

fn play(program: &Path, case: &str, exceptions: &[Exception]) -> Result<(), Failed> {
    let own: Vec<_> = exceptions.iter().filter(|exception| exception.case == case).collect();
    let mut happened = vec![false; own.len()];
    let mut wrong = String::new();
    for refusals in ["once", "lasting"] {
        let output = Command::new(program)
            .args([case, refusals])
            .env_remove("STANDSTILL_STRESS")
            // Debug builds are in checked mode else.
            .env("STANDSTILL_CHECKED", "0")
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .output()
            .map_err(|error| error.to_string())?;
        let said = text(&output);
        let mut usual = None;
        let mut deaths = Vec::new();
        for line in said.lines() {
            let (number, rest) = line.split_once(' ').unwrap_or((line, ""));
            match (outcome(rest), &usual) {
                (Outcome::Ended(values), None) if number == "-1" && values["whole"] == 1 => {
                    usual = Some(values)
                }
                (Outcome::Ended(values), Some(usual)) if is_right(&values, usual) => {}
                (Outcome::Died(addresses), Some(_)) => deaths.push((line, addresses)),
                _ => wrong += &format!("{refusals}: {line}\n  usual: {usual:?}\n"),
            }
        }
        if !output.status.success() || usual.is_none() {
            wrong += &format!("{refusals}: {}\n{said}\n", output.status);
        }
        for (line, functions) in named(program, deaths)? {
            let mut known = false;
            for (exception, happened) in own.iter().zip(&mut happened) {
                if functions.contains(&exception.place) {
                    (known, *happened) = (true, true);
                }
            }
            if !known {
                wrong += &format!("{refusals}: {line}\n  in {functions}\n");
            }
        }
    }
    for (exception, _) in own.iter().zip(happened).filter(|(_, happened)| !happened) {
        wrong += &format!("'{}' does not end the process any more\n", exception.place);
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.into()) }
}

/// The functions behind the addresses, innermost first.
fn named<'a>(
    program: &Path,
    deaths: Vec<(&'a str, Vec<u64>)>,
) -> Result<Vec<(&'a str, String)>, Failed> {
    let all: BTreeSet<u64> = deaths.iter().flat_map(|(_, addresses)| addresses).copied().collect();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let output = Command::new("addr2line")
        .args(["-a", "-C", "-f", "-i", "-s", "-e"])
        .arg(program)
        // What was called lies in front of where it returns to.
        .args(all.iter().map(|address| format!("{:#x}", address.saturating_sub(1))))
        .output()
        .map_err(|error| format!("addr2line: {error}"))?;
    // For each address a line with it, and then in turn a function and its place.
    let (mut names, mut address, mut is_name) = (BTreeMap::<u64, String>::new(), 0, true);
    for line in text(&output).lines() {
        if let Some(number) =
            line.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok())
        {
            (address, is_name) = (number + 1, true);
            continue;
        }
        if is_name && line.contains("standstill") {
            let functions = names.entry(address).or_default();
            *functions += line;
            *functions += " < ";
        }
        is_name = !is_name;
    }
    let of = |addresses: &[u64]| -> String {
        addresses.iter().filter_map(|address| names.get(address)).map(String::as_str).collect()
    };
    Ok(deaths.into_iter().map(|(line, addresses)| (line, of(&addresses))).collect())
}
