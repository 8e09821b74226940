//! The settings of a heap's pace.

#![forbid(unsafe_code)]

use crate::heap::child_pace::ForkedSearch;

/// When a heap starts collections.
///
/// # Bounds
///
/// Let `n` be the number that the last full collection left. A heap whose collections are not
/// deferred has at most `n + max(n * full_growth, full_minimum)` objects, plus the new ones, which
/// are `young_objects`, or a fifteenth of that sum. The same holds for bytes, with
/// `full_minimum_bytes` and `young_bytes`. While the heap is being built, `full_growth` counts
/// twice. So garbage, dead cycles included, never exceeds these numbers, whatever collections the
/// program requests itself.
///
/// Some thread must call [`Mutator::safepoint`](crate::Mutator::safepoint), because collections
/// start there alone, while the other safepoints only let other threads collect. The bound of
/// objects does not count those that cannot be part of a cycle, although the bound of bytes does.
/// Besides, each thread may have 64 KiB, and up to eight times 64 cells of each size, that are not
/// counted yet. The garbage that a collection has found is destroyed in batches.
///
/// In a heap with a [limit](crate::HeapBuilder::limit), a full collection is also due when half of
/// the bytes that the last one left are used, and at least `young_bytes`. Bytes are those of the
/// objects' cells, and those outside the heap that
/// [`Trace::external_bytes`](crate::Trace::external_bytes) and
/// [`Mutator::adjust_external_bytes`](crate::Mutator::adjust_external_bytes) tell.
///
/// Set it with [`HeapBuilder::pacing`](crate::HeapBuilder::pacing) or
/// [`Heap::set_pacing`](crate::Heap::set_pacing).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pacing {
    /// Whether the heap starts collections. Explicit collections ignore it. Default: `true`.
    pub automatic: bool,
    /// A young collection is due at this number of new objects, from which freed objects are
    /// subtracted. While young collections free little, the heap raises the number. While full
    /// collections free little too, the heap traverses only a part of the new objects, at least an
    /// eighth, and promotes the others without a traversal
    /// ([`HeapStats::promotions`](crate::HeapStats::promotions)). Default: 2,500.
    pub young_objects: usize,
    /// A young collection is due at this number of new bytes, in and outside the heap. Default: 1
    /// MiB.
    pub young_bytes: usize,
    /// A full collection is due when the old set has grown by this factor, so that at 1.0 it is
    /// twice as large as after the last full collection. If the last full collection freed less
    /// than an eighth, the heap is being built, and waits for twice the growth. With infinity,
    /// growth never makes a full collection due. A heap refuses a negative value and NaN. Default:
    /// 1.0.
    pub full_growth: f64,
    /// Growth up to this number of objects never makes a full collection due. Default: 40,000.
    pub full_minimum: usize,
    /// Growth up to this number of bytes never makes a full collection due, unless the heap's limit
    /// is near. A full collection is due when the number of objects or the number of bytes has
    /// grown too much. Default: 16 MiB.
    pub full_minimum_bytes: usize,
    /// Which of the full collections that are due search in a child of the process. Default: none.
    pub forked: ForkedSearch,
    /// If set, a [`PacingRule`](crate::heap::observer::PacingRule) decides by these numbers. Then
    /// `young_objects`, `full_growth` and `full_minimum` are ignored, and `young_bytes` except near
    /// the heap's limit.
    pub(crate) rule: Option<RuleNumbers>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleNumbers {
    /// The rule is consulted from this number of new objects on.
    pub(crate) first_due: usize,
    pub(crate) numbers: [u32; 3],
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            automatic: true,
            young_objects: 2_500,
            young_bytes: 1 << 20,
            full_growth: 1.0,
            full_minimum: 40_000,
            full_minimum_bytes: 16 << 20,
            forked: ForkedSearch::Never,
            rule: None,
        }
    }
}

impl Pacing {
    /// Why a heap refuses this pacing, or `None` if it accepts it.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        let is_growth = self.full_growth >= 0.0;
        (!is_growth).then_some("`Pacing::full_growth` is negative or not a number")
    }

    /// A pacing with which the heap never starts a collection.
    pub fn manual() -> Self {
        Self { automatic: false, ..Self::default() }
    }

    /// Sets [`young_objects`](Self::young_objects).
    pub fn with_young_objects(mut self, objects: usize) -> Self {
        self.young_objects = objects;
        self
    }

    /// Sets [`young_bytes`](Self::young_bytes).
    pub fn with_young_bytes(mut self, bytes: usize) -> Self {
        self.young_bytes = bytes;
        self
    }

    /// Sets [`full_growth`](Self::full_growth).
    pub fn with_full_growth(mut self, growth: f64) -> Self {
        self.full_growth = growth;
        self
    }

    /// Sets [`full_minimum`](Self::full_minimum).
    pub fn with_full_minimum(mut self, objects: usize) -> Self {
        self.full_minimum = objects;
        self
    }

    /// Sets [`full_minimum_bytes`](Self::full_minimum_bytes).
    pub fn with_full_minimum_bytes(mut self, bytes: usize) -> Self {
        self.full_minimum_bytes = bytes;
        self
    }

    /// Sets [`forked`](Self::forked).
    pub fn with_forked(mut self, forked: ForkedSearch) -> Self {
        self.forked = forked;
        self
    }
}
