//! What typed and dynamic objects of the check of the built-in model share.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::model_check::specimen::Journal;
use crate::object::header::Header;
use crate::object::type_info::Object;

/// The fields of an object.
pub(super) const FIELDS: usize = 3;

thread_local! {
    static JOURNAL: RefCell<Arc<Journal>> = RefCell::default();
}

/// The journal of the heap that this thread checks. Only programs on one thread need it.
pub(super) fn journal() -> Arc<Journal> {
    JOURNAL.with_borrow(Arc::clone)
}

pub(super) fn set_journal(journal: &Arc<Journal>) {
    JOURNAL.set(Arc::clone(journal));
}

pub(super) fn object(header: NonNull<Header>) -> Object {
    Object::new(header.cast())
}
