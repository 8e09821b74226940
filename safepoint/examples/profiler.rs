//! A sampling profiler. It stops the threads of an interpreter, looks which function each one runs,
//! and lets them run on. No signal interrupts a thread, so a frame is never half written.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use standstill_safepoint::{Coordinator, Participant};

const FUNCTIONS: [&str; 3] = ["parse", "render", "read"];
const SAMPLES: usize = 50;
const INTERVAL: Duration = Duration::from_millis(1);

/// What a thread shows to the others: the function that it runs.
#[derive(Default)]
struct Frame(AtomicUsize);

/// A thread that computes. It polls on each turn of its loop, as compiled code does.
fn interpret(me: &Participant<Frame>, done: &AtomicBool) {
    me.attach().expect("the thread is detached");
    while !done.load(Relaxed) {
        for function in [0, 0, 0, 1] {
            me.data().0.store(function, Relaxed);
            for turn in 0..1000 {
                std::hint::black_box(turn);
                if me.poll() != 0 {
                    me.park();
                }
            }
        }
    }
}

/// A thread that waits for input. It is detached meanwhile, so that no sample waits for it.
fn read(me: &Participant<Frame>, input: &Receiver<()>) {
    me.attach().expect("the thread is detached");
    me.data().0.store(2, Relaxed);
    me.detach();
    input.recv().expect_err("the profiler closes the channel at its end");
    me.attach().expect("the thread is detached");
}

fn main() {
    let coordinator = Coordinator::<Frame>::new();
    let done = AtomicBool::new(false);
    let begun = Barrier::new(4);
    let mut counts = [0; FUNCTIONS.len()];
    std::thread::scope(|s| {
        let (close, input) = channel();
        for _ in 0..2 {
            s.spawn(|| {
                let me = coordinator.register(Frame::default());
                begun.wait();
                interpret(&me, &done);
            });
        }
        let (coordinator, begun) = (&coordinator, &begun);
        s.spawn(move || {
            let me = coordinator.register(Frame(2.into()));
            begun.wait();
            read(&me, &input);
        });
        let me = coordinator.register(Frame::default());
        begun.wait();
        for _ in 0..SAMPLES {
            std::thread::sleep(INTERVAL);
            me.attach().expect("the thread is detached");
            let world = me.stop().expect("no thread ends attached");
            world.threads(|id, frame| {
                if id != me.id() {
                    counts[frame.0.load(Relaxed)] += 1;
                }
            });
            drop(world); // the threads run on
            me.detach();
        }
        done.store(true, Relaxed);
        drop::<Sender<()>>(close);
    });
    for (name, count) in FUNCTIONS.iter().zip(counts) {
        println!("{name:8}{count:5}");
    }
    assert_eq!(counts.iter().sum::<usize>(), 3 * SAMPLES, "each sample sees each thread");
    assert_eq!(counts[2], SAMPLES, "a thread that blocks is seen, and not waited for");
}

#[test]
fn each_sample_sees_each_thread() {
    main();
}
