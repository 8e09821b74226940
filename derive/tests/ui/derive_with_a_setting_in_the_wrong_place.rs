//! `skip` belongs on a field, everything else on the type.

use standstill::Trace;

#[derive(Trace)]
#[trace(skip)]
struct Window<#[trace(skip)] T> {
    #[trace(untracked)]
    title: T,
}

#[derive(Trace)]
enum Event {
    #[trace(skip)]
    Click { x: u32, y: u32 },
    Key(#[trace(finalize)] char),
}

fn main() {}
