//! The ledger of births and deaths: one byte an object, in which its destructor leaves its mark.
//!
//! A total alone would let one object that dies twice make up for one that never dies; a byte each
//! names both. The bytes are never freed: a destructor may run as late as the end of the process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Not born yet; from [`ALIVE`] on, the value grows by one with each run of the destructor.
const UNBORN: u8 = 0;
const ALIVE: u8 = 1;
const DEAD: u8 = 2;

/// All pages of the ledger.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pages: Mutex<Vec<&'static [AtomicU8]>>,
}

/// The result of the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) born: usize,
    /// Objects destroyed at least once.
    pub(crate) dead: usize,
    /// Objects destroyed more than once.
    pub(crate) twice: usize,
}

impl Ledger {
    /// A page for `objects` objects, written by one thread.
    pub(crate) fn page(&self, objects: usize) -> &'static [AtomicU8] {
        let page: &'static [AtomicU8] =
            (0..objects).map(|_| AtomicU8::new(UNBORN)).collect::<Vec<_>>().leak();
        self.pages.lock().unwrap().push(page);
        page
    }

    /// Counts. Exact once the threads that write are joined.
    pub(crate) fn tally(&self) -> Tally {
        let pages = self.pages.lock().unwrap();
        let mut tally = Tally::default();
        for entry in pages.iter().copied().flatten() {
            // Relaxed: joining the writing threads, or the end of the collection, ordered the
            // marks.
            let entry = entry.load(Ordering::Relaxed);
            tally.born += usize::from(entry >= ALIVE);
            tally.dead += usize::from(entry >= DEAD);
            tally.twice += usize::from(entry > DEAD);
        }
        tally
    }
}

/// The first object of `page` that was born and has not died.
pub(crate) fn first_alive(page: &[AtomicU8]) -> Option<usize> {
    page.iter().position(|entry| entry.load(Ordering::Relaxed) == ALIVE)
}

/// Lies in an object, dies with it, and says so in the ledger.
#[derive(Debug)]
pub(crate) struct Witness(&'static AtomicU8);

impl Witness {
    /// The witness of the object that `entry` is for.
    pub(crate) fn new(entry: &'static AtomicU8) -> Self {
        // Relaxed: the entry is a count, nothing is published through it.
        entry.store(ALIVE, Ordering::Relaxed);
        Self(entry)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // A read-modify-write, so that two destructors that race are both seen.
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes entries page by page: for a thread that does not know how many objects it will make.
#[derive(Debug)]
pub(crate) struct Register<'l> {
    ledger: &'l Ledger,
    left: std::slice::Iter<'static, AtomicU8>,
}

impl<'l> Register<'l> {
    pub(crate) fn new(ledger: &'l Ledger) -> Self {
        Self { ledger, left: [].iter() }
    }

    /// The witness of the next object.
    pub(crate) fn witness(&mut self) -> Witness {
        const PAGE: usize = 4096;
        let entry = self.left.next().unwrap_or_else(|| {
            self.left = self.ledger.page(PAGE).iter();
            self.left.next().expect("a fresh page has entries")
        });
        Witness::new(entry)
    }
}
