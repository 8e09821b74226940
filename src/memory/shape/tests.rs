//! Tests of the shapes.

#![forbid(unsafe_code)]

use super::*;

/// Sizes around a boundary.
fn around(boundary: usize) -> impl Iterator<Item = usize> {
    (boundary.saturating_sub(130)..=boundary.saturating_add(130)).filter(|&size| size > 0)
}

#[test]
fn a_large_object_ends_where_its_run_ends() {
    let aligns = (0..=MAX_ALIGN.ilog2()).map(|shift| 1 << shift);
    for align in aligns {
        let lengths = [0, 1, 2, 3, 17, 1000, u32::MAX as usize - 1];
        for size in lengths.into_iter().flat_map(|pages| around(pages * PAGE_SIZE)) {
            let shape = Shape::large(size, align, 0).unwrap();
            let (offset, room, run) =
                (shape.offset(), shape.room().bytes(), shape.footprint().bytes());
            assert_eq!(shape.kind(), PageKind::Large);
            assert_eq!((run, run % PAGE_SIZE), (shape.pages() * PAGE_SIZE, 0));
            assert_eq!(offset + room, run, "size {size}, alignment {align}");
            assert!(room >= size && (PAGE_HEADER..PAGE_SIZE).contains(&offset));
            assert_eq!((offset % align, offset % GRANULE, room % GRANULE), (0, 0, 0));
            // The run has no page too many.
            assert!(room < size + PAGE_SIZE);
            assert_eq!(shape.room().last_word() + size_of::<usize>(), room);
            assert_eq!(shape.room().behind(24), room - 24);
            for prefix in [1, 64, 1000, MAX_PREFIX] {
                let shape = Shape::large(size, align, prefix).unwrap();
                let (offset, room) = (shape.offset(), shape.room().bytes());
                assert!(room >= size && room < size + PAGE_SIZE);
                assert!((PAGE_HEADER + prefix..=MAX_ALIGN).contains(&offset));
                assert_eq!((offset % align, offset % GRANULE), (0, 0));
            }
        }
    }
}

#[test]
fn a_size_that_no_run_can_have_has_no_shape() {
    let most = u32::MAX as usize * PAGE_SIZE - PAGE_HEADER;
    assert!(Shape::large(most, 1, 0).is_some());
    for size in
        [most + 1, isize::MAX as usize, usize::MAX - PAGE_HEADER, usize::MAX - 1, usize::MAX]
    {
        for align in [1, GRANULE, PAGE_HEADER, 4096, MAX_ALIGN] {
            assert_eq!(Shape::large(size, align, 0), None, "{size}, {align}");
        }
    }
}

#[test]
fn cells_lie_behind_the_header_and_end_with_the_page() {
    for granules in 1..=(PAGE_SIZE - PAGE_HEADER) / 2 / GRANULE {
        let size = granules * GRANULE;
        let shape = Shape::small(7, size);
        assert_eq!((shape.kind(), shape.class(), shape.cell()), (PageKind::Small, 7, granules));
        assert_eq!((shape.room().bytes(), shape.footprint().bytes()), (size, size));
        assert!(shape.offset() >= PAGE_HEADER && shape.cells() >= 2);
        let end = shape.offset() + shape.cells() * size;
        assert!(end <= PAGE_SIZE, "{size}: the last of {} cells ends at {end}", shape.cells());
        assert_eq!(shape.cells(), (PAGE_SIZE - PAGE_HEADER) / size, "{size}: a cell was lost");
    }
}
