//! A heap grows, and a census says of which type. But the line that has made the objects is known
//! only while it makes them, and to remember a stack takes a hundred times as long as to allocate.
//! So the heap looks at few objects: each byte is drawn with the same chance, 1 of 524,288 for
//! example, and an object with a drawn byte is a *sample*. Its stack is kept until its memory is
//! freed. So the samples that are kept are a fair choice of the objects that live, and each counts
//! for the many that were not drawn.
//!
//! For example, a thread makes objects of 64 bytes, and 8,000 are to come before the next sample.
//! Each refill of the magazine counts the cells that it puts out, and the last one puts fewer out,
//! so that the magazine is empty when the sample is due. That refill takes a cell from a page of
//! samples, whose [arena](crate::memory::page::SAMPLED) is no thread's. When the object dies, on
//! any thread, the page is not the thread's own. So the free takes the path for such cells, and
//! finds there that the page is one of samples.
//!
//! # States of a sample
//!
//! | state | memory | table | next |
//! |---|---|---|---|
//! | due | none | none | *kept*, when the next object of its class is allocated |
//! | kept | in use | its address | *gone*, by its free |
//! | lost | in use | none: memory was refused for it | *gone*, by its free |
//! | gone | free, or in quarantine | none | |
//!
//! # Invariants
//!
//! * A cell is drawn when a refill counts it, without regard to what the thread does meanwhile. So
//!   each object has the same chance for each of its bytes. That is why in a heap that samples an
//!   allocation never takes a cell that was freed since (see [`magazine`](super::magazine)): the
//!   magazine would otherwise become empty mostly where the program makes short-lived objects.
//! * An address is in the table only while its memory is in use: it is added by the thread that has
//!   just got the memory, and removed before the memory is freed.
//! * A stack is taken before any lock. The lock of settings, under which the table lies, is the
//!   innermost, and a fork holds it, so that the child finds the table whole.
//!
//! # What a sample stands for
//!
//! An object of `s` bytes is a sample with the chance `p = 1 - exp(-s / mean)`, and so stands for
//! `1 / p` objects of that size ([`Samples::weight`]). Cells that a refill has counted, and that
//! are given back without an allocation, are counted again by the next refill.

#![cfg_attr(not(test), forbid(unsafe_code))]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Instant;

use crate::base::fallible::{self, NoMemory};
use crate::base::settings_lock::Setting;
use crate::base::stack;
use crate::memory::size_class::{CLASSES, class_size};

/// How many objects an arena makes before its next samples.
#[derive(Debug)]
pub(crate) struct Countdown {
    mean: f64,
    random: u64,
    /// By class.
    left: [u32; CLASSES],
}

impl Countdown {
    pub(super) fn new(mean: usize) -> Result<Box<Self>, NoMemory> {
        /// Arenas whose threads make few objects would all be sampled alike. Relaxed: the numbers
        /// only differ.
        static SEEDS: AtomicU64 = AtomicU64::new(1);
        let random = SEEDS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut new = Self { mean: mean as f64, random, left: [0; CLASSES] };
        (0..CLASSES).for_each(|class| new.left[class] = new.draw(class_size(class as u8)));
        fallible::boxed(new)
    }

    /// How many objects of so many bytes come before the next sample: a geometric distribution.
    fn draw(&mut self, bytes: usize) -> u32 {
        // xorshift64*, whose upper bits are a number in 0..1.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let unit = (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / 2_f64.powi(53);
        // The conversion saturates.
        (-(1.0 - unit).ln() * self.mean / bytes as f64) as u32
    }

    /// How many objects of a class come before the next sample.
    #[inline]
    pub(super) fn left(&self, class: u8) -> u32 {
        self.left[usize::from(class)]
    }

    #[inline]
    pub(super) fn hand_out(&mut self, class: u8, cells: u32) {
        let left = &mut self.left[usize::from(class)];
        *left = left.saturating_sub(cells);
    }

    /// Cells that were handed out came back without an object.
    pub(super) fn take_back(&mut self, class: u8, cells: u32) {
        let left = &mut self.left[usize::from(class)];
        *left = left.saturating_add(cells);
    }

    pub(super) fn is_due(&mut self, class: u8) -> bool {
        let is_due = self.left(class) == 0;
        if is_due {
            self.left[usize::from(class)] = self.draw(class_size(class));
        }
        is_due
    }

    pub(super) fn is_large_due(&mut self, bytes: usize) -> bool {
        self.draw(bytes) == 0
    }
}

/// An object that was drawn.
#[cfg_attr(not(feature = "stacks"), allow(dead_code, reason = "only `diagnose` reads it"))]
#[derive(Debug)]
pub(crate) struct Sample {
    /// Return addresses, innermost first.
    pub(crate) stack: Vec<usize>,
    pub(crate) bytes: usize,
    /// `None`: the thread was ending.
    pub(crate) thread: Option<Thread>,
    pub(crate) since: Instant,
    /// The collections and promotions of the heap at that time.
    pub(crate) collections: usize,
}

/// Samples, each with what the reader has found out about it.
#[cfg(feature = "stacks")]
pub(crate) type SampleList<T> = Vec<(Arc<Sample>, T)>;

/// The samples of a heap.
#[derive(Debug)]
pub(crate) struct Samples {
    /// The bytes of which one is drawn, on average.
    pub(crate) mean: usize,
    table: Setting<SampleTable>,
}

#[derive(Debug, Default)]
struct SampleTable {
    /// By the address of the cell or the large object.
    kept: HashMap<usize, Arc<Sample>>,
    lost: u64,
}

impl Samples {
    pub(super) fn new(mean: usize) -> Self {
        Self { mean, table: Setting::default() }
    }

    /// How many objects a sample of so many bytes stands for.
    #[cfg(feature = "stacks")]
    pub(crate) fn weight(&self, bytes: usize) -> f64 {
        -1.0 / (-(bytes as f64) / self.mean as f64).exp_m1()
    }

    /// Keeps the stack of the calling thread for the object that it makes at `memory`.
    pub(crate) fn add(
        &self,
        memory: NonNull<u8>,
        bytes: usize,
        thread: Option<Thread>,
        collections: usize,
    ) {
        let mut frames = [0; stack::MOST];
        let frames = stack::capture_next(&mut frames);
        let sample = fallible::collect(frames.iter().copied()).and_then(|stack| {
            fallible::arc(Sample { stack, bytes, thread, since: Instant::now(), collections })
        });
        self.table.with(|table| match sample {
            Ok(sample) if table.kept.try_reserve(1).is_ok() => {
                table.kept.insert(memory.as_ptr().addr(), sample);
            }
            _ => table.lost += 1,
        });
    }

    /// Counts a sample that cannot be kept, because memory was refused.
    pub(crate) fn lose(&self) {
        self.table.with(|table| table.lost += 1);
    }

    /// The memory is about to be freed.
    pub(super) fn forget(&self, memory: NonNull<u8>) {
        // The drop may free memory, which no lock should wait for.
        drop(self.table.with(|table| table.kept.remove(&memory.as_ptr().addr())));
    }

    /// The samples with what `f` tells of each, whose memory is not freed meanwhile, and how many
    /// were lost.
    #[cfg(feature = "stacks")]
    pub(crate) fn list<T>(
        &self,
        f: impl Fn(usize, &Sample) -> T,
    ) -> Result<(SampleList<T>, u64), NoMemory> {
        self.table.with(|table| {
            let kept = table.kept.iter();
            let kept = kept.map(|(&address, sample)| (Arc::clone(sample), f(address, sample)));
            Ok((fallible::collect(kept)?, table.lost))
        })
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
