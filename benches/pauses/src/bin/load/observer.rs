//! The collector's own record: a `tracing` subscriber records the stops and phases of each
//! collection, and the heap's callback completes the record with the report.
//!
//! While a child searches for one collection, others run. So each record belongs to the collection
//! whose span the thread is in.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

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
    /// From its beginning to its end, without the time for which a child searched.
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
    /// Those that have begun, by the numbers of their spans: several, while a child searches.
    open: HashMap<u64, Open>,
    /// The number of the last span of a collection.
    spans: u64,
    /// When the phase that is open began.
    entered: u64,
}

/// A collection that has begun.
#[derive(Debug, Default)]
struct Open {
    collection: Collection,
    /// When it began.
    begun: u64,
}

thread_local! {
    /// The spans of collections that this thread is in.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The collection that this thread is in.
fn entered() -> Option<u64> {
    ENTERED.with_borrow(|spans| spans.last().copied())
}

impl Noted {
    /// The collection that this thread is in.
    fn now(&mut self) -> Option<&mut Open> {
        entered().and_then(|span| self.open.get_mut(&span))
    }
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
            CollectionEvent::Start(_) => {
                let begun = this.now();
                let mut noted = this.noted();
                if let Some(open) = noted.now() {
                    open.begun = begun;
                }
            }
            CollectionEvent::Stop(report) => {
                let end = this.now();
                let mut noted = this.noted();
                let open = entered().and_then(|span| noted.open.remove(&span));
                let Open { collection: mut done, begun } = open.unwrap_or_default();
                for (stop, stopped) in done.stops.iter_mut().zip(&report.stops) {
                    stop.stopped = stopped.as_nanos() as u64;
                }
                if let [only] = &mut done.stops[..] {
                    // The event has whole microseconds.
                    only.time_to_stop = report.time_to_stop.as_nanos() as u64;
                }
                let first = done.stops.first().map_or(end, |stop| stop.interval().from);
                let prepared = first.saturating_sub(begun);
                // What the child did while the program ran delayed nobody.
                let waited = report.child.as_ref().map_or(Duration::ZERO, |child| child.took);
                noted.collections.push(Collection {
                    full: report.kind == CollectionKind::Full,
                    end,
                    duration: report.duration.saturating_sub(waited).as_nanos() as u64,
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

/// The spans of collections have larger numbers.
const FIRST_COLLECTION: u64 = 1000;

fn is_collection(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.name() == "collection"
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
    /// The collections, their phases, and that the world has stopped, or will run again.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = matches!(metadata.target(), "standstill" | "standstill::phase");
        is_ours && (*metadata.level() == Level::DEBUG || is_collection(metadata))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        if is_collection(span.metadata()) {
            let mut noted = self.noted();
            noted.spans += 1;
            let id = FIRST_COLLECTION + noted.spans;
            noted.open.insert(id, Open::default());
            return Id::from_u64(id);
        }
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
        // Without a collection it is the stop of a promotion.
        if let (Some(us), Some(open)) = (fields.time_to_stop_us, self.noted().now()) {
            open.collection.stops.push(Stop { at, time_to_stop: us * 1000, stopped: 0 });
        }
    }

    fn enter(&self, id: &Id) {
        if id.into_u64() > FIRST_COLLECTION {
            ENTERED.with_borrow_mut(|spans| spans.push(id.into_u64()));
        } else {
            self.noted().entered = self.now();
        }
    }

    fn exit(&self, id: &Id) {
        if id.into_u64() > FIRST_COLLECTION {
            ENTERED.with_borrow_mut(|spans| _ = spans.pop());
            return;
        }
        let mut noted = self.noted();
        let took = self.now() - noted.entered;
        let phase = id.into_u64() as usize - 1;
        if let Some(phase) = noted.now().and_then(|open| open.collection.phases.get_mut(phase)) {
            *phase += took;
        }
    }
}
