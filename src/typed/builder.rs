//! Most settings of a heap, such as its address space, cannot change once it exists. So a builder
//! takes them before, has a default for each, and refuses a wrong one in `build`.

#![forbid(unsafe_code)]

use crate::{BuildError, verify};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::environment::Environment;
use crate::base::fallible::{self, NoMemory, words};
use crate::base::stress::Stress;
#[cfg(feature = "stacks")]
use crate::base::system::interrupt;
use crate::heap::core::{Core, CoreConfig, Handle, UserData};
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::pacing::Pacing;
use crate::managed::Managed;
use crate::memory::space::{Space, SpaceConfig};
use crate::typed::heap::{Heap, teardown};

/// Default of [`HeapBuilder::serial_below`].
const SERIAL_LIMIT: usize = 50_000;
/// Default of [`HeapBuilder::late_poll`] in checked mode.
const LATE_POLL: Duration = Duration::from_secs(1);
/// The largest value of [`HeapBuilder::workers`]. Each worker has a table of counts and a list in
/// memory, and with more workers the setup of these takes longer than the divided work.
const MAX_WORKERS: usize = 1024;

/// The settings of a new heap. Made by [`Heap::builder`].
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
    stop_limit: Option<Duration>,
    slow_collection: Duration,
    /// `None`: the build decides.
    checked: Option<bool>,
    late_poll: Option<Duration>,
    slow_handler: Duration,
    sample: Option<usize>,
    #[cfg(feature = "stacks")]
    late_stacks: bool,
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
            stop_limit: None,
            slow_collection: Duration::from_secs(1),
            checked: Environment::get().checked,
            late_poll: None,
            slow_handler: Duration::ZERO,
            sample: None,
            #[cfg(feature = "stacks")]
            late_stacks: false,
            name: Ok(Cow::Borrowed("heap")),
        }
    }
}

impl HeapBuilder {
    /// The bytes of address space to reserve, beyond which a heap cannot grow. Reserved address
    /// space takes no memory until it is used.
    ///
    /// By default, four times the machine's memory, but at most 64 GiB. It is also at most a
    /// sixteenth of the process's address space divided by the number of the process's heaps, but
    /// always at least 64 MiB. If the system refuses the default, or refuses as much again, the
    /// heap reserves half of the size that the system would grant. The rest is left to the program.
    ///
    /// A heap reserves at most 128 GiB, even if `bytes` is more. If the system refuses `bytes`, the
    /// heap reserves half of it, or a quarter, and so on, down to 64 MiB.
    ///
    /// A heap of an [`ObjectModel`](crate::model::ObjectModel) with
    /// [`Segments`](crate::model::Segments) [adopts](crate::model::ModelMutator::adopt) at most so
    /// many bytes. It reserves addresses only for its tables, about a fifteenth of `bytes`.
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.reserve = Some(bytes);
        self
    }

    /// The bytes that objects may have at a time: their cells, in whole pages of 64 KiB, and what
    /// they own outside the heap ([`HeapStats::external_bytes`](crate::HeapStats)). An allocation
    /// beyond the limit fails with an [`AllocError`](crate::AllocError). Automatic collections are
    /// due before ([`Pacing`]). By default, the size of the reservation, for cells alone.
    ///
    /// Objects get memory outside the heap without asking it. So they may exceed the limit by 64
    /// KiB for each thread, by the buffer of the object that is allocated last, and by buffers that
    /// grow later. As long as they do, every allocation that needs a fresh cell is refused,
    /// whatever its size. On a thread that has got such memory this is the next one, on other
    /// threads it follows up to 64 objects of each size.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// The number of threads that work on one collection, including the collecting thread.
    /// [`build`](Self::build) returns an error if it is not between 1 and 1,024. By default it is
    /// the parallelism of the machine.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// A collection of fewer objects wakes no helper threads, because waking them costs more than
    /// it saves. Threads that are already parked for the collection help from 2,000 objects on. The
    /// comparison counts the object-sized cells on the visited pages, whether allocated or free.
    /// Default: 50,000.
    pub fn serial_below(mut self, objects: usize) -> Self {
        self.serial_below = Some(objects);
        self
    }

    /// When the heap starts automatic collections.
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.pacing = pacing;
        self
    }

    /// Stress modes, for tests: see [`Stress`]. For example, `true` selects a verified full
    /// collection at every safepoint, with small constants, which is very slow.
    ///
    /// The environment variable `STANDSTILL_STRESS` adds modes to the given ones, for programs that
    /// cannot be changed. It is read once in a process. A process with more rights than its caller
    /// (setuid) ignores it. If it contains an unknown word, it adds no modes, and one line on
    /// standard error reports the word.
    pub fn stress(mut self, stress: impl Into<Stress>) -> Self {
        self.stress = stress.into();
        self
    }

    /// The time after which a wait is reported. Default: one second. A duration below one
    /// millisecond, including zero, means one millisecond.
    ///
    /// [`Heap::on_slow_stop`] receives waits for a stop, for a collection or for an attachment, and
    /// collections that have held up their own thread for so long. [`Heap::on_slow_lock`] receives
    /// waits for a [`GcCell`](crate::GcCell).
    pub fn slow_stop(mut self, after: Duration) -> Self {
        self.slow_stop = after;
        self
    }

    /// The limit of each stop of a collection that the heap starts, as
    /// [`Collect::within`](crate::Collect::within) describes it. Default: none. A collection that
    /// gives up has [`CollectionReport::abandoned`](crate::CollectionReport::abandoned), and the
    /// next one is due as late as after one that has found no garbage. A heap whose threads are
    /// late again and again grows.
    pub fn stop_limit(mut self, limit: Duration) -> Self {
        self.stop_limit = Some(limit);
        self
    }

    /// The cost from which on a collection is reported: one event `slow collection` of `tracing`,
    /// with the reason, the phases, the slowest code of the program, the late thread, and, if the
    /// first stop took as long, the [largest types](crate::CollectionReport::largest_types). The
    /// cost is the sum of the waits and the phases, or the time that has passed, if that is less.
    /// Default: one second. Zero reports each collection.
    pub fn slow_collection(mut self, after: Duration) -> Self {
        self.slow_collection = after;
        self
    }

    /// Checked mode, for dynamic objects. The heap looks up the addresses that it is given,
    /// verifies the references that traverse handlers visit, and poisons and quarantines freed
    /// memory.
    ///
    /// By default, on in builds with debug assertions and off in others. The environment variable
    /// `STANDSTILL_CHECKED` (`0` or `1`) changes the default. It is read under the same conditions
    /// as `STANDSTILL_STRESS`: see [`stress`](Self::stress).
    pub fn checked(mut self, checked: bool) -> Self {
        self.checked = Some(checked);
        self
    }

    /// The time after which a thread is reported that is attached and has not polled, before any
    /// thread has to wait for it: [`SlowStopKind::LatePoll`] goes to [`Heap::on_slow_stop`], and
    /// the event `late poll` to `tracing`, once until the thread polls or detaches. Zero disables
    /// the report. A shorter time than a millisecond means one.
    ///
    /// A thread of the library looks at each attached thread from time to time, so the report comes
    /// up to half a second later. The next safepoint after a look is a slow one. A thread inside a
    /// destructor, finalizer or callback reaches no safepoint, and is reported too. If the thread
    /// cannot start, one line on standard error says so. In the child of a fork nothing looks.
    ///
    /// Default: one second in checked mode that [`checked`](Self::checked) or `STANDSTILL_CHECKED`
    /// asks for. Otherwise zero, also where only the build switches checked mode on: programs under
    /// a debugger, and tests, often stay attached for long.
    ///
    /// [`SlowStopKind::LatePoll`]: crate::safepoint::SlowStopKind::LatePoll
    pub fn late_poll(mut self, after: Duration) -> Self {
        self.late_poll = Some(after);
        self
    }

    /// The time after which one call of a dynamic type's traverse handler is reported to
    /// [`Heap::on_misuse`], with its type. A handler that blocks may be waiting for a stopped
    /// thread. The report follows when the world runs again. Default: zero, which disables the
    /// report.
    pub fn slow_handler(mut self, after: Duration) -> Self {
        self.slow_handler = after;
        self
    }

    /// Remembers where objects were made, for
    /// [`Mutator::allocation_sites`](crate::Mutator::allocation_sites). Of each `bytes` bytes of
    /// objects the heap draws one, on average, and keeps the stack of the object with this byte
    /// until the object's memory is freed. 524,288 is a good start. [`build`](Self::build) returns
    /// an error if it is 0. Default: no object is remembered.
    ///
    /// An object that is drawn costs about a microsecond, some tenths of one for each call that was
    /// not on the stack at the thread's last sample, and some hundred bytes. Such objects lie on
    /// pages of 64 KiB of their own, at least one for each size. So a heap that is within a page of
    /// its limit may refuse an object that would fit without samples. Others cost a refill for each
    /// 64 allocations, also where the thread has freed as many objects as it makes.
    #[cfg(feature = "stacks")]
    pub fn sample_allocations(mut self, bytes: usize) -> Self {
        self.sample = Some(bytes);
        self
    }

    /// Reports of a slow wait say what the thread that others wait for ran just then: see
    /// [`Straggler::stack`](crate::safepoint::Straggler). Default: off.
    ///
    /// The thread that waits sends the other one the signal `SIGURG`, and waits up to 100 ms for
    /// the answer. The handler takes no lock and no memory, and some kilobytes of the thread's
    /// stack. It stays installed, for the whole process. A system call of the interrupted thread
    /// may fail with `EINTR`, as for any signal. The names of the functions are read from the
    /// program's debug information meanwhile, which takes tenths of a second the first time, and
    /// the stop lasts as much longer.
    ///
    /// [`build`](Self::build) returns an error if the system is not Linux with glibc 2.35 or later,
    /// or if the program handles `SIGURG` itself. It is not for a program with code that is made at
    /// run time and registers its frames (`__register_frame`), because the unwinder takes a lock
    /// there.
    #[cfg(feature = "stacks")]
    pub fn late_stacks(mut self, late_stacks: bool) -> Self {
        self.late_stacks = late_stacks;
        self
    }

    /// The heap's name in reports. Default: `heap`.
    pub fn name(mut self, name: &str) -> Self {
        self.name = fallible::owned(name).map(Cow::Owned);
        self
    }

    /// Builds a heap of typed objects.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if the system refuses the address space or other memory, or if a setting is
    /// invalid.
    pub fn build(self) -> Result<Heap, BuildError> {
        let mut model = Managed::new().map_err(|_| BuildError::Memory)?;
        model.checked = self.checked.unwrap_or(cfg!(debug_assertions));
        model.slow_handler = self.slow_handler.as_nanos().try_into().unwrap_or(u64::MAX);
        // Registered first, because rule *dynamic* of `dynamic` demands the same index in each
        // heap.
        if let Some(types) = &crate::EXTENSIONS.dynamic {
            let index = model.types.index_of(types.info)?;
            assert_eq!(index, types.index);
            (types.make_builtins)().map_err(|_| BuildError::Memory)?;
        }
        let late_poll = self.late_poll_or_default();
        let heap = ModelHeap::build(self, model, teardown)?;
        heap.watch(true, late_poll);
        Ok(Heap(heap))
    }

    /// Builds a heap of objects of another [`ObjectModel`].
    ///
    /// # Errors
    ///
    /// The same as [`build`](Self::build).
    pub fn build_with<M: ObjectModel>(self, model: M) -> Result<ModelHeap<M>, BuildError> {
        let late_poll = self.late_poll_or_default();
        let heap = ModelHeap::build(self, model, |_, _| {})?;
        heap.watch(false, late_poll);
        Ok(heap)
    }

    fn late_poll_or_default(&self) -> Duration {
        let default = if self.checked == Some(true) { LATE_POLL } else { Duration::ZERO };
        self.late_poll.unwrap_or(default)
    }
}

type Last<M> = fn(&Arc<Core<M>>, Option<UserData>);

impl<M: ObjectModel> ModelHeap<M> {
    fn build(builder: HeapBuilder, model: M, last: Last<M>) -> Result<Self, BuildError> {
        let workers = match builder.workers {
            Some(0) => {
                return Err(BuildError::Setting(
                    "`workers` is 0; at least one thread collects".into(),
                ));
            }
            Some(workers) if workers > MAX_WORKERS => {
                return Err(BuildError::Setting(words!(
                    "`workers` is {workers}; at most {MAX_WORKERS} threads collect"
                )));
            }
            Some(workers) => workers,
            None => std::thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS),
        };
        for (name, value) in [("reserve", builder.reserve), ("limit", builder.limit)] {
            if value.is_some_and(|bytes| bytes < crate::memory::shape::PAGE_SIZE) {
                return Err(BuildError::Setting(words!(
                    "`{name}` is less than a page of {} bytes",
                    crate::memory::shape::PAGE_SIZE
                )));
            }
        }
        if let Some(reason) = builder.pacing.refused() {
            return Err(BuildError::Setting(reason.into()));
        }
        if builder.sample == Some(0) {
            return Err(BuildError::Setting(
                "`sample_allocations` is 0; name the bytes of which one is drawn".into(),
            ));
        }
        #[cfg(feature = "stacks")]
        if builder.late_stacks {
            interrupt::install()
                .map_err(|why| BuildError::Setting(words!("`late_stacks` {why}")))?;
        }
        let stress = builder.stress.and(Environment::get().stress);
        let mut space = Space::open(SpaceConfig { reserve: builder.reserve, limit: builder.limit })
            .map_err(|e| BuildError::Reserve { tried: e.asked, reason: words!("{e}") })?;
        if let Some(bytes) = builder.sample {
            space.sample_every(bytes);
        }
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
                serial_below: builder.serial_below.unwrap_or(stress.shrink(SERIAL_LIMIT)),
                workers,
                slow_stop: builder.slow_stop,
                stop_limit: builder.stop_limit,
                #[cfg(feature = "stacks")]
                late_stacks: builder.late_stacks,
                slow_collection: builder.slow_collection,
                pacing: builder.pacing,
                observer,
                rule,
                verifier: verify::verifier(stress),
            },
        )?;
        fallible::room_for_arc::<Handle<M>>()?;
        Ok(Self(Arc::new(Handle { core, last, user: OnceLock::new() })))
    }
}

impl Heap {
    /// Builds a heap with the default settings.
    ///
    /// # Panics
    ///
    /// If [`HeapBuilder::build`] returns an error, for example because the system refuses the
    /// address space.
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

    /// Starts with the default settings for a new heap.
    pub fn builder() -> HeapBuilder {
        HeapBuilder::default()
    }
}
