//! The copy of the repository with all mutants in it, and the programs that are built from it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::find::{Site, sites};
use crate::weave::{Woven, weave};

/// What is changed.
pub const AREAS: [&str; 7] = [
    "src/dynamic/",
    "src/collect/",
    "src/heap/helpers.rs",
    "src/heap/workers.rs",
    "src/gc_module/",
    "src/managed/",
    "capi/src/",
];

/// Files of the areas that have nothing to change: only what tests or models see.
const LEFT_OUT: [&str; 0] = [];

const SWITCH: &str = include_str!("switch.txt");

/// Added to the workspace's manifest: the library is optimised a little, since the switches cost;
/// what it needs is built as ever.
const PROFILE: &str = "
[profile.dev]
debug = \"line-tables-only\"

[profile.dev.package.standstill]
opt-level = 1

[profile.dev.package.standstill-capi]
opt-level = 1
";

/// A mutant that compiles.
#[derive(Clone)]
pub struct Entry {
    /// Its switch.
    pub number: u32,
    /// Its file, as git names it.
    pub file: String,
    /// Its function.
    pub function: String,
    /// Its line.
    pub line: usize,
    /// The change, in words.
    pub what: String,
    /// Which of several with the same words in the same function, from 1.
    pub nth: usize,
}

impl Entry {
    /// What names the mutant as long as its function is the same.
    pub fn key(&self) -> String {
        let nth = if self.nth > 1 { format!(" ({})", self.nth) } else { String::new() };
        format!("{} {}: {}{nth}", self.file, self.function, self.what)
    }
}

/// A program with tests.
#[derive(Serialize, Deserialize)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// The folder that cargo runs it in.
    pub folder: PathBuf,
    /// Its name.
    pub name: String,
    /// How it is asked.
    pub kind: Kind,
}

/// How a program with tests is asked.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// With the options of Rust's own harness.
    Rust,
    /// With a test's name as its one argument.
    C,
}

/// The copy.
pub struct Tree {
    root: PathBuf,
    /// Where it lies.
    pub folder: PathBuf,
    /// Where it is built.
    pub target: PathBuf,
    files: BTreeMap<String, (String, Vec<Site>)>,
    /// Sites that do not compile, by file and index.
    refused: BTreeSet<(String, usize)>,
}

type Error = Box<dyn std::error::Error>;

impl Tree {
    /// Finds all sites. Nothing is written.
    pub fn new(root: &Path, target: &Path) -> Result<Self, Error> {
        let folder = target.join("tree");
        let mut files = BTreeMap::new();
        for name in listed(root)? {
            let wanted = AREAS.iter().any(|area| name.starts_with(area))
                && name.ends_with(".rs")
                && !name.ends_with("/tests.rs");
            if wanted && !LEFT_OUT.contains(&name.as_str()) {
                let text = fs::read_to_string(root.join(&name))?;
                let found = sites(&text).map_err(|error| format!("{name}: {error}"))?;
                files.insert(name, (text, found));
            }
        }
        Ok(Self {
            root: root.to_owned(),
            folder,
            target: target.join("build"),
            files,
            refused: BTreeSet::new(),
        })
    }

    /// The mutants that compile, as far as that is known, by number.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut number = 0;
        for (file, (_, sites)) in &self.files {
            let mut same: HashMap<(&str, &str), usize> = HashMap::new();
            for (index, site) in sites.iter().enumerate() {
                for mutant in &site.mutants {
                    number += 1;
                    let nth = same.entry((&site.function, &mutant.what)).or_default();
                    *nth += 1;
                    if !self.refused.contains(&(file.clone(), index)) {
                        entries.push(Entry {
                            number,
                            file: file.clone(),
                            function: site.function.clone(),
                            line: site.line,
                            what: mutant.what.clone(),
                            nth: *nth,
                        });
                    }
                }
            }
        }
        entries
    }

    /// The highest number of a mutant.
    pub fn highest(&self) -> u32 {
        self.files.values().flat_map(|(_, sites)| sites).map(|site| site.mutants.len() as u32).sum()
    }

    fn woven(&self) -> BTreeMap<String, Woven> {
        let mut number = 0;
        let mut woven = BTreeMap::new();
        for (file, (text, sites)) in &self.files {
            let mut numbers = Vec::with_capacity(sites.len());
            for (index, site) in sites.iter().enumerate() {
                let all: Vec<u32> = site
                    .mutants
                    .iter()
                    .map(|_| {
                        number += 1;
                        number
                    })
                    .collect();
                let refused = self.refused.contains(&(file.clone(), index));
                numbers.push(if refused { Vec::new() } else { all });
            }
            let module =
                if file.starts_with("capi/") { "standstill::mutation" } else { "crate::mutation" };
            woven.insert(file.clone(), weave(text, sites, &numbers, module));
        }
        woven
    }

    fn write(&self, woven: &BTreeMap<String, Woven>) -> Result<(), Error> {
        let names: BTreeSet<String> = listed(&self.root)?.into_iter().collect();
        remove_others(&self.folder, &self.folder, &names)?;
        for name in &names {
            let mut content = match woven.get(name) {
                Some(woven) => woven.text.clone().into_bytes(),
                None => fs::read(self.root.join(name))?,
            };
            if name == "src/lib.rs" {
                content.extend_from_slice(SWITCH.as_bytes());
            }
            if name == "src/lib.rs" || name == "capi/src/lib.rs" {
                content = allow_all(&String::from_utf8(content)?).into_bytes();
            }
            if name == "Cargo.toml" {
                content.extend_from_slice(PROFILE.as_bytes());
            }
            let copy = self.folder.join(name);
            if fs::read(&copy).ok().as_deref() != Some(&content) {
                fs::create_dir_all(copy.parent().expect("a folder"))?;
                fs::write(&copy, &content)?;
            }
            #[cfg(unix)]
            fs::set_permissions(&copy, fs::metadata(self.root.join(name))?.permissions())?;
        }
        Ok(())
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).current_dir(&self.folder).env("CARGO_TARGET_DIR", &self.target);
        for name in ["RUSTFLAGS", "CARGO_MANIFEST_DIR", "CARGO_BUILD_TARGET"] {
            command.env_remove(name);
        }
        command.env("CARGO_INCREMENTAL", "1").env("CARGO_PROFILE_DEV_DEBUG", "0");
        command.stdin(Stdio::null());
        command
    }

    /// Writes the copy, and leaves out sites until it compiles. Those of an earlier run that did
    /// not are tried last only when the code around them has changed.
    pub fn settle(&mut self) -> Result<(), Error> {
        let known = self.target.with_file_name("refused.json");
        self.known_refusals();
        for round in 1.. {
            let begun = Instant::now();
            let woven = self.woven();
            self.write(&woven)?;
            let arguments = [
                "check",
                "--quiet",
                "-p",
                "standstill",
                "-p",
                "standstill-capi",
                "--lib",
                "--keep-going",
                "--message-format=json",
            ];
            let output = self.cargo(&arguments).stderr(Stdio::inherit()).output()?;
            let messages: Vec<Value> = String::from_utf8(output.stdout)?
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect();
            if output.status.success() {
                break;
            }
            let before = self.refused.len();
            for message in messages.iter().map(|message| &message["message"]) {
                if message["level"] == "error" {
                    self.blame(message, &woven);
                }
            }
            let now = self.refused.len();
            println!(
                "round {round}: {} sites do not compile ({} s)",
                now - before,
                begun.elapsed().as_secs()
            );
            if now == before {
                for message in messages {
                    if let Some(text) = message["message"]["rendered"].as_str() {
                        eprint!("{text}");
                    }
                }
                return Err("the copy does not compile, and no mutant is to blame".into());
            }
        }
        let mut keys = BTreeSet::new();
        for (file, (_, sites)) in &self.files {
            let mut same = HashMap::new();
            for (index, site) in sites.iter().enumerate() {
                let key = site_key(file, site, &mut same);
                if self.refused.contains(&(file.clone(), index)) {
                    keys.insert(key);
                }
            }
        }
        fs::write(known, serde_json::to_string_pretty(&keys)?)?;
        Ok(())
    }

    /// Reads which sites an earlier run has left out.
    fn known_refusals(&mut self) {
        let known = self.target.with_file_name("refused.json");
        let Ok(text) = fs::read_to_string(&known) else { return };
        let keys: HashSet<String> = serde_json::from_str(&text).unwrap_or_default();
        for (file, (_, sites)) in &self.files {
            let mut same: HashMap<String, usize> = HashMap::new();
            for (index, site) in sites.iter().enumerate() {
                if keys.contains(&site_key(file, site, &mut same)) {
                    self.refused.insert((file.clone(), index));
                }
            }
        }
    }

    /// The programs of the last build, if the copy has not changed since.
    pub fn built(&mut self, names: &[String]) -> Result<Vec<Program>, Error> {
        self.known_refusals();
        for (name, woven) in self.woven() {
            let mut wanted = woven.text;
            if name == "capi/src/lib.rs" {
                wanted = allow_all(&wanted);
            }
            if fs::read_to_string(self.folder.join(&name)).ok().as_deref() != Some(&wanted) {
                return Err(format!("{name} has changed since the last build").into());
            }
        }
        let programs = fs::read_to_string(self.target.with_file_name("programs.json"))?;
        let mut programs: Vec<Program> = serde_json::from_str(&programs)?;
        programs.retain(|program| names.is_empty() || names.contains(&program.name));
        Ok(programs)
    }

    /// Leaves out the sites that an error comes from.
    fn blame(&mut self, message: &Value, woven: &BTreeMap<String, Woven>) {
        let mut spans = Vec::new();
        collect_spans(message, &mut spans);
        let mut guilty: Vec<(String, usize)> = Vec::new();
        // Text that was put in, the innermost of it.
        for (file, at, _) in &spans {
            let Some(woven) = woven.get(file) else { continue };
            if let Some((_, site)) = woven
                .added
                .iter()
                .find(|(added, _)| added.start <= at.start && at.start < added.end)
            {
                guilty.push((file.clone(), *site));
            }
        }
        // Or the innermost site around the place; then those around the places that the error tells
        // besides.
        for asked in [true, false] {
            for (file, at, is_primary) in &spans {
                let Some(woven) = woven.get(file) else { continue };
                let around = woven
                    .places
                    .iter()
                    .filter(|(place, _)| place.start <= at.start && at.end <= place.end);
                if let Some((_, site)) = around.min_by_key(|(place, _)| place.len())
                    && guilty.is_empty()
                    && *is_primary == asked
                {
                    guilty.push((file.clone(), *site));
                }
            }
        }
        // Or a statement from the first place to the last: a `drop` that ends a borrow, before all
        // others.
        if guilty.is_empty() {
            let mut between = Vec::new();
            for (file, at, _) in &spans {
                let Some(woven) = woven.get(file) else { continue };
                let ends =
                    spans.iter().filter(|(other, _, _)| other == file).map(|(_, at, _)| at.end);
                let end = ends.max().unwrap_or(at.end);
                let inside = woven
                    .places
                    .iter()
                    .filter(|(place, _)| at.start <= place.start && place.end <= end);
                between.extend(inside.map(|(_, site)| (file.clone(), *site)));
            }
            let drops = |(file, site): &&(String, usize)| {
                self.files[file].1[*site].mutants[0].what.starts_with("without `drop(")
            };
            guilty = between.iter().filter(drops).cloned().collect();
            if guilty.is_empty() {
                guilty = between;
            }
        }
        self.refused.extend(guilty);
    }

    /// Builds the programs with tests, or only those with these names.
    pub fn build(&self, names: &[String]) -> Result<Vec<Program>, Error> {
        let begun = Instant::now();
        let mut arguments = vec!["test", "--quiet", "--no-run", "--message-format=json"];
        arguments.extend(["-p", "standstill", "-p", "standstill-capi"]);
        for name in names {
            match name.as_str() {
                "standstill" => arguments.push("--lib"),
                _ => arguments.extend(["--test", name]),
            }
        }
        if names.is_empty() {
            arguments.extend(["--lib", "--tests"]);
        }
        let output = self.cargo(&arguments).stderr(Stdio::inherit()).output()?;
        let messages: Vec<Value> = String::from_utf8(output.stdout)?
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        if !output.status.success() {
            for message in &messages {
                if message["message"]["level"] == "error" {
                    eprint!("{}", message["message"]["rendered"].as_str().unwrap_or(""));
                }
            }
            return Err("the tests do not build".into());
        }
        let mut programs = Vec::new();
        for message in &messages {
            let (Some(path), Some(manifest)) =
                (message["executable"].as_str(), message["manifest_path"].as_str())
            else {
                continue;
            };
            let folder = Path::new(manifest).parent().expect("a folder").to_owned();
            let name = message["target"]["name"].as_str().unwrap_or("").to_owned();
            programs.push(Program { path: path.into(), folder, name, kind: Kind::Rust });
        }
        // The C tests are built by the Rust program that runs them.
        if let Some(place) = programs.iter().position(|program| program.name == "conformance") {
            let program = programs.remove(place);
            let listed = Command::new(&program.path)
                .arg("--list")
                .current_dir(&program.folder)
                .env("CARGO_INCREMENTAL", "1")
                .stdin(Stdio::null())
                .output()?;
            if !listed.status.success() {
                return Err(
                    format!("the C tests: {}", String::from_utf8_lossy(&listed.stderr)).into()
                );
            }
            let path = self.target.join("debug/conformance-c");
            programs.push(Program {
                path,
                folder: program.folder,
                name: "conformance".into(),
                kind: Kind::C,
            });
        }
        println!("{} programs built in {} s", programs.len(), begun.elapsed().as_secs());
        fs::write(
            self.target.with_file_name("programs.json"),
            serde_json::to_string_pretty(&programs)?,
        )?;
        Ok(programs)
    }
}

/// What names a site as long as its function is the same.
fn site_key(file: &str, site: &Site, same: &mut HashMap<String, usize>) -> String {
    let what: Vec<&str> = site.mutants.iter().map(|mutant| mutant.what.as_str()).collect();
    let key = format!("{file} {}: {}", site.function, what.join(", "));
    let nth = same.entry(key.clone()).or_default();
    *nth += 1;
    format!("{key} ({nth})")
}

/// The files of an error's spans, their bytes, and whether they are primary; those of notes, too.
fn collect_spans(message: &Value, spans: &mut Vec<(String, std::ops::Range<usize>, bool)>) {
    for span in message["spans"].as_array().into_iter().flatten() {
        let mut span = span;
        // Of code that a macro made: the code that was given to it.
        while !span["expansion"].is_null()
            && span["expansion"]["span"].is_object()
            && span["file_name"].as_str().is_none_or(|name| name.starts_with('/'))
        {
            span = &span["expansion"]["span"];
        }
        let (Some(file), Some(start), Some(end)) =
            (span["file_name"].as_str(), span["byte_start"].as_u64(), span["byte_end"].as_u64())
        else {
            continue;
        };
        spans.push((file.to_owned(), start as usize..end as usize, span["is_primary"] == true));
    }
    for child in message["children"].as_array().into_iter().flatten() {
        collect_spans(child, spans);
    }
}

/// The files of the repository, as git lists them.
fn listed(root: &Path) -> Result<Vec<String>, Error> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err("git ls-files failed".into());
    }
    let names = String::from_utf8(output.stdout)?;
    Ok(names
        .split('\0')
        .filter(|name| {
            !name.is_empty() && !name.starts_with("ci/mutants/") && root.join(name).is_file()
        })
        .map(str::to_owned)
        .collect())
}

fn remove_others(folder: &Path, top: &Path, names: &BTreeSet<String>) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, top, names)?;
        } else if !names.contains(&*path.strip_prefix(top)?.to_string_lossy()) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// With no lints: woven code is for the compiler only.
fn allow_all(text: &str) -> String {
    let first = text
        .lines()
        .scan(0, |at, line| {
            let start = *at;
            *at += line.len() + 1;
            Some((start, line))
        })
        .find(|(_, line)| !line.starts_with("//!") && !line.trim().is_empty())
        .map_or(0, |(start, _)| start);
    format!(
        "{}#![allow(warnings, overflowing_literals, arithmetic_overflow, unconditional_panic)]\n{}",
        &text[..first],
        &text[first..]
    )
}
