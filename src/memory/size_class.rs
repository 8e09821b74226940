//! The size classes of small objects.
//!
//! All constants here follow from one function, [`sizes`].

#![forbid(unsafe_code)]

use crate::memory::shape::{GRANULE, PAGE_HEADER, PAGE_SIZE, Shape};

/// The largest small object: a page holds two of them.
pub(crate) const SMALL_MAX: usize = (PAGE_SIZE - PAGE_HEADER) / 2 / GRANULE * GRANULE;
/// Up to this size each granule has its class.
const FINE_MAX: usize = if SMALL_MAX < 512 { SMALL_MAX } else { 512 };

/// The number of classes.
pub(crate) const CLASSES: usize = sizes(&mut [0; 128]);
/// The cell size of each class.
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
/// The page layout of each class.
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
    while (class as usize) < CLASSES {
        if class_align(class) >= align {
            return Some(class);
        }
        class += 1;
    }
    None
}

/// The layout of a class's pages.
pub(crate) const fn shape_of(class: u8) -> Shape {
    CLASS_SHAPES[class as usize]
}

/// The cell size of a class, in bytes.
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
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use crate::memory::shape::PAGE_GRANULES;

    #[test]
    fn classes_cover_all_sizes_with_little_waste() {
        assert_eq!(class_of(SMALL_MAX + 1), None);
        assert!(SMALL_MAX >= 32_000 && size_of::<Arena>() <= 32 << 10, "{}", size_of::<Arena>());
        let mut last = 0;
        for size in 0..=SMALL_MAX {
            let class = class_of(size).unwrap();
            assert!(class >= last && usize::from(class) < CLASSES);
            assert!(class_size(class) >= size);
            assert!(
                class == 0 || class_size(class - 1) < size,
                "the class of {size} is not the smallest"
            );
            last = class;
        }
        assert_eq!(usize::from(last), CLASSES - 1);
        for class in 0..CLASSES as u8 {
            let (size, shape) = (class_size(class), CLASS_SHAPES[usize::from(class)]);
            assert_eq!((size % GRANULE, shape.cell() * GRANULE, shape.class()), (0, size, class));
            assert_eq!(shape.cells(), (PAGE_SIZE - PAGE_HEADER) / size);
            assert!(
                shape.cells() >= 2
                    && (shape.first() + shape.cells() * shape.cell()) <= PAGE_GRANULES
            );
            assert!(!size.is_multiple_of(64) || class_align(class) >= 64);
            if class > 0 {
                assert!(
                    size * 4 <= class_size(class - 1) * 6 || size <= 128,
                    "a step to {size} is too wide"
                );
            }
        }
        for align in [1, 8, 32, 64, 128, 256] {
            let class = class_for(align, align).unwrap();
            assert!(class_align(class) >= align && class_size(class) <= 4 * align.max(GRANULE));
            assert_eq!(class_for(SMALL_MAX + 1, align), None);
        }
        assert_eq!(class_for(1, PAGE_SIZE), None);
    }
}
