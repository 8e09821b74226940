//! An upgrade reads the count of a target that may be dying on another thread, so the two must
//! exclude each other. Only objects with weak references may pay for that, so all weak references
//! to such an object share one *record*. It lies outside of the heap, because weak references may
//! outlive the object. Each address of the heap has a *place* for the record of the object there.
//! The record's lock decides between an upgrade and the death of the target. The path to zero takes
//! the lock before the memory is freed, and an upgrade holds it to read the target.
//!
//! | field | access |
//! |---|---|
//! | `WEAK` flag of the header | set before the record is in its place; see `header` |
//! | the place | filled by an attached thread with a reference to the target; emptied (1) |
//! | `target` | set at birth, emptied (1); read under the lock, and without it to prune watchers |
//! | `DYING` of a dynamic target's state | set under the lock by the thread that destroys it |
//! | `watchers`, `entries`, `guards` | added under the lock by attached threads, taken (1) |
//! | `watched` | changed with these two; read in a stop, or with the target's death |
//!
//! * (1) By the thread that destroys the target, or at the end of the heap, under the lock. In a
//!   stop without the lock, if the target is unreachable, because no upgrade is under way then.
//! * Only a thread that is attached to the target's heap uses the target. It does so under the
//!   lock, which it does not hold at a safepoint, so that in a stop no upgrade is under way. A
//!   mutator of another heap can take the lock at any time, and only compares the address.
//! * A thread that fills a place, or takes a record from it, has a reference to the target. So the
//!   target does not die meanwhile, no stop finds it unreachable, and the place is not emptied.
//!   When two such threads meet, an exchange decides which record stays.
//! * Because the flag is set before the record is in its place, the last drop cannot miss the
//!   record.
//! * Because a dealloc handler may count its object up and down,
//!   [`block_upgrades`](WeakRecord::block_upgrades) holds the lock while `DYING` is set, and an
//!   upgrade tests `DYING` under the lock.
//! * The lock is never held over a call of foreign code, because such code may upgrade a weak
//!   reference.
//!
//! # Places
//!
//! The places are the leaves of a tree, in which the digits of an address lead to its place:
//!
//! ```text
//!  address:  | not used | root | upper | lower | block | byte in the granule |
//!  bits:                   9      9       9       5      5
//! ```
//!
//! * A lookup takes no lock, because a node is made when the first weak reference needs it, and
//!   stays until the heap ends.
//! * A heap's range is at most 2³⁷ bytes long, so that two granules of a heap never have the same
//!   digits, wherever the range begins.
//! * A heap without weak references has no nodes, so that it pays nothing. A block has 256 bytes,
//!   for 1 KiB of the heap, and a lower node 4 KiB, for 512 KiB.

use std::fmt;
use std::ptr::NonNull;

use crate::base::fallible::{self, NoMemory};
use crate::base::shared::{OnceBox, Shared, SharedSlot};
use crate::base::sync::{AtomicBool, AtomicPtr, Mutex, MutexGuard, Ordering};
use crate::object::header::Header;

/// The address of a header, in the queue of the object's owner. It is not a reference, and stays
/// valid because a queued object is not freed before it leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderPtr(pub(crate) NonNull<Header>);

// SAFETY: rule *guarded*: a bare address. It is dereferenced only under the record's lock.
unsafe impl Send for HeaderPtr {}
// SAFETY: as above.
unsafe impl Sync for HeaderPtr {}

/// A weak reference with a callback, in the record of its target.
#[derive(Clone)]
pub(crate) struct WeakWatcher {
    /// The record of the weak reference itself, which is an object too.
    pub(crate) weak_ref: Shared<WeakRecord>,
    /// Shared with the weak reference, so that it does not lead to the target once this is set.
    pub(crate) cleared: Shared<AtomicBool>,
    /// Calls the callback with the weak reference's header and the mutator.
    pub(crate) invoke: unsafe fn(NonNull<Header>, *const ()),
}

/// Gets an object instead of its death.
pub(crate) trait Guard: Send {
    /// The object at the header is garbage, or its last reference is gone. The caller, whose
    /// mutator is the second argument, keeps it alive meanwhile.
    fn hand_over(self: Box<Self>, object: NonNull<Header>, m: *const ());
}

/// An entry of a table with weak keys, in the record of its key.
#[derive(Clone)]
pub(crate) struct WeakEntry {
    /// The record of the table, which is an object.
    pub(crate) table: Shared<WeakRecord>,
    /// Removes the entry from the table, of which it gets the header, for a mutator. The entry's
    /// name there is the address of the key's record.
    pub(crate) remove: unsafe fn(NonNull<Header>, *const (), *const WeakRecord),
}

/// What all weak references to one object share.
pub(crate) struct WeakRecord {
    /// Null if the target is dead, or not yet born.
    target: AtomicPtr<Header>,
    watchers: Mutex<Option<Box<Watchers>>>,
    /// Whether there are watchers.
    watched: AtomicBool,
}

/// Memory for one more watcher of a record, which is locked meanwhile.
pub(crate) struct WatcherRoom<'a> {
    record: &'a WeakRecord,
    watchers: MutexGuard<'a, Option<Box<Watchers>>>,
}

impl WatcherRoom<'_> {
    pub(crate) fn add(mut self, watcher: WeakWatcher) {
        let watchers = self.watchers.as_mut().expect("`room_for_watcher` made the list");
        watchers.list.push(watcher);
        // Relaxed: a stop reads it, and this thread is attached.
        self.record.watched.store(true, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Watchers {
    list: Vec<WeakWatcher>,
    /// The number of watchers after the last pruning. The list is pruned again when it has doubled,
    /// so that dead watchers do not pile up.
    pruned: usize,
    /// The entries of tables that have the target as a key. Like a weak reference without a
    /// callback, they outlast the finalizers of a collection.
    entries: Vec<WeakEntry>,
    /// As `pruned`, for the entries of tables that have died.
    pruned_entries: usize,
    /// Who gets the target when it is garbage.
    guards: Vec<Box<dyn Guard>>,
    /// The next record of a list, which needs no memory: see [`WeakRecord::precede`].
    next: Option<Shared<WeakRecord>>,
}

/// The last words of a record: who has to learn of its target's death.
#[derive(Default)]
pub(crate) struct Bereaved {
    pub(crate) watchers: Vec<WeakWatcher>,
    pub(crate) entries: Vec<WeakEntry>,
}

impl fmt::Debug for WeakRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakRecord").finish_non_exhaustive()
    }
}

impl WeakRecord {
    /// A record without a target, for an object that is still being made.
    pub(crate) fn without_target() -> Result<Shared<Self>, NoMemory> {
        Shared::new(Self::of(std::ptr::null_mut()))
    }

    fn of(target: *mut Header) -> Self {
        Self {
            target: AtomicPtr::new(target),
            watchers: Mutex::new(None),
            watched: AtomicBool::new(false),
        }
    }

    /// Calls `f` with the target while it cannot die, for a caller that is attached to the target's
    /// heap. `None`: it is dead, or not yet born.
    pub(crate) fn with_target<R>(&self, f: impl FnOnce(&Header) -> R) -> Option<R> {
        self.with_own_target(|_| true, f)
    }

    /// The same, for a caller that is attached to any heap: `f` is only called if `is_own` says
    /// that the address lies in that heap.
    pub(crate) fn with_own_target<R>(
        &self,
        is_own: impl FnOnce(NonNull<Header>) -> bool,
        f: impl FnOnce(&Header) -> R,
    ) -> Option<R> {
        let _alive = self.watchers.lock();
        // Relaxed: under the lock.
        let target = NonNull::new(self.target.load(Ordering::Relaxed))?;
        // SAFETY: rules *guarded* and *counted*: while `target` is set and the lock is held, the
        // object's memory is not freed. The thread that frees it empties `target` first, under the
        // lock. Or a stop has emptied it, and then this thread was at a safepoint.
        is_own(target).then(|| f(unsafe { target.as_ref() }))
    }

    /// Blocks upgrades until the guard is dropped.
    pub(crate) fn block_upgrades(&self) -> impl Sized + '_ {
        self.watchers.lock()
    }

    /// Adds a reference to the target for the thread `current`, if the target is alive.
    pub(crate) fn upgrade(&self, current: u64) -> Option<NonNull<Header>> {
        self.with_target(|header| header.try_upgrade(current).then(|| NonNull::from(header)))
            .flatten()
    }

    /// Memory for one more watcher. Whenever the number of watchers has doubled, this removes the
    /// dead ones. The record stays locked until a watcher is added or the room is dropped, so that
    /// the room is not taken by others.
    pub(crate) fn room_for_watcher(&self) -> Result<WatcherRoom<'_>, NoMemory> {
        let mut watchers = self.watchers.lock();
        let Watchers { list, pruned, .. } = match &mut *watchers {
            Some(watchers) => &mut **watchers,
            none => none.insert(fallible::boxed(Watchers::default())?),
        };
        if list.len() > 2 * *pruned + 8 {
            // Relaxed, because a watcher that dies meanwhile is pruned the next time.
            list.retain(|w| !w.weak_ref.target.load(Ordering::Relaxed).is_null());
            *pruned = list.len();
        }
        list.try_reserve(1)?;
        Ok(WatcherRoom { record: self, watchers })
    }

    /// Adds the entry of a table to the record of its key, which is alive. Entries of tables that
    /// have died are removed as dead watchers are.
    pub(crate) fn add_entry(&self, entry: WeakEntry) -> Result<(), NoMemory> {
        let mut watchers = self.watchers.lock();
        let Watchers { entries, pruned_entries, .. } = match &mut *watchers {
            Some(watchers) => &mut **watchers,
            none => none.insert(fallible::boxed(Watchers::default())?),
        };
        if entries.len() > 2 * *pruned_entries + 8 {
            // Relaxed: as in `room_for_watcher`.
            entries.retain(|it| !it.table.target.load(Ordering::Relaxed).is_null());
            *pruned_entries = entries.len();
        }
        fallible::push(entries, entry)?;
        // Relaxed: as in `WatcherRoom::add`.
        self.watched.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a guard of the target, which is alive.
    pub(crate) fn add_guard(&self, guard: Box<dyn Guard>) -> Result<(), NoMemory> {
        let mut watchers = self.watchers.lock();
        let guards = match &mut *watchers {
            Some(watchers) => &mut watchers.guards,
            none => &mut none.insert(fallible::boxed(Watchers::default())?).guards,
        };
        // Without memory, the guard must not be dropped under the lock.
        guards.try_reserve(1)?;
        guards.push(guard);
        // Relaxed: as in `WatcherRoom::add`.
        self.watched.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the target has guards.
    pub(crate) fn is_guarded(&self) -> bool {
        self.is_watched() && self.watchers.lock().as_ref().is_some_and(|it| !it.guards.is_empty())
    }

    /// Removes the guards of the target.
    pub(crate) fn take_guards(&self) -> Vec<Box<dyn Guard>> {
        self.watchers.lock().as_mut().map_or_else(Vec::new, |it| std::mem::take(&mut it.guards))
    }

    /// Removes the entry of a table.
    pub(crate) fn remove_entry(&self, table: &WeakRecord) {
        let mut watchers = self.watchers.lock();
        let Some(watchers) = &mut *watchers else { return };
        if let Some(at) = watchers.entries.iter().position(|it| std::ptr::eq(&*it.table, table)) {
            watchers.entries.swap_remove(at);
        }
    }

    /// Puts the record, which has entries, before another one into a list.
    pub(crate) fn precede(&self, next: Option<Shared<Self>>) {
        if let Some(watchers) = &mut *self.watchers.lock() {
            watchers.next = next;
        }
    }

    /// Removes the entries, and the record from its list.
    pub(crate) fn take_entries(&self) -> (Vec<WeakEntry>, Option<Shared<Self>>) {
        let held = self.watchers.lock().take();
        held.map_or_else(Default::default, |held| (held.entries, held.next))
    }

    /// The target; `None`: it is dead, or not yet born. Outside of a stop it may die at once.
    pub(crate) fn target(&self) -> Option<NonNull<Header>> {
        // Relaxed: in a stop, or a hint.
        NonNull::new(self.target.load(Ordering::Relaxed))
    }

    /// Whether the target is dead, or not yet born.
    pub(crate) fn is_empty(&self) -> bool {
        self.target().is_none()
    }

    /// The number of watchers. In a stop.
    pub(crate) fn watchers(&self) -> usize {
        if !self.is_watched() {
            return 0;
        }
        self.watchers.lock().as_ref().map_or(0, |watchers| watchers.list.len())
    }

    /// Whether there are watchers. In a stop, or with the target's death.
    #[inline(always)]
    fn is_watched(&self) -> bool {
        // Relaxed, because a thread that adds a watcher has a reference to the target: the stop, or
        // the last drop, orders it.
        self.watched.load(Ordering::Relaxed)
    }

    /// Removes the watchers and marks their weak references as cleared. In a stop, or with the
    /// target's death.
    #[inline(always)]
    pub(crate) fn take_watchers(&self) -> Vec<WeakWatcher> {
        if self.is_watched() { self.take_all_watchers() } else { Vec::new() }
    }

    #[cold]
    fn take_all_watchers(&self) -> Vec<WeakWatcher> {
        let mut held = self.watchers.lock();
        let watchers = held.as_mut().map_or_else(Vec::new, |held| std::mem::take(&mut held.list));
        let has_others =
            held.as_ref().is_some_and(|it| !(it.entries.is_empty() && it.guards.is_empty()));
        self.watched.store(has_others, Ordering::Relaxed);
        drop(held);
        for watcher in &watchers {
            // Release, so that a thread that sees the flag sees all that happened before, although
            // the library itself reads nothing through it.
            watcher.cleared.store(true, Ordering::Release);
        }
        watchers
    }

    /// Empties the record, and returns who has to learn of it.
    fn die(&self) -> Bereaved {
        let no_upgrade = self.block_upgrades();
        self.clear();
        drop(no_upgrade);
        self.take_bereaved()
    }

    /// Removes the watchers, as [`take_watchers`](Self::take_watchers), and the entries.
    fn take_bereaved(&self) -> Bereaved {
        if !self.is_watched() {
            return Bereaved::default();
        }
        let watchers = self.take_all_watchers();
        self.watched.store(false, Ordering::Relaxed);
        // Unlocked before the guards are dropped, whose destructors are code of the program. They
        // are left at the end of the heap, and if a destructor has registered the dying object.
        let held = self.watchers.lock().take();
        let entries = held.map_or_else(Vec::new, |held| held.entries);
        Bereaved { watchers, entries }
    }

    /// Empties the record, so that upgrades fail from now on. The caller has the lock, or stops the
    /// world.
    fn clear(&self) {
        // Relaxed, because the lock, or the stop, orders it.
        self.target.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The place for the record of an object that was still being made. See [`WeakTable::place`].
pub(crate) struct WeakPlace<'a>(&'a SharedSlot<WeakRecord>);

impl WeakPlace<'_> {
    /// Gives a record without a target its target: the object at the address of the place, to which
    /// the caller holds the first reference.
    pub(crate) fn set_target(self, record: &Shared<WeakRecord>, header: &Header) {
        header.set_weak();
        // SAFETY: rule *counted*: the caller's reference.
        let other = unsafe { self.0.fill(record.clone()) };
        debug_assert!(other.is_none(), "the target has a record");
        let _no_upgrade = record.watchers.lock();
        // Relaxed: under the lock.
        record.target.store(NonNull::from(header).as_ptr(), Ordering::Relaxed);
    }
}

/// A heap's weak records by the address of the target.
#[derive(Default)]
pub(crate) struct WeakTable {
    records: Places<SharedSlot<WeakRecord>>,
}

impl fmt::Debug for WeakTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTable").finish_non_exhaustive()
    }
}

impl WeakTable {
    /// The record of a live object to which the caller holds a reference.
    pub(crate) fn record(&self, header: &Header) -> Result<Shared<WeakRecord>, NoMemory> {
        let place = self.records.get_or_make(std::ptr::from_ref(header) as usize)?;
        // SAFETY: rule *counted*: the caller's reference, for both calls: see the module's page.
        if let Some(known) = unsafe { place.share() } {
            return Ok(known);
        }
        let record = WeakRecord::of(NonNull::from(header).as_ptr());
        let [ours, placed] = Shared::pair(record)?;
        header.set_weak();
        // SAFETY: as above.
        Ok(unsafe { place.fill(placed) }.unwrap_or(ours))
    }

    /// The place of an object that is still being made at this address.
    pub(crate) fn place(&self, unborn: NonNull<Header>) -> Result<WeakPlace<'_>, NoMemory> {
        self.records.get_or_make(unborn.as_ptr() as usize).map(WeakPlace)
    }

    /// The record of an object, if it has one. The caller has the last reference, or destroys the
    /// object, or stops the world.
    pub(crate) fn get(&self, header: NonNull<Header>) -> Option<&WeakRecord> {
        let place = self.records.get(header.as_ptr() as usize)?;
        // SAFETY: rules *zero* and *stopped*: only this thread empties the place.
        unsafe { place.get() }
    }

    /// Whether weak references to an object exist. The caller has the last reference.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    pub(crate) fn has_references(&self, header: &Header) -> bool {
        let place = self.records.get(std::ptr::from_ref(header) as usize);
        // SAFETY: rule *zero*: only a thread with a reference to the object uses the place.
        header.has_weak() && place.is_some_and(|place| unsafe { place.is_shared() })
    }

    /// Empties the record of an object that is dying on this thread, and removes it from its place.
    /// Returns it, with those who have to learn of it.
    pub(crate) fn remove(&self, dying: NonNull<Header>) -> Option<(Shared<WeakRecord>, Bereaved)> {
        let record = self.take(dying)?;
        let bereaved = record.die();
        Some((record, bereaved))
    }

    /// In a stop, empties the record of an unreachable object, and removes it from its place. If
    /// the object survives, new weak references get a new record. Returns the record if it has
    /// entries, which have the object as their key.
    pub(crate) fn clear(&self, unreachable: NonNull<Header>) -> Option<Shared<WeakRecord>> {
        let record = self.take(unreachable)?;
        record.clear();
        drop(record.take_watchers());
        let has_entries = record.is_watched()
            && record.watchers.lock().as_ref().is_some_and(|it| !it.entries.is_empty());
        has_entries.then_some(record)
    }

    /// The record of a live object to which the caller holds a reference, if it has one.
    pub(crate) fn known(&self, header: &Header) -> Option<Shared<WeakRecord>> {
        let place = self.records.get(std::ptr::from_ref(header) as usize)?;
        // SAFETY: rule *counted*: the caller's reference, as in `record`.
        unsafe { place.share() }
    }

    /// Empties all records, when the heap has ended.
    pub(crate) fn close(&self) {
        self.records.for_each(&mut |place| {
            // SAFETY: rule *zero*: the heap has no mutator, so no thread changes the place.
            if let Some(record) = unsafe { place.get() } {
                drop(record.die());
            }
        });
    }

    fn take(&self, header: NonNull<Header>) -> Option<Shared<WeakRecord>> {
        let place = self.records.get(header.as_ptr() as usize)?;
        // SAFETY: rules *zero* and *stopped*: as in `get`.
        unsafe { place.take() }
    }
}

/// Two objects are at least this far apart, because it is the granule of the heap's memory.
pub(crate) const SPACING: usize = 32;
/// The digits of an address, in bits: the block's is the first.
const BLOCK_BITS: u32 = if SMALL { 2 } else { 5 };
const LOWER_BITS: u32 = if SMALL { 2 } else { 9 };
const UPPER_BITS: u32 = if SMALL { 2 } else { 9 };
const ROOT_BITS: u32 = if SMALL { 3 } else { 9 };
/// Nodes are small under loom, because a heap has few pages there, and each element costs time.
const SMALL: bool = cfg!(any(all(test, loom), standstill_loom));

/// An array of places or of pointers to other nodes.
struct Node<T, const N: usize>([T; N]);

impl<T: Default, const N: usize> Default for Node<T, N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

type Block<T> = Node<T, { 1 << BLOCK_BITS }>;
type Lower<T> = Node<OnceBox<Block<T>>, { 1 << LOWER_BITS }>;
type Upper<T> = Node<OnceBox<Lower<T>>, { 1 << UPPER_BITS }>;
type Root<T> = Node<OnceBox<Upper<T>>, { 1 << ROOT_BITS }>;

/// A place of type `T` for each granule of a heap's range, made on first use.
pub(super) struct Places<T>(OnceBox<Root<T>>);

impl<T: Default> Places<T> {
    /// The place of an address; `None`: it was not made yet.
    #[inline(always)]
    pub(super) fn get(&self, address: usize) -> Option<&T> {
        let [block, lower, upper, root] = digits(address);
        Some(&self.0.get()?.0[root].get()?.0[upper].get()?.0[lower].get()?.0[block])
    }

    /// The place of an address.
    pub(super) fn get_or_make(&self, address: usize) -> Result<&T, NoMemory> {
        let [block, lower, upper, root] = digits(address);
        let uppers = self.0.get_or_default()?.0[root].get_or_default()?;
        let blocks = uppers.0[upper].get_or_default()?;
        Ok(&blocks.0[lower].get_or_default()?.0[block])
    }
}

impl<T> Places<T> {
    /// Calls `f` with each place that was made.
    pub(super) fn for_each(&self, f: &mut impl FnMut(&T)) {
        fn below<T>(nodes: &[OnceBox<T>]) -> impl Iterator<Item = &T> {
            nodes.iter().filter_map(OnceBox::get)
        }
        let uppers = self.0.get().into_iter().flat_map(|root| below(&root.0));
        let lowers = uppers.flat_map(|upper| below(&upper.0));
        lowers.flat_map(|lower| below(&lower.0)).flat_map(|block| &block.0).for_each(f);
    }
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self(OnceBox::default())
    }
}

/// The digits of an address, from the block's on.
#[inline(always)]
fn digits(address: usize) -> [usize; 4] {
    let mut rest = address / SPACING;
    [BLOCK_BITS, LOWER_BITS, UPPER_BITS, ROOT_BITS].map(|bits| {
        let digit = rest & ((1 << bits) - 1);
        rest >>= bits;
        digit
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
