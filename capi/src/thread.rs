//! The state of the calling thread. C functions have no parameter for a mutator, so each thread
//! keeps its own here, with the mutators that it has detached for a while.
//!
//! `PyEval_SaveThread` detaches the mutator and keeps it in a *saved state*, from which
//! `PyEval_RestoreThread` or `PyGILState_Ensure` attaches it again.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::mem::MaybeUninit;

use standstill::dynamic;
use standstill::fallible::{self, NoMemory};
use standstill::{AttachError, Code, Detached, Fault, Mutator, safepoint};

use crate::call::{self, export};
use crate::errors;
use crate::world::{self, standstill_heap};

thread_local! {
    /// The mutator that this library has attached: rule *thread*.
    static MUTATOR: Cell<*mut Mutator> = const { Cell::new(std::ptr::null_mut()) };
    /// Whether a caller up the stack has the mutator exclusively, for a collection or a safepoint.
    static EXCLUSIVE: Cell<bool> = const { Cell::new(false) };
    /// The number of callers up the stack that have lent the mutator by [`lend_again`]. While it is
    /// not 0, the mutator must stay in its place.
    static GUESTS: Cell<usize> = const { Cell::new(0) };
    static DETACHED: RefCell<PutDown> =
        const { RefCell::new(PutDown { saved: Vec::new(), ensured: Vec::new() }) };
    static AT_EXIT: AtExit = const { AtExit };
}

/// The memory of a mutator, allocated before the thread attaches, so that a later attachment cannot
/// fail for lack of memory.
type Place = Box<MaybeUninit<Mutator>>;

/// The saved state that `PyEval_SaveThread` returns to C.
#[derive(Debug)]
pub struct standstill_thread_state {
    /// `None` while `PyGILState_Ensure` has attached this mutator again.
    detached: Option<Detached>,
    /// The memory of the mutator, for the next attachment.
    place: Option<Place>,
}

/// The effect of a `PyGILState_Ensure`, which its `PyGILState_Release` undoes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ensured {
    /// The thread was attached with a new mutator.
    Attached,
    /// The mutator of this saved state was attached again.
    TakenUp(*mut standstill_thread_state),
}

struct PutDown {
    /// The saved states, from `Box::into_raw`.
    saved: Vec<*mut standstill_thread_state>,
    ensured: Vec<Ensured>,
}

/// Detaches a thread that ends while it is attached.
struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        if let Err(fault) = detach("standstill_detach")
            && fault.code != Code::NotAttached
        {
            errors::misuse(fault);
        }
        let saved = DETACHED
            .try_with(|down| std::mem::take(&mut down.borrow_mut().saved))
            .unwrap_or_default();
        for state in saved {
            // SAFETY: rule *pinned*: the state is in the list, so it has not been freed.
            drop(unsafe { Box::from_raw(state) });
        }
    }
}

/// The thread's mutator, or `None` if the thread has none or uses it exclusively. In a traverse
/// handler the result may be either.
///
/// A function that is called with this mutator must not run the program's code, since that code
/// could take the mutator exclusively. Functions that do run such code use
/// [`Mutator::with_current`], which lends the mutator.
#[inline(always)]
pub(crate) fn at_hand<'a>() -> Option<&'a Mutator> {
    // SAFETY: rule *thread*: the caller is on this thread, and ends its use before the mutator can
    // be taken.
    unsafe { MUTATOR.get().as_ref() }
}

/// Whether this thread is attached to a heap, by C or by Rust, or has detached for a fork.
pub(crate) fn is_attached() -> bool {
    safepoint::current() != 0 || safepoint::is_traversing() || EXCLUSIVE.get()
}

/// Whether a collection, or a safepoint that may collect, is running up the stack.
pub(crate) fn is_collecting() -> bool {
    EXCLUSIVE.get()
}

/// Runs `f` with exclusive use of the mutator.
///
/// # Errors
///
/// The thread is not attached, or code up the stack is using the mutator.
pub(crate) fn exclusively<R>(
    function: &'static str,
    f: impl FnOnce(&mut Mutator) -> R,
) -> Result<R, Fault> {
    struct PutBack(*mut Mutator);
    impl Drop for PutBack {
        fn drop(&mut self) {
            MUTATOR.set(self.0);
            EXCLUSIVE.set(false);
        }
    }
    let mutator = MUTATOR.get();
    // SAFETY: rule *thread*.
    match unsafe { mutator.as_ref() } {
        Some(m) if m.may_park() => {}
        None if !is_attached() => return Err(Fault::new(Code::NotAttached, function)),
        _ => return Err(Fault::new(Code::NotAllowedHere, function)),
    }
    MUTATOR.set(std::ptr::null_mut());
    EXCLUSIVE.set(true);
    let _put_back = PutBack(mutator);
    // SAFETY: rule *thread*: the pointer is null now, so no other code can get the mutator, and no
    // caller up the stack has borrowed it.
    Ok(f(unsafe { &mut *mutator }))
}

/// Runs `f` while the caller, which has the mutator exclusively, lends it to the thread.
pub(crate) fn lend_again<R>(m: &mut Mutator, f: impl FnOnce() -> R) -> R {
    struct PutBack(*mut Mutator, bool);
    impl Drop for PutBack {
        fn drop(&mut self) {
            MUTATOR.set(self.0);
            EXCLUSIVE.set(self.1);
            GUESTS.set(GUESTS.get() - 1);
        }
    }
    GUESTS.set(GUESTS.get() + 1);
    let _put_back = PutBack(MUTATOR.replace(m), EXCLUSIVE.replace(false));
    f()
}

/// The mutator that [`put_down`] has detached, kept out of its place, so that the thread cannot use
/// it.
pub(crate) struct ForkingThread(Option<(Detached, *mut Mutator)>);

/// Detaches the thread for a fork, if it is attached. Until [`take_up`] it can neither attach nor
/// use its mutator. `None`: code up the stack is using the mutator, and the thread stays attached.
pub(crate) fn put_down() -> Option<ForkingThread> {
    let mutator = MUTATOR.get();
    // SAFETY: rule *thread*.
    let own = match unsafe { mutator.as_ref() } {
        None if is_attached() => return None,
        None => None,
        Some(m) if !m.may_park() => return None,
        // SAFETY: rule *thread*: the pointer is null from here on, so no other code can get the
        // mutator. `take_up` puts it back where callers up the stack expect it.
        Some(_) => match unsafe { mutator.read() }.into_detached() {
            Ok(detached) => Some((detached, mutator)),
            Err(m) => {
                // Forgotten, because the original stays in its place.
                std::mem::forget(m);
                return None;
            }
        },
    };
    MUTATOR.set(std::ptr::null_mut());
    EXCLUSIVE.set(true);
    Some(ForkingThread(own))
}

/// Undoes [`put_down`].
pub(crate) fn take_up(ForkingThread(own): ForkingThread) {
    EXCLUSIVE.set(false);
    let Some((detached, place)) = own else { return };
    let Ok(mutator) = detached.attach() else {
        standstill::stderr::line(format_args!(
            "standstill: a thread that has forked cannot attach again"
        ));
        std::process::abort();
    };
    // SAFETY: rule *thread*: the place of the thread's mutator, which `put_down` has read.
    unsafe { place.write(mutator) };
    MUTATOR.set(place);
}

/// Allocates everything that a thread needs before it attaches: the memory of a mutator, and room
/// to set errors aside.
fn place() -> Result<Place, Fault> {
    errors::prepare()?;
    Ok(fallible::boxed(MaybeUninit::uninit())?)
}

/// Makes this mutator the thread's own.
fn arrive(mutator: Mutator, mut place: Place) {
    if dynamic::is_checked(&mutator) {
        call::set_checked();
    }
    crate::fork::watch();
    place.write(mutator);
    MUTATOR.set(Box::into_raw(place).cast());
    // Thread-locals are destroyed in the reverse order of their first use. `AT_EXIT` must be
    // destroyed before the library's own watch over the thread and before `DETACHED`, so it is used
    // after them. On a thread whose thread-locals are gone it fails, because nothing is left to
    // end.
    DETACHED.try_with(|_| ()).unwrap_or(());
    AT_EXIT.try_with(|_| ()).unwrap_or(());
}

/// Takes the mutator out, with its memory. Fails if code up the stack is using it.
fn take(function: &'static str) -> Result<(Mutator, Place), Fault> {
    // SAFETY: rule *thread*.
    match unsafe { MUTATOR.get().as_ref() } {
        Some(m) if m.may_park() && GUESTS.get() == 0 => {}
        None if !is_attached() => return Err(Fault::new(Code::NotAttached, function)),
        _ => return Err(Fault::new(Code::NotAllowedHere, function)),
    }
    let mutator = MUTATOR.replace(std::ptr::null_mut());
    // SAFETY: rule *thread*: `arrive` has put it there, and it is read once.
    unsafe {
        let place: Place = Box::from_raw(mutator.cast());
        Ok((place.assume_init_read(), place))
    }
}

fn detach(function: &'static str) -> Result<(), Fault> {
    take(function).map(drop)
}

pub(crate) fn refused(error: AttachError, function: &'static str) -> Fault {
    let text = match error {
        AttachError::AlreadyAttached => "the thread is attached to a heap already; detach it first",
        AttachError::Traversing => "a thread cannot attach in a traverse handler",
        AttachError::Suspending => {
            "the thread keeps another one suspended; resume that thread first"
        }
        AttachError::ThreadEnding => {
            "the thread is ending; attach in the thread's function, not in a destructor"
        }
        AttachError::Memory => "there is no memory for the record of the thread",
        AttachError::NoThreadIds => "no thread ids are left in this process",
        _ => "the thread is inside a call that the new attachment could outlive",
    };
    let code = if error == AttachError::Memory { Code::Memory } else { Code::NotAllowedHere };
    Fault::new(code, function).because(text)
}

fn enter(heap: *mut standstill_heap, function: &'static str) -> Result<(), Fault> {
    let heap = world::heap_at(heap)?;
    let place = place()?;
    let mutator = heap.try_attach().map_err(|error| refused(error, function))?;
    arrive(mutator, place);
    Ok(())
}

fn status(result: Result<(), Fault>, report: fn(Fault)) -> c_int {
    match result {
        Ok(()) => 0,
        Err(fault) => {
            report(fault);
            -1
        }
    }
}

/// Fails on a thread that is ending and has lost the list of its saved states. Callers check this
/// before they change anything.
fn must_not_be_ending(function: &'static str) -> Result<(), Fault> {
    DETACHED.try_with(|_| ()).map_err(|_| {
        Fault::new(Code::NotAllowedHere, function)
            .because("the thread is ending and can no longer attach or detach")
    })
}

/// Undoes a `PyGILState_Ensure`.
fn release(function: &'static str) -> Result<(), Fault> {
    must_not_be_ending(function)?;
    let last = DETACHED.with(|down| down.borrow().ensured.last().copied());
    let Some(last) = last else {
        return Err(
            Fault::new(Code::NotAllowedHere, function).because("there was no PyGILState_Ensure")
        );
    };
    let (mutator, place) = take(function)?;
    DETACHED.with(|down| down.borrow_mut().ensured.pop());
    let Ensured::TakenUp(state) = last else {
        drop(mutator);
        return Ok(());
    };
    match mutator.into_detached() {
        // SAFETY: rule *pinned*: the saved state still exists, since `restore` refuses to free it
        // before this release.
        Ok(detached) => unsafe {
            (*state).detached = Some(detached);
            (*state).place = Some(place);
        },
        Err(mutator) => arrive(mutator, place),
    }
    Ok(())
}

/// Detaches the mutator into a saved state.
fn save(function: &'static str) -> Result<*mut standstill_thread_state, Fault> {
    must_not_be_ending(function)?;
    // All allocations come first, because only a thread that stays attached can report a failure.
    let mut state = fallible::boxed(standstill_thread_state { detached: None, place: None })?;
    DETACHED.with(|down| down.borrow_mut().saved.try_reserve(1)).map_err(NoMemory::from)?;
    let (mutator, place) = take(function)?;
    match mutator.into_detached() {
        Ok(detached) => {
            (state.detached, state.place) = (Some(detached), Some(place));
            let state = Box::into_raw(state);
            DETACHED.with(|down| down.borrow_mut().saved.push(state));
            Ok(state)
        }
        Err(mutator) => {
            arrive(mutator, place);
            Err(Fault::new(Code::NotAllowedHere, function))
        }
    }
}

/// Attaches the mutator of the saved state `state` again.
fn restore(state: *mut standstill_thread_state, function: &'static str) -> Result<(), Fault> {
    let address = state as usize;
    let fault =
        |code, text: &'static str| Err(Fault::new(code, function).at(address).because(text));
    must_not_be_ending(function)?;
    let known = DETACHED
        .with(|down| down.borrow().saved.iter().rposition(|&saved| std::ptr::eq(saved, state)));
    let Some(at) = known else {
        return fault(Code::ForeignPointer, "this is no saved state of this thread");
    };
    // SAFETY: rule *pinned*: the state is in the list, so it has not been freed.
    let parts = unsafe { &mut *state };
    // Both are present or neither is.
    let (Some(detached), Some(place)) = (parts.detached.take(), parts.place.take()) else {
        return fault(Code::NotAllowedHere, "a PyGILState_Ensure has not been released");
    };
    match detached.attach() {
        Ok(mutator) => {
            DETACHED.with(|down| down.borrow_mut().saved.remove(at));
            // SAFETY: as above; the state is no longer in the list.
            drop(unsafe { Box::from_raw(state) });
            arrive(mutator, place);
            Ok(())
        }
        Err(detached) => {
            // SAFETY: as above.
            unsafe { ((*state).detached, (*state).place) = (Some(detached), Some(place)) };
            fault(Code::NotAllowedHere, "the thread is attached to a heap")
        }
    }
}

/// Attaches the thread if it is not attached: with the mutator that was saved last, or else to the
/// default heap.
fn ensure(function: &'static str) -> Result<Option<Ensured>, Fault> {
    if is_attached() {
        return Ok(None);
    }
    must_not_be_ending(function)?;
    DETACHED.with(|down| down.borrow_mut().ensured.try_reserve(1)).map_err(NoMemory::from)?;
    let state = DETACHED.with(|down| down.borrow().saved.last().copied());
    // SAFETY: rule *pinned*: the state is in the list.
    let parts = state.map(|state| unsafe { ((*state).detached.take(), (*state).place.take()) });
    if let Some(state) = state
        && let Some((Some(detached), Some(place))) = parts
    {
        match detached.attach() {
            Ok(mutator) => {
                arrive(mutator, place);
                return Ok(Some(Ensured::TakenUp(state)));
            }
            // SAFETY: as above.
            Err(detached) => unsafe {
                ((*state).detached, (*state).place) = (Some(detached), Some(place))
            },
        }
    }
    enter(std::ptr::null_mut(), function)?;
    Ok(Some(Ensured::Attached))
}

/// `PyGILState_STATE`: whether the thread was attached before.
const LOCKED: c_int = 0;
const UNLOCKED: c_int = 1;

export! {
    /// Attaches the calling thread.
    fn standstill_attach(heap: *mut standstill_heap) -> c_int {
        const FUNCTION: &str = "standstill_attach";
        call::outside(FUNCTION, -1, || {
            status(enter(heap, FUNCTION), |mut fault| {
                fault.function = FUNCTION;
                if errors::is_gone() { errors::misuse(fault) } else { errors::set_fault(&fault) }
            })
        })
    }

    /// Detaches the calling thread.
    fn standstill_detach() -> c_int {
        const FUNCTION: &str = "standstill_detach";
        call::outside(FUNCTION, -1, || status(detach(FUNCTION), errors::misuse))
    }

    /// Whether the calling thread is attached.
    fn standstill_is_attached() -> c_int {
        call::outside("standstill_is_attached", 0, || c_int::from(is_attached()))
    }

    /// Lets a collection run here.
    fn standstill_safepoint() {
        const FUNCTION: &str = "standstill_safepoint";
        call::outside(FUNCTION, (), || {
            status(exclusively(FUNCTION, Mutator::safepoint), errors::misuse);
        });
    }

    /// Detaches the thread and returns its saved state.
    fn standstill_PyEval_SaveThread() -> *mut standstill_thread_state {
        const FUNCTION: &str = "PyEval_SaveThread";
        call::outside(FUNCTION, std::ptr::null_mut(), || {
            save(FUNCTION).unwrap_or_else(|fault| {
                errors::misuse(fault);
                std::ptr::null_mut()
            })
        })
    }

    /// Attaches the mutator of a saved state again. Null does nothing, because `PyEval_SaveThread`
    /// returns it after a failure.
    fn standstill_PyEval_RestoreThread(state: *mut standstill_thread_state) {
        const FUNCTION: &str = "PyEval_RestoreThread";
        call::outside(FUNCTION, (), || {
            if !state.is_null() {
                status(restore(state, FUNCTION), errors::misuse);
            }
        });
    }

    /// Attaches the thread unless it is attached.
    fn standstill_PyGILState_Ensure() -> c_int {
        const FUNCTION: &str = "PyGILState_Ensure";
        call::outside(FUNCTION, LOCKED, || match ensure(FUNCTION) {
            Ok(None) => LOCKED,
            Ok(Some(ensured)) => {
                DETACHED.with(|down| down.borrow_mut().ensured.push(ensured));
                UNLOCKED
            }
            Err(fault) => {
                errors::misuse(fault);
                LOCKED
            }
        })
    }

    /// Undoes the `PyGILState_Ensure` that returned `state`.
    fn standstill_PyGILState_Release(state: c_int) {
        const FUNCTION: &str = "PyGILState_Release";
        call::outside(FUNCTION, (), || {
            if state != LOCKED {
                status(release(FUNCTION), errors::misuse);
            }
        });
    }

    /// Attaches the calling thread to the default heap.
    fn standstill_Py_Initialize() {
        const FUNCTION: &str = "Py_Initialize";
        call::outside(FUNCTION, (), || {
            if let Err(mut fault) = crate::fork::must_not_be_inside(FUNCTION) {
                fault.function = FUNCTION;
                return errors::misuse(fault);
            }
            if !is_attached() && status(enter(std::ptr::null_mut(), FUNCTION), errors::misuse) != 0
            {
                return;
            }
            INITIALIZED.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    /// Runs a last collection, then detaches the thread.
    fn standstill_Py_Finalize() {
        const FUNCTION: &str = "Py_Finalize";
        call::outside(FUNCTION, (), || {
            if !INITIALIZED.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
            crate::gc::last_collection(FUNCTION);
            // If the thread cannot be detached, the library stays initialized, and a later call can
            // finish.
            if status(detach(FUNCTION), errors::misuse) == 0 {
                INITIALIZED.store(false, std::sync::atomic::Ordering::Relaxed);
            }
        });
    }

    /// Whether `Py_Initialize` was called and `Py_Finalize` was not.
    fn standstill_Py_IsInitialized() -> c_int {
        call::outside("Py_IsInitialized", 0, || {
            c_int::from(INITIALIZED.load(std::sync::atomic::Ordering::Relaxed))
        })
    }
}

static INITIALIZED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[cfg(test)]
mod tests;
