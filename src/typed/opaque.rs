//! A type of another crate cannot implement [`Trace`], because of Rust's orphan rule. Most such
//! types hold no handles, so [`Opaque`] reports nothing.

#![forbid(unsafe_code)]

use std::ops::Deref;

use crate::{Gc, Mutator, Trace, Tracer};

/// A value of a foreign type, as an object or a part of one, of which the collector sees nothing.
///
/// If the value holds handles all the same, these are counted, so that nothing dies too early. A
/// cycle through it is never freed.
///
/// ```
/// use standstill::{Gc, Heap, Opaque};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let (sender, receiver) = std::sync::mpsc::channel::<u32>();
/// let sender: Gc<Opaque<std::sync::mpsc::Sender<u32>>> = m.alloc_opaque(sender);
/// sender.send(7).unwrap();
/// assert_eq!(receiver.recv(), Ok(7));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Opaque<T>(pub T);

impl<T: 'static> Trace for Opaque<T> {
    const TRACKED: bool = false;

    #[inline]
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl<T> Deref for Opaque<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl Mutator {
    /// Allocates an [`Opaque`] object. `try_alloc(Opaque(value))` returns an error instead of a
    /// panic.
    ///
    /// # Panics
    ///
    /// If the heap is full.
    #[inline]
    #[track_caller]
    pub fn alloc_opaque<T: Send + Sync + 'static>(&self, value: T) -> Gc<Opaque<T>> {
        self.alloc(Opaque(value))
    }
}
