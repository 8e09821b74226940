//! Types: what becomes of a description, slot by slot and flag by flag, and what goes with a type.

#![cfg(not(loom))]

mod common;

use standstill::Heap;
use standstill::dynamic::{self, Class};

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "asks the system")]
fn a_type_that_goes_takes_its_name_with_it() {
    const NAME: usize = 1 << 20;
    let heap = Heap::new();
    let m = heap.attach();
    let make = |number: usize| {
        let name = format!("tests.{number}{}", "x".repeat(NAME));
        let class = Class::new(name).make(&m).unwrap();
        let object = class.instantiate(&m).unwrap();
        assert_eq!(class.record().name().len(), object.type_name(&m).len());
        assert!(dynamic::is_dynamic(&object));
    };
    make(0);
    let before = resident();
    (1..200).for_each(make);
    let more = resident().saturating_sub(before);
    assert!(more < 50 * NAME, "{more} bytes more after 200 types with names of 1 MiB");
}
