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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Heap, Pacing};

    #[test]
    fn a_call_from_inside_another_call_of_the_mutator_is_an_error() {
        let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
        let services = heap.services();
        let mut m = heap.attach();
        let lent = m.raw().lend();
        let fault = services.objects(&mut m, None).expect_err("the mutator is in use");
        assert_eq!((fault.code, fault.function), (Code::NotAllowedHere, "objects"));
        drop(lent);
        assert!(services.objects(&mut m, None).is_ok());
    }
}
