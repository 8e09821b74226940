//! Runs tests: once without a mutant, to learn which mutants each test reaches, and then under each
//! mutant, until one fails.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::tree::{Entry, Kind, Program};

type Error = Box<dyn std::error::Error>;

/// Programs that start another program: what that one reaches is not recorded.
const NOT_RUN: [&str; 2] = ["ui", "replay"];

/// A test that needs more seconds of a processor than this, or of the clock, is asked for nothing:
/// most of these run against a clock.
const LONGEST: f64 = 6.0;
const LONGEST_WALL: f64 = 20.0;

/// So many tests are run one by one before others are run together, and those take about so many
/// seconds.
const ONE_BY_ONE: usize = 10;
const GROUP: f64 = 10.0;

/// Programs that can be told one test only.
const TAKES_ONE_NAME: [&str; 2] = ["states", "pointers"];

/// A mutant may keep a processor busy for so many seconds: a test that never ends is known by that,
/// however busy the machine is.
const CPU: u64 = 30;

/// A mutant may use this much memory, in bytes, before it is refused more.
const MEMORY: u64 = 6 << 30;

/// A test, and what it reaches.
#[derive(Clone, Serialize, Deserialize)]
pub struct Test {
    /// Its name in its program.
    pub name: String,
    /// Seconds without a mutant.
    pub seconds: f64,
    /// Why it is asked for nothing.
    pub excluded: Option<String>,
    /// The numbers of the mutants that it reaches.
    pub reached: Vec<u32>,
}

/// The tests of a program.
#[derive(Serialize, Deserialize)]
struct Survey {
    /// Size and time of the program's file: another program is surveyed anew.
    stamp: String,
    tests: Vec<Test>,
}

/// All tests, by program.
pub struct Suite<'a> {
    programs: &'a [Program],
    /// Program and test.
    pub tests: Vec<(usize, Test)>,
    by_mutant: HashMap<u32, Vec<usize>>,
    /// Tests that have failed without a mutant meanwhile: their word counts no longer.
    unsteady: Mutex<HashSet<usize>>,
    /// Seconds of tests that a mutant must survive; `None`: all that reach it.
    pub patience: Option<f64>,
}

/// What became of a mutant.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq)]
pub enum Verdict {
    /// This test failed.
    Caught(String),
    /// This test ran until its time was up.
    Hung(String),
    /// So many tests reach it, and so many of these were run and passed.
    Survived { reach: usize, run: usize },
    /// No test reaches it.
    Unreached,
}

impl Verdict {
    /// Whether a test noticed.
    pub fn is_caught(&self) -> bool {
        matches!(self, Self::Caught(_) | Self::Hung(_))
    }
}

/// How a test ended.
enum End {
    Passed,
    Failed,
    OutOfTime,
}

fn command<'a>(program: &Program, tests: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(&program.path);
    if program.kind == Kind::Rust {
        command.arg("--exact");
    }
    command.args(tests);
    command
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env_remove("STANDSTILL_MUTANT")
        .env_remove("STANDSTILL_MUTANT_HITS")
        .env("STANDSTILL_STRESS_SECS", "1")
        .env("PROPTEST_CASES", "12")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    // SAFETY: setrlimit is a system call; nothing else runs between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let data = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
            let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            let cpu = libc::rlimit { rlim_cur: CPU, rlim_max: CPU + 1 };
            libc::setrlimit(libc::RLIMIT_DATA, &data);
            libc::setrlimit(libc::RLIMIT_CORE, &core);
            libc::setrlimit(libc::RLIMIT_CPU, &cpu);
            Ok(())
        });
    }
    command
}

/// Runs a test. Comes back: how it ended, and its seconds of a processor.
fn run(mut command: Command, limit: Duration) -> Result<(End, f64), Error> {
    let begun = Instant::now();
    let child = command.spawn()?;
    let mut pause = Duration::from_micros(500);
    let mut is_late = false;
    loop {
        let (mut status, mut used) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
        let flags = if is_late { 0 } else { libc::WNOHANG };
        // SAFETY: the child is this program's, and waited for here only; zeroes are a value of the
        // record.
        let (id, used) = unsafe {
            let id = libc::wait4(child.id() as i32, &mut status, flags, used.as_mut_ptr());
            (id, used.assume_init())
        };
        if id < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        if id > 0 {
            kill_group(child.id());
            let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
            let end = match status {
                _ if is_late => End::OutOfTime,
                0 => End::Passed,
                _ if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGXCPU => {
                    End::OutOfTime
                }
                _ => End::Failed,
            };
            return Ok((end, seconds(used.ru_utime) + seconds(used.ru_stime)));
        }
        if begun.elapsed() > limit {
            kill_group(child.id());
            is_late = true;
            continue;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Ends a test's processes, those that it has started among them.
fn kill_group(id: u32) {
    // SAFETY: the group is that of a child, which this program has made.
    unsafe { libc::kill(-(id as i32), libc::SIGKILL) };
}

/// What changes when a program is built anew. The C tests are linked by every run of the program
/// that lists them, so there it is the library and the newest source.
fn stamp(program: &Program) -> Result<String, Error> {
    if program.kind == Kind::C {
        let library = program.path.with_file_name("libstandstill_capi.a");
        let mut newest = fs::metadata(library)?.modified()?;
        for entry in fs::read_dir(program.folder.join("tests/conformance"))? {
            newest = newest.max(entry?.metadata()?.modified()?);
        }
        return Ok(format!("{}", newest.duration_since(UNIX_EPOCH)?.as_nanos()));
    }
    let data = fs::metadata(&program.path)?;
    Ok(format!("{} {}", data.len(), data.modified()?.duration_since(UNIX_EPOCH)?.as_nanos()))
}

fn names(program: &Program) -> Result<Vec<String>, Error> {
    let output = Command::new(&program.path)
        .arg("--list")
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err(format!("{}: no list of tests", program.name).into());
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(match program.kind {
        Kind::Rust => {
            text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
        }
        Kind::C => text.lines().map(str::to_owned).collect(),
    })
}

impl<'a> Suite<'a> {
    /// Runs every test once without a mutant, and learns what each reaches. Known programs are not
    /// asked again.
    pub fn survey(
        programs: &'a [Program],
        slow: &HashSet<String>,
        highest: u32,
        folder: &Path,
        jobs: usize,
    ) -> Result<Self, Error> {
        let begun = Instant::now();
        fs::create_dir_all(folder)?;
        let mut surveys: BTreeMap<usize, Survey> = BTreeMap::new();
        let mut todo = Vec::new();
        for (index, program) in programs.iter().enumerate() {
            if NOT_RUN.contains(&program.name.as_str()) {
                continue;
            }
            let file = survey_file(folder, program);
            let known = fs::read_to_string(&file)
                .ok()
                .and_then(|text| serde_json::from_str::<Survey>(&text).ok());
            let stamp = stamp(program)?;
            match known {
                Some(known) if known.stamp == stamp => {
                    surveys.insert(index, known);
                }
                _ => {
                    let names = names(program)?.into_iter();
                    let asked =
                        names.filter(|name| !slow.contains(&format!("{} {name}", program.name)));
                    todo.extend(asked.map(|name| (index, name)));
                    surveys.insert(index, Survey { stamp, tests: Vec::new() });
                }
            }
        }
        let asked = todo.iter().map(|(index, _)| *index).collect::<std::collections::BTreeSet<_>>();
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        let failure = Mutex::new(None);
        thread::scope(|scope| {
            for job in 0..jobs {
                let (next, done, failure, todo) = (&next, &done, &failure, &todo);
                scope.spawn(move || {
                    let hits = folder.join(format!("hits-{job}"));
                    while let Some((index, name)) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match look(&programs[*index], name, highest, &hits) {
                            Ok(test) => done.lock().unwrap().push((*index, test)),
                            Err(error) => {
                                *failure.lock().unwrap() = Some(format!("{name}: {error}"))
                            }
                        }
                    }
                });
            }
        });
        if let Some(failure) = failure.into_inner().unwrap() {
            return Err(failure.into());
        }
        for (index, test) in done.into_inner().unwrap() {
            surveys.get_mut(&index).expect("a program").tests.push(test);
        }
        for index in asked {
            let file = survey_file(folder, &programs[index]);
            fs::write(file, serde_json::to_string(&surveys[&index])?)?;
        }
        let mut tests = Vec::new();
        let mut by_mutant: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, survey) in surveys {
            for test in survey.tests {
                if let Some(why) = &test.excluded {
                    println!("not asked: {} {}: {why}", programs[index].name, test.name);
                    continue;
                }
                for &number in &test.reached {
                    by_mutant.entry(number).or_default().push(tests.len());
                }
                tests.push((index, test));
            }
        }
        let seconds: f64 = tests.iter().map(|(_, test)| test.seconds).sum();
        println!(
            "{} tests, which take {seconds:.0} s together (survey: {} s)",
            tests.len(),
            begun.elapsed().as_secs()
        );
        Ok(Self { programs, tests, by_mutant, unsteady: Mutex::default(), patience: None })
    }

    /// The tests that reach a mutant.
    pub fn reaching(&self, entry: &Entry) -> &[usize] {
        self.by_mutant.get(&entry.number).map_or(&[], Vec::as_slice)
    }

    /// Whether a test fails under a mutant, and passes without it.
    pub fn fails(&self, entry: &Entry, test: usize) -> Result<bool, Error> {
        Ok(self.ask(entry, &[test])?.is_some())
    }

    /// Whether a program of this name is built.
    pub fn has(&self, program: &str) -> bool {
        self.programs.iter().any(|known| known.name == program)
    }

    /// A test's program and its name.
    pub fn name(&self, index: usize) -> String {
        let (program, test) = &self.tests[index];
        format!("{} {}", self.programs[*program].name, test.name)
    }

    /// Runs the tests that reach a mutant, the likeliest first for its time, until one fails.
    /// `None`: the time is up before.
    fn judge(
        &self,
        entry: &Entry,
        luck: &Mutex<Luck>,
        until: Option<Instant>,
    ) -> Result<Option<Verdict>, Error> {
        let Some(mut left) = self.by_mutant.get(&entry.number).cloned() else {
            return Ok(Some(Verdict::Unreached));
        };
        let all = left.len();
        {
            let luck = luck.lock().unwrap();
            let cost = |index: usize| {
                let (program, test) = &self.tests[index];
                let before = self.nearness(entry, *program, &test.name);
                (0.02 + test.seconds) / luck.of(entry, *program, index, before)
            };
            left.sort_by_cached_key(|&index| (cost(index) * 1e6) as u64);
        }
        let begun = Instant::now();
        let mut asked = 0;
        for group in self.groups(left) {
            if self.patience.is_some_and(|patience| begun.elapsed().as_secs_f64() > patience) {
                break;
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return Ok(None);
            }
            let verdict = self.ask(entry, &group)?;
            asked += group.len();
            if let (&[index], Some(_)) | (&[index, ..], None) = (&group[..], &verdict) {
                luck.lock().unwrap().note(entry, self.tests[index].0, index, verdict.is_some());
            }
            if verdict.is_some() {
                return Ok(verdict);
            }
        }
        Ok(Some(Verdict::Survived { reach: all, run: asked }))
    }

    /// The likelihood that a test catches a mutant, before the test was asked about any mutant of
    /// the file. Tests inside of the mutated file are the likeliest, then tests of its folder.
    fn nearness(&self, entry: &Entry, program: usize, test: &str) -> f64 {
        let is_inside = self.programs[program].kind == Kind::Rust
            && entry.file.starts_with("src/")
            && self.programs[program].name == "standstill";
        let file = entry.file.trim_start_matches("src/").trim_end_matches(".rs");
        let module = file.trim_end_matches("/mod").replace('/', "::");
        let folder = module.split("::").next().unwrap_or_default();
        let is_in = |path: &str| test.strip_prefix(path).is_some_and(|rest| rest.starts_with("::"));
        match () {
            () if !is_inside => 0.3,
            () if is_in(&module) => 0.9,
            () if is_in(folder) => 0.6,
            () => 0.3,
        }
    }

    /// The likeliest tests one by one; after these, tests of one program together: that starts
    /// fewer processes.
    fn groups(&self, tests: Vec<usize>) -> Vec<Vec<usize>> {
        let unsteady = self.unsteady.lock().unwrap();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        // By program: the group that takes more tests, and its seconds.
        let mut open: HashMap<usize, (usize, f64)> = HashMap::new();
        for (place, index) in
            tests.into_iter().filter(|index| !unsteady.contains(index)).enumerate()
        {
            let (program, test) = &self.tests[index];
            let Program { kind, name, .. } = &self.programs[*program];
            let is_single =
                place < ONE_BY_ONE || *kind == Kind::C || TAKES_ONE_NAME.contains(&name.as_str());
            match open.get_mut(program) {
                Some((group, seconds)) if !is_single && *seconds < GROUP => {
                    groups[*group].push(index);
                    *seconds += test.seconds;
                }
                _ => {
                    if !is_single {
                        open.insert(*program, (groups.len(), test.seconds));
                    }
                    groups.push(vec![index]);
                }
            }
        }
        groups
    }

    /// Runs tests of one program under a mutant. A failure counts when they pass without the mutant
    /// now: the machine may be busy.
    fn ask(&self, entry: &Entry, group: &[usize]) -> Result<Option<Verdict>, Error> {
        let program = &self.programs[self.tests[group[0]].0];
        let plain =
            || command(program, group.iter().map(|&index| self.tests[index].1.name.as_str()));
        let mutated = || {
            let mut command = plain();
            command.env("STANDSTILL_MUTANT", entry.number.to_string());
            command
        };
        let seconds: f64 = group.iter().map(|&index| self.tests[index].1.seconds).sum();
        let limit = Duration::from_secs_f64(6.0 + 10.0 * seconds);
        let mut end = run(mutated(), limit)?.0;
        if matches!(end, End::Passed) {
            return Ok(None);
        }
        let control = Instant::now();
        if !matches!(run(plain(), limit)?.0, End::Passed) {
            self.unsteady.lock().unwrap().extend(group);
            return Ok(None);
        }
        if matches!(end, End::OutOfTime) && control.elapsed() > limit / 4 {
            end = run(mutated(), 4 * limit)?.0;
        }
        let mut name = self.name(group[0]);
        if group.len() > 1 {
            name += &format!(" and {} more of that program", group.len() - 1);
        }
        Ok(match end {
            End::Passed => None,
            End::Failed => Some(Verdict::Caught(name)),
            End::OutOfTime => Some(Verdict::Hung(name)),
        })
    }

    /// Judges mutants, several at a time, until all are judged or the time is up. `tell` hears each
    /// verdict.
    pub fn judge_all(
        &self,
        entries: &[Entry],
        jobs: usize,
        until: Option<Instant>,
        tell: &(dyn Fn(&Entry, &Verdict) + Sync),
    ) -> Result<Vec<(Entry, Verdict)>, Error> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        let luck = Mutex::new(Luck::default());
        let failure = Mutex::new(None);
        thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while until.is_none_or(|until| Instant::now() < until) {
                        let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) else {
                            break;
                        };
                        match self.judge(entry, &luck, until) {
                            Ok(None) => break,
                            Ok(Some(verdict)) => {
                                tell(entry, &verdict);
                                done.lock().unwrap().push((entry.clone(), verdict));
                            }
                            Err(error) => *failure.lock().unwrap() = Some(error.to_string()),
                        }
                    }
                });
            }
        });
        if let Some(failure) = failure.into_inner().unwrap() {
            return Err(failure.into());
        }
        let mut done = done.into_inner().unwrap();
        done.sort_by_key(|(entry, _)| entry.number);
        Ok(done)
    }
}

fn survey_file(folder: &Path, program: &Program) -> std::path::PathBuf {
    let kind = if program.kind == Kind::C { "c-" } else { "" };
    let owner = program.folder.file_name().unwrap_or_default().to_string_lossy();
    folder.join(format!("{kind}{owner}-{}.json", program.name))
}

/// Runs a test without a mutant: what does it reach?
fn look(program: &Program, name: &str, highest: u32, hits: &Path) -> Result<Test, Error> {
    fs::write(hits, vec![0; highest as usize + 1])?;
    let mut command = command(program, [name]);
    command.env("STANDSTILL_MUTANT_HITS", hits);
    let begun = Instant::now();
    let (end, cpu) = run(command, Duration::from_secs_f64(LONGEST_WALL))?;
    let seconds = begun.elapsed().as_secs_f64();
    let excluded = match end {
        // The first is how a test ends that has used up its time of a processor.
        _ if cpu > LONGEST => Some(format!("it takes more than {LONGEST} s of a processor")),
        End::Passed => None,
        End::Failed => Some("it fails without a mutant".to_owned()),
        End::OutOfTime => Some(format!("it takes more than {LONGEST_WALL} s")),
    };
    let bytes = if excluded.is_some() { Vec::new() } else { fs::read(hits)? };
    let reached = (0..=highest)
        .filter(|&number| bytes.get(number as usize).is_some_and(|&byte| byte != 0))
        .collect();
    Ok(Test { name: name.to_owned(), seconds, excluded, reached })
}

/// Which tests have caught what, so that the likeliest are asked first. Asked and caught: by
/// function and test, by file and test, and by file and program.
#[derive(Default)]
struct Luck {
    near: HashMap<(String, usize), (u32, u32)>,
    far: HashMap<(String, usize), (u32, u32)>,
    programs: HashMap<(String, usize), (u32, u32)>,
}

impl Luck {
    /// The likelihood that a test of a program catches a mutant. `nearness`: the likelihood before
    /// any result.
    fn of(&self, entry: &Entry, program: usize, test: usize, nearness: f64) -> f64 {
        let rate = |counts: Option<&(u32, u32)>, before: f64| {
            let (asked, caught) = counts.copied().unwrap_or_default();
            (f64::from(caught) + before) / (f64::from(asked) + 1.0)
        };
        let by_program = rate(self.programs.get(&(entry.file.clone(), program)), 0.3);
        let before = if nearness > 0.3 { nearness } else { by_program };
        let far = rate(self.far.get(&(entry.file.clone(), test)), before);
        rate(self.near.get(&(format!("{} {}", entry.file, entry.function), test)), far).max(1e-4)
    }

    fn note(&mut self, entry: &Entry, program: usize, test: usize, is_caught: bool) {
        let function = format!("{} {}", entry.file, entry.function);
        for counts in [
            self.near.entry((function, test)).or_default(),
            self.far.entry((entry.file.clone(), test)).or_default(),
            self.programs.entry((entry.file.clone(), program)).or_default(),
        ] {
            *counts = (counts.0 + 1, counts.1 + u32::from(is_caught));
        }
    }
}
