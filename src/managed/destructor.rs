//! Floor 3: the call of a destructor, which may panic.

use std::ptr::NonNull;

use crate::base::event;
use crate::base::event::During;
use crate::base::hooks::Hooks;
use crate::object::header::Header;
use crate::object::type_info::TypeInfo;

/// What happens to a panic of a destructor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnPanic {
    /// It goes on to the user, who dropped the reference.
    PassOn,
    /// It goes to the hook: nobody here asked for this destruction.
    Report,
}

/// A destructor's panic, and the type whose destructor it was.
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
/// The value is the caller's to destroy, and of this type.
#[inline]
pub(super) unsafe fn run_destructor(info: &TypeInfo, header: NonNull<Header>) -> Result<(), Panic> {
    let Some(drop) = info.drop else { return Ok(()) };
    // SAFETY: as the caller says.
    event::guarded(|| unsafe { drop(info.value(header)) })
        // SAFETY: rule Z: the memory is still the object's.
        .map_err(|payload| Panic { payload, type_name: unsafe { (info.name)(header) } })
}
