//! Each program in `tests/programs` prints what the file beside it says, also if each 50th
//! safepoint collects.

use std::path::Path;
use std::process::Command;

fn run(program: &Path, stress: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scheme"));
    command.arg(program.file_name().expect("a file")).current_dir("tests/programs");
    command.env_remove("STANDSTILL_STRESS");
    if let Some(stress) = stress {
        command.env("STANDSTILL_STRESS", stress);
    }
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Compares the output of all programs with the files. `BLESS=1` writes the files instead.
fn check(stress: Option<&str>) {
    let mut programs = 0;
    for entry in std::fs::read_dir("tests/programs").expect("the folder exists") {
        let program = entry.expect("an entry").path();
        if program.extension().is_none_or(|it| it != "scm") {
            continue;
        }
        programs += 1;
        let (output, expected) = (run(&program, stress), program.with_extension("out"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&expected, &output).expect("the file can be written");
        }
        let expected = std::fs::read_to_string(&expected).expect("the file with the output exists");
        assert_eq!(output, expected, "{} under {stress:?}", program.display());
    }
    assert!(programs > 0);
}

#[test]
fn programs_print_what_they_should() {
    check(None);
}

#[test]
fn programs_survive_a_collection_at_each_50th_safepoint() {
    check(Some("collect:50"));
}
