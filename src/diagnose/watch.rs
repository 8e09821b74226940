//! The thread that watches a heap: snapshots of a program that nobody can change, and late polls.
//!
//! The heap of a service in trouble is wanted when nobody has prepared the program. So, if
//! `STANDSTILL_DIAG` names a folder, a thread for each heap looks there every quarter of a second,
//! and writes a snapshot of the heap when it is asked to:
//!
//! * a file `snapshot`, or `snapshot.PID` for one process, has been touched since the last one;
//! * once, when the heap has run out of memory: an allocation was refused, or a full collection has
//!   left a heap three quarters full. The second mostly comes first, so that there is still memory
//!   to write with.
//!
//! For example, `touch snapshot` in the folder makes process 4711 write
//! `4711-heap-1.heapsnapshot`, and after the next touch `4711-heap-2.heapsnapshot`. All touches
//! between two looks of the thread, also of both files, are one request. Those that come while it
//! writes are one more.
//!
//! In checked mode the same thread looks for threads that do not poll
//! ([`late_poll`](crate::HeapBuilder::late_poll)), for which it does not attach.
//!
//! The thread attaches only for the stop of a snapshot, and has no handle of the heap otherwise, so
//! that it keeps no heap alive. The end of the heap wakes it, and it ends, too. Once it runs, a
//! failure is told on standard error and changes nothing else, also one for want of memory. Only
//! its start, beside that of the heap, and the report of a late poll take memory of std's that
//! cannot be refused. In a child of a fork there is no such thread.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use std::{fs, process, thread};

use crate::base::environment::Environment;
use crate::base::fallible::{self, NoMemory};
use crate::base::outside;
use crate::diagnose::streamed::{NoSnapshot, PendingSnapshot, Unfinished};
use crate::heap::core::{Core, Distress, Handle, MutatorShared, WATCHED};
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::ModelMutator;
use crate::report::event;
use crate::safepoint::Coordinator;

/// How often the thread looks for requests, and the longest time between two looks for late polls.
const EVERY: Duration = Duration::from_millis(250);

/// The shortest time of a late poll, which is also that between two looks.
const SHORTEST: Duration = Duration::from_millis(1);

/// So often a heap in distress tries to write a snapshot.
const DISTRESS_ATTEMPTS: usize = 3;

/// The snapshots that this process has begun, so that no two have one name. Relaxed: the numbers
/// only differ.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

impl<M: ObjectModel> ModelHeap<M> {
    /// Starts the thread that writes snapshots of this heap, if `STANDSTILL_DIAG` names a folder
    /// (`docs/diagnostics.md` has the requests). A heap of typed or dynamic objects starts it by
    /// itself. A runtime with a model of its own calls this once, if a thread that the runtime does
    /// not know may attach. Without the variable it does nothing.
    pub fn watch_diagnostics(&self) {
        self.watch(true, Duration::ZERO);
    }

    /// Starts the thread that writes snapshots, if `diagnostics` and the environment ask for it,
    /// and that looks for late polls, if `late_poll` is not zero.
    pub(crate) fn watch(&self, diagnostics: bool, late_poll: Duration) {
        let core = &self.0.core;
        let folder = Environment::get().diagnostics.as_deref().filter(|_| diagnostics);
        let late_poll = (!late_poll.is_zero()).then(|| LatePolls {
            coordinator: Arc::downgrade(&core.coordinator),
            after: late_poll.max(SHORTEST),
        });
        if folder.is_none() && late_poll.is_none() {
            return;
        }
        let mut watch = Watch {
            heap: Arc::downgrade(&self.0),
            late_poll,
            snapshots: folder.map(|folder| Snapshots::of(core, folder)),
        };
        let name = &core.name;
        let spawned = thread::Builder::new()
            .name("standstill diag".to_owned())
            .spawn(move || while watch.wait_and_look() {});
        match spawned {
            // A second thread, of `watch_diagnostics`, ends at its next look.
            Ok(thread) => drop(core.watcher.set(thread.thread().clone())),
            Err(error) => outside::line(format_args!(
                "standstill: heap '{name}': no thread for STANDSTILL_DIAG, or to look for late \
                 polls: {error}"
            )),
        }
    }
}

/// When a file was changed. `None`: it does not exist.
fn touched(file: &PathBuf) -> Option<SystemTime> {
    fs::metadata(file).ok()?.modified().ok()
}

/// The thread that watches one heap.
struct Watch<M: ObjectModel> {
    heap: Weak<Handle<M>>,
    late_poll: Option<LatePolls<M>>,
    snapshots: Option<Snapshots>,
}

/// What a look for late polls needs, which keeps no heap alive.
struct LatePolls<M: ObjectModel> {
    coordinator: Weak<Coordinator<MutatorShared<M>>>,
    after: Duration,
}

struct Snapshots {
    distress: Arc<Distress>,
    name: String,
    requests: [PathBuf; 2],
    /// When each request was last touched. A file system's clock need not be the system's, so a
    /// request is new if it differs.
    seen: [Option<SystemTime>; 2],
    /// The path of a snapshot up to its number.
    files: OsString,
    /// The attempts that are left for a heap in distress.
    attempts: usize,
}

impl<M: ObjectModel> Watch<M> {
    /// Waits a little, and looks at the heap. `false`: it has ended.
    fn wait_and_look(&mut self) -> bool {
        let late_poll = self.late_poll.as_ref();
        thread::park_timeout(late_poll.map_or(EVERY, |late| EVERY.min(late.after)));
        if self.heap.strong_count() == 0 {
            return false;
        }
        if let Some(late) = late_poll
            && let Some(coordinator) = late.coordinator.upgrade()
        {
            coordinator.look_for_late_polls(WATCHED, late.after);
        }
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.serve(&self.heap);
        }
        true
    }
}

impl Snapshots {
    fn of<M: ObjectModel>(core: &Core<M>, folder: &Path) -> Self {
        let in_files: String = core
            .name
            .chars()
            .take(64)
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        let pid = process::id();
        let requests = [folder.join("snapshot"), folder.join(format!("snapshot.{pid}"))];
        Self {
            distress: Arc::clone(&core.distress),
            name: core.name.to_string(),
            seen: requests.each_ref().map(touched),
            requests,
            files: folder.join(format!("{pid}-{in_files}-")).into(),
            attempts: DISTRESS_ATTEMPTS,
        }
    }

    /// Writes a snapshot, if there is a request.
    fn serve<M: ObjectModel>(&mut self, heap: &Weak<Handle<M>>) {
        let now = self.requests.each_ref().map(touched);
        let mut is_asked = false;
        for (seen, now) in self.seen.iter_mut().zip(now) {
            is_asked |= now.is_some() && now != *seen;
            *seen = now;
        }
        let is_distress = self.distress.take() && self.attempts > 0;
        self.attempts -= usize::from(is_distress);
        let is_written = (is_asked || is_distress) && self.write(heap).is_some();
        if is_written && is_distress {
            self.attempts = 0;
        }
    }

    /// Writes a snapshot. `None`: that has failed, which was told, or the heap has ended.
    fn write<M: ObjectModel>(&self, heap: &Weak<Handle<M>>) -> Option<()> {
        let no_memory = |NoMemory| self.tell_failure(&"", &"there is no memory");
        let path = self.path().map_err(no_memory).ok()?;
        let shown = path.display();
        let told = |failed: NoSnapshot| match failed {
            NoSnapshot::Heap(fault) => self.tell_failure(&"", &fault.text),
            NoSnapshot::File(error) => self.tell_failure(&shown, &error),
        };
        // The last handle tears the heap down, which need not wait for the file.
        let pending =
            self.attached(heap, |m| PendingSnapshot::begin(m, &path))?.map_err(told).ok()?;
        let finished = match pending.finish() {
            Err(Unfinished::Child(without)) => {
                let pending = self.attached(heap, |m| without.copied(m))?.map_err(told).ok()?;
                pending.finish()
            }
            finished => finished,
        };
        let objects = finished.map_err(|failed| told(failed.into_error())).ok()?;
        event::snapshot(&self.name, &shown, objects);
        outside::line(format_args!(
            "standstill: heap '{}': a snapshot with {objects} objects is in {shown}",
            self.name
        ));
        Some(())
    }

    /// Calls `f` with a mutator. `None`: the heap has ended, or refuses one, which was told.
    fn attached<M: ObjectModel, R>(
        &self,
        heap: &Weak<Handle<M>>,
        f: impl FnOnce(&mut ModelMutator<M>) -> R,
    ) -> Option<R> {
        let heap = ModelHeap(heap.upgrade()?);
        let mut m = heap.try_attach().map_err(|refused| self.tell_failure(&"", &refused)).ok()?;
        Some(f(&mut m))
    }

    /// A path where no file is.
    fn path(&self) -> Result<PathBuf, NoMemory> {
        loop {
            let number = BEGUN.fetch_add(1, Ordering::Relaxed) + 1;
            let ending =
                fallible::written(format_args!("{number}.heapsnapshot")).ok_or(NoMemory)?;
            let mut path = OsString::new();
            path.try_reserve_exact(self.files.len() + ending.len())?;
            path.push(&self.files);
            path.push(ending);
            // A process before this one may have had its number.
            if fs::symlink_metadata(&path).is_err() {
                return Ok(path.into());
            }
        }
    }

    fn tell_failure(&self, path: &dyn Display, reason: &dyn Display) {
        event::no_snapshot(&self.name, path, reason);
        outside::line(format_args!(
            "standstill: heap '{}': no snapshot {path}: {reason}",
            self.name
        ));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
