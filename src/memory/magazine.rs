//! An allocation pops a free cell from a magazine, and a free pushes one. Mostly both use the same
//! magazine, so that a cell is used again while it is in the processor's cache.
//!
//! In a heap that [samples](crate::memory::samples) each allocation counts, although the fast path
//! has no counter. So frees have magazines of their own there, and an allocation pops only what a
//! refill has counted. For example, a refill has put 64 cells out. After 64 allocations the
//! magazine is empty, whatever the thread has freed meanwhile, and the refill takes the freed
//! cells. The fast paths are the same in both kinds of heap, because each finds its magazines by
//! its own pointer.
//!
//! # Invariants
//!
//! * `out` and `back` are the same array, or arrays with the same capacities, which only this value
//!   uses. So two references into them exist at a time only while they are apart.

use std::ptr::NonNull;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::IS_MODEL;
use crate::memory::shape::PAGE_SIZE;
use crate::memory::size_class::{CLASS_SIZES, CLASSES};

pub(super) const MAGAZINE_CAPACITY: usize = if IS_MODEL { 2 } else { 64 };

#[derive(Debug)]
pub(super) struct Magazine {
    pub(super) len: u32,
    /// At most `MAGAZINE_CAPACITY`, and less for large cells, so that a magazine holds at most a
    /// page.
    pub(super) capacity: u32,
    pub(super) cells: [NonNull<u8>; MAGAZINE_CAPACITY],
}

impl Magazine {
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<NonNull<u8>> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: rule *bounds*: `len` is below `capacity`, which is at most `MAGAZINE_CAPACITY`.
        Some(unsafe { *self.cells.get_unchecked(self.len as usize) })
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// The caller has made room, so the length is not checked again.
    #[inline(always)]
    pub(super) fn push(&mut self, cell: NonNull<u8>) {
        debug_assert!(self.len < self.capacity);
        // SAFETY: rule *bounds*: `len` is below `capacity`, which is at most `MAGAZINE_CAPACITY`.
        unsafe { *self.cells.get_unchecked_mut(self.len as usize) = cell };
        self.len += 1;
    }
}

/// The magazines of an arena, by class.
pub(super) struct Magazines {
    /// Those of allocations.
    out: NonNull<[Magazine; CLASSES]>,
    /// Those of frees.
    back: NonNull<[Magazine; CLASSES]>,
}

impl Magazines {
    /// Magazines of at most `most` cells, of which allocations and frees use the same.
    pub(super) fn new(most: usize) -> Result<Self, NoMemory> {
        let capacity = |class: usize| (PAGE_SIZE / CLASS_SIZES[class]).clamp(2, MAGAZINE_CAPACITY);
        let both = array(|class| capacity(class).min(most) as u32)?;
        Ok(Self { out: both, back: both })
    }

    /// Gives frees magazines of their own.
    pub(super) fn part(&mut self) -> Result<(), NoMemory> {
        debug_assert_eq!(self.out, self.back);
        let out = self.out();
        self.back = array(|class| out[class].capacity)?;
        Ok(())
    }

    #[inline(always)]
    pub(super) fn out(&mut self) -> &mut [Magazine; CLASSES] {
        // SAFETY: rule *pinned*: the array lives as long as this value, which has lent it mutably.
        unsafe { self.out.as_mut() }
    }

    #[inline(always)]
    pub(super) fn back(&mut self) -> &mut [Magazine; CLASSES] {
        // SAFETY: as in `out`.
        unsafe { self.back.as_mut() }
    }

    /// Puts the newest `count` cells of frees out. The arrays are apart.
    pub(super) fn reuse(&mut self, class: u8, count: u32) {
        assert_ne!(self.out, self.back);
        // SAFETY: rule *pinned*: as in `out`; the arrays are two.
        let (out, back) = unsafe { (self.out.as_mut(), self.back.as_mut()) };
        let (out, back) = (&mut out[usize::from(class)], &mut back[usize::from(class)]);
        let newest = (back.len - count) as usize..back.len as usize;
        let (from, to) = (out.len as usize, (out.len + count) as usize);
        out.cells[from..to].copy_from_slice(&back.cells[newest]);
        back.len -= count;
        out.len += count;
    }

    /// Exchanges the magazines of a class. Returns whether they are two.
    pub(super) fn swap(&mut self, class: usize) -> bool {
        let are_two = self.out != self.back;
        if are_two {
            // SAFETY: rule *pinned*: as in `out`; the arrays are two.
            let (out, back) = unsafe { (self.out.as_mut(), self.back.as_mut()) };
            std::mem::swap(&mut out[class], &mut back[class]);
        }
        are_two
    }

    /// All free cells of a class.
    pub(super) fn cells(&self, class: usize) -> impl Iterator<Item = NonNull<u8>> {
        let arrays = [Some(self.out), (self.out != self.back).then_some(self.back)];
        arrays.into_iter().flatten().flat_map(move |array| {
            // SAFETY: rule *pinned*: as in `out`, and this value is borrowed meanwhile.
            let magazine = unsafe { &array.as_ref()[class] };
            magazine.cells[..magazine.len as usize].iter().copied()
        })
    }
}

impl Drop for Magazines {
    fn drop(&mut self) {
        // SAFETY: rule *pinned*: `array` has made each array, and nobody uses it any more.
        unsafe {
            if self.out != self.back {
                drop(Box::from_raw(self.back.as_ptr()));
            }
            drop(Box::from_raw(self.out.as_ptr()));
        }
    }
}

fn array(capacity: impl Fn(usize) -> u32) -> Result<NonNull<[Magazine; CLASSES]>, NoMemory> {
    let empty =
        |class| Magazine { len: 0, capacity: capacity(class), cells: [NonNull::dangling(); _] };
    Ok(NonNull::from(Box::leak(boxed(empty)?)))
}

/// A boxed array, built element by element, because tens of kilobytes must not pass through a small
/// stack.
pub(super) fn boxed<T>(element: impl FnMut(usize) -> T) -> Result<Box<[T; CLASSES]>, NoMemory> {
    let elements = fallible::collect((0..CLASSES).map(element))?.into_boxed_slice();
    Ok(elements.try_into().unwrap_or_else(|_| unreachable!("one element a class")))
}
