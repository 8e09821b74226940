//! A header has only 24 bits for the type of its object, too few for a pointer. So each heap
//! numbers its types, and headers hold the numbers. Behind each number is a table of functions, by
//! which the built-in model traverses, finalizes and destroys the objects of the type.
//!
//! A rule, which unsafe code cites:
//!
//! * **typed**: a header's type index names the table that the object was made with, so the
//!   value lies where the table says. The functions of a table are called with objects of its type
//!   and with a mutator of their heap. The objects live as long as the call, and functions that
//!   destroy an object receive it as its owner. `Mutator` and `Heap` are transparent wrappers of
//!   the types that the lower folders use. A `Finalizer<T>` keeps a function that takes a `&Gc<T>`.

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::RwLock;
use crate::object::address::Object;
use crate::object::header::{Header, TYPE_BITS};
use crate::object::tracer::{Ends, Tracer};

/// The table of functions of a type, for the built-in model.
///
/// `*const ()` in the signatures is the calling thread's mutator, as an opaque pointer because this
/// folder may not name its type.
pub(crate) struct TypeInfo {
    pub(crate) id: fn() -> TypeId,
    /// The name of an instance's type, by its header because the types of dynamic objects differ.
    pub(crate) name: unsafe fn(NonNull<Header>) -> &'static str,
    /// Bytes from the header to the value.
    pub(crate) offset: usize,
    /// Whether instances enter the tracked set.
    pub(crate) tracked: bool,
    /// Reports the references of several values through [`Tracer::each`], in one call for all of
    /// them so that the traversal of each is inlined.
    pub(crate) traverse_each: unsafe fn(&[Object], &mut Tracer, &mut Ends<'_>),
    /// Reports the references of a value with the names of its fields. `None`: the names are
    /// unknown.
    pub(crate) describe: Option<unsafe fn(Object, &mut Tracer)>,
    /// Writes the label of a living object. `None`: it has none.
    pub(crate) label: Option<unsafe fn(Object, &mut fmt::Formatter<'_>) -> fmt::Result>,
    /// Prefetches the memory that `traverse` reads outside the values' own bytes. `None`: it reads
    /// none.
    pub(crate) prefetch_each: Option<unsafe fn(&[Object], &mut Tracer)>,
    /// Empties the fields that can close a cycle.
    pub(crate) clear: unsafe fn(NonNull<u8>, *const ()),
    /// Whether a collection clears an instance after all its other garbage is cleared and released.
    /// `None`: no instance.
    pub(crate) clears_last: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// Runs the finalizer on a live object, by its header.
    pub(crate) finalize: Option<unsafe fn(NonNull<Header>, *const ())>,
    /// Whether an instance has a finalizer. `None`: all instances are alike.
    pub(crate) has_finalizer: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// Whether an instance has a legacy finalizer, asked only if the model has seen such a type
    /// (`Managed::expect_legacy`). `None`: no instance has one.
    pub(crate) legacy: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// The bytes outside the heap that a value owns, asked with exclusive access before the value
    /// is destroyed. `None`: it owns none.
    pub(crate) external: Option<unsafe fn(NonNull<u8>) -> usize>,
    /// Destroys the value in place. `None`: there is nothing to do.
    pub(crate) drop: Option<unsafe fn(NonNull<u8>)>,
    /// Destroys an object after the mutator has dropped its last reference. Used if only the
    /// destructor must run, because there is no finalizer and no weak record. `None`: use `drop`
    /// and the rest of this table.
    pub(crate) destroy: Option<unsafe fn(NonNull<Header>, *const ())>,
    /// Replaces the whole destruction: finalizer, weak references, value and memory.
    pub(crate) dealloc: Option<unsafe fn(NonNull<Header>, *const ())>,
}

impl fmt::Debug for TypeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypeInfo").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl TypeInfo {
    /// The value of the object with this header.
    #[inline(always)]
    pub(crate) fn value(&self, header: NonNull<Header>) -> NonNull<u8> {
        // SAFETY: rule *typed*: an object of this type is at least `offset` bytes long.
        unsafe { header.cast::<u8>().add(self.offset) }
    }
}

/// A heap's types, by a number that stays valid because types are never removed.
///
/// A lookup by index is on the path of marking, so it should cost no more than two dependent loads.
/// It takes no lock, because buckets of doubling size are filled once and never move.
///
/// The layout keeps the order of the fields, so that `first` is not at the registry's own address.
/// Otherwise the compiler would compute that address on the common path, although only the cold
/// path needs it.
#[repr(C)]
pub(crate) struct TypeRegistry {
    by_id: RwLock<HashMap<TypeId, u32>>,
    /// Whether any type has something to prefetch.
    indirect: AtomicBool,
    /// The first types, in the registry itself because most programs have no others.
    first: [AtomicPtr<TypeInfo>; FIRST_BUCKET as usize],
    buckets: [OnceLock<Box<[AtomicPtr<TypeInfo>]>>; BUCKETS],
    next: AtomicU32,
}

const FIRST_BUCKET: u32 = 256;
const BUCKETS: usize = (TYPE_BITS - 1 - FIRST_BUCKET.trailing_zeros()) as usize;

impl TypeRegistry {
    pub(crate) fn new() -> Self {
        Self {
            by_id: RwLock::new(HashMap::new()),
            indirect: AtomicBool::new(false),
            first: [const { AtomicPtr::new(std::ptr::null_mut()) }; _],
            buckets: [const { OnceLock::new() }; BUCKETS],
            next: AtomicU32::new(0),
        }
    }

    /// The bucket and position of an index after the first ones. Each bucket holds as many types as
    /// all before it.
    fn locate(index: u32) -> (usize, usize) {
        let high = 31 - index.leading_zeros();
        ((high - FIRST_BUCKET.trailing_zeros()) as usize, (index - (1 << high)) as usize)
    }

    /// The index of a type, which is the next free one if the type is new to the heap.
    ///
    /// # Panics
    ///
    /// If a heap has more than 2²³ types.
    pub(crate) fn index_of(&self, info: &'static TypeInfo) -> Result<u32, NoMemory> {
        let id = (info.id)();
        if let Some(&index) = self.by_id.read().get(&id) {
            return Ok(index);
        }
        // The lock, under which no foreign code is called, makes the number unique.
        let mut by_id = self.by_id.write();
        if let Some(&index) = by_id.get(&id) {
            return Ok(index);
        }
        by_id.try_reserve(1)?;
        let index = self.number(info)?;
        by_id.insert(id, index);
        Ok(index)
    }

    /// Gives a type the next index. The caller has the lock.
    fn number(&self, info: &'static TypeInfo) -> Result<u32, NoMemory> {
        if info.prefetch_each.is_some() {
            // Relaxed, because it is a hint.
            self.indirect.store(true, Ordering::Relaxed);
        }
        // Relaxed, because only this function writes it, under the lock.
        let index = self.next.load(Ordering::Relaxed);
        let cell = if index < FIRST_BUCKET {
            &self.first[index as usize]
        } else {
            let (bucket, place) = Self::locate(index);
            assert!(bucket < BUCKETS, "a heap has more than 2^23 types");
            if self.buckets[bucket].get().is_none() {
                let cells = (0..(FIRST_BUCKET as usize) << bucket).map(|_| AtomicPtr::default());
                #[expect(
                    clippy::let_underscore_must_use,
                    reason = "another thread's cells serve as well"
                )]
                let _ = self.buckets[bucket].set(fallible::collect(cells)?.into());
            }
            &self.buckets[bucket].get().expect("set before")[place]
        };
        // Relaxed, because the table is a constant of the program, and a thread with the index
        // received it with an object, or from the map, after this store.
        cell.store(std::ptr::from_ref(info).cast_mut(), Ordering::Relaxed);
        // Last, so that no number is used up if there is no memory for the cell.
        self.next.store(index + 1, Ordering::Relaxed);
        Ok(index)
    }

    /// Whether any type has something to prefetch.
    pub(crate) fn any_indirect(&self) -> bool {
        self.indirect.load(Ordering::Relaxed)
    }

    /// The type with this index, if it exists.
    pub(crate) fn find(&self, index: u32) -> Option<&'static TypeInfo> {
        // Relaxed, because it serves reports, about types that were registered long ago.
        (index < self.next.load(Ordering::Relaxed)).then(|| self.get(index))
    }

    /// The type with this index.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &'static TypeInfo {
        let info = if index < FIRST_BUCKET {
            self.first[index as usize].load(Ordering::Relaxed)
        } else {
            self.get_late(index)
        };
        assert!(!info.is_null(), "a header names an unknown type: is this memory damaged?");
        // SAFETY: rule *pinned*: only `index_of` stores here, and it stores `'static` references.
        unsafe { &*info }
    }

    #[cold]
    fn get_late(&self, index: u32) -> *mut TypeInfo {
        let (bucket, place) = Self::locate(index);
        self.buckets
            .get(bucket)
            .and_then(OnceLock::get)
            .map_or(std::ptr::null_mut(), |cells| cells[place].load(Ordering::Relaxed))
    }
}

impl fmt::Debug for TypeRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypeRegistry").field("types", &self.next).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
