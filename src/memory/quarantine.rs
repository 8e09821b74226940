//! A fault that uses freed memory mostly shows much later, when the memory is another object's. So
//! freed cells are filled with a pattern, and wait in *quarantine* before they are used again. For
//! example, a reader through a stale pointer finds a header with counts out of range. A write to
//! the cell is found when the cell is handed out, because the pattern is no longer complete.
//!
//! | | checked mode | stress modes |
//! |---|---|---|
//! | its quarantine belongs to | the built-in model | the space |
//! | it admits | dynamic objects | every freed cell, also those that checked mode releases |
//! | its limit | 4,096 objects, 4 MiB | a number of cells |
//! | the poison serves | a reader of freed memory | the [check](Quarantine::check) for writes |
//!
//! In a heap with these stress modes magazines have no capacity, so that every free and every
//! allocation takes the arena's slow path, which calls this module.
//!
//! # Invariants
//!
//! * In a stress mode with poison, all bytes of a free cell are [`POISON`], from the time its page
//!   is cut until the cell is handed out. On the remote stack of its page the first four bytes are
//!   the link instead.
//! * A cell in quarantine is neither in use nor free, so its page is not empty and stays in use. A
//!   thread that removes a cell from the quarantine of a space frees it as its own if it owns the
//!   page, and as a remote free otherwise.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::ptr::NonNull;

use crate::base::settings_lock::SettingsHold;
use crate::base::stress::{Stress, StressStats};
use crate::base::sync::{AtomicU64, Mutex, Ordering};
use crate::memory::shape::Cell;

/// The byte that fills freed memory. A reader notices it, because such a header has an owner that
/// never existed, a type that no heap has, and counts out of range.
pub(crate) const POISON: u8 = 0xde;

/// Returns the name of the type whose dead object lies at an address. It is called before the
/// memory is poisoned, because the object's header leads to the name.
pub(crate) type TypeNamer = Box<dyn Fn(NonNull<u8>) -> Option<&'static str> + Send + Sync>;

/// Freed memory of a space or of the built-in model that waits to be free.
pub(crate) struct Quarantine {
    poison: bool,
    most_cells: usize,
    most_bytes: usize,
    entries: Mutex<Entries>,
    name: Option<TypeNamer>,
    /// Relaxed: statistics.
    poisoned: AtomicU64,
    checked: AtomicU64,
}

#[derive(Default)]
struct Entries {
    /// The cells in quarantine, oldest first.
    cells: VecDeque<Cell>,
    /// The sum of their sizes.
    bytes: usize,
    /// The type of the last object at an address.
    names: HashMap<usize, &'static str>,
    /// The addresses of cells that were freed and not handed out since. `None`: not kept.
    free: Option<HashSet<usize>>,
}

impl Entries {
    fn pop(&mut self) -> Option<Cell> {
        let cell = self.cells.pop_front()?;
        self.bytes -= cell.room().bytes();
        Some(cell)
    }
}

impl fmt::Debug for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantine")
            .field("poison", &self.poison)
            .field("most_cells", &self.most_cells)
            .finish_non_exhaustive()
    }
}

impl Quarantine {
    fn new(poison: bool, most_cells: usize, most_bytes: usize, name: Option<TypeNamer>) -> Self {
        Self {
            poison,
            most_cells,
            most_bytes,
            entries: Mutex::default(),
            name,
            poisoned: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        }
    }

    /// For the dynamic objects of a heap in checked mode.
    pub(crate) fn of_objects() -> Self {
        Self::new(true, 4096, 4 << 20, None)
    }

    /// For the cells of a space. `None` if no stress mode needs it.
    pub(crate) fn of_cells(stress: Stress, name: Option<TypeNamer>) -> Option<Box<Self>> {
        stress.uses_quarantine().then(|| {
            let new = Self::new(stress.poisons(), stress.quarantined(), usize::MAX, name);
            new.entries.lock().free = Some(HashSet::new());
            Box::new(new)
        })
    }

    /// Fills memory with poison, from its `from`th byte on.
    ///
    /// # Safety
    ///
    /// The caller owns the memory.
    pub(crate) unsafe fn poison(&self, cell: Cell, from: usize) {
        if self.poison {
            // SAFETY: as the caller says.
            unsafe { cell.start().add(from).write_bytes(POISON, cell.room().behind(from)) };
        }
    }

    /// Takes in a freed cell, poisoned from its `from`th byte on if the mode is on. Returns a cell
    /// to free, like [`pop_excess`](Self::pop_excess), or `cell` itself if there is no memory for
    /// its entry.
    ///
    /// # Safety
    ///
    /// The caller owns the cell, and no thread uses it.
    pub(crate) unsafe fn admit(&self, cell: Cell, from: usize) -> Option<Cell> {
        let address = cell.start().as_ptr().addr();
        let mut entries = self.entries.lock();
        if let Some(free) = &mut entries.free
            && free.try_reserve(1).is_ok()
            && !free.insert(address)
        {
            drop(entries);
            freed_twice(address);
        }
        drop(entries);
        let name = self.name.as_ref().and_then(|name| name(cell.start()));
        if self.poison {
            // SAFETY: as the caller says.
            unsafe { self.poison(cell, from) };
            self.poisoned.fetch_add(1, Ordering::Relaxed);
        }
        let mut entries = self.entries.lock();
        match name {
            Some(name) => entries.names.insert(cell.start().as_ptr().addr(), name),
            None => entries.names.remove(&cell.start().as_ptr().addr()),
        };
        if entries.cells.try_reserve(1).is_err() {
            return Some(cell);
        }
        entries.bytes += cell.room().bytes();
        entries.cells.push_back(cell);
        drop(entries);
        self.pop_excess()
    }

    /// Removes the oldest cell, which the caller then owns and frees, if a limit is exceeded.
    pub(crate) fn pop_excess(&self) -> Option<Cell> {
        let mut entries = self.entries.lock();
        let is_full = entries.cells.len() > self.most_cells || entries.bytes > self.most_bytes;
        if is_full { entries.pop() } else { None }
    }

    /// Removes the oldest cell, which the caller then owns and frees.
    pub(crate) fn pop(&self) -> Option<Cell> {
        self.entries.lock().pop()
    }

    pub(crate) fn cells(&self) -> Vec<Cell> {
        self.entries.lock().cells.iter().copied().collect()
    }

    /// Checks that memory is poison from its `from`th byte on. The error says where it is not.
    ///
    /// # Safety
    ///
    /// The memory is accessible, and no thread may write there.
    pub(crate) unsafe fn check(&self, cell: Cell, from: usize) -> Result<(), String> {
        if !self.poison {
            return Ok(());
        }
        // SAFETY: as the caller says.
        if from == 0 && unsafe { is_poison(cell) } {
            return Ok(());
        }
        // Reads byte by byte and not as a slice, because the faulty writer may be writing now.
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
            None => "an object of unknown type lay".to_owned(),
        };
        Err(format!(
            "memory was written to after it was freed: {bytes} bytes at {address:#x}, where {what} \
             last; bytes {first} to {last} are no longer {POISON:#04x} and begin with: {}. A \
             pointer without a counted reference wrote there: look for it in unsafe code or in a C \
             extension that uses this type",
            found.join(" ")
        ))
    }

    /// As [`check`](Self::check), for a cell that is about to be handed out. Panics on an error.
    ///
    /// # Safety
    ///
    /// As for [`check`](Self::check).
    pub(crate) unsafe fn check_out(&self, cell: Cell) {
        // SAFETY: as the caller says.
        if let Err(error) = unsafe { self.check(cell, 0) } {
            panic!("{error}");
        }
        self.checked.fetch_add(u64::from(self.poison), Ordering::Relaxed);
        self.forget_free(cell.start().as_ptr().addr());
    }

    /// A cell at an address is not free any more, or its page has got another layout.
    pub(crate) fn forget_free(&self, address: usize) {
        if let Some(free) = &mut self.entries.lock().free {
            free.remove(&address);
        }
    }

    /// Checks the cells in quarantine a last time, because the heap ends. Panics on an error.
    ///
    /// # Safety
    ///
    /// The memory is accessible.
    pub(crate) unsafe fn check_last(&self) {
        for cell in self.cells() {
            // SAFETY: as the caller says.
            if let Err(error) = unsafe { self.check(cell, 0) } {
                panic!("at the end of the heap: {error}");
            }
        }
    }

    /// Restores the poison of a cell that has left the remote stack, where its first bytes were a
    /// link.
    ///
    /// # Safety
    ///
    /// The caller owns the cell, which is free.
    pub(crate) unsafe fn overwrite_link(&self, cell: NonNull<u8>) {
        if self.poison {
            // SAFETY: rule *owner*: a cell is at least one granule long.
            unsafe { cell.write_bytes(POISON, size_of::<u32>()) };
        }
    }

    pub(crate) fn add_figures(&self, stats: &mut StressStats) {
        stats.poisoned = self.poisoned.load(Ordering::Relaxed);
        stats.checked = self.checked.load(Ordering::Relaxed);
        // A thread that is not attached may ask, so a fork must wait for it.
        let _held = SettingsHold::new();
        stats.quarantined = self.entries.lock().cells.len();
    }
}

#[cold]
pub(crate) fn freed_twice(address: usize) -> ! {
    panic!(
        "the memory at {address:#x} is freed twice. Memory is freed once, when the count of its \
         object is 0: rule 2 of `ObjectModel`"
    )
}

/// Whether all bytes of a cell are poison.
///
/// # Safety
///
/// The memory is accessible.
unsafe fn is_poison(cell: Cell) -> bool {
    let words = cell.start().cast::<u64>();
    // SAFETY: as the caller says. Cells are whole granules at addresses of granules.
    let read = |at| unsafe { words.add(at).read_volatile() };
    (0..cell.room().bytes() / size_of::<u64>())
        .all(|at| read(at) == u64::from_ne_bytes([POISON; 8]))
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
