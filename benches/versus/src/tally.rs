//! Births and deaths of nodes, counted by the nodes themselves.
//!
//! A collector's own report is not evidence; the calls of destructors are. Every node holds one
//! [`Tally`]. The counts lie in shards, one for each thread, so counting neither shares cache lines
//! nor orders threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// More threads than any run has.
const SHARDS: usize = 256;
const ALIVE: u32 = 0xA11F_E000;
const DEAD: u32 = 0xDEAD_0000;

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    births: AtomicU64,
    deaths: AtomicU64,
}

static COUNTS: [Shard; SHARDS] =
    [const { Shard { births: AtomicU64::new(0), deaths: AtomicU64::new(0) } }; SHARDS];
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // Without a destructor: nodes may die while a thread's other locals are torn down.
    static MINE: Cell<Option<&'static Shard>> = const { Cell::new(None) };
}

#[inline]
fn mine() -> &'static Shard {
    MINE.get().unwrap_or_else(register)
}

#[cold]
fn register() -> &'static Shard {
    let shard = &COUNTS[USED.fetch_add(1, Relaxed)];
    MINE.set(Some(shard));
    shard
}

/// One node's life. Dropping it twice ends the process.
#[derive(Debug)]
pub struct Tally {
    id: u32,
    state: AtomicU32,
}

impl Tally {
    /// A birth.
    #[inline]
    pub fn new(id: u32) -> Self {
        let births = &mine().births;
        // Only this thread writes its shard, so a load and a store do.
        births.store(births.load(Relaxed) + 1, Relaxed);
        Self { id, state: AtomicU32::new(ALIVE) }
    }

    /// The node's name.
    ///
    /// Ends the process if the node is dead: the collector has then freed a reachable node.
    #[inline]
    pub fn id(&self) -> u32 {
        if self.state.load(Relaxed) != ALIVE {
            give_up("use after drop");
        }
        self.id
    }
}

impl Drop for Tally {
    #[inline]
    fn drop(&mut self) {
        if self.state.load(Relaxed) != ALIVE {
            give_up("double drop");
        }
        // An atomic store is not removed as dead, as a plain one before the memory is freed might
        // be.
        self.state.store(DEAD, Relaxed);
        let deaths = &mine().deaths;
        deaths.store(deaths.load(Relaxed) + 1, Relaxed);
    }
}

#[cold]
fn give_up(what: &str) -> ! {
    eprintln!("check failed: {what}");
    std::process::abort()
}

/// Nodes born in this process so far. Exact once the threads that made them were joined.
pub fn births() -> u64 {
    COUNTS.iter().take(USED.load(Relaxed)).map(|shard| shard.births.load(Relaxed)).sum()
}

/// Nodes with a destructor that ran.
pub fn deaths() -> u64 {
    COUNTS.iter().take(USED.load(Relaxed)).map(|shard| shard.deaths.load(Relaxed)).sum()
}

/// Nodes that were born and have not died.
pub fn alive() -> u64 {
    births() - deaths()
}
