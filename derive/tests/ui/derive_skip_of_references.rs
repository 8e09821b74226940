//! A field that may hold references is not skipped, unless the attribute says what that leads to.

use std::sync::Mutex;
use std::sync::mpsc::Sender;

use standstill::{AnyGc, Gc, Trace};

#[derive(Trace)]
struct Script {
    #[trace(skip)]
    module: Option<Gc<Script>>,
    #[trace(skip)]
    lock: Mutex<Option<Gc<Script>>>,
    /// Not `Trace`, with an argument that is.
    #[trace(skip)]
    queue: Mutex<Sender<(u8, AnyGc)>>,
    #[trace(skip)]
    of_a_tracked_type: [Box<Position>; SIZE],
}

const SIZE: usize = 2;

#[derive(Trace)]
struct Position(u32);

#[derive(Trace)]
#[trace(untracked)]
enum Late {
    Bound(#[trace(skip)] Gc<Script>),
}

#[derive(Trace)]
struct Words(#[trace(leaks_cycles)] Option<Gc<Words>>, #[trace(skip, leaks)] u8);

fn main() {}
