//! The edge log of a full collection: counting writes it, marking reads it.
//!
//! Counting traverses each candidate, in address order. Without a log, marking would traverse each
//! candidate again, in the order of the graph. Each traversal finds a type, tests a lock and
//! follows a buffer, each in another cache line. So counting logs the edges. Logged edges lie close
//! together, and each takes four bytes.
//!
//! ```text
//! chunk   | segment of a page                         | segment of another page     | ...
//!         | word | word | ... | edges of the page's candidates, as granules | filler |
//!
//! word    | 63..48: end | 47..42: last of eight | ... | 11..6 | 5..0: first of eight |
//! ```
//!
//! A segment starts with one word per eight granules, up to the last candidate. A word contains the
//! number of edges of each of the eight objects. It also contains the position in the segment at
//! which the edges of its last object end. The edges of the other objects lie before it, without
//! gaps. So a reader finds the edges of an object by adding at most eight numbers, with two masks
//! and a multiplication. A reader reads [`READ_WIDTH`] edges at a time, without a branch on the
//! number. The filler keeps the last read in the segment.
//!
//! # The log is optional
//!
//! Memory for the log is bounded ([`Budget`]), and the system may refuse it. Marking traverses an
//! object again if the object is not in the log. These objects are not logged:
//!
//! * An object with [`UNLOGGED`] or more edges.
//! * An object on a page with more edges than the words can address.
//! * An object on a page for which there was no memory.
//! * An object for which the model compares traversals
//!   ([`ObjectModel::verifies_traversal`](crate::model::ObjectModel::verifies_traversal)).
//!
//! # Invariants
//!
//! * On a page with a segment, each candidate is in the log with the counted edges, or its field is
//!   [`UNLOGGED`]. Marking looks up only candidates.
//! * A segment has the edges of its candidates in the order of `Space::starts`. The
//!   [pass](super::pass) relies on this order.
//! * Only the worker that counts a page writes its segment. Readers start when all workers have
//!   finished. `Workers::run` orders the writes before the reads.
//! * A log does not outlive marking: the sweep may need its memory.
//!
//! Marking never traverses a logged object again. A field that was unreadable during counting has
//! no edges, so its targets are roots.

use std::mem::MaybeUninit;

use crate::base::fallible::{self, NoMemory};
use crate::base::huge_buffer::HugeBuffer;
use crate::base::stress::Stress;
use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::space::{PAGE_GRANULES, PAGE_SIZE, Space};

/// The number of edges in one read.
pub(crate) const READ_WIDTH: usize = 8;

/// Granules that share a word.
pub(crate) const GROUP: usize = 8;

/// The number of words for a full page.
const WORDS: usize = PAGE_GRANULES.div_ceil(GROUP);

/// Bits for the number of an object's edges.
pub(crate) const FIELD_BITS: usize = 6;

/// The field of an object that is not logged. An object with this many edges or more is not logged.
/// In the sums the field counts as this many edges, so the segment has unused room for them.
pub(crate) const UNLOGGED: usize = (1 << FIELD_BITS) - 1;

/// The first bit of a word's end.
pub(crate) const END_SHIFT: usize = FIELD_BITS * GROUP;

/// The bits of all fields of a word.
pub(crate) const FIELDS: u64 = (1 << END_SHIFT) - 1;

/// The bits of every other field of a word.
pub(crate) const EVEN_FIELDS: u64 = 0x03f0_3f03_f03f;

/// The greatest end of a page's logged edges. If no later object of the same word is logged, the
/// sums of the word still fit its end.
const END_LIMIT: usize = (1 << 16) - UNLOGGED * GROUP;

/// The first estimate of a page's room, in elements: the words, and three edges for each of a
/// thousand objects.
const PAGE_ROOM: usize = PAGE_SIZE / 16;

/// The greatest number of elements in a chunk: 32 MiB. The system provides only the memory that is
/// written.
const CHUNK: usize = 8 << 20;

/// The log's memory is at most the size of the pages in use, divided by this number.
const MEMORY_DIVISOR: usize = 2;

/// The memory that the workers of one collection may use for their logs.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Bytes.
    left: AtomicUsize,
    /// Elements in a chunk.
    chunk: usize,
    /// The greatest end of a page's logged edges.
    most: usize,
}

impl Budget {
    /// A budget for a scope of `pages` pages. In stress only the first objects of each page are
    /// logged.
    pub(crate) fn new(space: &Space, stress: Stress, pages: usize, workers: usize) -> Self {
        let chunk = pages.saturating_mul(PAGE_ROOM).div_ceil(workers);
        // If the heap is nearly full, the log takes no memory: the collection must free some.
        let left = if space.is_tight() { 0 } else { space.in_use_bytes() / MEMORY_DIVISOR };
        Self {
            left: AtomicUsize::new(left),
            chunk: chunk.min(CHUNK),
            most: if stress.shrink(END_LIMIT) < END_LIMIT { 2 * WORDS + 3 } else { END_LIMIT },
        }
    }

    /// An empty chunk with room for at least `least` elements.
    fn chunk(&self, least: usize) -> Result<HugeBuffer, NoMemory> {
        let edges = self.chunk.max(least);
        let bytes = edges * size_of::<u32>();
        // Relaxed: the number orders no other memory.
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map_err(|_| NoMemory)?;
        HugeBuffer::new(edges)
    }
}

/// The log that one worker has written.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(super) chunks: Vec<HugeBuffer>,
    pub(super) segments: Vec<Segment>,
}

/// The position of a page's words and edges in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(super) page: u32,
    pub(super) chunk: u32,
    pub(super) start: u32,
    pub(super) len: u32,
}

/// Some candidates, in address order, with their numbers of edges.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) granules: &'a [u32],
    /// The number of edges of each candidate.
    pub(crate) sizes: &'a [u32],
    /// An upper bound of the sizes: the bitwise or of all sizes.
    pub(crate) most: u32,
    /// The candidates that are not logged: bit `i` stands for `granules[i]`.
    pub(crate) unlogged: u64,
}

/// One worker's log while it counts.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    budget: &'a Budget,
    log: Log,
    /// The chunk that is being filled. The elements up to its length belong to complete segments.
    chunk: HugeBuffer,
    page: u32,
    /// The page's words, until the segment is complete.
    words: [u64; WORDS],
    used_words: usize,
    /// The position of the next object's edges, from the start of the segment.
    at: usize,
    /// The greatest end of the edges in this chunk. 0: the page is closed, and no more of its
    /// candidates are logged.
    end: usize,
    /// The end of the logged edges of a closed page. 0: no candidate of the page is logged.
    closed_at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(budget: &'a Budget) -> Self {
        Self {
            budget,
            log: Log::default(),
            chunk: HugeBuffer::default(),
            page: 0,
            words: [0; WORDS],
            used_words: 0,
            at: 0,
            end: 0,
            closed_at: 0,
        }
    }

    /// Begins a page. Its last candidate lies at granule `last`.
    pub(crate) fn begin(&mut self, page: u32, last: u32) {
        self.page = page;
        self.used_words = last as usize % PAGE_GRANULES / GROUP + 1;
        self.words[..self.used_words].fill(0);
        self.at = 2 * self.used_words;
        self.end = 0;
        self.closed_at = 0;
        if self.log.segments.try_reserve(1).is_ok() {
            self.open(self.at);
        }
    }

    /// Makes room for `least` elements of the segment. Without memory it closes the page.
    fn open(&mut self, least: usize) {
        let least = least + READ_WIDTH;
        if self.chunk.spare().len() < least && self.change_chunk(least).is_err() {
            self.close();
            return;
        }
        self.end = (self.chunk.spare().len() - READ_WIDTH).min(self.budget.most);
    }

    /// Takes another chunk, and copies the incomplete segment to it.
    fn change_chunk(&mut self, least: usize) -> Result<(), NoMemory> {
        self.log.chunks.try_reserve(1)?;
        let mut chunk = self.budget.chunk(least)?;
        if self.end > 0 {
            let written = &mut self.chunk.spare()[..self.at];
            chunk.spare()[..self.at].copy_from_slice(written);
        }
        let full = std::mem::replace(&mut self.chunk, chunk);
        if full.len() > 0 {
            self.log.chunks.push(full);
        }
        Ok(())
    }

    /// Closes the page: no more of its candidates are logged.
    fn close(&mut self) {
        if self.end > 0 {
            self.closed_at = self.at;
            self.end = 0;
        }
    }

    /// Logs the edges of some candidates, and calls `each` with the granule of each target.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        batch: &Batch<'_>,
        targets: impl ExactSizeIterator<Item = usize>,
        mut each: impl FnMut(usize),
    ) {
        let (start, edges) = (self.at, targets.len());
        if batch.unlogged != 0 || batch.most as usize >= UNLOGGED || start + edges > self.end {
            return self.write_slowly(batch, targets, each);
        }
        let mut end = start;
        for (&granule, &size) in batch.granules.iter().zip(batch.sizes) {
            end += size as usize;
            self.write_field(granule, size as usize, end);
        }
        let room = &mut self.chunk.spare()[start..start + edges];
        for (target, place) in targets.zip(room) {
            place.write(target as u32);
            each(target);
        }
    }

    /// Does the same as `write`, one candidate at a time. `write` calls it if there is no room for
    /// all edges, or if a candidate is not logged or has too many edges.
    #[cold]
    #[inline(never)]
    fn write_slowly(
        &mut self,
        batch: &Batch<'_>,
        mut targets: impl ExactSizeIterator<Item = usize>,
        mut each: impl FnMut(usize),
    ) {
        for (place, (&granule, &size)) in batch.granules.iter().zip(batch.sizes).enumerate() {
            let size = size as usize;
            let own = targets.by_ref().take(size);
            if batch.unlogged >> place & 1 != 0 || size >= UNLOGGED || !self.has_room(size) {
                self.skip(granule);
                own.for_each(&mut each);
                continue;
            }
            let start = self.at;
            self.write_field(granule, size, start + size);
            let room = &mut self.chunk.spare()[start..start + size];
            for (target, place) in own.zip(room) {
                place.write(target as u32);
                each(target);
            }
        }
    }

    /// Marks the candidate at a granule as not logged.
    fn skip(&mut self, granule: u32) {
        let start = self.at;
        if self.has_room(UNLOGGED) {
            // The sums of the word count the candidate as `UNLOGGED` edges.
            self.chunk.spare()[start..start + UNLOGGED].fill(MaybeUninit::new(0));
        }
        // A closed page has no logged objects after this candidate. So only the sums of this word
        // need to be right, for the logged objects before the candidate.
        self.write_field(granule, UNLOGGED, (start + UNLOGGED).min(u16::MAX.into()));
    }

    /// Makes room for `more` elements. If they do not fit, it closes the page. The result is
    /// whether the page is open.
    fn has_room(&mut self, more: usize) -> bool {
        if self.end > 0 && self.at + more > self.end {
            if self.at + more > self.budget.most {
                self.close();
            } else {
                self.open((self.at + more.max(PAGE_ROOM)).min(self.budget.most));
            }
        }
        self.end > 0
    }

    /// Writes the number of edges of an object, and their end, to the object's word.
    #[inline(always)]
    fn write_field(&mut self, granule: u32, edges: usize, end: usize) {
        let word = &mut self.words[granule as usize % PAGE_GRANULES / GROUP];
        *word = (*word & FIELDS)
            | ((edges as u64) << (granule as usize % GROUP * FIELD_BITS))
            | ((end as u64) << END_SHIFT);
        self.at = end;
    }

    /// Ends the page, and completes its segment.
    pub(crate) fn end_page(&mut self) {
        self.close();
        let len = self.closed_at;
        if len == 0 {
            return;
        }
        let (start, words) = (self.chunk.len(), &self.words[..self.used_words]);
        let (room, _) = self.chunk.spare().as_chunks_mut::<2>();
        for (place, word) in room.iter_mut().zip(words) {
            *place = [MaybeUninit::new(*word as u32), MaybeUninit::new((*word >> 32) as u32)];
        }
        let (page, chunk) = (self.page, self.log.chunks.len() as u32);
        // The read of the last edges goes beyond their end.
        self.chunk.spare()[len..len + READ_WIDTH].fill(MaybeUninit::new(0));
        let len = len + READ_WIDTH;
        self.log.segments.push(Segment { page, chunk, start: start as u32, len: len as u32 });
        // SAFETY: rule *bounds*: the words and the filler are written above. `write` and `skip`
        // have written the elements between them. The callers of `write` pass iterators of slices,
        // so their lengths are right, and sizes that add up to these lengths.
        unsafe { self.chunk.add(len) };
    }

    /// The log, after the last page. `None`: it is empty, or there was no memory for the list of
    /// its chunks.
    pub(crate) fn finish(&mut self) -> Option<Log> {
        let (mut log, chunk) = (std::mem::take(&mut self.log), std::mem::take(&mut self.chunk));
        if log.segments.is_empty() {
            return None;
        }
        fallible::push(&mut log.chunks, chunk).ok()?;
        Some(log)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::collect::log_reader::{Reader, Sequence, sum};

    /// A page's candidates: granule within the page, and edges.
    type Page = Vec<(u32, Vec<u32>)>;

    fn budget(chunk: usize) -> Budget {
        Budget { left: AtomicUsize::new(usize::MAX), chunk, most: END_LIMIT }
    }

    /// Logs pages with one worker, as counting does, and checks that every edge is counted.
    fn log(budget: &Budget, pages: &[(u32, Page)]) -> Log {
        log_but(budget, pages, |_| false)
    }

    fn log_but(budget: &Budget, pages: &[(u32, Page)], unlogged: impl Fn(u32) -> bool) -> Log {
        let mut writer = Writer::new(budget);
        for (page, candidates) in pages {
            let Some((last, _)) = candidates.last() else { continue };
            let granule = |within: u32| page * PAGE_GRANULES as u32 + within;
            writer.begin(*page, granule(*last));
            for batch in candidates.chunks(64) {
                let granules: Vec<u32> = batch.iter().map(|(within, _)| granule(*within)).collect();
                let sizes: Vec<u32> = batch.iter().map(|(_, edges)| edges.len() as u32).collect();
                let edges: Vec<u32> = batch.iter().flat_map(|(_, edges)| edges).copied().collect();
                let bits = batch
                    .iter()
                    .enumerate()
                    .map(|(at, (within, _))| u64::from(unlogged(*within)) << at);
                let most = sizes.iter().fold(0, |most, size| most | size);
                let batch =
                    Batch { granules: &granules, sizes: &sizes, most, unlogged: bits.sum() };
                let mut counted = Vec::new();
                writer.write(&batch, edges.iter().map(|&edge| edge as usize), |t| {
                    counted.push(t as u32)
                });
                assert_eq!(counted, edges);
            }
            writer.end_page();
        }
        writer.finish().unwrap_or_default()
    }

    #[test]
    fn a_page_that_found_no_room_stays_closed_when_there_is_some_again() {
        let budget = Budget { left: AtomicUsize::new(0), ..budget(100) };
        let pages: [(u32, Page); 1] = [(0, vec![(2, vec![7, 8, 9]), (3, vec![7])])];
        let mut writer = Writer::new(&budget);
        writer.begin(0, 3);
        budget.left.store(usize::MAX, Ordering::Relaxed);
        for (within, edges) in &pages[0].1 {
            let sizes = [edges.len() as u32];
            let batch = Batch { granules: &[*within], sizes: &sizes, most: sizes[0], unlogged: 0 };
            writer.write(&batch, edges.iter().map(|&edge| edge as usize), |_| ());
        }
        writer.end_page();
        let logs: Vec<Log> = writer.finish().into_iter().collect();
        assert_eq!(check(&logs, &pages), 0);
        assert!(Reader::new(&[], 5).is_empty(), "of no logs");
    }

    #[test]
    fn in_a_heap_that_is_nearly_full_nothing_is_logged() {
        for is_tight in [false, true] {
            let limit = if is_tight { 6 << 16 } else { 1 << 27 };
            let builder = crate::Heap::builder().reserve(1 << 28).limit(limit).workers(1);
            let heap = builder.pacing(crate::Pacing::manual()).build().unwrap();
            let m = heap.attach();
            let kept: Vec<_> = (0..6).map(|_| m.alloc([0u64; 6_000])).collect();
            let space = &heap.core().space;
            assert_eq!(space.is_tight(), is_tight);
            let budget = Budget::new(space, Stress::none(), kept.len(), 1);
            let left = budget.left.load(Ordering::Relaxed);
            assert_eq!(left, if is_tight { 0 } else { space.in_use_bytes() / MEMORY_DIVISOR });
        }
    }

    /// Looks up every candidate, and checks the logged edges. The result is the number of logged
    /// candidates.
    fn check(logs: &[Log], pages: &[(u32, Page)]) -> usize {
        let reader =
            Reader::new(logs, 1 + pages.iter().map(|(page, _)| *page as usize).max().unwrap_or(0));
        let mut logged = 0;
        for (page, candidates) in pages {
            check_sequence(reader.sequence(*page as usize), candidates);
            for (within, edges) in candidates {
                let entry = reader.find(page * PAGE_GRANULES as u32 + within);
                assert_eq!(entry.granule, page * PAGE_GRANULES as u32 + within);
                let all = reader.all(entry.granule);
                assert_eq!(entry.is_body(), all.is_none());
                let Some(all) = all else { continue };
                logged += 1;
                assert_eq!(all, edges, "page {page}, granule {within}");
                match entry.few() {
                    Some(count) => assert_eq!(entry.edges[..count], edges[..]),
                    None => assert!(edges.len() > READ_WIDTH),
                }
            }
        }
        logged
    }

    /// Reads a page from its beginning to its end. Checks that each logged candidate has its edges,
    /// and that a granule without a candidate has none.
    fn check_sequence(sequence: Option<Sequence<'_>>, candidates: &Page) {
        let Some(sequence) = sequence else { return };
        let (mut at, mut next) = (0, candidates.iter().peekable());
        for granule in 0..PAGE_GRANULES {
            let count = sequence.count(granule);
            let candidate = next.next_if(|(within, _)| *within as usize == granule);
            match candidate {
                None => assert_eq!(count, 0),
                Some((_, edges)) if count < UNLOGGED => {
                    assert_eq!(sequence.edges[at..at + count], edges[..])
                }
                Some(_) => {}
            }
            at += count;
        }
        assert!(at >= sequence.edges.len(), "all that is there is somebody's");
    }

    /// Candidates that lie `stride` granules apart, with the numbers of edges from `sizes`.
    fn page(stride: u32, sizes: impl IntoIterator<Item = usize>) -> Page {
        let edges = |at: usize, size: usize| (0..size).map(|i| (at * 1000 + i) as u32).collect();
        sizes
            .into_iter()
            .enumerate()
            .map(|(at, size)| (2 + stride * at as u32, edges(at, size)))
            .collect()
    }

    #[test]
    fn fields_add_up() {
        for at in 0..GROUP {
            for value in [0, 1, 31, UNLOGGED] {
                assert_eq!(sum((value as u64) << (at * FIELD_BITS)), value);
            }
        }
        assert_eq!(sum(FIELDS), GROUP * UNLOGGED);
        assert_eq!(sum(FIELDS >> FIELD_BITS), (GROUP - 1) * UNLOGGED);
    }

    #[test]
    fn every_size_up_to_the_limit_is_logged_and_none_beyond() {
        for stride in [1, 2, 3, 5, 8, 24] {
            let pages =
                [(3, page(stride, (0..80).chain((0..80).rev()).take(2000 / stride as usize)))];
            let log = [log(&budget(PAGE_ROOM), &pages)];
            let few = pages[0].1.iter().filter(|(_, edges)| edges.len() < UNLOGGED).count();
            assert_eq!(check(&log, &pages), few, "stride {stride}");
        }
    }

    #[test]
    fn groups_that_are_full_and_groups_with_hubs() {
        for sizes in [
            [62; 8],
            [63; 8],
            [62, 63, 62, 63, 0, 0, 63, 62],
            [0; 8],
            [0, 0, 100_000, 5, 5, 5, 5, 5],
        ] {
            let pages = [(0, page(1, sizes.repeat(20)))];
            let few = 20 * sizes.iter().filter(|&&size| size < UNLOGGED).count();
            assert_eq!(check(&[log(&budget(PAGE_ROOM), &pages)], &pages), few, "{sizes:?}");
        }
    }

    #[test]
    fn a_page_with_too_many_edges_is_logged_up_to_there() {
        // 2000 objects with 60 edges each: about twice as many as fit.
        let many = page(1, [60; 2000]);
        // These edges end exactly at the limit. Words for all granules lie before them.
        let words = 2 * WORDS;
        let mut just: Page = page(1, [62; 2000]);
        just.truncate((END_LIMIT - words) / 62);
        let rest = (END_LIMIT - words) % 62;
        just.push((2046, vec![7; rest]));
        let mut over = just.clone();
        over.last_mut().unwrap().1.push(8);
        for (page, logged) in
            [(&many, (END_LIMIT - words) / 60), (&just, just.len()), (&over, just.len() - 1)]
        {
            let pages = [(1, page.clone())];
            assert_eq!(check(&[log(&budget(CHUNK), &pages)], &pages), logged);
        }
        // Objects after the limit are not logged, in the same word and in later words. The next
        // page is logged.
        let mut behind = over.clone();
        behind.push((2047, vec![]));
        let pages = [(1, behind), (2, page(2, [3; 1000]))];
        assert_eq!(check(&[log(&budget(CHUNK), &pages)], &pages), over.len() - 1 + 1000);
    }

    #[test]
    fn large_objects_have_one_candidate_a_page() {
        let pages: Vec<_> =
            [0u32, 4, 9].map(|at| (at, vec![(2 + 511 * (at % 5), vec![at; 10])])).into();
        assert_eq!(check(&[log(&budget(PAGE_ROOM), &pages)], &pages), 3);
        let pages: Vec<_> = [0u32, 4, 9].map(|at| (at, vec![(1024, vec![at; 10_000])])).into();
        assert_eq!(check(&[log(&budget(PAGE_ROOM), &pages)], &pages), 0);
    }

    #[test]
    fn chunks_that_end_in_the_middle_of_a_page() {
        let pages: Vec<_> = (0..40)
            .map(|at| (at, page(2, (0..1000).map(|i| (i * i + at as usize) % 20))))
            .collect();
        for chunk in [0, 1, 100, 600, 5000, 40_000, CHUNK] {
            assert_eq!(check(&[log(&budget(chunk), &pages)], &pages), 40_000, "chunks of {chunk}");
        }
    }

    #[test]
    fn memory_that_is_refused_is_done_without() {
        let pages: Vec<_> = (0..40).map(|at| (at, page(2, [5; 1000]))).collect();
        let mut before = 0;
        for left in [0, 100, 20_000, 100_000, 400_000, 1_000_000, 10_000_000] {
            let budget = Budget { left: AtomicUsize::new(left), ..budget(PAGE_ROOM) };
            let log = [log(&budget, &pages)];
            let bytes: usize = log[0].chunks.iter().map(|chunk| 4 * chunk.len()).sum();
            assert!(bytes <= left);
            let logged = check(&log, &pages);
            assert!(logged >= before && (logged > 0) == (left > 4 * PAGE_ROOM), "{left}: {logged}");
            before = logged;
            if left == 0 {
                assert!(log[0].segments.is_empty());
                assert!(Reader::new(&log, 40).find(77).is_body());
            }
        }
        assert_eq!(before, 40_000);
    }

    #[test]
    fn the_budget_is_part_of_what_is_in_use_and_in_stress_little_of_a_page_is_logged() {
        use crate::memory::space::SpaceConfig;
        let space = Space::reserve(SpaceConfig { reserve: Some(1 << 20), limit: None }).unwrap();
        assert!(Budget::new(&space, Stress::none(), 0, 1).chunk(1).is_err(), "an empty heap");
        space.acquire_large(PAGE_SIZE, 1).unwrap();
        let budget = Budget::new(&space, Stress::none(), 1, 1);
        assert!(budget.chunk(1).is_ok());
        assert_eq!(budget.left.into_inner(), 2 * PAGE_SIZE / MEMORY_DIVISOR - 4 * PAGE_ROOM);
        let budget = Budget::new(&space, Stress::from(true), 1, 1);
        let pages = [(0, page(2, [2; 1000]))];
        let logged = check(&[log(&budget, &pages)], &pages);
        assert!(logged > 0 && logged < 10, "{logged}");
    }

    #[test]
    fn what_must_be_seen_twice_is_left_out() {
        let pages = [(0, page(2, (0..1000).map(|i| i % 9)))];
        let logs = [log_but(&budget(PAGE_ROOM), &pages, |within| within % 3 == 0)];
        let seen_once = pages[0].1.iter().filter(|(within, _)| within % 3 != 0).count();
        assert_eq!(check(&logs, &pages), seen_once);
    }

    #[test]
    fn several_workers_have_several_pages_each() {
        let pages: Vec<_> =
            (0..30).map(|at| (at, page(2, (0..1000).map(|i| (i + at as usize) % 7)))).collect();
        let budget = budget(PAGE_ROOM);
        let logs: Vec<Log> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|worker| {
                    let own: Vec<_> = pages.iter().skip(worker).step_by(3).cloned().collect();
                    let budget = &budget;
                    scope.spawn(move || log(budget, &own))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert_eq!(check(&logs, &pages), 30_000);
        assert_eq!(check(&logs[..2], &pages), 20_000, "without the log of one");
    }

    proptest::proptest! {
        #[test]
        fn any_pages_come_back(
            sizes in proptest::collection::vec(
                proptest::collection::vec(
                    proptest::prop_oneof![20 => 0..5usize, 5 => 0..70usize, 1 => 500..5000usize],
                    0..200,
                ),
                1..8,
            ),
            stride in 1u32..10,
            chunk in 0..20_000usize,
            left in 0..1_000_000usize,
        ) {
            let budget = Budget { left: AtomicUsize::new(left), ..budget(chunk) };
            let numbered = sizes.into_iter().enumerate();
            let pages: Vec<_> =
                numbered.map(|(at, sizes)| (at as u32, page(stride, sizes))).collect();
            check(&[log(&budget, &pages)], &pages);
            let all = Budget { left: AtomicUsize::new(usize::MAX), ..budget };
            let objects = pages.iter().flat_map(|(_, page)| page);
            let few = objects.filter(|(_, edges)| edges.len() < UNLOGGED).count();
            assert_eq!(check(&[log(&all, &pages)], &pages), few);
        }
    }
}
