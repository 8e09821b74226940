//! An arena that needs a free cell must not search pages without one. So it has two lists of pages
//! for each size class, of which one has the pages with marked cells.

use std::ptr::NonNull;

use crate::memory::address_map::AddressMap;
use crate::memory::page::PageList;
use crate::memory::shape::PAGE_GRANULES;
use crate::memory::size_class::CLASS_SHAPES;
use crate::memory::space::Space;

#[derive(Debug)]
pub(super) struct ClassPages {
    pub(super) partial: PageList,
    pub(super) full: PageList,
    /// The page that stays although it is empty, so that the next allocation need not take one from
    /// the pool.
    pub(super) spare: Option<u32>,
    /// Pages on `partial` and on `full` that are not visited yet in this round: see `sparse`.
    pub(super) unvisited: [usize; 2],
}

impl ClassPages {
    /// Marks free cells in the free bits of their pages, and moves the pages to the right list.
    ///
    /// # Safety
    ///
    /// The cells are free and in no other place. They lie on pages of the arena, of this class.
    pub(super) unsafe fn mark(
        &mut self,
        space: &Space<impl AddressMap>,
        class: u8,
        cells: &[NonNull<u8>],
    ) {
        let mut granules = cells.iter().map(|cell| space.granule(cell.as_ptr().addr()));
        let mut next = granules.next();
        while let Some(granule) = next {
            let first = granule / PAGE_GRANULES * PAGE_GRANULES;
            let page = (first / PAGE_GRANULES) as u32;
            let mut marked = 0;
            // SAFETY: rules *owner* and *mapped*: the cells lie on pages of the arena.
            unsafe {
                // Marked in groups, because neighbours in the magazine mostly lie on one page.
                space.free_bits(page, |bits| {
                    while let Some(bit) = next.map(|granule| granule.wrapping_sub(first))
                        && bit < PAGE_GRANULES
                    {
                        debug_assert!(
                            bits[bit / 64] & (1 << (bit % 64)) == 0,
                            "a cell was freed twice"
                        );
                        bits[bit / 64] |= 1 << (bit % 64);
                        marked += 1;
                        next = granules.next();
                    }
                });
                let free = space.info(page).owned(|owned| {
                    owned.free += marked;
                    owned.free
                });
                if free == marked {
                    self.full.remove(space, page);
                    self.partial.push_back(space, page);
                }
                if free as usize == CLASS_SHAPES[usize::from(class)].cells() {
                    self.release_or_spare(space, page);
                }
            }
        }
    }

    /// Puts a page on the list where it belongs.
    ///
    /// # Safety
    ///
    /// The page is the arena's, of this class, and on no list.
    pub(super) unsafe fn file(&mut self, space: &Space<impl AddressMap>, page: u32) {
        // SAFETY: as the caller says.
        unsafe {
            if space.info(page).owned(|owned| owned.free) == 0 {
                self.full.push_back(space, page);
            } else {
                self.partial.push_back(space, page);
            }
        }
    }

    /// Visits up to `most` pages of this round (see `sparse`), and returns how many it visited. A
    /// visited page becomes the last of its list, so that the next call visits others.
    pub(super) fn visit(&mut self, space: &Space<impl AddressMap>, most: usize) -> usize {
        let mut visited = 0;
        while visited < most {
            let list = match &mut self.unvisited {
                [0, 0] => break,
                [0, full] => {
                    *full -= 1;
                    &mut self.full
                }
                [partial, _] => {
                    *partial -= 1;
                    &mut self.partial
                }
            };
            visited += 1;
            // SAFETY: rule *owner*: the pages are the arena's. No magazine holds a cell of an empty
            // page.
            unsafe {
                let Some(page) = list.pop_front(space) else { continue };
                space.drain(page);
                self.file(space, page);
                match is_empty(space, page) {
                    true if self.spare != Some(page) => self.release_or_spare(space, page),
                    true => {}
                    false => space.return_pieces(page),
                }
            }
        }
        visited
    }

    /// Keeps one empty page as the last of the list, and releases the others.
    ///
    /// # Safety
    ///
    /// The page is the arena's, of this class, empty, and on `partial`.
    unsafe fn release_or_spare(&mut self, space: &Space<impl AddressMap>, page: u32) {
        // SAFETY: as the caller says.
        unsafe {
            self.partial.remove(space, page);
            match self.spare {
                Some(_) => space.release(page),
                None => {
                    self.spare = Some(page);
                    self.partial.push_back(space, page);
                }
            }
        }
    }
}

/// # Safety
///
/// The caller owns the small page.
pub(super) unsafe fn is_empty(space: &Space<impl AddressMap>, page: u32) -> bool {
    // SAFETY: as the caller says.
    let info = unsafe { space.info(page) };
    // SAFETY: as the caller says.
    unsafe { info.owned(|owned| owned.free as usize == info.shape().cells()) }
}

/// Takes free cells of a page in ascending order. Returns how many, at most as many as `out` holds.
///
/// # Safety
///
/// The caller owns the small page.
pub(super) unsafe fn take_cells(
    space: &Space<impl AddressMap>,
    page: u32,
    out: &mut [NonNull<u8>],
) -> usize {
    let first = page as usize * PAGE_GRANULES;
    let mut taken = 0;
    // SAFETY: rule *owner*: the caller owns the page, and the marks are on its granules.
    unsafe {
        space.free_bits(page, |bits| {
            for (index, word) in bits.iter_mut().enumerate() {
                while *word != 0 && taken < out.len() {
                    let granule = first + index * 64 + word.trailing_zeros() as usize;
                    *word &= *word - 1;
                    out[taken] = space.cell(granule);
                    taken += 1;
                }
            }
        });
        let returned = space.info(page).owned(|owned| {
            owned.free -= taken as u32;
            owned.returned
        });
        if returned != 0 {
            space.use_pieces(page, &out[..taken]);
        }
    }
    taken
}
