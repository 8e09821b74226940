//! The memory of the tables with which a collection marks.
//!
//! Fresh memory faults at each page, so a heap keeps the tables from one collection to the next.
//! For example, a collection over three candidates sets three bits of [`MarkTables::unmarked`], and
//! marking clears the bits of the two that are reached. The bit that is left is cleared too before
//! the tables are given back, so that the next collection starts with zeroes. The page of
//! [`collect/candidates.rs`](crate::collect::candidates) explains which threads write when.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicU64, Mutex, Ordering};
use crate::memory::shape::PAGE_GRANULES;
use crate::object::address::Object;

/// Granules that share a word. The small pages of loom's models have fewer than 64.
pub(crate) const WORD: usize = if PAGE_GRANULES < 64 { PAGE_GRANULES } else { 64 };

pub(crate) const PAGE_WORDS: usize = PAGE_GRANULES / WORD;

/// A table with one bit for each granule.
#[derive(Debug, Default)]
pub(crate) struct Bits(Vec<AtomicU64>);

impl Bits {
    /// Makes room for `pages` pages in a table that is zero.
    pub(crate) fn fit(&mut self, pages: usize) -> Result<(), NoMemory> {
        let words = pages * PAGE_WORDS;
        if self.0.len() < words {
            // Room for growth, so that the table of a growing heap is not made anew each time.
            let words = words + words / 4;
            self.0 = Vec::new();
            self.0 = fallible::collect((0..words).map(|_| AtomicU64::new(0)))?;
        }
        Ok(())
    }

    pub(crate) fn page(&self, page: u32) -> &[AtomicU64] {
        &self.0[page as usize * PAGE_WORDS..][..PAGE_WORDS]
    }

    /// Whether the bits of a page are zero. A table without room for the page has none.
    pub(crate) fn is_zero(&self, page: u32) -> bool {
        let words = self.0.iter().skip(page as usize * PAGE_WORDS).take(PAGE_WORDS);
        // Relaxed: no other thread uses the tables.
        words.into_iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    pub(crate) fn words(&self) -> BitWords<'_> {
        BitWords(&self.0)
    }

    #[inline(always)]
    pub(crate) fn contains(&self, granule: usize) -> bool {
        // Relaxed: the page of `collect/candidates.rs` says which threads write meanwhile.
        self.0[granule / WORD].load(Ordering::Relaxed) >> (granule % WORD) & 1 != 0
    }

    /// Sets a bit by a load and a store, because no other thread writes the word.
    #[inline(always)]
    pub(crate) fn insert(&self, granule: usize) {
        let word = &self.0[granule / WORD];
        word.store(word.load(Ordering::Relaxed) | 1 << (granule % WORD), Ordering::Relaxed);
    }

    /// Clears a bit by a load and a store, because no other thread writes the word.
    #[inline(always)]
    pub(crate) fn remove(&self, granule: usize) {
        let word = &self.0[granule / WORD];
        word.store(word.load(Ordering::Relaxed) & !(1 << (granule % WORD)), Ordering::Relaxed);
    }
}

/// The words of a table, for a loop that keeps their address in a register.
#[derive(Clone, Copy)]
pub(crate) struct BitWords<'a>(&'a [AtomicU64]);

impl BitWords<'_> {
    #[inline(always)]
    pub(crate) fn bit(self, granule: usize) -> u8 {
        // Relaxed: as in `Bits::contains`.
        (self.0[granule / WORD].load(Ordering::Relaxed) >> (granule % WORD)) as u8 & 1
    }

    /// Clears the bit of a granule, beside other threads. Returns 1 if this thread has cleared it,
    /// and otherwise 0.
    #[inline(always)]
    pub(crate) fn take_exactly(self, granule: usize) -> u8 {
        let bit = 1 << (granule % WORD);
        // Relaxed: the atomicity of the change decides which thread clears the bit.
        u8::from(self.0[granule / WORD].fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// Clears the bit of a granule by a load and a store, and returns the old bit as 0 or 1.
    /// Another thread may write the word meanwhile only if marks are *plain*.
    #[inline(always)]
    pub(crate) fn take(self, granule: usize) -> u8 {
        let word = &self.0[granule / WORD];
        // Relaxed, both: the page of `collect/candidates.rs` says why a lost store does no harm.
        let before = word.load(Ordering::Relaxed);
        let bit = (before >> (granule % WORD)) as u8 & 1;
        // Each store clears a bit, so that marking ends.
        if bit != 0 {
            word.store(before & !(1 << (granule % WORD)), Ordering::Relaxed);
        }
        bit
    }
}

/// Calls `f` with the granule of each bit of a word, whose first granule is `first`.
#[inline(always)]
pub(crate) fn each_bit(first: usize, mut bits: u64, mut f: impl FnMut(usize)) {
    while bits != 0 {
        f(first + bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// The memory for marking. Between two collections the tables are zero and the lists are empty.
#[derive(Debug, Default)]
pub(crate) struct MarkTables {
    pub(crate) unmarked: Bits,
    pub(crate) assumed: Bits,
    /// For each worker of an earlier marking, its list of marked objects.
    pub(crate) lists: Mutex<Vec<Vec<Object>>>,
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl MarkTables {
    /// Whether all words of all tables are zero.
    pub(crate) fn are_zero(&self) -> bool {
        let Self { unmarked, assumed, lists: _ } = self;
        let zero = |bits: &Bits| bits.0.iter().all(|word| word.load(Ordering::Relaxed) == 0);
        [unmarked, assumed].into_iter().all(zero)
    }

    pub(crate) fn fits(&self, pages: usize) -> bool {
        self.unmarked.0.len() >= pages * PAGE_WORDS
    }
}

/// A root of the last full collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundRoot {
    pub(crate) granule: u32,
    /// The number of edges that led to it.
    pub(crate) inside: u32,
}

/// The remembered roots of one heap, which only the collecting thread uses, in a stop.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<Vec<FoundRoot>>);

impl Remembered {
    pub(crate) fn take(&self) -> Vec<FoundRoot> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(crate) fn set(&self, roots: Vec<FoundRoot>) {
        *self.0.lock() = roots;
    }
}
