//! Most rules of a heap are about threads and lifetimes, which Rust's compiler can check. So the
//! heaps, mutators, handles, cells and slots here are types that state these rules.

/// A heap: its handle, its settings and hooks, named roots, and its end.
pub(crate) mod heap;

/// The settings with which a heap is made.
pub(crate) mod builder;

/// The mutator that a heap keeps for a thread.
pub(crate) mod ambient;

/// A thread's attachment to a heap: safepoints, collections, blocking operations, inspection.
#[allow(unsafe_code)]
pub(crate) mod mutator;

/// A stop of the world around the system call `fork`.
pub(crate) mod fork;

/// The handle `Gc<T>`, allocation, and the table of functions of a typed object.
#[allow(unsafe_code)]
pub(crate) mod gc;

/// Handles to objects whose type is not known when the program is compiled.
#[allow(unsafe_code)]
pub(crate) mod any;

/// How the collector learns the references in a value: the trait `Trace`.
pub(crate) mod trace;

/// `Trace` for the types of std and of other crates.
pub(crate) mod trace_std;

/// The function that a type may have called before its objects die.
#[allow(unsafe_code)]
pub(crate) mod finalizer;

/// A mutable field that is locked for each access: `GcCell`.
#[allow(unsafe_code)]
pub(crate) mod cell;

/// Guards that read a cell together with others, or lend a part of its value.
#[allow(unsafe_code)]
pub(crate) mod cell_read;

/// Waits for a change of a cell.
pub(crate) mod wait;

/// A queue of messages between threads.
pub(crate) mod channel;

/// Data of the program that belong to a heap or a mutator.
pub(crate) mod user_data;

/// Mutable fields for one handle each, without a lock: `AtomicGc` and `GcOnce`.
#[allow(unsafe_code)]
pub(crate) mod slot;

/// A short list of handles that lies in its object.
#[allow(unsafe_code)]
pub(crate) mod gc_vec;

/// Objects whose length is known only when they are made.
#[allow(unsafe_code)]
pub(crate) mod slice;

/// Strings as one object: `GcStr`.
#[allow(unsafe_code)]
pub(crate) mod text;

/// Weak references, and callbacks at the end of their target.
#[allow(unsafe_code)]
pub(crate) mod weak;

/// Dead objects for the runtime, and finalizers of single objects.
#[allow(unsafe_code)]
pub(crate) mod guardian;

/// Values that are dropped on their own thread.
#[allow(unsafe_code)]
pub(crate) mod home;

/// Tables with weak keys.
#[allow(unsafe_code)]
pub(crate) mod weak_map;

/// A handle that costs the same on all threads.
#[allow(unsafe_code)]
pub(crate) mod shared_gc;

/// Values of foreign types.
pub(crate) mod opaque;

/// Handles as addresses.
#[allow(unsafe_code)]
pub(crate) mod raw;

/// Handles to trait objects: `GcDyn`.
#[allow(unsafe_code)]
pub(crate) mod wide;

/// Changes of a value that only one handle refers to.
#[allow(unsafe_code)]
pub(crate) mod unique;

/// What the conformance kit needs of the inside of a heap.
#[allow(unsafe_code)]
pub mod kit;
