//! Heaps. C programs need not name one, because a default heap is made at its first use.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use standstill::fallible::{self, NoMemory};
use standstill::{
    BuildError, Code, Fault, ForkedSearch, Heap, HeapBuilder, Pacing, Thresholds, dynamic, stderr,
};

use crate::call::{self, export};
use crate::layout::PyObject;
use crate::{builtins, diagnose, errors, fork};

/// A heap, as C holds it.
#[derive(Debug)]
pub struct standstill_heap {
    heap: Heap,
}

/// `standstill_heap_options` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_heap_options {
    pub size: usize,
    pub reserve: usize,
    pub limit: usize,
    pub workers: c_uint,
    pub checked: c_int,
    pub stress: c_int,
    pub serial_below: usize,
    pub slow_stop_ms: c_uint,
    /// Not a `c_uint`, which would lie in the padding of the struct of older headers.
    pub slow_collection_ms: usize,
    pub child_from: usize,
}

/// Boxed, because C keeps their addresses.
pub(crate) type Heaps = Vec<Box<standstill_heap>>;

/// The heaps that C may use, so few that lookups search the list by address.
static HEAPS: Mutex<Heaps> = Mutex::new(Vec::new());
/// The address of the default heap.
static DEFAULT: OnceLock<usize> = OnceLock::new();

fn heaps() -> MutexGuard<'static, Heaps> {
    crate::errors::locked(&HEAPS)
}

fn is_at(heap: &standstill_heap, address: usize) -> bool {
    std::ptr::from_ref(heap) as usize == address
}

fn found(heap: Heap) -> Result<usize, Fault> {
    // The linker of a static library keeps only what a program refers to, and a debugger calls this
    // function.
    std::hint::black_box(diagnose::standstill_PyObject_Dump as unsafe extern "C" fn(_));
    builtins::start()?;
    errors::connect_hooks(&heap)?;
    let boxed = fallible::boxed(standstill_heap { heap })?;
    let address = (&raw const *boxed) as usize;
    let mut heaps = heaps();
    boxed.heap.services().expect_legacy_finalizers(LEGACY.load(Ordering::SeqCst));
    fallible::push(&mut heaps, boxed)?;
    Ok(address)
}

/// Whether any type has a legacy finalizer.
static LEGACY: AtomicBool = AtomicBool::new(false);

/// Called before a type with a legacy finalizer becomes ready, because collections must check it.
pub(crate) fn expect_legacy() {
    // Stored before the list is locked, so that a heap that is added to the list later reads it.
    LEGACY.store(true, Ordering::SeqCst);
    for heap in heaps().iter() {
        heap.heap.services().expect_legacy_finalizers(true);
    }
}

fn fault_of(error: &BuildError, function: &'static str) -> Fault {
    let code = if matches!(error, BuildError::Setting(_)) { Code::BadSize } else { Code::Memory };
    Fault::new(code, function).because(standstill::words!("{error}"))
}

fn build(builder: HeapBuilder, function: &'static str) -> Result<usize, Fault> {
    fork::must_not_be_inside(function)?;
    found(builder.build().map_err(|error| fault_of(&error, function))?)
}

/// The lock under which the default heap is made.
static STARTING: Mutex<()> = Mutex::new(());

/// The address of the default heap, which is made if it does not exist. `options` are for a heap
/// that must not exist yet.
fn default_address(
    options: Option<Option<&standstill_heap_options>>,
    function: &'static str,
) -> Result<usize, Fault> {
    let known = || match (DEFAULT.get(), options) {
        (Some(_), Some(_)) => Err(Fault::new(Code::NotAllowedHere, function)
            .because("the default heap exists already; configure it before its first use")),
        (known, _) => Ok(known.copied()),
    };
    if let Some(address) = known()? {
        return Ok(address);
    }
    fork::must_not_be_inside(function)?;
    // First, because a fork waits for the lock only once its handlers are there.
    fork::watch();
    let _starting = errors::locked(&STARTING);
    if let Some(address) = known()? {
        return Ok(address);
    }
    let builder = options.flatten().map_or_else(plain, builder);
    let address = build(builder.name("default"), function)?;
    Ok(*DEFAULT.get_or_init(|| address))
}

/// The lock of the default heap's making, for a fork. A fork takes it first, because a thread that
/// has it may take the others.
pub(crate) fn lock_start_for_fork() -> MutexGuard<'static, ()> {
    errors::locked(&STARTING)
}

/// Handles of all heaps.
pub(crate) fn all_heaps() -> Result<Vec<Heap>, NoMemory> {
    fallible::collect(heaps().iter().map(|known| known.heap.clone()))
}

/// Writes to standard error what lies at an address, for a debugger, which may have stopped another
/// thread while that has the list of heaps.
///
/// # Safety
///
/// As for [`dynamic::dump`].
pub(crate) unsafe fn dump(object: *const PyObject) {
    let heaps = match HEAPS.try_lock() {
        Err(TryLockError::WouldBlock) => {
            return stderr::write_line(format_args!(
                "object address  : {object:p}\nno object       : a thread is changing the list of \
                 heaps; let it run on"
            ));
        }
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Ok(heaps) => heaps,
    };
    // SAFETY: as the caller says.
    let dump = unsafe { dynamic::dump(heaps.iter().map(|known| &known.heap), object) };
    stderr::write_line(format_args!("{dump}"));
}

/// Locks the list of heaps for a fork. `None`: it has others than these.
pub(crate) fn lock_list_for_fork(stopped: &[Heap]) -> Option<MutexGuard<'static, Heaps>> {
    let heaps = heaps();
    let is_same = heaps.iter().all(|known| stopped.iter().any(|heap| heap.ptr_eq(&known.heap)));
    is_same.then_some(heaps)
}

/// The heap at an address from C; null means the default heap.
pub(crate) fn heap_at(heap: *mut standstill_heap) -> Result<Heap, Fault> {
    fork::must_not_be_inside("argument")?;
    let address = match heap as usize {
        0 => default_address(None, "standstill_default_heap")?,
        address => address,
    };
    let heaps = heaps();
    let known = heaps.iter().find(|known| is_at(known, address)).map(|known| known.heap.clone());
    known.ok_or_else(|| {
        Fault::new(Code::ForeignPointer, "argument")
            .at(address)
            .because("there is no heap at this address")
    })
}

/// The options from C, or `None` for null. Fields that the caller's header does not have are 0.
///
/// # Safety
///
/// `options` is null, or a struct of as many bytes as its `size` says. A `size` of 0 means the
/// fields of the first version of the header.
unsafe fn given(options: *const standstill_heap_options) -> Option<standstill_heap_options> {
    let first = std::mem::offset_of!(standstill_heap_options, slow_stop_ms);
    let mut given = standstill_heap_options {
        size: 0,
        reserve: 0,
        limit: 0,
        workers: 0,
        checked: 0,
        stress: 0,
        serial_below: 0,
        slow_stop_ms: 0,
        slow_collection_ms: 0,
        child_from: 0,
    };
    if options.is_null() {
        return None;
    }
    // SAFETY: rule *argument*: as the caller says; `size` is the first field.
    let size = match unsafe { options.cast::<usize>().read() } {
        0 => first,
        size => size.min(size_of::<standstill_heap_options>()),
    };
    // SAFETY: rule *argument*: the struct has this many bytes. Any bytes form valid integers.
    unsafe { options.cast::<u8>().copy_to_nonoverlapping((&raw mut given).cast(), size) };
    Some(given)
}

/// A pacing whose thresholds `standstill_gc_get_threshold` returns.
fn pacing() -> Pacing {
    Pacing::default().with_thresholds(Thresholds::default())
}

/// A builder without options.
fn plain() -> HeapBuilder {
    Heap::builder().pacing(pacing())
}

/// A builder with these options.
fn builder(options: &standstill_heap_options) -> HeapBuilder {
    let mut builder = plain().stress(options.stress != 0);
    if options.reserve != 0 {
        builder = builder.reserve(options.reserve);
    }
    if options.limit != 0 {
        builder = builder.limit(options.limit);
    }
    if options.workers != 0 {
        builder = builder.workers(options.workers as usize);
    }
    if options.checked >= 0 {
        builder = builder.checked(options.checked != 0);
    }
    if options.serial_below != 0 {
        builder = builder.serial_below(options.serial_below);
    }
    if options.slow_stop_ms != 0 {
        builder = builder.slow_stop(Duration::from_millis(options.slow_stop_ms.into()));
    }
    if options.slow_collection_ms != 0 {
        let after = Duration::from_millis(options.slow_collection_ms as u64);
        builder = builder.slow_collection(after);
    }
    if options.child_from != 0 {
        let forked = ForkedSearch::FromObjects(options.child_from);
        builder = builder.pacing(pacing().with_forked(forked));
    }
    builder
}

fn new_heap(options: Option<&standstill_heap_options>) -> Result<usize, Fault> {
    build(options.map_or_else(plain, builder), "standstill_heap_new")
}

export! {
    /// The default heap of the process.
    fn standstill_default_heap() -> *mut standstill_heap {
        const FUNCTION: &str = "standstill_default_heap";
        call::outside(FUNCTION, std::ptr::null_mut(), || match default_address(None, FUNCTION) {
            Ok(address) => std::ptr::with_exposed_provenance_mut(address),
            Err(fault) => {
                errors::set_fault(&fault);
                std::ptr::null_mut()
            }
        })
    }

    /// Makes the default heap.
    fn standstill_configure(options: *const standstill_heap_options) -> c_int {
        const FUNCTION: &str = "standstill_configure";
        call::outside(FUNCTION, -1, || {
            // SAFETY: rule *argument*.
            let options = unsafe { given(options) };
            match default_address(Some(options.as_ref()), FUNCTION) {
                Ok(_) => 0,
                Err(fault) => {
                    errors::set_fault(&fault);
                    -1
                }
            }
        })
    }

    /// Makes a heap in addition to the default one.
    fn standstill_heap_new(options: *const standstill_heap_options) -> *mut standstill_heap {
        call::outside("standstill_heap_new", std::ptr::null_mut(), || {
            // SAFETY: rule *argument*.
            match new_heap(unsafe { given(options) }.as_ref()) {
                Ok(address) => std::ptr::with_exposed_provenance_mut(address),
                Err(fault) => {
                    errors::set_fault(&fault);
                    std::ptr::null_mut()
                }
            }
        })
    }

    /// Gives up a heap.
    fn standstill_heap_free(heap: *mut standstill_heap) -> c_int {
        const FUNCTION: &str = "standstill_heap_free";
        call::outside(FUNCTION, -1, || {
            let fault = |code, text: &'static str| {
                errors::misuse(Fault::new(code, FUNCTION).at(heap as usize).because(text));
                -1
            };
            if heap.is_null() {
                return fault(Code::NullArgument, "a null pointer where there must be a heap");
            }
            let address = heap as usize;
            if DEFAULT.get() == Some(&address) {
                return fault(Code::NotAllowedHere, "the default heap is never freed");
            }
            let known = match heap_at(heap) {
                Ok(known) => known,
                Err(mut found) => {
                    found.function = FUNCTION;
                    errors::misuse(found);
                    return -1;
                }
            };
            if known.stats().mutators != 0 {
                return fault(Code::NotAllowedHere, "threads are attached to the heap");
            }
            let boxed = {
                let mut heaps = heaps();
                heaps.iter().position(|known| is_at(known, address)).map(|at| heaps.swap_remove(at))
            };
            let Some(boxed) = boxed else {
                return fault(Code::ForeignPointer, "another thread has freed the heap");
            };
            // The heap closes with its last handle, and then reports the objects that are left.
            drop((known, boxed));
            0
        })
    }
}

#[allow(unsafe_code)]
#[cfg(test)]
mod tests;
