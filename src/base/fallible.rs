//! Floor 0: memory that the collector asks for and may not get.
//!
//! A program that runs out of memory needs its collector most, so a collection must not end the process when one of
//! its own lists cannot grow, as std's containers would. Whatever grows during one grows through here, or by
//! `try_reserve` ahead of the pushes where they are many, and a refusal is a value: [`NoMemory`] goes up to the
//! step, which gives the collection up. `tests/alloc_failure.rs` refuses each allocation in turn, and lists those that
//! are made inside std and other packages, where a refusal still ends the process.

use std::borrow::Cow;
use std::collections::{HashMap, TryReserveError};
use std::ffi::{CStr, CString};
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::sync::{Mutex, RwLock};

/// There was no memory. It says no more, since words would take some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl NoMemory {
    /// For reports.
    pub(crate) const REASON: &str = "memory ran out";

    /// Ends the process, as std does: for functions that have promised not to fail.
    #[cold]
    pub(crate) fn end_process<T>(self) -> T {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<usize>())
    }
}

impl From<TryReserveError> for NoMemory {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

/// Adds a value to a list.
#[inline]
pub fn push<T>(list: &mut Vec<T>, value: T) -> Result<(), NoMemory> {
    list.try_reserve(1)?;
    list.push(value);
    Ok(())
}

/// Moves what is in `more` to the end of a list. Into an empty list it goes without a copy.
pub(crate) fn append<T>(list: &mut Vec<T>, more: &mut Vec<T>) -> Result<(), NoMemory> {
    if list.is_empty() {
        std::mem::swap(list, more);
        return Ok(());
    }
    list.try_reserve(more.len())?;
    list.append(more);
    Ok(())
}

/// Adds copies of values to a list.
pub(crate) fn extend<T: Copy>(list: &mut Vec<T>, more: &[T]) -> Result<(), NoMemory> {
    list.try_reserve(more.len())?;
    list.extend_from_slice(more);
    Ok(())
}

/// A list of what an iterator gives that knows how much that is.
pub fn collect<T>(values: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    list.try_reserve_exact(values.len())?;
    list.extend(values);
    Ok(list)
}

/// So many zero bytes, which the system need not touch before somebody else does.
pub(crate) fn zeroes(len: usize) -> Result<Vec<u8>, NoMemory> {
    let layout = std::alloc::Layout::array::<u8>(len).map_err(|_| NoMemory)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: rule B: the layout is not empty.
    let bytes = unsafe { std::alloc::alloc_zeroed(layout) };
    if bytes.is_null() {
        return Err(NoMemory);
    }
    // SAFETY: rule B: from the global allocator, with the layout of so many bytes, all of which are initialised.
    Ok(unsafe { Vec::from_raw_parts(bytes, len, len) })
}

/// Room for numbers, of which those at the front are there and the rest is not yet: as a vector that does not grow by itself.
///
/// From the size of a huge page on it is a mapping of its own, in huge pages where the system has some: what is looked at here
/// and there costs far less then, since the machine need not look up where each page lies. And it is
/// given back as it was taken, without a trace in the allocator that the program uses.
pub(crate) struct Room {
    start: NonNull<u32>,
    capacity: usize,
    len: usize,
    /// Start and bytes of the mapping; none: it is the allocator's.
    mapping: Option<(NonNull<u8>, usize)>,
}

/// The size of a huge page.
const HUGE: usize = 2 << 20;

// SAFETY: rule X: it owns its memory, which holds numbers.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    /// Room for `capacity` numbers.
    pub(crate) fn new(capacity: usize) -> Result<Self, NoMemory> {
        let layout = std::alloc::Layout::array::<u32>(capacity).map_err(|_| NoMemory)?;
        if layout.size() >= HUGE && !cfg!(any(miri, all(test, loom))) {
            return Self::map(capacity, layout.size());
        }
        let mut list = Vec::<u32>::new();
        list.try_reserve_exact(capacity)?;
        let mut list = std::mem::ManuallyDrop::new(list);
        let start = NonNull::new(list.as_mut_ptr()).ok_or(NoMemory)?;
        Ok(Self { start, capacity: list.capacity(), len: 0, mapping: None })
    }

    fn map(capacity: usize, bytes: usize) -> Result<Self, NoMemory> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // So that there is a multiple of a huge page in it.
        let mapped = bytes.checked_add(HUGE).ok_or(NoMemory)?;
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: rule B: a new mapping, where the system likes.
        let mapping = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, access, flags) };
        let mapping = NonNull::new(mapping.map_err(|_| NoMemory)?.cast::<u8>()).ok_or(NoMemory)?;
        // SAFETY: rule B: less than the `HUGE` bytes that were added.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE)) };
        #[cfg(any(target_os = "linux", target_os = "android"))]
        #[expect(clippy::let_underscore_must_use, reason = "a refusal costs speed only")]
        // SAFETY: rule B: inside the mapping; the advice changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage)
        };
        Ok(Self { start: start.cast(), capacity, len: 0, mapping: Some((mapping, mapped)) })
    }

    /// How many numbers are there.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The numbers that are there.
    #[inline(always)]
    pub(crate) fn numbers(&self) -> &[u32] {
        // SAFETY: rule B: so many have been written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Room for those that are not.
    #[inline(always)]
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u32>] {
        // SAFETY: rule B: from the last number to the end of what was allocated.
        unsafe {
            let start = self.start.as_ptr().add(self.len).cast::<MaybeUninit<u32>>();
            std::slice::from_raw_parts_mut(start, self.capacity - self.len)
        }
    }

    /// Whether it is a mapping of its own.
    pub(crate) fn is_mapping(&self) -> bool {
        self.mapping.is_some()
    }

    /// Bytes of its mapping, from the start on; 0: it is the allocator's.
    fn mapped(&self) -> usize {
        self.mapping.map_or(0, |(mapping, bytes)| {
            bytes - (self.start.as_ptr() as usize - mapping.as_ptr() as usize)
        })
    }

    /// Forgets the numbers, and lets the system have the memory if it needs some, as long as nobody writes here. `false`: it is
    /// not to be had that way.
    fn set_aside(&mut self) -> bool {
        self.len = 0;
        // Whole huge pages: to give a part of one away would cost it its size.
        let bytes = self.mapped() / HUGE * HUGE;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if bytes > 0 {
            use rustix::mm::{Advice, madvise};
            // SAFETY: rule B: inside the mapping. The contents may become zeroes, and nobody reads them.
            return unsafe { madvise(self.start.as_ptr().cast(), bytes, Advice::LinuxFree) }
                .is_ok();
        }
        let _ = bytes;
        false
    }

    /// Is for `capacity` numbers from now on, if that many fit in, and not far more.
    fn refit(&mut self, capacity: usize) -> bool {
        let fitting = self.mapped() / size_of::<u32>();
        let fits = (capacity..=capacity.saturating_mul(4)).contains(&fitting);
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    /// Says that `more` numbers are there.
    ///
    /// # Safety
    ///
    /// The first `more` places of [`spare`](Self::spare) have been written.
    pub(crate) unsafe fn add(&mut self, more: usize) {
        assert!(more <= self.capacity - self.len);
        self.len += more;
    }
}

impl Default for Room {
    fn default() -> Self {
        Self { start: NonNull::dangling(), capacity: 0, len: 0, mapping: None }
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        match self.mapping {
            Some((mapping, bytes)) => {
                // SAFETY: rule B: mapped by `map`, and nobody has a reference into it any more.
                let unmapped = unsafe { rustix::mm::munmap(mapping.as_ptr().cast(), bytes) };
                debug_assert!(unmapped.is_ok());
            }
            // SAFETY: rule B: the parts of a vector of numbers, which need no dropping.
            None => drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), 0, self.capacity) }),
        }
    }
}

/// Rooms that nobody uses now. New ones would have to be zeroed by the system first, which may take as long as to fill them.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    rooms: Mutex<Vec<Room>>,
}

impl Spare {
    /// Room for `capacity` numbers. What is too small for them is not worth keeping, nor what is far too large.
    pub(crate) fn take(&self, capacity: usize) -> Result<Room, NoMemory> {
        while let Some(mut room) = self.pop() {
            if room.refit(capacity) {
                return Ok(room);
            }
        }
        Room::new(capacity)
    }

    // A function of its own: the lock is not held while the system works.
    fn pop(&self) -> Option<Room> {
        self.rooms.lock().pop()
    }

    /// Keeps rooms, as far as the system can have them back, and there is memory for their places.
    pub(crate) fn keep(&self, rooms: impl IntoIterator<Item = Room>) {
        for mut room in rooms {
            if room.set_aside() && push(&mut self.rooms.lock(), room).is_err() {
                return;
            }
        }
    }

    /// How many rooms there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rooms.lock().len()
    }

    /// Gives everything back.
    pub(crate) fn give_up(&self) {
        let rooms = std::mem::take(&mut *self.rooms.lock());
        drop(rooms);
    }
}

/// A text that grows as far as there is memory for it.
#[derive(Default)]
struct Growing(String);

impl fmt::Write for Growing {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0.try_reserve(more.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(more);
        Ok(())
    }
}

/// The text, written out; `None`: there is no memory for it.
pub fn written(text: impl fmt::Display) -> Option<String> {
    let mut growing = Growing::default();
    write!(growing, "{text}").is_ok().then_some(growing.0)
}

/// An [`Arc`], for what must be one. It cannot be asked for in a way that may fail: as much memory is asked for first and given back.
/// If another thread takes it before the `Arc` does, and there is no more, the process ends.
pub fn arc<T>(value: T) -> Result<Arc<T>, NoMemory> {
    room_for_arc::<T>()?;
    Ok(Arc::new(value))
}

/// What [`arc`] asks for.
pub(crate) fn room_for_arc<T>() -> Result<(), NoMemory> {
    // An `Arc`'s two counts lie in front of the value.
    seems_to_have(size_of::<(usize, usize, T)>()).then_some(()).ok_or(NoMemory)
}

/// A value with several owners, as an [`Arc`], which cannot be made where memory may be refused.
///
/// | field | who, when |
/// |---|---|
/// | `owners` | 1 at birth; raised by an owner for another one; lowered by an owner that ends. Who lowers it to 0 frees the value |
/// | `value` | read by owners, until the last has ended |
pub(crate) struct Shared<T>(NonNull<SharedValue<T>>);

struct SharedValue<T> {
    owners: std::sync::atomic::AtomicUsize,
    value: T,
}

// SAFETY: rule X: as for `Arc`: the value is shared, and dropped on the thread of the last owner.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Result<Self, NoMemory> {
        let shared = boxed(SharedValue { owners: std::sync::atomic::AtomicUsize::new(1), value })?;
        Ok(Self(NonNull::from(Box::leak(shared))))
    }

    /// Whether both are the same value.
    pub(crate) fn ptr_eq(one: &Self, other: &Self) -> bool {
        one.0 == other.0
    }

    fn shared(&self) -> &SharedValue<T> {
        // SAFETY: rule V: there is an owner, so nobody has freed it.
        unsafe { self.0.as_ref() }
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.shared().value
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        // Relaxed: the new owner has its access from this one. Each owner takes up memory, so the number has room.
        self.shared().owners.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        // AcqRel: what other owners did with the value happened before it is freed.
        if self.shared().owners.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1 {
            // SAFETY: rule V: this was the last owner.
            unsafe { self.free() };
        }
    }
}

impl<T> Shared<T> {
    /// Frees the value. Not inline: most owners that end are not the last.
    ///
    /// # Safety
    ///
    /// The last owner calls this, once, and does not use the value afterwards.
    #[inline(never)]
    unsafe fn free(&mut self) {
        // SAFETY: rule V: made from a box, and the caller was the last owner.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// How keys are spread: addresses and hashes, which no enemy chooses.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        // An odd number with its bits mixed: each bit of the word has a say in the upper half.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

type Part<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// A map for several threads: in parts, each with a lock of its own, which is held for a look-up or a change, and never over
/// a call out.
pub(crate) struct SharedMap<K, V> {
    parts: [RwLock<Part<K, V>>; PARTS],
}

const PARTS: usize = 16;

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| RwLock::new(HashMap::default())) }
    }
}

impl<K, V> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMap").finish_non_exhaustive()
    }
}

impl<K: Hash + Eq, V: Clone> SharedMap<K, V> {
    /// The upper bits choose the part: the map within uses the others.
    fn part(&self, key: &K) -> &RwLock<Part<K, V>> {
        let hash = BuildHasherDefault::<Spread>::default().hash_one(key);
        &self.parts[(hash >> 32) as usize % PARTS]
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.part(key).read().get(key).cloned()
    }

    /// The value at a key; if there is none, what `make` makes.
    pub(crate) fn get_or_make(
        &self,
        key: K,
        make: impl FnOnce() -> Result<V, NoMemory>,
    ) -> Result<V, NoMemory> {
        let mut part = self.part(&key).write();
        if let Some(known) = part.get(&key) {
            return Ok(known.clone());
        }
        part.try_reserve(1)?;
        let value = make()?;
        part.insert(key, value.clone());
        Ok(value)
    }

    pub(crate) fn remove(&self, key: &K) -> Option<V> {
        self.part(key).write().remove(key)
    }
}

/// What stands in place of a message that there is no memory for.
pub const NO_WORDS: &str = "there is no memory for a message";

/// See [`words!`](crate::words).
pub fn in_words(text: fmt::Arguments<'_>) -> Cow<'static, str> {
    match text.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => written(text).map_or(Cow::Borrowed(NO_WORDS), Cow::Owned),
    }
}

/// As `format!`, for messages: [`NO_WORDS`](fallible::NO_WORDS) where there is no memory for one.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($($text:tt)*) => { $crate::fallible::in_words(format_args!($($text)*)) };
}

pub(crate) use words;

/// How long a text is when it is written out.
struct Counted(usize);

impl fmt::Write for Counted {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0 += more.len();
        Ok(())
    }
}

/// The text, written out for C: without null bytes, and with one at its end.
pub fn c_text(text: impl fmt::Display) -> Result<CString, NoMemory> {
    struct Bytes(Vec<u8>);
    impl fmt::Write for Bytes {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            // A text may be another one the second time that it is written: it does not get more room.
            let room = self.0.capacity() - self.0.len() - 1;
            self.0.extend(more.bytes().take(room).map(|byte| if byte == 0 { b'?' } else { byte }));
            Ok(())
        }
    }
    let mut length = Counted(0);
    write!(length, "{text}").map_err(|_| NoMemory)?;
    let mut bytes = Bytes(Vec::new());
    bytes.0.try_reserve_exact(length.0 + 1)?;
    write!(bytes, "{text}").map_err(|_| NoMemory)?;
    // All the room is used, since a vector with more of it would be moved to a smaller place.
    bytes.0.resize(bytes.0.capacity(), 0);
    CString::from_vec_with_nul(bytes.0).map_err(|_| NoMemory)
}

/// A copy of a text for C.
pub fn c_copy(text: &CStr) -> Result<CString, NoMemory> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(text.to_bytes_with_nul().len())?;
    bytes.extend_from_slice(text.to_bytes_with_nul());
    CString::from_vec_with_nul(bytes).map_err(|_| NoMemory)
}

/// A text that may not be UTF-8, with a sign in place of what is not.
pub fn lossy(bytes: &[u8]) -> Result<Cow<'_, str>, NoMemory> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Ok(Cow::Borrowed(text));
    }
    let mut text = Growing::default();
    for chunk in bytes.utf8_chunks() {
        let sign = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
        write!(text, "{}{sign}", chunk.valid()).map_err(|_| NoMemory)?;
    }
    Ok(Cow::Owned(text.0))
}

/// The text that follows, as one that its owner keeps.
pub fn owned(text: &str) -> Result<String, NoMemory> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy)
}

/// A value in a box of its own, as [`Box::new`] makes it.
pub fn boxed<T>(value: T) -> Result<Box<T>, NoMemory> {
    let layout = std::alloc::Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: rule B: the layout is not empty.
    let place = unsafe { std::alloc::alloc(layout) }.cast::<T>();
    if place.is_null() {
        return Err(NoMemory);
    }
    // SAFETY: rule B: from the global allocator, with the layout of a box of this type.
    unsafe {
        place.write(value);
        Ok(Box::from_raw(place))
    }
}

/// Whether so many bytes could be had just now. For what cannot be asked for fallibly: a hint, which nothing but
/// the extent of the harm may depend on.
pub(crate) fn seems_to_have(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
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
    fn what_is_enough_is_there() {
        let mut list = Vec::new();
        push(&mut list, 1).unwrap();
        append(&mut list, &mut vec![2, 3]).unwrap();
        assert_eq!(list, collect(1..4).unwrap());
        let mut other = Vec::new();
        append(&mut other, &mut list).unwrap();
        assert_eq!((other.len(), list.len()), (3, 0));
        assert_eq!(zeroes(1000).unwrap(), vec![0; 1000]);
        assert_eq!(zeroes(0).unwrap(), []);
        assert_eq!(words!("memory {} out", "ran"), "memory ran out");
        assert_eq!(owned("memory").unwrap(), "memory");
        assert_eq!(c_text(format_args!("a{}b", "\0")).unwrap().as_c_str(), c"a?b");
        assert_eq!(c_text("").unwrap().as_c_str(), c"");
        assert_eq!(lossy(b"good").unwrap(), "good");
        assert_eq!(lossy(b"b\xffd\xc3").unwrap(), String::from_utf8_lossy(b"b\xffd\xc3"));
        assert_eq!((*boxed([7; 9]).unwrap(), *boxed(()).unwrap()), ([7; 9], ()));
        assert!(seems_to_have(1));
    }

    #[test]
    fn room_small_and_large_is_filled_from_the_front() {
        for capacity in [0, 1, 1000, HUGE / 4 - 1, HUGE / 4, HUGE] {
            let mut room = Room::new(capacity).unwrap();
            assert!(room.spare().len() >= capacity && room.numbers().is_empty());
            for round in 0..2 {
                let half = capacity / 2;
                let spare = &mut room.spare()[..half];
                spare.iter_mut().zip(round..).for_each(|(place, number)| _ = place.write(number));
                // SAFETY: rule B: so many have been written just now.
                unsafe { room.add(half) };
                assert_eq!(room.len(), (round as usize + 1) * half);
                assert!(
                    room.numbers()[round as usize * half..]
                        .iter()
                        .copied()
                        .eq((round..).take(half))
                );
            }
        }
        assert_eq!(Room::default().spare().len(), 0);
        for capacity in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4] {
            assert!(Room::new(capacity).is_err());
        }
        // SAFETY: rule B: it is refused.
        assert!(std::panic::catch_unwind(|| unsafe { Room::default().add(1) }).is_err());
    }

    // Elsewhere none is kept.
    #[cfg(target_os = "linux")]
    #[test]
    fn rooms_are_used_again_where_they_fit() {
        let spare = Spare::default();
        for capacity in [HUGE / 4, HUGE / 2 + 1, HUGE] {
            let mut room = spare.take(capacity).unwrap();
            room.spare()[0].write(7);
            // SAFETY: rule B: it has been written just now.
            unsafe { room.add(1) };
            let start = room.numbers().as_ptr();
            spare.keep([room]);
            for less in [capacity / 2, capacity] {
                let room = spare.take(less).unwrap();
                assert_eq!(
                    (room.start.as_ptr().cast_const(), room.capacity, room.len()),
                    (start, less, 0)
                );
                assert_eq!(spare.len(), 0);
                spare.keep([room]);
            }
            // Too small, and far too large: a new one, and the old one is gone.
            for next in [2 * capacity + HUGE, capacity / 8] {
                let room = spare.take(next).unwrap();
                assert_eq!((room.capacity, spare.len()), (next, 0));
                assert!(
                    !room.is_mapping() || room.mapped() / size_of::<u32>() >= next,
                    "all of it is there"
                );
                spare.keep([room, spare.take(HUGE).unwrap()]);
            }
            spare.give_up();
            assert_eq!(spare.len(), 0);
        }
        spare.keep([Room::new(1000).unwrap()]);
        assert_eq!(spare.len(), 0, "the allocator keeps small ones");
        assert_eq!(spare.take(usize::MAX).unwrap_err(), NoMemory);
    }
}
