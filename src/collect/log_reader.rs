//! Reading the edge log.

#![forbid(unsafe_code)]

use crate::base::prefetch::prefetch;
use crate::collect::log::{
    END_SHIFT, EVEN_FIELDS, FIELD_BITS, FIELDS, GROUP, Log, READ_WIDTH, Segment, UNLOGGED,
};
use crate::memory::space::PAGE_GRANULES;

/// Read access to the logs of all workers.
#[derive(Debug, Default)]
pub(crate) struct Reader<'a> {
    /// The segments, by page. A page without a segment has an empty slice.
    pages: Vec<&'a [u32]>,
}

impl<'a> Reader<'a> {
    /// A reader for a heap of `pages` pages. Without memory it is empty.
    pub(crate) fn new(logs: &'a [Log], pages: usize) -> Self {
        let mut reader = Self::default();
        if logs.is_empty() || reader.pages.try_reserve_exact(pages).is_err() {
            return reader;
        }
        reader.pages.resize(pages, &[]);
        for log in logs {
            for &Segment { page, chunk, start, len } in &log.segments {
                reader.pages[page as usize] =
                    &log.chunks[chunk as usize].numbers()[start as usize..][..len as usize];
            }
        }
        reader
    }

    /// Whether nothing is logged.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The log of a page, if it has one.
    pub(crate) fn sequence(&self, page: usize) -> Option<Sequence<'a>> {
        let segment = *self.pages.get(page)?;
        // A word without candidates is 0. Any other word has the end of its objects' edges. The
        // first edges follow the last word.
        let first =
            segment.as_chunks().0.iter().map(|&word| joined(word)).find(|&word| word != 0)?;
        let (words, edges) = segment.split_at_checked(begin(first, first & FIELDS))?;
        Some(Sequence {
            words: words.as_chunks().0,
            edges: &edges[..edges.len().checked_sub(READ_WIDTH)?],
        })
    }

    /// The address of the word of a granule, if its page has a segment.
    #[inline(always)]
    pub(crate) fn word(&self, granule: u32) -> *const u8 {
        let granule = granule as usize;
        let segment = self.pages.get(granule / PAGE_GRANULES).copied().unwrap_or_default();
        segment.as_ptr().wrapping_add(2 * (granule % PAGE_GRANULES / GROUP)).cast()
    }

    /// Looks up the edges of the candidate at a granule, and prefetches them.
    #[inline(always)]
    pub(crate) fn find(&self, granule: u32) -> Entry<'a> {
        let (count, rest) = self.edges(granule as usize).unwrap_or((UNLOGGED, &[]));
        let Some(edges) = rest.first_chunk() else { return Entry { granule, ..Entry::default() } };
        prefetch(edges.as_ptr().cast());
        prefetch(edges.as_ptr_range().end.wrapping_sub(1).cast());
        Entry { edges, count: count as u32, granule }
    }

    /// All edges of the candidate at a granule. `None`: it is not logged.
    pub(crate) fn all(&self, granule: u32) -> Option<&'a [u32]> {
        let (count, rest) = self.edges(granule as usize)?;
        if count == UNLOGGED { None } else { rest.get(..count) }
    }

    /// The number of edges of a candidate, and its segment from the first of these edges.
    #[inline(always)]
    fn edges(&self, granule: usize) -> Option<(usize, &'a [u32])> {
        let segment = *self.pages.get(granule / PAGE_GRANULES)?;
        let at = 2 * (granule % PAGE_GRANULES / GROUP);
        let &[low, high] = segment.get(at..at + 2)?.first_chunk::<2>()?;
        let word = joined([low, high]);
        let fields = (word & FIELDS) >> (granule % GROUP * FIELD_BITS);
        Some((fields as usize & UNLOGGED, segment.get(begin(word, fields)..)?))
    }
}

/// The log of one page, from its beginning to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence<'a> {
    words: &'a [[u32; 2]],
    /// The edges of one candidate after the other. A candidate that is not logged has [`UNLOGGED`]
    /// meaningless edges, or fewer at the end.
    pub(crate) edges: &'a [u32],
}

impl Sequence<'_> {
    /// The number of edges of the object at a granule. It is 0 if the object is not a candidate.
    #[inline(always)]
    pub(crate) fn count(&self, granule: usize) -> usize {
        let word = self.words.get(granule % PAGE_GRANULES / GROUP).map_or(0, |&word| joined(word));
        (word >> (granule % GROUP * FIELD_BITS)) as usize & UNLOGGED
    }
}

/// The word with these halves in the log.
#[inline(always)]
fn joined([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The start of the edges of the first object in `fields`. `fields` has the fields of this object
/// and of all later objects of the word.
#[inline(always)]
fn begin(word: u64, fields: u64) -> usize {
    ((word >> END_SHIFT) as usize).wrapping_sub(sum(fields))
}

/// The log entry of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// Its edges, if they are few, followed by edges of other objects.
    pub(crate) edges: &'a [u32; READ_WIDTH],
    count: u32,
    pub(crate) granule: u32,
}

impl Default for Entry<'_> {
    fn default() -> Self {
        Self { edges: &[0; READ_WIDTH], count: UNLOGGED as u32, granule: 0 }
    }
}

impl Entry<'_> {
    /// The number of its edges, if they are few. [`Reader::all`] has the edges of other objects.
    #[inline(always)]
    pub(crate) fn few(&self) -> Option<usize> {
        let count = self.count as usize;
        (count <= READ_WIDTH).then_some(count)
    }

    /// Whether the object is not logged.
    #[inline(always)]
    pub(crate) fn is_body(&self) -> bool {
        self.count as usize == UNLOGGED
    }
}

/// The sum of a word's fields.
#[inline(always)]
pub(crate) fn sum(fields: u64) -> usize {
    // Four sums of two, of twelve bits each; the multiplication adds them up in the highest.
    let pairs = (fields & EVEN_FIELDS) + (fields >> FIELD_BITS & EVEN_FIELDS);
    (pairs.wrapping_mul(0x0010_0100_1001) >> 36) as usize & 0xfff
}
