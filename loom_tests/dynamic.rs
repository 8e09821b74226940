//! The start of a dynamic object's destruction: its dealloc handler may count the object, and no
//! upgrade may take that for a reference that keeps it.
//!
//! The object holds the address of a [`Probe`], which whoever has upgraded a weak reference reads,
//! and the dealloc handler writes: loom fails a model in which a use is not ordered before the
//! destruction. The handler counts the object up and down before it looks at the weak references,
//! as C code does.
//!
//! The type is made once for all executions: its record has a lock of loom's, which nobody takes.
//!
//! # Transitions
//!
//! | transition | models |
//! |---|---|
//! | an upgrade, against the last drop: it succeeds and keeps the object, or fails | `upgrade_meets_the_start_of_a_dynamic_destruction` |
//! | the last drop after an upgrade: on the thread that upgraded | the same |

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use loom::thread;

use super::Model;
use crate::dynamic::{self, Family, Flags, RawObject, TypeRecord, TypeSpec, VisitProc};
use crate::sync::UnsafeCell;
use crate::{Heap, Mutator, Pacing};

/// What an object leads to.
struct Probe {
    used: UnsafeCell<usize>,
    destroyed: Plain,
}

// SAFETY: this is the claim under test: uses only read, and the destruction comes after them all.
unsafe impl Sync for Probe {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Probe {}

/// An object with the address of a probe behind its head.
#[repr(C)]
struct Object {
    base: RawObject,
    probe: *const Probe,
}

/// # Safety
///
/// `object` is one of ours, and not freed yet.
unsafe fn probe<'a>(object: NonNull<RawObject>) -> &'a Probe {
    // SAFETY: as the caller says; the probe outlives the object.
    unsafe { &*(*object.cast::<Object>().as_ptr()).probe }
}

unsafe extern "C" fn traverse(_: *mut RawObject, _: VisitProc, _: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn dealloc(object: *mut RawObject) {
    let Some(object) = NonNull::new(object) else { return };
    // SAFETY: rules H and Z: called once, for a dying object.
    unsafe {
        Mutator::with_current(|m| {
            dynamic::untrack(m, object).expect("a container");
            drop(dynamic::share(object));
            dynamic::clear_weak_references(m, object);
            let probe = probe(object);
            // SAFETY: see `Sync`.
            probe.used.with_mut(|used| *used += 1);
            probe.destroyed.fetch_add(1, Relaxed);
            dynamic::free(m, object, Family::Container).expect("nobody refers to it");
        })
        .expect("handlers run attached");
    }
}

fn record() -> &'static TypeRecord {
    static RECORD: OnceLock<&'static TypeRecord> = OnceLock::new();
    RECORD.get_or_init(|| {
        let mut spec = TypeSpec::new("loom.Object");
        spec.basic_size = size_of::<Object>() as isize;
        spec.flags = Flags::HAVE_GC;
        spec.slots.traverse = Some(traverse);
        spec.slots.dealloc = Some(dealloc);
        // SAFETY: rule H: the handlers are these objects'.
        unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.expect("a good description")
    })
}

/// Mutations: `upgrade` does not look at `DYING`; `mark_dying_for_upgrades` does not take the
/// record's lock.
#[test]
fn loom_upgrade_meets_the_start_of_a_dynamic_destruction() {
    Model::new().at_most(3).check(|| {
        let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
        // A heap for models has no dynamic objects by itself: rule D.
        let index = heap.core().model.types.index_of(&dynamic::INFO);
        assert_eq!(index, dynamic::TYPE_INDEX);
        let mut m = heap.attach();
        let probe_of_it = Arc::new(Probe { used: UnsafeCell::new(0), destroyed: Plain::new(0) });
        // SAFETY: rules N and R: a fresh object of ours; the reference goes over.
        let (object, weak) = unsafe {
            let object = dynamic::allocate_tracked(&m, record(), 0).unwrap();
            (*object.cast::<Object>().as_ptr()).probe = Arc::as_ptr(&probe_of_it);
            (dynamic::from_raw(object), dynamic::new_weakref(&m, object, None).unwrap())
        };
        let theirs = weak.clone();
        let stranger = thread::spawn(move || {
            let m = heap.attach();
            // SAFETY: a living weak reference.
            let target = unsafe { dynamic::weakref_target(&m, dynamic::as_raw(&theirs)) }.unwrap();
            if let Some(target) = target {
                // SAFETY: upgraded, so it is there; see `Sync` for the cell.
                unsafe {
                    let probe = probe(dynamic::as_raw(&target));
                    probe.used.with(|used| assert_eq!(*used, 0, "used after its destruction"));
                }
            }
        });
        drop(object);
        stranger.join().unwrap();
        m.safepoint();
        assert_eq!(probe_of_it.destroyed.load(Relaxed), 1);
        drop((weak, m));
    });
}
