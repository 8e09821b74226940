//! The interface through which modules above this folder extend a heap of typed objects.
//!
//! The modules above import from this folder, and this folder does not import from them. `lib.rs`
//! joins the two: its constant `EXTENSIONS` names their functions.

#![forbid(unsafe_code)]

use std::ptr::NonNull;

use crate::Mutator;
use crate::base::error::Fault;
use crate::base::fallible::NoMemory;
use crate::heap::observer::ObserverAndRule;
use crate::object::header::Header;
use crate::object::type_info::TypeInfo;

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
    /// The name of an object's type. The object must be alive and its table must be `info`.
    pub(crate) type_name: unsafe fn(&Header) -> &str,
    /// Whether an object takes part in cycle collection. The object must be alive and its table
    /// must be `info`.
    pub(crate) takes_part: unsafe fn(NonNull<Header>) -> bool,
}

impl DynamicTypes {
    /// The dynamic types, if `info` is their table.
    pub(super) fn of(info: &TypeInfo) -> Option<&'static Self> {
        crate::EXTENSIONS.dynamic.as_ref().filter(|types| std::ptr::eq(info, types.info))
    }
}
