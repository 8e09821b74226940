//! Snapshots of a program that nobody can change.
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
//! The thread attaches only for the stop of a snapshot, and has no handle of the heap otherwise, so
//! that it keeps no heap alive. Once it runs, a failure is told on standard error and changes
//! nothing else, also one for want of memory. Only its start, beside that of the heap, takes memory
//! of std's that cannot be refused. In a child of a fork there is no such thread.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use std::{fs, process, thread};

use crate::base::environment::Environment;
use crate::base::fallible::{self, NoMemory};
use crate::base::outside;
use crate::diagnose::streamed::{NoSnapshot, PendingSnapshot, Unfinished};
use crate::heap::core::{Distress, Handle};
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::ModelMutator;
use crate::report::event;

/// How often the thread looks for requests.
const EVERY: Duration = Duration::from_millis(250);

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
        let Some(folder) = Environment::get().diagnostics.as_deref() else { return };
        let name = &self.0.core.name;
        let in_files: String = name
            .chars()
            .take(64)
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        let pid = process::id();
        let requests = [folder.join("snapshot"), folder.join(format!("snapshot.{pid}"))];
        let mut watch = Watch {
            heap: Arc::downgrade(&self.0),
            distress: Arc::clone(&self.0.core.distress),
            name: name.to_string(),
            seen: requests.each_ref().map(touched),
            requests,
            files: folder.join(format!("{pid}-{in_files}-")).into(),
            attempts: DISTRESS_ATTEMPTS,
        };
        let spawned = thread::Builder::new()
            .name("standstill diag".to_owned())
            .spawn(move || while watch.serve() {});
        if let Err(error) = spawned {
            outside::line(format_args!(
                "standstill: heap '{name}': no thread for STANDSTILL_DIAG: {error}"
            ));
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
    /// Waits for a request, and serves it. `false`: the heap has ended.
    fn serve(&mut self) -> bool {
        thread::sleep(EVERY);
        if self.heap.strong_count() == 0 {
            return false;
        }
        let now = self.requests.each_ref().map(touched);
        let mut is_asked = false;
        for (seen, now) in self.seen.iter_mut().zip(now) {
            is_asked |= now.is_some() && now != *seen;
            *seen = now;
        }
        let is_distress = self.distress.take() && self.attempts > 0;
        self.attempts -= usize::from(is_distress);
        let is_written = (is_asked || is_distress) && self.write().is_some();
        if is_written && is_distress {
            self.attempts = 0;
        }
        true
    }

    /// Writes a snapshot. `None`: that has failed, which was told, or the heap has ended.
    fn write(&self) -> Option<()> {
        let no_memory = |NoMemory| self.tell_failure(&"", &"there is no memory");
        let path = self.path().map_err(no_memory).ok()?;
        let shown = path.display();
        let told = |failed: NoSnapshot| match failed {
            NoSnapshot::Heap(fault) => self.tell_failure(&"", &fault.text),
            NoSnapshot::File(error) => self.tell_failure(&shown, &error),
        };
        // The last handle tears the heap down, which need not wait for the file.
        let pending = self.attached(|m| PendingSnapshot::begin(m, &path))?.map_err(told).ok()?;
        let finished = match pending.finish() {
            Err(Unfinished::Child(without)) => {
                let pending = self.attached(|m| without.copied(m))?.map_err(told).ok()?;
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
    fn attached<R>(&self, f: impl FnOnce(&mut ModelMutator<M>) -> R) -> Option<R> {
        let heap = ModelHeap(self.heap.upgrade()?);
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
