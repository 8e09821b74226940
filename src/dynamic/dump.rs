//! What lies at an address, in words, for a debugger.
//!
//! A debugger stops the threads anywhere, also inside of this library, and then calls a function of
//! it. So this file waits for no lock and takes no memory. It reads only where the tables of a heap
//! say that an object is, or where the system says that memory can be read.

use std::fmt;

use crate::Heap;
use crate::base::system::is_readable;
use crate::dynamic::object::{RawObject, TYPE_INDEX};
use crate::dynamic::record::TypeRecord;
use crate::object::state::{DYING, LIVE, ObjectFlags};

/// The words for an address, which [`dump`] returns, and which are read when they are displayed.
#[derive(Debug)]
pub struct Dump<'a> {
    heap: Option<&'a Heap>,
    object: *const RawObject,
}

/// Describes what lies at an address, which may be any: an object of one of these heaps, a static
/// object, or none. The words of an object are lines with its address, count, type, state and heap.
///
/// # Safety
///
/// While the words are displayed, no thread frees the object or its type, and the object's head is
/// intact. (Words of a head that was overwritten are wrong, and reading them may end the process.)
pub unsafe fn dump<'a>(
    heaps: impl IntoIterator<Item = &'a Heap>,
    object: *const RawObject,
) -> Dump<'a> {
    let mut heaps = heaps.into_iter();
    Dump { heap: heaps.find(|heap| heap.core().space.contains(object as usize)), object }
}

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.object as usize;
        write!(f, "object address  : {address:#x}")?;
        let Some(core) = self.heap.map(Heap::core) else {
            let can_be_one = address.is_multiple_of(align_of::<RawObject>())
                && is_readable(address, size_of::<RawObject>());
            // SAFETY: rule *bounds*: it can be read, and any bytes form a header.
            if can_be_one && unsafe { (*self.object).header.is_static() } {
                self.count_and_type(f)?;
                return f.write_str("\nobject state    : static");
            }
            let what = if is_readable(address, 1) { "memory of no heap" } else { "no memory" };
            return write!(f, "\nno object       : {what}");
        };
        if !core.space.starts_at(address) {
            return write!(f, "\nno object       : none starts here on heap '{}'", core.name);
        }
        // SAFETY: rule *mapped*: an object can start there, so its page was handed out.
        let state = unsafe { core.state(address) }.get();
        if state & LIVE == 0 {
            return write!(
                f,
                "\nno object       : freed, or not yet made, on heap '{}'",
                core.name
            );
        }
        self.count_and_type(f)?;
        let flags = ObjectFlags::of(state);
        let words = [
            (true, if flags.is_tracked() { "tracked" } else { "untracked" }),
            (true, if flags.is_young() { "young" } else { "old" }),
            (flags.is_frozen(), "frozen"),
            (flags.is_finalized(), "finalized"),
            (flags.is_unreachable(), "unreachable"),
            (state & DYING != 0, "dying"),
        ];
        f.write_str("\nobject state    : ")?;
        let words = words.into_iter().filter_map(|(is, word)| is.then_some(word));
        for (at, word) in words.enumerate() {
            write!(f, "{}{word}", if at == 0 { "" } else { ", " })?;
        }
        write!(f, "\nobject heap     : {}", core.name)
    }
}

impl Dump<'_> {
    /// Of an object: something alive starts here, or something static.
    fn count_and_type(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: rule *dynamic*: each object starts with a header.
        let header = unsafe { &(*self.object).header };
        match header.count() {
            Some(count) => write!(f, "\nobject refcount : {count}")?,
            None => f.write_str("\nobject refcount : immortal")?,
        }
        if header.type_index() != TYPE_INDEX {
            return write!(f, "\nobject type     : typed, of Rust, number {}", header.type_index());
        }
        // SAFETY: rule *dynamic*: the word behind the header of a dynamic object.
        let record = unsafe { (*self.object).record };
        if record.is_null() {
            return f.write_str("\nobject type     : not ready");
        }
        if !record.is_aligned() || !is_readable(record as usize, size_of::<TypeRecord>()) {
            return write!(f, "\nobject type     : overwritten by {record:p}");
        }
        // SAFETY: rule *dynamic*: the object keeps its record, whose head is intact.
        let record = unsafe { &*record };
        write!(f, "\nobject type     : {:p}\nobject type name: ", record.face())?;
        let name = record.name();
        let is_intact = is_readable(name.as_ptr() as usize, name.len());
        f.write_str(if is_intact { name } else { "overwritten" })
    }
}
