//! Births and deaths: in each object lies a [`Witness`], which is counted when it is made and when
//! it is dropped.
//!
//! A byte an object, as the replay example has it, would be too much for a minute of requests.
//! Instead each witness has a number of its own, and the ledger adds up the hashes of the numbers
//! that were born, and of those that died. An object that dies twice could make up for one that
//! never does in the counts, but not in these sums.
//!
//! Each thread writes on a page of its own, so counting costs a load and a store.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pauses::random::SplitMix;
use standstill::Trace;

/// The observations of one thread. Other threads only read them, so a load and a store are an
/// increment.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Page {
    born: Sum,
    dead: Sum,
}

/// How many, and the sum of their hashes.
#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    hashes: AtomicU64,
}

impl Sum {
    #[inline]
    fn add(&self, number: u64) {
        // Relaxed: a reader that needs exact sums joins the thread first.
        let add = |to: &AtomicU64, by| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed)
        };
        add(&self.count, 1);
        add(&self.hashes, SplitMix::new(number).below(usize::MAX) as u64);
    }
}

static PAGES: Mutex<Vec<&'static Page>> = Mutex::new(Vec::new());

/// Numbers that one thread takes at a time.
const BLOCK: u64 = 1 << 40;

/// A thread's page, and the number of its next witness.
struct Writer {
    page: &'static Page,
    next: Cell<u64>,
}

thread_local! {
    // Without a destructor: objects may die as late as the end of their thread.
    static WRITER: Writer = {
        let page: &'static Page = Box::leak(Box::default());
        let mut pages = PAGES.lock().expect("no thread panics with the list locked");
        pages.push(page);
        Writer { page, next: Cell::new(pages.len() as u64 * BLOCK) }
    };
}

/// Lies in an object, and dies with it.
#[derive(Debug, Trace)]
pub(crate) struct Witness(u64);

impl Witness {
    /// The witness of a new object.
    #[inline]
    pub(crate) fn new() -> Self {
        WRITER.with(|writer| {
            let number = writer.next.get();
            writer.next.set(number + 1);
            writer.page.born.add(number);
            Self(number)
        })
    }
}

impl Drop for Witness {
    #[inline]
    fn drop(&mut self) {
        WRITER.with(|writer| writer.page.dead.add(self.0));
    }
}

/// The sums of the whole ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) born: u64,
    pub(crate) dead: u64,
    /// Zero if the dead objects are the born objects.
    difference: u64,
}

impl Tally {
    /// The sums so far: exact once the threads that write are joined.
    pub(crate) fn now() -> Self {
        let mut tally = Self::default();
        for page in &*PAGES.lock().expect("no thread panics with the list locked") {
            let read = |from: &AtomicU64| from.load(Ordering::Relaxed);
            tally.born += read(&page.born.count);
            tally.dead += read(&page.dead.count);
            tally.difference = tally
                .difference
                .wrapping_add(read(&page.born.hashes))
                .wrapping_sub(read(&page.dead.hashes));
        }
        tally
    }

    /// Objects alive.
    pub(crate) fn alive(&self) -> u64 {
        self.born.saturating_sub(self.dead)
    }

    /// Whether every object has died, once.
    pub(crate) fn is_settled(&self) -> bool {
        self.born == self.dead && self.difference == 0
    }
}
