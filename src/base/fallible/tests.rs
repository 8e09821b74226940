//! Tests of allocation that can fail.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn what_is_too_much_is_refused_and_changes_nothing() {
    let mut list = vec![1u8, 2];
    assert_eq!(zeroes(isize::MAX as usize), Err(NoMemory));
    assert_eq!(zeroes(usize::MAX), Err(NoMemory));
    assert!(!seems_to_have(isize::MAX as usize));
    assert_eq!(list.try_reserve(usize::MAX).map_err(NoMemory::from), Err(NoMemory));
    assert_eq!(list, [1, 2]);
}

#[test]
fn of_several_values_the_kept_ones_are_added() {
    for kept in [0u32, 0b1, 0b101_0110, 0b111_1111] {
        let mut list = vec![9];
        let is_kept = |at: usize| (kept >> at & 1) as u8;
        extend_kept(&mut list, 0..7, |at| (at, is_kept(at))).unwrap();
        let expected: Vec<usize> =
            std::iter::once(9).chain((0..7).filter(|&at| is_kept(at) != 0)).collect();
        assert_eq!(list, expected);
    }
    let mut numbers: Vec<u64> = Vec::new();
    let too_many = [(); usize::MAX];
    assert_eq!(extend_kept(&mut numbers, too_many.iter(), |()| (0, 1)), Err(NoMemory));
    assert!(numbers.is_empty());
}

#[test]
fn enough_room_is_kept() {
    let mut list = Vec::new();
    push(&mut list, 1).unwrap();
    append(&mut list, &mut vec![2, 3]).unwrap();
    assert_eq!(list, collect(1..4).unwrap());
    let mut other = Vec::new();
    append(&mut other, &mut list).unwrap();
    assert_eq!((other.len(), list.len()), (3, 0));
    assert_eq!(zeroes(1000).unwrap(), vec![0; 1000]);
    assert_eq!(zeroes(0).unwrap(), []);
    assert_eq!(owned("memory").unwrap(), "memory");
    assert_eq!((*boxed([7; 9]).unwrap(), *boxed(()).unwrap()), ([7; 9], ()));
    assert!(seems_to_have(1));
}

#[test]
fn texts_are_written_out_and_copied() {
    assert_eq!(words!("memory {} out", "ran"), "memory ran out");
    assert_eq!(c_text(format_args!("a{}b", "\0")).unwrap().as_c_str(), c"a?b");
    assert_eq!(c_text("").unwrap().as_c_str(), c"");
    assert_eq!(lossy(b"good").unwrap(), "good");
    assert_eq!(lossy(b"b\xffd\xc3").unwrap(), String::from_utf8_lossy(b"b\xffd\xc3"));
}
