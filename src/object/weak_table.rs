//! The places of weak records, found by the target's address.
//!
//! The places are the leaves of a tree. The digits of an address lead from the root to the place:
//!
//! ```text
//!  address:  | not used | root | upper | lower | block | byte in the granule |
//!  bits:                   9      9       9       5      5
//! ```
//!
//! * A lookup takes no lock. A node is made when the first weak reference needs it, and stays until
//!   the heap ends.
//! * A heap's range is at most 2³⁷ bytes long. So two granules of a heap never have the same
//!   digits, wherever the range begins.
//! * A block has 256 bytes, for 1 KiB of the heap, and a lower node 4 KiB, for 512 KiB. A heap
//!   without weak references has no nodes.

#![forbid(unsafe_code)]

use crate::base::fallible::NoMemory;
use crate::base::once_box::OnceBox;

/// Two objects of a heap are at least this far apart. It is the granule of the heap's memory.
pub(crate) const SPACING: usize = 32;
/// The digits of an address, in bits: the block's is the first.
const BLOCK_BITS: u32 = if SMALL { 2 } else { 5 };
const LOWER_BITS: u32 = if SMALL { 2 } else { 9 };
const UPPER_BITS: u32 = if SMALL { 2 } else { 9 };
const ROOT_BITS: u32 = if SMALL { 3 } else { 9 };
/// Under loom a heap has a few pages, and each element of a node costs time.
const SMALL: bool = cfg!(all(test, loom));

/// An array of places or of pointers to other nodes.
struct Node<T, const N: usize>([T; N]);

impl<T: Default, const N: usize> Default for Node<T, N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

type Block<T> = Node<T, { 1 << BLOCK_BITS }>;
type Lower<T> = Node<OnceBox<Block<T>>, { 1 << LOWER_BITS }>;
type Upper<T> = Node<OnceBox<Lower<T>>, { 1 << UPPER_BITS }>;
type Root<T> = Node<OnceBox<Upper<T>>, { 1 << ROOT_BITS }>;

/// A place of type `T` for each granule of a heap's range, made on first use.
pub(super) struct Places<T>(OnceBox<Root<T>>);

impl<T: Default> Places<T> {
    /// The place of an address; `None`: it was not made yet.
    #[inline(always)]
    pub(super) fn get(&self, address: usize) -> Option<&T> {
        let [block, lower, upper, root] = digits(address);
        Some(&self.0.get()?.0[root].get()?.0[upper].get()?.0[lower].get()?.0[block])
    }

    /// The place of an address.
    pub(super) fn get_or_make(&self, address: usize) -> Result<&T, NoMemory> {
        let [block, lower, upper, root] = digits(address);
        let uppers = self.0.get_or_default()?.0[root].get_or_default()?;
        let blocks = uppers.0[upper].get_or_default()?;
        Ok(&blocks.0[lower].get_or_default()?.0[block])
    }
}

impl<T> Places<T> {
    /// Calls `f` with each place that was made.
    pub(super) fn for_each(&self, f: &mut impl FnMut(&T)) {
        fn below<T>(nodes: &[OnceBox<T>]) -> impl Iterator<Item = &T> {
            nodes.iter().filter_map(OnceBox::get)
        }
        let uppers = self.0.get().into_iter().flat_map(|root| below(&root.0));
        let lowers = uppers.flat_map(|upper| below(&upper.0));
        lowers.flat_map(|lower| below(&lower.0)).flat_map(|block| &block.0).for_each(f);
    }
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self(OnceBox::default())
    }
}

/// The digits of an address, from the block's on.
#[inline(always)]
fn digits(address: usize) -> [usize; 4] {
    let mut rest = address / SPACING;
    [BLOCK_BITS, LOWER_BITS, UPPER_BITS, ROOT_BITS].map(|bits| {
        let digit = rest & ((1 << bits) - 1);
        rest >>= bits;
        digit
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// The longest range of a heap: see `memory::range`.
    const LONGEST: usize = SPACING << 32;

    #[test]
    fn no_two_addresses_of_a_range_have_the_same_place() {
        for base in [0, 2 << 20, LONGEST - (2 << 20), LONGEST + (6 << 20), 0x7fff_ffe0_0000] {
            let steps = (5..37).map(|bit| 1usize << bit);
            let near = steps.flat_map(|step| [step, LONGEST - step]).chain([0]);
            let all: std::collections::BTreeSet<_> =
                near.clone().map(|at| digits(base + at)).collect();
            let distinct: std::collections::BTreeSet<_> = near.collect();
            assert_eq!(all.len(), distinct.len(), "{base:#x}");
        }
    }

    #[test]
    fn a_place_stays_where_it_is_and_is_not_made_by_a_lookup() {
        let places = Places::<std::sync::atomic::AtomicU8>::default();
        let base = 0x7fff_ffe0_0000;
        assert!(places.get(base).is_none());
        let made = places.get_or_make(base).expect("memory");
        assert!(std::ptr::eq(made, places.get(base).expect("made")));
        assert!(std::ptr::eq(made, places.get_or_make(base + SPACING - 1).expect("memory")));
        // In the same block, in another one, and below other nodes.
        let of_block = places.get(base + SPACING).expect("of the same block");
        assert!(!std::ptr::eq(made, of_block));
        for shift in [10, 19, 28] {
            assert!(places.get(base + (1 << shift)).is_none(), "{shift}");
            let other = places.get_or_make(base + (1 << shift)).expect("memory");
            assert!(!std::ptr::eq(made, other));
        }
    }
}
