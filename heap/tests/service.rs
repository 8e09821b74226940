//! Each fault of the example service is found as the guide says (docs/diagnostics.md), by one
//! command.

#![cfg(not(any(loom, miri)))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const LONG: Duration = Duration::from_secs(120);

/// The example, which `cargo test` builds beside the tests.
fn service() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().with_file_name("examples").join("service");
    assert!(path.exists(), "`cargo build -p standstill-heap --examples` builds {path:?}");
    path
}

/// The service in a process of its own, with a folder.
struct Running {
    child: Child,
    folder: PathBuf,
}

impl Running {
    fn begin(fault: &str, seconds: u64) -> Self {
        let folder = std::env::temp_dir().join(format!("service-{fault}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let child = Command::new(service())
            .args([fault, &seconds.to_string()])
            .env("STANDSTILL_DIAG", &folder)
            .env("STANDSTILL_LOG", format!("gc:{}", folder.join("gc.log").display()))
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    /// A snapshot, on request.
    fn snapshot(&self, number: usize) -> PathBuf {
        let (pid, begun) = (self.child.id(), Instant::now());
        let file = self.folder.join(format!("{pid}-service-{number}.heapsnapshot"));
        while !file.exists() {
            // Again and again, because the service may not have begun.
            fs::write(self.folder.join(format!("snapshot.{pid}")), "").unwrap();
            for _ in 0..40 {
                sleep(Duration::from_millis(50));
                if file.exists() {
                    return file;
                }
            }
            assert!(begun.elapsed() < LONG, "no snapshot in {:?}", self.folder);
        }
        file
    }

    /// Takes snapshots until one fits. The error of `fits` says what another one lacks.
    fn until(&self, fits: impl Fn(&Path) -> Result<(), String>) {
        let begun = Instant::now();
        let mut number = 1;
        while let Err(lack) = fits(&self.snapshot(number)) {
            assert!(begun.elapsed() < LONG, "snapshot {number}: {lack}");
            number += 1;
        }
    }

    /// Waits until a line of the log fits. On a busy machine, other lines may be slow as well.
    fn logged(&self, fits: impl Fn(&Value) -> bool) {
        self.text("gc.log", |text| {
            let mut lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
            lines.any(|line| fits(&line))
        });
    }

    fn text(&self, file: &str, fits: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
            if fits(&text) {
                return;
            }
            assert!(begun.elapsed() < LONG, "{file}: {text}");
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What `standstill-heap` answers.
fn ask(question: &str, file: &Path) -> String {
    let command = Command::new(env!("CARGO_BIN_EXE_standstill-heap"))
        .arg(question)
        .arg(file)
        .output()
        .unwrap();
    assert!(command.status.success(), "{}", String::from_utf8_lossy(&command.stderr));
    String::from_utf8(command.stdout).unwrap()
}

/// The words occur in this order.
fn in_order(text: &str, words: &[&str]) -> Result<(), String> {
    let mut rest = text;
    for word in words {
        let at = rest.find(word).ok_or_else(|| format!("no {word} of {words:?} in {text}"))?;
        rest = &rest[at + word.len()..];
    }
    Ok(())
}

#[test]
fn a_leak_in_a_registry_has_a_path() {
    let words = ["service::Registry", "in ", "service::Session", "outside"];
    Running::begin("registry", 300).until(|file| in_order(&ask("suspects", file), &words));
}

#[test]
fn a_leak_behind_a_cache_has_a_path() {
    let words = ["service::Cache", "in ", "service::Page"];
    Running::begin("cache", 300).until(|file| in_order(&ask("suspects", file), &words));
}

#[test]
fn buffers_outside_of_the_heap_belong_to_their_objects() {
    Running::begin("buffers", 300).until(|file| {
        let census = ask("census", file);
        let row = census.lines().find(|line| line.contains("outside the heap")).unwrap_or_default();
        let mut numbers = row.split_whitespace().map(|word| word.replace(',', "").parse::<u64>());
        if !numbers.any(|number| number.is_ok_and(|bytes| bytes > 1_000_000)) {
            return Err(census);
        }
        in_order(&ask("suspects", file), &["service::Registry", "service::Session"])
    });
}

#[test]
fn a_late_thread_is_named_with_what_it_does() {
    let service = Running::begin("late", 300);
    service.text("stderr", |text| {
        let words = ["thread 'reporter'", "last at \"writing the report\"", "has not polled"];
        let mut lines = text.lines().filter(|line| line.contains("has waited"));
        lines.any(|line| in_order(line, &words).is_ok())
    });
    service.logged(|line| {
        line["late_thread"].as_str().is_some_and(|late| late.contains("writing the report"))
    });
}

#[test]
fn a_slow_finalizer_is_in_the_log_with_its_type() {
    let service = Running::begin("finalizer", 300);
    service.logged(|line| {
        let slowest = &line["slowest"][0];
        let is_slow = slowest["took_us"].as_u64() >= Some(60_000);
        is_slow && slowest["during"] == "Finalize" && slowest["type"] == "service::Upload"
    });
}

#[test]
fn a_long_pause_is_in_the_log_with_its_reason_and_the_largest_types() {
    let service = Running::begin("pause", 300);
    service.logged(|line| {
        let is_long = line["stops_us"][0].as_u64() >= Some(20_000);
        is_long
            && line["kind"] == "full"
            && line["reason"] == "Growth"
            && line["largest_types"][0]["type"] == "service::IndexNode"
            && line["phases_us"]["Mark"].as_u64() > Some(0)
    });
}
