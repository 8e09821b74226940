//! One compilation names every mistake, and each where it stands.

use standstill::Trace;

#[derive(Trace)]
#[trace(weak, untracked(yes), finalise = close, crate = "standstill")]
#[trace]
struct Window {
    #[trace(ignore)]
    title: String,
}

#[derive(Trace)]
#[trace(finalize = "Self::close", bound(T: Trace))]
struct Door<T>(T);

fn main() {}
