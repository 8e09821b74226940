//! What is left of a collection whose search runs in a child, between its stops.
//!
//! Such a collection lasts for seconds, and no thread should wait for it that has not requested it.
//! So the collection is *put off*: its report waits in the [collector lock](super::collector_lock),
//! with what comes next. Some milliseconds later a thread takes both up at a safepoint, for one
//! more step.
//!
//! For example, thread 1 clones a child, puts off [`Rest::Searching`], and goes on with the
//! program. Thread 2 finds that the child works. A moment later it finds the child's end, and puts
//! off the [`Proposal`]. Thread 1 stops the world for the first part of the proposal. The threads
//! reclaim that garbage, and the one that finishes it puts off the rest of the proposal. After the
//! last part the report is closed.
//!
//! # States
//!
//! | [`Rest`] | a step does | next |
//! |---|---|---|
//! | `Searching` | asks the system whether the child has ended | the same, `Proposed`, or none, after a search in a stop |
//! | `Proposed` | gathers huge pages that the clone has broken up, and when all are whole, a stop for one part | the same, or none |
//!
//! A thread that requested the collection does these steps itself, and puts nothing off.
//!
//! # Who may touch it
//!
//! The thread that holds the collector lock, which takes it out. The lock's mutex protects what is
//! put off. A fork of the program copies it, and the child of the fork drops its copy, whose
//! process is a child of the parent. If the heap ends, the child is ended with it.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::base::fallible::{self, NoMemory};
use crate::heap::child::{NoAnswer, SharedMemory, Working};
use crate::heap::pacing::{BesideSearch, Pace};
use crate::heap::parts::ChildWait;

// What the child tells before the proposed objects, by the word.
pub(crate) const CANDIDATES: usize = 0;
pub(crate) const UNREADABLE: usize = 1;
pub(crate) const NANOSECONDS: usize = 2;
/// The first of some unreadable objects. A collection with more of them leaves the others to later
/// ones.
pub(crate) const FIRST_UNREADABLE: usize = 3;
/// The first of the proposed objects.
pub(crate) const HEAD: usize = 256;

/// A proposed object is a word: its part from this bit on, and below that its granule.
pub(crate) const PART: u32 = u32::BITS;

/// What comes next.
#[derive(Debug)]
pub(crate) enum Rest {
    Searching(Searching),
    Proposed(Proposal),
}

/// The right to have a child, which a heap gives once at a time, because each child takes memory.
#[derive(Debug)]
pub(crate) struct OnlyChild(Arc<AtomicBool>);

impl OnlyChild {
    /// `None`: another child has it.
    pub(crate) fn take(is_searched: &Arc<AtomicBool>) -> Option<Self> {
        // Relaxed, here and below: the flag orders nothing.
        let is_free = !is_searched.swap(true, Ordering::Relaxed);
        is_free.then(|| Self(Arc::clone(is_searched)))
    }
}

impl Drop for OnlyChild {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A child that searches.
#[derive(Debug)]
#[must_use]
pub(crate) struct Searching {
    pub(crate) child: Working,
    pub(crate) memory: SharedMemory,
    pub(crate) only: OnlyChild,
    pub(crate) begun: BesideSearch,
}

impl Searching {
    /// Waits for the end of the child, or until `wait` ends before that. The thread is detached,
    /// because this takes long.
    pub(crate) fn wait(
        self,
        pace: &Pace,
        wait: impl FnOnce(&mut dyn FnMut() -> bool) -> ChildWait,
    ) -> Result<Proposal, NoAnswer> {
        let Self { mut child, memory, only: _only, begun } = self;
        let mut answer = None;
        let waited = wait(&mut || {
            answer = answer.take().or_else(|| child.ended());
            answer.is_some()
        });
        let proposed = match (answer, waited) {
            (Some(answer), _) => answer?,
            (None, ChildWait::Outgrown) => return Err(NoAnswer::Outgrown),
            (None, ChildWait::GivenUp) => return Err(NoAnswer::GivenUp),
            (None, ChildWait::ToTheEnd) => child.wait()?,
        };
        Ok(Proposal::new(memory, proposed, begun, pace))
    }

    /// The answer of the child, or the child, which still works.
    pub(crate) fn ended(mut self, pace: &Pace) -> Result<Result<Proposal, NoAnswer>, Self> {
        match self.child.ended() {
            None => Err(self),
            Some(answer) => {
                Ok(answer.map(|proposed| Proposal::new(self.memory, proposed, self.begun, pace)))
            }
        }
    }
}

/// What a child has proposed. Nothing in it is trusted.
#[derive(Debug)]
pub(crate) struct Proposal {
    memory: SharedMemory,
    /// The number of proposed objects.
    pub(crate) proposed: usize,
    /// How many of them were given out.
    at: usize,
    /// No part was given out.
    is_untouched: bool,
    /// From where on the clone has left the heap's huge pages broken up. `None`: nowhere.
    broken: Option<usize>,
    /// The pace when the child was cloned, and when it has ended.
    pub(crate) pace: [BesideSearch; 2],
}

impl Proposal {
    fn new(memory: SharedMemory, proposed: u64, begun: BesideSearch, pace: &Pace) -> Self {
        let proposed = (proposed as usize).min(memory.words().len() - HEAD);
        let pace = [begun, pace.beside_search()];
        Self { memory, proposed, at: 0, is_untouched: true, broken: Some(0), pace }
    }

    /// What a child could have written, after the words that [`HEAD`] counts.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn hostile(words: &[u64], pace: &Pace) -> Self {
        let memory = SharedMemory::new(HEAD + words.len()).unwrap();
        for (to, &word) in memory.words()[HEAD..].iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        Self::new(memory, words.len() as u64, pace.beside_search(), pace)
    }

    fn told(&self, word: usize) -> u64 {
        // Relaxed, here and below: the child has ended.
        self.memory.words()[word].load(Ordering::Relaxed)
    }

    /// How long the search took, by the clock of the child.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_nanos(self.told(NANOSECONDS))
    }

    pub(crate) fn candidates(&self) -> usize {
        // An object has a granule at least, and so has each word.
        (self.told(CANDIDATES) as usize).min(self.memory.words().len() - HEAD)
    }

    /// The number of objects with a field that could not be read.
    pub(crate) fn unreadable(&self) -> usize {
        self.told(UNREADABLE) as usize
    }

    /// Some of the objects with a field that the child could not read, as granules.
    pub(crate) fn some_unreadable(&self) -> impl Iterator<Item = usize> {
        let words = &self.memory.words()[FIRST_UNREADABLE..HEAD];
        words.iter().map(|word| word.load(Ordering::Relaxed) as usize).take(self.unreadable())
    }

    /// Whether there is anything to do.
    pub(crate) fn has_steps(&self) -> bool {
        self.broken.is_some() || self.has_parts()
    }

    /// Whether another stop is needed. Objects that the child could not read need one too.
    pub(crate) fn has_parts(&self) -> bool {
        self.at < self.proposed || self.is_untouched && self.unreadable() > 0
    }

    /// Repairs, by `restore`, a part of the heap's huge pages. `false`: all are whole.
    pub(crate) fn restore_huge_pages(
        &mut self,
        restore: impl FnOnce(usize) -> Option<usize>,
    ) -> bool {
        self.broken = self.broken.and_then(restore);
        self.broken.is_some()
    }

    /// No part was given out.
    pub(crate) fn is_untouched(&self) -> bool {
        self.is_untouched
    }

    /// The number of proposed objects that were not given out.
    pub(crate) fn left(&self) -> usize {
        self.proposed - self.at
    }

    /// Gives out the next part, as granules, in the order of memory.
    pub(crate) fn take_part(&mut self) -> Result<Vec<u32>, NoMemory> {
        self.is_untouched = false;
        let all = self.memory.words()[HEAD..].iter().take(self.proposed).skip(self.at);
        let mut all = all.map(|word| word.load(Ordering::Relaxed)).peekable();
        let mut granules = Vec::new();
        let Some(&first) = all.peek() else { return Ok(granules) };
        for word in all.take_while(|word| word >> PART == first >> PART) {
            fallible::push(&mut granules, word as u32)?;
        }
        self.at += granules.len();
        granules.sort_unstable();
        Ok(granules)
    }
}
