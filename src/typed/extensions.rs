//! The interface through which modules above this folder extend a heap of typed objects.
//!
//! The modules above import from this folder, and this folder does not import from them. `lib.rs`
//! joins the two: its constant `EXTENSIONS` names their functions.

#![forbid(unsafe_code)]

use crate::base::error::Fault;
use crate::base::fallible::NoMemory;
use crate::heap::observer::ObserverAndRule;
use crate::object::type_info::TypeInfo;
use crate::{AnyGc, Mutator};

/// The functions that a heap of typed objects calls in modules above this folder.
pub(crate) struct Extensions {
    /// Types that are made at run time. `None` without the feature `cpython`, and in the models of
    /// loom.
    pub(crate) dynamic: Option<DynamicTypes>,
    /// The last collection of a heap, to which no handle and no other mutator refers. `None`: the
    /// last collection is a full one that calls no callbacks of the `gc` module.
    pub(crate) last_collection: Option<fn(&mut Mutator)>,
    /// Makes the observer of a new heap, which is also its pacing rule.
    pub(crate) observer: Option<NewObserver>,
}

/// Makes the observer of a new heap, and returns it twice: as the observer and as a pacing rule.
pub(crate) type NewObserver = fn() -> Result<ObserverAndRule, NoMemory>;

/// How a heap handles objects of types made at run time.
pub(crate) struct DynamicTypes {
    /// The table of these objects. It is the first that each heap registers.
    pub(crate) info: &'static TypeInfo,
    /// The index of `info` in each heap.
    pub(crate) index: u32,
    /// Makes the builtin types, once in a process.
    pub(crate) make_builtins: fn() -> Result<(), Fault>,
    /// The name of a dynamic object's type.
    pub(crate) type_name: for<'a> fn(&'a AnyGc, &'a Mutator) -> &'a str,
    /// Whether a dynamic object takes part in cycle collection.
    pub(crate) takes_part: fn(&AnyGc, &Mutator) -> bool,
}

impl DynamicTypes {
    /// The dynamic types, if `info` is their table.
    fn of(info: &TypeInfo) -> Option<&'static Self> {
        crate::EXTENSIONS.dynamic.as_ref().filter(|types| std::ptr::eq(info, types.info))
    }
}

impl AnyGc {
    /// The name of the object's type.
    ///
    /// For a typed object it is the result of [`std::any::type_name`]. For a dynamic object it is
    /// the name of its dynamic type.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn type_name<'a>(&'a self, m: &'a Mutator) -> &'a str {
        let info = self.info(m);
        match DynamicTypes::of(info) {
            Some(types) => (types.type_name)(self, m),
            None => self.name_by(info),
        }
    }

    /// See [`Gc::track`](crate::Gc::track).
    ///
    /// If the type of a dynamic object takes no part in cycle collection, the object stays
    /// untracked. The result is then `false`.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn track(&self, m: &Mutator) -> bool {
        let info = self.info(m);
        if DynamicTypes::of(info).is_some_and(|types| !(types.takes_part)(self, m)) {
            return false;
        }
        self.track_typed(m)
    }
}
