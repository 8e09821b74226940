//! Allocations that can fail.
//!
//! A program that runs out of memory needs its collector most. A collection must therefore not end
//! the process if one of its own lists cannot grow, as std's containers would. All lists that grow
//! during a collection use this module, or `try_reserve` ahead of many pushes. A failure is a
//! value: [`NoMemory`] goes up to the phase, which abandons the collection.
//! `tests/alloc_failure.rs` refuses each allocation in turn. It lists the allocations inside std
//! and other packages whose failure still ends the process.

use std::collections::TryReserveError;
use std::sync::Arc;

/// Memory could not be allocated. It has no text, because a text would take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl NoMemory {
    /// For reports.
    pub(crate) const REASON: &str = "memory ran out";

    /// Ends the process, as std does, in functions without errors.
    #[cold]
    pub(crate) fn abort_process<T>(self) -> T {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<usize>())
    }
}

impl From<TryReserveError> for NoMemory {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

/// Adds a value to a list.
#[inline]
pub fn push<T>(list: &mut Vec<T>, value: T) -> Result<(), NoMemory> {
    list.try_reserve(1)?;
    list.push(value);
    Ok(())
}

/// Moves the elements of `more` to the end of a list. An empty list takes them over without a copy.
pub(crate) fn append<T>(list: &mut Vec<T>, more: &mut Vec<T>) -> Result<(), NoMemory> {
    if list.is_empty() {
        std::mem::swap(list, more);
        return Ok(());
    }
    list.try_reserve(more.len())?;
    list.append(more);
    Ok(())
}

/// Adds copies of values to a list.
#[cfg(feature = "cpython")]
pub(crate) fn extend<T: Copy>(list: &mut Vec<T>, more: &[T]) -> Result<(), NoMemory> {
    list.try_reserve(more.len())?;
    list.extend_from_slice(more);
    Ok(())
}

/// Computes a value for each item, and adds the values that are kept: those with a 1 beside them,
/// and not a 0.
///
/// The loop has no branch: it writes each value, and increments the length only for a kept value.
/// The length is in a register during the loop. In memory, each item would wait for the store of
/// the previous item.
#[inline(always)]
pub(crate) fn extend_kept<A, T: Copy>(
    list: &mut Vec<T>,
    items: impl ExactSizeIterator<Item = A>,
    mut value: impl FnMut(A) -> (T, u8),
) -> Result<(), NoMemory> {
    let count = items.len();
    list.try_reserve(count)?;
    let mut len = list.len();
    let elements = list.as_mut_ptr();
    // `take` makes it certain that there are no more. For slices it costs nothing.
    items.take(count).for_each(|item| {
        let (value, is_kept) = value(item);
        // SAFETY: rule *bounds*: there is room for `count` values.
        unsafe { elements.add(len).write(value) };
        len += usize::from(is_kept & 1);
    });
    // SAFETY: rule *bounds*: a value is written before it is counted.
    unsafe { list.set_len(len) };
    Ok(())
}

/// Collects an iterator of known length into a list.
pub fn collect<T>(values: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    list.try_reserve_exact(values.len())?;
    list.extend(values);
    Ok(list)
}

/// `len` zero bytes. The system need not touch them before their first use.
pub(crate) fn zeroes(len: usize) -> Result<Vec<u8>, NoMemory> {
    let layout = std::alloc::Layout::array::<u8>(len).map_err(|_| NoMemory)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: rule *bounds*: the layout is not empty.
    let bytes = unsafe { std::alloc::alloc_zeroed(layout) };
    if bytes.is_null() {
        return Err(NoMemory);
    }
    // SAFETY: rule *bounds*: from the global allocator, with the layout of `len` bytes, which are
    // all initialised.
    Ok(unsafe { Vec::from_raw_parts(bytes, len, len) })
}

/// An [`Arc`], for interfaces that need one. Its allocation cannot fail as a value. So this
/// function first allocates and frees as much memory. If another thread takes that memory first,
/// and no more is left, the process ends.
pub fn arc<T>(value: T) -> Result<Arc<T>, NoMemory> {
    room_for_arc::<T>()?;
    Ok(Arc::new(value))
}

/// Checks for the memory that [`arc`] needs.
pub(crate) fn room_for_arc<T>() -> Result<(), NoMemory> {
    // The two counts of an `Arc` lie in front of the value.
    seems_to_have(size_of::<(usize, usize, T)>()).then_some(()).ok_or(NoMemory)
}

/// A copy of the text.
pub fn owned(text: &str) -> Result<String, NoMemory> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy)
}

/// A boxed value, as [`Box::new`] makes it.
pub fn boxed<T>(value: T) -> Result<Box<T>, NoMemory> {
    let layout = std::alloc::Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: rule *bounds*: the layout is not empty.
    let place = unsafe { std::alloc::alloc(layout) }.cast::<T>();
    if place.is_null() {
        return Err(NoMemory);
    }
    // SAFETY: rule *bounds*: from the global allocator, with the layout of a box of this type.
    unsafe {
        place.write(value);
        Ok(Box::from_raw(place))
    }
}

/// Whether `bytes` bytes could be allocated just now. This is a hint, for allocations that cannot
/// fail as a value. Correctness must not depend on it.
pub(crate) fn seems_to_have(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_refused_and_changes_nothing() {
        let mut list = vec![1u8, 2];
        assert_eq!(zeroes(isize::MAX as usize), Err(NoMemory));
        assert_eq!(zeroes(usize::MAX), Err(NoMemory));
        assert!(!seems_to_have(isize::MAX as usize));
        assert_eq!(list.try_reserve(usize::MAX).map_err(NoMemory::from), Err(NoMemory));
        assert_eq!(list, [1, 2]);
    }

    #[test]
    fn of_several_values_the_kept_ones_are_added() {
        for kept in [0u32, 0b1, 0b101_0110, 0b111_1111] {
            let mut list = vec![9];
            let is_kept = |at: usize| (kept >> at & 1) as u8;
            extend_kept(&mut list, 0..7, |at| (at, is_kept(at))).unwrap();
            let expected: Vec<usize> =
                std::iter::once(9).chain((0..7).filter(|&at| is_kept(at) != 0)).collect();
            assert_eq!(list, expected);
        }
        let mut numbers: Vec<u64> = Vec::new();
        let too_many = [(); usize::MAX];
        assert_eq!(extend_kept(&mut numbers, too_many.iter(), |()| (0, 1)), Err(NoMemory));
        assert!(numbers.is_empty());
    }

    #[test]
    fn enough_room_is_kept() {
        let mut list = Vec::new();
        push(&mut list, 1).unwrap();
        append(&mut list, &mut vec![2, 3]).unwrap();
        assert_eq!(list, collect(1..4).unwrap());
        let mut other = Vec::new();
        append(&mut other, &mut list).unwrap();
        assert_eq!((other.len(), list.len()), (3, 0));
        assert_eq!(zeroes(1000).unwrap(), vec![0; 1000]);
        assert_eq!(zeroes(0).unwrap(), []);
        assert_eq!(owned("memory").unwrap(), "memory");
        assert_eq!((*boxed([7; 9]).unwrap(), *boxed(()).unwrap()), ([7; 9], ()));
        assert!(seems_to_have(1));
    }
}
