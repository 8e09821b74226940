//! Floor 1: freed memory under watch: poison, and quarantine.
//!
//! In a heap without these stress modes nothing here exists. In one with them no magazine has room, so every free and every
//! allocation takes the arena's slow path, and comes by here.
//!
//! # Invariants
//!
//! * With poison, all bytes of a free cell are [`POISON`], from when its page is cut until it is handed out, but for the
//!   first four while it is on the remote stack of its page: the link is there.
//! * A cell in quarantine is neither in use nor free: its page is not empty, so it stays where it is, whoever owns it. When
//!   its time is over it is freed as by a stranger, or by the owner of its page, if that is who happens to come by.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ptr::NonNull;

use crate::base::stress::{Stress, StressStats};
use crate::base::sync::{AtomicU64, Mutex, Ordering};
use crate::memory::shape::Cell;

/// What freed memory is filled with. A header of it names an owner that never was, a type that no heap has, and counts
/// that are out of range.
pub(crate) const POISON: u8 = 0xde;

/// Tells the name of the type whose dead object lies at an address: asked before the memory is poisoned.
pub(crate) type TypeNamer = Box<dyn Fn(NonNull<u8>) -> Option<&'static str> + Send + Sync>;

/// See the [module's page](self).
pub(crate) struct Quarantine {
    poison: bool,
    room: usize,
    entries: Mutex<Entries>,
    name: Option<TypeNamer>,
    /// Relaxed: figures.
    poisoned: AtomicU64,
    checked: AtomicU64,
}

#[derive(Default)]
struct Entries {
    /// In quarantine, oldest first.
    cells: VecDeque<Cell>,
    /// What lay at an address last.
    names: HashMap<usize, &'static str>,
}

impl fmt::Debug for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantine")
            .field("poison", &self.poison)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl Quarantine {
    /// `None`, if nobody watches freed memory.
    pub(crate) fn new(stress: Stress, name: Option<TypeNamer>) -> Option<Box<Self>> {
        stress.uses_quarantine().then(|| {
            Box::new(Self {
                poison: stress.poisons(),
                room: stress.quarantined(),
                entries: Mutex::default(),
                name,
                poisoned: AtomicU64::new(0),
                checked: AtomicU64::new(0),
            })
        })
    }

    /// Fills memory that becomes free for the first time.
    ///
    /// # Safety
    ///
    /// The memory is the caller's.
    pub(crate) unsafe fn poison(&self, cell: Cell) {
        if self.poison {
            // SAFETY: as the caller says.
            unsafe { cell.start().write_bytes(POISON, cell.room().bytes()) };
        }
    }

    /// A cell has been freed: it is poisoned, and waits. What comes back has waited for long enough, and is the caller's to
    /// free.
    ///
    /// # Safety
    ///
    /// The cell is the caller's, and nobody uses it any more.
    pub(crate) unsafe fn admit(&self, cell: Cell) -> Option<Cell> {
        let name = self.name.as_ref().and_then(|name| name(cell.start()));
        if self.poison {
            // SAFETY: as the caller says.
            unsafe { self.poison(cell) };
            self.poisoned.fetch_add(1, Ordering::Relaxed);
        }
        let mut entries = self.entries.lock();
        match name {
            Some(name) => entries.names.insert(cell.start().as_ptr().addr(), name),
            None => entries.names.remove(&cell.start().as_ptr().addr()),
        };
        entries.cells.push_back(cell);
        if entries.cells.len() > self.room { entries.cells.pop_front() } else { None }
    }

    /// Ends the quarantine of all cells: they are the caller's to free.
    pub(crate) fn drain(&self) -> Vec<Cell> {
        self.entries.lock().cells.drain(..).collect()
    }

    /// The cells in quarantine.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        self.entries.lock().cells.iter().copied().collect()
    }

    /// What is wrong with memory that should be poison from its `from`th byte on.
    ///
    /// # Safety
    ///
    /// The memory is accessible, and nobody has a right to write there.
    pub(crate) unsafe fn check(&self, cell: Cell, from: usize) -> Result<(), String> {
        if !self.poison {
            return Ok(());
        }
        // SAFETY: as the caller says.
        if from == 0 && unsafe { is_poison(cell) } {
            return Ok(());
        }
        // Bytes one by one and not a slice: who writes against the rules may be writing now.
        // SAFETY: as the caller says.
        let read = |at: usize| unsafe { cell.start().add(at).read_volatile() };
        let bytes = cell.room().bytes();
        let Some(first) = (from..bytes).find(|&at| read(at) != POISON) else { return Ok(()) };
        let last = (first..bytes).rfind(|&at| read(at) != POISON).unwrap_or(first);
        let found: Vec<_> =
            (first..bytes.min(first + 8)).map(|at| format!("{:02x}", read(at))).collect();
        let address = cell.start().as_ptr().addr();
        let what = match self.entries.lock().names.get(&address) {
            Some(name) => format!("a {name} lay"),
            None => "something lay".to_owned(),
        };
        Err(format!(
            "memory was written to after it was freed: {bytes} bytes at {address:#x}, where {what} last; bytes {first} to {last} are \
             no longer {POISON:#04x}, from there on: {}. Somebody keeps a pointer into it that no reference backs: look for one in \
             unsafe code or a C extension that uses this type",
            found.join(" ")
        ))
    }

    /// As [`check`](Self::check), of a cell that is being handed out; panics.
    ///
    /// # Safety
    ///
    /// As there.
    pub(crate) unsafe fn check_out(&self, cell: Cell) {
        // SAFETY: as the caller says.
        if let Err(error) = unsafe { self.check(cell, 0) } {
            panic!("{error}");
        }
        self.checked.fetch_add(u64::from(self.poison), Ordering::Relaxed);
    }

    /// The cell has left the remote stack, where its first bytes were a link.
    ///
    /// # Safety
    ///
    /// The cell is the caller's, and free.
    pub(crate) unsafe fn overwrite_link(&self, cell: NonNull<u8>) {
        if self.poison {
            // SAFETY: rule O: a cell is a granule at least.
            unsafe { cell.write_bytes(POISON, size_of::<u32>()) };
        }
    }

    /// Adds its figures.
    pub(crate) fn add_figures(&self, stats: &mut StressStats) {
        stats.poisoned = self.poisoned.load(Ordering::Relaxed);
        stats.checked = self.checked.load(Ordering::Relaxed);
        stats.quarantined = self.entries.lock().cells.len();
    }
}

/// Whether all bytes of a cell are as they were left.
///
/// # Safety
///
/// The memory is accessible.
unsafe fn is_poison(cell: Cell) -> bool {
    let words = cell.start().cast::<u64>();
    // SAFETY: as the caller says; cells are whole granules, on addresses of granules.
    let read = |at| unsafe { words.add(at).read_volatile() };
    (0..cell.room().bytes() / size_of::<u64>())
        .all(|at| read(at) == u64::from_ne_bytes([POISON; 8]))
}

/// The end of the heap: a last look at what is in quarantine.
impl Drop for Quarantine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for cell in self.drain() {
            // SAFETY: rule G: the space that has the memory lives until this is over.
            if let Err(error) = unsafe { self.check(cell, 0) } {
                panic!("at the end of the heap: {error}");
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn memory() -> [u64; 8] {
        [7; 8]
    }

    fn cell(memory: &mut [u64; 8]) -> Cell {
        Cell::in_test(memory)
    }

    #[test]
    fn the_oldest_leaves_when_there_is_no_room() {
        let quarantine = Quarantine::new(Stress::none().quarantine(2), None).unwrap();
        let mut memory = [memory(), memory(), memory()];
        let cells = memory.each_mut().map(cell);
        // SAFETY: rule V: all is this test's.
        let back = cells.map(|cell| unsafe { quarantine.admit(cell) }.map(Cell::start));
        assert_eq!(back, [None, None, Some(cells[0].start())]);
        assert_eq!(quarantine.drain().len(), 2);
        // Without poison the bytes are as they were, and any bytes will do.
        // SAFETY: as above.
        unsafe { quarantine.check_out(cells[0]) };
        assert_eq!(memory[0], [7; 8]);
    }

    #[test]
    fn a_write_after_the_free_is_found_with_its_place_and_type() {
        let name: TypeNamer = Box::new(|_| Some("Node"));
        let quarantine = Quarantine::new(Stress::none().poison(true), Some(name)).unwrap();
        let mut memory = memory();
        let cell = cell(&mut memory);
        // SAFETY: rule V: all is this test's.
        unsafe {
            assert!(quarantine.admit(cell).is_some());
            quarantine.check(cell, 0).unwrap();
            cell.start().add(40).write(1);
            let error = quarantine.check(cell, 0).unwrap_err();
            let place = format!("{:#x}", cell.start().as_ptr().addr());
            assert!(
                error.contains("Node")
                    && error.contains(&place)
                    && error.contains("bytes 40 to 40"),
                "{error}"
            );
            quarantine.poison(cell);
            cell.start().cast::<u32>().write(1);
            assert!(
                quarantine.check(cell, 0).is_err() && quarantine.check(cell, 4).is_ok(),
                "but for a link"
            );
            quarantine.overwrite_link(cell.start());
            quarantine.check_out(cell);
        }
    }
}
