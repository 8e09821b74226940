//! What a viewer of traces shows of a heap: the file that `tracing-chrome` writes is decoded.
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use standstill::{Gc, GcCell, Heap, Pacing, Trace};
use tracing_chrome::{ChromeLayerBuilder, TraceStyle};
use tracing_subscriber::layer::SubscriberExt;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Default, Trace)]
struct Node(GcCell<Option<Gc<Node>>>);

const LONG: Duration = Duration::from_secs(120);

/// Two threads make garbage at once, under automatic collections, for some rounds and until one of
/// them has been stopped.
fn churn(heap: &Heap) {
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let (both, is_stopped, begun) = (Barrier::new(2), AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        for _ in 0..2 {
            let (dispatch, both, is_stopped) = (dispatch.clone(), &both, &is_stopped);
            scope.spawn(move || {
                tracing::dispatcher::with_default(&dispatch, || {
                    let mut m = heap.attach();
                    m.detach(|| both.wait());
                    let mut rounds = 0;
                    // Without the limit, a heap that stops no thread would hang here, not fail.
                    while rounds < 20
                        || !is_stopped.load(Ordering::Relaxed) && begun.elapsed() < LONG
                    {
                        for _ in 0..1_000 {
                            let node = m.alloc(Node::default());
                            node.0.set(&m, Some(node.clone()));
                            m.safepoint();
                        }
                        rounds += 1;
                        // A thread that is about to collect also arrives at a stop, without a
                        // span. That all of ten arrivals are such is unlikely.
                        let mut times = heap.threads().into_iter().map(|it| it.time_to_stop);
                        if times.any(|it| it.count >= 10) {
                            is_stopped.store(true, Ordering::Relaxed);
                        }
                    }
                });
            });
        }
    });
}

/// The events that the layer writes, in their order.
fn trace(style: TraceStyle) -> Vec<Value> {
    let written = Written::default();
    let layer = ChromeLayerBuilder::new().writer(written.clone()).trace_style(style);
    let (layer, guard) = layer.include_args(true).build();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        let pacing = Pacing::default().with_young_objects(500);
        churn(&Heap::builder().name("traced").pacing(pacing).build().expect("a heap"));
    });
    drop(guard);
    let bytes = written.0.lock().unwrap();
    serde_json::from_slice(&bytes).expect("JSON")
}

fn text<'v>(event: &'v Value, key: &str) -> &'v str {
    event[key].as_str().unwrap_or_default()
}

#[test]
fn each_thread_has_a_track_on_which_spans_are_nested() {
    let mut open: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut last: BTreeMap<u64, f64> = BTreeMap::new();
    let (mut stopped, mut phases) = (BTreeSet::new(), BTreeSet::new());
    for event in trace(TraceStyle::Threaded) {
        let (name, tid) = (text(&event, "name"), event["tid"].as_u64().unwrap());
        let stack = open.entry(tid).or_default();
        match text(&event, "ph") {
            "B" => {
                if name.starts_with(char::is_uppercase) {
                    let outer = stack.last().map(String::as_str);
                    assert!(
                        matches!(outer, Some("collection" | "promotion")),
                        "{name} in {outer:?}"
                    );
                    phases.insert(name.to_owned());
                }
                if name == "thread stopped" {
                    stopped.insert(tid);
                    assert_eq!(event["args"]["heap"], "\"traced\"");
                }
                stack.push(name.to_owned());
            }
            "E" => assert_eq!(stack.pop().as_deref(), Some(name), "balanced"),
            _ => continue,
        }
        let ts = event["ts"].as_f64().unwrap();
        let before = last.insert(tid, ts).unwrap_or_default();
        assert!(ts >= before, "{name} at {ts}, after {before}");
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    assert!(phases.contains("Count") && phases.contains("Clear"), "{phases:?}");
    assert!(!stopped.is_empty(), "no thread was stopped, or no span tells of it");
}

#[test]
fn a_collection_has_a_track_of_its_own() {
    // In this style each root span, with what is inside, has a track, which its id names.
    let mut open: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut collections = BTreeSet::new();
    for event in trace(TraceStyle::Async) {
        let name = text(&event, "name");
        let Some(id) = event["id"].as_u64() else { continue };
        match text(&event, "ph") {
            "b" => {
                let track = open.entry(id).or_default();
                if name == "collection" {
                    assert!(track.is_empty(), "{track:?}");
                    collections.insert(id);
                }
                track.push(name.to_owned());
            }
            "e" => {
                let track = open.get_mut(&id).expect("an open track");
                let at = track.iter().rposition(|open| open == name).expect("balanced");
                track.remove(at);
            }
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    assert!(!collections.is_empty());
}
