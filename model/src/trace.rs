//! `Trace`, as the derive of the library implements it.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::count::{Gc, Object};
use crate::{GcCell, Mutator};

/// A type whose references the collector can follow. Derive it with `#[trace(crate =
/// standstill_model)]`, or without it where the double has the name `standstill`.
pub trait Trace: 'static {
    /// Whether values of this type may hold references.
    const TRACKED: bool = true;
    #[doc(hidden)]
    const INDIRECT: bool = false;
    #[doc(hidden)]
    const HAS_EXTERNAL_BYTES: bool = false;

    /// Visits the references that this value owns, in a stop.
    fn traverse(this: &Self, tracer: &mut Tracer);

    /// Removes every reference that can close a cycle.
    fn clear(this: &Self, m: &Mutator) {
        let _ = (this, m);
    }

    #[doc(hidden)]
    fn external_bytes(this: &mut Self) -> usize {
        let _ = this;
        0
    }

    #[doc(hidden)]
    fn describe(this: &Self, tracer: &mut Tracer) {
        Self::traverse(this, tracer);
    }

    #[doc(hidden)]
    fn prefetch(this: &Self, tracer: &Tracer) {
        let _ = (this, tracer);
    }
}

/// Collects the references of one object.
#[derive(Debug, Default)]
pub struct Tracer {
    pub(crate) targets: Vec<*const Object>,
}

impl Tracer {
    /// Reports a reference. An implementation of [`Trace::traverse`] calls it for each handle that
    /// the value owns.
    pub fn visit<T>(&mut self, gc: &Gc<T>) {
        self.targets.push(Arc::as_ptr(&gc.object));
    }

    /// Does nothing: the double names no fields.
    pub fn field(&mut self, name: impl Into<Cow<'static, str>>) {
        drop(name.into());
    }

    /// Does nothing: the double counts no memory outside the heap.
    pub fn external(&mut self, bytes: usize) {
        let _ = bytes;
    }

    #[doc(hidden)]
    pub fn outer_field(&self) -> Option<&'static str> {
        None
    }
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Skipped<T: ?Sized>(PhantomData<T>);

impl<T: Trace + ?Sized> Skipped<T> {
    pub const REFERENCES: Option<bool> = Some(T::TRACKED);
}

#[doc(hidden)]
pub trait AnySkipped {
    const REFERENCES: Option<bool> = None;
}

impl<T: ?Sized> AnySkipped for Skipped<T> {}

macro_rules! leaves {
    ($([$($params:tt)*] $type:ty),*) => {$(
        impl<$($params)*> Trace for $type {
            const TRACKED: bool = false;

            fn traverse(_: &Self, _: &mut Tracer) {}
        }
    )*};
}

leaves!(
    [] bool, [] char, [] u8, [] u16, [] u32, [] u64, [] usize, [] i8, [] i16, [] i32, [] i64,
    [] isize, [] f32, [] f64, [] String, [] (), [T: 'static] PhantomData<T>,
    [T: ?Sized + 'static] &'static T, [T: ?Sized + 'static] Arc<T>
);

macro_rules! containers {
    ($([$($params:tt)*] $type:ty),*) => {$(
        impl<T: Trace, $($params)*> Trace for $type {
            const TRACKED: bool = T::TRACKED;

            fn traverse(this: &Self, tracer: &mut Tracer) {
                this.iter().for_each(|item| T::traverse(item, tracer));
            }

            fn clear(this: &Self, m: &Mutator) {
                this.iter().for_each(|item| T::clear(item, m));
            }
        }
    )*};
}

containers!([] Option<T>, [] Vec<T>, [const N: usize] [T; N]);

impl<T: Trace> Trace for Box<T> {
    const TRACKED: bool = T::TRACKED;

    fn traverse(this: &Self, tracer: &mut Tracer) {
        T::traverse(this, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        T::clear(this, m);
    }
}

impl<T: Trace> Trace for Gc<T> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        tracer.visit(this);
    }
}

impl<T: Trace + Default> Trace for GcCell<T> {
    const TRACKED: bool = T::TRACKED;

    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.read_in_stop(|value| T::traverse(value, tracer));
    }

    fn clear(this: &Self, m: &Mutator) {
        drop(this.take(m));
    }
}
