//! The conformance tests that are written in C: what is shown through the header and the library
//! that C programs use.
//!
//! The files of `tests/conformance/` are compiled once and linked with the static library of this
//! build. Each test of theirs runs in a process of its own. The snippets in `accepted/` must
//! compile, those in `refused/` must not.

#[path = "static_library/mod.rs"]
mod static_library;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use static_library::{library, profile_dir, text};

const LIMIT: Duration = Duration::from_secs(60);
const STRICT: [&str; 6] = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = snippets("accepted", true);
    trials.extend(snippets("refused", false));
    trials.push(Trial::test("examples::coordinator", example));
    match build() {
        Ok(program) => trials.extend(list(&program)),
        Err(message) => trials.push(Trial::test("build", move || Err(message.into()))),
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

/// The allocator that refuses memory.
fn refusing() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused_memory")
}

fn include() -> String {
    format!("-I{}/include", env!("CARGO_MANIFEST_DIR"))
}

fn cc() -> Command {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(STRICT).arg(include());
    command
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    files
}

fn build() -> Result<PathBuf, String> {
    let profile = profile_dir();
    let library = library(&profile)?;
    let program = profile.join(format!("conformance-{}", std::process::id()));
    let is_full = std::env::var_os("STANDSTILL_FULL").is_some();
    let chain = if is_full { "-DCHAIN=2000000" } else { "-DCHAIN=300000" };
    let output = cc()
        .arg("-D_XOPEN_SOURCE=700")
        .arg(format!("-DCONFORMANCE_DIR=\"{}\"", here().display()))
        .args(profile.ends_with("debug").then_some(chain))
        .args(files(&here()))
        .arg(refusing().join("allocator.c"))
        .arg(format!("-I{}", refusing().display()))
        .arg("-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign,--wrap=aligned_alloc")
        .arg("-o")
        .arg(&program)
        .arg(library)
        .args(["-rdynamic", "-lpthread", "-ldl", "-lm"])
        .args(std::env::var("STANDSTILL_CFLAGS").unwrap_or_default().split_whitespace())
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    if !output.status.success() {
        return Err(text(&output));
    }
    // One name for all runs, replaced as a whole: another run of this test may be executing the old
    // one.
    let settled = profile.join("conformance-c");
    fs::rename(&program, &settled).map_err(|error| error.to_string())?;
    Ok(settled)
}

/// The example of the coordinator checks itself.
fn example() -> Result<(), Failed> {
    let profile = profile_dir();
    let library = library(&profile)?;
    let program = profile.join(format!("coordinator-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/coordinator.c");
    let mut cc = cc();
    cc.arg("-D_XOPEN_SOURCE=700").arg("-o").arg(&program).arg(source).arg(library);
    let output = cc.args(["-lpthread", "-ldl", "-lm"]).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(text(&output).into());
    }
    let outcome = run(&program, "");
    fs::remove_file(&program).map_err(|error| error.to_string())?;
    outcome
}

fn list(program: &Path) -> Vec<Trial> {
    let output = Command::new(program).arg("--list").output().expect("the list of tests");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout)
        .expect("names")
        .lines()
        .map(|name| {
            let (program, name) = (program.to_path_buf(), name.to_string());
            Trial::test(name.clone(), move || run(&program, &name))
        })
        .collect()
}

/// Runs one test, and ends it when it takes too long.
fn run(program: &Path, name: &str) -> Result<(), Failed> {
    let mut child = Command::new(program)
        .arg(name)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let readers =
        [drain(child.stdout.take().expect("piped")), drain(child.stderr.take().expect("piped"))];
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let output: String =
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect();
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("{status}\n{output}").into()),
        None => Err(format!("not done after {LIMIT:?}\n{output}").into()),
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Snippets of `accepted` compile. Each of `refused` does not compile, for the reason that its
/// first line names: with the mistake taken out (`-DACCEPTED`) it compiles.
fn snippets(folder: &'static str, wanted: bool) -> Vec<Trial> {
    files(&here().join(folder))
        .into_iter()
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            Trial::test(format!("{folder}::{name}"), move || {
                if wanted {
                    return accepts(&path, &[]);
                }
                refuses(&path)?;
                accepts(&path, &["-DACCEPTED"])
            })
        })
        .collect()
}

fn compile(path: &Path, options: &[&str]) -> Result<Output, Failed> {
    cc().arg("-fsyntax-only")
        .args(options)
        .arg(path)
        .output()
        .map_err(|error| error.to_string().into())
}

fn accepts(path: &Path, options: &[&str]) -> Result<(), Failed> {
    let output = compile(path, options)?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{} was refused {options:?}\n{}", path.display(), text(&output)).into())
}

fn refuses(path: &Path) -> Result<(), Failed> {
    let source = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let reason = source
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("/* Refused because of: ")?.strip_suffix(" */"))
        .ok_or_else(|| format!("{} does not begin with its reason", path.display()))?;
    let output = compile(path, &[])?;
    if output.status.success() {
        return Err(format!("{} was accepted", path.display()).into());
    }
    let said = text(&output);
    if said.lines().find(|line| line.contains(": error:")).is_some_and(|line| line.contains(reason))
    {
        return Ok(());
    }
    Err(format!("{} was refused, but not because of {reason}\n{said}", path.display()).into())
}
