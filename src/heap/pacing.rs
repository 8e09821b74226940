//! When to collect.
//!
//! The heap decides this each time a mutator has refilled its arena, so never on the fast path; and
//! where a collection ends, the policy changes, or a guard ends. A young collection is due when
//! there are enough *new* cells, or bytes. A full collection is due when the *old* set has grown
//! enough since the last full collection, in objects or in bytes. All numbers are net: cells that
//! arenas took, minus cells that were given back. So a program that frees as much as it allocates
//! never collects, and a program that makes only cycles collects in proportion to its allocation.
//! Cells that a collection frees are not subtracted: otherwise the garbage of one collection would
//! delay the next one.
//!
//! Bytes are those of cells, and those outside the heap of which the heap is told
//! ([`Trace::external_bytes`](crate::Trace::external_bytes),
//! [`Mutator::adjust_external_bytes`](crate::Mutator::adjust_external_bytes)).
//!
//! # Bounds
//!
//! Let `n` be what the last full collection left, and `g` the factor `full_growth`, or twice that
//! if this collection was *lean*: if it freed less than an eighth. Unless collections are deferred,
//! the heap has at most
//!
//! ```text
//! n + max(g * n, full_minimum)  +  period      tracked objects,     n in objects,
//! n + max(g * n, full_minimum_bytes)  +  period bytes,              n in bytes,
//! ```
//!
//! dead and alive together, and so at most as many dead ones. A period is `young_objects`, or a
//! fifteenth of the rest of the sum; and `young_bytes` for each `young_objects` of it. This holds
//! whatever collections, policies and guards the program asks for, because each new object goes
//! from "new" to "grown", and each end of a collection compares the growth:
//!
//! * Survivors of a young collection are growth. So are promoted objects, the new objects of a
//!   young collection that was abandoned, and those that finalizers revived or that could not be
//!   destroyed.
//! * Objects that die by their counts are subtracted from the new ones, also if they are old. The
//!   numbers are then larger than the heap.
//!
//! Beyond the bounds are: the garbage that a collection has found and is still to be destroyed; for
//! each thread 64 KiB outside the heap, and up to 64 cells of each size, in each of the [`SLICES`]
//! of a period; and what threads allocate before they reach a safepoint, while one collects. The oracle of the test
//! `whatever_a_program_calls_the_heap_stays_below_the_bounds` has no other figures than these.
//!
//! While one thread collects, a thread that allocates far ahead of it is slowed down.
//!
//! A young collection that frees little doubles the young threshold, up to a share of the old set.
//! Up to this share, young collections cost less than the full collections to come. A young
//! collection that frees much halves the threshold.
//!
//! A [`PacingRule`] may decide instead. Under a rule nothing is promoted. The growth makes a full
//! collection due under a rule, too, with the rule's own number of objects; new bytes are growth
//! then.
//!
//! # Promotion
//!
//! While a heap is being built, young collections traverse each new object once and find no
//! garbage. So a *period*, the number of new objects until the next young collection, is divided
//! into up to [`SLICES`] equal slices. Only the last slice of a period is collected, as a sample.
//! When another slice is complete, its objects are *promoted*: a stop makes them old without
//! traversing them.
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
//! a promotion due: a program that makes few large objects pays little for young collections, and
//! loses much memory to garbage. When few pages of the heap are left, a young collection replaces
//! each promotion.
//!
//! # Bounds of promotion
//!
//! * Between two collections, at most as many objects are new as without promotions:
//!   `young_objects`, or a sixteenth of the old set. A program that suddenly starts to make garbage
//!   can leave this much of it unfound.
//! * Promoted objects count as growth, like survivors. So the full collection that finds the
//!   garbage among them is due as early as without promotions.
//! * Of objects that grow steadily, less than one in `NEGLIGIBLE_SHARE` may be garbage that only a
//!   full collection finds.
//! * Garbage that lives longer than a slice and at most a period looks like live data to the
//!   samples. If the next full collection finds much of it, nothing is promoted until a full
//!   collection is lean again.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::base::event::CollectionKind;
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::heap::observer::{Figures, PacingRule, Ruling};
use crate::heap::policy::{Pacing, RuleNumbers};

/// The action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// New objects become old without a traversal.
    Promotion,
    Young,
    Full,
}

/// The largest number of slices in a period.
const SLICES: usize = 8;
/// A young collection finds little if fewer than one in this many candidates are dead. One in eight
/// would be enough to limit the cost of young collections. But all growth may contain this share of
/// garbage until a full collection finds it.
const NEGLIGIBLE_SHARE: usize = 32;
/// While a guard defers collections, so many new objects or bytes are reported. Programs that build
/// a large structure under a guard have fewer, mostly.
const LONG_DEFERRAL_OBJECTS: usize = 1 << 20;
const LONG_DEFERRAL_BYTES: usize = 1 << 30;

/// A heap's pace: its policy and its counters. All counters are relaxed: they only advise.
#[derive(Debug)]
pub(crate) struct Pace {
    policy: crate::base::sync::Mutex<Pacing>,
    /// New objects between two collections: the policy's number, or the one that the heap has
    /// learned.
    period: AtomicUsize,
    /// The number of slices in a period.
    slices: AtomicUsize,
    /// The slices of this period that are still to be promoted.
    unseen: AtomicUsize,
    /// The number of new objects in a slice. Readable without the policy's lock.
    young_objects: AtomicUsize,
    young_bytes: AtomicUsize,
    /// [`DeferGuard`](crate::DeferGuard)s alive, plus one while automatic collection is off.
    deferrals: AtomicUsize,
    /// The `DeferGuard`s among them.
    guards: AtomicUsize,
    /// A report says that the guards defer collections for long. Reset when the last guard ends.
    is_deferral_told: AtomicBool,
    new_objects: AtomicUsize,
    new_bytes: AtomicUsize,
    /// Objects that survived young collections, or were promoted, since the last full collection.
    /// `old_objects` are those that survived the full collection.
    grown_objects: AtomicUsize,
    old_objects: AtomicUsize,
    /// Bytes of all objects, in and outside the heap. Garbage that is still to be destroyed has
    /// some of them.
    held_bytes: AtomicUsize,
    /// The bytes outside the heap among them.
    external_bytes: AtomicUsize,
    /// The bytes of the objects that the last full collection left.
    old_bytes: AtomicUsize,
    /// `old_bytes` is the number from before the garbage of a full collection was destroyed.
    is_old_open: AtomicBool,
    /// The growth, in objects and in bytes, beyond which a full collection is due. The policy and
    /// the last full collection decide them.
    allowed_objects: AtomicUsize,
    allowed_bytes: AtomicUsize,
    /// New bytes are growth, because a rule decides, and rules do not look at bytes.
    grows_by_new_bytes: AtomicBool,
    /// The last full collection freed little: less than an eighth.
    lean: AtomicBool,
    /// The garbage that the running collection has found and is reclaiming.
    unreclaimed: AtomicUsize,
    /// Bytes that deferred drops may free once they are drained.
    deferred: AtomicU64,
    /// New objects that the rule has set aside.
    set_aside: AtomicUsize,
    /// Decides in place of the policy's settings, if the policy has numbers for it.
    rule: Option<Arc<dyn PacingRule>>,
}

impl Pace {
    pub(crate) fn new(policy: Pacing, rule: Option<Arc<dyn PacingRule>>) -> Self {
        let pace = Self {
            policy: crate::base::sync::Mutex::new(policy),
            period: AtomicUsize::new(Self::first_objects(&policy)),
            slices: AtomicUsize::new(1),
            unseen: AtomicUsize::new(0),
            young_objects: AtomicUsize::new(Self::first_objects(&policy)),
            young_bytes: AtomicUsize::new(Self::first_bytes(&policy)),
            deferrals: AtomicUsize::new(usize::from(!policy.automatic)),
            guards: AtomicUsize::new(0),
            is_deferral_told: AtomicBool::new(false),
            new_objects: AtomicUsize::new(0),
            new_bytes: AtomicUsize::new(0),
            grown_objects: AtomicUsize::new(0),
            lean: AtomicBool::new(false),
            unreclaimed: AtomicUsize::new(0),
            old_objects: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            external_bytes: AtomicUsize::new(0),
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

    /// The number of new bytes at which an action may first be due under a new policy.
    fn first_bytes(policy: &Pacing) -> usize {
        policy.rule.map_or(policy.young_bytes, |_| usize::MAX)
    }

    pub(crate) fn policy(&self) -> Pacing {
        *self.policy.lock()
    }

    pub(crate) fn set_policy(&self, policy: Pacing) {
        self.change_policy(|current| *current = policy);
    }

    /// Changes the policy under its lock.
    pub(crate) fn change_policy(&self, change: impl FnOnce(&mut Pacing)) {
        let mut current = self.policy.lock();
        let mut policy = *current;
        change(&mut policy);
        if current.automatic != policy.automatic {
            if policy.automatic {
                self.deferrals.fetch_sub(1, Ordering::Relaxed);
            } else {
                self.deferrals.fetch_add(1, Ordering::Relaxed);
            }
        }
        *current = policy;
        self.period.store(Self::first_objects(&policy), Ordering::Relaxed);
        self.slices.store(1, Ordering::Relaxed);
        self.unseen.store(0, Ordering::Relaxed);
        self.young_objects.store(Self::first_objects(&policy), Ordering::Relaxed);
        self.young_bytes.store(Self::first_bytes(&policy), Ordering::Relaxed);
        self.allow_growth(&policy);
    }

    /// Decides the growth beyond which a full collection is due.
    fn allow_growth(&self, policy: &Pacing) {
        let old = self.old_objects.load(Ordering::Relaxed);
        let lean = self.lean.load(Ordering::Relaxed);
        let times = |factor: f64, size: usize| {
            // Not a product: infinity times 0 is not a number.
            if factor.is_infinite() { usize::MAX } else { (size as f64 * factor) as usize }
        };
        let (growth, objects) = match (policy.rule, &self.rule) {
            (Some(RuleNumbers { numbers, .. }), Some(rule)) => {
                (1.0, rule.allowed_growth(numbers, old))
            }
            _ => {
                let growth = policy.full_growth * if lean { 2.0 } else { 1.0 };
                (growth, times(growth, old).max(policy.full_minimum))
            }
        };
        let old_bytes = self.old_bytes.load(Ordering::Relaxed);
        let bytes = match objects {
            usize::MAX => usize::MAX,
            _ => times(growth, old_bytes).max(policy.full_minimum_bytes),
        };
        self.grows_by_new_bytes.store(policy.rule.is_some(), Ordering::Relaxed);
        self.allowed_objects.store(objects, Ordering::Relaxed);
        self.allowed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether a full collection is due, because so much has survived or was promoted since the
    /// last one.
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

    /// The action that is due by `rule`.
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

    /// The number of guards that defer collections.
    pub(crate) fn guards(&self) -> usize {
        self.guards.load(Ordering::Relaxed)
    }

    /// Whether guards defer collections while the heap has grown so much that a guard was probably
    /// forgotten, and no report has said so.
    fn is_deferral_untold(&self) -> bool {
        self.guards() != 0
            && !self.is_deferral_told.load(Ordering::Relaxed)
            && (self.new_objects.load(Ordering::Relaxed) >= LONG_DEFERRAL_OBJECTS
                || self.new_bytes.load(Ordering::Relaxed) >= LONG_DEFERRAL_BYTES)
    }

    /// As `is_deferral_untold`, and from now on a report says so: the guards, and the new objects
    /// and bytes.
    pub(crate) fn tell_deferral(&self) -> Option<(usize, usize, usize)> {
        let is_untold =
            self.is_deferral_untold() && !self.is_deferral_told.swap(true, Ordering::Relaxed);
        is_untold.then(|| {
            let new = [&self.new_objects, &self.new_bytes].map(|new| new.load(Ordering::Relaxed));
            (self.guards(), new[0], new[1])
        })
    }

    /// Whether a safepoint has something to do for the pace: an action may be due, or a report.
    pub(crate) fn wants_safepoint(&self) -> bool {
        self.due() != Due::Nothing || self.is_deferral_untold()
    }

    /// Records bytes outside the heap that objects have got (positive) or given up (negative).
    /// [`taken`](Self::taken) records them too.
    pub(crate) fn external(&self, change: isize) {
        Self::add(&self.external_bytes, change);
    }

    /// Bytes outside the heap that objects have.
    pub(crate) fn external_bytes(&self) -> usize {
        self.external_bytes.load(Ordering::Relaxed)
    }

    /// Records cells that were taken from pages (positive) or given back to them (negative). `bytes`
    /// includes bytes outside the heap.
    pub(crate) fn taken(&self, objects: isize, bytes: isize) {
        Self::add(&self.new_objects, objects);
        Self::add(&self.new_bytes, bytes);
        Self::add(&self.held_bytes, bytes);
    }

    /// Records bytes that were freed as the garbage of a collection. They do not delay the next
    /// one.
    pub(crate) fn reclaimed(&self, bytes: usize) {
        Self::add(&self.held_bytes, 0_isize.saturating_sub_unsigned(bytes));
    }

    /// Adds, with zero as the floor: cells that were taken in an earlier cycle and given back in
    /// this one must not delay the next collection.
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

    /// A detached thread dropped a reference. Up to `bytes` stay in use until an attached thread
    /// drains the deferred references.
    pub(crate) fn deferred(&self, bytes: usize) {
        self.deferred.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The deferred references were drained.
    pub(crate) fn drained(&self) {
        self.deferred.store(0, Ordering::Relaxed);
    }

    /// Whether something is due, unless a rule decides that nothing is. It asks no rule.
    pub(crate) fn may_be_due(&self) -> bool {
        if self.deferrals.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let bytes = (self.new_bytes.load(Ordering::Relaxed) as u64)
            .saturating_add(self.deferred.load(Ordering::Relaxed));
        bytes >= self.young_bytes.load(Ordering::Relaxed) as u64
            || self.new_objects.load(Ordering::Relaxed)
                >= self.young_objects.load(Ordering::Relaxed)
            || self.is_full_due()
    }

    /// The action that is due now.
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
        if self.unseen.load(Ordering::Relaxed) != 0
            && new >= self.young_objects.load(Ordering::Relaxed)
        {
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
    /// Destroying garbage costs more than making it. Without this limit, each collection would be
    /// larger than the last, because threads allocate while another thread collects. They may
    /// allocate half as many objects as are being reclaimed. So a large collection does not delay
    /// them, and the next collection is still smaller.
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

    /// The running collection is finished. It has `kept` objects that it found unreachable. They
    /// are old, and may be garbage.
    pub(crate) fn after_reclaim(&self, kept: usize) {
        self.unreclaimed.store(0, Ordering::Relaxed);
        if !self.is_old_open.swap(false, Ordering::Relaxed) {
            self.grown_objects.fetch_add(kept, Ordering::Relaxed);
            return;
        }
        // Not growth: otherwise garbage that no collection can destroy would make full collections
        // due one after another.
        self.old_objects.fetch_add(kept, Ordering::Relaxed);
        self.old_bytes.store(self.settled_bytes(), Ordering::Relaxed);
        self.allow_growth(&self.policy.lock());
    }

    /// Resets the numbers of new objects and bytes: they were collected, promoted, or given up.
    fn nothing_is_new(&self) {
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
        let policy = self.policy.lock();
        if policy.rule.is_some() {
            return;
        }
        let old = self.old_objects.load(Ordering::Relaxed) + grown;
        let now = self.period.load(Ordering::Relaxed);
        let next = if dead * 8 < candidates {
            // A sixteenth of the old set: sixteen such collections cost as much as a full one.
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
        self.begin_period(&policy, next, slices);
    }

    /// Begins a period after a collection: sets the thresholds that the heap has learned from it.
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
        self.young_bytes.store(policy.young_bytes.saturating_mul(scale.max(1)), Ordering::Relaxed);
    }

    /// A slice with `promoted` candidates was promoted.
    pub(crate) fn after_promotion(&self, promoted: usize) {
        self.nothing_is_new();
        self.grown_objects.fetch_add(promoted, Ordering::Relaxed);
        Self::add(&self.unseen, -1);
    }

    /// A young collection was due, and the heap has none. Its candidates count as survivors.
    pub(crate) fn skip_young(&self) {
        self.after_young(self.new_objects.load(Ordering::Relaxed), 0);
    }

    /// A collection was abandoned. The next one is due as after a collection that found no garbage:
    /// the obstacle may persist. Later collections still traverse the new objects.
    pub(crate) fn after_nothing(&self, kind: CollectionKind) {
        let new = self.new_objects.load(Ordering::Relaxed);
        self.nothing_is_new();
        if kind == CollectionKind::Young {
            self.grown_objects.fetch_add(new, Ordering::Relaxed);
            return;
        }
        let grown = self.grown_objects.swap(0, Ordering::Relaxed);
        self.old_objects.fetch_add(grown.saturating_add(new), Ordering::Relaxed);
        self.old_bytes.store(self.settled_bytes(), Ordering::Relaxed);
        self.allow_growth(&self.policy.lock());
    }

    /// A full collection traversed `candidates`, of which `dead` were unreachable.
    pub(crate) fn after_full(&self, candidates: usize, dead: usize) {
        self.unreclaimed.store(dead, Ordering::Relaxed);
        let lean = dead * 8 < candidates;
        self.lean.store(lean, Ordering::Relaxed);
        self.nothing_is_new();
        self.grown_objects.store(0, Ordering::Relaxed);
        self.old_objects.store(candidates - dead.min(candidates), Ordering::Relaxed);
        self.old_bytes.store(self.settled_bytes(), Ordering::Relaxed);
        self.is_old_open.store(true, Ordering::Relaxed);
        let policy = self.policy.lock();
        self.allow_growth(&policy);
        if policy.rule.is_none() {
            let slices = if lean { self.slices.load(Ordering::Relaxed) } else { 1 };
            // The heap may be smaller than when it learned the period.
            let old = self.old_objects.load(Ordering::Relaxed);
            let period =
                self.period.load(Ordering::Relaxed).min(policy.young_objects.max(old / 16));
            self.begin_period(&policy, period, slices);
        }
    }

    /// New cells since the last collection.
    #[cfg(test)]
    pub(crate) fn new_objects(&self) -> usize {
        self.new_objects.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    #[cfg(feature = "cpython")]
    use crate::gc_module::{self, Thresholds};

    fn pace(policy: Pacing) -> Pace {
        Pace::new(policy, None)
    }

    /// A pace with the rule of the gc module, for policies with thresholds.
    #[cfg(feature = "cpython")]
    fn pace_by_rule(policy: Pacing) -> Pace {
        Pace::new(policy, Some(gc_module::new_state().expect("memory").1))
    }

    #[test]
    fn nothing_is_due_below_the_thresholds() {
        let p = pace(Pacing::default());
        let threshold = Pacing::default().young_objects as isize;
        p.taken(threshold - 1, 0);
        assert_eq!(p.due(), Due::Nothing);
        p.taken(1, 0);
        assert_eq!(p.due(), Due::Young);
        p.taken(-2 * threshold, 0);
        assert_eq!(p.new_objects(), 0, "never negative");
        p.taken(10, Pacing::default().young_bytes as isize);
        assert_eq!(p.due(), Due::Young, "bytes count too");
    }

    #[test]
    fn growth_makes_a_full_collection_due_and_the_threshold_adapts() {
        let p = pace(Pacing::default());
        let mut young = 0;
        loop {
            p.taken(p.young_objects.load(Ordering::Relaxed) as isize, 0);
            match p.due() {
                Due::Young => p.after_young(p.new_objects(), 0),
                Due::Full => break,
                Due::Promotion => panic!("before the first full collection"),
                Due::Nothing => panic!("starved"),
            }
            young += 1;
        }
        // No object dies, and the old set is small. So each period is as long as the threshold,
        // until the growth exceeds the minimum.
        let policy = Pacing::default();
        assert_eq!(young, policy.full_minimum / policy.young_objects + 1);
        p.after_full(1_000_000, 0);
        for _ in 0..10 {
            p.taken(1 << 20, 0);
            p.after_young(1 << 17, 0);
        }
        assert!(p.period.load(Ordering::Relaxed) > 60_000);
        for _ in 0..10 {
            p.after_young(100, 100);
        }
        assert_eq!(p.young_objects.load(Ordering::Relaxed), Pacing::default().young_objects);
    }

    #[test]
    fn a_heap_that_is_being_built_waits_for_twice_the_growth() {
        for (dead, growth) in [(0, 2), (124_999, 2), (125_000, 1), (900_000, 1)] {
            let p = pace(Pacing::default());
            p.after_full(1_000_000, dead);
            let allowed = (1_000_000 - dead) * growth;
            p.after_young(allowed, 0);
            assert_eq!(
                after_promotions(&p),
                (p.slices() - 1, Due::Young),
                "{dead} dead, grown by {allowed}"
            );
            p.after_young(1, 0);
            assert_eq!(p.due(), Due::Full, "{dead} dead, grown by one more");
        }
    }

    /// Whatever the program requests: the period in which the heap would have looked at its growth
    /// need not end.
    #[test]
    fn growth_makes_a_full_collection_due_where_a_young_one_ends() {
        for few in [0, 1, Pacing::default().young_objects - 1] {
            let p = pace(Pacing::default());
            let minimum = Pacing::default().full_minimum;
            p.taken(few as isize, 0);
            p.after_young(minimum, 0);
            assert_eq!(p.due(), Due::Nothing);
            p.taken(few as isize, 0);
            p.after_young(1, 0);
            assert_eq!(p.due(), Due::Full, "{few} new objects");
            p.after_full(minimum, 0);
            p.after_reclaim(0);
            assert_eq!(p.due(), Due::Nothing);
        }
        // In a period with promotions, too.
        let p = being_built();
        assert!(p.slices() > 1);
        p.after_young(2_000_001, 0);
        assert_eq!(p.due(), Due::Full);
        // Where the policy changes, and where a guard ends.
        let p = pace(Pacing::default());
        p.after_young(1_000, 0);
        p.set_policy(Pacing::default().with_full_minimum(1_000));
        assert_eq!(p.due(), Due::Nothing);
        p.set_policy(Pacing::default().with_full_minimum(999));
        assert_eq!(p.due(), Due::Full);
        p.forbid_collections();
        assert_eq!(p.due(), Due::Nothing);
        p.allow_collections();
        assert_eq!(p.due(), Due::Full);
    }

    #[test]
    fn bytes_that_survive_make_a_full_collection_due() {
        const MIB: isize = 1 << 20;
        let p = pace(Pacing::default());
        for _ in 0..16 {
            p.taken(1, MIB);
            assert_eq!(p.due(), Due::Young);
            p.after_young(1, 0);
            assert_eq!(p.due(), Due::Nothing);
        }
        p.taken(1, MIB);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Full);
        // 10 of the 17 are dead. Until they are destroyed, they are no growth.
        p.after_full(17, 10);
        p.reclaimed(10 << 20);
        p.after_reclaim(0);
        for _ in 0..16 {
            p.taken(1, MIB);
            p.after_young(1, 0);
            assert_eq!(p.due(), Due::Nothing, "16 MiB at least");
        }
        p.taken(1, MIB);
        p.after_young(1, 1);
        assert_eq!(p.due(), Due::Nothing, "its bytes are still to be freed");
        p.reclaimed(MIB as usize);
        p.after_reclaim(0);
        assert_eq!(p.due(), Due::Nothing);
        p.taken(1, MIB);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Full);
    }

    #[test]
    fn objects_that_a_collection_could_not_destroy_are_growth_once() {
        let p = pace(Pacing::default().with_full_minimum(100));
        p.after_young(101, 101);
        p.after_reclaim(101);
        assert_eq!(p.due(), Due::Full);
        for _ in 0..3 {
            p.after_full(101, 101);
            p.after_reclaim(101);
            assert_eq!(p.due(), Due::Nothing, "a full collection has seen them");
        }
    }

    #[test]
    fn infinite_growth_makes_no_full_collection_due() {
        let p = pace(Pacing::default().with_full_growth(f64::INFINITY));
        for _ in 0..3 {
            p.taken(1 << 20, 1 << 40);
            p.after_young(1 << 20, 0);
            assert_eq!(p.due(), Due::Nothing);
        }
    }

    #[cfg(feature = "cpython")]
    #[test]
    fn under_thresholds_too_a_full_collection_is_due_where_a_young_one_ends() {
        let thresholds = |t0| Pacing::default().with_thresholds(Thresholds { t0, t1: 10, t2: 0 });
        let p = pace_by_rule(thresholds(100));
        p.after_young(4_000, 0);
        assert_eq!(p.due(), Due::Nothing);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Full, "40 times the threshold");
        p.after_full(40_000, 0);
        p.after_reclaim(0);
        p.after_young(10_000, 0);
        assert_eq!(p.due(), Due::Nothing);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Full, "a quarter of what was left");
        let p = pace_by_rule(thresholds(100));
        p.taken(1, 16 << 20);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Nothing);
        p.taken(1, 1);
        p.after_young(1, 0);
        assert_eq!(p.due(), Due::Full, "bytes");
        let p = pace_by_rule(thresholds(0));
        p.taken(1 << 20, 1 << 40);
        p.after_young(1 << 20, 0);
        assert_eq!(p.due(), Due::Nothing, "no threshold");
    }

    impl Pace {
        fn slices(&self) -> usize {
            self.slices.load(Ordering::Relaxed)
        }
    }

    /// Allocates and promotes, with `candidates` in each slice, until another action is due.
    /// Returns the number of promotions and the action.
    fn promotions(p: &Pace, candidates: usize) -> (usize, Due) {
        for promoted in 0.. {
            assert_eq!(p.due(), Due::Nothing);
            p.taken(p.young_objects.load(Ordering::Relaxed) as isize - 1, 0);
            assert_eq!(p.due(), Due::Nothing, "one object below the threshold");
            p.taken(1, 0);
            match p.due() {
                Due::Promotion => p.after_promotion(candidates),
                due => return (promoted, due),
            }
        }
        unreachable!()
    }

    /// The same, without growth.
    fn after_promotions(p: &Pace) -> (usize, Due) {
        promotions(p, 0)
    }

    #[test]
    fn while_a_heap_is_built_few_slices_are_traversed() {
        let p = pace(Pacing::default());
        let young = Pacing::default().young_objects;
        p.after_full(1_000_000, 0);
        for (slices, looks) in [(1, 0), (2, 1), (4, 2), (8, 3), (8, 4), (8, 5)] {
            assert_eq!(after_promotions(&p), (slices - 1, Due::Young));
            let period = (young << looks).min((1_000_000 + looks * young) / 16);
            assert_eq!(
                p.young_objects.load(Ordering::Relaxed),
                period / slices,
                "the slices divide the period"
            );
            p.after_young(young, 0);
        }
        // A requested collection begins a period too.
        assert_eq!(after_promotions(&p).0, 7);
        p.after_young(young, 0);
        assert_eq!(after_promotions(&p).0, 7);
    }

    /// The pace of a heap of a million objects, after many collections without garbage.
    fn being_built() -> Pace {
        build(pace(Pacing::default()))
    }

    fn build(p: Pace) -> Pace {
        p.after_full(1_000_000, 0);
        (0..10).for_each(|_| p.after_young(2_500, 0));
        assert_eq!(p.slices(), SLICES);
        p
    }

    #[test]
    fn whatever_shows_that_a_heap_is_not_being_built_ends_promotions() {
        for (candidates, dead, slices) in
            [(3_200, 99, 8), (3_200, 100, 1), (3_200, 3_200, 1), (10, 1, 1), (1, 0, 8), (0, 0, 8)]
        {
            let p = being_built();
            p.after_young(candidates, dead);
            assert_eq!(p.slices(), slices, "{dead} of {candidates} dead");
            assert_eq!(after_promotions(&p), (slices - 1, Due::Young));
        }
        for (dead, slices) in [(0, 8), (124_999, 8), (125_000, 1)] {
            let p = being_built();
            p.after_full(1_000_000, dead);
            assert_eq!(after_promotions(&p), (slices - 1, Due::Young), "{dead} of a million dead");
        }
        // Promotions begin again only after a lean full collection and further young collections.
        let p = being_built();
        p.after_full(1_000_000, 500_000);
        (0..10).for_each(|_| p.after_young(2_500, 0));
        assert_eq!(after_promotions(&p), (0, Due::Young));
        p.after_full(1_000_000, 0);
        assert_eq!(after_promotions(&p), (0, Due::Young));
        p.after_young(2_500, 0);
        assert_eq!(after_promotions(&p), (1, Due::Young));
        // A change of the policy resets everything that was learned.
        let p = being_built();
        p.change_policy(|_| ());
        assert_eq!(after_promotions(&p), (0, Due::Young));
    }

    #[test]
    fn few_candidates_and_small_heaps_teach_nothing() {
        let p = pace(Pacing::default());
        p.after_full(1_000_000, 0);
        (0..10).for_each(|_| p.after_young(1_249, 0));
        assert_eq!(after_promotions(&p), (0, Due::Young));
        // A sixteenth of the old set is less than two thresholds.
        let p = pace(Pacing::default());
        p.after_full(50_000, 0);
        p.after_young(2_500, 0);
        assert_eq!(after_promotions(&p), (0, Due::Young));
    }

    #[test]
    fn promotions_count_as_growth_and_a_full_collection_comes_when_their_period_ends() {
        let p = being_built();
        let grown = p.grown_objects.load(Ordering::Relaxed);
        let slice = p.young_objects.load(Ordering::Relaxed);
        assert_eq!(promotions(&p, slice), (7, Due::Young));
        assert_eq!(p.grown_objects.load(Ordering::Relaxed), grown + 7 * slice);
        p.after_young(slice, 0);
        // The heap is being built, so it waits for twice the growth, and then for the end of the
        // period.
        assert_eq!(promotions(&p, 1_999_999), (7, Due::Full));
    }

    #[cfg(feature = "cpython")]
    #[test]
    fn bytes_alone_and_thresholds_promote_nothing() {
        let p = being_built();
        p.taken(1, p.young_bytes.load(Ordering::Relaxed) as isize);
        assert_eq!(p.due(), Due::Young);
        let p = pace_by_rule(Pacing::default().with_thresholds(Thresholds {
            t0: 1_000,
            t1: 10,
            t2: 0,
        }));
        for _ in 0..10 {
            p.after_full(1_000_000, 0);
            p.after_young(2_500, 0);
            assert_eq!(after_promotions(&p), (0, Due::Young));
        }
        let p = build(pace_by_rule(Pacing::default()));
        p.set_policy(Pacing::default().with_thresholds(Thresholds::default()));
        assert_eq!(after_promotions(&p), (0, Due::Young));
    }

    #[test]
    fn what_came_to_nothing_is_not_due_again_at_once() {
        let p = pace(Pacing::default().with_full_minimum(10_000));
        let young = Pacing::default().young_objects;
        p.taken(young as isize, 0);
        assert_eq!(p.due(), Due::Young);
        p.after_nothing(CollectionKind::Young);
        assert_eq!(p.due(), Due::Nothing);
        p.after_young(20_000, 0);
        let due = |p: &Pace| {
            p.taken(p.period.load(Ordering::Relaxed) as isize, 0);
            p.due()
        };
        assert_eq!(due(&p), Due::Full);
        p.after_nothing(CollectionKind::Full);
        assert_eq!(p.due(), Due::Nothing);
        assert_eq!(due(&p), Due::Young, "a full collection waits until the heap has grown again");
    }

    #[test]
    fn a_threshold_out_of_reach_stays_out_of_reach() {
        let p = pace(Pacing::default().with_young_objects(usize::MAX));
        p.after_young(100, 0);
        assert_eq!(p.period.load(Ordering::Relaxed), usize::MAX);
    }

    #[test]
    fn slices_slow_nobody_down_earlier() {
        let p = being_built();
        p.taken(4 * p.period.load(Ordering::Relaxed) as isize, 0);
        assert!(!p.is_overdue());
        p.taken(1, 0);
        assert!(p.is_overdue());
    }

    #[test]
    fn a_large_collection_slows_nobody_down_who_makes_less_than_half_of_it() {
        let p = pace(Pacing::default());
        let young = Pacing::default().young_objects;
        p.after_full(1_000_000, 1_000_000);
        p.taken(500_000, 0);
        assert!(!p.is_overdue(), "half of the garbage");
        p.taken(1, 0);
        assert!(p.is_overdue());
        p.after_reclaim(0);
        p.after_young(0, 0);
        p.taken(4 * young as isize, 0);
        assert!(!p.is_overdue(), "four times the threshold, while no garbage is destroyed");
        p.taken(1, 0);
        assert!(p.is_overdue());
    }

    #[test]
    fn a_collection_is_late_when_it_waits_for_much_garbage() {
        let p = pace(Pacing::default());
        let young = Pacing::default().young_objects;
        for (dead, late) in [(8 * young, false), (8 * young + 1, true)] {
            p.after_full(1_000_000, dead);
            p.taken(2 * young as isize, 0);
            assert!(!p.is_late(), "twice the period");
            p.taken(1, 0);
            assert_eq!(p.is_late(), late, "{dead} dead");
        }
    }

    #[test]
    fn deferral_and_manual_pacing() {
        let p = pace(Pacing::manual());
        p.taken(1 << 30, 0);
        assert_eq!(p.due(), Due::Nothing);
        p.set_policy(Pacing::default());
        assert_ne!(p.due(), Due::Nothing);
        p.forbid_collections();
        assert_eq!(p.due(), Due::Nothing);
        p.allow_collections();
        assert_ne!(p.due(), Due::Nothing);
    }

    /// A heap of tracked objects, which does at once what its pace says.
    struct Sim {
        pace: Pace,
        policy: Pacing,
        guards: usize,
        /// New objects: those in use, and cyclic garbage. Then old ones.
        young: [usize; 2],
        old: [usize; 2],
        /// Objects and bytes that the last full collection left, and whether it freed little.
        left: (usize, usize),
        lean: bool,
        /// Bytes outside the heap.
        external: usize,
    }

    /// Bytes of each object.
    const EACH: usize = 64;
    /// A thread fetches so many cells at a time, and only then looks at the pace.
    const REFILL: usize = 64;
    /// More than a period may have, because its slices end late.
    const LATE: usize = SLICES * REFILL;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Keep(usize),
        Garbage(usize),
        /// Objects in use, old ones first, become cyclic garbage.
        Lose(usize),
        /// Objects in use, new ones first, die by their counts.
        Free(usize),
        External(usize),
        Young,
        Full,
        Abandon(CollectionKind),
        Policy(usize, usize, u8),
        Guard,
        EndOfGuard,
    }

    impl Sim {
        fn objects(&self) -> usize {
            self.young.iter().chain(&self.old).sum()
        }

        fn bytes(&self) -> usize {
            self.objects() * EACH + self.external
        }

        fn lose(&mut self, many: usize, age: fn(&mut Self) -> &mut [usize; 2]) -> usize {
            let [used, garbage] = age(self);
            let lost = many.min(*used);
            *used -= lost;
            *garbage += lost;
            lost
        }

        fn young_collection(&mut self) {
            let [used, dead] = std::mem::take(&mut self.young);
            self.pace.after_young(used + dead, dead);
            self.old[0] += used;
            self.pace.reclaimed(dead * EACH);
            self.pace.after_reclaim(0);
        }

        fn full_collection(&mut self) {
            let all = self.objects();
            let dead = self.young[1] + self.old[1];
            self.pace.after_full(all, dead);
            self.old = [self.old[0] + self.young[0], 0];
            self.young = [0; 2];
            self.pace.reclaimed(dead * EACH);
            self.pace.after_reclaim(0);
            self.left = (self.old[0], self.bytes());
            self.lean = dead * 8 < all;
        }

        fn take(&mut self, place: usize, many: usize) {
            // A refill at a time, and a safepoint behind it.
            for start in (0..many).step_by(REFILL) {
                let refill = (many - start).min(REFILL);
                self.young[place] += refill;
                self.pace.taken(refill as isize, (refill * EACH) as isize);
                self.safepoint();
            }
        }

        fn run(&mut self, op: Op) {
            match op {
                Op::Keep(many) => self.take(0, many),
                Op::Garbage(many) => self.take(1, many),
                Op::Lose(many) => {
                    let lost = self.lose(many, |sim| &mut sim.old);
                    self.lose(many - lost, |sim| &mut sim.young);
                }
                Op::Free(many) => {
                    let new = many.min(self.young[0]);
                    let old = (many - new).min(self.old[0]);
                    self.young[0] -= new;
                    self.old[0] -= old;
                    let freed = (new + old) as isize;
                    self.pace.taken(-freed, -freed * EACH as isize);
                }
                Op::External(bytes) => {
                    self.external += bytes;
                    self.pace.taken(0, bytes as isize);
                    self.pace.external(bytes as isize);
                }
                Op::Young => self.young_collection(),
                Op::Full => self.full_collection(),
                Op::Abandon(kind) => {
                    self.pace.after_nothing(kind);
                    if kind == CollectionKind::Full {
                        // As after a collection that has found no garbage. What has died by its
                        // count since the last one is in the number of objects.
                        let old = self.pace.old_objects.load(Ordering::Relaxed);
                        self.left = (old, self.bytes());
                    }
                }
                Op::Policy(young, minimum, growth) => {
                    self.policy = Pacing::default()
                        .with_young_objects(young)
                        .with_young_bytes(young * EACH * 2)
                        .with_full_minimum(minimum)
                        .with_full_minimum_bytes(minimum * EACH)
                        .with_full_growth(f64::from(growth) / 2.0);
                    self.pace.set_policy(self.policy);
                }
                Op::Guard => {
                    self.guards += 1;
                    self.pace.guard_begins();
                }
                Op::EndOfGuard if self.guards == 0 => {}
                Op::EndOfGuard => {
                    self.guards -= 1;
                    self.pace.guard_ends();
                }
            }
            self.safepoint();
        }

        fn safepoint(&mut self) {
            loop {
                match self.pace.due() {
                    Due::Nothing => return,
                    Due::Promotion => {
                        let [used, dead] = std::mem::take(&mut self.young);
                        self.pace.after_promotion(used + dead);
                        self.old = [self.old[0] + used, self.old[1] + dead];
                    }
                    Due::Young => self.young_collection(),
                    Due::Full => self.full_collection(),
                }
            }
        }

        /// The bounds of this file's page.
        fn assert_bounded(&self, op: Op) -> Result<(), proptest::test_runner::TestCaseError> {
            let Pacing { young_objects, young_bytes, full_growth, .. } = self.policy;
            let Pacing { full_minimum, full_minimum_bytes, .. } = self.policy;
            let growth = full_growth * if self.lean { 2.0 } else { 1.0 };
            let may_grow = |left: usize, least: usize| ((left as f64 * growth) as usize).max(least);
            let old = self.left.0 + may_grow(self.left.0, full_minimum);
            let period = young_objects.max(old / 15);
            let objects = old + period + LATE;
            let old = self.left.1 + may_grow(self.left.1, full_minimum_bytes);
            let bytes = old + young_bytes * (period / young_objects).max(1) + LATE * EACH;
            let (are, use_) = (self.objects(), self.bytes());
            proptest::prop_assert!(are <= objects, "{op:?}: {are} objects, at most {objects}");
            proptest::prop_assert!(use_ <= bytes, "{op:?}: {use_} bytes, at most {bytes}");
            Ok(())
        }
    }

    fn any_op() -> impl proptest::strategy::Strategy<Value = Op> {
        use proptest::prelude::{Just, Strategy, any, prop_oneof};
        prop_oneof![
            8 => (1..2_000_usize).prop_map(Op::Keep),
            8 => (1..2_000_usize).prop_map(Op::Garbage),
            6 => (1..2_000_usize).prop_map(Op::Lose),
            3 => (1..2_000_usize).prop_map(Op::Free),
            2 => (1..100_000_usize).prop_map(Op::External),
            6 => Just(Op::Young),
            1 => Just(Op::Full),
            1 => any::<bool>().prop_map(|full| Op::Abandon(match full {
                true => CollectionKind::Full,
                false => CollectionKind::Young,
            })),
            1 => (1..500_usize, 0..2_000_usize, 0..5_u8)
                .prop_map(|(young, least, growth)| Op::Policy(young, least, growth)),
            1 => Just(Op::Guard),
            2 => Just(Op::EndOfGuard),
        ]
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(500))]

        #[test]
        fn whatever_a_program_calls_the_heap_stays_below_the_bounds(
            ops in proptest::collection::vec(any_op(), 1..200),
        ) {
            let policy = Pacing::default();
            let mut sim = Sim {
                pace: pace(policy),
                policy,
                guards: 0,
                young: [0; 2],
                old: [0; 2],
                left: (0, 0),
                lean: false,
                external: 0,
            };
            sim.run(Op::Policy(100, 1_000, 2));
            for op in ops {
                sim.run(op);
                if sim.guards == 0 {
                    sim.assert_bounded(op)?;
                }
            }
        }
    }

    #[cfg(feature = "cpython")]
    #[test]
    fn no_number_of_a_policy_overflows() {
        let edge = [0, 1, 2, usize::MAX / 2, usize::MAX - 1, usize::MAX];
        let growths = [0.0, 1.0, -1.0, f64::MAX, f64::INFINITY, f64::NAN];
        let thresholds = [0, 1, u32::MAX].map(|t| Some(Thresholds { t0: t, t1: t, t2: t }));
        for (objects, bytes) in
            edge.into_iter().flat_map(|objects| edge.map(|bytes| (objects, bytes)))
        {
            for (full_growth, at) in
                growths.into_iter().flat_map(|growth| edge.map(|at| (growth, at)))
            {
                for thresholds in thresholds.into_iter().chain([None]) {
                    let pace = pace_by_rule(Pacing {
                        automatic: true,
                        young_objects: objects,
                        young_bytes: bytes,
                        full_growth,
                        full_minimum: at,
                        full_minimum_bytes: at,
                        rule: thresholds.map(Thresholds::into),
                    });
                    // A heap has fewer objects: their numbers have 32 bits.
                    for many in [0, 1, 1 << 32] {
                        pace.taken(many as isize, many as isize);
                        pace.deferred(many);
                        let _ = (pace.due(), pace.is_overdue(), pace.is_late());
                        pace.after_young(many, many / 2);
                        pace.after_young(many, 0);
                        pace.after_promotion(many);
                        pace.after_full(many, 0);
                        pace.after_full(many, many);
                        pace.set_policy(pace.policy());
                        let _ = (pace.due(), pace.is_overdue(), pace.is_late());
                    }
                }
            }
        }
    }
}
