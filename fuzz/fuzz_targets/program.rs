//! Bytes are a program, which runs on a heap and on the naive model of `tests/oracle`: they must
//! agree after every step.
//!
//! A failure prints the program as the body of a regression test, for
//! `tests/oracle/regressions.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/oracle/driver.rs"]
mod driver;
#[path = "../../tests/oracle/dynamics.rs"]
mod dynamics;
#[path = "../../tests/oracle/model.rs"]
mod model;
#[path = "../../tests/oracle/objects.rs"]
mod objects;
#[path = "../../tests/oracle/program.rs"]
mod program;
#[path = "../../tests/oracle/world.rs"]
mod world;

// A panic that is caught in the course of a program is none of the fuzzer's, whose hook would end
// it there.
fuzz_target!(init: drop(std::panic::take_hook()), |bytes: &[u8]| {
    let program = program::Program::decode(bytes);
    if let Some(failure) = common::panic_text(|| driver::run(&program)) {
        eprintln!("{failure}\n{program:?}");
        std::process::abort();
    }
});
