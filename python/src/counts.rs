//! Counts of references to the interpreter's objects.
//!
//! A count is kept in up to four places:
//!
//! | place | changed by | in a stop |
//! |---|---|---|
//! | `ob_ref_local` | the owner of the object | read; written by a claim |
//! | `ob_ref_shared >> 2` | all other threads | read; written by a claim |
//! | `_Py_REF_DEFERRED` in the shared part, if the object's references may be deferred | |
//! subtracted |
//! | a table of each thread, by the object's *unique id* (types, code, dictionaries of modules) |
//! that thread | an adjustment |
//!
//! Each thread also has queues of objects with a count that their owner has to *merge*. A queue has
//! a reference to each of its objects, which the owner drops.
//!
//! In a stop, [`claim`] writes to garbage, and [`take_queues`] to the objects in queues.
//!
//! An object with count 0 and without deferred references is being destroyed, and stays outside
//! of the collection. (No such object should be tracked. CPython's collector destroys it twice.) A
//! deferred object with count 0 is an ordinary one: frames may refer to it.
//!
//! # Claimed objects
//!
//! The collecting thread owns a claimed object from the claim until the [`release`]. A released
//! object that lives on has no owner: another thread that drops its last reference destroys it at
//! once, and does not wait for the collecting thread. CPython's collector merges the counts of all
//! garbage for the same reason.
//!
//! # Objects in queues
//!
//! The owner of a queue may block for hours, and the objects in its queue stay meanwhile.
//! So each stop takes the objects out of all queues, as CPython's collector does. It merges their
//! counts, because an object that has been in a queue is never put into one again. The queue's
//! reference goes to the collecting thread, which drops it after the stop. Until then it is an
//! adjustment of −1: an object without any other reference is garbage, with all that it reaches.
//!
//! So no object is in a queue when it is claimed. Between the stops, a thread that drops a
//! reference to a saved object may put it into the queue of the collecting thread. The second stop
//! takes it out. If there is no memory for the list, the rest stays in the queue, and the queue's
//! reference keeps each object there alive.

use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use standstill::model::Count;

use crate::layout as c;
use crate::pages::Pages;

/// Bits of `ob_gc_bits` of an object that takes part: tracked, and not frozen.
const STATE: u8 = (c::SS_BITS_TRACKED | c::SS_BITS_FROZEN) as u8;

/// Whether a collection concerns an object.
///
/// # Safety
///
/// `op` is a block of the collector's heaps that is in use.
#[inline(always)]
pub unsafe fn takes_part(op: *mut c::PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe { (*op).ob_gc_bits & STATE == c::SS_BITS_TRACKED as u8 }
}

/// Whether the object's references may be deferred.
///
/// # Safety
///
/// The object is alive.
#[inline(always)]
pub unsafe fn is_deferred(op: *mut c::PyObject) -> bool {
    // SAFETY: the caller has an object.
    unsafe { (*op).ob_gc_bits & c::SS_BITS_DEFERRED as u8 != 0 }
}

/// The number of counted references, without adjustments. `keep_deferred`: objects with deferred
/// references are kept, because some of these references cannot be read now.
///
/// # Safety
///
/// `op` is a block of the collector's heaps that is in use, and the world is stopped.
#[inline(always)]
pub unsafe fn count(op: *mut c::PyObject, keep_deferred: bool) -> Count {
    // SAFETY: as the caller says.
    unsafe {
        let local = (*op).ob_ref_local;
        if !takes_part(op) || i64::from(local) == c::SS_IMMORTAL_LOCAL {
            return Count::Outside;
        }
        let mut count = i64::from(local) + ((*op).ob_ref_shared as i64 >> c::SS_REF_SHIFT);
        if is_deferred(op) {
            if keep_deferred {
                return Count::Outside;
            }
            count -= c::SS_REF_DEFERRED;
        } else if count == 0 {
            // Its destruction has begun: a queue of objects would have a reference.
            return Count::Outside;
        }
        Count::Exact(count)
    }
}

/// Calls `report` with each number in the tables of threads that is to be added to a count.
///
/// # Safety
///
/// The world is stopped.
pub unsafe fn adjustments(
    interpreter: *mut c::PyInterpreterState,
    report: &mut dyn FnMut(*mut c::PyObject, i64),
) {
    // SAFETY: as the caller says. The lock keeps threads away that start or end. Ids begin at 1.
    unsafe {
        each_thread(interpreter, |thread| {
            let table = (*interpreter).unique_ids.table;
            for id in 0..(*thread).refcounts.size as usize {
                let count = *(*thread).refcounts.values.add(id);
                if count != 0 {
                    report((*table.add(id)).obj, count as i64);
                }
            }
        });
    }
}

/// Takes the objects out of the queues of all threads. Their counts are merged. `taken` receives
/// each with the queue's reference.
///
/// # Safety
///
/// The world is stopped, by this thread.
pub unsafe fn take_queues(
    interpreter: *mut c::PyInterpreterState,
    taken: &mut Vec<*mut c::PyObject>,
) {
    // SAFETY: as the caller says. Only attached threads access queues. The interpreter allocates
    // the parts of a queue with this allocator.
    unsafe {
        each_thread(interpreter, |thread| {
            let queues = &mut (*thread).brc;
            for queue in [&mut queues.objects_to_merge, &mut queues.local_objects_to_merge] {
                while let Some(chunk) = std::ptr::NonNull::new(queue.head) {
                    let chunk = chunk.as_ptr();
                    let number = (*chunk).n as usize;
                    if taken.try_reserve(number).is_err() {
                        return;
                    }
                    let objects = &(&(*chunk).objs)[..number];
                    objects.iter().for_each(|&object| merge(object));
                    taken.extend_from_slice(objects);
                    queue.head = (*chunk).prev;
                    pyo3_ffi::PyMem_RawFree(chunk.cast());
                }
            }
        });
    }
}

/// Makes the count of an object one number, which has no owner.
///
/// # Safety
///
/// The world is stopped, and no other thread changes the object.
unsafe fn merge(op: *mut c::PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        if i64::from((*op).ob_ref_local) == c::SS_IMMORTAL_LOCAL {
            return;
        }
        let count = i64::from((*op).ob_ref_local) + ((*op).ob_ref_shared as i64 >> c::SS_REF_SHIFT);
        (*op).ob_tid = 0;
        (*op).ob_ref_local = 0;
        (*op).ob_ref_shared = (count << c::SS_REF_SHIFT | c::SS_REF_MERGED) as isize;
    }
}

/// Calls `f` with each thread of the interpreter.
///
/// # Safety
///
/// `f` takes no lock of the interpreter. The world is stopped; or this thread is attached, and `f`
/// reads no field that other threads write, but by atomic operations.
pub unsafe fn each_thread(
    interpreter: *mut c::PyInterpreterState,
    mut f: impl FnMut(*mut c::_PyThreadStateImpl),
) {
    // SAFETY: as the caller says.
    unsafe {
        c::ss_lock_heads();
        let mut thread = (*interpreter).threads.head;
        while !thread.is_null() {
            f(thread.cast());
            thread = (*thread).next;
        }
        c::ss_unlock_heads();
    }
}

/// With so many references of its owner an object is claimed with a merged count. The number that
/// marks immortal objects is far from it.
const MANY: u32 = u32::MAX / 4;

/// Protects the pool of unique ids while several threads claim.
pub static IDS: Mutex<()> = Mutex::new(());

/// Claims a garbage object: adds a reference, and makes `thread` the owner. `gc.get_objects()` and
/// `gc.get_referrers()` do not show the object until [`show`] or [`release`] is called.
///
/// `thread` clears the garbage. An owner changes a count without atomic instructions, which take
/// most of the time of clearing.
///
/// # Safety
///
/// The world is stopped, and the object takes part. One thread claims it. `thread` is the number
/// of an attached thread.
#[inline(always)]
pub unsafe fn claim(op: *mut c::PyObject, thread: usize, interpreter: *mut c::PyInterpreterState) {
    // SAFETY: as the caller says.
    unsafe {
        (*op).ob_gc_bits |= c::SS_BITS_UNREACHABLE as u8;
        // Relaxed: see `claim_merged`.
        let own = local(op).load(Ordering::Relaxed);
        // Without an owner the count is merged, and stays so.
        if (*op).ob_tid != 0 && own < MANY && !is_deferred(op) {
            (*op).ob_tid = thread;
            local(op).store(own + 1, Ordering::Relaxed);
        } else {
            claim_merged(op, interpreter);
        }
    }
}

/// Adds the claim's reference to an object, and makes its count one number, which has no owner.
/// References to the object are counted from now on.
///
/// # Safety
///
/// As for [`claim`].
unsafe fn claim_merged(op: *mut c::PyObject, interpreter: *mut c::PyInterpreterState) {
    // SAFETY: as the caller says.
    unsafe {
        // Relaxed: see below.
        let mut more = i64::from(local(op).load(Ordering::Relaxed)) + 1;
        if is_deferred(op) {
            (*op).ob_gc_bits &= !(c::SS_BITS_DEFERRED as u8);
            more -= c::SS_REF_DEFERRED;
            // Only such objects have a unique id.
            if let Some(id) = unique_id(op) {
                more += release_id(id, interpreter);
            }
        }
        (*op).ob_tid = 0;
        local(op).store(0, Ordering::Relaxed);
        // Relaxed: a worker that claims a generator adds references at the same time. The end of
        // the stop orders all of this before other threads.
        let shared = shared(op);
        let merged = |now: isize| {
            let count = (now as i64 >> c::SS_REF_SHIFT) + more;
            Some((count << c::SS_REF_SHIFT | c::SS_REF_MERGED) as isize)
        };
        let _always = shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
    }
}

/// The part of an object's count that its owner changes.
///
/// # Safety
///
/// The object is alive for the lifetime.
unsafe fn local<'a>(op: *mut c::PyObject) -> &'a AtomicU32 {
    // SAFETY: as the caller says. CPython accesses the field by atomic operations too.
    unsafe { AtomicU32::from_ptr(&raw mut (*op).ob_ref_local) }
}

/// The shared part of an object's count.
///
/// # Safety
///
/// The object is alive for the lifetime.
unsafe fn shared<'a>(op: *mut c::PyObject) -> &'a AtomicIsize {
    // SAFETY: as the caller says. CPython accesses the field by atomic operations too.
    unsafe { AtomicIsize::from_ptr(&raw mut (*op).ob_ref_shared) }
}

/// Adds a reference to an object in a stop, on any thread. `false`: the object is immortal.
///
/// # Safety
///
/// The world is stopped, and the object is alive.
pub unsafe fn add_reference(op: *mut c::PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        // Relaxed: see `claim`.
        if i64::from(local(op).load(Ordering::Relaxed)) == c::SS_IMMORTAL_LOCAL {
            return false;
        }
        shared(op).fetch_add(1 << c::SS_REF_SHIFT, Ordering::Relaxed);
        true
    }
}

/// The unique id of an object, which is removed from the object.
#[inline(always)]
unsafe fn unique_id(op: *mut c::PyObject) -> Option<isize> {
    use pyo3_ffi::{Py_TPFLAGS_DICT_SUBCLASS, Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_TYPE_SUBCLASS};
    // SAFETY: the caller has an object in a stop. The flags of its type tell its kind.
    unsafe {
        let flags = (*(*op).ob_type).tp_flags;
        let mut id = 0;
        if flags & Py_TPFLAGS_TYPE_SUBCLASS != 0 {
            if (*op.cast::<c::PyTypeObject>()).tp_flags & Py_TPFLAGS_HEAPTYPE != 0 {
                let class = op.cast::<c::PyHeapTypeObject>();
                id = std::mem::take(&mut (*class).unique_id);
            }
        } else if flags & Py_TPFLAGS_DICT_SUBCLASS != 0 {
            let dict = op.cast::<c::PyDictObject>();
            id = ((*dict)._ma_watcher_tag >> c::SS_DICT_UNIQUE_ID_SHIFT) as isize;
            (*dict)._ma_watcher_tag &= (1 << c::SS_DICT_UNIQUE_ID_SHIFT) - 1;
        } else if (*op).ob_type.cast() == &raw mut pyo3_ffi::PyCode_Type {
            let code = op.cast::<c::PyCodeObject>();
            id = std::mem::take(&mut (*code)._co_unique_id);
        }
        (id > 0).then_some(id)
    }
}

/// Gives a unique id back, and returns the sum of its entries in the tables of all threads, which
/// become 0.
#[cold]
unsafe fn release_id(id: isize, interpreter: *mut c::PyInterpreterState) -> i64 {
    let _ids = IDS.lock();
    let at = id as usize - 1;
    let mut sum = 0;
    // SAFETY: in a stop, and the lock keeps other claims away.
    unsafe {
        each_thread(interpreter, |thread| {
            let table = &(*thread).refcounts;
            if (at as isize) < table.size {
                sum += std::mem::take(&mut *table.values.add(at)) as i64;
            }
        });
        let pool = &raw mut (*interpreter).unique_ids;
        let entry = (*pool).table.add(at);
        (*entry).next = (*pool).freelist;
        (*pool).freelist = entry;
    }
    sum
}

/// Ends the concealment of a claimed object, before it is cleared. Without this call [`release`]
/// ends it, by an atomic instruction.
///
/// # Safety
///
/// The object is garbage after the last stop of the collection, so no other thread has a reference
/// to it. This thread is attached.
pub unsafe fn show(op: *mut c::PyObject) {
    // SAFETY: as the caller says. CPython writes the byte by atomic operations too.
    let bits = unsafe { AtomicU8::from_ptr(&raw mut (*op).ob_gc_bits) };
    // Relaxed: the bit orders nothing, and no other thread changes the byte.
    let before = bits.load(Ordering::Relaxed);
    bits.store(before & !(c::SS_BITS_UNREACHABLE as u8), Ordering::Relaxed);
}

/// Ends the concealment of all objects that a lost thread had claimed. Without memory for the list
/// of pages they stay concealed.
///
/// CPython's collector would take a concealed object for garbage.
///
/// # Safety
///
/// This is the child of a fork, on its only thread: the fork has stopped the world.
pub unsafe fn show_all(interpreter: *mut c::PyInterpreterState, prefix: usize) {
    // SAFETY: as the caller says. A block in use has an object, or will have one: until then its
    // bits are 0.
    unsafe {
        let Ok(pages) = Pages::list(interpreter, prefix) else { return };
        for &page in pages.pages() {
            pages.each(page, |object| {
                let op = object.cast::<c::PyObject>().as_ptr();
                if (*op).ob_gc_bits & c::SS_BITS_UNREACHABLE as u8 != 0 {
                    show(op);
                }
            });
        }
    }
}

/// Drops the claim's reference. If the object lives on, it has no owner afterwards, and it is not
/// concealed.
///
/// # Safety
///
/// This thread has claimed the object, and is attached.
pub unsafe fn release(op: *mut c::PyObject) {
    // SAFETY: as the caller says. CPython accesses these fields by atomic operations too. If the
    // local part is not 0, this thread owns the object: a claim with a merged count leaves 0. Only
    // an object that was made immortal since the claim has a local part without an owner.
    unsafe {
        let bits = AtomicU8::from_ptr(&raw mut (*op).ob_gc_bits);
        let bit = c::SS_BITS_UNREACHABLE as u8;
        // Relaxed: the bit orders nothing. Only objects that were not cleared have it. Other
        // threads may use such an object, and change the byte meanwhile.
        if bits.load(Ordering::Relaxed) & bit != 0 {
            bits.fetch_and(!bit, Ordering::Relaxed);
        }
        // Relaxed: only the owner writes it.
        let own = local(op).load(Ordering::Relaxed);
        if own > 1 && i64::from(own) != c::SS_IMMORTAL_LOCAL {
            disown(op);
        }
        c::ss_drop_reference(op);
    }
}

/// Makes the count of an object one number, which has no owner.
///
/// # Safety
///
/// This thread owns the object, and is attached.
#[cold]
unsafe fn disown(op: *mut c::PyObject) {
    // SAFETY: as the caller says. CPython accesses these fields by atomic operations too.
    unsafe {
        let own = i64::from(local(op).load(Ordering::Relaxed));
        // Relaxed, both, and before the count is merged: as in `_Py_ExplicitMergeRefcount`. Other
        // threads only compare the owner with themselves.
        local(op).store(0, Ordering::Relaxed);
        AtomicUsize::from_ptr(&raw mut (*op).ob_tid).store(0, Ordering::Relaxed);
        let merged = |now: isize| {
            let count = (now as i64 >> c::SS_REF_SHIFT) + own;
            Some((count << c::SS_REF_SHIFT | c::SS_REF_MERGED) as isize)
        };
        // AcqRel: the thread that drops the last reference sees what this thread did with the
        // object.
        let _always = shared(op).fetch_update(Ordering::AcqRel, Ordering::Relaxed, merged);
    }
}

/// Whether the collector may traverse an object.
///
/// # Safety
///
/// `op` is a block of the collector's heaps that is in use.
#[inline(always)]
pub unsafe fn is_tracked(op: *mut c::PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe { (*op).ob_gc_bits & c::SS_BITS_TRACKED as u8 != 0 }
}

/// Notes that the finalizer of an object runs. `false`: it has run.
///
/// # Safety
///
/// The object is alive.
pub unsafe fn set_finalized(op: *mut c::PyObject) -> bool {
    // SAFETY: as the caller says. CPython writes the byte by atomic operations too.
    let bits = unsafe { AtomicU8::from_ptr(&raw mut (*op).ob_gc_bits) };
    let bit = c::SS_BITS_FINALIZED as u8;
    // Relaxed: the bit orders nothing. Another thread may use the object through a weak reference,
    // and change the byte meanwhile.
    bits.fetch_or(bit, Ordering::Relaxed) & bit == 0
}
