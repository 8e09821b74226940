//! When to collect.
//!
//! A heap that collects too rarely wastes memory, and one that collects too often traverses the
//! same live objects again and again. So a young collection is due when there are enough *new*
//! cells, or bytes. A full collection is due when the *old* set has grown enough since the last
//! one, in objects or in bytes.
//!
//! For example, with the default settings threads 1 and 2 together have 2,500 new objects, so a
//! young collection is due. Of these 2,000 survive, and are growth. When the survivors of young
//! collections exceed 40,000, which is [`Pacing::full_minimum`], a full collection is due. If it
//! frees much and leaves 100,000, the next one is due when so many again have survived.
//!
//! The heap decides this each time a mutator has refilled its arena, so never on the fast path, and
//! where a collection ends, the policy changes, or a guard ends. All numbers are net: cells that
//! arenas took, minus cells that were given back. So a program that frees as much as it allocates
//! never collects, while one that makes only cycles collects in proportion to its allocation. Cells
//! that a collection frees are not subtracted, because the garbage of one collection would then
//! delay the next one. Bytes are those of cells, and those outside the heap of which the heap is
//! told ([`Trace::external_bytes`](crate::Trace::external_bytes),
//! [`Mutator::adjust_external_bytes`](crate::Mutator::adjust_external_bytes)).
//!
//! # Bounds
//!
//! Let `n` be the number that the last full collection left, and `g` the factor `full_growth`, or
//! twice that if this collection was *lean*. It was, if it freed less than an eighth. Unless
//! collections are deferred, the heap has at most
//!
//! ```text
//! n + max(g * n, full_minimum)  +  period      tracked objects,     n in objects,
//! n + max(g * n, full_minimum_bytes)  +  period bytes,              n in bytes,
//! ```
//!
//! dead and alive together, and so at most as many dead ones. A period is `young_objects`, or a
//! fifteenth of the rest of the sum; and `young_bytes`, or a fifteenth of the rest. This holds
//! whatever collections, policies and guards the program asks for, because each new object goes
//! from "new" to "grown", and each end of a collection compares the growth:
//!
//! * Survivors of a young collection are growth. So are promoted objects, the new objects of a
//!   young collection that was abandoned, and those that finalizers revived or that could not be
//!   destroyed.
//! * Objects that die by their counts are subtracted from the new ones, also if they are old. The
//!   numbers are then larger than the heap.
//!
//! Some memory is beyond the bounds, such as the garbage that a collection has found and is still
//! to be destroyed. Each thread adds 64 KiB outside the heap, and up to 64 cells of each size, in
//! each of the [`SLICES`] of a period. It also allocates before it reaches a safepoint, while
//! another thread collects. The oracle of the test
//! `whatever_a_program_calls_the_heap_stays_below_the_bounds` has no other figures than these.
//!
//! A heap with a limit must be collected before it refuses memory. So its growth in bytes is at
//! most half of the room that the last full collection left, or `young_bytes`, if that is more.
//! While one thread collects, a thread that allocates far ahead of it is slowed down.
//!
//! A young collection that frees little doubles the young threshold, and one that frees much halves
//! it. The threshold rises only up to a share of the old set at which young collections still cost
//! less than the full collections to come.
//!
//! A [`PacingRule`] may decide instead. Under a rule nothing is promoted, and the growth makes a
//! full collection due, too, with the rule's own number of objects, and with new bytes as growth.
//!
//! # Promotion
//!
//! While a heap is being built, young collections traverse each new object once and find no
//! garbage. So a *period*, the number of new objects until the next young collection, is divided
//! into up to [`SLICES`] equal slices. Only the last slice is collected, as a sample. When another
//! slice is complete, its objects are *promoted*, by a stop that makes them old without traversing
//! them.
//!
//! The number of slices of the next period is:
//!
//! * 1, so that nothing is promoted: in a new heap; after a young collection in which at least one
//!   in [`NEGLIGIBLE_SHARE`] candidates was dead; after a full collection that was not lean; after
//!   a change of the policy;
//! * doubled, up to [`SLICES`], while a slice has at least `young_objects`: after a young
//!   collection with enough candidates, of which fewer were dead, if the last full collection was
//!   lean;
//! * unchanged: after a young collection with few candidates, and after a lean full collection.
//!
//! Each collection begins a period, also one that the program requested. New bytes alone never make
//! a promotion due, because a program that makes few large objects pays little for young
//! collections, and loses much memory to garbage. When few pages of the heap are left, or a whole
//! period is new at once, a young collection replaces the promotion.
//!
//! # Bounds of promotion
//!
//! * Between two collections, at most as many objects are new as without promotions, which is
//!   `young_objects`, or a sixteenth of the old set. A program that suddenly starts to make garbage
//!   can leave this much of it unfound.
//! * Promoted objects count as growth, like survivors, so that the full collection that finds the
//!   garbage among them is due as early as without promotions.
//! * Of objects that grow steadily, less than one in `NEGLIGIBLE_SHARE` may be garbage that only a
//!   full collection finds.
//! * Garbage that lives longer than a slice and at most a period looks like live data to the
//!   samples. If the next full collection finds much of it, nothing is promoted until a full
//!   collection is lean again.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::base::settings_lock::Setting;
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::heap::child_pace::ChildPace;
use crate::heap::observer::{Figures, PacingRule, Ruling};
use crate::report::facts::CollectionKind;

pub use self::policy::Pacing;
pub(crate) use self::policy::RuleNumbers;

mod policy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// New objects become old without a traversal.
    Promotion,
    Young,
    Full,
}

const SLICES: usize = 8;
/// A young collection finds little if fewer than one in this many candidates are dead. One in eight
/// would be enough to limit the cost of young collections, but all growth may contain this share of
/// garbage until a full collection finds it.
const NEGLIGIBLE_SHARE: usize = 32;
/// While a guard defers collections, so many times the new objects or bytes at which one would be
/// due are reported. Programs that build a large structure under a guard mostly have fewer.
const LONG_DEFERRAL: usize = 400;

/// What other collections and the program do while a child searches shows in these figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BesideSearch {
    /// The full collections that have searched in a stop.
    searches: usize,
    /// The bytes of the objects that are not new.
    bytes: usize,
}

/// A heap's pace, with its policy and its counters, which are relaxed because they only advise.
#[derive(Debug)]
pub(crate) struct Pace {
    policy: Setting<Pacing>,
    /// The heap's limit in bytes.
    limit: usize,
    /// New objects between two collections, as the policy's number, or as the heap has learned it.
    period: AtomicUsize,
    slices: AtomicUsize,
    /// The slices of this period that are still to be promoted.
    unseen: AtomicUsize,
    /// The number of new objects in a slice, which is readable without the policy's lock.
    young_objects: AtomicUsize,
    young_bytes: AtomicUsize,
    /// A collection was due where a mutator ended. Reset when one has looked at the new objects.
    is_unattended: AtomicBool,
    /// [`DeferGuard`](crate::DeferGuard)s alive, plus one while automatic collection is off.
    deferrals: AtomicUsize,
    /// The `DeferGuard`s among them.
    guards: AtomicUsize,
    /// A report says that the guards defer collections for long. Reset when the last guard ends.
    is_deferral_told: AtomicBool,
    new_objects: AtomicUsize,
    new_bytes: AtomicUsize,
    /// Objects that survived young collections, or were promoted, since the last full collection,
    /// which left `old_objects`.
    grown_objects: AtomicUsize,
    old_objects: AtomicUsize,
    /// Bytes of all objects, in and outside the heap, and of garbage that is still to be destroyed.
    held_bytes: AtomicUsize,
    /// The bytes of the objects that the last full collection left.
    old_bytes: AtomicUsize,
    /// `old_bytes` is the number from before the garbage of a full collection was destroyed.
    is_old_open: AtomicBool,
    /// The growth, in objects and in bytes, beyond which a full collection is due, as the policy
    /// and the last full collection decide it.
    allowed_objects: AtomicUsize,
    allowed_bytes: AtomicUsize,
    /// New bytes are growth, because a rule decides, and rules do not look at bytes.
    grows_by_new_bytes: AtomicBool,
    /// The last full collection freed little, which is less than an eighth.
    lean: AtomicBool,
    /// The garbage that the running collection has found and is reclaiming.
    unreclaimed: AtomicUsize,
    /// The full collections that have searched in a stop.
    full_searches: AtomicUsize,
    /// The growth in bytes while a child searched, until the report of its collection is closed.
    grown_bytes: AtomicUsize,
    pub(crate) children: ChildPace,
    /// Bytes that deferred drops may free once they are drained.
    deferred: AtomicU64,
    set_aside: AtomicUsize,
    /// Decides in place of the policy's settings, if the policy has numbers for it.
    rule: Option<Arc<dyn PacingRule>>,
}

impl Pace {
    pub(crate) fn new(policy: Pacing, rule: Option<Arc<dyn PacingRule>>, limit: usize) -> Self {
        let pace = Self {
            policy: Setting::new(policy),
            limit,
            period: AtomicUsize::new(Self::first_objects(&policy)),
            slices: AtomicUsize::new(1),
            unseen: AtomicUsize::new(0),
            young_objects: AtomicUsize::new(Self::first_objects(&policy)),
            young_bytes: AtomicUsize::new(Self::first_bytes(&policy)),
            is_unattended: AtomicBool::new(false),
            deferrals: AtomicUsize::new(usize::from(!policy.automatic)),
            guards: AtomicUsize::new(0),
            is_deferral_told: AtomicBool::new(false),
            new_objects: AtomicUsize::new(0),
            new_bytes: AtomicUsize::new(0),
            grown_objects: AtomicUsize::new(0),
            lean: AtomicBool::new(false),
            unreclaimed: AtomicUsize::new(0),
            full_searches: AtomicUsize::new(0),
            grown_bytes: AtomicUsize::new(0),
            children: ChildPace::new(),
            old_objects: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            old_bytes: AtomicUsize::new(0),
            is_old_open: AtomicBool::new(false),
            allowed_objects: AtomicUsize::new(0),
            allowed_bytes: AtomicUsize::new(0),
            grows_by_new_bytes: AtomicBool::new(false),
            deferred: AtomicU64::new(0),
            set_aside: AtomicUsize::new(0),
            rule,
        };
        pace.allow_growth(&policy);
        pace
    }

    /// The number of new objects at which an action may first be due under a new policy.
    fn first_objects(policy: &Pacing) -> usize {
        policy.rule.map_or(policy.young_objects, |rule| rule.first_due)
    }

    fn first_bytes(policy: &Pacing) -> usize {
        policy.rule.map_or(policy.young_bytes, |_| usize::MAX)
    }

    pub(crate) fn policy(&self) -> Pacing {
        self.policy.with(|policy| *policy)
    }

    pub(crate) fn set_policy(&self, policy: Pacing) {
        self.change_policy(|current| *current = policy);
    }

    pub(crate) fn change_policy(&self, change: impl FnOnce(&mut Pacing)) {
        self.policy.with(|policy| {
            let was_automatic = policy.automatic;
            change(policy);
            if was_automatic != policy.automatic {
                if policy.automatic {
                    self.deferrals.fetch_sub(1, Ordering::Relaxed);
                } else {
                    self.deferrals.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.period.store(Self::first_objects(policy), Ordering::Relaxed);
            self.slices.store(1, Ordering::Relaxed);
            self.unseen.store(0, Ordering::Relaxed);
            self.children.forget_failures();
            self.young_objects.store(Self::first_objects(policy), Ordering::Relaxed);
            self.young_bytes.store(Self::first_bytes(policy), Ordering::Relaxed);
            self.allow_growth(policy);
        });
    }

    /// Decides the growth beyond which a full collection is due.
    fn allow_growth(&self, policy: &Pacing) {
        let old = self.old_objects.load(Ordering::Relaxed);
        let lean = self.lean.load(Ordering::Relaxed);
        let times = |factor: f64, size: usize| {
            // Not a product, because infinity times 0 is not a number.
            if factor.is_infinite() { usize::MAX } else { (size as f64 * factor) as usize }
        };
        let (growth, objects, is_unlimited) = match (policy.rule, &self.rule) {
            (Some(RuleNumbers { numbers, .. }), Some(rule)) => {
                let objects = rule.allowed_growth(numbers, old);
                (1.0, objects, objects == usize::MAX)
            }
            _ => {
                let growth = policy.full_growth * if lean { 2.0 } else { 1.0 };
                let objects = times(growth, old).max(policy.full_minimum);
                (growth, objects, growth.is_infinite())
            }
        };
        let old_bytes = self.old_bytes.load(Ordering::Relaxed);
        let bytes = if is_unlimited {
            usize::MAX
        } else {
            let growth = times(growth, old_bytes).max(policy.full_minimum_bytes);
            // A full heap refuses memory, so the garbage is found before. At the limit full
            // collections are as frequent as young ones, and not more.
            let room = self.limit.saturating_sub(old_bytes);
            growth.min((room / 2).max(policy.young_bytes))
        };
        self.grows_by_new_bytes.store(policy.rule.is_some(), Ordering::Relaxed);
        self.allowed_objects.store(objects, Ordering::Relaxed);
        self.allowed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether a full collection is due, because so much has survived or was promoted.
    fn has_outgrown(&self) -> bool {
        if self.grown_objects.load(Ordering::Relaxed) > self.allowed_objects.load(Ordering::Relaxed)
        {
            return true;
        }
        // The bytes of garbage that is still to be destroyed are no growth.
        let are = match self.grows_by_new_bytes.load(Ordering::Relaxed) {
            true => self.held_bytes.load(Ordering::Relaxed),
            false => self.settled_bytes(),
        };
        let grown = are.saturating_sub(self.old_bytes.load(Ordering::Relaxed));
        grown > self.allowed_bytes.load(Ordering::Relaxed)
            && self.unreclaimed.load(Ordering::Relaxed) == 0
    }

    /// The bytes of the objects that are not new.
    fn settled_bytes(&self) -> usize {
        let new = self.new_bytes.load(Ordering::Relaxed);
        self.held_bytes.load(Ordering::Relaxed).saturating_sub(new)
    }

    fn due_by(&self, rule: &dyn PacingRule, numbers: [u32; 3], new: usize) -> Due {
        let figures = Figures {
            new,
            set_aside: self.set_aside.load(Ordering::Relaxed),
            grown: self.grown_objects.load(Ordering::Relaxed),
            old: self.old_objects.load(Ordering::Relaxed),
        };
        match rule.decide(numbers, figures) {
            Ruling::SetAside => {
                self.set_aside.fetch_add(new, Ordering::Relaxed);
                Self::add(&self.new_objects, -(new as isize));
                Due::Nothing
            }
            Ruling::Young => Due::Young,
            Ruling::Full => Due::Full,
        }
    }

    pub(crate) fn forbid_collections(&self) {
        self.deferrals.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn allow_collections(&self) {
        self.deferrals.fetch_sub(1, Ordering::Relaxed);
    }

    /// A collection is due, and the mutator that would begin it ends.
    pub(crate) fn leave_unattended(&self) {
        self.is_unattended.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_unattended(&self) -> bool {
        self.is_unattended.load(Ordering::Relaxed)
    }

    pub(crate) fn guard_begins(&self) {
        self.guards.fetch_add(1, Ordering::Relaxed);
        self.forbid_collections();
    }

    pub(crate) fn guard_ends(&self) {
        if self.guards.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_deferral_told.store(false, Ordering::Relaxed);
        }
        self.allow_collections();
    }

    pub(crate) fn guards(&self) -> usize {
        self.guards.load(Ordering::Relaxed)
    }

    /// Whether guards defer collections while the heap has grown so much that a guard was probably
    /// forgotten, and no report has said so.
    fn is_deferral_untold(&self) -> bool {
        let is_long = |new: &AtomicUsize, young: &AtomicUsize| {
            let due = young.load(Ordering::Relaxed).max(1);
            new.load(Ordering::Relaxed) >= due.saturating_mul(LONG_DEFERRAL)
        };
        self.guards() != 0
            && !self.is_deferral_told.load(Ordering::Relaxed)
            && (is_long(&self.new_objects, &self.young_objects)
                || is_long(&self.new_bytes, &self.young_bytes))
    }

    /// The guards, and the new objects and bytes, if no report has told of the long deferral, as
    /// the caller's report does from now on.
    pub(crate) fn tell_deferral(&self) -> Option<(usize, usize, usize)> {
        let is_untold =
            self.is_deferral_untold() && !self.is_deferral_told.swap(true, Ordering::Relaxed);
        is_untold.then(|| {
            let new = [&self.new_objects, &self.new_bytes].map(|new| new.load(Ordering::Relaxed));
            (self.guards(), new[0], new[1])
        })
    }

    /// Whether a safepoint has something to do for the pace, if an action or a report may be due.
    pub(crate) fn wants_safepoint(&self) -> bool {
        self.due() != Due::Nothing || self.is_deferral_untold()
    }

    /// Records cells that were taken from pages (positive) or given back to them (negative).
    /// `bytes` includes bytes outside the heap.
    pub(crate) fn taken(&self, objects: isize, bytes: isize) {
        Self::add(&self.new_objects, objects);
        Self::add(&self.new_bytes, bytes);
        Self::add(&self.held_bytes, bytes);
    }

    /// Records bytes that were freed as the garbage of a collection, and do not delay the next one.
    pub(crate) fn reclaimed(&self, bytes: usize) {
        Self::add(&self.held_bytes, 0_isize.saturating_sub_unsigned(bytes));
    }

    /// Adds, with zero as the floor, because cells that were taken in an earlier cycle and given
    /// back in this one must not delay the next collection.
    fn add(counter: &AtomicUsize, delta: isize) {
        let mut now = counter.load(Ordering::Relaxed);
        while let Err(seen) = counter.compare_exchange_weak(
            now,
            now.saturating_add_signed(delta),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            now = seen;
        }
    }

    /// A detached thread dropped a reference, so that up to `bytes` stay in use until an attached
    /// thread drains the deferred references.
    pub(crate) fn deferred(&self, bytes: usize) {
        self.deferred.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn drained(&self) {
        self.deferred.store(0, Ordering::Relaxed);
    }

    /// Whether something is due, unless a rule, which this does not ask, decides that nothing is.
    pub(crate) fn may_be_due(&self) -> bool {
        if !self.may_collect() {
            return false;
        }
        let bytes = (self.new_bytes.load(Ordering::Relaxed) as u64)
            .saturating_add(self.deferred.load(Ordering::Relaxed));
        bytes >= self.young_bytes.load(Ordering::Relaxed) as u64
            || self.new_objects.load(Ordering::Relaxed)
                >= self.young_objects.load(Ordering::Relaxed)
            || self.is_full_due()
    }

    pub(crate) fn due(&self) -> Due {
        if !self.may_be_due() {
            return Due::Nothing;
        }
        if self.is_full_due() {
            return Due::Full;
        }
        let new = self.new_objects.load(Ordering::Relaxed);
        let policy = self.policy();
        if let (Some(RuleNumbers { numbers, .. }), Some(rule)) = (policy.rule, &self.rule) {
            return self.due_by(&**rule, numbers, new);
        }
        // A whole period at once is no slice, as a guard may have deferred any number of objects.
        let slice = self.young_objects.load(Ordering::Relaxed)..self.period.load(Ordering::Relaxed);
        if self.unseen.load(Ordering::Relaxed) != 0 && slice.contains(&new) {
            Due::Promotion
        } else if self.has_outgrown() {
            Due::Full
        } else {
            Due::Young
        }
    }

    /// Whether a full collection is due, however little is new. After a promotion it waits for the
    /// end of the period, as if the period had one slice.
    pub(crate) fn is_full_due(&self) -> bool {
        let slices = self.slices.load(Ordering::Relaxed);
        self.deferrals.load(Ordering::Relaxed) == 0
            && self.unseen.load(Ordering::Relaxed) + 1 == slices
            && self.has_outgrown()
    }

    /// Whether an allocating thread is so far ahead of the running collection that it should wait.
    ///
    /// Destroying garbage costs more than making it, and threads allocate while another thread
    /// collects. So without this limit each collection would be larger than the last. They may
    /// allocate half as many objects as are being reclaimed, so that a large collection does not
    /// delay them, and the next collection is still smaller.
    pub(crate) fn is_overdue(&self) -> bool {
        const LEAD_PERIODS: usize = 4;
        let unreclaimed = self.unreclaimed.load(Ordering::Relaxed);
        let young = self.young_objects.load(Ordering::Relaxed);
        let period = self.period.load(Ordering::Relaxed);
        let objects = period.saturating_mul(LEAD_PERIODS).max(unreclaimed / 2);
        // The limit of bytes exceeds its threshold by the same factor as the limit of objects.
        let bytes = self.young_bytes.load(Ordering::Relaxed).saturating_mul(objects / young.max(1));
        self.deferrals.load(Ordering::Relaxed) == 0
            && (self.new_objects.load(Ordering::Relaxed) > objects
                || self.new_bytes.load(Ordering::Relaxed) > bytes)
    }

    /// Whether much garbage is left to reclaim while twice as many objects are new as a collection
    /// should have. The next collection cannot begin before the garbage is reclaimed.
    pub(crate) fn is_late(&self) -> bool {
        const LATE_PERIODS: usize = 8;
        let period = self.period.load(Ordering::Relaxed);
        self.deferrals.load(Ordering::Relaxed) == 0
            && self.unreclaimed.load(Ordering::Relaxed) > period.saturating_mul(LATE_PERIODS)
            && self.new_objects.load(Ordering::Relaxed) > period.saturating_mul(2)
    }

    /// The running collection is finished. It has `kept` objects that it found unreachable, which
    /// are old, and may be garbage.
    pub(crate) fn after_reclaim(&self, kept: usize) {
        self.unreclaimed.store(0, Ordering::Relaxed);
        if !self.is_old_open.swap(false, Ordering::Relaxed) {
            self.grown_objects.fetch_add(kept, Ordering::Relaxed);
            return;
        }
        // Not growth, because garbage that no collection can destroy would otherwise make full
        // collections due one after another.
        self.old_objects.fetch_add(kept, Ordering::Relaxed);
        let grown = self.grown_bytes.swap(0, Ordering::Relaxed);
        self.old_bytes.store(self.settled_bytes().saturating_sub(grown), Ordering::Relaxed);
        self.policy.with(|policy| self.allow_growth(policy));
    }

    /// Resets the numbers of new objects and bytes, which were collected, promoted, or given up.
    fn nothing_is_new(&self) {
        self.is_unattended.store(false, Ordering::Relaxed);
        self.new_objects.store(0, Ordering::Relaxed);
        self.new_bytes.store(0, Ordering::Relaxed);
        self.set_aside.store(0, Ordering::Relaxed);
    }

    /// A young collection traversed `candidates`, of which `dead` were unreachable.
    pub(crate) fn after_young(&self, candidates: usize, dead: usize) {
        self.nothing_is_new();
        self.unreclaimed.store(dead, Ordering::Relaxed);
        let survivors = candidates - dead.min(candidates);
        let grown = self.grown_objects.fetch_add(survivors, Ordering::Relaxed) + survivors;
        self.policy.with(|policy| self.learn_from_young(policy, candidates, dead, grown));
    }

    /// The period after a young collection, with which the old set has grown by `grown`.
    fn learn_from_young(&self, policy: &Pacing, candidates: usize, dead: usize, grown: usize) {
        if policy.rule.is_some() {
            return;
        }
        let old = self.old_objects.load(Ordering::Relaxed) + grown;
        let now = self.period.load(Ordering::Relaxed);
        let next = if dead * 8 < candidates {
            // A sixteenth of the old set, as sixteen such collections cost as much as a full one.
            now.saturating_mul(2).min(policy.young_objects.max(old / 16))
        } else if dead * 2 > candidates {
            (now / 2).max(policy.young_objects)
        } else {
            now
        };
        let slices = self.slices.load(Ordering::Relaxed);
        let slices =
            if !self.lean.load(Ordering::Relaxed) || dead * NEGLIGIBLE_SHARE >= candidates.max(1) {
                1
            } else if candidates * 2 >= policy.young_objects {
                slices * 2
            } else {
                slices
            };
        self.begin_period(policy, next, slices);
    }

    /// Begins a period after a collection, with the thresholds that the heap has learned from it.
    fn begin_period(&self, policy: &Pacing, period: usize, slices: usize) {
        // Promoting smaller slices than the threshold would cost more than collecting them.
        let slices = slices.min(SLICES).min(period / policy.young_objects.max(1)).max(1);
        let slice = period / slices;
        self.period.store(period, Ordering::Relaxed);
        self.slices.store(slices, Ordering::Relaxed);
        self.unseen.store(slices - 1, Ordering::Relaxed);
        self.young_objects.store(slice, Ordering::Relaxed);
        // The threshold of bytes rises too, so that large objects do not shorten the period.
        let scale = slice / policy.young_objects.max(1);
        let most = policy.young_bytes.max(self.held_bytes.load(Ordering::Relaxed) / 16);
        let bytes = policy.young_bytes.saturating_mul(scale.max(1)).min(most);
        self.young_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A slice with `promoted` candidates was promoted.
    pub(crate) fn after_promotion(&self, promoted: usize) {
        self.nothing_is_new();
        self.grown_objects.fetch_add(promoted, Ordering::Relaxed);
        Self::add(&self.unseen, -1);
    }

    /// A young collection was due, and the heap has none, so its candidates count as survivors.
    pub(crate) fn skip_young(&self) {
        self.after_young(self.new_objects.load(Ordering::Relaxed), 0);
    }

    /// A collection was abandoned. The next one is due as after a collection that found no garbage,
    /// because the obstacle may persist, and it still traverses the new objects.
    pub(crate) fn after_nothing(&self, kind: CollectionKind) {
        let new = self.new_objects.load(Ordering::Relaxed);
        self.nothing_is_new();
        if kind == CollectionKind::Young {
            self.grown_objects.fetch_add(new, Ordering::Relaxed);
            return;
        }
        self.all_is_old(new);
        self.policy.with(|policy| self.allow_growth(policy));
    }

    fn all_is_old(&self, new: usize) {
        let grown = self.grown_objects.swap(0, Ordering::Relaxed);
        self.old_objects.fetch_add(grown.saturating_add(new), Ordering::Relaxed);
        self.old_bytes.store(self.settled_bytes(), Ordering::Relaxed);
    }

    /// A child is cloned, to search all objects. Until it has searched, the heap may grow once more
    /// as far as the last full collection has allowed, or into half of the room that is left.
    pub(crate) fn after_clone(&self) {
        let new = self.new_objects.load(Ordering::Relaxed);
        self.nothing_is_new();
        self.all_is_old(new);
        let room = self.limit.saturating_sub(self.old_bytes.load(Ordering::Relaxed));
        let most = (room / 2).max(self.young_bytes.load(Ordering::Relaxed));
        let allowed = self.allowed_bytes.load(Ordering::Relaxed);
        self.allowed_bytes.store(allowed.min(most), Ordering::Relaxed);
    }

    /// A full collection traversed `candidates`, of which `dead` were unreachable.
    pub(crate) fn after_full(&self, candidates: usize, dead: usize) {
        self.unreclaimed.store(dead, Ordering::Relaxed);
        self.full_searches.fetch_add(1, Ordering::Relaxed);
        self.nothing_is_new();
        self.grown_objects.store(0, Ordering::Relaxed);
        self.after_search(candidates, dead);
    }

    /// The figures when a child is cloned, and when it has searched.
    pub(crate) fn beside_search(&self) -> BesideSearch {
        let searches = self.full_searches.load(Ordering::Relaxed);
        BesideSearch { searches, bytes: self.settled_bytes() }
    }

    /// Whether a full collection that is due now searches in a child.
    pub(crate) fn forks(&self) -> bool {
        self.children.forks(self.policy().forked, self.objects())
    }

    /// As [`forks`](Self::forks), if no child had failed.
    pub(crate) fn wants_child(&self) -> bool {
        self.children.is_wanted(self.policy().forked, self.objects())
    }

    fn objects(&self) -> usize {
        let objects = [&self.old_objects, &self.grown_objects, &self.new_objects]
            .map(|objects| objects.load(Ordering::Relaxed));
        objects.into_iter().fold(0, usize::saturating_add)
    }

    /// Whether no guard defers collections, and they are automatic.
    pub(crate) fn may_collect(&self) -> bool {
        self.deferrals.load(Ordering::Relaxed) == 0
    }

    /// So many objects that a child has proposed are left.
    pub(crate) fn proposed(&self, objects: usize) {
        self.unreclaimed.store(objects, Ordering::Relaxed);
    }

    /// A child has traversed `candidates`, of which `dead` were unreachable. What is new since its
    /// clone, and has grown, stays so.
    pub(crate) fn after_child(
        &self,
        candidates: usize,
        dead: usize,
        [before, after]: [BesideSearch; 2],
    ) {
        // If another full collection has searched since, its figures are newer.
        if self.full_searches.load(Ordering::Relaxed) == before.searches {
            let grown = after.bytes.saturating_sub(before.bytes);
            self.grown_bytes.store(grown, Ordering::Relaxed);
            self.after_search(candidates, dead);
        }
    }

    fn after_search(&self, candidates: usize, dead: usize) {
        let lean = dead * 8 < candidates;
        self.lean.store(lean, Ordering::Relaxed);
        self.old_objects.store(candidates - dead.min(candidates), Ordering::Relaxed);
        self.old_bytes.store(self.settled_bytes(), Ordering::Relaxed);
        self.is_old_open.store(true, Ordering::Relaxed);
        self.policy.with(|policy| {
            self.allow_growth(policy);
            if policy.rule.is_none() {
                let slices = if lean { self.slices.load(Ordering::Relaxed) } else { 1 };
                // The heap may be smaller than when it learned the period.
                let old = self.old_objects.load(Ordering::Relaxed);
                let period =
                    self.period.load(Ordering::Relaxed).min(policy.young_objects.max(old / 16));
                self.begin_period(policy, period, slices);
            }
        });
    }

    #[cfg(test)]
    pub(crate) fn new_objects(&self) -> usize {
        self.new_objects.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
