//! Each fault of the example service is found as the guide says (docs/diagnostics.md), by one
//! command.

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

    /// Waits until a line of the log fits.
    fn logged(&self, fits: impl Fn(&Value) -> bool) -> Value {
        self.text("gc.log", |text| {
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).find(|line| fits(line))
        })
    }

    fn text<T>(&self, file: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
            if let Some(found) = find(&text) {
                return found;
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
fn ask(question: &str, files: &[&Path]) -> String {
    let command = Command::new(env!("CARGO_BIN_EXE_standstill-heap"))
        .arg(question)
        .args(files)
        .output()
        .unwrap();
    assert!(command.status.success(), "{}", String::from_utf8_lossy(&command.stderr));
    String::from_utf8(command.stdout).unwrap()
}

/// Asserts that the words occur in this order.
fn in_order(text: &str, words: &[&str]) {
    let mut rest = text;
    for word in words {
        let at = rest.find(word).unwrap_or_else(|| panic!("{word} of {words:?} in {text}"));
        rest = &rest[at + word.len()..];
    }
}

#[test]
fn a_leak_in_a_registry_has_a_path() {
    let service = Running::begin("registry", 300);
    sleep(Duration::from_secs(2));
    let suspects = ask("suspects", &[&service.snapshot(1)]);
    in_order(&suspects, &["service::Registry", "in ", "service::Session", "outside"]);
}

#[test]
fn a_leak_behind_a_cache_has_a_path() {
    let service = Running::begin("cache", 300);
    sleep(Duration::from_secs(2));
    let suspects = ask("suspects", &[&service.snapshot(1)]);
    in_order(&suspects, &["service::Cache", "in ", "service::Page"]);
}

#[test]
fn buffers_outside_of_the_heap_belong_to_their_objects() {
    let service = Running::begin("buffers", 300);
    sleep(Duration::from_secs(2));
    let file = service.snapshot(1);
    let census = ask("census", &[&file]);
    let row = census.lines().find(|line| line.contains("outside the heap")).expect("a row");
    let bytes = row.split_whitespace().filter_map(|word| word.replace(',', "").parse().ok()).max();
    assert!(bytes.is_some_and(|bytes: u64| bytes > 1_000_000), "{census}");
    in_order(&ask("suspects", &[&file]), &["service::Registry", "service::Session"]);
}

#[test]
fn a_late_thread_is_named_with_what_it_does() {
    let service = Running::begin("late", 300);
    service.text("stderr", |text| {
        let line = text.lines().find(|line| line.contains("has waited"))?;
        in_order(line, &["thread 'reporter'", "last at \"writing the report\"", "has not polled"]);
        Some(())
    });
    let late = service.logged(|line| line["late_thread"].is_string());
    assert!(late["late_thread"].as_str().unwrap().contains("writing the report"), "{late}");
}

#[test]
fn a_slow_finalizer_is_in_the_log_with_its_type() {
    let service = Running::begin("finalizer", 300);
    let line = service.logged(|line| line["slowest"][0]["took_us"].as_u64() >= Some(60_000));
    let slowest = &line["slowest"][0];
    assert_eq!(
        (&slowest["during"], &slowest["type"]),
        (&"Finalize".into(), &"service::Upload".into())
    );
}

#[test]
fn a_long_pause_is_in_the_log_with_its_reason_and_the_largest_types() {
    let service = Running::begin("pause", 300);
    let is_long = |line: &Value| line["kind"] == "full" && !line["largest_types"][0].is_null();
    let line = service.logged(is_long);
    assert_eq!(line["reason"], "Growth");
    assert_eq!(line["largest_types"][0]["type"], "service::IndexNode");
    assert!(line["stops_us"][0].as_u64() >= Some(20_000), "{line}");
    assert!(line["phases_us"]["Mark"].as_u64() > Some(0), "{line}");
}
