//! Inspection of a heap: its objects, their references, and the frozen objects.
//!
//! Each function stops the world. Objects that a running collection is about to clear are not
//! listed. [`collect::inspect`](crate::collect::inspect) has the functions for any model.

#![forbid(unsafe_code)]

use crate::base::fallible::NoMemory;
use crate::collect::inspect;
use crate::object::type_info::Object;
use crate::{AnyGc, Mutator};

impl Mutator {
    /// All tracked objects of the heap except the frozen objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped: in a destructor, finalizer, callback or traversal, or if
    /// another thread has ended without dropping its mutator.
    #[track_caller]
    pub fn objects(&mut self) -> Vec<AnyGc> {
        let mut all = Vec::new();
        self.raw().inspect(|world| {
            inspect::listed(world, |object, _| all.push(self.any_from(object.live())));
        });
        all
    }

    /// All tracked objects that refer to `target`, except the frozen objects. Each object is listed
    /// once.
    ///
    /// # Panics
    ///
    /// * If `target` belongs to another heap than the mutator.
    /// * If a traversal panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referrers(&mut self, target: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(target.header(), self);
        let address = target.header().as_ptr() as usize;
        let result = self.raw().inspect(|world| {
            let mut found = Vec::new();
            let result = inspect::referring(world, vec![address], |object, _| found.push(object));
            let result = result.map(|kept| kept.unwrap_or_else(NoMemory::abort_process));
            result.map(|()| -> Vec<AnyGc> {
                found.into_iter().map(|object| self.any_from(object.live())).collect()
            })
        });
        result.unwrap_or_else(|reason| panic!("a traversal failed: {reason}"))
    }

    /// All targets of the references in `source`, tracked and untracked. An object is listed once
    /// per reference to it.
    ///
    /// # Panics
    ///
    /// * If `source` belongs to another heap than the mutator.
    /// * If the traversal of `source` panics.
    /// * If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn referents(&mut self, source: &AnyGc) -> Vec<AnyGc> {
        crate::typed::gc::check(source.header(), self);
        let object = Object::new(source.header().cast());
        let mut targets = Vec::new();
        let result = self.raw().inspect(|world| {
            inspect::targets(world, object, |target, _| targets.push(self.any_from(target.live())))
        });
        result.unwrap_or_else(|reason| panic!("a traversal failed: {reason}"));
        targets
    }

    /// Freezes all tracked objects. Returns the number of frozen objects.
    ///
    /// Collections ignore frozen objects until [`unfreeze`](Self::unfreeze). The references of a
    /// frozen object keep their targets alive.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn freeze(&mut self) -> usize {
        inspect::freeze(self.raw())
    }

    /// Unfreezes all objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn unfreeze(&mut self) {
        inspect::unfreeze(self.raw());
    }

    /// The number of frozen objects.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn frozen(&mut self) -> usize {
        inspect::frozen(self.raw())
    }

    /// Checks the whole heap for damage. It looks for these defects:
    ///
    /// * damaged tables;
    /// * references to addresses without an object;
    /// * overvisited objects, which traversals visit more often than references to them exist. A
    ///   wrong [`Trace::traverse`](crate::Trace::traverse) can cause this defect.
    ///
    /// # Errors
    ///
    /// A description of the first defect.
    ///
    /// # Panics
    ///
    /// If the world cannot be stopped; see [`objects`](Self::objects).
    #[track_caller]
    pub fn verify(&mut self) -> Result<(), String> {
        inspect::verify(self.raw())
    }
}
