//! Tests of a page's bits.

#![forbid(unsafe_code)]

use super::*;
use crate::memory::size_class::CLASS_SHAPES;

#[test]
fn the_bits_of_an_empty_page_are_the_starts_of_its_cells() {
    for shape in CLASS_SHAPES {
        let mut expected = [0; _];
        for n in 0..shape.cells() {
            let granule = shape.first() + n * shape.cell();
            expected[granule / 64] |= 1 << (granule % 64);
        }
        let mut bits: FreeBits = [u64::MAX; _];
        all_free(shape, &mut bits);
        assert_eq!(bits, expected, "cells of {} granules", shape.cell());
    }
}
