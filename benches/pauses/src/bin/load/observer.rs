//! The collector's own record: a `tracing` subscriber records the stops and phases of each
//! collection, and the heap's callback completes the record with the report.
//!
//! Only one collection runs at a time, and its thread emits its events and spans. So all records
//! since the last report belong to this one.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde::Serialize;
use standstill::{CollectionEvent, CollectionKind, Heap};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::busy::Interval;

/// The phases of a collection, in their order.
pub(crate) const PHASES: [&str; 11] = [
    "Merge",
    "Premark",
    "Count",
    "Roots",
    "Mark",
    "Sweep",
    "Claim",
    "Callbacks",
    "Finalize",
    "Recheck",
    "Clear",
];

/// One collection; times in nanoseconds, since the observer was made.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Collection {
    pub(crate) full: bool,
    /// When it was over.
    pub(crate) end: u64,
    pub(crate) duration: u64,
    /// From the beginning to the first request for a stop.
    pub(crate) prepared: u64,
    pub(crate) stops: Vec<Stop>,
    /// How long each of [`PHASES`] took.
    pub(crate) phases: [u64; PHASES.len()],
    pub(crate) candidates: usize,
    pub(crate) collected: usize,
    pub(crate) workers: usize,
    /// Collections that gave up, or could not stop the world.
    pub(crate) abandoned: bool,
}

impl Collection {
    /// From the requests to the resumptions, all stops together.
    pub(crate) fn paused(&self) -> u64 {
        self.stops.iter().map(|stop| stop.interval().length()).sum()
    }
}

/// One stop.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Stop {
    /// When the world stood still.
    pub(crate) at: u64,
    /// How long it took until it did.
    pub(crate) time_to_stop: u64,
    /// For how long it stood.
    pub(crate) stopped: u64,
}

impl Stop {
    /// From the request to the resumption.
    pub(crate) fn interval(self) -> Interval {
        Interval { from: self.at.saturating_sub(self.time_to_stop), to: self.at + self.stopped }
    }
}

/// Watches a heap's collections.
#[derive(Debug)]
pub(crate) struct Observer {
    epoch: Instant,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    collections: Vec<Collection>,
    /// The collection that runs.
    now: Collection,
    /// When it began.
    begun: u64,
    /// When the phase that is open began.
    entered: u64,
}

impl Observer {
    /// Makes an observer the process's subscriber.
    pub(crate) fn install() -> Arc<Self> {
        let this = Arc::new(Self { epoch: Instant::now(), noted: Mutex::default() });
        tracing::subscriber::set_global_default(Arc::clone(&this))
            .expect("the process has no other subscriber");
        this
    }

    /// Watches this heap, and no second one.
    pub(crate) fn watch(self: &Arc<Self>, heap: &Heap) {
        let this = Arc::clone(self);
        heap.on_collection(move |event| match event {
            CollectionEvent::Start(_) => this.noted().begun = this.now(),
            CollectionEvent::Stop(report) => {
                let end = this.now();
                let mut noted = this.noted();
                let mut done = std::mem::take(&mut noted.now);
                for (stop, stopped) in done.stops.iter_mut().zip(&report.stops) {
                    stop.stopped = stopped.as_nanos() as u64;
                }
                if let [only] = &mut done.stops[..] {
                    // The event has whole microseconds.
                    only.time_to_stop = report.time_to_stop.as_nanos() as u64;
                }
                let first = done.stops.first().map_or(end, |stop| stop.interval().from);
                let prepared = first.saturating_sub(noted.begun);
                noted.collections.push(Collection {
                    full: report.kind == CollectionKind::Full,
                    end,
                    duration: report.duration.as_nanos() as u64,
                    prepared,
                    candidates: report.candidates,
                    collected: report.collected,
                    workers: report.workers,
                    abandoned: report.abandoned.is_some() || report.stops.is_empty(),
                    ..done
                });
            }
            _ => {}
        });
    }

    /// The time, on the observer's clock.
    pub(crate) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// The collections since the last call.
    pub(crate) fn take(&self) -> Vec<Collection> {
        std::mem::take(&mut self.noted().collections)
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().expect("no thread panics with the notes locked")
    }
}

/// The name of a phase, or the time of an event.
#[derive(Default)]
struct Fields {
    time_to_stop_us: Option<u64>,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "time_to_stop_us" {
            self.time_to_stop_us = Some(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Observer {
    /// The phases, and that the world has stopped, or will run again: these alone are of level
    /// debug.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::DEBUG
            && matches!(metadata.target(), "standstill" | "standstill::phase")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        let phase = PHASES.iter().position(|phase| *phase == name);
        // A phase's id is its number, from 1; the last id is that of unknown ones.
        Id::from_u64(phase.unwrap_or(PHASES.len()) as u64 + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let at = self.now();
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(us) = fields.time_to_stop_us {
            self.noted().now.stops.push(Stop { at, time_to_stop: us * 1000, stopped: 0 });
        }
    }

    fn enter(&self, _: &Id) {
        self.noted().entered = self.now();
    }

    fn exit(&self, id: &Id) {
        let mut noted = self.noted();
        let took = self.now() - noted.entered;
        if let Some(phase) = noted.now.phases.get_mut(id.into_u64() as usize - 1) {
            *phase += took;
        }
    }
}
