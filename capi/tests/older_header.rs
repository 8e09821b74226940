//! Programs that were compiled against an older header work with the library of today.
//!
//! `older/standstill.h` is the header as it was before the release of 0.1.0. It does not change.
//! When a new major version breaks it, the header of the version before takes its place.

#[allow(dead_code, reason = "these programs are linked, not loaded")]
mod library;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use library::Library;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The declarations with the mark `STANDSTILL_STABLE`, with single spaces.
fn stable(header: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(header)
        .unwrap_or_else(|error| panic!("{}: {error}", header.display()));
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let code = without_comments(&lines.collect::<Vec<_>>().join("\n"));
    code.split("STANDSTILL_STABLE")
        .skip(1)
        .map(|rest| rest.split(';').next().expect("a declaration"))
        .map(|declaration| declaration.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

fn without_comments(code: &str) -> String {
    let mut parts = code.split("/*");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once("*/").expect("the end of a comment").1);
    }
    kept
}

#[test]
fn s_009_stable_declarations_stay_as_they_are() {
    let older = stable(&here().join("tests/older/standstill.h"));
    let newer = stable(&here().join("include/standstill.h"));
    assert!(older.len() > 100, "only {} declarations were found", older.len());
    let changed: Vec<_> = older.difference(&newer).collect();
    assert!(changed.is_empty(), "changed or removed: {changed:#?}");
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Compiles `sources` with the older header, links the library of today, and runs the program.
fn run(name: &str, sources: &[PathBuf], arguments: &[&str]) -> String {
    let library = Library::build();
    let folder = library.parent().expect("a folder");
    let program = folder.join(format!("older-{name}-{}", std::process::id()));
    let compiled = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
        .arg(here().join("tests/older"))
        .args(sources)
        .arg("-o")
        .arg(&program)
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .arg(&library)
        .args(["-lpthread", "-lm"])
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{}", text(&compiled));
    let ran = Command::new(&program).args(arguments).output().expect("the program");
    std::fs::remove_file(&program).expect("the program's file");
    assert!(ran.status.success(), "{}\n{}", ran.status, text(&ran));
    text(&ran)
}

#[test]
fn s_009_a_small_program_with_the_older_header_runs() {
    let said = run("minimal", &[here().join("examples/minimal.c")], &[]);
    assert_eq!(said.matches("a link died").count(), 2, "{said}");
}

#[test]
fn s_009_an_object_system_with_the_older_header_runs() {
    let sources = std::fs::read_dir(here().join("examples/objects")).expect("the example");
    let mut sources: Vec<_> = sources.map(|entry| entry.expect("an entry").path()).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    sources.sort();
    run("objects", &sources, &["2", "20"]);
}
