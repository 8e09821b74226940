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
//! `4711-heap-1.heapsnapshot`, and after the next touch `4711-heap-2.heapsnapshot`.
//!
//! The thread attaches only to write, and has no handle of the heap otherwise, so that it keeps no
//! heap alive. A failure is told on standard error, and changes nothing else. In a child of a fork
//! there is no such thread.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use std::{fs, process, thread};

use crate::base::environment::Environment;
use crate::base::outside;
use crate::heap::core::{Distress, Handle};
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::report::event;

/// How often the thread looks for requests.
const EVERY: Duration = Duration::from_millis(250);

impl<M: ObjectModel> ModelHeap<M> {
    /// Starts the thread that writes snapshots of this heap, if `STANDSTILL_DIAG` names a folder
    /// (`docs/diagnostics.md` has the requests). A heap of typed or dynamic objects starts it by
    /// itself. A runtime with a model of its own calls this once, if a thread that the runtime does
    /// not know may attach. Without the variable it does nothing.
    pub fn watch_diagnostics(&self) {
        let Some(folder) = Environment::get().diagnostics.as_deref() else { return };
        let mut watch = Watch {
            heap: Arc::downgrade(&self.0),
            distress: Arc::clone(&self.0.core.distress),
            folder,
            name: self.0.core.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"),
            last: SystemTime::now(),
            written: 0,
            is_distress_known: false,
        };
        let spawned = thread::Builder::new()
            .name("standstill diag".to_owned())
            .spawn(move || while watch.serve() {});
        if let Err(error) = spawned {
            outside::line(format_args!(
                "standstill: heap '{}': no thread for STANDSTILL_DIAG: {error}",
                self.0.core.name
            ));
        }
    }
}

/// The thread that watches one heap.
struct Watch<M: ObjectModel> {
    heap: Weak<Handle<M>>,
    distress: Arc<Distress>,
    folder: &'static Path,
    /// That of the heap, as a part of a file's name.
    name: String,
    /// The time of the last request that was served.
    last: SystemTime,
    written: usize,
    is_distress_known: bool,
}

impl<M: ObjectModel> Watch<M> {
    /// Waits for a request, and serves it. `false`: the heap has ended.
    fn serve(&mut self) -> bool {
        thread::sleep(EVERY);
        if self.heap.strong_count() == 0 {
            return false;
        }
        let request = self.request();
        let is_distress = self.distress.take() && !self.is_distress_known;
        self.last = request.unwrap_or(self.last);
        self.is_distress_known |= is_distress;
        if request.is_some() || is_distress {
            // Only now, because the last handle tears the heap down.
            let Some(handle) = self.heap.upgrade() else { return false };
            self.write(&ModelHeap(handle));
        }
        true
    }

    /// The time of a request that is newer than the last one.
    fn request(&self) -> Option<SystemTime> {
        let for_this = format!("snapshot.{}", process::id());
        ["snapshot", &for_this]
            .into_iter()
            .filter_map(|name| fs::metadata(self.folder.join(name)).ok()?.modified().ok())
            .filter(|&time| time > self.last)
            .max()
    }

    fn write(&mut self, heap: &ModelHeap<M>) {
        let core = &heap.0.core;
        self.written += 1;
        let file = format!("{}-{}-{}.heapsnapshot", process::id(), self.name, self.written);
        let path: PathBuf = self.folder.join(file);
        let result = heap
            .try_attach()
            .map_err(|refused| refused.to_string())
            .and_then(|mut m| m.try_graph().map_err(|fault| fault.text.into_owned()))
            .and_then(|graph| {
                graph.save_snapshot(&path).map_err(|error| error.to_string())?;
                Ok(graph.objects())
            });
        let path = path.display().to_string();
        event::snapshot(&core.name, &path, result.as_ref().copied().map_err(|reason| &**reason));
        match result {
            Ok(objects) => outside::line(format_args!(
                "standstill: heap '{}': a snapshot with {objects} objects is in {path}",
                core.name
            )),
            Err(reason) => outside::line(format_args!(
                "standstill: heap '{}': no snapshot in {path}: {reason}",
                core.name
            )),
        }
    }
}
