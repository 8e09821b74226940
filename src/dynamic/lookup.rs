//! Looks up an address: does an object lie there?

use std::ptr::NonNull;

use crate::Mutator;
use crate::dynamic::object::{RawObject, is_static_at};
use crate::managed;
use crate::object::header::Header;
use crate::object::state::{self, StateByte};

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
pub(super) fn look_up_in(core: &managed::ManagedCore, object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if !core.space.contains(address) {
        return look_outside(object);
    }
    if !core.space.starts_at(address) {
        return Address::Foreign;
    }
    if live_at(core, object).is_some() { Address::Live } else { Address::Freed }
}

/// The header and the state of the object at an address; `None`: no living object of this heap lies
/// there.
pub(super) fn live_at(
    core: &managed::ManagedCore,
    object: NonNull<RawObject>,
) -> Option<(&Header, StateByte<'_>)> {
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
    if crate::memory::space::is_in_any_heap(address) {
        Address::Foreign
    } else if is_static_at(object) {
        Address::Static
    } else if crate::base::system::is_readable(address, size_of::<RawObject>()) {
        Address::Outside
    } else {
        Address::Nowhere
    }
}
