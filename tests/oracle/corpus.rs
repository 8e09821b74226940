//! The fuzzer's corpus (`fuzz/corpus/program`): programs that together cover all code that the
//! fuzzer has covered so far.

use std::path::Path;

use crate::common::{deadline, panic_text};
use crate::driver::run;
use crate::program::Program;

#[test]
fn every_program_of_the_corpus_runs_as_the_model_says() {
    let _watch = deadline("corpus");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/program");
    let files: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in &files {
        let program = Program::decode(&std::fs::read(file).unwrap());
        if let Some(failure) = panic_text(|| run(&program)) {
            panic!("{}: {failure}{program:?}", file.display());
        }
    }
    assert!(files.len() > 100, "{} files", files.len());
}
