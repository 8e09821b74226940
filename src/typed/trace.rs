//! The collector knows the bytes of an object, and not which of them are handles. The type does, so
//! each type shows its handles by the trait `Trace`. For example, an object with a `Vec<Gc<T>>`
//! forwards the call to the vector, the vector to its elements, and each `Gc` reports its target.
//! `trace_std` implements the trait for types of other crates. The types of this crate ([`Gc`],
//! [`GcCell`] and so on) implement it in their own modules.
//!
//! Types are written by users, who make mistakes, so memory safety does not depend on them. A
//! traversal is safe code that runs under a guard, and the collector frees no object: it clears
//! garbage, and an object dies when its count is 0. So a wrong traversal can leak memory or lose a
//! value, and no more. This module has no state and no `unsafe` code.
//!
//! [`Gc`]: crate::Gc
//! [`GcCell`]: crate::GcCell

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use crate::managed::Batched;
use crate::object::tracer::Edge;
use crate::{Finalizer, Mutator, Tracer};

/// A type whose references the collector can follow.
///
/// Every value in a [`Heap`](crate::Heap) implements this trait, and so does every part of such a
/// value that may hold a [`Gc`]. Derive it:
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
/// ann.friends.lock(&m).push(bob.clone());
/// bob.friends.lock(&m).push(ann.clone());
/// assert_eq!(bob.name, "Bob");
///
/// drop((ann, bob)); // they still hold each other
/// assert_eq!(m.collect().collected, 2);
/// ```
///
/// # How the collector uses it
///
/// Reference counts free most objects, but not cycles. To find cycles the collector stops the world
/// and calls [`traverse`](Self::traverse) on every tracked object. For each object it counts the
/// references from other objects, because if these explain the whole reference count, no reference
/// comes from outside. Such an object is garbage, unless it is reachable from an object that is
/// referenced from outside. The collector runs the [`FINALIZER`](Self::FINALIZER) of garbage. If
/// the object is still unreachable then, [`clear`](Self::clear) removes the references that close
/// the cycle, and the counts free the objects.
///
/// # The contract, and why the trait is safe
///
/// 1. `traverse` visits each reference that the value *owns*, once for each handle. For example, a
///    `Vec` that holds the same `Gc` twice visits it twice.
/// 2. `traverse` visits no other references: no references behind a shared pointer (`Arc`,
///    `&'static`), and no references of another object.
/// 3. Two traversals of an unchanged value visit the same references, because one collection may
///    traverse a value twice.
/// 4. `clear` removes every reference that can close a cycle.
/// 5. The references of a value do not change during a stop. A field behind a lock or an atomic is
///    therefore changed only by a thread that is attached to the object's heap. A lock that is held
///    across a safepoint is [unreadable](Tracer::unreadable) there, and threads wait for it
///    detached. [`GcCell`](crate::GcCell), [`AtomicGc`](crate::AtomicGc) and
///    [`GcOnce`](crate::GcOnce) enforce this. A `Mutex`, `RwLock` or `OnceLock` cannot, so one that
///    contains references does not compile.
///
/// Memory safety needs none of these rules, because the collector never frees: it clears, and an
/// object dies when its count is 0. So the effect of a mistake is bounded:
///
/// | mistake | effect |
/// |---|---|
/// | a reference is not visited | it counts as external: its target stays, its cycles leak |
/// | a reference is visited too often | its target may be finalized and cleared while in use |
/// | references move during a stop | one of them may be visited twice, with the same effect |
/// | `clear` leaves a cycle closed | its members stay, and are reported as `uncollectable` |
/// | `traverse` panics | the collection is abandoned, and every object stays |
///
/// If an object is visited more often than its count, the mistake is detected: the object is kept
/// and reported as `overvisited`.
///
/// # By hand
///
/// Forward to the fields, because their types visit and clear their own references:
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
///     fn traverse(this: &Self, tracer: &mut Tracer) {
///         Trace::traverse(&this.items, tracer);
///     }
///
///     fn clear(this: &Self, m: &Mutator) {
///         Trace::clear(&this.items, m);
///     }
/// }
/// # let stack: Stack<Option<Gc<u8>>> = Stack { items: GcCell::default(), limit: 8 };
/// # assert_eq!(stack.limit, 8);
/// ```
///
/// # Types of the standard library
///
/// * **Leaves**: numbers, `bool`, `char`, strings and paths, times, addresses, atomics, function
///   pointers, `PhantomData`. They hold no references.
/// * **Containers**: `Option`, `Result`, `Box`, `Vec`, arrays, slices, tuples up to 12, all of
///   `std::collections`, `Cow<'static, _>`. They visit the references of their elements (a map: of
///   keys and values). If the element type holds no references, the elements are not traversed: a
///   `Vec<u8>` costs nothing. For a list of references use [`GcVec`](crate::GcVec).
/// * **Locks**: `OnceLock`, and `Mutex` and `RwLock` of std and of `parking_lot`, around values
///   without references: a `Mutex<u64>` or `RwLock<Vec<String>>`. A lock around references does not
///   compile (rule 5), also behind a generic type with `#[trace(untracked)]`. Use
///   [`GcCell`](crate::GcCell), which many threads can read at once, or [`GcOnce`](crate::GcOnce).
///   [`GcCondvar`](crate::GcCondvar) waits for a change of a cell, and
///   [`GcChannel`](crate::GcChannel) is a queue between threads.
/// * **Shared pointers**: `Arc<T>`, `sync::Weak<T>`, `&'static T`. They are skipped; the
///   implementation for `Arc` explains the reason.
///
/// These types do not implement `Trace`, on purpose:
///
/// * `Cell`, `RefCell`, `OnceCell`, `Rc`: any thread may clear or destroy an object, so its
///   contents must be `Send` and `Sync`. Use [`GcCell`](crate::GcCell), [`GcOnce`](crate::GcOnce),
///   `Arc` or `Gc`.
/// * `LazyLock`: a traversal would run its initializer. Use [`GcOnce`](crate::GcOnce).
/// * `Box<dyn Any>` and similar types: they have no way to visit their references. Use
///   [`AnyGc`](crate::AnyGc), [`GcDyn`](crate::GcDyn), or your own enum.
/// * Function pointers with a lifetime in the signature (`fn(&T)`): Rust has no way to name them
///   all. Put `#[trace(skip)]` on such a field, which loses nothing, because a function pointer
///   holds no references.
///
/// [`Gc`]: crate::Gc
#[diagnostic::on_unimplemented(
    message = "the collector cannot look into `{Self}`: it does not implement `Trace`",
    label = "does not implement `Trace`",
    note = "if `{Self}` is a type of yours, put `#[derive(Trace)]` on it",
    note = "if it holds no `Gc`, put `#[trace(skip)]` on the field that holds it",
    note = "objects are shared between threads: use `GcCell` instead of `Cell` or `RefCell`, `GcOnce` \
            instead of `OnceCell` or `LazyLock`, `Gc` (or `Arc`) instead of `Rc`",
    note = "a trait object cannot say what it refers to: use `GcDyn`, `AnyGc` or an enum"
)]
pub trait Trace: 'static {
    /// The finalizer of objects of this type, if they have one.
    ///
    /// If no garbage object of a collection can run code, the collector saves a stop. The derive
    /// sets this constant with `#[trace(finalize)]`. The constant describes the type of an object,
    /// so the finalizers of its *fields'* types never run. [`Finalizer`] says when a finalizer is
    /// called.
    const FINALIZER: Option<Finalizer<Self>> = None;

    /// Whether values of this type may hold references.
    ///
    /// `false` promises that [`traverse`](Self::traverse) visits no reference. New objects of such
    /// a type are not tracked, so collections do not process them, and containers of such values
    /// are not traversed. The derive sets this constant with `#[trace(untracked)]`.
    const TRACKED: bool = true;

    /// Whether [`prefetch`](Self::prefetch) does anything: whether some references lie outside the
    /// value's own bytes, for example in the buffer of a `Vec`. The derive sets this constant.
    const INDIRECT: bool = false;

    /// Whether [`external_bytes`](Self::external_bytes) may return more than 0. If not, allocation
    /// and death of such objects have no code for it. The derive sets this constant.
    const HAS_EXTERNAL_BYTES: bool = false;

    /// The bytes outside the heap that the value itself owns: the buffer of a `Vec`, the memory of
    /// a foreign library. A value of 16 bytes can own gigabytes, so the heap counts them when it
    /// decides about collections ([`Pacing::young_bytes`](crate::Pacing::young_bytes)).
    ///
    /// A type that returns more than 0 sets [`HAS_EXTERNAL_BYTES`](Self::HAS_EXTERNAL_BYTES). The
    /// derive adds up the fields, except those with `#[trace(skip)]`. Containers of the standard
    /// library count their buffers by their capacity, and do not look behind them, so that the call
    /// takes constant time. For example, a `Vec<Vec<u8>>` counts 24 bytes an element. Not counted
    /// are the contents of an `Arc`, which no single object owns, and of a `Mutex`, `RwLock` or
    /// `OnceLock`, which change without the heap's knowledge.
    ///
    /// The heap adds the bytes when the object is allocated, and subtracts them when it dies. It
    /// calls this function for the contents of a [`GcCell`](crate::GcCell) of an object, too, each
    /// time it is locked and unlocked, and counts the difference. So between these calls the result
    /// may change only by a change of a cell's contents. All else that a type gets or gives up
    /// during its life, it reports with
    /// [`Mutator::adjust_external_bytes`](crate::Mutator::adjust_external_bytes), and returns it
    /// here when it dies. A wrong result makes collections too frequent or too rare. The function
    /// must not panic, and not use objects.
    ///
    /// The heap counts a change twice, or a change of what it has not counted, in three cases. A
    /// cell with such contents is locked by the destructor of its own object, lies in the contents
    /// of another cell, or is a field with `#[trace(skip)]`. Such a program makes up for the
    /// difference with [`Mutator::adjust_external_bytes`](crate::Mutator::adjust_external_bytes).
    #[inline]
    fn external_bytes(this: &mut Self) -> usize {
        let _ = this;
        0
    }

    /// Visits the references that this value owns.
    ///
    /// It runs **while the world is stopped**, on any thread, possibly on several values in
    /// parallel, and possibly more than once in a collection. Call `traverse` of the fields, or
    /// [`Tracer::visit`] for a reference. If a field cannot be read now, call
    /// [`Tracer::unreadable`], which keeps the field's targets alive.
    ///
    /// Do nothing else: do not allocate in a heap, and do not attach. Above all do not wait for a
    /// lock, because its holder may be a stopped thread. A guard around the call detects these uses
    /// where it can, and panics. A panic abandons the collection.
    fn traverse(this: &Self, tracer: &mut Tracer);

    /// Visits the references that [`traverse`](Self::traverse) visits, and calls
    /// [`Tracer::field`] with the name of each field before its references. Only a survey of the
    /// heap calls it, for example [`Mutator::why_alive`], under the rules of `traverse`. The derive
    /// writes it. By default the references have no names.
    ///
    /// A value that owns memory outside the heap also tells its size here, with
    /// [`Tracer::external`], as [`external_bytes`](Self::external_bytes) does for the sum of the
    /// heap. It is then asked for types without references, too.
    fn describe(this: &Self, tracer: &mut Tracer) {
        // A function with a second caller is inlined less, so the containers of this crate demand
        // that their `traverse` is.
        Self::traverse(this, tracer);
    }

    /// Writes a few words that tell this object from others of its type, for example its name. Only
    /// [`Mutator::graph_with_labels`] calls it, under the rules of [`traverse`](Self::traverse),
    /// and it keeps the first 64 bytes. The derive forwards it with `#[trace(label = path)]`. The
    /// labels of an object's *fields* are never asked for. By default there is no label.
    ///
    /// # Errors
    ///
    /// Those of `f`. Nothing depends on them: what was written is the label.
    fn label(this: &Self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = (this, f);
        Ok(())
    }

    /// Prefetches the memory outside the value's own bytes that [`traverse`](Self::traverse) is
    /// going to read, with [`Tracer::fetch`].
    ///
    /// If the type is [`INDIRECT`](Self::INDIRECT), the collector calls this some objects ahead of
    /// the traversal, under the same guard. Cache misses on small buffers would otherwise take most
    /// of a pause. The derive forwards it to the fields. An empty function is always correct, and
    /// the rules are those of `traverse`.
    #[inline]
    fn prefetch(this: &Self, tracer: &Tracer) {
        let _ = (this, tracer);
    }

    /// Whether the value is a handle or an optional handle. If so, [`target`](Self::target) returns
    /// the same edge that [`traverse`](Self::traverse) visits, without an unpredictable branch.
    #[doc(hidden)]
    const IS_HANDLE: bool = false;

    /// The edge of a handle.
    #[doc(hidden)]
    #[inline(always)]
    fn target(_: &Self) -> Edge<'_> {
        Edge::NONE
    }

    /// Calls [`traverse`](Self::traverse) for each of `these`. A slice of handles needs no call for
    /// each, because the edges are copied in one loop.
    #[doc(hidden)]
    #[inline(always)]
    fn traverse_slice(these: &[Self], tracer: &mut Tracer)
    where
        Self: Sized,
    {
        if Self::IS_HANDLE {
            tracer.edges_to(these, Self::target);
        } else {
            these.iter().for_each(|value| Self::traverse(value, tracer));
        }
    }

    /// Prefetches before the value is dropped: the counts of its target, or the buffer that
    /// contains its handles. `false`: the value refers to no object.
    #[doc(hidden)]
    #[inline]
    fn fetch_target(_: &Self) -> bool {
        false
    }

    /// Prefetches the counts of the targets of the handles in the value's buffer, which is in the
    /// cache.
    #[doc(hidden)]
    #[inline]
    fn fetch_targets(_: &Self) {}

    /// Drops the references that can close a cycle.
    ///
    /// An attached thread calls this when the value is known to be garbage, while the world runs.
    /// Only fields that can change through `&self` have work to do, and every cycle passes through
    /// such a field. A plain container forwards to its elements. A destructor of another member of
    /// the cycle may use the value afterwards, so leave it in a state that its methods can handle.
    ///
    /// Take the old value out under the field's lock, unlock, and only then drop the old value. The
    /// drop runs destructors, which may take the same lock. If a field's lock is held, skip the
    /// field, because a later collection breaks the cycle.
    fn clear(this: &Self, m: &Mutator) {
        let _ = (this, m);
    }
}

/// What the derive asks about the type of a skipped field.
///
/// The constant `REFERENCES` says whether values of type `T` may hold references. If `T` does not
/// implement [`Trace`], nothing is known, because the name then stands for the constant of
/// [`AnySkipped`].
///
/// ```compile_fail,E0080
/// use standstill::{Gc, Heap, Trace};
///
/// #[derive(Trace)]
/// struct Node<T: Trace>(T, #[trace(skip)] Option<T>);
///
/// Heap::new().attach().alloc(Node(None, None::<Option<Gc<u8>>>));
/// ```
///
/// ```
/// # use standstill::{Gc, Heap, Trace};
/// #[derive(Trace)]
/// struct Node<T: Trace>(T, #[trace(skip)] Option<T>);
///
/// Heap::new().attach().alloc(Node(None, None::<Option<u8>>));
/// ```
#[doc(hidden)]
#[derive(Debug)]
pub struct Skipped<T: ?Sized>(PhantomData<T>);

impl<T: Trace + ?Sized> Skipped<T> {
    pub const REFERENCES: Option<bool> = Some(T::TRACKED);
}

/// See [`Skipped`].
#[doc(hidden)]
pub trait AnySkipped {
    const REFERENCES: Option<bool> = None;
}

impl<T: ?Sized> AnySkipped for Skipped<T> {}

impl<T: Trace> Batched for T {
    const IS_BUFFERED: bool = T::INDIRECT;

    #[inline]
    fn prefetch_first(&self) -> bool {
        T::fetch_target(self)
    }

    #[inline]
    fn prefetch_buffered(&self) {
        T::fetch_targets(self);
    }
}
