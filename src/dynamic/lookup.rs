//! Looking up an address: whether an object is there.

use std::ptr::NonNull;

use crate::Mutator;
use crate::dynamic::handlers;
use crate::dynamic::object::{RawObject, is_static_at};
use crate::managed;

/// What an address is, as far as looking it up can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A living object of the mutator's heap.
    Live,
    /// An immortal object outside of all heaps, by what lies there.
    Static,
    /// An object of the mutator's heap that was freed.
    Freed,
    /// In a heap, but no object of the mutator's.
    Foreign,
    /// Memory outside of all heaps, with no immortal object in it.
    Outside,
    /// Nothing that could be read.
    Nowhere,
}

/// Looks an address up in the mutator's heap: what checked mode does with every pointer that comes in.
///
/// # Safety
///
/// Outside of all heaps the address is looked at if it can be read; nobody may take it away meanwhile.
pub unsafe fn look_up(m: &Mutator, object: NonNull<RawObject>) -> Address {
    look_up_in(m.raw().core(), object)
}

/// As [`look_up`], wherever this thread is: in a traverse handler the heap is the one that is traversed. `None`: the thread has no
/// heap, or one that is not in checked mode.
///
/// # Safety
///
/// As for [`look_up`].
pub unsafe fn look_up_here(object: NonNull<RawObject>) -> Option<Address> {
    let looked =
        |core: &managed::ManagedCore| core.model.is_checked().then(|| look_up_in(core, object));
    match handlers::traversed_heap() {
        Some(core) => looked(core),
        None => Mutator::with_current(|m| looked(m.raw().core())).flatten(),
    }
}

fn look_up_in(core: &managed::ManagedCore, object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if !core.space.contains(address) {
        return look_outside(object);
    }
    if !core.space.starts_at(address) {
        return Address::Foreign;
    }
    // SAFETY: rule G: an object can start there, so its page was handed out.
    let state = unsafe { core.state(address) }.get();
    if state & crate::object::state::LIVE != 0 { Address::Live } else { Address::Freed }
}

/// What lies at an address that is not the heap's own.
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
