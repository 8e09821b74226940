//! The call of a destructor, which may panic.

use std::ptr::NonNull;

use crate::base::event;
use crate::base::event::During;
use crate::base::hooks::Hooks;
use crate::object::header::Header;
use crate::object::type_info::TypeInfo;

/// The treatment of a panic of a destructor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnPanic {
    /// It goes on to the user's code that dropped the reference.
    PassOn,
    /// It goes to the hook, because the user's code on the stack did not drop the reference.
    Report,
}

/// A panic of a destructor, and the name of the object's type.
pub(super) struct Panic {
    pub(super) payload: Box<dyn std::any::Any + Send>,
    pub(super) type_name: &'static str,
}

impl Panic {
    pub(super) fn report(self, hooks: &Hooks) {
        hooks.unraisable(During::Drop, self.type_name, event::panic_message(self.payload));
    }
}

/// Runs a destructor.
///
/// # Safety
///
/// The caller has exclusive access to the object, which is of this type, and does not use the value
/// afterwards.
#[inline]
pub(super) unsafe fn run_destructor(info: &TypeInfo, header: NonNull<Header>) -> Result<(), Panic> {
    let Some(drop) = info.drop else { return Ok(()) };
    // SAFETY: as the caller says.
    event::guarded(|| unsafe { drop(info.value(header)) })
        // SAFETY: rule *zero*: the memory is not freed yet.
        .map_err(|payload| Panic { payload, type_name: unsafe { (info.name)(header) } })
}
