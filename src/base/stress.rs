//! Floor 0: stress modes: what makes rare things frequent, and silent ones loud.
//!
//! A [`Stress`] says which modes a heap runs in. They are the library's own tests' tools, and are there for those who
//! build on it: a mistake in an unsafe block, in a runtime's object model or in a C extension shows where it was made,
//! and not three collections later. `docs/stress.md` says what each finds and costs.
//!
//! [`Strain`] is such a value at work in one heap: it decides when to yield, and counts what was done. A heap that is
//! under no stress has none, so what it costs there is one branch, on slow paths only.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::{AtomicU64, Ordering, yield_now};

/// The environment variable that adds modes to those that the code asks for.
pub(super) const STRESS_VARIABLE: &str = "STANDSTILL_STRESS";

/// Which stress modes a heap runs in: for [`HeapBuilder::stress`](crate::HeapBuilder::stress).
///
/// In the environment variable `STANDSTILL_STRESS`, and for [`FromStr`], it is a list of words with commas between:
///
/// | word | mode |
/// |---|---|
/// | `collect`, `collect:N` | [`collect_at_safepoints`](Self::collect_at_safepoints): at each, at every `N`th |
/// | `verify` | [`verify`](Self::verify) |
/// | `counts` | [`verify_counts`](Self::verify_counts), and with it `verify` |
/// | `poison` | [`poison`](Self::poison) |
/// | `quarantine`, `quarantine:N` | [`quarantine`](Self::quarantine) of 256 cells, of `N` |
/// | `yield`, `yield:SEED` | [`yield_at_random`](Self::yield_at_random) |
/// | `small` | [`small_constants`](Self::small_constants) |
/// | `all`, `all:SEED` | [`all`](Self::all) |
/// | `no-` and one of the first seven | that mode is off again |
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
    /// 0: no safepoint collects on this account.
    collect_every: u32,
    verify: bool,
    counts: bool,
    poison: bool,
    quarantine: usize,
    yields: Option<u64>,
    small: bool,
}

/// Cells in quarantine, where nobody says how many.
const DEFAULT_QUARANTINE: usize = 256;

impl Stress {
    /// No stress: what a heap runs in if nobody asks.
    pub fn none() -> Self {
        Self::default()
    }

    /// Everything there is. The seed is that of [`yield_at_random`](Self::yield_at_random).
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

    /// Collects in full at every `every`th safepoint; 0: at none but those that the pacing chooses.
    pub fn collect_at_safepoints(mut self, every: u32) -> Self {
        self.collect_every = every;
        self
    }

    /// Looks at the whole heap before and after each collection, for what cannot be whatever user code does: pages,
    /// free cells and state bytes that contradict each other, damaged headers, fields that lead to no object. What is
    /// found is a panic that says what, and where.
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// With [`verify`](Self::verify), which it switches on: also panics when objects show more references to an object
    /// than it has. Safe code can do that, by a `Trace` that shows what is not its own; the collector keeps such an object
    /// and says so in `CollectionReport::overvisited`. Among honest types it is a lost count.
    pub fn verify_counts(mut self, counts: bool) -> Self {
        self.counts = counts;
        self.verify |= counts;
        self
    }

    /// Fills freed memory with a pattern, header included, and looks for it when the memory is handed out again, and
    /// whenever the heap is verified: who has written to it meanwhile is found out by the address, and the type that lay there.
    pub fn poison(mut self, poison: bool) -> Self {
        self.poison = poison;
        self
    }

    /// Keeps freed memory from being used again until `frees` later objects have been freed: what a stale reference leads
    /// to stays as it was left, poisoned perhaps, instead of being a new object soon. Emptied when the heap would
    /// otherwise be full.
    pub fn quarantine(mut self, frees: usize) -> Self {
        self.quarantine = frees;
        self
    }

    /// Lets go of the processor, at random, in the steps of the protocols between threads: attaching, stopping, merging
    /// counts and others. The seed decides which steps, in the order in which threads come to them.
    pub fn yield_at_random(mut self, seed: u64) -> Self {
        self.yields = Some(seed);
        self
    }

    /// Makes what can be small as small as can be, so that little heaps and short tests come to what large ones do rarely:
    /// refills, pieces of work that are handed over, batches that are full. Every collection is done by several threads.
    pub fn small_constants(mut self, small: bool) -> Self {
        self.small = small;
        self
    }

    /// Whether it is [`none`](Self::none).
    pub fn is_none(&self) -> bool {
        *self == Self::none()
    }

    /// The modes of both; where both have a number, `self`'s.
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

    /// Cells in quarantine at most.
    pub(crate) fn quarantined(self) -> usize {
        self.quarantine
    }

    /// Whether every free passes by the slow path, to be looked at.
    pub(crate) fn uses_quarantine(self) -> bool {
        self.poison || self.quarantine != 0
    }

    /// Whether safepoints collect on this account.
    pub(crate) fn collects(self) -> bool {
        self.collect_every != 0
    }

    /// A constant: as it is, or 1.
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

/// A word that names no stress mode, or a number that is none.
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

/// The steps of the protocols in which a thread may be made to wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Attached, before anything else is done.
    Attach,
    /// Detached while a stop is on, before telling so.
    Detach,
    /// At a safepoint with something to do, before parking.
    Safepoint,
    /// A stop has begun, before the look at the threads; and all have come.
    Stop,
    /// The stop is over, before anybody is told.
    Resume,
    /// One thread keeps another from attaching.
    Suspend,
    /// Before the counts of one queue are merged.
    Merge,
    /// Before a reference is put on the deferred list.
    Defer,
    /// Before the collector takes hold of an unreachable object.
    Hold,
    /// Before the weak references of an object whose count is 0 are killed, and while it has one of its finalizer's: upgrades come in
    /// between.
    Weak,
    /// Before a cell is put on the remote stack of its page.
    RemoteFree,
    /// Before a page of nobody's is looked at, and before pages are left to nobody.
    Adopt,
    /// After an object has been put into its owner's queue, before anybody is told.
    Queue,
}

/// All steps, in the order of their numbers, with their names.
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
    (Step::Adopt, "adopt"),
    (Step::Queue, "queue"),
];

/// A [`Stress`] at work in one heap. Relaxed, all of it: decisions at random, and figures.
#[derive(Debug)]
pub(crate) struct Strain {
    stress: Stress,
    safepoints: AtomicU64,
    /// Numbers for the decisions.
    drawn: AtomicU64,
    steps: [AtomicU64; STEP_NAMES.len()],
    yields: [AtomicU64; STEP_NAMES.len()],
    collections: AtomicU64,
    verifications: AtomicU64,
}

/// What a heap, its space and its coordinator know of stress: mostly that there is none.
pub(crate) type MaybeStrain = Option<Arc<Strain>>;

/// Lets other threads go first, perhaps. One predictable branch where there is no stress: for slow paths.
#[inline(always)]
pub(crate) fn maybe_yield(strain: &MaybeStrain, step: Step) {
    if let Some(strain) = strain {
        strain.maybe_yield(step);
    }
}

impl Strain {
    /// `None` for no stress.
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
        // To give the processor away lets a thread pass that waits for it; to sleep, one that runs elsewhere.
        match random % 64 {
            0..12 => yield_now(),
            12..14 => std::thread::sleep(Duration::from_micros(random >> 32 & 63)),
            _ => return,
        }
        self.yields[step as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this safepoint collects.
    pub(crate) fn collects_now(&self) -> bool {
        let every = u64::from(self.stress.collect_every);
        let due =
            every != 0 && self.safepoints.fetch_add(1, Ordering::Relaxed) % every == every - 1;
        if due {
            self.collections.fetch_add(1, Ordering::Relaxed);
        }
        due
    }

    /// The heap has been looked at, and nothing found.
    pub(crate) fn verified(&self) {
        self.verifications.fetch_add(1, Ordering::Relaxed);
    }

    /// What was done so far.
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

/// A well mixed number from a counter: the finaliser of splitmix64.
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the stress modes of a heap have done so far: see [`ModelHeap::stress_stats`](crate::heap::model::ModelHeap::stress_stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StressStats {
    /// Safepoints that were due to collect on account of stress.
    pub collections: u64,
    /// How often the whole heap was verified, and found sound.
    pub verifications: u64,
    /// Freed cells and large objects that were filled with the pattern.
    pub poisoned: u64,
    /// Poisoned cells that were found untouched when they were handed out again.
    pub checked: u64,
    /// Cells and large objects in quarantine now.
    pub quarantined: usize,
    /// How often threads came to each step of a protocol at which they may yield.
    pub steps: Vec<(&'static str, u64)>,
    /// How often they did.
    pub yields: u64,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn words_name_modes() {
        for (text, stress) in [
            ("", Stress::none()),
            ("0", Stress::none()),
            ("all", Stress::all(1)),
            ("all:7", Stress::all(7)),
            ("all:7,none", Stress::none()),
            ("counts", Stress::none().verify_counts(true)),
            (
                "collect:3, quarantine:9,yield:5",
                Stress::none().collect_at_safepoints(3).quarantine(9).yield_at_random(5),
            ),
            ("collect,verify,small", Stress::from(true)),
            ("all,no-verify", Stress::all(1).verify_counts(false).verify(false)),
            ("all,no-collect,no-verify,no-poison,no-quarantine,no-yield,no-small", Stress::none()),
        ] {
            assert_eq!(text.parse(), Ok(stress), "{text}");
        }
    }

    #[test]
    fn other_words_are_errors_that_name_them() {
        for text in [
            "on",
            "al",
            "verify:1",
            "collect:x",
            "collect:-1",
            "poison,yield:",
            "no-all",
            "collect:99999999999",
        ] {
            let error = text.parse::<Stress>().unwrap_err().to_string();
            assert!(
                error.contains(text.rsplit(',').next().unwrap())
                    && error.contains("quarantine[:N]"),
                "{error}"
            );
        }
    }

    #[test]
    fn steps_are_numbered_as_they_are_listed() {
        assert!(STEP_NAMES.iter().enumerate().all(|(at, &(step, _))| step as usize == at));
    }

    #[test]
    fn a_seed_decides_which_steps_yield() {
        let yields = |seed| {
            let strain = Strain::new(Stress::none().yield_at_random(seed)).unwrap();
            (0..2000)
                .map(|_| {
                    let before = strain.stats().yields;
                    strain.maybe_yield(Step::Queue);
                    strain.stats().yields != before
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(yields(3), yields(3));
        assert_ne!(yields(3), yields(4));
        let some = yields(3).iter().filter(|&&y| y).count();
        assert!((1..2000).contains(&some), "{some}");
    }

    #[test]
    fn every_third_safepoint_collects() {
        let strain = Strain::new(Stress::none().collect_at_safepoints(3)).unwrap();
        let due: Vec<_> = (0..7).map(|_| strain.collects_now()).collect();
        assert_eq!(due, [false, false, true, false, false, true, false]);
        assert_eq!(strain.stats().collections, 2);
    }
}
