//! Programs that must not compile. Each file in `ui/` has one mistake and is named by it. Beside it
//! lies the compiler's message, which is part of the library's interface. The programs in
//! `ui/pass/` must compile and run.
//!
//! The texts are those of stable Rust 1.95. After a change, `TRYBUILD=overwrite cargo test --test
//! ui` writes them anew: read the difference before keeping it.

#![cfg(feature = "derive")]

#[test]
#[cfg_attr(miri, ignore = "runs the compiler")]
fn mistakes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

#[test]
#[cfg_attr(miri, ignore = "runs the compiler")]
fn other_programs_compile() {
    trybuild::TestCases::new().pass("tests/ui/pass/*.rs");
}
