//! Prints what stops, blocking regions and polls cost, on the coordinator and on a stop of one
//! mutex and one condition variable, as many runtimes begin.
//!
//! `cargo bench -p standstill-safepoint`

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use standstill_safepoint::{Coordinator, Participant, WorldStopped};

const STOPS: usize = 2000;
const BETWEEN_STOPS: Duration = Duration::from_micros(500);

/// A way to stop threads.
trait World: Clone + Send + 'static {
    type Member: Member;
    fn join(&self) -> Self::Member;
}

/// One thread of it, detached at first.
trait Member {
    type Stopped<'a>
    where
        Self: 'a;
    fn attach(&self);
    fn detach(&self);
    fn poll(&self);
    fn stop(&self) -> Self::Stopped<'_>;
}

impl World for Arc<Coordinator> {
    type Member = Participant;

    fn join(&self) -> Participant {
        self.register(())
    }
}

impl Member for Participant {
    type Stopped<'a> = WorldStopped<'a>;

    fn attach(&self) {
        Participant::attach(self).expect("detached");
    }

    fn detach(&self) {
        Participant::detach(self);
    }

    #[inline(always)]
    fn poll(&self) {
        if Participant::poll(self) != 0 {
            self.park();
        }
    }

    fn stop(&self) -> WorldStopped<'_> {
        Participant::stop(self).expect("no thread ends attached")
    }
}

/// The plain stop. Threads that run are counted, and the requester waits until none is left.
#[derive(Default)]
struct Plain {
    requested: AtomicBool,
    state: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    running: usize,
    stopped: bool,
}

impl Plain {
    fn enter(&self, mut counts: MutexGuard<'_, Counts>) {
        while counts.stopped {
            counts = self.changed.wait(counts).expect("no thread panics");
        }
        counts.running += 1;
    }

    fn leave(&self) -> MutexGuard<'_, Counts> {
        let mut counts = self.state.lock().expect("no thread panics");
        counts.running -= 1;
        self.changed.notify_all();
        counts
    }
}

impl World for Arc<Plain> {
    type Member = Self;

    fn join(&self) -> Self {
        self.clone()
    }
}

struct PlainStop<'a>(&'a Plain);

impl Drop for PlainStop<'_> {
    fn drop(&mut self) {
        let mut counts = self.0.state.lock().expect("no thread panics");
        counts.stopped = false;
        counts.running += 1;
        self.0.requested.store(false, Relaxed);
        self.0.changed.notify_all();
    }
}

impl Member for Arc<Plain> {
    type Stopped<'a> = PlainStop<'a>;

    fn attach(&self) {
        self.enter(self.state.lock().expect("no thread panics"));
    }

    fn detach(&self) {
        drop(self.leave());
    }

    #[inline(always)]
    fn poll(&self) {
        if self.requested.load(Relaxed) {
            self.enter(self.leave());
        }
    }

    fn stop(&self) -> PlainStop<'_> {
        let mut counts = self.leave();
        while counts.stopped {
            counts = self.changed.wait(counts).expect("no thread panics");
        }
        counts.stopped = true;
        self.requested.store(true, Relaxed);
        while counts.running != 0 {
            counts = self.changed.wait(counts).expect("no thread panics");
        }
        PlainStop(self)
    }
}

/// The times of stops beside `running` threads that compute and `blocked` ones that wait, sorted.
fn stops<W: World>(world: &W, running: usize, blocked: usize) -> Vec<Duration> {
    let done = Arc::new(AtomicBool::new(false));
    let ready = Arc::new(AtomicUsize::new(0));
    let mut ends = Vec::new();
    let mut threads = Vec::new();
    for at in 0..running + blocked {
        let (world, done, ready) = (world.clone(), done.clone(), ready.clone());
        let (end, ended) = channel::<()>();
        ends.push(end);
        threads.push(std::thread::spawn(move || {
            let me = world.join();
            me.attach();
            ready.fetch_add(1, Relaxed);
            if at < running {
                while !done.load(Relaxed) {
                    me.poll();
                }
                me.detach();
            } else {
                me.detach();
                ended.recv().expect_err("the channel is closed");
            }
        }));
    }
    while ready.load(Relaxed) != running + blocked {
        std::thread::yield_now();
    }
    let me = world.join();
    let times = (0..STOPS).map(|_| {
        std::thread::sleep(BETWEEN_STOPS);
        me.attach();
        let begun = Instant::now();
        let stopped = me.stop();
        let time = begun.elapsed();
        drop(stopped);
        me.detach();
        time
    });
    let mut times: Vec<_> = times.collect();
    done.store(true, Relaxed);
    drop(ends);
    for thread in threads {
        thread.join().expect("the thread ends");
    }
    times.sort_unstable();
    times
}

/// The processor time that this thread has used, in nanoseconds: other programs do not change it.
fn used() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the time of this thread.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "each thread has such a clock");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds of one call, the median of eleven rounds.
fn nanoseconds(calls: u32, mut f: impl FnMut()) -> f64 {
    let mut rounds: Vec<_> = (0..11)
        .map(|_| {
            let begun = used();
            (0..calls).for_each(|_| f());
            (used() - begun) / f64::from(calls)
        })
        .collect();
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn column<W: World>(world: &W) -> Vec<String> {
    let mut cells = Vec::new();
    for (running, blocked) in [(1, 0), (0, 1), (3, 0)] {
        let times = stops(world, running, blocked);
        cells.push(format!("{:.1?} / {:.1?}", times[STOPS / 2], times[STOPS * 99 / 100]));
    }
    let me = world.join();
    me.attach();
    cells.push(format!(
        "{:.1} ns",
        nanoseconds(1 << 20, || {
            black_box(&me).detach();
            black_box(&me).attach();
        })
    ));
    cells.push(format!("{:.1} ns", nanoseconds(1 << 24, || black_box(&me).poll())));
    me.detach();
    cells
}

fn main() {
    let ours = column(&Coordinator::<()>::new());
    let plain = column(&Arc::<Plain>::default());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    println!("| {processors} processors, a stop every 0.5 ms | mutex and condvar | coordinator |");
    println!("|---|---:|---:|");
    let rows = [
        "stop, 1 running thread: median / 99 %",
        "stop, 1 blocked thread: median / 99 %",
        "stop, 3 spinning threads: median / 99 %",
        "a blocking region",
        "a poll",
    ];
    for (row, (plain, ours)) in rows.iter().zip(plain.iter().zip(&ours)) {
        println!("| {row} | {plain} | {ours} |");
    }
}
