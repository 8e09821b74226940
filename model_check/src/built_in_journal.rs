//! What typed and dynamic objects of the check of the built-in model share.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use standstill::dynamic::RawObject;
use standstill::model::Object;

use crate::specimen::Journal;

/// The fields of an object.
pub(crate) const FIELDS: usize = 3;

thread_local! {
    static JOURNAL: RefCell<Arc<Journal>> = RefCell::default();
}

/// The journal of the heap that this thread checks. Only programs on one thread need it.
pub(crate) fn journal() -> Arc<Journal> {
    JOURNAL.with_borrow(Arc::clone)
}

pub(crate) fn set_journal(journal: &Arc<Journal>) {
    JOURNAL.set(Arc::clone(journal));
}

pub(crate) fn object(object: NonNull<RawObject>) -> Object {
    Object::new(object.cast())
}
