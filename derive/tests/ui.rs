//! Programs that must not compile. Each file in `ui/` has one mistake and is named by it. Beside it
//! lies the compiler's message, which is part of the library's interface. The program in `ui/pass/`
//! must compile and run; it is a part of this one, because trybuild would build the library and all
//! that the tests need once more for it.
//!
//! The texts are those of stable Rust 1.95. After a change, `TRYBUILD=overwrite cargo test
//! --test ui` writes them anew: read the difference before keeping it.

#[test]
#[cfg_attr(miri, ignore = "runs the compiler")]
fn mistakes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

#[path = "ui/pass/methods_of_std_stay_in_reach.rs"]
mod methods_of_std_stay_in_reach;

#[test]
fn methods_of_std_stay_in_reach() {
    methods_of_std_stay_in_reach::main();
}
