//! The memory of the tables with which a collection marks.
//!
//! The heap keeps the tables from one collection to the next, because fresh memory faults. The page
//! of [`collect/candidates.rs`](crate::collect::candidates) explains their use.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicU8, AtomicU64, Ordering};
use crate::memory::space::PAGE_GRANULES;

/// Granules that share a word. The pages of models are smaller than a word.
pub(crate) const WORD: usize = if PAGE_GRANULES < 64 { PAGE_GRANULES } else { 64 };

/// Words of a page.
pub(crate) const PAGE_WORDS: usize = PAGE_GRANULES / WORD;

/// A table with one bit for each granule.
#[derive(Debug, Default)]
pub(crate) struct Bits(Vec<AtomicU64>);

impl Bits {
    /// Makes room for `pages` pages. The table is zero.
    pub(crate) fn fit(&mut self, pages: usize) -> Result<(), NoMemory> {
        let words = pages * PAGE_WORDS;
        if self.0.len() < words {
            // Room for growth: the table of a growing heap is not made anew each time.
            let words = words + words / 4;
            self.0 = Vec::new();
            self.0 = fallible::collect((0..words).map(|_| AtomicU64::new(0)))?;
        }
        Ok(())
    }

    /// The words of a page.
    pub(crate) fn page(&self, page: u32) -> &[AtomicU64] {
        &self.0[page as usize * PAGE_WORDS..][..PAGE_WORDS]
    }

    /// The words of all granules.
    pub(crate) fn words(&self) -> BitWords<'_> {
        BitWords(&self.0)
    }

    /// The word of a granule.
    #[inline(always)]
    pub(crate) fn word(&self, granule: usize) -> &AtomicU64 {
        &self.0[granule / WORD]
    }

    /// Whether the bit of a granule is set.
    #[inline(always)]
    pub(crate) fn contains(&self, granule: usize) -> bool {
        // Relaxed: the page of `collect/candidates.rs` says which threads write meanwhile.
        self.0[granule / WORD].load(Ordering::Relaxed) >> (granule % WORD) & 1 != 0
    }

    /// Where the bit of a granule is.
    #[inline(always)]
    pub(crate) fn entry(&self, granule: usize) -> *const u8 {
        self.0.as_ptr().wrapping_add(granule / WORD).cast()
    }

    /// The bits of a word.
    #[inline(always)]
    pub(crate) fn bits(&self, word: usize) -> u64 {
        // Relaxed: as in `contains`.
        self.0[word].load(Ordering::Relaxed)
    }

    /// Clears bits of a word by a load and a store: no other thread writes the word. Returns those
    /// that were set.
    #[inline(always)]
    pub(crate) fn take_bits(&self, word: usize, bits: u64) -> u64 {
        let word = &self.0[word];
        let before = word.load(Ordering::Relaxed);
        word.store(before & !bits, Ordering::Relaxed);
        before & bits
    }

    /// Sets bits by a load and a store: no other thread writes the word.
    #[inline(always)]
    pub(crate) fn insert(&self, granule: usize) {
        let word = &self.0[granule / WORD];
        word.store(word.load(Ordering::Relaxed) | 1 << (granule % WORD), Ordering::Relaxed);
    }

    /// Clears a bit by a load and a store: no other thread writes the word.
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
    /// The bit of a granule, as 0 or 1.
    #[inline(always)]
    pub(crate) fn bit(self, granule: usize) -> u8 {
        // Relaxed: as in `Bits::contains`.
        (self.0[granule / WORD].load(Ordering::Relaxed) >> (granule % WORD)) as u8 & 1
    }

    /// Clears the bit of a granule, by a load and a store, beside other threads. Returns the old
    /// bit, as 0 or 1. The store for a clear bit goes to `spare`, because the threads would move
    /// the cache line to and fro. There is no branch, because it could not be predicted.
    #[inline(always)]
    pub(crate) fn take_plainly(self, granule: usize, spare: &AtomicU64) -> u8 {
        let word = &self.0[granule / WORD];
        // Relaxed, both: `collect/candidates.rs` says why a lost store does no harm.
        let before = word.load(Ordering::Relaxed);
        let bit = (before >> (granule % WORD)) as u8 & 1;
        let to = [spare, word][usize::from(bit)];
        to.store(before & !(1 << (granule % WORD)), Ordering::Relaxed);
        bit
    }

    /// Clears the bit of a granule, by a load and a store: no other thread writes the word. Returns
    /// the old bit, as 0 or 1.
    #[inline(always)]
    pub(crate) fn take(self, granule: usize) -> u8 {
        let word = &self.0[granule / WORD];
        let before = word.load(Ordering::Relaxed);
        word.store(before & !(1 << (granule % WORD)), Ordering::Relaxed);
        (before >> (granule % WORD)) as u8 & 1
    }
}

/// Calls `f` with the granule of each bit of a word.
#[inline(always)]
pub(crate) fn each_bit(first: usize, mut bits: u64, mut f: impl FnMut(usize)) {
    while bits != 0 {
        f(first + bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl MarkTables {
    /// Whether all words of all tables are zero.
    pub(crate) fn are_zero(&self) -> bool {
        let Self { unmarked, unseen, assumed, queued } = self;
        let zero = |bits: &Bits| bits.0.iter().all(|word| word.load(Ordering::Relaxed) == 0);
        unseen.iter().chain([unmarked, assumed]).all(zero)
            && queued.iter().all(|page| page.load(Ordering::Relaxed) == 0)
    }
}

/// The tables, which are kept from one collection to the next. They are zero then.
#[derive(Debug, Default)]
pub(crate) struct MarkTables {
    pub(crate) unmarked: Bits,
    pub(crate) unseen: Vec<Bits>,
    pub(crate) assumed: Bits,
    pub(crate) queued: Vec<AtomicU8>,
}

impl MarkTables {
    /// Makes room for `pages` pages and the tables of `workers` workers.
    pub(crate) fn fit(&mut self, pages: usize, workers: usize) -> Result<(), NoMemory> {
        self.unmarked.fit(pages)?;
        if self.unseen.len() < workers {
            let missing = workers - self.unseen.len();
            self.unseen.try_reserve_exact(missing)?;
            self.unseen.extend((0..missing).map(|_| Bits::default()));
        }
        self.unseen[..workers].iter_mut().try_for_each(|bits| bits.fit(pages))?;
        if self.queued.len() < pages {
            let pages = pages + pages / 4;
            self.queued = Vec::new();
            self.queued = fallible::collect((0..pages).map(|_| AtomicU8::new(0)))?;
        }
        Ok(())
    }
}
