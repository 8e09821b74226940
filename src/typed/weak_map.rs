//! A table from objects to values that keeps neither alive: a value may refer to its key, and dies
//! with it. An interpreter needs it for weak-key tables and private data, a debugger for notes on
//! objects of others.
//!
//! The references of a table to its values are *ephemerons*, which the collector treats by
//! [rules](crate::model::Ephemerons) of their own. So the traversal of a table reports nothing, and
//! the heap asks each table for its entries instead. A table must therefore be an object, with an
//! address, and is made as one ([`GcWeakMap::new`]).
//!
//! An entry is named by the [record](crate::object::weak) of its key, which is never another key's
//! while the entry exists, as an address could be. The record knows the table, so that the entry
//! goes when the key dies.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::fallible::NoMemory;
use crate::base::shared::Shared;
use crate::base::sync::{AtomicBool, Ordering};
use crate::managed::ephemerons::WeakTables;
use crate::object::header::Header;
use crate::object::tracer::Tracer;
use crate::object::weak::{WeakEntry, WeakRecord};
use crate::report::error::{AllocError, OutOfMemory};
use crate::typed::any::AnyGc;
use crate::typed::cell::GcCell;
use crate::typed::gc::{Gc, Layout, check, out_of_memory};
use crate::typed::mutator::mutator;
use crate::typed::slice::GcSlice;
use crate::typed::text::GcStr;
use crate::typed::weak::{HeaderAddress, upgrade};
use crate::{Mutator, Trace};

/// A handle that can be a key of a [`GcWeakMap`]: [`Gc`], [`AnyGc`], [`GcSlice`] or [`GcStr`]. No
/// other crate implements it.
pub trait WeakKey: Trace {
    #[doc(hidden)]
    fn address(&self) -> HeaderAddress;

    /// Takes over a counted reference to an object that was a key of this type.
    #[doc(hidden)]
    unsafe fn from_address(address: HeaderAddress) -> Self;
}

macro_rules! weak_keys {
    ($([$($params:tt)*] $handle:ty, $this:ident => $header:expr, $from:expr;)*) => {$(
        impl<$($params)*> WeakKey for $handle {
            #[inline]
            fn address(&self) -> HeaderAddress {
                let $this = self;
                HeaderAddress($header)
            }

            #[inline]
            unsafe fn from_address(address: HeaderAddress) -> Self {
                // SAFETY: rules *counted* and *typed*: as the caller says.
                unsafe { $from(address.0) }
            }
        }
    )*};
}

weak_keys! {
    [T: Trace] Gc<T>, this => this.header(), Gc::from_header;
    [] AnyGc, this => this.header(), AnyGc::from_header;
    [H: Trace, T: Trace] GcSlice<H, T>, this => GcSlice::address(this), GcSlice::from_header;
    [H: Trace] GcStr<H>, this => GcSlice::address(this.as_slice()), GcStr::from_header;
}

/// A table with weak keys, by the identity of the key objects. An entry keeps its value alive only
/// while the table and the key are alive, also if the value refers to the key. `K` is the type of a
/// handle, for example `Gc<Node>` or [`AnyGc`].
///
/// The entry goes, and its value is dropped, when the key is destroyed, or when a full collection
/// finds the key to be garbage, after the finalizers. A young collection keeps the values of all
/// entries, and thereby keys to which these refer. A key that is not [tracked](Trace::TRACKED),
/// such as a string, counts as alive while anything refers to it, also a value of the table.
///
/// A table is locked while one of its methods runs, and the methods have the panics of
/// [`GcCell::lock`]. All drop what they replace or remove after the table is unlocked. A method
/// that gets a key panics if it belongs to another heap than the mutator.
///
/// ```
/// use standstill::{Gc, GcCell, GcWeakMap, Heap, Trace};
///
/// #[derive(Trace)]
/// struct Node(u32);
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let notes: Gc<GcWeakMap<Gc<Node>, Vec<Gc<Node>>>> = GcWeakMap::new(&m);
/// let node = m.alloc(Node(1));
/// // The value refers to its key.
/// notes.insert(&m, &node, vec![node.clone()]);
/// assert_eq!(notes.get(&m, &node).map(|value| value[0].0), Some(1));
/// drop(node);
/// m.collect();
/// assert_eq!((notes.len(&m), heap.stats().live_objects), (0, 1));
/// ```
pub struct GcWeakMap<K, V: Trace> {
    entries: GcCell<WeakKeyed<V>>,
    /// An entry could not be removed when its key died, because the table was locked.
    has_dead: AtomicBool,
    /// The table's own record, for those of its keys.
    own: Shared<WeakRecord>,
    tables: Arc<WeakTables>,
    /// Keys go in and come out, so a table of a subtype is no table of its supertype.
    keys: PhantomData<fn(K) -> K>,
}

/// A set of objects that keeps none of them alive: see [`GcWeakMap`].
pub type GcWeakSet<K> = GcWeakMap<K, ()>;

struct WeakKeyed<V> {
    /// By the addresses of the records.
    map: HashMap<usize, WeakValue<V>>,
    /// The number of entries after the last pruning, as of a list of watchers.
    pruned: usize,
}

struct WeakValue<V> {
    key: Shared<WeakRecord>,
    value: V,
}

impl<V> Default for WeakKeyed<V> {
    fn default() -> Self {
        Self { map: HashMap::new(), pruned: 0 }
    }
}

impl<V> WeakKeyed<V> {
    /// Takes the entries out whose keys are dead. Without memory, they stay until the table has
    /// grown.
    fn take_dead(&mut self) -> Vec<WeakValue<V>> {
        let (mut dead, is_dead) = (Vec::new(), |entry: &WeakValue<V>| entry.key.is_empty());
        // More keys may die meanwhile.
        let mut left = self.map.values().filter(|entry| is_dead(entry)).count();
        if dead.try_reserve_exact(left).is_ok() {
            let taken = self.map.extract_if(|_, entry| {
                let takes = left > 0 && is_dead(entry);
                left -= usize::from(takes);
                takes
            });
            dead.extend(taken.map(|(_, entry)| entry));
        }
        self.pruned = self.map.len();
        dead
    }
}

/// The entries are no part of the traversal. The bytes are those of the table, without what the
/// values own, because they are counted at each lock.
impl<V: Trace> Trace for WeakKeyed<V> {
    const HAS_EXTERNAL_BYTES: bool = true;

    fn external_bytes(this: &mut Self) -> usize {
        this.map.capacity() * (size_of::<(usize, WeakValue<V>)>() + 1)
    }

    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl<K: WeakKey, V: Trace + Send + Sync> GcWeakMap<K, V> {
    /// Allocates an empty table.
    ///
    /// # Panics
    ///
    /// If the heap is full, or memory is refused. [`try_new`](Self::try_new) returns an error
    /// instead.
    #[track_caller]
    #[allow(clippy::new_ret_no_self, reason = "a table is an object")]
    pub fn new(m: &Mutator) -> Gc<Self> {
        Self::try_new(m).unwrap_or_else(|reason| Self::refused(reason))
    }

    /// Allocates an empty table.
    ///
    /// # Errors
    ///
    /// If the heap is full, or memory is refused.
    pub fn try_new(m: &Mutator) -> Result<Gc<Self>, OutOfMemory> {
        let tables = Arc::clone(&m.raw().model().tables);
        let table = Gc::try_new_cyclic(m, |weak| Self {
            entries: GcCell::new(WeakKeyed::default()),
            has_dead: AtomicBool::new(false),
            own: weak.shared_record(),
            tables: Arc::clone(&tables),
            keys: PhantomData,
        });
        let table = table.map_err(|error| error.reason())?;
        // SAFETY: rule *typed*: the function gets this object. The drop removes the table.
        unsafe { tables.add(Gc::as_ptr(&table) as usize, table.header(), Self::each)? };
        Ok(table)
    }

    /// A copy of the value of a key.
    #[track_caller]
    pub fn get(&self, m: &Mutator, key: &K) -> Option<V>
    where
        V: Clone,
    {
        self.with(m, key, V::clone)
    }

    /// The result of `f` for the value of a key. The table is locked while `f` runs.
    #[track_caller]
    pub fn with<R>(&self, m: &Mutator, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let record = Self::known(m, key);
        self.locked(m, |entries| {
            let entry = entries.map.get(&name(&*record?))?;
            Some(f(&entry.value))
        })
    }

    /// Whether the table has an entry for a key.
    #[track_caller]
    pub fn contains(&self, m: &Mutator, key: &K) -> bool {
        self.with(m, key, |_| ()).is_some()
    }

    /// Sets the value of a key, and returns the old one.
    ///
    /// # Panics
    ///
    /// If memory is refused. [`try_insert`](Self::try_insert) returns an error instead.
    #[track_caller]
    pub fn insert(&self, m: &Mutator, key: &K, value: V) -> Option<V> {
        match self.try_insert(m, key, value) {
            Ok(old) => old,
            Err(error) => out_of_memory(error),
        }
    }

    /// Sets the value of a key, and returns the old one.
    ///
    /// # Errors
    ///
    /// If memory is refused. The error contains the value, and the table is unchanged.
    #[track_caller]
    pub fn try_insert(&self, m: &Mutator, key: &K, value: V) -> Result<Option<V>, AllocError<V>> {
        let HeaderAddress(key) = key.address();
        check(key, m);
        // SAFETY: rule *counted*: the caller's handle keeps the key alive.
        let record = match m.raw().model().weak.record(unsafe { key.as_ref() }) {
            Ok(record) => record,
            Err(reason) => return Err(AllocError::new(value, reason)),
        };
        let mut value = Some(value);
        let old = self.locked(m, |entries| {
            let name = name(&record);
            if let Some(entry) = entries.map.get_mut(&name) {
                return Ok(value.take().map(|value| std::mem::replace(&mut entry.value, value)));
            }
            entries.map.try_reserve(1).map_err(NoMemory::from)?;
            record.add_entry(WeakEntry { table: self.own.clone(), remove: Self::remove_dead })?;
            if let Some(value) = value.take() {
                entries.map.insert(name, WeakValue { key: record, value });
            }
            Ok::<_, NoMemory>(None)
        });
        match (old, value) {
            (Err(reason), Some(value)) => Err(AllocError::new(value, reason)),
            (old, _) => Ok(old.ok().flatten()),
        }
    }

    /// Removes the entry of a key, and returns its value.
    #[track_caller]
    pub fn remove(&self, m: &Mutator, key: &K) -> Option<V> {
        let record = Self::known(m, key)?;
        let entry = self.locked(m, |entries| entries.map.remove(&name(&record)))?;
        record.remove_entry(&self.own);
        Some(entry.value)
    }

    /// Removes all entries.
    #[track_caller]
    pub fn remove_all(&self, m: &Mutator) {
        let all = self.locked(m, std::mem::take);
        all.map.values().for_each(|entry| entry.key.remove_entry(&self.own));
    }

    /// The number of entries.
    #[track_caller]
    pub fn len(&self, m: &Mutator) -> usize {
        self.locked(m, |entries| entries.map.len())
    }

    /// Whether the table has no entry.
    #[track_caller]
    pub fn is_empty(&self, m: &Mutator) -> bool {
        self.len(m) == 0
    }

    /// New references to all keys, with copies of their values, in no order.
    ///
    /// # Panics
    ///
    /// If memory is refused. [`try_entries`](Self::try_entries) returns an error instead.
    #[track_caller]
    pub fn entries(&self, m: &Mutator) -> Vec<(K, V)>
    where
        V: Clone,
    {
        self.try_entries(m).unwrap_or_else(|reason| Self::refused(reason))
    }

    /// New references to all keys, with copies of their values, in no order.
    ///
    /// # Errors
    ///
    /// If memory for the list is refused.
    #[track_caller]
    pub fn try_entries(&self, m: &Mutator) -> Result<Vec<(K, V)>, OutOfMemory>
    where
        V: Clone,
    {
        self.locked(m, |entries| {
            let mut all = Vec::new();
            all.try_reserve(entries.map.len()).map_err(NoMemory::from)?;
            let alive = entries.map.values().filter_map(|WeakValue { key, value }| {
                let key = upgrade(key, m, true)?;
                // SAFETY: rules *counted* and *typed*: the upgrade counted a reference to a key,
                // which `insert` got as a `K`.
                Some((unsafe { K::from_address(HeaderAddress(key)) }, value.clone()))
            });
            all.extend(alive);
            Ok(all)
        })
    }

    /// The record of a key, if it has weak references.
    #[track_caller]
    fn known(m: &Mutator, key: &K) -> Option<Shared<WeakRecord>> {
        let HeaderAddress(key) = key.address();
        check(key, m);
        // SAFETY: rule *counted*: the caller's handle keeps the key alive.
        m.raw().model().weak.known(unsafe { key.as_ref() })
    }

    /// The result of `f` for the entries, under the lock. Removes dead entries before, if there may
    /// be any or the table has grown, and after it if keys have died meanwhile.
    #[track_caller]
    fn locked<R>(&self, m: &Mutator, f: impl FnOnce(&mut WeakKeyed<V>) -> R) -> R {
        // Declared first, so that a panic of `f` drops it after the unlock, too.
        let mut dead = Vec::new();
        let mut entries = self.entries.lock(m);
        // Relaxed: a thread that sets it has failed to lock the table, and a later call sees it at
        // the latest.
        let has_dead = self.has_dead.load(Ordering::Relaxed);
        // A table that a collection has found to be garbage, and kept, learns of no death.
        let is_cut_off = self.own.is_empty();
        if has_dead || is_cut_off || entries.map.len() > 2 * entries.pruned + 8 {
            self.has_dead.store(false, Ordering::Relaxed);
            dead = entries.take_dead();
        }
        let result = f(&mut entries);
        drop(entries);
        drop(dead);
        // Relaxed: as above.
        if self.has_dead.load(Ordering::Relaxed) {
            self.has_dead.store(false, Ordering::Relaxed);
            // Unlocked before the drop, whose destructors may use the table.
            let dead = self.entries.lock(m).take_dead();
            drop(dead);
        }
        result
    }

    #[cold]
    #[track_caller]
    fn refused(reason: OutOfMemory) -> ! {
        out_of_memory(AllocError::of::<Self>((), reason))
    }

    /// # Safety
    ///
    /// The header is that of a live object of this type.
    unsafe fn of<'a>(header: NonNull<Header>) -> &'a Self {
        // SAFETY: rule *typed*: as the caller says.
        unsafe { header.cast::<u8>().add(Layout::<Self>::OFFSET).cast::<Self>().as_ref() }
    }

    /// See [`EachEntry`](crate::managed::ephemerons::EachEntry).
    unsafe fn each(
        header: NonNull<Header>,
        tracer: &mut Tracer,
        report: &mut dyn FnMut(NonNull<Header>, &[usize]),
    ) {
        // SAFETY: rules *typed* and *stopped*: as the caller says; the cell is part of an object of
        // a stopped heap.
        let Some(entries) = (unsafe { Self::of(header).entries.stopped() }) else { return };
        for WeakValue { key, value } in entries.map.values() {
            let Some(key) = key.target() else { continue };
            tracer.begin(crate::managed::object(header));
            tracer.enter(NonNull::from(value).cast(), size_of::<V>());
            V::traverse(value, tracer);
            // What an unreadable value refers to counts as referred to from outside.
            if !tracer.take_unreadable() {
                report(key, tracer.edges());
            }
        }
    }

    /// Removes the entry of a dead key: see [`WeakEntry`].
    unsafe fn remove_dead(table: NonNull<Header>, m: *const (), record: *const WeakRecord) {
        // SAFETY: rule *typed*: the entry's table, and a mutator.
        let (this, m) = unsafe { (Self::of(table), mutator(m)) };
        match this.entries.try_lock(m) {
            Some(mut entries) => {
                let entry = entries.map.remove(&(record as usize));
                drop(entries);
                drop(entry);
            }
            // Relaxed: as in `locked`.
            None => this.has_dead.store(true, Ordering::Relaxed),
        }
    }
}

/// The name of an entry.
fn name(record: &WeakRecord) -> usize {
    std::ptr::from_ref(record) as usize
}

impl<K: 'static, V: Trace> Trace for GcWeakMap<K, V> {
    const HAS_EXTERNAL_BYTES: bool = true;

    fn external_bytes(this: &mut Self) -> usize {
        GcCell::external_bytes(&mut this.entries)
    }

    /// Nothing, because the heap asks for the entries.
    fn traverse(_: &Self, _: &mut Tracer) {}

    fn describe(this: &Self, tracer: &mut Tracer) {
        tracer.field("entries");
        // SAFETY: rule *stopped*: a description is made in a stop.
        if let Some(entries) = unsafe { this.entries.stopped() } {
            entries.map.values().for_each(|entry| V::describe(&entry.value, tracer));
        }
    }

    fn clear(this: &Self, m: &Mutator) {
        GcCell::clear(&this.entries, m);
    }
}

impl<K, V: Trace> Drop for GcWeakMap<K, V> {
    fn drop(&mut self) {
        self.tables.remove(std::ptr::from_ref(self) as usize);
    }
}

impl<K, V: Trace> fmt::Debug for GcWeakMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcWeakMap").finish_non_exhaustive()
    }
}
