//! Floor 5: the settings of a heap, and how it is made from them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::base::environment::Environment;
use crate::base::error::BuildError;
use crate::base::fallible::{self, NoMemory};
use crate::base::stress::Stress;
use crate::base::text::words;
use crate::heap::core::{Core, CoreConfig, Handle};
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::policy::Pacing;
use crate::managed::Managed;
use crate::memory::space::{Space, SpaceConfig};
use crate::typed::heap::Heap;
use crate::typed::teardown::teardown;

/// Objects below which one thread collects alone, where nobody says how many.
const SERIAL_BELOW: usize = 50_000;
/// Threads that work on a collection, at most. Each has a table of counts and a list in memory; with more of them these would
/// take longer than the work that they share.
const MOST_WORKERS: usize = 1024;

/// How to build a heap. Made by [`Heap::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct HeapBuilder {
    reserve: Option<usize>,
    limit: Option<usize>,
    workers: Option<usize>,
    serial_below: Option<usize>,
    pacing: Pacing,
    stress: Stress,
    slow_stop: Duration,
    checked: bool,
    slow_handler: Duration,
    name: Result<Cow<'static, str>, NoMemory>,
}

impl Default for HeapBuilder {
    fn default() -> Self {
        Self {
            reserve: None,
            limit: None,
            workers: None,
            serial_below: None,
            pacing: Pacing::default(),
            stress: Stress::none(),
            slow_stop: Duration::from_secs(1),
            checked: Environment::get().checked.unwrap_or(cfg!(debug_assertions)),
            slow_handler: Duration::ZERO,
            name: Ok(Cow::Borrowed("heap")),
        }
    }
}

impl HeapBuilder {
    /// Bytes of address space to reserve: the most the heap can ever hold. It costs nothing until used.
    /// Default: four times the machine's memory, 64 GiB at most, and no more than a sixteenth of the process's address space divided by the
    /// number of its heaps; half of what the system would give, if it refuses that. No heap holds more than 128 GiB: what is
    /// asked for beyond that is not reserved.
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.reserve = Some(bytes);
        self
    }

    /// Bytes that objects may occupy at a time, in whole pages of 64 KiB. Beyond it allocation fails with
    /// an [`AllocError`](crate::AllocError). Default: what is reserved.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Threads that work on a collection, the collecting one included: 1,024 at most; [`build`](Self::build) refuses
    /// other numbers. Default: the machine's parallelism.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Objects below which a collection wakes nobody to help, since that costs more. Threads that are parked for it anyway
    /// help from 2,000 on. What is counted are the places for objects on the pages that are looked at. Default: 50,000.
    pub fn serial_below(mut self, objects: usize) -> Self {
        self.serial_below = Some(objects);
        self
    }

    /// When the heap collects by itself.
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.pacing = pacing;
        self
    }

    /// Stress modes, for tests: see [`Stress`]. Very slow. `true` stands for a full collection at every safepoint, verified,
    /// with small constants.
    ///
    /// The environment variable `STANDSTILL_STRESS` adds modes to those given here, for programs that cannot be changed. It is read
    /// once in a process, and not in one with more rights than its caller has. With a word in it that is none it adds nothing, and
    /// one line on standard error says so.
    pub fn stress(mut self, stress: impl Into<Stress>) -> Self {
        self.stress = stress.into();
        self
    }

    /// How long a wait may take before it is reported. [`Heap::on_slow_stop`] receives the threads that a
    /// stop waits for, the thread that keeps the world stopped, and the thread that collects while
    /// another thread waits for its turn. [`Heap::on_slow_lock`] receives the wait for a
    /// [`GcCell`](crate::GcCell). Default: one second. A shorter time than a millisecond,
    /// zero too, is taken for a millisecond.
    pub fn slow_stop(mut self, after: Duration) -> Self {
        self.slow_stop = after;
        self
    }

    /// Checked mode, for dynamic objects: their addresses are looked up, what handlers visit is verified, and freed
    /// memory is poisoned and kept for a while. Default: on in builds with debug assertions; the environment variable
    /// `STANDSTILL_CHECKED` (`0` or `1`) decides over that. It is read as `STANDSTILL_STRESS` is: see [`stress`](Self::stress).
    pub fn checked(mut self, checked: bool) -> Self {
        self.checked = checked;
        self
    }

    /// How long one call of a dynamic type's traverse handler may take before it is reported to
    /// [`Heap::on_misuse`], with its type: a handler that waits for something waits for a thread that is stopped. It is told when
    /// the world runs again. Off by default, which is what zero means.
    pub fn slow_handler(mut self, after: Duration) -> Self {
        self.slow_handler = after;
        self
    }

    /// A name for reports.
    pub fn name(mut self, name: &str) -> Self {
        self.name = fallible::owned(name).map(Cow::Owned);
        self
    }

    /// Builds a heap of typed objects.
    ///
    /// # Errors
    ///
    /// When the system refuses the address space, or a setting makes no sense.
    pub fn build(self) -> Result<Heap, BuildError> {
        let model = Managed::new();
        model.set_checked(self.checked);
        model.set_slow_handler(self.slow_handler.as_nanos().try_into().unwrap_or(u64::MAX));
        // The first type: rule D of `dynamic`.
        if let Some(types) = &crate::EXTENSIONS.dynamic {
            let index = model.types.index_of(types.info)?;
            assert_eq!(index, types.index);
            (types.make_builtins)().map_err(|_| BuildError::Memory)?;
        }
        ModelHeap::build(self, model, |core| {
            teardown(core);
        })
        .map(Heap)
    }

    /// Builds a heap of objects of another [`ObjectModel`].
    ///
    /// # Errors
    ///
    /// Like [`build`](Self::build).
    pub fn build_with<M: ObjectModel>(self, model: M) -> Result<ModelHeap<M>, BuildError> {
        ModelHeap::build(self, model, |_| {})
    }
}

impl<M: ObjectModel> ModelHeap<M> {
    fn build(builder: HeapBuilder, model: M, last: fn(&Arc<Core<M>>)) -> Result<Self, BuildError> {
        let workers = match builder.workers {
            Some(0) => {
                return Err(BuildError::Setting(
                    "`workers` is 0; at least one thread collects".into(),
                ));
            }
            Some(workers) if workers > MOST_WORKERS => {
                return Err(BuildError::Setting(words!(
                    "`workers` is {workers}; at most {MOST_WORKERS} threads collect"
                )));
            }
            Some(workers) => workers,
            None => std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS),
        };
        for (name, value) in [("reserve", builder.reserve), ("limit", builder.limit)] {
            if value.is_some_and(|bytes| bytes < crate::memory::space::PAGE_SIZE) {
                return Err(BuildError::Setting(words!(
                    "`{name}` is less than a page of {} bytes",
                    crate::memory::space::PAGE_SIZE
                )));
            }
        }
        if let Some(reason) = builder.pacing.refused() {
            return Err(BuildError::Setting(reason.into()));
        }
        let stress = builder.stress.and(Environment::get().stress);
        let space = Space::reserve(SpaceConfig { reserve: builder.reserve, limit: builder.limit })
            .map_err(|e| BuildError::Reserve { tried: e.asked, reason: words!("{e}") })?;
        let (observer, rule) = match crate::EXTENSIONS.observer {
            Some(new) => new().map(|(observer, rule)| (Some(observer), Some(rule)))?,
            None => (None, None),
        };
        let core = Core::new(
            space,
            model,
            CoreConfig {
                name: builder.name?,
                stress,
                serial_below: builder.serial_below.unwrap_or(stress.shrink(SERIAL_BELOW)),
                workers,
                slow_stop: builder.slow_stop,
                pacing: builder.pacing,
                observer,
                rule,
            },
        )?;
        fallible::room_for_arc::<Handle<M>>()?;
        Ok(Self(Arc::new(Handle { core, last })))
    }
}

impl Heap {
    /// A heap with the default settings.
    ///
    /// # Panics
    ///
    /// When the system refuses the address space; see [`HeapBuilder::build`].
    #[expect(
        clippy::new_without_default,
        reason = "a heap reserves address space: to make one is a decision"
    )]
    #[track_caller]
    pub fn new() -> Self {
        match Self::builder().build() {
            Ok(heap) => heap,
            Err(error) => panic!("{error}"),
        }
    }

    /// A heap with other settings.
    pub fn builder() -> HeapBuilder {
        HeapBuilder::default()
    }
}
