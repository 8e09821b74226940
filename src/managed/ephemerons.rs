//! The tables with weak keys of a heap, for the collector and for dying keys.
//!
//! The collector asks for all entries in a stop, so each table is in a list of its heap from its
//! birth to its destructor. Each entry is also in the [record](crate::object::weak) of its key,
//! because the entry goes when the key dies:
//!
//! * A key that dies by its count: the thread that destroys it removes the entries.
//! * A key that a collection finds: the stop that empties its record takes the entries out of the
//!   record, and before the collection clears its garbage, with the world running, it removes them
//!   from the tables. So the values lose these references before they are cleared.
//!
//! A table that another thread has locked, or this one, remembers that it has dead entries.

use std::collections::HashMap;
use std::ptr::NonNull;

use crate::base::fallible::NoMemory;
use crate::base::outside;
use crate::base::shared::Shared;
use crate::base::sync::Mutex;
use crate::heap::parts::{Ephemeron, Ephemerons};
use crate::heap::world::World;
use crate::managed::parts::{Managed, Raw};
use crate::managed::release::HeldRef;
use crate::memory::address_map::Index;
use crate::object::address::Object;
use crate::object::counted::object;
use crate::object::header::Header;
use crate::object::tracer::Tracer;
use crate::object::weak::{WeakEntry, WeakRecord};
use crate::report::error::OutOfMemory;
use crate::report::facts::During;

/// Calls a function with the key of each entry of a table, and with a tracer that has the edges of
/// its value. In a stop; the header is that of the table. An edge without memory is missing, which
/// the tracer remembers.
pub(crate) type EachEntry =
    unsafe fn(NonNull<Header>, &mut Tracer, &mut dyn FnMut(NonNull<Header>, &[usize]));

#[derive(Clone, Copy, Debug)]
struct Table {
    header: NonNull<Header>,
    each: EachEntry,
}

// SAFETY: rule *guarded*: a bare address, used in a stop, in which the table is alive.
unsafe impl Send for Table {}

/// The tables of a heap.
#[derive(Default)]
pub(crate) struct WeakTables {
    /// By the addresses of their values. Attached threads lock it, and the end of the heap does.
    tables: Mutex<HashMap<usize, Table>>,
    /// The records of keys that a stop has found to be garbage, in a list without memory of its
    /// own, because a stop may have none. Only the thread with the collector lock uses it.
    orphans: Mutex<Option<Shared<WeakRecord>>>,
}

impl Drop for WeakTables {
    /// In a loop, although the list is empty unless a panic has ended a collection.
    fn drop(&mut self) {
        self.take_orphans().for_each(drop);
    }
}

impl std::fmt::Debug for WeakTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakTables").finish_non_exhaustive()
    }
}

impl WeakTables {
    /// Adds a table, by the address of its value.
    ///
    /// # Safety
    ///
    /// `each` fits the object at `header`, which calls [`remove`](Self::remove) before it dies.
    pub(crate) unsafe fn add(
        &self,
        address: usize,
        header: NonNull<Header>,
        each: EachEntry,
    ) -> Result<(), NoMemory> {
        let mut tables = self.tables.lock();
        tables.try_reserve(1)?;
        tables.insert(address, Table { header, each });
        Ok(())
    }

    pub(crate) fn remove(&self, address: usize) {
        self.tables.lock().remove(&address);
    }

    /// In a stop: the key with this record, and with entries, is garbage.
    pub(super) fn orphan(&self, record: Option<Shared<WeakRecord>>) {
        if let Some(record) = record {
            let mut first = self.orphans.lock();
            record.precede(first.take());
            *first = Some(record);
        }
    }

    /// The records of such keys, and the entries.
    fn take_orphans(&self) -> impl Iterator<Item = (Shared<WeakRecord>, Vec<WeakEntry>)> {
        let mut next = self.orphans.lock().take();
        std::iter::from_fn(move || {
            let record = next.take()?;
            let (entries, rest) = record.take_entries();
            next = rest;
            Some((record, entries))
        })
    }
}

impl Ephemerons<Managed> for Managed {
    fn ephemerons(
        model: &Self,
        world: &World<'_, Self>,
        report: &mut dyn FnMut(Ephemeron),
    ) -> Result<(), OutOfMemory> {
        let tables = model.tables.tables.lock();
        if tables.is_empty() {
            return Ok(());
        }
        let space = &world.core().space;
        let (base, len) = space.bounds();
        let mut tracer = Tracer::for_collection(base, len);
        for &Table { header, each } in tables.values() {
            let table = object(header);
            let mut entry = |key: NonNull<Header>, values: &[usize]| {
                for &value in values {
                    report(Ephemeron {
                        table,
                        key: object(key),
                        value: Object::new(space.origin().target(value)),
                    });
                }
            };
            // SAFETY: rule *stopped*: the table is alive, because its destructor removes it here.
            unsafe { each(header, &mut tracer, &mut entry) };
        }
        Ok(tracer.lost_nothing()?)
    }
}

/// Removes the entries that a stop has found, with the world running.
pub(super) fn remove_orphans(m: &Raw) {
    for (record, entries) in m.model().tables.take_orphans() {
        remove_entries(m, &record, entries);
    }
}

/// Removes the entries of a key whose record is empty. A destructor that panics is reported.
pub(super) fn remove_entries(m: &Raw, record: &WeakRecord, entries: Vec<WeakEntry>) {
    for WeakEntry { table, remove } in entries {
        let Some(table) = table.upgrade(m.id()) else { continue };
        // SAFETY: rule *counted*: the upgrade made the reference.
        let _held = unsafe { HeldRef::new(table) };
        let _lent = m.lend();
        // SAFETY: rule *typed*: the table has made the entry; its address stands for a mutator.
        let removed = outside::guarded(|| unsafe {
            remove(table, std::ptr::from_ref(m).cast(), record);
        });
        if let Err(payload) = removed {
            let text = outside::panic_message(payload);
            m.core().hooks.unraisable(During::Drop, "GcWeakMap", text);
        }
    }
}
