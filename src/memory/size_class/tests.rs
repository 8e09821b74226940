//! Tests of the size classes.

#![forbid(unsafe_code)]

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
            shape.cells() >= 2 && (shape.first() + shape.cells() * shape.cell()) <= PAGE_GRANULES
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
