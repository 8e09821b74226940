//! A small service with faults that can be switched on, one at a time. The guide
//! `docs/diagnostics.md` finds each of them.
//!
//! ```sh
//! cargo run --release -p standstill-heap --example service -- registry 30
//! ```
//!
//! With the name of a file behind the seconds, it writes a snapshot at its end.
//!
//! Two threads answer requests. A request has a session with messages, in a registry until it is
//! answered, and it uses pages of a cache. Sessions and messages refer to each other, so only the
//! collector frees them.

use std::collections::{HashMap, VecDeque};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// What is wrong with the service.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Some sessions stay in the registry for ever.
    Registry,
    /// The cache forgets no page, and each page has a session.
    Cache,
    /// A thread writes reports, and reaches no safepoint meanwhile.
    Late,
    /// The finalizer of an upload waits for a disk.
    Finalizer,
    /// An index with very many nodes makes each full collection long.
    Pause,
    /// Each session keeps the body of its request.
    Buffers,
}

const FAULTS: [(&str, Fault); 7] = [
    ("none", Fault::None),
    ("registry", Fault::Registry),
    ("cache", Fault::Cache),
    ("late", Fault::Late),
    ("finalizer", Fault::Finalizer),
    ("pause", Fault::Pause),
    ("buffers", Fault::Buffers),
];

#[derive(Trace)]
struct Session {
    user: String,
    messages: GcCell<Vec<Gc<Message>>>,
    body: GcCell<Vec<u8>>,
}

#[derive(Trace)]
struct Message {
    text: String,
    session: Gc<Session>,
}

#[derive(Default, Trace)]
struct Registry {
    sessions: GcCell<HashMap<u64, Gc<Session>>>,
}

#[derive(Trace)]
struct Page {
    html: String,
    made_for: Gc<Session>,
}

#[derive(Default, Trace)]
struct Cache {
    pages: GcCell<VecDeque<Gc<Page>>>,
}

/// A file that a request has sent. It refers to itself, so that it ends by a collection.
#[derive(Trace)]
#[trace(finalize = Upload::finalize)]
struct Upload {
    me: GcCell<Option<Gc<Upload>>>,
    is_slow: bool,
}

impl Upload {
    fn finalize(this: &Gc<Self>, _: &Mutator) {
        if this.is_slow {
            thread::sleep(Duration::from_millis(60));
        }
    }
}

#[derive(Trace)]
struct IndexNode {
    next: GcCell<Option<Gc<IndexNode>>>,
}

struct Service {
    heap: Heap,
    fault: Fault,
    registry: Gc<Registry>,
    cache: Gc<Cache>,
    until: Instant,
    served: AtomicU64,
    slowest_us: AtomicU64,
}

impl Service {
    fn answer(&self, m: &mut Mutator, number: u64) {
        let user = format!("user {}", number % 1000);
        let session =
            m.alloc(Session { user, messages: GcCell::default(), body: GcCell::default() });
        self.registry.sessions.lock(m).insert(number, session.clone());
        for text in ["hello", "bye"] {
            let message = m.alloc(Message { text: text.to_owned(), session: session.clone() });
            session.messages.lock(m).push(message);
        }
        if self.fault == Fault::Buffers {
            session.body.set(m, vec![b' '; 16 << 10]);
        }
        if number.is_multiple_of(8) {
            let html = format!("<p>{}, {} messages", session.user, session.messages.lock(m).len());
            let page = m.alloc(Page { html, made_for: session.clone() });
            let mut pages = self.cache.pages.lock(m);
            pages.push_back(page);
            if self.fault != Fault::Cache && pages.len() > 100 {
                pages.pop_front();
            }
        }
        if number.is_multiple_of(64) {
            let is_slow = self.fault == Fault::Finalizer && number.is_multiple_of(16_384);
            let upload = m.alloc(Upload { me: GcCell::default(), is_slow });
            upload.me.set(m, Some(upload.clone()));
        }
        let keeps = match self.fault {
            Fault::Registry => number.is_multiple_of(4),
            Fault::Buffers => number.is_multiple_of(16),
            _ => false,
        };
        if !keeps {
            self.registry.sessions.lock(m).remove(&number);
        }
    }

    /// Answers requests with numbers that begin at `first`, each second one.
    fn work(&self, first: u64) {
        let mut m = self.heap.attach();
        let mut number = first;
        while Instant::now() < self.until {
            let begun = Instant::now();
            m.mark("answering a request");
            self.answer(&mut m, number);
            m.safepoint();
            let took = begun.elapsed().as_micros() as u64;
            self.slowest_us.fetch_max(took, Ordering::Relaxed);
            self.served.fetch_add(1, Ordering::Relaxed);
            number += 2;
            if number.is_multiple_of(50) {
                // The next request has not arrived yet.
                m.mark("waiting for a request");
                m.detach(|| thread::sleep(Duration::from_micros(200)));
            }
        }
    }

    /// Writes a report now and then.
    fn report(&self) {
        let mut m = self.heap.attach();
        while Instant::now() < self.until {
            m.detach(|| thread::sleep(Duration::from_millis(50)));
            if self.fault == Fault::Late {
                m.mark("writing the report");
                thread::sleep(Duration::from_millis(300));
            }
            m.safepoint();
        }
    }

    /// A list, held by its first node.
    fn index(&self, m: &Mutator) -> Gc<IndexNode> {
        let nodes = if self.fault == Fault::Pause { 300_000 } else { 1000 };
        let mut first = m.alloc(IndexNode { next: GcCell::default() });
        for _ in 1..nodes {
            first = m.alloc(IndexNode { next: GcCell::new(Some(first)) });
        }
        first
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or("none".to_owned());
    let seconds = arguments.next().map_or(Ok(1), |seconds| seconds.parse::<u64>());
    let (Some(&(_, fault)), Ok(seconds)) =
        (FAULTS.iter().find(|(known, _)| *known == name), seconds)
    else {
        let names: Vec<_> = FAULTS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: service [{}] [SECONDS [FILE]]", names.join("|"));
        return ExitCode::from(2);
    };
    let heap = Heap::builder()
        .name("service")
        .slow_stop(Duration::from_millis(100))
        .slow_collection(Duration::from_millis(20))
        .pacing(Pacing::default().with_full_minimum(5_000))
        .build()
        .expect("a heap");
    let mut m = heap.attach();
    let service = Service {
        fault,
        registry: m.alloc(Registry::default()),
        cache: m.alloc(Cache::default()),
        until: Instant::now() + Duration::from_secs(seconds),
        served: AtomicU64::new(0),
        slowest_us: AtomicU64::new(0),
        heap: heap.clone(),
    };
    let index = service.index(&m);
    println!("process {}, fault {name}, {seconds} s", std::process::id());
    m.detach(|| {
        thread::scope(|scope| {
            let named = |name: &str| thread::Builder::new().name(name.to_owned());
            named("worker 1").spawn_scoped(scope, || service.work(1)).expect("a thread");
            named("worker 2").spawn_scoped(scope, || service.work(2)).expect("a thread");
            named("reporter").spawn_scoped(scope, || service.report()).expect("a thread");
        });
    });
    let pauses = heap.stats().full.pause;
    println!(
        "{} requests, the slowest {} us; full collections stopped {} times, {:?} at most",
        service.served.into_inner(),
        service.slowest_us.into_inner(),
        pauses.count,
        pauses.max
    );
    if fault == Fault::None {
        let left = service.registry.sessions.lock(&m).len();
        let pages: usize = service.cache.pages.lock(&m).iter().map(|page| page.html.len()).sum();
        assert!(left == 0 && pages > 0, "{left} sessions are left");
        m.collect();
        let census = m.census();
        let sessions = census.of_type("service::Session").map_or(0, |row| row.objects);
        assert!((1..=101).contains(&sessions), "those of the pages\n{census}");
    }
    if let Some(file) = arguments.next() {
        m.collect();
        if let Err(error) = m.snapshot(&file) {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    drop((index, m));
    ExitCode::SUCCESS
}
