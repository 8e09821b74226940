//! Floor 5: what the collector asks of an object's type, and the answers of std's types.
//!
//! [`Trace`] is the whole contract between a type and the collector. This file holds the trait and
//! its implementations for types that are not ours; the library's own ([`Gc`], [`GcCell`] and their
//! kin) implement it where they are defined. There is no state here and no `unsafe`: a traverse is
//! safe code that runs under a guard, and a wrong one costs memory or a value, never soundness.
//!
//! Three kinds of implementation follow the trait:
//!
//! | kind | `traverse` | `clear` | `TRACKED` |
//! |---|---|---|---|
//! | leaves: numbers, strings, shared pointers | nothing | nothing | `false` |
//! | containers: `Option`, `Vec`, maps | each element | each element's `clear` | if an element type is |
//! | locks: `Mutex`, `RwLock` | the contents, if free | takes the contents out | if the contents are |
//!
//! [`GcCell`]: crate::GcCell

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{OnceLock, TryLockError, TryLockResult};

use crate::object::type_info::{Target, prefetch};
use crate::{Gc, Mutator, Tracer};

/// A type whose references the collector can follow.
///
/// Everything that lives in a [`Heap`](crate::Heap), and everything in such a value that may hold a
/// [`Gc`], implements this trait. Derive it:
///
/// ```
/// use standstill::{Gc, GcCell, Heap, Trace};
///
/// #[derive(Trace)]
/// struct Person {
///     name: String,
///     friends: GcCell<Vec<Gc<Person>>>,
/// }
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let ann = m.alloc(Person { name: "Ann".into(), friends: GcCell::default() });
/// let bob = m.alloc(Person { name: "Bob".into(), friends: GcCell::default() });
/// ann.get(&m).friends.lock(&m).push(bob.clone());
/// bob.get(&m).friends.lock(&m).push(ann.clone());
/// assert_eq!(bob.get(&m).name, "Bob");
///
/// drop((ann, bob)); // they still hold each other
/// assert_eq!(m.collect().collected, 2);
/// ```
///
/// # What the collector does with it
///
/// Counting frees most objects. What it cannot free is a cycle, and to find one the collector stops
/// the world and calls [`traverse`](Self::traverse) on every tracked object, counting for each
/// object the references that come from other objects. An object whose count is thereby explained in
/// full, and which nothing explained otherwise leads to, is garbage: its
/// [`finalize`](Self::finalize) runs, and if it is still unreachable then, its
/// [`clear`](Self::clear) takes out the references that close the cycle. Counting does the rest.
///
/// # The contract, and why the trait is safe
///
/// 1. `traverse` shows each reference that the value *owns* to the tracer, once for each handle:
///    a `Vec` that holds the same `Gc` twice shows it twice.
/// 2. It shows nothing else: not what a shared pointer (`Arc`, `&'static`) leads to, and nothing of
///    another object's.
/// 3. Two traversals of a value that nobody changed show the same.
/// 4. Whatever can close a cycle is taken out by `clear`.
///
/// None of this is needed for memory safety. The collector never frees: it clears, and an object dies
/// when its count is 0. So the price of a mistake is bounded:
///
/// | mistake | price |
/// |---|---|
/// | a reference is not shown | it seems to come from outside: its target stays, a cycle through it leaks |
/// | a reference is shown too often | its target may be finalized and cleared while in use |
/// | `clear` leaves a cycle closed | its members stay, and are reported as `uncollectable` |
/// | `traverse` panics | the collection is abandoned, everything stays |
///
/// (Where an object is shown more often than it is counted, the mistake is plain: it is kept, and
/// reported.)
///
/// # By hand
///
/// Forward to the fields. Their types know whether they hold references, and how to let go of them:
///
/// ```
/// use standstill::{Gc, GcCell, Mutator, Trace, Tracer};
///
/// struct Stack<T> {
///     items: GcCell<Vec<T>>,
///     limit: usize,
/// }
///
/// impl<T: Trace> Trace for Stack<T> {
///     fn traverse(&self, tracer: &mut Tracer) {
///         self.items.traverse(tracer);
///     }
///
///     fn clear(&self, m: &Mutator) {
///         self.items.clear(m);
///     }
/// }
/// # let stack: Stack<Option<Gc<u8>>> = Stack { items: GcCell::default(), limit: 8 };
/// # assert_eq!(stack.limit, 8);
/// ```
///
/// # Types of the standard library
///
/// * **Leaves**: numbers, `bool`, `char`, strings and paths, times, addresses, atomics, function
///   pointers, `PhantomData`. Nothing to show.
/// * **Containers**: `Option`, `Result`, `Box`, `Vec`, arrays, slices, tuples up to 12, all of
///   `std::collections`, `Cow<'static, _>`, `OnceLock`. They show what their elements show (a map:
///   keys and values). An element type that holds no references costs nothing: a `Vec<u8>` is not
///   walked.
/// * **Locks**: `Mutex` and `RwLock`, those of std and of `parking_lot`. Only ever tried, never waited for.
/// * **Shared pointers**: `Arc<T>`, `sync::Weak<T>`, `&'static T`. Skipped; see `Arc`'s
///   implementation for the reason.
///
/// Left out on purpose:
///
/// * `Cell`, `RefCell`, `OnceCell`, `Rc`: any thread may clear or destroy an object, so what it holds
///   must be `Send` and `Sync`. Use [`GcCell`](crate::GcCell), [`GcOnce`](crate::GcOnce), `Arc` or
///   `Gc`.
/// * `LazyLock`: looking into it would run its initialiser. Use [`GcOnce`](crate::GcOnce).
/// * `Box<dyn Any>` and its like: nothing can be asked of it. Use [`AnyGc`](crate::AnyGc),
///   [`GcDyn`](crate::GcDyn), or your own enum.
/// * Function pointers with a lifetime in the signature (`fn(&T)`): Rust has no way to name them all.
///   Such a field takes `#[trace(skip)]`, which loses nothing.
#[diagnostic::on_unimplemented(
    message = "the collector cannot look into `{Self}`: it does not implement `Trace`",
    label = "does not implement `Trace`",
    note = "if `{Self}` is a type of yours, put `#[derive(Trace)]` on it",
    note = "if it cannot lead to a `Gc`, put `#[trace(skip)]` on the field that holds it",
    note = "objects are shared between threads: use `GcCell` instead of `Cell` or `RefCell`, `GcOnce` \
            instead of `OnceCell` or `LazyLock`, `Gc` (or `Arc`) instead of `Rc`",
    note = "a trait object cannot say what it refers to: use `GcDyn`, `AnyGc` or an enum"
)]
pub trait Trace: 'static {
    /// Whether [`finalize`](Self::finalize) does anything.
    ///
    /// Where no garbage object of a collection can run code, the collector saves a stop. The derive
    /// sets it with `#[trace(finalize)]`. It counts for the object only: the finalizer of a *field's*
    /// type never runs.
    const HAS_FINALIZER: bool = false;

    /// Whether values of this type may hold references at all.
    ///
    /// `false` promises that [`traverse`](Self::traverse) shows nothing. Such objects are never
    /// tracked: collections do not even see them, and containers of such values are not walked. The
    /// derive sets it with `#[trace(untracked)]`.
    const TRACKED: bool = true;

    /// Whether [`prefetch`](Self::prefetch) does anything: whether references lie in memory that the value leads to,
    /// such as the buffer of a `Vec`. The derive sets it.
    const INDIRECT: bool = false;

    /// Shows the references this value owns to the collector.
    ///
    /// Runs **while the world is stopped**, on any thread, possibly on several values at once, and more
    /// than once in a collection. Look at the fields and call their `traverse`, or
    /// [`Tracer::visit`] for a reference; where a field cannot be read just now, say so with
    /// [`Tracer::unreadable`], which keeps what it may lead to alive.
    ///
    /// Do nothing else: no allocation in a heap, no attaching, and above all no waiting for a lock,
    /// since its holder may be a thread that is stopped. The guard around the call answers what it
    /// can tell from the safe list with a panic, and a panic abandons the collection.
    fn traverse(&self, tracer: &mut Tracer);

    /// Asks memory for what [`traverse`](Self::traverse) is going to read behind the value's own bytes, with
    /// [`Tracer::fetch`].
    ///
    /// The collector calls it some objects ahead of the traversal, under the same guard, where the type is
    /// [`INDIRECT`](Self::INDIRECT); else it would spend most of a pause waiting for small buffers. The derive
    /// forwards it to the fields. Doing nothing is always right; the rules are those of `traverse`.
    #[inline]
    fn prefetch(&self, tracer: &Tracer) {
        let _ = tracer;
    }

    /// Whether the value is a handle, or an optional one: [`target`](Self::target) says all that [`traverse`](Self::traverse) would,
    /// without a branch that nobody can predict.
    #[doc(hidden)]
    const IS_HANDLE: bool = false;

    /// Of a handle: what it refers to.
    #[doc(hidden)]
    #[inline(always)]
    fn target(&self) -> Target<'_> {
        Target::NONE
    }

    /// As [`traverse`](Self::traverse), of each of `these`: handles among themselves are copied at once.
    #[doc(hidden)]
    #[inline(always)]
    fn traverse_slice(these: &[Self], tracer: &mut Tracer)
    where
        Self: Sized,
    {
        if Self::IS_HANDLE {
            tracer.edges_to(these, Self::target);
        } else {
            these.iter().for_each(|value| value.traverse(tracer));
        }
    }

    /// The value is to be dropped soon: asks memory for the counts of the object that it leads to, or for the buffer that
    /// its handles lie in; `false`: it knows of none.
    #[doc(hidden)]
    #[inline]
    fn fetch_target(&self) -> bool {
        false
    }

    /// Asks memory for the counts that the handles in the value's buffer lead to. The buffer has been fetched.
    #[doc(hidden)]
    #[inline]
    fn fetch_targets(&self) {}

    /// Lets go of the references that can close a cycle.
    ///
    /// Called once the value is known to be garbage, with the world running, on the thread that
    /// collects. Only fields that can change through `&self` have work to do, and every cycle
    /// passes through one of them; a plain container forwards to its elements. The value may be
    /// seen afterwards, by a destructor of another member of the cycle, so leave it in a state that
    /// its methods can bear.
    ///
    /// Take the old value out under the field's lock, unlock, and only then drop it: dropping runs
    /// destructors, which may want the same lock. Skip a field whose lock is held.
    fn clear(&self, m: &Mutator) {
        let _ = m;
    }

    /// Called once in an object's life, when a collection finds it unreachable, before anything is
    /// cleared.
    ///
    /// The object and all it refers to are whole. It may be made reachable again, by putting
    /// a clone of `this` somewhere: it is then not collected, and its finalizer does not run a second
    /// time. Set [`HAS_FINALIZER`](Self::HAS_FINALIZER) beside it. A panic lands in
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    fn finalize(this: &Gc<Self>, m: &Mutator)
    where
        Self: Sized,
    {
        let _ = (this, m);
    }
}

// ----------------------------------------------------------------------------------- leaves

macro_rules! leaves {
    ($($(#[$doc:meta])* $ty:ty $(where [$($params:tt)*])?;)*) => {$(
        $(#[$doc])*
        impl $(<$($params)*>)? Trace for $ty {
            const TRACKED: bool = false;

            #[inline]
            fn traverse(&self, _: &mut Tracer) {}
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

    str; String;
    std::ffi::CStr; std::ffi::CString; std::ffi::OsStr; std::ffi::OsString;
    std::path::Path; std::path::PathBuf;

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

    /// An address is no edge: edges come only from a [`Gc`].
    std::sync::atomic::AtomicPtr<T> where [T: 'static];
    std::marker::PhantomData<T> where [T: ?Sized + 'static];

    /// Skipped. What an `Arc` leads to is owned by all its clones together: if each showed it, one
    /// reference would be counted once a clone, and a live object could be taken for garbage.
    /// Skipping is the safe side: whatever the contents refer to counts as **held from outside**,
    /// so a cycle through an `Arc` is never collected. Where it should be, make the shared value an
    /// object of the heap: `Gc<T>`.
    ///
    /// Because nothing is asked of the contents, they need not implement `Trace`.
    std::sync::Arc<T> where [T: ?Sized + 'static];
    /// Skipped, as `Arc` is; it owns nothing anyway.
    std::sync::Weak<T> where [T: ?Sized + 'static];
    /// Skipped: a borrowed value is not owned by the object, and many may borrow it. What it refers
    /// to counts as held from outside.
    &'static T where [T: ?Sized];
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

/// Types with a fixed number of parts. `$this` names the value, each `$part` is a reference into it.
macro_rules! parts {
    ($($(#[$doc:meta])* [$($params:tt)*] $ty:ty, |$this:ident| $($owner:ty = $part:expr),+;)*) => {$(
        $(#[$doc])*
        impl<$($params)*> Trace for $ty {
            const TRACKED: bool = $(<$owner>::TRACKED)||+;
            const INDIRECT: bool = $(<$owner>::INDIRECT)||+;

            #[inline]
            fn traverse(&self, tracer: &mut Tracer) {
                let $this = self;
                $(<$owner>::traverse($part, tracer);)+
            }

            #[inline]
            fn prefetch(&self, tracer: &Tracer) {
                let $this = self;
                $(<$owner>::prefetch($part, tracer);)+
            }

            #[inline]
            fn clear(&self, m: &Mutator) {
                let $this = self;
                $(<$owner>::clear($part, m);)+
            }
        }
    )*};
}

parts! {
    [T: Trace] std::cmp::Reverse<T>, |this| T = &this.0;
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
        parts! { $([$($T: Trace),+] ($($T,)+), |this| $($T = &this.$i),+;)* }
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

/// Walks by recursion, as dropping does: a long list belongs into objects of its own (`Gc`), not into boxes.
impl<T: Trace + ?Sized> Trace for Box<T> {
    const TRACKED: bool = T::TRACKED;
    const INDIRECT: bool = T::TRACKED;

    #[inline]
    fn traverse(&self, tracer: &mut Tracer) {
        (**self).traverse(tracer);
    }

    #[inline]
    fn prefetch(&self, tracer: &Tracer) {
        tracer.fetch((&raw const **self).cast::<u8>());
    }

    #[inline]
    fn clear(&self, m: &Mutator) {
        (**self).clear(m);
    }
}

impl<T: Trace> Trace for Option<T> {
    const TRACKED: bool = T::TRACKED;
    const INDIRECT: bool = T::INDIRECT;
    const IS_HANDLE: bool = T::IS_HANDLE;

    #[inline(always)]
    fn target(&self) -> Target<'_> {
        self.as_ref().map_or(Target::NONE, T::target)
    }

    #[inline]
    fn traverse(&self, tracer: &mut Tracer) {
        if T::IS_HANDLE {
            tracer.target(self.target());
        } else if T::TRACKED
            && let Some(value) = self
        {
            value.traverse(tracer);
        }
    }

    #[inline]
    fn prefetch(&self, tracer: &Tracer) {
        if T::INDIRECT
            && let Some(value) = self
        {
            value.prefetch(tracer);
        }
    }

    #[inline]
    fn fetch_target(&self) -> bool {
        self.as_ref().is_some_and(T::fetch_target)
    }

    #[inline]
    fn fetch_targets(&self) {
        if let Some(value) = self {
            value.fetch_targets();
        }
    }

    #[inline]
    fn clear(&self, m: &Mutator) {
        if T::TRACKED
            && let Some(value) = self
        {
            value.clear(m);
        }
    }
}

/// Types whose elements lie side by side: `$slices` are the places, behind a pointer (`behind`) or in the value
/// itself (`within`).
macro_rules! slices {
    ($([$($params:tt)*] $ty:ty, $place:ident |$this:ident| $slices:expr;)*) => {$(
        impl<T: Trace $($params)*> Trace for $ty {
            const TRACKED: bool = T::TRACKED;
            slices!($place |$this| $slices);

            #[inline]
            fn traverse(&self, tracer: &mut Tracer) {
                if T::TRACKED {
                    let $this = self;
                    for slice in $slices {
                        T::traverse_slice(slice, tracer);
                    }
                }
            }

            #[inline]
            fn clear(&self, m: &Mutator) {
                if T::TRACKED {
                    let $this = self;
                    for element in $slices.into_iter().flatten() {
                        element.clear(m);
                    }
                }
            }
        }
    )*};
    (within |$this:ident| $slices:expr) => {
        const INDIRECT: bool = T::INDIRECT;

        #[inline]
        fn prefetch(&self, tracer: &Tracer) {
            if T::INDIRECT {
                self.iter().for_each(|element| element.prefetch(tracer));
            }
        }
    };
    (behind |$this:ident| $slices:expr) => {
        const INDIRECT: bool = T::TRACKED;

        #[inline]
        fn fetch_target(&self) -> bool {
            let $this = self;
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
        fn fetch_targets(&self) {
            let $this = self;
            for element in $slices.into_iter().flatten() {
                element.fetch_target();
            }
        }

        #[inline]
        fn prefetch(&self, tracer: &Tracer) {
            let $this = self;
            for slice in $slices {
                // The two ends: of a small buffer that is all of it.
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

/// Types with any number of elements, reached through an iterator over references.
macro_rules! sequences {
    ($($(#[$doc:meta])* [$($params:tt)*] $ty:ty, |$this:ident| $elements:expr;)*) => {$(
        $(#[$doc])*
        impl<T: Trace $($params)*> Trace for $ty {
            const TRACKED: bool = T::TRACKED;

            #[inline]
            fn traverse(&self, tracer: &mut Tracer) {
                if T::TRACKED {
                    let $this = self;
                    for element in $elements {
                        element.traverse(tracer);
                    }
                }
            }

            #[inline]
            fn clear(&self, m: &Mutator) {
                if T::TRACKED {
                    let $this = self;
                    for element in $elements {
                        element.clear(m);
                    }
                }
            }
        }
    )*};
}

sequences! {
    [] LinkedList<T>, |this| this.iter();
    [] BTreeSet<T>, |this| this.iter();
    [, S: 'static] HashSet<T, S>, |this| this.iter();

    /// Traversed, but it **cannot be cleared**: a value that was set once stays. A cycle that
    /// passes through no other interior-mutable field is found, and reported as `uncollectable` by
    /// every full collection. [`GcOnce`](crate::GcOnce) is a once-cell that can be cleared.
    ///
    /// What the value itself can clear (an `OnceLock<GcCell<_>>`) is cleared.
    [] OnceLock<T>, |this| this.get().into_iter();
}

/// Maps show their keys and their values.
macro_rules! maps {
    ($([$($params:tt)*] $ty:ty;)*) => {$(
        impl<K: Trace, V: Trace $($params)*> Trace for $ty {
            const TRACKED: bool = K::TRACKED || V::TRACKED;

            #[inline]
            fn traverse(&self, tracer: &mut Tracer) {
                if Self::TRACKED {
                    for (key, value) in self {
                        key.traverse(tracer);
                        value.traverse(tracer);
                    }
                }
            }

            #[inline]
            fn clear(&self, m: &Mutator) {
                if Self::TRACKED {
                    for (key, value) in self {
                        key.clear(m);
                        value.clear(m);
                    }
                }
            }
        }
    )*};
}

maps! {
    [, S: 'static] HashMap<K, V, S>;
    [] BTreeMap<K, V>;
}

impl<T: Trace, E: Trace> Trace for Result<T, E> {
    const TRACKED: bool = T::TRACKED || E::TRACKED;

    #[inline]
    fn traverse(&self, tracer: &mut Tracer) {
        match self {
            Ok(value) => value.traverse(tracer),
            Err(error) => error.traverse(tracer),
        }
    }

    #[inline]
    fn clear(&self, m: &Mutator) {
        match self {
            Ok(value) => value.clear(m),
            Err(error) => error.clear(m),
        }
    }
}

/// A borrowed value is skipped, as every `&'static` is; an owned one is traversed.
impl<B> Trace for Cow<'static, B>
where
    B: ToOwned<Owned: Trace> + ?Sized + 'static,
{
    const TRACKED: bool = B::Owned::TRACKED;

    #[inline]
    fn traverse(&self, tracer: &mut Tracer) {
        if let Cow::Owned(value) = self {
            value.traverse(tracer);
        }
    }

    #[inline]
    fn clear(&self, m: &Mutator) {
        if let Cow::Owned(value) = self {
            value.clear(m);
        }
    }
}

// ------------------------------------------------------------------------------------ locks

/// The guard of a std lock that was free; whoever panicked under it earlier left references like
/// any others.
fn even_if_poisoned<G>(attempt: TryLockResult<G>) -> Option<G> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Traverses what `guard` protects, or tells the tracer that nobody can read it.
///
/// A panic of the contents' traverse is carried past the unlocking: it abandons the collection, and
/// an abandoned collection has changed nothing, so it must not poison somebody's mutex.
fn traverse_locked<T: Trace>(guard: Option<impl Deref<Target = T>>, tracer: &mut Tracer) {
    let Some(guard) = guard else { return tracer.unreadable() };
    let outcome = catch_unwind(AssertUnwindSafe(|| guard.traverse(tracer)));
    drop(guard);
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// `clear` on a lock has four steps, and their order matters. The default is made first and the old
/// value dropped last, since both run code that may want the same lock; the lock is tried, since
/// its holder may never come back.
macro_rules! locks {
    ($($lock:ty, |$this:ident| read $read:expr, write $write:expr;)*) => {$(
        /// The lock is only ever tried. While it is held, the contents are unreadable, which keeps
        /// all they lead to alive, and `clear` skips it. Poison is ignored.
        ///
        /// `clear` leaves `T::default()` behind, if `T` can hold references; a `Mutex<u64>` keeps
        /// its number.
        impl<T: Trace + Default> Trace for $lock {
            const TRACKED: bool = T::TRACKED;

            fn traverse(&self, tracer: &mut Tracer) {
                if T::TRACKED {
                    let $this = self;
                    traverse_locked($read, tracer);
                }
            }

            fn clear(&self, _: &Mutator) {
                if T::TRACKED {
                    let empty = T::default();
                    let $this = self;
                    let Some(mut guard) = $write else { return };
                    let old = std::mem::replace(&mut *guard, empty);
                    drop(guard);
                    drop(old);
                }
            }
        }
    )*};
}

locks! {
    std::sync::Mutex<T>, |this|
        read even_if_poisoned(this.try_lock()),
        write even_if_poisoned(this.try_lock());
    std::sync::RwLock<T>, |this|
        read even_if_poisoned(this.try_read()),
        write even_if_poisoned(this.try_write());
    parking_lot::Mutex<T>, |this| read this.try_lock(), write this.try_lock();
    parking_lot::RwLock<T>, |this| read this.try_read(), write this.try_write();
}
