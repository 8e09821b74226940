//! The metrics of a heap at `http://127.0.0.1:9464/metrics`, for Prometheus.
//!
//! ```sh
//! cargo run --manifest-path examples/prometheus/Cargo.toml
//! ```
//!
//! Any recorder of the crate `metrics` works. It is installed before the heap is made, so that it
//! gets the descriptions too.

#![forbid(unsafe_code)]

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use standstill::{Gc, GcCell, Heap, Trace};

#[derive(Default, Trace)]
struct Node(GcCell<Option<Gc<Node>>>);

/// Makes garbage, so that there is something to see.
fn work(heap: &Heap, objects: usize) {
    let mut m = heap.attach();
    for _ in 0..objects {
        let node = m.alloc(Node::default());
        node.0.set(&m, Some(node.clone()));
        m.safepoint();
    }
    m.collect();
}

/// Answers one request, whatever it asks for.
fn answer(stream: TcpStream, metrics: &PrometheusHandle) -> io::Result<()> {
    let mut lines = BufReader::new(&stream).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let body = metrics.render();
    let length = body.len();
    write!(
        &stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn main() -> io::Result<()> {
    let metrics = PrometheusBuilder::new().install_recorder().map_err(io::Error::other)?;
    let heap = Heap::builder().name("app").build().map_err(io::Error::other)?;
    let listener = TcpListener::bind("127.0.0.1:9464")?;
    println!("http://{}/metrics", listener.local_addr()?);
    thread::spawn(move || {
        loop {
            work(&heap, 100_000);
        }
    });
    for stream in listener.incoming() {
        // A client that goes away ends its answer alone.
        if let Err(error) = stream.and_then(|stream| answer(stream, &metrics)) {
            eprintln!("{error}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn prometheus_gets_the_metrics_of_a_heap_with_their_units() {
        let metrics = PrometheusBuilder::new().install_recorder().expect("the first recorder");
        // It stays open, because its end would collect once more.
        let heap = Heap::builder().name("app").build().expect("a heap");
        work(&heap, 10_000);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        answer(listener.accept().unwrap().0, &metrics).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        let value = |start: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(start));
            let line = line.unwrap_or_else(|| panic!("{start} in {text}"));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"));
        let young = "{heap_name=\"app\",gc_kind=\"young\"";
        let full = "{heap_name=\"app\",gc_kind=\"full\"";
        let collected = |kind: &str| value(&format!("standstill_gc_collected{kind}}} "));
        assert_eq!(collected(young) + collected(full), 10_000.0);
        let requested = format!("standstill_gc_duration_count{full},gc_reason=\"Requested\"}} ");
        assert_eq!(value(&requested), 1.0);
        let due = format!("standstill_gc_duration_count{young},gc_reason=\"New\"}} ");
        assert!(value(&due) >= 1.0);
        for histogram in ["pause_duration", "time_to_stop"] {
            assert!(value(&format!("standstill_gc_{histogram}_count{full}}} ")) >= 1.0);
        }
        let mark = format!("standstill_gc_phase_duration_sum{full},gc_phase=\"Merge\"}} ");
        assert!((0.0..1000.0).contains(&value(&mark)), "in seconds");
        let gauge = |name: &str| value(&format!("standstill_heap_{name}{{heap_name=\"app\"}} "));
        assert!(gauge("used") > 0.0 && gauge("committed") >= gauge("used"));
        assert!(gauge("limit") > gauge("used") && gauge("external") == 0.0);
        assert_eq!((gauge("threads"), heap.stats().mutators), (1.0, 0));
        assert!(text.contains("# HELP standstill_gc_pause_duration How long"));
    }
}
