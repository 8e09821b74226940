//! The fuzzer's corpus (`fuzz/corpus/program`): programs that together cover all code that the
//! fuzzer has covered so far.

use std::path::Path;

use crate::common::{deadline, is_full, panic_text};
use crate::driver::run;
use crate::program::Program;

#[test]
fn programs_of_the_corpus_run_as_the_model_says() {
    let _watch = deadline("corpus");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/program");
    let mut files: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    // Every twelfth of them unless the run is a full one.
    for file in files.iter().step_by(if is_full() { 1 } else { 12 }) {
        let program = Program::decode(&std::fs::read(file).unwrap());
        if let Some(failure) = panic_text(|| run(&program)) {
            panic!("{}: {failure}{program:?}", file.display());
        }
    }
    assert!(files.len() > 100, "{} files", files.len());
}
