//! The seam through which modules above this folder extend a heap of typed objects.
//!
//! The modules above import from this folder, and this folder does not import from them. `lib.rs`
//! joins the two: its constant `EXTENSIONS` names their functions.

use std::ptr::NonNull;

use crate::Mutator;
use crate::base::error::Fault;
use crate::base::fallible::NoMemory;
use crate::heap::observer::ObserverAndRule;
use crate::object::header::Header;
use crate::object::type_info::TypeInfo;

/// The functions that a heap of typed objects calls in modules above this folder.
pub(crate) struct Extensions {
    /// Types that are made at run time. The models of loom have none.
    pub(crate) dynamic: Option<DynamicTypes>,
    /// The last collection of a heap, which no handle and no other mutator refers to. `None`: a
    /// full collection without finalizers' reports is all.
    pub(crate) last_collection: Option<fn(&mut Mutator)>,
    /// Makes the observer of a new heap, which is also its pacing rule.
    pub(crate) observer: Option<NewObserver>,
}

/// Makes the observer of a new heap, twice as a reference: as a pacing rule, too.
pub(crate) type NewObserver = fn() -> Result<ObserverAndRule, NoMemory>;

/// How a heap handles objects whose type was made at run time.
pub(crate) struct DynamicTypes {
    /// The table of these objects. It is the first that each heap registers.
    pub(crate) info: &'static TypeInfo,
    /// The index that `info` then has.
    pub(crate) index: u32,
    /// Makes the types that every program has; once in a process.
    pub(crate) make_builtins: fn() -> Result<(), Fault>,
    /// The name of an object's type. The object is alive, and one of `info`.
    pub(crate) type_name: unsafe fn(&Header) -> &str,
    /// Whether an object takes part in cycle collection. The object is alive, and one of `info`.
    pub(crate) takes_part: unsafe fn(NonNull<Header>) -> bool,
}

impl DynamicTypes {
    /// These types, if `info` is their table.
    pub(super) fn of(info: &TypeInfo) -> Option<&'static Self> {
        crate::EXTENSIONS.dynamic.as_ref().filter(|types| std::ptr::eq(info, types.info))
    }
}
