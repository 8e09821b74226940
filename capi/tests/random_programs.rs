//! Random programs in C on several threads: each object is accounted for. See `random/random.c`.
//!
//! `STANDSTILL_RANDOM_SECS=600` runs seeds beyond the usual ones for that long.

#[allow(dead_code, reason = "this program is linked, not loaded")]
mod library;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use library::Library;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The program, built once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let library = Library::build();
        let folder = library.parent().expect("a folder");
        let program = folder.join("random-c");
        let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-I"])
            .args([Path::new(env!("CARGO_MANIFEST_DIR")).join("include")])
            .args([Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/random/random.c")])
            .arg("-o")
            .arg(&program)
            .arg(format!("-Wl,-rpath,{}", folder.display()))
            .arg(&library)
            .args(["-lpthread", "-lm"])
            .args(std::env::var("STANDSTILL_CFLAGS").unwrap_or_default().split_whitespace())
            .output()
            .expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

/// Runs one program, and fails with what it said.
fn run(seed: u64, threads: u32, steps: u32, checked: bool, stress: Option<&str>) {
    let mut command = Command::new(program());
    command.args([
        seed.to_string(),
        threads.to_string(),
        steps.to_string(),
        u32::from(checked).to_string(),
    ]);
    if let Some(stress) = stress {
        command.env("STANDSTILL_STRESS", stress);
    }
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut pipe = child.stderr.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        pipe.read_to_string(&mut said).map(|_| said)
    });
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if begun.elapsed() > LIMIT => {
                child.kill().expect("a child to end");
                child.wait().expect("its end");
                panic!(
                    "random {seed} {threads} {steps} {checked} {stress:?}: not done after {LIMIT:?}"
                );
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let said = reader.join().expect("a reader").expect("text");
    assert!(
        status.success(),
        "random {seed} {threads} {steps} {checked} {stress:?}: {status}\n{said}"
    );
}

#[test]
fn programs_on_one_thread_lose_no_object() {
    for seed in 1..=4 {
        run(seed, 1, 10_000, seed % 2 == 0, None);
    }
}

#[test]
fn programs_on_several_threads_lose_no_object() {
    for seed in 1..=8 {
        run(seed, 2 + (seed % 3) as u32, 10_000, seed % 2 == 0, None);
    }
}

#[test]
fn programs_under_stress_lose_no_object() {
    for (seed, modes) in ["all:1", "yield:2", "quarantine,poison"].into_iter().enumerate() {
        run(100 + seed as u64, 2, 200, seed % 2 == 0, Some(modes));
    }
}

#[test]
fn soak() {
    let seconds = std::env::var("STANDSTILL_RANDOM_SECS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = std::process::id().into();
    while Instant::now() < end {
        run(seed, 1 + (seed % 5) as u32, 50_000, seed % 2 == 0, None);
        seed += 1;
    }
}
