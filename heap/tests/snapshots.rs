//! The reader of heap snapshots against the fuzzer's corpus: files of all
//! kinds, most of them wrong somewhere.

#![cfg(not(loom))]

use std::path::Path;

#[path = "../../fuzz/fuzz_targets/examine.rs"]
mod examine;

#[global_allocator]
static COUNTING: examine::Counting = examine::Counting;

#[test]
fn every_file_of_the_corpus_is_read_or_refused_in_one_line() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/snapshot");
    let files: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in &files {
        println!("{}", file.display());
        examine::examine(&std::fs::read(file).unwrap());
    }
    assert!(files.len() > 100, "{} files", files.len());
}
