//! What the system layer promises, on each system. `fork` belongs to one family only.

use super::*;

/// A reserved range, which is released at the end.
struct Reserved(NonNull<u8>, usize);

impl Reserved {
    fn new(bytes: usize) -> Self {
        Self(reserve(bytes).expect("a small range"), bytes)
    }

    /// # Safety
    ///
    /// The bytes are committed.
    unsafe fn bytes(&mut self, from: usize, bytes: usize) -> &mut [u8] {
        assert!(from + bytes <= self.1);
        // SAFETY: rule *bounds*: inside the range.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(from).as_ptr(), bytes) }
    }

    fn commit(&self, from: usize, bytes: usize) {
        assert!(from + bytes <= self.1);
        // SAFETY: rule *bounds*: inside the range.
        unsafe { commit(self.0.add(from), bytes) }.expect("a few pages");
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: rule *bounds*: the range was reserved with this size, and its owner ends.
        unsafe { release(self.0, self.1) }.expect("a range of this process");
    }
}

#[test]
fn a_reserved_range_is_not_readable_until_it_is_committed() {
    let page = page_size();
    let range = Reserved::new(8 * page);
    let start = range.0.addr().get();
    assert_eq!(start % page, 0);
    let readable = |from: usize, pages: usize| is_readable(start + from * page, pages * page);
    assert!((0..8).all(|from| !readable(from, 1)));
    range.commit(2 * page, 3 * page);
    assert!(readable(2, 3) && !readable(1, 1) && !readable(5, 1) && !readable(2, 4));
    drop(range);
    assert!(!readable(2, 1), "it was released");
}

#[test]
fn committed_memory_is_zero_and_keeps_its_contents() {
    let page = page_size();
    let mut range = Reserved::new(8 * page);
    range.commit(page, 4 * page);
    // SAFETY: rule *bounds*: committed.
    let bytes = unsafe { range.bytes(page, 4 * page) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    bytes.fill(7);
    // A part of this is committed already.
    range.commit(2 * page, 6 * page);
    // SAFETY: rule *bounds*: committed.
    let bytes = unsafe { range.bytes(page, 7 * page) };
    let (old, new) = bytes.split_at(4 * page);
    assert!(old.iter().all(|&byte| byte == 7) && new.iter().all(|&byte| byte == 0));
}

/// The system may keep the contents of discarded memory: each word reads as zero or as before.
#[test]
fn discarded_memory_is_zero_or_as_before_and_can_be_used_again() {
    let page = page_size();
    let mut range = Reserved::new(64 * page);
    range.commit(0, 64 * page);
    // SAFETY: rule *bounds*: committed. The test alone uses it.
    unsafe {
        range.bytes(0, 64 * page).fill(7);
        discard(range.0.add(page), 62 * page);
        discard(range.0, 0);
    }
    let start = range.0.addr().get();
    if let Some(resident) = testing::resident(start, 64 * page) {
        assert_eq!(resident, 2 * page);
    }
    // SAFETY: rule *bounds*: committed.
    let bytes = unsafe { range.bytes(0, 64 * page) };
    assert!(bytes[..page].iter().chain(&bytes[63 * page..]).all(|&byte| byte == 7));
    let gone = &mut bytes[page..63 * page];
    if cfg!(unix) {
        assert!(gone.iter().all(|&byte| byte == 0));
    } else {
        assert!(gone.chunks(8).all(|word| word == [0; 8] || word == [7; 8]));
    }
    gone.fill(9);
    assert!(gone.iter().all(|&byte| byte == 9));
}

#[test]
fn discarded_memory_can_be_read_meanwhile() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let page = page_size();
    let range = Reserved::new(4 * page);
    range.commit(0, 4 * page);
    // SAFETY: rule *bounds*: committed, aligned, and accessed as an atomic only.
    let word = unsafe { AtomicU64::from_ptr(range.0.add(page).cast().as_ptr()) };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let read = word.load(Ordering::Relaxed);
                assert!(read == 0 || read == 7, "{read}");
            }
        });
        for _ in 0..1000 {
            word.store(7, Ordering::Relaxed);
            // SAFETY: rule *bounds*: committed. The reader expects zero.
            unsafe { discard(range.0, 4 * page) };
        }
        ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn advice_changes_no_contents() {
    let mut range = Reserved::new(4 << 20);
    range.commit(0, 4 << 20);
    for request in [true, false] {
        // SAFETY: rule *bounds*: committed, in the range.
        unsafe {
            range.bytes(0, 4 << 20).fill(3);
            advise_huge(range.0, 4 << 20, request);
            assert!(range.bytes(0, 4 << 20).iter().all(|&byte| byte == 3));
            // Whether or not the system can do so.
            _ = collapse(range.0, 4 << 20);
            assert!(range.bytes(0, 4 << 20).iter().all(|&byte| byte == 3));
        }
    }
}

#[test]
fn impossible_sizes_are_errors() {
    let unit = page_size();
    for bytes in [0, usize::MAX / unit * unit, isize::MAX as usize / unit * unit] {
        let code = reserve(bytes).expect_err("no address space has room for this");
        assert_ne!(code, 0, "{bytes}");
        assert!(!std::io::Error::from_raw_os_error(code).to_string().is_empty());
    }
    let range = Reserved::new(4 * unit);
    // SAFETY: rule *bounds*: the part is in the range, and not in use.
    unsafe {
        if testing::spoil(range.0, unit) {
            assert_ne!(commit(range.0, unit).expect_err("it was spoiled"), 0);
        }
    }
}

#[test]
fn the_figures_of_the_machine_make_sense() {
    let page = page_size();
    assert!(page.is_power_of_two() && (4 << 10..=64 << 10).contains(&page), "{page}");
    let here = 0u8;
    assert!(addresses() > (&raw const here).addr() && addresses() >= 1 << 38);
    let memory = total_memory().expect("each tested system says it");
    assert!((64 << 20..1 << 50).contains(&memory), "{memory}");
    assert!(!has_more_rights_than_its_caller());
    let unreal = std::io::Error::from_raw_os_error(NO_MEMORY).kind();
    assert_eq!(unreal, std::io::ErrorKind::OutOfMemory);
}

#[test]
fn a_thread_has_a_number_until_it_ends() {
    let here = os_thread();
    assert_eq!(here, os_thread());
    assert!(!has_ended(here) && !has_ended(0));
    let thread = std::thread::spawn(|| {
        assert!(!has_ended(os_thread()));
        os_thread()
    });
    let other = thread.join().expect("no panic");
    assert_eq!(
        here != 0,
        cfg!(not(miri)) && cfg!(any(target_os = "linux", windows, target_vendor = "apple"))
    );
    if here != 0 {
        assert_ne!(here, other);
        // The system may need a moment after the join. Another test may have a thread with the
        // number by now.
        let mut wait = 0..1000;
        while !has_ended(other) && wait.next().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(has_ended(other));
    }
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "forks")]
fn a_thread_keeps_its_number_until_it_forks() {
    let here = os_thread();
    assert_eq!(here, os_thread());
    assert_ne!(here, std::thread::spawn(os_thread).join().expect("no panic"));
    // SAFETY: rule *bounds*: the child calls only functions that are safe after a fork.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit((os_thread() != u64::from(std::process::id())).into());
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status
    };
    assert_eq!((status, os_thread()), (0, here));
}

/// A readable page, and behind it a page that is mapped without access.
#[test]
#[cfg_attr(miri, ignore = "asks the system")]
fn memory_without_access_is_not_readable() {
    let page = page_size();
    let range = Reserved::new(2 * page);
    range.commit(0, page);
    let first = range.0.addr().get();
    let second = first + page;
    assert!(is_readable(first, page) && is_readable(second - 8, 8));
    assert!(!is_readable(second, 1) && !is_readable(second + page - 8, 8));
    assert!(!is_readable(second - 8, 16), "its end is not");
    assert!(!is_readable(0, 8) && !is_readable(8, 8) && !is_readable(usize::MAX - 7, 8));
    let local = 7u64;
    assert!(is_readable(std::ptr::from_ref(&local).addr(), 8));
}
