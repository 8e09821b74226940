//! Floor 5: what the collector asks of an object's type.
//!
//! [`Trace`] is the whole contract between a type and the collector. `trace_std` implements it
//! for types that are not ours; the library's own ([`Gc`], [`GcCell`] and their
//! kin) implement it where they are defined. There is no state here and no `unsafe`: a traverse is
//! safe code that runs under a guard, and a wrong one costs memory or a value, never soundness.
//!
//! [`GcCell`]: crate::GcCell

use crate::managed::Batched;
use crate::object::type_info::Edge;
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
/// ann.friends.lock(&m).push(bob.clone());
/// bob.friends.lock(&m).push(ann.clone());
/// assert_eq!(bob.name, "Bob");
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
/// 5. A lock of std or parking_lot inside an object is changed only by a thread that is attached to
///    the object's heap, and is not held across a safepoint. A [`GcCell`](crate::GcCell) enforces both.
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
    fn traverse(this: &Self, tracer: &mut Tracer);

    /// Asks memory for what [`traverse`](Self::traverse) is going to read behind the value's own bytes, with
    /// [`Tracer::fetch`].
    ///
    /// The collector calls it some objects ahead of the traversal, under the same guard, where the type is
    /// [`INDIRECT`](Self::INDIRECT); else it would spend most of a pause waiting for small buffers. The derive
    /// forwards it to the fields. Doing nothing is always right; the rules are those of `traverse`.
    #[inline]
    fn prefetch(this: &Self, tracer: &Tracer) {
        let _ = (this, tracer);
    }

    /// Whether the value is a handle, or an optional one: [`target`](Self::target) says all that [`traverse`](Self::traverse) would,
    /// without a branch that nobody can predict.
    #[doc(hidden)]
    const IS_HANDLE: bool = false;

    /// Of a handle: what it refers to.
    #[doc(hidden)]
    #[inline(always)]
    fn target(_: &Self) -> Edge<'_> {
        Edge::NONE
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
            these.iter().for_each(|value| Self::traverse(value, tracer));
        }
    }

    /// The value is to be dropped soon: asks memory for the counts of the object that it leads to, or for the buffer that
    /// its handles lie in; `false`: it knows of none.
    #[doc(hidden)]
    #[inline]
    fn fetch_target(_: &Self) -> bool {
        false
    }

    /// Asks memory for the counts that the handles in the value's buffer lead to. The buffer has been fetched.
    #[doc(hidden)]
    #[inline]
    fn fetch_targets(_: &Self) {}

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
    fn clear(this: &Self, m: &Mutator) {
        let _ = (this, m);
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
