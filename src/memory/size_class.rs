//! A page has cells of one size only, so the sizes of small objects are rounded up to a few
//! *classes*.
//!
//! For example, an object of 530 bytes gets a cell of 576, because there are eight classes between
//! 512 and 1024 bytes. All constants here follow from one function, [`sizes`].

#![forbid(unsafe_code)]

use crate::memory::shape::{GRANULE, PAGE_HEADER, PAGE_SIZE, Shape};

/// The largest small object, of which a page still holds two.
pub(crate) const SMALL_MAX: usize = (PAGE_SIZE - PAGE_HEADER) / 2 / GRANULE * GRANULE;
/// Up to this size there is a class for each multiple of a granule.
const FINE_MAX: usize = if SMALL_MAX < 512 { SMALL_MAX } else { 512 };

pub(crate) const CLASSES: usize = sizes(&mut [0; 128]);
pub(super) const CLASS_SIZES: [usize; CLASSES] = {
    let mut all = [0; 128];
    sizes(&mut all);
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = all[class];
        class += 1;
    }
    table
};
pub(super) const CLASS_SHAPES: [Shape; CLASSES] = {
    let mut table = [Shape::FREE; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = Shape::small(class as u8, CLASS_SIZES[class]);
        class += 1;
    }
    table
};
/// The class of each size in granules.
const CLASS_OF: [u8; SMALL_MAX / GRANULE + 1] = {
    let mut table = [0; SMALL_MAX / GRANULE + 1];
    let (mut granules, mut class) = (0, 0);
    while granules < table.len() {
        if granules * GRANULE > CLASS_SIZES[class] {
            class += 1;
        }
        table[granules] = class as u8;
        granules += 1;
    }
    table
};

/// Writes the class sizes in ascending order and returns their number. There is a class for each
/// granule up to 512 bytes, and then eight for each doubling. From a sixteenth of a page on the
/// classes divide a page into 16, 15, ... 2 cells.
const fn sizes(out: &mut [usize; 128]) -> usize {
    let (mut count, mut size) = (0, 0);
    while size < FINE_MAX {
        size += GRANULE;
        out[count] = size;
        count += 1;
    }
    while size + step_above(size) <= PAGE_SIZE / 16 - step_above(size) {
        size += step_above(size);
        out[count] = size;
        count += 1;
    }
    let mut parts = 16;
    while parts >= 2 {
        let part = (PAGE_SIZE - PAGE_HEADER) / parts / GRANULE * GRANULE;
        if part > size {
            out[count] = part;
            count += 1;
        }
        parts -= 1;
    }
    count
}

/// An eighth of the power of two at or below `size`.
const fn step_above(size: usize) -> usize {
    (1 << size.ilog2()) / 8
}

/// The class for objects of `size` bytes. `None`: a large object.
#[inline]
pub(crate) const fn class_of(size: usize) -> Option<u8> {
    if size > SMALL_MAX { None } else { Some(CLASS_OF[size.div_ceil(GRANULE)]) }
}

/// The class for objects of `size` bytes that start on a multiple of `align`. `None`: a large
/// object.
pub(crate) const fn class_for(size: usize, align: usize) -> Option<u8> {
    let Some(mut class) = class_of(size) else { return None };
    // All cells start on granules. The table is not read for an alignment that is seldom wanted.
    if align <= GRANULE {
        return Some(class);
    }
    while (class as usize) < CLASSES {
        if class_align(class) >= align {
            return Some(class);
        }
        class += 1;
    }
    None
}

pub(crate) const fn shape_of(class: u8) -> Shape {
    CLASS_SHAPES[class as usize]
}

#[inline]
pub(crate) const fn class_size(class: u8) -> usize {
    CLASS_SIZES[class as usize]
}

/// The alignment that all cells of a class have.
pub(crate) const fn class_align(class: u8) -> usize {
    let shape = CLASS_SHAPES[class as usize];
    GRANULE << (shape.first() | shape.cell()).trailing_zeros()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
