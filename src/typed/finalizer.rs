//! A finalizer must not be written without being called, so `Trace` names a type's finalizer in one
//! constant. Although the constant belongs to unsized types too, such as `str`, the type of its
//! function contains a `Gc`, which exists for sized types only. So `Finalizer` keeps the function
//! without its type, and has a type parameter instead.

use std::fmt;
use std::marker::PhantomData;

use crate::{Gc, Mutator};

/// A function that is called once in the life of an object with a value of type `T`. This is when
/// the last reference to the object is dropped, or when a collection finds the object unreachable.
///
/// At that time no object is cleared yet, so the object and all objects reachable from it are
/// intact. The finalizer can make the object reachable again, for example by storing a clone of its
/// handle. The object then lives on, but its finalizer does not run a second time. A panic goes to
/// [`Heap::on_unraisable`](crate::Heap::on_unraisable).
///
/// It runs on the thread that drops the last reference, or on the one that made the object, to
/// which others leave such a drop, or, if that thread is detached, on any attached one. A
/// collection runs it on the collecting thread: the one that requested the collection, or any whose
/// safepoint began it. Other threads run meanwhile, and cannot collect.
///
/// A type names its finalizer in [`Trace::FINALIZER`](crate::Trace::FINALIZER). The derive does so
/// with `#[trace(finalize)]`. By hand:
///
/// ```
/// use standstill::{Finalizer, Gc, Heap, Mutator, Trace, Tracer};
/// # use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// # static CLOSED: AtomicU32 = AtomicU32::new(0);
///
/// struct File {
///     descriptor: u32,
/// }
///
/// impl Trace for File {
///     const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(Self::close));
///     const TRACKED: bool = false;
///
///     fn traverse(_: &Self, _: &mut Tracer) {}
/// }
///
/// impl File {
///     fn close(this: &Gc<Self>, _: &Mutator) {
///         println!("close {}", this.descriptor);
///         # CLOSED.store(this.descriptor, Relaxed);
///     }
/// }
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// drop(m.alloc(File { descriptor: 3 }));
/// # assert_eq!(CLOSED.load(Relaxed), 3);
/// ```
pub struct Finalizer<T: ?Sized> {
    /// Came from a `fn(&Gc<T>, &Mutator)`.
    function: fn(),
    of: PhantomData<fn(&T)>,
}

impl<T> Finalizer<T> {
    /// The finalizer that calls `function` with a handle to the object.
    pub const fn new(function: fn(&Gc<T>, &Mutator)) -> Self {
        // SAFETY: rule *typed*: a pointer to a function. `function` restores its type before a
        // call.
        let function = unsafe { std::mem::transmute::<fn(&Gc<T>, &Mutator), fn()>(function) };
        Self { function, of: PhantomData }
    }

    pub(super) fn function(self) -> fn(&Gc<T>, &Mutator) {
        // SAFETY: rule *typed*: only `new` makes a finalizer, from a function of this type.
        unsafe { std::mem::transmute::<fn(), fn(&Gc<T>, &Mutator)>(self.function) }
    }
}

impl<T: ?Sized> Clone for Finalizer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Finalizer<T> {}

impl<T: ?Sized> fmt::Debug for Finalizer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Finalizer").field(&self.function).finish()
    }
}
