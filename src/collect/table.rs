//! The side table: one byte for each granule.
//!
//! During `Phase::Count` a byte is a signed number. A byte that overflows carries into a small map
//! (*spills*), so that sums are exact. `Phase::Roots` reads and zeroes the bytes.

use std::collections::HashMap;

use crate::base::fallible::NoMemory;
use crate::base::prefetch::prefetch;
use crate::base::steps;
use crate::base::sync::{AtomicU8, Ordering};
use crate::collect::scope::granules_of;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::reserved::AddressMap;
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
mod tests {
    use super::*;
    use crate::base::sync::Ordering;
    use crate::collect::scope::tests::{granules, stopped};

    #[test]
    fn a_wiped_page_has_no_counts() {
        stopped(|world, scope| {
            let table = world.core().space.counts();
            for at in granules(world, scope) {
                table[at].store(7, Ordering::Relaxed);
            }
            wipe(&world.core().space, scope.pages());
            assert!(table.iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
        });
    }

    #[test]
    fn bytes_added_under_a_lock_carry_too() {
        let table: Vec<AtomicU8> = (0..3).map(|_| AtomicU8::new(0)).collect();
        let mut spills = Spills::default();
        for count in 1..=700i64 {
            add_shared(&table, 1, &mut spills);
            let byte = table[1].load(Ordering::Relaxed) as i8;
            assert_eq!(i64::from(byte) + spills.of(1), count);
        }
        assert_eq!((spills.of(0), table[0].load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn counts_beyond_a_byte_are_kept_in_both_directions() {
        let mut table = [0u8; 3];
        let mut spills = Spills::default();
        let mut sums = [0i64; 3];
        for round in 0..1_000 {
            for (at, by) in [(0, 127), (1, -127), (2, if round % 300 < 150 { 100 } else { -90 })] {
                add(&mut table, at, by, &mut spills);
                sums[at] += i64::from(by);
                let carry = spills.carries.get(&(at as u32)).copied().unwrap_or_default();
                assert_eq!(i64::from(table[at] as i8) + carry, sums[at]);
            }
        }
        assert!(spills.lost_nothing().is_ok());
        // A wrap is recorded. A sum that does not wrap is not.
        let mut spills = Spills::default();
        let mut table = [0u8; 1];
        (0..127).for_each(|_| add(&mut table, 0, 1, &mut spills));
        assert!(spills.carries.is_empty());
        add(&mut table, 0, 1, &mut spills);
        assert_eq!(spills.carries, HashMap::from([(0, 256)]));
    }

    #[test]
    fn what_is_delayed_comes_back_once_and_in_order() {
        for n in [0, 1, Delay::LEN - 1, Delay::LEN, Delay::LEN + 1, 1000] {
            let mut delay = Delay::default();
            for round in 0..2 {
                let mut seen: Vec<usize> =
                    (0..n).filter_map(|target| delay.swap(target, std::ptr::null())).collect();
                delay.drain(|target| seen.push(target));
                assert_eq!(seen, (0..n).collect::<Vec<_>>(), "round {round}");
            }
        }
    }
}
