//! Floor 3: the settings that say when a heap collects.

/// When a heap collects by itself: a value, set with
/// [`HeapBuilder::pacing`](crate::HeapBuilder::pacing) or [`Heap::set_pacing`](crate::Heap::set_pacing).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pacing {
    /// Whether the heap collects by itself at all. Explicit collections ignore it.
    pub automatic: bool,
    /// New objects (net of those freed) that make a young collection due. The heap raises it by itself
    /// while young collections free little; and while full ones free little too, it looks at a part of what is new, an eighth at
    /// least, and takes the rest for old ([`HeapStats::promotions`](crate::HeapStats::promotions)).
    pub young_objects: usize,
    /// New bytes that make a young collection due.
    pub young_bytes: usize,
    /// Growth of the old set that makes a full collection due: 1.0 means twice the objects that survived the last one.
    /// After a full collection that freed less than an eighth the heap waits for twice the growth: it is being built.
    /// With infinity no growth makes a full collection due. A heap refuses a negative value and what is not a number.
    pub full_growth: f64,
    /// Objects below which the old set never makes a full collection due.
    pub full_minimum: usize,
    /// Numbers of a rule that decides in place of the four settings above.
    pub(crate) rule: Option<RuleNumbers>,
}

/// The numbers of a [`PacingRule`](crate::heap::observer::PacingRule).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleNumbers {
    /// New objects from which on something may be due.
    pub(crate) first_due: usize,
    /// What the rule is given to decide by.
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
            rule: None,
        }
    }
}

impl Pacing {
    /// Why a heap refuses this pacing; `None`: it does not.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        let is_growth = self.full_growth >= 0.0;
        (!is_growth).then_some("`Pacing::full_growth` is negative or not a number")
    }

    /// Never collect without being asked.
    pub fn manual() -> Self {
        Self { automatic: false, ..Self::default() }
    }

    /// With another threshold of new objects.
    pub fn with_young_objects(mut self, objects: usize) -> Self {
        self.young_objects = objects;
        self
    }

    /// With another threshold of new bytes.
    pub fn with_young_bytes(mut self, bytes: usize) -> Self {
        self.young_bytes = bytes;
        self
    }

    /// With another growth that makes a full collection due.
    pub fn with_full_growth(mut self, growth: f64) -> Self {
        self.full_growth = growth;
        self
    }

    /// With another minimum of old objects.
    pub fn with_full_minimum(mut self, objects: usize) -> Self {
        self.full_minimum = objects;
        self
    }
}
