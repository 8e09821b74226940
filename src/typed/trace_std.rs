//! The types of std cannot derive `Trace`, and some must not show their contents. Those of an `Arc`
//! belong to all its clones, and a detached thread could change those of a `Mutex`. So there are
//! three kinds of implementation:
//!
//! | kind | `traverse` | `clear` | `TRACKED` |
//! |---|---|---|---|
//! | leaves: numbers, strings, shared pointers | nothing | nothing | `false` |
//! | containers: `Option`, `Vec`, maps | each element | each element | if an element type is |
//! | locks: `Mutex`, `RwLock`, `OnceLock` | nothing; not compiled if `T` is tracked | nothing | `false` |

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};

use crate::base::system::prefetch;
use crate::object::tracer::Edge;
use crate::{Mutator, Trace, Tracer};

// ----------------------------------------------------------------------------------- leaves

macro_rules! leaves {
    ($($(#[$doc:meta])* $ty:ty $(where [$($params:tt)*])?;)*) => {$(
        $(#[$doc])*
        impl $(<$($params)*>)? Trace for $ty {
            const TRACKED: bool = false;

            #[inline]
            fn traverse(_: &Self, _: &mut Tracer) {}
        }
    )*};
}

leaves! {
    (); bool; char; f32; f64;
    u8; u16; u32; u64; u128; usize;
    i8; i16; i32; i64; i128; isize;
    std::num::NonZero<u8>; std::num::NonZero<u16>; std::num::NonZero<u32>;
    std::num::NonZero<u64>; std::num::NonZero<u128>; std::num::NonZero<usize>;
    std::num::NonZero<i8>; std::num::NonZero<i16>; std::num::NonZero<i32>;
    std::num::NonZero<i64>; std::num::NonZero<i128>; std::num::NonZero<isize>;

    str; std::ffi::CStr; std::ffi::OsStr; std::path::Path;

    std::time::Duration; std::time::Instant; std::time::SystemTime;
    std::net::IpAddr; std::net::Ipv4Addr; std::net::Ipv6Addr;
    std::net::SocketAddr; std::net::SocketAddrV4; std::net::SocketAddrV6;

    std::any::TypeId; std::cmp::Ordering; std::convert::Infallible; std::ops::RangeFull;
    std::alloc::Layout; std::io::ErrorKind;
    std::thread::Thread; std::thread::ThreadId;
    std::sync::Barrier; std::sync::Condvar; std::sync::Once;

    std::sync::atomic::AtomicBool; std::sync::atomic::Ordering;
    std::sync::atomic::AtomicU8; std::sync::atomic::AtomicU16; std::sync::atomic::AtomicU32;
    std::sync::atomic::AtomicU64; std::sync::atomic::AtomicUsize;
    std::sync::atomic::AtomicI8; std::sync::atomic::AtomicI16; std::sync::atomic::AtomicI32;
    std::sync::atomic::AtomicI64; std::sync::atomic::AtomicIsize;

    /// Skipped, because an address is no edge: edges come only from a [`Gc`](crate::Gc).
    std::sync::atomic::AtomicPtr<T> where [T: 'static];
    std::marker::PhantomData<T> where [T: ?Sized + 'static];

    /// Skipped, because all clones of an `Arc` own its contents together. If each clone visited the
    /// contents, one reference would be counted once for each clone, and a live object could be
    /// taken for garbage. Skipping is safe: references in the contents count as **held from
    /// outside**, so a cycle through an `Arc` is never collected. To make such a cycle collectable,
    /// make the shared value an object of the heap: `Gc<T>`.
    ///
    /// The contents are never traversed, so they need not implement `Trace`.
    std::sync::Arc<T> where [T: ?Sized + 'static];
    /// Skipped, like `Arc`, and it owns nothing in any case.
    std::sync::Weak<T> where [T: ?Sized + 'static];
    /// Skipped: the object does not own a borrowed value, and other objects may borrow it too.
    /// References in the value count as held from outside.
    &'static T where [T: ?Sized];
}

/// Leaves with a buffer. `$bytes` is its size.
macro_rules! buffers {
    ($($ty:ty, |$this:ident| $bytes:expr;)*) => {$(
        impl Trace for $ty {
            const TRACKED: bool = false;
            const HAS_EXTERNAL_BYTES: bool = true;

            #[inline]
            fn traverse(_: &Self, _: &mut Tracer) {}

            #[inline]
            fn external_bytes(this: &mut Self) -> usize {
                let $this = this;
                $bytes
            }

            fn describe(this: &Self, tracer: &mut Tracer) {
                let $this = this;
                tracer.external($bytes);
            }
        }
    )*};
}

buffers! {
    String, |this| this.capacity();
    std::ffi::CString, |this| this.as_bytes_with_nul().len();
    std::ffi::OsString, |this| this.capacity();
    std::path::PathBuf, |this| this.capacity();
}

/// Function pointers without a lifetime in their signature, in four calling conventions.
macro_rules! functions {
    ($($($arg:ident)*;)*) => {
        leaves! {$(
            fn($($arg),*) -> R where [R: 'static, $($arg: 'static),*];
            unsafe fn($($arg),*) -> R where [R: 'static, $($arg: 'static),*];
            extern "C" fn($($arg),*) -> R where [R: 'static, $($arg: 'static),*];
            unsafe extern "C" fn($($arg),*) -> R where [R: 'static, $($arg: 'static),*];
        )*}
    };
}

functions! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

// ----------------------------------------------------------------------- plain containers

/// Types with a fixed number of parts. `$this` names the value. Each `$part` is a reference into
/// it.
macro_rules! parts {
    ($(
        $(#[$doc:meta])* [$($params:tt)*] $ty:ty, |$this:ident| $($owner:ty = $part:expr),+
        $(=> |$own:ident| $($counted:ty = $place:expr),+)?;
    )*) => {$(
        $(#[$doc])*
        impl<$($params)*> Trace for $ty {
            const TRACKED: bool = $(<$owner>::TRACKED)||+;
            const INDIRECT: bool = $(<$owner>::INDIRECT)||+;
            $(
                const HAS_EXTERNAL_BYTES: bool = $(<$counted>::HAS_EXTERNAL_BYTES)||+;

                #[inline]
                fn external_bytes(this: &mut Self) -> usize {
                    let $own = this;
                    0 $(+ <$counted>::external_bytes($place))+
                }
            )?

            #[inline(always)]
            fn traverse(this: &Self, tracer: &mut Tracer) {
                let $this = this;
                $(<$owner>::traverse($part, tracer);)+
            }

            fn describe(this: &Self, tracer: &mut Tracer) {
                let $this = this;
                $(<$owner>::describe($part, tracer);)+
            }

            #[inline]
            fn prefetch(this: &Self, tracer: &Tracer) {
                let $this = this;
                $(<$owner>::prefetch($part, tracer);)+
            }

            #[inline]
            fn clear(this: &Self, m: &Mutator) {
                let $this = this;
                $(<$owner>::clear($part, m);)+
            }
        }
    )*};
}

parts! {
    [T: Trace] std::cmp::Reverse<T>, |this| T = &this.0 => |this| T = &mut this.0;
    [T: Trace] std::num::Wrapping<T>, |this| T = &this.0;
    [T: Trace] std::num::Saturating<T>, |this| T = &this.0;
    [T: Trace] std::ops::Range<T>, |this| T = &this.start, T = &this.end;
    [T: Trace] std::ops::RangeInclusive<T>, |this| T = this.start(), T = this.end();
    [T: Trace] std::ops::RangeFrom<T>, |this| T = &this.start;
    [T: Trace] std::ops::RangeTo<T>, |this| T = &this.end;
    [T: Trace] std::ops::RangeToInclusive<T>, |this| T = &this.end;
}

macro_rules! tuples {
    ($($($T:ident . $i:tt)+;)*) => {
        parts! {$(
            [$($T: Trace),+] ($($T,)+), |this| $($T = &this.$i),+
            => |this| $($T = &mut this.$i),+;
        )*}
    };
}

tuples! {
    A.0;
    A.0 B.1;
    A.0 B.1 C.2;
    A.0 B.1 C.2 D.3;
    A.0 B.1 C.2 D.3 E.4;
    A.0 B.1 C.2 D.3 E.4 F.5;
    A.0 B.1 C.2 D.3 E.4 F.5 G.6;
    A.0 B.1 C.2 D.3 E.4 F.5 G.6 H.7;
    A.0 B.1 C.2 D.3 E.4 F.5 G.6 H.7 I.8;
    A.0 B.1 C.2 D.3 E.4 F.5 G.6 H.7 I.8 J.9;
    A.0 B.1 C.2 D.3 E.4 F.5 G.6 H.7 I.8 J.9 K.10;
    A.0 B.1 C.2 D.3 E.4 F.5 G.6 H.7 I.8 J.9 K.10 L.11;
}

/// Traverses by recursion, like the drop, so make the nodes of a long list objects of the heap
/// (`Gc`), not boxes.
impl<T: Trace + ?Sized> Trace for Box<T> {
    const TRACKED: bool = T::TRACKED;
    const INDIRECT: bool = T::TRACKED;
    const HAS_EXTERNAL_BYTES: bool = true;

    #[inline]
    fn external_bytes(this: &mut Self) -> usize {
        size_of_val(&**this)
    }

    #[inline(always)]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        T::traverse(this, tracer);
    }

    fn describe(this: &Self, tracer: &mut Tracer) {
        tracer.external(size_of_val(&**this));
        T::describe(this, tracer);
    }

    #[inline]
    fn prefetch(this: &Self, tracer: &Tracer) {
        tracer.fetch((&raw const **this).cast::<u8>());
    }

    #[inline]
    fn clear(this: &Self, m: &Mutator) {
        T::clear(this, m);
    }
}

impl<T: Trace> Trace for Option<T> {
    const TRACKED: bool = T::TRACKED;
    const INDIRECT: bool = T::INDIRECT;
    const IS_HANDLE: bool = T::IS_HANDLE;
    const HAS_EXTERNAL_BYTES: bool = T::HAS_EXTERNAL_BYTES;

    #[inline]
    fn external_bytes(this: &mut Self) -> usize {
        this.as_mut().map_or(0, T::external_bytes)
    }

    #[inline(always)]
    fn target(this: &Self) -> Edge<'_> {
        this.as_ref().map_or(Edge::NONE, T::target)
    }

    #[inline(always)]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if T::IS_HANDLE {
            tracer.target(Self::target(this));
        } else if T::TRACKED
            && let Some(value) = this
        {
            T::traverse(value, tracer);
        }
    }

    fn describe(this: &Self, tracer: &mut Tracer) {
        this.iter().for_each(|value| T::describe(value, tracer));
    }

    #[inline]
    fn prefetch(this: &Self, tracer: &Tracer) {
        if T::INDIRECT
            && let Some(value) = this
        {
            T::prefetch(value, tracer);
        }
    }

    #[inline]
    fn fetch_target(this: &Self) -> bool {
        this.as_ref().is_some_and(T::fetch_target)
    }

    #[inline]
    fn fetch_targets(this: &Self) {
        if let Some(value) = this {
            T::fetch_targets(value);
        }
    }

    #[inline]
    fn clear(this: &Self, m: &Mutator) {
        if T::TRACKED
            && let Some(value) = this
        {
            T::clear(value, m);
        }
    }
}

/// Types with contiguous elements. `$slices` are the slices of elements. They lie behind a pointer
/// (`behind`) or in the value itself (`within`).
macro_rules! slices {
    ($([$($params:tt)*] $ty:ty, $place:ident |$this:ident| $slices:expr;)*) => {$(
        impl<T: Trace $($params)*> Trace for $ty {
            const TRACKED: bool = T::TRACKED;
            slices!($place |$this| $slices);

            #[inline(always)]
            fn traverse(this: &Self, tracer: &mut Tracer) {
                if T::TRACKED {
                    let $this = this;
                    for slice in $slices {
                        T::traverse_slice(slice, tracer);
                    }
                }
            }

            fn describe(this: &Self, tracer: &mut Tracer) {
                let $this = this;
                slices!($place room $this, tracer);
                if T::TRACKED || T::HAS_EXTERNAL_BYTES {
                    for element in $slices.into_iter().flatten() {
                        T::describe(element, tracer);
                    }
                }
            }

            #[inline]
            fn clear(this: &Self, m: &Mutator) {
                if T::TRACKED {
                    let $this = this;
                    for element in $slices.into_iter().flatten() {
                        T::clear(element, m);
                    }
                }
            }
        }
    )*};
    (within room $this:ident, $tracer:ident) => {};
    (behind room $this:ident, $tracer:ident) => {
        $tracer.external($this.capacity().saturating_mul(size_of::<T>()));
    };
    (within |$this:ident| $slices:expr) => {
        const INDIRECT: bool = T::INDIRECT;
        const HAS_EXTERNAL_BYTES: bool = T::HAS_EXTERNAL_BYTES;

        #[inline]
        fn external_bytes(this: &mut Self) -> usize {
            if !T::HAS_EXTERNAL_BYTES {
                return 0;
            }
            this.iter_mut().map(T::external_bytes).fold(0, usize::saturating_add)
        }

        #[inline]
        fn prefetch(this: &Self, tracer: &Tracer) {
            if T::INDIRECT {
                this.iter().for_each(|element| T::prefetch(element, tracer));
            }
        }
    };
    (behind |$this:ident| $slices:expr) => {
        const INDIRECT: bool = T::TRACKED;
        const HAS_EXTERNAL_BYTES: bool = true;

        #[inline]
        fn external_bytes(this: &mut Self) -> usize {
            this.capacity().saturating_mul(size_of::<T>())
        }

        #[inline]
        fn fetch_target(this: &Self) -> bool {
            let $this = this;
            let mut any = false;
            for slice in $slices {
                if let (Some(first), Some(last)) = (slice.first(), slice.last()) {
                    prefetch((&raw const *first).cast());
                    prefetch((&raw const *last).cast());
                    any = T::TRACKED;
                }
            }
            any
        }

        #[inline]
        fn fetch_targets(this: &Self) {
            let $this = this;
            for element in $slices.into_iter().flatten() {
                T::fetch_target(element);
            }
        }

        #[inline]
        fn prefetch(this: &Self, tracer: &Tracer) {
            let $this = this;
            for slice in $slices {
                // The first and the last element, because they cover a small buffer completely.
                if let (Some(first), Some(last)) = (slice.first(), slice.last()) {
                    tracer.fetch(first);
                    tracer.fetch(last);
                }
            }
        }
    };
}

slices! {
    [] [T], within |this| [this];
    [, const N: usize] [T; N], within |this| [this];
    [] Vec<T>, behind |this| [this.as_slice()];
    [] VecDeque<T>, behind |this| <[&[T]; 2]>::from(this.as_slices());
    [] BinaryHeap<T>, behind |this| [this.as_slice()];
}

/// Types with any number of elements, traversed by an iterator. `$element` binds the `$part`s of an
/// element: its value, or its key and its value. `$room` is the number of places for elements, and
/// `$more` the bytes of a place besides its element.
macro_rules! collections {
    ($(
        [$($params:tt)*] $ty:ty, $element:pat => $($owner:ident $part:ident),+;
        $room:ident + $more:expr;
    )*) => {$(
        impl<$($owner: Trace),+ $($params)*> Trace for $ty {
            const TRACKED: bool = $($owner::TRACKED)||+;
            const HAS_EXTERNAL_BYTES: bool = true;

            #[inline]
            fn external_bytes(this: &mut Self) -> usize {
                this.$room().saturating_mul(size_of::<($($owner,)+)>() + $more)
            }

            #[inline(always)]
            fn traverse(this: &Self, tracer: &mut Tracer) {
                if Self::TRACKED {
                    for $element in this {
                        $($owner::traverse($part, tracer);)+
                    }
                }
            }

            fn describe(this: &Self, tracer: &mut Tracer) {
                tracer.external(this.$room().saturating_mul(size_of::<($($owner,)+)>() + $more));
                if Self::TRACKED $(|| $owner::HAS_EXTERNAL_BYTES)+ {
                    for $element in this {
                        $($owner::describe($part, tracer);)+
                    }
                }
            }

            #[inline]
            fn clear(this: &Self, m: &Mutator) {
                if Self::TRACKED {
                    for $element in this {
                        $($owner::clear($part, m);)+
                    }
                }
            }
        }
    )*};
}

collections! {
    [] LinkedList<T>, value => T value; len + 2 * size_of::<usize>();
    [] BTreeSet<T>, value => T value; len + 0;
    [, S: 'static] HashSet<T, S>, value => T value; capacity + 1;
    [, S: 'static] HashMap<K, V, S>, (key, value) => K key, V value; capacity + 1;
    [] BTreeMap<K, V>, (key, value) => K key, V value; len + 0;
}

impl<T: Trace, E: Trace> Trace for Result<T, E> {
    const TRACKED: bool = T::TRACKED || E::TRACKED;
    const HAS_EXTERNAL_BYTES: bool = T::HAS_EXTERNAL_BYTES || E::HAS_EXTERNAL_BYTES;

    #[inline]
    fn external_bytes(this: &mut Self) -> usize {
        match this {
            Ok(value) => T::external_bytes(value),
            Err(error) => E::external_bytes(error),
        }
    }

    #[inline(always)]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        match this {
            Ok(value) => T::traverse(value, tracer),
            Err(error) => E::traverse(error, tracer),
        }
    }

    fn describe(this: &Self, tracer: &mut Tracer) {
        match this {
            Ok(value) => T::describe(value, tracer),
            Err(error) => E::describe(error, tracer),
        }
    }

    #[inline]
    fn clear(this: &Self, m: &Mutator) {
        match this {
            Ok(value) => T::clear(value, m),
            Err(error) => E::clear(error, m),
        }
    }
}

/// A borrowed value is skipped, like every `&'static`. An owned value is traversed.
impl<B> Trace for Cow<'static, B>
where
    B: ToOwned<Owned: Trace> + ?Sized + 'static,
{
    const TRACKED: bool = B::Owned::TRACKED;
    const HAS_EXTERNAL_BYTES: bool = B::Owned::HAS_EXTERNAL_BYTES;

    #[inline]
    fn external_bytes(this: &mut Self) -> usize {
        match this {
            Cow::Owned(value) => B::Owned::external_bytes(value),
            Cow::Borrowed(_) => 0,
        }
    }

    #[inline(always)]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if let Cow::Owned(value) = this {
            B::Owned::traverse(value, tracer);
        }
    }

    fn describe(this: &Self, tracer: &mut Tracer) {
        if let Cow::Owned(value) = this {
            B::Owned::describe(value, tracer);
        }
    }

    #[inline]
    fn clear(this: &Self, m: &Mutator) {
        if let Cow::Owned(value) = this {
            B::Owned::clear(value, m);
        }
    }
}

// ------------------------------------------------------------------------------------ locks

/// Fails the build if `T` may hold references to objects.
///
/// A generic type that promises to hold none evaluates its promise in `traverse`. So a lock
/// compiles the `traverse` of its contents:
///
/// ```compile_fail,E0080
/// use std::sync::Mutex;
/// use standstill::{Gc, Heap, Trace};
///
/// #[derive(Trace)]
/// #[trace(untracked)]
/// struct Untracked<T>(T);
///
/// #[derive(Trace)]
/// struct Node(Mutex<Untracked<Option<Gc<u8>>>>);
///
/// Heap::new().attach().alloc(Node(Mutex::new(Untracked(None))));
/// ```
///
/// ```
/// # use std::sync::Mutex;
/// # use standstill::{Gc, Heap, Trace};
/// # #[derive(Trace)]
/// # #[trace(untracked)]
/// # struct Untracked<T>(T);
/// #[derive(Trace)]
/// struct Node(Mutex<Untracked<Option<u8>>>);
///
/// Heap::new().attach().alloc(Node(Mutex::new(Untracked(None))));
/// ```
const fn assert_without_references<T: Trace>() {
    assert!(
        !T::TRACKED,
        "a `Mutex`, `RwLock` or `OnceLock` that contains references to objects: a detached thread \
         could change it during a collection. Use `GcCell` or `GcOnce`. For a lock whose guards \
         are held over safepoints, write `Trace` by hand for a type around the lock: \
         `Trace::traverse` says how. If the contents hold no references, put \
         `#[trace(untracked)]` on their type"
    );
}

/// A lock is a leaf, so if its contents may hold references, the program does not compile.
///
/// Any thread can change it through a shared reference, also a detached one during a stop. That
/// thread could store a new handle to an object whose count the collector has read already. The
/// collector would then find one reference more than it knows, and could take the object for
/// garbage.
macro_rules! locks {
    ($($(#[$doc:meta])* $lock:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// If `T` may hold references ([`T::TRACKED`](Trace::TRACKED)), the program does not
        /// compile, because a thread that is not attached could change the contents while the
        /// collector counts references.
        impl<T: Trace> Trace for $lock {
            const TRACKED: bool = {
                assert_without_references::<T>();
                false
            };

            #[inline]
            fn traverse(_: &Self, _: &mut Tracer) {
                const { assert_without_references::<T>() };
                // Compiled, and not called.
                let _: fn(&T, &mut Tracer) = T::traverse;
            }
        }
    )*};
}

locks! {
    /// Use [`GcCell`](crate::GcCell) for references: its lock requires a mutator.
    std::sync::Mutex<T>;
    /// Use [`GcCell`](crate::GcCell) for references: its lock requires a mutator.
    std::sync::RwLock<T>;
    /// Use [`GcOnce`](crate::GcOnce) for references: setting it requires a mutator.
    std::sync::OnceLock<T>;
    /// Use [`GcCell`](crate::GcCell) for references: its lock requires a mutator.
    parking_lot::Mutex<T>;
    /// Use [`GcCell`](crate::GcCell) for references: its lock requires a mutator.
    parking_lot::RwLock<T>;
}
