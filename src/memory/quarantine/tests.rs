//! Tests of the quarantine.

use super::*;

fn memory() -> [u64; 8] {
    [7; 8]
}

fn cell(memory: &mut [u64; 8]) -> Cell {
    Cell::in_test(memory)
}

#[test]
fn the_oldest_leaves_when_there_is_no_room() {
    let quarantine = Quarantine::of_cells(Stress::none().quarantine(2), None).unwrap();
    let mut memory = [memory(), memory(), memory()];
    let cells = memory.each_mut().map(cell);
    // SAFETY: rule *pinned*: the memory belongs to this test.
    let back = cells.map(|cell| unsafe { quarantine.admit(cell, 0) }.map(Cell::start));
    assert_eq!(back, [None, None, Some(cells[0].start())]);
    assert_eq!(std::iter::from_fn(|| quarantine.pop()).count(), 2);
    // Without poison the bytes keep their values, and any values pass.
    // SAFETY: as above.
    unsafe { quarantine.check_out(cells[0]) };
    assert_eq!(memory[0], [7; 8]);
}

/// Each new cell removes the oldest one, once a limit is reached, and none before.
#[test]
fn the_quarantine_of_objects_is_full_at_its_limits_and_not_before() {
    use crate::memory::shape::Shape;
    use crate::memory::size_class::{CLASS_SHAPES, CLASSES};
    const BYTES: usize = 4 << 20;
    let bytes = |shape: Shape| shape.room().bytes();
    let exact = |shape: &&Shape| BYTES.is_multiple_of(bytes(**shape)) && bytes(**shape) > 1024;
    // Small objects up to the limit of objects, and others up to the exact limit of bytes.
    let large = Shape::large(BYTES / 4, 16, 0).expect("a size");
    for (shape, most) in [CLASS_SHAPES[0], *CLASS_SHAPES[..CLASSES].iter().find(exact).unwrap()]
        .map(|shape| (shape, (BYTES / bytes(shape)).min(4096)))
        .into_iter()
        .chain([(large, BYTES / bytes(large))])
    {
        let mut quarantine = Quarantine::of_objects();
        quarantine.poison = false;
        let mut memory = vec![0u8; most + 10];
        for (at, byte) in memory.iter_mut().enumerate() {
            // Its memory is not accessed.
            let cell = Cell::of(shape, NonNull::from(byte));
            // SAFETY: rule *pinned*: without poison the quarantine is a list of addresses.
            let due = unsafe { quarantine.admit(cell, 0) };
            assert_eq!(due.is_some(), at >= most, "object {at} of {most}");
            assert!(quarantine.pop_excess().is_none(), "one left, and that is enough");
        }
        assert_eq!(std::iter::from_fn(|| quarantine.pop()).count(), most);
        assert_eq!(quarantine.entries.lock().bytes, 0);
    }
}

#[test]
fn a_write_after_the_free_is_found_with_its_place_and_type() {
    let name: TypeNamer = Box::new(|_| Some("Node"));
    let quarantine = Quarantine::of_cells(Stress::none().poison(true), Some(name)).unwrap();
    let mut memory = memory();
    let cell = cell(&mut memory);
    // SAFETY: rule *pinned*: the memory belongs to this test.
    unsafe {
        assert!(quarantine.admit(cell, 0).is_some());
        quarantine.check(cell, 0).unwrap();
        cell.start().add(40).write(1);
        let error = quarantine.check(cell, 0).unwrap_err();
        let place = format!("{:#x}", cell.start().as_ptr().addr());
        assert!(
            error.contains("Node") && error.contains(&place) && error.contains("bytes 40 to 40"),
            "{error}"
        );
        quarantine.poison(cell, 0);
        cell.start().cast::<u32>().write(1);
        assert!(
            quarantine.check(cell, 0).is_err() && quarantine.check(cell, 4).is_ok(),
            "but for a link"
        );
        quarantine.overwrite_link(cell.start());
        quarantine.check_out(cell);
    }
}
