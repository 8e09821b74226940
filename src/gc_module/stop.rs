//! A stop of the world for one call of the services.

#![forbid(unsafe_code)]

use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::base::text::words;
use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::managed::Managed;
use crate::safepoint::StopError;

/// Runs `f` in its own stop, and then the work that is due after a stop.
pub(super) fn stopped<R>(
    m: &mut Mutator,
    function: &'static str,
    f: impl FnOnce(&Mutator, &World<'_, Managed>) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let world = m.raw().stop_here().map_err(|error| {
        let code = match error {
            StopError::NoSafepoint | StopError::Nested => Code::NotAllowedHere,
            _ => Code::Custom,
        };
        Fault::new(code, function).because(words!("the world cannot be stopped: {error}"))
    })?;
    let result = f(m, &world);
    drop(world);
    m.raw().model().resumed(m.raw());
    result
}
