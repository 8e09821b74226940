//! A day of a busy server in a few minutes: threads that come and go serve requests, each of which
//! leaves cycles, weak references with callbacks, finalizers (some of which bring their object
//! back), references held by other threads, and buffers; they detach, collect by hand now and
//! then, and let unattached threads drop references. It fails if memory grows after the warm-up, or
//! if an object is left at the end.
//!
//! ```text
//! cargo run --release --bin soak -- --minutes 15 --threads 4
//! ```

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use clap::Parser;
use standstill::{
    Collect, Finalizer, Gc, GcCell, GcWeak, Heap, Mutator, Pacing, Trace, Tracer, WeakRef,
};

/// Serves requests for a while, and watches memory.
#[derive(Parser)]
struct Options {
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Threads that serve at a time.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Seconds between two lines.
    #[arg(long, default_value_t = 10.0)]
    every: f64,
}

/// The allowed growth of memory after the warm-up, as a fraction of it and in bytes.
const GROWTH: (usize, usize) = (4, 32 << 20);
/// Requests in the life of a thread.
const LIFE: usize = 2000;
/// Objects that are kept from one request to a later one, on any thread.
const CACHE: usize = 512;

/// The events so far.
#[derive(Default)]
struct Tally {
    born: AtomicUsize,
    died: AtomicUsize,
    finalized: AtomicUsize,
    called_back: AtomicUsize,
    requests: AtomicUsize,
    threads: AtomicUsize,
}

/// A weak reference with a callback that counts.
type Watch = WeakRef<Item, Arc<Tally>>;

/// A part of a request.
struct Item {
    links: GcCell<Vec<Gc<Item>>>,
    weak: GcCell<Option<GcWeak<Item>>>,
    watch: GcCell<Option<Gc<Watch>>>,
    buffer: Vec<u8>,
    /// Its finalizer puts it back into the cache.
    returns: bool,
    server: Arc<Server>,
}

impl Trace for Item {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        let item = this;
        item.server.tally.finalized.fetch_add(1, Relaxed);
        if item.returns {
            item.server.keep(Gc::as_ptr(this).addr() / 32 % CACHE, this.clone());
        }
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.links, tracer);
        Trace::traverse(&this.weak, tracer);
        Trace::traverse(&this.watch, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.links, m);
        Trace::clear(&this.weak, m);
        Trace::clear(&this.watch, m);
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.server.tally.died.fetch_add(1, Relaxed);
    }
}

/// The data that all threads share.
struct Server {
    tally: Arc<Tally>,
    cache: Mutex<Vec<Option<Gc<Item>>>>,
    over: AtomicBool,
}

impl Server {
    /// Puts an item into the cache in place of another.
    fn keep(&self, place: usize, item: Gc<Item>) {
        let before = self.cache.lock().expect("no panics")[place % CACHE].replace(item);
        drop(before);
    }

    fn cached(&self, place: usize) -> Option<Gc<Item>> {
        self.cache.lock().expect("no panics")[place % CACHE].clone()
    }
}

/// Numbers that look random: an xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn item(m: &Mutator, server: &Arc<Server>, random: &mut Random) -> Gc<Item> {
    server.tally.born.fetch_add(1, Relaxed);
    m.alloc(Item {
        links: GcCell::new(Vec::new()),
        weak: GcCell::new(None),
        watch: GcCell::new(None),
        buffer: vec![0; random.below(400)],
        returns: random.below(2000) == 0,
        server: Arc::clone(server),
    })
}

fn called_back(weak: &Gc<Watch>, _: &Mutator) {
    weak.data().called_back.fetch_add(1, Relaxed);
}

/// One request: a tree with references back to its root, and some to objects of other requests.
fn serve(m: &Mutator, server: &Arc<Server>, random: &mut Random) {
    let root = item(m, server, random);
    let mut all = vec![root.clone()];
    for _ in 0..random.below(120) {
        let next = item(m, server, random);
        let parent = &all[random.below(all.len())];
        parent.links.lock(m).push(next.clone());
        match random.below(12) {
            0..3 => next.links.lock(m).push(root.clone()),
            3 => drop(next.weak.replace(m, Some(Gc::downgrade(&root, m)))),
            4 => {
                let watch = m.alloc_weak(&root, Arc::clone(&server.tally), called_back);
                drop(next.watch.replace(m, Some(watch)));
            }
            5 => {
                // Old objects refer to new ones; the other way round only weakly, or
                // history would never end.
                if let Some(old) = server.cached(random.below(CACHE)) {
                    let cut = {
                        let mut links = old.links.lock(m);
                        let cut =
                            if links.len() > 1 { std::mem::take(&mut *links) } else { Vec::new() };
                        links.push(next.clone());
                        cut
                    };
                    drop(cut);
                    drop(next.weak.replace(m, Some(Gc::downgrade(&old, m))));
                }
            }
            6 => assert!(next.buffer.iter().all(|&byte| byte == 0), "a thread wrote into a buffer"),
            _ => {}
        }
        all.push(next);
    }
    if random.below(4) == 0 {
        server.keep(random.below(CACHE), all.swap_remove(random.below(all.len())));
    }
    server.tally.requests.fetch_add(1, Relaxed);
}

/// The life of one thread.
fn live(heap: &Heap, server: &Arc<Server>, seed: usize, dropper: &mpsc::SyncSender<Gc<Item>>) {
    server.tally.threads.fetch_add(1, Relaxed);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1) << 7);
    let mut m = heap.attach();
    for _ in 0..LIFE {
        serve(&m, server, &mut random);
        m.safepoint();
        match random.below(400) {
            0..8 => m.detach(std::thread::yield_now),
            8..12 => {
                if let Some(old) = server.cached(random.below(CACHE)) {
                    m.detach(|| dropper.send(old)).expect("the receiver drops it");
                }
            }
            12 => drop(m.try_collect(Collect::young().wait(false))),
            13 => drop(m.try_collect(Collect::full().wait(false))),
            _ => {}
        }
        if server.over.load(Relaxed) {
            break;
        }
    }
}

/// Bytes of the process that are in memory.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok().and_then(|line| {
        line.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok())
    });
    pages.unwrap_or(0) * 4096
}

fn main() -> ExitCode {
    let options = Options::parse();
    let length = Duration::from_secs_f64(options.minutes * 60.0);
    // Memory that grows once (a cache, the allocator's arenas) has grown by then.
    let warm = (length / 4).min(Duration::from_secs(120));
    let heap = Heap::builder()
        .pacing(Pacing::default().with_young_objects(20_000))
        .serial_below(5_000)
        .build()
        .expect("a heap");
    let tally = Arc::new(Tally::default());
    let server = Arc::new(Server {
        tally: Arc::clone(&tally),
        cache: Mutex::new(vec![None; CACHE]),
        over: AtomicBool::new(false),
    });
    let (dropper, dead) = mpsc::sync_channel::<Gc<Item>>(64);
    // It is never attached.
    let drops = std::thread::spawn(move || dead.into_iter().for_each(drop));

    let begun = Instant::now();
    let mut threads: Vec<std::thread::JoinHandle<()>> = Vec::new();
    let (mut next_line, mut high, mut highest) = (Duration::ZERO, 0, 0);
    let (mut seed, mut flat) = (0, true);
    while begun.elapsed() < length {
        threads.retain(|thread| !thread.is_finished());
        while threads.len() < options.threads {
            let (heap, server, dropper) = (heap.clone(), Arc::clone(&server), dropper.clone());
            threads.push(std::thread::spawn(move || live(&heap, &server, seed, &dropper)));
            seed += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
        let now = begun.elapsed();
        let resident = resident();
        highest = highest.max(resident);
        if now < warm {
            high = highest;
        } else if resident > high + high / GROWTH.0 + GROWTH.1 {
            flat = false;
        }
        if now >= next_line {
            next_line += Duration::from_secs_f64(options.every);
            let stats = heap.stats();
            println!(
                "{:6.0} s  {:9} requests  {:11} objects  {:7} alive  {:6} collections ({} young)  {:5} threads  \
                 {:6.1} MiB",
                now.as_secs_f64(),
                tally.requests.load(Relaxed),
                tally.born.load(Relaxed),
                stats.live_objects,
                stats.collections,
                stats.young_collections,
                tally.threads.load(Relaxed),
                resident as f64 / f64::from(1 << 20),
            );
        }
    }
    server.over.store(true, Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("a thread that serves"));
    drop(dropper);
    drops.join().expect("the thread that drops");
    let mut m = heap.attach();
    // Finalizers put items back into the cache; each does so once.
    for _ in 0..4 {
        let kept: Vec<_> =
            server.cache.lock().expect("no panics").iter_mut().map(Option::take).collect();
        drop(kept);
        m.collect();
    }
    let whole = m.verify();
    drop(m);
    let left = heap.stats().live_objects;
    let (born, died) = (tally.born.load(Relaxed), tally.died.load(Relaxed));
    println!(
        "{born} objects were born, {died} died, {left} are left; {} finalizers, {} callbacks, {} collections; memory: {:.1} MiB \
         after the warm-up, {:.1} MiB at most",
        tally.finalized.load(Relaxed),
        tally.called_back.load(Relaxed),
        heap.stats().collections,
        high as f64 / f64::from(1 << 20),
        highest as f64 / f64::from(1 << 20),
    );
    match whole {
        Err(damage) => println!("FAILED: {damage}"),
        Ok(()) if born != died || left != 0 => println!("FAILED: something is left"),
        Ok(()) if !flat => println!("FAILED: memory grows"),
        Ok(()) => return ExitCode::SUCCESS,
    }
    ExitCode::FAILURE
}
