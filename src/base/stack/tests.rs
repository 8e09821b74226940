//! Tests of stacks.

#![forbid(unsafe_code)]
#![cfg(feature = "stacks")]

use super::*;

/// Calls itself in three ways, and at the bottom looks twice.
#[inline(never)]
fn call(path: &[u8], looks: &mut dyn FnMut()) -> usize {
    let Some((&way, rest)) = path.split_first() else {
        looks();
        return 0;
    };
    // Frames of several sizes, of which one is not constant.
    match way % 3 {
        0 => 1 + call(rest, looks),
        1 => wide(rest, looks) + 2,
        _ => {
            let list = vec![way; usize::from(way)];
            call(rest, looks) + std::hint::black_box(&list).len()
        }
    }
}

#[inline(never)]
fn wide(path: &[u8], looks: &mut dyn FnMut()) -> usize {
    let room = std::hint::black_box([path.len(); 40]);
    call(path, looks) + room[usize::from(path.len() as u8) % 40]
}

/// The outer calls, which both looks have in common.
fn look() -> [Vec<usize>; 2] {
    let [mut all, mut next] = [[0; MOST]; 2];
    let (all, next) = (capture(&mut all).to_vec(), capture_next(&mut next).to_vec());
    let inner = 4;
    let outer = all.len().min(next.len()).saturating_sub(inner);
    [all, next].map(|found| found[found.len() - outer..].to_vec())
}

#[test]
fn a_look_after_another_finds_what_unwinding_finds() {
    let mut random = 1_u64;
    let (mut path, mut looks, mut deep, mut found) = (Vec::new(), 0, 0, 0);
    for _ in 0..3_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Mostly a call changes near the end of the path, so that the rest is the same.
        let keep = path.len().saturating_sub((random >> 60) as usize);
        path.truncate(keep);
        (0..random >> 33 & 7).for_each(|at| path.push((random >> (40 + 2 * at)) as u8 & 7));
        path.truncate(70);
        call(&path, &mut || {
            let [all, next] = look();
            assert!(all.len() >= path.len().min(MOST - 4), "{} of {path:?}", all.len());
            assert_eq!(all, next, "{path:?}");
            looks += 1;
            found += all.len();
            deep += usize::from(all.len() > 20);
        });
    }
    assert!(looks == 3_000 && deep > 500, "{deep} deep ones");
    let unwound = LAST.with(|last| last.borrow().unwound);
    assert!(unwound < found / 10 * 9, "{unwound} calls unwound of {found}");
}
