//! What lies at an address? Checked mode asks this of each pointer that comes from a program.

use std::ptr::NonNull;

use crate::Mutator;
use crate::dynamic::handlers::traversed_heap;
use crate::dynamic::object::RawObject;
use crate::managed::ManagedCore;
use crate::memory::ranges::is_in_any_heap;
use crate::object::header::Header;
use crate::object::state::{self, StateByte};
use crate::report::error::Code;

/// The result of looking up an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A living object of the mutator's heap.
    Live,
    /// An immortal object outside of all heaps, as far as the bytes there tell.
    Static,
    /// An object of the mutator's heap that was freed.
    Freed,
    /// An address in another heap, or in the mutator's heap where no object can start.
    Foreign,
    /// Readable memory outside of all heaps, without an immortal object.
    Outside,
    /// Memory that cannot be read.
    Nowhere,
}

/// Looks up an address in the mutator's heap. The C ABI does this in checked mode with each pointer
/// that it receives.
///
/// # Safety
///
/// If the address is outside of all heaps and its memory can be read, the memory stays readable
/// during the call.
pub unsafe fn look_up(m: &Mutator, object: NonNull<RawObject>) -> Address {
    look_up_in(m.raw().core(), object)
}

/// [`look_up`] in the heap of this core.
fn look_up_in(core: &ManagedCore, object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if !core.space.contains(address) {
        return look_outside(object);
    }
    if !core.space.starts_at(address) {
        return Address::Foreign;
    }
    if live_at(core, object).is_some() { Address::Live } else { Address::Freed }
}

/// As [`look_up`](crate::dynamic::look_up), without a mutator. In a traverse handler it uses the
/// heap that is traversed, otherwise the heap to which this thread is attached. `None`: there is no
/// such heap, or the heap is not in checked mode.
///
/// # Safety
///
/// As for [`look_up`](crate::dynamic::look_up).
pub unsafe fn look_up_here(object: NonNull<RawObject>) -> Option<Address> {
    let looked = |core: &ManagedCore| core.model.is_checked().then(|| look_up_in(core, object));
    match traversed_heap() {
        Some(core) => looked(core),
        None => Mutator::with_current(|m| looked(m.raw().core())).flatten(),
    }
}

/// The header and the state of the object at an address; `None`: no living object of this heap lies
/// there.
fn live_at(core: &ManagedCore, object: NonNull<RawObject>) -> Option<(&Header, StateByte<'_>)> {
    let address = object.as_ptr() as usize;
    if !core.space.contains(address) || !core.space.starts_at(address) {
        return None;
    }
    // SAFETY: rule *mapped*: an object can start there, so its page was handed out.
    let (header, state) = unsafe { (object.cast::<Header>().as_ref(), core.state(address)) };
    (state.get() & state::LIVE != 0).then_some((header, state))
}

/// Looks up an address outside of the heap.
fn look_outside(object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if is_in_any_heap(address) {
        Address::Foreign
    } else if is_static_at(object) {
        Address::Static
    } else if crate::base::system::is_readable(address, size_of::<RawObject>()) {
        Address::Outside
    } else {
        Address::Nowhere
    }
}

/// Whether a static object lies at an address outside of all heaps, as far as the bytes there tell.
/// `false` for memory that cannot be read.
fn is_static_at(object: NonNull<RawObject>) -> bool {
    let address = object.as_ptr() as usize;
    address.is_multiple_of(align_of::<RawObject>())
        && crate::base::system::is_readable(address, size_of::<Header>())
        // SAFETY: rule *bounds*: readable, and outside of all heaps.
        && unsafe { object.cast::<Header>().as_ref() }.is_static()
}

/// The fault of an address that a handler visits; `None`: the address is of a living object, of a
/// static object, or in another heap.
pub(super) fn target_fault(core: &ManagedCore, target: NonNull<RawObject>) -> Option<Code> {
    let address = target.as_ptr() as usize;
    if !core.space.contains(address) {
        let known = is_in_any_heap(address) || is_static_at(target);
        return (!known).then_some(Code::ForeignPointer);
    }
    live_at(core, target).is_none().then_some(Code::FreedPointer)
}
