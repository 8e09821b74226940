//! Programs by chance.
//!
//! | variable | what it says |
//! |---|---|
//! | `PROPTEST_CASES` | how many programs each test runs: 256; an eighth of them unless [`is_full`] |
//! | `STANDSTILL_ORACLE_SECS` | how long `soak` runs; without, it does not |
//! | `STANDSTILL_ORACLE_LAST` | a folder where each thread leaves its program before it runs: for failures that end the process |

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::common::{deadline, is_full};
use crate::driver::run;
use crate::program::{Program, Step, VARIETIES, Variety};

/// Programs that `soak` runs between two reads of the clock.
const BATCH: u32 = 200;

fn steps(immortals: bool, longest: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = any::<[u8; 4]>().prop_map(move |bytes| Step::decode(bytes, immortals));
    prop::collection::vec(step, 1..longest)
}

/// Programs for one heap. A heap with immortal objects in it is never given back, so there are few
/// of these.
fn programs(variety: Variety, longest: usize, mortal: u32) -> impl Strategy<Value = Program> {
    prop_oneof![mortal => steps(false, longest), 1 => steps(true, longest)]
        .prop_map(move |steps| Program { variety, steps })
}

/// Runs so many programs, and says how many steps they had.
fn check(programs: impl Strategy<Value = Program>, cases: u32) -> usize {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    };
    let done = Cell::new(0);
    let last = std::env::var_os("STANDSTILL_ORACLE_LAST")
        .map(|folder| PathBuf::from(folder).join(format!("{:?}", std::thread::current().id())));
    let result = TestRunner::new(config).run(&programs, |program| {
        if let Some(last) = &last {
            std::fs::write(last, format!("{program:?}\n")).expect("a file that can be written");
        }
        run(&program);
        done.set(done.get() + program.steps.len());
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    done.get()
}

fn random_programs(variety: Variety) {
    let _watch = deadline("oracle");
    let cases = ProptestConfig::default().cases / if is_full() { 1 } else { 8 };
    let steps = check(programs(variety, 120, 3), cases);
    println!("{steps} steps on a heap that is {variety:?}");
}

#[test]
fn random_programs_with_one_marker() {
    random_programs(Variety::Plain);
}

#[test]
fn random_programs_with_several_markers() {
    random_programs(Variety::Parallel);
}

#[test]
fn random_programs_under_stress() {
    random_programs(Variety::Stress);
}

#[test]
fn random_programs_in_checked_mode() {
    random_programs(Variety::Checked);
}

/// On all cores, as long as `STANDSTILL_ORACLE_SECS` says.
#[test]
fn soak() {
    let Ok(seconds) = std::env::var("STANDSTILL_ORACLE_SECS") else { return };
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("a number of seconds"));
    let one = || {
        let (mut programs_run, mut steps) = (0, 0);
        while Instant::now() < end {
            for variety in VARIETIES {
                steps += check(programs(variety, 300, 2_000), BATCH);
                programs_run += BATCH as usize;
            }
        }
        (programs_run, steps)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (programs_run, steps) = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let done = all.into_iter().map(|thread| thread.join().expect("no failure"));
        done.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    println!("{programs_run} programs of {steps} steps in {seconds} s on {threads} threads");
}
