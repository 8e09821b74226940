//! A pool must find a gap of adjacent free pages, although a release must not allocate. So a set of
//! pages is one bit for each page, in memory that is reserved before.

#![forbid(unsafe_code)]

use std::collections::TryReserveError;
use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// A set of page numbers. [`reserve`](Self::reserve) is the only method that allocates memory for
/// it.
///
/// The searches skip 64 pages at a time. Mostly they look at one word only, because `full` and
/// `end` exclude the words where a search cannot find anything.
#[derive(Debug, Default)]
pub(super) struct PageSet {
    words: Vec<u64>,
    len: usize,
    /// All words before this one are full.
    full: usize,
    /// This word and all later words are empty.
    end: usize,
}

impl PageSet {
    /// Makes room for the pages below `pages`.
    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), TryReserveError> {
        let words = pages.div_ceil(BITS).max(self.words.len());
        self.words.try_reserve(words - self.words.len())?;
        self.words.resize(words, 0);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds pages that have room and are not in the set.
    pub(super) fn insert(&mut self, pages: Range<usize>) {
        self.len += pages.len();
        self.end = self.end.max(pages.end.div_ceil(BITS));
        for (word, mask) in masks(pages) {
            debug_assert_eq!(self.words[word] & mask, 0, "a page is in the set already");
            self.words[word] |= mask;
        }
    }

    /// Removes pages that have room. Returns how many of them were in the set.
    pub(super) fn remove(&mut self, pages: Range<usize>) -> usize {
        self.full = self.full.min(pages.start / BITS);
        let mut removed = 0;
        for (word, mask) in masks(pages) {
            removed += (self.words[word] & mask).count_ones() as usize;
            self.words[word] &= !mask;
        }
        self.len -= removed;
        removed
    }

    /// The first of `pages` adjacent pages that are not in the set, at the lowest place possible.
    /// It may lie beyond the room, where no page is in the set.
    pub(super) fn first_gap(&mut self, pages: usize) -> usize {
        while self.words.get(self.full) == Some(&u64::MAX) {
            self.full += 1;
        }
        // How many pages directly before the word are not in the set.
        let mut before = 0;
        for (index, &word) in self.words.iter().enumerate().take(self.end).skip(self.full) {
            let first = index * BITS;
            if before + word.trailing_zeros() as usize >= pages {
                return first - before;
            }
            if word == 0 {
                before += BITS;
                continue;
            }
            if let Some(at) = gap_in(word, pages) {
                return first + at;
            }
            before = word.leading_zeros() as usize;
        }
        self.end * BITS - before
    }

    /// The pages below `end` that are not in the set: the first page and the length of each run of
    /// them, ascending.
    pub(super) fn gaps(&self, end: usize) -> Vec<(u32, u32)> {
        let mut gaps = Vec::<(u32, u32)>::new();
        for page in (0..end).filter(|page| self.words[page / BITS] >> (page % BITS) & 1 == 0) {
            match gaps.last_mut() {
                Some((start, len)) if (*start + *len) as usize == page => *len += 1,
                _ => gaps.push((page as u32, 1)),
            }
        }
        gaps
    }

    /// Removes the last adjacent pages of the set, at most `most` and at most those of one word.
    pub(super) fn pop_last(&mut self, most: usize) -> Range<usize> {
        while self.end > 0 && self.words[self.end - 1] == 0 {
            self.end -= 1;
        }
        let Some(&word) = self.end.checked_sub(1).and_then(|last| self.words.get(last)) else {
            return 0..0;
        };
        let after = word.leading_zeros() as usize;
        let run = (word << after).leading_ones() as usize;
        let end = self.end * BITS - after;
        let pages = end - run.min(most)..end;
        self.remove(pages.clone());
        pages
    }
}

/// Where the first of `pages` adjacent zeros in a word are.
fn gap_in(word: u64, pages: usize) -> Option<usize> {
    // A bit of `starts` stands for `known` zeros that begin there.
    let (mut starts, mut known) = (!word, 1);
    while known < pages && starts != 0 {
        let step = known.min(pages - known);
        starts &= starts.checked_shr(step as u32).unwrap_or(0);
        known += step;
    }
    (starts != 0).then_some(starts.trailing_zeros() as usize)
}

/// The words that have the bits of `pages`, and these bits.
fn masks(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = pages.start / BITS..pages.end.div_ceil(BITS);
    words.map(move |word| {
        let from = pages.start.saturating_sub(word * BITS);
        let to = BITS.min(pages.end - word * BITS);
        (word, u64::MAX >> (BITS - (to - from)) << from)
    })
}
