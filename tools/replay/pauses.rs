//! The costs of a heap's collections, from its own reports.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use standstill::{CollectionKind, CollectionReport, Heap};

/// Sums and extremes over all collections so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    pub(crate) collections: usize,
    pub(crate) young_collections: usize,
    pub(crate) abandoned: usize,
    /// Objects that a collection found unreachable and that died of it.
    pub(crate) collected: usize,
    pub(crate) young_pause_max: Duration,
    pub(crate) time_to_stop_max: Duration,
}

impl Pauses {
    /// Listens to all collections of `heap`, automatic ones included.
    pub(crate) fn listen(heap: &Heap) -> Listener {
        let listener = Listener::default();
        let pauses = listener.clone();
        heap.on_collection(move |event| {
            if let Some(report) = event.report() {
                pauses.lock().add(report);
            }
        });
        listener
    }

    fn add(&mut self, report: &CollectionReport) {
        self.collections += 1;
        self.abandoned += usize::from(report.abandoned.is_some());
        self.collected += report.collected;
        self.time_to_stop_max = self.time_to_stop_max.max(report.time_to_stop);
        if report.kind == CollectionKind::Young {
            self.young_collections += 1;
            self.young_pause_max = self.young_pause_max.max(pause(report));
        }
    }
}

/// The longest time that a collection kept the world stopped without a break.
pub(crate) fn pause(report: &CollectionReport) -> Duration {
    report.stops.iter().copied().max().unwrap_or_default()
}

/// A handle to [`Pauses`] that grow.
#[derive(Clone, Default)]
pub(crate) struct Listener(Arc<Mutex<Pauses>>);

impl Listener {
    fn lock(&self) -> MutexGuard<'_, Pauses> {
        // Nothing panics while it is held.
        self.0.lock().unwrap()
    }

    pub(crate) fn so_far(&self) -> Pauses {
        self.lock().clone()
    }
}
