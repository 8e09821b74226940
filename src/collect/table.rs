//! The side table: one byte for each granule.
//!
//! During `Phase::Count` a byte is a signed number. A byte that overflows carries into a small map
//! (*spills*), so that sums are exact. `Phase::Roots` reads and zeroes the bytes.

use std::collections::HashMap;

use crate::base::fallible::NoMemory;
use crate::base::steps;
use crate::base::sync::{AtomicU8, Ordering};
use crate::base::system::prefetch;
use crate::collect::scope::granules_of;
use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::memory::address_map::AddressMap;
use crate::memory::space::Space;

/// The bytes that a scan examines together.
pub(crate) const LANES: usize = 32;

/// Side tables of at least this many entries (256 MiB of memory) do not fit the caches, so their
/// entries are prefetched.
const FAR_TABLE_SIZE: usize = 8 << 20;

/// Whether table entries are prefetched. Under stress also for small heaps, so that tests cover it.
pub(crate) fn is_far<M: ObjectModel>(world: &World<'_, M>, entries: usize) -> bool {
    entries >= world.core().stress.shrink(FAR_TABLE_SIZE)
}

/// Targets with table entries that are being prefetched.
#[derive(Debug)]
pub(crate) struct Delay {
    ring: [u32; Self::LEN],
    count: usize,
}

impl Default for Delay {
    fn default() -> Self {
        Self { ring: [0; Self::LEN], count: 0 }
    }
}

impl Delay {
    pub(crate) const LEN: usize = 64;

    /// Prefetches the entry of `target`. Returns an earlier target with an entry that has arrived
    /// by now.
    #[inline(always)]
    pub(crate) fn swap(&mut self, target: usize, entry: *const u8) -> Option<usize> {
        prefetch(entry);
        let at = self.count % Self::LEN;
        let before = std::mem::replace(&mut self.ring[at], target as u32);
        self.count += 1;
        (self.count > Self::LEN).then_some(before as usize)
    }

    /// Calls `f` with the remaining targets.
    pub(crate) fn drain(&mut self, mut f: impl FnMut(usize)) {
        for at in self.count.saturating_sub(Self::LEN)..self.count {
            f(self.ring[at % Self::LEN] as usize);
        }
        self.count = 0;
    }
}

/// Adds `by`, at most 127, to a signed byte that wraps, and records a carry if it wraps.
#[inline(always)]
pub(crate) fn add(table: &mut [u8], granule: usize, by: i8, spills: &mut Spills) {
    let (sum, wrapped) = (table[granule] as i8).overflowing_add(by);
    table[granule] = sum as u8;
    if wrapped {
        spill(spills, granule, if by > 0 { 256 } else { -256 });
    }
}

/// Adds 1 to a byte under a lock that all writers hold.
pub(crate) fn add_shared(table: &[AtomicU8], granule: usize, spills: &mut Spills) {
    // Relaxed: the lock orders the accesses.
    let (sum, wrapped) = (table[granule].load(Ordering::Relaxed) as i8).overflowing_add(1);
    table[granule].store(sum as u8, Ordering::Relaxed);
    if wrapped {
        spill(spills, granule, 256);
    }
}

#[cold]
#[inline(never)]
pub(crate) fn spill(spills: &mut Spills, granule: usize, carry: i64) {
    spills.add(granule as u32, carry);
}

/// The carries of bytes that have wrapped, by granule.
#[derive(Debug, Default)]
pub(crate) struct Spills {
    pub(super) carries: HashMap<u32, i64>,
    /// There was no memory for some carry. Checked once at the end, since carries come from the
    /// innermost loops.
    pub(super) lost: bool,
}

impl Spills {
    pub(super) fn add(&mut self, granule: u32, carry: i64) {
        if self.carries.try_reserve(1).is_ok() {
            *self.carries.entry(granule).or_default() += carry;
        } else {
            self.lost = true;
        }
    }

    /// The carry of a granule.
    pub(super) fn of(&self, granule: u32) -> i64 {
        self.carries.get(&granule).copied().unwrap_or_default()
    }

    pub(super) fn lost_nothing(&self) -> Result<(), NoMemory> {
        if self.lost { Err(NoMemory) } else { Ok(()) }
    }
}

/// Adds the bytes of `table` to those of `main`.
///
/// # Safety
///
/// As for [`exclusively`], of `main`.
pub(crate) unsafe fn add_bytes(main: &[AtomicU8], table: &[u8], mut carry: impl FnMut(usize, i64)) {
    let add = |main: &mut [u8]| {
        for (at, (sum, &add)) in main.iter_mut().zip(table).enumerate() {
            if add != 0 {
                let (now, wrapped) = (*sum as i8).overflowing_add(add as i8);
                *sum = now as u8;
                if wrapped {
                    carry(at, if now < 0 { 256 } else { -256 });
                }
            }
        }
    };
    // SAFETY: rule *stopped*: as the caller says.
    unsafe { exclusively(main, add) }
}

/// Table bytes as plain memory, for scans that the compiler can vectorise.
///
/// # Safety
///
/// No other thread accesses the bytes before `f` returns, and `f` accesses them by its argument
/// only: the world is stopped, and each page is given to one worker.
#[cfg(not(all(test, loom)))]
pub(crate) unsafe fn exclusively<R>(bytes: &[AtomicU8], f: impl FnOnce(&mut [u8]) -> R) -> R {
    // SAFETY: rule *guarded*: an atomic byte has the layout of a byte and may be written through a
    // shared reference. No other access is made, as the caller says.
    f(unsafe {
        std::slice::from_raw_parts_mut(bytes.as_ptr().cast::<u8>().cast_mut(), bytes.len())
    })
}

/// Table bytes as plain memory, as [`exclusively`], for scans that only read.
///
/// # Safety
///
/// No thread writes the bytes before `f` returns.
#[cfg(not(all(test, loom)))]
pub(crate) unsafe fn plainly<R>(bytes: &[AtomicU8], f: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: rule *guarded*: an atomic byte has the layout of a byte. No thread writes it, as the
    // caller says.
    f(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), bytes.len()) })
}

/// In models the bytes are copied, so that loom sees each access.
#[cfg(all(test, loom))]
pub(crate) unsafe fn plainly<R>(bytes: &[AtomicU8], f: impl FnOnce(&[u8]) -> R) -> R {
    f(&bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect::<Vec<u8>>())
}

/// In models the bytes are copied, so that loom sees each access.
#[cfg(all(test, loom))]
pub(crate) unsafe fn exclusively<R>(bytes: &[AtomicU8], f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut copy: Vec<u8> = bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    let result = f(&mut copy);
    bytes.iter().zip(copy).for_each(|(byte, value)| byte.store(value, Ordering::Relaxed));
    result
}

/// Zeroes the side table on the pages of the scope.
pub(crate) fn wipe(space: &Space<impl AddressMap>, pages: &[u32]) {
    for &page in pages {
        if let Some(range) = granules_of(space, page) {
            steps::took(range.len());
            // Relaxed: only this worker accesses the page. It is rare, so the bytes need no access
            // as plain memory.
            space.counts()[range].iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
