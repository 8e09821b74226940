//! Where in a program the handles of each object were made.
//!
//! A survey says that handles hold an object, and not which ones: a handle is an address. So with
//! the feature `handle-places` each function that makes a handle counts its caller's place, by
//! object. For example, the allocation of A and two clones in a loop are "src/a.rs:3 (once)" and
//! "src/a.rs:9 (twice)".
//!
//! A drop does not know which handle it drops, so the counts never fall while the object lives.
//! They name the candidates. Without the feature these functions do nothing.

#![forbid(unsafe_code)]

use std::fmt;
use std::panic::Location;

use crate::base::fallible::NoMemory;

/// A place in the program that has made handles to an object, with the feature `handle-places`.
///
/// Displayed for example as `src/a.rs:12 (3 times)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlePlace {
    /// The call that has made them. It lies in another library if that has made them, for example
    /// in std for the clone of a `Vec`.
    pub place: &'static Location<'static>,
    /// How many, dropped or not, without those that were made while memory was refused.
    pub made: u64,
}

impl fmt::Display for HandlePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, made } = self;
        write!(f, "{}:{} (", place.file(), place.line())?;
        match made {
            1 => f.write_str("once)"),
            2 => f.write_str("twice)"),
            many => write!(f, "{many} times)"),
        }
    }
}

#[cfg(all(
    feature = "handle-places",
    not(any(loom, shuttle, standstill_loom, standstill_shuttle))
))]
pub(crate) use counted::*;
#[cfg(not(all(
    feature = "handle-places",
    not(any(loom, shuttle, standstill_loom, standstill_shuttle))
)))]
pub(crate) use ignored::*;

#[cfg(all(
    feature = "handle-places",
    not(any(loom, shuttle, standstill_loom, standstill_shuttle))
))]
mod counted {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::sync::OnceLock;

    use super::{HandlePlace, Location, NoMemory};
    use crate::base::fallible;
    use crate::base::settings_lock::Setting;

    type Table = HashMap<usize, Vec<HandlePlace>>;

    /// By the address of the object. Under the lock of settings, because a fork holds that.
    static PLACES: OnceLock<Setting<Table>> = OnceLock::new();

    thread_local! {
        /// The place of the handles that this thread makes, if not that of each call.
        static INSTEAD: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
    }

    /// Calls `f`. The handles that it makes are those of the caller, because the clone of an
    /// `Option` would be a place in std.
    #[track_caller]
    pub(crate) fn made_in<R>(f: impl FnOnce() -> R) -> R {
        struct Restored(Option<&'static Location<'static>>);

        impl Drop for Restored {
            fn drop(&mut self) {
                INSTEAD.set(self.0);
            }
        }

        let _restored = Restored(INSTEAD.replace(Some(Location::caller())));
        f()
    }

    fn with<R>(f: impl FnOnce(&mut Table) -> R) -> R {
        // Before the cell is filled, as a thread that is lost in a fork must not be filling it.
        let _held = crate::base::settings_lock::SettingsHold::new();
        PLACES.get_or_init(Setting::default).with(f)
    }

    /// The caller of the caller has made a handle to the object.
    #[track_caller]
    pub(crate) fn made(object: usize) {
        let place = INSTEAD.get().unwrap_or(Location::caller());
        with(|table| {
            table.try_reserve(1).ok()?;
            let places = table.entry(object).or_default();
            match places.iter_mut().find(|it| it.place == place) {
                Some(known) => known.made += 1,
                None => fallible::push(places, HandlePlace { place, made: 1 }).ok()?,
            }
            Some(())
        });
    }

    /// No object is there any more, or a new one.
    pub(crate) fn forget(object: usize) {
        drop(with(|table| table.remove(&object)));
    }

    /// The places of an object, those with the most handles first.
    pub(crate) fn places(object: usize) -> Result<Vec<HandlePlace>, NoMemory> {
        let places = with(|table| match table.get(&object) {
            Some(places) => fallible::collect(places.iter().copied()),
            None => Ok(Vec::new()),
        });
        let mut places = places?;
        places.sort_unstable_by_key(|it| (std::cmp::Reverse(it.made), it.place.line()));
        Ok(places)
    }
}

#[cfg(not(all(
    feature = "handle-places",
    not(any(loom, shuttle, standstill_loom, standstill_shuttle))
)))]
mod ignored {
    use super::{HandlePlace, NoMemory};

    #[inline(always)]
    pub(crate) fn made(_: usize) {}

    #[inline(always)]
    pub(crate) fn made_in<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    pub(crate) fn forget(_: usize) {}

    pub(crate) fn places(_: usize) -> Result<Vec<HandlePlace>, NoMemory> {
        Ok(Vec::new())
    }
}

#[cfg(feature = "handle-places")]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::places;
    use crate::Heap;

    #[test]
    fn an_object_that_outlives_its_heap_takes_its_places_along() {
        let heap = Heap::new();
        let mut m = heap.attach();
        let object = m.alloc(7_u64);
        let address = m.graph().holders()[0].address;
        drop(m);
        drop(heap);
        let clone = object.clone();
        assert_eq!(places(address).unwrap().len(), 2);
        drop(object);
        assert_eq!(places(address).unwrap().len(), 2);
        drop(clone);
        assert_eq!(places(address).unwrap(), []);
    }
}
