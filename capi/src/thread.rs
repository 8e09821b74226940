//! What the library knows about the calling thread: its mutator, and those it has put down for a while.

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
    /// Rule T.
    static MUTATOR: Cell<*mut Mutator> = const { Cell::new(std::ptr::null_mut()) };
    /// Whether the mutator is in use exclusively up the stack: for a collection, or a safepoint.
    static EXCLUSIVE: Cell<bool> = const { Cell::new(false) };
    /// How often somebody up the stack has given the mutator away for a while, and will want it back: it must not be taken out.
    static GUESTS: Cell<usize> = const { Cell::new(0) };
    static PUT_DOWN: RefCell<PutDown> = const { RefCell::new(PutDown { saved: Vec::new(), ensured: Vec::new() }) };
    static AT_EXIT: AtExit = const { AtExit };
}

/// Where a mutator of this thread's lies, or will lie: made before the thread attaches, so that the attachment does not fail later
/// for want of memory.
type Place = Box<MaybeUninit<Mutator>>;

/// What `PyEval_SaveThread` gives to C.
#[derive(Debug)]
pub struct standstill_thread_state {
    /// `None` while `PyGILState_Ensure` has it attached again.
    detached: Option<Detached>,
    /// Where the mutator has been, and will be again.
    place: Option<Place>,
}

/// What a `PyGILState_Ensure` did, for its Release to undo.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ensured {
    /// It made the thread a mutator.
    Attached,
    /// It took up the one that this saved state had put down.
    TakenUp(*mut standstill_thread_state),
}

struct PutDown {
    /// Made by `Box::into_raw`.
    saved: Vec<*mut standstill_thread_state>,
    ensured: Vec<Ensured>,
}

/// Ends the attachment of a thread that ends without doing so.
struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        if let Err(fault) = leave("standstill_detach")
            && fault.code != Code::NotAttached
        {
            errors::misuse(fault);
        }
        let saved = PUT_DOWN
            .try_with(|down| std::mem::take(&mut down.borrow_mut().saved))
            .unwrap_or_default();
        for state in saved {
            // SAFETY: rule V: in the list, so not given back yet.
            drop(unsafe { Box::from_raw(state) });
        }
    }
}

/// The mutator, where it is at hand at once. Under a traverse handler it may be, or not.
///
/// What is called with it must not run code of the program's: that could come back for the mutator exclusively. Whoever
/// does runs under [`Mutator::with_current`], which lends it.
#[inline(always)]
pub(crate) fn at_hand<'a>() -> Option<&'a Mutator> {
    // SAFETY: rule T. The caller is on this thread, and done with it before anything else happens there.
    unsafe { MUTATOR.get().as_ref() }
}

/// Whether this thread is attached to a heap, by C or otherwise.
pub(crate) fn is_attached() -> bool {
    safepoint::current() != 0 || safepoint::is_traversing()
}

/// Whether a collection, or a safepoint that might be one, is going on up the stack.
pub(crate) fn is_collecting() -> bool {
    EXCLUSIVE.get()
}

/// Runs `f` with the mutator exclusively.
///
/// # Errors
///
/// When the thread is not attached, or code up the stack is using the mutator.
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
    // SAFETY: rule T.
    match unsafe { mutator.as_ref() } {
        Some(m) if m.may_park() => {}
        None if !is_attached() => return Err(Fault::new(Code::NotAttached, function)),
        _ => return Err(Fault::new(Code::NotAllowedHere, function)),
    }
    MUTATOR.set(std::ptr::null_mut());
    EXCLUSIVE.set(true);
    let _put_back = PutBack(mutator);
    // SAFETY: rule T: nobody else has it, since the pointer is null now, and nobody up the stack has borrowed it.
    Ok(f(unsafe { &mut *mutator }))
}

/// Runs `f` as if nobody up the stack had the mutator: the one who does gives it away meanwhile.
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

/// Takes the mutator away from the thread until [`give_back`], if nobody is using it.
pub(crate) fn take_up() -> Option<*mut Mutator> {
    let mutator = MUTATOR.get();
    // SAFETY: rule T.
    let free = unsafe { mutator.as_ref() }.is_some_and(Mutator::may_park);
    free.then(|| {
        EXCLUSIVE.set(true);
        MUTATOR.replace(std::ptr::null_mut())
    })
}

/// Undoes [`take_up`].
pub(crate) fn give_back(mutator: *mut Mutator) {
    MUTATOR.set(mutator);
    EXCLUSIVE.set(false);
}

/// Makes a place for a mutator, and whatever else a thread needs before it attaches.
fn place() -> Result<Place, Fault> {
    errors::prepare()?;
    Ok(fallible::boxed(MaybeUninit::uninit())?)
}

/// Takes a mutator as this thread's own.
fn arrive(mutator: Mutator, mut place: Place) {
    if dynamic::is_checked(&mutator) {
        call::note_checked();
    }
    crate::fork::watch();
    place.write(mutator);
    MUTATOR.set(Box::into_raw(place).cast());
    // After the library's own watch over the thread, and after what was put down, so that this one ends first.
    // A thread whose own variables are gone has nothing to end.
    PUT_DOWN.try_with(|_| ()).unwrap_or(());
    AT_EXIT.try_with(|_| ()).unwrap_or(());
}

/// Takes the mutator out, if it may be; its place comes with it.
fn take(function: &'static str) -> Result<(Mutator, Place), Fault> {
    // SAFETY: rule T.
    match unsafe { MUTATOR.get().as_ref() } {
        Some(m) if m.may_park() && GUESTS.get() == 0 => {}
        None if !is_attached() => return Err(Fault::new(Code::NotAttached, function)),
        _ => return Err(Fault::new(Code::NotAllowedHere, function)),
    }
    let mutator = MUTATOR.replace(std::ptr::null_mut());
    // SAFETY: rule T: put there by `arrive`, and read once.
    unsafe {
        let place: Place = Box::from_raw(mutator.cast());
        Ok((place.assume_init_read(), place))
    }
}

fn leave(function: &'static str) -> Result<(), Fault> {
    take(function).map(drop)
}

/// Why a thread is not attached.
fn refused(error: AttachError, function: &'static str) -> Fault {
    let text = match error {
        AttachError::AlreadyAttached => {
            "the thread is attached to a heap already: it leaves that one first"
        }
        AttachError::Traversing => "no thread is attached in a traverse handler",
        AttachError::Suspending => {
            "the thread keeps another one suspended, and lets that one go first"
        }
        AttachError::ThreadEnding => {
            "the thread is ending: it attaches in its own function, not in a destructor"
        }
        AttachError::Memory => "there is no memory for what a heap keeps about a thread",
        AttachError::NoThreadIds => "no thread ids are left in this process",
        _ => "the thread is in the middle of something that a new attachment could outlive",
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

fn told(result: Result<(), Fault>, tell: fn(Fault)) -> c_int {
    match result {
        Ok(()) => 0,
        Err(fault) => {
            tell(fault);
            -1
        }
    }
}

/// Refuses on a thread that is ending and has destroyed what says which attachments it has put down. Comes before anything is
/// changed.
fn must_not_be_ending(function: &'static str) -> Result<(), Fault> {
    PUT_DOWN.try_with(|_| ()).map_err(|_| {
        Fault::new(Code::NotAllowedHere, function)
            .because("the thread is ending, and its attachments are over")
    })
}

/// Undoes a `PyGILState_Ensure`.
fn release(function: &'static str) -> Result<(), Fault> {
    must_not_be_ending(function)?;
    let last = PUT_DOWN.with(|down| down.borrow().ensured.last().copied());
    let Some(last) = last else {
        return Err(
            Fault::new(Code::NotAllowedHere, function).because("there was no PyGILState_Ensure")
        );
    };
    let (mutator, place) = take(function)?;
    PUT_DOWN.with(|down| down.borrow_mut().ensured.pop());
    let Ensured::TakenUp(state) = last else {
        drop(mutator);
        return Ok(());
    };
    match mutator.into_detached() {
        // SAFETY: rule V: states are given back after what was ensured inside of them: see `restore`.
        Ok(detached) => unsafe {
            (*state).detached = Some(detached);
            (*state).place = Some(place);
        },
        Err(mutator) => arrive(mutator, place),
    }
    Ok(())
}

/// Puts the mutator down.
fn save(function: &'static str) -> Result<*mut standstill_thread_state, Fault> {
    must_not_be_ending(function)?;
    // All that takes memory comes first: a thread that stays attached can be told.
    let mut state = fallible::boxed(standstill_thread_state { detached: None, place: None })?;
    PUT_DOWN.with(|down| down.borrow_mut().saved.try_reserve(1)).map_err(NoMemory::from)?;
    let (mutator, place) = take(function)?;
    match mutator.into_detached() {
        Ok(detached) => {
            (state.detached, state.place) = (Some(detached), Some(place));
            let state = Box::into_raw(state);
            PUT_DOWN.with(|down| down.borrow_mut().saved.push(state));
            Ok(state)
        }
        Err(mutator) => {
            arrive(mutator, place);
            Err(Fault::new(Code::NotAllowedHere, function))
        }
    }
}

/// Takes up the mutator that was put down as `state`.
fn restore(state: *mut standstill_thread_state, function: &'static str) -> Result<(), Fault> {
    let address = state as usize;
    let fault =
        |code, text: &'static str| Err(Fault::new(code, function).at(address).because(text));
    must_not_be_ending(function)?;
    let known = PUT_DOWN
        .with(|down| down.borrow().saved.iter().rposition(|&saved| std::ptr::eq(saved, state)));
    let Some(at) = known else {
        return fault(Code::ForeignPointer, "this is no saved state of this thread");
    };
    // SAFETY: rule V: in the list, so not given back yet.
    let parts = unsafe { &mut *state };
    // They are there together.
    let (Some(detached), Some(place)) = (parts.detached.take(), parts.place.take()) else {
        return fault(Code::NotAllowedHere, "a PyGILState_Ensure has not been released");
    };
    match detached.attach() {
        Ok(mutator) => {
            PUT_DOWN.with(|down| down.borrow_mut().saved.remove(at));
            // SAFETY: as above, and no longer in the list.
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

/// Attaches the thread if it is not, by what is nearest: the state put down last, or the default heap.
fn ensure(function: &'static str) -> Result<Option<Ensured>, Fault> {
    if is_attached() {
        return Ok(None);
    }
    must_not_be_ending(function)?;
    PUT_DOWN.with(|down| down.borrow_mut().ensured.try_reserve(1)).map_err(NoMemory::from)?;
    let state = PUT_DOWN.with(|down| down.borrow().saved.last().copied());
    // SAFETY: rule V: in the list.
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

/// `PyGILState_STATE`: what the thread was before.
const LOCKED: c_int = 0;
const UNLOCKED: c_int = 1;

export! {
    /// Attaches the calling thread.
    fn standstill_attach(heap: *mut standstill_heap) -> c_int {
        const FUNCTION: &str = "standstill_attach";
        call::outside(FUNCTION, -1, || {
            told(enter(heap, FUNCTION), |mut fault| {
                fault.function = FUNCTION;
                errors::set_fault(&fault);
            })
        })
    }

    /// Ends that.
    fn standstill_detach() -> c_int {
        const FUNCTION: &str = "standstill_detach";
        call::outside(FUNCTION, -1, || told(leave(FUNCTION), errors::misuse))
    }

    /// Whether the calling thread is attached.
    fn standstill_is_attached() -> c_int {
        call::outside("standstill_is_attached", 0, || c_int::from(is_attached()))
    }

    /// Lets a collection happen here.
    fn standstill_safepoint() {
        const FUNCTION: &str = "standstill_safepoint";
        call::outside(FUNCTION, (), || {
            told(exclusively(FUNCTION, Mutator::safepoint), errors::misuse);
        });
    }

    /// Puts the thread's attachment down.
    fn standstill_PyEval_SaveThread() -> *mut standstill_thread_state {
        const FUNCTION: &str = "PyEval_SaveThread";
        call::outside(FUNCTION, std::ptr::null_mut(), || {
            save(FUNCTION).unwrap_or_else(|fault| {
                errors::misuse(fault);
                std::ptr::null_mut()
            })
        })
    }

    /// Takes it up again. Null: there was nothing to put down.
    fn standstill_PyEval_RestoreThread(state: *mut standstill_thread_state) {
        const FUNCTION: &str = "PyEval_RestoreThread";
        call::outside(FUNCTION, (), || {
            if !state.is_null() {
                told(restore(state, FUNCTION), errors::misuse);
            }
        });
    }

    /// Attaches the thread unless it is.
    fn standstill_PyGILState_Ensure() -> c_int {
        const FUNCTION: &str = "PyGILState_Ensure";
        call::outside(FUNCTION, LOCKED, || match ensure(FUNCTION) {
            Ok(None) => LOCKED,
            Ok(Some(ensured)) => {
                PUT_DOWN.with(|down| down.borrow_mut().ensured.push(ensured));
                UNLOCKED
            }
            Err(fault) => {
                errors::misuse(fault);
                LOCKED
            }
        })
    }

    /// Undoes the Ensure that gave `state`.
    fn standstill_PyGILState_Release(state: c_int) {
        const FUNCTION: &str = "PyGILState_Release";
        call::outside(FUNCTION, (), || {
            if state != LOCKED {
                told(release(FUNCTION), errors::misuse);
            }
        });
    }

    /// Attaches the calling thread to the default heap.
    fn standstill_Py_Initialize() {
        const FUNCTION: &str = "Py_Initialize";
        call::outside(FUNCTION, (), || {
            if !is_attached() && told(enter(std::ptr::null_mut(), FUNCTION), errors::misuse) != 0 {
                return;
            }
            INITIALIZED.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    /// A last collection, and the end of the attachment.
    fn standstill_Py_Finalize() {
        const FUNCTION: &str = "Py_Finalize";
        call::outside(FUNCTION, (), || {
            if !INITIALIZED.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
            crate::gc::last_collection(FUNCTION);
            // After a refusal the library is still initialized, so that a later call can end it.
            if told(leave(FUNCTION), errors::misuse) == 0 {
                INITIALIZED.store(false, std::sync::atomic::Ordering::Relaxed);
            }
        });
    }

    /// Whether it is between the two.
    fn standstill_Py_IsInitialized() -> c_int {
        call::outside("Py_IsInitialized", 0, || {
            c_int::from(INITIALIZED.load(std::sync::atomic::Ordering::Relaxed))
        })
    }
}

static INITIALIZED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_attachment_says_why() {
        let says = |error, code, part: &str| {
            let fault = refused(error, "function");
            assert_eq!((fault.code, fault.function), (code, "function"));
            assert!(fault.text.contains(part), "{error:?}: {}", fault.text);
        };
        says(AttachError::AlreadyAttached, Code::NotAllowedHere, "attached to a heap already");
        says(AttachError::Traversing, Code::NotAllowedHere, "in a traverse handler");
        says(AttachError::Suspending, Code::NotAllowedHere, "keeps another one suspended");
        says(AttachError::ThreadEnding, Code::NotAllowedHere, "the thread is ending");
        says(AttachError::Memory, Code::Memory, "no memory");
        says(AttachError::NoThreadIds, Code::NotAllowedHere, "no thread ids");
    }
}
