//! The tool `replay`, run as a program: its reports about real heaps.

#![cfg(not(any(loom, miri)))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;

/// A small heap, with a field that no reader needs, a ring that the root holds (nodes 1 and 2), a
/// node that only a weak edge leads to (3), and a ring that nothing leads to (4 and 5).
const GOOD: &str = include_str!("../../heap/tests/good.heapsnapshot");

/// The same heap, written down differently.
const PERMUTED: &str = r#"{"snapshot":{"edge_count":6,"node_count":6,"meta":{
"edge_types":["node",["context","weak","shortcut","element"]],
"edge_fields":["to_node","type"],
"node_types":["number","number",["a","b","object"],"string"],
"node_fields":["edge_count","self_size","type","name"]}},
"nodes":[2,0,0,2, 1,64,2,1, 1,64,2,1, 0,32,2,0, 1,16,2,0, 1,8,2,0],
"edges":[4,3, 12,1, 8,3, 4,3, 20,3, 16,3],
"strings":["Lone","Ring","root"]}"#;

fn run(file: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_replay")).arg(file).args(options).output().unwrap()
}

/// The path of a file with these bytes.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replay-{name}"));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn heap(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("heaps").join(format!("{name}.heapsnapshot.zst"))
}

/// Runs `file`, which must pass all checks, and gives its line of JSON back.
fn report(file: &Path, options: &[&str]) -> Value {
    let output = run(file, &[options, &["--json"]].concat());
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    assert_eq!(out.lines().count(), 1, "{out}");
    // On a busy machine the heap may say that a collection takes long.
    let said: Vec<&str> =
        err.lines().filter(|line| !line.contains("collecting has taken")).collect();
    assert!(said.is_empty(), "{err}");
    serde_json::from_str(&out).unwrap()
}

#[track_caller]
fn assert_fields(report: &Value, heap: &str, objects: u64, edges: u64, threads: u64) {
    assert_eq!(report["heap"], heap);
    assert_eq!(report["objects"], objects);
    assert_eq!(report["edges"], edges);
    assert_eq!(report["threads"], threads);
    assert_eq!(report["leaked"], 0);
    let number = |field: &str| {
        report[field].as_f64().unwrap_or_else(|| panic!("no number {field}: {report}"))
    };
    for field in [
        "collected",
        "young_collections",
        "young_pause_ms_max",
        "time_to_stop_us_max",
        "churn_ns_per_op",
    ] {
        assert!(number(field) >= 0.0, "{field}: {report}");
    }
    for field in ["full_pause_ms_min", "build_ns_per_object", "peak_rss_kb"] {
        assert!(number(field) > 0.0, "{field}: {report}");
    }
    assert!(number("full_pause_ms_median") >= number("full_pause_ms_min"), "{report}");
    assert!(number("freed") >= objects as f64, "{report}");
    assert!(number("collections") >= number("young_collections") + 2.0, "{report}");
}

#[test]
fn replays_sympy() {
    let report = report(&heap("sympy"), &["--threads", "2", "--churn", "2000"]);
    assert_fields(&report, "sympy", 83_442, 227_554, 2);
    assert!(report["churn_ns_per_op"].as_f64() > Some(0.0));
    // The objects of the churn died too, rings included.
    assert!(report["freed"].as_u64() > Some(83_442));
    assert!(report["collected"].as_u64() > Some(0));
}

#[test]
fn replays_django_with_payload() {
    let options =
        ["--threads", "3", "--churn", "500", "--collections", "2", "--seed", "7", "--payload"];
    assert_fields(&report(&heap("django"), &options), "django", 173_870, 396_224, 3);
}

#[test]
fn frees_the_objects_outside_the_file_and_no_others() {
    let plain = file("good.heapsnapshot", GOOD.as_bytes());
    let packed = file("packed.zst", &compress_to_vec(GOOD.as_bytes(), CompressionLevel::Fastest));
    let permuted = file("permuted.heapsnapshot", PERMUTED.as_bytes());
    for (file, name) in
        [(plain, "replay-good"), (packed, "replay-packed"), (permuted, "replay-permuted")]
    {
        // With more threads than nodes, some have nothing to build.
        for threads in [1, 2, 3, 9] {
            let report = report(&file, &["--churn", "0", "--threads", &threads.to_string()]);
            assert_fields(&report, name, 6, 6, threads);
            assert_eq!(report["reachable"], 3);
            assert_eq!(report["freed"], 6);
            // The two rings. Counting frees the rest.
            assert_eq!(report["collected"], 4);
        }
    }
}

#[test]
fn prints_a_table() {
    let output =
        run(&file("table.heapsnapshot", GOOD.as_bytes()), &["--threads", "2", "--churn", "300"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{table}");
    for row in [
        "objects",
        "edges",
        "threads",
        "full pause",
        "young pause",
        "time to stop",
        "leaked",
        "peak memory",
    ] {
        assert!(table.lines().any(|line| line.starts_with(row)), "no {row}:\n{table}");
    }
    // No bars where there is no terminal.
    assert!(output.stderr.is_empty());
}

#[test]
fn help_names_the_options_and_the_exit_status() {
    let output = Command::new(env!("CARGO_BIN_EXE_replay")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for part in
        ["--threads", "--churn", "--collections", "--seed", "--payload", "--json", "Exit status"]
    {
        assert!(help.contains(part), "no {part}:\n{help}");
    }
}

/// The tests of `standstill-heap` have all kinds of bad files.
#[test]
fn refuses_a_bad_file_in_one_line() {
    let file = file("cut.heapsnapshot", &GOOD.as_bytes()[..GOOD.len() / 2]);
    let output = run(&file, &["--json"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{error}");
    assert!(error.contains(": cut: "), "{error}");
}
