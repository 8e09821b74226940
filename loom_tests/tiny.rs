//! The object model of the models of [whole collections](super::collect): an atomic count, and a
//! body with one reference that only a stop or exclusive access protects.
//!
//! Under loom its primitives are loom's. The conformance kit includes the same source and checks it
//! with the real ones: `the_model_of_loom_breaks_no_rule` in
//! `model_check/tests/models/loom_model.rs`. So the names that differ come from the parent module.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed};

use super::standstill::OutOfMemory;
use super::standstill::model::{
    ClaimRef, Count, Finalizers, Live, ModelMutator, Object, ObjectModel, Reserved, Stopped, Tracer,
};
use super::standstill::safepoint::ThreadId;
use super::sync::{AtomicUsize, Mutex, Ordering, UnsafeCell};

pub(crate) type Mutator = ModelMutator<Tiny>;

type Asked = Box<dyn Fn(Object) -> bool + Send + Sync>;

/// The value in a cell.
pub(crate) struct Node {
    count: AtomicUsize,
    finalizer: bool,
    body: UnsafeCell<Body>,
}

pub(crate) struct Body {
    /// A counted reference.
    pub(crate) edge: Option<Object>,
    pub(crate) cleared: bool,
}

#[derive(Default)]
pub(crate) struct Tiny {
    /// Knowledge of the test, not a part of the protocol.
    pub(crate) born: Plain,
    pub(crate) destroyed: Plain,
    /// Where finalizers put a reference.
    pub(crate) revived: Mutex<Option<Object>>,
    /// Asked by each finalizer whether it brings its object back. `None`: it does.
    pub(crate) asked: Option<Asked>,
}

impl Tiny {
    fn node(&self, object: Object) -> &Node {
        // SAFETY: rule 4: the caller holds a reference, or is the collector in a stop.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    pub(crate) fn body<R>(&self, object: Object, f: impl FnOnce(&mut Body) -> R) -> R {
        // SAFETY: the claim under test: the stop, or exclusive access to the object. loom checks
        // it.
        self.node(object).body.with_mut(|body| f(unsafe { &mut *body }))
    }

    pub(crate) fn add_ref(&self, object: Object) -> Object {
        self.node(object).count.fetch_add(1, Ordering::Relaxed);
        object
    }

    pub(crate) fn drop_ref(&self, object: Object, m: &Mutator) {
        let mut next = Some(object);
        while let Some(object) = next {
            if self.node(object).count.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            next = self.body(object, |body| body.edge.take());
            self.destroyed.fetch_add(1, Relaxed);
            // SAFETY: rule 2: the count is 0, so no other thread has a reference.
            unsafe {
                object.as_ptr().cast::<Node>().drop_in_place();
                m.free(object.as_ptr());
            }
        }
    }
}

// SAFETY: 1. `count` is the one count there is. 2. `drop_ref` frees at 0. 3. only attached threads
// drop.
// 4. edges are counted. 5. nothing is pending. 6. nothing here reaches a safepoint.
unsafe impl ObjectModel for Tiny {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(self.node(*object).count.load(Ordering::Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        // SAFETY: the world is stopped.
        let edge = self.node(*object).body.with(|body| unsafe { (*body).edge });
        if let Some(target) = edge {
            // SAFETY: rule 4.
            unsafe { tracer.visit_object(target) };
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.add_ref(*object);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        self.drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        let edge = self.body(*object, |body| {
            body.cleared = true;
            body.edge.take()
        });
        if let Some(target) = edge {
            self.drop_ref(target, m);
        }
    }
}

super::standstill::parts!(Tiny: Finalizers);

impl Finalizers<Tiny> for Tiny {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        model.node(*object).finalizer
    }

    fn finalize(model: &Self, object: Live<'_>, _: &Mutator) {
        if model.asked.as_ref().is_none_or(|asked| asked(*object)) {
            *model.revived.lock() = Some(model.add_ref(*object));
        }
    }
}

/// A tracked object with one reference.
///
/// # Errors
///
/// If the heap has no memory.
pub(crate) fn try_new(m: &Mutator, finalizer: bool) -> Result<Object, OutOfMemory> {
    let cell = m.allocate(size_of::<Node>(), 32)?.cast::<Node>();
    let body = UnsafeCell::new(Body { edge: None, cleared: false });
    // SAFETY: the cell belongs to this thread, large enough and aligned; once written, the model
    // can count it.
    unsafe {
        cell.write(Node { count: AtomicUsize::new(1), finalizer, body });
        let object = Object::new(NonNull::cast(cell));
        super::publish(m, object);
        m.model().born.fetch_add(1, Relaxed);
        Ok(object)
    }
}

/// Sets an object's edge to a reference that the caller gives up. Returns the old edge.
pub(crate) fn set(m: &Mutator, object: Object, edge: Option<Object>) -> Option<Object> {
    m.model().body(object, |body| std::mem::replace(&mut body.edge, edge))
}
