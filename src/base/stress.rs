//! A mistake in an unsafe block, in a runtime's object model or in a C extension often shows far
//! from the place where it was made. Stress modes make rare schedules frequent and hidden faults
//! visible.
//!
//! A [`Stress`] is the set of modes of a heap. The library's own tests use them, and so can its
//! users. `docs/stress.md` says which faults each mode finds, and its cost.
//!
//! [`Strain`] applies the modes to one heap: it decides when a thread yields, and counts. A heap
//! without stress modes has none, so it pays only one branch, on slow paths.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::{AtomicU64, Ordering, yield_now};

/// The environment variable that adds modes to those that the code sets.
pub(super) const STRESS_VARIABLE: &str = "STANDSTILL_STRESS";

/// The stress modes of a heap, for [`HeapBuilder::stress`](crate::HeapBuilder::stress).
///
/// In the environment variable `STANDSTILL_STRESS`, and for [`FromStr`], it is a list of words with
/// commas between:
///
/// | word | mode |
/// |---|---|
/// | `collect`, `collect:N` | [`collect_at_safepoints`](Self::collect_at_safepoints), `N` or 1 |
/// | `verify` | [`verify`](Self::verify) |
/// | `counts` | [`verify_counts`](Self::verify_counts), and with it `verify` |
/// | `poison` | [`poison`](Self::poison) |
/// | `quarantine`, `quarantine:N` | [`quarantine`](Self::quarantine) of `N` cells, or 256 |
/// | `yield`, `yield:SEED` | [`yield_at_random`](Self::yield_at_random) |
/// | `small` | [`small_constants`](Self::small_constants) |
/// | `all`, `all:SEED` | [`all`](Self::all) |
/// | `no-` and one of the first seven | switches that mode off |
/// | `none` or `0` | [`none`](Self::none) |
///
/// ```
/// use standstill::{Heap, Stress};
///
/// let heap = Heap::builder().stress(Stress::none().verify(true).poison(true)).build().unwrap();
/// # heap.attach().collect();
/// assert_eq!("verify,poison".parse(), Ok(Stress::none().verify(true).poison(true)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it does nothing until a heap is built with it"]
pub struct Stress {
    /// 0 if the mode is off.
    collect_every: u32,
    verify: bool,
    counts: bool,
    poison: bool,
    quarantine: usize,
    yields: Option<u64>,
    small: bool,
}

/// The default number of cells in quarantine.
const DEFAULT_QUARANTINE: usize = 256;

impl Stress {
    /// No stress modes: the default.
    pub fn none() -> Self {
        Self::default()
    }

    /// All modes. The seed is for [`yield_at_random`](Self::yield_at_random).
    pub fn all(seed: u64) -> Self {
        Self {
            collect_every: 1,
            verify: true,
            counts: true,
            poison: true,
            quarantine: DEFAULT_QUARANTINE,
            yields: Some(seed),
            small: true,
        }
    }

    /// Runs a full collection at every `every`th safepoint, of whatever thread. A safepoint
    /// waits for another thread's collection first, for at most some milliseconds, and is left out
    /// if that has not ended. 0: only the pacing starts collections.
    pub fn collect_at_safepoints(mut self, every: u32) -> Self {
        self.collect_every = every;
        self
    }

    /// Verifies the whole heap before and after each collection. It finds faults that correct code
    /// cannot cause: contradictions between pages, free cells and state bytes, damaged headers,
    /// fields that do not lead to an object. Each is reported by a panic that names the fault and
    /// its place.
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Extends [`verify`](Self::verify), which it switches on. It also panics if the traversals
    /// report more references to an object than the object has. Safe code can cause this, by a
    /// `Trace` that reports a reference it does not own. The collector then keeps the object and
    /// counts it in `CollectionReport::overvisited`. If all types are correct, a count was lost.
    ///
    /// For a runtime's own [`ObjectModel`](crate::model::ObjectModel) it also compares the model's
    /// answers with each other. The finding names the rule that the model breaks, the method, and
    /// the object. `docs/model.md` lists the checks.
    pub fn verify_counts(mut self, counts: bool) -> Self {
        self.counts = counts;
        self.verify |= counts;
        self
    }

    /// Fills freed memory with a pattern, header included, which is checked when the memory is
    /// handed out again, and whenever the heap is verified. The report of a write to freed memory
    /// names the address and the type of the last object there.
    pub fn poison(mut self, poison: bool) -> Self {
        self.poison = poison;
        self
    }

    /// Delays the reuse of freed memory until `frees` later objects have been freed. So a stale
    /// reference leads to the old contents, or to poison, and not to a new object. The quarantine
    /// is emptied before an allocation fails for lack of memory.
    pub fn quarantine(mut self, frees: usize) -> Self {
        self.quarantine = frees;
        self
    }

    /// Makes threads yield at random in the steps of the protocols between threads, such as
    /// attaching, stopping and merging counts. The seed decides which steps yield, in the order in
    /// which threads reach them. It also decides which marks are lost, if the model allows
    /// [overlapping traversals](crate::model::ObjectModel::OVERLAPPING_TRAVERSALS).
    pub fn yield_at_random(mut self, seed: u64) -> Self {
        self.yields = Some(seed);
        self
    }

    /// Makes constants as small as possible, so that small heaps and short tests reach the paths of
    /// large heaps: refills, work that is handed over, full batches. Every collection then uses all
    /// workers of the heap, unless [`HeapBuilder::serial_below`](crate::HeapBuilder::serial_below)
    /// was called.
    pub fn small_constants(mut self, small: bool) -> Self {
        self.small = small;
        self
    }

    /// Whether it is [`none`](Self::none).
    pub fn is_none(&self) -> bool {
        *self == Self::none()
    }

    /// The modes of both. If both have a number, the result has `self`'s.
    pub fn and(self, other: Self) -> Self {
        let first = |a, b| if a == 0 { b } else { a };
        Self {
            collect_every: if self.collect_every == 0 {
                other.collect_every
            } else {
                self.collect_every
            },
            verify: self.verify | other.verify,
            counts: self.counts | other.counts,
            poison: self.poison | other.poison,
            quarantine: first(self.quarantine, other.quarantine),
            yields: self.yields.or(other.yields),
            small: self.small | other.small,
        }
    }

    pub(crate) fn verifies(self) -> bool {
        self.verify
    }

    pub(crate) fn verifies_counts(self) -> bool {
        self.counts
    }

    pub(crate) fn poisons(self) -> bool {
        self.poison
    }

    /// The most cells in quarantine.
    pub(crate) fn quarantined(self) -> usize {
        self.quarantine
    }

    /// Whether every free takes the slow path, for a check.
    pub(crate) fn uses_quarantine(self) -> bool {
        self.poison || self.quarantine != 0
    }

    /// Whether this mode starts collections at safepoints.
    pub(crate) fn collects(self) -> bool {
        self.collect_every != 0
    }

    /// The constant, or 1 at most with small constants.
    #[inline(always)]
    pub(crate) fn shrink(self, constant: usize) -> usize {
        if self.small { constant.min(1) } else { constant }
    }
}

/// `true`: a full collection at every safepoint, verified, with small constants.
impl From<bool> for Stress {
    fn from(stress: bool) -> Self {
        if stress {
            Self::none().collect_at_safepoints(1).verify(true).small_constants(true)
        } else {
            Self::none()
        }
    }
}

/// A word that names no stress mode, or that has an invalid number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseStressError {
    word: String,
}

impl fmt::Display for ParseStressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no stress mode; {STRESS_VARIABLE} and `Stress` take, with commas between: collect[:N], verify, counts, \
             poison, quarantine[:N], yield[:SEED], small, all[:SEED], no-MODE, none",
            self.word
        )
    }
}

impl std::error::Error for ParseStressError {}

impl FromStr for Stress {
    type Err = ParseStressError;

    fn from_str(text: &str) -> Result<Self, ParseStressError> {
        let mut stress = Self::none();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let error = || ParseStressError { word: word.to_owned() };
            let (name, number) = match word.split_once(':') {
                Some((name, number)) => (name, Some(number.parse::<u64>().map_err(|_| error())?)),
                None => (word, None),
            };
            let size =
                |default| number.map_or(Ok(default), |n| usize::try_from(n).map_err(|_| error()));
            stress = match (name, number.is_some()) {
                ("collect", _) => {
                    stress.collect_at_safepoints(u32::try_from(size(1)?).map_err(|_| error())?)
                }
                ("quarantine", _) => stress.quarantine(size(DEFAULT_QUARANTINE)?),
                ("yield", _) => stress.yield_at_random(number.unwrap_or(1)),
                ("all", _) => stress.and(Self::all(number.unwrap_or(1))),
                ("verify", false) => stress.verify(true),
                ("counts", false) => stress.verify_counts(true),
                ("poison", false) => stress.poison(true),
                ("small", false) => stress.small_constants(true),
                ("no-collect", false) => stress.collect_at_safepoints(0),
                ("no-verify", false) => stress.verify_counts(false).verify(false),
                ("no-counts", false) => stress.verify_counts(false),
                ("no-poison", false) => stress.poison(false),
                ("no-quarantine", false) => stress.quarantine(0),
                ("no-yield", false) => Self { yields: None, ..stress },
                ("no-small", false) => stress.small_constants(false),
                ("none" | "0", false) => Self::none(),
                _ => return Err(error()),
            };
        }
        Ok(stress)
    }
}

/// The steps of the protocols at which a thread may yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// After attaching.
    Attach,
    /// After detaching during a stop, before the stopping thread is notified.
    Detach,
    /// At a safepoint with a request, before parking.
    Safepoint,
    /// After a stop has begun, before the threads are inspected, and again when all have parked.
    Stop,
    /// After a stop, before the threads are notified.
    Resume,
    /// While one thread keeps another from attaching.
    Suspend,
    /// Before the counts of one queue are merged.
    Merge,
    /// Before a reference is put on the deferred list.
    Defer,
    /// Before the collector takes a reference to an unreachable object.
    Hold,
    /// Before the weak references of an object with a count of 0 are cleared, and while it has a
    /// reference for its finalizer, because upgrades can intervene.
    Weak,
    /// Before a cell is put on the remote stack of its page.
    RemoteFree,
    /// Before an abandoned page is probed, and before pages are abandoned.
    TakeOver,
    /// After an object has entered its owner's queue, before the owner is notified.
    Queue,
}

/// All steps in the order of their numbers, with their names.
const STEP_NAMES: [(Step, &str); 13] = [
    (Step::Attach, "attach"),
    (Step::Detach, "detach"),
    (Step::Safepoint, "safepoint"),
    (Step::Stop, "stop"),
    (Step::Resume, "resume"),
    (Step::Suspend, "suspend"),
    (Step::Merge, "merge"),
    (Step::Defer, "defer"),
    (Step::Hold, "hold"),
    (Step::Weak, "weak"),
    (Step::RemoteFree, "remote free"),
    (Step::TakeOver, "take over"),
    (Step::Queue, "queue"),
];

/// The stress modes at work in one heap. All accesses are relaxed, because only random decisions
/// and statistics depend on them.
#[derive(Debug)]
pub(crate) struct Strain {
    stress: Stress,
    safepoints: AtomicU64,
    /// A counter, from which the random decisions are drawn.
    drawn: AtomicU64,
    steps: [AtomicU64; STEP_NAMES.len()],
    yields: [AtomicU64; STEP_NAMES.len()],
    collections: AtomicU64,
    verifications: AtomicU64,
}

/// The strain of a heap, its space or its coordinator. Most have none, so that a branch suffices.
pub(crate) type MaybeStrain = Option<Arc<Strain>>;

/// Yields at random to other threads. Without stress this is one predictable branch, which slow
/// paths can afford.
#[inline(always)]
pub(crate) fn maybe_yield(strain: &MaybeStrain, step: Step) {
    if let Some(strain) = strain {
        strain.maybe_yield(step);
    }
}

impl Strain {
    /// `None` without stress modes.
    pub(crate) fn new(stress: Stress) -> MaybeStrain {
        let zeroes = || std::array::from_fn(|_| AtomicU64::new(0));
        (!stress.is_none()).then(|| {
            Arc::new(Self {
                stress,
                safepoints: AtomicU64::new(0),
                drawn: AtomicU64::new(0),
                steps: zeroes(),
                yields: zeroes(),
                collections: AtomicU64::new(0),
                verifications: AtomicU64::new(0),
            })
        })
    }

    #[cold]
    #[inline(never)]
    fn maybe_yield(&self, step: Step) {
        let Some(seed) = self.stress.yields else { return };
        self.steps[step as usize].fetch_add(1, Ordering::Relaxed);
        let random = mix(seed.wrapping_add(self.drawn.fetch_add(1, Ordering::Relaxed)));
        // A yield lets a waiting thread pass on this processor, but only a sleep gives threads on
        // other processors the time to overtake.
        match random % 64 {
            0..12 => yield_now(),
            12..14 => std::thread::sleep(Duration::from_micros(random >> 32 & 63)),
            _ => return,
        }
        self.yields[step as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a worker loses a mark, where a mark may be lost.
    pub(crate) fn loses_mark(&self) -> bool {
        let draw = |seed: u64| mix(seed.wrapping_add(self.drawn.fetch_add(1, Ordering::Relaxed)));
        self.stress.yields.is_some_and(|seed| draw(seed) % 4 == 0)
    }

    /// Whether this safepoint runs a collection.
    pub(crate) fn collects_now(&self) -> bool {
        let every = u64::from(self.stress.collect_every);
        every != 0 && self.safepoints.fetch_add(1, Ordering::Relaxed) % every == every - 1
    }

    /// The collection of this safepoint has run.
    pub(crate) fn collected(&self) {
        self.collections.fetch_add(1, Ordering::Relaxed);
    }

    /// The heap was verified, and no fault was found.
    pub(crate) fn verified(&self) {
        self.verifications.fetch_add(1, Ordering::Relaxed);
    }

    /// How often threads have reached a step at which they may yield.
    pub(crate) fn reached(&self, step: Step) -> u64 {
        self.steps[step as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> StressStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StressStats {
            collections: read(&self.collections),
            verifications: read(&self.verifications),
            steps: STEP_NAMES
                .iter()
                .map(|&(step, name)| (name, read(&self.steps[step as usize])))
                .collect(),
            yields: self.yields.iter().map(read).sum(),
            ..StressStats::default()
        }
    }
}

/// A well-mixed number from a counter: the finaliser of splitmix64.
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Statistics of a heap's stress modes: see
/// [`ModelHeap::stress_stats`](crate::model::ModelHeap::stress_stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StressStats {
    /// Collections that this mode has run.
    pub collections: u64,
    /// How often the whole heap was verified without finding a fault.
    pub verifications: u64,
    /// Freed cells and large objects that were filled with the pattern.
    pub poisoned: u64,
    /// Poisoned cells that were unchanged when they were handed out again.
    pub checked: u64,
    /// Cells and large objects in quarantine now.
    pub quarantined: usize,
    /// How often threads reached each step at which they may yield.
    pub steps: Vec<(&'static str, u64)>,
    /// How often they yielded.
    pub yields: u64,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
